"""W20, our side: a step of learning the hyperparameters of a Gaussian process."""

from __future__ import annotations

from typing import Any

import numpy as np
import w20_gaussian_process as peer
from common import bench

import anabranch as ab
from anabranch import ops

Record = dict[str, Any]


def anabranch(params: dict[str, Any]) -> Record:
    """Milliseconds of a step."""
    points, targets, *weights = peer.data(params["n"])
    with ab.Graph().as_default(), ab.Session() as session:
        x, y = ab.placeholder(points.shape, "float32", "x"), ab.placeholder(targets.shape, "float32", "y")
        scales, amplitude, noise = variables = [ab.Variable(np.asarray(value)) for value in weights]
        z = x * ops.exp(-scales)
        distances = ops.sum(ops.square(ops.expand_dims(z, 1) - ops.expand_dims(z, 0)), axis=-1)
        covariance = ops.exp(2 * amplitude - 0.5 * distances) + ops.exp(noise) * ops.eye(len(points))
        factor = ops.cholesky(covariance)
        half = ops.solve_triangular(factor, y, lower=True)
        loss = 0.5 * ops.sum(half * half) + ops.sum(ops.log(ops.diagonal(factor)))
        gradients = ab.gradients(loss, variables)
        updates = [v.assign_sub(peer.LR * g) for v, g in zip(variables, gradients, strict=True)]
        run = session.make_callable([loss, *updates], [x, y])
        return bench(lambda: run(points, targets)[0])


OURS = {"anabranch": anabranch}
