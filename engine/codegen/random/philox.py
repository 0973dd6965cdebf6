"""Native code for random numbers: the bits of `ops.random.samplers`, drawn by the engine's threads.

A block of Philox4x64-10 depends on its number alone, so that each part draws some blocks, and numbers are the same on
any number of threads. A block has eight half words; numbers are made of them in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.arrays.shape_arguments import fill_shape
from ...ops.math.bits import element_count, half_threshold
from ...ops.random.samplers import RandomKeep, RandomNormal, RandomUniform
from ..llvm.builder import Builder, FunctionBuilder
from ..llvm.library import LaterFunction, library
from ..llvm.tasks import begin_task, print_entry, print_share

Runner = Callable[..., Any]
_PARTS = 8
_FIELDS = ("target", "count", "key", "tweak", "least", "scale", "parts")
_ROUNDS = 10
_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B  # of the two words of the key, from round to round
_LANES = 8
HALVES = f"<{_LANES} x i32>"
_FLOATS = f"<{_LANES} x float>"


def keep_runner(operation: Operation) -> Runner:
    """Return a runner of `RandomKeep`."""
    op = op_of(operation, RandomKeep)
    run, least, scale = _function("keep"), half_threshold(op.rate), op.scale
    is_wide = scale.dtype == dtypes.float64
    bits = int(np.float32(1 if is_wide else scale).view("int32"))

    def keep(key: Any, *dynamic: Any) -> Any:
        shape = fill_shape(op.shape, dynamic)
        found = _drawn(run, key, element_count(shape), least, bits)
        found = found * scale if is_wide else found.astype(op.dtype, copy=False)
        return found.reshape(shape)[()]

    return keep


def units_runner(operation: Operation) -> Runner | None:
    """Return a runner of `RandomUniform` and `RandomNormal`, of numbers that are computed in float32."""
    op = op_of(operation, (RandomUniform, RandomNormal))
    if op.dtype == dtypes.float64:
        return None
    run = _function("unit")

    def draw(key: Any, *dynamic: Any) -> Any:
        shape = fill_shape(op.shape, dynamic)
        return np.asarray(op.of_units(_drawn(run, key, op.unit_count(element_count(shape))), shape))[()]

    return draw


def _drawn(run: LaterFunction, key: Any, count: int, least: int = 0, scale: int = 0) -> Any:
    """Return `count` float32 that a function makes of the half words of a key; `scale` is given by its bits."""
    out = np.empty(count, "float32")
    if count:
        parts = 1 if count < machine_profile().parallel_row_elements else _PARTS
        run.run(out, count, *np.asarray(key, "int64").tolist(), least, scale, parts)
    return out


# --- code -----------------------------------------------------------------------------------------------------------


@cache
def _function(kind: str) -> LaterFunction:
    """Return a compiled function of the address of its numbers."""
    name = f"random_{kind}"
    return library.later(name, lambda: print_block("philox") + _print_task(name, kind), name)


def print_block(name: str) -> str:
    """Print the function `name` of a block's number and of a key that returns the block's half words."""
    code = FunctionBuilder(name, ["i64 %number", "i64 %key", "i64 %tweak"], "alwaysinline", result=HALVES)
    x: list[str | int] = [code.add("%number", 1), 0, 0, 0]
    for turn in range(_ROUNDS):
        keys = [_plus(code, name, turn * step) for name, step in zip(("%key", "%tweak"), _STEPS, strict=True)]
        (high, low), (other_high, other_low) = (
            _product(code, x[place], factor) for place, factor in zip((0, 2), _MULTIPLIERS, strict=True)
        )
        x = [_xor(code, other_high, x[1], keys[0]), other_low, _xor(code, high, x[3], keys[1]), low]
    words = "undef"
    for place, word in enumerate(x):
        words = code.let(f"insertelement <4 x i64> {words}, i64 {word}, i32 {place}")
    code.line(f"ret {HALVES} {code.let(f'bitcast <4 x i64> {words} to {HALVES}')}")
    return code.text()


def _plus(code: Builder, value: str, number: int) -> str:
    """Return a sum modulo 2**64."""
    return code.let(f"add i64 {value}, {number % 2**64}")


def _xor(code: Builder, first: str, second: str | int, third: str) -> str:
    return code.let(f"xor i64 {code.let(f'xor i64 {first}, {second}')}, {third}")


def _product(code: Builder, x: str | int, factor: int) -> tuple[str, str]:
    """Return the two words of a product, the higher one first."""
    product = code.let(f"mul i128 {code.let(f'zext i64 {x} to i128')}, {factor}")
    return code.let(f"trunc i128 {code.let(f'lshr i128 {product}, 64')} to i64"), code.let(
        f"trunc i128 {product} to i64"
    )


def _print_task(name: str, kind: str) -> str:
    """Print the function that draws the blocks of a part, of which the last one may not be whole."""
    code, fields = begin_task(name, _FIELDS)
    target, count, key, tweak = fields.address("target"), fields["count"], fields["key"], fields["tweak"]
    least, scale = (
        code.broadcast(_LANES, "i32", code.let(f"trunc i64 {fields[each]} to i32")) for each in ("least", "scale")
    )
    scale = code.let(f"bitcast {HALVES} {scale} to {_FLOATS}")
    first, end = print_share(code, code.ceil_div(count, _LANES), "%part", fields["parts"])
    whole = code.div(count, _LANES)

    def numbers(block: str) -> str:
        halves = code.let(f"call {HALVES} @philox(i64 {block}, i64 {key}, i64 {tweak})")
        if kind == "keep":
            kept = code.let(f"icmp uge {HALVES} {halves}, {least}")
            return code.let(f"select <{_LANES} x i1> {kept}, {_FLOATS} {scale}, {_FLOATS} zeroinitializer")
        upper = code.let(f"lshr {HALVES} {halves}, {code.broadcast(_LANES, 'i32', '8')}")
        unit = code.broadcast(_LANES, "float", "0x3E70000000000000")  # 2**-24
        return code.let(f"fmul {_FLOATS} {code.let(f'uitofp {HALVES} {upper} to {_FLOATS}')}, {unit}")

    with code.loop(first, code.least(end, whole)) as block:
        code.store_vector(_FLOATS, "float", numbers(block), target, code.mul(block, _LANES))
    with code.when(code.compare("sgt", end, whole)):
        slot, start = code.slot(_FLOATS), code.mul(whole, _LANES)
        code.store_vector(_FLOATS, "float", numbers(str(whole)), slot)
        code.copy("float", slot, code.at("float", target, start), code.sub(count, start))
    return code.text() + print_entry(name, _FIELDS)
