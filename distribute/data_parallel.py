"""`DataParallel`: replicas of a model in several processes, which reduce their gradients among themselves."""

from __future__ import annotations

from typing import Any

from ..engine.ops import collectives
from .cluster import ClusterSpec
from .collectives.group import ProcessGroup
from .collectives.public import joined
from .strategy import Strategy, place_of


class DataParallel(Strategy):
    """Trains replicas of a model in all workers of a cluster, which sum their gradients by all-reduce.

    Every worker runs the same script, and holds all parameters and the optimizer's state. Each batch is shared between
    the workers. They reduce their gradients, then each makes the same update, so that no ps task is needed and no
    worker waits for another's parameters. Without a cluster the model is trained in this process as ever.

    A worker finds its place in the environment: ``TF_CONFIG``, which ``python -m anabranch launch --ps 0`` sets, or the
    variables of torchrun, ``mpirun`` and ``srun``.
    Worker 0 is the chief: its callbacks are called, it shows the progress, and the model begins with its values. When a
    worker is lost, training ends in all others with an error that names it.

    Args:
        shard: "optimizer" spreads the optimizer's variables over the workers (ZeRO, stage 1): each keeps those for its
            part of the parameters, updates that part, and gets the others' parts. None keeps all in each.
        cluster: the tasks, in place of those in the environment: a `ClusterSpec`, or what makes one.
        job_name, task_index: which task this process is; with `cluster`.

    Raises:
        TimeoutError: workers are absent; the message names them.
        ValueError: the cluster has no such task.

    >>> import anabranch as ab
    >>> strategy = ab.distribute.DataParallel()
    >>> with strategy.scope():
    ...     model = ab.Sequential([ab.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> strategy.is_chief, strategy.num_workers
    (True, 1)
    """

    def __init__(
        self,
        *,
        shard: str | None = None,
        cluster: ClusterSpec | dict[str, Any] | None = None,
        job_name: str | None = None,
        task_index: int | None = None,
    ) -> None:
        if shard not in (None, "optimizer"):
            raise ValueError(f"DataParallel: shard must be 'optimizer', or None for nothing; got {shard!r}.")
        self.shard = shard
        self.optimizer_bytes = 0  # of the optimizer's variables that are spread, those of this worker
        place = place_of("DataParallel", cluster, job_name, task_index)
        if cluster is None:
            found = collectives.current_group()  # what a collective before this has joined
        else:
            found = joined(place)
            collectives.set_group(found)
        self.group = found if isinstance(found, ProcessGroup) else None
        self.cluster = None if place is None else place.cluster
        self.task_index = 0 if self.group is None else self.group.rank
        self.num_workers = 1 if self.group is None else self.group.size
        self.steps = 0

    @property
    def is_distributed(self) -> bool:
        return self.group is not None

    def statistics(self) -> dict[str, Any]:
        """Count what was done.

        Returns:
            ``step``: how many steps this worker has taken part in; ``members``: the workers; with ``shard="optimizer"``
            ``optimizer_bytes``: how much of the optimizer's variables this worker has had in the latest `fit`.
        """
        found: dict[str, Any] = {"step": self.steps, "members": list(range(self.num_workers))}
        return found | ({"optimizer_bytes": self.optimizer_bytes} if self.shard else {})

    def close(self) -> None:
        """Leave the other workers. It happens at the end of the process, too."""
        if self.group is not None:
            self.group.close()
            collectives.set_group(None)
