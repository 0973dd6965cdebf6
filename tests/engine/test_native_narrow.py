"""Products of a transposed matrix by one of a few columns, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natives.comparing import check_against_numpy
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul import narrow
from anabranch.engine.codegen.natives import bind_native
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.linear_algebra.products import MatMul
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


def _product(rows: Any, terms: int, columns: int, dtype: str, flags: tuple[bool, bool] = (True, False)) -> Any:
    """A product of large matrices: graph, result and feeds."""
    with ab.Graph().as_default() as graph:
        a, b = ab.placeholder((rows, terms), dtype), ab.placeholder((rows, columns), dtype)
        return graph, apply(MatMul(*flags), a, b), [a, b]


@settings(max_examples=examples(12, 30), deadline=None, derandomize=True)
@given(
    rows=st.sampled_from([64, 65, 1000, 1031, 4096]),
    terms=st.sampled_from([32, 128, 201, 333]),
    columns=st.integers(2, 12),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_values(rows: int, terms: int, columns: int, dtype: str) -> None:
    rng = np.random.default_rng(rows)
    graph, product, feeds = _product(rows, terms, columns, dtype)
    a, b = (rng.uniform(-1, 1, (rows, width)).astype(dtype) for width in (terms, columns))
    (found,) = check_against_numpy(graph, [product], feeds, [a, b], 1e-5 if dtype == "float32" else 1e-13)
    np.testing.assert_allclose(found, a.T.astype("f8") @ b, rtol=0, atol=rows * (1e-6 if dtype == "float32" else 1e-13))


def test_which_products_have_it() -> None:
    assert narrow.bind_narrow(_product(4096, 256, 8, "float32")[1].operation) is not None
    assert narrow.bind_narrow(_product(256, 784, 10, "float64")[1].operation) is not None
    for rows, terms, columns in ((4096, 256, 1), (4096, 256, 13), (64, 64, 8), (20, 8000, 8), (4096, 4096, 8)):
        assert narrow.bind_narrow(_product(rows, terms, columns, "float32")[1].operation) is None
    assert narrow.bind_narrow(_product(None, 256, 8, "float32")[1].operation) is None
    assert narrow.bind_narrow(_product(4096, 256, 8, "int32")[1].operation) is None
    with ab.Graph().as_default():
        a, b = ab.placeholder((4096, 256), "float32"), ab.placeholder((256, 8), "float32")
        assert narrow.bind_narrow(symbol_of(ab.ops.matmul(a, b)).operation) is None


def test_others_are_left_to_the_kernels_of_large_products() -> None:
    assert bind_native(_product(1024, 1024, 1024, "float32")[1].operation) is not None
    assert bind_native(_product(3, 3, 3, "float32")[1].operation) is None


def test_nan_infinities_and_other_layouts() -> None:
    graph, product, feeds = _product(1000, 200, 5, "float32")
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (200, 1000)).astype("f").T, rng.uniform(-1, 1, (2000, 5)).astype("f")[::2]
    a[3, 7], a[500, 9] = np.nan, np.inf
    (found,) = Program(graph, [product], feeds)(a, b)
    with np.errstate(invalid="ignore"):
        expected = a.T @ b
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    assert np.isnan(found[7]).all()


def test_the_gradient_of_a_classifier() -> None:
    with ab.Graph().as_default() as graph:
        x, w = ab.placeholder((512, 300), "float32"), ab.placeholder((300, 10), "float32")
        (gradient,) = ab.gradients(ab.ops.sum(ab.ops.softmax(ab.ops.matmul(x, w))[:, 0]), [w])
        fetches = [ab.convert_to_tensor(gradient)]
    rng = np.random.default_rng(0)
    values = [rng.uniform(-1, 1, shape).astype("f") for shape in ((512, 300), (300, 10))]
    check_against_numpy(graph, fetches, [x, w], values, 1e-4)


def test_several_at_the_same_time() -> None:
    """Independent products may be one call, in which threads compute one each: none writes where another sums."""
    with ab.Graph().as_default() as graph:
        a = ab.placeholder((2048, 96), "float32")
        others = [ab.placeholder((2048, 6), "float32") for _ in range(8)]
        fetches = [symbol_of(apply(MatMul(True, False), a, b)) for b in others]
    rng = np.random.default_rng(0)
    x, *rest = (rng.uniform(-1, 1, (2048, width)).astype("f") for width in (96, *[6] * 8))
    program = Program(graph, fetches, [a, *others])
    for _ in range(20):
        for found, b in zip(program(x, *rest), rest, strict=True):
            np.testing.assert_allclose(found, x.T @ b, rtol=0, atol=1e-3)
