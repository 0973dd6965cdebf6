# pyright: strict
"""Code as users write it: `make types` checks it strictly, and it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import Tensor, callbacks, layers, losses, metrics, ops, optim


class LeakyCell(layers.Layer):
    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.state_size = units

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.recurrent_kernel = self.add_weight(shape=(self.units, self.units), name="recurrent_kernel")

    def call(self, x: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        (h,) = states
        h = 0.9 * h + 0.1 * ops.tanh(x @ self.kernel + h @ self.recurrent_kernel)
        return h, [h]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


class SquaredError(losses.Loss):
    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return ops.mean(ops.square(y_true - y_pred), axis=-1)


class Highest(metrics.Metric):
    def __init__(self, name: str = "highest") -> None:
        super().__init__(name=name)
        self.highest = self.add_weight(name="highest", initializer="zeros")

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        self.highest.assign(ops.maximum(self.highest, ops.max(y_pred)))

    def result(self) -> Tensor:
        return self.highest.value


class Regression(ab.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(4, activation="relu")
        self.head = layers.Dense(1)

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        return self.head(self.dense(inputs))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with ab.GradientTape() as tape:
            loss = ops.mean(ops.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class StopEarly(callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if logs and logs["loss"] < 100.0:
            self.model.stop_training = True


def test_a_functional_model_with_a_cell_of_ones_own(tmp_path: Path):
    inputs = ab.Input((None, 16))
    x = layers.RNN(LeakyCell(8), return_sequences=True)(inputs)
    x, _, _ = layers.LSTM(8, return_state=True)(x)
    x = layers.Dropout(0.5)(x)
    y = layers.Dense(3, activation="softmax", kernel_regularizer=ab.regularizers.L2(1e-4))(x)
    model = ab.Model(inputs, y)
    model.compile(
        optimizer=optim.Adam(optim.schedules.CosineDecay(1e-3, 1000), clipnorm=1.0),
        loss=losses.SparseCategoricalCrossentropy(),
        metrics=["accuracy", metrics.SparseTopKCategoricalAccuracy(k=2)],
    )
    data, labels = np.zeros((8, 5, 16), "float32"), np.zeros((8,), "int32")
    stops = [StopEarly(), callbacks.EarlyStopping(monitor="loss", patience=2)]
    history = model.fit(data, labels, batch_size=4, epochs=2, callbacks=stops, verbose=0)
    assert len(history.history["loss"]) == 1
    scores = model.evaluate(data, labels, return_dict=True, verbose=0)
    assert 0.0 <= scores["accuracy"] <= 1.0
    predicted = model.predict(data, verbose=0)
    assert predicted.argmax(-1).shape == (8,)
    model.save(tmp_path / "model.keras")
    again = ab.load_model(tmp_path / "model.keras", custom_objects={"LeakyCell": LeakyCell})
    assert again.predict(data, verbose=0).shape == (8, 3)
    names = {weight.path: weight.numpy().shape for layer in model.layers for weight in layer.weights}
    assert (16, 8) in names.values()


def test_a_model_with_a_training_step_of_ones_own() -> None:
    model = Regression()
    model.compile(optimizer="sgd")
    history = model.fit(np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), epochs=2, verbose=0)
    assert list(history.history) == ["loss"]


def test_losses_and_metrics_of_ones_own() -> None:
    model = ab.Sequential([layers.Dense(4)])
    model.add(layers.Dense(1))
    model.build((None, 2))
    model.compile(loss=SquaredError(), metrics=[Highest()])
    scores = model.evaluate(np.zeros((2, 2), "float32"), np.ones((2, 1), "float32"), return_dict=True, verbose=0)
    assert scores == {"loss": 1.0, "highest": 0.0}


class Both(ab.Model):
    """A model with an output of its own form."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = layers.LSTM(3, return_sequences=True, return_state=True)
        self.flip = layers.RandomFlip("horizontal")

    def call(self, inputs: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        output, *states = self.lstm(inputs["rows"])
        flipped = self.flip({"images": inputs["images"]})
        return {"rows": [output, *states], "images": list(flipped.values())}


class Positions(metrics.Metric):
    def update_state(self, values: Tensor) -> None:
        pass

    def result(self) -> dict[str, Tensor]:
        return {"first": ops.zeros(())}


def test_calls_give_what_is_annotated() -> None:
    model = Both()
    outputs = model({"rows": np.zeros((2, 5, 4), "float32"), "images": np.zeros((2, 4, 4, 1), "float32")})
    shapes = {name: [tensor.shape for tensor in tensors] for name, tensors in outputs.items()}
    assert shapes == {"rows": [(2, 5, 3), (2, 3), (2, 3)], "images": [(2, 4, 4, 1)]}
    queries = np.zeros((2, 5, 4), "float32")
    attended, scores = layers.MultiHeadAttention(2, 3)(queries, queries, return_attention_scores=True)
    assert (attended + 1).mean(axis=-1).shape == scores[:, 0, :, 0].shape
    output, hidden, memory = layers.LSTM(3, return_state=True)(queries)
    again = layers.LSTM(3, return_state=True)(queries, initial_state=[hidden, memory])[0]
    assert output.numpy().shape == again.numpy().shape
    step, states = layers.GRUCell(3)(queries[:, 0], [hidden])
    assert [step.shape, *[state.shape for state in states]] == [(2, 3), (2, 3)]
    assert list(Positions()(queries)) == ["first"]
    assert float(ab.Sequential([layers.Dense(1, kernel_initializer="ones")])(queries + 1.0).max()) == 4.0


def test_graphs_and_functions() -> None:
    n, w = ab.placeholder((), "int32", name="n"), ab.Variable(2.0, name="w")

    def goes_on(i: Tensor, power: Tensor) -> Tensor:
        return i < n

    def multiply(i: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, power * w

    _, power = ab.while_loop(goes_on, multiply, (0, 1.0))
    (slope,) = ab.gradients(power, [w])
    chosen = ab.cond(w > 1.0, lambda: w * 2.0, lambda: w * 3.0)
    with ab.Session() as session:
        assert [float(value) for value in session.run([power, slope, chosen], feed_dict={n: 5})] == [32.0, 80.0, 4.0]

    @ab.function
    def double(a: Tensor) -> Tensor:
        return a * 2

    @ab.function(relax_shapes=0)
    def both(a: Tensor) -> tuple[Tensor, Tensor]:
        return a, double(a)

    assert np.array_equal(double(np.ones(3)), [2.0, 2.0, 2.0])
    held: Any = double
    assert np.array_equal(ab.function(held)(np.ones(3)), [2.0, 2.0, 2.0])
    first, second = both(np.ones(3))
    assert (first + second).shape == (3,)
