"""Functions of CuPy that ops call exist and take these arguments: by a table of its signatures."""

import warnings
from typing import Any

import numpy as np
import pytest
from shared import cupy_names
from shared.cupy_limits import is_left_to_kernels
from shared.device_arrays import to_device, to_host, xp
from shared.every_op import registered_ops
from shared.make_cupy_signatures import lines

from anabranch.engine import ops
from anabranch.engine.graph.op import Sample
from anabranch.engine.machine.gpu.kernels import OpRunner
from anabranch.engine.testing import op_check

registered_ops()


def numeric_samples() -> list[Any]:
    """All samples of ops that a GPU runs."""
    return [
        pytest.param(sample, id=name)
        for name, sample in op_check.all_samples()
        if not sample.op.host_only
        and sample.op.type_name not in {"as_string", "string_format"}
        and all(np.asarray(value).dtype.kind != "T" for value in sample.inputs)
        and not is_left_to_kernels(sample)
    ]


SAMPLES = numeric_samples()


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the kernels for arrays of this type that other tests in the process may have registered."""
    monkeypatch.setattr("anabranch.engine.ops.arrays.gathering._combiners", {})


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("sample", SAMPLES)
def test_ops_call_what_cupy_has(sample: Sample):
    """As the machine runs them: keys and sizes on the host, everything else on the device."""
    with np.errstate(all="ignore"):
        OpRunner(xp, sample.op)(*sample.inputs)


def test_calls_that_cupy_would_refuse_are_refused():
    x = to_device(np.ones((2, 3), "float32"))
    with pytest.raises(TypeError, match=r"cupy\.max\(.*: got an unexpected keyword argument 'initial'"):
        xp.max(x, initial=0.0)
    with pytest.raises(TypeError, match=r"cupy\.max\(.*'initial'"):
        np.max(x, initial=0.0)
    with pytest.raises(TypeError, match=r"cupy\.ndarray\.max\(.*'initial'"):
        x.max(initial=0.0)
    with pytest.raises(AttributeError, match=r"cupy has no 'multiply\.at'"):
        xp.multiply.at(x, to_device(np.array([0])), 2.0)
    with pytest.raises(AttributeError, match=r"cupy has no 'ndarray\.setflags'"):
        x.setflags()
    with pytest.raises(AttributeError, match=r"cupy has no 'busday_count'"):
        xp.busday_count  # noqa: B018


@pytest.mark.parametrize("initial", [None, -1.0, 9.0])
@pytest.mark.parametrize(("shape", "axis"), [((2, 3), 1), ((2, 3), None), ((0, 3), 0), ((2, 0), 1), ((0, 3), 1)])
@pytest.mark.parametrize("name", ["Max", "Min"])
def test_extrema_with_an_initial_value(name: str, shape: tuple[int, ...], axis: int | None, initial: float | None):
    if initial is None and 0 in (shape if axis is None else (shape[axis],)):
        return
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    op = getattr(ops.reduction, name)(None if axis is None else (axis,), False, initial)
    options = {} if initial is None else {"initial": initial}
    want = getattr(np, name.lower())(x, axis=axis, **options)
    for found in (op.run(np, x), to_host(op.run(xp, to_device(x)))):
        np.testing.assert_array_equal(found, want, strict=True)


def test_the_table_is_that_of_the_installed_cupy():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no GPU
        cupy = pytest.importorskip("cupy", reason="compares with the cupy that is installed")
        found = set(lines(cupy))
    for sample in SAMPLES:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            OpRunner(xp, sample.values[0].op)(*sample.values[0].inputs)
    cupy_names.used.update(
        ["RawModule.__init__", "RawModule.get_function", "RawKernel.__call__", "empty"]
    )  # of kernels
    table = cupy_names.TABLE.read_text("utf-8").splitlines()
    assert [line for line in table[1:] if line.partition("(")[0] in cupy_names.used and line not in found] == []


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("RawModule.__init__", (), {"source": ""}),
        ("RawModule.get_function", (None,), {}),
        ("RawKernel.__call__", (None, (1,), (32,)), {}),
    ],
)
def test_kernels_are_called_as_cupy_takes_them(name: str, arguments: Any, options: Any):
    with pytest.raises(TypeError, match=name):
        cupy_names.check_call(name, *arguments, **options)
