"""Native forms of elementwise operations, fused ones among them, and of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

from ...graph.op import Op
from ..expression.expression import Expression, UnsupportedError
from ..expression.llvm import instruction
from ..expression.llvm import literal as constant
from ..llvm.builder import IN_LOOP
from .function import Array, Elements, Function, Scalar, Value, collapsed, strides_of
from .scalars import FLOATS, NativeBuilder, expression_of, literal

Steps = Sequence[tuple[Op, tuple[int, ...]]]


def print_elementwise(
    function: Function,
    steps: Steps,
    results: Sequence[int],
    inputs: Sequence[Scalar | Array],
    shapes: Sequence[tuple[int, ...]],
    kinds: Sequence[str],
    targets: Sequence[Array | None],
) -> list[Value]:
    """Print elementwise steps as one loop nest, or without a loop where all are scalars.

    Args:
        steps: each an op and the numbers of the values that it takes: inputs first, then the steps' own.
        results: the numbers of the values that are wanted.
        inputs: what is read.
        shapes: of the results.
        kinds: the element types of the results.
        targets: where results are wanted, if that matters.
    """
    read = tuple([value.kind for value in inputs])
    try:
        builder, values = _known_expressions(tuple(steps), read)
    except TypeError:  # an op that can't be hashed
        builder, values = _expressions(steps, read)
    wanted = [values[k] for k in results]
    for expression, kind in zip(wanted, kinds, strict=True):
        if expression.type != kind:
            raise UnsupportedError(f"a result of type {expression.type} for {kind}")
    space = max(shapes, key=len)
    if any(shape not in (space, ()) for shape in shapes):
        raise UnsupportedError("results of several shapes")
    if space == ():
        registers = _print_nodes(function, builder, [_scalar(value) for value in inputs])
        return [Scalar(registers[e.index], e.type) for e in wanted]
    outputs = [target or function.allocate(kind, space) for kind, target in zip(kinds, targets, strict=True)]
    _print_nest(function, builder, wanted, inputs, outputs, space)
    return list(outputs)


def _expressions(steps: Steps, kinds: Sequence[str]) -> tuple[NativeBuilder, list[Expression]]:
    """Return the expressions of the inputs and of each step, and the builder that holds their nodes."""
    builder = NativeBuilder()
    values = [builder.node("input", kind, value=position) for position, kind in enumerate(kinds)]
    for op, arguments in steps:
        values.append(expression_of(op, builder, [values[k] for k in arguments]))
    return builder, values


_known_expressions = lru_cache(maxsize=1024)(_expressions)  # long chains repeat a few ops


def print_scalars(function: Function, op: Op, inputs: Sequence[Scalar], kind: str) -> Scalar:
    """Print an elementwise op on scalars as `print_elementwise` does, but fast enough for chains of thousands."""
    kinds = tuple([value.kind for value in inputs])
    try:
        nodes, result, found = _known_forms(op, kinds)
    except TypeError:  # an op that can't be hashed
        nodes, result, found = _forms(op, kinds)
    if found != kind:
        raise UnsupportedError(f"a result of type {found} for {kind}")
    registers: list[str] = []
    for text, arguments, position in nodes:
        if arguments is None:
            registers.append(text if position is None else inputs[position].name)
        else:
            registers.append(function.let(text.format(*[registers[k] for k in arguments])))
    return Scalar(registers[result], kind)


_Form = tuple[str, tuple[int, ...] | None, int | None]  # a text, the nodes that it takes, the number of an input


def _forms(op: Op, kinds: tuple[str, ...]) -> tuple[list[_Form], int, str]:
    """Return each node's printed form, with places for registers; the number of the result's node, and its type."""
    builder, values = _expressions([(op, tuple(range(len(kinds))))], kinds)
    forms: list[_Form] = []
    for node in builder.nodes:
        if node.kind == "constant":
            forms.append((constant(node), None, None))
        elif node.kind == "input":
            forms.append(("", None, int(node.value)))
        else:
            places = [f"{{{number}}}" for number in range(len(node.arguments))]
            types = [builder.nodes[k].type for k in node.arguments]
            forms.append((instruction(node, places, types), tuple(node.arguments), None))
    return forms, values[-1].index, values[-1].type


_known_forms = lru_cache(maxsize=1024)(_forms)


def _scalar(value: Scalar | Array) -> str:
    if isinstance(value, Array):
        raise UnsupportedError("an array for a scalar")
    return value.name


def _print_nest(
    function: Function,
    builder: NativeBuilder,
    wanted: Sequence[Expression],
    inputs: Sequence[Scalar | Array],
    outputs: Sequence[Array],
    space: tuple[int, ...],
) -> None:
    arrays = [value for value in (*inputs, *outputs) if isinstance(value, Array)]
    dims, strides = collapsed(space, [strides_of(value.shape, space) for value in arrays])
    stride_of = {id(value): own for value, own in zip(arrays, strides, strict=True)}
    with function.counters(dims, True) as counters:

        def address(value: Array) -> str:
            return function.element(value.kind, value.pointer, function.offset_of(counters, stride_of[id(value)]))

        loaded = [_load(function, value, address) for value in inputs]
        registers = _print_nodes(function, builder, loaded)
        for output, expression in zip(outputs, wanted, strict=True):
            function.store(output.kind, registers[expression.index], address(output), metadata=IN_LOOP)


def _load(function: Function, value: Scalar | Array, address: Callable[[Array], str]) -> str:
    if isinstance(value, Scalar):
        return value.name
    pointer = address(value)
    return function.load(value.kind, pointer, metadata=IN_LOOP)


def _print_nodes(function: Function, builder: NativeBuilder, inputs: Sequence[str]) -> list[str]:
    """Print the instructions of an expression, and note what holds the value of each node."""
    registers: list[str] = []
    for node in builder.nodes:
        if node.kind == "constant":
            registers.append(constant(node))
        elif node.kind == "input":
            registers.append(inputs[int(node.value)])
        else:
            types = [builder.nodes[k].type for k in node.arguments]
            registers.append(function.let(instruction(node, [registers[k] for k in node.arguments], types)))
    return registers


# --- copies ---------------------------------------------------------------------------------------------------------


def print_strided_copy(
    function: Function, source: Value, target: Array, strides: Sequence[int], start: int = 0, into: Sequence[int] = ()
) -> None:
    """Fill `target` (or, with strides `into`, a part of it) from a source that is stepped through by `strides`."""
    space = target.shape
    own = list(into) or strides_of(space, space)
    dims, patterns = collapsed(space, [list(strides), own])
    with function.counters(dims, True) as counters:
        if isinstance(source, Array):
            offset = function.offset_of(counters, patterns[0])
            if start:
                offset = function.let(f"add nsw i64 {offset}, {start}")
            value = function.load(source.kind, function.element(source.kind, source.pointer, offset), metadata=IN_LOOP)
        elif isinstance(source, Scalar):
            value = source.name
        else:
            raise UnsupportedError("a copy of an array of elements")
        place = function.element(target.kind, target.pointer, function.offset_of(counters, patterns[1]))
        function.store(target.kind, value, place, metadata=IN_LOOP)


# --- reductions -----------------------------------------------------------------------------------------------------

_Space = tuple[Sequence[int], Sequence[int], Sequence[int]]  # sizes of axes, steps in the source and in the result
_FIRST = {"sum": 0, "mean": 0, "prod": 1, "all": 1, "any": 0}


def print_reduction(
    function: Function, kind: str, source: Scalar | Array, axes: Sequence[int], shape: tuple[int, ...]
) -> Value:
    """Print the sum, product, mean, extremum or logic of an array over `axes`, as an array of `shape`.

    Args:
        kind: "sum", "mean", "prod", "max", "min", "all" or "any".
    """
    if isinstance(source, Scalar):
        return source
    if kind in ("all", "any") and source.kind != "i1":
        raise UnsupportedError(f"{kind} of {source.kind}")
    if source.kind == "i1" and kind not in ("all", "any"):
        raise UnsupportedError(f"{kind} of bools")
    if source.size == 0 and kind not in ("sum", "prod", "all", "any"):
        raise UnsupportedError(f"{kind} of nothing")
    kept = tuple(1 if axis in axes else dim for axis, dim in enumerate(source.shape))
    result = function.allocate(source.kind, kept)
    first = _identity(kind, source)
    with function.count(result.size, True) as index:
        function.store(source.kind, first, function.element(source.kind, result.pointer, index), metadata=IN_LOOP)
    if source.size:
        _accumulate(function, kind, source, result)
    if kind == "mean":
        count = source.size // result.size
        _print_division(function, result, count)
    if shape == ():
        return Scalar(function.load(source.kind, result.pointer), source.kind)
    return Array(result.pointer, result.kind, shape, result.buffers)


def print_sum_of_rows(function: Function, source: Elements, shape: tuple[int, ...]) -> Value:
    """Print the sum over all rows, down to `shape`, from which a row may be broadcast."""
    if source.kind == "i1" or len(shape) > len(source.shape) or 0 in source.shape:
        raise UnsupportedError("a sum of another kind")
    kept = (1,) * (len(source.shape) - len(shape)) + shape
    if any(dim not in (1, own) for dim, own in zip(kept, source.shape, strict=True)):
        raise UnsupportedError("a sum to a shape that does not fit")
    result = function.allocate_zeros(source.kind, kept)
    with function.count(source.count) as index:
        offset = function.offset_of([index], [math.prod(source.shape)])
        pointer = function.element(source.kind, source.pointer, offset)
        _accumulate(function, "sum", Array(pointer, source.kind, source.shape), result)
    if shape == ():
        return Scalar(function.load(source.kind, result.pointer), source.kind)
    return Array(result.pointer, result.kind, shape, result.buffers)


def _accumulate(function: Function, kind: str, source: Array, result: Array) -> None:
    """Reduce `source` into `result`, whose axes are as long or 1."""
    own = strides_of(source.shape, source.shape)
    into = strides_of(result.shape, source.shape)
    dims, (reads, writes) = collapsed(source.shape, [own, into])
    print_reduced = _print_inner_reduction if dims and writes[-1] == 0 else _print_outer_reduction
    print_reduced(function, kind, source, result, (dims, reads, writes))


def _identity(kind: str, source: Array) -> str:
    if kind in _FIRST:
        return literal(_FIRST[kind], source.kind)
    if source.kind in FLOATS:
        return literal(float("-inf" if kind == "max" else "inf"), source.kind)
    bits = 31 if source.kind == "i32" else 63
    return str(-(2**bits) if kind == "max" else 2**bits - 1)


def _combine(function: Function, kind: str, element: str, a: str, b: str, loose: bool) -> str:
    """Print one step of a reduction."""
    floating = element in FLOATS
    if kind in ("sum", "mean", "prod"):
        name = "mul" if kind == "prod" else "add"
        return function.let(f"{f'f{name}' + (' reassoc' if loose else '') if floating else name} {element} {a}, {b}")
    if kind in ("all", "any"):
        return function.let(f"{'and' if kind == 'all' else 'or'} i1 {a}, {b}")
    if floating:
        suffix = "f32" if element == "float" else "f64"
        name = "maximum" if kind == "max" else "minimum"
        return function.let(f"call {element} @llvm.{name}.{suffix}({element} {a}, {element} {b})")
    better = function.let(f"icmp {'sgt' if kind == 'max' else 'slt'} {element} {a}, {b}")
    return function.let(f"select i1 {better}, {element} {a}, {element} {b}")


def _print_outer_reduction(function: Function, kind: str, source: Array, result: Array, space: _Space) -> None:
    """Print a reduction that keeps the last axis: rows are added to rows."""
    dims, reads, writes = space
    with function.counters(dims, True) as counters:
        place = function.element(result.kind, result.pointer, function.offset_of(counters, writes))
        before = function.load(result.kind, place, metadata=IN_LOOP)
        at = function.element(source.kind, source.pointer, function.offset_of(counters, reads))
        value = _combine(function, kind, source.kind, before, function.load(source.kind, at, metadata=IN_LOOP), False)
        function.store(source.kind, value, place, metadata=IN_LOOP)


def _print_inner_reduction(function: Function, kind: str, source: Array, result: Array, space: _Space) -> None:
    """Print a reduction of the last axis: in a register, whose sums LLVM may take in lanes."""
    element, (dims, reads, writes) = source.kind, space
    total = function.slot(element)
    with function.counters(dims[:-1]) as counters:
        function.line(f"store {element} {_identity(kind, source)}, ptr {total}")
        with function.count(dims[-1]) as index:
            at = function.element(element, source.pointer, function.offset_of([*counters, index], reads))
            before = function.let(f"load {element}, ptr {total}")
            value = _combine(function, kind, element, before, function.load(element, at), True)
            function.line(f"store {element} {value}, ptr {total}")
        place = function.element(element, result.pointer, function.offset_of(counters, writes[:-1]))
        before = function.load(element, place)
        last = function.let(f"load {element}, ptr {total}")
        function.store(element, _combine(function, kind, element, before, last, False), place)


def _print_division(function: Function, result: Array, count: int) -> None:
    with function.count(result.size, True) as index:
        place = function.element(result.kind, result.pointer, index)
        before = function.load(result.kind, place, metadata=IN_LOOP)
        value = function.let(f"fdiv {result.kind} {before}, {literal(count, result.kind)}")
        function.store(result.kind, value, place, metadata=IN_LOOP)
