"""Clients for the tests of the model server: plain HTTP, and gRPC with the messages of the protocol."""

import http.client
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import grpc
import pytest

from anabranch.distribute.inference.messages import SERVICE, methods_of


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


def message_of(kind: Any, fields: Mapping[str, Any]) -> Any:
    """A message of a class, with fields as dicts, lists and values.

    protobuf 5.28 takes dicts for messages in its constructors, but not within maps, as protobuf 7 does.
    """
    made = kind()
    _fill(made, fields)
    return made


def _fill(made: Any, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        kind, held = made.DESCRIPTOR.fields_by_name[name].message_type, getattr(made, name)
        if kind is None:
            if isinstance(value, str | bytes) or not isinstance(value, Iterable):
                setattr(made, name, value)
            else:
                held.extend(value)
        elif kind.GetOptions().map_entry:
            for key, item in value.items():
                if kind.fields_by_name["value"].message_type is None:
                    held[key] = item
                else:
                    _set(held[key], item)
        elif isinstance(value, list | tuple):
            for item in value:
                _set(held.add(), item)
        else:
            held.SetInParent()
            _set(held, value)


def _set(held: Any, value: Any) -> None:
    """Set a message by a dict or by another message."""
    if isinstance(value, Mapping):
        _fill(held, value)
    else:
        held.CopyFrom(value)


def call(address: str, method: str, timeout: float = 60, metadata: Any = None, **fields: Any) -> Any:
    """One call of a gRPC service, by default of the Open Inference Protocol: "Method" or "package.Service/Method"."""
    service, _, name = method.rpartition("/")
    found = next(each for each in methods_of(service or SERVICE) if each.name == name)
    with grpc.insecure_channel(address) as channel:
        stub = channel.unary_unary(
            f"/{service or SERVICE}/{name}",
            request_serializer=found.request.SerializeToString,
            response_deserializer=found.response.FromString,
        )
        return stub(message_of(found.request, fields), timeout=timeout, metadata=metadata)


def call_stream(address: str, method: str, requests: Iterable[dict[str, Any]], timeout: float = 60) -> list[Any]:
    """One call of a method that takes and gives many messages: all answers."""
    service, _, name = method.rpartition("/")
    found = next(each for each in methods_of(service or SERVICE) if each.name == name)
    with grpc.insecure_channel(address) as channel:
        stub = channel.stream_stream(
            f"/{service or SERVICE}/{name}",
            request_serializer=found.request.SerializeToString,
            response_deserializer=found.response.FromString,
        )
        return list(stub(iter([message_of(found.request, fields) for fields in requests]), timeout=timeout))


def python_of(client: str) -> str:
    """A Python that has a client of the server; the test that asks for one is skipped where there is none.

    Clients want other versions of protobuf than the server, so each has an environment of its own: that which
    ``make clients`` has made, or the Python that the variable ANABRANCH_<CLIENT>_PYTHON names.
    """
    variable = f"ANABRANCH_{client.upper()}_PYTHON"
    made = Path(__file__).parents[2] / ".venv" / "clients" / client
    found = [path for path in (made / "bin" / "python", made / "Scripts" / "python.exe") if (made / ".made").exists()]
    python = os.environ.get(variable) or next((str(path) for path in found if path.exists()), None)
    if python is None:
        pytest.skip(f"the client {client!r} is not installed: run `make clients`, or name a Python by {variable}")
    return python
