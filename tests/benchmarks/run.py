"""Measure anabranch against its peers in one interleaved run.

    python tests/benchmarks/run.py                    every line; writes docs/performance.md
    python tests/benchmarks/run.py W1 W12             some; prints only
    python tests/benchmarks/run.py --quick            one short round; prints only
    python tests/benchmarks/run.py W2 --only anabranch jax_scan --rounds 1
    python tests/benchmarks/run.py --resume lines.json   a run that was cut off goes on where it was
    python tests/benchmarks/run.py machine --write    the dataflow machine (see machine.py)

Ours also reports its first step, compilation included, with an empty kernel cache and with what that run left there.
The peers live in environments that `peers/make_env.sh` builds (or PEERS_PY and PEERS_PY_TORCH name). Without them ours
and the NumPy floors run alone. Exit status: 1 if a row of ours failed or does other work than the peers, else 0; a
missed goal is reported, not an error (a shared machine would make it one at random), unless `--check` asks for it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import facts
import harness
import machine
import plan
import table

DOCUMENT = harness.HERE.parent.parent / "docs" / "performance.md"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(plan.workloads())}")
    parser.add_argument("--quick", action="store_true", help="one short round without the slowest peers")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="run only these rows")
    parser.add_argument("--rounds", type=int, help="processes a row (default 3, of slow lines fewer; quick: 1)")
    parser.add_argument("--budget", type=float, help="scales each measurement's seconds (default 1; quick: 0.2)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a process may take")
    parser.add_argument("--json", type=Path, help="also append every process's record to this file, a line each")
    parser.add_argument(
        "--resume",
        type=Path,
        help="keep each line in this file, and leave out those that an earlier run of the same code kept there",
    )
    parser.add_argument(
        "--write", type=Path, nargs="?", const=DOCUMENT, help=f"write the report (default {DOCUMENT.name})"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")
    return parser.parse_args(arguments)


def choose(names: list[str], only: list[str] | None) -> tuple[plan.Line, ...]:
    """The lines of the named workloads (all if none is named), cut down to the rows `only`."""
    unknown = [name for name in names if name not in plan.workloads()]
    if unknown:
        raise SystemExit(f"Unknown workload {', '.join(unknown)}; expected some of {', '.join(plan.workloads())}")
    lines = tuple(line for line in plan.LINES if not names or line.workload in names)
    if not only:
        return lines

    def keep(rows: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(row for row in rows if row in only)

    return tuple(
        dataclasses.replace(
            line,
            goals={row: goal for row, goal in line.goals.items() if row in only},
            peers=keep(line.peers),
            floors=keep(line.floors),
            slow=frozenset(),
        )
        for line in lines
    )


def teller(log: Path | None):
    """A function that prints each process's figure as it comes and appends its record to `log`."""

    def report(line: plan.Line, row: str, number: int, record: harness.Record | None, failure: str) -> None:
        figure = f"{table.show(record['median_ms'])} ms" if record else f"failed: {failure}"
        print(f"{line.title:20} round {number + 1}  {row:22} {figure}", file=sys.stderr, flush=True)
        if log is None:
            return
        head = {"workload": line.workload, "peer": row, "params": dict(line.params), "round": number}
        entry = head | (record or {"error": failure})
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    return report


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] == "machine":
        return machine.main(arguments[1:])
    options = parse(arguments)
    lines = choose(options.workloads, options.only)
    settings = harness.Settings(
        rounds=options.rounds or (1 if options.quick else 3),
        budget=options.budget or (0.2 if options.quick else 1.0),
        threads=options.threads,
        timeout=options.timeout,
        realtime=harness.can_run_realtime(),
        quick=options.quick,
    )
    interpreters = harness.Interpreters.find()
    missing = interpreters.peers is None or interpreters.torch is None
    if missing:
        print("Some peers are not there: build them with tests/benchmarks/peers/make_env.sh", file=sys.stderr)
    if not settings.realtime:
        print("No right to real-time priority: expect noise on a busy machine", file=sys.stderr)
    harness.pin_to_processors(settings.threads)
    results = harness.measure(lines, interpreters, settings, teller(options.json), options.resume)
    summaries = [table.summarise(result) for result in results]
    print(table.terminal_text(summaries))
    complete = not (options.workloads or options.only or options.quick or missing)
    target = options.write or (DOCUMENT if complete else None)
    if target:
        title = target.stem.replace("_", " ").capitalize()
        text = table.document(summaries, facts.gather(interpreters, settings), missing, title)
        target.write_text(text, encoding="utf-8")
        print(f"\nWrote {target}", file=sys.stderr)
    return status(results, summaries, check=options.check)


def status(results: list[harness.Measured], summaries: list[table.Summary], *, check: bool) -> int:
    """0, or 1 if ours failed or did other work, or, with `check`, missed a goal."""
    failed = any(row in result.line.goals for result in results for row in result.failures)
    differs = any("same work" in remark for summary in summaries for remark in summary.remarks)
    missed = any(verdict and not verdict.met for summary in summaries for verdict in summary.verdicts.values())
    missed = missed or any(not start.met for summary in summaries for start in summary.starts)
    return int(failed or differs or (check and missed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
