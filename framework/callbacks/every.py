"""Training that is counted in steps: `Every` validates, saves and logs after every so many of them."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...engine.graph import Variable
from ...engine.graph.state.aligned import own_copy
from ...engine.graph.state.sharded import ShardedVariable
from ...engine.queues.writing import writing_together
from ..data.adapters import Data
from ..models.fit_callbacks import Callback, CallbackList
from ..saving.checkpointing import stateful_parts
from ..training.base_callback import Logs
from ..training.epochs import Epochs
from ..training.fit_data import validation_data_of

if TYPE_CHECKING:
    from ..model_types import ModelData
    from ..training.base_model import BaseModel


class Every(Callback):
    """Does every few training steps what `fit` does after an epoch: validates, and calls callbacks.

    Args:
        steps: after how many steps, counted from the beginning of `fit`, across epochs.
        callbacks: one or several, whose methods for epochs are called: their ``on_epoch_end`` gets the number of the
            epoch under way, and logs with the averages of this epoch so far, the ``val_`` ones of the validation, and
            the number of the step under ``"step"``. So a `CSVLogger` writes a line, a `ModelCheckpoint` a file (whose
            name may hold ``{step}``), and an `EarlyStopping` counts its patience, every `steps` steps.
        validation_data: ``(x, y[, sample_weight])``, a generator or a dataset to validate on.
        validation_steps, validation_batch_size: as for `fit`.

    The averages of the epoch go on as if there had been no validation, and so do layers with a state. What was found is
    in the history that `fit` returns, under ``by_step``. A run that `BackupAndRestore` takes up goes on counting; give
    that callback to `fit` itself, with a `save_freq`.

    Raises:
        ValueError: `steps` is not a positive integer, or a callback acts at single batches, of which it would not be
            notified.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x = y = [[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]]
    >>> lines = ab.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs["step"], sorted(logs)))
    >>> every = ab.callbacks.Every(4, lines, validation_data=(x, y))
    >>> history = model.fit(x, y, batch_size=1, epochs=2, verbose=0, callbacks=every)
    0 4 ['loss', 'step', 'val_loss']
    1 8 ['loss', 'step', 'val_loss']
    1 12 ['loss', 'step', 'val_loss']
    >>> [row["step"] for row in history.by_step]
    [4, 8, 12]
    """

    reads_batch_logs = False  # it asks for them where it needs them

    def __init__(
        self,
        steps: int,
        callbacks: Callback | Iterable[Callback] | None = None,
        validation_data: ModelData | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"Every: steps must be a number of steps, at least 1, got {steps!r}.")
        self.steps = steps
        self.validation_data = validation_data
        self.validation_steps = validation_steps
        self.validation_batch_size = validation_batch_size
        self.step = 0
        self._inner = CallbackList(callbacks)
        self._validation: Data | None = None
        self._since = 0
        self._latest = -1
        self._epoch = 0
        self._has_begun = False
        for callback in self._inner.callbacks:
            _check_is_for_epochs(callback)

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks that are called every `steps` steps."""
        return self._inner.callbacks

    def _callbacks_inside(self) -> list[Callback]:
        return self._inner.callbacks

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        self._inner.set_params(params)

    def set_model(self, model: BaseModel) -> None:
        super().set_model(model)
        self._inner.set_model(model)

    def get_state(self) -> dict[str, object]:
        inner = [[type(callback).__name__, callback.get_state()] for callback in self.callbacks]
        return {"step": self.step, "since": self._since, "latest": self._latest, "callbacks": inner}

    def set_state(self, state: dict[str, Any]) -> None:
        self.step, self._since, self._latest = state["step"], state["since"], state["latest"]
        for callback, (name, kept) in zip(self.callbacks, state["callbacks"], strict=False):
            if type(callback).__name__ == name:
                callback.set_state(kept)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.step, self._since, self._latest, self._has_begun = 0, 0, -1, False
        self._validation = validation_data_of(self.validation_data, self.validation_batch_size)
        self._inner.on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._epoch = epoch
        if not self._has_begun:
            self._has_begun = True
            self._inner.on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        done = batch + 1 if batch <= self._latest else batch - self._latest  # several with steps_per_execution
        self._latest = batch
        self.step += done
        self._since += done
        if self._since >= self.steps:
            self._since = 0
            self._act(logs or self.model._logs("train"))

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._inner.on_train_end(logs)

    def _act(self, logs: Logs) -> None:
        found = {f"val_{name}": value for name, value in self._validated().items()}
        noted = {**dict(sorted({**logs, **found}.items())), "step": self.step}
        if self.model.history is not None:
            self.model.history.by_step.append(dict(noted))
        self._inner.on_epoch_end(self._epoch, noted)
        self._inner.on_epoch_begin(self._epoch)

    def _validated(self) -> Logs:
        if self._validation is None:
            return {}
        with _averages_kept(self.model):
            return self.model._evaluate(Epochs(self._validation, self.validation_steps), self._inner, None)


@contextmanager
def _averages_kept(model: BaseModel) -> Generator[None]:
    """Restore the running averages, and the states that steps of testing may change, after the block."""
    trained = {id(variable) for variable in (*model.trainable_variables, *getattr(model.optimizer, "variables", ()))}
    parts = stateful_parts(model).values()
    variables = [each for part in parts for each in (part.shards if isinstance(part, ShardedVariable) else [part])]
    others = [each for each in variables if isinstance(each, Variable) and id(each) not in trained]
    kept = [(variable, own_copy(variable.stored_value())) for variable in others]
    try:
        yield
    finally:
        with writing_together(others):
            for variable, value in kept:
                variable.write_value(value)


def _check_is_for_epochs(callback: Callback) -> None:
    if not callback.wants_batches("train") and not callback.runs_last:
        return
    name = type(callback).__name__
    raise ValueError(
        f"Every: {name} acts at single batches, or on the whole of fit, and would get no calls for them. Give it to "
        f"fit itself: callbacks=[Every(...), {name}(...)]."
    )
