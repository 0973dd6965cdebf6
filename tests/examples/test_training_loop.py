"""The training loop example: loops of steps against single steps, and that it learns."""

from types import ModuleType

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


def test_it_learns_and_tells_how_fast(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    losses, error = example.main(["--steps", "600"])
    assert error < 0.02
    assert np.mean(losses[1][-50:]) < 0.1 * np.mean(losses[1][:10])
    printed = capsys.readouterr().out
    assert "the same, bit for bit: True" in printed
    assert printed.count("steps a second") == 3
