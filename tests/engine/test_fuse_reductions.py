"""Fusion of reductions, changes of shape and parts into the kernels of what they reduce: structure and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.fusion_checks import Check, groups, prepared
from shared.symbols import symbols_of

import anabranch as ab
from anabranch.engine.graph import Graph, Symbol, Tensor
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

o = ab.ops
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def values(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return (RNG.normal(size=shape) * (9 if dtype == "int32" else 1)).astype(dtype)


def layer_norm(x: Tensor, gain: Tensor, offset: Tensor) -> Tensor:
    mean = o.mean(x, axis=-1, keepdims=True)
    variance = o.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) * o.rsqrt(variance + 1e-3) * gain + offset


def run(targets: Sequence[Tensor], feeds: dict[Symbol, Any]) -> tuple[Any, ...]:
    return Program(symbol_of(targets[0]).graph, symbols_of(targets), list(feeds))(*feeds.values())


# --- structure ------------------------------------------------------------------------------------------------------


def test_softmax_joins_its_chain():
    x = ab.placeholder((6, 5), "float32")
    y = o.softmax(x * 2 + 1) * 3
    assert groups([y], [x]) == ["multiply add softmax multiply"]
    Check([y], {x: values((6, 5))}, tolerance=1e-5)


def test_layer_normalisation_is_one_kernel_each_way():
    x, gain, offset = (ab.placeholder(shape, "float32") for shape in ((6, 5), (5,), (5,)))
    y = layer_norm(x, gain, offset)
    given = {x: values((6, 5)), gain: values((5,)), offset: values((5,))}
    assert len(groups([y], [*given])) == 1
    gradients = ab.gradients(o.sum(y * y), [x, gain, offset])
    assert len(groups([y, *gradients], [*given])) <= 2
    Check([y, *gradients], given, tolerance=2e-4)


def test_mean_square_is_one_kernel_with_its_gradient():
    x, y = (ab.placeholder((300, 7), "float32", name) for name in "xy")
    loss = o.mean((x - y) ** 2)
    (gradient,) = ab.gradients(loss, [x])
    (only,) = groups([loss, gradient], [x, y])
    assert only.split().count("mean") == 1
    Check([loss, gradient], {x: values((300, 7)), y: values((300, 7))}, tolerance=1e-5)


def test_a_gradient_of_a_bias_is_gathered_in_the_kernel():
    x, bias = ab.placeholder((64, 9), "float32"), ab.placeholder((9,), "float32")
    loss = o.sum(o.relu(x + bias) ** 2)
    (gradient,) = ab.gradients(loss, [bias])
    assert len(groups([loss, gradient], [x, bias])) == 1
    Check([loss, gradient], {x: values((64, 9)), bias: values((9,))}, tolerance=1e-5)


def test_a_sum_over_another_axis_is_used_outside():
    x = ab.placeholder((64, 9), "float32")
    y = x * 2 + 1
    z = y - o.sum(y, axis=0)
    found = groups([z], [x])
    assert found[0] == "multiply add sum"
    Check([z], {x: values((64, 9))}, tolerance=1e-4)


@pytest.mark.parametrize("axes", [(0, 1), (0, 2), (1,), (2,)])
def test_a_sum_beside_a_larger_array_counts_each_element_once(axes: tuple[int, ...]):
    """The gradients of two biases with a reshape between them: the column is the same along two loops of the other."""
    column, row = ab.placeholder((16, 1), "float32"), ab.placeholder((12, 1), "float32")
    twice = column + column
    product = o.reshape(o.matmul(twice, o.transpose(row)), (16, 4, 3))
    targets = [o.sum(twice), o.sum(product, axis=axes)]
    assert groups(targets, [column, row]) == ["add multiply reshape sum"], "the other sum is fused as before"
    Check(targets, {column: values((16, 1)), row: values((12, 1))}, tolerance=1e-5)


@pytest.mark.parametrize("keepdims", [True, False])
def test_what_a_reduction_gives_back_is_read_where_it_lies(keepdims: bool):
    """The gradient of a sum over the last axis is no array of its own, wherever its cotangent comes from."""
    x, weight, factor = (ab.placeholder(shape, "float32") for shape in ((4, 6, 8), (4, 6), (8,)))
    scores = o.sum(o.tanh(x) * factor, axis=-1, keepdims=keepdims)
    loss = o.sum(o.cumsum(o.reshape(scores, (4, 6)), axis=1) * weight)  # computed outside of kernels
    gradients = ab.gradients(loss, [x, factor])
    step = prepared(gradients, [x, weight, factor])
    assert not [operation for operation in step.operations if operation.type == "broadcast_reduced"]
    assert any("broadcast_to" in group and group.split().count("sum") == 1 for group in groups(gradients, []))
    Check(gradients, {x: values((4, 6, 8)), weight: values((4, 6)), factor: values((8,))}, tolerance=1e-4)


@pytest.mark.parametrize("reduce", [o.sum, o.mean, o.max, o.min])
@pytest.mark.parametrize("axis", [0, 1, (0, 1), None])
def test_a_reduction_is_a_kernel_of_its_own(reduce: Callable[..., Tensor], axis: Any):
    for rows in (512, 2):
        x = ab.placeholder((rows, 16, 9), "float32")
        y = reduce(x, axis=axis)
        assert len(groups([y], [x])) == 1
        Check([y], {x: values((rows, 16, 9))}, tolerance=1e-3)


def test_a_large_gradient_of_a_bias_is_a_kernel():
    x, bias = ab.placeholder((200, 40, 16), "float32"), ab.placeholder((16,), "float32")
    (gradient,) = ab.gradients(o.sum(o.cumsum(x + bias, axis=0)), [bias])
    assert [operation for operation in prepared([gradient], [x, bias]).operations if isinstance(operation.op, Fused)]
    Check([gradient], {x: values((200, 40, 16)), bias: values((16,))}, tolerance=1e-3)


def test_rows_of_two_lengths():
    """One of two kinds of rows is that of the kernel."""
    x = ab.placeholder((8, 6, 5), "float32")
    y = o.softmax(x * 2, axis=-1)
    z = o.softmax(o.reshape(y, (8, 30)) + 1, axis=-1)
    assert len(groups([z], [x])) == 2
    Check([z], {x: values((8, 6, 5))}, tolerance=1e-5)


def test_changes_of_shape_do_not_break_a_chain():
    x, row = ab.placeholder((6, 20), "float32"), ab.placeholder((20,), "float32")
    y = o.reshape(x + row, (6, 4, 5)) * 2
    z = o.squeeze(o.expand_dims(o.mean(y, axis=-1), 1), 1) + 1
    assert len(groups([y, z], [x, row])) == 1
    Check([y, z], {x: values((6, 20)), row: values((20,))}, tolerance=1e-5)


def test_a_shape_that_does_not_fit_breaks_a_chain():
    x = ab.placeholder((4, 6), "float32")
    y = o.reshape(x * 2 + 1, (3, 8)) * o.constant(values((8,))) - 1
    z = o.reshape(x * 2 + 1, (8, 3)) * o.constant(values((8, 1))) - 1
    Check([y, z], {x: values((4, 6))}, tolerance=1e-6)


def test_a_view_that_is_used_outside_stays_a_view():
    x = ab.placeholder((6, 4), "float32")
    y = o.reshape(x * 2 + 1, (4, 6))
    z = o.matmul(y, o.ones((6, 2)))
    step = prepared([z], [x])
    assert [operation.type for operation in step.operations if operation.type in ("fused", "reshape")] == [
        "fused",
        "reshape",
    ]
    Check([z, y], {x: values((6, 4))}, tolerance=1e-5)


@pytest.mark.parametrize("how", ["split", "unstack"])
def test_gates_are_parts_of_one_kernel(how: str):
    z, c = ab.placeholder((6, 20), "float32"), ab.placeholder((6, 5), "float32")
    if how == "split":
        i, f, g, out = o.split(z, 4, axis=-1)
    else:
        i, f, g, out = o.unstack(o.reshape(z, (6, 4, 5)), 4, axis=1)
    cell = o.sigmoid(f) * c + o.sigmoid(i) * o.tanh(g)
    h = o.sigmoid(out) * o.tanh(cell)
    assert len(groups([h, cell], [z, c])) == 1
    gradients = ab.gradients(o.sum(h * h) + o.sum(cell), [z, c])
    assert len(groups(gradients, [z, c])) <= 2
    Check([h, cell, *gradients], {z: values((6, 20)), c: values((6, 5))}, tolerance=1e-4)


def test_a_normalised_cell_is_one_kernel():
    z, gain, c = (ab.placeholder(shape, "float32") for shape in ((6, 20), (4, 5), (6, 5)))
    normal = layer_norm(o.reshape(z, (6, 4, 5)), gain, gain)
    i, f, g, out = o.unstack(normal, 4, axis=1)
    cell = o.sigmoid(f) * c + o.sigmoid(i) * o.tanh(g)
    h = o.sigmoid(out) * o.tanh(cell)
    given = {z: values((6, 20)), gain: values((4, 5)), c: values((6, 5))}
    assert len(groups([h, cell], [*given])) == 1
    gradients = ab.gradients(o.sum(h * h) + o.sum(cell), [*given])
    assert len(groups([h, *gradients], [*given])) <= 4
    Check([h, cell, *gradients], given, tolerance=2e-3)


def test_parts_that_nothing_computes_with_stay():
    x = ab.placeholder((6, 20), "float32")
    assert groups([*o.split(x, 4, axis=-1)], [x]) == []


def test_a_switch():
    x = ab.placeholder((6, 5), "float32")
    y = o.softmax(x * 2 + 1) * 3 - 1
    with without("reductions"):
        assert groups([y], [x]) == ["multiply add", "multiply subtract"]


def test_inside_a_loop_with_gradients():
    x, gain = ab.placeholder((6, 5), "float32"), ab.placeholder((5,), "float32")
    _, y = ab.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, o.tanh(layer_norm(a, gain, gain))), (0, x))
    (first, other) = ab.gradients(o.sum(y * y), [x, gain])
    (second,) = ab.gradients(o.sum(first * first), [gain])
    Check([y, first, other, second], {x: values((6, 5)), gain: values((5,))}, tolerance=2e-2)


def test_results_are_not_written_over_rows_that_are_read_again():
    """A gathered sum has the shape of an operand that dies."""
    x, row = ab.placeholder((6, 4), "float32"), ab.placeholder((1, 4), "float32")
    dying = o.cumsum(row, axis=1)
    y = x * dying
    total = o.sum(y * x, axis=0, keepdims=True)
    Check([y, total], {x: values((6, 4)), row: values((1, 4))}, tolerance=1e-5)


def test_a_sum_of_all_is_used_beside_sums_of_columns():
    """No kernel has rows of both kinds; the pass finds that out and fuses less."""
    x, y = (ab.placeholder((2, 3), "float64", name) for name in "xy")
    scaled = (o.sum(x * y) * 2 + 1) * y
    total = o.sum(scaled, axis=0)
    Check([total, scaled], {x: values((2, 3), "float64"), y: values((2, 3), "float64")}, tolerance=1e-12)


# --- values ---------------------------------------------------------------------------------------------------------

SHAPES = [(1, 5), (7, 1), (2, 3, 5), (64, 100), (3, 2, 1, 4), (5, 1030), (2, 2500)]


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *[("float32", shape) for shape in SHAPES],
        *[pytest.param(dtype, (2, 3, 5)) for dtype in ("float64", "int32")],
        *[
            pytest.param(dtype, shape, marks=pytest.mark.slow)
            for dtype in ("float64", "int32")
            for shape in SHAPES
            if shape != (2, 3, 5)
        ],
    ],
)
def test_reductions_of_all_kinds(shape: tuple[int, ...], dtype: str):
    x = ab.placeholder(shape, dtype)
    y = x * x + 1 - x
    found: list[Tensor] = [y]
    for axes in (-1, 0, None, tuple(range(len(shape)))[1:]):
        for reduction in (o.sum, o.max, o.min):
            found.append(reduction(y, axis=axes))
            found.append(reduction(y * 2, axis=axes, keepdims=True) + 1)
    given = {x: values(shape, dtype)}
    Check(found, given, tolerance=0 if dtype == "int32" else 1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "max", "min", "sum", "mean"])
def test_special_values(name: str):
    rows = [[1, 2, 3], [np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 1, 2], [-np.inf] * 3, [np.inf, -np.inf, 0], [1e38] * 3]
    x = ab.placeholder((7, 3), "float32")
    function: Callable[..., Tensor] = getattr(o, name)
    y = function(x * 1.0 + 0.0, axis=-1) + 0.0
    Check([y], {x: np.array(rows, "float32")}, tolerance=1e-5)
    column = function(o.transpose(x) * 1.0, axis=0)
    Check([column], {x: np.array(rows, "float32")}, tolerance=1e-5)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((4000, 2), 1), ((4000, 2), 0), ((1, 80, 30, 2), (1, 2)), ((4000, 2), (0, 1)), ((8, 1000), 1), ((3,), 0)],
)
def test_reductions_by_themselves(shape: tuple[int, ...], axis: Any):
    """NumPy calls a loop for each row."""
    x = ab.placeholder(shape, "float32")
    for reduce in (o.sum, o.max, o.mean):
        y = reduce(x, axis=axis)
        assert len(groups([y], [x])) == 1
        Check([y], {x: values(shape)}, tolerance=1e-5)


@pytest.mark.parametrize(
    ("build", "shapes", "count"),
    [
        (o.add, [(1, 10), (10,)], 1),
        (o.multiply, [(4, 1), (4, 3)], 1),
        (o.add, [(4, 3), (4, 3)], 0),
        (o.add, [(4, 3), ()], 0),
        (lambda x: o.repeat(x, 3, axis=1), [(2, 4, 3)], 1),
        (lambda x: o.repeat(o.repeat(x, 2, axis=1), 2, axis=2), [(2, 4, 3, 5)], 1),
        (lambda x: o.broadcast_to(x, (6, 4, 3)), [(4, 3)], 0),
        (lambda x: o.reshape(o.broadcast_to(x, (1, 4, 3)), (12,)), [(4, 3)], 0),
    ],
)
def test_what_numpy_does_by_rows_or_copies_is_a_kernel_by_itself(
    build: Callable[..., Tensor], shapes: Sequence[tuple[int, ...]], count: int
):
    inputs = [ab.placeholder(shape, "float32") for shape in shapes]
    y = build(*inputs)
    assert len(groups([y], inputs)) == count
    Check([y], {x: values(x.shape) for x in inputs}, tolerance=1e-5)


@pytest.mark.parametrize("reduce", [o.any, o.all])
@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), (0, 1, 2), None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_some_or_all_of_many_elements_are_true(reduce: Callable[..., Tensor], axis: Any, keepdims: bool):
    x, mask = ab.placeholder((40, 50, 6), "float32"), ab.placeholder((40, 50, 6), "bool")
    for likely in (0.0, 0.001, 0.5, 0.999, 1.0):
        given = RNG.uniform(size=(40, 50, 6)) < likely
        found = run([reduce(mask, axis=axis, keepdims=keepdims), reduce(x > 0, axis, keepdims)], {
            x: np.where(given, 1, np.nan).astype("float32"), mask: given,
        })  # fmt: skip
        expected = (np.any if reduce is o.any else np.all)(given, axis=axis, keepdims=keepdims)
        for each in found:
            assert each.dtype == bool
            np.testing.assert_array_equal(each, expected)


def test_long_sums_are_accurate():
    """At least as accurate as NumPy's pairwise sums."""
    rng = np.random.default_rng(3)  # not the one of all tests: what that gives depends on which of them ran before
    for dtype in ("float32", "float64"):
        value = (rng.uniform(0.5, 1.5, 1_000_003) * rng.choice([1, -1], 1_000_003)).astype(dtype)
        x = ab.placeholder(value.shape, dtype)
        (total,) = run([o.sum(x * 1 + 0 * x)], {x: value})
        exact = np.sum(value.astype(np.longdouble))
        bound = max(abs(np.sum(value) - exact), np.finfo(dtype).eps * np.abs(value).sum() * 0.01)
        assert abs(total - exact) <= bound
        (positive,) = run([o.sum(o.absolute(x) * 1)], {x: value})
        exact = np.sum(np.abs(value).astype(np.longdouble))
        assert abs(positive - exact) <= max(abs(np.sum(np.abs(value)) - exact), 2 * np.finfo(dtype).eps * exact)


def test_empty_axes_keep_numpy():
    x = ab.placeholder((0, 4), "float32")
    Check([o.sum(x * 2 + 1, axis=0), o.sum(x * 2 + 1, axis=1), o.softmax(x * 2 + 1)], {x: np.zeros((0, 4), "float32")})


class _Chain:
    """A random chain of elementwise operations, reductions and broadcasts over one space."""

    def __init__(self, draw: Callable[[Any], Any], x: Tensor) -> None:
        self.draw = draw
        self.found = [x]

    def step(self) -> None:
        x = self.draw(st.sampled_from(self.found[-4:]))
        kind = self.draw(st.sampled_from(["scale", "join", "sum", "mean", "max", "softmax", "tanh", "row", "flat"]))
        rank = x.ndim or 0
        if kind == "scale":
            result = x * 0.5 + 1
        elif kind == "join":
            other = self.draw(st.sampled_from(self.found))
            fits = np.broadcast_shapes(x.shape, other.shape) in (x.shape, other.shape) if _fit(x, other) else False
            result = x - other * 0.5 if fits else x * 2
        elif kind in ("sum", "mean", "max") and rank:
            axis = self.draw(st.integers(0, rank - 1))
            result = {"sum": o.sum, "mean": o.mean, "max": o.max}[kind](
                x * 0.5, axis=axis, keepdims=self.draw(st.booleans())
            )
        elif kind == "softmax" and rank:
            result = o.softmax(x, axis=self.draw(st.integers(0, rank - 1)))
        elif kind == "row" and rank:
            result = x * o.mean(x, axis=-1, keepdims=True)
        elif kind == "flat" and rank > 1:
            result = o.reshape(x, (x.shape[0], -1)) - 1
        else:
            result = o.tanh(x)
        self.found.append(result)


def _fit(x: Tensor, y: Tensor) -> bool:
    try:
        np.broadcast_shapes(x.shape, y.shape)  # pyright: ignore[reportArgumentType, reportCallIssue]
    except ValueError:
        return False
    return True


@settings(max_examples=examples(12, 30))
@given(st.data())
def test_random_chains(data: st.DataObject):
    with Graph().as_default():
        shape = data.draw(st.sampled_from([(4, 3), (2, 3, 4), (5, 1, 3), (1, 6), (3, 4, 2, 2)]))
        x = ab.placeholder(shape, "float32")
        chain = _Chain(data.draw, x)
        for _ in range(data.draw(st.integers(2, 9))):
            chain.step()
        loss = o.mean(o.tanh(chain.found[-1]))
        (gradient,) = ab.gradients(loss, [x], unconnected_gradients="zero")
        wanted = [*chain.found[1:], loss, gradient]
        chosen = data.draw(st.lists(st.sampled_from(wanted), min_size=1, max_size=4, unique=True))
        Check([*chosen, gradient], {x: values(shape)}, tolerance=2e-3)


def test_a_fused_op_means_its_steps():
    x = ab.placeholder((6, 4), "float32")
    y = o.softmax(x * 2 + 1)
    step = prepared([y], [x])
    (fused,) = [operation for operation in step.operations if isinstance(operation.op, Fused)]
    given = values((6, 4))
    assert isinstance(fused.op, Fused)
    constants = [getattr(tensor.operation.op, "value", given) for tensor in fused.inputs]
    (found,) = fused.op.run(np, *constants)
    expected = np.exp(given * 2 + 1)
    np.testing.assert_allclose(found, expected / expected.sum(-1, keepdims=True), 1e-5)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 3, 2), (2, 2, 17), (3, 5, 8)])
def test_sums_of_short_axes_of_which_a_value_has_one(shape: tuple[int, ...], axis: int):
    """The gradient of a bias before a mean over steps: what it adds up is the same for all steps of a row."""
    kept = tuple(1 if k == axis else size for k, size in enumerate(shape))
    x = ab.placeholder(kept, "float32")
    v = ab.placeholder((shape[-1],), "float32")
    total = o.sum(o.broadcast_to(x, shape), axis=(0, 1))
    values = np.random.default_rng(0).normal(size=kept).astype("float32")
    Check([v - total * 0.5, total * 2], {x: values, v: np.ones(shape[-1], "float32")}, tolerance=1e-5)


def test_parts_of_which_another_view_goes_across():
    """A group that can't have the axis of a concatenation stays as it was."""
    a, b, w = ab.placeholder((5, 4), "float32"), ab.placeholder((5, 4), "float32"), ab.placeholder((8, 2), "float32")
    y = a + b
    Check(
        [o.reshape(y, (20,)) - 1.0, o.concatenate([y, y * 2.0], axis=1) @ w],
        {a: values((5, 4)), b: values((5, 4)), w: values((8, 2))},
    )
