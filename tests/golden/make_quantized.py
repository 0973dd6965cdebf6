"""Golden files: models that Keras quantised and saved, with an input and the prediction for it.

Run by hand: ``/tmp/kerasenv/bin/python tests/golden/make_quantized.py`` (see README.md).
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras  # pyright: ignore[reportMissingImports]
import numpy as np

FOLDER = Path(__file__).resolve().parent / "files" / "quantized"
DAY = (2026, 1, 1, 0, 0, 0)


def dense() -> tuple[Any, Any]:
    layers = [keras.layers.Dense(5, activation="relu"), keras.layers.Dense(3, use_bias=False)]
    return keras.Sequential([keras.Input((6,)), *layers]), normal(3, 6)


def convolutions() -> tuple[Any, Any]:
    layers = [keras.layers.Conv2D(4, 3, groups=2, name="first"), keras.layers.Conv2D(3, (1, 2), use_bias=False)]
    return keras.Sequential([keras.Input((5, 6, 2)), *layers]), normal(2, 5, 6, 2)


def attention() -> tuple[Any, Any]:
    tokens = keras.Input((4,), dtype="int32")
    x = keras.layers.Embedding(9, 6, name="table")(tokens)
    x = keras.layers.MultiHeadAttention(2, 3, name="attention")(x, x)
    x = keras.layers.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de", name="heads")(x)
    return keras.Model(tokens, x), np.array([[1, 0, 8, 2], [3, 3, 5, 7]], "int32")


def reversible(tie_weights: bool) -> tuple[Any, Any]:
    tokens = keras.Input((4,), dtype="int32")
    layer = keras.layers.ReversibleEmbedding(9, 5, tie_weights=tie_weights, name="table")
    return keras.Model(tokens, layer(layer(tokens), reverse=True)), np.array([[1, 0, 8, 2]], "int32")


def blocks() -> tuple[Any, Any]:
    inputs = keras.Input((4,), dtype="int32")
    hidden = keras.layers.Embedding(9, 6, name="table")(inputs)
    hidden = keras.layers.Dense(5, activation="relu", name="first")(hidden)
    outputs = keras.layers.Dense(3, name="second")(hidden)
    return keras.Model(inputs, outputs), np.array([[1, 0, 8, 2], [3, 3, 5, 7]], "int32")


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "dense": dense,
    "attention": attention,
    "tied": lambda: reversible(True),
    "untied": lambda: reversible(False),
}


def normal(*shape: int) -> Any:
    return np.random.default_rng(7).normal(size=shape).astype("float32")


def configs() -> dict[str, Any]:
    quantizers = keras.quantizers
    return {
        "int8": quantizers.Int8QuantizationConfig(),
        "int8_weights": quantizers.Int8QuantizationConfig(activation_quantizer=None),
        "int4": quantizers.Int4QuantizationConfig(),
        "int4_blocks": quantizers.Int4QuantizationConfig(block_size=4),
        "int4_columns": quantizers.Int4QuantizationConfig(block_size=None),
    }


def save(model: Any, name: str, x: Any) -> None:
    path = FOLDER / f"{name}.keras"
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members:
            if member == "metadata.json":
                content = json.dumps({**json.loads(content), "date_saved": "2026-01-01@00:00:00"}).encode()
            archive.writestr(zipfile.ZipInfo(member, DAY), content, zipfile.ZIP_DEFLATED)
    np.savez_compressed(FOLDER / f"{name}.npz", x=x, prediction=model.predict(x, verbose=0))


def randomised(maker: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    keras.utils.clear_session()
    model, x = maker()
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(scale=0.5, size=weight.shape) for weight in model.weights])
    return model, x


def with_zero_points(layer: Any) -> tuple[Any, Any, Any]:
    """Return what Keras 3.15.1 forgets to save for GPTQ and AWQ, and expects when it loads."""
    if layer.quantization_mode in ("gptq", "awq"):
        return layer.kernel, None, layer.kernel_zero
    return _merged(layer)


_merged = keras.layers.Dense._get_kernel_with_merged_lora
keras.layers.Dense._get_kernel_with_merged_lora = with_zero_points


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name, maker in MODELS.items():
        for kind, config in configs().items():
            if (name, kind) == ("attention", "int8_weights"):
                continue  # Keras's file does not say that the layers inside of the attention round no inputs
            model, x = randomised(maker)
            model.quantize(config=config)
            save(model, f"{name}_{kind}", x)
    for mode, options in (("gptq", {"weight_bits": 4}), ("gptq", {"weight_bits": 8}), ("awq", {})):
        model, x = randomised(blocks)
        structure = {"pre_block_layers": [model.layers[1]], "sequential_blocks": model.layers[2:]}
        config = getattr(keras.quantizers, f"{mode.upper()}Config")(
            [np.arange(9) * 7 % 9],
            len,
            num_samples=3,
            sequence_length=4,
            group_size=4,
            quantization_layer_structure=structure,
            **options,
        )
        model.quantize(mode, config=config, filters="first|second")
        config.quantization_layer_structure = None
        save(model, f"blocks_{mode}{options.get('weight_bits', 4)}", x)
    model, x = randomised(dense)
    model.layers[0].enable_lora(2, lora_alpha=3)
    model.layers[0].lora_kernel_b.assign(normal(2, 5))
    save(model, "dense_lora", x)
    model, x = randomised(convolutions)
    for layer in model.layers[:2]:
        layer.enable_lora(2, lora_alpha=3)
        layer.lora_kernel_b.assign(normal(*layer.lora_kernel_b.shape))
    save(model, "convolutions_lora", x)


if __name__ == "__main__":
    main()
