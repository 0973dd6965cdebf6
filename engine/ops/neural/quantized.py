"""Products of rows that are rounded to int8 as they come and matrices of int8.

Each row has a scale of its own, from its largest element, so that no row changes another's result. Sums are exact, and
scales are applied in one order: whatever computes the op gives the same bits.

Source: Keras's ``AbsMaxQuantizer`` and ``Dense`` in mode int8; Dettmers et al., "LLM.int8()", 2022.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows
from ...graph.spec import shape_text
from ..arrays.shaping import expand_dims
from ..base import ErrorSample, Op, Operation, Sample, Tensor, TensorLike, TensorSpec, apply, cast, convert_to_tensor
from ..linear_algebra.products import MatMul, product_of_rows
from ..math.elementwise import divide

EPSILON = 1e-7
_EXACT_TERMS = 1024  # of products of two int8, at most 2**14, whose sum a float32 holds exactly in any order


@dataclass(frozen=True)
class QuantizedMatMul(Op):
    """The product of the rows of `x`, rounded to int8, and an int8 matrix, divided by the scales of both.

    Inputs: `x` (rows, terms), floating; `kernel` (terms, columns), int8; `kernel_scale` (columns,), floating, by which
    the matrix was multiplied before it was rounded. With `is_fixed` also `inputs_scale`, a number by which all rows are
    multiplied; else a row's is ``high / (max(abs(row)) + epsilon)``.

    A row that holds NaN or an infinity gives NaN.

    Attributes:
        low, high: the range of a rounded element, within that of int8.
        epsilon: keeps the scale of a row of zeros finite.
        transpose: the kernel is stored as (columns, terms).
        is_fixed: the scale of the rows is an input.
    """

    type_name: ClassVar[str] = "quantized_matmul"
    never_fails: ClassVar[bool] = True
    low: int = -127
    high: int = 127
    epsilon: float = EPSILON
    transpose: bool = False
    is_fixed: bool = False

    def infer(self, *inputs: Any) -> TensorSpec:
        x, kernel, scale = inputs[:3]
        if not dtypes.is_floating(x.dtype) or not dtypes.is_floating(scale.dtype):
            raise TypeError(
                f"quantized_matmul: rows and scales are floating-point numbers; got {x.dtype.name} and "
                f"{scale.dtype.name}."
            )
        if dtypes.name_of(kernel.dtype) != "int8":
            raise TypeError(f"quantized_matmul: the kernel is of int8; got {kernel.dtype.name}.")
        rows, terms = x.shape or (None, None)
        expected, columns = (kernel.shape or (None, None))[:: -1 if self.transpose else 1]
        if terms is not None and expected is not None and terms != expected:
            raise ValueError(
                f"quantized_matmul: rows of {terms} elements do not fit a kernel of shape {shape_text(kernel.shape)}"
                f"{', transposed' if self.transpose else ''}."
            )
        if scale.shape is not None and None not in (columns, *scale.shape) and scale.shape != (columns,):
            raise ValueError(
                f"quantized_matmul: expected a scale for each of {columns} columns; got shape "
                f"{shape_text(scale.shape)}."
            )
        return TensorSpec((rows, columns), x.dtype)

    def axis_map(self, *inputs: Any) -> AxisMap | None:
        return (Follows(0, 0),), (Follows(1, 0 if self.transpose else 1),)

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, kernel, kernel_scale = inputs[:3]
        work = xp.float64 if x.dtype == xp.float64 else xp.float32
        kernel = kernel.T if self.transpose else kernel
        with np.errstate(all="ignore"):
            rows, scales = self.rounded(xp, x.astype(work), inputs[3] if self.is_fixed else None)
            result = exact_product(xp, rows, kernel).astype(work) / (scales * kernel_scale.astype(work))
        return result.astype(x.dtype)

    def rounded(self, xp: Any, x: Any, scale: Any = None) -> tuple[Any, Any]:
        """Return rows as whole numbers, in `x`'s dtype, and their scales: NaN, or 0, for those that are not finite."""
        if scale is None:
            largest = xp.zeros((len(x), 1), x.dtype)
            if x.shape[-1]:
                largest = xp.max(xp.abs(x), axis=-1, keepdims=True)
            scale = scales = x.dtype.type(self.high) / (largest + x.dtype.type(self.epsilon))
        else:
            scale = scale.astype(x.dtype)
            is_finite = xp.all(xp.isfinite(x), axis=-1, keepdims=True)
            scales = xp.where(is_finite, scale, x.dtype.type(np.nan))
        rounded = xp.clip(xp.rint(x * scale), self.low, self.high)
        return xp.where(xp.isnan(rounded), x.dtype.type(0), rounded), scales

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        """Return the gradient: rounding passes cotangents on; weights are frozen."""
        (dy,) = cotangents
        kernel, scale = node.inputs[1:3]
        assert dy is not None
        work = dtypes.float64 if dy.dtype == dtypes.float64 else dtypes.float32
        scaled = divide(cast(kernel, work), cast(expand_dims(scale, 1) if self.transpose else scale, work))
        dx = apply(MatMul(False, not self.transpose), cast(dy, work), scaled)
        return (cast(dx, node.inputs[0].dtype), *[None] * (len(node.inputs) - 1))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, (3, 8)).astype("float32")
        kernel = rng.integers(-128, 128, (8, 5), "int8")
        scale = rng.uniform(50, 200, 5).astype("float32")
        expected = x.astype("float64") @ (kernel / scale.astype("float64"))
        yield Sample(cls(), [x, kernel, scale], expected, (), 0.02, "rows")
        turned = [x, np.ascontiguousarray(kernel.T), scale]
        yield Sample(cls(transpose=True), turned, expected, (), 0.02, "transpose")
        fixed = [x, kernel, scale, np.float32(127)]
        yield Sample(cls(is_fixed=True), fixed, expected, (), 0.02, "fixed scale")
        yield Sample(cls(), [x[:0], kernel, scale], np.zeros((0, 5), "float32"), (), label="no rows")
        yield Sample(cls(), [x[:, :0], kernel[:0], scale], np.zeros((3, 5), "float32"), (), label="no terms")
        yield Sample(cls(), [np.zeros((2, 8), "float32"), kernel, scale], np.zeros((2, 5)), (), label="zeros")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        x, kernel, scale = np.ones((2, 3), "float32"), np.ones((3, 4), "int8"), np.ones(4, "float32")
        yield ErrorSample(lambda: quantized_matmul(x[:, :2], kernel, scale), ValueError, "do not fit", "terms")
        yield ErrorSample(lambda: quantized_matmul(x, kernel, scale[:3]), ValueError, "each of 4 columns", "scales")
        yield ErrorSample(lambda: quantized_matmul(x, kernel.astype("int32"), scale), TypeError, "int8", "kernel")


def exact_product(xp: Any, rows: Any, kernel: Any) -> Any:
    """Return the product of whole numbers within int8's range as int32, by floating-point products that round nothing.

    Args:
        xp: numpy or cupy.
        rows: whole numbers in a floating dtype, (rows, terms).
        kernel: int8, (terms, columns).
    """
    terms = kernel.shape[0]
    total = xp.zeros((rows.shape[0], kernel.shape[1]), xp.int32)
    for start in range(0, terms, _EXACT_TERMS):
        part = slice(start, start + _EXACT_TERMS)
        total += (rows[:, part].astype(xp.float32) @ kernel[part].astype(xp.float32)).astype(xp.int32)
    return total


def quantized_matmul(
    x: TensorLike,
    kernel: TensorLike,
    kernel_scale: TensorLike,
    inputs_scale: TensorLike | None = None,
    *,
    value_range: tuple[int, int] = (-127, 127),
    epsilon: float = EPSILON,
    transpose: bool = False,
) -> Tensor:
    """Compute ``x @ (kernel / kernel_scale)`` with `x` rounded to int8, row by row.

    Args:
        x: floating, (..., terms).
        kernel: int8, (terms, columns).
        kernel_scale: (columns,).
        inputs_scale: a number by which all rows are multiplied before they are rounded; by default each row has its
            own, ``value_range[1] / (max(abs(row)) + epsilon)``.
        value_range: of rounded elements.
        epsilon: see `inputs_scale`.
        transpose: the kernel is stored as (columns, terms).

    Returns:
        The product (..., columns), in the dtype of `x`.

    Raises:
        ValueError, TypeError: shapes or dtypes do not fit.

    >>> import numpy as np
    >>> quantized_matmul([[1.0, -0.5]], np.array([[100], [50]], "int8"), [100.0]).numpy().round(2)
    array([[0.75]], dtype=float32)
    """
    tensor = convert_to_tensor(x)
    op = QuantizedMatMul(*value_range, epsilon, transpose, inputs_scale is not None)
    fixed = [] if inputs_scale is None else [convert_to_tensor(inputs_scale)]
    others = [convert_to_tensor(kernel), convert_to_tensor(kernel_scale), *fixed]
    return apply(op, tensor, *others) if tensor.ndim == 2 else product_of_rows(op, tensor, *others)
