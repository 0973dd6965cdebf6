"""Training as a loop in the graph: K steps of input, gradient, update and logging are one call of one program.

The loop's body draws a batch, computes the loss and its gradient, updates the weights in place, and writes the
loss into a `TensorArray`. So Python is asked once in K steps, which is what small models spend most of their time on;
the results are those of single steps, bit for bit. `fit` does the same with `compile(steps_per_execution=K)`.

    python examples/training_loop.py --figure training_loop.svg

Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning" (2016); Yu et al., "Dynamic Control Flow in
Large-Scale Machine Learning" (2018), which describe training loops in the graph.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import layers, ops, optim

GOAL = 0.005  # mean squared error


def target(x: Any) -> Any:
    """Return what the model learns: a sine over six radians."""
    return ops.sin(3.0 * x)


class Training:
    """A small model with the two programs that train it: `step` makes one step, `steps` makes many.

    Args:
        units: of the hidden layer.
        batch: rows in a step.
        learning_rate: of Adam.
        seed: of the weights and the data.
    """

    def __init__(self, units: int = 32, batch: int = 32, learning_rate: float = 0.01, seed: int = 0) -> None:
        ab.utils.set_random_seed(seed)
        self.batch = batch
        self.dice = ab.random.SeedGenerator(seed)
        self.model = ab.Sequential([ab.Input((1,)), layers.Dense(units, "tanh"), layers.Dense(1)])
        self.optimizer = optim.Adam(learning_rate)
        self.step = ab.function(self.make_step)
        self.steps = ab.function(self.make_steps)

    def make_step(self) -> Any:
        """One step, as operations; its loss."""
        x = ab.random.uniform((self.batch, 1), -1.0, 1.0, seed=self.dice)
        loss = ops.mean(ops.square(self.model(x, training=True) - target(x)))
        variables = self.model.trainable_variables
        self.optimizer.apply(ab.gradients(loss, variables), variables)
        return loss

    def make_steps(self, count: Any) -> Any:
        """So many steps, as one loop; their losses, [count]."""

        def body(number: Any, losses: ab.TensorArray) -> tuple[Any, ab.TensorArray]:
            return number + 1, losses.write(number, self.make_step())

        losses = ab.TensorArray("float32", size=count, element_shape=())
        return ab.while_loop(lambda number, _: number < count, body, (0, losses))[1].stack()

    def error(self) -> float:
        """The mean squared error over the whole range."""
        x = np.linspace(-1, 1, 201, dtype="float32")[:, None]
        return float(np.mean((self.model.predict(x, verbose=0) - np.sin(3 * x)) ** 2))


def train(training: Training, steps: int, together: int) -> tuple[np.ndarray, float]:
    """Make steps, so many in a call; their losses, and steps a second without those of the first two calls."""
    losses: list[np.ndarray] = []
    began = 0.0
    for call in range(steps // together):
        if call == 2:
            began = time.perf_counter()
        found = training.step() if together == 1 else training.steps(np.int32(together))
        losses.append(np.atleast_1d(found))
    return np.concatenate(losses), (steps - 2 * together) / (time.perf_counter() - began)


def draw_losses(path: str, losses: np.ndarray, goal: float, group: int = 20) -> None:
    """The mean losses of so many steps at a time, and the goal."""
    from drawing import line_chart

    means = losses[: len(losses) // group * group].reshape(-1, group).mean(axis=1)
    steps = [group * number for number in range(1, len(means) + 1)]
    lines = {f"mean of {group} steps": (steps, [float(mean) for mean in means])}
    lines["the goal"] = ([steps[0], steps[-1]], [goal, goal])
    drawn = line_chart(
        "Learning a sine, in calls of 1, 10 and 100 steps alike", "steps", "mean squared error", lines, logarithmic=True
    )
    Path(path).write_text(drawn, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> tuple[dict[int, np.ndarray], float]:
    """Train in calls of 1, 10 and 100 steps; the losses of each, and the largest of the errors at the end."""
    parser = argparse.ArgumentParser(description="Train in a loop in the graph.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=float, default=GOAL, help="fail if the mean squared error is larger")
    parser.add_argument("--figure", help="where to draw the losses, as SVG")
    options = parser.parse_args(arguments)

    began = time.perf_counter()
    losses: dict[int, np.ndarray] = {}
    errors: list[float] = []
    for together in (1, 10, 100):
        training = Training(seed=options.seed)
        losses[together], rate = train(training, options.steps, together)
        errors.append(training.error())
        print(f"{together:3} steps in a call: {rate:7.0f} steps a second, mean squared error {errors[-1]:.5f}")
    same = all(np.array_equal(found, losses[1]) for found in losses.values())
    print(f"All losses of all steps are the same, bit for bit: {same}")
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if options.figure:
        draw_losses(options.figure, losses[1], options.most)
    if not same:
        raise SystemExit("Steps in one call have other losses than single steps, which should be the same.")
    if max(errors) > options.most:
        raise SystemExit(f"The goal, a mean squared error of {options.most}, was missed.")
    return losses, max(errors)


if __name__ == "__main__":
    main()
