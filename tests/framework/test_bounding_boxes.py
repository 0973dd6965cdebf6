"""`utils.bounding_boxes` and `MaxNumBoundingBoxes`: numbers of Keras 3.15.1, formulas, and what makes no sense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.framework import bounding_boxes

BOX = np.array([[10.0, 20.0, 30.0, 50.0]], "float32")
ANCHORS = np.array([[0.0, 0.0, 20.0, 20.0], [5.0, 10.0, 40.0, 60.0]], "float32")
BOXES = np.array([[2.0, 1.0, 15.0, 30.0], [-1.0, -1.0, -1.0, -1.0]], "float32")
STILL = {"angle": 0.0, "translate_x": 0.0, "translate_y": 0.0, "scale": 1.0, "shear_x": 0.0, "shear_y": 0.0}

# --- transformations ------------------------------------------------------------------------------------------------


def moved(boxes: Any = BOX, **given: Any) -> Any:
    return bounding_boxes.affine_transform(boxes, **{**STILL, "height": 100, "width": 200, **given})


@pytest.mark.parametrize(
    ("given", "expected"),  # the numbers of Keras 3.15.1
    [
        ({}, [10, 20, 30, 50]),
        ({"angle": 90.0}, [70, 119, 100, 139]),
        ({"angle": 30.0}, [7.240728378295898, 58.70225143432617, 39.56123733520508, 94.68301391601562]),
        ({"translate_x": 0.1}, [29.9, 20, 49.9, 50]),
        ({"translate_y": 0.1}, [10, 29.9, 30, 59.9]),
        ({"scale": 2.0}, [-79.5, -9.5, -39.5, 50.5]),
        ({"shear_x": 20.0}, [-0.73712158203125, 20, 30.181983947753906, 50]),
        ({"shear_y": 20.0}, [10, -12.575336456298828, 30, 24.70406723022461]),
        ({"angle": 30.0, "shear_y": 10.0}, [7.240728378295898, 45.488529205, 39.56123733520508, 81.06011962890625]),
        ({"angle": 30.0, "translate_x": 0.1}, [24.47463035583496, 48.7522544, 56.79513931274414, 84.73301696777344]),
        ({"scale": 2.0, "translate_x": 0.1}, [-39.69999694824219, -9.5, 0.3000030517578125, 50.5]),
        (
            {"angle": 30.0, "center_x": 0.25, "center_y": 0.1},
            [20.375490188598633, 28.5218563079834, 52.69599914550781, 64.50261688232422],
        ),
    ],
)
def test_transformed_as_in_keras(given: dict[str, float], expected: list[float]) -> None:
    np.testing.assert_allclose(moved(**given), [expected], rtol=1e-5, atol=1e-4)
    batch = {name: np.full(2, number, "float32") for name, number in given.items() if not name.startswith("center")}
    found = moved(np.stack([BOX, BOX]), **{**given, **batch})
    np.testing.assert_allclose(found, [[expected]] * 2, rtol=1e-5, atol=1e-4)


def test_shears_keep_areas() -> None:
    """Each of the corners moves by one matrix, whose determinant is the square of the scale."""
    given = {"angle": 25.0, "scale": 1.5, "shear_x": 15.0, "shear_y": -10.0}
    points = np.array([[[x, y, x, y]] for x, y in ((0, 0), (1, 0), (0, 1))], "float32")
    a, b, c = moved(points, **given)[:, 0, :2]
    (p, q), (r, s) = b - a, c - a
    np.testing.assert_allclose(p * s - q * r, 1.5**2, rtol=1e-4)


def test_transformed_in_other_formats_and_one_by_one() -> None:
    relative = bounding_boxes.convert_format(BOX, "xyxy", "rel_center_yxhw", 100, 200)
    found = moved(relative, angle=30.0, bounding_box_format="rel_center_yxhw")
    back = bounding_boxes.convert_format(found, "rel_center_yxhw", "xyxy", 100, 200)
    np.testing.assert_allclose(back, moved(angle=30.0), rtol=1e-4)
    assert moved(np.zeros((0, 4), "float32")).shape == (0, 4)
    both = moved(np.stack([BOX, BOX]), scale=np.array([1.0, 2.0]))
    np.testing.assert_allclose(both, [[[10, 20, 30, 50]], [[-79.5, -9.5, -39.5, 50.5]]])


def test_padded_and_cropped() -> None:
    assert bounding_boxes.pad(BOX, 3, 4).tolist() == [[14, 23, 34, 53]]
    assert bounding_boxes.pad(BOX, 3, 4, 100, 200, "xywh").tolist() == [[14, 23, 30, 50]]
    assert bounding_boxes.crop(BOX, 25, 15, 20, 30).tolist() == [[0, 0, 15, 20]]
    corners = bounding_boxes.convert_format(BOX, "xyxy", "xywh")
    assert bounding_boxes.crop(corners, 25, 15, 20, 30, "xywh").tolist() == [[0, 0, 15, 20]]
    assert np.isnan(bounding_boxes.crop(np.full((1, 4), np.nan), 0, 0, 4, 4)).all()


# --- distances ------------------------------------------------------------------------------------------------------


def test_complete_iou_as_in_keras() -> None:
    one, other = np.concatenate([BOX, BOX + 3, BOX - 5]), np.concatenate([BOX, BOX - 2, BOX * 1.1])
    found = bounding_boxes.compute_ciou(one, other, "xyxy")
    np.testing.assert_allclose(found, [1.0, 0.42751842737197876, 0.2698572278022766], rtol=1e-6)
    apart = np.array([[12.0, 18.0, 40.0, 60.0]], "float32")
    np.testing.assert_allclose(bounding_boxes.compute_ciou(BOX, apart, "xyxy"), [0.4173737], rtol=1e-6)
    np.testing.assert_allclose(bounding_boxes.compute_ciou(BOX, apart + 100, "xyxy"), [-0.60416436], rtol=1e-6)
    relative = bounding_boxes.compute_ciou(BOX / 100, apart / 100, "rel_xyxy", (100, 100, 3))
    np.testing.assert_allclose(relative, [0.4173737], rtol=1e-6)
    assert bounding_boxes.compute_ciou(BOX * 0, BOX * 0, "xyxy").tolist() == [0]


def test_gradients_of_complete_iou_move_a_box_to_the_other() -> None:
    box = ab.Variable(BOX + 40)
    optimizer = ab.optimizers.Adam(2.0)
    for _ in range(60):
        with ab.GradientTape() as tape:
            loss = ab.ops.mean(1 - bounding_boxes.compute_ciou(ab.ops.multiply(box, 1.0), ab.constant(BOX), "xyxy"))
        optimizer.apply([tape.gradient(loss, box)], [box])
    assert float(loss) < 0.2


@pytest.mark.parametrize("form", ["center_yxhw", "center_xywh"])
def test_deltas_as_in_keras(form: str) -> None:
    order = slice(None) if form == "center_yxhw" else [1, 0, 3, 2]
    expected = np.array([[2.75, -0.75, 1.857818, -2.153915], [-7.2, -6.714286, -100.1506, -98.36721]])[:, order]
    options: Any = {"variance": [0.1, 0.1, 0.2, 0.2]}
    found = bounding_boxes.encode_box_to_deltas(ANCHORS, BOXES, "xyxy", "xyxy", form, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    back = bounding_boxes.decode_deltas_to_boxes(ANCHORS, found, "xyxy", "xyxy", form, **options)
    np.testing.assert_allclose(back, BOXES, rtol=1e-5)


def test_deltas_of_batches_levels_and_relative_boxes() -> None:
    found = bounding_boxes.encode_box_to_deltas(ANCHORS / 100, BOXES, "rel_xyxy", "xyxy", image_shape=(50, 100, 3))
    expected = [[1.05, -0.075, 1.0647107, -0.43078294], [-0.73999995, -0.6714286, -19.336971, -19.673443]]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    decoded = bounding_boxes.decode_deltas_to_boxes(
        ANCHORS / 100, BOXES / 10, "rel_xyxy", "rel_xywh", image_shape=(50, 100, 3)
    )
    expected = [[-1.8885537, -0.3081689, 4.0171075, 0.8963378], [0.0316535, 0.0737906, 0.3166932, 0.4524187]]
    np.testing.assert_allclose(decoded, expected, rtol=1e-4)
    deltas = bounding_boxes.encode_box_to_deltas(ANCHORS, BOXES[None], "xyxy", "xyxy")
    assert deltas.shape == (1, 2, 4)
    levels = bounding_boxes.decode_deltas_to_boxes({3: ANCHORS}, {3: deltas}, "xyxy", "xyxy")
    np.testing.assert_allclose(levels[3], BOXES[None], rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: moved(BOX[0]), r"must be \[n, 4\] or \[batch, n, 4\], got 1 axes"),
        (lambda: moved(angle=np.zeros(3)), r"angle must be a number, or one for each image.*got shape \(3,\)"),
        (lambda: bounding_boxes.pad(BOX, 1, 1, bounding_box_format="rel_xyxy"), "pad: boxes as 'rel_xyxy' need"),
        (lambda: bounding_boxes.crop(BOX, 1, 1, 2, 2, "rel_xyxy"), "crop: boxes as 'rel_xyxy' need the size"),
        (
            lambda: bounding_boxes.compute_ciou(BOX, BOX, "rel_xyxy"),
            r"image_shape=\(height, width, channels\) is needed",
        ),
        (lambda: bounding_boxes.encode_box_to_deltas(BOX, BOX, "xyxy", "xyxy", "xyxy"), "encoding_format must be"),
        (lambda: bounding_boxes.encode_box_to_deltas(BOX, BOX, "xyxy", "xyxy", variance=[1]), "must be four numbers"),
        (lambda: bounding_boxes.decode_deltas_to_boxes({1: BOX}, BOX, "xyxy", "xyxy"), "dicts with the same keys"),
    ],
)
def test_what_makes_no_sense(call: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call()


# --- a number of boxes for each image -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("batched", [True, False])
def test_max_num_bounding_boxes(count: int, batched: bool) -> None:
    boxes, labels = np.arange(4.0 * count, dtype="float32").reshape(count, 4), np.arange(count)
    given = {"boxes": boxes[None], "labels": labels[None]} if batched else {"boxes": boxes, "labels": labels}
    images = np.zeros((1, 8, 8, 3) if batched else (8, 8, 3), "float32")
    made = layers.MaxNumBoundingBoxes(2)({"images": images, "bounding_boxes": given})
    assert made["images"].shape == images.shape
    found = {name: np.asarray(each).reshape(2, -1) for name, each in made["bounding_boxes"].items()}
    filled = np.concatenate([boxes, np.full((2, 4), -1)])[:2]
    np.testing.assert_array_equal(found["boxes"], filled)
    np.testing.assert_array_equal(found["labels"][:, 0], [*labels, -1, -1][:2])


def test_max_num_bounding_boxes_by_config_and_refused() -> None:
    layer = layers.MaxNumBoundingBoxes(3, fill_value=0, bounding_box_format="xyxy")
    config = layer.get_config()
    assert (config["max_number"], config["fill_value"]) == (3, 0)
    again = layers.MaxNumBoundingBoxes.from_config(config)
    assert again.get_config() == config
    with pytest.raises(ValueError, match="max_number must be a positive integer, got 0"):
        layers.MaxNumBoundingBoxes(0)
    with pytest.raises(ValueError, match=r"takes a dict with 'bounding_boxes'.*got \['images'\]"):
        layer({"images": np.zeros((1, 8, 8, 3), "float32")})
