"""Sequences of different lengths: `sequence_length`, `time_major`, rows that begin again, `dynamic_rnn`."""

from typing import Any

import numpy as np
import pytest
from shared.layer_gradients import check_layer_gradients

import anabranch as ab
from anabranch import layers

LENGTHS = np.array([3, 0, 5, 1], "int32")
dynamic_rnn: Any = ab.dynamic_rnn  # the structure of the states is that of each cell
BEYOND = np.arange(6) >= LENGTHS[:, None]  # (batch, steps), of sequences of 6 steps


def data(*shape: int, dtype: str = "float32", seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class Counting(layers.Layer):
    """A cell whose output is no state, and that counts the steps that are taken."""

    state_size = (2, 1)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def call(self, x: Any, states: Any) -> Any:
        self.steps.assign(self.steps + 1.0)
        total, count = states
        return ab.ops.concatenate([total + x, x], axis=1), [total + x, count + 1]


def by_row(layer: Any, x: Any, lengths: Any) -> tuple[Any, list[Any]]:
    """The outputs and states of one row at a time, which is cut off at its end."""
    outputs = np.zeros((*x.shape[:2], layer.cell.output_size), x.dtype)
    states = []
    for row, length in enumerate(lengths):
        found, *final = layer(x[row : row + 1, :length])
        outputs[row, :length] = found[0]
        states.append(final)
    return outputs, [np.concatenate(parts) for parts in zip(*states, strict=True)]


@pytest.mark.parametrize("kind", [layers.LSTMCell, layers.GRUCell, layers.SimpleRNNCell])
@pytest.mark.parametrize("time_major", [False, True])
def test_against_rows_one_by_one(kind: Any, time_major: bool) -> None:
    layer = layers.RNN(kind(3), return_sequences=True, return_state=True)
    x = data(4, 6, 2)
    expected, states = by_row(layer, x, LENGTHS)
    given = x.swapaxes(0, 1) if time_major else x
    outputs, final = dynamic_rnn(layer.cell, given, sequence_length=LENGTHS, time_major=time_major)
    np.testing.assert_allclose(outputs.swapaxes(0, 1) if time_major else outputs, expected, rtol=1e-5, atol=1e-6)
    for state, wanted in zip(final, states, strict=True):
        np.testing.assert_allclose(state, wanted, rtol=1e-5, atol=1e-6)
    assert not outputs.swapaxes(0, 1)[BEYOND].any() if time_major else not outputs[BEYOND].any()


def test_the_loop_ends_with_the_longest_row() -> None:
    cell = Counting()
    x = data(4, 6, 2)
    outputs, (total, count) = dynamic_rnn(cell, x, sequence_length=LENGTHS)
    assert float(cell.steps.numpy()) == 5
    np.testing.assert_array_equal(count[:, 0], LENGTHS)
    sums = np.where(BEYOND[..., None], 0, x).cumsum(1)
    np.testing.assert_allclose(total, sums[:, -1], rtol=1e-5)
    wanted = np.where(BEYOND[..., None], 0, np.concatenate([sums, x], axis=2))
    np.testing.assert_allclose(outputs, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lengths", [[0, 0, 0, 0], [6, 6, 6, 6], [9, -1, 2, 6]])
def test_lengths_at_the_edges(lengths: list[int]) -> None:
    """Too long is as long as can be, and below 0 is 0."""
    layer = layers.RNN(layers.GRUCell(3), return_sequences=True, return_state=True)
    x = data(4, 6, 2)
    expected, (state,) = by_row(layer, x, np.clip(lengths, 0, 6))
    outputs, final = layer(x, sequence_length=np.array(lengths))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(final, state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cell", [layers.LSTMCell(3), Counting()])
@pytest.mark.parametrize("zeroes", [False, True])
def test_the_last_output_is_that_of_each_rows_end(cell: Any, zeroes: bool) -> None:
    x = data(4, 6, 2)
    sequences = layers.RNN(cell, return_sequences=True)(x)
    last = layers.RNN(cell, zero_output_for_mask=zeroes)(x, sequence_length=LENGTHS)
    expected = np.where(LENGTHS[:, None] == 0, 0, sequences[np.arange(4), LENGTHS - 1])
    np.testing.assert_allclose(last, expected, rtol=1e-5, atol=1e-6)


def test_going_backwards_begins_at_each_rows_end() -> None:
    x = data(4, 6, 2)
    layer = layers.RNN(layers.GRUCell(3), return_sequences=True, return_state=True, go_backwards=True)
    outputs, state = layer(x, sequence_length=LENGTHS)
    forward = layers.RNN(layer.cell, return_sequences=True, return_state=True)
    for row, length in enumerate(LENGTHS):
        wanted, final = forward(x[row : row + 1, :length][:, ::-1])
        np.testing.assert_allclose(outputs[row, 6 - length :], wanted[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state[row], final[0], rtol=1e-5, atol=1e-6)
        assert not outputs[row, : 6 - length].any()


@pytest.mark.parametrize("time_major", [False, True])
def test_bidirectional(time_major: bool) -> None:
    x = data(4, 6, 2)
    layer = layers.Bidirectional(layers.LSTM(3, return_sequences=True, time_major=time_major))
    lengths = np.maximum(LENGTHS, 1)
    outputs = layer(x.swapaxes(0, 1) if time_major else x, sequence_length=lengths)
    outputs = outputs.swapaxes(0, 1) if time_major else outputs
    mask = np.arange(6) < lengths[:, None]
    plain = layers.Bidirectional(layers.LSTM(3, return_sequences=True))
    plain(x)
    plain.set_weights(layer.get_weights())
    np.testing.assert_allclose(outputs, plain(x, mask=mask), rtol=1e-5, atol=1e-6)
    again = layers.Bidirectional.from_config(layer.get_config())
    assert again.forward_layer.time_major == again.backward_layer.time_major == time_major


def test_a_mask_beside_lengths() -> None:
    """Masked steps before the end repeat the output, as ever; past the end outputs are 0."""
    x, mask = data(2, 4, 2), np.array([[True, False, True, True], [False, True, True, False]])
    layer = layers.SimpleRNN(3, return_sequences=True, return_state=True)
    outputs, state = layer(x, mask=mask, sequence_length=[3, 2])
    both = mask & (np.arange(4) < np.array([[3], [2]]))
    expected, wanted = layer(x, mask=both)
    np.testing.assert_allclose(outputs[0, :3], expected[0, :3], rtol=1e-6)
    np.testing.assert_allclose(outputs[1, :2], expected[1, :2], rtol=1e-6)
    np.testing.assert_allclose(state, wanted, rtol=1e-6)
    assert not outputs[0, 3:].any()
    assert not outputs[1, 2:].any()


def test_time_major_masks() -> None:
    x, mask = data(2, 4, 2), np.array([[True, False, True, True], [False, True, True, False]])
    layer = layers.GRU(3, return_sequences=True)
    other = layers.GRU(3, return_sequences=True, time_major=True)
    expected = layer(x, mask=mask)
    other.build((4, 2, 2))
    other.set_weights(layer.get_weights())
    np.testing.assert_allclose(other(x.swapaxes(0, 1), mask=mask.T).swapaxes(0, 1), expected, rtol=1e-6)
    assert layers.GRU.from_config(other.get_config()).time_major
    assert "time_major" not in layer.get_config()


def test_unknown_sizes_and_no_rows() -> None:
    cell = layers.LSTMCell(3)
    x = data(4, 6, 2)
    expected = np.asarray(dynamic_rnn(cell, x, sequence_length=LENGTHS)[0])
    with ab.Graph().as_default():
        symbol = ab.placeholder((None, None, 2), "float32")
        lengths = ab.placeholder((None,), "int64")
        outputs, (hidden, _) = dynamic_rnn(cell, symbol, sequence_length=lengths)
        assert outputs.shape == (None, None, 3)
        session = ab.Session()
        for rows, steps in ((4, 6), (2, 4), (1, 3)):
            given = {symbol: x[:rows, :steps], lengths: np.minimum(LENGTHS[:rows], steps)}
            np.testing.assert_allclose(session.run(outputs, given), expected[:rows, :steps], rtol=1e-5, atol=1e-6)
        none = session.run([outputs, hidden], {symbol: x[:0], lengths: LENGTHS[:0]})
        assert [value.shape for value in none] == [(0, 6, 3), (0, 3)]


@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("cell", [layers.GRUCell(2, dtype="float64"), Counting(dtype="float64")])
def test_gradients_against_finite_differences(cell: Any, return_sequences: bool) -> None:
    layer = layers.RNN(cell, return_sequences=return_sequences, dtype="float64")
    x = data(4, 6, 2, dtype="float64")

    found, *_ = check_layer_gradients(layer, x, lambda value: layer(value, sequence_length=LENGTHS), rtol=1e-6)
    assert not found[BEYOND].any()


def test_what_lies_past_the_end_takes_no_part() -> None:
    x = data(4, 6, 2)
    layer = layers.LSTM(3, return_sequences=True)
    expected = layer(x, sequence_length=LENGTHS)
    spoilt = np.where(BEYOND[..., None], np.nan, x).astype("float32")
    np.testing.assert_array_equal(layer(spoilt, sequence_length=LENGTHS), expected)


def test_stacked_cells_and_first_states() -> None:
    cells, x = [layers.LSTMCell(3), layers.GRUCell(2)], data(4, 6, 2)
    outputs, ((hidden, memory), (other,)) = dynamic_rnn(cells, x, sequence_length=LENGTHS)
    assert (outputs.shape, hidden.shape, memory.shape, other.shape) == ((4, 6, 2), (4, 3), (4, 3), (4, 2))
    first, state = dynamic_rnn(cells, x[:, :2], sequence_length=np.minimum(LENGTHS, 2))
    second, _ = dynamic_rnn(cells, x[:, 2:], sequence_length=np.maximum(LENGTHS - 2, 0), initial_state=state)
    np.testing.assert_allclose(np.concatenate([first, second], 1), outputs, rtol=1e-5, atol=1e-6)


def test_an_attention_over_lengths() -> None:
    cell = layers.AttentionCell(layers.GRUCell(3, dropout=0.5, seed=1), units=4)
    layer = layers.AttentionRNN(cell, return_sequences=True)
    x, memory = data(4, 6, 2), data(4, 5, 3)
    outputs = layer(x, memory, sequence_length=LENGTHS)
    np.testing.assert_allclose(outputs[2, :5], layer(x, memory)[2, :5], rtol=1e-5, atol=1e-6)
    assert not outputs[BEYOND].any()
    assert not np.allclose(layer(x, memory, training=True), layer(x, memory))


@pytest.mark.parametrize("kind", [layers.ConvLSTM1D, layers.ConvLSTM2D])
def test_convolutional_lstms(kind: Any) -> None:
    """Lengths, masks, and dropout that is the same at each step."""
    layer = kind(2, 3, padding="same", return_sequences=True, return_state=True)
    sizes = (4,) * layer.cell.rank
    x = data(4, 6, *sizes, 1)
    outputs, *states = layer(x, sequence_length=LENGTHS)
    masked, *others = layer(x, mask=~BEYOND)
    assert not outputs[BEYOND].any()
    np.testing.assert_allclose(outputs[~BEYOND], masked[~BEYOND], rtol=1e-5, atol=1e-6)
    for row, length in enumerate(LENGTHS):
        wanted, *final = layer(x[row : row + 1, :length])
        np.testing.assert_allclose(outputs[row, :length], wanted[0], rtol=1e-5, atol=1e-6)
        for state, other, alone in zip(states, others, final, strict=True):
            np.testing.assert_allclose(state[row], alone[0], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(other[row], alone[0], rtol=1e-5, atol=1e-6)
    cell = layers.ConvLSTMCell(1, 1, 1, dropout=0.5, recurrent_dropout=0.5, seed=1, unit_forget_bias=False)
    loop = layers.RNN(cell, return_sequences=True)
    ones = np.ones((2, 5, 30, 1), "float32")
    loop(ones)
    cell.set_weights([np.ones((1, 1, 4)), np.zeros((1, 1, 4)), np.array([9.0, -99.0, 0.0, 9.0])])
    dropped = loop(ones, training=True)  # without a memory, each step shows the mask of the candidate
    assert len(np.unique(dropped.round(3))) > 1
    np.testing.assert_allclose(dropped, np.repeat(dropped[:, :1], 5, axis=1), rtol=1e-6)


# --- rows that begin again -------------------------------------------------------------------------------------------


def test_rows_begin_anew_within_a_call() -> None:
    layer = layers.LSTM(3, stateful=True)
    x = data(3, 4, 2)
    fresh = layer(x)
    on = layer(x, reset=np.array([True, False, True]))
    np.testing.assert_allclose(on[[0, 2]], fresh[[0, 2]], rtol=1e-6)
    assert not np.allclose(on[1], fresh[1])
    again = layer(x, reset=np.array([False, True, False]))
    np.testing.assert_allclose(again[1], fresh[1], rtol=1e-6)
    np.testing.assert_allclose(again[0], on[1] * 0 + layer_after_two(layer, x)[0], rtol=1e-5)


def layer_after_two(layer: Any, x: Any) -> Any:
    """The last output of the second of two calls in a row, for each row."""
    other = layers.LSTM(3)
    twice = np.concatenate([x, x], axis=1)
    other(twice)
    other.set_weights(layer.get_weights())
    return other(twice)


def test_rows_are_set_at_once() -> None:
    layer = layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)], stateful=True)
    x = data(3, 4, 2)
    fresh = layer(x)
    layer.reset_states(rows=[1])
    hidden, memory, other = (variable.numpy() for part in layer.states for variable in part)
    for state in (hidden, memory, other):
        assert [bool(row.any()) for row in state] == [True, False, True]
    layer.reset_states([np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 2))], rows=np.array([True, False, True]))
    assert layer.states[0][0].numpy()[:, 0].tolist() == [1, 0, 1]
    layer.reset_states()
    np.testing.assert_allclose(layer(x), fresh, rtol=1e-6)


def test_errors() -> None:
    x = data(2, 3, 2)
    layer = layers.LSTM(3, name="reader")
    with pytest.raises(ValueError, match=r"'reader' \(LSTM\): sequence_length must be ints .* got float32 of shape"):
        layer(x, sequence_length=np.ones(2, "float32"))
    with pytest.raises(
        ValueError, match=r"sequence_length must be ints of shape \(batch,\), got int64 of shape \(2, 1\)"
    ):
        layer(x, sequence_length=np.ones((2, 1), "int64"))
    with pytest.raises(ValueError, match=r"'reader' \(LSTM\) has nothing to reset: it is not stateful"):
        layer(x, reset=np.array([True, False]))
    with pytest.raises(ValueError, match=r"'reader' has no states to set\. Make it with stateful=True"):
        layer.reset_states(rows=[0])
    going = layers.LSTM(3, stateful=True, name="going")
    going(x)
    with pytest.raises(ValueError, match=r"reset must be bools of shape \(batch,\), got int64 of shape \(2,\)"):
        going(x, reset=np.array([1, 0]))
    with pytest.raises(ValueError, match="'going' has 2 states, but reset_states got 1"):
        going.reset_states([np.zeros((2, 3))])
    with pytest.raises(ValueError, match=r"states\[0\] in reset_states must have the shape \(1, 3\), got \(2, 3\)"):
        going.reset_states([np.zeros((2, 3)), np.zeros((2, 3))], rows=[0])


@pytest.mark.parametrize("rows", [1, 3])
def test_as_many_entries_as_rows(rows: int) -> None:
    """One entry isn't spread over the batch either: who gives one means one sequence."""
    x = data(4, 6, 2)
    layer = layers.LSTM(3, name="reader")
    with pytest.raises(
        ValueError,
        match=rf"'reader' \(LSTM\): sequence_length must have an entry for each row of the batch, of which there "
        rf"are 4; got shape \({rows},\)",
    ):
        layer(x, sequence_length=np.ones(rows, "int32"))
    going = layers.LSTM(3, stateful=True, name="going")
    going(x)
    with pytest.raises(
        ValueError, match=r"'going' \(LSTM\): reset must have an entry for each row .* there are 4; got shape"
    ):
        going(x, reset=np.ones(rows, "bool"))


@pytest.mark.parametrize("known", [None, 4], ids=["unknown batch", "known batch"])
def test_as_many_entries_as_rows_where_their_number_shows_at_run_time(known: int | None) -> None:
    layer = layers.Bidirectional(layers.GRU(3, name="reader"))
    x = data(4, 6, 2)
    expected = layer(x, sequence_length=LENGTHS)
    with ab.Graph().as_default():
        given, lengths = ab.placeholder((known, 6, 2)), ab.placeholder((None,), "int32")
        run: Any = ab.Session().make_callable(layer(given, sequence_length=lengths), [given, lengths])
    np.testing.assert_allclose(run(x, LENGTHS), expected, rtol=1e-6)
    for wrong in (LENGTHS[:1], LENGTHS[:3]):
        with pytest.raises(
            ab.ops.InvalidArgumentError,
            match=rf"x is {len(wrong)} and y is 4\. Layer 'forward_reader' \(GRU\): sequence_length must have an entry "
            "for each row of the batch",
        ):
            run(x, wrong)


def test_as_many_resets_as_rows_at_run_time() -> None:
    layer = layers.LSTM(3, stateful=True, name="going")
    with ab.Graph().as_default():
        given, reset = ab.placeholder((4, 6, 2)), ab.placeholder((None,), "bool")
        run: Any = ab.Session().make_callable(layer(given, reset=reset), [given, reset])
    fresh = run(data(4, 6, 2), np.zeros(4, "bool"))
    np.testing.assert_allclose(run(data(4, 6, 2), np.ones(4, "bool")), fresh, rtol=1e-6)
    with pytest.raises(ab.ops.InvalidArgumentError, match=r"'going' \(LSTM\): reset must have an entry for each row"):
        run(data(4, 6, 2), np.ones(1, "bool"))


def test_saved_and_loaded(tmp_path: Any) -> None:
    inputs, lengths = ab.Input((None, 2)), ab.Input((), dtype="int32")
    outputs = layers.LSTM(3, return_sequences=True)(inputs, sequence_length=lengths)
    model = ab.Model([inputs, lengths], outputs)
    x = data(4, 6, 2)
    expected = model.predict([x, LENGTHS], verbose=0)
    assert not expected[BEYOND].any()
    model.save(tmp_path / "model.keras")
    loaded: Any = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict([x, LENGTHS], verbose=0), expected)
