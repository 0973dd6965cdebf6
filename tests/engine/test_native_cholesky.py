"""Kernels of the Cholesky factor against NumPy's in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anabranch as ab
from anabranch.engine.codegen.factorisation import cholesky as kernels
from anabranch.engine.codegen.factorisation.cholesky import cholesky_runner
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.linear_algebra.cholesky import Cholesky

ops = ab.ops
TOLERANCE = {"float32": 1e-6, "float64": 1e-14}


@pytest.fixture(autouse=True)
def small_matrices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_LEAST", 1)


def positive(size: int, dtype: str, count: int = 1, condition: float = 10.0, number: int = 0) -> Any:
    """Symmetric matrices with eigenvalues from 1 to `condition`."""
    rng = np.random.default_rng(number)
    turned = np.linalg.qr(rng.normal(size=(count, size, size)))[0]
    return np.ascontiguousarray((turned * np.geomspace(1, condition, size)) @ turned.swapaxes(-1, -2), dtype)


def runner(shape: Any, dtype: str) -> Any:
    with ab.Graph().as_default():
        found = cholesky_runner(symbol_of(ops.cholesky(ab.placeholder(shape, dtype, "x"))).operation)
    assert found is not None
    return found


def check(x: Any, found: Any, condition: float = 10.0) -> None:
    expected = np.linalg.cholesky(x.astype("float64"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[x.dtype.name] * condition)
    assert found.dtype == x.dtype
    assert not np.triu(found, 1).any()


@given(
    size=st.integers(1, 140),
    dtype=st.sampled_from(["float32", "float64"]),
    count=st.integers(1, 3),
    number=st.integers(0, 9),
)
@settings(max_examples=25)
def test_random_sizes(size: int, dtype: str, count: int, number: int):
    kernels._LEAST = 1  # the fixture is undone between examples
    x = positive(size, dtype, count, number=number)
    check(x, runner((None, None, None), dtype)(x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("condition", [1e2, 1e5])
def test_the_product_of_the_factor_is_the_matrix_whatever_its_condition(dtype: str, condition: float):
    x = positive(200, dtype, condition=condition)[0]
    found = runner((200, 200), dtype)(x).astype("float64")
    assert np.abs(found @ found.T - x).max() <= 10 * np.finfo(dtype).eps * np.abs(x).max()


@pytest.mark.parametrize(("dtype", "noise"), [("float64", 1e-10), ("float32", 1e-3)])
def test_kernels_of_gaussian_processes_with_little_noise(dtype: str, noise: float):
    """Their blocks on the diagonal are nearly singular: a product with an inverse alone would be off by far more."""
    points = np.linspace(0, 1, 200)
    x = (np.exp(-(((points[:, None] - points) / 0.05) ** 2) / 2) + noise * np.eye(200)).astype(dtype)
    found = runner((200, 200), dtype)(x).astype("float64")
    assert np.abs(found @ found.T - x).max() <= 10 * np.finfo(dtype).eps


def test_half_the_sum_with_the_transpose_counts():
    x = positive(70, "float64")[0]
    lopsided = x + np.triu(np.ones_like(x), 1) - np.tril(np.ones_like(x), -1)
    check(x, runner((70, 70), "float64")(np.ascontiguousarray(lopsided)))


@pytest.mark.parametrize("place", [0, 31, 32, 69])
def test_what_is_not_positive_definite_raises_as_in_numpy(place: int):
    x = positive(70, "float32")
    x[0, place, place] = -1.0
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        runner((1, 70, 70), "float32")(x)
    both = np.concatenate([positive(70, "float32"), x])
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        runner((None, 70, 70), "float32")(both)


def test_nan_is_as_in_numpy():
    x = positive(70, "float64")[0]
    x[40, 40] = np.nan
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(runner((70, 70), "float64")(x), np.linalg.cholesky((x + x.T) / 2))


def test_views_no_matrices_and_other_dtypes_are_left_to_numpy():
    x = positive(140, "float32")[0]
    check(np.ascontiguousarray(x[::2, ::2]), runner((None, None), "float32")(x[::2, ::2]))
    assert runner((0, 70, 70), "float32")(np.zeros((0, 70, 70), "float32")).shape == (0, 70, 70)
    with ab.Graph().as_default():
        assert cholesky_runner(symbol_of(ops.cholesky(ab.placeholder((70, 70), "complex64", "x"))).operation) is None


def test_the_step_uses_it_and_its_gradient_is_right():
    kernels._LEAST = 1
    x = positive(40, "float64")[0]
    weights = np.random.default_rng(1).normal(size=(40, 40))
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder((40, 40), "float64", "x")
        factor = ops.cholesky(fed)
        loss = ops.sum(factor * weights)
        (gradient,) = ab.gradients(loss, [fed])
        session = ab.Session(graph)
        found, slope = session.run([factor, gradient], {fed: x})
        assert any(isinstance(operation.op, Cholesky) for operation in graph.operations)
        check(x, found)
        step = np.random.default_rng(2).normal(size=(40, 40))
        step = (step + step.T) * 1e-6
        ahead, behind = (session.run(loss, {fed: np.ascontiguousarray(x + sign * step)}) for sign in (1, -1))
    np.testing.assert_allclose((ahead - behind) / 2, np.sum(slope * step), rtol=1e-5)
