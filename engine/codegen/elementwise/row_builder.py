"""From a fused op with layouts to a row kernel, and to the numbers with which it is called."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ...common.dtypes import name_of
from ...graph.kernel_roles import REDUCING, KernelRole
from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused, Part
from ...passes.fusion.iteration_spaces import MOST_PARTS, intervals
from ..expression.builder import ExpressionBuilder
from ..expression.expression import HALVES, Expression, UnsupportedError, memory_type, register_type
from ..expression.half import Rounding
from ..llvm.entry import Operand
from .apart import steps_apart
from .bound import BoundKernel, FusedKernel
from .kernel_specs import KernelTable, expression_of
from .open_sizes import Shape, Shapes
from .row_code import RowKernel
from .row_kernel import Mask, RowSpec, division_of

Interval = tuple[int, int]
Layout = tuple[Interval | None, ...]
_Value = list[Expression]  # for each part of the axis that is written out; one where all are alike
_MOST_NODES = 6000
_MOST_NODES_OF_MANY = 2000  # where more parts than gates have are written out, which is only worth so much compiling
_MOST_UNROLLED = 16  # elements of an innermost axis that is written out
_LEAST_VECTORS = 16  # elements of the axis along which vectors go instead
_MOST_STEPS_OF_ROW = 4  # that are written out: few rows gain less than LLVM takes for much code
_MOST_COPIED = 1 << 20  # elements of an operand that is transposed before the loops


class _Builder(ExpressionBuilder):
    """An expression builder that has reductions."""

    def load(self, operand: int, component: int, dtype: Any) -> Expression:
        return self.node("load", register_type(dtype), value=(operand, component))

    def reduce(self, operation: str, x: Expression, mask: Mask) -> Expression:
        """Return the sum, maximum or minimum over loops."""
        if x.type == "i1":
            raise UnsupportedError(f"{operation} of bools")
        return self.node("reduce", x.type, x, value=(operation, mask)) if any(mask) else x

    def count(self, mask: Mask, factor: int, type: str) -> Expression:
        """Return the number of elements over which a reduction goes."""
        return self.node("count", type, value=(mask, factor))

    def combine(self, operation: str, x: Expression, y: Expression) -> Expression:
        return x + y if operation == "add" else getattr(self, f"{operation}imum")(x, y)


class _Nest:
    """The loops of a fused op: the axes of its space in groups that all operands and reductions treat alike.

    Attributes:
        loops: for each loop, the interval of the space through which it runs; the outermost first.
        parts: the axis that is written out, if there is one.

    Args:
        size: the elements of the space.
        operands: the layouts of what is read and written.
        reduced: the intervals over which each reduction goes.
        parts: as above.
        apart: where loops begin that are not joined to the one inside.
    """

    def __init__(
        self,
        size: int,
        operands: Sequence[Layout],
        reduced: Sequence[Sequence[Interval]],
        parts: Interval | None,
        apart: Collection[int] = (),
    ) -> None:
        self.parts = parts
        masks = [*map(intervals, operands), *reduced]
        ends = {1, size, *(parts or ()), *[end for mask in masks for axis in mask for end in axis]}
        cuts = sorted(ends)
        axes = [(low, high) for low, high in itertools.pairwise(cuts) if not _within((low, high), parts)]
        written_out = [axis for axis in itertools.pairwise(cuts) if _within(axis, parts)]
        if any(len({any(_within(axis, other) for other in mask) for axis in written_out}) > 1 for mask in masks):
            raise UnsupportedError("parts that an operand has in part")
        patterns = [tuple(any(_within(axis, other) for other in mask) for mask in masks) for axis in axes]
        loops: list[Interval] = []
        previous: tuple[bool, ...] | None = None
        for (low, high), pattern in zip(axes, patterns, strict=True):  # from the inside
            if loops and loops[-1][1] == low and previous == pattern and low not in apart:
                loops[-1] = (loops[-1][0], high)
            else:
                loops.append((low, high))
            previous = pattern
        self.loops = loops[::-1]
        if not loops or loops[0][0] != self.unrolled:
            raise UnsupportedError("no loop along memory")

    @property
    def unrolled(self) -> int:
        """The elements of the axis that is written out, if that is the innermost one; else 1."""
        return self.parts[1] if self.parts is not None and self.parts[0] == 1 else 1

    @property
    def extents(self) -> list[int]:
        return [high // low for low, high in self.loops]

    def mask(self, intervals: Sequence[Interval]) -> Mask:
        """Return the loops that are in intervals."""
        return tuple(any(_within(loop, interval) for interval in intervals) for loop in self.loops)

    def covers_parts(self, layout: Layout) -> bool:
        return self.parts is not None and any(_within(self.parts, axis) for axis in intervals(layout))

    def steps(self, layout: Layout, steps: Sequence[int]) -> dict[int, int]:
        """Return the strides of an operand for loops and, as -1, for the parts, where its axes have these steps."""
        named = {low: number for number, (low, _) in enumerate(self.loops)}
        if self.parts is not None:
            named[self.parts[0]] = -1
        return {
            number: step * (low // axis[0])
            for axis, step in zip(layout, steps, strict=True)
            for low, number in named.items()
            if axis is not None and axis[0] <= low < axis[1]
        }

    def strides(self, layout: Layout) -> dict[int, int]:
        """Return the strides of a dense operand, for loops and, as -1, for the parts."""
        steps = {loop: number for number, loop in enumerate(self.loops) if self.mask(intervals(layout))[number]}
        if self.covers_parts(layout):
            assert self.parts is not None
            steps[self.parts] = -1
        found: dict[int, int] = {}
        stride = 1
        for low, high in sorted(steps):
            found[steps[low, high]] = stride
            stride *= high // low
        return found


def _within(inner: Interval, outer: Interval | None) -> bool:
    """Test whether an axis or loop is inside an interval, in which its start is."""
    return outer is not None and outer[0] <= inner[0] < outer[1]


def _reduced_axes(op: Any, layout: Layout) -> list[Interval]:
    """Return the intervals of the space over which a reduction goes."""
    rank = len(layout)
    axes = range(rank) if op.axes is None else [axis % rank for axis in op.axes]
    return [axis for axis in (layout[position] for position in axes) if axis is not None]


def bind_rows(op: Fused, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> BoundKernel:
    """Return the kernel of a fused op that has layouts; no other sizes may be bound to it.

    Args:
        op: what is computed.
        inputs: what it reads.
        outputs: what it writes.

    Raises:
        UnsupportedError: kernels can't compute it.
    """
    spec, extents, strides = row_kernel_of(op, tuple(inputs), tuple(outputs), unrolls=True)
    numbers = row_numbers(spec, extents, strides, _sizes(outputs))
    return FusedKernel(spec, inputs, outputs, numbers, lambda steps: rows_apart(op, spec, inputs, outputs, steps))


def rows_apart(
    op: Fused, plain: RowKernel, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], strides: Shapes
) -> KernelTable | None:
    """Return the kernel for operands of these strides, which reads those by their strides that it can (`is_strided`).

    Args:
        op: what is computed: it has layouts.
        plain: the kernel for contiguous operands, whose bits it has to give.
        inputs: what it reads.
        outputs: what it writes.
        strides: of what it reads, in bytes.

    Returns:
        A kernel that is not compiled yet; None if it can read none, or would add up in another order.
    """
    layouts = _operand_layouts(op)
    steps = {k: own for k, own in steps_apart(inputs, strides).items() if _is_along_memory(layouts[k], own)}
    cuts = {cut for k, own in steps.items() for cut in _cuts(layouts[k], own)}
    nest = _Nest(op.size, layouts, _reductions(op), op.parts, cuts)
    keeps_order = not _reductions(op) or (nest.loops == _nest(op).loops and plain.unrolled == 1)
    if not steps or nest.unrolled > 1 or not keeps_order:
        return None
    spec = _kernel(op, nest, inputs, outputs, layouts, steps)
    named = [nest.steps(layout, steps[k]) if k in steps else nest.strides(layout) for k, layout in enumerate(layouts)]
    numbers = row_numbers(spec, nest.extents, [named[k][loop] for k, loop in spec.strides], _sizes(outputs))
    return KernelTable(spec, inputs, outputs, numbers, strides)


def _sizes(outputs: Sequence[TensorSpec]) -> list[int]:
    return [math.prod(int(dim or 0) for dim in output.shape or ()) for output in outputs]


def _is_along_memory(layout: Layout, steps: Shape) -> bool:
    """Test whether elements of an operand along a row follow each other, or are the same one."""
    return all(axis is None or axis[0] != 1 or step == 1 for axis, step in zip(layout, steps, strict=True))


def _cuts(layout: Layout, steps: Shape) -> set[int]:
    """Return where a loop has to begin, so that an operand has one stride along each loop."""
    axes = sorted((axis, step) for axis, step in zip(layout, steps, strict=True) if axis is not None)
    return {
        outer[0] for (inner, step), (outer, far) in itertools.pairwise(axes) if far != step * (inner[1] // inner[0])
    }


@lru_cache(maxsize=256)  # `fuse` asks whether there is one, and a program then binds it
def row_kernel_of(
    op: Fused, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], unrolls: bool = False
) -> tuple[RowKernel, list[int], list[int]]:
    """Return the row kernel of a fused op that has layouts, the extents of its loops and the strides that it names.

    Args:
        op: what is computed.
        inputs: what it reads.
        outputs: what it writes.
        unrolls: a short innermost axis may be written out; its size is a part of the kernel then.

    Raises:
        UnsupportedError: kernels can't compute it.
    """
    nest = _nest(op)
    unrolled = _unrolled(op, nest) if unrolls else None
    if unrolled is not None:
        with suppress(UnsupportedError):
            return _row_kernel(op, unrolled, inputs, outputs)
    return _row_kernel(op, nest, inputs, outputs)


def _row_kernel(
    op: Fused, nest: _Nest, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[RowKernel, list[int], list[int]]:
    layouts = _operand_layouts(op)
    spec = _kernel(op, nest, inputs, outputs, layouts)
    strides = [nest.strides(layout) for layout in layouts]
    return spec, nest.extents, [strides[k][loop] for k, loop in spec.strides]


def _unrolled(op: Fused, nest: _Nest) -> _Nest | None:
    """Return the loops with a short innermost axis written out, and vectors along the axis before; None if it stays.

    It is written out where it is reduced, or where something is the same along it and not along the axis before:
    one vector takes all elements of a distance or small product then, and many of what these are.
    """
    if op.parts is not None or len(nest.loops) < 2:
        return None
    low, high = nest.loops[-1]
    if low != 1 or high > _MOST_UNROLLED or nest.extents[-2] < _LEAST_VECTORS:
        return None
    if len(op.steps) * high > _MOST_STEPS_OF_ROW * math.prod(nest.extents[:-1]):
        return None
    masks = [nest.mask(intervals(layout)) for layout in _operand_layouts(op)]
    is_reduced = any(nest.mask(axes)[-1] for axes in _reductions(op))
    if not is_reduced and not any(mask[-2] and not mask[-1] for mask in masks):
        return None
    return _nest(op, (1, high))


def row_numbers(spec: RowSpec, extents: Sequence[int], strides: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the numbers that a kernel's code reads, for loops of these extents, these strides and sizes of outputs.

    Args:
        sizes: elements.
    """
    division = division_of(spec, extents, sizes)
    scratch = division.parts * division.kept_bytes + division.gathered_bytes + division.copied_bytes
    return [*extents, *strides, division.parts, division.rows, 0, division.kept_bytes, *sizes, scratch]


def _operand_layouts(op: Fused) -> list[Layout]:
    return [*op.layouts[: op.input_count], *[op.layouts[k] for k in op.results]]


def _reductions(op: Fused) -> list[list[Interval]]:
    """Return the intervals of the space over which each reduction goes."""
    return [_reduced_axes(step, op.layouts[taken[0]]) for step, taken in op.steps if step.kernel_role in REDUCING]


def _nest(op: Fused, unrolled: Interval | None = None) -> _Nest:
    return _Nest(op.size, _operand_layouts(op), _reductions(op), unrolled or op.parts)


def _kernel(
    op: Fused,
    nest: _Nest,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    layouts: Sequence[Layout],
    apart: Collection[int] = (),
) -> RowKernel:
    builder = _Builder()
    rounded = _Halves(builder)
    parts = 1 if nest.parts is None else nest.parts[1] // nest.parts[0]
    most_nodes = _MOST_NODES if parts <= MOST_PARTS else _MOST_NODES_OF_MANY
    specs: list[Any] = list(inputs)
    values: list[_Value] = []
    for k, spec in enumerate(inputs):
        components = parts if nest.covers_parts(layouts[k]) else 1
        loaded = [builder.load(k, component, spec.dtype) for component in range(components)]
        values.append([rounded.loaded(value, spec.dtype) for value in loaded])
    for step, taken in op.steps:
        given = [rounded(values[k], specs[k].dtype) for k in taken]
        values.append(_step(step, builder, nest, given, [op.layouts[k] for k in taken], parts))
        specs.append(step.infer(*[specs[k] for k in taken]))
        if len(builder.nodes) > most_nodes:
            raise UnsupportedError("too long")
    operands: list[Operand] = []
    strides: list[tuple[int, int]] = []
    parted: list[int] = []
    for k, (spec, layout) in enumerate(zip((*inputs, *outputs), layouts, strict=True)):
        is_written = k >= len(inputs)
        assert spec.shape is not None
        rank = len(spec.shape) if is_written else len(spec.shape) or None
        operands.append(Operand(memory_type(spec.dtype), rank, nest.mask(intervals(layout)), is_written, k in apart))
        named = nest.strides(layout)
        if nest.unrolled > 1 and -1 in named:
            parted.append(k)
        strides += [(k, loop) for loop in named if loop != len(nest.loops) - 1 and (loop != -1 or nest.unrolled == 1)]
    stores = [
        (position, component, value.index)
        for position, k in enumerate(op.results)
        for component, value in enumerate(
            _stored(
                rounded.to_store(values[k], specs[k].dtype), nest.covers_parts(layouts[len(inputs) + position]), parts
            )
        )
    ]
    spec = RowKernel(
        tuple(builder.nodes),
        tuple(operands[: len(inputs)]),
        tuple(operands[len(inputs) :]),
        tuple(stores),
        len(nest.loops),
        tuple(strides),
        nest.unrolled,
        tuple(parted),
        tuple(k for k in parted if k < len(inputs) and _is_transposed(operands[k], inputs[k])),
        op.flushes,
    )
    _check(spec)
    return spec


def _is_transposed(operand: Operand, spec: TensorSpec) -> bool:
    """Test whether an operand with the innermost axis is copied before the loops: it is read again and again."""
    is_repeated = operand.steps[-1] and not all(operand.steps)
    return is_repeated and math.prod(int(dim or 0) for dim in spec.shape or ()) <= _MOST_COPIED


class _Halves:
    """Rounds what steps give to half types. Of a sum that is only stored, the store does it: it may be in pieces."""

    def __init__(self, builder: _Builder) -> None:
        self._builder = builder
        self._round = Rounding(builder)

    def loaded(self, x: Expression, dtype: Any) -> Expression:
        """Return an operand of `dtype`, as it is."""
        return self._round.loaded(x, dtype)

    def __call__(self, value: _Value, dtype: Any) -> _Value:
        return [self._round(x, dtype) for x in value] if name_of(dtype) in HALVES else value

    def to_store(self, value: _Value, dtype: Any) -> _Value:
        """Return a value as stores take it."""
        return [x if self._is_sum(x.index) else self._round(x, dtype) for x in value]

    def _is_sum(self, index: int) -> bool:
        node = self._builder.nodes[index]
        if node.kind == "div" and self._builder.nodes[node.arguments[1]].kind == "count":
            node = self._builder.nodes[node.arguments[0]]
        return node.kind == "reduce"


def _stored(value: _Value, has_parts: bool, parts: int) -> _Value:
    return value * parts if has_parts and len(value) == 1 else value


def _check(spec: RowSpec) -> None:
    """Refuse what uses sums before they are complete.

    Raises:
        UnsupportedError: it does.
    """
    analysis = spec.analysis
    for position, node in enumerate(spec.nodes):
        if position not in analysis.finishes and any(k in analysis.gathered for k in node.arguments):
            raise UnsupportedError("a sum over other axes than the row is used")
    stored = [(analysis.finishes.get(node, node), output) for output, _, node in spec.stores]
    for node, output in stored:
        if node in analysis.gathered and (spec.nodes[node].type == "i1" or not _keeps_rest(spec, node, output)):
            raise UnsupportedError("a sum of that form")


def _keeps_rest(spec: RowSpec, reduction: int, output: int) -> bool:
    """Test whether each loop is either reduced or kept; along a row, the value may also be the same.

    It would be added again in each iteration of an outer loop along which it is the same.
    """
    mask, steps = spec.nodes[reduction].value[1], spec.outputs[output].steps
    return all(a != b for a, b in zip(mask[:-1], steps[:-1], strict=True)) and not (mask[-1] and steps[-1])


# --- steps ----------------------------------------------------------------------------------------------------------


def _step(
    op: Any, builder: _Builder, nest: _Nest, given: list[_Value], layouts: Sequence[Layout], parts: int
) -> _Value:
    """Return the value of one step.

    Raises:
        UnsupportedError: it has no expression.
    """
    if op.kernel_role in (KernelRole.RESHAPE, KernelRole.BROADCAST):
        return given[0]
    if isinstance(op, Part):
        return [given[0][op.index]] if len(given[0]) > 1 else given[0]
    if op.kernel_role is KernelRole.JOIN:
        return [value[0] for value in given]
    if op.kernel_role in REDUCING:
        axes = _reduced_axes(op, layouts[0])
        over_parts = any(nest.parts is not None and _within(nest.parts, axis) for axis in axes)
        value = given[0] * parts if over_parts and len(given[0]) == 1 else given[0]
        reduction = _Reduction(builder, nest.mask(axes), parts if over_parts else 1)
        return op.row_expression(_Functions(builder), _Element(value), reduction).components
    count = max(len(value) for value in given)
    return [expression_of(op, builder, [value[k if len(value) > 1 else 0] for value in given]) for k in range(count)]


def _divide(x: Any, y: Any) -> Any:
    return x / y


def _operator(function: Any) -> Callable[..., _Element]:
    return lambda *values: _each(function, *values)


def _reflected(function: Any) -> Callable[..., _Element]:
    def reflected(x: _Element, y: Any) -> _Element:
        return _each(function, y, x)

    return reflected


class _Element:
    """An element of a row: the expressions of its components, one for each part, with the operators of expressions."""

    def __init__(self, components: _Value) -> None:
        self.components = components

    __add__ = _operator(operator.add)
    __sub__ = _operator(operator.sub)
    __mul__ = _operator(operator.mul)
    __truediv__ = _operator(_divide)
    __neg__ = _operator(operator.neg)
    __lt__ = _operator(operator.lt)
    __le__ = _operator(operator.le)
    __gt__ = _operator(operator.gt)
    __ge__ = _operator(operator.ge)
    __radd__ = _reflected(operator.add)
    __rsub__ = _reflected(operator.sub)
    __rmul__ = _reflected(operator.mul)
    __rtruediv__ = _reflected(_divide)


class _Functions:
    """The functions of a builder, over the elements of rows."""

    def __init__(self, builder: _Builder) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Callable[..., _Element]:
        function = getattr(self._builder, name)
        return _operator(function)


def _each(function: Callable[..., Any], *values: Any) -> _Element:
    """Return what a function gives for each component; numbers, and what is alike for all parts, are repeated."""
    given = [value.components if isinstance(value, _Element) else [value] for value in values]
    count = max(map(len, given))
    return _Element([function(*[value[k if len(value) > 1 else 0] for value in given]) for k in range(count)])


class _Reduction:
    """A reduction of values over some loops and maybe the parts."""

    def __init__(self, builder: _Builder, mask: Mask, factor: int) -> None:
        self._builder = builder
        self._mask = mask
        self._factor = factor

    def __call__(self, operation: str, element: _Element) -> _Element:
        value = element.components
        if self._factor > 1:
            whole = value[0]
            for other in value[1:]:
                whole = self._builder.combine(operation, whole, other)
            value = [whole]
        return _Element([self._builder.reduce(operation, component, self._mask) for component in value])

    def mean(self, element: _Element) -> _Element:
        count = self._builder.count(self._mask, self._factor, element.components[0].type)
        return self("add", element) / count
