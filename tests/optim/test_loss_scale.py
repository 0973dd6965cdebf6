"""`LossScaleOptimizer`: when steps are left out, how the scale moves, in graphs; options, configs, errors.

Keras's numbers are in test_optimizers.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import optim
from anabranch.engine.graph import IndexedSlices


def scaled(initial_scale: float = 4.0, growth: int = 2, **options: Any) -> optim.LossScaleOptimizer:
    return optim.LossScaleOptimizer(optim.SGD(1.0, **options), initial_scale, growth)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_step_that_is_not_finite_is_left_out(bad: float):
    v, w, optimizer = ab.Variable([1.0, 1.0]), ab.Variable(1.0), scaled()
    optimizer.apply([[1.0, bad], 4.0], [v, w])
    np.testing.assert_array_equal(v.numpy(), [1.0, 1.0])
    assert (float(w), float(optimizer.dynamic_scale), int(optimizer.iterations)) == (1.0, 2.0, 0)
    optimizer.apply([[2.0, 0.0], 4.0], [v, w])
    np.testing.assert_array_equal(v.numpy(), [0.0, 1.0])
    assert (float(w), int(optimizer.step_counter), int(optimizer.iterations)) == (-1.0, 1, 1)


def test_the_scale_doubles_after_enough_finite_steps():
    w, optimizer, found = ab.Variable(0.0), scaled(growth=3), []
    for gradient in (1.0, 1.0, np.inf, 1.0, 1.0, 1.0, 1.0):
        optimizer.apply([gradient], [w])
        found.append((float(optimizer.dynamic_scale), int(optimizer.step_counter)))
    assert found == [(4, 1), (4, 2), (2, 0), (2, 1), (2, 2), (4, 0), (4, 1)]


def test_minimize_scales_and_unscales():
    """The step is built once, before the optimizer has its variables, and goes on with scales that change."""
    w, optimizer = ab.Variable(2.0), scaled(growth=1)
    with ab.Graph().as_default():
        step = optimizer.minimize(w * w * 0.25, [w])
        run = ab.Session().make_callable(step)
    for expected in (1.0, 0.5, 0.25):
        run()
        assert float(w) == expected
    assert float(optimizer.dynamic_scale) == 32.0


def test_no_update_of_averages_and_sums_in_a_step_left_out():
    w = ab.Variable(1.0)
    optimizer = scaled(use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=2)
    for gradient in (4.0, np.nan, 2.0):
        optimizer.apply([gradient], [w])
    assert float(w) == 1.0 - (4.0 / 4.0 + 2.0 / 2.0) / 2
    state = [variable.numpy() for variable in optimizer.inner_optimizer.variables]
    assert all(np.isfinite(value).all() for value in state)


def test_gradients_of_tables():
    w, optimizer = ab.Variable(np.ones((3, 2), "float32")), scaled()
    for number in (8.0, np.inf):
        optimizer.apply([IndexedSlices(np.full((1, 2), number, "float32"), np.array([1]), (3, 2))], [w])
    np.testing.assert_array_equal(w.numpy(), [[1, 1], [-1, -1], [1, 1]])
    assert float(optimizer.dynamic_scale) == 2.0


def test_missing_gradients_stay_missing():
    v, w, optimizer = ab.Variable(1.0), ab.Variable(1.0), scaled()
    with pytest.warns(UserWarning, match="Gradients do not exist for the variables"):
        optimizer.apply([4.0, None], [v, w])
    assert (float(v), float(w)) == (0.0, 1.0)
    with pytest.raises(ValueError, match="each of them is None"):
        optimizer.apply([None, None], [v, w])


def test_its_rate_and_excluded_variables_are_the_inner_optimizers():
    inner = optim.SGD(0.5, weight_decay=0.5)
    optimizer = optim.LossScaleOptimizer(inner, 1.0)
    optimizer.learning_rate = 0.25
    assert float(inner.learning_rate) == float(optimizer.learning_rate) == 0.25
    v, w = ab.Variable(1.0, name="kernel"), ab.Variable(1.0, name="bias")
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.apply([0.0, 0.0], [v, w])
    assert (float(v), float(w)) == (1.0 - 0.5 * 0.25, 1.0)


def test_scale_loss_of_a_number():
    optimizer = scaled(initial_scale=4.0)
    assert optimizer.scale_loss(2.0) == 8.0
    assert scaled().inner_optimizer.loss_scale_factor is None
    assert optim.LossScaleOptimizer(optim.SGD(loss_scale_factor=3.0)).inner_optimizer.scale_loss(1.0) == 1.0


def test_optimizers_of_several_do_not_scale_again():
    v, w = ab.Variable(1.0, name="v"), ab.Variable(1.0, name="w")
    several = optim.MultiOptimizer(optim.OptimizerMap(optim.SGD(1.0), {"v": optim.SGD(0.5)}), loss_scale_factor=5.0)
    optimizer = optim.LossScaleOptimizer(several, initial_scale=4.0)
    assert optimizer.scale_loss(2.0) == 8.0
    optimizer.apply([4.0, 4.0], [v, w])
    assert (float(v), float(w)) == (0.5, 0.0)


def test_state_is_saved_whole():
    w, optimizer = ab.Variable(1.0), scaled(momentum=0.9)
    optimizer.apply([1.0], [w])
    store: dict[str, Any] = {}
    optimizer.save_own_variables(store)
    assert len(store) == 4 + 3  # both have an iteration and a learning rate; scale and counter; the momentum
    again, v = scaled(momentum=0.9), ab.Variable(float(w))
    again.build([v])
    again.load_own_variables(store)
    for each, variable in ((optimizer, w), (again, v)):
        each.apply([1.0], [variable])
    assert float(v) == float(w)


def test_config_of_older_files_and_errors():
    config = optim.serialize(scaled())
    assert config["config"].keys() == {"name", "inner_optimizer", "initial_scale", "dynamic_growth_steps"}
    config["config"].update(weight_decay=None, use_ema=False, dynamic=True)
    assert isinstance(optim.deserialize(config).inner_optimizer, optim.SGD)
    with pytest.raises(ValueError, match=r"does not take clipnorm; give it to the inner optimizer, SGD\(clipnorm=1\)"):
        optim.LossScaleOptimizer(optim.SGD(), clipnorm=1)
    with pytest.raises(ValueError, match=r"dynamic=False is not supported. .* SGD\(loss_scale_factor=8\)"):
        optim.LossScaleOptimizer(optim.SGD(), initial_scale=8.0, dynamic=False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'scale'"):
        optim.LossScaleOptimizer(optim.SGD(), scale=1)
    with pytest.raises(ValueError, match="takes an optimizer that makes the steps; got inner_optimizer='sgd'"):
        optim.LossScaleOptimizer("sgd")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="takes an optimizer that makes the steps"):
        optim.LossScaleOptimizer(scaled())


def test_the_scale_does_not_become_infinite():
    """As with gradients that are 0: an infinite scale would have no finite gradient, and stay."""
    optimizer = optim.LossScaleOptimizer(optim.SGD(0.5), initial_scale=2.0**126, dynamic_growth_steps=1)
    w = ab.Variable([1.0])
    for _ in range(3):
        optimizer.apply([[0.0]], [w])
    assert float(optimizer.dynamic_scale) == 2.0**127
    optimizer.apply([[np.inf]], [w])
    assert float(optimizer.dynamic_scale) == 2.0**126
