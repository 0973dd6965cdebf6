"""Python's operators over tensors and variables, handed down to the graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.tensor import Tensor, define_operators
from . import axes, bitwise, comparison, elementwise, indexing, linalg, mathematics
from .base import as_array, convert_to_tensor
from .indexed_slices import scatter, take_rows, to_dense


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


def _eval(tensor: Tensor, feed_dict: dict[Any, Any] | None) -> Any:
    from ..session.session import Session

    return Session(tensor.graph).run(tensor, feed_dict)


def _value(tensor: Tensor, refusal: str) -> Any:
    from ..session.outside import value_outside

    return value_outside(tensor, refusal)


def _as_copy(value: Any, dtype: Any) -> Any:
    return np.array(value, dtype=dtype)


def _save_graph(graph: Any, path: Any) -> None:
    from ..saving.files import save_graph

    save_graph(graph, path)


def _dump_lowered(fetches: Any) -> str:
    from ..session.lowered import dump_lowered

    return dump_lowered(fetches)


define_operators(
    {
        "convert": convert_to_tensor,
        "as_array": as_array,
        "eval": _eval,
        "value": _value,
        "as_copy": _as_copy,
        "to_dense": to_dense,
        "scatter": scatter,
        "take_rows": take_rows,
        "save_graph": _save_graph,
        "dump_lowered": _dump_lowered,
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
        "abs": elementwise.absolute,
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
        "getitem": indexing.getitem,
        "transpose": axes.transpose,
    }
)
