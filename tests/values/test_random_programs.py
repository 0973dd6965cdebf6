"""Random structured programs on values, op by op: results, state and derivatives are those of plain NumPy.

The programs are those that tests/engine/test_random_programs.py computes in graphs.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, seed, settings
from programs.building import Computed, compute
from programs.generator import programs
from programs.meaning import Evaluation
from programs.primitives import UnsuitableError
from programs.syntax import Program
from shared.examples import examples

CHUNKS = 10
QUICK_CHUNKS = 2  # in `make test`
PROGRAMS_A_CHUNK = examples(15, 30)
LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.parametrize(
    "chunk", [pytest.param(chunk, marks=[pytest.mark.slow] if chunk >= QUICK_CHUNKS else []) for chunk in range(CHUNKS)]
)
def test_random_programs(chunk: int, tell: Callable[..., None]) -> None:
    tell("random programs on values", check_chunk(chunk, PROGRAMS_A_CHUNK))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS, 6 * CHUNKS))
def test_many_random_programs(chunk: int, tell: Callable[..., None]) -> None:
    tell("random programs on values", check_chunk(chunk, 2 * PROGRAMS_A_CHUNK))


def check_chunk(chunk: int, count: int) -> Counter[str]:
    found: Counter[str] = Counter()

    @seed(chunk)
    @settings(max_examples=count, database=None, deadline=None, derandomize=False, suppress_health_check=LARGE)
    @given(programs())
    def check(program: Program) -> None:
        check_program(replace(program, precision="float64"), found)

    check()
    assert found["second order"] > count / 3
    return found


def check_program(program: Program, found: Counter[str]) -> None:
    try:
        meaning = Evaluation(program, program.directions)
    except UnsuitableError:
        assume(False)
        raise
    computed = compute(program)
    for name, expected in meaning.outputs.items():
        close(computed.outputs[name], getattr(expected, "value", expected), f"output {name}")
    for name, variable in computed.variables.items():
        close(variable.numpy(), meaning.variables[name], name)
    check_derivatives(program, computed, found)
    found["programs"] += 1


def check_derivatives(program: Program, computed: Computed, found: Counter[str]) -> None:
    directions = [{name: d[name] for name in computed.sources} for d in program.directions]
    exact = Evaluation(program, directions).loss
    for position, direction in enumerate(directions):
        close(along(direction, computed.first), exact.part(1 << position), "first order")
    expected = exact.part(3)
    close(along(directions[1], computed.second), expected, "second order", 1e-6)
    found["second order"] += bool(abs(expected) > 1e-12)


def along(direction: dict[str, np.ndarray], parts: list) -> float:
    return float(sum(np.sum(each * part.numpy()) for each, part in zip(direction.values(), parts, strict=True)))


def close(value: object, expected: object, what: str, relative: float = 1e-8) -> None:
    np.testing.assert_allclose(np.asarray(value), np.asarray(expected), rtol=relative, atol=relative, err_msg=what)
