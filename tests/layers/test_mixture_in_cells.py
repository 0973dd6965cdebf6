"""`MixtureOfExperts` inside of cells: rows that do not take a step go to no expert and count nowhere."""

from typing import Any

import numpy as np
import pytest
from shared.layer_gradients import check_layer_gradients

import anabranch as ab
from anabranch import layers, ops

EXPERTS, FEATURES, UNITS = 4, 2, 3
LENGTHS = np.array([0, 4, 2, 0, 3, 4, 1, 0, 0])  # rows of padding at both ends, and one inside


def data(*shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def dense() -> Any:
    return layers.Dense(UNITS, activation="tanh", dtype="float64")


def mixture(**kwargs: Any) -> Any:
    return layers.MixtureOfExperts(EXPERTS, kwargs.pop("expert", dense), dtype="float64", seed=0, **kwargs)


@ab.saving.register_keras_serializable(package="tests")
class Cell(layers.Layer):
    """A cell whose state goes through a layer."""

    def __init__(self, inner: Any, **kwargs: Any) -> None:
        super().__init__(**{"dtype": "float64", **kwargs})
        self.inner = inner
        self.state_size = UNITS

    def build(self, input_shape: Any) -> None:
        self.inner.build((None, input_shape[-1] + UNITS))

    def call(self, x: Any, states: Any, training: Any = False) -> Any:
        state = self.inner(ops.concatenate([x, states[0]], axis=-1))
        return state, [state]

    def get_config(self) -> Any:
        return {**super().get_config(), "inner": ab.saving.serialize_keras_object(self.inner)}

    @classmethod
    def from_config(cls, config: Any) -> Any:
        return cls(ab.saving.deserialize_keras_object(config.pop("inner")), **config)


def recurrent(inner: Any, **kwargs: Any) -> Any:
    return layers.RNN(Cell(inner), dtype="float64", **kwargs)


class StepByStep:
    """Final states, losses and counts, by calls of the mixture on the rows alone that take a step."""

    def __init__(self, mixed: Any, x: Any, live: Any) -> None:
        self.states = np.zeros((len(x), UNITS))
        self.losses, self.dropped, self.taken = 0.0, 0, np.zeros(EXPERTS, int)
        for step in range(x.shape[1]):
            rows = live[:, step]
            if rows.any():
                self.states[rows] = mixed(np.concatenate([x[rows, step], self.states[rows]], axis=-1))
                self.losses = self.losses + np.array(mixed.losses)
                self.dropped += int(mixed.dropped_tokens.numpy())
                self.taken += mixed.expert_tokens.numpy()


def check(mixed: Any, layer: Any, x: Any, live: Any, **given: Any) -> None:
    found, losses = layer(x, **given), np.array(layer.losses)
    dropped, taken = mixed.dropped_tokens.numpy(), mixed.expert_tokens.numpy()
    expected = StepByStep(mixed, x, live)
    np.testing.assert_allclose(found, expected.states, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(losses, expected.losses, rtol=1e-9)
    assert dropped == expected.dropped
    np.testing.assert_array_equal(taken, expected.taken)


KINDS = [
    {},
    {"noisy": False},
    {"k": 1, "capacity_factor": 1.0},
    {"capacity_factor": 0.75},
    {"routing": "expert_choice"},
]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_past_their_end_go_nowhere(kind: Any) -> None:
    mixed, x = mixture(**kind), data(9, 5, FEATURES)
    check(mixed, recurrent(mixed), x, np.arange(5) < LENGTHS[:, None], sequence_length=LENGTHS)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_steps_go_nowhere(kind: Any) -> None:
    mixed, x = mixture(**kind), data(9, 5, FEATURES)
    mask = np.random.default_rng(2).random((9, 5)) < 0.6
    mask[:2] = mask[-2:] = False
    mask[:, 3] = False
    check(mixed, recurrent(mixed), x, mask, mask=mask)
    check(mixed, recurrent(mixed), x, mask & (np.arange(5) < 4), mask=mask[..., None], sequence_length=np.full(9, 4))


@pytest.mark.parametrize("capacity_factor", [None, 1.0])
def test_calls_of_rows_that_have_halted_go_nowhere(capacity_factor: Any) -> None:
    """Each call of a row by `AdaptiveComputationTime` that counts is a token, and no other."""
    lengths = np.array([0, 3, 2, 0])

    def run(rows: Any, weights: Any) -> tuple[Any, ...]:
        mixed = mixture(k=1, capacity_factor=capacity_factor)
        act = layers.AdaptiveComputationTime(Cell(mixed), max_steps=6, dtype="float64")
        layer = layers.RNN(act, dtype="float64")
        layer.build((None, None, FEATURES))
        layer.set_weights(weights or [2 * data(*weight.shape, seed=5 + n) for n, weight in enumerate(layer.weights)])
        found = layer(data(4, 3, FEATURES)[rows], sequence_length=lengths[rows])
        counts = mixed.expert_tokens.numpy(), mixed.dropped_tokens.numpy()
        return found, counts, act.mean_ponder_steps.numpy(), layer.get_weights()

    found, (taken, dropped), calls, weights = run(slice(None), None)
    alone, counts, _, _ = run(slice(1, 3), weights)
    np.testing.assert_allclose(found[1:3], alone, rtol=1e-9)
    np.testing.assert_array_equal(taken, counts[0])
    assert dropped == counts[1]
    assert 1 < calls < 6
    assert taken.sum() + dropped == pytest.approx(calls * lengths.sum(), rel=1e-6)


class Rows(layers.Layer):
    """Applies a layer to several copies of each row, in some form, and sums them."""

    def __init__(self, inner: Any, form: str) -> None:
        super().__init__(dtype="float64")
        self.inner = inner
        self.form = form

    def build(self, input_shape: Any) -> None:
        self.inner.build((None, None, input_shape[-1]) if self.form == "time" else input_shape)

    def call(self, x: Any) -> Any:
        several = ops.stack([x, 2 * x, -x], axis=1)
        if self.form != "merged":
            return ops.sum(self.inner(several), axis=1)
        rows = layers.live_rows()
        assert rows is not None
        live = ops.repeat(rows, 3)
        made = self.inner(ops.reshape(several, (-1, x.shape[-1])), mask=live)
        return ops.sum(ops.reshape(made, (-1, 3, UNITS)), axis=1)


@pytest.mark.parametrize("form", ["axes", "time", "merged"])
def test_several_tokens_a_row(form: str) -> None:
    mixed = mixture(capacity_factor=1.0)
    layer = recurrent(Rows(layers.TimeDistributed(mixed) if form == "time" else mixed, form))
    x, live = data(9, 5, FEATURES), LENGTHS > 0
    found = layer(x, sequence_length=LENGTHS)
    taken, dropped = mixed.expert_tokens.numpy(), mixed.dropped_tokens.numpy()
    np.testing.assert_allclose(layer(x[live], sequence_length=LENGTHS[live]), found[live], rtol=1e-9)
    np.testing.assert_array_equal(mixed.expert_tokens.numpy(), taken)
    assert taken.sum() + dropped == 2 * 3 * LENGTHS.sum()


def test_mixtures_of_mixtures() -> None:
    """The inner ones see the tokens that the outer one sent them, whose number has nothing to do with the batch."""
    inner: list[Any] = []

    def expert() -> Any:
        inner.append(mixture(k=1))
        return inner[-1]

    layer = recurrent(mixture(expert=expert))
    layer(data(9, 5, FEATURES), sequence_length=LENGTHS)
    assert sum(int(each.expert_tokens.numpy().sum()) for each in inner) == 2 * LENGTHS.sum()


def test_a_loop_in_a_cell() -> None:
    """Rows count in an inner loop where they do in the outer one and in the inner one."""
    mixed = mixture(k=1)

    class Outer(layers.Layer):
        state_size = UNITS

        def __init__(self) -> None:
            super().__init__(dtype="float64")
            self.inner = recurrent(mixed)

        def call(self, x: Any, states: Any) -> Any:
            several = ops.stack([x, 2 * x, 3 * x], axis=1)
            state = self.inner(several, sequence_length=ops.cast(x[:, 0] > 0, "int32") + 1)
            return state, [state]

    x = data(9, 5, FEATURES)
    layers.RNN(Outer(), dtype="float64")(x, sequence_length=LENGTHS)
    live = np.arange(5) < LENGTHS[:, None]
    assert mixed.expert_tokens.numpy().sum() == (1 + (x[..., 0] > 0))[live].sum()


def test_rows_that_are_not_those_of_the_cell_are_refused() -> None:
    class Twice(layers.Layer):
        def __init__(self) -> None:
            super().__init__(dtype="float64")
            self.mixed = mixture(name="mixed")

        def build(self, input_shape: Any) -> None:
            self.mixed.build(input_shape)

        def call(self, x: Any) -> Any:
            return self.mixed(ops.concatenate([x, x], axis=0))[: x.shape[0]]

    layer = recurrent(Twice())
    layer(data(3, 5, FEATURES))
    with pytest.raises(ValueError, match=r"'mixed' .* must be the rows, \(3,\), got inputs of shape \(6, 5\)"):
        layer(data(3, 5, FEATURES), mask=np.ones((3, 5), bool))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_against_finite_differences(kind: Any) -> None:
    """Check gradients of outputs and losses, through all steps, by input and weights; 0 where nothing was read."""
    mixed = mixture(**kind)
    layer = recurrent(mixed)
    x = data(9, 5, FEATURES)
    layer(x)
    layer.set_weights([data(*weight.shape, seed=10 + n) for n, weight in enumerate(layer.weights)])

    def run(value: Any) -> Any:
        return layer(value, sequence_length=LENGTHS)

    found = check_layer_gradients(layer, x, run, rtol=1e-5, atol=1e-8)
    assert all(np.abs(gradient).max() > 0 for gradient in found[:2])
    np.testing.assert_array_equal(found[0][np.arange(5) >= LENGTHS[:, None]], 0.0)


def test_it_trains_and_comes_back_from_a_file(tmp_path: Any) -> None:
    """Sums of numbers up to a 0, where padding begins: the sign of a number says what is done with the other one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 4, 2)).astype("float32")
    lengths = rng.integers(1, 5, 128)
    x[np.arange(4) >= lengths[:, None]] = 0.0
    y = np.where(x[..., 0] > 0, x[..., 1], -x[..., 1]).sum(axis=1, keepdims=True)
    ab.utils.set_random_seed(0)
    mixed = layers.MixtureOfExperts(3, lambda: layers.Dense(UNITS), k=1, capacity_factor=1.5, seed=0)
    mixed.dropped_metric = ab.metrics.Sum("dropped")
    cell = Cell(mixed, dtype="float32")
    model = ab.Sequential([ab.Input((None, 2)), layers.Masking(), layers.RNN(cell), layers.Dense(1)])
    model.compile(ab.optim.Adam(0.03), "mse")
    history = model.fit(x, y, epochs=25, batch_size=32, verbose=0).history
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    assert history["dropped"][-1] < lengths.sum()
    model.save(tmp_path / "model.keras")
    loaded: Any = ab.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    assert loaded.layers[-2].cell.inner.get_config() == mixed.get_config()


def test_an_expert_with_averages_that_nobody_chose() -> None:
    """`BatchNormalization` of no rows: neither outputs nor weights nor averages become NaN."""

    def expert() -> Any:
        return ab.Sequential([layers.Dense(UNITS), layers.BatchNormalization()])

    mixed = layers.MixtureOfExperts(EXPERTS, expert, k=1, noisy=False, gate_initializer="zeros")
    model = ab.Sequential([ab.Input((FEATURES,)), mixed])
    model.compile(ab.optim.SGD(0.1), "mse")
    x = data(16, FEATURES).astype("float32")
    model.fit(x, np.tile(x[:, :1], (1, UNITS)), batch_size=16, verbose=0)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert (mixed.expert_tokens.numpy() == 0).any()
    first, *others = [expert.layers[-1].moving_mean.numpy() for expert in mixed.experts]
    assert first.any()
    assert not np.any(others)
