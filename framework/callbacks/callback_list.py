"""`CallbackList`: several callbacks called as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .base import Callback, History, Logs

if TYPE_CHECKING:
    from ..training.trainer import Trainer


class CallbackList:
    """Calls several callbacks as one, for loops of your own as `fit` does.

    Args:
        callbacks: one callback or several.
        add_history: put a `History` last, unless there is one.
        add_progbar: put a `ProgbarLogger` before it, unless there is one.
        model: the model; `set_model` is called with it.
        **params: what `set_params` gets: verbose, epochs, steps.

    >>> from anabranch.callbacks import LambdaCallback
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
        self.callbacks: list[Callback] = []
        for item in _flat(callbacks):
            if not isinstance(item, Callback):
                raise TypeError(
                    f"callbacks must be anabranch.callbacks.Callback objects, got {item!r} of type "
                    f"{type(item).__name__}. For single functions use LambdaCallback(on_epoch_end=...)."
                )
            self.callbacks.append(item)
        if add_progbar and not self.shows_progress:
            from .others import ProgbarLogger

            self.callbacks.append(ProgbarLogger())
        if add_history and not any(isinstance(item, History) for item in self.callbacks):
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

    def has_any(self, *names: str) -> bool:
        """Test whether any callback overrides a method of one of these names."""
        return any(item.has_any(*names) for item in self.callbacks)

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


def _flat(callbacks: object) -> list[object]:
    """Return one callback, or those of a list, which may hold lists; text is not a list of its letters."""
    if callbacks is None:
        return []
    if isinstance(callbacks, Iterable) and not isinstance(callbacks, str):
        return [inner for item in callbacks for inner in _flat(item)]
    return [callbacks]


def _own(logs: Logs | None) -> Logs:
    return {} if logs is None else logs
