"""Collectives of values on GPUs, and their gradients, in each worker; a stand-in for cupy is the GPU.

sum_on_gpus.py FOLDER
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from shared.gpus import stand_in_of_worker

import anabranch as ab
from anabranch.engine.machine.gpu.program import GpuProgram
from anabranch.engine.ops.begun_collectives import begin_all_reduce, end_all_reduce
from anabranch.engine.ops.collectives import current_group
from anabranch.engine.session.programs import make_program

IS_REAL = "real" in sys.argv
rank, count = ab.distribute.rank(), ab.distribute.world_size()
rng = np.random.default_rng(rank)
given = rng.normal(size=(2 * count, 3))
weights = np.arange(1.0, 1 + 6 * count).reshape(2 * count, 3) * (rank + 1)


def everything(x: Any) -> list[Any]:
    """Results of all collectives, and the gradient of a loss of them."""
    rows, first = ab.distribute.all_gather(x), ab.distribute.broadcast(x * 2.0, count - 1)
    share = ab.distribute.reduce_scatter(ab.ops.tanh(x))
    mean = ab.distribute.all_reduce(x * x, "mean")
    _, looped = ab.while_loop(lambda k, y: k < 3, lambda k, y: (k + 1, ab.distribute.all_reduce(y) / 2.0), (0, x))
    loss = ab.ops.sum(rows[: 2 * count] ** 2 * weights) + ab.ops.sum(first * mean * weights)
    loss = loss + ab.ops.sum(share**2) * (rank + 1.0) + ab.ops.sum(looped * weights)
    (dx,) = ab.gradients(loss, [x])
    parts = [ab.ops.exp(-x), x * 3.0]
    begun = [begin_all_reduce(part) for part in parts]
    totals = [end_all_reduce(number, part) for number, part in zip(begun, parts, strict=True)]
    return [rows, first, share, mean, looped, loss, dx, *totals]


def run(device: str) -> tuple[Any, list[Any]]:
    with ab.Graph().as_default() as graph, ab.device(device):
        x: Any = ab.placeholder((2 * count, 3), "float64", "x")
        results = everything(x)
    program = make_program(graph, results, [x])
    return program, [np.asarray(each) for each in program(given)]


@contextmanager
def gpu() -> Iterator[None]:
    if not IS_REAL:
        with stand_in_of_worker(rank):
            yield
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)  # cupy is imported below
    ab.config.set_devices(cpu=1, gpu=1)
    yield


_, want = run("cpu:0")
group: Any = current_group()
with gpu():
    program, found = run("gpu:0")
    assert type(program) is GpuProgram, type(program)
    done = group.gpus.statistics()
    assert done["nccl"] > 0, done
    assert done["by_host"] == 0, done
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, 1e-10, 1e-10)
    for one, other in zip(program.on_machine()(given), found, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, 1e-10, 1e-10)
    assert group.gpus.statistics()["nccl"] == 2 * done["nccl"], "the machine's are NCCL's, too"
    for _ in range(3):  # sums in an order that is the same each time
        for one, other in zip(program(given), found, strict=True):
            np.testing.assert_array_equal(np.asarray(one), other)
    number = ab.distribute.all_reduce(np.arange(3) + rank)  # outside of graphs the host runs them
    np.testing.assert_array_equal(np.asarray(number), count * np.arange(3) + sum(range(count)))
    if not IS_REAL:
        calls = set(sys.modules["cupy"].cuda.nccl.calls)
        assert calls == {"allReduce", "allGather", "broadcast", "reduceScatter"}, calls
np.savez(f"{sys.argv[1]}/{rank}.npz", *want)
