"""From a fused op and the specs of its operands to the description of a kernel, and the table that a call reads."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Self

import numpy as np

from ...common.dtypes import native_dtype
from ...graph.graph import Operation
from ...graph.op import Op, is_plain_array
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.internal.fused import Fused
from ..expression.builder import ExpressionBuilder
from ..expression.expression import Expression, UnsupportedError, memory_type, register_type
from ..expression.half import Rounding
from ..expression.llvm import KernelSpec, divide
from ..host import threads
from ..llvm.entry import Kernel, Operand, table_layout
from ..llvm.library import library

Shape = tuple[int, ...]
MANY = 64  # what an unknown dimension is taken for
_GRANULE = 1024  # elements: parts begin where cache lines do


class KernelTable:
    """A kernel, and the table of sizes and numbers with which it is called.

    Attributes:
        call: the compiled function: ``call(a, ..., out, ...)``, which returns False if it ran.
        endable: `call` for calls that may be ended early (`host.lock`): a deadline, a closed session or an interrupt
            makes such a call raise. Nobody may read afterwards what it was to write: neither a variable, nor an array
            that is used again.
        address: that of the compiled entry, for native code that calls it; 0 until there is one.
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
        self._write(_table(spec.operands, [*inputs, *outputs], strides), numbers)

    def _write(self, head: list[int], numbers: Sequence[int], address: int = 0) -> None:
        self._head = head
        self._memory = np.array([0, *head, *numbers], "int64")
        self.table = self._memory.ctypes.data + self._memory.itemsize
        self.call: Any = None
        self.endable: Any = None
        self.link(address)

    def link(self, address: int) -> None:
        """Have calls run the compiled entry at an address."""
        self.address = address
        if address:
            self._memory[0] = address
            self.call, self.endable = threads.kernel_functions(self._memory)

    def compiled(self) -> Self:
        """Return this kernel, with its code compiled."""
        if not self.address:
            self.link(*library.get([self.spec]))
        return self


def specs_of(tensors: Iterable[Symbol]) -> list[TensorSpec]:
    """Return the specs of tensors; TensorArrays and frames have none."""
    return [tensor.spec for tensor in tensors if isinstance(tensor.spec, TensorSpec)]


def static_specs(operation: Operation) -> list[TensorSpec] | None:
    """Return the specs of the inputs and then the outputs of an operation; None where a size is not known."""
    tensors = (*operation.inputs, *operation.outputs)
    known = [spec for spec in specs_of(tensors) if spec.is_static]
    return known if len(known) == len(tensors) else None


def fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """Test whether kernels take `value` as it is, if it has the right shape."""
    return is_plain_array(value) and value.dtype is dtype and value.flags.c_contiguous and value.flags.aligned


def kernel_spec(
    op: Fused,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    has_loop_for_each_axis: bool = False,
    apart: Collection[int] = (),
    cuts: Collection[int] = (),
) -> KernelSpec:
    """Return the kernel of a fused op.

    Args:
        op: elementwise, without layouts.
        inputs: what it reads.
        outputs: what it writes.
        has_loop_for_each_axis: neighbouring axes are not joined, so that a part of each can be computed.
        apart: which of the inputs are read by their strides.
        cuts: axes of the space that are not joined to the one before them.

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
    loops = [(axis,) for axis in range(len(space))] if has_loop_for_each_axis else loops_of(space, shapes, cuts)
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


def loop_extents(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], cuts: Collection[int] = ()) -> list[int]:
    """Return the extents of a kernel's loops, for operands of these shapes; `cuts` as for `kernel_spec`."""
    space = static_shape(outputs[0])
    shapes = [static_shape(spec) for spec in (*inputs, *outputs)]
    return [math.prod(space[axis] for axis in loop) for loop in loops_of(space, shapes, cuts)]


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


def aligned(shape: Shape, rank: int) -> Shape:
    """Return a shape with axes of size 1 in front, as broadcasting gives it, so that it has `rank` axes."""
    return (1,) * (rank - len(shape)) + shape


def loops_of(space: Shape, shapes: Sequence[Shape], cuts: Collection[int] = ()) -> list[tuple[int, ...]]:
    """Return the axes of the iteration space in groups, each one loop: neighbours that all operands treat alike.

    Args:
        space: the shape of the results.
        shapes: of the operands.
        cuts: axes that begin a loop.
    """
    rank = len(space)
    patterns = [tuple(aligned(shape, rank)[axis] != 1 for shape in shapes) for axis in range(rank)]
    loops: list[list[int]] = []
    for axis in range(rank):
        if space[axis] == 1:
            continue
        if loops and axis not in cuts and patterns[loops[-1][-1]] == patterns[axis]:
            loops[-1].append(axis)
        else:
            loops.append([axis])
    return [tuple(loop) for loop in loops] or [(rank - 1,) if rank else ()]


def _steps(shape: Shape, space: Shape, loops: Sequence[tuple[int, ...]]) -> tuple[bool, ...]:
    if not shape:
        return (False,) * len(loops)
    sizes = aligned(shape, len(space))
    return tuple(sizes[loop[0]] != 1 for loop in loops)


def loop_numbers(
    spec: KernelSpec,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    cuts: Collection[int] = (),
) -> list[int]:
    """Return the numbers of a loop nest for operands of these shapes: extents, strides, parts and the size of one.

    Args:
        spec: the kernel.
        inputs: what it reads.
        outputs: what it writes.
        cuts: as for `kernel_spec`.
    """
    extents = loop_extents(inputs, outputs, cuts)
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
