"""Interactions of a Deep Q-Network with a cart-pole: one graph called once each, against conditions in Python.

Both are `examples/dqn.py` with the same seeds, and must take the same actions. The time is that of an interaction, the
environment's own part included; the chunks of both rows are the same interactions.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import common
import numpy as np

Record = dict[str, Any]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CHUNK, WARM_UP = 500, 2500  # interactions; until learning has begun, and each part was called


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dqn_example", EXAMPLES / "dqn.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["dqn_example"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _row(driver: str) -> Callable[[dict[str, Any]], Record]:
    def measure(params: dict[str, Any]) -> Record:
        example = _example()
        environment = example.CartPole(0)
        began = time.perf_counter()
        agent = example.Agent(4, 2, example.Settings(learn_every=params["every"]))
        run = example.Run(environment, example.DRIVERS[driver](agent))
        run.go_on(1)
        prepared = time.perf_counter() - began
        run.go_on(WARM_UP)
        times: list[float] = []
        while sum(times) < 5 * common.BUDGET or len(times) < 6:
            times.append(run.go_on(CHUNK))
        check = [float(sum(run.actions[begin : begin + CHUNK])) for begin in (0, CHUNK, 2 * CHUNK)]
        return common.record(list(1e3 * np.divide(times, CHUNK)), prepared, check)

    return measure


OURS = {"anabranch": _row("in the graph"), "from_python": _row("from Python")}
