"""`Progbar`: a progress bar for loops of one's own, as Keras draws it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import numpy as np

from ..training.limits import is_interactive_logging_enabled, show

_BOLD, _GREEN, _GREY, _PLAIN = "\x1b[1m", "\x1b[32m", "\x1b[37m", "\x1b[0m"


class Progbar:
    """A progress bar.

    Args:
        target: how many steps there will be; None if that is not known.
        width: of the bar, in characters.
        verbose: 0 for nothing, 1 for a bar, 2 for one line at the end.
        interval: the least number of seconds between two drawings.
        stateful_metrics: names of values that are shown as they are. Of others the mean over the steps is shown.
        stateless_metrics: instead, names of those of which the mean is shown; others are shown as they are.
        unit_name: what a step is called.

    Raises:
        ValueError: both lists of names are given.

    >>> bar = Progbar(target=4, verbose=2)
    >>> for step in range(3):
    ...     bar.update(step + 1, [("loss", 1.0)])
    >>> bar.add(1, [("loss", 0.25)])  # doctest: +ELLIPSIS
    4/4 - 0s - ...s/step - loss: 0.2500
    """

    def __init__(
        self,
        target: int | None,
        width: int = 20,
        verbose: int = 1,
        interval: float = 0.05,
        stateful_metrics: Iterable[str] | None = None,
        stateless_metrics: Iterable[str] | None = None,
        unit_name: str = "step",
    ) -> None:
        if stateful_metrics is not None and stateless_metrics is not None:
            raise ValueError(
                "Progbar takes stateful_metrics, the names of values that are shown as they are, or stateless_metrics, "
                "the names of those that are averaged; got both."
            )
        self.target = target
        self.width = width
        self.verbose = verbose
        self.interval = interval
        self.unit_name = unit_name
        self.stateful_metrics = None if stateful_metrics is None else set(stateful_metrics)
        self.stateless_metrics = None if stateless_metrics is None else set(stateless_metrics)
        self._sums: dict[str, tuple[float, float]] = {}
        self._seen = 0
        self._start = time.perf_counter()
        self._after_first: float | None = None
        self._drawn_at = -math.inf
        self._drawn_width = 0

    def update(
        self, current: int, values: Iterable[tuple[str, float]] | None = None, finalize: bool | None = None
    ) -> None:
        """Show that `current` steps are over.

        Args:
            current: the number of the step.
            values: pairs of a name and a value of this step (or the mean of the steps since the last update).
            finalize: whether this is the end; by default when the target is reached. Then values are shown as given.
        """
        if finalize is None:
            finalize = self.target is not None and current >= self.target
        for name, value in values or ():
            self._take(name, value, current, finalize)
        self._seen = current
        now = time.perf_counter()
        each = self._seconds_per_step(current, now)
        if self.verbose == 1 and (finalize or now - self._drawn_at >= self.interval):
            self._draw(current, now, each, finalize)
            self._drawn_at = now
        elif self.verbose == 2 and finalize and self.target:
            parts = [self._count(current), f"{now - self._start:.0f}s", _per_unit(each, self.unit_name)]
            show(" - ".join([*parts, *self._texts()]))

    def add(self, n: int, values: Iterable[tuple[str, float]] | None = None) -> None:
        """Show that `n` more steps are over; see `update`."""
        self.update(self._seen + n, values)

    def _take(self, name: str, value: float, current: int, finalize: bool) -> None:
        if not self._is_averaged(name) or finalize:
            self._sums[name] = (value, 1)
            return
        steps = max(current - self._seen, 1)
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = (total + value * steps, count + steps)

    def _is_averaged(self, name: str) -> bool:
        if self.stateless_metrics is not None:
            return name in self.stateless_metrics
        return self.stateful_metrics is None or name not in self.stateful_metrics

    def _seconds_per_step(self, current: int, now: float) -> float:
        """Return the mean time of a step, without the first one, which compiles."""
        if not current:
            return 0.0
        if self._after_first is not None and current > 1:
            return (now - self._after_first) / (current - 1)
        if current == 1:
            self._after_first = now
        return (now - self._start) / current

    def _draw(self, current: int, now: float, each: float, finalize: bool) -> None:
        if self.target:
            done = min(int(self.width * current / self.target), self.width)
            bar = f"{_BOLD}{self._count(current)}{_PLAIN} {_GREEN}{'━' * done}{_PLAIN}{_GREY}"
            bar += f"{'━' * (self.width - done)}{_PLAIN}"
            width = len(self._count(current)) + 1 + self.width
        else:
            bar = f"{current:7d}/Unknown"
            width = len(bar)
        left = each * (self.target - current) if self.target and not finalize else None
        seconds = f"{now - self._start:.0f}s" if left is None else _duration(left)
        rest = f" {_per_unit(each, self.unit_name)}" + "".join(f" - {text}" for text in self._texts())
        width += len(seconds) + 1 + len(rest)
        padding = " " * max(self._drawn_width - width, 0)
        start = "\b" * self._drawn_width + "\r" if is_interactive_logging_enabled() else ""
        show(f"{start}{bar} {_BOLD}{seconds}{_PLAIN}{rest}{padding}", end="\n" if finalize else "")
        self._drawn_width = width

    def _count(self, current: int) -> str:
        assert self.target
        return f"{current:{len(str(self.target))}d}/{self.target}"

    def _texts(self) -> list[str]:
        return [f"{name}: {_format(total, count)}" for name, (total, count) in self._sums.items()]


def _format(total: float, count: float) -> str:
    mean = float(np.mean(total)) / max(1, count)
    return f"{mean:.4f}" if abs(mean) > 1e-3 else f"{mean:.4e}"


def _per_unit(seconds: float, unit: str) -> str:
    if seconds >= 1 or seconds == 0:
        return f"{seconds:.0f}s/{unit}"
    return f"{seconds * 1e3:.0f}ms/{unit}" if seconds >= 1e-3 else f"{seconds * 1e6:.0f}us/{unit}"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole > 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}" if whole > 60 else f"{whole}s"
