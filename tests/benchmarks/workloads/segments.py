"""Independent loops that use one core each, side by side against one after the other; and what that costs where there
are none: W2, W6, W12 and W24 with all threads against one of ours.

So too a U-shaped net, NumPy imported first: its threads must leave ours the cores (docs/kernels.md, "Threads").
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from common import bench

import anabranch as ab
from anabranch.engine.passes.framework.switches import without

Record = dict[str, Any]
STEPS, BATCH, UNITS, NETS = 200, 16, 64, 4
OTHERS = {
    "W2": ("w02", {"B": 32, "T": 100}),
    "W6": ("w06", {"B": 32}),
    "W12": ("w12", {"parallel": 10}),
    "W24": ("w24", {}),
}


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


def _u_net(random: np.random.Generator) -> list[Any]:
    """Images down to a quarter and up again; the last convolution, to one channel, is left to NumPy."""
    x = ab.Variable(_draw(random, 16, 64, 64, 3), trainable=False)
    shapes = [(3, 3, 3, 16), (3, 3, 16, 32), (3, 3, 32, 64), (2, 2, 32, 64), (3, 3, 64, 32), (2, 2, 16, 32)]
    kernels = [ab.Variable(_draw(random, *shape) * 0.3) for shape in (*shapes, (3, 3, 32, 16), (1, 1, 16, 1))]

    def convolved(h: Any, kernel: Any) -> Any:
        return ab.ops.relu(ab.ops.conv(h, kernel, padding="same"))

    fine = convolved(x, kernels[0])
    coarse = convolved(ab.ops.max_pool(fine, 2), kernels[1])
    deep = convolved(ab.ops.max_pool(coarse, 2), kernels[2])
    up = ab.ops.conv_transpose(deep, kernels[3], strides=2)
    coarse = convolved(ab.ops.concatenate([coarse, up], axis=-1), kernels[4])
    up = ab.ops.conv_transpose(coarse, kernels[5], strides=2)
    fine = convolved(ab.ops.concatenate([fine, up], axis=-1), kernels[6])
    loss = ab.ops.mean(ab.ops.conv(fine, kernels[7]) ** 2)
    updates = [k.assign_sub(0.01 * g) for k, g in zip(kernels, ab.gradients(loss, kernels), strict=True)]
    return [loss, *(update.operation for update in updates)]


BUILT: dict[str, Callable[[np.random.Generator], list[Any]]] = {
    "bidirectional": _bidirectional,
    "ensemble": _ensemble,
    "u_net": _u_net,
}
ON_ONE_THREAD = (*OTHERS, "u_net")


def anabranch(params: dict[str, Any]) -> Record:
    if params["of"] in OTHERS:
        module, given = OTHERS[params["of"]]
        return importlib.import_module(module).OURS["anabranch"](given)
    with ab.Graph().as_default(), ab.Session() as session:
        fetches = BUILT[params["of"]](np.random.default_rng(0))
        step = session.make_callable(fetches, [])
        return bench(lambda: step()[0])


def alone(params: dict[str, Any]) -> Record:
    """W2, W6, W12, W24 and the U-shaped net on one thread of ours; the others on all, but one piece after the other."""
    if params["of"] in ON_ONE_THREAD:
        os.environ["ANABRANCH_NUM_THREADS"] = "1"
        return anabranch(params)
    with without("parallel"):
        return anabranch(params)


OURS = {"anabranch": anabranch, "alone": alone}
