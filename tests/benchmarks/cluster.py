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
import textwrap
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import cluster_costs
import cluster_loops
import cluster_null
import cluster_softmax
import cluster_stragglers
from cluster_model import Costs, Training, percentile
from shared.tasks import TOKEN

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "cluster.md"
Figures = dict[tuple[str, int], Any]  # by what was measured, and for how many workers, backups or iterations
PAPER_CARD = 1.25e9  # bytes a second: 10 Gbit
PAPER = {"scalar": "1.8 to 8.8 ms", "100 MB": "147 to 613 ms", "1 GB": "1.01 to 7.16 s", "sparse": "5 to 20 ms"}
NULL_STEPS = """
The real steps are one graph for all workers, run by the first one's session. All processes have one thread and share 2
cores, and each figure is the better of two runs; 1 GB with one worker only. A worker sends what the ps task is to
subtract. In the paper each worker makes steps of its own; here each reads what a parameter is before the step, and a ps
task subtracts what they send one after the other. Values go by shared memory. Each is read where it was computed: the
new parameter by the workers, and what they send by the ps task. Sparse is 32 rows of a table of 64 MB on each ps task,
which are gathered and changed in place: a table of 512 MB takes as long (2.0 ms, of 8 MB 2.0 ms).

The simulated steps have these processors and links of 10 Gbit/s; a ps task serves its workers one after the other.

- **100 MB and 1 GB** of 16 tensors on each ps task take less than the paper's. The gradient of a tensor leaves while
  the next one comes, as tasks send each value when it is made, and whole: a tensor is not passed on in parts.
- **One tensor on each ps task** is the worst case: all is read before anything is written, and one direction of each
  link is idle. At 10 Gbit/s nothing that waits for a whole tensor reaches the paper's figures: 1 GB there and back are
  1.6 s by one worker's link, and the paper has 1.01 s; 100 workers' 100 MB are 1.0 s by those of 16 ps tasks, and it
  has 0.61 s. So its network was faster (16 Gbit/s at least), or its model had several tensors on each task. It says
  neither. With 20 Gbit/s we are below all four (last column). A model of one large table is cut by
  `ParameterServer(variable_partitioner=ab.distribute.MaxSizePartitioner(4 << 20))`: each part is a tensor then."""
SMALL_STEPS = (
    "- **Scalar and sparse** steps of 100 workers take {scalar} and {sparse}. They are bound by the ps tasks' "
    "processors: Python handles each value, by one core, in the time above, and the links add next to nothing. The "
    "paper's ps tasks are C++ on several cores."
)
FEWER = " Fewer messages would help: a ps task that holds several small variables sends each by itself."
PARAMETERS = """\
Inception-v3 on 17 ps tasks, with links of 10 Gbit/s. Parameters, and where they come from:

- 23.8 million parameters, 95 MB. A worker reads, computes and sends them in 6 parts: a layer is computed when its part
  is there, and its gradient is sent while those of the layers before are computed, as the runtime does.
- 10 Gbit/s is the slowest Ethernet by which figure 6 is possible: its 613 ms are 8.2 Gbit/s in each direction.
- A share takes {share} s, with a deviation of 1%. {slow} of the shares take longer, by {late} s on average
  (exponentially). These are fitted to figure 8: t(4) = 1.93 s, t(0) / t(3) = 1.16, and no gain by a fifth backup. One
  share of 1,000 takes 2 to 4 times as long: assumed, for figure 7's tail."""
SPREAD = """
The paper: the synchronous median is some 10% above, and its p90 far above. Its figure 8 has t(0) / t(3) = 1.16 for 50
workers, and 1.93 s for t(4), the shortest. So t(0) is at least 1.16 * 1.93 = 2.24 s, and with a ratio of 1.10 an
asynchronous step takes at least 2.24 / 1.10 = 2.04 s. That is more than a step with 4 backups takes, and an
asynchronous step waits for no worker: in the paper it waits for the ps tasks, where each of 50 gradients is an update
of its own. Here an update takes a ps task 1 to 2 ms (RMSProp for its part of the parameters, one update after the
other), and the chief a message to each ps task, so that 50 asynchronous workers hardly wait. No cost of the ps tasks
gives 1.10 for 50 workers: with three times those of bytes, or five times those of updates, it is 1.24 to 1.31. For 200
workers the ratio depends on them: with twice the costs of bytes it is 1.20, and an asynchronous step takes 2.8 s, as in
the paper (2,300 images/s, if a batch has 32). The last column has the ratio without slow shares: it is what reading and
sending at once costs, by all workers, and the reduction of their gradients.
"""
RISE = """
- **In order** is what the runtime does: parameters come in the order of their use, and a gradient is sent when it is
  made. So only the first parameters and the last gradients cost time, and the curve is flat from the third backup on.
- **In any order** is TensorFlow of that time: parameters that are asked for together come in a random order (Hashemi et
  al., "TicTac", MLSys 2019). The last one can be what the first layer needs: it waits for all. Gradients are sent when
  they are made. Each backup has all workers read more slowly. This has the form of the paper's curve.
- **Whole**: gradients are sent when the backward pass has ended, and come by the links all at once.

The computing times are fitted to what is read in order; 1.61 s a share gives t(4) = 1.93 s in any order, and the same
form. In the paper the gradients of late workers come, too, and are discarded. Here they give their shares up, but that
is not why: if none does, the fifth changes the median of parameters in order by -10 ms, and of whole gradients by +5.
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
A share is 20 operations; a worker gives it up between two of them. Slow steps take more than 2.5 s. By what the workers
draw, six steps have two slow ones of 11; further ones are slow while a worker is away. With ten of them p90 is slow,
too: it was 2.7 s in a run with ten."""
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
SHARE, SLOW, LATE = 1.75, 0.06, 0.25  # seconds of a share, the part of shares that are late, and by how much on average
RUN = 1e-4  # seconds of a master's processor to run a part of a step on another task, as null steps have shown
PS, WORKERS, KINDS = (1, 2, 8, 32), (4, 32), ("full", "sampled")
ARRANGEMENTS = {"in order": (6, True), "in any order": (6, False), "whole": (1, True)}  # pieces, whether in order
SEEDS = (7, 8, 9)  # of figure 8, whose differences are a few milliseconds
BACKUPS, SPREADS, SCALES = range(7), (25, 50, 100, 200), (1, 10, 100, 1000, 5000)


# --- simulated ------------------------------------------------------------------------------------------------------


def inception(rng: random.Random) -> float:
    """Draw the seconds of one worker's share: some are slower, and one in 1,000 is several times as slow."""
    seconds = without_slow_shares(rng)
    draw = rng.random()
    if draw < 0.001:
        return seconds * rng.uniform(2.0, 4.0)
    return seconds + rng.expovariate(1 / LATE) if draw < SLOW else seconds


def ten_fold(rng: random.Random) -> float:
    return 1.0 if rng.random() < 0.03 else 0.1


def without_slow_shares(rng: random.Random) -> float:
    return SHARE * rng.lognormvariate(0.0, 0.01)


def inception_costs(ps: int = 17, pieces: int = 6, in_order: bool = True) -> Costs:
    """The costs of Inception-v3's 95 MB on so many ps tasks."""
    of, size = cluster_costs.of_bytes(), 95e6
    part = size / ps
    put = part * (of.ps / 2 + of.put)
    costs = Costs(ps * PAPER_CARD, PAPER_CARD, 2e-4, size, size, pieces, part * of.ps / 2, put, in_order=in_order)
    return costs._replace(reduce=part * of.reduce, update=part * of.update, apply=ps * RUN)


def simulated_backups() -> Figures:
    found: Figures = {}
    for name, (pieces, in_order) in ARRANGEMENTS.items():
        costs = inception_costs(pieces=pieces, in_order=in_order)
        for backups in BACKUPS:
            runs = [Training(200, 50 + backups, backups, inception, costs, seed=seed).run() for seed in SEEDS]
            medians, late = ([percentile(steps, share) for steps in runs] for share in (0.5, 0.9))
            found[name, backups] = statistics.fmean(medians), statistics.fmean(late)
    return found


def simulated_ten_fold(latency: float) -> Figures:
    found: Figures = {}
    for backups in (0, 1):
        costs = Costs(1e10, 1e10, latency, 1e6, 1e6, apply=0.001)
        steps = Training(300, 10 + backups, backups, ten_fold, costs, seed=2).run()
        found["ten-fold", backups] = percentile(steps, 0.5), percentile(steps, 0.9)
    return found


def simulated_spread() -> Figures:
    found: Figures = {}
    for workers in SPREADS:
        for sync in (True, False):
            count = 40 if sync else 5 * workers
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
            costs = inception_costs(ps, 6 if workers < 5000 else 2)
            began = time.process_time()
            count = 20 if workers < 1000 else 10
            steps = Training(count, workers, 0, inception, costs, seed=1).run()
            spent = (time.process_time() - began) / (count + 5)  # with the first steps, which do not count
            found["17" if ps == 17 else "more", workers] = percentile(steps, 0.5), percentile(steps, 0.9), spent
    return found


# --- the page -------------------------------------------------------------------------------------------------------


def null_steps() -> Iterator[str]:
    here, costs = cluster_null.real()
    of = cluster_costs.of_bytes()
    kinds = [(PAPER_CARD, 16), (PAPER_CARD, 1), (2 * PAPER_CARD, 1)]
    there = [cluster_null.simulated(costs, of, card, LATENCY, pieces) for card, pieces in kinds]
    yield "## A step that computes nothing (OSDI'16, figure 6)\n"
    yield f"The paper has 16 ps tasks and up to 100 workers on a cluster; this is one machine{_load()}.\n"
    columns = "paper, 1 to 100 workers | here, real: 2 ps, 1 / 2 / 4 / 8 workers | simulated: 16 ps, 1 / 100 workers"
    yield f"| | {columns} | one tensor a ps | the same, 20 Gbit/s |"
    yield "|---|---|---|---|---|---|"
    for name, paper in PAPER.items():
        ours = [f"{here[name, workers]:.1f}" for workers in cluster_null.WORKERS if (name, workers) in here]
        model = " | ".join(f"{found[name, 1]:.1f} / {found[name, 100]:.0f} ms" for found in there)
        yield f"| {name} | {paper} | {' / '.join(ours)} ms | {model} |"
    yield "\nMeasured, of processors:\n"
    for kind, each in costs.items():
        value, own, begin, run = (f"{1e6 * cost:.0f} us" for cost in (each.value, each.own, each.begin, each.run))
        yield f"- {kind}: {value} of a ps task for a value that a worker reads and changes, and {own} of the worker;"
        yield f"  {begin} of a task for a step without values, and {run} of the first worker to run it on another task."
    ps, worker = (f"{1e12 * cost:.0f} us" for cost in (of.ps, of.worker))
    yield f"- a megabyte over TCP in both directions: {ps} of a ps task, {worker} of a worker."
    yield NULL_STEPS.rstrip() + "\n" + small_steps({name: there[0][name, 100] for name in ("scalar", "sparse")})


def small_steps(found: dict[str, float]) -> str:
    """Compare milliseconds of simulated steps of 100 workers with the paper's."""
    most = {name: float(PAPER[name].split()[2]) for name in found}
    words = {
        name: f"{took:.0f} ms ({'above' if took > most[name] else 'below'} the paper's {most[name]:g})"
        for name, took in found.items()
    }
    text = SMALL_STEPS.format(**words) + (FEWER if any(took > most[name] for name, took in found.items()) else "")
    return textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False)


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


def parameters() -> Iterator[str]:
    """Say what the simulation of training takes for granted, and where that comes from."""
    of = cluster_costs.of_bytes()
    send, put, reduce, update = (f"{1e12 * cost:.0f} us" for cost in (of.ps / 2, of.put, of.reduce, of.update))
    yield from PARAMETERS.format(share=SHARE, slow=f"{SLOW:.0%}", late=LATE).splitlines()
    yield f"- A ps task's processor, measured here, one core, for a megabyte: {send} to send it, as much to receive it,"
    yield f"  {put} to keep it, {reduce} to add it to those of other workers, {update} for RMSProp with momentum."
    yield f"- The chief has a set applied by a message to each ps task, {1e6 * RUN:.0f} us each.\n"


def spread() -> Iterator[str]:
    there = simulated_spread()
    yield "## Synchronous and asynchronous steps (OSDI'16, figure 7), simulated\n"
    yield from parameters()
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
    there = simulated_backups()
    yield "## Backup workers (OSDI'16, figure 8), simulated\n"
    score = "t(0) / t(b) * 50 / (50 + b)"
    yield f"50 workers are needed. Median / p90, means of {len(SEEDS)} seeds, and {score}:\n"
    yield "| backups | " + " | ".join(f"{kind} | normalised" for kind in ARRANGEMENTS) + " |"
    yield "|---" * (1 + 2 * len(ARRANGEMENTS)) + "|"
    times = {key: median for key, (median, _) in there.items()}
    scores = {(kind, b): times[kind, 0] / times[kind, b] * 50 / (50 + b) for kind, b in times}
    for b in BACKUPS:
        cells = [
            f"{there[kind, b][0]:.3f} / {there[kind, b][1]:.3f} s | {scores[kind, b]:.3f}" for kind in ARRANGEMENTS
        ]
        yield f"| {b} | {' | '.join(cells)} |"
    yield ""
    for kind in ARRANGEMENTS:
        shortest, best = min(BACKUPS, key=lambda b: times[kind, b]), max(BACKUPS, key=lambda b: scores[kind, b])
        change = 1000 * (times[kind, 5] - times[kind, 4])
        yield f"- {kind.capitalize()}: shortest at {shortest} backups, best normalised at {best}."
        yield f"  The fifth changes the median by {change:+.1f} ms."
    yield "\nThe paper: shortest at 4 (1.93 s), best normalised at 3 (9.5%), and 5 are worse than 4."
    yield RISE.rstrip()


def stragglers() -> Iterator[str]:
    """Ten workers and a backup, simulated and as real processes."""
    there = simulated_ten_fold(2e-4)
    yield "## A backup worker, and workers that are slow now and then\n"
    one, other = there["ten-fold", 0], there["ten-fold", 1]
    yield "Ten workers needed, each ten-fold slow in 3% of its steps (simulated):"
    yield f"p90 {1000 * one[1]:.0f} ms without a backup, {1000 * other[1]:.0f} ms with one."
    yield AWAY
    quick, slow = cluster_stragglers.SECONDS, cluster_stragglers.SLOW_SECONDS
    alone, helped = (cluster_stragglers.measured(backups) for backups in (0, 1))
    text = (
        f"The same with real processes{_load()}, a ps task and 10 or 11 workers, of which each waits on a timer in "
        f"place of computing, {quick:g} or {slow:g} s: it is the protocol's time that is compared."
    )
    yield f"\n{textwrap.fill(text, 120, break_on_hyphens=False)}\n"
    yield "| backups | steps | slow ones | median | p90 | mean |"
    yield "|---|---|---|---|---|---|"
    for backups, times in enumerate((alone, helped)):
        figures = [percentile(times, 0.5), percentile(times, 0.9), statistics.fmean(times)]
        late = sum(seconds > slow / 2 for seconds in times)
        yield f"| {backups} | {len(times)} | {late} | {' | '.join(f'{seconds:.2f} s' for seconds in figures)} |"
    yield STRAGGLERS


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "null": null_steps,
    "loops": loops,
    "softmax": softmax,
    "spread": spread,
    "backups": backups_section,
    "stragglers": stragglers,
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
