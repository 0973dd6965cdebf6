"""Anomalies in what sensors say: an autoencoder that has seen normal windows only rebuilds others badly.

Three sensors of a made-up pump: its vibration, whose speed differs from window to window; the pressure, which follows
the vibration with a delay; and a slow temperature. A convolutional autoencoder squeezes a window of 192 numbers into
12 and back. What it fails to rebuild is the score of a window, and the limit is a quantile of the scores of normal
windows that it has not learnt from: no anomaly is seen before the test. There are five kinds of these.

    python examples/anomalies.py --figure anomalies.svg

Hinton and Salakhutdinov, "Reducing the Dimensionality of Data with Neural Networks", 2006; Sakurada and Yairi, "Anomaly
Detection Using Autoencoders with Nonlinear Dimensionality Reduction", 2014.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import anabranch as ab
from anabranch import layers, ops, optim

STEPS, SENSORS = 64, 3
NOISE = 0.05
QUANTILE = 0.99  # of normal windows' scores, which is the limit
GOAL = 0.93  # F1
Random = np.random.Generator


# --- the sensors ----------------------------------------------------------------------------------------------------


def normal_window(random: Random) -> np.ndarray:
    """Draw readings of the sensors of a pump that works, [STEPS, SENSORS], about between -1 and 1."""
    time = np.arange(STEPS)
    speed, phase = random.uniform(0.25, 0.45), random.uniform(0, 2 * np.pi)
    strength = random.uniform(0.6, 1.0)
    vibration = strength * (np.sin(speed * time + phase) + 0.3 * np.sin(2 * speed * time + 2 * phase))
    pressure = strength * 0.8 * np.sin(speed * (time - 3) + phase)
    temperature = random.uniform(-0.4, 0.4) + random.uniform(-0.4, 0.4) * (time / STEPS - 0.5)
    clean = np.stack([vibration, pressure, temperature], axis=1)
    return clean + random.normal(0, NOISE, clean.shape)


def add_spikes(window: np.ndarray, random: Random) -> None:
    """Some values of a sensor jump."""
    places = random.choice(STEPS, size=3, replace=False)
    window[places, random.integers(SENSORS)] += random.uniform(0.6, 1.2, 3) * random.choice([-1, 1], 3)


def add_standstill(window: np.ndarray, random: Random) -> None:
    """The vibration or the pressure sticks to a value for a while."""
    begin, sensor = random.integers(8, 32), random.integers(2)
    window[begin : begin + 20, sensor] = window[begin, sensor]


def add_drift(window: np.ndarray, random: Random) -> None:
    """A sensor's values get too high or too low, more and more."""
    begin = random.integers(8, 24)
    slope = random.choice([-1, 1]) * random.uniform(0.6, 1.0)
    window[begin:, random.integers(SENSORS)] += slope * np.linspace(0, 1, STEPS - begin)


def add_delay(window: np.ndarray, random: Random) -> None:
    """The pressure comes too late; each sensor by itself looks as it should."""
    window[:, 1] = np.roll(window[:, 1], random.integers(4, 7))


def add_rattle(window: np.ndarray, random: Random) -> None:
    """A fast vibration on top of the slow one."""
    begin = random.integers(4, 28)
    window[begin : begin + 32, 0] += random.uniform(0.3, 0.6) * np.sin(2.2 * np.arange(32))


ANOMALIES: dict[str, Callable[[np.ndarray, Random], None]] = {
    "spikes": add_spikes,
    "standstill": add_standstill,
    "drift": add_drift,
    "delay": add_delay,
    "rattle": add_rattle,
}


def make_windows(count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows, [count, STEPS, SENSORS], and of which kind they are: 0 is normal, then come those of ANOMALIES.

    Args:
        count: of windows.
        share: of those that have an anomaly.
        seed: of what is drawn.
    """
    random = np.random.default_rng(seed)
    windows = np.stack([normal_window(random) for _ in range(count)])
    kinds = np.where(random.uniform(size=count) < share, random.integers(1, len(ANOMALIES) + 1, count), 0)
    functions = list(ANOMALIES.values())
    for window, kind in zip(windows, kinds, strict=True):
        if kind > 0:
            functions[kind - 1](window, random)
    return windows.astype("float32"), kinds


# --- the detector ---------------------------------------------------------------------------------------------------


def build_autoencoder(code: int = 12, filters: int = 32) -> ab.Model:
    """Windows to windows of the same shape, through a bottleneck of `code` numbers."""
    window = ab.Input((STEPS, SENSORS), name="window")
    x = layers.Conv1D(filters, 7, strides=2, padding="same", activation="gelu")(window)
    x = layers.Conv1D(filters, 5, strides=2, padding="same", activation="gelu")(x)
    x = layers.Dense(code, name="code")(layers.Flatten()(x))
    x = layers.Dense(STEPS // 4 * filters, activation="gelu")(x)
    x = layers.Reshape((STEPS // 4, filters))(x)
    x = layers.Conv1DTranspose(filters, 5, strides=2, padding="same", activation="gelu")(x)
    rebuilt = layers.Conv1DTranspose(SENSORS, 7, strides=2, padding="same", name="rebuilt")(x)
    return ab.Model(window, rebuilt, name="autoencoder")


def make_scorer(model: ab.Model) -> Callable[[np.ndarray], np.ndarray]:
    """A compiled function of windows: how badly each is rebuilt where and in the sensor in which it is worst.

    Squared errors are means over 4 neighbouring steps, so that noise counts for less.
    """

    @ab.function
    def score(windows: Any) -> Any:
        errors = ops.square(model(windows) - windows)
        return ops.max(ops.average_pool(errors, 4, strides=2), axis=(1, 2))

    return score


class Quality(NamedTuple):
    """The quality of a detector: of the windows that it reports, and of those that it should."""

    precision: float
    recall: float
    f1: float


def quality_of(reported: np.ndarray, wrong: np.ndarray) -> Quality:
    """Precision, recall, and their harmonic mean, of two arrays of truth values.

    >>> quality_of(np.array([True, True, False, False]), np.array([True, False, False, False]))
    Quality(precision=0.5, recall=1.0, f1=0.6666666666666666)
    >>> quality_of(np.array([False]), np.array([True]))
    Quality(precision=0.0, recall=0.0, f1=0.0)
    """
    right = int(np.sum(reported & wrong))
    precision, recall = right / max(1, int(reported.sum())), right / max(1, int(wrong.sum()))
    return Quality(precision, recall, 2 * precision * recall / max(precision + recall, 1e-9))


def draw_window(path: str, model: ab.Model, window: np.ndarray, kind: str) -> None:
    """A sensor's values in a window, and what the autoencoder makes of them."""
    from drawing import line_chart

    rebuilt = model.predict(window[None], verbose=0)[0]
    wrong = np.square(rebuilt - window)
    sensor = int(wrong.max(axis=0).argmax())
    steps = list(range(STEPS))
    lines = {"sensor": window[:, sensor], "the autoencoder's version": rebuilt[:, sensor]}
    shown = {name: (steps, [float(y) for y in line]) for name, line in lines.items()}
    shown["squared error"] = (steps, [float(y) for y in wrong[:, sensor]])
    drawn = line_chart(f"A window with an anomaly: {kind}", "steps", "value, of about -1 to 1", shown)
    Path(path).write_text(drawn, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> Quality:
    """Train on normal windows, set the limit, and test; precision, recall and F1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--examples", type=int, default=6000, help="normal windows to learn from")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--least", type=float, default=GOAL, help="fail if F1 is lower")
    parser.add_argument("--figure", help="where to draw a window with an anomaly, as SVG")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    ab.utils.set_random_seed(0)

    training, _ = make_windows(options.examples, 0.0, seed=0)
    held_back, _ = make_windows(2000, 0.0, seed=1)
    test, kinds = make_windows(2000, 0.2, seed=2)

    model = build_autoencoder()
    rate = optim.schedules.CosineDecay(3e-3, options.epochs * -(-options.examples // 64), alpha=0.02)
    model.compile(optimizer=optim.Adam(rate), loss="mean_squared_error")
    model.fit(training, training, batch_size=64, epochs=options.epochs, verbose=2)
    score = make_scorer(model)
    limit = float(np.quantile(score(held_back), QUANTILE))
    print(f"Windows above {limit:.3f} are reported.\n")

    reported = score(test) > limit
    quality = quality_of(reported, kinds > 0)
    for number, name in enumerate(["normal", *ANOMALIES]):
        print(f"{name:>10}: {reported[kinds == number].mean():6.1%} of {np.sum(kinds == number)} are reported")
    print(f"\nPrecision {quality.precision:.3f}, recall {quality.recall:.3f}, F1 {quality.f1:.3f}")
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if options.figure:
        kind = list(ANOMALIES).index("standstill") + 1
        draw_window(options.figure, model, test[np.flatnonzero(reported & (kinds == kind))[0]], "standstill")
    if quality.f1 < options.least:
        raise SystemExit(f"The goal, an F1 of {options.least}, was missed.")
    return quality


if __name__ == "__main__":
    main()
