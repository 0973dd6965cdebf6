"""`fit_replicas`: `fit` in one worker of a cluster, under whichever strategy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...distribute.strategies.data_parallel import DataParallel
from ...distribute.strategies.strategy import Strategy
from ..callbacks.base import Callback, History
from ..callbacks.callback_list import CallbackList
from ..callbacks.checkpoint import ModelCheckpoint
from ..callbacks.every import Every
from ..callbacks.others import SwapEMAWeights
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
        inner = callback.callbacks if isinstance(callback, Every) else [callback]
        for each in inner if callback.wants_batches("train") else ():
            check_within_epochs(each, strategy, data)
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


def check_within_epochs(callback: Callback, strategy: Strategy, data: Epochs) -> None:
    """Check that what a callback does within epochs can be done there.

    Raises:
        ValueError: it can't.
    """
    is_run = isinstance(callback, RunCallback)
    is_model = isinstance(callback, ModelCheckpoint) and not callback.save_weights_only
    reason = ""
    if isinstance(strategy, DataParallel):
        if strategy.shard is not None and (is_run or is_model or isinstance(callback, SwapEMAWeights)):
            reason = "the optimizer's variables are in parts while an epoch runs"
    elif is_run and are_handed_out(data, strategy.may_repeat):
        reason = "the chief reads these data ahead for all workers"
    if reason:
        raise ValueError(
            f"{type(callback).__name__} within epochs under {type(strategy).__name__}: {reason}. Leave save_freq "
            "or Every out, so that it acts between epochs."
        )


__all__ = ["check_within_epochs", "fit_replicas"]
