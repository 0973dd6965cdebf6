"""Training a tiny model through `fit`, by `steps_per_execution`: milliseconds a step, data and callbacks included."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import common
import numpy as np

import anabranch as ab

Record = dict[str, Any]
ROWS, BATCH = 32_000, 32


def _row(together: int) -> Callable[[dict[str, Any]], Record]:
    def measure(params: dict[str, Any]) -> Record:
        ab.utils.set_random_seed(0)
        random = np.random.default_rng(0)
        x = random.normal(size=(ROWS, 8)).astype("float32")
        y = np.sin(x[:, :1])
        model = ab.Sequential([ab.Input((8,)), ab.layers.Dense(params["units"], "relu"), ab.layers.Dense(1)])
        model.compile(ab.optim.Adam(1e-3), "mse", steps_per_execution=together)

        def epoch(rows: int = ROWS) -> float:
            return model.fit(x[:rows], y[:rows], batch_size=BATCH, verbose=0).history["loss"][0]

        began = time.perf_counter()
        check = [epoch(BATCH * 100)]
        prepared = time.perf_counter() - began
        check += [epoch(), epoch()]
        times: list[float] = []
        while sum(times) < 5e3 * common.BUDGET or len(times) < 3:
            began = time.perf_counter()
            epoch()
            times.append(1e3 * (time.perf_counter() - began))
        return common.record(list(np.divide(times, ROWS // BATCH)), prepared, check)

    return measure


OURS = {"anabranch": _row(100), "ten": _row(10), "single": _row(1)}
