"""`TreeLSTM` against recursion over one tree at a time in plain NumPy, and its gradients against finite differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.layer_gradients import check_layer_gradients
from shared.machines import idle_step

import anabranch as ab
from anabranch import layers
from anabranch.engine.graph import Operation, Tensor
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.layers.recurrent.tree_levels import levels_of, trees_of

forms = pytest.mark.parametrize("arity", [None, 3], ids=["child-sum", "ternary"])
implementations = pytest.mark.parametrize("implementation", ["levels", "nodes"])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


class Reference:
    """One tree at a time, one node at a time, in NumPy."""

    def __init__(self, layer: Any) -> None:
        weights = [weight.astype("float64") for weight in layer.get_weights()]
        self.kernel, self.recurrent = weights[:2]
        self.bias = weights[2] if layer.use_bias else np.zeros(4 * layer.units)
        self.units, self.arity = layer.units, layer.arity

    def node(self, x: Any, children: Any, number: int) -> tuple[Any, Any]:
        """h and c of a node."""
        nothing = np.zeros(self.units), np.zeros(self.units)
        below = [nothing if child < 0 else self.node(x, children, child) for child in children[number]]
        hidden, memory = [h for h, _ in below], [c for _, c in below]
        i, f, candidate, o = np.split(x[number] @ self.kernel + self.bias, 4)
        if self.arity is None:
            parts = np.split(self.recurrent, 4, axis=1)
            total = np.sum(hidden, axis=0)
            i, candidate, o = i + total @ parts[0], candidate + total @ parts[2], o + total @ parts[3]
            forgets = [sigmoid(f + h @ parts[1]) for h in hidden]
        else:
            parts = np.split(np.concatenate(hidden) @ self.recurrent, 3 + self.arity)
            i, candidate, o = i + parts[0], candidate + parts[-2], o + parts[-1]
            forgets = [sigmoid(f + part) for part in parts[1:-2]]
        c = sigmoid(i) * np.tanh(candidate) + sum(gate * c for gate, c in zip(forgets, memory, strict=True))
        return sigmoid(o) * np.tanh(c), c

    def nodes(self, x: Any, children: Any, mask: Any) -> Any:
        """(batch, nodes, units); zeros for padding, and padding is nobody's child."""
        found = np.zeros((*mask.shape, self.units))
        for row, number in np.argwhere(mask):
            live = np.where((children[row] >= 0) & mask[row][children[row]], children[row], -1)
            found[row, number] = self.node(x[row], live, number)[0]
        return found

    def roots(self, x: Any, children: Any, mask: Any) -> Any:
        """(batch, units), of each row's first node that is nobody's child."""
        nodes, found = self.nodes(x, children, mask), np.zeros((len(x), self.units))
        for row in range(len(x)):
            taken = {int(child) for parent in np.flatnonzero(mask[row]) for child in children[row, parent]}
            free = [number for number in np.flatnonzero(mask[row]) if number not in taken]
            if free:
                found[row] = nodes[row, free[0]]
        return found


def draw(rng: np.random.Generator, batch: int, nodes: int, width: int, share: float = 0.9) -> tuple[Any, Any]:
    """Random forests: children (batch, nodes, width), in any order and with gaps; and a mask."""
    children = np.full((batch, nodes, width), -1, "int32")
    for row in range(batch):
        order = rng.permutation(nodes)
        for position in range(1, nodes):
            parent = order[rng.integers(position)] if rng.random() < share else None
            free = [] if parent is None else np.flatnonzero(children[row, parent] < 0)
            if len(free):
                children[row, parent, rng.choice(free)] = order[position]
    return children, np.arange(nodes) < rng.integers(0, nodes + 1, size=(batch, 1))


def built(arity: int | None, width: int = 3, seed: int = 0, **options: Any) -> Any:
    """A layer of 4 units for 2 features, with weights large enough to make a difference."""
    layer, rng = layers.TreeLSTM(4, arity, dtype="float64", **options), np.random.default_rng(seed)
    layer.build((None, None, 2), (None, None, width))
    layer.set_weights([rng.normal(size=weight.shape) for weight in layer.get_weights()])
    return layer


# --- numbers --------------------------------------------------------------------------------------------------------


@forms
@implementations
@settings(max_examples=examples(4, 8), deadline=None)
@given(batch=st.integers(1, 4), nodes=st.integers(1, 9), seed=st.integers(0, 10**6), masked=st.booleans())
def test_against_recursion_in_numpy(
    arity: int | None, implementation: str, batch: int, nodes: int, seed: int, masked: bool
) -> None:
    rng = np.random.default_rng(seed)
    children, mask = draw(rng, batch, nodes, 3)
    mask = mask if masked else np.ones_like(mask)
    x, layer = rng.normal(size=(batch, nodes, 2)), built(arity, implementation=implementation)
    expected = Reference(layer)
    given_mask = mask if masked else None
    np.testing.assert_allclose(layer(x, children, mask=given_mask), expected.roots(x, children, mask), atol=1e-12)
    layer = built(arity, implementation=implementation, return_nodes=True)
    np.testing.assert_allclose(layer(x, children, mask=given_mask), expected.nodes(x, children, mask), atol=1e-12)


def test_known_values() -> None:
    """Two leaves under a root, all weights of the inputs 1 and the rest 0: gates of 1, half the children's memory."""
    layer = layers.TreeLSTM(1, use_bias=False, dtype="float64")
    layer.build((1, 3, 1), (1, 3, 2))
    layer.set_weights([np.array([[1.0, 0.0, 1.0, 1.0]]), np.zeros((1, 4))])
    leaf = sigmoid(1.0) * np.tanh(1.0)
    found = layer(np.ones((1, 3, 1)), [[[1, 2], [-1, -1], [-1, -1]]])
    np.testing.assert_allclose(found, [[sigmoid(1.0) * np.tanh(leaf + 0.5 * leaf + 0.5 * leaf)]], rtol=1e-12)


def test_a_chain_is_an_lstm() -> None:
    """Nodes with one child each, the first the deepest."""
    lstm, layer = layers.LSTM(4, dtype="float64"), built(1, width=1)
    x = np.random.default_rng(0).normal(size=(3, 6, 2))
    lstm.build(x.shape)
    lstm.set_weights(layer.get_weights())
    children = np.broadcast_to(np.arange(-1, 5)[None, :, None], (3, 6, 1))
    np.testing.assert_allclose(layer(x, children), lstm(x), rtol=1e-10)


@implementations
def test_a_deep_chain_and_single_nodes(implementation: str) -> None:
    layer = built(None, width=1, implementation=implementation, return_nodes=True)
    x = np.random.default_rng(0).normal(size=(2, 70, 2))
    children = np.full((2, 70, 1), -1)
    children[0, :-1, 0] = np.arange(1, 70)
    expected = Reference(layer).nodes(x, children, np.ones((2, 70), bool))
    np.testing.assert_allclose(layer(x, children), expected, atol=1e-12)


@implementations
@pytest.mark.parametrize("return_nodes", [False, True])
def test_leaves_alone(implementation: str, return_nodes: bool) -> None:
    """No place for children at all, as data has it that holds single words only."""
    layer = built(None, implementation=implementation, return_nodes=return_nodes)
    x, mask = np.random.default_rng(0).normal(size=(3, 2, 2)), np.array([[True, True], [False, True], [False, False]])
    i, _, candidate, o = np.split(x @ layer.kernel.numpy() + layer.bias.numpy(), 4, axis=-1)
    nodes = np.where(mask[..., None], sigmoid(o) * np.tanh(sigmoid(i) * np.tanh(candidate)), 0)
    expected = nodes if return_nodes else np.stack([nodes[0, 0], nodes[1, 1], np.zeros(4)])
    np.testing.assert_allclose(layer(x, np.zeros((3, 2, 0), "int32"), mask=mask), expected, atol=1e-12)


@forms
@implementations
def test_of_nothing(arity: int | None, implementation: str) -> None:
    """No rows, no nodes, nothing but padding."""
    for shape in ((0, 5), (3, 0), (0, 0)):
        layer, children = built(arity, implementation=implementation), np.full((*shape, 3), -1)
        assert layer(np.zeros((*shape, 2)), children).shape == (shape[0], 4)
        layer.return_nodes = True
    layer = built(arity, implementation=implementation)
    found = layer(np.ones((2, 3, 2)), np.full((2, 3, 3), -1), mask=np.zeros((2, 3), bool))
    np.testing.assert_array_equal(found, np.zeros((2, 4)))


def test_levels() -> None:
    """Inner nodes and leaves by depth; children by their place among the nodes of the level below."""
    children = np.array([[[1, 2], [-1, 3], [-1, -1], [-1, -1]], [[-1, -1], [0, -1], [-1, -1], [-1, -1]]])
    mask = np.array([[True] * 4, [True, True, True, False]])
    with ab.Graph().as_default():
        trees = trees_of(ab.constant(children), ab.constant(mask), "t")
        depths, roots, found = ab.Session().run([trees.depths, trees.roots, list(levels_of(trees))])
    assert depths.tolist()[:7] == [0, 1, 1, 2, 1, 0, 0]
    assert roots.tolist() == [0, 5]
    inner, leaves, inner_counts, leaf_counts, places = [value.tolist() for value in found]
    assert (inner, inner_counts) == ([0, 5, 1], [2, 1])
    assert (leaves, leaf_counts) == ([6, 2, 4, 3], [1, 2, 1])
    assert places == [[0, 1], [2, 3], [1, 0]]  # level 1 is 1, 2, 4, and 3 stands for none; level 2 is node 3 alone


@forms
@implementations
def test_gradients_against_finite_differences(arity: int | None, implementation: str) -> None:
    """By the inputs and each weight; padding gets none."""
    rng = np.random.default_rng(5)
    children, _ = draw(rng, 2, 6, 3)
    mask = np.arange(6) < np.array([[6], [4]])
    x, layer = rng.normal(size=(2, 6, 2)), built(arity, implementation=implementation, return_nodes=True)

    found = check_layer_gradients(layer, x, lambda value: layer(value, children, mask=mask), rtol=1e-6)
    np.testing.assert_array_equal(found[0][1, 4:], np.zeros((2, 2)))


def test_second_order_through_both() -> None:
    """The Hessian times a vector agrees with differences of gradients, and between implementations."""
    rng = np.random.default_rng(6)
    children, _ = draw(rng, 1, 5, 3)
    x, direction, products = rng.normal(size=(1, 5, 2)), rng.normal(size=(1, 5, 2)), []
    for implementation in ("levels", "nodes"):
        layer = built(3, implementation=implementation)
        with ab.Graph().as_default():
            symbol = ab.placeholder((1, 5, 2), "float64")
            (slope,) = ab.gradients(ab.ops.sum(layer(symbol, children) ** 2), [symbol])
            (product,) = ab.gradients(ab.ops.sum(slope * direction), [symbol])
            run = ab.Session().make_callable([slope, product], [symbol])
        products.append(run(x)[1])
        slopes = [run(x + sign * 1e-6 * direction)[0] for sign in (1, -1)]
        np.testing.assert_allclose(products[-1], (slopes[0] - slopes[1]) / 2e-6, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(products[0], products[1], rtol=1e-9, atol=1e-12)


def test_nodes_run_on_whichever_device_is_free() -> None:
    """On four simulated devices: the same numbers, and nodes that do not depend on each other at the same time."""
    rng = np.random.default_rng(7)
    children, mask = draw(rng, 4, 7, 3, share=1.0)
    x, ends = rng.normal(size=(4, 7, 2)), list[float]()
    expected = built(3)(x, children, mask=mask)
    ab.config.set_devices(sim={"count": 4, "kernel_latency": 1e-3})
    try:
        for window in (32, 1):
            with ab.Graph().as_default() as graph:
                symbol = ab.placeholder(x.shape, "float64")
                found = built(3, implementation="nodes")(symbol, children, mask=mask)
                program = MachineProgram(graph, [found], [symbol], assign=on_host, parallel_iterations=window)
            np.testing.assert_allclose(program(x)[0], expected, atol=1e-12)
            ends.append(idle_step(program).engines["sim:0"].now())
    finally:
        ab.config.set_devices()
    assert ends[0] < 0.6 * ends[1]


def on_host(operations: Sequence[Operation], feeds: Sequence[Tensor]) -> dict[Operation, str]:
    """Everything but what is scheduled."""
    return dict.fromkeys(all_operations([*[symbol_of(tensor).operation for tensor in feeds], *operations]), "cpu:0")


# --- as a layer -----------------------------------------------------------------------------------------------------


def test_masks_of_the_input_and_of_the_output() -> None:
    layer, rng = layers.TreeLSTM(4, return_nodes=True), np.random.default_rng(0)
    children = np.array([[[1, 2], [-1, -1], [-1, -1]], [[-1, 1], [-1, -1], [-1, -1]]], "int32")
    symbols, links = ab.Input((None,), dtype="int32"), ab.Input((None, 2), dtype="int32")
    embedded = layers.Embedding(7, 5, mask_zero=True)(symbols)
    nodes = layer(embedded, links)
    model = ab.Model([symbols, links], [nodes, layers.GlobalAveragePooling1D()(nodes)])
    tokens = rng.integers(1, 7, size=(2, 3))
    tokens[1, 2] = 0
    found, means = model.predict([tokens, children], verbose=0)
    np.testing.assert_array_equal(found[1, 2], np.zeros(4))
    np.testing.assert_allclose(means[1], found[1, :2].mean(0), rtol=1e-5)


def test_it_learns_and_is_saved(tmp_path: Any) -> None:
    """Test whether a tree has more leaves on the left, by a model that is saved and loaded."""
    rng = np.random.default_rng(0)
    children, x = np.full((64, 7, 2), -1, "int32"), rng.normal(size=(64, 7, 3)).astype("float32")
    labels = rng.integers(0, 2, 64)
    children[:, 0] = [1, 2]
    for row, label in enumerate(labels):
        children[row, 1 + label] = [3, 4]
        children[row, 3] = [5, 6]
    features, links = ab.Input((None, 3)), ab.Input((None, 2), dtype="int32")
    out = layers.Dense(1, "sigmoid")(layers.TreeLSTM(8, arity=2)(features, links))
    model = ab.Model([features, links], out)
    model.compile(ab.optim.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
    history = model.fit([x, children], labels, epochs=25, batch_size=32, verbose=0).history
    assert history["accuracy"][-1] == 1.0
    model.save(tmp_path / "tree.keras")
    again = ab.models.load_model(tmp_path / "tree.keras")
    np.testing.assert_array_equal(again.predict([x, children], verbose=0), model.predict([x, children], verbose=0))


def test_config_and_weights() -> None:
    layer = layers.TreeLSTM(
        3,
        2,
        activation="relu",
        unit_forget_bias=False,
        return_nodes=True,
        implementation="nodes",
        kernel_regularizer="l2",
        recurrent_constraint="non_neg",
    )
    again = layers.TreeLSTM.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    again.build((None, None, 5), (None, None, 2))
    assert [weight.shape for weight in again.weights] == [(5, 12), (6, 15), (12,)]
    np.testing.assert_array_equal(again.get_weights()[2], np.zeros(12))
    summing = layers.TreeLSTM(3)
    summing.build((None, None, 5), (None, None, 9))
    assert summing.recurrent_kernel.shape == (3, 12)
    np.testing.assert_array_equal(summing.get_weights()[2], np.repeat([0.0, 1.0, 0.0, 0.0], 3))


@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
def test_half_precision(dtype: str) -> None:
    layer = layers.TreeLSTM(4, dtype=dtype)
    found = layer(np.ones((1, 3, 2), "float16"), [[[1, 2], [-1, -1], [-1, -1]]])
    assert found.dtype == "float16"
    assert np.isfinite(found).all()


def test_nan_stays_in_its_tree() -> None:
    layer, x = built(None, width=1), np.ones((2, 2, 2))
    x[0, 1] = np.nan
    found = layer(x, [[[1], [-1]], [[1], [-1]]])
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1]).all()


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.TreeLSTM(0), "TreeLSTM: units must be a positive integer"),
        (lambda: layers.TreeLSTM(2, 0), "TreeLSTM: arity must be a positive integer"),
        (lambda: layers.TreeLSTM(2, implementation="fast"), r"implementation must be one of .* got 'fast'"),
        (lambda: layers.TreeLSTM(2, name="t")(np.ones((2, 3)), np.ones((2, 3, 1))), "'t' .* takes inputs of shape"),
        (lambda: layers.TreeLSTM(2)(np.ones((2, 3, 1)), np.ones((2, 3))), r"takes inputs of shape \(batch, nodes, fea"),
        (lambda: layers.TreeLSTM(2)(np.ones((2, 3, 1)), np.ones((2, 4, 1))), "are of the same nodes, got inputs"),
        (
            lambda: layers.TreeLSTM(2, 2)(np.ones((2, 3, 1)), np.ones((2, 3, 1))),
            "last axis of children must be arity=2",
        ),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("children", "message"),
    [
        ([[[1], [3], [-1]]], "'t' .* children are numbers of nodes in the same row, or -1 for none"),
        ([[[1], [-2], [-1]]], "children are numbers of nodes in the same row"),
        ([[[2], [2], [-1]]], "a node is the child of two nodes"),
        ([[[1], [0], [-1]]], "a node is among its own descendants"),
        ([[[-1], [1], [-1]]], "a node is among its own descendants"),
    ],
)
def test_children_that_make_no_trees(children: Any, message: str) -> None:
    with pytest.raises(ab.errors.InvalidArgumentError, match=message):
        layers.TreeLSTM(2, name="t")(np.ones((1, 3, 1), "float32"), children)
