"""Kernels of pooling: values against NumPy's road over shapes, strides and paddings, NaN and equal values included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from natives.comparing import check_against_numpy, kernel_types
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
MAXIMA = {"max_pool", "max_pool_grad", "max_pool_places"}
AVERAGES = {"average_pool", "average_pool_grad"}


def _step(x: Any, how: Any, *arguments: Any) -> tuple[Any, ...]:
    """Pooling and its gradient: graph, fetches, feeds and values."""
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder(x.shape, str(x.dtype))
        y = how(fed, *arguments)
        dy = ab.placeholder(y.shape, str(x.dtype))
        fetches = [y, *ab.gradients(y, [fed], dy)]
    return graph, fetches, [fed, dy], [x, np.random.default_rng(2).uniform(-1, 1, y.shape).astype(x.dtype)]


def _check(x: Any, how: Any, *arguments: Any) -> tuple[ab.Graph, list[Any]]:
    graph, fetches, feeds, values = _step(x, how, *arguments)
    return graph, check_against_numpy(graph, fetches, feeds, values, 1e-6 if x.dtype == "f" else 1e-14)


def test_known_maxima() -> None:
    x = np.array([[1, 8, 3, 3], [4, 5, 9, 3]], "float32").reshape(1, 2, 4, 1)
    graph, fetches, feeds, _ = _step(x, ab.ops.max_pool, 2)
    assert kernel_types(graph) >= MAXIMA
    y, dx = Program(graph, fetches, feeds)(x, np.array([2, 5], "float32").reshape(1, 1, 2, 1))
    assert y.ravel().tolist() == [8, 9]
    assert dx.ravel().tolist() == [0, 2, 0, 0, 0, 0, 5, 0]


def test_known_averages() -> None:
    x = np.array([3, 1, 4, 2, 6], "float32").reshape(1, 5, 1)
    graph, fetches, feeds, _ = _step(x, ab.ops.average_pool, 2, 2, "same")
    assert kernel_types(graph) >= AVERAGES
    y, dx = Program(graph, fetches, feeds)(x, np.array([2, 4, 6], "float32").reshape(1, 3, 1))
    assert y.ravel().tolist() == [2, 3, 6]
    assert dx.ravel().tolist() == [1, 1, 2, 2, 6]


@settings(max_examples=examples(4, 8), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    batch=st.integers(1, 4),
    sizes=st.tuples(st.integers(3, 12), st.integers(3, 12)),
    channels=st.sampled_from([1, 5, 16, 35]),
    pool=st.sampled_from([2, 3, (1, 3), (3, 2)]),
    strides=st.sampled_from([None, 1, 2, 5, (2, 1)]),
    padding=st.sampled_from(["valid", "same"]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_strides_and_paddings(
    batch: int, sizes: Any, channels: int, pool: Any, strides: Any, padding: str, dtype: str
) -> None:
    """Few different values, so that maxima come up several times, and some that are not numbers."""
    x = np.random.default_rng(1).integers(-3, 4, (batch, *sizes, channels)).astype(dtype)
    x.flat[::23] = np.nan
    x.flat[7::31] = -np.inf
    _check(x, ab.ops.max_pool, pool, strides, padding)
    finite = np.nan_to_num(x, neginf=-2)
    _check(finite, ab.ops.average_pool, pool, strides, padding)


@pytest.mark.parametrize("pool", [5, 6], ids=["unrolled", "in loops"])
def test_large_windows_that_reach_out_of_the_input(pool: int) -> None:
    x = np.random.default_rng(1).integers(-3, 4, (2, 9, 11, 20)).astype("float32")
    x.flat[::97] = np.nan
    graph, _ = _check(x, ab.ops.max_pool, pool, 2, "same")
    assert kernel_types(graph) >= MAXIMA
    _check(np.nan_to_num(x), ab.ops.average_pool, pool, 1, "same")


def test_windows_of_nothing_but_infinities() -> None:
    x = np.full((1, 4, 4, 16), -np.inf, "float32")
    graph, (y, dx) = _check(x, ab.ops.max_pool, 2)
    assert kernel_types(graph) >= MAXIMA
    assert np.isneginf(y).all()
    assert (dx[:, 1::2] == 0).all()
    assert (dx[:, ::2, ::2] != 0).all()


@pytest.mark.parametrize(
    ("shape", "dtype", "pool"),
    [
        ((0, 4, 4, 3), "float32", 2),  # no images
        ((1, 4, 4, 4, 2), "float32", 2),  # three axes
        ((1, 40, 40, 1), "float32", 20),  # numbers of cells that are no bytes
        ((1, 4, 4, 3), "float16", 2),
    ],
)
def test_what_has_no_kernel_stays_right(shape: Any, dtype: str, pool: int) -> None:
    x = np.random.default_rng(1).integers(-3, 4, shape).astype(dtype)
    graph, fetches, feeds, values = _step(x, ab.ops.max_pool, pool)
    assert not kernel_types(graph) & MAXIMA
    check_against_numpy(graph, fetches, feeds, values, 0)


def test_integers_are_left_to_numpy() -> None:
    x = np.arange(16, dtype="int32").reshape(1, 4, 4, 1)
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder(x.shape, "int32")
        y = ab.ops.max_pool(fed, 2)
    assert not kernel_types(graph)
    assert Program(graph, [symbol_of(y)], [fed])(x)[0].ravel().tolist() == [5, 7, 13, 15]
