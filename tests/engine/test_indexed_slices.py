"""`IndexedSlices`: gradients of tables of which rows are used, compared with programs of one-hot matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.symbols import symbols_of

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import IndexedSlices, eagerly
from anabranch.engine.ops.containers.indexed_slices import deduplicated
from anabranch.engine.runtime.interpreter import Interpreter

ROWS, WIDTH = 5, 3
IDS = [2, 0, 2, 4]
Rows = Callable[[Any], Any]  # the rows of the table at indices of any shape
Program = Callable[[Rows, Any], Any]  # from these and a vector of indices to a tensor


@pytest.fixture(autouse=True)
def graph():
    with ab.Graph().as_default() as graph:
        yield graph


def table(dtype: Any = "float64", rows: int = ROWS, seed: int = 0) -> ab.Variable:
    values = np.random.default_rng(seed).normal(size=(rows, WIDTH))
    return ab.Variable(values, dtype=dtype, name="table")


def taken(w: Any) -> Rows:
    return lambda ids: ops.take(w, ids, axis=0)


def multiplied(w: Any) -> Rows:
    """The same rows by a product with one-hot vectors, which is dense all the way."""
    count = w.shape[0]

    def rows(ids: Any) -> Any:
        ids = ops.convert_to_tensor(ids, "int32")
        return ops.matmul(ops.one_hot(ops.mod(ids, count), count, dtype=w.dtype), w)

    return rows


def slopes(y: Any, w: Any) -> tuple[Any, Any]:
    """The first derivative of a loss of `y`, and the gradient of a function of that."""
    (first,) = ab.gradients(ops.sum(ops.sin(y) * y), [w])
    if first is None:
        return None, None
    (second,) = ab.gradients(ops.sum(ops.sin(ops.convert_to_tensor(first))), [w])
    return first, second


def both_roads(targets: list[Any], feeds: dict[Any, Any], session: ab.Session | None = None) -> list[Any]:
    """The values by the compiled program, after the interpreter was found to agree."""
    graph = ab.get_default_graph()
    dense = symbols_of(ops.convert_to_tensor(target) for target in targets)
    values = (session or ab.Session()).run(dense, feeds)
    for value, expected in zip(values, Interpreter().run(graph, dense, feeds), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-12)
    return values


# --- programs -------------------------------------------------------------------------------------------------------


def in_loop(rows: Rows, ids: Any) -> Any:
    def body(i: Any, total: Any) -> tuple[Any, Any]:
        return i + 1, total + ops.sin(rows(ids[i])) * total

    one = ops.ones((WIDTH,), "float64")
    return ab.while_loop(lambda i, total: i < ops.shape(ids)[0], body, (0, one))[1]


def varying_rows(rows: Rows, ids: Any) -> Any:
    def body(i: Any, total: Any) -> tuple[Any, Any]:
        picked = rows(ids[:i])
        return i + 1, total + ops.sum(picked * picked, axis=0)

    start = ops.zeros((WIDTH,), "float64")
    return ab.while_loop(lambda i, total: i <= ops.shape(ids)[0], body, (0, start))[1]


def nested_loops(rows: Rows, ids: Any) -> Any:
    count = ops.shape(ids)[0]

    def outer(i: Any, total: Any) -> tuple[Any, Any]:
        def inner(j: Any, product: Any) -> tuple[Any, Any]:
            return j + 1, product * ops.cos(rows(ids[j]) * rows(ids[i]))

        return i + 1, total + ab.while_loop(lambda j, p: j < count, inner, (i, total))[1]

    return ab.while_loop(lambda i, total: i < count, outer, (0, ops.ones((WIDTH,), "float64")))[1]


def branch_in_loop(rows: Rows, ids: Any) -> Any:
    def body(i: Any, total: Any) -> tuple[Any, Any]:
        step = ab.cond(ids[i] > 1, lambda: ops.sin(rows(ids[i : i + 2])[0]), lambda: total * 0.5)
        return i + 1, total * step

    return ab.while_loop(lambda i, t: i < ops.shape(ids)[0], body, (0, ops.ones((WIDTH,), "float64")))[1]


def two_loops(rows: Rows, ids: Any) -> Any:
    return in_loop(rows, ids) * in_loop(rows, ids[1:]) + ops.sum(rows(ids[:1]), axis=0)


def scanned(rows: Rows, ids: Any) -> Any:
    def step(carry: Any, position: Any) -> tuple[Any, Any]:
        carry = ops.tanh(carry + rows(position))
        return carry, carry * rows(position)

    last, outputs = ops.scan(step, ops.zeros((WIDTH,), "float64"), ids)
    return last + ops.sum(outputs, axis=0)


def branch(rows: Rows, ids: Any) -> Any:
    return ab.cond(ops.sum(ids) > 3, lambda: ops.sin(rows(ids)), lambda: rows(ids[:1]) * rows(ids) * 2.0)


def switched(rows: Rows, ids: Any) -> Any:
    parts = [lambda: rows(ids), lambda: rows(ids) * rows(ids[::-1]), lambda: ops.zeros((1, WIDTH), "float64")]
    return ab.switch(ops.size(ids) % 3, parts)


def gathered_twice(rows: Rows, ids: Any) -> Any:
    picked = rows(ids)
    return ops.take(picked, ids[:2] % ops.maximum(ops.shape(ids)[0], 1), axis=0)


PROGRAMS: dict[str, Program] = {
    "gather": lambda rows, ids: rows(ids),
    "several": lambda rows, ids: ops.sum(rows(ids) * 2.0) + ops.sum(rows(ids[:1]) * rows(ids)) + rows(1)[0],
    "constant": lambda rows, ids: rows([1, -1, 1, 0]),
    "scalar": lambda rows, ids: rows(3) * rows(-2),
    "matrix": lambda rows, ids: rows(ops.stack([ids, ids])),
    "gather of gather": gathered_twice,
    "loop": in_loop,
    "varying rows": varying_rows,
    "nested loops": nested_loops,
    "branch in a loop": branch_in_loop,
    "two loops": two_loops,
    "scan": scanned,
    "vectorized map": lambda rows, ids: ab.vectorized_map(lambda i: ops.sin(rows(i)) * rows(-1), ids),
    "map": lambda rows, ids: ab.map_fn(lambda i: ops.sin(rows(i)) * rows(-1), ids),
    "branch": branch,
    "switch": switched,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_slices_are_what_one_hot_products_give(name: str):
    w, fed = table(), ab.placeholder((None,), "int32", "ids")
    sparse, second = slopes(PROGRAMS[name](taken(w), fed), w)
    dense, second_dense = slopes(PROGRAMS[name](multiplied(w), fed), w)
    assert isinstance(sparse, IndexedSlices)
    assert isinstance(dense, ab.Tensor)
    session, targets = ab.Session(), [ops.convert_to_tensor(y) for y in (sparse, second, dense, second_dense)]
    for ids in (IDS, [-1, -5, 1], [3], []):
        found = both_roads(targets, {fed: np.array(ids, "int32")}, session)
        np.testing.assert_allclose(found[0], found[2], rtol=1e-10, atol=1e-12, err_msg=str(ids))
        np.testing.assert_allclose(found[1], found[3], rtol=1e-10, atol=1e-12, err_msg=str(ids))
        rows = session.run(sparse, {fed: ids})
        np.testing.assert_allclose(np.asarray(rows), found[2], rtol=1e-10, atol=1e-12, err_msg=str(ids))
        assert rows.values.shape == (len(rows.indices), WIDTH), ids


@pytest.mark.parametrize("name", PROGRAMS)
def test_slices_agree_with_finite_differences(name: str):
    w, fed = table(), ab.placeholder((None,), "int32", "ids")
    y = PROGRAMS[name](taken(w), fed)
    loss = ops.sum(ops.sin(y) * y)
    (slope,) = ab.gradients(loss, [w])
    session = ab.Session()
    found, at = np.asarray(session.run(slope, {fed: IDS})), w.numpy()
    for direction in np.random.default_rng(1).normal(size=(2, ROWS, WIDTH)):
        sides: list[float] = []
        for step in (1e-6, -1e-6):
            w.write_value(at + step * direction)
            sides.append(float(session.run(loss, {fed: IDS})))
        w.write_value(at)
        np.testing.assert_allclose((sides[0] - sides[1]) / 2e-6, np.sum(found * direction), rtol=1e-6, atol=1e-8)


@settings(max_examples=examples(10, 25), deadline=None)
@given(st.lists(st.integers(-ROWS, ROWS - 1), max_size=8), st.sampled_from(["take", "getitem", "loop"]))
def test_any_indices(ids: list[int], how: str):
    with ab.Graph().as_default():
        w = table()
        rows: Rows = {"take": taken(w), "getitem": lambda i: w[ops.convert_to_tensor(i)], "loop": taken(w)}[how]
        indices = ops.convert_to_tensor(np.array(ids, "int32"))
        make: Program = in_loop if how == "loop" else lambda rows, ids: rows(ids)
        sparse, second = slopes(make(rows, indices), w)
        dense, second_dense = slopes(make(multiplied(w), indices), w)
        found = both_roads([sparse, second, dense, second_dense], {})
    np.testing.assert_allclose(found[0], found[2], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found[1], found[3], rtol=1e-10, atol=1e-12)


# --- how rows are taken ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pick",
    [
        lambda w: ops.gather(w, [3, 1, 3]),
        lambda w: w[ops.convert_to_tensor(3)],
        lambda w: w[ops.convert_to_tensor([[3, -1], [0, 0]])],
        lambda w: ops.take(w, ops.zeros((2, 0, 3), "int32"), axis=0),
        lambda w: ops.take(ops.cast(w, "float32"), [1, 1], axis=0),
        lambda w: w[[1, 1]],
    ],
    ids=["gather", "scalar", "matrix", "empty", "cast", "list"],
)
def test_ways_to_take_rows(pick: Callable[[Any], Any]):
    w = table()
    y = pick(w)
    (slope,) = ab.gradients(ops.sum(y * y), [w])
    assert isinstance(slope, IndexedSlices)
    assert slope.shape == (ROWS, WIDTH)
    assert slope.dtype == w.dtype
    x = ab.constant(w.numpy())
    picked = pick(x)
    expected = ab.Session().run(ab.gradients(ops.sum(picked * picked), [x])[0])
    np.testing.assert_array_equal(np.asarray(ab.Session().run(slope)), expected)


def test_tables_that_are_joined():
    first, second, rest = table(seed=1), table(seed=2, rows=2), ops.ones((1, WIDTH), "float64")
    ids = ab.placeholder((None,), "int64")
    picked = ops.take(ops.concatenate([first, rest, second], axis=0), ids, axis=0)
    found = ab.gradients(ops.sum(picked * picked), [first, second])
    assert all(isinstance(slope, IndexedSlices) for slope in found)
    at = {ids: [0, -1, 5, 6, 4, 7, -2, 0]}
    dense = both_roads(found, at)
    a, b = 2 * first.numpy(), 2 * second.numpy()
    np.testing.assert_allclose(dense[0], a * np.array([2, 0, 0, 0, 1.0])[:, None])
    np.testing.assert_allclose(dense[1], b * np.array([2, 2.0])[:, None])
    rows = ab.Session().run(found, at)
    assert sorted(rows[0].indices) == [0, 0, 4]
    assert sorted(rows[1].indices) == [0, 0, 1, 1]


def test_tables_that_are_read_more_than_once():
    w = table()
    first = ops.take(w, [0, 2], axis=0)
    with ab.control_dependencies([first]):
        second = ops.take(w, [2, 4], axis=0)  # a read of its own, since it has to wait
    (found,) = ab.gradients(ops.sum(first**2) + ops.sum(second**3), [w])
    assert isinstance(found, IndexedSlices)
    wanted = np.zeros((ROWS, WIDTH))
    wanted[[0, 2]] += 2 * w.numpy()[[0, 2]]
    wanted[[2, 4]] += 3 * w.numpy()[[2, 4]] ** 2
    np.testing.assert_allclose(ab.Session().run(found.to_dense()), wanted)


@pytest.mark.parametrize("trips", [0, 2])
def test_rows_taken_in_a_loop_by_products_of_unknown_sizes(trips: int):
    w, ids = table(), ops.convert_to_tensor([0, 4, 0])
    x, n = ab.placeholder((None, None), "float64"), ab.placeholder((), "int32")

    def slope(rows: Rows) -> Any:
        body = lambda i, h: (i + 1, ops.tanh(rows(ids) @ h))  # noqa: E731
        h = ab.while_loop(lambda i, h: i < n, body, (0, x))[1]
        return ab.gradients(ops.sum(h), [w], unconnected_gradients="zero")[0]

    found, wanted = slope(taken(w)), slope(multiplied(w))
    assert isinstance(found, IndexedSlices)
    assert found.values.shape == (None, WIDTH)
    feeds = {n: trips, x: np.arange(9.0).reshape(3, 3) / 9}
    np.testing.assert_allclose(*ab.Session().run([found.to_dense(), wanted], feeds), atol=1e-12)


def test_dense_uses_beside_rows_give_a_dense_gradient():
    w = table()
    for y in (ops.sum(ops.take(w, IDS, axis=0) * 3.0) + ops.sum(w * w), ops.sum(w * w) + ops.sum(w[ops.constant(1)])):
        (slope,) = ab.gradients(y, [w])
        assert isinstance(slope, ab.Tensor)
    (value,) = both_roads([slope], {})
    expected = 2 * w.numpy()
    expected[1] += 1
    np.testing.assert_allclose(value, expected)


def test_dense_use_in_a_loop_beside_rows_outside():
    w = table()
    _, total = ab.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t + ops.sum(w * w)), (0, ops.sum(w[[1]] * 4.0)))
    (slope,) = ab.gradients(total, [w])
    expected = 6 * w.numpy()
    expected[1] += 4
    np.testing.assert_allclose(both_roads([slope], {})[0], expected)


def test_gradient_of_a_tensor_is_dense():
    x = ab.constant(np.ones((ROWS, WIDTH)))
    (slope,) = ab.gradients(ops.sum(ops.take(x, IDS, axis=0)), [x])
    assert isinstance(slope, ab.Tensor)


def test_a_branch_that_is_not_taken_gives_no_rows():
    w, on = table(), ab.placeholder((), "bool")
    y = ab.cond(on, lambda: ops.sum(ops.take(w, IDS, axis=0)), lambda: ops.zeros((), "float64"))
    (slope,) = ab.gradients(y, [w])
    session = ab.Session()
    assert len(session.run(slope, {on: True}).indices) == len(IDS)
    off = session.run(slope, {on: False})
    assert len(off.indices) == 0
    np.testing.assert_array_equal(np.asarray(off), np.zeros((ROWS, WIDTH)))


def test_branches_of_which_one_uses_the_whole_table():
    w, on = table(), ab.placeholder((), "bool")
    y = ab.cond(on, lambda: ops.sum(ops.take(w, [1], axis=0)), lambda: ops.sum(w * w))
    (slope,) = ab.gradients(y, [w])
    one = np.zeros((ROWS, WIDTH))
    one[1] = 1
    np.testing.assert_array_equal(np.asarray(ab.Session().run(slope, {on: True})), one)
    np.testing.assert_allclose(np.asarray(ab.Session().run(slope, {on: False})), 2 * w.numpy())


# --- dtypes ---------------------------------------------------------------------------------------------------------


def test_complex_tables():
    w = ab.Variable(np.arange(6).reshape(3, 2) * (1 + 2j), dtype="complex128")
    picked = ops.take(w, [1, 1, 2], axis=0)
    (sparse,) = ab.gradients(ops.sum(ops.real(picked * picked)), [w])
    product = ops.matmul(ops.one_hot([1, 1, 2], 3, dtype="complex128"), w)
    (dense,) = ab.gradients(ops.sum(ops.real(product * product)), [w])
    assert isinstance(sparse, IndexedSlices)
    found = both_roads([sparse, dense], {})
    np.testing.assert_allclose(found[0], found[1])
    assert found[0][1, 0].imag


def test_bfloat16_tables():
    w = table("bfloat16")
    (slope,) = ab.gradients(ops.sum(ops.take(w, [1, 1, 4], axis=0) * 2), [w])
    rows = ab.Session().run(slope)
    assert rows.values.dtype == w.dtype
    assert np.asarray(rows).dtype == w.dtype
    expected = np.zeros((ROWS, WIDTH))
    expected[[1, 4]] = [[4], [2]]
    np.testing.assert_array_equal(np.asarray(rows, "float32"), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint32"])
def test_dtypes_of_indices(dtype: str):
    w = table()
    (slope,) = ab.gradients(ops.sum(ops.take(w, np.array([4, 1], dtype), axis=0)), [w])
    np.testing.assert_array_equal(np.asarray(ab.Session().run(slope)).sum(axis=1), [0, 3, 0, 0, 3])
    np.testing.assert_array_equal(ab.Session().run(slope.to_dense()).sum(axis=1), [0, 3, 0, 0, 3])


def test_unknown_number_of_rows():
    w = ab.Variable(np.ones((ROWS, WIDTH)), shape=(None, WIDTH))
    (slope,) = ab.gradients(ops.sum(ops.take(w, IDS, axis=0)), [w])
    assert isinstance(slope, IndexedSlices)
    assert slope.shape == (None, WIDTH)
    assert slope.ndim == 2
    assert np.asarray(ab.Session().run(slope)).shape == (ROWS, WIDTH)
    assert both_roads([slope], {})[0].shape == (ROWS, WIDTH)


# --- as a value -----------------------------------------------------------------------------------------------------


def sample() -> tuple[IndexedSlices, np.ndarray]:
    w = table()
    (slope,) = ab.gradients(ops.sum(ops.take(w, [2, -1, 2], axis=0) * 3.0), [w])
    dense = np.zeros((ROWS, WIDTH))
    dense[[2, 4]] = [[6], [3]]
    return slope, dense


def test_ops_and_operators_take_it_as_dense():
    slope, dense = sample()
    found = ab.Session().run(
        [slope * 2, 1 - slope, -slope, slope + slope, ops.sum(slope), ops.matmul(slope, ops.transpose(slope)), slope[2]]
    )
    expected = [dense * 2, 1 - dense, -dense, dense + dense, dense.sum(), dense @ dense.T, dense[2]]
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted)


def test_slices_that_were_fetched_go_back_in():
    slope, dense = sample()
    rows = ab.Session().run(slope)
    assert isinstance(rows, IndexedSlices)
    assert rows.shape == (ROWS, WIDTH)
    assert rows.dtype == dense.dtype
    np.testing.assert_array_equal(ab.Session().run(ops.sum(rows)), dense.sum())
    np.testing.assert_array_equal(np.asarray(rows, "float32"), dense.astype("float32"))
    assert repr(rows).startswith("IndexedSlices(values=")
    x = ab.placeholder((ROWS, WIDTH), "float64")
    np.testing.assert_array_equal(ab.Session().run(x * 2, {x: rows}), dense * 2)


def test_what_functions_return():
    w = table()

    @ab.function
    def slope_of(ids: Any) -> Any:
        (slope,) = ab.gradients(ops.sum(ops.take(w, ids, axis=0) * 3.0), [w])
        return slope, {"twice": slope}

    with eagerly():
        rows, named = slope_of(np.array([2, -1, 2]))
    assert isinstance(rows, IndexedSlices)
    assert isinstance(named["twice"], IndexedSlices)
    np.testing.assert_array_equal(np.asarray(rows), sample()[1])


def test_function_called_on_tensors():
    w, ids = table(), ab.placeholder((None,), "int32")

    @ab.function
    def rows_of(ids: Any) -> Any:
        return ops.sin(ops.take(w, ids, axis=0))

    (slope,) = ab.gradients(ops.sum(rows_of(ids)), [w])
    value = np.asarray(ab.Session().run(slope, {ids: IDS}))
    expected = np.zeros((ROWS, WIDTH))
    np.add.at(expected, IDS, np.cos(w.numpy()[IDS]))
    np.testing.assert_allclose(value, expected)


def test_as_loop_variable_and_result_of_a_branch():
    slope, dense = sample()
    _, final = ab.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s.map_values(lambda v: v * 2.0)), (0, slope))
    assert isinstance(final, IndexedSlices)
    on = ab.placeholder((), "bool")
    chosen = ab.cond(on, lambda: slope, lambda: final)
    assert isinstance(chosen, IndexedSlices)
    for value, wanted in ((True, dense), (False, dense * 8)):
        np.testing.assert_array_equal(np.asarray(ab.Session().run(chosen, {on: value})), wanted)


def test_gradient_taken_in_a_loop_body():
    w = table()

    def body(i: Any, total: Any) -> tuple[Any, Any]:
        (slope,) = ab.gradients(ops.sum(ops.sin(ops.take(w, [1, 1], axis=0)) * total), [w])
        assert isinstance(slope, IndexedSlices)
        return i + 1, total + ops.sum(slope)

    _, total = ab.while_loop(lambda i, t: i < 2, body, (0, ops.ones((), "float64")))
    step = 2 * np.cos(w.numpy()[1]).sum()
    np.testing.assert_allclose(both_roads([total], {})[0], (1 + step) ** 2)
    (second,) = ab.gradients(total, [w])
    expected = np.zeros((ROWS, WIDTH))
    expected[1] = -4 * (1 + step) * np.sin(w.numpy()[1])
    np.testing.assert_allclose(both_roads([second], {})[0], expected)


def test_as_y_with_cotangents():
    w = table()
    (slope,) = ab.gradients(ops.sum(ops.power(ops.take(w, [1, 1, 3], axis=0), 3.0)), [w])
    given = np.arange(15.0).reshape(5, 3)
    (plain,) = ab.gradients(slope, [w])
    (weighted,) = ab.gradients([slope], [w], grad_ys=[given])
    (by_slices,) = ab.gradients([slope], [w], grad_ys=[slope])
    counts, at = np.array([0, 2.0, 0, 1, 0])[:, None], w.numpy()
    found = both_roads([plain, weighted, by_slices], {})
    np.testing.assert_allclose(found[0], 6 * at * counts)
    np.testing.assert_allclose(found[1], 6 * at * counts * given)
    np.testing.assert_allclose(found[2], 6 * at * counts * (3 * at**2 * counts))


def test_as_y_in_a_structure():
    w = table()
    (slope,) = ab.gradients(ops.sum(ops.power(ops.take(w, [1, 1, 3], axis=0), 3.0)), [w])
    (found,) = ab.gradients({"slope": slope, "rows": [slope.values]}, [w])
    at = 6 * w.numpy() * np.array([0, 2, 0, 1, 0])[:, None]
    np.testing.assert_allclose(both_roads([found], {})[0], at * 2)
    (jacobian,) = ab.jacobian([slope], w)
    np.testing.assert_allclose(ab.Session().run(jacobian), np.diag(at.ravel()).reshape(ROWS, WIDTH, ROWS, WIDTH))


def test_as_cotangent_alone():
    slope, dense = sample()
    x = ab.placeholder((ROWS, WIDTH), "float64")
    (found,) = ab.gradients(x * x, [x], grad_ys=slope)
    at = np.arange(15.0).reshape(5, 3)
    np.testing.assert_allclose(ab.Session().run(found, {x: at}), 2 * at * dense)


def test_unconnected_gradients():
    w, v = table(), table()
    y = ops.sum(ops.take(w, IDS, axis=0))
    assert ab.gradients(y, [v]) == [None]
    sparse, zero = ab.gradients(y, [w, v], unconnected_gradients="zero")
    assert isinstance(sparse, IndexedSlices)
    np.testing.assert_array_equal(ab.Session().run(zero), np.zeros((ROWS, WIDTH)))


def test_stop_gradients_cut_rows_off():
    w = table()
    picked = ops.take(w, IDS, axis=0)
    y = ops.sum(picked * ops.take(w, [0, 1, 2, 3], axis=0))
    (slope,) = ab.gradients(y, [w], stop_gradients=[picked])
    assert sorted(ab.Session().run(slope).indices) == [0, 1, 2, 3]


def test_jacobians_and_hessians_are_dense():
    w = table()
    y = ops.sum(ops.power(ops.take(w, [1, 1, 3], axis=0), 3.0), axis=1)
    for parallel in (True, False):
        jacobian, hessian = ab.Session().run(
            [ab.jacobian(y, w, parallel=parallel), ab.hessian(ops.sum(y), w, parallel=parallel)]
        )
        expected = np.zeros((3, ROWS, WIDTH))
        for position, row in enumerate([1, 1, 3]):
            expected[position, row] = 3 * w.numpy()[row] ** 2
        np.testing.assert_allclose(jacobian, expected)
        diagonal = 6 * w.numpy() * np.array([0, 2, 0, 1, 0])[:, None]
        np.testing.assert_allclose(hessian, np.diag(diagonal.ravel()).reshape(ROWS, WIDTH, ROWS, WIDTH), atol=1e-12)


def test_derivatives_of_functions_over_tables():
    w = table()
    _, pullback = ab.vjp(lambda x: ops.take(x, IDS, axis=0) * ops.take(w, IDS, axis=0), ab.constant(w.numpy()))
    slope, dense = sample()
    (found,) = pullback(ops.take(slope, [0, 1, 2, 3], axis=0))
    expected = np.zeros((ROWS, WIDTH))
    np.add.at(expected, IDS, dense[:4] * w.numpy()[IDS])
    np.testing.assert_allclose(ab.Session().run(found), expected)
    _, tangent = ab.jvp(lambda x: ops.take(x, IDS, axis=0), (ab.constant(w.numpy()),), (slope,))
    np.testing.assert_allclose(ab.Session().run(tangent), dense[IDS])


def test_custom_gradients_may_return_slices():
    @ab.custom_gradient
    def rows(x: Any) -> Any:
        def gradient(dy: Any) -> Any:
            return IndexedSlices(dy * 2.0, ops.convert_to_tensor([1, 1]), ops.convert_to_tensor([ROWS, WIDTH]))

        return ops.take(x, [1, 1], axis=0), gradient

    w = table()
    (slope,) = ab.gradients(ops.sum(rows(w.value)), [w])
    np.testing.assert_array_equal(ab.Session().run(ops.sum(slope, axis=1)), [0, 12, 0, 0, 0])


# --- rows named several times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[3, -1, 3, 4, 0], [1], [], [2, 2, 2]], ids=str)
def test_deduplicated(ids: list[int]):
    values = np.random.default_rng(0).normal(size=(len(ids), WIDTH))
    shape = np.array([ROWS, WIDTH], "int32")
    given = IndexedSlices(ab.constant(values), ops.convert_to_tensor(np.array(ids, "int32")), ab.constant(shape))
    once = ab.Session().run(deduplicated(given))
    assert once.indices.tolist() == sorted({index % ROWS for index in ids})
    np.testing.assert_allclose(np.asarray(once), np.asarray(IndexedSlices(values, np.array(ids, int), shape)))


def test_rows_out_of_range():
    w = table()
    (slope,) = ab.gradients(ops.sum(ops.take(w, [ROWS], axis=0)), [w])
    with pytest.raises(IndexError, match=r"index 5 is out of bounds for axis 0 with size 5"):
        ab.Session().run(slope.to_dense())


def test_rows_that_were_fetched_become_dense_where_graphs_are_built():
    w = table()
    (slope,) = ab.gradients(ops.sum(ops.take(w, IDS, axis=0)), [w])
    rows = ab.Session().run(slope)
    expected = np.zeros((ROWS, WIDTH))
    np.add.at(expected, IDS, 1)
    np.testing.assert_array_equal(ab.Session().run(rows.to_dense()), expected)
    with eagerly():
        np.testing.assert_array_equal(rows.to_dense(), expected)


def _row_of(i: Any) -> IndexedSlices:
    values = ops.reshape(ops.cast(i, "float64"), (1, 1)) + np.ones((1, WIDTH))
    return IndexedSlices(values, ops.reshape(i, (1,)), ops.convert_to_tensor([ROWS, WIDTH], "int32"))


@pytest.mark.parametrize(
    "loop",
    [
        lambda ids: ab.map_fn(_row_of, ids),
        lambda ids: ab.scan(lambda total, i: (total + i, {"row": _row_of(i)}), ops.zeros((), "int32"), ids)[1]["row"],
        lambda ids: ab.vectorized_map(_row_of, ids),
    ],
    ids=["map_fn", "scan", "vectorized_map"],
)
def test_rows_that_a_loop_stacks_are_dense(loop: Callable[[Any], Any]):
    expected = np.zeros((len(IDS), ROWS, WIDTH))
    expected[np.arange(len(IDS)), IDS] = np.array(IDS)[:, None] + 1
    ids = ab.placeholder((None,), "int32")
    np.testing.assert_array_equal(ab.Session().run(loop(ids), {ids: IDS}), expected)
    with eagerly():
        np.testing.assert_array_equal(loop(ops.convert_to_tensor(IDS, "int32")), expected)
