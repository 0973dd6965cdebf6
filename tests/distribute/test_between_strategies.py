"""Runs that were interrupted within an epoch go on under another strategy, or in one process, with the same results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.waiting import in_time

import anabranch as ab
from anabranch import callbacks, layers
from anabranch.distribute.commands.processes import Launch
from anabranch.framework.saving.archive import SavedFileError
from anabranch.framework.saving.checkpointing import TrainingRun

SCRIPT = str(Path(__file__).parent / "scripts" / "train_between_strategies.py")


@pytest.mark.xdist_group("tasks")
@pytest.mark.parametrize("kind", ["ParameterServer", "DataParallel", pytest.param("ZeRO", marks=pytest.mark.slow)])
def test_runs_go_on_elsewhere_within_an_epoch(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_KERNELS", "0")
    with Launch(2, int(kind == "ParameterServer"), [SCRIPT, kind, str(tmp_path)]) as run:
        assert in_time(run.wait) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    if kind == "DataParallel":  # whose group has ended with the interruption
        with Launch(3, 0, [SCRIPT, kind, str(tmp_path), "again"]) as run:
            assert in_time(run.wait) == 0
        found |= json.loads((tmp_path / "again.json").read_text())
    expected = {name: found.pop(name) for name in ("whole", "whole, steps")}
    assert len(found) == {"ParameterServer": 3, "DataParallel": 4, "ZeRO": 2}[kind]
    for name, mine in found.items():
        other = expected["whole, steps" if "steps" in name else "whole"]
        assert mine["updates"] == other["updates"]
        for log, values in other["history"].items():
            np.testing.assert_allclose(mine["history"][log], values, 1e-10, err_msg=f"{name}: {log}")
        for weight, theirs in zip(mine["weights"], other["weights"], strict=True):
            np.testing.assert_allclose(weight, theirs, 1e-10, 1e-10, err_msg=name)


def test_rows_that_are_not_the_first_ones_are_refused_in_one_process(tmp_path: Path) -> None:
    """As with backup workers: a share of the second batch was computed in place of one of the first."""

    def fit(given: list[Any]) -> Any:
        return model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=2, epochs=1, verbose=0, callbacks=given)

    class Saves(callbacks.BackupAndRestore):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            assert isinstance(self.run, TrainingRun)
            self.run.rows = lambda: {"seed": [1, 0], "shares": 2, "done": [0, 2], "states": []}
            super().on_train_batch_end(batch, logs)
            raise InterruptedError

    model = ab.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(InterruptedError):
        fit([Saves(tmp_path / "backup", save_freq=1)])
    with pytest.raises(SavedFileError, match=r"parts of several batches.*Only ParameterServer can go on"):
        fit([callbacks.BackupAndRestore(tmp_path / "backup", save_freq=1)])
