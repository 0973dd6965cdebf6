"""None or zero: what `gradients` gives where nothing flows, each case of the table in docs/gradients.md.

None means that the graph has no path from x to y through differentiable values. Where there is a path, but this run
does not take it, the gradient is an exact zero of x's shape and dtype.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Tensor

DOCS = Path(__file__).parents[2] / "docs" / "gradients.md"


@pytest.fixture(autouse=True)
def graph():
    with ab.Graph().as_default() as graph:
        yield graph


def loop(x: Tensor, trips: Any) -> Tensor:
    return ab.while_loop(lambda i, _: i < trips, lambda i, y: (i + 1, y * x), (0, 1.0))[1]


def nested(x: Tensor, outer: Any, inner: Any) -> Tensor:
    body = lambda i, y: (i + 1, ab.while_loop(lambda j, _: j < inner, lambda j, z: (j + 1, z * x), (0, y))[1])  # noqa: E731
    return ab.while_loop(lambda i, _: i < outer, body, (0, 1.0))[1]


def integer_carry(x: Tensor) -> Tensor:
    """x reaches y only through an integer that the loop carries."""
    count = ab.while_loop(lambda i, n: i < 3, lambda i, n: (i + 1, n + ops.cast(x, "int32")), (0, 0))[1]
    return ops.cast(count, "float32")


def unread_element(x: Tensor) -> Tensor:
    array = ab.TensorArray("float32", 2).write(0, x).write(1, 3.0)
    return array.read(1)


def unused_loop_variable(x: Tensor) -> Tensor:
    """x goes through a loop in a variable whose final value is not used."""
    return ab.while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, a * 2, b * x), (0, 1.0, 1.0))[1]


def other_output(x: Tensor) -> Tensor:
    """One of two outputs depends on x, the other is used."""
    return ab.cond(ops.constant(True), lambda: (x * 2, 3.0), lambda: (x, 4.0))[1]


NONE: dict[str, Callable[[Tensor], Any]] = {
    "y does not depend on x": lambda x: ops.constant(3.0) * 2,
    "through `stop_gradient`": lambda x: ops.stop_gradient(x) * 2,
    "through a cast to integers": lambda x: ops.cast(ops.cast(x, "int32"), "float32"),
    "through a comparison": lambda x: ops.cast(x > 0, "float32"),
    "through `argmax`": lambda x: ops.cast(ops.argmax([x, x * 2]), "float32"),
    "through a predicate of `cond`": lambda x: ab.cond(x > 0, lambda: 1.0, lambda: 2.0),
    "through the number of a loop's iterations": lambda x: ab.while_loop(
        lambda y: y < ops.stop_gradient(x), lambda y: (y + 1,), (0.0,)
    )[0],
    "through an integer that a loop carries": integer_carry,
    "through its shape alone": lambda x: ops.cast(ops.size(x), "float32"),
}
ZERO: dict[str, Callable[[Tensor], Any]] = {
    "a loop that makes no iteration": lambda x: loop(x, ops.constant(0)),
    "a loop inside a loop that makes none": lambda x: nested(x, ops.constant(2), ops.constant(0)),
    "a loop inside one that makes none": lambda x: nested(x, ops.constant(0), ops.constant(2)),
    "a loop variable whose final value is not used": unused_loop_variable,
    "a branch that is not taken": lambda x: ab.cond(ops.constant(False), lambda: x * 2, lambda: 3.0),
    "a row of a `batched_cond` that takes another branch": lambda x: ops.sum(
        ab.batched_cond(ops.constant([False]), lambda v: v * x, lambda v: v, ops.ones((1,)))
    ),
    "an element of a TensorArray that is not read": unread_element,
    "an output of a `cond` that is not used": other_output,
    "a choice of `where` for other elements": lambda x: ops.where(ops.constant(False), x * 2, 3.0),
    "a product with zero": lambda x: x * 0.0,
    "a maximum that something else attains": lambda x: ops.maximum(x, 1e6),
    "an element that indexing leaves out": lambda x: ops.stack([x, x * 0 + 1.0])[1] * 1.0,
    "rows of which none are taken": lambda x: ops.sum(ops.take(ops.reshape(x, (1,)), ops.zeros((0,), "int32"), axis=0)),
    "an empty sum": lambda x: ops.sum(x * ops.zeros((0,))),
}


@pytest.mark.parametrize("case", NONE)
def test_none(case: str):
    x = ab.placeholder((), "float32", "x")
    y = NONE[case](x)
    assert ab.gradients(y, [x]) == [None]
    (zero,) = ab.gradients(y, [x], unconnected_gradients="zero")
    assert (zero.shape, zero.dtype) == ((), np.float32)
    assert ab.Session().run(zero, {x: 2.5}) == 0


@pytest.mark.parametrize("case", ZERO)
def test_zero(case: str):
    x = ab.placeholder((), "float32", "x")
    (dx,) = ab.gradients(ZERO[case](x), [x])
    assert dx is not None
    assert dx.dtype == np.float32
    assert ab.Session().run(dx, {x: 2.5}) == 0
    (ddx,) = ab.gradients(dx * x, [x])
    assert ab.Session().run(ddx, {x: 2.5}) == 0


def test_variables_follow_the_same_rules():
    used, unused = ab.Variable(2.0, name="used"), ab.Variable(2.0, name="unused")
    y = loop(used.value, ops.constant(0))
    du, dn = ab.gradients(y, [used, unused])
    assert dn is None
    assert ab.Session().run(du) == 0


def test_rows_of_a_variable_of_which_none_are_taken():
    table = ab.Variable(np.ones((3, 2), "float32"), name="table")
    (rows,) = ab.gradients(ops.sum(ops.take(table, ops.zeros((0,), "int32"), axis=0)), [table])
    found = ab.Session().run(rows)
    assert found.values.shape == (0, 2)
    np.testing.assert_array_equal(np.asarray(found), np.zeros((3, 2)))


def test_y_itself():
    x = ab.placeholder((2,), "float32", "x")
    (dx,) = ab.gradients(x, [x])
    np.testing.assert_array_equal(ab.Session().run(dx, {x: [3.0, 4.0]}), [1, 1])


def test_the_documentation_lists_the_same_cases():
    listed = re.findall(r"^\| (.+?) \| (None|zero) \|$", DOCS.read_text(), re.MULTILINE)
    assert [case for case, result in listed if result == "None"] == list(NONE)
    assert [case for case, result in listed if result == "zero"] == list(ZERO)
