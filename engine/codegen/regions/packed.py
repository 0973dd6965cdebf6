"""Native forms of products by packed weights: the region calls the engine's own product, which uses all cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...common.dtypes import name_of
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.internal.packed import PackedMatMul
from ..expression.expression import UnsupportedError
from ..matmul import gemm
from ..matmul.gemm_bind import is_ours
from ..matmul.gemm_forms import PACKED
from .function import Array, Form, FormContext, Value

_NAMES = {"float": "anabranch_sgemm", "double": "anabranch_dgemm"}


def declarations() -> list[str]:
    """Return the declarations of functions that regions call."""
    sizes = "i64, i64, i64, ptr, i64, i64, ptr, i64, i64, ptr, i64, ptr, i64, ptr, i64"
    return [f"declare void @{name}({sizes})" for name in _NAMES.values()]


def _packed(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = op_of(operation, PackedMatMul)
    arrays = [value for value in inputs if isinstance(value, Array)]
    result: Any = operation.outputs[0].spec
    dtype, shape = name_of(result.dtype), tuple(int(dim or 0) for dim in result.shape)
    if len(arrays) < len(inputs) or 0 in (*shape, *arrays[0].shape) or dtype not in gemm.ELEMENTS:
        raise UnsupportedError("a packed product of something else")
    if not is_ours(op.layout, dtype) or not gemm.is_available():
        raise UnsupportedError("a packed product of another host")
    gemm.start(dtype)
    function, (a, packed, *addends) = context.function, arrays
    product = context.targets.get(operation.outputs[0]) or function.allocate(a.kind, shape)
    (rows, columns), terms = shape, op.layout.rows
    added = [(each.pointer, columns if each.shape == shape and rows > 1 else 0) for each in addends]
    places = [
        *(f"ptr {a.pointer}, i64 {terms}, i64 0", f"ptr {packed.pointer}, i64 {op.layout.block}, i64 {PACKED}"),
        f"ptr {product.pointer}, i64 {columns}",
        *[f"ptr {pointer}, i64 {step}" for pointer, step in [*added, ("null", 0), ("null", 0)][:2]],
    ]
    context.work += rows * columns * terms // 64
    function.line(f"call void @{_NAMES[a.kind]}(i64 {rows}, i64 {columns}, i64 {terms}, {', '.join(places)})")
    return [product]


FORMS: dict[type[Any], Form] = {PackedMatMul: _packed}
