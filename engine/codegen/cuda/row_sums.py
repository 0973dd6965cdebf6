"""Rows combined at the places of others, as CUDA: of gathers' gradients, segments and scatters.

Rows are sorted by place, so that those of one place are neighbours. A thread combines one column of `TILE` neighbours,
in order; rows whose neighbours go over several tiles are put together by a second function, in order, too. So the
results of every run have the same bits, which those of atomic additions have not.
"""

from __future__ import annotations

from ...common.quick_dataclass import dataclass
from ..expression.expression import HALVES, UnsupportedError
from .elementwise import C_TYPES, HEADERS, ROUNDED, WIDENED

TILE = 32  # rows of which a thread combines one column
_TYPES = {**C_TYPES, "bool": "bool"}
# The types in which elements of others are combined.
_WIDE = dict.fromkeys(HALVES, "float") | dict.fromkeys(("int8", "uint8", "int16", "uint16", "bool"), "int")
_UNSIGNED = {"int": "unsigned", "long long": "unsigned long long"}
_COMBINES = {
    "add": "x + y",
    "multiply": "x * y",
    "maximum": "x > y || x != x ? x : y",  # NaN stays
    "minimum": "x < y || x != x ? x : y",
}


@dataclass(frozen=True)
class RowSums:
    """The functions ``tiles`` and ``spread`` that combine rows.

    Both get ``out``, ``values``, the order of the values (int64), their places in that order (int64), scratch memory of
    `itemsize` bytes for each tile and column, and how many values and columns there are (int64).

    Attributes:
        source: CUDA C++.
        itemsize: bytes of an element in scratch memory.
    """

    source: str
    itemsize: int


def print_row_sums(ufunc: str, dtype: str) -> RowSums:
    """Print the functions.

    Args:
        ufunc: NumPy's name of what combines two elements.
        dtype: of the rows.

    Raises:
        UnsupportedError: there are none for it.
    """
    if ufunc not in _COMBINES or dtype not in _TYPES:
        raise UnsupportedError(f"{ufunc} of {dtype} rows")
    kind, half = _TYPES[dtype], HALVES.get(dtype)
    wide = _WIDE.get(dtype, kind)
    value = _COMBINES[ufunc]
    if ufunc in ("add", "multiply") and wide in _UNSIGNED:  # wraps around, which in C++ only those without a sign may
        own = _UNSIGNED[wide]
        value = f"({wide})(({own})x {value[2]} ({own})y)"
    read, write = (f"{WIDENED[half]}(x)", f"{ROUNDED[half]}(x)") if half else ("x", "x")
    parameters = (
        f"{kind}* __restrict__ out, const {kind}* __restrict__ values, const long long* __restrict__ order, "
        f"const long long* __restrict__ places, {wide}* __restrict__ pieces, long long n, long long width"
    )
    source = f"""\
{HEADERS.get(half or "", "")}static __device__ __forceinline__ {wide} combined({wide} x, {wide} y) {{ return {value}; }}
static __device__ __forceinline__ {wide} read({kind} x) {{ return {read}; }}
static __device__ __forceinline__ {kind} written({wide} x) {{ return {write}; }}
extern "C" __global__ void tiles({parameters}) {{
  long long count = (n + {TILE - 1}) / {TILE} * width;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count;
       i += (long long)gridDim.x * blockDim.x) {{
    long long tile = i / width, column = i % width, begin = tile * {TILE};
    long long end = n - begin < {TILE} ? n : begin + {TILE};
    for (long long k = begin; k < end;) {{
      long long place = places[k];
      bool is_continued = k == begin && k && places[k - 1] == place;
      {wide} x = read(values[order[k] * width + column]);
      for (++k; k < end && places[k] == place; ++k) x = combined(x, read(values[order[k] * width + column]));
      if (is_continued) pieces[i] = x;
      else out[place * width + column] = written(combined(read(out[place * width + column]), x));
    }}
  }}
}}
extern "C" __global__ void spread({parameters}) {{
  long long tiles = (n + {TILE - 1}) / {TILE}, count = tiles * width;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count;
       i += (long long)gridDim.x * blockDim.x) {{
    long long tile = i / width, column = i % width, begin = tile * {TILE}, end = begin + {TILE};
    if (end >= n) continue;
    long long place = places[end - 1];
    bool begins_before = begin && places[begin - 1] == place;
    if (places[end] != place || begins_before) continue;
    {wide} x = read(out[place * width + column]);
    for (long long k = end; k < n && places[k] == place; k += {TILE})
      x = combined(x, pieces[k / {TILE} * width + column]);
    out[place * width + column] = written(x);
  }}
}}
"""
    return RowSums(source, 8 if wide in ("double", "long long", "unsigned long long") else 4)
