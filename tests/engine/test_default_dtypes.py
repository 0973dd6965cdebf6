"""Dtypes and static shapes of what ops make from sizes and numbers, as Keras has them; eager and symbolic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops

FLOATX = ["float16", "bfloat16", "float32", "float64"]

MADE_FROM_NOTHING: dict[str, Callable[[], Any]] = {
    "zeros": lambda: ops.zeros((2,)),
    "ones": lambda: ops.ones((2,)),
    "empty": lambda: ops.empty((2,)),
    "full": lambda: ops.full((2,), 3),
    "eye": lambda: ops.eye(2),
    "identity": lambda: ops.identity(2),
    "tri": lambda: ops.tri(2),
    "arange": lambda: ops.arange(3.0),
    "linspace": lambda: ops.linspace(0, 1, 3),
    "linspace of floats": lambda: ops.linspace(0.0, 1.0, 3),
    "linspace of ints": lambda: ops.linspace(np.int32(0), np.array([1, 2]), 3),
    "logspace": lambda: ops.logspace(0, 1, 3),
    "geomspace": lambda: ops.geomspace(1, 2, 3),
    "hanning": lambda: ops.hanning(4),
    "hamming": lambda: ops.hamming(4),
    "bartlett": lambda: ops.bartlett(4),
    "blackman": lambda: ops.blackman(4),
    "kaiser": lambda: ops.kaiser(4, 1.0),
    "one_hot": lambda: ops.one_hot([1], 2),
    "multi_hot": lambda: ops.multi_hot([1], 2),
    "cast": lambda: ops.cast([1], None),
    "normal": lambda: ab.random.normal((2,), seed=1),
    "uniform": lambda: ab.random.uniform((2,), seed=1),
    "truncated_normal": lambda: ab.random.truncated_normal((2,), seed=1),
    "gamma": lambda: ab.random.gamma((2,), 1.0, seed=1),
    "beta": lambda: ab.random.beta((2,), 1.0, 1.0, seed=1),
    "binomial": lambda: ab.random.binomial((2,), 3, 0.5, seed=1),
}


@pytest.mark.parametrize("floatx", FLOATX)
@pytest.mark.parametrize("name", MADE_FROM_NOTHING)
def test_what_is_made_from_nothing_is_of_floatx(name: str, floatx: str) -> None:
    ab.config.set_floatx(floatx)
    make = MADE_FROM_NOTHING[name]
    assert make().dtype == floatx
    with ab.Graph().as_default():
        assert make().dtype == floatx


@pytest.mark.parametrize("floatx", FLOATX)
def test_floats_keep_the_dtype_that_they_have(floatx: str) -> None:
    ab.config.set_floatx(floatx)
    x = np.ones((2,), "float32")
    assert ops.linspace(x, 2, 3).dtype == ops.arange(np.float32(3)).dtype == ops.zeros_like(x).dtype == "float32"
    assert ops.arange(3).dtype == ops.full((2,), 3, "int32").dtype == "int32"
    assert ops.convert_to_tensor(1.0).dtype == ops.mean([1, 2]).dtype == ops.divide(1, 2).dtype == "float32"
    assert ops.full((2,), 1j).dtype == "complex64"


def test_sizes_in_float64_lose_nothing() -> None:
    ab.config.set_floatx("float64")
    np.testing.assert_allclose(ops.linspace(0.1, 0.7, 4), np.linspace(0.1, 0.7, 4), rtol=1e-15)
    np.testing.assert_allclose(ops.arange(0.1, 1.0, 0.3), np.arange(0.1, 1.0, 0.3), rtol=1e-15)
    np.testing.assert_allclose(ops.hamming(5), np.hamming(5), rtol=1e-15)


WINDOWS = [
    (ops.bartlett, np.bartlett),
    (ops.blackman, np.blackman),
    (ops.hamming, np.hamming),
    (ops.hanning, np.hanning),
]


@pytest.mark.parametrize(("window", "expected"), WINDOWS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"])
def test_counts_of_windows(window: Any, expected: Any, dtype: str) -> None:
    count = ops.cast(5, dtype)
    np.testing.assert_allclose(window(count), expected(int(count)), atol=1e-6)
    np.testing.assert_allclose(ops.kaiser(count, ops.cast(1, dtype)), np.kaiser(int(count), 1), atol=1e-6)
    with ab.Graph().as_default(), ab.Session() as session:
        points = ab.placeholder((), dtype)
        assert window(points).shape == (None,)
        found = session.run(window(points), {points: np.asarray(count)})
    np.testing.assert_allclose(found, expected(int(count)), atol=1e-6)


@pytest.mark.parametrize("count", [2.5, float("nan"), float("inf")])
def test_counts_of_windows_that_are_not_whole(count: float) -> None:
    with pytest.raises(ValueError, match=r"hanning: the number of points must be whole; got"):
        ops.hanning(count)


def test_windows_take_no_strings() -> None:
    with pytest.raises(TypeError, match=r"hanning: the number of points must be an integer, or a whole float; got"):
        ops.hanning("5")


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64"])
def test_trunc_keeps_what_is_whole(dtype: str) -> None:
    assert ops.trunc(np.ones((2,), dtype)).dtype == ops.trunc(ab.KerasTensor((2,), dtype=dtype)).dtype == dtype


STATIC_SHAPES: list[tuple[Callable[[], Any], tuple[int | None, ...]]] = [
    (lambda: ops.repeat(ab.KerasTensor((2, 3)), [2]), (12,)),
    (lambda: ops.repeat(ab.KerasTensor((2, 3)), (2,), axis=1), (2, 6)),
    (lambda: ops.repeat(ab.KerasTensor((None, 3)), np.array([2]), axis=1), (None, 6)),
    (lambda: ops.repeat(ab.KerasTensor((2, 3)), [1, 2], axis=0), (3, 3)),
    (lambda: ops.istft((ab.KerasTensor((2, 5, 9)), ab.KerasTensor((2, 5, 9))), 16, 4, 16, length=20), (2, 20)),
    (lambda: ops.istft((ab.KerasTensor((2, None, 9)), ab.KerasTensor((2, None, 9))), 16, 4, 16, length=20), (2, 20)),
    (lambda: ops.istft((ab.KerasTensor((None, None, 9)),) * 2, 16, 4, 16, length=20), (None, 20)),
]


@pytest.mark.parametrize(("make", "shape"), STATIC_SHAPES)
def test_static_shapes(make: Callable[[], Any], shape: tuple[int | None, ...]) -> None:
    assert make().shape == shape


def test_istft_of_unknown_count_has_its_length() -> None:
    signal = np.random.default_rng(0).random((2, 24)).astype("float32")
    parts = [np.asarray(part) for part in ops.stft(signal, 8, 4, 8)]
    with ab.Graph().as_default(), ab.Session() as session:
        given = [ab.placeholder((None, None, 5), "float32") for _ in parts]
        for length in (10, 24, 40):
            found = session.run(ops.istft(tuple(given), 8, 4, 8, length=length), dict(zip(given, parts, strict=True)))
            assert found.shape == (2, length)
            np.testing.assert_allclose(found[:, :24], signal[:, :length], atol=1e-5)
            np.testing.assert_array_equal(found[:, 28:], 0)


AS_NUMPY: dict[str, Callable[[Any], Any]] = {
    "linspace": lambda o: o.linspace(0.1234567890123, 2.2, 5, dtype="float64"),
    "linspace without its end": lambda o: o.linspace(0.1234567890123, 2.2, 5, endpoint=False, dtype="float64"),
    "linspace of ints": lambda o: o.linspace(1, 10, 10, dtype="int32"),
    "linspace of negative ints": lambda o: o.linspace(-1, 0, 3, dtype="int32"),
    "linspace of large ints": lambda o: o.linspace(0, 100_000_001, 2, dtype="int64"),
    "arange of floats": lambda o: o.arange(0, 1, 0.1, dtype="float64"),
    "arange of large ints": lambda o: o.arange(2**31, 2**33, 2**31, dtype="int64"),
    "arange of larger ints": lambda o: o.arange(2**63, 2**63 + 3, dtype="uint64"),
}


@pytest.mark.parametrize("name", AS_NUMPY)
def test_python_numbers_are_exact_in_the_dtype_that_is_asked_for(name: str) -> None:
    make = AS_NUMPY[name]
    expected = make(np)

    for found in (make(ops), ab.function(lambda: make(ops))()):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-15)
