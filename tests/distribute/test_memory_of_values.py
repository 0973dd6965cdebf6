"""The memory of large values that cross: computed where the other task can read it, and taken over by variables."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from shared.tasks import PS, WORKER
from shared.waiting import PATIENCE, until

import anabranch as ab
from anabranch.distribute.transport.slabs import IS_AVAILABLE
from anabranch.engine.codegen.host.memory import kept_bytes, release_memory
from anabranch.engine.codegen.llvm.library import library

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="needs Linux")
MEGABYTE = 1 << 20
LARGE = 2_000_000  # elements, of 8 MB: a slab of its own


class Cluster:
    """A ps task, of which this process holds a variable, and a worker.

    Attributes:
        held: the variable, as this process sees it.
        add: runs a step in which the worker reads the variable, adds one, and assigns the sum.
    """

    def __init__(self, stack: contextlib.ExitStack, size: int, **config: Any) -> None:
        settings = ab.distribute.ServerConfig(**config)
        self.ps = stack.enter_context(ab.distribute.Server({"ps": ["localhost:0"]}, "ps", 0, config=settings))
        spec = {"ps": [self.ps.target[7:]], "worker": ["localhost:0"]}
        self.worker = stack.enter_context(ab.distribute.Server(spec, "worker", 0, config=settings))
        self.held = ab.Variable(np.arange(size, dtype="float32"), name="w")
        self.ps.task.hold("", "w", self.held)
        with ab.Graph().as_default() as graph:
            with ab.device(PS):
                w = ab.Variable(np.zeros(size, "float32"), name="w")
            with ab.device(WORKER):
                more = w.value + 1.0
            done = w.assign(more).operation
            with ab.device(PS):
                first = w.value[:4]
        self.session = stack.enter_context(ab.Session(graph, target=self.worker.target))
        self.add = self.session.make_callable(done, [])
        self.first = self.session.make_callable(first, [])

    @property
    def value(self) -> Any:
        return self.held.stored_value()


@pytest.fixture
def stack() -> Generator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


@pytest.mark.parametrize(
    ("size", "plane", "is_shared"),
    [
        (LARGE, "shared_memory", True),
        (50_000, "shared_memory", False),  # it shares its slab with other values
        (LARGE, "unix", False),
        (LARGE, "grpc", False),
    ],
)
def test_a_variable_takes_a_received_value_over(stack: contextlib.ExitStack, size: int, plane: str, is_shared: bool):
    cluster = Cluster(stack, size, plane=plane)
    seen: list[Any] = []
    for count in range(1, 5):
        cluster.add()
        assert cluster.value.flags.writeable == (not is_shared)
        np.testing.assert_array_equal(cluster.value, np.arange(size) + count)
        seen.append(cluster.value)
    for count, value in enumerate(seen, 1):  # none was written over
        np.testing.assert_array_equal(value, np.arange(size) + count)


def test_slabs_of_values_that_variables_had_are_used_again(stack: contextlib.ExitStack):
    cluster = Cluster(stack, LARGE, plane="shared_memory")
    for _ in range(20):
        cluster.add()
    (connection,) = [each for each in cluster.ps.status().connections if each.task == WORKER and each.mapped]
    assert connection.mapped <= 3
    assert cluster.first().tolist() == [20, 21, 22, 23]


def test_variables_leave_half_of_the_shared_memory_to_values_under_way(stack: contextlib.ExitStack):
    cluster = Cluster(stack, LARGE, plane="shared_memory", shared_memory_bytes=15 * MEGABYTE)
    for _ in range(3):
        cluster.add()
        assert cluster.value.flags.writeable  # a copy
    assert cluster.first().tolist() == [3, 4, 5, 6]


def test_a_step_of_the_same_process_writes_a_variable_that_was_received(stack: contextlib.ExitStack):
    """Test the steps that write in the variable's memory, all of it and some rows."""
    cluster = Cluster(stack, LARGE, plane="shared_memory")
    with ab.Graph().as_default() as graph:
        more = cluster.held.assign_add(np.ones(LARGE, "float32")).operation
        rows = cluster.held.scatter_sub(ab.IndexedSlices(np.ones(2, "float32"), np.array([0, 3]), (LARGE,)))
    with ab.Session(graph) as session:
        for _ in range(2):
            cluster.add()
            session.run(more)
            cluster.add()
            session.run(rows)
    assert cluster.first().tolist() == [4, 7, 8, 7]


def test_a_variable_keeps_what_came_from_a_worker_that_is_gone(stack: contextlib.ExitStack):
    cluster = Cluster(stack, LARGE, plane="shared_memory")
    cluster.add()
    assert not cluster.value.flags.writeable
    cluster.worker.stop()
    until(lambda: not [each for each in cluster.ps.status().connections if each.task == WORKER], PATIENCE)
    np.testing.assert_array_equal(cluster.value, np.arange(LARGE) + 1)


@pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
def test_the_memory_of_received_values_is_used_again(stack: contextlib.ExitStack):
    """Fresh memory costs a fault a page, in each step."""
    cluster = Cluster(stack, LARGE, plane="unix")
    cluster.add()
    release_memory()
    for _ in range(3):
        cluster.add()
    kept = kept_bytes()
    assert kept >= 4 * LARGE
    for _ in range(3):
        cluster.add()
    assert kept_bytes() == kept


# --- values of variables that other tasks read ----------------------------------------------------------------------


class Readers:
    """A ps task, of which this process holds a variable, and two workers that read it and have it changed.

    Attributes:
        held: the variable, as this process sees it.
        step: each worker reads the variable, and has a quarter of it subtracted.
    """

    def __init__(self, stack: contextlib.ExitStack, **config: Any) -> None:
        settings = ab.distribute.ServerConfig(**config)
        self.ps = stack.enter_context(ab.distribute.Server({"ps": ["localhost:0"]}, "ps", 0, config=settings))
        spec = {"ps": [self.ps.target[7:]], "worker": ["localhost:0", "localhost:0"]}
        self.second = stack.enter_context(ab.distribute.Server(spec, "worker", 1, config=settings))
        spec["worker"][1] = self.second.target[7:]
        self.first = stack.enter_context(ab.distribute.Server(spec, "worker", 0, config=settings))
        self.held = ab.Variable(np.full(LARGE, 256.0, "float32"), name="w")
        self.ps.task.hold("", "w", self.held)
        with ab.Graph().as_default() as graph:
            with ab.device(PS):
                w = ab.Variable(np.zeros(LARGE, "float32"), name="w")
            parts: list[Any] = []
            for number in range(2):
                with ab.device(f"/job:worker/task:{number}"):
                    parts.append(w.value * 0.25)
            done = [w.assign_sub(part).operation for part in parts]
        self.session = stack.enter_context(ab.Session(graph, target=self.first.target))
        self.step = self.session.make_callable(done, [])

    @property
    def value(self) -> Any:
        return self.held.stored_value()

    def connections(self) -> list[Any]:
        return [
            each for each in self.ps.status().connections if each.task.startswith("/job:worker") and each.bytes_shared
        ]


def test_what_tasks_read_of_a_variable_is_not_copied_for_them(stack: contextlib.ExitStack):
    readers = Readers(stack, plane="shared_memory")
    seen: list[Any] = []
    for count in range(1, 7):
        readers.step()
        assert not readers.value.flags.writeable  # the workers read this very memory
        assert set(readers.value.tolist()) == {256.0 * 0.5**count}
        seen.append(readers.value)
    for count, value in enumerate(seen, 1):  # none was written over
        assert (value[0], value[-1]) == (256.0 * 0.5**count,) * 2
    seen.clear()
    first = readers.connections()
    assert len(first) == 2
    assert all(each.slab_bytes <= 16 * MEGABYTE for each in first)  # what the first step has copied
    for _ in range(10):
        readers.step()
    assert [each.slab_bytes for each in readers.connections()] == [each.slab_bytes for each in first]


@pytest.mark.parametrize("config", [{"plane": "unix"}, {"plane": "shared_memory", "shared_memory_bytes": MEGABYTE}])
def test_without_room_in_shared_memory_variables_have_memory_of_their_own(
    stack: contextlib.ExitStack, config: dict[str, Any]
):
    readers = Readers(stack, **config)
    for count in range(1, 4):
        readers.step()
        assert readers.value.flags.writeable
        assert set(readers.value.tolist()) == {256.0 * 0.5**count}


def test_a_step_of_the_same_process_writes_a_variable_that_other_tasks_read(stack: contextlib.ExitStack):
    readers = Readers(stack, plane="shared_memory")
    with ab.Graph().as_default() as graph:
        more = readers.held.assign_add(np.ones(LARGE, "float32")).operation
        rows = readers.held.scatter_sub(ab.IndexedSlices(np.ones(2, "float32"), np.array([0, 3]), (LARGE,)))
    with ab.Session(graph) as session:
        for _ in range(2):
            readers.step()
            session.run(more)
            session.run(rows)
            readers.step()
            before = readers.value
            session.run(rows)
            assert before[:4].tolist() != readers.value[:4].tolist()
    assert readers.value[1:3].tolist() == [((256 * 0.5 + 1) * 0.25 + 1) * 0.5] * 2


def test_a_worker_that_is_gone_leaves_the_variable_as_it_was(stack: contextlib.ExitStack):
    readers = Readers(stack, plane="shared_memory")
    for _ in range(3):
        readers.step()
    readers.second.stop()
    until(lambda: len(readers.connections()) == 1, PATIENCE)
    assert set(readers.value.tolist()) == {32.0}


@pytest.mark.parametrize("are_apart", [False, True])
@pytest.mark.parametrize(("size", "plane"), [(100_000, None), (LARGE, "unix"), (LARGE, "shared_memory")])
def test_two_variables_of_one_value_share_no_memory(
    stack: contextlib.ExitStack, size: int, plane: str | None, are_apart: bool
):
    settings = ab.distribute.ServerConfig(plane=plane)
    ps = stack.enter_context(ab.distribute.Server({"ps": ["localhost:0"]}, "ps", 0, config=settings))
    spec = {"ps": [ps.target[7:]], "worker": ["localhost:0"]}
    worker = stack.enter_context(ab.distribute.Server(spec, "worker", 0, config=settings))
    held = [ab.Variable(np.full(size, 256.0, "float32"), name=name) for name in "vw"]
    for variable in held:
        ps.task.hold("", variable.name, variable)
    with ab.Graph().as_default() as graph:
        with ab.device(PS):
            v, w = [ab.Variable(np.zeros(size, "float32"), name=name) for name in "vw"]
        with ab.device(WORKER):
            parts = v.value * 0.25, w.value * 0.5
        with ab.device(PS):
            sum_of_both = parts[0] + parts[1]
            first = v.assign(sum_of_both).operation
        before = [first] if are_apart else []
        with ab.device(WORKER), ab.control_dependencies(before):  # then the second is assigned by another node
            back = parts[1][:1] * 2.0
        with ab.device(PS), ab.control_dependencies([back.operation]):
            second = w.assign(sum_of_both).operation
    session = stack.enter_context(ab.Session(graph, target=worker.target))
    for _ in range(2):
        session.run([first, second])
    expected = 256.0 * 0.75 * 0.75
    assert not np.shares_memory(held[0].stored_value(), held[1].stored_value())
    with ab.Graph().as_default() as own:
        more = held[0].assign_add(np.ones(size, "float32")).operation
    with ab.Session(own) as local:
        for _ in range(2):
            local.run(more)
    assert [set(variable.stored_value().tolist()) for variable in held] == [{expected + 2.0}, {expected}]
