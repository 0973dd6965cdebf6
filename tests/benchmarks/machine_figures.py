"""The figures of docs/machine.md, drawn from its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from figures import Points, chart

Rows = Sequence[Sequence[str]]


def number(text: str) -> float | None:
    """The number of a cell such as ``1,234``, ``0.5`` or ``2.3 x``; None of words."""
    found = re.fullmatch(r"([\d,.]+)(?: x)?", text)
    return float(found[1].replace(",", "")) if found else None


def points(rows: Rows, x: int, y: int) -> Points:
    """Columns x and y of the rows in which both are numbers."""
    pairs = [(number(row[x]), number(row[y])) for row in rows]
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def rate(rows: Rows) -> str:
    """Iterations a second over devices, with a barrier and without."""
    free, barrier = ([row for row in rows if row[1] == kind] for kind in ("no", "yes"))
    series = {
        "free": points(free, 0, 2),
        "barrier": points(barrier, 0, 2),
        "barrier, a host that takes no time": points(barrier, 0, 5),
    }
    return chart("Trivial loop", "devices", "iterations a second", series, log=True, log_x=True)


def chain(rows: Rows) -> str:
    """Iterations a second over the window."""
    series = {"measured": points(rows, 0, 1), "a host that takes no time": points(rows, 0, 2)}
    return chart("Chain of 8 devices", "parallel_iterations", "iterations a second", series, log_x=True)


def swapping(rows: Rows) -> str:
    """Milliseconds a time step over the length."""
    names = ("without swapping", "with swapping", "kernels alone")
    series = {name: points(rows, 0, column) for column, name in enumerate(names, 1)}
    return chart("LSTM, a time step", "sequence length", "ms", series)


def unrolling(rows: Rows) -> str:
    """The time of a loop over that of the unrolled graph."""
    measured = points(rows, 0, 3)
    series = {"measured": measured, "equal": [(x, 1.0) for x, _ in measured]}
    return chart("Loop over unrolled", "batch", "time of a step, ratio", series, log_x=True)


def lengths(rows: Rows) -> str:
    """Peak of memory over the length."""
    of_64 = [row for row in rows if row[0] == "64"]
    series = {name: points(of_64, 1, column) for column, name in enumerate(("loop", "loop, budget", "unrolled"), 3)}
    return chart("LSTM, batch 64", "sequence length", "peak MB", series)


def layers(rows: Rows) -> str:
    """Speedup over devices."""
    series = {"measured": points(rows, 0, 3), "kernels that wait for nothing else": points(rows, 0, 4)}
    return chart("8 layers of LSTM", "devices", "speedup", series)


FIGURES: Mapping[str, Callable[[Rows], str]] = {
    each.__name__: each for each in (rate, chain, swapping, unrolling, lengths, layers)
}


def tables(document: str) -> dict[str, Rows]:
    """The rows of the table of each experiment, by its name, from the text of docs/machine.md."""
    found: dict[str, Rows] = {}
    for part in document.split("\n## ")[1:]:
        named = re.search(r"figures/machine_(\w+)\.svg", part)
        lines = [line for line in part.splitlines() if line.startswith("|")]
        if named:
            found[named[1]] = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return found


def draw(names: Sequence[str], docs: Path) -> None:
    """Draw the figures of these experiments, or of all, into `docs`/figures from the tables of `docs`/machine.md.

    Raises:
        SystemExit: an experiment has no figure.
    """
    wrong = [name for name in names if name not in FIGURES]
    if wrong:
        raise SystemExit(f"{wrong[0]} has no figure; expected some of {', '.join(FIGURES)}")
    for name, rows in tables((docs / "machine.md").read_text(encoding="utf-8")).items():
        if not names or name in names:
            (docs / "figures" / f"machine_{name}.svg").write_text(FIGURES[name](rows), encoding="utf-8")
