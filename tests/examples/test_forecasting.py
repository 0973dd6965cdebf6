"""The forecasting example: its windows and measures, its loop against NumPy, and that it beats the naive forecasts."""

import doctest
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=7)


def test_series_has_days_weeks_and_a_trend(example: ModuleType) -> None:
    series = example.make_series(2 * example.YEAR, seed=1)
    assert series.dtype == np.float32
    first, second = series[: example.YEAR], series[example.YEAR :]
    assert second.mean() - first.mean() == pytest.approx(8, abs=2)
    centred = series - series.mean()
    alike = {lag: float(np.mean(centred[lag:] * centred[:-lag]) / centred.var()) for lag in (3, 6, 42)}
    assert alike[42] > alike[6] > alike[3]
    np.testing.assert_array_equal(series, example.make_series(2 * example.YEAR, seed=1))


def test_windows_meet_what_follows_them(example: ModuleType) -> None:
    series = np.random.default_rng(0).normal(size=60).astype("float32")
    batches = list(example.make_windows(series, 20, batch_size=8, shuffle=False))
    known, wanted = (np.concatenate(part) for part in zip(*batches, strict=True))
    assert known.shape == (60 - 20 - example.HORIZON + 1, 20)
    for start in range(len(known)):
        np.testing.assert_array_equal(known[start], series[start : start + 20])
        np.testing.assert_array_equal(wanted[start], series[start + 20 : start + 20 + example.HORIZON])
    shuffled = np.concatenate([batch for batch, _ in example.make_windows(series, 20, batch_size=8, shuffle=True)])
    assert not np.array_equal(shuffled, known)
    np.testing.assert_array_equal(np.sort(shuffled[:, 0]), np.sort(known[:, 0]))


def test_naive_forecasts_of_a_season_are_perfect(example: ModuleType) -> None:
    season = np.random.default_rng(0).normal(size=(3, example.WEEK))
    twice = np.tile(season, 2)
    found = example.seasonal_naive(twice, 50)
    np.testing.assert_array_equal(found, np.tile(season, 2)[:, :50])
    assert example.mean_absolute_scaled_error(found, np.tile(season, 2)[:, :50], np.arange(100.0)) == 0


def test_naive_forecasts_have_a_scaled_error_of_about_one(example: ModuleType) -> None:
    series = np.random.default_rng(0).normal(size=4000)
    known, wanted = series[None, :-1][:, -example.WEEK :], series[None, -1:]
    assert example.mean_absolute_scaled_error(series[42:], series[:-42], series) == pytest.approx(1)
    one = example.mean_absolute_scaled_error(example.seasonal_naive(known, 1), wanted, series)
    assert one == pytest.approx(abs(series[-43] - series[-1]) / np.abs(series[42:] - series[:-42]).mean())


def by_hand(decoder: Any, last: np.ndarray, before: np.ndarray, state: np.ndarray) -> np.ndarray:
    """The forecasts by a loop in NumPy over a simple cell, in float64."""
    kernel, recurrent, bias = (weight.numpy().astype("float64") for weight in decoder.cell.weights)
    weights, shift = (weight.numpy().astype("float64") for weight in decoder.difference.weights)
    latest, written = last.astype("float64"), []
    for step in range(before.shape[1]):
        inputs = np.concatenate([latest, before[:, step]], axis=1)
        state = np.tanh(inputs @ kernel + state @ recurrent + bias)
        latest = before[:, step].mean(axis=1, keepdims=True) + state @ weights + shift
        written.append(latest[:, 0])
    return np.stack(written, axis=1)


def test_decoder_feeds_on_its_own_forecasts(example: ModuleType) -> None:
    random = np.random.default_rng(0)
    last, before, state = (random.normal(size=shape) for shape in ((3, 1), (3, 5, 2), (3, 4)))
    decoder = example.Decoder(layers.SimpleRNNCell(4))
    found = decoder(*(array.astype("float32") for array in (last, before, state)))
    np.testing.assert_allclose(found, by_hand(decoder, last, before, state), rtol=1e-4, atol=1e-5)


def test_gradient_runs_back_through_the_forecasts(example: ModuleType) -> None:
    random = np.random.default_rng(1)
    last, before, state = (random.normal(size=shape) for shape in ((2, 1), (2, 6, 2), (2, 4)))
    decoder = example.Decoder(layers.SimpleRNNCell(4))

    @ab.function
    def slope(given: Any) -> Any:
        forecasts = decoder(given, before.astype("float32"), state.astype("float32"))
        return ab.gradients(ops.sum(forecasts * forecasts), [given])[0]

    found = slope(last.astype("float32"))
    for row in range(2):
        change = np.zeros_like(last)
        change[row] = 1e-5
        values = [float((by_hand(decoder, last + sign * change, before, state) ** 2).sum()) for sign in (1, -1)]
        assert found[row, 0] == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-3)


def test_model_follows_a_shift_of_the_level(example: ModuleType) -> None:
    history = example.make_series(600, seed=0)
    model = example.build_model(history, units=4)
    known = history[None, : example.CONTEXT]
    found, higher = model.predict(known, verbose=0), model.predict(known + 1000, verbose=0)
    assert found.shape == (1, example.HORIZON)
    np.testing.assert_allclose(higher, found + 1000, atol=0.05)


@pytest.mark.slow
def test_small_version_draws_and_fails_above_its_goal(
    example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figure = tmp_path / "forecast.svg"
    with pytest.raises(SystemExit, match=r"The goal, a mean absolute scaled error of 0.1, was missed."):
        example.main(["--years=2", "--units=8", "--epochs=3", "--most=0.1", f"--figure={figure}"])
    printed = capsys.readouterr().out
    reached, naive = (float(line.rpartition(" ")[2]) for line in printed.splitlines()[-3:-1])
    assert reached < naive - 0.05
    lines = [part for part in ElementTree.fromstring(figure.read_text()) if part.tag.endswith("polyline")]
    assert len(lines) == 4


@pytest.mark.slow
def test_it_reaches_its_goal(example: ModuleType) -> None:
    assert example.main([]) <= example.GOAL
