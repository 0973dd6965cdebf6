"""Steps of several threads that write the same variables lose no update; interrupted ones leave all updates or none."""

import copy
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from shared.interrupts import interrupted_at, interruptible

import anabranch as ab
from anabranch import ops
from anabranch.engine.runtime.program import Program

_LONG = 60.0  # seconds: what takes longer hangs
_SIZE = 5000  # elements, on which NumPy computes without the interpreter's lock


@pytest.fixture
def _quick_switches() -> Iterator[None]:
    """Threads of Python take turns after a few operations."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    with interruptible():
        yield


@pytest.fixture
def _two_devices() -> Iterator[None]:
    ab.config.set_devices(cpu=2)
    yield
    ab.config.set_devices()


def in_threads(*functions: Callable[[], Any]) -> None:
    """Run functions, each in a thread of its own; all end, and none raises."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], Any]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[function], daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LONG)
        assert not thread.is_alive(), "a step hangs"
    assert not errors, errors


# --- several threads --------------------------------------------------------------------------------------------------


def array_step(v: ab.Variable) -> Any:
    return v.assign_add(np.ones(_SIZE, "float32"))


def loop_step(v: ab.Variable) -> Any:
    def body(i: Any) -> Any:
        v.assign_add(np.full(_SIZE, 0.25, "float32"))
        return i + 1

    return ab.while_loop(lambda i: i < 4, body, [0])


def branch_step(v: ab.Variable) -> Any:
    return ab.cond(v[0] >= 0.0, lambda: v.assign(v + 1.0), lambda: v.assign(v - 1.0))


def row_step(v: ab.Variable) -> Any:
    return v.scatter_add(ab.IndexedSlices(np.ones(_SIZE, "float32"), np.arange(_SIZE), (_SIZE,)))


def spread_step(v: ab.Variable) -> Any:
    with ab.device("cpu:1"):
        one = ops.tanh(ab.constant(np.full(_SIZE, 100.0, "float32")))
    with ab.device("cpu:0"):
        return v.assign_add(one)


@pytest.mark.usefixtures("_quick_switches")
@pytest.mark.parametrize("build", [array_step, loop_step, branch_step, row_step])
@pytest.mark.parametrize("whole", [False, True])
def test_no_update_is_lost(build: Callable[[ab.Variable], Any], whole: bool):
    with ab.Graph().as_default() as graph:
        graph.compiles_whole = whole
        v = ab.Variable(np.zeros(_SIZE, "float32"))
        built = build(v)
    runs = 300

    def work() -> None:
        session = ab.Session(graph)
        for _ in range(runs):
            session.run(built)

    in_threads(*[work] * 4)
    np.testing.assert_array_equal(v.numpy(), np.full(_SIZE, 4.0 * runs))


@pytest.mark.usefixtures("_quick_switches", "_two_devices")
def test_no_update_is_lost_by_steps_that_span_devices():
    with ab.Graph().as_default() as graph:
        v = ab.Variable(np.zeros(_SIZE, "float32"))
        built = spread_step(v)
    runs = 100

    def work() -> None:
        session = ab.Session(graph)
        for _ in range(runs):
            session.run(built)

    in_threads(*[work] * 4)
    np.testing.assert_array_equal(v.numpy(), np.full(_SIZE, 4.0 * runs))


@pytest.mark.usefixtures("_quick_switches")
def test_steps_that_write_the_same_variables_in_another_order_do_not_wait_for_each_other_forever():
    with ab.Graph().as_default() as graph:
        a, b = ab.Variable(np.zeros(50, "float32")), ab.Variable(np.zeros(50, "float32"))
        first = [a.assign(a + b * 0.0 + 1.0), b.assign(b + 1.0)]
        second = [b.assign(b + a * 0.0 + 1.0), a.assign(a + 1.0)]

    def work(fetches: Any) -> Callable[[], Any]:
        session = ab.Session(graph)
        return lambda: [session.run(fetches) for _ in range(300)]

    in_threads(work(first), work(second))
    assert (a.numpy() == 600).all()
    assert (b.numpy() == 600).all()


def waiting_step(spread: bool) -> tuple[ab.Graph, ab.Variable, Any, Any]:
    """A step that writes a variable before and after it waits for what another step, which writes it too, enqueues."""
    with ab.Graph().as_default() as graph:
        v = ab.Variable(np.zeros(3, "float32"))
        queue = ab.queues.FIFOQueue(1, "float32", ())
        with ab.device("cpu:1" if spread else None):
            first = v.assign_add(np.ones(3, "float32"))
        with graph.control_dependencies([first.operation]):
            taken = queue.dequeue()
        second = v.assign_add(np.ones(3, "float32") * taken)
        with graph.control_dependencies([v.assign_add(np.full(3, 10.0, "float32")).operation]):
            put = queue.enqueue(100.0)
    return graph, v, second, put


@pytest.mark.usefixtures("_two_devices")
@pytest.mark.parametrize("spread", [False, True])
def test_other_steps_write_what_a_step_writes_while_it_waits(spread: bool):
    graph, v, taking, putting = waiting_step(spread)
    began = threading.Event()

    def take() -> None:
        began.set()
        ab.Session(graph).run(taking)

    def put() -> None:
        began.wait()
        ab.Session(graph).run(putting)

    in_threads(take, put)
    np.testing.assert_array_equal(v.numpy(), np.full(3, 111.0))


def test_a_function_of_a_step_may_run_a_step_that_writes_the_same_variable():
    with ab.Graph().as_default() as inner:
        v = ab.Variable(np.zeros(3, "float32"))
        change = v.assign_add(np.ones(3, "float32"))
    nested = ab.Session(inner)
    with ab.Graph().as_default() as graph:
        (told,) = ab.ops.numpy_function(lambda: nested.run(change), [], ["float32"])
        changed = v.assign(told * 2.0)
    assert ab.Session(graph).run(changed) is not None
    np.testing.assert_array_equal(v.numpy(), np.full(3, 2.0))


def test_steps_inside_of_steps_take_locks_in_any_order():
    variables = [ab.Variable(np.zeros(3, "float32")) for _ in range(2)]
    met = threading.Barrier(2, timeout=_LONG)

    def nested(own: ab.Variable, other: ab.Variable) -> Callable[[], Any]:
        with ab.Graph().as_default() as inner:
            change = other.assign_add(np.ones(3, "float32"))
        session = ab.Session(inner)

        def inside() -> Any:
            met.wait()  # each step has the lock that the other's function needs
            return session.run(change)

        with ab.Graph().as_default() as graph:
            (told,) = ab.ops.numpy_function(inside, [], ["float32"])
            changed = own.assign(told * 0.0 + 5.0)
        outer = ab.Session(graph)
        return lambda: outer.run(changed)

    in_threads(nested(*variables), nested(*reversed(variables)))


def test_a_step_that_waits_for_another_one_to_write_has_a_deadline():
    inside, go = threading.Event(), threading.Event()

    def wait() -> Any:
        inside.set()
        go.wait(_LONG)
        return np.zeros(3, "float32")

    with ab.Graph().as_default() as graph:
        v = ab.Variable(np.zeros(3, "float32"))
        (told,) = ab.ops.numpy_function(wait, [], ["float32"])
        slow = v.assign(told + 1.0)
        quick = v.assign_add(np.ones(3, "float32"))
    thread = threading.Thread(target=lambda: ab.Session(graph).run(slow))
    thread.start()
    assert inside.wait(_LONG)
    with pytest.raises(ab.errors.DeadlineExceededError, match="waited to write a variable"):
        ab.Session(graph).run(quick, timeout=0.01)
    go.set()
    thread.join()
    np.testing.assert_array_equal(v.numpy(), np.ones(3))


def test_a_copy_of_a_variable_has_a_lock_of_its_own():
    v = ab.Variable([1.0, 2.0], name="v")
    other = copy.deepcopy(v)
    assert other.lock is not v.lock
    np.testing.assert_array_equal(other.numpy(), [1.0, 2.0])


# --- interrupts -------------------------------------------------------------------------------------------------------


def momentum_step(count: int = 3) -> tuple[ab.Graph, list[ab.Variable], Any]:
    """A step of gradients and updates, after which all variables are what they were, plus one."""
    with ab.Graph().as_default() as graph:
        variables = [ab.Variable(np.full((50, 40), k, "float32"), name=f"v{k}") for k in range(count)]
        x = ab.placeholder((50, 40), "float32", "x")
        loss = ops.sum(sum([v * x for v in variables[1:]], variables[0] * x))
        slopes = ab.gradients(loss, variables)
        updates = [v.assign_add(slope).operation for v, slope in zip(variables, slopes, strict=True)]
    return graph, variables, (updates, x)


@pytest.mark.parametrize("kernels", [True, False])
def test_of_an_interrupted_step_all_updates_are_there_or_none(kernels: bool):
    graph, variables, (updates, x) = momentum_step()
    program = Program(graph, updates, [x], exact=not kernels)
    ones, line = np.ones((50, 40), "float32"), 1
    outcomes: set[float] = set()
    before = [v.numpy() for v in variables]
    while interrupted_at(line, lambda code: code.co_filename == program.filename, partial(program, ones)):
        changes = [v.numpy() - old for v, old in zip(variables, before, strict=True)]
        outcomes.add(float(changes[0][0, 0]))
        for change in changes:
            np.testing.assert_array_equal(change, changes[0], f"interrupted at line {line} of\n{program.source}")
        before = [v.numpy() for v in variables]
        line += 1
    assert outcomes == {0.0, 1.0}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def interrupting_step(times: int) -> tuple[ab.Graph, list[ab.Variable], Any]:
    """A step that is interrupted between two writes."""

    def interrupt() -> Any:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return np.float32(1)

    with ab.Graph().as_default() as graph:
        a, b = ab.Variable(np.zeros(3, "float32")), ab.Variable(np.zeros(3, "float32"))
        first = a.assign_add(np.ones(3, "float32"))
        with graph.control_dependencies([first.operation]):
            (one,) = ab.ops.numpy_function(interrupt, [], ["float32"])
        second = b.assign_add(np.ones(3, "float32") * one)
    return graph, [a, b], [first, second]


@pytest.mark.usefixtures("_two_devices")
@pytest.mark.parametrize("spread", [False, True])
def test_an_interrupt_between_two_writes_waits_for_the_second(spread: bool):
    if not spread:
        ab.config.set_devices()
    graph, variables, fetches = interrupting_step(1)
    with pytest.raises(KeyboardInterrupt):
        ab.Session(graph).run(fetches)
    assert [float(v.numpy()[0]) for v in variables] == [1.0, 1.0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_is_raised_at_once():
    graph, variables, fetches = interrupting_step(2)
    with pytest.raises(KeyboardInterrupt):
        ab.Session(graph).run(fetches)
    assert [float(v.numpy()[0]) for v in variables] == [1.0, 0.0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    in_threads(lambda: ab.Session(graph).run(variables))  # nothing is locked


def test_an_interrupted_step_gives_its_locks_back():
    graph, variables, (updates, x) = momentum_step()
    program = Program(graph, updates, [x])
    ones, line = np.ones((50, 40), "float32"), 1
    while interrupted_at(line, lambda code: code.co_filename == program.filename, partial(program, ones)):
        in_threads(lambda: [v.lock.acquire() and v.lock.release() for v in variables])
        line += 1
    assert line > 3
