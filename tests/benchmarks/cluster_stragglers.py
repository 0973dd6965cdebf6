"""Steps of real workers, of which some are slow: what a backup worker is worth (OSDI'16, figure 8).

    cluster_stragglers.py FOLDER BACKUPS     one of the processes, which a launcher starts

A worker waits on a timer in place of computing, in several operations, all of which take longer in a slow step. What is
measured is the protocol: which gradients a step waits for. So eleven workers may share two processors.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab

NEEDED, SHARE_OF_SLOW = 10, 0.03
SECONDS, SLOW_SECONDS = 0.5, 5.0  # of a share
STEPS, FIRST = 100, 5  # the first steps, in which programs are built, do not count
PARTS = 20  # operations of a share
_LOOK_SECONDS = 0.02
_random = random.Random()
_seconds = 0.0


@ab.distribute.register_function("begun, of a benchmark")
def begun(value: Any) -> Any:
    """Draw the time that a share takes; gives its value."""
    global _seconds
    _seconds = SLOW_SECONDS if _random.random() < SHARE_OF_SLOW else SECONDS
    return value


@ab.distribute.register_function("computed, of a benchmark")
def computed(value: Any) -> Any:
    """Give a value when a worker would have computed a part of its share."""
    time.sleep(_seconds / PARTS)
    return value


class Waiting(ab.Sequential):
    """A model whose step takes as long as `computed`."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        for function in (begun, *[computed] * PARTS):
            x = ab.ops.numpy_function(function, [x], "float32", shape=x.shape)
        return super().train_step((x, y))


class Steps(threading.Thread):
    """Looks how many steps were applied, and notes when.

    Args:
        target: the ps task.
    """

    def __init__(self, target: str) -> None:
        super().__init__(daemon=True)
        self.moments: dict[int, float] = {}
        self._target = target
        self._has_ended = threading.Event()

    def run(self) -> None:
        while not self._has_ended.wait(_LOOK_SECONDS):
            for training in ab.distribute.status(self._target).training:
                self.moments.setdefault(training["step"], time.perf_counter())

    def seconds(self) -> list[float]:
        """End; gives the seconds of each step."""
        self._has_ended.set()
        self.join()
        steps = [step for step in sorted(self.moments) if step >= FIRST]
        found: list[float] = []
        for one, next_one in itertools.pairwise(steps):
            count = next_one - one  # more than 1 where a look came late
            found += [(self.moments[next_one] - self.moments[one]) / count] * count
        return found


def measured(backups: int) -> list[float]:
    """Train with ten workers and some backups in processes of their own; gives the seconds of each step."""
    from anabranch.distribute.commands.processes import Launch  # is for who starts processes

    with tempfile.TemporaryDirectory() as folder:
        with Launch(NEEDED + backups, 1, [__file__, folder, str(backups)]) as launch:
            status = launch.wait()
        if status:
            raise RuntimeError(f"A run with {backups} backup workers ended with exit status {status}.")
        return json.loads(Path(folder, "seconds.json").read_text())


def main(folder: Path, backups: int) -> None:
    strategy = ab.distribute.ParameterServer(backup_workers=backups, min_workers=NEEDED + backups)
    _random.seed(strategy.task_index)
    rows = np.ones((NEEDED * STEPS, 4), "float32")
    with strategy.scope():
        model = Waiting([ab.Input((4,)), ab.layers.Dense(1)])
        model.compile("sgd", "mse")
    assert strategy.cluster is not None
    steps = Steps(f"grpc://{strategy.cluster.address(strategy.ps[0])}")
    if strategy.is_chief:
        steps.start()
    model.fit(rows, rows[:, :1], batch_size=NEEDED, verbose=0)
    if strategy.is_chief:
        (folder / "seconds.json").write_text(json.dumps(steps.seconds()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
