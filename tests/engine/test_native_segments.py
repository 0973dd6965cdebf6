"""Native code for sums of segments and for each row its segment's, against NumPy's road."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natives.comparing import check_against_numpy, kernel_types
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.gather import segments
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.arrays.segments import GatherSegments, SegmentSum
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.internal.sum_of_rows import SumOfParts
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


def _step(width: int, dtype: str, ids_dtype: str, joins: bool = True) -> tuple[Any, ...]:
    """Sums of the rows of two arrays, and of a third, and the rows of segments: graph, fetches and feeds."""
    with ab.Graph().as_default() as graph:
        first, second, table = (ab.placeholder((None, width), dtype) for _ in range(3))
        ids = ab.placeholder((None,), ids_dtype)
        joined = ab.ops.concatenate([first, second], axis=0)
        sums = ab.ops.segment_sum(joined, ids, 9)
        fetches = [sums, apply(GatherSegments(), table, ids), *([] if joins else [joined])]
    return graph, fetches, [first, second, table, ids]


def _values(sizes: tuple[int, int, int], width: int, dtype: str, ids_dtype: str) -> list[Any]:
    rng = np.random.default_rng(sum(sizes))
    arrays = [rng.uniform(-1, 1, (size, width)).astype(dtype) for size in sizes]
    arrays[2].flat[::17] = np.nan
    return [*arrays, rng.integers(-2, 11, sizes[0] + sizes[1]).astype(ids_dtype)]


@needs_kernels
@settings(max_examples=examples(10, 40), deadline=None, derandomize=True)
@given(
    sizes=st.tuples(st.sampled_from([0, 1, 40, 900]), st.sampled_from([0, 3, 700]), st.sampled_from([0, 1, 9])),
    width=st.sampled_from([64, 71, 130, 300]),
    dtype=st.sampled_from(["float32", "float64"]),
    ids_dtype=st.sampled_from(["int32", "int64"]),
    joins=st.booleans(),
)
def test_values(sizes: tuple[int, int, int], width: int, dtype: str, ids_dtype: str, joins: bool) -> None:
    """To the bit: rows are added in the order in which they come."""
    graph, fetches, feeds = _step(width, dtype, ids_dtype, joins)
    first, second, table, ids = values = _values(sizes, width, dtype, ids_dtype)
    sums, gathered = Program(graph, fetches, feeds)(*values)[:2]
    expected = np.zeros((9, width), dtype)
    for row, segment in zip(np.concatenate([first, second]), ids, strict=True):
        if 0 <= segment < 9:
            expected[segment] += row
    np.testing.assert_array_equal(sums, expected)
    check_against_numpy(graph, fetches[:1], feeds, values, 1e-5)
    wanted = GatherSegments().run(np, table, ids)
    assert gathered.dtype == wanted.dtype
    np.testing.assert_array_equal(gathered, wanted)


@needs_kernels
def test_what_is_joined_for_nothing_else() -> None:
    step = _step(64, "float32", "int32")
    assert "gather_segments" in kernel_types(step[0])
    for joins, others, is_expected in ((True, (), True), (False, (), False), (True, ("row_updates",), False)):
        with without(*others):
            operations = prepare(*_step(64, "float32", "int32", joins), rule=fusion_rule()).operations
        types = [operation.type for operation in operations]
        assert ("sum_of_parts" in types) is is_expected
        assert ("concatenate" in types) is not is_expected


def test_parts_along_another_axis_are_joined() -> None:
    with ab.Graph().as_default() as graph:
        first, second = (ab.placeholder((None, 64), "float32") for _ in range(2))
        ids = ab.placeholder((None,), "int32")
        fetches = [symbol_of(ab.ops.segment_sum(ab.ops.concatenate([first, second], axis=1), ids, 4))]
    operations = prepare(graph, fetches, [first, second, ids], rule=fusion_rule()).operations
    assert "concatenate" in [operation.type for operation in operations]
    rows = np.arange(128, dtype="f").reshape(2, 64)
    check_against_numpy(graph, fetches, [first, second, ids], [rows, rows, np.array([3, 3], "int32")], 1e-6)


def test_sum_of_parts_is_the_sum_of_what_is_joined() -> None:
    """The meaning, where no kernel can be compiled; and what it is of empty parts."""
    parts = [np.arange(12, dtype="f").reshape(n, 3) for n in (4,)] + [np.zeros((0, 3), "f"), np.ones((1, 3), "f")]
    ids, count = np.array([1, 0, 1, -1, 5], "int32"), np.int32(2)
    found = SumOfParts(2).run(np, ids, count, *parts)
    np.testing.assert_array_equal(found, SegmentSum(2).run(np, np.concatenate(parts), ids, count))
    np.testing.assert_array_equal(found, [[3, 4, 5], [6, 8, 10]])


@needs_kernels
def test_other_layouts_and_numbers_that_do_not_fit() -> None:
    graph, fetches, feeds = _step(64, "float32", "int32")
    first, second, table, ids = _values((40, 7, 9), 64, "float32", "int32")
    turned = np.asfortranarray(first)
    for result, expected in zip(
        Program(graph, fetches, feeds)(turned, second, np.asfortranarray(table), ids),
        Program(graph, fetches, feeds)(first, second, table, ids),
        strict=True,
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    with pytest.raises(ValueError, match="each row needs one id; got 47 rows and 46 ids"):
        Program(graph, fetches[:1], feeds)(first, second, table, ids[:-1])


@needs_kernels
def test_columns_that_are_left_over() -> None:
    """Widths that are no multiple of a vector, and a single segment of all rows."""
    for width in range(64, 97):
        rows = np.random.default_rng(width).uniform(-1, 1, (50, width)).astype("f")
        found = segments.added_rows([rows[:20], rows[20:]], np.full(50, 1, "int32"), (3, width))
        np.testing.assert_array_equal(found[[0, 2]], 0)
        total = np.zeros(width, "f")
        for row in rows:
            total += row
        np.testing.assert_array_equal(found[1], total)
