"""What runs operations outside the loop of a step: worker threads for long kernels, devices with streams, queues."""

from __future__ import annotations

import abc
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..ops.array_value import ArrayValue

Done = Callable[..., None]  # of the results; of None and an error, where it failed
FromThread = Callable[..., None]


class Engine(abc.ABC):
    """How a device runs what is not run in the loop itself."""

    @property
    def is_busy(self) -> bool:
        """Whether it has to be asked for what is done (`poll`)."""
        return False

    @property
    def has_threads(self) -> bool:
        """Whether something is under way that ends by itself, and then is told by way of `from_thread`."""
        return False

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

    def to_device(self, value: Any, done: Done) -> None:
        """Copy a value into the device's memory."""
        done(value)

    def record(self) -> Any:
        """Something that takes the values of all iterations, by number."""
        return {}

    def gathered(self, items: Any) -> Any:
        """The history of a value, from what `record` gave."""
        return ArrayValue.from_list([items[position] for position in range(len(items))])

    def poll(self) -> float | None:
        """Call what is due; the time at which there will be more, if that is known."""
        return None

    def wait_until(self, when: float) -> None:
        """Wait for a time that `poll` gave."""
        raise NotImplementedError

    def abort(self) -> None:  # noqa: B027 (an engine may have nothing to drop)
        """Drop what is under way."""


_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def workers() -> ThreadPoolExecutor:
    """The threads of this process for kernels that run for long and release the interpreter's lock."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count() or 1, "anabranch-kernel")
        return _pool


class WorkerEngine(Engine):
    """Runs long kernels of a CPU on worker threads."""

    def __init__(self) -> None:
        self._under_way = 0

    @property
    def has_threads(self) -> bool:
        return self._under_way > 0

    def submit(
        self, node: Any, kernel: Callable[..., Any], values: tuple[Any, ...], done: Done, from_thread: FromThread
    ) -> None:
        def ended(results: Any, error: BaseException | None = None) -> None:
            self._under_way -= 1
            done(results, error)

        def run() -> None:
            try:
                with np.errstate(all="ignore"):
                    results = kernel(*values)
            except BaseException as error:
                from_thread(ended, None, error)
            else:
                from_thread(ended, (results,) if len(node.given) == 1 else results)

        self._under_way += 1
        workers().submit(run)

    def abort(self) -> None:
        self._under_way = 0
