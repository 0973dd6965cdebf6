"""The messages of the Open Inference Protocol, made from their definition in a pool of their own.

Generated modules would check the version of protobuf that made them, and would clash with those that a client library
registers in the default pool of the same process.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
# As in the protocol's specification; messages inside of messages are written with a dot.
_DEFINITION = """
message ServerLiveRequest
message ServerLiveResponse
    bool live = 1
message ServerReadyRequest
message ServerReadyResponse
    bool ready = 1
message ModelReadyRequest
    string name = 1
    string version = 2
message ModelReadyResponse
    bool ready = 1
message ServerMetadataRequest
message ServerMetadataResponse
    string name = 1
    string version = 2
    repeated string extensions = 3
message ModelMetadataRequest
    string name = 1
    string version = 2
message ModelMetadataResponse
    string name = 1
    repeated string versions = 2
    string platform = 3
    repeated ModelMetadataResponse.TensorMetadata inputs = 4
    repeated ModelMetadataResponse.TensorMetadata outputs = 5
message ModelMetadataResponse.TensorMetadata
    string name = 1
    string datatype = 2
    repeated int64 shape = 3
message InferParameter
    oneof bool bool_param = 1
    oneof int64 int64_param = 2
    oneof string string_param = 3
    oneof double double_param = 4
    oneof uint64 uint64_param = 5
message InferTensorContents
    repeated bool bool_contents = 1
    repeated int32 int_contents = 2
    repeated int64 int64_contents = 3
    repeated uint32 uint_contents = 4
    repeated uint64 uint64_contents = 5
    repeated float fp32_contents = 6
    repeated double fp64_contents = 7
    repeated bytes bytes_contents = 8
message ModelInferRequest
    string model_name = 1
    string model_version = 2
    string id = 3
    map InferParameter parameters = 4
    repeated ModelInferRequest.InferInputTensor inputs = 5
    repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6
    repeated bytes raw_input_contents = 7
message ModelInferRequest.InferInputTensor
    string name = 1
    string datatype = 2
    repeated int64 shape = 3
    map InferParameter parameters = 4
    InferTensorContents contents = 5
message ModelInferRequest.InferRequestedOutputTensor
    string name = 1
    map InferParameter parameters = 2
message ModelInferResponse
    string model_name = 1
    string model_version = 2
    string id = 3
    map InferParameter parameters = 4
    repeated ModelInferResponse.InferOutputTensor outputs = 5
    repeated bytes raw_output_contents = 6
message ModelInferResponse.InferOutputTensor
    string name = 1
    string datatype = 2
    repeated int64 shape = 3
    map InferParameter parameters = 4
    InferTensorContents contents = 5
"""
_Field = descriptor_pb2.FieldDescriptorProto


def file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    """The definition as protobuf's own description of a file."""
    file = descriptor_pb2.FileDescriptorProto(name="anabranch/open_inference.proto", package=PACKAGE, syntax="proto3")
    message: Any = None
    found: dict[str, Any] = {}
    for line in _DEFINITION.strip().splitlines():
        if line.startswith("message "):
            outer, _, name = line.removeprefix("message ").rpartition(".")
            message = (found[outer].nested_type if outer else file.message_type).add(name=name)
            found[line.removeprefix("message ")] = message
            path = line.removeprefix("message ")
        else:
            _add_field(message, path, line)
    return file


def _add_field(message: Any, path: str, line: str) -> None:
    parts = re.fullmatch(r" *(?:(repeated|map|oneof) )?([\w.]+) (\w+) = ([0-9]+)", line)
    assert parts is not None, line
    rule, kind, name, number = parts.groups()
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL, json_name=_camel(name))
    if rule in ("repeated", "map"):
        field.label = _Field.LABEL_REPEATED
    if rule == "map":
        entry = message.nested_type.add(name=_camel("_" + name) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "", "string key = 1")
        _add_field(entry, "", f"{kind} value = 2")
        kind = f"{path}.{entry.name}"
    if rule == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if kind[0].isupper():
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file_descriptor())
    return pool


@cache
def message_class(name: str) -> Any:
    """The class of a message, such as "ModelInferRequest"."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))
