"""Gradients of recursive functions, to third order: against unrolled calls, loops and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shared.recursive_functions import (
    FUNCTIONS,
    Body,
    differences,
    doubled,
    fibonacci,
    gradients_or_zeros,
    power,
    recursive,
    run_both_ways,
    slope,
    unrolled,
)

import anabranch as ab
from anabranch.engine.graph import Graph, IndexedSlices
from anabranch.engine.runtime.program import Program

ops = ab.ops


# --- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_unrolled_calls(name: str):
    """Values, and derivatives of three orders with respect to an argument and to a captured value."""
    with Graph().as_default() as graph:
        x, w, n = ab.placeholder((), "float64"), ab.placeholder((), "float64"), ab.placeholder((), "int32")
        called = recursive(FUNCTIONS[name], w)
        pairs = [(called(x, n), unrolled(FUNCTIONS[name], w)(x, 3))]
        for _ in range(2):
            a, b = pairs[-1]
            pairs.append((slope(a, x, w), slope(b, x, w)))
        a, b = pairs[-1]
        pairs += list(zip(gradients_or_zeros(a, [x, w]), gradients_or_zeros(b, [x, w]), strict=True))
        found = run_both_ways(graph, [t for pair in pairs for t in pair], {x: 0.8, w: 1.3, n: 3})
    for order, (value, expected) in enumerate(zip(found[::2], found[1::2], strict=True)):
        np.testing.assert_allclose(value, expected, rtol=1e-8, atol=1e-10, err_msg=f"{name}, {order}")


def test_random_functions():
    """Random bodies: expressions over the argument, a captured value, and calls with smaller numbers."""
    rng = np.random.default_rng(0)
    for trial in range(15):
        with Graph().as_default() as graph:
            x, w, n = ab.placeholder((), "float64"), ab.placeholder((), "float64"), ab.placeholder((), "int32")
            body = _random_body(rng)
            y, z = recursive(body, w)(x, n), unrolled(body, w)(x, 3)
            targets = [y, z]
            for _ in range(2):
                y, z = slope(y, x, w), slope(z, x, w)
                targets += [y, z]
            found = run_both_ways(graph, targets, {x: 0.7, w: 0.9, n: 3})
        np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-7, atol=1e-9, err_msg=f"trial {trial}")


def _random_body(rng: np.random.Generator) -> Body:
    base, step = _random_expression(rng, 2, calls=False), _random_expression(rng, 3, calls=True)

    def body(f: Any, x: Any, n: Any, w: Any, cond: Any) -> Any:
        return cond(n <= 0, lambda: base(f, x, n, w, cond), lambda: step(f, x, n, w, cond))

    return body


def _random_expression(rng: np.random.Generator, depth: int, calls: bool) -> Body:
    kind = rng.choice(["leaf", "sin", "multiply", "add", "call", "cond"]) if depth else "leaf"
    first = _random_expression(rng, depth - 1, calls) if depth else None
    second = _random_expression(rng, depth - 1, calls) if depth else None
    if first is None or second is None or kind == "leaf":
        leaf = int(rng.integers(3))
        return lambda f, x, n, w, cond: [x, w, x * w][leaf]
    if kind == "sin":
        return lambda *a: ops.sin(first(*a))
    if kind == "multiply":
        return lambda *a: first(*a) * second(*a)
    if kind == "call" and calls:
        less = int(rng.integers(1, 3))
        return lambda f, x, n, w, cond: f(ops.tanh(first(f, x, n, w, cond)), n - less)
    if kind == "cond":
        return lambda f, x, n, w, cond: cond(
            n <= 2, lambda: first(f, x, n, w, cond) * 1.0, lambda: second(f, x, n, w, cond) + 0.5
        )
    return lambda *a: first(*a) + second(*a)


def test_gradients_with_respect_to_variables():
    w = ab.Variable(0.7, dtype="float64")
    with Graph().as_default() as graph:
        x, n = ab.placeholder((), "float64"), ab.placeholder((), "int32")
        body = FUNCTIONS["two calls"]
        y, z = recursive(body, w)(x, n), unrolled(body, w)(x, 4)
        (dy,), (dz,) = ab.gradients(y, [w]), ab.gradients(z, [w])
        (ddy,), (ddz,) = ab.gradients(dy, [w]), ab.gradients(dz, [w])
        found = run_both_ways(graph, [dy, dz, ddy, ddz], {x: 0.9, n: 4})
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-10)


def test_gradients_taken_inside():
    """Newton's method, which takes the slope of what it solves in each of its steps."""

    @ab.function
    def root(x: Any, a: Any) -> Any:
        miss = x * x * x - a
        (slope,) = ab.gradients(miss, [x])
        return ab.cond(ops.abs(miss) < 1e-9, lambda: x, lambda: root(x - miss / slope, a))

    assert root(np.float64(2.0), np.float64(5.0)) == pytest.approx(5 ** (1 / 3), abs=1e-9)
    with Graph().as_default():
        a = ab.placeholder((), "float64")
        (slope,) = ab.gradients(root(ab.constant(np.float64(1.7)), a), [a])
        assert ab.Session().run(slope, {a: 5.0}) == pytest.approx(5 ** (-2 / 3) / 3, rel=1e-6)


def test_several_results_of_which_some_matter():
    @ab.function
    def pair(x: Any, y: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: (x, y), lambda: pair(x * y, ops.sin(y), n - 1)[::-1])

    def plain(x: Any, y: Any, n: int) -> Any:
        return (x, y) if n <= 0 else plain(x * y, ops.sin(y), n - 1)[::-1]

    with Graph().as_default() as graph:
        x, y = ab.placeholder((), "float64"), ab.placeholder((), "float64")
        targets: list[Any] = []
        for results in (pair(x, y, ab.constant(3)), plain(x, y, 3)):
            for result in results:
                targets += [result, *gradients_or_zeros(result, [x, y])]
        found = run_both_ways(graph, targets, {x: 0.8, y: 1.2})
    np.testing.assert_allclose(found[:6], found[6:], rtol=1e-12)


def test_integers_have_no_gradient():
    with Graph().as_default():
        n, x = ab.placeholder((), "int32"), ab.placeholder((), "float32")
        assert ab.gradients(ops.cast(fibonacci(n), "float32"), [x]) == [None]


# --- with loops and branches ----------------------------------------------------------------------------------------


def test_calls_inside_loops():
    body = FUNCTIONS["work after the call"]
    with Graph().as_default() as graph:
        x, w = ab.placeholder((), "float64"), ab.placeholder((), "float64")
        called, plain = recursive(body, w), unrolled(body, w)
        _, y = ab.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, called(y, i) + 0.3), (0, x))
        z = x
        for i in range(4):
            z = plain(z, i) + 0.3
        dy, dz = slope(y, x, w), slope(z, x, w)
        found = run_both_ways(graph, [y, z, dy, dz, slope(dy, x, w), slope(dz, x, w)], {x: 0.9, w: 1.1})
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-9)


@pytest.mark.parametrize("taken", [True, False])
def test_calls_inside_branches(taken: bool):
    body = FUNCTIONS["two calls"]
    with Graph().as_default() as graph:
        x, w, choice = ab.placeholder((), "float64"), ab.placeholder((), "float64"), ab.placeholder((), "bool")
        y = ab.cond(choice, lambda: recursive(body, w)(x, ab.constant(3)), lambda: x * w)
        z = unrolled(body, w)(x, 3) if taken else x * w
        dy, dz = slope(y, x, w), slope(z, x, w)
        found = run_both_ways(graph, [y, z, dy, dz, slope(dy, x, w), slope(dz, x, w)], {x: 0.9, w: 1.1, choice: taken})
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-9)


@pytest.mark.parametrize("taken", [True, False])
def test_calls_that_one_branch_needs(taken: bool):
    """They sink into the branch, and their gradients into its gradient."""
    body = FUNCTIONS["work after the call"]
    with Graph().as_default() as graph:
        x, w, choice = ab.placeholder((), "float64"), ab.placeholder((), "float64"), ab.placeholder((), "bool")
        called = recursive(body, w)(ops.exp(x), ab.constant(3))
        y = ab.cond(choice, lambda: called * w, lambda: x * w)
        z = unrolled(body, w)(ops.exp(x), 3) * w if taken else x * w
        dy, dz = slope(y, x, w), slope(z, x, w)
        targets = [y, z, dy, dz, slope(dy, x, w), slope(dz, x, w)]
        found = run_both_ways(graph, targets, {x: 0.9, w: 1.1, choice: taken})
        source = Program(graph, [y], [x, w, choice]).source
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-9)
    (call,) = [line for line in source.partition("def step(")[2].splitlines() if " f(" in line]
    assert call.startswith("        ")


def test_loops_inside():
    @ab.function
    def f(x: Any, n: Any) -> Any:
        def further() -> Any:
            looped = ab.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, ops.sin(y) * x), (0, x + 1.0))[1]
            return f(looped, n - 1) * looped

        return ab.cond(n <= 0, lambda: x * x, further)

    def plain(x: Any, n: int) -> Any:
        if n <= 0:
            return x * x
        y = x + 1.0
        for _ in range(n):
            y = ops.sin(y) * x
        return plain(y, n - 1) * y

    with Graph().as_default() as graph:
        x = ab.placeholder((), "float64")
        targets = [f(x, ab.constant(3)), plain(x, 3)]
        for _ in range(2):
            targets += [ab.gradients(t, [x])[0] for t in targets[-2:]]
        found = run_both_ways(graph, targets, {x: 0.9})
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-9)


def test_deeply_nested_branches_inside():
    """More blocks than Python allows in one function."""

    def nested(x: Any, depth: int, end: Callable[[Any], Any], cond: Any) -> Any:
        if depth == 0:
            return end(x)
        return cond(x > -10.0 * depth, lambda: nested(x * 1.01, depth - 1, end, cond) + 0.1, lambda: x)

    @ab.function
    def f(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: x * x, lambda: nested(x, 16, lambda v: f(ops.sin(v) * 1.1, n - 1) * v, ab.cond))

    def plain(x: Any, n: int) -> Any:
        if n <= 0:
            return x * x
        return nested(x, 16, lambda v: plain(ops.sin(v) * 1.1, n - 1) * v, lambda test, yes, no: yes())

    with Graph().as_default() as graph:
        x = ab.placeholder((), "float64")
        targets = [f(x, ab.constant(2)), plain(x, 2)]
        targets += [ab.gradients(t, [x])[0] for t in targets]
        found = run_both_ways(graph, targets, {x: 0.7})
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-9)


def test_recursions_inside_recursions():
    """`inner` calls itself and, at its end, `outer`, in which it is defined."""
    with Graph().as_default() as graph:
        x = ab.placeholder((), "float64")

        @ab.function
        def inner(y: Any, m: Any, n: Any) -> Any:
            return ab.cond(m <= 0, lambda: outer(y * 1.1, n - 1), lambda: inner(ops.sin(y) * x, m - 1, n))

        @ab.function
        def outer(y: Any, n: Any) -> Any:
            return ab.cond(n <= 0, lambda: y * y, lambda: inner(y, n, n) + y)

        def plain_inner(y: Any, m: int, n: int) -> Any:
            return plain_outer(y * 1.1, n - 1) if m <= 0 else plain_inner(ops.sin(y) * x, m - 1, n)

        def plain_outer(y: Any, n: int) -> Any:
            return y * y if n <= 0 else plain_inner(y, n, n) + y

        targets = [outer(x, ab.constant(3)), plain_outer(x, 3)]
        for _ in range(2):
            targets += [ab.gradients(t, [x])[0] for t in targets[-2:]]
        found = run_both_ways(graph, targets, {x: 0.9})
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-9)


def test_loops_and_branches_inside_that_share_work():
    """Values computed before two branches with one choice belong to one of them each."""

    @ab.function
    def f(x: Any, n: Any) -> Any:
        a, b = ops.exp(x), ops.log(x + 5.0)
        deeper = ab.cond(n <= 0, lambda: a, lambda: f(x * 0.5, n - 1) * a * b)
        return deeper + ab.cond(n <= 0, lambda: a * x, lambda: b * 2.0)

    def plain(x: Any, n: int) -> Any:
        a, b = ops.exp(x), ops.log(x + 5.0)
        return a + a * x if n <= 0 else plain(x * 0.5, n - 1) * a * b + b * 2.0

    with Graph().as_default() as graph:
        x, n = ab.placeholder((), "float64"), ab.placeholder((), "int32")
        targets = [f(x, n), plain(x, 3)]
        for _ in range(2):
            targets += [ab.gradients(t, [x])[0] for t in targets[-2:]]
        found = run_both_ways(graph, targets, {x: 0.7, n: 3})
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-9)


def test_maps_inside():
    @ab.function
    def f(x: Any, n: Any) -> Any:
        return ab.cond(
            n <= 0, lambda: x, lambda: ops.sum(ab.map_fn(lambda v: f(v * x, n - 1), ops.stack([x, x + 1.0])))
        )

    def plain(x: Any, n: int) -> Any:
        return x if n <= 0 else plain(x * x, n - 1) + plain((x + 1.0) * x, n - 1)

    with Graph().as_default() as graph:
        x, n = ab.placeholder((), "float64"), ab.placeholder((), "int32")
        targets = [f(x, n), plain(x, 3)]
        for _ in range(2):
            targets += [ab.gradients(t, [x])[0] for t in targets[-2:]]
        found = run_both_ways(graph, targets, {x: 0.7, n: 3})
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-9)


def test_arrays_of_results_inside():
    """Results of calls are gathered in a TensorArray, of whose elements nothing is known at first."""
    first, count = np.array([1, 3, 0, 0, 0]), np.array([2, 2, 0, 0, 0])
    with Graph().as_default() as graph:
        v = ab.placeholder((5, 2), "float64")
        starts, counts = ab.constant(first), ab.constant(count)

        @ab.function
        def node(i: Any) -> Any:
            children = ab.while_loop(
                lambda k, array: k < counts[i],
                lambda k, array: (k + 1, array.write(k, node(starts[i] + k))),
                (ab.constant(0, "int64"), ab.TensorArray("float64", counts[i])),
            )[1]
            return ops.tanh(v[i] + ops.sum(children.stack(), axis=0))

        def plain(i: int) -> Any:
            total = v[i]
            for k in range(count[i]):
                total = total + plain(int(first[i]) + k)
            return ops.tanh(total)

        targets = [ops.sum(node(ab.constant(0, "int64"))), ops.sum(plain(0))]
        for _ in range(2):
            targets += [ops.sum(ab.gradients(t, [v])[0] ** 2) for t in targets[-2:]]
        found = run_both_ways(graph, targets, {v: np.linspace(0.1, 1, 10).reshape(5, 2)})
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-9)


def test_gradients_of_ones_own():
    @ab.custom_gradient
    def bent(x: Any) -> Any:
        return ops.sin(x), lambda dy: dy * ops.cos(x) * 2.0

    @ab.function
    def f(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: bent(x), lambda: f(bent(x) * x, n - 1))

    with Graph().as_default() as graph:
        x = ab.placeholder((), "float64")
        y = x
        for _ in range(3):
            y = bent(y) * y
        targets = [f(x, ab.constant(3)), bent(y)]
        for _ in range(2):
            targets += [ab.gradients(t, [x])[0] for t in targets[-2:]]
        found = run_both_ways(graph, targets, {x: 0.7})
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-9)


def test_jacobians():
    @ab.function
    def f(x: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: x * x, lambda: f(ops.sin(x) * x[::-1], n - 1))

    with Graph().as_default() as graph:
        x = ab.placeholder((3,), "float64")
        z = x
        for _ in range(3):
            z = ops.sin(z) * z[::-1]
        targets = [ab.jacobian(f(x, ab.constant(3)), x), ab.jacobian(z * z, x)]
        found = run_both_ways(graph, targets, {x: np.array([0.3, 0.6, 0.9])})
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)


def test_other_dtypes():
    @ab.function
    def spelled(text: Any, n: Any) -> Any:
        return ab.cond(n <= 0, lambda: text, lambda: spelled(text + "a", n - 1))

    with Graph().as_default():
        z = ab.placeholder((2,), "complex64")
        y = doubled(z, ab.constant(2))
        (dz,) = ab.gradients(ops.sum(ops.real(y)), [z])
        word, found, slope = ab.Session().run(
            [spelled(ab.constant("x"), ab.constant(3)), y, dz], {z: np.array([1 + 2j, 3], "complex64")}
        )
    assert (word, found.tolist(), slope.tolist()) == ("xaaa", [4 + 8j, 12], [4, 4])


def test_mapped_over_elements():
    with Graph().as_default() as graph:
        x = ab.placeholder((4,), "float64")
        y = ab.map_fn(lambda v: power(v, ab.constant(3)), x)
        (dx,) = ab.gradients(y, [x])
        values = np.array([1.0, -2.0, 0.5, 3.0])
        found = run_both_ways(graph, [y, dx], {x: values})
    np.testing.assert_allclose(found, [values**3, 3 * values**2])


@pytest.mark.filterwarnings("ignore:vectorized_map")
def test_vectorized_map_goes_example_by_example():
    with Graph().as_default():
        x, n = ab.placeholder((4,), "float64"), ab.placeholder((4,), "int32")
        y = ab.vectorized_map(lambda pair: doubled(pair[0], pair[1]), (x, n))
        found = ab.Session().run(y, {x: np.arange(4.0), n: np.array([0, 1, 2, 3])})
    assert found.tolist() == [0, 2, 8, 24]


# --- trees ----------------------------------------------------------------------------------------------------------

LEFT, RIGHT, WORD = np.array([1, 3, -1, -1, -1]), np.array([2, 4, -1, -1, -1]), np.array([0, 0, 2, 1, 2])


def tree_loss(embeddings: Any, weights: Any, recurse: bool) -> Any:
    """A cell like a Tree-LSTM's over a binary tree in arrays; by calls of the graph, or unrolled."""
    size = embeddings.shape[1]

    def leaf(word: Any) -> Any:
        x = ops.take(embeddings, word, axis=0)
        return x, ops.tanh(x)

    def joined(left: Any, right: Any) -> Any:
        z = ops.matmul(ops.reshape(ops.concatenate([left[0], right[0]]), (1, -1)), weights)[0]
        return ops.sigmoid(z[:size]) * (left[1] + right[1]), ops.tanh(z[size:]) * left[1] + right[1]

    if recurse:
        lefts, rights, words = ab.constant(LEFT), ab.constant(RIGHT), ab.constant(WORD)

        @ab.function
        def node(i: Any) -> Any:
            return ab.cond(
                lefts[i] < 0, lambda: leaf(words[i]), lambda: joined(node(lefts[i]), node(rights[i]))
            )  # fmt: skip

        state = node(ab.constant(0, "int64"))
    else:

        def plain(i: int) -> Any:
            return leaf(int(WORD[i])) if LEFT[i] < 0 else joined(plain(int(LEFT[i])), plain(int(RIGHT[i])))

        state = plain(0)
    return ops.sum(state[0] * state[0]) + ops.sum(state[1])


def test_tree_cells():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(5, 3)), rng.normal(size=(6, 6)) * 0.5
    with Graph().as_default() as graph:
        embeddings, weights = ab.placeholder((5, 3), "float64"), ab.placeholder((6, 6), "float64")
        feeds = {embeddings: values[0], weights: values[1]}
        targets: list[list[Any]] = []
        for recurse in (True, False):
            loss = tree_loss(embeddings, weights, recurse)
            first = ab.gradients(loss, [embeddings, weights])
            size = ops.sum(first[0] * first[0]) + ops.sum(first[1] * first[1])
            targets.append([loss, *first, size, *ab.gradients(size, [embeddings, weights])])
        found = run_both_ways(graph, [*targets[0], *targets[1]], feeds)
        session = ab.Session()
        for value, expected in zip(found[:6], found[6:], strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12)
        for place, tensor in enumerate(feeds):
            for target, slope in ((0, 1), (3, 4)):

                def at(value: Any, tensor: Any = tensor, target: int = target) -> float:
                    return float(session.run(targets[0][target], {**feeds, tensor: value}))

                numerical = differences(at, values[place])
                np.testing.assert_allclose(found[slope + place], numerical, rtol=1e-6, atol=1e-6)


def test_rows_of_tables_have_sparsegradients_or_zeros():
    table = ab.Variable(np.arange(12.0).reshape(4, 3), dtype="float64")
    with Graph().as_default():
        weights = ab.constant(np.zeros((6, 6)))
        (slices,) = ab.gradients(tree_loss(table, weights, recurse=True), [table])
        (dense,) = ab.gradients(tree_loss(table * 1.0, weights, recurse=True), [table])
        assert isinstance(slices, IndexedSlices)
        rows, expected = ab.Session().run([slices.to_dense(), dense])
        indices = ab.Session().run(slices.indices)
    np.testing.assert_allclose(rows, expected)
    assert sorted(indices.tolist()) == [1, 2, 2]


def test_trees_of_any_width():
    """The children of a node are visited by a loop, which calls the function: its frames are a history."""
    first, count = np.array([1, 4, 0, 5, 0, 0, 0]), np.array([3, 1, 0, 2, 0, 0, 0])
    values = np.linspace(0.1, 0.7, 7)

    def reference(v: Any, i: int = 0) -> float:
        return float(np.tanh(v[i] + sum(reference(v, first[i] + k) for k in range(count[i]))))

    with Graph().as_default() as graph:
        v = ab.placeholder((7,), "float64")
        starts, counts = ab.constant(first), ab.constant(count)

        @ab.function
        def node(i: Any) -> Any:
            children = ab.while_loop(
                lambda k, total: k < counts[i],
                lambda k, total: (k + 1, total + node(starts[i] + k)),
                (ab.constant(0, "int64"), ab.constant(0.0, "float64")),
            )
            return ops.tanh(v[i] + children[1])

        y = node(ab.constant(0, "int64"))
        (dv,) = ab.gradients(y, [v])
        (ddv,) = ab.gradients(ops.sum(dv * dv), [v])
        found = run_both_ways(graph, [y, dv, ddv], {v: values})
        session = ab.Session()
        np.testing.assert_allclose(found[0], reference(values))
        np.testing.assert_allclose(found[1], differences(reference, values), rtol=1e-6)

        def size(at: Any) -> float:
            return float((session.run(dv, {v: at}) ** 2).sum())

        np.testing.assert_allclose(found[2], differences(size, values), rtol=1e-5, atol=1e-7)
