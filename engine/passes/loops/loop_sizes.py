"""An analysis of sizes over all iterations of loops, and over all elements of TensorArrays.

It extends the analysis of equal dimensions (`passes/framework/sizes.py`), which treats each loop variable as new. A
loop variable begins with the sizes of its initial value. Each round infers the sizes of the results of the body, and
joins them with those of the variable: what differs, or was made inside, is not known. The rounds end when nothing
changes. So a state of shape (batch, units) has the size of the batch of the inputs in each iteration, whatever
that is at run time.

The sizes of an array are the number of its elements, and the sizes that all of these have; None where they may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from ...common.identity import is_among, is_same
from ...control_flow.cond import Branch
from ...control_flow.frames import History, Saved
from ...control_flow.while_loop import While
from ...graph.axis_maps import Size
from ...graph.graph import Graph, Operation
from ...graph.region import Region
from ...graph.spec import ArraySpec, Spec, TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.shaping import DimOf
from ...ops.base import Constant
from ...ops.containers import tensor_arrays as arrays
from ...ops.math.comparison import Less
from ...ops.math.elementwise import Add
from ...ops.run_time_shapes import ShapeOf
from ..framework.patterns import captured, number_of, outermost
from ..framework.sizes import KnownSizes, Sizes

_UNWRITTEN = ("unwritten",)  # a size of elements of which there is none yet: it agrees with any other

_Open = tuple[Size | None, ...]  # None: not known, and elements of an array may differ


class LoopSizes(KnownSizes):
    """The sizes of tensors and arrays of a graph and of its loops and branches, inferred when they are asked for.

    >>> import anabranch as ab
    >>> from anabranch.engine.passes.loops.loop_sizes import LoopSizes
    >>> with ab.Graph().as_default():
    ...     x = ab.placeholder((None, 2), "float32")
    ...     y = ab.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, ab.ops.tanh(y) * x), (0, x))[1]
    >>> LoopSizes().of(y) == LoopSizes().of(x)
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self._arrays: dict[Symbol, _Open | None] = {}
        self._loops: set[Operation] = set()

    def array(self, tensor: Symbol) -> _Open | None:
        """Return the sizes of an array: the number of elements, and their sizes; None if a rank is not known."""
        self.of(tensor)
        return self._arrays.get(tensor)

    def is_even(self, tensor: Symbol, region: Region) -> bool:
        """Test whether a tensor or array of a loop's body is known to have the same sizes in each iteration.

        The loop, and those around it, must have been looked at: see `look_at`.
        """
        sizes = self.array(tensor) if isinstance(tensor.spec, ArraySpec) else self.of(tensor)
        return sizes is not None and None not in _from_outside(sizes, region)

    def look_at(self, loop: Operation) -> None:
        """Infer the sizes of a loop's variables, before those of what is inside are asked for."""
        for tensor in loop.inputs:
            self.of(tensor)
        if loop not in self._loops:
            self._settle(loop)

    # --- how sizes are found --------------------------------------------------------------------------------

    def named(self, number: Symbol) -> Size:
        number, known = outermost(number), number_of(number)
        if known is not None:
            return known
        if isinstance(number.operation.op, DimOf):
            self.of(number.operation.inputs[0])
        return super().named(number)

    def _note(self, tensor: Symbol) -> None:
        operation, outer = tensor.operation, captured(tensor)
        rule = _RULES.get(type(operation.op))
        if outer is not None and isinstance(tensor.spec, ArraySpec):
            self._put(tensor, self._arrays.get(outer))
        elif isinstance(operation.op, While):
            self._settle(operation)
        elif isinstance(operation.op, Branch):
            self._choose(operation)
        elif rule is not None and outer is None:
            self._put(tensor, rule(self, operation))
        elif operation.op.shape_input is not None:
            self._put(tensor, self.shaped(operation.inputs[operation.op.shape_input]))
        else:
            super()._note(tensor)

    def shaped(self, shape: Symbol) -> Sizes | None:
        """Return the sizes that a shape vector holds, if it is that of a value; else None.

        A gradient takes the shape that a value had in the iteration from which it was saved.
        """
        shape = outermost(shape)
        operation = shape.operation
        if isinstance(operation.op, ShapeOf):
            return self.of(operation.inputs[0])
        recorded = outermost(operation.inputs[0]).operation if isinstance(operation.op, arrays.ArrayRead) else operation
        if not isinstance(recorded.op, (History, Saved)):
            return None
        node, inner = outermost(recorded.inputs[0]).operation, recorded.op.inner
        self.of(node.outputs[-1])
        region = inner.operation.graph
        found = self.shaped(inner)
        known = _from_outside(found, region) if isinstance(region, Region) else found
        return None if found is None or known is None or None in known else found

    def sizes_of(self, tensor: Symbol) -> _Open | None:
        """Return the sizes of a tensor or array."""
        return self.array(tensor) if isinstance(tensor.spec, ArraySpec) else self.of(tensor)

    def _put(self, tensor: Symbol, sizes: _Open | None) -> None:
        """Take note of sizes; those of a tensor that are not known get names."""
        dims = dims_of(tensor.spec)
        if dims is None or (sizes is not None and len(sizes) != len(dims)):
            sizes = None
        if dims is not None:
            sizes = tuple(
                dim if dim is not None else size for dim, size in zip(dims, sizes or (None,) * len(dims), strict=True)
            )
        if isinstance(tensor.spec, ArraySpec):
            self._arrays[tensor] = sizes
            self._sizes[tensor] = None
            return
        named = None if sizes is None else [(tensor, k) if size is None else size for k, size in enumerate(sizes)]
        self._sizes[tensor] = None if named is None else tuple(named)

    # --- loops and branches ---------------------------------------------------------------------------------

    def _settle(self, loop: Operation) -> None:
        op = loop.op
        assert isinstance(op, While)
        found = [self.sizes_of(tensor) for tensor in loop.inputs[: op.carried]]
        while True:
            for region in op.regions:
                self._forget(region)
            for parameter, sizes in zip(op.body.parameters, found, strict=True):
                self._put(parameter, sizes)
            results = [self.sizes_of(result) for result in op.body.results]
            after = [_joined(old, _from_outside(new, op.body)) for old, new in zip(found, results, strict=True)]
            if is_same(tuple(after), tuple(found)):
                break
            found = after
        self._loops.add(loop)
        for output, sizes in zip(loop.outputs, [*found, None], strict=True):
            self._put(output, sizes)

    def _choose(self, branch: Operation) -> None:
        """Infer the sizes of a branch's results: those that all of its regions give."""
        columns: list[list[_Open | None]] = []
        for region in branch.op.regions:
            columns.append([_from_outside(self.sizes_of(result), region) for result in region.results])
        for output, (first, *others) in zip(branch.outputs[:-1], zip(*columns, strict=True), strict=True):
            for other in others:
                first = _joined(first, other)
            self._put(output, first)
        self._put(branch.outputs[-1], None)

    def _forget(self, region: Region) -> None:
        for operation in region.operations:
            self._loops.discard(operation)
            for output in operation.outputs:
                self._sizes.pop(output, None)
                self._arrays.pop(output, None)
            for inner in operation.op.regions:
                self._forget(inner)

    def trips(self, loop: Operation) -> Size:
        """Return the number of iterations of a loop: the limit of one that counts from 0, else a name of its own."""
        op = loop.op
        assert isinstance(op, While)
        limit = _limit(op, loop)
        return (loop.outputs[-1],) if limit is None else self.named(limit)


def _limit(op: While, loop: Operation) -> Symbol | None:
    test = op.condition.results[0].operation
    k = next((k for k, each in enumerate(op.condition.parameters) if each is test.inputs[0]), None)
    if k is None or not isinstance(test.op, Less):
        return None
    counter, step, start = op.body.parameters[k], op.body.results[k].operation, outermost(loop.inputs[k])
    one = next((each for each in step.inputs if each is not counter), None)
    counts = isinstance(step.op, Add) and is_among(counter, step.inputs) and one is not None and number_of(one) == 1
    limit = outermost(test.inputs[1])
    inside = limit.operation.graph is op.condition and not isinstance(limit.operation.op, Constant)
    return limit if counts and number_of(start) == 0 and not inside else None


def dims_of(spec: Spec) -> tuple[int | None, ...] | None:
    """Return the dimensions of a tensor; of an array the number of its elements, and their dimensions."""
    if isinstance(spec, ArraySpec):
        inner = dims_of(spec.element)
        return None if inner is None else (spec.size, *inner)
    return spec.shape if isinstance(spec, TensorSpec) else None


def _joined(a: _Open | None, b: _Open | None) -> _Open | None:
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(_common(x, y) for x, y in zip(a, b, strict=True))


def _common(a: Size | None, b: Size | None) -> Size | None:
    if a is _UNWRITTEN or b is _UNWRITTEN:
        return b if a is _UNWRITTEN else a
    return a if is_same(a, b) else None


def _from_outside(sizes: _Open | None, region: Region) -> _Open:
    """Return sizes without those that are made inside of a region."""
    return tuple(size if size is None or _is_outside(size, region) else None for size in sizes or ())


def _is_outside(size: Size, region: Region) -> bool:
    return isinstance(size, int) or not any(_is_in(symbol.operation.graph, region) for symbol in _roots(size))


def _roots(name: Any) -> Iterable[Symbol]:
    if isinstance(name, Symbol):
        yield name
    elif isinstance(name, (tuple, frozenset)):
        for part in cast("Iterable[Any]", name):
            yield from _roots(part)


def _is_in(graph: Graph, region: Region) -> bool:
    while isinstance(graph, Region):
        if graph is region:
            return True
        graph = graph.parent
    return False


# --- arrays ---------------------------------------------------------------------------------------------------------

_Rule = Callable[[LoopSizes, Operation], "_Open | None"]


def _of_nothing(sizes: LoopSizes, node: Operation) -> _Open | None:
    dims = dims_of(node.outputs[0].spec)
    count = sizes.named(node.inputs[0]) if node.inputs else None
    return None if dims is None else (count, *[_UNWRITTEN] * (len(dims) - 1))


def _of_first(sizes: LoopSizes, node: Operation) -> _Open | None:
    """Return the sizes of the first input: an array has those of its elements, stacked."""
    return sizes.sizes_of(node.inputs[0])


def _element(sizes: LoopSizes, node: Operation) -> _Open | None:
    found = sizes.array(node.inputs[0])
    return None if found is None else found[1:]


def _element_or_empty(sizes: LoopSizes, node: Operation) -> _Open | None:
    found = sizes.array(node.inputs[0])
    return None if found is None else (None, *found[2:])


def _shaped_by(place: int) -> _Rule:
    return lambda sizes, node: sizes.shaped(node.inputs[place])


def _with_element(sizes: LoopSizes, node: Operation) -> _Open | None:
    keeps_count = isinstance(node.op, arrays.ArrayWrite) and not node.op.dynamic_size
    return _with(sizes.array(node.inputs[0]), sizes.sizes_of(node.inputs[2]), keeps_count)


def _with_rows(sizes: LoopSizes, node: Operation) -> _Open | None:
    rows = sizes.of(node.inputs[2])
    keeps_count = isinstance(node.op, arrays.ArrayScatter)
    return _with(sizes.array(node.inputs[0]), None if rows is None else rows[1:], keeps_count)


def _summed(sizes: LoopSizes, node: Operation) -> _Open | None:
    return _joined(sizes.array(node.inputs[0]), sizes.array(node.inputs[1]))


def _of_all_iterations(sizes: LoopSizes, node: Operation) -> _Open | None:
    loop = outermost(node.inputs[0]).operation
    if not isinstance(loop.op, While) or not isinstance(node.op, History):
        return None
    inner = sizes.sizes_of(node.op.inner)
    return None if inner is None else (sizes.trips(loop), *_from_outside(inner, loop.op.body))


def _of_one_branch(sizes: LoopSizes, node: Operation) -> _Open | None:
    return None  # of a branch that was not taken there is no value of these sizes


def _with(array: _Open | None, element: Sequence[Size | None] | None, keeps_count: bool) -> _Open | None:
    if array is None or element is None:
        return None
    return _joined((array[0] if keeps_count else None, *array[1:]), (array[0], *element))


_RULES: dict[type, _Rule] = {
    arrays.ArrayAddAt: _with_element,
    arrays.ArrayClear: _of_first,
    arrays.ArrayClearMany: _of_first,
    arrays.ArrayEmpty: _of_nothing,
    arrays.ArrayGatherLike: _shaped_by(2),
    arrays.ArrayNew: _of_nothing,
    arrays.ArrayRead: _element,
    arrays.ArrayReadOrEmpty: _element_or_empty,
    arrays.ArrayReadOrZeros: _shaped_by(2),
    arrays.ArrayScatter: _with_rows,
    arrays.ArrayScatterAdd: _with_rows,
    arrays.ArrayScatterGrad: _shaped_by(2),
    arrays.ArrayStack: _of_first,
    arrays.ArrayStackLike: _shaped_by(1),
    arrays.ArraySum: _summed,
    arrays.ArrayUnstack: _of_first,
    arrays.ArrayWrite: _with_element,
    History: _of_all_iterations,
    Saved: _of_one_branch,
}

__all__ = ["LoopSizes", "dims_of"]
