"""`Callback`, and the callbacks that `fit` makes itself: `History` and `ProgbarLogger`, in a `CallbackList`.

A callback has a model, and a model's methods take callbacks. So these classes are in one folder with `Model`; loops
over data, which are below, use the classes in `training/base_callback`, from which these derive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..training.base_callback import BaseCallback, BaseCallbackList, BaseHistory, Logs
from ..training.progress import Progress, make_progress, resolve_verbose

if TYPE_CHECKING:
    from ..training.base_model import BaseModel
    from .model import Model

    class ModelOfSomeClass(Model):
        """A model of a class that type checkers can't find: it may have any attribute beside those of every model."""

        history: History  # there is one while callbacks are called
        distribute_strategy: Any

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: object) -> None: ...


class Callback(BaseCallback):
    """Base class. Override the methods of the moments that interest you; `self.model` is the model.

    ``logs`` holds the averages so far: ``loss`` and the metrics, after an epoch with ``val_`` ones too. Methods of
    single batches cost time on every step; they are called only where a subclass overrides them.

    A callback that has a state of its own names the attributes in `kept_attributes`, or overrides `get_state` and
    `set_state`: then a run that `BackupAndRestore` takes up goes on with it.
    """

    @property
    def model(self) -> ModelOfSomeClass:
        return self._model


class History(BaseHistory, Callback):
    """Losses and metrics by epoch: the return value of `fit`.

    Attributes:
        history: for each quantity, its value at the end of each epoch.
        epoch: the epochs, counted from 0.
        by_step: what `Every` found, in the order of steps: its logs, with the number of the step under "step".
    """

    def _repr_html_(self) -> str:
        from .history_view import history_html

        return history_html(self.epoch, self.history)


class ProgbarLogger(Callback):
    """Prints the progress bar, or lines, that ``verbose`` asks for. `fit` does so by itself, unless it is given one.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1, kernel_initializer="zeros")])
    >>> model.compile("sgd", "mse")
    >>> _ = model.fit([[1.0]], [[0.0]], verbose=2, callbacks=ProgbarLogger())
    Epoch 1/1 - 1/1 - ... - loss: 0.0000
    """

    uses_optimizer = False

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None
        self._in_fit = False
        self._logs: Logs = {}
        self._done = 0

    def _begin(self, title: str) -> None:
        verbose = resolve_verbose(self.params.get("verbose", "auto"))
        self._logs, self._done = {}, 0
        self._progress = make_progress(verbose, title, self.params.get("steps"), lambda: self._logs)

    def _show(self, batch: int, logs: Logs | None) -> None:
        self._done, self._logs = batch + 1, logs or {}
        if self._progress is not None and self._progress.is_due():
            self._progress.redraw(self._done)

    def _end(self, logs: Logs | None) -> None:
        if self._progress is not None:
            self._progress.close(self._done or self.params.get("steps") or 0, logs or {})
        self._progress = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._in_fit = True  # validation is silent

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._in_fit = False

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._begin(f"Epoch {epoch + 1}/{self.params.get('epochs', 1)}")

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._end(logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._show(batch, logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        if not self._in_fit:
            self._begin("")

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        if not self._in_fit:
            self._show(batch, logs)

    def on_test_end(self, logs: Logs | None = None) -> None:
        if not self._in_fit:
            self._end(logs)

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        self._begin("")

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._show(batch, None)

    def on_predict_end(self, logs: Logs | None = None) -> None:
        self._end(None)


class CallbackList(BaseCallbackList):
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

    callbacks: list[Callback]

    def __init__(
        self,
        callbacks: Callback | Iterable[Callback] | None = None,
        add_history: bool = False,
        add_progbar: bool = False,
        model: BaseModel | None = None,
        **params: Any,
    ) -> None:
        found: list[Callback] = []
        for item in _flat(callbacks):
            if not isinstance(item, Callback):
                raise TypeError(
                    f"callbacks must be anabranch.callbacks.Callback objects, got {item!r} of type "
                    f"{type(item).__name__}. For single functions use LambdaCallback(on_epoch_end=...)."
                )
            found.append(item)
        if add_progbar and not any(isinstance(item, ProgbarLogger) for item in found):
            found.append(ProgbarLogger())
        if add_history and not any(isinstance(item, History) for item in found):
            found.append(History())
        super().__init__(found, model, **params)

    def append(self, callback: Callback) -> None:
        self.callbacks.append(callback)
        self.callbacks.sort(key=lambda item: item.runs_last)
        self._at_batches.clear()

    @property
    def shows_progress(self) -> bool:
        """Test whether a `ProgbarLogger` is among them, so that nobody else need print."""
        return any(isinstance(item, ProgbarLogger) for item in self.callbacks)


def _flat(callbacks: object) -> list[object]:
    """Return one callback, or those of a list, which may hold lists; text is not a list of its letters."""
    if callbacks is None:
        return []
    if isinstance(callbacks, Iterable) and not isinstance(callbacks, str):
        return [inner for item in callbacks for inner in _flat(item)]
    return [callbacks]
