"""`Callback` and the callbacks that watch nothing: `CallbackList`, `History`, `LambdaCallback`, loggers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...engine.common.keywords import ChecksKeywords
from ...engine.runtime import numerics

if TYPE_CHECKING:
    from ..structures import ModelOfSomeClass
    from ..training.trainer import Trainer

Logs = dict[str, Any]

_BATCH_HOOKS = {mode: (f"on_{mode}_batch_begin", f"on_{mode}_batch_end") for mode in ("train", "test", "predict")}


class Callback(ChecksKeywords):
    """Base class. Override the methods of the moments that interest you; `self.model` is the model.

    ``logs`` holds the averages so far: ``loss`` and the metrics, after an epoch with ``val_`` ones too. Methods of
    single batches cost time on every step; they are called only where a subclass overrides them.

    A callback that has a state of its own names the attributes in `kept_attributes`, or overrides `get_state` and
    `set_state`: then a run that `BackupAndRestore` takes up goes on with it.
    """

    kept_attributes: ClassVar[tuple[str, ...]] = ()
    """Attributes that a backup keeps: numbers, texts, arrays, and lists and dicts of these."""
    runs_last: ClassVar[bool] = False
    """Mark that it is called after all others, because it looks at what they have done."""
    reads_batch_logs: ClassVar[bool] = True
    """Mark that it looks at the logs of single batches. If no callback does, they are not computed, and empty."""
    uses_optimizer: ClassVar[bool] = True
    """Mark that it may use the optimizer's variables. Where workers hold these in parts, the chief gets them for it."""

    # Under a strategy callbacks are called in the chief alone, unless they say otherwise.
    on_all_workers: bool = False

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}
        self._model: Any = None

    @property
    def model(self) -> ModelOfSomeClass:
        return self._model

    def set_params(self, params: dict[str, Any]) -> None:
        """Take note of ``verbose``, ``epochs`` and ``steps``."""
        self.params = params

    def set_model(self, model: Any) -> None:
        self._model = model

    def get_state(self) -> dict[str, Any]:
        """Return what a backup keeps of this callback."""
        return {name: getattr(self, name) for name in self.kept_attributes}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with what `get_state` gave in the run that is taken up."""
        for name, value in state.items():
            setattr(self, name, value)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Act at the start of an epoch, counted from 0."""

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Act at the end of an epoch, after validation."""

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Act before a training step: an older name of `on_train_batch_begin`."""

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Act after a training step: an older name of `on_train_batch_end`."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Act before a training step."""
        self.on_batch_begin(batch, logs=logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Act after a training step."""
        self.on_batch_end(batch, logs=logs)

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Act before a step of `evaluate`, or of validation."""

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Act after a step of `evaluate`, or of validation."""

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Act before a step of `predict`."""

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Act after a step of `predict`; ``logs["outputs"]`` holds its outputs."""

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Act at the start of `fit`."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Act at the end of `fit`."""

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Act at the start of `evaluate`, or of validation."""

    def on_test_end(self, logs: Logs | None = None) -> None:
        """Act at the end of `evaluate`, or of validation."""

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """Act at the start of `predict`."""

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """Act at the end of `predict`."""

    def wants_batches(self, mode: str) -> bool:
        """Test whether this callback does anything at single batches of `mode` ("train", "test", "predict")."""
        return self.has_any(*_BATCH_HOOKS[mode], *(("on_batch_begin", "on_batch_end") if mode == "train" else ()))

    def has_any(self, *names: str) -> bool:
        """Test whether this callback overrides a method of one of these names."""
        own = vars(self)
        return any(name in own or getattr(type(self), name) is not getattr(Callback, name) for name in names)


class CallbackList:
    """Calls several callbacks as one, for loops of your own as `fit` does.

    Args:
        callbacks: one callback or several.
        add_history: put a `History` last, unless there is one.
        add_progbar: put a `ProgbarLogger` before it, unless there is one.
        model: the model; `set_model` is called with it.
        **params: what `set_params` gets: verbose, epochs, steps.

    >>> losses = []
    >>> callbacks = CallbackList([LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))])
    >>> callbacks.on_train_begin()
    >>> callbacks.on_train_batch_end(0, {"loss": 0.5})
    >>> losses
    [0.5]
    """

    def __init__(
        self,
        callbacks: Callback | Iterable[Callback] | None = None,
        add_history: bool = False,
        add_progbar: bool = False,
        model: Trainer | None = None,
        **params: Any,
    ) -> None:
        given = _flat(callbacks)
        for item in given:
            if not isinstance(item, Callback):
                raise TypeError(
                    f"callbacks must be anabranch.callbacks.Callback objects, got {item!r} of type "
                    f"{type(item).__name__}. For single functions use LambdaCallback(on_epoch_end=...)."
                )
        self.callbacks: list[Callback] = given
        if add_progbar and not self.shows_progress:
            from .others import ProgbarLogger

            self.callbacks.append(ProgbarLogger())
        if add_history and not any(isinstance(item, History) for item in given):
            self.callbacks.append(History())
        self.callbacks.sort(key=lambda item: item.runs_last)
        self.params = params
        self._at_batches: dict[str, list[Callback]] = {}
        if model is not None:
            self.set_model(model)
        self.set_params(params)

    def append(self, callback: Callback) -> None:
        self.callbacks.append(callback)
        self.callbacks.sort(key=lambda item: item.runs_last)
        self._at_batches.clear()

    def replace(self, callbacks: Iterable[Callback]) -> None:
        """Call these callbacks from now on, in place of those before."""
        self.callbacks[:] = sorted(callbacks, key=lambda item: item.runs_last)
        self._at_batches.clear()

    @property
    def shows_progress(self) -> bool:
        """Test whether a `ProgbarLogger` is among them, so that nobody else need print."""
        from .others import ProgbarLogger

        return any(isinstance(item, ProgbarLogger) for item in self.callbacks)

    def set_params(self, params: dict[str, Any]) -> None:
        self.params = params
        for callback in self.callbacks:
            callback.set_params(params)

    def set_model(self, model: object) -> None:
        for callback in self.callbacks:
            callback.set_model(model)

    def wants_batches(self, mode: str) -> bool:
        """Test whether any callback does something at single batches; otherwise no logs need be computed for them."""
        return bool(self._callbacks_at_batches(mode))

    def uses_optimizer(self, *names: str) -> bool:
        """Test whether methods of one of these names may use the optimizer's variables."""
        return any(item.uses_optimizer and item.has_any(*names) for item in self.callbacks)

    def reads_batch_logs(self, mode: str) -> bool:
        """Test whether any of these callbacks looks at the logs of single batches."""
        return any(item.reads_batch_logs for item in self._callbacks_at_batches(mode))

    def _callbacks_at_batches(self, mode: str) -> list[Callback]:
        known = self._at_batches.get(mode)
        if known is None:
            known = self._at_batches[mode] = [item for item in self.callbacks if item.wants_batches(mode)]
        return known

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._call("on_epoch_begin", epoch, _own(logs))

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._call("on_epoch_end", epoch, _own(logs))

    def begin_batch(self, mode: str, batch: int, logs: Logs | None = None) -> None:
        """Call ``on_train_batch_begin``, ``on_test_batch_begin`` or ``on_predict_batch_begin``, as `mode` says."""
        for callback in self._callbacks_at_batches(mode):
            getattr(callback, f"on_{mode}_batch_begin")(batch, logs=_own(logs))

    def end_batch(self, mode: str, batch: int, logs: Logs | None = None) -> None:
        """Call ``on_train_batch_end``, ``on_test_batch_end`` or ``on_predict_batch_end``, as `mode` says."""
        for callback in self._callbacks_at_batches(mode):
            getattr(callback, f"on_{mode}_batch_end")(batch, logs=_own(logs))

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        self.begin_batch("train", batch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self.end_batch("train", batch, logs)

    on_batch_begin = on_train_batch_begin
    on_batch_end = on_train_batch_end

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        self.begin_batch("test", batch, logs)

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self.end_batch("test", batch, logs)

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        self.begin_batch("predict", batch, logs)

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self.end_batch("predict", batch, logs)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.on_begin("train", logs)

    def on_train_end(self, logs: Logs | None = None) -> None:
        self.on_end("train", logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        self.on_begin("test", logs)

    def on_test_end(self, logs: Logs | None = None) -> None:
        self.on_end("test", logs)

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        self.on_begin("predict", logs)

    def on_predict_end(self, logs: Logs | None = None) -> None:
        self.on_end("predict", logs)

    def on_begin(self, mode: str, logs: Logs | None = None) -> None:
        """Call ``on_train_begin``, ``on_test_begin`` or ``on_predict_begin``, as `mode` says."""
        self._call(f"on_{mode}_begin", _own(logs))

    def on_end(self, mode: str, logs: Logs | None = None) -> None:
        """Call ``on_train_end``, ``on_test_end`` or ``on_predict_end``, as `mode` says."""
        self._call(f"on_{mode}_end", _own(logs))

    def _call(self, method: str, *args: object) -> None:
        """Call a method with positional arguments, as Keras does: users' methods name them as they like."""
        for callback in self.callbacks:
            getattr(callback, method)(*args)


def _flat(callbacks: object) -> list[Any]:
    """Return one callback, or those of a list, which may hold lists; text is not a list of its letters."""
    if callbacks is None:
        return []
    if isinstance(callbacks, Iterable) and not isinstance(callbacks, str):
        return [inner for item in callbacks for inner in _flat(item)]
    return [callbacks]


def _own(logs: Logs | None) -> Logs:
    return {} if logs is None else logs


class History(Callback):
    """Losses and metrics by epoch: the return value of `fit`.

    Attributes:
        history: for each quantity, its value at the end of each epoch.
        epoch: the epochs, counted from 0.
        by_step: what `Every` found, in the order of steps: its logs, with the number of the step under "step".
    """

    uses_optimizer = False
    kept_attributes = ("history", "epoch", "by_step")

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, list[float]] = {}
        self.epoch: list[int] = []
        self.by_step: list[dict[str, float]] = []

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.epoch = []
        self.by_step = []

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self.epoch.append(epoch)
        for key, value in (logs or {}).items():
            self.history.setdefault(key, []).append(value)
        self.model.history = self

    def _repr_html_(self) -> str:
        from .history_view import history_html

        return history_html(self.epoch, self.history)


class LambdaCallback(Callback):
    """A callback made of functions.

    Args:
        on_epoch_begin, on_epoch_end: functions of (epoch, logs).
        on_train_begin, on_train_end: functions of (logs).
        on_train_batch_begin, on_train_batch_end: functions of (batch, logs).
        **kwargs: any other method of `Callback`, or a method of the caller's own, which becomes an attribute.

    >>> losses = []
    >>> callback = LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))
    """

    def __init__(
        self,
        on_epoch_begin: Callable[..., object] | None = None,
        on_epoch_end: Callable[..., object] | None = None,
        on_train_begin: Callable[..., object] | None = None,
        on_train_end: Callable[..., object] | None = None,
        on_train_batch_begin: Callable[..., object] | None = None,
        on_train_batch_end: Callable[..., object] | None = None,
        **kwargs: Callable[..., object],
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
            if name.startswith("on_") and not callable(getattr(Callback, name, None)):
                raise TypeError(f"LambdaCallback: {name!r} is no method of Callback.")
            if function is not None:
                setattr(self, name, function)


class TerminateOnNaN(Callback):
    """Stops training when the loss is NaN or infinite.

    Args:
        locate: check the results of every operation while training, as `ab.debugging.check_numerics` does. Then the
            first that makes a NaN or an infinity ends `fit` with a FloatingPointError that names layer, operation,
            step and batch. Steps are slower meanwhile.
        raise_error: end `fit` with a RuntimeError. `on_train_end` of callbacks is not called then, so that
            `BackupAndRestore` keeps its backup.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1, name="roots"), ab.layers.Activation(ab.ops.log)])
    >>> model.compile("sgd", "mse")
    >>> model.fit([[0.0]], [[1.0]], verbose=0, callbacks=TerminateOnNaN(locate=True))
    Traceback (most recent call last):
    FloatingPointError: ...
    """

    uses_optimizer = False

    def __init__(self, raise_error: bool = False, *, locate: bool = False) -> None:
        super().__init__()
        self.raise_error = raise_error
        self.locate = locate

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        if self.locate:
            numerics.enable_check_numerics()  # `fit` turns it off again, whatever happens

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        loss = (logs or {}).get("loss")
        if loss is None or math.isfinite(loss):
            return
        if self.raise_error:
            raise RuntimeError(
                f"Batch {batch}: the loss is {loss}. TerminateOnNaN(locate=True) reports which operation of which "
                "layer it comes from."
            )
        print(f"Batch {batch}: the loss is {loss}, terminating training.", end=" ")
        print("TerminateOnNaN(locate=True) reports which operation of which layer it comes from.")
        self.model.stop_training = True


class CSVLogger(Callback):
    """Writes the logs of each epoch as a line of a CSV file.

    The columns are those of the first epoch's logs. If that was not validated, each gets one for its ``val_`` value, as
    in Keras, since later epochs may be (``validation_freq=2``). A value that an epoch does not have is NA.

    Args:
        filename: the file.
        separator: what stands between the values.
        append: go on with a file that exists, and with its columns, instead of replacing it.
    """

    uses_optimizer = False

    def __init__(self, filename: str | os.PathLike[str], separator: str = ",", append: bool = False) -> None:
        super().__init__()
        self.filename = os.fspath(filename)
        self.separator = separator
        self.append = append
        self.keys: list[str] | None = None

    def get_state(self) -> dict[str, object]:
        size = os.path.getsize(self.filename) if os.path.exists(self.filename) else 0
        goes_on = self.append or self.keys is not None
        return {"keys": self.keys, "bytes": size if goes_on else 0}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with the file, without what the interrupted run wrote after the backup."""
        self.keys = state["keys"]
        if os.path.exists(self.filename):
            os.truncate(self.filename, min(state["bytes"], os.path.getsize(self.filename)))

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.keys = None

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        logs = logs or {}
        mode = "w" if self.keys is None and not self.append else "a"
        if self.keys is None:
            self.keys = (self._keys_of_file() if self.append else None) or _columns(logs)
        try:
            self._write(mode, self.keys, {"epoch": epoch, **_plain(logs)})
        except OSError as error:
            error.add_note(
                f"CSVLogger can't write to filename={str(self.filename)!r}: make room there, or name another file."
            )
            raise

    def _write(self, mode: str, keys: list[str], row: Mapping[str, object]) -> None:
        with open(self.filename, mode, newline="", encoding="utf-8") as file:
            import csv  # only this callback needs it

            writer = csv.DictWriter(
                file, ["epoch", *keys], delimiter=self.separator, restval="NA", extrasaction="ignore"
            )
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)

    def _keys_of_file(self) -> list[str] | None:
        """Return the columns of the file that exists, behind the epoch."""
        if not os.path.exists(self.filename):
            return None
        with open(self.filename, newline="", encoding="utf-8") as file:
            import csv

            header = next(csv.reader(file, delimiter=self.separator), [])
        return header[1:] if header[:1] == ["epoch"] else None


def _columns(logs: Mapping[str, object]) -> list[str]:
    names = sorted(logs)
    return names if any(name.startswith("val_") for name in names) else [*names, *(f"val_{name}" for name in names)]


def _plain(logs: Mapping[str, object]) -> Logs:
    """Return arrays among the logs as lists, numbers as they are."""
    return {
        key: value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value for key, value in logs.items()
    }
