"""W30, our side: soft dynamic time warping by a scan in a scan, with its gradient, and the heat equation by slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import w30_loops as peer
from common import bench

import anabranch as ab
from anabranch import ops

Record = dict[str, Any]


def anabranch(params: dict[str, Any]) -> Record:
    """Milliseconds of a call."""
    arrays = [ab.convert_to_tensor(array) for array in peer.data(params["of"])]
    return bench(_soft_dtw(arrays) if params["of"] == "soft_dtw" else _heat(arrays))


def _soft_dtw(arrays: list[Any]) -> Callable[[], float]:
    def value(a: Any, b: Any) -> Any:
        costs = ops.sum(ops.square(a[:, None] - b[None]), -1)

        def row(before: Any, cost: Any) -> Any:
            def cell(left: Any, given: Any) -> Any:
                up, diagonal, own = given
                new = own - ops.logsumexp(ops.stack([-left, -up, -diagonal]), axis=0)
                return new, new

            _, new = ops.scan(cell, ops.full((), peer.FAR), (before[1:], before[:-1], cost))
            return ops.concatenate([ops.full((1,), peer.FAR), new]), new[-1]

        first = ops.concatenate([ops.zeros((1,)), ops.full((peer.ROWS,), peer.FAR)])
        return ops.scan(row, first, costs)[0][-1]

    @ab.function
    def run(a: Any, b: Any) -> Any:
        found = value(a, b)
        return found, ab.gradients(found, [a, b])

    return lambda: float(run(*arrays)[0])


def _heat(arrays: list[Any]) -> Callable[[], float]:
    def advance(i: Any, u: Any) -> Any:
        inner = u[1:-1, 1:-1]
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        return i + 1, ops.slice_update(u, (1, 1), inner + peer.RATE * (around - 4 * inner))

    @ab.function
    def run(u: Any) -> Any:
        return ab.while_loop(lambda i, _: i < peer.STEPS, advance, (0, u))[1]

    return lambda: float(np.asarray(run(*arrays))[:, peer.GRID // 2 :].sum(dtype="float64"))


OURS = {"anabranch": anabranch}
