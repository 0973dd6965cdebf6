"""The rule of operations that the fusion pass may fuse, and the kernels of a program, compiled together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..common.dtypes import name_of
from ..graph.graph import Graph, Operation
from ..graph.kernel_roles import KernelRole
from ..graph.op import Op
from ..graph.spec import TensorSpec
from ..ops.internal.fused import Fused
from ..ops.internal.int4_matmul import Int4MatMul
from ..ops.internal.laid_out_int4 import Int4Panels
from ..ops.internal.laid_out_matmul import Panels
from ..ops.internal.packed import Layout
from ..ops.internal.product_then import WinogradThen
from ..ops.linear_algebra.products import MatMul
from ..passes.framework.prune import all_operations
from ..passes.fusion.fuse import FusionRule
from .elementwise.apart import loops_apart
from .elementwise.bound import BoundKernel, FusedKernel
from .elementwise.dynamic import fused_runner
from .elementwise.kernel_specs import can_fuse, kernel_spec, loop_numbers, specs_of
from .expression.builder import ExpressionBuilder
from .expression.expression import UnsupportedError, memory_type
from .llvm.library import library
from .matmul import gemm
from .matmul.gemm_bind import layout_for
from .natives import Runner, bind_native, calls_products


class KernelRule(FusionRule):
    """Fuse what kernels can compute: the rule of one step."""

    def __init__(self) -> None:
        self._has_kernel: dict[Any, bool] = {}

    def can_fuse(self, op: Op, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        try:
            return _can_fuse(type(op), op, tuple(spec.dtype for spec in inputs), output.dtype)
        except TypeError:  # an op that can't be hashed
            return False

    def can_reduce(self, op: Op, input: TensorSpec) -> bool:
        return _can_reduce(op.kernel_role is KernelRole.NORMALISATION, input.dtype)

    def can_move(self, spec: TensorSpec) -> bool:
        return _has_type(spec.dtype)

    def has_kernel(self, operation: Operation) -> bool:
        assert isinstance(operation.op, Fused)
        if not operation.op.layouts:
            return True
        key = _kernel_key(operation)
        known = self._has_kernel.get(key)
        if known is None:
            known = self._has_kernel[key] = _bound(operation) is not None
        return known

    def can_run_together(self, operation: Operation) -> bool:
        return _bound(operation) is not None

    def can_follow(self, operation: Operation) -> bool:
        if isinstance(operation.op, WinogradThen):
            from .convolution.winograd_bind import bind_winograd_then

            return bind_winograd_then(operation) is not None
        if isinstance(operation.op, Int4MatMul):
            from .matmul.int4 import bind_int4

            return bind_int4(operation) is not None
        from .matmul.epilogues import pays  # loaded where there is a product

        return pays(operation)

    def winograd_tile(self, operation: Operation) -> int:
        from .convolution.winograd_bind import tile_of  # loaded where there is a convolution

        return tile_of(operation)

    def layout(self, rows: int | None, weight: TensorSpec, transpose: bool) -> Layout | None:
        return layout_for(rows, weight, transpose)

    def panels(self, product: Operation) -> Panels | Int4Panels | None:
        if isinstance(product.op, Int4MatMul):
            from .matmul.int4 import int4_panels_for

            return int4_panels_for(product)
        from .matmul.quantized import panels_for

        return panels_for(product)


@lru_cache(maxsize=256)
def _has_type(dtype: Any) -> bool:
    if name_of(dtype) == "float16" and not library.has_half:
        return False
    try:
        return bool(memory_type(dtype))
    except UnsupportedError:
        return False


@lru_cache(maxsize=256)
def _can_reduce(is_transcendental: bool, dtype: Any) -> bool:
    """Test whether kernels have sums of a dtype, and the functions that softmax needs."""
    if not _has_type(dtype) or memory_type(dtype) == "i1":
        return False
    builder = ExpressionBuilder()
    try:
        x = builder.input(0, dtype)
        return not is_transcendental or bool(builder.log(builder.exp(x)))
    except UnsupportedError:
        return False


@lru_cache(maxsize=4096)
def _can_fuse(kind: type[Op], op: Op, dtypes: tuple[Any, ...], result: Any) -> bool:
    if not library.has_half and any(name_of(dtype) == "float16" for dtype in (*dtypes, result)):
        return False
    return can_fuse(op, dtypes, result)


def fusion_rule() -> FusionRule | None:
    """Return the rule of this machine; None where kernels can't be compiled."""
    return KernelRule() if library.usable else None


def begin_products(graph: Graph) -> None:
    """Compile the functions for matrix products in another thread, if a program of `graph` may call them.

    That takes longer than any other module, and is done once on a machine.
    """
    if not gemm.is_available() or gemm.is_compiled("float32"):
        return
    products = [each for each in all_operations(graph.operations) if isinstance(each.op, MatMul)]
    if any(name_of(operation.outputs[0].dtype) == "float32" for operation in products):
        gemm.prepare("float32")


def bind_kernels(operations: Iterable[Operation]) -> dict[Operation, BoundKernel | Runner]:
    """Return kernels for operations of a program: fused ones, and those of `natives`. NumPy runs the others."""
    if not library.usable:
        return {}
    operations = list(operations)
    fused = [operation for operation in operations if isinstance(operation.op, Fused)]
    natives = [operation for operation in operations if not isinstance(operation.op, Fused)]
    calling = [operation for operation in natives if calls_products(operation)]
    others = [operation for operation in natives if not calls_products(operation)]
    bound: dict[Operation, BoundKernel | Runner] = {}
    for part in (fused, others, calling):
        # Other threads compile what is known while the next are bound; the last wait for the functions that they call.
        library.begin([kernel.spec for kernel in _kernels(bound)])
        bound |= _bind_all(part)
    kernels = _kernels(bound)
    for kernel, address in zip(kernels, library.get([kernel.spec for kernel in kernels]), strict=True):
        kernel.link(address)
    return bound


def _kernels(bound: Mapping[Operation, BoundKernel | Runner]) -> list[BoundKernel]:
    return [kernel for kernel in dict.fromkeys(bound.values()) if isinstance(kernel, BoundKernel)]


def _bind_all(operations: Iterable[Operation]) -> dict[Operation, BoundKernel | Runner]:
    """Bind operations to kernels; those that do the same to operands of the same shapes share one."""
    known: dict[Any, BoundKernel | Runner | None] = {}
    bound: dict[Operation, BoundKernel | Runner] = {}
    for operation in operations:
        key = _kernel_key(operation)
        if key not in known:
            known[key] = _bound(operation)
        kernel = known[key]
        if kernel is not None:
            bound[operation] = kernel
    return bound


def _kernel_key(operation: Operation) -> Any:
    """Return what the kernel of an operation depends on."""
    return operation.op, tuple([t.spec for t in operation.inputs]), tuple([t.spec for t in operation.outputs])


def _bound(operation: Operation) -> BoundKernel | Runner | None:
    op = operation.op
    if not isinstance(op, Fused):
        return bind_native(operation)
    inputs = tuple(specs_of(operation.inputs))
    outputs = tuple(specs_of(operation.outputs))
    try:
        if not all(spec.is_static for spec in (*inputs, *outputs)):
            return fused_runner(operation)
        return _bound_fused(op, inputs, outputs)
    except UnsupportedError:
        return None


def _bound_fused(op: Fused, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> BoundKernel:
    if op.layouts:
        from .elementwise.row_builder import bind_rows

        return bind_rows(op, inputs, outputs)
    spec = kernel_spec(op, inputs, outputs)
    numbers = loop_numbers(spec, inputs, outputs)
    return FusedKernel(spec, inputs, outputs, numbers, lambda strides: loops_apart(op, inputs, outputs, strides, {}))
