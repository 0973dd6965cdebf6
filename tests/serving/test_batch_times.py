"""The number of waiting rows that are computed next follows from how long batches took."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.framework.serving import batching
from anabranch.framework.serving.times.batch_times import BatchTimes


def learned(times: dict[int, float]) -> BatchTimes:
    found = BatchTimes()
    for size, seconds in times.items():
        found.note("a", size, seconds)
    return found


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [(32, 32), (33, 32), (47, 32), (48, 48), (63, 63), (64, 64)],  # 48 in 60 ms, or 32 in 40 ms: as many a second
)
def test_half_is_computed_where_that_gives_more_rows_a_second(waiting: int, expected: int) -> None:
    size = 32 if waiting == 32 else 64
    assert learned({16: 0.02, 32: 0.04, 64: 0.06}).rows("a", waiting, size) == expected


def test_all_are_computed_where_the_size_costs_nothing() -> None:
    assert learned({32: 0.04, 64: 0.04}).rows("a", 33, 64) == 33


def test_sizes_that_were_not_measured_are_tried_the_larger_one_first() -> None:
    times = BatchTimes()
    assert times.rows("a", 33, 64) == 33
    times.note("a", 64, 0.01)
    assert times.rows("a", 33, 64) == 32
    assert times.rows("b", 33, 64) == 33


def test_a_largest_batch_that_is_no_power_of_two_is_compared_with_the_power_below() -> None:
    assert learned({32: 0.04, 48: 0.05}).rows("a", 33, 48) == 32
    assert learned({32: 0.04, 48: 0.05}).rows("a", 47, 48) == 47


def test_one_row_is_computed() -> None:
    assert learned({1: 1.0}).rows("a", 1, 1) == 1


def test_a_mean_forgets_and_one_slow_batch_changes_it_little() -> None:
    times = learned({32: 0.04, 64: 0.04})
    times.note("a", 64, 0.08)
    assert times.rows("a", 40, 64) == 40
    for _ in range(20):
        times.note("a", 64, 0.08)
    assert times.rows("a", 40, 64) == 32


def test_only_some_kinds_are_remembered() -> None:
    times = BatchTimes()
    for key in range(1000):
        times.note(key, 64, 1.0)
    assert times.rows(0, 33, 64) == 33
    assert times.rows(999, 33, 64) == 32


class Doubles:
    """Stands for a servable; notes the rows of each call."""

    had_bounded_time = False

    def __init__(self) -> None:
        self.rows: list[list[float]] = []

    def why_alone(self, signature: str) -> None:
        return None

    def lengths(self, signature: str) -> None:
        return None

    def run(self, arrays: Any, signature: str) -> list[Any]:
        self.rows.append(arrays[0].tolist())
        return [arrays[0] * 2.0]


class Ignored:
    def batch(self, rows: int, queue_seconds: Any, compute_seconds: float) -> None:
        """Note nothing."""


@pytest.mark.parametrize("settings", [{}, {"bitwise": True}, {"max_batch_size": 5}])
def test_what_is_not_in_the_batch_goes_first_in_the_next(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Halves(BatchTimes):
        def rows(self, key: Any, waiting: int, size: int) -> int:
            return size // 2 if waiting < size else waiting

    monkeypatch.setattr(batching, "BatchTimes", Halves)
    model: Any = Doubles()

    async def ask() -> list[Any]:
        with ThreadPoolExecutor(1) as thread:
            batcher = batching.Batcher(model, ab.serving.Batching(**settings), thread, Ignored())
            asked = [[1.0], [2.0, 3.0], [4.0], [5.0, 6.0]]
            return await asyncio.gather(*[batcher.submit([np.array(rows)]) for rows in asked])

    assert [found[0].tolist() for found in asyncio.run(ask())] == [[2.0], [4.0, 6.0], [8.0], [10.0, 12.0]]
    if settings.get("bitwise"):
        assert [len(rows) for rows in model.rows] == [64]
    else:
        assert model.rows == [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0]]
