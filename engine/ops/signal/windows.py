"""Windows: parts of given size, cut out or replaced."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Op, Sample, as_scalar_or_array
from ...graph.spec import Shape, TensorSpec, shape_text
from ...graph.tensor import Tensor
from ..arrays.gathering import integers
from ..arrays.shape_arguments import ShapeLike, fill_shape
from ..arrays.shaping import constant_value, dim, resolve_shape
from ..base import TensorLike, apply, convert_to_tensor
from ..run_time_shapes import zeros_of


def window_key(begins: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> tuple[Any, ...]:
    """Return the key of a window, which must be inside.

    Raises:
        IndexError: it is not.
    """
    for axis, (begin, size, room) in enumerate(zip(begins, sizes, shape, strict=True)):
        if begin < 0 or begin + size > room:
            raise IndexError(f"A slice from {begin} of size {size} leaves axis {axis}, whose size is {room}.")
    return tuple([builtins.slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)])


def _check_window(spec: TensorSpec, sizes: Shape) -> None:
    if spec.shape is None or sizes is None:
        return
    if len(spec.shape) != len(sizes) or any(
        have is not None and want is not None and want > have for have, want in zip(spec.shape, sizes, strict=True)
    ):
        raise ValueError(f"A slice of shape {shape_text(sizes)} does not fit into {spec}.")


def _check_start(start: TensorSpec, sizes: Shape) -> None:
    if sizes is not None and start.shape is not None and start.shape not in ((len(sizes),), (None,)):
        raise ValueError(f"A slice of shape {shape_text(sizes)} needs a start with {len(sizes)} entries, got {start}.")


@dataclass(frozen=True)
class Slice(Op):
    """A window. Inputs: the whole, its start as a vector, and what fills the Nones of `sizes`."""

    sizes: tuple[int | None, ...]
    view: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_window(inputs[0], self.sizes)
        _check_start(inputs[1], self.sizes)
        return TensorSpec(self.sizes, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, starts, *sizes = inputs
        return as_scalar_or_array(x[window_key(starts.tolist(), fill_shape(self.sizes, sizes), x.shape)])

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        x, starts = node.inputs[:2]
        return apply(SliceUpdate(), zeros_of(x), starts, dy), *[None] * (len(node.inputs) - 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        start = np.array([0, 1], "int32")
        yield Sample(cls((2, 2)), [x, start], x[:, 1:], differentiable=(0,), label="static")
        yield Sample(cls((None, 1)), [x, start, np.int32(1)], x[:1, 1:2], differentiable=(0,), label="dynamic")
        yield Sample(cls((0, 2)), [x, start], x[:0, 1:], differentiable=(0,), label="empty")
        yield Sample(cls(()), [np.float32(1), start[:0]], np.float32(1), differentiable=(0,), label="0-d")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec, vector = TensorSpec((2, 3), dtypes.float32), TensorSpec((2,), dtypes.int32)
        yield ErrorSample(lambda: cls((3, 1)).infer(spec, vector), ValueError, "does not fit", "static")
        x = np.zeros((2, 3), "float32")
        yield ErrorSample(lambda: cls((2, 2)).run(np, x, np.array([0, 2])), IndexError, "leaves axis 1", "run")


@dataclass(frozen=True)
class SliceUpdate(Op):
    """The first input with a window replaced. Inputs: the whole, the window's start as a vector, the new values."""

    needs_known: ClassVar[Mapping[int, str]] = {2: "rank"}
    updates_first: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_window(inputs[0], inputs[2].shape)
        _check_start(inputs[1], inputs[2].shape)
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, *rest = inputs
        return as_scalar_or_array(self.run_over(xp, xp.array(x), *rest))

    def run_over(self, xp: Any, *inputs: Any) -> Any:
        out, starts, updates = inputs
        out[window_key(starts.tolist(), updates.shape, out.shape)] = updates
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        _, starts, updates = node.inputs
        outside = apply(SliceUpdate(), dy, starts, zeros_of(updates))
        return outside, None, _slice_like(dy, starts, updates)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        start, new = np.array([0, 1], "int32"), np.full((1, 2), 9, "float32")
        expected = np.array([[0, 9, 9], [3, 4, 5]], "float32")
        yield Sample(cls(), [x, start, new], expected, differentiable=(0, 2), label="matrix")
        yield Sample(cls(), [x, start, new[:0]], x, differentiable=(0, 2), label="empty")
        scalars = [np.float32(1), start[:0], np.float32(2)]
        yield Sample(cls(), scalars, np.float32(2), differentiable=(0, 2), label="0-d")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec, vector = TensorSpec((2, 3), dtypes.float32), TensorSpec((2,), dtypes.int32)
        yield ErrorSample(lambda: cls().infer(spec, vector, TensorSpec((2, 4), dtypes.float32)), ValueError, "fit")


def _slice_like(x: Tensor, starts: Tensor, like: Tensor) -> Tensor:
    if like.shape is None:
        raise ValueError(f"The gradient of slice_update needs updates of known rank; got {like!r}.")
    sizes = [dim(like, axis) for axis in range(len(like.shape))]
    return apply(Slice(like.shape), x, starts, *[size for size in sizes if isinstance(size, Tensor)])


def slice(inputs: TensorLike, start_indices: Any, shape: ShapeLike) -> Tensor:
    """Return the part of `inputs` of size `shape` that begins at `start_indices`.

    Args:
        inputs: a tensor of rank r.
        start_indices: r ints or scalar tensors, or one integer vector.
        shape: r ints or scalar tensors; -1 means all that is left of an axis.

    Raises:
        TypeError: the start is not made of integers.
        ValueError: the sizes do not fit.
        IndexError: the part leaves `inputs`; checked by the run where the start is not known before.

    >>> import anabranch as ab
    >>> ab.ops.slice([1, 2, 3, 4], (1,), (2,))
    Tensor([2, 3], dtype=int32)
    """
    tensor = convert_to_tensor(inputs)
    sizes, dynamic = resolve_shape(shape)
    starts = integers(start_indices, "slice")
    known = constant_value(starts)
    if known is not None and tensor.shape is not None and len(known) == len(sizes) == len(tensor.shape):
        begins = [int(start) for start in known]
        if None not in sizes and None not in tensor.shape:
            ends = [d if s == -1 else b + (s or 0) for b, s, d in zip(begins, sizes, tensor.shape, strict=True)]
            window_key(
                begins, [(e or 0) - b for b, e in zip(begins, ends, strict=True)], [d or 0 for d in tensor.shape]
            )
            return tensor[tuple(builtins.slice(b, e) for b, e in zip(begins, ends, strict=True))]
    if -1 in sizes:
        given = list(dynamic)
        begins = starts if known is None else known.tolist()
        _check_start(TensorSpec(starts.shape, starts.dtype), sizes)
        filled = [
            dim(tensor, a) - begins[a] if s == -1 else given.pop(0) if s is None else s for a, s in enumerate(sizes)
        ]
        sizes, dynamic = resolve_shape(filled)
    return apply(Slice(sizes), tensor, starts, *dynamic)


def slice_update(inputs: TensorLike, start_indices: Any, updates: TensorLike) -> Tensor:
    """Return `inputs` with the part that begins at `start_indices`, of the shape of `updates`, replaced by `updates`.

    Raises:
        TypeError: the start is not made of integers.
        ValueError: the sizes do not fit.
        IndexError: the part leaves `inputs`.
    """
    whole = convert_to_tensor(inputs)
    starts = integers(start_indices, "slice_update")
    return apply(SliceUpdate(), whole, starts, convert_to_tensor(updates, whole.dtype))


__all__ = ["slice", "slice_update"]
