"""Native forms of Fourier transforms of short axes, and of the complex numbers that they take and give.

A loop that filters frames of a signal calls NumPy for each transform, and for its parts, otherwise. Here the values of
a complex tensor are two arrays, of real and of imaginary parts, as users give them. Axes of a power of two are
transformed in place, in the order of bits turned around; other short ones by their sums.

Source: J. Cooley and J. Tukey, "An algorithm for the machine calculation of complex Fourier series" (1965).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.base import Cast
from ...ops.math.complex_numbers import Conjugate, FromParts, ImaginaryPart, RealPart, part_type
from ...ops.math.elementwise import Add, Multiply, Negative, Subtract
from ...ops.signal.fourier import (
    FourierTransform,
    InverseRealTransform,
    InverseRealTransformBack,
    RealTransform,
    RealTransformBack,
)
from ..expression.expression import UnsupportedError
from ..llvm.builder import Size
from ..regions.arrays import as_array
from ..regions.elementwise import print_elementwise
from ..regions.function import Array, Complex, Form, FormContext, Function, Value, shape_of
from ..regions.scalars import FLOATS, literal, type_of

_MOST_HALVED = 1024  # elements of an axis of a power of two
_MOST_SUMMED = 64  # of another one
_MOST_ELEMENTS = 1 << 12  # of all that is transformed in halves: NumPy is as fast with more
_MOST_PRODUCTS = 1 << 13  # of elements and powers of a root

Number = tuple[str, str]  # the registers of both parts
Load = Callable[[str], Number]
Store = Callable[[str, Number], None]


def _complex(value: Value) -> Complex:
    if not isinstance(value, Complex):
        raise UnsupportedError("complex numbers from elsewhere")
    return value


def _allocated(context: FormContext, operation: Operation) -> Complex:
    """Return new arrays for the complex result of an operation."""
    (output,) = operation.outputs
    kind, shape = type_of(part_type(output.dtype)), shape_of(output)
    return Complex(context.function.allocate(kind, shape), context.function.allocate(kind, shape))


# --- transforms -----------------------------------------------------------------------------------------------------


def _fourier_transform(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, x = op_of(operation, FourierTransform), context.function, _complex(inputs[0])
    target = _allocated(context, operation)
    source, shape = x, target.real.shape
    for axis in range(len(shape) - op.rank, len(shape)):
        _check_size(shape[axis], target.real.size)
        inner = math.prod(shape[axis + 1 :])
        with function.count(math.prod(shape[:axis])) as outer, function.count(inner) as column:
            start = function.offset_of([outer, column], [shape[axis] * inner, 1])

            def place(k: str, start: str = start, inner: int = inner) -> str:
                return function.offset_of([start, k], [1, inner])

            share = 1 / shape[axis] if op.inverse else 1.0
            _transform(
                context,
                (source.kind, shape[axis], op.inverse),
                lambda k, source=source, place=place: _load(function, source, place(k)),
                lambda k, number, place=place, share=share: _store(
                    function, target, place(k), _times(function, target.kind, number, share)
                ),
                shape[axis],
            )
        source = target
    return [target]


def _real_transform(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, x = op_of(operation, RealTransform), context.function, as_array(inputs[0])
    target = _allocated(context, operation)
    _by_rows(
        context,
        (x.kind, x.shape[-1] if op.length is None else op.length, False),
        (x.size // max(1, x.shape[-1]), x.shape[-1], target.real.shape[-1]),
        lambda place: (function.load(x.kind, x.pointer, place), literal(0, x.kind)),
        lambda place, number, _: _store(function, target, place, number),
    )
    return [target]


def _real_transform_back(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the real part of the transform of what is given, padded with zeros."""
    op, function, dy = op_of(operation, RealTransformBack), context.function, _complex(inputs[0])
    target = function.allocate_zeros(dy.kind, shape_of(operation.outputs[0]))
    size, count = target.shape[-1], dy.real.shape[-1]
    length = size if op.length is None else op.length
    _by_rows(
        context,
        (dy.kind, length, False),
        (dy.real.size // max(1, count), count, min(size, length)),
        lambda place: _load(function, dy, place),
        lambda place, number, _: function.store(dy.kind, number[0], target.pointer, place),
        size,
    )
    return [target]


def _inverse_real_transform(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the real part of the inverse transform of half of the values, and the conjugates of them as the others."""
    function, x = context.function, _complex(inputs[0])
    target = function.allocate(x.kind, shape_of(operation.outputs[0]))
    length, given = target.shape[-1], x.real.shape[-1]
    zero, share = literal(0, x.kind), literal(1 / max(1, length), x.kind)
    row = function.slot()

    def load(k: str) -> Number:
        turned = str(function.sub(length, k))
        is_behind = function.compare("sgt", k, length // 2)
        place = str(function.choose(is_behind, turned, k))
        is_there = function.compare("slt", place, given)
        start = function.let(f"mul i64 {function.load('i64', row)}, {given}")
        real, imag = _load(function, x, str(function.add(start, function.choose(is_there, place, 0))))
        imag = function.choose(is_behind, function.let(f"fneg {x.kind} {imag}"), imag, x.kind)
        doubled = function.let(f"shl i64 {place}, 1")  # what is its own conjugate has no imaginary part
        is_own = function.compare("eq", function.let(f"urem i64 {doubled}, {length}"), 0)
        real = function.choose(is_there, real, zero, x.kind)
        return real, function.choose(is_there, function.choose(is_own, zero, imag, x.kind), zero, x.kind)

    _check_size(length, target.size)
    with function.count(target.size // max(1, length)) as number:
        function.store("i64", number, row)
        start = function.offset_of([number], [length])
        _transform(
            context,
            (x.kind, length, True),
            load,
            lambda k, found: function.store(
                x.kind, _scaled(function, x.kind, found[0], share), target.pointer, function.add(start, k)
            ),
            length,
        )
    return [target]


def _inverse_real_transform_back(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the conjugates of half of the transform, those that stand for two values twice, divided by the length."""
    function, dy = context.function, as_array(inputs[0])
    target = _allocated(context, operation)
    for part in (target.real, target.imag):
        function.zero(part)
    size, length = target.real.shape[-1], dy.shape[-1]
    once, twice = (literal(count / max(1, length), dy.kind) for count in (1, 2))

    def store(place: str, number: Number, k: str) -> None:
        is_own = function.compare("eq", function.let(f"urem i64 {function.let(f'shl i64 {k}, 1')}, {length}"), 0)
        share = function.choose(is_own, once, twice, dy.kind)
        real, imag = (_scaled(function, dy.kind, part, share) for part in number)
        _store(function, target, place, (real, function.let(f"fneg {dy.kind} {imag}")))

    _by_rows(
        context,
        (dy.kind, length, False),
        (dy.size // max(1, length), length, min(size, length // 2 + 1)),
        lambda place: (function.load(dy.kind, dy.pointer, place), literal(0, dy.kind)),
        store,
        size,
    )
    return [target]


def _check_size(length: int, size: int) -> None:
    """Refuse what is not worth a loop, or has no elements."""
    if not length or not size:
        raise UnsupportedError("a transform of nothing")
    is_power = length & (length - 1) == 0
    is_short = length <= _MOST_HALVED if is_power else length <= _MOST_SUMMED
    if not is_short or (size > _MOST_ELEMENTS if is_power else size * length > _MOST_PRODUCTS):
        raise UnsupportedError("a long transform, or many")


def _by_rows(
    context: FormContext,
    transform: tuple[str, int, bool],
    sizes: tuple[int, int, int],
    load: Load,
    store: Callable[[str, Number, str], None],
    width: int | None = None,
) -> None:
    """Print the transform of each row, which is cut or padded with zeros to its length.

    Args:
        context: of the region.
        transform: as in `_transform`.
        sizes: how many rows there are, the elements of one, and how many of its results are stored.
        load: gives the element at a place among all rows.
        store: stores one for a place among all results, with its number in the row.
        width: the elements of a row of results, if there are more than are stored.
    """
    function, (kind, length, _), (rows, given, wanted) = context.function, transform, sizes
    _check_size(length, max(rows * length, rows * given))
    if not given:
        raise UnsupportedError("a transform of nothing")
    with function.count(rows) as row:
        begin, into = function.offset_of([row], [given]), function.offset_of([row], [width or wanted])

        def load_padded(k: str) -> Number:
            if given >= length:
                return load(str(function.add(begin, k)))
            is_there = function.compare("slt", k, given)
            place = function.add(begin, function.choose(is_there, k, 0))
            real, imag = load(str(place))
            zero = literal(0, kind)
            return function.choose(is_there, real, zero, kind), function.choose(is_there, imag, zero, kind)

        _transform(
            context, transform, load_padded, lambda k, found: store(str(function.add(into, k)), found, k), wanted
        )


def _transform(context: FormContext, transform: tuple[str, int, bool], load: Load, store: Store, wanted: int) -> None:
    """Print a transform, without a scale.

    Args:
        context: of the region.
        transform: the type of the parts, the length, and whether it is the inverse.
        load: gives an element.
        store: stores a result.
        wanted: how many results are stored, from the first one on.
    """
    function, (kind, length, inverse) = context.function, transform
    work = Complex(function.allocate(kind, (length,)), function.allocate(kind, (length,)))
    function.hold(work)
    is_power = length & (length - 1) == 0
    order = _table(function, "i64", [_turned(k, length) if is_power else k for k in range(length)])
    with function.count(length) as k:
        _store(function, work, k, load(function.load("i64", order, k)))
    sign = 1 if inverse else -1
    if is_power:
        half = 1
        while half < length:
            _print_stage(function, work, length, half, sign)
            half *= 2
        with function.count(wanted) as k:
            store(k, _load(function, work, k))
    else:
        _print_sums(function, work, length, sign, store, wanted)
    function.release(work)


def _turned(number: int, length: int) -> int:
    """Return a number below a power of two with its bits in the opposite order."""
    bits = length.bit_length() - 1
    return sum((number >> bit & 1) << (bits - 1 - bit) for bit in range(bits))


def _roots(function: Function, kind: str, count: int, order: int, sign: int) -> tuple[str, str]:
    """Return the addresses of the real and imaginary parts of the first powers of a root of one of the order."""
    angles = [sign * math.tau * k / order for k in range(count)]
    return _table(function, kind, map(math.cos, angles)), _table(function, kind, map(math.sin, angles))


def _table(function: Function, kind: str, numbers: Any) -> str:
    """Return the address of constants."""
    listed = [f"{kind} {literal(number, kind)}" for number in numbers]
    return function.helper(f"@HELPER = internal constant [{len(listed)} x {kind}] [{', '.join(listed)}], align 64\n")


def _print_stage(function: Function, work: Complex, length: int, half: int, sign: int) -> None:
    """Print the stage that makes transforms of `2 * half` elements of two of half of them each, side by side."""
    kind = work.kind
    cosines, sines = _roots(function, kind, half, 2 * half, sign)
    with function.count(length // (2 * half)) as block:
        start = function.offset_of([block], [2 * half])
        with function.count(half, is_parallel=True) as k:
            root = function.load(kind, cosines, k), function.load(kind, sines, k)
            near, far = function.offset_of([start, k], [1, 1]), function.add(start, function.add(k, half))
            first, second = _load(function, work, near), _load(function, work, far)
            turned = second if half == 1 else _product(function, kind, second, root)
            for place, how in ((near, "fadd"), (far, "fsub")):
                found = [function.let(f"{how} {kind} {a}, {b}") for a, b in zip(first, turned, strict=True)]
                _store(function, work, place, (found[0], found[1]))


def _print_sums(function: Function, work: Complex, length: int, sign: int, store: Store, wanted: int) -> None:
    """Print each result as the sum of all elements times powers of a root."""
    kind = work.kind
    cosines, sines = _roots(function, kind, length, length, sign)
    totals, power = [function.slot(kind) for _ in range(2)], function.slot()
    with function.count(wanted) as k:
        for total in totals:
            function.store(kind, literal(0, kind), total)
        function.store("i64", 0, power)
        with function.count(length) as j:
            now = function.load("i64", power)
            root = function.load(kind, cosines, now), function.load(kind, sines, now)
            for total, part in zip(totals, _product(function, kind, _load(function, work, j), root), strict=True):
                function.store(kind, function.let(f"fadd {kind} {function.load(kind, total)}, {part}"), total)
            after = function.add(now, k)
            less = function.sub(after, length)
            function.store("i64", function.choose(function.compare("slt", after, length), after, less), power)
        store(k, (function.load(kind, totals[0]), function.load(kind, totals[1])))


def _load(function: Function, x: Complex, place: Size) -> Number:
    return function.load(x.kind, x.real.pointer, place), function.load(x.kind, x.imag.pointer, place)


def _store(function: Function, x: Complex, place: Size, number: Number) -> None:
    for part, value in zip((x.real, x.imag), number, strict=True):
        function.store(x.kind, value, part.pointer, place)


def _scaled(function: Function, kind: str, value: str, share: str) -> str:
    return function.let(f"fmul {kind} {value}, {share}")


def _times(function: Function, kind: str, number: Number, share: float) -> Number:
    if share == 1:
        return number
    by = literal(share, kind)
    return _scaled(function, kind, number[0], by), _scaled(function, kind, number[1], by)


def _product(function: Function, kind: str, first: Number, second: Number) -> Number:
    def product(left: str, right: str) -> str:
        return function.let(f"fmul contract {kind} {left}, {right}")

    (a, b), (c, d) = first, second
    real = function.let(f"fsub contract {kind} {product(a, c)}, {product(b, d)}")
    return real, function.let(f"fadd contract {kind} {product(a, d)}, {product(b, c)}")


# --- complex numbers ------------------------------------------------------------------------------------------------


def _from_parts(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    shape = shape_of(operation.outputs[0])
    real, imag = map(as_array, inputs)
    if real.shape != shape or imag.shape != shape or real.kind not in FLOATS or imag.kind != real.kind:
        raise UnsupportedError("parts of several shapes")
    return [Complex(real, imag)]


def _real_part(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    del context, operation
    return [_complex(inputs[0]).real]


def _imaginary_part(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    del context, operation
    return [_complex(inputs[0]).imag]


def _cast(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print real numbers as complex ones of the same precision."""
    if isinstance(inputs[0], Complex):
        return [inputs[0]]
    real, kind = as_array(inputs[0]), type_of(part_type(operation.outputs[0].dtype))
    if real.kind != kind:
        raise UnsupportedError("a cast to another precision")
    imag = context.function.allocate_zeros(kind, real.shape)
    return [Complex(real, imag)]


def _by_parts(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print sums and differences, signs and conjugates, part by part."""
    function, op = context.function, operation.op
    values = [_complex(value) for value in inputs]
    shape = shape_of(operation.outputs[0])
    found: list[Array] = []
    for number, parts in enumerate(([x.real for x in values], [x.imag for x in values])):
        if isinstance(op, Conjugate) and number == 0:
            found.append(parts[0])
            continue
        step = Negative() if isinstance(op, Conjugate) else op
        steps = [(step, tuple(range(len(parts))))]
        (made,) = print_elementwise(function, steps, [len(parts)], parts, [shape], [parts[0].kind], [None])
        found.append(as_array(made))
    return [Complex(found[0], found[1])]


def _multiply(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    function = context.function
    x, y = map(_complex, inputs)
    shape, kind = shape_of(operation.outputs[0]), x.kind
    steps = [(Multiply(), (0, 2)), (Multiply(), (1, 3)), (Subtract(), (4, 5))]
    steps += [(Multiply(), (0, 3)), (Multiply(), (1, 2)), (Add(), (7, 8))]
    parts = [x.real, x.imag, y.real, y.imag]
    real, imag = print_elementwise(function, steps, [6, 9], parts, [shape] * 2, [kind] * 2, [None] * 2)
    return [Complex(as_array(real), as_array(imag))]


FORMS: dict[type[Any], Form] = {
    Conjugate: _by_parts,
    FourierTransform: _fourier_transform,
    FromParts: _from_parts,
    ImaginaryPart: _imaginary_part,
    InverseRealTransform: _inverse_real_transform,
    InverseRealTransformBack: _inverse_real_transform_back,
    RealPart: _real_part,
    RealTransform: _real_transform,
    RealTransformBack: _real_transform_back,
}
# Those of elementwise operations whose results are complex.
COMPLEX_FORMS: dict[type[Any], Form] = {
    Add: _by_parts,
    Cast: _cast,
    Multiply: _multiply,
    Negative: _by_parts,
    Subtract: _by_parts,
}
