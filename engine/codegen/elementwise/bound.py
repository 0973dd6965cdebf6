"""From a fused op and the specs of its operands to a kernel that can be called."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np

from ...common.blas import on_one_thread
from ...common.cached import cached_property
from ...common.descriptions import describe_value
from ...common.logs import DEBUG, is_logged, log
from ...common.machine_profile import machine_profile
from ...graph.op import Op, is_plain_array
from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused
from ..expression.expression import Expression, ExpressionBuilder, UnsupportedError, memory_type, register_type
from ..expression.half import Rounding
from ..expression.llvm import KernelSpec, divide
from ..host.refits import refits
from ..llvm.entry import Kernel, Operand, table_layout

Shape = tuple[int, ...]
MANY = 64  # what an unknown dimension is taken for
_GRANULE = 1024  # elements: parts begin where cache lines do


class BoundKernel:
    """A kernel with the sizes for which it is called.

    Attributes:
        entry: the compiled function: ``entry(table, id(a), ..., id(out), ...)``, which returns 0 if it ran.
        endable: the same for calls that may be ended early (`Library.endable`), in a kernel of a program.
        table: the address of what it compares its operands with, and of the numbers that it reads.

    Args:
        spec: the kernel.
        inputs: what it reads.
        outputs: what it writes.
        numbers: what its code reads beside the operands, such as sizes.
        strides: those of the inputs, in bytes, if any is not contiguous.
    """

    def __init__(
        self,
        spec: Kernel,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        numbers: Sequence[int],
        strides: Sequence[Shape] = (),
    ) -> None:
        assert len(numbers) == spec.number_count
        self.spec = spec
        self._dtypes = [native_dtype(operand.dtype) for operand in (*inputs, *outputs)]
        self._head = _table(spec.operands, [*inputs, *outputs], strides)
        self._write(self._head, numbers)
        self.entry: Any = None
        self.endable: Any = None

    def resized(self, shapes: Sequence[Shape], numbers: Sequence[int]) -> BoundKernel:
        """Return the same kernel for operands of other sizes, all of them contiguous.

        Args:
            shapes: of the inputs, then of the outputs; of the same ranks.
            numbers: what its code reads, as for the kernel itself.
        """
        found: BoundKernel = object.__new__(type(self))
        found.__dict__.update(self.__dict__ | {"address": self.address})  # which is known by then
        head = self._head.copy()
        for place, position, axis in self._sizes:
            head[place] = shapes[position][axis]
        found._write(head, numbers)
        return found

    @cached_property
    def _sizes(self) -> list[tuple[int, int, int]]:
        """The places of sizes in the table, each with its operand and axis."""
        layout = enumerate(table_layout(self.spec.operands))
        return [(place, position, axis) for place, (kind, position, axis) in layout if kind == "dim"]

    def _write(self, head: list[int], numbers: Sequence[int]) -> None:
        self._head = head
        self._table = np.array([*head, *numbers], "int64")
        self.table = self._table.ctypes.data

    @cached_property
    def address(self) -> int:
        """The address of the compiled function, for native code that calls it; it is compiled by then."""
        return ctypes.cast(self.entry, ctypes.c_void_p).value or 0

    def refit(self, operands: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """Call again with operands made contiguous, of the very dtype; they were refused as they are.

        Outputs may be buffers in which NumPy laid out a value in its own way: they are filled afterwards.

        Raises:
            RuntimeError: they do not have the shapes for which the program was compiled.
        """
        refits.note()
        if is_logged("fallback"):
            described = ", ".join(map(describe_value, operands))
            log("fallback", DEBUG, "operands of a kernel are copied to another layout before it runs: %s", described)
        count = len(operands)
        found = [
            dtype.type(value) if operand.rank is None else fitted(value, dtype)
            for value, dtype, operand in zip(operands, self._dtypes, self.spec.operands, strict=False)
        ]
        results = [
            value if fits(value, dtype) and value.flags.writeable else np.empty(np.shape(value), dtype)
            for value, dtype in zip(outputs, self._dtypes[count:], strict=True)
        ]
        if self.entry(self.table, *map(id, found), *map(id, results)):
            raise misfit((*operands, *outputs))
        for output, result in zip(outputs, results, strict=True):
            if output is not result:
                output[...] = result


class KernelOrNumPy(BoundKernel):
    """A kernel for what NumPy can compute as well, from operands of any layout in memory.

    Args:
        op: the operation.
        spec, inputs, outputs, numbers: as for `BoundKernel`.
    """

    def __init__(
        self, op: Op, spec: Kernel, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], numbers: Sequence[int]
    ) -> None:
        super().__init__(spec, inputs, outputs, numbers)
        self._op = op

    def refit(self, operands: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """Compute it by NumPy, which takes a transposed view as it is, of which the kernel would need a copy."""
        refits.note()
        with on_one_thread(nullcontext)():  # steps whose products all have kernels leave that to them
            results = [self._op.run(np, *operands)]
        for output, result in zip(outputs, results, strict=True):
            output[...] = result


def misfit(values: Sequence[Any]) -> RuntimeError:
    """Return the error of operands that a kernel still refuses when they are laid out as it wants them."""
    shapes = ", ".join(map(describe_value, values))
    return RuntimeError(
        f"This is a bug in anabranch: an op's inferred shape or dtype differs from its result ({shapes}). "
        "Please report it; with ANABRANCH_KERNELS=0 in the environment the program runs on NumPy."
    )


@cache
def native_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return NumPy's own object for a dtype: kernels contain its address."""
    return np.dtype(dtype.name)


def fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """Test whether kernels take `value` as it is, if it has the right shape."""
    return is_plain_array(value) and value.dtype is dtype and value.flags.c_contiguous and value.flags.aligned


def fitted(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array as kernels take it."""
    if fits(value, dtype):
        return value
    if is_plain_array(value) and value.dtype is dtype and value.size >= machine_profile().parallel_elements:
        from .apart import copied_by_rows  # which makes kernels by this module

        made = copied_by_rows(value, dtype)
        if made is not None:
            return made
    made = np.empty(np.shape(value), dtype)
    made[...] = value
    return made


def kernel_spec(
    op: Fused,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    has_loop_for_each_axis: bool = False,
    apart: Collection[int] = (),
) -> KernelSpec:
    """Return the kernel of a fused op.

    Args:
        op: elementwise, without layouts.
        inputs: what it reads.
        outputs: what it writes.
        has_loop_for_each_axis: neighbouring axes are not joined, so that a part of each can be computed.
        apart: which of the inputs may have rows with gaps between them.

    Raises:
        UnsupportedError: the kernel language lacks an op or a dtype.
    """
    if op.layouts:
        raise UnsupportedError("reductions")
    builder = ExpressionBuilder()
    rounding = Rounding(builder)
    specs = list(inputs)
    values = [rounding.loaded(builder.input(k, spec.dtype), spec.dtype) for k, spec in enumerate(inputs)]
    for step, arguments in op.steps:
        result: Any = step.infer(*[specs[k] for k in arguments])
        specs.append(result)
        values.append(rounding(expression_of(step, builder, [values[k] for k in arguments]), result.dtype))
    space = static_shape(outputs[0])
    shapes = [static_shape(spec) for spec in (*inputs, *outputs)]
    loops = [(axis,) for axis in range(len(space))] if has_loop_for_each_axis else _loops(space, shapes)
    operands = [
        Operand(
            memory_type(spec.dtype),
            len(shape) or None,
            _steps(shape, space, loops),
            position >= len(inputs),
            position in apart,
        )
        for position, (spec, shape) in enumerate(zip((*inputs, *outputs), shapes, strict=True))
    ]
    written = [(operand, values[k].index) for operand, k in zip(operands[len(inputs) :], op.results, strict=True)]
    return KernelSpec(tuple(builder.nodes), tuple(operands[: len(inputs)]), tuple(written), len(loops), op.flushes)


def loop_extents(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], has_loop_for_each_axis: bool = False
) -> list[int]:
    """Return the extents of a kernel's loops, for operands of these shapes."""
    space = static_shape(outputs[0])
    if has_loop_for_each_axis:
        return list(space)
    shapes = [static_shape(spec) for spec in (*inputs, *outputs)]
    return [math.prod(space[axis] for axis in loop) for loop in _loops(space, shapes)]


def expression_of(op: Op, builder: ExpressionBuilder, arguments: Sequence[Expression]) -> Expression:
    """Return an elementwise op as an expression.

    Raises:
        UnsupportedError: it can't be expressed.
    """
    expression: Any = getattr(op, "expression", None)
    if expression is None:
        raise UnsupportedError(op.type_name)
    result = expression(builder, *arguments)
    if not isinstance(result, Expression):
        raise UnsupportedError(op.type_name)
    return result


def can_fuse(op: Op, dtypes: Sequence[Any], result: Any) -> bool:
    """Test whether kernels can compute `op` over inputs of `dtypes`, giving dtype `result`."""
    builder = ExpressionBuilder(dtypes)
    try:
        arguments = [builder.input(k, dtype) for k, dtype in enumerate(dtypes)]
        return expression_of(op, builder, arguments).type == register_type(result)
    except (UnsupportedError, TypeError):
        return False


def static_shape(spec: TensorSpec) -> Shape:
    """Return a shape in which -1 stands for what is not known."""
    assert spec.shape is not None
    return tuple(-1 if dim is None else dim for dim in spec.shape)


def _aligned(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape


def _loops(space: Shape, shapes: Sequence[Shape]) -> list[tuple[int, ...]]:
    """Return the axes of the iteration space in groups, each one loop: neighbours that all operands treat alike."""
    rank = len(space)
    patterns = [tuple(_aligned(shape, rank)[axis] != 1 for shape in shapes) for axis in range(rank)]
    loops: list[list[int]] = []
    for axis in range(rank):
        if space[axis] == 1:
            continue
        if loops and patterns[loops[-1][-1]] == patterns[axis]:
            loops[-1].append(axis)
        else:
            loops.append([axis])
    return [tuple(loop) for loop in loops] or [(rank - 1,) if rank else ()]


def _steps(shape: Shape, space: Shape, loops: Sequence[tuple[int, ...]]) -> tuple[bool, ...]:
    if not shape:
        return (False,) * len(loops)
    aligned = _aligned(shape, len(space))
    return tuple(aligned[loop[0]] != 1 for loop in loops)


def loop_numbers(
    spec: KernelSpec,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    has_loop_for_each_axis: bool = False,
) -> list[int]:
    """Return the numbers of a loop nest for operands of these shapes: extents, strides, parts and the size of one."""
    extents = loop_extents(inputs, outputs, has_loop_for_each_axis)
    granule = _GRANULE if len(extents) == 1 else 1
    return [*extents, *spec.strides_of(extents), *divide(spec.work * math.prod(extents), extents[0], granule)]


def _table(operands: tuple[Operand, ...], specs: Sequence[TensorSpec], strides: Sequence[Shape]) -> list[int]:
    """Return the values that the entry compares with (see `table_layout`); the numbers follow."""
    table: list[int] = []
    for kind, position, axis in table_layout(operands):
        if kind == "array":
            table.append(id(np.ndarray))
        elif kind == "type":
            dtype = native_dtype(specs[position].dtype)
            table.append(id(dtype.type) if operands[position].rank is None else id(dtype))
        elif kind == "step":
            table.append(strides[position][axis])
        else:
            table.append(static_shape(specs[position])[axis])
    return table
