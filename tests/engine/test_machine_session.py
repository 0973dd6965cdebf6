"""Steps that span devices, as users run them: `Session`, `function`, partial runs, and what they report."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from shared.machines import graph_on
from shared.waiting import out_of_time

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Graph, Tensor, eagerly
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.machine.statistics import DeviceRunStatistics
from anabranch.engine.place import PlacementError
from anabranch.engine.place.costs import costs_of_process
from anabranch.engine.runtime.program import Program

A, B = "cpu:0", "cpu:1"


graph = graph_on(cpu=2)


def spread(n: Any, x: Any, **options: Any) -> list[Tensor]:
    """A loop over both devices: its count, and its value, the tanh of half of which is taken on the second one."""

    def body(i: Any, y: Any) -> Any:
        with ab.device(B):
            z = ops.tanh(y * 0.5)
        with ab.device(A):
            return i + 1, z + 1.0

    return ab.while_loop(lambda i, _: i < n, body, (0, x), **options)


def iterated(n: int, x: Any) -> Any:
    for _ in range(n):
        x = np.tanh(x * np.float32(0.5)) + np.float32(1.0)
    return x


def crossing(x: Any) -> tuple[Tensor, Tensor]:
    """Twice `x`, on the second device, and that plus one on the first."""
    with ab.device(B):
        double = x * 2.0
    with ab.device(A):
        return double, double + 1.0


def program_of(session: ab.Session) -> Any:
    return session._latest  # type: ignore[attr-defined]


# --- which program --------------------------------------------------------------------------------------------------


def test_a_step_over_two_devices_runs_on_the_machine():
    x = ab.placeholder((3,), "float32")
    session = ab.Session()
    found = session.run(spread(4, x)[1], {x: [0.0, 1.0, 2.0]})
    np.testing.assert_allclose(found, iterated(4, np.arange(3, dtype="float32")), rtol=1e-6)
    assert isinstance(program_of(session), MachineProgram)
    assert set(session.statistics().devices) == {A, B}


@pytest.mark.parametrize("device", ["cpu:0", "cpu:1", None])
def test_a_step_that_stays_on_one_cpu_is_compiled(device: str | None):
    x = ab.placeholder((3,), "float32")
    with ab.device(device):
        y = ops.exp(x) * 2.0
    session = ab.Session()
    np.testing.assert_allclose(session.run(y, {x: np.zeros(3)}), [2.0, 2.0, 2.0])
    assert isinstance(program_of(session), Program)
    assert session.statistics().devices == {}


def test_a_device_that_is_no_cpu_runs_on_the_machine():
    ab.config.set_devices(sim=1)
    x = ab.placeholder((3,), "float32")
    with ab.device("sim:0"):
        y = ops.exp(x) * 2.0
    session = ab.Session()
    np.testing.assert_allclose(session.run(y, {x: np.zeros(3)}), [2.0, 2.0, 2.0])
    assert isinstance(program_of(session), MachineProgram)
    assert session.statistics().devices["sim:0"].peak_bytes is not None


def test_programs_are_made_anew_when_other_devices_are_declared():
    x = ab.placeholder((), "float32")
    with ab.device("cpu:1"):
        a = x * 2.0
    with ab.device("cpu:0"):
        b = a + 1.0
    session = ab.Session()
    call = session.make_callable(b, [x])
    assert session.run(b, {x: 3.0}) == call(3.0) == 7.0
    first = program_of(session)
    assert session.run(b, {x: 3.0}) == 7.0
    assert program_of(session) is first
    ab.config.set_devices(cpu=3)
    assert session.run(b, {x: 3.0}) == call(3.0) == 7.0
    assert program_of(session) is not first
    ab.config.set_devices(cpu=1)
    for step in (lambda: session.run(b, {x: 3.0}), lambda: call(3.0)):
        with pytest.raises(PlacementError, match=r"asks for device '/device:CPU:1', but the devices are cpu:0"):
            step()


def test_without_further_devices_the_machine_is_not_loaded():
    code = (
        "import sys, anabranch as ab\n"
        "x = ab.placeholder((2,), 'float32')\n"
        "ab.Session().run(x + 1, {x: [1, 2]})\n"
        "ab.function(lambda x: x + 1)(1.0)\n"
        "parts = ('engine.lower', 'engine.machine', 'engine.devices')\n"
        "print([name for name in sys.modules if any(part in name for part in parts)])"
    )
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# --- the same outward behaviour -------------------------------------------------------------------------------------


def test_functions_run_where_they_ask_to():
    @ab.function
    def step(x: Any) -> Any:
        double, more = crossing(x)
        return {"double": double, "more": more}

    with eagerly():
        found = step(np.array([1, 2], "float32"))
        np.testing.assert_array_equal(found["more"], [3, 5])
        assert float(step(np.float32(2.0))["double"]) == 4.0
    (trace, _) = step._traces.values()  # type: ignore[attr-defined]
    assert isinstance(trace._programs.general(), MachineProgram)
    ab.config.set_devices(cpu=3)
    with eagerly():
        np.testing.assert_array_equal(step(np.array([1, 2], "float32"))["double"], [2, 4])


def test_a_tensor_in_between_is_fed():
    x = ab.placeholder((), "float32")
    a, b = crossing(x)
    session = ab.Session()
    assert session.run([a, b], {a: 5.0}) == [5.0, 6.0]
    assert session.make_callable([b], [a])(3.0) == [4.0]
    assert session.run(b, {x: 1.0}) == 3.0


def test_a_partial_run_over_devices():
    x, w = ab.placeholder((), "float32"), ab.placeholder((), "float32")
    a, _ = crossing(x)
    c = spread(2, a + w)[1]
    session = ab.Session()
    for _ in range(2):
        step = session.partial_run_setup([a, c], [x, w])
        assert session.partial_run(step, a, {x: 2.0}) == 4.0
        np.testing.assert_allclose(session.partial_run(step, c, {w: 1.0}), iterated(2, np.float32(5.0)), rtol=1e-6)


def test_tensors_inside_a_loop_are_fetched():
    x = ab.placeholder((), "float32")
    inner: list[Tensor] = []

    def body(i: Any, y: Any) -> Any:
        with ab.device(B):
            inner.append(y * 2.0)
        with ab.device(A):
            return i + 1, inner[-1] + 1.0

    y = ab.while_loop(lambda i, _: i < 3, body, (0, x))[1]
    session = ab.Session()
    assert session.run([y, inner[-1]], {x: 1.0}) == [15.0, [2.0, 6.0, 14.0]]
    assert isinstance(program_of(session), MachineProgram)


def test_arrays_stores_and_strings_are_fetched_as_values():
    word = ab.placeholder((), "string")
    with ab.device(B):
        array = ab.TensorArray("float32", 2).write(0, 1.0).write(1, 2.0)
        both = ops.strings.join([word, "!"])
    with ab.device(A):
        total = ops.sum(array.stack())
    session = ab.Session()
    assert session.run([array, total, both, word], {word: "so"}) == [[1.0, 2.0], 3.0, "so!", "so"]
    assert isinstance(program_of(session), MachineProgram)


def test_what_is_fetched_shares_no_memory_with_state():
    with ab.device(B):
        v = ab.Variable(np.zeros(3, "float32"))
    x = ab.placeholder((3,), "float32")
    with ab.device(A):
        y = x + 1.0
    session, fed = ab.Session(), np.zeros(3, "float32")
    value, same, _ = session.run([v, x, y], {x: fed})
    assert isinstance(program_of(session), MachineProgram)
    value += 7.0
    same += 7.0
    np.testing.assert_array_equal(v.numpy(), np.zeros(3))
    np.testing.assert_array_equal(fed, np.zeros(3))


@pytest.mark.parametrize("size", [3, 8_000_000])  # the second one is computed by a thread
def test_what_is_fetched_and_assigned_shares_no_memory_with_the_variable(size: int):
    with ab.device(A):
        v = ab.Variable(np.ones(size, "float32"))
    with ab.device(B):
        more = ops.exp(ab.constant(np.zeros(size, "float32")))
    with ab.device(A):
        total = v.value + more
        done = v.assign(total).operation
    session = ab.Session()
    found, _ = session.run([total, done])
    assert isinstance(program_of(session), MachineProgram)
    found += 7.0
    assert v.numpy()[:3].tolist() == [2.0, 2.0, 2.0]
    session.run(done)
    assert found[:3].tolist() == [9.0, 9.0, 9.0]


def test_variables_on_two_devices_are_trained():
    with ab.device(A):
        w = ab.Variable(np.float32(2.0))
    with ab.device(B):
        u = ab.Variable(np.float32(3.0))
    loss = (w * u - 1.0) ** 2
    dw, du = ab.gradients(loss, [w, u])
    steps = [w.assign_sub(0.01 * ops.convert_to_tensor(dw)), u.assign_sub(0.01 * ops.convert_to_tensor(du))]
    session = ab.Session()
    session.run(steps)
    assert isinstance(program_of(session), MachineProgram)
    np.testing.assert_allclose([w.numpy(), u.numpy()], [2.0 - 0.3, 3.0 - 0.2], rtol=1e-6)


def test_recursion_goes_as_deep_as_elsewhere():
    @ab.function
    def power(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: ops.ones_like(x), lambda: power(x, n - 1) * x)

    x, n = ab.placeholder((), "float64"), ab.placeholder((), "int32")
    with ab.device(B):
        y = x * 1.0
    with ab.device(A):
        result = power(y, n) + 1.0
    session = ab.Session()
    assert session.run(result, {x: 1.0, n: 20_000}) == 2.0
    assert isinstance(program_of(session), MachineProgram)
    with pytest.raises(RecursionError, match=r"Function 'power' called itself \d+ calls deep"):
        session.run(result, {x: 1.0, n: 10_000_000})
    assert session.run(result, {x: 2.0, n: 3}) == 9.0


def test_the_guard_names_operation_iteration_and_device():
    x = ab.placeholder((), "float32")

    def body(i: Any, y: Any) -> Any:
        with ab.device(B):
            z = ops.log(y)
        with ab.device(A):
            return i + 1, z - 1.0

    y = ab.while_loop(lambda i, _: i < 4, body, (0, x))[1]
    session = ab.Session()
    assert np.isnan(session.run(y, {x: 2.0}))
    message = r"'log' \(log\) gives NaN from finite numbers, in run 2"
    with ab.debugging.check_numerics(), pytest.raises(FloatingPointError, match=message) as caught:
        session.run(y, {x: 2.0})
    assert "on cpu:1, iteration 1 of" in caught.value.__notes__[0]
    with ab.debugging.check_numerics(), pytest.raises(FloatingPointError, match=r"The value fed to .* holds NaN"):
        session.run(y, {x: np.nan})
    assert np.isnan(session.run(y, {x: 2.0}))


def test_errors_name_the_device():
    x = ab.placeholder((), "int32")
    with ab.device(B):
        array = ops.numpy_function(lambda k: np.arange(3)[k], [x], "int64", shape=())
    with ab.device(A):
        y = array + 1
    with pytest.raises(IndexError) as caught:
        ab.Session().run(y, {x: 7})
    assert "on cpu:1" in caught.value.__notes__[0]


def test_a_loop_that_does_not_end_is_stopped():
    y = spread(2**31 - 1, ab.constant(0.0), name="forever")[1]
    session = ab.Session()
    found = out_of_time(lambda seconds: session.run(y, timeout=seconds), "frame 'forever/while' was in iteration")
    assert re.search(r"The timeout was over.*was not done", found)
    assert re.search(r"cpu:1: frame 'forever/while' was in iteration \d+", found)
    x = ab.placeholder((), "float32")
    np.testing.assert_allclose(session.run(spread(2, x)[1], {x: 0.5}, timeout=60), iterated(2, np.float32(0.5)), 1e-6)


def test_a_dequeue_that_waits_is_stopped():
    queue = ab.queues.FIFOQueue(1, "float32", shapes=())
    _, b = crossing(queue.dequeue())
    with pytest.raises(ab.errors.DeadlineExceededError):
        ab.Session().run(b, timeout=0.01)


def test_many_threads_run_one_step():
    x = ab.placeholder((2,), "float32")
    y = spread(20, x)[1]
    session = ab.Session()
    call = session.make_callable(y, [x])
    call(np.zeros(2, "float32"))
    values = [np.full(2, k, "float32") for k in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for found, value in zip(pool.map(call, values), values, strict=True):
            np.testing.assert_allclose(found, iterated(20, value), rtol=1e-5)
    assert session.statistics().runs == 41


# --- memory ---------------------------------------------------------------------------------------------------------


def test_what_loops_save_is_counted_and_kept_to_a_budget():
    x = ab.placeholder((1000,), "float32")
    slope = ab.gradients(ops.sum(spread(50, x)[1]), [x])[0]
    session, value = ab.Session(), {x: np.linspace(-1, 1, 1000)}
    plain = session.run(slope, value)
    statistics = session.statistics()
    assert statistics.saved_bytes >= 50 * 4000
    assert statistics.recomputed_bytes == 0
    saved = statistics.saved_bytes
    frugal = session.run(slope, value, memory_budget=100_000)
    np.testing.assert_allclose(frugal, plain, rtol=1e-5, atol=1e-12)
    assert session.statistics().recomputed_bytes > 0
    session.run(slope, value)
    assert (session.statistics().saved_bytes, session.statistics().recomputed_bytes) == (saved, 0)
    assert isinstance(program_of(session), MachineProgram)


def test_a_loop_saves_the_same_as_on_one_device():
    x, n = ab.placeholder((10,), "float32"), ab.placeholder((), "int32")
    sizes: list[int] = []
    for devices in (2, 1):
        ab.config.set_devices(cpu=devices)
        with ab.device(None if devices == 1 else B):
            y = ab.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, ops.tanh(y)), (0, x))[1]
        slope = ab.gradients(ops.sum(y), [x])[0]
        session = ab.Session()
        session.run(slope, {x: np.ones(10), n: 6})
        sizes.append(session.statistics().saved_bytes)
    assert sizes == [240, 240]


# --- statistics -----------------------------------------------------------------------------------------------------


def test_what_each_device_did():
    n, x = ab.placeholder((), "int32"), ab.placeholder((2,), "float32")
    y = spread(n, x, parallel_iterations=3)[1]
    session = ab.Session()
    for count in (5, 0, 9):
        session.run(y, {n: count, x: np.ones(2)})
        found = session.statistics().devices
        assert list(found) == [A, B]
        assert all(isinstance(each, DeviceRunStatistics) for each in found.values())
        assert [each.iterations for each in found.values()] == [count + 2] * 2  # the step, and the last test
        assert [each.frames for each in found.values()] == [2, 2]
        assert all(each.peak_bytes is None for each in found.values())
        assert all(1 <= each.peak_iterations <= min(3, count + 1) for each in found.values())
        assert all(each.tokens > each.iterations for each in found.values())
        assert all(each.kernel_seconds > 0 and each.scheduling_seconds > 0 for each in found.values())
    assert session.statistics().runs == 1 + 2


@pytest.mark.parametrize("window", [1, 2, 7])
def test_parallel_iterations_bound_what_is_alive(window: int):
    x = ab.placeholder((), "float32")

    def body(i: Any, y: Any) -> Any:
        for k in range(12):
            with ab.device(f"cpu:{(k + 1) % 2}"):
                y = y + 1.0
        return i + 1, y

    y = ab.while_loop(lambda i, _: i < 30, body, (0, x), parallel_iterations=window)[1]
    session = ab.Session()
    assert session.run(y, {x: 0.0}) == 360.0
    peaks = [each.peak_iterations for each in session.statistics().devices.values()]
    assert max(peaks) == window


def test_simulated_devices_tell_their_memory_and_kernels():
    ab.config.set_devices(sim=2)
    x = ab.placeholder((1000,), "float32")

    def body(i: Any, y: Any) -> Any:
        with ab.device("sim:0"):
            z = ops.tanh(y)
        with ab.device("sim:1"):
            return i + 1, z * 1.5

    y = ab.while_loop(lambda i, _: i < 20, body, (0, x), swap_memory=True)[1]
    session = ab.Session()
    session.run(ab.gradients(ops.sum(y), [x])[0], {x: np.ones(1000)})
    found = session.statistics()
    assert program_of(session).swaps
    assert found.saved_bytes >= 20 * 4000
    for name in ("sim:0", "sim:1"):
        assert (found.devices[name].peak_bytes or 0) >= 4000
        assert found.devices[name].kernel_seconds > 0


# --- order and place ------------------------------------------------------------------------------------------------


def test_a_seed_repeats_the_order():
    seen: list[int] = []

    def note(k: Any, value: Any) -> Any:
        seen.append(int(k))
        return value

    ab.config.set_devices(cpu=12)
    x = ab.placeholder((), "float32")
    results: list[Tensor] = []
    for k in range(12):
        with ab.device(f"cpu:{k}"):
            results.append(ops.numpy_function(note, [k, x], "float32", stateful=False, shape=()))
    orders: list[list[int]] = []
    for seed in (None, 1, 1, 2):
        seen.clear()
        assert ab.Session(schedule_seed=seed).run(results, {x: 1.5}) == [1.5] * 12
        assert sorted(seen) == list(range(12))
        orders.append(list(seen))
    assert orders[1] == orders[2]
    assert len({tuple(order) for order in orders}) == 3


def test_a_placement_is_taken_over():
    x = ab.placeholder((4, 4), "float32", "x")
    y = ops.exp(x @ x)
    z = ops.sum(y)
    placed = ab.placement(z)
    assert {device.name for device in placed.values()} == {A}
    moved = placed.moved(y, B)
    session = ab.Session(placement=moved)
    fed = {x: np.full((4, 4), 0.5)}
    np.testing.assert_allclose(session.run(z, fed), ab.Session().run(z, fed), 1e-6)
    program = program_of(session)
    assert isinstance(program, MachineProgram)
    where = {node.operations[0].type: node.device for node in program.machine.nodes if node.kind == "op"}
    assert where["exp"] == B
    assert where["matmul"] == A
    assert session.run(ops.sum(x), fed) == 8.0  # which the placement does not name
    assert isinstance(program_of(session), Program)


def test_a_placement_for_other_devices_is_refused():
    x = ab.placeholder((4,), "float32")
    y = ops.exp(x)
    placed = ab.placement(y).moved(y, B)
    ab.config.set_devices(cpu=1, sim=1)
    with pytest.raises(PlacementError, match=r"The given placement has 'exp' on cpu:1, .* Make the placement again"):
        ab.Session(placement=placed).run(y, {x: np.ones(4)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placement": "cpu:1"}, r"placement='cpu:1' \(str\): expected what ab.placement\(fetches\) gives"),
        ({"schedule_seed": 1.5}, r"schedule_seed=1.5 \(float\): expected an int, or None"),
    ],
)
def test_wrong_options(options: Any, message: str):
    with pytest.raises(TypeError, match=message):
        ab.Session(**options)


def test_places_follow_from_measured_times_where_that_is_asked_for():
    ab.config.set_devices(cpu=2, measure=True)
    n, x = ab.placeholder((), "int32"), ab.placeholder((64, 64), "float32", "x")

    def body(i: Any, y: Any) -> Any:
        with ab.device(B):
            z = y @ y
        with ab.device(A):
            return i + 1, z * 0.01

    y = ab.while_loop(lambda i, _: i < n, body, (0, x), name="outer")[1]
    ab.Session().run(y, {n: 5, x: np.eye(64)})
    costs = costs_of_process()
    measured = costs.measured("outer/while/body/matmul")
    assert measured is not None
    assert 0 < measured.seconds < 1
    assert measured.bytes == 64 * 64 * 4
    assert costs.iterations("outer/while") == 5
    ab.config.set_devices(cpu=2)
    ab.Session().run(y, {n: 5, x: np.eye(64)})
    assert costs_of_process().measured("outer/while/body/matmul") is None  # nothing is kept unless asked for


# --- to read --------------------------------------------------------------------------------------------------------


def test_a_lowered_step_is_printed_drawn_and_written(graph: Graph, tmp_path: Any):
    x = ab.placeholder((2,), "float32", "x")
    y = spread(3, x, name="outer")[1]
    found = ab.lowered(y)
    assert found.devices == [A, B]
    text = graph.dump(y, lowered=True)
    assert text == found.dump() == str(found)
    assert "frame outer/while[parallel_iterations=32]:" in text
    assert "= recv() @ cpu:1 from" in text
    assert found.dot().startswith("digraph")
    for suffix, content in ((".pb", found.graph_def()), (".dot", found.dot().encode()), (".txt", text.encode())):
        path = tmp_path / f"step{suffix}"
        found.save(path)
        assert path.read_bytes() == content
    with pytest.raises(ValueError, match=r"'step.png' should end in .pb \(a GraphDef\), .dot"):
        found.save(tmp_path / "step.png")
    with pytest.raises(ValueError, match=r"dump\(lowered=True\) prints one step"):
        graph.dump(lowered=True)


def test_the_lowered_form_of_a_step_on_one_device(graph: Graph):
    ab.config.set_devices()
    x = ab.placeholder((2,), "float32", "x")
    text = graph.dump(x + 1.0, lowered=True)
    assert text.startswith("step on cpu:0:")
    assert "send" not in text


def test_a_lowered_step_follows_a_placement():
    x = ab.placeholder((2,), "float32", "x")
    y = ops.exp(x)
    assert ab.lowered(y).devices == [A]
    assert B in ab.lowered(y, placement=ab.placement(y).moved(y, B)).devices


def test_explain_tells_the_program_by_partition():
    x = ab.placeholder((2,), "float32", "x")
    a, b = crossing(x)
    told = ab.explain([a, b])
    first, second = told.index("# --- cpu:0 ---"), told.index("# --- cpu:1 ---")
    assert "# multiply, test_machine_session.py:" in told[second:]
    assert "# add, test_machine_session.py:" in told[first:second]
    assert "test_machine_session" not in ab.explain([a, b], lines=False)
    assert "def step(" in ab.explain(x + 1.0)
