"""Progress as `fit`, `evaluate` and `predict` print it: a bar, a line an epoch, or nothing.

Everything goes to standard output, as with Keras. A bar redraws itself, which floods a log file: ``verbose="auto"``
draws one in a terminal and in notebooks, and prints one line an epoch elsewhere. Of a step's time, both show what was
spent waiting for data, if it is worth a look: then prefetching or more workers help, and a quicker model does not.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from .limits import is_interactive_logging_enabled, show

if TYPE_CHECKING:
    from .base_callback import Logs

T = TypeVar("T")
_SECONDS_BETWEEN_REDRAWS = 0.2
_WORTH_A_LOOK = 0.1  # a share of the time


def resolve_verbose(verbose: str | int) -> int:
    """Return 0 (nothing), 1 (bar) or 2 (lines) for what the user asked.

    Raises:
        ValueError: it is none of "auto", 0, 1 and 2.
    """
    if verbose == "auto":
        return 1 if is_interactive_logging_enabled() and _shows_bars() else 2
    if verbose not in (0, 1, 2):
        raise ValueError(
            f"verbose must be 'auto', 0 (silent), 1 (progress bar) or 2 (one line an epoch), got {verbose!r}."
        )
    return int(verbose) if is_interactive_logging_enabled() else min(int(verbose), 1) * 2  # a log has lines


def _shows_bars() -> bool:
    if sys.stdout.isatty():
        return True
    return _is_notebook()


def _is_notebook() -> bool:
    """Test whether a kernel of Jupyter runs this process and gathers what it prints."""
    return "ipykernel" in sys.modules and type(sys.stdout).__module__.startswith("ipykernel")


def format_logs(logs: Logs) -> str:
    """Return logs as Keras prints them: four decimals, or an exponent where these would hide the value."""
    return " - ".join(f"{name}: {_format_value(value)}" for name, value in logs.items())


def _format_value(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value) or value == 0 or abs(value) > 1e-3:
        return f"{value:.4f}"
    return f"{value:.4e}"


class Progress:
    """Prints nothing; base of what prints.

    Args:
        title: what runs, for instance ``"Epoch 1/3"``; may be empty.
        steps: how many steps there will be, if it is known.
        read_logs: gives the current logs; called only when they are shown, because it costs time.
    """

    def __init__(self, title: str, steps: int | None, read_logs: Callable[[], Logs]) -> None:
        self.title = title
        self.steps = steps
        self.read_logs = read_logs
        self.done = 0
        self.started = time.perf_counter()
        self.next_redraw = math.inf  # the loop over the steps calls `redraw` once this time has come
        self.data_seconds = 0.0

    def is_due(self) -> bool:
        """Test whether it is time to show progress again."""
        return time.perf_counter() >= self.next_redraw

    def timed(self, batches: Iterator[T]) -> Iterator[T]:
        """Return the batches; the time that was spent waiting for them is noted where it is shown."""
        return batches

    def _note_waiting(self, batches: Iterator[T]) -> Iterator[T]:
        clock = time.perf_counter
        while True:
            asked = clock()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.data_seconds += clock() - asked
            yield batch

    def _waiting(self, steps: int) -> str:
        """Return how long a step waited for data, where it is worth a look: a tenth, and more than 10 us."""
        each = self.data_seconds / max(steps, 1)
        if self.data_seconds < _WORTH_A_LOOK * (time.perf_counter() - self.started) or each < 1e-5:
            return ""
        return f"{_duration(each)} data"

    def redraw(self, done: int) -> None:
        """Show that `done` steps are over."""

    def close(self, done: int, logs: Logs) -> None:
        """Show the end: all steps are over and `logs` are final."""


class LinePrinter(Progress):
    """One line at the end."""

    def timed(self, batches: Iterator[T]) -> Iterator[T]:
        return self._note_waiting(batches)

    def close(self, done: int, logs: Logs) -> None:
        seconds = time.perf_counter() - self.started
        parts = [self.title] if self.title else []
        waiting = self._waiting(done)
        per_step = f"{_duration(seconds / max(done, 1))}/step{f' ({waiting})' if waiting else ''}"
        parts += [f"{done}/{self.steps or done}", f"{seconds:.0f}s", per_step]
        if logs:
            parts.append(format_logs(logs))
        show(" - ".join(parts))


def _bar_class() -> Any:
    """Return the bar of notebooks in a notebook where its widgets are installed, and that of terminals elsewhere."""
    if _is_notebook() and find_spec("ipywidgets") is not None:
        from tqdm.auto import tqdm
    else:
        from tqdm import tqdm
    return tqdm


# Forms of a line, from the widest: without the bar, and without times.
_FORMS = (None, "{desc}: {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]", "{desc}: {n_fmt}/{total_fmt}{postfix}")
_INDENT = "    "


class Bar(Progress):
    """A tqdm bar, redrawn a few times a second.

    Where metrics leave no place for the bar in a line of the terminal, the line has none. Where they are wider than a
    line, those that fit are shown while the epoch runs, and at its end all of them in several lines.
    """

    def __init__(self, title: str, steps: int | None, read_logs: Callable[[], Logs]) -> None:
        super().__init__(title, steps, read_logs)
        self._bar = _bar_class()(
            total=steps, desc=title or None, file=sys.stdout, unit="step", dynamic_ncols=True, leave=True
        )
        self.next_redraw = self.started + _SECONDS_BETWEEN_REDRAWS

    def timed(self, batches: Iterator[T]) -> Iterator[T]:
        return self._note_waiting(batches)

    def redraw(self, done: int) -> None:
        self._show(done, self.read_logs())
        self.next_redraw = time.perf_counter() + _SECONDS_BETWEEN_REDRAWS

    def close(self, done: int, logs: Logs) -> None:
        if self.steps is None:
            self._bar.total = done
        if self._show(done, logs):
            self._bar.close()
            return
        self._bar.leave = False
        self._bar.close()
        seconds = time.perf_counter() - self.started
        count = f"{self.title}: {done}/{self.steps or done}" if self.title else f"{done}/{self.steps or done}"
        show(_wrapped([f"{count} [{seconds:.0f}s]", *self._parts(done, logs)], self._columns() or 80))

    def _show(self, done: int, logs: Logs) -> bool:
        """Redraw the line; return False if it has not all of the metrics."""
        self._bar.update(done - self.done)
        self.done = done
        parts = self._parts(done, logs)
        shown = self._fit(parts)
        self._bar.refresh()
        return shown == len(parts)

    def _parts(self, done: int, logs: Logs) -> list[str]:
        waiting = self._waiting(done)
        return ([waiting] if waiting else []) + [format_logs({name: value}) for name, value in logs.items()]

    def _columns(self) -> int | None:
        """Return how wide a line of the terminal is; None where nothing is cut, as in notebooks."""
        columns = self._bar.format_dict["ncols"]
        return columns if isinstance(columns, int) and columns > 0 else None  # not where a terminal has no size

    def _fit(self, parts: list[str]) -> int:
        """Choose the form of the line, and how many of the parts it has."""
        columns = self._columns()
        for count in range(len(parts), -1, -1):
            text = " - ".join(parts[:count] if count == len(parts) else [*parts[:count], "..."])
            self._bar.set_postfix_str(text, refresh=False)
            for form in _FORMS:
                self._bar.bar_format = form
                if columns is None or len(self._line()) <= columns:
                    return count
        return 0

    def _line(self) -> str:
        """Return the line with a bar of ten characters, if it has one."""
        return str(self._bar.format_meter(**{**self._bar.format_dict, "ncols": None}))


def _wrapped(parts: list[str], columns: int) -> str:
    """Join parts by dashes, in lines of at most so many characters where a part is not longer."""
    lines = [parts[0]]
    for part in parts[1:]:
        joined = f"{lines[-1]} - {part}"
        if len(joined) <= columns:
            lines[-1] = joined
        else:
            lines.append(f"{_INDENT}{part}")
    return "\n".join(lines)


def _duration(each: float) -> str:
    if each >= 1:
        return f"{each:.0f}s"
    return f"{each * 1e3:.0f}ms" if each >= 1e-3 else f"{each * 1e6:.0f}us"


def make_progress(verbose: int, title: str, steps: int | None, read_logs: Callable[[], Logs]) -> Progress:
    """Return the kind of progress that `verbose` (0, 1 or 2) asks for."""
    kinds: dict[int, type[Progress]] = {0: Progress, 1: Bar, 2: LinePrinter}
    return kinds[verbose](title, steps, read_logs)
