"""Kernels of triangular systems and of the Cholesky factor's gradient, against double precision and mpmath."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.factorisation.cholesky_gradient import cholesky_gradient_runner
from anabranch.engine.codegen.factorisation.triangular import triangular_runner
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.linear_algebra.triangular import CholeskyGradient, SolveTriangular

ops = ab.ops
DTYPES = ["float32", "float64"]
SIZES = st.sampled_from([1, 2, 7, 31, 32, 33, 64, 65, 100, 131])


def solver(dtype: str, lower: bool = True, transposed: bool = False, unit: bool = False, other: str = "") -> Any:
    with ab.Graph().as_default():
        a, b = ab.placeholder(None, dtype, "a"), ab.placeholder(None, other or dtype, "b")
        return triangular_runner(symbol_of(apply(SolveTriangular(lower, transposed, unit), a, b)).operation)


def gradient(dtype: str) -> Any:
    with ab.Graph().as_default():
        lower, cotangent = (ab.placeholder((None, None, None), dtype, name) for name in ("lower", "cotangent"))
        return cholesky_gradient_runner(symbol_of(apply(CholeskyGradient(), lower, cotangent)).operation)


def factor(rng: np.random.Generator, size: int, condition: float) -> Any:
    """The factor of a matrix of a condition."""
    turned = np.linalg.qr(rng.normal(size=(size, size)))[0]
    return np.linalg.cholesky((turned * np.geomspace(1, 1 / condition, size)) @ turned.T)


@given(st.data())
@settings(max_examples=examples(40, 200), deadline=None)
def test_any_system(data: st.DataObject):
    """The residual is that of a matrix near the given one; what does not count may be NaN."""
    size, columns, dtype = data.draw(SIZES), data.draw(st.integers(1, 41)), data.draw(st.sampled_from(DTYPES))
    lower, transposed, unit = [data.draw(st.booleans()) for _ in range(3)]
    batch_a, batch_b = data.draw(st.sampled_from([((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,)), ((2,), (2,))]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a = (rng.normal(size=(*batch_a, size, size)) / size**0.5 + 2 * np.eye(size)).astype(dtype)
    b = rng.normal(size=(*batch_b, size, columns)).astype(dtype)
    a[..., np.triu(np.ones((size, size), bool), 1) if lower else np.tril(np.ones((size, size), bool), -1)] = np.nan
    if unit:
        a[..., np.eye(size, dtype=bool)] = np.nan
    given = a.copy(), b.copy()
    x = solver(dtype, lower, transposed, unit)(a, b)
    counted = (np.tril(a, -int(unit)) if lower else np.triu(a, int(unit))).astype("float64") + unit * np.eye(size)
    counted = counted.swapaxes(-1, -2) if transposed else counted
    assert x.dtype == dtype
    assert x.shape == (*np.broadcast_shapes(batch_a, batch_b), size, columns)
    bound = 10 * np.finfo(dtype).eps * (np.abs(counted) @ np.abs(x)).max()
    np.testing.assert_allclose(counted @ x.astype("float64"), np.broadcast_to(b, x.shape), rtol=0, atol=bound)
    for before, after in zip(given, (a, b), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("columns", [1, 9])
@pytest.mark.parametrize("transposed", [False, True])
def test_against_exact_arithmetic_at_a_condition_of_a_million(columns: int, transposed: bool):
    rng = np.random.default_rng(7)
    a = factor(rng, 40, 1e12)  # whose own condition is the root of that
    b = rng.normal(size=(40, columns))
    found = solver("float64", True, transposed)(a, b)
    with mpmath.workdps(40):
        exact = mpmath.lu_solve(mpmath.matrix((a.T if transposed else a).tolist()), mpmath.matrix(b[:, :1].tolist()))
    expected = np.array([float(value) for value in exact])
    np.testing.assert_allclose(found[:, 0], expected, rtol=0, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("columns", [1, 20])
def test_a_zero_on_the_diagonal_raises_as_in_numpy(columns: int):
    a = np.eye(70, dtype="float32")
    a[40, 40] = 0
    b = np.ones((70, columns), "float32")
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        solver("float32")(a, b)
    np.testing.assert_array_equal(solver("float32", unit=True)(a, b), b)


def test_nan_reaches_what_is_found_after_it_and_no_other_right_side():
    a, b = np.eye(40), np.ones((40, 6))
    a[35, 3], b[3, 2] = 2.0, np.nan
    found = solver("float64")(a, b)
    expected = np.where(np.arange(40) == 35, -1.0, 1.0)
    np.testing.assert_array_equal(np.delete(found, 2, 1), np.tile(expected[:, None], 5))
    np.testing.assert_array_equal(found[:3, 2], 1.0)
    assert np.isnan(found[[3, 35], 2]).all()
    assert not np.isnan(solver("float64", transposed=True)(a, b)[4:, 2]).any()


def test_views_and_nothing():
    rng = np.random.default_rng(3)
    wide, b = rng.normal(size=(80, 80)) + 9 * np.eye(80), rng.normal(size=(6, 40))
    found = solver("float64")(wide[::2, ::2], b.T)
    np.testing.assert_allclose(np.tril(wide[::2, ::2]) @ found, b.T, atol=1e-12)
    assert solver("float64")(wide, np.ones((80, 0))).shape == (80, 0)
    assert solver("float64")(np.ones((0, 4, 4)), np.ones((4, 2))).shape == (0, 4, 2)
    assert solver("complex64") is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 31, 32, 33, 97, 200])
@pytest.mark.parametrize("condition", [1e2, 1e6])
def test_the_gradient_of_the_factor(dtype: str, size: int, condition: float):
    """It is as near to the exact one as what NumPy's way gives in the same precision, or nearer."""
    rng = np.random.default_rng(size)
    lower = factor(rng, size, condition).astype(dtype)
    cotangent = rng.normal(size=(size, size)).astype(dtype)
    upper = np.triu(np.full((size, size), np.nan, dtype), 1)
    found = gradient(dtype)(lower + upper, cotangent + upper)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, found.T)
    exact = _in_extended_precision(lower, cotangent)
    error = np.abs(found - exact).max()
    by_numpy = np.abs(CholeskyGradient().run(np, lower, cotangent) - exact).max()
    assert error <= 4 * by_numpy + 20 * np.finfo(dtype).eps * np.abs(exact).max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [449, 700])
def test_the_gradient_of_a_factor_whose_rows_are_divided_into_parts(dtype: str, size: int):
    rng = np.random.default_rng(size)
    lower, cotangent = factor(rng, size, 1e2).astype(dtype), rng.normal(size=(size, size)).astype(dtype)
    found = gradient(dtype)(lower, cotangent)
    np.testing.assert_array_equal(found, found.T)
    expected = _in_single_steps(lower.astype("float64"), cotangent.astype("float64"))
    bound = 20 * np.finfo(dtype).eps * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


def _in_single_steps(lower: Any, cotangent: Any) -> Any:
    """Compute Murray's equation 10 with the whole inverse."""
    half = np.tril(lower.T @ np.tril(cotangent))
    half -= np.diag(np.diag(half)) / 2
    inverse = np.linalg.inv(lower)
    whole = inverse.T @ half @ inverse
    return (whole + whole.T) / 2


def _in_extended_precision(lower: Any, cotangent: Any) -> Any:
    """Compute Murray's equation 10 in long doubles, by substitution."""
    lower, cotangent = np.tril(lower).astype("longdouble"), np.tril(cotangent).astype("longdouble")
    half = np.tril(lower.T @ cotangent)
    half -= np.diag(np.diag(half)) / 2
    first = _transposed_solution(lower, half)
    whole = _transposed_solution(lower, first.T).T
    return (whole + whole.T) / 2


def _transposed_solution(lower: Any, right: Any) -> Any:
    found = right.copy()
    for i in reversed(range(len(lower))):
        found[i] = (found[i] - lower[i + 1 :, i] @ found[i + 1 :]) / lower[i, i]
    return found


def test_stacks_and_what_gradients_leave_to_numpy():
    rng = np.random.default_rng(2)
    lower = np.stack([factor(rng, 50, 10.0) for _ in range(3)])
    cotangent = rng.normal(size=lower.shape)
    found = gradient("float64")(lower, cotangent)
    for one, given_lower, given_cotangent in zip(found, lower, cotangent, strict=True):
        np.testing.assert_array_equal(gradient("float64")(given_lower[None], given_cotangent[None])[0], one)
    assert gradient("float64")(lower[:0], cotangent[:0]).shape == (0, 50, 50)
    by_view = gradient("float64")(lower[:, ::2, ::2], cotangent[:, ::2, ::2])
    np.testing.assert_array_equal(by_view, CholeskyGradient().run(np, lower[:, ::2, ::2], cotangent[:, ::2, ::2]))
    lower[1, 4, 4] = 0
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        gradient("float64")(lower, cotangent)


def test_a_gaussian_process_and_differences():
    """A step computes its likelihood by these kernels; the slope is that of differences in double precision."""
    rng = np.random.default_rng(4)
    points, targets = rng.uniform(size=(150, 2)), rng.normal(size=(150, 1))
    distances = ((points[:, None] - points) ** 2).sum(-1)
    with ab.Graph().as_default(), ab.Session() as session:
        scale = ab.placeholder((), "float64", "scale")
        covariance = ops.exp(-distances * scale) + 0.1 * ops.eye(150, dtype="float64")
        lower = ops.cholesky(covariance)
        alpha = ops.solve_triangular(lower, targets, lower=True)
        loss = 0.5 * ops.sum(alpha * alpha) + ops.sum(ops.log(ops.diagonal(lower)))
        (slope,) = ab.gradients(loss, [scale])
        source = ab.explain([loss, slope], [scale])
        assert "run_cholesky_gradient" in source
        assert "run_solve_triangular" in source
        run = session.make_callable([loss, slope], [scale])
        ahead, behind = (run(3.0 + step)[0] for step in (1e-5, -1e-5))
        np.testing.assert_allclose(run(3.0)[1], (ahead - behind) / 2e-5, rtol=1e-6)
