"""Every op of the package, tested on its own samples; what is checked stands in `op_checks`."""

from typing import Any

import numpy as np
import pytest

from anabranch.engine.graph import Graph

from . import op_checks

SAMPLES = [pytest.param(sample, id=name) for name, sample in op_checks.all_samples()]
FIRST = [parameter for parameter in SAMPLES if f"{parameter.values[0].op.type_name}-0-" in str(parameter.id)]
SMOOTH = [parameter for parameter in SAMPLES if op_checks.differentiable_positions(parameter.values[0])]
ERRORS = [pytest.param(sample, id=name) for name, sample in op_checks.all_error_samples()]


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph, np.errstate(all="ignore"):  # as in a session
        yield graph


@pytest.mark.parametrize("name", [name for name in op_checks.op_classes() if name not in op_checks.EXEMPT])
def test_has_samples(name: str):
    assert len(list(op_checks.op_classes()[name].samples())) >= 3


@pytest.mark.parametrize("name", op_checks.EXEMPT)
def test_exemption_is_needed(name: str):
    assert not list(op_checks.op_classes()[name].samples())


@pytest.mark.parametrize("sample", SAMPLES)
def test_value(sample: Any, cases: Any):
    cases(op_checks.check_value(sample))


@pytest.mark.parametrize("sample", SAMPLES)
def test_specs(sample: Any, cases: Any):
    cases(op_checks.check_specs(sample))


@pytest.mark.parametrize("sample", SAMPLES)
def test_emission(sample: Any, cases: Any):
    cases(op_checks.check_emission(sample))


@pytest.mark.parametrize("sample", SAMPLES)
def test_layouts(sample: Any, cases: Any):
    cases(op_checks.check_layouts(sample))


@pytest.mark.parametrize("sample", SAMPLES)
def test_dtypes(sample: Any, cases: Any):
    cases(op_checks.check_dtypes(sample))


@pytest.mark.parametrize("known", op_checks.KNOWN)
@pytest.mark.parametrize("sample", SMOOTH)
def test_derivatives(sample: Any, known: str, cases: Any):
    cases(op_checks.check_derivatives(sample, known))


@pytest.mark.parametrize("sample", SAMPLES)
def test_control_flow(sample: Any, cases: Any):
    cases(op_checks.check_control_flow(sample))


@pytest.mark.parametrize("sample", FIRST)
def test_session(sample: Any, cases: Any):
    cases(op_checks.check_session(sample))


@pytest.mark.slow
@pytest.mark.parametrize("known", op_checks.KNOWN)
@pytest.mark.parametrize("sample", SAMPLES)
def test_session_exhaustively(sample: Any, known: str, cases: Any):
    cases(op_checks.check_session(sample, known))


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("known", op_checks.KNOWN)
@pytest.mark.parametrize("sample", SAMPLES)
def test_control_flow_exhaustively(sample: Any, known: str, kernels: bool, cases: Any):
    cases(op_checks.check_control_flow(sample, known, kernels))


@pytest.mark.slow
@pytest.mark.parametrize("known", op_checks.KNOWN)
@pytest.mark.parametrize("sample", SMOOTH)
def test_derivatives_exhaustively(sample: Any, known: str, cases: Any):
    cases(op_checks.check_derivatives(sample, known, directions=20))


@pytest.mark.parametrize("sample", ERRORS)
def test_errors(sample: Any):
    with pytest.raises(sample.error, match=sample.match):
        sample.call()
