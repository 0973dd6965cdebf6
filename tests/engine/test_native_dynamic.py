"""Elementwise operations on arrays of unknown sizes: kernels bound at run time against NumPy's road."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natives.comparing import check_against_numpy, kernel_types
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.elementwise import open_sizes
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


def _step(width: int = 64, dtype: str = "float32") -> tuple[Any, ...]:
    """Rows times a row and a number, and which of them are positive: graph, fetches and feeds."""
    with ab.Graph().as_default() as graph:
        x, y = (ab.placeholder((None, width), dtype) for _ in range(2))
        row, number = ab.placeholder((width,), dtype), ab.placeholder((), dtype)
        fetches = [x * y, x + row, y * number, ab.ops.greater(x, y), ab.ops.maximum(x, y)]
    return graph, fetches, [x, y, row, number]


def _values(rows: int, width: int = 64, dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(rows)
    x, y, row = (rng.uniform(-1, 1, shape).astype(dtype) for shape in ((rows, width), (rows, width), (width,)))
    x.flat[::13] = np.nan
    return [x, y, row, np.dtype(dtype).type(3)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("rows", [0, 1, 300, 2000])
def test_values(dtype: str, rows: int) -> None:
    graph, fetches, feeds = _step(dtype=dtype)
    assert kernel_types(graph) >= {"add", "greater", "maximum", "multiply"}
    values = _values(rows) if dtype != "int32" else [np.nan_to_num(v * 10).astype("int32") for v in _values(rows)]
    check_against_numpy(graph, fetches, feeds, [np.asarray(v, dtype)[()] for v in values], 0)


def test_many_shapes_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are bound again for each, and forgotten once there are too many."""
    monkeypatch.setattr(open_sizes, "_MOST_KEYS", 2)
    graph, fetches, feeds = _step()
    program = Program(graph, fetches, feeds)
    for rows in (300, 400, 500, 300, 600, 400):
        x, y, row, number = _values(rows)
        found = program(x, y, row, number)
        for result, expected in zip(found, (x * y, x + row, y * number, x > y, np.maximum(x, y)), strict=True):
            np.testing.assert_array_equal(result, expected)


def test_rows_that_do_not_fit() -> None:
    with ab.Graph().as_default() as graph:
        x, y = (ab.placeholder((None, 64), "float32") for _ in range(2))
        z = x + y
    with pytest.raises(ValueError, match="do not broadcast"):
        Program(graph, [symbol_of(z)], [x, y])(np.zeros((300, 64), "float32"), np.zeros((299, 64), "float32"))


def test_other_layouts() -> None:
    graph, fetches, feeds = _step()
    values = _values(300)
    check_against_numpy(graph, fetches, feeds, [np.asfortranarray(values[0]), *values[1:]], 0)


# --- chains ---------------------------------------------------------------------------------------------------------


def _types(graph: ab.Graph, targets: list[Any], feeds: list[Any]) -> list[str]:
    """The types of the operations that are run, with the steps of those that are fused."""
    found: list[str] = []
    for operation in prepare(graph, targets, feeds, rule=fusion_rule()).operations:
        op = operation.op
        steps = op.steps if isinstance(op, Fused) else ((op, ()),)
        found.append("+".join(step.type_name for step, _ in steps))
    return found


def _chain(width: Any = 8) -> tuple[Any, ...]:
    """The update of rows by Adagrad: graph, the sums of squares and the rows, and feeds."""
    with ab.Graph().as_default() as graph:
        g, sums, rows = (ab.placeholder((None, width), "float32") for _ in range(3))
        rate = ab.placeholder((), "float32")
        squares = sums + g * g
        updated = rows - g * rate / ab.ops.sqrt(squares + 1e-3)
    return graph, [squares, updated], [g, sums, rows, rate]


def test_what_is_fused() -> None:
    graph, fetches, feeds = _chain()
    types = [name.split("+") for name in _types(graph, fetches, feeds) if name != "constant"]
    assert types == [["multiply", "add", "multiply", "add", "sqrt", "divide"], ["subtract"]]  # rows may be more than g
    with without("fuse"):
        assert "multiply" in _types(graph, fetches, feeds)
    exact = prepare(graph, fetches, feeds, rule=None, reassociate=False).operations
    assert not any(isinstance(operation.op, Fused) for operation in exact)


def test_what_is_taken_for_more_rows_is_computed_with_its_user() -> None:
    """Nothing else uses it, so that it does not matter when it is broadcast."""
    with ab.Graph().as_default() as graph:
        x, y = (ab.placeholder((None, 40), "float32") for _ in range(2))
        sides = ab.ops.exp(x), ab.ops.sin(y)
        fetches = [ab.ops.sqrt(ab.ops.abs(sides[0] - sides[1]))]
    assert _types(graph, fetches, [x, y]) == ["exp+sin+subtract+absolute+sqrt"]
    assert _types(graph, [*fetches, sides[0]], [x, y]) == ["exp", "sin+subtract+absolute+sqrt"]
    one, many = np.full((1, 40), 0.5, "f"), np.random.default_rng(0).uniform(-1, 1, (2000, 40)).astype("f")
    for values in ([one, many], [many, one], [many, many], [many[:0], many[:0]]):
        check_against_numpy(graph, [*fetches, sides[0]], [x, y], values, 1e-5)


def test_what_is_wanted_besides_is_a_result_of_its_own() -> None:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None, 4), "float32")
        twice = x * 2
        other = ab.ops.exp(twice) + ab.ops.reshape(twice, (-1,))[:1]
    types = _types(graph, [twice, other], [x])
    assert "multiply+exp" in types
    values = np.random.default_rng(0).uniform(-1, 1, (2000, 4)).astype("f")
    check_against_numpy(graph, [twice, other], [x], [values], 1e-5)


@settings(max_examples=examples(6, 25), deadline=None, derandomize=True)
@given(rows=st.sampled_from([0, 1, 2, 700, 3000]), width=st.sampled_from([0, 1, 8, 37]), is_open=st.booleans())
def test_values_of_chains(rows: int, width: int, is_open: bool) -> None:
    rng = np.random.default_rng(rows + width)
    graph, fetches, feeds = _chain(None if is_open else width)
    g, sums, table = (rng.uniform(0, 1, (rows, width)).astype("f") for _ in range(3))
    check_against_numpy(graph, fetches, feeds, [g, sums, table, np.float32(0.1)], 1e-6)


def test_rows_that_turn_out_to_be_one() -> None:
    """An axis of unknown length may be broadcast when it runs."""
    graph, fetches, feeds = _chain()
    rng = np.random.default_rng(0)
    one, many = rng.uniform(0, 1, (1, 8)).astype("f"), rng.uniform(0, 1, (5000, 8)).astype("f")
    for g, sums, rows in itertools.product((one, many), repeat=3):
        check_against_numpy(graph, fetches, feeds, [g, sums, rows, np.float32(0.1)], 1e-6)


def test_chains_over_rows_that_do_not_fit() -> None:
    graph, fetches, feeds = _chain()
    rows = [np.ones((count, 8), "f") for count in (3000, 3000, 2999)]
    with pytest.raises(ValueError, match="do not broadcast"):
        Program(graph, fetches, feeds)(*rows, np.float32(1))


def test_chains_in_loops_and_their_gradients() -> None:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None, 8), "float32")

        def body(k: Any, y: Any) -> Any:
            return k + 1, ab.ops.tanh(y * x + 0.5) * y

        _, last = ab.while_loop(lambda k, y: k < 3, body, (ab.ops.zeros((), "int32"), x))
        (gradient,) = ab.gradients(ab.ops.sum(last), [x])
        fetches = [last, ab.convert_to_tensor(gradient)]
    values = np.random.default_rng(0).uniform(-1, 1, (400, 8)).astype("f")
    check_against_numpy(graph, fetches, [x], [values], 1e-5)


def test_result_that_is_assigned() -> None:
    """A variable of unknown length gets the new value, not a buffer of an old one."""
    variable = ab.Variable(np.ones((3000, 8), "f"), shape=(None, 8))
    with ab.Graph().as_default() as graph:
        update = variable.assign(variable.value * 2 + 1)
    program = Program(graph, [update.operation], [])
    program()
    program()
    np.testing.assert_array_equal(variable.numpy(), np.full((3000, 8), 7, "f"))
