"""The samples of all ops, as parameters of tests."""

import importlib
import pkgutil

import pytest

from anabranch.engine import control_flow, ops
from anabranch.engine.graph.op import Sample
from anabranch.engine.testing import derivatives as slopes
from anabranch.engine.testing import op_check

for _package in (ops, control_flow):  # every op is registered when its module is imported
    for _module in pkgutil.iter_modules(_package.__path__):
        importlib.import_module(f"{_package.__name__}.{_module.name}")


def is_smooth(sample: Sample) -> bool:
    try:
        return bool(slopes.differentiable_positions(sample))
    except Exception:  # the test of its derivatives says what is wrong with it
        return True


NAMED = list(op_check.all_samples())
SAMPLES = [pytest.param(sample, id=name) for name, sample in NAMED]
SMOOTH = [pytest.param(sample, id=name) for name, sample in NAMED if is_smooth(sample)]
