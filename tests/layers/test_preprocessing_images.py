"""Image layers: known pixels, what is drawn at random, shapes, and models that augment in training only."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.framework.saving.api import deserialize_keras_object, serialize_keras_object

L = ab.layers
IMAGES = np.random.default_rng(0).uniform(0, 255, size=(3, 4, 6, 3)).astype("float32")
RANDOM: list[tuple[Any, dict[str, Any]]] = [
    (L.RandomFlip, {}),
    (L.RandomFlip, {"mode": "vertical"}),
    (L.RandomRotation, {"factor": 0.2}),
    (L.RandomRotation, {"factor": (-0.1, 0.3), "fill_mode": "constant", "fill_value": 7.0, "interpolation": "nearest"}),
    (L.RandomZoom, {"height_factor": 0.3}),
    (L.RandomZoom, {"height_factor": (-0.3, -0.1), "width_factor": 0.2}),
    (L.RandomTranslation, {"height_factor": 0.5, "width_factor": (-0.2, 0.2), "fill_mode": "wrap"}),
    (L.RandomContrast, {"factor": 0.5}),
    (L.RandomBrightness, {"factor": 0.4}),
    (L.RandomErasing, {}),
    (L.RandomErasing, {"fill_value": 3.0, "factor": (0.2, 0.9)}),
]
FIXED: list[tuple[Any, dict[str, Any]]] = [
    (L.Resizing, {"height": 2, "width": 3}),
    (L.Resizing, {"height": 5, "width": 2, "interpolation": "nearest", "crop_to_aspect_ratio": True}),
    (L.CenterCrop, {"height": 2, "width": 3}),
    (L.CenterCrop, {"height": 8, "width": 3}),
]


def name_of(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else json.dumps(value)


@pytest.mark.parametrize(("kind", "kwargs"), RANDOM, ids=name_of)
def test_random_layers_act_in_training_only_and_repeat_with_a_seed(kind: Any, kwargs: dict[str, Any]) -> None:
    first, second = kind(seed=5, **kwargs), kind(seed=5, **kwargs)
    outputs = first(IMAGES, training=True)
    assert outputs.shape == IMAGES.shape
    assert np.isfinite(outputs).all()
    np.testing.assert_array_equal(second(IMAGES, training=True), outputs)
    assert any((first(IMAGES, training=True) != IMAGES).any() for _ in range(4))
    np.testing.assert_array_equal(first(IMAGES, training=False), IMAGES)


@pytest.mark.parametrize(("kind", "kwargs"), RANDOM, ids=name_of)
def test_channels_first_is_the_same_turned(kind: Any, kwargs: dict[str, Any]) -> None:
    if kind is L.RandomErasing and "fill_value" not in kwargs:
        return  # its noise is drawn in the order of the elements
    last = kind(seed=2, **kwargs)(IMAGES)
    first = kind(seed=2, data_format="channels_first", **kwargs)(IMAGES.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(first.transpose(0, 2, 3, 1), last, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("kind", "kwargs"), RANDOM + FIXED, ids=name_of)
def test_one_image_goes_in_as_in_a_batch(kind: Any, kwargs: dict[str, Any]) -> None:
    seeded = kwargs if (kind, kwargs) in FIXED else {**kwargs, "seed": 1}
    batch, single = kind(**seeded)(IMAGES[:1]), kind(**seeded)(IMAGES[0])
    np.testing.assert_allclose(single, batch[0], rtol=1e-6)
    assert kind(**kwargs).compute_output_shape((None, 4, 6, 3)) == (None, *single.shape)


@pytest.mark.parametrize(("kind", "kwargs"), RANDOM + FIXED + [(L.RandomCrop, {"height": 2, "width": 3})], ids=name_of)
def test_configs_make_the_same_layer(kind: Any, kwargs: dict[str, Any]) -> None:
    layer = kind(**kwargs)
    again = deserialize_keras_object(json.loads(json.dumps(serialize_keras_object(layer))))
    assert json.dumps(again.get_config()) == json.dumps(layer.get_config())


# --- known pixels ---------------------------------------------------------------------------------------------------


def test_flips_turn_half_of_the_images() -> None:
    images = np.arange(64 * 4, dtype="float32").reshape(64, 2, 2, 1)
    outputs = L.RandomFlip(seed=3)(images)
    turned = [bool((outputs[i] == images[i, ::-1, ::-1]).all()) for i in range(64)]
    kept = [bool((outputs[i] == images[i]).all()) for i in range(64)]
    assert all(a != b for a, b in zip(turned, kept, strict=True))
    assert 16 < sum(turned) < 48


def test_a_quarter_turn_and_a_shift_and_a_zoom() -> None:
    image = np.arange(9.0, dtype="float32").reshape(1, 3, 3, 1)
    np.testing.assert_allclose(L.RandomRotation((0.25, 0.25))(image)[0, ..., 0], np.rot90(image[0, ..., 0]), atol=1e-4)
    right = L.RandomTranslation(0.0, (1 / 3, 1 / 3), fill_mode="constant", fill_value=-1.0)(image)[0, ..., 0]
    np.testing.assert_allclose(right, [[-1, 0, 1], [-1, 3, 4], [-1, 6, 7]], atol=1e-4)
    out = L.RandomZoom((1.0, 1.0), fill_mode="constant")(image)[0, ..., 0]
    np.testing.assert_allclose(out, [[0, 0, 0], [0, 4, 0], [0, 0, 0]], atol=1e-4)


def test_colours_stay_in_their_range() -> None:
    assert L.RandomBrightness((1.0, 1.0))(IMAGES).max() == 255
    assert (L.RandomBrightness((-1.0, -1.0))(IMAGES) == 0).all()
    strong = L.RandomContrast((0.0, 1.0), seed=1)(IMAGES)
    assert strong.min() >= 0
    assert strong.max() <= 255
    flat = np.full((2, 3, 3, 1), 9.0, "float32")
    np.testing.assert_allclose(L.RandomContrast(0.7)(flat), flat, rtol=1e-6)


def test_erasing_fills_one_rectangle() -> None:
    images = np.zeros((5, 20, 20, 2), "float32")
    outputs = L.RandomErasing((1.0, 1.0), scale=(0.25, 0.25), fill_value=[1.0, 2.0], seed=0)(images)
    for image in outputs:
        rows, columns = np.nonzero(image[..., 0])
        assert len(rows) == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        assert 80 < len(rows) < 125
        np.testing.assert_array_equal(image[..., 1], 2 * image[..., 0])


def test_crops_are_windows_of_the_images() -> None:
    images = np.arange(2 * 5 * 7, dtype="float32").reshape(2, 5, 7, 1)
    outputs = L.RandomCrop(3, 4, seed=9)(images)
    top, left = divmod(int(outputs[0, 0, 0, 0]), 7)
    np.testing.assert_array_equal(outputs, images[:, top : top + 3, left : left + 4])
    starts = {float(L.RandomCrop(3, 4, seed=seed)(images)[0, 0, 0, 0]) for seed in range(20)}
    assert len(starts) > 3
    assert L.RandomCrop(10, 14, seed=1)(images).shape == (2, 10, 14, 1)
    np.testing.assert_array_equal(L.RandomCrop(3, 4)(images, training=False), images)


def test_center_crop_takes_the_middle_and_resizes_what_is_too_small() -> None:
    np.testing.assert_array_equal(L.CenterCrop(2, 4)(IMAGES), IMAGES[:, 1:3, 1:5])
    small = L.CenterCrop(8, 8)(IMAGES)
    np.testing.assert_allclose(small, L.Resizing(8, 8)(IMAGES[:, :, 1:5]), rtol=1e-5)


def test_resizing_keeps_integers() -> None:
    images = IMAGES.astype("uint8")
    outputs = L.Resizing(2, 3)(images)
    assert outputs.dtype == np.uint8
    np.testing.assert_array_equal(outputs, np.round(L.Resizing(2, 3)(images.astype("float32"))))


# --- dicts ----------------------------------------------------------------------------------------------------------


def test_masks_move_with_their_images_and_labels_stay() -> None:
    masks = (IMAGES[..., :1] > 100).astype("float32")
    data = {"images": np.repeat(masks, 3, axis=-1), "labels": np.arange(3), "segmentation_masks": masks}
    outputs = L.RandomFlip(seed=4)(data)
    np.testing.assert_array_equal(outputs["images"][..., :1], outputs["segmentation_masks"])
    np.testing.assert_array_equal(outputs["labels"], data["labels"])
    bright = L.RandomBrightness(0.5, seed=4)(data)
    np.testing.assert_array_equal(bright["segmentation_masks"], masks)


def test_other_keys_and_other_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got \['images', 'weights'\]"):
        L.RandomRotation(0.1)({"images": IMAGES, "weights": np.zeros(3)})
    with pytest.raises(ValueError, match=r"expects one image \(3 axes\)"):
        L.RandomFlip()(np.zeros((4, 4)))


@pytest.mark.parametrize(
    ("kind", "kwargs", "message"),
    [
        (L.RandomFlip, {"mode": "diagonal"}, "mode='diagonal'"),
        (L.RandomRotation, {"factor": 2.0}, "from -1 to 1; got factor=2.0"),
        (L.RandomRotation, {"factor": 0.1, "fill_mode": "zeros"}, "fill_mode must be one of"),
        (L.RandomZoom, {"height_factor": -1.0}, "greater than -1"),
        (L.RandomTranslation, {"height_factor": 0.1, "width_factor": (0.1,)}, r"width_factor=\(0.1,\)"),
        (L.RandomContrast, {"factor": -0.5}, "from 0 to 1"),
        (L.RandomBrightness, {"factor": 0.1, "value_range": 3}, "value_range must be a pair"),
        (L.Resizing, {"height": 0, "width": 2}, "height=0"),
        (L.CenterCrop, {"height": 2, "width": 2.5}, "width=2.5"),
        (L.RandomFlip, {"data_format": "channels"}, "data_format must be"),
    ],
    ids=name_of,
)
def test_arguments_out_of_range_are_refused(kind: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**kwargs)


# --- models ---------------------------------------------------------------------------------------------------------


def test_a_model_augments_in_training_and_saves(tmp_path: Any) -> None:
    layers = [L.RandomFlip(seed=0), L.RandomRotation(0.1), L.RandomZoom(0.1), L.Rescaling(1 / 255), L.Flatten()]
    model = ab.Sequential([ab.Input((4, 6, 3)), *layers, L.Dense(2)])
    model.compile("sgd", "mse")
    model.fit(IMAGES, np.zeros((3, 2)), epochs=2, verbose=0)
    expected = model.predict(IMAGES, verbose=0)
    np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), expected)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(ab.load_model(tmp_path / "model.keras").predict(IMAGES, verbose=0), expected)


def test_sizes_may_be_unknown_until_data_come() -> None:
    model = ab.Sequential([ab.Input((None, None, 3)), L.RandomRotation(0.1), L.Resizing(2, 2)])
    assert model.output_shape == (None, 2, 2, 3)
    assert model.predict(IMAGES, verbose=0).shape == (3, 2, 2, 3)
    with pytest.raises(ValueError, match="known height and width"):
        ab.Sequential([ab.Input((None, None, 3)), L.CenterCrop(2, 2)])
