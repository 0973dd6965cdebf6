"""Layers that merge inputs at masked positions: the numbers are those of Keras 3.15."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops

A = np.array([[[1, -2], [3, 4], [0, 0]]], "float32")  # the third position is masked
B = np.array([[[2, 5], [0, 0], [0, 0]]], "float32")  # the second and third
C = np.array([[[-3, 1], [7, 2], [0, 0]]], "float32")


def merged(layer: Any, *inputs: tuple[np.ndarray, bool]) -> tuple[Any, Any]:
    """Return what `layer` gives for arrays, some of them masked where they are 0, and the mask of that."""
    with ab.Graph().as_default():
        tensors = [layers.Masking()(ops.constant(array)) if masked else ops.constant(array) for array, masked in inputs]
        output = layer(tensors)
        mask = output.annotations.get("mask")
        found = ab.Session().run([output] if mask is None else [output, mask])
    return found[0].tolist(), None if mask is None else found[1].tolist()


@pytest.mark.parametrize(
    ("name", "a", "b", "expected"),
    [
        ("Multiply", A, B, [[[2, -10], [3, 4], [0, 0]]]),
        ("Maximum", -A, -B, [[[-1, 2], [-3, -4], [0, 0]]]),
        ("Minimum", A, B, [[[1, -2], [3, 4], [0, 0]]]),
    ],
)
def test_a_masked_position_leaves_the_other_input(name: str, a: Any, b: Any, expected: Any) -> None:
    layer = getattr(layers, name)()
    assert merged(layer, (a, True), (b, True)) == (expected, [[True, True, False]])
    assert merged(layer, (a, False), (b, True)) == (expected, None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Multiply", [[[-6, -10], [-21, -8], [0, 0]]]),
        ("Maximum", [[[3, -1], [3, 4], [0, 0]]]),
        ("Minimum", [[[-2, -5], [-7, -2], [0, 0]]]),
    ],
)
def test_three_inputs_of_which_the_first_is_masked_more(name: str, expected: Any) -> None:
    layer = getattr(layers, name)()
    assert merged(layer, (-B, True), (-C, True), (A, True)) == (expected, [[True, True, False]])


def test_an_input_without_a_mask_counts_everywhere() -> None:
    assert merged(layers.Minimum(), (A, True), (B, False))[0] == [[[1, -2], [0, 0], [0, 0]]]
    assert merged(layers.Multiply(), (B, True), (C, False), (A, True))[0] == [[[-6, -10], [21, 8], [0, 0]]]


def test_a_mask_is_handed_on_to_the_mean() -> None:
    with ab.Graph().as_default():
        inputs = [layers.Masking()(ops.constant(array)) for array in (A, B)]
        mean = layers.GlobalAveragePooling1D()(layers.Multiply()(inputs))
        assert ab.Session().run(mean).tolist() == [[2.5, -3.0]]


def test_no_gradient_reaches_what_is_masked() -> None:
    with ab.Graph().as_default():
        a, b = ops.constant(A), ops.constant(B)
        product = layers.Multiply()([layers.Masking()(a), layers.Masking()(b)])
        found = ab.Session().run(ab.gradients(ops.sum(product), [a, b]))
    assert found[0].tolist() == [[[2, 5], [1, 1], [0, 0]]]
    assert found[1].tolist() == [[[1, -2], [0, 0], [0, 0]]]


@pytest.mark.parametrize("name", ["Multiply", "Maximum", "Add"])
def test_masks_of_inputs_of_other_ranks_stand_where_their_inputs_do(name: str) -> None:
    """The mask of samples ``[batch]`` beside one of positions ``[batch, steps]``, with as many steps as samples."""
    steps = np.array([[[1.0], [2.0]], [[3.0], [0.0]]], "float32")
    samples = np.array([[0.0], [5.0]], "float32")
    layer = getattr(layers, name)()
    values, mask = merged(layer, (steps, True), (samples, True))
    expected = {
        "Multiply": [[[1], [2]], [[15], [5]]],
        "Maximum": [[[1], [2]], [[5], [5]]],
        "Add": [[[1], [2]], [[8], [5]]],
    }
    assert values == expected[name]
    assert mask == [[True, True], [True, True]]


def test_unknown_ranks() -> None:
    with ab.Graph().as_default():
        a, b = ab.placeholder(None, "float32"), ab.placeholder(None, "float32")
        for tensor, array in ((a, A), (b, B)):
            tensor.annotations["mask"] = ops.constant(array.any(-1))
        values = ab.Session().run(layers.Multiply()([a, b]), {a: A, b: B})
    assert values.tolist() == [[[2, -10], [3, 4], [0, 0]]]


def test_a_model_with_masks_is_saved_and_read(tmp_path: Any) -> None:
    a, b = ab.Input((3, 2)), ab.Input((3, 2))
    output = layers.GlobalAveragePooling1D()(layers.multiply([layers.Masking()(a), layers.Masking()(b)]))
    model = ab.Model([a, b], output)
    model.save(tmp_path / "model.keras")
    again = ab.models.load_model(tmp_path / "model.keras")
    for each in (model, again):
        assert each.predict([A, B], verbose=0).tolist() == [[2.5, -3.0]]


@pytest.mark.parametrize("axis", [1, -1])
def test_concatenate_joins_masks_that_are_arrays(axis: int) -> None:
    x, first, second = np.ones((1, 2, 3), "float32"), np.array([[True, False]]), np.array([[False, False]])
    joined = layers.Concatenate(axis=axis).compute_mask([x, x], [first, second])
    expected = np.concatenate([first, second], 1) if axis == 1 else first
    np.testing.assert_array_equal(np.asarray(joined), expected)
