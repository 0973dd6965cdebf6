"""Random calls of models: steps in the graph find what steps by hand on values find, with files in between, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs.training_calls import CallsByHand, RandomCalls
from programs.trainings import assert_same

import anabranch as ab

QUICK = 2  # in `make test`
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= QUICK else []) for seed in range(60)]
pytestmark = [
    pytest.mark.filterwarnings("ignore:Layer .* was given an input with a mask:UserWarning"),
    # Files of an optimizer before its first step, which has no slots yet: what is read is compared.
    pytest.mark.filterwarnings("ignore:.* does not fit model:UserWarning"),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_find_what_steps_by_hand_find(seed: int, without_kernels: None, tmp_path: Path) -> None:
    ab.config.set_floatx("float64")
    expected = CallsByHand(seed).results(tmp_path / "by hand")
    for together, reloads in ((1, True), (2, False)):
        calls = RandomCalls(seed, None, together, reloads)
        found = calls.results(tmp_path / f"{together}")
        assert_same(found, expected, f"{together} steps together, reloads={reloads} of {calls.text}")
