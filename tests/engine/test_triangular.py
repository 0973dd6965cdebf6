"""Triangular systems and the gradient of the Cholesky factor, by blocks: against double precision and differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

from anabranch import ops
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.linear_algebra import triangular
from anabranch.engine.ops.linear_algebra.triangular import CholeskyGradient, SolveTriangular
from anabranch.engine.testing import check_gradients

SIZES = st.one_of(st.integers(0, 9), st.integers(60, 140), st.sampled_from([64, 65, 128, 129, 193]))


def triangle(rng: np.random.Generator, size: int, batch: tuple[int, ...] = ()) -> Any:
    """Matrices whose triangles are well conditioned."""
    return rng.normal(size=(*batch, size, size)) / max(size, 1) ** 0.5 + 2.0 * np.eye(size)


def positive(rng: np.random.Generator, size: int, condition: float) -> Any:
    """A symmetric matrix of a condition."""
    q, _ = np.linalg.qr(rng.normal(size=(size, size)))
    return (q * np.geomspace(1.0, 1.0 / condition, size)) @ q.T


def gradient_in_double(lower: Any, cotangent: Any) -> Any:
    """Murray's equation 10, with a whole inverse."""
    inverse = np.linalg.inv(lower)
    half = np.tril(lower.T @ np.tril(cotangent))
    half -= np.diag(np.diag(half)) / 2
    whole = inverse.T @ half @ inverse
    return (whole + whole.T) / 2


@given(st.data())
@settings(max_examples=examples(15, 60), deadline=None)
def test_any_triangular_system(data: st.DataObject):
    size, columns = data.draw(SIZES), data.draw(st.integers(0, 5))
    lower, transposed, unit = [data.draw(st.booleans()) for _ in range(3)]
    batch_a, batch_b = data.draw(st.sampled_from([((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,)), ((0,), ())]))
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a, b = triangle(rng, size, batch_a), rng.normal(size=(*batch_b, size, columns))
    a[..., np.triu(np.ones((size, size), bool), 1) if lower else np.tril(np.ones((size, size), bool), -1)] = np.nan
    counted = np.tril(a) if lower else np.triu(a)
    if unit:
        counted = counted - np.eye(size) * counted + np.eye(size)
    expected = np.linalg.solve(counted.swapaxes(-1, -2) if transposed else counted, b)
    found = SolveTriangular(lower, transposed, unit).run(np, a.astype(dtype), b.astype(dtype))
    assert found.shape == expected.shape
    assert found.dtype == dtype
    tolerance = 2e-4 if dtype == "float32" else 1e-11
    np.testing.assert_allclose(
        found, expected, rtol=tolerance, atol=tolerance * max(1.0, np.abs(expected).max(initial=0))
    )


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_gradients_of_solutions(lower: bool, transposed: bool, unit: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(triangular, "_BLOCK", 2)
    rng = np.random.default_rng(3)
    op = SolveTriangular(lower, transposed, unit)
    check_gradients(lambda a, b: ops.sin(apply(op, a, b)), [triangle(rng, 5), rng.normal(size=(5, 2))], order=2)
    stack = [triangle(rng, 3, (2,)), rng.normal(size=(3, 1))]
    check_gradients(lambda a, b: apply(op, a, b), stack, order=2)


@pytest.mark.parametrize("size", [1, 2, 5, 63, 64, 65, 130])
@pytest.mark.parametrize("condition", [1e1, 1e6])
def test_the_gradient_of_the_factor_in_double(size: int, condition: float):
    rng = np.random.default_rng(size)
    lower = np.linalg.cholesky(positive(rng, size, condition))
    cotangent = rng.normal(size=(size, size))
    expected = gradient_in_double(lower, cotangent)
    found = CholeskyGradient().run(np, lower + np.triu(np.full((size, size), np.nan), 1), cotangent)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_allclose(found, expected, atol=1e-15 * condition * np.abs(expected).max())


@pytest.mark.parametrize("size", [5, 64, 200])
def test_the_gradient_of_the_factor_in_single_precision(size: int):
    rng = np.random.default_rng(size)
    lower = np.linalg.cholesky(positive(rng, size, 100.0))
    cotangent = rng.normal(size=(size, size))
    expected = gradient_in_double(lower, cotangent)
    found = CholeskyGradient().run(np, lower.astype("float32"), cotangent.astype("float32"))
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


def test_second_derivatives_of_a_gaussian_process(monkeypatch: pytest.MonkeyPatch):
    """The factor of a matrix, a system that it solves and its determinant, over blocks, to the second order."""
    monkeypatch.setattr(triangular, "_BLOCK", 2)
    rng = np.random.default_rng(1)

    def likelihood(a: Any, b: Any) -> Any:
        lower = ops.cholesky(a)
        return ops.sum(ops.square(ops.solve_triangular(lower, b, lower=True))) + ops.sum(ops.log(ops.diagonal(lower)))

    check_gradients(likelihood, [positive(rng, 5, 5.0) + np.eye(5), rng.normal(size=(5, 1))], order=2)


def test_a_singular_triangle_is_an_error():
    a = np.eye(130, dtype="float32")
    a[100, 100] = 0.0
    with pytest.raises(np.linalg.LinAlgError):
        SolveTriangular(True).run(np, a, np.ones((130, 1), "float32"))


def test_a_stack_of_matrices_is_solved_by_vectorized_map():
    rng = np.random.default_rng(5)
    a, b = triangle(rng, 4, (3,)).astype("float32"), rng.normal(size=(3, 4)).astype("float32")
    found = ops.vectorized_map(lambda pair: ops.solve_triangular(pair[0], pair[1], lower=True), (a, b))
    expected = np.linalg.solve(np.tril(a), b[..., None])[..., 0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
