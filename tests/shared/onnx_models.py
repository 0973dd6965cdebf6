"""Recurrent models that tests of ONNX files export and import, and batches for them."""

from __future__ import annotations

from typing import Any

import numpy as np

import anabranch as ab
from anabranch import layers

SIGNATURE = [ab.InputSpec(shape=(None, None, 8), dtype="float32", name="x")]


class LeakyCell(layers.Layer):
    """A cell of nobody else's."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = self.state_size = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.recurrent_kernel = self.add_weight(shape=(self.units, self.units), name="recurrent_kernel")

    def call(self, x: Any, states: Any) -> Any:
        (h,) = states
        h = 0.9 * h + 0.1 * ab.ops.tanh(x @ self.kernel + h @ self.recurrent_kernel)
        return h, [h]


def batches(*shapes: tuple[int, ...], zeros: bool = False) -> list[Any]:
    generator = np.random.default_rng(0)
    made = [generator.normal(size=shape).astype("float32") for shape in shapes]
    for batch in made:
        if zeros and batch.shape[1] > 1:
            batch[:, batch.shape[1] // 2] = 0  # inside, so that the mask is no suffix
    return made


LENGTHS = batches((3, 5, 8), (1, 2, 8), (4, 0, 8), zeros=True)
RECURRENT = {
    "custom cell, sequences": lambda: [layers.RNN(LeakyCell(5), return_sequences=True), layers.Dense(4, "gelu")],
    "custom cell, last": lambda: [layers.RNN(LeakyCell(5)), layers.Dense(4, "softmax")],
    "two cells": lambda: [layers.RNN([LeakyCell(5), layers.GRUCell(4)], return_sequences=True)],
    "masked custom cell": lambda: [layers.Masking(), layers.RNN(LeakyCell(5), return_sequences=True)],
    "lstm": lambda: [layers.LSTM(4, return_sequences=True, bias_initializer="normal")],
    "lstm, last, backwards": lambda: [layers.LSTM(4, go_backwards=True)],
    "masked lstm": lambda: [layers.Masking(), layers.LSTM(4, return_sequences=True)],
    "gru": lambda: [layers.GRU(4, return_sequences=True, bias_initializer="normal")],
    "gru, not reset_after": lambda: [layers.GRU(4, reset_after=False, bias_initializer="normal")],
    "masked gru": lambda: [layers.Masking(), layers.GRU(4)],
    "simple": lambda: [layers.SimpleRNN(4, return_sequences=True, bias_initializer="normal")],
    "relu cell": lambda: [layers.SimpleRNN(4, activation="relu")],
    "both ways": lambda: [layers.Bidirectional(layers.GRU(4, return_sequences=True))],
    "both ways, masked": lambda: [layers.Masking(), layers.Bidirectional(layers.LSTM(4))],
    "distributed over time": lambda: [layers.TimeDistributed(layers.Dense(3, "tanh"))],
}
