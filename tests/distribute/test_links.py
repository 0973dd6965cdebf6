"""Ways between tasks are measured, each pair for itself, and steps are placed by what was measured."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from shared.parts import devices_of
from shared.simulator import Network, TaskNode
from shared.symbols import symbols_of, targets_of
from shared.tasks import PS, WORKER

import anabranch as ab
from anabranch.distribute.cluster import ClusterSpec
from anabranch.distribute.config import ServerConfig
from anabranch.distribute.tasks import links
from anabranch.distribute.tasks.peers import Address
from anabranch.distribute.tasks.preparing import assigning, costs_of
from anabranch.distribute.transport.wire import FrameError
from anabranch.engine.graph.device import task_of
from anabranch.engine.machine.part_program import PartProgram
from anabranch.engine.place.costs import Link

SECOND_PS = "/job:ps/task:1"
TASKS = [WORKER, PS, SECOND_PS]
FAST, SLOW = Link(bandwidth=1e10, latency=1e-5), Link(bandwidth=1e7, latency=1e-2)


def place_of_sum(costs: links.Costs) -> str:
    """The task where two large values of two tasks are added up; the sum is as large."""
    graph, devices, placed = ab.Graph(), devices_of(3), []
    with graph.as_default():
        x = ab.placeholder((1000,), "float32", "x")
        with ab.device(PS):
            a = ab.Variable([0.5] * 1000, name="a") * x
        with ab.device(SECOND_PS):
            b = ab.Variable([0.5] * 1000, name="b") * x
        added = ab.ops.sum(a + b)
        with ab.device(WORKER):
            y = added + 1.0
    targets, feeds = targets_of([y]), symbols_of([x])
    found: dict[str, str] = {}

    def place(devices: list[str]) -> None:
        placed[:] = devices

    assign = assigning(WORKER, None, place, costs_of(devices, costs))

    def noting(operations: Any, feeds: Any) -> Any:
        made = assign(operations, feeds)
        found.update({operation.name: device for operation, device in made.items()})
        return made

    PartProgram(graph, targets, feeds, task=WORKER, devices=devices, assign=noting)
    assert placed
    return task_of(found["sum"])


@pytest.mark.parametrize("busy", [(PS, SECOND_PS), (SECOND_PS, PS)])
def test_steps_are_placed_by_what_each_pair_takes(busy: tuple[str, str]):
    costs = dict.fromkeys(itertools.permutations(TASKS, 2), FAST)
    one, other = busy
    costs |= {(one, other): SLOW, (one, WORKER): SLOW}  # a scalar of `one` still leaves it sooner than its vector
    assert place_of_sum(costs) == one
    costs |= {(one, other): FAST, (one, WORKER): FAST, (other, one): SLOW, (other, WORKER): SLOW}
    assert place_of_sum(costs) == other


# --- in a simulated network -----------------------------------------------------------------------------------------


class Measured:
    """Three tasks, of which two are far from each other."""

    def __init__(self, seconds: float) -> None:
        self.network = network = Network(1)
        network.delay = lambda: 0.001
        addresses = {name: f"localhost:{2201 + k}" for k, name in enumerate(TASKS)}
        network.far = {frozenset((addresses[PS], addresses[SECOND_PS])): seconds}
        jobs = {"worker": [addresses[WORKER]], "ps": [addresses[PS], addresses[SECOND_PS]]}
        config = ServerConfig(plane="tcp")
        self.nodes = {
            name: TaskNode(network, address, ClusterSpec(jobs), name, config) for name, address in addresses.items()
        }
        infos = [node.task.information() for node in self.nodes.values()]
        self.addresses = [Address(i.name, i.host, i.port, i.incarnation, i.front) for i in infos]
        self.found: list[links.Costs] = []

    def read(self) -> None:
        """Have the worker read the costs of all pairs, once it is connected."""
        master = self.nodes[WORKER].task._master
        opened: list[Any] = []
        for address in self.addresses[1:]:
            master._peers.reach(address, lambda address, way: opened.append(way))
        self.nodes[WORKER].loop.wake()
        assert self.network.run(lambda: len(opened) == 2, 60)
        loop = self.nodes[WORKER].loop
        loop.call(lambda: master._pairs.read(self.addresses, self.found.append))


def test_tasks_that_are_far_from_each_other_are_known_by_their_pair():
    made = Measured(0.03)
    made.read()
    assert made.network.run(lambda: len(made.found) == 1, 10)
    made.network.run(lambda: False, 10)  # what took too long for the first step is there for the next one
    made.read()
    assert made.network.run(lambda: len(made.found) == 2, 0.1)
    costs = made.found[1]
    assert costs.keys() == set(itertools.permutations(TASKS, 2))
    far = [costs[pair].latency for pair in ((PS, SECOND_PS), (SECOND_PS, PS))]
    near = [cost.latency for pair, cost in costs.items() if WORKER in pair]
    assert min(far) > 8 * max(near)
    assert all(cost.latency == links.rounded(cost.latency) for cost in costs.values())


def test_a_task_that_is_gone_or_silent_holds_nobody_up():
    for end in ("kill", "stop"):
        made = Measured(0.0)
        made.read()
        getattr(made.nodes[SECOND_PS], end)()
        assert made.network.run(lambda made=made: len(made.found) == 1, 10)
        assert made.found[0].keys() >= {(WORKER, PS), (PS, WORKER)}
        assert len(made.nodes[WORKER].task._master._pairs) == 0
        assert made.network.run(lambda made=made: made.nodes[PS].held["measuring"] == 0, 60)


@pytest.mark.parametrize("figures", [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0), (1.0, float("inf"))])
def test_figures_that_are_no_measurement_are_refused(figures: tuple[float, float]):
    pairs = links.PairCosts(Network(0).run, lambda task: None)  # type: ignore[arg-type]
    with pytest.raises(FrameError, match="not above 0"):
        pairs.take(None, {"number": 1, "links": [[PS, *figures]]})  # type: ignore[arg-type]
