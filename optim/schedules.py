"""Learning-rate schedules: functions of the step number.

>>> from anabranch.optim import schedules
>>> schedule = schedules.ExponentialDecay(0.1, decay_steps=10, decay_rate=0.5)
>>> [float(schedule(step)) for step in (0, 10)]
[0.10000000149011612, 0.05000000074505806]
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..engine import ops
from ..engine.common.keywords import ChecksKeywords
from ..engine.graph import Tensor, Variable
from ..engine.objects.registry import deserialize_keras_object, register_builtins, serialize_keras_object


class LearningRateSchedule(ChecksKeywords):
    """A schedule. Subclasses define ``__call__(step)``, written over ops, and `get_config`.

    In a graph, `step` is a symbol and so is the result; called on a number or a value, a schedule gives a value.
    """

    arguments: ClassVar[tuple[str, ...]] = ()  # attributes that get_config writes as constructor arguments

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in cls.__dict__:
            setattr(cls, "__call__", _on_tensors(cls.__dict__["__call__"]))  # noqa: B010 - not by this class's own name

    def __call__(self, step: Any) -> Any:
        """Return the learning rate of step number `step`, counted from 0."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(step).")

    def get_config(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**config)


def _on_tensors(method: Any) -> Any:
    """Wrap `method`, so that it is given the step as a tensor."""

    @functools.wraps(method)
    def call(self: LearningRateSchedule, step: Any) -> Any:
        return method(self, step if isinstance(step, Variable) else ops.convert_to_tensor(step))

    return call


def _float(value: Any) -> Tensor:
    return ops.cast(value, "float32")


def _positive(schedule: object, argument: str, value: float) -> float:
    if value <= 0:
        raise ValueError(f"{type(schedule).__name__}: {argument} must be positive; got {value}.")
    return value


class ExponentialDecay(LearningRateSchedule):
    """``initial_learning_rate * decay_rate ** (step / decay_steps)``

    Args:
        initial_learning_rate: at step 0.
        decay_steps: the number of steps in which the rate is multiplied by `decay_rate`.
        decay_rate: the factor.
        staircase: multiply at once after each `decay_steps`, rather than a little in each step.
        name: of the schedule.
    """

    arguments = ("initial_learning_rate", "decay_steps", "decay_rate", "staircase", "name")

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "ExponentialDecay",
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.decay_steps = _positive(self, "decay_steps", decay_steps)
        self.decay_rate = decay_rate
        self.staircase = staircase
        self.name = name

    def __call__(self, step: Any) -> Any:
        times = _float(step) / float(self.decay_steps)
        if self.staircase:
            times = ops.floor(times)
        return self.initial_learning_rate * ops.power(_float(self.decay_rate), times)


class InverseTimeDecay(LearningRateSchedule):
    """``initial_learning_rate / (1 + decay_rate * step / decay_steps)``; for the arguments see `ExponentialDecay`."""

    arguments = ("initial_learning_rate", "decay_steps", "decay_rate", "staircase", "name")

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "InverseTimeDecay",
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.decay_steps = _positive(self, "decay_steps", decay_steps)
        self.decay_rate = decay_rate
        self.staircase = staircase
        self.name = name

    def __call__(self, step: Any) -> Any:
        times = _float(step) / float(self.decay_steps)
        if self.staircase:
            times = ops.floor(times)
        return self.initial_learning_rate / (1.0 + self.decay_rate * times)


class PiecewiseConstantDecay(LearningRateSchedule):
    """Constant between boundaries.

    Args:
        boundaries: ascending step numbers; each is the last step of its value.
        values: one more than there are boundaries.
        name: of the schedule.

    Raises:
        ValueError: the numbers of boundaries and values do not fit.
    """

    arguments = ("boundaries", "values", "name")

    def __init__(self, boundaries: Sequence[float], values: Sequence[float], name: str = "PiecewiseConstant") -> None:
        if len(values) != len(boundaries) + 1:
            raise ValueError(
                f"PiecewiseConstantDecay needs one value more than boundaries; got {len(boundaries)} boundaries and "
                f"{len(values)} values."
            )
        self.boundaries = list(boundaries)
        self.values = list(values)
        self.name = name

    def __call__(self, step: Any) -> Any:
        number = ops.convert_to_tensor(step)
        limits = np.asarray(self.boundaries).astype(number.dtype)
        position = ops.sum(ops.cast(number > limits, "int32"))
        return ops.take(np.asarray(self.values, "float32"), position)


class PolynomialDecay(LearningRateSchedule):
    """``(initial - end) * (1 - step / decay_steps) ** power + end``, constant afterwards.

    Args:
        initial_learning_rate: at step 0.
        decay_steps: the number of steps until `end_learning_rate` is reached.
        end_learning_rate: what is left at the end.
        power: of the polynomial; 1 is linear.
        cycle: start again at the end, each time with twice, three times ... as many steps behind.
        name: of the schedule.
    """

    arguments = ("initial_learning_rate", "decay_steps", "end_learning_rate", "power", "cycle", "name")

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str = "PolynomialDecay",
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.decay_steps = _positive(self, "decay_steps", decay_steps)
        self.end_learning_rate = end_learning_rate
        self.power = power
        self.cycle = cycle
        self.name = name

    def __call__(self, step: Any) -> Any:
        steps = float(self.decay_steps)
        share = _float(step) / steps
        share = share / ops.maximum(ops.ceil(share), 1.0) if self.cycle else ops.minimum(share, 1.0)
        fall = self.initial_learning_rate - self.end_learning_rate
        return fall * ops.power(1.0 - share, float(self.power)) + self.end_learning_rate


class CosineDecay(LearningRateSchedule):
    """Half a cosine wave down to ``alpha`` times the highest rate, perhaps after a linear rise.

    Args:
        initial_learning_rate: at step 0.
        decay_steps: the number of steps of the decay.
        alpha: the share of the rate that is left at the end.
        name: of the schedule.
        warmup_target: rise to this rate first.
        warmup_steps: the number of steps of the rise.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017.
    """

    arguments = ("initial_learning_rate", "decay_steps", "alpha", "name", "warmup_target", "warmup_steps")

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        alpha: float = 0.0,
        name: str = "CosineDecay",
        warmup_target: float | None = None,
        warmup_steps: float = 0,
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.decay_steps = _positive(self, "decay_steps", decay_steps)
        self.alpha = alpha
        self.name = name
        self.warmup_target = warmup_target
        self.warmup_steps = warmup_steps

    def __call__(self, step: Any) -> Any:
        number = _float(step)
        if self.warmup_target is None:
            return self._decayed(number, self.initial_learning_rate)
        decayed = self._decayed(number - float(self.warmup_steps), self.warmup_target)
        if not self.warmup_steps:
            return decayed
        rise = (self.warmup_target - self.initial_learning_rate) * (number / float(self.warmup_steps))
        return ops.where(number < float(self.warmup_steps), self.initial_learning_rate + rise, decayed)

    def _decayed(self, number: Tensor, start: float) -> Tensor:
        share = ops.minimum(number, float(self.decay_steps)) / float(self.decay_steps)
        wave = 0.5 * (1.0 + ops.cos(math.pi * share))
        return start * ((1.0 - self.alpha) * wave + self.alpha)


class CosineDecayRestarts(LearningRateSchedule):
    """Half cosine waves down, one after the other.

    Args:
        initial_learning_rate: at step 0.
        first_decay_steps: the number of steps of the first wave.
        t_mul: how much longer each wave is than the one before.
        m_mul: how much higher each begins than the one before.
        alpha: the share of the initial rate that is left at the end of a wave.
        name: of the schedule.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017.
    """

    arguments = ("initial_learning_rate", "first_decay_steps", "t_mul", "m_mul", "alpha", "name")

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: float,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
        name: str = "SGDRDecay",
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.first_decay_steps = _positive(self, "first_decay_steps", first_decay_steps)
        self.t_mul = t_mul
        self.m_mul = m_mul
        self.alpha = alpha
        self.name = name

    def __call__(self, step: Any) -> Any:
        share = _float(step) / float(self.first_decay_steps)
        if self.t_mul == 1.0:
            restarts = ops.floor(share)
            share = share - restarts
        else:
            restarts = ops.floor(ops.log(1.0 - share * (1.0 - self.t_mul)) / math.log(self.t_mul))
            length = ops.power(_float(self.t_mul), restarts)
            share = (share - (1.0 - length) / (1.0 - self.t_mul)) / length
        wave = 0.5 * ops.power(_float(self.m_mul), restarts) * (1.0 + ops.cos(math.pi * share))
        return self.initial_learning_rate * ((1.0 - self.alpha) * wave + self.alpha)


_SCHEDULES = (
    CosineDecay,
    CosineDecayRestarts,
    ExponentialDecay,
    InverseTimeDecay,
    PiecewiseConstantDecay,
    PolynomialDecay,
)
register_builtins("keras.optimizers.schedules", {schedule.__name__: schedule for schedule in _SCHEDULES})


def serialize(learning_rate_schedule: LearningRateSchedule) -> Any:
    """Return the config of a schedule."""
    return serialize_keras_object(learning_rate_schedule)


def deserialize(config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the schedule that a config describes."""
    if "module" not in config:
        config = {**config, "module": "keras.optimizers.schedules"}
    return deserialize_keras_object(config, custom_objects)


__all__ = [
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LearningRateSchedule",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "deserialize",
    "serialize",
]
