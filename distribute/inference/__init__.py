"""Define the tensors, errors and backend interfaces that the front ends of a model server share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

# The value of the header "authorization" of the request that is answered; fronts set it in the request's own context.
authorization: ContextVar[str] = ContextVar("authorization", default="")


class RequestError(Exception):
    """A request to a model server fails.

    Args:
        status: HTTP's status: 400 malformed, 401 without the token, 404 unknown, 405, 413, 415, 429 busy, 500, 501 not
            offered, 503 not now, 504 too late. gRPC's follows.
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
        data: its bytes, or values: a list, a vector, or the repeated field of a message.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    data: Any


class InferRequest(NamedTuple):
    """A request of the Open Inference Protocol.

    Attributes:
        model: the name of the model.
        version: its version; "" for the latest.
        inputs: the tensors.
        outputs: the names of the outputs that are asked for; all of them, if it is empty.
        parameters: of the request: booleans, numbers and texts by name.
        size: how many bytes of JSON or typed values it came as; 0 if it came otherwise.
    """

    model: str
    version: str
    inputs: Sequence[WireTensor]
    outputs: Sequence[str] = ()
    parameters: Mapping[str, Any] = {}
    size: int = 0


class Answer(NamedTuple):
    """Hold the answer of a model.

    Attributes:
        version: that has answered.
        outputs: with bytes as data.
        parameters: of the answer, by name.
    """

    version: str
    outputs: list[WireTensor]
    parameters: Mapping[str, Any] = {}


class InferenceBackend(Protocol):
    """A backend that answers the requests of the Open Inference Protocol; all of it may raise a `RequestError`."""

    def is_ready(self) -> bool:
        """Test whether all models can be asked."""
        ...

    def is_model(self, model: str) -> bool:
        """Test whether there is a model of this name, be it loaded or not."""
        ...

    def is_model_ready(self, model: str, version: str) -> bool:
        """Test whether a model can be asked; False also where there is none."""
        ...

    def server_metadata(self) -> dict[str, Any]:
        """Return name, version and extensions."""
        ...

    def model_metadata(self, model: str, version: str) -> dict[str, Any]:
        """Return name, versions, platform, inputs and outputs."""
        ...

    def model_config(self, model: str, version: str) -> dict[str, Any]:
        """Return the fields of Triton's ``ModelConfig``."""
        ...

    async def statistics(self, model: str, version: str) -> list[dict[str, Any]]:
        """Return the fields of Triton's ``ModelStatistics``, for a model or, without a name, for all."""
        ...

    def index(self, only_ready: bool) -> list[dict[str, Any]]:
        """Return name, version, state and reason of all versions."""
        ...

    async def load(self, model: str) -> None:
        """Load a model of the configuration, or look for its new versions."""
        ...

    async def unload(self, model: str) -> None:
        """Let a model go until it is loaded again."""
        ...

    async def infer(self, request: InferRequest, raw: bool = True) -> Answer:
        """Return the outputs, as bytes or, unless `raw`, as arrays."""
        ...

    def stream(self, request: InferRequest) -> AsyncGenerator[Answer]:
        """Return the answers to one request: many from a decoder, one from a model."""
        ...


class ModelSpec(NamedTuple):
    """The model, version and signature that a request of TensorFlow Serving means; "" where it says nothing."""

    name: str
    version: str = ""
    label: str = ""
    signature: str = ""


class TypedArray(NamedTuple):
    """An array, and the name of its dtype: text is an object array of bytes."""

    dtype: str
    array: Any


class VersionState(NamedTuple):
    """The state of a version, by TensorFlow Serving's names, and why it could not be loaded."""

    version: int
    state: str
    failure: str


class SignatureTensors(NamedTuple):
    """The inputs and outputs of a signature: by name, the dtype, the sizes with -1 for what is open, and a name."""

    inputs: Mapping[str, tuple[str, Sequence[int], str]]
    outputs: Mapping[str, tuple[str, Sequence[int], str]]


class PredictionBackend(Protocol):
    """A backend that answers the requests of TensorFlow Serving's services; all of it may raise a `RequestError`."""

    def check_rows(self, spec: ModelSpec, rows: Mapping[str, int]) -> None:
        """Raise a `RequestError` where inputs have other names or more rows than are taken, before values are read."""
        ...

    async def predict(
        self, spec: ModelSpec, read: Callable[[], Mapping[str, TypedArray]], size: int, outputs: Sequence[str]
    ) -> tuple[int, dict[str, TypedArray]]:
        """Return the version that has answered, and the outputs of these names, or all.

        Args:
            spec: of the model.
            read: reads the inputs, whose names and rows `check_rows` has accepted.
            size: how many bytes of typed values there are to read.
            outputs: the names.
        """
        ...

    def signatures(self, spec: ModelSpec) -> tuple[int, dict[str, SignatureTensors]]:
        """Return the version, and its signatures."""
        ...

    def states(self, spec: ModelSpec) -> list[VersionState]:
        """Return the states of the versions that are meant, the highest first."""
        ...


class Backends(NamedTuple):
    """The backends that answer, by protocol."""

    inference: InferenceBackend
    prediction: PredictionBackend


__all__ = [
    "Answer",
    "Backends",
    "InferRequest",
    "InferenceBackend",
    "ModelSpec",
    "PredictionBackend",
    "RequestError",
    "SignatureTensors",
    "TypedArray",
    "VersionState",
    "WireTensor",
    "authorization",
]
