"""Generated cells: with any gates, masks, lengths and directions, rewritten loops give what they gave before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    """Loops over constants are operations, too: outside of a graph they would run in Python."""
    with ab.Graph().as_default() as graph:
        yield graph


ops = ab.ops
UNITS = 3
FUNCTIONS = {"tanh": ops.tanh, "sigmoid": ops.sigmoid, "identity": lambda x: x, "square": lambda x: x * x}
READS = {  # of an array, a tensor [steps, rows, units] and one [rows, steps, units]; masks have no units
    "array": lambda array, x, y, t: array.read(t),
    "x[t]": lambda array, x, y, t: x[t],
    "x[t, ...]": lambda array, x, y, t: x[t, ...],
    "x[:, t]": lambda array, x, y, t: y[:, t],
    "take": lambda array, x, y, t: ops.take(x, t, axis=0),
    "take of columns": lambda array, x, y, t: ops.take(y, t, axis=1),
    "gather": lambda array, x, y, t: ops.gather(x, t),
}
MASKS = {
    "where": lambda alive, new, old: ops.where(ops.expand_dims(alive, 1), new, old),
    "where not": lambda alive, new, old: ops.where(ops.logical_not(alive)[:, None], old, new),
    "product": lambda alive, new, old: old + ops.cast(alive, old.dtype)[:, None] * (new - old),
}
gate = st.tuples(st.sampled_from(sorted(FUNCTIONS)), st.booleans(), st.booleans(), st.booleans())


class Cell:
    """A cell of gates, each ``function(x @ w + h @ u + b)`` or parts of that, times or plus what others give."""

    def __init__(self, gates: Sequence[Any], generator: np.random.Generator) -> None:
        self.gates = gates
        self.generator = generator
        self.feeds: dict[Any, Any] = {}

    def fed(self, *shape: int) -> Any:
        tensor = ab.placeholder(shape, "float64")
        self.feeds[tensor] = self.generator.uniform(-0.5, 0.5, shape)
        return tensor

    def prepare(self) -> None:
        """Make the weights."""
        self.weights = [(self.fed(UNITS, UNITS), self.fed(UNITS, UNITS), self.fed(UNITS)) for _ in self.gates]

    def __call__(self, x: Any, h: Any) -> Any:
        value = h
        for (name, takes_x, takes_h, multiplies), (w, u, b) in zip(self.gates, self.weights, strict=True):
            total = b
            total = x @ w + total if takes_x else total
            total = total + h @ u if takes_h else total
            value = value * FUNCTIONS[name](total) if multiplies else value + FUNCTIONS[name](total)
        return ops.tanh(value)


@seed(0)
@settings(max_examples=examples(4, 10), deadline=None, database=None)
@given(
    st.lists(gate, min_size=1, max_size=4),
    st.integers(0, 7),
    st.sampled_from([0, 1, 9]),
    st.booleans(),
    st.sampled_from(["none", "mask", "lengths"]),
    st.sampled_from(sorted(READS)),
    st.sampled_from(sorted(MASKS)),
    st.integers(0, 2**31),
)
def test_cells(gates: Any, steps: int, rows: int, backward: bool, masked: str, read: str, mask: str, number: int):
    generator = np.random.default_rng(number)
    cell = Cell(gates, generator)
    cell.prepare()
    x = cell.fed(steps, rows, UNITS)
    sources = list(cell.feeds)
    keep = ab.placeholder((steps, rows), "bool")
    lengths = ab.placeholder((rows + 1,), "int32")
    cell.feeds[keep] = generator.random((steps, rows)) < 0.7
    cell.feeds[lengths] = generator.integers(0, steps + 1, rows + 1).astype("int32")
    inputs = ab.TensorArray("float64", steps, element_shape=(rows, UNITS)).unstack(x)
    masks = ab.TensorArray("bool", steps, element_shape=(rows,)).unstack(keep)
    swapped, kept = ops.transpose(x, (1, 0, 2)), ops.transpose(keep)
    count = ops.max(lengths) if masked == "lengths" else steps
    outputs = ab.TensorArray("float64", count, element_shape=(rows, UNITS))

    def body(t: Any, h: Any, outputs: Any) -> Any:
        place = count - 1 - t if backward else t
        new = cell(READS[read](inputs, x, swapped, place), h)
        if masked != "none":
            alive = READS[read](masks, keep, kept, place) if masked == "mask" else t < lengths[:rows]
            new = MASKS[mask](alive, new, h)
        return t + 1, new, outputs.write(place, new)

    start = ops.zeros((rows, UNITS), "float64")
    _, last, outputs = ab.while_loop(lambda t, *_: t < count, body, (0, start, outputs))
    loss = ops.sum(last) + ops.sum(outputs.stack() ** 2)
    first = ab.gradients(loss, sources, unconnected_gradients="zero")
    slope = ops.sum(ops.concatenate([ops.ravel(g) for g in first]) ** 2)
    fetches = [loss, *first, *ab.gradients(slope, sources, unconnected_gradients="zero")]
    feeds = cell.feeds
    found = Program(loss.graph, fetches, list(feeds))(*feeds.values())
    exact = Program(loss.graph, fetches, list(feeds), exact=True)(*feeds.values())
    interpreted = Interpreter().run(loss.graph, fetches, feeds)
    for one, other, reference in zip(found, exact, interpreted, strict=True):
        np.testing.assert_allclose(one, reference, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(other, reference, rtol=1e-9, atol=1e-10)
