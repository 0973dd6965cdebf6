"""Running over several processes and machines: clusters, tasks, clients and strategies. See docs/distribute.md."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

# Names and the modules that hold them; loaded on first use, for gRPC takes its time.
_NAMES = {
    "CheckpointManager": ".checkpoints",
    "ClusterSpec": ".cluster",
    "FixedShardsPartitioner": ".sharding",
    "MaxSizePartitioner": ".sharding",
    "MinSizePartitioner": ".sharding",
    "Partitioner": ".sharding",
    "ShardedVariable": ".sharding",
    "replica_device_setter": ".device_setter",
    "DataParallel": ".strategies.data_parallel",
    "ModelParallel": ".strategies.model_parallel",
    "ParameterServer": ".strategies.strategy",
    "Pipeline": ".strategies.pipeline",
    "Server": ".tasks.server",
    "ServerConfig": ".config",
    "Strategy": ".strategies.strategy",
    "TLS": ".encryption",
    "TaskStatus": ".tasks.task_status",
    "all_gather": ".collectives.public",
    "all_reduce": ".collectives.public",
    "barrier": ".collectives.public",
    "broadcast": ".collectives.public",
    "cluster_from_environment": ".environment",
    "rank": ".collectives.public",
    "reduce_scatter": ".collectives.public",
    "register_function": ".functions",
    "run_on_ray": ".on_ray",
    "status": ".tasks.task_status",
    "world_size": ".collectives.public",
}

if TYPE_CHECKING:
    from .checkpoints import CheckpointManager
    from .cluster import ClusterSpec
    from .collectives.public import all_gather, all_reduce, barrier, broadcast, rank, reduce_scatter, world_size
    from .config import ServerConfig
    from .device_setter import replica_device_setter
    from .encryption import TLS
    from .environment import cluster_from_environment
    from .functions import register_function
    from .on_ray import run_on_ray
    from .sharding import (
        FixedShardsPartitioner,
        MaxSizePartitioner,
        MinSizePartitioner,
        Partitioner,
        ShardedVariable,
    )
    from .strategies.data_parallel import DataParallel
    from .strategies.model_parallel import ModelParallel
    from .strategies.pipeline import Pipeline
    from .strategies.strategy import ParameterServer, Strategy
    from .tasks.server import Server
    from .tasks.task_status import TaskStatus, status


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    value = getattr(importlib.import_module(_NAMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


__all__ = [
    "TLS",
    "CheckpointManager",
    "ClusterSpec",
    "DataParallel",
    "FixedShardsPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "ModelParallel",
    "ParameterServer",
    "Partitioner",
    "Pipeline",
    "Server",
    "ServerConfig",
    "ShardedVariable",
    "Strategy",
    "TaskStatus",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "cluster_from_environment",
    "rank",
    "reduce_scatter",
    "register_function",
    "replica_device_setter",
    "run_on_ray",
    "status",
    "world_size",
]
