"""Shared by preprocessing layers: data as arrays, the batches that `adapt` sees, the output modes of categories."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DTypeLike, string
from ...engine.common.outputs import HasCall, Result
from ...engine.graph import Tensor, Variable, as_dtype
from ...engine.graph.state.initial_values import Later
from ...engine.ops.base import as_array
from ..core.layer import Layer
from .layer_backend import LayerBackend

ENCODED_MODES = ("one_hot", "multi_hot", "count")


class PreprocessingLayer(Layer):
    """A layer whose inputs are data as users have them: lists of strings and numbers as well as arrays."""

    backend: ClassVar[LayerBackend] = LayerBackend()

    def __call__(self: HasCall[Result], *args: object, **kwargs: object) -> Result:
        return super().__call__(*[_as_data(value) for value in args[:1]], *args[1:], **kwargs)


class Unlearnt(Later):
    """The value, before `adapt`, of a variable of unknown length: whatever reads it, a model's step too, fails.

    Args:
        dtype: of the value.
        message: of the error: whose value it is, and what learns it.
        error: its class.
    """

    def __init__(self, dtype: DTypeLike, message: str, error: type[Exception]) -> None:
        self.dtype = as_dtype(dtype)
        self._message = message
        self._error = error

    @property
    def shape(self) -> tuple[int, ...]:
        return (0,)

    def compute(self) -> NoReturn:
        raise self._error(self._message)


def _as_data(value: object) -> object:
    """Return strings, numbers and nested lists of them as arrays; lists of arrays or tensors stay lists."""
    if isinstance(value, (str, bytes, bool, int, float)):
        return as_array(value)
    if not isinstance(value, (list, tuple)) or _holds_arrays(value):
        return value
    return as_array(value)


def _holds_arrays(values: Sequence[object]) -> bool:
    return any(
        isinstance(item, (Tensor, Variable))
        or hasattr(item, "__array__")
        or (isinstance(item, (list, tuple)) and _holds_arrays(item))
        for item in values
    )


def batches_of(data: object, steps: int | None, layer: Layer) -> Iterator[np.ndarray]:
    """Yield the arrays that `adapt` was given: one, or one a batch, without labels.

    Args:
        data: an array or a list of values; or batches: a list of arrays, a generator, or anything that can be iterated
            or has ``__len__`` and ``__getitem__``. Of batches that are tuples the first element counts.
        steps: how many batches to take; None for all.
        layer: whose `adapt` it is, for messages.

    Raises:
        TypeError: it is nothing of these. ValueError: it holds no batch.
    """
    if hasattr(data, "__array__") or (isinstance(data, (list, tuple)) and not _holds_arrays(data)):
        yield np.asarray(as_array(data))
        return
    found = False
    for batch in itertools.islice(_iterated(data, layer), steps):
        found = True
        yield np.asarray(as_array(batch[0] if isinstance(batch, tuple) else batch))
    if not found:
        raise ValueError(
            f"Layer {layer.name!r}: adapt() was given no batch. Expected at least one; a generator that was used "
            "before is empty."
        )


def _iterated(data: Any, layer: Layer) -> Iterable[object]:
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (list, tuple, dict)):
        return (data[index] for index in range(len(data)))
    if not isinstance(data, Iterable) or isinstance(data, (str, dict)):
        raise TypeError(
            f"Layer {layer.name!r}: adapt() expects an array, a list of values, or an iterable of batches; got "
            f"{type(data).__name__}."
        )
    return data


def check_mode(layer: Layer, output_mode: str, allowed: Sequence[str], sparse: bool = False) -> str:
    """Return the output mode by its present name.

    Raises:
        ValueError: it is not one of those allowed, or sparse outputs are asked for.
    """
    mode = {"binary": "multi_hot", "tf-idf": "tf_idf"}.get(output_mode, output_mode)
    if mode not in allowed:
        raise ValueError(
            f"Layer {layer.name!r}: output_mode={output_mode!r} is unknown. Expected one of "
            f"{', '.join(repr(item) for item in allowed)}."
        )
    if sparse:
        raise ValueError(f"Layer {layer.name!r}: sparse=True is not supported; outputs are dense. Leave it out.")
    return mode


def encode(indices: Tensor, output_mode: str, depth: int, dtype: DTypeLike, weights: Tensor | None = None) -> Tensor:
    """Return indices in an output mode.

    Args:
        indices: integers ``[...]``; those that are negative or not below `depth` are left out of encodings.
        output_mode: "int" gives the indices; "one_hot" ``[..., depth]`` (in the place of a last axis of size 1);
            "multi_hot" and "count" ``[..., depth]`` in the place of the last axis, the sample.
        depth: the number of categories.
        dtype: of the result.
        weights: for "count", what each index counts, of the shape of `indices`.
    """
    if output_mode == "int":
        return ops.cast(indices, dtype)
    if indices.shape == ():
        indices = ops.expand_dims(indices, -1)
    if output_mode == "one_hot":
        if indices.ndim is not None and indices.ndim > 1 and indices.shape is not None and indices.shape[-1] == 1:
            indices = ops.squeeze(indices, -1)
        return ops.one_hot(indices, depth, dtype=dtype)
    counts = _counts(ops.cast(indices, "int64"), depth, dtype, weights)
    return ops.minimum(counts, ops.cast(1, dtype)) if output_mode == "multi_hot" else counts


def _counts(indices: Tensor, depth: int, dtype: DTypeLike, weights: Tensor | None) -> Tensor:
    """Count each index along the last axis, with memory for the result only, none for one-hot rows."""
    *leading, size = ops.shape(indices)
    rows = 1
    for length in leading:
        rows = rows * length
    flat = ops.reshape(indices, (rows, size))
    starts = ops.expand_dims(ops.cast(ops.arange(rows), "int64") * depth, -1)
    known = ops.logical_and(flat >= 0, flat < depth)
    places = ops.reshape(ops.where(known, flat + starts, ops.cast(-1, "int64")), (-1,))
    values = ops.ones_like(places, dtype=dtype) if weights is None else ops.reshape(weights, (-1,))
    sums = ops.segment_sum(ops.cast(values, dtype), places, num_segments=rows * depth)
    return ops.reshape(sums, (*leading, depth))


def encoded_shape(input_shape: Sequence[int | None], output_mode: str, depth: int | None) -> tuple[int | None, ...]:
    """Return the shape that `encode` gives."""
    shape = tuple(input_shape)
    if output_mode == "int":
        return shape
    if not shape:
        return (depth,)
    if output_mode == "one_hot" and not (len(shape) > 1 and shape[-1] == 1):
        return (*shape, depth)
    return (*shape[:-1], depth)


def strings_of(values: object) -> np.ndarray:
    """Return texts of any kind as an array of dtype string."""
    array = np.asarray(as_array(values))
    return array if array.dtype == string else array.astype(string)
