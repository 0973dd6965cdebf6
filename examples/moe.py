"""A mixture of experts over several devices: a gate sends each token to one expert, and experts run where there is
room.

How many tokens an expert gets is not known before the gate has run, and a few experts get most. So experts are not
placed on devices: `dynamic_schedule` decides at run time where each runs, and spreads the tokens of the largest over
several devices. An expert that gets no token takes no time and no memory on any device.

    python examples/moe.py

Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer" (2017);
Wei et al., "Dynamic Scheduling For Dynamic Control Flow in Deep Learning Systems" (2018).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import ops, optim

GOAL = 0.25  # of the error that the best linear map makes


class Experts:
    """Two layers for each expert; a token goes through those of one.

    Args:
        count: how many experts there are.
        units: the length of a token, and of what an expert makes of it.
        hidden: the length in between.
        devices: for the number of an expert those on which it may run; all of them by default.
    """

    def __init__(
        self, count: int, units: int, hidden: int, devices: Callable[[int], Sequence[str]] = lambda number: ()
    ) -> None:
        make = ab.initializers.GlorotUniform(seed=0)
        self.count = count
        self.devices = devices
        self.first = [ab.Variable(make((units, hidden)), name=f"first_{k}") for k in range(count)]
        self.second = [ab.Variable(make((hidden, units)), name=f"second_{k}") for k in range(count)]

    @property
    def variables(self) -> list[Any]:
        return [*self.first, *self.second]

    def one(self, number: int, tokens: Any) -> Any:
        """Return the results of expert `number` for some tokens, [tokens, units]."""
        return ops.relu(tokens @ self.first[number]) @ self.second[number]

    def __call__(self, tokens: Any, chosen: Any) -> Any:
        """Each token by its expert.

        Args:
            tokens: [tokens, units].
            chosen: [tokens], the numbers of the experts.
        """
        places = ops.dynamic_partition(ops.arange(ops.shape(tokens)[0]), chosen, self.count)
        groups = ops.dynamic_partition(tokens, chosen, self.count)
        made = [
            ab.dynamic_schedule(
                lambda rows, k=k: self.one(k, rows), [group], devices=self.devices(k), name=f"expert_{k}"
            )
            for k, group in enumerate(groups)
        ]
        return ops.dynamic_stitch(places, made)

    def dense(self, tokens: Any, chosen: Any) -> Any:
        """The same, by running all experts on all tokens."""
        masks = ops.one_hot(chosen, self.count)
        return sum([masks[:, k : k + 1] * self.one(k, tokens) for k in range(self.count)])


class Model:
    """A gate and experts, and a step of training.

    Args:
        experts: how many there are.
        units: the length of a token.
        hidden: inside an expert.
    """

    def __init__(self, experts: int, units: int, hidden: int) -> None:
        make = ab.initializers.GlorotUniform(seed=1)
        self.gate = ab.Variable(make((units, experts)), name="gate")
        self.experts = Experts(experts, units, hidden)
        self.tokens = ab.placeholder((None, units), "float32", "tokens")
        self.targets = ab.placeholder((None, units), "float32", "targets")
        weights = ops.softmax(self.tokens @ self.gate)
        self.chosen = ops.argmax(weights, axis=-1)
        made = self.experts(self.tokens, self.chosen) * ops.max(weights, axis=-1, keepdims=True)
        self.loss = ops.mean(ops.square(made - self.targets))
        self.counts = ops.bincount(self.chosen, minlength=experts)
        self.step = optim.Adam(0.01).minimize(self.loss, [self.gate, *self.experts.variables])


def draw(random: np.random.Generator, maps: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of several kinds, the first of which are much more frequent, and what is to be made of them.

    Args:
        maps: [kinds, units, units], what is done to tokens of each kind.
        count: of tokens.
    """
    kinds, units = len(maps), maps.shape[1]
    shares = 1.0 / np.arange(1, kinds + 1)
    kind = random.choice(kinds, count, p=shares / shares.sum())
    tokens = random.normal(scale=0.5, size=(count, units))
    tokens[np.arange(count), kind] += 3.0  # gives the kind
    return tokens.astype("float32"), np.einsum("ti,tij->tj", tokens, maps[kind]).astype("float32")


def error_of_one_map(tokens: np.ndarray, targets: np.ndarray) -> float:
    """The mean square error of the linear map (with a bias) that fits tokens of all kinds best."""
    known = np.hstack([tokens, np.ones((len(tokens), 1))])
    return float(np.mean((known @ np.linalg.lstsq(known, targets, rcond=None)[0] - targets) ** 2))


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train on four simulated devices; the losses, of which the last 20 have to be small enough."""
    parser = argparse.ArgumentParser(description="Train a mixture of experts on simulated devices.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=256, help="in a step")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="a few steps, too few for the goal")
    parser.add_argument("--most", type=float, default=GOAL, help="fail if the error is a larger share of one map's")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.tokens = 30, 128
    began = time.perf_counter()

    random = np.random.default_rng(0)
    maps = random.normal(scale=0.3, size=(options.experts, 16, 16))
    losses: list[float] = []
    ab.config.set_devices(sim={"count": 4, "flops": 1e9})
    try:
        with ab.Graph().as_default():
            model = Model(options.experts, units=16, hidden=32)
            with ab.Session() as session:
                for step in range(1, options.steps + 1):
                    tokens, targets = draw(random, maps, options.tokens)
                    feeds = {model.tokens: tokens, model.targets: targets}
                    loss, counts, _ = session.run([model.loss, model.counts, model.step], feeds)
                    losses.append(float(loss))
                    if step % 20 == 0 or step == 1:
                        print(
                            f"step {step:4}: loss {np.mean(losses[-20:]):.4f}, tokens of the experts {counts.tolist()}"
                        )
    finally:
        ab.config.set_devices()
    share = float(np.mean(losses[-20:])) / error_of_one_map(*draw(random, maps, 20_000))
    print(f"\nError of new tokens, of that of the best linear map: {share:.2f}")
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if share > options.most:
        raise SystemExit(f"The goal, {options.most} of that error, was missed.")
    return losses


if __name__ == "__main__":
    main()
