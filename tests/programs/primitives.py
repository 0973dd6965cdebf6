"""The operations of random programs: for each, how a graph gets it and what it means over jets and Python numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import anabranch as ab

from . import jets
from .jets import Jet
from .syntax import BOOL, INT, MATRIX, ROWS, SCALAR, SCALARS, VECTOR, VECTORS, Type

_CLOSEST = 1e-4  # values nearer than this to a kink or to a tie decide by rounding
_LARGEST = 1e6


class UnsuitableError(Exception):
    """The program's value or derivative is no matter of arithmetic here: a tie, a kink or an overflow."""


@dataclass(frozen=True)
class Primitive:
    """`build` works on tensors (and TensorArrays), `evaluate` on jets, ints, bools and tuples of jets."""

    result: Type
    arguments: tuple[Type, ...]
    build: Callable[..., Any]
    evaluate: Callable[..., Any]


PRIMITIVES: dict[str, Primitive] = {}


def _define(
    name: str, result: Type, arguments: tuple[Type, ...], build: Callable[..., Any], evaluate: Callable[..., Any]
) -> None:
    PRIMITIVES[name] = Primitive(result, arguments, build, evaluate)


def above(x: Jet, bound: Any) -> Any:
    """``x > bound``, away from ties."""
    if np.any(np.abs(x.value - bound) < _CLOSEST):
        raise UnsuitableError("tie")
    return x.value > bound


def bounded(x: Jet) -> Jet:
    """`x`, if it is not too large for comparisons to mean something."""
    if not all(np.all(np.abs(part) < _LARGEST) for part in x.parts.values()):
        raise UnsuitableError("overflow")
    return x


def _linear(function: Callable[..., Any]) -> Callable[..., Jet]:
    return lambda *arguments: jets.linear(function, *arguments)


def _maximum(a: Jet, b: Jet) -> Jet:
    larger = above(Jet({0: a.value - b.value}), 0.0)
    return jets.linear(lambda x, y: np.where(larger, x, y), a, b)


def _where_positive(x: Jet, a: Jet, b: Jet) -> Jet:
    positive = above(x, 0.0)
    return jets.linear(lambda u, v: np.where(positive, u, v), a, b)


def _soft_divide(a: Jet, b: Jet) -> Jet:
    return jets.multiply(a, jets.reciprocal(jets.add(jets.constant(1.0), jets.multiply(b, b))))


_LETTERS = {SCALAR: "s", VECTOR: "v", MATRIX: "m", ROWS: "r"}

for _type, _letter in _LETTERS.items():
    _one, _two = (_type,), (_type, _type)
    _define(f"add_{_letter}", _type, _two, lambda a, b: a + b, jets.add)
    _define(f"sub_{_letter}", _type, _two, lambda a, b: a - b, _linear(np.subtract))
    _define(f"mul_{_letter}", _type, _two, lambda a, b: a * b, jets.multiply)
    _define(f"soft_divide_{_letter}", _type, _two, lambda a, b: a / (1.0 + b * b), _soft_divide)
    _define(f"maximum_{_letter}", _type, _two, lambda a, b: ab.ops.maximum(a, b), _maximum)
    _define(f"tanh_{_letter}", _type, _one, lambda x: ab.ops.tanh(x), jets.tanh)
    _define(f"sin_{_letter}", _type, _one, lambda x: ab.ops.sin(x), jets.sin)
    _define(f"exp_tanh_{_letter}", _type, _one, lambda x: ab.ops.exp(ab.ops.tanh(x)), lambda x: jets.exp(jets.tanh(x)))
    _define(
        f"where_positive_{_letter}",
        _type,
        (_type, _type, _type),
        lambda x, a, b: ab.ops.where(x > 0, a, b),
        _where_positive,
    )
    _define(
        f"select_{_letter}",
        _type,
        (BOOL, _type, _type),
        lambda p, a, b: ab.ops.where(p, a, b),
        lambda p, a, b: jets.linear(lambda u, v: u if p else v, a, b),
    )
    if _type != SCALAR:
        _define(f"scale_{_letter}", _type, (SCALAR, _type), lambda a, x: a * x, jets.multiply)
        _define(f"sum_{_letter}", SCALAR, _one, lambda x: ab.ops.sum(x), _linear(np.sum))
        _define(f"mean_{_letter}", SCALAR, _one, lambda x: ab.ops.mean(x), _linear(np.mean))

# Products and shapes
_define("matmul", MATRIX, (MATRIX, MATRIX), lambda a, b: a @ b, lambda a, b: jets.product(np.matmul, a, b))
_define("rows_matmul", ROWS, (ROWS, MATRIX), lambda a, b: a @ b, lambda a, b: jets.product(np.matmul, a, b))
_define("matvec", VECTOR, (MATRIX, VECTOR), lambda a, b: a @ b, lambda a, b: jets.product(np.matmul, a, b))
_define("dot", SCALAR, (VECTOR, VECTOR), lambda a, b: ab.ops.sum(a * b), lambda a, b: jets.product(np.dot, a, b))
_define(
    "outer",
    MATRIX,
    (VECTOR, VECTOR),
    lambda a, b: ab.ops.reshape(a, (3, 1)) * ab.ops.reshape(b, (1, 3)),
    lambda a, b: jets.product(np.outer, a, b),
)
_define("add_row", ROWS, (ROWS, VECTOR), lambda a, b: a + b, lambda a, b: jets.linear(np.add, a, b))
_define("transpose", MATRIX, (MATRIX,), lambda x: ab.ops.transpose(x), _linear(np.transpose))
_define(
    "refold",
    ROWS,
    (ROWS,),
    lambda x: ab.ops.transpose(ab.ops.reshape(x, (3, 2))),
    _linear(lambda x: x.reshape(3, 2).T),
)
_define("column_sums", VECTOR, (ROWS,), lambda x: ab.ops.sum(x, axis=0), _linear(lambda x: x.sum(0)))
_define("row_means", VECTOR, (MATRIX,), lambda x: ab.ops.mean(x, axis=-1), _linear(lambda x: x.mean(1)))
_define("first", SCALAR, (VECTOR,), lambda x: x[0], _linear(lambda x: x[0]))
_define("last", SCALAR, (VECTOR,), lambda x: x[-1], _linear(lambda x: x[-1]))
_define("second_row", VECTOR, (ROWS,), lambda x: x[1], _linear(lambda x: x[1]))
_define("reverse", VECTOR, (VECTOR,), lambda x: x[::-1], _linear(lambda x: x[::-1]))
_define(
    "rotate",
    VECTOR,
    (VECTOR,),
    lambda x: ab.ops.concatenate([x[1:], x[:1]]),
    _linear(lambda x: np.concatenate([x[1:], x[:1]])),
)
_define("pick", SCALAR, (VECTOR, INT), lambda x, i: x[i % 3], lambda x, i: jets.linear(lambda u: u[i % 3], x))
_define("pick_row", VECTOR, (MATRIX, INT), lambda x, i: x[i % 3], lambda x, i: jets.linear(lambda u: u[i % 3], x))
_define("stack_s", VECTOR, (SCALAR, SCALAR, SCALAR), lambda *xs: ab.ops.stack(xs), _linear(lambda *xs: np.stack(xs)))
_define("stack_v", ROWS, (VECTOR, VECTOR), lambda *xs: ab.ops.stack(xs), _linear(lambda *xs: np.stack(xs)))

# TensorArrays, which are tuples of jets
_define("stack_array", ROWS, (VECTORS,), lambda a: a.stack(), lambda a: jets.linear(lambda *xs: np.stack(xs), *a))
_define("stack_numbers", VECTOR, (SCALARS,), lambda a: a.stack(), lambda a: jets.linear(lambda *xs: np.stack(xs), *a))
_define("element", VECTOR, (VECTORS, INT), lambda a, i: a.read(i % 2), lambda a, i: a[i % 2])
_define("number", SCALAR, (SCALARS, INT), lambda a, i: a.read(i % 3), lambda a, i: a[i % 3])
_define(
    "gather",
    MATRIX,
    (VECTORS,),
    lambda a: a.gather([1, 0, 1]),
    lambda a: jets.linear(lambda *xs: np.stack(xs), a[1], a[0], a[1]),
)

# Integers and bools
_define("float_of", SCALAR, (INT,), lambda i: i, lambda i: jets.constant(float(i)))  # `building` casts
_define("add_i", INT, (INT, INT), lambda a, b: (a + b) % 7, lambda a, b: (a + b) % 7)
_define("mul_i", INT, (INT, INT), lambda a, b: (a * b) % 5, lambda a, b: (a * b) % 5)
_define(
    "count_positive",
    INT,
    (VECTOR,),
    lambda x: ab.ops.sum(ab.ops.cast(x > 0, "int32")),
    lambda x: int(np.sum(above(x, 0.0))),
)
_define("size_of", INT, (VECTORS,), lambda a: a.size(), len)
_define("is_above", BOOL, (SCALAR,), lambda x: x > -0.25, lambda x: bool(above(x, -0.25)))
_define(
    "sum_is_below", BOOL, (VECTOR,), lambda x: ab.ops.sum(x) < 0.5, lambda x: not above(jets.linear(np.sum, x), 0.5)
)
_define("is_even", BOOL, (INT,), lambda i: ab.ops.equal(i % 2, 0), lambda i: i % 2 == 0)
_define("less", BOOL, (INT, INT), lambda a, b: a < b, lambda a, b: a < b)
_define("both", BOOL, (BOOL, BOOL), lambda a, b: ab.ops.logical_and(a, b), lambda a, b: a and b)
_define("negation", BOOL, (BOOL,), lambda a: ab.ops.logical_not(a), lambda a: not a)
