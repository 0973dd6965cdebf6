"""Trains under `DataParallel` with callbacks of the chief's that change what all workers do; saves what came of it.

train_with_callbacks.py FOLDER [fail]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import callbacks, layers, optim

FOLDER = Path(sys.argv[1])
FAILS = sys.argv[2:] == ["fail"]
SEEN: list[str] = []
BATCHES: list[Any] = []  # of the callback that all workers call


class Changes(callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        SEEN.append(f"epoch {epoch}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        SEEN.append(f"batch {batch}: {sorted(logs)}")
        if batch == 2:
            self.model.optimizer.learning_rate = 0.5
            bias = self.model.layers[-1].bias
            bias.assign(bias + 1)
            if FAILS:
                raise ValueError("this callback fails")
        if batch == 3 and self.model.history.epoch:
            self.model.stop_training = True


class Rows(ab.utils.PyDataset):
    """Batches for validation, which counts those that this process reads."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self.x = x
        self.read: list[int] = []

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        x = self.x[8 * index : 8 * index + 8]
        return x, x[:, :1]


class Evaluates(callbacks.Callback):
    """The chief evaluates by itself."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        SEEN.append(f"{self.model.evaluate(self.x, self.x[:, :1], verbose=0):.5f}")

    def __init__(self, x: Any) -> None:
        super().__init__()
        self.x = x


class Groups(callbacks.Callback):
    """Notes between which batches callbacks are called."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        SEEN.append(f"begin {batch}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        SEEN.append(f"end {batch}")


class Stops(callbacks.Callback):
    """Changes the learning rate, and stops, at the beginning of a batch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.3 / (batch + 1)
        self.model.stop_training = batch == 2


class Everywhere(callbacks.Callback):
    on_all_workers = True

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        BATCHES.append(["begin", batch])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        BATCHES.append(["end", batch, float(logs["loss"])])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        SEEN.append(f"end of {epoch}: {sorted(logs)}")


def main() -> None:
    ab.utils.set_random_seed(3)
    strategy = ab.distribute.DataParallel()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 4)).astype("float32")
    with strategy.scope():
        model = ab.Sequential([layers.Dense(3, "tanh"), layers.Dropout(0.0), layers.Dense(1)])
        model.compile(optim.SGD(0.1), "mse")
    rows = Rows(x)
    given = [Changes(), Evaluates(x), Everywhere()]
    history = model.fit(x, x[:, :1], batch_size=10, epochs=5, verbose=0, validation_data=rows, callbacks=given)
    read = sorted({*rows.read})
    rate, steps = float(model.optimizer.learning_rate), int(model.optimizer.iterations)
    if strategy.is_chief:  # the others are at what comes next
        model.evaluate(x, x[:, :1], batch_size=7, verbose=0)
        model.predict(x, batch_size=7, verbose=0)
    results = {
        "evaluated": model.evaluate(x, x[:, :1], batch_size=7, verbose=0),
        "predicted": model.predict(x, batch_size=7, verbose=0).tolist(),
    }
    with strategy.scope():
        model.compile(optim.SGD(0.1), "mse", metrics=["mae"], steps_per_execution=2)
    model.fit(x, x[:, :1], batch_size=10, verbose=0, callbacks=[Groups()])
    stopped = model.fit(x, x[:, :1], batch_size=10, epochs=3, verbose=0, callbacks=[Stops()]).epoch
    batches = [x[:10], x[10:12], x[12:30]]  # one of them has fewer rows than there are workers
    on_batches = [model.train_on_batch(each, each[:, :1]) for each in batches]

    def generated(count: int) -> Any:
        assert strategy.is_chief, "nobody else reads it"
        for number in range(count):
            rows = x[7 * number : 7 * number + (1 if number == 1 else 7)]
            yield {"x": rows}, rows[:, :1], np.arange(len(rows)) + 1.0

    with strategy.scope():
        inputs = ab.Input((4,), name="x")
        other = ab.Model({"x": inputs}, layers.Dense(1)(layers.Dropout(0.5, seed=1)(inputs)))
        other.compile("sgd", "mse", weighted_metrics=["mae"], steps_per_execution=2)
    histories = [
        other.fit(generated(5), verbose=0, callbacks=[Groups()]).history,
        other.fit(generated(7), epochs=2, steps_per_epoch=3, verbose=0).history,
        other.fit({"x": x}, x[:, :1], batch_size=16, epochs=2, steps_per_epoch=2, verbose=0).history,
    ]
    # As without a seed each process draws an order of its own; that of the chief is one process's.
    seed = 5 + strategy.task_index
    with strategy.scope():
        model.compile(optim.SGD(0.1), "mse")
    rows_of_all = ab.tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(50, seed).batch(8)
    windows = ab.utils.timeseries_dataset_from_array(x, x[:, :1], 1, batch_size=8, shuffle=True, seed=seed)
    by_windows = windows.map(lambda a, b: (a[:, 0], b))
    on_shuffled = [
        *model.fit(rows_of_all, epochs=2, verbose=0, validation_data=by_windows).history["loss"],
        *model.fit(by_windows, epochs=2, verbose=0, validation_data=rows_of_all).history["val_loss"],
        model.evaluate(by_windows, verbose=0),
    ]
    found = {
        "generated": [histories, [weight.tolist() for weight in other.get_weights()]],
        "on batches": on_batches,
        "on shuffled": on_shuffled,
        **results,
        "read": read,
        "history": history.history,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "rate": rate,
        "steps": steps,
        "seen": SEEN,
        "batches": BATCHES,
        "stopped": stopped,
        "sum": float(ab.distribute.all_reduce(ab.distribute.rank() + 1.0)),
    }
    (FOLDER / f"found-{strategy.task_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
