"""Kernels of products of rounded rows and int8 matrices: the bits of the NumPy road, for any sizes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul import quantized
from anabranch.engine.ops.neural.quantized import QuantizedMatMul, quantized_matmul

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels need llvmlite")
SIZES = st.sampled_from([1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 100, 130])


def case(rows: int, terms: int, columns: int, transpose: bool, seed: int) -> tuple[Any, Any, Any]:
    """Rows of all kinds: ordinary ones, zeros, tiny and huge ones, and such that hold NaN and infinities."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(rows, terms)) * rng.choice([1e-30, 1e-3, 1, 1e20], (rows, 1))).astype("float32")
    x[rng.random(rows) < 0.2] = 0
    x[rng.random(x.shape) < 0.02] = np.nan
    x[rng.random(x.shape) < 0.02] = np.inf
    kernel = rng.choice(np.array([-128, -127, -1, 0, 1, 3, 127], "int8"), (terms, columns))
    scale = rng.uniform(0.5, 300, columns).astype("float32")
    return x, np.ascontiguousarray(kernel.T) if transpose else kernel, scale


def compiled(x: Any, kernel: Any, scale: Any, transpose: bool, fixed: Any, is_open: bool) -> Any:
    rows = ab.placeholder((None, x.shape[1]) if is_open else x.shape, "float32")
    matrix, scales = ab.placeholder(kernel.shape, "int8"), ab.placeholder(scale.shape, "float32")
    constant = None if fixed is None else ab.constant(fixed)
    result = quantized_matmul(rows, matrix, scales, constant, transpose=transpose)
    return ab.Session().run(result, {rows: x, matrix: kernel, scales: scale})


def by_numpy(x: Any, kernel: Any, scale: Any, transpose: bool, fixed: Any) -> Any:
    op = QuantizedMatMul(transpose=transpose, is_fixed=fixed is not None)
    return op.run(np, x, kernel, scale, *([] if fixed is None else [fixed]))


@settings(max_examples=examples(15, 60))
@given(st.integers(1, 9), SIZES, SIZES, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_the_bits_of_numpy(
    rows: int, terms: int, columns: int, transpose: bool, has_fixed: bool, is_open: bool, seed: int
):
    arrays, fixed = case(rows, terms, columns, transpose, seed), np.float32(20) if has_fixed else None
    found = compiled(*arrays, transpose, fixed, is_open)
    np.testing.assert_array_equal(found, by_numpy(*arrays, transpose, fixed))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 37])
@pytest.mark.parametrize("transpose", [False, True])
def test_several_blocks_and_parts(rows: int, transpose: bool):
    arrays = case(rows, 800, 700, transpose, 5)
    found = compiled(*arrays, transpose, None, False)
    np.testing.assert_array_equal(found, by_numpy(*arrays, transpose, None))


def test_hosts_without_the_instruction_give_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quantized, "has_pairs", lambda host: False)
    for rows, terms, columns in ((1, 300, 130), (6, 65, 70)):
        arrays = case(rows, terms, columns, False, 9)
        found = compiled(*arrays, False, None, False)
        np.testing.assert_array_equal(found, by_numpy(*arrays, False, None))


def test_the_kernel_is_used_where_it_can_be():
    symbols = [ab.placeholder((4, 32), "float32"), ab.placeholder((32, 8), "int8"), ab.placeholder((8,), "float32")]
    result: Any = quantized_matmul(*symbols)
    assert isinstance(quantized.bind_quantized(result.operation), quantized.BoundKernel)
    wide = quantized_matmul(ab.placeholder((4, 32), "float64"), symbols[1], ab.placeholder((8,), "float64"))
    assert quantized.bind_quantized(wide.operation) is None  # pyright: ignore[reportAttributeAccessIssue]


def test_views_and_unaligned_arrays_are_taken():
    x, kernel, scale = case(3, 40, 24, False, 2)
    wide = np.zeros((40, 48), "int8")
    wide[:, ::2] = kernel
    view = np.frombuffer(b"x" + x.tobytes(), "uint8")[1:].view("float32").reshape(x.shape)
    found = compiled(view, wide[:, ::2], scale, False, None, True)
    np.testing.assert_array_equal(found, by_numpy(x, kernel, scale, False, None))
