"""Adapters of low rank (LoRA) of convolutions: numbers, training, files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, lora, ops

LAYERS: dict[str, tuple[Any, dict[str, Any], tuple[int, ...]]] = {
    "one axis": (layers.Conv1D, {"kernel_size": 3, "padding": "causal", "dilation_rate": 2}, (7, 2)),
    "two axes": (layers.Conv2D, {"kernel_size": (3, 2), "strides": (2, 1), "use_bias": False}, (6, 5, 3)),
    "windows of one": (layers.Conv2D, {"kernel_size": 1}, (3, 3, 2)),
    "groups": (layers.Conv2D, {"kernel_size": 3, "groups": 2, "padding": "same", "activation": "tanh"}, (5, 4, 4)),
    "channels first": (layers.Conv2D, {"kernel_size": 2, "data_format": "channels_first"}, (3, 5, 4)),
    "three axes": (layers.Conv3D, {"kernel_size": (2, 1, 2)}, (3, 2, 4, 2)),
}


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def adapted(name: str) -> tuple[Any, Any, Any]:
    """A layer with adapters that change something, an input, and the layer's kernel with these added."""
    cls, options, shape = LAYERS[name]
    layer, x = cls(4, bias_initializer="ones", name="layer", **options), normal(2, *shape)
    layer(x)
    layer.enable_lora(2, lora_alpha=3)
    layer.lora_kernel_b.assign(normal(2, 4, seed=1))
    a, b = layer.lora_kernel_a.numpy(), layer.lora_kernel_b.numpy()
    return layer, x, layer._kernel.numpy() + a @ b * 1.5


def plain(name: str, layer: Any, kernel: Any) -> Any:
    """A layer without adapters that has that kernel."""
    cls, options, shape = LAYERS[name]
    other = cls(4, name="layer", **options)
    other.build((None, *shape))
    other.set_weights([kernel, *([layer.bias.numpy()] if layer.use_bias else [])])
    return other


@pytest.mark.parametrize("name", LAYERS)
def test_adapters_are_added_to_the_kernel(name: str) -> None:
    layer, x, kernel = adapted(name)
    expected = plain(name, layer, kernel)(x)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layer.kernel, kernel, rtol=1e-5, atol=1e-6)
    own = ["bias"] if layer.use_bias else []
    assert [weight.name for weight in layer.trainable_weights] == [*own, "lora_kernel_a", "lora_kernel_b"]
    assert [weight.name for weight in layer.non_trainable_weights] == ["kernel"]
    store: dict[str, Any] = {}
    layer.save_own_variables(store)  # their sum, as Keras's files have it
    np.testing.assert_allclose(store["0"], kernel, rtol=1e-5, atol=1e-6)
    assert len(store) == 1 + len(own)
    again = type(layer).from_config(layer.get_config())
    assert (again.lora_rank, again.lora_alpha) == (2, 3)
    again.build(x.shape)
    again.load_own_variables(store)
    np.testing.assert_allclose(again(x), expected, rtol=1e-5, atol=1e-5)
    assert not again.lora_kernel_a.numpy().any()
    layer.merge_lora()
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-5)
    assert layer.kernel.trainable
    assert "lora_rank" not in layer.get_config()


def test_gradients_are_those_of_finite_differences() -> None:
    with ab.GradientTape() as tape:
        layer, x, _ = adapted("groups")
        loss = ops.sum(layer(x) ** 2)
    factors = [layer.lora_kernel_a, layer.lora_kernel_b]
    for factor, gradient in zip(factors, tape.gradient(loss, factors), strict=True):
        step = normal(*factor.shape, seed=2) * np.float32(1e-3)
        values = []
        for sign in (1, -1):
            factor.assign(factor.numpy() + sign * step)
            values.append(float(ops.sum(layer(x) ** 2)))
            factor.assign(factor.numpy() - sign * step)
        assert (values[0] - values[1]) / 2 == pytest.approx(float((gradient.numpy() * step).sum()), rel=2e-2, abs=1e-3)


def test_files_in_the_form_of_peft(tmp_path: Path) -> None:
    """There the second factor is a convolution by windows of one of what the first one gives."""

    def made() -> Any:
        return ab.Sequential([ab.Input((6, 5, 3)), layers.Conv2D(4, (3, 2), name="conv"), layers.Dense(2, name="head")])

    assert lora.enable(made(), 2) == ["head"]  # convolutions are asked for by their names
    model, x = made(), normal(2, 6, 5, 3)
    assert lora.enable(model, 2, alpha=6, filters=["conv", "head"]) == ["conv", "head"]
    conv = model.layers[0]
    conv.lora_kernel_b.assign(normal(2, 4, seed=1))
    lora.save(model, tmp_path)
    arrays = ab.saving.read_safetensors(tmp_path / "adapter_model.safetensors")
    a, b = (arrays[f"base_model.model.conv.lora_{factor}.weight"] for factor in "AB")
    assert (a.shape, b.shape) == ((2, 3, 3, 2), (4, 2, 1, 1))
    inner = ops.conv(x, np.transpose(a, (2, 3, 1, 0)))
    added = ops.conv(inner, np.transpose(b, (2, 3, 1, 0))) * 3.0
    without = ops.conv(x, conv._kernel.numpy())
    np.testing.assert_allclose(conv(x), without + added, rtol=1e-5, atol=1e-5)
    other = made()
    other.layers[0].set_weights([conv._kernel.numpy(), conv.bias.numpy()])
    other.layers[1].set_weights([model.layers[1]._kernel.numpy(), model.layers[1].bias.numpy()])
    assert lora.load(other, tmp_path) == ["conv", "head"]
    np.testing.assert_allclose(other.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-5)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="isn't yet built"):
        layers.Conv2D(2, 3).enable_lora(2)
    layer = layers.Conv1D(2, 3, kernel_constraint="non_neg")
    layer.build((None, 5, 2))
    with pytest.raises(ValueError, match="incompatible with kernel constraints"):
        layer.enable_lora(2)
    with pytest.raises(ValueError, match="no adapters of low rank"):
        layer.merge_lora()
