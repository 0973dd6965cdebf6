"""Layers that add losses and count, in the steps of decoding: as in an `RNN` over the sequences that were found."""

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import decoding, layers, ops

TOKENS, UNITS, BATCH = 7, 4, 5
STATE = np.random.default_rng(2).normal(size=(BATCH, UNITS))


class Decoder(layers.Layer):
    """The step of a decoder: an embedding, a cell, a mixture of experts, logits."""

    def __init__(self, noisy: bool = False) -> None:
        super().__init__(dtype="float64")
        seeds = iter(range(1, 10))  # with these, rows end at different steps
        normal = lambda: ab.initializers.RandomNormal(stddev=1.5, seed=next(seeds))  # noqa: E731
        inner = layers.GRUCell(UNITS, dtype="float64", kernel_initializer=normal(), recurrent_initializer=normal())
        self.embedding = layers.Embedding(TOKENS, 3, embeddings_initializer=normal(), dtype="float64")
        self.cell = layers.AdaptiveComputationTime(inner, ponder_cost=0.5, max_steps=4, dtype="float64")
        self.mixture = layers.MixtureOfExperts(
            3, lambda: layers.Dense(UNITS, kernel_initializer=normal(), dtype="float64"), k=2, noisy=noisy,
            capacity_factor=1.0, seed=3, gate_initializer=normal(), dtype="float64",
        )  # fmt: skip
        self.logits = layers.Dense(TOKENS, kernel_initializer=normal(), dtype="float64")
        self.cell.ponder_metric = ab.metrics.Mean("ponder_steps", dtype="float64")
        self.mixture.dropped_metric = ab.metrics.Sum("dropped")

    def call(self, tokens: Any, states: Any) -> Any:
        output, states = self.cell(self.embedding(tokens), states)
        return self.logits(self.mixture(output)), states


def made() -> Any:
    decoder = Decoder()
    decoder(np.zeros(2, "int32"), [STATE[:2]])
    decoder.cell.halting.set_weights([np.ones((UNITS, 1)), [-1.0]])
    for metric in (decoder.cell.ponder_metric, decoder.mixture.dropped_metric):
        metric.reset_state()
    return decoder


def run(decoder: Any, search: Any, *given: Any, **options: Any) -> Any:
    """The results of a search, the losses, and gradients of these by all weights."""

    @ab.function
    def found(state: Any, *values: Any) -> Any:
        results = search(decoder, [state], *values, **options)
        slopes = ab.gradients(sum(decoder.losses), decoder.trainable_weights, unconnected_gradients="zero")
        return results, decoder.losses, [ab.convert_to_tensor(slope) for slope in slopes]

    return found(STATE, *given)


def reference(decoder: Any, inputs: Any, lengths: Any) -> Any:
    """Losses and counts of the same layers, step by step, on the rows that have not ended."""
    counts = {"costs": np.zeros(len(lengths)), "calls": 0.0, "balance": np.zeros(2), "taken": 0, "dropped": 0}
    state = STATE
    for step in range(inputs.shape[1]):
        live = np.flatnonzero(step < lengths)
        for row in live:  # alone, so that the mean over rows is its own
            decoder.cell(decoder.embedding(inputs[row : row + 1, step]), [state[row : row + 1]])
            counts["costs"][row] += float(decoder.cell.losses[0])
            counts["calls"] += float(decoder.cell.mean_ponder_steps.numpy())
        if len(live):
            _, (new,) = decoder(inputs[live, step], [state[live]])
            state = state.copy()
            state[live] = new
            counts["balance"] += [float(loss) for loss in decoder.losses[1:]]
            counts["taken"] = counts["taken"] + decoder.mixture.expert_tokens.numpy()
            counts["dropped"] += int(decoder.mixture.dropped_tokens.numpy())
    return counts


def check(decoder: Any, losses: Any, inputs: Any, lengths: Any) -> None:
    """Losses and counts of the latest run are those of the reference."""
    mixture, cell = decoder.mixture, decoder.cell
    noted = [mixture.expert_tokens.numpy(), int(mixture.dropped_tokens.numpy())]
    means = [float(cell.mean_ponder_steps.numpy()), float(cell.ponder_metric.result())]
    dropped = float(mixture.dropped_metric.result())
    expected = reference(decoder, inputs, lengths)
    np.testing.assert_allclose(losses, [expected["costs"].mean(), *expected["balance"]], rtol=1e-9)
    np.testing.assert_array_equal(noted[0], expected["taken"])
    assert noted[1] == dropped == expected["dropped"]
    np.testing.assert_allclose(means, expected["calls"] / lengths.sum(), rtol=1e-6)


def shifted(sequences: Any, start: int) -> Any:
    """Return what the step was given: the start token, then all tokens but the last."""
    return np.concatenate([np.full((len(sequences), 1), start), sequences[:, :-1]], axis=1).astype("int32")


@pytest.mark.parametrize(("search", "options"), [(decoding.greedy_search, {}), (decoding.sample, {"seed": 4})])
def test_searches_add_up_what_the_ragged_batches_cost(search: Any, options: Any) -> None:
    decoder = made()
    (sequences, _, lengths), losses, gradients = run(
        decoder, search, start_token=1, end_token=0, max_length=6, **options
    )
    assert lengths.min() < lengths.max()  # rows end at different steps
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    check(decoder, losses, shifted(sequences, 1), lengths)


def test_a_beam_of_one_costs_what_greedy_search_does_and_wider_ones_the_mean_over_beams() -> None:
    settings: dict[str, Any] = {"start_token": 1, "end_token": 0, "max_length": 6}
    decoder = made()
    (sequences, _, lengths), losses, gradients = run(decoder, decoding.greedy_search, **settings)
    (beams, _, sizes), found, slopes = run(decoder, decoding.beam_search, beam_width=1, **settings)
    np.testing.assert_array_equal(beams[:, 0], sequences)
    np.testing.assert_array_equal(sizes[:, 0], lengths)
    np.testing.assert_allclose(found, losses, rtol=1e-9)
    for one, other in zip(slopes, gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-12)
    _, wide, _ = run(decoder, decoding.beam_search, beam_width=3, **settings)
    calls = float(decoder.cell.mean_ponder_steps.numpy())
    assert 1 <= calls <= 4
    assert 0 < wide[0] <= 0.5 * 6 * (4 + 1)  # at most 6 steps of 4 calls and a remainder of 1


def test_scheduled_sampling_on_true_tokens_costs_what_an_rnn_over_them_does() -> None:
    decoder = made()
    tokens = np.random.default_rng(5).integers(0, TOKENS, (BATCH, 4)).astype("int32")
    _, losses, gradients = run(decoder, decoding.scheduled_sampling, tokens, probability=0.0)
    check(decoder, losses, tokens, np.full(BATCH, 4))
    rnn = layers.RNN(decoder.cell, return_sequences=True, dtype="float64")

    @ab.function
    def by_rnn(state: Any) -> Any:
        rnn(decoder.embedding(tokens), initial_state=[state])
        return ab.gradients(rnn.losses[0], [decoder.cell.halting.kernel])

    @ab.function
    def by_decoding(state: Any) -> Any:
        decoding.scheduled_sampling(decoder, [state], tokens, 0.0)
        return ab.gradients(decoder.losses[0], [decoder.cell.halting.kernel])

    np.testing.assert_allclose(by_decoding(STATE)[0], by_rnn(STATE)[0], rtol=1e-9)
    assert sum(np.abs(gradient).sum() for gradient in gradients) > 0


def test_rows_of_none() -> None:
    decoder = made()

    @ab.function
    def found(state: Any) -> Any:
        results = decoding.greedy_search(decoder, [state], start_token=1, end_token=0, max_length=3)
        return results, decoder.losses

    (sequences, _, _), _ = found(STATE[:0])
    assert sequences.shape == (0, 3)
    assert float(decoder.cell.mean_ponder_steps.numpy()) == 0


class Translator(ab.Model):
    """Trained on true tokens now and then on its own, used by greedy search."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder(noisy=True)

    def call(self, inputs: Any, training: Any = False) -> Any:
        state = ops.zeros((ops.shape(inputs)[0], UNITS), "float64")
        if training:
            return decoding.scheduled_sampling(self.decoder, [state], inputs, 0.3, seed=1)[0]
        sequences, _, _ = decoding.greedy_search(self.decoder, [state], start_token=1, end_token=0, max_length=4)
        return ops.one_hot(sequences, TOKENS)


def test_a_model_that_decodes_is_trained_evaluated_and_used() -> None:
    tokens = np.random.default_rng(6).integers(1, TOKENS, (8, 4)).astype("int32")

    def fitted(together: int) -> Any:
        ab.utils.set_random_seed(9)
        model = Translator()
        loss = ab.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, steps_per_execution=together)
        history = model.fit(tokens, tokens, batch_size=2, validation_data=(tokens, tokens), verbose=0).history
        return history, model

    (found, model), (wanted, single) = fitted(2), fitted(1)
    assert found == wanted
    assert {"loss", "val_loss", "ponder_steps", "val_ponder_steps", "dropped"} <= found.keys()
    for one, other in zip(model.get_weights(), single.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.predict(tokens, verbose=0).shape == (8, 4, TOKENS)
