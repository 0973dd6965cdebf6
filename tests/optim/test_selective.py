"""`Selective`: an update is made if it is large enough, and else nothing has happened."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops, optim
from anabranch.engine.graph import IndexedSlices

ROWS, WIDTH = 4, 3
# Without Lion and Lamb, whose updates are about as long as each other.
MAKERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda **o: optim.SGD(0.5, **o),
    "momentum": lambda **o: optim.SGD(0.5, 0.9, nesterov=True, **o),
    "scheduled": lambda **o: optim.SGD(optim.schedules.InverseTimeDecay(1.0, 1, 0.5), **o),
    "Adagrad": lambda **o: optim.Adagrad(0.5, **o),
    "RMSprop": lambda **o: optim.RMSprop(0.1, momentum=0.5, centered=True, **o),
    "Adam": lambda **o: optim.Adam(0.1, **o),
    "Nadam": lambda **o: optim.Nadam(0.1, **o),  # a slot of its own for all variables
    "Ftrl": lambda **o: optim.Ftrl(0.1, **o),
    "Muon": lambda **o: optim.Muon(0.1, **o),
    "Adafactor": lambda **o: optim.Adafactor(0.1, **o),
    "schedule free": lambda **o: optim.ScheduleFreeAdamW(0.1, **o),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "averages": {"use_ema": True, "ema_momentum": 0.5},
    "together": {"clipnorm": 2.0, "weight_decay": 0.1},
}


class Bounded(ab.Variable):
    constraint = staticmethod(lambda w: ops.clip(w, -2.0, 2.0))


def weights(cls: type[ab.Variable] = ab.Variable) -> list[Any]:
    rng = np.random.default_rng(0)
    return [cls(rng.normal(size=(ROWS, WIDTH)), name="kernel"), cls(rng.normal(size=WIDTH), name="bias")]


def gradients(steps: int = 9) -> list[list[Any]]:
    """Return gradients of sizes that differ from step to step and from weight to weight."""
    rng = np.random.default_rng(1)
    sizes = [np.exp(rng.normal(scale=1.5, size=2)) for _ in range(steps)]
    return [[a * rng.normal(size=(ROWS, WIDTH)), b * rng.normal(size=WIDTH)] for a, b in sizes]


def state(optimizer: Any, variables: Any) -> list[Any]:
    return [variable.numpy() for variable in (*variables, *optimizer.variables)]


class TriedAndTakenBack:
    """`Selective`'s definition in Python: make the step of the optimizer, look at it, and undo it if it is small."""

    def __init__(self, optimizer: Any, least_norm: float) -> None:
        self.optimizer = optimizer
        self.least_norm = least_norm
        self.norms: list[float] = []

    def apply(self, step: Any, variables: Any) -> None:
        self.optimizer.build(variables)
        before = state(self.optimizer, variables)
        self.optimizer.apply(step, variables)
        changes = [variable.numpy() - old for variable, old in zip(variables, before, strict=False)]
        self.norms.append(float(np.sqrt(sum(np.sum(change**2) for change in changes))))
        if not self.norms[-1] >= self.least_norm:
            for variable, old in zip((*variables, *self.optimizer.variables), before, strict=True):
                variable.assign(old)


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize(("cls", "name"), [*[(ab.Variable, name) for name in OPTIONS], (Bounded, "together")])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_updates_are_those_that_are_not_taken_back(make: Any, cls: Any, name: str) -> None:
    """With slots, averages, decay, constraints and the count of steps, for thresholds that some updates reach."""
    options, variables = OPTIONS[name], weights(cls)
    trial = TriedAndTakenBack(make(**options), 0.0)
    for step in gradients():
        trial.apply(step, variables)
    least = float(np.quantile(trial.norms, 0.12))
    expected, selective = TriedAndTakenBack(make(**options), least), optim.Selective(make(**options), least)
    others, variables = weights(cls), weights(cls)
    for step in gradients():
        expected.apply(step, others)
        selective.apply(step, variables)
        for one, other in zip(
            state(selective.inner_optimizer, variables), state(expected.optimizer, others), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
    assert 0 < int(selective.iterations) < 9
    assert int(selective.variables[0].numpy()) == 9  # calls


def test_what_is_judged_has_momentum_and_learning_rate_in_it() -> None:
    """By hand: gradients that alone would be too small are not, once there is momentum, and the other way round."""
    w, optimizer = ab.Variable(0.0), optim.Selective(optim.SGD(0.5, momentum=0.5), 1.0)
    seen: list[float] = []
    for gradient in (-1.0, -2.0, -1.0, -0.5, 3.0, 4.0):
        optimizer.apply([gradient], [w])
        seen.append(float(w))
    # Velocities: 0.5 too small; 1; 1/2 + 1/2; 1/2 + 1/4 too small; 1/2 - 3/2; -1/2 - 2.
    assert seen == [0.0, 1.0, 2.0, 2.0, 1.0, -1.5]
    assert int(optimizer.iterations) == 4


# --- where the boundary is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_variable", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_boundary_belongs_to_what_is_made(per_variable: bool, dtype: str) -> None:
    for gradient, expected in (([3.0, 4.0], [-1.5, -2.0]), ([3.0, 3.996], [0.0, 0.0]), ([0.0, -5.0], [0.0, 2.5])):
        w, optimizer = ab.Variable([0.0, 0.0], dtype=dtype), optim.Selective(optim.SGD(0.5), 2.5, per_variable)
        optimizer.apply([np.array(gradient, dtype)], [w])
        np.testing.assert_array_equal(w.numpy(), expected)


@pytest.mark.parametrize("per_variable", [False, True])
def test_squares_of_half_precision_do_not_overflow(per_variable: bool) -> None:
    """A norm of 1000, whose square is more than float16 has."""
    w, optimizer = ab.Variable([0.0], dtype="float16"), optim.Selective(optim.SGD(1.0), 2000.0, per_variable)
    optimizer.apply([np.array([1000.0], "float16")], [w])
    assert float(w.numpy()[0]) == 0.0


@pytest.mark.parametrize("per_variable", [False, True])
def test_no_norm_is_too_small_for_a_least_norm_of_zero_but_nan(per_variable: bool) -> None:
    w, b = ab.Variable([1.0, 2.0]), ab.Variable(np.zeros((0, 3)))
    optimizer = optim.Selective(optim.SGD(1.0), 0.0, per_variable)
    optimizer.apply([[0.0, 0.0], np.zeros((0, 3))], [w, b])
    assert int(optimizer.iterations) == 1
    optimizer.apply([[np.nan, 0.0], np.zeros((0, 3))], [w, b])
    np.testing.assert_array_equal(w.numpy(), [1.0, 2.0])
    assert int(optimizer.iterations) == (2 if per_variable else 1)
    optimizer.apply([[np.inf, 0.0], np.zeros((0, 3))], [w, b])
    np.testing.assert_array_equal(w.numpy(), [-np.inf, 2.0])


@pytest.mark.parametrize("per_variable", [False, True])
def test_all_variables_together_or_each(per_variable: bool) -> None:
    steps = [([3.0, 4.0], 0.0), ([3.0, 0.0], 3.0), ([5.0, 0.0], 5.0), ([4.0, 0.0], 3.0)]
    expected = ([-8.0, -4.0], -5.0, 4) if per_variable else ([-12.0, -4.0], -8.0, 3)
    w, b = ab.Variable([0.0, 0.0]), ab.Variable(0.0)
    optimizer = optim.Selective(optim.SGD(1.0), 5.0, per_variable)
    for step in steps:
        optimizer.apply(list(step), [w, b])
    assert (w.numpy().tolist(), float(b), int(optimizer.iterations)) == expected


def test_each_keeps_its_own_slots() -> None:
    """Gradients that are left out are missing in the running means, and only there."""
    kernel, bias = weights()
    selective = optim.Selective(optim.SGD(0.5, momentum=0.9, weight_decay=0.1), 4.0, per_variable=True)
    plain = [TriedAndTakenBack(optim.SGD(0.5, momentum=0.9, weight_decay=0.1), 4.0) for _ in range(2)]
    others = weights()
    for step in gradients():
        selective.apply(step, [kernel, bias])
        for optimizer, gradient, variable in zip(plain, step, others, strict=True):
            optimizer.apply([gradient], [variable])
    assert all(0 < int(optimizer.optimizer.iterations) < 9 for optimizer in plain)
    np.testing.assert_allclose(kernel.numpy(), others[0].numpy(), rtol=1e-12)
    np.testing.assert_allclose(bias.numpy(), others[1].numpy(), rtol=1e-12)


def test_a_constraint_takes_part() -> None:
    """At its bound a variable does not move, however large the step."""
    for per_variable in (False, True):
        w, optimizer = Bounded(2.0), optim.Selective(optim.SGD(1.0), 1.0, per_variable)
        optimizer.apply([-64.0], [w])
        optimizer.apply([1.0], [w])
        assert (float(w), int(optimizer.iterations)) == (1.0, 2 if per_variable else 1)


def test_two_thresholds_make_the_larger_one() -> None:
    w, optimizer = ab.Variable(0.0), optim.Selective(optim.Selective(optim.SGD(1.0), 2.0), 1.0)
    for gradient in (1.5, 2.0, 0.5):
        optimizer.apply([gradient], [w])
    assert float(w) == -2.0
    # Both: 3 and 4 count for the norm of all, and 1 does not.
    v, u = ab.Variable(0.0), ab.Variable(0.0)
    optimizer = optim.Selective(optim.Selective(optim.SGD(1.0), 2.0, per_variable=True), 5.0)
    for step in ([4.9, 1.9], [3.0, 4.0], [5.0, 1.0]):
        optimizer.apply(step, [v, u])
    assert (float(v), float(u), int(optimizer.iterations)) == (-8.0, -4.0, 2)


def test_an_optimizer_that_assigns_nothing_makes_no_update() -> None:
    class Idle(optim.Optimizer):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            del gradient, variable, learning_rate

    w, optimizer = ab.Variable(0.0), optim.Selective(Idle(), 0.5)
    optimizer.apply([1.0], [w])
    assert int(optimizer.iterations) == 0


# --- with other options and wrappers --------------------------------------------------------------------------------


def test_accumulated_gradients_are_dropped_together() -> None:
    """The second pair makes too small an update, and is no part of the third; the schedule does not see it."""
    rate = optim.schedules.PiecewiseConstantDecay([2], [1.0, 0.5])  # by batches, as Keras counts here
    w, optimizer = ab.Variable(0.0), optim.Selective(optim.SGD(rate, gradient_accumulation_steps=2), 1.0)
    seen: list[tuple[float, int]] = []
    for gradient in (-1.0, -3.0, -1.5, -0.25, -2.0, -4.0, -6.0, -2.0):
        optimizer.apply([gradient], [w])
        seen.append((float(w), int(optimizer.iterations)))
    assert seen == [(0, 0), (2, 1), (2, 1), (2, 1), (2, 1), (3.5, 2), (3.5, 2), (5.5, 3)]


def test_accumulated_gradients_with_averages() -> None:
    """Averages of what is left out do not move; so they are those of a run without it."""
    options: Any = {"gradient_accumulation_steps": 2, "use_ema": True, "ema_momentum": 0.5}
    one, other = optim.Selective(optim.SGD(1.0, **options), 1.0), optim.SGD(1.0, **options)
    w, v = ab.Variable(0.0), ab.Variable(0.0)
    for gradient in (-1.0, -3.0, -2.0, -0.0, -5.0, -1.0):
        one.apply([gradient], [w])
        other.apply([gradient], [v])
    for value, expected in zip(one.variables[1:], other.variables, strict=True):
        np.testing.assert_array_equal(value.numpy(), expected.numpy())
    before = [variable.numpy() for variable in one.variables[1:]]
    average = before[2]
    for gradient in (0.5, 0.25):
        one.apply([gradient], [w])
    assert float(w) == float(v) == 6.0
    assert float(one.variables[1].numpy()) == float(before[0])
    # The first batch of a pair moves averages whatever becomes of the pair, as it does in any optimizer.
    np.testing.assert_array_equal(one.variables[3].numpy(), (average + 6.0) / 2)


def test_gradients_are_unscaled() -> None:
    w, optimizer = ab.Variable(0.0), optim.Selective(optim.SGD(1.0, loss_scale_factor=8.0), 1.0)
    for gradient in (7.0, 8.0, np.nan):
        optimizer.apply([gradient], [w])
    assert float(w) == -1.0


@pytest.mark.parametrize("is_outside", [False, True])
@pytest.mark.parametrize("per_variable", [False, True])
def test_with_a_loss_scale_that_finds_its_size(is_outside: bool, per_variable: bool) -> None:
    """A step that is left out for its size leaves the scale alone: its gradients are finite."""
    w = ab.Variable(0.0)
    if is_outside:
        optimizer: Any = optim.Selective(optim.LossScaleOptimizer(optim.SGD(1.0), 8.0, 3), 1.0, per_variable)
    else:
        optimizer = optim.LossScaleOptimizer(optim.Selective(optim.SGD(1.0), 1.0, per_variable), 8.0, 3)
    seen: list[float] = []
    for gradient in (7.0, 8.0, np.inf, 3.0, 4.0, 7.0, 7.0):  # the scale: 8, 8, 8, 4, 4, 4, 8
        optimizer.apply([gradient], [w])
        seen.append(float(w))
    assert seen == [0, -1, -1, -1, -2, -3.75, -3.75]


@pytest.mark.parametrize("is_outside", [False, True])
def test_frozen_variables_have_no_part(is_outside: bool) -> None:
    w, b = ab.Variable(0.0, name="kernel"), ab.Variable(0.0, name="bias")
    if is_outside:
        optimizer: Any = optim.Selective(optim.Frozen(optim.SGD(1.0), {"kernel": (1, 2)}), 5.0)
    else:
        optimizer = optim.Frozen(optim.Selective(optim.SGD(1.0), 5.0), {"kernel": (1, 2)})
    seen: list[tuple[float, float]] = []
    for step in ([3.0, 4.0], [9.0, 4.0], [0.0, 5.0], [5.0, 0.0]):
        optimizer.apply(step, [w, b])
        seen.append((float(w), float(b)))
    assert seen == [(-3, -4), (-3, -4), (-3, -9), (-8, -9)]  # the second is no step, so that the third is number 1


@pytest.mark.parametrize("is_outside", [False, True])
def test_lookahead_looks_at_what_is_made(is_outside: bool) -> None:
    w = ab.Variable(0.0)
    if is_outside:
        optimizer: Any = optim.Selective(optim.Lookahead(optim.SGD(1.0), 2, 0.5), 1.0)
    else:
        optimizer = optim.Lookahead(optim.Selective(optim.SGD(1.0), 1.0), 2, 0.5)
    seen: list[float] = []
    for gradient in (-2.0, -0.5, -4.0, -0.25):
        optimizer.apply([gradient], [w])
        seen.append(float(w))
    assert seen == [2, 2, 3, 3]


@pytest.mark.parametrize("per_variable", [False, True])
def test_each_of_several_optimizers_is_judged_by_itself(per_variable: bool) -> None:
    w, v, b = (ab.Variable(0.0, name=name) for name in ("kernel", "embedding", "bias"))
    several = optim.MultiOptimizer(optim.OptimizerMap(optim.SGD(1.0), {"bias": optim.SGD(0.5)}))
    optimizer = optim.Selective(several, 5.0, per_variable)
    for step in ([3.0, 4.0, 9.0], [3.0, 3.0, 10.0]):
        optimizer.apply(step, [w, v, b])
    assert [float(variable) for variable in (w, v, b)] == ([0.0, 0.0, -5.0] if per_variable else [-3.0, -4.0, -5.0])


def test_several_optimizers_freeze_too() -> None:
    w, b = ab.Variable(0.0, name="kernel"), ab.Variable(0.0, name="bias")
    several = optim.MultiOptimizer(lambda variable: optim.SGD(1.0))  # known when it is built
    optimizer = optim.Frozen(several, {"kernel": (0, 1)})
    for _ in range(2):
        optimizer.apply([-1.0, -1.0], [w, b])
    assert (float(w), float(b)) == (1.0, 2.0)


# --- rows of tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}], ids=["plain", "decay"])
@pytest.mark.parametrize("make", [MAKERS[name] for name in ("SGD", "Adagrad", "Adam")])
@pytest.mark.parametrize("per_variable", [False, True])
@pytest.mark.parametrize("cls", [ab.Variable, Bounded])
def test_rows_count_as_the_dense_gradient_does(make: Any, per_variable: bool, cls: Any, options: Any) -> None:
    sparse, dense = (optim.Selective(make(**options), 0.5, per_variable) for _ in range(2))
    variables, others = weights(cls), weights(cls)
    for kernel, bias in gradients():
        positions = np.array([2, 0, 2])
        whole = np.zeros((ROWS, WIDTH))
        np.add.at(whole, positions, kernel[:3])
        sparse.apply([IndexedSlices(kernel[:3], positions, (ROWS, WIDTH)), bias], variables)
        dense.apply([whole, bias], others)
    for one, other in zip(state(sparse, variables), state(dense, others), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("per_variable", [False, True])
def test_the_norm_of_rows_needs_no_memory_for_the_table(per_variable: bool) -> None:
    table = ab.Variable(np.zeros((100_000, 8), "float32"))
    optimizer = optim.Selective(optim.Adagrad(1.0), 0.5, per_variable)
    step = [IndexedSlices(np.ones((2, 8), "float32"), np.array([5, 7]), table.shape)]
    optimizer.apply(step, [table])
    tracemalloc.start()
    optimizer.apply(step, [table])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000  # the table has 3.2 MB
    assert np.count_nonzero(table.numpy()) == 16


# --- in fit, saved and read -----------------------------------------------------------------------------------------


def fitted(optimizer: Any, **options: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = x @ rng.normal(size=(4, 2)).astype("float32")
    model = ab.Sequential([ab.Input((4,)), layers.Dense(2)])
    model.layers[-1].set_weights([np.zeros((4, 2)), np.zeros(2)])
    model.compile(optimizer, "mse", **options)
    model.fit(x, y, epochs=4, batch_size=8, shuffle=False, verbose=0)
    return model, (x, y)


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_fit_stops_where_updates_become_small(steps_per_execution: int) -> None:
    """Against gradients of NumPy; the loss is convex, and updates of the first epoch the largest."""
    selective = optim.Selective(optim.SGD(0.125), 0.125)
    model, (x, y) = fitted(selective, steps_per_execution=steps_per_execution)
    kernel, bias, made = np.zeros((4, 2)), np.zeros(2), 0
    for _ in range(4):
        for rows in np.split(np.arange(64), 8):
            error = (x[rows] @ kernel + bias - y[rows]) / 8
            changes = [-0.125 * (x[rows].T @ error), -0.125 * error.sum(0)]
            if np.sqrt(sum(np.sum(change**2) for change in changes)) >= 0.125:
                kernel, bias, made = kernel + changes[0], bias + changes[1], made + 1
    assert 4 < made < 28
    assert int(selective.iterations) == made
    np.testing.assert_allclose(model.layers[-1].get_weights()[0], kernel, rtol=1e-4, atol=1e-6)


def test_a_saved_run_goes_on(tmp_path: Any) -> None:
    model, (x, y) = fitted(optim.Selective(optim.Adam(0.01), 0.025))
    made = int(model.optimizer.iterations)
    assert 0 < made < 32
    model.save(tmp_path / "model.keras")
    again = ab.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, again):
        each.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for one, other in zip(state(again.optimizer, again.weights), state(model.optimizer, model.weights), strict=True):
        np.testing.assert_array_equal(one, other)


def test_several_optimizers_take_no_list():
    pairs: Any = [(optim.SGD(), "kernel"), (optim.Adam(), "bias")]
    with pytest.raises(TypeError, match=r"must be an OptimizerMap, or a function .* got list: OptimizerMap"):
        optim.MultiOptimizer(pairs)
