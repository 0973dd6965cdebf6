"""Products of few rows, or of one column, by a large matrix: its rows are read one behind the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.gemm_calls import ROWS, TRANSPOSED, product

import anabranch as ab
from anabranch import ops
from anabranch.engine.codegen.elementwise.bound import BoundKernel
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")

TOLERANCES = {"float32": 1e-5, "float64": 1e-13}
COLUMNS = st.sampled_from([1, 2, 5, 16, 31, 33, 100, 257, 1000, 4096, 4099, 9001])
TERMS = st.sampled_from([1, 2, 7, 8, 9, 17, 64, 255, 256, 257, 515, 1030])


def draw(rng: np.random.Generator, dtype: str, rows: int, columns: int, gap: int = 0) -> Any:
    return rng.uniform(-1, 1, (rows, columns + gap)).astype(dtype)[:, :columns]


@settings(max_examples=examples(60, 400), deadline=None)
@given(
    st.integers(1, 6), COLUMNS, TERMS, st.sampled_from([ROWS, TRANSPOSED]), st.sampled_from(sorted(TOLERANCES)),
    st.lists(st.booleans(), max_size=2), st.sampled_from([0, 3]), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_any_size(
    rows: int, columns: int, terms: int, form: int, dtype: str, addends: list[bool], gap: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a = draw(rng, dtype, rows, terms, gap)
    b = draw(rng, dtype, columns, terms, gap) if form == TRANSPOSED else draw(rng, dtype, terms, columns, gap)
    added = [draw(rng, dtype, rows, columns, gap) if each else draw(rng, dtype, 1, columns)[0] for each in addends]
    wide = [each.astype("float64") for each in (a, b.T if form == TRANSPOSED else b)]
    wanted = wide[0] @ wide[1] + sum((each.astype("float64") for each in added), np.zeros(columns))
    around = np.full((rows + 2, columns + gap), 7.0, dtype)
    found = product(a, b, False, form, added, around[1:-1, :columns])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCES[dtype] * (1 + terms**0.5))
    assert (around[[0, -1]] == 7).all()
    assert (around[:, columns:] == 7).all()


@pytest.mark.parametrize(("terms", "columns"), [(100, 1003), (256, 1003), (700, 1003), (900, 37), (4000, 13)])
def test_a_row_has_the_bits_that_it_has_among_many(terms: int, columns: int) -> None:
    rng = np.random.default_rng(1)
    a, b = draw(rng, "float32", 12, terms), draw(rng, "float32", terms, columns)
    bias = draw(rng, "float32", 1, columns)[0]
    together = product(a, b, addends=[bias])
    for rows in (1, 2, 4):
        np.testing.assert_array_equal(product(a[:rows], b, addends=[bias]), together[:rows])


@settings(max_examples=examples(20, 100), deadline=None)
@given(st.sampled_from([2, 3, 64, 1001]), TERMS, st.booleans(), st.booleans(), st.sampled_from(sorted(TOLERANCES)))
def test_one_column(rows: int, terms: int, transposed: bool, is_turned: bool, dtype: str) -> None:
    rng = np.random.default_rng(rows + terms)
    a = draw(rng, dtype, terms, rows) if transposed else draw(rng, dtype, rows, terms, 2)
    b = draw(rng, dtype, 1, terms) if is_turned else draw(rng, dtype, terms, 1)
    found = product(a, b, transposed, TRANSPOSED if is_turned else ROWS)
    wanted = (a.T if transposed else a).astype("float64") @ np.ravel(b).astype("float64")
    np.testing.assert_allclose(found[:, 0], wanted, rtol=0, atol=TOLERANCES[dtype] * (1 + terms**0.5))


@pytest.mark.parametrize("form", [ROWS, TRANSPOSED])
def test_nan_and_infinity_stay_in_their_columns(form: int) -> None:
    rng = np.random.default_rng(2)
    a, b = draw(rng, "float32", 1, 300), draw(rng, "float32", 300, 500)
    b[7, 52], b[9, 60] = np.nan, np.inf
    found = product(a, np.ascontiguousarray(b.T) if form == TRANSPOSED else b, form=form)[0]
    assert np.flatnonzero(~np.isfinite(found)).tolist() == [52, 60]
    assert np.isnan(found[52])
    assert found[60] == np.sign(a[0, 9]) * np.inf


def program_of(build: Any, *values: Any) -> Program:
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(value.shape, value.dtype.name) for value in values]
        return Program(graph, [build(*feeds)], feeds)


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda x, w: x @ w, (1, 700)),
        (lambda x, w: x @ ops.transpose(w), (1, 600)),
        (lambda x, w: ops.tanh(x @ w + 1.0), (2, 700)),
        (lambda x, w: w @ x, (600, 1)),
        (lambda x, w: ops.matmul(w, x), (600,)),
        (lambda x, w: ops.transpose(w) @ x, (700, 1)),
    ],
)
def test_programs_leave_no_such_product_to_blas(build: Any, shape: tuple[int, ...]) -> None:
    """Steps run BLAS on one thread, with which it takes twice as long."""
    rng = np.random.default_rng(3)
    x, w = rng.uniform(-1, 1, shape).astype("float32"), draw(rng, "float32", 700, 600)
    program = program_of(build, x, w)
    assert "kernel(" in program.source
    assert any(isinstance(each, BoundKernel) for each in map(_owner, program.bindings.values()))
    wanted = program_of(build, x.astype("float64"), w.astype("float64"))(x.astype("float64"), w.astype("float64"))
    np.testing.assert_allclose(program(x, w)[0], wanted[0], rtol=0, atol=1e-4)


def _owner(value: Any) -> Any:
    return getattr(value, "__self__", value)
