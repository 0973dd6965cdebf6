"""Recurrent layers in ONNX files: what becomes ONNX's operators, and with which lengths of sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.onnx_runs import assert_same, run_file

import anabranch as ab
from anabranch import layers, ops

onnx = pytest.importorskip("onnx")


def used(path: Path) -> set[str]:
    """The recurrent operators and loops of a file."""
    return {node.op_type for node in onnx.load(path).graph.node} & {"LSTM", "GRU", "RNN", "Loop"}


class Doubled(layers.SimpleRNNCell):
    """A cell whose output is not its state."""

    def call(self, x: Any, states: Any, training: Any = None) -> Any:
        output, new = super().call(x, states, training)
        return 2 * output, new


class Inner(layers.LSTMCell):
    """A cell whose output is its second state."""

    def call(self, x: Any, states: Any, training: Any = None) -> Any:
        _, new = super().call(x, states, training)
        return new[1], new


@pytest.mark.parametrize("cell", [Doubled, Inner])
def test_other_outputs_than_the_first_state_are_those_of_a_loop(cell: Any, tmp_path: Path) -> None:
    ab.utils.set_random_seed(1)
    x = ab.Input((None, 3), name="x")
    model = ab.Model(x, layers.RNN(cell(4), return_sequences=True)(x))
    model.export(tmp_path / "m.onnx", "onnx", verbose=False)
    assert used(tmp_path / "m.onnx") == {"Loop"}
    ab.onnx.check(model, tmp_path / "m.onnx", np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32"))
