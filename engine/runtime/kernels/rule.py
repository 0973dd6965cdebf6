"""What the fusion pass may fuse, and the kernels of a program, compiled together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.spec import TensorSpec
from ...ops.fused import Fused
from ...passes.fuse import FusionRule
from .bound import BoundKernel, can_fuse, kernel_spec
from .expression import UnsupportedError
from .library import library


class KernelRule(FusionRule):
    """Fuse what kernels can compute."""

    def can_fuse(self, op: Op, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        try:
            return _can_fuse(type(op), op, tuple(spec.dtype for spec in inputs), output.dtype)
        except TypeError:  # an op that can't be hashed
            return False


@lru_cache(maxsize=4096)
def _can_fuse(kind: type[Op], op: Op, dtypes: tuple[Any, ...], result: Any) -> bool:
    return can_fuse(op, dtypes, result)


def fusion_rule() -> FusionRule | None:
    """The rule of this machine; None where kernels can't be compiled."""
    return KernelRule() if library.usable else None


def bind_kernels(operations: Iterable[Operation]) -> dict[Operation, BoundKernel]:
    """Kernels for the fused operations of a program. What turns out to be unsupported is left to NumPy."""
    known: dict[Any, BoundKernel | None] = {}  # operations that do the same to operands of the same shapes share one
    bound: dict[Operation, BoundKernel] = {}
    for operation in operations:
        if not isinstance(operation.op, Fused):
            continue
        inputs = tuple(tensor.spec for tensor in operation.inputs if isinstance(tensor.spec, TensorSpec))
        outputs = tuple(tensor.spec for tensor in operation.outputs if isinstance(tensor.spec, TensorSpec))
        key = (operation.op, inputs, outputs)
        if key not in known:
            known[key] = _bound(*key)
        kernel = known[key]
        if kernel is not None:
            bound[operation] = kernel
    kernels = list(dict.fromkeys(bound.values()))
    for kernel, entry in zip(kernels, library.get([kernel.spec for kernel in kernels]), strict=True):
        kernel.entry = entry
    return bound


def _bound(op: Fused, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> BoundKernel | None:
    try:
        return BoundKernel(kernel_spec(op, inputs, outputs), inputs, outputs)
    except UnsupportedError:
        return None
