"""How the work of preparing a step grows with its program: twice the program, about twice the calls of functions.

Calls are counted, not time: they are the same in each run. What would be quadratic makes four times as many.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.runtime.interpreter import Interpreter

Built = tuple[list[Any], Any]
MOST = 2.45  # times the calls for twice the program


def nested_conds(depth: int) -> Built:
    """Conditions inside both branches of conditions, with the gradient: each level doubles them."""
    x = ab.placeholder((), "float32", "x")

    def nested(level: int, value: Any) -> Any:
        if level == 0:
            return ops.sin(value) * x
        return ab.cond(
            value > 0.1 * level,
            lambda: nested(level - 1, value * 0.9 + 0.1),
            lambda: nested(level - 1, ops.cos(value)) * 1.1,
        )

    loss = nested(depth, x)
    return [loss, *ab.gradients(loss, [x])], x


def chains(count: int) -> Built:
    """Independent chains of elementwise operations that meet in one operation."""
    x = ab.placeholder((16,), "float32", "x")
    ends = [ops.exp(-(ops.tanh(x * (1.0 + number)) + number)) * x for number in range(count)]
    return [ops.sum(ops.stack(ends))], x


def loops_in_a_row(count: int) -> Built:
    """Loops that take what the one before gives, with the gradient."""
    x = ab.placeholder((8,), "float32", "x")
    matrix = ab.constant(np.eye(8, dtype="float32") * 1.5)
    state = x
    for _ in range(count):
        _, state = ab.while_loop(lambda i, _: i < 10, lambda i, s: (i + 1, ops.tanh(s @ matrix)), (0, state))
    loss = ops.sum(state)
    return [loss, *ab.gradients(loss, [x, matrix])], x


PROGRAMS: dict[str, tuple[Callable[[int], Built], int, int]] = {
    "nested conds": (nested_conds, 5, 6),
    "chains": (chains, 250, 500),
    "loops in a row": (loops_in_a_row, 15, 30),
}


def calls_of_preparing(build: Callable[[int], Built], size: int) -> int:
    """How many functions, of Python and of C, are called from a graph to the program of its step."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    with ab.Graph().as_default() as graph:
        fetches, x = build(size)
        session = ab.Session(graph)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            session.program(fetches, [x])
        finally:
            sys.setprofile(before)
    return count


@pytest.mark.parametrize("name", PROGRAMS)
def test_twice_the_program_takes_twice_the_calls(name: str):
    build, size, twice = PROGRAMS[name]
    calls_of_preparing(build, size)  # what is imported, compiled and cached once
    assert calls_of_preparing(build, twice) < MOST * calls_of_preparing(build, size)


@pytest.mark.parametrize("name", PROGRAMS)
def test_large_programs_mean_what_the_interpreter_says(name: str):
    build, _, size = PROGRAMS[name]
    with ab.Graph().as_default() as graph:
        fetches, x = build(size)
        value = np.linspace(0.1, 0.5, int(np.prod(x.shape)), dtype="float32").reshape(x.shape)
        found = ab.Session(graph).run(fetches, {x: value})
        expected = Interpreter().run(graph, fetches, {x: value})
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
