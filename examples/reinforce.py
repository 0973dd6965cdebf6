"""REINFORCE with the environment in the graph: a call of one program plays whole episodes and learns from them.

The environment is the cart with a pole, whose physics are ten lines of arithmetic on tensors. A `while_loop` plays many
episodes at a time, from start to end: the policy draws actions, the cart moves, and the loop ends when all poles have
fallen, or after 500 steps. A scan in reverse makes returns of the rewards, and the gradient of the loop is a loop that
runs backwards over what was played. Nothing goes back to Python between two steps, or two episodes.

    python examples/reinforce.py --figure reinforce.svg

Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning" (1992);
Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems" (1983).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import anabranch as ab
from anabranch import layers, ops, optim

GRAVITY, CART_MASS, POLE_MASS = 9.8, 1.0, 0.1
HALF_LENGTH = 0.5  # of the pole
FORCE, SECONDS = 10.0, 0.02  # of a push, and between two steps
FARTHEST, STEEPEST = 2.4, 12 * 2 * np.pi / 360  # where an episode ends
MOST_STEPS = 500
GOAL = 400.0  # mean return


# --- the environment ------------------------------------------------------------------------------------------------


def move(state: Any, action: Any) -> Any:
    """The state one step later, by Euler's method; the constants are those of Gymnasium's CartPole-v1.

    Args:
        state: [episodes, 4], the cart's place and speed, the pole's angle and its speed.
        action: [episodes], 0 to push to the left, 1 to the right.

    >>> import anabranch as ab
    >>> print(move(ab.ops.zeros((1, 4)), ab.ops.ones((1,), "int32")).numpy().round(4))
    [[ 0.      0.1951  0.     -0.2927]]
    """
    _, speed, angle, turn = ops.unstack(state, axis=1)
    total, moment = CART_MASS + POLE_MASS, POLE_MASS * HALF_LENGTH
    sine, cosine = ops.sin(angle), ops.cos(angle)
    push = (ops.where(action > 0, FORCE, -FORCE) + moment * turn * turn * sine) / total
    lever = HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine * cosine / total)
    turning = (GRAVITY * sine - cosine * push) / lever
    driving = push - moment * turning * cosine / total
    changes = ops.stack([speed, driving, turn, turning], axis=1)
    return state + SECONDS * changes


def has_fallen(state: Any) -> Any:
    """Return which episodes are over, [episodes]: the cart has left the track, or the pole is too steep."""
    return ops.logical_or(ops.abs(state[:, 0]) > FARTHEST, ops.abs(state[:, 2]) > STEEPEST)


# --- episodes -------------------------------------------------------------------------------------------------------


class Episodes(NamedTuple):
    """Episodes as they were played, by step: arrays [steps, episodes].

    Attributes:
        log_chances: of the actions that were chosen, logarithms.
        alive: 1.0 for steps that were made before the episode ended.
        steps: how long each episode was, [episodes].
    """

    log_chances: Any
    alive: Any
    steps: Any


def play(policy: Any, start: Any, noise: Any) -> Episodes:
    """Play episodes until all are over.

    Args:
        policy: gives logits [episodes, 2] for states [episodes, 4].
        start: [episodes, 4], the first states.
        noise: [most steps, episodes], uniform numbers by which actions are drawn; all 0.5 for the likelier action.
    """
    count = start.shape[0]
    record = ab.TensorArray("float32", size=0, dynamic_size=True, element_shape=(count,))

    def goes_on(step: Any, state: Any, alive: Any, *_: Any) -> Any:
        return ops.logical_and(step < noise.shape[0], ops.any(alive))

    def body(step: Any, state: Any, alive: Any, log_chances: Any, lived: Any) -> tuple[Any, ...]:
        logits = ops.log_softmax(policy(state))
        action = ops.cast(noise[step] < ops.exp(logits[:, 1]), "int32")
        log_chances = log_chances.write(step, ops.where(action > 0, logits[:, 1], logits[:, 0]))
        lived = lived.write(step, ops.cast(alive, "float32"))
        state = ops.where(alive[:, None], move(state, action), state)
        return step + 1, state, ops.logical_and(alive, ops.logical_not(has_fallen(state))), log_chances, lived

    begin = (0, start, ops.ones((count,), "bool"), record, record)
    *_, log_chances, lived = ab.while_loop(goes_on, body, begin)
    alive = lived.stack()
    return Episodes(log_chances.stack(), alive, ops.sum(alive, axis=0))


def returns_of(rewards: Any, discount: float) -> Any:
    """The discounted sum of what comes from each step on, [steps, episodes].

    >>> import anabranch as ab
    >>> print(returns_of(ab.constant([[1.0], [1.0], [1.0]]), 0.5).numpy().ravel())
    [1.75 1.5  1.  ]
    """

    def step(later: Any, reward: Any) -> tuple[Any, Any]:
        found = reward + discount * later
        return found, found

    return ops.scan(step, ops.zeros_like(rewards[0]), rewards, reverse=True)[1]


def advantages_of(episodes: Episodes, discount: float) -> Any:
    """Return the rewards after each step minus the baseline, in units of their spread, [steps, episodes].

    The baseline of a step is the mean over the episodes: it does not depend on the actions of the one it is taken from
    but for that one's share, and those that are over count with 0, for they get no more reward.
    """
    returns = returns_of(episodes.alive, discount)
    above = (returns - ops.mean(returns, axis=1, keepdims=True)) * episodes.alive
    spread = ops.sqrt(ops.sum(ops.square(above)) / ops.sum(episodes.alive))
    return ops.stop_gradient(above / (spread + 1e-6))


# --- the agent ------------------------------------------------------------------------------------------------------


class Reinforce:
    """The programs of the agent: `learn` plays episodes and updates the policy, `score` plays without chance.

    Args:
        units: of the policy's hidden layer.
        episodes: how many are played in a step.
        learning_rate: of Adam.
        discount: by which rewards count less, a step later.
        seed: of everything that is random.
    """

    def __init__(
        self, units: int = 32, episodes: int = 32, learning_rate: float = 0.02, discount: float = 0.99, seed: int = 0
    ) -> None:
        ab.utils.set_random_seed(seed)
        self.policy = ab.Sequential([ab.Input((4,)), layers.Dense(units, "tanh"), layers.Dense(2)])
        self.optimizer = optim.Adam(learning_rate)
        dice = ab.random.SeedGenerator(seed)

        @ab.function
        def learn() -> Any:
            start = ab.random.uniform((episodes, 4), -0.05, 0.05, seed=dice)
            played = play(self.policy, start, ab.random.uniform((MOST_STEPS, episodes), seed=dice))
            advantages = advantages_of(played, discount)
            loss = -ops.sum(played.log_chances * advantages) / ops.sum(played.alive)
            variables = self.policy.trainable_variables
            self.optimizer.apply(ab.gradients(loss, variables), variables)
            return ops.mean(played.steps)

        @ab.function
        def score() -> Any:
            start = ab.random.uniform((100, 4), -0.05, 0.05, seed=dice)
            return play(self.policy, start, ops.full((MOST_STEPS, 100), 0.5)).steps

        self.learn, self.score = learn, score


def train(agent: Reinforce, steps: int, quiet: bool = False) -> list[float]:
    """Learn for so many steps; the mean returns of the episodes that were played."""
    curve: list[float] = []
    for step in range(1, steps + 1):
        curve.append(float(agent.learn()))
        if step % 10 == 0 and not quiet:
            print(f"step {step:4}: mean return {np.mean(curve[-10:]):6.1f}")
    return curve


def draw_learning(path: str, curve: Sequence[float], goal: float) -> None:
    """The mean return of the episodes of each step, and the goal."""
    from drawing import line_chart

    steps = list(range(1, len(curve) + 1))
    lines = {"episodes of a step": (steps, list(curve)), "the goal": ([steps[0], steps[-1]], [goal, goal])}
    drawn = line_chart("REINFORCE learns to balance a pole", "steps of learning", "mean return, of 500", lines)
    Path(path).write_text(drawn, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and test; the mean return of 100 episodes without chance."""
    parser = argparse.ArgumentParser(description="Learn to balance a pole, with the environment in the graph.")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--episodes", type=int, default=32, help="in a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=float, default=GOAL, help="fail if the mean return is lower")
    parser.add_argument("--figure", help="where to draw the returns while learning, as SVG")
    options = parser.parse_args(arguments)

    began = time.perf_counter()
    agent = Reinforce(episodes=options.episodes, seed=options.seed)
    curve = train(agent, options.steps)
    reached = float(np.mean(agent.score()))
    print(f"\nMean return of 100 new episodes: {reached:.1f} of {MOST_STEPS}")
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if options.figure:
        draw_learning(options.figure, curve, options.least)
    if reached < options.least:
        raise SystemExit(f"The goal, a mean return of {options.least:g}, was missed.")
    return reached


if __name__ == "__main__":
    main()
