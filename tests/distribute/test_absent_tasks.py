"""`ParameterServer` where a task is absent: how long a worker waits for it, and what it logs meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.members import addresses

import anabranch as ab
from anabranch.distribute import ParameterServer, Server
from anabranch.distribute.commands.launch import Launch
from anabranch.distribute.config import ServerConfig
from anabranch.distribute.environment import note_ended_workers
from anabranch.distribute.tasks import server
from anabranch.distribute.tasks.system import System
from anabranch.engine.queues.errors import CancelledError
from anabranch.framework.replicas import programs

pytestmark = pytest.mark.xdist_group("tasks")


def test_a_worker_without_a_ps_task_waits_for_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited three times as long: again to read statistics, and to leave."""
    monkeypatch.setattr(server, "ServerConfig", partial(ServerConfig, connect_timeout=0.1))
    asked: list[str] = []
    found = System.ask

    def ask(system: System, address: str, name: str, *given: Any) -> None:
        asked.append(name)
        found(system, address, name, *given)

    monkeypatch.setattr(System, "ask", ask)
    ps, chief, own = addresses(3)
    strategy = ParameterServer(cluster={"ps": [ps], "worker": [chief, own]}, job_name="worker", task_index=1)
    with strategy.scope():
        model = ab.Sequential([ab.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ab.errors.TaskFailedError, match=r"/job:ps/task:0 did not answer at .* Start it"):
        model.fit(np.zeros((4, 3)), np.zeros((4, 1)), verbose=0)
    strategy.close()
    assert asked == ["/job:ps/task:0"]


@pytest.fixture
def ps(monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """The address of a ps task."""
    monkeypatch.setenv("ANABRANCH_TOKEN", "a token for tests, which is no secret")
    with Server({"ps": ["localhost:0"]}, "ps", 0) as server:
        yield server.target.removeprefix("grpc://")


def fit(strategy: ParameterServer) -> None:
    with contextlib.closing(strategy), strategy.scope():
        model = ab.Sequential([ab.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.zeros((4, 3)), np.zeros((4, 1)), batch_size=2, verbose=0)


def test_a_worker_says_that_it_waits_for_the_chief_and_ends_if_that_is_absent(
    ps: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It waited without a word and without end."""
    monkeypatch.setattr(programs, "BEGIN_SECONDS", 0.1)
    monkeypatch.setattr(programs, "ABSENT_SECONDS", 0.0)
    there = iter([True])
    monkeypatch.setattr(programs, "listens", lambda address: next(there, False))
    chief, own = addresses(2)
    absent = rf"task:1 has waited \d+ s for /job:worker/task:0 to begin training\. Nothing answers at {chief}\. Start"
    with pytest.raises(TimeoutError, match=absent):
        fit(ParameterServer(cluster={"ps": [ps], "worker": [chief, own]}, job_name="worker", task_index=1))
    said = f"It is there, but has not called fit yet, or not with the same ps tasks: /job:ps/task:0 at {ps}."
    assert sum(said in record.getMessage() for record in caplog.records) == 1


def test_a_worker_does_not_wait_for_a_chief_that_has_ended(
    ps: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It waited for 5 minutes, such as where a script goes on after an error of fit."""
    monkeypatch.setattr(programs, "LOOK_SECONDS", 0.1)
    monkeypatch.setenv("ANABRANCH_CHIEF_FILE", str(tmp_path / "chief"))
    note_ended_workers(str(tmp_path / "chief"), [0])
    chief, own = addresses(2)
    ended = "task:1 waits for /job:worker/task:0 to begin training, but that one has ended. Call fit as often in all"
    with pytest.raises(CancelledError, match=ended):
        fit(ParameterServer(cluster={"ps": [ps], "worker": [chief, own]}, job_name="worker", task_index=1))


def test_a_launcher_says_which_workers_have_ended(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, threading\n"
        "from anabranch.distribute.environment import ended_workers\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index']:\n"
        "    while ended_workers() != {0}:\n"
        "        threading.Event().wait(0.05)\n"
    )
    with Launch(2, 0, [str(script)]) as launch:
        assert launch.wait() == 0


class SaidError(Exception):
    """Raised in place of a log."""


def test_the_chief_says_for_whom_it_waits_below_min_workers(ps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited without a word for a worker that never came; of one that was lost ps task 0 said so."""

    def warn(text: str, *values: object) -> None:
        raise SaidError(text % values)

    monkeypatch.setattr(programs, "SAYS_SECONDS", 0.1)
    monkeypatch.setattr(programs._logger, "warning", warn)
    workers = addresses(3)
    said = "Training waits for 1 of /job:worker/task:1, /job:worker/task:2: min_workers=2, and 1 take part."
    with pytest.raises(SaidError, match=f"^{said}$"):
        fit(ParameterServer(min_workers=2, cluster={"ps": [ps], "worker": workers}, job_name="worker", task_index=0))
