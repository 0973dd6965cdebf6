"""Wrappers that keep further copies of the weights: `Lookahead`, `MovingAverage` and `SWA`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..engine import ops
from ..engine.graph import Tensor, Variable
from ..engine.objects.arguments import check_numbers
from ..engine.queues.writing import writing_together
from .optimizer import Optimizer
from .stateless import step_where
from .updates import constrain
from .wrapper import Wrapper


class _Copies(Wrapper):
    """Base: a copy of each variable, which begins as the variable is before the first step."""

    copy_name = "average"

    def __init__(self, optimizer: Optimizer, name: str | None = None, **options: Any) -> None:
        super().__init__(optimizer, name, **options)
        self._copies: list[Variable] = []

    def build(self, variables: Sequence[Variable]) -> None:
        first = not self.built
        super().build(variables)
        if first:
            self._copies = self.add_optimizer_variables(variables, self.copy_name)

    def around_step(self, step: Callable[[], Any]) -> None:
        before = ops.convert_to_tensor(self.inner_optimizer.iterations)
        step_where(ops.equal(before, 0), self._copy)
        step()
        after = ops.convert_to_tensor(self.inner_optimizer.iterations)
        # Not in the calls in which the inner optimizer makes no step: while gradients are summed up, or if it skips.
        step_where(ops.logical_and(after > before, self.is_due(after)), lambda: self.mix(after))

    @abstractmethod
    def is_due(self, number: Tensor) -> Any:
        """Test whether the copies change after this step; steps count from 1."""

    @abstractmethod
    def mix(self, number: Tensor) -> None:
        """Change the copies after a step."""

    def _copy(self) -> None:
        for variable, copy in self._pairs():
            copy.assign(variable)

    def _pairs(self) -> Iterable[tuple[Variable, Variable]]:
        return zip(self._trainable_variables, self._copies, strict=True)

    def copy_of(self, variable: Variable) -> Variable:
        """Return the copy of a variable: its slow weights or its average.

        Raises:
            ValueError: the optimizer was not built with the variable.
        """
        self._check_known([variable])
        return self._copies[self._indices[variable]]


class Lookahead(_Copies):
    """A wrapper with slow weights, which follow the fast ones every few steps and then become the fast ones.

    Args:
        optimizer: what changes the fast weights.
        sync_period: after this many steps ``slow += slow_step_size * (fast - slow); fast = slow``.
        slow_step_size: how far the slow weights go, in [0, 1].
        name: for its variables; by default from the class.

    The slow weights begin as the weights before the first step.

    Raises:
        ValueError: `sync_period` or `slow_step_size` is out of range, `optimizer` is not an optimizer, or an option
            belongs to it.

    Source: Zhang et al., "Lookahead Optimizer: k steps forward, 1 step back", 2019.

    >>> import anabranch as ab
    >>> optimizer = ab.optim.Lookahead(ab.optim.SGD(1.0), sync_period=2)
    >>> w = ab.Variable([0.0])
    >>> for _ in range(2):
    ...     optimizer.apply([[-1.0]], [w])
    >>> w.numpy()
    array([1.], dtype=float32)
    """

    hyperparameters = ("sync_period", "slow_step_size")
    copy_name = "slow"

    def __init__(
        self,
        optimizer: Optimizer,
        sync_period: int = 6,
        slow_step_size: float = 0.5,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(optimizer, name, **options)
        check_numbers("Lookahead", sync_period=sync_period, slow_step_size=slow_step_size)
        if sync_period < 1:
            raise ValueError(f"Lookahead: sync_period must be at least 1; got {sync_period}.")
        if not 0 <= slow_step_size <= 1:
            raise ValueError(f"Lookahead: slow_step_size must be in [0, 1]; got {slow_step_size}.")
        self.sync_period = sync_period
        self.slow_step_size = slow_step_size

    def is_due(self, number: Tensor) -> Any:
        """Test whether a period has ended."""
        return ops.equal(number % self.sync_period, 0)

    def mix(self, number: Tensor) -> None:
        """Move the slow weights toward the fast ones, and make them the fast ones."""
        for fast, slow in self._pairs():
            moved = slow + (fast - slow) * self.slow_step_size
            slow.assign(moved)
            fast.assign(moved)
            constrain(fast)


class _Averages(_Copies):
    """Base: averages of weights, apart from the weights."""

    def swap_weights(self) -> None:
        """Exchange the weights and their averages, at once: to evaluate with averages, and to go on after that."""
        with writing_together([variable for pair in self._pairs() for variable in pair]):
            for variable, average in self._pairs():
                kept = variable.numpy()
                variable.assign(average.numpy())
                average.assign(kept)

    def assign_average_vars(self, var_list: Iterable[Variable] | None = None) -> None:
        """Put the averages in the places of the weights, at once.

        Args:
            var_list: the weights, by default all.
        """
        variables = self._trainable_variables if var_list is None else list(var_list)
        averages = [self.copy_of(variable).numpy() for variable in variables]
        with writing_together(variables):
            for variable, average in zip(variables, averages, strict=True):
                variable.assign(average)


class MovingAverage(_Averages):
    """A wrapper that keeps moving averages of the weights: ``average = decay * average + (1 - decay) * weights``.

    Args:
        optimizer: what makes the steps.
        average_decay: how much an average keeps in a step, in [0, 1].
        start_step: up to the end of this step (they count from 1) the averages are the weights.
        dynamic_decay: begin with less: the decay of step n after `start_step` is at most ``n / (9 + n)``.
        name: for its variables; by default from the class.

    Raises:
        ValueError: `average_decay` or `start_step` is out of range, `optimizer` is not an optimizer, or an option
            belongs to it.

    Source: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.

    >>> import anabranch as ab
    >>> optimizer = ab.optim.MovingAverage(ab.optim.SGD(1.0), average_decay=0.75)
    >>> w = ab.Variable([0.0])
    >>> optimizer.apply([[-4.0]], [w])
    >>> optimizer.swap_weights()
    >>> w.numpy(), optimizer.copy_of(w).numpy()
    (array([1.], dtype=float32), array([4.], dtype=float32))
    """

    hyperparameters = ("average_decay", "start_step", "dynamic_decay")

    def __init__(
        self,
        optimizer: Optimizer,
        average_decay: float = 0.99,
        start_step: int = 0,
        dynamic_decay: bool = False,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(optimizer, name, **options)
        check_numbers("MovingAverage", average_decay=average_decay, start_step=start_step)
        if not 0 <= average_decay <= 1:
            raise ValueError(f"MovingAverage: average_decay must be in [0, 1]; got {average_decay}.")
        if start_step < 0:
            raise ValueError(f"MovingAverage: start_step must not be negative; got {start_step}.")
        self.average_decay = average_decay
        self.start_step = start_step
        self.dynamic_decay = dynamic_decay

    def is_due(self, number: Tensor) -> Any:
        """Return True: averages change after each step."""
        return True

    def mix(self, number: Tensor) -> None:
        """Take the new weights into the averages."""
        decay: Any = ops.convert_to_tensor(self.average_decay, self.shared_dtype)
        if self.dynamic_decay:
            later = ops.cast(number - self.start_step, self.shared_dtype)
            decay = ops.minimum(decay, later / (9.0 + later))
        decay = ops.where(number > self.start_step, decay, ops.zeros_like(decay))
        for variable, average in self._pairs():
            average.assign(average + (variable - average) * (1.0 - decay))


class SWA(_Averages):
    """A wrapper for stochastic weight averaging: the mean of the weights at the ends of periods.

    Args:
        optimizer: what makes the steps; its learning rate is best constant or cyclic by then.
        start_averaging: the weights after this step are the first that count.
        average_period: and after that, those after every this many steps.
        name: for its variables; by default from the class.

    Raises:
        ValueError: an argument is out of range, `optimizer` is not an optimizer, or an option belongs to it.

    Source: Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", 2018.

    >>> import anabranch as ab
    >>> optimizer = ab.optim.SWA(ab.optim.SGD(1.0), start_averaging=1, average_period=2)
    >>> w = ab.Variable([0.0])
    >>> for _ in range(3):
    ...     optimizer.apply([[-1.0]], [w])
    >>> optimizer.assign_average_vars()
    >>> w.numpy()  # of 1 and 3
    array([2.], dtype=float32)
    """

    hyperparameters = ("start_averaging", "average_period")

    def __init__(
        self,
        optimizer: Optimizer,
        start_averaging: int = 1,
        average_period: int = 10,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(optimizer, name, **options)
        check_numbers("SWA", start_averaging=start_averaging, average_period=average_period)
        if start_averaging < 1:
            raise ValueError(f"SWA: start_averaging must be at least 1, the first step; got {start_averaging}.")
        if average_period < 1:
            raise ValueError(f"SWA: average_period must be at least 1; got {average_period}.")
        self.start_averaging = start_averaging
        self.average_period = average_period

    def is_due(self, number: Tensor) -> Any:
        """Test whether a period has ended, from `start_averaging` on."""
        later = number - self.start_averaging
        return ops.logical_and(later >= 0, ops.equal(later % self.average_period, 0))

    def mix(self, number: Tensor) -> None:
        """Take the new weights into the means."""
        count = ops.floor_divide(number - self.start_averaging, self.average_period) + 1
        share = 1.0 / ops.cast(count, self.shared_dtype)
        for variable, average in self._pairs():
            average.assign(average + (variable - average) * share)
