"""Random numbers as CUDA: the blocks of Philox4x64-10 that elements need, and numbers made of their words.

Words, uniforms, integers and the zeros of dropout have the bits that hosts draw (see `ops.random.samplers`); normal
numbers are those of a host to the rounding of its logarithm, sine and cosine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.op import Op
from ...ops.math.bits import half_threshold
from ...ops.random.samplers import RandomIntegers, RandomKeep, RandomNormal, RandomUniform
from ..expression.expression import HALVES, UnsupportedError
from .elementwise import C_TYPES, HEADERS, ROUNDED, WIDENED
from .rows import BLOCK

_BLOCK_WORDS = 4  # of 64 bits that one counter gives
_MOST_BLOCKS = 1 << 16
_PHILOX = """\
struct Words { unsigned long long w[4]; };
static __device__ __forceinline__ Words philox(unsigned long long counter, unsigned long long k0,
                                               unsigned long long k1) {
  unsigned long long x0 = counter + 1, x1 = 0, x2 = 0, x3 = 0;
  for (int round = 0; round < 10; ++round) {
    unsigned long long high0 = __umul64hi(0xD2E7470EE14C6C93ULL, x0), low0 = 0xD2E7470EE14C6C93ULL * x0;
    unsigned long long high1 = __umul64hi(0xCA5A826395121157ULL, x2), low1 = 0xCA5A826395121157ULL * x2;
    x0 = high1 ^ x1 ^ k0; x1 = low1; x2 = high0 ^ x3 ^ k1; x3 = low0;
    k0 += 0x9E3779B97F4A7C15ULL; k1 += 0xBB67AE8584CAA73BULL;
  }
  return {{x0, x1, x2, x3}};
}
static __device__ __forceinline__ unsigned half_of(const Words& words, int k) {
  return (unsigned)(words.w[k / 2] >> (k % 2 * 32));
}
"""
_UNIT = {
    "float": "static __device__ __forceinline__ float unit_of(unsigned bits) "
    "{ return (float)(bits >> 8) * 5.9604644775390625e-08f; }\n",
    "double": "static __device__ __forceinline__ double unit_of(unsigned long long bits) "
    "{ return (double)(bits >> 11) * 1.1102230246251565e-16; }\n",
}


@dataclass(frozen=True)
class DrawLaunch:
    """The kernel of a draw.

    The function ``draw`` gets the output, the number of elements (int64), two words of the key (uint64), and `numbers`.

    Attributes:
        source: CUDA C++.
        elements: that one thread writes.
        numbers: NumPy scalars.
    """

    source: str
    elements: int
    numbers: tuple[Any, ...]

    def grid(self, count: int) -> tuple[int, int]:
        """Return the blocks that are launched for so many elements."""
        threads = -(-count // self.elements)
        return min(-(-threads // BLOCK), _MOST_BLOCKS), 1


def draw_launch(op: Op) -> DrawLaunch:
    """Print the kernel of an operation that draws.

    Raises:
        UnsupportedError: there is none.
    """
    name = dtypes.name_of(getattr(op, "dtype", None))
    if name not in C_TYPES:
        raise UnsupportedError(f"random numbers of {name}")
    make = _MAKERS.get(type(op))
    if make is None:
        raise UnsupportedError(op.type_name)
    return make(op, name)


def _blockwise(name: str, per_block: int, parameters: str, lines: list[str], helpers: str = "") -> str:
    """Return a kernel of which each thread makes the numbers of one block after another.

    Args:
        name: the dtype.
        per_block: how many numbers a block gives.
        parameters: behind those that all kernels have.
        lines: statements that make ``value`` of ``words``, for number ``k``.
        helpers: functions in front.
    """
    body = "\n".join(f"      {line}" for line in lines)
    return f"""\
{HEADERS.get(HALVES.get(name, ""), "")}{_PHILOX}{helpers}extern "C" __global__ void draw({_head(name)}, {parameters}) {{
  long long blocks = (n + {per_block - 1}) / {per_block};
  for (long long b = blockIdx.x * (long long)blockDim.x + threadIdx.x; b < blocks;
       b += (long long)gridDim.x * blockDim.x) {{
    Words words = philox(b, k0, k1);
    for (int k = 0; k < {per_block} && b * {per_block} + k < n; ++k) {{
{body}
      out[b * {per_block} + k] = value;
    }}
  }}
}}
"""


def _head(name: str) -> str:
    return f"{C_TYPES[name]}* __restrict__ out, long long n, unsigned long long k0, unsigned long long k1"


def _computed(name: str) -> tuple[str, Any, int]:
    """Return the type that computes numbers of a dtype, NumPy's scalar type for it, and the words in a block."""
    wide = name == "float64"
    return ("double", np.float64, _BLOCK_WORDS) if wide else ("float", np.float32, 2 * _BLOCK_WORDS)


def _bits(per_block: int) -> str:
    return "words.w[k]" if per_block == _BLOCK_WORDS else "half_of(words, k)"


def _rounded(name: str, value: str) -> str:
    kind = HALVES.get(name)
    return value if kind is None else f"{ROUNDED[kind]}({value})"


def _uniform(op: RandomUniform, name: str) -> DrawLaunch:
    kind, scalar, per_block = _computed(name)
    lines = [f"{kind} x = unit_of({_bits(per_block)});"]
    if (op.low, op.high) != (0.0, 1.0):
        lines.append("x = x * width + low;")
    lines.append(f"{C_TYPES[name]} value = {_rounded(name, 'x')};")
    limit, below = _bounds(op)
    if op.high > op.low and (name in HALVES or (op.low, op.high) != (0.0, 1.0)):
        read = f"{WIDENED[HALVES[name]]}(value)" if name in HALVES else "value"
        lines.append(f"if ({read} >= limit) value = {_rounded(name, 'below')};")
    source = _blockwise(name, per_block, f"{kind} width, {kind} low, {kind} limit, {kind} below", lines, _UNIT[kind])
    numbers = (scalar(op.high - op.low), scalar(op.low), scalar(limit), scalar(below))
    return DrawLaunch(source, per_block, numbers)


def _bounds(op: RandomUniform) -> tuple[Any, Any]:
    """Return the upper bound in the dtype, and the number to which what reaches it goes."""
    least, limit = (np.asarray(bound).astype(op.dtype) for bound in (op.low, op.high))
    return limit, np.maximum(np.nextafter(limit, op.dtype.type(-np.inf)), least)


def _keep(op: RandomKeep, name: str) -> DrawLaunch:
    per_block = 2 * _BLOCK_WORDS
    kind, zero = ("double", "0.0") if name == "float64" else ("float", "0.0f")
    lines = [f"{C_TYPES[name]} value = {_rounded(name, f'({_bits(per_block)} >= least ? scale : {zero})')};"]
    source = _blockwise(name, per_block, f"unsigned least, {kind} scale", lines)
    return DrawLaunch(source, per_block, (np.uint32(half_threshold(op.rate)), op.scale))


def _integers(op: RandomIntegers, name: str) -> DrawLaunch:
    if name not in C_TYPES or np.dtype(name).kind not in "iu":
        raise UnsupportedError(f"random integers of {name}")
    lines = [f"{C_TYPES[name]} value = ({C_TYPES[name]})((count ? words.w[k] % count : words.w[k]) + low);"]
    source = _blockwise(name, _BLOCK_WORDS, "unsigned long long count, unsigned long long low", lines)
    count = op.high - op.low
    return DrawLaunch(source, _BLOCK_WORDS, (np.uint64(count if count < 2**64 else 0), np.uint64(op.low % 2**64)))


def _normal(op: RandomNormal, name: str) -> DrawLaunch:
    """Make two numbers of two uniforms in each thread; they are far from each other."""
    kind, scalar, per_block = _computed(name)
    f = "" if kind == "double" else "f"
    word = f"unit_of({_bits(per_block)})"
    source = f"""\
{HEADERS.get(HALVES.get(name, ""), "")}{_PHILOX}{_UNIT[kind]}\
static __device__ __forceinline__ {kind} unit_at(long long number, unsigned long long k0, unsigned long long k1) {{
  Words words = philox(number / {per_block}, k0, k1);
  int k = number % {per_block};
  return {word};
}}
extern "C" __global__ void draw({_head(name)}, {kind} stddev, {kind} mean, {kind} turn) {{
  long long half = (n + 1) / 2;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < half;
       i += (long long)gridDim.x * blockDim.x) {{
    {kind} radius = sqrt{f}(-2 * log1p{f}(-unit_at(i, k0, k1)));
    {kind} angle = unit_at(half + i, k0, k1) * turn;
    {kind} x = radius * cos{f}(angle) * stddev + mean, y = radius * sin{f}(angle) * stddev + mean;
    out[i] = {_rounded(name, "x")};
    if (half + i < n) out[half + i] = {_rounded(name, "y")};
  }}
}}
"""
    numbers = (scalar(op.stddev), scalar(op.mean), scalar(2 * np.pi))
    return DrawLaunch(source, 2, numbers)


_MAKERS: dict[type[Op], Callable[[Any, str], DrawLaunch]] = {
    RandomUniform: _uniform,
    RandomNormal: _normal,
    RandomKeep: _keep,
    RandomIntegers: _integers,
}
