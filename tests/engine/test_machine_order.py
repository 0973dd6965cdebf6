"""A seed draws the order in which the dataflow machine runs what is ready; the same seed draws the same order."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from programs.generator import programs
from programs.syntax import Program
from shared.examples import examples
from shared.machines import Log, MachineCase, Setting, as_asked, assert_same_bits, run, settings_of_machines

import anabranch as ab
from anabranch import ops
from anabranch.engine.common.machine_profile import machine_profile
from anabranch.engine.graph import Tensor
from anabranch.engine.machine.program import MachineProgram

LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.fixture(autouse=True)
def _four_devices() -> Generator[None]:
    ab.config.set_devices(cpu=4)
    yield
    ab.config.set_devices()


class Wide:
    """Chains side by side on four devices, in a loop in a loop, each of which notes where it is."""

    def __init__(self) -> None:
        self.log = Log()
        with ab.Graph().as_default() as self.graph:
            self.x = ab.placeholder((), "float32", "x")
            start = (0, *[self.x] * 4)
            self.results = ab.while_loop(lambda i, *_: i < 3, self._outer, start, name="outer")[1:]

    def _outer(self, i: Tensor, *values: Tensor) -> Any:
        inner = ab.while_loop(lambda j, *_: j < 3, self._inner, (0, *values), name="inner")
        return i + 1, *inner[1:]

    def _inner(self, j: Tensor, *values: Tensor) -> Any:
        found: list[Tensor] = []
        for number, value in enumerate(values):
            with ab.device(f"cpu:{number}"):
                found.append(self.log.note(f"on {number}", j, ops.tanh(value) + 0.25))
        return j + 1, *found

    def program(self, seed: int | None, **options: Any) -> MachineProgram:
        return MachineProgram(self.graph, self.results, [self.x], exact=True, assign=as_asked(), seed=seed, **options)

    def order(self, program: MachineProgram) -> list[tuple[str, int]]:
        self.log.entries.clear()
        self.found = run(program, [np.float32(0.5)])
        return list(self.log.entries)


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("seed", [None, 0, 1, 12345])
def test_a_seed_repeats_the_order(seed: int | None, clusters: bool):
    """In runs of one program, and of another one that is made the same way."""
    wide = Wide()
    program = wide.program(seed, clusters=clusters)
    first = wide.order(program)
    assert len(first) == 4 * 9
    assert wide.order(program) == first
    assert wide.order(wide.program(seed, clusters=clusters)) == first
    again = Wide()
    assert again.order(again.program(seed, clusters=clusters)) == first


def test_seeds_draw_orders_of_their_own():
    wide = Wide()
    orders = [tuple(wide.order(wide.program(seed))) for seed in (None, *range(8))]
    assert len(set(orders)) == 9
    results: set[bytes] = set()
    for seed in range(8):
        wide.order(wide.program(seed))
        results.add(np.asarray(wide.found).tobytes())
    assert len(results) == 1


def test_an_error_does_not_change_the_order_of_the_next_run():
    wide = Wide()
    with wide.graph.as_default(), ab.device("cpu:3"):
        total = ops.numpy_function(_refuse_negative, [wide.x + wide.results[0]], "float32", stateful=False, shape=())
    wide.results = [*wide.results, total]
    program = wide.program(3)
    first = wide.order(program)
    with pytest.raises(ValueError, match="negative"):
        run(program, [np.float32(-100)])
    assert wide.order(program) == first


@pytest.mark.parametrize("seed", [None, 7])
def test_a_seed_does_not_depend_on_the_clock(seed: int | None, monkeypatch: pytest.MonkeyPatch):
    """Operations that took long run on a thread from the next run on; but then the order would be another one."""
    profile = replace(machine_profile(), long_measured_seconds=0.0)
    monkeypatch.setattr("anabranch.engine.machine.program.machine_profile", lambda: profile)
    wide = Wide()
    program = wide.program(seed)
    first = wide.order(program)
    assert (not program._long) == (seed is not None)
    if seed is not None:
        assert wide.order(program) == first


def _refuse_negative(x: Any) -> Any:
    if x < 0:
        raise ValueError("negative")
    return x


@given(programs(), settings_of_machines())
@settings(max_examples=examples(4, 10), suppress_health_check=LARGE)
def test_a_step_is_lowered_and_printed_in_one_way(program: Program, setting: Setting):
    """So that a seed draws one order, wherever in memory things are."""
    case = MachineCase(program, 1)
    first, second = (case.machine(setting, exact=True) for _ in range(2))
    assert first.source == second.source
    one, other = case.ran(first), case.ran(second)
    for value, wanted in zip(one[0], other[0], strict=True):
        assert_same_bits(value, wanted, "fetch")
