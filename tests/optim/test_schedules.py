"""Learning-rate schedules: Keras's numbers for numbers and tensors, ends, errors, configs."""

from __future__ import annotations

import numpy as np
import pytest

import anabranch as ab
from anabranch.optim import schedules
from golden.loader import ScheduleCase, load_cases

CASES = load_cases("schedules")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_schedule_of_a_number_gives_keras_numbers(case: ScheduleCase):
    schedule = case.build(schedules)
    found = [schedule(step) for step in case.steps]
    assert all(isinstance(rate, ab.Tensor) and rate.dtype == "float32" for rate in found)
    np.testing.assert_allclose(found, case.outputs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_schedule_of_a_tensor_gives_the_same(case: ScheduleCase):
    with ab.Graph().as_default():
        step = ab.placeholder((), "int32")
        rate = case.build(schedules)(step)
        assert rate.dtype == "float32"
        run = ab.Session().make_callable(rate, [step])
    np.testing.assert_allclose([run(number) for number in case.steps], case.outputs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_config_rebuilds_the_schedule(case: ScheduleCase):
    schedule = case.build(schedules)
    config = schedules.serialize(schedule)
    assert config["module"] == "keras.optimizers.schedules"
    again = schedules.deserialize(config)
    assert again.get_config() == schedule.get_config()
    assert again(3) == schedule(3)


def test_equal_waves():
    schedule = schedules.CosineDecayRestarts(1.0, 4, t_mul=1.0, m_mul=0.5)
    np.testing.assert_allclose([schedule(step) for step in (0, 2, 4, 6, 8)], [1, 0.5, 0.5, 0.25, 0.25], atol=1e-6)


def test_warmup_of_no_steps_starts_at_the_target():
    assert schedules.CosineDecay(0.0, 10, warmup_target=0.5, warmup_steps=0)(0) == 0.5


def test_bad_arguments():
    with pytest.raises(ValueError, match="ExponentialDecay: decay_steps must be positive; got 0"):
        schedules.ExponentialDecay(0.1, 0, 0.5)
    with pytest.raises(ValueError, match="2 boundaries and 2 values"):
        schedules.PiecewiseConstantDecay([1, 2], [0.1, 0.2])
