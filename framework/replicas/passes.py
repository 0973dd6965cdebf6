"""`SharedPass`: a pass of `evaluate` or `predict` of which workers compute parts.

A pass is shared where that changes nothing but the time. So all workers have to make the same call, on the same data
and with the same weights; where one of them makes another call, each computes its own. Inside `fit` the chief decides.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...distribute.strategies.data_parallel import DataParallel
from ...distribute.strategies.strategy import ParameterServer, Strategy
from ...engine.graph import Graph, Operation, Symbol, Variable
from ...engine.graph.state.variable_ops import Assign, ReadVariable
from ...engine.ops.math.elementwise import Add
from ...engine.ops.random.keys import noting_keys
from ...engine.queues.errors import StateLostError, TaskFailedError
from ..data.adapters import ArrayData, Batch, Data
from ..training.base_callback import BaseCallbackList
from ..training.epochs import Epochs
from ..training.fit_data import without_targets
from ..training.progress import Progress
from .alike import add_to_digest
from .shares import bounds
from .traced import placeholders
from .ways import PARTS_OF_A_WORKER, GroupWay, OfOneGroup, TaskWay, Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..structures import Array, Tensors
    from ..training.base_model import BaseModel
    from .ways import Compute

_logger = logging.getLogger(__name__)


def shared_pass(
    model: BaseModel, strategy: Strategy, mode: str, data: Epochs, hooks: BaseCallbackList
) -> SharedPass | None:
    """Begin a pass that workers share; None where this process computes it alone.

    Args:
        model: the model.
        strategy: with a cluster.
        mode: "test" or "predict".
        data: what to pass over.
        hooks: the callbacks.
    """
    running = strategy.running
    if running is not None and not running.is_validating:
        return None  # in a callback, say, which other workers don't call
    if running is not None and running.way is not None:  # the chief has decided
        return SharedPass(model, data.data, data.steps or 0, running.way, False)
    first = None if hooks.wants_batches(mode) else _first_batch(model, strategy, data)
    if first is None or not _can_be_split(model, mode, first):
        return None
    batches = data.steps or 0
    if running is not None:
        way = running.share_validation(batches)
    else:
        way = _agreed_way(strategy, _digest(model, mode, data, first), batches)
    return None if way is None else SharedPass(model, data.data, batches, way, running is None)


def _first_batch(model: BaseModel, strategy: Strategy, data: Epochs) -> Batch | None:
    """Return the first batch of data of which batches can be read by number, if there are several; else None."""
    whole = data.data.batches
    steps = data.steps
    if strategy.num_workers < 2 or model._cut_steps is not None or whole is None or steps is None:
        return None
    if not 2 <= steps <= whole:
        return None
    running = data.data.part(0, 1)
    if running is None:
        return None
    data.data.begin_pass(looks=True)
    return next(running, None)


def _can_be_split(model: BaseModel, mode: str, batch: Batch) -> bool:
    batch = without_targets(batch) if mode == "predict" else batch
    key = mode, batch.layout.key
    if key not in model._splits:
        is_plain = can_be_split(model, mode, batch)
        model._splits[key] = is_plain and (mode, batch.layout.key) not in model._log_names
    return model._splits[key]


def _agreed_way(strategy: Strategy, digest: bytes, batches: int) -> Way | None:
    """Return how all workers, or those that make the same call now, share a pass; None if they do not."""
    if isinstance(strategy, DataParallel):
        if strategy.group is None:  # the others have not taken this worker in
            return None
        is_main = threading.current_thread() is threading.main_thread()  # others might come in another order
        shares = is_main and strategy.group.offer(digest)
        return GroupWay(OfOneGroup(strategy.group), strategy.group.size) if shares else None
    assert isinstance(strategy, ParameterServer)
    try:
        return TaskWay.joined(strategy, digest.hex(), min(batches, PARTS_OF_A_WORKER * strategy.num_workers))
    except (TaskFailedError, StateLostError) as error:
        _logger.warning("This process computes alone: %s", error)
        return None


class SharedPass:
    """A pass of which this worker computes parts, and has the results of all.

    Args:
        model: the model.
        data: of which batches can be read by number.
        batches: how many.
        way: how workers share them.
        goes_on: whether this worker computes all if others, or ps task 0, are lost.
    """

    def __init__(self, model: BaseModel, data: Data, batches: int, way: Way, goes_on: bool) -> None:
        self._goes_on = goes_on
        self._model = model
        self._data = data
        self._batches = batches
        self._way = way

    def test(self, run_steps: Callable[[Epochs], object]) -> int:
        """Leave the metrics as a pass of this process alone would; return the number of batches.

        Args:
            run_steps: runs the steps of a part of the pass.
        """
        model = self._model

        def compute(part: int) -> list[Array]:
            model.reset_metrics()
            run_steps(Epochs(self._part(part)))
            return [np.array(variable.numpy()) for variable in _state(model)]

        found = self._results(compute)
        model.reset_metrics()
        if len(_state(model)) < len(found[0]):  # others have computed all parts
            for batch in self._data.part(0, 1) or ():
                traced(model, "test", batch)
        for variable, *values in zip(_state(model), *found, strict=True):
            first = np.array(variable.numpy())
            total = first
            for value in values:
                total = total + (value - first)
            variable.assign(total)
        return self._batches

    def predict(self, joined: Callable[[Sequence[Array]], Array], progress: Progress) -> list[Array]:
        """Return the outputs of all batches, joined.

        Args:
            joined: joins arrays of batches.
            progress: of this worker.
        """
        model = self._model

        def compute(part: int) -> list[Array]:
            found = []
            for batch in progress.timed(self._part(part).epoch()):
                found.append(model._steps["predict"].run(without_targets(batch)))
                progress.redraw(len(found))
            return [joined(column) for column in zip(*found, strict=True)]

        return [joined(column) for column in zip(*self._results(compute), strict=True)]

    def structure(self) -> Tensors:
        """Return the structure of the model's outputs."""
        batch = next(self._data.part(0, 1) or iter(()))
        return self._model._output_structure[without_targets(batch).layout.key]

    def _part(self, part: int) -> _Part:
        return _Part(self._data, *bounds(self._batches, part, min(self._batches, self._way.most)))

    def _results(self, compute: Compute) -> list[list[Array]]:
        parts = min(self._batches, self._way.most)
        self._data.begin_pass()
        try:
            return self._way.results(parts, compute)
        except (TaskFailedError, StateLostError) as error:
            if not self._goes_on:
                raise
            _logger.warning("This process computes alone: %s", error)
            return [compute(part) for part in range(parts)]
        finally:
            self._data.on_epoch_end()


class _Part(Data):
    """Batches of a pass, from one number to another."""

    def __init__(self, data: Data, first: int, stop: int) -> None:
        self._data = data
        self._first, self._stop = first, stop
        self.batches = stop - first

    def epoch(self) -> Iterator[Batch]:
        return self._data.part(self._first, self._stop) or iter(())


def _state(model: BaseModel) -> list[Variable]:
    return [variable for metric in model.metrics for variable in metric.variables]


# --- what can be shared -----------------------------------------------------------------------------------------------


def can_be_split(model: BaseModel, mode: str, batch: Batch) -> bool:
    """Test whether parts of a pass may be computed apart: a step adds to metrics at most, and draws no numbers.

    A state that is not a sum, such as a maximum, can't be made of those of parts.

    Args:
        model: the model.
        mode: "test" or "predict".
        batch: of the pass, of which nothing but the layout is used.
    """
    with noting_keys() as keys:
        graph = traced(model, mode, batch)
    state = [variable for metric in model.metrics for variable in metric.variables] if mode == "test" else []
    return not keys and _only_adds(graph.operations, state)


def traced(model: BaseModel, mode: str, batch: Batch) -> Graph:
    """Build a step of a pass in a graph of its own, and variables of metrics that the model does not have yet.

    Args:
        model: the model.
        mode: "test" or "predict".
        batch: of the pass, of which nothing but the layout is used.
    """
    with Graph().as_default() as graph:
        model._build_plain_step(mode, batch.layout, placeholders(batch))
    return graph


def _only_adds(operations: Sequence[Operation], state: Sequence[Variable]) -> bool:
    """Test whether all that operations write is added to variables, by numbers that don't depend on these."""
    known = {id(variable) for variable in state}
    held: dict[Symbol, int] = {}  # symbols that are the value of a variable
    dependent: set[Symbol] = set()
    for operation in operations:
        op = operation.op
        if isinstance(op, ReadVariable) and id(op.variable) in known:
            held[operation.outputs[0]] = id(op.variable)
        elif isinstance(op, Assign):
            value = operation.inputs[0]
            if id(op.variable) not in known or not _is_sum(value, id(op.variable), held, dependent):
                return False
            held[value] = held[operation.outputs[0]] = id(op.variable)
        elif operation.writes:
            return False
        elif any(each in held or each in dependent for each in operation.inputs):
            dependent.update(operation.outputs)
    return True


def _is_sum(value: Symbol, variable: int, held: Mapping[Symbol, int], dependent: set[Symbol]) -> bool:
    """Test whether a value is that of a variable and something more."""
    operation = value.operation
    if not isinstance(operation.op, Add):
        return False
    one, other = operation.inputs
    return any(
        held.get(old) == variable and new not in held and new not in dependent
        for old, new in ((one, other), (other, one))
    )


# --- digests --------------------------------------------------------------------------------------------------------


def _digest(model: BaseModel, mode: str, data: Epochs, first: Batch) -> bytes:
    """Describe a call by 16 bytes: which model with which weights does what with which data."""
    found = hashlib.blake2b(digest_size=16)
    iterations = 0 if model.optimizer is None else int(model.optimizer.iterations)
    source = data.data
    size = source.batch_size if isinstance(source, ArrayData) else 0
    found.update(repr([mode, model.name, first.layout.key, data.steps, size, iterations]).encode())
    for variable in model.variables:
        add_to_digest(found, np.asarray(variable.numpy()))
    if isinstance(source, ArrayData):
        arrays = source.arrays
    else:  # its other batches would have to be made
        last = next(source.part((data.steps or 1) - 1, data.steps or 1) or iter(()))
        arrays = [*first.leaves, *last.leaves]
    for array in arrays:
        add_to_digest(found, array)
    return found.digest()


__all__ = ["SharedPass", "can_be_split", "shared_pass"]
