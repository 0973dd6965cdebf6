"""Generated cells of many forms: what a loop's passes make of them has the values and gradients of the interpreter.

A cell is a list of steps, each a small computation of earlier values (the input, the states, what steps gave): gates in
several spellings, norms, attention over a memory, branches, loops inside. Weights are few, so that most are used twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

import anabranch as ab
from anabranch.engine.codegen.regions.rule import least_work
from anabranch.engine.passes.framework.switches import only, without
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops
PLACES = 3  # of the memory
EDGE = 0.137  # compared with, and far from values that are zero but for rounding


@contextlib.contextmanager
def native() -> Iterator[None]:
    """Loops become machine code however small they are."""
    with without("unroll"), least_work(0):
        yield


ROADS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "native": native,
    "without native": lambda: without("native", "unroll"),
    "without fuse": lambda: without("fuse", "native", "unroll"),
    "loop passes": lambda: only("invariants", "fission", "ragged_batches"),
    "without unroll": lambda: without("unroll"),
}


class Plan(NamedTuple):
    """The plan of a loop: how often it runs, over what, in which order."""

    steps: int
    rows: int
    units: int
    backward: bool = False
    masked: str = "none"
    is_open: bool = False
    second_order: bool = False


class Weights:
    """A few weights of each form, fed."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.generator = np.random.default_rng(number)
        self.feeds: dict[Any, Any] = {}
        self.units = units = plan.units
        self.rows = None if plan.is_open else plan.rows
        self.square = [self.fed((units, units)) for _ in range(2)]
        self.wide = [self.fed((units, 3 * units)) for _ in range(2)]
        self.both = [self.fed((2 * units, units))]
        self.bias = [self.fed((units,)) for _ in range(2)]
        self.wide_bias = [self.fed((3 * units,))]
        self.memory = self.fed((plan.rows, PLACES, units), (self.rows, PLACES, units))

    def fed(self, shape: tuple[int, ...], declared: tuple[int | None, ...] | None = None) -> Any:
        tensor = ab.placeholder(declared or shape, "float64")
        self.feeds[tensor] = self.generator.uniform(-1.6, 1.6, shape) / self.units**0.5
        return tensor


class Step:
    """One step of a cell: takes two earlier values, and weights by a number."""

    def __init__(self, weights: Weights, x: Any, t: Any, number: int) -> None:
        self.weights, self.x, self.t, self.number = weights, x, t, number

    def of(self, made: Sequence[Any]) -> Any:
        return made[self.number % len(made)]

    def other(self, made: Sequence[Any]) -> Any:
        return made[(self.number // 2) % len(made)]

    def dense(self, a: Any, b: Any) -> Any:
        return ops.tanh(a @ self.of(self.weights.square) + self.other(self.weights.bias))

    def two_products(self, a: Any, b: Any) -> Any:
        total = a @ self.of(self.weights.square) + b @ self.other(self.weights.square)
        return ops.sigmoid(total + self.of(self.weights.bias))

    def tied(self, a: Any, b: Any) -> Any:
        inner = ops.tanh(a @ self.of(self.weights.square))
        return inner @ ops.transpose(self.of(self.weights.square)) + b

    def joined(self, a: Any, b: Any) -> Any:
        return ops.concatenate([a, b], axis=1) @ self.weights.both[0]

    def _parts(self, z: Any) -> list[Any]:
        spelling, units = self.number % 4, self.weights.units
        if spelling == 0:
            return list(ops.split(z, 3, axis=-1))
        if spelling == 1:
            return [z[:, :units], z[:, units : 2 * units], z[:, 2 * units :]]
        if spelling == 2:
            z = ops.reshape(z, (-1, 3, units))
            return [z[:, k] for k in range(3)]
        return ops.unstack(ops.transpose(ops.reshape(z, (-1, units, 3)), (2, 0, 1)), 3)

    def _gates(self, a: Any, b: Any) -> Any:
        return a @ self.of(self.weights.wide) + b @ self.other(self.weights.wide) + self.weights.wide_bias[0]

    def gated(self, a: Any, b: Any) -> Any:
        forget, take, new = self._parts(self._gates(a, b))
        return ops.sigmoid(forget) * b + ops.sigmoid(take) * ops.tanh(new)

    def normed_gates(self, a: Any, b: Any) -> Any:
        z = self._gates(a, b)
        centred = z - ops.mean(z, axis=-1, keepdims=True)
        normed = centred / ops.sqrt(ops.mean(centred**2, axis=-1, keepdims=True) + 0.1)
        forget, take, new = self._parts(normed)
        return (1 - ops.sigmoid(forget)) * b + ops.sigmoid(take) * new

    def norm(self, a: Any, b: Any) -> Any:
        normed = (a - ops.mean(a, axis=-1, keepdims=True)) * ops.rsqrt(ops.var(a, axis=-1, keepdims=True) + 0.1)
        return normed * self.weights.bias[0] + self.weights.bias[1]

    def attend(self, a: Any, b: Any) -> Any:
        memory = self.weights.memory
        if self.number % 2:
            weights = ops.softmax(ops.einsum("bd,bsd->bs", a @ self.other(self.weights.square), memory))
            return ops.einsum("bs,bsd->bd", weights, memory)
        keys = ops.tanh(memory @ self.other(self.weights.square) + ops.expand_dims(a, 1))
        scores = ops.softmax(ops.sum(keys * self.weights.bias[0], axis=-1))
        return ops.sum(ops.expand_dims(scores, -1) * memory, axis=1)

    def branch_by_step(self, a: Any, b: Any) -> Any:
        w = self.of(self.weights.square)
        return ab.cond(ops.equal(self.t % 2, 0), lambda: ops.tanh(a @ w), lambda: b * 0.5)

    def branch_by_value(self, a: Any, b: Any) -> Any:
        w = self.of(self.weights.square)
        return ab.cond(ops.sum(a) > EDGE, lambda: a + b @ w, lambda: ops.sin(b) * a)

    def inner_loop(self, a: Any, b: Any) -> Any:
        w = self.of(self.weights.square)
        count = self.t if self.number % 2 else 2
        return ab.while_loop(lambda j, _: j < count, lambda j, h: (j + 1, ops.tanh(h @ w + b)), (0, a))[1]

    def product(self, a: Any, b: Any) -> Any:
        return a * b

    def chosen(self, a: Any, b: Any) -> Any:
        return ops.where(a > EDGE, a - b, ops.exp(b) * 0.3)

    def shares(self, a: Any, b: Any) -> Any:
        return ops.softmax(a, axis=-1) + b / (1 + ops.sum(b * b, axis=-1, keepdims=True))

    def across_rows(self, a: Any, b: Any) -> Any:
        return a * 0.5 + ops.tanh(ops.sum(b, axis=0)) * 0.2

    def neighbour(self, a: Any, b: Any) -> Any:
        return a + self.x[ops.maximum(self.t - 1, 0)] @ self.of(self.weights.square) * b

    def by_time(self, a: Any, b: Any) -> Any:
        return a / (1.0 + ops.cast(self.t, "float64")) + self.of(self.weights.bias) * b


KINDS = [name for name, member in vars(Step).items() if not name.startswith("_") and name not in ("of", "other")]


def losses(recipe: Sequence[Any], plan: Plan, number: int) -> tuple[list[Any], dict[Any, Any]]:
    """Return what is compared for a loop over a recipe's cell (loss, states, gradients of two orders), and feeds."""
    weights = Weights(plan, number)
    feeds, rows, units = weights.feeds, weights.rows, plan.units
    steps = None if plan.is_open else plan.steps
    x = weights.fed((plan.steps, plan.rows, units), (steps, rows, units))
    starts = [weights.fed((plan.rows, units), (rows, units)) for _ in range(2)]
    sources = list(feeds)
    keep, lengths = ab.placeholder((steps, rows), "bool"), ab.placeholder((rows,), "int32")
    feeds[keep] = weights.generator.random((plan.steps, plan.rows)) < 0.7
    feeds[lengths] = weights.generator.integers(0, plan.steps + 1, plan.rows).astype("int32")
    count = ops.shape(x)[0] if plan.is_open else plan.steps

    def body(t: Any, states: Any, outputs: Any) -> Any:
        place = count - 1 - t if plan.backward else t
        values = [x[place], *states]
        for kind, first, second, chosen in recipe:
            step = Step(weights, x, t, chosen)
            values.append(getattr(step, kind)(values[-1 - first % len(values)], values[-1 - second % len(values)]))
        output = ops.tanh(values[-1])
        new = [output, 0.5 * states[1] + 0.5 * ops.tanh(values[-2])]
        if plan.masked != "none":
            alive = ops.expand_dims(keep[place] if plan.masked == "mask" else t < lengths, 1)
            new = [ops.where(alive, one, other) for one, other in zip(new, states, strict=True)]
            output = ops.where(alive, output, 0.0)
        return t + 1, new, outputs.write(place, output)

    outputs = ab.TensorArray("float64", count, element_shape=(rows, units))
    _, last, outputs = ab.while_loop(lambda t, *_: t < count, body, (0, starts, outputs))
    loss = ops.sum(last[0] * 0.7 + last[1] ** 2) + ops.sum(ops.sin(outputs.stack()))
    gradients = ab.gradients(loss, sources, unconnected_gradients="zero")
    fetches = [loss, *last, *gradients]
    if plan.second_order:
        slope = ops.sum(ops.concatenate([ops.ravel(gradient) for gradient in gradients]) ** 2)
        fetches += ab.gradients(slope, sources, unconnected_gradients="zero")
    return fetches, feeds


plans = st.builds(
    Plan,
    st.sampled_from([3, 5, 2, 1, 0]),
    st.sampled_from([5, 2, 1, 0, 17, 70]),
    st.sampled_from([4, 4, 4, 64]),  # products of 70 rows and 64 units are kernels
    st.booleans(),
    st.sampled_from(["none", "mask", "lengths"]),
    st.booleans(),
    st.integers(0, 3).map(lambda k: k == 3),
)
recipes = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 4), st.integers(0, 4), st.integers(0, 7)), min_size=1, max_size=5
)


def recipe_of(names: str) -> list[tuple[str, int, int, int]]:
    """Steps by their names, with weights and spellings that differ."""
    return [(name, k % 3, (k + 1) % 4, k) for k, name in enumerate(names.split())]


@settings(max_examples=max(1, settings().max_examples // 8), database=None)
@given(recipes, plans, st.sampled_from(sorted(ROADS)), st.integers(0, 2**31))
@example(
    recipe_of("gated normed_gates tied attend branch_by_step inner_loop"),
    Plan(3, 5, 4, backward=True, masked="lengths", second_order=True),
    "without native",
    1,
)
@example(
    recipe_of("dense two_products joined attend norm branch_by_value inner_loop chosen"),
    Plan(4, 2, 4, masked="mask", is_open=True),
    "native",
    2,
)
@example(
    recipe_of("neighbour shares across_rows by_time gated product gated"), Plan(5, 70, 64, is_open=True), "native", 3
)
@example(recipe_of("gated attend inner_loop"), Plan(0, 3, 4, backward=True, second_order=True), "without unroll", 4)
def test_cells(recipe: Any, plan: Plan, road: str, number: int):
    with ab.Graph().as_default() as graph:
        fetches, feeds = losses(recipe, plan, number)
        reference = Interpreter().run(graph, fetches, feeds)
        found = Program(graph, fetches, list(feeds))(*feeds.values())
        with ROADS[road]():
            other = Program(graph, fetches, list(feeds))(*feeds.values())
    for values in (found, other):
        for value, expected in zip(values, reference, strict=True):
            assert value.shape == expected.shape
            scale = np.abs(expected).max(initial=1.0)
            np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-10 * scale)
