"""A cluster for tests of failures: a master, a worker and a ps as processes, and steps that need one of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

import anabranch as ab

from .tasks import PATIENCE, PS, WORKER, Running, TaskProcess, tasks

MASTER, OTHER = WORKER, "/job:worker/task:1"
NAMES = {"ps": PS, "worker": OTHER, "master": MASTER}


def shows(fault: str, parts: str, happens: str, error: str, kept: str) -> Callable[[Any], Any]:
    """Make a test a row of docs/failures.md: `test_failures_page.py` reads these from the files of the tests."""
    del fault, parts, happens, error, kept
    return lambda test: test


class Lab:
    """A master, a worker and a ps as processes, and a client whose steps need one of them or all."""

    def __init__(self, running: Running) -> None:
        self.running = running
        with ab.Graph().as_default() as graph:
            with ab.device(PS):
                self.kept = ab.Variable(1.0, name="kept")
                self.more = self.kept.assign_add(1.0)
            x = ab.placeholder((), "float32", "x")
            with ab.device(OTHER):
                self.squared = x * x
            own = x + 1.0
            self.needs = {"ps": self.more, "worker": self.squared, "master": own}
            self.forever = {part: self._endless(NAMES[part]) for part in ("ps", "worker")}
            with ab.device(PS):
                self.renewed = self.kept.assign(10.0)
        self.x = x
        self.graph = graph
        self.session = ab.Session(graph, target=running[MASTER].target)

    def _endless(self, task: str) -> Any:
        def body(i: Any, h: Any) -> Any:
            with ab.device(task):
                z = ab.ops.tanh(h)
            with ab.device(MASTER):
                return i + 1, z + 1.0

        return ab.while_loop(lambda i, h: i < 2**31 - 1, body, (0, ab.constant(0.0)))[1]

    def run(self, part: str, session: ab.Session | None = None) -> Any:
        """Run a step that needs the master and this part alone."""
        return (session or self.session).run(self.needs[part], {self.x: 3.0})

    def held(self, task: str) -> dict[str, int]:
        return ab.distribute.status(self.running[task].target).held

    def failing(self, fetches: Any, fault: Callable[[], None]) -> tuple[Any, float]:
        """Begin a step, cause a fault while it runs; gives the error, and the seconds from one to the other."""
        found: list[Any] = []

        def run() -> None:
            with pytest.raises(Exception) as caught:  # noqa: PT011
                self.session.run(fetches, {self.x: 3.0})
            found.append((caught.value, time.monotonic()))

        self.session.program(fetches, [self.x])
        thread = threading.Thread(target=run)
        thread.start()
        self.wait(lambda: self.held(MASTER)["running"] > 0)
        began = time.monotonic()
        fault()
        thread.join(PATIENCE)
        ((error, noticed),) = found
        return error, noticed - began

    @staticmethod
    def wait(is_done: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not is_done():
            assert time.monotonic() < until, "it did not come to that"

    def restart(self, task: str) -> TaskProcess:
        """Start a task again, at its address; it ends with the others."""
        job, index = task.split(":")[1].partition("/")[0], int(task.rpartition(":")[2])
        addresses = {name: each.address for name, each in self.running.items()}
        cluster = {"ps": [addresses[PS]], "worker": [addresses[MASTER], addresses[OTHER]]}
        self.running[task].kill()
        made = TaskProcess(cluster, job, index)
        self.running[task].end()
        self.running[task] = made
        return made


@contextlib.contextmanager
def lab(*options: str) -> Generator[Lab]:
    with tasks(workers=2, all_with=options) as running:
        made = Lab(running)
        before = dict(running)
        try:
            yield made
        finally:
            made.session.close()
            for name, task in running.items():
                if task is not before[name]:
                    task.end()
