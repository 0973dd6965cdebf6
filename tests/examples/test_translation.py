"""The translation example: its grammar and measures, its search against a loop in Python, and that it learns."""

import doctest
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import anabranch as ab


@pytest.fixture(scope="module")
def pairs(example: ModuleType) -> list[tuple[list[str], list[str]]]:
    grammar = example.Grammar(5)
    return [grammar.sentence() for _ in range(20000)]


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=6)


# --- the grammar ----------------------------------------------------------------------------------------------------


def test_a_sentence_has_one_translation_and_fits(example: ModuleType, pairs: Any) -> None:
    found: dict[tuple[str, ...], list[str]] = {}
    for source, target in pairs:
        assert found.setdefault(tuple(source), target) == target
        assert len(source) <= example.LENGTHS[0]
        assert len(target) < example.LENGTHS[1]  # its end follows
    assert len(found) > 15000
    lengths = {(len(source), len(target)) for source, target in pairs}
    assert len({long - short for long, short in lengths}) > 3  # no word-by-word translation


def test_words_with_senses_follow_their_contexts(pairs: Any) -> None:
    senses = {
        ("feeds", "mouse"): "muska",
        ("repairs", "mouse"): "kliko",
        ("hunts", "crane"): "gruo",
        ("sells", "crane"): "levila",
        ("feeds", "bats"): "noktai",
        ("sells", "bats"): "bastunoi",
    }
    seen = set[tuple[str, str]]()
    for source, target in pairs:
        joined = " ".join(source)
        plain = re.fullmatch(
            r"\w+ (\w+ )?\w+ (feeds|repairs|hunts|sells) \w+ (old |sharp |small |white )?(\w+)", joined
        )
        if plain is None or (plain[2], plain[4]) not in senses:
            continue
        seen.add((plain[2], plain[4]))
        assert senses[plain[2], plain[4]] in target, joined
    assert len(seen) >= 5


def test_tense_negation_and_order(example: ModuleType, pairs: Any) -> None:
    endings = {ending: tense for tense, both in example.TENSES.items() for ending in both}
    for source, target in pairs:
        tense = endings[target[-1][-2:]]  # the verb is the last word
        assert (tense == "future") == ("will" in source)
        assert ("nen" in target[:-1]) == ("not" in source)
        for word, (translation, wanted) in example.TIMES.items():
            assert (target[0] == translation) == (word in (source[0], source[-1]))
            assert word not in source or tense == wanted
        assert ("that" in source) == any(re.search("anta|antai", word) for word in target)


def test_adjectives_and_articles_agree(pairs: Any) -> None:
    articles = re.compile(r"(l|un|ti|mi)(oi?|ai?)")
    checked = 0
    for _, target in pairs[:3000]:
        for before, word in pairwise(target):
            found, ending = articles.fullmatch(word), re.search(r"[oa]i?$", before)
            if found is not None:
                assert ending is not None
                assert ending[0] == found[2]
                checked += 1
    assert checked > 5000


def test_pairs_are_different_and_the_same_for_a_seed(example: ModuleType) -> None:
    pairs = example.make_pairs(500, seed=3)
    assert len({" ".join(source) for source, _ in pairs}) == 500
    assert pairs == example.make_pairs(500, seed=3)
    assert pairs != example.make_pairs(500, seed=4)


def test_texts_and_numbers(example: ModuleType) -> None:
    vocabulary = example.list_words([["c", "b"], ["b", "d"]])
    assert vocabulary == ["<end>", "<start>", "<unknown>", "b", "c", "d"]
    assert example.encode([["d", "b"], [], ["z", "c", "c"]], vocabulary, 4).tolist() == [
        [5, 3, 0, 0],
        [0, 0, 0, 0],
        [2, 4, 4, 0],
    ]


# --- the measure ----------------------------------------------------------------------------------------------------


def test_bleu_of_known_texts(example: ModuleType) -> None:
    cat = ["the", "cat", "is", "on", "the", "mat"]
    assert example.bleu([cat], [cat]) == pytest.approx(1)
    assert example.bleu([["the"] * 7], [cat], most=1) == pytest.approx(2 / 7)  # the example of the paper
    assert example.bleu([cat[:3]], [cat], most=2) == pytest.approx(np.exp(1 - 6 / 3))  # right, but too short
    assert example.bleu([["a", "b"]], [["c", "d"]], most=1) == 0
    both = example.bleu([cat, ["a"]], [cat, ["b"]], most=2)
    assert both == pytest.approx(np.sqrt(6 / 7 * 5 / 5))


# --- the model ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(example: ModuleType) -> tuple[ab.Model, Any, np.ndarray]:
    """An untrained model, its programs, and sentences."""
    ab.utils.set_random_seed(3)
    model = example.build_model(12, 9, 8)
    random = np.random.default_rng(0)
    for weight in model.weights:
        if "bias" not in weight.name:
            weight.write_value(random.normal(0, 1.5, weight.shape).astype("float32"))
    sentences = np.array([[3, 4, 5, 6, 7], [8, 9, 0, 0, 0], [11, 3, 10, 0, 0]], "int32")
    return model, example.Translator(model, beam_width=1), sentences


def test_search_with_one_beam_is_a_loop_over_the_model(example: ModuleType, small: Any) -> None:
    model, translator, sentences = small
    sequences, _, lengths = translator.translate(sentences)
    written = np.full((3, 1), example.START, "int32")
    for _ in range(example.LENGTHS[1]):
        logits = model([sentences, written])
        written = np.concatenate([written, np.argmax(logits[:, -1], axis=-1).astype("int32")[:, None]], axis=1)
    for row in range(3):
        assert sequences[row, 0, : lengths[row, 0]].tolist() == written[row, 1 : lengths[row, 0] + 1].tolist()
    assert len({tuple(row) for row in sequences[:, 0].tolist()}) == 3


def test_attention_looks_at_words_and_at_nothing_else(small: Any) -> None:
    _, translator, sentences = small
    translations = np.array([[3, 4, 5], [5, 0, 0], [7, 8, 0]], "int32")
    looked = translator.attention(sentences, translations)
    assert looked.shape == (3, 3, 5)
    np.testing.assert_allclose(looked.sum(axis=-1), 1, rtol=1e-5)
    assert np.ptp(looked[0], axis=0).max() > 0.01  # it moves
    np.testing.assert_array_equal(looked[1, :, 2:], 0)
    np.testing.assert_allclose(
        translator.attention(sentences[1:2, :2], translations[1:2])[0], looked[1, :, :2], atol=1e-5
    )


@pytest.mark.slow
def test_tiny_version_learns_something_draws_and_fails_below_its_goal(
    example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figure = tmp_path / "attention.svg"
    settings = ["--examples=800", "--units=32", "--epochs=4", "--beam-width=2", f"--figure={figure}"]
    with pytest.raises(SystemExit, match=r"The goal, 101.0% of sentences without a mistake, was missed."):
        example.main([*settings, "--least=1.01"])
    printed = capsys.readouterr().out
    assert re.search(r"Without a mistake: \d+\.\d% of 200 sentences", printed)
    losses = [float(loss) for loss in re.findall(r"loss: (\d\.\d+)", printed)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
    assert ElementTree.fromstring(figure.read_text()).tag.endswith("svg")


@pytest.mark.slow
def test_it_reaches_its_goal(example: ModuleType) -> None:
    assert example.main([]) >= example.GOAL
