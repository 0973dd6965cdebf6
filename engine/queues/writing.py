"""`Writing`: one run of a step that writes variables.

Steps that write the same variable run one after the other, as if there were one thread, so no update is lost. Each
variable has a lock. A run takes those of all variables that it writes when it begins, in one order for all runs, and
gives them back at its end. It also gives them back while it waits for something that other steps do (`others_go_on`):
otherwise these could not do it.

An interrupt (Ctrl-C) that comes between two writes of a run is raised when the run has ended: of its updates all are
there, or none. A second one is raised at once.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..common.deadlines import requests, waits
from ..graph.state.variable import Variable
from .errors import DeadlineExceededError
from .stops import check_cancelled

Lock = Any  # threading.RLock is a function


_runs_of: dict[int, list[Writing]] = {}  # all that there are, by thread


class _Here(threading.local):
    """The runs of this thread, the innermost last."""

    def __init__(self) -> None:
        self.runs: list[Writing] = []
        _runs_of[threading.get_ident()] = self.runs


_here = _Here()
_lent: ContextVar[frozenset[Lock]] = ContextVar("lent", default=frozenset())  # locks that another thread holds for this


def locks_of(variables: Iterable[Variable]) -> tuple[Lock, ...]:
    """Return the locks of variables, in the order in which all steps take them."""
    return tuple(sorted({variable.lock for variable in variables}, key=id))


class Writing:
    """One run of a step, as a context.

    Args:
        locks: of the variables that it writes (`locks_of`).
    """

    __slots__ = ("_holds", "_locks", "_window")

    def __init__(self, locks: Sequence[Lock]) -> None:
        self._locks = locks
        self._holds = False
        self._window: _Window | None = None

    def __enter__(self) -> None:
        runs, lent = _here.runs, _lent.get()
        if lent:
            self._locks = [lock for lock in self._locks if lock not in lent]
        if runs:
            self._enter_inside(runs)
            return
        runs.append(self)
        try:
            for lock in self._locks:
                if not lock.acquire(False):
                    _wait_for(lock)
            self._holds = True
        except BaseException:
            runs.pop()
            _release_owned(self._locks)
            raise

    def _enter_inside(self, runs: list[Writing]) -> None:
        """Enter for a step that a function of another step runs, in its thread: it may hold locks already."""
        self._locks = [lock for lock in self._locks if not lock._is_owned()]
        runs.append(self)
        try:
            if not all(lock.acquire(False) for lock in self._locks):
                _release_owned(self._locks)
                _give_back(runs[:-1])  # who holds the missing one may wait for these
                _take_back(runs)
            self._holds = True
        except BaseException:
            runs.pop()
            _release_owned(self._locks)
            raise

    def __exit__(self, *_: object) -> None:
        try:
            if self._holds:
                for lock in self._locks:
                    lock.release()
        except BaseException:  # an interrupt
            _release_owned(self._locks)
            raise
        finally:
            _here.runs.pop()
            if self._window is not None:
                self._window.close()

    @property
    def locks(self) -> Sequence[Lock]:
        """The locks that it holds while it runs."""
        return self._locks

    def hold(self) -> None:
        """Hold interrupts from now on."""
        if self._window is None:
            self._window = _Window.opened()

    def pause(self) -> bool:
        """Let interrupts through; whether they were not."""
        window, self._window = self._window, None
        if window is None:
            return False
        window.close()
        return True

    def note(self, holds: bool) -> None:
        """Note whether it has its locks."""
        self._holds = holds


def held_locks() -> frozenset[Lock]:
    """Return the locks that the steps of this thread hold."""
    return _lent.get().union(*[run.locks for run in _here.runs])


def borrow_locks(locks: frozenset[Lock]) -> None:
    """Borrow locks that a waiting thread holds for this one: steps run in this context do without them from now on."""
    _lent.set(locks)


@contextmanager
def writing_together(variables: Iterable[Variable]) -> Generator[None]:
    """Make all writes of the block, or none: an interrupt is raised at its end, and no step comes between."""
    with Writing(locks_of(variables)):
        hold_interrupts()
        yield


def hold_interrupts() -> None:
    """Hold interrupts: the run of this thread begins to write, and they wait from now on until it has ended."""
    runs = _here.runs
    if runs and threading.get_ident() == _main:
        runs[-1].hold()


@contextmanager
def others_go_on() -> Generator[None]:
    """Let other steps write what this one writes while its thread waits in the block; interrupts come through."""
    runs = list(_here.runs)
    if not runs:
        yield
        return
    held_back = [run for run in runs if run.pause()]
    _give_back(runs)
    yield  # a step that fails here does not go on: it needs its locks no more
    _take_back(runs)
    for run in held_back:
        run.hold()


def _give_back(runs: Iterable[Writing]) -> None:
    for run in runs:
        run.note(False)
        _release_owned(run.locks)


def _take_back(runs: Sequence[Writing]) -> None:
    """Take the locks of all runs, in the order of all."""
    locks: list[Lock] = sorted({lock for run in runs for lock in run.locks}, key=id)
    try:
        for lock in locks:
            if not lock.acquire(False):
                _wait_for(lock)
    except BaseException:
        _release_owned(locks)
        raise
    for run in runs:
        run.note(True)


def _release_owned(locks: Iterable[Lock]) -> None:
    for lock in locks:
        if lock._is_owned():
            lock.release()


def _wait_for(lock: Lock) -> None:
    """Take a lock that somebody else has.

    Raises:
        DeadlineExceededError: the thread's deadline has passed.
        CancelledError: the step has to end.
    """
    for longest in waits():
        if lock.acquire(timeout=longest):
            return
        if requests:
            check_cancelled()
    raise DeadlineExceededError(
        "The timeout was over while the step waited to write a variable: another step writes it, and has not ended. "
        "Give a longer timeout, or end that step."
    )


# --- interrupts -----------------------------------------------------------------------------------------------------

_main = threading.main_thread().ident
_Handler = Callable[[int, Any], Any]
# The functions of `signal` make enums of what these give back, which takes ten times as long.
_functions: Any = importlib.import_module("_signal") if importlib.util.find_spec("_signal") else signal
_set_handler: Callable[[int, Any], Any] = _functions.signal
_get_handler: Callable[[int], Any] = _functions.getsignal
_INTERRUPT = int(signal.SIGINT)


class _Window:
    """The time in which an interrupt waits.

    Args:
        before: what handles interrupts otherwise.
    """

    current: _Window | None = None  # there is one main thread

    def __init__(self, before: _Handler) -> None:
        self._before = before
        self._handler = self._handle
        self._frame: Any = None
        self._is_pending = False

    @staticmethod
    def opened() -> _Window | None:
        """Open a window, and return it; None if one is open, or if nothing is raised for interrupts."""
        before = _get_handler(_INTERRUPT)
        if _Window.current is not None or not callable(before):
            return None
        window = _Window(before)
        _Window.current = window
        _set_handler(_INTERRUPT, window._handler)
        return window

    def _handle(self, number: int, frame: Any) -> None:
        if self._is_pending:
            self._before(number, frame)
        self._is_pending, self._frame = True, frame

    def close(self) -> None:
        """Raise the interrupt that came meanwhile, if one did."""
        if _Window.current is self:
            _Window.current = None
        if _get_handler(_INTERRUPT) is self._handler:  # otherwise somebody has set another one meanwhile
            _set_handler(_INTERRUPT, self._before)
        if self._is_pending:
            frame, self._frame = self._frame, None
            self._before(_INTERRUPT, frame)


def _in_child() -> None:
    """Adjust a child after a fork: its only thread is the main one; nobody gives back what others held."""
    global _main
    _main = threading.get_ident()
    for thread, runs in list(_runs_of.items()):
        if thread != _main:
            for lock in {lock for run in runs for lock in run.locks}:
                lock._at_fork_reinit()
            del _runs_of[thread]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
