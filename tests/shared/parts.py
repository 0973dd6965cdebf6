"""Steps over several tasks, all of which are in this process: what one sends to another is handed over by the test."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from anabranch.engine.graph import Operation, Tensor
from anabranch.engine.graph.device import DeviceName
from anabranch.engine.machine.part import PartStep
from anabranch.engine.machine.part_program import PartProgram
from anabranch.engine.place.devices import Device, make_devices

from .symbols import symbols_of, targets_of

MOST_TURNS = 200_000


def devices_of(count: int, cpus: int = 1) -> list[Device]:
    """The devices of some tasks: a worker and ps tasks."""
    names = ["/job:worker/task:0", *[f"/job:ps/task:{number}" for number in range(count - 1)]]
    return [device for name in names for device in make_devices(DeviceName.parse(name), cpu=cpus)]


def tasks_of(devices: Sequence[Device]) -> list[str]:
    return list(dict.fromkeys(str(device.spec.of_task()) for device in devices))


class Parts:
    """The same step in all tasks, as each of them has prepared it.

    Args:
        assign: makes what says where operations run, again for each task.
    """

    def __init__(
        self,
        graph: Any,
        targets: Sequence[Tensor | Operation],
        feeds: Sequence[Tensor],
        devices: Any,
        assign: Any = None,
        **options: Any,
    ) -> None:
        self.count = sum(isinstance(target, Tensor) for target in targets)
        wanted, fed = targets_of(targets), symbols_of(feeds)
        self.programs = [
            PartProgram(graph, wanted, fed, task=task, devices=devices, assign=assign and assign(), **options)
            for task in tasks_of(devices)
        ]

    def run(self, values: Sequence[Any], seed: int = 0, most: int = 50) -> list[Any]:
        """One run; what crosses is late by chance, and tasks have their turns by chance."""
        chosen = random.Random(seed)
        here = {program.task: program for program in self.programs if program.task in program.tasks}
        steps: dict[str, PartStep] = {}
        under_way: list[tuple[str, tuple[Any, ...]]] = []
        for task, program in here.items():

            def send(*message: Any, program: PartProgram = program) -> None:
                under_way.append((program.sends[message[0]], message))

            steps[task] = program.begin(values, send, lambda: None)
        for _ in range(MOST_TURNS):
            if under_way and chosen.random() < 0.5:
                task, message = under_way.pop(chosen.randrange(len(under_way)))
                steps[task].receive(*message)
                continue
            task = chosen.choice(list(steps))
            steps[task].turn(most)
            if not under_way and all(step.is_over for step in steps.values()):
                break
        assert all(step.is_over for step in steps.values()), "the step hangs"
        found = {k: v for task, step in steps.items() for k, v in here[task].end(step).items()}
        return [found[number] for number in range(self.count)]
