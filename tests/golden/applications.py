"""The models of `applications.json`, and weights for them that Keras and the tests draw alike."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

RESNETS = ["ResNet50", "ResNet101", "ResNet152", "ResNet50V2", "ResNet101V2", "ResNet152V2"]
EFFICIENT = [f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "S", "M", "L")]
CONVNEXT = [f"ConvNeXt{size}" for size in ("Tiny", "Small", "Base", "Large", "XLarge")]
OTHERS = ["MobileNetV2", "MobileNetV3Small", "MobileNetV3Large", "VGG16", "VGG19"]
DENSE = ["DenseNet121", "DenseNet169", "DenseNet201"]
FIRST = [
    *[f"EfficientNetB{number}" for number in range(8)],
    *["InceptionV3", "InceptionResNetV2", "MobileNet", "NASNetMobile", "NASNetLarge", "Xception"],
]
MODELS = [*RESNETS, *EFFICIENT, *CONVNEXT, *OTHERS, *DENSE, *FIRST]

_FEATURES: dict[str, Any] = {"include_top": False}
# Names of cases to the model and its arguments; weights are None in all.
STRUCTURES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in MODELS},
    "ResNet50/features": ("ResNet50", {**_FEATURES, "pooling": "avg", "name": "backbone"}),
    "ResNet50V2/features": ("ResNet50V2", {**_FEATURES, "pooling": "max", "input_shape": [64, 96, 1]}),
    "MobileNetV2/wide": ("MobileNetV2", {"alpha": 1.4, "input_shape": [96, 96, 3], "classes": 7}),
    "MobileNetV2/features": ("MobileNetV2", {**_FEATURES, "alpha": 0.35, "pooling": "max"}),
    "MobileNetV3Small/minimalistic": ("MobileNetV3Small", {"minimalistic": True, "dropout_rate": 0, "classes": 7}),
    "MobileNetV3Small/features": ("MobileNetV3Small", {**_FEATURES, "alpha": 0.75, "include_preprocessing": False}),
    "MobileNetV3Large/wide": ("MobileNetV3Large", {"alpha": 1.25, "input_shape": [64, 64, 3]}),
    "EfficientNetV2B0/grey": ("EfficientNetV2B0", {"input_shape": [64, 64, 1], "classes": 5}),
    "EfficientNetV2B0/features": ("EfficientNetV2B0", {**_FEATURES, "include_preprocessing": False, "pooling": "avg"}),
    "ConvNeXtTiny/grey": ("ConvNeXtTiny", {"input_shape": [32, 32, 1], "classes": 5}),
    "ConvNeXtTiny/features": ("ConvNeXtTiny", {**_FEATURES, "pooling": "avg", "include_preprocessing": False}),
    "VGG16/features": ("VGG16", {**_FEATURES, "pooling": "avg"}),
    "DenseNet121/features": ("DenseNet121", {**_FEATURES, "pooling": "max"}),
    "EfficientNetB0/grey": ("EfficientNetB0", {"input_shape": [33, 64, 1], "classes": 5}),
    "EfficientNetB0/features": ("EfficientNetB0", {**_FEATURES, "pooling": "max"}),
    "InceptionV3/features": ("InceptionV3", {**_FEATURES, "pooling": "max"}),
    "InceptionResNetV2/features": ("InceptionResNetV2", {**_FEATURES, "pooling": "avg", "input_shape": [75, 80, 3]}),
    "MobileNet/narrow": ("MobileNet", {"alpha": 0.25, "input_shape": [128, 128, 3], "classes": 7}),
    "MobileNet/features": ("MobileNet", {**_FEATURES, "alpha": 0.3, "depth_multiplier": 2, "pooling": "max"}),
    "NASNetMobile/features": ("NASNetMobile", {**_FEATURES, "pooling": "avg", "input_shape": [33, 96, 3]}),
    "Xception/features": ("Xception", {**_FEATURES, "pooling": "max", "input_shape": [71, 90, 1]}),
}

_SMALL: dict[str, Any] = {"input_shape": [40, 33, 3], "classes": 10, "classifier_activation": None}
# Names of cases whose outputs are recorded, for two images of odd sizes, with the gain of `draw_weights`.
OUTPUTS: dict[str, tuple[str, dict[str, Any], float]] = {
    "ResNet50": ("ResNet50", _SMALL, 1.0),
    "ResNet50V2": ("ResNet50V2", _SMALL, 1.0),
    "MobileNetV2": ("MobileNetV2", {**_SMALL, "alpha": 0.35, "classifier_activation": "softmax"}, 1.3),
    "MobileNetV3Small": ("MobileNetV3Small", _SMALL, 1.5),
    "MobileNetV3Large": ("MobileNetV3Large", _SMALL, 1.4),
    "MobileNetV3Small/minimalistic": ("MobileNetV3Small", {**_SMALL, "minimalistic": True}, 1.3),
    "EfficientNetV2B0": ("EfficientNetV2B0", _SMALL, 1.3),
    "EfficientNetV2S": ("EfficientNetV2S", _SMALL, 1.15),
    "ConvNeXtTiny": ("ConvNeXtTiny", _SMALL, 1.0),
    "DenseNet121": ("DenseNet121", _SMALL, 1.2),
    "VGG16": ("VGG16", {"include_top": False, "pooling": "avg", "input_shape": [40, 33, 3]}, 1.0),
    "VGG19": ("VGG19", {"include_top": False, "pooling": "max", "input_shape": [40, 33, 3]}, 1.0),
    "EfficientNetB0": ("EfficientNetB0", _SMALL, 1.6),
    "InceptionV3": ("InceptionV3", {**_SMALL, "input_shape": [75, 80, 3]}, 1.0),
    "InceptionResNetV2": ("InceptionResNetV2", {**_SMALL, "input_shape": [75, 80, 3]}, 1.0),
    "MobileNet": ("MobileNet", {**_SMALL, "alpha": 0.25}, 1.3),
    "NASNetMobile": ("NASNetMobile", _SMALL, 1.3),
    "Xception": ("Xception", {**_SMALL, "input_shape": [71, 80, 3]}, 1.2),
}
# Names of cases whose files of weights are recorded.
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in MODELS},
    **{f"{name}/features": (name, _FEATURES) for name in MODELS},
    "MobileNet/narrow": ("MobileNet", {"alpha": 0.25, "input_shape": [128, 128, 3]}),
    "MobileNet/160": ("MobileNet", {**_FEATURES, "alpha": 0.5, "input_shape": [160, 160, 3]}),
    "MobileNetV2/96": ("MobileNetV2", {"alpha": 0.35, "input_shape": [96, 96, 3]}),
    "MobileNetV2/128": ("MobileNetV2", {**_FEATURES, "alpha": 1.4, "input_shape": [128, 128, 3]}),
    "MobileNetV3Small/narrow": ("MobileNetV3Small", {"alpha": 0.75}),
    "MobileNetV3Large/narrow": ("MobileNetV3Large", {**_FEATURES, "alpha": 0.75}),
    "MobileNetV3Small/minimalistic": ("MobileNetV3Small", {**_FEATURES, "minimalistic": True}),
    "MobileNetV3Large/minimalistic": ("MobileNetV3Large", {"minimalistic": True}),
}


def digest(lines: Iterable[str]) -> str:
    """The first digits of a hash of lines."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def structure(model: Any) -> dict[str, Any]:
    """Return what is recorded of a model: counts, and hashes of its layers and of its weights, in their order."""
    layers = [f"{layer.name} {type(layer).__name__}" for layer in model.layers]
    # Keras leaves the one weight of ConvNeXt's LayerScale without a name.
    paths = [re.sub(r"layer_scale/\w+$", "layer_scale/gamma", weight.path) for weight in model.weights]
    if model.name.startswith("nasnet"):  # where Keras has scopes of names around layers, which files do not say
        paths = ["/".join(path.split("/")[-2:]) for path in paths]
    weights = [
        f"{path} {tuple(weight.shape)} {weight.trainable}" for path, weight in zip(paths, model.weights, strict=True)
    ]
    return {
        "parameters": int(model.count_params()),
        "layers": len(layers),
        "weights": len(weights),
        "layers_hash": digest(layers),
        "weights_hash": digest(weights),
        "output_shape": list(model.output_shape),
    }


def images(shape: list[int]) -> Any:
    """Two images, from 0 to 255."""
    return np.random.default_rng(1).uniform(0, 255, (2, *shape)).astype("float32")


def draw_weights(model: Any, gain: float = 1.0) -> None:
    """Give a model weights, drawn one after the other by their names and shapes.

    Args:
        model: the model.
        gain: of each normalisation: what keeps signals from fading or growing in models with many of them.
    """
    random = np.random.default_rng(2)
    model.set_weights(
        [_draw(random, weight.path.rpartition("/")[2], tuple(weight.shape), gain) for weight in model.weights]
    )


def _draw(random: np.random.Generator, name: str, shape: tuple[int, ...], gain: float) -> Any:
    if name == "moving_variance":
        return random.uniform(0.5, 1.5, shape).astype("float32")
    if name in ("mean", "variance", "count"):  # of a Normalization, which goes by them when they come from a file
        return (np.ones if name == "variance" else np.zeros)(shape, "float32")
    if name == "gamma" or name.startswith("variable"):
        return random.uniform(0.5 * gain, 1.5 * gain, shape).astype("float32")
    values = random.standard_normal(shape, "float32")
    if not name.endswith("kernel"):
        return values * np.float32(0.1)
    terms = np.prod(shape[:2] if len(shape) == 4 and shape[-1] == 1 else shape[:-1])
    return values / np.sqrt(terms).astype("float32")
