"""The operations of random programs: for each, how a graph gets it and what it means over jets and Python numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

import anabranch as ab

from . import array_primitives, custom_primitives, jets, row_primitives
from .definitions import PRIMITIVES, UnsuitableError, above, bounded, define, linear
from .jets import Jet
from .syntax import (
    BOOL,
    INT,
    LETTERS,
    MATRIX,
    PARTS,
    PIECE,
    PIECES,
    ROWS,
    SCALAR,
    SCALARS,
    VECTOR,
    VECTORS,
)


def _maximum(a: Jet, b: Jet) -> Jet:
    larger = above(Jet({0: a.value - b.value}), 0.0)
    return jets.linear(lambda x, y: np.where(larger, x, y), a, b)


def _where_positive(x: Jet, a: Jet, b: Jet) -> Jet:
    positive = above(x, 0.0)
    return jets.linear(lambda u, v: np.where(positive, u, v), a, b)


def _soft_divide(a: Jet, b: Jet) -> Jet:
    return jets.multiply(a, jets.reciprocal(jets.add(jets.constant(1.0), jets.multiply(b, b))))


for _type, _letter in LETTERS.items():
    _one, _two = (_type,), (_type, _type)
    define(f"add_{_letter}", _type, _two, lambda a, b: a + b, jets.add)
    define(f"sub_{_letter}", _type, _two, lambda a, b: a - b, linear(np.subtract))
    define(f"mul_{_letter}", _type, _two, lambda a, b: a * b, jets.multiply)
    define(f"soft_divide_{_letter}", _type, _two, lambda a, b: a / (1.0 + b * b), _soft_divide)
    define(f"maximum_{_letter}", _type, _two, lambda a, b: ab.ops.maximum(a, b), _maximum)
    define(f"tanh_{_letter}", _type, _one, lambda x: ab.ops.tanh(x), jets.tanh)
    define(f"sin_{_letter}", _type, _one, lambda x: ab.ops.sin(x), jets.sin)
    define(f"exp_tanh_{_letter}", _type, _one, lambda x: ab.ops.exp(ab.ops.tanh(x)), lambda x: jets.exp(jets.tanh(x)))
    define(
        f"where_positive_{_letter}",
        _type,
        (_type, _type, _type),
        lambda x, a, b: ab.ops.where(x > 0, a, b),
        _where_positive,
    )
    define(
        f"select_{_letter}",
        _type,
        (BOOL, _type, _type),
        lambda p, a, b: ab.ops.where(p, a, b),
        lambda p, a, b: jets.linear(lambda u, v: u if p else v, a, b),
    )
    if _type != SCALAR:
        define(f"scale_{_letter}", _type, (SCALAR, _type), lambda a, x: a * x, jets.multiply)
        define(f"sum_{_letter}", SCALAR, _one, lambda x: ab.ops.sum(x), linear(np.sum))
    if _type not in (SCALAR, *PARTS):  # parts may be empty
        define(f"mean_{_letter}", SCALAR, _one, lambda x: ab.ops.mean(x), linear(np.mean))

# Products and shapes
define("matmul", MATRIX, (MATRIX, MATRIX), lambda a, b: a @ b, lambda a, b: jets.product(np.matmul, a, b))
define("rows_matmul", ROWS, (ROWS, MATRIX), lambda a, b: a @ b, lambda a, b: jets.product(np.matmul, a, b))
define("matvec", VECTOR, (MATRIX, VECTOR), lambda a, b: a @ b, lambda a, b: jets.product(np.matmul, a, b))
define("dot", SCALAR, (VECTOR, VECTOR), lambda a, b: ab.ops.sum(a * b), lambda a, b: jets.product(np.dot, a, b))
define(
    "outer",
    MATRIX,
    (VECTOR, VECTOR),
    lambda a, b: ab.ops.reshape(a, (3, 1)) * ab.ops.reshape(b, (1, 3)),
    lambda a, b: jets.product(np.outer, a, b),
)
define("add_row", ROWS, (ROWS, VECTOR), lambda a, b: a + b, lambda a, b: jets.linear(np.add, a, b))
define("transpose", MATRIX, (MATRIX,), lambda x: ab.ops.transpose(x), linear(np.transpose))
define(
    "refold",
    ROWS,
    (ROWS,),
    lambda x: ab.ops.transpose(ab.ops.reshape(x, (3, 2))),
    linear(lambda x: x.reshape(3, 2).T),
)
define("column_sums", VECTOR, (ROWS,), lambda x: ab.ops.sum(x, axis=0), linear(lambda x: x.sum(0)))
define("row_means", VECTOR, (MATRIX,), lambda x: ab.ops.mean(x, axis=-1), linear(lambda x: x.mean(1)))
define("first", SCALAR, (VECTOR,), lambda x: x[0], linear(lambda x: x[0]))
define("last", SCALAR, (VECTOR,), lambda x: x[-1], linear(lambda x: x[-1]))
define("second_row", VECTOR, (ROWS,), lambda x: x[1], linear(lambda x: x[1]))
define("reverse", VECTOR, (VECTOR,), lambda x: x[::-1], linear(lambda x: x[::-1]))
define(
    "rotate",
    VECTOR,
    (VECTOR,),
    lambda x: ab.ops.concatenate([x[1:], x[:1]]),
    linear(lambda x: np.concatenate([x[1:], x[:1]])),
)
define("pick", SCALAR, (VECTOR, INT), lambda x, i: x[i % 3], lambda x, i: jets.linear(lambda u: u[i % 3], x))
define("pick_row", VECTOR, (MATRIX, INT), lambda x, i: x[i % 3], lambda x, i: jets.linear(lambda u: u[i % 3], x))
define("stack_s", VECTOR, (SCALAR, SCALAR, SCALAR), lambda *xs: ab.ops.stack(xs), linear(lambda *xs: np.stack(xs)))
define("stack_v", ROWS, (VECTOR, VECTOR), lambda *xs: ab.ops.stack(xs), linear(lambda *xs: np.stack(xs)))

# TensorArrays, which are tuples of jets
define("stack_array", ROWS, (VECTORS,), lambda a: a.stack(), lambda a: jets.linear(lambda *xs: np.stack(xs), *a))
define("stack_numbers", VECTOR, (SCALARS,), lambda a: a.stack(), lambda a: jets.linear(lambda *xs: np.stack(xs), *a))
define("element", VECTOR, (VECTORS, INT), lambda a, i: a.read(i % 2), lambda a, i: a[i % 2])
define("number", SCALAR, (SCALARS, INT), lambda a, i: a.read(i % 3), lambda a, i: a[i % 3])
define(
    "gather",
    MATRIX,
    (VECTORS,),
    lambda a: a.gather([1, 0, 1]),
    lambda a: jets.linear(lambda *xs: np.stack(xs), a[1], a[0], a[1]),
)

define(
    "concat_array",
    ROWS,
    (VECTORS,),
    lambda a: ab.ops.reshape(a.concat(), (2, 3)),
    lambda a: jets.linear(lambda *xs: np.stack(xs), *a),
    construct="TensorArray.concat",
)


def _folded(joined: Any) -> Any:
    """Three numbers out of any number of them."""
    return ab.ops.sum(ab.ops.sin(joined)) * ab.ops.concatenate([joined, np.ones(3, joined.dtype)])[:3]


def _evaluate_folded(*pieces: Jet) -> Jet:
    joined = jets.linear(lambda *xs: np.concatenate(xs), *pieces)
    three = jets.linear(lambda x, ones: np.concatenate([x, ones])[:3], joined, jets.constant(np.ones(3)))
    return jets.multiply(jets.linear(np.sum, jets.sin(joined)), three)


def _append(piece: Jet, number: Jet) -> Jet:
    return jets.linear(lambda x, y: np.append(x, y), piece, number)


_VARYING = "TensorArray of varying lengths"
define(
    "concat_pieces",
    VECTOR,
    (PIECES,),
    lambda a: _folded(a.concat()),
    lambda a: _evaluate_folded(*a),
    construct="TensorArray.concat of varying lengths",
)
define(
    "fold_piece",
    VECTOR,
    (PIECES, INT),
    lambda a, i: _folded(a.read(i % 3)),
    lambda a, i: _evaluate_folded(a[i % 3]),
    construct=_VARYING,
)
define(
    "piece_scaled",
    PIECE,
    (PIECES, INT, SCALAR),
    lambda a, i, s: a.read(i % 3) * s,
    lambda a, i, s: jets.multiply(a[i % 3], s),
    construct=_VARYING,
)
define(
    "piece_longer",
    PIECE,
    (PIECES, INT, SCALAR),
    lambda a, i, s: ab.ops.concatenate([a.read(i % 3), ab.ops.reshape(s, (1,))]),
    lambda a, i, s: _append(a[i % 3], s),
    construct=_VARYING,
)
define(
    "piece_of",
    PIECE,
    (VECTOR, INT),
    lambda x, i: x[: i % 4],
    lambda x, i: jets.linear(lambda u: u[: i % 4], x),
    construct=_VARYING,
)

# Integers and bools
define("float_of", SCALAR, (INT,), lambda i: i, lambda i: jets.constant(float(i)))  # `building` casts
define("add_i", INT, (INT, INT), lambda a, b: (a + b) % 7, lambda a, b: (a + b) % 7)
define("mul_i", INT, (INT, INT), lambda a, b: (a * b) % 5, lambda a, b: (a * b) % 5)
define(
    "count_positive",
    INT,
    (VECTOR,),
    lambda x: ab.ops.sum(ab.ops.cast(x > 0, "int32")),
    lambda x: int(np.sum(above(x, 0.0))),
)
define("size_of", INT, (VECTORS,), lambda a: a.size(), len)
define("is_above", BOOL, (SCALAR,), lambda x: x > -0.25, lambda x: bool(above(x, -0.25)))
define("sum_is_below", BOOL, (VECTOR,), lambda x: ab.ops.sum(x) < 0.5, lambda x: not above(jets.linear(np.sum, x), 0.5))
define("is_even", BOOL, (INT,), lambda i: ab.ops.equal(i % 2, 0), lambda i: i % 2 == 0)
define("less", BOOL, (INT, INT), lambda a, b: a < b, lambda a, b: a < b)
define("both", BOOL, (BOOL, BOOL), lambda a, b: ab.ops.logical_and(a, b), lambda a, b: a and b)
define("negation", BOOL, (BOOL,), lambda a: ab.ops.logical_not(a), lambda a: not a)

__all__ = [
    "PRIMITIVES",
    "UnsuitableError",
    "above",
    "array_primitives",
    "bounded",
    "custom_primitives",
    "row_primitives",
]
