"""Layers of images move boxes as they move pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers

HEIGHT, WIDTH = 8, 12
BOXES = np.array(
    [
        [[1, 2, 5, 6], [0, 0, 9, 4], [6, 3, 12, 8], [-1, -1, -1, -1]],
        [[2, 1, 4, 3], [3, 0, 8, 7], [0, 0, 0, 0], [10, 6, 12, 8]],
    ],
    "float32",
)
LABELS = np.array([[1, 2, 3, -1], [4, 5, -1, 6]])
IS_BOX = LABELS != -1
FORMATS = ["xyxy", "yxyx", "xywh", "center_xywh", "rel_xyxy", "rel_center_yxhw"]

# What Keras 3.15.1 gives for "xyxy": the boxes but for padding, and which of them are left.
OF_KERAS: list[tuple[Any, list[list[float]], list[int]]] = [
    (
        lambda **kwargs: layers.Resizing(4, 4, **kwargs),
        [
            [1 / 3, 1, 5 / 3, 3],
            [0, 0, 3, 2],
            [2, 1.5, 4, 4],
            [2 / 3, 0.5, 4 / 3, 1.5],
            [1, 0, 8 / 3, 3.5],
            [10 / 3, 3, 4, 4],
        ],
        [1, 2, 3, 4, 5, 6],
    ),
    (
        lambda **kwargs: layers.Resizing(5, 9, pad_to_aspect_ratio=True, **kwargs),
        [
            [0.625, 1.25, 3.125, 3.75],
            [0, 0, 5.625, 2.5],
            [3.75, 1.875, 7.5, 5],
            [1.25, 0.625, 2.5, 1.875],
            [1.875, 0, 5, 4.375],
            [6.25, 3.75, 7.5, 5],
        ],
        [1, 2, 3, 4, 5, 6],
    ),
    (
        lambda **kwargs: layers.Resizing(9, 5, crop_to_aspect_ratio=True, **kwargs),
        [
            [0, 2.25, 1.625, 6.75],
            [0, 0, 5, 4.5],
            [2.75, 3.375, 5, 9],
            [0, 1.125, 0.5, 3.375],
            [0, 0, 5, 7.875],
            [5, 6.75, 5, 9],
        ],
        [1, 2, 3, 4, 5, -1],
    ),
    (
        lambda **kwargs: layers.RandomTranslation((0.25, 0.25), (-0.25, -0.25), **kwargs),
        [[0, 4, 2, 8], [0, 2, 6, 6], [3, 5, 9, 8], [0, 3, 1, 5], [0, 2, 5, 8], [7, 8, 9, 8]],
        [1, 2, 3, 4, 5, -1],
    ),
]


def converted(boxes: Any, source: str, target: str, height: int = HEIGHT, width: int = WIDTH) -> Any:
    return np.asarray(ab.utils.bounding_boxes.convert_format(boxes, source, target, height=height, width=width))


def data_of(form: str) -> dict[str, Any]:
    boxes = np.where(IS_BOX[..., None], converted(BOXES, "xyxy", form), BOXES)
    images = np.zeros((2, HEIGHT, WIDTH, 1), "float32")
    return {"images": images, "bounding_boxes": {"boxes": boxes, "labels": LABELS}}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("make", "expected", "left"), OF_KERAS)
def test_boxes_are_those_of_keras(make: Any, expected: list[list[float]], left: list[int], form: str) -> None:
    made = make(bounding_box_format=form)(data_of(form), training=True)
    boxes, labels = (made["bounding_boxes"][name].numpy() for name in ("boxes", "labels"))
    found = converted(boxes, form, "xyxy", *made["images"].shape[1:3])
    np.testing.assert_allclose(found[IS_BOX], expected, rtol=1e-5, atol=1e-4)
    assert labels[IS_BOX].tolist() == left
    assert not boxes[~IS_BOX].any()
    assert (labels[~IS_BOX] == -1).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda **kwargs: layers.RandomFlip("horizontal", seed=3, **kwargs),
        lambda **kwargs: layers.RandomFlip("vertical", seed=3, **kwargs),
        lambda **kwargs: layers.RandomFlip(seed=3, **kwargs),
        lambda **kwargs: layers.RandomTranslation((0.25, 0.25), (-0.25, -0.25), fill_mode="constant", **kwargs),
        lambda **kwargs: layers.CenterCrop(4, 6, **kwargs),
        lambda **kwargs: layers.CenterCrop(16, 12, **kwargs),
        lambda **kwargs: layers.Resizing(16, 24, "nearest", **kwargs),
        lambda **kwargs: layers.Resizing(16, 28, "nearest", pad_to_aspect_ratio=True, **kwargs),
        lambda **kwargs: layers.Resizing(16, 12, "nearest", crop_to_aspect_ratio=True, **kwargs),
    ],
)
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_a_box_is_where_its_pixels_are(make: Any, data_format: str) -> None:
    images = np.zeros((6, HEIGHT, WIDTH, 1), "float32")
    boxes = np.array([[2, 2, 6, 6], [4, 0, 8, 4], [0, 4, 10, 8], [6, 2, 12, 6], [4, 2, 6, 4], [0, 0, 12, 8]], "float32")
    for image, (left, top, right, bottom) in zip(images, boxes.astype(int), strict=True):
        image[top:bottom, left:right] = 1.0
    layer = make(bounding_box_format="xyxy", data_format=data_format)
    is_last = data_format == "channels_last"
    given = images if is_last else images.transpose(0, 3, 1, 2)
    labels = np.ones((6, 1), "int32")
    made = layer({"images": given, "bounding_boxes": {"boxes": boxes[:, None], "labels": labels}}, training=True)
    found = made["images"].numpy()[..., 0] if is_last else made["images"].numpy()[:, 0]
    for image, box in zip(found, made["bounding_boxes"]["boxes"].numpy()[:, 0], strict=True):
        rows, columns = np.nonzero(image > 0.5)
        seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        np.testing.assert_allclose(box, seen, atol=1e-4)


def constant(layer: Any, *args: Any, **kwargs: Any) -> Any:
    return lambda **more: layer(*args, fill_mode="constant", **kwargs, **more)


# Boxes of Keras 3.15.1 are up to a pixel away for rotations and zooms, which it counts from pixels' edges in one place
# and from their middles in the other; those of its RandomCrop have their axes swapped, and its sheared ones go too far.
@pytest.mark.parametrize(
    ("make", "atol"),
    [
        (constant(layers.RandomRotation, (0.5, 0.5)), 1e-3),
        (constant(layers.RandomRotation, (30 / 360, 30 / 360)), 1.0),
        (constant(layers.RandomRotation, (-0.125, -0.125)), 1.0),
        (constant(layers.RandomZoom, (-0.5, -0.5)), 1e-3),
        (constant(layers.RandomZoom, (0.5, 0.5), (0.0, 0.0)), 1e-3),
        (constant(layers.RandomShear, (0.5, 0.5), seed=3), 1.0),
        (constant(layers.RandomShear, 0.0, (0.4, 0.4), seed=5), 1.0),
        (lambda **more: layers.RandomPerspective(1.0, 0.5, seed=1, **more), 1.0),
        (lambda **more: layers.RandomPerspective(0.0, seed=1, **more), 1e-3),
        (lambda **more: layers.RandomCrop(12, 20, seed=3, **more), 1e-3),
        (lambda **more: layers.RandomCrop(48, 24, seed=3, **more), 1.0),
    ],
)
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_boxes_around_what_was_warped(make: Any, atol: float, data_format: str) -> None:
    images = np.zeros((3, 24, 36, 1), "float32")
    boxes = np.array([[6, 6, 18, 18], [12, 3, 24, 12], [0, 0, 36, 24]], "float32")
    for image, (left, top, right, bottom) in zip(images, boxes.astype(int), strict=True):
        image[top:bottom, left:right] = 1.0
    axes = (0, 1, 2, 3) if data_format == "channels_last" else (0, 3, 1, 2)
    given = converted(boxes[:, None], "xyxy", "rel_center_xywh", 24, 36)
    made = make(bounding_box_format="rel_center_xywh", data_format=data_format)(
        {"images": images.transpose(axes), "bounding_boxes": {"boxes": given, "labels": [[1], [2], [3]]}}, training=True
    )
    found = made["images"].numpy().transpose(np.argsort(axes))[..., 0]
    moved = converted(made["bounding_boxes"]["boxes"], "rel_center_xywh", "xyxy", *found.shape[1:])[:, 0]
    for image, box in zip(found, moved, strict=True):
        rows, columns = np.nonzero(image > 0.5)
        np.testing.assert_allclose(
            box, [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], atol=atol, rtol=0
        )
    assert made["bounding_boxes"]["labels"].numpy().tolist() == [[1], [2], [3]]


def test_mixed_images_have_the_boxes_of_both() -> None:
    given = data_of("xyxy")
    given["images"] += np.array([1.0, 3.0], "float32").reshape(2, 1, 1, 1)
    for seed in range(4):
        made = layers.MixUp(2.0, seed=seed, bounding_box_format="xyxy")(given, training=True)
        is_swapped = float(made["images"][0, 0, 0, 0]) > 1.001
        order = [1, 0] if is_swapped else [0, 1]
        found = {name: np.asarray(part) for name, part in made["bounding_boxes"].items()}
        np.testing.assert_array_equal(found["boxes"], np.concatenate([BOXES, BOXES[order]], axis=1))
        np.testing.assert_array_equal(found["labels"], np.concatenate([LABELS, LABELS[order]], axis=1))


@pytest.mark.parametrize("is_single", [False, True])
def test_boxes_of_drawn_augmentations_are_around_what_is_seen(is_single: bool) -> None:
    image = np.zeros((40, 60, 1), "float32")
    image[10:30, 20:44] = 200.0
    boxes = np.array([[20, 10, 44, 30], [-1, -1, -1, -1]], "float32")
    data: dict[str, Any] = {"images": image, "segmentation_masks": image / 200.0}
    data["bounding_boxes"] = {"boxes": boxes, "labels": np.array([7, -1])}
    if not is_single:
        data = {**data, "images": image[None], "segmentation_masks": image[None] / 200.0}
        data["bounding_boxes"] = {"boxes": boxes[None], "labels": np.array([[7, -1]])}
    moved = 0
    for seed in range(12):
        layer = layers.RandAugment(num_ops=2, factor=(0.01, 0.02), seed=seed, bounding_box_format="xyxy")
        made = layer(data, training=True)
        mask = np.asarray(made["segmentation_masks"]).reshape(40, 60)
        box = np.asarray(made["bounding_boxes"]["boxes"]).reshape(2, 4)
        rows, columns = np.nonzero(mask > 0.5)
        around = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        # A box around a box that was turned is larger than what was inside; the rest is rounding to whole pixels.
        assert (box[0, :2] <= around[:2] + 1).all()
        assert (box[0, 2:] >= around[2:] - 1).all()
        np.testing.assert_allclose(box[0], around, atol=6)
        moved += not np.allclose(box[0], boxes[0])
        assert not box[1].any()
        assert np.asarray(made["bounding_boxes"]["labels"]).ravel().tolist() == [7, -1]
    assert moved >= 3


def test_what_has_left_the_image_does_not_come_back() -> None:
    layer: Any = layers.RandAugment(num_ops=2, bounding_box_format="xyxy")
    layer.names = ("random_translation",)  # the number that is drawn is that of the only one
    layer.random_translation = layers.RandomTranslation((0.6, 0.6), 0.0)
    boxes = np.array([[[0, 0, 4, 2], [2, 5, 6, 8]]], "float32")
    made: Any = layer(
        {"images": np.zeros((1, HEIGHT, WIDTH, 1)), "bounding_boxes": {"boxes": boxes, "labels": [[1, 2]]}},
        training=True,
    )
    assert np.asarray(made["bounding_boxes"]["labels"]).tolist() == [[-1, -1]]


def test_boxes_of_mixed_chains_stay() -> None:
    made = layers.AugMix(seed=1, bounding_box_format="xyxy")(data_of("xyxy"), training=True)
    np.testing.assert_array_equal(made["bounding_boxes"]["boxes"], BOXES)


def test_sizes_may_be_unknown_until_data_come() -> None:
    layer = layers.Resizing(4, 6, bounding_box_format="xyxy")
    with ab.Graph().as_default():
        images, boxes = ab.placeholder((None, None, None, 1)), ab.placeholder((None, None, 4))
        labels = ab.ops.zeros(ab.ops.shape(boxes)[:2], "int32")
        made = layer({"images": images, "bounding_boxes": {"boxes": boxes, "labels": labels}})
        feeds = {images: np.zeros((2, HEIGHT, WIDTH, 1), "float32"), boxes: BOXES}
        found = ab.Session().run(made["bounding_boxes"]["boxes"], feeds)
    np.testing.assert_allclose(found[1, 1], [1.5, 0, 4, 3.5])


def test_one_image_and_further_entries() -> None:
    boxes = {"boxes": BOXES[0], "labels": LABELS[0], "weights": [1.0, 2.0, 3.0, 4.0]}
    made = layers.CenterCrop(4, 6, bounding_box_format="xyxy")(
        {"images": np.zeros((HEIGHT, WIDTH, 3)), "bounding_boxes": boxes}
    )
    assert made["bounding_boxes"]["boxes"].numpy().tolist()[0] == [0, 0, 2, 4]
    assert made["bounding_boxes"]["labels"].numpy().tolist() == [1, 2, 3, -1]
    assert np.asarray(made["bounding_boxes"]["weights"]).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_boxes_stay_where_pixels_do() -> None:
    given = data_of("xyxy")
    for layer, training in (
        (layers.RandomFlip(bounding_box_format="xyxy"), False),
        (layers.RandomBrightness(0.5), True),
    ):
        made = layer(given, training=training)["bounding_boxes"]
        np.testing.assert_array_equal(made["boxes"], BOXES)
        np.testing.assert_array_equal(made["labels"], LABELS)


def test_configs_have_the_format_if_there_is_one() -> None:
    layer = layers.RandomFlip("vertical", bounding_box_format="rel_xyxy")
    assert layers.RandomFlip.from_config(layer.get_config()).bounding_box_format == "rel_xyxy"
    assert "bounding_box_format" not in layers.RandomFlip().get_config()


def test_refused() -> None:
    with pytest.raises(ValueError, match="bounding_box_format must be one of xyxy, yxyx"):
        layers.Resizing(2, 2, bounding_box_format="corners")
    with pytest.raises(ValueError, match=r"has no format for them.*RandomFlip\(..., bounding_box_format='xyxy'\)"):
        layers.RandomFlip()(data_of("xyxy"))
    with pytest.raises(ValueError, match=r"must be a dict with 'boxes' and 'labels'; got \['boxes'\]"):
        layers.RandomFlip()({"images": np.zeros((1, 2, 2, 1)), "bounding_boxes": {"boxes": BOXES}})
    for layer in (layers.CutMix(), layers.RandomElasticTransform()):  # as in Keras
        with pytest.raises(
            ValueError, match=r"can't take 'bounding_boxes': .* moves pixels of a box to several places"
        ):
            layer(data_of("xyxy"))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_boxes_keep_their_places_where_images_are_half_types(policy: str) -> None:
    boxes = np.array([[[3001.0, 1.0, 3003.0, 2.0]]], "float32")
    data = {"images": np.zeros((1, 4, 4000, 1), "float32"), "bounding_boxes": {"boxes": boxes, "labels": [[1]]}}
    made: Any = ab.layers.RandomFlip("vertical", bounding_box_format="xyxy", dtype=policy, seed=1)(data, training=True)
    assert made["images"].dtype == policy.removeprefix("mixed_")
    assert made["bounding_boxes"]["boxes"].dtype == "float32"
    assert made["bounding_boxes"]["boxes"].numpy()[0, 0, [0, 2]].tolist() == [3001.0, 3003.0]
