"""Native loops that draw random numbers: the numbers of the ops, by keys in program order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.ops.random.keys import SeedGenerator
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")

ops, random = ab.ops, ab.random
Draw = Callable[[tuple[int, ...], str, SeedGenerator], Any]

DRAWS: dict[str, Draw] = {
    "uniform": lambda shape, dtype, seed: random.uniform(shape, dtype=dtype, seed=seed),
    "uniform in a range": lambda shape, dtype, seed: random.uniform(shape, -2.5, 1, dtype=dtype, seed=seed),
    "uniform below the next number": lambda shape, dtype, seed: random.uniform(shape, 1, 1 + 2e-7, dtype, seed=seed),
    "uniform in nothing": lambda shape, dtype, seed: random.uniform(shape, 3.0, 3.0, dtype=dtype, seed=seed),
    "normal": lambda shape, dtype, seed: random.normal(shape, dtype=dtype, seed=seed),
    "normal of a mean": lambda shape, dtype, seed: random.normal(shape, 2.0, 0.1, dtype=dtype, seed=seed),
    "truncated normal": lambda shape, dtype, seed: random.truncated_normal(shape, 2.0, 0.1, dtype=dtype, seed=seed),
    "random order": lambda shape, dtype, seed: (
        random.shuffle(np.arange(15, dtype=dtype), seed=seed)[:3] @ np.eye(3, dtype=dtype)[0] * ops.ones(shape, dtype)
    ),
    "dropout": lambda shape, dtype, seed: random.dropout(ops.ones(shape, dtype), 0.3, seed=seed),
    "integers": lambda shape, dtype, seed: ops.cast(random.randint(shape, -3, 11, seed=seed), dtype),
    "wide integers": lambda shape, dtype, seed: ops.cast(
        random.randint(shape, -(2**40), 2**41, dtype="int64", seed=seed), dtype
    ),
}


def looped(draw: Draw, shape: tuple[int, ...], dtype: str, seed: SeedGenerator) -> tuple[Any, list[Any], list[Any]]:
    """A loop that adds up weighted draws: its graph, what is fetched, with a gradient, and what is fed."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder(shape, dtype)

        def body(i: Any, y: Any) -> tuple[Any, ...]:
            return i + 1, y * 0.5 + draw(shape, dtype, seed) * ops.cast(i + 1, dtype) * (x * 0.1 + 1)

        _, y = ab.while_loop(lambda i, _: i < 5, body, (0, x))
        return graph, [y, *ab.gradients(ops.sum(y * y), [x])], [x]


def check_like_exact(
    graph: Any, targets: Sequence[Any], feeds: Sequence[Any], value: Any, seed: SeedGenerator, native: int = 2
) -> None:
    program, exact = Program(graph, targets, feeds), Program(graph, targets, feeds, exact=True)
    assert program.source.count("# native: ") == native, program.source
    for _ in range(2):
        state = seed.state
        wanted, after = exact(value), seed.state
        seed.state = state
        for result, expected in zip(program(value), wanted, strict=True):
            assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * (1 + np.abs(expected).max(initial=0)))
        np.testing.assert_array_equal(seed.state, after)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", DRAWS)
def test_a_loop_that_draws(name: str, dtype: str) -> None:
    seed = SeedGenerator(-7)
    graph, targets, feeds = looped(DRAWS[name], (3, 5), dtype, seed)
    check_like_exact(graph, targets, feeds, np.linspace(-1, 1, 15, dtype=dtype).reshape(3, 5), seed)


@settings(max_examples=examples(8, 200), deadline=None)
@given(
    shape=st.lists(st.integers(0, 7), max_size=3).map(tuple),
    name=st.sampled_from(sorted(DRAWS)),
    state=st.integers(-(2**63), 2**63 - 1),
)
def test_generated(shape: tuple[int, ...], name: str, state: int) -> None:
    """Any shape, a scalar and one without elements among them, and any seed."""
    seed = SeedGenerator(state)
    graph, targets, feeds = looped(DRAWS[name], shape, "float32", seed)
    program, exact = Program(graph, targets, feeds), Program(graph, targets, feeds, exact=True)
    value = np.full(shape, 0.25, "float32")
    wanted, after = exact(value), seed.state
    seed.state = (state, 0)

    for result, expected in zip(program(value), wanted, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * (1 + np.abs(expected).max(initial=0)))
    np.testing.assert_array_equal(seed.state, after)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_classes_are_drawn_by_their_logits(dtype: str) -> None:
    """Rows of which some classes never come, the first and the last one among them."""
    seed, inf = SeedGenerator(11), np.inf
    logits = np.array([[0, 1, 2, -1], [-inf, 3, 3, -inf], [-inf, -inf, -inf, 5], [80, 0, -inf, 81]], dtype)
    with ab.Graph().as_default() as graph:
        x = ab.placeholder(logits.shape, dtype)

        def body(i: Any, counts: Any, one: Any) -> tuple[Any, ...]:
            drawn = random.categorical(x, 20, seed=seed)
            first = random.categorical(x * 0.5, 1, dtype="int64", seed=seed)
            return i + 1, counts + ops.sum(ops.one_hot(drawn, 4, dtype="int32"), axis=1), one + first

        start = (0, np.zeros((4, 4), "int32"), np.zeros((4, 1), "int64"))
        _, counts, one = ab.while_loop(lambda i, *_: i < 50, body, start)
    check_like_exact(graph, [counts, one], [x], logits, seed, native=1)
    counts = Program(graph, [counts], [x])(logits)[0]
    assert counts.sum(1).tolist() == [1000] * 4
    np.testing.assert_allclose(counts[0] / 1000, np.exp(logits[0]) / np.exp(logits[0]).sum(), atol=0.05)
    assert (counts[np.isneginf(logits)] == 0).all()


def test_logits_without_probabilities_are_left_to_python() -> None:
    seed = SeedGenerator(1)
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((1, 3), "float32")
        y = ab.while_loop(
            lambda i, _: i < 3,
            lambda i, y: (i + 1, y + random.categorical(x, 2, seed=seed)),
            (0, ops.zeros((1, 2), int)),
        )[1]
    program, exact = Program(graph, [y], [x]), Program(graph, [y], [x], exact=True)
    for special in (np.nan, np.inf, -np.inf):
        value = np.full((1, 3), special, "float32")
        seed.state = (1, 0)
        with np.errstate(all="ignore"):
            (expected,) = exact(value)
            seed.state = (1, 0)
            np.testing.assert_array_equal(program(value)[0], expected)
        assert seed.state[1] == 3


def test_draws_in_branches_of_a_loop() -> None:
    """Each iteration draws as often as its branch does."""
    seed = SeedGenerator(3)
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((4,), "float32")

        def body(i: Any, y: Any) -> tuple[Any, ...]:
            two = lambda: random.normal((4,), seed=seed) + random.uniform((4,), seed=seed)  # noqa: E731
            return i + 1, ab.cond(i % 3 == 0, two, lambda: random.uniform((4,), seed=seed)) + y * 0.5

        y = ab.while_loop(lambda i, _: i < 7, body, (0, x))[1]
    check_like_exact(graph, [y], [x], np.ones(4, "float32"), seed, native=1)
    assert seed.state[1] == 2 * (3 * 2 + 4)


def test_no_key_is_given_twice_if_another_thread_draws_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop runs again, behind the other's key."""
    seed = SeedGenerator(5)
    graph, targets, feeds = looped(DRAWS["uniform"], (3,), "float32", seed)
    program, exact = Program(graph, targets, feeds), Program(graph, targets, feeds, exact=True)
    value = np.ones(3, "float32")
    seed.state = (5, 1)
    wanted = exact(value)
    seed.state = (5, 0)
    drawn: list[Any] = []
    advance_all = SeedGenerator.advance_all

    def meanwhile(keys: Any) -> bool:
        drawn.append(seed.next())
        return advance_all(keys)

    monkeypatch.setattr(SeedGenerator, "advance_all", staticmethod(meanwhile))
    for result, expected in zip(program(value), wanted, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert [tuple(key) for key in drawn] == [(5, 0)]
    assert tuple(seed.state) == (5, 6)


def test_keys_are_advanced_all_or_none() -> None:
    first, second = SeedGenerator(1), SeedGenerator(2)
    second.next()

    assert not SeedGenerator.advance_all([(first, [1, 0], [1, 3]), (second, [2, 0], [2, 3])])
    assert (first.state[1], second.state[1]) == (0, 1)
    assert SeedGenerator.advance_all([(first, [1, 0], [1, 3]), (second, [2, 1], [2, 3])])
    assert (first.state[1], second.state[1]) == (3, 3)
