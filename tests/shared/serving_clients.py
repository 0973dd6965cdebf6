"""Clients for the tests of the model server: plain HTTP, and gRPC with the messages of the protocol."""

import http.client
import importlib.util
import json
import os
import sys
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import grpc

from anabranch.distribute.inference_messages import SERVICE, message_class


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(url: str, path: str, body: Any = None, method: str = "", headers: dict[str, str] | None = None) -> Reply:
    """One request on a connection of its own: POST if there is a body, which is sent as JSON unless it is bytes."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method or ("GET" if body is None else "POST"), path, sent, headers or {})
        reply = connection.getresponse()
        return Reply(reply.status, {name.lower(): text for name, text in reply.getheaders()}, reply.read())
    finally:
        connection.close()


def call(address: str, method: str, timeout: float = 60, metadata: Any = None, **fields: Any) -> Any:
    """One call of the gRPC service."""
    with grpc.insecure_channel(address) as channel:
        stub = channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=message_class(f"{method}Request").SerializeToString,
            response_deserializer=message_class(f"{method}Response").FromString,
        )
        return stub(message_class(f"{method}Request")(**fields), timeout=timeout, metadata=metadata)


def triton_python() -> str | None:
    """A Python that has tritonclient: this one, or the one that ANABRANCH_TRITON_PYTHON names."""
    return sys.executable if importlib.util.find_spec("tritonclient") else os.environ.get("ANABRANCH_TRITON_PYTHON")
