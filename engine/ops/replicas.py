"""Steps that replicas run together, each on its own rows: sums over all of them, and losses that need such sums.

A strategy sums the replicas' losses and gradients, each multiplied by the replica's part of the rows. That is the loss
of the whole batch where a loss is a mean over rows. A mean over something else, such as the unmasked steps of
sequences, is divided by the number of these in the whole batch instead of the replica's own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ..common.quick_dataclass import dataclass
from ..graph import Graph, Placeholder, Symbol
from ..graph.graph import Parameter, get_default_graph
from ..graph.state.variable_ops import ReadVariable
from .arrays.joining import stack, unstack
from .base import Op, Operation, Tensor, TensorSpec, cast
from .base import convert_to_tensor as to_tensor
from .collectives import all_reduce, current_group
from .math.comparison import divide_no_nan, greater, where
from .math.elementwise import stop_gradient

Summing: TypeAlias = Callable[[Tensor], Tensor]  # builds the sum of a tensor over all replicas


class _Replica(NamedTuple):
    weight: Any
    totals: Iterator[Tensor | None] | None
    add: Summing | None  # None where layers compute by themselves


class _State(threading.local):
    def __init__(self) -> None:
        self.replicas: list[_Replica] = []
        self.noted: list[Symbol] | None = None
        self.graph: Graph | None = None  # of the step that is being built


_state = _State()


@contextlib.contextmanager
def replicated(
    weight: Any = 1.0, totals: Iterable[Tensor | None] | None = None, add: Summing | None = None
) -> Generator[None]:
    """Make a block that builds the step of one of several replicas, which has some rows of a batch.

    Args:
        weight: how much its loss counts in the sum of all replicas' losses: its part of the rows.
        totals: those of the whole batch, in the order in which the step asks for them; see `noting_totals`. In place of
            one that can't be known None: then the replica takes its own. None for all where all members of the group
            run the step, and sum what each has.
        add: builds the sums that layers need, such as those of synchronized statistics; its gradient is that of the
            sum of all replicas' losses. By default `all_reduce` where all members of the group run the step, else
            layers compute by themselves.
    """
    if totals is None and add is None:
        add = all_reduce
    _state.replicas.append(_Replica(weight, None if totals is None else iter(totals), add))
    try:
        yield
    finally:
        _state.replicas.pop()


@contextlib.contextmanager
def building_step(is_loss: bool = True) -> Generator[None]:
    """Make a block that builds a step in the current graph.

    Losses in its loops and branches are divided by the replica's own counts: replicas may run these differently.

    Args:
        is_loss: False for a part whose losses are those of the replica's rows, such as the update of a metric.
    """
    before, _state.graph = _state.graph, get_default_graph() if is_loss else None
    try:
        yield
    finally:
        _state.graph = before


@contextlib.contextmanager
def noting_totals(of_whole: bool = False) -> Generator[list[Symbol]]:
    """Make a block that builds a step; yield what its losses give to be summed over replicas, in this order.

    Args:
        of_whole: whether it has all rows of a batch, and is no replica's.
    """
    before = _state.noted, _state.replicas
    _state.noted, _state.replicas = [], [] if of_whole else _state.replicas
    try:
        yield _state.noted
    finally:
        _state.noted, _state.replicas = before


def is_replicated() -> bool:
    """Test whether a step of several replicas is being built, whose layers can sum over all of them."""
    replica = _current()
    return replica is not None and replica.add is not None


def sum_over_replicas(x: Tensor) -> Tensor:
    """Return the sum of a tensor over all replicas, inside `replicated`; outside of it, the tensor itself.

    Its gradient is that of the weighted sum of the replicas' losses, whatever part of the rows each has. The loss of a
    replica without rows, a mean of nothing, does not count.
    """
    replica = _current()
    if replica is None or replica.add is None:
        return x
    weight = _weight(replica, x)
    given = _with_gradient_times(x, divide_no_nan(1.0, weight), weight)
    return _with_gradient_times(replica.add(given), weight, weight)


def _with_gradient_times(x: Tensor, factor: Tensor, weight: Tensor) -> Tensor:
    """Return `x`, whose gradient is multiplied by a factor; it is 0 where the weight is."""
    scaled = where(greater(weight, 0), x, 0) * factor
    return stop_gradient(x) + (scaled - stop_gradient(scaled))


@dataclass(frozen=True, eq=False)
class PendingSum(Op):
    """Stands for the sum over the replicas of one graph while these are built one after the other.

    Attributes:
        add: builds such a sum of a tensor of the same replica.
    """

    add: Summing

    no_samples: ClassVar[str] = "is in no graph that is run: test_synchronized_layers"

    def infer(self, *inputs: Any) -> TensorSpec:
        return inputs[0]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        return (None if dy is None else self.add(dy),)


# --- losses ---------------------------------------------------------------------------------------------------------


def part_of_sum(total: Tensor) -> Tensor:
    """Return a replica's sum over its rows as the loss whose weighted sum over replicas is the sum over all rows.

    Outside of `replicated`, in updates of metrics, and where it does not depend on the batch, it is the sum itself.

    Args:
        total: a scalar.
    """
    replica = _current()
    if replica is None or not isinstance(total, Symbol) or not _is_in_step():
        return total
    if _is_outermost() and not _depends_on(total, Placeholder):
        return total
    return divide_no_nan(total, _weight(replica, total))  # without rows it is 0


def part_of_mean(total: Tensor, count: Tensor) -> Tensor:
    """Return ``total / count``, or 0 where nothing counts.

    Inside `replicated` it is the loss whose weighted sum over replicas is the mean over what counts in the whole batch.
    In loops and branches a replica divides by its own count; see `building_step`.

    Args:
        total: a scalar, the sum of what counts.
        count: a scalar, the number of what counts, or the sum of its weights.
    """
    replica = _current()
    is_alone = replica is None and _state.noted is None
    if is_alone or not isinstance(total, Symbol) or not isinstance(count, Symbol) or not _is_outermost():
        return divide_no_nan(total, count)
    wide = cast(count, "float64")
    is_trained = _depends_on(count, ReadVariable)
    whole = _over_all(stack([cast(total, "float64"), wide]) if is_trained else wide, replica)
    if whole is None:
        return divide_no_nan(total, count)
    if not is_trained:
        return divide_no_nan(total, _part_of(whole, replica, total))
    # The gradient through the count is that of the whole batch's mean by the whole batch's count.
    whole_total, whole_count = unstack(stop_gradient(whole))
    mean = cast(divide_no_nan(whole_total, whole_count), total.dtype)
    return divide_no_nan(total - mean * (count - stop_gradient(count)), _part_of(whole_count, replica, total))


def _current() -> _Replica | None:
    """Return the replica whose step is being built; None where there is one alone."""
    replica = _state.replicas[-1] if _state.replicas else None
    return None if replica is None or (replica.totals is None and current_group().size == 1) else replica


def _weight(replica: _Replica, like: Tensor) -> Tensor:
    """Return a replica's part of the rows, in the dtype of a tensor."""
    return cast(to_tensor(replica.weight, "float64"), like.dtype)


def _over_all(x: Tensor, replica: _Replica | None) -> Tensor | None:
    """Return the sum of what all replicas give; None where it can't be known."""
    if _state.noted is not None and isinstance(x, Symbol):
        _state.noted.append(x)
    if replica is None:
        return x
    return all_reduce(x) if replica.totals is None else next(replica.totals)


def _part_of(count: Tensor, replica: _Replica | None, like: Tensor) -> Tensor:
    """Return the part of a count of the whole batch by which a replica divides, in the dtype of a tensor."""
    part = count if replica is None else count * _weight(replica, count)
    return cast(part, like.dtype)


def _is_outermost() -> bool:
    """Test whether operations are built in the graph of the step itself."""
    return get_default_graph() is _state.graph


def _is_in_step() -> bool:
    """Test whether operations are built in the graph of the step, or in its loops and branches."""
    graph: Graph | None = get_default_graph()
    while graph is not None and graph is not _state.graph:
        graph = graph.parent
    return graph is not None


def _depends_on(tensor: Symbol, kind: type[Placeholder | ReadVariable]) -> bool:
    """Test whether a tensor is computed of what some operations give; of variables, in a way that has gradients."""
    seen = {tensor}
    pending = [tensor]
    while pending:
        operation = pending.pop().operation
        if isinstance(operation.op, kind):
            return True
        inputs = operation.inputs
        if isinstance(operation.op, Parameter):  # the step is the body of a loop
            inputs = [outer for outer, inner in operation.graph.captures if inner is operation.outputs[0]]
            if not inputs and kind is Placeholder:
                return True
        for each in inputs:
            if each not in seen and (kind is not ReadVariable or each.spec.differentiable):
                seen.add(each)
                pending.append(each)
    return False


__all__ = [
    "PendingSum",
    "Summing",
    "building_step",
    "is_replicated",
    "noting_totals",
    "part_of_mean",
    "part_of_sum",
    "replicated",
    "sum_over_replicas",
]
