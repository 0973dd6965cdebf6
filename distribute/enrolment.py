"""`Enrolment`: what a worker under `ParameterServer` enrols for after an error: the training it was in, or another one.

An error of a ps task does not say whether the task was lost. It may have dropped a worker that was silent for some
time, or the connection between the two was cut: then the others train on, with all state, and the worker is to take
part again. So a worker remembers which *start* of each ps task held the state, and compares. This has no connections of
its own, so that a simulator can use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

_MOST_ERRORS = 20  # one after the other, of ps tasks that all answer


class Wish(NamedTuple):
    """The part of a request to take part that depends on what was before.

    Attributes:
        after: the number of the generation that the worker was in, if its state may be lost; else 0.
        is_whole: whether its state is known to be there nevertheless: all ps tasks are the same starts.
    """

    after: int
    is_whole: bool


class Enrolment:
    """The generation that a worker takes part in, and the starts of the ps tasks that hold its state.

    Args:
        ps: the names of the ps tasks.
        start_of: gives the number of the start of a task that runs now; None if it does not answer.

    Attributes:
        generation: the number of the generation; 0 before this worker has taken part in one.

    >>> starts = {"/job:ps/task:0": 7}
    >>> enrolment = Enrolment(list(starts), starts.get)
    >>> enrolment.enter(5)
    >>> enrolment.note_error(is_of_ps=True, may_restore=True)
    False
    >>> enrolment.wish()
    Wish(after=5, is_whole=True)
    >>> starts["/job:ps/task:0"] = 8
    >>> enrolment.wish()
    Wish(after=5, is_whole=False)
    """

    def __init__(self, ps: Sequence[str], start_of: Callable[[str], int | None]) -> None:
        self.generation = 0
        self._ps = ps
        self._start_of = start_of
        self._starts: dict[str, int | None] = {}
        self._is_doubtful = False  # an error of a ps task has come since
        self._errors = 0

    def enter(self, generation: int) -> None:
        """Note that this worker takes part in a generation.

        The starts are those that run now, and not before: so a task that was started again before the generation began
        is never taken for one that was lost. One that is lost in between counts as there until the leader notices.
        """
        self.generation = generation
        self._starts = {task: self._start_of(task) for task in self._ps}
        self._is_doubtful = False

    def note_share(self) -> None:
        """Note that this worker has computed a share: all ps tasks have answered."""
        self._errors = 0

    def note_error(self, is_of_ps: bool, may_restore: bool) -> bool:
        """Note an error; return whether a ps task seems to be lost.

        Args:
            is_of_ps: whether it is an error of a ps task, or says that what one held is lost.
            may_restore: whether training may begin again from a backup. If so, a leader that was dropped together with
                this worker is waited for. Else whoever is back first leads.
        """
        is_lost = is_of_ps and self._is_lost()
        self._is_doubtful = is_of_ps and may_restore
        self._errors += is_of_ps and not is_lost
        return is_lost

    @property
    def is_hopeless(self) -> bool:
        """Test whether this worker can't use the ps tasks, though they answer: again and again it had an error."""
        return self._errors > _MOST_ERRORS

    def wish(self) -> Wish:
        """Return what to enrol for; it changes when a ps task that did not answer is back."""
        if not self._is_doubtful:
            return Wish(0, False)
        return Wish(self.generation, not self._is_lost())

    def _is_lost(self) -> bool:
        """Test whether a ps task is another start than that which held the state, or does not answer."""
        for task in self._ps:
            now, before = self._start_of(task), self._starts.get(task)
            if now is None or before not in (None, now):
                return True
        return False


__all__ = ["Enrolment", "Wish"]
