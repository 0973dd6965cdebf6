"""All tasks lower a step to the same program, whoever has used its state before; else the error says what differs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from shared.tasks import PS, WORKER, Running

import anabranch as ab
from anabranch.engine.machine.part_program import PartProgram

pytestmark = pytest.mark.xdist_group("tasks")


def total_of(running: Running, names: Sequence[str]) -> float:
    """The total of variables by these names, half of which are on each task, as a new client finds it."""
    with ab.Graph().as_default() as graph:
        variables: list[Any] = []
        for number, name in enumerate(names):
            with ab.device(WORKER if number < len(names) // 2 else PS):
                variables.append(ab.Variable(10.0**number, name=name))
        with ab.device(WORKER):
            total = sum(variables[1:], variables[0] + 0.0)
    with ab.Session(graph, target=running[WORKER].target) as session:
        found = float(session.run(total))
        session.close()
    return found


def test_variables_that_clients_name_differently(running: Running):
    assert total_of(running, ["same", "same", "same", "same"]) == 1111
    assert total_of(running, ["same", "same_1", "same_2", "same_3"]) == 1111


def test_generators_that_have_drawn_already(running: Running):
    found: list[Any] = []
    for number in range(3):
        with ab.Graph().as_default() as graph:
            with ab.device(PS):
                drawn = ab.random.uniform((3,), seed=ab.random.SeedGenerator(5 + number, name="dice that have drawn"))
            with ab.device(WORKER):
                scaled = drawn * 2.0
        with ab.Session(graph, target=running[WORKER].target) as session:
            found.append(session.run(scaled))
            session.close()
    with ab.Graph().as_default() as local:
        dice = ab.random.SeedGenerator(5)
        expected = ab.random.uniform((3,), seed=dice) * 2.0
    here = ab.Session(local)
    for value in found:
        np.testing.assert_array_equal(value, here.run(expected))


def test_programs_that_differ_are_named_with_the_place_where(graph: ab.Graph, monkeypatch: pytest.MonkeyPatch):
    """Both tasks are in this process. One of them keeps the interpreter's bits, so that it does not fuse."""

    def prepared(*arguments: Any, task: str, **options: Any) -> PartProgram:
        return PartProgram(*arguments, task=task, **{**options, "exact": task == PS})

    with ab.device(PS):
        x = ab.placeholder((3,), "float32", "x")
        y = ab.ops.exp(x) * 2.0
    with ab.device(WORKER):
        z = y + 1.0
    with ab.distribute.Server({"ps": ["localhost:0"], "worker": ["localhost:0"]}, "ps", 0) as ps:
        cluster = {"ps": [ps.target.removeprefix("grpc://")], "worker": ["localhost:0"]}
        with ab.distribute.Server(cluster, "worker", 0) as worker:
            session = ab.Session(graph, target=worker.target)
            with monkeypatch.context() as patched:
                patched.setattr("anabranch.distribute.tasks.worker.PartProgram", prepared)
                with pytest.raises(RuntimeError) as caught:
                    session.run(z, {x: [0.0, 1.0, 2.0]})
            expected = 2 * np.exp([0.0, 1.0, 2.0]) + 1
            np.testing.assert_allclose(session.run(z, {x: [0.0, 1.0, 2.0]}), expected, rtol=1e-6)
            session.close()
    first, own, other = str(caught.value).splitlines()
    assert first.startswith(f"{PS} lowered the step to another program than {WORKER}. Run the same version")
    assert re.search(r"differ first in line \d+:$", first)
    assert own.startswith(f"  {WORKER}: multiply: float32[3] = fused[")
    assert other.startswith(f"  {PS}: exp: float32[3] = cluster(")
    assert len(own) < 250
