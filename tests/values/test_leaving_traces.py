"""Tensors that leave the trace in which they were made are refused, with the name of what was traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops


def left_behind() -> Any:
    """Return what a traced function puts aside."""
    kept: list[Any] = []

    @ab.function
    def forgetful(x: Any) -> Any:
        kept.append(x * 2)
        return x

    forgetful(np.ones(3, "float32"))
    return kept[0]


USES: dict[str, Callable[[Any], Any]] = {
    "op": lambda left: ops.sin(left),
    "operator": lambda left: left + 1,
    "operator of an array": lambda left: np.ones(3, "float32") * left,
    "index": lambda left: left[0],
    "layer": lambda left: layers.Dense(2)(ops.reshape(left, (1, 3))),
    "assign": lambda left: ab.Variable(np.zeros(3, "float32")).assign(left),
    "assign_add": lambda left: ab.Variable(np.zeros(3, "float32")).assign_add(left),
    "other function": lambda left: ab.function(lambda x: x + left)(np.ones(3, "float32")),
    "session": lambda left: ab.Session().run(left),
    "number": lambda left: [float(item) for item in left.numpy()],
    "array": np.asarray,
    "loss": lambda left: ab.losses.MeanSquaredError()(np.ones(3, "float32"), left),
}


@pytest.mark.parametrize("use", USES)
def test_what_leaves_a_function_is_refused(use: str) -> None:
    with pytest.raises((ValueError, TypeError), match="was made while function 'forgetful' was traced"):
        USES[use](left_behind())


def test_what_leaves_a_step_of_fit_is_refused() -> None:
    class Scores(layers.Layer):
        def call(self, x: Any) -> Any:
            self.scores = x * 2
            return x + self.add_weight_once()

        def build(self, input_shape: Any) -> None:
            self.shift = self.add_weight(shape=(), initializer="zeros")

        def add_weight_once(self) -> Any:
            return self.shift

    layer = Scores()
    model = ab.Sequential([layer])
    model.compile("sgd", loss="mse")
    x = np.ones((4, 3), "float32")
    model.fit(x, x, verbose=0)
    with pytest.raises(ValueError, match=r"made while a step of a model was traced.*keep its value in a variable"):
        ops.sum(layer.scores)
    layer(x)
    assert float(ops.sum(layer.scores)) == 24.0
    model.fit(x, x, verbose=0)


def test_what_a_function_returns_and_functions_inside_are_as_before() -> None:
    @ab.function
    def inner(x: Any) -> Any:
        return x * 2

    @ab.function
    def outer(x: Any) -> Any:
        with ab.GradientTape() as tape:
            tape.watch(x)
            y = ops.sum(inner(x) ** 2)
        return y, tape.gradient(y, x)

    x = ab.Variable(np.ones(3, "float32"))
    with ab.GradientTape() as tape:
        y, slope = outer(x.value)
        again = y + ops.sum(slope)
    np.testing.assert_allclose(slope, [8, 8, 8])
    np.testing.assert_allclose(tape.gradient(again, x), [16, 16, 16])


@pytest.mark.parametrize("read", [np.asarray, np.mean, lambda v: np.stack([v, v]), lambda v: np.dot(v, v)])
def test_a_variable_is_no_array_while_a_function_is_traced(read: Callable[[Any], Any]) -> None:
    """It would be a constant of all later calls."""
    variable = ab.Variable([1.0, 2.0], name="weights")
    with pytest.raises(TypeError, match=r"'weights' is read as an array.*Use ab.ops.*or variable.numpy\(\)"):
        ab.function(lambda: ab.ops.convert_to_tensor(read(variable)))()
    assert np.shape(read(variable)) == np.shape(read(np.array([1.0, 2.0])))
    with ab.Graph().as_default():  # it has a value, which nothing runs again
        assert np.asarray(variable).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("read", [float, int])
def test_a_variable_is_no_number_while_a_function_is_traced(read: Callable[[Any], Any]) -> None:
    variable = ab.Variable(3.0)
    with pytest.raises(TypeError, match="is read as an array or a number while a function is traced"):
        ab.function(lambda x: ab.cond(x > 0, lambda: x * read(variable), lambda: x))(1.0)
    assert read(variable) == 3


def test_a_layer_that_reads_a_weight_as_an_array_does_not_train_on_its_first_value() -> None:
    class Scale(ab.layers.Layer):
        def build(self, input_shape: Any) -> None:
            self.scale = self.add_weight((2,), "ones")

        def call(self, x: Any) -> Any:
            return x * np.asarray(self.scale)

    model = ab.Sequential([ab.layers.Dense(2), Scale()])
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="is read as an array"):
        model.fit(np.ones((2, 2)), np.ones((2, 2)), verbose=0)
