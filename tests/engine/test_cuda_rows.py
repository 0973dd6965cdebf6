"""Row kernels printed as CUDA: reductions, softmax and normalisation, run on the host and compared with NumPy."""

import itertools
from typing import Any

import numpy as np
import pytest
from shared.cuda_rows import BUILDS, CHEAP, SHAPES, TYPES, Case, cases, of_gradients, of_type
from shared.device_arrays import DeviceArray
from shared.fake_cupy import FakeCupy
from shared.host_cuda import HostModule, compile_on_host

from anabranch.engine.codegen.cuda import launches
from anabranch.engine.machine.gpu.fused import FusedRunner
from anabranch.engine.machine.gpu.kernels import OpRunner

CUPY: Any = FakeCupy()


def run_on_host(case: Case) -> list[Any]:
    runner = FusedRunner(CUPY, case.op, [OpRunner(CUPY, step) for step, _ in case.op.steps])
    found = runner(*[DeviceArray(value) if value.ndim else value for value in case.inputs])
    return [value._held for value in found]


def check(chosen: list[Case], rtol: float, atol: float) -> None:
    compile_on_host(case.launches.source for case in chosen if case.launches is not None)
    for case in chosen:
        assert case.launches is not None
        wide = [value.astype("float64") if value.dtype.kind in "fV" else value for value in case.inputs]
        with np.errstate(all="ignore"):  # inputs of a group may be what no step gives it, such as negative variances
            wanted = case.op.run(np, *wide)
        for value, expected in zip(run_on_host(case), wanted, strict=True):
            assert value.shape == expected.shape
            value, expected = value.astype("float64"), np.asarray(expected).astype("float64")
            scale = np.max(np.abs(expected), initial=1.0, where=np.isfinite(expected))
            np.testing.assert_allclose(value, expected, rtol=rtol, atol=atol * float(scale))


@pytest.fixture(scope="module")
def compiled() -> None:
    """The sources of all tests that are not slow, in one translation unit."""
    found = [*cases(BUILDS, CHEAP, "float32", 1), *of_gradients(CHEAP), *itertools.chain(*map(of_type, TYPES))]
    compile_on_host(case.launches.source for case in found if case.launches is not None)


@pytest.mark.usefixtures("compiled")
def test_reductions_are_those_of_numpy() -> None:
    found = cases(BUILDS, CHEAP, "float32", 1)
    assert sum(bool(case.op.layouts) for case in found) > 40
    check(found, 2e-5, 2e-6)


@pytest.mark.usefixtures("compiled")
def test_gradients_are_those_of_numpy() -> None:
    found = of_gradients(CHEAP)
    assert sum(bool(case.op.layouts) for case in found) > 20
    check(found, 2e-4, 2e-5)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", TYPES)
def test_reductions_of_other_types(dtype: str) -> None:
    found = of_type(dtype)
    assert sum(bool(case.op.layouts) for case in found) > 3
    rtol = {"float64": 1e-11, "float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 0.0)
    check(found, rtol, rtol)


@pytest.mark.slow
def test_all_shapes_and_types() -> None:
    check(cases(BUILDS, SHAPES[5:], "float32", 1), 2e-5, 2e-6)
    check(of_gradients(SHAPES[5:]), 2e-4, 2e-5)
    check(of_gradients(SHAPES, "float64"), 1e-9, 1e-10)


@pytest.mark.usefixtures("compiled")
def test_nan_is_the_extremum_and_sums_keep_infinity() -> None:
    for case in cases({"extrema": BUILDS["extrema"], "sums": BUILDS["means"]}, [(70, 33)], "float32", 1):
        if not case.op.layouts:
            continue
        x = case.inputs[0]
        x[3, 5], x[7, 1] = np.nan, np.inf
        with np.errstate(all="ignore"):
            wanted = case.op.run(np, *case.inputs)
        for value, expected in zip(run_on_host(case), wanted, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("compiled")
def test_operands_may_be_views_with_gaps() -> None:
    (case,) = cases({"softmax": BUILDS["softmax"]}, [(70, 33)], "float32", 1)
    wide = np.random.default_rng(1).normal(size=(70, 67)).astype("float32")
    expected = run_on_host(Case(case.op, [wide[:, 1:67:2].copy(), *case.inputs[1:]], case.launches))
    found = run_on_host(Case(case.op, [wide[:, 1:67:2], *case.inputs[1:]], case.launches))
    np.testing.assert_array_equal(found[0], expected[0])


def test_few_long_rows_are_left_to_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "_LONG_ROW", 1000)
    found = cases({"softmax": BUILDS["softmax"]}, [(3, 1025), (70, 33)], "float32", 1)
    assert [case.launches is None for case in found] == [True, False]


def test_a_barrier_that_some_threads_miss_is_an_error() -> None:
    head = 'extern "C" __global__ void wrong(int* __restrict__ p0) {'
    code = "\n".join([head, "  if (threadIdx.x < 40) __syncthreads();", "  p0[threadIdx.x] = 1;", "}", ""])
    with pytest.raises(AssertionError, match="threads wait at a barrier that others never reach"):
        HostModule(code).get_function("wrong")((1, 1), (64,), (DeviceArray(np.zeros(64, "int32")),))


def test_threads_of_a_block_interleave() -> None:
    """Without the barrier a thread would read what its neighbour has not written yet."""
    head = 'extern "C" __global__ void turned(int* __restrict__ p0) {'
    lines = ["__shared__ int held[64];", "held[threadIdx.x] = threadIdx.x;", "__syncthreads();"]
    lines += ["p0[blockIdx.x * 64 + threadIdx.x] = held[63 - threadIdx.x];"]
    out = DeviceArray(np.zeros(128, "int32"))
    HostModule("\n".join([head, *lines, "}", ""])).get_function("turned")((2, 1), (64,), (out,))
    np.testing.assert_array_equal(out._held, np.tile(np.arange(64)[::-1], 2))
