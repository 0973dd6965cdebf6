"""The default order of an image's axes in files, data sets, drawings, models of ImageNet, ONNX, TensorFlow's names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import tf

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(0, 1, (2, 6, 8, 3)).astype("float32")
FIRST = IMAGES.transpose(0, 3, 1, 2)
KERNEL = RNG.normal(size=(3, 3, 3, 4)).astype("float32")


@pytest.fixture
def channels_first() -> None:
    ab.config.set_image_data_format("channels_first")


# --- what follows it ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("channels_first")
def test_images_as_arrays_and_files(tmp_path: Path) -> None:
    image = ab.utils.array_to_img(FIRST[0])
    ab.utils.save_img(tmp_path / "image.png", FIRST[0])

    read = ab.utils.img_to_array(ab.utils.load_img(tmp_path / "image.png"))

    assert (image.size, read.shape) == ((8, 6), (3, 6, 8))
    np.testing.assert_array_equal(ab.utils.img_to_array(image), read)
    assert ab.utils.img_to_array(image.convert("L")).shape == (1, 6, 8)
    assert ab.preprocessing.image.smart_resize(IMAGES[0], (3, 3)).shape == (
        3,
        3,
        3,
    )  # its own default is "channels_last"


def test_folders_of_images(tmp_path: Path) -> None:
    for number, name in enumerate(("cats", "dogs")):
        (tmp_path / name).mkdir()
        ab.utils.save_img(tmp_path / name / "0.png", IMAGES[number])

    def read() -> Any:
        return ab.utils.image_dataset_from_directory(tmp_path, image_size=(4, 5), shuffle=False, verbose=False)

    expected = next(iter(read()))[0]
    ab.config.set_image_data_format("channels_first")
    dataset = read()
    ab.config.set_image_data_format("channels_last")

    np.testing.assert_array_equal(next(iter(dataset))[0], expected.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("mode", ["caffe", "tf", "torch"])
def test_images_for_models_of_imagenet(mode: str) -> None:
    prepare = ab.applications.imagenet_utils.preprocess_input
    expected = prepare(IMAGES, mode=mode)
    ab.config.set_image_data_format("channels_first")

    np.testing.assert_array_equal(prepare(FIRST, mode=mode), expected.transpose(0, 3, 1, 2))


def test_drawings() -> None:
    boxes = {"boxes": np.array([[[1, 1, 4, 4]]] * 2), "labels": np.zeros((2, 1))}
    masks = np.arange(96).reshape(2, 6, 8, 1) % 2

    def drawn(images: Any, masks: Any) -> list[Any]:
        visualization = ab.visualization
        return [
            visualization.draw_bounding_boxes(images, boxes, "xyxy", line_thickness=1),
            visualization.draw_segmentation_masks(images * 255, masks),
            np.asarray(visualization.plot_image_gallery(images * 255, show=False)),
            np.asarray(visualization.plot_bounding_box_gallery(images, "xyxy", y_true=boxes, show=False)),
            np.asarray(visualization.plot_segmentation_mask_gallery(images * 255, 2, y_true=masks, show=False)),
        ]

    expected = drawn(IMAGES, masks)
    ab.config.set_image_data_format("channels_first")

    for one, other in zip(drawn(FIRST, masks.transpose(0, 3, 1, 2)), expected, strict=True):
        np.testing.assert_array_equal(one, other)


# --- models ---------------------------------------------------------------------------------------------------------


def _model(shape: tuple[int, ...]) -> Any:
    images = ab.Input(shape)
    x = ab.layers.Rescaling([1.0, 2.0, 3.0])(images)
    x = ab.layers.ZeroPadding2D(1)(x)
    x = ab.layers.DepthwiseConv2D(2)(ab.layers.Conv2D(4, 3)(x))
    x = ab.ops.average_pool(ab.ops.conv(x, KERNEL[:2, :2, :2]), 2)  # in two groups, which Keras's op does not have
    return ab.Model(images, ab.layers.Dense(2)(ab.layers.Flatten()(x)))


def test_files_keep_the_order(tmp_path: Path) -> None:
    last = _model((6, 8, 3))
    ab.config.set_image_data_format("channels_first")
    first = _model((3, 6, 8))
    first.set_weights(last.get_weights())
    expected = last.predict(IMAGES, verbose=0)
    np.testing.assert_allclose(first.predict(FIRST, verbose=0), expected, rtol=1e-5)

    for order in ("channels_first", "channels_last"):
        ab.config.set_image_data_format(order)
        for model, images in ((first, FIRST), (last, IMAGES)):
            model.save(tmp_path / "model.keras")
            for again in (ab.load_model(tmp_path / "model.keras"), ab.models.clone_model(model)):
                again.set_weights(model.get_weights())
                np.testing.assert_allclose(again.predict(images, verbose=0), expected, rtol=1e-5)


def test_onnx_does_not_depend_on_the_default(tmp_path: Path) -> None:
    model = _model((6, 8, 3))
    expected = model.predict(IMAGES, verbose=0)
    ab.config.set_image_data_format("channels_first")

    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    imported = ab.onnx.load(tmp_path / "model.onnx")

    np.testing.assert_allclose(np.asarray(imported(IMAGES)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "size"), [("MobileNetV3Small", 32), ("EfficientNetV2B0", 32), ("EfficientNetB0", 32), ("DenseNet121", 32)]
)
def test_models_of_imagenet_are_built_in_the_default_order(name: str, size: int) -> None:
    def built(shape: tuple[int, ...]) -> Any:
        return getattr(ab.applications, name)(weights=None, input_shape=shape, classes=3)

    last = built((size, size, 3))
    ab.config.set_image_data_format("channels_first")
    first = built((3, size, size))
    first.set_weights(last.get_weights())
    images = RNG.uniform(0, 255, (1, size, size, 3)).astype("float32")

    expected = last.predict(images, verbose=0)

    np.testing.assert_allclose(first.predict(images.transpose(0, 3, 1, 2), verbose=0), expected, rtol=1e-4)


@pytest.mark.usefixtures("channels_first")
def test_shapes_of_images_for_models_of_imagenet() -> None:
    resnet = ab.applications.ResNet50

    assert ab.applications.MobileNet(weights=None, alpha=0.25, input_shape=(3, 128, 128)).name == "mobilenet_0.25_128"
    assert ab.applications.VGG16(weights=None, include_top=False).input_shape == (None, 3, None, None)
    with pytest.raises(ValueError, match=r"at least 32x32, got input_shape=\(3, 16, 64\)"):
        resnet(weights=None, input_shape=(3, 16, 64))
    with pytest.raises(ValueError, match=r"three integers, \(channels, height, width\), got \(64, 64\)"):
        resnet(weights=None, input_shape=(64, 64))
    with pytest.raises(ValueError, match=r"input_shape must be \(3, 224, 224\), got \(224, 224, 3\)"):
        resnet(input_shape=(224, 224, 3))
    with pytest.raises(ValueError, match=r"channels have to be last, but the default .*\('channels_last'\) before"):
        ab.applications.ConvNeXtTiny(weights=None)


# --- what does not --------------------------------------------------------------------------------------------------

TENSORFLOW: dict[str, Callable[[], Any]] = {
    "nn.conv1d": lambda: tf.nn.conv1d(IMAGES[0], KERNEL[0], 1, "VALID"),
    "nn.conv2d": lambda: tf.nn.conv2d(IMAGES, KERNEL, 1, "SAME"),
    "nn.conv2d without an order": lambda: tf.nn.conv2d(IMAGES, KERNEL, 1, "SAME", data_format=None),
    "nn.conv2d_transpose": lambda: tf.nn.conv2d_transpose(
        IMAGES, KERNEL.transpose(0, 1, 3, 2), (2, 12, 16, 4), strides=2
    ),
    "nn.depthwise_conv2d": lambda: tf.nn.depthwise_conv2d(IMAGES, KERNEL, (1, 1, 1, 1), "SAME"),
    "nn.separable_conv2d": lambda: tf.nn.separable_conv2d(
        IMAGES, KERNEL, np.ones((1, 1, 12, 2), "float32"), (1, 1, 1, 1), "SAME"
    ),
    "nn.max_pool2d": lambda: tf.nn.max_pool2d(IMAGES, 2, 2, "VALID"),
    "nn.avg_pool2d": lambda: tf.nn.avg_pool2d(IMAGES, 2, 2, "VALID", data_format=None),
    "nn.depth_to_space": lambda: tf.nn.depth_to_space(np.tile(IMAGES, 4), 2),
    "nn.space_to_depth": lambda: tf.nn.space_to_depth(IMAGES, 2),
    "nn.bias_add": lambda: tf.nn.bias_add(IMAGES, [1.0, 2.0, 3.0]),
    "image.resize": lambda: tf.image.resize(IMAGES, (3, 4)),
    "image.resize_with_pad": lambda: tf.image.resize_with_pad(IMAGES, 5, 5),
    "image.resize_with_crop_or_pad": lambda: tf.image.resize_with_crop_or_pad(IMAGES, 5, 9),
    "image.central_crop": lambda: tf.image.central_crop(IMAGES, 0.5),
    "image.extract_patches": lambda: tf.image.extract_patches(
        IMAGES, (1, 2, 2, 1), (1, 1, 1, 1), (1, 1, 1, 1), "VALID"
    ),
    "image.rgb_to_grayscale": lambda: tf.image.rgb_to_grayscale(IMAGES),
    "image.rgb_to_hsv": lambda: tf.image.rgb_to_hsv(IMAGES),
    "image.adjust_hue": lambda: tf.image.adjust_hue(IMAGES, 0.1),
    "image.adjust_saturation": lambda: tf.image.adjust_saturation(IMAGES, 0.5),
    "image.ssim": lambda: tf.image.ssim(np.tile(IMAGES, (1, 2, 2, 1)), np.tile(IMAGES * 0.5, (1, 2, 2, 1)), 1.0),
    "image.sobel_edges": lambda: tf.image.sobel_edges(IMAGES),
}


@pytest.mark.parametrize("name", TENSORFLOW)
def test_functions_of_tensorflow_have_channels_last(name: str) -> None:
    expected = np.asarray(TENSORFLOW[name]())
    ab.config.set_image_data_format("channels_first")

    np.testing.assert_array_equal(np.asarray(TENSORFLOW[name]()), expected)


def test_decoded_files_of_images_have_channels_last(tmp_path: Path) -> None:
    ab.utils.save_img(tmp_path / "image.png", IMAGES[0])
    ab.config.set_image_data_format("channels_first")

    assert tf.io.decode_image(tf.io.read_file(str(tmp_path / "image.png"))).shape == (6, 8, 3)
