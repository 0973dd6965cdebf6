"""Queues, accumulators and readers in steps of the dataflow machine: what waits holds neither the loop nor a thread."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.machines import as_asked, assert_nothing_left, by_name, graph_on, idle_step, latest_step, of_kind, run
from shared.waiting import PATIENCE, Waiting, wait_until

import anabranch as ab
from anabranch import ops
from anabranch.engine.common.deadlines import deadline
from anabranch.engine.graph import Symbol, Tensor
from anabranch.engine.machine import step as machine_step
from anabranch.engine.machine.program import MachineProgram, may_wait
from anabranch.engine.queues import CancelledError, DeadlineExceededError, FIFOQueue, OutOfRangeError
from anabranch.engine.queues.turns import Turns

SEEDS = (None, 0, 1, 2)


graph = graph_on(cpu=3)


def machine(fetches: Any, feeds: Sequence[Symbol] = (), **options: Any) -> MachineProgram:
    """A step in which `dequeue` is on a device of its own."""
    targets = list(fetches) if isinstance(fetches, (list, tuple)) else [fetches]
    options = {"assign": by_name({"dequeue": "cpu:1", "take_grad": "cpu:2"})} | options
    return MachineProgram(ab.get_default_graph(), targets, feeds, exact=True, **options)


def on(device: str, x: Any) -> Tensor:
    """`x`, after something that runs on `device`, so that the step spans devices."""
    with ab.device(device):
        return ops.negative(ops.negative(x))


def called(function: Callable[[Any], Any], x: Tensor) -> Tensor:
    return ops.numpy_function(function, [x], x.dtype, stateful=False, shape=x.shape)


# --- waiting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_second_dequeue_goes_on_while_the_first_waits(seed: int | None):
    first, second = FIFOQueue(2, "float32", (), name="first"), FIFOQueue(2, "float32", (), name="second")
    came = threading.Event()

    def tell(value: Any) -> Any:
        came.set()
        return value

    one = on("cpu:1", first.dequeue())
    with ab.device("cpu:2"):
        other = called(tell, second.dequeue())
    program = machine([one, other], seed=seed)
    step = Waiting(program)
    wait_until(first, pending_dequeues=1)
    second.put([np.float32(2)], many=False)
    assert came.wait(PATIENCE)  # while the first still waits
    assert first.statistics().pending_dequeues == 1
    first.put([np.float32(1)], many=False)
    assert step.result() == (1, 2)
    assert_nothing_left(latest_step(program))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("window", [1, 4])
def test_a_consumer_and_a_producer_are_steps_of_their_own(window: int, seed: int | None):
    """Both are loops over devices; the queue between them has room for one element."""
    queue = FIFOQueue(1, "float32", ())

    def make(i: Tensor, x: Tensor) -> Any:
        with ab.device("cpu:1"):
            x = x * 2.0
        queue.enqueue(x)
        return i + 1, x

    def take(i: Tensor, total: Tensor, order: Tensor) -> Any:
        x = queue.dequeue()
        with ab.device("cpu:2"):
            return i + 1, total + x, order * 10.0 + x

    produce = machine(ab.while_loop(lambda i, _: i < 6, make, (0, 0.5))[1], seed=seed, parallel_iterations=window)
    fetches = ab.while_loop(lambda i, *_: i < 6, take, (0, 0.0, 0.0))
    consume = machine(fetches, seed=seed, parallel_iterations=window)
    consumer = Waiting(consume)
    assert run(produce, []) == (32,)
    assert consumer.result() == (6, 63, 124992)  # 1, 2, 4, 8, 16, 32, in this order
    assert queue.statistics()[:1] + queue.statistics()[2:6] == (0, 6, 6, 0, 0)


def test_a_loop_of_one_device_does_not_hold_the_step():
    queue, came = FIFOQueue(2, "float32", ()), threading.Event()
    _, total = ab.while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, t + queue.dequeue()), (0, 0.0))
    with ab.device("cpu:1"):
        other = called(lambda x: (came.set(), x)[1], ops.negative(ab.constant(3.0)))
    program = machine([total, other], assign=as_asked())
    assert of_kind(program.machine, "next_iteration")
    step = Waiting(program)
    assert came.wait(PATIENCE)
    for value in (1.0, 2.0, 4.0):
        queue.put([np.float32(value)], many=False)
    assert step.result() == (7, -3)


def test_a_branch_takes_nothing_if_it_is_not_taken():
    queue, p = FIFOQueue(4, "float32", ()), ab.placeholder((), "bool", "p")
    y = on("cpu:1", ab.cond(p, lambda: queue.dequeue(), lambda: ab.constant(-1.0)))
    program = machine([y], [p])
    queue.put([np.array([5, 6], "float32")], many=True)
    assert [run(program, [np.bool_(each)])[0] for each in (True, False, True, False)] == [5, -1, 6, -1]
    assert queue.statistics().dequeued == 2


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_touches_one_queue_runs_in_program_order(seed: int | None, clusters: bool):
    queue = FIFOQueue(10, "float32", ())
    x = ab.placeholder((), "float32", "x")
    effects: list[Any] = [queue.enqueue(x), queue.enqueue(on("cpu:1", x + 1.0))]
    first = queue.dequeue()
    effects.append(queue.enqueue(on("cpu:2", first * 10.0)))
    size = queue.size()
    rest = queue.dequeue_many(2)
    program = machine([first, size, rest, *effects], [x], seed=seed, clusters=clusters)
    found = run(program, [np.float32(3)])
    assert found[:2] == (3, 2)
    assert found[2].tolist() == [4, 30]
    waiting = [node for node in of_kind(program.machine, "op") if may_wait(node)]
    assert len(waiting) == 5
    assert all(len(node.operations) == 1 for node in waiting)


def test_a_value_that_nobody_takes_is_taken_out_all_the_same():
    queue = FIFOQueue(4, ["float32", "string", "int32"], [(), (), (2,)])
    for number, name in ((1, "one"), (2, "two")):
        queue.put(
            [np.float32(number), np.array(name, np.dtypes.StringDType()), np.array([number, 0], "int32")], many=False
        )
    _, name, _ = queue.dequeue()
    program = machine([name, on("cpu:1", 1.0)])
    found = [run(program, [])[0] for _ in range(2)]
    assert [value.item() for value in found] == ["one", "two"]
    assert all(value.dtype == np.dtypes.StringDType() for value in found)
    assert queue.statistics().size == 0


# --- all of them, as on the compiled road ----------------------------------------------------------------------------


def padding(q: ab.queues.PaddingFIFOQueue, n: Tensor) -> Any:
    fill = [q.enqueue([ops.ones((k,), "int32")]) for k in (3, 1, 2)]
    return [*fill, q.dequeue_many(n), q.dequeue()]


def priorities(q: ab.queues.PriorityQueue, n: Tensor) -> Any:
    return [q.enqueue_many(([3, 1, 2], ["c", "a", "b"])), *q.dequeue_many(n), q.close(), *q.dequeue_up_to(9)]


def shuffled(q: ab.queues.RandomShuffleQueue, n: Tensor) -> Any:
    return [q.enqueue_many([ops.arange(6)]), q.dequeue_many(n), q.dequeue(), q.size()]


QUEUES: dict[str, tuple[Callable[[], Any], Callable[[Any, Tensor], Any]]] = {
    "padding": (lambda: ab.queues.PaddingFIFOQueue(5, "int32", shapes=[(None,)]), padding),
    "priority": (lambda: ab.queues.PriorityQueue(5, ["string"], [()]), priorities),
    "shuffle": (lambda: ab.queues.RandomShuffleQueue(9, 2, "int32", (), seed=3), shuffled),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", QUEUES)
def test_every_queue_gives_what_it_gives_to_a_session(kind: str, seed: int | None):
    make, use = QUEUES[kind]
    n = ab.placeholder((), "int32", "n")
    near, far = use(make(), n), use(make(), n)
    expected = ab.Session().run(near, {n: 2})
    found = run(machine([*far, on("cpu:1", 1.0)], [n], seed=seed), [np.int32(2)])
    for value, wanted in zip([v for v in found if v is not None], [v for v in expected if v is not None], strict=False):
        np.testing.assert_array_equal(value, wanted)
        assert value.dtype == wanted.dtype


def test_a_dequeue_takes_a_negative_number_of_elements_for_an_error():
    queue, n = FIFOQueue(3, "int32", (), name="letters"), ab.placeholder((), "int32", "n")
    program = machine([queue.dequeue_many(n), on("cpu:1", 1.0)], [n])
    with pytest.raises(
        ValueError, match=r"Queue 'letters': the number of elements must not be negative; got -2"
    ) as bad:
        run(program, [np.int32(-2)])
    (note,) = bad.value.__notes__
    assert re.match(
        r"In operation 'letters/dequeue_many' \(queue_dequeue_many\) on cpu:0; inputs: int32\[\]; def", note
    )


@settings(max_examples=examples(6, 25), deadline=None)
@given(
    capacity=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    window=st.sampled_from([1, 2, 32]),
    batches=st.lists(st.integers(0, 5), min_size=1, max_size=6),
)
def test_no_element_is_lost_or_leaves_out_of_order(capacity: int, seed: int, window: int, batches: list[int]):
    queue, taken = FIFOQueue(capacity, "int32", ()), FIFOQueue(-1, "int32", ())
    count = sum(batches)
    with ab.Graph().as_default():

        def body(i: Tensor) -> Any:
            x = queue.dequeue()
            taken.enqueue(x)
            return (i + 1,)

        n = ab.placeholder((), "int32", "n")
        program = machine(ab.while_loop(lambda i: i < n, body, (0,)), [n], seed=seed, parallel_iterations=window)
        step = Waiting(lambda: program(np.int32(count)))
        begin = 0
        for size in batches:
            queue.put([np.arange(begin, begin + size, dtype=np.int32)], many=True)
            begin += size
        assert step.result() == (count,)
    assert [int(value) for (value,) in taken.take(count)] == list(range(count))


# --- deadlines, failures and interrupts ------------------------------------------------------------------------------


def summing(queue: FIFOQueue, count: int) -> Any:
    """A loop over devices that takes an element an iteration."""

    def body(i: Tensor, total: Tensor) -> Any:
        return i + 1, total + queue.dequeue()

    return ab.while_loop(lambda i, _: i < count, body, (0, 0.0), name="summing")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_over_its_deadline_tells_what_it_waits_for(seed: int | None):
    queue = FIFOQueue(3, "float32", (), name="letters")
    program = machine(summing(queue, 3), seed=seed)
    step = idle_step(program)
    queue.put([np.float32(1)], many=False)
    with pytest.raises(DeadlineExceededError) as late, deadline(0.05):
        program()
    first, waiting, *_ = str(late.value).splitlines()
    assert re.fullmatch(r"The timeout was over\. The step made no progress after \S+ s\. It waits for:", first)
    assert re.fullmatch(
        r"  cpu:1: 'summing/while/body/letters/dequeue' in frame 'summing/while', iteration 1 has waited for \S+ s: "
        r"dequeue of 1 element from queue 'letters', which is open and holds 0 \(capacity 3\)\. Enqueue elsewhere, "
        r"close the queue, or give a longer timeout\.",
        waiting,
    ), waiting
    (note,) = late.value.__notes__
    assert re.match(
        r"In operation 'letters/dequeue' \(queue_dequeue\) on cpu:1, iteration 1 of 'summing/while'; ", note
    )
    assert_nothing_left(step)
    assert not step.waits
    assert queue.statistics().pending_dequeues == 0
    assert queue.statistics().cancelled == 1
    queue.put([np.array([1, 2], "float32")], many=True)  # nobody takes these behind the step's back
    assert queue.statistics().size == 2
    queue.put([np.float32(4)], many=False)
    assert run(program, []) == (3, 7)


def test_a_full_queue_makes_a_step_wait_too():
    queue, x = FIFOQueue(1, "float32", (), name="full"), ab.placeholder((), "float32", "x")
    program = machine([queue.enqueue(x), queue.enqueue(x + 1.0), on("cpu:1", x)], [x])
    told = r"enqueue to queue 'full', which .* holds 1 \(capacity 1\); no room"
    with pytest.raises(DeadlineExceededError, match=told), deadline(0.02):
        program(np.float32(5))
    assert queue.statistics().pending_enqueues == 0
    assert queue.take(1) == [(5,)]  # what was put in before stays


def test_what_is_served_in_time_does_not_fail():
    queue = FIFOQueue(3, "float32", ())
    queue.put([np.array([1, 2], "float32")], many=True)
    with deadline(0):
        assert machine(summing(queue, 2))() == (2, 3)


def test_a_step_that_computes_may_take_its_time():
    """A deadline ends a wait; without one nothing fails."""
    with deadline(0):
        assert machine([on("cpu:1", 2.0)])() == (2,)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failing_step_withdraws_what_waits(seed: int | None):
    full, empty = FIFOQueue(1, "float32", (), name="full"), FIFOQueue(1, "float32", (), name="empty")
    full.put([np.float32(7)], many=False)
    trigger = FIFOQueue(1, "float32", (), name="trigger")

    def fail(value: Any) -> Any:
        raise ZeroDivisionError("by hand")

    with ab.device("cpu:1"):
        bad = called(fail, trigger.dequeue())
    program = machine([empty.dequeue(), full.enqueue(1.0), bad], seed=seed)
    step = idle_step(program)
    running = Waiting(program)
    wait_until(empty, pending_dequeues=1)
    wait_until(full, pending_enqueues=1)
    wait_until(trigger, pending_dequeues=1)
    trigger.put([np.float32(1)], many=False)
    with pytest.raises(ZeroDivisionError):
        running.result()
    assert_nothing_left(step)
    assert (empty.statistics().pending_dequeues, full.statistics().pending_enqueues) == (0, 0)
    assert trigger.statistics().dequeued == 1  # what the step has taken before it failed is taken
    empty.put([np.float32(3)], many=False)
    assert empty.statistics().size == 1
    assert full.take(1) == [(7,)]
    assert full.statistics().size == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_end_of_a_queue_is_an_error_of_the_operation(seed: int | None):
    queue = FIFOQueue(3, "float32", (), name="letters")
    program = machine(summing(queue, 9), seed=seed)
    running = Waiting(program)
    queue.put([np.array([1, 2], "float32")], many=True)
    wait_until(queue, pending_dequeues=1)
    queue.shut(False)
    with pytest.raises(OutOfRangeError, match="Queue 'letters' is closed and has too few elements: 1 ask") as ended:
        running.result()
    (note,) = ended.value.__notes__
    assert "'letters/dequeue' (queue_dequeue) on cpu:1, iteration 2 of 'summing/while'; inputs: none; def" in note


def test_an_enqueue_into_a_closed_queue_is_an_error_at_once():
    queue = FIFOQueue(3, "float32", (), name="letters")
    queue.shut(False)
    with pytest.raises(CancelledError, match="is closed") as refused:
        run(machine([queue.enqueue(1.0), on("cpu:1", 1.0)]), [])
    assert "'letters/enqueue' (queue_enqueue) on cpu:0; inputs: float32[]" in refused.value.__notes__[0]


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """An interrupt raises KeyboardInterrupt, also in processes that were started in the background, which ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_ends_a_step_that_waits():
    queue = FIFOQueue(3, "float32", ())
    program = machine(summing(queue, 1))
    step = idle_step(program)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_until(queue, pending_dequeues=1)
        signal.pthread_kill(main, signal.SIGINT)

    helper = Waiting(interrupt)
    with pytest.raises(KeyboardInterrupt):
        program()
    helper.result()
    assert_nothing_left(step)
    assert queue.statistics().pending_dequeues == 0
    queue.put([np.float32(2)], many=False)
    assert run(program, []) == (1, 2)


def test_a_step_that_waits_is_not_stalled_and_has_no_thread():
    queue = FIFOQueue(3, "float32", ())
    program = machine(summing(queue, 1))
    before = threading.active_count()
    running = Waiting(program)
    wait_until(queue, pending_dequeues=1)
    assert threading.active_count() <= before + 1
    queue.put([np.float32(2)], many=False)
    assert running.result() == (1, 2)


def test_what_comes_after_a_step_was_given_up_is_dropped():
    """A request is served while the step fails: the element is taken, and disturbs no later run."""
    queue, calls = FIFOQueue(3, "float32", ()), []

    class Late(machine_step.Step):
        def _wait_for_event(self) -> Any:
            if not calls:
                calls.append(queue.put([np.float32(1)], many=False))  # serves it, after the last look at events
                raise DeadlineExceededError("late")
            return super()._wait_for_event()

    program = machine(summing(queue, 1))
    step = idle_step(program)
    step.__class__ = Late
    with pytest.raises(DeadlineExceededError, match="late"):
        program()
    assert queue.statistics().dequeued == 1
    assert_nothing_left(step)
    program._idle.append(step)
    running = Waiting(program)
    wait_until(queue, pending_dequeues=1)
    queue.put([np.float32(5)], many=False)
    assert running.result() == (1, 5)


# --- accumulators ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_are_in_step(seed: int | None):
    """Three replicas, the first two gradients of each step count, and what is late is dropped."""
    accumulator = ab.queues.ConditionalAccumulator("float32", (), name="slopes")
    tokens = FIFOQueue(-1, "int32", (), name="tokens")
    w = ab.Variable(8.0, dtype="float32", name="w")
    scale = ab.placeholder((), "float32", "scale")
    step = tokens.dequeue()
    with ab.device("cpu:1"):
        gradient = scale * w
    apply = accumulator.apply_grad(gradient, ops.cast(step, "int32"))
    replica = machine([apply, step], [scale], seed=seed)
    mean = accumulator.take_grad(2)
    update = w.assign_sub(mean)
    number = ab.placeholder((), "int32", "number")
    give = tokens.enqueue_many([ops.stack([number] * 3)])
    chief = machine([update, give], [number], seed=seed)

    tokens.put([np.array([0, 0, 0], "int32")], many=True)
    for number_of_step in range(1, 4):
        before = w.numpy()
        waiting = Waiting(lambda number_of_step=number_of_step: chief(np.int32(number_of_step)))
        assert run(replica, [np.float32(0.25)]) == (number_of_step - 1,)
        assert run(replica, [np.float32(0.75)]) == (number_of_step - 1,)
        waiting.result()
        assert w.numpy() == before / 2
        assert run(replica, [np.float32(9)]) == (number_of_step - 1,)  # the third comes too late
    found = accumulator.statistics()
    assert (found.applied, found.dropped, found.taken, found.global_step) == (6, 3, 3, 3)


def test_a_take_that_waits_is_withdrawn():
    accumulator = ab.queues.ConditionalAccumulator("float32", (), name="slopes")
    program = machine([on("cpu:1", accumulator.take_grad(2))])
    told = "take_grad of 2 gradients from ConditionalAccumulator 'slopes', w"
    with pytest.raises(DeadlineExceededError, match=told), deadline(0.02):
        program()
    assert accumulator.statistics().pending == 0


# --- readers ---------------------------------------------------------------------------------------------------------


def test_a_reader_waits_for_names_without_a_thread(tmp_path: Path):
    """Empty files are passed over; each name is one more wait."""
    files = {"empty": "", "two": "one\ntwo\n", "last": "three\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    names = FIFOQueue(4, "string", ())
    key, line = ab.io.TextLineReader().read(names)
    keys, lines = ab.io.TextLineReader(name="several").read_up_to(names, 5)
    assert keys.shape == lines.shape
    program = machine([key, line, on("cpu:1", 1.0)])
    running = Waiting(program)
    for name in ("empty", "two"):
        wait_until(names, pending_dequeues=1)
        names.put([np.array(str(tmp_path / name), np.dtypes.StringDType())], many=False)
    found = running.result()
    assert [found[0].item(), found[1].item()] == [f"{tmp_path / 'two'}:1", "one"]
    assert run(program, [])[1].item() == "two"
    stacked = machine([keys, lines, on("cpu:1", 1.0)])
    names.put([np.array([str(tmp_path / "last"), str(tmp_path / "two")], np.dtypes.StringDType())], many=True)
    names.shut(False)
    assert run(stacked, [])[1].tolist() == ["three", "one", "two"]
    with pytest.raises(OutOfRangeError):
        run(stacked, [])


def test_a_reader_is_free_again_when_a_step_was_given_up(tmp_path: Path):
    (tmp_path / "lines").write_text("one\ntwo\n")
    names, reader = FIFOQueue(4, "string", ()), ab.io.TextLineReader()
    program = machine([reader.read(names)[1], on("cpu:1", 1.0)])
    with pytest.raises(DeadlineExceededError, match="dequeue of 1 element"), deadline(0.02):
        program()
    one, other = Waiting(program), Waiting(program)  # one waits for a name, the other for the reader
    wait_until(names, pending_dequeues=1)
    names.put([np.array(str(tmp_path / "lines"), np.dtypes.StringDType())], many=False)
    assert {one.result()[0].item(), other.result()[0].item()} == {"one", "two"}


@given(st.lists(st.tuples(st.sampled_from(["ask", "end", "leave"]), st.integers(0, 3)), max_size=30))
@settings(deadline=None)
def test_turns_are_given_one_at_a_time_and_in_order(actions: list[tuple[str, int]]):
    turns, asked = Turns("taken"), []
    for action, place in actions:
        if action == "ask":
            turn = turns.turn()
            attempt, _ = turn.request.begin(lambda: None)
            asked.append((turn, attempt))
        elif asked:
            turn, attempt = asked.pop(place % len(asked))
            if action == "leave" or not attempt.is_done:
                turn.request.withdraw(attempt)
            turn.end()
        assert [attempt.is_done for _, attempt in asked] == [number == 0 for number in range(len(asked))]
