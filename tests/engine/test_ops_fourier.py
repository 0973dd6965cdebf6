"""Fourier transforms and short-time transforms: against NumPy, their inverses, gradients, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine import ops
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.session import Session
from anabranch.engine.testing import check_gradients


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return Session().run(fetches, feeds)


def symbol(shape: Any, dtype: str = "float32") -> Any:
    graph = symbol_of(ops.convert_to_tensor(0)).graph
    return graph.add(Placeholder(TensorSpec(shape, as_dtype(dtype))), (), "x").outputs[0]


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def joined(pair: Any) -> Any:
    return pair[0] + 1j * pair[1]


# --- transforms -----------------------------------------------------------------------------------------------------

leading = st.lists(st.integers(0, 3), max_size=2).map(tuple)


@pytest.mark.parametrize("name", ["fft", "ifft", "fft2", "ifft2"])
@given(shape=leading, rows=st.integers(1, 4), columns=st.integers(1, 9), dtype=st.sampled_from(["float32", "float64"]))
def test_complex_transform_equals_numpy(name: str, shape: Any, rows: int, columns: int, dtype: str):
    x, y = (draw(*shape, rows, columns, seed=seed).astype(dtype) for seed in (0, 1))
    with Graph().as_default():
        pair = run(getattr(ops, name)((x, y)))
    expected = getattr(np.fft, name)(x + 1j * y)
    assert [part.dtype for part in pair] == [dtype] * 2
    assert pair[0].shape == x.shape
    np.testing.assert_allclose(joined(pair), expected, atol=1e-4 if dtype == "float32" else 1e-12)


@given(shape=leading, size=st.integers(1, 9), length=st.none() | st.integers(1, 12))
def test_real_transform_equals_numpy(shape: Any, size: int, length: Any):
    x = draw(*shape, size)
    with Graph().as_default():
        pair = ops.rfft(x, length)
        found = run(pair)
    expected = np.fft.rfft(x, length)
    assert pair[0].shape == expected.shape
    np.testing.assert_allclose(joined(found), expected, atol=1e-12)


@given(shape=leading, size=st.integers(2, 7), length=st.none() | st.integers(1, 12))
def test_inverse_real_transform_equals_numpy(shape: Any, size: int, length: Any):
    x, y = draw(*shape, size), draw(*shape, size, seed=1)
    with Graph().as_default():
        tensor = ops.irfft((x, y), length)
        found = run(tensor)
    expected = np.fft.irfft(x + 1j * y, length)
    assert tensor.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(size=st.integers(1, 12))
def test_inverses(size: int):
    x, y = draw(2, size), draw(2, size, seed=1)
    with Graph().as_default():
        found = run([ops.ifft(ops.fft((x, y))), ops.ifft2(ops.fft2((x, y))), ops.irfft(ops.rfft(x), size)])
    np.testing.assert_allclose(found[0], [x, y], atol=1e-12)
    np.testing.assert_allclose(found[1], [x, y], atol=1e-12)
    np.testing.assert_allclose(found[2], x, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_transformed_in_single(dtype: str):
    x = ops.cast([1.0, 2.0, 3.0, 4.0], dtype)

    pair = ops.rfft(x)

    assert [part.dtype for part in pair] == [as_dtype(dtype)] * 2
    np.testing.assert_array_equal([np.float32(part) for part in run(pair)], [[10, -2, -2], [0, 2, 0]])
    np.testing.assert_array_equal(np.float32(run(ops.irfft(pair))), [1, 2, 3, 4])


def test_integers_count_as_single_precision():
    real, imag = run(ops.fft(([1, 2], [0, 1])))

    np.testing.assert_array_equal([real, imag], [[3, -1], [1, -1]])
    assert real.dtype == "float32"


@pytest.mark.parametrize("shape", [None, (None, None), (2, None)])
def test_unknown_shapes(shape: Any):
    x, y = symbol(shape, "float64"), symbol(shape, "float64")
    values = draw(2, 5), draw(2, 5, seed=1)
    whole = values[0] + 1j * values[1]
    feeds = dict(zip((x, y), values, strict=True))
    cases = [
        (ops.fft((x, y)), np.fft.fft(whole)),
        (ops.ifft2((x, y)), np.fft.ifft2(whole)),
        (ops.rfft(x), np.fft.rfft(values[0])),
        (ops.rfft(x, 3), np.fft.rfft(values[0], 3)),
    ]
    for pair, expected in cases:
        np.testing.assert_allclose(joined(run(pair, feeds)), expected, atol=1e-12)
    np.testing.assert_allclose(run(ops.irfft((x, y)), feeds), np.fft.irfft(whole), atol=1e-12)


@pytest.mark.parametrize("name", ["fft", "ifft", "fft2", "ifft2"])
def test_gradients_of_complex_transforms(name: str):
    function = getattr(ops, name)
    assert check_gradients(lambda x, y: list(function((x, y))), [draw(2, 3), draw(2, 3, seed=1)], order=3) == 9


@pytest.mark.parametrize("length", [None, 3, 4, 8])
@pytest.mark.parametrize("size", [4, 5])
def test_gradients_of_real_transforms(length: Any, size: int):
    x, y = draw(2, size), draw(2, size, seed=1)
    assert check_gradients(lambda x: list(ops.rfft(x, length)), [x], order=3) == 9
    assert check_gradients(lambda x, y: ops.irfft((x, y), length), [x, y], order=3) == 9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.fft([1.0, 2.0, 3.0]), "fft takes a pair of the real and the imaginary part; got a sequence of 3"),
        (lambda: ops.fft(np.ones(2)), "fft takes a pair .* got one ndarray"),
        (lambda: ops.fft(([1.0], [1.0, 2.0])), r"fft: the real part has shape \[1\] and the imaginary part \[2\]"),
        (lambda: ops.ifft2(([1j], [1.0])), "ifft2 takes a pair of real tensors; got complex64"),
        (lambda: ops.rfft([1j]), "rfft takes real numbers; got complex64. Use ops.fft"),
        (lambda: ops.rfft([1.0], 0), "rfft: fft_length must be a positive integer; got 0"),
        (lambda: ops.irfft(([1.0], [1.0]), -2), r"irfft: fft_length must be a positive integer; got -2"),
        (lambda: ops.irfft((1.0, 1.0)), "needs at least one axis"),
    ],
)
def test_errors(call: Callable[[], Any], message: str):
    with pytest.raises(ValueError, match=message):
        call()


# --- sequences ------------------------------------------------------------------------------------------------------


@given(shape=leading, size=st.integers(0, 12), length=st.integers(1, 6), stride=st.integers(1, 7))
def test_extract_sequences(shape: Any, size: int, length: int, stride: int):
    x = draw(*shape, size)
    with Graph().as_default():
        tensor = ops.extract_sequences(x, length, stride)
        found = run(tensor)
    starts = range(0, size - length + 1, stride)
    expected = np.zeros((*shape, len(starts), length))
    for position, start in enumerate(starts):
        expected[..., position, :] = x[..., start : start + length]
    assert tensor.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def windowed(window: Any, length: int, transform_length: int) -> Any:
    """The weights, in the middle of a transform."""
    constants = {"hann": (0.5, 0.5), "hamming": (0.54, 0.46)}
    if window is None:
        return np.ones(transform_length)
    if isinstance(window, str):
        a, b = constants[window]
        window = a - b * np.cos(2 * np.pi * np.arange(length) / length)
    before = (transform_length - length) // 2
    return np.pad(window, (before, transform_length - length - before))


def reference(x: Any, length: int, stride: int, transform_length: int, window: Any, center: bool) -> Any:
    """The short-time transform, one sequence after the other."""
    half = transform_length // 2 if center else 0
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], "reflect")
    weights = windowed(window, length, transform_length)
    starts = range(0, x.shape[-1] - transform_length + 1, stride)
    return np.stack([np.fft.rfft(x[..., s : s + transform_length] * weights) for s in starts], axis=-2)


@given(
    length=st.integers(2, 6),
    extra=st.integers(0, 3),
    stride=st.integers(1, 5),
    window=st.sampled_from(["hann", "hamming", None, "own"]),
    center=st.booleans(),
    shape=st.sampled_from([(), (2,), (2, 1)]),
)
def test_stft(length: int, extra: int, stride: int, window: Any, center: bool, shape: Any):
    x, transform_length = draw(*shape, 16), length + extra
    window = np.linspace(0.5, 1.5, length) if window == "own" else window
    with Graph().as_default():
        pair = ops.stft(x, length, stride, transform_length, window, center)
        found = run(pair)
    expected = reference(x, length, stride, transform_length, window, center)
    assert pair[0].shape == expected.shape
    np.testing.assert_allclose(joined(found), expected, atol=1e-12)


@given(
    length=st.integers(4, 8),
    extra=st.integers(0, 4),
    stride=st.integers(1, 3),
    window=st.sampled_from(["hamming", None]),
    size=st.integers(16, 24),
)
def test_istft_inverts_stft(length: int, extra: int, stride: int, window: Any, size: int):
    x, sizes = draw(2, size), (length, stride, length + extra)
    with Graph().as_default():
        transforms = ops.stft(x, *sizes, window)
        whole, cut = ops.istft(transforms, *sizes, window=window), ops.istft(transforms, *sizes, 10, window)
        longer = ops.istft(transforms, *sizes, size + 9, window)
        found = run([whole, cut, longer])
    reached = found[0].shape[-1]
    assert whole.shape == (2, reached)
    assert size - stride < reached <= size + 1
    assert longer.shape == (2, size + 9)
    common = min(reached, size)
    np.testing.assert_allclose(found[0][:, :common], x[:, :common], atol=1e-10)
    np.testing.assert_allclose(found[1], x[:, :10], atol=1e-10)
    np.testing.assert_allclose(found[2][:, :common], x[:, :common], atol=1e-10)
    np.testing.assert_array_equal(found[2][:, reached + length + extra :], 0)


def test_istft_of_sequences_that_are_not_centred():
    x, sizes = draw(12), (4, 2, 4)

    found = run(ops.istft(ops.stft(x, *sizes, None, False), *sizes, window=None, center=False))

    np.testing.assert_allclose(found, x, atol=1e-12)


def test_istft_of_a_transform_that_no_signal_has_is_the_closest():
    """The transform of the result is the projection: a correction of least squares is orthogonal to all transforms."""
    sizes, window = (4, 2, 4), np.array([0.5, 1.0, 2.0, 0.25])
    real, imag = draw(5, 3), draw(5, 3, seed=1)
    imag[:, [0, 2]] = 0  # a real signal has none there

    signal = run(ops.istft((real, imag), *sizes, window=window, center=False))
    nearest = np.fft.irfft(joined(run(ops.stft(signal, *sizes, window, False))))
    error = np.fft.irfft(real + 1j * imag) - nearest

    for seed in range(3):
        other = run(ops.stft(draw(12, seed=seed), *sizes, window, False))
        assert abs(np.sum(error * np.fft.irfft(joined(other)))) < 1e-12


def test_known_values():
    real, imag = run(ops.stft([0.0, 1.0, 2.0, 3.0, 4.0], 3, 2, 3))

    np.testing.assert_allclose(real, [[0.75, -0.375], [3.75, -1.875], [5.25, -2.625]], rtol=1e-6)
    np.testing.assert_allclose(imag, [[0, 0.64951905], [0, 0.64951905], [0, -0.64951905]], rtol=1e-6)
    np.testing.assert_allclose(run(ops.istft(ops.stft([0.0, 1.0, 2.0], 1, 1, 1), 1, 1, 1)), [0, 1, 2])


@pytest.mark.parametrize("shape", [(None,), (2, None), (None, None)])
def test_short_time_transform_of_unknown_length(shape: Any):
    signal, value = symbol(shape, "float64"), draw(*([2] * (len(shape) - 1)), 11)
    transforms = ops.stft(signal, 4, 2, 5, None)
    back = [ops.istft(transforms, 4, 2, 5, window=None), ops.istft(transforms, 4, 2, 5, 8, None)]

    found = run([transforms, *back], {signal: value})

    np.testing.assert_allclose(joined(found[0]), reference(value, 4, 2, 5, None, True), atol=1e-12)
    np.testing.assert_allclose(found[1], value, atol=1e-12)
    np.testing.assert_allclose(found[2], value[..., :8], atol=1e-12)


@pytest.mark.parametrize("center", [True, False])
def test_gradients_of_short_time_transforms(center: bool):
    window = draw(4, seed=2) + 2

    assert check_gradients(lambda x, w: list(ops.stft(x, 4, 3, 5, w, center)), [draw(2, 9), window], order=2) == 6
    parts = [draw(4, 3), draw(4, 3, seed=1), window]
    assert check_gradients(lambda x, y, w: ops.istft((x, y), 4, 3, 5, 9, w, center), parts, order=2) == 6


def test_gradient_of_sequences_with_gaps():
    assert check_gradients(lambda x: ops.extract_sequences(x, 2, 4), [draw(3, 9)], order=2) == 6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.stft([1.0], 4, 0, 4), "stft: sequence_stride must be a positive integer; got 0"),
        (lambda: ops.stft([1.0], 4, 1, 2), "stft: fft_length=2 must not be less than sequence_length=4"),
        (lambda: ops.stft([1.0], 4, 1, 4, "kaiser"), "window='kaiser' is not known; expected 'hann', 'hamming'"),
        (lambda: ops.stft([1.0], 4, 1, 4, [1.0, 1.0]), r"the window has shape \[2\]; expected .* each of the 4"),
        (lambda: ops.stft([1j], 4, 1, 4), "stft takes real numbers"),
        (lambda: ops.stft(symbol(None), 4, 1, 4), "a signal of known rank"),
        (lambda: ops.stft(1.0, 4, 1, 4), "a signal of known rank, at least 1"),
        (lambda: ops.istft(([1.0], [1.0]), 1, 1, 1), r"transforms of sequences, \[\.\.\., count, bins\]"),
        (lambda: ops.istft(np.ones((2, 3)), 1, 1, 1), "istft takes a pair"),
        (lambda: ops.istft(([[1.0]], [[1.0]]), 1, 1, 1, 0), "istft: length must be a positive integer; got 0"),
    ],
)
def test_errors_of_short_time_transforms(call: Callable[[], Any], message: str):
    with pytest.raises(ValueError, match=message):
        call()
