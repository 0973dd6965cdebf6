"""The actor-critic example: its loop on values learns, and its returns are right."""

from types import ModuleType

import numpy as np


def test_returns_are_discounted_sums(example: ModuleType) -> None:
    found = example.returns_of([1.0, 0.0, 2.0])
    plain = np.array([1 + 0.99**2 * 2, 0.99 * 2, 2.0])
    np.testing.assert_allclose(found, (plain - plain.mean()) / plain.std(), rtol=1e-6)


def test_learns_on_values(example: ModuleType) -> None:
    found = example.train(episodes=45, seed=0, verbose=False)
    assert np.mean(found[-15:]) > 2 * np.mean(found[:15])
