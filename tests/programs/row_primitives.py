"""Rows at computed positions, and work on any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anabranch as ab

from . import jets
from .definitions import above, define, linear
from .jets import Jet
from .syntax import (
    INDICES,
    INT,
    MATRIX,
    NUMBERS,
    PART,
    ROWS,
    SCALAR,
    VECTOR,
    Type,
)

# Positions, and rows at them. Of two rows, position i is i % 4 - 2.
define(
    "positions",
    INDICES,
    (INT, INT, INT),
    lambda *xs: ab.ops.stack(xs) % 6 - 3,
    lambda *xs: np.array(xs) % 6 - 3,
)
define("shifted", INDICES, (INDICES, INT), lambda x, i: (x + i) % 6 - 3, lambda x, i: (x + i) % 6 - 3)
define("signs", INDICES, (VECTOR,), lambda x: ab.ops.where(x > 0, 1, -2), lambda x: np.where(above(x, 0.0), 1, -2))
define("order", INDICES, (VECTOR,), lambda x: ab.ops.argsort(x), lambda x: _order(x))
define("position", INT, (INDICES, INT), lambda x, i: x[i % 3] % 3, lambda x, i: int(x[i % 3] % 3))

_ROWS_AT = "rows at computed indices"


def _define_rows(name: str, result: Type, source: Type, build: Callable[..., Any], plain: Callable[..., Any]) -> None:
    def evaluate(x: Jet, indices: Any) -> Jet:
        return jets.linear(lambda u: plain(u, indices), x)

    define(name, result, (source, INDICES), build, evaluate, construct=_ROWS_AT)


def _rows_by_sign(x: Jet, positive: Any) -> Jet:
    return jets.linear(lambda u: u[np.where(positive, 2, -2)], x)


def _order(x: Jet) -> Any:
    above(Jet({0: np.diff(np.sort(x.value))}), 0.0)  # no ties
    return np.argsort(x.value)


_define_rows("take_rows", MATRIX, MATRIX, lambda x, i: ab.ops.take(x, i, axis=0), lambda x, i: x[i])
_define_rows("rows_at", MATRIX, MATRIX, lambda x, i: x[i], lambda x, i: x[i])
_define_rows("two_rows_at", ROWS, MATRIX, lambda x, i: ab.ops.take(x, i[1:], axis=0), lambda x, i: x[i[1:]])
_define_rows("rows_of_two", MATRIX, ROWS, lambda x, i: x[i % 4 - 2], lambda x, i: x[i % 4 - 2])
_define_rows("columns_at", ROWS, ROWS, lambda x, i: ab.ops.take(x, i, axis=1), lambda x, i: x[:, i])
_define_rows("numbers_at", VECTOR, VECTOR, lambda x, i: x[i], lambda x, i: x[i])
_define_rows("take_numbers", VECTOR, VECTOR, lambda x, i: ab.ops.take(x, i), lambda x, i: x[i])
define(
    "row_from_end",
    VECTOR,
    (MATRIX, INT),
    lambda x, i: ab.ops.take(x, -1 - i % 3, axis=0),
    lambda x, i: jets.linear(lambda u: u[-1 - i % 3], x),
    construct=_ROWS_AT,
)

# Some rows, however many
define("part_matmul", PART, (PART, MATRIX), lambda a, b: a @ b, lambda a, b: jets.product(np.matmul, a, b))
define("part_add_row", PART, (PART, VECTOR), lambda a, b: a + b, jets.add)
define("part_firsts", NUMBERS, (PART,), lambda a: a[:, 0], linear(lambda a: a[:, 0]))
define("part_row_sums", NUMBERS, (PART,), lambda a: ab.ops.sum(a, axis=1), linear(lambda a: a.sum(1)))
define("part_add_number", NUMBERS, (NUMBERS, SCALAR), lambda a, b: a + b, jets.add)
define(
    "part_outer",
    PART,
    (NUMBERS, VECTOR),
    lambda a, b: ab.ops.expand_dims(a, 1) * b,
    lambda a, b: jets.product(np.outer, a, b),
)
define(
    "part_rows_at",
    PART,
    (MATRIX, NUMBERS),
    lambda x, a: ab.ops.take(x, ab.ops.where(a > 0, 2, -2), axis=0),
    lambda x, a: _rows_by_sign(x, above(a, 0.0)),
    construct=_ROWS_AT,
)
