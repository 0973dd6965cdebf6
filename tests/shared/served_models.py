"""Models for the tests of serving."""

from typing import Any

import numpy as np

import anabranch as ab


class LeakyCell(ab.layers.Layer):
    """A recurrent cell that no server has."""

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


def letters() -> ab.Model:
    """A language model with a cell of its own: int64 [rows, time] to float32 [rows, time, 8]."""
    cells = ab.layers.RNN(LeakyCell(16), return_sequences=True)
    return ab.Sequential([ab.layers.Embedding(8, 8), cells, ab.layers.Dense(8, activation="softmax")])


LETTERS = [ab.InputSpec(shape=(None, None), dtype="int64", name="x")]


def two_in_two_out() -> ab.Model:
    """Inputs "a" [rows, 2] and "b" [rows, 3], outputs "sum" [rows] and "scaled" [rows, 2]."""
    a, b = ab.Input((2,), name="a"), ab.Input((3,), name="b")
    total = ab.ops.sum(a, axis=-1) + ab.ops.sum(b, axis=-1)
    return ab.Model({"a": a, "b": b}, {"sum": total, "scaled": ab.layers.Rescaling(2.0)(a)})


def some_text(rows: int, length: int) -> np.ndarray:
    """Random letters."""
    return np.random.default_rng(rows * 1000 + length).integers(0, 8, (rows, length))
