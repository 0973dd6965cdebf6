"""Branches by row: only the rows that need a branch run through it; differentiable to any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Tensor, eagerly


@pytest.fixture(autouse=True)
def graph():
    with ab.Graph().as_default() as graph:
        yield graph


def counted(seen: list[int], label: int = 1) -> Any:
    """The identity, which notes how many rows came by."""

    def note(x: Any) -> Any:
        seen.append(label * len(x))
        return x

    return lambda x: ops.numpy_function(note, [x], x.dtype, shape=x.shape, stateful=False, grad=lambda xs, ys, dys: dys)


def test_only_the_rows_that_need_a_branch_run_through_it():
    x = ab.placeholder((None, 2), "float32", "x")
    seen: list[int] = []
    true, false = counted(seen), counted(seen, -1)
    y = ab.batched_cond(x[:, 0] > 0, lambda v: true(v) * 2, lambda v: false(v) - 1, x)
    value = np.array([[1, 5], [-1, 6], [2, 7]], "float32")
    np.testing.assert_array_equal(ab.Session().run(y, {x: value}), [[2, 10], [-2, 5], [4, 14]])
    assert sorted(seen) == [-1, 2]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_that_no_row_takes_does_not_run(sign: int):
    x = ab.placeholder((None,), "float32", "x")
    runs = ab.Variable([0, 0], dtype="int32", name="runs")

    def branch(position: int) -> Any:
        def run(v: Tensor) -> Tensor:
            runs.assign_add(np.eye(2, dtype="int32")[position])
            return v * 2

        return run

    y = ab.batched_cond(x > 0, branch(0), branch(1), x)
    np.testing.assert_array_equal(ab.Session().run(y, {x: [sign, 2 * sign]}), [2 * sign, 4 * sign])
    np.testing.assert_array_equal(runs.numpy(), [1, 0] if sign > 0 else [0, 1])
    assert ab.Session().run(y, {x: []}).shape == (0,)
    assert runs.numpy().sum() == 1


@pytest.mark.parametrize("choose", ["cond", "switch"])
def test_batches_that_are_known_to_have_no_rows(choose: str):
    """As values have, and parts of other batches: results have the structure and shape of the branches' results."""

    def chosen(x: Any) -> Any:
        if choose == "cond":
            return ab.batched_cond(x[:, 0] > 0, lambda v: (v[:, :1] * 2, v), lambda v: (-v[:, :1], v), x)
        return ab.batched_switch(ops.cast(x[:, 0], "int32"), [lambda v: (v[:, :1] * 2, v)], x)

    x = ab.placeholder((0, 3), "float64", "x")
    first, second = chosen(x)
    gradient = ab.gradients(ops.sum(first), [x])[0]
    found = ab.Session().run([first, second, gradient], {x: np.zeros((0, 3))})
    assert [each.shape for each in found] == [(0, 1), (0, 3), (0, 3)]
    assert [each.dtype.name for each in found] == ["float64"] * 3
    with eagerly():
        assert [each.shape for each in chosen(np.zeros((0, 3)))] == [(0, 1), (0, 3)]


def test_structures_and_other_tensors():
    x = ab.placeholder((None,), "float32", "x")
    scale = ab.placeholder((), "float32", "scale")

    def first(pair: dict[str, Tensor], z: Tensor) -> Any:
        return {"sum": pair["a"] + pair["b"], "z": (z * scale,)}

    def second(pair: dict[str, Tensor], z: Tensor) -> Any:
        return {"sum": pair["a"] - pair["b"], "z": (z,)}

    y = ab.batched_cond(x > 1, first, second, {"a": x, "b": x * 10}, x)
    found = ab.Session().run(y, {x: [1, 2], scale: 100})
    np.testing.assert_array_equal(found["sum"], [-9, 22])
    np.testing.assert_array_equal(found["z"][0], [1, 200])


def test_switch():
    x = ab.placeholder((None,), "float32", "x")
    index = ab.placeholder((None,), "int32", "index")
    y = ab.batched_switch(index, [lambda v: v, lambda v: v * 10, lambda v: v * 100], x)
    np.testing.assert_array_equal(ab.Session().run(y, {x: [1, 2, 3, 4], index: [2, 0, 2, 1]}), [100, 2, 300, 40])
    with pytest.raises(ValueError, match="3"):
        ab.Session().run(y, {x: [1.0], index: [3]})


@given(st.lists(st.floats(-2, 2).filter(lambda v: abs(v) > 1e-2), max_size=6), st.floats(0.5, 1.5))
def test_values_and_gradients_are_those_of_a_choice_between_both(values: list[float], weight: float):
    with ab.Graph().as_default():
        x = ab.placeholder((None,), "float64", "x")
        w = ab.placeholder((), "float64", "w")
        true, false = (lambda v: ops.sin(v * w) * v), (lambda v: ops.exp(v) * w * w)
        both = ops.where(x > 0, true(x), false(x))
        rows = ab.batched_cond(x > 0, true, false, x)
        fetches: list[Any] = []
        for y in (both, rows):
            first = ab.gradients(ops.sum(y * y), [x, w])
            total = ops.sum(first[0] * first[0]) + first[1] * first[1]
            fetches.append([y, *first, *ab.gradients(total, [x, w])])
        wanted, found = ab.Session().run(fetches, {x: np.array(values), w: weight})
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-12)


def test_no_nan_from_the_branch_not_taken():
    x = ab.placeholder((None,), "float32", "x")
    y = ab.batched_cond(x > 0, ops.log, lambda v: v * 0, x)
    dy, value = ab.Session().run([ab.gradients(y, [x])[0], y], {x: [-1.0, 2.0]})
    np.testing.assert_allclose(value, [0, np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(dy, [0, 0.5])


def test_inside_a_loop_rows_stop_one_by_one():
    x = ab.placeholder((None,), "float32", "x")

    def body(steps: Tensor, v: Tensor) -> Any:
        running = v > 1
        return steps + ops.cast(running, "int32"), ab.batched_cond(running, lambda r: r / 2, lambda r: r, v)

    steps, last = ab.while_loop(lambda _, v: ops.any(v > 1), body, (ops.zeros_like(x, "int32"), x))
    found = ab.Session().run([steps, last, ab.gradients(last, [x])[0]], {x: [1, 3, 16]})
    np.testing.assert_array_equal(found[0], [0, 2, 4])
    np.testing.assert_array_equal(found[1], [1, 0.75, 1])
    np.testing.assert_array_equal(found[2], [1, 0.25, 0.0625])


def test_nested():
    x = ab.placeholder((None,), "float32", "x")
    inner = lambda v: ab.batched_cond(v > 10, lambda r: r * 100, lambda r: r * 10, v)  # noqa: E731
    y = ab.batched_cond(x > 0, inner, lambda v: v, x)
    np.testing.assert_array_equal(ab.Session().run(y, {x: [-1, 5, 20]}), [-1, 50, 2000])


def test_rows_whose_result_has_another_shape_and_is_not_known_before():
    x = ab.placeholder((None, None), "float32", "x")
    y = ab.batched_cond(x[:, 0] > 0, lambda v: v * 2, lambda v: v, x)
    np.testing.assert_array_equal(ab.Session().run(y, {x: [[1, 2, 3]]}), [[2, 4, 6]])


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x, p: ab.batched_cond(x, abs, abs, x), TypeError, r"pred must hold bools, got float32\[3\]"),
        (lambda x, p: ab.batched_cond(p, abs, abs), ValueError, "needs operands"),
        (lambda x, p: ab.batched_cond(p[0], abs, abs, x), ValueError, r"one axis.*got shape \[\].*use ab.cond"),
        (
            lambda x, p: ab.batched_cond(p, abs, abs, x[:2]),
            ValueError,
            r"the choice is int32\[3\], the operands float32\[2\]",
        ),
        (
            lambda x, p: ab.batched_cond(p, abs, ops.sum, x),
            ValueError,
            r"false_fn must return a row for each row.*float32\[\]",
        ),
        (
            lambda x, p: ab.batched_cond(p, abs, lambda v: (v, v), x),
            TypeError,
            "true_fn returns a value, false_fn does not",
        ),
        (lambda x, p: ab.batched_cond(p, abs, lambda v: v > 0, x), TypeError, r"true_fn float32\[\?\], false_fn bool"),
        (lambda x, p: ab.batched_switch(x, [abs], x), TypeError, "index must hold integers"),
        (lambda x, p: ab.batched_switch(p, [], x), TypeError, "index must hold integers, got bool"),
        (lambda x, p: ab.batched_switch([0, 0, 0], [], x), ValueError, "needs at least one branch"),
    ],
)
def test_bad_calls(call: Any, error: type[Exception], match: str):
    x = ab.placeholder((3,), "float32", "x")
    with pytest.raises(error, match=match):
        call(x, x > 0)


def test_a_branch_that_returns_another_number_of_rows():
    x = ab.placeholder((None,), "float32", "x")
    y = ab.batched_cond(x > 0, lambda v: v[:1], lambda v: v, x)
    with pytest.raises(ValueError, match=r"true_fn was given 2 rows and must return as many; a result has shape \[1\]"):
        ab.Session().run(y, {x: [1.0, 2.0, -1.0]})
