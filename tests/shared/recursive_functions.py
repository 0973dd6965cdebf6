"""Recursive functions that several tests run, and how they run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import anabranch as ab
from anabranch.engine.control_flow.call import Call, Recursion
from anabranch.engine.graph import Graph
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops


def run_both_ways(graph: Graph, targets: Sequence[Any], feeds: dict[Any, Any]) -> list[Any]:
    """The values of targets from compiled steps, after these were compared with the interpreter's."""
    found = ab.Session(graph).run(list(targets), feeds)
    expected = Interpreter().run(graph, targets, feeds)
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-9, atol=1e-12)
    exact = Program(graph, targets, list(feeds), exact=True)(*[np.asarray(v)[()] for v in feeds.values()])
    for value, other in zip(exact, expected, strict=True):
        np.testing.assert_array_equal(value, other)
    return found


def recursions(graph: Graph) -> list[Any]:
    return [operation.op for operation in all_operations(graph.operations) if isinstance(operation.op, Recursion)]


def calls_in(recursion: Recursion) -> int:
    return sum(isinstance(operation.op, Call) for operation in all_operations(recursion.body.operations))


def differences(function: Callable[[Any], float], x: np.ndarray[Any, Any], step: float = 1e-6) -> Any:
    """Central finite differences of a function with one number as its result."""
    slopes = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        change = np.zeros_like(x)
        change[place] = step
        slopes[place] = (function(x + change) - function(x - change)) / (2 * step)
    return slopes


@ab.function
def doubled(x: Any, n: Any) -> Any:
    return ab.cond(n <= 0, lambda: x, lambda: doubled(x * 2, n - 1))


@ab.function
def fibonacci(n: Any) -> Any:
    return ab.cond(n < 2, lambda: n, lambda: fibonacci(n - 1) + fibonacci(n - 2))


@ab.function
def ackermann(m: Any, n: Any) -> Any:
    def inner() -> Any:
        return ab.cond(n <= 0, lambda: ackermann(m - 1, 1), lambda: ackermann(m - 1, ackermann(m, n - 1)))

    return ab.cond(m <= 0, lambda: n + 1, inner)


@ab.function
def power(x: Any, n: Any) -> Any:
    def by_squaring() -> Any:
        half = power(x * x, n // 2)
        return ab.cond(ops.equal(n % 2, 0), lambda: half, lambda: half * x)

    return ab.cond(n <= 0, lambda: ops.ones_like(x), by_squaring)


@ab.function
def greatest_divisor(a: Any, b: Any) -> Any:
    return ab.cond(ops.equal(b, 0), lambda: a, lambda: greatest_divisor(b, a % b))


@ab.function
def collatz(n: Any) -> Any:
    return ab.switch(
        ops.cast(n > 1, "int32") + ops.cast(ops.logical_and(n > 1, ops.equal(n % 2, 1)), "int32"),
        [lambda: 0, lambda: collatz(n // 2) + 1, lambda: collatz(3 * n + 1) + 1],
    )


@ab.function
def counted(x: Any, n: Any) -> Any:
    return ab.cond(n <= 0, lambda: x, lambda: counted(x + 1, n - 1))


@ab.function
def endless(x: Any, n: Any) -> Any:
    return ab.cond(x < 0, lambda: x, lambda: endless(x + n, n))


# --- functions with gradients ---------------------------------------------------------------------------------------

# Each takes itself, x, n, a captured value w and the choice between two functions: for tensors, or for unrolling.
Body = Callable[[Any, Any, Any, Any, Any], Any]

FUNCTIONS: dict[str, Body] = {
    "chain": lambda f, x, n, w, cond: cond(n <= 0, lambda: x * x, lambda: f(x * w, n - 1)),
    "work after the call": lambda f, x, n, w, cond: cond(
        n <= 0, lambda: ops.sin(x), lambda: ops.sin(f(x * w, n - 1) * x) + w
    ),
    "two calls": lambda f, x, n, w, cond: cond(
        n <= 0, lambda: x * x, lambda: ops.sin(f(x * w, n - 1) * x) + f(x + 0.1, n - 2) * x
    ),
    "a call of a call": lambda f, x, n, w, cond: cond(
        n <= 0, lambda: ops.tanh(x) * w, lambda: f(f(x * x, n - 1) + w, n - 2)
    ),
    "work before the branch": lambda f, x, n, w, cond: _work_before(f, x, n, w, cond),
    "a call in a nested branch": lambda f, x, n, w, cond: cond(
        n <= 0, lambda: x, lambda: cond(n <= 1, lambda: f(x * x, n - 1), lambda: f(ops.sin(x), n - 2) * w)
    ),
    "nothing flows through the call": lambda f, x, n, w, cond: cond(
        n <= 0, lambda: x, lambda: ops.stop_gradient(f(x, n - 1)) * x + w
    ),
    "vectors": lambda f, x, n, w, cond: cond(
        n <= 0, lambda: ops.reshape(x, (1,)) * ops.ones((3,), "float64"),
        lambda: ops.cumsum(f(x * w, n - 1)) * x,
    ),
    "only the captured value": lambda f, x, n, w, cond: cond(
        n <= 0, lambda: w * 1.0, lambda: f(x, n - 1) * w
    ),
}  # fmt: skip


def _work_before(f: Any, x: Any, n: Any, w: Any, cond: Any) -> Any:
    deep, shallow = ops.exp(-x * x), ops.sin(x * w)
    return cond(n <= 0, lambda: shallow * x, lambda: f(deep * w, n - 1) * deep)


def recursive(body: Body, w: Any) -> Any:
    @ab.function
    def f(x: Any, n: Any) -> Any:
        return body(f, x, n, w, ab.cond)

    return f


def unrolled(body: Body, w: Any) -> Any:
    def f(x: Any, n: int) -> Any:
        return body(f, x, n, w, lambda test, yes, no: yes() if test else no())

    return f


def gradients_or_zeros(y: Any, xs: list[Any]) -> list[Any]:
    return ab.gradients(y, xs, unconnected_gradients="zero")


def slope(y: Any, x: Any, w: Any) -> Any:
    dx, dw = gradients_or_zeros(y, [x, w])
    return dx * 1.5 + dw
