"""Measure steps over tasks on this machine, simulate larger clusters, and write docs/cluster.md.

    python tests/benchmarks/cluster.py                     prints
    python tests/benchmarks/cluster.py --write             writes docs/cluster.md
    python tests/benchmarks/cluster.py loops softmax       some sections; with --write the others stay as they are

What is real: processes of this machine on loopback. What is simulated: the protocol of replicas (`cluster_model`), with
computing times that are drawn and links of the given rates; loops (`cluster_loops`) with the costs that real ones have
shown; and a language model (`cluster_softmax`). It takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import cluster_loops
import cluster_softmax
import cluster_stragglers
import numpy as np
from cluster_model import Costs, Training, percentile
from shared.tasks import TOKEN, tasks

import anabranch as ab

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "cluster.md"
Figures = dict[tuple[str, int], Any]  # by what was measured, and for how many workers, backups or iterations
PAPER_CARD = 1.25e9  # bytes a second: 10 Gbit
PAPER = {"scalar": "1.8 to 8.8 ms", "100 MB": "147 to 613 ms", "1 GB": "1.01 to 7.16 s", "sparse": "5 to 20 ms"}
NULL_STEPS = """
Real workers share 2 cores with the ps tasks, and each figure is the better of two runs; 1 GB with one worker only.
Sparse is 32 rows of a table of 64 MB on each ps task, which are gathered and changed where they lie: a table of 512 MB
on each takes as long (one worker, in one run of 200 steps each in turn: 2.0 ms, of 8 MB 2.0 ms, a scalar 1.3 ms).
The paper does not say of how many tensors the model consists, nor how fast its network is. In the simulation all
workers read at once, so that the ps tasks' 10 Gbit bound a step of 100 workers. With one tensor on each ps task all
read, then all write, and one direction of the links is idle. With 16 of them the gradient of one leaves while the next
one comes, as tasks send each value when it is ready."""
SPREAD = """
The paper: the synchronous median is some 10% above, and its p90 far above. The ratio is one of constants. One share in
25 is slow here, as the next table needs it: there the paper has t(0) / t(3) = 1.16 for 50 workers, so that a step of
all is at least as much above one that nobody waits for. Without slow shares 6 to 20% are left, of which links are a
part: all read at once, then all write. From 100 workers on asynchronous updates wait for each other, as the chief has
them applied one by one (20 ms each): 200 updates take 4 s, longer than a synchronous step.
"""
SCALE = """
With 17 ps tasks the links bound large clusters: each worker's 95 MB go both ways. With more of them the slowest of all
workers is what a step waits for.
"""
AWAY = """\
A slow worker gives its share up when the step has its set, and is in time for the next one. So a step is slow where two
or more of 11 workers are, in 4.1% of the steps; without a backup, where one of ten is, in 26%. In one step of 32 late
workers are waited for, to measure how many backups are worth it: then one is away for ten steps."""
STRAGGLERS = """
A share is 20 operations; a worker gives it up between two of them."""
LOOPS = """
The task that has the condition computes it ahead of the others, and the conditions of many iterations are one message:
without a barrier a loop takes each task some 10 us of its processor. With a barrier each other message is a value of
its own and wakes who waits for it. More than 8 tasks are groups of 8: the first of each joins the values of its group
for task 0, and hands on what comes from there. So task 0 has two such messages with each of 14 others in place of 63,
and the condition for each. Ten real tasks gain nothing by groups on these 2 cores, for task 0 has 8 others in place of
9, and values take one step more (three runs of each in turn: 439 to 921 iterations a second, and 999 to 1,096 without
groups; 0.42 to 0.57 and 0.44 to 0.46 ms of task 0's processor). The costs are fitted to task 0. Of 8 real tasks each
other one takes some 0.11 ms of its processor, and 0.08 ms here: costs by which these agree give 64 tasks 4% less.

"""
LATENCY = 5e-5  # seconds
PS, WORKERS, KINDS = (1, 2, 8, 32), (4, 32), ("full", "sampled")
BACKUPS, SPREADS, SCALES = range(7), (25, 50, 100, 200), (1, 10, 100, 1000, 5000)


# --- real -----------------------------------------------------------------------------------------------------------


def median_ms(run: Callable[[], Any], rounds: int) -> float:
    run()
    found: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return 1000 * statistics.median(found)


def null_step(target: str, workers: int, size: int, rows: int | None = None) -> Callable[[], Any]:
    """A step in which each worker reads a parameter of each of two ps tasks, or some rows, and sends as much back."""
    graph = ab.Graph()
    with graph.as_default():
        done: list[Any] = []
        for ps in range(2):
            with ab.device(f"/job:ps/task:{ps}"):
                shape = (size,) if rows is None else (size, 16)
                table = ab.Variable(ab.initializers.Zeros(), shape=shape, dtype="float32", name=f"p{size}-{rows}-{ps}")
            for worker in range(workers):
                with ab.device(f"/job:worker/task:{worker}"):
                    ids = np.arange(rows or 1, dtype="int32") * (size // (rows or 1))
                    read = table.value if rows is None else ab.ops.embedding_lookup(table, ids)
                    made = read * 0.5
                    if rows is None:
                        done.append(table.assign_sub(made).operation)
                    else:
                        update = ab.IndexedSlices(made, ids, np.array(shape))
                        done.append(table.scatter_sub(update).operation)
    session = ab.Session(graph, target=target)
    return lambda: session.run(done)


def real() -> Figures:
    """Measure steps of real processes, twice; gives the better of each two figures."""
    one, other = measured(), measured()
    return {key: min(value, other[key]) for key, value in one.items()}


def measured() -> Figures:
    os.environ["ANABRANCH_TOKEN"] = TOKEN
    found: Figures = {}
    with tasks(ps=2, workers=4, all_with=("--heartbeat-timeout", "300")) as running:  # on a loaded machine
        target = running["/job:worker/task:0"].target
        for workers in (1, 2, 4):
            found["scalar", workers] = median_ms(null_step(target, workers, 1), 30)
            found["sparse", workers] = median_ms(null_step(target, workers, 1 << 20, 32), 15)
            found["100 MB", workers] = median_ms(null_step(target, workers, 100 * (1 << 18) // 2), 5)
        found["1 GB", 1] = median_ms(null_step(target, 1, (1 << 28) // 2), 3)
    return found


# --- simulated ------------------------------------------------------------------------------------------------------


def inception(rng: random.Random) -> float:
    """Seconds of one worker's share: one in 25 is somewhat slower, one in 1,000 is several times as slow."""
    seconds = 1.6 * rng.lognormvariate(0.0, 0.03)
    draw = rng.random()
    if draw < 0.001:
        return seconds * rng.uniform(2.0, 4.0)
    return seconds * rng.uniform(1.05, 1.35) if draw < 0.04 else seconds


def ten_fold(rng: random.Random) -> float:
    return 1.0 if rng.random() < 0.03 else 0.1


def without_slow_shares(rng: random.Random) -> float:
    return 1.6 * rng.lognormvariate(0.0, 0.03)


def nothing(rng: random.Random) -> float:
    return 0.0


def inception_costs() -> Costs:
    return Costs(17 * PAPER_CARD, PAPER_CARD, 2e-4, 95e6, 95e6, 0.02)


def simulated_backups(latency: float) -> Figures:
    found: Figures = {}
    for backups in BACKUPS:
        steps = Training(80, 50 + backups, backups, inception, inception_costs(), seed=backups).run()
        found["backups", backups] = percentile(steps, 0.5), percentile(steps, 0.9)
    for backups in (0, 1):
        costs = Costs(1e10, 1e10, latency, 1e6, 1e6, 0.001)
        steps = Training(300, 10 + backups, backups, ten_fold, costs, seed=2).run()
        found["ten-fold", backups] = percentile(steps, 0.5), percentile(steps, 0.9)
    return found


def simulated_spread() -> Figures:
    found: Figures = {}
    for workers in SPREADS:
        for sync in (True, False):
            count = 60 if sync else 10 * workers
            kind = "sync" if sync else "async"
            for name, compute in (("", inception), ("even ", without_slow_shares)):
                steps = Training(count, workers, 0, compute, inception_costs(), sync, seed=1).run()
                found[name + kind, workers] = percentile(steps, 0.5), percentile(steps, 0.9)
    return found


def simulated_scale() -> Figures:
    """Synchronous steps with 17 ps tasks, and with one for each six workers."""
    found: Figures = {}
    for workers in SCALES:
        for ps in (17, max(workers // 6, 1)):
            costs = inception_costs()._replace(link=ps * PAPER_CARD)
            began = time.process_time()
            steps = Training(20, workers, 0, inception, costs, seed=1).run()
            spent = (time.process_time() - began) / 25  # with the first steps, which do not count
            found["17" if ps == 17 else "more", workers] = percentile(steps, 0.5), percentile(steps, 0.9), spent
    return found


def simulated_null_steps(latency: float) -> Figures:
    """Steps of 16 ps tasks, that have a tensor each, or so many."""
    found: Figures = {}
    for name, size in (("scalar", 64.0), ("100 MB", 100e6), ("1 GB", 1e9)):
        for workers in (1, 100):
            for pieces in (1, 16) if size > 64 else (1,):
                costs = Costs(16 * PAPER_CARD, PAPER_CARD, latency, size, size, latency, pieces)
                steps = Training(15, workers, 0, nothing, costs).run()
                found[f"{name} in {pieces}", workers] = 1000 * percentile(steps, 0.5)
    return found


# --- the page -------------------------------------------------------------------------------------------------------


def null_steps() -> Iterator[str]:
    here = real()
    there = simulated_null_steps(here["scalar", 1] / 4000)  # a step has a request and an answer each way
    yield "## A step that computes nothing (OSDI'16, figure 6)\n"
    yield f"The paper has 16 ps tasks and up to 100 workers on a cluster; this is one machine{_load()}.\n"
    columns = "paper, 1 to 100 workers | here, real: 2 ps, 1 / 2 / 4 workers | simulated: 16 ps, 1 / 100 workers"
    yield f"| | {columns} | the same, 16 tensors a ps |"
    yield "|---|---|---|---|---|"
    for name, paper in PAPER.items():
        ours = [f"{here[name, workers]:.1f}" for workers in (1, 2, 4) if (name, workers) in here]
        model = " | ".join(
            f"{there[key, 1]:.1f} / {there[key, 100]:.0f} ms" if (key, 1) in there else ""
            for key in (f"{name} in 1", f"{name} in 16")
        )
        yield f"| {name} | {paper} | {' / '.join(ours)} ms | {model} |"
    yield NULL_STEPS


def loops() -> Iterator[str]:
    found = cluster_loops.real()
    yield "## Loops over tasks (EuroSys'18, figures 11, 12 and 15)\n"
    yield f"Figure 11, iterations a second of a trivial loop, 32 in flight{_load()}:\n"
    yield "| | paper, 64 machines | real: 1 / 2 / 4 / 8 tasks | simulated: 8 / 64 |"
    yield "|---|---|---|---|"
    for kind, title, paper in (("free", "no barrier", "2,014"), ("barrier", "a barrier in each", "809")):
        costs = cluster_loops.costs_of(found, kind, LATENCY)
        ours = " / ".join(f"{found[kind, count].rate:,.0f}" for count in (1, 2, 4, 8))
        model = " / ".join(f"{cluster_loops.simulated_rate(n, kind == 'barrier', costs):,.0f}" for n in (8, 64))
        yield f"| {title} | {paper} | {ours} | {model} |"
    for kind in ("free", "barrier"):
        costs = cluster_loops.costs_of(found, kind, LATENCY)
        yield f"\nCosts of the simulation ({kind}), by processor time: {1e6 * costs.turn:.0f} us for an iteration of a"
        yield f"task, {1e6 * costs.message:.1f} us for a message, {1e6 * LATENCY:.0f} us of latency."
    yield LOOPS.rstrip() + "\n"
    flat = cluster_loops.simulated_rate(64, True, cluster_loops.costs_of(found, "barrier", LATENCY), group=64)
    yield f"With all values at task 0 itself the simulation has {flat:,.0f} iterations a second of 64 tasks.\n"
    costs = cluster_loops.costs_of(found, "barrier", LATENCY)
    yield "Figure 12, a chain of 8 tasks whose kernels take 5 ms (real; a kernel is a wait, as of an accelerator):\n"
    yield "| in flight | iterations a second | of those with 1 | simulated |"
    yield "|---|---|---|---|"
    first = found["chain", cluster_loops.WINDOWS[0]]
    for window in cluster_loops.WINDOWS:
        rate = found["chain", window]
        model = 200 / cluster_loops.simulated_chain(8, cluster_loops.KERNEL, costs, window)
        yield f"| {window} | {rate:.0f} | {rate / first:.1f} x | {model:.0f} |"
    yield "\nThe paper: 5 times. 64 tasks, simulated:"
    one, many = (200 / cluster_loops.simulated_chain(64, cluster_loops.KERNEL, costs, window) for window in (1, 128))
    yield f"{one:.1f} iterations a second with 1 in flight and {many:.0f} with 128, {many / one:.0f} times.\n"
    yield "Figure 15, a step of training of 8 layers of LSTM, 200 time steps of 5.75 ms a layer (simulated):\n"
    yield "| tasks | seconds | speedup |"
    yield "|---|---|---|"
    alone = cluster_loops.simulated_lstm(1, costs)
    for count in (1, 2, 4, 8):
        seconds = cluster_loops.simulated_lstm(count, costs)
        yield f"| {count} | {seconds:.2f} | {alone / seconds:.1f} x |"
    yield "\nThe paper: 5.5 times on 8 GPUs. [machine.md](machine.md) has it on 8 simulated devices of one process,"
    yield "with the host's own time."


def _load() -> str:
    """The load of this machine, for those who read what was measured."""
    return f" ({date.today():%d %b %Y}, at a load of {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors)"


def softmax() -> Iterator[str]:
    rows = cluster_softmax.rows_moved()
    yield "## A language model with a full and a sampled softmax (OSDI'16, figure 9)\n"
    yield "LSTM-512, 40,000 words, 512 sampled. Words a second, simulated: all tasks have 1 TFLOP/s and 10 Gbit/s.\n"
    yield f"| softmax | ps tasks | {' | '.join(f'{n} workers' for n in WORKERS)} |"
    yield "|---|---|" + "---|" * len(WORKERS)
    rates = {(kind, ps, n): cluster_softmax.words_a_second(kind, n, ps) for kind in KINDS for ps in PS for n in WORKERS}
    for kind in KINDS:
        for ps in PS:
            yield f"| {kind} | {ps} | {' | '.join(f'{rates[kind, ps, n]:,.0f}' for n in WORKERS)} |"
    few, many = WORKERS
    base, labels = rates["full", 1, few], cluster_softmax.POSITIONS
    second, more = rates["full", 2, few] / base, rates["full", 1, many] / base
    yield f"\nWith the full softmax and {few} workers a second ps task gives {second:.2f} times the words, and {many}"
    yield f"workers in place of {few} give {more:.2f} times. The paper: the second ps task is more effective.\n"
    yield f"Rows of the softmax's matrix that a real ps task sends to a worker, for the loss of {labels} words:"
    yield f"{rows['full']:,.0f} in full, and {rows['sampled']:,.0f} sampled, of which {labels} are those of the labels:"
    yield f"{rows['full'] / (rows['sampled'] - labels):.1f} times fewer without these. The paper: 78 times."


def spread() -> Iterator[str]:
    there = simulated_spread()
    yield "## Synchronous and asynchronous steps (OSDI'16, figure 7), simulated\n"
    yield "| workers | synchronous, median / p90 | asynchronous, median / p90 | ratio of medians | no slow shares |"
    yield "|---|---|---|---|---|"
    for workers in SPREADS:
        one, other = there["sync", workers], there["async", workers]
        both = " | ".join(f"{median:.2f} / {late:.2f} s" for median, late in (one, other))
        even = there["even sync", workers][0] / there["even async", workers][0]
        yield f"| {workers} | {both} | {one[0] / other[0]:.2f} | {even:.2f} |"
    yield SPREAD.rstrip()


def scale() -> Iterator[str]:
    there = simulated_scale()
    yield "## Synchronous steps of up to 5,000 workers, simulated\n"
    yield "Computing times and links as above.\n"
    yield "| workers | 17 ps tasks, median / p90 | one for each 6 workers | processor time of the simulation, a step |"
    yield "|---|---|---|---|"
    for workers in SCALES:
        few, many = there["17", workers], there["more", workers]
        both = " | ".join(f"{median:.2f} / {late:.2f} s" for median, late, _ in (few, many))
        yield f"| {workers:,} | {both} | {1000 * few[2]:.1f} ms |"
    yield SCALE.rstrip()


def backups_section() -> Iterator[str]:
    there = simulated_backups(2e-4)
    yield "## Backup workers (OSDI'16, figure 8), simulated\n"
    yield "| backups | median / p90 | t(0) / t(b) * 50 / (50 + b) |"
    yield "|---|---|---|"
    first = there["backups", 0][0]
    for backups in BACKUPS:
        median, late = there["backups", backups]
        yield f"| {backups} | {median:.3f} / {late:.3f} s | {first / median * 50 / (50 + backups):.3f} |"
    times = {backups: there["backups", backups][0] for backups in BACKUPS}
    best = max(BACKUPS, key=lambda b: first / times[b] * 50 / (50 + b))
    yield f"\nShortest at {min(times, key=times.__getitem__)} backups, best normalised at {best}."
    yield "The paper: shortest at 4 (1.93 s), best normalised at 3 (9.5%), and 5 are worse than 4.\n"
    one, other = there["ten-fold", 0], there["ten-fold", 1]
    yield "Ten workers needed, each ten-fold slow in 3% of its steps (simulated):"
    yield f"p90 {1000 * one[1]:.0f} ms without a backup, {1000 * other[1]:.0f} ms with one."
    yield AWAY
    yield from stragglers()


def stragglers() -> Iterator[str]:
    """The same with real processes."""
    quick, slow = cluster_stragglers.SECONDS, cluster_stragglers.SLOW_SECONDS
    alone, helped = (cluster_stragglers.measured(backups) for backups in (0, 1))
    yield f"\nThe same with real processes{_load()}, a ps task and 10 or 11 workers, of which each waits on a timer in"
    yield f"place of computing, {quick:g} or {slow:g} s: it is the protocol's time that is compared.\n"
    yield "| backups | steps | median | p90 | mean |"
    yield "|---|---|---|---|---|"
    for backups, times in enumerate((alone, helped)):
        figures = [percentile(times, 0.5), percentile(times, 0.9), statistics.fmean(times)]
        yield f"| {backups} | {len(times)} | {' | '.join(f'{seconds:.2f} s' for seconds in figures)} |"
    yield STRAGGLERS


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "null": null_steps,
    "loops": loops,
    "softmax": softmax,
    "spread": spread,
    "backups": backups_section,
    "scale": scale,
}


def written(document: str, section: str) -> str:
    """A document with a section at its end, or in place of the one whose title is the same up to a bracket."""
    title = section.partition("\n")[0]
    subject = re.escape(title.partition("(")[0].strip())
    found = re.search(rf"^{subject}.*?(?=^## |\Z)", document, re.MULTILINE | re.DOTALL)
    if found is None:
        return f"{document.rstrip()}\n\n{section}\n"
    behind = document[found.end() :]
    return f"{document[: found.start()]}{section}\n" + (f"\n{behind}" if behind else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of {', '.join(SECTIONS)}; by default all")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}")
    options = parser.parse_args()
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}; expected some of {', '.join(SECTIONS)}")
    os.environ["ANABRANCH_TOKEN"] = TOKEN
    head = (Path(__file__).parent / "cluster_head.md").read_text().rstrip() + "\n"
    document = DOCUMENT.read_text() if options.sections and options.write else head
    for name in options.sections or SECTIONS:
        document = written(document, "\n".join(SECTIONS[name]()).rstrip())
    if options.write:
        DOCUMENT.write_text(document)
    else:
        print(document)


if __name__ == "__main__":
    main()
