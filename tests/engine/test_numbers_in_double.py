"""Python's numbers for a dtype that holds more than the default one: not rounded to the default one on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch import ops

NUMBERS = st.floats(-50, 50, allow_subnormal=False) | st.integers(-50, 50)
STEPS = st.floats(0.1, 9) | st.floats(-9, -0.1) | st.integers(1, 7)


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found), expected, strict=True)


@settings(max_examples=examples(40, 2000), deadline=None)
@given(start=NUMBERS, stop=NUMBERS, step=STEPS)
def test_arange_is_that_of_numpy(start: float, stop: float, step: float) -> None:
    expected = np.arange(start, stop, step)
    same(ops.arange(start, stop, step, dtype="float64"), expected.astype("float64"))
    same(ops.arange(start, stop, step), expected.astype("int32" if expected.dtype.kind == "i" else "float32"))


def test_arange_of_large_numbers() -> None:
    same(ops.arange(0, 2**40, 2**38, dtype="int64"), np.arange(0, 2**40, 2**38))
    same(ops.arange(2.0**24, 2.0**24 + 4, dtype="int64"), np.arange(2**24, 2**24 + 4))
    same(ops.arange(1, 1.3, 0.1), np.arange(1, 1.3, 0.1).astype("float32"))


def test_arange_up_to_a_number_of_the_step() -> None:
    with ab.Graph().as_default(), ab.Session() as session:
        stop = ab.placeholder((), "float64")
        same(session.run(ops.arange(0, stop, 0.1, dtype="float64"), {stop: 1.0}), np.arange(0, 1.0, 0.1))


@settings(max_examples=examples(40, 2000), deadline=None)
@given(
    start=NUMBERS,
    stop=NUMBERS,
    num=st.integers(0, 130),
    endpoint=st.booleans(),
    dtype=st.sampled_from(["int32", "uint8"]),
)
def test_linspace_of_integers_is_that_of_numpy(start: float, stop: float, num: int, endpoint: bool, dtype: str) -> None:
    if dtype == "uint8":
        start, stop = abs(start), abs(stop)
    same(ops.linspace(start, stop, num, endpoint, dtype=dtype), np.linspace(start, stop, num, endpoint, dtype=dtype))


@settings(max_examples=examples(20, 1000), deadline=None)
@given(start=NUMBERS, stop=NUMBERS, num=st.integers(0, 130))
def test_linspace_in_double(start: float, stop: float, num: int) -> None:
    found = np.asarray(ops.linspace(start, stop, num, dtype="float64"))
    np.testing.assert_allclose(found, np.linspace(start, stop, num), rtol=1e-14, atol=1e-13, strict=True)


def test_linspace_of_whole_vectors() -> None:
    first, last = np.array([0, -5]), np.array([49, 44])
    for axis in (0, 1):
        same(
            ops.linspace(first, last, 50, dtype="int64", axis=axis), np.linspace(first, last, 50, dtype=int, axis=axis)
        )


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("number", [0.1, [0.1, 0.7], (0.1, 3), 2**40, [[2.5], [-1]]])
def test_a_cast_keeps_all_digits(number: Any, dtype: str) -> None:
    same(ops.cast(number, dtype), np.asarray(number, dtype))


def test_a_cast_of_other_lists_is_as_before() -> None:
    same(ops.cast([1.7, -1.7], "int32"), np.array([1, -1], "int32"))
    same(ops.cast([300], "uint8"), np.array([44], "uint8"))
    same(ops.cast([1.5 + 2j], "float64"), np.array([1.5]))
    with pytest.raises(TypeError, match="string"):
        ops.cast(0.1, "string")
    with pytest.raises(TypeError, match="Strings can't be cast to float64"):
        ops.cast(["a"], "float64")
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((), "float32")
        before = len(graph.operations)
        ops.cast([x, 1.0], "float64")
        assert sum(each.type == "stack" for each in list(graph.operations)[before:]) == 1
