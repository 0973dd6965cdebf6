"""More of the same: pad, repeat, tile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.nest import is_sequence
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Op, Sample, as_scalar_or_array
from ...graph.spec import TensorSpec
from ...graph.tensor import Tensor
from ..base import TensorLike, apply, cast, convert_to_tensor, make_constant, normalize_axis
from ..math.comparison import maximum
from ..run_time_shapes import runtime_shape, sum_like
from .creation import ones, ones_like
from .gathering import take
from .joining import concatenate, stack
from .shaping import DimLike, broadcast_to, constant_value, dim, expand_dims, ravel, reshape, resolve_shape, size

_MODES = ("constant", "reflect", "symmetric", "edge", "wrap")
_INTEGERS: Any = (int, np.integer)  # untyped, so that a check leaves the static type of what is checked as it is
Width = int | None  # None: the op has an input for it


# --- pad ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pad(Op):
    """The first input with `widths` more elements before and behind on each axis, all equal to the second input."""

    widths: tuple[tuple[Width, Width], ...]
    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        x, value = inputs[:2]
        if value.shape not in (None, ()):
            raise ValueError(f"pad: constant_values must be a scalar; got {value}.")
        if any(width is not None and width < 0 for pair in self.widths for width in pair):
            raise ValueError(f"pad: the widths {self.widths} must not be negative. Slice to make a tensor smaller.")
        if x.shape is None:
            return TensorSpec((None,) * len(self.widths), x.dtype)
        if len(x.shape) != len(self.widths):
            raise ValueError(
                f"pad: {len(self.widths)} pairs of widths were given for {x}, which has {len(x.shape)} axes."
            )
        sizes = [
            None if size is None or before is None or behind is None else before + size + behind
            for size, (before, behind) in zip(x.shape, self.widths, strict=True)
        ]
        return TensorSpec(tuple(sizes), x.dtype)

    def axis_map(self, *inputs: Any) -> AxisMap:
        return tuple([(Follows(0, axis),) if width == (0, 0) else () for axis, width in enumerate(self.widths)])

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, value, *given = inputs
        remaining = iter(given)
        widths = [tuple(int(next(remaining)) if w is None else w for w in pair) for pair in self.widths]
        if any(width < 0 for pair in widths for width in pair):
            raise ValueError(f"pad: the widths {widths} must not be negative.")
        pairs = list(zip(x.shape, widths, strict=True))
        out = xp.full([before + size + behind for size, (before, behind) in pairs], value, x.dtype)
        out[tuple(slice(before, before + size) for size, (before, _) in pairs)] = x
        return as_scalar_or_array(out)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        x, value, *given = node.inputs
        remaining = iter(given)
        window: list[slice[Any, Any, Any]] = []
        for axis, pair in enumerate(self.widths):
            before, behind = (next(remaining) if width is None else width for width in pair)
            size = None if x.shape is None else x.shape[axis]
            if size is None and isinstance(behind, int):
                window.append(slice(before, -behind if behind else None))
            else:
                window.append(slice(before, before + dim(x, axis)))
        dx = dy[tuple(window)]
        dvalue = sum_like(dy, value) - sum_like(dx, value) if node.needs(1) else None
        return dx, dvalue, *[None] * len(given)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x, value = np.arange(6, dtype="float32").reshape(2, 3), np.float32(7)
        expected = np.pad(x, ((1, 0), (2, 3)), constant_values=7)
        yield Sample(cls(((1, 0), (2, 3))), [x, value], expected, label="static")
        inputs = [x[0], value, np.int32(2)]
        yield Sample(cls(((None, 1),)), inputs, np.pad(x[0], (2, 1), constant_values=7), differentiable=(0, 1))
        yield Sample(cls(((1, 1),)), [x[0, :0], value], np.full(2, 7, "float32"), label="empty")
        yield Sample(cls(()), [value, value], value, label="0-d")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec, value = TensorSpec((2, 3), dtypes.float32), TensorSpec((), dtypes.float32)
        yield ErrorSample(lambda: cls(((1, 1),)).infer(spec, value), ValueError, "1 pairs", "rank")
        yield ErrorSample(lambda: cls(((0, -1), (0, 0))).infer(spec, value), ValueError, "negative", "negative")
        yield ErrorSample(lambda: cls(((0, 0), (0, 0))).infer(spec, spec), ValueError, "be a scalar", "value")


@dataclass(frozen=True)
class PadPositions(Op):
    """Positions from which elements of a padded axis come. Inputs: the axis's size, the widths before and behind."""

    mode: str

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((None,), dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        size, before, behind = (int(value) for value in inputs)
        return xp.asarray(_pad_positions(size, before, behind, self.mode))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        inputs = [np.int32(3), np.int32(2), np.int32(1)]
        for mode, expected in {"reflect": [2, 1, 0, 1, 2, 1], "symmetric": [1, 0, 0, 1, 2, 2]}.items():
            yield Sample(cls(mode), inputs, np.array(expected, "int32"), differentiable=(), label=mode)
        inputs = [np.int32(0)] * 3
        yield Sample(cls("edge"), inputs, np.zeros(0, "int32"), differentiable=(), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        inputs = [np.int32(0), np.int32(2), np.int32(1)]
        yield ErrorSample(lambda: cls("reflect").run(np, *inputs), ValueError, "empty axis")


def _pad_positions(size: int, before: int, behind: int, mode: Any) -> Any:
    return (
        np.pad(np.arange(size, dtype="int32"), (before, behind), mode)
        if before or behind
        else np.arange(size, dtype="int32")
    )


def _pad_pairs(pad_width: Any, rank: int) -> list[tuple[DimLike, DimLike]]:
    """Return `pad_width` as one pair of widths for each axis.

    Raises:
        ValueError: it has another form.
    """
    if isinstance(pad_width, np.ndarray):
        pad_width = pad_width.tolist()
    if isinstance(pad_width, Tensor) and pad_width.shape:
        known = constant_value(pad_width)
        pad_width = list(pad_width) if known is None else known.tolist()
    if isinstance(pad_width, _INTEGERS) or (isinstance(pad_width, Tensor) and not pad_width.shape):
        pad_width = [[pad_width, pad_width]] * rank
    rows: list[Any] = list(pad_width)
    if len(rows) == 2 and all(_is_width(entry) for entry in rows):
        rows = [rows] * rank
    pairs: list[list[Any]] = [[row] * 2 if _is_width(row) else list(row) for row in rows]
    pairs = [pair * 2 if len(pair) == 1 else pair for pair in pairs]
    pairs = pairs * rank if len(pairs) == 1 else pairs
    if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"pad: pad_width={pad_width} must be an int, a pair, or one pair for each of {rank} axes.")
    return [(_width(pair[0]), _width(pair[1])) for pair in pairs]


def _is_width(entry: Any) -> bool:
    return isinstance(entry, _INTEGERS) or (isinstance(entry, Tensor) and entry.shape == ())


def _width(width: Any) -> DimLike:
    (static,), dynamic = resolve_shape((width,))
    return dynamic[0] if static is None else static


def pad(x: TensorLike, pad_width: Any, mode: str = "constant", constant_values: TensorLike | None = None) -> Tensor:
    """Make `x` larger at the ends of its axes.

    Args:
        x: a tensor of known rank.
        pad_width: a pair (before, behind) for each axis, one pair for all of them, or one int for all ends. Widths may
            be scalar tensors.
        mode: "constant"; or with elements of `x`: "reflect" (without the one at the end), "symmetric" (with it), "edge"
            (that one only), "wrap" (from the other end).
        constant_values: a scalar, 0 by default, for the mode "constant" only.

    Raises:
        ValueError: an unknown mode, or widths that do not fit.

    >>> import anabranch as ab
    >>> ab.ops.pad([1, 2, 3], (0, 2), "reflect")
    Tensor([1, 2, 3, 2, 1], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    if mode not in _MODES:
        raise ValueError(f"pad: mode={mode!r} must be one of {', '.join(_MODES)}.")
    if mode != "constant" and constant_values is not None:
        raise ValueError(f"pad: constant_values is of use with mode='constant' only, not with {mode!r}.")
    rank = len(tensor.shape) if tensor.shape is not None else _rank_of(pad_width)
    pairs = _pad_pairs(pad_width, rank)
    if mode == "constant":
        value = convert_to_tensor(0 if constant_values is None else constant_values, tensor.dtype)
        widths = tuple((_static(before), _static(behind)) for before, behind in pairs)
        return apply(Pad(widths), tensor, value, *[w for pair in pairs for w in pair if isinstance(w, Tensor)])
    for axis, (before, behind) in enumerate(pairs):
        if (_static(before), _static(behind)) != (0, 0):
            tensor = take(tensor, _mirrored(dim(tensor, axis), before, behind, mode), axis)
    return tensor


def _rank_of(pad_width: Any) -> int:
    try:
        rows = len(pad_width)
        len(pad_width[0])
    except TypeError:
        raise ValueError("pad: the rank of the input is unknown; give one pair of widths for each axis.") from None
    return rows


def _static(width: DimLike) -> int | None:
    return None if isinstance(width, Tensor) else width


def _mirrored(size: DimLike, before: DimLike, behind: DimLike, mode: str) -> Tensor:
    if isinstance(size, int) and isinstance(before, int) and isinstance(behind, int):
        return make_constant(_pad_positions(size, before, behind, mode))
    return apply(PadPositions(mode), *[convert_to_tensor(value, "int32") for value in (size, before, behind)])


# --- repeat and tile ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RepeatPositions(Op):
    """Each position of an axis as often as it is repeated. Inputs: the axis's size, a vector of repetitions."""

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((None,), dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        size, repeats = inputs
        if repeats.shape != (int(size),):
            raise ValueError(f"repeat: an axis of size {size} needs as many repeats; got {repeats.shape[0]}.")
        return xp.repeat(xp.arange(int(size), dtype="int32"), repeats.astype("int64"))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        repeats = np.array([2, 0, 1], "int32")
        yield Sample(cls(), [np.int32(3), repeats], np.array([0, 0, 2], "int32"), differentiable=(), label="some")
        yield Sample(cls(), [np.int32(3), repeats * 0], repeats[:0], differentiable=(), label="none")
        yield Sample(cls(), [np.int32(0), repeats[:0]], repeats[:0], differentiable=(), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        repeats = np.array([2, 0], "int32")
        yield ErrorSample(lambda: cls().run(np, np.int32(3), repeats), ValueError, "size 3 .* got 2")


def repeat(x: TensorLike, repeats: Any, axis: int | None = None) -> Tensor:
    """Repeat each element of `x` several times, one behind the other, along `axis`.

    Args:
        x: a tensor.
        repeats: an int or scalar tensor, or a vector with a number for each element of the axis.
        axis: an axis; None for the elements of `x` as a vector.

    Raises:
        ValueError: there are not as many repeats as elements.

    >>> import anabranch as ab
    >>> ab.ops.repeat([5, 6], [1, 2])
    Tensor([5, 6, 6], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    if axis is None:
        tensor, axis = ravel(tensor), 0
    if tensor.shape is None:
        raise ValueError(f"repeat(axis={axis}) needs an input of known rank; got {tensor!r}.")
    axis = normalize_axis(axis, len(tensor.shape))
    counts = convert_to_tensor(repeats, "int32")
    if counts.shape not in ((), (1,)):
        return take(tensor, _repeat_positions(dim(tensor, axis), counts), axis)
    known = constant_value(counts)
    count: DimLike = reshape(counts, ()) if known is None else int(known.item())
    sizes = [dim(tensor, a) for a in range(len(tensor.shape))]
    spread = broadcast_to(expand_dims(tensor, axis + 1), [*sizes[: axis + 1], count, *sizes[axis + 1 :]])
    return reshape(spread, [*sizes[:axis], sizes[axis] * count, *sizes[axis + 1 :]])


def _repeat_positions(size: DimLike, repeats: Tensor) -> Tensor:
    known = constant_value(repeats)
    if known is None or not isinstance(size, int):
        return apply(RepeatPositions(), convert_to_tensor(size, "int32"), repeats)
    return make_constant(RepeatPositions().run(np, np.int32(size), known))


def tile(x: TensorLike, repeats: Any) -> Tensor:
    """Repeat the whole of `x`, `repeats` times along each axis.

    Args:
        x: a tensor.
        repeats: an int for each axis (counted from the last; axes of size 1 are put in front where there are more), or
            one for the last axis. Scalar tensors will do, and so does a vector of any length.

    >>> import anabranch as ab
    >>> ab.ops.tile([1, 2], 2)
    Tensor([1, 2, 1, 2], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    is_open = isinstance(repeats, Tensor) and (not repeats.shape or repeats.shape[0] is None) and repeats.shape != ()
    if tensor.shape is None or is_open:
        return _tiled_by_vectors(tensor, repeats)
    static, dynamic = resolve_shape(repeats)
    remaining = iter(dynamic)
    counts: list[DimLike] = [next(remaining) if count is None else count for count in static]
    sizes: list[DimLike] = [dim(tensor, axis) for axis in range(len(tensor.shape))]
    rank = max(len(counts), len(sizes))
    counts = [1] * (rank - len(counts)) + counts
    sizes = [1] * (rank - len(sizes)) + sizes
    if all(isinstance(count, int) and count == 1 for count in counts):
        return reshape(tensor, sizes)
    # (a, b) -> (r, a, s, b) -> (r * a, s * b)
    apart = reshape(tensor, [size for pair in zip([1] * rank, sizes, strict=True) for size in pair])
    spread = broadcast_to(apart, [size for pair in zip(counts, sizes, strict=True) for size in pair])
    return reshape(spread, [count * size for count, size in zip(counts, sizes, strict=True)])


def _tiled_by_vectors(x: Tensor, repeats: Any) -> Tensor:
    """Repeat as `tile` does, where the number of axes is known at run time only: shapes are vectors then."""
    counts, sizes = ravel(_as_vector(repeats)), runtime_shape(x)
    missing = size(counts) - size(sizes)
    counts = concatenate([ones((maximum(-missing, 0),), dtypes.int32), counts])
    sizes = concatenate([ones((maximum(missing, 0),), dtypes.int32), sizes])
    apart = reshape(x, ravel(stack([ones_like(sizes), sizes], 1)))
    return reshape(broadcast_to(apart, ravel(stack([counts, sizes], 1))), counts * sizes)


def _as_vector(repeats: Any) -> Tensor:
    if is_sequence(repeats) and any(isinstance(count, Tensor) for count in repeats):
        return stack([cast(count, dtypes.int32) for count in repeats])
    return cast(repeats, dtypes.int32)


__all__ = ["pad", "repeat", "tile"]
