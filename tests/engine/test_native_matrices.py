"""Native loops with factorisations and solutions of small matrices, compared with LAPACK's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natives.loops import check, repeated
from shared.examples import examples

import anabranch as ab

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")

ops = ab.ops
linalg = ops.linalg


def turned(x: Any) -> Any:
    return ops.swapaxes(x, -1, -2)


def positive(x: Any) -> Any:
    """A positive definite matrix near the identity."""
    return x @ turned(x) * 0.1 + np.eye(x.shape[-1], dtype=x.dtype.name)


BODIES: dict[str, Callable[[Any], Any]] = {
    "inverse": lambda x: ops.inv(x) * 0.3 + x,
    "solve": lambda x: ops.solve(x, x[..., ::-1, :] * 0.5) + x,
    "determinant": lambda x: x + ops.det(x * 0.5)[..., None, None] * 0.1,
    "logarithm of the determinant": lambda x: x + ops.slogdet(x * 0.5)[1][..., None, None] * 0.1,
    "qr": lambda x: ops.qr(x)[0] * 0.3 + ops.qr(x * 0.5)[1],
    "qr of tall ones": lambda x: x * 0.5 + ops.qr(x[..., :2])[0] @ ops.qr(x[..., :2] + x[..., 1:3])[1] @ x[..., :2, :],
    "qr of wide ones": lambda x: x * 0.5 + turned(ops.qr(x[..., :2, :])[1]) @ ops.qr(x[..., 1:3, :])[0] @ x[..., :2, :],
    "lu": lambda x: x * 0.5 + ops.lu_factor(x)[0] * 0.3,
    "cholesky": lambda x: linalg.cholesky(positive(x)) * 0.2 + x,
    "lower": lambda x: linalg.solve_triangular(x, x * 0.5, lower=True) * 0.3 + x,
    "upper": lambda x: linalg.solve_triangular(x, turned(x), lower=False) * 0.2 + x,
    "transposed": lambda x: linalg.solve_triangular(turned(x), x, lower=True) * 0.3 + x,
    "by the factor": lambda x: x * 0.5 + turned(linalg.solve_triangular(linalg.cholesky(positive(x)), x, lower=True)),
}


def matrices(*shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    """Matrices whose rows are in another order than their pivots."""
    size, generator = shape[-1], np.random.default_rng(seed)
    found = generator.uniform(-1, 1, shape) + np.eye(size) * 1.5 * size**0.5
    return found.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", BODIES)
def test_a_body(name: str, dtype: str) -> None:
    check(repeated(BODIES[name], 2), matrices(2, 4, 4, dtype=dtype), rtol=2e-4 if dtype == "float32" else 1e-9)


@pytest.mark.parametrize("name", BODIES)
def test_a_gradient(name: str) -> None:
    def build(x: Any) -> list[Any]:
        _, y = repeated(BODIES[name], 2)(x)
        return ab.gradients(ops.sum(y * y), [x])

    check(build, matrices(3, 3), native=2, rtol=1e-8)


@settings(max_examples=examples(5, 300), deadline=None)
@given(
    size=st.integers(1, 9),
    columns=st.integers(1, 5),
    stack=st.lists(st.integers(0, 3), max_size=2),
    seed=st.integers(0, 1000),
)
def test_generated(size: int, columns: int, stack: list[int], seed: int) -> None:
    """Rows in any order, so that pivots are exchanged, and stacks without matrices."""
    generator = np.random.default_rng(seed)
    a = matrices(*stack, size, size, seed=seed)[..., generator.permutation(size), :]
    b = generator.standard_normal((*stack, size, columns))

    def build(a: Any, b: Any) -> list[Any]:
        start = (0, b, ops.zeros(stack, "float64"), ops.zeros_like(a))
        return list(
            ab.while_loop(
                lambda i, *_: i < 2,
                lambda i, x, d, s: (i + 1, ops.solve(a, x), d + ops.det(a), s + linalg.cholesky(positive(a))),
                start,
            )
        )[1:]

    check(build, a, b, rtol=1e-7)


@pytest.mark.parametrize("name", ["inverse", "solve", "lower"])
def test_a_singular_matrix_raises(name: str) -> None:
    with ab.Graph().as_default(), ab.Session() as session:
        x = ab.placeholder((2, 2), "float64")
        y = repeated(BODIES[name])(x)[1]

        assert np.isfinite(session.run(y, {x: matrices(2, 2)})).all()
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            session.run(y, {x: np.array([[1.0, 2.0], [0.0, 0.0]])})


def test_a_determinant_of_zero_and_one_that_is_not_definite() -> None:
    with ab.Graph().as_default(), ab.Session() as session:
        x = ab.placeholder((2, 2), "float64")
        total = ab.while_loop(
            lambda i, *_: i < 3, lambda i, d: (i + 1, d + ops.det(x)), (0, ab.constant(0.0, "float64"))
        )
        factor = ab.while_loop(
            lambda i, *_: i < 3, lambda i, y: (i + 1, y + linalg.cholesky(x)), (0, ops.zeros((2, 2), "float64"))
        )

        assert session.run(total[1], {x: [[1.0, 2.0], [2.0, 4.0]]}) == 0.0
        assert session.run(total[1], {x: [[0.0, 0.0], [0.0, 4.0]]}) == 0.0
        assert session.run(total[1], {x: [[0.0, 2.0], [3.0, 4.0]]}) == pytest.approx(-18)
        assert np.isnan(session.run(total[1], {x: [[np.nan, 2.0], [3.0, 4.0]]}))
        with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
            session.run(factor[1], {x: [[1.0, 2.0], [2.0, 1.0]]})


@pytest.mark.parametrize("shape", [(2, 0, 0), (0, 0), (0, 3, 3)])
def test_determinants_of_nothing(shape: tuple[int, ...]) -> None:
    """A matrix without rows has the determinant 1; a stack without matrices has none."""

    def build(x: Any) -> list[Any]:
        parts = lambda i: (ops.det(x * ops.cast(i, "float64")), ops.slogdet(x + ops.cast(i, "float64"))[1])  # noqa: E731
        body = lambda i, *found: (i + 1, *[a + b for a, b in zip(found, parts(i), strict=True)])  # noqa: E731
        return list(ab.while_loop(lambda i, *_: i < 3, body, (0, np.zeros(shape[:-2]), np.zeros(shape[:-2]))))[1:]

    check(build, np.zeros(shape))


def test_logarithms_of_determinants_of_any_sign() -> None:
    x = np.array([[[1.0, 2], [2, 4]], [[0, 2], [3, 4]], [[3, 0], [0, 2]], [[np.nan, 2], [3, 4]]])

    def build(x: Any) -> list[Any]:
        body = lambda i, *found: (i + 1, *[a + b for a, b in zip(found, ops.slogdet(x), strict=True)])  # noqa: E731
        return list(ab.while_loop(lambda i, *_: i < 3, body, (0, np.zeros(4), np.zeros(4))))[1:]

    with np.errstate(all="ignore"):
        check(build, x)


@settings(max_examples=examples(4, 200), deadline=None)
@given(rows=st.integers(1, 6), columns=st.integers(1, 6), kind=st.integers(0, 4), seed=st.integers(0, 1000))
def test_lu_of_any_shape(rows: int, columns: int, kind: int, seed: int) -> None:
    """Pivots of equal elements, of columns of zeros and of NaNs, too."""
    x = np.random.default_rng(seed).standard_normal((2, rows, columns))
    x = [x, np.round(x), np.triu(x), np.where(x > 1, np.nan, x), x * (np.arange(columns) % 3 != 1)][kind]

    def build(x: Any) -> list[Any]:
        def body(i: Any, lu: Any, pivots: Any) -> tuple[Any, ...]:
            found, exchanged = ops.lu_factor(x)
            return i + 1, lu * 0.5 + found, pivots + exchanged

        start = (0, np.zeros(x.shape), np.zeros((2, min(rows, columns)), "int32"))
        return list(ab.while_loop(lambda i, *_: i < 3, body, start))[1:]

    with np.errstate(all="ignore"):
        check(build, x, rtol=1e-8)


@pytest.mark.parametrize("mode", ["reduced", "complete"])
@settings(max_examples=examples(3, 200), deadline=None)
@given(rows=st.integers(1, 6), columns=st.integers(1, 6), kind=st.integers(0, 4), seed=st.integers(0, 1000))
def test_qr_of_any_shape(mode: str, rows: int, columns: int, kind: int, seed: int) -> None:
    """LAPACK's signs: of columns without anything to reflect, and of rows that repeat, too."""
    x = np.random.default_rng(seed).standard_normal((2, rows, columns))
    x = [x, np.round(x), np.triu(x), x * 1e-200, np.abs(x) * 1e3][kind]

    def build(x: Any) -> list[Any]:
        inner = rows if mode == "complete" else min(rows, columns)
        start = (0, np.zeros((2, rows, inner)), np.zeros((2, inner, columns)))
        body = lambda i, *found: (i + 1, *[a * 0.5 + b for a, b in zip(found, ops.qr(x, mode), strict=True)])  # noqa: E731
        return list(ab.while_loop(lambda i, *_: i < 3, body, start))[1:]

    if np.linalg.matrix_rank(x).min() == min(rows, columns):  # Q is not determined otherwise
        check(build, x, rtol=1e-8)


def test_a_kalman_filter_and_its_gradient_are_native() -> None:
    """Predictions and updates of a filter with two states, by the gradient of its likelihood."""
    generator = np.random.default_rng(0)
    transition, measured = np.array([[1, 0.1], [0, 0.95]]), generator.standard_normal((12, 1))
    eye = np.eye(2)

    def build(noise: Any, observations: Any) -> list[Any]:
        def body(i: Any, state: Any, covariance: Any, total: Any) -> tuple[Any, ...]:
            state = transition @ state
            covariance = transition @ covariance @ transition.T + eye * noise
            spread = covariance[:1, :1] + 0.1
            gain = ops.solve(spread, covariance[:1, :])
            miss = ops.reshape(observations[i], (1, 1)) - state[:1]
            total = total + ops.sum(miss * ops.solve(spread, miss)) + ops.log(ops.det(spread))
            return i + 1, state + turned(gain) @ miss, covariance - turned(gain) @ covariance[:1, :], total

        start = (0, np.zeros((2, 1)), eye, ab.constant(0.0, "float64"))
        *_, total = ab.while_loop(lambda i, *_: i < 12, body, start)
        return [total, *ab.gradients(total, [noise])]

    program = check(build, np.float64(0.2), measured, native=2, rtol=1e-9)
    _, found = program(np.float64(0.2), measured)
    up, down = (program(np.float64(0.2 + step), measured)[0] for step in (1e-6, -1e-6))
    assert found == pytest.approx((up - down) / 2e-6, rel=1e-6)
