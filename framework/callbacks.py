"""Callbacks of `fit`, `evaluate` and `predict`, with the names and arguments of Keras."""

from __future__ import annotations

import csv
import math
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

Logs = dict[str, Any]

_BATCH_HOOKS = {mode: (f"on_{mode}_batch_begin", f"on_{mode}_batch_end") for mode in ("train", "test", "predict")}


class Callback:
    """Base class. Override the methods of the moments that interest you; `self.model` is the model.

    ``logs`` holds the averages so far: ``loss`` and the metrics, after an epoch with ``val_`` ones too. Methods of
    single batches cost time on every step; they are called only where a subclass overrides them.
    """

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}
        self._model: Any = None

    @property
    def model(self) -> Any:
        return self._model

    def set_params(self, params: dict[str, Any]) -> None:
        """Take note of ``verbose``, ``epochs`` and ``steps``."""
        self.params = params

    def set_model(self, model: Any) -> None:
        self._model = model

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """At the start of an epoch, counted from 0."""

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """At the end of an epoch, after validation."""

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """An older name of `on_train_batch_begin`."""

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """An older name of `on_train_batch_end`."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before a training step."""
        self.on_batch_begin(batch, logs=logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After a training step."""
        self.on_batch_end(batch, logs=logs)

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before a step of `evaluate`, or of validation."""

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After a step of `evaluate`, or of validation."""

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before a step of `predict`."""

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After a step of `predict`; ``logs["outputs"]`` is what it gave."""

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """At the start of `fit`."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """At the end of `fit`."""

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """At the start of `evaluate`, or of validation."""

    def on_test_end(self, logs: Logs | None = None) -> None:
        """At the end of `evaluate`, or of validation."""

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """At the start of `predict`."""

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """At the end of `predict`."""

    def wants_batches(self, mode: str) -> bool:
        """Whether this callback does anything at single batches of `mode` ("train", "test", "predict")."""
        names = [*_BATCH_HOOKS[mode], *(("on_batch_begin", "on_batch_end") if mode == "train" else ())]
        own = vars(self)
        return any(name in own or getattr(type(self), name) is not getattr(Callback, name) for name in names)


class CallbackList:
    """Calls several callbacks as one.

    Args:
        callbacks: one callback or several.
        add_history: put a `History` last, unless there is one.
        model: the model; `set_model` is called with it.
        **params: what `set_params` gets: verbose, epochs, steps.
    """

    def __init__(
        self,
        callbacks: Callback | Iterable[Callback] | None = None,
        add_history: bool = False,
        model: Any = None,
        **params: Any,
    ) -> None:
        given = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
        for item in given:
            if not isinstance(item, Callback):
                raise TypeError(
                    f"callbacks must be anabranch.callbacks.Callback objects, got {item!r} of type "
                    f"{type(item).__name__}. For single functions use LambdaCallback(on_epoch_end=...)."
                )
        self.callbacks: list[Callback] = given
        if add_history and not any(isinstance(item, History) for item in given):
            self.callbacks.append(History())
        self.params = params
        self._at_batches: dict[str, list[Callback]] = {}
        if model is not None:
            self.set_model(model)
        self.set_params(params)

    def append(self, callback: Callback) -> None:
        self.callbacks.append(callback)
        self._at_batches.clear()

    def set_params(self, params: dict[str, Any]) -> None:
        self.params = params
        for callback in self.callbacks:
            callback.set_params(params)

    def set_model(self, model: Any) -> None:
        for callback in self.callbacks:
            callback.set_model(model)

    def wants_batches(self, mode: str) -> bool:
        """Whether any callback does something at single batches; otherwise no logs need be computed for them."""
        return bool(self._callbacks_at_batches(mode))

    def _callbacks_at_batches(self, mode: str) -> list[Callback]:
        known = self._at_batches.get(mode)
        if known is None:
            known = self._at_batches[mode] = [item for item in self.callbacks if item.wants_batches(mode)]
        return known

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._call("on_epoch_begin", epoch, logs=_own(logs))

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._call("on_epoch_end", epoch, logs=_own(logs))

    def on_batch_begin(self, mode: str, batch: int, logs: Logs | None = None) -> None:
        for callback in self._callbacks_at_batches(mode):
            getattr(callback, f"on_{mode}_batch_begin")(batch, logs=_own(logs))

    def on_batch_end(self, mode: str, batch: int, logs: Logs | None = None) -> None:
        for callback in self._callbacks_at_batches(mode):
            getattr(callback, f"on_{mode}_batch_end")(batch, logs=_own(logs))

    def on_begin(self, mode: str, logs: Logs | None = None) -> None:
        """``on_train_begin``, ``on_test_begin`` or ``on_predict_begin``."""
        self._call(f"on_{mode}_begin", logs=_own(logs))

    def on_end(self, mode: str, logs: Logs | None = None) -> None:
        """``on_train_end``, ``on_test_end`` or ``on_predict_end``."""
        self._call(f"on_{mode}_end", logs=_own(logs))

    def _call(self, method: str, *args: Any, **kwargs: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, method)(*args, **kwargs)


def _own(logs: Logs | None) -> Logs:
    return {} if logs is None else logs


class History(Callback):
    """What `fit` returns.

    Attributes:
        history: for each quantity, its value at the end of each epoch.
        epoch: the epochs, counted from 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, list[float]] = {}
        self.epoch: list[int] = []

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.epoch = []

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self.epoch.append(epoch)
        for key, value in (logs or {}).items():
            self.history.setdefault(key, []).append(value)
        self.model.history = self


class LambdaCallback(Callback):
    """A callback made of functions.

    Args:
        on_epoch_begin, on_epoch_end: functions of (epoch, logs).
        on_train_begin, on_train_end: functions of (logs).
        on_train_batch_begin, on_train_batch_end: functions of (batch, logs).
        **kwargs: any other method of `Callback`.

    >>> losses = []
    >>> callback = LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))
    """

    def __init__(
        self,
        on_epoch_begin: Callable[..., Any] | None = None,
        on_epoch_end: Callable[..., Any] | None = None,
        on_train_begin: Callable[..., Any] | None = None,
        on_train_end: Callable[..., Any] | None = None,
        on_train_batch_begin: Callable[..., Any] | None = None,
        on_train_batch_end: Callable[..., Any] | None = None,
        **kwargs: Callable[..., Any],
    ) -> None:
        super().__init__()
        given = {
            "on_epoch_begin": on_epoch_begin,
            "on_epoch_end": on_epoch_end,
            "on_train_begin": on_train_begin,
            "on_train_end": on_train_end,
            "on_train_batch_begin": on_train_batch_begin,
            "on_train_batch_end": on_train_batch_end,
            **kwargs,
        }
        for name, function in given.items():
            if not name.startswith("on_") or not hasattr(Callback, name):
                raise TypeError(f"LambdaCallback: {name!r} is no method of Callback.")
            if function is not None:
                setattr(self, name, function)


class TerminateOnNaN(Callback):
    """Stops training when the loss is NaN or infinite."""

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss):
            print(f"Batch {batch}: the loss is {loss}, terminating training")
            self.model.stop_training = True


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


class CSVLogger(Callback):
    """Writes the logs of each epoch as a line of a CSV file.

    Args:
        filename: the file.
        separator: what stands between the values.
        append: go on with a file that exists, instead of replacing it.
    """

    def __init__(self, filename: str | os.PathLike[str], separator: str = ",", append: bool = False) -> None:
        super().__init__()
        self.filename = os.fspath(filename)
        self.separator = separator
        self.append = append
        self.keys: list[str] | None = None
        self._file: Any = None
        self._writer: Any = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        going_on = self.append and os.path.exists(self.filename) and os.path.getsize(self.filename) > 0
        self._has_header = going_on
        self.keys = None
        self._writer = None
        self._file = open(self.filename, "a" if self.append else "w", newline="", encoding="utf-8")

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        logs = logs or {}
        if self._writer is None:
            self.keys = sorted(logs)
            self._writer = csv.DictWriter(
                self._file, ["epoch", *self.keys], delimiter=self.separator, restval="NA", extrasaction="ignore"
            )
            if not self._has_header:
                self._writer.writeheader()
        self._writer.writerow(OrderedDict({"epoch": epoch, **_plain(logs)}))
        self._file.flush()

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._writer = None


def _plain(logs: Mapping[str, Any]) -> Logs:
    """Arrays among the logs as lists, numbers as they are."""
    return {
        key: value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value for key, value in logs.items()
    }


__all__ = [
    "CSVLogger",
    "Callback",
    "CallbackList",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ReduceLROnPlateau",
    "TerminateOnNaN",
]
