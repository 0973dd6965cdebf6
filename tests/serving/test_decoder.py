"""Sequences of a decoder: those that each request gets alone, however many are computed together."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.framework.serving.decoding.generation import Generation
from anabranch.framework.serving.decoding.slots import Slots

VOCABULARY, UNITS = 11, 8


def recurrent(**options: Any) -> ab.serving.Decoder:
    """A decoder with a GRU of random weights."""
    ab.utils.set_random_seed(3)
    embedding = ab.layers.Embedding(VOCABULARY, UNITS, embeddings_initializer="random_normal")
    cell, out = ab.layers.GRUCell(UNITS), ab.layers.Dense(VOCABULARY, kernel_initializer=ab.initializers.RandomNormal())

    def step(tokens: Any, states: Any) -> Any:
        output, states = cell(embedding(tokens) * 20.0, states)
        return out(output) * 20.0, states

    options = {"end_token": 0, "max_length": 24, "slots": 4, **options}
    return ab.serving.Decoder(step, lambda rows: [ab.ops.zeros((rows, UNITS))], **options)


@pytest.fixture(scope="module")
def decoder() -> ab.serving.Decoder:
    return recurrent()


def some_prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(count)
    return [rng.integers(1, VOCABULARY, rng.integers(1, 9)).tolist() for _ in range(count)]


SAMPLED: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.3},
    {"temperature": 0.8, "top_k": 3},
    {"temperature": 2.0, "top_k": 7, "top_p": 0.8},
)


@pytest.mark.parametrize("how", SAMPLED)
def test_tokens_are_those_of_each_request_alone(decoder: ab.serving.Decoder, how: dict[str, Any]) -> None:
    prompts = some_prompts(13)
    together = decoder.generate(prompts, **how, seed=list(range(13)))
    for number, prompt in enumerate(prompts):
        (alone,) = decoder.generate([prompt], **how, seed=number)
        np.testing.assert_array_equal(together[number], alone)
    assert all(tokens.dtype == np.int32 for tokens in together)
    assert len({tokens.tobytes() for tokens in together}) > 3


def test_the_most_probable_tokens_are_those_of_greedy_search() -> None:
    table = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY)).astype("float32")

    def step(tokens: Any, states: Any) -> Any:
        return ab.ops.take(table, tokens, axis=0) + states, states * 0.9

    starts = np.arange(1, VOCABULARY, dtype="int32")
    states = np.linspace(-1, 1, starts.size * VOCABULARY, dtype="float32").reshape(starts.size, VOCABULARY)
    sequences, _, lengths = ab.decoding.greedy_search(step, states, start_token=starts, end_token=0, max_length=19)
    made = ab.serving.Decoder(
        step,
        lambda rows, bias: bias,
        end_token=0,
        max_length=20,
        slots=3,
        inputs={"bias": ab.InputSpec(shape=(None, VOCABULARY), dtype="float32")},
    )
    found = made.generate(starts[:, None].tolist(), inputs={"bias": states})
    for tokens, row, length in zip(found, np.asarray(sequences), np.asarray(lengths), strict=True):
        np.testing.assert_array_equal(tokens, row[:length])


def test_states_that_a_step_only_reads_are_not_copied(tmp_path: Path) -> None:
    def step(tokens: Any, states: Any) -> Any:
        text, place = states
        token = ab.ops.take_along_axis(text, ab.ops.expand_dims(place, 1), axis=1)[:, 0]
        return ab.ops.one_hot(token, VOCABULARY), (text, (place + 1) % 5)  # slots that are free go on

    texts = np.random.default_rng(0).integers(1, VOCABULARY, (7, 5)).astype("int32")
    texts[:, -1] = 0
    made = ab.serving.Decoder(
        step,
        lambda rows, text: (text, ab.ops.zeros_like(text[:, 0])),
        end_token=0,
        max_length=20,
        slots=3,
        inputs={"text": ab.InputSpec(shape=(None, 5), dtype="int32")},
    )
    assert [len(made.plan.entries[name].effects) for name in ("begin", "clear", "step")] == [2, 2, 1]
    made.export(tmp_path)
    for decoder in (made, ab.serving.load_decoder(tmp_path)):
        found = decoder.generate([[1]] * 7, inputs={"text": texts})
        np.testing.assert_array_equal(found, texts)


def counting(slots: int = 2, **options: Any) -> ab.serving.Decoder:
    """Each token is the sum of 3 times the last state and the token given, modulo 17."""

    def step(tokens: Any, states: Any) -> Any:
        states = (states * 3 + tokens) % 17
        return ab.ops.one_hot(states, 17), states

    return ab.serving.Decoder(
        step, lambda rows: ab.ops.zeros((rows,), "int32"), end_token=0, max_length=200, slots=slots, **options
    )


def counted(prompt: list[int], limit: int) -> list[int]:
    state, found, rest = 0, [], list(prompt)
    while not found or (found[-1] != 0 and len(found) < limit):
        state = (state * 3 + (rest.pop(0) if rest else found[-1])) % 17
        if not rest:
            found.append(state)
    return found


def take_chunk(tokens: Any, lengths: Any, states: Any) -> Any:
    for place in range(tokens.shape[1]):
        states = ab.ops.where(place < lengths, (states * 3 + tokens[:, place]) % 17, states)
    return ab.ops.one_hot(states, 17), states


@pytest.mark.parametrize("prefill", [None, take_chunk])
def test_prompts_of_any_length_are_taken(prefill: Any) -> None:
    made = counting(prefill=prefill)
    rng = np.random.default_rng(5)
    prompts = [rng.integers(1, 17, length).tolist() for length in (1, 2, 63, 64, 65, 66, 129, 130, 150)]
    found = made.generate(prompts, max_tokens=30)
    assert [tokens.tolist() for tokens in found] == [counted(prompt, 30) for prompt in prompts]


def test_limits_end_sequences() -> None:
    made = counting()
    prompt = [1] * 199
    assert [len(tokens) for tokens in made.generate([prompt, [2], [2]], max_tokens=5)] == [1, 5, 5]
    assert made.generate([]) == []


def test_draws_have_the_distribution_of_the_logits() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.2]]))

    def step(tokens: Any, states: Any) -> Any:
        return ab.ops.take(logits, tokens * 0, axis=0), states

    made = ab.serving.Decoder(step, lambda rows: (), end_token=0, max_length=2, slots=32)
    prompts, seeds = [[1]] * 3000, list(range(3000))

    def shares(**how: Any) -> Any:  # of the tokens
        tokens = np.concatenate(made.generate(prompts, temperature=1.0, seed=seeds, **how))
        return np.bincount(tokens, minlength=3) / len(prompts)

    np.testing.assert_allclose(shares(), [0.5, 0.3, 0.2], atol=0.03)
    np.testing.assert_allclose(shares(top_k=2), [0.625, 0.375, 0], atol=0.03)
    np.testing.assert_allclose(shares(top_p=0.6), [0.625, 0.375, 0], atol=0.03)
    np.testing.assert_allclose(shares(top_k=1), [1, 0, 0])


def test_a_step_that_mixes_rows_is_refused() -> None:
    def step(tokens: Any, states: Any) -> Any:
        return ab.ops.one_hot(tokens, 5) + ab.ops.mean(states, axis=0), states

    options: dict[str, Any] = {"end_token": 0, "max_length": 4}
    with pytest.raises(ValueError, match=r"belong to different requests, but 'mean.*row_wise=True"):
        ab.serving.Decoder(step, lambda rows: ab.ops.zeros((rows, 5)), **options)
    ab.serving.Decoder(step, lambda rows: ab.ops.zeros((rows, 5)), **options, row_wise=True)


def test_exported_decoders_need_no_code(decoder: ab.serving.Decoder, tmp_path: Path) -> None:
    assert decoder.export(tmp_path) == 1
    loaded = ab.serving.load_decoder(tmp_path)
    prompts = some_prompts(6)
    for how in SAMPLED:
        for one, other in zip(
            decoder.generate(prompts, **how, seed=5), loaded.generate(prompts, **how, seed=5), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    assert (loaded.slots, loaded.max_length, loaded.end_token, loaded.vocabulary) == (4, 24, 0, VOCABULARY)
    assert loaded.row_bytes == decoder.row_bytes == 4 * UNITS
    with pytest.raises(ab.serving.ServableError, match="load_decoder"):
        ab.serving.load(tmp_path)
    model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(1)])
    model.export(tmp_path / "model", verbose=False)
    with pytest.raises(ab.serving.ServableError, match="no decoder"):
        ab.serving.load_decoder(tmp_path / "model")


@pytest.mark.parametrize(
    ("prompt", "how", "message"),
    [
        ([], {}, "prompt 0: A prompt needs a token"),
        ([VOCABULARY], {}, r"the token 11; tokens are from 0 to 10"),
        ([-1], {}, "the token -1"),
        ([1.5], {}, "list of integers"),
        ([[1]], {}, "list of integers"),
        ("abc", {}, "no tokenizer"),
        ([1] * 24, {}, "24 tokens; at most 23 leave room"),
        ([1], {"max_tokens": 0}, "max_tokens must be an integer of at least 1; got 0"),
        ([1], {"temperature": -1.0}, "temperature must be a number, 0 or more"),
        ([1], {"temperature": float("nan")}, "temperature must be"),
        ([1], {"top_k": 0}, "top_k must be"),
        ([1], {"top_p": 0.0}, r"top_p must be a number within \(0, 1\]"),
        ([1], {"seed": -1}, "seed must be"),
        ([1], {"seed": [1, 2]}, "seed has to have an entry for each of 1 prompts"),
        ([1], {"inputs": {"x": [1]}}, r"Expected no inputs, got 'x' \(unknown: 'x'\)"),
    ],
)
def test_wrong_arguments_are_named(decoder: ab.serving.Decoder, prompt: Any, how: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoder.generate([prompt], **how)


@pytest.mark.parametrize(
    ("begin", "options", "message"),
    [
        (lambda rows: ab.ops.zeros((2, 3)), {}, r"state 0 of shape \(2, 3\); expected \(1, ...\)"),
        (lambda: 0, {}, r"begin is called as begin\(rows\)"),
        (lambda rows: ab.ops.zeros((rows, 3)), {"slots": 0}, "slots must be an int of at least 1"),
        (lambda rows: ab.ops.zeros((rows, 3)), {"max_length": 1}, "max_length must be an int of at least 2"),
        (lambda rows: ab.ops.zeros((rows, 3)), {"end_token": 3}, "end_token is 3, but the step's logits are for 3"),
        (lambda rows: ab.ops.zeros((rows, 3), "int32"), {}, "returned shape .* and dtype float32"),
    ],
)
def test_decoders_that_make_no_sense_are_refused(begin: Any, options: dict[str, Any], message: str) -> None:
    def step(tokens: Any, states: Any) -> Any:
        logits = ab.ops.cast(states, "float32") + 1.0
        return logits, logits

    with pytest.raises((ValueError, TypeError), match=message):
        ab.serving.Decoder(step, begin, **{"end_token": 0, "max_length": 4, "slots": 2, **options})


class _Fake:
    """Programs whose states count the steps since they were set."""

    def __init__(self, slots: int) -> None:
        self.steps, self.ends = [0] * slots, [0] * slots

    def begin(self, slot: int, inputs: Any) -> None:
        self.steps[slot], self.ends[slot] = 0, inputs[0]

    def clear(self, slot: int) -> None:
        self.begin(slot, [0])

    def step(self, tokens: Any) -> Any:
        self.steps = [count + 1 for count in self.steps]
        best = [0 if end and count >= end else 1 for count, end in zip(self.steps, self.ends, strict=True)]
        return np.array(best, "int32"), np.zeros((len(best), 2))


@settings(deadline=None, max_examples=examples(15, 60))
@given(st.data(), st.integers(1, 4), st.integers(2, 9))
def test_no_slot_takes_more_steps_than_a_sequence_may(data: Any, slots: int, max_length: int) -> None:
    class Numbers:
        end_token, vocabulary, entries = 0, 2, ()

    plan: Any = Numbers()
    plan.slots, plan.max_length = slots, max_length
    fake: Any = _Fake(slots)
    under_test = Slots(fake, plan)
    waiting: deque[Generation] = deque()
    made: list[Generation] = []
    for length in data.draw(st.lists(st.integers(1, max_length - 1), max_size=12)):
        ends_after = data.draw(st.integers(1, max_length))
        made.append(Generation([1] * length, [length - 1 + ends_after], max_length - length))
    waiting.extend(made)
    while waiting or under_test.busy:
        for _ in range(data.draw(st.integers(0, under_test.free))):
            if waiting:
                under_test.admit(waiting.popleft())
        under_test.iterate()
        assert max(fake.steps) <= max_length - 1
    for each in made:
        ends_after = each.inputs[0] - len(each.prompt) + 1
        wanted = [1] * (ends_after - 1) + [0]
        assert each.generated == wanted[: each.limit]
        assert each.finish_reason == ("stop" if ends_after <= each.limit else "length")
    assert under_test.free == slots


def test_texts_are_prompts_where_there_is_a_tokenizer(tmp_path: Path) -> None:
    letters = list("abcdef")
    tokenizer = ab.layers.TextVectorization(standardize=None, split="character", vocabulary=letters)
    detokenizer = ab.layers.StringLookup(vocabulary=letters, mask_token="", oov_token="?", invert=True)

    def step(tokens: Any, states: Any) -> Any:  # the next letter
        return ab.ops.one_hot((tokens + 1) % 8, 8), states

    made = ab.serving.Decoder(
        step, lambda rows: (), end_token=0, max_length=9, slots=2, tokenizer=tokenizer, detokenizer=detokenizer
    )
    (tokens,) = made.generate(["ab"])
    assert tokens.tolist() == [4, 5, 6, 7, 0]
    assert made.text(tokens.tolist()) == "cdef"
    made.export(tmp_path)
    loaded = ab.serving.load_decoder(tmp_path)
    assert loaded.text(loaded.generate(["ad"])[0].tolist()) == "ef"
    assert counting().text([1]) is None


def test_states_take_no_place_on_the_disk(tmp_path: Path) -> None:
    size = 1 << 20
    decoder = ab.serving.Decoder(
        lambda tokens, states: (ab.ops.one_hot((tokens + 1) % 4, 4), states + 1.0),
        lambda rows: ab.ops.zeros((rows, size // 4)),
        end_token=0,
        max_length=9,
        slots=4,
    )
    decoder.export(tmp_path)
    assert decoder.row_bytes == size
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < size // 4
    assert ab.serving.load_decoder(tmp_path).generate([[1]])[0].tolist() == [2, 3, 0]
    path = tmp_path / "1" / "graph.json"
    text = path.read_text()
    assert '"zeros":[4,262144]' in text
    lying = text.replace('"zeros":[4,262144]', '"zeros":[4,262144262144262144]')
    path.write_text(lying)
    manifest = json.loads((tmp_path / "1" / "manifest.json").read_text())
    manifest["files"]["graph.json"] = {
        "size": len(lying),
        "sha256": hashlib.sha256(lying.encode()).hexdigest(),
    }
    (tmp_path / "1" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="larger than this machine's memory"):
        ab.serving.load_decoder(tmp_path)
