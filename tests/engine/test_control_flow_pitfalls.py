"""The places where frameworks have got loops and branches wrong, one by one, against unrolled loops and known values.

Each value is computed by the compiled step and by the reference interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from programs.loops import assert_same, derivatives, number, repeat, run, unrolled

import anabranch as ab
from anabranch.engine.common.nest import flatten

ops = ab.ops


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    with ab.Graph().as_default() as graph:
        yield graph


# --- 1 to 3: trip counts, orders, bodies ----------------------------------------------------------------------------

BODIES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "acc * x": lambda i, acc, x: acc * x,
    "acc * acc": lambda i, acc, x: acc * acc + 0.1 * x,
    "x not used": lambda i, acc, x: ops.sin(acc),
    "acc not used": lambda i, acc, x: x * x,
    "x twice": lambda i, acc, x: ops.tanh(acc * x) + x * x,
    "counter": lambda i, acc, x: acc * x + ops.cast(i, "float64"),
}


@pytest.mark.parametrize("trips", range(5))
@pytest.mark.parametrize("body", BODIES)
def test_derivatives_up_to_third_order(body: str, trips: int):
    x, n = number(), ab.placeholder((), "int32", "n")

    def step(i: Any, acc: Any) -> Any:
        return BODIES[body](i, acc, x)

    start = x * 0.7
    loop = derivatives(repeat(n, step, start), [x], order=3)
    plain = derivatives(unrolled(trips, step, start), [x], order=3)

    assert_same(loop, plain, {x: 0.9, n: trips})


def test_second_order_by_repeated_squaring():
    x = number()
    y = repeat(3, lambda i, h: h * h, x)  # x ** 8
    (first,) = ab.gradients(y, [x])
    (second,) = ab.gradients(first, [x])
    (third,) = ab.gradients(second, [x])

    assert run([y, first, second, third], {x: 2.0}) == [256.0, 1024.0, 3584.0, 10752.0]


@pytest.mark.parametrize("trips", range(4))
def test_jacobians_that_do_not_commute(trips: int):
    a, b = ab.placeholder((3, 3), "float64", "a"), ab.placeholder((3, 3), "float64", "b")
    n = ab.placeholder((), "int32", "n")

    def step(i: Any, h: Any) -> Any:
        return ops.tanh(a @ h) @ b + ops.cast(i, "float64") * (h @ a)

    loop = derivatives(repeat(n, step, b), [a, b], order=2)
    plain = derivatives(unrolled(trips, step, b), [a, b], order=2)

    rng = np.random.default_rng(3)
    assert_same(loop, plain, {a: rng.normal(size=(3, 3)), b: rng.normal(size=(3, 3)), n: trips})


def test_gradient_of_a_loop_without_iterations_is_that_of_its_input():
    x, n = number(), ab.placeholder((), "int32", "n")
    y = repeat(n, lambda i, h: h * x * x, x)
    (dx,) = ab.gradients(y, [x])

    assert run([y, dx], {x: 2.0, n: 0}) == [2.0, 1.0]
    assert run([y, dx], {x: 2.0, n: 1}) == [8.0, 12.0]


# --- 2 and 4: nestings ----------------------------------------------------------------------------------------------


def _loop_in_loop(x: Any, outer: Any, repeat: Any) -> Any:
    """The inner trip count is the outer counter, so the first inner loop makes no iteration."""
    return repeat(outer, lambda i, h: repeat(i, lambda j, g: ops.sin(g) * x + g, h) * x, x)


def _loop_without_iterations_in_loop(x: Any, outer: Any, repeat: Any) -> Any:
    return repeat(outer, lambda i, h: repeat(0, lambda j, g: g * x, h) * x, x)


def _three_loops(x: Any, outer: Any, repeat: Any) -> Any:
    return repeat(outer, lambda i, h: repeat(i, lambda j, g: repeat(j, lambda k, f: f * x * g, g) + h, h) * x, x)


def _branch_in_loop(x: Any, outer: Any, repeat: Any) -> Any:
    def step(i: Any, h: Any) -> Any:
        return ab.cond(ops.equal(i % 2, 0), lambda: ops.sin(h) * x * x, lambda: h + x)

    return repeat(outer, step, x)


def _loop_in_branch(x: Any, outer: Any, repeat: Any) -> Any:
    return ab.cond(x > 0.5, lambda: repeat(outer, lambda i, h: ops.sin(h * x), x), lambda: x * x)


def _branch_in_branch_in_loop(x: Any, outer: Any, repeat: Any) -> Any:
    def step(i: Any, h: Any) -> Any:
        inner = lambda: ab.cond(h > 1.0, lambda: h * x, lambda: h * h * x)  # noqa: E731
        return ab.cond(ops.equal(i % 3, 2), lambda: ops.tanh(h), inner)

    return repeat(outer, step, x)


def _switch_in_loop_in_loop(x: Any, outer: Any, repeat: Any) -> Any:
    def step(i: Any, h: Any) -> Any:
        branches = [lambda: h * x, lambda: ops.sin(h), lambda: repeat(i, lambda j, g: g * x * h, h)]
        return ab.switch(i % 3, branches)

    return repeat(outer, step, x)


NESTINGS = [
    _loop_in_loop,
    _loop_without_iterations_in_loop,
    _three_loops,
    _branch_in_loop,
    _loop_in_branch,
    _branch_in_branch_in_loop,
    _switch_in_loop_in_loop,
]


def _unrolled_over_tensors(count: Any, step: Callable[[Any, Any], Any], start: Any) -> Any:
    return unrolled(count, lambda i, h: step(_Counter(i), h), start)


class _Counter:
    """A Python counter that choices take as a tensor, so that unrolled branches are branches still."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value

    def __mod__(self, other: int) -> ab.Tensor:
        return ab.constant(self.value % other)


@pytest.mark.parametrize("trips", range(5))
@pytest.mark.parametrize("nesting", NESTINGS)
def test_nestings(nesting: Callable[..., Any], trips: int):
    x, n = number(), ab.placeholder((), "int32", "n")

    loop = derivatives(nesting(x, n, repeat), [x], order=2)
    plain = derivatives(nesting(x, trips, _unrolled_over_tensors), [x], order=2)

    for value in (0.8, -0.4):
        assert_same(loop, plain, {x: value, n: trips})


def test_gradient_of_a_nested_loop_over_rows_of_unknown_number():
    x = ab.placeholder((None, None), "float64", "x")

    def row_step(total: Any, row: Any) -> Any:
        inner, _ = ab.scan(lambda c, e: (c * e + total, None), ops.sum(row), row)
        return ops.sin(inner), inner

    last, inners = ab.scan(row_step, ab.constant(0.3, "float64"), x)
    loop = derivatives(last + ops.sum(inners), [x], order=2)

    def plain(count: int, width: int) -> Any:
        total, found = ab.constant(0.3, "float64"), []
        for r in range(count):
            c = ops.sum(x[r])
            for k in range(width):
                c = c * x[r, k] + total
            found.append(c)
            total = ops.sin(c)
        return total + sum(found, ab.constant(0.0, "float64"))

    rng = np.random.default_rng(0)
    for shape in [(1, 1), (3, 2), (2, 4)]:
        assert_same(loop, derivatives(plain(*shape), [x], order=2), {x: rng.normal(size=shape)})
    zero = run(loop, {x: np.zeros((0, 3))})
    assert zero[0] == pytest.approx(0.3)
    assert [value.shape for value in zero[1:]] == [(0, 3)] * 2


# --- 5 and 6: captures, unused outputs, integers ---------------------------------------------------------------------


def test_captured_value_used_by_condition_body_and_branch():
    x = ab.placeholder((2,), "float64", "x")
    limit = ops.sum(x)

    def body(i: Any, h: Any) -> Any:
        return i + 1, ab.cond(h[0] > limit, lambda: h * x + x, lambda: h * x * x + limit)

    _, y = ab.while_loop(lambda i, h: ops.logical_and(i < 3, ops.sum(h) < 10 * limit), body, (0, x))
    (dx,) = ab.gradients(y, [x])

    def plain(v: np.ndarray[Any, Any]) -> float:
        h = v
        for _ in range(3):
            if not h.sum() < 10 * v.sum():
                break
            h = h * v + v if h[0] > v.sum() else h * v * v + v.sum()
        return h.sum()

    at = np.array([0.7, 0.4])
    differences = [(plain(at + e) - plain(at - e)) / 2e-6 for e in np.eye(2) * 1e-6]
    np.testing.assert_allclose(run([dx], {x: at})[0], differences, rtol=1e-6)


def test_none_for_no_path_and_exact_zeros_for_paths_not_taken():
    x, other, p = number("x"), number("other"), ab.placeholder((), "bool", "p")
    n = ab.placeholder((), "int32", "n")
    branch = ab.cond(p, lambda: x * other, lambda: other)
    a, b = ab.while_loop(lambda i, a, b: i < n, lambda i, a, b: (i + 1, a * other, b * x), (0, other, x))[1:]

    assert ab.gradients(x * x, [other]) == [None]
    assert ab.gradients(a, [n * 1.0]) == [None]
    unused = ab.gradients(a, [x], unconnected_gradients="zero")[0]
    taken = [ab.gradients(branch, [x])[0], ab.gradients(b, [x])[0], unused]
    assert run(taken, {x: 2.0, other: 3.0, p: True, n: 2}) == [3.0, 12.0, 0.0]
    assert run(taken, {x: 2.0, other: 3.0, p: False, n: 0}) == [0.0, 1.0, 0.0]


def test_branches_of_unknown_shape_that_are_not_taken():
    x, p = ab.placeholder((None, None), "float64", "x"), ab.placeholder((), "bool", "p")

    def step(i: Any, h: Any) -> Any:
        return ab.cond(ops.logical_and(p, i > 0), lambda: ops.tanh(h * h) @ x, lambda: h + x)

    both = derivatives(repeat(2, step, x), [x], order=2)
    at = np.array([[0.1, -0.4], [0.3, 0.2]])

    def plain(taken: bool) -> list[Any]:
        h = x + x
        return derivatives(ops.tanh(h * h) @ x if taken else h + x, [x], order=2)

    assert_same(both, plain(True), {x: at, p: True})
    assert_same(both, plain(False), {x: at, p: False})


def test_integer_carries():
    x = number()

    def body(i: Any, power: Any, flag: Any, h: Any) -> Any:
        return i + 1, power * 2, ops.logical_not(flag), h + ops.cast(power, "float64") * x * h

    i, power, flag, y = ab.while_loop(lambda i, *_: i < 3, body, (0, 1, True, x))
    (dx,) = ab.gradients(y, [x])
    plain = derivatives(unrolled(3, lambda i, h: h + 2.0**i * x * h, x), [x], 1)

    assert run([i, power, flag], {x: 0.5}) == [3, 8, False]
    assert_same([y, dx], plain, {x: 0.5})
    with pytest.raises(TypeError, match="int32, which has no derivative"):
        ab.gradients(power, [x])


# --- 8: TensorArrays ------------------------------------------------------------------------------------------------


def test_array_written_twice():
    x = number()
    once = ab.TensorArray("float64", 2).write(0, x * x).write(1, x)
    twice = once.write(0, 3.0 * x)
    total = twice.read(0) + twice.read(1) + once.read(0)
    (dx,) = ab.gradients(total, [x])
    (of_twice,) = ab.gradients(twice.read(0), [x])

    assert run([total, dx, of_twice], {x: 2.0}) == [12.0, 8.0, 3.0]


def test_array_read_then_written_in_a_loop():
    x = ab.placeholder((3,), "float64", "x")
    array = ab.TensorArray("float64", 3).unstack(x)

    def step(i: Any, array: Any) -> Any:
        first = array.read(0)
        return array.write(i, array.read(i) * first).write(0, first * 2.0)

    def plain(i: int, values: list[Any]) -> list[Any]:
        values = list(values)
        first = values[0]
        values[i] = values[i] * first
        values[0] = first * 2.0
        return values

    loop = derivatives(repeat(3, step, array).stack(), [x], order=2)
    straight = derivatives(ops.stack(unrolled(3, plain, [x[0], x[1], x[2]])), [x], order=2)
    assert_same(loop, straight, {x: [0.5, -1.5, 2.0]})


def test_array_gathered_repeatedly():
    x = ab.placeholder((3,), "float64", "x")
    array = ab.TensorArray("float64", 3).unstack(x)
    picked = array.gather([2, 0, 2])
    loop = derivatives(ops.sum(picked * picked * picked), [x], order=2)
    plain = derivatives(2 * x[2] ** 3 + x[0] ** 3, [x], order=2)

    assert_same(loop, plain, {x: [1.0, 2.0, 3.0]})


def test_array_created_in_a_branch():
    x, p = number(), ab.placeholder((), "bool", "p")

    def squares() -> ab.TensorArray:
        return ab.TensorArray("float64", 2).write(0, x * x).write(1, x)

    def cubes() -> ab.TensorArray:
        return ab.TensorArray("float64", 2).unstack(ops.stack([x * x * x, x * x]))

    array = ab.cond(p, squares, cubes)
    y = array.read(0) * array.read(1)
    values = derivatives(y, [x], order=2)

    assert run(values, {x: 2.0, p: True}) == [8.0, 12.0, 12.0]
    assert run(values, {x: 2.0, p: False}) == [32.0, 80.0, 160.0]


def test_two_gradient_calls_over_one_loop():
    x, w = ab.placeholder((3,), "float64", "x"), number("w")
    array = ab.TensorArray("float64", 3).unstack(x)

    def body(i: Any, h: Any, written: Any) -> Any:
        h = ops.sin(h * w) + array.read(i)
        return i + 1, h, written.write(i, h * w)

    _, h, written = ab.while_loop(lambda i, *_: i < 3, body, (0, w, ab.TensorArray("float64", 3)))
    first = ab.gradients(h, [x, w])
    second = ab.gradients(ops.sum(written.stack()), [x, w])
    both = ab.gradients([h, written.stack()], [x, w])

    values = run([*first, *second, *both], {x: [0.1, 0.2, 0.3], w: 0.7})
    for a, b, together in zip(values[:2], values[2:4], values[4:], strict=True):
        np.testing.assert_allclose(a + b, together, rtol=1e-12)


def test_array_that_grows_and_keeps_older_values():
    x = number()
    empty = ab.TensorArray("float64", dynamic_size=True)
    grown = repeat(4, lambda i, array: array.write(i, x * ops.cast(i + 1, "float64")), empty)
    changed = grown.write(1, x * x)
    totals = [ops.sum(grown.stack()), ops.sum(changed.stack())]
    slopes = [ab.gradients(total, [x])[0] for total in totals]

    assert run([*totals, *slopes, grown.size()], {x: 2.0}) == [20.0, 20.0, 10.0, 12.0, 4]


# --- 9: shapes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trips", range(4))
def test_growing_carry(trips: int):
    x, n = ab.placeholder((2,), "float64", "x"), ab.placeholder((), "int32", "n")

    def step(i: Any, h: Any) -> Any:
        return ops.concatenate([h, ops.sin(h[-2:] * x)])

    grown = repeat(n, step, x)
    assert grown.shape == (None,)
    loop = derivatives(ops.sum(grown * grown), [x], order=2)
    plain = unrolled(trips, step, x)
    assert_same(loop, derivatives(ops.sum(plain * plain), [x], order=2), {x: [0.5, -0.8], n: trips})


def test_unknown_batch_size():
    x, w = ab.placeholder((None, 3), "float64", "x"), ab.placeholder((3, 3), "float64", "w")
    y = repeat(3, lambda i, h: ops.tanh(h @ w), x)
    assert y.shape == (None, 3)
    plain = unrolled(3, lambda i, h: ops.tanh(h @ w), x)
    loop, straight = derivatives(y, [x, w], order=2), derivatives(plain, [x, w], order=2)

    rng = np.random.default_rng(5)
    for batch in (1, 4, 0):
        assert_same(loop, straight, {x: rng.normal(size=(batch, 3)), w: rng.normal(size=(3, 3))})


# --- 12: gradients inside bodies, and fed to other loops -------------------------------------------------------------


@pytest.mark.parametrize("trips", range(4))
def test_gradient_descent_inside_a_loop(trips: int):
    """Newton-like steps whose gradient is taken in the body, then differentiated through."""
    x, n = number(), ab.placeholder((), "int32", "n")

    def step(i: Any, h: Any) -> Any:
        energy = ops.sin(h * x) + h * h * x
        (slope,) = ab.gradients(energy, [h])
        (curvature,) = ab.gradients(slope, [h])
        return h - 0.1 * slope + 0.01 * curvature * x

    def plain(i: int, h: Any) -> Any:
        slope = ops.cos(h * x) * x + 2 * h * x
        curvature = -ops.sin(h * x) * x * x + 2 * x
        return h - 0.1 * slope + 0.01 * curvature * x

    loop = derivatives(repeat(n, step, x), [x], order=2)
    assert_same(loop, derivatives(unrolled(trips, plain, x), [x], order=2), {x: 0.8, n: trips})


def test_gradient_of_a_loop_inside_a_loop():
    x = number()

    def step(i: Any, h: Any) -> Any:
        power = repeat(3, lambda j, g: g * h, h)  # h ** 4
        (slope,) = ab.gradients(power, [h])
        return slope * 0.25

    y = repeat(2, step, x)  # (x ** 3) ** 3
    assert run(derivatives(y, [x], order=2), {x: 1.5}) == pytest.approx([1.5**9, 9 * 1.5**8, 72 * 1.5**7])


def test_gradient_inside_with_respect_to_values_outside():
    x = number()
    z = ops.sin(x) * x

    def step(i: Any, h: Any) -> Any:
        y = z * z * h * x
        by_x, by_z = (ab.gradients(y, [source])[0] for source in (x, z))
        return h + by_x + by_z

    at = 0.6
    z_at, slope = np.sin(at) * at, np.cos(at) * at + np.sin(at)
    expected = 1.0
    for _ in range(2):
        by_z = 2 * z_at * expected * at
        expected += by_z * slope + z_at**2 * expected + by_z
    assert run([repeat(2, step, ab.constant(1.0, "float64"))], {x: at})[0] == pytest.approx(expected)


def test_gradient_inside_with_respect_to_a_variable():
    v = ab.Variable(0.5, dtype="float64", name="v")
    x = number()

    def step(i: Any, h: Any) -> Any:
        (slope,) = ab.gradients(ops.sin(v * h) * v, [v])
        return h + slope

    y = repeat(2, step, x)
    plain = unrolled(2, lambda i, h: h + ops.cos(v * h) * h * v + ops.sin(v * h), x)
    assert_same(derivatives(y, [x, v], 2), derivatives(plain, [x, v], 2), {x: 0.3})


def test_gradient_fed_to_another_loop():
    x = number()
    (slope,) = ab.gradients(repeat(3, lambda i, h: h * x, x), [x])  # 4 x ** 3
    y = repeat(2, lambda i, h: h * slope, x)  # 16 x ** 7

    assert run(derivatives(y, [x], order=2), {x: 1.5}) == pytest.approx([16 * 1.5**7, 112 * 1.5**6, 672 * 1.5**5])


# --- a case without a default ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_case_without_default_runs_no_branch_whose_predicate_does_not_hold(count: int) -> None:
    x = ab.placeholder((), "int32", "x")
    runs = ab.Variable(0, dtype="int32")

    def branch(number: int) -> Callable[[], Any]:
        def run_it() -> Any:
            with ab.control_dependencies([runs.assign_add(1)]):
                return ops.convert_to_tensor(10 * number) + x

        return run_it

    result = ab.case([(ops.equal(x, number), branch(number)) for number in range(count)])
    session = ab.Session()
    assert [int(session.run(result, {x: number})) for number in range(count)] == [11 * k for k in range(count)]
    assert int(runs.numpy()) == count
    with pytest.raises(ab.errors.InvalidArgumentError, match=rf"none of its {count} predicates holds.*default="):
        session.run(result, {x: count})
    assert int(runs.numpy()) == count


def test_a_case_without_default_gives_what_is_outside_of_it_only_if_its_predicate_holds() -> None:
    x = ab.placeholder((), "float32", "x")
    result = ab.case([(x > 0, lambda: x)])
    assert float(ab.Session().run(result, {x: 2.0})) == 2.0
    with pytest.raises(ab.errors.InvalidArgumentError, match="none of its 1 predicates holds"):
        ab.Session().run(result, {x: -2.0})
    slope = ab.gradients(ab.case([(x > 1, lambda: 3 * x), (x > 0, lambda: x * x)]), [x])[0]
    assert [float(ab.Session().run(slope, {x: value})) for value in (2.0, 0.5)] == [3.0, 1.0]


VALUE = ops.ones((1,))
RESULTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "a number": (lambda _: 2.5, 2.5),
    "an array": (lambda _: np.array([1.0, 2.0]), np.array([1.0, 2.0])),
    "a value": (lambda _: VALUE, np.array([1.0])),
    "a variable": (lambda w: w, 4.0),
    "a structure": (lambda w: {"number": 1, "variable": [w]}, {"number": 1, "variable": [4.0]}),
}


@pytest.mark.parametrize("before", [[], [False], ["placeholder"]], ids=["alone", "after False", "after another"])
@pytest.mark.parametrize("name", RESULTS)
def test_what_a_case_without_default_returns_waits_for_its_predicate(name: str, before: list[Any]) -> None:
    function, expected = RESULTS[name]
    holds, never = ab.placeholder((), "bool", "holds"), ab.placeholder((), "bool", "never")
    w = ab.Variable(4.0)
    others = [(never if pred == "placeholder" else pred, lambda: function(w)) for pred in before]
    result = ab.case([*others, (holds, lambda: function(w))])
    session = ab.Session()
    got = session.run(result, {holds: True, never: False})
    for leaf, wanted in zip(flatten(got), flatten(expected), strict=True):
        np.testing.assert_array_equal(leaf, wanted)
    with pytest.raises(ab.errors.InvalidArgumentError, match=rf"none of its {1 + len(before)} predicates holds"):
        session.run(result, {holds: False, never: False})
    if name == "a variable":
        (slope,) = ab.gradients(result * w, [w])
        assert float(session.run(slope, {holds: True, never: False})) == 8.0


@pytest.mark.parametrize("before", [False, True], ids=["alone", "after another"])
@pytest.mark.parametrize(("power", "order", "expected"), [(1, 1, 1.0), (2, 1, 3.0), (2, 2, 2.0)])
def test_gradients_of_a_case_without_default_need_a_predicate_that_holds(
    power: int, order: int, expected: float, before: bool
) -> None:
    holds, other = ab.placeholder((), "bool", "holds"), ab.placeholder((), "bool", "other")
    x = number()
    pairs: list[Any] = [(holds, lambda: x**power)]  # the slope needs no value that the branch computes
    slope: Any = ab.case([(other, lambda: 5 * x), *pairs] if before else pairs)
    for _ in range(order):
        (slope,) = ab.gradients(slope, [x])
    session = ab.Session()
    assert float(session.run(slope, {holds: True, other: False, x: 1.5})) == expected
    with pytest.raises(ab.errors.InvalidArgumentError, match=rf"none of its {1 + before} predicates holds"):
        session.run(slope, {holds: False, other: False, x: 1.5})


def test_slope_of_a_case_without_default_in_a_loop() -> None:
    x, most = number(), number("most")
    result = repeat(3, lambda i, h: ab.case([(i < 1, lambda: 2 * h), (i < most, lambda: 3 * h)]), x)
    (slope,) = ab.gradients(result, [x])
    assert run([slope], {x: 1.5, most: 3.0}) == [18.0]
    with pytest.raises(ab.errors.InvalidArgumentError, match=r"none of its 2 predicates holds"):
        run([slope], {x: 1.5, most: 2.0})


def test_a_case_without_default_for_effects_is_an_operation() -> None:
    holds = ab.placeholder((), "bool", "holds")
    w = ab.Variable(0.0)

    def effect() -> None:
        w.assign_add(1.0)

    alone = ab.case([(holds, effect)])
    grouped = ab.case([(holds, lambda: ab.group(w.assign_add(10.0)))])
    session = ab.Session()
    for operation in (alone, grouped):
        assert isinstance(operation, ab.Operation)
        assert session.run(operation, {holds: True}) is None
        with pytest.raises(ab.errors.InvalidArgumentError, match="none of its 1 predicates holds"):
            session.run(operation, {holds: False})
    assert float(w.numpy()) == 11.0


# --- variables that a loop writes -----------------------------------------------------------------------------------

READS: dict[str, Callable[[Any, Any], Any]] = {
    "plain": lambda x, v: x * v,
    "vectorized_map": lambda x, v: ab.vectorized_map(lambda row: row * v, x),
    "vectorized_map twice": lambda x, v: ab.vectorized_map(
        lambda row: ops.sum(ab.vectorized_map(lambda r: r * row * v, x)), x
    ),
    "branch in vectorized_map": lambda x, v: ab.vectorized_map(
        lambda row: ab.cond(row > 1, lambda: row * v, lambda: row), x
    ),
    "loop in vectorized_map": lambda x, v: ab.vectorized_map(lambda row: repeat(2, lambda _, value: value * v, row), x),
    "jacobian": lambda x, v: ops.diagonal(ab.jacobian(ops.sin(x * v), x)),
    "map_fn": lambda x, v: ab.map_fn(lambda row: row * v, x),
    "remat": lambda x, v: ab.remat(lambda rows: rows * v)(x),
    "function": lambda x, v: ab.function(lambda rows: rows * v)(x),
    "cond": lambda x, v: ab.cond(v > 0, lambda: x * v, lambda: x),
    "batched_cond": lambda x, v: ab.batched_cond(x > 1, lambda rows: rows * v, lambda rows: rows, x),
}


@pytest.mark.parametrize("name", READS)
def test_each_iteration_reads_what_the_one_before_has_written(name: str):
    x, numbers = ab.placeholder((3,), "float64"), [1.5, -0.5, 0.7]
    v = ab.Variable(numbers[0], dtype="float64")

    def step(i: Any, acc: Any) -> Any:
        y = READS[name](x, v)
        with ab.control_dependencies([y]):
            v.assign(ops.take(ab.constant(numbers, "float64"), (i + 1) % 3))
        return acc * 0.5 + y

    def found(steps: Callable[..., Any], step: Callable[[Any, Any], Any]) -> list[Any]:
        y = steps(3, step, x)
        return [y, *ab.gradients(ops.sum(y), x)]

    plain = found(unrolled, lambda i, acc: acc * 0.5 + READS[name](x, ab.constant(numbers[i], "float64")))
    assert_same(found(repeat, step), plain, {x: np.array([0.5, 1.5, 2.5])})
