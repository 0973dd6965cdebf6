"""Goals of the lines of the benchmarks: figures in, a verdict out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """A goal held against the figures: the figure in words, and whether the goal is reached."""

    figure: str
    met: bool


@dataclass(frozen=True)
class Figures:
    """Figures of one line, milliseconds or megabytes: ours, the best peer's, and every row's by name."""

    ours: float
    best: float | None
    rows: Mapping[str, float]


@dataclass(frozen=True)
class Goal:
    """The goal that a line must reach. `judge` returns None where the row that it compares with was not measured."""

    text: str
    judge: Callable[[Figures], Verdict | None]


def at_most(limit: float, against: str | None = None) -> Goal:
    """Ours takes at most `limit` times what the best peer takes, or row `against`."""

    def judge(figures: Figures) -> Verdict | None:
        base = figures.rows.get(against) if against else figures.best
        if base is None:
            return None
        return Verdict(f"{figures.ours / base:.2f} x", figures.ours <= limit * base)

    return Goal(f"at most {limit:.3g} x {against or 'the best peer'}", judge)


def at_least_operations(per_second: float, operations: int) -> Goal:
    """Ours builds at least `per_second` operations a second, `operations` of them being one measured call."""

    def judge(figures: Figures) -> Verdict:
        rate = 1e3 * operations / figures.ours
        return Verdict(f"{rate:,.0f}/s", rate >= per_second)

    return Goal(f"at least {per_second:,.0f} operations/s", judge)


def at_most_seconds(limit: float) -> Goal:
    """Ours takes at most `limit` seconds."""

    def judge(figures: Figures) -> Verdict:
        return Verdict(f"{figures.ours / 1e3:.2f} s", figures.ours <= 1e3 * limit)

    return Goal(f"at most {limit:g} s", judge)


def at_most_milliseconds(limit: float) -> Goal:
    """Ours takes at most `limit` milliseconds."""

    def judge(figures: Figures) -> Verdict:
        return Verdict(f"{figures.ours:.3g} ms", figures.ours <= limit)

    return Goal(f"at most {limit:g} ms", judge)


def at_most_plus(factor: float, extra_ms: float, against: str) -> Goal:
    """Ours takes at most `factor` times row `against`'s time plus `extra_ms`."""

    def judge(figures: Figures) -> Verdict | None:
        if against not in figures.rows:
            return None
        limit = factor * figures.rows[against] + extra_ms
        return Verdict(f"{figures.ours:.0f} of {limit:.0f} ms", figures.ours <= limit)

    return Goal(f"at most {factor:g} x {against} + {extra_ms:g} ms", judge)


def both(*goals: Goal) -> Goal:
    """Ours reaches each of `goals`; those that compare with a row that was not measured are left out."""

    def judge(figures: Figures) -> Verdict | None:
        found = [verdict for verdict in (goal.judge(figures) for goal in goals) if verdict is not None]
        return Verdict(", ".join(v.figure for v in found), all(v.met for v in found)) if found else None

    return Goal(" and ".join(goal.text for goal in goals), judge)


def less_than(*others: str) -> Goal:
    """Ours takes less time than each of those rows."""

    def judge(figures: Figures) -> Verdict | None:
        found = [figures.rows[other] for other in others if other in figures.rows]
        return Verdict(f"{figures.ours / min(found):.2f} x", figures.ours < min(found)) if found else None

    return Goal(f"less than {' and '.join(others)}", judge)


FOR_COMPARISON = Goal("for comparison", lambda figures: None)
