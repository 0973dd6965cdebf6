"""Kernels of LU factors, of solutions, inverses and determinants of general matrices, against double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anabranch as ab
from anabranch.engine.codegen.factorisation import general, stacks
from anabranch.engine.codegen.natives import bind_native
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.linear_algebra.factorisations import LuFactor, SlogDet
from anabranch.engine.ops.linear_algebra.matrices import Determinant, Inverse, Solve

DTYPES = ["float32", "float64"]
# Sizes of small matrices are few: each is a kernel.
SHAPES = st.sampled_from(
    [(1, 1), (5, 5), (33, 33), (70, 70), (130, 130), (2, 40, 40), (300, 1, 1), (9, 2, 2), (17, 3, 3), (3, 3, 7, 7)]
)


@pytest.fixture(autouse=True)
def matrices_of_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels_for_all()


def use_kernels_for_all() -> None:
    """Use kernels where NumPy is as quick, too; also between examples, where fixtures are undone."""
    general._LEAST_ROWS = 1
    stacks._LEAST_ELIMINATED = 4


@pytest.fixture(autouse=True, scope="module")
def limits() -> Any:
    before = general._LEAST_ROWS, stacks._LEAST_ELIMINATED
    yield
    general._LEAST_ROWS, stacks._LEAST_ELIMINATED = before


def runner(op: Any, dtype: str = "float64", inputs: int = 1) -> Any:
    with ab.Graph().as_default():
        made = apply(op, *[ab.placeholder(None, dtype, f"x_{number}") for number in range(inputs)])
        found = bind_native(symbol_of(made[0] if isinstance(made, tuple) else made).operation)
    assert found is not None
    return found


def matrices(shape: Any, dtype: str = "float64", number: int = 0) -> Any:
    """Random matrices of a condition of at most 100, of which rows have to be exchanged."""
    rng = np.random.default_rng(number)
    left, right = (np.linalg.qr(rng.normal(size=shape))[0] for _ in range(2))
    return np.ascontiguousarray((left * np.geomspace(1, 100, shape[-1])) @ right, dtype)


def close(found: Any, expected: Any, dtype: str) -> None:
    """Compare: float32 is computed in double precision, and rounded once."""
    assert np.asarray(found).dtype == dtype
    scale = np.abs(expected).max(initial=1e-300)
    tolerance = (2e-7 if dtype == "float32" else 1e-12) * scale
    np.testing.assert_allclose(np.asarray(found, "float64"), expected, rtol=0, atol=tolerance)


@given(shape=SHAPES, dtype=st.sampled_from(DTYPES), number=st.integers(0, 9), columns=st.sampled_from([1, 3]))
@settings(max_examples=40)
def test_random_shapes(shape: Any, dtype: str, number: int, columns: int):
    use_kernels_for_all()
    x = matrices(shape, dtype, number)
    b = np.random.default_rng(number).normal(size=(*shape[:-1], columns)).astype(dtype)
    exact = x.astype("float64")
    close(runner(Solve(), dtype, 2)(x, b), np.linalg.solve(exact, b), dtype)
    close(runner(Inverse(), dtype)(x), np.linalg.inv(exact), dtype)
    sign, logarithm = runner(SlogDet(), dtype)(x)
    np.testing.assert_array_equal(sign, np.linalg.slogdet(exact)[0])
    close(logarithm, np.linalg.slogdet(exact)[1], dtype)
    if dtype == "float64" or shape[-1] < 10:  # that of a larger one is out of the range of float32
        close(runner(Determinant(), dtype)(x), np.linalg.det(exact), dtype)


@given(
    rows=st.sampled_from([1, 2, 31, 32, 33, 64, 100]),
    columns=st.sampled_from([1, 2, 31, 32, 33, 64, 100]),
    count=st.sampled_from([1, 2]),
    dtype=st.sampled_from(DTYPES),
    number=st.integers(0, 9),
)
@settings(max_examples=40)
def test_factors_of_random_shapes(rows: int, columns: int, count: int, dtype: str, number: int):
    use_kernels_for_all()
    x = np.random.default_rng(number).normal(size=(count, rows, columns)).astype(dtype)
    check_factors(x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_factors_of_stacks_of_small_matrices(size: int, dtype: str):
    check_factors(np.random.default_rng(size).normal(size=(3, 13, size, size)).astype(dtype))


def check_factors(x: Any) -> None:
    lu, pivots, order = runner(LuFactor(), x.dtype.name)(x)
    steps = min(x.shape[-2:])
    lower = np.tril(lu, -1)[..., :steps] + np.eye(x.shape[-2], steps)
    moved = np.take_along_axis(x, order[..., None].astype("int64"), -2)
    error = np.abs(lower @ np.triu(lu)[..., :steps, :].astype("float64") - moved).max()
    assert error <= 20 * steps * np.finfo(x.dtype).eps * np.abs(x).max()
    assert np.abs(lower).max() <= 1
    expected = LuFactor().run(np, x)
    np.testing.assert_array_equal(pivots, expected[1])
    np.testing.assert_array_equal(order, expected[2])
    assert [part.dtype for part in (lu, pivots, order)] == [x.dtype, np.int32, np.int32]


@pytest.mark.parametrize("shape", [(40, 4, 4), (50, 50)])
def test_matrices_that_only_exchanges_solve(shape: Any):
    """A permutation has zeros on its diagonal."""
    turned = np.roll(np.eye(shape[-1]), 1, axis=0)
    x = np.ascontiguousarray(np.broadcast_to(turned, shape))
    np.testing.assert_array_equal(runner(Inverse())(x), np.broadcast_to(turned.T, shape))
    np.testing.assert_array_equal(runner(Determinant())(x), np.linalg.det(x))
    np.testing.assert_array_equal(runner(SlogDet())(x)[0], -1)
    check_factors(x)


@pytest.mark.parametrize("shape", [(40, 4, 4), (50, 50)])
def test_singular_matrices(shape: Any):
    x = matrices(shape)
    x[..., 1] = 0.0
    b = np.ones((*shape[:-1], 1))
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        runner(Solve(), inputs=2)(x, b)
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        runner(Inverse())(x)
    zeros = np.zeros(shape)
    np.testing.assert_array_equal(runner(Determinant())(zeros), 0)
    sign, logarithm = runner(SlogDet())(zeros)
    np.testing.assert_array_equal(sign, 0)
    np.testing.assert_array_equal(logarithm, -np.inf)
    check_factors(zeros)


@pytest.mark.parametrize("shape", [(40, 4, 4), (50, 50)])
@pytest.mark.parametrize("place", [(0, 0), (2, 1), (3, 3)])
def test_what_is_no_number_is_one_nowhere(shape: Any, place: tuple[int, int]):
    x = matrices(shape)
    x[(..., *place)] = np.nan
    with np.errstate(invalid="ignore"):  # as in a session
        assert np.isnan(runner(Determinant())(x)).all()
        assert np.isnan(runner(SlogDet())(x)[1]).all()
        assert np.isnan(runner(Solve(), inputs=2)(x, np.ones((*shape[:-1], 1)))).any(axis=(-2, -1)).all()
    found, expected = runner(LuFactor())(x), LuFactor().run(np, x)
    np.testing.assert_array_equal(found[1], expected[1])


def test_determinants_whose_products_leave_the_range_of_numbers_on_their_way():
    x = np.broadcast_to(np.diag([1e200, 1e200, 1e-200, 1e-200]), (64, 4, 4)).copy()
    np.testing.assert_allclose(runner(Determinant())(x), 1.0, rtol=1e-12)
    np.testing.assert_allclose(runner(Determinant())(x[:, ::-1, ::-1].copy()), 1.0, rtol=1e-12)
    large = np.broadcast_to(np.diag([1e30, 1e30]), (64, 2, 2)).astype("float32")
    np.testing.assert_array_equal(runner(Determinant(), "float32")(large), np.inf)


def test_right_sides_and_matrices_are_broadcast():
    a, b = matrices((5, 1, 6, 6)), np.random.default_rng(0).normal(size=(7, 6, 2))
    close(runner(Solve(), inputs=2)(a, b), np.linalg.solve(a, b), "float64")
    a, b = matrices((60, 60)), np.random.default_rng(0).normal(size=(3, 60, 2))
    close(runner(Solve(), inputs=2)(a, b), np.linalg.solve(a, b), "float64")
    close(runner(Solve(), inputs=2)(a[None], b), np.linalg.solve(a, b), "float64")


def test_views_and_empty_stacks():
    x = matrices((64, 5, 5))
    for view in (x.swapaxes(-1, -2), x[::2], np.broadcast_to(x[0], (64, 5, 5))):
        close(runner(Inverse())(view), np.linalg.inv(view), "float64")
        check_factors(view)
    for shape in ((0, 5, 5), (4, 0, 0)):
        empty = np.zeros(shape)
        assert runner(Inverse())(empty).shape == shape
        np.testing.assert_array_equal(runner(Determinant())(empty), np.linalg.det(empty))
        assert runner(LuFactor())(empty)[0].shape == shape


def test_complex_matrices_are_left_to_numpy():
    with ab.Graph().as_default():
        x = ab.placeholder((None, 3, 3), "complex64", "x")
        assert bind_native(symbol_of(apply(Inverse(), x)).operation) is None
        assert bind_native(symbol_of(apply(Solve(), x, x)).operation) is None
