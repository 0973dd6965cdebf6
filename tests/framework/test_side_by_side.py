"""Scripts with loops and steps of their own train as in Keras on TensorFlow: the losses of each step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import anabranch as ab
from anabranch import tf
from golden.scripts import SCRIPTS

LOSSES = json.loads((Path(__file__).parents[1] / "golden" / "scripts.json").read_text())["losses"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_losses_are_those_of_keras(name: str, without_kernels: None) -> None:
    np.testing.assert_allclose(SCRIPTS[name](ab, tf), LOSSES[name], rtol=2e-5, atol=1e-6)
    assert len(set(LOSSES[name])) > 5


def test_kernels_compute_the_same() -> None:
    np.testing.assert_allclose(SCRIPTS["several_outputs"](ab, tf), LOSSES["several_outputs"], rtol=2e-5, atol=1e-6)
