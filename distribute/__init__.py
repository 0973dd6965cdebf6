"""Running over several processes and machines: clusters, tasks, clients and strategies. See docs/distribute.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Names and the modules that hold them; loaded on first use, for gRPC takes its time.
_NAMES = {
    "ClusterSpec": ".cluster",
    "ParameterServer": ".strategy",
    "Server": ".server",
    "ServerConfig": ".server",
    "cluster_from_environment": ".environment",
}

if TYPE_CHECKING:
    from .cluster import ClusterSpec
    from .environment import cluster_from_environment
    from .server import Server, ServerConfig
    from .strategy import ParameterServer


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_NAMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})


__all__ = ["ClusterSpec", "ParameterServer", "Server", "ServerConfig", "cluster_from_environment"]
