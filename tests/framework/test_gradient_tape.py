"""GradientTape: the derivatives of TensorFlow's, over graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab

X = np.array([[0.5, -1.0], [2.0, 0.25]], "float32")


def run(compute, *values):
    return ab.function(compute)(*values)


def test_gradients_have_the_structure_of_the_sources() -> None:
    def compute(x):
        w, b = ab.Variable(X), ab.Variable([1.0, 2.0])
        with ab.GradientTape(persistent=True) as tape:
            loss = ab.ops.sum(ab.ops.matmul(x, w) ** 2 + b)
        one = tape.gradient(loss, w)
        several = tape.gradient(loss, {"w": w, "rest": (b, [w])})
        assert set(several) == {"w", "rest"}
        assert isinstance(several["rest"], tuple)
        return one, several["w"], several["rest"][0], several["rest"][1][0]

    one, w, b, again = run(compute, X)
    for found in (one, w, again):
        np.testing.assert_allclose(found, 2 * X.T @ (X @ X), rtol=1e-5)
    np.testing.assert_allclose(b, [2.0, 2.0])


def test_what_was_computed_before_the_tape_is_constant() -> None:
    def compute(x):
        w = ab.Variable(3.0)
        outside = w * x
        with ab.GradientTape() as tape:
            loss = ab.ops.sum(outside * w * x)
        return tape.gradient(loss, w)

    assert float(run(compute, np.float32(2.0))) == 12.0  # with the product outside it would be 24


def test_a_target_that_depends_on_nothing_inside_has_no_gradient() -> None:
    def compute(x):
        w, other = ab.Variable(3.0), ab.Variable(1.0)
        outside = w * x
        with ab.GradientTape(persistent=True) as tape:
            loss = outside * 2.0 * other
        assert tape.gradient(loss, [w, other])[0] is None
        return tape.gradient(loss, [w], unconnected_gradients="zero")[0]

    assert float(run(compute, np.float32(2.0))) == 0.0


def test_a_watched_result_from_outside_is_a_source() -> None:
    def compute(x):
        y = x * x
        with ab.GradientTape() as tape:
            tape.watch(y)
            z = y * y
        return tape.gradient(z, [y, x])

    with_respect_to_y, with_respect_to_x = run(compute, np.float32(3.0))
    assert float(with_respect_to_y) == 18.0
    assert with_respect_to_x is None


def test_a_pause_makes_constants_and_reset_begins_again() -> None:
    def compute(x):
        w = ab.Variable(3.0)
        with ab.GradientTape(persistent=True) as tape:
            with tape.stop_recording():
                factor = w * x
            paused = tape.gradient(factor * w, w)
            before = w * x * 1.0
            tape.reset()
            after = tape.gradient(before * w, w)
        return paused, after

    assert [float(value) for value in run(compute, np.float32(2.0))] == [6.0, 6.0]


def test_tapes_nest_to_any_order() -> None:
    def compute(x):
        with ab.GradientTape() as third:
            with ab.GradientTape() as second:
                with ab.GradientTape() as first:
                    y = x**5
                dy = first.gradient(y, x)
            ddy = second.gradient(dy, x)
        return dy, ddy, third.gradient(ddy, x)

    np.testing.assert_allclose(run(compute, np.float32(2.0)), [80.0, 160.0, 240.0], rtol=1e-5)


def test_a_gradient_penalty_as_in_wgan() -> None:
    """(|| d (x W) / dx || - 1) ** 2 differentiated by W, against the same in NumPy."""

    def compute(x):
        w = ab.Variable(np.array([[2.0], [1.0]], "float32"))
        with ab.GradientTape() as outer:
            with ab.GradientTape() as inner:
                inner.watch(x)
                scores = ab.ops.matmul(x, w)
            slope = inner.gradient(scores, [x])[0]
            penalty = ab.ops.mean((ab.ops.sqrt(ab.ops.sum(slope**2, axis=1)) - 1.0) ** 2)
        return penalty, outer.gradient(penalty, w)

    penalty, gradient = run(compute, X)
    norm = np.sqrt(5.0)
    assert float(penalty) == pytest.approx((norm - 1) ** 2, rel=1e-5)
    np.testing.assert_allclose(gradient, 2 * (norm - 1) / norm * np.array([[2.0], [1.0]]), rtol=1e-5)


def test_through_loops_and_inside_of_them() -> None:
    def compute(x):
        with ab.GradientTape() as tape:
            _, power = ab.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * x), (0, 1.0))
        return tape.gradient(power, x)

    def compute_inside(x):
        def step(i, y):
            with ab.GradientTape() as tape:
                tape.watch(y)
                value = y * y * x
            return i + 1, y - 0.1 * tape.gradient(value, y)

        return ab.while_loop(lambda i, y: i < 2, step, (0, ab.ops.ones(())))[1]

    assert float(run(compute, np.float32(2.0))) == pytest.approx(12.0)
    assert float(run(compute_inside, np.float32(2.0))) == pytest.approx(0.36, rel=1e-5)


def test_output_gradients_and_jacobians() -> None:
    def compute(x):
        with ab.GradientTape(persistent=True) as tape:
            y = x**2
        weighted = tape.gradient(y, x, output_gradients=ab.constant([1.0, 10.0]))
        return weighted, tape.jacobian(y, x)

    weighted, jacobian = run(compute, X[0])
    np.testing.assert_allclose(weighted, [1.0, -20.0])
    np.testing.assert_allclose(jacobian, np.diag(2 * X[0]))


def test_batch_jacobian() -> None:
    def compute(x):
        with ab.GradientTape() as tape:
            y = x**2
        return tape.batch_jacobian(y, x)

    np.testing.assert_allclose(run(compute, X), [np.diag(2 * row) for row in X])


def test_a_tape_is_used_once_unless_it_is_persistent() -> None:
    def compute(x):
        with ab.GradientTape() as tape:
            y = x * x
        tape.gradient(y, x)
        return tape.gradient(y, x)

    with pytest.raises(RuntimeError, match=r"used before. Make it with GradientTape\(persistent=True\)"):
        run(compute, np.float32(1.0))


def test_a_tape_must_be_entered() -> None:
    with pytest.raises(RuntimeError, match="the tape was not entered"):
        ab.GradientTape().gradient(1.0, 2.0)


def test_arrays_have_no_history() -> None:
    layer = ab.layers.Dense(2)
    with ab.GradientTape() as tape:
        y = np.asarray(layer(X))
    with pytest.raises(TypeError, match=r"target must be a tensor or a variable, got ndarray.*convert_to_tensor"):
        tape.gradient(y, layer.trainable_weights)
    with pytest.raises(TypeError, match=r"watch must be a tensor or a variable, got float"):
        tape.watch(1.0)


def test_watched_variables() -> None:
    v = ab.Variable(1.0)
    with ab.Graph().as_default(), ab.GradientTape() as tape:
        tape.watch([v, ab.constant(1.0)])
        assert tape.watched_variables() == (v,)


@pytest.mark.parametrize("traced", [False, True])
def test_variables_that_are_not_watched_have_no_gradient(traced: bool) -> None:
    """In functions as outside: moving statistics and what a tape was not given get None, or zeros."""
    v, frozen = ab.Variable(3.0), ab.Variable(2.0, trainable=False)

    def compute(x: Any) -> Any:
        with ab.GradientTape(persistent=True) as tape:
            y = x * v * frozen
        with ab.GradientTape(watch_accessed_variables=False) as other:
            other.watch(frozen)
            z = x * v * frozen
        dv, none = tape.gradient(y, [v, frozen])
        _, zero = tape.gradient(y, [v, frozen], unconnected_gradients="zero")
        missing, given = other.gradient(z, [v, frozen])
        assert none is None
        assert missing is None
        return dv, zero, given

    assert [float(x) for x in (ab.function(compute) if traced else compute)(5.0)] == [10.0, 0.0, 15.0]


def test_a_tape_is_not_entered_twice() -> None:
    v = ab.Variable(2.0)
    with ab.GradientTape() as tape:
        with pytest.raises(ValueError, match="inside of another block of this tape"), tape:
            pass
        y = v * v
    assert float(tape.gradient(y, v)) == 4.0


def test_scalars_that_are_made_alike_are_watched_apart() -> None:
    first, second = ab.ops.ones(()), ab.ops.ones(())
    with ab.GradientTape() as tape:
        tape.watch([first, second])
        y = first * first + second * 3.0 + 1.0
    assert tape.gradient(y, [first, second]) == [2, 3]


def test_a_penalty_on_gradients_through_layer_normalization() -> None:
    layers = ab.layers
    critic = ab.Sequential([ab.Input((4,)), layers.Dense(6, "tanh"), layers.LayerNormalization(), layers.Dense(1)])
    critic.set_weights([np.random.default_rng(0).normal(size=w.shape) for w in critic.weights])
    x = ab.ops.convert_to_tensor(np.random.default_rng(1).normal(size=(5, 4)).astype("float32"))

    def penalty() -> ab.Tensor:
        with ab.GradientTape() as inner:
            inner.watch(x)
            score = critic(x)
        lengths = ab.ops.norm(inner.gradient(score, x), axis=1)
        return ab.ops.mean((lengths - 1.0) ** 2)

    with ab.GradientTape() as tape:
        value = penalty()
    kernel = critic.trainable_variables[0]
    slope = tape.gradient(value, kernel).numpy()
    before, step = kernel.numpy(), 1e-2
    for place in ((0, 0), (1, 3), (3, 5)):
        moved = np.zeros_like(before)
        moved[place] = step
        kernel.assign(before + moved)
        above = float(penalty())
        kernel.assign(before - moved)
        assert (above - float(penalty())) / (2 * step) == pytest.approx(slope[place], rel=0.02, abs=1e-3)


def test_effects_in_loops_that_a_tape_does_not_record() -> None:
    """The gradient would repeat them. `vectorized_map` loops over what it can't batch."""
    v = ab.Variable(0.0, dtype="float64")

    def counted(e: Any) -> Any:
        v.assign_add(e)
        return e * 2

    x = np.array([1.0, 2.0, 4.0])
    np.testing.assert_array_equal(ab.vectorized_map(counted, x), [2.0, 4.0, 8.0])
    assert v.numpy() == 7.0
    with ab.GradientTape(), pytest.raises(RuntimeError, match=r"A tape can't record function 'mapped': it has effects"):
        ab.vectorized_map(counted, x)
    assert v.numpy() == 7.0
