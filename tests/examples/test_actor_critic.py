"""The actor-critic example: its loop on values learns, and its returns are right."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def test_returns_are_discounted_sums(example: ModuleType) -> None:
    found = example.returns_of([1.0, 0.0, 2.0])
    plain = np.array([1 + 0.99**2 * 2, 0.99 * 2, 2.0])
    np.testing.assert_allclose(found, (plain - plain.mean()) / plain.std(), rtol=1e-6)


def test_too_low_a_return_is_a_failure_with_a_figure(example: ModuleType, tmp_path: Path) -> None:
    figure = tmp_path / "learning.svg"
    with pytest.raises(SystemExit, match="The goal, a mean return of 201 over 20 episodes, was missed"):
        example.main(["--episodes", "21", "--least", "201", "--figure", str(figure)])
    assert "the goal" in figure.read_text("utf-8")


def test_means_of_fewer_episodes_are_none(example: ModuleType) -> None:
    assert example.means_of([1.0, 2.0, 6.0], count=2).tolist() == [1.5, 4.0]
    assert example.means_of([1.0], count=2).size == 0


@pytest.mark.slow
def test_learns_on_values(example: ModuleType) -> None:
    found = example.train(episodes=45, seed=0, verbose=False)
    assert np.mean(found[-15:]) > 2 * np.mean(found[:15])
