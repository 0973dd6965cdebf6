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
from shared.faults import slowed
from shared.tasks import PATIENCE

from anabranch.distribute.commands.processes import Launch

SCRIPT = str(Path(__file__).parent / "scripts" / "train_under_faults.py")
FAULTS = int(os.environ.get("ANABRANCH_FAULTS", "10"))  # `make sweep` asks for 100, which take 20 minutes
SECONDS = 12.0  # from fault to fault, about
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

    def steps(self) -> str:
        try:
            return (self.folder / "progress").read_text()
        except FileNotFoundError:
            return ""

    def wait_for_steps(self, count: int, after: str) -> float:
        """Wait until so many further steps were made; gives the seconds until the first."""
        begin, first = time.monotonic(), 0.0
        known, seen = self.steps(), 0
        while seen < count:
            assert not self.status.done(), f"training has ended after {after}"
            assert time.monotonic() < begin + 2 * PATIENCE, f"no step for {2 * PATIENCE} s after {after}"
            time.sleep(0.02)
            now = self.steps()
            if now != known:
                first = first or time.monotonic() - begin
                known, seen = now, seen + 1
        return first

    def make(self, number: int) -> None:
        kind = self.random.choice(["kill", "kill", "stop", "slow", "cut"])
        job = "worker" if kind == "cut" else self.random.choice(["worker", "worker", "ps"])
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
        begin = time.monotonic()
        while any(task.poll() is not None for task in [*self.launch.ps, *self.launch.workers]):
            assert not self.status.done(), f"training has ended after {after}"
            assert time.monotonic() < begin + PATIENCE, f"a task is not started again after {after}"
            time.sleep(0.05)


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


@pytest.mark.parametrize("kind", ["plain", "synchronized"])
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
    with Launch(3, 2, [SCRIPT, str(folder), kind], max_restarts=10**6) as run, ThreadPoolExecutor(1) as pool:
        addresses = [address for tasks in run.cluster.values() for address in tasks]
        status = pool.submit(run.wait)
        faults = Faults(run, folder, status, seed)
        try:
            with capfd.disabled():
                faults.wait_for_steps(3, "the start")
                begin = time.monotonic()
                for number in range(FAULTS):
                    faults.make(number)
                    time.sleep(max(begin + (number + faults.random.random()) * SECONDS - time.monotonic(), 0))
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
        (folder / "enough").touch()
        assert status.result(3 * PATIENCE) == 0
    assert not processes_with("ANABRANCH_TEST_RUN", mark)
    assert all(map(is_free, addresses))
    assert not list(temporary.iterdir())
    assert not (folder / "backup").exists(), "the run has come to its end"

    results = [json.loads(path.read_text()) for path in folder.glob("found-*.json")]
    (mine,) = [each for each in results if each["is chief"]]
    epochs = len(mine["epochs"])
    command = [sys.executable, SCRIPT, str(folder), kind, str(epochs)]
    subprocess.run(command, check=True, timeout=20 * PATIENCE)
    alone = json.loads((folder / "found-alone.json").read_text())
    assert mine["epochs"] == list(range(epochs))
    assert mine["seen"] == alone["seen"]
    for power in (1, 2):
        total = float(sum(number**power for number in range(1, ROWS + 1)))
        assert set(mine["history"][f"rows_{power}"]) == {total}, "each row counts once in each epoch"
    for each in results:
        assert each["history"] == mine["history"]
        assert each["weights"] == mine["weights"]
    np.testing.assert_allclose(mine["history"]["loss"], alone["history"]["loss"], 1e-6)
    for name in ("weights", "optimizer"):
        for value, expected in zip(mine[name], alone[name], strict=True):
            np.testing.assert_allclose(value, expected, 1e-6, 1e-8, err_msg=name)
