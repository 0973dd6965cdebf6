"""Every op, with all that may be known of its inputs: more cases of what test_ops_generated.py tests, all of them slow.

`make test` does not collect this file: 16,000 tests take seconds to be collected, in each of its processes.
"""

from typing import Any

import numpy as np
import pytest
from shared.op_samples import SAMPLES, SMOOTH

from anabranch.engine.graph import Graph
from anabranch.engine.testing import control_flow as programs
from anabranch.engine.testing import derivatives as slopes
from anabranch.engine.testing import saving
from anabranch.engine.testing.comparing import KNOWN


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph, np.errstate(all="ignore"):  # as in a session
        yield graph


@pytest.mark.slow
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("sample", SAMPLES)
def test_saving_exhaustively(sample: Any, known: str, cases: Any):
    cases(saving.check_saving(sample, known))


@pytest.mark.slow
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("sample", SAMPLES)
def test_session_exhaustively(sample: Any, known: str, cases: Any):
    cases(programs.check_session(sample, known))


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("sample", SAMPLES)
def test_control_flow_exhaustively(sample: Any, known: str, kernels: bool, cases: Any):
    cases(programs.check_control_flow(sample, known, kernels))


@pytest.mark.slow
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("sample", SMOOTH)
def test_derivatives_exhaustively(sample: Any, known: str, cases: Any):
    cases(slopes.check_derivatives(sample, known, directions=20))
