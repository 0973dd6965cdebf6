"""Callbacks that watch a quantity, or change the learning rate."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .callback import Callback, Logs


class MonitorCallback(Callback):
    """Base of the callbacks that watch one quantity of the logs.

    Args:
        monitor: its name.
        mode: "min", "max", or "auto", which goes by the name: accuracy, AUC, precision and recall are maximised,
            everything else is minimised.
        min_delta: what counts as an improvement must exceed the best value by more than this.
        best: the value to beat at first.
    """

    def __init__(
        self, monitor: str = "val_loss", mode: str = "auto", best: float | None = None, min_delta: float = 0.0
    ) -> None:
        super().__init__()
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"{type(self).__name__}: mode must be 'auto', 'min' or 'max', got {mode!r}.")
        self.monitor = monitor
        self.mode = mode
        self.min_delta = abs(min_delta)
        self.best = best

    @property
    def maximises(self) -> bool:
        """Whether larger is better."""
        if self.mode != "auto":
            return self.mode == "max"
        name = self.monitor.removeprefix("val_")
        return any(word in name for word in ("acc", "auc", "precision", "recall", "f1", "iou")) or name.startswith(
            "fmeasure"
        )

    def improves(self, value: float, reference: float | None) -> bool:
        """Whether `value` beats `reference` by more than `min_delta`."""
        if reference is None:
            return True
        return value - self.min_delta > reference if self.maximises else value + self.min_delta < reference

    def monitored(self, logs: Logs | None) -> float | None:
        """The watched quantity; None, with a warning, if there is none of that name."""
        value = (logs or {}).get(self.monitor)
        if value is None:
            warnings.warn(
                f"{type(self).__name__} watches {self.monitor!r}, which is not among the logs: "
                f"{', '.join(sorted(logs or {})) or 'there are none'}.",
                stacklevel=2,
            )
        return value


class ModelCheckpoint(MonitorCallback):
    """Saves the model, or its weights, while it trains.

    Args:
        filepath: where; may hold ``{epoch}`` (counted from 1), ``{batch}`` and names of logs with formats, as in
            ``"{epoch:02d}-{val_loss:.2f}.keras"``. Ends in ``.keras``, or in ``.weights.h5`` with
            `save_weights_only`.
        monitor: the quantity that says which model is best.
        verbose: 1 prints a line for each file.
        save_best_only: write a file only when the quantity improves.
        save_weights_only: weights instead of the whole model.
        mode: "min", "max" or "auto".
        save_freq: "epoch", or a number of batches.
        initial_value_threshold: the first value to beat.

    Raises:
        ValueError: the file name has the wrong ending, or an option is unknown.
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        initial_value_threshold: float | None = None,
    ) -> None:
        super().__init__(monitor, mode, initial_value_threshold)
        self.filepath = os.fspath(filepath)
        self.verbose = verbose
        self.save_best_only = save_best_only
        self.save_weights_only = save_weights_only
        if save_freq != "epoch" and not isinstance(save_freq, int):
            raise ValueError(f"ModelCheckpoint: save_freq must be 'epoch' or a number of batches, got {save_freq!r}.")
        self.save_freq = save_freq
        self._batches_seen = 0
        self._current_epoch = 0
        endings = (".weights.h5",) if save_weights_only else (".keras", ".h5")
        if not self.filepath.endswith(endings):
            raise ValueError(
                f"ModelCheckpoint: with save_weights_only={save_weights_only} the file name must end in "
                f"{endings[0]!r}, got {self.filepath!r}."
            )

    def wants_batches(self, mode: str) -> bool:
        return mode == "train" and self.save_freq != "epoch"

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._current_epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._batches_seen += 1
        if isinstance(self.save_freq, int) and self._batches_seen % self.save_freq == 0:
            self._save(self._current_epoch, batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if self.save_freq == "epoch":
            self._save(epoch, None, logs)

    def _save(self, epoch: int, batch: int | None, logs: Logs | None) -> None:
        path = self._path(epoch, batch, logs)
        if self.save_best_only:
            value = self.monitored(logs)
            if value is None or not self.improves(value, self.best):
                return
            self._note(f"Epoch {epoch + 1}: {self.monitor} improved from {self.best} to {value}, saving to {path}")
            self.best = value
        else:
            self._note(f"Epoch {epoch + 1}: saving to {path}")
        folder = os.path.dirname(path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        save = self.model.save_weights if self.save_weights_only else self.model.save
        save(path, overwrite=True)

    def _path(self, epoch: int, batch: int | None, logs: Logs | None) -> str:
        known: dict[str, Any] = {**(logs or {}), "epoch": epoch + 1}
        if batch is not None:
            known["batch"] = batch + 1
        try:
            return self.filepath.format(**known)
        except KeyError as error:
            raise KeyError(
                f"ModelCheckpoint: the file name {self.filepath!r} asks for {error}, which is not known here. "
                f"There are: {', '.join(sorted(known))}."
            ) from error

    def _note(self, text: str) -> None:
        if self.verbose:
            print(f"\n{text}")


class EarlyStopping(MonitorCallback):
    """Stops training when a quantity has stopped improving.

    Args:
        monitor: the quantity.
        min_delta: smaller changes do not count as improvements.
        patience: how many epochs without improvement are borne.
        verbose: 1 prints a line when training stops.
        mode: "min", "max" or "auto".
        baseline: the value that training has to beat to count as an improvement.
        restore_best_weights: at the end, go back to the weights of the best epoch.
        start_from_epoch: epochs before this one are not looked at.
    """

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
        self.best_weights: list[Any] | None = None
        self.best_epoch = 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.wait = 0
        self.stopped_epoch = 0
        self.best = None
        self.best_weights = None
        self.best_epoch = 0

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        value = self.monitored(logs)
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
            print(f"Epoch {self.stopped_epoch + 1}: early stopping")
        if self.restore_best_weights and self.best_weights is not None:
            if self.verbose:
                print(f"Restoring model weights from the end of the best epoch: {self.best_epoch + 1}.")
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

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        super().__init__()
        self.schedule = schedule
        self.verbose = verbose

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        rate = _learning_rate(self)
        try:
            new = self.schedule(epoch, rate)
        except TypeError:  # a schedule of the epoch alone
            new = self.schedule(epoch)
        if not isinstance(new, (float, int, np.floating, np.integer, np.ndarray)) or np.ndim(new) != 0:
            raise ValueError(f"LearningRateScheduler: the schedule must return a number, got {new!r}.")
        self.model.optimizer.learning_rate = float(new)
        if self.verbose:
            print(f"\nEpoch {epoch + 1}: LearningRateScheduler setting learning rate to {float(new)}.")

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if logs is not None:
            logs["learning_rate"] = _learning_rate(self)


def _learning_rate(callback: Callback) -> float:
    optimizer = getattr(callback.model, "optimizer", None)
    if optimizer is None or not hasattr(optimizer, "learning_rate"):
        raise ValueError(f"{type(callback).__name__} needs a compiled model whose optimizer has a learning_rate.")
    return float(optimizer.learning_rate)


class ReduceLROnPlateau(MonitorCallback):
    """Lowers the learning rate when a quantity has stopped improving.

    Args:
        monitor: the quantity.
        factor: the new rate is the old one times this.
        patience: how many epochs without improvement are borne.
        verbose: 1 prints a line each time.
        mode: "min", "max" or "auto".
        min_delta: smaller changes do not count as improvements.
        cooldown: how many epochs to wait after a change before looking again.
        min_lr: the rate goes no lower.

    Raises:
        ValueError: `factor` is 1 or more.
    """

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
            logs["learning_rate"] = _learning_rate(self)
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
        old = _learning_rate(self)
        if old <= np.float32(self.min_lr):
            return
        new = max(old * self.factor, self.min_lr)
        self.model.optimizer.learning_rate = new
        self.cooldown_counter = self.cooldown
        self.wait = 0
        if self.verbose:
            print(f"\nEpoch {epoch + 1}: ReduceLROnPlateau reducing learning rate to {new}.")
