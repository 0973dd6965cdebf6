"""Queues as operations and from plain Python: values and structures, order, what does not fit, threads that wait."""

import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.waiting import PATIENCE, Waiting, wait_until

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.common.deadlines import deadline, seconds_left
from anabranch.engine.control_flow import cond, while_loop
from anabranch.engine.graph import Graph, Tensor, Variable
from anabranch.engine.graph.value import Value
from anabranch.engine.queues import (
    CancelledError,
    DeadlineExceededError,
    FIFOQueue,
    OutOfRangeError,
    PaddingFIFOQueue,
    PriorityQueue,
    RandomShuffleQueue,
)
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program
from anabranch.engine.saving import load_graph
from anabranch.engine.session import Session, explain, function, placeholder


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    with deadline(PATIENCE):  # what should not wait at all fails instead of hanging
        yield


@pytest.fixture
def graph() -> Iterator[Graph]:
    with Graph().as_default() as graph:
        yield graph


def run(road: str, graph: Graph, fetches: list[Any]) -> list[Any]:
    """The fetches, by one of the ways to run a graph."""
    if road == "interpreter":
        return Interpreter().run(graph, fetches, {})
    if road == "exact program":
        tensors = iter(Program(graph, fetches, [], exact=True)())
        return [next(tensors) if isinstance(fetch, Tensor) else None for fetch in fetches]
    return Session(graph).run(fetches)


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("road", ["interpreter", "exact program", "session"])
def test_operations_run_in_program_order(road: str, graph: Graph):
    queue = FIFOQueue(10, "float32", ())
    fetches = [queue.enqueue(1.0), queue.enqueue_many([[2, 3]]), queue.dequeue(), queue.size(), queue.dequeue_many(2)]

    first, second, one, size, rest = run(road, graph, [*fetches])

    assert (first, second, one, size) == (None, None, 1.0, 2)
    assert (one.dtype, size.dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(rest, np.array([2, 3], "float32"))


def test_from_plain_python_everything_happens_at_once():
    queue = FIFOQueue(10, ["int32", "string"], [(2,), ()])

    assert queue.enqueue(([1, 2], "a")) is None
    queue.enqueue_many(([[3, 4], [5, 6]], ["b", "c"]))

    assert queue.size() == 3
    numbers, text = queue.dequeue()
    np.testing.assert_array_equal(numbers, np.array([1, 2], "int32"))
    assert all(isinstance(part, Value) for part in (numbers, text))
    assert text.numpy() == "a"
    numbers, texts = queue.dequeue_many(2)
    assert (numbers.numpy().tolist(), texts.numpy().tolist()) == ([[3, 4], [5, 6]], ["b", "c"])
    assert not queue.is_closed()
    queue.close()
    assert queue.is_closed()


def test_a_symbol_asks_for_an_operation_anywhere():
    queue = FIFOQueue(10, ["float32", "float32"], [(), ()])
    variable = Variable(4.0)
    with Graph().as_default():
        x = placeholder((), "float32")
    operation = queue.enqueue([variable, x])
    assert queue.size() == 0

    variable.assign(5.0)  # which the operation reads when it runs
    Session(operation.graph).run(operation, {x: 1.0})

    assert queue.dequeue() == [5.0, 1.0]


def test_values_and_variables_go_in_at_once():
    queue = FIFOQueue(10, "float32", ())
    variable = Variable(4.0)
    assert queue.enqueue(variable) is None
    assert queue.enqueue_many(ops.stack([variable * 2, variable * 3])) is None
    variable.assign(0.0)

    assert queue.size() == 3
    assert queue.dequeue() == 4.0
    assert queue.dequeue_many(ops.convert_to_tensor(2)).tolist() == [8, 12]


def test_names_make_dicts(graph: Graph):
    queue = FIFOQueue(10, ["int32", "bool"], names=["count", "is_last"])
    fill = queue.enqueue({"is_last": True, "count": 3})

    _, found = Session().run([fill, queue.dequeue()])

    assert found == {"count": 3, "is_last": True}
    assert queue.names == ["count", "is_last"]


def test_strings_go_through_steps(graph: Graph):
    queue = FIFOQueue(10, "string", ())
    fill = queue.enqueue_many([["a", "bä", ""]])

    _, one, rest = Session().run([fill, queue.dequeue(), queue.dequeue_many(2)])

    assert (one, rest.tolist()) == ("a", ["bä", ""])


def test_what_was_enqueued_is_a_copy(graph: Graph):
    queue = FIFOQueue(10, "float32", (2,))
    given, variable = np.ones(2, "float32"), Variable([1.0, 1.0])
    x = placeholder((2,), "float32")
    fill = queue.enqueue(x), queue.enqueue(variable), queue.enqueue_many([ops.stack([x, x])])
    changed = variable.assign_add([5.0, 5.0])
    Session().run([*fill, changed], {x: given})
    given[:] = 9

    element = queue.take(4)

    assert [value.tolist() for (value,) in element] == [[1, 1]] * 4


def test_static_shapes_are_known(graph: Graph):
    n = placeholder((), "int32")
    queue = FIFOQueue(10, ["int32", "float32"], [(), (2, 3)])

    assert [str(t.spec) for t in queue.dequeue()] == ["int32[]", "float32[2,3]"]
    assert [str(t.spec) for t in queue.dequeue_many(4)] == ["int32[4]", "float32[4,2,3]"]
    assert [str(t.spec) for t in queue.dequeue_many(n)] == ["int32[?]", "float32[?,2,3]"]
    assert [str(t.spec) for t in queue.dequeue_up_to(4)] == ["int32[?]", "float32[?,2,3]"]
    assert str(FIFOQueue(1, "int32").dequeue().spec) == "int32[...]"
    assert str(PaddingFIFOQueue(1, "int32", (None, 2)).dequeue_many(3).spec) == "int32[3,?,2]"


def test_the_number_may_be_a_tensor(graph: Graph):
    queue, n = FIFOQueue(10, "int32", (2,)), placeholder((), "int64")
    fill, batch = queue.enqueue_many([np.arange(6, dtype="int32").reshape(3, 2)]), queue.dequeue_many(n)
    session = Session()

    assert session.run([fill, batch], {n: 2})[1].tolist() == [[0, 1], [2, 3]]
    assert session.run(batch, {n: 0}).shape == (0, 2)
    with pytest.raises(ValueError, match="must not be negative; got -1"):
        session.run(batch, {n: -1})


def test_elements_are_padded_to_the_largest():
    queue = PaddingFIFOQueue(10, ["int32", "string", "bool"], [(None, 2), (None,), ()])
    for size in (1, 0, 2):
        queue.enqueue([np.full((size, 2), size), ["x"] * size, size > 0])

    numbers, texts, flags = queue.dequeue_many(3)

    assert numbers.tolist() == [[[1, 1], [0, 0]], [[0, 0], [0, 0]], [[2, 2], [2, 2]]]
    assert texts.tolist() == [["x", ""], ["", ""], ["x", "x"]]
    assert flags.tolist() == [True, False, True]
    assert queue.dequeue_many(0)[0].shape == (0, 0, 2)


def test_elements_without_shapes_may_differ():
    queue = FIFOQueue(10, "int32")
    for value in (3, [1, 2], [[4]]):
        queue.enqueue([value])

    assert [np.shape(queue.dequeue()) for _ in range(3)] == [(), (2,), (1, 1)]
    with pytest.raises(ValueError, match=r"FIFOQueue 'fifo_queue': elements of unknown shapes can't be stacked\. Give"):
        queue.dequeue_many(2)


def test_one_seed_gives_one_order_and_all_elements():
    orders: list[list[int]] = []
    for seed in (1, 1, 2):
        queue = RandomShuffleQueue(-1, 0, "int32", (), seed=seed)
        queue.enqueue_many([np.arange(20)])
        orders.append(queue.dequeue_many(20).tolist())

    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(20)) != orders[0]


def test_priorities_go_first(graph: Graph):
    queue = PriorityQueue(10, "string", (), names=["priority", "job"])
    fill = queue.enqueue_many({"priority": [2, -1, 2], "job": ["b", "a", "c"]})

    _, found = Session().run([fill, queue.dequeue_many(3)])

    assert found["priority"].dtype == np.int64
    assert (found["priority"].tolist(), found["job"].tolist()) == ([-1, 2, 2], ["a", "b", "c"])


def test_a_shared_name_makes_one_queue():
    first = FIFOQueue(10, "int32", (), shared_name="test_queues shared")
    second = FIFOQueue(10, "int32", (), shared_name="test_queues shared")
    first.enqueue(7)

    assert second.dequeue() == 7
    with pytest.raises(ValueError, match="there is a queue with shared_name='test_queues shared' of another type, cap"):
        FIFOQueue(11, "int32", (), shared_name="test_queues shared")


def test_queues_go_when_nothing_refers_to_them():
    queue = FIFOQueue(10, "float32", (1000,), shared_name="test_queues short-lived")
    queue.enqueue(np.zeros(1000, "float32"))
    gone = weakref.ref(queue)
    del queue
    gc.collect()

    assert gone() is None
    assert FIFOQueue(3, "int32", (), shared_name="test_queues short-lived").size() == 0


# --- control flow, functions, gradients -----------------------------------------------------------------------------


def test_loops_and_branches_use_queues(graph: Graph):
    queue, odd = FIFOQueue(10, "int32", ()), FIFOQueue(10, "int32", ())

    def body(i: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        value = queue.dequeue()
        cond(ops.equal(value % 2, 1), lambda: odd.enqueue(value), lambda: None)
        return i + 1, total + value

    fill = queue.enqueue_many([[1, 2, 3, 4, 5]])
    _, total = while_loop(lambda i, _: i < 4, body, (0, 0))
    session = Session()

    assert session.run([fill, total])[1] == 10
    assert odd.take(2) == [(1,), (3,)]
    assert queue.take(1) == [(5,)]


def test_functions_use_queues():
    queue = FIFOQueue(10, "float32", ())

    @function
    def double(x: Any) -> Any:
        queue.enqueue(x * 2)
        return queue.size()

    assert [int(double(np.float32(value))) for value in (1, 2)] == [1, 2]
    assert queue.dequeue_many(2).tolist() == [2, 4]


def test_nothing_flows_back_through_a_queue(graph: Graph):
    queue, weight = FIFOQueue(10, "float32", ()), Variable(3.0)
    fill = queue.enqueue(weight * 5.0)
    taken = queue.dequeue()
    slope, through = gradients(taken * weight, [weight])[0], gradients(taken * 1.0, [weight])[0]

    assert Session().run([fill, slope])[1] == 15.0
    assert through is None


def test_a_dequeue_is_not_dragged_in_by_order(graph: Graph):
    queue = FIFOQueue(10, "int32", ())
    queue.dequeue()
    size = queue.size()

    assert Session().run(size) == 0
    assert "dequeue" not in explain(size)


def test_a_queue_is_saved_with_a_graph_without_its_elements(graph: Graph, tmp_path: Path):
    queue = FIFOQueue(10, ["int32", "string"], [(), ()], names=["n", "text"])
    queue.dequeue()
    queue.enqueue({"n": 3, "text": "x"})
    queue.put([np.int32(1), np.asarray("kept here", "T")], False)
    graph.save(tmp_path / "graph")

    loaded = load_graph(tmp_path / "graph")
    dequeue, enqueue = loaded.operations[0], loaded.operations[-1]
    Session(loaded).run(enqueue)
    assert Session(loaded).run(list(dequeue.outputs)) == [3, "x"]
    assert queue.statistics().size == 1


# --- what does not fit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: FIFOQueue(0, "int32"), r"FIFOQueue 'fifo_queue': capacity must be at least 1, or -1 for a queue with"),
        (lambda: FIFOQueue(2.5, "int32"), "capacity must be at least 1.*got 2.5"),  # type: ignore[arg-type]
        (lambda: FIFOQueue(1, []), "dtypes is empty"),
        (lambda: FIFOQueue(1, ["int32", "bool"], [()]), "2 dtypes and 1 shapes were given; give one shape for each"),
        (lambda: FIFOQueue(1, "int32", (None,)), r"shape \[\?\] is not fully known; use PaddingFIFOQueue, or leave"),
        (lambda: PaddingFIFOQueue(1, ["int32"], [None]), r"shape \[\.\.\.\] is not fully known; give the rank"),
        (lambda: PaddingFIFOQueue(1, "int32", None), "PaddingFIFOQueue 'padding_fifo_queue': shapes are needed"),
        (lambda: FIFOQueue(1, ["int32"] * 2, names=["a", "a"]), r"names must be 2 different strings.*\['a', 'a'\]"),
        (lambda: FIFOQueue(1, ["int32"] * 2, names=["a"]), "names must be 2 different strings"),
        (lambda: RandomShuffleQueue(2, 2, "int32"), "min_after_dequeue must be between 0 and capacity - 1.*=2, cap"),
        (lambda: PriorityQueue(1, []), "dtypes is empty"),
    ],
)
def test_queues_that_cannot_be(make: Callable[[], Any], match: str):
    with pytest.raises(ValueError, match=match):
        make()


UNFIT: list[tuple[Any, Any, type[Exception], str]] = [
    (["int32", "bool"], [1], ValueError, r"FIFOQueue 'q' takes 2 components; got 1 values\.$"),
    ("int32", [1, 2], ValueError, r"takes 1 component; got 2 values\. A list or tuple holds one value a component: wr"),
    ("int32", {"a": 1}, ValueError, "'q' has no names: give its components as a tuple, not as a dict"),
    ("int32", 1.5, TypeError, r"component 0 is int32; got float32\. Convert it first"),
    ("int32", "1", TypeError, "component 0 is int32; got string"),
    ("string", 1, TypeError, "component 0 is string; got int32"),
    ("uint8", 256, ValueError, "component 0 is uint8, which can't hold 256"),
    ("uint8", np.int64(-1), ValueError, "component 0 is uint8, which can't hold -1"),
]


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(("dtypes", "value", "error", "match"), UNFIT)
def test_values_that_do_not_fit(dtypes: Any, value: Any, error: type[Exception], match: str, in_graph: bool):
    queue = FIFOQueue(3, dtypes, name="q")
    with Graph().as_default() if in_graph else deadline(None), pytest.raises(error, match=match):
        queue.enqueue(value)
    assert queue.statistics().enqueued == 0


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ([1, 2, 3], r"component 0 has shape \[2\]; got \[3\]"),
        (5, r"component 0 has shape \[2\]; got \[\]"),
    ],
)
def test_shapes_that_do_not_fit(value: Any, match: str):
    queue = FIFOQueue(3, "int32", (2,))
    for _ in range(2):
        with pytest.raises(ValueError, match=match):
            queue.enqueue([value])
        with Graph().as_default(), pytest.raises(ValueError, match=match):
            queue.enqueue([value])


def test_shapes_that_are_unknown_are_checked_when_they_come(graph: Graph):
    queue, x = FIFOQueue(3, "float32", (2,)), placeholder(None, "float32")
    one, many = queue.enqueue(x), queue.enqueue_many(x)
    session = Session()

    with pytest.raises(ValueError, match=r"component 0 has shape \[2\]; got \[1,2\]"):
        session.run(one, {x: [[1.0, 2.0]]})
    with pytest.raises(ValueError, match=r"component 0 has shape \[\?,2\]; got \[2\]"):
        session.run(many, {x: [1.0, 2.0]})
    with pytest.raises(ValueError, match=r"got a scalar for component 0\. enqueue takes a single element"):
        session.run(many, {x: 1.0})
    assert queue.statistics().enqueued == 0


def test_a_tensor_of_another_dtype_is_not_cast(graph: Graph):
    queue = FIFOQueue(3, ["int32", "float32"], names=["i", "x"])

    with pytest.raises(
        TypeError, match=r"component 'x' is float32; got int32\. Convert it first, for instance with ops"
    ):
        queue.enqueue({"i": 1, "x": placeholder((), "int32")})
    with pytest.raises(ValueError, match=r"takes a dict with the keys \['i', 'x'\]; got the keys \['i'\]"):
        queue.enqueue({"i": 1})
    with pytest.raises(ValueError, match=r"has names: give a dict with the keys \['i', 'x'\]; got tuple"):
        queue.enqueue((1, 2))


def test_rows_of_all_components_are_as_many():
    queue = FIFOQueue(3, ["int32", "int32"])
    with pytest.raises(ValueError, match=r"enqueue_many got components with different numbers of elements: \[2, 3\]"):
        queue.enqueue_many(([1, 2], [1, 2, 3]))
    with Graph().as_default(), pytest.raises(ValueError, match=r"different numbers of elements: \[2, 3\]"):
        queue.enqueue_many(([1, 2], [1, 2, 3]))
    with Graph().as_default(), pytest.raises(ValueError, match="got a scalar for component 1"):
        queue.enqueue_many(([1, 2], 3))


def test_a_priority_is_a_scalar():
    queue = PriorityQueue(3, "string")
    with pytest.raises(ValueError, match=r"priorities are int64 scalars; got shape \[2\]"):
        queue.enqueue(([1, 2], "a"))
    with pytest.raises(ValueError, match=r"priorities are int64 scalars; got shape \[1\]"):
        queue.enqueue_many(([[1], [2]], ["a", "b"]))


def test_numbers_of_elements_that_cannot_be(graph: Graph):
    queue = FIFOQueue(3, "int32", ())
    with pytest.raises(ValueError, match="n must not be negative; got -2"):
        queue.dequeue_many(-2)
    with pytest.raises(TypeError, match=r"takes the number of elements as an integer scalar; got float32\[\]"):
        queue.dequeue_many(2.0)


def test_vectorising_is_refused(graph: Graph):
    from anabranch import vectorized_map

    queue = FIFOQueue(3, "int32", ())

    def push(x: Any) -> Any:
        queue.enqueue(ops.sum(x))
        return x

    with pytest.raises(ValueError, match="writes <FIFOQueue 'fifo_queue'>, once for each example"):
        vectorized_map(push, ops.convert_to_tensor([[1], [2]]), fallback_to_while_loop=False)


# --- ends -----------------------------------------------------------------------------------------------------------


def test_closing_in_a_step(graph: Graph):
    queue = FIFOQueue(10, "int32", ())
    before, closed, after = queue.is_closed(), queue.close(), queue.is_closed()
    fill, take = queue.enqueue(1), queue.dequeue()
    session = Session()

    assert session.run([before, closed, after]) == [False, None, True]
    with pytest.raises(CancelledError, match="Queue 'fifo_queue' is closed") as cancelled:
        session.run(fill)
    with pytest.raises(OutOfRangeError, match="1 asked for, 0 left") as over:
        session.run(take)
    assert "In operation 'fifo_queue/enqueue' (queue_enqueue)" in cancelled.value.__notes__[0]
    assert "In operation 'fifo_queue/dequeue' (queue_dequeue)" in over.value.__notes__[0]


def test_reading_to_the_end(graph: Graph):
    queue, batches = FIFOQueue(10, "int32", ()), []
    queue.put([np.arange(5, dtype="int32")], many=True)
    queue.shut(False)
    session, batch = Session(), queue.dequeue_up_to(2)

    with pytest.raises(OutOfRangeError):  # noqa: PT012
        while True:
            batches.append(session.run(batch).tolist())

    assert batches == [[0, 1], [2, 3], [4]]


# --- threads --------------------------------------------------------------------------------------------------------


def test_a_step_waits_for_another_thread(graph: Graph):
    queue = FIFOQueue(10, "int32", ())
    session, pair = Session(), queue.dequeue_many(2)
    waiting = Waiting(lambda: session.run(pair))
    wait_until(queue, pending_dequeues=1)

    queue.put([np.array([4, 5], "int32")], many=True)

    assert waiting.result().tolist() == [4, 5]


def test_closing_ends_steps_that_wait(graph: Graph):
    empty, full = FIFOQueue(1, "int32", (), name="empty"), FIFOQueue(1, "int32", (), name="full")
    session, take, fill = Session(), empty.dequeue(), full.enqueue(1)
    session.run(fill)
    taking, filling = Waiting(lambda: session.run(take)), Waiting(lambda: session.run(fill))
    wait_until(empty, pending_dequeues=1)
    wait_until(full, pending_enqueues=1)
    session.run([empty.close(), full.close(cancel_pending_enqueues=True)])

    with pytest.raises(OutOfRangeError, match="'empty'"):
        taking.result()
    with pytest.raises(CancelledError, match="'full' was closed with cancel_pending_enqueues=True while an enqueue wa"):
        filling.result()
    assert full.statistics()._replace(capacity=None) == (1, None, 1, 0, 0, 0, 1, True)


@pytest.mark.parametrize("kind", ["fifo", "shuffle"])
def test_many_producers_and_consumers(kind: str):
    make = {"fifo": lambda: FIFOQueue(3, "int32", ()), "shuffle": lambda: RandomShuffleQueue(4, 2, "int32", (), seed=1)}
    queue, producers, consumers, count = make[kind](), 4, 4, 50
    with Graph().as_default() as graph:
        x = placeholder((), "int32")
        fill, take = queue.enqueue(x), queue.dequeue()
    session, together = Session(graph), threading.Barrier(producers + consumers, timeout=PATIENCE)

    def produce(number: int) -> None:
        together.wait()
        for value in range(number * count, number * count + count):
            session.run(fill, {x: value})

    def consume() -> list[int]:
        together.wait()
        found: list[int] = []
        try:
            while True:
                found.append(int(session.run(take)))
        except OutOfRangeError:
            return found

    producing = [Waiting(lambda number=number: produce(number)) for number in range(producers)]
    consuming = [Waiting(consume) for _ in range(consumers)]
    for thread in producing:
        thread.result()
    queue.close()
    found = [thread.result() for thread in consuming]

    assert sorted(value for values in found for value in values) == list(range(producers * count))
    if kind == "fifo":  # of one producer, each consumer sees the values in their order
        assert all(
            [v for v in values if v // count == number] == sorted(v for v in values if v // count == number)
            for values in found
            for number in range(producers)
        )
    assert queue.statistics()[2:7] == (200, 200, 0, 0, consumers)


# --- timeouts -------------------------------------------------------------------------------------------------------


def test_a_step_does_not_wait_longer_than_it_may(graph: Graph):
    queue = FIFOQueue(3, "int32", (), name="letters")
    queue.put([np.arange(2, dtype="int32")], many=True)
    session, take, fill = Session(), queue.dequeue_many(3), queue.enqueue_many([[1, 2]])

    with pytest.raises(DeadlineExceededError) as late:
        session.run(take, timeout=0)
    assert str(late.value).partition("waiting ")[2].partition(" s: ")[2] == (
        "dequeue of 3 elements from queue 'letters', which is open and holds 2 (capacity 3). Enqueue elsewhere, close "
        "the queue, or give a longer timeout."
    )
    assert "In operation 'letters/dequeue_many' (queue_dequeue_many)" in late.value.__notes__[0]
    with pytest.raises(
        DeadlineExceededError, match=r"enqueue to queue 'letters', .* holds 3 .*; 1 of 2 elements found"
    ):
        session.run(fill, timeout=0)
    assert queue.take(3) == [(0,), (1,), (1,)]
    assert queue.statistics()[4:7] == (0, 0, 2)


def test_a_step_that_need_not_wait_is_not_hindered(graph: Graph):
    queue = FIFOQueue(3, "int32", ())

    assert Session().run([queue.enqueue(1), queue.dequeue()], timeout=0)[1] == 1


def test_a_served_step_returns_before_its_timeout(graph: Graph):
    queue = FIFOQueue(3, "int32", ())
    session, take = Session(), queue.dequeue()
    waiting = Waiting(lambda: session.run(take, timeout=PATIENCE))
    wait_until(queue, pending_dequeues=1)
    queue.put([np.int32(5)], many=False)

    assert waiting.result() == 5


def test_deadlines_nest_and_end():
    def look() -> None:
        assert seconds_left() is None
        with deadline(100.0):
            with deadline(50.0):
                assert 0 < (seconds_left() or 0) <= 50
            with deadline(200.0):
                assert 50 < (seconds_left() or 0) <= 100
            with deadline(None):
                assert 50 < (seconds_left() or 0) <= 100
            assert Waiting(seconds_left).result() is None
        with deadline(0.0):
            assert seconds_left() == 0
        assert seconds_left() is None

    Waiting(look).result()
    for refused in (-1, float("nan")):
        told = f"timeout must be a number of seconds that is not negative, or None; got {refused}"
        with pytest.raises(ValueError, match=re.escape(told)):
            Session(Graph()).run([], timeout=refused)
    with pytest.raises(TypeError, match=r"timeout must be a number of seconds .*; got '1'\."):
        Session(Graph()).run([], timeout="1")  # type: ignore[arg-type]


def test_an_interrupt_withdraws_what_waits(monkeypatch: pytest.MonkeyPatch):
    queue = FIFOQueue(3, "int32", ())

    def interrupted(self: threading.Event, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Event, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.dequeue()

    assert queue.statistics().pending_dequeues == 0
    queue.enqueue(1)
    assert queue.dequeue() == 1
