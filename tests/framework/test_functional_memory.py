"""Functional models built outside of explicit graphs go with the last reference to them; plain graphs stay."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.engine.graph.context import graph_context
from anabranch.engine.graph.graph import get_default_graph

X = np.arange(12, dtype="float32").reshape(3, 4)


def mixed() -> ab.Model:
    """Layers, raw ops, constants, captured values, shapes, noise and a mask."""
    x = ab.Input((4,))
    h = layers.Dropout(0.5)(layers.Dense(8, "relu")(x)) + 1.0
    h = ab.ops.reshape(h, (ab.ops.shape(h)[0], 2, 4)) * ab.ops.ones((4,))
    h = layers.Masking()(h)
    return ab.Model(x, layers.Dense(1)(layers.GlobalAveragePooling1D()(h)))


def two_inputs() -> ab.Model:
    left, right = ab.Input((4,)), ab.Input((4,))
    shared = layers.Dense(2)
    return ab.Model({"left": left, "right": right}, shared(left) * shared(layers.BatchNormalization()(right)))


def nested() -> ab.Model:
    x = ab.Input((4,))
    return ab.Model(x, mixed()(layers.Dense(4)(x)))


def inner() -> ab.Model:
    whole = mixed()
    return ab.Model(whole.layers[1].output, whole.output)


def cloned() -> ab.Model:
    return ab.models.clone_model(mixed())


def read_again() -> ab.Model:
    return ab.Model.from_config(mixed().get_config())


def recurrent() -> ab.Model:
    x = ab.Input((None, 4))
    return ab.Model(x, layers.Dense(1)(layers.LSTM(3)(x)))


def sequential() -> ab.Model:
    return ab.Sequential([ab.Input((4,)), layers.Dense(3), layers.Dense(1)])


def trained() -> ab.Model:
    model = mixed()
    model.compile("adam", "mse")
    model.fit(X, X[:, :1], verbose=0)
    model.predict(X, verbose=0)
    return model


def symbol(tensor: ab.Tensor) -> Any:
    """A symbol, whose operation and name the public type does not have."""
    return tensor


BUILDERS = (mixed, two_inputs, nested, inner, cloned, read_again, recurrent, sequential, trained)


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_weights_go_with_the_model(build: Callable[[], ab.Model]) -> None:
    seen: list[Any] = []
    for _ in range(2):
        model = build()
        seen += [weakref.ref(weight) for weight in model.weights]
        seen += [weakref.ref(tensor) for tensor in ab.tree.flatten([model.inputs, model.outputs])]
        del model
    gc.collect()
    assert [each() for each in seen] == [None] * len(seen)


def test_default_graph_does_not_grow() -> None:
    graph: Any = get_default_graph()
    kept, sizes = two_inputs(), []
    for _ in range(4):
        mixed()
        gc.collect()
        sizes.append((graph.operations.living, len(graph._by_name), len(graph.constants), len(graph._kept)))
    assert len(set(sizes[1:])) == 1
    for number in range(3000):  # names of what is gone go in bulk
        graph.unique_name(f"name_{number}")
    mixed()
    assert len(graph._name_counts) < 1000 + 4 * graph.operations.living
    assert kept.predict({"left": X, "right": X}, verbose=0).shape == (3, 2)


def test_heads_go_while_the_body_stays() -> None:
    body = mixed()
    shared = layers.Dense(5)

    def head() -> list[Any]:
        model = ab.Model(body.input, layers.Dense(2)(shared(body.layers[1].output)) + 1.0)
        return [weakref.ref(model), weakref.ref(model.layers[-1])]

    seen = head()
    gc.collect()
    assert [each() for each in seen] == [None, None]
    assert body.predict(X, verbose=0).shape == (3, 1)


def test_what_is_referred_to_stays() -> None:
    y = two_inputs().output
    gc.collect()
    left, right = symbol(y).operation.inputs
    assert ab.Session().run(y, {left: [[2.0, 3.0]], right: [[4.0, 5.0]]}).tolist() == [[8.0, 15.0]]
    assert ab.gradients(ab.ops.sum(y), [left])[0].shape == (None, 2)


def test_plain_placeholders_and_what_depends_on_them_stay() -> None:
    graph = get_default_graph()
    first = symbol(ab.placeholder((), "float32", "kept_placeholder") * 2).name
    with ab.Session():
        second = symbol(ab.ops.exp(ab.constant(3.0))).name
        both = symbol(ab.Input((2,), name="kept_input") + 1.0).name
    gc.collect()
    names = {operation.name for operation in graph.get_operations()}
    assert {"kept_placeholder", first.partition(":")[0]} <= names
    assert {second.partition(":")[0], both.partition(":")[0]} <= names
    found = graph.get_tensor_by_name(first)
    assert ab.Session().run(found, {"kept_placeholder:0": 4.0}) == 8.0


def test_placeholders_and_inputs_go_together() -> None:
    x, scale, weight = ab.Input((2,)), ab.placeholder((), "float32"), ab.Variable(3.0)
    y = layers.Rescaling(2.0)(x) * scale * weight
    assert ab.Session().run(y, {x: [[1.0, 2.0]], scale: 10.0}).tolist() == [[60.0, 120.0]]
    weight.assign(1.0)
    assert ab.Session().run(y, {x: [[1.0, 2.0]], scale: 1.0}).tolist() == [[2.0, 4.0]]


def test_captured_values_are_one_constant_while_it_is_used() -> None:
    value, x = ab.ops.ones((2,)), ab.Input((2,))
    product = symbol(x * value)
    assert symbol(x + value).operation.inputs[1] is product.operation.inputs[1]


def test_scopes_hold_for_what_is_built_on_inputs() -> None:
    x = ab.Input((2,))
    with ab.device("cpu:0"), ab.name_scope("scoped"):
        before = symbol(ab.ops.exp(x))
        with ab.control_dependencies([before]):
            after = symbol(layers.Dense(1, name="inside")(x))
    assert after.device == "/device:CPU:0"
    assert after.name.startswith("scoped/inside/")
    assert before.operation in after.operation.control_inputs


def test_scopes_of_a_thread_do_not_hold_in_others() -> None:
    entered, seen = threading.Event(), threading.Event()
    first = ab.placeholder((), name="first")

    def build() -> None:
        with ab.name_scope("theirs"), ab.device("cpu:0"), ab.control_dependencies([first]):
            entered.set()
            seen.wait(60)

    thread = threading.Thread(target=build)
    thread.start()
    entered.wait(60)
    with ab.name_scope("ours"):  # and is left after theirs
        made = symbol(layers.Dense(1, name="inside")(ab.Input((2,)))).operation
        variable = ab.Variable(1.0)
        seen.set()
        thread.join()
    assert made.name.startswith("ours")
    assert made.device == variable.device == ""
    assert not made.control_inputs
    assert ab.placeholder((), name="behind").operation.name.startswith("behind")


def test_models_are_built_in_threads_side_by_side() -> None:
    graph, found = get_default_graph(), []

    def build() -> None:
        for _ in range(5):
            x = ab.Input((4,))
            h = ab.ops.exp(layers.Dense(3, kernel_initializer="ones")(x) - 1.0)
            found.append((ab.Model(x, h), np.asarray(ab.Model(x, h + h)(X))))

    switched = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=build) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switched)
    assert len(found) == 20
    for _, values in found:
        np.testing.assert_allclose(values, 2 * np.exp(X.sum(1, keepdims=True) - 1) * np.ones(3), rtol=1e-5)
    assert all(graph.operations[operation.index] is operation for operation in graph.operations)
    assert "/" not in ab.placeholder((), name="behind").operation.name  # none of their layers is still entered


def test_nothing_is_left_entered() -> None:
    x = ab.Input((2,))
    with pytest.raises(ValueError, match="axis"):
        layers.Dense(1)(ab.ops.concatenate([x, x], axis=7))
    assert not graph_context.enters
    assert not graph_context.stack
