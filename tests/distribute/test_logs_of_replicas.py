"""Logs that are arrays, as of metrics for each class, are what one process has, in all workers and after a backup."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.members import addresses
from shared.tasks import PATIENCE

import anabranch as ab
from anabranch import callbacks, layers
from anabranch.distribute import ParameterServer, Server
from anabranch.framework.replicas.cluster_fit import plain, read_message, write_message

pytestmark = pytest.mark.xdist_group("tasks")
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(8, 4)).astype("float32"), np.eye(2, dtype="float32")[np.arange(8) % 2]
SCRIPT = """
import numpy as np
import anabranch as ab

strategy = ab.distribute.DataParallel()
with strategy.scope():
    model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(2, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=[ab.metrics.F1Score(threshold=0.5)])
history = model.fit(np.ones((8, 4)), np.ones((8, 2)), validation_data=(np.ones((3, 4)), np.ones((3, 2))), verbose=0)
for name in ("f1_score", "val_f1_score"):
    (found,) = history.history[name]
    assert isinstance(found, np.ndarray) and (found.shape, found.dtype) == ((2,), "float32"), repr(found)
"""


def compiled(strategy: ParameterServer) -> ab.Sequential:
    ab.utils.set_random_seed(2)
    with strategy.scope():
        model = ab.Sequential([ab.Input((4,)), layers.Dense(2, "sigmoid")])
        model.compile("sgd", "binary_crossentropy", metrics=[ab.metrics.F1Score(threshold=0.5)])
    return model


def assert_arrays(found: list[Any], epochs: int) -> None:
    assert [(type(each), each.shape, each.dtype) for each in found] == [(np.ndarray, (2,), np.float32)] * epochs


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_messages_have_arrays_with_their_dtypes(dtype: str) -> None:
    array = np.array([[0, 1, 1]]).astype(ab.ops.zeros((), dtype).numpy().dtype)
    found = read_message(write_message(plain({"array": array, "loss": np.float32(0.5), "object": object()})))
    assert set(found) == {"array", "loss"}
    assert (found["array"].dtype, found["array"].shape) == (array.dtype, (1, 3))
    np.testing.assert_array_equal(found["array"], array)
    assert found["loss"] == 0.5


def test_a_run_with_arrays_in_its_history_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history of a backup is sent to the workers."""
    monkeypatch.setenv("ANABRANCH_TOKEN", "a token for tests, which is no secret")

    def stop(epoch: int, logs: Any) -> None:
        if epoch == 1:
            raise KeyboardInterrupt

    with Server({"ps": ["localhost:0"]}, "ps", 0) as ps:
        cluster = {"ps": [ps.target.removeprefix("grpc://")], "worker": addresses(1)}
        with contextlib.closing(ParameterServer(cluster=cluster, job_name="worker", task_index=0)) as strategy:
            backup = callbacks.BackupAndRestore(tmp_path)
            given = [backup, callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs=None: stop(epoch, logs))]
            with pytest.raises(KeyboardInterrupt):
                compiled(strategy).fit(X, Y, epochs=3, verbose=0, callbacks=given)
            found = compiled(strategy).fit(X, Y, epochs=3, verbose=0, callbacks=[callbacks.BackupAndRestore(tmp_path)])
    assert found.epoch == [0, 1, 2]
    assert_arrays(found.history["f1_score"], 3)


def test_all_workers_have_arrays(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "anabranch", "launch", "-n", "2", "--ps", "0", str(script)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=4 * PATIENCE)
    assert done.returncode == 0, done.stdout
