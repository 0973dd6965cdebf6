"""The smaller examples."""

import doctest
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

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


def test_digits_learn(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is an optional dependency of the examples")
    accuracy = load("digits").main(["--epochs", "3"])
    assert accuracy > 0.8
    assert f"{accuracy:.3f}" in capsys.readouterr().out


@pytest.mark.slow
def test_digits_are_recognised() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is an optional dependency of the examples")
    assert load("digits").main([]) > 0.95


def test_digits_without_scikit_learn_say_what_to_install() -> None:
    program = (
        "import runpy, sys; sys.modules['sklearn'] = None; "
        f"runpy.run_path({str(EXAMPLES / 'digits.py')!r}, run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "pip install scikit-learn" in result.stderr
    assert "Traceback" not in result.stderr
