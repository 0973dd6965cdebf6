"""Independent loops that use one core each, side by side against one after the other; and what that costs where there
are none: W2, W6 and W12 with all threads against one of ours."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from common import bench

import anabranch as ab
from anabranch.engine.passes.switches import without

Record = dict[str, Any]
STEPS, BATCH, UNITS, NETS = 200, 16, 64, 4
OTHERS = {"W2": ("w02", {"B": 32, "T": 100}), "W6": ("w06", {"B": 32}), "W12": ("w12", {"parallel": 10})}


def _draw(random: np.random.Generator, *shape: int) -> Any:
    return (random.standard_normal(shape) / np.sqrt(shape[-2])).astype("float32")


def _states(x: Any, kernel: Any, recurrent: Any, backward: bool) -> Any:
    """The states (steps, batch, units) of a recurrent net, written by hand."""
    rows = ab.TensorArray("float32", size=STEPS, element_shape=(BATCH, UNITS)).unstack(x @ kernel)

    def body(t: Any, h: Any, states: Any) -> tuple[Any, ...]:
        place = STEPS - 1 - t if backward else t
        h = ab.ops.tanh(rows.read(place) + h @ recurrent)
        return t + 1, h, states.write(place, h)

    states = ab.TensorArray("float32", size=STEPS, element_shape=(BATCH, UNITS))
    return ab.while_loop(lambda t, *_: t < STEPS, body, (0, ab.ops.zeros((BATCH, UNITS)), states))[2].stack()


def _bidirectional(random: np.random.Generator) -> list[Any]:
    x = ab.Variable(_draw(random, STEPS, BATCH, UNITS), trainable=False)
    weights = [ab.Variable(_draw(random, UNITS, UNITS)) for _ in range(4)]
    states = [_states(x, *weights[:2], backward=False), _states(x, *weights[2:], backward=True)]
    loss = ab.ops.mean(ab.ops.concatenate(states, axis=-1) ** 2)
    updates = [w.assign_sub(0.01 * g) for w, g in zip(weights, ab.gradients(loss, weights), strict=True)]
    return [loss, *(update.operation for update in updates)]


def _ensemble(random: np.random.Generator) -> list[Any]:
    x = ab.Variable(_draw(random, STEPS, BATCH, UNITS), trainable=False)
    nets = [[ab.Variable(_draw(random, UNITS, UNITS), trainable=False) for _ in range(2)] for _ in range(NETS)]
    return [ab.ops.mean(sum(_states(x, *weights, backward=False) for weights in nets) / NETS)]


BUILT: dict[str, Callable[[np.random.Generator], list[Any]]] = {
    "bidirectional": _bidirectional,
    "ensemble": _ensemble,
}


def anabranch(params: dict[str, Any]) -> Record:
    if params["of"] in OTHERS:
        module, given = OTHERS[params["of"]]
        return importlib.import_module(module).OURS["anabranch"](given)
    with ab.Graph().as_default(), ab.Session() as session:
        fetches = BUILT[params["of"]](np.random.default_rng(0))
        step = session.make_callable(fetches, [])
        return bench(lambda: step()[0])


def alone(params: dict[str, Any]) -> Record:
    """W2, W6 and W12 on one thread of ours; the others on all, but one piece after the other."""
    if params["of"] in OTHERS:
        os.environ["ANABRANCH_NUM_THREADS"] = "1"
        return anabranch(params)
    with without("parallel"):
        return anabranch(params)


OURS = {"anabranch": anabranch, "alone": alone}
