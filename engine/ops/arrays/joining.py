"""Joining and splitting: concatenate, stack, split, unstack and their like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DTypeLike
from ...common.keywords import given_in_a_row
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows, ResultSizes, SizesOfTensors, axes_from_front
from ...graph.graph import Operation
from ...graph.kernel_roles import KernelRole
from ...graph.op import ErrorSample, Op, Sample, is_array
from ...graph.slices import IndexedSlices
from ...graph.spec import Shape, TensorSpec, meet_shapes, shape_text
from ...graph.tensor import Tensor
from .. import row_rules
from ..base import TensorLike, apply, apply_multi, convert_to_tensor, normalize_axis, promote
from ..run_time_shapes import zeros_of
from .axes import atleast_1d, atleast_2d, moveaxis
from .front_positions import parts_of_rows
from .shape_arguments import fill_shape
from .shaping import dim, expand_dims, ravel

_INTEGERS: Any = (int, np.integer)  # untyped, so that a check leaves the static type of what is checked as it is


def together(values: Any, what: str) -> list[Tensor]:
    """Return several values as tensors of their common dtype.

    Raises:
        ValueError: there are none.
    """
    given = list(values)
    if not given:
        raise ValueError(f"{what} needs at least one tensor; got none.")
    return promote(*given)


def _check_axis(axis: Any, function: str) -> None:
    """Check that an axis is not a second tensor.

    Raises:
        TypeError: it is.
    """
    if (isinstance(axis, Tensor) or is_array(axis)) and axis.ndim != 0:
        raise given_in_a_row(f"ops.{function}")


# --- concatenate and split ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Concatenate(Op):
    """The inputs one after the other along an axis that they have."""

    axis: int
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)
    takes_slices: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    kernel_role: ClassVar[KernelRole | None] = KernelRole.JOIN
    batchable: ClassVar[bool] = True
    row_state = row_rules.joined

    def infer(self, *inputs: Any) -> TensorSpec:
        dtype = inputs[0].dtype
        shapes = [spec.shape for spec in inputs if spec.shape is not None]
        if not shapes:
            return TensorSpec(None, dtype)
        if () in shapes:
            raise ValueError("Scalars can't be concatenated; use ops.stack.")
        axis = normalize_axis(self.axis, len(shapes[0]))
        rest: Shape = None
        for shape in shapes:
            if len(shape) != len(shapes[0]):
                raise ValueError(self._mismatch(inputs, "must have as many axes"))
            try:
                rest = meet_shapes(rest, (*shape[:axis], 1, *shape[axis + 1 :]))
            except ValueError as error:
                raise ValueError(self._mismatch(inputs, f"may differ on axis {axis} only")) from error
        sizes = [None if spec.shape is None else spec.shape[axis] for spec in inputs]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        assert rest is not None
        return TensorSpec((*rest[:axis], total, *rest[axis + 1 :]), dtype)

    def _mismatch(self, specs: Iterable[TensorSpec], rule: str) -> str:
        return f"concatenate(axis={self.axis}): the inputs {rule}; got {', '.join(str(spec) for spec in specs)}."

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        joined = self.axis % rank if len(inputs) > 1 else None
        listed = range(len(inputs))
        return tuple([() if k == joined else tuple([Follows(part, k) for part in listed]) for k in range(rank)])

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.concatenate(inputs, self.axis)

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"np.concatenate(({', '.join(arguments)},), {self.axis})"

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        return f"np.concatenate(({', '.join(arguments)},), {self.axis}, out={out})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        if isinstance(dy, IndexedSlices):
            if self.axis == 0:
                return parts_of_rows(dy, node.inputs)
            dy = dy.to_dense()
        return _split(dy, [dim(x, self.axis) for x in node.inputs], self.axis)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        yield Sample(cls(0), [x, x[:1] + 9], np.vstack([x, x[:1] + 9]), label="rows")
        yield Sample(cls(-1), [x, x[:, :0], x], np.hstack([x, x]), label="columns, one empty")
        yield Sample(cls(0), [x[0]], x[0], label="one")
        yield Sample(cls(1), [x[:0], x[:0]], np.zeros((0, 6), "float32"), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        a, b = TensorSpec((2, 3), dtypes.float32), TensorSpec((2, 4), dtypes.float32)
        yield ErrorSample(lambda: cls(0).infer(a, b), ValueError, "on axis 0 only", "sizes")
        yield ErrorSample(lambda: cls(0).infer(a, TensorSpec((3,), a.dtype)), ValueError, "as many axes", "rank")
        yield ErrorSample(lambda: cls(2).infer(a, a), ValueError, "out of range", "axis")
        yield ErrorSample(lambda: cls(0).infer(TensorSpec((), a.dtype)), ValueError, "ops.stack", "scalars")


@dataclass(frozen=True)
class Split(Op):
    """Consecutive parts along an axis.

    Attributes:
        axis: the axis to cut.
        sizes: of the parts; further inputs fill the Nones.
        equal: there are no such inputs, and the parts are of equal size.
        fits: the sizes are known to fill the axis, so a run need not check it.
    """

    axis: int
    sizes: tuple[int | None, ...]
    equal: bool = False
    fits: bool = False
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)
    view: ClassVar[bool] = True
    kernel_role: ClassVar[KernelRole | None] = KernelRole.PARTS
    batchable: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        x = inputs[0]
        if x.shape is None:
            return (TensorSpec(None, x.dtype),) * len(self.sizes)
        axis = normalize_axis(self.axis, len(x.shape))
        size, sizes = x.shape[axis], self.sizes
        if size is not None and self.equal:
            sizes = self._parts(size, ())
        elif size is not None and None not in sizes:
            self._parts(size, ())
        elif size is not None and sizes.count(None) == 1:
            left = size - sum(part or 0 for part in sizes)
            sizes = tuple(left if part is None else part for part in sizes)
        return tuple([TensorSpec((*x.shape[:axis], part, *x.shape[axis + 1 :]), x.dtype) for part in sizes])

    def result_sizes(self, node: Operation, sizes: SizesOfTensors) -> Sequence[ResultSizes] | None:
        whole, given = sizes.of(node.inputs[0]), iter(node.inputs[1:])
        if whole is None or self.equal:
            return [None] * len(node.outputs)
        axis = self.axis % len(whole)
        parts = [sizes.named(next(given)) if size is None else size for size in self.sizes]
        return [(*whole[:axis], part, *whole[axis + 1 :]) for part in parts]

    def _parts(self, size: int, given: Sequence[Any]) -> tuple[int, ...]:
        """Return the sizes of the parts of an axis of `size`.

        Raises:
            ValueError: they do not add up to it.
        """
        if self.equal:
            if size % len(self.sizes):
                raise ValueError(f"Axis {self.axis} of size {size} can't be split into {len(self.sizes)} equal parts.")
            return (size // len(self.sizes),) * len(self.sizes)
        parts = fill_shape(self.sizes, given, least=None)
        if sum(parts) != size or min(parts, default=0) < 0:
            raise ValueError(f"Axis {self.axis} of size {size} can't be split into parts of sizes {list(parts)}.")
        return parts

    def cannot_fail(self, *inputs: Tensor) -> bool:
        return len(inputs) == 1  # no size of a part is an input

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        return tuple([() if k == self.axis % rank else (Follows(0, k),) for k in range(rank)])

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, *given = inputs
        before = (slice(None),) * (self.axis % x.ndim)
        parts: list[Any] = []
        start = 0
        for size in self._parts(x.shape[self.axis], given):
            parts.append(x[(*before, slice(start, start + size))])
            start += size
        return parts[0] if len(parts) == 1 else tuple(parts)

    def emit(self, arguments: Sequence[str]) -> str | None:
        if not self.fits or self.axis < 0:
            return None
        before, start = ":, " * self.axis, 0
        parts: list[str] = []
        for size in fill_shape(self.sizes, ()):
            parts.append(f"{arguments[0]}[{before}{start}:{start + size}]")
            start += size
        return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        whole = apply(Concatenate(self.axis), *_complete(node, cotangents))
        return whole, *[None] * (len(node.inputs) - 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(12, dtype="float32").reshape(3, 4)
        yield Sample(cls(0, (1, 2)), [x], (x[:1], x[1:]), label="rows")
        yield Sample(cls(1, (1, 0, 3), fits=True), [x], (x[:, :1], x[:, 1:1], x[:, 1:]), label="fits")
        yield Sample(cls(0, (3,), fits=True), [x], x, label="one")
        yield Sample(cls(-1, (None, None), equal=True), [x], (x[:, :2], x[:, 2:]), label="equal")
        dynamic = [x, np.int32(3)]
        yield Sample(cls(1, (None, 1)), dynamic, (x[:, :3], x[:, 3:]), differentiable=(0,), label="dynamic")
        yield Sample(cls(1, (0, 4)), [x[:0]], (x[:0, :0], x[:0]), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec, x = TensorSpec((3, 4), dtypes.float32), np.zeros((3, 4), "float32")
        yield ErrorSample(lambda: cls(0, (1, 1)).infer(spec), ValueError, r"size 3 .* sizes \[1, 1\]", "sum")
        yield ErrorSample(lambda: cls(0, (None,) * 2, True).infer(spec), ValueError, "2 equal parts", "equal")
        yield ErrorSample(lambda: cls(1, (None, 3)).run(np, x, np.int32(2)), ValueError, r"sizes \[2, 3\]", "run")


def _complete(node: Operation, cotangents: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the cotangents of all outputs, with zeros where nothing flows back."""
    pairs = zip(node.outputs, cotangents, strict=True)
    return [zeros_of(output) if cotangent is None else cotangent for output, cotangent in pairs]


def _split(x: Tensor, sizes: Sequence[int | Tensor], axis: int) -> tuple[Tensor, ...]:
    static = tuple(size if isinstance(size, int) else None for size in sizes)
    fits = None not in static and x.shape is not None and x.shape[axis] is not None
    return apply_multi(Split(axis, static, fits=fits), x, *[size for size in sizes if isinstance(size, Tensor)])


def concatenate(xs: Sequence[TensorLike], axis: int | None = 0) -> Tensor:
    """Join the tensors `xs` along `axis`; all other dimensions are the same. With None, join their elements.

    Raises:
        ValueError: there are none, or their shapes differ elsewhere.

    >>> import anabranch as ab
    >>> ab.ops.concatenate([[1, 2], [3]])
    Tensor([1, 2, 3], dtype=int32)
    """
    _check_axis(axis, "concatenate")
    tensors = together(xs, "concatenate")
    if axis is None:
        tensors, axis = [ravel(tensor) for tensor in tensors], 0
    ranks = {tensor.ndim for tensor in tensors} - {None}
    if len(ranks) == 1:
        (rank,) = ranks
        axis = normalize_axis(axis, rank)
    return apply(Concatenate(axis), *tensors)


def append(x1: TensorLike, x2: TensorLike, axis: int | None = None) -> Tensor:
    """Append `x2` behind `x1` along `axis`; None joins their elements as vectors."""
    first, second = promote(x1, x2)
    return concatenate([ravel(first), ravel(second)]) if axis is None else concatenate([first, second], axis)


def hstack(xs: Sequence[TensorLike]) -> Tensor:
    """Stack the tensors side by side: along axis 1, or along axis 0 if they are vectors."""
    tensors = [atleast_1d(x) for x in together(xs, "hstack")]
    return concatenate(tensors, 0 if tensors[0].ndim == 1 else 1)


def vstack(xs: Sequence[TensorLike]) -> Tensor:
    """Stack the tensors vertically: along axis 0, with vectors as rows."""
    return concatenate([atleast_2d(x) for x in together(xs, "vstack")], 0)


def column_stack(xs: Sequence[TensorLike]) -> Tensor:
    """Stack the tensors side by side: along axis 1, with vectors as columns.

    Raises:
        ValueError: there are none, one is a scalar, or their shapes differ elsewhere.

    >>> import anabranch as ab
    >>> ab.ops.column_stack([[1, 2], [3, 4]])
    Tensor([[1, 3],
            [2, 4]], dtype=int32)
    """
    tensors = together(xs, "column_stack")
    if any(tensor.ndim == 0 for tensor in tensors):
        raise ValueError(
            "column_stack: expected tensors of at least one axis; got a scalar. Use ops.stack for scalars."
        )
    return concatenate([expand_dims(tensor, 1) if tensor.ndim == 1 else tensor for tensor in tensors], 1)


def split(x: TensorLike, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Split `x` into consecutive parts along `axis`.

    Args:
        x: a tensor.
        indices_or_sections: the number of equal parts, or the places (ints or scalar tensors) where to cut.
        axis: the axis to cut.

    Raises:
        ValueError: the axis can't be split into that many equal parts.

    >>> import anabranch as ab
    >>> [part.shape for part in ab.ops.split(ab.placeholder((5, 2), "float32"), [1, 3])]
    [(1, 2), (2, 2), (2, 2)]
    """
    tensor = convert_to_tensor(x)
    if tensor.shape is not None:
        axis = normalize_axis(axis, len(tensor.shape))
    if isinstance(indices_or_sections, _INTEGERS):
        count = int(indices_or_sections)
        if count < 1:
            raise ValueError(f"split: the number of parts must be positive, got {count}.")
        size = None if tensor.shape is None else tensor.shape[axis]
        if size is not None and size % count == 0:
            return list(_split(tensor, [size // count] * count, axis))
        return list(apply_multi(Split(axis, (None,) * count, equal=True), tensor))
    cuts = list(indices_or_sections)
    if tensor.shape is None and axis < 0:
        raise ValueError(f"split(axis={axis}) counts from the end, but the rank of {tensor!r} is unknown.")
    before = (slice(None),) * axis
    bounds = zip([None, *cuts], [*cuts, None], strict=True)
    return [tensor[(*before, slice(start, stop))] for start, stop in bounds]


# --- stack and unstack ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack(Op):
    """The inputs, of one shape, along a new axis. `scalars`: they are known to be of rank 0."""

    axis: int
    scalars: bool = False
    never_fails: ClassVar[bool] = True
    kernel_role: ClassVar[KernelRole | None] = KernelRole.JOIN
    batchable: ClassVar[bool] = True
    row_state = row_rules.stacked

    def infer(self, *inputs: Any) -> TensorSpec:
        shape: Shape = None
        for spec in inputs:
            try:
                shape = meet_shapes(shape, spec.shape)
            except ValueError as error:
                listed = ", ".join(str(spec) for spec in inputs)
                raise ValueError(f"stack: all inputs must have the same shape; got {listed}.") from error
        if shape is None:
            return TensorSpec(None, inputs[0].dtype)
        axis = normalize_axis(self.axis, len(shape) + 1)
        return TensorSpec((*shape[:axis], len(inputs), *shape[axis:]), inputs[0].dtype)

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        followed = [tuple([Follows(part, k) for part in range(len(inputs))]) for k in range(rank)]
        axis = self.axis % (rank + 1)
        return (*followed[:axis], (), *followed[axis:])

    def run(self, xp: Any, *inputs: Any) -> Any:
        if self.scalars and xp is np:
            return np.array(inputs)
        return xp.stack(inputs, self.axis)

    def emit(self, arguments: Sequence[str]) -> str | None:
        listed = ", ".join(arguments)
        return f"np.array(({listed},))" if self.scalars else f"np.stack(({listed},), {self.axis})"

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        return None if self.scalars else f"np.stack(({', '.join(arguments)},), {self.axis}, out={out})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply_multi(Unstack(self.axis, len(node.inputs)), dy)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        yield Sample(cls(0), [x, -x], np.array([x, -x]), label="front")
        yield Sample(cls(-1), [x, -x], np.moveaxis(np.array([x, -x]), 0, 2), label="back")
        yield Sample(cls(0, True), [np.float32(1), np.float32(2)], np.array([1, 2], "float32"), label="scalars")
        yield Sample(cls(0), [np.float32(1)], np.array([1], "float32"), label="0-d")
        yield Sample(cls(1), [x[:0]], x[:0, None], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        a, b = TensorSpec((2, 3), dtypes.float32), TensorSpec((2, 4), dtypes.float32)
        yield ErrorSample(lambda: cls(0).infer(a, b), ValueError, "same shape", "shapes")
        yield ErrorSample(lambda: cls(3).infer(a, a), ValueError, "out of range", "axis")


@dataclass(frozen=True)
class Unstack(Op):
    """The `count` parts of the input along an axis, without that axis."""

    axis: int
    count: int
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    kernel_role: ClassVar[KernelRole | None] = KernelRole.PARTS

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        if x.shape is None:
            return (TensorSpec(None, x.dtype),) * self.count
        axis = normalize_axis(self.axis, len(x.shape))
        if x.shape[axis] not in (None, self.count):
            raise ValueError(f"unstack: axis {axis} of {x} has size {x.shape[axis]}, not {self.count}.")
        return (TensorSpec(x.shape[:axis] + x.shape[axis + 1 :], x.dtype),) * self.count

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        gone = axes_from_front(self.axis, rank)
        return tuple([(Follows(0, axis),) for axis in range(rank) if axis not in gone])

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        if x.shape[self.axis] != self.count:
            raise ValueError(
                f"unstack: axis {self.axis} of {shape_text(x.shape)} has size {x.shape[self.axis]}, not {self.count}."
            )
        parts = tuple(x if self.axis == 0 else xp.moveaxis(x, self.axis, 0))
        return parts[0] if self.count == 1 else parts

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (stack(_complete(node, cotangents), self.axis),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        yield Sample(cls(0, 2), [x], (x[0], x[1]), label="rows")
        yield Sample(cls(-1, 3), [x], tuple(x.T), label="columns")
        yield Sample(cls(0, 3), [x[0]], (np.float32(0), np.float32(1), np.float32(2)), label="scalars")
        yield Sample(cls(1, 1), [x[:0, :1]], x[:0, 0], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec = TensorSpec((2, 3), dtypes.float32)
        yield ErrorSample(lambda: cls(0, 3).infer(spec), ValueError, "has size 2, not 3", "static")
        yield ErrorSample(lambda: cls(0, 3).run(np, np.zeros((2, 3))), ValueError, "has size 2, not 3", "run")


def stack(x: Sequence[TensorLike] | Tensor, axis: int = 0) -> Tensor:
    """Stack the tensors `x`, all of one shape, along a new axis.

    Raises:
        ValueError: there are none, or their shapes differ.

    >>> import anabranch as ab
    >>> ab.ops.stack([ab.placeholder((3,), "float32"), [1.0, 2.0, 3.0]], axis=1).shape
    (3, 2)
    """
    _check_axis(axis, "stack")
    if isinstance(x, Tensor):
        return moveaxis(x, 0, axis)
    tensors = together(x, "stack")
    ranks = {tensor.ndim for tensor in tensors} - {None}
    if len(ranks) == 1:
        (rank,) = ranks
        axis = normalize_axis(axis, None if rank is None else rank + 1)
    return apply(Stack(axis, all(tensor.shape == () for tensor in tensors)), *tensors)


def unstack(x: TensorLike, num: int | None = None, axis: int = 0) -> list[Tensor]:
    """Unstack `x`: return its parts along `axis`, without that axis.

    Args:
        x: a tensor.
        num: how many there are; needed where the size of the axis is not known.
        axis: the axis to take apart.

    Raises:
        ValueError: `num` is needed and missing, or wrong.
    """
    tensor = convert_to_tensor(x)
    if tensor.shape is not None:
        axis = normalize_axis(axis, len(tensor.shape))
    size = num if num is not None or tensor.shape is None else tensor.shape[axis]
    if size is None:
        raise ValueError(f"unstack: the size of axis {axis} of {tensor!r} is unknown; give it as `num`.")
    return list(apply_multi(Unstack(axis, size), tensor))


def array(x: TensorLike, dtype: DTypeLike = None) -> Tensor:
    """Return `x` as a tensor; this is NumPy's name for `convert_to_tensor`."""
    return convert_to_tensor(x, dtype)


__all__ = ["append", "array", "column_stack", "concatenate", "hstack", "split", "stack", "unstack", "vstack"]
