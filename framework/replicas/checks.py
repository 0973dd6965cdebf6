"""`check_compiled` and others: what replicas can't train is found when a model is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...distribute.strategies.strategy import ParameterServer, Strategy
from ...engine.common.nest import flatten
from .optimizer_shards import check_optimizer

if TYPE_CHECKING:
    from ..training.base_model import BaseModel


def check_compiled(model: BaseModel, strategy: Strategy) -> None:
    """Check a model that is being compiled for the workers of a cluster; layers that it gets later are not looked at.

    Raises:
        ValueError: it can't be trained there; the message says why.
    """
    check_model(model)
    if isinstance(strategy, ParameterServer):
        check_synchronized(model, strategy)
    elif getattr(strategy, "shard", None):
        check_optimizer(model.optimizer)


def check_model(model: BaseModel) -> None:
    """Check that the state of layers belongs to no row, and that losses are scalars.

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
    for loss, reduction in losses_of_rows(model):
        raise ValueError(
            f"Loss {loss!r} of model {model.name!r} has reduction={reduction!r}, so that it has a value for each row. "
            "Replicas take the sum of their losses, which have to be scalars: use reduction='sum', which has the same "
            "gradients, or 'sum_over_batch_size'."
        )


def synchronized_layers(model: BaseModel) -> list[str]:
    """Return the names of the layers that need sums over all workers' rows while a step is computed."""
    return [layer.name for layer in model._flatten_layers() if getattr(layer, "synchronized", False)]


def check_synchronized(model: BaseModel, strategy: ParameterServer) -> None:
    """Check that workers compute each step together, if layers exchange sums.

    Raises:
        ValueError: they don't; the message says which layers do.
    """
    names = synchronized_layers(model)
    if not names:
        return
    why = ""
    if not strategy.sync:
        why = "with sync=False each worker makes steps of its own"
    elif strategy.backup_workers:
        why = f"with backup_workers={strategy.backup_workers} a step does not wait for all of its workers"
    elif not strategy.deterministic:
        why = (
            "with deterministic=False gradients are added up as they come, and those of a step that begins again, "
            "because a worker was lost, can't be taken out of the sum"
        )
    if why:
        raise ValueError(
            f"The layers {names} of model {model.name!r} are synchronized, which takes workers that compute each step "
            f"together, but {why}. Leave that argument of ParameterServer out, or use synchronized=False."
        )


def losses_of_rows(model: BaseModel) -> Iterator[tuple[object, object]]:
    """Yield the compiled losses that are no scalars: the name of each, or itself, and its reduction."""
    for loss in flatten(model._given_loss):
        reduction = getattr(loss, "reduction", "sum_over_batch_size")
        if reduction in ("none", None):
            yield getattr(loss, "name", loss), reduction


__all__ = ["check_compiled", "check_model", "check_synchronized", "losses_of_rows", "synchronized_layers"]
