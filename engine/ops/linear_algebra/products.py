"""Products of matrices, single and stacked, and rows in several axes as rows of one matrix."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows, broadcast_map
from ...graph.op import Cost
from ...graph.spec import Dim, Shape, broadcast_shapes, shape_text
from ...graph.state.readable import Readable
from .. import row_rules
from ..arrays.shaping import expand_dims, reshape, squeeze
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    cast,
    check_numbers,
    promote,
)
from ..run_time_shapes import reshape_like, runtime_shape, sum_like
from .einsum import all_int8


def check_inner_dims(
    shapes: tuple[Shape, Shape], inner: tuple[Dim, Dim], transposed: tuple[str, str] = ("", "")
) -> None:
    """Check that two tensors fit for a product of matrices.

    Args:
        shapes: theirs.
        inner: the dimensions that must be equal, if they are known.
        transposed: the end of each shape's text.

    Raises:
        ValueError: they are not.
    """
    if None not in inner and inner[0] != inner[1]:
        first, second = (shape_text(shape) + end for shape, end in zip(shapes, transposed, strict=True))
        raise ValueError(
            f"matmul: shapes {first} and {second} do not fit: each row of the first has {inner[0]} elements, each "
            f"column of the second {inner[1]}."
        )


@dataclass(frozen=True)
class _Product(Op):
    """Base: a matrix product. With `transpose_a` or `transpose_b` that operand's last two axes are exchanged first."""

    transpose_a: bool = False
    transpose_b: bool = False

    def _matrix_dims(self, a: TensorSpec, b: TensorSpec) -> tuple[Dim, Dim]:
        """Return the last two dimensions of the product.

        Raises:
            ValueError: the inner dimensions differ.
        """
        rows, inner_a = _last_two(a.shape, self.transpose_a)
        inner_b, columns = _last_two(b.shape, self.transpose_b)
        transposed = " transposed" * self.transpose_a, " transposed" * self.transpose_b
        check_inner_dims((a.shape, b.shape), (inner_a, inner_b), transposed)
        return rows, columns

    def axis_map(self, *inputs: Any) -> AxisMap | None:
        a, b = (len(spec.shape) for spec in inputs)
        if a < 2 or b < 2:
            return None
        rows, columns = a - 1 if self.transpose_a else a - 2, b - 2 if self.transpose_b else b - 1
        return (*broadcast_map([a - 2, b - 2]), (Follows(0, rows),), (Follows(1, columns),))

    def _check_dtypes(self, a: TensorSpec, b: TensorSpec) -> None:
        check_numbers(self, a, b)
        if a.dtype != b.dtype:
            raise TypeError(f"matmul: dtypes {a.dtype.name} and {b.dtype.name} differ; cast one with ops.cast.")
        if dtypes.name_of(a.dtype) == "bfloat16":
            raise TypeError("matmul: products are not computed in bfloat16; cast both operands to 'float32'.")

    def _gradients(self, build: Any, node: Operation, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the cotangents of the operands as products: a transposed operand is one more flag, never a copy."""
        a, b = node.inputs
        ta, tb = self.transpose_a, self.transpose_b
        da = db = None
        if node.needs(0):
            da = apply(build(tb, True), b, dy) if ta else apply(build(False, not tb), dy, b)
        if node.needs(1):
            db = apply(build(True, ta), dy, a) if tb else apply(build(not ta, False), a, dy)
        return da, db


def _last_two(shape: Shape, transposed: bool) -> tuple[Dim, Dim]:
    if shape is None:
        return None, None
    return (shape[-1], shape[-2]) if transposed else (shape[-2], shape[-1])


def _check_stacks(a: Shape, b: Shape) -> None:
    if any(shape is not None and len(shape) < 2 for shape in (a, b)):
        raise ValueError(
            f"matmul: operands whose rank is unknown while the graph is built must have at least 2 axes; got shapes "
            f"{shape_text(a)} and {shape_text(b)}. Use ops.expand_dims for vectors."
        )


@dataclass(frozen=True)
class MatMul(_Product):
    """The product of two matrices, either of them transposed first."""

    type_name: ClassVar[str] = "matmul"
    never_fails: ClassVar[bool] = True
    cost: ClassVar[Cost] = Cost.PRODUCT
    linear_in: ClassVar[tuple[int, ...]] = (0, 1)
    batchable: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        a, b = inputs
        self._check_dtypes(a, b)
        for spec in inputs:
            if spec.rank not in (None, 2):
                raise ValueError(f"MatMul takes matrices; got shapes {shape_text(a.shape)} and {shape_text(b.shape)}.")
        return TensorSpec(self._matrix_dims(a, b), a.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        a, b = inputs
        return xp.matmul(a.T if self.transpose_a else a, b.T if self.transpose_b else b)

    def _operands(self, arguments: Sequence[str]) -> str:
        a, b = arguments
        return f"{a}{'.T' if self.transpose_a else ''}, {b}{'.T' if self.transpose_b else ''}"

    def emit(self, arguments: Sequence[str]) -> str | None:
        a, b = arguments  # the operator, for it is a quarter of a microsecond quicker than np.matmul
        return f"{a}{'.T' if self.transpose_a else ''} @ {b}{'.T' if self.transpose_b else ''}"

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        return f"np.matmul({self._operands(arguments)}, out={out})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return self._gradients(MatMul, node, dy)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        rng = np.random.default_rng(0)
        a, b = (rng.uniform(-1, 1, shape).astype("float32") for shape in ((2, 3), (3, 4)))
        for ta, tb in ((False, False), (True, False), (False, True), (True, True)):
            operands = [a.T if ta else a, b.T if tb else b]
            yield Sample(cls(ta, tb), operands, a @ b, (0, 1), label=f"transpose {ta} {tb}")
        yield Sample(cls(), [a[:0], b], np.zeros((0, 4), "float32"), (0, 1), label="no rows")
        yield Sample(cls(), [a[:, :0], b[:0]], np.zeros((2, 4), "float32"), (0, 1), label="nothing to add")
        yield Sample(cls(), [np.eye(2, dtype="int32") * 3] * 2, np.eye(2, dtype="int32") * 9, (), label="integers")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: matmul(np.ones((2, 3)), np.ones((2, 3))), ValueError, "do not fit", "inner")
        yield ErrorSample(lambda: matmul(np.ones((2, 3)), 2.0), ValueError, "scalar", "scalar")


@dataclass(frozen=True)
class BatchMatMul(_Product):
    """The products of matrices in the last two axes; the axes before them broadcast."""

    type_name: ClassVar[str] = "batch_matmul"
    never_fails: ClassVar[bool] = True
    cost: ClassVar[Cost] = Cost.PRODUCT
    linear_in: ClassVar[tuple[int, ...]] = (0, 1)
    batchable: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        a, b = inputs
        self._check_dtypes(a, b)
        _check_stacks(a.shape, b.shape)
        dims = self._matrix_dims(a, b)
        if a.shape is None or b.shape is None:
            return TensorSpec(None, a.dtype)
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return TensorSpec((*(batch or ()), *dims), a.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        a, b = inputs
        _check_stacks(a.shape, b.shape)
        return xp.matmul(a.swapaxes(-1, -2) if self.transpose_a else a, b.swapaxes(-1, -2) if self.transpose_b else b)

    def _operands(self, arguments: Sequence[str]) -> str:
        a, b = arguments
        swap = ".swapaxes(-1, -2)"
        return f"{a}{swap if self.transpose_a else ''}, {b}{swap if self.transpose_b else ''}"

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        return f"np.matmul({self._operands(arguments)}, out={out})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        a, b = node.inputs
        assert dy is not None
        da, db = self._gradients(BatchMatMul, node, dy)
        return None if da is None else sum_like(da, a), None if db is None else sum_like(db, b)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        rng = np.random.default_rng(0)
        a, b = (rng.uniform(-1, 1, shape).astype("float32") for shape in ((2, 2, 3), (2, 3, 4)))
        for ta, tb in ((False, False), (True, False), (False, True), (True, True)):
            operands = [a.swapaxes(1, 2) if ta else a, b.swapaxes(1, 2) if tb else b]
            yield Sample(cls(ta, tb), operands, a @ b, (0, 1), label=f"transpose {ta} {tb}")
        yield Sample(cls(), [a[:, None], b[None, :1]], a[:, None] @ b[None, :1], (0, 1), label="broadcast")
        yield Sample(cls(), [a[0], b], a[0] @ b, (0, 1), label="matrix and stack")
        yield Sample(cls(), [a[:0], b[:0]], np.zeros((0, 2, 4), "float32"), (0, 1), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        one = np.ones((2, 3, 4), "float32")
        yield ErrorSample(lambda: matmul(one, one), ValueError, "do not fit", "inner")
        yield ErrorSample(lambda: matmul(one, np.ones((3, 4, 2), "float32")), ValueError, "broadcast", "batch")


# --- one product over many rows -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FlattenRows(Op):
    """The input as a matrix of rows: every axis but the last becomes one."""

    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    linear_in: ClassVar[tuple[int, ...]] = (0,)
    batchable: ClassVar[bool] = True
    row_state = row_rules.flattened

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.shape is None:
            return TensorSpec((None, None), x.dtype)
        if not x.shape:
            raise ValueError("A scalar has no rows; expected at least one axis.")
        rows = None if None in x.shape[:-1] else math.prod(x.shape[:-1])
        return TensorSpec((rows, x.shape[-1]), x.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return x.reshape((math.prod(x.shape[:-1]), x.shape[-1]))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (reshape_like(dy, node.inputs[0]),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(12, dtype="float32").reshape(2, 2, 3)
        yield Sample(cls(), [x], x.reshape(4, 3), (0,), label="stack")
        yield Sample(cls(), [x[0, 0]], x[0, :1], (0,), label="vector")
        yield Sample(cls(), [x[:, :, :0]], np.zeros((4, 0), "float32"), (0,), label="empty rows")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: cls().infer(TensorSpec((), dtypes.float32)), ValueError, "no rows", "scalar")


@dataclass(frozen=True)
class UnflattenRows(Op):
    """Rows (first input) put back under the leading axes of a shape (second input, int32 vector)."""

    leading: Shape
    view: ClassVar[bool] = True
    row_state = row_rules.unflattened

    def infer(self, *inputs: Any) -> TensorSpec:
        rows = inputs[0]
        shape = None if self.leading is None else (*self.leading, None if rows.shape is None else rows.shape[-1])
        return TensorSpec(shape, rows.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        rows, shape = inputs
        return rows.reshape((*(int(dim) for dim in shape[:-1]), rows.shape[-1]))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return reshape_like(dy, node.inputs[0]), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(12, dtype="float32").reshape(4, 3)
        shape = np.array([2, 2, 7], "int32")
        yield Sample(cls((2, 2)), [x, shape], x.reshape(2, 2, 3), (0,), label="stack")
        yield Sample(cls(None), [x[:1], shape[:1]], x[0], (0,), label="vector")
        empty = np.array([0, 2, 7], "int32")
        yield Sample(cls((None, 2)), [x[:0], empty], np.zeros((0, 2, 3), "float32"), (0,), label="empty")


def product_of_rows(op: Op, a: Tensor, *others: Tensor) -> Tensor:
    """Multiply [..., k] by [k, n] as one product of matrices, so that the matrix's gradient is one product, too.

    Args:
        op: the product of [rows, k] and the other operands, [rows, n].
        a: the rows.
        *others: what they are multiplied by.
    """
    if a.shape is not None and None not in a.shape:
        shape = [int(dim) for dim in a.shape if dim is not None]
        product = apply(op, reshape(a, (math.prod(shape[:-1]), shape[-1])), *others)
        columns = product.shape[-1] if product.shape is not None else None
        if columns is not None:
            return reshape(product, (*shape[:-1], columns))
    else:
        product = apply(op, apply(FlattenRows(), a), *others)
    return apply(UnflattenRows(None if a.shape is None else a.shape[:-1]), product, runtime_shape(a))


# --- functions ------------------------------------------------------------------------------------------------------


def _is_half(dtype: DType) -> bool:
    return dtypes.name_of(dtype) in ("float16", "bfloat16")


def matmul(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Return the matrix product; leading axes broadcast, vectors act as a row on the left and a column on the right.

    float16 and bfloat16 operands are multiplied in float32; two int8 operands give int32, as in Keras.

    Raises:
        ValueError: the inner dimensions differ, or an operand is a scalar.

    >>> import anabranch as ab
    >>> ab.ops.matmul([[1.0, 2.0]], [[3.0], [4.0]])
    Tensor([[11.]], dtype=float32)
    """
    if isinstance(x2, Readable):
        product = x2.product_of(x1)
        if product is not None:
            return product
    a, b = promote(x1, x2)
    if a.shape == () or b.shape == ():
        raise ValueError(
            f"matmul takes no scalar; got shapes {shape_text(a.shape)} and {shape_text(b.shape)}. Use ops.multiply."
        )
    if all_int8((x1, x2), a.dtype):
        a, b = cast(a, dtypes.int32), cast(b, dtypes.int32)
    return product_of(a, b)


def product_of(a: Tensor, b: Tensor) -> Tensor:
    if _is_half(a.dtype):
        return cast(_matmul(cast(a, dtypes.float32), cast(b, dtypes.float32)), a.dtype)
    return _matmul(a, b)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    if a.ndim == 2 and b.ndim == 2:
        return apply(MatMul(), a, b)
    if a.shape and b.shape:  # what the op gets has other shapes than the caller's
        check_inner_dims((a.shape, b.shape), (a.shape[-1], b.shape[-2:][0]))
    if a.ndim == 1 and b.ndim == 1:
        return reshape(_matmul(expand_dims(a, 0), expand_dims(b, 1)), ())
    if a.ndim == 1:
        return squeeze(_matmul(expand_dims(a, 0), b), -2)
    if b.ndim == 1:
        return squeeze(_matmul(a, expand_dims(b, 1)), -1)
    if b.ndim == 2:
        return product_of_rows(MatMul(), a, b)
    return apply(BatchMatMul(), a, b)


__all__ = ["matmul"]
