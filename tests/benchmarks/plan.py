"""What is measured: which rows make a line of the table, and what the line's goal is.

A *line* is one workload with one set of parameters. Its rows are ours, the peers (other frameworks: the fastest one is
the measure) and floors (hand-written NumPy or numba, shown for orientation, not counted as peers). Only the peers that
were fastest, or close to it, in a run of all of them are listed; `peers/run.py` runs the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """A goal held against the figures: the figure in words, and whether the goal is met."""

    figure: str
    met: bool


@dataclass(frozen=True)
class Figures:
    """Medians of one line in milliseconds: ours, the best peer's, and every row's by name."""

    ours: float
    best: float | None
    rows: Mapping[str, float]


@dataclass(frozen=True)
class Goal:
    """What a line must reach. `judge` returns None where the row that it compares with was not measured."""

    text: str
    judge: Callable[[Figures], Verdict | None]


def at_most(limit: float, against: str | None = None) -> Goal:
    """Ours takes at most `limit` times the best peer's time, or row `against`'s."""

    def judge(figures: Figures) -> Verdict | None:
        base = figures.rows.get(against) if against else figures.best
        if base is None:
            return None
        return Verdict(f"{figures.ours / base:.2f} x", figures.ours <= limit * base)

    return Goal(f"at most {limit:g} x {against or 'the best peer'}", judge)


def at_least_rate(per_second: float, iterations: int) -> Goal:
    """Ours does at least `per_second` iterations a second, `iterations` of them being one measured call."""

    def judge(figures: Figures) -> Verdict:
        rate = 1e3 * iterations / figures.ours
        return Verdict(f"{rate / 1e6:.2f} M/s", rate >= per_second)

    return Goal(f"at least {per_second / 1e6:g} M iterations/s", judge)


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


def at_most_plus(factor: float, extra_ms: float, against: str) -> Goal:
    """Ours takes at most `factor` times row `against`'s time plus `extra_ms`."""

    def judge(figures: Figures) -> Verdict | None:
        if against not in figures.rows:
            return None
        limit = factor * figures.rows[against] + extra_ms
        return Verdict(f"{figures.ours:.0f} of {limit:.0f} ms", figures.ours <= limit)

    return Goal(f"at most {factor:g} x {against} + {extra_ms:g} ms", judge)


def less_than(*others: str) -> Goal:
    """Ours takes less time than each of those rows."""

    def judge(figures: Figures) -> Verdict | None:
        found = [figures.rows[other] for other in others if other in figures.rows]
        return Verdict(f"{figures.ours / min(found):.2f} x", figures.ours < min(found)) if found else None

    return Goal(f"less than {' and '.join(others)}", judge)


FOR_COMPARISON = Goal("for comparison", lambda figures: None)


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Args:
        workload: Name by which the command line selects it.
        what: The work in a few words, for the report.
        params: Parameters given to both sides.
        peer_module: Module in `peers/`.
        our_module: Module in `workloads/`.
        goals: Our row -> its goal. The first row is the one that the ratio is shown for.
        peers: Rows that count as peers.
        floors: Rows shown for orientation.
        slow: Peers too slow to prepare to be run in more than one round; left out of quick runs.
    """

    workload: str
    what: str
    params: Mapping[str, Any]
    peer_module: str
    our_module: str
    goals: Mapping[str, Goal]
    peers: tuple[str, ...]
    floors: tuple[str, ...] = ()
    slow: frozenset[str] = field(default_factory=frozenset)

    @property
    def title(self) -> str:
        shown = (f"{key}={value}" for key, value in self.params.items() if key not in ("n", "runs"))
        return " ".join((self.workload, *shown))


ITERATIONS = 100_000
STARTS = 2  # processes a round, after a first one that is reported apart
OPERATIONS = 20_000

LINES = (
    Line(
        "W2",
        "train step of a hand-written layer-normalised LSTM cell, 256 units, 100 steps, in a graph loop",
        {"B": 32, "T": 100},
        "w02_custom_cell",
        "w02",
        {"anabranch": at_most(2.0)},
        ("torch_compile_loop", "jax_scan", "torch_compile_cell", "tf1_while", "tf2_while"),
        slow=frozenset({"torch_compile_loop"}),
    ),
    Line(
        "W4",
        "100,000 iterations of x = 0.999 x + 1 in one call",
        {"body": "scalar", "n": ITERATIONS},
        "w04_while_rate",
        "w04",
        {"anabranch": at_least_rate(2e6, ITERATIONS)},
        ("jax_while", "pytensor_scan", "tf2_xla", "tf1_session"),
        ("numpy_loop", "numba_loop"),
    ),
    Line(
        "W4",
        "100,000 products of 64x64 matrices in one call",
        {"body": "matmul", "n": ITERATIONS},
        "w04_while_rate",
        "w04",
        {"anabranch": at_most(1.1, against="numpy_loop")},
        ("pytensor_scan", "jax_while", "tf2_xla"),
        ("numpy_loop", "numba_loop"),
    ),
    Line(
        "W6",
        "MLP 784-512-512-10, Adam, through `model.fit`, ms a step",
        {"B": 32},
        "w06_mlp_fit",
        "w06",
        {"anabranch": at_most(3.0)},
        ("jax_raw", "keras_jax", "tf1_session"),
        ("numpy_raw",),
    ),
    Line(
        "W6",
        "MLP 784-512-512-10, Adam, through `model.fit`, ms a step",
        {"B": 256},
        "w06_mlp_fit",
        "w06",
        {"anabranch": at_most(2.0)},
        ("keras_jax", "jax_raw", "tf1_session"),
        ("numpy_raw",),
    ),
    Line(
        "W11",
        "cold process to the end of the first trained step of W6's model",
        {"runs": STARTS},
        "w11_startup",
        "w11",
        {"anabranch": at_most(0.6), "anabranch_cold_cache": at_most(0.6)},
        ("jax_raw", "torch_raw", "keras_jax"),
        ("numpy_import",),
    ),
    Line(
        "import",
        "the import alone, in a cold process",
        {"runs": STARTS},
        "w11_startup",
        "w11",
        {"anabranch_import": at_most_plus(2, 50, against="numpy_import")},
        (),
        ("numpy_import",),
    ),
    Line(
        "build",
        "operations of 20 kinds built by the public functions and operators, one after the other",
        {"of": "operations", "n": OPERATIONS},
        "common",
        "build",
        {"anabranch_operations": at_least_operations(50_000, OPERATIONS)},
        (),
    ),
    Line(
        "build",
        "Inception-v3 in replicas, its gradient and SGD updates (9,000 to 72,000 operations), from nothing to the "
        "compiled step",
        {"of": "training step", "runs": STARTS},
        "common",
        "build",
        {
            "anabranch_9k": at_most_seconds(2),
            "anabranch_18k": at_most_seconds(4),
            "anabranch_36k": at_most_seconds(8),
            "anabranch_36k_cold_cache": at_most_seconds(8),
            "anabranch_72k": at_most(5.0, against="anabranch_18k"),
        },
        (),
    ),
    *[
        Line(
            "placement",
            "simulated time of a step, as the operations are placed on simulated devices",
            {"graph": graph},
            "none",
            "placement",
            {
                "anabranch": less_than("single_device", "round_robin"),
                "single_device": FOR_COMPARISON,
                "round_robin": FOR_COMPARISON,
            },
            (),
        )
        for graph in ("lstm", "inception", "experts")
    ],
    *[
        Line(
            "scheduling",
            "16 experts scheduled dynamically on 4 simulated devices in real time, against experts on devices in turn",
            {"load": load, "step": step},
            "none",
            "scheduling",
            {"anabranch": at_most(most, against="static"), "static": FOR_COMPARISON, "ideal": FOR_COMPARISON},
            (),
        )
        for load, most in (("zipf", 0.667), ("even", 1.05))
        for step in ("forward", "training")
    ],
    Line(
        "scheduling",
        "Tree-LSTM over 16 trees on 4 simulated devices in real time, against one node after the other",
        {"trees": 16},
        "none",
        "scheduling",
        {"anabranch": at_most(0.33, against="in_order"), "in_order": FOR_COMPARISON},
        (),
    ),
)


def workloads() -> tuple[str, ...]:
    """Names that the command line takes, in order."""
    return tuple(dict.fromkeys(line.workload for line in LINES))
