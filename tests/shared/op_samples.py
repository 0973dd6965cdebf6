"""The samples of all ops, as parameters of tests."""

import pytest
from shared.every_op import registered_ops

from anabranch.engine.graph.op import Sample
from anabranch.engine.testing import derivatives as slopes
from anabranch.engine.testing import op_check

registered_ops()


def is_smooth(sample: Sample) -> bool:
    try:
        return bool(slopes.differentiable_positions(sample))
    except Exception:  # the test of its derivatives says what is wrong with it
        return True


NAMED = list(op_check.all_samples())
SAMPLES = [pytest.param(sample, id=name) for name, sample in NAMED]
SMOOTH = [pytest.param(sample, id=name) for name, sample in NAMED if is_smooth(sample)]
