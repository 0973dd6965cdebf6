"""`class_weights_to_sample_weights`: weights of rows by the classes of their labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..config import floatx

if TYPE_CHECKING:
    from ..structures import Array, Rows

LabelForm = str  # "indices", "one_hot" or "guess": what the labels under a class_weight look like


def class_weights_to_sample_weights(
    y: Rows | None, class_weight: Mapping[int, float], labels: LabelForm = "guess"
) -> Array:
    """Return a weight for each label: ``class_weight[label]``, 1 for classes that are not named.

    Args:
        y: integer labels of any shape, ``[rows, ...]``, or one-hot rows ``[rows, ..., classes]``.
        class_weight: class index to weight.
        labels: "indices", "one_hot", or "guess" (one-hot if the last axis is over 1 and y has more than one axis).

    >>> class_weights_to_sample_weights(np.array([0, 1, 1]), {1: 3.0})
    array([1., 3., 3.], dtype=float32)
    """
    if isinstance(y, (dict, tuple, list)) or y is None:
        raise ValueError(
            "class_weight needs a model with one output and labels for it; for several outputs pass sample_weight, "
            "one array an output."
        )
    y = np.asarray(y)
    if labels == "one_hot" or (labels == "guess" and y.ndim > 1 and y.shape[-1] != 1):
        classes = np.argmax(y, axis=-1)
    else:
        classes = y[..., 0] if y.ndim > 1 and y.shape[-1] == 1 else y
        classes = np.round(classes).astype("int64")
    least = int(min(classes.min(initial=0), min(class_weight, default=0)))  # labels of hinge losses are -1 and 1
    largest = int(max(classes.max(initial=0), max(class_weight, default=0)))
    table = np.ones(largest - least + 1, floatx())
    for label, weight in class_weight.items():
        table[int(label) - least] = weight
    return table[classes - least]


__all__ = ["LabelForm", "class_weights_to_sample_weights"]
