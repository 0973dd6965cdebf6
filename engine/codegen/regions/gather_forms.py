"""Native forms of operations that pick by position (rows, one-hot vectors, extrema), and of random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...graph.graph import Operation
from ...ops.arrays.gathering import Take
from ...ops.arrays.joining import Unstack
from ...ops.arrays.positions import OneHot
from ...ops.containers.indexed_slices import FrontPositions
from ...ops.internal.fused import HorizontallyFused
from ...ops.math.reduction import ArgMax, ArgMin
from ...ops.random.samplers import RandomUniform
from ..expression.expression import UnsupportedError
from .elementwise import print_strided_copy
from .function import Array, Function, Scalar, Value, strides_of
from .fused import Step, print_fused
from .scalars import literal, size_of, type_of

if TYPE_CHECKING:
    from .forms import Context, Form


def _integers(value: Value) -> Scalar | Array:
    if not isinstance(value, (Scalar, Array)) or value.kind not in ("i32", "i64"):
        raise UnsupportedError("positions of another kind")
    return value


def _at(function: Function, positions: Scalar | Array, k: str) -> str:
    """Position k as an i64."""
    if isinstance(positions, Scalar):
        found = positions.name
    else:
        found = function.load(positions.kind, function.element(positions.kind, positions.pointer, k))
    return found if positions.kind == "i64" else function.let(f"sext i32 {found} to i64")


def _from_the_front(context: Context, position: str, size: int | str, wrap: bool = True) -> str:
    """A position that may count from the end, if that is allowed; the region fails where it is out of bounds."""
    function = context.function
    if wrap:
        negative = function.let(f"icmp slt i64 {position}, 0")
        wrapped = function.let(f"add i64 {position}, {size}")
        position = function.let(f"select i1 {negative}, i64 {wrapped}, i64 {position}")
    context.fail_unless(function.let(f"icmp ult i64 {position}, {size}"))
    return position


def _take(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Rows of a table."""
    op: Any = operation.op
    source, positions = inputs[0], _integers(inputs[1])
    if not isinstance(source, Array) or op.axis % max(len(source.shape), 1) or not source.size:
        raise UnsupportedError("parts along another axis")
    function, width = context.function, math.prod(source.shape[1:])
    count = positions.size if isinstance(positions, Array) else 1
    shape = context.shape_of(operation.outputs[0])
    target = function.allocate(source.kind, shape)
    with function.count(count) as k:
        row = _from_the_front(context, _at(function, positions, k), source.shape[0], op.wrap)
        place = function.element(source.kind, source.pointer, function.offset_of([row], [width]))
        into = function.element(source.kind, target.pointer, function.offset_of([k], [width]))
        function.copy_bytes(into, place, width * size_of(source.kind))
    if not shape:
        return [Scalar(function.load(target.kind, target.pointer), target.kind)]
    return [target]


def _front_positions(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    positions, size = _integers(inputs[0]), _integers(inputs[1])
    function = context.function
    limit = _at(function, size, "0")
    if isinstance(positions, Scalar):
        return [Scalar(_from_the_front(context, _at(function, positions, "0"), limit), "i64")]
    target = function.allocate("i64", positions.shape)
    with function.count(positions.size) as k:
        place = _from_the_front(context, _at(function, positions, k), limit)
        function.store("i64", place, function.element("i64", target.pointer, k))
    return [target]


def _unstack(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op: Any = operation.op
    (source,) = inputs
    if not isinstance(source, Array) or source.shape[op.axis] != op.count:
        raise UnsupportedError("parts of another number")
    function, strides = context.function, strides_of(source.shape, source.shape)
    axis = op.axis % len(source.shape)
    own = [stride for position, stride in enumerate(strides) if position != axis]
    step = math.prod(source.shape[axis + 1 :])
    parts: list[Value] = []
    for number, output in enumerate(operation.outputs):
        shape = context.shape_of(output)
        if not shape:
            place = function.element(source.kind, source.pointer, str(number * step))
            parts.append(Scalar(function.load(source.kind, place), source.kind))
            continue
        target = function.allocate(source.kind, shape)
        if target.size:
            print_strided_copy(function, source, target, own, number * step)
        parts.append(target)
    return parts


def _one_hot(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op: Any = operation.op
    positions = _integers(inputs[0])
    shape, kind = context.shape_of(operation.outputs[0]), type_of(operation.outputs[0].dtype)
    if op.axis % len(shape) != len(shape) - 1:
        raise UnsupportedError("one-hot vectors along another axis")
    function = context.function
    target = function.allocate(kind, shape)
    function.zero(target)
    with function.count(positions.size if isinstance(positions, Array) else 1) as k:
        position = _at(function, positions, k)
        hot, done = function.fresh("hot"), function.fresh("cold")
        function.branch(function.let(f"icmp ult i64 {position}, {op.classes}"), hot, done)
        function.begin(hot)
        offset = function.let(f"add nsw i64 {function.offset_of([k], [op.classes])}, {position}")
        function.store(kind, literal(1, kind), function.element(kind, target.pointer, offset))
        function.jump(done)
        function.begin(done)
    return [target]


def _arg_extremum(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """The place of the first extremum, or of the first NaN: of all, or along the last axis."""
    op: Any = operation.op
    (source,) = inputs
    if not isinstance(source, Array) or not source.size or source.kind == "i1":
        raise UnsupportedError("the place of an extremum of another kind")
    rank = len(source.shape)
    if op.axes is not None and [axis % rank for axis in op.axes] != [rank - 1]:
        raise UnsupportedError("places of extrema along another axis")
    width = source.size if op.axes is None else source.shape[-1]
    function, shape = context.function, context.shape_of(operation.outputs[0])
    target = function.allocate("i32", shape)
    best, place = function.slot(source.kind), function.slot("i64")
    with function.count(source.size // width) as row:
        start = function.element(source.kind, source.pointer, function.offset_of([row], [width]))
        function.line(f"store {source.kind} {function.load(source.kind, start)}, ptr {best}")
        function.line(f"store i64 0, ptr {place}")
        with function.count(width) as k:
            value = function.load(source.kind, function.element(source.kind, start, k))
            is_better = _is_better(function, isinstance(op, ArgMax), source.kind, value, best)
            _replace_if(function, is_better, source.kind, value, best)
            _replace_if(function, is_better, "i64", k, place)
        found = function.let(f"trunc i64 {function.let(f'load i64, ptr {place}')} to i32")
        function.store("i32", found, function.element("i32", target.pointer, row))
    if not shape:
        return [Scalar(function.load("i32", target.pointer), "i32")]
    return [target]


def _is_better(function: Function, is_max: bool, kind: str, value: str, best: str) -> str:
    """Print the test whether a value comes before the best one so far: it is further out, or the first NaN."""
    before = function.let(f"load {kind}, ptr {best}")
    if kind not in ("float", "double"):
        return function.let(f"icmp {'sgt' if is_max else 'slt'} {kind} {value}, {before}")
    further = function.let(f"fcmp {'ugt' if is_max else 'ult'} {kind} {value}, {before}")  # true for a NaN
    is_number = function.let(f"fcmp ord {kind} {before}, {before}")
    return function.let(f"and i1 {further}, {is_number}")


def _replace_if(function: Function, condition: str, kind: str, value: str, slot: str) -> None:
    before = function.let(f"load {kind}, ptr {slot}")
    function.line(f"store {kind} {function.let(f'select i1 {condition}, {kind} {value}, {kind} {before}')}, ptr {slot}")


def _horizontally_fused(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Each member by itself."""
    op: Any = operation.op
    made: list[Value] = []
    tensors, values = op.members(operation.inputs), op.members(inputs)
    for member, (taken, given) in enumerate(zip(tensors, values, strict=True)):
        each = len(op.op.results)
        outputs = operation.outputs[member * each : (member + 1) * each]
        stand_in: Any = _Member(op.op, tuple(taken), outputs)
        made += print_fused(context, stand_in, given)
    return made


class _Member(Step):
    """A member of operations that are fused together."""

    def __init__(self, op: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        super().__init__(op, outputs)
        object.__setattr__(self, "inputs", inputs)


# --- random numbers -------------------------------------------------------------------------------------------------

# Philox4x64-10 (see `ops.random`): a block of the counter 1, 2, 3, ... gives four words.
_ROUND_KEYS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_ROUNDS = 10


def _philox() -> str:
    """The text of a function that fills `blocks` times four words."""
    lines = [
        "define internal void @HELPER(ptr %key, ptr %words, i64 %blocks) noinline {",
        "start:",
        "  %k0 = load i64, ptr %key",
        "  %at1 = getelementptr i64, ptr %key, i64 1",
        "  %k1 = load i64, ptr %at1",
        "  br label %head",
        "head:",
        "  %i = phi i64 [0, %start], [%c0_0, %head]",
        "  %c0_0 = add i64 %i, 1",
    ]
    words = ["%c0_0", "0", "0", "0"]
    for number in range(_ROUNDS):
        keys = [f"%k{k}_{number}" for k in range(2)]
        for k in range(2):
            lines.append(f"  {keys[k]} = add i64 %k{k}, {_signed(_ROUND_KEYS[k] * number)}")
            lines += _product(f"{k}_{number}", words[2 * k], _MULTIPLIERS[k])
        lines.append(f"  %x0_{number} = xor i64 %high1_{number}, {words[1]}")
        lines.append(f"  %y0_{number} = xor i64 %x0_{number}, {keys[0]}")
        lines.append(f"  %x1_{number} = xor i64 %high0_{number}, {words[3]}")
        lines.append(f"  %y1_{number} = xor i64 %x1_{number}, {keys[1]}")
        words = [f"%y0_{number}", f"%low1_{number}", f"%y1_{number}", f"%low0_{number}"]
    lines.append("  %first = shl i64 %i, 2")
    for k, word in enumerate(words):
        lines.append(f"  %n{k} = add i64 %first, {k}")
        lines.append(f"  %p{k} = getelementptr i64, ptr %words, i64 %n{k}")
        lines.append(f"  store i64 {word}, ptr %p{k}")
    lines += ["  %more = icmp ult i64 %c0_0, %blocks", "  br i1 %more, label %head, label %done"]
    return "\n".join([*lines, "done:", "  ret void", "}"])


def _signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _product(name: str, word: str, multiplier: int) -> list[str]:
    """The upper and the lower half of a product."""
    return [
        f"  %wide{name} = zext i64 {word} to i128",
        f"  %product{name} = mul i128 %wide{name}, {multiplier}",
        f"  %low{name} = trunc i128 %product{name} to i64",
        f"  %upper{name} = lshr i128 %product{name}, 64",
        f"  %high{name} = trunc i128 %upper{name} to i64",
    ]


def _uniform(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op: Any = operation.op
    shape, kind = context.shape_of(operation.outputs[0]), type_of(operation.outputs[0].dtype)
    key, function = inputs[0], context.function
    if (op.low, op.high) != (0.0, 1.0) or kind not in ("float", "double") or not isinstance(key, Array):
        raise UnsupportedError("random numbers in another range")
    target = function.allocate(kind, shape)
    halves = 2 if kind == "float" else 1
    blocks = -(-target.size // (4 * halves))
    if not blocks:
        return [target]
    words = function.allocate("i64", (4 * blocks,))
    function.hold(words)
    function.line(f"call void {function.helper(_philox())}(ptr {key.pointer}, ptr {words.pointer}, i64 {blocks})")
    integer, shift, scale = ("i32", 8, 2.0**-24) if kind == "float" else ("i64", 11, 2.0**-53)
    with function.count(target.size) as k:
        word = function.load(integer, function.element(integer, words.pointer, k))
        number = function.let(f"uitofp {integer} {function.let(f'lshr {integer} {word}, {shift}')} to {kind}")
        number = function.let(f"fmul {kind} {number}, {literal(scale, kind)}")
        function.store(kind, number, function.element(kind, target.pointer, k))
    function.release(words)
    if not shape:
        return [Scalar(function.load(kind, target.pointer), kind)]
    return [target]


FORMS: dict[type, Form] = {
    ArgMax: _arg_extremum,
    ArgMin: _arg_extremum,
    FrontPositions: _front_positions,
    HorizontallyFused: _horizontally_fused,
    OneHot: _one_hot,
    RandomUniform: _uniform,
    Take: _take,
    Unstack: _unstack,
}
