"""Memory budgets: loops save less and compute the rest again, and every bit stays what it was."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.passes.memory.memory_budget import memory_budget, set_memory_budget, within_memory_budget
from anabranch.engine.passes.memory.saved_state import ASSUMED_TRIPS, bytes_gathered, trips_of
from anabranch.engine.runtime.program import Program

ops = ab.ops
RNG = np.random.default_rng(0)
STEPS, ROWS, UNITS = 12, 4, 6
STATE = STEPS * ROWS * UNITS * 4  # bytes of one value of a cell, of all steps


@pytest.fixture(autouse=True)
def no_budget() -> Iterator[None]:
    yield
    set_memory_budget(None)


def draw(*shape: int, dtype: str = "float32") -> Any:
    return RNG.uniform(-0.5, 0.5, shape).astype(dtype)


class Case:
    """Tensors to fetch and what is fed, run with and without budgets."""

    def __init__(self, build: Callable[..., Sequence[Any]], *values: Any) -> None:
        self.graph = ab.Graph()
        self.values = [np.asarray(value)[()] for value in values]
        with self.graph.as_default():
            self.feeds = [ab.placeholder(value.shape, value.dtype) for value in self.values]
            self.fetches = list(build(*self.feeds))

    def program(self, budget: int | None, exact: bool = True) -> Program:
        with within_memory_budget(budget):
            return Program(self.graph, self.fetches, self.feeds, exact=exact)

    def run(self, budget: int | None, exact: bool = True) -> tuple[list[Any], Any]:
        """The fetches, and the statistics of the run."""
        program = self.program(budget, exact)
        with within_memory_budget(budget):
            return list(program(*self.values)), program.statistics

    def check(self, *budgets: int) -> list[Any]:
        """Budgets change no bit; with kernels, values are near. Returns the statistics."""
        wanted, found = self.run(None)
        told = [found]
        for budget in budgets:
            values, statistics = self.run(budget)
            told.append(statistics)
            for value, expected in zip(values, wanted, strict=True):
                assert value.dtype == expected.dtype
                assert value.shape == expected.shape
                assert value.tobytes() == expected.tobytes()
            for value, expected in zip(self.run(budget, exact=False)[0], wanted, strict=True):
                np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
        return told


def gradients(y: Any, xs: Sequence[Any], order: int = 1) -> list[Any]:
    """The gradients of `y`, and of the sum of all gradients, and so on."""
    found: list[Any] = []
    for _ in range(order):
        new = [ab.convert_to_tensor(g) for g in ab.gradients(y, list(xs), unconnected_gradients="zero")]
        found += new
        y = sum([ops.sum(part) for part in new[1:]], ops.sum(new[0]))
    return found


def lstm(steps: Any, order: int = 1, **options: Any) -> Callable[..., list[Any]]:
    def build(x: Any, w: Any, u: Any, b: Any, *count: Any) -> list[Any]:
        inputs = ab.TensorArray("float32", STEPS).unstack(x)
        zero = ops.zeros((ROWS, UNITS))

        def body(t: Any, h: Any, c: Any) -> Any:
            i, f, g, o = ops.split(inputs.read(t) @ w + h @ u + b, 4, axis=-1)
            c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
            return t + 1, ops.sigmoid(o) * ops.tanh(c), c

        limit = count[0] if count else steps
        h = ab.while_loop(lambda t, *_: t < limit, body, (0, zero, zero), **options)[1]
        loss = ops.sum(h * h)
        return [loss, *gradients(loss, [x, w, u, b], order)]

    return build


def weights() -> list[Any]:
    return [draw(STEPS, ROWS, 3), draw(3, 4 * UNITS), draw(UNITS, 4 * UNITS), draw(4 * UNITS)]


# --- what is saved --------------------------------------------------------------------------------------------------


def test_a_cell_saves_its_state_alone_where_memory_is_short():
    case = Case(lstm(STEPS), *weights())
    whole, short = case.check(3 * STATE)
    # Four gates, the tanh of the cell, both states, the input (3 numbers a row) and the position are read.
    assert whole.saved_bytes == 7 * STATE + STATE // 2 + 4 * STEPS
    assert whole.recomputed_bytes == 0
    assert short.saved_bytes == 2 * STATE + 4 * STEPS
    assert short.recomputed_bytes == 5 * STATE + STATE // 2


def test_a_budget_that_suffices_changes_nothing():
    case = Case(lstm(STEPS), *weights())
    plain, roomy = case.program(None, exact=False), case.program(10**9, exact=False)
    assert roomy.source == plain.source


def test_between_the_two_as_much_is_saved_as_fits():
    case = Case(lstm(STEPS), *weights())
    statistics = case.check(7 * STATE, 6 * STATE, 5 * STATE, 4 * STATE, 3 * STATE)
    saved = [found.saved_bytes for found in statistics]
    for size, budget in zip(saved[1:], (7 * STATE, 6 * STATE, 5 * STATE, 4 * STATE, 3 * STATE), strict=True):
        assert size <= budget
    assert saved == sorted(saved, reverse=True)
    assert saved[-1] < saved[0]


def test_of_long_loops_the_start_of_each_segment_is_saved():
    def build(x: Any, w: Any, n: Any) -> list[Any]:
        def body(t: Any, h: Any) -> Any:
            return t + 1, ops.sin(h * w + h)

        h = ab.while_loop(lambda t, h: t < n, body, (0, x), maximum_iterations=400)[1]
        return [ops.sum(h), *gradients(ops.sum(h), [x, w])]

    size = 1000 * 8
    budget = 60 * size
    for trips in (0, 1, 13, 14, 15, 28, 400):  # segments are sqrt(400 / 2) iterations long: each saves two values
        case = Case(build, draw(1000, dtype="float64"), draw(1000, dtype="float64"), np.int32(trips))
        _, short = case.check(budget)
        assert short.recomputed_bytes == trips * 2 * size
    assert peak_of(case, None) > 800 * size
    assert peak_of(case, budget) < budget + 10 * size


def test_outputs_gathered_in_an_array_are_no_obstacle_to_segments():
    def build(x: Any, w: Any) -> list[Any]:
        outputs = ab.TensorArray("float64", 50, element_shape=(100,))

        def body(t: Any, h: Any, outputs: Any) -> Any:
            h = ops.sin(h * w + h)
            return t + 1, h, outputs.write(t, h * h)

        stacked = ab.while_loop(lambda t, *_: t < 50, body, (0, x, outputs))[2].stack()
        return [stacked, *gradients(ops.sum(stacked**3), [x, w])]

    case = Case(build, draw(100, dtype="float64"), draw(100, dtype="float64"))
    whole, short = case.check(30 * 800)
    assert short.recomputed_bytes >= whole.saved_bytes - 50 * 8
    assert case.program(30 * 800).source.count("np.sin(") == 2  # forward, and once more on the way back


def peak_of(case: Case, budget: int | None) -> int:
    program = case.program(budget)
    with within_memory_budget(budget):
        program(*case.values)
        tracemalloc.start()
        program(*case.values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_products_are_computed_again_only_if_the_budget_needs_it():
    case = Case(_tall, draw(64, 64), draw(64, 64) / 16)
    size = STEPS * 64 * 64 * 4
    spare, scarce = case.program(int(3.5 * size)), case.program(int(1.5 * size))
    assert "recomputed_sin" in spare.source
    assert "recomputed_matmul" not in spare.source
    assert "recomputed_matmul" in scarce.source
    case.check(int(3.5 * size), int(1.5 * size))


def _tall(x: Any, w: Any) -> list[Any]:
    def body(t: Any, h: Any) -> Any:
        z = h @ w
        return t + 1, ops.tanh(z) * ops.cos(z) * ops.sin(z) + h

    h = ab.while_loop(lambda t, h: t < STEPS, body, (0, x))[1]
    return gradients(ops.sum(h), [x, w])


def test_the_program_tells_what_is_computed_again():
    listing = Case(lstm(STEPS), *weights()).program(3 * STATE).listing()
    line = next(line for line in listing.splitlines() if "recomputed_tanh = " in line)
    assert "# recomputed_tanh, test_recompute.py:" in line
    assert "stats.note_recomputed(" in listing


def test_swap_memory_computes_again_what_would_take_longer_to_move():
    def build(x: Any, w: Any, swap: bool) -> list[Any]:
        def body(t: Any, h: Any) -> Any:
            z = h @ w
            return t + 1, ops.cos(-z) + ops.sin(z)

        h = ab.while_loop(lambda t, h: t < 3, body, (0, x), swap_memory=swap)[1]
        return gradients(ops.sum(h), [x, w])

    values = draw(512, 512), draw(512, 512)
    plain, swapping = (Case(lambda x, w, s=swap: build(x, w, s), *values) for swap in (False, True))
    assert "recomputed" not in plain.program(None).source
    source = swapping.program(None).source
    assert "recomputed_negat" in source
    assert "recomputed_matmul" not in source
    for found, wanted in zip(swapping.run(None)[0], plain.run(None)[0], strict=True):
        assert found.tobytes() == wanted.tobytes()
    assert swapping.run(None)[1].saved_bytes < plain.run(None)[1].saved_bytes
    for found, wanted in zip(swapping.run(None, exact=False)[0], plain.run(None)[0], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=5e-5 * np.abs(wanted).max())


def test_what_is_fetched_from_inside_is_saved_anyway():
    inside: list[Any] = []

    def build(x: Any) -> list[Any]:
        def body(t: Any, h: Any) -> Any:
            inside.append(ops.tanh(h))
            return t + 1, ops.sin(inside[-1])

        h = ab.while_loop(lambda t, h: t < 5, body, (0, x))[1]
        return gradients(ops.sum(h), [x])

    case = Case(build, draw(8))
    session = ab.Session(case.graph)
    fed = dict(zip(case.feeds, case.values, strict=True))
    history, slope = session.run([inside[-1], case.fetches[0]], fed, memory_budget=0)
    assert session.statistics().saved_bytes == 5 * 32
    wanted, expected = session.run([inside[-1], case.fetches[0]], fed)
    np.testing.assert_array_equal(history, wanted)
    np.testing.assert_allclose(slope, expected, rtol=1e-5)


# --- structures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trips", [0, 1, 2, 5])
def test_unknown_trip_counts_and_second_order(trips: int):
    case = Case(lstm(None, order=2), *weights(), np.int32(trips))
    whole, some, short = case.check(50_000, 0)
    assert short.saved_bytes <= some.saved_bytes <= whole.saved_bytes
    assert (short.saved_bytes < whole.saved_bytes) == (trips > 0)
    assert (short.recomputed_bytes > 0) == (trips > 0)


@pytest.mark.parametrize("order", [1, 2])
def test_an_inner_loop_runs_again(order: int):
    def build(x: Any, w: Any) -> list[Any]:
        def outer(t: Any, h: Any) -> Any:
            def inner(k: Any, z: Any) -> Any:
                return k + 1, ops.tanh(z * w) + h

            return t + 1, ab.while_loop(lambda k, z: k <= t, inner, (0, ops.sin(h)))[1]

        h = ab.while_loop(lambda t, h: t < 6, outer, (0, x))[1]
        return gradients(ops.sum(h * h), [x, w], order)

    whole, short = Case(build, draw(50, dtype="float64"), draw(50, dtype="float64")).check(0)
    assert short.saved_bytes < whole.saved_bytes
    assert short.recomputed_bytes > 0


def test_a_branch_inside_runs_again_and_only_where_it_was_taken():
    def build(x: Any) -> list[Any]:
        def body(t: Any, h: Any) -> Any:
            h = ab.cond(ops.sum(h) > 0.0, lambda: ops.tanh(ops.sin(h)) - 0.3, lambda: ops.cos(ops.exp(h)) + h)
            return t + 1, h

        h = ab.while_loop(lambda t, h: t < 8, body, (0, x))[1]
        return gradients(ops.sum(h * h), [x], 2)

    case = Case(build, draw(9))
    whole, short = case.check(0)
    assert short.saved_bytes < whole.saved_bytes
    source = case.program(0).source
    assert "recomputed_exp" not in source  # a branch that ran again has its operations' own names inside
    assert source.count("np.exp(") >= 2


def test_a_loop_inside_a_branch():
    def build(x: Any, p: Any) -> list[Any]:
        def looped() -> Any:
            return ab.while_loop(lambda t, h: t < 4, lambda t, h: (t + 1, ops.sin(ops.tanh(h) + x)), (0, x))[1]

        y = ab.cond(p > 0, looped, lambda: x * 2.0)
        return [*gradients(ops.sum(y), [x], 2), p + 1]

    for choice in (1, -1):
        Case(build, draw(7), np.int32(choice)).check(100, 0)


def test_arrays_and_rows():
    def build(table: Any, x: Any) -> list[Any]:
        written = ab.TensorArray("float32", 5, element_shape=(3,))

        def body(t: Any, h: Any, written: Any) -> Any:
            row = ops.take(table, t % 4, axis=0)
            h = ops.tanh(h * row + ops.sin(h))
            return t + 1, h, written.write(t, ops.exp(h))

        _, h, filled = ab.while_loop(lambda t, *_: t < 5, body, (0, x, written))
        return gradients(ops.sum(h) + ops.sum(ops.sqrt(filled.stack())), [table, x], 2)

    whole, short = Case(build, draw(4, 3), draw(3)).check(0)
    assert short.saved_bytes < whole.saved_bytes


def test_random_numbers_are_drawn_from_the_saved_key():
    def case() -> Case:
        generator = ab.random.SeedGenerator(7)

        def build(x: Any) -> list[Any]:
            def body(t: Any, h: Any) -> Any:
                return t + 1, ops.tanh(h) * ab.random.normal((40,), seed=generator)

            h = ab.while_loop(lambda t, h: t < 5, body, (0, x))[1]
            return gradients(ops.sum(h), [x])

        return Case(build, np.linspace(-1, 1, 40, dtype="float32"))

    ((wanted,), whole), ((found,), short) = case().run(None), case().run(0)
    assert found.tobytes() == wanted.tobytes()
    assert np.any(wanted)
    assert short.saved_bytes < whole.saved_bytes
    assert "recomputed_" in case().program(0).source


def test_effects_run_once():
    counted = ab.Variable(0.0)

    def build(x: Any) -> list[Any]:
        def body(t: Any, h: Any) -> Any:
            read = counted.value
            counted.assign(read + 1.0)
            return t + 1, ops.sin(h * (read + 1.0)) * ops.tanh(h)

        h = ab.while_loop(lambda t, h: t < 5, body, (0, x))[1]
        return gradients(ops.sum(h), [x])

    case = Case(build, draw(20))
    found: list[Any] = []
    for budget in (None, 0):
        counted.assign(0.0)
        found.append(case.run(budget))
        assert float(counted.numpy()) == 5.0
    assert found[0][0][0].tobytes() == found[1][0][0].tobytes()
    assert found[1][1].saved_bytes < found[0][1].saved_bytes


def test_the_gradient_is_right():
    def build(x: Any) -> list[Any]:
        h = ab.while_loop(lambda t, h: t < 3, lambda t, h: (t + 1, ops.sin(ops.exp(-h))), (0, x))[1]
        return [ops.sum(h), *gradients(ops.sum(h), [x])]

    x = draw(4, dtype="float64")

    def value(x: Any) -> Any:
        for _ in range(3):
            x = np.sin(np.exp(-x))
        return x

    (_, slope), _ = Case(build, x).run(0)
    np.testing.assert_allclose(slope, (value(x + 1e-6) - value(x - 1e-6)) / 2e-6, rtol=1e-7)


# --- how it is asked for --------------------------------------------------------------------------------------------


def test_the_budget_of_a_run_and_of_the_process():
    case = Case(lstm(STEPS), *weights())
    session = ab.Session(case.graph)
    fed = dict(zip(case.feeds, case.values, strict=True))
    call = session.make_callable(case.fetches, case.feeds)

    def saved(**options: Any) -> int:
        session.run(case.fetches, fed, **options)
        return session.statistics().saved_bytes

    whole = saved()
    short = saved(memory_budget=0)
    assert short < whole
    assert session.statistics().recomputed_bytes > 0
    assert saved() == whole
    assert session.statistics().recomputed_bytes == 0
    ab.config.set_memory_budget(0)
    assert (ab.config.memory_budget(), saved()) == (0, short)
    assert saved(memory_budget=10**9) == whole
    call(*case.values)
    assert session.statistics().saved_bytes == short
    total = session.statistics().total_recomputed_bytes
    call(*case.values)
    assert session.statistics().total_recomputed_bytes == total + session.statistics().recomputed_bytes
    assert "recomputed_" in ab.explain(case.fetches, case.feeds)
    ab.config.set_memory_budget(None)
    assert saved() == whole
    assert "recomputed_" not in ab.explain(case.fetches, case.feeds)


def test_the_budget_of_a_run_holds_in_its_thread_alone():
    found: list[Any] = []
    with within_memory_budget(5):
        thread = threading.Thread(target=lambda: found.append(memory_budget()))
        thread.start()
        thread.join()
        assert memory_budget() == 5
    assert found == [None]
    assert memory_budget() is None


@pytest.mark.parametrize(
    ("budget", "error", "text"),
    [
        (-1, ValueError, "A memory budget is a number of bytes that is not negative, or None; got -1."),
        (1e3, TypeError, "A memory budget is a number of bytes, an int, or None for no limit; got 1000.0 (float)."),
        ("1GB", TypeError, "A memory budget is a number of bytes, an int, or None for no limit; got '1GB' (str)."),
        (True, TypeError, "A memory budget is a number of bytes, an int, or None for no limit; got True (bool)."),
    ],
)
def test_budgets_are_checked(budget: Any, error: type[Exception], text: str):
    with pytest.raises(error) as raised:
        ab.config.set_memory_budget(budget)
    assert str(raised.value) == text
    with pytest.raises(error), within_memory_budget(budget):
        pass
    ab.config.set_memory_budget(int(np.int64(5)))
    assert ab.config.memory_budget() == 5


# --- trip counts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4)])
def test_products_of_stacks_are_gathered_as_those_of_matrices_are(shape: tuple[int, ...]):
    with ab.Graph().as_default() as graph:
        x, w = ab.placeholder(shape, "float32"), ab.placeholder(shape, "float32")
        ab.while_loop(lambda i, _: i < STEPS, lambda i, x: (i + 1, ops.tanh(ops.matmul(x, w))), (0, x))
    (loop,) = [operation for operation in graph.operations if operation.type == "while"]
    assert bytes_gathered(loop) == STEPS * 2 * int(np.prod(shape)) * 4  # of x and of the product; w is captured


def test_trip_counts_follow_from_counters():
    with ab.Graph().as_default():
        n = ab.placeholder((), "int32")

        def trips(start: Any, limit: Any, step: int, most: Any = None) -> int:
            values = ab.while_loop(lambda t: t < limit, lambda t: t + step, start, maximum_iterations=most)
            return trips_of(values.operation)

        assert trips(0, 7, 1) == 7
        assert trips(1, 7, 2) == 3
        assert trips(9, 7, 1) == 0
        assert trips(0, n, 1) == ASSUMED_TRIPS
        assert trips(n, 7, 1) == ASSUMED_TRIPS
        assert trips(0, 7, -1) == ASSUMED_TRIPS
        assert trips(0, n, 1, most=20) == 20
        assert trips(0, 7, 1, most=20) == 7


def test_trip_counts_follow_from_counters_that_go_down_and_from_limits_that_count():
    with ab.Graph().as_default():
        for test, trips in [
            (lambda t: t > 0, 7),
            (lambda t: t >= 0, 8),
            (lambda t: t > 2, 5),
            (lambda t: t >= 7, 1),
            (lambda t: t >= 8, 0),
        ]:
            assert trips_of(ab.while_loop(test, lambda t: t - 1, 7).operation) == trips
        assert trips_of(ab.while_loop(lambda t: t >= 0, lambda t: t - 3, 7).operation) == 3  # 7, 4, 1
        assert trips_of(ab.while_loop(lambda t: t <= 7, lambda t: t + 2, 0).operation) == 4  # 0, 2, 4, 6


def test_a_backward_loop_has_the_trips_of_its_loop():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((4,), "float32")
        _, y = ab.while_loop(lambda i, _: i < STEPS, lambda i, x: (i + 1, ops.tanh(x)), (0, x))
        ab.gradients(y, [x])
    loops = [operation for operation in graph.operations if operation.type == "while"]
    assert [trips_of(loop) for loop in loops] == [STEPS, STEPS]
