"""`Lookahead`, `MovingAverage`, `SWA` and `Frozen`: numbers of NumPy, what is skipped, errors.

What they share with all optimizers is in test_conformance.py; more of `Selective` in test_selective.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops, optim
from anabranch.engine.graph import Op, Tensor
from anabranch.engine.ops.base import apply

GRADIENTS = np.random.default_rng(0).normal(size=(7, 3))


def weights_after(optimizer: Any, gradients: Any = GRADIENTS) -> tuple[Any, list[Any]]:
    """A float64 weight that began at 1, and its values after each step."""
    w, seen = ab.Variable(np.ones(3)), []
    for gradient in gradients:
        optimizer.apply([gradient], [w])
        seen.append(w.numpy())
    return w, seen


# --- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("period", "size"), [(1, 0.5), (2, 0.25), (3, 1.0), (3, 0.0)])
def test_lookahead_against_numpy(period: int, size: float) -> None:
    optimizer = optim.Lookahead(optim.SGD(0.5), period, size)
    w, seen = weights_after(optimizer)
    fast = slow = np.ones(3)
    for number, gradient in enumerate(GRADIENTS, 1):
        fast = fast - 0.5 * gradient
        if number % period == 0:
            slow = fast = slow + size * (fast - slow)
        np.testing.assert_allclose(seen[number - 1], fast, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(optimizer.copy_of(w).numpy(), slow, rtol=1e-12, atol=1e-14)


def test_slow_weights_begin_before_the_first_step_and_constraints_hold_after_syncing() -> None:
    class Bounded(ab.Variable):
        constraint = staticmethod(lambda w: ops.minimum(w, 2.0))

    w, optimizer = Bounded([0.0]), optim.Lookahead(optim.SGD(1.0), 1, 0.5)
    optimizer.build([w])
    w.assign([4.0])  # as when weights are loaded
    optimizer.apply([[1.0]], [w])
    np.testing.assert_array_equal(optimizer.copy_of(w).numpy(), [3.0])
    np.testing.assert_array_equal(w.numpy(), [2.0])


def test_lookahead_counts_steps_and_not_calls() -> None:
    """With accumulated gradients every other call makes no step, and with a loss scale one may be left out."""
    w = ab.Variable([0.0])
    optimizer = optim.Lookahead(optim.SGD(1.0, gradient_accumulation_steps=2), 2, 0.5)
    seen: list[float] = []
    for _ in range(6):
        optimizer.apply([[-1.0]], [w])
        seen.append(float(w.numpy()[0]))
    assert seen == [0, 1, 1, 1, 1, 2]
    v, other = ab.Variable([0.0]), optim.Lookahead(optim.LossScaleOptimizer(optim.SGD(1.0), 1.0), 2, 0.5)
    seen = []
    for gradient in (-1.0, np.inf, np.nan, -1.0):
        other.apply([[gradient]], [v])
        seen.append(float(v.numpy()[0]))
    assert (seen[:3], int(other.iterations)) == ([1, 1, 1], 2)
    assert seen[3] == (1 + 4) / 2  # the scale is 1/4 after two steps that were left out


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_moving_average_against_numpy(start: int, is_dynamic: bool) -> None:
    optimizer = optim.MovingAverage(optim.SGD(0.5), 0.75, start, is_dynamic)
    w, seen = weights_after(optimizer)
    mean = np.ones(3)
    for number, value in enumerate(seen, 1):
        decay = min(0.75, (number - start) / (9 + number - start)) if is_dynamic else 0.75
        mean = value if number <= start else decay * mean + (1 - decay) * value
    np.testing.assert_allclose(optimizer.copy_of(w).numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(seen[-1], 1 - 0.5 * GRADIENTS.sum(0), rtol=1e-12)


@pytest.mark.parametrize(("start", "period"), [(1, 1), (3, 2), (8, 1)])
def test_swa_is_the_mean_of_some(start: int, period: int) -> None:
    optimizer = optim.SWA(optim.SGD(0.5), start, period)
    w, seen = weights_after(optimizer)
    chosen = seen[start - 1 :: period] or [np.ones(3)]
    np.testing.assert_allclose(optimizer.copy_of(w).numpy(), np.mean(chosen, axis=0), rtol=1e-6)


def test_swapping_twice_changes_nothing() -> None:
    optimizer = optim.SWA(optim.Adam(0.1), 2, 1)
    w, seen = weights_after(optimizer)
    optimizer.swap_weights()
    np.testing.assert_allclose(w.numpy(), np.mean(seen[1:], axis=0), rtol=1e-6)
    optimizer.swap_weights()
    np.testing.assert_array_equal(w.numpy(), seen[-1])
    optimizer.assign_average_vars([w])
    np.testing.assert_allclose(w.numpy(), np.mean(seen[1:], axis=0), rtol=1e-6)
    with pytest.raises(ValueError, match="has no state for the variables"):
        optimizer.copy_of(ab.Variable(1.0, name="other"))


def test_the_learning_rate_is_the_inner_optimizers() -> None:
    w, optimizer = ab.Variable(0.0), optim.MovingAverage(optim.SGD(1.0))
    optimizer.apply([-1.0], [w])
    optimizer.learning_rate = 0.5
    optimizer.apply([-1.0], [w])
    optimizer.learning_rate = optim.schedules.PiecewiseConstantDecay([2], [8.0, 0.25])
    optimizer.apply([-1.0], [w])  # the third step, number 2
    optimizer.apply([-1.0], [w])
    assert float(w) == 1.0 + 0.5 + 8.0 + 0.25
    assert optimizer.learning_rate == 0.25


# --- what is left out -----------------------------------------------------------------------------------------------

_runs: dict[str, int] = {}


@dataclass(frozen=True)
class _Counted(Op):
    """The input; counts how often its gradient is computed."""

    label: str
    is_gradient: bool = False

    def infer(self, *inputs: Any) -> Any:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        if self.is_gradient:
            _runs[self.label] = _runs.get(self.label, 0) + 1
        return inputs[0] * 1

    def grad(self, node: Any, *cotangents: Tensor | None) -> Any:
        (dy,) = cotangents
        assert dy is not None
        return (apply(_Counted(self.label, True), dy),)


def counting_step(optimizer: Any, variables: Any) -> Any:
    """A step that makes the sum of all squares smaller."""
    _runs.clear()
    with ab.Graph().as_default():
        loss = sum(ops.sum(apply(_Counted(variable.name), variable.value) ** 2) for variable in variables)
        return ab.Session().make_callable(optimizer.minimize(loss, variables))


def test_the_gradient_of_what_is_frozen_is_not_computed() -> None:
    w, b = ab.Variable(0.0, name="kernel"), ab.Variable(0.0, name="bias")
    step = counting_step(optim.Frozen(optim.Adam(0.5), {"kern": [(1, 3), (4, None)]}), [w, b])
    for _ in range(6):
        step()
    assert _runs == {"kernel": 2, "bias": 6}


@pytest.mark.parametrize("is_outside", [False, True])
def test_what_is_frozen_is_not_looked_at_for_its_size(is_outside: bool) -> None:
    w, b = ab.Variable(8.0, name="kernel"), ab.Variable(8.0, name="bias")
    frozen: Any = {"kern": [(1, 3), (4, None)]}
    if is_outside:
        optimizer: Any = optim.Selective(optim.Frozen(optim.SGD(0.01), frozen), 1e-3, per_variable=True)
    else:
        optimizer = optim.Frozen(optim.Selective(optim.SGD(0.01), 1e-3, per_variable=True), frozen)
    step = counting_step(optimizer, [w, b])
    for _ in range(6):
        step()
    assert _runs == {"kernel": 2, "bias": 6}


def test_frozen_variables_slots_and_decay_stand_still() -> None:
    """The numbers of the same optimizer without these steps, as far as it does not count them."""
    options: Any = {"momentum": 0.9, "weight_decay": 0.5}
    frozen = optim.Frozen(optim.SGD(0.5, **options), {"w": (2, 5), "absent|w": [(5, 6)]})
    w, v = ab.Variable(np.ones(3), name="w"), ab.Variable(np.ones(3), name="v")
    plain, u = optim.SGD(0.5, **options), ab.Variable(np.ones(3))
    for number, gradient in enumerate(GRADIENTS):
        frozen.apply([gradient, gradient], [w, v])
        if not 2 <= number < 6:
            plain.apply([gradient], [u])
    np.testing.assert_allclose(w.numpy(), u.numpy(), rtol=1e-12)
    assert not np.allclose(v.numpy(), u.numpy())
    assert int(frozen.iterations) == 7


def test_a_frozen_variable_keeps_what_its_constraint_would_change() -> None:
    class Bounded(ab.Variable):
        constraint = staticmethod(lambda w: ops.minimum(w, 2.0))

    w, optimizer = Bounded(5.0, name="w"), optim.Frozen(optim.SGD(1.0), {"w": (0, 1)})
    optimizer.apply([1.0], [w])
    assert float(w) == 5.0
    optimizer.apply([1.0], [w])
    assert float(w) == 2.0


def test_frozen_counts_updates_and_not_batches() -> None:
    w, optimizer = ab.Variable(0.0), optim.Frozen(optim.SGD(1.0, gradient_accumulation_steps=2), {"": (1, 2)})
    seen: list[float] = []
    for _ in range(6):
        optimizer.apply([-1.0], [w])
        seen.append(float(w))
    assert seen == [0, 1, 1, 1, 1, 2]


def test_two_guards_in_one_another() -> None:
    w, v = ab.Variable(0.0, name="w"), ab.Variable(0.0, name="v")
    optimizer = optim.Frozen(optim.Selective(optim.SGD(1.0), 1.0, per_variable=True), {"w": (1, 2)})
    for gradient in (1.0, 2.0, 0.5, 4.0):
        optimizer.apply([gradient, gradient], [w, v])
    assert (float(w), float(v)) == (-5.0, -7.0)


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.Lookahead("sgd"), r"Lookahead takes an optimizer .*got optimizer='sgd'. Make one first"),  # pyright: ignore[reportArgumentType]
        (lambda: optim.Lookahead(optim.LBFGS()), "LBFGS computes losses on its way. Use it alone"),
        (lambda: optim.Lookahead(optim.SGD(), 0), "Lookahead: sync_period must be at least 1; got 0"),
        (lambda: optim.Lookahead(optim.SGD(), 1, 2.0), r"slow_step_size must be in \[0, 1\]; got 2.0"),
        (lambda: optim.MovingAverage(optim.SGD(), 1.5), r"average_decay must be in \[0, 1\]; got 1.5"),
        (lambda: optim.MovingAverage(optim.SGD(), start_step=-1), "start_step must not be negative; got -1"),
        (lambda: optim.SWA(optim.SGD(), 0), "start_averaging must be at least 1, the first step; got 0"),
        (lambda: optim.SWA(optim.SGD(), 1, 0), "average_period must be at least 1; got 0"),
        (lambda: optim.Selective(optim.SGD(), -1.0), "least_norm must not be negative; got -1.0"),
        (lambda: optim.Selective(optim.SGD(), float("nan")), "least_norm must not be negative; got nan"),
        (
            lambda: optim.Frozen(optim.SGD(), {"w": (3, 3)}),
            r"for 'w' must be a pair .* 0 <= first < end.* got \(3, 3\)",
        ),
        (lambda: optim.Frozen(optim.SGD(), {"w": 3}), "for 'w' must be a pair"),
        (lambda: optim.Frozen(optim.SGD(), {"w": [(0, 1, 2)]}), "for 'w' must be a pair"),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


WRAPPED: Any = [
    optim.Lookahead,
    optim.MovingAverage,
    optim.SWA,
    lambda optimizer, **options: optim.Selective(optimizer, 0.0, **options),
    lambda optimizer, **options: optim.Frozen(optimizer, {}, **options),
]


@pytest.mark.parametrize("wrap", WRAPPED)
def test_options_of_optimizers_belong_to_the_inner_one(wrap: Any) -> None:
    with pytest.raises(ValueError, match=r"not take clipnorm; give it to the inner optimizer, SGD\(clipnorm=1.0\)"):
        wrap(optim.SGD(), clipnorm=1.0)
    with pytest.raises(ValueError, match=r"does not take learning_rate; give it to the inner optimizer"):
        wrap(optim.SGD(), learning_rate=1.0)
    with pytest.raises(TypeError, match=r"[a-zA-Z]+\(\) got an unexpected keyword argument 'clip'"):
        wrap(optim.SGD(), clip=1.0)


def test_a_pattern_that_is_found_nowhere() -> None:
    optimizer = optim.Frozen(optim.SGD(), {"kernal": (0, 9)})
    with pytest.raises(ValueError, match=r"no variable's path has 'kernal' in it; there are \['kernel'\]"):
        optimizer.apply([1.0], [ab.Variable(0.0, name="kernel")])
