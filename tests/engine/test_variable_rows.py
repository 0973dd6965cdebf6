"""`scatter_update` and its kin: rows of variables written, in place wherever no earlier value is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Graph, IndexedSlices, Symbol, Tensor, VariableRows
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ROWS, WIDTH = 5, 2
START = np.arange(10, dtype="float32").reshape(ROWS, WIDTH)
METHODS = ["scatter_update", "scatter_add", "scatter_sub"]


def table(value: Any = START) -> ab.Variable:
    return ab.Variable(value, name="table")


def slices(values: Any, indices: Any) -> IndexedSlices:
    return IndexedSlices(values, indices, (ROWS, WIDTH))


def expected(method: str, values: Any, indices: Any, start: Any = START) -> np.ndarray:
    result = start.copy()
    if method == "scatter_update":
        for index, row in zip(indices, values, strict=True):
            result[index] = row
    else:
        combine = np.add if method == "scatter_add" else np.subtract
        combine.at(result, np.asarray(indices, int), np.asarray(values, start.dtype))
    return result


class Check:
    """Runs targets interpreted and compiled from the same state, several times; fetches and variables must agree."""

    def __init__(self, targets: list[Any], v: ab.Variable, feeds: dict[Symbol, Any] | None = None, runs: int = 2):
        graph, feeds, start = ab.get_default_graph(), feeds or {}, v.numpy()
        wanted: list[Any] = []
        for _ in range(runs):
            found = Interpreter().run(graph, targets, feeds)
            wanted.append(([np.array(value) for value in found if value is not None], v.numpy()))
        v.write_value(start)
        self.program = Program(graph, targets, list(feeds))
        for fetched, after in wanted:
            values = self.program(*[np.asarray(value, t.dtype) for t, value in feeds.items()])
            for value, one in zip(values, fetched, strict=True):
                np.testing.assert_allclose(value, one, rtol=1e-4)
            np.testing.assert_allclose(v.numpy(), after, rtol=1e-5)
        self.in_place = "write_rows" in self.program.source


# --- from Python ----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(10, 40), deadline=None)
@given(st.lists(st.integers(-ROWS, ROWS - 1), max_size=8), st.sampled_from(METHODS))
def test_at_once_and_in_a_graph(indices: list[int], method: str):
    values = np.random.default_rng(len(indices)).normal(size=(len(indices), WIDTH)).astype("float32")
    v = table()
    assert getattr(v, method)(slices(values, np.array(indices, "int32"))) is None
    np.testing.assert_allclose(v.numpy(), expected(method, values, indices), rtol=1e-6)
    with ab.Graph().as_default() as graph:
        v = table()
        new = getattr(v, method)(slices(values, np.array(indices, "int32")))
        assert new.shape == (ROWS, WIDTH)
        np.testing.assert_allclose(Interpreter().run(graph, [new])[0], expected(method, values, indices), rtol=1e-6)
        v.write_value(START.copy())
        np.testing.assert_allclose(ab.Session().run(new), expected(method, values, indices), rtol=1e-6)
    np.testing.assert_allclose(v.numpy(), expected(method, values, indices), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "complex64", "bfloat16", "uint8"])
@pytest.mark.parametrize("method", METHODS)
def test_dtypes(method: str, dtype: str):
    start = ab.Variable(START, dtype=dtype).numpy()
    at_once, v = ab.Variable(START, dtype=dtype), ab.Variable(START, dtype=dtype)
    rows = [[1, 2], [3, 4], [1, 1]]
    getattr(at_once, method)(slices(rows, [4, 0, 4]))
    with ab.Graph().as_default():
        ab.Session().run(getattr(v, method)(slices(rows, [4, 0, 4])))
    wanted = expected(method, rows, [4, 0, 4], start)
    for variable in (at_once, v):
        assert variable.numpy().dtype == start.dtype
        np.testing.assert_array_equal(variable.numpy(), wanted)


def test_vectors_have_rows_too():
    v = ab.Variable([1.0, 2.0, 3.0])
    v.scatter_add(IndexedSlices([1.0, 1.0], [2, 2], (3,)))
    np.testing.assert_array_equal(v.numpy(), [1, 2, 5])
    with ab.Graph().as_default():
        ab.Session().run(v.scatter_sub(IndexedSlices([1.0, 1.0], [2, 0], (3,))))
    np.testing.assert_array_equal(v.numpy(), [0, 2, 4])


def test_acting_at_once_writes_the_rows_only():
    v = table()
    held = v.stored_value()
    for method in METHODS:
        getattr(v, method)(slices([[1.0, 2.0]], [3]))
    assert v.stored_value() is held


@pytest.mark.parametrize("method", METHODS)
def test_columns_that_lie_together(method: str):
    v = table()
    v.write_value(np.asfortranarray(START))
    getattr(v, method)(slices([[1.0, 2.0]], [3]))
    np.testing.assert_array_equal(v.numpy(), expected(method, [[1, 2]], [3]))
    with ab.Graph().as_default():
        v.write_value(np.asfortranarray(START))
        ab.Session().run(getattr(v, method)(slices([[1.0, 2.0]], [3])).operation)
    np.testing.assert_array_equal(v.numpy(), expected(method, [[1, 2]], [3]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("indices", [[ROWS], [0, -ROWS - 1]])
def test_positions_out_of_range(method: str, indices: list[int]):
    v, values = table(), np.ones((len(indices), WIDTH), "float32")
    wrong = rf"index {indices[-1]} is out of bounds for axis 0 with size 5"
    with pytest.raises(IndexError, match=wrong):
        getattr(v, method)(slices(values, indices))
    with ab.Graph().as_default(), pytest.raises(IndexError, match=wrong):
        ab.Session().run(getattr(v, method)(slices(values, indices)))
    np.testing.assert_array_equal(v.numpy(), START)


@pytest.mark.parametrize("method", METHODS)
def test_rows_of_another_shape(method: str):
    v, message = table(), r"'table' has shape \[5,2\]: its rows must be given as \[\d,2\].*got \[\d,\d\]"
    for shape in ((1, 3), (2, 2)):
        with pytest.raises(ValueError, match=message):
            getattr(v, method)(slices(np.ones(shape, "float32"), [1]))
    with ab.Graph().as_default():
        with pytest.raises(ValueError, match=message):
            v.scatter_update(slices(np.ones((1, 3), "float32"), [1]))
        rows = ab.placeholder((None, WIDTH), "float32")
        update = v.scatter_update(slices(rows, [1]))
        with pytest.raises(ValueError, match=message):
            ab.Session().run(update, {rows: np.ones((2, WIDTH))})


def test_misuse():
    v = ab.Variable(1.0, name="one")
    with pytest.raises(ValueError, match=r"'one' is a scalar, which has no rows; use assign\(\)"):
        v.scatter_update(IndexedSlices([1.0], [0], ()))
    with pytest.raises(TypeError, match=r"positions must be integers, got float32"):
        table().scatter_add(slices([[1.0, 2.0]], [0.5]))
    with ab.Graph().as_default(), pytest.raises(TypeError, match=r"indices must be integers"):
        table().scatter_add(slices([[1.0, 2.0]], [0.5]))


# --- in graphs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def graph():
    with Graph().as_default() as graph:
        yield graph


def update(v: ab.Variable, row: Any = ((7.0, 8.0),), index: Any = (1,)) -> Tensor:
    return v.scatter_update(slices(row, index))


@pytest.mark.usefixtures("graph")
class TestInPlace:
    def test_an_update_alone(self):
        v = table()
        held = v.stored_value()
        ab.Session().run(symbol_of(update(v)).operation)
        assert v.stored_value() is held
        assert Check([update(v)], v).in_place
        assert Check([symbol_of(update(v)).operation], v).in_place

    def test_rows_that_depend_on_the_old_value(self):
        v = table()
        old = v.value
        rows = ops.take(old, [1, 3], axis=0) * 2 + ops.sum(old)
        assert Check([symbol_of(update(v, rows, [1, 3])).operation], v).in_place

    def test_several_updates(self):
        v = table()
        update(v)
        v.scatter_add(slices([[1.0, 1.0]], [1]))
        last = v.scatter_sub(slices(ops.take(v, [0, 0], axis=0), [2, 2]))
        writes = [o for o in ab.get_default_graph().operations if o.writes]
        assert Check([*writes[:2], last], v).in_place

    def test_the_new_value_is_used(self):
        v = table()
        new = update(v)
        assert Check([ops.sum(new * 2), v.value + 1, symbol_of(new).operation], v).in_place

    def test_what_was_fetched_is_a_copy(self):
        v = table()
        (fetched,) = Check([update(v)], v).program()
        fetched[:] = 99
        assert v.numpy().max() < 99

    def test_after_a_whole_assignment(self):
        v, x = table(), ab.placeholder((ROWS, WIDTH), "float32")
        whole = v.assign(ops.sin(x))
        assert Check([whole.operation, symbol_of(update(v)).operation], v, {x: START}).in_place


@pytest.mark.usefixtures("graph")
class TestNotInPlace:
    def test_the_old_value_is_fetched(self):
        v = table()
        old = v.value
        assert not Check([old, update(v)], v).in_place

    def test_the_old_value_is_used_later(self):
        v = table()
        old = v.value
        new = update(v)
        assert not Check([ops.matmul(ops.transpose(new), old)], v).in_place

    @pytest.mark.parametrize(
        "view",
        [
            lambda old: old[1:3],
            lambda old: ops.transpose(old),
            lambda old: ops.reshape(old, (-1,)),
            lambda old: ops.expand_dims(old, 0),
            lambda old: ab.cond(ops.sum(old) > -1, lambda: old, lambda: old + 1),
            lambda old: old[:, 0],
            lambda old: ab.TensorArray("float32", ROWS).unstack(old).stack(),
        ],
    )
    def test_a_view_of_the_old_value_is_used_later(self, view: Callable[[Tensor], Tensor]):
        v = table()
        old = view(v.value)
        write = symbol_of(update(v)).operation
        assert not Check([ops.sum(ops.sin(old)) + ops.sum(v), old, write], v).in_place

    def test_rows_that_are_a_view_of_the_old_value(self):
        v = table()
        old = v.value
        assert not Check([update(v, old[1:4], [0, 1, 2])], v).in_place
        v = table()
        positions = ab.Variable([1, 2, 0])
        Check([positions.scatter_update(IndexedSlices(positions.value, positions.value, (3,)))], positions)

    def test_a_value_that_was_assigned_lives_on(self):
        v, x = table(), ab.placeholder((ROWS, WIDTH), "float32")
        value = ops.cumsum(x, axis=0)
        v.assign(value)
        new = update(v)
        writes = [o for o in ab.get_default_graph().operations if o.writes]
        assert not Check([*writes, value * 2, new], v, {x: START}).in_place

    def test_an_earlier_new_value_is_fetched(self):
        v = table()
        first = update(v)
        second = update(v, [[5.0, 5.0]], [2])
        Check([first, second], v)
        Check([first[1] * 1, second], v)

    def test_a_fed_value_is_what_changes(self):
        v = table()
        old = v.value
        new = update(v)
        fed = np.zeros((ROWS, WIDTH), "float32")
        value = ab.Session().run(new, {old: fed})
        np.testing.assert_array_equal(value, expected("scatter_update", [[7, 8]], [1], fed))
        np.testing.assert_array_equal(v.numpy(), value)


def repeat(count: int, body: Callable[..., Any], *values: Any) -> Any:
    def step(i: Any, *carried: Any) -> tuple[Any, ...]:
        result = body(i, *carried)
        return (i + 1, *result)

    return ab.while_loop(lambda i, *_: i < count, step, (0, *values))[1:]


@pytest.mark.usefixtures("graph")
@pytest.mark.usefixtures("loops_stay")
class TestInsideRegions:
    def test_a_loop_writes_in_place(self):
        v = table()

        def body(i: Any, total: Any) -> Any:
            v.scatter_add(slices(ops.ones((1, WIDTH)) * (ops.sum(v) + total), ops.reshape(i, (1,))))
            return (total + ops.sum(v[i]),)

        (total,) = repeat(3, body, 0.0)
        assert Check([total], v).in_place

    def test_the_value_before_the_loop_is_used_behind_it(self):
        v = table()
        old = v.value
        view = old[1:]
        (total,) = repeat(3, lambda i, t: (t + ops.sum(update(v, [[1.0, 1.0]], ops.reshape(i, (1,)))),), 0.0)
        assert not Check([total, ops.sum(ops.cos(view))], v).in_place

    def test_the_value_before_the_loop_goes_into_it(self):
        v = table()
        old = v.value
        (final,) = repeat(2, lambda i, h: (h * 2 + update(v, [[1.0, 1.0]], ops.reshape(i, (1,))),), old)
        assert not Check([final], v).in_place

    def test_a_loop_carries_old_values(self):
        v = table()

        def body(i: Any, last: Any, before: Any) -> Any:
            now = update(v, ops.sum(last, axis=0, keepdims=True) + ops.cast(i, "float32"), ops.reshape(i, (1,)))
            return now, last

        found = repeat(3, body, ops.zeros((ROWS, WIDTH)), ops.zeros((ROWS, WIDTH)))
        assert not Check(list(found), v).in_place

    def test_a_loop_carries_what_it_assigned(self):
        v = table()

        def body(i: Any, h: Any) -> Any:
            update(v, [[1.0, 1.0]], ops.reshape(i, (1,)))
            grown = h * 2 + v
            v.assign(grown)
            return (grown,)

        assert not Check(list(repeat(3, body, ops.ones((ROWS, WIDTH)))), v).in_place

    def test_branches(self):
        v, on = table(), ab.placeholder((), "bool")
        total = ab.cond(on, lambda: ops.sum(update(v)), lambda: 0.0)
        for value in (True, False):
            assert Check([total], v, {on: value}).in_place
        old = v.value
        total = ab.cond(on, lambda: ops.sum(update(v)), lambda: 0.0)
        for value in (True, False):
            assert not Check([total, ops.sum(ops.sin(old))], v, {on: value}).in_place

    def test_a_history_keeps_old_values(self):
        v, x = table(), ab.placeholder((), "float32")

        def body(i: Any, total: Any) -> Any:
            seen = v.value * total
            update(v, [[3.0, 4.0]], ops.reshape(i, (1,)))
            return (ops.sum(ops.sin(seen)),)

        (total,) = repeat(3, body, x)
        (slope,) = ab.gradients(total, [x])
        Check([total, slope], v, {x: 0.3})


@pytest.mark.usefixtures("graph")
def test_gradients_flow_through_the_new_value():
    v, rows = table(START.astype("float64")), ab.placeholder((3, WIDTH), "float64")
    old = v.value
    new = v.scatter_update(slices(rows, [1, -1, 1]))
    loss = ops.sum(new * new * new)
    by_old, by_rows = ab.gradients(loss, [old, rows])
    (second,) = ab.gradients(ops.sum(by_rows * by_rows) + ops.sum(by_old), [rows])
    at = np.arange(6.0).reshape(3, WIDTH) + 1
    found = ab.Session().run([by_old, by_rows, second], {rows: at})
    untouched = np.array([1, 0, 1, 1, 0])[:, None]
    last = np.array([0, 1, 1])[:, None]
    np.testing.assert_allclose(found[0], 3 * START**2 * untouched)
    np.testing.assert_allclose(found[1], 3 * at**2 * last)
    np.testing.assert_allclose(found[2], 36 * at**3 * last)


@pytest.mark.usefixtures("graph")
def test_gradients_of_sums_into_rows():
    v, rows = table(START.astype("float64")), ab.placeholder((3, WIDTH), "float64")
    new = v.scatter_add(slices(rows, [1, -1, 1]))
    (by_rows,) = ab.gradients(ops.sum(new * new), [rows])
    at = np.arange(6.0).reshape(3, WIDTH) + 1
    after = expected("scatter_add", at, [1, -1, 1], START.astype("float64"))
    np.testing.assert_allclose(ab.Session().run(by_rows, {rows: at}), 2 * after[[1, -1, 1]])


def test_functions_and_saved_graphs(tmp_path: Any):
    v = table()

    @ab.function
    def write(rows: Any, indices: Any) -> Any:
        v.scatter_add(slices(rows, indices))
        return ops.sum(v)

    assert write(np.ones((2, WIDTH), "float32"), np.array([0, 0])) == START.sum() + 4
    np.testing.assert_array_equal(v.numpy()[0], START[0] + 2)
    with ab.Graph().as_default() as graph:
        new = update(table())
        graph.save(tmp_path / "rows.npz")
        wanted = ab.Session().run(new)
    loaded = ab.load_graph(tmp_path / "rows.npz")
    again = loaded.get_tensor_by_name(f"{symbol_of(new).operation.name}:0")
    np.testing.assert_array_equal(ab.Session(loaded).run(again), wanted)


@pytest.mark.usefixtures("graph")
def test_rows_as_a_variable_of_their_own():
    v, other = table(), ab.Variable(START * 2, name="other")
    rows = VariableRows(v, ops.convert_to_tensor([1, 3]))
    assert (rows.shape, rows.dtype, rows.ndim) == ((2, WIDTH), v.dtype, 2)
    rows.assign(rows * 2 + rows.rows_of(other))
    rows.assign_add(ops.ones((2, WIDTH)))
    last = rows.assign_sub(rows.value * 0.5)
    writes = [o for o in ab.get_default_graph().operations if o.writes]
    assert Check([*writes, last], v, runs=1).in_place
    np.testing.assert_allclose(v.numpy()[[1, 3]], (START[[1, 3]] * 4 + 1) / 2)
    np.testing.assert_allclose(v.numpy()[[0, 2, 4]], START[[0, 2, 4]])
    found = ab.Session().run([ops.sum(rows), -rows, rows @ ops.ones((WIDTH, 1)), ops.square(rows)])
    at = v.numpy()[[1, 3]]
    for value, wanted in zip(found, [at.sum(), -at, at.sum(1, keepdims=True), at**2], strict=True):
        np.testing.assert_allclose(value, wanted)


# --- programs made at random ----------------------------------------------------------------------------------------


class Made:
    """A program over a table, and whatever it has computed: values, views, writes, loops and branches with writes."""

    def __init__(self) -> None:
        self.table = table(START / 4)
        self.pool: list[Tensor] = [self.table.value]

    def add(self, kind: int, first: int, second: int) -> None:
        x, y = self.pool[first % len(self.pool)], self.pool[second % len(self.pool)]
        steps: list[Callable[[], Any]] = [
            lambda: self.table.value,
            lambda: x[::-1],
            lambda: ops.reshape(ops.transpose(x), (ROWS, WIDTH)),
            lambda: ops.tanh(x) + y,
            lambda: self.table.assign(x),
            lambda: self.write(x, second),
            lambda: self.table.scatter_add(slices(y[:2] * 0.5, [second % ROWS] * 2)),
            lambda: self.loop(x, second),
            lambda: ab.cond(ops.sum(y) > 0, lambda: ops.tanh(self.write(x, second)), lambda: x),
        ]
        self.pool.append(steps[kind]())

    def write(self, x: Tensor, place: int) -> Tensor:
        return self.table.scatter_update(slices(x[1:3], [place % ROWS, (place + 2) % ROWS]))

    def loop(self, x: Tensor, place: int) -> Tensor:
        def body(i: Any, h: Any) -> Any:
            before = self.table.value
            self.write(h, place)
            if place % 3 == 0:
                self.table.assign(h * 0.5)
            return (before if place % 2 else ops.tanh(h + self.table),)

        return repeat(2, body, x)[0]


@settings(max_examples=examples(15, 60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=9),
    st.sets(st.integers(0, 9), max_size=3),
)
def test_programs_made_at_random(steps: list[tuple[int, int, int]], fetched: set[int]):
    with ab.Graph().as_default() as graph:
        made = Made()
        for step in steps:
            made.add(*step)
        writes = [operation for operation in graph.operations if operation.writes]
        wanted = [made.pool[k % len(made.pool)] for k in fetched]
        if writes or wanted:
            Check([*writes, *dict.fromkeys(wanted)], made.table)
