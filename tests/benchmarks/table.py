"""From records to the table, on the terminal and in `docs/performance.md`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from goals import Figures, Verdict
from harness import FirstSteps, Measured, Record
from line import Line, Measure

INTRODUCTION = """\
Written by `make bench` (`tests/benchmarks/run.py`); do not edit by hand. A ratio is our time (in W9 our memory) over
the best peer's in the same run, on the same machine, with the same data, weights and work: lower is better, below 1 is
better than every peer. Floors are hand-written NumPy or numba loops; they are shown, not counted."""
ABOUT_ROWS = """\
Medians over processes of each process's own median; beside them the lowest and highest process. `first step` is the
first call of the first process, compilation included. Losses must agree with those of all peers, or the work is not the
same."""
ABOUT_PARTS = """\
Each call of a line is measured by itself: medians over processes of each process's median of blocks of calls."""
ABOUT_FIRST_STEPS = """\
The first step of ours in a fresh process, everything that is prepared and compiled included; `cold` begins with an
empty kernel cache, `warm` with what the cold one left there. The limits are for preparing: where the work of a step
(its median) alone takes more than half of a limit, that is taken off."""
LOSS_TOLERANCE = 2e-5  # relative; peers that do the same work agree to about 1e-6
PEER_TOLERANCE = 1e-4  # PyTorch's Adam adds epsilon elsewhere
COLD_LIMIT, WARM_LIMIT = 3.0, 0.7  # seconds


@dataclass(frozen=True)
class Row:
    """One row of a line: medians over its processes, in milliseconds."""

    name: str
    role: str  # "ours", "peer" or "floor"
    median: float
    lowest: float
    highest: float
    first_step: float | None
    peak_mb: int
    processes: int
    loss_check: tuple[float, ...]
    parts_us: Mapping[str, float]  # the parts of the work, one by one, in microseconds; most have none

    def figure(self, measure: Measure) -> float:
        """Return the figure that the line compares: milliseconds or megabytes."""
        return self.median if measure == "time" else self.peak_mb


@dataclass(frozen=True)
class Start:
    """The first step of a row of ours, in seconds, without and with kernels in the cache."""

    name: str
    cold: float
    warm: float
    step: float

    @property
    def met(self) -> bool:
        return self._beyond(self.cold, COLD_LIMIT) <= COLD_LIMIT and self._beyond(self.warm, WARM_LIMIT) <= WARM_LIMIT

    def _beyond(self, first: float, limit: float) -> float:
        return first - self.step if self.step > limit / 2 else first


@dataclass(frozen=True)
class Summary:
    """One line of the plan with its rows (best first), the best peer, the verdicts and whatever is amiss."""

    title: str
    what: str
    rows: tuple[Row, ...]
    best: Row | None
    goals: Mapping[str, str]
    verdicts: Mapping[str, Verdict | None]
    remarks: tuple[str, ...]
    measure: Measure = "time"
    starts: tuple[Start, ...] = ()


def _row(name: str, role: str, records: Sequence[Record]) -> Row:
    medians = [record["median_ms"] for record in records]
    firsts = [record["compile_or_first_step_s"] for record in records]
    return Row(
        name=name,
        role=role,
        median=statistics.median(medians),
        lowest=min(medians),
        highest=max(medians),
        first_step=None if None in firsts else firsts[0],  # the first process: later ones may find a cache
        peak_mb=max(record["peak_rss_mb"] for record in records),
        processes=len(records),
        loss_check=tuple(records[0]["loss_check"]),
        parts_us={
            part: statistics.median([record["parts_us"][part] for record in records])
            for part in records[0].get("parts_us", ())
        },
    )


def _differs(row: Row, losses: Sequence[float], tolerance: float) -> bool:
    """Test whether a row that should train with these `losses` does not."""
    if len(row.loss_check) != len(losses):
        return True
    return not all(abs(a - b) <= tolerance * abs(b) for a, b in zip(row.loss_check, losses, strict=True))  # or NaN


def _work_remarks(line: Line, rows: Sequence[Row]) -> list[str]:
    """The rows that do other work than the line's."""
    if not line.losses:
        return []
    tolerances = {"ours": LOSS_TOLERANCE, "peer": PEER_TOLERANCE}
    return [
        f"{row.name} does not do the same work: losses {row.loss_check}, expected {line.losses}"
        for row in rows
        if row.role in tolerances and _differs(row, line.losses, tolerances[row.role])
    ]


def _start(name: str, first: FirstSteps, median_ms: float) -> Start:
    return Start(name, statistics.median(first.cold), statistics.median(first.warm), median_ms / 1e3)


def summarise(measured: Measured) -> Summary:
    """Reduce one line's records."""
    line = measured.line
    roles = {
        **dict.fromkeys(line.floors, "floor"),
        **dict.fromkeys(line.peers, "peer"),
        **dict.fromkeys(line.goals, "ours"),
    }
    rows = sorted(
        (_row(name, roles[name], records) for name, records in measured.records.items()),
        key=lambda row: row.figure(line.measure),
    )
    best = next((row for row in rows if row.role == "peer"), None)
    figures = {row.name: row.figure(line.measure) for row in rows}
    best_figure = best.figure(line.measure) if best else None
    verdicts = {
        name: goal.judge(Figures(figures[name], best_figure, figures)) if name in figures else None
        for name, goal in line.goals.items()
    }
    remarks = [f"{name} failed: {why}" for name, why in measured.failures.items()] + _work_remarks(line, rows)
    goals = {name: goal.text for name, goal in line.goals.items()}
    medians = {row.name: row.median for row in rows}
    starts = tuple(_start(name, first, medians[name]) for name, first in measured.first_steps.items())
    return Summary(
        line.title, line.what, tuple(rows), best, goals, verdicts, tuple(remarks), measure=line.measure, starts=starts
    )


def show(value: float | None) -> str:
    """A figure with about three digits."""
    if value is None:
        return ""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def cells(summary: Summary, row: Row) -> list[str]:
    """One row of the detailed table."""
    ratio = f"x{row.figure(summary.measure) / summary.best.figure(summary.measure):.2f}" if summary.best else ""
    spread = f"{show(row.lowest)} - {show(row.highest)}"
    return [
        summary.title,
        row.name if row.role != "floor" else f"{row.name} (floor)",
        show(row.median),
        spread,
        ratio,
        show(row.first_step),
        str(row.peak_mb),
        " ".join(f"{loss:.6g}" for loss in row.loss_check),
    ]


DETAIL_HEAD = ["line", "row", "median ms", "process medians", "vs best peer", "first step s", "peak MB", "loss check"]
GOAL_HEAD = ["line", "row", "ours", "best peer", "its", "ratio", "goal", "figure", "met"]
PART_HEAD = ["line", "row", "part", "ours us", "best peer", "its us", "ratio"]
START_HEAD = ["line", "row", "cold s", "warm s", "a step s", "limits s", "met"]
UNITS: dict[Measure, str] = {"time": "ms", "memory": "MB"}


def goal_cells(summary: Summary) -> Iterable[list[str]]:
    """Our rows held against their goals."""
    figures = {row.name: row.figure(summary.measure) for row in summary.rows}
    best = summary.best
    its = best.figure(summary.measure) if best else None
    unit = UNITS[summary.measure]
    for name, text in summary.goals.items():
        ours, verdict = figures.get(name), summary.verdicts[name]
        yield [
            summary.title,
            name,
            f"{show(ours)} {unit}" if ours else "failed",
            best.name if best else "not measured",
            f"{show(its)} {unit}" if its else "",
            f"{ours / its:.2f}" if ours and its else "",
            text,
            verdict.figure if verdict else "",
            "unknown" if verdict is None else "yes" if verdict.met else "NO",
        ]


def start_cells(summary: Summary) -> Iterable[list[str]]:
    """Our rows' first steps."""
    for start in summary.starts:
        yield [
            summary.title,
            start.name,
            f"{start.cold:.2f}",
            f"{start.warm:.2f}",
            show(start.step),
            f"{COLD_LIMIT:g} / {WARM_LIMIT:g}",
            "yes" if start.met else "NO",
        ]


def part_cells(summary: Summary) -> Iterable[list[str]]:
    """The parts of our rows' work, each beside the peer that is best at it."""
    peers = [row for row in summary.rows if row.role == "peer"]
    for row in summary.rows:
        if row.role != "ours":
            continue
        for part, ours in row.parts_us.items():
            theirs = {peer.parts_us[part]: peer.name for peer in peers if part in peer.parts_us}
            its = min(theirs, default=None)
            yield [
                summary.title,
                row.name,
                part,
                show(ours),
                "not measured" if its is None else theirs[its],
                show(its),
                f"{ours / its:.2f}" if its else "",
            ]


def plain(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns for the terminal."""
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    body = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in body)


def terminal_text(summaries: Sequence[Summary]) -> str:
    """Everything, for the terminal."""
    detail = [cells(summary, row) for summary in summaries for row in summary.rows]
    goals = [row for summary in summaries for row in goal_cells(summary)]
    starts = [row for summary in summaries for row in start_cells(summary)]
    remarks = [f"! {summary.title}: {remark}" for summary in summaries for remark in summary.remarks]
    parts = [row for summary in summaries for row in part_cells(summary)]
    tables = [
        plain(DETAIL_HEAD, detail),
        plain(PART_HEAD, parts) if parts else "",
        plain(GOAL_HEAD, goals),
        plain(START_HEAD, starts) if starts else "",
    ]
    return "\n\n".join(filter(None, [*tables, "\n".join(remarks)]))


def document(
    summaries: Sequence[Summary], facts: Mapping[str, str], missing_peers: bool, title: str = "Performance"
) -> str:
    """The text of `docs/performance.md`."""
    detail = [cells(summary, row) for summary in summaries for row in summary.rows]
    goals = [row for summary in summaries for row in goal_cells(summary)]
    remarks = [f"- {summary.title}: {remark}" for summary in summaries for remark in summary.remarks]
    starts = [row for summary in summaries for row in start_cells(summary)]
    parts_of_work = [row for summary in summaries for row in part_cells(summary)]
    if missing_peers:
        remarks.insert(0, "- Some peers' environments were not there, so their rows are missing.")
    works = dict.fromkeys(f"- **{summary.title}**: {summary.what}." for summary in summaries)
    parts = [
        f"# {title}",
        INTRODUCTION,
        "\n".join(f"- {key}: {value}" for key, value in facts.items()),
        "## Goals",
        markdown(GOAL_HEAD, goals),
        "## First steps",
        ABOUT_FIRST_STEPS,
        markdown(START_HEAD, starts),
        "## What the lines are",
        "\n".join(works),
        "## All rows",
        ABOUT_ROWS,
        markdown(DETAIL_HEAD, detail),
    ]
    if parts_of_work:
        parts += ["## Parts of lines", ABOUT_PARTS, markdown(PART_HEAD, parts_of_work)]
    if remarks:
        parts += ["## Remarks", "\n".join(remarks)]
    parts += [
        "## How to run",
        "    tests/benchmarks/peers/make_env.sh      # once: the peers, some 3 GB\n"
        "    python tests/benchmarks/run.py          # all lines; or some: W2 W4; or --quick",
    ]
    return "\n\n".join(parts) + "\n"
