"""Collectives of values on GPUs, in each worker; a stand-in for cupy is the GPU. Saves the results of a worker.

sum_on_gpus.py FOLDER
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from shared.gpus import stand_in_of_worker

import anabranch as ab
from anabranch.engine.machine.gpu.program import GpuProgram
from anabranch.engine.session.programs import make_program

rank, count = ab.distribute.rank(), ab.distribute.world_size()
rng = np.random.default_rng(rank)
given = rng.normal(size=(2 * count, 3))

with stand_in_of_worker(rank) as cupy:
    with ab.Graph().as_default() as graph:
        x: Any = ab.placeholder((2 * count, 3), "float64", "x")
        with ab.device("gpu:0"):
            total = ab.distribute.all_reduce(ab.ops.tanh(x))
            y = ab.ops.exp(total)
    program = make_program(graph, [total, y], [x])
    assert type(program) is GpuProgram, type(program)
    found = program(given)
    assert cupy.cuda.nccl.calls == ["allReduce"], cupy.cuda.nccl.calls
    np.savez(f"{sys.argv[1]}/{rank}.npz", *found)
