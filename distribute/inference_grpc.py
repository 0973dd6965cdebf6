"""The gRPC front of a model server: `inference.GRPCInferenceService` of the Open Inference Protocol."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from .inference import InferenceBackend, RequestError, WireTensor, authorization
from .inference_messages import SERVICE, message_class

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
# By datatype, the field of typed contents; others have to come as bytes.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(["INT8", "INT16", "INT32"], "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(["UINT8", "UINT16", "UINT32"], "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
Handler = Callable[[Any], Awaitable[Any]]


async def start_front(
    backend: InferenceBackend, host: str, port: int, max_message_bytes: int
) -> tuple[grpc.aio.Server, int]:
    """Start to serve on the running event loop; gives the server and its port.

    Args:
        backend: answers the requests.
        host, port: where to listen; port 0 is any.
        max_message_bytes: the largest message that is taken.

    Raises:
        OSError: the port is taken, or the host is not this machine.
    """
    options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((_Service(backend).handlers(),))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"Can't listen on {address} for gRPC: {error}.") from error
    if not bound:
        raise OSError(f"Can't listen on {address} for gRPC. Is the port taken?")
    await server.start()
    return server, bound


class _Service:
    """The methods of the service, each from its request to its response."""

    def __init__(self, backend: InferenceBackend) -> None:
        self._backend = backend

    def handlers(self) -> grpc.GenericRpcHandler:
        methods: dict[str, Handler] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
        }
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(
                    _with_statuses(method),
                    request_deserializer=message_class(f"{name}Request").FromString,
                    response_serializer=message_class(f"{name}Response").SerializeToString,
                )
                for name, method in methods.items()
            },
        )

    async def _server_live(self, request: Any) -> Any:
        return message_class("ServerLiveResponse")(live=True)

    async def _server_ready(self, request: Any) -> Any:
        return message_class("ServerReadyResponse")(ready=self._backend.is_ready())

    async def _model_ready(self, request: Any) -> Any:
        ready = self._backend.is_model_ready(request.name, request.version)
        return message_class("ModelReadyResponse")(ready=ready)

    async def _server_metadata(self, request: Any) -> Any:
        return message_class("ServerMetadataResponse")(**self._backend.server_metadata())

    async def _model_metadata(self, request: Any) -> Any:
        return message_class("ModelMetadataResponse")(**self._backend.model_metadata(request.name, request.version))

    async def _model_infer(self, request: Any) -> Any:
        wanted = [output.name for output in request.outputs]
        answer = await self._backend.infer(request.model_name, request.model_version, _tensors(request), wanted)
        response = message_class("ModelInferResponse")(
            model_name=request.model_name, model_version=answer.version, id=request.id
        )
        for tensor in answer.outputs:
            response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            response.raw_output_contents.append(tensor.data)
        return response


def _tensors(request: Any) -> list[WireTensor]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestError(
            400, f"raw_input_contents has {len(raw)} entries for {len(request.inputs)} inputs. Send one for each."
        )
    return [
        WireTensor(each.name, each.datatype, each.shape, raw[place] if raw else _typed(each))
        for place, each in enumerate(request.inputs)
    ]


def _typed(tensor: Any) -> list[Any]:
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise RequestError(
            400, f"Input {tensor.name!r}: {tensor.datatype!r} has no typed contents. Send raw_input_contents."
        )
    return list(getattr(tensor.contents, field))


def _authorization(context: grpc.aio.ServicerContext) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            return value
    return ""


def _with_statuses(method: Handler) -> Callable[[Any, Any], Awaitable[Any]]:
    """`method` with gRPC's statuses for what it raises."""

    async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:
        authorization.set(_authorization(context))
        try:
            return await method(request)
        except RequestError as error:
            await context.abort(_CODES.get(error.status, grpc.StatusCode.INTERNAL), str(error))
        except Exception as error:
            traceback.print_exc()
            await context.abort(grpc.StatusCode.INTERNAL, f"The server failed: {type(error).__name__}: {error}")

    return answer
