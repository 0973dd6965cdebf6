"""`Pipeline`: steps in stages give what one device gives for the whole batch, overlap, and say what they can't do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shared.machines import idle_step, stream_engines

import anabranch as ab
from anabranch import layers, ops
from anabranch.distribute import Pipeline
from anabranch.framework.pipeline.stages import _bounds  # pyright: ignore[reportPrivateUsage]

RNG = np.random.default_rng(0)
X, IDS = RNG.normal(size=(22, 4)), RNG.integers(0, 7, size=(22, 4))
Y, WEIGHTS = RNG.normal(size=(22, 3)), RNG.random(22)


@pytest.fixture(autouse=True)
def doubles(without_kernels: None) -> Iterator[None]:
    ab.config.set_floatx("float64")
    yield
    ab.config.set_devices()


# --- models ---------------------------------------------------------------------------------------------------------


def dense() -> Any:
    return ab.Sequential([ab.Input((4,)), layers.Dense(5, "tanh"), layers.Dense(5, "relu"), layers.Dense(3)])


def unbuilt() -> Any:
    return ab.Sequential([layers.Dense(5, "tanh"), layers.LayerNormalization(), layers.Dense(3)])


def branching() -> Any:
    """Ops between layers, a way around a stage, a regularizer, and a weight that two stages share."""
    inputs = ab.Input((4,))
    shared = layers.Dense(4, "tanh", kernel_regularizer="l2")
    first = shared(inputs)
    second = layers.Dense(4, "tanh")(first * 2.0 + inputs)
    return ab.Model(inputs, layers.Dense(3)(shared(second) + first))


def table() -> Any:
    """A table, whose gradients are rows, and a loop inside of a stage."""
    return ab.Sequential([ab.Input((4,), dtype="int32"), layers.Embedding(7, 3), layers.GRU(3), layers.Dense(3)])


class OwnStep(ab.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(4, "tanh"), layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        return self.second(self.first(inputs))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with ab.GradientTape() as tape:
            loss = ops.mean(ops.square(self(x, training=True) - y))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"own": loss, "twice": 2.0 * loss}


def compiled(make: Any, strategy: Pipeline | None, optimizer: Any = None, **options: Any) -> Any:
    ab.utils.set_random_seed(3)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = make()
        optimizer = optimizer or ab.optimizers.SGD(0.1, momentum=0.9)
        is_own = isinstance(model, OwnStep)
        model.compile(optimizer, None if is_own else "mse", metrics=None if is_own else ["mae"], **options)
    return model


def trained(make: Any, strategy: Pipeline | None, **options: Any) -> Any:
    """Return the logs of two steps, and then the weights and optimizer's variables; the second batch is uneven."""
    model = compiled(make, strategy, **options)
    found = [model.train_on_batch(X[:rows], Y[:rows], WEIGHTS[:rows]) for rows in (8, 6)]
    return found, model.get_weights(), [variable.numpy() for variable in model.optimizer.variables]


def fitted(make: Any, strategy: Pipeline | None, x: Any = X, **options: Any) -> Any:
    """Return what fit, evaluate and predict find."""
    model = compiled(make, strategy, **options)
    is_own = isinstance(model, OwnStep)
    weights = None if is_own else WEIGHTS
    history = model.fit(x, Y, batch_size=8, epochs=2, verbose=0, sample_weight=weights).history
    found = [] if is_own else [model.evaluate(x, Y, verbose=0)]
    return [list(history.values()), model.get_weights(), *found, model.predict(x, verbose=0)]


def assert_same(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    for one, other in zip(ab.tree.flatten(found), ab.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


# --- results --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("cpus", [1, 3])
@pytest.mark.parametrize(
    ("make", "x", "options"),
    [(dense, X, {"steps_per_execution": 2}), (unbuilt, X, {}), (branching, X, {}), (table, IDS, {})],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_fit_is_that_of_one_device(make: Any, x: Any, options: Any, cpus: int) -> None:
    """Batches of 8, 8 and 6 rows in 4 microbatches; those of the last are uneven."""
    expected = fitted(make, None, x, **options)
    ab.config.set_devices(cpu=cpus)
    strategy = Pipeline(2, 4)
    assert_same(fitted(make, strategy, x, **options), expected)
    assert len(strategy.statistics()["stages"]) == 2
    assert len(set(strategy.statistics()["devices"])) == (0 if cpus == 1 else 2)


def test_a_step_of_a_users_own_is_that_of_one_device() -> None:
    ab.utils.set_random_seed(3)
    model = OwnStep()
    expected = fitted(OwnStep, None)
    assert_same(fitted(lambda: model, Pipeline([[model.first], [model.second]], 4)), expected)
    with pytest.raises(ValueError, match="Give the stages as lists of layers"):
        fitted(OwnStep, Pipeline(2, 4))


@pytest.mark.parametrize(
    "microbatches", [4, pytest.param(1, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.slow)]
)
def test_any_number_of_microbatches_will_do(microbatches: int) -> None:
    """Each has 2 of 6 rows; 8 rows are uneven. Clipping is of the whole gradient; optimizers have the same state."""
    optimizer = {"class_name": "Adam", "config": {"learning_rate": 0.01, "global_clipnorm": 0.1, "epsilon": 1e-3}}
    expected = trained(dense, None, optimizer=optimizer)
    assert_same(trained(dense, Pipeline(3, microbatches), optimizer=optimizer), expected)


def test_stages_on_cpus(tmp_path: Any) -> None:
    """Nothing of the model remembers its stages: it goes on where the devices are gone, and in other programs."""
    expected = compiled(dense, None).train_on_batch(X[:8], Y[:8])
    ab.config.set_devices(cpu=2)
    strategy = Pipeline(2, 4)
    model = compiled(dense, strategy)
    assert_same(model.train_on_batch(X[:8], Y[:8]), expected)
    assert strategy.statistics()["devices"] == [f"/device:CPU:{number}" for number in range(2)]
    ab.config.set_devices()
    model.save(tmp_path / "model.keras")
    assert_same(ab.saving.load_model(tmp_path / "model.keras").predict(X, verbose=0), model.predict(X, verbose=0))
    assert not any(variable.device for variable in model.variables)


def test_batch_normalization_averages_the_statistics_of_microbatches() -> None:
    strategy = Pipeline(2, 2)
    with strategy.scope():
        model = ab.Sequential([ab.Input((4,)), layers.BatchNormalization(momentum=0.0), layers.Dense(3)])
        model.compile("sgd", "mse")
    model.train_on_batch(X[:8], Y[:8])
    norm: Any = model.layers[0]
    np.testing.assert_allclose(norm.moving_mean.numpy(), X[:8].mean(0), rtol=1e-12)
    variances = [X[:4].var(0), X[4:8].var(0)]
    np.testing.assert_allclose(norm.moving_variance.numpy(), np.mean(variances, 0), rtol=1e-12)


def test_a_frozen_layer_is_left_as_it_is() -> None:
    with Pipeline(2, 2).scope():
        model = dense()
        model.layers[0].trainable = False
        model.compile("sgd", "mse")
    before = model.get_weights()
    model.train_on_batch(X, Y)
    after = model.get_weights()
    assert [bool((a == b).all()) for a, b in zip(before, after, strict=True)] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]


# --- time -----------------------------------------------------------------------------------------------------------


def timed(stages: int, count: int) -> tuple[float, float]:
    """The virtual seconds of a step of equal layers in 16 microbatches, and those of the busiest device."""
    speeds = {"flops": 1e9, "memory_bandwidth": 1e12, "kernel_latency": 0, "latency": 1e-6, "bandwidth": 1e10}
    ab.config.set_devices(cpu=1, sim={"count": stages, **speeds})
    with Pipeline(stages, 16).scope():
        model = ab.Sequential([ab.Input((32,)), *[layers.Dense(32, "tanh") for _ in range(count)]])
        model.compile("sgd", "mse")
    rows = np.ones((16 * 32, 32), "float32")
    model.train_on_batch(rows, rows)
    program: Any = model._steps["train"].latest  # pyright: ignore[reportPrivateUsage]
    clock = stream_engines(idle_step(program))[0].clock
    began = clock.now()
    model.train_on_batch(rows, rows)
    busy = [found.kernel_seconds for name, found in program.statistics.devices.items() if name.startswith("sim")]
    return clock.now() - began, max(busy)


def test_stages_overlap() -> None:
    """The busiest stage waits for its first microbatch, and for nothing else: 0.95 of that ideal at least."""
    ab.config.set_floatx("float32")
    seconds, busy = timed(2, 2)
    assert seconds <= busy * (16 + 2 - 1) / 16 / 0.95


@pytest.mark.slow
def test_four_stages_gain_what_they_can() -> None:
    ab.config.set_floatx("float32")
    assert timed(1, 8)[0] / timed(4, 8)[0] >= 0.95 * 4 * 16 / (16 + 3)


# --- cutting --------------------------------------------------------------------------------------------------------


def test_layers_are_cut_by_cost() -> None:
    strategy = Pipeline(2, 2)
    with strategy.scope():
        inner = ab.Sequential([layers.Dense(200, name="b"), layers.Dense(200, name="c")])
        wide = [layers.Dense(200, name="a"), inner, layers.Dense(200, name="d"), layers.Dense(3, name="e")]
        model = ab.Sequential([ab.Input((200,)), *wide])
        model.compile("sgd", "mse")
    model.predict(np.zeros((2, 200)), verbose=0)
    assert strategy.statistics()["stages"] == [["a", "b"], ["c", "d", "e"]]


def test_operations_come_before_the_first_layer() -> None:
    x = ab.Input((4,))
    strategy = Pipeline(2, 2)
    with strategy.scope():
        model = ab.Model(x, layers.Dense(2, name="b")(layers.Dense(3, name="a")(x * 2.0 + 1.0)))
        model.compile("sgd", "mse")
    model.predict(np.zeros((2, 4)), verbose=0)
    stages: Any = strategy.statistics()["stages"]
    assert [stage[-1] for stage in stages] == ["a", "b"]


def test_the_dearest_part_is_as_cheap_as_can_be() -> None:
    for _ in range(30):
        costs = RNG.random(6)
        bounds = _bounds(list(costs), [True] * 6, 3)
        found = max(sum(costs[first:last]) for first, last in bounds)
        cuts = [(a, b) for a in range(1, 5) for b in range(a + 1, 6)]
        assert found == pytest.approx(min(max(sum(costs[:a]), sum(costs[a:b]), sum(costs[b:])) for a, b in cuts))
        assert [last for _, last in bounds] == [first for first, _ in bounds[1:]] + [6]


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((0, 4), ValueError, "stages must be at least 1; got 0"),
        (("two", 4), TypeError, "stages must be a whole number, or lists of layers; got 'two'"),
        ((2, 0), ValueError, "microbatches must be at least 1; got 0"),
        ((2, 1.5), TypeError, "microbatches must be a whole number; got 1.5"),
        (([[]], 2), ValueError, "each stage needs a layer"),
    ],
)
def test_arguments_are_checked(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Pipeline(*arguments)
    with pytest.raises(ValueError, match="devices names 1 devices for 2 stages"):
        Pipeline(2, 2, devices=["cpu:0"])
    layer = layers.Dense(1, name="both")
    with pytest.raises(ValueError, match=r"the layers \['both'\] are in several stages"):
        Pipeline([[layer], [layer]], 2)


def test_what_microbatches_would_change_is_refused_in_compile() -> None:
    cases: list[tuple[list[Any], Any, str]] = [
        ([layers.GRU(2, stateful=True)], "mse", "stateful=False"),
        ([layers.BatchNormalization(synchronized=True)], "mse", "synchronized=False"),
        ([layers.Dense(3)], ab.losses.MeanSquaredError(reduction="none"), "sum_over_batch_size"),
    ]
    for given, loss, text in cases:
        with Pipeline(1, 2).scope(), pytest.raises(ValueError, match=text):
            ab.Sequential(given).compile("sgd", loss)


def test_stages_have_to_be_those_of_the_model() -> None:
    def train(stages: Any, make: Any = dense) -> None:
        with Pipeline(stages, 2).scope():
            model = make()
            model.compile("sgd", "mse")
        model.train_on_batch(X, Y)

    with pytest.raises(ValueError, match="has 3 layers, and each stage needs one"):
        train(4)
    with pytest.raises(ValueError, match=r"the layers \['alien'\] of its stages are not in model"):
        train([[layers.Dense(1, name="alien")]])
    made = dense()
    with pytest.raises(ValueError, match=rf"the layers \['{made.layers[2].name}'\] of model .* are in no stage"):
        train([[made.layers[0]], [made.layers[1]]], lambda: made)
