"""Native regions that call the engine's own products, what divides by sums of exponentials, and gradients of slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.matmul import gemm
from anabranch.engine.runtime.program import Program

pytestmark = [
    pytest.mark.usefixtures("loops_stay", "native_whatever_the_size"),
    pytest.mark.skipif(not gemm.is_available(), reason="there are no kernels here"),
]

ops = ab.ops
RNG = np.random.default_rng(7)


def draw(*shape: int, dtype: str = "float32") -> Any:
    return RNG.uniform(-1, 1, shape).astype(dtype)


def check(build: Callable[..., Any], *values: Any, native: int = 1, rtol: float = 1e-4) -> Program:
    """The program, with so many native loops, gives what the exact one does."""
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(np.shape(value), np.asarray(value).dtype.name) for value in values]
        built = build(*feeds)
    targets = list(built) if isinstance(built, (tuple, list)) else [built]
    program = Program(graph, targets, feeds)
    assert program.source.count("# native: ") == native, program.source
    expected = Program(graph, targets, feeds, exact=True)(*values)
    for _ in range(2):
        for value, wanted in zip(program(*values), expected, strict=True):
            assert (np.shape(value), value.dtype) == (np.shape(wanted), wanted.dtype)
            np.testing.assert_allclose(value, wanted, rtol=rtol, atol=rtol)
    return program


# --- packed products ------------------------------------------------------------------------------------------------


def recurrence(x: Any, w: Any, u: Any, b: Any, open_shape: bool = True) -> Any:
    """The outputs of a plain cell over x (steps, batch, units)."""
    steps, batch, units = x.shape
    inputs = ab.TensorArray(x.dtype, steps).unstack(x)
    outputs = ab.TensorArray(x.dtype, steps, element_shape=None if open_shape else (batch, units))

    def body(t: Any, h: Any, outputs: Any) -> Any:
        h = ops.tanh(inputs.read(t) @ w + h @ u + b)
        return t + 1, h, outputs.write(t, h)

    first = ops.zeros((batch, units), x.dtype)
    return ab.while_loop(lambda t, *_: t < steps, body, (0, first, outputs))[2].stack()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("open_shape", [True, False])
def test_a_cell_with_its_gradient(dtype: str, open_shape: bool):
    """Arrays of unknown elements take what the loop writes into them."""

    def build(x: Any, w: Any, u: Any, b: Any) -> Any:
        loss = ops.mean(recurrence(x, w, u, b, open_shape) ** 2)
        return [loss, *ab.gradients(loss, [x, w, u, b])]

    shapes = ((6, 32, 96), (96, 96), (96, 96), (96,))
    values = [draw(*shape, dtype=dtype) * (0.2 if len(shape) == 2 else 1) for shape in shapes]
    program = check(build, *[value.astype(dtype) for value in values], native=2)
    assert program.source.count("# pack\n") == 2  # of u, and of its transpose


def test_second_order():
    def build(x: Any, w: Any, u: Any, b: Any) -> Any:
        loss = ops.mean(recurrence(x, w, u, b) ** 2)
        (slope,) = ab.gradients(loss, [x])
        return ab.gradients(ops.sum(slope * slope), [w, u, b])

    check(build, draw(4, 32, 96), draw(96, 96) * 0.1, draw(96, 96) * 0.1, draw(96), native=4, rtol=1e-3)


@pytest.mark.parametrize("addends", ["row", "matrix", "both", "none"])
def test_what_is_added_to_products(addends: str):
    def build(x: Any, u: Any, matrix: Any, row: Any) -> Any:
        def body(t: Any, h: Any) -> Any:
            total = ops.tanh(h) @ u
            total = total + matrix * ops.cast(t, "float32") if addends in ("matrix", "both") else total
            return t + 1, total + row if addends in ("row", "both") else total

        return ab.while_loop(lambda t, _: t < 4, body, (0, x))[1]

    check(build, draw(40, 96), draw(96, 96) * 0.2, draw(40, 96), draw(96))


def test_large_arrays_stay_with_kernels_that_use_several_cores():
    def build(x: Any, u: Any) -> Any:
        return ab.while_loop(lambda t, _: t < 4, lambda t, h: (t + 1, ops.tanh(h @ u)), (0, x))[1]

    check(build, draw(128, 128), draw(128, 128) * 0.2, native=0)
    check(build, draw(64, 128), draw(128, 128) * 0.2, native=1)


# --- products that the region prints itself -------------------------------------------------------------------------


SIZES = [
    (1, 130, 1),
    (1, 75, 6),
    (1, 1, 131),
    (1, 64, 64),
    (1, 151, 9),
    (1, 300, 3),
    (3, 67, 5),
    (13, 9, 40),
    (6, 24, 8),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", SIZES)
def test_small_products_of_all_layouts(dtype: str, sizes: tuple[int, int, int]):
    """Rows that are wide and narrow, tiles with a rest of rows and of columns, sums of one term and of many."""
    rows, columns, depth = sizes

    def build(x: Any, w: Any, v: Any) -> Any:
        def body(t: Any, x: Any) -> Any:
            y = ops.tanh(x @ w)
            return t + 1, ops.tanh(y @ v)

        last = ab.while_loop(lambda t, _: t < 3, body, (0, x))[1]
        return [last, *ab.gradients(ops.sum(last * last), [x, w, v])]

    shapes = ((rows, depth), (depth, columns), (columns, depth))
    values = [draw(*shape, dtype=dtype) / np.sqrt(shape[0], dtype=dtype) for shape in shapes]
    check(build, *values, native=2, rtol=1e-4 if dtype == "float32" else 1e-11)


@pytest.mark.parametrize("sizes", [(40, 9, 3), (17, 20, 1), (5, 33, 2)])
def test_transposed_matrices_times_few_columns(sizes: tuple[int, int, int]):
    rows, depth, columns = sizes

    def build(x: Any, w: Any, v: Any) -> Any:
        def body(t: Any, x: Any) -> Any:
            return t + 1, ops.tanh(ops.transpose(v) @ ops.tanh(ops.transpose(w) @ x))

        return ab.while_loop(lambda t, _: t < 3, body, (0, x))[1]

    check(build, draw(depth, columns), draw(depth, rows), draw(rows, depth))


def test_a_row_with_numbers_that_are_not_finite():
    """Each element of the result is a sum of its own: NaN stays in its column."""
    weight = draw(70, 70)
    weight[3, 5], weight[69, 68] = np.nan, np.inf

    def build(x: Any, w: Any) -> Any:
        return ab.while_loop(lambda t, _: t < 1, lambda t, x: (t + 1, x @ w), (0, x))[1]

    with np.errstate(all="ignore"):
        (found,) = check(build, draw(1, 70), weight)(draw(1, 70), weight)
    assert np.isnan(found[0, 5])
    assert np.isinf(found[0, 68])
    assert np.isfinite(np.delete(found[0], [5, 68])).all()


# --- softmax and the like -------------------------------------------------------------------------------------------

BODIES: dict[str, Callable[[Any], Any]] = {
    "softmax of rows": lambda x: x * 0.5 + ops.softmax(x, axis=-1),
    "softmax of columns": lambda x: x * 0.5 + ops.softmax(x, axis=0),
    "softmax of all": lambda x: x * 0.5 + ops.softmax(x, axis=(0, 1)),
    "softmax of a row, x[0]": lambda x: x * 0.5 + ops.softmax(x[0], axis=0),
    "logarithm of softmax": lambda x: x * 0.5 - 0.1 * ops.log_softmax(x, axis=-1),
    "logarithm of the sum": lambda x: x * 0.5 - 0.1 * ops.logsumexp(x, axis=1, keepdims=True),
    "logarithm of the sum of all": lambda x: x * 0.5 - 0.1 * ops.logsumexp(x),
    "logarithm of the sum of columns": lambda x: x * 0.5 - 0.1 * ops.logsumexp(x, axis=0),
    "of one element, x[:, :1]": lambda x: x * 0.5 + ops.softmax(x[:, :1], axis=1),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normalised(name: str, dtype: str):
    body = BODIES[name]
    value = draw(4, 6, dtype=dtype) * 30

    def build(x: Any) -> Any:
        out = ab.while_loop(lambda t, _: t < 3, lambda t, x: (t + 1, body(x)), (0, x))[1]
        return [out, *ab.gradients(ops.sum(out * out), [x])]

    check(build, value.astype(dtype), native=2)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["softmax of rows", "logarithm of softmax", "logarithm of the sum"])
def test_special_numbers(name: str, special: float):
    """A row that holds one of them, a row of nothing else, and one without."""
    value = draw(3, 5)
    value[0, 2], value[1] = special, special

    def build(x: Any) -> Any:
        return ab.while_loop(lambda t, _: t < 1, lambda t, x: (t + 1, BODIES[name](x)), (0, x))[1]

    with np.errstate(all="ignore"):
        check(build, value)


# --- gradients of slices --------------------------------------------------------------------------------------------

KEYS: dict[str, Callable[[Any], Any]] = {
    "columns": lambda x: x[:, 1:4],
    "columns, every other one": lambda x: x[:, ::2],
    "backwards": lambda x: x[::-1, 1:3],
    "rows from the end": lambda x: x[-2:],
    "a column": lambda x: x[:, 3],
    "a new axis": lambda x: x[1:3, None, 2:],
    "nothing": lambda x: x[:, 2:2],
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KEYS)
def test_gradients_of_slices(name: str, dtype: str):
    """A slice that does not fill the whole: its cotangent is put into zeros, or added to that of another slice."""

    def build(x: Any) -> Any:
        def body(t: Any, x: Any, total: Any) -> Any:
            chosen = KEYS[name](x)
            return t + 1, ops.sin(x) * 0.9, total + ops.sum(chosen * chosen) + ops.sum(x[1:, :5] ** 2)

        total = ab.while_loop(lambda t, *_: t < 3, body, (0, x, ops.cast(0, dtype)))[2]
        return [total, *ab.gradients(total, [x])]

    check(build, draw(4, 6, dtype=dtype), native=2)


def test_gradients_of_a_slice_alone():
    def build(x: Any) -> Any:
        def body(t: Any, h: Any) -> Any:
            z = ops.tanh(h)
            return t + 1, ops.concatenate([z[:, :2], h[:, 2:5] * 0.9, z[:, :1]], axis=1)

        h = ab.while_loop(lambda t, _: t < 4, body, (0, x))[1]
        return [h, *ab.gradients(ops.sum(h * h), [x])]

    check(build, draw(4, 6), native=2)
