"""Callbacks that watch a quantity, or change the learning rate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..models.fit_callbacks import Callback
from ..training.base_callback import Logs
from ..training.limits import show

if TYPE_CHECKING:
    from ...optim import Optimizer
    from ..structures import Array

# Parts of names, where no metric of the model has the name.
_UP = ("acc", "auc", "precision", "recall", "f1", "iou")
_DOWN = ("loss", "error", "entropy", "hinge", "poisson", "divergence", "logcosh", "log_cosh", "perplexity", "distance")
_DOWN_WORDS = {"mse", "mae", "mape", "msle", "rmse", "kl", "kld", "nll"}


class MonitorCallback(Callback):
    """Base of the callbacks that watch one quantity of the logs.

    Args:
        monitor: its name.
        mode: "min", "max", or "auto", which goes by the model's metric of that name (losses and errors are minimised,
            accuracies, scores and similarities maximised), else by words in the name, such as "acc" and "loss".
        min_delta: what counts as an improvement must exceed the best value by more than this.
        best: the value to beat at first.

    >>> import anabranch as ab
    >>> class Best(ab.callbacks.MonitorCallback):
    ...     def on_epoch_end(self, epoch, logs=None):
    ...         value = self.monitored(logs)
    ...         if self.improves(value, self.best):
    ...             self.best = value
    >>> callback = Best(monitor="loss", mode="min")
    >>> callback.on_epoch_end(0, {"loss": 0.5})
    >>> callback.on_epoch_end(1, {"loss": 0.7})
    >>> callback.best
    0.5
    """

    def __init__(
        self, monitor: str = "val_loss", mode: str = "auto", best: float | None = None, min_delta: float = 0.0
    ) -> None:
        super().__init__()
        if mode not in ("auto", "min", "max"):
            warnings.warn(
                f"{type(self).__name__}: mode must be 'auto', 'min' or 'max', got {mode!r}. 'auto' is taken.",
                stacklevel=3,
            )
            mode = "auto"
        self.monitor = monitor
        self.mode = mode
        self.min_delta = abs(min_delta)
        self.best = best

    @property
    def maximises(self) -> bool:
        """Test whether larger is better.

        Raises:
            ValueError: `mode` is "auto", and neither a metric of the model nor the name answers that.
        """
        if self.mode != "auto":
            return self.mode == "max"
        name = self.monitor.removeprefix("val_")
        direction = _direction_by_metric(name, getattr(self.model, "metrics", ())) or _direction_by_name(name)
        if direction is None:
            raise ValueError(
                f"{type(self).__name__} watches {self.monitor!r} with mode='auto', but neither a metric of the model "
                "nor the name says whether larger values are better. Give mode='max' or mode='min'."
            )
        return direction == "up"

    @property
    def monitor_op(self) -> np.ufunc:
        """The comparison that is true of a better value and a reference: `np.greater` or `np.less`."""
        return np.greater if self.maximises else np.less

    def improves(self, value: float, reference: float | None) -> bool:
        """Test whether `value` beats `reference` by more than `min_delta`."""
        maximises = self.maximises
        if reference is None:
            return True
        return value - self.min_delta > reference if maximises else value + self.min_delta < reference

    def monitored(self, logs: Logs | None) -> float | None:
        """Return the watched quantity; None, with a warning, if there is none of that name."""
        value = (logs or {}).get(self.monitor)
        if value is None:
            warnings.warn(
                f"{type(self).__name__} watches {self.monitor!r}, which is not among the logs: "
                f"{', '.join(sorted(logs or {})) or 'there are none'}.",
                stacklevel=2,
            )
        return value


def _direction_by_metric(name: str, metrics: Iterable[Any]) -> str | None:
    """Return the direction of the metric of a name, or of the one whose name it ends with, as an output's does."""
    found = [metric for metric in metrics if name == metric.name or name.endswith(f"_{metric.name}")]
    return max(found, key=lambda metric: len(metric.name))._direction if found else None


def _direction_by_name(name: str) -> str | None:
    words = set(name.lower().split("_"))
    if name.startswith("fmeasure") or any(part in name for part in _UP):
        return "up"
    return "down" if words & _DOWN_WORDS or any(part in name for part in _DOWN) else None


class EarlyStopping(MonitorCallback):
    """Stops training when a quantity has stopped improving.

    Args:
        monitor: the quantity.
        min_delta: smaller changes do not count as improvements.
        patience: how many epochs without improvement are tolerated.
        verbose: 1 prints a line when training stops.
        mode: "min", "max" or "auto".
        baseline: the value that training has to beat to count as an improvement.
        restore_best_weights: at the end, go back to the weights of the best epoch.
        start_from_epoch: epochs before this one are not looked at.
    """

    uses_optimizer = False
    kept_attributes = ("wait", "stopped_epoch", "best", "best_epoch", "best_weights")

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__(monitor, mode, None, min_delta)
        self.patience = patience
        self.verbose = verbose
        self.baseline = baseline
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch = start_from_epoch
        self.wait = 0
        self.stopped_epoch = 0
        self.best_weights: list[Array] | None = None
        self.best_epoch = 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.wait = 0
        self.stopped_epoch = 0
        self.best = None
        self.best_weights = None
        self.best_epoch = 0

    def get_monitor_value(self, logs: Logs | None) -> float | None:
        """Return the quantity that is compared, out of the logs of an epoch; None for an epoch to pass over.

        Subclasses may compute another one, as in Keras:

        >>> import anabranch as ab
        >>> class SmoothStopping(ab.callbacks.EarlyStopping):
        ...     mean = 0.0
        ...     def get_monitor_value(self, logs):
        ...         self.mean = 0.9 * self.mean + 0.1 * super().get_monitor_value(logs)
        ...         return self.mean
        >>> round(SmoothStopping(monitor="loss").get_monitor_value({"loss": 0.5}), 3)
        0.05
        """
        return self.monitored(logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        value = self.get_monitor_value(logs)
        if value is None or epoch < self.start_from_epoch:
            return
        if self.restore_best_weights and self.best_weights is None:
            # If no epoch is ever better than the baseline, these are what there is to go back to.
            self._remember(epoch)
        self.wait += 1
        if self.improves(value, self.best):
            self.best = value
            self.best_epoch = epoch
            if self.restore_best_weights:
                self._remember(epoch)
            if self.baseline is None or self.improves(value, self.baseline):
                self.wait = 0
            return
        if self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            self.model.stop_training = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self.stopped_epoch > 0 and self.verbose:
            show(f"Epoch {self.stopped_epoch + 1}: early stopping")
        if self.restore_best_weights and self.best_weights is not None:
            if self.verbose:
                show(f"Restoring model weights from the end of the best epoch: {self.best_epoch + 1}.")
            self.model.set_weights(self.best_weights)

    def _remember(self, epoch: int) -> None:
        self.best_weights = self.model.get_weights()
        self.best_epoch = epoch


class LearningRateScheduler(Callback):
    """Sets the learning rate at the start of each epoch.

    Args:
        schedule: a function of (epoch, learning rate), or of the epoch alone.
        verbose: 1 prints a line each time.

    Raises:
        ValueError: the function returns no number, or the optimizer follows a schedule of its own.
    """

    uses_optimizer = False

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        super().__init__()
        self.schedule = schedule
        self.verbose = verbose

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        for optimizer in _optimizers(self):
            new = self._next(epoch, float(optimizer.learning_rate))
            optimizer.learning_rate = new
            if self.verbose:
                show(f"\nEpoch {epoch + 1}: LearningRateScheduler setting learning rate to {new}.")

    def _next(self, epoch: int, rate: float) -> float:
        try:
            new = self.schedule(epoch, rate)
        except TypeError:  # a schedule of the epoch alone
            new = self.schedule(epoch)
        if not isinstance(new, (float, int, np.floating, np.integer, np.ndarray)) or np.ndim(new) != 0:
            raise ValueError(f"LearningRateScheduler: the schedule must return a number, got {new!r}.")
        return float(new)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if logs is not None:
            logs.update(_learning_rates(self))


def _optimizers(callback: Callback) -> list[Optimizer]:
    """Return the model's optimizer, or those of its `MultiOptimizer`."""
    optimizer = getattr(callback.model, "optimizer", None)
    found = list(getattr(optimizer, "optimizers", [optimizer]))
    if any(not hasattr(each, "learning_rate") for each in found):
        raise ValueError(f"{type(callback).__name__} needs a compiled model whose optimizer has a learning_rate.")
    return found


def _learning_rates(callback: Callback) -> dict[str, float]:
    """Return the learning rate for the logs; where there are several optimizers, one rate by name for each."""
    found = _optimizers(callback)
    if len(found) == 1:
        return {"learning_rate": float(found[0].learning_rate)}
    rates: dict[str, float] = {}
    for optimizer in found:
        name = key = f"learning_rate_{optimizer.name}"
        copies = 0
        while key in rates:  # names of optimizers are unique unless users gave them
            copies += 1
            key = f"{name}_{copies}"
        rates[key] = float(optimizer.learning_rate)
    return rates


class ReduceLROnPlateau(MonitorCallback):
    """Lowers the learning rate when a quantity has stopped improving.

    Args:
        monitor: the quantity.
        factor: the new rate is the old one times this.
        patience: how many epochs without improvement are tolerated.
        verbose: 1 prints a line each time.
        mode: "min", "max" or "auto".
        min_delta: smaller changes do not count as improvements.
        cooldown: how many epochs to wait after a change before looking again.
        min_lr: the rate goes no lower.

    Raises:
        ValueError: `factor` is 1 or more.
    """

    uses_optimizer = False
    kept_attributes = ("cooldown_counter", "wait", "best")

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__(monitor, mode, None, min_delta)
        if factor >= 1.0:
            raise ValueError(f"ReduceLROnPlateau: factor must be below 1, got {factor}.")
        self.factor = factor
        self.patience = patience
        self.verbose = verbose
        self.cooldown = cooldown
        self.min_lr = min_lr
        self._reset()

    def _reset(self) -> None:
        self.cooldown_counter = 0
        self.wait = 0
        self.best = None

    def in_cooldown(self) -> bool:
        return self.cooldown_counter > 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._reset()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if logs is not None:
            logs.update(_learning_rates(self))
        value = self.monitored(logs)
        if value is None:
            return
        if self.in_cooldown():
            self.cooldown_counter -= 1
            self.wait = 0
        if self.improves(value, self.best):
            self.best = value
            self.wait = 0
        elif not self.in_cooldown():
            self.wait += 1
            if self.wait >= self.patience:
                self._reduce(epoch)

    def _reduce(self, epoch: int) -> None:
        for optimizer in _optimizers(self):
            old = float(optimizer.learning_rate)
            if old <= np.float32(self.min_lr):
                continue
            new = max(old * self.factor, self.min_lr)
            optimizer.learning_rate = new
            self.cooldown_counter = self.cooldown
            self.wait = 0
            if self.verbose:
                show(f"\nEpoch {epoch + 1}: ReduceLROnPlateau reducing learning rate to {new}.")
