"""Steps that stay on one GPU: printed as one function over its arrays, with variables that stay there."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from programs.generator import programs
from programs.syntax import Program
from shared.examples import examples
from shared.fake_cupy import FakeCupy
from shared.gpus import stand_in
from shared.machines import MachineCase
from shared.placed_steps import Legal

import anabranch as ab
from anabranch.engine.devices import DeviceMemoryError
from anabranch.engine.devices import dispatcher as dispatchers
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.machine.gpu.host_part import gpu_of_step
from anabranch.engine.machine.gpu.program import GpuProgram
from anabranch.engine.machine.gpu.variables import DeviceVariables, OnGpu
from anabranch.engine.machine.gpu.variables import on_gpu as on_gpu_now
from anabranch.engine.machine.program import MachineProgram, prepared_step
from anabranch.engine.ops import collectives
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.random.keys import SetKey
from anabranch.engine.place.devices import list_devices
from anabranch.engine.session.programs import make_program

LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    with stand_in(monkeypatch) as cupy:
        yield cupy


def made(targets: list[Any], feeds: list[Any]) -> Any:
    symbols = [getattr(target, "operation", target) if not hasattr(target, "spec") else target for target in targets]
    return make_program(symbols[0].graph.root, symbols, feeds)


def on_gpu(targets: list[Any], feeds: list[Any]) -> GpuProgram:
    program = made(targets, feeds)
    assert type(program) is GpuProgram
    return program


# --- collectives ----------------------------------------------------------------------------------------------------


class Pair(collectives.Group):
    """Two processes, of which this is one."""

    size, ranks = 2, (0, 1)

    def __init__(self, why: str | None) -> None:
        self.why = why

    def why_not_on_gpus(self) -> str | None:
        return self.why


@pytest.mark.parametrize("why", [None, "cupy has no NCCL"])
def test_explain_says_where_collectives_run(why: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_current", Pair(why))
    x = ab.placeholder((2, 3), "float32")
    with ab.device("gpu:0"):
        y = ab.ops.matmul(x, ab.ops.transpose(x))
    total = ab.distribute.all_reduce(ab.distribute.all_reduce(y) * 2.0)
    program = made([ab.ops.tanh(total)], [x])
    assert (type(program) is GpuProgram) == (why is None)
    summary = ab.explain([ab.ops.tanh(total)], [x]).summary
    says = "2 on the GPU, by NCCL" if why is None else "2 by the memory of the host (cupy has no NCCL)"
    assert f"collectives: {says}\n" in summary


def test_explain_gives_a_reason_that_was_found_in_another_member_later(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(None)
    monkeypatch.setattr(collectives, "_current", pair)
    x = ab.placeholder((2, 3), "float32")
    with ab.device("gpu:0"):
        total = ab.distribute.all_reduce(ab.ops.tanh(x))
    assert "collectives: 1 on the GPU, by NCCL\n" in ab.explain([total], [x]).summary
    monkeypatch.setattr(pair, "why_by_host", lambda: "/job:worker/task:1: cupy has no NCCL")
    assert type(made([total], [x])) is GpuProgram, "what has its device keeps it"
    summary = ab.explain([total], [x]).summary
    assert "collectives: 1 by the memory of the host (/job:worker/task:1: cupy has no NCCL)\n" in summary


def test_a_collective_that_asks_for_the_host_is_there() -> None:
    x = ab.placeholder((2,), "float32")
    with ab.device("gpu:0"):
        y = ab.ops.tanh(x)
    with ab.device("cpu:0"):
        total = ab.distribute.all_reduce(y)
    program = made([total], [x])
    assert type(program) is MachineProgram
    np.testing.assert_allclose(program(np.ones(2, "float32"))[0], np.tanh(np.ones(2, "float32")))


# --- which steps ----------------------------------------------------------------------------------------------------


def test_a_step_of_which_a_part_asks_for_a_gpu_stays_there_as_a_whole() -> None:
    x = ab.placeholder((2, 3), "float32")
    with ab.device("gpu:0"):
        y = ab.ops.matmul(x, ab.ops.transpose(x))
    program = on_gpu([ab.ops.sum(y) + 1.0], [x])
    value = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_allclose(program(value)[0], (value @ value.T).sum() + 1)
    assert program.statistics.runs == 1


@pytest.mark.parametrize("what", ["another device", "strings", "python", "swaps", "nothing"])
def test_other_steps_do_not(what: str) -> None:
    x = ab.placeholder((2,), "float32")
    with ab.device("cpu:1" if what == "nothing" else "gpu:0"):
        y = ab.ops.tanh(x)
        if what == "swaps":
            y = ab.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2.0), (0, y), swap_memory=True)[1]
    if what == "another device":
        with ab.device("cpu:1"):
            y = ab.ops.exp(y)
    if what == "strings":
        y = ab.ops.strings.as_string(y)
    if what == "python":
        y = ab.ops.numpy_function(np.sin, [y], "float32", shape=(2,))
    program = made([y], [x])
    assert type(program) is not GpuProgram


def test_a_budget_leaves_the_step_to_the_machine() -> None:
    x = ab.placeholder((2,), "float32")
    with ab.device("gpu:0"):
        y = ab.ops.tanh(x)
    program = on_gpu([y], [x])
    ab.config.set_memory_budget(1 << 20)
    try:
        assert type(made([y], [x])) is MachineProgram
        np.testing.assert_allclose(program(np.ones(2, "float32"))[0], np.tanh(np.ones(2)), rtol=1e-6)
    finally:
        ab.config.set_memory_budget(None)
    assert program.on_machine().statistics.runs == 1


# --- variables ------------------------------------------------------------------------------------------------------


def counting(size: int = 2) -> tuple[Any, GpuProgram]:
    v = ab.Variable(np.zeros(size, "float32"), name="v")
    with ab.Graph().as_default(), ab.device("gpu:0"):
        assigned = v.assign(v + 1.0)
    return v, on_gpu([symbol_of(assigned).operation], [])


def test_variables_stay_on_the_gpu_between_steps(gpu: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    v, program = counting()
    uploads: list[Any] = []
    asarray = gpu.asarray
    monkeypatch.setattr(gpu, "asarray", lambda value, dtype=None: uploads.append(value) or asarray(value, dtype))
    program()
    uploads.clear()
    program()
    program()
    assert not [value for value in uploads if getattr(value, "shape", ()) == (2,) and isinstance(value, np.ndarray)]
    assert isinstance(v.first_value, OnGpu)
    assert v.shape == (2,)
    np.testing.assert_array_equal(v.numpy(), [3.0, 3.0])
    assert v.first_value is None  # the host has a copy, and the GPU its array
    program()
    np.testing.assert_array_equal(v.numpy(), [4.0, 4.0])


def test_what_the_host_writes_between_steps_counts() -> None:
    v, program = counting()
    program()
    v.assign([5.0, 6.0])
    program()
    np.testing.assert_array_equal(v.numpy(), [6.0, 7.0])
    v.assign_add([1.0, 1.0])
    program()
    np.testing.assert_array_equal(v.numpy(), [8.0, 9.0])


def test_a_step_of_a_cpu_writes_in_memory_of_its_own() -> None:
    v, program = counting()
    with ab.Graph().as_default(), ab.device("cpu:0"):
        scaled = ab.ops.sum(v * 2.0)
        assigned = v.assign(v * 10.0)
    on_cpu = made([scaled, symbol_of(assigned).operation], [])
    program()
    held = v.numpy()
    read = v.value
    assert on_cpu()[0] == 4.0
    np.testing.assert_array_equal(v.numpy(), [10.0, 10.0])
    program()
    np.testing.assert_array_equal(v.numpy(), [11.0, 11.0])
    np.testing.assert_array_equal(held, [1.0, 1.0])
    np.testing.assert_array_equal(read, [1.0, 1.0])


def test_variables_that_are_only_read_are_uploaded_once(gpu: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    v = ab.Variable(np.arange(3.0, dtype="float32"))
    with ab.Graph().as_default(), ab.device("gpu:0"):
        y = v * 2.0
    program = on_gpu([y], [])
    np.testing.assert_array_equal(program()[0], [0.0, 2.0, 4.0])
    uploads: list[Any] = []
    asarray = gpu.asarray
    monkeypatch.setattr(gpu, "asarray", lambda value, dtype=None: uploads.append(value) or asarray(value, dtype))
    np.testing.assert_array_equal(program()[0], [0.0, 2.0, 4.0])
    assert not [value for value in uploads if getattr(value, "shape", ()) == (3,) and isinstance(value, np.ndarray)]
    v.assign([1.0, 1.0, 1.0])
    np.testing.assert_array_equal(program()[0], [2.0, 2.0, 2.0])


def test_a_machine_finds_what_a_step_left_on_the_gpu() -> None:
    v, program = counting()
    with ab.Graph().as_default():
        with ab.device("gpu:0"):
            y = ab.ops.exp(v)
        with ab.device("cpu:1"):
            z = y + 1.0
    both = made([z], [])
    assert type(both) is MachineProgram
    program()
    np.testing.assert_allclose(both()[0], np.exp([1.0, 1.0]) + 1, rtol=1e-6)
    program()
    np.testing.assert_allclose(both()[0], np.exp([2.0, 2.0]) + 1, rtol=1e-6)


def test_a_machine_reads_what_it_has_written_and_not_what_a_step_left() -> None:
    v, program = counting()
    program()
    v.numpy()  # the host has it, too
    dispatcher = dispatchers._dispatchers[0]
    values = DeviceVariables(dispatcher)
    held = on_gpu_now(v, dispatcher)
    assert held is not None
    assert values.read(v) is held.array
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher, "fetch", lambda value, then: None)  # the copy to the host is on its way
        values.write(v, written := dispatcher.cupy.asarray(np.array([5.0, 6.0], "float32")))
    assert values.read(v) is written


def test_copies_of_variables_that_are_on_a_gpu() -> None:
    v, program = counting()
    program()
    other = copy.deepcopy(v)
    program()
    np.testing.assert_array_equal(other.numpy(), [1.0, 1.0])
    np.testing.assert_array_equal(v.numpy(), [2.0, 2.0])


def test_scalars_and_rows() -> None:
    count = ab.Variable(0, name="count")
    total = ab.Variable(0.0, name="total")
    table = ab.Variable(np.zeros((3, 2), "float32"), name="table")
    with ab.Graph().as_default(), ab.device("gpu:0"):
        x = ab.placeholder((2,), "float32")
        done = [
            count.assign(count + 1),
            total.assign(total + ab.ops.sum(x)),
            table.scatter_add(ab.IndexedSlices(ab.ops.reshape(x, (1, 2)), ab.constant([1]), [3, 2])),
        ]
    program = on_gpu([symbol_of(each).operation for each in done], [x])
    for _ in range(3):
        program(np.array([1.0, 2.0], "float32"))
    assert (count.numpy(), total.numpy()) == (3, 9.0)
    assert type(count.numpy()) is np.int32
    np.testing.assert_array_equal(table.numpy(), [[0, 0], [3, 6], [0, 0]])


def test_no_update_of_several_threads_is_lost() -> None:
    v, program = counting()
    threads = [threading.Thread(target=lambda: [program() for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(v.numpy(), [80.0, 80.0])


# --- loops, branches, random numbers --------------------------------------------------------------------------------


def test_a_loop_and_a_branch_and_their_gradients() -> None:
    x = ab.placeholder((3,), "float32")
    with ab.device("gpu:0"):
        _, y = ab.while_loop(
            lambda i, y: ab.ops.logical_and(i < 10, ab.ops.max(y) < 5.0), lambda i, y: (i + 1, y * y), (0, x)
        )
        z = ab.cond(ab.ops.sum(x) > 0.0, lambda: ab.ops.sum(y * 2.0), lambda: ab.ops.sum(y * 3.0))
        (dx,) = ab.gradients(z, [x])
    program = on_gpu([z, dx], [x])
    for value in ([1.5, 1.1, 0.5], [-1.5, 0.1, 0.5]):
        given = np.array(value, "float32")
        wanted, trips = given, 0
        while trips < 10 and wanted.max() < 5:
            wanted, trips = wanted * wanted, trips + 1
        factor = 2 if sum(value) > 0 else 3
        found = program(given)
        np.testing.assert_allclose(found[0], factor * wanted.sum(), rtol=1e-5)
        np.testing.assert_allclose(found[1], factor * 2**trips * given ** (2**trips - 1), rtol=1e-4)


def test_keys_are_those_of_the_cpu() -> None:
    def drawn(device: str) -> list[Any]:
        generator = ab.random.SeedGenerator(7)
        with ab.Graph().as_default(), ab.device(device):
            first = ab.random.uniform((3,), seed=generator)
            second = ab.random.uniform((3,), seed=generator) + first
            program = made([first, second], [])
        assert (type(program) is GpuProgram) == (device == "gpu:0")
        return [program(), program()]

    np.testing.assert_array_equal(drawn("gpu:0"), drawn("cpu:0"))


@pytest.mark.parametrize("first", ["a loop", "a state"])
def test_keys_behind_others_of_their_generator_wait_for_these(first: str) -> None:
    def drawn(device: str) -> list[Any]:
        generator = ab.random.SeedGenerator(7)
        with ab.Graph().as_default(), ab.device(device):
            x = ab.placeholder((2,), "int64")
            if first == "a loop":
                before = ab.while_loop(
                    lambda i, y: i < 3,
                    lambda i, y: (i + 1, y + ab.random.uniform((3,), seed=generator)),
                    (0, ab.ops.zeros(3)),
                )[1]
            else:
                before = apply(SetKey(generator), ab.ops.sort(ab.ops.stack([x[0], x[1] * 2])))
            program = made([before, ab.random.uniform((3,), seed=generator)], [x])
        return [np.asarray(value) for _ in range(2) for value in program(np.array([9, 2]))]

    for found, wanted in zip(drawn("gpu:0"), drawn("cpu:0"), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_labels_are_checked_on_the_host() -> None:
    y = ab.placeholder((2,), "int32")
    x = ab.placeholder((2, 3), "float32")
    with ab.device("gpu:0"):
        loss = ab.losses.SparseCategoricalCrossentropy(from_logits=True)(y, x)
    program = on_gpu([loss], [y, x])
    scores = np.zeros((2, 3), "float32")
    np.testing.assert_allclose(program(np.array([0, 2], "int32"), scores)[0], np.log(3), rtol=1e-6)
    with pytest.raises(ValueError, match="0") as caught:
        program(np.array([0, 3], "int32"), scores)
    assert any("defined at" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("chunk", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_programs(chunk: int) -> None:
    ran: list[bool] = []

    @seed(chunk)
    @settings(max_examples=examples(12, 60), database=None, deadline=None, suppress_health_check=LARGE)
    @given(programs())
    def check(program: Program) -> None:
        ran.append(check_program(program))

    check()
    assert any(ran)


def check_program(program: Program) -> bool:
    """A program gives what the interpreter gives, twice; False if it can't stay on the GPU."""
    case = MachineCase(program, 1)
    expected = case.interpreted()
    origin = (case.built.graph, case.targets, list(case.feeds), None)
    step = prepared_step(*origin, True, place_all)
    device = gpu_of_step(step, list_devices())
    if device is None:
        return False
    on_it = GpuProgram(*origin, step, device, no_machine)
    for _ in range(2):
        case.built.reset(program)
        found = case._observed(on_it(*case.feeds.values()))
        pairs = [*zip(found[0], expected[0], strict=True), *[(found[1][name], expected[1][name]) for name in found[1]]]
        for value, wanted in pairs:
            assert (value.dtype, value.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-4)
    return True


def place_all(operations: Any, feeds: Any) -> dict[Any, str]:
    return dict(Legal(lambda operation: "gpu:0")(operations, feeds))


def no_machine() -> Any:
    raise AssertionError("the step was left to the machine")


# --- failures -------------------------------------------------------------------------------------------------------


def test_an_error_names_the_operation_and_leaves_variables_as_they_are() -> None:
    v = ab.Variable([1.0, 2.0], name="v")
    with ab.Graph().as_default(), ab.device("gpu:0"):
        index = ab.placeholder((), "int32")
        assigned = v.assign(v + 1.0)
        found = ab.while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, y + ab.TensorArray("float32", 2).write(index, y).read(0)),
            (0, ab.ops.sum(v)),
        )[1]
    program = on_gpu([found, symbol_of(assigned).operation], [index])
    with pytest.raises(IndexError, match="out of range for size 2") as caught:
        program(np.int32(9))
    (note,) = caught.value.__notes__
    assert "on gpu:0, iteration 0 of" in note
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])
    program(np.int32(0))
    np.testing.assert_array_equal(v.numpy(), [2.0, 3.0])


def test_a_step_that_does_not_fit_names_who_holds_memory() -> None:
    ab.config.set_devices(cpu=1, gpu={"count": 1, "memory_limit": 16 * 1024})
    v = ab.Variable(np.ones(1024, "float32"), name="weights")
    with ab.Graph().as_default(), ab.device("gpu:0"):
        n = ab.placeholder((), "int32")
        y = ab.ops.broadcast_to(v, ab.ops.stack([n, 1024]))
        done = v.assign(ab.ops.sum(ab.ops.sort(y), 0))
    program = on_gpu([symbol_of(done).operation], [n])
    with pytest.raises(
        DeviceMemoryError, match=r"gpu:0 is out of memory. Step .* of 16,384 .*'weights' holds"
    ) as caught:
        program(np.int32(8))
    assert any("In operation" in note for note in caught.value.__notes__)
    np.testing.assert_array_equal(v.numpy(), np.ones(1024))


def test_a_forked_process_can_not_read_what_is_on_the_gpu() -> None:
    v, program = counting()
    program()
    dispatcher = dispatchers._dispatchers[0]
    dispatcher._process = os.getpid() + 1
    with pytest.raises(RuntimeError, match=r"forked.*spawn"):
        v.numpy()
    dispatcher._process = os.getpid()
    np.testing.assert_array_equal(v.numpy(), [1.0, 1.0])


# --- looking at it --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, which stands in for cupy
def test_guards_go_by_the_machine() -> None:
    x = ab.placeholder((2,), "float32")
    with ab.device("gpu:0"):
        y = ab.ops.log(x)
    program = on_gpu([y], [x])
    with ab.debugging.check_numerics(), pytest.raises(FloatingPointError, match="log"):
        program(np.array([-1.0, 1.0], "float32"))
    assert np.isnan(program(np.array([-1.0, 1.0], "float32"))[0][0])


def test_the_listing_names_operations_and_lines() -> None:
    x = ab.placeholder((2, 2), "float32", "x")
    with ab.device("gpu:0"):
        y = ab.ops.matmul(x, x)
    program = on_gpu([y], [x])
    assert "test_gpu_program.py" in program.listing()
    assert "run_matmul" in program.listing(lines=False)


def test_training_gives_the_losses_of_the_cpu() -> None:
    def trained(device: str) -> list[float]:
        ab.utils.set_random_seed(1)
        with ab.device(device):
            model = ab.Sequential(
                [ab.Input((5,)), ab.layers.Dense(4, "tanh"), ab.layers.Dropout(0.5), ab.layers.Dense(1)]
            )
            model.compile(ab.optim.SGD(0.1), "mse")
            x = np.random.default_rng(0).normal(size=(32, 5)).astype("float32")
            losses = model.fit(x, x[:, :1], epochs=2, batch_size=16, shuffle=False, verbose=0).history["loss"]
            losses.append(float(np.abs(model.predict(x, verbose=0)).sum()))
        return losses

    np.testing.assert_allclose(trained("gpu:0"), trained("cpu:0"), rtol=1e-4)
