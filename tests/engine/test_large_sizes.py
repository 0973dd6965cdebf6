"""Sizes of shapes that tensors give, and that no axis can have: an error, and not the last 32 bits of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab

ops = ab.ops
BUILDS: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda n: ops.zeros((n, 2)),
    "empty": lambda n: ops.ones((n, 0)),
    "full": lambda n: ops.full((2, n), 3.0),
    "broadcast_to": lambda n: ops.broadcast_to(ab.constant([1.0, 2.0]), (n, 2)),
    "uniform": lambda n: ab.random.uniform((n, 2), seed=1),
}
SIZES = {"too large": [2**60, 2**31, 2**32 + 3], "negative": [-1, -(2**40)]}


def eager(build: Callable[[Any], Any], n: int) -> Any:
    return build(ab.constant(n, "int64")).numpy()


def in_graph(build: Callable[[Any], Any], n: int) -> Any:
    with ab.Graph().as_default() as graph:
        given = ab.placeholder((), "int64", "n")
        y = build(given)
    return ab.Session(graph).run(y, {given: n})


def in_loop(build: Callable[[Any], Any], n: int) -> Any:
    with ab.Graph().as_default() as graph:
        given = ab.placeholder((), "int64", "n")

        def body(i: Any, total: Any) -> Any:
            return i + 1, total + ops.sum(build(given + i - i))

        start = (ab.constant(0, "int64"), ab.constant(0.0))
        y = ab.while_loop(lambda i, _: i < 2, body, start)[1]
    return ab.Session(graph).run(y, {given: n})


@pytest.mark.parametrize("run", [eager, in_graph, in_loop])
@pytest.mark.parametrize("name", BUILDS)
def test_a_size_that_no_axis_can_have_is_an_error(name: str, run: Callable[..., Any]):
    for wrong, sizes in SIZES.items():
        for size in sizes:
            with pytest.raises(ValueError, match=rf"{size}\b.* (is {wrong}|{wrong} size|must be non-negative)"):
                run(BUILDS[name], size)
    assert run(BUILDS[name], 3) is not None


@pytest.mark.parametrize("run", [in_graph, in_loop])
def test_the_error_names_the_operation(run: Callable[..., Any]):
    with pytest.raises(ValueError, match="too large") as caught:
        run(lambda n: ops.zeros((n, 2)), 2**60)
    assert any("In operation" in note and __file__ in note for note in caught.value.__notes__)


@pytest.mark.parametrize("run", [eager, in_graph])
def test_a_reshape_takes_what_is_left_for_a_given_minus_one(run: Callable[..., Any]):
    x = np.arange(6, dtype="float32")
    assert run(lambda n: ops.reshape(ab.constant(x), (n, 2)), -1).shape == (3, 2)
    for size in (2**60, 2**32 + 3):
        with pytest.raises(ValueError, match=str(size)):
            run(lambda n: ops.reshape(ab.constant(x), (n, 2)), size)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_a_size_may_have_any_integer_dtype(dtype: str):
    with ab.Graph().as_default() as graph:
        n = ab.placeholder((), dtype, "n")
        y = ops.zeros((n, 2))
    assert ab.Session(graph).run(y, {n: 3}).shape == (3, 2)


def of_vector(shape: list[int], op: Callable[[Any, Any], Any], x: Any) -> Any:
    """Run a step whose shape is one tensor."""
    with ab.Graph().as_default() as graph:
        given = ab.placeholder((None,), "int64", "shape")
        y = op(ab.constant(x), given)
    return ab.Session(graph).run(y, {given: shape})


def of_size(shape: list[int], op: Callable[[Any, Any], Any], x: Any) -> Any:
    """Run a step the first size of whose shape is a tensor."""
    return in_graph(lambda n: op(ab.constant(x), (n, *shape[1:])), shape[0])


def of_size_in_loop(shape: list[int], op: Callable[[Any, Any], Any], x: Any) -> Any:
    return in_loop(lambda n: op(ab.constant(x), (n, *shape[1:])), shape[0])


@pytest.mark.parametrize("run", [of_vector, of_size, of_size_in_loop])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([4, 2], r"float32\[6\] has 6 elements and cannot be reshaped to \[4,2\], which has 8\."),
        ([0, 2], r"float32\[6\] has 6 elements and cannot be reshaped to \[0,2\], which has 0\."),
        ([2**40, 2], rf"(cannot be reshaped to \[{2**40},2\]|the size {2**40} is too large)"),
    ],
)
def test_a_shape_that_does_not_fit_a_reshape_is_named(shape: list[int], message: str, run: Callable[..., Any]):
    with pytest.raises(ValueError, match=message):
        run(shape, ops.reshape, np.arange(6, dtype="float32"))


@pytest.mark.parametrize("run", [of_vector, of_size])
def test_negative_sizes_of_a_reshape_other_than_one_are_refused(run: Callable[..., Any]):
    x = np.arange(6, dtype="float32")
    assert run([-1, 2], ops.reshape, x).shape == (3, 2)
    for shape in ([-2, 2], [-1, -1]):
        with pytest.raises(ValueError, match=r"only one -1 may stand for what is left|size -2 is negative"):
            run(shape, ops.reshape, x)
    with pytest.raises(ValueError, match=r"cannot be reshaped to \[(-1|\?),4\]"):
        run([-1, 4], ops.reshape, x)


@pytest.mark.parametrize("run", [of_vector, of_size])
def test_a_shape_that_does_not_fit_a_broadcast_is_named(run: Callable[..., Any]):
    with pytest.raises(ValueError, match=r"float32\[3\] does not broadcast to \[4\]\."):
        run([4], ops.broadcast_to, np.arange(3, dtype="float32"))
    size = 2**31 - 1
    with pytest.raises(ValueError, match=rf"to \[{size},{size},{size}\]: no array can have as many elements\."):
        run([size, size, size], ops.broadcast_to, np.float32(1.0))


@pytest.mark.parametrize("function", [ops.sum, lambda y: ops.sum(ops.sin(y))], ids=["sum", "sin"])
def test_a_loop_checks_the_size_of_a_broadcast(function: Callable[[Any], Any]):
    """Compiled loops took the size of `x` for granted, because it is the only one that the result can have."""

    def build(n: Any) -> Any:
        return function(ops.broadcast_to(ab.constant(np.arange(3, dtype="float32")), (n,)))

    with pytest.raises(ValueError, match=r"float32\[3\] does not broadcast to \[4\]\."):
        in_loop(build, 4)
    assert in_loop(build, 3) == pytest.approx(2 * float(build(3).numpy()), rel=1e-6)
