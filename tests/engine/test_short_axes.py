"""Short innermost axes are written out: vectors go along the axis before (`row_builder`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.fusion_checks import Check, groups, prepared

import anabranch as ab
from anabranch.engine.codegen.elementwise.row_builder import bind_rows
from anabranch.engine.codegen.elementwise.row_code import RowKernel
from anabranch.engine.graph import Graph, Tensor
from anabranch.engine.ops.internal.fused import Fused

o = ab.ops
RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def values(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return (RNG.normal(size=shape) * (9 if dtype == "int32" else 1)).astype(dtype)


def kernels(targets: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[RowKernel]:
    """The kernels of the fused operations of a step."""
    found: list[RowKernel] = []
    for operation in prepared(targets, inputs).operations:
        if isinstance(operation.op, Fused) and operation.op.layouts:
            specs: list[list[Any]] = [[t.spec for t in ends] for ends in (operation.inputs, operation.outputs)]
            kernel = bind_rows(operation.op, *specs).spec
            assert isinstance(kernel, RowKernel)
            found.append(kernel)
    return found


def distances(x: Tensor, y: Tensor) -> Tensor:
    return o.sum(o.square(o.expand_dims(x, -2) - o.expand_dims(y, -3)), axis=-1)


def softly(x: Tensor) -> Tensor:
    return o.softmax(x * 2) + 0.5


def centred(x: Tensor) -> Tensor:
    return x * 2 - o.mean(x * 2, axis=-1, keepdims=True)


# --- which axes ------------------------------------------------------------------------------------------------------


def test_distances_read_an_operand_transposed():
    x, y = ab.placeholder((20, 6), "float32"), ab.placeholder((30, 6), "float32")
    (kernel,) = kernels([o.exp(-0.5 * distances(x, y))], [x, y])
    assert (kernel.unrolled, kernel.transposed, kernel.loops) == (6, (1,), 2)
    assert all(node.kind != "reduce" for node in kernel.nodes)


def test_a_gradient_without_a_sum_over_the_axis():
    """Weights are the same along the short axis, and are read as vectors, too."""
    x, y, weight = (ab.placeholder(shape, "float32") for shape in ((20, 6), (30, 6), (20, 30)))
    difference = o.expand_dims(x, 1) - o.expand_dims(y, 0)
    result = o.sum(difference * o.expand_dims(weight, 2), axis=0)
    (kernel,) = kernels([result], [x, y, weight])
    assert kernel.unrolled == 6


@pytest.mark.parametrize(("shape", "unrolled"), [((40, 16), 16), ((40, 17), 1), ((8, 6), 1), ((3, 7, 5), 5)])
def test_lengths(shape: tuple[int, ...], unrolled: int):
    """Vectors need an axis of 16 before, which may be several axes together."""
    x = ab.placeholder(shape, "float32")
    (kernel,) = kernels([softly(x)], [x])
    assert kernel.unrolled == unrolled


@pytest.mark.parametrize(("rows", "unrolled"), [(32, 1), (256, 10)])
def test_much_code_for_few_rows_is_not_written_out(rows: int, unrolled: int) -> None:
    """A loss with its gradient: for 32 rows LLVM took longer than thousands of steps gain."""
    x, labels = ab.placeholder((rows, 10), "float32"), ab.placeholder((rows,), "int32")
    loss = o.mean(o.sparse_categorical_crossentropy(labels, x * 2, from_logits=True))
    (kernel,) = kernels([loss, *ab.gradients(loss, [x])], [x, labels])
    assert kernel.unrolled == unrolled


def test_a_bias_of_few_columns_stays_as_it_lies():
    x, bias = ab.placeholder((64, 9), "float32"), ab.placeholder((9,), "float32")
    (gradient,) = ab.gradients(o.sum(o.relu(x + bias) ** 2), [bias])
    (kernel,) = kernels([gradient], [x, bias])
    assert kernel.unrolled == 1


def test_a_long_expression_is_not_written_out():
    x = y = ab.placeholder((40, 16), "float32")
    for _ in range(4):
        y = o.tanh(y) * o.sigmoid(y + 1)
    (kernel,) = kernels([o.softmax(y)], [x])
    assert kernel.unrolled == 1
    Check([o.softmax(y)], {x: values((40, 16))}, tolerance=1e-5)


def test_a_softmax_along_a_short_outer_axis_is_one_kernel_with_its_chain():
    x = ab.placeholder((5, 10, 40), "float32")
    y = o.softmax(x * 2, axis=1) * 3
    (gradient,) = ab.gradients(o.sum(y * y), [x])
    assert groups([y], [x]) == ["multiply softmax multiply"]
    Check([y, gradient], {x: values((5, 10, 40))}, tolerance=1e-4)
    long = ab.placeholder((5, 17, 40), "float32")
    assert groups([o.softmax(long * 2, axis=1) * 3], [long]) == []


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16", "bfloat16"])
@pytest.mark.parametrize("count", [2, 6, 16])
def test_distances_of_all_types(dtype: str, count: int):
    x, y = ab.placeholder((19, count), dtype), ab.placeholder((37, count), dtype)
    found = [distances(x, y), o.max(o.expand_dims(x, 1) * o.expand_dims(y, 0), axis=-1)]
    assert max(kernel.unrolled for kernel in kernels(found, [x, y])) == count
    tolerance = {"float32": 1e-5, "float64": 1e-12, "int32": 0}.get(dtype, 0.05)
    Check(
        found,
        {x: values((19, count), "float32").astype(dtype), y: values((37, count)).astype(dtype)},
        tolerance=tolerance,
    )


@pytest.mark.parametrize("shape", [(), (3,)])
def test_gradients_against_differences(shape: tuple[int, ...]):
    """Batches of distances: each operand is the same along another axis, and sums go over all of them."""
    x, y = ab.placeholder((*shape, 18, 3), "float64"), ab.placeholder((*shape, 21, 3), "float64")
    scale = ab.placeholder((3,), "float64")
    loss = o.sum(o.exp(-0.5 * distances(x * scale, y * scale)))
    gradients = ab.gradients(loss, [x, y, scale])
    given = {x: values((*shape, 18, 3), "float64"), y: values((*shape, 21, 3), "float64"), scale: np.full(3, 0.7)}
    Check([loss, *gradients], given, tolerance=1e-11)
    run = ab.Session().make_callable([loss, *gradients], [*given])
    whole = [np.array(value) for value in given.values()]
    _, *found = run(*whole)
    for k, gradient in enumerate(found):
        places = RNG.integers(0, whole[k].size, 3)
        for place in places:
            moved = []
            for step in (1e-5, -1e-5):
                other = [value.copy() for value in whole]
                other[k].reshape(-1)[place] += step
                moved.append(run(*other)[0])
            assert gradient.reshape(-1)[place] == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "max", "min", "sum", "mean"])
def test_special_values(name: str):
    rows = [[1, 2, 3], [np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 1, 2], [-np.inf] * 3, [np.inf, -np.inf, 0], [1e38] * 3]
    x = ab.placeholder((21, 3), "float32")
    function: Callable[..., Tensor] = getattr(o, name)
    result = function(x * 1.0 + 0.0, axis=-1) + 0.0
    assert kernels([result], [x])[0].unrolled == 3
    Check([result], {x: np.array(rows * 3, "float32")}, tolerance=1e-5)


def test_sums_of_all_axes_and_shapes_of_several():
    """The short axis is a part of what a reduction takes, and of an axis that a reshape makes."""
    x, y = ab.placeholder((24, 2, 3), "float32"), ab.placeholder((24, 1, 1), "float32")
    z = o.tanh(x * y)
    found = [
        o.sum(z, axis=(1, 2)) * 2 + 1,
        o.sum(z, axis=2),
        o.sum(z, axis=0),
        o.mean(z),
        o.reshape(z, (24, 6)) - o.max(o.reshape(z, (24, 6)), axis=1, keepdims=True),
    ]
    Check(found, {x: values((24, 2, 3)), y: values((24, 1, 1))}, tolerance=1e-5)


def test_nothing_and_unknown_sizes():
    x, y = ab.placeholder((0, 6), "float32"), ab.placeholder((30, 6), "float32")
    Check([distances(x, y), distances(y, x)], {x: np.zeros((0, 6), "float32"), y: values((30, 6))})
    rows = ab.placeholder((None, 6), "float32")
    results = [o.logsumexp(rows * 2 + 1, axis=-1), softly(rows)]
    run = ab.Session().make_callable(results, [rows])
    for count in (40, 1, 0, 70):
        value = values((count, 6))
        lifted = value * 2 + 1
        found = run(value)
        np.testing.assert_allclose(found[0], np.log(np.exp(lifted).sum(-1)), rtol=1e-4, atol=1e-5)
        exponentials = np.exp(value * 2)
        np.testing.assert_allclose(found[1], exponentials / exponentials.sum(-1, keepdims=True) + 0.5, rtol=1e-5)


def test_in_a_loop_and_in_place():
    """Results take the memory of operands that die."""
    x = ab.placeholder((40, 6), "float32")
    dying = o.cumsum(x, axis=0)
    y = o.softmax(dying * 0.5) * dying
    _, z = ab.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, centred(o.tanh(a)) + distances(a, a)[:, :6]), (0, y))
    Check([z], {x: values((40, 6))}, tolerance=1e-4)


_FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    softly,
    centred,
    o.tanh,
    lambda x: x * o.sum(x, axis=-1, keepdims=True),
    lambda x: x - o.max(x, axis=-1, keepdims=True),
    lambda x: x * o.mean(o.square(x)) + 1,
    lambda x: x + o.sum(x, axis=0),
)


@settings(max_examples=examples(12, 400), deadline=None)
@given(st.data())
def test_random_chains_and_their_gradients(data: st.DataObject):
    shape = (*data.draw(st.sampled_from([(16,), (3, 17), (40,)])), data.draw(st.integers(2, 16)))
    with Graph().as_default():
        x = ab.placeholder(shape, "float64")
        y: Tensor = x
        for function in data.draw(st.lists(st.sampled_from(_FUNCTIONS), min_size=1, max_size=4)):
            y = function(y)
        (gradient,) = ab.gradients(o.sum(o.tanh(y)), [x])
        Check([y, gradient], {x: values(shape, "float64")}, tolerance=1e-9)
