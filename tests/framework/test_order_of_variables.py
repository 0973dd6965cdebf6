"""The order of variables that attributes hold and of those that layers and metrics make: Keras's, which files have."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - users pickle layers
import subprocess
import sys
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch import layers, metrics


class Mixed(layers.Layer):
    """A layer whose attributes hold variables before, between and behind those that it makes."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.a = ab.Variable(1.0, name="a")
        self.rest = [ab.Variable(2.0, name="b")]

    def build(self, input_shape: Any) -> None:
        self.add_weight(shape=(1,), name="c")
        self.d = ab.Variable(3.0, name="d")
        self.e = self.add_weight(shape=(1,), name="e")
        self.rest.append(ab.Variable(4.0, name="f"))
        self.g = self.add_weight(shape=(1,), name="g", trainable=False)
        self.h = ab.Variable(5.0, name="h", trainable=False)
        self.i = self.add_weight(shape=(1,), name="i", trainable=False)

    def call(self, x: Any) -> Any:
        return x * self.a


def named(variables: list[ab.Variable]) -> str:
    return "".join(variable.name for variable in variables)


def test_a_layer_has_its_variables_in_the_order_in_which_it_got_them() -> None:
    layer = Mixed()
    layer.build((1, 1))
    assert named(layer.weights) == "abcdefghi"
    assert named(layer.trainable_weights) == "abcdef"
    assert [np.size(value) for value in layer.get_weights()] == [1] * 9
    layer.a = ab.Variable(6.0, name="z")  # another takes its place, as the one that came last
    assert named(layer.weights) == "bcdefzghi"


def test_files_have_them_in_this_order(tmp_path: Any) -> None:
    model = ab.Sequential([ab.Input((1,)), Mixed()])
    store: dict[str, Any] = {}
    model.layers[0].save_own_variables(store)
    assert [float(store[key].item()) for key in ("0", "1", "3", "5")] == [1.0, 2.0, 3.0, 4.0]
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    model.layers[0].a.assign(9.0)
    model.load_weights(path)
    assert float(model.layers[0].a) == 1.0


def test_variables_come_before_those_of_layers_inside() -> None:
    class Outer(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1)
            self.q = ab.Variable(1.0, name="q")

        def build(self, input_shape: Any) -> None:
            self.dense.build(input_shape)
            self.z = self.add_weight(shape=(), name="z")

    layer = Outer()
    layer.build((1, 2))
    assert [variable.name for variable in layer.weights] == ["q", "z", "kernel", "bias"]


def test_a_metric_has_them_in_the_order_in_which_it_got_them() -> None:
    class Counts(metrics.Metric):
        def __init__(self) -> None:
            super().__init__()
            self.inside = metrics.Sum()
            self.a = ab.Variable(1.0, name="a", trainable=False)
            self.b = self.add_variable(shape=(), name="b")
            self.c = ab.Variable(2.0, name="c", trainable=False)
            self.d = self.add_variable(shape=(), name="d")

    counts = Counts()
    assert [variable.name for variable in counts.variables] == ["a", "b", "c", "d", "total"]
    assert [float(value) for value in counts.stateless_reset_state()] == [0.0] * 5


class TwoTowers(ab.Model):
    """A functional model whose constructor keeps some layers as attributes before it gives inputs and outputs."""

    def __init__(self) -> None:
        left, right = ab.Input((2,), name="left"), ab.Input((2,), name="right")
        self.body = [ab.layers.Dense(2, name="left_body"), ab.layers.Dense(2, name="left_head")]
        self.right_body = ab.layers.Dense(2, name="right_body")
        between = ab.layers.Dense(2, name="between")
        y = self.body[1](between(self.body[0](left)))
        super().__init__([left, right], ab.layers.Dense(1, name="last")(y + self.right_body(right)))
        self.beside = ab.layers.Dense(1, name="beside")
        self.beside.build((None, 2))


def test_layers_that_were_attributes_first_have_keras_places_among_weights() -> None:
    model = TwoTowers()
    order = ["left_body", "left_head", "right_body", "between", "last", "beside"]  # as Keras 3.15 gives it
    for weights in (model.weights, model.trainable_weights):
        assert [weight.path.split("/")[0] for weight in weights] == [name for name in order for _ in "kb"]
    plain = ab.Model(model.inputs, model.outputs)
    assert [weight.path.split("/")[0] for weight in plain.weights][::2] == [
        "left_body",
        "between",
        "left_head",
        "right_body",
        "last",
    ]
    computed = ["left", "left_body", "between", "right", "left_head", "right_body", "last"]
    assert [layer.name for layer in plain.layers] == computed
    assert [layer.name for layer in model.layers] == [*computed, "beside"]


class Grown(ab.Model):
    """A model that gets layers one after the other, in lists, dicts and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: list[list[Any]] = [[], []]
        self.rest: list[Any] = []
        self.by_name: dict[str, Any] = {}
        self.nested: dict[str, list[Any]] = {"left": [], "right": []}
        self.head: Any = None


def dense(name: str) -> Any:
    layer = layers.Dense(1, name=name)
    layer.build((None, 1))
    return layer


def grow(model: Grown, steps: list[str], prefix: str = "layer") -> list[str]:
    """Take the steps; return the names of the layers that came, in the order in which Keras's tracker sees them."""
    came: list[str] = []
    spare: list[Any] = []
    for number, step in enumerate(steps):
        layer = dense(f"{prefix}{number}")
        name = layer.name
        if step in ("0", "1"):
            model.lists[int(step)].append(layer)
        elif step == "longer list":
            model.rest = [*model.rest, layer]
        elif step in model.nested:
            model.nested[step].append(layer)
        elif step == "entry":
            model.by_name[name] = layer
        elif step == "two at once":
            setattr(model, name, (layer, dense(f"{name}b")))
            came.append(name)
            name += "b"
        elif step == "head":
            came = [each for each in came if model.head is None or each != model.head.name]
            model.head = layer
        elif step == "made for later" or not spare:
            spare.append(layer)
            continue
        else:
            name = spare[0].name
            setattr(model, name, spare.pop(0))
        came.append(name)
    return came


KINDS = ["0", "1", "left", "right", "longer list", "entry", "two at once", "head", "made for later", "placed"]
STEPS = st.lists(st.sampled_from(KINDS), max_size=12)


@given(STEPS)
@settings(max_examples=examples(25, 1000))
def test_layers_have_the_order_in_which_they_came_whatever_holds_them(steps: list[str]) -> None:
    model = Grown()
    came = grow(model, steps)
    assert [layer.name for layer in model.layers] == came
    assert [layer.name for layer in model._flatten_layers(include_self=False)] == came
    assert [weight.path.split("/")[0] for weight in model.weights] == [name for name in came for _ in "kb"]


def test_copies_and_layers_of_other_processes_are_older_than_what_comes_then() -> None:
    code = (
        "import pickle, sys, anabranch as ab; [ab.layers.Dense(1) for _ in range(500)]; layer = ab.layers.Layer();"
        "layer.a = []; layer.b = [ab.layers.Dense(1, name='first')];"
        "layer.a.append(ab.layers.Dense(1, name='second')); sys.stdout.buffer.write(pickle.dumps(layer))"
    )
    written = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
    for layer in (pickle.loads(written), copy.deepcopy(pickle.loads(written))):
        layer.b.append(dense("third"))
        layer.a.append(dense("fourth"))
        names = [each.name for each in layer._flatten_layers(include_self=False)]
        assert names == ["first", "second", "third", "fourth"]
