"""Small compiled models whose losses are no means over rows: sums, and means over what masks, classes or weights keep.

Of 14 rows the batches have 6, 6 and 2. Rows have different numbers of steps that count, and the first two of each batch
have none, so that some replicas have nothing that counts, and others have no rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import anabranch as ab
from anabranch import layers, losses, ops, optim

ROWS, STEPS, BATCH = 14, 5, 6
RNG = np.random.default_rng(11)
LENGTHS = np.array([0, 0, 5, 1, 4, 2, 0, 0, 3, 5, 1, 1, 0, 4])
WORDS = RNG.integers(1, 9, size=(ROWS, STEPS)) * (np.arange(STEPS) < LENGTHS[:, None])
OTHER_WORDS = RNG.integers(0, 3, size=(ROWS, STEPS))
TAGS = RNG.integers(0, 3, size=(ROWS, STEPS))
VECTORS, TARGETS = RNG.normal(size=(ROWS, 4)), RNG.normal(size=(ROWS, 2))
ROW_WEIGHTS = RNG.random(ROWS) * (LENGTHS > 0)


class Case(NamedTuple):
    """A compiled model, with inputs, targets and weights of rows; whether `fit` gets a generator of batches."""

    model: Any
    x: Any
    y: Any
    sample_weight: Any = None
    is_generated: bool = False


def _sgd() -> Any:
    return optim.SGD(0.1, momentum=0.9)


def _tagger(optimizer: Any = None, mask_zero: bool = True, sample_weight: Any = None, **options: Any) -> Case:
    parts = [layers.Embedding(10, 3, mask_zero=mask_zero), layers.LSTM(4, return_sequences=True)]
    model = ab.Sequential([ab.Input((STEPS,), dtype="int32"), *parts, layers.Dense(3, "softmax")])
    given = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **options}
    model.compile(optimizer or _sgd(), **given)
    return Case(model, WORDS, TAGS, sample_weight)


def _ignored() -> Case:
    return _tagger(mask_zero=False, loss=losses.SparseCategoricalCrossentropy(ignore_class=0))._replace(
        y=np.where(WORDS > 0, TAGS, 0)
    )


def _dense(loss: Any, sample_weight: Any = None) -> Case:
    model = ab.Sequential([ab.Input((4,)), layers.Dense(6, "tanh"), layers.Dense(2)])
    model.compile(optim.SGD(0.01), loss, metrics=["mae"])
    return Case(model, VECTORS, TARGETS, sample_weight)


def _two_outputs() -> Case:
    words, others = ab.Input((STEPS,), dtype="int32"), ab.Input((STEPS,), dtype="int32")
    table = layers.Embedding(10, 3, mask_zero=True)
    tags = layers.Dense(3, "softmax", name="tags")(layers.LSTM(4, return_sequences=True)(table(words)))
    values = layers.Dense(1, name="values")(layers.GRU(4, return_sequences=True)(table(others)))
    model = ab.Model([words, others], {"tags": tags, "values": values})
    chosen = {"tags": "sparse_categorical_crossentropy", "values": losses.Huber(reduction="sum")}
    model.compile(optim.Adam(0.02, global_clipnorm=0.5), chosen, loss_weights={"tags": 1.0, "values": 0.3})
    return Case(model, [WORDS, OTHER_WORDS], {"tags": TAGS, "values": 0.5 * TAGS[..., None]})


class Adding(layers.Layer):
    """Adds a mean over the unmasked steps, one over rows, a sum of its outputs, and one of its weights alone."""

    supports_masking = True

    def __init__(self) -> None:
        super().__init__()
        self.mean = losses.MeanSquaredError()
        self.sum = losses.MeanSquaredError(reduction="sum")

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], 2), name="kernel")

    def call(self, x: Any, mask: Any = None) -> Any:
        found = x @ self.kernel
        self.add_loss(self.mean(ops.zeros_like(found), found, sample_weight=ops.cast(mask, found.dtype)))
        self.add_loss(self.mean_where(found, mask))
        self.add_loss(0.1 * self.sum(ops.ones_like(found), found))
        self.add_loss(0.1 * self.sum(ops.ones_like(self.kernel), ops.convert_to_tensor(self.kernel)))
        return found

    def mean_where(self, found: Any, mask: Any) -> Any:
        masked = found * 1.0
        masked.annotations["mask"] = mask
        return self.mean(ops.ones_like(found), masked)


def _adding() -> Case:
    model = ab.Sequential(
        [ab.Input((STEPS,), dtype="int32"), layers.Embedding(10, 3, mask_zero=True), Adding(), layers.Dense(3)]
    )
    model.compile(optim.SGD(0.05), losses.SparseCategoricalCrossentropy(from_logits=True))
    return Case(model, WORDS, TAGS)


def _sampled() -> Case:
    words, tags = ab.Input((STEPS,), dtype="int32"), ab.Input((STEPS,), dtype="int32")
    hidden = layers.LSTM(4, return_sequences=True)(layers.Embedding(10, 3, mask_zero=True)(words))
    model = ab.Model([words, tags], layers.SampledSoftmax(12, 4, seed=5)(hidden, tags))
    model.compile(_sgd())
    return Case(model, [WORDS, TAGS], TAGS)


class OwnStep(ab.Sequential):
    """A step of its own, with a loss of `compute_loss` and one that it weighs by what it computes itself."""

    weighted: Any

    def train_step(self, data: Any) -> Any:
        x, y, _ = ab.utils.unpack_x_y_sample_weight(data)
        with ab.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
            own = self.weighted(ops.zeros_like(predicted), predicted, sample_weight=ops.sigmoid(predicted[..., 0]))
            total = loss + own
        self.optimizer.apply(tape.gradient(total, self.trainable_variables), self.trainable_variables)
        return {"loss": loss, "own": own}


def _own_step() -> Case:
    parts = [layers.Embedding(10, 3, mask_zero=True), layers.LSTM(4, return_sequences=True), layers.Dense(3)]
    model = OwnStep([ab.Input((STEPS,), dtype="int32"), *parts])
    model.weighted = losses.MeanAbsoluteError(reduction="mean_with_sample_weight")
    model.compile(_sgd(), losses.SparseCategoricalCrossentropy(from_logits=True))
    return Case(model, WORDS, TAGS)


MODELS: dict[str, Callable[[], Case]] = {
    "tagger": _tagger,
    "ignored class": _ignored,
    "mean with weights": lambda: _dense(losses.MeanSquaredError(reduction="mean_with_sample_weight"), ROW_WEIGHTS),
    "sum": lambda: _dense(losses.MeanSquaredError(reduction="sum")),
    "two outputs": _two_outputs,
    "added losses": _adding,
    "sampled softmax": _sampled,
    "own step": _own_step,
    "mask and weights": lambda: _tagger(sample_weight=np.linspace(0.5, 2.0, ROWS)),
    "generated": lambda: _tagger()._replace(is_generated=True),
    "scaled": lambda: _tagger(optim.SGD(0.1, loss_scale_factor=64.0)),
}


def results(name: str, strategy: Any = None) -> dict[str, Any]:
    """Train a model in float64; return its weights, and the logs.

    Args:
        name: the model's.
        strategy: under which it is trained; None for one process.
    """
    ab.config.set_floatx("float64")
    ab.utils.set_random_seed(3)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model, x, y, weight, is_generated = MODELS[name]()
    if is_generated:
        history = model.fit(_batches(x, y), epochs=2, steps_per_epoch=3, verbose=0)
    else:
        history = model.fit(x, y, BATCH, epochs=2, shuffle=False, verbose=0, sample_weight=weight)
    found = {key: np.array(values) for key, values in history.history.items()}
    single = model.train_on_batch(*ab.tree.map_structure(lambda rows: rows[1:8], (x, y)), return_dict=True)
    evaluated = model.evaluate(x, y, BATCH, verbose=0, sample_weight=weight, return_dict=True)
    found |= {f"weight {number}": value for number, value in enumerate(model.get_weights())}
    found |= {f"single {key}": np.array(value) for key, value in single.items()}
    return found | {f"evaluated {key}": np.array(value) for key, value in evaluated.items()}


def _batches(x: Any, y: Any) -> Iterator[Any]:
    while True:
        yield from ((x[first : first + BATCH], y[first : first + BATCH]) for first in range(0, ROWS, BATCH))


__all__ = ["MODELS", "results"]
