"""A cluster that runs for long, with steps that are given up now and then: what it holds stays the same."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PS, WORKER, Running, TaskProcess
from shared.tasks import tasks as started

import anabranch as ab
from anabranch.distribute.transport.planes import VARIABLE, Plane

pytestmark = pytest.mark.xdist_group("tasks")
STEPS, ABORTS, WARM = 10_000, 100, 1000
_MOST_GROWTH = 8 << 20  # bytes: of a task that warms up, far below what a leak of one array a step would take
_ELEMENTS = 2048
_LARGE = 4_000_000  # elements of 4 bytes, that take a while to cross


def resident(pid: int) -> int:
    """Bytes that a process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def held(tasks: list[TaskProcess]) -> list[dict[str, int]]:
    """The counts of what tasks hold, without that of steps."""
    found = [ab.distribute.status(task.target).held for task in tasks]
    return [{name: count for name, count in each.items() if name != "steps"} for each in found]


def check_soak(running: Running, graph: ab.Graph, steps: int, aborts: int, warm: int) -> None:
    """Run steps over two tasks, some of which are given up in the middle, and compare what is held."""
    with ab.device(PS):
        w = ab.Variable([0.0] * _ELEMENTS, name="soaked")
        never = ab.queues.FIFOQueue(1, "float32", shapes=(), name="soaked, never filled").dequeue()
    x = ab.placeholder((_ELEMENTS,), "float32", "x")

    def body(i: Any, h: Any) -> Any:
        with ab.device(PS):
            z = h * 0.5
        return i + 1, z + x

    last = ab.while_loop(lambda i, _: i < 2, body, (0, x))[1]
    with ab.device(PS):
        train, stuck = w.assign_add(last), w.assign_add(last * never)
    value = [1.0] * _ELEMENTS
    tasks = [running[name] for name in (PS, WORKER)]
    pids = [*[task.pid for task in tasks], os.getpid()]
    with ab.Session(graph, target=running[WORKER].target) as session:
        step = session.make_callable(train, [x])
        before: Any = None
        for number in range(steps + warm):
            if number == warm // 2:  # tasks give up what a collected session had there some time after that
                gc.collect()
            if number == warm:
                before = [descriptors(pid) for pid in pids], [resident(pid) for pid in pids], held(tasks)
            if number % (steps // aborts) == 0:
                with pytest.raises(ab.errors.DeadlineExceededError):
                    session.run(stuck, {x: value}, timeout=0.005)
            step(value)
        gc.collect()
        after = [descriptors(pid) for pid in pids], [resident(pid) for pid in pids], held(tasks)
        count = (steps + warm) * 1.75
        assert float(w.numpy()[0]) == count
    assert after[0] == before[0]
    assert after[2] == before[2]
    growth = [now - then for then, now in zip(before[1], after[1], strict=True)]
    print("grown by", growth, "bytes, of", before[1])
    assert max(growth) < _MOST_GROWTH, growth


def check_large_aborts(running: Running, graph: ab.Graph, plane: str, aborts: int, warm: int) -> None:
    """Give steps up while a large value crosses, and compare what is held."""
    x = ab.placeholder((), "float32", "x")
    with ab.device(WORKER):
        large = ab.ops.broadcast_to(x, (_LARGE,)) + 0.0
    with ab.device(PS):
        w = ab.Variable(np.zeros(_LARGE, "float32"), name=f"large, soaked by {plane}")
        train = w.assign(large).operation
        never = ab.queues.FIFOQueue(1, "float32", shapes=(), name=f"never filled, {plane}").dequeue()
        stuck = w.assign(large * never).operation
    tasks = [running[name] for name in (PS, WORKER)]
    pids = [task.pid for task in tasks]
    before: Any = None
    with ab.Session(graph, target=running[WORKER].target) as session:
        session.run(train, {x: 1.0})
        session.program(stuck, [x])
        for number in range(aborts + warm):
            if number == warm:
                before = [descriptors(pid) for pid in pids], [resident(pid) for pid in pids], held(tasks)
            # Some end before the value has left, some in the middle of it, some when all of it is there.
            with pytest.raises(ab.errors.DeadlineExceededError):
                session.run(stuck, {x: 1.0}, timeout=0.002 * (1 + number % 10))
            session.run(train, {x: float(number)})
        after = [descriptors(pid) for pid in pids], [resident(pid) for pid in pids], held(tasks)
        assert w.numpy()[-1] == aborts + warm - 1
    found = {each.plane for task in tasks for each in ab.distribute.status(task.target).connections}
    assert plane in found
    assert after[0] == before[0]
    assert after[2] == before[2]
    growth = [now - then for then, now in zip(before[1], after[1], strict=True)]
    print("grown by", growth, "bytes, of", before[1])
    assert max(growth) < 4 * _LARGE, growth  # less than one value


def test_a_step_given_up_while_it_is_prepared_is_taken_up_again(running: Running, graph: ab.Graph):
    x = ab.placeholder((3,), "float32", "x")
    with ab.device(PS):
        y = x
        for _ in range(200):
            y = ab.ops.sin(y) + x
    tasks = [running[name] for name in (PS, WORKER)]
    before = held(tasks)
    with ab.Session(graph, target=running[WORKER].target) as session:
        for _ in range(20):
            with suppress(ab.errors.DeadlineExceededError):
                session.run(y, {x: [1.0] * 3}, timeout=1e-4)
        session.run(y, {x: [1.0] * 3})
        after = held(tasks)
    assert [now["programs"] - then["programs"] for then, now in zip(before, after, strict=True)] == [1, 1]


@pytest.mark.slow
def test_ten_thousand_steps_and_a_hundred_aborts_leave_nothing(running: Running, graph: ab.Graph):
    check_soak(running, graph, STEPS, ABORTS, WARM)


@pytest.mark.slow
@pytest.mark.parametrize("plane", [Plane.SHARED_MEMORY, Plane.UNIX, Plane.TCP, Plane.GRPC])
def test_aborts_in_mid_transfer_leave_nothing(graph: ab.Graph, plane: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, plane)
    with started() as running:
        check_large_aborts(running, graph, plane, aborts=60, warm=20)
