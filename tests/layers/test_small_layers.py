"""Layers beyond what the golden data cover: randomness, shapes, arguments that are refused."""

from typing import Any, cast

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers


def test_dropout_in_training() -> None:
    x = np.ones((1000, 10), "float32")
    dropped = layers.Dropout(0.25, seed=1)(x, training=True)
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert np.mean(dropped == 0) == pytest.approx(0.25, abs=0.02)
    first, second = layers.Dropout(0.5, seed=1), layers.Dropout(0.5, seed=1)
    np.testing.assert_array_equal(first(x, training=True), second(x, training=True))
    assert not np.array_equal(first(x, training=True), first(x, training=True))
    rows = layers.Dropout(0.5, noise_shape=(None, 1), seed=1)(x, training=True)
    np.testing.assert_array_equal(rows, np.repeat(rows[:, :1], 10, axis=1))


def test_spatial_dropout_drops_whole_features() -> None:
    dropped = layers.SpatialDropout1D(0.5, seed=2)(np.ones((4, 6, 8), "float32"), training=True)
    np.testing.assert_array_equal(dropped, np.repeat(dropped[:, :1], 6, axis=1))
    assert set(np.unique(dropped)) == {0, 2}


def test_gaussian_noise_in_training() -> None:
    noise = layers.GaussianNoise(0.5, seed=1)(np.zeros((500, 20), "float32"), training=True)
    assert noise.std() == pytest.approx(0.5, abs=0.02)
    assert noise.mean() == pytest.approx(0.0, abs=0.02)


def test_gradients_flow_where_dropout_kept() -> None:
    with ab.Graph().as_default():
        x = ab.constant(np.ones((3, 4), "float32"))
        y = layers.Dropout(0.5)(x, training=True)
        (dx,) = ab.gradients(y, [x])
        values, gradient = ab.Session().run([y, dx])
    np.testing.assert_array_equal(values, gradient)


def test_embedding_of_other_kinds_of_numbers() -> None:
    layer = layers.Embedding(3, 2, weights=[np.arange(6).reshape(3, 2)])
    for dtype in ("int32", "int64", "uint8", "float32"):
        np.testing.assert_array_equal(layer(np.array([2, 0], dtype)), [[4, 5], [0, 1]])
    assert layer.compute_output_shape((None, 7)) == (None, 7, 2)


def test_embedding_gradient_adds_up() -> None:
    layer = layers.Embedding(4, 2)
    with ab.Graph().as_default():
        y = layer(ab.constant(np.array([[1, 1, 3]])))
        (gradient,) = ab.gradients(y, [layer.embeddings])
        np.testing.assert_array_equal(ab.Session().run(gradient), [[0, 0], [2, 2], [0, 0], [1, 1]])


def test_batch_normalization_learns_the_statistics() -> None:
    layer = layers.BatchNormalization(momentum=0.5)
    x = np.random.default_rng(0).normal(3.0, 2.0, (256, 2)).astype("float32")
    for _ in range(12):
        layer(x, training=True)
    np.testing.assert_allclose(layer.moving_mean.numpy(), x.mean(0), rtol=1e-3)
    np.testing.assert_allclose(layer(x), layer(x, training=True), atol=1e-2)


def test_batch_normalization_updates_in_program_order() -> None:
    layer = layers.BatchNormalization(momentum=0.0)

    @ab.function
    def step(x: Any) -> Any:
        trained = layer(x, training=True)
        return trained, layer(x, training=False)

    x = np.array([[1.0], [3.0]], "float32")
    trained, tested = step(x)
    np.testing.assert_allclose(trained, tested, rtol=1e-6)


def test_layer_normalization_over_axes_in_another_order() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    layer = layers.LayerNormalization(axis=[2, 1])
    layer(x)
    gamma = np.arange(12, dtype="float32").reshape(3, 4)  # in the order of the inputs' axes
    layer.set_weights([gamma, np.zeros((3, 4))])
    normal = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-3)
    np.testing.assert_allclose(layer(x), normal * gamma, rtol=1e-4, atol=1e-5)


def test_static_shapes_are_kept() -> None:
    assert layers.Flatten().compute_output_shape((None, 3, 4)) == (None, 12)
    assert layers.Reshape((-1, 2)).compute_output_shape((None, 3, 4)) == (None, 6, 2)
    assert layers.RepeatVector(3).compute_output_shape((None, 4)) == (None, 3, 4)
    assert layers.Permute((2, 1)).compute_output_shape((None, 3, 4)) == (None, 4, 3)
    assert layers.TimeDistributed(layers.Dense(5)).compute_output_shape((None, None, 4)) == (None, None, 5)
    assert layers.GlobalMaxPooling1D(keepdims=True).compute_output_shape((None, 3, 4)) == (None, 1, 4)


def test_unknown_features_are_flattened_at_run_time() -> None:
    with ab.Graph().as_default():
        x = ab.placeholder((None, None, 2), "float32")
        flat, cut = layers.Flatten()(x), layers.Reshape((-1, 1))(x)
        values = ab.Session().run([flat, cut], {x: np.ones((2, 3, 2))})
    assert [value.shape for value in values] == [(2, 6), (2, 6, 1)]


def test_merging_inputs_of_other_ranks() -> None:
    result = layers.Multiply()([np.full((2, 3, 4), 2.0, "float32"), np.arange(8, dtype="float32").reshape(2, 4)])
    np.testing.assert_array_equal(result, 2 * np.arange(8).reshape(2, 1, 4) * np.ones((2, 3, 4)))


def test_dot_of_matrices() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3, 4)).astype("float32"), rng.standard_normal((2, 5, 4)).astype("float32")
    np.testing.assert_allclose(layers.dot([x, y], axes=2), np.einsum("bij,bkj->bik", x, y), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layers.dot([x, y], axes=(2, -1)), np.einsum("bij,bkj->bik", x, y), rtol=1e-4, atol=1e-5)
    cosine = layers.dot([x[:, 0], x[:, 0]], axes=1, normalize=True)
    np.testing.assert_allclose(cosine, np.ones((2, 1)), rtol=1e-5)


def test_functional_forms() -> None:
    a, b = np.full((1, 2), 6.0, "float32"), np.full((1, 2), 2.0, "float32")
    expected = {"add": 8, "subtract": 4, "multiply": 12, "average": 4, "maximum": 6, "minimum": 2}
    for name, value in expected.items():
        np.testing.assert_array_equal(getattr(layers, name)([a, b]), np.full((1, 2), value))
    np.testing.assert_array_equal(layers.concatenate([a, b]), [[6, 6, 2, 2]])


def test_lambda_with_arguments_and_mask() -> None:
    def scaled(x: Any, by: float = 1.0, mask: Any = None) -> Any:
        return x * by

    layer = layers.Lambda(scaled, arguments={"by": 3.0}, mask=lambda x, mask: ab.ops.greater(x, 0.0))
    with ab.Graph().as_default():
        y = layer(ab.constant(np.array([1.0, -1.0], "float32")))
        value, mask = ab.Session().run([y, y.annotations["mask"]])
    np.testing.assert_array_equal(value, [3, -3])
    np.testing.assert_array_equal(mask, [True, False])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.Dense(0), "units must be a positive integer, got units=0"),
        (lambda: layers.Dense(2.5), "units must be a positive integer"),  # pyright: ignore[reportArgumentType]
        (lambda: layers.Dense(2, activation="rellu"), "Unknown activation 'rellu'. Did you mean 'relu'"),
        (lambda: layers.Dense(2, kernel_initializer="he"), "Unknown kernel_initializer 'he'"),
        (lambda: layers.Dropout(1.5), r"rate must be within \[0, 1\]"),
        (lambda: layers.Embedding(0, 3), "input_dim must be a positive integer"),
        (lambda: layers.Permute((0, 1)), "each of 1 to 2 once"),
        (lambda: layers.Reshape((-1, -1)), "only one size may be -1"),
        (lambda: layers.Flatten(data_format="first"), "data_format must be"),
        (lambda: layers.ReLU(negative_slope=-1), "negative_slope must be a number from 0 up"),
        (lambda: layers.LeakyReLU(-1), "negative_slope"),
        (lambda: layers.GaussianNoise(-1), "stddev must not be negative"),
        (lambda: layers.Dot((1, 2, 3)), "axes must be an int or a pair"),
        (lambda: layers.TimeDistributed(cast("Any", 3)), "takes a layer"),
    ],
)
def test_refused_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("layer", "shapes", "message"),
    [
        (layers.Add, [(2, 3)], "a list of at least 2 inputs, got 1"),
        (layers.Add, (2, 3), "a list of at least 2 inputs, got one of shape"),
        (layers.Subtract, [(2, 3)] * 3, "a list of exactly 2 inputs, got 3"),
        (layers.Add, [(2, 3), (4, 3)], "different batch sizes"),
        (layers.Concatenate, [(2, 3), (2, 3, 4)], r"'merged' \(Concatenate\) takes inputs whose shapes agree"),
        (lambda name: layers.Concatenate(axis=1, name=name), [(2, 3, 4), (2, 3, 5)], "agree except along axis 1"),
        (lambda name: layers.Dot(1, name=name), [(2, 3), (2, 4)], "axes of one size"),
        (lambda name: layers.Reshape((5,), name=name), (2, 6), "can't reshape 6 elements"),
        (lambda name: layers.TimeDistributed(layers.Dense(2), name=name), (2, 6), "at least three axes"),
        (lambda name: layers.Permute((2, 1), name=name), (2, 6), "expected ndim=3, got ndim=2"),
    ],
)
def test_refused_inputs(layer: Any, shapes: Any, message: str) -> None:
    arrays = [np.ones(s, "float32") for s in shapes] if isinstance(shapes, list) else np.ones(shapes, "float32")
    with pytest.raises(ValueError, match=message):
        layer(name="merged")(arrays)


@pytest.mark.parametrize("layer", [layers.Flatten, layers.RotaryEmbedding])
def test_an_unknown_number_of_axes_is_refused_where_it_is_needed(layer: Any) -> None:
    with pytest.raises(ValueError, match="The number of axes of the input is not known"):
        layer()(ab.placeholder(None, "float32"))


def test_dot_takes_the_last_axes_by_default_as_in_keras() -> None:
    left, right = np.array([[1.0, 2, 3], [4, 5, 6]]), np.array([[1.0, 0, 2], [3, 1, 1]])
    np.testing.assert_allclose(ab.layers.dot([left, right]), (left * right).sum(axis=-1, keepdims=True))


def test_calls_of_scripts_for_keras() -> None:
    config = layers.serialize(layer=layers.Dense(3, name="d"))
    assert layers.deserialize(config).get_config() == layers.Dense(3, name="d").get_config()
    assert ab.Input((2,), None, "int32", False, False, name="x").shape == (None, 2)
    with pytest.raises(ValueError, match="ragged=True is not supported"):
        ab.Input((2,), ragged=True)
