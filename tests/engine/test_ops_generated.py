"""Every op of the package, tested on its own samples; what is checked stands in `engine/testing`.

More of the same, with all that may be known of the inputs, is in test_ops_exhaustively.py.
"""

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from shared.op_samples import NAMED, SAMPLES, SMOOTH

from anabranch.engine.graph import Graph, TensorSpec
from anabranch.engine.graph.op import Op, Sample
from anabranch.engine.ops.math import elementwise
from anabranch.engine.testing import checks, op_check, saving
from anabranch.engine.testing import control_flow as programs
from anabranch.engine.testing import derivatives as slopes
from anabranch.engine.testing.comparing import KNOWN

CLASSES = op_check.op_classes()
FIRST = [pytest.param(sample, id=name) for name, sample in NAMED if name.startswith(f"{sample.op.type_name}-0-")]
# Whole programs take longest: in `make test` those of the first sample of each op, and of one in four others.
MARKS = {
    name: [] if name.split("-")[1] == "0" or crc32(name.encode()) % 4 == 0 else [pytest.mark.slow] for name, _ in NAMED
}
SAVED = [pytest.param(sample, id=name, marks=MARKS[name]) for name, sample in NAMED]
# Derivatives inside branches and loops take most of the time: here those of the first sample of each op.
IN_CONTROL_FLOW = [
    pytest.param(sample, name.split("-")[1] == "0", id=name, marks=MARKS[name]) for name, sample in NAMED
]
WITH_AXES = [
    pytest.param(sample, id=name)
    for name, sample in NAMED
    if type(sample.op).axis_map is not Op.axis_map
    or sample.op.last_axes is not None
    or sample.op.by_element
    or name.split("-")[1] == "0"
]
WITH_FACTS = [pytest.param(sample, id=name) for name, sample in NAMED if sample.op.linear_in or sample.op.grows_with]
RUNS = {
    "value": checks.check_value,
    "specs": checks.check_specs,
    "emission": checks.check_emission,
    "layouts": checks.check_layouts,
    "dtypes": checks.check_dtypes,
}
ERRORS = [pytest.param(sample, id=name) for name, sample in op_check.all_error_samples()]


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph, np.errstate(all="ignore"):  # as in a session
        yield graph


@pytest.mark.parametrize("name", [name for name, cls in CLASSES.items() if not cls.no_samples])
def test_has_samples(name: str):
    assert len(list(CLASSES[name].samples())) >= op_check.LEAST_SAMPLES
    assert all(sample.call for sample in CLASSES[name].error_samples())


@pytest.mark.parametrize("name", [name for name, cls in CLASSES.items() if cls.no_samples])
def test_exemption_is_needed(name: str):
    assert not list(CLASSES[name].samples())


@pytest.mark.parametrize("sample", SAMPLES)
def test_runs(sample: Any, tell: Any):
    """Values, specs, emitted code, layouts of memory, and dtypes."""
    for name, check in RUNS.items():
        with Graph().as_default():
            tell("generated op cases", {name: check(sample)})


@pytest.mark.parametrize("sample", WITH_AXES)
def test_axes(sample: Any, cases: Any):
    cases(checks.check_axes(sample))


@pytest.mark.parametrize("sample", WITH_FACTS)
def test_facts_about_values(sample: Any, cases: Any):
    cases(checks.check_facts(sample))


@pytest.mark.parametrize("sample", SMOOTH)
def test_derivatives(sample: Any, cases: Any):
    for known in KNOWN:
        with Graph().as_default():
            cases(slopes.check_derivatives(sample, known))


@pytest.mark.parametrize(("sample", "derivatives"), IN_CONTROL_FLOW)
def test_control_flow(sample: Any, derivatives: bool, cases: Any):
    cases(programs.check_control_flow(sample, derivatives=derivatives))


@pytest.mark.parametrize("sample", FIRST)
def test_session(sample: Any, cases: Any):
    cases(programs.check_session(sample))


@pytest.mark.parametrize("sample", SAVED)
def test_saving(sample: Any, cases: Any):
    cases(saving.check_saving(sample, inside=False))


@pytest.mark.parametrize("sample", FIRST)
def test_saving_inside(sample: Any, cases: Any):
    cases(saving.check_saving(sample))


@pytest.mark.parametrize("sample", ERRORS)
def test_errors(sample: Any, cases: Any):
    cases(op_check.check_error(sample))


# --- the checks themselves: each finds an op that is wrong in one way -----------------------------------------------


@dataclass(frozen=True)
class _Doubled(Op):
    """Right in every way."""

    def infer(self, *inputs: Any) -> Any:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0] + inputs[0]

    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (cotangents[0] * 2,)


class _WrongValue(_Doubled):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0] + 2


class _WritesIntoItsInput(_Doubled):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.add(inputs[0], inputs[0], out=inputs[0])


class _Alias(_Doubled):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0]


class _ArrayOfRankZero(_Doubled):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.asarray(inputs[0] + inputs[0])


class _WrongDtype(_Doubled):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return (inputs[0] + inputs[0]).astype("float32")


class _NeedsShape(_Doubled):
    def infer(self, *inputs: Any) -> Any:
        return TensorSpec(inputs[0].shape or (), inputs[0].dtype)


class _ReadsMemoryInOrder(_Doubled):
    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return 2 * x.ravel(order="K").reshape(x.shape)


class _EmitsOtherBits(_Doubled):
    def emit(self, arguments: Any) -> str:
        return f"{arguments[0]} * 1.9999999"


class _WrongGradient(_Doubled):
    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (cotangents[0] * 2.001,)


class _WrongSecondGradient(_Doubled):
    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (2 * elementwise.stop_gradient(cotangents[0]),)


class _CountsItsRuns(_Doubled):
    def run(self, xp: Any, *inputs: Any) -> Any:
        _runs.append(1)
        return inputs[0] + len(_runs)


_runs: list[int] = []
MATRIX = np.array([[1, 2, 4], [8, 16, 32]], "float32")


@pytest.mark.parametrize(
    ("check", "wrong", "x"),
    [
        (checks.check_value, _WrongValue, MATRIX),
        (checks.check_value, _WritesIntoItsInput, MATRIX),
        (checks.check_value, _Alias, MATRIX * 0),
        (checks.check_value, _ArrayOfRankZero, MATRIX[0, 0]),
        (checks.check_specs, _NeedsShape, MATRIX),
        (checks.check_emission, _EmitsOtherBits, MATRIX),
        (checks.check_layouts, _ReadsMemoryInOrder, MATRIX),
        (checks.check_dtypes, _WrongDtype, MATRIX),
        (lambda sample: slopes.check_derivatives(sample, "static"), _WrongGradient, MATRIX),
        (lambda sample: slopes.check_derivatives(sample, "static"), _WrongSecondGradient, MATRIX),
        (programs.check_control_flow, _CountsItsRuns, MATRIX),
        (programs.check_session, _CountsItsRuns, MATRIX),
    ],
)
def test_check_finds_what_is_wrong(check: Any, wrong: Any, x: Any):
    check(Sample(_Doubled(), [x], x + x))

    with pytest.raises((AssertionError, ValueError)):
        check(Sample(wrong(), [x], x + x))
