"""Queues, accumulators and the state of replicas on tasks: found by name, waited for in steps of several clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PATIENCE, PS, WORKER, Running
from shared.waiting import out_of_time

import anabranch as ab
from anabranch.engine.graph.graph import eagerly
from anabranch.engine.place.constraints import PlacementError
from anabranch.engine.queues.replica_gradients import Part, ReplicaGradients
from anabranch.engine.queues.replica_steps import ReplicaSteps
from anabranch.engine.queues.replica_tickets import NO_TICKET, Receipt

pytestmark = pytest.mark.xdist_group("tasks")
Client = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def clients(running: Running) -> Generator[Callable[[], Client]]:
    """Makes clients. Each builds what it runs in a graph of its own, as processes of their own would."""
    sessions: list[ab.Session] = []

    def client() -> Client:
        def run(build: Callable[[], Any]) -> Any:
            with ab.Graph().as_default() as graph, ab.device(PS):
                fetch = build()
                session = ab.Session(graph, target=running[WORKER].target)
            sessions.append(session)
            return session.run(fetch, timeout=PATIENCE)

        return run

    yield client
    for session in sessions:
        session.close()


def fifo(name: str, **options: Any) -> ab.queues.FIFOQueue:
    return ab.queues.FIFOQueue(10, ["int32", "string"], shapes=[(), ()], name=name, **options)


def test_a_second_client_finds_a_queue_by_its_name(clients: Any):
    first, second = clients(), clients()
    first(lambda: fifo("letters").enqueue_many([[1, 2, 3], ["a", "b", "c"]]))
    assert second(lambda: fifo("letters").size()) == 3
    assert second(lambda: fifo("letters").dequeue()) == [1, "a"]
    numbers, letters = first(lambda: fifo("letters").dequeue_many(2))
    assert (numbers.tolist(), letters.tolist()) == ([2, 3], ["b", "c"])


def test_a_dequeue_waits_for_what_another_client_puts_in(clients: Any):
    first, second = clients(), clients()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(first(lambda: fifo("later").dequeue())))
    thread.start()
    second(lambda: fifo("later").enqueue([7, "x"]))
    thread.join(PATIENCE)
    assert found == [[7, "x"]]


def test_a_dequeue_in_vain_names_task_and_queue(running: Running):
    with ab.Graph().as_default() as graph, ab.device(PS):
        element = fifo("empty").dequeue()
        session = ab.Session(graph, target=running[WORKER].target)
        wanted = "queue 'empty', which is open and holds 0"
        assert wanted in out_of_time(lambda seconds: session.run(element, timeout=seconds), wanted)
        session.close()


def test_a_closed_queue_tells_its_end(clients: Any):
    client = clients()
    client(lambda: fifo("closed").close())
    with pytest.raises(ab.errors.OutOfRangeError, match="closed"):
        client(lambda: fifo("closed").dequeue())


def test_all_kinds_of_queues_travel(clients: Any):
    client = clients()
    kinds: list[Callable[[], Any]] = [
        lambda: ab.queues.PaddingFIFOQueue(5, "int32", [(None,)], name="padded"),
        lambda: ab.queues.RandomShuffleQueue(5, 0, "int32", [(1,)], seed=1, name="shuffled"),
        lambda: ab.queues.PriorityQueue(5, ["int32"], [(1,)], name="by priority"),
    ]
    for make in kinds:
        value = ([[3]], [[4]]) if make().name == "by priority" else [[3]]
        value = (3, [4]) if make().name == "by priority" else [[3]]
        client(lambda make=make, value=value: make().enqueue(value))
        assert np.ravel(client(lambda make=make: make().dequeue())[-1]).tolist()[-1] in (3, 4)


def test_a_queue_made_differently_is_refused(clients: Any):
    client = clients()
    client(lambda: fifo("same").size())
    with pytest.raises(ValueError, match=r"'same' on /job:ps/task:0 was made by another client as .*expects"):
        client(lambda: ab.queues.FIFOQueue(11, "int32", shapes=(), name="same").size())
    with pytest.raises(ValueError, match="is a variable for this client and a fifo_queue for another"):
        client(lambda: ab.Variable(1.0, name="same") + 1.0)


def test_accumulators_take_gradients_of_several_clients(clients: Any):
    def make() -> ab.queues.ConditionalAccumulator:
        return ab.queues.ConditionalAccumulator("float32", (2,), name="mean")

    def make_sparse() -> ab.queues.SparseConditionalAccumulator:
        return ab.queues.SparseConditionalAccumulator("float32", (4, 1), name="rows", reduction_type="SUM")

    first, second = clients(), clients()
    first(lambda: make().apply_grad([1.0, 2.0]))
    second(lambda: make().apply_grad([3.0, 4.0]))
    assert first(lambda: make().take_grad(2)).tolist() == [2.0, 3.0]
    for client in (first, second):
        client(lambda: make_sparse().apply_grad([3], [[1.0]]))
    indices, values, shape = first(lambda: make_sparse().take_grad(2))
    assert (indices.tolist(), values.tolist(), shape.tolist()) == ([3], [[2.0]], [4, 1])


def test_a_store_is_fetched_from_tasks(running: Running, graph: ab.Graph):
    with ab.device(PS):
        store = ab.TensorStore("float32", key_shape=2).write((1, 2), ab.constant([1.0, 2.0]))
    with ab.device(WORKER):
        more = store.write((3, 4), store.read((1, 2)) * 2.0)
    with ab.Session(graph, target=running[WORKER].target) as session:
        found = session.run(more)
    assert {key: value.tolist() for key, value in found.items()} == {(1, 2): [1, 2], (3, 4): [2, 4]}


# --- readers ---------------------------------------------------------------------------------------------------------


def paths(tmp_path: Path) -> list[str]:
    found = [tmp_path / "one.txt", tmp_path / "two.txt"]
    found[0].write_text("a\nb\nc\n")
    found[1].write_text("d\n")
    return [str(path) for path in found]


def test_a_second_client_goes_on_where_a_reader_is(clients: Any, tmp_path: Path):
    def names() -> Any:
        return ab.queues.FIFOQueue(9, "string", (), name="names")

    def read(count: int | None = None) -> Any:
        reader = ab.io.TextLineReader(name="lines")
        return reader.read(names()) if count is None else reader.read_up_to(names(), count)

    first, second = clients(), clients()
    first(lambda: names().enqueue_many([paths(tmp_path)]))
    assert first(read)[1] == "a"
    assert second(read)[1] == "b"
    keys, values = second(lambda: read(2))
    assert ([key.rpartition("/")[2] for key in keys], values.tolist()) == (["one.txt:3", "two.txt:1"], ["c", "d"])
    with pytest.raises(ValueError, match=r"'lines' on /job:ps/task:0 was made by another client as .*skip_header"):
        first(lambda: ab.io.TextLineReader(2, "lines").read(names()))


def test_plain_python_reads_and_counts_where_a_reader_lies(running: Running, graph: ab.Graph, tmp_path: Path):
    with ab.device(PS):
        names = ab.queues.FIFOQueue(9, "string", (), name="other names")
        reader = ab.io.TextLineReader(name="other lines")
    elsewhere = ab.queues.FIFOQueue(9, "string", ())
    fill, read = names.enqueue_many([paths(tmp_path)]), reader.read(names)
    with ab.Session(graph, target=running[WORKER].target) as session:
        session.run(fill)
        assert session.run(read)[1] == "a"
    with eagerly():
        assert reader.read(names)[1] == "b"
        assert reader.statistics() == (2, 0, str(tmp_path / "one.txt"))
        reader.reset()
        names.close()
        assert reader.read_up_to(names, 5)[1].tolist() == ["d"]
        with pytest.raises(ValueError, match="is in /job:ps/task:0, and queue 'fifo_queue' in this process"):
            reader.read(elsewhere)


def test_a_reader_and_its_queue_have_to_lie_together(running: Running, graph: ab.Graph):
    with ab.device(PS):
        names = ab.queues.FIFOQueue(9, "string", ())
    with ab.device(WORKER):
        read = ab.io.TextLineReader().read(names)
    with (
        ab.Session(graph, target=running[WORKER].target) as session,
        pytest.raises(PlacementError, match=r"is on /job:worker/task:0 and .* is on /job:ps/task:0"),
    ):
        session.run(read)


def test_names_are_produced_on_a_task_for_all_clients(clients: Any, tmp_path: Path):
    def produce() -> Any:
        ab.io.string_input_producer(paths(tmp_path), num_epochs=1, seed=3, name="produced")
        return ab.get_default_graph().queue_runners[0].enqueue_ops

    first, second = clients(), clients()
    first(produce)
    with pytest.raises(ab.errors.OutOfRangeError, match="all 1 epochs were produced"):
        second(produce)
    queue = lambda: ab.queues.FIFOQueue(32, "string", (), name="produced")  # noqa: E731
    assert sorted(second(lambda: queue().dequeue_many(2)).tolist()) == paths(tmp_path)


# --- replicas -------------------------------------------------------------------------------------------------------


def steps() -> ReplicaSteps:
    return ReplicaSteps(2, name="steps")


def gradients() -> ReplicaGradients:
    parts = [Part("float32", (2,)), Part("float32", (), "sum"), Part("float32", (5, 1), has_rows=True)]
    return ReplicaGradients(parts, name="gradients")


def test_two_workers_make_a_step_together(clients: Any):
    chief, other = clients(), clients()
    for number, client in enumerate((chief, other)):
        client(lambda number=number: steps().join(number, number + 10, f"/job:other/task:{number}"))
    assert chief(lambda: steps().begin_epoch(0, 1, 2, np.zeros(0, "int64"))) == 1
    for number, client in reversed(list(enumerate((chief, other)))):
        ticket, step, share, length = client(lambda number=number: steps().take(number, number + 10, 1))
        assert (step, share, length) == (0, number, 1)
        values = [np.full(2, number + 1.0, "float32"), np.float32(number + 1)]
        values += [np.array([number, 4]), np.full((2, 1), 1.0, "float32")]
        client(lambda ticket=ticket, values=values: gradients().put(ticket, values))
        receipt = client(
            lambda number=number, ticket=ticket: steps().commit(number, number + 10, ticket, 1 + 2 * number)
        )
        assert receipt == Receipt.TAKEN
    step, tickets, rows, horizon = chief(lambda: steps().choose(0))
    assert (step, len(tickets), rows.tolist()) == (0, 2, [1, 3])
    mean, total, indices, values = chief(lambda: gradients().take(tickets, rows, horizon))
    assert mean.tolist() == [1.75, 1.75]
    assert total == 3.0
    assert (indices.tolist(), values.ravel().tolist()) == ([0, 4, 1, 4], [0.25, 0.25, 0.75, 0.75])
    chief(lambda: steps().applied(0, step))
    assert [int(part) for part in other(lambda: steps().take(1, 11, 1))] == [NO_TICKET, 1, 0, 1]
    told = json.loads(chief(lambda: steps().statistics()))
    assert told["receipts"]["1"]["taken"] == 1
    chief(lambda: steps().close(0, "enough"))
    with pytest.raises(ab.errors.CancelledError, match="enough"):
        other(lambda: steps().take(1, 11, 2))
