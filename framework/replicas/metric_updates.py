"""`MetricUpdates`: updates of metrics whose state is no sum, such as a maximum. The rows of all replicas make one.

Contributions of replicas to a sum can be added up. For other states there is no rule: so replicas give the arguments of
`update_state`, and it is called once, on the rows of the whole batch in their order, as in one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine import ops
from ...engine.common.nest import flatten, map_structure
from ...engine.graph import Graph, IndexedSlices, Placeholder, Symbol, TensorSpec, Variable
from ...engine.graph.spec import shape_text
from ...engine.ops.math.elementwise import Add
from ...engine.queues.replica_sums import Part
from ..calling import mask_of
from ..metrics.replicas import handing_updates

if TYPE_CHECKING:
    from ..metrics.base import Metric


@dataclass(eq=False)
class MetricUpdate:
    """One call of `update_state` in a step.

    Attributes:
        metric: the metric.
        arguments: positional and keyword arguments; in place of each tensor its number in `tensors`.
        masks: for tensors that have a mask, the numbers of both.
        tensors: what replicas give.
    """

    metric: Metric
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    masks: dict[int, int]
    tensors: list[Symbol]

    def parts(self) -> Iterator[tuple[Part, list[Any]]]:
        """Give what a replica puts: rows in their order, and of scalars the mean by rows, as of logs.

        Raises:
            ValueError: an argument is neither.
        """
        for tensor in self.tensors:
            kind = "uint8" if tensor.dtype.kind == "b" else TensorSpec((), tensor.dtype).dtype.name
            if tensor.shape is None or (tensor.shape == () and not tensor.spec.differentiable):
                raise _without_rows(self.metric, f"{kind} of shape {shape_text(tensor.shape)}")
            if tensor.shape == ():
                yield Part(kind, ()), [tensor]
            else:
                indices = ops.zeros((ops.shape(tensor)[0],), "int64")
                yield Part(kind, (1, *tensor.shape[1:]), "sum", has_rows=True), [indices, ops.cast(tensor, kind)]

    def make(self, values: Sequence[Any]) -> None:
        """Build the update in the current graph.

        Args:
            values: for each of `tensors` what replicas have given, joined.
        """
        found: list[Any] = []
        for tensor, value in zip(self.tensors, values, strict=True):
            rows = value.values if isinstance(value, IndexedSlices) else value
            found.append(ops.cast(rows, tensor.dtype))
        for number, mask in self.masks.items():
            found[number].annotations["mask"] = found[mask]
        args, kwargs = map_structure(
            lambda leaf: found[leaf.number] if isinstance(leaf, _Place) else leaf, self.arguments
        )
        self.metric.update_state(*args, **kwargs)


@dataclass(frozen=True)
class _Place:
    number: int


class MetricUpdates:
    """Decides which metrics of a model are updated by the rows of all replicas, and keeps what they are given.

    Attributes:
        taken: the updates of the step that is being traced.
    """

    def __init__(self) -> None:
        self.taken: list[MetricUpdate] = []
        self._adds: dict[int, tuple[Any, bool]] = {}  # by the `id` of a metric, which is kept so that it stays the same

    def take(self, metric: Metric, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Keep an update for later, if its metric's state is no sum; gives whether it is.

        Raises:
            ValueError: an argument is a whole number, as that of rows is, of which each replica has another.
        """
        if id(metric) not in self._adds:
            self._adds[id(metric)] = metric, only_adds(metric, args, kwargs)
        if self._adds[id(metric)][1]:
            return False
        tensors: list[Symbol] = []
        for leaf in flatten((args, kwargs)):
            if isinstance(leaf, int | np.integer) and not isinstance(leaf, bool):
                raise _without_rows(metric, f"the number {leaf}")
        arguments = map_structure(lambda leaf: _place_in(tensors, leaf), (args, kwargs))
        masks: dict[int, int] = {}
        for number, tensor in enumerate([*tensors]):
            mask = mask_of(tensor)
            if mask is not None:
                masks[number] = len(tensors)
                tensors.append(mask)
        self.taken.append(MetricUpdate(metric, arguments, masks, tensors))
        return True


def _without_rows(metric: Metric, given: str) -> ValueError:
    return ValueError(
        f"Metric {metric.name!r} has a state that is no sum. So under a strategy its update_state() is called once, "
        f"with the rows of all replicas; but train_step calls it with {given}, which has no rows. Pass it arrays with "
        "a row for each row of the batch, or let it keep a sum and a count in its variables."
    )


def _place_in(tensors: list[Symbol], leaf: object) -> Any:
    if isinstance(leaf, Variable):
        leaf = ops.convert_to_tensor(leaf)
    if not isinstance(leaf, Symbol):
        return leaf
    tensors.append(leaf)
    return _Place(len(tensors) - 1)


def only_adds(metric: Metric, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Test whether an update adds numbers to the variables of a metric that do not depend on these, and no more.

    Args:
        metric: one that has its variables.
        args, kwargs: what it is updated with. Nothing but shapes and dtypes of tensors is used.
    """
    with Graph().as_default() as graph, handing_updates(None):

        def placeholder(value: Any) -> Any:
            if not isinstance(value, Symbol | Variable):
                return value
            found = graph.add(Placeholder(TensorSpec(value.shape, value.dtype)), (), "given").outputs[0]
            mask = mask_of(value)
            if mask is not None:
                found.annotations["mask"] = placeholder(mask)
            return found

        state = [placeholder(variable) for variable in metric.variables]
        args, kwargs = map_structure(placeholder, (args, kwargs))
        results = metric.stateless_update_state(state, *args, **kwargs)
    dependent: set[Symbol] = set(state)
    for operation in graph.operations:
        if operation.writes:
            return False
        if any(each in dependent for each in operation.inputs):
            dependent.update(operation.outputs)
    return all(_has_added(value, old, dependent) for value, old in zip(results, state, strict=True))


def _has_added(value: object, old: Symbol, dependent: set[Symbol]) -> bool:
    """Test whether a value is an old one and numbers that don't depend on state."""
    while value is not old:
        if not isinstance(value, Symbol) or not isinstance(value.operation.op, Add):
            return False
        one, other = value.operation.inputs
        if (one in dependent) == (other in dependent):
            return False
        value = one if one in dependent else other
    return True


__all__ = ["MetricUpdate", "MetricUpdates", "only_adds"]
