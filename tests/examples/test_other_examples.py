"""The smaller examples."""

import doctest
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

import anabranch as ab

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nested_loops_match_their_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    load("nested_loops").main()  # compares with NumPy itself, and fails if they differ
    printed = capsys.readouterr().out
    assert "second derivative: within" in printed
    assert printed.count("while ") == 2  # one loop inside the other in the program that it shows


def test_nested_loops_take_data_dependent_numbers_of_steps() -> None:
    example = load("nested_loops")
    numbers = ab.placeholder((None,), "float64")
    roots, steps = example.square_roots(numbers)
    (first,) = ab.gradients(ab.ops.sum(roots), [numbers])
    (second,) = ab.gradients(ab.ops.sum(first), [numbers])
    (third,) = ab.gradients(ab.ops.sum(second), [numbers])
    session = ab.Session()
    for values in (np.array([1.5, 3.0, 1e6]), np.array([7.5]), np.linspace(0.1, 50, 20)):
        found = session.run([roots, first, second, third], {numbers: values})
        expected = [values**0.5, values**-0.5 / 2, -(values**-1.5) / 4, values**-2.5 * 3 / 8]
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-7)
    taken = session.run(steps, {numbers: np.array([1.5, 1e6])})
    assert 2 < taken[0] < taken[1]


def test_nested_loops_docstrings() -> None:
    assert doctest.testmod(load("nested_loops")) == doctest.TestResults(failed=0, attempted=2)


def test_digits_learn_and_fail_below_their_goal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is an optional dependency of the examples")
    monkeypatch.syspath_prepend(EXAMPLES)
    figure = tmp_path / "digits.svg"
    with pytest.raises(SystemExit, match=r"The goal, an accuracy of 101.0%, was missed."):
        load("digits").main(["--epochs=4", "--least=1.01", f"--figure={figure}"])
    assert float(capsys.readouterr().out.rpartition(" ")[2]) > 0.8
    captions = [part.text or "" for part in ElementTree.fromstring(figure.read_text()) if part.tag.endswith("text")]
    assert len(captions) == 1 + 16
    chances = [int(each.split()[1].rstrip("%")) for each in captions[1:]]
    assert chances == sorted(chances)  # the hardest come first


def test_digits_are_moved_in_training_only() -> None:
    augmentation = load("digits").build_augmentation()
    images = np.random.default_rng(0).uniform(size=(6, 8, 8, 1)).astype("float32")
    np.testing.assert_array_equal(augmentation(images, training=False), images)
    moved = [augmentation(images, training=True) for _ in range(2)]
    assert not np.array_equal(moved[0], moved[1])
    assert np.abs(moved[0] - images).max(axis=(1, 2, 3)).min() > 0.01  # each of them
    assert 0 <= moved[0].min() <= moved[0].max() <= 1.0001


@pytest.mark.slow
def test_digits_are_recognised() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is an optional dependency of the examples")
    example = load("digits")
    assert example.main([]) >= example.GOAL


def test_digits_without_scikit_learn_say_what_to_install() -> None:
    program = (
        "import runpy, sys; sys.modules['sklearn'] = None; "
        f"runpy.run_path({str(EXAMPLES / 'digits.py')!r}, run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "pip install scikit-learn" in result.stderr
    assert "Traceback" not in result.stderr
