"""Options that the gRPC servers of tasks and of models share; without imports."""

from __future__ import annotations

NO_LIMIT = 10**9
# gRPC's core cancels calls that this process has not come to within 30 s. Who calls has a deadline of its own.
CALLS_WAIT = ("grpc.server_max_unrequested_time_in_server", NO_LIMIT)

__all__ = ["CALLS_WAIT", "NO_LIMIT"]
