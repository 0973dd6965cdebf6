"""Native regions that read and assign variables: loops and whole steps, against the exact program; and ways out."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.regions.rule import least_work
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")

ops = ab.ops
Build = Callable[..., Any]


def built(build: Build, values: Sequence[Any], whole: bool) -> tuple[ab.Graph, list[Any], list[Any]]:
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(np.shape(value), np.asarray(value).dtype.name) for value in values]
        fetches = build(*feeds)
        targets = [*fetches, *[operation for operation in graph.operations if operation.writes]]
    graph.compiles_whole = whole
    return graph, targets, feeds


def run_of(program: Program, variables: Sequence[Any], first: Sequence[Any], values: Sequence[Any], times: int) -> Any:
    """Return the results of several runs, with the variables' values after each."""
    for variable, value in zip(variables, first, strict=True):
        variable.assign(value)
    runs: list[Any] = []
    for _ in range(times):
        given = program(*values)
        runs.append([*[np.array(value) for value in given], *[variable.numpy() for variable in variables]])
    return runs


def check(
    build: Build, variables: Sequence[Any], *values: Any, whole: bool = True, native: int = 1, times: int = 3
) -> Program:
    """A native program does to variables what the exact one does, and gives what that gives, run after run."""
    graph, targets, feeds = built(build, values, whole)
    first = [variable.numpy() for variable in variables]
    program = Program(graph, targets, feeds)
    assert program.source.count("# native: ") == native, program.source
    exact = Program(graph, targets, feeds, exact=True)
    assert "# native: " not in exact.source
    expected = run_of(exact, variables, first, values, times)
    found = run_of(program, variables, first, values, times)
    for one, other in zip(found, expected, strict=True):
        for value, wanted in zip(one, other, strict=True):
            assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    return program


def variable(value: Any, dtype: str = "float32") -> Any:
    return ab.Variable(np.asarray(value, dtype))


def floats(value: Any) -> Any:
    return np.asarray(value, "float32")


def integers(value: Any) -> Any:
    return np.asarray(value, "int32")


# --- loops ----------------------------------------------------------------------------------------------------------


def test_loops_that_count_in_variables():
    count, total = variable(0, "int32"), variable([1.0, 2.0])

    def build(x: Any) -> Any:
        def body(i: Any) -> Any:
            count.assign_add(2)
            total.assign(total.value * 0.5 + x)
            return i + 1

        return [ab.while_loop(lambda i: i < 7, body, (0,))[0], total.value]

    check(build, [count, total], floats([3, 4]), whole=False)
    check(build, [count, total], floats([3, 4]))


def test_loops_of_nothing_but_variables():
    count = variable(0, "int32")

    def build() -> Any:
        def body() -> Any:
            count.assign_add(3)
            return ()

        ab.while_loop(lambda: count.value < 20, body, ())
        return []

    check(build, [count], whole=False)
    assert count.numpy() == 21
    count.assign(0)
    program = check(build, [count])
    assert count.numpy() == 21
    assert " is None: " in program.source  # there are no results: nothing must run twice


def test_an_iteration_that_is_not_reached_assigns_nothing():
    v = variable([5.0, 6.0])

    def build(n: Any) -> Any:
        def body(i: Any) -> Any:
            v.assign(v.value + 1)
            return i + 1

        return ab.while_loop(lambda i: i < n, body, (0,))

    for count in (0, 1, 4):
        check(build, [v], np.int32(count), whole=False)
        check(build, [v], np.int32(count))


def test_a_value_that_was_read_before_the_loop_stays():
    v = variable(np.arange(6.0).reshape(2, 3))

    def build(x: Any) -> Any:
        before = v.value

        def body(i: Any, y: Any) -> Any:
            v.assign(v.value + before * 0.1)  # `before` is used in each iteration, after writes
            return i + 1, y + v.value

        y = ab.while_loop(lambda i, _: i < 4, body, (0, before))[1]
        return [before, y * x, v.value]

    check(build, [v], np.float32(2), whole=False)
    check(build, [v], np.float32(2))


def test_loop_variables_that_begin_as_a_variable():
    v = variable([1.0, 2.0])

    def build() -> Any:
        def body(i: Any, same: Any, other: Any) -> Any:
            v.assign(other + same)
            return i + 1, same, v.value

        return ab.while_loop(lambda i, *_: i < 3, body, (0, v.value, v.value))[1:]

    check(build, [v], whole=False)
    check(build, [v])


def test_loops_in_loops_and_branches_that_assign():
    v, hits = variable([1.0, -1.0, 2.0]), variable(0, "int64")

    def build(limit: Any) -> Any:
        def add() -> Any:
            hits.assign_add(1)
            return v.assign(v.value - 0.25)

        def inner(k: Any, total: Any) -> Any:
            shown = ab.cond(ops.sum(v.value) > limit, add, lambda: v.value * 2.0)
            return k + 1, total + ops.sum(shown)

        def outer(i: Any, total: Any) -> Any:
            total = ab.while_loop(lambda k, _: k < i, inner, (0, total))[1]
            v.assign(v.value + 0.5)
            return i + 1, total

        return [ab.while_loop(lambda i, _: i < 5, outer, (0, 0.0))[1]]

    for limit in (-10.0, 1.0, 10.0):
        check(build, [v, hits], np.float32(limit), whole=False)
        check(build, [v, hits], np.float32(limit))


def test_gradients_through_loops_beside_assignments():
    w, seen = variable([0.5, -0.5]), variable(0.0)

    def build(x: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            seen.assign(ops.sum(h))
            return i + 1, ops.tanh(h * w.value + x)

        loss = ops.sum(ab.while_loop(lambda i, _: i < 4, body, (0, x))[1])
        (slope,) = ab.gradients(loss, [w.value])
        w.assign(w.value - 0.1 * slope)
        return [loss, slope]

    check(build, [w, seen], floats([0.3, 0.7]), whole=False, native=2)


# --- whole steps ----------------------------------------------------------------------------------------------------


def test_reads_and_writes_keep_their_order():
    a, b = variable([1.0, 2.0, 3.0]), variable([4.0, 5.0, 6.0])

    def build(x: Any) -> Any:
        before = a.value
        a.assign(b.value)
        b.assign(before)
        swapped = a.value - b.value
        a.assign(a.value * x)
        return [before, swapped, a.value, b.value]

    check(build, [a, b], np.float32(3))


def test_parts_of_a_variable_that_is_written():
    v = variable(np.arange(8.0).reshape(4, 2))

    def build(k: Any) -> Any:
        row, flat = v.value[k], ops.reshape(v.value, (8,))
        v.assign(ops.concatenate([v.value[1:], row[None]], axis=0))
        return [row, flat, v.value[0]]

    check(build, [v], np.int32(1))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_branches_that_assign(first: bool, second: bool):
    v, n, other = variable([[1.0, 2.0]]), variable(3, "int32"), variable([[7.0, 8.0]])

    def build(p: Any, q: Any) -> Any:
        def act() -> Any:
            n.assign_add(1)
            return v.assign(v.value * 2)

        shown = ab.cond(p, act, lambda: other.value)
        ab.cond(q, lambda: other.assign(v.value + 1), lambda: other.value)
        return [shown, v.value, ops.cast(n.value, "float32") * other.value]

    check(build, [v, n, other], np.bool_(first), np.bool_(second))


@pytest.mark.parametrize("place", [0, 5, -1, -6])
@pytest.mark.parametrize("rows", [6, 40_000])
def test_rows_that_are_written(place: int, rows: int):
    """Rows of a small variable and of one that is too large to be kept aside as a whole are both written in place."""
    memory = variable(np.arange(rows * 2.0).reshape(rows, 2))
    picked = place if place >= 0 else place + rows

    def build(k: Any, row: Any) -> Any:
        memory.scatter_update(ab.IndexedSlices(row[None], ops.reshape(k, (1,)), memory.shape))
        return [ops.take(memory, ops.stack([k, 0, k]), axis=0)]

    held = memory.stored_value()
    program = check(build, [memory], np.int32(picked), floats([-1, -2]))
    held = memory.stored_value()
    program(np.int32(picked), floats([-3, -4]))
    assert memory.stored_value() is held
    np.testing.assert_array_equal(held[picked], [-3, -4])


def test_rows_named_twice_and_counted_from_the_end():
    memory = variable(np.zeros((5, 3)))

    def build(places: Any, rows: Any) -> Any:
        memory.scatter_update(ab.IndexedSlices(rows, places, memory.shape))
        return []

    check(build, [memory], integers([1, -1, 1, -5]), np.arange(12.0, dtype="float32").reshape(4, 3))
    np.testing.assert_array_equal(memory.numpy()[:, 0], [9, 6, 0, 0, 3])


def test_rows_of_a_value_that_is_used_later():
    memory = variable(np.arange(6.0).reshape(3, 2))

    def build(row: Any) -> Any:
        before = memory.value
        memory.scatter_update(ab.IndexedSlices(before[2:], [0], memory.shape))
        memory.scatter_update(ab.IndexedSlices(row[None], [2], memory.shape))
        return [before * 2]

    check(build, [memory], floats([8, 9]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_numbers_of_a_generator(dtype: str):
    """The very bits of the ops, and keys in order: whether a branch draws or not."""
    generator = ab.random.SeedGenerator(-7)

    def build(draws: Any) -> Any:
        always = ab.random.uniform((3, 5), seed=generator, dtype=dtype)
        one = ab.random.uniform((), seed=generator, dtype=dtype)
        none = ops.zeros((33,), dtype)
        maybe = ab.cond(draws, lambda: ab.random.uniform((33,), seed=generator, dtype=dtype), lambda: none)
        return [always, maybe, one]

    graph, targets, feeds = built(build, [np.bool_(True)], whole=True)
    program, exact = Program(graph, targets, feeds), Program(graph, targets, feeds, exact=True)
    assert program.source.count("# native: ") == 1
    for draws in (True, False, True):
        state = generator.state
        expected, after = exact(np.bool_(draws)), generator.state
        generator.state = state
        for value, wanted in zip(program(np.bool_(draws)), expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
        np.testing.assert_array_equal(generator.state, after)


def test_keys_beside_a_loop_that_writes_are_left_to_python():
    generator, v = ab.random.SeedGenerator(1), variable(0.0)

    def build() -> Any:
        def body(i: Any) -> Any:
            v.assign_add(1.0)
            return i + 1

        count = ab.while_loop(lambda i: i < 3, body, (0,))
        return [count[0], ab.random.uniform((2,), seed=generator)]

    graph, targets, feeds = built(build, [], whole=True)
    source = Program(graph, targets, feeds).source
    assert source.count("# native: ") == 1  # the loop
    assert "run_take_key()" in source


def test_picking():
    """One-hot vectors, places of extrema, rows, parts: with NaN, ties, and positions out of range."""
    x = floats([[1, 3, 3], [2, np.nan, np.nan], [-np.inf, -np.inf, -np.inf]])

    def build(x: Any, k: Any) -> Any:
        first, *_ = ops.unstack(x, axis=1)
        scalars = ops.unstack(k)
        return [
            *[ops.argmax(x, axis=-1), ops.argmin(x), ops.argmax(ops.cast(k, "float64")), ops.argmin(k)],
            *[ops.one_hot(k, 4), ops.one_hot(scalars[1], 3, dtype="int32"), first, scalars[0]],
            *[ops.take(x, ops.abs(k) % 3, axis=0), ops.take(x[0], k[0]), ops.take(x, -1, axis=0)],
        ]

    check(build, [], x, integers([2, 0, -1, 5]), times=1)


# --- ways out -------------------------------------------------------------------------------------------------------


def failing_step() -> tuple[Build, list[Any]]:
    """A step that fails at a position out of range, when it has written variables of all kinds."""
    count, v = variable(0, "int32"), variable([1.0, 2.0, 3.0])
    memory = variable(np.zeros((50_000, 2)))

    def build(k: Any) -> Any:
        count.assign_add(1)
        v.assign(v.value * 2)
        memory.scatter_update(ab.IndexedSlices(v.value[None, :2], ops.reshape(count.value, (1,)), memory.shape))
        picked = v.value[k]
        v.assign(v.value + picked)
        count.assign_add(10)
        return [picked]

    return build, [count, v, memory]


def test_a_step_that_fails_leaves_what_python_leaves():
    build, variables = failing_step()
    graph, targets, feeds = built(build, [np.int32(0)], whole=True)
    program = Program(graph, targets, feeds)
    exact = Program(graph, targets, feeds, exact=True)
    assert program.source.count("# native: ") == 1
    first, found = [v.numpy() for v in variables], []
    for each in (program, exact):
        for v, value in zip(variables, first, strict=True):
            v.assign(value)
        each(np.int32(1))
        with pytest.raises(IndexError, match="index 3 is out of bounds for axis 0 with size 3"):
            each(np.int32(3))
        each(np.int32(2))
        found.append([v.numpy() for v in variables])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert found[0][0] == 23


def test_a_loop_that_fails_leaves_what_python_leaves():
    v, n = variable([0.0, 0.0, 0.0]), variable(0, "int32")

    def build(x: Any) -> Any:
        def body(i: Any) -> Any:
            n.assign_add(1)
            v.assign(v.value + x[i])
            return i + 1

        return ab.while_loop(lambda i: i < 5, body, (0,))

    for whole in (False, True):
        graph, targets, feeds = built(build, [np.zeros(3, "float32")], whole=whole)
        program = Program(graph, targets, feeds)
        assert program.source.count("# native: ") == 1
        v.assign([0.0, 0.0, 0.0])
        n.assign(0)
        with pytest.raises(IndexError, match="index 3 is out of bounds"):
            program(floats([1, 2, 4]))
        np.testing.assert_array_equal(v.numpy(), [7, 7, 7])  # three iterations, and the beginning of a fourth
        assert n.numpy() == 4


def test_an_interrupted_loop_leaves_nothing_behind():
    n, v = variable(0, "int64"), variable([0.0, 0.0])

    def build(limit: Any) -> Any:
        def body(i: Any) -> Any:
            n.assign_add(1)
            v.assign(v.value + 1.0)
            return i + 1

        return ab.while_loop(lambda i: i < limit, body, (np.int64(0),))

    graph, targets, feeds = built(build, [np.int64(0)], whole=True)
    program = Program(graph, targets, feeds)
    assert program.source.count("# native: ") == 1

    def interrupt(*_: Any) -> None:
        raise InterruptedError("enough")

    def run_until_then() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        program(np.int64(2**62))

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(InterruptedError, match="enough"):
            run_until_then()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert int(n.numpy()) == 0
    np.testing.assert_array_equal(v.numpy(), floats([0.0, 0.0]))


def test_arrays_that_are_shared_are_written_elsewhere():
    """A variable whose memory can't be written gets memory of its own."""
    v = variable([1.0, 2.0])

    def build(x: Any) -> Any:
        v.assign(v.value + x)
        return []

    graph, targets, feeds = built(build, [np.float32(1)], whole=True)
    program = Program(graph, targets, feeds)
    frozen = floats([5, 6])
    frozen.flags.writeable = False
    v.write_value(frozen)
    program(np.float32(1))
    program(np.float32(1))
    np.testing.assert_array_equal(v.numpy(), [7, 8])
    np.testing.assert_array_equal(frozen, [5, 6])
    v.write_value(floats([[1, 2], [3, 4]])[:, 0])  # not in one piece
    program(np.float32(1))
    np.testing.assert_array_equal(v.numpy(), [2, 4])


def test_what_is_fetched_shares_no_memory_with_variables():
    v = variable([1.0, 2.0])

    def build(x: Any) -> Any:
        before = v.value
        after = v.assign(v.value + x)
        return [before, after, v.value]

    graph, targets, feeds = built(build, [np.float32(1)], whole=True)
    program = Program(graph, targets, feeds)
    fetched = program(np.float32(1))[:3]
    program(np.float32(1))
    for value, wanted in zip(fetched, ([1, 2], [2, 3], [2, 3]), strict=True):
        np.testing.assert_array_equal(value, wanted)
        assert not np.shares_memory(value, v.stored_value())


# --- what becomes native --------------------------------------------------------------------------------------------


def test_the_switch():
    v = variable([1.0, 2.0])

    @ab.function(jit_compile=True)
    def step(x: Any) -> Any:
        return v.assign_add(x)

    with without("native"):
        step(floats([1, 1]))
    step(floats([1, 1]))
    np.testing.assert_array_equal(v.numpy(), [3, 4])


def test_steps_that_assign_under_conditions_are_compiled_by_themselves():
    v, w = variable([1.0, 2.0]), variable([3.0, 4.0])

    def conditional(x: Any) -> Any:
        ab.cond(x > 0, lambda: v.assign(v.value * x), lambda: v.value)
        return [w.value * x]

    def plain(x: Any) -> Any:
        v.assign(v.value * x)
        return [w.value * x]

    def long(x: Any) -> Any:
        y = w.value
        for k in range(120):
            y = ops.tanh(y) if k % 2 else ops.concatenate([y[1:], y[:1]], axis=0)
        ab.cond(x > 0, lambda: v.assign(y), lambda: v.value)
        return [y * x]

    natives: list[int] = []
    for build, least in ((conditional, 0), (plain, 0), (conditional, 10**6), (long, 10**6)):
        with least_work(least):
            graph, targets, feeds = built(build, [np.float32(1)], whole=False)
            natives.append(Program(graph, targets, feeds).source.count("# native: "))
    assert natives == [1, 0, 0, 1]


def test_what_holds_a_step_back_is_told():
    v = variable([1.0, 2.0])
    with ab.Graph().as_default() as graph:
        graph.compiles_whole = True
        y = ops.correlate(v.assign_add([1.0, -1.0]), [1.0, 2.0], "full")
        told = ab.explain(y, passes=True)
    assert "the step is not machine code as a whole: 'correlate_full' (test_native_variables.py:" in told


def test_loops_that_write_large_variables_are_left_to_python():
    """They would copy them each time; a whole step writes rows in place."""
    natives: list[int] = []
    for rows in (100, 200_000):
        memory = variable(np.zeros((rows, 2)))

        def build(x: Any, memory: Any = memory) -> Any:
            def body(i: Any) -> Any:
                memory.scatter_update(ab.IndexedSlices(x[None] * 2.0, ops.reshape(i, (1,)), memory.shape))
                return i + 1

            return [ab.while_loop(lambda i: i < 5, body, (0,))[0]]

        graph, targets, feeds = built(build, [floats([1, 2])], whole=False)
        program = Program(graph, targets, feeds)
        natives.append(program.source.count("# native: "))
        program(floats([1, 2]))
        np.testing.assert_array_equal(memory.numpy()[:6], [[2, 4]] * 5 + [[0, 0]])
    assert natives == [1, 0]


def test_jit_compile_changes_no_meaning_where_nothing_can_be_native():
    @ab.function(jit_compile=True)
    def sort(x: Any) -> Any:
        return ops.sort(x)

    np.testing.assert_array_equal(sort(floats([3, 1, 2])), [1, 2, 3])


# --- random programs ------------------------------------------------------------------------------------------------

STATEMENTS = st.lists(
    st.tuples(st.sampled_from(["read", "assign", "row", "if", "loop", "mix"]), st.integers(0, 2), st.integers(0, 3)),
    min_size=1,
    max_size=7,
)


def random_build(statements: list[Any], nested: list[Any], variables: list[Any]) -> Build:
    """A program of reads, writes, branches and loops over three variables of the same shape."""

    def build(x: Any, p: Any) -> Any:
        values = [x]

        def do(kind: str, which: int, amount: int, depth: int = 0) -> None:
            v, value = variables[which], values[amount % len(values)]
            if kind == "read":
                values.append(v.value)
            elif kind == "assign":
                values.append(v.assign(value * 0.5 + amount))
            elif kind == "row":
                v.scatter_update(ab.IndexedSlices(value[amount % 2][None], [amount - 2], v.shape))
            elif kind == "mix":
                values.append(v.value * value + variables[(which + 1) % 3].value[:1])
            elif depth == 0:
                (branch if kind == "if" else loop)(which, amount)

        def branch(which: int, amount: int) -> None:
            def taken() -> Any:
                held = list(values)
                for kind, w, a in nested:
                    do(kind, w, a, 1)
                result, values[:] = values[-1], held
                return result

            values.append(ab.cond(p if amount % 2 else ops.sum(values[-1]) > 0, taken, lambda: variables[which].value))

        def loop(which: int, amount: int) -> None:
            def body(i: Any, y: Any) -> Any:
                held = list(values)
                values.append(y)
                for kind, w, a in nested:
                    do(kind, w, a, 1)
                result, values[:] = values[-1], held
                return i + 1, result * 0.5

            values.append(ab.while_loop(lambda i, _: i < amount, body, (0, variables[which].value))[1])

        for statement in statements:
            do(*statement)
        return values

    return build


@settings(max_examples=examples(10, 25), deadline=None)
@given(STATEMENTS, STATEMENTS, st.booleans())
def test_random_programs_with_effects(statements: list[Any], nested: list[Any], taken: bool):
    variables = [variable(np.arange(6.0).reshape(2, 3) * (k + 1) - 3) for k in range(3)]
    build = random_build(statements, nested, variables)
    values = [floats([[0.5, -1, 2], [1, 0, -2]]), np.bool_(taken)]
    first = [v.numpy() for v in variables]
    runs: list[Any] = []
    for whole, exact in ((False, True), (False, False), (True, False)):
        graph, targets, feeds = built(build, values, whole)
        program = Program(graph, targets, feeds, [TensorSpec(v.shape, v.dtype) for v in values], exact=exact)
        assert not whole or program.source.count("# native: ") == 1
        runs.append(run_of(program, variables, first, values, 2))
    for other in runs[1:]:
        for one, wanted in zip(other, runs[0], strict=True):
            for value, expected in zip(one, wanted, strict=True):
                np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)
