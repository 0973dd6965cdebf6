"""The messages and services of a model server, made from their definitions in a pool of their own.

Generated modules would check the version of protobuf that made them, and would clash with those that a client library
registers in the default pool of the same process.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2

from .definitions import FILES, OPEN_INFERENCE, File

PACKAGE = OPEN_INFERENCE.package
SERVICE = f"{PACKAGE}.GRPCInferenceService"
_Field = descriptor_pb2.FieldDescriptorProto
_FIELD = re.compile(r" *(?:(repeated|map|oneof/\w+) )?([\w.]+) (\w+) = ([0-9]+)")
_VALUE = re.compile(r" *(\w+) = ([0-9]+)")
_METHOD = re.compile(r" *rpc (\w+) (stream )?(\w+) to (stream )?(\w+)")
_SCALARS = {name.removeprefix("TYPE_").lower() for name in _Field.Type.keys()}  # noqa: SIM118  (no mapping)


class Method(NamedTuple):
    """A method of a service.

    Attributes:
        name: its name.
        request, response: the classes of its messages.
        takes_stream, gives_stream: whether there may be many of them in a call.
    """

    name: str
    request: Any
    response: Any
    takes_stream: bool
    gives_stream: bool


class _Reader:
    """Reads the definitions of one file.

    Args:
        definitions: the file.
        enumerations: full names of those in all files, which are added here.
    """

    def __init__(self, definitions: File, enumerations: set[str]) -> None:
        self._package, self._enumerations = definitions.package, enumerations
        self.file = descriptor_pb2.FileDescriptorProto(
            name=definitions.name, package=definitions.package, dependency=definitions.needs, syntax="proto3"
        )
        self._messages: dict[str, Any] = {}
        self._lines = definitions.text.strip().splitlines()
        for line in self._lines:
            if line.startswith("enum "):
                enumerations.add(f"{self._package}.{line.removeprefix('enum ')}")
            if line.startswith("message "):
                self._message(line.removeprefix("message "))

    def read(self) -> descriptor_pb2.FileDescriptorProto:
        """Return the file as protobuf's own description."""
        kind = path = ""
        holder: Any = None
        for line in self._lines:
            if not line.startswith(" "):
                kind, path = line.split(" ")
                holder = self._holder(kind, path)
            elif kind == "message":
                self._add_field(holder, path, line)
            elif kind == "enum":
                found = _matched(_VALUE, line)
                holder.value.add(name=found[1], number=int(found[2]))
            else:
                self._add_method(holder, line)
        return self.file

    def _message(self, path: str) -> None:
        outer, _, name = path.rpartition(".")
        holder = self._messages[outer].nested_type if outer else self.file.message_type
        self._messages[path] = holder.add(name=name)

    def _holder(self, kind: str, path: str) -> Any:
        if kind == "message":
            return self._messages[path]
        if kind == "service":
            return self.file.service.add(name=path)
        outer, _, name = path.rpartition(".")
        return (self._messages[outer] if outer else self.file).enum_type.add(name=name)

    def _add_field(self, message: Any, path: str, line: str) -> None:
        rule, kind, name, number = _matched(_FIELD, line).groups()
        field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL, json_name=_camel(name))
        if rule in ("repeated", "map"):
            field.label = _Field.LABEL_REPEATED
        if rule == "map":
            entry = message.nested_type.add(name=_camel("_" + name) + "Entry")
            entry.options.map_entry = True
            self._add_field(entry, "", "string key = 1")
            self._add_field(entry, "", f"{kind} value = 2")
            kind = f"{path}.{entry.name}"
        elif rule is not None and rule != "repeated":
            choice = rule.removeprefix("oneof/")
            if all(each.name != choice for each in message.oneof_decl):
                message.oneof_decl.add(name=choice)
            field.oneof_index = [each.name for each in message.oneof_decl].index(choice)
        if kind in _SCALARS:
            field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
            return
        whole = self._whole(kind)
        field.type = _Field.TYPE_ENUM if whole in self._enumerations else _Field.TYPE_MESSAGE
        field.type_name = f".{whole}"

    def _add_method(self, service: Any, line: str) -> None:
        name, takes, request, gives, response = _matched(_METHOD, line).groups()
        service.method.add(
            name=name,
            input_type=f".{self._whole(request)}",
            output_type=f".{self._whole(response)}",
            client_streaming=bool(takes),
            server_streaming=bool(gives),
        )

    def _whole(self, kind: str) -> str:
        """Return the full name: those that begin with a small letter have their package."""
        return f"{self._package}.{kind}" if kind[0].isupper() else kind


def _matched(pattern: re.Pattern[str], line: str) -> re.Match[str]:
    found = pattern.fullmatch(line)
    assert found is not None, line
    return found


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


@cache
def files() -> dict[str, bytes]:
    """Return all definitions, by the name of the file, as protobuf's own descriptions."""
    found = {module.DESCRIPTOR.name: bytes(module.DESCRIPTOR.serialized_pb) for module in (any_pb2, wrappers_pb2)}
    enumerations: set[str] = set()
    readers = [_Reader(each, enumerations) for each in FILES]
    for reader in readers:
        found[reader.file.name] = reader.read().SerializeToString()
    return found


@cache
def pool() -> descriptor_pool.DescriptorPool:
    """Return the pool of all definitions."""
    made = descriptor_pool.DescriptorPool()
    for serialized in files().values():
        made.AddSerializedFile(serialized)
    return made


@cache
def message_class(name: str) -> Any:
    """Return the class of a message, such as "ModelInferRequest" of Open Inference; others have their full name."""
    whole = name if "." in name else f"{PACKAGE}.{name}"
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(whole))


def methods_of(service: str) -> list[Method]:
    """Return the methods of a service, by its full name."""
    description = descriptor_pb2.ServiceDescriptorProto()
    pool().FindServiceByName(service).CopyToProto(description)
    return [
        Method(
            each.name,
            message_class(each.input_type.removeprefix(".")),
            message_class(each.output_type.removeprefix(".")),
            each.client_streaming,
            each.server_streaming,
        )
        for each in description.method
    ]
