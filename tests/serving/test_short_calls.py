"""Short calls of a model are made on the event loop's thread, and no others.

Models have a clock of their own, which their calls advance: what is short does not depend on the machine.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.serving_clients import ask

import anabranch as ab
from anabranch.framework.serving import batching
from anabranch.framework.serving.batching import Batcher
from anabranch.framework.serving.servable import Servable
from anabranch.framework.serving.times.short_calls import AT_ONCE_SECONDS, SECONDS, ShortCalls

pytest.importorskip("uvicorn")


class Model:
    """Stands for a servable that doubles its input; notes the rows and the thread of each call.

    It stands for the module `time`, too: time passes in its calls alone.
    """

    def __init__(self, had_bounded_time: bool = True, joins: bool = True) -> None:
        self.had_bounded_time, self._joins = had_bounded_time, joins
        self.rows: list[int] = []
        self.is_here: list[bool] = []
        self.seconds = 0.0  # of the processor that a call takes
        self.interrupted = 0.0  # seconds in which it does not run, since others do
        self._processor = self._now = 0.0
        self.refused: float | None = None

    def perf_counter(self) -> float:
        return self._now

    def thread_time(self) -> float:
        return self._processor

    def why_alone(self, signature: str) -> str | None:
        return None if self._joins else "no reason"

    def lengths(self, signature: str) -> None:
        return None

    def run(self, arrays: Any, signature: str) -> list[Any]:
        self.rows.append(len(arrays[0]))
        self.is_here.append(threading.current_thread() is threading.main_thread())
        self._processor += self.seconds
        self._now += self.seconds + self.interrupted
        if self.refused is not None and self.refused in arrays[0]:
            raise ab.serving.ServableError("refused")
        return [arrays[0] * 2.0]


class Waits:
    """Notes how long requests waited."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def batch(self, rows: int, queue_seconds: Any, compute_seconds: float) -> None:
        self.rows.append(rows)


def with_batcher(model: Any, body: Callable[[Batcher], Any], **options: Any) -> Any:
    async def run() -> Any:
        with ThreadPoolExecutor(1) as thread:
            settings = ab.serving.Batching(max_queue_delay_ms=0.0, **options)  # no time passes in which to wait
            batcher = Batcher(model, settings, thread, Waits())
            found = await body(batcher)
            await asyncio.wait_for(batcher.drained(), 60)
            return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "time", model)
        return asyncio.run(run())


async def ask_often(batcher: Batcher, count: int, rows: int = 1) -> None:
    for number in range(count):
        (found,) = await batcher.submit([np.full(rows, float(number))])
        assert found.tolist() == [2.0 * number] * rows


def test_calls_are_made_on_the_loop_once_they_have_been_short() -> None:
    model = Model()
    model.seconds = 0.9 * SECONDS
    with_batcher(model, lambda batcher: ask_often(batcher, 20))
    assert model.is_here == [False] * 4 + [True] * 16  # nothing is known of the first ones


def test_calls_that_are_interrupted_are_short_in_the_thread_and_long_on_the_loop() -> None:
    """There they hold up other requests meanwhile; one of five does so at most."""
    model = Model()
    model.interrupted = 2 * SECONDS
    with_batcher(model, lambda batcher: ask_often(batcher, 20))
    assert model.is_here == ([False] * 4 + [True]) * 4


def test_calls_whose_time_values_may_change_are_made_in_the_thread() -> None:
    model = Model(had_bounded_time=False)
    with_batcher(model, lambda batcher: ask_often(batcher, 20))
    assert not any(model.is_here)


def test_long_calls_are_made_in_the_thread() -> None:
    model = Model()
    model.seconds = 2 * SECONDS
    with_batcher(model, lambda batcher: ask_often(batcher, 20))
    assert not any(model.is_here)


def test_calls_that_have_become_long_go_back_to_the_thread() -> None:
    model = Model()

    async def body(batcher: Batcher) -> None:
        await ask_often(batcher, 20)
        model.is_here.clear()
        model.seconds = 2 * SECONDS
        await ask_often(batcher, 8)

    with_batcher(model, body)
    assert model.is_here == [True] * 2 + [False] * 6


def test_the_shortest_calls_are_made_at_once() -> None:
    model = Model()
    model.seconds = 0.9 * AT_ONCE_SECONDS

    async def body(batcher: Batcher) -> list[bool]:
        were_done: list[bool] = []
        for _ in range(9):
            found = batcher.submit([np.array([3.0])])
            were_done.append(found.done())
            assert (await found)[0].tolist() == [6.0]
        return were_done

    assert with_batcher(model, body) == [False] * 8 + [True]
    assert model.is_here == [False] * 4 + [True] * 5


def test_the_shortest_calls_are_joined_where_several_come_in_a_turn() -> None:
    """To make each at once takes less time for one client, and a third more for many."""
    model = Model()

    async def body(batcher: Batcher) -> list[int]:
        counts: list[int] = []
        await ask_often(batcher, 20)
        for _ in range(3):
            model.is_here.clear()
            await asyncio.gather(*[batcher.submit([np.array([float(number)])]) for number in range(4)])
            counts.append(len(model.is_here))
        return counts

    assert with_batcher(model, body) == [2, 1, 1]  # the first of all comes after one that was alone


def test_calls_that_are_only_short_wait_for_others_in_their_turn() -> None:
    model = Model()
    model.seconds = 1.2 * AT_ONCE_SECONDS

    async def body(batcher: Batcher) -> None:
        for _ in range(20):
            found = batcher.submit([np.array([3.0])])
            assert not found.done()
            await found

    with_batcher(model, body)


def test_each_shape_is_measured_for_itself() -> None:
    model = Model(joins=False)

    async def body(batcher: Batcher) -> None:
        await ask_often(batcher, 20)
        model.is_here.clear()
        await ask_often(batcher, 4, rows=3)

    with_batcher(model, body)
    assert not any(model.is_here)


def test_what_comes_in_one_turn_is_computed_together_and_a_batch_in_a_turn() -> None:
    model = Model()

    async def body(batcher: Batcher) -> list[bool]:
        for _ in range(8):
            await asyncio.gather(*[batcher.submit([np.array([1.0])]) for _ in range(4)])
        model.rows.clear()
        asked = [batcher.submit([np.array([float(number)])]) for number in range(8)]
        await asyncio.gather(*asked[:4])
        between = [each.done() for each in asked]
        assert [(await each)[0].tolist() for each in asked] == [[2.0 * number] for number in range(8)]
        return between

    between = with_batcher(model, body, max_batch_size=4)
    assert model.rows == [4, 4]
    assert between[:4] == [True] * 4


def test_a_request_that_is_refused_fails_alone_and_is_computed_again_in_the_thread() -> None:
    model = Model()

    async def body(batcher: Batcher) -> list[Any]:
        for _ in range(8):
            await asyncio.gather(*[batcher.submit([np.array([1.0])]) for _ in range(2)])
        model.is_here.clear()
        model.rows.clear()
        model.refused = 7.0
        asked = [batcher.submit([np.array([number])]) for number in (1.0, 7.0)]
        return await asyncio.gather(*asked, return_exceptions=True)

    good, bad = with_batcher(model, body)
    assert good[0].tolist() == [2.0]
    assert isinstance(bad, ab.serving.ServableError)
    assert model.rows[-3:] == [2, 1, 1]
    assert not any(model.is_here[-3:])


def test_requests_whose_clients_have_gone_are_not_computed() -> None:
    model = Model()

    async def body(batcher: Batcher) -> None:
        batcher.submit([np.array([1.0])]).cancel()

    with_batcher(model, body)
    assert model.rows == []


def test_only_some_kinds_are_remembered() -> None:
    calls = ShortCalls()
    for kind in range(200):
        for _ in range(4):
            calls.note(kind, 0.0)
    assert calls.includes(199)
    assert not calls.includes(0)


def test_one_long_call_among_short_ones_is_forgiven_and_two_are_not() -> None:
    calls = ShortCalls()
    for _ in range(10):
        calls.note("a", SECONDS)
    calls.note("a", 1.0)
    assert calls.includes("a")
    calls.note("a", 1.0)
    assert not calls.includes("a")


def test_loops_never_run_on_the_loop_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """See `test_a_step_that_does_not_end_holds_up_nobody_else`, too."""
    x = ab.Input((1,), name="x")
    spun = ab.while_loop(lambda y: ab.ops.max(y) < 1.0, lambda y: y + x, [x])
    ab.Model(x, spun).export(tmp_path / "loop", verbose=False)
    ab.Model(x, x * 2.0).export(tmp_path / "quick", verbose=False)
    threads: dict[str, list[str]] = {"loop": [], "quick": []}
    run = Servable.run

    def noted(servable: Servable, *args: Any) -> list[Any]:
        threads[servable.path.parent.name].append(threading.current_thread().name)
        return run(servable, *args)

    monkeypatch.setattr(Servable, "run", noted)
    monkeypatch.setattr(batching, "ShortCalls", lambda *seconds: ShortCalls(math.inf))  # however slow the machine is
    with ab.serving.Server({name: tmp_path / name for name in threads}) as server:
        for _ in range(12):
            for name in threads:
                assert ask(server.rest_url, f"/v1/models/{name}:predict", {"instances": [[2.0]]}).status == 200
    assert threads["loop"] == ["serving-loop_0"] * 12
    assert threads["quick"] == ["serving-quick_0"] * 4 + ["serving"] * 8
