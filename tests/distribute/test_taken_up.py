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
from anabranch.engine.queues.errors import TaskFailedError
from anabranch.framework.data.adapters import as_data, batch_of
from anabranch.framework.models.fit_callbacks import CallbackList
from anabranch.framework.replicas.parallel import ParallelFit
from anabranch.framework.replicas.passes import _first_batch
from anabranch.framework.replicas.shares import Shares
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


class Shuffled(ab.utils.PyDataset):
    """Draws the order of its rows when a pass begins."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.x = 0, np.linspace(-1, 1, 24, dtype="float32").reshape(12, 2)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        rows = self.x[np.random.default_rng(self.begun).permutation(12)[4 * index : 4 * index + 4]]
        return rows, rows[:, :1] ** 2

    def on_epoch_begin(self) -> None:
        self.begun += 1


def test_a_pass_is_begun_once_though_its_first_batch_is_looked_at(
    strategy: ab.distribute.DataParallel, tmp_path: Path
) -> None:
    """Data that shuffle when a pass begins had another order in workers, and in runs that are taken up."""

    def fitted(epochs: int, *given: Any) -> Any:
        ab.utils.set_random_seed(3)
        with strategy.scope():
            model = ab.Sequential([ab.layers.Dense(1)])
            model.compile("adam", "mse")
        data = Shuffled()
        history = model.fit(data, shuffle=False, epochs=epochs, verbose=0, callbacks=[*given])
        assert data.begun == epochs
        return history.history

    def interrupt(epoch: int, logs: Any) -> None:
        if epoch == 2:
            raise InterruptedError

    expected = fitted(4)
    backup = ab.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(InterruptedError):
        fitted(4, backup, ab.callbacks.LambdaCallback(on_epoch_begin=interrupt))
    (again,) = made(1, False)  # the error has ended the group
    strategy.group = again
    collectives.set_group(again)
    assert fitted(4, backup) == expected
    again.close()


def test_who_draws_the_shares_of_a_pass_again_does_not_begin_it_again() -> None:
    """So do workers under `ParameterServer` when they have heard which order the chief has drawn."""
    source = Shuffled()
    data = as_data(source, None, None, shuffle=False)
    first, again = (Shares(data, 1, [0, 0]).batch(0) for _ in range(2))
    np.testing.assert_array_equal(first.leaves[0], again.leaves[0])
    data.on_epoch_end()
    epochs = Epochs(data)
    assert epochs.peek() is not None
    assert [source.begun, *[len([*epochs.epoch()]) for _ in range(2)], source.begun] == [2, 3, 3, 3]


def test_a_pass_that_workers_may_share_is_begun_before_a_batch_is_read(strategy: ab.distribute.DataParallel) -> None:
    """Data that are made ready when a pass begins failed in `evaluate`, and in validation."""
    model = ab.Sequential([ab.layers.Dense(1)])
    model.compile("sgd", "mse")
    source = Shuffled()
    passes = Epochs(as_data(source, shuffle=False))
    strategy.num_workers = 2
    assert _first_batch(model, strategy, passes) is not None
    assert [source.begun, len([*passes.epoch()]), source.begun] == [1, 3, 1]


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


class Warm(ab.optim.schedules.LearningRateSchedule):
    """A schedule that is not registered."""

    def __call__(self, step: Any) -> Any:
        return 0.1 * ab.ops.minimum(ab.ops.cast(step, "float32") + 1.0, 3.0)

    def get_config(self) -> dict[str, Any]:
        return {}


def test_parts_of_an_optimizer_have_its_schedule(strategy: ab.distribute.DataParallel) -> None:
    """A copy was made of its config: that failed for schedules and functions that no file can have."""

    def fitted(each: ab.distribute.DataParallel) -> list[float]:
        ab.utils.set_random_seed(3)
        with each.scope():
            model = ab.Sequential([ab.layers.Dense(1)])
            model.compile(ab.optim.Adam(Warm()), "mse")
        return model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=2, epochs=2, verbose=0).history["loss"]

    np.testing.assert_allclose(fitted(ab.distribute.DataParallel(shard="optimizer")), fitted(strategy), 1e-5)


def test_layers_are_frozen_between_two_calls_whose_optimizer_is_in_parts(strategy: ab.distribute.DataParallel) -> None:
    """The optimizer keeps its variables for those that are frozen; that was an error of `zip`."""

    def fitted(each: ab.distribute.DataParallel) -> list[Any]:
        ab.utils.set_random_seed(3)
        with each.scope():
            model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(3, "tanh"), ab.layers.Dense(1)])
            model.compile(ab.optim.Adam(0.1, amsgrad=True), "mse")
        for is_trained in (True, False, True):
            model.layers[0].trainable = is_trained
            model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=2, verbose=0)
        kept = [steps for steps in model._kept_steps._held.values() if steps.shards]
        assert bool(kept) == (each.shard is not None)
        assert all(own.first_value is not None for steps in kept for _, own, _ in steps.shards[0]._slots), "no memory"
        return [*model.get_weights(), *[variable.numpy() for variable in model.optimizer.variables]]

    parts, whole = fitted(ab.distribute.DataParallel(shard="optimizer")), fitted(strategy)
    for part, other in zip(parts, whole, strict=True):
        np.testing.assert_allclose(part, other, 1e-5, 1e-6)


def test_the_loss_of_a_worker_that_never_came_to_fit_is_explained() -> None:
    """As in a script that calls fit in the chief alone: the error named a broken pipe."""
    before = collectives.current_group()
    first, second = made(2, False)
    collectives.set_group(first)
    try:
        with ab.distribute.DataParallel().scope():
            model = ab.Sequential([ab.layers.Dense(1)])
            model.compile("sgd", "mse")
        second.close()
        with pytest.raises(TaskFailedError) as caught:
            model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    finally:
        collectives.set_group(before)
        first.close()
    assert "Call fit as often in all workers" in "".join(caught.value.__notes__)
