"""W29, our side: the Cholesky factor of a matrix, and the gradient of a function of it."""

from __future__ import annotations

from typing import Any

import w29_cholesky as peer
from common import bench

import anabranch as ab
from anabranch import ops

Record = dict[str, Any]


def anabranch(params: dict[str, Any]) -> Record:
    """Milliseconds of the factor, or of the factor and the gradient."""
    matrix, weights = peer.data(params["N"])
    with ab.Graph().as_default(), ab.Session() as session:
        a = ab.Variable(matrix)
        factor = ops.cholesky(a)
        if params["of"] == "factor":
            run = session.make_callable([factor], [])
            return bench(lambda: run()[0][-1, -1])
        (gradient,) = ab.gradients(ops.sum(ab.constant(weights) * factor), [a])
        run = session.make_callable([gradient], [])
        return bench(lambda: run()[0][0, 0])


OURS = {"anabranch": anabranch}
