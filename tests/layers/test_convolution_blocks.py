"""Residual and Inception blocks against their parts, and gradients, saving, errors."""

from typing import Any

import numpy as np
import pytest
from shared.layer_gradients import check_layer_gradients

import anabranch as ab
from anabranch import layers


def data(*shape: int, dtype: str = "float64", seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def randomised(layer: Any, x: Any) -> Any:
    layer(x)
    layer.set_weights([0.5 + 0.3 * np.abs(data(*np.shape(w), seed=i)) for i, w in enumerate(layer.get_weights())])
    return layer


def convolved(x: Any, kernel: Any, strides: int = 1) -> Any:
    """Padding "same" by the definition, for odd sizes."""
    size, out = kernel.shape[0], -(-x.shape[1] // strides)
    total = max((out - 1) * strides + size - x.shape[1], 0)
    before = total // 2
    padded = np.pad(x, ((0, 0), (before, total - before), (before, total - before), (0, 0)))
    result = np.zeros((len(x), out, out, kernel.shape[-1]))
    for i in range(out):
        for j in range(out):
            window = padded[:, i * strides : i * strides + size, j * strides : j * strides + size]
            result[:, i, j] = np.einsum("bhwc,hwcf->bf", window, kernel)
    return result


def normalised(norm: Any, x: Any, training: bool) -> Any:
    gamma, beta, mean, variance = norm.get_weights()
    if training:
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) / np.sqrt(variance + norm.epsilon) * gamma + beta


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("channels", "strides"), [(3, 1), (2, 1), (3, 2)])
def test_residual_block_against_numpy(channels: int, strides: int, training: bool) -> None:
    x = data(2, 4, 4, channels)
    block = randomised(layers.ResidualBlock(3, strides=strides, dtype="float64"), x)
    kernel = block.first_conv.kernel.numpy()
    inner = np.maximum(normalised(block.first_norm, convolved(x, kernel, strides), training), 0)
    outer = normalised(block.second_norm, convolved(inner, block.second_conv.kernel.numpy()), training)
    shortcut = x
    assert (block.shortcut_conv is None) == (channels == 3 and strides == 1)
    if block.shortcut_conv is not None:
        shortcut = convolved(x, block.shortcut_conv.kernel.numpy(), strides)
        shortcut = normalised(block.shortcut_norm, shortcut, training)
    np.testing.assert_allclose(block(x, training=training), np.maximum(outer + shortcut, 0), rtol=1e-8, atol=1e-8)


def test_inception_block_against_numpy() -> None:
    x = data(2, 5, 5, 3)
    block = randomised(layers.InceptionBlock((2, (3, 4), (1, 2), 2), dtype="float64"), x)

    def activated(y: Any, layer: Any) -> Any:
        return np.maximum(convolved(y, layer.kernel.numpy()) + layer.bias.numpy(), 0)

    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    largest = np.max([padded[:, i : i + 5, j : j + 5] for i in range(3) for j in range(3)], axis=0)
    expected = [
        activated(x, block.one[0]),
        activated(activated(x, block.three[0]), block.three[1]),
        activated(activated(x, block.five[0]), block.five[1]),
        activated(largest, block.pooled[1]),
    ]
    np.testing.assert_allclose(block(x), np.concatenate(expected, axis=-1), rtol=1e-8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.ResidualBlock(2, strides=2, activation="tanh", dtype="float64"),
        lambda: layers.InceptionBlock((1, (1, 2), (1, 1), 1), activation="tanh", dtype="float64"),
    ],
)
def test_gradients_against_finite_differences(make: Any) -> None:
    x = data(2, 4, 4, 2)
    block = make()
    block(x)
    block.set_weights([0.3 + 0.2 * np.abs(data(*np.shape(w), seed=i)) for i, w in enumerate(block.get_weights())])

    check_layer_gradients(block, x, rtol=1e-5, atol=1e-7, known=(None, 4, 4, 2))


def test_saved_and_loaded(tmp_path: Any) -> None:
    model = ab.Sequential(
        [
            ab.Input((None, None, 3)),
            layers.ResidualBlock(4, strides=2, momentum=0.5),
            layers.InceptionBlock((2, (3, 4), (1, 2), 2), activation="tanh"),
            layers.GlobalAveragePooling2D(),
        ]
    )
    x = data(2, 6, 6, 3, dtype="float32")
    model.compile("sgd", "mse")
    model.fit(x, data(2, 10, dtype="float32"), verbose=0)
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded: Any = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), expected)
    assert [layer.get_config() for layer in loaded.layers] == [layer.get_config() for layer in model.layers]


@pytest.mark.parametrize("filters", [3, (1, 2, 3, 4), (1, (1, 2), (1, 2)), (1, (1, 2, 3), (1, 2), 1)])
def test_wrong_filters(filters: Any) -> None:
    with pytest.raises(ValueError, match="InceptionBlock: filters must be of the form"):
        layers.InceptionBlock(filters)
    with pytest.raises(ValueError, match="filters must be a positive integer, got filters=0"):
        layers.InceptionBlock((0, (1, 2), (1, 2), 1))
    with pytest.raises(ValueError, match="ResidualBlock: filters must be a positive integer"):
        layers.ResidualBlock(-1)
