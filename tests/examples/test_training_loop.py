"""The training loop example: loops of steps against single steps, and that it learns."""

from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest


def test_loops_of_any_length_make_the_same_steps(example: ModuleType) -> None:
    one_by_one, together = example.Training(), example.Training()
    losses = [float(one_by_one.step()) for _ in range(12)]
    found = [together.steps(np.int32(count)) for count in (1, 0, 4, 7)]
    assert [len(each) for each in found] == [1, 0, 4, 7]
    np.testing.assert_array_equal(np.concatenate(found), np.array(losses, "float32"))
    for one, other in zip(one_by_one.model.get_weights(), together.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert int(together.optimizer.iterations) == 12


def test_a_step_is_one_of_adam_on_the_mean_square(example: ModuleType) -> None:
    training = example.Training(units=3, batch=4, learning_rate=0.5)
    dice = example.ab.random.SeedGenerator(0)
    x = np.asarray(example.ab.random.uniform((4, 1), -1.0, 1.0, seed=dice))
    kernel, bias, readout, offset = training.model.get_weights()
    error = np.tanh(x @ kernel + bias) @ readout + offset - np.sin(3 * x)
    np.testing.assert_allclose(training.step(), np.mean(error**2), rtol=1e-5)
    moved = training.model.get_weights()[-1]  # Adam's first step is one of the learning rate, against the slope's sign
    np.testing.assert_allclose(moved, offset - 0.5 * np.sign(error.mean()), rtol=1e-4)


def test_it_learns_and_tells_how_fast(example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "losses.svg"
    losses, error = example.main(["--steps=600", "--most=0.02", f"--figure={figure}"])
    assert error < 0.02
    assert np.mean(losses[1][-50:]) < 0.1 * np.mean(losses[1][:10])
    printed = capsys.readouterr().out
    assert "the same, bit for bit: True" in printed
    assert printed.count("steps a second") == 3
    lines = [part for part in ElementTree.fromstring(figure.read_text()) if part.tag.endswith("polyline")]
    assert [line.attrib["points"].count(",") for line in lines] == [600 // 20, 2]


def test_too_large_an_error_and_other_losses_are_failures(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"The goal, a mean squared error of 1e-09, was missed."):
        example.main(["--steps=300", "--most=1e-9"])
    makes = iter(range(3))  # another seed for each
    seeded = example.Training
    monkeypatch.setattr(example, "Training", lambda seed: seeded(seed=next(makes)))
    with pytest.raises(SystemExit, match=r"Steps in one call have other losses than single steps"):
        example.main(["--steps=300", "--most=9"])
