"""Elementwise kernels printed as CUDA, run on the host: every operation and type, compared with NumPy."""

import itertools
from typing import Any

import numpy as np
import pytest
from shared.cuda_sources import Elementwise, elementwise, values_for
from shared.device_arrays import DeviceArray
from shared.fake_cupy import FakeCupy
from shared.host_cuda import compile_on_host

from anabranch.engine.codegen.cuda import launches
from anabranch.engine.machine.gpu.fused import FusedRunner
from anabranch.engine.machine.gpu.kernels import OpRunner

TOLERANCES = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 3e-6, "float64": 1e-12}
CUPY: Any = FakeCupy()
CASES = list(elementwise())
BINARY = [case for case in CASES if len(case.dtypes) == 2 and case.op.type_name in ("multiply", "maximum", "divide")]
BROADCAST = [((4, 1, 3), (5, 1)), ((1, 6), (5, 1)), ((3, 4), (4,)), ((2, 0), (2, 1))]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The kernels of all operations and types, in one translation unit."""
    sources = [case.launches((37,)).source for case in CASES]
    sources += [case.launches((1,)).source for case in CASES[::5]]
    sources += [case.launches(*shapes).source for case, shapes in itertools.product(BINARY, BROADCAST)]
    sources += [case.launches((37,), (), by_value=(1,)).source for case in BINARY]
    compile_on_host(sources)


def run_on_host(case: Elementwise, values: list[Any]) -> Any:
    runner = FusedRunner(CUPY, case.fused, [OpRunner(CUPY, case.op)])
    (found,) = runner(*[value if isinstance(value, np.generic) else DeviceArray(value) for value in values])
    return found._held


def check(case: Elementwise, values: list[Any]) -> None:
    with np.errstate(all="ignore"):
        expected = np.asarray(case.op.run(np, *values))
        found = run_on_host(case, values)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        rtol = TOLERANCES.get(found.dtype.name)
        if rtol is None:
            np.testing.assert_array_equal(found, expected)
            return
        tiny = 2.0 * float(np.finfo("float32").tiny) if found.dtype.itemsize < 8 else 1e-300
        tiny = 1e-7 if found.dtype.name == "float16" else tiny
        wide = [value.astype("float64") for value in (found, expected)]
        np.testing.assert_allclose(*wide, rtol=rtol, atol=tiny, err_msg=f"{case.op} of {case.dtypes}")


def test_all_operations_are_those_of_numpy() -> None:
    assert len(CASES) > 350
    for case in CASES:
        check(case, values_for(case, 37))


def test_arrays_of_one_element_or_none() -> None:
    for case, size in itertools.product(CASES[::5], (0, 1)):
        check(case, values_for(case, size))


def test_arrays_that_begin_anywhere() -> None:
    for case in CASES[::7]:
        check(case, [value[1:] for value in values_for(case, 38)])


def test_several_elements_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "_MOST_BLOCKS", 2)
    for case in CASES[::40]:
        check(case, values_for(case, 2 * launches.THREADS * 2 + 5))


@pytest.mark.parametrize("shapes", BROADCAST, ids=str)
def test_shapes_are_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    for case in BINARY:
        sizes = [int(np.prod(shape)) for shape in shapes]
        check(case, [values_for(case, n)[k].reshape(shapes[k]) for k, n in enumerate(sizes)])


def test_numbers_are_passed_by_value() -> None:
    for case in BINARY:
        x, y = values_for(case, 37)
        for number in y[:15:2]:
            check(case, [x, number])
    assert {"float16", "bfloat16"} <= {case.dtypes[1].name for case in BINARY}
