"""Slices side by side are parts of one split, and their cotangents are joined; values stay what they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.graph.graph import Operation
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

ops = ab.ops
ROWS, WIDTH = 4, 6
KINDS = ("get_item", "split", "squeeze", "put_item", "add_item", "concatenate")


@pytest.fixture(autouse=True)
def _own_graph() -> Any:
    with ab.Graph().as_default():
        yield


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-0.5, 0.5, shape).astype("float32")


def fed(*shape: int | None) -> Any:
    return ab.placeholder(shape, "float32")


def prepared(fetches: Sequence[Any], feeds: Sequence[Any]) -> list[Operation]:
    return list(all_operations(prepare(ab.get_default_graph(), fetches, feeds).operations))


def kinds(fetches: Sequence[Any], feeds: Sequence[Any]) -> Counter[str]:
    """Count the operations of the types that are about slices."""
    found = Counter(operation.type for operation in prepared(fetches, feeds))
    return Counter({name: count for name, count in found.items() if name in KINDS})


def check(fetches: Sequence[Any], feeds: dict[Any, Any]) -> None:
    """Values are those of the program that is not rewritten."""
    found, wanted = [
        Program(ab.get_default_graph(), list(fetches), list(feeds), exact=exact)(*feeds.values())
        for exact in (False, True)
    ]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


# --- slices ---------------------------------------------------------------------------------------------------------


def test_slices_that_fill_the_whole():
    x = fed(ROWS, WIDTH)
    fetches = [x[:, :2], x[:, -2:], x[:, 2:4]]
    assert kinds(fetches, [x]) == {"split": 1}
    value = draw(ROWS, WIDTH)
    found = ab.Session().run(fetches, {x: value})
    for part, wanted in zip(found, (value[:, :2], value[:, 4:], value[:, 2:4]), strict=True):
        np.testing.assert_array_equal(part, wanted)


def test_numbers_and_gaps():
    x = fed(ROWS, WIDTH, 3)
    fetches = [x[:, 4], x[:, 1:3], x[:, -1]]
    assert kinds(fetches, [x]) == {"split": 1, "squeeze": 2}
    value = draw(ROWS, WIDTH, 3)
    found = ab.Session().run(fetches, {x: value})
    for part, wanted in zip(found, (value[:, 4], value[:, 1:3], value[:, 5]), strict=True):
        np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize(
    "slices",
    [
        lambda x: [x[:, :3], x[:, 2:]],  # overlap
        lambda x: [x[:, ::2], x[:, 1::2]],
        lambda x: [x[:, :3]],
        lambda x: [x[:3], x[:, 3:]],  # of different axes
        lambda x: [x[:2, :3], x[:2, 3:]],  # of two axes
        lambda x: [x[None, :, :3], x[None, :, 3:]],
        lambda x: [x[:, 3:3], x[:, 4:]],  # nothing
        lambda x: [x[0, 0], x[0, 1]],
        lambda x: [x[:, ops.sum(ops.cast(x * 0, "int32")) :], x[:, 3:]],  # known when it runs
    ],
)
def test_what_stays(slices: Callable[[Any], list[Any]]):
    x = fed(ROWS, WIDTH)
    fetches = slices(x)
    assert kinds(fetches, [x]) == {"get_item": len(fetches)}
    check(fetches, {x: draw(ROWS, WIDTH)})


def test_unknown_sizes_and_numbers_of_a_vector_stay():
    x, v = fed(ROWS, None), fed(WIDTH)
    fetches = [x[:, :2], x[:, 2:], v[0], v[1]]
    assert kinds(fetches, [x, v]) == {"get_item": 4}
    check(fetches, {x: draw(ROWS, WIDTH), v: draw(WIDTH)})


def test_the_switch_and_exact_programs():
    x = fed(ROWS, WIDTH)
    fetches = [x[:, :3], x[:, 3:]]
    with without("slices"):
        assert kinds(fetches, [x]) == {"get_item": 2}
    step = prepare(ab.get_default_graph(), fetches, [x], reassociate=False)
    assert [operation.type for operation in step.operations if operation.type in KINDS] == ["get_item"] * 2


def test_control_dependencies_keep_to_the_split():
    x, counter = fed(ROWS, WIDTH), ab.Variable(0.0)
    left, right = x[:, :3], x[:, 3:]
    with ab.control_dependencies([left.operation]):
        total = ops.sum(right)
    update = counter.assign_add(total)
    value = draw(ROWS, WIDTH)
    ab.Session().run([update.operation, left.operation, right], {x: value})
    np.testing.assert_allclose(counter.numpy(), value[:, 3:].sum(), rtol=1e-5)


# --- gradients ------------------------------------------------------------------------------------------------------


def test_cotangents_are_joined():
    x = fed(ROWS, WIDTH)
    loss = ops.sum(x[:, :2] ** 2) + ops.sum(ops.sin(x[:, 4:])) + ops.sum(ops.exp(x[:, 2:4]))
    fetches = ab.gradients(loss, [x])
    assert kinds(fetches, [x])["concatenate"] == 1
    assert not {"put_item", "add_item"} & set(kinds(fetches, [x]))
    check(fetches, {x: draw(ROWS, WIDTH)})


def test_numbers_get_their_axis_back():
    x = fed(ROWS, 2, 3)
    loss = ops.sum(x[:, 0] ** 3) + ops.sum(x[:, 1] ** 2)
    fetches = ab.gradients(loss, [x])
    assert not {"put_item", "add_item"} & set(kinds(fetches, [x]))
    check(fetches, {x: draw(ROWS, 2, 3)})


def test_other_cotangents_are_added():
    x = fed(ROWS, WIDTH)
    loss = ops.sum(x[:, :2] ** 2) + ops.sum(x[:, 2:] ** 3) + ops.sum(ops.sin(x))
    fetches = ab.gradients(loss, [x])
    assert not {"put_item", "add_item"} & set(kinds(fetches, [x]))
    check(fetches, {x: draw(ROWS, WIDTH)})


def test_slices_that_are_taken_twice():
    x = fed(ROWS, WIDTH)
    loss = ops.sum(x[:, :2] ** 2) + ops.sum(x[:, 2:] ** 3) + ops.sum(ops.sin(x[:, :2])) + ops.sum(ops.exp(x[:, 2:]))
    fetches = ab.gradients(loss, [x])
    assert not {"put_item", "add_item"} & set(kinds(fetches, [x]))
    check(fetches, {x: draw(ROWS, WIDTH)})


def test_what_leaves_gaps_is_added():
    x = fed(ROWS, WIDTH)
    fetches = ab.gradients(ops.sum(x[:, :2] ** 2) + ops.sum(x[:, 4:] ** 3), [x])
    assert kinds(fetches, [x])["add_item"] == 1
    check(fetches, {x: draw(ROWS, WIDTH)})


def test_a_sum_that_is_looked_at_halfway_stays():
    x, seen = fed(ROWS, WIDTH), []

    @ab.custom_gradient
    def watched(x: Any) -> Any:
        def grad(dy: Any) -> Any:
            seen.append(dy)
            return dy

        return x * 1.0, grad

    fetches = ab.gradients(ops.sum(watched(x)[:, :2] ** 2) + ops.sum(watched(x)[:, 2:] ** 2), [x])
    check([*fetches, *seen], {x: draw(ROWS, WIDTH)})


# --- in loops and branches ------------------------------------------------------------------------------------------


def gated(x: Any, weights: Any, bias: Any, units: int, steps: int) -> Any:
    """The outputs of a gated recurrent cell written with slices of activations, weights and biases."""
    inputs, outputs = ab.TensorArray("float32", steps).unstack(x), ab.TensorArray("float32", steps)

    def body(t: Any, h: Any, outputs: Any) -> Any:
        a = inputs.read(t) @ weights[:, 3 * units :] + bias
        gates = ops.sigmoid(a[:, : 2 * units] + h @ weights[:, : 2 * units])
        new = ops.tanh(a[:, 2 * units :] + (gates[:, :units] * h) @ weights[:, 2 * units : 3 * units])
        h = gates[:, units:] * h + (1 - gates[:, units:]) * new
        return t + 1, h, outputs.write(t, h)

    start = ops.zeros((x.shape[1], units))
    return ab.while_loop(lambda t, *_: t < steps, body, (0, start, outputs))[2].stack()


def in_loops(fetches: Sequence[Any], feeds: Sequence[Any]) -> Counter[str]:
    found = prepare(ab.get_default_graph(), fetches, feeds).operations
    inside = [inner for outer in found for region in outer.op.regions for inner in all_operations(region.operations)]
    return Counter(operation.type for operation in inside)


def test_slices_of_weights_leave_loops_and_so_do_their_gradients():
    x, weights, bias = fed(7, ROWS, 3), fed(3, 18), fed(9)
    loss = ops.sum(gated(x, weights, bias, 3, 7) ** 2)
    fetches = [loss, *ab.gradients(loss, [x, weights, bias])]
    found = in_loops(fetches, [x, weights, bias])
    assert found["matmul"] == 4  # by h and by the reset h; backward, their cotangents
    assert found["add_item"] == found["put_item"] == found["get_item"] == 0
    check(fetches, {x: draw(7, ROWS, 3), weights: draw(3, 18), bias: draw(9)})


def test_second_order_of_a_loop():
    x, weights, bias = fed(5, 2, 3), fed(3, 18), fed(9)
    loss = ops.sum(gated(x, weights, bias, 3, 5) ** 2)
    (first,) = ab.gradients(loss, [weights])
    check(ab.gradients(ops.sum(first**2), [weights, x]), {x: draw(5, 2, 3), weights: draw(3, 18), bias: draw(9)})


cuts = st.lists(st.integers(1, WIDTH - 1), max_size=4, unique=True).map(sorted)


@settings(max_examples=examples(5, 25), deadline=None)
@given(cuts, st.randoms(use_true_random=False), st.sampled_from(["plain", "loop", "branch"]))
def test_any_cuts(places: list[int], random: Any, where: str):
    with ab.Graph().as_default():
        x, start = ab.placeholder((ROWS, WIDTH), "float64"), ab.constant(0.5, "float64")
        bounds = list(zip([0, *places], [*places, WIDTH], strict=True))
        random.shuffle(bounds)
        bounds = bounds[: random.randint(1, len(bounds))]

        def value(x: Any) -> Any:
            total = ops.sum(x) if random.random() < 0.3 else start * 0
            for first, last in [*bounds, *bounds[: random.randint(0, 2)]]:
                part = x[:, first] if last == first + 1 and random.random() < 0.5 else x[:, first:last]
                total = total + ops.sum(ops.sin(part) * (first + 1))
            return total

        if where == "loop":
            fetch = ab.while_loop(lambda t, _: t < 6, lambda t, y: (t + 1, ops.tanh(value(x * y))), (0, start))[1]
        elif where == "branch":
            fetch = ab.cond(ops.sum(x) > 0, lambda: value(x), lambda: value(-x * x))
        else:
            fetch = value(x)
        (gradient,) = ab.gradients(fetch, [x])
        second = ab.gradients(ops.sum(gradient**2), [x])
        check([fetch, gradient, *second], {x: draw(ROWS, WIDTH).astype("float64")})
