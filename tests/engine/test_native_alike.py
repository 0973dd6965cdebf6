"""Native loops of one form share a plan, each with operands of its own; loops that differ in anything do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.regions import rule
from anabranch.engine.codegen.regions.compiling import Plan
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")

ops = ab.ops
Body = Callable[[Any], Any]


def looped(x: Any, body: Body, trips: Any = 5) -> Any:
    return ab.while_loop(lambda i, _: i < trips, lambda i, y: (i + 1, body(y)), (0, x))[1]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that are printed, and not those of another loop."""
    plans: list[Plan] = []
    make = rule.plan_loop

    def note(*arguments: Any) -> Plan:
        plans.append(make(*arguments))
        return plans[-1]

    monkeypatch.setattr(rule, "plan_loop", note)
    return plans


def check(build: Callable[[Any], Any], native: int) -> None:
    """As many loops are native; they give what the exact program gives."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((4,), "float32", "x")
        targets = list(build(x))
    value = np.linspace(-0.9, 0.8, 4, dtype="float32")
    program = Program(graph, targets, [x])
    assert program.source.count("# native: ") == native, program.source
    for found, wanted in zip(program(value), Program(graph, targets, [x], exact=True)(value), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


def test_layers_of_one_kind_and_their_gradients_are_planned_once_each(planned: list[Plan]):
    rng = np.random.default_rng(3)

    def build(x: Any) -> list[Any]:
        weights = [ab.constant(rng.normal(size=(4, 4)).astype("float32")) for _ in range(6)]
        y = x
        for weight in weights:
            y = looped(y, lambda h, weight=weight: ops.tanh(h @ weight))
        return [y, *ab.gradients(ops.sum(y), [x, *weights])]

    check(build, 12)
    assert len(planned) <= 4  # the first and the last one may differ from those between


VECTOR = np.linspace(0.5, 1.5, 4, dtype="float32")
BODIES: dict[str, Body] = {
    "a number": lambda y: y * 0.5 + 1.0,
    "another number": lambda y: y * 0.5 + 2.0,
    "zero": lambda y: ops.maximum(y, 0.0) * 0.0,
    "minus zero": lambda y: ops.maximum(y, 0.0) * -0.0,
    "an array": lambda y: y * VECTOR + 1.0,
    "another array": lambda y: y * VECTOR[::-1].copy() + 1.0,
    "a matrix": lambda y: ops.matmul(y[None], np.diag(VECTOR))[0] + 1.0,
    "turned around": lambda y: 1.0 - y * 0.5,
    "an attribute": lambda y: ops.sum(ops.reshape(y, (2, 2)), axis=0, keepdims=True)[0][:1] + y * 0.1,
    "another attribute": lambda y: ops.sum(ops.reshape(y, (2, 2)), axis=1, keepdims=True)[0][:1] + y * 0.1,
    "a branch": lambda y: ab.cond(ops.sum(y) > 0.0, lambda: y * 0.5, lambda: y - 0.5),
    "its other way": lambda y: ab.cond(ops.sum(y) > 0.0, lambda: y - 0.5, lambda: y * 0.5),
}


def test_loops_that_differ_in_anything_keep_their_own_code(planned: list[Plan]):
    check(lambda x: [looped(x, body, trips) for body in BODIES.values() for trips in (3, 4)], 2 * len(BODIES))
    assert len(planned) >= 2 * (len(BODIES) - 1)  # arrays are operands, whatever they hold


def test_one_result_twice_is_no_two_results():
    def pair(x: Any, swap: bool) -> list[Any]:
        def body(i: Any, a: Any, b: Any) -> Any:
            c, d = a * 0.5 + b, b - 0.25
            return i + 1, *((d, c) if swap else (c, d))

        return list(ab.while_loop(lambda i, *_: i < 4, body, (0, x, x * 2.0))[1:])

    check(lambda x: [*pair(x, False), *pair(x, True)], 2)


def test_variables_stay_apart(planned: list[Plan]):
    with ab.Graph().as_default() as graph:
        states = [ab.Variable(np.full(4, k, "float32")) for k in (1, 2)]
        x = ab.placeholder((4,), "float32", "x")
        targets: list[Any] = []
        for state in states:

            def body(i: Any, y: Any, state: ab.Variable = state) -> Any:
                return i + 1, y + state.assign_add(y * 0.5)

            targets.append(ab.while_loop(lambda i, _: i < 3, body, (0, x))[1])
    value = np.ones(4, "float32")
    program = Program(graph, targets, [x])
    assert program.source.count("# native: ") == 2
    first, second = program(value)
    assert len(planned) == 2
    assert not np.allclose(first, second)


def test_what_stands_in_for_machine_code_is_compiled_when_it_runs():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((6,), "float32", "x")
        n = ab.placeholder((), "int32", "n")
        rows = ab.TensorArray("float32", 6, element_shape=()).unstack(x)
        y = ab.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, ops.sin(y) + rows.read(i)), (0, x[0]))[1]
    program = Program(graph, [y], [x, n])
    value = np.arange(6, dtype="float32")
    assert program.source.count("# native: ") == 1
    (name,) = [line.split()[1].partition("(")[0] for line in program.source.splitlines() if line.startswith("def v_")]
    scope = program._step.__globals__
    before = scope[name]
    wanted = Program(graph, [y], [x, n], exact=True)(value, np.int32(6))
    np.testing.assert_allclose(program(value, np.int32(6)), wanted, rtol=1e-6)
    assert scope[name] is before
    with pytest.raises(IndexError) as caught:
        program(value, np.int32(8))
    assert "iteration 6" in "".join(caught.value.__notes__)
    assert scope[name] is not before
    assert scope[name].__code__.co_filename == program.filename
