"""The costs of values for the processors of tasks: measured here, for simulations of larger clusters.

All are processor time, the least of several rounds, so that other work on the machine counts little.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from shared.tasks import TaskProcess, tasks

import anabranch as ab
from anabranch.engine.queues.replica_gradients import Part, ReplicaGradients

PATIENT = ("--heartbeat-timeout", "300")  # on a loaded machine
_CPUCLOCK_SCHED = 2  # of Linux
_SIZE, _TENSORS, _GRADIENTS = 116_000, 12, 20  # 17 ps tasks have some 12 tensors each of Inception-v3's 95 MB


class OfBytes(NamedTuple):
    """Seconds of a processor for each byte of a worker's gradients, or of parameters.

    Attributes:
        put: of a ps task, to keep a copy.
        reduce: of a ps task, to add it to those of the others.
        update: of a ps task, to make new values by RMSProp with momentum.
        ps: of a ps task, to send a value to another machine and take one of that size from there.
        worker: of a worker, to take a value, multiply it by a number, and send that.
    """

    put: float
    reduce: float
    update: float
    ps: float
    worker: float


def null_step(target: str, ps: int, workers: int, size: int, tensors: int = 1, rows: int = 0) -> Callable[[], Any]:
    """A step in which each worker reads tensors of each ps task, or some rows of them, and sends as much back.

    All workers do so at the same time: each has what a tensor is before the step.
    """
    graph = ab.Graph()
    with graph.as_default():
        done: list[Any] = []
        for place, number in np.ndindex(ps, tensors):
            with ab.device(f"/job:ps/task:{place}"):
                shape = (size, 16) if rows else (size,)
                name = f"p{size}-{rows}-{place}-{number}"
                table = ab.Variable(ab.initializers.Zeros(), shape=shape, dtype="float32", name=name)
            found: list[Any] = []
            ids = np.arange(rows, dtype="int32") * (size // max(rows, 1))
            for worker in range(workers):
                with ab.device(f"/job:worker/task:{worker}"):
                    taken = ab.ops.embedding_lookup(table, ids) if rows else table.value
                    found.append(taken * 0.5)
            for worker, made in enumerate(found):
                with ab.device(f"/job:worker/task:{worker}"):
                    given = ab.IndexedSlices(made, ids, np.array(shape)) if rows else made
                    done.append((table.scatter_sub(given) if rows else table.assign_sub(given)).operation)
    session = ab.Session(graph, target=target)
    return lambda: session.run(done)


def seconds_of(pid: int) -> float:
    """Return the seconds of processors that a process has had, to the nanosecond; also by threads that have ended."""
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)  # as clock_getcpuclockid makes the number of a clock


def processor_of(running: Mapping[str, TaskProcess], run: Callable[[], Any], steps: int) -> dict[str, float]:
    """Return the seconds of each task's processor for a step, the least of three rounds of so many."""
    run()
    rounds: list[dict[str, float]] = []
    for _ in range(3):
        before = {name: seconds_of(each.pid) for name, each in running.items()}
        for _ in range(steps):
            run()
        rounds.append({name: (seconds_of(each.pid) - before[name]) / steps for name, each in running.items()})
    return {name: min(each[name] for each in rounds) for name in running}


@functools.cache
def of_bytes() -> OfBytes:
    """Measure what bytes cost."""
    parts = [Part("float32", (_SIZE,)) for _ in range(_TENSORS)]
    values = [np.full(_SIZE, 0.5, "float32") for _ in parts]
    size = 4 * _SIZE * _TENSORS
    gradients = ReplicaGradients(parts)
    tickets = [*range(_GRADIENTS)]

    def reduce() -> None:
        gradients._held = dict.fromkeys(tickets, values)
        gradients.take_now(tickets, [1] * _GRADIENTS, 0)

    put = _least(lambda: gradients.put_now(0, values)) / size
    found = put, _least(reduce) / _GRADIENTS / size, _least(_updating(values)) / size
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tasks(all_with=(*PATIENT, "--plane", "tcp")) as running:
        target = running["/job:worker/task:0"].target
        large = 16 * (1 << 20)
        dense = processor_of(running, null_step(target, 1, 1, large // 16, 16), 3)
        small = processor_of(running, null_step(target, 1, 1, 1, 16), 20)
    ps, worker = ((dense[name] - small[name]) / (4 * large) for name in ("/job:ps/task:0", "/job:worker/task:0"))
    return OfBytes(*found, ps, worker)


def _updating(values: list[Any]) -> Callable[[], Any]:
    variables = [ab.Variable(value.copy(), name=f"v{number}") for number, value in enumerate(values)]
    with ab.Graph().as_default() as graph:
        given = [ab.placeholder(value.shape, "float32") for value in values]
        ab.optimizers.RMSprop(0.1, momentum=0.9).apply_gradients(list(zip(given, variables, strict=True)))
        writes = [operation for operation in graph.operations if operation.writes]
    session = ab.Session(graph)
    fed = dict(zip(given, values, strict=True))
    return lambda: session.run(writes, fed)


def _least(run: Callable[[], Any]) -> float:
    run()
    found: list[float] = []
    for _ in range(9):
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return min(found)


__all__ = ["PATIENT", "OfBytes", "null_step", "of_bytes", "processor_of"]
