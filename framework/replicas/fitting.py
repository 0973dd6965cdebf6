"""`fit_replicas`: `fit` in one worker of a cluster, under whichever strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...distribute.strategies.data_parallel import DataParallel
from ...distribute.strategies.strategy import Strategy
from ..saving.checkpointing import RunCallback
from ..training.epochs import Epochs
from .cluster_fit import Logs
from .parallel import ParallelFit
from .shares import are_handed_out
from .training import ReplicaFit

if TYPE_CHECKING:
    from ..training.base_callback import BaseCallback, BaseCallbackList
    from ..training.base_model import BaseModel


def fit_replicas(
    model: BaseModel,
    strategy: Strategy,
    data: Epochs,
    hooks: BaseCallbackList,
    given: Sequence[BaseCallback],
    epochs: range,
    verbosity: int,
    validate: Callable[[int], Logs] | None,
) -> None:
    """Train a model on a cluster, in one of its workers; see `Trainer.fit`.

    Args:
        model: the model.
        strategy: with a cluster.
        data: what to train on.
        hooks: the callbacks of this worker.
        given: the callbacks that `fit` was given, those of the chief too.
        epochs: those to make, counted from 0.
        verbosity: what the chief shows.
        validate: gives the logs of validation after an epoch; None without data for that.

    Raises:
        ValueError: model or data can't be used by replicas.
    """
    kind = ParallelFit if isinstance(strategy, DataParallel) else ReplicaFit
    made = kind(model, strategy, data, validate, hooks, verbosity)
    made.given = [*given]
    strategy.running = made
    try:
        made.run(epochs)
    finally:
        strategy.running = None


def check_callbacks(callbacks: Sequence[BaseCallback], strategy: Strategy, data: Epochs) -> None:
    """Check that what callbacks do within epochs can be done there.

    Raises:
        ValueError: it can't.
    """
    for callback in callbacks:
        for each in callback._callbacks_inside() if callback.wants_batches("train") else ():
            check_within_epochs(each, strategy, data)


def check_within_epochs(callback: BaseCallback, strategy: Strategy, data: Epochs) -> None:
    """Check that what a callback does within epochs can be done there.

    Raises:
        ValueError: it can't.
    """
    is_run = isinstance(callback, RunCallback)
    reason = ""
    if isinstance(strategy, DataParallel):
        if strategy.shard is not None and callback._needs_whole_optimizer():
            reason = "the optimizer's variables are in parts while an epoch runs"
    elif is_run and are_handed_out(data, strategy.may_repeat):
        reason = "the chief reads these data ahead for all workers"
    if reason:
        raise ValueError(
            f"{type(callback).__name__} within epochs under {type(strategy).__name__}: {reason}. Leave save_freq "
            "or Every out, so that it acts between epochs."
        )


__all__ = ["check_callbacks", "check_within_epochs", "fit_replicas"]
