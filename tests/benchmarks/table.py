"""From records to the table, on the terminal and in `docs/performance.md`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness import Measured, Record
from plan import Figures, Verdict

INTRODUCTION = """\
Written by `make bench` (`tests/benchmarks/run.py`); do not edit by hand. A ratio is our time over the fastest peer's in
the same run, on the same machine, with the same data, weights and work: lower is better, below 1 is faster than every
peer. Floors are hand-written NumPy or numba loops; they are shown, not counted."""
ABOUT_ROWS = """\
Medians over processes of each process's own median; beside them the lowest and highest process. `first step` is the
first call of the first process, compilation included. Losses must agree, or the work is not the same."""
LOSS_TOLERANCE = 2e-5  # relative; peers that do the same work agree to about 1e-6


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


@dataclass(frozen=True)
class Summary:
    """One line of the plan with its rows (fastest first), the best peer, the verdicts and whatever is amiss."""

    title: str
    what: str
    rows: tuple[Row, ...]
    best: Row | None
    goals: Mapping[str, str]
    verdicts: Mapping[str, Verdict | None]
    remarks: tuple[str, ...]


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
    )


def _differs(ours: Row, peer: Row) -> bool:
    pairs = zip(ours.loss_check, peer.loss_check, strict=False)
    return any(abs(a - b) > LOSS_TOLERANCE * abs(b) for a, b in pairs)


def summarise(measured: Measured) -> Summary:
    """Reduce one line's records."""
    line = measured.line
    roles = {
        **dict.fromkeys(line.floors, "floor"),
        **dict.fromkeys(line.peers, "peer"),
        **dict.fromkeys(line.goals, "ours"),
    }
    rows = sorted((_row(n, roles[n], r) for n, r in measured.records.items()), key=lambda row: row.median)
    best = next((row for row in rows if row.role == "peer"), None)
    by_name = {row.name: row for row in rows}
    medians = {row.name: row.median for row in rows}
    verdicts = {
        name: goal.judge(Figures(medians[name], best.median if best else None, medians)) if name in medians else None
        for name, goal in line.goals.items()
    }
    remarks = [f"{name} failed: {why}" for name, why in measured.failures.items()]
    remarks += [
        f"{name} does not do the same work as {best.name}: losses {by_name[name].loss_check} against {best.loss_check}"
        for name in line.goals
        if best and name in by_name and _differs(by_name[name], best)
    ]
    goals = {name: goal.text for name, goal in line.goals.items()}
    return Summary(line.title, line.what, tuple(rows), best, goals, verdicts, tuple(remarks))


def show(value: float | None) -> str:
    """A figure with about three digits."""
    if value is None:
        return ""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def cells(summary: Summary, row: Row) -> list[str]:
    """One row of the detailed table."""
    ratio = f"x{row.median / summary.best.median:.2f}" if summary.best else ""
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
GOAL_HEAD = ["line", "row", "ours ms", "best peer", "its ms", "ratio", "goal", "figure", "met"]


def goal_cells(summary: Summary) -> Iterable[list[str]]:
    """Our rows held against their goals."""
    by_name = {row.name: row for row in summary.rows}
    for name, text in summary.goals.items():
        ours, best, verdict = by_name.get(name), summary.best, summary.verdicts[name]
        yield [
            summary.title,
            name,
            show(ours.median) if ours else "failed",
            best.name if best else "not measured",
            show(best.median) if best else "",
            f"{ours.median / best.median:.2f}" if ours and best else "",
            text,
            verdict.figure if verdict else "",
            "unknown" if verdict is None else "yes" if verdict.met else "NO",
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
    remarks = [f"! {summary.title}: {remark}" for summary in summaries for remark in summary.remarks]
    return "\n\n".join(filter(None, [plain(DETAIL_HEAD, detail), plain(GOAL_HEAD, goals), "\n".join(remarks)]))


def document(
    summaries: Sequence[Summary], facts: Mapping[str, str], missing_peers: bool, title: str = "Performance"
) -> str:
    """The text of `docs/performance.md`."""
    detail = [cells(summary, row) for summary in summaries for row in summary.rows]
    goals = [row for summary in summaries for row in goal_cells(summary)]
    remarks = [f"- {summary.title}: {remark}" for summary in summaries for remark in summary.remarks]
    if missing_peers:
        remarks.insert(0, "- Some peers' environments were not there, so their rows are missing.")
    works = dict.fromkeys(f"- **{summary.title}**: {summary.what}." for summary in summaries)
    parts = [
        f"# {title}",
        INTRODUCTION,
        "\n".join(f"- {key}: {value}" for key, value in facts.items()),
        "## Goals",
        markdown(GOAL_HEAD, goals),
        "## What the lines are",
        "\n".join(works),
        "## All rows",
        ABOUT_ROWS,
        markdown(DETAIL_HEAD, detail),
    ]
    if remarks:
        parts += ["## Remarks", "\n".join(remarks)]
    parts += [
        "## How to run",
        "    tests/benchmarks/peers/make_env.sh      # once: the peers, some 3 GB\n"
        "    python tests/benchmarks/run.py          # all lines; or some: W2 W4; or --quick",
    ]
    return "\n\n".join(parts) + "\n"
