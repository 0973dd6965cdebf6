"""The cell that attends to a memory at each step, against NumPy."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import anabranch as ab
from anabranch import decoding, layers, ops

SCORES = ["general", "dot", "additive"]


def data(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - np.max(x, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def attend(cell: Any, query: np.ndarray, memory: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The attention, by NumPy."""
    weights = {weight.path.split("/")[-2]: weight.numpy() for weight in cell.weights if "layer" in weight.path}
    keys = memory @ weights["memory_layer"] if cell.score != "dot" else memory
    if cell.score == "additive":
        scores = (np.tanh((query @ weights["query_layer"])[:, None] + keys) @ weights["score_layer"])[..., 0]
    else:
        scores = np.einsum("bd,bsd->bs", query, keys)
    weighed = np.exp(log_softmax(np.where(mask, scores, -1e9)))
    context = np.einsum("bs,bsd->bd", weighed, memory)
    return np.tanh(np.concatenate([query, context], axis=-1) @ weights["attention_layer"])


@pytest.mark.parametrize("score", SCORES)
def test_attention_is_that_of_numpy_at_each_step(score: str) -> None:
    inner = layers.GRUCell(3, dtype="float64")
    layer = layers.AttentionRNN(
        layers.AttentionCell(inner, 4, score, dtype="float64"), return_sequences=True, dtype="float64"
    )
    x, memory = data(2, 5, 2), data(2, 6, 3)
    mask = np.arange(6) < np.array([[6], [4]])
    outputs = layer(x, memory, memory_mask=mask)
    hidden, attention = np.zeros((2, 3)), np.zeros((2, 4))
    for position in range(5):
        hidden = inner(np.concatenate([x[:, position], attention], axis=-1), [hidden])[0]
        attention = attend(layer.cell, np.asarray(hidden), memory, mask)
        np.testing.assert_allclose(outputs[:, position], attention, rtol=1e-7)
    other = memory + 100 * ~mask[..., None]
    np.testing.assert_allclose(layer(x, other, memory_mask=mask), outputs, rtol=1e-9)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_of_attention_in_double_precision(score: str) -> None:
    cell = layers.AttentionCell(layers.LSTMCell(3, dtype="float64"), 2, score, dtype="float64")
    layer = layers.AttentionRNN(cell, return_sequences=True, dtype="float64")
    mask = np.array([[True, True, False, True], [True, False, True, True]])

    def function(x: Any, memory: Any, hidden: Any, carry: Any) -> Any:
        return layer(x, memory, initial_state=[hidden, carry], memory_mask=mask)

    arguments = [data(2, 3, 2), data(2, 4, 3), data(2, 3), data(2, 3) * 0.5]
    assert ab.testing.check_gradients(function, arguments, order=1) > 0
    with ab.Graph().as_default():
        loss = ops.sum(ops.square(function(*(ops.convert_to_tensor(argument) for argument in arguments))))
        slopes = ab.Session().run(ab.gradients(loss, layer.trainable_weights))
    assert all(np.abs(slope).max() > 0 for slope in slopes)


def test_a_model_with_attention_is_saved_and_masks_come_from_embeddings(tmp_path: Path) -> None:
    source, target = ab.Input((None,), dtype="int32"), ab.Input((None,), dtype="int32")
    encoded = layers.LSTM(4, return_sequences=True)(layers.Embedding(7, 3, mask_zero=True)(source))
    cell = layers.AttentionCell([layers.GRUCell(3), layers.LSTMCell(4)][1], 5, "additive")
    decoded = layers.AttentionRNN(cell, return_sequences=True)(layers.Embedding(7, 2)(target), encoded)
    model = ab.Model([source, target], layers.Dense(7)(decoded))
    x, y = np.array([[1, 2, 3], [4, 0, 0]], "int32"), np.array([[1, 2], [3, 4]], "int32")
    expected = model.predict([x, y], verbose=0)
    np.testing.assert_allclose(model.predict([x[1:, :1], y[1:]], verbose=0), expected[1:], rtol=1e-5, atol=1e-6)
    model.save(tmp_path / "model.keras")
    again = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict([x, y], verbose=0), expected, rtol=1e-6)


def test_stacked_cells_attend() -> None:
    cell = layers.AttentionCell(layers.StackedRNNCells([layers.GRUCell(3, dropout=0.5), layers.LSTMCell(4)]), 5)
    layer = layers.AttentionRNN(cell, return_state=True)
    output, *states = layer(data(2, 3, 2), data(2, 6, 1))
    assert [state.shape for state in states] == [(2, 3), (2, 4), (2, 4), (2, 5)]
    np.testing.assert_array_equal(output, states[-1])
    assert not np.allclose(layer(data(2, 3, 2), data(2, 6, 1), training=True)[0], output)


def test_attention_that_can_not_be() -> None:
    with pytest.raises(ValueError, match="score must be 'general', 'dot' or 'additive', got 'cosine'"):
        layers.AttentionCell(layers.GRUCell(3), 4, "cosine")
    with pytest.raises(ValueError, match="AttentionRNN takes an AttentionCell, got <"):
        layers.AttentionRNN(cast(Any, layers.GRUCell(3)))
    attending = layers.AttentionCell(layers.GRUCell(3), 4)
    for wrapped in (layers.AdaptiveComputationTime(attending), layers.ZoneoutCell(attending, 0.1)):
        kind = type(wrapped).__name__
        with pytest.raises(
            ValueError,
            match=rf"other way round: AttentionCell\({kind}\(GRUCell\(\.\.\.\)\), units",
        ):
            layers.AttentionRNN(cast(Any, wrapped))
    with pytest.raises(ValueError, match=r"score='dot' needs a memory of the length of the cell's output, 3, got"):
        layers.AttentionRNN(layers.AttentionCell(layers.GRUCell(3), 4, "dot"))(data(2, 3, 2), data(2, 6, 5))
    with pytest.raises(ValueError, match=r"can't be built without a memory"):
        layers.AttentionCell(layers.GRUCell(3), 4)(data(2, 3), [data(2, 3), data(2, 4)])


def test_beam_search_over_a_decoder_with_attention_keeps_each_row_to_its_memory() -> None:
    cell = layers.AttentionCell(layers.GRUCell(4), 5)
    embedding, readout = layers.Embedding(6, 3), layers.Dense(6)

    @ab.function
    def search(memory: Any) -> Any:
        def step(tokens: Any, states: Any) -> Any:
            own, attended = states
            output, own = cell(embedding(tokens), own, memory=attended)
            return readout(output) * 20.0, (own, attended)

        layers.AttentionRNN(cell).build((None, None, 3), (None, None, 4))
        states = (cell.get_initial_state(ops.shape(memory)[0]), cell.prepare(memory))
        return decoding.beam_search(step, states, start_token=1, end_token=0, max_length=6, beam_width=3)

    memory = data(4, 5, 4).astype("float32") * 3
    together = search(memory)
    assert len({tuple(row) for row in together[0][:, 0].tolist()}) > 1
    for row in range(4):
        for one, found in zip(search(memory[row : row + 1]), together, strict=True):
            np.testing.assert_allclose(one[0], found[row], rtol=1e-4, atol=1e-5)
