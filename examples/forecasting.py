"""Forecasts of a series with seasons and a trend, by a loop in the graph that feeds on its own forecasts.

The series is made: a demand every four hours over five years, with days, weeks (whose weekends are different), years, a
trend, and noise that lingers. An encoder reads three weeks; the decoder is a `while_loop` that writes one forecast at a
time and gets it back as its next input, for two days. Training runs the same loop, and its gradient, backwards. The
forecasts are compared with the seasonal naive ones, which say what was the case a week before.

    python examples/forecasting.py --figure forecasting.svg

Hyndman and Koehler, "Another look at measures of forecast accuracy", 2006: the mean absolute scaled error (MASE).
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

DAY, WEEK, YEAR = 6, 42, 2190  # steps of four hours
CONTEXT, HORIZON = 3 * WEEK, 2 * DAY
GOAL = 0.8  # MASE; that of the seasonal naive forecasts is about 1


# --- the series -----------------------------------------------------------------------------------------------------


def make_series(steps: int, seed: int) -> np.ndarray:
    """A demand, [steps]: trend and year, times a week of days, plus noise of which 0.6 stays from step to step.

    >>> make_series(1000, seed=0).shape
    (1000,)
    """
    random = np.random.default_rng(seed)
    at = np.arange(steps)
    level = 100 + 40 * at / (5 * YEAR) + 12 * np.sin(2 * np.pi * at / YEAR)
    workday = np.array([-0.25, -0.2, 0.1, 0.15, 0.25, -0.05])
    weekend = np.array([-0.2, -0.3, -0.15, 0.05, 0.1, 0.0])
    shape = np.where(at // DAY % 7 < 5, workday[at % DAY], weekend[at % DAY])
    noise = np.empty(steps)
    last = 0.0
    for step, fresh in enumerate(random.normal(0, 3, steps)):
        noise[step] = last = 0.6 * last + fresh
    return (level * (1 + shape) + noise).astype("float32")


def make_windows(series: np.ndarray, context: int, batch_size: int, shuffle: bool) -> Any:
    """A dataset of what is known, [batch, context], and what comes next, [batch, HORIZON].

    >>> known, next_ones = next(iter(make_windows(np.arange(20.0), 4, batch_size=2, shuffle=False)))
    >>> known.tolist(), next_ones[0].tolist() == list(range(4, 16))
    ([[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]], True)
    """
    targets = np.lib.stride_tricks.sliding_window_view(series[context:], HORIZON)
    return ab.utils.timeseries_dataset_from_array(
        series, targets, context, end_index=len(series) - HORIZON, batch_size=batch_size, shuffle=shuffle, seed=0
    )


def seasonal_naive(known: np.ndarray, horizon: int, season: int = WEEK) -> np.ndarray:
    """Return the values of a season before, [batch, horizon], over and over if the horizon is longer.

    >>> seasonal_naive(np.array([[5, 1, 2, 3]]), 5, season=3)
    array([[1, 2, 3, 1, 2]])
    """
    return known[:, known.shape[1] - season + np.arange(horizon) % season]


def mean_absolute_scaled_error(found: np.ndarray, wanted: np.ndarray, history: np.ndarray, season: int = WEEK) -> float:
    """The mean absolute error, in units of that of seasonal naive forecasts, one step ahead, of a history.

    >>> mean_absolute_scaled_error(np.array([4.0, 8.0]), np.array([5.0, 5.0]), np.array([1.0, 3.0, 5.0]), season=1)
    1.0
    """
    naive = np.abs(history[season:] - history[:-season]).mean()
    return float(np.abs(found - wanted).mean() / naive)


# --- the model ------------------------------------------------------------------------------------------------------


class Decoder(layers.Layer):
    """Writes forecasts one by one, each of which is an input of the next step.

    Args:
        cell: a recurrent cell of one state.

    Call arguments: ``last (batch, 1)``, the latest value that is known; ``before (batch, horizon, values)``, earlier
    values that are like those wanted, from whose means forecasts differ by what the cell says; ``state``, its first.

    Returns:
        The forecasts, ``(batch, horizon)``.

    >>> decoder = Decoder(layers.GRUCell(3))
    >>> decoder(np.ones((2, 1), "float32"), np.ones((2, 5, 4), "float32"), np.ones((2, 3), "float32")).shape
    (2, 5)
    """

    def __init__(self, cell: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cell = cell
        self.difference = layers.Dense(1, name="difference")

    # pyrefly: ignore[bad-override] - layers take as many shapes as inputs
    def build(self, last_shape: Any, before_shape: Any, state_shape: Any) -> None:
        self.cell.build((last_shape[0], 1 + before_shape[-1]))
        self.difference.build(state_shape)

    def call(self, last: Any, before: Any, state: Any) -> Any:
        horizon = before.shape[1]

        def body(step: Any, latest: Any, state: Any, written: ab.TensorArray) -> tuple[Any, ...]:
            output, (state,) = self.cell(ops.concatenate([latest, before[:, step]], axis=-1), [state])
            latest = ops.mean(before[:, step], axis=-1, keepdims=True) + self.difference(output)
            return step + 1, latest, state, written.write(step, latest[:, 0])

        first = (0, last, state, ab.TensorArray("float32", size=horizon))
        *_, written = ab.while_loop(lambda step, *_: step < horizon, body, first)
        return ops.transpose(written.stack())


def build_model(history: np.ndarray, units: int) -> ab.Model:
    """Build a model from known values, [batch, CONTEXT], to forecasts, [batch, HORIZON], in the units of the series.

    What the network sees is how much values differ from the mean of their window, so that a trend leads nowhere new;
    the history gives the usual size of that. It reads the last week, with what came a step later in the two weeks
    before, and so does the decoder go on.
    """
    windows = np.lib.stride_tricks.sliding_window_view(history, CONTEXT)
    scale, unscale = layers.Normalization(None), layers.Normalization(None, invert=True)
    for layer in (scale, unscale):
        layer.adapt(windows - windows.mean(axis=1, keepdims=True))

    known = ab.Input((CONTEXT,), name="known")
    mean = ops.mean(known, axis=1, keepdims=True)
    values = scale(known - mean)
    week = [values[:, 2 * WEEK :], values[:, WEEK + 1 : 2 * WEEK + 1], values[:, 1 : WEEK + 1]]
    state = layers.GRU(units, name="encoder")(ops.stack(week, axis=-1))
    before = ops.stack([values[:, start : start + HORIZON] for start in (2 * WEEK, WEEK)], axis=-1)
    forecasts = Decoder(layers.GRUCell(units), name="decoder")(values[:, -1:], before, state)
    return ab.Model(known, unscale(forecasts) + mean, name="forecasting")


def draw_forecast(path: str, past: np.ndarray, following: dict[str, np.ndarray]) -> None:
    """Draw the known values, and those of the two days after: the forecast and what came."""
    from drawing import line_chart

    lines = {"known": (list(range(1 - len(past), 1)), past)}
    steps = list(range(HORIZON + 1))
    lines |= {name: (steps, np.concatenate([past[-1:], values])) for name, values in following.items()}
    shown = {name: (xs, [float(y) for y in ys]) for name, (xs, ys) in lines.items()}
    drawn = line_chart("Two days of forecasts", "steps of four hours", "demand", shown, spans=[(0, HORIZON)])
    Path(path).write_text(drawn, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train on all years but the last one, and test on that; the mean absolute scaled error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--years", type=int, default=5, help="the length of the series")
    parser.add_argument("--units", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--most", type=float, default=GOAL, help="fail if the error is larger")
    parser.add_argument("--figure", help="where to draw a forecast, as SVG")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    ab.utils.set_random_seed(0)

    series = make_series(options.years * YEAR, seed=0)
    history, rest = series[:-YEAR], series[-YEAR - CONTEXT :]
    model = build_model(history, options.units)
    training = make_windows(history, CONTEXT, batch_size=64, shuffle=True)
    rate = optim.schedules.CosineDecay(5e-3, options.epochs * len(training), alpha=0.02)
    model.compile(optimizer=optim.Adam(rate, global_clipnorm=1.0), loss="mean_absolute_error")
    model.fit(training, epochs=options.epochs, verbose=2)
    known, wanted = (np.concatenate(part) for part in zip(*make_windows(rest, CONTEXT, 512, False), strict=True))
    found, naive = model.predict(known, batch_size=512, verbose=0), seasonal_naive(known, HORIZON)
    reached, baseline = (mean_absolute_scaled_error(each, wanted, history) for each in (found, naive))
    print(f"Mean absolute scaled error of {len(known)} forecasts of two days: {reached:.3f}")
    print(f"of seasonal naive forecasts: {baseline:.3f}")
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if options.figure:
        row = len(known) // 2
        following = {"forecast": found[row], "what came": wanted[row], "the week before": naive[row]}
        draw_forecast(options.figure, known[row, -WEEK:], following)
    if reached > options.most:
        raise SystemExit(f"The goal, a mean absolute scaled error of {options.most}, was missed.")
    return reached


if __name__ == "__main__":
    main()
