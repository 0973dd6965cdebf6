"""`Callback` and the callbacks that watch nothing: `CallbackList`, `History`, `LambdaCallback`, loggers."""

from __future__ import annotations

import csv
import math
import os
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
        mode = "a" if self.append else "w"
        self._file = open(self.filename, mode, newline="", encoding="utf-8")  # noqa: SIM115 - closed in on_train_end

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
