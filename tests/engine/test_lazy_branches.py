"""Operations that only one branch needs run only when that is taken, wherever they were written; effects run where they
were.

How often an operation ran is counted by an op of the test's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Op, Symbol, Tensor
from anabranch.engine.graph.op import Effect
from anabranch.engine.ops.base import Cast, apply
from anabranch.engine.runtime.interpreter import Interpreter

_runs: dict[str, int] = {}


@dataclass(frozen=True)
class _Counted(Op):
    """Twice the input; counts its runs."""

    label: str

    def infer(self, *inputs: Any) -> Any:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        _runs[self.label] = _runs.get(self.label, 0) + 1
        return inputs[0] * 2

    def grad(self, node: Any, *cotangents: Tensor | None) -> Any:
        (dy,) = cotangents
        assert dy is not None
        return (apply(_Counted(f"gradient of {self.label}"), dy),)


class _CountedEffect(_Counted):
    def effects(self) -> tuple[Effect, ...]:
        return (Effect("the outside world", True),)


def counted(x: Tensor, label: str = "y") -> Tensor:
    return apply(_Counted(label), x)


@pytest.fixture(autouse=True)
def graph():
    _runs.clear()
    with ab.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def x() -> Symbol:
    return ab.placeholder((), "float32", "x")


@pytest.fixture
def flag() -> Symbol:
    return ab.placeholder((), "bool", "flag")


def run(fetches: Any, feeds: dict[Symbol, Any]) -> Any:
    """The compiled values, which must be the interpreter's."""
    session = ab.Session()
    flat = fetches if isinstance(fetches, list) else [fetches]
    wanted = Interpreter().run(session.graph, flat, {t: np.asarray(v, t.dtype) for t, v in feeds.items()})
    _runs.clear()
    found = session.run(flat, feeds)
    np.testing.assert_array_equal(found, wanted)
    return found if isinstance(fetches, list) else found[0]


def test_runs_only_when_its_branch_is_taken(x: Symbol, flag: Symbol):
    y = counted(x)
    z = ab.cond(flag, lambda: y + 1, lambda: x)
    assert run(z, {x: 3, flag: True}) == 7
    assert _runs == {"y": 1}
    assert run(z, {x: 3, flag: False}) == 3
    assert _runs == {}


def test_chains_sink_whole(x: Symbol, flag: Symbol):
    first = counted(x, "first")
    second = counted(first * first, "second")
    z = ab.cond(flag, lambda: x, lambda: second + first)
    run(z, {x: 1, flag: True})
    assert _runs == {}
    assert run(z, {x: 1, flag: False}) == 10
    assert _runs == {"first": 1, "second": 1}


@pytest.mark.parametrize("taken", [True, False])
def test_what_both_branches_need_runs_before_them(x: Symbol, flag: Symbol, taken: bool):
    y = counted(x)
    run(ab.cond(flag, lambda: y + 1, lambda: y), {x: 1, flag: taken})
    assert _runs == {"y": 1}


def test_what_is_fetched_runs(x: Symbol, flag: Symbol):
    y = counted(x)
    assert run([ab.cond(flag, lambda: y + 1, lambda: x), y], {x: 1, flag: False}) == [1, 2]
    assert _runs == {"y": 1}


def test_what_something_else_needs_runs(x: Symbol, flag: Symbol):
    y = counted(x)
    run(ab.cond(flag, lambda: y + 1, lambda: x) + y, {x: 1, flag: False})
    assert _runs == {"y": 1}


def test_the_choice_itself_runs(x: Symbol):
    y = counted(x)
    run(ab.cond(y > 0, lambda: y, lambda: x), {x: -1})
    assert _runs == {"y": 1}


@pytest.mark.parametrize("index", [0, 1, 2, 7])
def test_switches(x: Symbol, index: int):
    choice = ab.placeholder((), "int32", "choice")
    values = [counted(x, label) for label in "abc"]
    run(ab.switch(choice, [lambda value=value: value + 1 for value in values]), {x: 1, choice: index})
    assert _runs == {"abc"[min(index, 2)]: 1}


def test_an_op_with_effects_runs_where_it_was_written(x: Symbol, flag: Symbol):
    y = apply(_CountedEffect("y"), x)
    run(ab.cond(flag, lambda: y + 1, lambda: x), {x: 1, flag: False})
    assert _runs == {"y": 1}


def test_control_dependencies_of_what_sinks_are_kept(flag: Symbol):
    v = ab.Variable(1.0, name="v")
    write = v.assign(5.0)
    with ab.control_dependencies([write]):
        y = counted(ops.convert_to_tensor(2.0) * 1.0)
    z = ab.cond(flag, lambda: y, lambda: ops.convert_to_tensor(0.0))
    assert ab.Session().run(z, {flag: False}) == 0
    assert _runs == {}
    assert v.numpy() == 5, "the write was asked for by what z is made of"


def test_a_read_keeps_its_place(flag: Symbol):
    v = ab.Variable(1.0, name="v")
    y = counted(v.value)
    write = v.assign(5.0)
    with ab.control_dependencies([write]):
        z = ab.cond(flag, lambda: y, lambda: ops.convert_to_tensor(0.0))
    assert ab.Session().run(z, {flag: True}) == 2, "the value before the write"
    assert _runs == {"y": 1}


def test_nested_branches(x: Symbol, flag: Symbol):
    y = counted(x)
    inner_flag = x > 0
    z = ab.cond(flag, lambda: ab.cond(inner_flag, lambda: y, lambda: x), lambda: x)
    for taken, value, count in [(True, 1, 1), (True, -1, 0), (False, 1, 0)]:
        run(z, {x: value, flag: taken})
        assert _runs.get("y", 0) == count


def test_branches_inside_a_loop(x: Symbol):
    def body(i: Tensor, total: Tensor) -> Any:
        y = counted(total)
        return i + 1, ab.cond(i > 1, lambda: y, lambda: total)

    _, total = ab.while_loop(lambda i, _: i < 4, body, (0, x))
    assert run(total, {x: 1}) == 4
    assert _runs == {"y": 2}


@pytest.mark.usefixtures("loops_stay")
@pytest.mark.parametrize("taken", [True, False])
def test_nothing_enters_a_loop(x: Symbol, flag: Symbol, taken: bool):
    y = counted(x)
    in_loop = lambda i, t: (i + 1, ab.cond(flag, lambda: t + y, lambda: t))  # noqa: E731
    _, total = ab.while_loop(lambda i, _: i < 3, in_loop, (0, x))
    assert run(total, {x: 1, flag: taken}) == (7 if taken else 1)
    assert _runs == {"y": 1}


def test_whole_loops_sink(x: Symbol, flag: Symbol):
    _, power = ab.while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, counted(t)), (0, x))
    z = ab.cond(flag, lambda: power, lambda: x)
    run(z, {x: 1, flag: False})
    assert _runs == {}
    assert run(z, {x: 1, flag: True}) == 8
    assert _runs == {"y": 3}


@pytest.mark.usefixtures("loops_stay")
@pytest.mark.parametrize("taken", [True, False])
def test_a_loop_and_its_gradient_in_one_branch(x: Symbol, flag: Symbol, taken: bool):
    _, power = ab.while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, counted(t) * t), (0, x))
    (slope,) = ab.gradients(power, [x])
    (curve,) = ab.gradients(slope, [x])
    z = ab.cond(flag, lambda: slope + curve, lambda: x)
    run(z, {x: 1.5, flag: taken})
    assert bool(_runs) == taken


@pytest.mark.parametrize("taken", [True, False])
def test_what_two_branches_with_one_choice_need_runs_once(x: Symbol, flag: Symbol, taken: bool):
    y = counted(x)
    first = ab.cond(flag, lambda: y + 1, lambda: x)
    second = ab.cond(flag, lambda: y * first, lambda: first)
    assert run([first, second], {x: 1, flag: taken}) == ([3, 6] if taken else [1, 1])
    assert _runs == ({"y": 1} if taken else {})


@pytest.mark.parametrize("taken", [True, False])
def test_gradients_of_what_one_branch_needs_run_in_it(x: Symbol, flag: Symbol, taken: bool):
    y = counted(counted(ops.sin(x), "first") * x, "second")
    z = ab.cond(flag, lambda: y * x, lambda: x * 3)
    (dz,) = ab.gradients(z * z, [x])
    run([z, dz], {x: 0.5, flag: taken})
    wanted = ["first", "second", "gradient of first", "gradient of second"] if taken else []
    assert _runs == dict.fromkeys(wanted, 1)


@pytest.mark.parametrize("taken", [True, False])
def test_gradients_of_whole_loops_run_in_their_branch(x: Symbol, flag: Symbol, taken: bool):
    _, power = ab.while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, counted(t) * x), (0, x))
    z = ab.cond(flag, lambda: power, lambda: x)
    (dz,) = ab.gradients(z, [x])
    (ddz,) = ab.gradients(dz, [x])
    assert run([dz, ddz], {x: 2, flag: taken}) == ([8 * 4 * 8, 8 * 4 * 3 * 4] if taken else [1, 0])
    run(dz, {x: 2, flag: taken})
    assert bool(_runs) == taken


def test_gradients_in_branches_inside_loops(x: Symbol):
    def body(i: Tensor, total: Tensor) -> Any:
        y = counted(total * x)
        return i + 1, ab.cond(i > 1, lambda: y, lambda: total * x)

    _, total = ab.while_loop(lambda i, _: i < 4, body, (0, x))
    (dx,) = ab.gradients(total, [x])
    assert run([total, dx], {x: 1.5}) == [4 * 1.5**5, 4 * 5 * 1.5**4]
    assert _runs["gradient of y"] == 2


def test_what_a_gradient_is_asked_for_stays_outside(x: Symbol, flag: Symbol):
    y = counted(x)
    z = ab.cond(flag, lambda: y * y, lambda: x)
    dy, dx = ab.gradients(z, [y, x])
    assert run([dy, dx], {x: 3, flag: True}) == [12, 24]
    assert run([dy, dx], {x: 3, flag: False}) == [0, 1]


def test_tables_of_which_one_branch_takes_rows(flag: Symbol):
    table = ab.Variable(np.arange(6.0, dtype="float32").reshape(3, 2), name="table")
    rows = ops.take(table, [2, 0, 2], axis=0)
    z = ab.cond(flag, lambda: ops.sum(rows * rows), lambda: 1.0)
    (dt,) = ab.gradients(z, [table])
    session = ab.Session()
    assert session.run(dt, {flag: False}).values.shape == (0, 2)
    np.testing.assert_array_equal(np.asarray(session.run(dt, {flag: True})), [[0, 2], [0, 0], [16, 20]])


def test_opposite_branches_with_one_choice(x: Symbol, flag: Symbol):
    y = counted(x)
    first = ab.cond(flag, lambda: y + 1, lambda: x)
    second = ab.cond(flag, lambda: x, lambda: y)
    run([first, second], {x: 1, flag: True})
    assert _runs == {"y": 1}


def test_a_branch_in_the_same_branch_of_its_own_choice_is_decided(x: Symbol, flag: Symbol):
    first = ab.cond(flag, lambda: ops.sin(x), lambda: ops.cos(x))
    second = ab.cond(flag, lambda: first * 2, lambda: x)
    source = ab.explain(second, [x, flag])
    assert source.count("if flag") == 1
    assert "cos" not in source
    run(second, {x: 1, flag: True})


def test_several_outputs(flag: Symbol):
    x = ab.placeholder((None,), "float32", "x")
    values, positions = ops.top_k(x, 2)
    z = ab.cond(flag, lambda: values + ops.cast(positions, "float32"), lambda: x[:2])
    np.testing.assert_array_equal(ab.Session().run(z, {x: [1, 5, 3], flag: True}), [6, 5])
    np.testing.assert_array_equal(ab.Session().run(z, {x: [1, 5, 3], flag: False}), [1, 5])
    assert ab.explain(z, [x, flag]).index("if flag") < ab.explain(z, [x, flag]).index("top_k")


@pytest.mark.parametrize("taken", [True, False])
def test_what_was_saved_may_be_what_the_branch_took_from_outside(x: Symbol, flag: Symbol, taken: bool):
    """A cast to the same dtype is simplified away, so that the frame is asked for the captured value itself."""
    wide = ops.cast(x, "float64")
    branch = lambda: ops.apply(Cast(np.dtype("float64")), wide) ** 3  # noqa: E731
    y = ab.cond(flag, branch, lambda: wide)
    (dx,) = ab.gradients(ab.cond(flag, lambda: y * 2, lambda: y), [x])
    (ddx,) = ab.gradients(dx, [x])
    found = run([dx, ddx], {x: 2, flag: taken})
    assert found == ([24, 24] if taken else [1, 0])
