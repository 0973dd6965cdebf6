"""A lowered step as a TensorFlow GraphDef, which TensorBoard's page of graphs and Netron open.

The file is in the wire format of protocol buffers: a message is a row of fields, each a number with a kind, then the
value. Numbers of fields are those of TensorFlow's `graph.proto`, `node_def.proto`, `attr_value.proto`, `tensor.proto`,
`tensor_shape.proto`, `types.proto` and `versions.proto`. Names of ops are TensorFlow's where an op of ours is the same;
others are named like ours, so that the file is for looking at and not for running.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..common.dtypes import name_of
from ..common.nest import is_integer
from ..graph.device import DeviceName
from ..graph.op import is_array
from ..graph.spec import Shape, Spec, TensorSpec
from ..ops.base import is_numpy
from ..place.devices import LOCAL
from ..summaries.wire_format import bytes_field as _bytes
from ..summaries.wire_format import float_field as _float
from ..summaries.wire_format import integer_field as _integer
from .nodes import CONTROL, Machine, Node, Value
from .show import in_order, is_back_edge, node_names

_PRODUCER = 27  # the version of the format; later ones changed nothing that is used here
_MOST_ELEMENTS = 64  # of a constant that is written out

# The primitives by kind, and ops of ours that are TensorFlow's under another name. Others are CamelCased.
_PRIMITIVES = {
    "const": "Const",
    "enter": "Enter",
    "exit": "Exit",
    "feed": "Placeholder",
    "fetch": "_Retval",
    "identity": "Identity",
    "loop_cond": "LoopCond",
    "merge": "Merge",
    "next_iteration": "NextIteration",
    "no_op": "NoOp",
    "recv": "_Recv",
    "send": "_Send",
    "switch": "Switch",
    "switch_n": "_SwitchN",
}
_OPS = {
    "absolute": "Abs",
    "add": "AddV2",
    "all_true": "All",
    "any_true": "Any",
    "arccos": "Acos",
    "arccosh": "Acosh",
    "arcsin": "Asin",
    "arcsinh": "Asinh",
    "arctan": "Atan",
    "arctan2": "Atan2",
    "arctanh": "Atanh",
    "assign": "AssignVariableOp",
    "batch_matmul": "BatchMatMulV2",
    "bitwise_not": "Invert",
    "concatenate": "ConcatV2",
    "conjugate": "Conj",
    "constant": "Const",
    "cum_prod": "Cumprod",
    "cum_sum": "Cumsum",
    "determinant": "MatrixDeterminant",
    "divide": "RealDiv",
    "flip": "ReverseV2",
    "floor_divide": "FloorDiv",
    "imaginary_part": "Imag",
    "inverse": "MatrixInverse",
    "isfinite": "IsFinite",
    "isinf": "IsInf",
    "isnan": "IsNan",
    "matmul": "MatMul",
    "mod": "FloorMod",
    "multiply": "Mul",
    "negative": "Neg",
    "power": "Pow",
    "read_variable": "ReadVariableOp",
    "real_part": "Real",
    "shape_of": "Shape",
    "size_of": "Size",
    "stack": "Pack",
    "subtract": "Sub",
    "unstack": "Unpack",
    "where": "SelectV2",
}
_DTYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "string": 7,
    "complex64": 8,
    "int64": 9,
    "bool": 10,
    "bfloat16": 14,
    "uint16": 17,
    "complex128": 18,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}
_VARIANT = 21  # what holds no tensor: arrays, histories, signals


# --- the wire format ------------------------------------------------------------------------------------------------


# --- attributes -----------------------------------------------------------------------------------------------------


def _shape(shape: Shape) -> bytes:
    """Return a TensorShapeProto; -1 is an unknown dimension."""
    if shape is None:
        return _integer(3, 1)
    sizes = [-1 if dim is None else dim for dim in shape]
    return b"".join(_bytes(2, _integer(1, size) if size else b"") for size in sizes)  # 0 is what is left out


def _type(spec: Spec | None) -> int:
    return _DTYPES.get(name_of(spec.dtype), _VARIANT) if isinstance(spec, TensorSpec) else _VARIANT


def _text_attribute(text: str) -> bytes:
    return _bytes(2, text)


def _type_attribute(spec: Spec | None) -> bytes:
    return _integer(6, _type(spec))


def _shapes_attribute(specs: Iterable[Spec | None]) -> bytes:
    shapes = [spec.shape if isinstance(spec, TensorSpec) else None for spec in specs]
    return _bytes(1, b"".join(_bytes(7, _shape(shape)) for shape in shapes))


def _tensor_attribute(value: Any) -> bytes:
    """Return a TensorProto. Of large constants and of text it says the type and the shape alone."""
    array = np.asarray(value)
    header = _integer(1, _DTYPES.get(name_of(array.dtype), _VARIANT)) + _bytes(2, _shape(array.shape))
    if array.dtype.kind in "TO" or not 0 < array.size <= _MOST_ELEMENTS:
        return _bytes(8, header)
    return _bytes(8, header + _bytes(4, np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()))


def _plain_attribute(value: Any) -> bytes:
    """Return an attribute of one of our ops: numbers and booleans as they are, anything else as text."""
    if isinstance(value, bool):
        return _integer(5, int(value))
    if is_integer(value):
        return _integer(3, int(value)) if -(1 << 63) <= value < 1 << 63 else _text_attribute(str(value))
    if isinstance(value, float):
        return _float(4, _narrow(value))
    return _text_attribute(f"{value.size} elements" if is_array(value) and value.size > _MOST_ELEMENTS else str(value))


def _narrow(value: float) -> float:
    """Return `value` in the range of 32 bits."""
    largest = float(np.finfo(np.float32).max)
    return value if not np.isfinite(value) else min(max(value, -largest), largest)


# --- nodes ----------------------------------------------------------------------------------------------------------


def to_graph_def(machine: Machine) -> bytes:
    """Return a machine as a serialised GraphDef: write it to a file that ends in ``.pb``.

    Frames are attributes of Enter (`frame_name`, `parallel_iterations`), as in TensorFlow; loops go back by what Merge
    takes from NextIteration. A cluster is a node that lists its operations.
    """
    names = _valid_names(machine)
    results = {node: _integer(3, number) for number, node in enumerate(machine.fetches)}
    nodes = b"".join(_bytes(1, _node(node, names, results.get(node))) for node in in_order(machine))
    return nodes + _bytes(4, _integer(1, _PRODUCER))


def _valid_names(machine: Machine) -> dict[Node, str]:
    """Return names of the form that TensorFlow takes, each once; upper and lower case are not distinguished."""
    taken: set[str] = set()
    found: dict[Node, str] = {}
    for node, name in node_names(machine).items():
        wanted = re.sub(r"[^A-Za-z0-9_./]", "_", name).strip("/")
        wanted = wanted if re.match(r"[A-Za-z0-9.]", wanted) else f"node{wanted}"
        candidate, number = wanted, 0
        while candidate.lower() in taken:
            number += 1
            candidate = f"{wanted}_{number}"
        taken.add(candidate.lower())
        found[node] = candidate
    return found


def _node(node: Node, names: Mapping[Node, str], index: bytes | None) -> bytes:
    """Return a NodeDef; `index` says which of the results it is."""
    fields = [_bytes(1, names[node]), _bytes(2, _op_name(node))]
    data = [value for value in node.inputs if value.port != CONTROL]
    data.sort(key=lambda value: is_back_edge(node, value))
    controls = [value for value in node.inputs if value.port == CONTROL] + node.controls
    fields += [_bytes(3, _input(value, names)) for value in data]
    fields += [_bytes(3, f"^{name}") for name in dict.fromkeys(names[value.node] for value in controls)]
    if node.device is not None:
        fields.append(_bytes(4, full_device_name(node.device)))
    attributes = _attributes(node, names) | ({} if index is None else {"index": index})
    fields += [_bytes(5, _bytes(1, name) + _bytes(2, value)) for name, value in sorted(attributes.items())]
    return b"".join(fields)


def _input(value: Value, names: Mapping[Node, str]) -> str:
    return f"{names[value.node]}:{value.port}" if value.port else names[value.node]


def _op_name(node: Node) -> str:
    if node.kind in _PRIMITIVES:
        return _PRIMITIVES[node.kind]
    if node.kind != "op":
        return _camel_case(node.kind)
    if len(node.operations) != 1:
        return "Cluster"
    kind = node.operations[0].type
    return _OPS.get(kind) or _camel_case(kind)


def _camel_case(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) or "Op"


def full_device_name(device: str) -> str:
    """Return a device's name with job, replica and task, as TensorFlow writes it.

    >>> full_device_name("cpu:1")
    '/job:localhost/replica:0/task:0/device:CPU:1'
    """
    name = LOCAL.merged(DeviceName.parse(device))
    return f"/job:{name.job}/replica:0/task:{name.task}/device:{name.kind}:{name.number or 0}"


def _attributes(node: Node, names: Mapping[Node, str]) -> dict[str, bytes]:
    """Return the AttrValues of a node, by name."""
    found: dict[str, bytes] = {}
    spec = _spec_with_type(node)
    if node.kind == "op":
        found.update(_attributes_of_operations(node))
    elif node.kind in ("const", "feed"):
        found["dtype"] = _type_attribute(spec)
    elif node.kind not in ("no_op", "recv"):
        found["T"] = _type_attribute(spec)
    if node.kind == "const" and node.operations:
        value = getattr(node.operations[0].op, "value", None)
        found["value"] = _tensor_attribute(value) if is_numpy(value) else _text_attribute(str(value))
    if node.kind == "feed" and isinstance(spec, TensorSpec):
        found["shape"] = _bytes(7, _shape(spec.shape))
    if node.kind == "enter":
        found["frame_name"] = _text_attribute(node.frame.name)
        found["is_constant"] = _integer(5, int(node.is_constant))
        found["parallel_iterations"] = _integer(3, node.frame.parallel_iterations)
    if node.kind == "merge":
        found["N"] = _integer(3, len(node.inputs))
    if node.kind == "switch_n":
        found["num_outs"] = _integer(3, len(node.specs))
    if node.peer is not None:
        found.update(_attributes_of_crossing(node, node.peer, names))
    if node.frame.name:
        found["_frame"] = _text_attribute(node.frame.name)
    if node.specs:
        found["_output_shapes"] = _shapes_attribute(node.specs)
    return found


def _spec_with_type(node: Node) -> Spec | None:
    """Return the spec that gives the type of a node: of its output, or of an input."""
    if node.specs:
        return node.specs[0]
    value = next((value for value in node.inputs if value.port != CONTROL), None)
    return None if value is None else value.node.specs[value.port]


def _attributes_of_operations(node: Node) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    if node.specs:
        found["T"] = _type_attribute(node.specs[0])
    if len(node.operations) != 1:
        listed = [_bytes(2, f"{operation.name} = {operation.type}") for operation in node.operations]
        return found | {"operations": _bytes(1, b"".join(listed))}
    (operation,) = node.operations
    found.update({name: _plain_attribute(value) for name, value in operation.op.attributes().items()})
    if operation.location is not None:
        found["_defined_at"] = _text_attribute(str(operation.location))
    return found


def _attributes_of_crossing(node: Node, peer: Node, names: Mapping[Node, str]) -> dict[str, bytes]:
    send, receive = (node, peer) if node.kind == "send" else (peer, node)
    return {
        "T" if node is send else "tensor_type": _type_attribute(receive.specs[0] if receive.specs else None),
        "tensor_name": _text_attribute(names[send]),
        "send_device": _text_attribute(full_device_name(str(send.device))),
        "recv_device": _text_attribute(full_device_name(str(receive.device))),
        "send_device_incarnation": _integer(3, 0),
        "client_terminated": _integer(5, 0),
    }


__all__ = ["full_device_name", "to_graph_def"]
