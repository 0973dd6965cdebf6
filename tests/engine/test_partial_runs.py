"""Partial runs: a step in several calls; each operation runs once, and state is touched in program order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Tensor
from anabranch.engine.graph.tensor import symbol_of


@pytest.fixture(autouse=True)
def graph():
    with ab.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def a() -> Tensor:
    return ab.placeholder((), "float32", "a")


@pytest.fixture
def b() -> Tensor:
    return ab.placeholder((), "float32", "b")


def test_feeds_and_fetches_bit_by_bit(a: Tensor, b: Tensor):
    c = ab.placeholder((), "float32", "c")
    first = a + b
    second = first * c
    session = ab.Session()
    step = session.partial_run_setup([first, second], [a, b, c])
    result = session.partial_run(step, first, {a: 1, b: 2})
    assert result == 3
    assert session.partial_run(step, [second], {c: result * 17}) == [153]


def test_each_operation_runs_once(a: Tensor, b: Tensor):
    calls: list[float] = []

    def note(x: Any) -> Any:
        calls.append(float(x))
        return x

    noted = ops.numpy_function(note, [a], "float32", shape=())
    first, second = noted * 2, noted + b
    session = ab.Session()
    step = session.partial_run_setup([first, second], [a, b])
    session.partial_run(step, first, {a: 1})
    session.partial_run(step, second, {b: 1})
    assert calls == [1]


def test_steps_are_independent_and_compiled_once(a: Tensor, b: Tensor):
    first, second = a * 2, a + b
    session = ab.Session()
    steps = [session.partial_run_setup([first, second], [a, b]) for _ in range(3)]
    for number, step in enumerate(steps):
        assert session.partial_run(step, first, {a: number}) == 2 * number
    for number, step in enumerate(steps):
        assert session.partial_run(step, second, {b: 1}) == number + 1


def test_effects_keep_their_order(a: Tensor):
    v = ab.Variable(1.0, name="v")
    doubled = v.assign(v * 2)
    added = v.assign_add(a)
    last = v.value
    session = ab.Session()
    step = session.partial_run_setup([doubled, added, last], [a])
    assert session.partial_run(step, last, {a: 5}) == 7, "the writes come before the read"
    assert v.numpy() == 7
    assert session.partial_run(step, [doubled, added]) == [2, 7], "they are not run again"
    assert v.numpy() == 7


def test_an_effect_that_waits_is_told(a: Tensor):
    v = ab.Variable(1.0, name="v")
    added = v.assign_add(a)
    last = v.value * 1.0
    session = ab.Session()
    step = session.partial_run_setup([added, last], [a])
    with pytest.raises(ValueError, match=r"is needed now, .* but waits for 'a:0'. Feed that in this call"):
        session.partial_run(step, last)
    assert v.numpy() == 1


def test_loops_and_their_histories(a: Tensor, b: Tensor):
    inside: list[Tensor] = []

    def body(i: Tensor, x: Tensor) -> Any:
        inside.append(ops.sin(x))
        return i + 1, inside[-1] * a

    _, y = ab.while_loop(lambda i, _: i < 3, body, (0, a))
    (dy,) = ab.gradients(y, [a], grad_ys=[b])
    session = ab.Session()
    wanted = session.run([y, inside[-1], dy], {a: 0.5, b: 2})
    step = session.partial_run_setup([y, inside[-1], dy], [a, b])
    assert session.partial_run(step, y, {a: 0.5}) == wanted[0]
    history, slope = session.partial_run(step, [inside[-1], dy], {b: 2})
    np.testing.assert_allclose(history, wanted[1], rtol=1e-6)
    np.testing.assert_allclose(slope, wanted[2], rtol=1e-6)


def test_structures_names_and_operations(a: Tensor, b: Tensor):
    y = ops.add(a, b)
    session = ab.Session()
    step = session.partial_run_setup({"y": y, "op": symbol_of(y).operation}, ["a:0", "b:0"])
    assert session.partial_run(step, {"y": "add:0", "op": symbol_of(y).operation}, {"a:0": 1, "b:0": 2}) == {
        "y": 3,
        "op": None,
    }


def test_what_was_not_announced(a: Tensor, b: Tensor):
    y = a + b
    session = ab.Session()
    step = session.partial_run_setup(y, [a])
    with pytest.raises(ValueError, match="was not among the fetches"):
        session.partial_run(step, a * 2, {a: 1})
    with pytest.raises(ValueError, match="was not among the feeds"):
        session.partial_run(step, y, {b: 1})


def test_only_once(a: Tensor):
    first, second = a * 2, a * 3
    session = ab.Session()
    step = session.partial_run_setup([first, second], [a])
    session.partial_run(step, first, {a: 1})
    with pytest.raises(ValueError, match="was fed before"):
        session.partial_run(step, second, {a: 2})
    with pytest.raises(ValueError, match="was fetched before"):
        session.partial_run(step, first)
    assert session.partial_run(step, second) == 3


@given(st.permutations(range(6)), st.integers(1, 5))
def test_any_order_gives_what_one_run_gives(order: list[int], cut: int):
    with ab.Graph().as_default():
        x = ab.placeholder((), "float32", "x")
        shared = ops.sin(x) + 1
        targets = [shared * k + ops.cos(shared) for k in range(5)]
        targets.append(targets[2] + targets[4])
        session = ab.Session()
        wanted = session.run(targets, {x: 0.7})
        step = session.partial_run_setup(targets, [x])
        chosen = [targets[k] for k in order]
        found = [*session.partial_run(step, chosen[:cut], {x: 0.7}), *session.partial_run(step, chosen[cut:])]
    np.testing.assert_allclose(found, [wanted[k] for k in order], rtol=1e-6)
