"""The GraphDef of a machine, read back by protobuf with TensorFlow's numbers of fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch import ops, raw
from anabranch.engine.graph import Graph, TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.lower import graph_def
from anabranch.engine.lower.cluster import cluster
from anabranch.engine.lower.cut import cut
from anabranch.engine.lower.graph_def import full_device_name, to_graph_def
from anabranch.engine.lower.lowering import Lowering
from anabranch.engine.lower.nodes import Frame, Machine, Node, Value
from anabranch.engine.lower.raw import lower_raw
from anabranch.engine.passes.framework.prune import needed_operations

F = descriptor_pb2.FieldDescriptorProto
# Of TensorFlow's graph.proto, node_def.proto, attr_value.proto, tensor.proto, tensor_shape.proto and versions.proto:
# message, field, number, kind, whether it is repeated.
FIELDS = [
    ("GraphDef", "node", 1, "NodeDef", True),
    ("GraphDef", "versions", 4, "VersionDef", False),
    ("VersionDef", "producer", 1, F.TYPE_INT32, False),
    ("VersionDef", "min_consumer", 2, F.TYPE_INT32, False),
    ("NodeDef", "name", 1, F.TYPE_STRING, False),
    ("NodeDef", "op", 2, F.TYPE_STRING, False),
    ("NodeDef", "input", 3, F.TYPE_STRING, True),
    ("NodeDef", "device", 4, F.TYPE_STRING, False),
    ("NodeDef", "attr", 5, "AttrEntry", True),  # a map is a row of entries
    ("AttrEntry", "key", 1, F.TYPE_STRING, False),
    ("AttrEntry", "value", 2, "AttrValue", False),
    ("AttrValue", "list", 1, "ListValue", False),
    ("AttrValue", "s", 2, F.TYPE_BYTES, False),
    ("AttrValue", "i", 3, F.TYPE_INT64, False),
    ("AttrValue", "f", 4, F.TYPE_FLOAT, False),
    ("AttrValue", "b", 5, F.TYPE_BOOL, False),
    ("AttrValue", "type", 6, F.TYPE_INT32, False),  # an enumeration
    ("AttrValue", "shape", 7, "TensorShapeProto", False),
    ("AttrValue", "tensor", 8, "TensorProto", False),
    ("ListValue", "s", 2, F.TYPE_BYTES, True),
    ("ListValue", "shape", 7, "TensorShapeProto", True),
    ("TensorShapeProto", "dim", 2, "Dim", True),
    ("TensorShapeProto", "unknown_rank", 3, F.TYPE_BOOL, False),
    ("Dim", "size", 1, F.TYPE_INT64, False),
    ("TensorProto", "dtype", 1, F.TYPE_INT32, False),
    ("TensorProto", "tensor_shape", 2, "TensorShapeProto", False),
    ("TensorProto", "tensor_content", 4, F.TYPE_BYTES, False),
]
DTYPES = {  # of types.proto
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "string",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
}
VARIANT = 21


def message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="graph.proto", package="tensorflow", syntax="proto3")
    messages: dict[str, Any] = {}
    for owner, name, number, kind, repeated in FIELDS:
        if owner not in messages:
            messages[owner] = file.message_type.add(name=owner)
        field = messages[owner].field.add(name=name, number=number)
        field.label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
        field.type = F.TYPE_MESSAGE if isinstance(kind, str) else kind
        if isinstance(kind, str):
            field.type_name = f".tensorflow.{kind}"
        elif owner == "AttrValue":
            field.oneof_index = 0
    messages["AttrValue"].oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.GraphDef"))


GraphDef = message_class()


def parsed(machine: Machine) -> dict[str, Any]:
    """The nodes of a machine's GraphDef by name; nothing may be left that the messages have no field for."""
    data = to_graph_def(machine)
    graph = GraphDef.FromString(data)
    assert graph.SerializeToString() == data
    assert graph.versions.producer == 27
    nodes = {node.name: node for node in graph.node}
    assert len(nodes) == len(graph.node) == len(machine.nodes)
    for node in graph.node:
        assert re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9_./]*", node.name)
        assert re.fullmatch(r"_?[A-Z][A-Za-z0-9]*", node.op)
        check_inputs(node, nodes)
    return nodes


def check_inputs(node: Any, nodes: dict[str, Any]) -> None:
    """Inputs name nodes and outputs that there are, controls behind all others."""
    is_control = [text.startswith("^") for text in node.input]
    assert is_control == sorted(is_control)
    for text in node.input:
        name, _, port = text.removeprefix("^").partition(":")
        assert name in nodes
        if port:
            assert 0 < int(port) < len(attributes(nodes[name])["_output_shapes"].list.shape)


def attributes(node: Any) -> dict[str, Any]:
    return {entry.key: entry.value for entry in node.attr}


def shape_of(shape: Any) -> Any:
    return None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with Graph().as_default() as made:
        yield made


def loop_over_two_devices() -> Machine:
    x = ab.placeholder((None, 3), "float32", "x")
    i = raw.merge([raw.enter(0, "loop", parallel_iterations=4)], name="i").output
    h = raw.merge([raw.enter(x, "loop", parallel_iterations=4)], name="h").output
    going = raw.loop_cond(i < 10)
    i_on = raw.switch(i, going).output_true
    h_out, h_on = raw.switch(h, going)
    raw.next_iteration(i_on + 1, into=i)
    weights = raw.enter(np.eye(3, dtype="float32"), "loop", is_constant=True, parallel_iterations=4)
    raw.next_iteration(ops.matmul(h_on, weights), into=h)
    result = symbol_of(raw.exit(h_out))
    operations = needed_operations(result.graph, [result])
    machine = lower_raw(operations, [x], [result], lambda o: "cpu:1" if o.type == "matmul" else "cpu:0")
    cut(machine)
    return machine


# --- whole machines -------------------------------------------------------------------------------------------------


def test_a_loop_over_two_devices():
    machine = loop_over_two_devices()
    nodes = parsed(machine)
    assert nodes["x"].op == "Placeholder"
    assert shape_of(attributes(nodes["x"])["shape"].shape) == (-1, 3)
    assert attributes(nodes["x"])["dtype"].type == 1
    merge = nodes["h"]
    assert (merge.op, list(merge.input)) == ("Merge", ["enter_1", "next_iteration_1"])
    assert nodes["next_iteration_1"].op == "NextIteration"
    assert [shape_of(shape) for shape in attributes(merge)["_output_shapes"].list.shape] == [(-1, 3), ()]
    assert (attributes(merge)["N"].i, attributes(merge)["T"].type) == (2, 1)
    enter = attributes(nodes["enter_1"])
    assert (enter["frame_name"].s, enter["parallel_iterations"].i, enter["is_constant"].b) == (b"loop", 4, False)
    assert attributes(nodes["enter_2"])["is_constant"].b is True
    switch = nodes["switch_1"]
    assert (switch.op, list(switch.input)) == ("Switch", ["h", "loop_cond"])
    assert (nodes["loop_cond"].op, list(nodes["loop_cond"].input)) == ("LoopCond", ["less"])
    assert list(nodes["add"].input) == ["switch:1", "constant_2"]
    assert (nodes["add"].op, nodes["less"].op) == ("AddV2", "Less")
    assert (nodes["exit"].op, list(nodes["exit"].input)) == ("Exit", ["switch_1"])
    result = next(node for node in nodes.values() if node.op == "_Retval")
    assert (list(result.input), attributes(result)["index"].i) == (["exit"], 0)


def test_crossings():
    machine = loop_over_two_devices()
    nodes = parsed(machine)
    sends = {name: node for name, node in nodes.items() if node.op == "_Send"}
    receives = {attributes(node)["tensor_name"].s.decode(): node for node in nodes.values() if node.op == "_Recv"}
    assert set(sends) == set(receives)
    first, second = (f"/job:localhost/replica:0/task:0/device:CPU:{number}" for number in (0, 1))
    assert {node.device for node in nodes.values()} == {"", first, second}
    matmul = receives["matmul/send"]
    assert (sends["matmul/send"].device, matmul.device, list(matmul.input)) == (second, first, [])
    assert attributes(matmul)["send_device"].s.decode() == second
    assert attributes(matmul)["recv_device"].s.decode() == first
    assert attributes(matmul)["tensor_type"].type == attributes(sends["matmul/send"])["T"].type == 1
    signals = [node for name, node in receives.items() if "gate" in name]
    assert [attributes(node)["tensor_type"].type for node in signals] == [VARIANT]
    assert [text[0] for name in sends if "gate" in name for text in sends[name].input] == ["^"]


def test_controls_and_constants():
    machine = loop_over_two_devices()
    nodes = parsed(machine)
    gated = nodes["constant/gated"]
    assert list(gated.input) == ["constant", "^start"]
    constant = attributes(nodes["constant"])
    assert (constant["dtype"].type, constant["value"].tensor.dtype) == (3, 3)
    assert constant["value"].tensor.tensor_content == np.int32(0).tobytes()
    matrix = next(
        attributes(n)["value"].tensor
        for n in nodes.values()
        if n.op == "Const" and "eye" not in n.name and len(attributes(n)["value"].tensor.tensor_shape.dim) == 2
    )
    assert shape_of(matrix.tensor_shape) == (3, 3)
    assert matrix.tensor_content == np.eye(3, dtype="float32").tobytes()


@pytest.mark.parametrize("joined", [False, True])
def test_structured_loops(joined: bool):
    """A loop and its gradient, lowered whole: every kind of node has a NodeDef that can be read."""
    n, x = ab.placeholder((), "int32", "n"), ab.placeholder((3,), "float32", "x")
    _, h = ab.while_loop(lambda i, _: i < n, lambda i, h: (i + 1, ops.tanh(h) * x), (0, x), name="loop")
    fetches = [h, ab.gradients(h, [x])[0]]
    lowering = Lowering(lambda o: "cpu:1" if o.type == "tanh" else "cpu:0", lambda _: True, "cpu:0")
    machine = lowering.run(needed_operations(h.graph, fetches, [n, x]), [n, x], fetches)
    if joined:
        cluster(machine)
    cut(machine)
    nodes = parsed(machine)
    found = {node.op for node in nodes.values()}
    assert {"Collect", "Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Record", "Switch", "Trips"} <= found
    assert ("Cluster" in found) == joined
    collected = attributes(next(node for node in nodes.values() if node.op == "Collect"))
    assert collected["T"].type == VARIANT
    assert {attributes(node)["frame_name"].s for node in nodes.values() if node.op == "Enter"} == {
        frame.name.encode() for frame in machine.frames if frame.name
    }


# --- single nodes ---------------------------------------------------------------------------------------------------


def machine_of(*nodes: Node) -> Machine:
    machine = Machine()
    for node in nodes:
        machine.add(node)
    return machine


@pytest.mark.parametrize(("number", "name"), DTYPES.items(), ids=DTYPES.values())
def test_dtypes(number: int, name: str):
    spec = ab.placeholder((), name).spec
    node = Node("feed", "x", "cpu:0", Frame("", None), (), [spec])
    assert attributes(parsed(machine_of(node))["x"])["dtype"].type == number


@pytest.mark.parametrize("shape", [None, (), (0,), (2, None, 3), (1 << 40,)])
def test_shapes(shape: Any):
    node = Node("identity", "x", "cpu:0", Frame("", None), (), [TensorSpec(shape, np.dtype("float32")), None])
    first, second = attributes(parsed(machine_of(node))["x"])["_output_shapes"].list.shape
    assert shape_of(first) == (None if shape is None else tuple(-1 if dim is None else dim for dim in shape))
    assert second.unknown_rank


@pytest.mark.parametrize(
    "value",
    [np.float64(-2.5), np.arange(6, dtype="int16").reshape(2, 3), np.zeros((0, 2), "bool"), np.arange(64.0)],
    ids=["scalar", "matrix", "empty", "largest"],
)
def test_constants_are_written_out(value: Any):
    tensor = constant_of(value)
    assert DTYPES[tensor.dtype] == value.dtype.name
    read = np.frombuffer(tensor.tensor_content, value.dtype).reshape(shape_of(tensor.tensor_shape))
    np.testing.assert_array_equal(read, value)


@pytest.mark.parametrize("value", [np.zeros((65,)), np.array(["a", "bc"], np.dtypes.StringDType())])
def test_large_constants_and_text_are_described(value: Any):
    tensor = constant_of(value)
    assert (tensor.tensor_content, shape_of(tensor.tensor_shape)) == (b"", value.shape)


def constant_of(value: Any) -> Any:
    operation = symbol_of(ops.convert_to_tensor(value)).operation
    node = Node("const", "c", None, Frame("", None), (), [operation.outputs[0].spec], [operation])
    return attributes(parsed(machine_of(node))["c"])["value"].tensor


def test_clusters_and_attributes():
    x = ab.placeholder((3,), "float32", "x")
    y = ops.sum(ops.tanh(x), axis=-1, keepdims=True)
    root = Frame("", None)
    spec = [y.spec]
    together = Node(
        "op", "both", "cpu:0", root, (), spec, [symbol_of(y).operation.inputs[0].operation, symbol_of(y).operation]
    )
    alone = Node("op", "alone", "cpu:0", root, [Value(together)], spec, [symbol_of(y).operation])
    nodes = parsed(machine_of(together, alone))
    assert nodes["both"].op == "Cluster"
    assert list(attributes(nodes["both"])["operations"].list.s) == [b"tanh = tanh", b"sum = sum"]
    assert nodes["alone"].op == "Sum"
    assert attributes(nodes["alone"])["keepdims"].b is True
    assert b"test_lower_graph_def.py:" in attributes(nodes["alone"])["_defined_at"].s


def test_names_are_valid_and_differ():
    root = Frame("", None)
    names = ["a", "a", "A", "_hidden", "with space", "with-space", "größe", "", "/lead/", "a/op"]
    parsed_names = list(parsed(machine_of(*[Node("identity", name, "cpu:0", root) for name in names])))
    assert len({name.lower() for name in parsed_names}) == len(names)  # `parsed` checks the form


def test_numbers_that_no_field_holds():
    write: Callable[[Any], bytes] = graph_def._plain_attribute  # pyright: ignore[reportPrivateUsage]
    assert write(1 << 70) == write(str(1 << 70))
    assert write(1e300) == write(float(np.finfo(np.float32).max))
    assert write(True) != write(1) != write(1.0)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=200))
def test_the_wire_format(number: int, data: bytes):
    value = graph_def._integer(3, number) + b""  # pyright: ignore[reportPrivateUsage]
    text = graph_def._bytes(2, data)  # pyright: ignore[reportPrivateUsage]
    AttrValue = type(GraphDef().node.add().attr.add().value)
    assert AttrValue.FromString(value).i == number
    assert AttrValue.FromString(text).s == data
    assert AttrValue(i=number).SerializeToString() == value
    assert AttrValue(s=data).SerializeToString() == text


def test_device_names():
    assert full_device_name("/job:worker/task:3/device:GPU:1") == "/job:worker/replica:0/task:3/device:GPU:1"
    assert full_device_name("sim:2") == "/job:localhost/replica:0/task:0/device:SIM:2"
