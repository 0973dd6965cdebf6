"""The REINFORCE example: its physics and returns against NumPy, its gradient against recomputation, that it learns."""

import doctest
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops


def moved(state: np.ndarray, action: int) -> np.ndarray:
    """One step of CartPole-v1, in float64, one cart at a time: as its authors write it."""
    x, x_dot, theta, theta_dot = state.astype("float64")
    force = 10.0 if action == 1 else -10.0
    temp = (force + 0.1 * 0.5 * theta_dot**2 * np.sin(theta)) / (0.1 + 1.0)
    theta_acc = (9.8 * np.sin(theta) - np.cos(theta) * temp) / (
        0.5 * (4.0 / 3.0 - 0.1 * np.cos(theta) ** 2 / (0.1 + 1.0))
    )
    x_acc = temp - 0.1 * 0.5 * theta_acc * np.cos(theta) / (0.1 + 1.0)
    return np.array([x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc])


def test_physics_are_those_of_cart_pole(example: ModuleType) -> None:
    random = np.random.default_rng(0)
    states = random.uniform([-2.4, -3, -0.21, -3], [2.4, 3, 0.21, 3], (200, 4)).astype("float32")
    actions = random.integers(0, 2, 200).astype("int32")
    found = ab.function(example.move)(states, actions)
    wanted = np.array([moved(*pair) for pair in zip(states, actions, strict=True)])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("state", "fallen"),
    [
        ([2.39, 0, 0, 0], False),
        ([2.41, 0, 0, 0], True),
        ([-2.41, 0, 0, 0], True),
        ([0, 9, 0.209, 9], False),
        ([0, 0, 0.21, 0], True),
        ([0, 0, -0.21, 0], True),
    ],
)
def test_where_episodes_end(example: ModuleType, state: list[float], fallen: bool) -> None:
    assert ab.function(example.has_fallen)(np.array([state], "float32")).tolist() == [fallen]


def played(example: ModuleType, kernel: Any, count: int = 5, most: int = 60) -> tuple[Any, Any, Any]:
    """Episodes of a linear policy, with their starts and the noise."""
    random = np.random.default_rng(1)
    start = random.uniform(-0.05, 0.05, (count, 4)).astype("float32")
    noise = random.uniform(size=(most, count)).astype("float32")
    return (
        example.play(lambda state: state @ kernel, ops.convert_to_tensor(start), ops.convert_to_tensor(noise)),
        (start),
        noise,
    )


def by_hand(start: np.ndarray, noise: np.ndarray, kernel: np.ndarray) -> tuple[list[np.ndarray], list[list[int]]]:
    """The states and actions of each episode, one after the other."""
    states, actions = [], []
    for episode, state in enumerate(start.astype("float64")):
        visited, chosen = [], []
        for number in range(len(noise)):
            logits = state @ kernel
            chosen.append(int(noise[number, episode] < 1 / (1 + np.exp(logits[0] - logits[1]))))
            visited.append(state)
            state = moved(state, chosen[-1])
            if abs(state[0]) > 2.4 or abs(state[2]) > 12 * 2 * np.pi / 360:
                break
        states.append(np.array(visited))
        actions.append(chosen)
    return states, actions


def test_episodes_are_those_played_one_by_one(example: ModuleType) -> None:
    kernel = np.random.default_rng(2).normal(size=(4, 2)).astype("float32")
    episodes, start, noise = ab.function(lambda k: tuple(played(example, k)))(kernel)
    states, actions = by_hand(start, noise, kernel)
    lengths = [len(each) for each in actions]
    assert len(set(lengths)) > 1  # they end at different times
    assert episodes.steps.tolist() == lengths
    assert episodes.alive.shape == (max(lengths), 5)  # and the loop with the longest
    for episode, (visited, chosen) in enumerate(zip(states, actions, strict=True)):
        logits = visited @ kernel
        logs = logits[np.arange(len(chosen)), chosen] - np.logaddexp(*logits.T)
        np.testing.assert_allclose(episodes.log_chances[: len(chosen), episode], logs, atol=1e-4)
        assert episodes.alive[:, episode].sum() == len(chosen)


def test_gradient_through_the_loop_is_that_of_the_actions_taken(example: ModuleType) -> None:
    kernel = np.random.default_rng(2).normal(size=(4, 2)).astype("float32")

    def learn(given: Any) -> Any:
        episodes, start, noise = played(example, given)
        advantages = example.advantages_of(episodes, 0.9)
        loss = -ops.sum(episodes.log_chances * advantages)
        return ab.gradients(loss, [given])[0], advantages, start, noise

    slope, advantages, start, noise = ab.function(learn)(kernel)
    wanted = np.zeros((4, 2))
    for episode, (visited, chosen) in enumerate(zip(*by_hand(start, noise, kernel), strict=True)):
        logits = visited @ kernel
        chances = np.exp(logits - np.logaddexp(*logits.T)[:, None])
        onward = (np.eye(2)[chosen] - chances) * advantages[: len(chosen), episode, None]
        wanted -= visited.T @ onward
    np.testing.assert_allclose(slope, wanted, rtol=1e-3, atol=1e-3)


def test_advantages_are_returns_above_the_mean(example: ModuleType) -> None:
    alive = np.array([[1, 1], [1, 0], [1, 0]], "float32")

    def both(lived: Any) -> Any:
        return example.returns_of(lived, 0.5), example.advantages_of(example.Episodes(lived, lived, lived), 0.5)

    returns, advantages = ab.function(both)(alive)
    np.testing.assert_allclose(returns, [[1.75, 1], [1.5, 0], [1, 0]])
    above = np.array([[0.375, -0.375], [0.75, 0], [0.5, 0]])
    np.testing.assert_allclose(advantages, above / np.sqrt((above**2).sum() / 4), rtol=1e-4)


def test_it_learns(example: ModuleType) -> None:
    agent = example.Reinforce(episodes=24)
    curve = example.train(agent, 20, quiet=True)
    assert np.mean(curve[-4:]) > 4 * np.mean(curve[:3])
    assert np.mean(agent.score()) > 100


def test_too_low_a_return_is_a_failure_with_a_figure(
    example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figure = tmp_path / "reinforce.svg"
    with pytest.raises(SystemExit, match=r"The goal, a mean return of 501, was missed."):
        example.main(["--steps=2", "--episodes=4", "--least=501", f"--figure={figure}"])
    assert "All of it took" in capsys.readouterr().out
    lines = [part for part in ElementTree.fromstring(figure.read_text()) if part.tag.endswith("polyline")]
    assert [line.attrib["points"].count(",") for line in lines] == [2, 2]


@pytest.mark.slow
def test_it_reaches_its_goal(example: ModuleType) -> None:
    assert example.main([]) >= example.GOAL


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=4)
