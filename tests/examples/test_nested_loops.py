"""The example of loops in loops: its numbers against formulas, and as many steps as the data ask for."""

import doctest
from types import ModuleType

import numpy as np
import pytest

import anabranch as ab


def test_loops_match_their_formulas(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main()  # compares with NumPy itself, and fails if they differ
    printed = capsys.readouterr().out
    assert "second derivative: within" in printed
    assert printed.count("while ") == 2  # one loop inside the other in the program that it shows


def test_loops_take_data_dependent_numbers_of_steps(example: ModuleType) -> None:
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


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=2)
