"""Engines of operations that run outside the loop of a step: worker threads for long kernels, streams, queues."""

from __future__ import annotations

import abc
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import numpy as np

from ..common.forks import fork_safe_lock
from ..ops.containers.array_value import ArrayValue
from ..queues.writing import borrow_locks, held_locks
from ..runtime.program import bytes_saved

Done = Callable[..., None]  # of the results; of None and an error, where it failed
FromThread = Callable[..., None]


class Engine(abc.ABC):
    """The way in which a device runs operations that are not run in the loop itself.

    Attributes:
        spent: by node, how often it ran on a worker thread, and for how many seconds, since the beginning.
        has_own_memory: whether values are where the host can't read them.
    """

    has_own_memory = False

    def __init__(self) -> None:
        self.spent: dict[Any, list[float]] = {}

    def on_pressure(self, release: Callable[[], None]) -> bool:
        """Have `release` called when memory runs short; whether it can."""
        return False

    def now(self) -> float:
        """Return the time, in seconds, as what it runs takes it."""
        return time.perf_counter()

    @property
    def is_busy(self) -> bool:
        """True if it has to be polled for work that is done (`poll`)."""
        return False

    @property
    def has_threads(self) -> bool:
        """True if work is under way that ends by itself, which is then reported by way of `from_thread`."""
        return False

    @property
    def kernel_seconds(self) -> float:
        """The seconds for which it has run kernels, in all."""
        return 0.0

    @property
    def swapped_bytes(self) -> tuple[int, int]:
        """Bytes of histories that moved to the host, and back."""
        return 0, 0

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that values have taken; None if that is not known."""
        return None

    @property
    def asked(self) -> Engine:
        """The engine that is asked for what is done: one of several, if these are asked together."""
        return self

    def at_once(self, node: Any, kernel: Callable[..., Any], values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Do as `submit` does, if results are there at once; otherwise do nothing, and return None."""
        return None

    def adapted(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Return a printed function as what runs it here; it is to be submitted in its place."""
        return kernel

    def start(self) -> None:  # noqa: B027 (most have nothing to do)
        """Begin a step."""

    def end(self) -> None:  # noqa: B027
        """End a step, of which nothing is under way."""

    @abc.abstractmethod
    def submit(
        self, node: Any, kernel: Callable[..., Any], values: tuple[Any, ...], done: Done, from_thread: FromThread
    ) -> None:
        """Run ``kernel(*values)``, which gives its output, or a tuple of them if there are several.

        Args:
            node: what is run.
            kernel: its operations as a function.
            values: what it takes.
            done: takes the tuple of outputs, now, out of `poll`, or by way of `from_thread`.
            from_thread: calls a function in the step's own loop; for other threads.
        """

    def to_host(self, value: Any, done: Done) -> None:
        """Copy a value out of the device's memory."""
        done(value)

    def send(self, value: Any, done: Done) -> None:
        """Send as `to_host` does, but `done` gets what others may get, too: it is only read."""
        self.to_host(value, done)

    def pass_on(self, value: Any, target: Engine, done: Done) -> bool:
        """Copy a value to another device; False if nothing was done: then the host does it."""
        return False

    def soon_to(self, target: Engine) -> Callable[[Any], Any] | None:
        """Return a function that copies a value to another device at once, if there is one.

        The function gives the copy, or None if it takes longer.
        """
        return None

    def to_device(self, value: Any, done: Done) -> None:
        """Copy a value into the device's memory."""
        done(value)

    def to_device_after(self, value: Any, after: Any, done: Done) -> None:
        """Copy to the device, as `to_device`, but not before a moment that `moment_of` gave."""
        self.to_device(value, done)

    def record(self) -> Any:
        """Return something that takes the values of all iterations, by number."""
        return {}

    def gathered(self, items: Any) -> Any:
        """Return the history of a value, from what `record` gave."""
        return ArrayValue.from_list([items[position] for position in range(len(items))])

    def size_of_record(self, items: Any, bytes_each: int) -> int:
        """Return the bytes that a record holds; those that other records hold are not counted.

        Args:
            items: from `record`.
            bytes_each: what an iteration adds, if its shape is known, or else 0.
        """
        if bytes_each:
            return len(items) * bytes_each
        return sum([bytes_saved(value) for value in items.values() if type(value) is not ArrayValue])

    def poll(self) -> float | None:
        """Call what is due; the time at which there will be more, if that is known."""
        return None

    def wait_until(self, when: float) -> None:
        """Wait for a time that `poll` gave."""
        raise NotImplementedError

    def abort(self) -> None:  # noqa: B027 (an engine may have nothing to drop)
        """Drop what is under way."""


def moment_of(value: Any) -> Any:
    """Return when a device's value is there: what is enqueued and makes it, or the time; without the value itself."""
    return getattr(value, "writer", None) or getattr(value, "ready_at", 0.0)


_pool: ThreadPoolExecutor | None = None
_pool_lock = fork_safe_lock()


def workers() -> ThreadPoolExecutor:
    """Return the threads of this process for kernels that run for long and release the interpreter's lock."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count() or 1, "anabranch-kernel")
        return _pool


def _forget_workers() -> None:
    """Forget the workers in a child process, which has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


class WorkerEngine(Engine):
    """Runs long kernels of a CPU on worker threads."""

    def __init__(self) -> None:
        super().__init__()
        self._under_way = 0

    @property
    def kernel_seconds(self) -> float:
        return sum([seconds for _, seconds in self.spent.values()])

    @property
    def has_threads(self) -> bool:
        return self._under_way > 0

    def submit(
        self, node: Any, kernel: Callable[..., Any], values: tuple[Any, ...], done: Done, from_thread: FromThread
    ) -> None:
        def ended(results: Any, error: BaseException | None = None) -> None:
            self._under_way -= 1
            sums = self.spent.setdefault(node, [0, 0.0])
            sums[0] += 1
            sums[1] += seconds[0]
            done(results, error)

        seconds, locks = [0.0], held_locks()
        # Taken out when it is called: the frames of an error refer to `run`, and if the step was aborted meanwhile, the
        # events that hold the error are nobody's. They, the error and its values would refer to each other.
        report = [from_thread]

        def run() -> None:
            borrow_locks(locks)  # where it calls a function that runs a step
            began = time.perf_counter()
            try:
                with np.errstate(all="ignore"):
                    results = kernel(*values)
                seconds[0] = time.perf_counter() - began
            except BaseException as error:
                report.pop()(ended, None, error)
            else:
                report.pop()(ended, (results,) if len(node.given) == 1 else results)

        self._under_way += 1
        workers().submit(copy_context().run, run)  # in there are the deadline, and who may end the step

    def abort(self) -> None:
        self._under_way = 0
