"""Actor and critic on CartPole, in a training loop written by hand: tensors are values, a tape gives the gradients.

It is Keras's public example (Nandan, "Actor Critic Method", 2020) with the import lines changed: one model with two
heads, an episode under `GradientTape`, one step of Adam an episode. The environment is Python; nothing is traced.

    python examples/actor_critic.py
    python examples/actor_critic.py --episodes 300 --seed 1 --figure actor_critic.svg
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import anabranch as ab
from anabranch import layers, ops

GAMMA = 0.99  # discount of later rewards
GOAL = 195.0  # running return that counts as solved, as in the public example
LEAST = 150.0  # best mean return of 20 episodes, below which a run has failed


class CartPole:
    """The cart with a pole (Barto, Sutton and Anderson, 1983), with the constants of Gymnasium's CartPole-v0."""

    most_steps = 200

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._state = (0.0, 0.0, 0.0, 0.0)
        self._steps = 0

    def reset(self) -> np.ndarray:
        """Begin an episode; the first state, [4]."""
        self._state, self._steps = tuple(self._random.uniform(-0.05, 0.05, 4).tolist()), 0
        return np.array(self._state, "float32")

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Take an action: the next state, the reward, and whether the episode is over."""
        x, x_dot, theta, theta_dot = self._state
        cosine, sine = math.cos(theta), math.sin(theta)
        temporary = ((10.0 if action == 1 else -10.0) + 0.05 * theta_dot**2 * sine) / 1.1
        theta_acc = (9.8 * sine - cosine * temporary) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        x_acc = temporary - 0.05 * theta_acc * cosine / 1.1
        x, x_dot = x + 0.02 * x_dot, x_dot + 0.02 * x_acc
        theta, theta_dot = theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc
        self._state, self._steps = (x, x_dot, theta, theta_dot), self._steps + 1
        fallen = abs(x) > 2.4 or abs(theta) > 12 * 2 * math.pi / 360
        return np.array(self._state, "float32"), 1.0, fallen or self._steps >= self.most_steps


def make_model() -> ab.Model:
    """A common layer, the actor's probabilities of the two actions, and the critic's estimate of the return."""
    inputs = ab.Input(shape=(4,))
    common = layers.Dense(128, activation="relu")(inputs)
    return ab.Model(inputs, [layers.Dense(2, activation="softmax")(common), layers.Dense(1)(common)])


def returns_of(rewards: list[float]) -> np.ndarray:
    """The discounted sum of the rewards from each step on, with mean 0 and deviation 1."""
    returns, total = [], 0.0
    for reward in rewards[::-1]:
        total = reward + GAMMA * total
        returns.insert(0, total)
    array = np.array(returns)
    return (array - array.mean()) / (array.std() + np.finfo(np.float32).eps)


def train_episode(
    model: ab.Model, optimizer: ab.optim.Optimizer, environment: CartPole, random: np.random.Generator
) -> float:
    """Play an episode and learn from it; the sum of its rewards."""
    huber = ab.losses.Huber()
    log_probabilities, estimates, rewards = [], [], []
    with ab.GradientTape() as tape:
        state, is_over = environment.reset(), False
        while not is_over:
            probabilities, estimate = model(ops.expand_dims(ops.convert_to_tensor(state), 0))
            estimates.append(estimate[0, 0])
            action = random.choice(2, p=np.squeeze(probabilities))
            log_probabilities.append(ops.log(probabilities[0, action]))
            state, reward, is_over = environment.step(action)
            rewards.append(reward)
        losses = []
        for log_probability, estimate, target in zip(log_probabilities, estimates, returns_of(rewards), strict=True):
            # The actor makes actions likelier that led to more than the critic expected.
            losses.append(-log_probability * (target - ops.stop_gradient(estimate)))
            losses.append(huber(ops.expand_dims(ops.cast(target, "float32"), 0), ops.expand_dims(estimate, 0)))
        loss = sum(losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return sum(rewards)


def train(episodes: int, seed: int, verbose: bool = True) -> list[float]:
    """Train until the running return reaches the goal, for at most so many episodes; the returns of all episodes."""
    ab.utils.set_random_seed(seed)
    random, environment = np.random.default_rng(seed), CartPole(seed)
    model, optimizer = make_model(), ab.optim.Adam(learning_rate=0.01)
    running, found = 0.0, []
    for episode in range(1, episodes + 1):
        found.append(train_episode(model, optimizer, environment, random))
        running = 0.05 * found[-1] + 0.95 * running
        if verbose and episode % 10 == 0:
            print(f"episode {episode}: running return {running:.1f}")
        if running > GOAL:
            if verbose:
                print(f"solved in episode {episode}")
            break
    return found


def means_of(found: Sequence[float], count: int = 20) -> np.ndarray:
    """The mean return of each episode and those before it, `count` in all; none where there are fewer."""
    return np.convolve(found, np.full(count, 1 / count), "valid") if len(found) >= count else np.zeros(0)


def draw_learning(path: str, found: Sequence[float], goal: float) -> None:
    """The mean returns of 20 episodes while it learns, and the goal."""
    from drawing import line_chart

    means = means_of(found).tolist()
    episodes = list(range(len(found) - len(means) + 1, len(found) + 1))
    lines = {"20 episodes": (episodes, means), "the goal": ([episodes[0], episodes[-1]], [goal, goal])}
    drawn = line_chart("Actor and critic learn to balance a pole", "episodes", "mean return, of 200", lines)
    Path(path).write_text(drawn, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train as the command line says; the best mean return of 20 episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=float, default=LEAST, help="fail if the best mean of 20 episodes is lower")
    parser.add_argument("--figure", help="where to draw the returns while learning, as SVG")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    found = train(options.episodes, options.seed)
    took = time.perf_counter() - start
    best = float(max(means_of(found), default=0.0))
    print(f"{len(found)} episodes, {sum(found):.0f} steps in {took:.0f} s; best mean of 20 episodes {best:.0f}")
    if options.figure and len(found) >= 20:
        draw_learning(options.figure, found, options.least)
    if best < options.least:
        raise SystemExit(f"The goal, a mean return of {options.least:g} over 20 episodes, was missed.")
    return best


if __name__ == "__main__":
    main()
