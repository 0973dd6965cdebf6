"""Convolutions against loops over every cell: values, derivatives, unknown shapes, blocks, errors."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shared.examples import examples

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.spec import shape_accepts
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.neural import correlation
from anabranch.engine.ops.neural.window_geometry import Window
from anabranch.engine.session import Session

FIRST = "channels_first"
LAST = "channels_last"
EXAMPLES = settings(
    deadline=None, max_examples=examples(25, 60), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return Session().run(fetches, feeds)


def symbol(shape: Any, dtype: str = "float64") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


# --- the reference: loops -------------------------------------------------------------------------------------------


def pads(padding: str, size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """TensorFlow's rule: as many windows as strides begin in the input, and the odd cell comes last."""
    reach = (kernel - 1) * dilation + 1
    if padding == "valid":
        return 0, 0
    if padding == "causal":
        return reach - 1, 0
    total = max(0, reach - (size % stride or stride))
    return total // 2, total - total // 2


def taps(x: Any, kernel: Any, strides: Any, padding: str, dilation: Any) -> Any:
    """(sample, place in the result, place in the kernel, place in the input) for each product of the sum."""
    sizes, kernels = x.shape[1:-1], kernel.shape[:-2]
    sides = [pads(padding, *args) for args in zip(sizes, kernels, strides, dilation, strict=True)]
    outs = [
        (size + sum(side) - (k - 1) * d - 1) // s + 1
        for size, side, k, s, d in zip(sizes, sides, kernels, strides, dilation, strict=True)
    ]
    listed: list[Any] = []
    for out, cell in product(np.ndindex(*outs), np.ndindex(*kernels)):
        axes = zip(out, strides, cell, dilation, sides, strict=True)
        place = tuple(o * s + c * d - side[0] for o, s, c, d, side in axes)
        if all(0 <= p < size for p, size in zip(place, sizes, strict=True)):
            listed.append((out, cell, place))
    return outs, listed


def naive(x: Any, kernel: Any, strides: Any, padding: str, dilation: Any) -> Any:
    outs, listed = taps(x, kernel, strides, padding, dilation)
    groups = x.shape[-1] // kernel.shape[-2]
    y = np.zeros((x.shape[0], *outs, kernel.shape[-1]))
    per_group = kernel.shape[-1] // groups
    for (out, cell, place), n in product(listed, range(x.shape[0])):
        for f in range(kernel.shape[-1]):
            begin = f // per_group * kernel.shape[-2]
            y[(n, *out, f)] += x[(n, *place)][begin : begin + kernel.shape[-2]] @ kernel[cell][:, f]
    return y


def naive_gradients(x: Any, kernel: Any, dy: Any, strides: Any, padding: str, dilation: Any) -> Any:
    _, listed = taps(x, kernel, strides, padding, dilation)
    groups = x.shape[-1] // kernel.shape[-2]
    dx, dkernel = np.zeros(x.shape), np.zeros(kernel.shape)
    per_group = kernel.shape[-1] // groups
    for (out, cell, place), n in product(listed, range(x.shape[0])):
        for f in range(kernel.shape[-1]):
            begin = f // per_group * kernel.shape[-2]
            part = slice(begin, begin + kernel.shape[-2])
            dx[(n, *place)][part] += dy[(n, *out, f)] * kernel[cell][:, f]
            dkernel[cell][:, f] += dy[(n, *out, f)] * x[(n, *place)][part]
    return dx, dkernel


def naive_transpose(x: Any, kernel: Any, strides: Any, padding: str, extra: Any, dilation: Any) -> Any:
    """Each cell of the input puts a kernel into the whole, of which the padding cuts its part.

    kernel: [*sizes, filters, channels].
    """
    sizes, kernels = x.shape[1:-1], kernel.shape[:-2]
    axes = list(zip(sizes, kernels, strides, dilation, strict=True))
    reaches = [(k - 1) * d + 1 for _, k, _, d in axes]
    outs: list[int] = []
    before: list[int] = []
    for (size, _, s, _), reach, more in zip(axes, reaches, extra, strict=True):
        whole = (size - 1) * s + reach
        if padding == "valid":
            out = (size - 1) * s + max(reach, s) if more is None else whole + more
        else:
            out = size * s if more is None else (size - 1) * s + reach % 2 + more
        outs.append(out)
        before.append(max(0, whole - out) // 2 if padding == "same" else 0)
    y = np.zeros((x.shape[0], *outs, kernel.shape[-2]))
    for n, place, cell in product(range(x.shape[0]), np.ndindex(*sizes), np.ndindex(*kernels)):
        out = tuple(p * s + c * d - b for p, (_, _, s, d), c, b in zip(place, axes, cell, before, strict=True))
        if all(0 <= o < size for o, size in zip(out, outs, strict=True)):
            y[(n, *out)] += kernel[cell] @ x[(n, *place)]
    return y


# --- generated cases ------------------------------------------------------------------------------------------------

SMALL = {1: 9, 2: 6, 3: 4}


@st.composite
def cases(draw: Any, grouped: bool = True, causal: bool = True, per_channel: bool = False) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    modes = ["valid", "same"] + ["causal"] * (causal and rank == 1)
    padding = draw(st.sampled_from(modes))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilation = [draw(st.integers(1, 3 if rank < 3 else 2)) for _ in range(rank)]
    reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    least = [reach if padding == "valid" else 1 for reach in reaches]
    sizes = [draw(st.integers(low, max(low, SMALL[rank]))) for low in least]
    groups = draw(st.integers(1, 3)) if grouped else 1
    channels, filters = draw(st.sampled_from([(1, 1), (2, 3), (4, 1), (3, 3), (1, 2)]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    batch = draw(st.sampled_from([2, 1, 3, 0]))
    shape = (*kernel, channels, filters * groups)
    return {
        "x": rng.uniform(-1, 1, (batch, *sizes, channels if per_channel else channels * groups)),
        "kernel": rng.uniform(-1, 1, (*kernel, channels, filters) if per_channel else shape),
        "strides": strides,
        "dilation": dilation,
        "padding": padding,
        "data_format": draw(st.sampled_from([LAST, FIRST])),
        "known": draw(st.sampled_from(["static", "batch", "dims", "nothing"])),
        "rng": rng,
    }


def placed(value: Any, data_format: str) -> Any:
    return value if data_format == LAST else np.moveaxis(value, -1, 1)


def back(value: Any, data_format: str) -> Any:
    return value if data_format == LAST else np.moveaxis(value, 1, -1)


def known_shape(shape: Any, known: str) -> Any:
    return {"static": shape, "batch": (None, *shape[1:]), "dims": (None,) * len(shape), "nothing": None}[known]


def check(function: Any, case: dict[str, Any], expected: Any, **options: Any) -> Any:
    """Call `function` on arrays and on placeholders of which `known` is known; both have to give what is expected."""
    data_format = case["data_format"]
    x = placed(case["x"], data_format)
    arguments = {
        "strides": case["strides"],
        "padding": case["padding"],
        "dilation_rate": case["dilation"],
        "data_format": data_format,
        **options,
    }
    y = function(x, case["kernel"], **arguments)
    assert y.shape == placed(expected, data_format).shape
    np.testing.assert_allclose(back(run(y), data_format), expected, rtol=1e-9, atol=1e-9)
    symbols = symbol(known_shape(x.shape, case["known"])), symbol(case["kernel"].shape)
    found = function(*symbols, **arguments)
    value = run(found, {symbols[0]: x, symbols[1]: case["kernel"]})
    np.testing.assert_allclose(back(value, data_format), expected, rtol=1e-9, atol=1e-9)
    assert shape_accepts(found.shape, value.shape)
    return symbols, found, x


@EXAMPLES
@given(cases())
def test_conv(case: dict[str, Any]):
    expected = naive(case["x"], case["kernel"], case["strides"], case["padding"], case["dilation"])
    symbols, y, x = check(ops.conv, case, expected)
    dy = case["rng"].uniform(-1, 1, expected.shape)
    loss = ops.sum(y * ops.convert_to_tensor(placed(dy, case["data_format"])))
    dx, dkernel = run(gradients(loss, symbols), {symbols[0]: x, symbols[1]: case["kernel"]})
    wanted = naive_gradients(case["x"], case["kernel"], dy, case["strides"], case["padding"], case["dilation"])
    np.testing.assert_allclose(back(dx, case["data_format"]), wanted[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(dkernel, wanted[1], rtol=1e-9, atol=1e-9)


@EXAMPLES
@given(cases(grouped=False, causal=False, per_channel=True))
def test_depthwise_conv(case: dict[str, Any]):
    x, kernel = case["x"], case["kernel"]
    settings = case["strides"], case["padding"], case["dilation"]
    parts = [naive(x[..., [c]], kernel[..., [c], :], *settings) for c in range(x.shape[-1])]
    check(ops.depthwise_conv, case, np.concatenate(parts, axis=-1))


@EXAMPLES
@given(cases(grouped=False, causal=False), st.sampled_from([None, 0, 1, 2]))
def test_conv_transpose(case: dict[str, Any], output_padding: int | None):
    x, kernel = case["x"], np.swapaxes(case["kernel"], -1, -2)
    case["kernel"] = kernel
    extra = [output_padding] * (x.ndim - 2)
    expected = naive_transpose(x, kernel, case["strides"], case["padding"], extra, case["dilation"])
    symbols, y, fed = check(ops.conv_transpose, case, expected, output_padding=output_padding)
    dy = case["rng"].uniform(-1, 1, expected.shape)
    loss = ops.sum(y * ops.convert_to_tensor(placed(dy, case["data_format"])))
    dx, dkernel = run(gradients(loss, symbols), {symbols[0]: fed, symbols[1]: kernel})
    # The transpose is linear in both, so that the derivatives are found again in the loss.
    value = (expected * dy).sum()
    np.testing.assert_allclose((dx * fed).sum(), value, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose((dkernel * kernel).sum(), value, rtol=1e-7, atol=1e-9)
    way = case["rng"].uniform(-1, 1, x.shape)
    moved = naive_transpose(way, kernel, case["strides"], case["padding"], extra, case["dilation"])
    np.testing.assert_allclose((back(dx, case["data_format"]) * way).sum(), (moved * dy).sum(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("data_format", [LAST, FIRST])
@pytest.mark.parametrize(("strides", "dilation"), [(1, 1), (2, 1), (1, 2), ((2, 1), 1)])
def test_separable_conv(strides: Any, dilation: Any, data_format: str):
    rng = np.random.default_rng(0)
    x, depthwise, pointwise = (rng.uniform(-1, 1, shape) for shape in ((2, 6, 5, 3), (2, 3, 3, 2), (1, 1, 6, 4)))
    options: Any = {"strides": strides, "padding": "same", "data_format": data_format, "dilation_rate": dilation}
    y = ops.separable_conv(placed(x, data_format), depthwise, pointwise, **options)
    middle = run(ops.depthwise_conv(placed(x, data_format), depthwise, **options))
    np.testing.assert_allclose(back(run(y), data_format), back(middle, data_format) @ pointwise[0, 0], rtol=1e-9)


# --- known values ---------------------------------------------------------------------------------------------------


def line(*values: float) -> Any:
    return np.array(values, "float32").reshape(1, -1, 1)


@pytest.mark.parametrize(
    ("padding", "strides", "expected"),
    [
        ("valid", 1, [123, 234, 345]),
        ("same", 1, [12, 123, 234, 345, 450]),  # zeros on both sides
        ("causal", 1, [1, 12, 123, 234, 345]),
        ("valid", 2, [123, 345]),
        ("same", 2, [12, 234, 450]),
        ("SAME", 3, [123, 450]),  # one zero only: behind
        ("causal", 2, [1, 123, 345]),
    ],
)
def test_padding(padding: str, strides: int, expected: list[int]):
    kernel = np.array([100, 10, 1], "float32").reshape(3, 1, 1)
    assert run(ops.conv(line(1, 2, 3, 4, 5), kernel, strides, padding))[0, :, 0].tolist() == expected


@pytest.mark.parametrize(
    ("padding", "output_padding", "expected"),
    [
        ("valid", None, [100, 10, 201, 20, 302, 30, 3]),
        ("valid", 1, [100, 10, 201, 20, 302, 30, 3, 0]),
        ("same", None, [100, 10, 201, 20, 302, 30]),
        ("same", 0, [10, 201, 20, 302, 30]),
        ("same", 1, [100, 10, 201, 20, 302, 30]),
    ],
)
def test_padding_of_the_transpose(padding: str, output_padding: int | None, expected: list[int]):
    kernel = np.array([100, 10, 1], "float32").reshape(3, 1, 1)
    y = ops.conv_transpose(line(1, 2, 3), kernel, 2, padding, output_padding)
    assert run(y)[0, :, 0].tolist() == expected


def test_kernel_is_not_flipped_and_channels_are_summed():
    x = np.array([[[1, 10], [2, 20], [3, 30]]], "float32")
    kernel = np.array([[[1, 0], [0, 1]], [[0, 1], [0, 0]]], "float32")
    assert run(ops.conv(x, kernel))[0].tolist() == [[1, 12], [2, 23]]


def test_depthwise_filters_of_a_channel_stand_together():
    x = np.array([[[1, 10]]], "float32")
    assert run(ops.depthwise_conv(x, [[[1.0, 2.0], [3.0, 4.0]]]))[0, 0].tolist() == [1, 2, 30, 40]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(dtype: str):
    x, kernel = line(1, 2, 3).astype(as_dtype(dtype)), np.ones((2, 1, 1), as_dtype(dtype))
    y = ops.conv(x, kernel)
    assert y.dtype == as_dtype(dtype)
    assert run(y)[0, :, 0].tolist() == [3, 5]


def test_half_precision_is_summed_in_single():
    x, kernel = np.full((1, 4096, 1), 1, "float16"), np.ones((4096, 1, 1), "float16")
    assert run(ops.conv(x, kernel)).item() == 4096  # in half precision, the sum stays at 2048


def test_integers_stay_integers_and_mixed_dtypes_are_promoted():
    y = ops.conv(np.array([[[1], [2]]]), np.array([[[3]], [[4]]]))
    assert y.dtype.kind == "i"
    assert run(y).item() == 11
    assert ops.conv(line(1, 2), np.ones((1, 1, 1), "float64")).dtype == "float64"


# --- roads through the arithmetic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 40, 200])
@pytest.mark.parametrize(
    ("channels", "kernel"),
    [(2, (3, 2, 2, 5)), (4, (3, 2, 1, 4)), (6, (2, 2, 3, 6)), (7, (3, 2, 7, 2)), (3, (1, 1, 3, 5))],
)
def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch, block: int, channels: int, kernel: Any):
    rng = np.random.default_rng(0)
    x, weights = rng.uniform(-1, 1, (5, 6, 5, channels)), rng.uniform(-1, 1, kernel)
    for padding, stride in product(("valid", "same"), (1, 2)):
        y = ops.conv(x, weights, stride, padding)
        expected = naive(x, weights, (stride,) * 2, padding, (1, 1))
        dy = rng.uniform(-1, 1, expected.shape)
        operands = ops.convert_to_tensor(x), ops.convert_to_tensor(weights)
        loss = ops.sum(ops.conv(*operands, stride, padding) * ops.convert_to_tensor(dy))
        with monkeypatch.context() as patch:
            patch.setattr(correlation, "_BLOCK", block)
            value, *found = run([y, *gradients(loss, operands)])
        np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12)
        for derivative, wanted in zip(
            found, naive_gradients(x, weights, dy, (stride,) * 2, padding, (1, 1)), strict=True
        ):
            np.testing.assert_allclose(derivative, wanted, rtol=1e-9, atol=1e-12)


@given(
    st.integers(0, 9), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(-2, 4), st.integers(0, 6)
)
@settings(deadline=None, max_examples=examples(75, 300))
def test_windows(size: int, kernel: int, stride: int, dilation: int, before: int, out: int):
    window = Window(size, kernel, stride, dilation, before, out)
    pairs = {
        (o, c, o * stride + c * dilation - before)
        for o, c in product(range(out), range(kernel))
        if 0 <= o * stride + c * dilation - before < size
    }
    found: set[Any] = set()
    for c in range(kernel):
        windows, places = window.overlap(c)
        found |= {(o, c, p) for o, p in zip(range(out)[windows], range(size)[places], strict=True)}
    assert found == pairs
    turned: set[Any] = set()
    for place, chosen, across in window.phases():
        reverse = list(range(kernel))[chosen][::-1]
        assert len(reverse) == across.kernel
        for q, t in product(range(across.out), range(across.kernel)):
            o = q + t * across.dilation - across.before
            if 0 <= o < out:
                turned.add((o, reverse[t], place + q * stride))
    assert turned == pairs
    inside = all(0 <= o * stride + c * dilation - before < size for o, c in product(range(out), range(kernel)))
    assert window.inside == inside or not out


def test_second_derivative_of_a_network_is_a_convolution_again():
    """A gradient penalty: the derivative of |dy/dx|² with respect to the kernels, against differences."""
    rng = np.random.default_rng(0)
    x = ops.convert_to_tensor(rng.uniform(-1, 1, (2, 5, 5, 2)))
    values = [rng.uniform(-1, 1, (3, 3, 2, 3)), rng.uniform(-1, 1, (2, 2, 2, 3))]
    kernels = [symbol(value.shape) for value in values]
    y = ops.tanh(ops.conv(x, kernels[0], 2, "same"))
    y = ops.tanh(ops.conv_transpose(y, kernels[1], 2, "same"))
    (dx,) = gradients(ops.sum(y * y), [x])
    penalty = ops.sum(dx * dx)
    slopes = gradients(penalty, kernels)
    found = run(slopes, dict(zip(kernels, values, strict=True)))
    for number in range(2):
        way, step = rng.normal(size=values[number].shape), 1e-5
        ends: list[Any] = []
        for sign in (1, -1):
            moved = list(values)
            moved[number] = values[number] + sign * step * way
            ends.append(run(penalty, dict(zip(kernels, moved, strict=True))))
        np.testing.assert_allclose((found[number] * way).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


# --- shapes and errors ----------------------------------------------------------------------------------------------


def test_static_shapes_of_unknown_inputs():
    x, kernel = symbol((None, None, 8, 3)), np.zeros((3, 3, 3, 4))
    assert ops.conv(x, kernel, padding="same").shape == (None, None, 8, 4)
    assert ops.conv(x, kernel, 2).shape == (None, None, 3, 4)
    assert ops.conv(symbol(None), kernel).shape == (None, None, None, 4)
    assert ops.conv(symbol((None, 3, None, 8)), kernel, data_format=FIRST).shape == (None, 4, None, 6)
    assert ops.depthwise_conv(x, np.zeros((3, 3, 3, 2))).shape == (None, None, 6, 6)
    assert ops.conv_transpose(x, np.zeros((3, 3, 5, 3)), 2, "same").shape == (None, None, 16, 5)


@pytest.mark.parametrize("data_format", [LAST, FIRST])
@pytest.mark.parametrize("known", ["dims", "nothing"])
def test_kernels_of_unknown_shape(known: str, data_format: str):
    rng = np.random.default_rng(0)
    x, kernel, mixing = (rng.uniform(-1, 1, shape) for shape in ((2, 5, 4, 3), (2, 3, 3, 2), (1, 1, 6, 4)))
    unknown, mixer = symbol(known_shape(kernel.shape, known)), symbol(known_shape(mixing.shape, known))
    fed: Any = placed(x, data_format)
    options: Any = {"data_format": data_format}
    feeds = {unknown: kernel, mixer: mixing}
    y = back(run(ops.conv(fed, unknown, 2, "same", **options), feeds), data_format)
    np.testing.assert_allclose(y, naive(x, kernel, (2, 2), "same", (1, 1)), rtol=1e-9)
    layers: list[Any] = [(ops.depthwise_conv, {unknown: kernel}), (ops.separable_conv, feeds)]
    for function, kernels in layers:
        found = run(function(fed, *kernels, **options), kernels)
        np.testing.assert_allclose(found, run(function(fed, *kernels.values(), **options)), rtol=1e-12)


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(("shape", "kernel"), [((2, 0, 3), (1,)), ((0, 0, 3), (1,)), ((2, 0, 5, 3), (1, 2))])
def test_windows_of_a_single_cell_on_an_axis_without_cells(shape: Any, kernel: Any, is_known: bool, strides: int):
    """A sequence of no steps has no windows; a window of several cells is refused there."""
    x = symbol(shape if is_known else (None,) * (len(shape) - 1) + shape[-1:])
    taps = symbol((*kernel, 3, 4))
    result = ops.conv(x, taps, strides=strides)
    slopes = gradients(ops.sum(ops.square(result)), [x, taps])
    found, *slopes = run([result, *slopes], {x: np.ones(shape), taps: np.ones((*kernel, 3, 4))})
    assert found.shape == (shape[0], 0, *[(size - 2) // strides + 1 for size in shape[2:-1]], 4)
    assert [slope.shape for slope in slopes] == [shape, (*kernel, 3, 4)]
    assert not slopes[1].any()


def test_empty_axes():
    assert run(ops.conv(np.zeros((2, 0, 3)), np.zeros((3, 3, 4)), padding="same")).shape == (2, 0, 4)
    assert run(ops.conv_transpose(np.zeros((2, 0, 3)), np.zeros((3, 4, 3)), 2, "same")).shape == (2, 0, 4)
    assert run(ops.conv(np.zeros((2, 5, 3)), np.zeros((3, 3, 0)))).shape == (2, 3, 0)
    np.testing.assert_array_equal(run(ops.conv(np.zeros((2, 5, 0)), np.zeros((3, 0, 4)))), np.zeros((2, 3, 4)))


X, K = np.zeros((1, 4, 4, 2)), np.zeros((3, 3, 2, 4))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ops.conv(X[0, 0], K[0, 0]), r"conv: expected rank 3, 4 or 5 .* got shapes \[4,2\] and \[2,4\]"),
        (lambda: ops.conv(X, K[0]), r"got shapes \[1,4,4,2\] and \[3,2,4\]"),
        (lambda: ops.conv(symbol(None), symbol(None)), "the number of axes must be known"),
        (lambda: ops.conv(X, np.zeros((3, 3, 3, 4))), "2 input channels and a kernel for 3"),
        (lambda: ops.conv(X, np.zeros((3, 3, 1, 3))), "make 2 groups, but its 3 filters can't be parted"),
        (lambda: ops.conv(X, np.zeros((5, 1, 2, 4))), "A window of 5 cells does not fit into an axis of size 4"),
        (lambda: ops.conv(X, K, dilation_rate=2), "3 cells, 2 apart, does not fit .* padding='same'"),
        (lambda: ops.conv(X, np.zeros((0, 3, 2, 4))), r"kernel of spatial shape \[0,3\] has no cells"),
        (lambda: ops.conv(X, K, strides=0), "conv: strides must be a positive int, or 2 of them .* got 0"),
        (lambda: ops.conv(X, K, strides=(1, 2, 1)), r"strides must be .* got \(1, 2, 1\)"),
        (
            lambda: ops.conv(X, K, dilation_rate=(1, 1.5)),  # pyright: ignore[reportArgumentType]
            r"dilation_rate must be .* got \(1, 1.5\)",
        ),
        (lambda: ops.conv(X, K, padding="causal"), "padding must be one of 'valid', 'same', got 'causal'"),
        (lambda: ops.conv(X, K, padding=1), "padding must be one of"),  # pyright: ignore[reportArgumentType]
        (lambda: ops.conv(X, K, data_format="NHWC"), "data_format must be 'channels_last' or .* got 'NHWC'"),
        (lambda: ops.depthwise_conv(X, np.zeros((3, 3, 1, 4))), "depthwise_conv: the number of input channels must"),
        (lambda: ops.depthwise_conv(X, K, padding="causal"), "one of 'valid', 'same'"),
        (lambda: ops.separable_conv(X, K, np.zeros((2, 1, 8, 3))), r"spatial shape \[1,1\]; got shape \[2,1,8,3\]"),
        (lambda: ops.separable_conv(X, K, np.zeros((1, 1, 7, 3))), "got 8 input channels and a kernel for 7"),
        (lambda: ops.conv_transpose(X, K), "conv_transpose: .* got 2 input channels and a kernel for 4"),
        (lambda: ops.conv_transpose(X, symbol((None, 3, 4, 2))), "the kernel's spatial shape must be known"),
        (lambda: ops.conv_transpose(X, np.zeros((3, 3, 4, 2)), output_padding=-1), "output_padding must be a non-neg"),
    ],
)
def test_errors(call: Any, match: str):
    with pytest.raises(ValueError, match=match):
        call()


def test_bools_are_refused():
    with pytest.raises(TypeError, match="expected numbers, got bool"):
        ops.conv(X > 0, K > 0)


def test_what_is_too_small_is_found_by_the_run_too():
    x = symbol((None, None, None, 2))
    with pytest.raises(ValueError, match="A window of 3 cells does not fit into an axis of size 2"):
        run(ops.conv(x, K), {x: np.zeros((1, 2, 4, 2))})
    with pytest.raises(ValueError, match="reshape"):
        run(ops.depthwise_conv(anything := symbol(None), K), {anything: np.zeros((1, 4, 4, 1))})
    with pytest.raises(ValueError, match="3 input channels and a kernel for 2"):
        run(ops.conv(anything := symbol(None), K), {anything: np.zeros((1, 4, 4, 3))})
