"""Calls `fit` many times as one of the workers of a cluster, twice: with steps that are kept, and with other steps.

    train_again.py FOLDER KIND...

A KIND is the name of a strategy, behind ":" what it is to have, and behind "/" the number of calls, by default all. Of
each it writes what came of every call: the weights and logs, and whether the call has built the training step.
"""

from __future__ import annotations

import gc
import json
import sys
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import callbacks, layers, metrics, optim

D = ab.distribute
STRATEGIES: dict[str, Callable[[], Any]] = {
    "DataParallel": lambda: D.DataParallel(),
    "DataParallel:optimizer": lambda: D.DataParallel(shard="optimizer"),
    "DataParallel:of": lambda: D.DataParallel(of=D.Pipeline(stages=2, microbatches=2)),
    "ParameterServer": lambda: D.ParameterServer(),
    "ParameterServer:arriving": lambda: D.ParameterServer(deterministic=False),
    "ParameterServer:asynchronous": lambda: D.ParameterServer(sync=False),
    "ParameterServer:backup": lambda: D.ParameterServer(backup_workers=1),
}
rng = np.random.default_rng(0)
X = rng.normal(size=(48, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
traced = [0]


class Counting(layers.Layer):
    """Counts the training steps that call it while they are built.

    Args:
        draws: whether it adds numbers of the global generator, of which each worker has its own under
            `ParameterServer`: there bits depend on which worker computes what.
    """

    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.draws = draws

    def call(self, inputs: Any, training: bool = False) -> Any:
        traced[0] += training
        return inputs + 0.1 * ab.random.normal(ab.ops.shape(inputs)) if training and self.draws else inputs


class Evaluating(callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert logs is not None
        logs["evaluated"] = self.model.evaluate(X, Y, batch_size=12, verbose=0)[0]


class Doubling(callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.set_weights([2 * weight for weight in self.model.get_weights()])


def made(strategy: Any, seed: int) -> Any:
    ab.utils.set_random_seed(seed)
    with strategy.scope():
        hidden = [layers.Dense(6, "tanh"), layers.BatchNormalization(), layers.Dropout(0.2)]
        draws = isinstance(strategy, D.DataParallel) or strategy.num_workers == 1
        model = ab.Sequential([ab.Input((4,)), *hidden, Counting(draws), layers.Dense(1)])
        compiled(model, optim.Adam(0.01))
    return model


def compiled(model: Any, optimizer: Any) -> None:
    model.compile(optimizer, "mse", metrics=["mae", metrics.RootMeanSquaredError()])


def batches() -> Iterator[Any]:
    for first in range(0, 48, 12):
        yield X[first : first + 12], Y[first : first + 12]


def trained(strategy: Any, is_kept: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the results of each call."""
    one, other = made(strategy, 1), made(strategy, 2)

    def fit(name: str, model: Any, *data: Any, **options: Any) -> tuple[str, dict[str, Any]]:
        if not is_kept:
            model._kept_steps.clear()
        before = traced[0]
        options = {"batch_size": 12, "verbose": 0, **options}
        history = model.fit(*(data or (X, Y)), **options).history
        values = [*model.get_weights(), *([*model.optimizer.variables] if strategy.is_chief else [])]
        bits = [np.asarray(value).tobytes().hex() for value in values]
        return name, {"logs": history, "bits": bits, "built": traced[0] > before}

    yield fit("first", one)
    yield fit("again", one, epochs=2)
    yield fit("first of the other", other)
    for number in range(2):
        yield fit(f"in turn {number}", one)
        yield fit(f"other in turn {number}", other)
    one.set_weights([weight / 2 for weight in one.get_weights()])
    yield fit("weights set", one)
    one.optimizer.learning_rate = 0.02
    yield fit("rate set", one)
    yield fit("in a callback", one, callbacks=[Evaluating(), Doubling()], epochs=2)
    yield fit("validated", one, validation_data=(X, Y))
    yield fit("other batches", one, batch_size=16)
    yield fit("batches of before", one)
    yield fit("other batches again", one, batch_size=16)
    yield fit("too few rows", one, X[:13], Y[:13])
    yield fit("rows that the chief reads", one, batches(), batch_size=None, steps_per_epoch=4)
    one.train_on_batch(X[:12], Y[:12])
    yield fit("behind a single step", one)
    one.layers[0].trainable = False
    frozen = one.get_weights()[0]
    yield fit("frozen", one)
    assert np.array_equal(one.get_weights()[0], frozen)
    yield fit("still frozen", one)
    one.layers[0].trainable = True
    yield fit("trained again", one)
    assert not np.array_equal(one.get_weights()[0], frozen)
    one.optimizer.learning_rate = optim.schedules.ExponentialDecay(0.01, 10, 0.5)
    yield fit("schedule", one)
    yield fit("schedule again", one)
    compiled(one, optim.SGD(0.01, momentum=0.9))
    yield fit("compiled again", one)
    yield fit("as it was compiled", one)
    model = weakref.ref(other)
    del other
    gc.collect()
    assert model() is None, "who deletes a model deletes the steps that it has kept"


def main(folder: Path, kinds: list[str]) -> None:
    ab.config.set_devices(cpu=2)
    found: dict[str, Any] = {}
    for kind in kinds:
        name, _, count = kind.partition("/")
        strategy = STRATEGIES[name]()
        for is_kept in (True, False):
            found[f"{name} {is_kept}"] = dict(islice(trained(strategy, is_kept), int(count) if count else None))
    (folder / f"found-{strategy.task_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
