"""Rows combined by CUDA kernels, run on the host and compared with NumPy's ufuncs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from shared.device_arrays import DeviceArray
from shared.fake_cupy import FakeCupy
from shared.host_cuda import compile_on_host

from anabranch.engine.codegen.cuda.row_sums import TILE, print_row_sums
from anabranch.engine.codegen.expression.expression import UnsupportedError
from anabranch.engine.machine.gpu.rows import combine_rows_on_gpu

CUPY: Any = FakeCupy()
UFUNCS = ("add", "multiply", "maximum", "minimum")
TYPES = (
    *("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint32", "uint64"),
    *("int8", "uint8", "int16", "uint16", "bool"),
)


def dtype_of(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All sources in one translation unit."""
    compile_on_host(print_row_sums(ufunc, name).source for ufunc in UFUNCS for name in TYPES)


def combined(ufunc: str, out: np.ndarray, places: np.ndarray, values: np.ndarray) -> np.ndarray:
    held = DeviceArray(out.copy())
    assert combine_rows_on_gpu(CUPY, ufunc, held, DeviceArray(places), DeviceArray(values))
    return held._held


def wanted(ufunc: str, out: np.ndarray, places: np.ndarray, values: np.ndarray) -> np.ndarray:
    result = out.astype("float64" if out.dtype.kind in "fV" else out.dtype)
    getattr(np, ufunc).at(result, places, values.astype(result.dtype))
    return result


def check(ufunc: str, name: str, places: np.ndarray, rows: int, width: int, draws: int = 0) -> None:
    rng, dtype = np.random.default_rng(draws), dtype_of(name)
    integers = dtype.kind in "iub"
    out, values = (
        (rng.integers(0, 5, (n, width)) if integers else rng.uniform(0.5, 1.5, (n, width))).astype(dtype)
        for n in (rows, len(places))
    )
    with np.errstate(all="ignore"):
        found, expected = combined(ufunc, out, places, values), wanted(ufunc, out, places, values)
        if integers or ufunc in ("maximum", "minimum"):
            np.testing.assert_array_equal(found.astype(expected.dtype), expected)
        else:
            rtol = {"float64": 1e-12, "float32": 1e-5}.get(name, 2e-2)
            np.testing.assert_allclose(found.astype("float64"), expected.astype(dtype).astype("float64"), rtol=rtol)
    assert found.tobytes() == combined(ufunc, out, places, values).tobytes()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("ufunc", UFUNCS)
def test_rows_are_those_of_numpy(ufunc: str, name: str) -> None:
    rng = np.random.default_rng(0)
    check(ufunc, name, rng.integers(0, 7, 150), 9, 3)
    check(ufunc, name, rng.integers(0, 2, 3), 2, 5)


@pytest.mark.parametrize("count", [0, 1, TILE - 1, TILE, TILE + 1, 5 * TILE, 5 * TILE + 3])
def test_one_place_over_several_tiles(count: int) -> None:
    check("add", "float64", np.full(count, 2), 4, 2)
    check("maximum", "int32", np.concatenate([np.zeros(1, int), np.full(count, 1), np.full(TILE, 3)]), 4, 1)


@seed(1)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=6 * TILE), st.integers(0, 4), st.integers(0, 100))
def test_any_places(places: list[int], width: int, draws: int) -> None:
    check("add", "int64", np.array(places, "int64"), 6, width, draws)
    check("add", "float32", np.sort(np.array(places, "int64")), 6, width, draws)


def test_nans_stay() -> None:
    values = np.array([[1.0], [np.nan], [2.0], [3.0]], "float32")
    found = combined("maximum", np.zeros((2, 1), "float32"), np.array([0, 0, 0, 1]), values)
    np.testing.assert_array_equal(found, [[np.nan], [3.0]])


def test_what_has_no_kernel() -> None:
    with pytest.raises(UnsupportedError, match="add of complex64 rows"):
        print_row_sums("add", "complex64")
    held = DeviceArray(np.zeros((2, 1), "complex64"))
    assert not combine_rows_on_gpu(CUPY, "add", held, DeviceArray(np.array([0])), DeviceArray(np.ones((1, 1))))
