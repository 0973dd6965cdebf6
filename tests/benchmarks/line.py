"""The parts of a line of the table: which rows it has, what they compute, and what its goal is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from goals import Goal

Measure = Literal["time", "memory"]
HIDDEN = ("n", "runs", "inter", "parallel", "budget", "reps")  # parameters that don't change the work


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
        losses: The first losses of all peers; ours must agree.
        most_rounds: More rounds than that are not worth their time.
        measure: What is compared: the median time of a step, or the peak of the process's memory.
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
    losses: tuple[float, ...] = ()
    most_rounds: int = 10
    measure: Measure = "time"

    @property
    def title(self) -> str:
        shown = (f"{key}={value}" for key, value in self.params.items() if key not in HIDDEN)
        return " ".join((self.workload, *shown))

    @property
    def trains(self) -> bool:
        """Test whether a first step, compilation included, can be distinguished from the others."""
        return bool(self.losses)
