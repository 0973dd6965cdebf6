"""clone_model, plot_model, and summaries of models whose calls are Python code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers

X = np.linspace(-1.0, 1.0, 12, dtype="float32").reshape(3, 4)


def branching(**options: Any) -> ab.Model:
    """Two inputs, a layer that is called twice, a raw op, a model inside, two outputs."""
    left, right = ab.Input((4,), name="left"), ab.Input((4,), name="right")
    shared = layers.Dense(3, activation="relu", name="shared")
    middle = ab.Input((3,), name="middle")
    inner = ab.Model(middle, layers.Dense(2, name="within")(middle), name="inner")
    joined = layers.Add(name="joined")([shared(left), shared(right) * 2.0])
    return ab.Model([left, right], {"a": inner(joined), "b": joined}, name="branching", **options)


# --- clone_model ----------------------------------------------------------------------------------------------------


def assert_computes_the_same(clone: ab.Model, model: ab.Model, x: Any) -> None:
    assert all(old is not new for old, new in zip(model.weights, clone.weights, strict=True))
    clone.set_weights(model.get_weights())
    found, expected = clone.predict_on_batch(x), model.predict_on_batch(x)
    assert type(found) is type(expected)
    for name in expected if isinstance(expected, dict) else [...]:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


@pytest.mark.parametrize("recursive", [False, True])
def test_a_functional_model(recursive: bool) -> None:
    model = branching()
    clone = ab.models.clone_model(model, recursive=recursive)
    assert clone.name == "branching"
    assert clone.input_names == ["left", "right"]
    assert len(clone.get_layer("shared").inbound_nodes) == 2
    assert_computes_the_same(clone, model, [X, X + 1])


def test_sequential_models_with_and_without_an_input() -> None:
    model = ab.Sequential([ab.Input((4,)), layers.Dense(3), layers.BatchNormalization()], name="row")
    clone = ab.models.clone_model(model)
    assert clone.input_shape == (None, 4)
    assert_computes_the_same(clone, model, X)
    open_model = ab.Sequential([layers.Dense(3)])
    open_clone = ab.models.clone_model(open_model)
    assert not open_clone.built
    open_model.build((None, 4))
    open_clone.build((None, 4))
    assert_computes_the_same(open_clone, open_model, X)


def test_a_subclass_is_cloned_by_its_config() -> None:
    class Own(ab.Model):
        def __init__(self, units):
            super().__init__()
            self.dense = layers.Dense(units)

        def call(self, inputs):
            return self.dense(inputs)

    model = Own(3)
    model(X)
    clone = ab.models.clone_model(model)
    clone(X)
    assert_computes_the_same(clone, model, X)
    with pytest.raises(ValueError, match="Own is a subclass whose layers are called by its own code"):
        ab.models.clone_model(model, clone_function=lambda layer: layer)


def test_a_clone_function_chooses_layers() -> None:
    def wider(layer: layers.Layer) -> layers.Layer:
        config = layer.get_config()
        return type(layer).from_config({**config, "units": 5} if layer.name == "wide" else config)

    model = ab.Sequential([ab.Input((4,)), layers.Dense(3, name="wide"), layers.Dense(2)])
    assert [weight.shape for weight in ab.models.clone_model(model, clone_function=wider).weights] == [
        (4, 5),
        (5,),
        (5, 2),
        (2,),
    ]
    shared = ab.models.clone_model(model, clone_function=lambda layer: layer)
    assert shared.weights == model.weights
    nothing: Any = lambda layer: None  # noqa: E731
    with pytest.raises(TypeError, match="clone_function must return a layer; for layer 'wide' it gave None"):
        ab.models.clone_model(model, clone_function=nothing)


def test_a_call_function_may_add_layers() -> None:
    def with_scale(layer, *args, **kwargs):
        outputs = layer(*args, **kwargs)
        return layers.Rescaling(2.0)(outputs) if isinstance(layer, layers.Dense) else outputs

    model = ab.Model(inputs=(x := ab.Input((4,))), outputs=layers.Dense(3)(x))
    clone = ab.models.clone_model(model, clone_function=lambda layer: layer, call_function=with_scale)
    np.testing.assert_allclose(clone.predict_on_batch(X), 2 * model.predict_on_batch(X), rtol=1e-6)
    with pytest.raises(ValueError, match="is sequential, to which call_function does not apply"):
        ab.models.clone_model(ab.Sequential([layers.Dense(1)]), call_function=with_scale)


def test_input_tensors_are_what_the_clone_is_built_on() -> None:
    model = branching()
    left, right = ab.Input((4,), name="one"), ab.Input((4,), name="other")
    assert ab.models.clone_model(model, input_tensors=[left, right]).input_names == ["one", "other"]
    with pytest.raises(ValueError, match=r"has 2 inputs \(left, right\), but input_tensors has 1"):
        ab.models.clone_model(model, input_tensors=[left])
    row = ab.models.clone_model(ab.Sequential([ab.Input((4,)), layers.Dense(2)]), input_tensors=left)
    assert row.input_names == ["one"]
    with pytest.raises(ValueError, match="has one input; input_tensors has 2"):
        ab.models.clone_model(ab.Sequential([layers.Dense(2)]), input_tensors=[left, right])


def test_input_tensors_have_the_structure_of_the_inputs() -> None:
    left, right = ab.Input((4,)), ab.Input((4,))
    one, other = ab.Input((4,), name="one"), ab.Input((4,), name="other")
    rows: list[tuple[Any, Any]] = [
        ({"a": left, "b": right}, [one, other]),
        ({"a": left, "b": right}, {"a": one, "c": other}),
        ([left, right], {"a": one, "b": other}),
        ([left, right], (one, other)),
        ([left], one),
        (left, [one]),
    ]
    for inputs, given in rows:
        model = ab.Model(inputs, layers.Add()([left, left if len(ab.tree.flatten(inputs)) == 1 else right]))
        with pytest.raises(ValueError, match=r"must have the structure of the inputs of model .* don't have the same"):
            ab.models.clone_model(model, input_tensors=given)
        clone = ab.models.clone_model(model, input_tensors=ab.tree.pack_sequence_as(inputs, ab.tree.flatten(given)))
        assert type(clone.input) is type(model.input)
        assert clone.input_names == [tensor.name.split("/")[0] for tensor in ab.tree.flatten(given)]


@pytest.mark.parametrize("kind", ["functional", "sequential"])
def test_input_tensors_are_symbolic(kind: str) -> None:
    x = ab.Input((4,))
    model = ab.Sequential([layers.Dense(2)]) if kind == "sequential" else ab.Model(x, layers.Dense(2)(x))
    with pytest.raises(TypeError, match=r"input_tensors must be symbolic, from ab\.Input .* of type ndarray"):
        ab.models.clone_model(model, input_tensors=cast("Any", X))


# --- plot_model -----------------------------------------------------------------------------------------------------

EXPECTED_DOT = """\
digraph "branching" {
  graph [rankdir="TB", dpi=200, splines="ortho"];
  node [shape=box, fontname="Helvetica"];
  0 [label="left (InputLayer)"];
  1 [label="right (InputLayer)"];
  2 [label="shared (Dense)"];
  3 [label="shared (Dense)"];
  4 [label="multiply (Multiply)"];
  5 [label="joined (Add)"];
  subgraph "cluster_0_0_inner" {
    label="inner";
    6 [label="within (Dense)"];
  }
  0 -> 2;
  1 -> 3;
  3 -> 4;
  2 -> 5;
  4 -> 5;
  5 -> 6;
}
"""


def test_dot_text_shows_each_call_and_the_models_inside() -> None:
    ab.utils.clear_session()
    assert ab.utils.model_to_dot(branching(), expand_nested=True) == EXPECTED_DOT
    flat = ab.utils.model_to_dot(branching(), rankdir="LR", dpi=70, splines="line", show_layer_names=False)
    assert 'label="Functional"' in flat
    assert 'graph [rankdir="LR", dpi=70, splines="line"]' in flat
    lines = EXPECTED_DOT.splitlines()
    cluster = ['subgraph "cluster_branching" {', '  label="branching";', *lines[3:]]
    ab.utils.clear_session()
    assert ab.utils.model_to_dot(branching(), expand_nested=True, subgraph=True).splitlines() == cluster


def test_an_svg_shows_what_is_asked_for(tmp_path: Path) -> None:
    model = branching()
    model.get_layer("shared").trainable = False
    options = dict.fromkeys(("show_shapes", "show_dtype", "show_layer_names", "expand_nested"), True)
    drawing = ab.utils.plot_model(
        model, tmp_path / "model.svg", **options, show_layer_activations=True, show_trainable=True
    )
    text = (tmp_path / "model.svg").read_text()
    assert text == drawing.svg == drawing._repr_svg_()
    root = ElementTree.fromstring(text)
    written = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for line in ("shared (Dense)", "Activation: relu", "Input shape: (None, 4)", "Output dtype: float32"):
        assert line in written, line
    assert written.count("Non-trainable") == 2
    assert "Input shape: (None, 3), (None, 3)" in written
    assert [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")] == ["inner"]
    rectangles = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    boxes = [[float(box.attrib[name]) for name in ("x", "y", "width", "height")] for box in rectangles]
    assert len(boxes) == 7
    for number, (x, y, width, height) in enumerate(boxes):
        assert 0 < x < x + width < float(root.attrib["width"])
        assert 0 < y < y + height < float(root.attrib["height"])
        for other_x, other_y, other_width, other_height in boxes[:number]:
            apart_across = x >= other_x + other_width or other_x >= x + width
            apart_down = y >= other_y + other_height or other_y >= y + height
            assert apart_across or apart_down


def test_a_model_of_python_code_is_one_box_and_must_be_built(tmp_path: Path) -> None:
    class Own(ab.Model):
        def call(self, inputs):
            return inputs

    model = Own(name="own <&>")
    with pytest.raises(ValueError, match="is not built, so it can't be drawn"):
        ab.utils.plot_model(model, tmp_path / "model.svg")
    model(X)
    drawing = ab.utils.plot_model(model, tmp_path / "model.dot", show_layer_names=True)
    assert "own &lt;&amp;&gt; (Own)" in drawing.svg
    assert (tmp_path / "model.dot").read_text().count("label=") == 1


def test_without_graphviz_an_svg_is_written_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.warns(UserWarning, match=r"model.png needs Graphviz, .*not found; .*model.svg was written"):
        ab.utils.plot_model(branching(), tmp_path / "model.png")
    assert [path.name for path in tmp_path.iterdir()] == ["model.svg"]


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_writes_images(tmp_path: Path) -> None:
    ab.utils.plot_model(branching(), tmp_path / "model", show_shapes=True, dpi=50)
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"Graphviz's dot failed: .*nonsense"):
        ab.utils.plot_model(branching(), tmp_path / "model.nonsense")


# --- summary --------------------------------------------------------------------------------------------------------


class Block(layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.first, self.second = layers.Dense(units), layers.Dense(units)

    def call(self, inputs):
        return self.second(self.first(inputs)) + inputs


class Own(ab.Model):
    def __init__(self):
        super().__init__()
        self.block = Block(4)
        self.inner = ab.Sequential([layers.Dense(5), layers.Dropout(0.5)], name="inner")
        self.flip = layers.Lambda(lambda x: ab.ops.transpose(x))
        self.pair = layers.Concatenate()
        self.unused = layers.Dense(9)

    def call(self, inputs):
        outputs = self.inner(self.block(inputs))
        return self.pair([outputs, inputs]), self.flip(outputs)


def shapes_in(model: ab.Model, **options: Any) -> list[str]:
    lines: list[str] = []
    model.summary(print_fn=lines.append, **options)
    return [row.split("│")[2].strip() for row in lines[0].splitlines() if row.startswith("│")][1:]


def test_a_summary_of_python_code_shows_the_shapes_that_its_layers_give() -> None:
    model = Own()
    assert shapes_in(model) == ["?"] * 5
    model(X)
    assert shapes_in(model) == ["(None, 4)", "(None, 5)", "(5, None)", "(None, 9)", "?"]
    nested = shapes_in(model, expand_nested=True)
    assert nested[1:4] == ["(None, 5)", "(None, 5)", "(None, 5)"]


def test_a_summary_does_not_show_the_batch_that_was_trained_on() -> None:
    model = Own()
    model.compile("sgd", ["mse", None])
    model.fit(X, np.zeros((3, 9)), verbose=0)
    assert not any("(3," in shape for shape in shapes_in(model))


def test_a_summary_of_a_model_that_takes_integers_shows_the_shapes_of_its_latest_call() -> None:
    class Words(ab.Model):
        def __init__(self):
            super().__init__()
            self.embedding = layers.Embedding(5, 3)
            self.dropout = layers.Dropout(0.1)

        def call(self, inputs):
            assert inputs.dtype.name == "int64"
            return self.dropout(self.embedding(inputs))

    model = Words()
    model(np.zeros((2, 7), "int64"))
    assert shapes_in(model) == ["(None, 7, 3)", "(None, 7, 3)"]
