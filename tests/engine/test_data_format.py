"""The default order of an image's axes: the setting, and all ops that have `data_format`."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.ops.data_format import check_data_format

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(0, 1, (2, 6, 8, 3)).astype("float32")
KERNEL = RNG.normal(size=(3, 3, 3, 4)).astype("float32")
POINTWISE = RNG.normal(size=(1, 1, 12, 2)).astype("float32")
CORNERS = np.array([[[0, 0], [7, 0], [0, 5], [7, 5]]] * 2, "float32")
MOVED = CORNERS + RNG.uniform(0, 1, CORNERS.shape).astype("float32")

# Each op, of images and `data_format`.
OPS: dict[str, Callable[..., Any]] = {
    "adaptive_average_pool": lambda x, **order: ab.ops.adaptive_average_pool(x, 2, **order),
    "adaptive_max_pool": lambda x, **order: ab.ops.adaptive_max_pool(x, (2, 3), **order),
    "average_pool": lambda x, **order: ab.ops.average_pool(x, 2, **order),
    "max_pool": lambda x, **order: ab.ops.max_pool(x, 3, 1, "same", **order),
    "conv": lambda x, **order: ab.ops.conv(x, KERNEL, **order),
    "conv_transpose": lambda x, **order: ab.ops.conv_transpose(x, KERNEL.transpose(0, 1, 3, 2), 2, **order),
    "depthwise_conv": lambda x, **order: ab.ops.depthwise_conv(x, KERNEL, **order),
    "separable_conv": lambda x, **order: ab.ops.separable_conv(x, KERNEL, POINTWISE, **order),
}
IMAGE_OPS: dict[str, Callable[..., Any]] = {
    "affine_transform": lambda x, **order: ab.ops.image.affine_transform(x, [1, 0.1, 0, -0.1, 1, 0, 0, 0], **order),
    "crop_images": lambda x, **order: ab.ops.image.crop_images(x, 1, 2, target_height=3, target_width=4, **order),
    "elastic_transform": lambda x, **order: ab.ops.image.elastic_transform(x, seed=1, **order),
    "extract_patches": lambda x, **order: ab.ops.image.extract_patches(x, (2, 3), **order),
    "extract_patches_3d": lambda x, **order: ab.ops.image.extract_patches_3d(_deep(x, order), (2, 3, 1), **order),
    "gaussian_blur": lambda x, **order: ab.ops.image.gaussian_blur(x, **order),
    "hsv_to_rgb": lambda x, **order: ab.ops.image.hsv_to_rgb(x, **order),
    "pad_images": lambda x, **order: ab.ops.image.pad_images(x, 1, 2, 0, 1, **order),
    "perspective_transform": lambda x, **order: ab.ops.image.perspective_transform(x, CORNERS, MOVED, **order),
    "reconstruct_patches": lambda x, **order: ab.ops.image.reconstruct_patches(
        ab.ops.image.extract_patches(x, (2, 2), **order), (2, 2), (6, 8), **order
    ),
    "resize": lambda x, **order: ab.ops.image.resize(x, (3, 5), **order),
    "rgb_to_grayscale": lambda x, **order: ab.ops.image.rgb_to_grayscale(x, **order),
    "rgb_to_hsv": lambda x, **order: ab.ops.image.rgb_to_hsv(x, **order),
    "sobel_edges": lambda x, **order: ab.ops.image.sobel_edges(x, **order)[..., 0],
    "ssim": lambda x, **order: ab.ops.image.ssim(x, x * 0.5, filter_size=3, **order),
}
OF_BLOCKS = {  # whose default is "channels_last" as in Keras, and that of the process for None
    "depth_to_space": lambda x, **order: ab.ops.depth_to_space(ab.ops.tile(x, _four_times(order)), 2, **order),
    "space_to_depth": lambda x, **order: ab.ops.space_to_depth(x, 2, **order),
}
ALL = {**OPS, **IMAGE_OPS, **OF_BLOCKS}


def _is_first(order: dict[str, Any]) -> bool:
    return check_data_format("test", order.get("data_format")) == "channels_first"


def _deep(x: Any, order: dict[str, Any]) -> Any:
    """Return images as volumes of depth 6."""
    return ab.ops.expand_dims(x, -1 if _is_first(order) else 3)


def _four_times(order: dict[str, Any]) -> tuple[int, ...]:
    return (1, 4, 1, 1) if _is_first(order) else (1, 1, 1, 4)


def test_each_op_with_an_order_is_tested_here() -> None:
    found = {
        name
        for module in (ab.ops, ab.ops.image)
        for name in module.__all__
        if inspect.isfunction(function := getattr(module, name))
        and "data_format" in inspect.signature(function).parameters
    }

    assert found == ALL.keys()


@pytest.mark.parametrize("name", ALL)
def test_an_op_takes_the_default_order_at_each_call(name: str) -> None:
    op, turned = ALL[name], IMAGES.transpose(0, 3, 1, 2)
    order = {"data_format": None} if name in OF_BLOCKS else {}
    symbolic = ab.Input((3, 6, 8), batch_size=2)
    last, first = op(IMAGES, data_format="channels_last"), op(turned, data_format="channels_first")
    np.testing.assert_array_equal(op(IMAGES, **order), last)

    ab.config.set_image_data_format("channels_first")
    by_default, built = op(turned, **order), op(symbolic, **order)
    model = ab.Model(symbolic, built)
    ab.config.set_image_data_format("channels_last")

    np.testing.assert_array_equal(by_default, first)
    if name not in OF_BLOCKS:  # which order the channels of a block otherwise
        np.testing.assert_allclose(first, np.moveaxis(np.asarray(last), -1, 1) if last.ndim > 3 else last, atol=1e-5)
    assert built.shape == first.shape
    np.testing.assert_allclose(model(turned), first, atol=1e-6)
    np.testing.assert_array_equal(op(IMAGES, **order), last)


def test_blocks_are_read_with_channels_last_unless_asked() -> None:
    ab.config.set_image_data_format("channels_first")

    assert ab.ops.space_to_depth(IMAGES, 2).shape == (2, 3, 4, 12)


@pytest.mark.parametrize("data_format", ["NHWC", None, 3])
def test_unknown_orders_are_refused(data_format: Any) -> None:
    with pytest.raises(ValueError, match=f"set_image_data_format: data_format must be .* got '{data_format}'"):
        ab.config.set_image_data_format(data_format)
    assert ab.config.image_data_format() == "channels_last"


def test_orders_are_read_in_any_case() -> None:
    assert check_data_format("resize", "Channels_First") == "channels_first"
    ab.config.set_image_data_format("CHANNELS_FIRST")
    assert (check_data_format("resize", None), ab.backend.image_data_format()) == ("channels_first",) * 2


def test_the_default_is_that_of_all_threads() -> None:
    found: list[str] = []
    ab.config.set_image_data_format("channels_first")

    thread = threading.Thread(target=lambda: found.append(ab.config.image_data_format()))
    thread.start()
    thread.join()

    assert found == ["channels_first"]


def test_functions_are_traced_again_for_another_default() -> None:
    pooled = ab.function(lambda x: ab.ops.max_pool(x, 2))
    shapes: list[Any] = []

    for order in ("channels_last", "channels_first") * 2:
        ab.config.set_image_data_format(order)
        shapes.append(pooled(IMAGES).shape)

    assert shapes == [(2, 3, 4, 3), (2, 6, 4, 1)] * 2
    assert pooled.trace_count() == 2


class _Pooled(ab.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return ab.ops.max_pool(inputs, 2)


class _PooledInLoop(_Pooled):
    has_loops = True  # so that its calls are compiled


def test_layers_and_steps_are_traced_again_for_another_default() -> None:
    layers, model = (_Pooled(), _PooledInLoop()), ab.Sequential([_Pooled()])
    wanted = {"channels_last": (2, 3, 4, 3), "channels_first": (2, 6, 4, 1)}
    for order in ("channels_last", "channels_first") * 2:
        ab.config.set_image_data_format(order)

        assert [layer(IMAGES).shape for layer in layers] == [wanted[order]] * 2
        assert model.predict_on_batch(IMAGES).shape == wanted[order]


def test_a_model_keeps_the_order_that_it_was_built_in() -> None:
    images = ab.Input((3, 6, 8))
    ab.config.set_image_data_format("channels_first")
    model = ab.Model(images, ab.ops.max_pool(images, 2))
    ab.config.set_image_data_format("channels_last")

    assert model(IMAGES.transpose(0, 3, 1, 2)).shape == (2, 3, 3, 4)


def test_gradients_do_not_depend_on_the_default() -> None:
    def gradient() -> Any:
        x = ab.Variable(IMAGES)
        with ab.GradientTape() as tape:
            y = ab.ops.conv(x, KERNEL, 2, "same", data_format="channels_last")
            loss = ab.ops.sum(ab.ops.max_pool(y, 2, data_format="channels_last") ** 2)
        return np.asarray(tape.gradient(loss, x))

    expected = gradient()
    ab.config.set_image_data_format("channels_first")

    np.testing.assert_array_equal(gradient(), expected)
