"""Random programs keep every bit within any memory budget; cuts of random networks are the cheapest."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st
from programs.building import build
from programs.generator import programs
from programs.meaning import Evaluation
from programs.primitives import UnsuitableError
from programs.syntax import Program
from shared.examples import examples

import anabranch as ab
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.minimum_cut import Network
from anabranch.engine.passes.memory.memory_budget import within_memory_budget
from anabranch.engine.runtime.program import Program as CompiledProgram

LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
BUDGETS = st.one_of(st.just(0), st.integers(0, 2_000_000))


def check_programs(chunk: int, count: int) -> Counter[str]:
    found: Counter[str] = Counter()

    @seed(chunk)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=LARGE)
    @given(programs(), BUDGETS)
    def check(program: Program, budget: int) -> None:
        try:
            Evaluation(program, program.directions)
        except UnsuitableError:
            assume(False)
        check_program(program, budget, found)

    check()
    return found


def check_program(program: Program, budget: int, found: Counter[str]) -> None:
    built = build(program)
    floats = [x for x in built.inputs.values() if x.dtype.kind == "f"]
    with built.graph.as_default():
        first = [
            symbol_of(ab.convert_to_tensor(g)) for g in ab.gradients(built.loss, floats, unconnected_gradients="zero")
        ]
        slope = sum([ab.ops.sum(part) for part in first], ab.constant(0.0, program.precision))
        second = [symbol_of(ab.convert_to_tensor(g)) for g in ab.gradients(slope, floats, unconnected_gradients="zero")]
    fetches = [built.loss, *first, *second]
    feeds = built.feeds(program)
    results: list[Any] = []
    for limit in (None, budget):
        with within_memory_budget(limit):
            step = CompiledProgram(built.graph, [*fetches, *built.effects], list(feeds), exact=True)
            built.reset(program)
            values = step(*feeds.values())[: len(fetches)]
        results.append([*values, *[variable.numpy() for variable in built.variables.values()]])
    found["recomputed"] += step.statistics.recomputed_bytes > 0
    found["programs"] += 1
    for value, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(value, wanted, strict=True)


@pytest.mark.parametrize("chunk", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_programs_within_budgets(chunk: int):
    assert check_programs(chunk, examples(8, 25))["recomputed"] >= examples(1, 5)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(2, 7))
def test_many_random_programs_within_budgets(chunk: int):
    assert check_programs(chunk, 60)["recomputed"] >= 10


# --- cuts -----------------------------------------------------------------------------------------------------------

Connections = list[tuple[int, int, int]]


@given(
    st.integers(2, 7),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 5)), max_size=20),
)
@settings(max_examples=examples(37, 150), deadline=None)
def test_the_cheapest_cut_is_found(places: int, drawn: Connections):
    connections = [(a % places, b % places, price) for a, b, price in drawn if a % places != b % places]
    network = Network()
    for _ in range(places - 2):
        network.place()
    for start, goal, price in connections:
        network.connect(start, goal, price)
    behind = network.cut()
    assert network.sink in behind
    assert network.source not in behind
    inner = [place for place in range(places) if place not in (network.source, network.sink)]
    sides = [{network.sink, *chosen} for count in range(len(inner) + 1) for chosen in combinations(inner, count)]
    cheapest = min(price_of(side, connections) for side in sides)
    assert price_of(behind, connections) == cheapest
    nearest = [side for side in sides if price_of(side, connections) == cheapest]
    assert all(behind <= side for side in nearest)


def price_of(behind: set[int], connections: Connections) -> int:
    return sum(price for start, goal, price in connections if start not in behind and goal in behind)


def test_a_long_way_takes_no_deep_stack():
    network = Network()
    place = network.source
    for price in range(5000, 0, -1):
        following = network.place()
        network.connect(place, following, price)
        place = following
    network.connect(place, network.sink, 1)
    assert network.cut() == {network.sink}
