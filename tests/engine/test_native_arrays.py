"""Native regions over small arrays, matrices and TensorArrays, and the loops of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from natives.loops import check, draw, repeated

import anabranch as ab
from anabranch.engine.codegen.regions.function import Array, Function
from anabranch.engine.codegen.regions.products import print_transposed
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")

ops = ab.ops


# --- single operations ----------------------------------------------------------------------------------------------

BODIES: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: ops.tanh(x * 0.5) + 0.1,
    "broadcast row": lambda x: x + x[0] * 0.1,
    "broadcast column": lambda x: x * x[:, :1],
    "transpose": lambda x: ops.transpose(ops.transpose(x) * 0.5),
    "reshape": lambda x: ops.reshape(ops.reshape(x, (-1,)) * 2.0, (4, 6)),
    "sum of all": lambda x: x * 0.1 + ops.sum(x) * 0.01,
    "sum of rows": lambda x: x - ops.sum(x, axis=0, keepdims=True) * 0.1,
    "mean of columns": lambda x: x - ops.mean(x, axis=1, keepdims=True),
    "max": lambda x: x - ops.max(x, axis=-1, keepdims=True),
    "min": lambda x: x + ops.min(x, axis=0),
    "prod": lambda x: x + ops.prod(x, axis=1, keepdims=True),
    "any": lambda x: ops.where(ops.any(x > 0.9, axis=0), x * 0.5, x * 1.5),
    "all": lambda x: ops.where(ops.all(x > -0.9), x + 0.5, x),
    "concatenate": lambda x: ops.concatenate([x[:, 3:], x[:, :3]], axis=1),
    "stack": lambda x: ops.stack([x[0], x[2], x[1], x[3]], axis=0),
    "slices": lambda x: ops.concatenate([x[::2] * 2.0, x[1::2]], axis=0),
    "split": lambda x: ops.concatenate(ops.split(x, [1, 3], axis=1)[::-1], axis=1),
    "split of rows": lambda x: sum(ops.split(x, 4, axis=0)) * 0.2 + x,
    "expand": lambda x: ops.squeeze(ops.expand_dims(x, 1) * 0.5, 1),
    "select": lambda x: ops.where(x > 0, x, -x * 0.5),
    "zeros": lambda x: x + ops.zeros_like(x),
    "branch": lambda x: ab.cond(ops.sum(x) > 0, lambda: x * 0.5, lambda: x - 1.0),
    "branch that passes on": lambda x: ab.cond(ops.sum(x) > 0, lambda: x, lambda: -x),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bodies(name: str, dtype: str):
    if dtype == "float64" and name == "elementwise":
        return  # kernels may have no transcendental functions of it
    check(repeated(BODIES[name]), draw(4, 6, dtype=dtype))


@pytest.mark.parametrize("sizes", [(4, 4, 4), (64, 64, 64), (1, 7, 7), (5, 1, 1), (16, 33, 33), (3, 130, 130)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_matmul_body(sizes: tuple[int, int, int], dtype: str):
    rows, columns, depth = sizes
    matrix = draw(depth, columns, dtype=dtype)
    check(repeated(lambda x: ops.matmul(x, ab.constant(matrix)) * 0.1), draw(rows, depth, dtype=dtype), rtol=1e-4)


@pytest.mark.parametrize("transposed", ["a", "b", "both", "none"])
@pytest.mark.parametrize("sizes", [(3, 5, 7), (17, 1, 9), (1, 17, 9), (9, 17, 1), (16, 48, 31)])
def test_transposed_products(transposed: str, sizes: tuple[int, int, int]):
    rows, columns, depth = sizes
    a, b = draw(rows, depth), draw(depth, columns)

    def build(x: Any, y: Any) -> Any:
        if transposed in ("a", "both"):
            x = ops.transpose(x)
        if transposed in ("b", "both"):
            y = ops.transpose(y)

        def body(i: Any, total: Any) -> Any:
            left = ops.transpose(x * 1.0) if transposed in ("a", "both") else x
            right = ops.transpose(y) if transposed in ("b", "both") else y
            return i + 1, total * 0.5 + ops.matmul(left + ops.cast(i, "float32"), right)

        return ab.while_loop(lambda i, t: i < 3, body, (0, ops.zeros((rows, columns))))

    check(build, a, b, rtol=1e-4)


def test_variables_that_swap():
    def build(x: Any, y: Any) -> Any:
        return ab.while_loop(lambda i, *_: i < 5, lambda i, x, y: (i + 1, y, x + y), (0, x, y))

    check(build, draw(3), draw(3))


def test_variable_that_takes_what_is_outside():
    def build(x: Any, y: Any) -> Any:
        return ab.while_loop(
            lambda i, *_: i < 4, lambda i, a, b: (i + 1, ab.cond(i < 2, lambda: y, lambda: b), a * 2.0), (0, x, x)
        )

    check(build, draw(3), draw(3))


def test_nested_loops_reuse_memory():
    def outer(i: Any, x: Any, total: Any) -> Any:
        a = x * 2.0
        _, b = ab.while_loop(lambda j, _: j < i, lambda j, b: (j + 1, b * 0.5 + a), (0, x))
        c = a + b
        return i + 1, c * 0.1, total + b + a

    check(lambda x: ab.while_loop(lambda i, *_: i < 5, outer, (0, x, x)), draw(5, 3))


def test_indexing_with_computed_indices():
    def build(x: Any) -> Any:
        return ab.while_loop(lambda i, *_: i < 4, lambda i, s: (i + 1, s * 2.0 + x[i] + x[i - 4]), (0, x[0]))

    check(build, draw(4, 3))


def test_index_out_of_range_is_told_as_without_native_regions():
    with ab.Graph().as_default() as graph:
        x, n = ab.placeholder((4, 3), "float32"), ab.placeholder((), "int32")
        _, total = ab.while_loop(lambda i, _: i < n, lambda i, s: (i + 1, s + x[i % 5]), (0, x[0]))
    program = Program(graph, [total], [x, n])
    assert "# native: " in program.source
    value = draw(4, 3)
    np.testing.assert_allclose(program(value, np.int32(4))[0], value[0] + value.sum(0), rtol=1e-5)
    with pytest.raises(IndexError, match="index 4 is out of bounds") as caught:
        program(value, np.int32(5))
    assert "iteration 4" in "".join(caught.value.__notes__)


def test_operands_are_made_contiguous():
    program = check(repeated(lambda x: x * 2.0), draw(4, 6))
    value = draw(6, 4).T
    np.testing.assert_array_equal(program(value)[1], value * 8.0)


def test_results_are_arrays_of_their_own():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((3,), "float32")
        _, y = ab.while_loop(lambda i, _: i < 0, lambda i, y: (i + 1, y * 2.0), (0, x))
    value = draw(3)
    (found,) = Program(graph, [y], [x])(value)
    assert not np.may_share_memory(found, value)


# --- TensorArrays ---------------------------------------------------------------------------------------------------


def test_array_is_read_and_written():
    def build(x: Any) -> Any:
        rows = ab.TensorArray("float32", 5, element_shape=(3,)).unstack(x)
        out = ab.TensorArray("float32", 5, element_shape=(3,))
        _, out = ab.while_loop(lambda i, _: i < 5, lambda i, o: (i + 1, o.write(i, rows.read(i) * 2.0)), (0, out))
        return out.stack()

    check(build, draw(5, 3))


def test_array_of_scalars_that_reads_itself():
    def body(i: Any, array: Any) -> Any:
        return i + 1, array.write(i, array.read(i - 1) + array.read(i - 2))

    def build(x: Any) -> Any:
        array = ab.TensorArray("float32", 20, element_shape=()).write(0, x).write(1, x)
        return ab.while_loop(lambda i, _: i < 20, body, (2, array))[1].stack()

    check(build, np.float32(1))


def test_array_that_grows():
    def build(n: Any) -> Any:
        array = ab.TensorArray("float32", 0, dynamic_size=True, element_shape=(2,))
        row = ops.ones((2,))
        out = ab.while_loop(
            lambda i, _: i < n, lambda i, a: (i + 1, a.write(i, row * ops.cast(i, "float32"))), (0, array)
        )[1]
        return out.stack()

    for count in (0, 3, 100):
        check(build, np.int32(count))


def test_written_again():
    def body(i: Any, array: Any) -> Any:
        return i + 1, array.write(i % 2, ops.cast(i, "float32"))

    def build(x: Any) -> Any:
        array = ab.TensorArray("float32", 2, element_shape=()).write(0, x).write(1, x)
        return ab.while_loop(lambda i, _: i < 7, body, (0, array))[1].stack()

    check(build, np.float32(1))


def test_missing_element_is_told():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((), "float32")
        array = ab.TensorArray("float32", 4, element_shape=()).write(0, x)
        _, y = ab.while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, y + array.read(i)), (0, x))
    with pytest.raises(IndexError, match="element 1 is read but was never written"):
        Program(graph, [y], [x])(np.float32(1))


def test_earlier_values_of_an_array_stay_as_they_were():
    def body(i: Any, array: Any, total: Any) -> Any:
        later = array.write(i, total + 1.0)
        return i + 1, later, total + array.read(0) + later.read(i)

    def build(x: Any) -> Any:
        array = ab.TensorArray("float32", 5, element_shape=()).write(0, x)
        return ab.while_loop(lambda i, *_: i < 5, body, (1, array, x))[2]

    check(build, np.float32(2), native=0)


WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "in both": lambda i, s, a: ab.cond(i % 2 < 1, lambda: a.write(i + 1, s), lambda: a.write(i + 1, s * 2.0)),
    "twice": lambda i, s, a: ab.cond(
        i % 2 < 1, lambda: a.write(i + 1, s).write(i + 1, s * 3.0), lambda: a.write(i + 1, -s)
    ),
    "of what was read": lambda i, s, a: ab.cond(
        i % 2 < 1, lambda: a.write(i + 1, s + a.read(i)), lambda: a.write(i + 1, s - a.read(0))
    ),
    "in one, and behind": lambda i, s, a: ab.cond(i % 2 < 1, lambda: a.write(i + 1, s), lambda: a).write(
        i + 1, s * 0.3
    ),
    "in one, or before": lambda i, s, a: _earlier_or_later(i, a, a.write(i + 1, s)).write(i + 1, s * 0.7),
    "in a branch of a branch": lambda i, s, a: ab.cond(
        i % 2 < 1,
        lambda: ab.cond(i < 3, lambda: a.write(i + 1, s), lambda: a.write(i + 1, -s)),
        lambda: a.write(i + 1, s * 2.0),
    ),
    "in a loop in a branch": lambda i, s, a: ab.cond(
        i % 2 < 1,
        lambda: ab.while_loop(lambda j, _: j < 2, lambda j, a: (j + 1, a.write(i + 1, s + a.read(j))), (0, a))[1],
        lambda: a.write(i + 1, s * 2.0),
    ),
}


def _earlier_or_later(i: Any, earlier: Any, later: Any) -> Any:
    return ab.cond(i % 2 < 1, lambda: earlier, lambda: later)


@pytest.mark.parametrize("with_gradient", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_writes_in_branches(name: str, with_gradient: bool):
    def build(x: Any) -> list[Any]:
        array = ab.TensorArray("float32", 9, element_shape=(3,)).unstack(ops.broadcast_to(x, (9, 3)))

        def body(i: Any, s: Any, array: Any) -> Any:
            s = ops.tanh(s * 1.3)
            return i + 1, s, WRITES[name](i, s, array)

        y = ab.while_loop(lambda i, *_: i < 6, body, (0, x, array))[2].stack()
        return [y, *(ab.gradients(ops.sum(y * y), [x]) if with_gradient else [])]

    check(build, draw(3))


# --- gradients ------------------------------------------------------------------------------------------------------


def test_gradients_of_a_recurrence():
    def build(x: Any, w: Any) -> Any:
        _, y = ab.while_loop(lambda i, _: i < 6, lambda i, h: (i + 1, ops.tanh(ops.matmul(h, w))), (0, x))
        loss = ops.sum(y * y)
        first = ab.gradients(loss, [x, w])
        second = ab.gradients(ops.sum(first[1] * first[1]), [x, w])
        return [loss, *first, *second]

    check(build, draw(4, 8), draw(8, 8) * 0.5, rtol=1e-3, native=2)


def test_what_is_prepared_once_lies_apart():
    """Values made before a loop share memory with no value of an iteration, be it printed before or after them."""
    function = Function()
    function.outside.add("%d0")

    def offset(array: Array) -> int:
        return next(iter(array.buffers)).offset

    passing = function.allocate("float", (8, 8))
    function.hold(passing)
    function.release(passing)
    turned = function.turned(Array("%d0", "float", (8, 8)), (8, 8), print_transposed)
    zeros = function.zeros(passing)
    later = function.allocate("float", (8, 8))
    assert (offset(passing), offset(turned), offset(later)) == (0, 256, 0)
    assert function.arena_size == 3 * 256
    assert any("memset" in line for line in function.prologue)
    assert zeros == function.zeros(later)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_saved_by_a_branch_that_is_never_taken(sign: float):
    def build(x: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            return i + 1, ab.cond(ops.sum(x) > 0, lambda: ops.tanh(h * x), lambda: h * 0.5)

        _, y = ab.while_loop(lambda i, _: i < 4, body, (0, x * 1.0))
        return [y, *ab.gradients(ops.sum(y * y), [x])]

    check(build, sign * np.abs(draw(5)), rtol=1e-4)


def test_gradients_through_branches_and_nested_loops():
    def outer(i: Any, h: Any) -> Any:
        _, h = ab.while_loop(lambda j, _: j < i, lambda j, h: (j + 1, h * 0.9 + 0.1 * h * h), (0, h))
        return i + 1, ab.cond(ops.sum(h) > 0, lambda: h * 1.1, lambda: h - 0.2)

    def build(x: Any) -> Any:
        _, y = ab.while_loop(lambda i, _: i < 5, outer, (0, x))
        return [y, *ab.gradients(ops.sum(y), [x])]

    check(build, draw(4), rtol=1e-4)
    check(build, -(draw(4) ** 2), rtol=1e-4)


def test_gradient_of_an_array():
    def build(x: Any) -> Any:
        rows = ab.TensorArray("float32", 5, element_shape=(3,)).unstack(x)
        out = ab.TensorArray("float32", 5, element_shape=(3,))
        _, h, out = ab.while_loop(
            lambda i, *_: i < 5,
            lambda i, h, o: (i + 1, h * 0.5 + rows.read(i), o.write(i, h * rows.read(i))),
            (0, x[0], out),
        )
        loss = ops.sum(out.stack() * 2.0) + ops.sum(h * h)
        return [loss, *ab.gradients(loss, [x])]

    check(build, draw(5, 3), rtol=1e-4)
