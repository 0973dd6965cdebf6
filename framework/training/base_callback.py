"""`BaseCallback`, `BaseHistory` and `BaseCallbackList`: what loops over data need of callbacks.

`Callback`, `History` and `CallbackList` derive from them. These name `Model`, which is above the loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...engine.common.keywords import ChecksKeywords

if TYPE_CHECKING:
    from .base_model import BaseModel

Logs = dict[str, Any]

_BATCH_HOOKS = {mode: (f"on_{mode}_batch_begin", f"on_{mode}_batch_end") for mode in ("train", "test", "predict")}


class BaseCallback(ChecksKeywords):
    """The base of callbacks, as loops over data call them: `Callback` has the type of its model besides."""

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

    def _callbacks_inside(self) -> Sequence[BaseCallback]:
        """Return the callbacks that this one calls; itself where it is no list of others."""
        return [self]

    def _needs_whole_optimizer(self) -> bool:
        """Test whether it reads all of the optimizer's variables, also within an epoch."""
        return False

    def wants_batches(self, mode: str) -> bool:
        """Test whether this callback does anything at single batches of `mode` ("train", "test", "predict")."""
        return self.has_any(*_BATCH_HOOKS[mode], *(("on_batch_begin", "on_batch_end") if mode == "train" else ()))

    def has_any(self, *names: str) -> bool:
        """Test whether this callback overrides a method of one of these names."""
        own = vars(self)
        return any(name in own or getattr(type(self), name) is not getattr(BaseCallback, name) for name in names)


class BaseHistory(BaseCallback):
    """Losses and metrics by epoch: the base of `History`."""

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
        self._model.history = self


class BaseCallbackList:
    """Several callbacks called as one.

    Args:
        callbacks: these.
        model: the model; `set_model` is called with it.
        **params: what `set_params` gets: verbose, epochs, steps.
    """

    def __init__(self, callbacks: Iterable[BaseCallback], model: BaseModel | None = None, **params: Any) -> None:
        self.callbacks: Sequence[BaseCallback] = sorted(callbacks, key=lambda item: item.runs_last)
        self._at_batches: dict[str, list[BaseCallback]] = {}
        if model is not None:
            self.set_model(model)
        self.set_params(params)

    def replace(self, callbacks: Iterable[BaseCallback]) -> None:
        """Call these callbacks from now on, in place of those before."""
        self.callbacks = sorted(callbacks, key=lambda item: item.runs_last)
        self._at_batches.clear()

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

    def has_any(self, *names: str) -> bool:
        """Test whether any callback overrides a method of one of these names."""
        return any(item.has_any(*names) for item in self.callbacks)

    def reads_batch_logs(self, mode: str) -> bool:
        """Test whether any of these callbacks looks at the logs of single batches."""
        return any(item.reads_batch_logs for item in self._callbacks_at_batches(mode))

    def _callbacks_at_batches(self, mode: str) -> list[BaseCallback]:
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


def _own(logs: Logs | None) -> Logs:
    return {} if logs is None else logs
