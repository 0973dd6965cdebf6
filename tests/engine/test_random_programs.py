"""Random structured programs: graph, interpreter, compiled steps and gradients agree with plain NumPy.

A failing program is printed as pseudocode and shrunk. Each chunk has a seed of its own; chunks may run side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, seed, settings
from programs.building import Built, build
from programs.generator import programs
from programs.meaning import Evaluation
from programs.primitives import PRIMITIVES, UnsuitableError
from programs.syntax import (
    INDICES,
    INT,
    ByRow,
    Choose,
    FillArray,
    Gradient,
    Grow,
    Loop,
    MakeVariable,
    Program,
    Recurse,
    Scan,
    SetVariable,
    Split,
    Statement,
    Write,
)
from shared.examples import examples

import anabranch as ab
from anabranch.engine.graph import Symbol, TensorSpec
from anabranch.engine.graph.slices import IndexedSlices
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.containers.array_value import ArrayValue
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program as CompiledProgram

CHUNKS = 10
PROGRAMS_A_CHUNK = examples(15, 30)
QUICK_CHUNKS = 2  # in `make test`
WHOLE_CHUNKS = 1  # of these; the programs of the others run on NumPy there, each in one of three ways
LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
FIRST, SECOND, BOTH = 1, 2, 3  # the masks of a jet along two directions

Coverage = Counter[str]


LARGE_SAMPLE = 120  # programs from which shares of constructs are asserted
WHOLE_SAMPLE = 1000  # programs in which each construct occurs at least once; so it is in the first chunks

# Beside those of the primitives.
CONSTRUCTS = {
    "TensorArray filled by a loop",
    "TensorArray overwritten inside",
    "TensorArray.split",
    "batched branch without rows",
    "batched_cond",
    "batched_switch",
    "branch in loop",
    "case",
    "cond",
    "control dependencies",
    "effect inside",
    "foldl",
    "foldr",
    "gradient inside",
    "gradient of gradient",
    "gradient of what one branch uses",
    "gradient of rows (IndexedSlices)",
    "growing carry",
    "growing carry, second order",
    "kernels",
    "loop before, used in branches",
    "loop in branch",
    "loop without iterations",
    "map_fn",
    "nested loop",
    "open shapes",
    "recursion",
    "recursion inside",
    "recursion twice inside",
    "scan",
    "switch",
    "variable made inside",
    "vectorized_map",
    "written before, used in both branches",
    "written before, used in branches of different choices",
    "written before, used in one branch",
    "written before, used in one branch of two choices",
    *[definition.construct for definition in PRIMITIVES.values() if definition.construct is not None],
    *[f"{definition.construct} inside" for definition in PRIMITIVES.values() if definition.construct is not None],
}


@pytest.fixture(scope="module")
def coverage() -> Iterator[Coverage]:
    """Yield what the programs of this module held."""
    found: Coverage = Counter()
    yield found
    if found["programs"] >= LARGE_SAMPLE:
        assert found["second order"] >= found["programs"] / 2
        assert found["effect"] + found["TensorArray overwritten"] >= found["programs"] / 3
        assert found["nested loop"] + found["branch in loop"] + found["loop in branch"] >= found["programs"] / 5
    if found["programs"] >= WHOLE_SAMPLE or found["first chunks"] == CHUNKS:
        assert CONSTRUCTS - found.keys() == set()


@pytest.mark.parametrize(
    "chunk", [pytest.param(chunk, marks=[pytest.mark.slow] if chunk >= QUICK_CHUNKS else []) for chunk in range(CHUNKS)]
)
def test_random_programs(chunk: int, coverage: Coverage, tell: Callable[..., None], request: pytest.FixtureRequest):
    whole = chunk < WHOLE_CHUNKS or request.config.option.markexpr != "not slow"
    if not whole:
        request.getfixturevalue("no_compiler")
    tell("random programs", check_chunk(chunk, PROGRAMS_A_CHUNK, coverage, whole))
    coverage["first chunks"] += 1


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS, 6 * CHUNKS))
def test_many_random_programs(chunk: int, coverage: Coverage, tell: Callable[..., None]):
    tell("random programs", check_chunk(chunk, 2 * PROGRAMS_A_CHUNK, coverage))


def check_chunk(chunk: int, count: int, coverage: Coverage, whole: bool = True) -> Coverage:
    found: Coverage = Counter()

    @seed(chunk)
    @settings(max_examples=count, database=None, deadline=None, derandomize=False, suppress_health_check=LARGE)
    @given(programs())
    def check(program: Program) -> None:
        check_program(program, found, None if whole else found["programs"] % 3)

    check()
    coverage.update(found)
    # Shares of constructs are asserted by the fixture, over many programs: thirty differ too much from chunk to chunk.
    assert found["second order"] > 0
    assert found["effect"] + found["TensorArray overwritten"] > 0
    assert found["unsuitable: tie"] + found["unsuitable: overflow"] <= found["programs"]
    return found


# --- the property ---------------------------------------------------------------------------------------------------


def check_program(program: Program, coverage: Coverage, way: int | None) -> None:
    """Compare one program, and its derivatives, with what they mean.

    Args:
        program: which one.
        coverage: counts what it went through.
        way: beside the interpreter: 0, exact steps; 1, the step of a session; 2, differences. None: all of these.
    """
    try:
        meaning = Evaluation(program, program.directions)
    except UnsuitableError as reason:
        coverage[f"unsuitable: {reason}"] += 1
        assume(False)
        raise
    built = build(program)
    gradient = _Gradients(program, built)
    check_values(program, built, meaning)
    if way in (None, 0):
        check_exact(program, built, gradient)
    if way == 1 or (way is None and program.kernels):
        check_session(program, built, gradient)
    check_derivatives(program, built, gradient, meaning, coverage)
    if way in (None, 2):
        check_differences(program, built, gradient, meaning, coverage)
    coverage["programs"] += 1
    coverage["gradient of rows (IndexedSlices)"] += gradient.built_rows
    coverage.update(constructs(program))


class _Gradients:
    """Tensors for the first and second derivatives of the loss.

    Attributes:
        sources: the float inputs, and the variables for which a gradient is defined.
        first: the gradient with respect to each source.
        slope: the derivative along the program's first direction.
        second: the gradient of `slope` with respect to each source.
        built_rows: whether one of them came as IndexedSlices.
    """

    def __init__(self, program: Program, built: Built) -> None:
        free = {name: built.variables[name] for name in program.variables if name not in program.written_inside()}
        floats = {name: x for name, x in built.inputs.items() if x.dtype.kind == "f"}
        self.sources: dict[str, Any] = {**floats, **free}
        self.built_rows = False
        xs = list(self.sources.values())
        with built.graph.as_default():
            self.first = self._gradients(built.loss, xs)
            slope = ab.constant(0.0, program.precision)
            for name, part in zip(self.sources, self.first, strict=True):
                slope = slope + ab.ops.sum(part * program.directions[0][name].astype(program.precision))
            self.slope = symbol_of(slope)
            self.second = self._gradients(slope, xs)

    def _gradients(self, y: ab.Tensor, xs: list[Any]) -> list[Symbol]:
        """Dense ones: of a variable of which only elements are used they are IndexedSlices."""
        parts = ab.gradients(y, xs, unconnected_gradients="zero")
        if any(isinstance(part, IndexedSlices) for part in parts):
            self.built_rows = True
        return [symbol_of(ab.convert_to_tensor(part)) for part in parts]

    @property
    def tensors(self) -> list[Symbol]:
        return [*self.first, self.slope, *self.second]

    def along(self, direction: dict[str, Any], parts: list[Any]) -> float:
        return float(sum(np.sum(direction[n] * part) for n, part in zip(self.sources, parts, strict=True)))


def interpret(program: Program, built: Built, targets: list[Symbol], float64: bool = False) -> list[Any]:
    built.reset(program)
    values = Interpreter(float64).run(built.graph, [*targets, *built.effects], built.feeds(program))
    return values[: len(targets)]


def check_values(program: Program, built: Built, meaning: Evaluation) -> None:
    """The interpreter, in double precision, finds what the evaluator finds."""
    values = interpret(program, built, list(built.outputs.values()), float64=True)
    for (name, expected), value in zip(meaning.outputs.items(), values, strict=True):
        expected = getattr(expected, "value", expected)
        assert_close(program, value, expected, f"output {name}")
    for name, variable in built.variables.items():
        expected = meaning.variables[name]
        assert_close(program, variable.numpy(), expected, name, 1e-6)


def check_exact(program: Program, built: Built, gradient: _Gradients) -> None:
    """The compiled step computes the interpreter's very bits, each time, and returns arrays of its own."""
    fetches = [*built.outputs.values(), *gradient.tensors]
    expected = interpret(program, built, fetches)
    state = {name: variable.numpy() for name, variable in built.variables.items()}
    feeds = built.feeds(program)
    known = [TensorSpec(np.shape(value), tensor.dtype) for tensor, value in feeds.items()]
    for specs in [None, known] if program.open_shapes else [None]:
        step = CompiledProgram(built.graph, [*fetches, *built.effects], list(feeds), specs, exact=True)
        for _ in range(2):
            built.reset(program)
            values = step(*feeds.values())
            for tensor, value, wanted in zip(fetches, values, expected, strict=True):
                assert_same_bits(value, wanted, symbol_of(tensor).name)
            for name, variable in built.variables.items():
                assert_same_bits(variable.stored_value(), state[name], name)
            assert_own_memory(built, values, list(feeds.values()))


def check_session(program: Program, built: Built, gradient: _Gradients) -> None:
    """The step of a session computes what the interpreter computes, up to rounding."""
    fetches = [*built.outputs.values(), *gradient.tensors]
    expected = interpret(program, built, fetches)
    feeds = built.feeds(program)
    built.reset(program)
    values = ab.Session(built.graph).run([*fetches, *built.effects], feeds)[: len(fetches)]
    for tensor, value, wanted in zip(fetches, values, expected, strict=True):
        relative = 1e-9 if program.precision == "float64" else 1e-3
        np.testing.assert_allclose(value, wanted, rtol=relative, atol=relative, err_msg=symbol_of(tensor).name)
    assert_own_memory(built, values, list(feeds.values()))


def check_derivatives(
    program: Program, built: Built, gradient: _Gradients, meaning: Evaluation, coverage: Coverage
) -> None:
    """First and second derivatives equal those of forward mode, along random directions."""
    directions = [{name: d[name] for name in gradient.sources} for d in program.directions]
    exact = Evaluation(program, directions) if len(directions[0]) < len(program.directions[0]) else meaning
    first = interpret(program, built, gradient.first, float64=True)
    second = interpret(program, built, gradient.second, float64=True)
    for position, mask in enumerate((FIRST, SECOND)):
        found, expected = gradient.along(directions[position], first), exact.loss.part(mask)
        assert_close(program, found, expected, "first order")
    found, expected = gradient.along(directions[1], second), exact.loss.part(BOTH)
    assert_close(program, found, expected, "second order", 1e-6)
    coverage["second order"] += bool(abs(expected) > 1e-12)
    coverage["first order"] += bool(np.any([np.any(part) for part in first]))


def check_differences(
    program: Program, built: Built, gradient: _Gradients, meaning: Evaluation, coverage: Coverage
) -> None:
    """The same against central finite differences, where no branch or trip count changes on the way."""
    step = 1e-5
    direction = {name: program.directions[0][name] for name in gradient.sources}
    try:
        ahead, behind = (Evaluation(program, (), (s, direction), meaning.reads) for s in (step, -step))
    except (UnsuitableError, IndexError):
        coverage["differences: not comparable"] += 1
        return
    if not ahead.decisions == behind.decisions == meaning.decisions or program.precision != "float64":
        coverage["differences: not comparable"] += 1
        return
    slope = (ahead.loss.value - behind.loss.value) / (2 * step)
    (found,) = interpret(program, built, [gradient.slope])
    scale = 1.0 + abs(float(meaning.loss.value))
    np.testing.assert_allclose(found, slope, rtol=1e-4, atol=1e-4 * scale, err_msg="first order, differences")
    coverage["differences: first order"] += 1
    is_cut = any(PRIMITIVES[primitive].offset is not None for primitive, _ in program.calls())
    if not is_cut and not any(isinstance(s, SetVariable) for s, _ in program.statements()):
        check_second_differences(program, built, gradient, step)
        coverage["differences: second order"] += 1


def check_second_differences(program: Program, built: Built, gradient: _Gradients, step: float) -> None:
    """Differences of the engine's own first derivative, which must be that of the values.

    So there are no effects, and no functions with derivatives of their own.
    """
    session = ab.Session(built.graph)
    slopes: list[float] = []
    feeds = built.feeds(program)
    for sign in (1, -1):
        moved = dict(feeds)
        for name, tensor in built.inputs.items():
            if name in gradient.sources:
                moved[tensor] = feeds[tensor] + sign * step * program.directions[1][name]
        for name in program.variables:
            built.variables[name].assign(program.variables[name] + sign * step * program.directions[1][name])
        slopes.append(float(session.run(gradient.slope, moved)))
    built.reset(program)
    expected = (slopes[0] - slopes[1]) / (2 * step)
    found = gradient.along(program.directions[1], session.run(gradient.second, feeds))
    scale = 1.0 + abs(slopes[0])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * scale, err_msg="second order, differences")


# --- helpers --------------------------------------------------------------------------------------------------------


def assert_close(program: Program, value: Any, expected: Any, what: str, relative: float = 1e-8) -> None:
    """float32 variables round what is assigned to them, which then depends on the last bits of double precision."""
    stores = program.precision == "float32" and any(isinstance(s, SetVariable) for s, _ in program.statements())
    relative = 1e-4 if stores else relative
    np.testing.assert_allclose(value, expected, rtol=relative, atol=relative, err_msg=what)


def assert_same_bits(value: Any, expected: Any, name: str) -> None:
    assert not isinstance(expected, ArrayValue)
    assert value.dtype == expected.dtype, name
    assert value.shape == expected.shape, name
    if value.tobytes() != expected.tobytes():
        np.testing.assert_array_equal(value, expected, err_msg=name)


def assert_own_memory(built: Built, values: Sequence[Any], fed: list[Any]) -> None:
    """Neither fetched values nor variables share memory with each other's or with what was fed."""
    state = [variable.stored_value() for variable in built.variables.values()]
    fetched = [value for value in values if isinstance(value, np.ndarray)]
    for value in fetched:
        assert not any(np.may_share_memory(value, other) for other in (*state, *fed)), "a fetch shares memory"
    for value in state:
        assert not any(np.may_share_memory(value, other) for other in fed), "a variable shares memory with a feed"


def constructs(program: Program) -> set[str]:
    """Return what a program holds, for the coverage table."""
    found = {*program.notes, program.precision}
    if program.open_shapes:
        found.add("open shapes")
    if program.kernels:
        found.add("kernels")
    if program.waits:
        found.add("control dependencies")
    for primitive, around in program.calls():
        construct = PRIMITIVES[primitive].construct
        if construct is not None:
            found.update([construct, f"{construct} inside"] if around else [construct])
    for statement, around in program.statements():
        found.update(_constructs(statement, {type(outer) for outer in around}))
    return found


def _constructs(statement: Statement, inside: set[type]) -> list[str]:
    in_loop = bool(inside & {Loop, Scan})
    match statement:
        case Loop():
            return ["loop", *["nested loop"] * in_loop, *["loop in branch"] * bool(inside & {Choose, ByRow})]
        case Choose(choice, _, second):
            kind = "switch" if choice.type == INT else "cond" if second is None else "case"
            return ["branch", kind, *["branch in loop"] * in_loop]
        case ByRow(choice=choice):
            kind = "batched_switch" if choice.type == INDICES else "batched_cond"
            return [kind, f"{kind} inside"] if inside else [kind]
        case Scan(how=how):
            return [how, f"{how} inside"] if inside else [how]
        case SetVariable():
            return ["effect", "effect inside"] if inside else ["effect"]
        case MakeVariable():
            return ["variable made inside"] if inside else []
        case Write():
            return (
                ["TensorArray overwritten", "TensorArray overwritten inside"] if inside else ["TensorArray overwritten"]
            )
        case Split():
            return ["TensorArray.split"]
        case FillArray():
            return ["TensorArray filled by a loop"]
        case Gradient():
            return ["gradient inside" if inside else "gradient of gradient"]
        case Grow():
            return ["growing carry"]
        case Recurse():
            return ["recursion", "recursion inside"] if inside else ["recursion"]
        case _:
            return []
