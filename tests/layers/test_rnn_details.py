"""Recurrent layers at the edges: dropout for each gate, states of other batches, wrapped layers that take less."""

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.engine.codegen.host.refits import refits


def data(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("kind", [layers.LSTMCell, layers.GRUCell])
@pytest.mark.parametrize("implementation", [1, 2])
def test_dropout_of_gates(kind: Any, implementation: int) -> None:
    """By implementation 1 each gate has a mask of its own."""
    cell = kind(1, kernel_initializer="ones", dropout=0.5, seed=1, implementation=implementation)
    cell.build((None, 1))
    with ab.Graph().as_default():
        ones = ab.ops.ones((200, 1))
        with cell.dropout_masks(200, True):
            masks = cell.current_masks(ones, True)
            products = ab.Session().run(cell.product(ones, ab.ops.convert_to_tensor(cell.kernel), masks[0]))
    assert products.shape == (200, cell.gates)
    assert set(np.unique(products)) == {0.0, 2.0}
    assert (np.ptp(products, axis=1) > 0).any() == (implementation == 1)
    assert masks[1] is None


@pytest.mark.parametrize("kind", [layers.LSTMCell, layers.GRUCell])
def test_recurrent_dropout_is_drawn_for_each_gate(kind: Any) -> None:
    cell = kind(3, recurrent_dropout=0.5)
    assert cell.implementation == 1
    cell.build((None, 2))
    with ab.Graph().as_default(), cell.dropout_masks(4, True):
        assert len(cell.current_masks(ab.ops.ones((4, 2)), True)[1]) == cell.gates


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.LSTM(3, dropout=0.5, implementation=1, seed=1),
        lambda: layers.GRU(3, recurrent_dropout=0.5, seed=1),
        lambda: layers.GRU(3, recurrent_dropout=0.5, reset_after=False, seed=1),
        lambda: layers.RNN([layers.LSTMCell(3, recurrent_dropout=0.5, seed=1), layers.GRUCell(2)]),
    ],
)
def test_dropout_acts_in_training_only(make: Any) -> None:
    layer = make()
    x = data(4, 5, 2)
    plain, trained = layer(x), layer(x, training=True)
    assert plain.shape == trained.shape
    assert not np.allclose(plain, trained)
    np.testing.assert_array_equal(plain, layer(x))


def test_the_last_output_is_zero_where_it_is_masked() -> None:
    mask = np.array([[True, True, False], [True, True, True]])
    layer = layers.LSTM(3, zero_output_for_mask=True, return_state=True)
    output, hidden, _ = layer(data(2, 3, 2), mask=mask)
    np.testing.assert_array_equal(output[0], np.zeros(3))
    np.testing.assert_array_equal(output[1], hidden[1])
    assert np.all(hidden[0] != 0)


def test_batches_of_another_size_have_no_states() -> None:
    layer = layers.GRU(3, stateful=True, name="reader")
    layer(data(2, 4, 2))
    with pytest.raises(ValueError, match=r"'reader' is stateful with states for batches of 2, got a batch of 3"):
        layer(data(3, 4, 2))


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU, layers.SimpleRNN])
def test_stateful_bidirectional_layers_go_on(kind: Any) -> None:
    layer = layers.Bidirectional(kind(3, stateful=True, return_sequences=True))
    x = data(2, 4, 2)
    first = layer(x)
    second = layer(x)
    assert not np.allclose(first, second)
    layer.reset_state()
    np.testing.assert_allclose(layer(x), first, rtol=1e-6)


def test_bidirectional_weights_are_given() -> None:
    x = data(2, 4, 2)
    layer = layers.Bidirectional(layers.GRU(3))
    expected = layer(x)
    again = layers.Bidirectional(layers.GRU(3), weights=layer.get_weights())
    np.testing.assert_allclose(again(x), expected, rtol=1e-6)
    wrong = layers.Bidirectional(layers.GRU(3), weights=[np.zeros(2)])
    with pytest.raises(ValueError, match="has 6 weights, but set_weights was given 1"):
        wrong(x)


class Sums(layers.Layer):
    """A sequence layer that is no `RNN`, with the least that `Bidirectional` asks for."""

    def __init__(self, go_backwards: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.go_backwards = go_backwards
        self.return_sequences = True
        self.return_state = self.stateful = False

    def call(self, sequences: Any) -> Any:
        steps = ab.ops.flip(sequences, axis=1) if self.go_backwards else sequences
        return ab.ops.cumsum(steps, axis=1)


def test_bidirectional_over_a_layer_that_takes_less() -> None:
    layer = layers.Bidirectional(Sums(name="sums"))
    x = data(2, 4, 3)
    expected = np.concatenate([np.cumsum(x, 1), np.cumsum(x[:, ::-1], 1)[:, ::-1]], axis=-1)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"initial_state, which the call of 'forward_sums' \(Sums\) does not take"):
        layer(x, initial_state=[x[:, 0], x[:, 0]])


def test_masks_of_steps_must_fit() -> None:
    layer = layers.TimeDistributed(layers.Dense(2), name="each")
    with pytest.raises(ValueError, match=r"'each' \(TimeDistributed\): mask must have the shape \(batch, steps\)"):
        layer(data(2, 3, 4), mask=np.ones((2, 4), bool))
    assert layer(data(2, 3, 4), mask=np.ones((2, 3), bool)).shape == (2, 3, 2)


def test_refused_implementations() -> None:
    with pytest.raises(ValueError, match="LSTMCell: implementation must be 1 or 2, got 3"):
        layers.LSTM(2, implementation=3)


@pytest.mark.kernels
def test_training_of_a_gru_has_no_loop_in_python():
    model = ab.Sequential([layers.GRU(8)])
    x = np.random.default_rng(0).normal(size=(4, 70, 3)).astype("float32")
    model.compile("sgd", "mse")
    model(x)
    report = str(model.explain(x, np.zeros((4, 8), "float32"), kind="train", passes=True))
    assert report.count("is one native function") == 2
    assert "runs in Python" not in report


@pytest.mark.kernels
@pytest.mark.parametrize("make", [layers.LSTM, layers.GRU, layers.SimpleRNN])
def test_kernels_copy_no_operands(make: Any) -> None:
    model = ab.Sequential([make(64)])
    x = np.random.default_rng(0).normal(size=(32, 12, 16)).astype("float32")
    model.compile("sgd", "mse")
    y = np.zeros((32, 64), "float32")
    for step in (lambda: model.predict_on_batch(x), lambda: model.train_on_batch(x, y)):
        step()
        before = refits.count
        step()
        assert refits.count == before
