"""`check_compiled` and others: what replicas can't train is found when a model is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...distribute.strategies.data_parallel import DataParallel
from ...distribute.strategies.model_parallel import ModelParallel
from ...distribute.strategies.strategy import ParameterServer, Strategy
from ...engine.common.nest import flatten
from .optimizer_shards import check_optimizer


def check_compiled(model: Any, strategy: Strategy) -> None:
    """Check a model that is being compiled for the workers of a cluster; layers that it gets later are not looked at.

    Raises:
        ValueError: it can't be trained there; the message says why.
    """
    check_model(model, strategy)
    if isinstance(strategy, ParameterServer):
        check_not_synchronized(model)
    elif getattr(strategy, "shard", None):
        check_optimizer(model.optimizer)


def check_model(model: Any, strategy: Any) -> None:
    """Check that the state of layers belongs to no row, and that the strategy has the losses of the whole batch.

    Raises:
        ValueError: they don't; the message says which.
    """
    stateful = [layer.name for layer in model._flatten_layers() if getattr(layer, "stateful", False)]
    if stateful:
        raise ValueError(
            f"Model {model.name!r} can't be trained by replicas: the layers {stateful} are stateful, and each row of "
            "their state belongs to a row of the batch, which another worker may get next. Make them with "
            "stateful=False, or train without a cluster."
        )
    # The mean of gradients would not be the gradient of the whole.
    for loss, reduction in losses_without_mean(model, strategy):
        raise ValueError(
            f"Loss {loss!r} of model {model.name!r} has reduction={reduction!r}. Replicas take the mean of their "
            "gradients, weighted by rows, which is right for losses that are means over rows: use "
            "reduction='sum_over_batch_size', with another learning rate if need be."
        )


def check_not_synchronized(model: Any) -> None:
    """Check that no layer waits for other workers.

    Raises:
        ValueError: one does; the message says which.
    """
    names = [layer.name for layer in model._flatten_layers() if getattr(layer, "synchronized", False)]
    if names:
        raise ValueError(
            f"The layers {names} of model {model.name!r} are synchronized, which takes workers that compute each step "
            "together. Under ParameterServer they do not wait for each other: use DataParallel, or synchronized=False."
        )


def losses_without_mean(model: Any, strategy: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the compiled losses of which replicas can't find that of all rows: the name of each, or itself, and its
    reduction."""
    sums = ("sum", "mean_with_sample_weight") if sums_totals(strategy) else ()
    for loss in flatten(model._given_loss):
        reduction = getattr(loss, "reduction", "sum_over_batch_size")
        if reduction not in ("sum_over_batch_size", "mean", "auto", *sums):
            yield getattr(loss, "name", loss), reduction


def sums_totals(strategy: Any) -> bool:
    """Test whether a strategy's replicas sum what their losses are divided by, such as numbers of unmasked steps."""
    return isinstance(strategy, ModelParallel) or (isinstance(strategy, DataParallel) and strategy.of is None)


__all__ = ["check_compiled", "check_model", "check_not_synchronized", "losses_without_mean", "sums_totals"]
