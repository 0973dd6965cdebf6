"""Random structured programs on the dataflow machine: the bits of the interpreter, and of the compiled road.

Some run on CPUs alone, some also on devices with streams and memory of their own, which are simulated: kernels and
copies run in random legal orders there, histories move to the host and back, and memory that is let go is overwritten.

Each chunk has a seed of its own. In `make test-all` they hold enough programs that what these cover can be asserted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from programs.generator import programs
from programs.syntax import Program
from shared.examples import examples
from shared.machine_figures import assume
from shared.machines import (
    MachineCase,
    Setting,
    assert_acyclic,
    assert_crosses_once,
    assert_joined,
    assert_local,
    assert_nothing_left,
    behaviour,
    latest_step,
    settings_of_machines,
    settings_of_streams,
    structure,
)
from shared.placed_steps import CPUS

import anabranch as ab
from anabranch.engine.machine.program import MachineProgram

LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
CHUNKS = 5
QUICK_CHUNKS = 1  # of each kind in `make test`
PROGRAMS_A_CHUNK = examples(4, 16)
STREAM_PROGRAMS_A_CHUNK = examples(4, 14)
LARGE_SAMPLE = 90  # programs in which everything below occurs at least once

CONSTRUCTS = {
    "TensorArray that crosses",
    "cluster",
    "control that crosses",
    "effect in a split loop",
    "history that crosses",
    "history",
    "loop of one device beside",
    "loop that ran several times",
    "loop that ran",
    "loop without iterations",
    "one device only",
    "recursion beside",
    "result of a loop that crosses",
    "second order",
    "several iterations alive",
    "split branch by number",
    "split branch in a split loop",
    "split branch",
    "split loop in a split branch",
    "split loop in a split loop",
    "split loop on three devices",
    "split loop",
    "value that crosses in a loop",
    "variable written",
}
STREAM_CONSTRUCTS = {
    "TensorArray that crosses",
    "history moved to the host and back",
    "history that crosses",
    "kernel on a stream",
    "loop that ran several times",
    "recursion beside",
    "second order",
    "several iterations alive on a stream",
    "split branch by number",
    "split branch in a split loop",
    "split loop in a split branch",
    "split loop in a split loop",
    "stream in random order",
    "stream in real time",
    "two devices with streams",
    "value copied to a device",
    "value copied to the host",
    "variable written",
}
Coverage = Counter[str]


@pytest.fixture(autouse=True)
def _four_devices() -> Generator[None]:
    ab.config.set_devices(cpu=4)
    yield
    ab.config.set_devices()


@pytest.fixture(scope="module")
def coverage() -> Generator[Coverage]:
    """Yield what the programs of this module held, and what became of it."""
    found: Coverage = Counter()
    yield found
    if found["programs"] >= LARGE_SAMPLE:
        assert CONSTRUCTS - found.keys() == set()
        assert found["split loop"] >= found["programs"] / 3


@pytest.fixture(scope="module")
def stream_coverage() -> Generator[Coverage]:
    """The same of those that ran on streams."""
    found: Coverage = Counter()
    yield found
    if found["programs"] >= LARGE_SAMPLE:
        assert STREAM_CONSTRUCTS - found.keys() == set()
        assert found["history moved to the host and back"] >= found["programs"] / 10
        assert found["several iterations alive on a stream"] >= found["programs"] / 10


FEW = [pytest.param(chunk, marks=[pytest.mark.slow] if chunk >= QUICK_CHUNKS else []) for chunk in range(CHUNKS)]
MANY = range(CHUNKS, 6 * CHUNKS)


@pytest.mark.parametrize("chunk", FEW)
def test_random_programs_on_machines(chunk: int, coverage: Coverage, tell: Callable[..., None]):
    tell("random programs on machines", check_chunk(chunk, PROGRAMS_A_CHUNK, settings_of_machines(), coverage))


@pytest.mark.parametrize("chunk", FEW)
def test_random_programs_on_streams(chunk: int, stream_coverage: Coverage, tell: Callable[..., None]):
    count = STREAM_PROGRAMS_A_CHUNK
    tell("random programs on streams", check_chunk(chunk, count, settings_of_streams(), stream_coverage))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", MANY)
def test_many_random_programs_on_machines(chunk: int, coverage: Coverage, tell: Callable[..., None]):
    tell("random programs on machines", check_chunk(chunk, 2 * PROGRAMS_A_CHUNK, settings_of_machines(), coverage))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", MANY)
def test_many_random_programs_on_streams(chunk: int, stream_coverage: Coverage, tell: Callable[..., None]):
    count = 2 * STREAM_PROGRAMS_A_CHUNK
    tell("random programs on streams", check_chunk(chunk, count, settings_of_streams(), stream_coverage))


@given(programs(), settings_of_machines())
@settings(max_examples=examples(5, 12), suppress_health_check=[*LARGE, HealthCheck.function_scoped_fixture])
def test_random_programs_on_worker_threads(monkeypatch: pytest.MonkeyPatch, program: Program, setting: Setting):
    case = MachineCase(program, 1)
    expected = case.interpreted()
    with monkeypatch.context() as patch:
        assume(patch, long_seconds=-1.0)  # whatever an operation takes is long
        machine = case.machine(setting, exact=True)
    assert ("submit(" in machine.source) == (len(machine.machine.devices) > 1)
    for _ in range(2):
        case.assert_same(case.ran(machine), expected, setting)
        assert_nothing_left(latest_step(machine))


def check_chunk(chunk: int, count: int, spread: st.SearchStrategy[Setting], coverage: Coverage) -> Coverage:
    found: Coverage = Counter()

    @seed(chunk)
    @settings(max_examples=count, database=None, deadline=None, derandomize=False, suppress_health_check=LARGE)
    @given(programs(), spread, st.sampled_from([1, 1, 2]))
    def check(program: Program, setting: Setting, order: int) -> None:
        check_program(program, setting, order, found)

    check()
    coverage.update(found)
    # The fixtures assert what many programs hold: of a few, some may have no branch that is split.
    assert found["split loop"] > 0
    return found


def check_program(program: Program, setting: Setting, order: int, coverage: Coverage) -> None:
    setting.declare()
    case = MachineCase(program, order)
    expected = case.interpreted()
    machine = case.machine(setting, exact=True)
    check_machine(machine, setting)
    for _ in range(2):  # what a run leaves behind is taken by the next
        case.assert_same(case.ran(machine), expected, setting)
        assert_nothing_left(latest_step(machine))
    case.assert_same(case.printed(setting, exact=True), expected, setting)
    found = {"programs", *structure(machine.machine), *behaviour(latest_step(machine))}
    if program.kernels or (order == 1 and setting.places % 2):
        machine = case.machine(setting, exact=False)
        check_machine(machine, setting)
        case.assert_same(case.ran(machine), case.printed(setting, exact=False), setting)
        found |= {f"{name}, fused" for name in structure(machine.machine)}
    found |= {"second order"} if order > 1 else set()
    found |= {"stream in random order"} if setting.has_streams and setting.streams is not None else set()
    found |= {"variable written"} if case.built.effects or program.written_inside() else set()
    coverage.update(found)


def check_machine(program: MachineProgram, setting: Setting) -> None:
    machine = program.machine
    assert set(machine.devices) <= {*setting.devices, CPUS[0]}  # which is the host of the others
    assert all(f.parallel_iterations == setting.parallel_iterations for f in machine.frames)
    assert_crosses_once(machine)
    assert_local(machine)
    assert_acyclic(machine)
    if setting.clusters:
        assert_joined(machine)
