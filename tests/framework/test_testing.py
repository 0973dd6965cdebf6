"""`ab.testing`: what is right passes, and each way to be wrong is found and named."""

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops, optim

X = np.linspace(-1, 1, 24, dtype="float32").reshape(2, 3, 4)
ROWS = X[:, 0]


@pytest.mark.parametrize(
    ("layer", "kwargs", "inputs"),
    [
        (layers.Dense, {"units": 2}, ROWS),
        (layers.LSTM, {"units": 2, "return_sequences": True}, X),
        (layers.LayerNormalization, {}, X),
        (layers.Embedding, {"input_dim": 5, "output_dim": 2}, np.array([[0, 4], [1, 1]])),
        (layers.Conv1D, {"filters": 2, "kernel_size": 2}, X),
        (layers.Concatenate, {}, [ROWS, 2 * ROWS]),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_layers_pass(layer: Any, kwargs: Any, inputs: Any) -> None:
    counts = ab.testing.check_layer(layer, kwargs, inputs=inputs, verbose=False)
    assert counts["graph"] == 3
    assert counts["gradients"] > 0


class Scaled(layers.Layer):
    """A right layer, from which the wrong ones are made."""

    def __init__(self, factor: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = factor

    def build(self, input_shape: Any) -> None:
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return self.factor * self.scale * x

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factor": self.factor}


class ForgetsAnArgument(Scaled):
    def get_config(self) -> dict[str, Any]:
        return {key: value for key, value in super().get_config().items() if key != "factor"}


class KeepsAnArray(Scaled):
    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factor": np.ones(2)}


class StatesAnotherShape(Scaled):
    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, 1)


class ComputesInNumPy(Scaled):
    def call(self, x: Any) -> Any:
        return ops.convert_to_tensor(np.asarray(x) * 2.0) + 0.0 * ops.sum(self.scale)


class StopsGradients(Scaled):
    def call(self, x: Any) -> Any:
        return self.factor * ops.stop_gradient(self.scale) * x


class HasAnotherGradient(Scaled):
    def call(self, x: Any) -> Any:
        @ab.custom_gradient
        def doubled(x: Any) -> Any:
            return 2 * x, lambda dy: 3 * dy

        return doubled(x) * self.scale


class CountsCalls(Scaled):
    def call(self, x: Any) -> Any:
        self.factor += 1.0
        return self.factor * self.scale * x


class ForgetsItsDtype(Scaled):
    def build(self, input_shape: Any) -> None:
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="scale", dtype="bfloat16")


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (ForgetsAnArgument, r"config: (the layer made from the config|get_config)"),
        (KeepsAnArray, "config: TypeError: get_config has array.*JSON can't hold"),
        (
            StatesAnotherShape,
            r"shapes: compute_output_shape\(\(2, 4\)\) gives \[\(2, 4, 1\)\], outputs have \[\(2, 4\)\]",
        ),
        (ComputesInNumPy, "graph: "),
        (StopsGradients, "gradients: no gradient comes back to .*scale"),
        (HasAnotherGradient, "gradients: the derivative by input 0, beside differences"),
        (CountsCalls, "call: a second call"),
        (ForgetsItsDtype, r"weights are \['bfloat16'\] under mixed_bfloat16, expected float32"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_is_wrong_with_a_layer_is_named(layer: Any, message: str) -> None:
    arguments = {"factor": 3.0} if layer is ForgetsAnArgument else {}
    with pytest.raises(AssertionError, match=message) as caught:
        ab.testing.check_layer(layer, arguments, inputs=ROWS, verbose=False)
    assert str(caught.value).startswith(f"{layer.__name__}: ")


def test_the_layer_from_which_these_are_made_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    ab.testing.check_layer(Scaled, {"factor": 3.0}, inputs=ROWS)
    assert capsys.readouterr().out.startswith("Scaled: ")


def test_arguments_of_check_layer_are_checked() -> None:
    with pytest.raises(TypeError, match="takes a class of layers"):
        ab.testing.check_layer(Scaled(), inputs=ROWS)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="same two rows or more"):
        ab.testing.check_layer(Scaled, inputs=ROWS[:1])


class SignDescent(optim.Optimizer):
    """A right optimizer, from which the wrong ones are made."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        variable.assign(variable - learning_rate * ops.tanh(gradient))


class Climbs(SignDescent):
    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        variable.assign(variable + learning_rate * ops.tanh(gradient))


class RemembersOutside(SignDescent):
    """Count steps in a variable that no method of the optimizer can find."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        count = ab.Variable(0.0)
        self.one_more = lambda: count.assign_add(1.0)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        variable.assign(variable - learning_rate * ops.tanh(gradient) / ops.sqrt(self.one_more()))


class AnotherArgument(SignDescent):
    def __init__(self, learning_rate: Any = 0.1, power: float = 1.0, **options: Any) -> None:
        super().__init__(learning_rate, **options)
        self.power = power

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "power": self.power + 1.0}


class MistakesRows(SignDescent):
    updates_rows = True

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        scale = 2.0 if type(variable).__name__ == "VariableRows" else 1.0
        variable.assign(variable - scale * learning_rate * ops.tanh(gradient))


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.Lion, SignDescent])
def test_optimizers_pass(make: Any) -> None:
    assert ab.testing.check_optimizer(make, verbose=False)["options"] == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Climbs, "learns: the loss goes from"),
        (RemembersOutside, "state: a run that was saved and continued"),
        (AnotherArgument, "config: get_config"),
        (MistakesRows, "rows: gradients of rows, kernel"),
    ],
)
def test_what_is_wrong_with_an_optimizer_is_named(make: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        ab.testing.check_optimizer(make, verbose=False)


def test_check_optimizer_takes_what_makes_one() -> None:
    with pytest.raises(TypeError, match="it made 3"):
        ab.testing.check_optimizer(lambda learning_rate: 3, verbose=False)  # pyright: ignore[reportArgumentType]


class Counter(ab.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.epochs = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1


class TakesNoLogs(Counter):
    def on_train_begin(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.epochs = 0


class AsksForLoss(Counter):
    def on_test_end(self, logs: Any = None) -> None:
        self.last = logs["validation loss"]


class Disturbs(Counter):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        weights = self.model.get_weights()
        self.model.set_weights([2 * weight for weight in weights])


@pytest.mark.parametrize(
    ("make", "changes"),
    [(Counter, False), (lambda: ab.callbacks.EarlyStopping(monitor="loss", patience=50), False), (Disturbs, True)],
)
def test_callbacks_pass(make: Any, changes: bool) -> None:
    assert ab.testing.check_callback(make, changes_training=changes, verbose=False)["other calls"] == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (TakesNoLogs, r"signatures: on_train_begin: .*; it is called as on_train_begin\(self, logs=None\)"),
        (AsksForLoss, "training: KeyError: 'validation loss'"),
        (Disturbs, "training: histories differ"),
    ],
)
def test_what_is_wrong_with_a_callback_is_named(make: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        ab.testing.check_callback(make, verbose=False)


def test_check_callback_takes_what_makes_one() -> None:
    with pytest.raises(TypeError, match="it made None"):
        ab.testing.check_callback(lambda: None, verbose=False)  # pyright: ignore[reportArgumentType]
