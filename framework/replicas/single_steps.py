"""`train_on_cluster`: `train_on_batch` in one worker of a cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...distribute.strategies.data_parallel import DataParallel
from ...distribute.strategies.strategy import Strategy
from ..callbacks.base import CallbackList
from ..data.adapters import ArrayData, Batch
from ..training.epochs import Epochs
from .cluster_fit import Logs, reason_of
from .parallel import ParallelFit

if TYPE_CHECKING:
    from ..models.model import Model


class BatchData(ArrayData):
    """One batch as data of which each worker reads its rows.

    Args:
        batch: all rows.
    """

    def __init__(self, batch: Batch) -> None:
        self.layout, self.arrays = batch.layout, batch.leaves
        self.rows = self.batch_size = batch.size
        self.shuffle, self.batches = False, 1


def train_on_cluster(model: Any, strategy: Strategy, batch: Batch) -> Logs:
    """Make a step on a batch that all workers pass, each on its rows; return the logs of all rows.

    Args:
        model: a compiled model.
        strategy: with a cluster.
        batch: all rows.

    Raises:
        ValueError: the strategy makes no single steps, or workers have passed different batches.
        RuntimeError: `fit` runs.
    """
    _refuse(strategy)
    assert isinstance(strategy, DataParallel)
    assert strategy.group is not None
    _check_alike(model, strategy, batch)
    try:
        made = model._steps_on_cluster
        if made is None:
            made = ParallelFit(model, strategy, Epochs(BatchData(batch)), None, CallbackList(()), 0)
            made.begin_steps()
            made.send_values()
            model._steps_on_cluster = made
        return made.step_on(BatchData(batch))
    except BaseException as error:
        strategy.group.abort(reason_of(error))
        raise


def _refuse(strategy: Strategy) -> None:
    if strategy.running is not None:
        raise RuntimeError(
            "train_on_batch() was called while fit() runs on a cluster, such as by a callback. All workers make each "
            "step together there, and callbacks run in the chief: train in fit(), with a train_step of your own."
        )
    if not isinstance(strategy, DataParallel):
        raise ValueError(
            f"train_on_batch() under {type(strategy).__name__} on a cluster: there a step is made by whichever workers "
            "come first, of rows that ps task 0 hands out, and the ps tasks have the parameters while fit() runs. Use "
            "fit(), or DataParallel(), whose workers make single steps together."
        )
    if strategy.shard is not None:
        raise ValueError(
            f"train_on_batch() under DataParallel(shard={strategy.shard!r}): the optimizer's variables are spread over "
            "the workers while fit() runs, and whole before and after it. Use fit(), or leave shard out."
        )


def _check_alike(model: Model, strategy: DataParallel, batch: Batch) -> None:
    """Check that all workers pass batches of the same form at the same step.

    Raises:
        ValueError: they don't.
    """
    assert strategy.group is not None
    scalars = [variable for variable in model.optimizer.variables if variable.shape == ()]
    numbers = {variable.name.rpartition("/")[2]: float(variable.numpy()) for variable in scalars}
    own = {"rows": batch.size, "shapes": [list(leaf.shape) for leaf in batch.leaves], **numbers}
    found = [json.loads(each) for each in strategy.group.gather_bytes(json.dumps(own).encode())]
    for rank, other in enumerate(found):
        # Before the first step numbers may differ: all get the chief's.
        names = ("rows", "shapes") if model._steps_on_cluster is None else own
        names = [name for name in names if repr(own[name]) != repr(other.get(name))]
        if names:
            mine, theirs = ({name: each.get(name) for name in names} for each in (own, other))
            raise ValueError(
                f"train_on_batch(): this worker, {strategy.group.links.names[strategy.group.rank]}, has {mine}, and "
                f"{strategy.group.links.names[rank]} has {theirs}. Pass the whole batch in each worker, of which it "
                "computes its rows, and change learning rates and weights in all."
            )


__all__ = ["BatchData", "train_on_cluster"]
