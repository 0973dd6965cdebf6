"""The default order of an image's axes: all layers that have `data_format` take it, and keep it."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np
import pytest

import anabranch as ab
from anabranch.framework.saving.api import deserialize_keras_object, serialize_keras_object


class Case(NamedTuple):
    """A layer: its arguments, the shape of a batch with channels last, and where the channels go."""

    name: str
    kwargs: dict[str, Any]
    shape: tuple[int, ...]
    before: int = 1  # the axis of the channels in the other order, of inputs ...
    after: int = 1  # ... and of outputs
    closeness: float = 1e-5


_SIZES = {"1D": (8,), "2D": (6, 8), "3D": (4, 5, 6)}
_WINDOWS = {
    "AveragePooling": {"pool_size": 2},
    "MaxPooling": {"pool_size": 2, "padding": "same"},
    "AdaptiveAveragePooling": {"output_size": 3},
    "AdaptiveMaxPooling": {"output_size": 3},
    "GlobalAveragePooling": {"keepdims": True},
    "GlobalMaxPooling": {},
    "Conv": {"filters": 4, "kernel_size": 3, "strides": 2, "activation": "tanh"},
    "DepthwiseConv": {"kernel_size": 3, "depth_multiplier": 2},
    "SeparableConv": {"filters": 4, "kernel_size": 3},
    "ConvTranspose": {"filters": 4, "kernel_size": 3, "strides": 2},
    "Cropping": {"cropping": 1},
    "SpatialDropout": {"rate": 0.5, "seed": 3},
    "UpSampling": {"size": 2},
    "ZeroPadding": {"padding": 1},
}
_DRAWN = {
    "RandomColorJitter": {"value_range": (0, 1), "brightness_factor": 0.2, "hue_factor": 0.1},
    "RandomHue": {"factor": 0.5, "value_range": (0, 1)},
    "RandomRotation": {"factor": 0.2},
    "RandomSaturation": {"factor": (0.2, 0.8), "value_range": (0, 1)},
    "RandomSharpness": {"factor": (0.6, 1.0), "value_range": (0, 1)},
    "RandomShear": {"x_factor": 0.4, "y_factor": 0.2},
    "RandomTranslation": {"height_factor": 0.3, "width_factor": 0.3},
    "RandomZoom": {"height_factor": 0.3},
    "RandomColorDegeneration": {"factor": 0.5},
    "RandomPosterization": {"factor": 4, "value_range": (0, 1)},
    "RandomCrop": {"height": 4, "width": 5},
    "AugMix": {"value_range": (0, 1)},
    "RandAugment": {"value_range": (0, 1)},
    "RandomElasticTransform": {"value_range": (0, 1)},
    "RandomErasing": {"value_range": (0, 1), "fill_value": 0.5},
    "RandomInvert": {"value_range": (0, 1)},
    "CutMix": {},
    "MixUp": {},
    "RandomFlip": {},
    "RandomGaussianBlur": {},
    "RandomGrayscale": {},
    "RandomPerspective": {},
}

_WITHOUT_ORDER = [("Cropping", "1D"), ("SpatialDropout", "1D"), ("UpSampling", "1D")]  # in Keras, too


def _cases() -> list[Case]:
    found = [
        Case(f"{name}{rank}", kwargs, (2, *sizes, 3))
        for name, kwargs in _WINDOWS.items()
        for rank, sizes in _SIZES.items()
        if (name, rank) not in _WITHOUT_ORDER and hasattr(ab.layers, f"{name}{rank}")
    ]
    found += [Case(f"Conv{rank}Transpose", _WINDOWS["ConvTranspose"], (2, *sizes, 3)) for rank, sizes in _SIZES.items()]
    found += [
        Case(f"ConvLSTM{rank}", {"filters": 2, "kernel_size": 2, "return_sequences": True}, (2, 2, *sizes, 3), 2, 2)
        for rank, sizes in _SIZES.items()
    ]
    found += [Case(name, {"seed": 5, **kwargs}, (3, 6, 8, 3), closeness=2e-3) for name, kwargs in _DRAWN.items()]
    return [
        *found,
        Case("UpSampling2D", {"size": 2, "interpolation": "bicubic"}, (2, 6, 8, 3)),
        Case("Flatten", {}, (2, 4, 5, 3), after=-1),
        Case("CenterCrop", {"height": 4, "width": 3}, (2, 6, 8, 3)),
        Case("Resizing", {"height": 4, "width": 3, "crop_to_aspect_ratio": True}, (2, 6, 8, 3)),
        Case("Equalization", {"value_range": (0, 1)}, (2, 6, 8, 3)),
        Case("ContrastLimitedAdaptiveHistogramEqualization", {"tile_grid_size": (2, 2)}, (2, 6, 8, 3)),
        Case("STFTSpectrogram", {"frame_length": 4, "expand_dims": True}, (2, 16, 3)),
        Case("RandomBrightness", {"factor": 0.5, "seed": 5}, (2, 6, 8, 3)),
        Case("RandomContrast", {"factor": 0.5, "seed": 5}, (2, 6, 8, 3)),
        Case("Solarization", {"value_range": (0, 1), "seed": 5}, (2, 6, 8, 3)),
        Case("AutoContrast", {"value_range": (0, 1)}, (2, 6, 8, 3)),
    ]


CASES = _cases()
_ELSEWHERE = {"ConvLSTMCell", "MaxNumBoundingBoxes"}  # without images, or in another test here


def _made(case: Case, **more: str) -> Any:
    return getattr(ab.layers, case.name)(**case.kwargs, **more)


def test_each_layer_with_an_order_is_tested_here() -> None:
    tested = {getattr(ab.layers, name) for name in {case.name for case in CASES} | _ELSEWHERE}
    layers = [
        each
        for each in (getattr(ab.layers, name) for name in dir(ab.layers))
        if inspect.isclass(each) and issubclass(each, ab.layers.Layer)
    ]
    having = {each for each in layers if "data_format" in inspect.signature(each.__init__).parameters}

    assert having <= tested


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.kwargs.get('interpolation', '')}")
def test_a_layer_takes_the_default_order_and_keeps_it(case: Case) -> None:
    x = np.random.default_rng(0).uniform(0, 1, case.shape).astype("float32")
    turned = np.moveaxis(x, -1, case.before)
    last, explicit = _made(case, data_format="channels_last"), _made(case, data_format="channels_first")
    ab.config.set_image_data_format("channels_first")
    layer = _made(case)
    assert layer.data_format == "channels_first"
    assert layer.get_config() == {**explicit.get_config(), "name": layer.name}
    ab.config.set_image_data_format("channels_last")
    again = deserialize_keras_object(serialize_keras_object(layer))
    assert _made(case).data_format == "channels_last"

    expected = np.asarray(last(x, training=True))
    outputs = [
        np.asarray(_with_weights(each, last, turned)(turned, training=True)) for each in (explicit, layer, again)
    ]

    for each in outputs:
        np.testing.assert_array_equal(each, outputs[0])
    np.testing.assert_allclose(outputs[0], np.moveaxis(expected, -1, case.after), rtol=1e-4, atol=case.closeness)


def _with_weights(layer: Any, like: Any, x: Any) -> Any:
    """Build a layer, and give it the weights of another one."""
    if not layer.built:
        layer.build(x.shape)
    layer.set_weights(like.get_weights())
    return layer


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.kwargs.get('interpolation', '')}")
def test_files_with_another_default_order_stay_as_they_are(case: Case) -> None:
    config = serialize_keras_object(_made(case, data_format="channels_last"))
    ab.config.set_image_data_format("channels_first")

    assert deserialize_keras_object(config).data_format == "channels_last"


def test_cells_of_convolutions_take_the_default_order() -> None:
    ab.config.set_image_data_format("channels_first")

    cell = ab.layers.ConvLSTMCell(rank=1, filters=4, kernel_size=3, padding="same")

    assert ab.layers.RNN(cell)(np.ones((2, 5, 3, 8), "float32")).shape == (2, 4, 8)
    assert ab.layers.ConvLSTMCell.from_config(cell.get_config()).data_format == "channels_first"


def test_boxes_count_in_either_order() -> None:
    ab.config.set_image_data_format("channels_first")
    boxes = {"boxes": np.ones((1, 2, 4), "float32"), "labels": np.ones((1, 2), "int32")}

    found = ab.layers.MaxNumBoundingBoxes(3, bounding_box_format="xyxy")(
        {"images": np.ones((1, 3, 4, 5), "float32"), "bounding_boxes": boxes}
    )

    assert (found["images"].shape, found["bounding_boxes"]["labels"].shape) == ((1, 3, 4, 5), (1, 3))


def test_numbers_for_channels_rescale_channels() -> None:
    x = np.random.default_rng(0).uniform(0, 1, (2, 4, 5, 3)).astype("float32")
    last = ab.layers.Rescaling([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    ab.config.set_image_data_format("channels_first")
    first, again = (
        ab.layers.Rescaling([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]),
        deserialize_keras_object(serialize_keras_object(last)),
    )
    assert ab.layers.Rescaling(2.0, [[[1.0]]]).get_config()["offset"] == [[[1.0]]]
    ab.config.set_image_data_format("channels_last")
    expected = np.asarray(last(x))

    for layer in (first, deserialize_keras_object(serialize_keras_object(first))):
        np.testing.assert_allclose(layer(x.transpose(0, 3, 1, 2)), expected.transpose(0, 3, 1, 2))
    assert again.scale == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(again(x), expected)


def test_steps_are_dropped_as_before() -> None:
    x = np.ones((4, 8, 3), "float32")
    expected = np.asarray(ab.layers.SpatialDropout1D(0.5, seed=1)(x, training=True))
    ab.config.set_image_data_format("channels_first")

    np.testing.assert_array_equal(ab.layers.SpatialDropout1D(0.5, seed=1)(x, training=True), expected)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: ab.layers.ResidualBlock(4, strides=2, kernel_initializer="ones"), (1, 8, 8, 3)),
        (lambda: ab.layers.InceptionBlock((2, (3, 4), (1, 2), 2), kernel_initializer="ones"), (1, 8, 8, 3)),
        (lambda: ab.layers.UpSampling2D(3, "channels_last", "bilinear"), (1, None, None, 2)),
        (lambda: ab.layers.Cropping1D((1, 2)), (1, 8, 2)),
        (lambda: ab.layers.UpSampling1D(2), (1, 8, 2)),
        (lambda: ab.layers.STFTSpectrogram(frame_length=4, data_format="channels_last"), (1, 16, 2)),
    ],
    ids=[
        "ResidualBlock",
        "InceptionBlock",
        "UpSampling2D of any size",
        "Cropping1D",
        "UpSampling1D",
        "STFTSpectrogram",
    ],
)
def test_layers_of_one_order_do_not_depend_on_the_default(make: Any, shape: tuple[int | None, ...]) -> None:
    x = np.random.default_rng(0).uniform(0, 1, [size or 4 for size in shape]).astype("float32")

    def computed() -> Any:
        with ab.Graph().as_default():
            images = ab.placeholder(shape, "float32")
            return ab.Session().run(make()(images), {images: x})

    expected = computed()
    ab.config.set_image_data_format("channels_first")

    np.testing.assert_array_equal(computed(), expected)
