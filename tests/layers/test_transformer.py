"""Transformer blocks and positions against plain NumPy; caches against whole sequences; generation in the graph."""

import itertools
from typing import Any, cast

import numpy as np
import pytest
from shared.layer_gradients import check_layer_gradients
from shared.sample import first_of

import anabranch as ab
from anabranch import decoding, layers, ops

VOCABULARY, CAPACITY = 4, 6


def data(*shape: int, dtype: str = "float64", seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def randomised(layer: Any, *inputs: Any) -> Any:
    """The layer, built for the inputs, with weights that are all of them different."""
    layer(*inputs)
    layer.set_weights([0.5 * data(*np.shape(w), seed=i) for i, w in enumerate(layer.get_weights())])
    return layer


# --- the blocks in NumPy --------------------------------------------------------------------------------------------


def softmax(x: Any) -> Any:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attend(layer: Any, query: Any, source: Any, seen: Any) -> Any:
    """``seen`` is (batch or 1, targets, sources)."""
    q, k, v, out = layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense
    q, k, v = (
        np.einsum("btf,fhd->bthd", x, dense.kernel.numpy()) + dense.bias.numpy()
        for x, dense in ((query, q), (source, k), (source, v))
    )
    scores = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.broadcast_to(seen, (len(q), q.shape[1], k.shape[1]))[:, None], scores, -np.inf)
    attended = np.einsum("bhts,bshd->bthd", softmax(scores), v)
    return np.einsum("bthd,hdf->btf", attended, out.kernel.numpy()) + out.bias.numpy()


def normalise(layer: Any, x: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * layer.gamma.numpy() + layer.beta.numpy()


def part(block: Any, norm: Any, x: Any, function: Any) -> Any:
    if block.normalize_first:
        return x + function(normalise(norm, x))
    return normalise(norm, x + function(x))


def feedforward(block: Any, x: Any) -> Any:
    first, second = block.feedforward_intermediate_dense, block.feedforward_output_dense
    inner = np.maximum(x @ first.kernel.numpy() + first.bias.numpy(), 0)
    return inner @ second.kernel.numpy() + second.bias.numpy()


def encoder_reference(block: Any, x: Any, seen: Any) -> Any:
    attention = block.self_attention_layer
    x = part(block, block.self_attention_layer_norm, x, lambda y: attend(attention, y, y, seen))
    return part(block, block.feedforward_layer_norm, x, lambda y: feedforward(block, y))


def decoder_reference(block: Any, x: Any, seen: Any, source: Any, seen_sources: Any) -> Any:
    attention = block.self_attention_layer
    x = part(block, block.self_attention_layer_norm, x, lambda y: attend(attention, y, y, seen))
    cross = block.cross_attention_layer
    x = part(block, block.cross_attention_layer_norm, x, lambda y: attend(cross, y, source, seen_sources))
    return part(block, block.feedforward_layer_norm, x, lambda y: feedforward(block, y))


@pytest.mark.parametrize("normalize_first", [False, True])
def test_encoder_against_numpy(normalize_first: bool) -> None:
    x = data(2, 4, 6)
    block = layers.TransformerEncoder(5, 3, normalize_first=normalize_first, dtype="float64")
    randomised(block, x)
    everything = np.ones((1, 4, 4), bool)
    np.testing.assert_allclose(block(x), encoder_reference(block, x, everything), rtol=1e-9, atol=1e-12)
    padding = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool)
    pairs = data(2, 4, 4, seed=3) < 0.5
    pairs |= np.eye(4, dtype=bool)
    found = block(x, padding_mask=padding, attention_mask=pairs)
    expected = encoder_reference(block, x, padding[:, None] & pairs)
    np.testing.assert_allclose(found[padding], expected[padding], rtol=1e-9, atol=1e-12)
    _, scores = block(x, return_attention_scores=True)
    assert scores.shape == (2, 3, 4, 4)
    np.testing.assert_allclose(scores.sum(-1), 1, rtol=1e-9)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_decoder_against_numpy(normalize_first: bool) -> None:
    x, source = data(2, 4, 6), data(2, 5, 7, seed=2)
    block = layers.TransformerDecoder(5, 2, normalize_first=normalize_first, dtype="float64")
    randomised(block, x, source)
    causal, sources = np.tri(4, dtype=bool)[None], np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], bool)
    found = block(x, source, encoder_padding_mask=sources)
    expected = decoder_reference(block, x, causal, source, sources[:, None])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    found = block(x, source, use_causal_mask=False)
    everything = np.ones((1, 1, 1), bool)
    np.testing.assert_allclose(found, decoder_reference(block, x, everything, source, everything), rtol=1e-9)


def test_masks_of_the_inputs_count() -> None:
    """Those that an embedding made, and they are handed on."""
    tokens, source = np.array([[1, 2, 0, 0], [3, 1, 2, 1]]), np.array([[2, 0, 0], [1, 3, 0]])
    with ab.Graph().as_default():
        embedding = layers.Embedding(4, 6, mask_zero=True)
        x, y = embedding(ops.convert_to_tensor(tokens)), embedding(ops.convert_to_tensor(source))
        encoded = layers.TransformerEncoder(5, 2)(y)
        decoder = layers.TransformerDecoder(5, 2)
        output = decoder(x, encoded)
        assert output.annotations["mask"] is x.annotations["mask"]
        expected = decoder(ops.stop_gradient(x), encoded, encoder_padding_mask=source != 0)
        found, wanted, again = ab.Session().run([output, expected, layers.TransformerEncoder(5, 2)(x)])
    np.testing.assert_allclose(found[tokens != 0], wanted[tokens != 0], rtol=1e-5, atol=1e-6)
    assert np.isfinite(again).all()


def test_dropout_acts_in_training_only() -> None:
    x = data(2, 4, 6, dtype="float32")
    for block in (layers.TransformerEncoder(5, 2, dropout=0.5), layers.TransformerDecoder(5, 2, dropout=0.5)):
        assert not np.allclose(block(x, training=True), block(x))
        np.testing.assert_array_equal(block(x), block(x))


# --- caches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"sliding_window": 2}, {"use_gate": True, "value_dim": 3}])
@pytest.mark.parametrize("by_row", [False, True])
def test_each_prefix_gives_what_the_whole_gives(options: Any, by_row: bool) -> None:
    """A prefix at once and the rest place by place, with room to spare, for each length of the prefix."""
    x = data(2, 5, 8, dtype="float32")
    layer = randomised(layers.CachedMultiHeadAttention(2, 4, **options), x, x)
    expected = layer(x, x, use_causal_mask=True)
    plain = layers.MultiHeadAttention(2, 4, **options)
    plain(x, x)
    plain.set_weights(layer.get_weights())
    np.testing.assert_allclose(plain(x, x, use_causal_mask=True), expected, rtol=1e-5, atol=1e-6)
    empty = [np.full((2, 7, 2, 4), 1e3, "float32"), np.full((2, 7, 2, options.get("value_dim", 4)), 1e3, "float32")]
    for length in range(1, 6):
        cache: Any = empty
        for start, stop in [(0, length), *((place, place + 1) for place in range(length, 5))]:
            given = x[:, start:stop]
            index = np.full(2, start, "int32") if by_row else np.int32(start)
            found, cache = layer(given, given, cache=cache, cache_update_index=index)
            np.testing.assert_allclose(found, expected[:, start:stop], rtol=1e-4, atol=1e-5)
        assert np.all(cache[0][:, 5:] == 1e3)


def test_rows_of_different_lengths_share_a_cache() -> None:
    """Prompts that are filled up are fed at once; what follows takes the place of the filling."""
    x = data(3, 5, 8, dtype="float32")
    decoder = randomised(layers.TransformerDecoder(7, 2), x)
    lengths = np.array([1, 3, 2], "int32")
    prompts = np.where(np.arange(3)[:, None] < lengths[:, None, None], x[:, :3], 9.0).astype("float32")
    cache: Any = [np.zeros((3, 5, 2, 4), "float32")] * 2
    found, cache = decoder(prompts, self_attention_cache=cache, self_attention_cache_update_index=np.int32(0))
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(found[row, :length], decoder(x)[row, :length], rtol=1e-4, atol=1e-5)
    for step in range(2):
        new = x[np.arange(3), lengths + step][:, None]
        found, cache = decoder(new, self_attention_cache=cache, self_attention_cache_update_index=lengths + step)
        np.testing.assert_allclose(found[:, 0], decoder(x)[np.arange(3), lengths + step], rtol=1e-4, atol=1e-5)


def test_a_decoder_is_a_cell() -> None:
    x = data(2, 5, 8, dtype="float32")
    decoders = [randomised(layers.TransformerDecoder(7, 2, normalize_first=first), x) for first in (False, True)]
    expected = decoders[1](decoders[0](x))
    cells = [layers.TransformerDecoderCell(decoder, max_length=6) for decoder in decoders]
    layer = layers.RNN(cells, return_sequences=True, return_state=True)
    outputs, (keys, values, count), _ = layer(x)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    assert (keys.shape, values.shape, count.tolist()) == ((2, 6, 2, 4), (2, 6, 2, 4), [5, 5])
    short = layer(x, sequence_length=[2, 4])[0]
    np.testing.assert_allclose(short[0, :2], expected[0, :2], rtol=1e-4, atol=1e-5)
    assert not short[0, 2:].any()


def test_a_cell_is_fed_what_is_there_already() -> None:
    """Rows of different lengths at once, then place by place."""
    x, source = data(3, 5, 8, dtype="float32"), data(3, 4, 6, dtype="float32", seed=2)
    decoder = randomised(layers.TransformerDecoder(7, 2), x, source)
    expected, lengths = decoder(x, source), np.array([1, 3, 2], "int32")
    cell = layers.TransformerDecoderCell(decoder, max_length=5)

    @ab.function
    def run(x: Any, source: Any, lengths: Any) -> Any:
        memory = cell.prepare(source)
        first, states = cell.feed(x[:, :3], cell.get_initial_state(3), lengths, memory)
        rest = []
        for step in range(2):
            here = ops.take_along_axis(x, ops.reshape(lengths + step, (3, 1, 1)), axis=1)[:, 0]
            output, states = cell(here, states, memory=memory)
            rest.append(output)
        whole, _ = cell.feed(x, cell.get_initial_state(3), memory=memory)
        return first, rest, states[2], whole

    first, rest, count, whole = run(x, source, lengths)
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(count, lengths + 2)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(first[row, :length], expected[row, :length], rtol=1e-4, atol=1e-5)
        for step in range(2):
            np.testing.assert_allclose(rest[step][row], expected[row, length + step], rtol=1e-4, atol=1e-5)


def test_a_full_cache_says_so() -> None:
    x = data(2, 5, 8, dtype="float32")
    cell = layers.TransformerDecoderCell(layers.TransformerDecoder(7, 2), max_length=4)
    with pytest.raises(Exception, match="The cache of an attention is full: it was made for fewer places than are fed"):
        layers.RNN(cell)(x)
    layer = layers.CachedMultiHeadAttention(2, 4)
    cache = [np.zeros((2, 4, 2, 4), "float32")] * 2
    layer(x, x)
    with pytest.raises((IndexError, ValueError)):
        layer(x[:, :2], x[:, :2], cache=cache, cache_update_index=np.int32(3))


@pytest.mark.parametrize("cached", [False, True])
def test_gradients_against_finite_differences(cached: bool) -> None:
    x, source = data(2, 3, 4), data(2, 2, 5, seed=2)
    block: Any = layers.TransformerDecoder(3, 2, activation="tanh", dtype="float64")
    trained: Any = block
    if cached:
        cell = layers.TransformerDecoderCell(block, 3, dtype="float64")
        trained = layers.RNN(cell, return_sequences=True, dtype="float64")

    def run(value: Any) -> Any:
        return trained(value) if cached else block(value, source)

    run(x)
    trained.set_weights([0.5 * data(*np.shape(w), seed=i) for i, w in enumerate(trained.get_weights())])
    check_layer_gradients(trained, x, lambda value: run(value) - 1.0, rtol=1e-5, atol=1e-7)


# --- generation -----------------------------------------------------------------------------------------------------


class Writer:
    """Two decoders over tokens, with whole sequences and as a step function."""

    def __init__(self, has_source: bool) -> None:
        self.source = data(2, 3, 5, dtype="float32", seed=4) if has_source else None
        self.embedding = layers.TokenAndPositionEmbedding(VOCABULARY, CAPACITY, 8)
        self.decoders = [layers.TransformerDecoder(7, 2) for _ in range(2)]
        tokens = np.zeros((2, CAPACITY), "int32")
        self.whole(tokens)
        for part in (self.embedding, *self.decoders):
            part.set_weights([0.8 * data(*np.shape(w), seed=i) for i, w in enumerate(part.get_weights())])
        self.cells = [layers.TransformerDecoderCell(decoder, CAPACITY) for decoder in self.decoders]

    def whole(self, tokens: Any) -> Any:
        """Log-probabilities, (batch, steps, vocabulary)."""
        x = self.embedding(tokens)
        for decoder in self.decoders:
            x = decoder(x) if self.source is None else decoder(x, self.source[: len(tokens)])
        return np.asarray(ab.ops.log_softmax(self.embedding.token_embedding(x, reverse=True)))

    def first_states(self, batch: int) -> Any:
        own = [cell.get_initial_state(batch) for cell in self.cells]
        return own, () if self.source is None else [cell.prepare(self.source) for cell in self.cells]

    def step(self, tokens: Any, states: Any) -> Any:
        own, memories = states
        x = self.embedding(ops.expand_dims(tokens, 1), positions=ops.expand_dims(own[0][2], 1))[:, 0]
        new = []
        for place, (cell, state) in enumerate(zip(self.cells, own, strict=True)):
            x, state = cell(x, state, memory=memories[place] if memories else None)
            new.append(state)
        return self.embedding.token_embedding(x, reverse=True), (new, memories)

    def score(self, row: int, tokens: Any) -> float:
        """The log-probability of one sequence, by the whole of it, in row `row` of the batch."""
        given = np.zeros((2, len(tokens)), "int32")
        given[:, 0], given[:, 1:] = 1, np.asarray(tokens)[:-1]
        logs = self.whole(given)[row]
        return float(sum(logs[place, token] for place, token in enumerate(tokens)))


def log_probability_of_all(writer: Writer, row: int, length: int) -> dict[tuple[int, ...], float]:
    """Return the log-probability of each sequence that ends with token 0 or has `length` tokens."""
    found = {}
    for tokens in itertools.product(range(VOCABULARY), repeat=length):
        end = tokens.index(0) + 1 if 0 in tokens else length
        found[tokens[:end]] = 0.0
    return {tokens: writer.score(row, tokens) for tokens in found}


@pytest.mark.parametrize("has_source", [False, True])
def test_greedy_search_against_whole_sequences(has_source: bool) -> None:
    writer = Writer(has_source)

    @ab.function
    def search(start: Any) -> Any:
        return decoding.greedy_search(
            writer.step, writer.first_states(2), start_token=start, end_token=0, max_length=CAPACITY
        )

    sequences, scores, lengths = search(np.array([1, 1], "int32"))
    for row in range(2):
        tokens = sequences[row, : lengths[row]]
        np.testing.assert_allclose(scores[row], writer.score(row, tokens), rtol=1e-4, atol=1e-5)
        given = np.ones((2, len(tokens)), "int32")
        given[:, 1:] = tokens[:-1]
        np.testing.assert_array_equal(writer.whole(given)[row].argmax(-1), tokens)


@pytest.mark.parametrize("has_source", first_of([True, False]))
def test_beams_take_their_caches_along(has_source: bool) -> None:
    """A narrow beam's scores are right; one that holds everything finds the best of all sequences."""
    writer = Writer(has_source)

    def search(width: int, length: int) -> Any:
        return ab.function(
            lambda start: decoding.beam_search(
                writer.step,
                writer.first_states(2),
                start_token=start,
                end_token=0,
                max_length=length,
                beam_width=width,
            )
        )(np.array([1, 1], "int32"))

    sequences, scores, lengths = search(3, CAPACITY)
    for row, beam in itertools.product(range(2), range(3)):
        tokens = sequences[row, beam, : lengths[row, beam]]
        np.testing.assert_allclose(scores[row, beam], writer.score(row, tokens), rtol=1e-4, atol=1e-5)
    sequences, scores, lengths = search(9, 3)
    for row in range(2):
        best = sorted(log_probability_of_all(writer, row, 3).items(), key=lambda item: -item[1])[:5]
        found = [tuple(sequences[row, beam, : lengths[row, beam]].tolist()) for beam in range(5)]
        assert found == [tokens for tokens, _ in best]
        np.testing.assert_allclose(scores[row, :5], [score for _, score in best], rtol=1e-4)


# --- positions ------------------------------------------------------------------------------------------------------


def test_sines_against_numpy() -> None:
    x = data(2, 5, 7)
    wanted = np.zeros((9, 7))
    for position, feature in itertools.product(range(9), range(7)):
        angle = position / 100 ** (2 * (feature // 2) / 7)
        wanted[position, feature] = np.cos(angle) if feature % 2 else np.sin(angle)
    layer = layers.SinePositionEncoding(max_wavelength=100, dtype="float64")
    np.testing.assert_allclose(layer(x), np.broadcast_to(wanted[:5], x.shape), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(layer(x, start_index=np.int32(4))[1], wanted[4:], rtol=1e-9, atol=1e-12)
    places = np.array([[0, 1, 2, 3, 4], [8, 1, 1, 0, 5]])
    np.testing.assert_allclose(layer(x, positions=places), wanted[places], rtol=1e-9, atol=1e-12)


def rotated(x: Any, places: Any, wavelength: float) -> Any:
    """By complex numbers: (batch, steps, features) at (batch, steps)."""
    half = x.shape[-1] // 2
    angles = places[..., None] / wavelength ** (np.arange(half) * 2 / x.shape[-1])
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def test_rotations_against_complex_numbers() -> None:
    x, places = data(2, 5, 6), np.broadcast_to(np.arange(5), (2, 5))
    layer = layers.RotaryEmbedding(max_wavelength=100, dtype="float64")
    np.testing.assert_allclose(layer(x), rotated(x, places, 100), rtol=1e-9)
    np.testing.assert_allclose(layer(x, start_index=3), rotated(x, places + 3, 100), rtol=1e-9)
    other = np.array([[4, 1, 0, 2, 2], [1, 2, 3, 4, 9]])
    np.testing.assert_allclose(layer(x, positions=other), rotated(x, other, 100), rtol=1e-9)
    scaled = layers.RotaryEmbedding(max_wavelength=100, scaling_factor=2.0, dtype="float64")
    np.testing.assert_allclose(scaled(x), rotated(x, places / 2, 100), rtol=1e-9)
    heads = data(2, 5, 3, 6)
    wanted = np.stack([rotated(heads[:, :, h], places, 100) for h in range(3)], axis=2)
    np.testing.assert_allclose(layer(heads), wanted, rtol=1e-9)
    features_first = layers.RotaryEmbedding(max_wavelength=100, sequence_axis=2, feature_axis=1, dtype="float64")
    np.testing.assert_allclose(features_first(x.swapaxes(1, 2)), rotated(x, places, 100).swapaxes(1, 2), rtol=1e-9)
    query, key = data(1, 1, 6, seed=1), data(1, 1, 6, seed=2)
    products = [np.vdot(layer(query, start_index=p + 2), layer(key, start_index=p)) for p in (0, 7)]
    np.testing.assert_allclose(products[0], products[1], rtol=1e-9)


def test_learnt_positions() -> None:
    layer = layers.PositionEmbedding(6)
    x = data(2, 4, 3, dtype="float32")
    layer(x)
    table = layer.get_weights()[0]
    assert table.shape == (6, 3)
    np.testing.assert_array_equal(layer(x), np.stack([table[:4]] * 2))
    np.testing.assert_array_equal(layer(x, start_index=np.int32(2))[0], table[2:])
    places = np.array([[5, 0, 1, 2], [3, 3, 3, 3]])
    np.testing.assert_array_equal(layer(x, positions=places), table[places])


def test_tokens_and_positions() -> None:
    tokens = np.array([[1, 2, 0], [3, 0, 0]])
    layer = layers.TokenAndPositionEmbedding(4, 5, 3, mask_zero=True, embeddings_initializer="normal")
    output = layer(tokens)
    table, positions = layer.get_weights()
    np.testing.assert_allclose(output, table[tokens] + positions[:3], rtol=1e-6)
    np.testing.assert_allclose(layer.token_embedding(output, reverse=True), output @ table.T, rtol=1e-4, atol=1e-6)
    with ab.Graph().as_default():
        symbols = layer(ops.convert_to_tensor(tokens))
        np.testing.assert_array_equal(ab.Session().run(symbols.annotations["mask"]), tokens != 0)


def test_a_table_for_the_way_back() -> None:
    layer = layers.ReversibleEmbedding(4, 3, tie_weights=False, logit_soft_cap=0.5, reverse_dtype="float64")
    vectors = layer(np.array([1, 2]))
    _, back = layer.get_weights()
    assert back.shape == (3, 4)
    logits = layer(vectors, reverse=True)
    assert logits.dtype == "float64"
    np.testing.assert_allclose(logits, 0.5 * np.tanh(vectors @ back / 0.5), rtol=1e-5, atol=1e-7)


# --- saving, dtypes, errors -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_kernels")
def test_saved_and_loaded(tmp_path: Any) -> None:
    tokens, source = ab.Input((None,), dtype="int32"), ab.Input((None, 8))
    embedding = layers.TokenAndPositionEmbedding(5, 6, 8, mask_zero=True)
    x = layers.RotaryEmbedding()(embedding(tokens))
    x = layers.Add()([x, layers.SinePositionEncoding(max_wavelength=50)(x)])
    encoded = layers.TransformerEncoder(7, 2, activation="gelu", normalize_first=True, dropout=0.1)(source)
    decoder = layers.TransformerDecoder(7, 2, layer_norm_epsilon=1e-3, kernel_initializer="he_normal")
    x = layers.RNN(layers.TransformerDecoderCell(layers.TransformerDecoder(3, 4), 6))(decoder(x, encoded))
    model = ab.Model([tokens, source], layers.CachedMultiHeadAttention(2, 3)(source, source)[:, 0] + x)
    given = [np.array([[1, 2, 3], [4, 0, 0]]), data(2, 4, 8, dtype="float32")]
    expected = model.predict(given, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded: Any = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(given, verbose=0), expected)
    for layer, other in zip(model.layers, loaded.layers, strict=True):
        assert layer.get_config() == other.get_config()


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize(
    "make",
    [
        lambda **kw: layers.TransformerEncoder(5, 2, **kw),
        lambda **kw: layers.TransformerDecoder(5, 2, **kw),
        lambda **kw: layers.RNN(
            layers.TransformerDecoderCell(layers.TransformerDecoder(5, 2, **kw), 4, **kw), return_sequences=True, **kw
        ),
        lambda **kw: layers.PositionEmbedding(4, **kw),
        lambda **kw: layers.SinePositionEncoding(**kw),
        lambda **kw: layers.RotaryEmbedding(**kw),
    ],
)
def test_half_precision_unknown_sizes_and_no_rows(make: Any) -> None:
    layer = make(dtype="mixed_float16")
    with ab.Graph().as_default():
        symbol = ab.placeholder((None, None, 8), "float32")
        output = layer(symbol)
        session = ab.Session()
        for rows, steps in ((2, 4), (1, 1), (0, 3)):
            found = session.run(output, {symbol: data(rows, steps, 8, dtype="float32")})
            assert found.shape == (rows, steps, 8)
            assert found.dtype == "float16"
            assert np.isfinite(found).all()


def test_errors() -> None:
    x = data(2, 4, 6, dtype="float32")
    with pytest.raises(ValueError, match="TransformerEncoder: num_heads must be a positive integer, got num_heads=0"):
        layers.TransformerEncoder(4, 0)
    with pytest.raises(ValueError, match=r"'wide' \(TransformerDecoder\): num_heads=8 heads need as many features"):
        layers.TransformerDecoder(4, 8, name="wide")(x)
    decoder = layers.TransformerDecoder(4, 2, name="writer")
    decoder(x, x)
    with pytest.raises(ValueError, match=r"'writer' .* was built with an encoder_sequence, but called without one"):
        decoder(x)
    alone = layers.TransformerDecoder(4, 2)
    alone(x)
    with pytest.raises(ValueError, match="was built without an encoder_sequence, but called with one"):
        alone(x, x)
    with pytest.raises(ValueError, match=r"\(TransformerDecoderCell\) has no encoder sequence to attend to"):
        layers.RNN(layers.TransformerDecoderCell(decoder, 4))(x)
    with pytest.raises(ValueError, match="TransformerDecoderCell takes a TransformerDecoder, got"):
        layers.TransformerDecoderCell(cast(Any, layers.GRUCell(3)), 4)
    attention = layers.CachedMultiHeadAttention(2, 3, name="heads")
    with pytest.raises(ValueError, match=r"'heads' .* was given a cache_update_index without a cache"):
        attention(x, x, cache_update_index=0)
    cache = [np.zeros((2, 4, 2, 3), "float32")] * 2
    with pytest.raises(ValueError, match="gives no attention scores with a cache"):
        attention(x, x, cache=cache, return_attention_scores=True)
    other, pixels = layers.CachedMultiHeadAttention(2, 3), x.reshape(2, 2, 2, 6)
    with pytest.raises(ValueError, match=r"takes sequences of vectors with a cache, got query shape \(2, 2, 2, 6\)"):
        other(pixels, pixels, cache=cache)
    with pytest.raises(
        ValueError, match=r"has vectors for sequence_length=3 positions, got inputs of shape \(2, 4, 6\)"
    ):
        layers.PositionEmbedding(3)(x)
    with pytest.raises(ValueError, match=r"an even, known number of features along axis -1 .* got shape \(2, 4, 3\)"):
        layers.RotaryEmbedding()(x[..., :3])
    for kind in (layers.RotaryEmbedding, layers.SinePositionEncoding):
        with pytest.raises(ValueError, match=f"{kind.__name__}: max_wavelength must be positive, got max_wavelength=0"):
            kind(max_wavelength=0)
