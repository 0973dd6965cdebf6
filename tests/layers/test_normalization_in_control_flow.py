"""`BatchNormalization` in loops and branches: averages move once for each iteration and branch that runs."""

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops

MOMENTUM = 0.75


def data(*shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def make(features: int = 2) -> Any:
    layer = layers.BatchNormalization(momentum=MOMENTUM, dtype="float64")
    layer.build((None, features))
    return layer


def moved(averages: tuple[Any, Any], x: Any) -> tuple[Any, Any]:
    """Mean and variance after a batch."""
    mean, variance = averages
    return MOMENTUM * mean + (1 - MOMENTUM) * x.mean(0), MOMENTUM * variance + (1 - MOMENTUM) * x.var(0)


def assert_averages(layer: Any, expected: tuple[Any, Any], rtol: float = 1e-9) -> None:
    np.testing.assert_allclose(layer.moving_mean.numpy(), expected[0], rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(layer.moving_variance.numpy(), expected[1], rtol=rtol)


def normalised(x: Any) -> Any:
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)


FIRST = (np.zeros(2), np.ones(2))


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("training", [False, True])
def test_once_an_iteration(count: int, training: bool) -> None:
    """Each batch by statistics of its own; a loop that does not run moves nothing."""
    layer, x = make(), data(4, 2)

    @ab.function
    def run(x: Any, count: Any) -> Any:
        return ops_loop(count, lambda i, value: layer(value + ops.cast(i, "float64"), training=training), x)

    averages, expected = FIRST, x
    for i in range(count):
        given = expected + i
        averages = moved(averages, given) if training else averages
        expected = normalised(given) if training else given / np.sqrt(1 + 1e-3)
    np.testing.assert_allclose(run(x, np.int32(count)), expected, rtol=1e-9)
    assert_averages(layer, averages)


def ops_loop(count: Any, body: Any, x: Any) -> Any:
    """``x = body(i, x)`` for so many i."""
    return ab.while_loop(lambda i, x: i < count, lambda i, x: (i + 1, body(i, x)), (0, x))[1]


@pytest.mark.parametrize("taken", [False, True])
def test_only_in_the_branch_that_is_taken(taken: bool) -> None:
    one, other, x = make(), make(), data(4, 2)

    @ab.function
    def run(x: Any, choice: Any) -> Any:
        return ab.cond(choice, lambda: one(x, training=True), lambda: other(2.0 * x, training=True))

    np.testing.assert_allclose(run(x, np.bool_(taken)), normalised(x if taken else 2 * x), rtol=1e-9)
    assert_averages(one, moved(FIRST, x) if taken else FIRST)
    assert_averages(other, FIRST if taken else moved(FIRST, 2 * x))


def test_a_branch_in_a_loop() -> None:
    """In every third iteration; the others neither read nor write the averages."""
    layer, x = make(), data(4, 2)

    @ab.function
    def run(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            return ab.cond(ops.equal(i % 3, 0), lambda: layer(x, training=True) * 2.0, lambda: x + 1.0)

        return ops_loop(8, body, x)

    averages, expected = FIRST, x
    for i in range(8):
        if i % 3:
            expected = expected + 1
            continue
        averages, expected = moved(averages, expected), normalised(expected) * 2
    np.testing.assert_allclose(run(x), expected, rtol=1e-9)
    assert_averages(layer, averages)


def test_what_a_later_iteration_reads_is_what_an_earlier_one_wrote() -> None:
    """Training in even iterations, inference by the new averages in odd ones."""
    layer, x = make(), data(4, 2)

    @ab.function
    def run(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            return ab.cond(ops.equal(i % 2, 0), lambda: layer(x + 1.0, training=True), lambda: layer(x, training=False))

        return ops_loop(4, body, x)

    averages, expected = FIRST, x
    for _ in range(2):
        averages, expected = moved(averages, expected + 1), normalised(expected + 1)
        expected = (expected - averages[0]) / np.sqrt(averages[1] + 1e-3)
    np.testing.assert_allclose(run(x), expected, rtol=1e-9)
    assert_averages(layer, averages)


def test_gradients_through_a_loop_move_nothing() -> None:
    """The backward loop does not run the body's writes again, and gradients are those of finite differences."""
    layer, x = make(), data(4, 2)
    layer.gamma.assign(np.array([0.7, 1.3]))

    def total(value: Any) -> Any:
        return ops.sum(ops_loop(3, lambda i, y: ops.tanh(layer(y, training=True)) + value, value) ** 3)

    @ab.function
    def gradient(x: Any) -> Any:
        return ab.gradients(total(x), [x, layer.gamma, layer.beta])

    found = gradient(x)
    averages, given = FIRST, x
    for _ in range(3):
        averages, given = moved(averages, given), np.tanh(normalised(given) * [0.7, 1.3]) + x
    assert_averages(layer, averages)
    evaluate = ab.function(total)
    direction = data(4, 2, seed=2)
    difference = (evaluate(x + 1e-6 * direction) - evaluate(x - 1e-6 * direction)) / 2e-6
    np.testing.assert_allclose(np.vdot(found[0], direction), difference, rtol=1e-6)
    for weight, slope in ((layer.gamma, found[1]), (layer.beta, found[2])):
        value, step = weight.numpy(), np.array([1e-6, -2e-6])
        values = []
        for sign in (1, -1):
            weight.assign(value + sign * step)
            values.append(float(evaluate(x)))
        weight.assign(value)
        np.testing.assert_allclose((values[0] - values[1]) / 2, np.vdot(slope, step), rtol=1e-5)


class Normalising(layers.Layer):
    """A cell that normalises its input, over the rows of the batch."""

    state_size = 2

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.norm = layers.BatchNormalization(momentum=MOMENTUM, dtype="float64")

    def call(self, x: Any, states: Any, training: Any = False) -> Any:
        total = states[0] + self.norm(x, training=training)
        return total, [total]


def test_inside_a_cell() -> None:
    """Once a step, and in training only."""
    cell, x = Normalising(dtype="float64"), data(4, 5, 2)
    layer = layers.RNN(cell, dtype="float64")
    found = layer(x, training=True)
    np.testing.assert_allclose(found, sum(normalised(x[:, step]) for step in range(5)), rtol=1e-9)
    averages = FIRST
    for step in range(5):
        averages = moved(averages, x[:, step])
    assert_averages(cell.norm, averages)
    layer(x)
    assert_averages(cell.norm, averages)


def test_in_a_model_that_is_fitted() -> None:
    """The branch is chosen by the data, batch by batch."""

    class Choosing(layers.Layer):
        def __init__(self) -> None:
            super().__init__(dtype="float64")
            self.one, self.other = make(), make()

        def call(self, x: Any, training: Any = False) -> Any:
            positive = ops.mean(x) > 0
            return ab.cond(positive, lambda: self.one(x, training=training), lambda: self.other(x, training=training))

    x = np.concatenate([data(4, 2) + 5, data(4, 2, seed=2) - 5, data(4, 2, seed=3) + 5])
    layer = Choosing()
    model = ab.Sequential([ab.Input((2,), dtype="float64"), layer])
    model.compile(ab.optim.SGD(0.0), "mse")
    model.fit(x, x, batch_size=4, shuffle=False, verbose=0)
    assert_averages(layer.one, moved(moved(FIRST, x[:4]), x[8:]), rtol=1e-6)  # data come as float32
    assert_averages(layer.other, moved(FIRST, x[4:8]), rtol=1e-6)
