"""`ShardedVariable` and partitioners as users of clusters call them: shards are on the ps tasks in turn."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.common.partitioners import FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner
from ..engine.graph.graph import current_device_scope
from ..engine.graph.state.sharded import ShardedVariable, set_finder
from .environment import cluster_from_environment
from .strategies.strategy import current_strategy


def _ps_tasks() -> Sequence[str] | None:
    """Return the ps tasks of the cluster in the environment, unless a scope or a strategy says where variables are.

    Without such a cluster that is left to the one whose session first runs the variables: None.
    """
    scope = current_device_scope()
    if scope.parts or scope.colocations or current_strategy() is not None:
        return ()
    place = cluster_from_environment()
    return None if place is None else [task for task in place.cluster.tasks if task.startswith("/job:ps/")]


set_finder(_ps_tasks)

__all__ = ["FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner", "Partitioner", "ShardedVariable"]
