"""Rows of tables on tasks: only rows cross, no table is copied, and clients at the same time see whole rows."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from shared.sample import first_of
from shared.tasks import PS, WORKER, Running, tasks
from shared.waiting import Waiting

import anabranch as ab

pytestmark = pytest.mark.xdist_group("tasks")
SHAPE = (1 << 14, 64)  # 4 MiB
FEW = 1 << 17  # bytes


@pytest.fixture(scope="module", params=first_of(["unix", "shared_memory"], 1))
def running(request: pytest.FixtureRequest) -> Generator[Running]:
    with tasks(ps=2, all_with=("--plane", request.param)) as made:
        yield made


class Client:
    """A client with a graph of its own: rows are read on a worker, and others are sent back."""

    def __init__(self, running: Running, name: str) -> None:
        with ab.Graph().as_default() as graph:
            with ab.device(PS):
                self.table = ab.Variable(ab.initializers.Zeros(), shape=SHAPE, dtype="float32", name=name)
            self.ids = ab.placeholder((8,), "int32", "ids")
            self.x = ab.placeholder((), "float32", "x")
            with ab.device(WORKER):
                self.rows = ab.ops.take(self.table, self.ids, axis=0) * 1.0
                made = ab.ops.zeros((8, SHAPE[1])) + self.x
            slices = ab.IndexedSlices(made, self.ids, SHAPE)
            self.set = self.table.scatter_update(slices).operation
            self.add = self.table.scatter_add(slices).operation
        self.session = ab.Session(graph, target=running[WORKER].target)

    def run(self, target: Any, ids: Any, x: float = 0.0) -> Any:
        return self.session.run(target, {self.ids: np.array(ids, "int32"), self.x: np.float32(x)})

    def close(self) -> None:
        self.session.close()


def copies(running: Running) -> int:
    return ab.distribute.status(running[PS].target).held["row_copies"]


def travelled(running: Running) -> int:
    found = [ab.distribute.status(task.target).connections for task in running.values()]
    return sum(each.bytes_sent + each.bytes_shared for connections in found for each in connections)


def test_only_rows_cross_and_no_table_is_copied(running: Running):
    client, first, other = Client(running, "rows"), list(range(8)), list(range(-8, 0))
    client.run([client.rows, client.set], first)
    before, known = copies(running), travelled(running)
    for number in range(4):
        client.run(client.set, first, number)
        client.run(client.add, other, 1.0)
        np.testing.assert_array_equal(client.run(client.rows, first), np.full((8, SHAPE[1]), number))
    np.testing.assert_array_equal(client.run(client.rows, other), np.full((8, SHAPE[1]), 4.0))
    assert copies(running) == before
    assert travelled(running) - known < FEW
    client.close()


def test_shards_of_a_table_are_written_where_they_are(running: Running):
    with ab.Graph().as_default() as graph:
        table = ab.distribute.ShardedVariable(
            ab.initializers.Zeros(),
            ab.distribute.FixedShardsPartitioner(2),
            shape=SHAPE,
            dtype="float32",
            name="sharded rows",
            devices=["/job:ps/task:0", "/job:ps/task:1"],
        )
        ids = ab.placeholder((4,), "int32", "ids")
        with ab.device(WORKER):
            loss = ab.ops.sum(ab.ops.take(table, ids, axis=0) * 3.0)
            train = ab.optimizers.Adagrad(0.5).minimize(loss, var_list=[table])
    session = ab.Session(graph, target=running[WORKER].target)
    fed = {ids: np.array([0, 5, SHAPE[0] - 1, 5], "int32")}
    session.run(train, fed)
    before, known = copies(running), travelled(running)
    for _ in range(3):
        session.run(train, fed)
    assert copies(running) == before
    assert travelled(running) - known < FEW
    session.close()


def test_clients_at_the_same_time_see_whole_rows_and_lose_no_additions(running: Running):
    clients = [Client(running, "shared rows") for _ in range(3)]
    own, both, rounds = list(range(8)), list(range(8, 16)), 25

    def write() -> None:
        for number in range(rounds):
            clients[0].run(clients[0].set, own, number)
            clients[0].run(clients[0].add, both, 1.0)

    def add() -> None:
        for _ in range(rounds):
            clients[1].run(clients[1].add, both, 1.0)

    working = [Waiting(write), Waiting(add)]
    while any(each.thread.is_alive() for each in working):
        whole = clients[2].session.run(clients[2].table)
        for found in (clients[2].run(clients[2].rows, own), clients[2].run(clients[2].rows, both), whole[:16]):
            assert (found == found[:, :1]).all(), "half of a row"
    for each in working:
        each.result()
    np.testing.assert_array_equal(clients[2].run(clients[2].rows, both), np.full((8, SHAPE[1]), 2 * rounds))
    for client in clients:
        client.close()
