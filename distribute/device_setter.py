"""`replica_device_setter`: variables on ps tasks, spread by bytes, and operations on a worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..engine.graph import Variable
from ..engine.graph.device import DeviceName
from ..engine.graph.state.resource import NamedResource
from .cluster import ClusterSpec
from .environment import cluster_from_environment

_BYTES_OF_RESOURCE = 1 << 10  # that a queue or an accumulator counts as, whose content is not known


def replica_device_setter(
    cluster: Any = None,
    *,
    ps_tasks: int | None = None,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    ps_strategy: Callable[[Any], int] | None = None,
) -> Callable[[Any], str | None]:
    """Make a device function: variables and queues are on the ps tasks, operations on a worker.

    Each variable goes to the ps task that has the fewest bytes so far, of two alike to the first. The shards of a
    `ShardedVariable` are spread in the same way. Two clients that make the same variables in the same order find the
    same places.

    Args:
        cluster: a `ClusterSpec`, or what makes one; by default that of the environment.
        ps_tasks: how many ps tasks there are; by default as the cluster says.
        ps_device: the job of the ps tasks, maybe with a device, such as ``"/job:ps/cpu:0"``.
        worker_device: what operations ask for that touch no variable; "" for nothing.
        ps_strategy: a function of what is placed that gives the number of a ps task.

    Raises:
        ValueError: the cluster has no such tasks, or there is none.

    Source: TensorFlow's ``tf.compat.v1.train.replica_device_setter``.

    >>> import anabranch as ab
    >>> cluster = {"ps": ["localhost:2201", "localhost:2202"], "worker": ["localhost:2203"]}
    >>> with ab.device(ab.distribute.replica_device_setter(cluster)):
    ...     table, bias = ab.Variable([[1.0, 2.0]]), ab.Variable([0.5])
    ...     more = ab.Variable([0.5])
    >>> table.device, bias.device, more.device
    ('/job:ps/task:0', '/job:ps/task:1', '/job:ps/task:1')
    """
    wanted = DeviceName.parse(ps_device)
    numbers: Sequence[int] = range(ps_tasks or 0)
    if ps_tasks is None:
        numbers = _tasks_of(cluster, wanted.job or "ps")
    if not numbers:
        raise ValueError(f"replica_device_setter: the cluster has no task of job {wanted.job!r}; give ps_tasks=.")
    if worker_device:
        DeviceName.parse(worker_device)
    choose = ps_strategy or LeastBytes(len(numbers))

    def place(made: Any) -> str | None:
        if made.device and DeviceName.parse(made.device).job is not None:
            return None  # a scope inside has said where
        if not isinstance(made, (Variable, NamedResource)):
            return worker_device or None
        task = DeviceName(wanted.job or "ps", numbers[choose(made)], wanted.kind, wanted.number)
        return str(task)

    return place


class LeastBytes:
    """Chooses for each variable the task that has the fewest bytes so far.

    Args:
        count: how many tasks there are.

    Attributes:
        bytes: how many each has.
    """

    def __init__(self, count: int) -> None:
        self.bytes = [0] * count

    def __call__(self, made: Any) -> int:
        """Choose a task for a variable, which counts from now on; return its number."""
        chosen = min(range(len(self.bytes)), key=self.bytes.__getitem__)
        self.bytes[chosen] += bytes_of(made)
        return chosen


def bytes_of(made: Any) -> int:
    """Return how many bytes a variable has; what isn't known counts as little."""
    spec = getattr(made, "spec", None)
    if spec is None or spec.shape is None:
        return _BYTES_OF_RESOURCE
    return math.prod(size or 1 for size in spec.shape) * spec.dtype.itemsize


def _tasks_of(cluster: Any, job: str) -> list[int]:
    if cluster is None:
        place = cluster_from_environment()
        if place is None:
            raise ValueError(
                "replica_device_setter: there is no cluster in the environment. Give cluster=ClusterSpec(...) or "
                "ps_tasks=."
            )
        cluster = place.cluster
    tasks = cluster.tasks if isinstance(cluster, ClusterSpec) else ClusterSpec(cluster).tasks
    names = [DeviceName.parse(task) for task in tasks]
    return [name.task for name in names if name.job == job and name.task is not None]


__all__ = ["LeastBytes", "replica_device_setter"]
