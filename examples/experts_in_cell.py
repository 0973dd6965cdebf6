"""Two recurrent layers with a mixture of experts between them, all in one cell: Figure 1 of the paper on control flow.

At each step of a text a lower LSTM reads a character, a gate sends each row's state to 2 of 8 experts, and an upper
LSTM goes on with what they made of it. The cell is a composition of layers; `layers.RNN` puts it in a loop of the
graph, in which each expert computes on those rows alone that chose it, and which `model.fit` trains. The text is
Python's standard library; how well the next character is predicted is compared with counts of trigrams.

    python examples/experts_in_cell.py --figure experts_in_cell.svg

Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", 2018; Shazeer et al., "Outrageously Large Neural
Networks: The Sparsely-Gated Mixture-of-Experts Layer", 2017.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from character_model import CHARACTERS, decode, measure_baseline, read_library, windows

import anabranch as ab
from anabranch import layers, optim

GOAL = 2.78  # bits a character; a little less than by trigrams
KINDS = {  # the first that fits
    "after a newline": lambda before, now: before == "\n",
    "spaces": lambda before, now: now == " ",
    "newlines": lambda before, now: now == "\n",
    "digits": lambda before, now: now.isdigit(),
    "capitals": lambda before, now: now.isupper(),
    "first letters": lambda before, now: now.isalpha() and not (before.isalnum() or before == "_"),
    "other letters": lambda before, now: now.isalpha(),
    "underscores": lambda before, now: now == "_",
    "quotes": lambda before, now: now in "'\"`",
    "brackets": lambda before, now: now in "()[]{}",
    "other signs": lambda before, now: True,
}


# --- the cell -------------------------------------------------------------------------------------------------------


@ab.saving.register_keras_serializable(package="examples")
class ExpertsCell(layers.Layer):
    """A cell made of two cells, with experts between them.

    Args:
        lower, upper: cells of as many units, such as `LSTMCell`.
        mixture: a layer from the lower one's output to as many features, such as `MixtureOfExperts`; what it makes is
            added to its input.

    >>> cell = ExpertsCell(layers.LSTMCell(4), layers.MixtureOfExperts(3, lambda: layers.Dense(4)), layers.LSTMCell(4))
    >>> layers.RNN(cell)(np.ones((2, 5, 1), "float32")).shape
    (2, 4)
    >>> int(cell.mixture.expert_tokens.numpy().sum())  # 2 rows, 5 steps, 2 experts
    20
    """

    def __init__(self, lower: Any, mixture: Any, upper: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lower, self.mixture, self.upper = lower, mixture, upper
        self.state_size = [*lower.state_size, *upper.state_size]
        self.output_size = upper.output_size

    def build(self, input_shape: Any) -> None:
        between = (None, self.lower.output_size)
        self.lower.build(input_shape)
        self.mixture.build(between)
        self.upper.build(between)

    def call(self, inputs: Any, states: Any, training: Any = False) -> Any:
        count = len(self.lower.state_size)
        hidden, below = self.lower(inputs, states[:count], training=training)
        hidden = hidden + self.mixture(hidden, training=training)
        output, above = self.upper(hidden, states[count:], training=training)
        return output, [*below, *above]

    def get_config(self) -> dict[str, Any]:
        parts = {"lower": self.lower, "mixture": self.mixture, "upper": self.upper}
        saved = {name: ab.saving.serialize_keras_object(part) for name, part in parts.items()}
        return {**super().get_config(), **saved}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ExpertsCell:
        parts = {name: ab.saving.deserialize_keras_object(config.pop(name)) for name in ("lower", "mixture", "upper")}
        return cls(**parts, **config)


def build_model(experts: int, units: int, length: int) -> ab.Sequential:
    """Character numbers, [batch, time], to the logits of the characters that come next."""

    def expert() -> Any:
        return ab.Sequential([layers.Dense(2 * units, activation="relu"), layers.Dense(units)])

    # Losses in a cell are summed over the steps: their weights are for one step of many.
    weight = 0.1 / length
    mixture = layers.MixtureOfExperts(experts, expert, k=2, importance_loss=weight, load_loss=weight, seed=1)
    cell = ExpertsCell(layers.LSTMCell(units), mixture, layers.LSTMCell(units))
    return ab.Sequential(
        [
            ab.Input((None,), dtype="int32"),
            layers.Embedding(CHARACTERS, units, name="characters"),
            layers.RNN(cell, return_sequences=True, name="recurrence"),
            layers.Dense(CHARACTERS, name="next_character"),
        ]
    )


# --- what the experts do --------------------------------------------------------------------------------------------


def choices(model: Any, texts: np.ndarray) -> np.ndarray:
    """The experts to which each character is sent, [texts, time, k].

    The lower cell does not depend on what is above it, and the gate on nothing but that: so both can be run alone.
    """
    characters, recurrence, _ = model.layers
    cell = recurrence.cell
    hidden = layers.RNN(cell.lower, return_sequences=True)(characters(texts))
    logits = hidden @ cell.mixture.gate_kernel.numpy()
    return np.argsort(-logits, axis=-1)[..., : cell.mixture.k]


def kinds_of(text: str) -> np.ndarray:
    """The numbers of the kinds of characters.

    >>> [list(KINDS)[kind] for kind in kinds_of("x = f(1)")][:5]
    ['after a newline', 'spaces', 'other signs', 'spaces', 'first letters']
    """
    fits = list(KINDS.values())
    pairs = zip("\n" + text, text, strict=False)
    return np.array([next(n for n, fit in enumerate(fits) if fit(*pair)) for pair in pairs])


def shares_by_kind(chosen: np.ndarray, texts: Sequence[str], experts: int) -> np.ndarray:
    """Return the share of each kind's characters that is sent to each expert, [kinds, experts]."""
    shares = np.zeros((len(KINDS), experts))
    for row, text in zip(chosen, texts, strict=True):
        np.add.at(shares, (kinds_of(text)[:, None], row), 1.0)
    counts = shares.sum(axis=1, keepdims=True) / chosen.shape[-1]
    return shares / np.maximum(counts, 1)


def draw_choices(path: str, shares: np.ndarray) -> None:
    """Draw which experts get which characters, as SVG."""
    from drawing import table

    columns = [f"expert {number}" for number in range(shares.shape[1])]
    Path(path).write_text(table("Which experts get which characters", list(KINDS), columns, shares), encoding="utf-8")


# --- the program ----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and test; the bits that a character of other files takes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--characters", type=int, default=400_000, help="how much text to learn from")
    parser.add_argument("--units", type=int, default=96)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--length", type=int, default=32, help="characters in a window")
    parser.add_argument("--batch", type=int, default=64, help="windows in a batch")
    parser.add_argument("--most", type=float, default=GOAL, help="fail if a character takes more bits")
    parser.add_argument("--figure", help="where to draw which experts get which characters, as SVG")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    ab.utils.set_random_seed(1)

    training, test, library = read_library(options.characters, options.characters // 10)
    print(f"Learning from {len(training) - 1:,} characters of the modules in {library}.")
    trigrams = measure_baseline(training, test, [3])[3] / np.log(2)
    inputs, targets = windows(training, options.batch, options.length)
    test_inputs, test_targets = windows(test, options.batch, options.length)

    model = build_model(options.experts, options.units, options.length)
    rate = optim.schedules.CosineDecay(8e-3, options.epochs * len(inputs) // options.batch, alpha=0.02)
    model.compile(
        optimizer=optim.Adam(rate, global_clipnorm=1.0),
        loss=ab.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[ab.metrics.SparseCategoricalCrossentropy(from_logits=True, name="nats")],
    )
    model.fit(inputs, targets, batch_size=options.batch, epochs=options.epochs, verbose=2)

    recurrence: Any = model.get_layer("recurrence")
    mixture = recurrence.cell.mixture
    print(f"\nCharacters of the last batch that each expert computed on: {mixture.expert_tokens.numpy().tolist()},")
    print(f"of {options.batch * options.length} characters, each of which chose {mixture.k} of {options.experts}.\n")
    chosen = choices(model, test_inputs)
    shares = shares_by_kind(chosen, [decode(row).ljust(options.length) for row in test_inputs], options.experts)
    for kind, row in zip(KINDS, shares, strict=True):
        first, second = np.argsort(-row)[:2]
        print(f"  {kind:16} {row[first]:4.0%} to expert {first}, {row[second]:4.0%} to expert {second}")
    if options.figure:
        draw_choices(options.figure, shares)

    results = model.evaluate(test_inputs, test_targets, batch_size=options.batch, verbose=0, return_dict=True)
    reached = results["nats"] / float(np.log(2))
    print(f"\nBits a character, of other files: {reached:.2f}")
    print(f"by trigrams: {trigrams:.2f}")
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if reached > options.most:
        raise SystemExit(f"The goal, {options.most} bits a character, was missed.")
    return reached


if __name__ == "__main__":
    main()
