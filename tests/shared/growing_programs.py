"""Programs that grow: eight kinds, each of any size. Preparing one twice as large is to take twice as long.

Each builds into the graph that is current, and returns (fetches, what is fed).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anabranch as ab
from anabranch.optim import Adam

ITERATIONS = 100
Built = tuple[list[Any], Any]


def scalar_loop(operations: int) -> Built:
    """Make a loop over two scalars whose body has `operations` sums, products and functions, with its gradient."""
    x = ab.placeholder((), "float32", "x")

    def body(i: Any, a: Any, b: Any) -> tuple[Any, ...]:
        for _ in range(operations // 4):
            a, b = b, a * (1.0 - 0.01 / operations) - ab.ops.sin(b) * (1.0 / operations)
        return i + 1, a, b

    _, a, b = ab.while_loop(lambda i, *_: i < ITERATIONS, body, (0, x, x * 0.5))
    loss = a + b
    return [loss, *ab.gradients(loss, [x])], x


def nested_conds(depth: int) -> Built:
    """Make conditions in both branches of conditions, `depth` deep, with the gradient: each level doubles them."""
    x = ab.placeholder((), "float32", "x")

    def nested(level: int, value: Any) -> Any:
        if level == 0:
            return ab.ops.sin(value) * x
        return ab.cond(
            value > 0.1 * level,
            lambda: nested(level - 1, value * 0.9 + 0.1),
            lambda: nested(level - 1, ab.ops.cos(value)) * 1.1,
        )

    loss = nested(depth, x)
    return [loss, *ab.gradients(loss, [x])], x


def chains(count: int) -> Built:
    """Make `count` independent chains of five operations over vectors, stacked and summed."""
    x = ab.placeholder((16,), "float32", "x")
    ends: list[Any] = []
    for number in range(count):
        end = ab.ops.tanh(x * (1.0 + number)) + number
        ends.append(ab.ops.exp(-end) * x)
    return [ab.ops.sum(ab.ops.stack(ends))], x


def loops_in_a_row(count: int) -> Built:
    """Make loops of ten iterations over a vector, each behind the one before, with the gradient."""
    x = ab.placeholder((8,), "float32", "x")
    matrix = ab.constant(np.eye(8, dtype="float32") * 1.5)
    state = x
    for _ in range(count):
        _, state = ab.while_loop(lambda i, _: i < 10, lambda i, s: (i + 1, ab.ops.tanh(s @ matrix)), (0, state))
    loss = ab.ops.sum(state)
    return [loss, *ab.gradients(loss, [x, matrix])], x


def scalar_chain(operations: int) -> Built:
    """Make `operations` functions of one number, each of the one before, with the gradient."""
    x = ab.placeholder((), "float32", "x")
    value = x
    for _ in range(operations // 4):
        value = ab.ops.sin(value * 0.9) + x * 0.1
    return [value, *ab.gradients(value, [x])], x


def layer_stack(depth: int) -> Built:
    """Make `depth` dense layers of 16 units with residual connections, their gradient and a step of SGD."""
    x = ab.placeholder((8, 16), "float32", "x")
    value, weights = x, list[Any]()
    for _ in range(depth):
        kernel, bias = ab.Variable(np.eye(16, dtype="float32") * 0.1), ab.Variable(np.zeros(16, "float32"))
        value = value + ab.ops.relu(value @ kernel + bias)
        weights += [kernel, bias]
    loss = ab.ops.mean(value)
    gradients = ab.gradients(loss, weights)
    updates = [w.assign_sub(g * 0.01) for w, g in zip(weights, gradients, strict=True)]
    return [loss, *updates], x


def variables(count: int) -> Built:
    """Make `count` variables, and a step of Adam for all of them."""
    x = ab.placeholder((16,), "float32", "x")
    weights = [ab.Variable(np.full(16, 0.1, "float32")) for _ in range(count)]
    loss = ab.ops.sum(ab.ops.stack([w * x for w in weights]))
    gradients = ab.gradients(loss, weights)
    optimizer = Adam(0.01)
    optimizer.build(weights)
    return [loss, optimizer.apply(gradients, weights)], x


def nested_loops(depth: int) -> Built:
    """Make loops in loops, `depth` deep, with the gradient; how often they run is seen in the step."""
    x = ab.placeholder((8,), "float32", "x")
    trips = ab.ops.cast(x[0] + 1.5, "int32")

    def nested(level: int, value: Any) -> Any:
        if level == 0:
            return ab.ops.tanh(value) * x
        _, value = ab.while_loop(lambda i, _: i < trips, lambda i, s: (i + 1, nested(level - 1, s * 0.9)), (0, value))
        return value + x

    loss = ab.ops.sum(nested(depth, x))
    return [loss, *ab.gradients(loss, [x])], x


PROGRAMS: dict[str, Callable[[int], Built]] = {
    "scalar loop": scalar_loop,
    "nested conds": nested_conds,
    "chains": chains,
    "loops in a row": loops_in_a_row,
    "scalar chain": scalar_chain,
    "layer stack": layer_stack,
    "variables": variables,
    "nested loops": nested_loops,
}
