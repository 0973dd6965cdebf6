"""Trains small models one after the other, as one of the workers of a cluster or alone, and saves what came of it.

    train_models.py STRATEGY OUTPUT [MODEL ...] [-- STRATEGY OUTPUT [MODEL ...]] ...

After "--" the same processes go on with the next strategy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import callbacks, layers, ops, optim

ROWS = 50  # in batches of 12: the last one has 2 rows, fewer than there are workers in some runs
rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 6))
Y = rng.normal(size=(ROWS, 1))
WORDS = rng.integers(0, 20, size=(ROWS, 5))
CLASSES = (WORDS.sum(1) % 3).astype("int32")


class Everywhere(callbacks.Callback):
    """Notes, in each worker, for which batches it is called, and with which logs at the end of an epoch."""

    on_all_workers = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.results: list[Any] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen.append(f"begin {batch}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(f"end {batch}: {', '.join(sorted(logs))}")
        self.last = [logs[name] for name in sorted(logs)]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(f"end of epoch {epoch}: {', '.join(sorted(logs.keys() - {'noted'}))}")
        self.results.append([*self.last, *[np.sum(weight) for weight in self.model.get_weights()]])


class Notes(callbacks.Callback):
    """Adds to the logs of the chief, as callbacks of learning rates do."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["noted"] = epoch / 2


class State(callbacks.Callback):
    """Notes what the optimizer's variables hold in the chief."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["state"] = float(sum(np.sum(np.abs(variable.numpy())) for variable in self.model.optimizer.variables))


class Scales(callbacks.Callback):
    """Notes the scale of the loss behind each step in the chief."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.scales: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.scales.append(float(self.model.optimizer.dynamic_scale))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs |= {f"exponent {step}": float(np.log2(scale)) for step, scale in enumerate(self.scales)}


class Leaky(layers.Layer):
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
    """A step of its own, which logs a metric, by other names too, a value, and what is made of both."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)
        self.error = ab.metrics.Mean(name="error")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with ab.GradientTape() as tape:
            loss = ops.mean(ops.square(y - self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.error.update_state(loss, sample_weight=ops.shape(x)[0])
        error = self.error.result()
        return {"error": error, "half": loss / 2, "mine": error, "root": ops.sqrt(error), "gap": error - loss}


class Largest(ab.metrics.Metric):
    """The largest error, which is no sum."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_variable(shape=(), name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(ops.maximum(self.value, ops.max(ops.abs(y_true - y_pred))))

    def result(self) -> Any:
        return self.value


def dense(optimizer: Any, **options: Any) -> Any:
    model = ab.Sequential([layers.Dense(8, "tanh", kernel_regularizer="l2"), layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae", Largest()], **options)
    return model, X, Y, {}


def of_rows() -> Any:
    model = ab.Sequential([layers.Dense(1)])
    model.compile("sgd", ab.losses.MeanSquaredError(reduction="none"))
    return model, X, Y, {}


def words(cell: bool) -> Any:
    inner = layers.RNN(Leaky(7)) if cell else layers.Flatten()
    model = ab.Sequential([layers.Embedding(20, 4), inner, layers.Dense(3, "softmax")])
    model.compile(optim.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, WORDS, CLASSES, {}


def texts() -> Any:
    """Looks up texts, of which it has a table, and assigns to a kernel that it trains."""
    inputs = ab.Input((5,), dtype="string")
    counts = layers.StringLookup(vocabulary=[str(number) for number in range(15)], output_mode="multi_hot")(inputs)
    hidden = layers.SpectralNormalization(layers.Dense(4, "tanh"))(counts)
    model = ab.Model(inputs, layers.Dense(3, "softmax")(hidden))
    model.compile(optim.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, WORDS.astype(str), CLASSES, {}


def swapped(at_end: bool) -> Any:
    """Validates with averages of the weights; `at_end`: other callbacks see them, too."""
    model, x, y, options = dense(optim.Adam(0.01, use_ema=True, ema_momentum=0.9))
    return model, x, y, {**options, "callbacks": [callbacks.SwapEMAWeights(swap_on_epoch=at_end), State()]}


def two_outputs() -> Any:
    x = ab.Input((6,))
    hidden = layers.Dense(5, "relu")(x)
    model = ab.Model(x, {"a": layers.Dense(1, name="a")(hidden), "b": layers.Dense(1, name="b")(hidden)})
    model.compile(
        optim.RMSprop(0.01), {"a": "mse", "b": "huber"}, loss_weights={"a": 1.0, "b": 0.5}, metrics={"a": ["mae"]}
    )
    return model, X, {"a": Y, "b": 2 * Y}, {"shuffle": False}


def own_step() -> Any:
    model = OwnStep()
    model.compile(optim.Adagrad(0.1))
    return model, X, Y, {"shuffle": "batch"}


def float64() -> Any:
    ab.config.set_floatx("float64")
    return dense(optim.Adam(0.01))


def synchronized() -> Any:
    model = ab.Sequential([layers.Dense(8, "tanh"), layers.BatchNormalization(synchronized=True, momentum=0.5)])
    model.add(layers.Dense(1))
    model.compile(optim.Adam(0.01), "mse")
    return model, X, Y, {"batch_size": 16}  # so that workers have more rows than others, and one of three none at last


class LessTheLargest(layers.Layer):
    """Takes the largest number of all workers' rows from each."""

    def call(self, x: Any) -> Any:
        return x - ops.stop_gradient(ab.distribute.all_reduce(ops.max(x), "max"))


def exchanging() -> Any:
    model = ab.Sequential([layers.Dense(3), LessTheLargest(), layers.Dense(1)], name="exchanging")
    model.compile("sgd", "mse")
    return model, X, Y, {"batch_size": 16}


def half(policy: str) -> Any:
    """Targets that are large in one row of each batch: two of the first steps overflow in float16."""
    ab.config.set_dtype_policy(policy)
    model = ab.Sequential([layers.Dense(16, "tanh"), layers.Dense(1)])
    model.compile(optim.SGD(0.005), "mse")
    targets = np.where(np.arange(ROWS)[:, None] % 12, 0.1 * Y, 40.0)
    return model, X, targets, {"shuffle": False}


class Unused(layers.Layer):
    """Has a weight that its results do not depend on."""

    def build(self, input_shape: Any) -> None:
        self.unused = self.add_weight(shape=(3,), initializer="ones", name="unused")

    def call(self, x: Any) -> Any:
        return x


def unused() -> Any:
    model = ab.Sequential([layers.Dense(8, "tanh"), Unused(), layers.Dense(1)])
    model.compile(optim.SGD(0.05, momentum=0.9), "mse")
    return model, X, Y, {}


def scaled() -> Any:
    """Rows of the second batch overflow in float32 at any scale that there is, and those of others at none."""
    inner = optim.Adam(0.01, global_clipnorm=0.5, use_ema=True, ema_momentum=0.9)
    model, x, y, _ = dense(optim.LossScaleOptimizer(inner, initial_scale=2.0**100, dynamic_growth_steps=2))
    targets = np.where(np.arange(ROWS)[:, None] // 12 == 1, 1e12, y)
    return model, x, targets, {"shuffle": False, "callbacks": [Scales()]}


SCHEDULE = optim.schedules.ExponentialDecay(0.05, 3, 0.9)
MODELS: dict[str, Callable[[], Any]] = {
    "clipped": lambda: dense(optim.Adam(0.01, global_clipnorm=0.5)),
    "averaged": lambda: dense(optim.SGD(0.05, use_ema=True, ema_momentum=0.9)),
    "accumulated": lambda: dense(optim.Adam(0.01, gradient_accumulation_steps=2)),
    "scheduled": lambda: dense(optim.AdamW(SCHEDULE, weight_decay=0.01)),
    "several steps a call": lambda: dense(optim.SGD(0.05), steps_per_execution=3),
    "table": lambda: words(cell=False),
    "cell": lambda: words(cell=True),
    "texts": texts,
    "two outputs": two_outputs,
    "own step": own_step,
    "float64": float64,  # changes floatx, so it comes last
}


def main(kind: str, output: str, names: list[str]) -> None:
    kind, _, option = kind.partition(":")
    cut: dict[str, Any] = {}
    if option == "arriving":  # "ParameterServer:arriving" adds gradients as they come
        cut = {"deterministic": False}
    elif option and kind == "ParameterServer":  # "ParameterServer:3" cuts all weights into three shards
        cut = {"variable_partitioner": ab.distribute.FixedShardsPartitioner(int(option))}
    elif option:  # "DataParallel:bfloat16", or "DataParallel:300" for buckets of so many bytes
        cut = {"bucket_bytes": int(option)} if option.isdecimal() else {"gradient_dtype": option}
    if kind == "ZeRO":
        kind, cut = "DataParallel", {"shard": "optimizer"}
    strategy = getattr(ab.distribute, kind)(**cut)
    found: dict[str, Any] = {}
    known = {**MODELS, "synchronized": synchronized, "exchanging": exchanging, "unlike": MODELS["clipped"]}
    known |= {"rows": of_rows, "scaled": scaled, "unused": unused}
    known |= {"swapped": partial(swapped, False), "swapped at the end": partial(swapped, True)}
    known |= {name: partial(half, name) for name in ("mixed_float16", "mixed_bfloat16")}
    for name in names or MODELS:
        is_unlike = name == "unlike"
        if strategy.is_chief:  # which makes models alone, too, as where it loads what it has saved
            ab.Sequential([layers.Dense(1)]).compile("adam")
        ab.utils.set_random_seed(1)  # so that a model does not depend on those before it
        try:
            with strategy.scope():
                model, x, y, options = known[name]()
        except ValueError as error:
            found[f"{name}: refused in compile"] = np.array(str(error))
            continue
        if is_unlike:  # each worker has other rows
            x, y = x[strategy.task_index :], y[strategy.task_index :]
        options = {"batch_size": 12, "epochs": 2, "verbose": 0, **options}
        everywhere = Everywhere()
        given = [everywhere, Notes(), *options.pop("callbacks", ())]
        try:
            history = model.fit(x, y, validation_data=(x[:20], _first(y)), callbacks=given, **options)
        except ValueError as error:
            if kind != "ParameterServer" and not is_unlike:
                raise
            found[f"{name}: refused"] = np.array(str(error))
            continue
        for number, weight in enumerate(model.get_weights()):
            found[f"{name}: weight {number}"] = weight
        for key, values in history.history.items():
            found[f"{name}: {key}"] = np.array(values)
        if strategy.is_chief:
            for number, variable in enumerate(model.optimizer.saved_variables):
                found[f"{name}: optimizer {number}"] = variable.numpy()
        found[f"{name}: called"] = np.array(everywhere.seen)
        found[f"{name}: last logs and weights"] = np.array(everywhere.results)
        found[f"{name}: steps"] = np.array(int(model.optimizer.iterations))
    np.savez(f"{output}-{strategy.task_index}.npz", **found)
    if isinstance(strategy, ab.distribute.ParameterServer):
        strategy.close()  # the next one listens at the same address


def _first(y: Any) -> Any:
    return {key: value[:20] for key, value in y.items()} if isinstance(y, dict) else y[:20]


def runs(arguments: list[str]) -> Iterator[list[str]]:
    """Part the arguments at each "--"."""
    while "--" in arguments:
        at = arguments.index("--")
        yield arguments[:at]
        arguments = arguments[at + 1 :]
    yield arguments


if __name__ == "__main__":
    for kind, output, *names in runs(sys.argv[1:]):
        main(kind, output, names)
