"""The steps of a call of image layers, by Keras's names: taken one by one, and overridden by a class of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers as L  # noqa: N812 - short in long tables

MOVES: list[Any] = [
    lambda: L.RandomFlip("horizontal", seed=3, bounding_box_format="xyxy"),
    lambda: L.RandomRotation(0.1, seed=3, bounding_box_format="xyxy"),
    lambda: L.RandomZoom(0.3, 0.2, seed=3, bounding_box_format="xyxy"),
    lambda: L.RandomTranslation(0.3, 0.2, seed=3, bounding_box_format="xyxy"),
    lambda: L.RandomShear(0.3, 0.2, seed=3, bounding_box_format="xyxy"),
    lambda: L.RandomPerspective(seed=3, bounding_box_format="xyxy"),
    lambda: L.RandomCrop(4, 5, seed=3, bounding_box_format="xyxy"),
    lambda: L.CenterCrop(4, 5, bounding_box_format="xyxy"),
    lambda: L.Resizing(9, 5, bounding_box_format="xyxy"),
    lambda: L.MixUp(seed=3, bounding_box_format="xyxy"),
]
COLOURS: list[Any] = [
    lambda: L.RandomBrightness(0.3, seed=3),
    lambda: L.RandomContrast(0.3, seed=3),
    lambda: L.RandomHue(0.3, seed=3),
    lambda: L.RandomSaturation(0.3, seed=3),
    lambda: L.RandomSharpness(0.3, seed=3),
    lambda: L.RandomGrayscale(seed=3),
    lambda: L.RandomInvert(seed=3),
    lambda: L.RandomPosterization(4, seed=3),
    lambda: L.RandomColorDegeneration(0.3, seed=3),
    lambda: L.RandomColorJitter(brightness_factor=0.2, hue_factor=0.1, seed=3),
    lambda: L.RandomGaussianBlur(seed=3),
    lambda: L.RandomErasing(seed=3),
    lambda: L.Solarization(0.3, 0.5, seed=3),
    lambda: L.AutoContrast(),
    lambda: L.Equalization(),
]
OTHERS: list[Any] = [
    lambda: L.CutMix(seed=3),
    lambda: L.RandomElasticTransform(seed=3),
    lambda: L.RandAugment(seed=3),
    lambda: L.AugMix(seed=3),
]


def name_of(make: Any) -> str:
    return type(make()).__name__


def data_of(shape: tuple[int, ...] = (3, 8, 10, 3)) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    count = shape[0]
    return {
        "images": rng.uniform(0, 255, shape).astype("float32"),
        "labels": np.eye(4, dtype="float32")[:count],
        "segmentation_masks": rng.integers(0, 3, (*shape[:-1], 1)).astype("uint8"),
        "bounding_boxes": {
            "boxes": np.array([[[1.0, 2.0, 6.0, 7.0], [3.0, 1.0, 5.0, 4.0]]] * count, "float32"),
            "labels": np.array([[1, 2]] * count),
        },
    }


def first_of(data: dict[str, Any]) -> dict[str, Any]:
    return {key: first_of(value) if isinstance(value, dict) else value[0] for key, value in data.items()}


def equal(made: Any, expected: Any) -> None:
    assert made.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, dict):
            equal(made[key], value)
        else:
            np.testing.assert_allclose(made[key], value, rtol=1e-6, err_msg=key)


@pytest.mark.parametrize("make", MOVES + COLOURS, ids=name_of)
def test_steps_by_hand_give_what_a_call_gives(make: Any) -> None:
    data = data_of()
    called = make()(data, training=True)
    layer = make()
    drawn = layer.get_random_transformation(data, training=True)
    by_hand = {
        "images": layer.transform_images(data["images"], drawn, training=True),
        "labels": layer.transform_labels(ab.ops.convert_to_tensor(data["labels"]), drawn, training=True),
        "segmentation_masks": layer.transform_segmentation_masks(data["segmentation_masks"], drawn, training=True),
        "bounding_boxes": layer.transform_bounding_boxes(data["bounding_boxes"], drawn, training=True),
    }
    equal(by_hand, called)


@pytest.mark.parametrize("make", MOVES, ids=name_of)
def test_steps_for_one_image(make: Any) -> None:
    data = first_of(data_of())
    called = make()(data, training=True)
    layer = make()
    drawn = layer.get_random_transformation(data)
    by_hand = {
        "images": layer.transform_single_image(data["images"], drawn),
        "labels": layer.transform_single_label(data["labels"], drawn),
        "segmentation_masks": layer.transform_single_segmentation_mask(data["segmentation_masks"], drawn),
        "bounding_boxes": layer.transform_single_bounding_box(data["bounding_boxes"], drawn),
    }
    equal(by_hand, called)
    np.testing.assert_array_equal(layer.transform_images(data["images"], drawn), called["images"])


@pytest.mark.parametrize("make", OTHERS, ids=name_of)
def test_images_of_other_layers(make: Any) -> None:
    images = data_of()["images"]
    layer = make()
    drawn = layer.get_random_transformation({"images": images})
    np.testing.assert_allclose(layer.transform_images(images, drawn), make()(images, training=True), rtol=1e-6)


@pytest.mark.parametrize("make", [each for each in MOVES + COLOURS + OTHERS if "Random" in name_of(each)], ids=name_of)
def test_nothing_is_drawn_outside_of_training(make: Any) -> None:
    layer, images = make(), data_of()["images"]
    assert layer.get_random_transformation(images, training=False) is None
    np.testing.assert_array_equal(layer.transform_images(images, None, training=False), images)


def test_a_seed_takes_the_place_of_the_generator() -> None:
    images = data_of()["images"]
    layer = L.RandomColorJitter(brightness_factor=0.3, contrast_factor=0.3, seed=1)
    drawn = [layer.get_random_transformation(images, seed=7) for _ in range(2)]
    other = layer.get_random_transformation(images, seed=8)
    made = [np.asarray(layer.transform_images(images, each)) for each in (*drawn, other)]
    np.testing.assert_array_equal(made[0], made[1])
    assert not np.allclose(made[0], made[2])


def test_a_given_transformation() -> None:
    rows = np.arange(2.0, dtype="float32").reshape(2, 1, 1, 1) * np.ones((2, 4, 4, 1), "float32")
    drawn = {"mix_weight": [0.25, 1.0], "permutation_order": [1, 0]}
    np.testing.assert_allclose(np.asarray(L.MixUp().transform_images(rows, drawn))[:, 0, 0, 0], [0.75, 1.0])
    flips = {"flips": [[True]], "input_shape": (10, 8, 3)}
    layer = L.RandomFlip("horizontal", bounding_box_format="xyxy")
    boxes = {"boxes": np.array([[2.0, 1.0, 4.0, 3.0]]), "labels": np.array([1])}
    assert np.asarray(layer.transform_bounding_boxes(boxes, flips)["boxes"]).tolist() == [[4.0, 1.0, 6.0, 3.0]]


def test_a_class_of_ones_own_overrides_steps() -> None:
    class Darker(L.RandomBrightness):
        def get_random_transformation(self, data: Any, training: Any = True, seed: Any = None) -> Any:
            return {"rgb_delta": self.backend.numpy.full((2, 1, 1, 1), -10.0)}

        def transform_labels(self, labels: Any, transformation: Any, training: Any = True) -> Any:
            return labels + self.backend.cast(transformation["rgb_delta"][:, 0, 0, 0], labels.dtype)

    class Halved(L.RandomFlip):
        def transform_images(self, images: Any, transformation: Any, training: Any = True) -> Any:
            return super().transform_images(images, transformation, training) / 2.0

    images = np.full((2, 4, 4, 3), 100.0, "float32")
    made = Darker(0.1)({"images": images, "labels": np.array([30.0, 40.0])})
    assert np.unique(made["images"]).tolist() == [90.0]
    assert np.asarray(made["labels"]).tolist() == [20.0, 30.0]
    assert np.unique(Halved()(images)).tolist() == [50.0]
    assert np.unique(Halved()(images[0], training=False)).tolist() == [50.0]
    model = ab.Sequential([ab.Input((4, 4, 3)), Darker(0.1), Halved()])
    assert np.unique(model.predict(images, verbose=0)).tolist() == [50.0]  # training=False


def test_policies_transform_masks_and_boxes_with_images_only() -> None:
    data = data_of()
    layer = L.RandAugment(seed=1, bounding_box_format="xyxy")
    drawn = layer.get_random_transformation(data)
    assert drawn is not None
    assert drawn["layer_idxes"].shape == (2,)
    with pytest.raises(NotImplementedError, match="can't transform 'segmentation_masks' apart from the images"):
        layer.transform_segmentation_masks(data["segmentation_masks"], drawn)
    with pytest.raises(NotImplementedError, match="can't transform 'bounding_boxes' apart from the images"):
        layer.transform_bounding_boxes(data["bounding_boxes"], drawn)


def test_images_without_boxes_pass_through_a_number_of_boxes() -> None:
    images = data_of()["images"]
    np.testing.assert_array_equal(L.MaxNumBoundingBoxes(3)(images), images)


@pytest.mark.parametrize("kind", [L.RandomTranslation, L.RandomZoom, L.RandomShear], ids=lambda kind: kind.__name__)
def test_pairs_of_factors_are_the_same_after_a_file(kind: Any) -> None:
    config = kind((0.1, 0.2), (0.2, 0.3)).get_config()
    as_read = {key: list(value) if isinstance(value, tuple) else value for key, value in config.items()}
    assert kind.from_config(as_read).get_config() == config
