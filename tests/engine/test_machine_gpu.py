"""Steps on a GPU: printed kernels on arrays like cupy's, fused operations as CUDA, variables, and random programs."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from programs.generator import programs
from programs.syntax import Program
from shared.cuda_compiler import compile_cuda
from shared.device_arrays import DeviceArray
from shared.every_op import registered_ops
from shared.examples import examples
from shared.fake_cupy import FakeCupy
from shared.gpus import stand_in, why_there_is_no_gpu
from shared.machines import MachineCase, Setting, assert_nothing_left, idle_step, run
from shared.placed_steps import Legal
from shared.waiting import Waiting

import anabranch as ab
from anabranch.engine.codegen.cuda.elementwise import OPTIONS, print_cuda
from anabranch.engine.codegen.elementwise.kernel_specs import kernel_spec
from anabranch.engine.devices.cuda import GpuUnavailableError
from anabranch.engine.graph import as_dtype
from anabranch.engine.graph.op import Sample
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.graph.state.initial_values import Later
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.machine.gpu.fused import FusedRunner
from anabranch.engine.machine.gpu.kernels import HOST_READS, OpRunner
from anabranch.engine.machine.gpu.rows import combine_rows_on_gpu
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.runtime.interpreter import Interpreter

LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
OPS = registered_ops()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    with stand_in(monkeypatch) as cupy:
        yield cupy


def on_gpu(targets: Any, feeds: dict[Any, Any], exact: bool = True, **options: Any) -> MachineProgram:
    graph = targets[0].operation.graph
    return MachineProgram(graph, targets, list(feeds), exact=exact, **options)


def check(targets: Any, feeds: dict[Any, Any], rtol: float = 1e-6, **options: Any) -> MachineProgram:
    """A program on the GPU gives what the session gives on CPUs."""
    program = on_gpu(targets, feeds, **options)
    found = run(program, list(feeds.values()))
    for value, expected in zip(found, Interpreter().run(targets[0].operation.graph, targets, feeds), strict=True):
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=1e-7)
        assert type(value) is type(expected)
        assert value.dtype == expected.dtype
    return program


# --- steps ----------------------------------------------------------------------------------------------------------


def place_all(operations: Any, feeds: Any) -> dict[Any, str]:
    """All on the GPU that a GPU can run."""
    return dict(Legal(lambda operation: "gpu:0")(operations, feeds))


@pytest.mark.parametrize("exact", [True, False])
def test_a_network_and_its_gradient(gpu: FakeCupy, exact: bool) -> None:
    x = ab.placeholder((4, 3), "float32")
    w = ab.placeholder((3, 2), "float32")
    with ab.device("gpu:0"):
        y = ab.ops.tanh(ab.ops.matmul(x, w) * 2.0 + [1.0, 2.0]) * ab.ops.exp(-x[:, :1])
        loss = ab.ops.mean(y * y)
        (dw,) = ab.gradients(loss, [w])
    random = np.random.default_rng(0)
    feeds = {x: random.normal(size=(4, 3)).astype("float32"), w: random.normal(size=(3, 2)).astype("float32")}
    check([loss, dw, y], feeds, rtol=1e-5, exact=exact, assign=place_all)
    assert bool(gpu.kernels) == (not exact)
    assert all(thread != 0 for thread in gpu.threads)


def test_a_loop_with_arrays_and_its_gradient(gpu: FakeCupy) -> None:
    x = ab.placeholder((None,), "float32")
    array = ab.TensorArray("float32", 5)
    _, array, total = ab.while_loop(
        lambda i, array, y: i < 5,
        lambda i, array, y: (i + 1, array.write(i, y * y), ab.ops.sin(y) + ab.ops.cast(i, "float32")),
        (0, array, x),
    )
    stacked = array.stack()
    (dx,) = ab.gradients(ab.ops.sum(stacked) + ab.ops.sum(total), [x])
    check([stacked, total, dx], {x: np.array([0.5, -1.5], "float32")}, rtol=1e-5, assign=place_all)


def test_variables_are_read_and_written_on_the_device(gpu: FakeCupy) -> None:
    v = ab.Variable([1.0, 2.0])
    count = ab.Variable(0)
    with ab.Graph().as_default():
        before = v * 10.0
        assigned = v.assign(v + 1.0)
        after = v * 10.0
        counted = count.assign(count + 1)
        rows = v.scatter_update(ab.IndexedSlices(ab.constant([7.0]), ab.constant([1]), [2]))
    program = on_gpu([before, after, rows, assigned, counted], {}, assign=place_all)
    for step in range(3):
        expected = [[1.0, 2.0], [2.0, 7.0], [3.0, 7.0]][step]
        found = run(program, [])
        np.testing.assert_array_equal(found[0], np.array(expected) * 10)
        np.testing.assert_array_equal(found[1], (np.array(expected) + 1) * 10)
        np.testing.assert_array_equal(v.numpy(), [expected[0] + 1, 7.0])
        assert type(v.numpy()) is np.ndarray
        assert count.numpy() == found[4] == step + 1
    v.assign([5.0, 5.0])  # by the host, between steps
    np.testing.assert_array_equal(run(program, [])[0], [50.0, 50.0])


def test_variables_whose_first_value_is_computed_late(gpu: FakeCupy) -> None:
    """The thread of the GPU reads a variable whose lock the step holds, because it writes it."""
    v = ab.Variable(FirstValue())
    with ab.Graph().as_default():
        assigned = v.assign(v + 1.0)
    program = on_gpu([assigned], {}, assign=place_all)
    assert v.first_value is not None
    np.testing.assert_array_equal(Waiting(lambda: run(program, [])).result()[0], [3.0, 4.0])
    np.testing.assert_array_equal(v.numpy(), [3.0, 4.0])


class FirstValue(Later):
    """The value of a variable that nothing has needed yet."""

    dtype = as_dtype("float32")

    @property
    def shape(self) -> tuple[int, ...]:
        return (2,)

    def compute(self) -> Any:
        return np.array([2.0, 3.0], "float32")


def test_a_step_that_fails_on_the_device(gpu: FakeCupy) -> None:
    x = ab.placeholder((2,), "float32")
    index = ab.placeholder((), "int32")
    with ab.device("gpu:0"):
        y = ab.ops.tanh(x) + ab.TensorArray("float32", 2).write(index, x).read(0)
    program = on_gpu([y], {x: 0, index: 0}, assign=place_all)
    for _ in range(2):
        with pytest.raises(IndexError, match="out of range for size 2") as caught:
            run(program, [np.ones(2, "float32"), np.int32(9)])
        assert any("gpu:0" in note for note in caught.value.__notes__)
        assert_nothing_left(idle_step(program)) if program._idle else None
    np.testing.assert_allclose(run(program, [np.ones(2, "float32"), np.int32(0)])[0], np.tanh(1.0) + 1, rtol=1e-6)


def test_a_step_for_a_gpu_that_is_not_there() -> None:
    ab.config.set_devices(gpu=1)
    assert [device.name for device in ab.config.list_devices()] == ["cpu:0", "gpu:0"]
    x = ab.placeholder((2,), "float32")
    with ab.device("gpu:0"):
        y = ab.ops.tanh(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", None)
        with pytest.raises(GpuUnavailableError, match=r"Device gpu:0 needs cupy.*set_devices\(cpu=1\)"):
            MachineProgram(symbol_of(y).operation.graph, [symbol_of(y)], [x])
    ab.config.set_devices()


# --- random programs ------------------------------------------------------------------------------------------------


def settings_of_gpus() -> st.SearchStrategy[Setting]:
    seeds = st.integers(0, 10**6)
    return st.builds(
        Setting,
        devices=st.sampled_from([("gpu:0",), ("gpu:0", "cpu:0"), ("gpu:0", "cpu:0", "cpu:1")]),
        places=seeds,
        order=st.one_of(st.none(), seeds),
        parallel_iterations=st.sampled_from([1, 2, 32]),
        clusters=st.booleans(),
    )


def check_program(program: Program, setting: Setting, exact: bool) -> None:
    case = MachineCase(program, 1)
    expected = case.interpreted()
    machine = case.machine(setting, exact=exact)
    for _ in range(2):
        found = case.ran(machine)
        assert_nothing_left(idle_step(machine))
        for value, wanted in zip(found[0], expected[0], strict=True):
            assert_close(value, wanted)
        for name, wanted in expected[1].items():
            assert_close(found[1][name], wanted)


def assert_close(value: Any, wanted: Any) -> None:
    assert (value.dtype, value.shape) == (wanted.dtype, wanted.shape)
    if value.dtype.kind == "f":
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize("chunk", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_programs(gpu: FakeCupy, chunk: int) -> None:
    @seed(chunk)
    @settings(max_examples=examples(5, 10), database=None, deadline=None, suppress_health_check=LARGE)
    @given(programs(), settings_of_gpus())
    def check(program: Program, setting: Setting) -> None:
        check_program(program, setting, exact=True)

    check()


@pytest.mark.skipif(bool(why_there_is_no_gpu()), reason="needs a GPU and cupy")
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("chunk", range(4))
def test_random_programs_on_a_real_gpu(chunk: int, exact: bool) -> None:
    ab.config.set_devices(cpu=2, gpu=1)

    @seed(chunk)
    @settings(max_examples=20, database=None, deadline=None, suppress_health_check=LARGE)
    @given(programs(), settings_of_gpus())
    def check(program: Program, setting: Setting) -> None:
        check_program(program, setting, exact)

    check()
    ab.config.set_devices()


# --- what operations look at ----------------------------------------------------------------------------------------


class Watched(DeviceArray):
    """Notifies a test when the host looks at its values."""

    def __init__(self, held: Any, looked: list[int], position: int) -> None:
        super().__init__(held)
        self._looked = looked
        self._position = position

    def _look(self) -> Any:
        self._looked.append(self._position)
        return self._held

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return Watched(found._held, self._looked, self._position) if isinstance(found, DeviceArray) else found

    def __int__(self) -> int:
        return int(self._look())

    def __index__(self) -> int:
        return self._look().__index__()

    def __bool__(self) -> bool:
        return bool(self._look())

    def get(self) -> Any:
        return self._look().copy()


def numeric_samples() -> list[Any]:
    found: list[Any] = []
    for name, cls in sorted(OPS.items()):
        if (
            not cls.__module__.startswith("anabranch.")
            or cls.host_only
            or name in ("as_string", "string_format", "random_categories")
        ):
            continue
        samples = [sample for sample in cls.samples() if all(np.asarray(i).dtype.kind != "T" for i in sample.inputs)]
        found += [pytest.param(name, samples, id=name)] if samples else []
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "samples"), numeric_samples())
def test_operations_get_what_they_look_at_from_the_host(
    monkeypatch: pytest.MonkeyPatch, name: str, samples: list[Sample]
) -> None:
    """With integers of the host kept there, no operation makes the host wait for the device, and all give the same."""
    monkeypatch.setattr("anabranch.engine.ops.arrays.gathering._combiners", {DeviceArray: combine_rows_on_gpu})
    cupy: Any = FakeCupy()
    for sample in samples:
        looked: list[int] = []
        inputs = [np.asarray(value)[()] for value in sample.inputs]
        reads = range(len(inputs))[HOST_READS.get(name, slice(0, 0))]
        stays = [k in reads and (not x.ndim or (x.dtype.kind in "iub" and x.ndim < 2)) for k, x in enumerate(inputs)]
        given = [x if stays[k] else Watched(x, looked, k) for k, x in enumerate(inputs)]
        if name.startswith("random_"):
            given = inputs
        with np.errstate(all="ignore"):
            found = OpRunner(cupy, sample.op)(*given)
            expected = sample.op.run(np, *inputs)
        assert not looked, f"inputs {set(looked)} are looked at"
        several = (found, expected) if isinstance(expected, tuple) else ((found,), (expected,))
        rtol = 1e-6 if "transform" in name else 0  # the host's are computed in single precision
        for value, wanted in zip(*several, strict=True):
            held = value._held if isinstance(value, DeviceArray) else value
            np.testing.assert_allclose(held, wanted, rtol=rtol, atol=rtol)


# --- CUDA -----------------------------------------------------------------------------------------------------------


def fused(*steps: tuple[str, tuple[int, ...]], inputs: int, results: tuple[int, ...]) -> Fused:
    return Fused(inputs, tuple((OPS[name](), arguments) for name, arguments in steps), results)


def runner(cupy: Any, op: Fused) -> FusedRunner:
    return FusedRunner(cupy, op, [OpRunner(cupy, step) for step, _ in op.steps])


AXPY = fused(("multiply", (0, 1)), ("add", (3, 2)), inputs=3, results=(4,))
FUNCTIONS = fused(
    *[(name, (0,)) for name in ("tanh", "exp", "log1p", "expm1", "sigmoid", "sqrt", "floor", "isnan")],
    ("where", (8, 1, 2)),
    inputs=1,
    results=tuple(range(1, 10)),
)


def source(op: Fused, *shapes: tuple[int, ...], dtype: str = "float32", by_value: tuple[int, ...] = ()) -> str:
    inputs = [TensorSpec(shape, np.dtype(dtype)) for shape in shapes]
    outputs: Any = op.infer(*inputs)
    return print_cuda(kernel_spec(op, inputs, outputs), "fused", by_value)


def test_the_source_of_a_small_kernel() -> None:
    assert source(AXPY, (4, 3), (3,), (), by_value=(2,)) == "\n".join(
        [
            'extern "C" __global__ void fused(const float* __restrict__ p0, const float* __restrict__ p1, float v2, '
            "float* __restrict__ p3, int n, int extent1, int stride0_0, int stride3_0) {",
            "  for (int i = blockIdx.x * (int)blockDim.x + threadIdx.x; i < n; i += (int)gridDim.x * blockDim.x) {",
            "    int i1 = i % extent1, r1 = i / extent1;",
            "    int i0 = r1;",
            "    float e0 = p0[i0 * stride0_0 + i1];",
            "    float e1 = p1[i1];",
            "    float e2 = v2;",
            "    float e3 = e0 * e1;",
            "    float e4 = e3 + e2;",
            "    p3[i0 * stride3_0 + i1] = e4;",
            "  }",
            "}",
            "",
        ]
    )


def test_sources_are_cuda() -> None:
    """The compiler of CUDA takes them."""
    parts = [
        source(AXPY, (4, 1, 3), (5, 1), ()).replace("fused", "axpy"),
        source(AXPY, (), (), (), dtype="int32").replace("fused", "numbers"),
        source(AXPY, (7,), (7,), (7,), dtype="float64").replace("fused", "doubles"),
        source(FUNCTIONS, (9,)).replace("fused", "functions"),
    ]
    assert compile_cuda("\n".join(parts), OPTIONS).count(".entry") == 4


BROADCASTS = [
    [(4, 3), (3,), ()],
    [(4, 1, 3), (5, 1), (2, 4, 5, 3)],
    [(), (), ()],
    [(300, 7), (300, 1), (1, 7)],
    [(0, 3), (3,), ()],
    [(1,), (6, 1), (6, 5)],
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
def test_kernels_broadcast(shapes: list[tuple[int, ...]], dtype: str) -> None:
    cupy: Any = FakeCupy()
    random = np.random.default_rng(1)
    inputs = [np.asarray(random.normal(size=shape) * 100).astype(dtype) for shape in shapes]
    expected = inputs[0] * inputs[1] + inputs[2]
    given = [DeviceArray(value) for value in inputs]
    numbers = [value[()] if not value.ndim else DeviceArray(value) for value in inputs]
    for operands in (given, numbers):
        if not any(isinstance(value, DeviceArray) for value in operands):
            continue
        (found,) = runner(cupy, AXPY)(*operands)
        np.testing.assert_allclose(found._held, expected, rtol=1e-6)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
    assert cupy.kernels


def test_kernels_take_strided_arrays() -> None:
    cupy: Any = FakeCupy()
    x = np.arange(12, dtype="float32").reshape(3, 4).T
    (found,) = runner(cupy, AXPY)(DeviceArray(x), DeviceArray(x[:, ::-1]), np.float32(1))
    np.testing.assert_array_equal(found._held, x * x[:, ::-1] + 1)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-40, -1e-3, 0.6, 88.7, -103.0, 500.0, -500.0, np.inf, -np.inf, np.nan, 3.4e38]


def test_functions_are_those_of_numpy() -> None:
    x = np.array([*SPECIAL, *np.linspace(-5, 5, 500)], "float32")
    found = runner(FakeCupy(), FUNCTIONS)(DeviceArray(x))
    with np.errstate(all="ignore"):
        expected = FUNCTIONS.run(np, x)
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value._held, wanted, rtol=2e-6, atol=1e-38)
        assert value.dtype == wanted.dtype
    assert np.signbit(found[0]._held[1])  # tanh of -0


def test_what_can_not_be_printed_runs_step_by_step() -> None:
    """Kernels have no 8-bit integers, and nothing to do where all is on the host."""
    cupy: Any = FakeCupy()
    x = np.arange(3, dtype="uint8")
    (found,) = runner(cupy, AXPY)(DeviceArray(x), np.uint8(2), DeviceArray(x))
    np.testing.assert_array_equal(found._held, x * 3)
    assert runner(cupy, AXPY)(np.float32(2), np.float32(3), np.float32(4)) == (10.0,)
    assert not cupy.kernels


def test_kernels_are_made_once() -> None:
    cupy: Any = FakeCupy()
    runners = [runner(cupy, AXPY), runner(cupy, AXPY)]
    for size in (2, 5, 2):
        for run_fused in runners:
            run_fused(*[DeviceArray(np.ones(size, "float32"))] * 3)
    assert len(cupy.kernels) == 1
