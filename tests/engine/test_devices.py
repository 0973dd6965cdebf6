"""Devices: names and their merging, scopes, functions as scopes, colocation, declaring, what runs where, refusals."""

import importlib
import re
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared.cupy_limits import is_left_to_kernels
from shared.device_arrays import DeviceArray, to_device, to_host, xp
from shared.every_op import registered_ops
from shared.fake_cupy import FakeCupy

import anabranch as ab
from anabranch.engine.devices.cuda import GpuUnavailableError
from anabranch.engine.graph import Colocation, DeviceName, IndexedSlices, Sample, eagerly
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.place import Device, PlacementError, list_devices, make_devices, why_not

NAMES = st.builds(
    DeviceName,
    st.none() | st.from_regex(r"[a-z][a-z0-9_.-]{0,5}", fullmatch=True),
    st.none() | st.integers(0, 99),
    st.none(),
    st.none(),
) | st.builds(
    DeviceName,
    st.none() | st.sampled_from(["ps", "worker"]),
    st.none() | st.integers(0, 3),
    st.sampled_from(["CPU", "GPU", "SIM"]),
    st.none() | st.integers(0, 3),
)
ASKING = NAMES.filter(lambda name: name != DeviceName())


@pytest.fixture(autouse=True)
def _devices_as_they_were() -> Generator[None]:
    with ab.Graph().as_default():
        yield
    ab.config.set_devices()


def line_of(item: Any) -> str:
    operation = item if hasattr(item, "location") else symbol_of(item).operation
    return re.escape(str(operation.location))


# --- names ----------------------------------------------------------------------------------------------------------


@given(ASKING)
def test_a_name_is_read_as_it_was_written(name: DeviceName):
    assert DeviceName.parse(str(name)) == name


@given(NAMES, NAMES)
def test_inner_parts_win_and_open_ones_are_taken_over(outer: DeviceName, inner: DeviceName):
    merged = outer.merged(inner)
    assert merged.job == (outer.job if inner.job is None else inner.job)
    assert merged.task == (outer.task if inner.task is None else inner.task)
    assert merged.kind == (outer.kind if inner.kind is None else inner.kind)
    same_kind = inner.kind in (None, outer.kind)
    assert merged.number == (outer.number if inner.number is None and same_kind else inner.number)


@given(NAMES, NAMES, NAMES)
def test_merging_is_associative(a: DeviceName, b: DeviceName, c: DeviceName):
    assert a.merged(b).merged(c) == a.merged(b.merged(c))


@given(NAMES, NAMES)
def test_merging_with_nothing_and_with_itself_changes_nothing(name: DeviceName, other: DeviceName):
    assert name.merged(name) == name.merged(DeviceName()) == DeviceName().merged(name) == name
    assert name.accepts(name)
    assert DeviceName().accepts(name)
    if other.accepts(name):  # what is asked for is a part of what there is
        assert other.merged(name) == name


def test_partial_names_accept_every_device_that_fits():
    devices = [*make_devices(cpu=1, gpu=2), *make_devices(DeviceName("worker", 3), gpu=1)]

    def fitting(name: str) -> list[str]:
        return [device.name for device in devices if DeviceName.parse(name).accepts(device.spec)]

    assert fitting("gpu") == ["gpu:0", "gpu:1", "/job:worker/task:3/device:GPU:0"]
    assert fitting("/task:3") == ["/job:worker/task:3/device:CPU:0", "/job:worker/task:3/device:GPU:0"]
    assert fitting("/job:localhost/gpu:1") == ["gpu:1"]
    assert fitting("sim") == []


# --- scopes ---------------------------------------------------------------------------------------------------------


@given(st.lists(ASKING, min_size=1, max_size=4))
def test_nested_scopes_ask_for_the_merged_name(names: list[DeviceName]):
    expected = DeviceName()
    with ab.Graph().as_default():
        with ExitStack() as scopes:
            for name in names:
                expected = expected.merged(name)
                scopes.enter_context(ab.device(str(name)))
            assert ab.constant(1.0).device == str(expected)
        assert ab.constant(2.0).device == ""


def test_a_function_is_asked_for_each_operation_and_variable():
    seen: list[tuple[str, str]] = []

    def choose(made: Any) -> str | None:
        if isinstance(made, ab.Variable):
            return "cpu:0"
        seen.append((made.type, made.device))
        return "sim:1" if made.type == "tanh" else None

    with ab.device("/task:0"), ab.device(choose):
        v = ab.Variable(1.0)
        with ab.device("sim:0"):
            x = ab.constant(1.0)
        y = ab.ops.tanh(x)
    assert seen == [("constant", "/device:SIM:0"), ("tanh", "")]
    assert (v.device, x.device, y.device) == (
        "/task:0/device:CPU:0",
        "/task:0/device:SIM:0",
        "/task:0/device:SIM:1",
    )


def test_inner_scopes_win_over_what_a_function_says():
    with ab.device(lambda made: "/task:1/gpu:1"), ab.device("cpu:0"):
        assert ab.constant(1.0).device == "/task:1/device:CPU:0"


@pytest.mark.parametrize(
    ("answer", "message"),
    [(3, "A device function returned 3 for 'constant'; expected a device's name"), ("a b", "'a b' can't be read")],
)
def test_a_function_that_returns_no_name(answer: Any, message: str):
    with ab.device(lambda made: answer), pytest.raises(ValueError, match=message):
        ab.constant(1.0)


def test_shared_constants_do_not_remember_the_scope_of_their_first_use():
    x = ab.placeholder((2,), "float32")
    with ab.device("sim:0"):
        y = x + 1.0
    constants = [operation for operation in symbol_of(y).graph.operations if operation.type == "constant"]
    assert [operation.device for operation in constants] == [""] * len(constants)
    assert y.device == "/device:SIM:0"


# --- variables ------------------------------------------------------------------------------------------------------


def test_a_variable_remembers_its_scope_and_what_touches_it_follows():
    with ab.device("sim:1"):
        v = ab.Variable([1.0, 2.0], name="v")
    with ab.device("cpu:0"):
        value = v.value
        changed = v.assign_add([1.0, 1.0])
        rows = v.scatter_update(IndexedSlices([5.0], [0], [2]))
    assert v.device == value.device == changed.device == rows.device == "/device:SIM:1"


def test_a_variable_without_a_request_takes_none_from_where_it_is_used():
    v = ab.Variable(1.0)
    with ab.device("sim:0"):
        first = v.value
        written = v.assign(first * 2.0)
    with ab.device("sim:1"):
        assert v.value.device == ""
    assert first.device == written.device == ""
    assert first.operation.inputs == ()


def test_a_layers_variables_lie_where_the_layer_is_called():
    with ab.device("sim:1"):
        layer = ab.layers.Dense(2)
        layer(np.ones((1, 3), "float32"))
    assert [weight.device for weight in layer.weights] == ["/device:SIM:1"] * 2


def test_an_optimizers_variables_and_updates_are_with_the_model_s():
    with ab.device("sim:1"):
        w = ab.Variable([1.0], name="w")
    adam = ab.optim.Adam()
    graph = ab.get_default_graph()
    loss = ab.ops.sum(w * w)
    before = len(graph.operations)
    adam.minimize(loss, [w])
    slots = [v for v in adam.variables if v.shape == (1,)]
    assert len(slots) == 2
    assert {slot.device for slot in slots} == {"/device:SIM:1"}
    assigns = [o for o in graph.operations[before:] if o.type == "assign" and o.outputs[0].shape == (1,)]
    assert len(assigns) == 3
    assert {operation.device for operation in assigns} == {"/device:SIM:1"}


def test_the_device_of_a_variable_and_colocation_are_saved(tmp_path: Path):
    with ab.device("sim:1"):
        v = ab.Variable([1.0], name="v")
    a = ab.constant(2.0, name="a")
    with ab.colocate_with(a):
        (v.value + 1.0).graph.save(tmp_path / "graph.npz")
    graph = ab.load_graph(tmp_path / "graph.npz")
    assert [variable.device for variable in graph.variables] == ["/device:SIM:1"]
    (held,) = graph.get_operation_by_name("add").colocations
    assert (held.name, held.binding) == ("a", True)
    assert graph.get_operation_by_name("a").colocations == (held,)


# --- colocation -----------------------------------------------------------------------------------------------------


def test_colocate_with_lifts_the_scopes_around_and_takes_the_device():
    with ab.device("sim:0"):
        a = ab.constant(1.0)
    with ab.device("cpu:0"), ab.colocate_with(a):
        b = a + 1.0
    assert b.device == "/device:SIM:0"
    (held,) = symbol_of(b).operation.colocations
    assert isinstance(held, Colocation)
    assert held in symbol_of(a).operation.colocations
    assert held.binding


def test_colocate_with_takes_operations_tensors_and_variables():
    v = ab.Variable(1.0)
    a = ab.constant(1.0)
    for item in (a, symbol_of(a).operation):
        with ab.colocate_with(item):
            assert symbol_of(a * 2.0).operation.colocations == symbol_of(a).operation.colocations
    for item in (v, v.value.operation):
        with ab.colocate_with(item):
            assert symbol_of(a * 3.0).operation.colocations == (v,)
    with pytest.raises(TypeError, match="takes an operation, a tensor or a variable, not str"):
        ab.colocate_with("a")
    with ab.Graph().as_default(), pytest.raises(ValueError, match="belongs to another graph"):
        ab.colocate_with(a)


def test_a_gradient_is_near_what_it_is_the_gradient_of():
    x = ab.placeholder((2,), "float32")
    with ab.device("sim:1"):
        y = ab.ops.tanh(x)
    with ab.device("cpu:0"):
        (dx,) = ab.gradients(ab.ops.sum(y), [x])
    assert dx.device == "/device:SIM:1"
    (held,) = dx.operation.colocations
    assert held in symbol_of(y).operation.colocations
    assert not held.binding


# --- declaring ------------------------------------------------------------------------------------------------------


def test_there_is_one_cpu_unless_devices_are_declared():
    assert [str(device) for device in list_devices()] == ["cpu:0"]
    ab.config.set_devices(cpu=2, sim={"count": 2, "memory_limit": 1000}, gpu=1)
    assert [device.name for device in ab.config.list_devices()] == ["cpu:0", "cpu:1", "gpu:0", "sim:0", "sim:1"]
    assert [device.memory_limit for device in ab.config.list_devices("SIM")] == [1000, 1000]
    assert str(ab.config.list_devices("sim")[1]) == "sim:1, at most 1,000 bytes"
    ab.config.set_devices(["sim:0", "sim:1"])
    assert [device.name for device in ab.config.list_devices()] == ["cpu:0", "sim:0", "sim:1"]
    ab.config.set_devices(sim={"bandwidth": 6e9, "latency": 0})
    (device,) = ab.config.list_devices("sim")
    assert (device.bandwidth, device.latency, device.kind, device.number) == (6e9, 0, "sim", 0)
    assert {each.kind: each.has_own_memory for each in make_devices(cpu=1, gpu=1, sim=1)} == {
        "cpu": False,
        "gpu": True,
        "sim": True,
    }


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tpu": 1}, ValueError, "'tpu' is no kind of device; expected some of cpu, gpu, sim"),
        ({"cpu": 0}, ValueError, "cpu=0; expected at least 1"),
        ({"sim": -1}, ValueError, "sim=-1; expected at least 0"),
        ({"sim": "two"}, TypeError, "sim='two'; expected how many there are, or a dict of options"),
        ({"sim": True}, TypeError, "sim=True; expected how many"),
        ({"sim": {"memory": 1}}, ValueError, "sim has no option 'memory'; expected some of count, memory_limit"),
        ({"sim": {"memory_limit": -1}}, ValueError, "memory_limit=-1; expected a number that is not negative"),
        ({"cpu": {"swap_threshold": 1}}, ValueError, "cpu has no option 'swap_threshold'"),
        ({"sim": {"swap_threshold": -1}}, ValueError, "swap_threshold=-1; expected a number that is not negative"),
        (
            {"gpu": {"memory_limit": 10, "swap_threshold": 11}},
            ValueError,
            "gpu: swap_threshold=11 bytes; expected at most the memory_limit, 10",
        ),
        ({"sim": {"bandwidth": 0}}, ValueError, "bandwidth=0; expected more than 0"),
        ({"sim": {"flops": float("nan")}}, ValueError, "flops=nan; expected a number that is not negative"),
        ({"devices": ["sim:1"]}, ValueError, "expected names such as 'cpu:0', counted from 0"),
        ({"devices": ["/task:0"]}, ValueError, "expected names such as 'cpu:0'"),
    ],
)
def test_declarations_that_are_refused(arguments: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        ab.config.set_devices(**arguments)
    assert [device.name for device in list_devices()] == ["cpu:0"]


# --- what runs where ------------------------------------------------------------------------------------------------


def test_what_a_simulated_device_refuses():
    text = ab.constant("a")
    number = ab.constant(1.0)
    calling = ab.ops.numpy_function(np.sin, [number], "float32", stateful=False)
    printing = ab.ops.print(number)
    assert isinstance(printing, ab.Operation)
    for kind in ("sim", "gpu"):
        assert why_not(kind, symbol_of(number).operation) is None
        assert why_not(kind, symbol_of(text).operation) == "only a CPU has strings"
        for operation in (printing, symbol_of(calling).operation):
            assert "calls Python, prints, checks" in str(why_not(kind, operation))
            assert why_not("cpu", operation) is None
    assert why_not("cpu", symbol_of(text).operation) is None


def test_keys_are_taken_on_the_host():
    drawn = ab.random.uniform((4,), seed=ab.random.SeedGenerator(1))
    (key,) = [operation for operation in symbol_of(drawn).graph.operations if operation.type == "take_key"]
    assert "host's memory" in str(why_not("sim", key))
    assert why_not("gpu", symbol_of(drawn).operation) is None


def numeric_cases() -> list[Any]:
    """All samples of ops that have no strings among their inputs."""
    found: list[Any] = []
    for name, cls in sorted(registered_ops().items()):
        samples = [sample for sample in cls.samples() if all(np.asarray(i).dtype.kind != "T" for i in sample.inputs)]
        if samples and cls.__module__.startswith("anabranch.") and name != "constant":
            found.append(pytest.param(name, samples, id=name))
    return found


# They need NumPy to make text of numbers, so that their results are strings, which no GPU has.
MAKE_STRINGS = {"as_string", "string_format"}


def runs_on_device_arrays(sample: Sample) -> bool:
    """Test whether `run` computes with a device's arrays alone. The keys of random ops are values on the host."""
    inputs = [np.asarray(value) for value in sample.inputs]
    if sample.op.type_name.startswith("random_"):
        given = [inputs[0], *[to_device(value) for value in inputs[1:]]]
    else:
        given = [to_device(value) for value in inputs]
    try:
        with np.errstate(all="ignore"):
            results = sample.op.run(xp, *given)
    except (TypeError, AttributeError):
        return False
    several = results if isinstance(results, tuple) else (results,)
    return sample.op.type_name == "shape_of" or not any(isinstance(value, np.ndarray) for value in several)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "samples"), numeric_cases())
def test_ops_run_on_device_arrays_unless_they_say_otherwise(name: str, samples: list[Sample]):
    runs = all(runs_on_device_arrays(sample) for sample in samples if not is_left_to_kernels(sample))
    assert runs == (not registered_ops()[name].host_only and name not in MAKE_STRINGS)


def test_the_ops_that_no_gpu_runs():
    for module in ("ops.begun_collectives", "summaries.ops"):  # their ops are registered when they are asked for
        importlib.import_module(f"anabranch.engine.{module}")
    declared = {name for name, cls in registered_ops().items() if cls.host_only and cls.__module__.startswith("anab")}
    assert declared == {
        "array_gather_like",
        "array_scatter_grad",
        "array_stack_like",
        "barrier",  # nothing moves
        "copy_parts",  # for a file of the host
        "decode_raw",  # CuPy has no dtypes of another byte order, and readers give bytes on the host
        "drop_copies",
        "flush_summaries",  # files are the host's
        "histogram_buckets",
        "image_pixels",
        "record_read",
        "replica_steps_sum",  # a ps task adds on the host
        "restore_tensors",
        "save_shard",
        "segment_prod",  # CuPy has no `multiply.at`
        "write_manifest",
        "write_summary",
    }


def test_device_arrays_refuse_what_cupy_refuses():
    x = to_device(np.ones(3))
    assert isinstance(x + 1, DeviceArray)
    assert isinstance(np.add(x, x), DeviceArray)
    assert to_host(xp.sum(x)) == 3.0
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(x)
    with pytest.raises(TypeError, match="Unsupported type"):
        x.__add__(np.ones(3))


# --- refusals when a step is prepared -------------------------------------------------------------------------------


def test_a_device_that_is_not_declared():
    x = ab.placeholder((2,), "float32")
    with ab.device("gpu:0"):
        y = ab.ops.tanh(x)
    message = (
        rf"Operation 'tanh' \(tanh, defined at {line_of(y)}\) asks for device '/device:GPU:0', but the "
        r"devices are cpu:0\. Declare others with ab.config.set_devices\(gpu=...\)"
    )
    with pytest.raises(PlacementError, match=message):
        ab.Session().run(y, {x: [1.0, 2.0]})
    np.testing.assert_array_equal(ab.Session().run(y, {y: [1.0, 2.0]}), [1.0, 2.0])  # fed, it does not run


def test_an_op_that_runs_at_once_is_refused_on_a_device_that_is_not_declared():
    message = r"Op 'multiply', which runs at once, asks for device '/device:GPU:0', but the devices are cpu:0\. Declare"
    with eagerly(), ab.device("gpu:0"):
        v = ab.Variable(2.0)  # keeps the request, for functions
        with pytest.raises(PlacementError, match=message):
            ab.ops.multiply(v, 3.0)
        with ab.device(None):
            assert float(v * 3.0) == 6.0
        with ab.device("cpu:0"):
            assert float(v * 3.0) == 6.0
        with ab.device("/job:worker/task:1"):  # first values of variables of other tasks are computed here
            assert float(v * 3.0) == 6.0
    ab.config.set_devices(sim=1)
    with eagerly(), ab.device("sim:0"):
        assert float(v * 3.0) == 6.0


def test_functions_are_refused_on_a_device_that_is_not_declared() -> None:
    double = ab.function(_double)
    message = r"Function '{}' asks for device '/device:GPU:0', but the devices are cpu:0\. Declare"
    with eagerly():
        x = ab.ops.ones((2,))
        assert double(x).numpy().tolist() == [2, 2]  # which has been compiled without a request
        with ab.device("gpu:0"):
            for value in (x, np.ones(2)):
                with pytest.raises(PlacementError, match=message.format("_double")):
                    double(value)
            with ab.GradientTape(), pytest.raises(PlacementError, match=message.format("_double")):
                double(x)
            with pytest.raises(PlacementError, match=message.format("mapped")):
                ab.vectorized_map(_double, x)
            with ab.device("cpu:0"):
                assert double(x).numpy().tolist() == [2, 2]
        with ab.device("/job:worker/task:1"):
            assert double(x).numpy().tolist() == [2, 2]


def test_a_function_runs_where_the_scope_around_its_call_asks() -> None:
    ab.config.set_devices(sim=2)
    double = ab.function(_double)
    found: list[str] = []
    with eagerly():
        x = ab.ops.ones((2,))
        for name in ("sim:0", "sim:1", "sim:0", None):
            with ab.device(name):
                assert double(x).numpy().tolist() == [2, 2]
                with ab.GradientTape() as tape:
                    tape.watch(x)
                    y = double(x)
                assert tape.gradient(y, x).numpy().tolist() == [2, 2]
            trace = double.latest_trace()
            assert trace is not None
            found.append(trace[0][0].operation.device)
    assert found == ["/device:SIM:0", "/device:SIM:1", "/device:SIM:1", ""]  # the first is found again
    assert double.trace_count() == 3


def test_strings_and_checks_of_a_function_that_is_called_on_a_device_stay_on_the_host() -> None:
    ab.config.set_devices(sim=1)

    @ab.function
    def checked(x: Any) -> Any:
        with ab.control_dependencies([ab.ops.assert_less(x, 10.0)]):
            return ab.ops.strings.as_string(x + 1.0), x * 2.0

    with eagerly(), ab.device("sim:0"):
        text, number = checked(ab.ops.ones(()))
        assert (str(text.numpy()), float(number)) == ("2.000000", 2.0)
        with pytest.raises(ab.errors.InvalidArgumentError):
            checked(ab.ops.ones(()) * 20.0)
    trace = checked.latest_trace()
    assert trace is not None
    assert [each.operation.device for each in trace[0][:2]] == ["", "/device:SIM:0"]


def test_data_is_prepared_on_the_cpu_whatever_device_is_asked_for_around() -> None:
    ab.config.set_devices(sim=1)
    with eagerly(), ab.device("sim:0"):
        texts = ab.tf.data.Dataset.from_tensor_slices(["A b", "C"]).map(ab.tf.strings.lower)
        assert [str(text) for text in texts.as_numpy_iterator()] == ["a b", "c"]
        layer = ab.layers.TextVectorization()
        layer.adapt(["A b", "C"])
        assert sorted(layer.get_vocabulary()[2:]) == ["a", "b", "c"]


def _double(x: Any) -> Any:
    return 2 * x


def test_a_declared_device_runs_on_the_cpu_until_it_has_an_executor():
    ab.config.set_devices(sim=1)
    with ab.device("sim:0"):
        y = ab.ops.tanh(ab.constant([0.0]))
    assert ab.Session().run(y) == 0.0


def test_an_operation_without_a_kernel_names_its_request_and_the_devices():
    ab.config.set_devices(sim=2)
    with ab.device("sim:1"):
        text = ab.constant("a", name="text")
    message = (
        rf"Operation 'text' \(constant, defined at {line_of(text)}\) asks for '/device:SIM:1', can't run "
        r"there: only a CPU has strings. The devices are cpu:0, sim:0, sim:1."
    )
    with pytest.raises(PlacementError, match=message):
        ab.Session().run(text)


def test_what_is_inside_loops_and_branches_is_refused_too():
    x = ab.placeholder((), "float32")

    def body(i: Any, y: Any) -> Any:
        with ab.device("gpu:3"):
            y = y * 2.0
        return i + 1, y

    _, y = ab.while_loop(lambda i, y: i < 3, body, (0, x))
    z = ab.cond(x > 0, lambda: y, lambda: x)
    with pytest.raises(PlacementError, match=r"'multiply' .* asks for device '/device:GPU:3'"):
        ab.Session().run(z, {x: 1.0})


def test_counters_inside_a_scope_are_on_the_host_of_their_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy())
    ab.config.set_devices(gpu=1)
    with ab.device("gpu:0"):
        i = ab.while_loop(lambda i: i < 3, lambda i: i + 1, 0)
    assert ab.Session().run(i) == 3
    assert {device.name for device in ab.placement(i).values()} == {"cpu:0"}


@pytest.mark.parametrize("asks", [False, True])
def test_a_gpu_that_is_declared_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch, asks: bool):
    """Also of steps that would run on the CPU by themselves; what says where they would run needs no GPU."""
    ab.config.set_devices(gpu=1)
    x = ab.placeholder((2,), "float32")
    with ab.device("gpu:0" if asks else None):
        y = x * 2
    assert {device.name for device in ab.placement(y).values()} <= {"cpu:0", "gpu:0"}
    for cupy, match in ((None, "gpu:0 needs cupy"), (FakeCupy(count=0), "gpu:0 was declared, but this machine has no")):
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        with pytest.raises(GpuUnavailableError, match=match):
            ab.Session().run(y, {x: [1, 2]})
        with eagerly(), pytest.raises(GpuUnavailableError, match=match):
            ab.function(lambda value: value * 2)(np.ones(2, "float32"))
    ab.config.set_devices()
    if not asks:
        assert ab.Session().run(y, {x: [1, 2]}).tolist() == [2, 4]


@pytest.mark.parametrize("name", ["gpu:0", "gpu"])
def test_ops_at_once_on_a_gpu_that_is_declared_and_missing_are_the_same_error(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ab.config.set_devices(gpu=1)
    with eagerly():
        value = ab.ops.ones((2,))
        for cupy, match in ((None, "gpu:0 needs cupy"), (FakeCupy(count=0), "gpu:0 was declared, but this machine")):
            monkeypatch.setitem(sys.modules, "cupy", cupy)
            with ab.device(name), pytest.raises(GpuUnavailableError, match=match):
                _ = value + 1
            with ab.device("cpu:0"):
                assert (value + 1).numpy().tolist() == [2, 2]
            with ab.device(name):  # what is only made there needs no GPU yet
                assert ab.Variable(value).device.startswith("/device:GPU:")
        monkeypatch.setitem(sys.modules, "cupy", FakeCupy())
        with ab.device(name):
            assert (value + 1).numpy().tolist() == [2, 2]


def test_contradictory_requests_name_both_with_their_lines():
    ab.config.set_devices(sim=2)
    x = ab.placeholder((2,), "float32")
    with ab.device("sim:0"):
        a = ab.ops.tanh(x)
    with ab.colocate_with(a):
        with ab.device("sim:1"):
            b = ab.ops.exp(x)
        held = symbol_of(b).operation.colocations[0]
    message = (
        rf"Operation 'tanh' \(tanh, defined at {line_of(a)}\) asks for '/device:SIM:0', and "
        rf"Operation 'exp' \(exp, defined at {line_of(b)}\) asks for '/device:SIM:1', but both must be on "
        rf"the same device: ab.colocate_with at {re.escape(str(held.location))}."
    )
    with pytest.raises(PlacementError, match=message):
        ab.Session().run([a, b], {x: [1.0, 2.0]})
    ab.Session().run(b, {x: [1.0, 2.0]})  # alone it contradicts nothing


def test_a_request_that_contradicts_a_variable_names_it():
    ab.config.set_devices(sim=2)
    with ab.device("sim:0"):
        v = ab.Variable([1.0], name="v")
    with ab.colocate_with(v), ab.device("sim:1"):
        y = ab.ops.tanh(v)
    message = rf"Variable 'v' \(made at {line_of(v)}\) asks for '/device:SIM:0', and Operation 'tanh'"
    with pytest.raises(PlacementError, match=message):
        ab.Session().run(y)


def test_what_has_no_kernel_where_it_must_be():
    ab.config.set_devices(sim=1)
    text = ab.constant("a", name="text")
    with ab.colocate_with(text), ab.device("sim:0"):
        y = ab.ops.tanh(ab.constant([1.0]))
    message = r"Operation 'text' .* can run on cpu:0 only, and Operation 'constant' .* asks for '/device:SIM:0', but"
    with pytest.raises(PlacementError, match=message):
        ab.Session().run([text, y])


def test_a_gradient_that_can_not_be_with_its_operation_is_elsewhere():
    """Being near is a preference: it is given up where it can't be."""
    x = ab.placeholder((1000, 1000), "float32")
    y = ab.ops.tanh(x)
    (dx,) = ab.gradients(ab.ops.sum(y), [x])
    devices = make_devices(sim=2)
    near = ab.placement(dx, devices=devices)
    assert near[dx] is near[y]
    assert near[y].kind == "sim"
    dx.operation.device = "/device:CPU:0"
    apart = ab.placement(dx, devices=devices)
    assert apart[dx].name == "cpu:0"


def test_devices_are_values():
    assert make_devices(sim=1) == make_devices(sim=1)
    assert isinstance(make_devices()[0], Device)
