"""Random sequences of the blocks of a tape, at once and in functions, against a plain account of what it records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab

ways = pytest.mark.parametrize("way", [lambda f: f, ab.function], ids=["at once", "traced"])
Way = Callable[[Callable[..., Any]], Callable[..., Any]]

ACTIONS = ("operation", "operation", "operation", "enter or leave", "pause", "constant", "forget")
SEEDS = 40
TEN = np.full(2, 10, "float32")


class Account:
    """The derivatives by `x` and `w` of what was computed while the tape recorded, as pairs; zeros for constants."""

    def __init__(self) -> None:
        self.slopes: list[tuple[float, float] | None] = []  # None: nothing recorded leads to `x` or `w`

    def product(self, values: list[float], first: int, second: int, recorded: bool) -> None:
        one, other = (self.slopes[each] if recorded else None for each in (first, second))
        if one is None and other is None:
            self.slopes.append(None)
            return
        a, b = one or (0.0, 0.0), other or (0.0, 0.0)
        pair = [p * values[second] + q * values[first] for p, q in zip(a, b, strict=True)]
        self.slopes.append((pair[0], pair[1]))


def drawn(seed: int) -> list[tuple[str, int, int]]:
    """Return actions, each with the positions of two of the values that there are then."""
    rng, count, actions = np.random.default_rng(seed), 2, [("enter or leave", 0, 0)]
    for _ in range(12):
        action = str(rng.choice(ACTIONS))
        actions.append((action, int(rng.integers(count)), int(rng.integers(count))))
        count += action in ("operation", "pause", "constant")
    is_open = len([action for action, *_ in actions if action == "enter or leave"]) % 2 == 1
    again = [] if is_open else [("enter or leave", 0, 0)]
    return [*actions, *again, ("operation", int(rng.integers(count)), count - 1)]


def played(actions: list[tuple[str, int, int]], x: Any, w: ab.Variable) -> tuple[Any, list[Any]]:
    """Do the actions, and return the last value and its gradients."""
    tape = ab.GradientTape(persistent=True)
    values, is_open = [x, w], False
    for action, first, second in actions:
        if action == "enter or leave":
            tape.__exit__() if is_open else tape.__enter__()
            is_open = not is_open
            if is_open:
                tape.watch([x, w])
        elif action == "operation":
            values.append(values[first] * values[second])
        elif action == "constant":
            values.append(ab.ops.stop_gradient(values[first] * values[second]))
        elif action == "pause":
            with tape.stop_recording():
                values.append(values[first] * values[second])
        elif action == "forget" and is_open:
            tape.reset()
            tape.watch([x, w])
    if is_open:
        tape.__exit__()
    return values[-1], tape.gradient(values[-1], [x, w])


def accounted(actions: list[tuple[str, int, int]], x: float, w: float) -> tuple[float, list[float | None]]:
    """Return what `played` is to return."""
    account, values, is_open = Account(), [x, w], False
    account.slopes = [(1.0, 0.0), (0.0, 1.0)]
    for action, first, second in actions:
        if action == "enter or leave":
            is_open = not is_open
        elif action == "forget" and is_open:
            account.slopes[2:] = [None] * (len(values) - 2)
        elif action in ("operation", "constant", "pause"):
            account.product(values, first, second, is_open and action == "operation")
            values.append(values[first] * values[second])
    return values[-1], list(account.slopes[-1] or (None, None))


@ways
@pytest.mark.parametrize("seed", range(SEEDS))
def test_only_what_was_recorded_has_derivatives(way: Way, seed: int) -> None:
    actions, w = drawn(seed), ab.Variable(1.5)
    absent: list[list[bool]] = []

    def compute(x: Any) -> Any:
        value, found = played(actions, x, w)
        absent.append([each is None for each in found])
        return [value, *[0.0 if each is None else each for each in found]]

    value, expected = accounted(actions, 0.75, 1.5)
    found = way(compute)(ab.constant(0.75))
    np.testing.assert_allclose([float(each) for each in found], [value, *[each or 0.0 for each in expected]], rtol=1e-5)
    if expected == [None, None]:
        assert absent[-1] == [True, True]


@ways
def test_a_tape_that_is_entered_again_goes_on(way: Way) -> None:
    def compute(x: Any) -> Any:
        tape = ab.GradientTape()
        with tape:
            tape.watch(x)
            y = 2 * x
        with tape:
            z = 3 * y
        return tape.gradient(z, x)

    assert float(way(compute)(ab.constant(3.0))) == 6.0


@ways
def test_a_tape_that_forgets_when_it_was_left_knows_nothing(way: Way) -> None:
    w, found = ab.Variable(3.0), list[Any]()

    def compute(x: Any) -> Any:
        with ab.GradientTape(persistent=True) as tape:
            y = w * x
        tape.reset()
        found.append(tape.gradient(y, w))
        return y

    way(compute)(ab.constant(2.0))
    assert found == [None]


@ways
def test_watched_variables_are_those_that_were_read_inside(way: Way) -> None:
    before, read, frozen = ab.Variable(2.0), ab.Variable(3.0), ab.Variable(4.0, trainable=False)
    carried, chosen, unused = ab.Variable(5.0), ab.Variable(6.0), ab.Variable(7.0)
    found: list[Any] = []

    def compute(x: Any) -> Any:
        start = before * unused
        with ab.GradientTape() as tape:
            y = x * read * frozen * before
            _, y = ab.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y * carried), (0, y))
            y = ab.cond(x > 0, lambda: y * chosen, lambda: y)
        after = y * unused
        found.append(tape.watched_variables())
        return start, after, tape.gradient(y, tape.watched_variables())

    *_, slopes = way(compute)(ab.constant(1.0))
    assert len(found[-1]) == 4
    assert set(found[-1]) == {before, read, carried, chosen}
    value = 1.0 * 3.0 * 4.0 * 2.0 * 5.0**2 * 6.0
    by_variable = {variable: float(slope) for variable, slope in zip(found[-1], slopes, strict=True)}
    wanted = {before: value / 2, read: value / 3, carried: 2 * value / 5, chosen: value / 6}
    assert by_variable == pytest.approx(wanted)


@ways
def test_variables_that_are_not_watched_are_not_listed(way: Way) -> None:
    w, other = ab.Variable(3.0), ab.Variable(2.0)
    found: list[Any] = []

    def compute(x: Any) -> Any:
        with ab.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(w)
            y = w * other * x
        found.append(tape.watched_variables())
        return tape.gradient(y, w)

    assert float(way(compute)(ab.constant(2.0))) == 4.0
    assert found[-1] == (w,)


@ways
@pytest.mark.parametrize(
    ("target", "cotangents", "expected"),
    [
        (lambda x: {"a": x * 2, "b": [x * x, (), (x * 3, [])]}, {"a": TEN, "b": [None, (), (TEN, [])]}, [54.0, 54.0]),
        (lambda x: {"a": x * 2, "b": [x * x, (), (x * 3, [])]}, [TEN, None, TEN], [54.0, 54.0]),
        (lambda x: [x * 2, x * 3], [None, [10.0, 20.0]], [32.0, 62.0]),
        (lambda x: [x * 2], [[10.0, 20.0]], [20.0, 40.0]),
        (lambda x: x * 2, [[10.0, 20.0]], [20.0, 40.0]),
        (lambda x: x * 2, TEN, [20.0, 20.0]),
        (lambda x: [x * 2, [x * 3]], None, [5.0, 5.0]),
        (lambda x: [x * 2, (None, x * 3)], [None, (None, TEN)], [32.0, 32.0]),
    ],
)
def test_cotangents_have_the_structure_of_the_target(way: Way, target: Any, cotangents: Any, expected: Any) -> None:
    def compute(x: Any) -> Any:
        with ab.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = target(x)
        with pytest.raises(ValueError, match=r"targets, but 7 output_gradients"):
            tape.gradient(y, x, output_gradients=[1.0] * 7)
        return tape.gradient(y, x, output_gradients=cotangents)

    np.testing.assert_allclose(way(compute)(ab.constant([2.0, 2.0])), expected)


@ways
def test_a_word_for_unconnected_gradients_is_checked(way: Way) -> None:
    def compute(x: Any) -> Any:
        with ab.GradientTape() as tape:
            tape.watch(x)
            y = x * 2
        return tape.gradient(y, x, unconnected_gradients="nonsense")

    with pytest.raises(ValueError, match=r"unconnected_gradients must be 'none' or 'zero', got 'nonsense'"):
        way(compute)(ab.constant(2.0))
