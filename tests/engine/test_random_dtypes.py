"""Random programs of mixed dtypes and views, in loops, too, and over variables: all ways to run have the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from programs.mixed_dtypes import Choice, draw, fitted, grow, placeholders, repeat, settled
from shared.examples import examples

import anabranch as ab
from anabranch.engine.common.dtypes import is_floating
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops
PROGRAMS = examples(50, 500)
CHUNKS = [pytest.param(chunk, marks=[pytest.mark.slow] if chunk else []) for chunk in range(10)]


@dataclass
class Built:
    """A program.

    Attributes:
        feeds: its placeholders, with their values.
        targets: what may be fetched: tensors, and operations that write variables.
        variables: with their first values.
        text: what a failure prints.
    """

    feeds: dict[Any, Any]
    targets: list[Any]
    variables: list[tuple[ab.Variable, Any]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


def same_bits(value: Any, other: Any) -> bool:
    """Test whether two values are the same, but for the signs of zeros."""
    value, other = np.asarray(value), np.asarray(other)
    if value.dtype != other.dtype or value.shape != other.shape:
        return False
    return bool(np.all((value == other) | ((value != value) & (other != other))))


def check(built: Built, fetched: Sequence[Sequence[int]]) -> None:
    """Compare steps with the interpreter: their results, and the state that they leave, one after another."""
    graph = built.targets[0].graph
    runs = [[built.targets[k] for k in targets] for targets in fetched]

    def observed(run: Callable[[list[Any]], Any]) -> list[list[Any]]:
        for variable, first in built.variables:
            variable.assign(first.copy())
        found = []
        for targets in runs:
            values = [np.array(value) for value in run(targets) if value is not None]
            found.append([*values, *[variable.numpy() for variable, _ in built.variables]])
        return found

    expected = observed(lambda targets: Interpreter().run(graph, targets, built.feeds))
    session, exact = ab.Session(graph), dict[Any, Any]()

    def run_exactly(targets: list[Any]) -> Any:
        key = tuple(map(id, targets))
        if key not in exact:
            exact[key] = Program(graph, targets, list(built.feeds), exact=True)
        return exact[key](*built.feeds.values())

    for way, run in (("session", lambda targets: session.run(targets, built.feeds)), ("exact", run_exactly)):
        for number, (values, others) in enumerate(zip(observed(run), expected, strict=True)):
            for place, (value, other) in enumerate(zip(values, others, strict=True)):
                message = f"{way}: run {number} of {fetched}, value {place}: {value!r}, expected {other!r}"
                assert same_bits(value, other), "\n".join([*built.text, message])


def some(random: np.random.Generator, targets: Sequence[Any]) -> list[int]:
    return [int(k) for k in random.choice(len(targets), int(random.integers(1, 6)))]


def inputs(random: np.random.Generator, is_open: bool = False) -> tuple[Built, list[Any]]:
    """Return a program that has placeholders, and its values."""
    feeds = placeholders(random, int(random.integers(2, 5)), is_open)
    return Built(feeds, [], text=[f"{k} = {symbol.spec}" for k, symbol in enumerate(feeds)]), [*feeds]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_operations(chunk: int) -> None:
    for number in range(PROGRAMS):
        random = np.random.default_rng([1, chunk, number])
        with ab.Graph().as_default():
            built, values = inputs(random)
            built.text += map(str, grow(random, values, int(random.integers(3, 16))))
            built.targets = [symbol_of(value) for value in values]
        check(built, [some(random, values), [len(values) - 1]])


# --- loops ------------------------------------------------------------------------------------------------------------


def looped(random: np.random.Generator, values: list[Any], depth: int) -> tuple[str, Callable[..., list[Any]]]:
    """Return a loop over some of `values`, as text and as a function of their like; depth 0 holds no further one."""
    carried, captured = some(random, values)[:3], some(random, values)[:3]
    specs = [(tuple(values[k].shape), values[k].dtype) for k in carried]
    trips = int(random.choice([0, 1, 2, 5, 20, 33]))
    with ab.Graph().as_default():
        shapes = [((), np.dtype("int32")), *specs, *[(values[k].shape, values[k].dtype) for k in captured]]
        inside: list[Any] = [ab.placeholder(shape, dtype) for shape, dtype in shapes]
        first = len(inside)
        body = [*grow(random, inside, int(random.integers(1, 9)))]
        inner = looped(random, inside, depth - 1) if depth and random.random() < 0.5 else None
        if inner:
            inside += inner[1](*inside)
    updates = [int(random.integers(min(first, len(inside) - 1), len(inside))) for _ in specs]
    bound = int(random.integers(first)) if random.random() < 0.3 else None

    def run(*outer: Any) -> list[Any]:
        def step(i: Any, *state: Any) -> tuple[Any, ...]:
            own = [i, *state, *[outer[k] for k in captured]]
            repeat(body, own)
            if inner:
                own += inner[1](*own)
            return (i + 1, *[fitted(own[k], *spec) for k, spec in zip(updates, specs, strict=True)])

        def goes_on(i: Any, *state: Any) -> Any:
            if bound is None:
                return i < trips
            watched = [i, *state, *[outer[k] for k in captured]][bound]
            return ops.logical_and(i < trips, ops.sum(settled(ops.cast(watched, "float32"))) < 40)

        return [*ab.while_loop(goes_on, step, (ops.cast(0, "int32"), *[outer[k] for k in carried]))]

    text = f"loop of {trips}, bound {bound}: {carried}; {captured}: {', '.join(map(str, body))}; {updates}"
    return text + (f" ({inner[0]})" if inner else ""), run


@pytest.mark.parametrize("chunk", CHUNKS)
def test_loops(chunk: int) -> None:
    for number in range(PROGRAMS):
        random = np.random.default_rng([2, chunk, number])
        with ab.Graph().as_default():
            built, values = inputs(random)
            text, loop = looped(random, values, 1)
            values += loop(*values)
            built.text += [text, *map(str, grow(random, values, int(random.integers(4))))]
            built.targets = [symbol_of(value) for value in values]
        check(built, [[len(built.feeds) + 1, *some(random, values)]] * 2)


# --- variables --------------------------------------------------------------------------------------------------------


def write(random: np.random.Generator, variable: Any, x: Any) -> tuple[str, Any]:
    """Write a variable as a whole, in parts, moved, in a branch or in a loop; return how, and the tensor."""
    shape, dtype = tuple(variable.shape), variable.dtype
    value, rows = fitted(x, shape, dtype), shape[0] if shape and shape[0] else 0
    ids = random.integers(0, rows, int(random.integers(1, 6))) if rows else np.zeros(0, "int64")
    start = int(random.integers(0, rows)) if rows else 0

    def scattered(name: str) -> Callable[[], Any]:
        slices = ab.IndexedSlices(ops.take(value, ids, axis=0), ops.convert_to_tensor(ids), shape) if rows else None
        return lambda: getattr(variable, name)(slices)

    def moved(change: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: variable.assign(change(variable.value))

    def add(i: Any, total: Any) -> tuple[Any, Any]:
        variable.assign(fitted(variable.value * 2 - value, shape, dtype))
        return i + 1, fitted(total + variable.value, shape, dtype)

    ways: dict[str, Callable[[], Any]] = {"assign": lambda: variable.assign(value)}
    ways["branch"] = lambda: ab.cond(
        ops.sum(settled(ops.cast(x, "float32"))) > 1,
        lambda: variable.assign(value),
        lambda: ops.convert_to_tensor(variable),
    )
    if dtype != np.bool_:
        ways["assign_add"] = lambda: variable.assign_add(value)
        ways["loop"] = lambda: ab.while_loop(lambda i, _: i < 5, add, (0, variable.value))[1]
    if rows:
        ways["roll"] = moved(lambda t: ops.roll(t, 1, axis=0))
        ways["flip"] = moved(lambda t: ops.flip(t, axis=-1))
        ways["shift"] = moved(lambda t: ops.concatenate([t[1:], value[:1]], axis=0))
        ways["slice"] = moved(lambda t: ops.slice_update(t, (start, *[0] * (len(shape) - 1)), value[start:]))
        if dtype != np.bool_:
            ways.update({name: scattered(name) for name in ("scatter_add", "scatter_sub", "scatter_update")})
    name = [*ways][int(random.integers(len(ways)))]
    return name, ways[name]()


@pytest.mark.parametrize("chunk", CHUNKS)
def test_variables(chunk: int) -> None:
    """Steps that fetch other targets each time write and read variables, some under control dependencies."""
    for number in range(PROGRAMS):
        random = np.random.default_rng([3, chunk, number])
        with ab.Graph().as_default():
            built, values = inputs(random)
            add_variables(random, built, values)
            effects: list[Any] = []
            for _ in range(int(random.integers(4, 16))):
                waits = (
                    [symbol_of(values[int(random.integers(len(values)))]).operation] if random.random() < 0.2 else []
                )
                with ab.control_dependencies(waits):
                    effects += add_statement(random, built, values)
            built.targets = [*[symbol_of(value) for value in values], *effects]
        steps = [some(random, values) for _ in range(3)]
        for step in steps:
            step += [len(values) + k for k in range(len(effects)) if random.random() < 0.7]
        check(built, [steps[k] for k in (0, 1, 0, 2, 0, 1)])


def add_variables(random: np.random.Generator, built: Built, values: Sequence[Any]) -> None:
    """Add variables like some of the values, so that these can be written."""
    for _ in range(int(random.integers(1, 4))):
        like = values[int(random.integers(len(values)))]
        first = draw(random, tuple(like.shape), like.dtype.name)
        if is_floating(like.dtype) or first.dtype.itemsize < 8:
            built.variables.append((ab.Variable(first, dtype=like.dtype), first))
            built.text.append(f"variable {like.spec}")


def add_statement(random: np.random.Generator, built: Built, values: list[Any]) -> list[Any]:
    """Add an operation, a read, or a write of a variable; return what of it is to be fetched for its effect."""
    share = random.random() if built.variables else 0
    if share < 0.4:
        grown: list[Choice] = [*grow(random, values, 1)]
        built.text += map(str, grown)
        return []
    place = int(random.integers(len(built.variables)))
    variable = built.variables[place][0]
    if share < 0.55:
        values.append(ops.convert_to_tensor(variable))
        built.text.append(f"{len(values) - 1} = variable {place}")
        return []
    taken = int(random.integers(len(values)))
    name, written = write(random, variable, values[taken])
    values.append(settled(written))
    built.text.append(f"{len(values) - 1} = {name} of variable {place} with {taken}")
    return [symbol_of(written).operation]
