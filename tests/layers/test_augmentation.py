"""Layers that augment training images: Keras's numbers, what is drawn at random, masks, labels, models and files."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers as L  # noqa: N812 - short in long tables
from anabranch.framework.saving.api import deserialize_keras_object, serialize_keras_object
from golden.loader import ImageCase, load_cases

IMAGES = np.random.default_rng(0).uniform(0, 255, size=(3, 6, 8, 3)).astype("float32")
RANDOM: list[tuple[Any, dict[str, Any]]] = [
    (L.RandomHue, {"factor": 0.5}),
    (L.RandomSaturation, {"factor": (0.2, 0.8)}),
    (L.RandomSharpness, {"factor": (0.6, 1.0)}),
    (L.RandomGrayscale, {}),
    (L.RandomInvert, {"factor": (0.4, 0.9)}),
    (L.RandomPosterization, {"factor": (2, 6)}),
    (L.RandomColorDegeneration, {"factor": (0.2, 1.0)}),
    (L.RandomColorJitter, {"brightness_factor": 0.2, "contrast_factor": 0.3, "hue_factor": 0.1}),
    (L.RandomColorJitter, {"saturation_factor": (0.3, 0.7)}),
    (L.Solarization, {"addition_factor": 0.3, "threshold_factor": (0.2, 0.8)}),
    (L.RandomShear, {"x_factor": 0.4, "y_factor": (0.1, 0.3)}),
    (L.RandomShear, {"y_factor": 0.5, "fill_mode": "constant", "interpolation": "nearest"}),
    (L.RandomPerspective, {"scale": 0.5}),
    (L.RandomPerspective, {"factor": (0.5, 0.9), "interpolation": "nearest", "fill_value": 4.0}),
    (L.RandomGaussianBlur, {}),
    (L.RandomGaussianBlur, {"kernel_size": (5, 3), "sigma": (0.5, 1.0), "factor": 0.5}),
    (L.RandomElasticTransform, {}),
    (L.RandomElasticTransform, {"factor": (0.3, 0.9), "scale": (0.5, 0.7), "fill_mode": "constant"}),
    (L.MixUp, {"alpha": 0.8}),
    (L.CutMix, {}),
    (L.RandAugment, {}),
    (L.RandAugment, {"num_ops": 3, "factor": (0.2, 0.9), "interpolation": "nearest"}),
    (L.AugMix, {}),
    (L.AugMix, {"num_chains": 2, "chain_depth": 1, "all_ops": False}),
]
FIXED: list[tuple[Any, dict[str, Any]]] = [
    (L.Equalization, {}),
    (L.Equalization, {"bins": 8, "value_range": (0, 1)}),
    (L.AutoContrast, {"value_range": (0, 1)}),
    (L.ContrastLimitedAdaptiveHistogramEqualization, {"tile_grid_size": (2, 2)}),
]
POLICIES = (L.RandAugment, L.AugMix)


def name_of(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else json.dumps(value)


# --- against Keras --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", load_cases("images"), ids=lambda case: case.name)
def test_images_are_those_of_keras(case: ImageCase) -> None:
    layer = getattr(L, case.target)(**case.kwargs)
    if not case.drawn:
        outputs = layer(case.inputs)
    else:
        with ab.Graph().as_default():
            drawn = {name: ab.constant(value) for name, value in case.drawn.items()}
            made = [layer.transform_images(ab.constant(case.inputs), drawn)]
            made += [] if case.labels is None else [layer.transform_labels(ab.constant(case.given_labels), drawn)]
            outputs, *labels = ab.Session().run(made)
        if case.labels is not None:
            np.testing.assert_allclose(labels[0], case.labels, rtol=1e-5, atol=1e-6)
    largest = max(float(np.abs(case.outputs).max()), 1.0)
    np.testing.assert_allclose(outputs, case.outputs, rtol=1e-5, atol=1e-5 * largest)


# --- at random ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "kwargs"), RANDOM, ids=name_of)
def test_random_layers_act_in_training_only_and_repeat_with_a_seed(kind: Any, kwargs: dict[str, Any]) -> None:
    first, second = kind(seed=5, **kwargs), kind(seed=5, **kwargs)
    outputs = first(IMAGES, training=True)
    assert outputs.shape == IMAGES.shape
    assert outputs.dtype == "float32"
    assert np.isfinite(outputs).all()
    np.testing.assert_array_equal(second(IMAGES, training=True), outputs)
    assert any((first(IMAGES, training=True) != outputs).any() for _ in range(6))
    np.testing.assert_array_equal(first(IMAGES, training=False), IMAGES)


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize(("kind", "kwargs"), RANDOM + FIXED, ids=name_of)
def test_channels_first_is_the_same_turned(kind: Any, kwargs: dict[str, Any]) -> None:
    seeded = kwargs if (kind, kwargs) in FIXED else {**kwargs, "seed": 2}
    last = kind(**seeded)(IMAGES)
    first = kind(**seeded, data_format="channels_first")(IMAGES.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(first.transpose(0, 2, 3, 1), last, rtol=1e-4, atol=2e-2)


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize(("kind", "kwargs"), RANDOM + FIXED, ids=name_of)
def test_one_image_goes_in_as_in_a_batch(kind: Any, kwargs: dict[str, Any]) -> None:
    seeded = kwargs if (kind, kwargs) in FIXED else {**kwargs, "seed": 1}
    batch, single = kind(**seeded)(IMAGES[:1]), kind(**seeded)(IMAGES[0])
    np.testing.assert_allclose(single, batch[0], rtol=1e-6)
    assert kind(**kwargs).compute_output_shape((None, 6, 8, 3)) == (None, 6, 8, 3)


@pytest.mark.parametrize(("kind", "kwargs"), RANDOM + FIXED, ids=name_of)
def test_configs_make_the_same_layer(kind: Any, kwargs: dict[str, Any]) -> None:
    layer = kind(**kwargs)
    again = deserialize_keras_object(json.loads(json.dumps(serialize_keras_object(layer))))
    assert type(again) is kind
    assert json.dumps(again.get_config()) == json.dumps(layer.get_config())


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize(("kind", "kwargs"), RANDOM, ids=name_of)
def test_in_a_model_for_any_batch(kind: Any, kwargs: dict[str, Any]) -> None:
    model = ab.Sequential([ab.Input((6, 8, 3)), kind(seed=3, **kwargs)])
    np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), IMAGES)
    assert model(IMAGES[:2], training=True).shape == (2, 6, 8, 3)


def test_masks_move_with_their_images() -> None:
    masks = np.random.default_rng(1).integers(0, 255, (3, 40, 50, 1)).astype("float32")
    images = np.repeat(masks, 3, axis=-1)
    for layer in (
        L.RandomShear(0.5, 0.5, interpolation="nearest", seed=1),
        L.RandomPerspective(scale=0.6, interpolation="nearest", seed=1),
        L.RandomElasticTransform(interpolation="nearest", seed=1),
        L.CutMix(seed=1),
        L.MixUp(seed=1),
    ):
        made = layer({"images": images, "segmentation_masks": masks})
        assert (made["images"] != images).any()
        np.testing.assert_allclose(made["images"][..., :1], made["segmentation_masks"], rtol=1e-6)


def test_colours_leave_masks_and_labels_alone() -> None:
    data = {"images": IMAGES, "labels": np.eye(3, dtype="float32"), "segmentation_masks": IMAGES[..., :1]}
    for layer in (L.RandomHue(0.5), L.Solarization(), L.Equalization(), L.RandomInvert(), L.RandomGaussianBlur()):
        made = layer(data)
        np.testing.assert_array_equal(made["labels"], data["labels"])
        np.testing.assert_array_equal(made["segmentation_masks"], data["segmentation_masks"])


# --- mixing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [L.MixUp, L.CutMix])
def test_labels_say_how_much_is_whose(kind: Any) -> None:
    count = 64
    images = np.broadcast_to(np.arange(count, dtype="float32").reshape(-1, 1, 1, 1), (count, 16, 16, 1))
    made = kind(seed=4)({"images": images, "labels": np.eye(count)})
    np.testing.assert_allclose(made["labels"].sum(1), 1, rtol=1e-5)
    expected = made["labels"] @ np.arange(count)
    slack = 1e-3 if kind is L.MixUp else 0.15 * count  # rectangles end between pixels
    np.testing.assert_allclose(made["images"].mean((1, 2, 3)), expected, atol=slack)
    assert (np.count_nonzero(made["labels"] > 1e-6, axis=1) == 2).mean() > 0.3


def test_labels_of_one_image() -> None:
    made = L.MixUp(seed=0)({"images": IMAGES[0], "labels": np.array([1.0, 0.0])})
    np.testing.assert_allclose(made["images"], IMAGES[0], rtol=1e-6)
    np.testing.assert_allclose(made["labels"], [1, 0], rtol=1e-6)


# --- policies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", POLICIES)
def test_policies_move_masks_with_images(kind: Any) -> None:
    masks = np.full((2, 6, 8, 1), 7.0, "float32")
    made = kind(seed=6)({"images": IMAGES[:2], "segmentation_masks": masks, "labels": np.eye(2)})
    assert made["segmentation_masks"].shape == masks.shape
    np.testing.assert_allclose(made["segmentation_masks"], 7.0, rtol=1e-5)  # reflected, and never coloured
    np.testing.assert_array_equal(made["labels"], np.eye(2))


def test_no_augmentation_is_none() -> None:
    np.testing.assert_array_equal(L.RandAugment(num_ops=0)(IMAGES), IMAGES)
    np.testing.assert_allclose(L.AugMix(chain_depth=0)(IMAGES), IMAGES, rtol=1e-5)


def test_fitting_through_a_policy_draws_anew_each_step() -> None:
    seen: list[float] = []

    class Noting(ab.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(float(logs["loss"]))

    model = ab.Sequential([L.RandAugment(seed=1), L.GlobalAveragePooling2D(), L.Dense(1)])
    model.compile(ab.optimizers.SGD(0.0), "mse")
    images, targets = np.repeat(IMAGES[:1], 12, 0), np.zeros((12, 1))
    model.fit(images, targets, batch_size=2, shuffle=False, callbacks=[Noting()], verbose=0)
    assert len(set(seen)) > 2


def test_pipelines() -> None:
    pipeline = L.Pipeline([L.RandomInvert((1.0, 1.0)), L.Rescaling(1 / 255)], name="pixels")
    np.testing.assert_allclose(pipeline(IMAGES), (255 - IMAGES) / 255, rtol=1e-5)
    np.testing.assert_allclose(pipeline(IMAGES, training=False), IMAGES / 255, rtol=1e-5)
    data = L.Pipeline([L.CutMix(seed=1), L.RandomHue(0.1)])({"images": IMAGES, "labels": np.eye(3)})
    assert set(data) == {"images", "labels"}
    again = deserialize_keras_object(json.loads(json.dumps(serialize_keras_object(pipeline))))
    assert [type(layer).__name__ for layer in again.layers] == ["RandomInvert", "Rescaling"]
    assert again.get_config() == pipeline.get_config()


@pytest.mark.usefixtures("without_kernels")
def test_a_saved_model_with_augmentation(tmp_path: Any) -> None:
    model = ab.Sequential([ab.Input((6, 8, 3)), L.RandAugment(seed=2), L.Pipeline([L.AugMix(seed=3)]), L.Flatten()])
    model.save(tmp_path / "model.keras")
    again = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(IMAGES, training=True), model(IMAGES, training=True))


# --- histograms -----------------------------------------------------------------------------------------------------


def test_images_of_one_value_stay() -> None:
    flat = np.full((2, 4, 4, 3), 90.0, "float32")
    np.testing.assert_array_equal(L.AutoContrast()(flat), flat)
    np.testing.assert_array_equal(L.Equalization()(flat), flat)


def test_equalized_values_are_about_equally_frequent() -> None:
    pixels = np.random.default_rng(0).normal(100, 10, (1, 64, 64, 1)).clip(0, 255).astype("float32")
    counts, _ = np.histogram(L.Equalization()(pixels), bins=4, range=(0, 255))
    np.testing.assert_allclose(counts, 1024, rtol=0.15)


# --- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: L.RandomHue(2.0), "factor must be a number, or a pair of numbers, from 0 to 1; got factor=2.0"),
        (lambda: L.RandomHue(0.5, value_range=cast(Any, 3)), "value_range must be a pair of numbers, got 3"),
        (lambda: L.RandomGrayscale(1.5), "factor must be a number from 0 to 1, got factor=1.5"),
        (lambda: L.RandomPosterization(9), "from 1 to 8; got factor=9"),
        (lambda: L.Solarization(addition_factor=-1), "addition_factor must be a number, or a pair"),
        (lambda: L.Solarization(threshold_factor=(0, 2)), r"got threshold_factor=\(0, 2\)"),
        (lambda: L.Equalization(bins=1), "bins must be an integer from 2 up, got bins=1"),
        (lambda: L.RandomShear(x_factor=-0.5), "x_factor must be a number, or a pair of numbers, from 0 to 1"),
        (lambda: L.RandomShear(fill_mode="none"), "fill_mode must be one of"),
        (lambda: L.RandomPerspective(scale=2), "scale must be a number from 0 to 1, got scale=2"),
        (lambda: L.RandomPerspective(interpolation="cubic"), "interpolation must be one of nearest, bilinear; got"),
        (lambda: L.RandomGaussianBlur(kernel_size=4), "kernel_size must be an odd number, or a pair of them"),
        (lambda: L.RandomElasticTransform(fill_mode="none"), "fill_mode must be one of constant"),
        (lambda: L.RandomElasticTransform()(ab.Input((None, 8, 3))), "needs images of known height and width"),
        (lambda: L.RandomSharpness(0.5)(ab.Input((4, 8, None))), "needs images of a known number of channels"),
        (lambda: L.MixUp(alpha=0), "alpha must be a positive number, got alpha=0"),
        (lambda: L.AugMix(alpha=-1), "alpha must be a positive number"),
        (lambda: L.AugMix(num_chains=0), "num_chains must be an integer from 1 up, got num_chains=0"),
        (lambda: L.RandAugment(num_ops=cast(Any, 1.5)), "num_ops must be an integer from 0 up"),
        (lambda: L.RandAugment()(np.ones((2, 2))), r"expects one image \(3 axes\) or a batch"),
        (lambda: L.RandAugment()({"pictures": IMAGES}), "takes images, or a dict"),
        (lambda: L.Pipeline(cast(Any, [3])), "Pipeline takes a list of layers, got 3 of type int"),
        (lambda: L.Pipeline.from_config({"name": "p"}), "expected a list of configs under 'layers'"),
    ],
)
def test_refused(make: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


def test_ranges_of_values_may_be_arrays() -> None:
    pixels: Any = np.array([0, 1])
    for kind in (L.RandomContrast, L.RandomHue):
        assert kind(0.2, value_range=pixels).value_range == (0, 1)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "layer",
    [
        L.RandomFlip(seed=1),
        L.RandomRotation(0.5, fill_mode="nearest", seed=1),
        L.RandomZoom((-0.5, 0.5), seed=1),
        L.RandomCrop(5, 5, seed=1),
        L.RandomShear(0.5, 0.5, seed=1),
        L.CenterCrop(5, 5),
        L.CutMix(seed=1),
    ],
)
def test_masks_of_class_numbers_stay_class_numbers(layer: Any, training: bool) -> None:
    classes = np.array([4, 200], "uint8")
    masks = np.random.default_rng(0).choice(classes, (2, 8, 8, 1))
    made = layer({"images": masks.repeat(3, -1), "segmentation_masks": masks}, training=training)
    assert made["segmentation_masks"].dtype == "uint8"
    assert set(np.unique(made["segmentation_masks"])) <= {4, 200}


def test_masks_that_mix_up_blends_are_shares() -> None:
    masks = np.array([4, 200], "uint8").reshape(2, 1, 1, 1).repeat(4, 1).repeat(4, 2)
    made = L.MixUp(alpha=5.0, seed=1)({"images": masks, "segmentation_masks": masks})
    assert made["segmentation_masks"].dtype == "float32"


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "layer",
    [L.CenterCrop(16, 16), L.RandomCrop(16, 16), L.RandAugment(seed=1), L.CutMix(seed=1)],
    ids=lambda layer: type(layer).__name__,
)
def test_masks_of_class_numbers_remain_such(layer: Any, training: bool) -> None:
    masks = np.zeros((2, 8, 8, 1), "uint8")
    masks[:, :4] = 4
    images, labels = np.ones((2, 8, 8, 3), "float32"), np.eye(2, dtype="float32")
    given = {"images": images, "segmentation_masks": masks, "labels": labels}
    found = layer(given, training=training)
    assert found["segmentation_masks"].dtype == "uint8"
    assert found["segmentation_masks"].shape[:-1] == found["images"].shape[:-1]
    assert set(np.unique(found["segmentation_masks"])) <= {0, 4}


@pytest.mark.parametrize("make", [L.MixUp, L.AugMix])
def test_masks_that_are_blended_in_training_are_left_alone_otherwise(make: Any) -> None:
    masks = np.full((2, 8, 8, 1), 4, "uint8")
    images, labels = np.ones((2, 8, 8, 3), "float32"), np.eye(2, dtype="float32")
    given = {"images": images, "segmentation_masks": masks, "labels": labels}
    assert make(seed=1)(given, training=True)["segmentation_masks"].dtype == "float32"
    found = make(seed=1)(given, training=False)["segmentation_masks"]
    assert found.dtype == "uint8"
    np.testing.assert_array_equal(found, masks)
