"""Programs that take over after many runs: with native loops, and with the whole step as one native function."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shared.built import built

import anabranch as ab
from anabranch.engine.codegen.regions import rule
from anabranch.engine.codegen.regions.rule import LEAST_WORK, least_work
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime import tiers
from anabranch.engine.runtime.program import Program
from anabranch.engine.runtime.tiers import Tier, Tiers

ops = ab.ops
RUNS = 20
RNG = np.random.default_rng(1)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are compiled as a whole after few runs, short loops after fewer."""
    monkeypatch.setattr(tiers, "WHOLE_RUNS", RUNS)
    monkeypatch.setattr(rule, "WORK_OF_STEPS", 1000)


@pytest.fixture
def only_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "_is_small", lambda operations: False)


def draw(*shape: int) -> Any:
    return RNG.uniform(-1, 1, shape).astype("float32")


def layers_of(x: Any, *weights: Any) -> Any:
    for weight in weights:
        x = ops.tanh(x @ weight + 0.5)
    return [x]


def short_loop(x: Any) -> Any:
    return ab.while_loop(lambda i, _: i < 40, lambda i, x: (i + 1, ops.sqrt(ops.abs(x)) + x * 0.1), (0, x))


def run(program: Program, *values: Any, runs: int = RUNS + 2) -> list[Any]:
    with least_work(LEAST_WORK):
        return [program(*values) for _ in range(runs)]


# --- the count ------------------------------------------------------------------------------------------------------


def test_each_takes_over_after_its_runs_and_is_compiled_beside_the_second_half_of_those_before() -> None:
    by: list[tuple[Tier, str]] = []

    def make(tier: Tier) -> str:
        by.append((tier, threading.current_thread().name))
        return tier.value

    counted = Tiers([(Tier.LOOPS, 5), (Tier.WHOLE, 11)], make)
    taken = {}
    for number in range(1, 14):
        if not counted.are_over:
            found = counted.count()
            assert counted.is_compiling == (number in (3, 4, 8, 9, 10)), number
            if found is not None:
                taken[number] = found
    assert taken == {5: "short loops", 11: "the whole step"}
    assert by == [(tier, "anabranch native code") for tier in Tier]


def test_what_is_not_worth_it_is_left_out() -> None:
    counted = Tiers([(Tier.LOOPS, 1), (Tier.WHOLE, 2)], lambda tier: None if tier is Tier.LOOPS else "whole")
    assert [counted.count(), counted.count()] == [None, "whole"]
    assert counted.are_over


def test_passes_that_are_turned_off_meanwhile_do_not_hold_for_it() -> None:
    made: list[str] = []

    def make(tier: Tier) -> str:
        made.append(threading.current_thread().name)
        return "made"

    counted = Tiers([(Tier.WHOLE, 2)], make)
    with without("fuse"):
        assert counted.count() is None
        beside = counted._beside
        assert beside is not None
        beside.result()
    assert counted.count() == "made"
    assert made == [threading.main_thread().name]


def test_what_is_made_while_passes_change_is_made_again() -> None:
    made: list[str] = []

    def make(tier: Tier) -> str:
        if not made:
            with without("fuse"):
                pass
        made.append(threading.current_thread().name)
        return "made"

    counted = Tiers([(Tier.WHOLE, 2)], make)
    assert [counted.count(), counted.count()] == [None, "made"]
    assert made == ["anabranch native code", threading.main_thread().name]


def test_threads_that_count_at_once_take_over_once() -> None:
    barrier, found = threading.Barrier(4), list[str]()

    def make(tier: Tier) -> str:
        return tier.value

    counted = Tiers([(Tier.LOOPS, 40), (Tier.WHOLE, 80)], make)

    def count() -> None:
        barrier.wait(60)
        while not counted.are_over:
            each = counted.count()
            if each is not None:
                found.append(each)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == ["short loops", "the whole step"]


# --- short loops ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("soon", "loops_stay", "only_loops")
def test_short_loops_are_compiled_once_the_steps_have_done_enough() -> None:
    def build(x: Any) -> Any:
        y = ab.while_loop(lambda i, _: i < 40, lambda i, y: (i + 1, ops.sqrt(y) + x), (0, x))[1]
        return [y, *ab.gradients(y, [x])]

    graph, targets, feeds = built(build, np.float32(1))
    with least_work(LEAST_WORK):
        program = Program(graph, targets, feeds)
    assert program._tiers is not None
    count = program._tiers.left
    assert 1 < count <= 1000 // 50
    found = run(program, np.float32(2))
    assert "# native: " not in program.source
    assert program._often is not None
    assert "# native: " in program._often.source
    assert program.statistics.runs == len(found)
    for values in found:
        np.testing.assert_allclose(values, found[0], rtol=1e-6)


@pytest.mark.usefixtures("soon", "loops_stay")
def test_short_loops_of_steps_that_write_stay_as_they_are() -> None:
    """The choice must not depend on how often this process has run the step."""
    graph = ab.Graph()
    with graph.as_default():
        state = ab.Variable(np.float32(1))
        update = state.assign(short_loop(state)[1])
    with least_work(LEAST_WORK):
        program = Program(graph, [update], [])
    assert program._tiers is None


@pytest.mark.usefixtures("soon", "loops_stay", "only_loops")
def test_steps_whose_loops_do_next_to_nothing_stay_as_they_are() -> None:
    graph, targets, feeds = built(
        lambda x: ab.while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, y * 2.0), (0, x)), np.float32(1)
    )
    with least_work(LEAST_WORK):
        program = Program(graph, targets, feeds)
    assert program._tiers is None


# --- whole steps ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("soon")
def test_small_steps_become_one_native_function() -> None:
    values = [draw(2, 5), *[draw(5, 5) for _ in range(4)]]
    graph, targets, feeds = built(layers_of, *values)
    program = Program(graph, targets, feeds)
    (expected,) = Program(graph, targets, feeds, exact=True)(*values)
    found = run(program, *values, runs=3 * RUNS)
    assert not program.is_native
    assert program._often is not None
    assert program._often.is_native
    assert program._tiers is None
    assert program.statistics.runs == 3 * RUNS
    results = [result for (result,) in found]
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert all(np.array_equal(result, results[0]) for result in results[: RUNS - 1])
    assert not np.shares_memory(results[-1], results[-2])


@pytest.mark.usefixtures("soon", "loops_stay")
def test_loops_become_native_first_and_then_the_whole_step() -> None:
    graph, targets, feeds = built(lambda x: [ops.sum(layers_of(short_loop(x)[1], x, x)[0] ** 2.0)], draw(3, 3))
    with least_work(LEAST_WORK):
        program = Program(graph, targets, feeds)
    kinds = []
    for _ in range(RUNS + 2):
        run(program, draw(3, 3), runs=1)
        kinds.append((program._often is not None, program._often is not None and program._often.is_native))
    assert list(dict.fromkeys(kinds)) == [(False, False), (True, False), (True, True)]


@pytest.mark.usefixtures("soon")
def test_variables_are_read_in_each_run() -> None:
    graph = ab.Graph()
    with graph.as_default():
        weights = [ab.Variable(draw(4, 4)) for _ in range(3)]
        x = ab.placeholder((2, 4), "float32")
        y = layers_of(x, *weights)[0]
    program = Program(graph, [y], [x])
    for number in range(RUNS + 5):
        for weight in weights:
            weight.assign(draw(4, 4))
        value = draw(2, 4)
        wanted = value
        for weight in weights:
            wanted = np.tanh(wanted @ np.asarray(weight) + 0.5)
        np.testing.assert_allclose(program(value)[0], wanted, rtol=1e-5, atol=1e-6)
        assert (program._often is not None) == (number + 1 >= RUNS)


def _written(x: Any) -> Any:
    return [ab.Variable(np.zeros((3, 3), "float32")).assign(layers_of(x, x, x, x)[0])]


def _random(x: Any) -> Any:
    return [ab.random.normal((3, 3)) + layers_of(x, x, x, x)[0]]


@pytest.mark.parametrize(
    ("build", "size"),
    [
        pytest.param(_written, 3, id="it writes"),
        pytest.param(_random, 3, id="it draws random numbers"),
        pytest.param(lambda x: layers_of(x, x), 3, id="there is next to nothing to save"),
        pytest.param(lambda x: layers_of(x, x, x, x, x), 300, id="kernels take longer than calls"),
    ],
)
@pytest.mark.usefixtures("soon")
def test_other_steps_stay_as_they_are(build: Callable[[Any], Any], size: int) -> None:
    graph, targets, feeds = built(build, draw(size, size))
    assert Program(graph, targets, feeds)._tiers is None


def test_exact_and_compiled_steps_stay_as_they_are() -> None:
    graph, targets, feeds = built(lambda x: layers_of(x, x, x, x, x), draw(3, 3))
    assert Program(graph, targets, feeds)._tiers is not None
    assert Program(graph, targets, feeds, exact=True)._tiers is None
    graph.compiles_whole = True
    assert Program(graph, targets, feeds)._tiers is None


@pytest.mark.usefixtures("soon")
def test_steps_that_have_no_native_form_stay_as_they_are() -> None:
    graph, targets, feeds = built(lambda x: layers_of(x, x, x, x, ops.eigh(x)[1]), draw(3, 3))
    program = Program(graph, targets, feeds)
    run(program, np.eye(3, dtype="float32"))
    assert program._often is None
    assert program._tiers is None


@pytest.mark.usefixtures("soon")
def test_errors_are_those_of_the_first_runs() -> None:
    table = draw(5, 4)

    def build(rows: Any) -> Any:
        return layers_of(ops.take(table, rows, axis=0), *[draw(4, 4) for _ in range(3)])

    graph, targets, feeds = built(build, np.zeros(3, "int32"))
    program = Program(graph, targets, feeds)
    errors: list[Exception] = []
    for _ in range(2):
        with pytest.raises(IndexError) as raised:
            program(np.array([0, 1, 9], "int32"))
        errors.append(raised.value)
        run(program, np.array([4, 3, 2], "int32"))
    assert program._often is not None
    assert str(errors[0]) == str(errors[1])
    assert errors[0].__notes__ == errors[1].__notes__
