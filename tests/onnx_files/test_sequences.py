"""Sequences that loops make, whose trips are known at run time only: imported, and exported from TensorArrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is an optional dependency")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is an optional dependency")

from onnx import TensorProto, helper  # noqa: E402

import anabranch as ab  # noqa: E402

FLOAT, LONG, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def constant(name: str, value: Any) -> Any:
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(value)))


def looping(appended: Sequence[Any], behind: Sequence[Any], first: Sequence[Any] = ()) -> bytes:
    """Return a model of ``x`` and a number of trips: a loop that carries a sequence, and what is done with it.

    Args:
        appended: nodes of the body, from "x", "i" and "before" to "after".
        behind: nodes from "made" to "y".
        first: nodes that give the sequence "begun"; by default it is empty.
    """
    sequence = helper.make_tensor_sequence_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"]), *appended],
        "body",
        [
            helper.make_tensor_value_info("i", LONG, []),
            helper.make_tensor_value_info("go", BOOL, []),
            sequence("before", FLOAT, None),
        ],
        [helper.make_tensor_value_info("goes", BOOL, []), sequence("after", FLOAT, None)],
    )
    graph = helper.make_graph(
        [
            *(first or [helper.make_node("SequenceEmpty", [], ["begun"], dtype=FLOAT)]),
            constant("one", np.array(1, "int64")),
            constant("last", np.array(-1, "int64")),
            constant("axes", np.array([0], "int64")),
            helper.make_node("Loop", ["trips", "", "begun"], ["made"], body=body),
            *behind,
        ],
        "graph",
        [
            helper.make_tensor_value_info("x", FLOAT, [None, None]),
            helper.make_tensor_value_info("trips", LONG, []),
        ],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model.SerializeToString()


PART = [
    helper.make_node("Add", ["i", "one"], ["next"]),
    helper.make_node("Unsqueeze", ["next", "axes"], ["stop"]),
    helper.make_node("Slice", ["x", "axes", "stop"], ["part"]),
]
SCALED = [helper.make_node("Cast", ["i"], ["factor"], to=FLOAT), helper.make_node("Mul", ["x", "factor"], ["scaled"])]
CONCATENATED = [helper.make_node("ConcatFromSequence", ["made"], ["y"], axis=0)]
STACKED = [helper.make_node("ConcatFromSequence", ["made"], ["y"], axis=0, new_axis=1)]
BEGUN = [helper.make_node("SequenceConstruct", ["x", "x"], ["begun"])]
WRITTEN_OVER = [
    *SCALED,
    helper.make_node("SequenceErase", ["before", "one"], ["fewer"]),
    helper.make_node("SequenceInsert", ["fewer", "scaled", "one"], ["after"]),
]


def written_where(comparison: str) -> list[Any]:
    """Return nodes that write "scaled" at position "i", without what is there where the comparison holds."""
    sequence = helper.make_tensor_sequence_value_info
    erased = helper.make_node("SequenceErase", ["before", "i"], ["fewer"])
    branches: dict[str, Any] = {
        "then_branch": helper.make_graph([erased], "then", [], [sequence("fewer", FLOAT, None)]),
        "else_branch": helper.make_graph(
            [helper.make_node("Identity", ["before"], ["same"])], "else", [], [sequence("same", FLOAT, None)]
        ),
    }
    return [
        helper.make_node("SequenceLength", ["before"], ["count"]),
        helper.make_node(comparison, ["i", "count"], ["is_there"]),
        helper.make_node("If", ["is_there"], ["left"], **branches),
        helper.make_node("SequenceInsert", ["left", "scaled", "i"], ["after"]),
    ]


CASES = {
    "parts": looping([*PART, helper.make_node("SequenceInsert", ["before", "part"], ["after"])], CONCATENATED),
    "rows": looping([*SCALED, helper.make_node("SequenceInsert", ["before", "scaled"], ["after"])], STACKED),
    "begun": looping([*SCALED, helper.make_node("SequenceInsert", ["before", "scaled"], ["after"])], STACKED, BEGUN),
    "last": looping(
        [*PART, helper.make_node("SequenceInsert", ["before", "part"], ["after"])],
        [helper.make_node("SequenceAt", ["made", "last"], ["y"])],
    ),
    "length": looping(
        [*PART, helper.make_node("SequenceInsert", ["before", "part"], ["after"])],
        [helper.make_node("SequenceLength", ["made"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=FLOAT)],
    ),
    "written over": looping(WRITTEN_OVER, STACKED, BEGUN),
    "written over or appended": looping([*SCALED, *written_where("Less")], STACKED, BEGUN),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("trips", [1, 3])
def test_sequences_of_loops_are_those_of_onnxruntime(name: str, trips: int) -> None:
    layer = ab.onnx.load(CASES[name])
    x = np.arange(12, dtype="float32").reshape(4, 3)
    given = {"x": x, "trips": np.array(trips, "int64")}
    (expected,) = onnxruntime.InferenceSession(CASES[name]).run(None, given)
    found = ab.function(lambda x, trips: layer({"x": x, "trips": trips}))(x, given["trips"])
    np.testing.assert_array_equal(np.asarray(found), expected)
    np.testing.assert_array_equal(np.asarray(layer(given)), expected)


@pytest.mark.parametrize("name", ["begun", "length"])
def test_no_trips(name: str) -> None:
    layer = ab.onnx.load(CASES[name])
    given = {"x": np.ones((2, 3), "float32"), "trips": np.array(0, "int64")}
    (expected,) = onnxruntime.InferenceSession(CASES[name]).run(None, given)
    found = ab.function(lambda x, trips: layer({"x": x, "trips": trips}))(given["x"], given["trips"])
    np.testing.assert_array_equal(np.asarray(found), expected)


INSERT = helper.make_node("SequenceInsert", ["before", "x"], ["after"])
REFUSED = {
    "SequenceErase": looping([helper.make_node("SequenceErase", ["before"], ["after"])], STACKED, BEGUN),
    "SequenceInsert": looping([helper.make_node("SequenceInsert", ["before", "x", "axes"], ["after"])], STACKED),
    "takes tensors out": looping([helper.make_node("SequenceErase", ["before", "one"], ["after"])], STACKED, BEGUN),
    "along axis 1": looping([INSERT], [helper.make_node("ConcatFromSequence", ["made"], ["y"], axis=1)]),
    "branches give different sequences": looping([*SCALED, *written_where("Greater")], STACKED, BEGUN),
    "SequenceErase of a sequence": looping(
        [
            helper.make_node("SequenceErase", ["before", "one"], ["fewer"]),
            helper.make_node("SequenceErase", ["fewer", "one"], ["after"]),
        ],
        STACKED,
        BEGUN,
    ),
}


@pytest.mark.parametrize("match", REFUSED)
def test_what_needs_the_length_when_it_is_built_is_refused_by_name(match: str) -> None:
    layer = ab.onnx.load(REFUSED[match])
    with pytest.raises(ab.onnx.OnnxError, match=match):
        ab.function(lambda x, trips: layer({"x": x, "trips": trips}))(np.ones((2, 3), "float32"), np.array(2, "int64"))


@pytest.mark.parametrize("element_shape", [None, (None,)])
@pytest.mark.parametrize("is_ragged", [False, True])
def test_arrays_whose_elements_differ_from_the_loop_on(element_shape: Any, is_ragged: bool, tmp_path: Path) -> None:
    """The element that is written before the loop has a shape of its own."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None,), "int32", name="x")
        array = ab.TensorArray("int32", 0, dynamic_size=True, element_shape=element_shape, infer_shape=False)

        def step(i: Any, written: Any) -> Any:
            return i + 1, written.write(i, x[:i] if is_ragged else x)

        y = ab.while_loop(lambda i, _: i < 3, step, (1, array.write(0, ab.constant([1]))))[1].concat()
    ab.onnx.export_graph(tmp_path / "m.onnx", inputs={"x": x}, outputs={"y": y})
    given = np.arange(5, dtype="int32")
    (found,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": given})
    np.testing.assert_array_equal(found, ab.Session(graph).run(y, {x: given}))
