"""Checks of a model on the first batch: mistakes that would run without an error, each with what mends it.

Targets that would be broadcast and class numbers that are out of range are errors of the losses themselves. Here is
what may be meant as it is, so that it is a warning, and class weights of which no sense can be made.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.common.nest import flatten_with_path
from ...engine.graph import Symbol
from ..data.adapters import Batch
from ..losses import functions as losses_functions
from ..losses.base import LossFunctionWrapper

if TYPE_CHECKING:
    from ...engine.graph import Tensor

_ROWS = 1024  # so many rows decide whether labels are one-hot
# What the losses that take logits apply to them.
_ACTIVATIONS: dict[Callable[..., Tensor], str] = {
    losses_functions.binary_crossentropy: "sigmoid",
    losses_functions.binary_focal_crossentropy: "sigmoid",
    losses_functions.categorical_crossentropy: "softmax",
    losses_functions.categorical_focal_crossentropy: "softmax",
    losses_functions.sparse_categorical_crossentropy: "softmax",
}


def checked_first(batches: Iterator[Batch], check: Callable[[Batch], None]) -> Iterator[Batch]:
    """Yield the batches, of which the first was given to `check`."""
    for batch in batches:
        check(batch)
        yield batch
        break
    yield from batches


def check_numbers(batch: Batch) -> None:
    """Warn of NaN and infinity in the data."""
    layout = batch.layout
    for part, positions in (("x", layout.x), ("y", layout.y), ("sample_weight", layout.sample_weight)):
        for path, position in flatten_with_path(positions):
            array = batch.leaves[position]
            count = np.count_nonzero(~np.isfinite(array)) if array.dtype.kind == "f" else 0
            if count:
                _warn(
                    f"{part}{path} has {count} values that are NaN or infinite, of {array.size} in the first batch; "
                    f"they would spread to the loss and the weights. Drop these rows or fill them in: "
                    f"np.nan_to_num({part}{path})."
                )


def check_probabilities(batch: Batch, loss_name: str) -> None:
    """Warn of targets outside 0 to 1, where the loss takes them as probabilities."""
    if "binary_crossentropy" not in loss_name and "binary_focal" not in loss_name:
        return
    for path, position in flatten_with_path(batch.layout.y):
        array = batch.leaves[position]
        if array.size and array.dtype.kind in "fiu" and (array.min() < 0 or array.max() > 1):
            _warn(
                f"y{path} has targets from {array.min():g} to {array.max():g}, but {loss_name} expects labels 0 and 1, "
                "or probabilities between them. Map the labels to 0 and 1, or choose a loss for what they are."
            )


def check_not_applied_twice(loss: object, prediction: object, output: str) -> None:
    """Warn if a loss that takes logits is given what the softmax or the sigmoid that it applies itself has made.

    Only the losses of this package are known well enough: the options of another one do not say what its code does with
    predictions.
    """
    activation = _applied_by(loss)
    if activation is not None and isinstance(prediction, Symbol) and prediction.operation.type == activation:
        _warn(
            f"output {output!r} ends in a {activation}, which {type(loss).__name__}(from_logits=True) applies once "
            "more. Take the activation from the last layer, or leave from_logits=True away."
        )


def _applied_by(loss: object) -> str | None:
    """Return the activation that a loss applies to its logits; None if there is none, or it is not known."""
    if not isinstance(loss, LossFunctionWrapper) or loss.option("from_logits") is not True:
        return None
    return _ACTIVATIONS.get(loss.fn)


def check_class_weight(y: object, labels: str) -> None:
    """Refuse class weights where the targets name no class.

    Args:
        y: the targets of the one output.
        labels: "indices", "one_hot" or "guess": what the loss says about them.

    Raises:
        ValueError: y has rows of several values that are not shares of classes (one-hot, or adding up to 1).
    """
    array: Any = y if hasattr(y, "shape") and hasattr(y, "__getitem__") else None
    if array is None or labels == "indices" or len(array.shape) < 2 or array.shape[-1] == 1:
        return
    rows = np.asarray(array[:_ROWS])
    if rows.dtype.kind not in "fiub" or (np.min(rows, initial=0) >= 0 and np.allclose(rows.sum(-1), 1.0, atol=1e-3)):
        return
    raise ValueError(
        f"class_weight: y of shape {tuple(array.shape)} has {array.shape[-1]} values a row that are not one-hot, so "
        "that no row has a class. Pass sample_weight with a weight for each value, such as np.where(y == 1, 3.0, 1.0), "
        "or class numbers of shape (rows,) or (rows, 1)."
    )


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)
