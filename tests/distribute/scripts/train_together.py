"""Trains a model with synchronized layers under `ParameterServer` while workers are lost or leave.

    train_together.py FOLDER DATA [WORKER:CALL:MOMENT[:SIGNAL] ...]

DATA: "arrays"; "half" for a model in bfloat16; "few" for batches of which some workers have no row; "generated" for
data that the chief reads; "single" for steps by `train_on_batch`. When a worker computes gradients for the time CALL,
counted from 0, it sends itself a signal: KILL where none is given. MOMENT: "forward", between the sums of two layers,
or "backward", between those of their gradients. With RAISE in place of a signal its step fails.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import layers, ops, optim

FOLDER, DATA, *EVENTS = (*sys.argv[1:2], *(sys.argv[2:] or ["arrays"]))
BATCH = {"few": 2}.get(DATA, 12)
STRATEGY = ab.distribute.ParameterServer()
CALLS: Counter[str] = Counter()


class Ends(layers.Layer):
    """Lets values and gradients through, and ends the process where the arguments say so."""

    def call(self, x: Any, training: bool = False) -> Any:
        return passed(x) if training else x


@ab.distribute.register_function("go forward")
def go_forward(values: Any) -> Any:
    return seen("forward", values)


@ab.distribute.register_function("go backward")
def go_backward(values: Any) -> Any:
    return seen("backward", values)


@ab.distribute.register_function("gradient of going forward")
def gradient(inputs: Any, outputs: Any, cotangents: Any) -> Any:
    (upstream,) = cotangents
    return [ops.numpy_function(go_backward, [upstream], upstream.dtype, shape=upstream.shape)]


def passed(x: Any) -> Any:
    return ops.numpy_function(go_forward, [x], x.dtype, shape=x.shape, grad=gradient)


def seen(moment: str, values: Any) -> Any:
    call = CALLS[moment]
    CALLS[moment] += 1
    for each in EVENTS:
        worker, at, when, *name = each.split(":")
        if (int(worker), int(at), when) == (STRATEGY.task_index, call, moment):
            if name == ["RAISE"]:
                raise RuntimeError("this step fails")
            os.kill(os.getpid(), getattr(signal, f"SIG{(name or ['KILL'])[0]}"))
    return values


def batches(x: Any, y: Any) -> Iterator[Any]:
    while True:
        yield from ((x[first : first + BATCH], y[first : first + BATCH]) for first in range(0, len(x), BATCH))


def main() -> None:
    if DATA == "half":
        ab.config.set_dtype_policy("mixed_bfloat16")
    else:
        ab.config.set_floatx("float64")
    ab.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(18 if DATA == "few" else 50, 4))
    y = x.sum(1, keepdims=True) / 4.0
    with STRATEGY.scope():
        norms = [layers.BatchNormalization(synchronized=True, momentum=0.8) for _ in range(2)]
        parts = [layers.Dense(6, "tanh"), norms[0], layers.Dropout(0.25), Ends(), layers.Dense(3), norms[1]]
        model = ab.Sequential([ab.Input((4,)), *parts, layers.Dense(1)])
        model.compile(optim.Adam(0.01, epsilon=1e-3), "mse", metrics=["mae"])
    found: dict[str, Any] = {}
    if DATA == "single":
        found["losses"] = [model.train_on_batch(x[first:][:12], y[first:][:12]) for first in range(0, 48, 8)]
    elif DATA == "generated":
        history = model.fit(batches(x, y), steps_per_epoch=5, epochs=3, verbose=0)
        found |= history.history
    else:
        history = model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, validation_data=(x, y))
        found |= history.history
    results = {
        "found": found,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "statistics": STRATEGY.statistics(),
        "iterations": int(model.optimizer.iterations),
    }
    (Path(FOLDER) / f"found-{STRATEGY.task_index}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
