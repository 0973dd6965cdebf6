"""The few largest of each row, and softmax over an unknown number of rows: kernels against NumPy and a full sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch import ops
from anabranch.engine.codegen.elementwise import open_sizes
from anabranch.engine.codegen.elementwise.bound import BoundKernel
from anabranch.engine.codegen.elementwise.open_shapes import OpenRunner
from anabranch.engine.codegen.llvm.entry import print_kernel
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.natives import bind_native
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.arrays.sorting import TopK
from anabranch.engine.runtime.program import Program

KINDS = ["different", "rounded", "nan", "ascending", "forbidden", "zeros"]
needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


def by_sorting(x: np.ndarray, k: int) -> np.ndarray:
    """Compute top_k by its definition: NaNs before all, of equals the first."""
    order = np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1][..., :k]
    return (x.shape[-1] - 1 - order).astype(np.int32)


def rows_of(kind: str, shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if kind == "rounded":
        x = np.round(x)
    elif kind == "nan":
        x[rng.random(shape) < 0.2] = np.nan
    elif kind == "ascending":
        x = np.sort(x, axis=-1)
    elif kind == "forbidden":
        x[rng.random(shape) < 0.97] = -np.inf
    elif kind == "zeros":  # -0.0 equals 0.0
        x = np.where(rng.random(shape) < 0.5, -0.0, np.where(rng.random(shape) < 0.9, 0.0, np.nan))
    return x.astype(dtype)


def positions(k: int, rank: int, dtype: str, *, exact: bool = False) -> Program:
    """A program over arrays of any sizes."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None,) * rank, dtype)
        return Program(graph, [symbol_of(part) for part in ops.top_k(x, k)], [x], exact=exact)


def taken(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, places, axis=-1)


@settings(max_examples=examples(6, 25), deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(["float32", "float64"]),
    k=st.sampled_from([1, 2, 5, 16, 64]),
    rows=st.integers(0, 20),
    more=st.integers(0, 400),
    seed=st.integers(0, 1000),
)
def test_positions_are_those_of_a_full_sort(kind: str, dtype: str, k: int, rows: int, more: int, seed: int) -> None:
    x = rows_of(kind, (rows, k + more), dtype, seed)
    expected = by_sorting(x, k)
    values, places = positions(k, 2, dtype)(x)
    for found in ((values, places), TopK(k).run(np, x)):
        np.testing.assert_array_equal(found[1], expected)
        np.testing.assert_array_equal(found[0].view(f"i{x.itemsize}"), taken(x, expected).view(f"i{x.itemsize}"))


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_known_sizes_and_many_parts(kind: str, dtype: str) -> None:
    x = rows_of(kind, (3, 17, 2001), dtype, 1)
    with ab.Graph().as_default() as graph:
        given = ab.placeholder(x.shape, dtype)
        found = ops.top_k(given, 4)
        assert bind_native(symbol_of(found[1]).operation) is not None
        values, places = Program(graph, [symbol_of(part) for part in found], [given])(x)
    np.testing.assert_array_equal(places, by_sorting(x, 4))
    np.testing.assert_array_equal(values, np.take_along_axis(x, by_sorting(x, 4), axis=-1))


@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["int32", "bool", "float16", "uint8"])
def test_other_dtypes(dtype: str, k: int) -> None:
    x = np.random.default_rng(0).integers(0, 40, (5, 60)).astype(dtype)
    np.testing.assert_array_equal(positions(k, 2, dtype)(x)[1], by_sorting(x, k))


def test_other_layouts_vectors_and_exact_programs() -> None:
    x = rows_of("rounded", (300, 9), "float32", 2).T
    np.testing.assert_array_equal(positions(3, 2, "float32")(x)[1], by_sorting(x, 3))
    np.testing.assert_array_equal(positions(3, 1, "float32")(x[0].copy())[1], by_sorting(x[0], 3))
    np.testing.assert_array_equal(positions(3, 2, "float32", exact=True)(x)[1], by_sorting(x, 3))


def test_rows_that_are_too_short() -> None:
    with pytest.raises(ValueError, match=r"k=5 is more than the last axis of the input holds; its shape is \[2,3\]"):
        positions(5, 2, "float32")(np.zeros((2, 3), "float32"))


def test_more_shapes_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_sizes, "_MOST_KEYS", 2)
    program = positions(2, 2, "float64")
    for columns in (5, 90, 7, 5, 300, 90):
        x = rows_of("different", (4, columns), "float64", columns)
        np.testing.assert_array_equal(program(x)[1], by_sorting(x, 2))


# --- softmax and its relatives --------------------------------------------------------------------------------------


def normalised(x: np.ndarray) -> dict[str, np.ndarray]:
    peak = np.max(x, axis=-1, keepdims=True)
    total = np.log(np.sum(np.exp(x - peak), axis=-1, keepdims=True)) + peak
    return {"softmax": np.exp(x - total), "log_softmax": x - total, "logsumexp": total[..., 0], "kept": total}


def open_program(name: str, rank: int, dtype: str) -> tuple[Program, Any]:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None,) * rank, dtype)
        found = ops.logsumexp(x, axis=-1, keepdims=True) if name == "kept" else getattr(ops, name)(x, axis=-1)
        return Program(graph, [symbol_of(found)], [x]), bind_native(symbol_of(found).operation)


@needs_kernels
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "kept"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 1000), (200, 1), (7, 5, 40), (2, 5), (1, 700), (900,)])
def test_rows_of_unknown_number(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape) * 10
    x.reshape(-1, shape[-1])[:, 1:][:, ::4] = -np.inf
    program, runner = open_program(name, len(shape), dtype)
    assert isinstance(runner, OpenRunner)
    tolerance = 2e-6 if dtype == "float32" else 1e-13
    expected = normalised(x.astype(dtype).astype("float64"))[name]
    for _ in range(2):
        np.testing.assert_allclose(program(x.astype(dtype))[0], expected, rtol=tolerance, atol=tolerance)


def test_other_layouts_and_no_rows() -> None:
    program, _ = open_program("log_softmax", 2, "float64")
    x = np.random.default_rng(0).standard_normal((40, 30))
    np.testing.assert_allclose(program(x.T)[0], normalised(x.T)["log_softmax"], rtol=1e-13)
    assert program(np.zeros((0, 30)))[0].shape == (0, 30)


@needs_kernels
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "kept"])
def test_rows_of_infinities_and_nan_are_numpys(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((6, 100))
    x[0], x[1, 3], x[2, 5], x[3], x[4, 7], x[4, 8] = -np.inf, np.nan, np.inf, np.inf, np.inf, np.nan
    program, runner = open_program(name, 2, "float64")
    with ab.Graph().as_default() as graph:
        y = ab.placeholder((None, None), "float64")
        found = ops.logsumexp(y, axis=-1, keepdims=True) if name == "kept" else getattr(ops, name)(y, axis=-1)
        exact = Program(graph, [symbol_of(found)], [y], exact=True)
    assert isinstance(runner, OpenRunner)
    np.testing.assert_allclose(program(x)[0], exact(x)[0], rtol=1e-13)


@needs_kernels
@needs_kernels
def test_kernels_of_several_lengths_are_one_module() -> None:
    with ab.Graph().as_default():
        x = ab.placeholder((64, 4000), "float32")
        kernels = [bind_native(symbol_of(ops.top_k(x, k)[0]).operation) for k in (3, 7, 12)]
    specs = [kernel.spec for kernel in kernels if isinstance(kernel, BoundKernel)]
    assert len(set(specs)) == 3
    text = "".join(print_kernel(spec, f"kernel_{number}") for number, spec in enumerate(specs))
    engine = library.load(text, lambda: text)  # a function may be declared once in a module
    assert all(engine.get_function_address(f"kernel_{number}") for number in range(3))
