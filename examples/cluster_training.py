"""A model with a cell of its own, trained by several processes: workers make each step together.

    python -m anabranch launch -n 2 --ps 2 examples/cluster_training.py                 # parameters on ps tasks
    python -m anabranch launch -n 2 --ps 0 examples/cluster_training.py --all-reduce    # parameters in each worker
    python examples/cluster_training.py                                                 # the same in one process

All end with the same weights, up to rounding: the workers share the rows of each batch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from character_model import CHARACTERS, read_library, windows

import anabranch as ab
from anabranch import layers, ops, optim


@ab.saving.register_keras_serializable(package="examples")
class LeakyCell(layers.Layer):
    """Keeps nine tenths of its state at each step and adds one tenth of news.

    Args:
        units: the length of the state.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = self.state_size = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.recurrent_kernel = self.add_weight(shape=(self.units, self.units), name="recurrent_kernel")

    def call(self, x: Any, states: Any) -> Any:
        (h,) = states
        h = 0.9 * h + 0.1 * ops.tanh(x @ self.kernel + h @ self.recurrent_kernel)
        return h, [h]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


def build_model(units: int) -> ab.Sequential:
    """Character numbers [batch, time] to the probabilities of the characters that come next."""
    return ab.Sequential(
        [
            layers.Embedding(CHARACTERS, 32),
            layers.RNN(LeakyCell(units), return_sequences=True),
            layers.Dense(CHARACTERS, "softmax"),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train as one of the workers, or alone; the losses on text that was not trained on, in nats a character."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--characters", type=int, default=600_000, help="how much text to learn from")
    parser.add_argument("--validation-characters", type=int, default=50_000, help="how much text to test on")
    parser.add_argument("--units", type=int, default=192, help="size of the cell")
    parser.add_argument("--batch", type=int, default=64, help="windows in a step, of all workers together")
    parser.add_argument("--window", type=int, default=48, help="characters in a window")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--all-reduce", action="store_true", help="sum gradients among the workers, without ps tasks")
    parser.add_argument("--backup-workers", type=int, default=0, help="workers that a step does not wait for")
    parser.add_argument("--output", type=Path, help="where the chief saves the model")
    parser.add_argument("--at-most", type=float, default=2.45, help="fail unless the last loss is below")
    options = parser.parse_args(arguments)

    ab.utils.set_random_seed(1)
    training, validation, _ = read_library(options.characters, options.validation_characters)
    x, y = windows(training, options.batch, options.window)
    strategy: ab.distribute.Strategy = (
        ab.distribute.DataParallel()
        if options.all_reduce
        else ab.distribute.ParameterServer(backup_workers=options.backup_workers)
    )
    with strategy.scope():
        model = build_model(options.units)
        model.compile(optim.Adam(1e-2, global_clipnorm=1.0), "sparse_categorical_crossentropy", metrics=["accuracy"])
    began = time.perf_counter()
    history = model.fit(
        x,
        y,
        batch_size=options.batch,
        epochs=options.epochs,
        validation_data=windows(validation, options.batch, options.window),
        validation_batch_size=options.batch,
    )
    losses = history.history["val_loss"]
    if strategy.is_chief:
        seconds = time.perf_counter() - began
        print(
            f"{strategy.num_workers} workers: validation loss {losses[0]:.3f} to {losses[-1]:.3f} in {seconds:.0f} s."
        )
        if options.output is not None:
            model.save(options.output)
        if not losses[-1] < options.at_most:
            raise SystemExit(f"The goal, a loss below {options.at_most}, was missed.")
    rows = float(np.ceil(len(x) / options.batch))
    return {"first": losses[0], "last": losses[-1], "steps": rows * len(losses)}


if __name__ == "__main__":
    main()
