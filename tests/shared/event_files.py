"""An independent reader of event files: taken apart by hand, read by protobuf with TensorFlow's numbers of fields."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Message: field name -> (number, type, whether repeated), from TensorFlow's .proto files.
MESSAGES: dict[str, dict[str, tuple[int, str, bool]]] = {
    "Event": {
        "wall_time": (1, "double", False),
        "step": (2, "int64", False),
        "file_version": (3, "string", False),
        "graph_def": (4, "bytes", False),
        "summary": (5, "Summary", False),
    },
    "Summary": {"value": (1, "Value", True)},
    "Value": {
        "tag": (1, "string", False),
        "simple_value": (2, "float", False),
        "image": (4, "Image", False),
        "histo": (5, "Histogram", False),
        "tensor": (8, "TensorProto", False),
        "metadata": (9, "Metadata", False),
    },
    "Image": {
        "height": (1, "int32", False),
        "width": (2, "int32", False),
        "colorspace": (3, "int32", False),
        "encoded_image_string": (4, "bytes", False),
    },
    "Histogram": {
        **{
            name: (number, "double", False)
            for number, name in enumerate(("min", "max", "num", "sum", "sum_squares"), 1)
        },
        "bucket_limit": (6, "double", True),
        "bucket": (7, "double", True),
    },
    "Metadata": {"plugin_data": (1, "PluginData", False), "data_class": (4, "int32", False)},
    "PluginData": {"plugin_name": (1, "string", False), "content": (2, "bytes", False)},
    "TensorProto": {
        "dtype": (1, "int32", False),
        "tensor_shape": (2, "Shape", False),
        "string_val": (8, "bytes", True),
    },
    "Shape": {"dim": (2, "Dim", True)},
    "Dim": {"size": (1, "int64", False)},
    "GraphDef": {"node": (1, "Node", True)},
    "Node": {"name": (1, "string", False), "op": (2, "string", False), "input": (3, "string", True)},
}


def message_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="event_for_tests.proto", package="events", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, is_repeated) in fields.items():
            label = kinds.LABEL_REPEATED if is_repeated else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if kind in MESSAGES:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".events.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"events.{name}"))
        for name in ("Event", "GraphDef")
    }


CLASSES = message_classes()


def bitwise_crc32c(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = bitwise_crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(content: bytes) -> list[bytes]:
    """The records of a TFRecord file, with every checksum compared."""
    found: list[bytes] = []
    place = 0
    while place < len(content):
        length, check = struct.unpack_from("<QI", content, place)
        data = content[place + 12 : place + 12 + length]
        assert masked(content[place : place + 8]) == check
        assert masked(data) == struct.unpack_from("<I", content, place + 12 + length)[0]
        found.append(data)
        place += 16 + length
    return found


def events(path: Path) -> list[Any]:
    """The events of the one file in a folder, after that with the version."""
    (file,) = path.iterdir()
    assert file.name.startswith("events.out.tfevents.")
    written = records(file.read_bytes())
    found = [CLASSES["Event"].FromString(record) for record in written]
    for event in found:
        size = event.ByteSize()
        event.DiscardUnknownFields()
        assert event.ByteSize() == size  # nothing but what the schema has
    assert found[0].file_version == "brain.Event:2"
    assert [event.wall_time for event in found] == sorted(event.wall_time for event in found)
    return found[1:]


def scalars(path: Path) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for event in events(path):
        for value in event.summary.value:
            if not value.HasField("image") and not value.HasField("histo"):
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def decoded_png(data: bytes) -> np.ndarray:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    place = 8
    while place < len(data):
        (length,) = struct.unpack_from(">I", data, place)
        kind, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", data, place + 8 + length)[0] == zlib.crc32(kind + content)
        chunks[kind] = content
        place += 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    channels = {0: 1, 4: 2, 2: 3, 6: 4}[colour]
    assert depth == 8
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), "uint8").reshape(height, 1 + width * channels)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)
