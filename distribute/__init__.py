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
    "DataParallel": ".data_parallel",
    "ModelParallel": ".model_parallel",
    "ParameterServer": ".strategy",
    "Pipeline": ".pipeline",
    "Server": ".server",
    "ServerConfig": ".config",
    "Strategy": ".strategy",
    "TLS": ".encryption",
    "TaskStatus": ".task_status",
    "all_gather": ".collectives.public",
    "all_reduce": ".collectives.public",
    "barrier": ".collectives.public",
    "broadcast": ".collectives.public",
    "cluster_from_environment": ".environment",
    "rank": ".collectives.public",
    "reduce_scatter": ".collectives.public",
    "register_function": ".functions",
    "status": ".task_status",
    "world_size": ".collectives.public",
}

if TYPE_CHECKING:
    from .checkpoints import CheckpointManager
    from .cluster import ClusterSpec
    from .collectives.public import all_gather, all_reduce, barrier, broadcast, rank, reduce_scatter, world_size
    from .config import ServerConfig
    from .data_parallel import DataParallel
    from .device_setter import replica_device_setter
    from .encryption import TLS
    from .environment import cluster_from_environment
    from .functions import register_function
    from .model_parallel import ModelParallel
    from .pipeline import Pipeline
    from .server import Server
    from .sharding import (
        FixedShardsPartitioner,
        MaxSizePartitioner,
        MinSizePartitioner,
        Partitioner,
        ShardedVariable,
    )
    from .strategy import ParameterServer, Strategy
    from .task_status import TaskStatus, status


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    value = getattr(importlib.import_module(_NAMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})


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
    "status",
    "world_size",
]
