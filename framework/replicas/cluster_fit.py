"""`ClusterFit`: what every `fit` on a cluster has: rows that workers share, logs, a run that is taken up again."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from ...distribute.environment import notify_launcher
from ...distribute.strategies.strategy import Strategy
from ...engine.common.dtypes import as_dtype, name_of
from ...engine.graph import Variable
from ...engine.ops.random.keys import global_generator
from ..saving.checkpointing import TrainingRun
from ..training.base_callback import BaseCallback, BaseCallbackList, BaseHistory
from ..training.epochs import Epochs
from .shares import Shares, are_handed_out

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ..structures import Array
    from ..training.base_model import BaseModel
    from .ways import Way

Logs = dict[str, Any]
_logger = logging.getLogger(__name__)
_ARRAY = "array of workers"  # the key of a dict that stands for an array in a message


class ClusterFit:
    """One call of `fit` in one worker.

    Args:
        model: the model.
        strategy: with a cluster.
        data: what to train on, whose passes are counted.
        validate: gives the logs of validation after an epoch (counted from 0); None where there are no data for that.
        hooks: the callbacks; in other workers than the chief those with ``on_all_workers``.
        verbosity: of the chief's progress.

    Attributes:
        is_validating: whether a pass that begins now is that of validation.
        way: in which this worker joins the validation that the chief has begun to share.
    """

    def __init__(
        self,
        model: BaseModel,
        strategy: Strategy,
        data: Epochs,
        validate: Callable[[int], Logs] | None,
        hooks: BaseCallbackList,
        verbosity: int,
    ) -> None:
        self.model = model
        self.strategy = strategy
        self.passes = data
        self.data = data.data
        self._hands_out = are_handed_out(data, strategy.may_repeat)
        self._validate = validate
        self.is_validating = False
        self.way: Way | None = None
        self.hooks = hooks
        self.verbosity = verbosity
        self.given: list[BaseCallback] = []  # the callbacks that `fit` was given, those of the chief too
        self._applied = 0  # how many steps were applied in epochs that are over
        self._known: dict[Variable, Array] = {}  # values of variables on the ps tasks that the chief has seen

        self._seed: list[int] = []  # of the order of rows
        self._shares: Shares | None = None  # of the next epoch, where they have been drawn
        self.plan: Any = None

    def run(self, epochs: range) -> None:
        """Train; see the strategies' own."""
        raise NotImplementedError

    @contextlib.contextmanager
    def leaving_when_asked(self, asked: Callable[[], None]) -> Generator[None]:
        """Have SIGTERM make this worker leave between steps; a second one ends it at once.

        Args:
            asked: called by the first one.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return

        def take(number: int, frame: object) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            asked()

        signal.signal(signal.SIGTERM, take)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @property
    def _history(self) -> BaseHistory:
        """The history that this call of `fit` returns."""
        history = self.model.history
        assert history is not None
        return history

    # --- the chief's place ------------------------------------------------------------------------------------------

    def _become_chief(self, name: str) -> tuple[TrainingRun, list[BaseCallback], list[BaseCallback]]:
        """Have this worker call the callbacks, and show the progress.

        Args:
            name: of its task.

        Returns:
            The run; the callbacks that this worker has called before; and those that it calls from now on, too.
        """
        strategy, hooks = self.strategy, self.hooks
        strategy.chief_index = strategy.task_index
        notify_launcher(strategy.task_index)
        _logger.warning("%s leads the training from now on.", name)
        own = [*hooks.callbacks]
        new = [each for each in self.given if each not in own and not isinstance(each, BaseHistory)]
        run_by_all = [each for each in own if each not in self.given]
        hooks.replace([*(each for each in self.given if not isinstance(each, BaseHistory)), *run_by_all])
        for callback in new:
            callback.set_model(self.model)
            callback.set_params(hooks.params)
        return TrainingRun(self.model, hooks, self.passes), own, new

    # --- validation -------------------------------------------------------------------------------------------------

    def validation(self, epoch: int, way: Way | None = None) -> Logs:
        """Validate after an epoch, if that is due; the chief decides whether workers share it.

        Args:
            epoch: which.
            way: by which another worker than the chief joins.
        """
        if self._validate is None:
            return {}
        self.is_validating, self.way = True, way
        try:
            return self._validate(epoch)
        finally:
            self.is_validating, self.way = False, None

    def share_validation(self, batches: int) -> Way | None:
        """Begin, in the chief, to share validation; None where its weights are no longer those that all have."""
        self.is_validating = False  # what callbacks call from now on is none
        if any(not same(v.numpy(), value) for v, value in zip(self._weights(), self._shared_weights(), strict=True)):
            return None
        return self._begin_validation(batches)

    def _weights(self) -> list[Variable]:
        """Return the variables of the model itself among those that all workers have."""
        own = {id(variable) for variable in self.model.variables}
        return [variable for variable in self.plan.variables if id(variable) in own]

    def _shared_weights(self) -> list[Array]:
        """Return the values that all workers have of `_weights`, or can read."""
        raise NotImplementedError

    def _begin_validation(self, batches: int) -> Way | None:
        """Have other workers join validation; return the way to share it."""
        raise NotImplementedError

    def _taken_up(self, run: TrainingRun, epochs: range) -> range:
        """Return the epochs to make: all, or what is left of an interrupted run, whose state is restored."""
        found = run.epochs(epochs.start, epochs.stop)
        if self.passes.position["passes"]:
            self._shares = None  # of the first epoch, which is over
        return found

    def _shares_of_epoch(self) -> Shares:
        """Return the rows of the next epoch; their order is drawn now, but for the first one's."""
        shares, self._shares = self._shares, None
        if shares is None:
            self._seed = seed_now()
            shares = Shares(self.data, self._shares_of_step(), self._seed)
        return shares

    def _shares_in_order(self, parts: int, seed: list[int]) -> Shares:
        """Return the shares of an epoch whose order was drawn before; nothing is drawn now."""
        self._seed = seed
        generator = global_generator()
        state = generator.state
        shares = Shares(self.data, parts, seed)
        generator.state = state
        return shares

    def _shares_of_step(self) -> int:
        """Return the number of shares into which batches of the next epoch are cut."""
        return self.strategy.shares

    def _logs(self) -> Logs:
        """Return the logs of the epoch so far, of all workers' rows; the variables have been pulled."""
        return self.plan.read_logs() if self.plan.log_names else self.model.get_metrics_result()


def ends_group(step: int, together: int, steps: int | None) -> bool:
    """Test whether a step is the last of those between which no callback is called (`steps_per_execution`).

    >>> [step for step in range(8) if ends_group(step, 3, 8)]
    [2, 5, 7]
    """
    return (step + 1) % together == 0 or step + 1 == steps


def reason_of(error: BaseException) -> str:
    """Say what an error says, with its type where that is nothing or one word, such as the key of a `KeyError`.

    >>> reason_of(KeyError("rate")), reason_of(KeyboardInterrupt()), reason_of(ValueError("No rows."))
    ("KeyError: 'rate'", 'KeyboardInterrupt', 'No rows.')
    """
    text, name = str(error).strip(), type(error).__name__
    if not text:
        return name
    return text if " " in text else f"{name}: {text}"


def seed_now() -> list[int]:
    """Return the state of the global generator, of which the order of rows is drawn."""
    return [int(part) for part in global_generator().state]


def plain(logs: Logs) -> Logs:
    """Return logs as messages have them, without what these can't have, such as an object that a callback has added.

    >>> plain({"loss": np.float32(0.5), "figure": object()})
    {'loss': 0.5}
    """
    found: Logs = {}
    for name, value in logs.items():
        is_scalar = isinstance(value, (np.ndarray, np.generic)) and not np.ndim(value)
        given = value.tolist() if is_scalar else value
        with contextlib.suppress(TypeError, ValueError):
            write_message(given)
            found[name] = given
    return found


def write_message(message: object) -> str:
    """Write a message as JSON; arrays, as metrics for each class give them, with their dtypes.

    Raises:
        TypeError: something in it is neither of JSON nor an array of numbers or texts.

    >>> read_message(write_message({"f1_score": np.array([0.5, 1.0], "float32"), "loss": 0.5}))
    {'f1_score': array([0.5, 1. ], dtype=float32), 'loss': 0.5}
    """
    return json.dumps(message, default=_described)


def read_message(text: str) -> Any:
    """Read what `write_message` wrote."""
    return json.loads(text, object_hook=_read)


def _described(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        array: Array = value
        return {_ARRAY: array.tolist(), "dtype": name_of(array.dtype)}
    raise TypeError(f"An object of type {type(value).__name__} can't be sent to other workers.")


def _read(found: dict[str, Any]) -> Array | dict[str, Any]:
    return np.asarray(found[_ARRAY], as_dtype(found["dtype"])) if _ARRAY in found else found


def same(value: object, known: object) -> bool:
    """Test whether two arrays have the same bits."""
    value, known = np.asarray(value), np.asarray(known)
    return value.dtype == known.dtype and value.shape == known.shape and value.tobytes() == known.tobytes()


__all__ = [
    "ClusterFit",
    "Logs",
    "ends_group",
    "plain",
    "read_message",
    "reason_of",
    "same",
    "seed_now",
    "write_message",
]
