"""`count_nonzero`: counts that int32 can't hold are errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Sample
from ...graph.tensor import Tensor
from ..base import TensorLike, apply, as_scalar_or_array, cast
from .reduced import AxisLike, Reduction, axes_attribute, reduced_dims
from .reduction import sum as sum_of

LARGEST = 2**31 - 1  # of int32


@dataclass(frozen=True)
class CountNonzero(Reduction):
    """The number of nonzero elements along the axes, as int32, where only the run shows whether int32 can hold it."""

    never_fails: ClassVar[bool] = False

    def output_dtype(self, dtype: DType) -> DType:
        return dtypes.int32

    def run(self, xp: Any, *inputs: Any) -> Any:
        counts = xp.asarray(xp.count_nonzero(inputs[0], axis=self.axes))
        largest = int(counts.max()) if counts.size else 0
        if largest > LARGEST:
            raise OverflowError(
                f"count_nonzero: {largest} elements are not zero, which is more than int32 can hold ({LARGEST}). Count "
                "them as int64: ops.sum(ops.cast(x != 0, 'int64'))."
            )
        if self.keepdims:
            counts = xp.expand_dims(counts, self.axes)
        return as_scalar_or_array(counts.astype(dtypes.int32))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[0, 2, 0], [3, 1, 0]], "float32")
        yield Sample(cls((0, 1)), [x], np.int32(3), (), label="all")
        yield Sample(cls((1,)), [x], np.array([1, 2], "int32"), (), label="rows")
        yield Sample(cls((0,), True), [x != 0], np.array([[1, 2, 0]], "int32"), (), label="kept")
        yield Sample(cls((1,)), [x[:, :0]], np.zeros(2, "int32"), (), label="of nothing")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        class Many:  # a namespace whose arrays are too large to be made
            asarray = staticmethod(np.asarray)

            @staticmethod
            def count_nonzero(x: Any, axis: Any) -> Any:
                return np.array([1, LARGEST + 1])

        message = r"2147483648 elements are not zero, which is more than int32 can hold \(2147483647\)"
        yield ErrorSample(lambda: cls((1,)).run(Many, np.zeros((2, 1))), OverflowError, message)


def count_nonzero(x: TensorLike, axis: AxisLike = None) -> Tensor:
    """Count the elements over `axis` that are not zero, as int32.

    Raises:
        OverflowError: when the graph runs, a count is larger than int32 can hold.
    """
    tensor = cast(x, "bool")
    axes = axes_attribute(axis, tensor.ndim)
    dims = (None,) if tensor.shape is None else reduced_dims(tensor.shape, axes)
    known = [dim for dim in dims if dim is not None]
    if len(known) == len(dims) and math.prod(known) <= LARGEST:
        return sum_of(tensor, axis)
    return apply(CountNonzero(axes), tensor)


__all__ = ["count_nonzero"]
