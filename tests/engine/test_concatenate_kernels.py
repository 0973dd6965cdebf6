"""Kernels of concatenations: values, what is left to NumPy, and that rows are dealt out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.codegen.gather.joins import bind_concatenate
from anabranch.engine.codegen.host.refits import refits
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.arrays.joining import Concatenate
from anabranch.engine.ops.base import apply
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


def draw(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    return np.random.default_rng(seed).uniform(-100, 100, shape).astype(dtype)


def has_kernel(shapes: list[tuple[int | None, ...]], axis: int, dtype: str = "float32") -> bool:
    inputs = [ab.placeholder(shape, dtype) for shape in shapes]
    return bind_concatenate(symbol_of(apply(Concatenate(axis), *inputs)).operation) is not None


def check(arrays: list[Any], axis: int) -> str:
    """The program gives what NumPy gives; return its source."""
    with ab.Graph().as_default() as graph:
        inputs = [ab.placeholder(array.shape, array.dtype) for array in arrays]
        program = Program(graph, [symbol_of(ops.concatenate(inputs, axis))], inputs)
    np.testing.assert_array_equal(program(*arrays)[0], np.concatenate(arrays, axis))
    return program.source


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32"])
@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([(600, 16), (600, 351)], 1),
        ([(16, 3), (16, 1)], 1),
        ([(512, 1, 16), (512, 26, 16)], 1),
        ([(8, 128, 256)] * 3, -1),
        ([(3, 7, 5, 33), (3, 7, 5, 0), (3, 7, 5, 1), (3, 7, 5, 400)], 3),
        ([(17, 40, 3, 5), (17, 1, 3, 5), (17, 110, 3, 5)], 1),
    ],
)
def test_values(shapes: list[tuple[int, ...]], axis: int, dtype: str) -> None:
    assert has_kernel([*shapes], axis, dtype)
    assert "kernel(" in check([draw(shape, dtype, k) for k, shape in enumerate(shapes)], axis)


def test_bits_stay_as_they_are() -> None:
    values = np.array([0x7F800001, 0xFFC12345, 0x80000000, 1], "uint32").view("float32")  # signalling, quiet, -0, tiny
    arrays = [np.tile(values, (400, 20)), np.tile(values, (400, 30))]
    with ab.Graph().as_default() as graph:
        inputs = [ab.placeholder(array.shape, "float32") for array in arrays]
        (found,) = Program(graph, [symbol_of(ops.concatenate(inputs, 1))], inputs)(*arrays)
    np.testing.assert_array_equal(found.view("uint32"), np.tile(values, (400, 50)).view("uint32"))


@pytest.mark.parametrize("part", [0, 1])
def test_parts_of_wider_arrays_are_left_to_numpy(part: int) -> None:
    arrays = [draw((512, 64), "float32", 0), draw((512, 64), "float32", 1)]
    arrays[part] = draw((512, 80), "float32", 2)[:, 5:69]
    before = refits.count
    check(arrays, 1)
    assert refits.count == before + 1


@pytest.mark.parametrize(
    ("shapes", "axis", "dtype"),
    [
        ([(600, 100), (500, 100)], 0, "float32"),
        ([(2, 40_000), (2, 40_000)], 1, "float32"),
        ([(10, 16), (10, 16)], 1, "float32"),
        ([(600, 100), (600, 100)], 1, "float16"),
        ([(600, 100), (600, 100)], 1, "bool"),
        ([(600, 100), (600, 100)], 1, "complex64"),
        ([(600, 100)], 1, "float32"),
        ([(None, 100), (None, 100)], 1, "float32"),
    ],
)
def test_what_numpy_computes(shapes: list[tuple[int | None, ...]], axis: int, dtype: str) -> None:
    assert not has_kernel(shapes, axis, dtype)
    check([np.ones([size or 600 for size in shape], dtype) for shape in shapes], axis)


def test_the_gradient_of_attention_joins_those_of_its_operands_by_a_kernel() -> None:
    with ab.Graph().as_default() as graph:
        x, w = ab.placeholder((4, 128, 64)), ab.placeholder((64, 192))
        q, k, v = [ops.reshape(part, (4, 128, 4, 16)) for part in ops.split(x @ w, 3, axis=-1)]
        (found,) = ab.gradients(ops.sum(ops.dot_product_attention(q, k, v) ** 2), [w])
        program = Program(graph, [symbol_of(found)], [x, w])
    joins = [line for line in program.source.splitlines() if "np.concatenate" in line]
    assert joins
    assert all("kernel" in line for line in joins)
