"""Sizes, colours and borders of images against slow references written pixel by pixel; gradients, formats, errors."""

import colorsys
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared.images import LAYOUTS, evaluate, from_layout, in_layout, run, symbol

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, as_dtype
from anabranch.engine.ops.signal import image
from anabranch.engine.session import Session
from anabranch.engine.session.placeholder import placeholder
from anabranch.engine.testing import check_gradients

rng = np.random.default_rng(0)
sizes = st.integers(1, 7)


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def draw(*shape: int) -> Any:
    return rng.uniform(0, 1, shape).astype("float32")


# --- resize ---------------------------------------------------------------------------------------------------------


def triangle(x: float) -> float:
    return max(0.0, 1 - x)


def keys(x: float) -> float:
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def lanczos(x: float, radius: int) -> float:
    return float(np.sinc(x) * np.sinc(x / radius)) if x < radius else 0.0


KERNELS: dict[str, Any] = {
    "bilinear": triangle,
    "bicubic": keys,
    "lanczos3": lambda x: lanczos(x, 3),
    "lanczos5": lambda x: lanczos(x, 5),
}


def moved_row(row: Any, target: int, scale: float, shift: float, kernel: Any, antialias: bool) -> Any:
    """Values [pixels, ...] at the centres of `target` pixels that are 1 / scale as large."""
    spread = max(1 / scale, 1.0) if antialias else 1.0
    result = np.zeros((target, *row.shape[1:]))
    for point in range(target):
        centre = (point + 0.5 - shift) / scale - 0.5
        if not -0.5 <= centre <= len(row) - 0.5:
            continue
        weights = [kernel(abs(centre - pixel) / spread) for pixel in range(len(row))]
        total = sum(weights)
        for pixel, weight in enumerate(weights):
            result[point] += weight / total * row[pixel]
    return result


def resized(x: Any, height: int, width: int, kernel: Any, antialias: bool) -> Any:
    """Images [..., height, width, channels] of another size."""
    rows = moved_row(np.moveaxis(x, -3, 0), height, height / x.shape[-3], 0, kernel, antialias)
    columns = moved_row(np.moveaxis(rows, -2, 0), width, width / x.shape[-2], 0, kernel, antialias)
    return np.moveaxis(columns, (1, 0), (-3, -2))


@given(
    st.sampled_from(sorted(KERNELS)),
    st.tuples(sizes, sizes),
    st.tuples(sizes, sizes),
    st.booleans(),
    st.sampled_from(LAYOUTS),
    st.booleans(),
    st.booleans(),
)
def test_resize_by_kernels(
    method: str, before: Any, after: Any, antialias: bool, layout: str, batch: bool, known: bool
):
    x = draw(*(2,) * batch, *before, 3)
    expected = resized(x, after[0], after[1], KERNELS[method], antialias)

    def resize(images: Any) -> Any:
        return image.resize(images, after, method, antialias, data_format=layout)

    result = evaluate(resize, in_layout(x, layout), known=known)
    assert result.dtype == np.float32
    np.testing.assert_allclose(from_layout(result, layout), expected, rtol=1e-4, atol=1e-5)


@given(st.tuples(sizes, sizes), st.tuples(sizes, sizes), st.sampled_from(LAYOUTS), st.booleans())
def test_resize_to_the_nearest_pixel(before: Any, after: Any, layout: str, known: bool):
    x = rng.integers(0, 255, (2, *before, 3)).astype("uint8")
    rows = [math.floor((i + 0.5) * before[0] / after[0]) for i in range(after[0])]
    columns = [math.floor((i + 0.5) * before[1] / after[1]) for i in range(after[1])]
    result = evaluate(
        lambda images: image.resize(images, after, "nearest", data_format=layout), in_layout(x, layout), known=known
    )
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(from_layout(result, layout), x[:, rows][:, :, columns])


def test_resize_of_known_values():
    row = np.array([0, 10, 20, 30], "float32").reshape(1, 4, 1)
    half = run(lambda: image.resize(row, (1, 2)))
    np.testing.assert_allclose(half.ravel(), [5, 25])
    double = run(lambda: image.resize(row, (1, 8)))
    np.testing.assert_allclose(double.ravel(), [0, 2.5, 7.5, 12.5, 17.5, 22.5, 27.5, 30], rtol=1e-6)


@given(st.sampled_from(sorted(KERNELS)), st.booleans(), st.tuples(sizes, sizes), st.tuples(sizes, sizes))
def test_resize_keeps_plain_images_plain(method: str, antialias: bool, before: Any, after: Any):
    result = run(lambda: image.resize(np.full((*before, 2), 0.7, "float32"), after, method, antialias))
    np.testing.assert_allclose(result, np.full((*after, 2), 0.7), rtol=1e-5)


@pytest.mark.parametrize("method", sorted(KERNELS))
@pytest.mark.parametrize("known", [True, False])
def test_resize_rounds_integers_and_keeps_them_in_range(method: str, known: bool):
    x = np.array([0, 0, 255, 255, 0, 7], "uint8").reshape(1, 6, 1)
    result = evaluate(lambda images: image.resize(images, (1, 17), method), x, known=known)
    exact = resized(x.astype(float), 1, 17, KERNELS[method], False)
    assert result.dtype == np.uint8
    assert method == "bilinear" or exact.min() < -1
    assert np.abs(result - np.clip(exact, 0, 255)).max() < 0.501


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "bool"])
def test_resize_keeps_the_dtype(dtype: str):
    x = np.ones((3, 4, 2), as_dtype(dtype))
    result = run(lambda: image.resize(x, (2, 3)))
    assert result.dtype == as_dtype(dtype)
    np.testing.assert_allclose(result.astype("float64"), 1)


def cropped(x: Any, height: int, width: int) -> Any:
    """The largest window in the middle of [batch, height, width, channels] with the ratio of height to width."""
    rows, columns = x.shape[1:3]
    kept_rows = max(min(rows, int(columns * height / width)), 1)
    kept_columns = max(min(columns, int(rows * width / height)), 1)
    top, left = int((rows - kept_rows) / 2), int((columns - kept_columns) / 2)
    return x[:, top : top + kept_rows, left : left + kept_columns]


def bordered(x: Any, height: int, width: int, value: float) -> Any:
    rows, columns = x.shape[1:3]
    above = int((max(rows, int(columns * height / width)) - rows) / 2)
    left = int((max(columns, int(rows * width / height)) - columns) / 2)
    return np.pad(x, ((0, 0), (above, above), (left, left), (0, 0)), constant_values=value)


@given(
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.tuples(sizes, sizes),
    st.sampled_from(LAYOUTS),
    st.booleans(),
    st.booleans(),
)
def test_resize_that_keeps_the_ratio(before: Any, after: Any, layout: str, crop: bool, known: bool):
    x = draw(2, *before, 2)
    middle = cropped(x, after[0], after[1]) if crop else bordered(x, after[0], after[1], 0.25)

    def resize(images: Any) -> Any:
        return image.resize(
            images, after, crop_to_aspect_ratio=crop, pad_to_aspect_ratio=not crop, fill_value=0.25, data_format=layout
        )

    result = evaluate(resize, in_layout(x, layout), known=known)
    expected = resized(middle, after[0], after[1], triangle, False)
    np.testing.assert_allclose(from_layout(result, layout), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["nearest", *sorted(KERNELS)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_resize(method: str, layout: str):
    x = in_layout(draw(2, 3, 5, 2), layout)
    assert check_gradients(lambda images: image.resize(images, (4, 3), method, True, data_format=layout) ** 3, [x])


def test_resize_of_static_shape():
    assert image.resize(symbol((None, None, 8, 3)), (4, 5)).shape == (None, 4, 5, 3)
    assert image.resize(symbol((3, None, None)), (4, 5), data_format="channels_first").shape == (3, 4, 5)
    assert run(lambda: image.resize(np.zeros((0, 4, 4, 3), "float32"), (2, 2))).shape == (0, 2, 2, 3)


RESIZE_ERRORS: list[tuple[Any, str]] = [
    (lambda x: image.resize(x, (2,)), r"size must be two integers, \(height, width\); got \(2,\)"),
    (lambda x: image.resize(x, (2, 0)), r"must be positive; got size=\(2, 0\)"),
    (lambda x: image.resize(x, (2, 2), "cubic"), "interpolation='cubic' must be one of nearest, bilinear"),
    (lambda x: image.resize(x, (2, 2), fill_mode="wrap"), "fill_mode='wrap' must be 'constant'"),
    (
        lambda x: image.resize(x, (2, 2), data_format="last"),
        "resize: data_format must be 'channels_last' or 'channels_first', got 'last'",
    ),
    (lambda x: image.resize(x[0], (2, 2)), r"expected one image \(3 axes\) or a batch .* got shape \[3,1\]"),
    (lambda _: image.resize(symbol(None), (2, 2)), "one image"),
    (lambda x: image.resize(x[:, :0], (2, 2)), r"images without pixels have no values; got shape \[3,0,1\]"),
    (
        lambda x: image.resize(x, (2, 2), crop_to_aspect_ratio=True, pad_to_aspect_ratio=True),
        "only one of crop_to_aspect_ratio and pad_to_aspect_ratio",
    ),
]


@pytest.mark.parametrize(("call", "message"), RESIZE_ERRORS)
def test_resize_refuses(call: Any, message: str):
    with pytest.raises(ValueError, match=message):
        call(np.zeros((3, 3, 1), "float32"))


# --- scale_and_translate --------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["linear", "cubic", "lanczos3", "lanczos5"]),
    st.floats(0.4, 3),
    st.floats(-2, 2),
    sizes,
    sizes,
    st.booleans(),
    st.booleans(),
)
def test_scale_and_translate(
    method: str, scale: float, shift: float, before: int, after: int, antialias: bool, known: bool
):
    x = draw(before, 2).astype("float64")
    kernel = KERNELS[{"linear": "bilinear", "cubic": "bicubic"}.get(method, method)]
    expected = moved_row(x, after, scale, shift, kernel, antialias)

    def move(values: Any, factor: Any, offset: Any) -> Any:
        return image.scale_and_translate(values, (after, 2), factor, offset, (0,), method, antialias)

    result = evaluate(move, x, np.array([scale]), np.array([shift]), known=known)
    np.testing.assert_allclose(result, expected, rtol=1e-7, atol=1e-7)
    constant = run(lambda: move(x, np.array([scale]), np.array([shift])))
    np.testing.assert_allclose(constant, expected, rtol=1e-7, atol=1e-7)


def test_scale_and_translate_of_several_axes():
    x = draw(2, 3, 4, 1)
    result = run(
        lambda: image.scale_and_translate(x, (2, 6, 5, 1), [2.0, 1.25], [0.0, 0.0], (1, -2), "bilinear", False)
    )
    np.testing.assert_allclose(result, resized(x, 6, 5, triangle, False), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["cubic", "lanczos3"])
def test_gradients_of_scale_and_translate(method: str):
    def move(values: Any, scale: Any, shift: Any) -> Any:
        return image.scale_and_translate(values, (5, 2), scale, shift, (0,), method, False)

    assert check_gradients(move, [draw(4, 2), np.array([1.37]), np.array([0.21])])


def test_scale_and_translate_refuses():
    x = np.zeros((2, 3), "float32")
    with pytest.raises(ValueError, match="method='nearest' must be one of linear, bilinear"):
        image.scale_and_translate(x, (2, 3), [1.0], [0.0], (0,), "nearest")
    with pytest.raises(ValueError, match=r"a size for every axis of the images, \[2,3\]; got \(2,\)"):
        image.scale_and_translate(x, (2,), [1.0], [0.0], (0,), "linear")
    with pytest.raises(ValueError, match=r"axis 1 is none of spatial_dims=\(0,\).*keep its size 3"):
        image.scale_and_translate(x, (2, 4), [1.0], [0.0], (0,), "linear")
    with pytest.raises(ValueError, match=r"scale needs a number for each of the 1 spatial_dims; got shape \[2\]"):
        image.scale_and_translate(x, (2, 3), [1.0, 1.0], [0.0], (0,), "linear")
    with pytest.raises(ValueError, match="spatial_dims=2 is out of range"):
        image.scale_and_translate(x, (2, 3), [1.0], [0.0], (2,), "linear")


# --- colours --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [True, False])
def test_rgb_to_grayscale(layout: str, batch: bool):
    x = draw(*(2,) * batch, 3, 4, 3)
    expected = 0.2989 * x[..., :1] + 0.587 * x[..., 1:2] + 0.114 * x[..., 2:]
    result = evaluate(lambda i: image.rgb_to_grayscale(i, layout), in_layout(x, layout))
    np.testing.assert_allclose(from_layout(result, layout), expected, rtol=1e-5)
    whole = (x * 255).astype("uint8")
    result = evaluate(lambda i: image.rgb_to_grayscale(i, layout), in_layout(whole, layout), known=False)
    assert result.dtype == np.uint8
    exact = from_layout(result, layout) - (whole @ np.array([[0.2989], [0.587], [0.114]]))
    assert (exact >= -1).all()
    assert (exact < 1e-3).all()


def test_gray_images_stay():
    x = draw(2, 2, 1)
    np.testing.assert_array_equal(run(lambda: image.rgb_to_grayscale(x)), x)


colours = st.tuples(*[st.floats(0, 1, width=16) for _ in range(3)])


@given(st.lists(colours, min_size=1, max_size=4), st.sampled_from(LAYOUTS))
def test_hue_saturation_and_value(pixels: Any, layout: str):
    x = np.array(pixels, "float64").reshape(1, -1, 3)
    x[np.abs(x) < 1e-3] = 0
    hsv = np.array([colorsys.rgb_to_hsv(*pixel) for pixel in x[0]]).reshape(x.shape)
    result = from_layout(run(lambda: image.rgb_to_hsv(in_layout(x, layout), layout)), layout)
    turns = np.abs(result[..., 0] - hsv[..., 0])
    np.testing.assert_allclose(np.minimum(turns, 1 - turns), 0, atol=1e-9)
    np.testing.assert_allclose(result[..., 1:], hsv[..., 1:], atol=1e-9)
    back = from_layout(run(lambda: image.hsv_to_rgb(in_layout(hsv, layout), layout)), layout)
    np.testing.assert_allclose(back, x, atol=1e-9)


def test_gradients_of_colours():
    pixels = np.array([[[0.9, 0.4, 0.2], [0.1, 0.7, 0.3], [0.2, 0.35, 0.8]]])
    assert check_gradients(image.rgb_to_hsv, [pixels])
    assert check_gradients(image.hsv_to_rgb, [pixels])
    assert check_gradients(image.rgb_to_grayscale, [pixels])
    gray = np.full((1, 1, 3), 0.5)
    with Graph().as_default():
        x = symbol((1, 1, 3), "float64")
        (dx,) = gradients(ops.sum(image.rgb_to_hsv(x)), [x])
        assert np.isfinite(Session().run(dx, {x: gray})).all()


def test_colours_refuse():
    with pytest.raises(ValueError, match="rgb_to_grayscale: expected 3 or 1 channels on axis 2; got 2"):
        image.rgb_to_grayscale(np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match="rgb_to_hsv: expected 3 channels on axis 0; got 2"):
        image.rgb_to_hsv(np.zeros((2, 2, 3)), "channels_first")
    with pytest.raises(ValueError, match=r"hsv_to_rgb: expected floats; got .*Divide by 255"):
        image.hsv_to_rgb(np.zeros((2, 2, 3), "uint8"))


# --- borders --------------------------------------------------------------------------------------------------------


@given(st.tuples(sizes, sizes), st.lists(st.integers(0, 3), min_size=4, max_size=4), st.data())
def test_pad_and_crop_images(shape: Any, widths: Any, data: Any):
    layout = data.draw(st.sampled_from(LAYOUTS))
    known = data.draw(st.booleans())
    left_out = [data.draw(st.integers(0, 2)) for _ in range(2)]
    x = draw(2, *shape, 2)
    top, bottom, left, right = widths
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    rows = _two_of(left_out[0], top=top, bottom=bottom, height=padded.shape[1])
    columns = _two_of(left_out[1], left=left, right=right, width=padded.shape[2])
    given_widths = {**_named("padding", rows), **_named("padding", columns), "data_format": layout}
    result = evaluate(lambda i: image.pad_images(i, **given_widths), in_layout(x, layout), known=known)
    np.testing.assert_array_equal(from_layout(result, layout), padded)
    rows = _two_of(left_out[0], top=top, bottom=bottom, height=shape[0])
    columns = _two_of(left_out[1], left=left, right=right, width=shape[1])
    given_widths = {**_named("cropping", rows), **_named("cropping", columns), "data_format": layout}
    result = evaluate(lambda i: image.crop_images(i, **given_widths), in_layout(padded, layout), known=known)
    np.testing.assert_array_equal(from_layout(result, layout), x)


def _two_of(left_out: int, **three: int) -> dict[str, int]:
    return {name: size for place, (name, size) in enumerate(three.items()) if place != left_out}


def _named(what: str, given: dict[str, int]) -> dict[str, int]:
    return {f"target_{name}" if name in ("height", "width") else f"{name}_{what}": size for name, size in given.items()}


@pytest.mark.parametrize("channels_first", [False, True])
def test_target_sizes_of_images_of_unknown_sizes_are_known(channels_first: bool):
    data_format = "channels_first" if channels_first else "channels_last"
    data = np.arange(2 * 5 * 6 * 3, dtype="float32").reshape(2, 5, 6, 3)
    expected = np.pad(data, ((0, 0), (1, 2), (2, 2), (0, 0))), data[:, 1:4, 2:4]
    if channels_first:
        data, *expected = (np.moveaxis(each, -1, 1) for each in (data, *expected))
    with Graph().as_default():
        x = placeholder([None, 3, None, None] if channels_first else [None, None, None, 3], "float32")
        padded = image.pad_images(x, 1, 2, target_height=8, target_width=10, data_format=data_format)
        cropped = image.crop_images(x, 1, 2, target_height=3, target_width=2, data_format=data_format)
        assert padded.shape == ((None, 3, 8, 10) if channels_first else (None, 8, 10, 3))
        assert cropped.shape == ((None, 3, 3, 2) if channels_first else (None, 3, 2, 3))
        found = Session().run([padded, cropped], {x: data})
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(each, wanted)


def test_pad_and_crop_images_refuse():
    x = np.zeros((4, 4, 1), "float32")
    with pytest.raises(ValueError, match="exactly two of top_padding, bottom_padding, target_height must be given"):
        image.pad_images(x, 1, 1)
    with pytest.raises(ValueError, match="must not be negative; got left_padding=-1"):
        image.pad_images(x, 1, -1, 1, 1)
    with pytest.raises(ValueError, match=r"do not fit images of size 4 .* what is left is negative"):
        image.pad_images(x, 1, 1, target_height=3, target_width=9)
    with pytest.raises(ValueError, match="exactly two of left_cropping, right_cropping, target_width"):
        image.crop_images(x, 1, 1, 1, 1, target_width=3)
    with pytest.raises(ValueError, match="do not fit images of size 4"):
        image.crop_images(x, 3, 0, target_height=2, target_width=2)
    with pytest.raises(ValueError, match="do not fit images of size 4"):
        image.crop_images(x, 3, 0, 2, 0)


# --- the module -----------------------------------------------------------------------------------------------------


def test_image_functions_are_an_attribute_of_ops():
    import anabranch

    assert anabranch.ops.image.resize is image.resize
    assert not hasattr(anabranch.ops, "resize")
    assert all(callable(getattr(image, name)) for name in image.__all__)
