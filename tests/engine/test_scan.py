"""scan, map_fn, foldl, foldr and fori_loop against NumPy: values, derivatives of both orders, no steps, reverse,
structures, lengths that are known late, errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Graph
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.interpreter import Interpreter

LENGTHS = [0, 1, 2, 5]


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return ab.Session().run(fetches, feeds)


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(0.3, 1.2, shape)


def assert_derivatives(loss: Any, feeds: dict[Any, Any], sources: list[Any]) -> None:
    """The derivatives of both orders are central differences along random directions, on both roads."""
    rng = np.random.default_rng(0)
    pulls = [rng.uniform(0.5, 1.5, np.shape(feeds[x])) for x in sources]
    ways = [rng.normal(size=np.shape(feeds[x])) for x in sources]
    first = ab.gradients(loss, sources, unconnected_gradients="zero")
    slope = ab.ops.convert_to_tensor(0.0, "float64")
    for derivative, pull in zip(first, pulls, strict=True):
        slope = slope + ab.ops.sum(derivative * ab.constant(pull))
    second = ab.gradients(slope, sources, unconnected_gradients="zero")
    targets = [loss, slope, *first, *second]
    found = Interpreter().run(loss.graph, targets, feeds)
    for value, other in zip(run(targets, feeds), found, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-9, atol=1e-12)

    ends: list[Any] = []
    for step in (1e-5, -1e-5):
        moved = {x: np.asarray(feeds[x] + step * way) for x, way in zip(sources, ways, strict=True)}
        ends.append(Interpreter().run(loss.graph, [loss, symbol_of(slope)], {**feeds, **moved}))
    for order in (0, 1):
        derivatives = found[2 + order * len(sources) :][: len(sources)]
        exact = sum(np.sum(d * way) for d, way in zip(derivatives, ways, strict=True))
        np.testing.assert_allclose(exact, (ends[0][order] - ends[1][order]) / 2e-5, rtol=1e-6, atol=1e-6)


# --- scan -----------------------------------------------------------------------------------------------------------


def scanned(f: Callable[[Any, Any], Any], carry: Any, xs: Any, reverse: bool = False) -> tuple[Any, Any]:
    """`scan` in NumPy, over one array."""
    order = range(len(xs))[:: -1 if reverse else 1]
    ys: dict[int, Any] = {}
    for position in order:
        carry, ys[position] = f(carry, xs[position])
    return carry, [ys[position] for position in range(len(xs))]


def cell(e: Any, state: Any, x: Any) -> Any:
    """A little recurrent network, over a module of functions."""
    new = e.tanh(state * 0.5 + x) * x
    return new, new * state


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_scan(length: int, reverse: bool, known: bool):
    xs, init = draw(length, 3), draw(3)
    x = ab.placeholder((length, 3) if known else (None, 3), "float64")
    state = ab.placeholder((3,), "float64")
    last, ys = ab.scan(lambda c, x: cell(ab.ops, c, x), state, x, reverse=reverse)
    feeds = {x: xs, state: init}

    expected, expected_ys = scanned(lambda c, x: cell(np, c, x), init, xs, reverse)
    values = run([last, ys], feeds)
    np.testing.assert_allclose(values[0], expected, rtol=1e-12)
    np.testing.assert_allclose(values[1], np.reshape(expected_ys, (length, 3)), rtol=1e-12)
    assert ys.shape == ((length, 3) if known else (None, 3))
    assert_derivatives(ab.ops.sum(last * last) + ab.ops.sum(ys * ys * ys), feeds, [x, state])


@pytest.mark.parametrize("reverse", [False, True])
def test_structures(reverse: bool):
    x, y = ab.placeholder((None,), "float64"), ab.placeholder((None, 2), "float64")

    def step(carry: Any, item: Any) -> Any:
        total = carry["total"] + item[0] * ab.ops.sum(item[1]["y"])
        return {"total": total, "count": carry["count"] + 1}, (total, [item[1]["y"] * total, {"n": carry["count"]}])

    init = {"total": ab.ops.convert_to_tensor(1.0, "float64"), "count": 0}
    last, ys = ab.scan(step, init, (x, {"y": y}), reverse=reverse)
    feeds = {x: draw(4), y: draw(4, 2)}
    totals, total = np.zeros(4), 1.0
    for k in range(4)[:: -1 if reverse else 1]:
        totals[k] = total = total + feeds[x][k] * feeds[y][k].sum()

    value = run((last, ys), feeds)
    assert value[0]["count"] == 4
    np.testing.assert_allclose(value[0]["total"], total)
    np.testing.assert_allclose(value[1][0], totals)
    np.testing.assert_allclose(value[1][1][0], feeds[y] * totals[:, None])
    assert value[1][1][1]["n"].tolist() == ([3, 2, 1, 0] if reverse else [0, 1, 2, 3])
    assert_derivatives(ab.ops.sum(ys[0] ** 2) + last["total"] ** 3 + ab.ops.sum(ys[1][0]), feeds, [x, y])


def test_scan_without_sequences():
    n = ab.placeholder((), "int32")
    last, powers = ab.scan(lambda c, _: (c * 2, c), 1.0, length=4)
    many, counts = ab.scan(lambda c, _: (c + 1, c), 0, length=n)

    assert powers.shape == (4,)
    assert run([last, powers])[1].tolist() == [1, 2, 4, 8]
    for length in LENGTHS:
        assert run([many, counts], {n: length})[0] == length
        assert run(counts, {n: length}).tolist() == list(range(length))


def test_scan_with_no_output():
    x = ab.placeholder((None,))
    last, nothing = ab.scan(lambda c, x: (c + x, None), 0.0, x)

    assert nothing is None
    assert run(last, {x: [1.0, 2.0]}) == 3


def test_outputs_of_other_dtypes():
    x = ab.placeholder((None,))
    _, (above, count) = ab.scan(lambda c, x: (c + 1, (x > 1, c)), 0, x)

    values = run([above, count], {x: [0.5, 2.0]})
    assert [value.tolist() for value in values] == [[False, True], [0, 1]]
    assert [value.dtype for value in values] == ["bool", "int32"]
    assert [value.shape for value in run([above, count], {x: []})] == [(0,), (0,)]


def test_a_carry_that_grows():
    x = ab.placeholder((None,))
    carried, sums = ab.scan(
        lambda c, x: (ab.ops.concatenate([c, ab.ops.reshape(x, (1,))]), ab.ops.sum(c)), ab.ops.zeros((0,)), x
    )

    values = run([carried, sums], {x: [1.0, 2.0, 3.0]})
    assert [value.tolist() for value in values] == [[1, 2, 3], [0, 1, 3]]


def test_carried_arrays_and_variables():
    v = ab.Variable(10.0)
    array = ab.TensorArray("float32", 3)
    last, ys = ab.scan(lambda c, i: (c.write(i, v * 2), v.assign_add(1.0)), array, ab.ops.arange(3))

    values = run([last.stack(), ys])
    assert [value.tolist() for value in values] == [[20, 22, 24], [11, 12, 13]]
    assert v.numpy() == 13


def test_scans_nest():
    m = ab.placeholder((None, None), "float64")

    def row(carry: Any, x: Any) -> Any:
        last, sums = ab.scan(lambda c, value: (c * 0.5 + value, c), carry, x)
        return last, ab.ops.sum(sums * sums)

    last, ys = ab.scan(row, ab.ops.convert_to_tensor(0.0, "float64"), m)
    feeds = {m: draw(3, 2)}
    carry, squares = 0.0, []
    for values in feeds[m]:
        seen = []
        for value in values:
            seen.append(carry)
            carry = carry * 0.5 + value
        squares.append(np.square(seen).sum())

    np.testing.assert_allclose(run(ys, feeds), squares)
    np.testing.assert_allclose(run(last, feeds), carry)
    assert_derivatives(last * ab.ops.sum(ys), feeds, [m])
    assert run(ys, {m: np.zeros((0, 2))}).shape == (0,)
    assert run(ys, {m: np.zeros((3, 0))}).tolist() == [0, 0, 0]


def test_sequences_of_unknown_rank_arrays_and_variables():
    x = ab.placeholder(None)

    assert run(ab.scan(lambda c, x: (c + 1, x * 2), 0, x)[1], {x: np.ones((2, 3))}).tolist() == [[2] * 3] * 2
    assert run(ab.scan(lambda c, x: (c + x, c), 0.0, np.ones(3, "float32"))[0]) == 3
    assert run(ab.scan(lambda c, x: (c + x, c), 0.0, ab.Variable([1.0, 2.0]))[0]) == 3


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: ab.scan(lambda c, x: (c, x), 0.0), ValueError, "needs xs or length"),
        (lambda x: ab.scan(lambda c, x: (c, x), 0.0, 3.0), ValueError, "scan runs over the first axis .* is a scalar"),
        (lambda x: ab.map_fn(lambda x: x, 3.0), ValueError, "map_fn runs over the first axis .* is a scalar"),
        (lambda x: ab.map_fn(lambda x: x, []), ValueError, "map_fn needs a tensor in xs: nothing says how many steps"),
        (lambda x: ab.scan(lambda c, x: c, 0.0, x), TypeError, r"must return \(carry, y\), got one tensor"),
        (lambda x: ab.scan(lambda c, x: (c, x), 0.0, x, unroll=0), ValueError, "unroll must be at least 1"),
        (
            lambda x: ab.scan(lambda c, x: (c, x[0]), 0.0, (np.ones(2), np.ones(3))),
            ValueError,
            r"differ: \[2, 3\]",
        ),
        (lambda x: ab.scan(lambda c, x: (c, x), 0.0, np.ones(2), length=3), ValueError, r"differ: \[2, 3\]"),
        (lambda x: ab.scan(lambda c, x: (c + x, x), 0, x), TypeError, "went in as int32, came out as float32"),
        (lambda x: ab.scan(lambda c, x: ((c, c), x), 0.0, x), TypeError, "same structure"),
        (lambda x: ab.fori_loop(0.5, 3, lambda i, v: v, 0), TypeError, "lower must be a scalar integer, got float32"),
        (
            lambda x: ab.fori_loop(0, [3], lambda i, v: v, 0),
            TypeError,
            r"upper must be a scalar integer, got int32\[1\]",
        ),
        (lambda x: ab.foldl(lambda a, x: a, 1.0), ValueError, r"foldl runs over the first axis .* is a scalar"),
    ],
)
def test_what_is_refused_when_built(call: Any, error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        call(ab.placeholder((None,)))


@pytest.mark.parametrize("lengths", [(3, 2), (2, 3), (0, 1)])
def test_lengths_that_differ_at_run_time(lengths: tuple[int, int]):
    x, y = ab.placeholder((None,)), ab.placeholder((None,))
    n = ab.placeholder((), "int32")
    first, second = (np.ones(length) for length in lengths)
    last, _ = ab.scan(lambda c, xy: (c + xy[0] * xy[1], c), 0.0, (x, y))

    assert run(last, {x: first, y: first}) == lengths[0]
    with pytest.raises(ValueError, match=f"one is {lengths[0]}, but a sequence has shape .{lengths[1]}"):
        run(last, {x: first, y: second})
    for length in (lengths[1], n):
        counted, _ = ab.scan(lambda c, x: (c + x, c), 0.0, x, length=length)
        with pytest.raises(ValueError, match=r"lengths of xs \(and length\) differ"):
            run(counted, {x: first, n: lengths[1]})
        assert run(counted, {x: second, n: lengths[1]}) == lengths[1]


# --- map_fn ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_map_fn(length: int, reverse: bool):
    x = ab.placeholder((None, 2), "float64")
    w = ab.placeholder((2,), "float64")
    y = ab.map_fn(lambda row: ab.ops.exp(row * w) * ab.ops.sum(row), x, reverse=reverse)
    feeds = {x: draw(length, 2), w: draw(2)}

    value = run(y, feeds)
    assert value.shape == (length, 2)
    np.testing.assert_allclose(value, np.exp(feeds[x] * feeds[w]) * feeds[x].sum(1, keepdims=True))
    assert_derivatives(ab.ops.sum(y * y), feeds, [x, w])


def test_map_fn_over_structures():
    x, y = ab.placeholder((None,)), ab.placeholder((None, 2))
    mapped = ab.map_fn(lambda pair: {"sum": pair["x"] + pair["y"], "seven": 7}, {"x": x, "y": y})

    value = run(mapped, {x: [1.0, 2.0], y: [[1.0, 2.0], [3.0, 4.0]]})
    assert value["sum"].tolist() == [[2, 3], [5, 6]]
    assert value["seven"].tolist() == [7, 7]


def test_map_fn_visits_in_order():
    v = ab.Variable(1.0)
    y = ab.map_fn(lambda x: v.assign(v * 2 + x), ab.constant([1.0, 2.0, 3.0]))
    z = ab.map_fn(lambda x: v.assign(v * 2 + x), ab.constant([1.0, 2.0, 3.0]), reverse=True)

    assert run(y).tolist() == [3, 8, 19]
    run(v.assign(1.0))
    assert run(z).tolist() == [25, 12, 5]


# --- folds ----------------------------------------------------------------------------------------------------------


def folded(f: Callable[[Any, Any], Any], items: list[Any], init: Any = None) -> Any:
    rest = list(items)
    total = rest.pop(0) if init is None else init
    for item in rest:
        total = f(total, item)
    return total


@pytest.mark.parametrize("with_init", [False, True])
@pytest.mark.parametrize("fold", [ab.foldl, ab.foldr])
@pytest.mark.parametrize("length", LENGTHS)
def test_folds(fold: Any, length: int, with_init: bool):
    if length == 0 and not with_init:
        return  # test_a_fold_of_nothing_needs_an_initializer
    x, init = ab.placeholder((None,), "float64"), ab.placeholder((), "float64")
    total = fold(lambda a, b: a * b - ab.ops.sin(a), x, init if with_init else None)
    feeds = {x: draw(length), init: 0.7}

    order = list(feeds[x])[:: -1 if fold is ab.foldr else 1]
    expected = folded(lambda a, b: a * b - np.sin(a), order, 0.7 if with_init else None)
    np.testing.assert_allclose(run(total, feeds), expected)
    assert_derivatives(total * total, feeds, [x, init] if with_init else [x])


def test_a_fold_of_nothing_needs_an_initializer():
    x = ab.placeholder((None,))
    with pytest.raises(IndexError, match="out of bounds"):
        run(ab.foldl(lambda a, b: a + b, x), {x: []})
    assert run(ab.foldr(lambda a, b: a + b, x, 5.0), {x: []}) == 5


def test_folds_over_structures():
    x, y = ab.placeholder((None,)), ab.placeholder((None, 2))
    total = ab.foldl(lambda a, xy: (a[0] + xy[0], a[1] * xy[1]), (x, y))
    count = ab.foldr(lambda a, xy: a + xy[0] * ab.ops.sum(xy[1]), (x, y), 0.0)
    feeds = {x: [1.0, 2.0, 3.0], y: [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}

    first, second = run(total, feeds)
    assert (first, second.tolist()) == (6, [15, 48])
    assert run(count, feeds) == 3 + 14 + 33


# --- fori_loop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lower", "upper"), [(0, 4), (2, 5), (3, 3), (5, 2), (-2, 1), (np.int64(0), np.uint8(3))])
@pytest.mark.parametrize("symbolic", [False, True])
def test_fori_loop(lower: int, upper: int, symbolic: bool):
    a, b = ab.placeholder((), "int32"), ab.placeholder((), "int64")
    x = ab.placeholder((2,), "float64")
    bounds = (a, b) if symbolic else (lower, upper)
    y = ab.fori_loop(*bounds, lambda i, y: ab.ops.sin(y) * (ab.ops.cast(i, "float64") + 0.5) + x, x)
    feeds = {x: draw(2), a: np.int32(lower), b: np.int64(upper)}

    expected = feeds[x]
    for i in range(int(lower), int(upper)):
        expected = np.sin(expected) * (i + 0.5) + feeds[x]
    np.testing.assert_allclose(run(y, feeds), expected)
    assert_derivatives(ab.ops.sum(y * y), feeds, [x])


def test_fori_loop_over_structures():
    found = run(ab.fori_loop(1, 4, lambda i, v: {"sum": v["sum"] + i, "last": (i,)}, {"sum": 0, "last": (9,)}))

    assert found == {"sum": 6, "last": (3,)}


# --- no steps -------------------------------------------------------------------------------------------------------

NOTHING = np.zeros((0, 5), "float32")
WEIGHT = np.ones((5, 7), "float32")


@pytest.mark.parametrize("shape", [(None, None), (0, None), (None, 5), None])
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: ab.map_fn(lambda row: row * 2, x), (0, 5)),
        (lambda x: ab.map_fn(lambda row: ops.concatenate([row, row]), x), (0, 10)),
        (lambda x: ab.map_fn(lambda row: ops.expand_dims(row, 0) * ops.expand_dims(row, 1), x), (0, 5, 5)),
        (lambda x: ab.scan(lambda total, row: (total + row, total * row), ops.zeros(5), x)[1], (0, 5)),
        (lambda x: ab.scan(lambda total, row: (total, [total, row]), 0.0, x, reverse=True)[1][1], (0, 5)),
        (lambda x: ab.map_fn(lambda row: ab.map_fn(lambda k: k * row, row), x), (0, 5, 5)),
        (lambda x: ab.TensorArray("float32", 0).unstack(x).stack(), (0, 5)),
    ],
)
def test_results_of_no_steps_have_the_sizes_of_one_step(function: Any, expected: Any, shape: Any):
    with ab.Graph().as_default():
        x = ab.placeholder(shape, "float32")
        y = function(x)
        (slope,) = ab.gradients(ops.sum(y), [x])
        session = ab.Session()
        assert session.run(y, {x: NOTHING}).shape == expected
        assert session.run(slope, {x: NOTHING}).shape == (0, 5)
        if shape != (0, None):
            assert session.run(y, {x: np.ones((3, 5))}).shape == (3, *expected[1:])


def test_results_of_no_steps_with_variables_and_lengths():
    with ab.Graph().as_default():
        rows, steps = ab.placeholder((None, 5), "float32"), ab.placeholder((), "int32")
        weight = ab.Variable(WEIGHT)
        _, y = ab.scan(lambda state, _: (state, ops.matmul(state, weight)), rows, length=steps)
        for count in (0, 2):
            assert ab.Session().run(y, {rows: np.ones((4, 5)), steps: count}).shape == (count, 4, 7)


def test_a_function_with_effects_is_not_run_for_sizes():
    with ab.Graph().as_default():
        x, count = ab.placeholder((None, None), "float32"), ab.Variable(0)

        def step(row: Any) -> Any:
            with ab.control_dependencies([count.assign_add(1)]):
                return row * 2

        y = ab.map_fn(step, x)
        session = ab.Session()
        assert session.run(y, {x: np.ones((2, 5))}).shape == (2, 5)
        assert int(count.numpy()) == 2
        with pytest.raises(ab.errors.InvalidArgumentError, match=r"made no step.*it has effects"):
            session.run(y, {x: NOTHING})
        assert int(count.numpy()) == 2
        known = ab.placeholder((None, 5), "float32")
        assert session.run(ab.map_fn(step, known), {known: NOTHING}).shape == (0, 5)
