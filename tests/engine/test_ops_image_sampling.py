"""Images sampled elsewhere, filtered and compared, against slow references written pixel by pixel."""

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared.images import LAYOUTS, evaluate, from_layout, in_layout, run, symbol

from anabranch.engine import ops
from anabranch.engine.graph import Graph, as_dtype
from anabranch.engine.ops.signal import image
from anabranch.engine.testing import check_gradients

rng = np.random.default_rng(0)
sizes = st.integers(1, 7)


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def draw(*shape: int) -> Any:
    return rng.uniform(0, 1, shape).astype("float32")


# --- sampling elsewhere ---------------------------------------------------------------------------------------------


def element(values: Any, place: tuple[int, ...], fill_mode: str, fill: float) -> Any:
    """The element of an array that is continued without end."""
    key: list[int] = []
    for index, size in zip(place, values.shape, strict=False):
        if fill_mode == "constant" and not 0 <= index < size:
            return fill
        key.append(continued(index, size, fill_mode))
    return values[tuple(key)]


def continued(index: int, size: int, fill_mode: str) -> int:
    if fill_mode in ("constant", "nearest"):
        return min(max(index, 0), size - 1)
    if fill_mode == "wrap":
        return index % size
    line = list(range(size))
    period = line + line[::-1] if fill_mode == "reflect" else line + line[-2:0:-1]
    return period[index % len(period)]


def between(values: Any, place: Any, order: int, fill_mode: str, fill: float) -> Any:
    if order == 0:
        return element(values, tuple(math.floor(c + 0.5) for c in place), fill_mode, fill)
    total: Any = 0.0
    for corner in itertools.product((0, 1), repeat=len(place)):
        lower = [math.floor(c) for c in place]
        weight = math.prod(c - low if up else 1 - (c - low) for c, low, up in zip(place, lower, corner, strict=True))
        spot = tuple(low + up for low, up in zip(lower, corner, strict=True))
        total = total + weight * element(values, spot, fill_mode, fill)
    return total


FILL_MODES = ("constant", "nearest", "wrap", "mirror", "reflect")


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from(FILL_MODES),
    st.sampled_from([0, 1]),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_map_coordinates(shape: Any, fill_mode: str, order: int, known: bool, seed: int):
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, shape)
    places = random.uniform(-9, 9, (len(shape), 2, 3))
    places[:, 0, 0] = np.round(places[:, 0, 0])
    expected = [between(x, place, order, fill_mode, 0.5) for place in places.reshape(len(shape), -1).T]
    result = evaluate(
        lambda v, c: image.map_coordinates(v, ops.stack(ops.unstack(c, len(shape))), order, fill_mode, 0.5),
        x,
        places,
        known=known,
    )
    np.testing.assert_allclose(result, np.reshape(expected, (2, 3)), rtol=1e-9, atol=1e-9)


def test_map_coordinates_of_integers_and_lists():
    x = np.array([0, 1, 4, 250], "uint8")
    places = [np.array([0.5, 1.5, 2.9, 7.0])]
    result = run(lambda: image.map_coordinates(x, places, 1, fill_value=300))
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, [1, 3, 225, 255])
    whole = run(lambda: image.map_coordinates(x, [np.array([3, 0])], 0))
    np.testing.assert_array_equal(whole, [250, 0])


def test_map_coordinates_far_away():
    places = [np.array([np.inf, -np.inf, 1e30, np.nan], "float32")]
    result = run(lambda: image.map_coordinates(np.ones(3, "float32"), places, 1, fill_value=7.0))
    np.testing.assert_array_equal(result, [7, 7, 7, np.nan])


@pytest.mark.parametrize("fill_mode", FILL_MODES)
def test_gradients_of_map_coordinates(fill_mode: str):
    places = np.array([[0.3, 1.6, -1.3, 4.2], [0.2, 0.7, 1.4, -0.6]])
    assert check_gradients(lambda x, c: image.map_coordinates(x, c, 1, fill_mode), [draw(3, 2), places])


def test_map_coordinates_refuses():
    x = np.zeros((2, 3), "float32")
    with pytest.raises(ValueError, match=r"coordinates must be \[2, \.\.\.\], with one row for each axis .*\[1,4\]"):
        image.map_coordinates(x, np.zeros((1, 4)), 1)
    with pytest.raises(ValueError, match=r"got \[2\]"):
        image.map_coordinates(x, np.zeros(2), 1)
    with pytest.raises(ValueError, match=r"order=3 must be 0 \(nearest\) or 1 \(linear\)"):
        image.map_coordinates(x, np.zeros((2, 4)), 3)
    with pytest.raises(ValueError, match="fill_mode='edge' must be one of constant, nearest, wrap, mirror, reflect"):
        image.map_coordinates(x, np.zeros((2, 4)), 1, "edge")
    with pytest.raises(ValueError, match="needs inputs and coordinates of known rank"):
        image.map_coordinates(symbol(None), np.zeros((2, 4)), 1)


def projected(x: Any, transform: Any, order: int, fill_mode: str, fill: float) -> Any:
    """One image with channels last, seen through the row of eight numbers."""
    a0, a1, a2, b0, b1, b2, c0, c1 = transform
    result = np.zeros(x.shape)
    for row, column, channel in np.ndindex(*x.shape):
        k = c0 * column + c1 * row + 1
        place = (b0 * column + b1 * row + b2) / k, (a0 * column + a1 * row + a2) / k
        result[row, column, channel] = between(x[..., channel], place, order, fill_mode, fill)
    return result


def transforms(count: int, random: Any) -> Any:
    plain = np.array([1, 0, 0, 0, 1, 0, 0, 0], "float64")
    return plain + random.uniform(-1, 1, (count, 8)) * [0.5, 0.5, 2, 0.5, 0.5, 2, 0.05, 0.05]


@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from(FILL_MODES),
    st.sampled_from(["nearest", "bilinear"]),
    st.sampled_from(["image", "one for all", "one each"]),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_affine_transform(layout: str, fill_mode: str, interpolation: str, kind: str, known: bool, seed: int):
    random = np.random.default_rng(seed)
    x = random.uniform(0, 1, (2, 4, 3, 2))
    rows = transforms(2, random)
    order = ["nearest", "bilinear"].index(interpolation)
    if kind != "one each":
        rows = np.repeat(rows[:1], 2, axis=0)
    expected = np.stack([projected(x[i], rows[i], order, fill_mode, 0.5) for i in range(2)])
    given_rows = rows if kind == "one each" else rows[0]
    if kind == "image":
        x, expected = x[0], expected[0]

    def transform(images: Any, matrix: Any) -> Any:
        return image.affine_transform(images, matrix, interpolation, fill_mode, 0.5, layout)

    result = evaluate(transform, in_layout(x, layout), given_rows, known=known)
    np.testing.assert_allclose(from_layout(result, layout), expected, rtol=1e-7, atol=1e-7)


def test_gradients_of_affine_transform():
    rows = transforms(2, np.random.default_rng(1))
    assert check_gradients(image.affine_transform, [draw(2, 4, 3, 2), rows])


def test_affine_transform_of_integers_keeps_them():
    x = rng.integers(0, 255, (2, 5, 4, 3)).astype("uint8")
    plain = [1.0, 0, 0, 0, 1, 0, 0, 0]
    result = run(lambda: image.affine_transform(x, plain))
    np.testing.assert_array_equal(result, x)
    half = np.array([0, 3, 250], "uint8").reshape(1, 3, 1)
    result = run(lambda: image.affine_transform(half, [1.0, 0, 0.5, 0, 1, 0, 0, 0], fill_mode="nearest"))
    np.testing.assert_array_equal(result.ravel(), [2, 127, 250])


def test_affine_transform_refuses():
    x = np.zeros((3, 3, 1), "float32")
    with pytest.raises(ValueError, match=r"transform must be \[8\] or \[batch, 8\]; got shape \[6\]"):
        image.affine_transform(x, np.zeros(6))
    with pytest.raises(ValueError, match="interpolation='cubic' must be 'nearest' or 'bilinear'"):
        image.affine_transform(x, np.zeros(8), "cubic")
    with pytest.raises(ValueError, match="A batch of 3 images needs one transform or 3; got 2"):
        image.affine_transform(np.zeros((3, 2, 2, 1)), np.zeros((2, 8)))
    with pytest.raises(ValueError, match="affine_transform: fill_mode='symmetric'"):
        image.affine_transform(x, np.zeros(8), fill_mode="symmetric")


CORNERS = np.array([[0, 0], [4, 0], [0, 3], [4, 3]], "float64")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("known", [True, False])
def test_perspective_transform_moves_points(layout: str, known: bool):
    x = draw(2, 4, 5, 2).astype("float64")
    ends = CORNERS + np.random.default_rng(2).uniform(-0.4, 0.4, (2, 4, 2))
    starts = np.stack([CORNERS, CORNERS + 0.25])
    if not known:
        starts, ends = starts[:1], ends[:1]
    rows = [_through(end, start) for start, end in zip(starts, ends, strict=True)]
    expected = [projected(one, rows[i % len(rows)], 1, "constant", 0.5) for i, one in enumerate(x)]
    result = evaluate(
        lambda i: image.perspective_transform(i, starts, ends, fill_value=0.5, data_format=layout),
        in_layout(x, layout),
        known=known,
    )
    np.testing.assert_allclose(from_layout(result, layout), expected, rtol=1e-7, atol=1e-7)


def _through(points: Any, images: Any) -> Any:
    """The eight numbers of the projective map that takes `points` to `images`, by the cross products of both."""
    rows: list[Any] = []
    for (x, y), (u, v) in zip(points, images, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y, -u], [0, 0, 0, x, y, 1, -v * x, -v * y, -v]]
    kernel = np.linalg.svd(np.array(rows))[2][-1]
    return (kernel / kernel[-1])[:8]


def test_perspective_transform_that_moves_nothing():
    x = rng.integers(0, 255, (4, 5, 3)).astype("uint8")
    np.testing.assert_array_equal(run(lambda: image.perspective_transform(x, CORNERS, CORNERS)), x)


def test_gradients_of_perspective_transform():
    ends = CORNERS + np.random.default_rng(3).uniform(-0.4, 0.4, (4, 2))
    assert check_gradients(image.perspective_transform, [draw(4, 5, 1), CORNERS, ends])


def test_perspective_transform_refuses():
    x = np.zeros((4, 5, 3), "float32")
    with pytest.raises(ValueError, match=r"start_points must be \[4, 2\] or \[batch, 4, 2\]; got \[3,2\]"):
        image.perspective_transform(x, CORNERS[:3], CORNERS)
    with pytest.raises(ValueError, match=r"must have the same shape; got \[1,4,2\] and \[4,2\]"):
        image.perspective_transform(x, CORNERS[None], CORNERS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("known", [True, False])
def test_elastic_transform(layout: str, known: bool):
    x = draw(2, 20, 24, 3)

    def bend(images: Any, **settings: Any) -> Any:
        return image.elastic_transform(images, sigma=2.0, seed=3, data_format=layout, **settings)

    bent = from_layout(evaluate(bend, in_layout(x, layout), known=known), layout)
    assert bent.shape == x.shape
    assert np.abs(bent - x).max() > 0.1
    assert (bent >= 0).all()
    assert (bent <= 1).all()
    np.testing.assert_array_equal(from_layout(evaluate(bend, in_layout(x, layout)), layout), bent)
    still = from_layout(evaluate(lambda i: bend(i, alpha=0.0), in_layout(x, layout)), layout)
    np.testing.assert_array_equal(still, x)
    row, column = np.meshgrid(np.arange(20.0), np.arange(24.0), indexing="ij")
    slope = np.stack([row, column], axis=-1).astype("float32")
    settings: dict[str, Any] = {"fill_mode": "nearest", "alpha": 3.0}
    first, second = (
        from_layout(evaluate(lambda i: bend(i, **settings), in_layout(images, layout)), layout)
        for images in (np.stack([slope, slope]), np.stack([slope, slope + 1]))
    )
    moves = (first - slope)[
        :, 5:-5, 5:-5
    ]  # a blur over sigma leaves alpha / (2 sqrt(pi)) of normal numbers times sigma
    assert 0.4 < np.sqrt((moves**2).mean()) / (3.0 / (2 * math.sqrt(math.pi))) < 1.6
    assert np.diff(moves, axis=1).std() < 0.6 * moves.std()
    np.testing.assert_allclose(second[1], first[1] + 1, rtol=1e-4, atol=1e-4)


def test_elastic_transform_of_one_image_and_refusals():
    x = rng.integers(0, 255, (9, 8, 3)).astype("uint8")
    bent = run(lambda: image.elastic_transform(x, sigma=1.0, interpolation="nearest", seed=1))
    assert bent.dtype == np.uint8
    assert set(bent.ravel().tolist()) <= set(x.ravel().tolist())
    with pytest.raises(ValueError, match="sigma must be positive; got 0"):
        image.elastic_transform(x, sigma=0)
    with pytest.raises(ValueError, match="elastic_transform: interpolation='cubic'"):
        image.elastic_transform(x, interpolation="cubic")


# --- filters --------------------------------------------------------------------------------------------------------


def correlated(x: Any, kernel: Any) -> Any:
    """Convolve [batch, height, width, channels] with a kernel [rows, columns], where that is inside."""
    rows, columns = kernel.shape
    height, width = x.shape[1] - rows + 1, x.shape[2] - columns + 1
    result = np.zeros((x.shape[0], height, width, x.shape[3]))
    for i, j in np.ndindex(rows, columns):
        result += kernel[i, j] * x[:, i : i + height, j : j + width]
    return result


def bell(size: int, sigma: float) -> Any:
    curve = np.array([math.exp(-0.5 * ((i - (size - 1) / 2) / sigma) ** 2) for i in range(size)])
    return curve / curve.sum()


@given(
    st.tuples(sizes, sizes),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.floats(0.3, 3), st.floats(0.3, 3)),
    st.sampled_from(LAYOUTS),
    st.booleans(),
    st.booleans(),
)
def test_gaussian_blur(shape: Any, size: Any, sigma: Any, layout: str, batch: bool, known: bool):
    x = draw(2, *shape, 2).astype("float64")
    kernel = np.outer(bell(size[1], sigma[1]), bell(size[0], sigma[0]))
    widths = [((length - 1) // 2, length // 2) for length in kernel.shape]
    expected = correlated(np.pad(x, ((0, 0), *widths, (0, 0))), kernel)
    if not batch:
        x, expected = x[0], expected[0]
    result = evaluate(lambda i: image.gaussian_blur(i, size, sigma, layout), in_layout(x, layout), known=known)
    np.testing.assert_allclose(from_layout(result, layout), expected, rtol=1e-9, atol=1e-12)
    symbolic = evaluate(lambda i, s: image.gaussian_blur(i, size, s, layout), in_layout(x, layout), np.array(sigma))
    np.testing.assert_allclose(from_layout(symbolic, layout), expected, rtol=1e-9, atol=1e-12)


def test_gaussian_blur_of_integers_and_halves():
    x = np.full((5, 5, 1), 200, "uint8")
    result = run(lambda: image.gaussian_blur(x))
    assert result.dtype == np.uint8
    assert result[2, 2, 0] == 200
    half = run(lambda: image.gaussian_blur(np.ones((3, 3, 1), ml_dtypes.bfloat16)))
    assert half.dtype == ml_dtypes.bfloat16


def test_gradients_of_gaussian_blur():
    assert check_gradients(lambda x, s: image.gaussian_blur(x, (3, 2), s), [draw(3, 4, 2), np.array([0.8, 1.3])])


def test_gaussian_blur_refuses():
    x = np.zeros((3, 3, 1), "float32")
    with pytest.raises(ValueError, match=r"kernel_size must be positive; got \(0, 3\)"):
        image.gaussian_blur(x, (0, 3))
    with pytest.raises(ValueError, match="kernel_size must be a pair; got 3"):
        image.gaussian_blur(x, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="sigma must be positive"):
        image.gaussian_blur(x, (3, 3), (1.0, 0.0))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("known", [True, False])
def test_sobel_edges(layout: str, dtype: str, known: bool):
    x = rng.integers(0, 9, (2, 5, 4, 3)).astype(dtype)
    wide = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    down = np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]])
    expected = np.stack([correlated(wide, down), correlated(wide, down.T)], axis=-1)
    result = evaluate(lambda i: image.sobel_edges(i, layout), in_layout(x, layout), known=known)
    assert result.dtype == as_dtype(dtype)
    back = result if layout == "channels_last" else np.moveaxis(result, 1, 3)
    np.testing.assert_array_equal(back, expected)


def test_sobel_edges_of_plain_and_sloping_images():
    assert not run(lambda: image.sobel_edges(np.full((1, 4, 4, 2), 3.0))).any()
    slope = np.tile(np.arange(6.0)[:, None], (1, 5))[None, :, :, None]
    edges = run(lambda: image.sobel_edges(slope))
    np.testing.assert_array_equal(edges[0, 1:-1, :, 0, 0], 8)
    np.testing.assert_array_equal(edges[..., 1], 0)
    assert check_gradients(image.sobel_edges, [draw(3, 3, 2)])


@pytest.mark.parametrize("name", ["affine_transform", "gaussian_blur", "sobel_edges", "elastic_transform"])
def test_empty_batches_stay_empty(name: str):
    x = np.zeros((0, 4, 5, 2), "float32")
    arguments = [[1.0, 0, 0, 0, 1, 0, 0, 0]] if name == "affine_transform" else []
    result = run(lambda: getattr(image, name)(x, *arguments))
    assert result.shape[:4] == x.shape


# --- likeness -------------------------------------------------------------------------------------------------------


def similarity(x: Any, y: Any, peak: float, size: int, sigma: float) -> Any:
    kernel = np.outer(bell(size, sigma), bell(size, sigma))
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    total: list[float] = []
    for a, b in zip(x, y, strict=True):
        values: list[float] = []
        for row, column in np.ndindex(a.shape[0] - size + 1, a.shape[1] - size + 1):
            p, q = (image[row : row + size, column : column + size] for image in (a, b))
            weights = kernel[..., None]
            mean_p, mean_q = (weights * p).sum((0, 1)), (weights * q).sum((0, 1))
            spread_p, spread_q = (weights * (p - mean_p) ** 2).sum((0, 1)), (weights * (q - mean_q) ** 2).sum((0, 1))
            both = (weights * (p - mean_p) * (q - mean_q)).sum((0, 1))
            ratio = (2 * mean_p * mean_q + c1) * (2 * both + c2)
            values.append((ratio / ((mean_p**2 + mean_q**2 + c1) * (spread_p + spread_q + c2))).mean())
        total.append(float(np.mean(values)))
    return np.array(total)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("size", [3, 11])
def test_ssim(layout: str, known: bool, size: int):
    x = draw(2, 12, 13, 2).astype("float64")
    y = np.clip(x + 0.2 * rng.normal(size=x.shape), 0, 1)

    def compare(first: Any, second: Any) -> Any:
        return image.ssim(first, second, 1.0, size, data_format=layout)

    result = evaluate(compare, in_layout(x, layout), in_layout(y, layout), known=known)
    np.testing.assert_allclose(result, similarity(x, y, 1.0, size, 1.5), rtol=1e-9)
    one = evaluate(compare, in_layout(x[0], layout), in_layout(y[0], layout), known=known)
    np.testing.assert_allclose(one, result[0])


def test_ssim_of_equal_and_different_images():
    x = draw(16, 16, 3)
    np.testing.assert_allclose(run(lambda: image.ssim(x, x)), 1, rtol=1e-5)
    assert run(lambda: image.ssim(x, 1 - x)) < 0
    bytes_ = (x * 255).astype("uint8")
    assert run(lambda: image.ssim(bytes_, bytes_ // 2, max_val=255)).dtype == np.float32
    assert check_gradients(lambda a, b: image.ssim(a, b, filter_size=2), [draw(3, 3, 1), draw(3, 3, 1)])


def test_ssim_refuses():
    x = np.zeros((8, 16, 1), "float32")
    with pytest.raises(ValueError, match=r"smaller than the window; got filter_size=11"):
        image.ssim(x, x)
    with pytest.raises(ValueError, match=r"ssim compares signals of one shape; got \[8,16,1\] and \[8,15,1\]"):
        image.ssim(x, x[:, 1:])


def test_psnr():
    x, y = draw(2, 5), draw(2, 5)
    expected = 20 * math.log10(2.0) - 10 * math.log10(((x - y) ** 2).mean())
    np.testing.assert_allclose(run(lambda: ops.psnr(x, y, 2.0)), expected, rtol=1e-5)
    with np.errstate(all="ignore"):
        assert run(lambda: ops.psnr(x, x, 1.0)) == np.inf
    assert check_gradients(lambda a, b: ops.psnr(a, b, 1.0), [x, y])
    with pytest.raises(ValueError, match=r"psnr compares signals of one shape; got \[2,5\] and \[5\]"):
        ops.psnr(x, y[0], 1.0)
