"""Names of a functional model's inputs: those that were given, as in Keras, by which data and feeds refer to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import anabranch as ab
from anabranch import layers


def test_an_input_has_the_name_that_it_was_given() -> None:
    x = ab.Input((3,), name="ages")
    model = ab.Model(x, layers.Dense(2)(x))
    assert x.name == model.inputs[0].name == "ages"
    assert repr(x) == "<Tensor ages float32[?,3]>"
    assert ab.Input((2,)).name.startswith("input_layer")
    assert ab.KerasTensor((None, 3), name="ages").name == "ages"


def test_inputs_of_two_models_may_have_one_name() -> None:
    first, second = ab.Input((3,), name="ages"), ab.Input((3,), name="ages")
    assert first.name == second.name == "ages"
    assert first.name_in_graph != second.name_in_graph


def test_data_by_the_names_of_inputs() -> None:
    left, right = ab.Input((3,), name="left"), ab.Input((3,), name="right")
    model = ab.Model([left, right], layers.subtract([left, right]))
    data = {right.name: np.ones((2, 3), "float32"), left.name: np.full((2, 3), 3, "float32")}
    np.testing.assert_array_equal(model.predict(data, verbose=0), np.full((2, 3), 2, "float32"))


def test_a_session_takes_both_names(tmp_path: Path) -> None:
    with ab.Graph().as_default() as graph:
        x = ab.Input((3,), name="ages")
        y = x * 2.0
    session = ab.Session(graph)
    three = np.full((1, 3), 3, "float32")
    for name in (x.name, x.name_in_graph):
        np.testing.assert_array_equal(session.run(y, {name: three}), 2 * three)
        np.testing.assert_array_equal(session.run(name, {x: three}), three)
    plain = ab.placeholder((3,), "float32", "ages")
    assert plain.name == plain.name_in_graph
    graph.save(tmp_path / "graph.npz")
    again = ab.load_graph(tmp_path / "graph.npz")
    np.testing.assert_array_equal(ab.Session(again).run(y.name, {x.name_in_graph: three}), 2 * three)


def test_the_operation_of_a_placeholder_stays_an_operation() -> None:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((3,), "float32", "ages")
    assert x.name == "ages:0"
    assert ab.Session(graph).run("ages", {x: np.ones(3, "float32")}) is None
