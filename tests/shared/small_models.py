"""Small compiled models of many kinds, each of which replicas have to train as one device does.

Their losses are means over rows, and no row's output depends on other rows, unless all replicas compute that together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import anabranch as ab
from anabranch import layers, ops, optim

ROWS = 10
PRECISIONS = {"float64": 1e-10, "float32": 1e-5}  # of results against those of one device
RNG = np.random.default_rng(7)
VECTORS, TARGETS = RNG.normal(size=(ROWS, 4)), RNG.normal(size=(ROWS, 2))
SEQUENCES, IMAGES = RNG.normal(size=(ROWS, 5, 3)), RNG.normal(size=(ROWS, 6, 6, 2))
LENGTHS = 1 + np.arange(ROWS) % 5
WORDS = RNG.integers(1, 9, size=(ROWS, 5)) * (np.arange(5) < LENGTHS[:, None])  # 0 behind the end of a sequence
CLASSES = RNG.integers(0, 3, size=ROWS)
WEIGHTS = RNG.random(ROWS)


class Case(NamedTuple):
    """A compiled model, and what `fit` is called with besides the size of batches."""

    model: Any
    x: Any
    y: Any
    options: dict[str, Any]


def _case(model: Any, x: Any, y: Any = TARGETS, optimizer: Any = None, **options: Any) -> Case:
    given = {"loss": "mse", "metrics": ["mae"], **options}
    fitting = {key: given.pop(key) for key in ("sample_weight", "class_weight") if key in given}
    model.compile(optimizer or optim.SGD(0.05, momentum=0.9), **given)
    return Case(model, x, y, fitting)


def _vectors(*inner: Any, **options: Any) -> Case:
    return _case(ab.Sequential([ab.Input((4,)), *inner, layers.Dense(2)]), VECTORS, **options)


def _dense(optimizer: Any = None, **options: Any) -> Case:
    return _vectors(layers.Dense(5, "tanh"), optimizer=optimizer, **options)


def _sequences(*inner: Any, **options: Any) -> Case:
    return _case(ab.Sequential([ab.Input((5, 3)), *inner, layers.Dense(2)]), SEQUENCES, **options)


def _images(*inner: Any, **options: Any) -> Case:
    ends = [layers.GlobalAveragePooling2D(), layers.Dense(2)]
    return _case(ab.Sequential([ab.Input((6, 6, 2)), *inner, *ends]), IMAGES, **options)


def _words(*inner: Any, mask_zero: bool = False, **options: Any) -> Case:
    table = layers.Embedding(9, 3, mask_zero=mask_zero)
    model = ab.Sequential([ab.Input((5,), dtype="int32"), table, *inner, layers.Dense(3, "softmax")])
    losses = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
    return _case(model, WORDS, CLASSES, **{**losses, **options})


class Leaky(layers.Layer):
    """A cell of a user's own."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = self.state_size = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.recurrent = self.add_weight(shape=(self.units, self.units), name="recurrent")

    def call(self, x: Any, states: Any) -> Any:
        h = 0.9 * states[0] + 0.1 * ops.tanh(x @ self.kernel + states[0] @ self.recurrent)
        return h, [h]


class OwnStep(ab.Model):
    """A training step of a user's own, with a tape, a metric, and a value that it logs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(4, "tanh"), layers.Dense(2)
        self.error = ab.metrics.Mean(name="error")

    def call(self, inputs: Any) -> Any:
        return self.second(self.first(inputs))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with ab.GradientTape() as tape:
            loss = ops.mean(ops.square(y - self(x, training=True)))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.error.update_state(loss, sample_weight=ops.shape(x)[0])
        return {"error": self.error.result(), "half": loss / 2}


class WhileLoop(layers.Layer):
    """As many steps for a row as its first value says, with a weight in the body."""

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], input_shape[-1]), name="kernel")

    def call(self, x: Any) -> Any:
        steps = ops.cast(ops.abs(x[:, :1]) * 3.0, "int32") + 1

        def body(number: Any, h: Any) -> Any:
            return number + 1, ops.where(number < steps, ops.tanh(h @ self.kernel), h)

        return ab.while_loop(lambda number, _: number < ops.max(steps), body, (0, x))[1]


class Penalised(layers.Layer):
    """Adds losses and a metric in `call`."""

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], 4), name="kernel")
        self.size = ab.metrics.Mean(name="size")

    def call(self, x: Any) -> Any:
        h = x @ self.kernel
        self.add_loss(0.01 * ops.mean(ops.square(h)))
        self.size.update_state(ops.abs(h))
        return h


@ab.custom_gradient
def _swish(x: Any) -> Any:
    gate = ops.sigmoid(x)
    return x * gate, lambda upstream: upstream * gate * (1 + x * (1 - gate))


class OwnGradient(layers.Layer):
    """A function whose gradient the user writes, and one whose inner values the backward pass computes again."""

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], 4), name="kernel")
        self.more = self.add_weight(shape=(4, 4), name="more")

    def call(self, x: Any) -> Any:
        return ab.remat(lambda h: ops.tanh(ops.tanh(h) @ self.more))(_swish(x @ self.kernel))


def own_step() -> Case:
    model = OwnStep()
    model.compile(optim.Adagrad(0.1))
    return Case(model, VECTORS, TARGETS, {})


def two_outputs() -> Case:
    x, more = ab.Input((4,), name="x"), ab.Input((5, 3), name="more")
    hidden = layers.Concatenate()([layers.Dense(4, "relu")(x), layers.Flatten()(more)])
    model = ab.Model({"x": x, "more": more}, {"a": layers.Dense(2, name="a")(hidden), "b": layers.Dense(1)(hidden)})
    given = {"x": VECTORS, "more": SEQUENCES}
    losses = {"loss": {"a": "mse", "b": "huber"}, "loss_weights": {"a": 1.0, "b": 0.5}, "metrics": {"a": ["mae"]}}
    return _case(model, given, {"a": TARGETS, "b": TARGETS[:, :1]}, **losses)


def attention() -> Case:
    x = ab.Input((5, 3))
    attended = layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    hidden = layers.LayerNormalization()(layers.Add()([x, attended]))
    return _case(ab.Model(x, layers.Dense(2)(layers.Flatten()(hidden))), SEQUENCES, optimizer=optim.SGD(0.05))


def masked_attention() -> Case:
    words = ab.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4, mask_zero=True)(words)
    hidden = layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 2)(x, x))
    return _case(ab.Model(words, layers.Dense(2)(hidden)), WORDS)


def shared_layer() -> Case:
    x = ab.Input((4,))
    dense = layers.Dense(4, "tanh", kernel_regularizer="l2")
    return _case(ab.Model(x, layers.Dense(2)(dense(dense(x)) + x)), VECTORS)


def frozen() -> Case:
    fixed = layers.Dense(5, "tanh", trainable=False)
    model = ab.Sequential([ab.Input((4,)), fixed, layers.BatchNormalization(trainable=False), layers.Dense(2)])
    return _case(model, VECTORS)


def mixture() -> Case:
    experts = layers.MixtureOfExperts(
        3, lambda: layers.Dense(4, "tanh"), k=2, importance_loss=0.0, load_loss=0.0, noisy=False
    )
    return _vectors(experts)


def thinking() -> Case:
    return _sequences(layers.RNN(layers.AdaptiveComputationTime(layers.SimpleRNNCell(3), max_steps=3)))


def weighted() -> Case:
    return _dense(sample_weight=WEIGHTS, weighted_metrics=["mse"])


def separate_rates() -> Case:
    chosen = optim.OptimizerMap(optim.SGD(0.05), {"bias": optim.SGD(0.2)})
    return _dense(optim.MultiOptimizer(chosen))


SCHEDULE = optim.schedules.ExponentialDecay(0.05, 1, 0.5)
MODELS: dict[str, Callable[[], Case]] = {
    "dense": _dense,
    "regularized": lambda: _vectors(layers.Dense(5, "relu", kernel_regularizer="l2", bias_regularizer="l1")),
    "clipped by global norm": lambda: _dense(optim.SGD(0.1, global_clipnorm=0.3)),
    "clipped by norm": lambda: _dense(optim.SGD(0.1, clipnorm=0.2)),
    "averaged weights": lambda: _dense(optim.SGD(0.1, use_ema=True, ema_momentum=0.9)),
    "accumulated": lambda: _dense(optim.SGD(0.1, gradient_accumulation_steps=2)),
    "decay and schedule": lambda: _dense(optim.SGD(SCHEDULE, weight_decay=0.01)),
    "scaled loss": lambda: _dense(optim.LossScaleOptimizer(optim.SGD(0.05))),
    "several optimizers": separate_rates,
    "Adam": lambda: _dense(optim.Adam(0.01, epsilon=1e-3)),
    "several steps a call": lambda: _dense(steps_per_execution=2),
    "sample weights": weighted,
    "class weights": lambda: _words(layers.Flatten(), class_weight={0: 1.0, 1: 0.5, 2: 2.0}),
    "constrained": lambda: _vectors(layers.Dense(5, kernel_constraint="unit_norm")),
    "losses in layers": lambda: _vectors(Penalised()),
    "activity regularizer": lambda: _vectors(layers.Dense(5, "tanh", activity_regularizer="l2")),
    "shared layer": shared_layer,
    "frozen": frozen,
    "several inputs and outputs": two_outputs,
    "own step": own_step,
    "own gradient": lambda: _vectors(OwnGradient()),
    "loop": lambda: _vectors(WhileLoop()),
    "convolution": lambda: _images(layers.Conv2D(3, 3, activation="relu"), layers.MaxPooling2D(2)),
    "separable convolution": lambda: _images(layers.SeparableConv2D(3, 3), layers.GroupNormalization(3)),
    "convolution over time": lambda: _sequences(layers.Conv1D(4, 3, padding="causal"), layers.GlobalMaxPooling1D()),
    "simple recurrent": lambda: _sequences(layers.SimpleRNN(3)),
    "LSTM both ways": lambda: _sequences(layers.Bidirectional(layers.LSTM(3))),
    "GRU, masked": lambda: _words(layers.GRU(3), mask_zero=True),
    "two recurrent, masked": lambda: _words(layers.LSTM(3, return_sequences=True), layers.GRU(3), mask_zero=True),
    "own cell": lambda: _sequences(layers.RNN(Leaky(4))),
    "adaptive computation time": thinking,
    "table": lambda: _words(layers.Flatten()),
    "table, Adam": lambda: _words(layers.Flatten(), optimizer=optim.Adam(0.01, epsilon=1e-3)),
    "attention": attention,
    "masked attention": masked_attention,
    "experts": mixture,
    "time distributed": lambda: _sequences(layers.TimeDistributed(layers.Dense(3, "relu")), layers.Flatten()),
}

# Layers that replicas compute together, of all rows.
SYNCHRONIZED: dict[str, Callable[[], Case]] = {
    "synchronized normalization": lambda: _vectors(layers.BatchNormalization(synchronized=True)),
    "synchronized convolution": lambda: _images(layers.Conv2D(3, 3), layers.BatchNormalization(synchronized=True)),
    "synchronized, masked": lambda: _words(
        layers.BatchNormalization(synchronized=True, momentum=0.5), layers.GRU(3), mask_zero=True
    ),
    "synchronized twice": lambda: _vectors(
        layers.Dense(6, "tanh"),
        layers.BatchNormalization(synchronized=True, momentum=0.5),
        layers.Dropout(0.3),
        layers.Dense(4),
        layers.BatchNormalization(synchronized=True, renorm=True, momentum=0.5),
    ),
}

# Layers that draw random numbers: by row, or for all rows at once.
RANDOM: dict[str, Callable[[], Case]] = {
    "dropout": lambda: _vectors(layers.Dense(6, "tanh"), layers.Dropout(0.4), layers.Dense(4), layers.Dropout(0.2)),
    "one mask": lambda: _vectors(layers.Dense(6), layers.Dropout(0.5, noise_shape=(1, None))),
    "noise": lambda: _vectors(layers.GaussianNoise(0.5), layers.Dense(6), layers.GaussianDropout(0.3)),
    "alpha dropout": lambda: _vectors(layers.Dense(6, "selu"), layers.AlphaDropout(0.3)),
    "spatial dropout": lambda: _sequences(layers.SpatialDropout1D(0.5), layers.Flatten()),
    "recurrent dropout": lambda: _sequences(layers.LSTM(4, dropout=0.3, recurrent_dropout=0.3)),
    "dropout by steps": lambda: _sequences(layers.TimeDistributed(layers.Dropout(0.5)), layers.Flatten()),
    "dropout of steps first": lambda: _sequences(
        layers.Permute((2, 1)), layers.Dropout(0.3), layers.Reshape((15,)), layers.Dense(3)
    ),
    "attention dropout": lambda: _attention(),
}
# How many keys these take may depend on the data, so that workers have to make all steps together.
RANDOM_IN_LOOPS: dict[str, Callable[[], Case]] = {
    "dropout in a loop": lambda: _sequences(layers.RNN(_NoisyCell())),
}


class _NoisyCell(layers.SimpleRNNCell):
    """Draws in each step of the loop, from the global generator."""

    def __init__(self) -> None:
        super().__init__(4)

    def call(self, inputs: Any, states: Any, training: Any = False) -> Any:
        kept = ab.random.dropout(inputs, 0.3) if training else inputs
        return super().call(kept, states, training=training)


def _attention() -> Case:
    inputs = ab.Input((5, 3))
    hidden = layers.MultiHeadAttention(2, 2, dropout=0.4)(inputs, inputs)
    return _case(ab.Model(inputs, layers.Dense(2)(layers.Flatten()(hidden))), SEQUENCES)


def results_of(case: Case, history: Any) -> dict[str, Any]:
    """Return the results of training: weights, logs, and the optimizer's variables, by name."""
    found = {f"weight {number}": weight for number, weight in enumerate(case.model.get_weights())}
    found |= {name: np.array(values) for name, values in history.history.items()}
    slots = case.model.optimizer.saved_variables
    return found | {f"optimizer {number}": variable.numpy() for number, variable in enumerate(slots)}


def trained(name: str, floatx: str, strategy: Any = None, batch_size: int = 7) -> dict[str, Any]:
    """Return results of two passes over a model's 10 rows, of which batches have 7 and 3, in one process."""
    ab.config.set_floatx(floatx)
    ab.utils.set_random_seed(5)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        case = (MODELS | RANDOM | RANDOM_IN_LOOPS | SYNCHRONIZED)[name]()
    history = case.model.fit(case.x, case.y, batch_size=batch_size, epochs=2, verbose=0, **case.options)
    return results_of(case, history)


def assert_same(found: dict[str, Any], expected: dict[str, Any], precision: float) -> None:
    """Check that two trainings have the same results, but for rounding."""
    assert set(found) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, precision, precision, err_msg=key)


__all__ = [
    "MODELS",
    "PRECISIONS",
    "RANDOM",
    "RANDOM_IN_LOOPS",
    "ROWS",
    "SYNCHRONIZED",
    "Case",
    "assert_same",
    "results_of",
    "trained",
]
