"""Native regions of many operations are cut into functions: the same values, bit for bit, as without."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.regions import forms, pieces, recording, rule
from anabranch.engine.codegen.regions.compiling import Plan
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")

ops = ab.ops


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts from 12 operations on, into functions of 5; records share a count from 3 on."""
    monkeypatch.setattr(pieces, "LONG", 12)
    monkeypatch.setattr(pieces, "PIECE", 5)
    monkeypatch.setattr(recording, "PIECE", 2)
    monkeypatch.setattr(recording, "_MANY", 3)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The regions that are compiled from now on."""
    found: list[Plan] = []
    compile_together: Any = rule._compile_together

    def note(regions: Any, effort: Any) -> None:
        found.extend(region.plan for region in regions)
        compile_together(regions, effort)

    monkeypatch.setattr(rule, "_compile_together", note)
    return found


def texts_of(plans: list[Plan]) -> list[str]:
    return [plan.text for plan in plans]


def check(build: Callable[..., Any], *values: Any, pieces_at_least: int = 1, plans: list[Plan]) -> Program:
    """The program gives what the exact one does, and is cut."""
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(np.shape(value), np.asarray(value).dtype.name) for value in values]
        targets = list(build(*feeds))
    program, exact = Program(graph, targets, feeds), Program(graph, targets, feeds, exact=True)
    for value, wanted in zip(program(*values), exact(*values), strict=True):
        assert np.asarray(value).tobytes() == np.asarray(wanted).tobytes(), (value, wanted)
    assert sum(text.count("noinline {") for text in texts_of(plans)) >= pieces_at_least
    return program


def long_body(count: int) -> Callable[..., Any]:
    def body(i: Any, a: Any, b: Any) -> Any:
        for number in range(count):
            a, b = b, a * 0.5 + b * (0.25 + number / 64)
        return i + 1, a, b

    return body


@pytest.mark.usefixtures("small_pieces")
def test_values_go_from_piece_to_piece(plans: list[Plan]):
    def build(x: Any) -> Any:
        return ab.while_loop(lambda i, *_: i < 7, long_body(10), (0, x, x * 0.5))[1:]

    check(build, np.float32(0.3), pieces_at_least=8, plans=plans)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("trips", [0, 1, 7, 100])
def test_gradients_read_what_pieces_recorded(plans: list[Plan], trips: int):
    def build(x: Any, n: Any) -> Any:
        def body(i: Any, a: Any, b: Any) -> Any:
            for _ in range(6):
                a, b = b, a * b * 0.5 + 0.75
            return i + 1, a, b

        _, a, b = ab.while_loop(lambda i, *_: i < n, body, (0, x, x * 0.5))
        return [a, b, *ab.gradients(a * b, [x])]

    check(build, np.float32(0.3), np.int32(trips), pieces_at_least=4, plans=plans)


@pytest.mark.usefixtures("small_pieces")
def test_one_program_runs_for_fewer_and_more_iterations(plans: list[Plan]):
    """Records that share a count grow together, and shrink."""
    with ab.Graph().as_default() as graph:
        x, n = ab.placeholder((), "float32"), ab.placeholder((), "int32")

        def body(i: Any, a: Any, b: Any) -> Any:
            for _ in range(6):
                a, b = b, a * b * 0.5 + 0.75
            return i + 1, a, b

        _, a, b = ab.while_loop(lambda i, *_: i < n, body, (0, x, x * 0.5))
        targets = [a, b, *ab.gradients(a * b, [x])]
    program, exact = Program(graph, targets, [x, n]), Program(graph, targets, [x, n], exact=True)
    for trips in (3, 400, 2, 0, 33):
        values = np.float32(0.3), np.int32(trips)
        for value, wanted in zip(program(*values), exact(*values), strict=True):
            assert value.tobytes() == wanted.tobytes()
    assert sum(room.leader is not None for plan in plans for room in plan.rooms) >= 3


@pytest.mark.usefixtures("small_pieces")
def test_bools_integers_and_doubles_lie_in_the_frame(plans: list[Plan]):
    def build(x: Any, k: Any) -> Any:
        def body(i: Any, a: Any, k: Any, flag: Any) -> Any:
            for number in range(8):
                flag = ops.logical_xor(flag, ops.cast(a, "float32") > 0.1 * number)
                k = k * 3 + ops.cast(flag, "int64") - ops.floor_divide(k, 5)
                a = ops.where(flag, a * 0.5, a + 1.0)
            return i + 1, a, k, flag

        return ab.while_loop(lambda i, *_: i < 9, body, (0, x, k, x > 0.5))[1:]

    check(build, np.float64(0.7), np.int64(11), pieces_at_least=5, plans=plans)


@pytest.mark.usefixtures("small_pieces")
def test_branches_and_loops_between_pieces(plans: list[Plan]):
    def build(x: Any) -> Any:
        def body(i: Any, a: Any, b: Any) -> Any:
            _, a, b = long_body(6)(i, a, b)
            a = ab.cond(a > b, lambda: long_body(7)(i, a, b)[1], lambda: b * 2.0)
            _, a, b = ab.while_loop(lambda j, *_: j < 3, long_body(7), (0, a, b))
            _, a, b = long_body(6)(i, a, b)
            return i + 1, a, b

        _, a, b = ab.while_loop(lambda i, *_: i < 4, body, (0, x, x * 0.5))
        return [a, b, *ab.gradients(a + b, [x])]

    check(build, np.float32(0.3), pieces_at_least=8, plans=plans)


@pytest.mark.usefixtures("small_pieces")
def test_element_out_of_bounds_in_a_piece_is_told(plans: list[Plan]):
    """The piece says that it failed; the loop runs again where the error is raised."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((5,), "float32")
        rows = ab.TensorArray("float32", size=5, element_shape=()).unstack(x)

        def body(i: Any, a: Any) -> Any:
            for _ in range(8):
                a = a * 0.5 + rows.read(i)
            return i + 1, a

        _, inside = ab.while_loop(lambda i, _: i < 5, body, (0, 0.0))
        _, beyond = ab.while_loop(lambda i, _: i < 6, body, (0, 0.0))
    values = np.arange(5, dtype="float32")
    program = Program(graph, [inside], [x])
    assert program(values)[0] == Program(graph, [inside], [x], exact=True)(values)[0]
    assert "# native: " in program.source
    with pytest.raises(IndexError, match="5"):
        Program(graph, [beyond], [x])(values)
    assert any("call i1 @NAME_helper" in text for text in texts_of(plans))


@pytest.mark.parametrize("operations", [600, pytest.param(3000, marks=pytest.mark.slow)])
def test_long_loops_are_native_with_their_gradients(plans: list[Plan], operations: int):
    """One function of so many operations would take LLVM minutes; none of ours has more than some hundred."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((), "float32")

        def body(i: Any, a: Any, b: Any) -> Any:
            for _ in range(operations // 4):
                a, b = b, a * 0.999 - (b * b) * (1.0 / operations)
            return i + 1, a, b

        _, a, b = ab.while_loop(lambda i, *_: i < 3, body, (0, x, x * 0.5))
        targets = [a + b, *ab.gradients(a + b, [x])]
    program = Program(graph, targets, [x])
    assert program.source.count("# native: ") == 2
    expected = Interpreter().run(graph, targets, {x: np.float32(0.7)})
    np.testing.assert_allclose(program(np.float32(0.7)), expected, rtol=2e-4)
    for text in texts_of(plans):
        for function in re.findall(r"noinline \{\n(.*?)\n\}", text, re.DOTALL):
            assert function.count("\n") < 25 * pieces.PIECE


def test_text_grows_as_the_body_does(plans: list[Plan]):
    def lines_of(operations: int) -> int:
        plans.clear()
        with ab.Graph().as_default() as graph:
            x = ab.placeholder((), "float32")
            last = ab.while_loop(lambda i, *_: i < 3, long_body(operations // 4), (0, x, x * 0.5))[1]
        Program(graph, [last], [x])
        return sum(text.count("\n") for text in texts_of(plans))

    assert lines_of(2400) < 2.2 * lines_of(1200)


def test_too_many_operations_stay_in_python(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forms, "MOST_IN_PIECES", 700)
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((), "float32")
        last = ab.while_loop(lambda i, *_: i < 3, long_body(200), (0, x, x * 0.5))[1]
    program = Program(graph, [last], [x])
    assert "# native: " not in program.source
    with without("native"):
        assert program(np.float32(0.3))[0] == Program(graph, [last], [x])(np.float32(0.3))[0]
