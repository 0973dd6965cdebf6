"""Printed programs: their text, the lifetimes of values, names, depth, and their errors."""

from __future__ import annotations

import re
import sys
import textwrap
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.graph import Graph, Symbol, Tensor, TensorSpec
from anabranch.engine.graph.op import Op
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import apply
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay")

ops = ab.ops


@pytest.fixture(autouse=True)
def no_native_regions() -> Iterator[None]:
    """Print Python only: loops as machine code have tests of their own."""
    with without("native"):
        yield


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


@pytest.fixture
def x() -> Symbol:
    return ab.placeholder((), "float32", "x")


def line() -> int:
    """The caller's line."""
    return sys._getframe(1).f_lineno


# --- text -----------------------------------------------------------------------------------------------------------


def explain(*arguments: Any) -> str:
    """The program alone, without the lines of this file."""
    return ab.explain(*arguments, lines=False)


def assert_text(actual: str, expected: str) -> None:
    assert actual.strip() == textwrap.dedent(expected).strip()


def test_straight_line(x: Symbol):
    y = ops.sin(x * 2)
    assert_text(
        explain([y, x + 1]),
        """
        def step(x):
            multiply = x * c
            sin = np.sin(multiply)
            add = x + c_2
            return (sin, add)
        """,
    )


def test_loop(x: Symbol):
    weight = ab.Variable(2.0, name="weight")
    _, y = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * weight), (0, x))
    assert_text(
        explain(y),
        """
        def step(x):
            read = weight._value
            i, a = c, x
            while i < c_2:
                if requests: check_stop()
                add = i + c_3
                multiply = a * read
                i, a = add, multiply
            return (copied(a),)
        """,
    )


def test_loop_with_a_condition_of_several_operations():
    x = ab.placeholder((3,), "float32", "x")
    _, y = ab.while_loop(lambda i, a: ops.all(ops.i0(a) < 0.5), lambda i, a: (i + 1, ops.arcsinh(a)), (0, x))
    assert_text(
        explain(y),
        """
        def step(x):
            a = x
            trips = 0
            while True:
                if requests: check_stop()
                bessel_i = run_bessel_i(a)
                less = bessel_i < c
                del bessel_i
                all_true = np.logical_and.reduce(less, axis=(0,), keepdims=False)
                del less
                if not all_true: break
                arcsinh = np.arcsinh(a)
                a = arcsinh
                trips += 1
            return (copied(a),)
        """,
    )


def test_branch(x: Symbol):
    y = ab.cond(x > 0, lambda: x * 2, lambda: -x)
    assert_text(
        explain(y),
        """
        def step(x):
            greater = x > c
            if greater:
                multiply = x * c_2
                cond = multiply
            else:
                negative = -x
                cond = negative
            return (copied(cond),)
        """,
    )


def test_switch(x: Symbol):
    which = ab.placeholder((), "int32", "which")
    y = ab.switch(which, [lambda: x * 2, lambda: ops.sin(x), lambda: x])
    assert_text(
        explain(y, [which, x]),
        """
        def step(which, x):
            if which <= 0:
                multiply = x * c
                cond = multiply
            elif which == 1:
                sin = np.sin(x)
                cond = sin
            else:
                cond = x
            return (copied(cond),)
        """,
    )


def test_gradient_of_a_loop(x: Symbol):
    """Only what the backward loop asks for is saved."""
    _, y = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, ops.sin(a)), (0, x))
    assert_text(
        explain(ab.gradients(y, [x])),
        """
        def step(x):
            i, a = c, x
            saved_a = []
            trips = 0
            while i < c_2:
                if requests: check_stop()
                add = i + c_3
                sin = np.sin(a)
                saved_a.append(a)
                i, a = add, sin
                trips += 1
            stats.note_saved(saved_a)
            trip_count = np.int32(trips)
            subtract = trip_count - c_5
            history = array_of(saved_a)
            del saved_a
            iteration, gradient_of_a = subtract, c_4
            while iteration >= c_6:
                if requests: check_stop()
                saved = history.take(iteration)
                cos = np.cos(saved)
                multiply = gradient_of_a * cos
                subtract_2 = iteration - c_7
                iteration, gradient_of_a = subtract_2, multiply
            del history
            return (copied(gradient_of_a),)
        """,
    )


def test_gradient_of_a_branch(x: Symbol):
    y = ab.cond(x > 0, lambda: ops.sin(x) * x, lambda: -x)
    assert_text(
        explain(ab.gradients(y, [x])),
        """
        def step(x):
            greater = x > c
            if greater:
                cos = np.cos(x)
                multiply_2 = x * cos
                sin = np.sin(x)
                add = sin + multiply_2
                cond = add
            else:
                cond = c_2
            return (copied(cond),)
        """,
    )


def test_kernels_and_variables():
    x = ab.placeholder((2, 3), "float32", "x")
    weight = ab.Variable(np.ones((2, 3), "float32"), name="weight")
    y = ops.i0(ops.relu(x * 2 + 1))
    write = weight.assign_sub(y * 0.5)
    assert_text(
        explain([y, write.operation]),
        """
        def step(x):
            relu = empty_float32_2_3()
            if kernel(x, c, c_2, relu): refit((x, c, c_2,), (relu,))  # multiply, add, relu
            bessel_i = run_bessel_i(relu)
            del relu
            read = weight._value
            subtract = weight._value
            if kernel_2(bessel_i, c_3, read, subtract): refit_2((bessel_i, c_3, read,), (subtract,))  # multiply, subtract
            del read
            assign = subtract
            del subtract, assign
            return (bessel_i,)
        """,  # noqa: E501
    )


def test_a_placeholder_that_is_not_fed(x: Symbol):
    y = ab.placeholder((), "float32", "y")
    with pytest.raises(ValueError, match="Placeholder 'y' must be fed") as caught:
        ab.Session().run(x + y, {x: 1})
    assert f"In operation 'y' (placeholder); inputs: none; defined at {__file__}:" in caught.value.__notes__[0]


# --- names ----------------------------------------------------------------------------------------------------------

NAMES = ["np", "id", "step", "stats", "copied", "kernel", "class", "None", "print", "2x", "a b", "", "a", "a_2", "x²"]
NAMES += ["ﬁ", "fi", "ü", "名", "-", "c", "del", "refit", "sizes", "_", "float32"]


def test_names_of_all_kinds():
    """Names that mean something in Python or in printed programs, are no identifiers, or become the same one."""
    inputs = [ab.placeholder((2,), "float32", name) for name in NAMES]
    total = ops.sin(inputs[0])
    for position, tensor in enumerate(inputs):
        total = total + ops.relu(tensor * (position + 1) - 1)
    _, y = ab.while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, a + inputs[3] * inputs[4]), (0, total))
    feeds = {tensor: np.full(2, position + 1, "float32") for position, tensor in enumerate(inputs)}
    expected = Interpreter().run(y.graph, [y, *inputs], feeds)
    for value, other in zip(ab.Session().run([y, *inputs], feeds), expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6)


# --- lifetimes ------------------------------------------------------------------------------------------------------

SIZE = 2**16  # elements, of 4 bytes


def peak_of(program: Program, *fed: Any) -> float:
    """The most memory that a run holds, in arrays of SIZE elements."""
    program(*fed)
    tracemalloc.start()
    try:
        program(*fed)
        return tracemalloc.get_traced_memory()[1] / (4 * SIZE)
    finally:
        tracemalloc.stop()


def chain(x: Any) -> Tensor:
    """Operations that are not fused."""
    for _ in range(20):
        x = ops.sin(ops.cos(x))
    return x


def test_values_are_freed_after_their_last_use():
    x = ab.placeholder((SIZE,), "float32", "x")
    fed = np.ones(SIZE, "float32")
    assert peak_of(Program(x.graph, [symbol_of(chain(x))], [x]), fed) < 2.2
    kept = [symbol_of(chain(x)), symbol_of(ops.tan(x))]
    assert peak_of(Program(x.graph, kept, [x]), fed) < 3.2


def test_values_inside_loops_and_branches_are_freed():
    x = ab.placeholder((SIZE,), "float32", "x")
    _, y = ab.while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, chain(a)), (0, x))
    z = ab.cond(x[0] > 0, lambda: chain(x), lambda: x)
    fed = np.ones(SIZE, "float32")
    assert peak_of(Program(x.graph, [y], [x]), fed) < 4.2
    assert peak_of(Program(x.graph, [z], [x]), fed) < 3.2


def test_results_that_nothing_uses_are_freed():
    x = ab.placeholder((6,), "float32", "x")
    first, _ = ops.split(ops.i0(x), 2)
    assert_text(
        explain(ops.tanh(first)),
        """
        def step(x):
            bessel_i = run_bessel_i(x)
            split, split_2 = (bessel_i[0:3], bessel_i[3:6])
            del bessel_i, split_2
            tanh = np.tanh(split)
            del split
            return (tanh,)
        """,
    )


# --- depth ----------------------------------------------------------------------------------------------------------


def nested(depth: int, inner: Callable[[Tensor], Tensor], x: Tensor, loops: bool) -> Tensor:
    """`inner` inside so many loops of one iteration, or branches."""
    if depth == 0:
        return inner(x)
    if not loops:
        return ab.cond(x > -100, lambda: nested(depth - 1, inner, x, loops) * 1.5, lambda: x)
    body = lambda i, a: (i + 1, nested(depth - 1, inner, a, loops) * 1.5)  # noqa: E731
    return ab.while_loop(lambda i, a: i < 1, body, (0, x))[1]


@pytest.mark.parametrize("loops", [True, False], ids=["loops", "branches"])
@pytest.mark.parametrize("depth", [10, 12, 13, 25])
def test_deep_nesting(depth: int, loops: bool, x: Symbol):
    """Python allows 20 nested blocks; deeper ones become functions."""
    offset = x * 3
    y = nested(depth, lambda a: a * a + offset, x, loops)
    (gradient,) = ab.gradients(y, [x])
    source = explain([y, gradient])
    assert (source.count("def ") > 1) == (depth > 11)
    value, slope = ab.Session().run([y, gradient], {x: 2})
    np.testing.assert_allclose(value, 10 * 1.5**depth, rtol=1e-5)
    np.testing.assert_allclose(slope, 7 * 1.5**depth, rtol=1e-5)


def test_deep_effects(x: Symbol):
    v = ab.Variable(1.0, name="v")
    y = nested(15, lambda a: v.assign_add(a), x, True)
    np.testing.assert_allclose(ab.Session().run(y, {x: 2}), 3 * 1.5**15, rtol=1e-5)
    assert v.numpy() == 3


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def table() -> Symbol:
    return ab.placeholder((3, 4), "float32", "table")


@pytest.fixture
def index() -> Symbol:
    return ab.placeholder((), "int32", "index")


TABLE = np.ones((3, 4), "float32")


def notes_of(fetch: Any, feeds: dict[Symbol, Any]) -> tuple[list[str], str]:
    """The notes of the IndexError of a run, and its traceback as text. The interpreter's are the same."""
    feeds = {tensor: np.asarray(value, tensor.dtype)[()] for tensor, value in feeds.items()}
    with pytest.raises(IndexError) as expected:
        Interpreter().run(fetch.graph, [fetch], feeds)
    with pytest.raises(IndexError) as caught:
        ab.Session().run(fetch, feeds)
    assert caught.value.__notes__ == expected.value.__notes__
    return caught.value.__notes__, "".join(traceback.format_exception(caught.value))


def test_error_in_straight_line(table: Symbol, index: Symbol):
    with ab.name_scope("head"):
        row, where = table[index], line()
    notes, text = notes_of(ops.sin(row), {table: TABLE, index: 7})
    operation = symbol_of(row).operation
    assert notes == [
        f"In operation '{operation.name}' ({operation.type}); inputs: float32[3,4], int32[]; "
        f"defined at {__file__}:{where}"
    ]
    assert symbol_of(row).operation.name.startswith("head/")
    assert "<anabranch step " in text  # the printed line is shown
    assert "table[index]" in text


def test_error_in_a_loop(table: Symbol):
    where = 0

    def body(i: Tensor, a: Tensor) -> Any:
        nonlocal where
        row, where = table[i], line()
        return i + 1, a + row

    _, y = ab.while_loop(lambda i, a: i < 10, body, (0, table[0]))
    notes, _ = notes_of(y, {table: TABLE})
    assert len(notes) == 1
    assert notes[0].endswith(f"inputs: float32[3,4], int32[]; defined at {__file__}:{where}")


def test_error_in_the_condition_of_a_loop(table: Symbol):
    where = 0

    def condition(i: Tensor, a: Tensor) -> Tensor:
        nonlocal where
        row, where = table[i], line()
        return ops.sum(row) > 0

    _, y = ab.while_loop(condition, lambda i, a: (i + 1, a * 2), (0, table))
    notes, _ = notes_of(y, {table: TABLE})
    assert notes[0].endswith(f"inputs: float32[3,4], int32[]; defined at {__file__}:{where}")


@pytest.mark.parametrize("taken", [True, False])
def test_error_in_a_branch(taken: bool, table: Symbol, index: Symbol):
    flag = ab.placeholder((), "bool", "flag")
    first, second, where = lambda: table[index], lambda: table[:, index], line()
    y = ab.cond(flag, first, lambda: ops.concatenate([second(), second()])[:4])
    notes, _ = notes_of(y, {table: TABLE, index: -9, flag: np.bool_(taken)})
    assert len(notes) == 1
    assert notes[0].endswith(f"inputs: float32[3,4], int32[]; defined at {__file__}:{where}")


@pytest.mark.parametrize("loops", [True, False], ids=["loops", "branches"])
def test_error_in_a_function(loops: bool, table: Symbol, index: Symbol, x: Symbol):
    """Deep inside, where blocks have become functions."""
    where = 0

    def inner(a: Tensor) -> Tensor:
        nonlocal where
        row, where = table[index + ops.cast(a > 1e9, "int32")], line()  # not the same in each iteration
        return ops.sum(row) + a

    y = nested(15, inner, x, loops)
    notes, _ = notes_of(y, {table: TABLE, index: 7, x: 1.0})
    assert len(notes) == 1
    assert notes[0].endswith(f"inputs: float32[3,4], int32[]; defined at {__file__}:{where}")


@dataclass(frozen=True)
class Misleading(Op):
    """Says a shape that it does not give."""

    def infer(self, *inputs: Any) -> TensorSpec:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0][:2]


def test_error_in_a_kernel(table: Symbol):
    wrong = apply(Misleading(), table)
    y, where = ops.relu(wrong * 2 + 1), line()
    with pytest.raises(RuntimeError, match=r"This is a bug in anabranch.*float32\[2,4\]") as caught:
        ab.Session().run(y, {table: TABLE})
    (note,) = caught.value.__notes__
    assert note.startswith(f"In operation '{symbol_of(y).operation.name}' (fused); inputs: float32[2,4], ")
    assert note.endswith(f"defined at {__file__}:{where}")


def test_error_in_a_kernel_inside_a_loop(table: Symbol):
    where = 0

    def body(i: Tensor, a: Tensor) -> Any:
        nonlocal where
        y, where = ops.relu(apply(Misleading(), a) * 2 + 1), line()
        return i + 1, y

    _, y = ab.while_loop(lambda i, a: i < 3, body, (0, table))
    with pytest.raises(RuntimeError, match="This is a bug in anabranch") as caught:
        ab.Session().run(y, {table: TABLE})
    (note,) = caught.value.__notes__
    assert note.endswith(f"defined at {__file__}:{where}")


def test_errors_of_a_second_run_are_noted_too(table: Symbol, index: Symbol):
    row = table[index]
    session = ab.Session()
    for wrong in (5, 6):
        with pytest.raises(IndexError) as caught:
            session.run(row, {table: TABLE, index: wrong})
        assert len(caught.value.__notes__) == 1
        np.testing.assert_array_equal(session.run(row, {table: TABLE, index: 1}), TABLE[1])


def test_operations_and_lines_are_told(x: Symbol):
    with ab.name_scope("scope"):
        y = ops.sin(x * 2)
    told = ab.explain(y)
    text = told.removeprefix(told.summary + "\n")
    source, told = zip(*[line.split("  # ") for line in text.splitlines() if "  # " in line], strict=True)
    assert [line.strip() for line in source] == ["multiply = x * c", "sin = np.sin(multiply)"]
    assert [re.sub(r":\d+$", "", line) for line in told] == [
        "scope/multiply, test_printer.py",
        "scope/sin, test_printer.py",
    ]
    assert [line.split("  # ")[0].rstrip() for line in text.splitlines()] == explain(y).splitlines()
