"""Workers and ps tasks that are killed, stopped or fail while replicas train."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from shared.tasks import PATIENCE
from shared.waiting import Waiting, go, in_time, reached

import anabranch as ab
from anabranch.distribute.commands.processes import Launch
from anabranch.framework.replicas import applier

SCRIPT = str(Path(__file__).parent / "scripts" / "train_with_a_pause.py")
SLOW = str(Path(__file__).parent / "scripts" / "train_with_a_slow_chief.py")
BEHIND = str(Path(__file__).parent / "scripts" / "train_behind.py")
RESTORING = str(Path(__file__).parent / "scripts" / "train_and_restore.py")
pytestmark = [
    pytest.mark.xdist_group("tasks"),
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("reached", "go"):
        os.mkfifo(tmp_path / name)
    return tmp_path


@pytest.fixture
def run(folder: Path, request: pytest.FixtureRequest, capfd: Any) -> Generator[Launch]:
    """A run whose chief has made two steps and waits; what it prints is captured."""
    workers, *arguments = request.param
    with Launch(workers, 1, [SCRIPT, str(folder), *arguments]) as made:
        assert reached(folder) == "two steps"
        yield made


def found(folder: Path, worker: int) -> Any:
    return json.loads((folder / f"found-{worker}.json").read_text())


def assert_same(one: Any, other: Any) -> None:
    """Two runs have the same results, up to rounding."""
    assert one["steps"] == other["steps"]
    assert one["history"].keys() == other["history"].keys()
    for name, values in one["history"].items():
        np.testing.assert_allclose(values, other["history"][name], 1e-5, err_msg=name)
    for weight, expected in zip(one["weights"], other["weights"], strict=True):
        np.testing.assert_allclose(weight, expected, 1e-4, 1e-5)


@pytest.fixture(scope="module")
def alone() -> Any:
    """Return the results of one process."""
    done = subprocess.run(
        [sys.executable, SCRIPT, "/no/such/folder"], stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("run", [(3,)], indirect=True)
def test_a_worker_and_the_chief_are_lost(run: Launch, folder: Path, alone: Any, capfd: Any):
    """Worker 1 takes over from the chief, and does the work of all; each loss on its own is slow, below."""
    run.workers[2].kill()
    run.workers[2].wait(PATIENCE)
    run.workers[0].kill()
    assert reached(folder) == "two steps", "the callback is called once more, by the new chief"
    go(folder)
    assert reached(folder) == "the end"
    assert in_time(run.wait) == 0
    mine = found(folder, 1)
    assert mine["steps"] == alone["steps"] == 14
    assert mine["statistics"]["members"] == [1]
    assert_same(mine, alone)
    own = [1, [[epoch, batch] for epoch in range(2) for batch in range(7)]]
    assert mine["everywhere"] == own, "a callback of all workers sees each batch once, and keeps its own state"
    printed = capfd.readouterr()
    assert "[worker 1] /job:worker/task:1 leads the training from now on." in printed.out
    assert "ended with exit status -9 (SIGKILL)" in printed.err


def test_a_chief_that_ends_while_others_train_prints_no_error_of_its_thread(monkeypatch: pytest.MonkeyPatch):
    """Ps task 0 takes it for dead; nobody can be reached any more by a strategy that is closed."""

    class Programs:
        plan, token = "plan", 7

        def __init__(self, *given: Any, by_ps: bool = False) -> None:
            if not by_ps and given:
                raise RuntimeError("This ParameterServer was closed.")

        def of_applier(self) -> Any:
            return Programs(by_ps=True)

        def choose(self) -> Any:
            raise ab.errors.TaskFailedError("the leader was taken for dead")

        def abandon(self, reason: str) -> None:
            raise ab.errors.TaskFailedError(reason)

        def end_choosing(self) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(applier, "ReplicaPrograms", Programs)
    made = applier.Applier(cast("Any", Programs()))
    made._thread.join()  # an error that the thread raises is a warning of pytest
    made.end()
    assert isinstance(made.error, ab.errors.TaskFailedError)


@pytest.mark.parametrize("error", [ab.errors.TaskFailedError, ValueError])
def test_workers_hear_of_a_step_that_could_not_be_applied(error: Any, monkeypatch: pytest.MonkeyPatch):
    """Also where it is the connection of the thread that applies steps which is lost: the chief waited for ever."""
    done: list[Any] = []

    class Programs:
        plan, token = "plan", 7

        def __init__(self, *given: Any, by_ps: bool = False) -> None:
            self.by_ps = by_ps

        def of_applier(self) -> Any:
            return Programs(by_ps=True)

        def choose(self) -> Any:
            raise error("the connection was lost")

        def _say(self, name: str, reason: str) -> None:
            if self.by_ps:
                raise ab.errors.TaskFailedError("it is lost")
            done.append((name, reason))

        def abandon(self, reason: str) -> None:
            self._say("abandon", reason)

        def end_all(self, reason: str) -> None:
            self._say("end", reason)

        def end_choosing(self) -> None:
            done.append("ended")

        def close(self) -> None:
            done.append("closed")

    monkeypatch.setattr(applier, "ReplicaPrograms", Programs)
    made = applier.Applier(cast("Any", Programs()))
    made._thread.join()
    made.end()
    name = "abandon" if error is ab.errors.TaskFailedError else "end"
    assert done == [(name, "a step could not be applied: the connection was lost"), "closed", "ended"]
    assert isinstance(made.error, error)


@pytest.mark.slow
@pytest.mark.parametrize("run", [(2,)], indirect=True)
def test_the_work_of_a_worker_that_is_killed_is_done_by_the_others(run: Launch, folder: Path, alone: Any, capfd: Any):
    run.workers[1].kill()
    run.workers[1].wait(PATIENCE)
    go(folder)
    assert reached(folder) == "the end"
    assert in_time(run.wait) == 0
    mine = found(folder, 0)
    assert mine["steps"] == alone["steps"] == 14
    assert mine["statistics"]["members"] == [0]
    assert_same(mine, alone)
    assert "worker 1 ended with exit status -9 (SIGKILL)" in capfd.readouterr().err


@pytest.mark.parametrize("run", [(3, "1")], indirect=True)
def test_a_backup_makes_up_for_a_worker_that_is_stopped(run: Launch, folder: Path):
    run.workers[2].send_signal(signal.SIGSTOP)
    go(folder)
    assert reached(folder) == "the end"
    run.workers[2].send_signal(signal.SIGCONT)
    assert in_time(run.wait) == 0
    results = [found(folder, worker) for worker in range(3)]
    assert [each["steps"] for each in results] == [14, 14, 14], "each row counts once"
    assert results[0]["history"] == results[1]["history"] == results[2]["history"]
    assert results[0]["weights"] == results[2]["weights"]
    receipts = results[2]["statistics"]["receipts"]
    # Two of three shares of each step; an epoch that begins when the worker has been taken for dead has one.
    assert sum(receipts[worker]["taken"] for worker in "012") in (28, 21, 14)


def test_a_backup_makes_up_for_a_chief_that_is_slow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are applied while an operation of the chief's own share takes any time; the chief gives the share up."""
    with Launch(3, 1, [SLOW, str(folder)]) as run:
        monkeypatch.setenv("ANABRANCH_TOKEN", run._environment["ANABRANCH_TOKEN"])
        assert reached(folder) == "slow"
        target, waited = f"grpc://{run.cluster['ps'][0]}", threading.Event()
        for _ in range(int(PATIENCE / 0.1)):
            (training,) = ab.distribute.status(target).training
            of_chief = training["receipts"].get("0", {})
            has_given_up = of_chief.get("late", 0) + of_chief.get("duplicate", 0) > 0
            if training["step"] == 10 and has_given_up:
                break
            waited.wait(0.1)
        go(folder)
        assert training["step"] == 10
        assert has_given_up, "while the operation goes on"
        assert in_time(run.wait) == 0


@pytest.mark.slow
@pytest.mark.parametrize("run", [(2,)], indirect=True)
def test_another_worker_takes_over_from_a_chief_that_is_killed(run: Launch, folder: Path, alone: Any, capfd: Any):
    run.workers[0].kill()
    run.workers[0].wait(PATIENCE)
    assert reached(folder) == "two steps", "the callback is called once more, by the new chief"
    go(folder)
    assert reached(folder) == "the end"
    assert in_time(run.wait) == 0
    mine = found(folder, 1)
    assert mine["statistics"]["members"] == [1]
    assert_same(mine, alone)
    printed = capfd.readouterr()
    assert "[worker 1] /job:worker/task:1 leads the training from now on." in printed.out
    assert "worker 0 ended with exit status -9 (SIGKILL)" in printed.err


@pytest.mark.parametrize("run", [(2,)], indirect=True)
def test_the_loss_of_a_ps_task_is_named_by_all_workers(run: Launch, folder: Path, capfd: Any):
    run.ps[0].kill()
    run.ps[0].wait(PATIENCE)
    go(folder)
    assert in_time(run.wait) == 137, "the status of the ps task, which failed first"
    assert run.workers[1].wait(PATIENCE) == 1
    run.__exit__()
    printed = capfd.readouterr()
    assert "TaskFailedError: /job:ps/task:0 has failed" in printed.out
    assert "ps 0 ended with exit status -9 (SIGKILL)" in printed.err


@pytest.mark.parametrize("run", [(2, "0", "fail")], indirect=True)
def test_an_error_in_the_chief_is_told_to_the_other_workers(run: Launch, folder: Path, capfd: Any):
    go(folder)
    assert in_time(run.wait) == 1
    assert run.workers[1].wait(PATIENCE) == 1
    run.__exit__()
    printed = capfd.readouterr()
    assert "/job:worker/task:0, which leads the training, has ended it: this callback fails" in printed.out


@pytest.mark.parametrize("run", [(2,)], indirect=True)
def test_a_worker_that_is_started_again_takes_part(run: Launch, folder: Path, alone: Any, capfd: Any):
    run.restarts.limit = 1
    (folder / "was lost").touch()
    run.workers[1].kill()
    status = Waiting(run.wait)
    assert reached(folder) == "worker 1 is back"
    go(folder)
    assert reached(folder) == "the end"
    assert status.result(PATIENCE) == 0
    mine, other = found(folder, 0), found(folder, 1)
    assert_same(mine, alone)
    assert mine["history"] == other["history"]
    assert mine["weights"] == other["weights"]
    assert other["statistics"]["receipts"]["1"]["taken"] > 0
    assert (
        "worker 1 ended with exit status -9 (SIGKILL); it is started again (restart 1 of 1)." in capfd.readouterr().err
    )


@pytest.mark.slow
@pytest.mark.parametrize("run", [(3,)], indirect=True)
def test_the_chief_is_lost_when_another_worker_is_back(run: Launch, folder: Path, alone: Any):
    """The worker that is back gets no rows of the next batch, while the chief has some of this one."""
    run.restarts.limit = 1
    (folder / "was lost").touch()
    run.workers[2].kill()
    status = Waiting(run.wait)
    assert reached(folder) == "worker 2 is back"
    run.workers[0].kill()
    assert reached(folder) == "two steps", "the callback is called once more, by the new chief"
    go(folder)
    assert reached(folder) == "the end"
    assert status.result(PATIENCE) == 0
    mine, other = found(folder, 1), found(folder, 2)
    assert_same(mine, alone)
    assert mine["history"] == other["history"]
    assert mine["weights"] == other["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("run", [(2, "0", "both")], indirect=True)
def test_below_the_least_number_of_workers_training_waits(run: Launch, folder: Path, alone: Any, capfd: Any):
    run.restarts.limit = 1
    run.workers[1].kill()
    go(folder)
    status = Waiting(run.wait)
    assert reached(folder) == "the end"
    assert status.result(PATIENCE) == 0
    mine = found(folder, 0)
    assert_same(mine, alone)
    assert mine["statistics"]["receipts"]["1"]["taken"] > 0, "the chief did not go on alone"
    text = "steps need 2 workers (min_workers), and wait for worker 1; taking part: worker 0."
    printed = capfd.readouterr()
    assert text in printed.out + printed.err


def restoring(ps: int, folder: Path) -> list[str]:
    return [RESTORING, str(folder), "ParameterServer" if ps else "DataParallel"]


@pytest.fixture(scope="module")
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The number of ps tasks, and what a run of one worker that is never interrupted finds."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (folder / "was here").touch()
    with Launch(1, request.param, restoring(request.param, folder)) as run:
        assert in_time(run.wait) == 0
    return request.param, found(folder, 0)


@pytest.mark.parametrize(
    ("uninterrupted", "victim"),
    [
        pytest.param(2, "worker 0", marks=pytest.mark.slow),
        pytest.param(2, "ps 1", marks=pytest.mark.slow),
        (0, "workers"),
        pytest.param(2, "worker 1", marks=pytest.mark.slow),
    ],
    indirect=["uninterrupted"],
)
def test_a_run_that_is_started_again_goes_on_from_its_backup(
    victim: str, folder: Path, uninterrupted: Any, capfd: Any
) -> None:
    ps, expected = uninterrupted
    is_alone = bool(ps)
    with Launch(2, ps, restoring(ps, folder), max_restarts=2) as run:
        assert reached(folder) == "two steps"
        job, _, number = victim.partition(" ")
        victims = run.workers.copy() if not number else [(run.ps if job == "ps" else run.workers)[int(number)]]
        for process in victims:
            process.kill()
        for process in victims:  # while one is still there, another may be started again alone
            process.wait(PATIENCE)
        status = Waiting(run.wait)
        if is_alone and victim != "worker 0":
            go(folder)
        assert status.result(PATIENCE) == 0
        assert run.restarts.count == 1
    mine, other = found(folder, 0), found(folder, 1)
    assert mine["epochs"] == other["epochs"] == [0, 1, 2, 3]
    assert mine["history"] == other["history"]
    if victim == "ps 1" or not is_alone:  # else the chief may have computed other rows than it would have had to
        assert_same(mine, expected)
    assert not (folder / "backup").exists(), "the run has come to its end"
    again = "it is" if is_alone else "all tasks are"
    printed = capfd.readouterr().err
    assert f" ended with exit status -9 (SIGKILL); {again} started again (restart 1 of 2)." in printed
    assert not is_alone or victim in printed


def test_callbacks_see_the_steps_that_a_backup_was_ahead_of_them(folder: Path) -> None:
    with Launch(3, 1, [BEHIND, str(folder)], max_restarts=1) as run:
        assert reached(folder) == "the place"
        run.ps[0].kill()
        run.ps[0].wait(PATIENCE)
        status = Waiting(run.wait)
        go(folder)
        assert status.result(2 * PATIENCE) == 0
    assert json.loads((folder / "found.json").read_text()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["noted", "not noted", "no backup"])
def test_a_chief_that_took_over_is_lost_with_the_ps_task(case: str, folder: Path, capfd: Any) -> None:
    """Nobody waits for ever: by the launcher's file it leads when it is started again, without it the other one does.

    Launchers of several hosts, or other managers, have no such file.
    """
    launch = Launch(2, 1, restoring(1, folder), max_restarts=3)
    if case != "noted":
        del launch._environment["ANABRANCH_CHIEF_FILE"]
    with launch as run:
        assert reached(folder) == "two steps"
        (folder / "was here").unlink()
        os.mkfifo(folder / "back")
        run.workers[0].kill()
        status = Waiting(run.wait)
        assert reached(folder) == "two steps", "by the new chief, which waits"
        assert (folder / "back").read_text() == "worker 0"
        if case == "no backup":
            shutil.rmtree(folder / "backup")
        run.ps[0].kill()
        run.workers[1].kill()
        assert status.result(2 * PATIENCE) == (1 if case == "no backup" else 0)
        assert run.restarts.count == 3
    if case == "no backup":
        assert "FileNotFoundError: State was lost, and there is no backup to go on from" in capfd.readouterr().err
        return
    mine, other = found(folder, 1), found(folder, 0)
    assert mine["epochs"] == other["epochs"] == [0, 1, 2, 3]
    assert mine["history"] == other["history"]
    assert mine["weights"] == other["weights"]
    assert not (folder / "backup").exists(), "the run has come to its end"
