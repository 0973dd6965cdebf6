"""State that a task held is lost with it for its clients, until it is assigned or restored."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path

import pytest
from shared.tasks import PS, WORKER, Running, restarted, tasks
from shared.waiting import out_of_time

import anabranch as ab
from anabranch.engine.graph.graph import eagerly

pytestmark = pytest.mark.xdist_group("tasks")


@pytest.fixture
def cluster() -> Generator[Running]:
    """A cluster of its own, of which a test may end tasks."""
    with tasks() as running:
        yield running


def restart(running: Running) -> None:
    """Start the ps task again."""
    running[PS].kill()
    again = restarted(running[PS])
    running[PS].end()
    running[PS] = again


def test_a_session_whose_preparing_was_cut_off_has_lost_nothing(graph: ab.Graph, cluster: Running):
    with ab.device(PS):
        w = ab.Variable(1.0, name="w")
        double = w * 2.0
    with ab.Graph().as_default() as other, ab.device(PS):
        there = ab.constant([1.0]) + 1.0
    first = ab.Session(other, target=cluster[WORKER].target)
    first.run(there)  # the master is connected to the ps task, so that the graph of the next session is sent there
    session = ab.Session(graph, target=cluster[WORKER].target)
    here = ab.constant(3.0) + 1.0
    cluster[PS].stop()
    wanted = f"{PS} prepares its part"
    assert wanted in out_of_time(lambda seconds: session.run(double, timeout=seconds), wanted)
    assert session.run(here) == 4  # another step that can be prepared does not say that `w` was made
    restart(cluster)
    try:
        assert session.run(double) == 2
        assert w.numpy() == 1
    finally:
        session.close()
        first.close()
        cluster[PS].end()


class Trainer:
    """A client that trains variables which the ps task holds."""

    def __init__(self, running: Running, names: str) -> None:
        with ab.Graph().as_default() as graph, ab.device(PS):
            self.variables = {name: ab.Variable(1.0, name=name) for name in names}
            self.values = {name: w * 1.0 for name, w in self.variables.items()}
            self.more = {name: w.assign_add(1.0) for name, w in self.variables.items()}
            self.set = {name: w.assign(10.0) for name, w in self.variables.items()}
            with ab.control_dependencies([self.variables["a"].assign(20.0)]):
                self.set_and_read = self.variables["a"] + 1.0
        self.session = ab.Session(graph, target=running[WORKER].target)

    def value(self, name: str) -> float:
        return float(self.session.run(self.values[name]))

    def train(self, name: str) -> float:
        return float(self.session.run(self.more[name]))


def finds_lost(client: Trainer, name: str) -> None:
    """Check that a client can neither read a variable nor train it."""
    acts = (lambda: client.value(name), lambda: client.train(name), client.variables[name].numpy)
    for act in acts:
        with pytest.raises(ab.errors.StateLostError, match=f"'{name}' has no value: {PS}, .* another client has begun"):
            act()


def test_an_initial_value_of_another_client_does_not_replace_what_was_trained(cluster: Running, tmp_path: Path):
    old = Trainer(cluster, "abcd")
    manager = ab.distribute.CheckpointManager(tmp_path, list(old.variables.values()), session=old.session)
    for name in old.variables:
        assert [old.train(name) for _ in range(3)][-1] == 4
    manager.save(1)
    manager.wait_until_finished()
    restart(cluster)
    new = Trainer(cluster, "abcd")
    try:
        for name in old.variables:
            assert (new.value(name), new.train(name), new.variables[name].numpy()) == (1, 2, 2)
            finds_lost(old, name)
        assert new.train("b") == 3, "it is free to use what it has made"
        finds_lost(old, "b")
        assert old.session.run(old.set_and_read) == 21  # its own assignment
        assert (old.value("a"), new.train("a"), old.train("a")) == (20, 21, 22)
        new.session.run(new.set["b"])  # another client's
        assert (old.train("b"), new.value("b")) == (11, 11)
        old.variables["c"].assign(5.0)  # plain Python's
        assert (new.value("c"), old.variables["c"].numpy(), old.value("c")) == (5, 5, 5)
        finds_lost(old, "d")
        assert manager.restore() == 1
        for client in (old, new):
            assert [client.value(name) for name in "abcd"] == [4, 4, 4, 4]
        assert (old.train("d"), new.train("d")) == (5, 6)
    finally:
        old.session.close()
        new.session.close()
        cluster[PS].end()


class Feeder:
    """A client with a queue that the ps task holds."""

    def __init__(self, running: Running) -> None:
        with ab.Graph().as_default() as self.graph, ab.device(PS):
            self.queue = ab.queues.FIFOQueue(9, "int32", shapes=(), name="numbers")
            self.x = ab.placeholder((), "int32", "x")
            self.put, self.element, self.size = self.queue.enqueue(self.x), self.queue.dequeue(), self.queue.size()
        self.target = running[WORKER].target
        self.session = ab.Session(self.graph, target=self.target)

    def acts(self) -> list[Callable[[], object]]:
        """Return what steps do with the queue, and plain Python last."""
        steps = [(self.put, {self.x: 1}), (self.element, {}), (self.size, {})]
        return [*[partial(self.session.run, *step) for step in steps], partial(eagerly_sized, self.queue)]


def eagerly_sized(queue: ab.queues.FIFOQueue) -> int:
    with eagerly():
        return int(queue.size())


@pytest.mark.parametrize("is_new_before", [False, True], ids=["nobody has begun a new one", "another client has"])
def test_a_lost_queue_stays_lost_in_its_session_and_is_new_in_the_next(cluster: Running, is_new_before: bool):
    old = Feeder(cluster)
    for number in (1, 2):
        old.session.run(old.put, {old.x: number})
    assert eagerly_sized(old.queue) == 2
    restart(cluster)
    other = Feeder(cluster) if is_new_before else None
    if other is not None:
        other.session.run(other.put, {other.x: 7})
    lost = f"'numbers' held is gone: {PS}, .* restarted. Open a new session"
    try:
        for act in old.acts():
            with pytest.raises(ab.errors.StateLostError, match=lost):
                act()
        with ab.Session(old.graph, target=old.target) as again:
            assert again.run(old.size) == (1 if other else 0)
            again.run(old.put, {old.x: 8})
            assert again.run(old.element) == (7 if other else 8)
            assert eagerly_sized(old.queue) == (1 if other else 0)
            for act in old.acts()[:-1]:
                with pytest.raises(ab.errors.StateLostError, match=lost):
                    act()
        if other is not None:
            assert other.session.run(other.element) == 8
            other.session.close()
    finally:
        old.session.close()
        cluster[PS].end()
