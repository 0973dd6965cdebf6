"""Recurrent layers over any cell: custom cells, states, masks, unknown sizes, dropout, gradients, errors."""

from typing import Any, cast

import numpy as np
import pytest
from shared.layer_gradients import check_layer_gradients

import anabranch as ab
from anabranch import layers, ops
from anabranch.engine.graph.graph import get_default_graph


class Leaky(layers.Layer):
    """``h' = (1 - leak) h + leak tanh(x kernel + h recurrent)``; nothing but what a cell must have."""

    def __init__(self, units: int, leak: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.leak = leak
        self.state_size = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.recurrent = self.add_weight(shape=(self.units, self.units), name="recurrent")

    def call(self, x: Any, states: Any) -> Any:
        new = ab.ops.tanh(ab.ops.matmul(x, self.kernel) + ab.ops.matmul(states[0], self.recurrent))
        h = (1 - self.leak) * states[0] + self.leak * new
        return h, [h]

    def reference(self, x: Any, h: Any) -> Any:
        kernel, recurrent = self.get_weights()
        outputs = []
        for step in range(x.shape[1]):
            h = (1 - self.leak) * h + self.leak * np.tanh(x[:, step] @ kernel + h @ recurrent)
            outputs.append(h)
        return np.stack(outputs, 1)


class Doubling(layers.Layer):
    """An output that is no state, of another size; two states of different ranks."""

    state_size = (2, (2, 2))

    def call(self, x: Any, states: Any, training: Any = False) -> Any:
        total, outer = states
        total = total + x
        outer = outer + ab.ops.expand_dims(x, 1) * ab.ops.expand_dims(x, 2)
        return ab.ops.concatenate([total, x, x], axis=1), (total, outer)


def data(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype("float32")


def test_a_cell_with_the_least_of_a_contract() -> None:
    cell = Leaky(3)
    layer = layers.RNN(cell, return_sequences=True)
    x = data(2, 4, 5)
    outputs = layer(x)
    np.testing.assert_allclose(outputs, cell.reference(x, np.zeros((2, 3))), rtol=1e-5, atol=1e-6)
    assert layer.weights == cell.weights
    last = layers.RNN(cell)(x)
    np.testing.assert_allclose(last, outputs[:, -1], rtol=1e-6)


def test_an_output_that_is_no_state() -> None:
    x = data(2, 3, 2)
    output, total, outer = layers.RNN(Doubling(), return_state=True)(x)
    np.testing.assert_allclose(total, x.sum(1), rtol=1e-5)
    np.testing.assert_allclose(output, np.concatenate([x.sum(1), x[:, -1], x[:, -1]], 1), rtol=1e-5)
    np.testing.assert_allclose(outer, np.einsum("bti,btj->bij", x, x), rtol=1e-5)
    mask = np.array([[True, True, False], [False, True, False]])
    outputs = layers.RNN(Doubling(), return_sequences=True)(x, mask=mask)
    np.testing.assert_allclose(outputs[0, 2], outputs[0, 1])
    np.testing.assert_array_equal(outputs[1, 0], np.zeros(6))
    np.testing.assert_allclose(outputs[1, 1], np.tile(x[1, 1], 3))
    last = layers.RNN(Doubling())(x, mask=mask)
    np.testing.assert_allclose(last, outputs[:, -1])


def test_a_cell_that_is_no_layer() -> None:
    class Plain:
        state_size = 2

        def call(self, x: Any, states: Any) -> Any:
            return x + states[0], x + states[0]  # a bare state, instead of a list

    np.testing.assert_array_equal(layers.RNN(Plain())(np.ones((1, 3, 2), "float32")), [[3, 3]])


class Summing(layers.Layer):
    """A cell without first states of its own; Keras's numbers in the test below are those of such cells of ones."""

    def __init__(self, units: int, sizes: Any) -> None:
        super().__init__()
        self.units = units
        self.state_size = sizes

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight((input_shape[-1], self.units), "ones")
        self.recurrent_kernel = self.add_weight((self.units, self.units), "ones")

    def call(self, inputs: Any, states: Any) -> Any:
        assert isinstance(states, list)
        output = ops.matmul(inputs, self.kernel) + ops.matmul(states[0], self.recurrent_kernel)
        return output, [output] * len(states)


def test_the_states_of_a_stack_are_in_the_form_of_its_cells() -> None:
    """As in Keras: a tensor for a cell with an int as state_size and no get_initial_state, else a list."""
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    first, second = [[158, 158, 158], [782, 782, 782]], [[786, 786], [4386, 4386]]
    layer = layers.RNN([Summing(3, 3), Summing(2, 2)], return_state=True)
    output, *states = layer(x)
    assert [np.shape(state) for state in states] == [(2, 3), (2, 2)]
    assert [np.asarray(item).tolist() for item in (output, *states)] == [second, first, second]
    assert layer.compute_output_shape((2, 3, 4)) == ((2, 2), (2, 3), (2, 2))
    again = layer(x[:, 1:], initial_state=layer(x[:, :1])[1:])
    assert [np.asarray(item).tolist() for item in again] == [second, first, second]

    mixed = layers.RNN([Summing(3, [3, 3]), layers.LSTMCell(4), Summing(2, (2,)), Summing(2, 2)], return_state=True)
    shapes = [np.shape(state) if not isinstance(state, list) else [np.shape(s) for s in state] for state in mixed(x)]
    assert shapes == [(2, 2), [(2, 3), (2, 3)], [(2, 4), (2, 4)], [(2, 2)], (2, 2)]


def test_a_stateful_stack_goes_on_from_the_states_of_its_cells() -> None:
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    layer = layers.RNN([Summing(3, 3), Summing(2, 2)], stateful=True)
    layer(x)
    assert np.asarray(layer(x)).tolist() == [[34092, 34092], [173196, 173196]]


def test_first_states_of_the_cell() -> None:
    class Fives(Leaky):
        def get_initial_state(self, batch_size: Any = None) -> Any:
            return ab.ops.full((batch_size, self.units), 5.0)

    cell = Fives(3)
    x = data(2, 4, 5)
    outputs = layers.RNN(cell, return_sequences=True)(x)
    np.testing.assert_allclose(outputs, cell.reference(x, np.full((2, 3), 5.0)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU, layers.SimpleRNN])
def test_unknown_batch_and_steps(kind: Any) -> None:
    layer = kind(3, return_sequences=True, return_state=True)
    x = data(2, 5, 4)
    expected = np.asarray(layer(x)[0])
    with ab.Graph().as_default():
        symbol = ab.placeholder((None, None, 4), "float32")
        outputs = layer(symbol)
        assert outputs[0].shape == (None, None, 3)
        session = ab.Session(get_default_graph())
        for batch, steps in ((2, 5), (1, 2)):
            found = session.run(outputs, {symbol: x[:batch, :steps]})
            np.testing.assert_allclose(found[0], expected[:batch, :steps], rtol=1e-5, atol=1e-6)
        none = session.run(outputs, {symbol: x[:, :0]})
        assert none[0].shape == (2, 0, 3)
        np.testing.assert_array_equal(none[1], np.zeros((2, 3)))


def test_gradients_against_finite_differences() -> None:
    cell = Leaky(2, dtype="float64")
    layer = layers.RNN(cell, dtype="float64")
    x = data(2, 3, 2).astype("float64")
    check_layer_gradients(layer, x, rtol=1e-5)


def test_stateful_layers_go_on() -> None:
    layer = layers.LSTM(3, stateful=True, return_sequences=True)
    x = data(2, 6, 4)
    parts = [layer(x[:, :2]), layer(x[:, 2:])]
    whole = layers.LSTM(3, return_sequences=True)
    whole.build((2, 6, 4))
    whole.set_weights(layer.get_weights())
    assert len(layer.weights) == 3
    np.testing.assert_allclose(np.concatenate(parts, 1), whole(x), rtol=1e-5, atol=1e-6)
    layer.reset_state()
    np.testing.assert_allclose(layer(x[:, :2]), parts[0], rtol=1e-6)
    with ab.Graph().as_default(), pytest.raises(ValueError, match="stateful, so that its batch size has to be known"):
        layers.GRU(2, stateful=True)(ab.placeholder((None, 3, 2), "float32"))


def test_states_hand_over_from_encoder_to_decoder() -> None:
    x = data(2, 6, 4)
    layer = layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)], return_state=True, return_sequences=True)
    whole, *final = layer(x)
    first, *states = layer(x[:, :4])
    second, *again = layer(x[:, 4:], initial_state=states)
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(again[1][0], final[1][0], rtol=1e-5, atol=1e-6)


def test_weights_of_stacked_cells() -> None:
    layer = layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)])
    layer(data(2, 3, 4))
    assert [tuple(w.shape) for w in layer.weights] == [(4, 12), (3, 12), (12,), (3, 6), (2, 6), (2, 6)]
    assert layer.state_size == [[3, 3], 2]


def test_dropout_masks_are_the_same_at_each_step() -> None:
    class Echo(layers.SimpleRNNCell):
        def call(self, inputs: Any, states: Any, training: Any = False) -> Any:
            inputs, _ = self.dropped(inputs, states[0], training)
            return inputs, [inputs]

    layer = layers.RNN(Echo(8, dropout=0.5, seed=3), return_sequences=True)
    x = np.ones((2, 5, 8), "float32")
    np.testing.assert_array_equal(layer(x), x)
    first = layer(x, training=True)
    assert set(np.unique(first)) == {0.0, 2.0}
    np.testing.assert_array_equal(first, np.repeat(first[:, :1], 5, axis=1))
    assert not np.array_equal(first, layer(x, training=True))


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU, layers.SimpleRNN])
def test_dropout_of_built_in_cells(kind: Any) -> None:
    layer = kind(3, dropout=0.5, recurrent_dropout=0.5, seed=1)
    x = data(2, 4, 5)
    assert not np.allclose(layer(x, training=True), layer(x))
    np.testing.assert_array_equal(layer(x), layer(x, training=False))


def test_dropout_inside_a_custom_cell_is_drawn_at_each_step() -> None:
    class Noisy(layers.Layer):
        state_size = 4

        def __init__(self) -> None:
            super().__init__()
            self.dropout = layers.Dropout(0.5, seed=1)

        def call(self, x: Any, states: Any) -> Any:
            x = self.dropout(x)  # training comes from the calls around
            return x, [x]

    layer = layers.RNN(Noisy(), return_sequences=True)
    x = np.ones((2, 20, 4), "float32")
    np.testing.assert_array_equal(layer(x), x)
    dropped = layer(x, training=True)
    assert not np.array_equal(dropped[:, 0], dropped[:, 1]) or not np.array_equal(dropped[:, 1], dropped[:, 2])


def test_parts_of_a_cell_are_built_by_its_call(tmp_path: Any) -> None:
    """A cell without a `build` of its own, whose parts make weights."""

    @ab.saving.register_keras_serializable("test_rnn")
    class Deep(layers.Layer):
        state_size = (3, 2)

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.parts = [layers.Dense(3), layers.Dense(2)]

        def call(self, x: Any, states: Any) -> Any:
            first = self.parts[0](ab.ops.concatenate([x, *states], axis=1))
            return first, [first, self.parts[1](first)]

    layer = layers.RNN([layers.GRUCell(4), Deep()])
    layer.build((None, None, 5))
    assert [tuple(weight.shape) for weight in layer.weights[3:]] == [(9, 3), (3,), (3, 2), (2,)]
    model = ab.Sequential([ab.Input((None, 5)), layer])
    x = data(2, 4, 5)
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(ab.load_model(tmp_path / "model.keras").predict(x, verbose=0), expected)


def test_masks_reach_a_layer_behind() -> None:
    with ab.Graph().as_default():
        x = layers.Masking()(ab.placeholder((None, None, 2), "float32"))
        sequences = layers.LSTM(3, return_sequences=True)(x)
        assert sequences.annotations["mask"] is x.annotations["mask"]
        assert "mask" not in layers.LSTM(3)(x).annotations
        outputs = layers.LSTM(3, return_sequences=True, return_state=True)(x)
        assert ["mask" in output.annotations for output in outputs] == [True, False, False]
        both = layers.Bidirectional(layers.GRU(3, return_sequences=True))(x)
        assert both.annotations["mask"] is x.annotations["mask"]


def test_layers_between_cell_and_loop_share_weights() -> None:
    """The weights of a cell are read once, outside of the loop."""
    layer = layers.LSTM(3)
    layer.build((None, None, 2))
    with ab.Graph().as_default():
        layer(ab.placeholder((None, None, 2), "float32"))
        reads = [op for op in get_default_graph().get_operations() if op.type == "read_variable"]
    assert len(reads) == 3


# --- errors ---------------------------------------------------------------------------------------------------------


def test_what_is_no_cell() -> None:
    with pytest.raises(ValueError, match="no call and no state_size"):
        layers.RNN(cast(Any, 3))
    with pytest.raises(ValueError, match="no state_size"):
        layers.RNN(layers.Dense(3))
    with pytest.raises(ValueError, match=r"RNN takes a cell, such as LSTMCell\(units\), got the recurrent layer <LSTM"):
        layers.RNN(layers.LSTM(3))

    class Odd(Leaky):
        def __init__(self) -> None:
            super().__init__(2)
            self.state_size = "two"

    with pytest.raises(ValueError, match="state_size of cell Odd must be an int"):
        layers.RNN(Odd())(data(1, 2, 2))


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (lambda x, s: x, TypeError, r"cell of layer 'loop' \(Wrong\) must return a pair .*got Symbol"),
        (lambda x, s: (x, [x], x), TypeError, "got tuple of 3"),
        (lambda x, s: (x, [x, x]), ValueError, "was given 1 states, but returned 2"),
        (lambda x, s: (x, [ab.ops.cast(x, "float64")]), TypeError, r"states\[0\]: went in as float32.*float64"),
    ],
)
def test_cells_that_return_something_else(result: Any, error: type[Exception], message: str) -> None:
    class Wrong(layers.Layer):
        state_size = 2

        def call(self, x: Any, states: Any) -> Any:
            return result(x, states)

    with pytest.raises(error, match=message):
        layers.RNN(Wrong(), name="loop")(data(1, 2, 2))


def test_sequences_of_the_wrong_rank_or_size() -> None:
    with pytest.raises(ValueError, match=r"'reader' \(LSTM\) takes sequences of shape \(batch, steps, features\)"):
        layers.LSTM(3, name="reader")(data(2, 3))
    layer = layers.LSTM(3)
    layer(data(2, 3, 4))
    with pytest.raises(ValueError, match="expected axis -1 of the input to have size 4, got size 5"):
        layer(data(2, 3, 5))
    with pytest.raises(ValueError, match=r"has 2 states, of sizes .*, but initial_state holds 1"):
        layer(data(2, 3, 4), initial_state=[np.zeros((2, 3), "float32")])
    with ab.Graph().as_default(), pytest.raises(ValueError, match="needs a known size of its input's last axis"):
        layers.GRU(3)(ab.placeholder((None, None, None), "float32"))


def test_unknown_arguments() -> None:
    with pytest.raises(TypeError, match=r"LSTM\(\) got an unexpected keyword argument 'colour'"):
        layers.LSTM(3, **cast(Any, {"colour": "red"}))
    with pytest.raises(ValueError, match="units must be a positive integer, got units=0"):
        layers.GRU(0)


def test_a_mask_has_an_axis_of_steps() -> None:
    x, mask = np.ones((2, 3, 1), "float32"), np.ones(2, bool)
    with pytest.raises(ValueError, match=r"'r' \(LSTM\): mask must be bools of shape \(batch, steps\), got"):
        layers.LSTM(3, name="r")(x, mask=mask)
    with pytest.raises(ValueError, match=r"mask must be bools of shape \(steps, batch\), got shape \(2,\)"):
        layers.RNN(layers.LSTMCell(3), time_major=True)(x, mask=mask)


def test_bidirectional_layers_must_fit() -> None:
    with pytest.raises(ValueError, match=r"takes recurrent layers, such as LSTM\(units\), got layer=<Dense name=d"):
        layers.Bidirectional(layers.Dense(3, name="d"))
    with pytest.raises(ValueError, match="different go_backwards"):
        layers.Bidirectional(layers.LSTM(2), backward_layer=layers.LSTM(2))
    with pytest.raises(ValueError, match="same return_sequences"):
        layers.Bidirectional(layers.LSTM(2, return_sequences=True), backward_layer=layers.LSTM(2, go_backwards=True))
    with pytest.raises(ValueError, match="merge_mode must be one of"):
        layers.Bidirectional(layers.LSTM(2), merge_mode="max")
    with pytest.raises(ValueError, match="takes recurrent layers"):
        layers.Bidirectional(cast(Any, 3))


def test_bidirectional_over_a_custom_cell() -> None:
    layer = layers.Bidirectional(layers.RNN(Leaky(3), name="loop"))
    assert (layer.forward_layer.name, layer.backward_layer.name) == ("forward_loop", "backward_loop")
    x = data(2, 4, 5)
    outputs = layer(x)
    forward = layer.forward_layer.cell.reference(x, np.zeros((2, 3)))[:, -1]
    backward = layer.backward_layer.cell.reference(x[:, ::-1], np.zeros((2, 3)))[:, -1]
    np.testing.assert_allclose(outputs, np.concatenate([forward, backward], 1), rtol=1e-5, atol=1e-6)
