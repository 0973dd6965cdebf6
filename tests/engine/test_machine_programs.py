"""Loops and branches in places of all kinds, on random devices: the interpreter's bits, in values and slopes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from shared.machines import (
    as_asked,
    assert_acyclic,
    assert_crosses_once,
    assert_nothing_left,
    at_random,
    fed,
    graph_on,
    latest_step,
    run,
    structure,
)
from shared.placed_steps import CPUS

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Symbol, Tensor
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.ops.text.strings import join
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import as_fetched

graph = graph_on(cpu=4)
x = fed("float32", "x")
n = fed("int32", "n")


def on(device: str, function: Callable[[], Any]) -> Any:
    with ab.device(device):
        return function()


def with_slopes(fetches: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """With first and second derivatives of the sum of squares."""
    target: Any = sum(ops.sum(y * y) for y in fetches)
    slopes: list[Tensor] = []
    for _ in range(2):
        slopes.extend(ab.convert_to_tensor(p) for p in ab.gradients(target, [x], unconnected_gradients="zero"))
        target = ops.sum(slopes[-1])
    return [*fetches, *slopes]


def check(
    fetches: Sequence[Any], runs: Sequence[dict[Symbol, Any]], variables: Sequence[ab.Variable] = (), ways: int = 6
) -> None:
    given = [{tensor: np.asarray(value, tensor.dtype)[()] for tensor, value in feeds.items()} for feeds in runs]
    graph = ab.get_default_graph()
    found: set[str] = set()
    for way in range(ways):
        program = MachineProgram(
            graph,
            fetches,
            list(given[0]),
            exact=True,
            assign=at_random(way, CPUS[: 2 + way % 3]) if way else as_asked(),
            seed=way if way % 3 else None,
            clusters=bool(way % 2),
            parallel_iterations=(1, 2, 10, 32)[way % 4],
        )
        assert_acyclic(program.machine)
        assert_crosses_once(program.machine)
        found |= structure(program.machine)
        for feeds in given:
            _reset(variables)
            expected = [as_fetched(value) for value in Interpreter().run(graph, fetches, feeds)]
            state = [variable.numpy() for variable in variables]
            _reset(variables)
            np.testing.assert_equal([as_fetched(value) for value in run(program, list(feeds.values()))], expected)
            np.testing.assert_equal([variable.numpy() for variable in variables], state)
            assert_nothing_left(latest_step(program))
    assert found & {"split loop", "split branch"}


def _reset(variables: Sequence[ab.Variable]) -> None:
    for variable in variables:
        variable.write_value(np.float32(0.25))


def test_a_loop_in_a_condition(x: Symbol, n: Symbol):
    def condition(i: Tensor, y: Tensor) -> Tensor:
        _, z = ab.while_loop(lambda j, _: j < i, lambda j, z: (j + 1, on("cpu:1", lambda: z + 0.5)), (0, y))
        return z < on("cpu:2", lambda: ops.cast(n, "float32"))

    _, y = ab.while_loop(condition, lambda i, y: (i + 1, on("cpu:1", lambda: y * y + 1.0)), (0, x))
    check(with_slopes([y], x), [{x: 0.5, n: count} for count in (0, 3, 10)])


def test_a_branch_in_a_condition(x: Symbol, n: Symbol):
    def condition(i: Tensor, y: Tensor) -> Tensor:
        return ab.cond(i % 2 < 1, lambda: on("cpu:1", lambda: y < 10.0), lambda: on("cpu:2", lambda: i < n))

    i, y = ab.while_loop(condition, lambda i, y: (i + 1, on("cpu:1", lambda: y * 1.5 + 1.0)), (0, x))
    check([i, *with_slopes([y], x)], [{x: 0.5, n: 0}, {x: 0.5, n: 3}, {x: 20.0, n: 10}])


def test_effects_in_a_condition(x: Symbol, n: Symbol):
    v = ab.Variable(0.25, dtype="float32", name="v")

    def condition(i: Tensor, y: Tensor) -> Tensor:
        added = v.assign_add(1.0)
        return on("cpu:1", lambda: added < ops.cast(n, "float32"))

    i, y = ab.while_loop(condition, lambda i, y: (i + 1, on("cpu:1", lambda: y * v.value)), (0, x))
    check([i, y], [{x: 0.5, n: 0}, {x: 0.5, n: 4}], [v])


def test_effects_in_branches_and_loops_in_them(x: Symbol, n: Symbol):
    v, w = (ab.Variable(0.25, dtype="float32", name=name) for name in "vw")

    def yes(y: Tensor) -> Tensor:
        doubled = w.assign(v.assign_add(y) * 2.0)
        return on("cpu:1", lambda: doubled + v.value)

    def no(i: Tensor, y: Tensor) -> Tensor:
        _, z = ab.while_loop(
            lambda j, _: j < i, lambda j, z: (j + 1, on("cpu:2", lambda: z + w.assign_add(1.0))), (0, y)
        )
        return z * v.value

    def body(i: Tensor, y: Tensor) -> Any:
        return i + 1, ab.cond(i % 2 < 1, lambda: yes(y), lambda: no(i, y))

    _, y = ab.while_loop(lambda i, _: i < n, body, (0, x))
    check([y, v.value + w.value], [{x: 0.5, n: count} for count in (0, 1, 5)], [v, w])


def test_a_loop_that_carries_nothing_but_its_counter(n: Symbol):
    i = ab.while_loop(lambda i: i < n, lambda i: on("cpu:1", lambda: i + 1), (0,))
    check(list(i) if isinstance(i, tuple | list) else [i], [{n: 0}, {n: 5}])


def test_variables_that_change_places_and_constants_that_are_carried(x: Symbol, n: Symbol):
    def body(i: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Any:
        return i + 1, b, on("cpu:1", lambda: a * a), ab.constant(3.0, "float32")

    i, *values = ab.while_loop(lambda i, *_: i < n, body, (0, x, x * 2.0, x))
    check([i, *with_slopes(values, x)], [{x: 1.5, n: count} for count in (0, 1, 4)])


def test_a_body_of_constants(x: Symbol, n: Symbol):
    def condition(i: Tensor, a: Tensor) -> Tensor:
        return ops.logical_and(i < n, on("cpu:1", lambda: a < 5.0))

    i, a = ab.while_loop(condition, lambda i, a: (i + 1, ab.constant(2.0, "float32")), (0, x))
    check([i, a], [{x: 1.5, n: 0}, {x: 1.5, n: 3}, {x: 7.0, n: 3}])


def test_branches_of_constants_and_of_what_is_handed_on(x: Symbol):
    p = ab.placeholder((), "bool", "p")
    y = ab.cond(p, lambda: ab.constant(1.0, "float32"), lambda: on("cpu:1", lambda: x * 2.0))
    z = ab.cond(p, lambda: x, lambda: on("cpu:1", lambda: y * 2.0) + y)
    check(with_slopes([y, z], x), [{x: 1.5, p: True}, {x: 1.5, p: False}])


def test_a_loop_that_ends_by_its_maximum(x: Symbol):
    def body(i: Tensor, y: Tensor) -> Any:
        inner = ab.cond(y > 0, lambda: y * 1.5, lambda: on("cpu:2", lambda: -y))
        return i + 1, ab.cond(i > 1, lambda: on("cpu:1", lambda: y * 2.0), lambda: inner)

    i, y = ab.while_loop(lambda i, y: y < 100.0, body, (ab.constant(0), x), maximum_iterations=4)
    check([i, *with_slopes([y], x)], [{x: 1.5}, {x: -1.0}, {x: 99.0}, {x: 100.0}], ways=4)


def test_results_of_a_loop_taken_by_loops_in_loops(x: Symbol, n: Symbol):
    with ab.device("cpu:1"):
        y = x * 1.0
    count, _ = ab.while_loop(lambda i, _: i < n, lambda i, a: (i + 1, on("cpu:1", lambda: a * 2.0)), (0, x))

    def outer(i: Tensor, a: Tensor) -> Any:
        def inner(j: Tensor, b: Tensor) -> Any:
            return j + 1, on("cpu:2", lambda: b + y * ops.cast(count, "float32"))

        return i + 1, ab.while_loop(lambda j, _: j < count, inner, (0, a))[1]

    _, found = ab.while_loop(lambda i, _: i < count, outer, (0, x))
    check([count, *with_slopes([found], x)], [{x: 1.5, n: count} for count in (0, 1, 3)])


def test_recursion_in_a_loop(x: Symbol, n: Symbol):
    def more(k: Tensor, a: Tensor) -> Tensor:
        return recurse(k - 1, a * 1.5) + a

    recurse = ab.function(lambda k, a: ab.cond(k > 0, lambda: more(k, a), lambda: a))

    def body(i: Tensor, a: Tensor) -> Any:
        return i + 1, on("cpu:2", lambda: recurse(i, a)) * 0.5

    _, y = ab.while_loop(lambda i, _: i < n, body, (0, x))
    check(with_slopes([y], x), [{x: 1.5, n: 0}, {x: 1.5, n: 4}])


def test_a_value_that_grows(n: Symbol):
    x = ab.placeholder((None,), "float32", "x")

    def body(i: Tensor, a: Tensor) -> Any:
        return i + 1, ops.concatenate([a, on("cpu:1", lambda: ops.sin(a[-1:]))])

    _, y = ab.while_loop(lambda i, _: i < n, body, (0, x))
    check(with_slopes([y], x), [{x: [1.5], n: 0}, {x: [1.5, 2.0], n: 4}])


def test_one_value_taken_twice_and_fetched_twice(x: Symbol, n: Symbol):
    def body(i: Tensor, a: Tensor, b: Tensor) -> Any:
        doubled = on("cpu:1", lambda: a + a)
        return i + 1, doubled, doubled

    _, a, b = ab.while_loop(lambda i, *_: i < n, body, (0, x, x))
    check([a, b, a, x, x], [{x: 1.5, n: 0}, {x: 1.5, n: 3}])


def test_strings_cross(n: Symbol):
    word = ab.placeholder((), "string", "word")

    def body(i: Tensor, text: Tensor) -> Any:
        return i + 1, on("cpu:1", lambda: join([text, word], separator="-"))

    _, text = ab.while_loop(lambda i, _: i < n, body, (0, word))
    check([text], [{word: "a", n: 0}, {word: "b", n: 3}])
