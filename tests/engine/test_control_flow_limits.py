"""Loops and branches under stress: effects, memory, depth, size, and the errors when they go wrong.

Each value is computed by the compiled step and by the reference interpreter.
"""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from programs.loops import number, repeat, run

import anabranch as ab
from anabranch.engine.runtime.interpreter import Interpreter

ops = ab.ops


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    with ab.Graph().as_default() as graph:
        yield graph


# --- parallel_iterations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel_iterations", [1, 2, 10, 32])
def test_parallel_iterations_change_nothing(parallel_iterations: int):
    v = ab.Variable(1.0, dtype="float64", name="v")
    x = number()

    def step(i: Any, h: Any) -> Any:
        with ab.control_dependencies([v.assign_add(x)]):
            return h * x + v.value

    y = repeat(3, step, x, parallel_iterations=parallel_iterations)
    (dx,) = ab.gradients(y, [x])
    value, slope = ab.Session().run([y, dx], {x: 2.0})

    assert (value, slope) == (16 + 4 * 3 + 2 * 5 + 7, 32.0 + 12 + 5 + 0)
    assert v.numpy() == 7.0


# --- memory -----------------------------------------------------------------------------------------------------


def test_inference_saves_nothing_and_training_what_it_needs():
    x, w = ab.placeholder((4, 8), "float32", "x"), ab.placeholder((8, 8), "float32", "w")
    y = repeat(10, lambda i, h: ops.tanh(h @ w), x)
    (dw,) = ab.gradients(y, [w])
    feeds = {x: np.ones((4, 8)), w: np.eye(8)}
    session = ab.Session()

    session.run(y, feeds)
    assert session.statistics().saved_bytes == 0
    session.run([y, dw], feeds)
    # h before and after each step; and, for one product after the loop, h again and its cotangents.
    assert 0 < session.statistics().saved_bytes <= 10 * 4 * 4 * 8 * 4


def test_shapes_are_saved_rather_than_values():
    x = ab.placeholder((None,), "float32", "x")
    y = repeat(10, lambda i, h: h + x * 2.0, x)
    (dx,) = ab.gradients(y, [x])
    session = ab.Session()

    np.testing.assert_array_equal(session.run(dx, {x: np.ones(1000)}), np.full(1000, 21.0))
    assert session.statistics().saved_bytes < 1000


def test_memory_stays_flat_over_many_runs_and_errors():
    x, n = ab.placeholder((50,), "float32", "x"), ab.placeholder((), "int32", "n")
    array = ab.TensorArray("float32", 5)

    def body(i: Any, h: Any, array: Any) -> Any:
        h = ab.cond(ops.sum(h) > 0, lambda: ops.sin(h) * x, lambda: h * x)
        return i + 1, h, array.write(i, h)

    _, y, array = ab.while_loop(lambda i, *_: i < n, body, (0, x, array))
    (dx,) = ab.gradients(ops.sum(y) + ops.sum(array.gather([0, 1])), [x])
    fetches = [y, dx, array.read(0)]  # the loop writes the array only if anything reads it
    session = ab.Session()
    at = np.linspace(-1, 1, 50, dtype="float32")

    def many_steps(count: int) -> None:
        for _ in range(count):
            session.run(fetches, {x: at, n: 4})
            with pytest.raises(IndexError):
                session.run(fetches, {x: at, n: 6})

    many_steps(5)
    gc.collect()
    objects = len(gc.get_objects())
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        many_steps(100)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000  # one leaked history would be 100 times 4 * 200 bytes
    assert len(gc.get_objects()) - objects < 100


# --- effects ----------------------------------------------------------------------------------------------------


def test_only_the_branch_taken_has_effects():
    v = ab.Variable(0.0, name="v")
    x, p = number("x", "float32"), ab.placeholder((), "bool", "p")
    y = ab.cond(p, lambda: v.assign_add(x) * x, lambda: x)
    (dx,) = ab.gradients(y, [x])
    session = ab.Session()

    assert session.run([y, dx], {x: 2.0, p: False}) == [2.0, 1.0]
    assert v.numpy() == 0.0
    assert session.run([y, dx], {x: 2.0, p: True}) == [4.0, 4.0]
    assert v.numpy() == 2.0


def test_a_branch_not_taken_can_not_fail():
    x, p = ab.placeholder((2,), "float32", "x"), ab.placeholder((), "bool", "p")
    array = ab.TensorArray("float32", 1)
    y = ab.cond(p, lambda: array.read(5) + x, lambda: x * 2)
    (dx,) = ab.gradients(y, [x])

    np.testing.assert_array_equal(run([dx], {x: [1, 2], p: False})[0], [2, 2])
    with pytest.raises(IndexError, match="index 5"):
        run([y], {x: [1, 2], p: True})


def test_effects_of_loops_run_in_program_order():
    v = ab.Variable(1.0, name="v")
    before = v.value
    doubled = repeat(3, lambda i, h: v.assign(v * 2.0), ab.constant(0.0))
    after = v.value

    assert run_once([before, doubled, after]) == [1.0, 8.0, 8.0]


def test_condition_reads_a_variable_that_the_body_writes():
    v = ab.Variable(5, dtype="int32", name="v")
    steps = ab.while_loop(lambda i: v.value > 2, lambda i: i + ops.sign(v.assign_sub(1)), (0,))[0]

    assert run_once([steps, v.value]) == [3, 2]


def run_once(fetches: list[Any]) -> list[Any]:
    return ab.Session().run(fetches)


def test_what_is_fetched_is_not_what_a_variable_holds():
    v, u = (ab.Variable(np.zeros(3, "float32"), name=name) for name in "vu")
    x = ab.placeholder((3,), "float32", "x")
    y = x + 1.0
    assigned = v.assign(y)
    other = u.assign(y)
    fed = np.ones(3, "float32")
    values = ab.Session().run([y, assigned, other, ops.reshape(x, (3,))], {x: fed})

    for value in values:
        value[0] = 99.0
    np.testing.assert_array_equal(v.numpy(), [2, 2, 2])
    np.testing.assert_array_equal(u.numpy(), [2, 2, 2])
    np.testing.assert_array_equal(fed, [1, 1, 1])
    assert not np.may_share_memory(v.stored_value(), u.stored_value())


# --- depth and size -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [28, pytest.param(40, marks=pytest.mark.slow)])
def test_many_nested_loops_become_functions(count: int):
    x = number()

    def nested(depth: int, h: Any) -> Any:
        return h if depth == 0 else repeat(1, lambda i, g: nested(depth - 1, g) * x, h)

    y = nested(count, x)  # x ** (count + 1)
    (dx,) = ab.gradients(y, [x])
    source = ab.explain([y, dx], [x])

    assert len(re.findall(r"^def ", source, re.MULTILINE)) > 3
    assert max(len(line) - len(line.lstrip()) for line in source.splitlines()) < 20 * 4
    assert run([y, dx], {x: 1.01}) == pytest.approx([1.01 ** (count + 1), (count + 1) * 1.01**count])


def test_placeholder_that_is_not_fed_deep_inside():
    x = number()

    def nested(depth: int, h: Any) -> Any:
        return h * x if depth == 0 else repeat(1, lambda i, g: nested(depth - 1, g), h)

    y = nested(20, ab.constant(1.0, "float64"))
    with pytest.raises(ValueError, match="Placeholder 'x' must be fed"):
        ab.Session().run(y)


@pytest.mark.parametrize("count", [500, pytest.param(2500, marks=pytest.mark.slow)])
def test_a_long_chain_of_operations(count: int):
    x = number()
    y = x
    for k in range(count):
        y = y * 1.0001 if k % 2 else y + x * 1e-4
    (dx,) = ab.gradients(y, [x])
    (d_dx,) = ab.gradients(dx * x, [x])
    value, slope, curvature = ab.Session().run([y, dx, d_dx], {x: 2.0})

    assert value == pytest.approx(2.0 * slope)
    assert curvature == pytest.approx(slope)


# --- errors ---------------------------------------------------------------------------------------------------------


def test_body_of_other_dtypes_is_told_all_differences():
    def body(step: Any, state: Any) -> Any:
        return ops.cast(step, "float32"), {"h": state["h"], "c": ops.cast(state["c"], "int32")}

    with pytest.raises(TypeError) as caught:
        ab.while_loop(lambda step, state: step < 3, body, (0, {"h": ab.constant(1.0), "c": ab.constant(2.0)}))
    message = str(caught.value)
    assert "step: went in as int32, came out as float32" in message
    assert "state['c']: went in as float32, came out as int32" in message
    assert "state['h']" not in message


def test_body_of_other_structure_is_told_all_differences():
    with pytest.raises(TypeError) as caught:
        ab.while_loop(
            lambda i, state: i < 3, lambda i, state: (i + 1, {"a": state["a"], "z": 1}), (0, {"a": 1.0, "b": 2.0})
        )
    assert "state['b'] is missing from the result" in str(caught.value)
    assert "state['z'] was not among the loop variables" in str(caught.value)
    with pytest.raises(TypeError, match=r"3 loop variables \(i, left, right\), but the body returned 2 values"):
        ab.while_loop(lambda i, left, right: i < 3, lambda i, left, right: (i + 1, left), (0, 1.0, 2.0))


def test_differences_of_structure_dtype_and_declared_shape_are_told_at_once():
    def body(i: Any, state: Any, row: Any) -> Any:
        return i + 0.5, {"h": state["h"], "new": 1}, ops.concatenate([row, row])

    with pytest.raises(TypeError) as caught:
        ab.while_loop(
            lambda i, state, row: i < 3,
            body,
            (0, {"h": 1.0, "c": 2.0}, ops.ones((2,))),
            shape_invariants=((), {"h": (), "c": ()}, (2,)),
        )
    assert str(caught.value).splitlines()[1:] == [
        "  state['c'] is missing from the result.",
        "  state['new'] was not among the loop variables.",
        "  i: went in as int32, came out as float32; cast it back with ops.cast(..., 'int32'), or start with a float32 "
        "value.",
        "  row: declared as [2] by shape_invariants, came out as [4]; declare what varies as None, or leave the "
        "declaration out: it is found.",
    ]


def test_branches_that_differ_are_told_all_differences():
    x, p = number("x", "float32"), ab.placeholder((), "bool", "p")
    with pytest.raises(TypeError) as caught:
        ab.cond(
            p,
            lambda: {"a": x, "b": ops.cast(x, "int32"), "c": x},
            lambda: {"a": ops.cast(x, "float64"), "b": x, "c": x},
        )
    message = str(caught.value)
    assert "result['a']: true_fn float32[], false_fn float64[]" in message
    assert "result['b']: true_fn int32[], false_fn float32[]" in message
    assert "result['c']" not in message
    with pytest.raises(TypeError, match="false_fn returns a value, true_fn does not"):
        ab.cond(p, lambda: None, lambda: x)


def test_element_that_was_never_written_names_operation_and_line():
    array = ab.TensorArray("float32", 3, name="results").write(0, 1.0)
    n = ab.placeholder((), "int32", "n")
    total = repeat(n, lambda i, h: h + array.read(i, name="look_up"), ab.constant(0.0))  # the line that is named
    line = test_element_that_was_never_written_names_operation_and_line.__code__.co_firstlineno + 3

    assert run([total], {n: 1}) == [1.0]
    for road in (lambda: ab.Session().run(total, {n: 2}), lambda: Interpreter().run(total.graph, [total], {n: 2})):
        with pytest.raises(IndexError, match="element 1 is read but was never written") as caught:
            road()
        (note,) = caught.value.__notes__
        assert "'look_up' (array_read)" in note
        assert f"test_control_flow_limits.py:{line}" in note


@pytest.mark.parametrize("pred", [True, np.bool_(False)])
def test_operands_of_branches_are_no_names(pred: Any) -> None:
    """JAX's `cond` takes operands; here branches use what they need."""
    with pytest.raises(TypeError, match=r"cond: name must be a str, got float. Branches take no arguments"):
        ab.cond(pred, lambda: 1, lambda: 2, 1.0)  # type: ignore[arg-type]


def test_condition_that_is_no_scalar_bool():
    with pytest.raises(TypeError, match="cond must return a scalar bool, got float32"):
        ab.while_loop(lambda h: h, lambda h: h, (ab.constant(1.0),))
    with pytest.raises(TypeError, match=r"scalar bool, got bool\[2\].*ops\.all"):
        ab.while_loop(lambda h: h > 0, lambda h: h, (ab.constant([1.0, 2.0]),))
    with pytest.raises(TypeError, match="no truth value"):
        ab.while_loop(lambda h: h > 0 and h < 1, lambda h: h, (ab.constant(1.0),))


def test_value_from_inside_does_not_leave():
    leaked: list[Any] = []
    x = number()
    repeat(2, lambda i, h: leaked.append(h * 2.0) or h, x)

    with pytest.raises(ValueError, match="branches and loops only as their results"):
        ops.add(leaked[0], x)


def test_gradient_with_respect_to_a_variable_that_a_loop_writes():
    v = ab.Variable(1.0, name="v")
    y = repeat(2, lambda i, h: h * v.assign_add(1.0), ab.constant(2.0))

    with pytest.raises(LookupError, match="writes that variable"):
        ab.gradients(y, [v])


# --- feeds ----------------------------------------------------------------------------------------------------------


def test_one_of_several_outputs_is_fed():
    x = ab.placeholder((4,), "float32", "x")
    left, right = ops.split(x, 2)
    fed = np.array([10.0, 20.0], "float32")

    for which, expected in ((left, [12, 23]), (right, [10, 21])):
        values = run([left + right, which], {x: [0, 1, 2, 3], which: fed})
        np.testing.assert_array_equal(values[0], expected)
        np.testing.assert_array_equal(values[1], fed)
