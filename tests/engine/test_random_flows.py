"""Random programs over arrays of any shape compute the same in every way, with their first and second derivatives.

The ways: the interpreter, compiled steps with and without rewrites, steps for any sizes, tapes on values, functions,
and training steps with the optimizers. Differences of the interpreter's results decide about the derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from programs.flows import Flow

import anabranch as ab
from anabranch.engine.graph import TensorSpec
from anabranch.engine.passes.framework.limits import at_most
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

QUICK = 3  # in `make test`
ops = ab.ops


def seeds(count: int, quick: Sequence[int] = ()) -> list[Any]:
    """Return seeds of which all but the first, and those that once found something, are slow."""
    return [
        pytest.param(seed, marks=[] if seed < QUICK or seed in quick else [pytest.mark.slow]) for seed in range(count)
    ]


def assert_same(found: Sequence[Any], expected: Sequence[Any], tolerance: float) -> None:
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        one, other = np.asarray(one, "float64"), np.asarray(other, "float64")
        assert one.shape == other.shape
        scale = max(1, np.abs(other).max(initial=0))
        np.testing.assert_allclose(one, other, tolerance, tolerance * scale, err_msg=f"result {number}")


def derived(flow: Flow, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Return tensors: the outputs, the loss, its gradients, their derivative along a direction, and its gradients."""
    xs, loss = inputs[: flow.floats], flow.loss(outputs)

    def gradients(y: Any) -> list[Any]:
        return [ops.convert_to_tensor(each) for each in ab.gradients(y, xs, unconnected_gradients="zero")]

    first = gradients(loss)
    slope = flow.slope(first)
    return [*outputs, loss, *first, slope, *gradients(slope)]


def draw(seed: int) -> tuple[Flow, float]:
    """Return a program and how far its results may be apart."""
    dtype = "float32" if seed % 4 == 3 else "float64"
    flow = Flow(seed, dtype)
    return flow, 1e-8 if dtype == "float64" else 5e-3


def expected_of(flow: Flow) -> tuple[list[Any], list[Any]]:
    """Return the tensors of `derived`, and what the interpreter makes of them."""
    with flow.graph.as_default():
        targets = derived(flow, flow.inputs, flow.outputs)
    return targets, Interpreter().run(flow.graph, targets, dict(zip(flow.inputs, flow.data, strict=True)))


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(200))
def test_random_flows_in_graphs(seed: int):
    flow, tolerance = draw(seed)
    targets, expected = expected_of(flow)
    program = Program(flow.graph, targets, flow.inputs)
    for _ in range(2):
        assert_same(program(*flow.data), expected, tolerance)
    with at_most(0):
        unchanged = Program(flow.graph, targets, flow.inputs)
    assert_same(unchanged(*flow.data), expected, tolerance)

    with ab.Graph().as_default() as graph:
        inputs = flow.placeholders(are_open=True)
        targets = derived(flow, inputs, flow.forward(inputs)[0])
    specs = [TensorSpec((None,) * array.ndim, array.dtype) for array in flow.data]
    assert_same(Program(graph, targets, inputs, specs)(*flow.data), expected, tolerance)


@pytest.mark.parametrize("seed", seeds(200))
def test_derivatives_of_random_flows_are_differences(seed: int):
    flow = Flow(seed)
    with flow.graph.as_default():
        first, count = derived(flow, flow.inputs, flow.outputs), len(flow.outputs)
    loss, *rest = first[count:]
    gradients, slope, second = rest[: flow.floats], rest[flow.floats], rest[flow.floats + 1 :]

    def at(step: float) -> list[Any]:
        moved = [x + step * d for x, d in zip(flow.data, flow.directions, strict=False)]
        given = dict(zip(flow.inputs, [*moved, *flow.data[flow.floats :]], strict=True))
        return Interpreter(float64=True).run(flow.graph, [loss, *gradients], given)

    def differences(step: float) -> list[Any]:
        return [(ahead - behind) / (2 * step) for ahead, behind in zip(at(step), at(-step), strict=True)]

    feeds = dict(zip(flow.inputs, flow.data, strict=True))
    wanted = Interpreter(float64=True).run(flow.graph, [slope, *second], feeds)
    for one, other, exact in zip(differences(1e-5), differences(2.5e-6), wanted, strict=True):
        scale = max(1, np.abs(exact).max(initial=0))
        if np.abs(one - other).max(initial=0) < 1e-5 * scale:  # no kink between
            np.testing.assert_allclose(other, exact, 1e-3, 1e-3 * scale)


# --- values -----------------------------------------------------------------------------------------------------------


def on_tapes(flow: Flow, forward: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    values = [ops.convert_to_tensor(array) for array in inputs]
    xs = values[: flow.floats]
    with ab.GradientTape() as outer:
        outer.watch(xs)
        with ab.GradientTape() as inner:
            inner.watch(xs)
            outputs, loss = forward(*values)
        found = inner.gradient(loss, xs, unconnected_gradients="zero")
        first = [ops.convert_to_tensor(each) for each in found]
        slope = flow.slope(first)
    second = outer.gradient(slope, xs, unconnected_gradients="zero")
    return [*outputs, loss, *first, slope, *[ops.convert_to_tensor(each) for each in second]]


@pytest.mark.parametrize("seed", seeds(200, quick=(93,)))
def test_random_flows_on_values(seed: int):
    flow, tolerance = draw(seed)
    _, expected = expected_of(flow)

    def forward(*inputs: Any) -> Any:
        return flow.forward(inputs)

    assert_same(on_tapes(flow, forward, flow.data), expected, tolerance)
    function = ab.function(forward, relax_shapes=seed % 3 * 4)  # traced for the shapes, or for any sizes
    assert_same(on_tapes(flow, function, flow.data), expected, tolerance)
    traced = ab.function(lambda *inputs: on_tapes(flow, forward, inputs), jit_compile=seed % 2 == 0)
    assert_same(traced(*flow.data), expected, tolerance)


# --- training ---------------------------------------------------------------------------------------------------------

STEPS = 3
_OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("RMSprop", {"centered": True}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {}),
    ("Adagrad", {}),
    ("Adamax", {}),
    ("Nadam", {}),
    ("Adadelta", {}),
    ("Lamb", {}),
]
_OPTIONS: list[dict[str, Any]] = [
    {},
    {"clipnorm": 0.3},
    {"global_clipnorm": 0.5, "weight_decay": 0.02},
    {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2},
    {"gradient_accumulation_steps": 2},
    {"loss_scale_factor": 8.0, "clipvalue": 0.05},
]


class _Trained:
    """A program of which some inputs are variables, and an optimizer of them."""

    def __init__(self, flow: Flow, seed: int) -> None:
        rng = np.random.default_rng(seed)
        name, options = _OPTIMIZERS[rng.integers(len(_OPTIMIZERS))]
        options = {**options, **_OPTIONS[rng.integers(len(_OPTIONS))]}
        if name != "SGD":
            options["epsilon"] = 0.01
        self._optimizer: Any = getattr(ab.optim, name)(0.03, **options)
        chosen = rng.permutation(flow.floats)[: rng.integers(1, flow.floats + 1)]
        self._weights = {int(k): ab.Variable(flow.data[k], dtype=flow.data[k].dtype.name) for k in chosen}
        self._mean = ab.Variable(np.zeros((), flow.data[0].dtype), trainable=False, dtype=flow.data[0].dtype.name)
        self._table = ab.Variable(np.zeros((4, 2), "float32"), trainable=False)
        self._calls = ab.Variable(0, trainable=False, dtype="int32")
        self._flow, self._is_read = flow, bool(rng.random() < 0.5)

    def step(self, *inputs: Any) -> Any:
        weights = list(self._weights.values())
        with ab.GradientTape() as tape:
            own = {number: weight.value if self._is_read else weight for number, weight in self._weights.items()}
            _, loss = self._flow.forward([own.get(number, x) for number, x in enumerate(inputs)])
            scaled = self._optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, weights, unconnected_gradients="zero")
        before = weights[0].value
        self._optimizer.apply(gradients, weights)
        self._calls.assign_add(1)
        self._mean.assign(self._mean * 0.9 + loss * 0.1)
        rows = ops.ones((1, 2)) * ops.cast(loss, "float32")
        self._table.scatter_add(ab.IndexedSlices(rows, ops.stack([self._calls % 4]), [4, 2]))
        return loss, before, weights[0].value * 1.0

    def state(self) -> list[Any]:
        own = [*self._weights.values(), self._mean, self._table, self._calls, *self._optimizer.saved_variables]
        return [variable.numpy() for variable in own]


def trained(flow: Flow, seed: int, wrap: Callable[..., Any]) -> list[Any]:
    """Return the results of the last of some steps, and all state after it."""
    training = _Trained(flow, seed)
    step, results = wrap(training.step), ()
    for number in range(STEPS):
        results = step(*[ops.convert_to_tensor(array) for array in batch(flow, number)])
    return [*results, *training.state()]


def trained_in_a_loop(flow: Flow, seed: int) -> list[Any]:
    training = _Trained(flow, seed)

    @ab.function
    def steps(*stacked: Any) -> Any:
        def body(i: Any, *_: Any) -> Any:
            return i + 1, *training.step(*[array[i] for array in stacked])

        first = training.step(*[array[0] for array in stacked])
        return ab.while_loop(lambda i, *_: i < STEPS, body, (1, *first))[1:]

    batches = zip(*[batch(flow, number) for number in range(STEPS)], strict=True)
    return [*steps(*[np.stack(arrays) for arrays in batches]), *training.state()]


def batch(flow: Flow, number: int) -> list[Any]:
    floats = [x * (1 + 0.1 * number) for x in flow.data[: flow.floats]]
    return [np.asarray(x, x.dtype) for x in [*floats, *flow.data[flow.floats :]]]


@pytest.mark.parametrize("seed", seeds(150))
def test_random_flows_are_trained(seed: int):
    flow, tolerance = draw(seed + 5000)
    expected = trained(flow, seed, lambda step: step)
    for way in (ab.function, lambda step: ab.function(step, jit_compile=True)):
        assert_same(trained(flow, seed, way), expected, tolerance)
    assert_same(trained_in_a_loop(flow, seed), expected, tolerance)
    with at_most(0):
        assert_same(trained(flow, seed, ab.function), expected, tolerance)
