"""Tracebacks of errors in layers, ops, metrics and optimizers that users call: their lines, and few of ours."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops

X = np.ones((2, 3), "float32")
WIDE = np.ones((2, 5), "float32")
MOST = 8


class WrongShape(layers.Layer):
    def call(self, x: Any) -> Any:
        return self.inner(x)

    def inner(self, x: Any) -> Any:
        return ops.matmul(x, np.ones((7, 2), "float32"))


class BreaksInBuild(layers.Layer):
    def build(self, input_shape: Any) -> None:
        raise KeyError("mine")

    def call(self, x: Any) -> Any:
        return x


class OfLayers(ab.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(4), WrongShape()

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))


class WrongMetric(ab.metrics.Metric):
    def update_state(self, x: Any) -> None:
        self.inner(x)

    def inner(self, x: Any) -> None:
        ops.concatenate([x, ops.zeros((4, 4))], axis=1)

    def result(self) -> Any:
        return 0.0


class BreaksAtTheEnd(ab.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        raise KeyError("mine")


def wrong_loss(y_true: Any, y_pred: Any) -> Any:
    return ops.matmul(y_pred, np.ones((9, 1), "float32"))


def dense() -> Any:
    layer = layers.Dense(2)
    layer(X)
    return layer


def compiled(loss: Any = "mse") -> Any:
    model = ab.Sequential([ab.Input((3,)), layers.Dense(1)])
    model.compile("sgd", loss)
    return model


def fit(model: Any, **options: Any) -> Any:
    return model.fit(X, X[:, :1], verbose=0, **options)


@ab.function
def traced(x: Any) -> Any:
    return WrongShape()(x)


def apply_a_wrong_gradient() -> Any:
    return ab.optimizers.Adam().apply_gradients([(np.ones((4,)), ab.Variable(np.ones((3,), "float32")))])


ERRORS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "width of Dense": (lambda: dense()(WIDE), ["<lambda>"]),
    "rank of Dense": (lambda: dense()(np.float32(3)), ["<lambda>"]),
    "width of Dense, symbolic": (lambda: dense()(ab.Input((5,))), ["<lambda>"]),
    "argument of Dense": (lambda: dense()(X, nope=1), ["<lambda>"]),
    "dtype in Embedding": (lambda: layers.Embedding(4, 2)(np.array(["a"])), ["<lambda>"]),
    "rank in LSTM": (lambda: layers.LSTM(3)(X), ["<lambda>"]),
    "shapes in Add": (lambda: layers.Add()([X, WIDE]), ["<lambda>"]),
    "user's call": (lambda: WrongShape()(X), ["<lambda>", "call", "inner"]),
    "user's call, symbolic": (lambda: WrongShape()(ab.Input((3,))), ["<lambda>", "call", "inner"]),
    "user's build": (lambda: BreaksInBuild()(X), ["<lambda>", "build"]),
    "layer in a model": (lambda: OfLayers()(X), ["<lambda>", "call", "call", "inner"]),
    "layer in models": (lambda: ab.Sequential([ab.Sequential([WrongShape()])])(X), ["<lambda>", "call", "inner"]),
    "layer with an input": (lambda: ab.Sequential([ab.Input((3,)), WrongShape()]), ["<lambda>", "call", "inner"]),
    "layer over time": (lambda: layers.TimeDistributed(WrongShape())(X[None]), ["<lambda>", "call", "inner"]),
    "function": (lambda: traced(ab.constant(X)), ["<lambda>", "traced", "call", "inner"]),
    "op": (lambda: ops.matmul(X, X), ["<lambda>"]),
    "operator": (lambda: ab.constant(X) + WIDE, ["<lambda>"]),
    "branch": (lambda: ops.cond(True, lambda: ops.matmul(X, X), lambda: X), ["<lambda>", "<lambda>"]),
    "body of a map": (lambda: ops.vectorized_map(lambda x: ops.matmul(x, X), WIDE), ["<lambda>", "<lambda>"]),
    "loss": (lambda: ab.losses.MeanSquaredError()(X, WIDE), ["<lambda>"]),
    "metric": (lambda: ab.metrics.CategoricalAccuracy()(X, WIDE), ["<lambda>"]),
    "user's metric": (lambda: WrongMetric()(X), ["<lambda>", "update_state", "inner"]),
    "optimizer": (apply_a_wrong_gradient, ["apply_a_wrong_gradient"]),
    "data of fit": (lambda: compiled().fit(WIDE, X[:, :1], verbose=0), ["<lambda>"]),
    "loss of fit": (lambda: fit(compiled(wrong_loss)), ["<lambda>", "fit", "wrong_loss"]),
    "callback of fit": (lambda: fit(compiled(), callbacks=[BreaksAtTheEnd()]), ["<lambda>", "fit", "on_epoch_end"]),
    "layer of fit": (lambda: fit(broken()), ["<lambda>", "fit", "call", "inner"]),
}


def broken() -> Any:
    model = ab.Sequential([layers.Dense(4), WrongShape()])
    model.compile("sgd", "mse")
    return model


def frames_of(run: Callable[[], Any]) -> tuple[list[str], int]:
    """The functions of this file in the traceback of what `run` raises, and how many frames are not of this file."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of several kinds
        run()
    frames = traceback.extract_tb(caught.value.__traceback__)
    return [f.name for f in frames if f.filename == __file__][1:], sum(f.filename != __file__ for f in frames)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_show_the_users_lines_and_few_others(name: str) -> None:
    run, users = ERRORS[name]
    found, others = frames_of(run)
    assert found == users
    assert others <= MOST


@pytest.mark.parametrize("name", ["user's call", "layer in models", "op", "function", "metric", "optimizer"])
def test_all_lines_are_shown_on_demand(name: str) -> None:
    run, users = ERRORS[name]
    short = frames_of(run)[1]
    ab.config.disable_traceback_filtering()
    try:
        found, others = frames_of(run)
    finally:
        ab.config.enable_traceback_filtering()
    assert found == users
    assert others > MOST > short


def test_lines_of_an_error_that_another_comes_from() -> None:
    class Reraises(layers.Layer):
        def call(self, x: Any) -> Any:
            try:
                return self.inner(x)
            except KeyError as error:
                raise ValueError("mine") from error

        def inner(self, x: Any) -> Any:
            raise KeyError("first")

    with pytest.raises(ValueError, match=r"mine") as caught:
        ab.Sequential([Reraises()])(X)
    cause = caught.value.__cause__
    assert cause is not None
    assert [f.name for f in traceback.extract_tb(cause.__traceback__)] == ["call", "inner"]


VALUE, SHORT = ops.ones((3,)), ops.ones((2,))
ON_VALUES: dict[str, Callable[[], Any]] = {
    "+": lambda: VALUE + SHORT,
    "@": lambda: VALUE @ SHORT,
    "@ of more axes": lambda: ops.ones((4, 2, 3)) @ ops.ones((2, 5)),
    "<": lambda: VALUE < SHORT,
    "==": lambda: VALUE == SHORT,
    "**": lambda: VALUE**SHORT,
    "array on the left": lambda: np.ones(3, "float32") + SHORT,
    "list on the left": lambda: [1.0, 2.0, 3.0] - SHORT,
    "variable": lambda: ab.Variable(VALUE) * SHORT,
    "variable in NumPy": lambda: np.add(ab.Variable(VALUE), SHORT),
    "symbols": lambda: ab.Input((3,)) + ab.Input((2,)),
    "np.matmul": lambda: np.matmul(VALUE, SHORT),
    "of one": lambda: ~VALUE,
    "index": lambda: VALUE[7],
    "reshape": lambda: VALUE.reshape(2, 2),
    "ravel": lambda: VALUE.ravel("F"),
    "transpose": lambda: VALUE.transpose(1, 0),
    "astype": lambda: VALUE.astype("nosuch"),
    "clip": lambda: VALUE.clip(SHORT),
    "dot": lambda: VALUE.dot(SHORT),
}


@pytest.mark.parametrize("name", ON_VALUES)
def test_operators_and_methods_show_as_few_lines_as_functions(name: str) -> None:
    found, others = frames_of(ON_VALUES[name])
    assert found == ["<lambda>"]
    assert others <= 2


def test_lines_of_operators_have_their_names() -> None:
    for run, name in ((ON_VALUES["+"], "__add__"), (ON_VALUES["list on the left"], "__rsub__")):
        with pytest.raises(ValueError, match="do not broadcast") as caught:
            run()
        assert [f.name for f in traceback.extract_tb(caught.value.__traceback__)][2:3] == [name]


@pytest.mark.parametrize("product", [lambda a, b: a @ b, ops.matmul, ops.dot])
@pytest.mark.parametrize(("first", "second"), [((2,), (3,)), ((2,), (3, 4)), ((4, 2), (3,)), ((5, 4, 2), (3, 4))])
def test_errors_of_products_show_the_users_shapes(product: Any, first: Any, second: Any) -> None:
    shapes = [str(list(shape)).replace(" ", "") for shape in (first, second)]
    message = re.escape(f"matmul: shapes {shapes[0]} and {shapes[1]} do not fit")
    with pytest.raises(ValueError, match=message):
        product(ops.ones(first), ops.ones(second))
    with ab.Graph().as_default(), pytest.raises(ValueError, match=message):
        product(ab.placeholder(first, "float32"), ab.placeholder(second, "float32"))
