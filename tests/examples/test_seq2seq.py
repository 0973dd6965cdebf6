"""The example that adds numbers written as text: its parts, and that a small version learns."""

import doctest
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

SMALL = ["--examples=3000", "--units=48", "--epochs=16"]


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=1)


def test_questions_are_different_and_answers_right(example: ModuleType) -> None:
    questions, answers = example.make_sums(2, 500, seed=3)
    assert len(set(questions)) == 500
    for question, answer in zip(questions, answers, strict=True):
        first, second = question[::-1].split("+")
        assert int(answer[::-1]) == int(first) + int(second)
    assert example.decode(example.encode(["21+9"], 6)[0]) == "21+9"


@pytest.mark.slow
def test_small_version_learns_and_says_how_well(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = example.main([*SMALL, "--least=0.3"])
    assert f"Exactly right: {accuracy:.1%} of 750 sums" in capsys.readouterr().out


@pytest.mark.slow
def test_too_low_an_accuracy_is_a_failure_with_a_figure(example: ModuleType, tmp_path: Path) -> None:
    figure = tmp_path / "sums.svg"
    with pytest.raises(SystemExit, match=r"That is less than 90.0%"):
        example.main(["--digits=1", "--examples=64", "--units=4", "--epochs=3", "--least=0.9", f"--figure={figure}"])
    lines = [part for part in ElementTree.fromstring(figure.read_text()) if part.tag.endswith("polyline")]
    assert [line.attrib["points"].count(",") for line in lines] == [3, 2]


def test_watching_changes_nothing(example: ModuleType, tmp_path: Path) -> None:
    small = ["--digits=1", "--examples=64", "--units=8", "--epochs=4", "--least=0"]
    assert example.main(small) == example.main([*small, f"--figure={tmp_path / 'sums.svg'}"])


@pytest.mark.slow
def test_sums_of_two_digits_are_learnt(example: ModuleType) -> None:
    assert example.main([]) > 0.97
