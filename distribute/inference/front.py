"""The gRPC front of a model server: all its services on one port."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ..grpc_options import CALLS_WAIT, NO_LIMIT
from ..ports import can_listen
from . import Backends, RequestError, authorization
from .messages import SERVICE, Method, methods_of
from .open_inference import OpenInference
from .standard import HEALTH, Health, Reflection
from .tensorflow import MODELS, PREDICTION, ModelService, PredictionService
from .time_limit import note_time_limit, time_limit

_log = logging.getLogger("anabranch.serving")
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


async def start_front(
    backends: Backends,
    host: str,
    port: int,
    max_message_bytes: int,
    credentials: Any = None,
    shares_port: bool = False,
    request_seconds: float | None = None,
) -> tuple[grpc.aio.Server, int]:
    """Start to serve on the running event loop; return the server and its port.

    Args:
        backends: answer the requests.
        host, port: where to listen; port 0 is any.
        max_message_bytes: the largest message that is taken.
        credentials: the result of `server_credentials`, for TLS.
        shares_port: whether other processes listen on the same port.
        request_seconds: how long an answer may take; None for any time. The deadline of a call may be earlier.

    Raises:
        OSError: the port is taken, or the host is not this machine.
    """
    options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", int(shares_port)),
        CALLS_WAIT,
        # gRPC's core cancels some of more than 1,000 calls that wait. A model refuses what is too much for it by a
        # status that says so.
        ("grpc.server.max_pending_requests", NO_LIMIT),
        ("grpc.server.max_pending_requests_hard_limit", NO_LIMIT),
    ]
    server = grpc.aio.server(options=options)
    services: dict[str, Any] = {
        SERVICE: OpenInference(backends.inference, request_seconds),
        PREDICTION: PredictionService(backends.prediction, max_message_bytes),
        MODELS: ModelService(backends.prediction),
        HEALTH: Health(backends.inference),
    }
    reflection = Reflection(list(services))
    services.update(dict.fromkeys(reflection.services, reflection))
    for name, service in services.items():
        server.add_generic_rpc_handlers((_handlers(name, service, request_seconds),))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if not (shares_port or can_listen(host, port)):
            bound = 0
        elif credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError:  # which names no reason
        bound = 0
    if not bound:
        raise OSError(f"Can't listen on {address} for gRPC. Is the port taken, or the address of another machine?")
    await server.start()
    return server, bound


def server_credentials(certificate: bytes, key: bytes, client_authorities: bytes | None) -> Any:
    """Return the credentials that gRPC needs for TLS.

    Args:
        certificate: of the server, with those of its authorities, as PEM.
        key: of the server, as PEM.
        client_authorities: certificates of authorities, as PEM, one of which has to have signed that of a client; None
            lets clients without a certificate in.
    """
    return grpc.ssl_server_credentials(
        [(key, certificate)], client_authorities, require_client_auth=client_authorities is not None
    )


def _handlers(name: str, service: Any, request_seconds: float | None) -> grpc.GenericRpcHandler:
    """Return all methods of a service, by those of an object whose names are in snake case."""
    found: dict[str, Any] = {}
    for method in methods_of(name):
        function = getattr(service, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower())
        write = method.response.SerializeToString
        # Requests are read by the wrappers, so that what is malformed gets its own status.
        if method.takes_stream:
            found[method.name] = grpc.stream_stream_rpc_method_handler(
                _many_to_many(function, method), response_serializer=write
            )
        elif method.gives_stream:
            found[method.name] = grpc.unary_stream_rpc_method_handler(
                _one_to_many(function, method), response_serializer=write
            )
        else:
            found[method.name] = grpc.unary_unary_rpc_method_handler(
                _one_to_one(function, method, request_seconds), response_serializer=write
            )
    return grpc.method_handlers_generic_handler(name, found)


def _read(method: Method, data: bytes) -> Any:
    try:
        return method.request.FromString(data)
    except DecodeError as error:
        raise RequestError(400, f"This is no message {method.request.DESCRIPTOR.full_name}: {error}.") from None


async def _failed(context: grpc.aio.ServicerContext, error: Exception) -> None:
    if isinstance(error, RequestError):
        await context.abort(_CODES.get(error.status, grpc.StatusCode.INTERNAL), str(error))
    if isinstance(error, grpc.aio.AbortError):
        raise error
    _log.error("a call failed", exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, f"The server failed: {type(error).__name__}: {error}")


def _authorization(context: grpc.aio.ServicerContext) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            return value
    return ""


def _one_to_one(function: Callable[[Any], Awaitable[Any]], method: Method, request_seconds: float | None) -> Any:
    """Return `function` with a time limit, and with gRPC's statuses for what it raises."""

    async def answer(data: bytes, context: grpc.aio.ServicerContext) -> Any:
        authorization.set(_authorization(context))
        note_time_limit(context.time_remaining())
        try:
            if request_seconds is None:
                return await function(_read(method, data))
            async with time_limit(request_seconds):
                return await function(_read(method, data))
        except Exception as error:
            await _failed(context, error)

    return answer


def _one_to_many(function: Callable[[Any], AsyncGenerator[Any]], method: Method) -> Any:
    async def answer(data: bytes, context: grpc.aio.ServicerContext) -> AsyncGenerator[Any]:
        try:
            async with aclosing(function(_read(method, data))) as responses:
                async for response in responses:
                    yield response
        except Exception as error:
            await _failed(context, error)

    return answer


def _many_to_many(function: Callable[[AsyncIterator[Any]], AsyncGenerator[Any]], method: Method) -> Any:
    async def requests(data: AsyncIterator[bytes]) -> AsyncGenerator[Any]:
        async for each in data:
            yield _read(method, each)

    async def answer(data: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncGenerator[Any]:
        authorization.set(_authorization(context))
        note_time_limit(context.time_remaining())
        try:
            async with aclosing(function(requests(data))) as responses:
                async for response in responses:
                    yield response
        except Exception as error:
            await _failed(context, error)

    return answer
