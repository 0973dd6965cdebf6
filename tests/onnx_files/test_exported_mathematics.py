"""Functions that ONNX has no operators for, and signals, exported and run in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.onnx_runs import assert_exported, assert_same, run_file

import anabranch as ab
from anabranch import ops


def compare(
    folder: Path, inputs: list[Any], build: Callable[..., Any], opset: int = 21, tolerance: float = 1e-4
) -> None:
    """Export a graph whose inputs have open sizes, and compare it with a session."""
    with ab.Graph().as_default():
        given = [ab.placeholder((None,) * each.ndim, each.dtype.name) for each in inputs]
        found = build(*given)
        outputs = list(found) if isinstance(found, (list, tuple)) else [found]
        wanted = ab.Session().run(outputs, dict(zip(given, inputs, strict=True)))
        named = {f"x{number}": each for number, each in enumerate(given)}
        path = folder / "g.onnx"
        ab.onnx.export_graph(path, named, {f"y{n}": each for n, each in enumerate(outputs)}, opset_version=opset)
    feeds = {f"x{number}": each for number, each in enumerate(inputs)}
    for a, b in zip(run_file(path, feeds), wanted, strict=True):
        assert_same(a, b, tolerance, tolerance)


def _signal(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


# --- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("center", [True, False])
def test_short_time_transforms(center: bool, opset: int, tmp_path: Path) -> None:
    compare(tmp_path, [_signal(2, 50)], lambda x: ops.stft(x, 12, 5, 16, center=center), opset)


def test_short_time_transforms_and_back(tmp_path: Path) -> None:
    """As a denoiser does: what is faint is left out."""

    def denoised(x: Any) -> Any:
        real, imaginary = ops.stft(x, 16, 4, 16)
        kept = ops.cast(real * real + imaginary * imaginary > 1.0, "float32")
        return ops.istft((real * kept, imaginary * kept), 16, 4, 16)

    compare(tmp_path, [_signal(3, 64)], denoised)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_transforms_of_any_number_of_rows(rows: int, tmp_path: Path) -> None:
    x, y = _signal(2, rows, 2, 6)
    compare(tmp_path, [x, y], lambda x, y: [*ops.fft((x, y)), *ops.rfft(x), ops.irfft((x, y)), *ops.ifft2((x, y))])


def test_a_layer_of_spectra(tmp_path: Path) -> None:
    layer = ab.layers.MelSpectrogram(num_mel_bins=8, sampling_rate=800, sequence_stride=32, fft_length=64)
    x = ab.Input((256,), name="x")
    model = ab.Model(x, layer(x))
    assert_exported(model, tmp_path, None, [_signal(1, 256), _signal(3, 256)], rtol=1e-3)


@pytest.mark.slow
def test_gradients_of_transforms(tmp_path: Path) -> None:
    def gradient(x: Any) -> Any:
        real, imaginary = ops.stft(x, 8, 4, 8)
        return ab.gradients(ops.sum(ops.sqrt(real * real + imaginary * imaginary + 1e-3)), [x])

    compare(tmp_path, [_signal(2, 40)], gradient, tolerance=1e-3)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            lambda z: ops.real(ops.flip(z)),
            r"takes complex numbers, of which ONNX has none. Give it ops.real and ops.imag",
        ),
        (lambda z: ops.real(ops.cond(ops.sum(ops.real(z)) > 0, lambda: z, lambda: -z)), "it takes complex numbers"),
        (
            lambda z: ops.real(
                ops.cond(ops.sum(ops.real(z)) > 0, lambda: ops.complex(1.0, 2.0), lambda: ops.complex(2.0, 1.0))
            ),
            "loops and branches give no complex numbers",
        ),
        (lambda z: z, "Output 'y' is complex"),
    ],
)
def test_other_complex_numbers_are_refused(build: Callable[..., Any], reason: str, tmp_path: Path) -> None:
    with ab.Graph().as_default():
        x, y = (ab.placeholder((None,), "float32") for _ in range(2))
        with pytest.raises(ab.onnx.OnnxError, match=reason):
            ab.onnx.export_graph(tmp_path / "g.onnx", {"x": x, "v": y}, {"y": build(ops.complex(x, y))})


# --- special functions ----------------------------------------------------------------------------------------------


def test_products_and_sums_of_complex_numbers(tmp_path: Path) -> None:
    def build(x: Any, y: Any) -> Any:
        z = ops.complex(x, y)
        found = z * ops.conj(z) - ops.cast(x, "complex64") * z + 2.0
        return [ops.real(found), ops.imag(-found)]

    compare(tmp_path, [*_signal(2, 3)], build)


def test_the_incomplete_gamma_function_over_its_ranges(tmp_path: Path) -> None:
    """Both tails and the series, to the rounding of float32, and of float64 for such values."""
    places = np.array([0, 1e-3, 0.1, 0.9, 1, 2.5, 9.9, 10.1, 33, 500, 2e4, np.inf])
    a, x = (each.ravel() for each in np.meshgrid(places, places))
    near = np.concatenate([places[1:-1] * factor for factor in (0.9, 0.99, 1, 1.01, 1.1)])
    a, x = np.concatenate([a, np.tile(places[1:-1], 5)]), np.concatenate([x, near])
    compare(tmp_path, [a.astype("float32"), x.astype("float32")], ops.gammainc, tolerance=2e-6)
    compare(tmp_path, [a, x], ops.gammainc, tolerance=1e-10)


def test_the_derivative_of_the_incomplete_gamma_function_is_refused(tmp_path: Path) -> None:
    with ab.Graph().as_default():
        a, x = (ab.placeholder((None,), "float32") for _ in range(2))
        with pytest.raises(ab.onnx.OnnxError, match=r"derivatives of gammainc by its first argument"):
            ab.onnx.export_graph(
                tmp_path / "g.onnx", {"a": a, "x": x}, {"y": ab.gradients(ops.sum(ops.gammainc(a, x)), [a])[0]}
            )


def test_divisors_of_large_numbers(tmp_path: Path) -> None:
    """Two Fibonacci numbers take Euclid's algorithm the most steps."""
    x, y = np.array([7540113804746346429, 2**62, -12, 0]), np.array([4660046610375530309, 2**61 + 2, 18, 0])
    compare(tmp_path, [x, y], ops.gcd)
    compare(tmp_path, [x // 2**34, y // 2**34], ops.lcm)


# --- positions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "edge", "wrap"])
@pytest.mark.parametrize("size", [1, 4])
def test_padding_of_open_sizes(size: int, mode: str, tmp_path: Path) -> None:
    compare(tmp_path, [_signal(size)], lambda x: ops.pad(x, (5, 3), mode))


def test_repetitions_that_are_inputs(tmp_path: Path) -> None:
    for counts in ([2, 0, 1], [0, 0, 0]):
        compare(tmp_path, [_signal(3, 2), np.array(counts, "int32")], lambda x, n: ops.repeat(x, n, axis=0))


@pytest.mark.parametrize("kind", ["max", "min", "mul"])
def test_updates_that_are_reduced(kind: str, tmp_path: Path) -> None:
    places = np.array([[0, 1], [2, 0], [0, 1]], "int32")

    def build(x: Any, updates: Any) -> Any:
        return ops.scatter_update(ops.reshape(x, (-1, 2)), places, updates, reduction=kind)

    compare(tmp_path, [_signal(3, 2), _signal(3)], build)
