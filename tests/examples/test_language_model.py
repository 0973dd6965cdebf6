"""The example that learns words of Python's library: its parts, and that a small version learns."""

import doctest
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

SMALL = [
    *("--words=24000", "--vocabulary=1000", "--units=32", "--sampled=100"),
    *("--epochs=3", "--batch=8", "--learning-rate=0.5"),
]


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=3)


def test_baselines(example: ModuleType) -> None:
    """Baselines of a language whose next word is known, and of one whose words are independent."""
    cycle = np.tile(np.arange(10), 200)
    assert example.unigram_perplexity(cycle, cycle, 10) == pytest.approx(10)
    assert example.bigram_perplexity(cycle, cycle, 10) < 1.01
    rng = np.random.default_rng(0)
    training, test = rng.integers(0, 10, (2, 20_000))
    assert example.bigram_perplexity(training, test, 10) == pytest.approx(10, rel=0.02)


def test_probabilities_of_pairs_add_up(example: ModuleType) -> None:
    training = np.random.default_rng(0).integers(0, 6, 100)
    for context in range(7):  # 6 never comes
        chances = [1 / example.bigram_perplexity(training, np.array([context, word]), 7) for word in range(7)]
        assert sum(chances) == pytest.approx(1)


@pytest.mark.slow
def test_small_version_learns_and_says_how_well(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    perplexity = example.main([*SMALL, "--most=0.8"])
    assert f"Perplexity over all 1,000 words: {perplexity:.1f}, against " in capsys.readouterr().out


def test_too_high_a_perplexity_is_a_failure_with_a_figure(example: ModuleType, tmp_path: Path) -> None:
    figure = tmp_path / "perplexity.svg"
    with pytest.raises(SystemExit, match=r"That is more than 1% of \d+"):
        example.main([*SMALL, "--words=2000", "--epochs=1", "--most=0.01", f"--figure={figure}"])
    lines = [part for part in ElementTree.fromstring(figure.read_text()) if part.tag.endswith("polyline")]
    assert [line.attrib["points"].count(",") for line in lines] == [8, 2, 2, 2]  # after each step


@pytest.mark.slow
def test_it_is_far_better_than_frequencies(example: ModuleType) -> None:
    assert example.main([]) < 45
