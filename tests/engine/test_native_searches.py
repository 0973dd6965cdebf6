"""Native code for the places of values in a sorted vector gives NumPy's places, of NaNs and equal elements, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.machine_figures import assume

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
DTYPES = ["float32", "float64", "int32", "int64"]


def drawn(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Few different values, so that many are equal; among floats NaNs, infinities and both zeros."""
    values = rng.integers(-5, 6, shape).astype(dtype)
    if dtype[0] == "f":
        special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.5], dtype)
        values = np.where(rng.random(shape) < 0.3, special[rng.integers(0, 5, shape)], values)
    return values


def program_of(side: str, length: int, shape: tuple[int | None, ...], dtype: str) -> Program:
    with ab.Graph().as_default() as graph:
        fed = [ab.placeholder((length,), dtype), ab.placeholder(shape, dtype)]
        return Program(graph, [symbol_of(ab.ops.searchsorted(*fed, side=side))], fed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", ["left", "right"])
@settings(max_examples=examples(8, 60), deadline=None)
@given(
    length=st.integers(1, 70),
    shape=st.sampled_from([(32,), (33,), (2, 48), (5, 7, 9), (1000,)]),
    seed=st.integers(0, 1000),
)
def test_places_are_those_of_numpy(side: Any, dtype: str, length: int, shape: tuple[int, ...], seed: int):
    rng = np.random.default_rng(seed)
    edges, values = np.sort(drawn(rng, (length,), dtype)), drawn(rng, shape, dtype)
    with pytest.MonkeyPatch.context() as patch:
        assume(patch, parallel_elements=8)  # threads share all
        (found,) = program_of(side, length, (None,) * len(shape), dtype)(edges, values)
    assert found.dtype == "int32"
    np.testing.assert_array_equal(found, np.searchsorted(edges, values, side=side))


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_is_left_to_numpy(side: Any):
    values = np.arange(100, dtype="float32")
    for edges, given_values in (
        (np.zeros(0, "float32"), values),  # nothing to look among
        (values, values[::2]),  # with gaps
        (values[:20], values[:3]),  # few
        (values, np.float32(3.5)),
    ):
        (found,) = program_of(side, len(edges), np.shape(given_values), "float32")(edges, given_values)
        np.testing.assert_array_equal(found, np.searchsorted(edges, given_values, side=side))


def test_a_program_calls_it():
    assert "run_search_sorted" in program_of("left", 10, (100,), "float32").source
    assert "run_search_sorted" in program_of("left", 10, (100,), "int8").source  # by NumPy
