"""Graphs as ONNX files: loops, branches, TensorArrays, weights beside, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.onnx_runs import assert_same, run_file

import anabranch as ab

ops = ab.ops


def exported(path: Path, feeds: dict[str, Any], *outputs: Any, **options: Any) -> list[np.ndarray]:
    """The outputs of a graph by onnxruntime; `feeds` are placeholders by name and their values."""
    named = {name: tensor for name, (tensor, _) in feeds.items()}
    ab.onnx.export_graph(path, named, {f"y{k}": y for k, y in enumerate(outputs)}, **options)
    return run_file(path, {name: value for name, (_, value) in feeds.items()})


def compare(folder: Path, feeds: dict[str, Any], *outputs: Any, **options: Any) -> None:
    """Session and onnxruntime give the same."""
    wanted = ab.Session().run(list(outputs), dict(feeds.values()))
    for a, b in zip(exported(folder / "g.onnx", feeds, *outputs, **options), wanted, strict=True):
        assert_same(a, b)


def number(dtype: str = "int32") -> Any:
    return ab.placeholder((), dtype)


@pytest.mark.parametrize("trips", [0, 1, 5])
@pytest.mark.parametrize("opset", [18, 21, 25])
def test_counted_loop(trips: int, opset: int, tmp_path: Path) -> None:
    n = number()
    i, total = ab.while_loop(lambda i, t: i < n, lambda i, t: (i + 1, t + i * i), (0, 0))
    compare(tmp_path, {"n": (n, np.int32(trips))}, i, total, opset_version=opset)


@pytest.mark.parametrize("bound", [0.0, 1.0, 100.0])
def test_loop_whose_end_is_computed(bound: float, tmp_path: Path) -> None:
    x = ab.placeholder((), "float32")
    y, count = ab.while_loop(lambda y, c: y < x, lambda y, c: (y * 2.0, c + 1), (0.5, 0))
    compare(tmp_path, {"x": (x, np.float32(bound))}, y, count)


def test_loop_with_a_most_of_iterations(tmp_path: Path) -> None:
    x = ab.placeholder((), "float32")
    y = ab.while_loop(lambda y: y < x, lambda y: (y * 2.0,), (0.5,), maximum_iterations=3)[0]
    compare(tmp_path, {"x": (x, np.float32(100))}, y)


def test_loop_that_grows_its_variable(tmp_path: Path) -> None:
    n, x = number(), ab.placeholder((None, 2), "float32")

    def body(i: Any, y: Any) -> Any:
        return i + 1, ops.concatenate([y, x * ops.cast(i, "float32")])

    _, y = ab.while_loop(lambda i, y: i < n, body, (0, x))
    for trips in (0, 3):
        compare(tmp_path, {"n": (n, np.int32(trips)), "x": (x, np.ones((3, 2), "float32"))}, y)


def test_loop_in_a_loop_with_names_of_its_own(tmp_path: Path) -> None:
    import onnx

    n = number()

    def outer(i: Any, t: Any) -> Any:
        _, inner = ab.while_loop(lambda j, s: j < i, lambda j, s: (j + 1, s + j * i), (0, t))
        return i + 1, inner

    total = ab.while_loop(lambda i, t: i < n, outer, (0, 0))[1]
    compare(tmp_path, {"n": (n, np.int32(5))}, total)
    seen: list[str] = []

    def collect(graph: Any) -> None:
        seen.extend(each.name for each in [*graph.input, *graph.initializer])
        for node in graph.node:
            seen.extend(node.output)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    collect(attribute.g)

    collect(onnx.load(tmp_path / "g.onnx").graph)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("value", [3.0, -3.0])
def test_branch_with_what_it_captures(value: float, tmp_path: Path) -> None:
    x, w = ab.placeholder((None,), "float32"), ab.Variable([1.0, 2.0])
    y = ab.cond(ops.sum(x) > 0, lambda: (x * w, ops.sum(x)), lambda: (-x, 0.5))
    compare(tmp_path, {"x": (x, np.full(2, value, "float32"))}, *y)


@pytest.mark.parametrize("choice", [-1, 0, 1, 2, 7])
def test_switch_between_three(choice: int, tmp_path: Path) -> None:
    k, x = number(), ab.placeholder((2,), "float32")
    y = ab.switch(k, [lambda: x, lambda: x * 2, lambda: ops.flip(x)])
    compare(tmp_path, {"k": (k, np.int32(choice)), "x": (x, np.array([1, 2], "float32"))}, y)


def test_branch_in_a_loop_in_a_branch(tmp_path: Path) -> None:
    n = number()

    def body(i: Any, t: Any) -> Any:
        return i + 1, ab.cond(ops.equal(i % 2, 0), lambda: t + i, lambda: t * 2)

    def loop() -> Any:
        return ab.while_loop(lambda i, t: i < n, body, (0, 1))[1]

    y = ab.cond(n > 2, loop, lambda: n)
    for value in (1, 5):
        compare(tmp_path, {"n": (n, np.int32(value))}, y)


# --- TensorArrays ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_array_written_in_order_is_a_scan_output(trips: int, tmp_path: Path) -> None:
    import onnx

    x = ab.placeholder((None, None, 3), "float32")
    steps = ops.shape(x)[0]
    rows = ab.TensorArray("float32", steps).unstack(x)
    out = ab.TensorArray("float32", steps, element_shape=(None, 3))
    final = ab.while_loop(lambda i, a: i < steps, lambda i, a: (i + 1, a.write(i, rows.read(i) * 2)), (0, out))[1]
    compare(tmp_path, {"x": (x, np.random.default_rng(0).normal(size=(trips, 2, 3)).astype("float32"))}, final.stack())
    (loop,) = [node for node in onnx.load(tmp_path / "g.onnx").graph.node if node.op_type == "Loop"]
    assert len(loop.input) == 2  # nothing is carried


@pytest.mark.parametrize("opset", [18, 21])
def test_array_written_backwards_and_read(opset: int, tmp_path: Path) -> None:
    n = number()

    def body(i: Any, a: Any, last: Any) -> Any:
        value = ops.stack([ops.cast(i, "float32"), last])
        return i - 1, a.write(i, value), ops.sum(a.write(i, value).read(i))

    array = ab.TensorArray("float32", n, element_shape=(2,))
    _, final, last = ab.while_loop(lambda i, a, s: i >= 0, body, (n - 1, array, 1.0))
    compare(tmp_path, {"n": (n, np.int32(4))}, final.stack(), last)


def test_array_of_ragged_elements_is_a_sequence(tmp_path: Path) -> None:
    n = number()

    def body(i: Any, a: Any) -> Any:
        return i - 1, a.write(i, ops.arange(i + 1))

    array = ab.TensorArray("int32", n, element_shape=(None,), infer_shape=False)
    final = ab.while_loop(lambda i, a: i >= 0, body, (n - 1, array))[1]
    compare(tmp_path, {"n": (n, np.int32(4))}, final.read(2), final.read(3), final.size())


@pytest.mark.parametrize("joined", ["stack", "concat"])
def test_array_of_elements_of_any_size_written_backwards_is_joined(joined: str, tmp_path: Path) -> None:
    x = ab.placeholder((None, None, 3), "float32")
    steps = ops.shape(x)[0]
    rows = ab.TensorArray("float32", steps).unstack(x)
    out = ab.TensorArray("float32", steps, element_shape=(None, 3))
    final = ab.while_loop(lambda i, a: i >= 0, lambda i, a: (i - 1, a.write(i, rows.read(i) * 2)), (steps - 1, out))[1]
    for trips in (0, 1, 4):
        value = np.random.default_rng(0).normal(size=(trips, 2, 3)).astype("float32")
        compare(tmp_path, {"x": (x, value)}, getattr(final, joined)())


def test_array_outside_of_loops(tmp_path: Path) -> None:
    x = ab.placeholder((2, 3), "float32")
    array = ab.TensorArray("float32", 2).write(1, x[0]).write(0, x[1])
    compare(tmp_path, {"x": (x, np.arange(6, dtype="float32").reshape(2, 3))}, array.stack(), array.read(1))


def test_scan_and_map(tmp_path: Path) -> None:
    x = ab.placeholder((None, 2), "float32")
    sums = ab.scan(lambda total, row: (total + row, total * row), ops.zeros(2), x)[1]
    squares = ab.map_fn(lambda row: row * row, x)
    for rows in (1, 4):
        compare(tmp_path, {"x": (x, np.arange(2 * rows, dtype="float32").reshape(rows, 2))}, sums, squares)


# --- files ----------------------------------------------------------------------------------------------------------


def test_weights_beside_the_file(tmp_path: Path) -> None:
    x, w = ab.placeholder((None, 32), "float32"), ab.Variable(np.eye(32, k=1, dtype="float32"))
    feeds = {"x": (x, np.ones((2, 32), "float32"))}
    compare(tmp_path, feeds, x @ w, external_data=True)
    assert sorted(os.listdir(tmp_path)) == ["g.onnx", "g.onnx.data"]
    assert (tmp_path / "g.onnx").stat().st_size < 2048 < (tmp_path / "g.onnx.data").stat().st_size


def test_weights_beside_begin_with_a_page_and_small_ones_are_in_the_file(tmp_path: Path) -> None:
    import onnx

    rng = np.random.default_rng(0)
    x = ab.placeholder((None, 40), "float32")
    shapes = {"small": (40,), "medium": (40, 40), "large": (40, 50)}
    weights = {name: ab.Variable(rng.normal(size=shape), dtype="float32", name=name) for name, shape in shapes.items()}
    half = ab.Variable(rng.normal(size=(20, 50)), dtype="float16", name="half")
    y = ops.tanh((x + weights["small"]) @ weights["medium"]) @ weights["large"]
    y = y * ops.cast(half[ops.shape(x)[0]], "float32")
    feeds = {"x": (x, rng.normal(size=(2, 40)).astype("float32"))}
    compare(tmp_path, feeds, y, external_data=True)
    places = {}
    for proto in onnx.load(tmp_path / "g.onnx", load_external_data=False).graph.initializer:
        places[proto.name] = {entry.key: entry.value for entry in proto.external_data}
    assert not places["small"]
    assert all(each["location"] == "g.onnx.data" for name, each in places.items() if name != "small")
    assert int(places["large"]["offset"]) % 4096 == int(places["medium"]["offset"]) % 4096 == 0
    assert int(places["half"]["length"]) == 2000


def test_model_above_what_protobuf_takes_has_its_weights_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.framework.onnx.export.model._LARGEST_PROTO", 2000)
    model = ab.Sequential(
        [ab.Input((40,), name="x"), ab.layers.Dense(80, name="d"), ab.layers.Dense(3, dtype="bfloat16")]
    )
    model.quantize("int4", filters="^d$")
    model.export(tmp_path / "m.onnx", "onnx", verbose=False)
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data"]
    x = np.random.default_rng(0).normal(size=(4, 40)).astype("float32")
    ab.onnx.check(model, tmp_path / "m.onnx", x, rtol=1e-2)
    small = ab.Sequential([ab.Input((2,), name="x"), ab.layers.Dense(4)])
    small.export(tmp_path / "small.onnx", "onnx", verbose=False)
    assert not (tmp_path / "small.onnx.data").exists()


def test_refused_graph_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(b"before")
    x = ab.placeholder((2,), "float32")
    for external in (False, True):
        with pytest.raises(ab.onnx.OnnxError, match="Python function"):
            ab.onnx.export_graph(
                tmp_path / "g.onnx",
                {"x": x},
                {"y": ops.numpy_function(np.sin, [x], "float32")},
                external_data=external,
            )
    assert [each.name for each in tmp_path.iterdir()] == ["g.onnx"]
    assert (tmp_path / "g.onnx").read_bytes() == b"before"


def test_missing_folder(tmp_path: Path) -> None:
    x = ab.placeholder((2,), "float32")
    for external in (False, True):
        with pytest.raises(FileNotFoundError, match="there is no folder"):
            ab.onnx.export_graph(tmp_path / "none" / "g.onnx", {"x": x}, {"y": x + 1}, external_data=external)


# --- what is refused ------------------------------------------------------------------------------------------------


def _drawn(x: Any) -> Any:
    return x + ab.random.normal(ops.shape(x), seed=ab.random.SeedGenerator(1))


def _written(x: Any) -> Any:
    v = ab.Variable([0.0, 0.0])
    return v.assign(x)


def _written_in_a_branch(x: Any) -> Any:
    v = ab.Variable([0.0, 0.0])
    return ab.cond(ops.sum(x) > 0, lambda: v.assign(x) + 0.0, lambda: x)


def _python(x: Any) -> Any:
    return ops.numpy_function(np.sin, [x], "float32")


def _second_gradient_of_loops_three_deep(x: Any) -> Any:
    def nested(depth: int, limit: Any, y: Any) -> Any:
        if not depth:
            return ops.sin(y * x)
        return ab.while_loop(lambda i, y: i < limit, lambda i, y: (i + 1, nested(depth - 1, i + 1, y)), (0, y))[1]

    first = ab.gradients(ops.sum(nested(3, 2, x)), [x])[0]
    return ab.gradients(ops.sum(first * first), [x])[0]


REFUSED = {
    _drawn: "random numbers",
    _written: "writes a variable",
    _written_in_a_branch: "writes a variable",
    _python: "Python function",
    _second_gradient_of_loops_three_deep: "arrays of arrays of arrays",
}


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
def test_refusals_name_the_operation_and_the_line(build: Any, tmp_path: Path) -> None:
    x = ab.placeholder((None,), "float32")
    with pytest.raises(ab.onnx.OnnxError, match=REFUSED[build]) as caught:
        ab.onnx.export_graph(tmp_path / "g.onnx", {"x": x}, {"y": build(x)})
    assert "defined at" in str(caught.value)
    assert "test_exported_graphs.py" in str(caught.value)


def test_inputs_that_are_missing_or_no_placeholders(tmp_path: Path) -> None:
    with ab.Graph().as_default():
        x = ab.placeholder((2,), "float32", name="left")
        with pytest.raises(ab.onnx.OnnxError, match=r"placeholder 'left'.*not among the inputs"):
            ab.onnx.export_graph(tmp_path / "g.onnx", {}, {"y": x + 1})
        with pytest.raises(TypeError, match=r"expected an ab\.placeholder"):
            ab.onnx.export_graph(tmp_path / "g.onnx", {"x": x + 1}, {"y": x + 1})
        with pytest.raises(ValueError, match="no outputs"):
            ab.onnx.export_graph(tmp_path / "g.onnx", {"x": x}, {})
        with pytest.raises(ValueError, match="'x' names an input and an output"):
            ab.onnx.export_graph(tmp_path / "g.onnx", {"x": x}, {"x": x + 1})
        with pytest.raises(ab.onnx.OnnxError, match=r"Output 'y' is complex.*ops\.real and ops\.imag"):
            ab.onnx.export_graph(tmp_path / "g.onnx", {"x": x}, {"y": ops.cast(x, "complex64")})
        z = ab.placeholder((2,), "complex64")
        with pytest.raises(ab.onnx.OnnxError, match="Input 'z' can't be exported to ONNX: complex64"):
            ab.onnx.export_graph(tmp_path / "g.onnx", {"z": z}, {"y": ops.real(z)})
        given: Any = [x + 1]
        with pytest.raises(TypeError, match=r"outputs must be a dict \{name: tensor\}, got list"):
            ab.onnx.export_graph(tmp_path / "g.onnx", {"x": x}, given)
