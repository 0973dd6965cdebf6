"""Gradients through TensorStores: against finite differences, programs without stores, and trees in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.loops import assert_same, derivatives, repeat, run, unrolled
from shared.examples import examples

import anabranch as ab
from anabranch import ops
from anabranch.engine.ops.containers.store_value import StoreValue

X = np.array([[0.5, -1.0], [2.0, 0.25], [-0.75, 1.5], [1.0, 3.0]])


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    with ab.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def x(graph: ab.Graph) -> ab.Tensor:
    return ab.placeholder((4, 2), "float64", "x")


def compare(found: Any, plain: Any, x: ab.Tensor, feeds: Any = None) -> None:
    """Values and two orders of derivatives of something that is not linear in `x`."""
    feeds = {x: X} | (feeds or {})
    assert_same(derivatives(found * found * found, [x], 2), derivatives(plain * plain * plain, [x], 2), feeds)


def slope(value: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """The gradient of a function of an array, by central differences."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        ahead, behind = at.copy(), at.copy()
        ahead[place] += step
        behind[place] -= step
        found[place] = (value(ahead) - value(behind)) / (2 * step)
    return found


def check_differences(y: ab.Tensor, x: ab.Tensor, feeds: Any = None, at: np.ndarray = X) -> None:
    """The first and second derivatives of scalar `y`, on both roads, against differences of the order before."""
    weights = np.linspace(0.5, 1.5, at.size).reshape(at.shape)
    (first,) = ab.gradients(y, [x], unconnected_gradients="zero")
    first = ops.convert_to_tensor(first)
    (second,) = ab.gradients(ops.sum(first * weights), [x], unconnected_gradients="zero")
    found = run([first, ops.convert_to_tensor(second)], {x: at} | (feeds or {}))
    session = ab.Session()

    def value(point: np.ndarray) -> float:
        return float(session.run(y, {x: point} | (feeds or {})))

    def weighted(point: np.ndarray) -> float:
        return float(np.sum(session.run(first, {x: point} | (feeds or {})) * weights))

    for got, wanted in zip(found, (slope(value, at), slope(weighted, at)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


# --- writes and reads -----------------------------------------------------------------------------------------------


def test_a_key_that_is_read_often(x: ab.Tensor):
    store = ab.TensorStore("float64").write(0, x * x).write(1, ops.sin(x))
    compare(store.read(0) * store.read(0) + store.read(1), x**4 + ops.sin(x), x)


def test_a_key_that_nobody_reads(x: ab.Tensor):
    store = ab.TensorStore("float64").write(0, x * x).write(1, ops.sin(x))
    (found,) = ab.gradients(ops.sum(store.read(0)), [x])
    (unread,) = ab.gradients(ops.sum(ab.TensorStore("float64").write(0, 1.0).write(1, x).read(0)), [x])
    for value, wanted in zip(run([found, unread], {x: X}), (2 * X, 0 * X), strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_elements_of_different_shapes(x: ab.Tensor):
    store = ab.TensorStore("float64", key_shape=2)
    for row in range(4):
        store = store.write((row, 2), x[:row] * x[row])
    parts = [ops.sum(store.read((row, 2)) ** 2) * (row + 1.0) for row in range(4)]
    plain = [ops.sum((x[:row] * x[row]) ** 2) * (row + 1.0) for row in range(4)]
    compare(sum(parts), sum(plain), x)


def test_stores_that_part_ways(x: ab.Tensor):
    """Two stores hold elements of different shapes under the same key; the store before both gets its own part only."""
    first = ab.TensorStore("float64").write(0, x * x)
    left, right = first.write(1, x[0]), first.write(1, x[:3] * 2.0)
    found = ops.sum(left.read(0) * left.read(1)) + ops.sum(right.read(1) ** 2) + ops.sum(first.read(0)) * right.read(0)
    compare(found, ops.sum(x * x * x[0]) + ops.sum((x[:3] * 2.0) ** 2) + ops.sum(x * x) * x * x, x)


@pytest.mark.parametrize("keys", [[3, 0, 3], [1], [], [0, 1, 2, 3]], ids=str)
def test_gather(x: ab.Tensor, keys: list[int]):
    store = repeat(4, lambda i, s: s.write(i, ops.sin(x[i])), ab.TensorStore("float64", (2,)))
    compare(store.gather(keys), ops.take(ops.sin(x), np.array(keys, "int32"), axis=0), x)
    compare(
        store.gather(keys) * store.read(2), ops.take(ops.sin(x), np.array(keys, "int32"), axis=0) * ops.sin(x[2]), x
    )


def test_gather_of_strings(x: ab.Tensor):
    store = ab.TensorStore("float64", (2,), key_dtype="string").write("a", x[0] * x[1]).write("b", ops.exp(x[2]))
    keys = ab.placeholder((None,), "string", "keys")
    plain = ops.stack([ops.exp(x[2]), x[0] * x[1], ops.exp(x[2])])
    compare(store.gather(keys), plain, x, {keys: np.array(["b", "a", "b"], dtype=np.dtypes.StringDType())})


def test_gradients_with_respect_to_a_store():
    x, y = ab.placeholder((), "float64", "x"), ab.placeholder((3,), "float64", "y")
    store = ab.TensorStore("float64").write(0, x).write(1, y).write(2, y)
    (found,) = ab.gradients(store.read(0) ** 2 * ops.sum(store.read(1)), [store])
    values = ab.Session().run(found, {x: 3.0, y: [1.0, 2.0, 3.0]})
    assert {key: np.asarray(value).tolist() for key, value in values.items()} == {0: 36.0, 1: [9.0, 9.0, 9.0]}


def test_stores_of_integers_have_no_gradients(x: ab.Tensor):
    store = ab.TensorStore("int64").write(0, ops.cast(x, "int64"))
    y = ops.sum(x * ops.cast(store.read(0), "float64"))
    (found,) = run([ab.gradients(y, [x])[0]], {x: X})
    np.testing.assert_array_equal(found, np.trunc(X))
    with pytest.raises(TypeError, match="of dtype int64, so nothing has a derivative with respect to it"):
        ab.gradients(y, [store])


# --- loops and branches ---------------------------------------------------------------------------------------------


def test_a_loop_against_the_same_without_stores(x: ab.Tensor):
    store = repeat(4, lambda i, s: s.write(i, ops.sin(s.read(i - 1)) * x), ab.TensorStore("float64").write(-1, x))
    compare(store.read(3), unrolled(4, lambda i, h: ops.sin(h) * x, x), x)


def test_third_order():
    n, x = ab.placeholder((), "int32", "n"), ab.placeholder((2,), "float64", "x")
    start = ab.TensorStore("float64", (2,), key_dtype="int32").write(0, x)
    found = repeat(n, lambda i, s: s.write(i + 1, ops.sin(s.read(i)) * s.read(i // 2)), start).read(n)
    states: list[ab.Tensor] = [x]
    for i in range(3):
        states.append(ops.sin(states[i]) * states[i // 2])
    assert_same(derivatives(found, [x], 3), derivatives(states[3], [x], 3), {n: 3, x: X[0]})


def test_a_loop_that_reads_what_was_written_before_it(x: ab.Tensor):
    """The store is captured, and read at a key that is found in the loop."""
    keys = ab.constant([2, 0, 2])
    store = ab.TensorStore("float64")
    for key in range(3):
        store = store.write(key, ops.sin(x) * (key + 1.0))
    found = repeat(3, lambda i, h: h * store.read(keys[i]) + h, x)
    plain = unrolled(3, lambda i, h: h * ops.sin(x) * ((3.0, 1.0, 3.0)[i]) + h, x)
    compare(found, plain, x)


def test_a_matrix_product_of_what_a_loop_only_reads(graph: ab.Graph):
    x, w = ab.placeholder((4, 2), "float64", "x"), ab.placeholder((2, 2), "float64", "w")
    store = ab.TensorStore("float64", (1, 2))
    for key in range(4):
        store = store.write(10 * key, ops.sin(x[key : key + 1]))
    found = repeat(6, lambda i, h: ops.tanh(h + ops.matmul(store.read(i // 2 * 10), w)), ops.zeros((1, 2), "float64"))
    plain = unrolled(
        6, lambda i, h: ops.tanh(h + ops.matmul(ops.sin(x[i // 2 : i // 2 + 1]), w)), ops.zeros((1, 2), "float64")
    )
    feeds = {x: X, w: X[1:3]}
    assert_same(derivatives(found, [x, w], 2), derivatives(plain, [x, w], 2), feeds)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_any_number_of_iterations(x: ab.Tensor, count: int):
    n = ab.placeholder((), "int32", "n")

    def step(i: Any, s: Any) -> Any:
        below = ab.cond(i < 2, lambda: ops.sin(x), lambda: s.read(i - 1) * s.read(i // 2))
        return s.write(i, below + x[ops.minimum(i, 3)])

    store = repeat(n, step, ab.TensorStore("float64", (4, 2)))
    y = ab.cond(n > 0, lambda: ops.sum(store.read(n - 1) ** 2), lambda: ops.sum(x**3))
    check_differences(y, x, {n: count})


@pytest.mark.parametrize("on", [True, False])
def test_branches_that_write(x: ab.Tensor, on: bool):
    flag = ab.placeholder((), "bool", "flag")
    start = ab.TensorStore("float64").write(0, x * x)
    store = ab.cond(flag, lambda: start.write(1, x[0] * x[1]), lambda: start.write(1, ops.sin(start.read(0))))
    check_differences(ops.sum(store.read(1) ** 2) + ops.sum(store.read(0)), x, {flag: on})


def test_nested_loops(x: ab.Tensor):
    """Each cell of a grid is made of those above it and to the left of it."""

    def cell(i: Any, j: Any, s: Any) -> Any:
        edge = ops.logical_or(ops.equal(i, 0), ops.equal(j, 0))
        return s.write(
            (i, j), ab.cond(edge, lambda: x[i, j], lambda: s.read((i - 1, j)) * s.read((i, j - 1)) + x[i, j])
        )

    store = repeat(4, lambda i, s: repeat(2, lambda j, s: cell(i, j, s), s), ab.TensorStore("float64", (), key_shape=2))
    grid: dict[tuple[int, int], Any] = {}
    for i, j in np.ndindex(4, 2):
        grid[i, j] = x[i, j] + (grid[i - 1, j] * grid[i, j - 1] if i and j else 0.0)
    compare(store.read((3, 1)), grid[3, 1], x)
    check_differences(store.read((3, 1)), x)


def test_a_store_of_its_own_in_each_iteration(x: ab.Tensor):
    def step(i: Any, h: Any) -> Any:
        store = ab.TensorStore("float64", (4, 2)).write(i, ops.sin(h)).write(i + 1, h * x)
        return store.read(i) * store.read(i + 1)

    compare(repeat(3, step, x), unrolled(3, lambda i, h: ops.sin(h) * h * x, x), x)


def test_a_store_carried_and_another_dropped_in_each_iteration(x: ab.Tensor):
    def step(i: Any, s: Any) -> Any:
        passing = s.write(100, s.read(i) * x)
        return s.write(i + 1, passing.read(100) + passing.read(0))

    store = repeat(3, step, ab.TensorStore("float64").write(0, x))
    compare(store.read(3), unrolled(3, lambda i, h: h * x + x, x), x)


def test_loops_in_vectorized_maps(x: ab.Tensor):
    def one(row: Any) -> Any:
        start = ab.TensorStore("float64", ()).write(0, row[0])
        return repeat(3, lambda i, s: s.write(i + 1, ops.sin(s.read(i)) * row[1]), start).read(3)

    plain = unrolled(3, lambda i, h: ops.sin(h) * x[:, 1], x[:, 0])
    compare(ab.vectorized_map(one, x), plain, x)


def test_recursion(x: ab.Tensor):
    """Callers read what calls write; the leaves of the tree are rows of `x`."""
    left, right = ab.constant([1, 3, -1, -1, -1]), ab.constant([2, 4, -1, -1, -1])

    @ab.function
    def fill(node: Any, store: Any) -> Any:
        def inner() -> Any:
            below = fill(right[node], fill(left[node], store))
            return below.write(node, ops.sin(below.read(left[node])) * below.read(right[node]))

        return ab.cond(left[node] < 0, lambda: store.write(node, x[node - 1] * x[node - 2]), inner)

    found = fill(ab.constant(0), ab.TensorStore("float64", (2,))).read(0)
    leaves = {node: x[node - 1] * x[node - 2] for node in (2, 3, 4)}
    plain = ops.sin(ops.sin(leaves[3]) * leaves[4]) * leaves[2]
    compare(found, plain, x)


# --- trees ----------------------------------------------------------------------------------------------------------

Tree = Any  # a number of a row, or a pair of trees


def trees(rows: int) -> Any:
    return st.recursive(st.integers(0, rows - 1), lambda below: st.tuples(below, below), max_leaves=8)


def in_order(tree: Tree) -> list[tuple[int, int, int]]:
    """The nodes as (left, right, row), children before their parents, -1 where there is none."""
    nodes: list[tuple[int, int, int]] = []

    def add(tree: Tree) -> int:
        nodes.append((add(tree[0]), add(tree[1]), -1) if isinstance(tree, tuple) else (-1, -1, tree))
        return len(nodes) - 1

    add(tree)
    return nodes


def state_of(tree: Tree, table: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The state of a tree's root, by plain recursion."""
    if not isinstance(tree, tuple):
        return np.sin(table[tree])
    return np.tanh(state_of(tree[0], table, w) @ w[:2] + state_of(tree[1], table, w) @ w[2:])


class TreeProgram:
    """One graph for trees of any shape: values, and two orders of gradients with respect to table and weights."""

    def __init__(self) -> None:
        with ab.Graph().as_default() as graph:
            self.nodes = ab.placeholder(
                (None, None, 3), "int32", "nodes"
            )  # of each tree of a batch, the last one its root
            self.sizes = ab.placeholder((None,), "int32", "sizes")
            self.table = ab.placeholder((3, 2), "float64", "table")
            self.w = ab.placeholder((4, 2), "float64", "w")
            store = repeat(
                ops.shape(self.nodes)[0],
                lambda tree, s: repeat(self.sizes[tree], lambda node, s: self._written(tree, node, s), s),
                ab.TensorStore("float64", (2,), key_shape=2),
            )
            count = ops.shape(self.nodes)[0]
            self.roots = store.gather(ops.stack([ops.arange(count), self.sizes - 1], axis=1))
            loss = ops.sum(self.roots**3)
            first = [ops.convert_to_tensor(part) for part in ab.gradients(loss, [self.table, self.w])]
            second = ab.gradients(sum(ops.sum(part * part) for part in first), [self.table, self.w])
            self.fetches = [self.roots, *first, *[ops.convert_to_tensor(part) for part in second]]
            self.session = ab.Session(graph)

    def _written(self, tree: Any, node: Any, store: Any) -> Any:
        left, right, row = (self.nodes[tree, node, k] for k in range(3))
        state = ab.cond(
            row >= 0,
            lambda: ops.sin(self.table[row]),
            lambda: ops.tanh(
                ops.dot(store.read((tree, left)), self.w[:2]) + ops.dot(store.read((tree, right)), self.w[2:])
            ),
        )
        return store.write((tree, node), state)

    def __call__(self, batch: list[Tree], table: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
        listed = [in_order(tree) for tree in batch]
        nodes = np.full((len(batch), max(map(len, listed), default=0), 3), -1, "int32")
        for row, each in enumerate(listed):
            nodes[row, : len(each)] = each
        sizes = np.array([len(each) for each in listed], "int32")
        return self.session.run(self.fetches, {self.nodes: nodes, self.sizes: sizes, self.table: table, self.w: w})


@pytest.fixture(scope="module")
def program() -> TreeProgram:
    return TreeProgram()


@settings(max_examples=examples(6, 25), deadline=None)
@given(st.lists(trees(3), max_size=4), st.integers(0, 2**16))
def test_batches_of_trees(program: TreeProgram, batch: list[Tree], seed: int):
    """Nodes of all trees are in one store, under (tree, node)."""
    random = np.random.default_rng(seed)
    table, w = random.normal(size=(3, 2)), random.normal(size=(4, 2))
    roots, d_table, d_w, dd_table, dd_w = program(batch, table, w)
    np.testing.assert_allclose(roots, np.reshape([state_of(tree, table, w) for tree in batch], (-1, 2)), rtol=1e-12)

    def loss(table: np.ndarray, w: np.ndarray) -> float:
        return sum(float(np.sum(state_of(tree, table, w) ** 3)) for tree in batch)

    def squares(table: np.ndarray, w: np.ndarray) -> float:
        return sum(float(np.sum(part**2)) for part in program(batch, table, w)[1:3])

    u, v = random.normal(size=table.shape), random.normal(size=w.shape)  # a direction: few values are enough
    for value, found in ((loss, (d_table, d_w)), (squares, (dd_table, dd_w))):
        along = [value(table + step * u, w + step * v) for step in (1e-6, -1e-6)]
        wanted = (along[0] - along[1]) / 2e-6
        np.testing.assert_allclose(np.sum(found[0] * u) + np.sum(found[1] * v), wanted, rtol=1e-5, atol=1e-6)


# --- costs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2])
def test_loops_copy_a_store_a_bounded_number_of_times(order: int, monkeypatch: pytest.MonkeyPatch):
    """The work of copies and walks grows with the number of keys, and not with its square."""
    n, x = ab.placeholder((), "int32", "n"), ab.placeholder((), "float64", "x")
    start = ab.TensorStore("float64", ()).write(0, x)
    store = repeat(n, lambda i, s: s.write(i + 1, ops.sin(s.read(i)) * s.read(i // 2)), start)
    target = derivatives(store.read(n) + store.read(n // 2), [x], order)[-1]
    walked = [0]
    items = StoreValue.items

    def counted(self: StoreValue) -> Any:
        for item in items(self):
            walked[0] += 1
            yield item

    monkeypatch.setattr(StoreValue, "items", counted)
    session = ab.Session()
    for count in (64, 512):
        walked[0] = 0
        session.run(target, {n: count, x: 0.5})
        assert walked[0] <= 4 * order * count


def test_nothing_of_a_store_is_saved_for_the_gradient():
    n, x = ab.placeholder((), "int32", "n"), ab.placeholder((64,), "float64", "x")
    store = repeat(n, lambda i, s: s.write(i + 1, ops.sin(s.read(i))), ab.TensorStore("float64", (64,)).write(0, x))
    (found,) = ab.gradients(store.read(n), [x])
    session = ab.Session()
    saved: list[int] = []
    for count in (10, 20):
        session.run(found, {n: count, x: np.ones(64)})
        saved.append(session.statistics().saved_bytes)
    assert saved[1] <= 2 * saved[0]
    assert saved[1] < 20 * (64 * 8 + 32)  # the element that each iteration reads, and its keys
