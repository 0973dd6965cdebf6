"""Python functions in graphs over tasks: found by their names in the task that calls them."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.members import addresses
from shared.registered_functions import ends, process, ranks, slope, squares
from shared.tasks import PATIENCE, TOKEN, TaskProcess

import anabranch as ab
from anabranch.distribute import Server
from anabranch.engine.ops.registered import register_function

pytestmark = pytest.mark.xdist_group("tasks")
TESTS = Path(__file__).parent.parent
PS, OTHER = "/job:ps/task:0", "/job:ps/task:1"


@pytest.fixture(scope="module")
def cluster() -> Generator[TaskProcess]:
    """Two tasks, of which the first alone, the master, has the functions."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(TESTS))
    other = TaskProcess({"ps": ["localhost:1", "localhost:0"]}, "ps", 1)
    module = ("--import", "shared.registered_functions")
    master = TaskProcess({"ps": ["localhost:0", other.address]}, "ps", 0, *module)
    yield master
    patch.undo()
    master.end()
    other.end()


@pytest.fixture
def session(graph: ab.Graph, cluster: TaskProcess) -> Generator[ab.Session]:
    made = ab.Session(graph, target=cluster.target)
    yield made
    made.close()


def test_a_registered_function_runs_in_its_task(session: ab.Session, cluster: TaskProcess):
    x = ab.placeholder((None,), "float32", "x")
    with ab.device(OTHER):
        doubled = x * 2.0
    with ab.device(PS):
        y = ab.ops.numpy_function(ranks, doubled, "int64", stateful=False, shape=(None,))
        where = ab.ops.numpy_function(process, [], "int64", shape=())
    with ab.device(OTHER):
        z = y + 1
    found, pid = session.run([z, where], {x: [3.0, 1.0, 2.0]})
    assert found.tolist() == [3, 1, 2]
    assert pid == cluster.pid


def test_gradients_and_loops_call_it_as_well(session: ab.Session):
    x = ab.placeholder((2,), "float32", "x")
    with ab.device(PS):
        y = ab.ops.numpy_function(squares, x, "float32", stateful=False, shape=(2,), grad=slope)
        (gradient,) = ab.gradients(ab.ops.sum(y), [x])

        def body(i: ab.Tensor, h: ab.Tensor) -> tuple[ab.Tensor, ab.Tensor]:
            return i + 1, ab.ops.numpy_function(squares, h, "float32", shape=(2,))

        last = ab.while_loop(lambda i, h: i < 3, body, (0, x))[1]
    value, slopes = session.run([last, gradient], {x: [1.0, 1.5]})
    np.testing.assert_array_equal(slopes, [2, 3])
    np.testing.assert_allclose(value, np.array([1.0, 1.5]) ** 8, rtol=1e-6)


def test_what_a_task_has_computed_leaves_while_it_computes_more(graph: ab.Graph):
    """Otherwise tasks of a pipeline, whose kernels take milliseconds, would compute one after the other."""
    second_has_begun, calls = threading.Event(), itertools.count(1)

    @register_function("first of a pipeline")
    def first(value: Any) -> Any:
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            pass
        if next(calls) == 20:
            assert second_has_begun.wait(PATIENCE / 10), "nothing has left the task that computes"
        return value

    @register_function("second of a pipeline")
    def second(value: Any) -> Any:
        second_has_begun.set()
        return value

    def on(task: str, function: Any, value: Any) -> Any:
        with ab.device(task):
            return ab.ops.numpy_function(function, value + 1.0, "float32", stateful=False, shape=())

    def body(i: Any, one: Any, other: Any) -> Any:
        one = on(PS, first, one)
        return i + 1, one, other + on(OTHER, second, one)

    cluster = {"ps": addresses(2)}
    with Server(cluster, "ps", 0, token=TOKEN) as server, Server(cluster, "ps", 1, token=TOKEN):
        with ab.device(PS):
            found = ab.while_loop(lambda i, *_: i < 40, body, (0, 0.0, 0.0), parallel_iterations=32)
        with ab.Session(graph, target=server.target) as session:
            assert [float(each) for each in session.run(list(found))] == [40, 40, sum(range(2, 42))]


def test_gradients_that_the_user_writes_are_computed_in_tasks(session: ab.Session):
    """Tasks get the operations that the gradient function has built, not the function; so do those of `remat`."""
    x = ab.placeholder((2,), "float32", "x")

    @ab.custom_gradient
    def cubed(value: ab.Tensor) -> Any:
        return value**3, lambda upstream: upstream * value

    with ab.device(PS):
        again = ab.remat(lambda value: ab.ops.tanh(ab.ops.tanh(value)))(cubed(x))
    with ab.device(OTHER):
        y = ab.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, cubed(h)), (0, again))[1]
        (gradient,) = ab.gradients(ab.ops.sum(y), [x])
    given = np.array([0.5, 1.5])
    value, found = session.run([y, gradient], {x: given})
    inner = np.tanh(given**3)
    outer = np.tanh(inner)
    np.testing.assert_allclose(value, outer**9, rtol=1e-5)
    np.testing.assert_allclose(found, outer**3 * outer * (1 - outer**2) * (1 - inner**2) * given, rtol=1e-5)


def test_a_task_without_the_function_is_named_with_operation_and_line(session: ab.Session):
    with ab.device(OTHER):
        y = ab.ops.numpy_function(ranks, [3.0, 1.0], "int64", name="ranked")
    place = re.escape(f"{Path(__file__).name}:{y.operation.location[1]}")
    with pytest.raises(LookupError, match=f"'ranked', defined at .*{place}.*is on {OTHER} and calls .*'ranks of a"):
        session.run(y)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (0, r"'ends of a test' raised SystemExit\(3\), by which it can't end the process"),
        (1, r"'ends of a test' raised KeyboardInterrupt\(\)"),
        (2, r"'ends of a test' raised BaseException\(base\)"),
        (3, "TextlessError: its text can't be read: ValueError"),
    ],
)
def test_a_function_that_ends_a_process_ends_its_step_alone(session: ab.Session, how: int, message: str):
    with ab.device(PS):
        y = ab.ops.numpy_function(ends, [how], "float32", name="ended")
        there = ab.constant(1.0) + 1.0
    with pytest.raises(RuntimeError, match=message) as caught:
        session.run(y)
    assert any("In operation 'ended'" in note for note in caught.value.__notes__)
    assert session.run(there) == 2


def test_a_function_without_a_name_does_not_leave_the_client(session: ab.Session):
    with ab.device(PS):
        y = ab.ops.numpy_function(lambda: np.float32(1), [], "float32")
    with pytest.raises(ValueError, match=r"can't be saved: its attribute 'function' holds a function, .*register the"):
        session.run(y)


def test_saved_graphs_keep_the_name(graph: ab.Graph, tmp_path: Path):
    x = ab.placeholder((None,), "float32", "x")
    ab.ops.numpy_function(ranks, x, "int64", shape=(None,), name="ranked")
    graph.save(tmp_path / "graph.npz")
    loaded = ab.load_graph(tmp_path / "graph.npz")
    assert ab.Session(loaded).run("ranked:0", {"x:0": [3.0, 1.0]}).tolist() == [1, 0]


def test_names_belong_to_one_function_each():
    register_function("ranks of a test")(ranks)
    with pytest.raises(ValueError, match=r"registered_functions\.ranks has that name already"):
        register_function("ranks of a test")(squares)
    with pytest.raises(TypeError, match="takes a name"):
        register_function(ranks)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a function"):
        register_function("three")(3)  # type: ignore[type-var]
