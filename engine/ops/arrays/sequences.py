"""Sequences of unequal length, permutations and sets: TensorFlow's functions that Keras has no name for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.dtypes import DTypeLike, as_dtype
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Op, Sample
from ...graph.spec import TensorSpec, shapes_compatible
from ...graph.tensor import Tensor
from ..base import TensorLike, apply, cast, convert_to_tensor, normalize_axis, promote
from ..math.comparison import less
from ..math.reduction import max as max_of
from ..text.matching import isin
from .creation import arange
from .gathering import integers
from .positions import boolean_mask, nonzero
from .shaping import expand_dims
from .sorting import unique

# --- sequences of unequal length ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReverseSequence(Op):
    """Inputs: x, lengths [batch]. Each sequence of x with its first elements, as many as its length, reversed."""

    seq_axis: int
    batch_axis: int

    def infer(self, *inputs: Any) -> TensorSpec:
        x, lengths = inputs
        if lengths.rank not in (None, 1):
            raise ValueError(f"reverse_sequence: the lengths must be a vector, one each sequence; got {lengths}.")
        if x.shape is None:
            return x
        normalize_axis(self.seq_axis, len(x.shape), "seq_axis")
        batch = normalize_axis(self.batch_axis, len(x.shape), "batch_axis")
        if lengths.shape is not None and not shapes_compatible(lengths.shape, (x.shape[batch],)):
            raise ValueError(f"reverse_sequence: axis {batch} of {x} needs as many lengths; got {lengths}.")
        return x

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, lengths = inputs
        moved = xp.moveaxis(x, (self.batch_axis, self.seq_axis), (0, 1))
        batch, steps = moved.shape[:2]
        if len(lengths) != batch:
            raise ValueError(f"reverse_sequence: {batch} sequences need as many lengths; got {len(lengths)}.")
        if batch and not 0 <= int(lengths.min()) <= int(lengths.max()) <= steps:
            raise ValueError(
                f"reverse_sequence: lengths must be in 0 to {steps}, the size of axis {self.seq_axis}; "
                f"got {int(lengths.min())} to {int(lengths.max())}."
            )
        ends, places = lengths.astype(np.intp)[:, None], xp.arange(steps)
        places = xp.where(places < ends, ends - 1 - places, places)
        return xp.moveaxis(moved[xp.arange(batch)[:, None], places], (0, 1), (self.batch_axis, self.seq_axis))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(self, dy, node.inputs[1]), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(24, dtype="float32").reshape(2, 3, 4)
        lengths = np.array([2, 3], "int32")
        expected = np.stack([x[0, [1, 0, 2]], x[1, ::-1]])
        yield Sample(cls(1, 0), [x, lengths], expected, (0,), label="batch first")
        inputs = [x.transpose(2, 1, 0).copy(), lengths]
        yield Sample(cls(1, 2), inputs, expected.transpose(2, 1, 0), (0,), label="batch last")
        yield Sample(cls(-1, 0), [x[:, 0], lengths * 0], x[:, 0], (0,), label="none")
        yield Sample(cls(1, 0), [x[:0], lengths[:0]], x[:0], (0,), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        x, lengths = np.zeros((2, 3), "float32"), np.array([4, 1], "int32")
        yield ErrorSample(lambda: cls(1, 0).run(np, x, lengths), ValueError, "0 to 3, .* got 1 to 4", "too long")
        yield ErrorSample(lambda: cls(1, 0).run(np, x, -lengths), ValueError, "got -4 to -1", "negative")
        yield ErrorSample(lambda: cls(1, 0).run(np, x, lengths[:1]), ValueError, "2 sequences .* got 1", "run")
        spec, few = TensorSpec((2, 3), dtypes.float32), TensorSpec((3,), dtypes.int32)
        yield ErrorSample(lambda: cls(1, 0).infer(spec, few), ValueError, "axis 0 .* as many lengths", "lengths")
        yield ErrorSample(lambda: cls(1, 0).infer(spec, spec), ValueError, "must be a vector", "matrix")


def reverse_sequence(x: TensorLike, seq_lengths: TensorLike, seq_axis: int, batch_axis: int = 0) -> Tensor:
    """Return `x` with the first elements of each sequence, as many as its length says, in reverse; the rest stays.

    Args:
        x: a tensor.
        seq_lengths: integers [batch], each from 0 to the size of `seq_axis`.
        seq_axis: the axis along which the sequences run.
        batch_axis: the axis along which they are side by side.

    Raises:
        TypeError: the lengths are not integers.
        ValueError: the two axes are one, there are not as many lengths as sequences, or one is too large.

    >>> import anabranch as ab
    >>> ab.ops.reverse_sequence([[1, 2, 3], [4, 5, 6]], [2, 3], seq_axis=1)
    Tensor([[2, 1, 3],
            [6, 5, 4]], dtype=int32)
    """
    tensor, lengths = convert_to_tensor(x), integers(seq_lengths, "reverse_sequence")
    if tensor.shape is not None:
        seq_axis = normalize_axis(seq_axis, len(tensor.shape), "seq_axis")
        batch_axis = normalize_axis(batch_axis, len(tensor.shape), "batch_axis")
    if seq_axis == batch_axis:
        raise ValueError(f"reverse_sequence: seq_axis and batch_axis are both {seq_axis}; they must be two axes.")
    return apply(ReverseSequence(seq_axis, batch_axis), tensor, lengths)


def sequence_mask(lengths: TensorLike, maxlen: Any = None, dtype: DTypeLike = "bool") -> Tensor:
    """Return, for each length, a vector that is true up to it: ``mask[..., j] = j < lengths[...]``.

    Args:
        lengths: integers of any shape.
        maxlen: the size of the new last axis, an int or a scalar tensor; None for the largest length.
        dtype: of the result.

    Raises:
        TypeError: the lengths are not integers.

    >>> import anabranch as ab
    >>> ab.ops.sequence_mask([1, 3], dtype="int32")
    Tensor([[1, 0, 0],
            [1, 1, 1]], dtype=int32)
    """
    tensor = integers(lengths, "sequence_mask")
    if tensor.dtype.kind == "u":
        tensor = cast(tensor, dtypes.int64)
    longest = max_of(tensor, initial=0) if maxlen is None else maxlen
    return cast(less(arange(longest, dtype=tensor.dtype), expand_dims(tensor, -1)), as_dtype(dtype))


# --- permutations and sets ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InvertPermutation(Op):
    """The place of each number from 0 on in a permutation of them."""

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.rank not in (None, 1):
            raise ValueError(f"invert_permutation takes a vector; got {x}.")
        if not dtypes.is_integer(x.dtype):
            raise TypeError(f"invert_permutation takes integers; got {x}.")
        return TensorSpec((None,), x.dtype) if x.shape is None else x

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        count = len(x)
        fits = count == 0 or (int(x.min()) >= 0 and int(x.max()) < count)
        if not fits or not bool((xp.bincount(x.astype(np.intp), minlength=count) == 1).all()):
            raise ValueError(f"invert_permutation: {x} does not hold each number from 0 to {count - 1} once.")
        out = xp.empty(count, x.dtype)
        out[x] = xp.arange(count, dtype=x.dtype)
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([3, 0, 1, 2], "int32")
        yield Sample(cls(), [x], np.array([1, 2, 3, 0], "int32"), (), label="cycle")
        yield Sample(cls(), [x[1:2]], x[1:2], (), label="one")
        yield Sample(cls(), [x[:0]], x[:0], (), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        for wrong in ([0, 0], [0, 2], [-1, 0]):
            x = np.array(wrong, "int32")
            yield ErrorSample(lambda x=x: cls().run(np, x), ValueError, "each number from 0 to 1 once", str(wrong))
        matrix = TensorSpec((2, 2), dtypes.int32)
        yield ErrorSample(lambda: cls().infer(matrix), ValueError, "takes a vector", "matrix")
        yield ErrorSample(lambda: cls().infer(TensorSpec((2,), dtypes.float32)), TypeError, "takes integers", "floats")


def invert_permutation(x: TensorLike) -> Tensor:
    """Return the inverse of a permutation: ``y[x[i]] == i``.

    Args:
        x: a vector that holds each of 0 to n - 1 once.

    Raises:
        TypeError: it does not hold integers.
        ValueError: it is not a vector, or (when the graph runs) not a permutation.

    >>> import anabranch as ab
    >>> ab.ops.invert_permutation([2, 0, 1])
    Tensor([1, 2, 0], dtype=int32)
    """
    return apply(InvertPermutation(), integers(x, "invert_permutation"))


def setdiff1d(x: TensorLike, y: TensorLike) -> tuple[Tensor, Tensor]:
    """Return the elements of the vector `x` that are not in the vector `y`, in their order, and their int32 positions.

    An element that `x` holds twice is there twice (unlike in NumPy's function of this name).

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.setdiff1d([5, 1, 5, 2], [1, 7]))
    (array([5, 5, 2], dtype=int32), array([0, 2, 3], dtype=int32))
    """
    values, others = promote(x, y)
    alone = isin(values, others, invert=True)
    return boolean_mask(values, alone), nonzero(alone)[0]


def unique_with_counts(x: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distinct elements of a vector in the order in which they first come up, and how often each does.

    Returns:
        (values, int32 indices, int32 counts) with ``values[indices] == x``.

    Raises:
        ValueError: `x` is not a vector.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.unique_with_counts([3, 1, 3]))
    (array([3, 1], dtype=int32), array([0, 1, 0], dtype=int32), array([2, 1], dtype=int32))
    """
    tensor = convert_to_tensor(x)
    if tensor.ndim not in (None, 1):
        raise ValueError(f"unique_with_counts expects a vector; got {tensor!r}. Reshape it to (-1,) first.")
    return unique(tensor, sorted=False, return_inverse=True, return_counts=True)


__all__ = ["invert_permutation", "reverse_sequence", "sequence_mask", "setdiff1d", "unique_with_counts"]
