"""Steps of the dataflow machine on simulated devices: when kernels run, what memory they take, and what fails."""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from shared.examples import examples
from shared.machines import assert_nothing_left, idle_step, of_kind, run, stream_engines
from shared.placed_steps import Assigned, Legal

import anabranch as ab
from anabranch import ops
from anabranch.engine.devices import DeviceMemoryError
from anabranch.engine.graph import Operation, Symbol, Tensor
from anabranch.engine.graph.graph import Parameter
from anabranch.engine.graph.region import Region
from anabranch.engine.lower import arrivals
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.place.kernels import runs_on_host
from anabranch.engine.runtime.interpreter import Interpreter

COUNT = 1000
BYTES = 4 * COUNT  # of each array below
KERNEL = 1e-3  # seconds of an elementwise operation that takes one of them and gives one
COPY = 1e-4  # seconds in which one is copied, one way
SPEEDS = {"kernel_latency": 0, "flops": 1e30, "memory_bandwidth": 2 * BYTES / KERNEL}
LINKS = {"latency": COPY / 2, "bandwidth": 2 * BYTES / COPY}
SWAPS = {"swap_threshold": 0, "swap_smallest": 0}


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    with ab.Graph().as_default() as graph:
        yield graph
    ab.config.set_devices()


def declare(count: int = 2, **options: Any) -> None:
    ab.config.set_devices(cpu=2, sim={"count": count, **SPEEDS, **LINKS, **options})


def as_asked() -> Assigned:
    """Each operation where `ab.device` says, loop variables where they are made, counters and all else on the host."""

    def choose(operation: Operation) -> str:
        region = operation.graph
        asked = operation.device
        if isinstance(operation.op, Parameter) and isinstance(region, Region):
            carried = dict(zip(region.parameters, region.results, strict=False))
            asked = carried[operation.outputs[0]].operation.device if operation.outputs[0] in carried else ""
        return "cpu:0" if runs_on_host(operation) else asked.rpartition("device:")[2].lower() or "cpu:0"

    return Legal(choose)


def machine(fetches: Sequence[Any], feeds: Sequence[Symbol] = (), **options: Any) -> MachineProgram:
    return MachineProgram(ab.get_default_graph(), fetches, feeds, exact=True, assign=as_asked(), **options)


def interpreted(fetches: Sequence[Any], feeds: dict[Symbol, Any]) -> Sequence[Any]:
    return Interpreter().run(ab.get_default_graph(), list(fetches), feeds)


def vector(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=COUNT).astype(np.float32)


def makespan(program: MachineProgram, values: Sequence[Any]) -> float:
    """The virtual time of one run."""
    clock = stream_engines(idle_step(program))[0].clock
    began = clock.now()
    run(program, values)
    return clock.now() - began


# --- time -----------------------------------------------------------------------------------------------------------


def stages(x: Tensor, n: Tensor, window: int = 32) -> list[Tensor]:
    """A loop in which each of four devices adds what the one before makes to its own state."""

    def body(i: Tensor, *states: Tensor) -> Any:
        found: list[Tensor] = []
        for number, state in enumerate(states):
            with ab.device(f"sim:{number}"):
                found.append(ops.tanh(state) if not number else state + found[-1])
        return i + 1, *found

    return list(ab.while_loop(lambda i, *_: i < n, body, (0, x, x, x, x), parallel_iterations=window))[1:]


ADDING = 1.5 * KERNEL  # takes two of them and gives one


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_iterations_overlap_on_four_devices(iterations: int, clusters: bool):
    """Each device works on an iteration of its own: only the slowest one counts, and the way in and out."""
    declare(4)
    x, n = ab.placeholder((COUNT,), "float32", "x"), ab.placeholder((), "int32", "n")
    states = stages(x, n)
    program = machine(states[-1:], [x, n], clusters=clusters)
    first = COPY + KERNEL + 2 * COPY + ADDING  # until the second device has added
    expected = first + 2 * (2 * COPY + ADDING) + (iterations - 1) * ADDING + COPY
    value = vector()
    assert makespan(program, [value, np.int32(iterations)]) == pytest.approx(expected, rel=1e-9)
    feeds = {x: value, n: np.int32(iterations)}
    np.testing.assert_array_equal(run(program, list(feeds.values()))[0], interpreted(states[-1:], feeds)[0])


def test_a_sum_that_waits_for_another_device_holds_up_nothing():
    """Its device computes for later iterations, as many as may be alive, while the other one is at work."""
    declare(2)
    x, n = ab.placeholder((COUNT,), "float32", "x"), ab.placeholder((), "int32", "n")

    def body(i: Tensor, total: Tensor) -> Any:
        with ab.device("sim:0"):
            sent = ops.tanh(x + ops.cast(i, "float32"))
        with ab.device("sim:1"):
            came = ops.tanh(ops.tanh(ops.tanh(sent)))
        with ab.device("sim:0"):
            return i + 1, total + came

    def span(window: int) -> float:
        loop = ab.while_loop(lambda i, _: i < n, body, (0, ops.zeros((COUNT,))), parallel_iterations=window)
        program = machine([loop[1]], [x, n])
        feeds = {x: vector(), n: np.int32(10)}
        seconds = makespan(program, list(feeds.values()))
        np.testing.assert_array_equal(run(program, list(feeds.values()))[0], interpreted([loop[1]], feeds)[0])
        return seconds

    busy = 10 * 3 * KERNEL
    assert span(4) < busy + 8 * KERNEL
    assert span(1) > busy + 10 * KERNEL


def test_one_state_that_goes_round_four_devices():
    """Nothing overlaps where each operation needs the one before."""
    declare(4)
    x, n = ab.placeholder((COUNT,), "float32", "x"), ab.placeholder((), "int32", "n")

    def body(i: Tensor, state: Tensor) -> Any:
        for number in (1, 2, 3, 0):
            with ab.device(f"sim:{number}"):
                state = ops.tanh(state)
        return i + 1, state

    _, state = ab.while_loop(lambda i, _: i < n, body, (0, x))
    program = machine([state], [x, n])
    expected = COPY + 40 * KERNEL + 40 * 2 * COPY + COPY
    assert makespan(program, [vector(), np.int32(10)]) == pytest.approx(expected, rel=1e-9)


def test_devices_side_by_side_take_no_longer_than_one():
    declare(4)
    x = ab.placeholder((COUNT,), "float32", "x")
    found: list[Tensor] = []
    for number in range(4):
        with ab.device(f"sim:{number}"):
            y = x
            for _ in range(10):
                y = ops.tanh(y)
            found.append(y)
    one, all_four = machine(found[:1], [x]), machine(found, [x])
    assert makespan(one, [vector()]) == pytest.approx(10 * KERNEL + 2 * COPY, rel=1e-9)
    assert makespan(all_four, [vector()]) == pytest.approx(10 * KERNEL + 2 * COPY, rel=1e-9)


# --- memory ---------------------------------------------------------------------------------------------------------


def trained(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """A loop whose gradient needs what each iteration made."""
    with ab.device("sim:0"):
        _, y = ab.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, ops.tanh(y)), (0, x), name="deep")
        (slope,) = ab.gradients(ops.sum(y), [x])
    return y, slope


def test_memory_that_runs_out_names_who_needs_it_and_who_holds_it():
    declare(1, memory_limit=20 * BYTES)
    x, n = ab.placeholder((COUNT,), "float32", "x"), ab.placeholder((), "int32", "n")
    fetches = trained(x, n)
    program = machine(fetches, [x, n], swaps=False)
    run(program, [vector(), np.int32(5)])
    with pytest.raises(DeviceMemoryError, match="sim:0 is out of memory") as caught:
        run(program, [vector(), np.int32(50)])
    assert re.match(r"deep/\S*tanh", caught.value.kernel)
    assert any(re.match(r"deep/\S*tanh", label) for label, *_ in caught.value.holders)
    assert caught.value.limit == 20 * BYTES
    for value, expected in zip(
        run(program, [vector(), np.int32(7)]), interpreted(fetches, {x: vector(), n: np.int32(7)}), strict=True
    ):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_histories_that_move_need_no_more_memory_than_there_is(seed: int | None):
    declare(1, memory_limit=20 * BYTES, seed=seed, swap_smallest=0)
    x, n = ab.placeholder((COUNT,), "float32", "x"), ab.placeholder((), "int32", "n")
    fetches = trained(x, n)
    program = machine(fetches, [x, n], swaps=True)
    feeds = {x: vector(), n: np.int32(50)}
    for value, expected in zip(run(program, list(feeds.values())), interpreted(fetches, feeds), strict=True):
        np.testing.assert_array_equal(value, expected)
    (engine,) = stream_engines(idle_step(program))
    moved = engine.policy.statistics()
    assert engine.device.statistics().peak_bytes <= 20 * BYTES
    assert moved.bytes_out >= 25 * BYTES
    assert moved.bytes_in >= 25 * BYTES
    assert_nothing_left(idle_step(program))


def test_histories_that_move_take_no_time():
    """Copies run beside the kernels (Yu et al., EuroSys 2018, table 1)."""
    x, n = ab.placeholder((COUNT,), "float32", "x"), ab.placeholder((), "int32", "n")
    times: list[float] = []
    for limit in (None, 40 * BYTES):
        declare(1, memory_limit=limit, swap_smallest=0)
        times.append(makespan(machine(trained(x, n), [x, n], swaps=limit is not None), [vector(), np.int32(80)]))
    assert times[1] <= 1.03 * times[0]


def test_a_loop_says_that_its_histories_may_move():
    declare(1, memory_limit=20 * BYTES, swap_smallest=0)
    x = ab.placeholder((COUNT,), "float32", "x")
    for moves in (False, True):
        with ab.device("sim:0"):
            _, y = ab.while_loop(lambda i, _: i < 50, lambda i, y: (i + 1, ops.tanh(y)), (0, x), swap_memory=moves)
            (slope,) = ab.gradients(ops.sum(y), [x])
        program = machine([slope], [x])
        if moves:
            run(program, [vector()])
        else:
            with pytest.raises(DeviceMemoryError):
                run(program, [vector()])


def test_variables_take_memory_where_they_lie():
    declare(2, memory_limit=10 * BYTES)
    x = ab.placeholder((COUNT,), "float32", "x")
    y = x
    for number in range(6):
        with ab.device("sim:0"):
            y = ops.tanh(y + ab.Variable(vector(number), name=f"w{number}"))
    program = machine([y], [x])
    run(program, [vector()])
    engine = next(engine for engine in stream_engines(idle_step(program)) if engine.device.device.name == "sim:0")
    assert 6 * BYTES < engine.device.statistics().peak_bytes <= 10 * BYTES
    assert_nothing_left(idle_step(program))


def test_variables_for_which_there_is_no_room():
    declare(2, memory_limit=10 * BYTES)
    x = ab.placeholder((COUNT,), "float32", "x")
    y = x
    for number in range(12):
        with ab.device("sim:0"):
            y = ops.tanh(y + ab.Variable(vector(number), name=f"w{number}"))
    told = r"sim:0 is out of memory\. Variable 'w10' needs 4,000 bytes, but 40,000 of 40,000 are in use.* 'w\d' holds"
    with pytest.raises(DeviceMemoryError, match=told):
        run(machine([y], [x]), [vector()])


SIDE = 160  # of matrices of more than 64 KiB


def chained(count: int, kind: str = "feeds") -> tuple[Tensor, dict[Symbol, Any]]:
    """A device takes one large operand after the other: fed, or computed on another device."""
    generator = np.random.default_rng(0)
    feeds: dict[Symbol, Any] = {}
    total = None
    for number in range(count):
        x = ab.placeholder((SIDE, SIDE), "float32", f"x{number}")
        feeds[x] = generator.normal(size=(SIDE, SIDE)).astype(np.float32)
        if kind == "other device":
            with ab.device("sim:1"):
                x = ops.tanh(x)
        with ab.device("sim:0"):
            total = ops.tanh(x) if total is None else ops.matmul(total, x) * 0.125
    assert total is not None
    return total, feeds


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("kind", ["feeds", "other device"])
@pytest.mark.parametrize("slow", [0.1, 0.45, 1, 3])
def test_what_is_used_late_arrives_late(kind: str, clusters: bool, slow: float, monkeypatch: pytest.MonkeyPatch):
    """Operands used one after the other: a few of them are on the device at a time, and nothing waits for them.

    Args:
        slow: how long a copy takes beside a kernel. A link that is the slower one is used all the time.
    """
    size = 4 * SIDE * SIDE
    options = {"bandwidth": size / (slow * KERNEL), "memory_bandwidth": 3 * size / KERNEL, "latency": 0}
    declare(2, **options)
    total, feeds = chained(20, kind)
    values = list(feeds.values())

    def measured() -> tuple[int, float, Any]:
        program = machine([total], list(feeds), clusters=clusters)
        (found,) = run(program, values)
        engine = next(engine for engine in stream_engines(idle_step(program)) if engine.device.device.name == "sim:0")
        assert_nothing_left(idle_step(program))
        return engine.device.statistics().peak_bytes, makespan(program, values), found

    peak, seconds, found = measured()
    monkeypatch.setattr(arrivals, "LARGE", 2**60)
    early_peak, early_seconds, early = measured()
    np.testing.assert_array_equal(found, early)
    np.testing.assert_array_equal(found, interpreted([total], feeds)[0])
    assert seconds <= 1.05 * early_seconds
    assert peak <= early_peak
    if slow < 0.5:
        assert peak <= 6 * size
        assert early_peak >= 10 * size


@pytest.mark.parametrize("options", [{"seed": 2}, {"virtual_time": False}, {"memory_limit": 6 * 4 * SIDE * SIDE}])
def test_late_arrivals_in_any_order(options: dict[str, Any]):
    declare(2, **options)
    total, feeds = chained(12)
    program = machine([total], list(feeds))
    for _ in range(2):
        np.testing.assert_array_equal(run(program, list(feeds.values()))[0], interpreted([total], feeds)[0])
        assert_nothing_left(idle_step(program))


def test_what_may_not_run_delays_nothing():
    """An operation of a branch is dead where the other one is taken; what waited for it would be, too."""
    declare(2, bandwidth=1e12)
    p = ab.placeholder((), "bool", "p")
    x, y = (ab.placeholder((SIDE, SIDE), "float32", name) for name in "xy")
    with ab.device("sim:0"):
        found = ab.cond(p, lambda: ops.tanh(ops.matmul(x, x)), lambda: x)
        found = ops.matmul(found, y)
    program = machine([found], [p, x, y], clusters=False)
    value = np.eye(SIDE, dtype=np.float32)
    for choice in (True, False):
        feeds = {p: np.bool_(choice), x: value, y: value * 2}
        np.testing.assert_array_equal(run(program, list(feeds.values()))[0], interpreted([found], feeds)[0])


# --- failures -------------------------------------------------------------------------------------------------------


def fragile(x: Tensor, n: Tensor, iterations: int = 10) -> Tensor:
    """A loop that reads an element that is not there in iteration `n`."""

    def body(i: Tensor, y: Tensor) -> Any:
        with ab.device("sim:0"):
            y = ops.tanh(y)
        with ab.device("sim:1"):
            index = ops.where(ops.equal(i, n), COUNT, 1)
            y = y + ops.tanh(ops.take(y, index))
        return i + 1, y

    return ab.while_loop(lambda i, _: i < iterations, body, (0, x), name="loop")[1]


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"virtual_time": False}, {"memory_limit": 10**6}])
def test_a_kernel_that_fails(options: dict[str, Any], clusters: bool):
    declare(2, **options)
    x, n = ab.placeholder((COUNT,), "float32", "x"), ab.placeholder((), "int32", "n")
    y = fragile(x, n)
    program = machine([y], [x, n], clusters=clusters)
    value = vector()
    (expected,) = interpreted([y], {x: value, n: np.int32(-1)})
    for iteration in (0, 6):
        with pytest.raises(IndexError) as caught:
            run(program, [value, np.int32(iteration)])
        notes = [note for note in caught.value.__notes__ if note.startswith("In operation ")]
        (note,) = notes
        assert re.match(rf"In operation 'take' .*on sim:1, iteration {iteration} of 'loop/while'; ", note), note
        np.testing.assert_array_equal(run(program, [value, np.int32(-1)])[0], expected)
        assert_nothing_left(idle_step(program))


def test_steps_take_no_memory_though_some_fail(monkeypatch: pytest.MonkeyPatch):
    declare(2, seed=1, memory_limit=10**6)
    x, n = ab.placeholder((COUNT,), "float32", "x"), ab.placeholder((), "int32", "n")
    y = fragile(x, n, 3)
    (slope,) = ab.gradients(ops.sum(y * y), [x])
    program = machine([y, slope], [x, n])
    value = vector()
    expected = program(value, np.int32(-1))

    def steps(count: int) -> None:
        for number in range(count):
            if number % 5 == 4:
                with pytest.raises(IndexError):
                    program(value, np.int32(number % 3))
                continue
            found = program(value, np.int32(-1))
            assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))

    steps(20)
    monkeypatch.setattr(program, "_note_long", lambda _: None)  # where others load the machine it prints the step again
    gc.collect()
    tracemalloc.start()
    steps(10)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    steps(examples(60, 170))
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000  # about 14,000 of them in the first steps
    assert_nothing_left(idle_step(program))


@pytest.mark.parametrize("virtual_time", [False, True])
def test_a_predicate_of_one_device_for_a_loop_on_others(virtual_time: bool):
    """It is looked at on the host, wherever it comes from and whichever device goes by it."""
    declare(2, virtual_time=virtual_time)
    x, n = ab.placeholder((COUNT,), "float32", "x"), ab.placeholder((), "float32", "n")

    def condition(total: Tensor, _: Tensor) -> Tensor:
        with ab.device("sim:1"):
            return total < n

    def body(total: Tensor, y: Tensor) -> Any:
        with ab.device("sim:1"):
            total = total + 1.0
        with ab.device("sim:0"):
            return total, ops.tanh(y)

    _, y = ab.while_loop(condition, body, (0.0, x))
    for count in (0, 1, 3):
        feeds = {x: vector(), n: np.float32(count)}
        np.testing.assert_array_equal(run(machine([y], [x, n]), list(feeds.values()))[0], interpreted([y], feeds)[0])


# --- order ----------------------------------------------------------------------------------------------------------


def test_any_order_of_the_streams_is_legal():
    """Nothing reads what is not known to be written, in whatever order streams and the host go on."""
    x, n = ab.placeholder((COUNT,), "float32", "x"), ab.placeholder((), "int32", "n")
    y = stages(x, n)[-1]
    (slope,) = ab.gradients(ops.sum(y * y), [x])
    feeds = {x: vector(), n: np.int32(6)}
    expected = interpreted([y, slope], feeds)
    for seed in range(examples(16, 50)):
        declare(4, seed=seed, **SWAPS)
        program = machine([y, slope], [x, n], seed=seed, swaps=seed % 2 == 0)
        for value, wanted in zip(run(program, list(feeds.values())), expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
        assert_nothing_left(idle_step(program))


# --- variables, TensorArrays, TensorStores --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_variable_on_a_device(seed: int | None):
    """Gradient descent on what is there: each iteration reads what the one before has written."""
    declare(2, seed=seed)
    x, n = ab.placeholder((COUNT,), "float32", "x"), ab.placeholder((), "int32", "n")
    start = vector(1)
    with ab.device("sim:1"):
        w = ab.Variable(start, name="w")

    def body(i: Tensor, total: Tensor) -> Any:
        with ab.device("sim:1"):
            now = w * 1.0
        with ab.device("sim:0"):
            distance = now - x
            loss = ops.sum(distance * distance)
            (slope,) = ab.gradients(loss, [now])
        with ab.device("sim:1"):
            w.assign_sub(0.1 * slope)
        return i + 1, total + loss

    with ab.device("sim:0"):
        _, total = ab.while_loop(lambda i, _: i < n, body, (0, ops.sum(x) * 0.0))
    feeds = {x: vector(), n: np.int32(5)}
    expected = interpreted([total], feeds)[0], w.numpy()
    ab.Session().run(w.assign(start))
    program = machine([total], [x, n])
    assert {node.device for node in of_kind(program.machine, "op")} >= {"sim:0", "sim:1"}
    found = run(program, list(feeds.values()))[0], w.numpy()
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    assert_nothing_left(idle_step(program))


@pytest.mark.parametrize("swaps", [False, True])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_tensor_arrays_on_a_device(seed: int | None, swaps: bool):
    declare(2, seed=seed, **SWAPS)
    x, n = ab.placeholder((COUNT,), "float32", "x"), ab.placeholder((), "int32", "n")
    with ab.device("sim:0"):
        array = ab.TensorArray("float32", size=n, element_shape=(COUNT,))

        def body(i: Tensor, y: Tensor, array: Any) -> Any:
            y = ops.tanh(y)
            return i + 1, y, array.write(i, y)

        _, _, array = ab.while_loop(lambda i, *_: i < n, body, (0, x, array))
    with ab.device("sim:1"):

        def back(i: Tensor, total: Tensor) -> Any:
            return i + 1, total * 0.5 + array.read(n - 1 - i)

        _, total = ab.while_loop(lambda i, *_: i < n, back, (0, x))
        (slope,) = ab.gradients(ops.sum(total * total), [x])
    fetches = [total, slope, array.stack()]
    feeds = {x: vector(), n: np.int32(6)}
    program = machine(fetches, [x, n], swaps=swaps)
    for value, expected in zip(run(program, list(feeds.values())), interpreted(fetches, feeds), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert_nothing_left(idle_step(program))
