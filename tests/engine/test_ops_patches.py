"""Windows, blocks and rearranged axes against loops; the adjoints."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anabranch.engine import ops
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.signal.image import extract_patches, extract_patches_3d, reconstruct_patches
from anabranch.engine.session import Session
from anabranch.engine.testing import check_gradients

rng = np.random.default_rng(0)
LAYOUTS = ("channels_last", "channels_first")


def evaluate(function: Any, *arrays: Any, unknown: Any = ()) -> Any:
    """`function` of tensors with the values of `arrays`, with the axes `unknown` of unknown size."""
    with Graph().as_default() as graph:
        shapes = [tuple(None if axis in unknown else d for axis, d in enumerate(a.shape)) for a in arrays]
        inputs = [
            graph.add(Placeholder(TensorSpec(shape, a.dtype)), (), "x").outputs[0]
            for shape, a in zip(shapes, arrays, strict=True)
        ]
        return Session().run(function(*inputs), dict(zip(inputs, arrays, strict=True)))


def symbol(shape: Any) -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype("float32"))), (), "x").outputs[0]


# --- unfold and fold ------------------------------------------------------------------------------------------------

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def foldings(draw: Any) -> Any:
    """A shape, and settings with which a window at least fits."""
    height, width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    kernel, dilation, stride = draw(pairs), draw(pairs), draw(pairs)
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    for size, k, d, p in zip((height, width), kernel, dilation, padding, strict=True):
        assume(size + 2 * p >= (k - 1) * d + 1)
    return (height, width), {"kernel_size": kernel, "dilation": dilation, "padding": padding, "stride": stride}


def window_starts(length: int, kernel: int, dilation: int, stride: int) -> list[int]:
    return list(range(0, length - (kernel - 1) * dilation, stride))


def unfolded(x: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    wide = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    columns: list[Any] = []
    for top in window_starts(wide.shape[2], kernel_size[0], dilation[0], stride[0]):
        for left in window_starts(wide.shape[3], kernel_size[1], dilation[1], stride[1]):
            rows = top + dilation[0] * np.arange(kernel_size[0])
            places = left + dilation[1] * np.arange(kernel_size[1])
            columns.append(wide[:, :, rows][:, :, :, places].reshape(len(x), -1))
    return np.stack(columns, axis=-1)


@given(foldings(), st.sampled_from([(), (0, 1), (0, 2, 3), (0, 1, 2, 3)]))
def test_unfold(case: Any, unknown: Any):
    shape, settings = case
    x = rng.normal(size=(2, 3, *shape)).astype("float32")
    result = evaluate(lambda t: ops.unfold(t, **settings), x, unknown=unknown)
    np.testing.assert_array_equal(result, unfolded(x, **settings))


@given(foldings(), st.booleans())
def test_fold_is_the_adjoint_of_unfold(case: Any, known: bool):
    shape, settings = case
    x = rng.integers(-9, 9, (2, 3, *shape)).astype("float64")
    columns = unfolded(x, **settings)
    y = rng.integers(-9, 9, columns.shape).astype("float64")
    folded = evaluate(lambda t: ops.fold(t, shape, **settings), y, unknown=() if known else (0, 1, 2))
    assert folded.shape == x.shape
    assert (folded * x).sum() == (y * columns).sum()


def test_fold_adds_what_overlaps():
    image = evaluate(lambda x: ops.fold(x, (3, 3), 2), np.ones((1, 4, 4), "int32"))
    np.testing.assert_array_equal(image[0, 0], [[1, 2, 1], [2, 4, 2], [1, 2, 1]])


def test_unfold_and_fold_of_static_shape():
    with Graph().as_default():
        assert ops.unfold(symbol((None, 2, 6, 5)), (3, 2), padding=1).shape == (None, 12, 36)
        assert ops.fold(symbol((None, 12, None)), (6, 5), (3, 2)).shape == (None, 2, 6, 5)
        assert evaluate(lambda x: ops.unfold(x, 2), np.zeros((0, 1, 3, 3), "float32")).shape == (0, 4, 4)


def test_gradients_of_unfold_and_fold():
    settings: dict[str, Any] = {"kernel_size": (2, 3), "dilation": (1, 2), "padding": (1, 0), "stride": (2, 1)}
    assert check_gradients(lambda x: ops.unfold(x, **settings), [rng.normal(size=(2, 2, 3, 5))])
    assert check_gradients(lambda x: ops.fold(x, (3, 5), **settings), [rng.normal(size=(2, 12, 2))])


def test_unfold_and_fold_refuse():
    x = np.zeros((1, 4, 4, 4), "float32")
    with Graph().as_default():
        with pytest.raises(
            ValueError, match=r"unfold: expected \[batch, channels, height, width\]; got shape \[4,4,4\]"
        ):
            ops.unfold(x[0], 2)
        with pytest.raises(ValueError, match="a window that reaches over 5 elements does not fit into 4"):
            ops.unfold(x, 3, dilation=2)
        with pytest.raises(ValueError, match=r"kernel_size must be an integer or 2 integers; got \(1, 2, 3\)"):
            ops.unfold(x, (1, 2, 3))
        with pytest.raises(ValueError, match="stride must be at least 1; got 0"):
            ops.unfold(x, 2, stride=0)
        with pytest.raises(ValueError, match=r"fold: expected \[batch, channels \* kernel area, windows\]; got shape"):
            ops.fold(x, 4, 2)
        with pytest.raises(ValueError, match=r"channels \* 9 values, for a kernel of 3 x 3; got 4"):
            ops.fold(x[0], 4, 3)
        with pytest.raises(ValueError, match="these settings make 9 windows; got 4 on axis 2"):
            ops.fold(x[0], 4, 2)


# --- extract_patches ------------------------------------------------------------------------------------------------


def patched(x: Any, size: Any, strides: Any, dilation: Any, padding: str) -> Any:
    """The patches of [batch, ..., channels]."""
    starts: list[Any] = []
    widths = [(0, 0)]
    for length, k, s, d in zip(x.shape[1:-1], size, strides, dilation, strict=True):
        reach = (k - 1) * d + 1
        missing = max((-(-length // s) - 1) * s + reach - length, 0) if padding == "same" else 0
        widths.append((missing // 2, missing - missing // 2))
        starts.append(range(0, length + missing - reach + 1, s))
    wide = np.pad(x, [*widths, (0, 0)])
    result = np.zeros((len(x), *[len(part) for part in starts], int(np.prod(size)) * x.shape[-1]), x.dtype)
    for place in np.ndindex(*result.shape[1:-1]):
        window = wide
        for axis, (index, k, d) in enumerate(zip(place, size, dilation, strict=True), start=1):
            window = np.take(window, starts[axis - 1][index] + d * np.arange(k), axis)
        result[(slice(None), *place)] = window.reshape(len(x), -1)
    return result


@given(
    st.integers(2, 3),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)), min_size=3),
    st.sampled_from(["valid", "same"]),
    st.sampled_from(LAYOUTS),
    st.booleans(),
    st.booleans(),
)
def test_extract_patches(axes: int, settings_of_axes: Any, padding: str, layout: str, batch: bool, known: bool):
    lengths, size, strides, dilation = zip(*settings_of_axes[:axes], strict=True)
    if padding == "valid":
        assume(all((k - 1) * d < length for length, k, d in zip(lengths, size, dilation, strict=True)))
    x = rng.integers(0, 99, (2, *lengths, 2))
    expected = patched(x, size, strides, dilation, padding)
    given_images = x if layout == "channels_last" else np.moveaxis(x, -1, 1)
    if not batch:
        given_images, expected = given_images[0], expected[0]
    result = evaluate(
        lambda t: extract_patches(t, size, strides, dilation, padding, layout),
        given_images,
        unknown=() if known else range(6),
    )
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result if layout == "channels_last" else np.moveaxis(result, -1 - axes, -1), expected)


def test_patches_lie_side_by_side_by_default():
    x = np.arange(36).reshape(1, 6, 6, 1)
    patches = evaluate(lambda t: extract_patches(t, 3), x)
    assert patches.shape == (1, 2, 2, 9)
    np.testing.assert_array_equal(patches[0, 1, 0], [18, 19, 20, 24, 25, 26, 30, 31, 32])
    cubes = evaluate(lambda t: extract_patches_3d(t, 2), np.arange(64).reshape(4, 4, 4, 1))
    np.testing.assert_array_equal(cubes[1, 0, 1], [34, 35, 38, 39, 50, 51, 54, 55])


def test_gradients_of_extract_patches():
    x = rng.normal(size=(1, 4, 5, 2))
    assert check_gradients(lambda t: extract_patches(t, (2, 3), 1, padding="same"), [x])


def test_extract_patches_refuses():
    x = np.zeros((1, 4, 4, 1), "float32")
    with Graph().as_default():
        with pytest.raises(TypeError, match="size must be an integer or a tuple; got '3'"):
            extract_patches(x, "3")  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match=r"two entries, or three for volumes; got \(1, 2, 3, 4\)"):
            extract_patches(x, (1, 2, 3, 4))
        with pytest.raises(ValueError, match="padding='full' must be 'valid' or 'same'"):
            extract_patches(x, 2, padding="full")
        with pytest.raises(ValueError, match=r"expected 4 axes, or 5 for a batch.*got shape \[4,4,1\]"):
            extract_patches_3d(x[0], 2)
        with pytest.raises(ValueError, match="reaches over 5 elements does not fit into 4"):
            extract_patches(x, 5)


# --- blocks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
@pytest.mark.parametrize(("padding", "lengths"), [("valid", (4, 9)), ("same", (3, 7)), ("same", (4, 8))])
@pytest.mark.parametrize("axes", [2, 3])
def test_reconstruct_patches(axes: int, padding: str, lengths: Any, layout: str, batch: bool, known: bool):
    size, whole = (2, 3, 2)[:axes], (*lengths, 5)[:axes]
    if padding == "valid" and axes == 3:
        whole = (*lengths, 6)
    inner = (*whole, 2) if layout == "channels_last" else (2, *whole)
    images = np.random.default_rng(0).normal(size=(3, *inner) if batch else inner).astype("float32")
    patches = evaluate(lambda t: extract_patches(t, size, padding=padding, data_format=layout), images)
    found = evaluate(
        lambda t: reconstruct_patches(t, size, whole, padding=padding, data_format=layout),
        patches,
        unknown=() if known else range(5),
    )
    np.testing.assert_array_equal(found, images)


def test_reconstructed_patches_in_the_order_of_keras():
    patches = np.arange(48, dtype="float32").reshape(2, 2, 12)
    found = evaluate(lambda t: reconstruct_patches(t, (2, 3), (3, 5), padding="same"), patches)
    expected = [
        [0, 1, 2, 3, 4, 5, 12, 13, 14, 15],
        [6, 7, 8, 9, 10, 11, 18, 19, 20, 21],
        [24, 25, 26, 27, 28, 29, 36, 37, 38, 39],
    ]
    np.testing.assert_array_equal(found.reshape(3, 10), expected)


def test_gradients_of_reconstruct_patches():
    patches = np.random.default_rng(0).normal(size=(1, 2, 2, 12))
    assert check_gradients(lambda x: reconstruct_patches(x, (2, 3), (3, 5), padding="same"), [patches], order=1)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ValueError, {"output_size": (4, 5)}, r"2 patches of 3 make 6 pixels with padding='valid'; got 5 .* on axis 1"),
        (ValueError, {"output_size": (2, 6), "padding": "same"}, r"2 patches of 2 make 3 to 4 pixels .* got 2"),
        (ValueError, {"size": (5, 3)}, r"the number of values in a patch, 12, must be a multiple of 15"),
        (ValueError, {"size": (2, 3, 1, 1)}, r"size must have two entries, or three for volumes"),
        (ValueError, {"padding": "full"}, r"padding='full' must be 'valid' or 'same'"),
        (ValueError, {"patches": np.zeros((2, 12))}, r"expected 3 axes, or 4 for a batch.* got shape \[2,12\]"),
        (TypeError, {"size": 2.0}, r"size must be an integer or a tuple; got 2\.0"),
        (TypeError, {"output_size": 4}, r"output_size must be a tuple"),
        (NotImplementedError, {"strides": 1}, r"strides must be those of size, \(2, 3\).*got 1\. Use ops\.fold"),
    ],
)
def test_reconstruct_patches_refuses(kind: Any, options: Any, message: str):
    arguments: Any = {"patches": np.zeros((2, 2, 12)), "size": (2, 3), "output_size": (4, 6)} | options
    with pytest.raises(kind, match=message):
        reconstruct_patches(**arguments)


@given(st.integers(2, 3), st.integers(0, 2), st.integers(1, 3), st.integers(1, 2), st.sampled_from(LAYOUTS))
def test_depth_to_space_and_back(block: int, batch: int, height: int, channels: int, layout: str):
    x = rng.integers(0, 99, (batch, height, 2, block * block * channels))
    expected = np.zeros((batch, height * block, 2 * block, channels), x.dtype)
    for row, column, channel in np.ndindex(*expected.shape[1:]):
        inside = row % block * block + column % block
        place = inside * channels + channel if layout == "channels_last" else channel * block * block + inside
        expected[:, row, column, channel] = x[:, row // block, column // block, place]
    if layout == "channels_first":
        x, expected = np.moveaxis(x, -1, 1), np.moveaxis(expected, -1, 1)
    for unknown in ((), (0, 1, 2, 3)) if batch else ((),):
        wide = evaluate(lambda t: ops.depth_to_space(t, block, layout), x, unknown=unknown)
        np.testing.assert_array_equal(wide, expected)
        back = evaluate(lambda t: ops.space_to_depth(t, block, layout), expected, unknown=unknown)
        np.testing.assert_array_equal(back, x)


def test_gradients_of_blocks():
    assert check_gradients(lambda x: ops.depth_to_space(x, 2), [rng.normal(size=(1, 2, 1, 8))])
    assert check_gradients(lambda x: ops.space_to_depth(x, 2, "channels_first"), [rng.normal(size=(1, 2, 4, 2))])


def test_blocks_refuse():
    x = np.zeros((1, 4, 3, 6), "float32")
    with Graph().as_default():
        with pytest.raises(ValueError, match="depth_to_space: the number of channels, 6, must be a multiple of 4"):
            ops.depth_to_space(x, 2)
        with pytest.raises(ValueError, match="space_to_depth: the width, 3, must be a multiple of 2"):
            ops.space_to_depth(x, 2)
        with pytest.raises(ValueError, match="block_size must be at least 2; got 1"):
            ops.space_to_depth(x, 1)
        with pytest.raises(ValueError, match=r"expected a batch of images \(4 axes\); got shape \[4,3,6\]"):
            ops.depth_to_space(x[0], 2)


# --- rearrange ------------------------------------------------------------------------------------------------------

PATTERNS: list[tuple[str, dict[str, int], Any]] = [
    ("b h w c -> b c h w", {}, lambda x: x.transpose(0, 3, 1, 2)),
    ("b h w c->(b h) w c", {}, lambda x: x.reshape(8, 6, 3)),
    ("b h w c -> h (b w) c", {}, lambda x: np.concatenate(list(x), axis=1)),
    ("b h w c -> b (c h w)", {}, lambda x: x.transpose(0, 3, 1, 2).reshape(2, -1)),
    ("b h w c -> (b h w c)", {}, np.ravel),
    (
        "b (h1 h) (w1 w) c -> (b h1 w1) h w c",
        {"h1": 2, "w1": 3},
        lambda x: x.reshape(2, 2, 2, 3, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(12, 2, 2, 3),
    ),
    (
        "b (h p) w (c q) -> b h (q w p) c",
        {"p": 2, "h": 2, "q": 3},
        lambda x: x.reshape(2, 2, 2, 6, 1, 3).transpose(0, 1, 5, 3, 2, 4).reshape(2, 2, 36, 1),
    ),
]


@pytest.mark.parametrize(("pattern", "sizes", "expected"), PATTERNS)
@pytest.mark.parametrize("unknown", [(), (0,), (0, 1, 2, 3)])
def test_rearrange(pattern: str, sizes: Any, expected: Any, unknown: Any):
    x = np.arange(2 * 4 * 6 * 3).reshape(2, 4, 6, 3)
    result = evaluate(lambda t: ops.rearrange(t, pattern, **sizes), x, unknown=unknown)
    np.testing.assert_array_equal(result, expected(x))


def test_rearrange_of_groups_of_none():
    x = np.arange(3).reshape(1, 3)
    np.testing.assert_array_equal(evaluate(lambda t: ops.rearrange(t, "() n -> n ()"), x), x.T)


REFUSED: list[tuple[str, dict[str, int], str]] = [
    ("a b", {}, "must have one '->'"),
    ("a b -> b", {}, r"must name the same axes; got \['a', 'b'\] and \['b'\]"),
    ("a a -> a a", {}, "names an axis twice"),
    ("a b c -> c b a", {}, r"has 3 axes; got a tensor of shape \[4,6\]"),
    ("(a b) c -> a b c", {}, "needs the sizes of all but one of a, b"),
    ("(a b) c -> a b c", {"a": 3}, r"an axis of size 4 can't be \(a b\)"),
    ("(a b) c -> a b c", {"a": 3, "b": 3}, r"an axis of size 4 can't be \(a b\)"),
    ("a b -> b a", {"c": 3}, "c is no axis on the left"),
    ("(a b) c -> a b c", {"a": 0}, "the sizes of axes must be positive"),
    ("a ... -> ... a", {}, r"'\.' in 'a \.\.\. -> \.\.\. a' is neither a name nor a group"),
]


@pytest.mark.parametrize(("pattern", "sizes", "message"), REFUSED)
def test_rearrange_refuses(pattern: str, sizes: Any, message: str):
    with Graph().as_default(), pytest.raises(ValueError, match=message):
        ops.rearrange(np.zeros((4, 6)), pattern, **sizes)
