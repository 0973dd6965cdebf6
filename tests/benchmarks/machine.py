"""Measure the dataflow machine: the experiments of EuroSys 2018, section 6, and dispatch.

    python tests/benchmarks/machine.py                       all of them; prints tables
    python tests/benchmarks/machine.py --write               also writes docs/machine.md and its figures
    python tests/benchmarks/machine.py --draw                draws the figures again from its tables; rate --draw one
    python tests/benchmarks/machine.py rate chain            some
    python tests/benchmarks/machine.py --quick               short runs; prints only

Every figure comes from a fresh process, with threads pinned to two processors. Nothing else should run meanwhile: the
executor's own time is part of what is measured. Exit status: 1 if a run failed, or, with `--check`, a goal is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import harness
from machine_figures import FIGURES, draw
from table import markdown, plain

DOCS = harness.HERE.parent.parent / "docs"
Record = dict[str, Any]
Run = Callable[..., Record]  # of (module, function, parameters): one process


@dataclass
class Section:
    """The result of an experiment: a table, whether its goals are reached, and its figure."""

    title: str
    about: str
    head: list[str]
    rows: list[list[str]] = field(default_factory=list[list[str]])
    goals: list[tuple[str, str, bool]] = field(default_factory=list[tuple[str, str, bool]])
    figure: str = ""

    def expect(self, goal: str, figure: str, met: bool) -> None:
        self.goals.append((goal, figure, met))


# --- the experiments ------------------------------------------------------------------------------------------------


def rate(run: Run, quick: bool) -> Section:
    section = Section(
        "Iterations a second of a trivial loop",
        "A loop whose body adds to a 2 x 2 matrix on each device (figure 11). With a barrier, what is added comes from "
        "one device, which has had all the matrices for it: from all to one to all, in each iteration. Kernels take "
        "5 us, copies 1 us. The ideal is that of a host that takes no time. Low and high are the 5th and 95th "
        "percentile over calls.",
        ["devices", "barrier", "iterations/s", "low", "high", "ideal"],
    )
    series: dict[str, list[tuple[float, float]]] = {"free": [], "barrier": [], "ideal, barrier": []}
    for devices in (1, 8, 64) if quick else (1, 2, 4, 8, 16, 32, 64):
        for barrier in (False, True):
            found = run("machine_loops", "trivial", devices=devices, barrier=barrier)
            shown = [f"{found[key]:,.0f}" for key in ("rate", "low", "high", "ideal")]
            section.rows.append([str(devices), "yes" if barrier else "no", *shown])
            series["barrier" if barrier else "free"].append((devices, found["rate"]))
            if barrier:
                series["ideal, barrier"].append((devices, found["ideal"]))
    first, last = series["free"][0][1], series["free"][-1][1]
    section.expect("1 device: at least 20,000/s", f"{first:,.0f}/s", first >= 20_000)
    section.expect("64 devices: at least 2,014/s", f"{last:,.0f}/s", last >= 2_014)
    last = series["barrier"][-1][1]
    section.expect("64 devices with a barrier: at least 809/s", f"{last:,.0f}/s", last >= 809)
    section.figure = FIGURES["rate"](section.rows)
    return section


def chain(run: Run, quick: bool) -> Section:
    section = Section(
        "Iterations in parallel",
        "8 devices in a chain: each multiplies its state by what the one before it made, in kernels of 1 ms (figure "
        "12); copies take 10 us each way. The host adds up what the last one makes, so that an iteration is alive on "
        "the host until it has passed through all devices: windows are kept by each partition for itself.",
        ["parallel_iterations", "iterations/s", "ideal", "of the sequential rate"],
    )
    windows = (1, 8, 32) if quick else (1, 2, 4, 8, 16, 32)
    found = {window: run("machine_loops", "chain", parallel=window) for window in windows}
    sequential = found[1]["rate"]
    for window, record in found.items():
        figures = [f"{record['rate']:,.0f}", f"{record['ideal']:,.0f}", f"{record['rate'] / sequential:.2f} x"]
        section.rows.append([str(window), *figures])
    gain = found[32]["rate"] / sequential
    section.expect("32: at least 6 times the sequential rate", f"{gain:.2f} x", gain >= 6)
    section.figure = FIGURES["chain"](section.rows)
    return section


def swapping(run: Run, quick: bool) -> Section:
    section = Section(
        "Memory that swaps",
        "Training an LSTM (table 1). A time step has 5.75 ms of kernels, forward and backward together. The device's "
        "memory holds what a little over 500 time steps save. Batch and units are 32 (there: 512 each), and the 6 GB/s "
        "of transfers are scaled by the same factor of 256, so that a copy takes as long as there. Milliseconds a time "
        "step; OOM stands for `DeviceMemoryError`.",
        ["length", "without swapping", "with swapping", "kernels alone"],
    )
    series: dict[str, list[tuple[float, float]]] = {"without swapping": [], "with swapping": []}
    failed: list[int] = []
    for length in (100, 600, 1000) if quick else (100, 200, 500, 600, 700, 900, 1000):
        found = {swap: run("machine_lstm", "swapping", length=length, swap=swap) for swap in (False, True)}
        times = [found[False]["milliseconds"], found[True]["milliseconds"]]
        section.rows.append([str(length), *[f"{t:.3f}" if t else "OOM" for t in times], f"{found[True]['ideal']:.3f}"])
        failed += [length] if times[0] is None else []
        for name, milliseconds in zip(("without swapping", "with swapping"), times, strict=True):
            series[name] += [(length, milliseconds)] if milliseconds else []
    slowdown = series["with swapping"][-1][1] / series["without swapping"][0][1] - 1
    section.expect(
        "1000 with swapping: at most 3% slower than 100 without", f"{100 * slowdown:+.1f}%", slowdown <= 0.03
    )
    right = bool(failed) and min(failed) == 600 and 1000 in failed
    section.expect("without swapping, more than 500 do not fit", f"fails from {min(failed, default=0)}", right)
    section.figure = FIGURES["swapping"](section.rows)
    return section


def unrolling(run: Run, quick: bool) -> Section:
    section = Section(
        "A loop in the graph against unrolling",
        "A training step of an LSTM of 128 units over 200 time steps (figure 14), by the compiled program of the CPU, "
        "on 2 threads; both in turn in one process, and the median of the ratios. Memory is the growth of a fresh "
        "process's peak over building and two steps.",
        ["batch", "loop ms", "unrolled ms", "ratio", "loop MB", "unrolled MB", "first step s", "unrolled s"],
    )
    ratios: list[tuple[float, float]] = []
    for batch in (64, 256) if quick else (64, 128, 256, 512):
        times = run("machine_unrolling", "times", batch=batch)
        space = {kind: run("machine_unrolling", "memory", batch=batch, kind=kind) for kind in ("dynamic", "static")}
        ratios.append((batch, times["ratio"]))
        peaks = [each["peak_mb"] for each in space.values()]
        section.rows.append(
            [
                str(batch),
                *[f"{times[kind]:.1f}" for kind in ("dynamic", "static")],
                f"{times['ratio']:.3f}",
                *[f"{peak:,.0f}" for peak in peaks],
                *[f"{each['first_step']:.2f}" for each in space.values()],
            ]
        )
        section.expect(f"batch {batch}: at most 3% slower", f"{times['ratio']:.3f} x", times["ratio"] <= 1.03)
        section.expect(f"batch {batch}: less memory", f"{peaks[0]:,.0f} of {peaks[1]:,.0f} MB", peaks[0] < peaks[1])
    section.figure = FIGURES["unrolling"](section.rows)
    return section


def lengths(run: Run, quick: bool) -> Section:
    section = Section(
        "Memory of a loop and of unrolling",
        "The same training step over sequences of several lengths (section 6.3): how much a fresh process's peak grows "
        "over building and two steps, by the compiled program of the CPU. Data count (batch x length x 128 numbers), "
        "and the compiler, which has more to do for a longer unrolled graph and not for a longer loop. With a memory "
        "budget of 16 MB (see memory.md) a loop computes again what it does not save; unrolled graphs have no such "
        "choice. Losses agree.",
        ["batch", "length", "data MB", "loop MB", "loop, budget MB", "unrolled MB", "ratio"],
    )
    series: dict[str, list[tuple[float, float]]] = {"loop": [], "loop, budget": [], "unrolled": []}
    kinds = {
        "loop": {"kind": "dynamic"},
        "loop, budget": {"kind": "dynamic", "budget": 16},
        "unrolled": {"kind": "static"},
    }
    for batch in (64, 256):
        for length in (50, 100) if quick else (50, 100, 200, 400):
            found = {
                name: run("machine_unrolling", "memory", batch=batch, length=length, **params)
                for name, params in kinds.items()
            }
            _same_losses([record["losses"] for record in found.values()])
            peaks = {name: record["peak_mb"] for name, record in found.items()}
            for name, peak in peaks.items():
                series[name] += [(length, peak)] if batch == 64 else []
            ratio = peaks["loop"] / peaks["unrolled"]
            shown = [f"{peak:,.0f}" for peak in peaks.values()]
            data = f"{batch * length * 128 * 4 / 1e6:.1f}"
            section.rows.append([str(batch), str(length), data, *shown, f"{ratio:.2f}"])
            text = f"{peaks['loop']:,.0f} of {peaks['unrolled']:,.0f} MB"
            section.expect(f"batch {batch}, length {length}: less memory", text, ratio < 1)
    section.figure = FIGURES["lengths"](section.rows)
    return section


def _same_losses(losses: Sequence[Sequence[float]]) -> None:
    """Ends the run if two ways to do the same work have different losses."""
    for other in losses[1:]:
        if any(abs(a - b) > 1e-3 * abs(a) for a, b in zip(losses[0], other, strict=True)):
            raise SystemExit(f"Other work was done: losses {losses}")


def layers(run: Run, quick: bool) -> Section:
    section = Section(
        "Layers on several devices",
        "A training step, gradient included, of 8 layers of LSTM over 200 time steps (figure 15), 5.75 ms of kernels a "
        "layer and time step. The ideal adds to the kernels of a device the time until the last device has something "
        "to do. Matrices are 4 x 16; transfers of 6 GB/s are scaled with them. Rewrites that change the order of sums "
        "are off (`exact=True`), so that the work is the same on any number of devices.",
        ["devices", "seconds", "ideal", "speedup", "ideal speedup"],
    )
    length = 60 if quick else 200
    found = {n: run("machine_lstm", "layers", devices=n, length=length) for n in ((1, 8) if quick else (1, 2, 4, 8))}
    gains: list[tuple[float, float]] = []
    ideals: list[tuple[float, float]] = []
    for devices, record in found.items():
        gains.append((devices, found[1]["seconds"] / record["seconds"]))
        ideals.append((devices, found[1]["ideal"] / record["ideal"]))
        times = [f"{record[key]:.3f}" for key in ("seconds", "ideal")]
        section.rows.append([str(devices), *times, f"{gains[-1][1]:.2f} x", f"{ideals[-1][1]:.2f} x"])
    section.expect("8 devices: at least 6.5 times", f"{gains[-1][1]:.2f} x", gains[-1][1] >= 6.5)
    section.figure = FIGURES["layers"](section.rows)
    return section


def dispatch(run: Run, quick: bool) -> Section:
    section = Section(
        "Dispatch",
        "What the executor itself needs, on CPU devices. Token visits: a loop over two devices with clusters and "
        "fusion switched off (`clusters=False, exact=True`), a node for each addition of numbers; a visit is a token "
        "that arrives at a node. Crossing: a loop in which a number goes to the other device, and one comes back, in "
        "each iteration; two such loops in one step, and two steps in two threads. There is no ideal but infinity.",
        ["what", "a second", "low", "high"],
    )

    def add(name: str, found: Record) -> float:
        section.rows.append([name, *[f"{found[key]:,.0f}" for key in ("rate", "low", "high")]])
        return found["rate"]

    tokens = add("token visits", run("machine_dispatch", "tokens"))
    section.expect("at least 1 million token visits a second", f"{tokens / 1e6:.2f} M/s", tokens >= 1e6)
    one = add("iterations, one loop", run("machine_dispatch", "crossing", kind="one loop"))
    section.expect("at least 30,000 iterations a second", f"{one:,.0f}/s", one >= 30_000)
    for kind in ("one step", "two threads"):
        both = add(f"iterations, two loops in {kind}", run("machine_dispatch", "crossing", kind=kind))
        section.expect(f"two loops in {kind}: at least 70%", f"{both / one:.0%}", both >= 0.7 * one)
    return section


EXPERIMENTS: dict[str, Callable[[Run, bool], Section]] = {
    "rate": rate,
    "chain": chain,
    "swapping": swapping,
    "unrolling": unrolling,
    "lengths": lengths,
    "layers": layers,
    "dispatch": dispatch,
}

# --- running and writing --------------------------------------------------------------------------------------------


def runner(settings: harness.Settings, cache: str) -> Run:
    """Return what runs one measurement in a process of its own."""

    def run(module: str, function: str, **params: Any) -> Record:
        threads = settings.threads if module == "machine_unrolling" else 1
        environment = harness.environment_of(function, dataclasses.replace(settings, threads=threads), cache)
        worker = [sys.executable, str(harness.HERE / "worker.py"), "ours", module, function, json.dumps(params)]
        done = subprocess.run(
            ["chrt", "-r", "1", *worker] if settings.realtime else worker,
            env=environment,
            capture_output=True,
            text=True,
            timeout=settings.timeout,
            check=False,
        )
        records = [text for text in done.stdout.splitlines() if text.startswith("@@")]
        if not records:
            raise SystemExit(f"{function} {params} failed:\n{done.stderr[-3000:]}")
        print(f"{function:10} {params} {records[-1][2:]}", file=sys.stderr, flush=True)
        return json.loads(records[-1][2:])

    return run


def document(sections: Mapping[str, Section], settings: harness.Settings) -> str:
    """The text of `docs/machine.md`."""
    priority = "real-time priority (`chrt -r 1`)" if settings.realtime else "no real-time priority"
    goals = [
        [section.title, goal, figure, "yes" if met else "NO"]
        for section in sections.values()
        for goal, figure, met in section.goals
    ]
    parts = [
        "# The dataflow machine, measured",
        "Written by `tests/benchmarks/machine.py --write`; do not edit by hand. The experiments are those of Yu et "
        'al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 6.',
        f"- Date: {date.today().isoformat()}\n"
        f"- Machine: {platform.machine()}, {settings.threads} processors; {priority}"
        f"\n- Python {platform.python_version()}",
        "## Goals",
        markdown(["experiment", "goal", "figure", "met"], goals),
        "## What is simulated, and what is not",
        "Tokens, frames, sends and receives are those of any step: the executor runs them in one thread of Python, and "
        "what that takes is in every figure. Devices are simulated in real time: a kernel is computed with NumPy when "
        "it is launched, and its result counts as there once the device's clock says so. Its time follows from its "
        "floating-point operations and the figures with which the device is declared, which are chosen so that kernels "
        "take what is said below. A transfer is a copy to the host and one from the host, each in turn on its stream, "
        "with the declared latency and bandwidth. A value that goes from one device to several is copied to the host "
        "once. Results are compared with NumPy, or with the compiled program of one CPU, in every run.",
    ]
    for name, section in sections.items():
        parts += [f"## {section.title}", section.about, markdown(section.head, section.rows)]
        command = f"    python tests/benchmarks/machine.py {name}"
        if section.figure:
            parts.append(f"![{section.title}](figures/machine_{name}.svg)")
            command += f"\n{command} --draw  # the figure, from the table"
        parts.append(command)
    return "\n\n".join(parts) + "\n"


def write(sections: Mapping[str, Section], settings: harness.Settings) -> None:
    folder = DOCS / "figures"
    folder.mkdir(exist_ok=True)
    for name, section in sections.items():
        if section.figure:
            (folder / f"machine_{name}.svg").write_text(section.figure, encoding="utf-8")
    (DOCS / "machine.md").write_text(document(sections, settings), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT", help=f"of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--write", action="store_true", help="write docs/machine.md and its figures")
    parser.add_argument("--draw", action="store_true", help="draw the figures anew from the tables of docs/machine.md")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")
    options = parser.parse_args(arguments)
    if options.draw:
        draw(options.names, DOCS)
        return 0
    unknown = [name for name in options.names if name not in EXPERIMENTS]
    if unknown:
        raise SystemExit(f"Unknown experiment {unknown[0]}; expected some of {', '.join(EXPERIMENTS)}")
    if options.write and (options.names or options.quick):
        raise SystemExit("--write takes all experiments at full length: leave out names and --quick.")
    settings = harness.Settings(
        budget=0.2 if options.quick else 1.0, realtime=harness.can_run_realtime(), quick=options.quick
    )
    harness.pin_to_processors(settings.threads)
    sections: dict[str, Section] = {}
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as cache:
        run = runner(settings, cache)
        for name in options.names or EXPERIMENTS:
            section = sections[name] = EXPERIMENTS[name](run, options.quick)
            goals = [[goal, figure, "yes" if met else "NO"] for goal, figure, met in section.goals]
            print(f"\n{section.title}\n\n{plain(section.head, section.rows)}\n")
            print(plain(["goal", "figure", "met"], goals), flush=True)
    if options.write:
        write(sections, settings)
    missed = [goal for section in sections.values() for goal, _, met in section.goals if not met]
    return int(options.check and bool(missed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
