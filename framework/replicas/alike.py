"""`check_alike`: workers that train together have to have the same data, the same model and the same `compile`."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.graph import Variable
from ...engine.objects.registry import serialize_keras_object
from ..data.adapters import ArrayData, Data
from ..structures import Array

if TYPE_CHECKING:
    from ..training.base_model import BaseModel

_logger = logging.getLogger(__name__)
_WHOLE = 1 << 20  # bytes of an array that are read whole for a digest; of others some rows are
_ROWS = 64
_SHOWN = 3  # differences that a message lists
_CONTENT = "values of the data"


def facts_of_data(data: Data) -> dict[str, object]:
    """Describe data that each worker reads by itself: facts for `check_alike`, by name."""
    found: dict[str, object] = {"number of batches": data.batches}
    if not isinstance(data, ArrayData):
        return found
    digest = hashlib.blake2b(digest_size=16)
    for array in data.arrays:
        add_to_digest(digest, array)
    found |= {"rows": data.rows, "batch_size": data.batch_size, "shuffle": data.shuffle, "structure": data.layout.key}
    found |= {f"array {n}": f"{a.dtype}{list(a.shape[1:])} a row" for n, a in enumerate(data.arrays)}
    return found | {_CONTENT: digest.hexdigest()}


def facts_of_model(model: BaseModel, variables: Sequence[Variable]) -> dict[str, str]:
    """Describe a compiled model: facts for `check_alike`, by name.

    The learning rate is left out where it is a number: all workers have the chief's. Numbers of names are, too: they
    differ where one worker has made more models before, such as a copy that the chief has loaded.

    Args:
        model: the model.
        variables: what a step reads or changes.
    """
    found = {f"variable {n}": f"{unnumbered(v.name)} {v.dtype}{list(v.shape)}" for n, v in enumerate(variables)}
    for name, value in {**(model._compile_arguments or {}), "optimizer": model.optimizer}.items():
        found[name] = _as_text(value)
    return found


def unnumbered(name: str) -> str:
    """Return a name without the numbers by which layers and optimizers of one class differ.

    >>> unnumbered("adam_1/dense_12_kernel_velocity")
    'adam/dense_kernel_velocity'
    """
    return re.sub(r"_\d+(?=[/_]|$)", "", name)


def _comparable(config: object) -> object:
    """Return a configuration with such names, and without learning rates that are numbers: of inner optimizers, too."""
    if isinstance(config, dict):
        if config.get("class_name") == "__lambda__":  # bytecode: it names the path of the script, and may differ
            return "lambda"
        found = {key: _comparable(value) for key, value in config.items()}
        if not isinstance(config.get("learning_rate"), dict):
            found.pop("learning_rate", None)
        return found | {"name": unnumbered(config["name"])} if isinstance(config.get("name"), str) else found
    return [_comparable(each) for each in config] if isinstance(config, (list, tuple)) else config


def _as_text(value: object) -> str:
    """Describe an argument of `compile`, alike in all processes."""
    try:
        with warnings.catch_warnings(action="ignore"):  # nothing is saved
            config = serialize_keras_object(value)
    except (TypeError, ValueError):  # no file can have it
        return type(value).__name__
    return json.dumps(_comparable(config), sort_keys=True, default=lambda each: type(each).__name__)


def check_alike(worker: str, own: Mapping[str, object], leader: str, others: Mapping[str, object]) -> None:
    """Check that a worker trains the same model on the same data as the one that leads.

    Args:
        worker: its name.
        own: its facts.
        leader: the name of the one that leads.
        others: its facts.

    Raises:
        ValueError: something differs. If the data have other values only, a warning is logged; of large arrays some
            rows are compared.

    >>> check_alike("worker 1", {"rows": 5}, "worker 0", {"rows": 6})
    Traceback (most recent call last):
        ...
    ValueError: Workers differ in what they train. rows: 5 in worker 1, and 6 in worker 0. ...
    """
    names = [name for name in {**others, **own} if own.get(name) != others.get(name)]
    if names == [_CONTENT]:
        _logger.warning(
            "%s has other data than %s, of as many rows: the rows of a batch come from both. Give all workers the "
            "whole data, in one order; each computes its own rows of every batch.",
            worker,
            leader,
        )
    elif names:
        names = [name for name in names if name != _CONTENT]
        listed = [f"{name}: {own.get(name)} in {worker}, and {others.get(name)} in {leader}" for name in names[:_SHOWN]]
        more = [f"{len(names) - _SHOWN} more differ"] if len(names) > _SHOWN else []
        raise ValueError(
            f"Workers differ in what they train. {'; '.join([*listed, *more])}. Start the same version of the script "
            "in all workers, with the same arguments and the whole data: each worker computes its own rows of a batch."
        )


def add_to_digest(found: Any, array: Array) -> None:
    """Add an array to a digest; of a large one some rows."""
    found.update(repr([array.shape, str(array.dtype)]).encode())
    if array.nbytes > _WHOLE:
        array = array[np.unique(np.linspace(0, len(array) - 1, _ROWS).astype("int64"))]
    if array.dtype.kind in "TOU":
        found.update(repr(array.tolist()).encode())
    else:
        found.update(np.ascontiguousarray(array).reshape(-1).view("uint8"))


__all__ = ["add_to_digest", "check_alike", "facts_of_data", "facts_of_model", "unnumbered"]
