"""The example of experts between two recurrent layers: its cell against its parts, its files, and that it learns."""

import doctest
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers

SMALL = ["--characters=12000", "--units=24", "--experts=4", "--epochs=2", "--batch=8", "--length=16"]


def make_cell(example: ModuleType) -> Any:
    mixture = layers.MixtureOfExperts(3, lambda: layers.Dense(4, activation="relu"), seed=0)
    return example.ExpertsCell(layers.LSTMCell(4), mixture, layers.LSTMCell(4))


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=4)


def test_the_cell_is_a_stack_of_three_layers(example: ModuleType) -> None:
    """One loop over the cell computes what one loop after the other does; also where rows end early."""
    cell, x = make_cell(example), np.random.default_rng(0).normal(size=(5, 6, 2)).astype("float32")
    lengths = np.array([6, 1, 4, 0, 3], "int32")
    found = layers.RNN(cell, return_sequences=True)(x, sequence_length=lengths)
    hidden = layers.RNN(cell.lower, return_sequences=True)(x)
    expected = layers.RNN(cell.upper, return_sequences=True)(hidden + cell.mixture(hidden))
    live = np.arange(6) < lengths[:, None]
    np.testing.assert_allclose(found[live], expected[live], rtol=1e-4, atol=1e-5)
    assert not found[~live].any()


def test_saved_and_loaded(example: ModuleType, tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((None, 2)), layers.RNN(make_cell(example))])
    x = np.random.default_rng(0).normal(size=(5, 6, 2)).astype("float32")
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(ab.load_model(tmp_path / "model.keras").predict(x, verbose=0), expected)


def test_choices_are_those_of_the_gate(example: ModuleType) -> None:
    model = example.build_model(experts=4, units=6, length=5)
    texts = np.random.default_rng(0).integers(0, example.CHARACTERS, (3, 5)).astype("int32")
    chosen = example.choices(model, texts)
    assert chosen.shape == (3, 5, 2)
    model.predict(texts, batch_size=3, verbose=0)
    counts = model.get_layer("recurrence").cell.mixture.expert_tokens.numpy()
    np.testing.assert_array_equal(np.bincount(chosen.ravel(), minlength=4), counts)


def test_shares_are_of_the_characters_of_a_kind(example: ModuleType) -> None:
    chosen = np.array([[[0, 1], [0, 2], [1, 2]]])
    shares = example.shares_by_kind(chosen, ["x12"], 3)
    kinds = list(example.KINDS)
    np.testing.assert_array_equal(shares[kinds.index("after a newline")], [1, 1, 0])
    np.testing.assert_array_equal(shares[kinds.index("digits")], [0.5, 0.5, 1])
    assert shares.sum() == 4


@pytest.mark.slow
def test_small_version_draws_and_fails_above_its_goal(
    example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figure = tmp_path / "experts.svg"
    with pytest.raises(SystemExit, match=r"The goal, 1\.0 bits a character, was missed\."):
        example.main([*SMALL, "--most=1.0", f"--figure={figure}"])
    printed = capsys.readouterr().out
    assert "each of which chose 2 of 4" in printed
    assert float(printed.rpartition("other files: ")[2].split()[0]) < 5.8  # of 6.6 without any knowledge
    names = {part.text for part in ElementTree.fromstring(figure.read_text()).iter() if part.tag.endswith("text")}
    assert {*example.KINDS, "expert 3"} <= names


@pytest.mark.slow
def test_it_reaches_its_goal(example: ModuleType) -> None:
    assert example.main([]) <= example.GOAL
