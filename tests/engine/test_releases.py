"""Backward loops let go of what they have read: the memory of a history is that of the iterations still to come."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.ops.containers.array_value import ArrayValue
from anabranch.engine.runtime.interpreter import Interpreter


def recurrence(x: Any, w: Any, steps: int) -> Any:
    return ab.while_loop(lambda i, h: i < steps, lambda i, h: (i + 1, ops.tanh(h @ w)), (0, x))[1]


def test_a_backward_loop_takes_what_nothing_else_reads():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((4, 8), "float32", "x")
        w = ab.Variable(np.eye(8, dtype="float32") * 0.5, name="w")
        slopes = ab.gradients(ops.sum(recurrence(x, w, 6)), [x, w])
        text = ab.explain(slopes, lines=False)
        assert ".take(" in text
        assert ".take_all(" in text
        assert ".read(" not in text
        fed = {x: np.linspace(-1, 1, 32, dtype="float32").reshape(4, 8)}
        expected = Interpreter().run(graph, slopes, fed)
        for _ in range(2):  # a second step has histories of its own
            for value, wanted in zip(ab.Session().run(slopes, fed), expected, strict=True):
                np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_what_is_read_elsewhere_too_is_kept():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((3,), "float64", "x")
        seen: list[Any] = []

        def body(i: Any, h: Any) -> Any:
            seen.append(ops.sin(h))
            return i + 1, ops.sin(seen[-1])

        y = ab.while_loop(lambda i, h: i < 4, body, (0, x))[1]
        slope = ab.gradients(ops.sum(y), [x])[0]
        inner = seen[-1]
        fed = {x: np.array([0.1, 0.5, 0.9])}
        alone, both = ab.Session().run(slope, fed), ab.Session().run([inner, slope], fed)
        np.testing.assert_array_equal(both[1], alone)
        assert len(both[0]) == 4
        assert all(value is not None for value in both[0])
        np.testing.assert_array_equal(both[0][0], np.sin(fed[x]))
        np.testing.assert_allclose(alone, Interpreter().run(graph, [slope], fed)[0])


def test_second_order_reads_the_same_history_twice():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((), "float64", "x")
        y = ab.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * h * 0.9), (0, x))[1]
        (first,) = ab.gradients(y, [x])
        (second,) = ab.gradients(first, [x])
        values = ab.Session().run([first, second], {x: 0.8})
        expected = [0.9**7 * 8 * 0.8**7, 0.9**7 * 56 * 0.8**6]
        np.testing.assert_allclose(values, expected, rtol=1e-12)
        np.testing.assert_allclose(Interpreter().run(graph, [first, second], {x: 0.8}), expected, rtol=1e-12)


@pytest.mark.parametrize("together", [False, True])
def test_taken_elements_are_let_go(together: bool):
    class Array(np.ndarray):
        """An array that can be watched."""

    items = [np.full(3, k, "float32").view(Array) for k in range(4)]
    watched = [weakref.ref(item) for item in items]
    array = ArrayValue.from_list(items)
    if together:
        np.testing.assert_array_equal(array.take_all((3,), "float32")[:, 0], [0, 1, 2, 3])
    else:
        for k in reversed(range(4)):
            np.testing.assert_array_equal(array.take(k), np.full(3, k))
    gc.collect()
    assert [each() for each in watched] == [None] * 4


def test_elements_of_different_shapes_are_refused_as_by_stack():
    array = ArrayValue.from_list([np.zeros(2, "float32"), np.zeros(3, "float32")])
    with pytest.raises(ValueError, match="shape"):
        array.take_all((None,), "float32")
