"""Updates of parts of arrays, normalisations along an axis, and sums that run along one."""

from __future__ import annotations

from typing import Any

import numpy as np

import anabranch as ab

from . import jets
from .definitions import define, linear
from .jets import Jet
from .syntax import INDICES, INT, MATRIX, SCALAR, VECTOR

# --- updates ----------------------------------------------------------------------------------------------------------

_UPDATES = "updates of parts of arrays"


def _row(x: Any) -> Any:
    return ab.ops.reshape(x, (1, 3))


def _with_row(matrix: Jet, row: Jet, i: int) -> Jet:
    def put(m: Any, r: Any) -> Any:
        m = m.copy()
        m[i % 3] = r
        return m

    return jets.linear(put, matrix, row)


def _with_rows_at(matrix: Jet, rows: Jet, indices: Any) -> Jet:
    def put(m: Any, r: Any) -> Any:
        m = m.copy()
        for place, position in enumerate(indices):  # of several for one place the last one counts
            m[position % 3] = r[place]
        return m

    return jets.linear(put, matrix, rows)


def _with_added(matrix: Jet, rows: Jet, indices: Any) -> Jet:
    def put(m: Any, r: Any) -> Any:
        m = m.copy()
        np.add.at(m, indices % 3, r)
        return m

    return jets.linear(put, matrix, rows)


define(
    "with_row",
    MATRIX,
    (MATRIX, VECTOR, INT),
    lambda m, row, i: ab.ops.slice_update(m, (i % 3, 0), _row(row)),
    _with_row,
    construct=_UPDATES,
)
define(
    "with_rows_at",
    MATRIX,
    (MATRIX, MATRIX, INDICES),
    lambda m, rows, at: ab.ops.scatter_update(m, ab.ops.reshape(at % 3, (3, 1)), rows),
    _with_rows_at,
    construct=_UPDATES,
)
define(
    "with_added_rows",
    MATRIX,
    (MATRIX, MATRIX, INDICES),
    lambda m, rows, at: ab.ops.tensor_scatter_nd_add(m, ab.ops.reshape(at % 3, (3, 1)), rows),
    _with_added,
    construct=_UPDATES,
)
define(
    "part_of",
    VECTOR,
    (MATRIX, INT),
    lambda m, i: ab.ops.reshape(ab.ops.slice(m, (i % 3, 0), (1, 3)), (3,)),
    lambda m, i: jets.linear(lambda u: u[i % 3], m),
    construct=_UPDATES,
)

# --- normalisations ---------------------------------------------------------------------------------------------------

_NORMALISED = "normalisations"


def _softmax(x: Jet) -> Jet:
    powers = jets.exp(jets.linear(np.subtract, x, jets.constant(np.max(x.value, axis=-1, keepdims=True))))
    return jets.multiply(powers, jets.reciprocal(jets.linear(_sum, powers)))


def _log_sum_exp(x: Jet) -> Jet:
    return jets.log(jets.linear(lambda u: np.sum(u, axis=-1), jets.exp(x)))


def _normalised(x: Jet) -> Jet:
    centred = jets.linear(lambda u: u - np.mean(u, axis=-1, keepdims=True), x)
    variance = jets.linear(lambda u: np.mean(u, axis=-1, keepdims=True), jets.multiply(centred, centred))
    return jets.multiply(centred, jets.rsqrt(jets.add(variance, jets.constant(0.25))))


def _sum(x: Any) -> Any:
    return np.sum(x, axis=-1, keepdims=True)


for _letter, _type in (("v", VECTOR), ("m", MATRIX)):
    define(f"softmax_{_letter}", _type, (_type,), lambda x: ab.ops.softmax(x), _softmax, construct=_NORMALISED)
    define(
        f"normalised_{_letter}",
        _type,
        (_type,),
        lambda x: ab.ops.layer_normalization(x, epsilon=0.25),
        _normalised,
        construct=_NORMALISED,
    )
define("log_sum_exp", SCALAR, (VECTOR,), lambda x: ab.ops.logsumexp(x), _log_sum_exp, construct=_NORMALISED)
define(
    "row_log_sums",
    VECTOR,
    (MATRIX,),
    lambda x: ab.ops.logsumexp(x, axis=-1),
    _log_sum_exp,
    construct=_NORMALISED,
)

# --- along an axis ----------------------------------------------------------------------------------------------------

define("running_sums", MATRIX, (MATRIX,), lambda x: ab.ops.cumsum(x, axis=0), linear(lambda x: np.cumsum(x, axis=0)))
define(
    "turned",
    MATRIX,
    (MATRIX,),
    lambda x: ab.ops.roll(ab.ops.flip(x, axis=1), 1, axis=0),
    linear(lambda x: np.roll(np.flip(x, axis=1), 1, axis=0)),
)
define(
    "sums_of_products",
    VECTOR,
    (MATRIX, MATRIX),
    lambda a, b: ab.ops.einsum("ij,kj->k", a, b),
    lambda a, b: jets.product(lambda x, y: np.einsum("ij,kj->k", x, y), a, b),
)
