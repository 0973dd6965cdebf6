"""Native code that adds rows to an array in its own memory, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from natives.comparing import check_against_numpy, kernel_types

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph import Tensor
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.arrays.gathering import AddRows
from anabranch.engine.ops.base import apply
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def step(
    values: Callable[[Tensor], Tensor], base: tuple[int, ...], ids: tuple[int, ...], axis: int = 0
) -> tuple[Any, Any, list[Any]]:
    """Rows added to an array that the step computes: graph, fetches and feeds."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder(base)
        places = ab.placeholder(ids, "int32")
        computed = ab.ops.tanh(x)
        found = apply(AddRows(axis, True), computed, values(computed), places)
    return graph, [symbol_of(found)], [x, places]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("base", "ids"),
    [((1000, 256), (8, 128)), ((7, 37), (300,)), ((50, 3, 5), (4, 9)), ((20,), (100,)), ((9, 64), (0,))],
)
def test_rows_that_are_named_several_times_add_up(base: tuple[int, ...], ids: tuple[int, ...], dtype: str) -> None:
    with ab.Graph().as_default() as graph:
        x, rows = ab.placeholder(base, dtype), ab.placeholder((*ids, *base[1:]), dtype)
        places = ab.placeholder(ids, "int32")
        found = apply(AddRows(0, True), ab.ops.tanh(x), rows, places)
    assert "add_rows" in kernel_types(graph)
    feeds = [draw(*base, dtype=dtype), draw(*ids, *base[1:], dtype=dtype, seed=1)]
    feeds.append(np.random.default_rng(2).integers(-base[0], base[0], ids).astype("int32"))
    check_against_numpy(graph, [symbol_of(found)], [x, rows, places], feeds, 1e-5 if dtype == "float32" else 1e-12)
    program = Program(graph, [symbol_of(found)], [x, rows, places])
    assert "= update_add_rows" in program.source


@pytest.mark.parametrize(
    "values",
    [
        lambda x: x[:40],
        lambda x: x[::-1][:40],
        lambda x: ab.ops.transpose(ab.ops.transpose(x)[:, :40]),
        lambda x: ab.ops.tanh(x)[:40],
    ],
    ids=["rows of the base", "backwards", "turned", "computed"],
)
def test_values_that_are_part_of_the_base(values: Callable[[Tensor], Tensor]) -> None:
    graph, fetches, feeds = step(values, (60, 60), (40,))
    check_against_numpy(graph, fetches, feeds, [draw(60, 60), np.arange(40, dtype="int32")[::-1] + 20], 1e-5)


def test_columns() -> None:
    graph, fetches, feeds = step(lambda x: x[:, :30], (60, 60), (30,), axis=1)
    check_against_numpy(graph, fetches, feeds, [draw(60, 60), np.arange(30, dtype="int32") // 2], 1e-5)


def test_a_position_out_of_bounds_changes_nothing() -> None:
    graph, fetches, feeds = step(lambda x: ab.ops.exp(x)[:40], (60, 60), (40,))
    x = draw(60, 60)
    before = x.copy()
    with pytest.raises(IndexError, match="index 60 is out of bounds for axis 0 with size 60"):
        Program(graph, fetches, feeds)(x, np.arange(21, 61, dtype="int32"))
    np.testing.assert_array_equal(x, before)


def test_the_sum_has_the_same_bits_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, fetches, feeds = step(lambda x: ab.ops.exp(x), (600, 64), (600,))
    values = [draw(600, 64), np.random.default_rng(1).integers(0, 5, 600).astype("int32")]
    found: list[Any] = []
    for threads in ("1", "3"):
        monkeypatch.setenv("ANABRANCH_NUM_THREADS", threads)
        found += Program(graph, fetches, feeds)(*values)
    np.testing.assert_array_equal(found[0], found[1])


def test_the_gradient_of_a_tied_table_is_added_in_place() -> None:
    with ab.Graph().as_default() as graph:
        ids, table = ab.placeholder((8, 30), "int32"), ab.placeholder((100, 64))
        scores = ab.ops.take(table, ids, axis=0) @ ab.ops.transpose(table)
        (found,) = ab.gradients(ab.ops.sum(ab.ops.tanh(scores)), [table])
    feeds = [np.random.default_rng(0).integers(0, 100, (8, 30)).astype("int32"), draw(100, 64)]
    fetches = [symbol_of(ab.ops.convert_to_tensor(found))]
    check_against_numpy(graph, fetches, [ids, table], feeds, 1e-4)
    assert "= update_add_rows" in Program(graph, fetches, [ids, table]).source
