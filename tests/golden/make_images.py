"""Golden cases of image layers: fixed ones, and random ones with what they are to have drawn given."""

from __future__ import annotations

from typing import Any

import keras  # pyright: ignore[reportMissingImports]
import numpy as np
from pack import Pack, seeded

Drawn = dict[str, Any]
SHAPE = (2, 5, 6, 3)


def column(*values: float) -> np.ndarray:
    """One number for each of the two images, with axes to broadcast."""
    return np.array(values, "float32").reshape(2, 1, 1, 1)


def row(*values: float) -> np.ndarray:
    """One number for each of the two images, without further axes."""
    return np.array(values, "float32")


def flags(*values: bool) -> np.ndarray:
    """As `column`, of truth values."""
    return np.array(values).reshape(2, 1, 1, 1)


CORNERS = np.array([[[0, 0], [5, 0], [0, 4], [5, 4]]] * 2, "float32")
MOVED = CORNERS * np.array([[[1, 1], [0.75, 1.2], [1.1, 0.8], [1.3, 0.9]], [[1, 1], [1, 1.1], [1, 1], [0.6, 0.7]]])
SHEARED = {"shear_factor": np.array([[0.26, -0.12], [0, 0.47]], "float32")}
INSIDE = np.zeros((2, 5, 6, 1), bool)
INSIDE[0, 1:3, 2:6] = INSIDE[1, :4, :3] = True
PARTNERS = np.array([1, 0], "int32")
NEGATIVE = {"additions": column(0, 0), "thresholds": column(0, 0)}
SOLARIZED = {"additions": column(20, 90), "thresholds": column(128, 200)}
UNIT = {"value_range": [0, 1]}

# Layer, arguments, values from 0 up to this, and what is drawn, by the names of Keras and here (None: not random).
CASES: list[tuple[str, dict[str, Any], float, Drawn | None]] = [
    ("Resizing", {"height": 3, "width": 4}, 255, None),
    ("Resizing", {"height": 9, "width": 7, "interpolation": "bicubic"}, 255, None),
    ("Resizing", {"height": 3, "width": 4, "interpolation": "nearest"}, 255, None),
    ("Resizing", {"height": 3, "width": 3, "interpolation": "lanczos3", "antialias": True}, 255, None),
    ("Resizing", {"height": 3, "width": 3, "crop_to_aspect_ratio": True}, 255, None),
    ("Resizing", {"height": 4, "width": 4, "pad_to_aspect_ratio": True, "fill_value": 7.0}, 255, None),
    ("CenterCrop", {"height": 3, "width": 4}, 255, None),
    ("CenterCrop", {"height": 7, "width": 4}, 255, None),
    ("Rescaling", {"scale": 1 / 127.5, "offset": -1.0}, 255, None),
    ("Normalization", {"mean": [120.0, 110.0, 100.0], "variance": [100.0, 400.0, 900.0]}, 255, None),
    ("AutoContrast", {}, 200, None),
    ("AutoContrast", UNIT, 0.5, None),
    ("Equalization", {}, 255, None),
    ("Equalization", {"bins": 16}, 100, None),
    ("Equalization", UNIT, 1, None),
    ("Solarization", {}, 255, NEGATIVE),
    ("Solarization", {}, 255, SOLARIZED),
    ("Solarization", UNIT, 1, SOLARIZED),
    ("RandomHue", {"factor": 0.5}, 255, {"factor": row(0.2, -0.4)}),
    ("RandomHue", {"factor": 0.5, **UNIT}, 1, {"factor": row(-0.5, 0.5)}),
    ("RandomSaturation", {"factor": 0.5}, 255, {"factor": row(0.5, 1.5)}),
    ("RandomSaturation", {"factor": 0.5, **UNIT}, 1, {"factor": row(0, 3)}),
    ("RandomSharpness", {"factor": 0.5}, 255, {"factor": row(0.2, 0.9)}),
    ("RandomGrayscale", {}, 255, {"apply_grayscale": flags(True, False)}),
    ("RandomInvert", {}, 255, {"apply_inversion": np.array([True, False])}),
    ("RandomInvert", UNIT, 1, {"apply_inversion": np.array([False, True])}),
    ("RandomPosterization", {"factor": 4}, 255, {"shift_factor": row(3, 6).astype("uint8")}),
    ("RandomPosterization", {"factor": 4, **UNIT}, 1, {"shift_factor": row(4, 7).astype("uint8")}),
    ("RandomColorDegeneration", {"factor": 0.5}, 255, {"factor": column(0.3, 1)}),
    ("RandomContrast", {"factor": 0.5}, 255, {"contrast_factor": column(0.5, 1.5)}),
    ("RandomBrightness", {"factor": 0.5}, 255, {"rgb_delta": column(-60, 90)}),
    (
        "RandomPerspective",
        {"fill_value": 9.0},
        255,
        {"apply_perspective": np.array([True, True]), "start_points": CORNERS, "end_points": MOVED.astype("float32")},
    ),
    ("RandomShear", {"x_factor": 0.5, "y_factor": 0.5}, 255, SHEARED),
    (
        "RandomShear",
        {"x_factor": 0.5, "fill_mode": "constant", "fill_value": 3.0, "interpolation": "nearest"},
        255,
        SHEARED,
    ),
    (
        "RandomGaussianBlur",
        {"kernel_size": [3, 5]},
        255,
        {"should_apply_blur": np.array([True, False]), "blur_factor": row(0.5, 0.9)},
    ),
    ("MixUp", {}, 255, {"mix_weight": row(0.25, 0.9), "permutation_order": PARTNERS}),
    (
        "CutMix",
        {},
        255,
        {"batch_masks": np.repeat(INSIDE, 3, -1), "mix_weight": row(0.7, 0.6), "permutation_order": PARTNERS},
    ),
    ("ContrastLimitedAdaptiveHistogramEqualization", {"tile_grid_size": [2, 3]}, 255, None),
    ("ContrastLimitedAdaptiveHistogramEqualization", {"tile_grid_size": [3, 2], "clip_limit": 60.0}, 90, None),
    ("ContrastLimitedAdaptiveHistogramEqualization", {"clip_limit": 0.0, **UNIT}, 1, None),
]


def make(versions: dict[str, str]) -> None:
    """Writes ``images.npz`` and ``images.json``."""
    pack = Pack("images", versions)
    labels = np.array([[1, 0, 0], [0, 0.5, 0.5]], "float32")
    for number, (target, kwargs, top, drawn) in enumerate(CASES):
        name = f"{target}/{number}"
        images = seeded(name).uniform(0, top, SHAPE).astype("float32")
        layer = getattr(keras.layers, target)(**kwargs)
        theirs = drawn["apply_grayscale"] if drawn and target == "RandomGrayscale" else drawn
        outputs = np.asarray(layer(images) if theirs is None else layer.transform_images(images, theirs))
        mixed = np.asarray(layer.transform_labels(labels, theirs)) if target in ("MixUp", "CutMix") else None
        pack.add(
            name=name,
            target=target,
            kwargs=kwargs,
            inputs=pack.array(images),
            drawn=pack.arrays(drawn or {}),
            outputs=pack.array(outputs.astype("float32")),
            labels=None if mixed is None else pack.array(mixed.astype("float32")),
            given_labels=None if mixed is None else pack.array(labels),
        )
    pack.write()
