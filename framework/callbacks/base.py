"""`Callback` and the callbacks that watch nothing: `History`, `LambdaCallback`, loggers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...engine.common.keywords import ChecksKeywords
from ...engine.runtime import numerics
from ..training.limits import show

if TYPE_CHECKING:
    from ..model_types import ModelOfSomeClass

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
        remedy = "TerminateOnNaN(locate=True) reports which operation of which layer it comes from."
        show(f"Batch {batch}: the loss is {loss}, terminating training. {remedy}")
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
