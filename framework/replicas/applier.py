"""`Applier`: a thread of the chief that has the set of each step applied, under `ParameterServer`."""

from __future__ import annotations

import contextlib
import threading

from ...engine.queues.errors import StateLostError, TaskFailedError
from .cluster_fit import reason_of
from .programs import ReplicaPrograms


class Applier:
    """A thread of the chief that has the set of each step applied.

    Ps task 0 is the master of that: so steps do not wait for a chief that is slow with its own share.

    Args:
        programs: those of the chief.

    Attributes:
        between_steps: held while a set is applied.
        error: what went wrong in the thread.
    """

    def __init__(self, programs: ReplicaPrograms) -> None:
        self.between_steps = threading.Lock()
        self.error: Exception | None = None
        self._programs = programs.of_applier()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="anabranch applies steps", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                chosen = self._programs.choose()
                with self.between_steps:
                    self._programs.apply(chosen)
        except Exception as error:
            if not self._is_ending:
                self.error = error
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Have all workers hear that a step could not be applied; else the chief would wait for it for ever."""
        reason = f"a step could not be applied: {reason_of(error)}"
        try:
            _give_up(self._programs, error, reason)
        except Exception:  # such as that the connection of this thread alone is lost
            with contextlib.suppress(Exception):  # such as that the process ends, and the strategy is closed
                own = ReplicaPrograms(self._programs.plan, self._programs.token)
                with contextlib.closing(own):
                    _give_up(own, error, reason)

    def end(self) -> None:
        """End the thread; a set that is being applied is waited for."""
        self._is_ending = True
        with contextlib.suppress(TaskFailedError, StateLostError):  # then nobody waits for a set any more
            self._programs.end_choosing()
        self._thread.join()


def _give_up(programs: ReplicaPrograms, error: Exception, reason: str) -> None:
    is_lost = isinstance(error, (TaskFailedError, StateLostError))
    (programs.abandon if is_lost else programs.end_all)(reason)


__all__ = ["Applier"]
