"""`RequestError`: a request that can't be answered, with the status that says whose fault it is."""

from __future__ import annotations


class RequestError(Exception):
    """A request to a model server fails.

    Args:
        status: HTTP's status: 400 malformed, 404 unknown, 405, 413, 415, 500, 503 not now. gRPC's follows from it.
        message: what happened, what was expected and what was got.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
