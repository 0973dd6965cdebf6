"""The task of a cluster that a process has by its strategies: where it listens, and when it ends."""

from __future__ import annotations

import contextlib
import json
import threading

import numpy as np
import pytest
from shared.members import addresses
from shared.tasks import PATIENCE

import anabranch as ab
from anabranch.distribute import ClusterSpec, ParameterServer
from anabranch.distribute.cluster import split_address
from anabranch.distribute.strategies import own_task
from anabranch.distribute.tasks.front import is_healthy

pytestmark = pytest.mark.xdist_group("tasks")


@pytest.mark.parametrize("in_order", [True, False])
def test_a_ps_that_runs_the_script_serves_until_the_workers_have_ended(
    in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where all have said that they end; else it has patience, here none."""
    monkeypatch.setenv("ANABRANCH_TOKEN", "a token for tests, which is no secret")
    monkeypatch.setattr(own_task, "_LOOK_SECONDS", 0.05)
    found, saw_nobody, saw_one = own_task.listens, threading.Event(), threading.Event()

    def listens(worker: str, timeout: float) -> bool:
        is_there = found(worker, timeout)
        (saw_one if is_there else saw_nobody).set()
        return is_there

    monkeypatch.setattr(own_task, "listens", listens)
    ps, worker = addresses(2)
    cluster = {"ps": [ps], "worker": [worker]}
    own = own_task.OwnTask.joined(ClusterSpec(cluster), "ps", 0)
    patience = 10 * PATIENCE if in_order else 0.0
    serving = threading.Thread(target=own.serve, args=({"/job:worker/task:0": worker}, patience))
    serving.start()
    assert saw_nobody.wait(PATIENCE)
    made = ParameterServer(cluster=cluster, job_name="worker", task_index=0)
    assert saw_one.wait(PATIENCE), "it has waited for the worker"
    with made.scope():
        model = ab.Sequential([ab.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)
    if in_order:
        made._end()  # as at the end of the process
    else:
        made.close()
    serving.join(PATIENCE)
    assert not serving.is_alive()
    assert own.server is None


def test_a_task_of_a_script_that_has_failed_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_TOKEN", "a token for tests, which is no secret")
    monkeypatch.setattr("sys.last_value", ValueError("the script"), raising=False)
    ps, worker = addresses(2)
    own = own_task.OwnTask.joined(ClusterSpec({"ps": [ps], "worker": [worker]}), "worker", 0)
    own.end_with_process()
    assert own.server is not None
    assert not own.server.task.ends_in_order
    own.leave()


def test_a_task_whose_address_is_no_loopback_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"cluster": {"worker": ["0.0.0.0:0"], "ps": ["0.0.0.0:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    monkeypatch.setenv("ANABRANCH_TOKEN", "a token for tests, which is no secret")
    with contextlib.closing(ParameterServer()) as made:
        _, port = split_address(made._server.target.removeprefix("grpc://"))
        assert is_healthy(f"localhost:{port}")
    monkeypatch.delenv("ANABRANCH_TOKEN")
    with pytest.raises(ValueError, match="other machines can reach need a token: set ANABRANCH_TOKEN"):
        ParameterServer()


def test_workers_that_never_come_are_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ANABRANCH_TOKEN", "a token for tests, which is no secret")
    ps, *workers = addresses(3)
    cluster = {"ps": [ps], "worker": workers}
    with ab.distribute.Server(cluster, "ps", 0):
        made = ParameterServer(cluster=cluster, job_name="worker", task_index=0)
        with contextlib.closing(made), made.scope():
            model = ab.Sequential([ab.layers.Dense(1)])
            model.compile("sgd", "mse")
            model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, epochs=3, verbose=0)
    said = "Training goes on without /job:worker/task:1: the others compute all rows."
    assert [record.getMessage() for record in caplog.records].count(said) == 1
