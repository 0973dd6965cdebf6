"""The NaN guard names op, layer, iteration and step; run-time errors name op, input shapes, iterations and line."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Tensor, eagerly
from anabranch.engine.runtime.interpreter import Interpreter


@pytest.fixture(autouse=True)
def graph():
    with ab.Graph().as_default() as graph:
        yield graph
    ab.debugging.disable_check_numerics()


@pytest.fixture
def x() -> Tensor:
    return ab.placeholder((None,), "float32", "x")


def refused(fetches: Any, feeds: Any = None) -> str:
    """The message and notes with which the guard refuses a step."""
    with ab.debugging.check_numerics(), pytest.raises(FloatingPointError) as info:
        ab.Session().run(fetches, feeds)
    return "\n".join([str(info.value), *getattr(info.value, "__notes__", [])])


def test_off_unless_asked_for(x: Tensor):
    assert np.isnan(ab.Session().run(ops.log(x), {x: [-1]})).all()
    with ab.debugging.check_numerics():
        pass
    assert np.isnan(ab.Session().run(ops.log(x), {x: [-1]})).all()


def test_names_the_first_operation_its_elements_and_the_line(x: Tensor):
    message = refused(ops.exp(ops.log(x)) + 1, {x: [1, -1, 2, -3]})
    assert "'log' (log) gives NaN in 2 of 4 elements, first at [1] from finite numbers, in run 1" in message
    assert "inputs: float32[4]" in message
    assert "test_numerics_guard.py" in message


def test_names_the_step(x: Tensor):
    session = ab.Session()
    y = ops.log(x)
    with ab.debugging.check_numerics():
        for _ in range(3):
            session.run(y, {x: [1]})
        with pytest.raises(FloatingPointError, match=r"gives an infinity in 1 of 1 elements.*in run 4 of this step"):
            session.run(y, {x: [0]})


def test_names_the_iterations():
    n = ab.placeholder((), "int32", "n")

    def outer(i: Tensor, value: Tensor) -> Any:
        inner = lambda j, v: (j + 1, ops.sqrt(v) - 1.0)  # noqa: E731
        _, value = ab.while_loop(lambda j, _: j < n, inner, (0, value), name="inner")
        return i + 1, value + 0.5

    _, y = ab.while_loop(lambda i, _: i < 5, outer, (0, 9.0), name="outer")
    message = refused(y, {n: 2})  # 9 -> 2 -> 0.41 -> 0.91 -> -0.05 -> NaN
    assert "iteration 1 of 'inner/while', iteration 1 of 'outer/while'" in message


def test_what_was_fed_is_checked(x: Tensor):
    assert "The value fed to 'x:0' holds NaN in 1 of 2 elements, first at [1]." in refused(x * 2, {x: [1, np.nan]})


def test_infinities_that_were_given_may_pass(x: Tensor):
    with ab.debugging.check_numerics():
        masked = ops.where(x > 0, x, -np.inf)
        np.testing.assert_allclose(ab.Session().run(ops.softmax(masked), {x: [1, -1]}), [1, 0])


def test_gradients_are_checked(x: Tensor):
    message = refused(ab.gradients(ops.sqrt(x), [x]), {x: [0, 1]})
    assert "gradients" in message
    assert "infinity" in message


def test_functions_are_checked():
    function = ab.function(lambda a: ops.log(a))
    with eagerly():
        assert float(function(0.0)) == -np.inf
        with ab.debugging.check_numerics(), pytest.raises(FloatingPointError, match="infinity"):
            function(0.0)


def test_enable_and_disable(x: Tensor):
    ab.debugging.enable_check_numerics()
    with pytest.raises(FloatingPointError):
        ab.Session().run(ops.log(x), {x: [0]})
    ab.debugging.disable_check_numerics()
    ab.Session().run(ops.log(x), {x: [0]})


# --- other errors ---------------------------------------------------------------------------------------------------


def in_a_loop(count: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """A loop that fails in iteration `count`, where the index is out of range."""
    data = ab.placeholder((None,), "float32", "data")

    def body(i: Tensor, total: Tensor) -> Any:
        return i + 1, total + data[i]

    return ab.while_loop(lambda i, _: i < count, body, (start, 0.0), name="loop")[1], data


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("start", [0, 2])
def test_errors_in_loops_name_the_iteration(compiled: bool, start: int):
    y, data = in_a_loop(9, start)
    value = np.ones(5, "float32")
    run = ab.Session().run if compiled else lambda y, feeds: Interpreter().run(y.graph, [y], feeds)
    with pytest.raises(IndexError) as info:
        run(y, {data: value})
    (note,) = info.value.__notes__
    assert f", iteration {5 - start} of 'loop/while'; inputs: float32[5], int32[]; defined at" in note


def test_errors_in_gradient_loops_name_the_iteration():
    x = ab.placeholder((3,), "float32", "x")
    other = ab.placeholder((None,), "float32", "other")

    def body(i: Tensor, y: Tensor) -> Any:
        return i + 1, y * ops.custom_gradient(lambda v: (v, lambda dv: ops.reshape(dv + other[i], (3,))))(y)

    _, y = ab.while_loop(lambda i, _: i < 4, body, (0, x), name="loop")
    (dx,) = ab.gradients(y, [x])
    with pytest.raises(IndexError) as info:
        ab.Session().run(dx, {x: [1, 2, 3], other: [1, 2, 3]})
    assert "iteration 3 of 'gradients" in info.value.__notes__[0]


def test_a_loop_without_a_counter_counts_for_errors():
    data = ab.placeholder((None,), "float32", "data")

    def body(value: Tensor) -> Any:
        return (value * 2 + data[ops.cast(value, "int32")],)

    (y,) = ab.while_loop(lambda value: value < 100, body, (1.0,), name="loop")
    with pytest.raises(IndexError) as info:
        ab.Session().run(y, {data: np.zeros(5)})  # 1, 2, 4, 8
    assert "iteration 3 of 'loop/while'" in info.value.__notes__[0]


def test_what_a_failed_step_saved_is_let_go():
    data = ab.placeholder((None,), "float32", "data")
    x = ab.placeholder((1000,), "float32", "x")
    saved: list[Any] = []

    def keep(value: Any) -> Any:
        array = value * 2
        saved.append(weakref.ref(array))
        return array

    def body(i: Tensor, v: Tensor) -> Any:
        pass_on = lambda xs, ys, dys: [dys[0]]  # noqa: E731
        kept = ops.numpy_function(keep, [v], "float32", shape=(1000,), stateful=False, grad=pass_on)
        return i + 1, ops.tanh(kept) * data[i]

    _, out = ab.while_loop(lambda i, _: i < 9, body, (0, x))
    (dx,) = ab.gradients(out, [x])
    with pytest.raises(IndexError) as info:
        ab.Session().run(dx, {x: np.ones(1000), data: np.ones(4)})
    gc.collect()
    assert len(saved) == 5
    assert [ref() for ref in saved] == [None] * 5, "although the error itself is still there"
    assert info.value.__traceback__ is not None
