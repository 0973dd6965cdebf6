"""Updates of rows that add terms one by one: when they are made, and their values against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natives.comparing import check_against_numpy
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.gather import row_sums
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.containers.indexed_slices import AddToRows, deduplicated
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.passes.fusion.fuse import FusionRule
from anabranch.engine.runtime.program import Program

needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


class _NothingFused(FusionRule):
    def can_fuse(self, op: Any, inputs: Any, output: Any) -> bool:
        return False


def _step_types(graph: ab.Graph, target: Any, feeds: Any = ()) -> list[str]:
    """The types of the operations that are run."""
    return [operation.type for operation in prepare(graph, [target], feeds, rule=_NothingFused()).operations]


def _gradient_descent(variable: Any, pooled: bool, optimizer: Any) -> tuple[ab.Graph, Any, list[Any]]:
    """A step over a table whose rows are used by themselves, or added up by threes: graph, step and feeds."""
    with ab.Graph().as_default() as graph:
        ids, target = ab.placeholder((4, 3), "int32"), ab.placeholder((4, variable.shape[1]), "float32")
        rows = ab.ops.take(variable, ids, axis=0)
        chosen = ab.ops.sum(rows, axis=1) if pooled else rows[:, 0] + rows[:, 1] * rows[:, 2]
        step = optimizer.minimize(ab.ops.sum(chosen * target), [variable])
    return graph, step, [ids, target]


@pytest.mark.parametrize("pooled", [True, False])
def test_gradient_descent(pooled: bool) -> None:
    start = np.arange(50, dtype="float32").reshape(10, 5) / 10
    ids = np.array([[1, 1, 1], [-1, 0, 1], [2, 2, 9], [3, 4, 5]], "int32")
    target = np.linspace(-1, 1, 20, dtype="float32").reshape(4, 5)
    found: list[Any] = []
    for exact in (False, True):
        variable = ab.Variable(start.copy())
        graph, step, feeds = _gradient_descent(variable, pooled, ab.optim.SGD(0.5))
        Program(graph, [step], feeds, exact=exact)(ids, target)
        found.append(variable.numpy())
    np.testing.assert_allclose(*found, rtol=1e-6, atol=1e-6)
    if pooled:
        expected = start.copy()
        np.subtract.at(expected, ids.reshape(-1), 0.5 * np.repeat(target, 3, axis=0))
        np.testing.assert_allclose(found[0], expected, rtol=1e-6)


def test_what_sorts_nothing() -> None:
    graph, step, feeds = _gradient_descent(ab.Variable(np.ones((10, 5), "f")), True, ab.optim.SGD(0.5))
    types = _step_types(graph, step, feeds)
    assert "add_to_rows" in types
    assert not {"unique_positions", "segment_sum", "assign_rows", "broadcast_reduced"} & set(types)


def test_what_is_no_sum() -> None:
    """The squares of sums; clipped sums; values of integers, of which none is rounded."""
    table = ab.Variable(np.ones((10, 5), "f"))
    for optimizer in (ab.optim.Adagrad(0.5), ab.optim.SGD(0.5, clipvalue=0.1)):
        graph, step, feeds = _gradient_descent(table, True, optimizer)
        assert "add_to_rows" not in _step_types(graph, step, feeds)
    numbers = ab.Variable(np.ones((10, 5), "int32"))
    with ab.Graph().as_default() as graph:
        update = numbers.scatter_add(ab.IndexedSlices(ab.ops.ones((3, 5), "int32"), [1, 1, 2], (10, 5)))
    assert "add_to_rows" not in _step_types(graph, update)


def test_switched_off() -> None:
    graph, step, feeds = _gradient_descent(ab.Variable(np.ones((10, 5), "f")), True, ab.optim.SGD(0.5))
    with without("row_updates"):
        assert "add_to_rows" not in _step_types(graph, step, feeds)
    exact = prepare(graph, [step], feeds, rule=_NothingFused(), reassociate=False).operations
    assert "add_to_rows" not in [operation.type for operation in exact]


@settings(max_examples=examples(6, 25), deadline=None, derandomize=True)
@given(
    count=st.sampled_from([0, 1, 3, 600]),
    width=st.sampled_from([0, 1, 16, 37, 64]),
    dtype=st.sampled_from(["float32", "float64"]),
    how=st.sampled_from(["add", "sub"]),
)
def test_adding_and_subtracting(count: int, width: int, dtype: str, how: str) -> None:
    rng = np.random.default_rng(count + width)
    start, rows = rng.uniform(-1, 1, (40, width)).astype(dtype), rng.uniform(-1, 1, (count, width)).astype(dtype)
    positions = rng.integers(-40, 40, count)
    variable = ab.Variable(start.copy())
    with ab.Graph().as_default() as graph:
        places, fed = ab.placeholder((None,), "int64"), ab.placeholder((None, width), dtype)
        update = getattr(variable, f"scatter_{how}")(ab.IndexedSlices(fed, places, start.shape))
    assert not library.usable or "add_to_rows" in _step_types(graph, update, [places, fed])
    (after,) = Program(graph, [update], [places, fed])(positions, rows)
    expected = start.copy()
    np.add.at(expected, positions, rows if how == "add" else -rows)
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(variable.numpy(), after)


@settings(max_examples=examples(6, 25), deadline=None, derandomize=True)
@given(
    count=st.sampled_from([0, 1, 3, 600]),
    width=st.sampled_from([0, 1, 16, 37, 64]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_rows_of_a_dense_gradient_are_not_sorted(count: int, width: int, dtype: str) -> None:
    """As of a table of embeddings, for an optimizer that changes all rows."""
    rng = np.random.default_rng(count + width)
    positions, rows = rng.integers(-40, 40, count), rng.uniform(-1, 1, (count, width)).astype(dtype)
    with ab.Graph().as_default() as graph:
        places, fed = ab.placeholder((None,), "int64"), ab.placeholder((None, width), dtype)
        whole = deduplicated(ab.IndexedSlices(fed, places, (40, width))).to_dense()
    assert not library.usable or "unique_positions" not in _step_types(graph, whole, [places, fed])
    program = Program(graph, [whole], [places, fed])
    expected = np.zeros((40, width), dtype)
    np.add.at(expected, positions, rows)
    np.testing.assert_allclose(program(positions, rows)[0], expected, rtol=0, atol=1e-5)
    with pytest.raises(IndexError, match="40"):
        program(np.array([40, 1]), np.ones((2, width), dtype))


def test_where_the_earlier_value_is_wanted() -> None:
    """The update writes to a copy then."""
    variable = ab.Variable(np.zeros((4, 2), "f"))
    with ab.Graph().as_default() as graph:
        before = variable.value
        update = variable.scatter_add(ab.IndexedSlices(ab.ops.ones((3, 2)), [1, 1, -1], (4, 2)))
        with ab.control_dependencies([update]):
            doubled = before * 2
    found, after = Program(graph, [doubled, update], [])()
    np.testing.assert_array_equal(found, np.zeros((4, 2)))
    np.testing.assert_array_equal(after[:, 0], [0, 2, 0, 1])


def test_rows_of_the_variable_itself() -> None:
    variable = ab.Variable(np.arange(8, dtype="f").reshape(4, 2))
    with ab.Graph().as_default() as graph:
        update = variable.scatter_add(ab.IndexedSlices(variable.value, [1, 2, 3, 0], (4, 2)))
    (after,) = Program(graph, [update], [])()
    np.testing.assert_array_equal(after, [[6, 8], [2, 4], [6, 8], [10, 12]])


def test_rows_of_another_table() -> None:
    """Sums of the rows that another table has at the same positions add nothing to the rows that are written."""
    start, other = np.arange(12, dtype="f").reshape(4, 3), np.linspace(1, 2, 12, dtype="f").reshape(4, 3)
    for swapped in (False, True):
        table, source = ab.Variable(start.copy()), ab.Variable(other)
        with ab.Graph().as_default() as graph:
            places = ab.placeholder((3,), "int64")
            once = deduplicated(ab.IndexedSlices(ab.ops.ones((3, 3)), places, (4, 3)))
            taken = ab.ops.take(source, once.indices, axis=0)
            rows = once.values + taken if swapped else taken + once.values
            update = table.scatter_update(ab.IndexedSlices(rows, once.indices, (4, 3)))
        assert "add_to_rows" not in _step_types(graph, update, [places])
        expected = start.copy()
        expected[[1, 3]] = other[[1, 3]] + [[2], [1]]
        np.testing.assert_allclose(ab.Session(graph).run(update, {places: [1, 3, 1]}), expected, rtol=1e-6)


def test_positions_out_of_bounds() -> None:
    """The variable stays as it was, whether the slices' own shape is too large or the position is."""
    for rows in (4, 9):
        variable = ab.Variable(np.zeros((4, 2), "f"))
        with ab.Graph().as_default() as graph:
            places = ab.placeholder((None,), "int32")
            update = variable.scatter_add(ab.IndexedSlices(ab.ops.ones((2, 2)), places, (rows, 2)))
        with pytest.raises(IndexError, match="index 4 is out of bounds"):
            Program(graph, [update], [places])(np.array([0, 4], "int32"))
        np.testing.assert_array_equal(variable.numpy(), np.zeros((4, 2)))


def test_rows_and_positions_that_do_not_fit() -> None:
    variable = ab.Variable(np.zeros((4, 2), "f"))
    with ab.Graph().as_default() as graph:
        places, rows = ab.placeholder((None,), "int32"), ab.placeholder((None, 2), "float32")
        update = variable.scatter_add(ab.IndexedSlices(rows, places, (4, 2)))
    expected = r"its rows must be given as \[2,2\].*got \[3,2\]|got 3 rows and 2 ids"
    with pytest.raises(ValueError, match=expected):
        Program(graph, [update], [places, rows])(np.array([0, 1], "int32"), np.ones((3, 2), "f"))


def test_in_a_loop() -> None:
    """Each iteration adds to what the last one left."""
    found: list[Any] = []
    for exact in (False, True):
        variable = ab.Variable(np.zeros((4, 2), "f"))

        def body(k: Any, variable: ab.Variable = variable) -> Any:
            rows = ab.ops.cast(ab.ops.stack([k, k + 1]), "float32")[:, None] * ab.ops.ones((2, 2))
            variable.scatter_sub(ab.IndexedSlices(rows, ab.ops.stack([k % 4, k % 2]), (4, 2)))
            return k + 1

        with ab.Graph().as_default() as graph:
            last = ab.while_loop(lambda k: k < 9, body, ab.ops.zeros((), "int32"))
        Program(graph, [last], [], exact=exact)()
        found.append(variable.numpy())
    np.testing.assert_array_equal(*found)
    assert found[0].any()


@needs_kernels
@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_rows_in_parts(dtype: str, repeats: int) -> None:
    """Parts that share the work add to the rows of a table as NumPy does."""
    rng = np.random.default_rng(0)
    start, rows = rng.uniform(-1, 1, (300, 24)).astype(dtype), rng.uniform(-1, 1, (2000, 24)).astype(dtype)
    ids = np.minimum(*rng.integers(0, 300, (2, 2000 * repeats)))
    variable = ab.Variable(start.copy())
    with ab.Graph().as_default():
        given_ids, given_rows = ab.convert_to_tensor(ids), ab.convert_to_tensor(rows)
        scale = ab.convert_to_tensor(0.5, dtype)
        operation = symbol_of(
            apply(AddToRows(variable, -1, repeats), variable.value, given_ids, given_rows, scale)
        ).operation
    run = row_sums.add_runner(operation)
    assert run is not None
    found = run(ids, rows, start.dtype.type(0.5))
    assert found is variable.stored_value()
    expected = start.copy()
    np.subtract.at(expected, ids, np.repeat(rows, repeats, axis=0) * start.dtype.type(0.5))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 if dtype == "float32" else 1e-13)


@needs_kernels
@settings(max_examples=examples(6, 25), deadline=None, derandomize=True)
@given(
    count=st.sampled_from([0, 1, 7, 300]),
    terms=st.sampled_from([0, 1, 5]),
    width=st.sampled_from([0, 1, 16, 37]),
    dtype=st.sampled_from(["float32", "float64"]),
    ids_dtype=st.sampled_from(["int32", "int64"]),
)
def test_sums_of_rows(count: int, terms: int, width: int, dtype: str, ids_dtype: str) -> None:
    rng = np.random.default_rng(count + terms)
    table, ids = rng.uniform(-1, 1, (40, width)).astype(dtype), rng.integers(-40, 40, (count, terms)).astype(ids_dtype)
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((None, width), dtype), ab.placeholder((None, terms), ids_dtype)]
        total = ab.ops.sum(ab.ops.take(feeds[0], feeds[1], axis=0), axis=1)
    assert "sum_of_rows" in _step_types(graph, total, feeds)
    check_against_numpy(graph, [total], feeds, [table, ids], 1e-5)


def test_sums_of_rows_that_are_used_besides() -> None:
    with ab.Graph().as_default() as graph:
        table, ids = ab.placeholder((9, 4), "float32"), ab.placeholder((3, 2), "int32")
        rows = ab.ops.take(table, ids, axis=0)
        total, other_axis = ab.ops.sum(rows, axis=1), ab.ops.sum(ab.ops.take(table, ids + 1, axis=0), axis=2)
    for targets in ([total, rows], [total, rows * 2], [other_axis]):
        types = [
            o.type
            for o in prepare(
                graph, [symbol_of(target) for target in targets], [table, ids], rule=_NothingFused()
            ).operations
        ]
        assert "sum_of_rows" not in types


def test_sums_of_rows_out_of_bounds() -> None:
    with ab.Graph().as_default() as graph:
        table, ids = ab.placeholder((None, 4), "float32"), ab.placeholder((None, 2), "int32")
        total = ab.ops.sum(ab.ops.take(table, ids, axis=0), axis=1)
    for size, expected in ((0, "empty"), (9, "index 9 is out of bounds for axis 0 with size 9")):
        with pytest.raises(IndexError, match=expected):
            Program(graph, [symbol_of(total)], [table, ids])(
                np.zeros((size, 4), "f"), np.array([[0, 1], [9, 2]], "int32")
            )


def test_sums_of_rows_in_other_layouts() -> None:
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((None, 4), "float32"), ab.placeholder((None, 2), "int32")]
        total = ab.ops.sum(ab.ops.take(*feeds, axis=0), axis=1)
    table, ids = np.arange(36, dtype="f").reshape(4, 9).T, np.array([[0, 3], [-1, 8]], "int32").T
    check_against_numpy(graph, [total], feeds, [table, ids], 1e-6)


@needs_kernels
@settings(max_examples=examples(6, 25), deadline=None, derandomize=True)
@given(
    count=st.sampled_from([1, 7, 300]),
    repeats=st.sampled_from([2, 5]),
    width=st.sampled_from([1, 16, 37]),
    dtype=st.sampled_from(["float32", "float64"]),
    ids_dtype=st.sampled_from(["int32", "int64"]),
)
def test_sums_of_repeated_rows(count: int, repeats: int, width: int, dtype: str, ids_dtype: str) -> None:
    """As in the gradient of a sum of rows; ids outside of the segments are left out."""
    rng = np.random.default_rng(count + repeats)
    rows, factor = rng.uniform(-1, 1, (count, width)).astype(dtype), np.ones((count, repeats, width), dtype)
    with ab.Graph().as_default() as graph:
        dy, x = ab.placeholder((count, width), dtype), ab.placeholder((count, repeats, width), dtype)
        ids = ab.placeholder((count * repeats,), ids_dtype)
        (gradient,) = ab.gradients(ab.ops.sum(ab.ops.sum(x, axis=1) * dy), [x])
        repeated = ab.ops.reshape(ab.convert_to_tensor(gradient), (count * repeats, width))
        total = ab.ops.segment_sum(repeated, ids, 9)
    feeds = [dy, x, ids]
    assert "sum_of_repeated" in _step_types(graph, total, feeds)
    for low, high in ((0, 9), (-2, 12)):
        values = [rows, factor, rng.integers(low, high, count * repeats).astype(ids_dtype)]
        check_against_numpy(graph, [total], feeds, values, 1e-5)


# --- rows of a stack ------------------------------------------------------------------------------------------------


def _put(places: list[int], rows: int, size: int) -> tuple[ab.Graph, ab.Tensor, list[Any]]:
    """The gradient of a table of which single rows were taken: graph, gradient and feeds."""
    with ab.Graph().as_default() as graph:
        table = ab.placeholder((size, 3, 2), "float32")
        factors = [ab.placeholder((3, 2), "float32") for _ in range(rows)]
        total = ab.ops.sum(sum(table[place] * factor for place, factor in zip(places, factors, strict=True)))
        (gradient,) = ab.gradients(total, [table])
    return graph, ab.convert_to_tensor(gradient), [table, *factors]


@pytest.mark.parametrize(
    ("places", "size", "is_joined"),
    [
        ([2, 0, 1], 3, True),
        ([0, -1, 1], 3, True),
        ([0, 0, 1], 3, False),  # one twice, one never
        ([0, 1, 2], 4, False),
    ],
)
def test_single_rows_of_a_whole(places: list[int], size: int, is_joined: bool) -> None:
    graph, gradient, feeds = _put(places, len(places), size)
    types = _step_types(graph, gradient, feeds)
    assert ("put_rows" in types) != is_joined
    factors = [np.full((3, 2), number + 1, "f") for number in range(len(places))]
    expected = np.zeros((size, 3, 2), "f")
    for place, factor in zip(places, factors, strict=True):
        expected[place] += factor
    for exact in (False, True):
        (found,) = Program(graph, [symbol_of(gradient)], feeds, exact=exact)(np.zeros((size, 3, 2), "f"), *factors)
        np.testing.assert_array_equal(found, expected)


@needs_kernels
@pytest.mark.parametrize(("count", "is_fused"), [(8, True), (9, False)])
def test_an_update_by_joined_rows(count: int, is_fused: bool) -> None:
    """The kernel that updates a stack of few matrices reads the gradient of each in place."""
    variable = ab.Variable(np.ones((count, 4, 3), "f"))
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((1, 4, 3), "float32") for _ in range(count)]
        update = variable.assign_sub(0.5 * ab.ops.concatenate(feeds, axis=0))
    program = Program(graph, [update.operation], feeds)
    assert ("np.concatenate" in program.source) != is_fused
    values = [np.full((1, 4, 3), number, "f") for number in range(count)]
    program(*values)
    np.testing.assert_array_equal(variable.numpy(), 1 - 0.5 * np.concatenate(values))
