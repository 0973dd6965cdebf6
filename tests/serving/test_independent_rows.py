"""Graphs that compute each row for itself: those of models do, those that mix rows are found, by the operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared.servable_models import EACH_ROW, inputs_of

import anabranch as ab
from anabranch import ops
from anabranch.engine.ops.neural.quantized import quantized_matmul
from anabranch.engine.passes.loops.independent_rows import why_rows_depend


@pytest.mark.parametrize("name", EACH_ROW)
def test_rows_of_models_are_independent_and_computed_alike(name: str, tmp_path: Any) -> None:
    model = EACH_ROW[name]()
    model.export(tmp_path, verbose=False)
    servable = ab.serving.load(tmp_path)
    assert servable.why_alone() is None
    inputs = inputs_of(model, 5, np.random.default_rng(3))
    together = servable.run(inputs)
    for row in range(5):
        alone = servable.run([array[row : row + 1] for array in inputs])
        for one, many in zip(alone, together, strict=True):
            np.testing.assert_allclose(one[0], many[row], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("how", [{"mode": "int8"}, {"mode": "int4"}, {"mode": "int8", "include": "all"}], ids=str)
def test_rows_of_quantised_models_are_independent(how: dict[str, Any], tmp_path: Any) -> None:
    layers = [ab.layers.Dense(16, "relu"), ab.layers.GRU(6, return_sequences=True), ab.layers.Dense(4)]
    model = ab.Sequential([ab.Input((5, 8), name="x"), *layers])
    model.quantize(**how)
    model.export(tmp_path, verbose=False)
    servable = ab.serving.load(tmp_path)
    assert servable.why_alone() is None
    x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")
    (together,) = servable.run([x])
    for row in range(3):
        np.testing.assert_allclose(servable.run([x[row : row + 1]])[0][0], together[row], rtol=2e-5, atol=2e-6)


def reason(build: Callable[[Any], Any], *shape: int | None) -> str | None:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None, *shape), "float32", "x")
        return why_rows_depend(graph, [x], [build(x)])


def loop_to_the_longest(x: Any) -> Any:
    longest = ops.max(ops.sum(x, axis=1))
    return ab.while_loop(lambda i, _: i < longest, lambda i, y: (i + 1.0, y * 0.5), (0.0, x))[1]


def loop_that_shifts(x: Any) -> Any:
    return ab.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, ops.roll(y, 1, axis=0)), (0, x))[1]


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda x: x - ops.mean(x, axis=0, keepdims=True), "mean"),
        (lambda x: x / ops.max(x), "max"),
        (lambda x: ops.softmax(x, axis=0), "softmax"),
        (lambda x: ops.cumsum(x, axis=0), "cum_sum"),
        (lambda x: ops.argsort(x, axis=0), "arg_sort"),
        (lambda x: ops.matmul(ops.matmul(x, ops.transpose(x)), x), "matmul"),
        (lambda x: quantized_matmul(x, np.ones((4, 4), "int8"), ops.max(x, axis=0)), "max"),
        (lambda x: x[::-1], "get_item"),
        (lambda x: x - x[:1], "get_item"),
        (lambda x: ops.concatenate([x, x], axis=0), "concatenate"),
        (lambda x: ops.reshape(x, (4, -1)), "reshape"),
        (lambda x: ops.reshape(x, ops.shape(x)[0] * np.array([2, 1], "int32")), "multiply"),
        (lambda x: ops.reshape(ops.transpose(x), (-1, 4)), "reshape"),
        (lambda x: x * ops.cast(ops.shape(x)[0], "float32"), "multiply"),
        (lambda x: x + ops.cast(ops.arange(ops.shape(x)[0]), "float32")[:, None], "range"),
        (lambda x: ops.take(x, [0, 0], axis=0), "take"),
        (lambda x: ops.take_along_axis(x, ops.zeros_like(x, dtype="int32"), axis=0), "take_along_axis"),
        (lambda x: x + ab.random.normal((1, 4)), "draws random numbers"),
        (loop_to_the_longest, "max"),
        (loop_that_shifts, ""),
        (lambda x: ops.cond(ops.sum(x) > 0, lambda: x, lambda: -x), "sum"),
        (lambda x: ops.sum(x), "sum"),
        (lambda x: ops.transpose(x), "no row for each row"),
        (lambda x: ops.convert_to_tensor(np.ones((3, 4), "float32")) + x, "add"),
    ],
)
def test_what_mixes_rows_is_named(build: Callable[[Any], Any], named: str) -> None:
    found = reason(build, 4)
    assert found is not None
    assert named in found


def test_an_input_without_rows_is_named() -> None:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((3, 4), "float32", "fixed")
        assert why_rows_depend(graph, [x], [x]) == "input 'fixed' has no axis for the rows of a batch"


# --- random programs ------------------------------------------------------------------------------------------------

STEPS: list[Callable[[Any], Any]] = [
    lambda x: ops.tanh(x) + 0.5,
    lambda x: ops.transpose(x, (0, 2, 1)),
    lambda x: ops.transpose(x, (1, 0, 2)),
    lambda x: ops.reshape(x, (ops.shape(x)[0], 2, 6)),
    lambda x: ops.reshape(x, (-1, 3, 4)),
    lambda x: ops.reshape(x, (3, -1, 4)),
    lambda x: ops.reshape(ops.reshape(x, (-1, 4)) @ np.eye(4, dtype="float32"), (-1, 3, 4)),
    lambda x: x - ops.mean(x, axis=0, keepdims=True),
    lambda x: x - ops.mean(x, axis=-1, keepdims=True),
    lambda x: ops.softmax(x, axis=1),
    lambda x: ops.flip(x, axis=2),
    lambda x: ops.cumsum(x, axis=1),
    lambda x: ops.sort(x, axis=2),
    lambda x: ops.flip(x, axis=0),
    lambda x: ops.concatenate([x[:, :, 1:], x[:, :, :1]], axis=2),
    lambda x: ops.concatenate([x[:, 1:], x[:, :1]], axis=1),
    lambda x: ops.concatenate([x[1:], x[:1]], axis=0),
    lambda x: ops.einsum("bij,bkj->bik", x, x) @ x,
    lambda x: ops.einsum("bij,cij->bc", x, x)[:, :, None] * ops.ones((1, 1, 4)),
    lambda x: ops.stack([x, -x], axis=1)[:, 0],
    lambda x: ops.expand_dims(x, 0)[0],
    lambda x: ops.scan(lambda c, e: (c * 0.5 + e, c * 0.5 + e), x[0], x)[1],
    lambda x: ops.swapaxes(ab.map_fn(lambda e: e * 2.0, ops.swapaxes(x, 0, 1)), 0, 1),
    lambda x: x + ops.zeros((ops.shape(x)[0], 1, 1)),
    lambda x: ops.cond(ops.shape(x)[1] > 2, lambda: x * 2.0, lambda: x),
]


@given(st.lists(st.integers(0, len(STEPS) - 1), min_size=1, max_size=5))
def test_random_programs_that_are_accepted_compute_rows_apart(numbers: list[int]) -> None:
    with ab.Graph().as_default() as graph, ab.Session() as session:
        x = ab.placeholder((None, 3, 4), "float32", "x")
        y: Any = x
        try:
            for number in numbers:
                y = STEPS[number](y)
        except (ValueError, TypeError, IndexError):  # shapes that a step does not take
            return
        if why_rows_depend(graph, [x], [y]) is not None:
            return
        value = np.random.default_rng(len(numbers)).normal(size=(4, 3, 4)).astype("float32")
        together = session.run(y, {x: value})
        assert len(together) == 4
        for row in range(4):
            alone = session.run(y, {x: value[row : row + 1]})
            np.testing.assert_allclose(alone[0], together[row], rtol=1e-4, atol=1e-5)
