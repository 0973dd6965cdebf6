"""Elementwise kernels over rows with gaps between them, such as the columns of a wider matrix, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shared.machine_figures import assume

import anabranch as ab
from anabranch import ops
from anabranch.engine.codegen.elementwise import open_sizes
from anabranch.engine.codegen.elementwise.bound import BoundKernel
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
WIDTH = 24


def gates(dtype: str) -> Program:
    """Build what a recurrent cell does with the parts of a product: the new cell state and output."""
    with ab.Graph().as_default() as graph:
        z, c = ab.placeholder((None, 3 * WIDTH), dtype), ab.placeholder((None, WIDTH), dtype)
        row, number = ab.placeholder((WIDTH,), dtype), ab.placeholder((), dtype)
        f, g, o = ops.split(z, 3, axis=1)
        carry = ops.maximum(f, 0) * c + g * row
        return Program(graph, [symbol_of(carry), symbol_of(ops.minimum(o, number) * carry + row)], [z, c, row, number])


def expected_of(z: Any, c: Any, row: Any, number: Any) -> tuple[Any, Any]:
    f, g, o = np.split(z, 3, axis=1)
    carry = np.maximum(f, 0) * c + g * row
    return carry, np.minimum(o, number) * carry + row


def drawn(rows: int, dtype: str) -> list[Any]:
    rng = np.random.default_rng(rows)
    z, c, row = (rng.uniform(-1, 1, shape).astype(dtype) for shape in ((rows, 3 * WIDTH), (rows, WIDTH), (WIDTH,)))
    return [z, c, row, np.dtype(dtype).type(0.3)]


def refuse(*_: Any) -> None:
    pytest.fail("operands were copied")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [2, 3, 300, 2000])
def test_columns_are_taken_as_they_lie(dtype: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assume(monkeypatch, kernel_elements=1)
    monkeypatch.setattr(BoundKernel, "refit", refuse)
    values = drawn(rows, dtype)
    for _ in range(2):
        for found, wanted in zip(gates(dtype)(*values), expected_of(*values), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_and_one(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assume(monkeypatch, kernel_elements=0)
    values = drawn(rows, "float32")
    for found, wanted in zip(gates("float32")(*values), expected_of(*values), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_other_layouts_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    assume(monkeypatch, kernel_elements=1)
    z, c, row, number = drawn(40, "float64")
    program = gates("float64")
    wide, spread = np.zeros((80, 3 * WIDTH)), np.zeros((40, 2 * WIDTH))
    wide[::2], spread[:, ::2] = z, c
    upside_down = z[::-1].copy()[::-1]
    for values in ([np.asfortranarray(z), c], [z, np.asfortranarray(c)], [wide[::2], c], [z, spread[:, ::2]],
                   [upside_down, c]):  # fmt: skip
        given = [*values, row, number]
        for _ in range(2):
            for found, wanted in zip(program(*given), expected_of(*given), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_more_shapes_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assume(monkeypatch, kernel_elements=1)
    monkeypatch.setattr(open_sizes, "_MOST_KEYS", 2)
    program = gates("float32")
    for rows in (5, 9, 7, 5, 300, 9):
        values = drawn(rows, "float32")
        for found, wanted in zip(program(*values), expected_of(*values), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
