"""Python's operators over tensors and variables, handed down to the graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..common.operator_table import define_operators
from ..graph.context import graph_context
from ..graph.tensor import Tensor
from ..graph.value import Value
from .arrays import axes, indexing, joining, shaping
from .base import as_array, cast, constant_of, convert_to_tensor
from .containers.indexed_slices import scatter, take_rows, to_dense
from .entrance import entering_graphs
from .linear_algebra import linalg
from .math import bitwise, comparison, complex_numbers, elementwise, mathematics, reduction, running
from .shards import join_shards, parts_of_shards, take_of_shards


def _is_bool(x: Any) -> bool:
    return convert_to_tensor(x).dtype.kind == "b"


def _and(x: Any, y: Any) -> Tensor:
    return comparison.logical_and(x, y) if _is_bool(x) and _is_bool(y) else bitwise.bitwise_and(x, y)


def _or(x: Any, y: Any) -> Tensor:
    return comparison.logical_or(x, y) if _is_bool(x) and _is_bool(y) else bitwise.bitwise_or(x, y)


def _xor(x: Any, y: Any) -> Tensor:
    return comparison.logical_xor(x, y) if _is_bool(x) and _is_bool(y) else bitwise.bitwise_xor(x, y)


def _invert(x: Any) -> Tensor:
    return comparison.logical_not(x) if _is_bool(x) else bitwise.bitwise_not(x)


_indexed = entering_graphs(indexing.getitem)
_PLAIN_INDICES = frozenset({int, type(None), type(...)})


def _getitem(x: Any, key: Any) -> Tensor:
    """Return ``x[key]``; of values by places that are known, without an op unless a tape records."""
    is_at_once = type(x) is Value and not graph_context.stack and not graph_context.tapes
    if is_at_once and x.array.ndim and _is_plain_index(key):
        part = x.array[key]
        if not isinstance(part, str):
            return Value(part, x.of_weights)
    return _indexed(x, key)


def _is_plain_index(key: Any) -> bool:
    kind = key.__class__
    if kind is slice:
        return _PLAIN_INDICES.issuperset(map(type, (key.start, key.stop, key.step)))
    return kind in _PLAIN_INDICES or (kind is tuple and all(map(_is_plain_index, key)))


_UFUNCS: dict[Any, Any] = {  # what NumPy's own operators call where an array is on the left
    np.add: elementwise.add,
    np.subtract: elementwise.subtract,
    np.multiply: elementwise.multiply,
    np.true_divide: elementwise.true_divide,
    np.floor_divide: elementwise.floor_divide,
    np.remainder: elementwise.mod,
    np.power: mathematics.power,
    np.matmul: linalg.matmul,
    np.negative: elementwise.negative,
    np.absolute: complex_numbers.absolute,
    np.invert: _invert,
    np.bitwise_and: _and,
    np.bitwise_or: _or,
    np.bitwise_xor: _xor,
    np.left_shift: bitwise.left_shift,
    np.right_shift: bitwise.right_shift,
    np.less: comparison.less,
    np.less_equal: comparison.less_equal,
    np.greater: comparison.greater,
    np.greater_equal: comparison.greater_equal,
    np.equal: comparison.equal,
    np.not_equal: comparison.not_equal,
}


def _ufunc(ufunc: Any, method: str, inputs: Any, options: Any) -> Any:
    """Return what a NumPy ufunc gives that stands for a Python operator; NotImplemented for all others."""
    function = _UFUNCS.get(ufunc)
    return NotImplemented if function is None or method != "__call__" or options else function(*inputs)


define_operators(
    {
        "convert": convert_to_tensor,
        "as_array": as_array,
        "ufunc": _ufunc,
        "constant_of": constant_of,
        "cast": cast,
        "pass_on": elementwise.identity,
        "stack": joining.stack,
        "eq": comparison.equal,
        "ne": comparison.not_equal,
        "reshape": shaping.reshape,
        "squeeze": shaping.squeeze,
        "swapaxes": axes.swapaxes,
        "sum": reduction.sum,
        "prod": reduction.prod,
        "mean": reduction.mean,
        "max": reduction.max,
        "min": reduction.min,
        "any": reduction.any,
        "all": reduction.all,
        "var": reduction.var,
        "std": reduction.std,
        "argmax": reduction.argmax,
        "argmin": reduction.argmin,
        "cumsum": running.cumsum,
        "round": mathematics.round,
        "dot": linalg.dot,
        "maximum": comparison.maximum,
        "minimum": comparison.minimum,
        "to_dense": to_dense,
        "scatter": scatter,
        "take_rows": take_rows,
        "join_shards": join_shards,
        "take_of_shards": take_of_shards,
        "parts_of_shards": parts_of_shards,
        "add": elementwise.add,
        "sub": elementwise.subtract,
        "mul": elementwise.multiply,
        "truediv": elementwise.true_divide,
        "floordiv": elementwise.floor_divide,
        "mod": elementwise.mod,
        "pow": mathematics.power,
        "matmul": linalg.matmul,
        "neg": elementwise.negative,
        "pos": convert_to_tensor,
        "abs": complex_numbers.absolute,
        "invert": _invert,
        "and": _and,
        "or": _or,
        "xor": _xor,
        "lshift": bitwise.left_shift,
        "rshift": bitwise.right_shift,
        "lt": comparison.less,
        "le": comparison.less_equal,
        "gt": comparison.greater,
        "ge": comparison.greater_equal,
        "getitem": _getitem,
        "transpose": axes.transpose,
    }
)
