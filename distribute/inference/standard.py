"""gRPC's own services: health (`grpc.health.v1.Health`), and reflection, by which tools learn the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from google.protobuf import descriptor_pb2

from . import InferenceBackend, RequestError
from .messages import files, message_class, pool

HEALTH = "grpc.health.v1.Health"
_SERVING, _NOT_SERVING = 1, 2
_LOOK_SECONDS = 0.5  # how often the health is looked at for those who watch it
_NOT_FOUND, _UNIMPLEMENTED = 5, 12  # gRPC's codes


class Health:
    """Says whether the server, or a service of it, answers; "" is the server, another name a model or a service."""

    def __init__(self, backend: InferenceBackend) -> None:
        self._backend = backend

    def _status(self, name: str) -> int | None:
        if not name or ("." in name and _has_service(name)):
            return _SERVING if self._backend.is_ready() else _NOT_SERVING
        if self._backend.is_model_ready(name, ""):
            return _SERVING
        return _NOT_SERVING if self._backend.is_model(name) else None

    async def check(self, request: Any) -> Any:
        status = self._status(request.service)
        if status is None:
            raise RequestError(404, f"There is no service and no model {request.service!r}.")
        return message_class("grpc.health.v1.HealthCheckResponse")(status=status)

    async def watch(self, request: Any) -> AsyncGenerator[Any]:
        last = -1
        while True:
            status = self._status(request.service)
            now = 3 if status is None else status  # SERVICE_UNKNOWN
            if now != last:
                yield message_class("grpc.health.v1.HealthCheckResponse")(status=now)
                last = now
            await asyncio.sleep(_LOOK_SECONDS)


def _has_service(name: str) -> bool:
    try:
        pool().FindServiceByName(name)
    except KeyError:
        return False
    return True


class Reflection:
    """Describes the services of a server, in both versions of the protocol; their messages are alike.

    Args:
        services: full names of the others.
    """

    services = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

    def __init__(self, services: Sequence[str]) -> None:
        self._names = [*services, *self.services]

    async def server_reflection_info(self, requests: AsyncIterator[Any]) -> AsyncGenerator[Any]:
        async for request in requests:
            package = request.DESCRIPTOR.file.package
            response = message_class(f"{package}.ServerReflectionResponse")(
                valid_host=request.host, original_request=request
            )
            self._answer(request, response)
            yield response

    def _answer(self, request: Any, response: Any) -> None:
        asked = request.WhichOneof("message_request")
        if asked == "list_services":
            for name in self._names:
                response.list_services_response.service.add(name=name)
            return
        if asked not in ("file_by_filename", "file_containing_symbol"):
            response.error_response.error_code = _UNIMPLEMENTED
            response.error_response.error_message = "There are no extensions."
            return
        name = getattr(request, asked)
        try:
            found = pool().FindFileByName(name) if asked == "file_by_filename" else _holder_of(name)
        except KeyError:
            response.error_response.error_code = _NOT_FOUND
            response.error_response.error_message = f"There is no {name!r}."
            return
        response.file_descriptor_response.file_descriptor_proto.extend(_with_needs(found.name))


def _holder_of(symbol: str) -> Any:
    """Return the file of a message, service or enumeration, or of a method or field of one."""
    try:
        return pool().FindFileContainingSymbol(symbol)
    except KeyError:
        return pool().FindFileContainingSymbol(symbol.rpartition(".")[0])


def _with_needs(name: str) -> list[bytes]:
    """Return a file and all that it uses."""
    found: dict[str, bytes] = {}
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = files()[each]
            waiting += descriptor_pb2.FileDescriptorProto.FromString(found[each]).dependency
    return list(found.values())
