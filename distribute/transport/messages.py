"""The protobuf messages of the gRPC services, declared here: no generated module, whose version checks are strict.

Each field has a number that never changes its meaning; new fields get new numbers. `PROTOCOL` (in `wire`) is the
version of what tasks say to each other beyond that.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

TASK_SERVICE = "anabranch.v1.Task"
HEALTH_SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING = 1, 2

# By package, message and field: its number and type; a list of one for a repeated field.
_MESSAGES: dict[str, dict[str, dict[str, tuple[int, Any]]]] = {
    "anabranch.v1": {
        "HelloRequest": {"protocol": (1, "uint32")},
        "HelloReply": {
            "protocol": (1, "uint32"),
            "task": (2, "string"),  # "/job:ps/task:0"
            "incarnation": (3, "fixed64"),
            "host": (4, "string"),  # of the sockets; empty: where this call was answered
            "port": (5, "uint32"),
            "devices": (6, ["string"]),
            "state": (7, "string"),  # what the task's loop does
            "turns": (8, "uint64"),  # of the loop, since it started
            "doing": (9, "string"),  # the operation that the loop is in
            "since": (10, "double"),  # for how many seconds
            "heartbeat_timeout": (11, "double"),  # seconds
        },
    },
    "grpc.health.v1": {
        "HealthCheckRequest": {"service": (1, "string")},
        "HealthCheckResponse": {"status": (1, "int32")},  # an enumeration there, which is written in the same way
    },
}


def _made() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    found: dict[str, Any] = {}
    for package, messages in _MESSAGES.items():
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for name, fields in messages.items():
            message = file.message_type.add(name=name)
            for field, (number, kind) in fields.items():
                is_repeated = isinstance(kind, list)
                (type_name,) = kind if is_repeated else (kind,)
                message.field.add(
                    name=field,
                    number=number,
                    type=getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{type_name.upper()}"),
                    label=3 if is_repeated else 1,
                )
        pool.AddSerializedFile(file.SerializeToString())
        for name in messages:
            descriptor = pool.FindMessageTypeByName(f"{package}.{name}")
            found[name] = message_factory.GetMessageClass(descriptor)
    return found


_CLASSES = _made()
HelloRequest: Any = _CLASSES["HelloRequest"]
HelloReply: Any = _CLASSES["HelloReply"]
HealthCheckRequest: Any = _CLASSES["HealthCheckRequest"]
HealthCheckResponse: Any = _CLASSES["HealthCheckResponse"]
