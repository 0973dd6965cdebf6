"""Random structured programs, placed: every operation keeps its device, exact passes the interpreter's bits."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from programs.building import build
from programs.generator import programs
from programs.syntax import Program
from shared.examples import examples
from shared.placed_steps import CPUS, Assigned, B, Placed, at_random, everywhere, run, text, verify

import anabranch as ab
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.prepare import Step, prepare
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.place.kernels import all_operations as running_operations
from anabranch.engine.runtime.interpreter import Interpreter

LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.fixture(autouse=True)
def _four_devices() -> Generator[None]:
    ab.config.set_devices(cpu=4)
    yield
    ab.config.set_devices()


class RandomCase:
    """A random program with its first gradient, prepared in several ways."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.built = build(program)
        free = {name: v for name, v in self.built.variables.items() if name not in program.written_inside()}
        sources = [x for x in self.built.inputs.values() if x.dtype.kind == "f"] + list(free.values())
        with self.built.graph.as_default():
            found = ab.gradients(self.built.loss, sources, unconnected_gradients="zero")
            self.fetches = [*self.built.outputs.values(), *[symbol_of(ab.convert_to_tensor(part)) for part in found]]
        self.targets = [*self.fetches, *self.built.effects]
        self.feeds = self.built.feeds(program)

    def prepared(self, assign: Assigned | None, exact: bool) -> Step:
        rule = None if exact else fusion_rule()
        step = prepare(self.built.graph, self.targets, list(self.feeds), None, rule, not exact, assign)
        if assign is not None:
            verify(step, assign)
        return step

    def interpreted(self) -> list[Any]:
        self.built.reset(self.program)
        return Interpreter().run(self.built.graph, self.targets, self.feeds)[: len(self.fetches)]

    def ran(self, step: Step) -> tuple[Any, ...]:
        self.built.reset(self.program)
        return run(step, list(self.feeds.values()))


def has_unread_variables(step: Step) -> bool:
    """Test whether a loop's body does not read one of its variables."""
    running = set(running_operations(step.operations))
    loops = [operation.op for operation in running if isinstance(operation.op, While)]
    return any(parameter.operation not in running for loop in loops for parameter in loop.body.parameters)


def check_random(program: Program, assign: Callable[[], Assigned]) -> None:
    case = RandomCase(program)
    expected = case.interpreted()
    assume(all(np.all(np.isfinite(value)) for value in expected))
    for value, wanted in zip(case.ran(case.prepared(assign(), True)), expected, strict=True):
        np.testing.assert_array_equal(value, wanted)
    relative = 1e-8 if program.precision == "float64" else 1e-3
    for value, wanted in zip(case.ran(case.prepared(assign(), False)), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=relative, atol=relative)


@given(programs(), st.integers(0, 10**6), st.integers(2, 4))
@settings(max_examples=examples(15, 30), suppress_health_check=LARGE)
def test_random_programs_on_random_devices(program: Program, seed: int, count: int):
    check_random(program, lambda: at_random(seed, CPUS[:count]))


@given(programs())
@settings(max_examples=examples(6, 15), suppress_health_check=LARGE)
def test_random_programs_as_they_are_placed(program: Program):
    assume(not has_unread_variables(RandomCase(program).prepared(None, True)))  # the placer does not take these
    check_random(program, Placed)


@given(programs())
@settings(max_examples=examples(6, 15), suppress_health_check=LARGE)
def test_random_programs_on_one_device_are_prepared_as_those_that_are_not_placed(program: Program):
    case = RandomCase(program)
    # These leave placed steps alone; of "memory", places that branches share for what they save.
    with without("unroll", "ragged_batches", "slices", "memory"):
        for exact in (False, True):
            assert text(case.prepared(everywhere(B), exact)) == text(case.prepared(None, exact))
