"""Runs under `DataParallel` that were interrupted, in a group of this process alone."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.members import made

import anabranch as ab
from anabranch.engine.ops import collectives
from anabranch.framework.callbacks.callback_list import CallbackList
from anabranch.framework.data.adapters import batch_of
from anabranch.framework.replicas.parallel import ParallelFit
from anabranch.framework.replicas.single_steps import BatchData
from anabranch.framework.training.epochs import Epochs


@pytest.fixture
def strategy() -> Generator[ab.distribute.DataParallel]:
    (group,) = made(1, False)
    before = collectives.current_group()
    collectives.set_group(group)
    yield ab.distribute.DataParallel()
    collectives.set_group(before)
    group.close()


def test_a_run_is_taken_up_from_its_backup(strategy: ab.distribute.DataParallel, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 24, dtype="float32").reshape(12, 2)
    begun: list[int] = []

    def fitted(*others: Any) -> Any:
        ab.utils.set_random_seed(3)
        with strategy.scope():
            model = ab.Sequential([ab.layers.Dense(1)])
            model.compile("adam", "mse")
        begun.clear()
        noting = ab.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
        history = model.fit(x, x[:, :1], batch_size=4, epochs=3, verbose=0, callbacks=[noting, *others])
        return history.history, [weight.tolist() for weight in model.get_weights()]

    def interrupt(epoch: int, logs: Any) -> None:
        if epoch == 2:
            raise InterruptedError

    assert strategy.is_distributed
    expected = fitted()
    backup = ab.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(InterruptedError):
        fitted(backup, ab.callbacks.LambdaCallback(on_epoch_begin=interrupt))
    (again,) = made(1, False)  # the error has ended the group
    strategy.group = again
    collectives.set_group(again)
    assert fitted(backup) == expected
    assert begun == [2], "the epochs before are those of the backup"
    again.close()


class Counts(ab.layers.Layer):
    """Counts the steps in a whole number, which all workers take from the chief."""

    def build(self, input_shape: Any) -> None:
        self.steps = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False, name="steps")

    def call(self, x: Any) -> Any:
        self.steps.assign_add(1)
        return x


def test_a_worker_that_takes_over_gives_what_the_chief_alone_gives(strategy: ab.distribute.DataParallel) -> None:
    """Steps that it had compiled before gave zeros in place of whole numbers."""
    counts = Counts()
    with strategy.scope():
        model = ab.Sequential([counts, ab.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = BatchData(batch_of(np.ones((4, 2)), np.ones((4, 1))))
    made = ParallelFit(model, strategy, Epochs(data), None, CallbackList(()), 0)
    made.begin_steps()
    counts.steps.assign(5)
    strategy.chief_index = 1
    made.step_on(data)
    counts.steps.assign(6)  # as the other worker has given it
    made._go_on_without_chief()
    made.step_on(data)
    assert int(counts.steps) == 7
