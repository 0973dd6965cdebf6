"""Checks of what ops say to kernels: that their roles, functions of rows and steps give what `run` gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.kernel_roles import REDUCING, KernelRole
from ..graph.op import Sample
from ..graph.spec import TensorSpec
from .comparing import as_tuple, assert_close, fail_unless, pairs

_UFUNCS = {"add": np.add, "max": np.maximum, "min": np.minimum}


class _Rows:
    """The reductions of `Op.row_expression`, over axes of an array that stay."""

    def __init__(self, axes: tuple[int, ...] | None) -> None:
        self._axes = axes

    def __call__(self, operation: str, value: Any) -> Any:
        return _UFUNCS[operation].reduce(value, axis=self._axes, keepdims=True)

    def mean(self, value: Any) -> Any:
        return np.mean(value, axis=self._axes, keepdims=True)


def check_kernels(sample: Sample) -> int:
    """Check that the op's role, or the steps as which it is written, give what `run` gives."""
    op, inputs = sample.op, [np.asarray(x) for x in sample.inputs]
    results = as_tuple(op.run(np, *sample.inputs))
    if 0 in [value.size for value in (*inputs, *results)] or getattr(op, "initial", None) is not None:
        return 0
    if op.kernel_role is None:
        found = _by_steps(sample, inputs, results)
        if not found:
            return 0
    else:
        found = _by_role(op.kernel_role, op, inputs, results)
    for value, expected in pairs(tuple(found), results):
        try:
            assert_close(value, expected, sample.tolerance)
        except AssertionError as error:
            source = "its kernel_steps" if op.kernel_role is None else f"its kernel_role {op.kernel_role.name}"
            raise AssertionError(f"{source} and run differ: {error}") from error
    return 1


def _by_steps(sample: Sample, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    specs = [TensorSpec(value.shape, value.dtype) for value in (*inputs, *results)]
    values = list(inputs)
    for step, taken in sample.op.kernel_steps(specs[: len(inputs)], specs[len(inputs)]):
        fail_unless(
            step.elementwise or step.kernel_role is not None,
            f"step {step.type_name} of kernel_steps is neither elementwise nor has it a kernel_role",
        )
        values.append(step.run(np, *[values[k] for k in taken]))
    return values[-1:] if len(values) > len(inputs) else []


def _by_role(role: KernelRole, op: Any, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    x, shape = inputs[0], results[0].shape
    if role is KernelRole.RESHAPE:
        return [x.reshape(shape)]
    if role is KernelRole.BROADCAST:
        return [np.broadcast_to(x, shape)]
    if role is KernelRole.SUM_TO:
        aligned = (1,) * (x.ndim - len(shape)) + shape
        axes = tuple(axis for axis, dim in enumerate(aligned) if dim != x.shape[axis])
        return [np.sum(x, axis=axes, dtype=getattr(op, "accumulator", None), keepdims=True).reshape(shape)]
    if role in REDUCING:
        wide = x.astype("float32") if x.dtype.name in ("float16", "bfloat16") else x
        return [op.row_expression(np, wide, _Rows(op.axes)).astype(x.dtype).reshape(shape)]
    if role is KernelRole.JOIN:
        return [(np.stack if len(shape) > x.ndim else np.concatenate)(inputs, axis=op.axis)]
    if len({value.shape for value in results}) > 1 or len(inputs) > 1:
        return list(results)  # unequal parts have no kernel
    parts = np.split(x, len(results), axis=op.axis)
    return [part.reshape(value.shape) for part, value in zip(parts, results, strict=True)]


__all__ = ["check_kernels"]
