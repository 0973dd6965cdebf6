"""`fit_replicas`: `fit` in one worker of a cluster, under whichever strategy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...distribute.strategies.data_parallel import DataParallel
from ...distribute.strategies.strategy import Strategy
from ..callbacks.base import CallbackList, History
from ..saving.checkpointing import RunCallback
from ..training.epochs import Epochs
from .cluster_fit import Logs
from .parallel import ParallelFit
from .shares import are_handed_out
from .training import ReplicaFit


def fit_replicas(
    model: Any,
    strategy: Strategy,
    data: Epochs,
    callbacks: Any,
    epochs: range,
    verbosity: int,
    validate: Callable[..., Logs] | None,
) -> History:
    """Train a model on a cluster, in one of its workers; see `Trainer.fit`.

    Args:
        model: the model.
        strategy: with a cluster.
        data: what to train on.
        callbacks: what `fit` was given.
        epochs: those to make, counted from 0.
        verbosity: what the chief shows.
        validate: gives the logs of validation after an epoch; None without data for that.

    Raises:
        ValueError: model, data or callbacks can't be used by replicas.
    """
    given = everywhere = CallbackList(callbacks).callbacks
    if not strategy.is_chief:
        given = [callback for callback in given if callback.on_all_workers]
    is_parallel = isinstance(strategy, DataParallel)
    for callback in given:
        if isinstance(callback, RunCallback) and callback.wants_batches("train"):
            _check_within_epochs(callback, strategy, data)
    params = {"verbose": verbosity, "epochs": epochs.stop, "steps": data.steps}
    hooks = CallbackList(given, add_history=True, model=model, **params)
    history = next(item for item in hooks.callbacks if isinstance(item, History))
    model.history, model.stop_training = history, False
    shown = 0 if hooks.shows_progress else verbosity
    kind = ParallelFit if is_parallel else ReplicaFit
    made = kind(model, strategy, data, None if validate is None else partial(validate, hooks=hooks), hooks, shown)
    made.given = everywhere
    strategy.running = made
    try:
        made.run(epochs)
    finally:
        strategy.running = None
    return history


def _check_within_epochs(callback: RunCallback, strategy: Strategy, data: Epochs) -> None:
    """Check that a run can be saved within an epoch.

    Raises:
        ValueError: it can't.
    """
    reason = ""
    if isinstance(strategy, DataParallel):
        if strategy.shard is not None:
            reason = "the optimizer's variables are in parts while an epoch runs"
    elif are_handed_out(data, strategy.may_repeat):
        reason = "the chief reads these data ahead for all workers"
    if reason:
        raise ValueError(
            f"{type(callback).__name__} within epochs under {type(strategy).__name__}: {reason}. Leave save_freq "
            "out, so that the run is saved between epochs."
        )


__all__ = ["fit_replicas"]
