"""Native loops in loops: what inner loops record for gradients, lengths known only at run time, and the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.built import built
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.regions.ragged import RaggedArray, rows_and_ends
from anabranch.engine.codegen.regions.region import NativeRegion
from anabranch.engine.codegen.regions.rule import LEAST_WORK, least_work
from anabranch.engine.ops.containers.array_value import ArrayValue
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")

ops = ab.ops
RNG = np.random.default_rng(1)


def draw(*shape: int) -> Any:
    return RNG.uniform(-1, 1, shape).astype("float32")


def check(build: Callable[..., Any], *values: Any, native: int = 2, rtol: float = 1e-4) -> Program:
    """As many loops are native as should be, and what they give is what the exact program gives, each time."""
    graph, targets, feeds = built(build, *values)
    program = Program(graph, targets, feeds)
    assert program.source.count("# native: ") == native, program.source
    expected = Program(graph, targets, feeds, exact=True)(*values)
    for _ in range(3):
        for value, wanted in zip(program(*values), expected, strict=True):
            assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(value, wanted, rtol=rtol, atol=rtol)
    return program


def pondered(x: Any, w: Any, limit: Any, count: int = 6, bias: Any = 0.0) -> Any:
    """A loop over the rows of x (count, batch, units), and one inside that ends when the data says so."""
    rows = ab.TensorArray("float32", count, element_shape=x.shape[1:]).unstack(x)
    first = x[0] * 0.3

    def ponder(k: Any, h: Any, total: Any) -> Any:
        h = ops.tanh(ops.matmul(h, w) + bias + first)
        return k + 1, h, total + ops.mean(h * h)

    def outer(i: Any, h: Any, total: Any) -> Any:
        k, h, own = ab.while_loop(
            lambda k, h, s: ops.logical_and(k < 40, s < limit), ponder, (0, h + rows.read(i), 0.0)
        )
        return i + 1, h * 0.9, total + own + ops.cast(k, "float32") * ops.sum(h)

    return ab.while_loop(lambda i, *_: i < count, outer, (0, x[0], 0.0))[1:]


@pytest.mark.parametrize("limit", [-1.0, 0.3, 2.0, 9.0])
def test_gradient_of_a_loop_in_a_loop(limit: float):
    """Inner loops of no, some and many iterations; the longer ones need more room than there is at first."""

    def build(x: Any, w: Any, limit: Any) -> Any:
        h, total = pondered(x, w, limit)
        loss = total + ops.sum(h * h)
        return [loss, *ab.gradients(loss, [x, w])]

    # After hundreds of steps float32 is 1e-5 of the largest gradient off float64, with NumPy as without.
    check(build, draw(6, 3, 4), draw(4, 4), np.float32(limit), rtol=1e-3)


def test_sums_over_inner_steps_stay_in_the_function():
    """The gradient of a bias sums the rows of as many inner steps as there were in each outer one."""

    def build(x: Any, w: Any, bias: Any) -> Any:
        h, total = pondered(x, w, 0.4, bias=bias)
        return ab.gradients(total + ops.sum(h * h), [w, bias])

    program = check(build, draw(6, 3, 4), draw(4, 4), draw(4), rtol=1e-3)
    step = program.source[program.source.index("def step(") :].partition("\ndef ")[0]
    assert step.count("# native: ") == 2
    assert "while " not in step


def test_sizes_that_change_from_run_to_run():
    def build(x: Any, w: Any, limit: Any) -> Any:
        h, total = pondered(x, w, limit)
        loss = total + ops.sum(h * h)
        return [loss, *ab.gradients(loss, [x, w])]

    values = draw(6, 2, 3), draw(3, 3)
    graph, targets, feeds = built(build, *values, np.float32(0))
    program, exact = Program(graph, targets, feeds), Program(graph, targets, feeds, exact=True)
    assert program.source.count("# native: ") == 2
    for limit in (8.0, 0.1, -1.0, 3.0, 8.0):
        for value, wanted in zip(program(*values, np.float32(limit)), exact(*values, np.float32(limit)), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-4)


def test_second_order():
    def build(x: Any, limit: Any) -> Any:
        def inner(h: Any, total: Any) -> Any:
            return h * 0.8 + 0.1 * h * h, total + 0.3 + ops.sum(h * h)

        def outer(i: Any, h: Any) -> Any:
            h, _ = ab.while_loop(lambda h, total: total < limit, inner, (h, 0.0))
            return i + 1, h * x

        h = ab.while_loop(lambda i, _: i < 3, outer, (0, x))[1]
        (first,) = ab.gradients(ops.sum(h * h), [x])
        (second,) = ab.gradients(ops.sum(first * first), [x])
        return [h, first, second]

    graph, targets, feeds = built(build, draw(3) + 2, np.float32(9))
    program, exact = Program(graph, targets, feeds), Program(graph, targets, feeds, exact=True)
    assert "# native: " in program.source
    value = np.array([0.7, 1.2, 0.9], "float32")
    for limit in (9.0, 1.0, 30.0):
        for found, wanted in zip(program(value, np.float32(limit)), exact(value, np.float32(limit)), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_gradient_inside_a_loop():
    """The record of a loop inside is read in the same iteration, and only there."""

    def build(x: Any) -> Any:
        def outer(i: Any, h: Any) -> Any:
            y = ab.while_loop(lambda j, _: j <= i, lambda j, y: (j + 1, y * y * 0.5 + h), (0, h))[1]
            (slope,) = ab.gradients(ops.sum(y), [h])
            return i + 1, h - 0.1 * slope

        return ab.while_loop(lambda i, _: i < 4, outer, (0, x))[1:]

    check(build, draw(3), native=1)


def test_three_loops():
    """Records of three loops in one another are left to Python, and the two inner ones run as one function."""

    def build(x: Any, n: Any) -> Any:
        def middle(j: Any, h: Any) -> Any:
            return j + 1, ab.while_loop(lambda k, _: k < n, lambda k, h: (k + 1, ops.tanh(h * x)), (0, h))[1]

        def outer(i: Any, h: Any) -> Any:
            return i + 1, ab.while_loop(lambda j, _: j < n, middle, (0, h))[1] + x

        h = ab.while_loop(lambda i, _: i < n, outer, (0, x))[1]
        return [h, *ab.gradients(ops.sum(h), [x])]

    check(build, draw(3), np.int32(3))


def test_what_was_saved_is_counted_once():
    def build(x: Any, w: Any) -> Any:
        h, total = pondered(x, w, ab.constant(1.0))
        return ab.gradients(total + ops.sum(h), [x, w])

    program = check(build, draw(6, 3, 4), draw(4, 4))
    assert 0 < program.statistics.saved_bytes < 64 * 6 * 40


def test_index_out_of_range_in_the_inner_loop():
    """The error names both iterations, and the gradient's program is the one that fails."""

    def build(x: Any, n: Any) -> Any:
        def outer(i: Any, h: Any) -> Any:
            return i + 1, ab.while_loop(lambda j, _: j < n + i, lambda j, h: (j + 1, h * x[j]), (0, h))[1]

        h = ab.while_loop(lambda i, _: i < 2, outer, (0, ops.sum(x)))[1]
        return [h, *ab.gradients(h, [x])]

    graph, targets, feeds = built(build, draw(4), np.int32(3))
    program = Program(graph, targets, feeds)
    assert "# native: " in program.source
    program(draw(4), np.int32(3))
    with pytest.raises(IndexError, match="index 4 is out of bounds") as caught:
        program(draw(4), np.int32(4))
    assert "iteration 4" in "".join(caught.value.__notes__)


def test_records_that_python_reads():
    """The record that a native loop makes of a loop inside is a TensorArray of TensorArrays elsewhere."""

    def build(x: Any, n: Any) -> Any:
        def outer(i: Any, h: Any) -> Any:
            return i + 1, ab.while_loop(lambda j, _: j < i, lambda j, h: (j + 1, h * h * 0.3 + x), (0, h))[1]

        h = ab.while_loop(lambda i, _: i < n, outer, (0, x))[1]
        (slope,) = ab.gradients(ops.sum(h), [x])
        return [h, slope]

    graph, targets, feeds = built(build, draw(2), np.int32(4))
    program, exact = Program(graph, targets, feeds), Program(graph, targets, feeds, exact=True)
    step = program._step  # pyright: ignore[reportPrivateUsage]
    forward, backward = [value for name, value in step.__globals__.items() if name.startswith("native")]
    backward.entry = lambda *_: 1  # refuses, so that Python runs that loop
    value = draw(2)
    for count in (0, 1, 5):
        for found, wanted in zip(program(value, np.int32(count)), exact(value, np.int32(count)), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert forward.plan.rooms


# --- values ---------------------------------------------------------------------------------------------------------


def test_ragged_array():
    rows = np.arange(6, dtype="float32").reshape(3, 2)
    value = RaggedArray(rows, np.array([0, 2, 2, 3]))
    assert (value.size, value.nbytes) == (3, 24)
    assert [value.read(index).size for index in range(3)] == [2, 0, 1]
    np.testing.assert_array_equal(value.read(0).stack((2,), "float32"), rows[:2])
    np.testing.assert_array_equal(value.read(2).read(0), rows[2])
    with pytest.raises(IndexError, match="index 3 is out of range for size 3"):
        value.read(3)
    later = value.write(1, ArrayValue.from_stacked(rows))
    assert (later.read(1).size, value.read(1).size) == (3, 0)


def test_rows_and_ends_of_lists():
    parts = [np.ones((2, 3), "float32"), np.zeros((0, 3), "float32"), np.full((1, 3), 2, "float32")]
    value = ArrayValue.from_list([ArrayValue.from_stacked(part) for part in parts])
    found = rows_and_ends(value, (None, 3), np.dtype("float32"))
    assert found is not None
    np.testing.assert_array_equal(found[0], np.concatenate(parts))
    assert found[1].tolist() == [0, 2, 2, 3]
    assert rows_and_ends(value, (None, 4), np.dtype("float32")) is None
    assert rows_and_ends(value, (None, 3), np.dtype("float64")) is None
    assert rows_and_ends(ArrayValue.empty(2), (None, 3), np.dtype("float32")) is None
    empty = rows_and_ends(ArrayValue.empty(0), (None, 3), np.dtype("float32"))
    assert empty is not None
    assert (empty[0].shape, empty[1].tolist()) == ((0, 3), [0])


# --- what is worth it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "is_native"), [(5, False), (5000, True), (None, True)])
def test_short_loops_are_not_compiled(count: int | None, is_native: bool):
    def build(x: Any, n: Any) -> Any:
        limit = n if count is None else count
        return ab.while_loop(lambda i, _: i < limit, lambda i, x: (i + 1, x * 0.5 + 1.0), (0, x))

    graph, targets, feeds = built(build, np.float32(1), np.int32(1))
    with least_work(LEAST_WORK):
        program = Program(graph, targets, feeds)
    assert ("# native: " in program.source) is is_native


def test_gradient_of_a_short_loop_is_not_compiled_either():
    def build(x: Any) -> Any:
        y = ab.while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, ops.sqrt(y) + x), (0, x))[1]
        return [y, *ab.gradients(y, [x])]

    graph, targets, feeds = built(build, np.float32(1))
    with least_work(LEAST_WORK):
        assert "# native: " not in Program(graph, targets, feeds).source


# --- generated programs ---------------------------------------------------------------------------------------------


@st.composite
def updates(draw: st.DrawFn, depth: int = 2) -> Callable[..., Any]:
    """A function of three vectors, x and the outer and inner variable."""
    kind = draw(st.sampled_from(("variable", "tanh", "sum", "product", "branch") if depth else ("variable",)))
    if kind == "variable":
        position = draw(st.integers(0, 2))
        return lambda *values: values[position]
    a, b = draw(updates(depth - 1)), draw(updates(depth - 1))
    if kind == "tanh":
        return lambda *values: ops.tanh(a(*values))
    if kind == "sum":
        return lambda *values: a(*values) * 0.5 + b(*values)[::-1]
    if kind == "product":
        return lambda *values: a(*values) * b(*values) * 0.5
    return lambda *values: ab.cond(ops.sum(values[2]) > 0, lambda: a(*values), lambda: b(*values))


@settings(max_examples=examples(5, 12), deadline=None, derandomize=True, database=None)
@given(updates(), updates(), st.integers(0, 4), st.integers(-1, 3))
def test_generated_nested_loops(outer_update: Any, inner_update: Any, count: int, extra: int):
    def build(x: Any) -> Any:
        def outer(i: Any, h: Any) -> Any:
            inner = ab.while_loop(
                lambda j, _: j < i + extra, lambda j, y: (j + 1, ops.tanh(inner_update(x, h, y)) + x * 0.1), (0, h)
            )[1]
            return i + 1, outer_update(x, h, inner) * 0.5 + x

        h = ab.while_loop(lambda i, _: i < count, outer, (0, x))[1]
        return [h, ab.gradients(ops.sum(h * h) + ops.sum(x), [x])[0]]

    value = np.array([0.5, -0.3, 0.8], "float32")
    graph, targets, feeds = built(build, value)
    program, exact = Program(graph, targets, feeds), Program(graph, targets, feeds, exact=True)
    for found, wanted in zip(program(value), exact(value), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    with without("native"):
        for found, wanted in zip(Program(graph, targets, feeds)(value), exact(value), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("is_taken", [True, False])
def test_loop_around_the_gradient_of_a_branch_is_given_what_the_branch_not_taken_saves(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
):
    """It saves nothing: the loop gets zeros of the shapes in its place, of integers, too, and stays native."""

    def powered(x: Any) -> Any:
        return ops.power(ops.abs(x) + 0.5, ops.clip(ops.sum(x), -2, 2))

    def written(x: Any, n: Any) -> Any:
        places = ops.reshape(ops.mod(ops.arange(2) + n, 3), (2, 1))
        return ops.tensor_scatter_nd_update(x, places, ops.tanh(x[:2]))

    def build(x: Any, flag: Any, n: Any) -> list[Any]:
        y = ab.cond(flag, lambda: powered(x), lambda: written(x, n))
        return [ab.jacobian(y, x, parallel=False)]

    results: list[Any] = []
    call = NativeRegion.__call__

    def noted(self: NativeRegion, *given: Any) -> Any:
        results.append(call(self, *given))
        return results[-1]

    monkeypatch.setattr(NativeRegion, "__call__", noted)
    check(build, draw(12), np.bool_(is_taken), np.int32(1), native=1)
    assert len(results) == 3
    assert None not in results
