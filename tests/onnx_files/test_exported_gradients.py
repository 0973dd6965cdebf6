"""Gradients of loops and branches as ONNX files: onnxruntime and a session give the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.onnx_models import LENGTHS, RECURRENT
from shared.onnx_runs import assert_same, run_file

import anabranch as ab

ops = ab.ops


def compare(folder: Path, feeds: list[dict[Any, Any]], outputs: list[Any], **options: Any) -> None:
    """One file gives what a session gives, for each of several feeds by placeholder."""
    named = {f"x{k}": tensor for k, tensor in enumerate(feeds[0])}
    path = folder / "g.onnx"
    ab.onnx.export_graph(path, named, {f"y{k}": y for k, y in enumerate(outputs)}, **options)
    for feed in feeds:
        found = run_file(path, {f"x{k}": value for k, value in enumerate(feed.values())})
        for a, b in zip(found, ab.Session().run(outputs, feed), strict=True):
            assert_same(a, b)


def dense(gradient: Any) -> Any:
    return gradient.to_dense() if isinstance(gradient, ab.IndexedSlices) else gradient


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@pytest.mark.parametrize("size", [None, 3])
def test_gradient_of_a_loop(size: int | None, tmp_path: Path) -> None:
    n, x, w = ab.placeholder((), "int32"), ab.placeholder((size, 2), "float32"), ab.placeholder((2, 2), "float32")
    y = ab.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, ops.tanh(y @ w)), (0, x))[1]
    outputs = [y, *ab.gradients(ops.sum(y * y), [x, w])]
    compare(tmp_path, [{n: np.int32(k), x: floats(3, 2), w: floats(2, 2)} for k in (0, 1, 4)], outputs)


def test_gradient_of_a_loop_whose_end_is_computed(tmp_path: Path) -> None:
    x = ab.placeholder((), "float32")
    y = ab.while_loop(lambda y: y < 9.0, lambda y: (y * y + 1.0,), (x,))[0]
    compare(tmp_path, [{x: np.float32(k)} for k in (20, 1.5, 0.1)], [y, *ab.gradients(y, [x])])


def test_gradient_of_a_loop_that_grows_its_variable(tmp_path: Path) -> None:
    n, x = ab.placeholder((), "int32"), ab.placeholder((None, 2), "float32")

    def body(i: Any, y: Any) -> Any:
        return i + 1, ops.concatenate([y * y, ops.sin(y)])

    y = ab.while_loop(lambda i, y: i < n, body, (0, x))[1]
    compare(tmp_path, [{n: np.int32(k), x: floats(3, 2)} for k in (0, 3)], [*ab.gradients(ops.sum(y), [x])])


def test_second_order_gradient_of_a_loop(tmp_path: Path) -> None:
    n, x, w = ab.placeholder((), "int32"), ab.placeholder((None, 2), "float32"), ab.placeholder((2, 2), "float32")
    y = ab.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, ops.tanh(y @ w)), (0, x))[1]
    (first,) = ab.gradients(ops.sum(y * y), [w])
    outputs = [first, *ab.gradients(ops.sum(first * first), [x, w])]
    compare(tmp_path, [{n: np.int32(k), x: floats(3, 2), w: floats(2, 2)} for k in (0, 1, 3)], outputs)


@pytest.mark.parametrize("size", [None, 2])
def test_gradient_of_a_loop_in_a_loop(size: int | None, tmp_path: Path) -> None:
    n, x = ab.placeholder((), "int32"), ab.placeholder((size,), "float32")

    def outer(i: Any, y: Any) -> Any:
        return i + 1, ab.while_loop(lambda j, s: j < i, lambda j, s: (j + 1, ops.sin(s * x)), (0, y))[1]

    y = ab.while_loop(lambda i, y: i < n, outer, (0, x))[1]
    compare(tmp_path, [{n: np.int32(k), x: floats(2)} for k in (0, 1, 4)], [*ab.gradients(ops.sum(y), [x])])


@pytest.mark.parametrize("size", [None, 2])
def test_gradient_of_a_branch(size: int | None, tmp_path: Path) -> None:
    x, w = ab.placeholder((size,), "float32"), ab.placeholder((2,), "float32")
    y = ab.cond(ops.sum(x) > 0, lambda: ops.sum(ops.exp(x * w)), lambda: ops.sum(ops.sin(x)))
    (first, d_w) = ab.gradients(y, [x, w])
    outputs = [y, first, d_w, *ab.gradients(ops.sum(first * first), [x])]
    feeds = [{x: np.full(2, k, "float32"), w: floats(2)} for k in (1, -1)]
    compare(tmp_path, feeds, outputs)


def test_gradient_of_a_switch(tmp_path: Path) -> None:
    k, x = ab.placeholder((), "int32"), ab.placeholder((2,), "float32")
    y = ab.switch(k, [lambda: ops.sin(x), lambda: ops.exp(x) * 2.0, lambda: ops.tanh(ops.cos(x))])
    compare(tmp_path, [{k: np.int32(c), x: floats(2)} for c in (0, 1, 2)], [*ab.gradients(ops.sum(y), [x])])


@pytest.mark.parametrize("size", [None, 2])
def test_gradient_of_a_branch_in_a_loop_in_a_branch(size: int | None, tmp_path: Path) -> None:
    n, x = ab.placeholder((), "int32"), ab.placeholder((size,), "float32")

    def body(i: Any, y: Any) -> Any:
        return i + 1, ab.cond(ops.equal(i % 2, 0), lambda: ops.sin(y) * x, lambda: ops.exp(-y))

    def loop() -> Any:
        return ab.while_loop(lambda i, y: i < n, body, (0, x))[1]

    y = ab.cond(n > 2, loop, lambda: x * x)
    compare(tmp_path, [{n: np.int32(k), x: floats(2)} for k in (1, 5)], [*ab.gradients(ops.sum(y), [x])])


@pytest.mark.parametrize("batch", [None, 2])
def test_gradient_of_a_loop_over_rows(batch: int | None, tmp_path: Path) -> None:
    x, w = ab.placeholder((None, batch, 3), "float32"), ab.placeholder((3,), "float32")
    steps = ops.shape(x)[0]
    rows = ab.TensorArray("float32", steps).unstack(x)
    out = ab.TensorArray("float32", steps, element_shape=(batch, 3))
    final = ab.while_loop(
        lambda i, a, s: i < steps,
        lambda i, a, s: (i + 1, a.write(i, ops.tanh(rows.read(i) * w + s)), s + rows.read(i)),
        (0, out, ops.sum(x[:0], axis=0)),
    )[1]
    y = final.stack()
    compare(
        tmp_path, [{x: floats(k, 2, 3), w: floats(3)} for k in (0, 1, 4)], [y, *ab.gradients(ops.sum(y * y), [x, w])]
    )


def test_gradient_of_an_array_read_out_of_order(tmp_path: Path) -> None:
    x = ab.placeholder((4, None), "float32")
    array = ab.TensorArray("float32", 4).unstack(x)

    def body(i: Any, y: Any, a: Any) -> Any:
        value = a.read((i * 3) % 4)
        return i + 1, y + value * value, a.write(i, value * y)

    _, y, last = ab.while_loop(lambda i, *_: i < 3, body, (0, x[0], array))
    z = ops.sum(y * y) + ops.sum(last.read(2) ** 3)
    compare(tmp_path, [{x: floats(4, 2)}], [z, *ab.gradients(z, [x])])


def test_gradient_of_ragged_elements(tmp_path: Path) -> None:
    n, x = ab.placeholder((), "int32"), ab.placeholder((None,), "float32")

    def body(i: Any, a: Any) -> Any:
        return i + 1, a.write(i, x[: i + 1] ** 2)

    array = ab.TensorArray("float32", n, element_shape=(None,), infer_shape=False)
    y = ab.while_loop(lambda i, a: i < n, body, (0, array))[1].concat()
    compare(tmp_path, [{n: np.int32(k), x: floats(4)} for k in (1, 3)], [y, *ab.gradients(ops.sum(y * y), [x])])


def test_gradient_of_rows_of_a_table_in_a_loop(tmp_path: Path) -> None:
    table, tokens = ab.placeholder((5, 2), "float32"), ab.placeholder((None, None), "int32")
    steps = ops.shape(tokens)[0]
    y = ab.while_loop(
        lambda i, y: i < steps,
        lambda i, y: (i + 1, ops.tanh(y + ops.sum(ops.take(table, tokens[i], axis=0), axis=0))),
        (0, ops.zeros(2)),
    )[1]
    feeds = [
        {table: floats(5, 2), tokens: np.array(k, "int32").reshape(-1, 2)} for k in ([[1, 3], [3, 0]], [[2, 2]], [])
    ]
    compare(tmp_path, feeds, [y, *ab.gradients(ops.sum(y), [table])])


class SelfAttention(ab.layers.Layer):
    """Attention of a sequence to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = ab.layers.MultiHeadAttention(2, 3)

    def call(self, x: Any) -> Any:
        return self.attention(x, x, use_causal_mask=True)


LAYERS = {
    "LSTM": (lambda: [ab.layers.LSTM(4)], (None, None, 3), [(2, 5, 3), (1, 1, 3), (2, 0, 3)]),
    "GRU": (lambda: [ab.layers.GRU(4, return_sequences=True)], (None, None, 3), [(2, 5, 3), (2, 0, 3)]),
    "GRU of known sizes": (lambda: [ab.layers.GRU(4)], (2, 5, 3), [(2, 5, 3)]),
    "SimpleRNN": (lambda: [ab.layers.SimpleRNN(4)], (None, None, 3), [(2, 5, 3)]),
    "Bidirectional": (lambda: [ab.layers.Bidirectional(ab.layers.LSTM(3))], (None, None, 3), [(2, 5, 3)]),
    "masked": (lambda: [ab.layers.Masking(9.0), ab.layers.LSTM(3)], (None, None, 3), [(2, 5, 3)]),
    "dense": (
        lambda: [ab.layers.Dense(4, "gelu"), ab.layers.LayerNormalization(), ab.layers.Dense(2, "softmax")],
        (None, 3),
        [(4, 3)],
    ),
    "convolution": (
        lambda: [ab.layers.Conv2D(4, 3, padding="same", strides=2), ab.layers.MaxPooling2D(2), ab.layers.Flatten()],
        (None, 9, 8, 3),
        [(2, 9, 8, 3), (1, 9, 8, 3)],
    ),
    "convolution of any image": (
        lambda: [
            ab.layers.Conv2D(4, 3, padding="same", strides=2),
            ab.layers.AveragePooling2D(2, padding="same"),
            ab.layers.GlobalMaxPooling2D(),
        ],
        (None, None, None, 3),
        [(2, 9, 8, 3), (1, 8, 7, 3)],
    ),
    "depthwise": (
        lambda: [ab.layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same")],
        (None, 8, 8, 3),
        [(2, 8, 8, 3)],
    ),
    "transposed": (
        lambda: [
            ab.layers.Conv1D(4, 3, padding="causal", dilation_rate=2),
            ab.layers.Conv1DTranspose(3, 3, strides=2, padding="same"),
        ],
        (None, 8, 3),
        [(2, 8, 3)],
    ),
    "ConvLSTM1D": (lambda: [ab.layers.ConvLSTM1D(2, 3, padding="same")], (None, None, 6, 3), [(2, 4, 6, 3)]),
    "attention": (lambda: [SelfAttention()], (None, None, 4), [(2, 5, 4), (1, 1, 4)]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_of_layers(name: str, tmp_path: Path) -> None:
    build, shape, sizes = LAYERS[name]
    ab.utils.set_random_seed(1)
    x = ab.placeholder(shape, "float32")
    y, layers = x, build()
    for layer in layers:
        y = layer(y)
    weights = [weight for layer in layers for weight in layer.trainable_variables]
    gradients = [dense(each) for each in ab.gradients(ops.sum(y * y), [x, *weights])]
    compare(tmp_path, [{x: floats(*size)} for size in sizes], gradients)


def test_gradient_of_tokens_of_several_lengths(tmp_path: Path) -> None:
    x = ab.placeholder((None, None), "int32")
    layers = [ab.layers.Embedding(7, 3, mask_zero=True), ab.layers.LSTM(4)]
    y = layers[1](layers[0](x))
    table, *others = [weight for layer in layers for weight in layer.trainable_variables]
    rows, *found = ab.gradients(ops.sum(y * y), [table, *others])
    feeds = [{x: np.array(tokens, "int32")} for tokens in ([[1, 2, 3, 0], [4, 5, 0, 0]], [[1]])]
    compare(tmp_path, feeds, [rows.to_dense(), *found])


def test_training_step_with_weights_as_inputs_and_outputs(tmp_path: Path) -> None:
    """The file, run again with the weights that it gives, trains a recurrent network as a session does."""
    x, labels = ab.placeholder((None, None, 3), "float32"), ab.placeholder((None,), "int32")
    shapes = [(3, 4), (4, 4), (4,), (4, 2)]
    weights = [ab.placeholder(shape, "float32") for shape in shapes]
    kernel, recurrent, bias, out = weights
    steps = ops.shape(x)[1]
    h = ab.while_loop(
        lambda t, h: t < steps,
        lambda t, h: (t + 1, ops.tanh(x[:, t] @ kernel + h @ recurrent + bias)),
        (0, ops.zeros((ops.shape(x)[0], 4))),
    )[1]
    loss = ops.mean(ab.losses.sparse_categorical_crossentropy(labels, h @ out, from_logits=True))
    updated = [w - 0.5 * g for w, g in zip(weights, ab.gradients(loss, weights), strict=True)]
    inputs = {"x": x, "labels": labels, **{f"w{k}": w for k, w in enumerate(weights)}}
    outputs = {"loss": loss, **{f"w{k}_next": w for k, w in enumerate(updated)}}
    ab.onnx.export_graph(tmp_path / "step.onnx", inputs, outputs)
    values = [floats(*shape) for shape in shapes]
    batch = {"x": floats(8, 5, 3), "labels": np.arange(8, dtype="int32") % 2}
    losses = []
    for _ in range(30):
        fed = {x: batch["x"], labels: batch["labels"], **dict(zip(weights, values, strict=True))}
        wanted = ab.Session().run([loss, *updated], fed)
        found = run_file(tmp_path / "step.onnx", {**batch, **{f"w{k}": value for k, value in enumerate(values)}})
        for a, b in zip(found, wanted, strict=True):
            assert_same(a, b)
        losses.append(float(found[0]))
        values = found[1:]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("size", [None, 2])
def test_second_order_gradient_of_a_loop_in_a_loop(size: int | None, tmp_path: Path) -> None:
    n, x = ab.placeholder((), "int32"), ab.placeholder((size,), "float32")

    def outer(i: Any, y: Any) -> Any:
        return i + 1, ab.while_loop(lambda j, s: j < i, lambda j, s: (j + 1, ops.sin(s * x)), (0, y))[1]

    y = ab.while_loop(lambda i, y: i < n, outer, (0, x))[1]
    (first,) = ab.gradients(ops.sum(y), [x])
    outputs = [*ab.gradients(ops.sum(first * first), [x])]
    compare(tmp_path, [{n: np.int32(k), x: floats(2)} for k in (0, 1, 4)], outputs)


@pytest.mark.parametrize("opset", [18, 25])
def test_gradient_of_a_loop_in_other_opsets(opset: int, tmp_path: Path) -> None:
    x = ab.placeholder((None, 2), "float32")
    sums = ab.scan(lambda total, row: (ops.tanh(total + row), total * row), ops.zeros(2), x)[1]
    outputs = ab.gradients(ops.sum(sums * sums), [x])
    compare(tmp_path, [{x: floats(3, 2)}], outputs, opset_version=opset)


def test_gradient_inside_a_loop(tmp_path: Path) -> None:
    """Newton's method: each iteration differentiates a loop."""
    x = ab.placeholder((), "float32")

    def body(i: Any, y: Any) -> Any:
        z = ab.while_loop(lambda j, z: j < 3, lambda j, z: (j + 1, z * y), (0, y))[1] - x
        return i + 1, y - z / ab.gradients(z, [y])[0]

    root = ab.while_loop(lambda i, y: i < 20, body, (0, ops.ones_like(x)))[1]
    compare(tmp_path, [{x: np.float32(16)}], [root, *ab.gradients(root, [x])])


@pytest.mark.parametrize("size", [None, 2])
def test_gradient_of_scattered_gathered_and_split_elements(size: int | None, tmp_path: Path) -> None:
    x, indices = ab.placeholder((3, size), "float32"), ab.placeholder((None,), "int32")
    array = ab.TensorArray("float32", 4, element_shape=(size,)).unstack(ops.concatenate([x, x[:1]]) ** 3)
    array = array.scatter(indices, x * x)
    y = ops.sum(array.gather([2, 0, 2]) ** 2) + ops.sum(array.stack() * 2.0)
    pieces = ab.TensorArray("float32", 2, element_shape=(None, size), infer_shape=False).split(x * x, [2, 1])
    z = ops.sum(pieces.read(1) ** 2) + ops.sum(pieces.concat() ** 3)
    outputs = [y, *ab.gradients(y, [x]), z, *ab.gradients(z, [x])]
    compare(tmp_path, [{x: floats(3, 2), indices: np.array(k, "int32")} for k in ([0, 3, 1], [1, 2, 1])], outputs)


def nested(depth: int, limit: Any, leaf: Any, value: Any, grows: bool) -> Any:
    """Loops in loops; each has as many trips as the one around it has made, or else two."""
    if not depth:
        return leaf(value)
    return ab.while_loop(
        lambda i, _: i < (limit if grows else 2),
        lambda i, y: (i + 1, nested(depth - 1, i + 1, leaf, y, grows)),
        (0, value),
    )[1]


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("depth", [3, 4])
def test_gradient_of_loops_many_deep(depth: int, size: int | None, grows: bool, tmp_path: Path) -> None:
    n, x = ab.placeholder((), "int32"), ab.placeholder((size,), "float32")
    y = nested(depth, n, lambda y: ops.sin(y * x) + 0.1 * y, x, grows)
    compare(tmp_path, [{n: np.int32(k), x: floats(2)} for k in (0, 1, 3)], [y, *ab.gradients(ops.sum(y * y), [x])])


@pytest.mark.parametrize("depth", [2, 3])
def test_gradient_of_loops_in_loops_whose_values_grow(depth: int, tmp_path: Path) -> None:
    """The values of one run of the inner loop differ in shape, so that they are not one tensor."""
    n, x = ab.placeholder((), "int32"), ab.placeholder((None,), "float32")
    y = nested(depth, n, lambda y: ops.concatenate([ops.sin(y), 0.5 * y[:1]]), x, True)
    compare(tmp_path, [{n: np.int32(k), x: floats(2)} for k in (0, 1, 3)], [*ab.gradients(ops.sum(y * y), [x])])


def operators(path: Path) -> set[str]:
    """The names of all operators of a file, those inside of loops and branches included."""
    import onnx

    found: set[str] = set()
    graphs = [onnx.load(path).graph]
    while graphs:
        for node in graphs.pop().node:
            found.add(node.op_type)
            graphs += [each.g for each in node.attribute if each.HasField("g")]
    return found


CELLS = [each for each in RECURRENT if each != "distributed over time"]
NO_ROWS = np.zeros((0, 2, 8), "float32")


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        *[pytest.param(each, [LENGTHS[0], NO_ROWS], id=each) for each in CELLS],
        *[pytest.param(each, [*LENGTHS, NO_ROWS], id=f"{each}, all", marks=pytest.mark.slow) for each in CELLS[1:]],
        pytest.param(CELLS[0], [*LENGTHS, NO_ROWS], id=f"{CELLS[0]}, all"),
    ],
)
def test_gradient_of_a_recurrent_layer_of_any_batch_has_tensors_alone(
    name: str, batches: list[np.ndarray], tmp_path: Path
) -> None:
    """Few runtimes have sequences: what is recorded of states of a free batch is a scan output."""
    ab.utils.set_random_seed(4)
    x = ab.placeholder((None, None, 8), "float32")
    y = ab.Sequential(RECURRENT[name]())(x)
    feeds = [{x: batch} for batch in batches]
    compare(tmp_path, feeds, [dense(each) for each in ab.gradients(ops.sum(y * y), [x])])
    assert not {each for each in operators(tmp_path / "g.onnx") if "Sequence" in each}


def test_gradient_of_a_branch_in_a_loop_of_a_free_size(tmp_path: Path) -> None:
    """The record of a branch that was not taken has other sizes, so that it is no scan output."""
    x = ab.placeholder((None, 3), "float32")

    def body(i: Any, y: Any) -> Any:
        return i + 1, ab.cond(ops.equal(i % 2, 0), lambda: ops.sin(ops.exp(y) * x), lambda: ops.tanh(y))

    y = ab.while_loop(lambda i, _: i < 4, body, (0, x))[1]
    compare(tmp_path, [{x: floats(k, 3)} for k in (2, 1, 0)], [*ab.gradients(ops.sum(y * y), [x])])


@pytest.mark.parametrize("rows", [None, 2])
def test_gradient_of_a_recurrent_layer_in_a_loop(rows: int | None, tmp_path: Path) -> None:
    ab.utils.set_random_seed(5)
    x, cell = ab.placeholder((rows, None, 3), "float32"), ab.layers.GRU(3, return_sequences=True)
    y = ab.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, cell(y)), (0, x))[1]
    compare(tmp_path, [{x: floats(2, k, 3)} for k in (4, 1)], [*ab.gradients(ops.sum(y * y), [x])])
