"""Layers, metrics and optimizers as pure functions of their state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers

X = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(6, 1)).astype("float32")


def model() -> Any:
    made = ab.Sequential(
        [ab.Input((3,)), layers.Dense(4, "tanh", kernel_regularizer="l2"), layers.BatchNormalization(), layers.Dense(1)]
    )
    for weight in made.weights:
        weight.assign(np.random.default_rng(2).uniform(0.5, 1.5, weight.shape).astype("float32"))
    return made


def values(variables: Any) -> list[Any]:
    return [variable.numpy() for variable in variables]


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_stateless_call_is_a_call_that_changes_nothing(symbolic: bool) -> None:
    plain, pure = model(), model()
    before = values(pure.weights)
    given = values(pure.trainable_variables), values(pure.non_trainable_variables)
    for weight in pure.weights:  # the values count, not what the weights hold
        weight.assign(np.full(weight.shape, 9.0, "float32"))
    if symbolic:
        with ab.Graph().as_default():
            found = pure.stateless_call(*given, ab.constant(X), training=True, return_losses=True)
            outputs, after, losses = ab.Session().run(found)
    else:
        outputs, after, losses = pure.stateless_call(*given, X, training=True, return_losses=True)
    np.testing.assert_allclose(outputs, plain(X, training=True), rtol=1e-5)
    for got, expected in zip(after, values(plain.non_trainable_variables), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert not np.array_equal(after[0], before[4])  # the moving mean has moved
    np.testing.assert_allclose(losses[0], 0.01 * np.sum(before[0] ** 2), rtol=1e-5)
    assert all((weight.numpy() == 9.0).all() for weight in pure.weights)


def test_gradients_flow_to_the_values() -> None:
    pure = model()
    with ab.Graph().as_default():
        symbols = [ab.placeholder(variable.shape) for variable in pure.trainable_variables]
        outputs, _ = pure.stateless_call(symbols, pure.non_trainable_variables, X)
        found = ab.gradients(ab.ops.sum(outputs), symbols)
        feeds = dict(zip(symbols, values(pure.trainable_variables), strict=True))
        pure_gradients = ab.Session().run(found, feeds)
        expected = ab.Session().run(ab.gradients(ab.ops.sum(pure(X)), pure.trainable_variables))
    for got, wanted in zip(pure_gradients, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_variable_reads_as_what_was_assigned_to_it_also_for_gradients() -> None:
    v = ab.Variable(3.0, name="v")
    with ab.Graph().as_default(), ab.StatelessScope():
        before = v * 5.0
        v.assign(ab.ops.stop_gradient(v / 2.0))
        found = ab.Session().run(ab.gradients(before + v * v, [v])[0])
    assert float(found) == 5.0 + 2 * 1.5


def test_many_models_at_once() -> None:
    """One layer over a stack of weights, which only values can do."""
    layer = layers.Dense(2)
    layer.build((None, 3))
    kernels = np.random.default_rng(3).normal(size=(5, 3, 2)).astype("float32")
    with ab.Graph().as_default():
        together = ab.vectorized_map(lambda k: layer.stateless_call([k, np.ones(2, "float32")], [], X)[0], kernels)
        np.testing.assert_allclose(ab.Session().run(together), X @ kernels + 1, rtol=1e-4, atol=1e-5)


def test_misfits_of_a_stateless_call() -> None:
    layer = layers.Dense(2, name="head")
    with pytest.raises(ValueError, match="Layer 'head' is not built, so that it has no weights to give values for"):
        layer.stateless_call([], [], X)
    layer.build((None, 3))
    with pytest.raises(ValueError, match="was given 1 trainable variables, expected 2: kernel, bias"):
        layer.stateless_call([1.0], [], X)
    with pytest.raises(ValueError, match=r"variable 'kernel' has shape .* can't have a value of shape"):
        layer.stateless_call([np.ones((2, 2), "float32"), np.ones(2, "float32")], [], X)


@pytest.mark.parametrize("make", [ab.metrics.Mean, lambda: ab.metrics.AUC(num_thresholds=5), ab.metrics.R2Score])
def test_a_metric_without_state(make: Any) -> None:
    plain, pure = make(), make()
    rng = np.random.default_rng(4)
    batches = [rng.uniform(size=(2, 8, 1)).round(i % 2).astype("float32") for i in range(3)]
    batches = [(batch[0].round(), batch[1]) if make is not ab.metrics.Mean else (batch[0],) for batch in batches]
    plain.update_state(*batches[0])
    pure.update_state(*batches[0])  # R2Score makes its variables for the first batch
    held = values(pure.variables)
    state = pure.stateless_reset_state()
    for batch in batches:
        state = pure.stateless_update_state(state, *batch)
    plain.reset_state()
    for batch in batches:
        plain.update_state(*batch)
    np.testing.assert_allclose(pure.stateless_result(state), plain.result(), rtol=1e-5)
    for got, expected in zip(values(pure.variables), held, strict=True):
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match=f"was given 0 values for its variables, expected {len(state)}"):
        pure.stateless_result([])


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "ScheduleFreeAdamW"])
def test_a_training_loop_of_values_alone(name: str) -> None:
    plain, pure = model(), model()
    first, second = (getattr(ab.optim, name)(0.05, clipnorm=1.0, use_ema=True) for _ in range(2))
    first.build(plain.trainable_variables)
    second.build(pure.trainable_variables)
    weights, rest, state = (
        values(v) for v in (pure.trainable_variables, pure.non_trainable_variables, second.variables)
    )

    @ab.function
    def step(weights: Any, rest: Any, state: Any) -> Any:
        outputs, after = pure.stateless_call(weights, rest, ab.constant(X), training=True)
        found = ab.gradients(ab.ops.mean(ab.ops.square(outputs - Y)), weights)
        return (*second.stateless_apply(state, found, weights), after)

    for _ in range(3):
        weights, state, rest = step(weights, rest, state)
        with ab.Graph().as_default():
            loss = ab.ops.mean(ab.ops.square(plain(X, training=True) - Y))
            updates = [operation for operation in ab.get_default_graph().operations if operation.writes]
            ab.Session().run([first.minimize(loss, plain.trainable_variables), *updates])
    for got, expected in zip(weights, values(plain.trainable_variables), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    for got, expected in zip([*rest, *state], values([*plain.non_trainable_variables, *first.variables]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert int(second.iterations) == 0


def test_misfits_of_a_stateless_step() -> None:
    weight = ab.Variable([1.0])
    optimizer = ab.optim.SGD(0.5, name="descent")
    with pytest.raises(ValueError, match="descent is not built, so that it has no variables yet"):
        optimizer.stateless_apply([], [[1.0]], [weight])
    optimizer.build([weight])
    with pytest.raises(ValueError, match="was given 0 values for its own variables, expected 2"):
        optimizer.stateless_apply([], [[1.0]], [weight])
    with (
        pytest.raises(ValueError, match="inside a loop or a branch of a stateless block"),
        ab.Graph().as_default(),
        ab.StatelessScope(),
    ):
        ab.cond(ab.constant(1.0) > 0.0, lambda: weight.assign([2.0]), lambda: weight.assign([3.0]))


@pytest.mark.parametrize("key", ["weight", 3, np.zeros(2), ab.ops.zeros(2)])
def test_keys_that_are_no_variables_are_refused(key: Any) -> None:
    with pytest.raises(ValueError, match="expected pairs of a variable and its value; got one whose first part is"):
        ab.StatelessScope([(key, 1.0)])


_BRANCHING: list[Any] = [
    lambda: ab.optim.LossScaleOptimizer(ab.optim.Adam(0.1), initial_scale=4.0, dynamic_growth_steps=2),
    lambda: ab.optim.LossScaleOptimizer(ab.optim.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)),
    lambda: ab.optim.Adam(0.1, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=2),
    lambda: ab.optim.Lookahead(ab.optim.SGD(0.1), sync_period=2),
    lambda: ab.optim.Frozen(ab.optim.Adam(0.1), {"": [(1, 3)]}),
]


@pytest.mark.parametrize("make", _BRANCHING)
def test_steps_that_branch_are_pure_functions_too(make: Any) -> None:
    start = [np.array([1.0, 2.0], "float32"), np.array([[3.0]], "float32")]
    plain, kept, scoped = ([ab.Variable(value) for value in start] for _ in range(3))
    first, second, third = make(), make(), make()
    for optimizer, variables in ((first, plain), (second, kept), (third, scoped)):
        optimizer.build(variables)
    weights, state = list(start), values(second.variables)
    mapping = list(zip(scoped, start, strict=True)) + list(zip(third.variables, state, strict=True))
    for k in range(6):
        factor = np.float32(np.inf if k == 3 and isinstance(first, ab.optim.LossScaleOptimizer) else k + 1)
        grads = [factor * np.array([1.0, -0.5], "float32"), factor * np.array([[0.25]], "float32")]
        first.apply(grads, plain)
        weights, state = second.stateless_apply(state, grads, weights)
        with ab.StatelessScope(mapping) as scope:
            third.apply(grads, scoped)
        mapping = [(v, scope.get_current_value(v)) for v in [*scoped, *third.variables]]
        expected = values([*plain, *first.variables])
        for got, also, wanted in zip([*weights, *state], [value for _, value in mapping], expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(also, wanted, rtol=1e-5, atol=1e-6)
    for variable, value in zip([*kept, *scoped], [*start, *start], strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_loss_is_scaled_by_the_value_that_the_scale_has_in_a_scope() -> None:
    optimizer = ab.optim.LossScaleOptimizer(ab.optim.SGD(0.5), initial_scale=400.0)
    weight = ab.Variable([1.0, 2.0])
    optimizer.build([weight])
    state = values(optimizer.variables)
    for _ in range(4):
        _, state = optimizer.stateless_apply(state, [np.array([np.inf, 1.0], "float32")], [weight])
    with ab.StatelessScope(zip(optimizer.variables, state, strict=True)):
        assert float(optimizer.scale_loss(1.0)) == float(optimizer.scale_loss(ab.constant(1.0))) == 25.0
    assert float(optimizer.scale_loss(1.0)) == 400.0


def test_a_scope_keeps_what_is_assigned() -> None:
    table, count = ab.Variable(np.zeros((3, 2), "float32")), ab.Variable(1.0)
    with ab.Graph().as_default():
        with ab.StatelessScope([(count, 5.0)]) as scope:
            count.assign_add(2.0)
            table.scatter_add(ab.IndexedSlices([[1.0, 1.0], [2.0, 2.0]], [2, -1], (3, 2)))
            with ab.StatelessScope() as inner:
                count.assign(count * 10.0)
            assert inner.get_current_value(table) is None
        fetched = [scope.get_current_value(table), scope.get_current_value(count), inner.get_current_value(count)]
        rows, outer, innermost = ab.Session().run(fetched)
    assert (float(outer), float(innermost)) == (7.0, 70.0)
    np.testing.assert_array_equal(rows, [[0, 0], [0, 0], [3, 3]])
    assert float(count) == 1.0
    assert not table.numpy().any()


class Counting(layers.Layer):
    """A layer with a metric."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mean = ab.metrics.Mean(name="mean")

    def build(self, input_shape: Any) -> None:
        self.scale = self.add_variable((input_shape[-1],), "ones", name="scale")

    def call(self, inputs: Any) -> Any:
        self.mean.update_state(inputs)
        return inputs * self.scale


def test_symbols_metrics_and_variables_of_layers() -> None:
    layer = ab.Sequential([Counting(), layers.Dense(2)]).layers[0]
    spec = layer.symbolic_call(np.ones((5, 3), "float32"))
    assert spec.shape == layer.compute_output_spec(spec).shape == (5, 3)
    assert [weight.name for weight in layer.trainable_variables] == ["scale"]
    assert layer.metrics == [layer.mean]
    assert layer.metrics_variables == layer.mean.variables
    assert not {id(v) for v in layer.metrics_variables} & {id(v) for v in layer.weights}
    outer = layers.Wrapper(layer)
    assert outer.metrics == [layer.mean]
    several = layers.LSTM(2, return_state=True).symbolic_call(ab.Input((4, 3)))
    assert [tensor.shape for tensor in several] == [(None, 2)] * 3
