"""Operations that read the same arrays of unknown sizes become one kernel: several results, and sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natives.comparing import check_against_numpy, kernel_types
from shared.examples import examples
from shared.symbols import symbols_of

import anabranch as ab
from anabranch.engine.codegen.elementwise import open_sizes
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


def _groups(graph: ab.Graph, fetches: list[Any], feeds: list[Any]) -> list[list[str]]:
    """The steps of each group."""
    operations = prepare(graph, fetches, feeds, rule=fusion_rule()).operations
    groups = [operation.op for operation in operations if isinstance(operation.op, Fused)]
    return [[step.type_name for step, _ in group.steps] for group in groups]


def _gated(width: Any = 32) -> tuple[Any, ...]:
    """The cotangents of rows times a gate each: graph, fetches and feeds, of as many rows as there are ids."""
    with ab.Graph().as_default() as graph:
        table, other = (ab.placeholder((None, width), "float32") for _ in range(2))
        gates, ids = ab.placeholder((None,), "float32"), ab.placeholder((None,), "int32")
        dy, x = ab.ops.take(table, ids, axis=0), ab.ops.take(other, ids, axis=0)
        gate = ab.ops.expand_dims(ab.ops.take(gates, ids, axis=0), -1)
        fetches = [dy * gate, ab.ops.sum(dy * x, axis=1, keepdims=True), ab.ops.sum(dy, axis=0)]
    return graph, fetches, [table, other, gates, ids]


def _values(count: int, width: int = 32, rows: int = 50) -> list[Any]:
    rng = np.random.default_rng(count)
    arrays = [rng.uniform(-1, 1, shape).astype("f") for shape in ((rows, width), (rows, width), (rows,))]
    return [*arrays, rng.integers(0, rows, count).astype("int32")]


def test_one_kernel() -> None:
    graph, fetches, feeds = _gated()
    assert _groups(graph, fetches, feeds) == [["multiply", "multiply", "sum", "sum"]]
    assert "fused" not in kernel_types(graph)
    for switch, groups in (("fuse", []), ("reductions", [["multiply", "multiply"]])):
        with without(switch):
            assert _groups(graph, fetches, feeds) == groups


@settings(max_examples=examples(10, 40), deadline=None, derandomize=True)
@given(
    count=st.sampled_from([0, 1, 2, 63, 700, 3000]),
    width=st.sampled_from([0, 1, 7, 32, 257]),
    is_open=st.booleans(),
)
def test_values(count: int, width: int, is_open: bool) -> None:
    graph, fetches, feeds = _gated(None if is_open else width)
    table, other, gates, ids = values = _values(count, width)
    found = check_against_numpy(graph, fetches, feeds, values, 1e-5)
    dy = table[ids]
    np.testing.assert_array_equal(found[0], dy * gates[ids][:, None])
    np.testing.assert_allclose(found[1], (dy * other[ids]).sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[2], dy.sum(axis=0), rtol=1e-4, atol=1e-3)


def test_many_shapes_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are bound again for each, and forgotten once there are too many."""
    monkeypatch.setattr(open_sizes, "_MOST_KEYS", 2)
    graph, fetches, feeds = _gated()
    program = Program(graph, fetches, feeds)
    for count in (700, 900, 1100, 1, 700, 900):
        table, _, gates, ids = values = _values(count)
        np.testing.assert_array_equal(program(*values)[0], table[ids] * gates[ids][:, None])


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
def test_other_dtypes(dtype: str) -> None:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None, 40), dtype)
        fetches = [x * x, ab.ops.sum(x * 2, axis=1), ab.ops.sum(x, axis=0)]
    values = np.random.default_rng(0).integers(-3, 4, (2000, 40)).astype(dtype)
    found = check_against_numpy(graph, fetches, [x], [values], 1e-3)
    np.testing.assert_array_equal(found[1], (values * 2).sum(axis=1))


def test_nan_and_infinities() -> None:
    graph, fetches, feeds = _gated()
    values = _values(700)
    values[0][3, 5], values[0][4, 6] = np.nan, np.inf
    found = Program(graph, fetches, feeds)(*values)
    expected = Program(graph, fetches, feeds, exact=True)(*values)
    for result, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.isfinite(result), np.isfinite(wanted))


def test_other_layouts() -> None:
    with ab.Graph().as_default() as graph:
        x, y = (ab.placeholder((None, 32), "float32") for _ in range(2))
        fetches = [x * 2, ab.ops.sum(x * y, axis=1)]
    rng = np.random.default_rng(0)
    values = [rng.uniform(-1, 1, (32, 2000)).astype("f").T, rng.uniform(-1, 1, (4000, 32)).astype("f")[::2]]
    check_against_numpy(graph, fetches, [x, y], values, 1e-5)


def test_rows_that_turn_out_to_be_one() -> None:
    with ab.Graph().as_default() as graph:
        x, y = (ab.placeholder((None, 32), "float32") for _ in range(2))
        product = x * y
        fetches = [product, ab.ops.exp(product), ab.ops.sum(product * x, axis=1)]
    one, many = np.full((1, 32), 0.5, "f"), np.random.default_rng(0).uniform(-1, 1, (2000, 32)).astype("f")
    for values in ([one, many], [many, one], [one, one], [many, many]):
        check_against_numpy(graph, fetches, [x, y], values, 1e-5)
    with pytest.raises(ValueError, match=r"Shapes \[2000,32\] and \[1999,32\] do not broadcast"):
        Program(graph, symbols_of(fetches), [x, y])(many, many[1:])


def test_no_operation_waits_for_itself() -> None:
    """An operation that takes a result of a group by way of something outside is no part of it."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None, 32), "float32")
        first = ab.ops.exp(x)
        order = ab.ops.argsort(first, axis=1)  # outside
        fetches = [first, x * ab.ops.cast(order, "float32"), x + 1]
    groups = _groups(graph, fetches, [x])
    assert groups == [["exp", "add"], ["cast", "multiply"]]
    check_against_numpy(graph, fetches, [x], [np.random.default_rng(0).uniform(-1, 1, (900, 32)).astype("f")], 1e-5)


def test_a_sum_by_itself() -> None:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None, 300), "float32")
        fetches = [ab.ops.sum(ab.ops.transpose(x), axis=1)]
    assert _groups(graph, fetches, [x]) == [["sum"]]
    check_against_numpy(graph, fetches, [x], [np.random.default_rng(0).uniform(-1, 1, (900, 300)).astype("f")], 1e-4)


def test_in_loops_and_gradients_of_second_order() -> None:
    with ab.Graph().as_default() as graph:
        x, ids = ab.placeholder((50, 32), "float32"), ab.placeholder((None,), "int32")

        def body(k: Any, y: Any) -> Any:
            rows = ab.ops.take(y, ids, axis=0)
            gate = ab.ops.expand_dims(ab.ops.take(ab.ops.tanh(y[:, 0]), ids, axis=0), -1)
            return k + 1, y + ab.ops.segment_sum(rows * gate, ids, 50) / 10

        _, last = ab.while_loop(lambda k, y: k < 3, body, (ab.ops.zeros((), "int32"), x))
        (gradient,) = ab.gradients(ab.ops.sum(last * last), [x])
        (second,) = ab.gradients(ab.ops.sum(ab.convert_to_tensor(gradient) ** 2), [x])
        fetches = [last, ab.convert_to_tensor(gradient), ab.convert_to_tensor(second)]
    rng = np.random.default_rng(0)
    values = [rng.uniform(-1, 1, (50, 32)).astype("f"), rng.integers(0, 50, 900).astype("int32")]
    check_against_numpy(graph, fetches, [x, ids], values, 1e-4)


def test_sizes_that_nothing_says_are_equal() -> None:
    """Sums of what is broadcast, and of what it was before: none is taken over the other's rows."""
    with ab.Graph().as_default() as graph:
        x, y = (ab.placeholder((None, 32), "float32") for _ in range(2))
        both = ab.ops.exp(x) + y
        fetches = [ab.ops.sum(ab.ops.exp(x), axis=0), ab.ops.sum(both, axis=0), ab.ops.sum(both * y, axis=1)]
    rng = np.random.default_rng(0)
    one, many = rng.uniform(-1, 1, (1, 32)).astype("f"), rng.uniform(-1, 1, (900, 32)).astype("f")
    for values in ([one, many], [many, one], [many, many], [one, one]):
        check_against_numpy(graph, fetches, [x, y], values, 1e-4)


def test_square_matrices_of_unknown_size() -> None:
    """One unknown size is that of two axes."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None, 16), "float32")
        products = ab.ops.einsum("ab,cb->ac", x, x)
        e = ab.ops.exp(products)
        fetches = [ab.ops.sum(e, axis=0), ab.ops.sum(e, axis=1), e + ab.ops.sum(x, axis=1), ab.ops.sum(e * e)]
    for rows in (1, 2, 300):
        value = np.random.default_rng(rows).uniform(-0.3, 0.3, (rows, 16)).astype("f")
        check_against_numpy(graph, fetches, [x], [value], 1e-4)


@pytest.mark.parametrize("width", [3, 4, 16, 40])
def test_a_reduction_that_is_used_along_its_axis(width: int) -> None:
    """A short axis is written out: rows of unknown number, and columns of unknown number."""
    with ab.Graph().as_default() as graph:
        x, y = ab.placeholder((None, width, 24), "float32"), ab.placeholder((width, None), "float32")
        fetches = [each / ab.ops.sum(each, axis=-2, keepdims=True) for each in (ab.ops.exp(x), ab.ops.exp(y))]
        fetches.append(ab.ops.softmax(ab.ops.transpose(y)))
    rng = np.random.default_rng(0)
    for count in (1, 5, 300):
        values = [rng.uniform(-1, 1, shape).astype("f") for shape in ((count, width, 24), (width, count))]
        check_against_numpy(graph, fetches, [x, y], values, 1e-5)


def test_a_size_that_no_operand_has() -> None:
    """It follows from a number; NumPy computes what no kernel can."""
    with ab.Graph().as_default() as graph:
        n = ab.placeholder((), "int32")
        filled = ab.ops.full((n, 40), 0.5)
        fetches = [ab.ops.sum(ab.ops.exp(filled) * filled, axis=1)]
    check_against_numpy(graph, fetches, [n], [np.int32(700)], 1e-5)


# --- rows that are parted -------------------------------------------------------------------------------------------


def _parted() -> tuple[Any, ...]:
    """Sums of rows that were parted and changed part by part, and the gradient: graph, fetches and feeds."""
    with ab.Graph().as_default() as graph:
        x, to = ab.placeholder((40, 64), "float32"), ab.placeholder((40,), "int32")
        places = ab.ops.dynamic_partition(ab.ops.arange(40), to, 3)
        parts = [ab.ops.tanh(ab.ops.take(x, own, axis=0)) * (k + 1) for k, own in enumerate(places)]
        total = ab.ops.segment_sum(ab.ops.concatenate(parts, axis=0), ab.ops.concatenate(places, axis=0) // 2, 20)
        (gradient,) = ab.gradients(ab.ops.sum(total * total), [x])
        fetches = [total, ab.convert_to_tensor(gradient)]
    return graph, fetches, [x, to]


def test_parts_are_added_up_without_joining_them() -> None:
    graph, fetches, feeds = _parted()
    types = [operation.type for operation in prepare(graph, fetches, feeds, rule=fusion_rule()).operations]
    assert "sum_of_parts" in types


@pytest.mark.parametrize("numbers", [[0, 1, 2], [2, 2, 2], [1, 0, 0]])
def test_values_of_parts(numbers: list[int]) -> None:
    graph, fetches, feeds = _parted()
    x = np.random.default_rng(0).uniform(-1, 1, (40, 64)).astype("f")
    to = np.resize(np.array(numbers, "int32"), 40)
    found = check_against_numpy(graph, fetches, feeds, [x, to], 1e-5)
    changed = np.tanh(x) * (to + 1)[:, None]
    np.testing.assert_allclose(found[0], changed[::2] + changed[1::2], rtol=1e-4, atol=1e-5)
