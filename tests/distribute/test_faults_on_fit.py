"""`fit` on processes that are killed, stopped, slow and cut off at random: it finds what one process finds."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from shared.faults import OwnTime, slowed
from shared.tasks import PATIENCE

from anabranch.distribute.commands.processes import Launch

SCRIPT = str(Path(__file__).parent / "scripts" / "train_under_faults.py")
FAULTS = int(os.environ.get("ANABRANCH_FAULTS", "10"))  # `make sweep` asks for 100, 20 minutes for each kind
SECONDS = 12.0  # from fault to fault, about
# What takes longer than this stands still. The seconds are those in which no task waits for a processor (`OwnTime`):
# where other work loads the machine, the start of five processes may take any time.
START_SECONDS, STEP_SECONDS = 5 * PATIENCE, 2 * PATIENCE
ROWS = 96
pytestmark = [
    pytest.mark.xdist_group("tasks"),
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors of processes are Linux's"),
]


class Faults:
    """Injects faults into the tasks of a launch, one after the other, and waits until training goes on.

    Attributes:
        kinds: how many there were of each kind.
        waited: for each kind the seconds from a fault to the next step.
    """

    def __init__(self, launch: Launch, folder: Path, status: Future[int], seed: int) -> None:
        self.launch = launch
        self.folder = folder
        self.status = status
        self.random = random.Random(seed)
        self.kinds: Counter[str] = Counter()
        self.waited: dict[str, list[float]] = {}
        self.clock = OwnTime(lambda: [os.getpid(), *[task.pid for task in [*launch.ps, *launch.workers]]])

    def steps(self) -> str:
        try:
            return (self.folder / "progress").read_text()
        except FileNotFoundError:
            return ""

    def wait_for_steps(self, count: int, after: str, most: float = STEP_SECONDS) -> float:
        """Wait for further steps, for each so many seconds at most; gives the seconds until the first."""
        begin, latest = time.monotonic(), self.clock.now()
        first = 0.0
        known, seen = self.steps(), 0
        while seen < count:
            assert not self.status.done(), f"training has ended after {after}"
            assert self.clock.now() < latest + most, f"no step for {most:g} s after {after}"
            time.sleep(0.02)
            now = self.steps()
            if now != known:
                latest = self.clock.now()
                first = first or time.monotonic() - begin
                known, seen = now, seen + 1
        return first

    def make(self, number: int) -> None:
        kind = self.random.choice(["kill", "kill", "stop", "slow", "cut"])
        jobs = ["worker", "worker", "ps"] if self.launch.ps and kind != "cut" else ["worker"]
        job = self.random.choice(jobs)
        tasks = self.launch.ps if job == "ps" else self.launch.workers
        index = self.random.randrange(len(tasks))
        process = tasks[index]
        role = "chief" if job == "worker" and index == self.launch._chief_index else job
        what = f"fault {number}: {kind} {job} {index} ({role})"
        print(f"{time.strftime('%T')} {what} at step {self.steps()}", flush=True)
        self.kinds[f"{kind} {role}"] += 1
        if kind == "kill":
            process.kill()
        elif kind == "cut":
            process.send_signal(signal.SIGUSR1)
        elif kind == "slow":
            with slowed(process.pid):
                time.sleep(self.random.uniform(1, 4))
        else:
            process.send_signal(signal.SIGSTOP)
            time.sleep(self.random.choice([0.3, 3.0, 12.0]))  # tasks are taken for dead after 8 s
            process.send_signal(signal.SIGCONT)
        self.waited.setdefault(f"{kind} {role}", []).append(self.wait_for_steps(2, what))
        self.wait_for_all(what)

    def wait_for_all(self, after: str) -> None:
        """Wait until all tasks run, that were started again too."""
        begin = self.clock.now()
        while any(task.poll() is not None for task in [*self.launch.ps, *self.launch.workers]):
            assert not self.status.done(), f"training has ended after {after}"
            assert self.clock.now() < begin + STEP_SECONDS, f"a task is not started again after {after}"
            time.sleep(0.05)

    def wait_until_all_take_part(self) -> None:
        """Wait until all workers make epochs: one that comes when `fit` has ended has only the history."""
        for path in self.folder.glob("present-*"):
            path.unlink(missing_ok=True)
        begin = self.clock.now()
        while len([*self.folder.glob("present-?")]) < len(self.launch.workers):
            assert not self.status.done(), "training has ended"
            assert self.clock.now() < begin + START_SECONDS, "not all workers take part"
            time.sleep(0.05)

    def wait_for_end(self) -> int:
        """Wait until training has ended; return the exit status."""
        begin = self.clock.now()
        while not self.status.done():
            assert self.clock.now() < begin + STEP_SECONDS, "training does not end"
            time.sleep(0.05)
        return self.status.result()


def is_free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) != 0


def processes_with(name: str, value: str) -> list[str]:
    """Return the numbers of the processes that have this variable of the environment."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{name}={value}".encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:  # it has ended, or is another user's
            continue
    return found


def alone(folder: Path, kind: str, epochs: int, seed: int) -> Any:
    """Return what one process finds in so many epochs."""
    command = [sys.executable, SCRIPT, str(folder), kind, str(epochs), str(seed)]
    subprocess.run(command, check=True, timeout=20 * PATIENCE)
    return json.loads((folder / f"found-alone-{seed}.json").read_text())


def test_a_worker_that_was_dropped_takes_part_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """The ps tasks have gone on without a worker that was silent: no other generation begins."""
    monkeypatch.setenv("ANABRANCH_KERNELS", "0")
    with Launch(3, 2, [SCRIPT, str(tmp_path), "plain"], max_restarts=3) as run, ThreadPoolExecutor(1) as pool:
        status = pool.submit(run.wait)
        faults = Faults(run, tmp_path, status, 0)
        try:
            faults.wait_for_steps(3, "the start", START_SECONDS)
            run.workers[2].send_signal(signal.SIGSTOP)
            begin, printed = faults.clock.now(), ""
            while "Training goes on without /job:worker/task:2" not in printed:
                assert faults.clock.now() < begin + STEP_SECONDS, printed
                time.sleep(0.05)
                printed += "".join(capfd.readouterr())
            run.workers[2].send_signal(signal.SIGCONT)
            faults.wait_until_all_take_part()
            (tmp_path / "enough").touch()
            assert faults.wait_for_end() == 0
        except BaseException:
            run.restarts.limit = 0
            run.__exit__()
            raise
    results = [json.loads((tmp_path / f"found-{worker}.json").read_text()) for worker in range(3)]
    assert run.restarts.count == 0, "each process is the one that it was"
    assert results[2]["history"] == results[0]["history"]
    assert results[2]["weights"] == results[0]["weights"]


@pytest.mark.parametrize("kind", ["plain", "synchronized", "backups", "parallel"])
def test_fit_under_random_faults(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    folder, temporary = tmp_path / "run", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("ANABRANCH_KERNELS", "0")
    mark = uuid4().hex  # folders' names are numbers that another run of the tests may have, too
    monkeypatch.setenv("ANABRANCH_TEST_RUN", mark)
    seed = int(os.environ.get("ANABRANCH_FAULTS_SEED", "0"))
    ps = 0 if kind == "parallel" else 2
    with Launch(3, ps, [SCRIPT, str(folder), kind], max_restarts=10**6) as run, ThreadPoolExecutor(1) as pool:
        addresses = [address for tasks in run.cluster.values() for address in tasks]
        status = pool.submit(run.wait)
        faults = Faults(run, folder, status, seed)
        try:
            with capfd.disabled():
                faults.wait_for_steps(3, "the start", START_SECONDS)
                begin = time.monotonic()
                for number in range(FAULTS):
                    faults.make(number)
                    time.sleep(max(begin + (number + faults.random.random()) * SECONDS - time.monotonic(), 0))
                faults.wait_until_all_take_part()
                (folder / "enough").touch()
                assert faults.wait_for_end() == 0
                print(
                    {
                        kind: (len(times), round(median(times), 2), round(max(times), 2))
                        for kind, times in sorted(faults.waited.items())
                    }
                )
        except BaseException:
            run.restarts.limit = 0  # else those that are ended here would be started again, and waited for
            run.__exit__()
            raise
    assert not processes_with("ANABRANCH_TEST_RUN", mark)
    assert all(map(is_free, addresses))
    assert not list(temporary.iterdir())
    assert not (folder / "backup").exists(), "the run has come to its end"

    results = [json.loads(path.read_text()) for path in folder.glob("found-*.json")]
    (mine,) = [each for each in results if each["is chief"]]
    epochs = len(mine["epochs"])
    expected = alone(folder, kind, epochs, 1)
    assert mine["epochs"] == list(range(epochs))
    for power in (1, 2):
        total = float(sum(number**power for number in range(1, ROWS + 1)))
        assert set(mine["history"][f"rows_{power}"]) == {total}, "each row counts once in each epoch"
    for each in results:
        assert each["history"] == mine["history"]
        assert each["weights"] == mine["weights"]
    losses, others = mine["history"]["loss"], [expected["history"]["loss"]]
    if kind == "backups":  # which gradients are late is a matter of chance
        others += [alone(folder, kind, epochs, seed)["history"]["loss"] for seed in (2, 3, 4, 5)]
        low, high = (choose(loss[-1] for loss in others) for choose in (min, max))
        assert low - (high - low) < losses[-1] < high + (high - low), (losses[-1], low, high)
        return
    assert mine["seen"] == expected["seen"]
    np.testing.assert_allclose(losses, others[0], 1e-6)
    for name in ("weights", "optimizer"):
        for value, other in zip(mine[name], expected[name], strict=True):
            np.testing.assert_allclose(value, other, 1e-6, 1e-8, err_msg=name)
