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
