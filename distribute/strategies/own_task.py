"""`OwnTask`: this process's task of a cluster. Strategies that name the same task share one server."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..cluster import ClusterSpec, host_to_bind, listens

if TYPE_CHECKING:
    from ..tasks.server import Server

_LOOK_SECONDS = 1.0  # how long a ps task waits from look to look at the workers
_lock = threading.Lock()
_known: dict[tuple[str, str, int], OwnTask] = {}


class OwnTask:
    """A task that runs in this process as long as a strategy has it. Make it with `joined`.

    Attributes:
        server: it runs; None between the last strategy that has it and the next one.
        fits: how many times models were trained, under whichever strategy: a number for the state on ps tasks.
        first_fits: by model, the number of the first of its trainings that share state there, and the options of these.
    """

    def __init__(self) -> None:
        self.server: Server | None = None
        self.fits = 0
        self.first_fits: WeakKeyDictionary[object, tuple[int, object]] = WeakKeyDictionary()
        self._users = 0

    @classmethod
    def joined(cls, cluster: ClusterSpec, job_name: str, task_index: int) -> OwnTask:
        """Return this process's task, which is started if no strategy has it.

        Args:
            cluster: all tasks.
            job_name, task_index: which of them.

        Raises:
            ValueError: a strategy of this process is a task of another cluster at the same address.
            OSError: something else listens there.
        """
        from ..tasks.server import Server

        key = cluster.as_json(), job_name, task_index
        with _lock:
            found = _known.setdefault(key, cls())
            if found.server is None:
                _check_address(cluster, job_name, task_index)
                bind = host_to_bind(cluster.address(cluster.task_name(job_name, task_index)))
                found.server = Server(cluster, job_name, task_index, bind=bind)
            found._users += 1
        return found

    def serve(self, workers: Mapping[str, str], patience: float = 30.0) -> None:
        """Serve as a ps task until the job ends: until all workers are gone, after some were there.

        Args:
            workers: the address of each, by its name.
            patience: how many seconds none is there at the end, unless all have ended in order; one that was lost may
                be started again meanwhile.
        """
        assert self.server is not None
        seen: float | None = None
        while not self.server.join(_LOOK_SECONDS):
            if any(listens(each, _LOOK_SECONDS) for each in workers.values()):
                seen = time.monotonic()
            elif seen is not None and (self.server.task.left >= workers.keys() or time.monotonic() > seen + patience):
                self.leave()
                return

    def end_with_process(self) -> None:
        """Have other tasks be notified that this one ends for good, unless the script has failed: it may come again."""
        if self.server is not None and getattr(sys, "last_value", None) is None:
            self.server.task.ends_in_order = True

    def leave(self) -> None:
        """Have the server end, if this was the last strategy that has it."""
        with _lock:
            self._users -= 1
            server, self.server = (self.server, None) if self._users == 0 else (None, self.server)
        if server is not None:
            server.stop()


def _check_address(cluster: ClusterSpec, job_name: str, task_index: int) -> None:
    """Check that no other strategy of this process listens at the address of a task."""
    address = cluster.address(cluster.task_name(job_name, task_index))
    for each in _known.values():
        if each.server is not None and each.server.target == f"grpc://{address}":
            raise ValueError(
                f"ParameterServer: another strategy of this process already is {each.server.name} at {address}, in "
                "another cluster. Close it first: strategy.close()."
            )


__all__ = ["OwnTask"]
