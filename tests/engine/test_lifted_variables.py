"""Variables made inside loop bodies, branches and functions: lifted, once, with their initial values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops
from anabranch.engine.graph import eagerly


@pytest.fixture(autouse=True)
def graph():
    with ab.Graph().as_default() as graph:
        yield graph


def test_made_in_a_body_once():
    made: list[Any] = []

    def body(i: Any, x: Any) -> Any:
        made.append(ab.Variable(2.0, name="w"))
        return i + 1, x * made[-1]

    _, y = ab.while_loop(lambda i, _: i < 3, body, (0, 1.0))
    session = ab.Session()
    assert session.run(y) == 8
    session.run(made[0].assign(3.0).operation)
    assert session.run(y) == 27


def test_tracing_anew_finds_the_same_variables():
    made: list[Any] = []

    def body(x: Any) -> Any:
        first, second = ab.Variable([[1.0]], name="first"), ab.Variable(5.0, name="second")
        made.append((first, second))
        return (ops.concatenate([x, first * second], axis=0),)

    (grown,) = ab.while_loop(lambda x: ops.shape(x)[0] < 4, body, (ops.zeros((1, 1)),))
    assert len(made) > 1, "the shape grows, so the body is traced again"
    assert all(pair == made[0] for pair in made)
    np.testing.assert_array_equal(ab.Session().run(grown), [[0], [5], [5], [5]])


def test_gradient_of_a_variable_made_in_a_body():
    made: list[Any] = []

    def body(i: Any, x: Any) -> Any:
        made.append(ab.Variable(2.0, name="w"))
        return i + 1, x * made[-1]

    x0 = ab.placeholder((), "float32", "x0")
    _, y = ab.while_loop(lambda i, _: i < 3, body, (0, x0))
    (dw,) = ab.gradients(y, [made[0]])
    (ddw,) = ab.gradients(dw, [made[0]])
    assert ab.Session().run([dw, ddw], {x0: 1.0}) == [12, 12]


def test_writes_last_from_iteration_to_iteration():
    made: list[Any] = []

    def body(i: Any) -> Any:
        made.append(ab.Variable(0.0, name="count"))
        made[-1].assign_add(1.0)
        return (i + 1,)

    (last,) = ab.while_loop(lambda i: i < 5, body, (0,))
    session = ab.Session()
    session.run(last)
    session.run(last)
    assert made[0].numpy() == 10


def test_in_a_branch():
    flag = ab.placeholder((), "bool", "flag")
    made: list[Any] = []

    def branch() -> Any:
        made.append(ab.Variable(4.0, name="v"))
        return made[-1] * 2.0

    y = ab.cond(flag, branch, lambda: 0.0)
    assert len(made) == 1
    assert ab.Session().run(y, {flag: False}) == 0
    assert ab.Session().run(y, {flag: True}) == 8


def test_in_nested_loops_that_are_traced_again():
    made: list[Any] = []

    def inner(j: Any, x: Any) -> Any:
        made.append(ab.Variable([1.0], name="inner"))
        return j + 1, ops.concatenate([x, made[-1].value], axis=0)

    def outer(i: Any, x: Any) -> Any:
        before = ab.Variable(10.0, name="before")
        _, x = ab.while_loop(lambda j, _: j < 2, inner, (0, x))
        after = ab.Variable(100.0, name="after")
        made.append((before, after))
        return i + 1, x + before + after

    _, x = ab.while_loop(lambda i, _: i < 2, outer, (0, ops.zeros((1,))))
    assert len({item for item in made if isinstance(item, ab.Variable)}) == 1
    assert len({item for item in made if isinstance(item, tuple)}) == 1
    np.testing.assert_array_equal(ab.Session().run(x), [220, 221, 221, 111, 111])


def test_in_a_scan():
    made: list[Any] = []

    def step(carry: Any, x: Any) -> Any:
        made.append(ab.Variable(2.0, name="w"))
        return carry + x * made[-1], carry

    total, _ = ab.scan(step, 0.0, ops.ones((3,)))
    assert len(set(made)) == 1
    assert ab.Session().run(total) == 6


def test_layers_made_in_a_body():
    made: list[Any] = []

    def body(i: Any, x: Any) -> Any:
        made.append(layers.Dense(3, kernel_initializer="ones"))
        return i + 1, made[-1](x)

    _, y = ab.while_loop(lambda i, _: i < 2, body, (0, ops.ones((1, 3))))
    np.testing.assert_array_equal(ab.Session().run(y), [[9, 9, 9]])
    (gradient,) = ab.gradients(y, [made[0].kernel])
    assert ab.Session().run(gradient).shape == (3, 3)


def test_the_initial_value_may_come_from_outside():
    start = ops.convert_to_tensor([1.0, 2.0]) * 3.0
    made: list[Any] = []

    def body(i: Any) -> Any:
        made.append(ab.Variable(start + 1.0, name="v"))
        return (i + 1,)

    ab.while_loop(lambda i: i < 2, body, (0,))
    np.testing.assert_array_equal(made[0].numpy(), [4, 7])


def test_an_initial_value_that_only_the_loop_knows_is_refused():
    def body(i: Any, x: Any) -> Any:
        return i + 1, x + ab.Variable(x * 2.0, name="v")

    with pytest.raises(ValueError, match=r"Variable 'v' is made inside a loop .*known outside: an array"):
        ab.while_loop(lambda i, _: i < 2, body, (0, 1.0))


def test_in_a_function_once_for_all_calls():
    made: list[Any] = []

    @ab.function
    def count(x: Any) -> Any:
        made.append(ab.Variable(0.0, name="calls"))
        return made[-1].assign_add(1.0) + x

    with eagerly():
        assert [float(count(0.0)) for _ in range(3)] == [1, 2, 3]
    assert len(made) == 1
