"""Kernels of stacks of small matrices, with vectors across the matrices, against double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.factorisation import stacks
from anabranch.engine.codegen.factorisation.cholesky import cholesky_runner
from anabranch.engine.codegen.factorisation.cholesky_gradient import cholesky_gradient_runner
from anabranch.engine.codegen.factorisation.triangular import triangular_runner
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.linear_algebra.triangular import CholeskyGradient, SolveTriangular

ops = ab.ops
DTYPES = ["float32", "float64"]
SIZES = st.sampled_from([1, 2, 3, 4, 7, 8, 9, 16])  # a few: each is a kernel
COUNTS = st.sampled_from([4, 7, 8, 9, 17, 40])


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Return what is called from now on, by names, and whether it was left to NumPy."""
    found: list[tuple[str, bool]] = []
    run = stacks.run_stack

    def recorded(name: str, *arguments: Any) -> bool:
        found.append((name, run(name, *arguments)))
        return found[-1][1]

    for module in ("cholesky", "cholesky_gradient", "triangular"):
        monkeypatch.setattr(f"anabranch.engine.codegen.factorisation.{module}.run_stack", recorded)
    return found


def runner(kind: str, dtype: str, *flags: bool) -> Any:
    with ab.Graph().as_default():
        a, b = (ab.placeholder(None, dtype, name) for name in "ab")
        if kind == "cholesky":
            return cholesky_runner(symbol_of(ops.cholesky(a)).operation)
        if kind == "gradient":
            return cholesky_gradient_runner(symbol_of(apply(CholeskyGradient(), a, b)).operation)
        return triangular_runner(symbol_of(apply(SolveTriangular(*flags), a, b)).operation)


def lower_triangles(count: int, size: int, dtype: str, number: int = 0) -> Any:
    rng = np.random.default_rng(number)
    return (np.tril(rng.normal(size=(count, size, size)), -1) / size + np.eye(size) * 1.5).astype(dtype)


def positive(count: int, size: int, dtype: str, number: int = 0) -> Any:
    lower = lower_triangles(count, size, "float64", number)
    return (lower @ lower.swapaxes(1, 2)).astype(dtype)


def close(found: Any, expected: Any) -> None:
    """Compare within some roundings."""
    tolerance = 60 * np.finfo(found.dtype).eps
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * max(1.0, np.abs(expected).max()))


@given(SIZES, COUNTS, st.sampled_from(DTYPES), st.integers(0, 9))
@settings(max_examples=examples(30, 300), deadline=None)
def test_factors_and_their_gradients(size: int, count: int, dtype: str, number: int):
    """Half the sum with the transpose counts, of the cotangent the lower triangle alone."""
    x = positive(count, size, dtype, number)
    lopsided = x + np.triu(np.ones_like(x), 1) - np.tril(np.ones_like(x), -1)
    found = runner("cholesky", dtype)(np.ascontiguousarray(lopsided))
    close(found, np.linalg.cholesky(x.astype("float64")))
    assert found.dtype == dtype
    assert not np.triu(found, 1).any()
    cotangent = np.random.default_rng(number).normal(size=x.shape).astype(dtype)
    expected = CholeskyGradient().run(np, found.astype("float64"), cotangent.astype("float64"))
    close(runner("gradient", dtype)(found, cotangent), expected)


@given(st.data())
@settings(max_examples=examples(30, 300), deadline=None)
def test_solutions(data: st.DataObject):
    """Right sides may be shared by all matrices."""
    size, count, dtype = data.draw(SIZES), data.draw(COUNTS), data.draw(st.sampled_from(DTYPES))
    lower, transposed, unit = flags = [data.draw(st.booleans()) for _ in range(3)]
    columns = data.draw(st.integers(1, 3))
    a = lower_triangles(count, size, dtype)
    a = np.ascontiguousarray(a if lower else a.swapaxes(1, 2))
    rng = np.random.default_rng(size)
    b = rng.normal(size=(size, columns) if data.draw(st.booleans()) else (count, size, columns)).astype(dtype)
    x = runner("triangular", dtype, *flags)(a, b)
    strict = np.tril(a, -1) if lower else np.triu(a, 1)
    counted = (strict + np.eye(size) if unit else a).astype("float64")
    counted = counted.swapaxes(1, 2) if transposed else counted
    close(x, np.linalg.solve(counted, np.broadcast_to(b, x.shape).astype("float64")))


def test_all_of_them_run(calls: list[tuple[str, bool]]):
    x = positive(9, 5, "float32")
    lower = runner("cholesky", "float32")(x)
    runner("gradient", "float32")(lower, lower)
    runner("triangular", "float32", True, False, False)(lower, lower[:, :, :2].copy())
    assert calls == [("factors", False), ("gradients", False), ("solutions_100", False)]


@pytest.mark.parametrize("place", [0, 6, 10])
def test_one_of_many_that_is_not_positive_definite(place: int, calls: list[tuple[str, bool]]):
    x = positive(11, 5, "float32")
    x[place, 3, 3] = -1.0
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        runner("cholesky", "float32")(x)
    assert calls == [("factors", True)]


def test_nan_and_singular_matrices_are_left_to_numpy(calls: list[tuple[str, bool]]):
    x = positive(11, 5, "float64")
    x[4, 2, 2] = np.nan
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(runner("cholesky", "float64")(x), np.linalg.cholesky(x))
    lower = lower_triangles(11, 5, "float64")
    lower[10, 4, 4] = 0.0
    for kind, other in (("gradient", lower), ("triangular", np.ones((11, 5, 1)))):
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            runner(kind, "float64", True, False, False)(lower, other)
    assert [left for _, left in calls] == [True] * 3


def test_few_large_and_empty_ones_and_views(calls: list[tuple[str, bool]]):
    """They go other ways, with the same results."""
    run = runner("cholesky", "float32")
    for x in (positive(3, 5, "float32"), positive(4, 17, "float32"), positive(8, 5, "float32")[::2]):
        close(run(x), np.linalg.cholesky(x.astype("float64")))
    assert run(np.zeros((0, 5, 5), "float32")).shape == (0, 5, 5)
    assert run(np.zeros((4, 0, 0), "float32")).shape == (4, 0, 0)
    lower, many = lower_triangles(4, 5, "float32"), np.ones((4, 5, 40), "float32")
    close(runner("triangular", "float32", True)(lower, many), np.linalg.solve(lower.astype("float64"), many))
    assert calls == []


def test_a_step_and_its_gradient_against_differences():
    x = positive(6, 3, "float64")
    rng = np.random.default_rng(3)
    b = rng.normal(size=(6, 3, 1))
    with ab.Graph().as_default() as graph:
        fed, right = ab.placeholder(x.shape, "float64", "x"), ab.placeholder(b.shape, "float64", "b")
        half = ops.solve_triangular(ops.cholesky(fed), right, lower=True)
        loss = ops.sum(ops.tanh(half))
        gradients = ab.gradients(loss, [fed, right])
        session = ab.Session(graph)
        slopes = session.run(gradients, {fed: x, right: b})
        step = rng.normal(size=x.shape) * 1e-6
        steps = step + step.swapaxes(1, 2), rng.normal(size=b.shape) * 1e-6
        ahead, behind = (session.run(loss, {fed: x + sign * steps[0], right: b + sign * steps[1]}) for sign in (1, -1))
    total = sum(np.sum(slope * moved) for slope, moved in zip(slopes, steps, strict=True))
    np.testing.assert_allclose((ahead - behind) / 2, total, rtol=1e-6)
