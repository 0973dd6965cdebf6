"""The anomaly detector: its sensors and measures, its scores against NumPy, and that it finds anomalies."""

import doctest
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

import anabranch as ab


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=2)


def test_each_anomaly_changes_windows_and_leaves_something_as_it_was(example: ModuleType) -> None:
    for name, function in example.ANOMALIES.items():
        random = np.random.default_rng(0)
        for _ in range(20):
            normal = example.normal_window(random)
            window = normal.copy()
            function(window, random)
            changed = np.abs(window - normal) > 3 * example.NOISE
            assert changed.any(), name
            assert not changed.any(axis=0).all(), name  # at most one sensor


def test_windows_are_anomalous_as_often_as_asked(example: ModuleType) -> None:
    windows, kinds = example.make_windows(4000, 0.2, seed=0)
    assert windows.shape == (4000, example.STEPS, example.SENSORS)
    assert windows.dtype == np.float32
    assert np.mean(kinds > 0) == pytest.approx(0.2, abs=0.02)
    assert set(kinds) == set(range(len(example.ANOMALIES) + 1))
    normal, none = example.make_windows(50, 0.0, seed=0)
    assert not none.any()
    np.testing.assert_array_equal(normal, example.make_windows(50, 0.0, seed=0)[0])


def test_scores_are_the_worst_of_smoothed_errors(example: ModuleType) -> None:
    ab.utils.set_random_seed(0)
    model = example.build_autoencoder(code=2, filters=4)
    windows, _ = example.make_windows(5, 0.5, seed=3)
    errors = (model.predict(windows, verbose=0).astype("float64") - windows) ** 2
    worst = [
        max(errors[row, start : start + 4, sensor].mean() for start in range(0, 61, 2) for sensor in range(3))
        for row in range(5)
    ]
    np.testing.assert_allclose(example.make_scorer(model)(windows), worst, rtol=1e-4)


@pytest.mark.parametrize(
    ("reported", "wrong", "wanted"),
    [
        ([1, 1, 0, 0], [1, 1, 0, 0], (1, 1, 1)),
        ([1, 1, 1, 1], [1, 0, 0, 0], (0.25, 1, 0.4)),
        ([1, 0, 0, 0], [1, 1, 1, 0], (1, 1 / 3, 0.5)),
        ([0, 0], [1, 1], (0, 0, 0)),
        ([1, 0], [0, 0], (0, 0, 0)),
        ([], [], (0, 0, 0)),
    ],
)
def test_quality(example: ModuleType, reported: list[int], wrong: list[int], wanted: tuple[float, ...]) -> None:
    found = example.quality_of(np.array(reported, bool), np.array(wrong, bool))
    assert tuple(found) == pytest.approx(wanted)


@pytest.mark.slow
def test_small_version_finds_most_draws_and_fails_below_its_goal(
    example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figure = tmp_path / "window.svg"
    with pytest.raises(SystemExit, match=r"The goal, an F1 of 1.1, was missed."):
        example.main(["--examples=2500", "--epochs=6", "--least=1.1", f"--figure={figure}"])
    printed = capsys.readouterr().out
    found = re.search(r"F1 (\d\.\d+)", printed)
    assert found is not None
    assert float(found[1]) > 0.75
    for name in ("normal", *example.ANOMALIES):
        assert f"{name}:" in printed
    lines = [part for part in ElementTree.fromstring(figure.read_text()) if part.tag.endswith("polyline")]
    assert len(lines) == 3


@pytest.mark.slow
def test_it_reaches_its_goal(example: ModuleType) -> None:
    assert example.main([]).f1 >= example.GOAL
