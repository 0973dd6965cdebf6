"""Define the tensors, errors and backend interface that the front ends of a model server share."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

# The value of the header "authorization" of the request that is answered; fronts set it in the request's own context.
authorization: ContextVar[str] = ContextVar("authorization", default="")


class RequestError(Exception):
    """A request to a model server fails.

    Args:
        status: HTTP's status: 400 malformed, 401 without the token, 404 unknown, 405, 413, 415, 429 busy, 500, 503
            not now, 504 too late. gRPC's follows.
        message: what happened, what was expected and what was got.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class WireTensor(NamedTuple):
    """A tensor as the Open Inference Protocol writes it.

    Attributes:
        name: its name.
        datatype: the protocol's name of its dtype, such as "FP32".
        shape: its sizes.
        data: its bytes, or a list of values.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    data: Any


class Answer(NamedTuple):
    """Hold the answer of a model: its version, and its outputs as bytes."""

    version: str
    outputs: list[WireTensor]


class InferenceBackend(Protocol):
    """What answers the requests of the Open Inference Protocol; all of it may raise a `RequestError`."""

    def is_ready(self) -> bool:
        """Whether all models can be asked."""
        ...

    def is_model_ready(self, model: str, version: str) -> bool:
        """Whether a model can be asked; False also where there is none."""
        ...

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions."""
        ...

    def model_metadata(self, model: str, version: str) -> dict[str, Any]:
        """Name, versions, platform, inputs and outputs."""
        ...

    async def infer(
        self, model: str, version: str, inputs: Sequence[WireTensor], outputs: Sequence[str], raw: bool = True
    ) -> Answer:
        """The outputs of these names (of all, if none is named), as bytes or, unless `raw`, as arrays."""
        ...
