"""Steps that wait or loop are ended from outside: by `Session.close`, and by their timeout."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.common.deadlines import requests
from anabranch.engine.queues.stops import Stop
from anabranch.engine.runtime.program import Program

_LONG = 60.0  # seconds: what takes longer hangs


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    ab.config.set_devices()
    assert not requests


def numbers(x: Any) -> Any:
    """An endless loop over numbers, which is machine code."""
    return ab.while_loop(lambda y: y < 100.0, lambda y: y * 1.0, [x])[0]


def arrays(x: Any) -> Any:
    """An endless loop over arrays, in Python."""
    start = ops.ones((40, 40)) * x
    return ab.while_loop(lambda y: ops.sum(y) < 1e9, lambda y: ops.clip(ops.sort(y), 0.0, 1.0), [start])[0]


def condition_alone(x: Any) -> Any:
    """An endless loop whose body does nothing."""
    return ab.while_loop(lambda y: y < 100.0, lambda y: y, [x])[0]


def nested(x: Any) -> Any:
    """An endless loop inside a branch inside a loop."""

    def body(i: Any, y: Any) -> Any:
        return i + 1, ab.cond(i < 5, lambda: y + 1.0, lambda: arrays(y)[0, 0])

    return ab.while_loop(lambda i, y: i < 10, body, [0, x])[1]


def dequeue(x: Any) -> Any:
    return ab.queues.FIFOQueue(3, "float32", (), name="letters").dequeue() + x


def several_devices(x: Any) -> Any:
    """An endless loop that spans devices."""

    def body(y: Any) -> Any:
        with ab.device("cpu:1"):
            z = y * 1.0
        with ab.device("cpu:0"):
            return z * 1.0

    return ab.while_loop(lambda y: y < 100.0, body, [x])[0]


def dequeue_on_several_devices(x: Any) -> Any:
    with ab.device("cpu:1"):
        y = x * 2.0
    return dequeue(x) + y


def loop_beside(x: Any) -> Any:
    """An endless loop on one device, which runs on a thread of its own, beside another device."""
    with ab.device("cpu:1"):
        y = arrays(x)
    with ab.device("cpu:0"):
        return ops.sum(y) + x


ONE_DEVICE = [numbers, arrays, condition_alone, nested, dequeue]
SEVERAL = [several_devices, dequeue_on_several_devices, loop_beside]


def built(build: Callable[[Any], Any]) -> tuple[ab.Graph, Any, Any]:
    if build in SEVERAL:
        ab.config.set_devices(cpu=2)
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((), "float32", "x")
        return graph, build(x), x


class Running:
    """A step in a thread."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._run = run
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error

    def ended(self) -> BaseException | None:
        """Return what it raised."""
        self._thread.join(_LONG)
        assert not self._thread.is_alive(), "the step hangs"
        return self.error


def stop_of(session: ab.Session) -> Stop:
    return session._stop  # pyright: ignore[reportPrivateUsage]


def under_way(session: ab.Session, steps: int = 1) -> None:
    """Wait until so many steps of the session run."""
    until = time.monotonic() + _LONG
    while stop_of(session).runs < steps:
        assert time.monotonic() < until
        time.sleep(1e-3)


@pytest.mark.parametrize("build", [*ONE_DEVICE, *SEVERAL])
def test_closing_a_session_ends_its_steps(build: Callable[[Any], Any]):
    graph, fetch, x = built(build)
    session = ab.Session(graph)
    steps = [Running(lambda: session.run(fetch, {x: 1.0})) for _ in range(2)]
    under_way(session, len(steps))
    session.close()
    for step in steps:
        error = step.ended()
        assert isinstance(error, ab.errors.CancelledError)
        assert "The session was closed while the step ran." in str(error)


@pytest.mark.parametrize("build", [*ONE_DEVICE, *SEVERAL])
def test_a_timeout_ends_loops_and_waits(build: Callable[[Any], Any]):
    graph, fetch, x = built(build)
    with pytest.raises(ab.errors.DeadlineExceededError, match="The timeout was over"):
        ab.Session(graph).run(fetch, {x: 1.0}, timeout=0.05)


def test_a_drawn_order_is_ended_too():
    graph, fetch, x = built(several_devices)
    session = ab.Session(graph, schedule_seed=3)
    step = Running(lambda: session.run(fetch, {x: 1.0}))
    under_way(session)
    session.close()
    assert isinstance(step.ended(), ab.errors.CancelledError)


def test_steps_of_other_sessions_go_on():
    graph, fetch, x = built(numbers)
    one, other = ab.Session(graph), ab.Session(graph)
    ended, going = (Running(lambda s=s: s.run(fetch, {x: 1.0})) for s in (one, other))
    under_way(one)
    under_way(other)
    one.close()
    assert isinstance(ended.ended(), ab.errors.CancelledError)
    assert stop_of(other).runs == 1
    other.close()
    assert isinstance(going.ended(), ab.errors.CancelledError)


def test_a_loop_that_ends_in_time_is_not_disturbed_by_what_is_asked_of_others():
    graph, fetch, x = built(arrays)
    endless = ab.Session(graph)
    step = Running(lambda: endless.run(fetch, {x: 1.0}, timeout=_LONG))
    under_way(endless)
    with ab.Graph().as_default() as own:
        count = ab.while_loop(lambda i: i < 2000, lambda i: i + 1, [0])[0]
    assert ab.Session(own).run(count) == 2000
    assert ab.Session(own).run(count, timeout=_LONG) == 2000
    endless.close()
    assert isinstance(step.ended(), ab.errors.CancelledError)


def test_a_closed_session_compiles_anew():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((), "float32")
        y = x + 1.0
    session = ab.Session(graph)
    assert session.run(y, {x: 1.0}) == 2.0
    session.close()
    assert session.run(y, {x: 2.0}) == 3.0


@pytest.mark.parametrize("whole", [False, True])
def test_a_loop_that_is_ended_leaves_variables_as_they_were_or_whole(whole: bool):
    with ab.Graph().as_default() as graph:
        graph.compiles_whole = whole
        a, b = ab.Variable(np.zeros(8, "float32"), name="a"), ab.Variable(0.0, name="b")
        limit = ab.placeholder((), "float32")

        def body(i: Any) -> Any:
            a.assign_add(np.ones(8, "float32"))
            b.assign_add(1.0)
            return i + 1.0

        last = ab.while_loop(lambda i: i < limit, body, [0.0])[0]
    program = Program(graph, [last], [limit])
    program(np.float32(3))
    assert (a.numpy()[0], b.numpy()) == (3.0, 3.0)
    with pytest.raises(ab.errors.DeadlineExceededError):
        ab.Session(graph).run(last, {limit: 1e30}, timeout=0.05)
    assert a.numpy()[0] == b.numpy()
    if whole:
        assert b.numpy() == 3.0, program.source
