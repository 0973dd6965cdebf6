"""Memory for results of collectives: used again once nobody has what was in it, and never before."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.distribute.collectives import results as results_module
from anabranch.distribute.collectives.results import Results
from anabranch.engine.graph.state.aligned import aligned_bytes

LARGE = 1 << 20  # bytes


def address(array: Any) -> int:
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_once_the_result_is_gone():
    results = Results()
    first = results.empty((LARGE,), "uint8")
    place = address(first)
    second = results.empty((LARGE,), "uint8")
    assert not np.shares_memory(first, second)
    del first
    third = results.empty((LARGE // 4,), "float32")
    assert address(third) == place
    assert not np.shares_memory(second, third)


@pytest.mark.parametrize(
    "view",
    [lambda x: x[5:7], lambda x: x.reshape(2, -1).T, lambda x: x.view("uint8"), memoryview, lambda x: [x][0][::-1]],
    ids=["slice", "transpose", "other dtype", "memoryview", "reversed"],
)
def test_a_view_keeps_its_memory(view: Any):
    results = Results()
    first = results.empty((LARGE // 4,), "float32")
    first[:] = 7
    kept = view(first)
    del first
    second = results.empty((LARGE // 4,), "float32")
    second[:] = 3
    assert not np.shares_memory(np.asarray(kept), second)
    del kept
    assert results.free >= LARGE


DTYPES = ("float32", "float64", "int8", "complex64")


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(DTYPES)), max_size=30))
def test_results_that_somebody_has_are_left_alone(steps: list[tuple[int, str]]):
    """A step gives up the result at a place of six, and takes one of another size there."""
    results = Results()
    held: dict[int, tuple[Any, int]] = {}
    for number, (place, dtype) in enumerate(steps):
        held.pop(place, None)
        made = results.empty((number % 3 + 1, LARGE // 8 + 1000 * place), dtype)
        assert made.flags.carray
        assert made.dtype == dtype
        made[...] = number
        held[place] = made, number
        assert all((array == value).all() for array, value in held.values())


def test_large_results_begin_at_a_cache_line():
    results = Results()
    assert all(address(results.empty((LARGE + size,), "int8")) % 64 == 0 for size in range(1, 200, 13))


def test_dtypes_of_others():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    made = Results().empty((LARGE,), ml_dtypes.bfloat16)
    made[:] = 1.5
    assert made.dtype == ml_dtypes.bfloat16
    assert made.sum(dtype="float64") == 1.5 * LARGE


def test_memory_that_no_result_takes_goes_back():
    results = Results()
    first = results.empty((4 * LARGE,), "uint8")
    del first
    assert results.free >= 4 * LARGE
    for _ in range(65):  # too small for that memory
        results.empty((LARGE,), "uint8")
    assert results.free < 4 * LARGE


@pytest.mark.parametrize("order", [1, -1])
def test_a_step_with_many_results_finds_all_of_them_again(order: int, monkeypatch: pytest.MonkeyPatch):
    """Two thirds of the memory was new in each step, if what was given up last was taken first."""
    made: list[int] = []

    def counted(size: int) -> Any:
        made.append(size)
        return aligned_bytes(size)

    monkeypatch.setattr(results_module, "aligned_bytes", counted)
    results = Results()
    for _ in range(3):
        held = collections.deque([results.empty((LARGE,), "uint8") for _ in range(100)])
        while held:
            held.pop() if order < 0 else held.popleft()
    assert len(made) == 100


def test_memory_that_was_cleared_is_not_kept():
    results = Results()
    first, second = results.empty((LARGE,), "uint8"), results.empty((LARGE,), "uint8")
    del first
    results.clear()
    assert results.free == 0
    second[:] = 1
    assert (second == 1).all()
