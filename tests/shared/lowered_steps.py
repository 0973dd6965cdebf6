"""Random programs with their gradients as lowered steps over tasks, as text: two processes compare them.

``python -m shared.lowered_steps SEED COUNT REVERSED`` prints them as JSON; REVERSED of 1 lowers first what comes last.
"""

from __future__ import annotations

import json
import sys

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from programs.generator import programs
from programs.syntax import Program

from anabranch.engine.machine.part_program import PartProgram
from anabranch.engine.place.constraints import PlacementError
from anabranch.engine.place.devices import Device

from .machines import MachineCase
from .parts import devices_of, tasks_of
from .placed_steps import at_random

LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def lowered_steps(number: int, count: int, is_reversed: bool = False) -> list[list[str]]:
    """Lower `count` programs: of each its graph, and its steps, placed by chance and exact, by cost and fused."""
    drawn: list[tuple[Program, int, int, int]] = []

    @seed(number)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=LARGE)
    @given(programs(), st.integers(2, 3), st.integers(0, 10**6), st.sampled_from([1, 1, 2]))
    def draw(program: Program, tasks: int, places: int, order: int) -> None:
        drawn.append((program, tasks, places, order))

    draw()
    found: dict[int, list[str]] = {}
    for position in sorted(range(len(drawn)), reverse=is_reversed):
        found[position] = _texts(*drawn[position])
    return [found[position] for position in range(len(drawn))]


def _texts(program: Program, tasks: int, places: int, order: int) -> list[str]:
    case, devices = MachineCase(program, order), devices_of(tasks)
    exact, fused = _text(case, devices, places, exact=True), _text(case, devices, None, exact=False)
    return [case.built.graph.dump(), exact, fused]


def _text(case: MachineCase, devices: list[Device], places: int | None, exact: bool) -> str:
    assign = None if places is None else at_random(places, [device.name for device in devices])
    task = tasks_of(devices)[0]
    try:
        return PartProgram(
            case.built.graph, case.targets, list(case.feeds), task=task, devices=devices, exact=exact, assign=assign
        ).text()
    except PlacementError as error:
        return f"refused: {error}"


if __name__ == "__main__":
    json.dump(lowered_steps(int(sys.argv[1]), int(sys.argv[2]), is_reversed=sys.argv[3] == "1"), sys.stdout)
