"""Plain Python's operations on variables and queues that tasks hold are done there."""

from __future__ import annotations

import copy
import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from shared.tasks import PATIENCE, PS, WORKER, Running, restarted, tasks
from shared.waiting import until

import anabranch as ab
from anabranch.engine.graph.graph import eagerly

pytestmark = pytest.mark.xdist_group("tasks")


def remote(session: ab.Session) -> Any:
    return session._schedule.remote


@pytest.fixture
def session(graph: ab.Graph, running: Running) -> Generator[ab.Session]:
    made = ab.Session(graph, target=running[WORKER].target)
    yield made
    made.close()


def other_client(running: Running, name: str, delta: Any) -> Any:
    """Add to a variable as another process would: with a variable object of its own."""
    with ab.Graph().as_default() as graph, ab.device(PS):
        more = ab.Variable(np.zeros_like(delta), name=name).assign_add(delta)
    other = ab.Session(graph, target=running[WORKER].target)
    found = other.run(more)
    other.close()
    return found


def test_reads_and_writes_act_on_the_task(session: ab.Session, running: Running):
    with ab.device(PS):
        w = ab.Variable([1.0, 2.0], name="at home")
        double = w * 2.0
    assert str(w) == "<Variable at home float32[2]>"
    assert session.run(double).tolist() == [2, 4]
    assert str(w) == f"<Variable at home float32[2] on {PS}>"
    other_client(running, "at home", np.array([1.0, 1.0], "float32"))
    assert w.numpy().tolist() == [2, 3]
    with eagerly():
        assert w.assign([5.0, 6.0]).numpy().tolist() == [5, 6]
        assert w.assign_add([1.0, 1.0]).numpy().tolist() == [6, 7]
        assert w.assign_sub(2.0).numpy().tolist() == [4, 5]
        assert (w + 1.0).numpy().tolist() == [5, 6]
        with pytest.raises(ValueError, match=r"shape \[2\]; a value of shape \[3\]"):
            w.assign(np.zeros(3))
    assert session.run(double).tolist() == [8, 10]


def test_plain_python_computes_with_what_the_task_holds(session: ab.Session):
    with ab.device(PS):
        table = ab.Variable(np.arange(6.0).reshape(3, 2), dtype="float32", name="table at home")
        number = ab.Variable(3, name="number at home")
        session.run([table + 1.0, number + 1])
    expected = np.array([[7, 7], [2, 3], [14, 15]], "float32")
    with eagerly():
        table.scatter_add(ab.IndexedSlices([[10.0, 10.0]], [-1], [3, 2]))
        table.scatter_update(ab.IndexedSlices([[7.0, 7.0]], [0], [3, 2]))
        np.testing.assert_array_equal(table.numpy(), expected)
        assert (table.shape, table.size, table.nbytes, len(table)) == ((3, 2), 6, 24, 3)
        assert (int(number), float(number), np.asarray(number).tolist()) == (3, 3.0, 3)
        own = copy.deepcopy(table)
        own.assign(np.zeros((3, 2)))
        with ab.GradientTape() as tape:
            loss = ab.ops.sum(table * table)
        np.testing.assert_array_equal(tape.gradient(loss, table).numpy(), 2 * expected)
    np.testing.assert_array_equal(table.numpy(), expected)


def test_additions_of_several_threads_all_count(session: ab.Session):
    with ab.device(PS):
        counted = ab.Variable(0, name="counted at home")
        session.run(counted + 1)

    def add() -> None:
        for _ in range(20):
            counted.assign_add(1)

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert int(counted) == 60


def test_queues_and_accumulators_act_on_the_task(session: ab.Session):
    with ab.device(PS):
        queue = ab.queues.FIFOQueue(10, ["int32", "string"], shapes=[(), ()], name="queue at home")
        mean = ab.queues.ConditionalAccumulator("float32", (2,), name="mean at home")
        session.run([queue.enqueue([1, "a"]), mean.apply_grad([1.0, 2.0])])
    with eagerly():
        assert queue.size() == 1
        queue.enqueue_many([[2, 3], ["b", "c"]])
        assert [part.numpy() for part in queue.dequeue()] == [1, "a"]
        numbers, letters = queue.dequeue_many(2)
        assert (numbers.numpy().tolist(), letters.numpy().tolist(), queue.size()) == ([2, 3], ["b", "c"], 0)
        queue.close()
        assert queue.is_closed()
        with pytest.raises(ab.errors.OutOfRangeError, match="closed"):
            queue.dequeue()
        mean.apply_grad([3.0, 4.0])
        assert mean.num_accumulated() == 2
        assert mean.take_grad(2).numpy().tolist() == [2.0, 3.0]


def test_a_second_cluster_is_refused_a_second_session_is_not(graph: ab.Graph, session: ab.Session, running: Running):
    with ab.device(PS):
        w = ab.Variable(1.0, name="of one cluster")
        more = w.assign_add(1.0)
    assert session.run(more) == 2
    second = ab.Session(graph, target=running[WORKER].target)
    assert second.run(more) == 3
    second.close()
    with ab.distribute.Server({"ps": ["localhost:0"]}) as server:
        third = ab.Session(graph, target=server.target)
        with pytest.raises(ValueError, match=f"of one cluster .* belongs to the cluster .* where {PS} is at localhost"):
            third.run(more)
        third.close()
        held = server.status().held
    assert held["resources"] == 0
    assert w.numpy() == 3


def test_state_is_lost_with_its_task_until_it_is_assigned(graph: ab.Graph):
    with tasks() as running:
        session = ab.Session(graph, target=running[WORKER].target)
        with ab.device(PS):
            w = ab.Variable(1.0, name="lost at home")
            queue = ab.queues.FIFOQueue(3, "int32", shapes=(), name="lost queue")
            double = w * 2.0
            session.run([double, queue.enqueue(1)])
        running[PS].kill()
        with (
            eagerly(),
            pytest.raises(ab.errors.StateLostError, match=f"'lost at home' .*{PS}, which holds it"),
        ):
            w.assign_add(1.0)
        again = restarted(running[PS])
        with eagerly():
            for act in (w.numpy, lambda: w.assign_add(1.0), queue.size):
                with pytest.raises(ab.errors.StateLostError, match=f"{PS}, w.*, has been restarted"):
                    act()
            w.assign(5.0)
            assert (w + 1.0).numpy() == 6
        assert session.run(double) == 10
        with ab.Graph().as_default() as later, ab.device(PS):
            anew = ab.queues.FIFOQueue(3, "int32", shapes=(), name="lost queue")
            put, element = anew.enqueue(2), anew.dequeue()
        other = ab.Session(later, target=running[WORKER].target)
        other.run(put)
        assert other.run(element) == 2, "who begins with a new queue gets one, although its name was that of a lost one"
        other.close()
        session.close()
        again.end()


def test_a_reset_gives_containers_up_in_all_tasks(graph: ab.Graph, session: ab.Session, running: Running):
    with ab.container("first of a reset"), ab.device(PS):
        first = ab.Variable([1.0], name="w")
        queue = ab.queues.FIFOQueue(3, "int32", shapes=(), name="queue of a reset")
    with ab.container("second of a reset"):
        second, own = ab.Variable([2.0], name="w", trainable=False), ab.Variable(3.0, name="own")
    with ab.device(PS):
        more = [each.assign_add([1.0]) for each in (first, second)]
    number = own.assign_add(1.0)
    assert [value.tolist() for value in session.run(more)] == [[2], [3]]
    assert session.run([number, queue.enqueue(1)])[0] == 4
    ab.Session.reset(running[WORKER].target, ["first of a reset", "another"])
    assert session.run(more[1]).tolist() == [4]
    reset = f"'w' has no value: its container 'first of a reset' on {PS} has been reset"
    for act in (lambda: session.run(more[0]), first.numpy):
        with pytest.raises(ab.errors.StateLostError, match=reset):
            act()
    with eagerly(), pytest.raises(ab.errors.StateLostError, match="'queue of a reset' held is gone: its container"):
        queue.size()
    with ab.Graph().as_default() as later, ab.device(PS):
        with ab.container("another name for this client's"):
            anew = ab.Variable([7.0], name="w")
        double = anew * 2.0
    other = ab.Session(later, target=running[WORKER].target)
    remote(other).places = lambda resource: {"container": "first of a reset"}  # as another process would name it
    assert other.run(double).tolist() == [14]
    assert session.run(more[0]).tolist() == [8]  # it is the same variable for both
    ab.Session.reset(running[WORKER].target)
    with pytest.raises(ab.errors.StateLostError, match="'own' has no value"):
        session.run(number)
    other.close()
    ab.Session.reset(containers=["first of a reset", "second of a reset", "another name for this client's"])


def test_a_reset_ends_steps_that_run(graph: ab.Graph, session: ab.Session, running: Running):
    with ab.device(PS):
        element = ab.queues.FIFOQueue(3, "int32", shapes=(), name="waited for").dequeue()
    found: list[Any] = []

    def wait() -> None:
        try:
            session.run(element)
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    session.program(element)
    thread.start()
    until(lambda: ab.distribute.status(running[PS].target).held["running"])
    ab.Session.reset(running[WORKER].target)
    thread.join(PATIENCE)
    assert isinstance(found[0], (ab.errors.StateLostError, ab.errors.OutOfRangeError)), found


def test_a_reset_names_tasks_that_do_not_answer(graph: ab.Graph):
    with tasks() as running:
        running[PS].kill()
        cluster = {"ps": [running[PS].address], "worker": ["localhost:0"]}
        config = ab.distribute.ServerConfig(connect_timeout=0.2)
        with ab.distribute.Server(cluster, "worker", 0, config=config) as server:
            with pytest.raises(ab.errors.TaskFailedError) as caught:
                ab.Session.reset(server.target)
            with pytest.raises(TypeError, match="give a list"):
                ab.Session.reset(server.target, "a name")
            with pytest.raises(TypeError, match=r"containers=\[3\]: expected the names of containers"):
                ab.Session.reset(server.target, [3])  # type: ignore[list-item]
    assert caught.value.task == PS
