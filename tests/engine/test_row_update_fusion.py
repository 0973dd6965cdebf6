"""Rows that are taken, changed and written back in one pass: when that is done, and the values against NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.ops.arrays.gathering import Take
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.containers.indexed_slices import AssignRows, deduplicated
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.ops.internal.update_rows import UpdateRows
from anabranch.engine.ops.math.elementwise import Add, Multiply
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


def _table(rows: int = 10, width: int = 5, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((rows, width)).astype(dtype)


def _step(variable: Any, optimizer: Any, count: int) -> tuple[ab.Graph, Any, list[Any]]:
    """A step in which the gradients of rows are fed: graph, step and feeds."""
    with ab.Graph().as_default() as graph:
        ids = ab.placeholder((count,), "int32")
        values = ab.placeholder((count, *variable.shape[1:]), variable.dtype)
        slices = ab.IndexedSlices(values, ids, ab.ops.shape(variable))
        return graph, optimizer.apply([slices], [variable]), [ids, values]


def _types(graph: ab.Graph, targets: Sequence[Any], feeds: Sequence[Any]) -> list[str]:
    step = prepare(graph, targets, feeds, rule=fusion_rule())
    return [operation.type for operation in all_operations(step.operations)]


def _adagrad(table: Any, sums: Any, ids: Any, values: Any, rate: float, epsilon: float) -> None:
    """The definition, in place."""
    unique, places = np.unique(ids % len(table), return_inverse=True)
    gradient = np.zeros((len(unique), *table.shape[1:]), table.dtype)
    np.add.at(gradient, places, values)
    sums[unique] += gradient * gradient
    table[unique] -= gradient * rate / np.sqrt(sums[unique] + epsilon)


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, 5, 64])
def test_adagrad(dtype: str, width: int) -> None:
    start, ids = _table(10, width, dtype), np.array([1, -1, 1, 9, 0, 4], "int32")
    variable, optimizer = ab.Variable(start.copy()), ab.optimizers.Adagrad(0.5)
    graph, step, feeds = _step(variable, optimizer, len(ids))
    types = _types(graph, [step], feeds)
    assert types.count("update_rows") == 1
    assert types.count("take") == 1  # the positions
    assert "assign_rows" not in types
    program, expected, sums = Program(graph, [step], feeds), start.copy(), np.full_like(start, 0.1)
    memory = variable.stored_value()
    for seed in range(3):
        values = np.random.default_rng(seed).standard_normal((len(ids), width)).astype(dtype)
        program(ids, values)
        _adagrad(expected, sums, ids, values, 0.5, 1e-7)
    assert variable.stored_value() is memory
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5)


@settings(max_examples=examples(5, 20), deadline=None)
@given(st.data())
def test_any_rows(data: Any) -> None:
    """With the pass and without, all bits are the same: large tables in parts, no rows at all, every row."""
    rows, width = data.draw(st.sampled_from([1, 7, 300])), data.draw(st.sampled_from([1, 16, 33, 100]))
    ids = np.array(data.draw(st.lists(st.integers(-rows, rows - 1), max_size=40)), "int32")
    if data.draw(st.booleans()):
        ids = np.arange(rows, dtype="int32")
    values = np.random.default_rng(1).standard_normal((len(ids), width)).astype("float32")
    found: list[Any] = []
    for off in ((), ("horizontal_fusion",)):
        variable, optimizer = ab.Variable(_table(rows, width)), ab.optimizers.Adagrad(0.5)
        graph, step, feeds = _step(variable, optimizer, len(ids))
        with without(*off):
            Program(graph, [step], feeds)(ids, values)
        found.append(variable.numpy())
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


@needs_kernels
def test_other_optimizers() -> None:
    """Clipped rows are no plain sums, so that they are taken and written; one variable is enough."""
    start, ids = _table(), np.array([3, 3, 8], "int32")
    variable = ab.Variable(start.copy())
    graph, step, feeds = _step(variable, ab.optimizers.SGD(0.5, clipvalue=0.25), 3)
    assert _types(graph, [step], feeds).count("update_rows") == 1
    values = _table(3)
    Program(graph, [step], feeds)(ids, values)
    start[3] -= np.float32(0.5) * np.clip(values[0] + values[1], -0.25, 0.25)
    start[8] -= np.float32(0.5) * np.clip(values[2], -0.25, 0.25)
    np.testing.assert_allclose(variable.numpy(), start, rtol=1e-6)


@needs_kernels
def test_rows_that_are_wanted_besides() -> None:
    """The whole, as it is fetched after the update."""
    start, ids = _table(), np.array([1, 1, 2], "int32")
    variable, optimizer = ab.Variable(start.copy()), ab.optimizers.Adagrad(0.5)
    graph, step, feeds = _step(variable, optimizer, 3)
    with graph.as_default():
        after = variable + 0.0
    values = _table(3)
    sums, expected = np.full_like(start, 0.1), start.copy()
    _adagrad(expected, sums, ids, values, 0.5, 1e-7)
    (found,) = Program(graph, [after, step], feeds)(ids, values)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5)


@needs_kernels
def test_an_earlier_value_is_kept() -> None:
    """Rows are written into a copy where the value from before is fetched."""
    start, ids = _table(), np.array([1, 1, 2], "int32")
    variable, optimizer = ab.Variable(start.copy()), ab.optimizers.Adagrad(0.5)
    with ab.Graph().as_default() as graph:
        earlier = variable.value
        feeds = [ab.placeholder((3,), "int32"), ab.placeholder((3, 5), "float32")]
        step = optimizer.apply([ab.IndexedSlices(feeds[1], feeds[0], ab.ops.shape(variable))], [variable])
    (found,) = Program(graph, [earlier, step], feeds)(ids, _table(3))
    np.testing.assert_array_equal(found, start)
    assert (variable.numpy()[1:3] != start[1:3]).all()


@needs_kernels
def test_a_look_between_the_writes() -> None:
    """A variable that is read between the writes has its new value, and the other one still its old one."""
    tables = [ab.Variable(_table()), ab.Variable(_table())]
    start = [table.numpy() for table in tables]
    with ab.Graph().as_default() as graph:
        ids = ab.placeholder((3,), "int32")
        slices = [ab.IndexedSlices(ab.ops.ones((3, 5)), ids, (10, 5))]
        tables[0].scatter_add(slices[0])
        between = [table + 0.0 for table in tables]
        tables[1].scatter_add(slices[0])
    positions = np.array([0, 3, 3], "int32")
    first, second = Program(graph, [*between, *[o for o in graph.operations if o.writes]], [ids])(positions)
    expected = start[0].copy()
    np.add.at(expected, positions, 1)
    np.testing.assert_allclose(first, expected, rtol=1e-6)
    np.testing.assert_array_equal(second, start[1])


@needs_kernels
def test_rows_that_were_read_before_an_update_are_not_changed_in_one_pass() -> None:
    """The second of two writes computes with rows from before the first one, also where that is joined already."""
    start, positions = _table(10, 4), (np.array([1, 2, 3], "int32"), np.array([3, 4, 5], "int32"))
    variable, values = ab.Variable(start.copy()), np.ones((3, 4), "float32")
    with ab.Graph().as_default() as graph:
        ids, gradient = [ab.placeholder((3,), "int32") for _ in range(2)], ab.placeholder((3, 4), "float32")
        whole: Any = variable.value
        slices = [deduplicated(ab.IndexedSlices(gradient, each, ab.ops.shape(whole))) for each in ids]
        taken = [apply(Take(0), whole, each.indices) for each in slices]
        rows = [ab.ops.tanh(row) * each.values + row * row for row, each in zip(taken, slices, strict=True)]
        write = AssignRows(variable)
        written: list[Any] = [apply(write, whole, each.indices, row) for each, row in zip(slices, rows, strict=True)]
    writes = [each.operation for each in written]
    types = _types(graph, writes, [*ids, gradient])
    assert (types.count("update_rows"), types.count("assign_rows")) == (1, 1)
    Program(graph, writes, [*ids, gradient])(*positions, values)
    shared = start[positions[1]]
    np.testing.assert_allclose(variable.numpy()[positions[1]], np.tanh(shared) + shared * shared, rtol=1e-5)


@needs_kernels
def test_positions_out_of_bounds_change_nothing() -> None:
    """The check is before the first write."""
    variables = [ab.Variable(_table()), ab.Variable(_table())]
    before = [variable.numpy() for variable in variables]
    optimizer = ab.optimizers.Adagrad(0.5)
    graph, step, feeds = _step(variables[0], optimizer, 3)
    with pytest.raises(IndexError, match="index 10 is out of bounds"):
        Program(graph, [step], feeds)(np.array([0, 10, 2], "int32"), _table(3))
    np.testing.assert_array_equal(variables[0].numpy(), before[0])


@needs_kernels
def test_what_is_told() -> None:
    graph, step, feeds = _step(ab.Variable(_table(), name="table"), ab.optimizers.Adagrad(0.5), 3)
    with recording() as log:
        _types(graph, [step], feeds)
    (note,) = log.of("horizontal_fusion")[0]
    assert "table_accumulator', 'table' are changed in one pass: multiply, add, multiply, add, sqrt" in note.text
    with without("horizontal_fusion"):
        assert "update_rows" not in _types(graph, [step], feeds)


def test_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_usable", False)
    start, ids = _table(), np.array([1, 1, 2], "int32")
    variable = ab.Variable(start.copy())
    graph, step, feeds = _step(variable, ab.optimizers.Adagrad(0.5), 3)
    assert "update_rows" not in _types(graph, [step], feeds)
    Program(graph, [step], feeds)(ids, _table(3))
    _adagrad(start, np.full_like(start, 0.1), ids, _table(3), 0.5, 1e-7)
    np.testing.assert_allclose(variable.numpy(), start, rtol=1e-5)


def test_the_meaning() -> None:
    """The definition, which runs where the native code can't: rows, scalars and positions from behind."""
    first, second = ab.Variable(np.arange(6.0).reshape(3, 2)), ab.Variable(np.ones((3, 2)))
    change = Fused(4, ((Add(), (0, 2)), (Multiply(), (4, 3)), (Add(), (1, 4))), (5, 6))
    op, rows = UpdateRows([first, second], change), np.array([[10.0, 20.0], [30.0, 40.0]])
    kept = first.stored_value(), second.stored_value()
    found = op.run(np, *kept, np.array([2, 0]), rows, np.float64(2))
    np.testing.assert_array_equal(found[0], [[60, 82], [2, 3], [28, 50]])
    np.testing.assert_array_equal(found[1], [[31, 42], [1, 1], [15, 26]])
    np.testing.assert_array_equal(kept[1], np.ones((3, 2)))
    op.write_in_place(np.array([1]), rows[:1], np.float64(0))
    np.testing.assert_array_equal(first.numpy()[1], [0, 0])
    np.testing.assert_array_equal(second.numpy()[1], [13, 24])
    with pytest.raises(IndexError, match="index 3 is out of bounds"):
        op.write_in_place(np.array([3]), rows[:1], np.float64(0))
    with pytest.raises(NotImplementedError, match="made after gradients"):
        op.grad(None)  # type: ignore[arg-type]
