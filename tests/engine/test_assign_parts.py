"""Parts of a variable that are written in its own memory: values against NumPy's, memory, errors, interference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops


def window_step_of(shape: tuple[int, ...], size: tuple[int, ...]) -> Any:
    """A variable, and a compiled step that writes a window of it and gives what the whole sums up to."""
    graph = ab.Graph()
    with graph.as_default():
        cache = ab.Variable(np.arange(np.prod(shape)).reshape(shape).astype("float32"), name="cache")
        start = ab.placeholder((len(shape),), "int32")
        new = ab.placeholder(size, "float32")
        written = ops.slice_update(cache, start, new)
        fetches = [ops.sum(written), cache.assign(written).operation]
    session = ab.Session(graph)
    return cache, lambda place, part: session.run(fetches, {start: place, new: part})[0]


def step_of(shape: tuple[int, ...], count: int, depth: int, dtype: str = "float32") -> Any:
    """A variable, and a compiled step that writes parts of it and gives what the whole sums up to."""
    graph = ab.Graph()
    with graph.as_default():
        cache = ab.Variable(np.arange(np.prod(shape)).reshape(shape).astype(dtype), name="cache")
        where = ab.placeholder((count, depth), "int32")
        new = ab.placeholder((count, *shape[depth:]), dtype)
        written = ops.scatter_update(cache, where, new)
        fetches = [ops.sum(ops.cast(written, "float64")), cache.assign(written).operation]
    session = ab.Session(graph)
    return cache, lambda places, parts: session.run(fetches, {where: places, new: parts})[0]


def address(variable: Any) -> int:
    return variable.stored_value().ctypes.data


def expected_of(before: Any, places: Any, parts: Any) -> Any:
    after = before.copy()
    for place, part in zip(places, parts, strict=True):
        after[tuple(place)] = part
    return after


@settings(max_examples=examples(15, 200), deadline=None)
@given(st.data())
def test_parts_are_written_and_nothing_else(data: Any) -> None:
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank)))
    depth, count = data.draw(st.integers(1, rank)), data.draw(st.integers(0, 4))
    dtype = data.draw(st.sampled_from(["float32", "float64", "int32", "float16", "bool"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    cache, step = step_of(shape, count, depth, dtype)
    for _ in range(2):
        places = rng.integers(0, shape[:depth], (count, depth)).astype("int32")
        parts = rng.integers(-9, 9, (count, *shape[depth:])).astype(dtype)
        wanted = expected_of(cache.numpy(), places, parts)
        total = step(places, parts)
        np.testing.assert_array_equal(cache.numpy(), wanted)
        assert total == wanted.astype("float64").sum()


def test_the_variable_keeps_its_memory():
    cache, step = step_of((3, 7, 4), 3, 2)
    before = address(cache)
    places = np.array([[0, 6], [1, 0], [2, 3]], "int32")
    for _ in range(3):
        step(places, np.ones((3, 4), "float32"))
    assert address(cache) == before


@settings(max_examples=examples(10, 100), deadline=None)
@given(st.data())
def test_a_window_is_written_and_nothing_else(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    size = tuple(data.draw(st.integers(0, room)) for room in shape)
    cache, step = window_step_of(shape, size)
    before = address(cache)
    for _ in range(2):
        start = np.array([data.draw(st.integers(0, r - s)) for r, s in zip(shape, size, strict=True)], "int32")
        part = np.random.default_rng(0).normal(size=size).astype("float32")
        wanted = cache.numpy()
        wanted[tuple(slice(a, a + s) for a, s in zip(start, size, strict=True))] = part
        total = step(start, part)
        np.testing.assert_array_equal(cache.numpy(), wanted)
        np.testing.assert_allclose(total, wanted.sum(), rtol=1e-5, atol=1e-5)
    assert address(cache) == before


def test_a_window_that_leaves_the_variable_writes_nothing():
    cache, step = window_step_of((3, 4), (2, 2))
    before = cache.numpy()
    with pytest.raises(IndexError, match="A slice from 2 of size 2 leaves axis 0, whose size is 3"):
        step(np.array([2, 0], "int32"), np.ones((2, 2), "float32"))
    np.testing.assert_array_equal(cache.numpy(), before)


def test_a_value_that_was_read_before_stays_as_it_was():
    cache, step = step_of((3, 7, 4), 1, 2)
    kept = cache.value
    copy = kept.numpy().copy()
    step(np.array([[1, 1]], "int32"), np.full((1, 4), -1, "float32"))
    np.testing.assert_array_equal(kept, copy)
    assert np.all(cache.numpy()[1, 1] == -1)


def test_what_is_out_of_bounds_writes_nothing():
    cache, step = step_of((3, 7, 4), 2, 2)
    before = cache.numpy()
    with pytest.raises(IndexError, match="index 7 is out of bounds for axis 1 with size 7"):
        step(np.array([[0, 0], [0, 7]], "int32"), np.ones((2, 4), "float32"))
    np.testing.assert_array_equal(cache.numpy(), before)


def test_a_fetched_value_is_not_changed_by_the_next_step():
    graph = ab.Graph()
    with graph.as_default():
        cache = ab.Variable(np.zeros((2, 3), "float32"))
        new = ab.placeholder((1, 3), "float32")
        written = ops.scatter_update(cache, [[1]], new)
        fetches = [written, cache.assign(written).operation, ops.sum(ops.convert_to_tensor(cache))]
    session = ab.Session(graph)
    first = session.run(fetches, {new: np.ones((1, 3), "float32")})[0]
    session.run(fetches, {new: np.full((1, 3), 5, "float32")})
    np.testing.assert_array_equal(first, [[0, 0, 0], [1, 1, 1]])


def test_programs_with_reads_and_writes_in_any_order_mean_what_the_interpreter_says():
    for seed, windows in [(76, False), (102, False), *[(k, k % 2 == 1) for k in range(examples(50, 400))]]:
        results: list[Any] = []
        for interpreted in (True, False):
            graph, fetches, variables = random_program(seed, windows)
            program = Program(graph, fetches, [])
            rounds: list[Any] = []
            for _ in range(2):
                found: Any = Interpreter().run(graph, fetches) if interpreted else program()
                rounds.append([np.array(value) for value in found if value is not None])
            results.append([*[value for each in rounds for value in each], *[each.numpy() for each in variables]])
        for ours, theirs in zip(*results, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def random_program(seed: int, windows: bool) -> tuple[Any, list[Any], list[Any]]:
    """Reads, writes of parts (or windows) and whole writes of two variables; all that is read is fetched."""
    rng = np.random.default_rng(seed)
    graph = ab.Graph()
    with graph.as_default():
        variables = [ab.Variable(np.arange(12.0).reshape(3, 4) + k, dtype="float32", name=f"v{k}") for k in range(2)]
        values: list[Any] = [ops.convert_to_tensor(each) for each in variables]
        fetches: list[Any] = []
        for _ in range(8):
            variable = variables[rng.integers(2)]
            kind = rng.integers(5)
            if kind == 0:
                values.append(ops.convert_to_tensor(variable))
            elif kind == 1:
                values.append(values[rng.integers(len(values))] * 2.0)
            elif kind == 2:
                fetches.append(ops.sum(values[rng.integers(len(values))] * 1.5))
            else:
                source = ops.convert_to_tensor(variable) if rng.integers(3) else values[rng.integers(len(values))]
                places = rng.integers(0, 3, (2, int(rng.integers(1, 3)))).astype("int32")
                parts = ops.take(values[rng.integers(len(values))], [0, 1], axis=0)
                if windows:
                    written = ops.slice_update(source, (places[0, 0], 0), parts[:1])
                else:
                    written = ops.scatter_update(source, places, parts if places.shape[1] == 1 else parts[:, 0])
                values.append(written)
                if kind == 4:
                    fetches.append(variable.assign(written).operation)
        fetches.append(ops.sum(values[-1]))
    return graph, fetches, variables
