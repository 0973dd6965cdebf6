"""Layers with loops called on arrays of many shapes: how often they are compiled, and what they give."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.engine.graph import TensorSpec
from anabranch.layers.core.shape_programs import ArrayFunction, ShapePrograms

RNG = np.random.default_rng(0)


def compilations(layer: Any) -> list[int]:
    """Return how many programs each layer with loops has been compiled into."""
    return [function.count() for each in layer._flatten_layers() for function in each._functions.values()]


@pytest.mark.parametrize(("name", "loops"), [("lstm", 2), ("attention", 0), ("convolution", 0), ("embedding", 1)])
def test_twenty_lengths_take_four_programs(name: str, loops: int) -> None:
    x = ab.Input((None, 5)) if name != "embedding" else ab.Input((None,), dtype="int32")
    outputs: dict[str, Any] = {
        "lstm": lambda: layers.Bidirectional(layers.LSTM(3))(x),
        "attention": lambda: layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 4)(x, x)),
        "convolution": lambda: layers.GlobalMaxPooling1D()(layers.Conv1D(4, 3, padding="same")(x)),
        "embedding": lambda: layers.GRU(3)(layers.Embedding(9, 4, mask_zero=True)(x)),
    }
    model = ab.Model(x, outputs[name]())
    for length in range(3, 23):
        shape = (2, length, 5) if name != "embedding" else (2, length)
        data = RNG.normal(size=shape).astype("float32") if name != "embedding" else RNG.integers(0, 9, shape)
        np.testing.assert_allclose(model.predict(data, verbose=0), model(data), rtol=1e-5, atol=1e-6)
    assert model._steps["predict"].count() == 4  # three of known size, one for any
    assert compilations(model) == [4] * loops  # without loops, calls run op by op


class LoopingDense(layers.Dense):
    """Runs compiled, as if its call had loops."""

    has_loops: ClassVar[bool] = True


def test_open_batch_and_length_together() -> None:
    layer = LoopingDense(3)
    for rows, length in [(4, 5), (4, 6), (4, 7), (4, 8), (3, 8), (2, 9), (3, 11)]:
        data = RNG.normal(size=(rows, length, 2)).astype("float32")
        kernel = layer.get_weights()[0] if layer.built else None
        outputs = layer(data)
        if kernel is not None:
            np.testing.assert_allclose(outputs, data @ kernel, rtol=1e-5, atol=1e-6)
    assert compilations(layer) == [5]  # once the lengths, once the batch as well


def test_a_layer_that_needs_its_sizes_keeps_those_that_never_vary() -> None:
    class LoopingCrop(layers.RandomCrop):
        has_loops: ClassVar[bool] = True

    layer = LoopingCrop(4, 4, seed=1)
    for rows in range(1, 13):
        assert layer(np.ones((rows, 8, 8, 3), "float32")).shape == (rows, 4, 4, 3)
    assert compilations(layer) == [4]


class Rows(layers.Layer):
    """Needs the number of its rows."""

    has_loops: ClassVar[bool] = True

    def call(self, inputs: Any) -> Any:
        if inputs.shape[0] is None:
            raise ValueError("How many rows?")
        return inputs * float(inputs.shape[0])


def test_a_layer_that_needs_to_know_what_varies() -> None:
    layer = Rows()
    for rows in range(1, 8):
        np.testing.assert_array_equal(layer(np.ones((rows, 1), "float32")), np.full((rows, 1), rows, "float32"))
    assert compilations(layer) == [7]


def test_what_does_not_fit_is_refused_by_name_however_many_shapes_were_seen() -> None:
    layer = LoopingDense(3, name="head")
    for rows in range(1, 6):
        layer(np.ones((rows, 4), "float32"))
        with pytest.raises(ValueError, match="head"):
            layer(np.ones((rows, 5), "float32"))
    assert compilations(layer) == [4]


def test_structures_effects_and_operations() -> None:
    counter = ab.Variable(0.0)

    def step(x: Any) -> Any:
        done = counter.assign(counter + ab.ops.sum(x))
        return {"twice": x * 2.0, "nothing": None, "list": [x[0], done]}

    function = ArrayFunction(step)
    found = function(np.array([1.0, 2.0], "float32"))
    assert found["nothing"] is None
    np.testing.assert_array_equal(found["twice"], [2, 4])
    assert found["list"][0] == 1.0
    assert float(counter.numpy()) == 3.0
    assert function.count() == 1


def test_a_trace_that_fails_is_not_counted() -> None:
    def trace(specs: Any) -> Any:
        if specs[0].shape == (1,):
            raise ValueError("one is too few")
        return lambda: tuple(specs)

    programs = ShapePrograms(trace)
    with pytest.raises(ValueError, match="too few"):
        programs.find([TensorSpec((1,), np.dtype("float32"))])
    for size in (2, 3, 4, 5):
        found: Any = programs.find([TensorSpec((size,), np.dtype("float32"))])
    assert found[0].shape == (None,)
