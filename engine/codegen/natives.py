"""A table of the operations that have kernels of their own beside the fused ones, and of the modules that make these.

A binder gets an operation and gives its kernel for the shapes and dtypes at hand, or None where NumPy does better or
the kernel can't do it. Where sizes are known at run time only it gives a runner, which is called instead of the op's
`run`. Its module is loaded when such an operation is found. Kernels take sums in another order than NumPy and round
otherwise: exact programs have none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..graph.graph import Operation
from ..graph.spec import TensorSpec

if TYPE_CHECKING:
    from .elementwise.bound import BoundKernel

Runner = Callable[..., Any]
Binder = Callable[[Operation], "BoundKernel | Runner | None"]

# By the type name of the op: the module in this folder, and the binder in it.
BINDERS: dict[str, tuple[str, str]] = {
    "matmul": ("matmul.narrow", "bind_product"),
    "pack": ("matmul.gemm_bind", "bind_pack"),
    "packed_mat_mul": ("matmul.gemm_bind", "bind_packed"),
    "add_rows": ("gather.row_sums", "rows_runner"),
    "add_to_rows": ("gather.row_sums", "add_runner"),
    "adjugate": ("factorisation.general", "general_runner"),
    "assign_parts": ("gather.rows", "write_runner"),
    "assign_rows": ("gather.rows", "write_runner"),
    "average_pool": ("convolution.pooling", "bind_pooling"),
    "average_pool_grad": ("convolution.pooling", "bind_pooling"),
    "batch_matmul": ("matmul.gemm_batch_bind", "bind_batch"),
    "cholesky": ("factorisation.cholesky", "cholesky_runner"),
    "cholesky_gradient": ("factorisation.cholesky_gradient", "cholesky_gradient_runner"),
    "concatenate": ("gather.joins", "bind_concatenate"),
    "contraction": ("matmul.gemm_batch_bind", "bind_batch"),
    "conv": ("convolution.convolution", "bind_convolution"),
    "conv_filter_grad": ("convolution.convolution", "bind_filter_gradient"),
    "conv_input_grad": ("convolution.convolution", "bind_input_gradient"),
    "determinant": ("factorisation.general", "general_runner"),
    "horizontally_fused": ("elementwise.horizontal_fusion", "bind_horizontally_fused"),
    "inverse": ("factorisation.general", "general_runner"),
    "int4_matmul": ("matmul.int4", "bind_int4"),
    "laid_out_int4_mat_mul": ("matmul.int4", "bind_int4"),
    "laid_out_mat_mul": ("matmul.quantized", "bind_quantized"),
    "gather_segments": ("gather.segments", "gather_runner"),
    "log_softmax": ("elementwise.open_rows", "bind_open_rows"),
    "log_sum_exp": ("elementwise.open_rows", "bind_open_rows"),
    "lu_factor": ("factorisation.lu", "lu_runner"),
    "max_pool": ("convolution.pooling", "bind_pooling"),
    "max_pool_grad": ("convolution.pooling", "bind_pooling"),
    "max_pool_places": ("convolution.pooling", "bind_pooling"),
    "product_then": ("matmul.epilogues", "bind_product_then"),
    "put_rows": ("gather.rows", "put_runner"),
    "quantized_matmul": ("matmul.quantized", "bind_quantized"),
    "random_keep": ("random.philox", "keep_runner"),
    "random_normal": ("random.philox", "units_runner"),
    "random_uniform": ("random.philox", "units_runner"),
    "reshape": ("elementwise.materialise", "reshape_runner"),
    "scatter_update": ("gather.picks", "scatter_runner"),
    "search_sorted": ("gather.searches", "search_runner"),
    "segment_sum": ("gather.rows", "sum_runner"),
    "slogdet": ("factorisation.general", "general_runner"),
    "solve": ("factorisation.general", "general_runner"),
    "solve_triangular": ("factorisation.triangular", "triangular_runner"),
    "slice_update": ("gather.windows", "window_runner"),
    "softmax": ("elementwise.open_rows", "bind_open_rows"),
    "sum_of_parts": ("gather.segments", "parts_runner"),
    "sum_of_repeated": ("gather.row_sums", "repeated_runner"),
    "sum_of_rows": ("gather.row_sums", "taken_runner"),
    "update_rows": ("gather.row_changes", "update_runner"),
    "take": ("gather.rows", "take_runner"),
    "take_along_axis": ("gather.picks", "along_runner"),
    "top_k": ("gather.top_k", "bind_top_k"),
    "winograd_then": ("convolution.winograd_bind", "bind_winograd_then"),
    "winograd": ("convolution.winograd_bind", "bind_winograd"),
}

_CALLING_PRODUCTS = (
    "factorisation.cholesky",
    "factorisation.cholesky_gradient",
    "factorisation.general",
    "factorisation.lu",
    "factorisation.triangular",
    "matmul.epilogues",
    "matmul.gemm_batch_bind",
    "matmul.gemm_bind",
    "matmul.narrow",
)


def _has_open_shape(operation: Operation) -> bool:
    """Test whether `operation` is elementwise, on arrays of which ranks are known but not all sizes."""
    if not operation.op.elementwise or len(operation.outputs) != 1 or operation.outputs[0].shape == ():
        return False
    specs = [tensor.spec for tensor in (*operation.inputs, *operation.outputs)]
    shapes = [spec.shape if isinstance(spec, TensorSpec) else None for spec in specs]
    return None not in shapes and any(None in shape for shape in shapes if shape is not None)


def has_binder(operation: Operation) -> bool:
    """Test whether there may be a kernel for an operation."""
    return operation.op.type_name in BINDERS or _has_open_shape(operation)


def calls_products(operation: Operation) -> bool:
    """Test whether the kernel of an operation that `has_binder` calls the functions for matrix products."""
    return BINDERS.get(operation.op.type_name, ("", ""))[0] in _CALLING_PRODUCTS


def bind_native(operation: Operation) -> BoundKernel | Runner | None:
    """Return the kernel of an operation that `has_binder`, if it is worth one."""
    module, name = BINDERS.get(operation.op.type_name, ("elementwise.dynamic", "elementwise_runner"))
    binder: Binder = getattr(importlib.import_module(f".{module}", __package__), name)
    return binder(operation)
