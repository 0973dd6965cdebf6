"""`MetricUpdates`: updates of metrics whose state is not a sum, such as a maximum. The rows of all replicas make one.

Contributions of replicas to a sum can be added up. For other states there is no rule: so replicas give the arguments of
`update_state`, and it is called once, on the rows of the whole batch in their order, as in one process. So it is where
the argument is a mean over rows, such as the loss, and the metric counts how often it was called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine import ops
from ...engine.common.nest import flatten, map_structure
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Graph, IndexedSlices, Operation, Placeholder, Symbol, TensorSpec, Variable
from ...engine.graph.spec import shape_text
from ...engine.ops.base import Cast
from ...engine.ops.math.elementwise import Add, Subtract
from ...engine.queues.replica_gradients import Part
from ..calling import mask_of
from ..metrics.replicas import handing_updates

if TYPE_CHECKING:
    from ...engine.graph import Tensor
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
    arguments: tuple[tuple[object, ...], dict[str, object]]
    masks: dict[int, int]
    tensors: list[Symbol]

    def parts(self) -> Iterator[tuple[Part, list[Tensor]]]:
        """Yield what a replica puts: rows in their order, and of scalars the mean by rows, as of logs.

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

    def make(self, values: Sequence[Tensor | IndexedSlices]) -> None:
        """Build the update in the current graph.

        Args:
            values: for each of `tensors` what replicas have given, joined.
        """
        found: list[Tensor] = []
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
        # By the `id` of a metric, which is kept so that it stays the same, and the kinds of what it is updated with.
        self._adds: dict[tuple[object, ...], tuple[Metric, bool]] = {}

    def take(self, metric: Metric, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Keep an update for later, if its metric's state is not a sum; return whether it is.

        Raises:
            ValueError: an argument is a whole number, as that of rows is, of which each replica has another.
        """
        key = id(metric), *map(_kind, flatten((args, kwargs)))
        if key not in self._adds:
            self._adds[key] = metric, can_be_summed(metric, args, kwargs)
        if self._adds[key][1]:
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


def _kind(leaf: object) -> object:
    return (leaf.shape, leaf.dtype) if isinstance(leaf, Symbol | Variable) else type(leaf)


def _place_in(tensors: list[Symbol], leaf: object) -> object:
    if isinstance(leaf, Variable):
        leaf = ops.convert_to_tensor(leaf)
    if not isinstance(leaf, Symbol):
        return leaf
    tensors.append(leaf)
    return _Place(len(tensors) - 1)


def can_be_summed(metric: Metric, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Test whether what replicas' updates add to a metric can be summed.

    They have to add numbers to the metric's variables that do not depend on these, and no more. An update that adds a
    number that does not depend on what it is given, such as 1 for a mean over the batch, counts steps, not replicas.
    Nor is a number a sum over rows that is computed of several of such sums, or by another function of one: the root of
    a mean, or its product with a sum of weights.

    Args:
        metric: one that has its variables.
        args, kwargs: what it is updated with. Nothing but shapes and dtypes of tensors is used.
    """
    try:  # so that numbers of rows are computed of what is given
        added, is_constant = _Added.by(metric, args, kwargs, with_rows=False), False
    except (TypeError, ValueError):  # an update that needs the number of rows
        added, is_constant = _Added.by(metric, args, kwargs, with_rows=True), True
    if added.is_other:
        return False
    if not added.counts_calls:
        return True
    return is_constant if added.has_rows else _is_given_alone(args, kwargs)


def _is_given_alone(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Test whether there is nothing of the batch among arguments, or a number of the caller's."""
    leaves = flatten((args, kwargs))
    is_of_batch = any(isinstance(leaf, Symbol | Variable) for leaf in leaves)
    return not is_of_batch or any(isinstance(leaf, int | float | np.number) for leaf in leaves)


@dataclass(frozen=True)
class _Added:
    """The terms that an update adds to the state of a metric.

    Attributes:
        is_other: it changes the state in another way, or by numbers that are no sums over rows.
        has_rows: some argument has rows.
        counts_calls: it adds numbers that do not depend on the arguments.
    """

    is_other: bool
    has_rows: bool
    counts_calls: bool

    @classmethod
    def by(cls, metric: Metric, args: tuple[object, ...], kwargs: dict[str, object], with_rows: bool) -> _Added:
        """Trace an update, of arguments whose numbers of rows are known or not."""
        given: list[Symbol] = []
        with Graph().as_default() as graph, handing_updates(None):

            def placeholder(value: object, with_rows: bool = True) -> Any:
                if not isinstance(value, Symbol | Variable):
                    return value
                shape = value.shape if with_rows or not value.shape else (None, *value.shape[1:])
                found = graph.add(Placeholder(TensorSpec(shape, value.dtype)), (), "given").outputs[0]
                given.append(found)
                mask = mask_of(value)
                if mask is not None:
                    found.annotations["mask"] = placeholder(mask, with_rows)
                return found

            args, kwargs = map_structure(lambda leaf: placeholder(leaf, with_rows), (args, kwargs))
            arguments = set(given)
            state = [placeholder(variable) for variable in metric.variables]
            results = metric.stateless_update_state(state, *args, **kwargs)
        dependent = _dependent(graph, state)
        added = [_added(value, old, dependent) for value, old in zip(results, state, strict=True)]
        of_arguments = _dependent(graph, arguments)
        no_sums = set() if with_rows else _no_sums(graph, arguments, of_arguments)
        is_sum = all(terms is not None and no_sums.isdisjoint(terms) for terms in added)
        return cls(
            any(operation.writes for operation in graph.operations) or not is_sum,
            any(each.shape != () or not each.spec.differentiable for each in arguments),
            any(each not in of_arguments for terms in added if terms is not None for each in terms),
        )


def _dependent(graph: Graph, tensors: Iterable[Symbol]) -> set[Symbol]:
    """Return tensors, and those that are computed of them."""
    found = set(tensors)
    for operation in graph.operations:
        if any(each in found for each in operation.inputs):
            found.update(operation.outputs)
    return found


def _no_sums(graph: Graph, arguments: set[Symbol], dependent: set[Symbol]) -> set[Symbol]:
    """Return the tensors that are no sums over rows, of those that are computed of sums over rows.

    Args:
        graph: an update, of arguments whose numbers of rows are unknown.
        arguments: what it is updated with.
        dependent: these, and what is computed of them.
    """
    if all(each.shape == () for each in arguments):
        return set()
    sums = {each for each in arguments if each.shape == () and each.spec.differentiable}  # such as a loss
    found: set[Symbol] = set()
    for operation in graph.operations:
        given = [each for each in operation.inputs if each in dependent]
        if not given:
            continue
        results = [each for each in operation.outputs if each.spec.differentiable]
        if any(each in found for each in given):
            found.update(operation.outputs)
        elif any(each in sums for each in given):
            (sums if _keeps_sums(operation, given, sums) else found).update(operation.outputs)
        elif not any(_has_unknown_size(each) for each in results):
            (sums if _is_linear(operation, given) else found).update(results)
    return found


def _keeps_sums(operation: Operation, given: Sequence[Symbol], sums: set[Symbol]) -> bool:
    """Test whether an operation on sums over rows, and on what does not depend on rows, gives sums over rows."""
    if isinstance(operation.op, Add | Subtract):
        return True
    # A sum that was added to each row would be added up once for each.
    is_repeated = any(_has_unknown_size(each) for each in given) and not operation.op.view
    return len(given) == 1 and _is_linear(operation, given) and not is_repeated and given[0] in sums


def _is_linear(operation: Operation, given: Sequence[Symbol]) -> bool:
    """Test whether an operation is linear in each of some of its inputs; those that hold sizes do not count."""
    if isinstance(operation.op, Cast):
        (value,) = operation.inputs
        is_truth_of_rows = value.dtype.kind == "b" and not _has_unknown_size(value)
        return operation.outputs[0].spec.differentiable and not is_truth_of_rows
    linear = [operation.inputs[position] for position in operation.op.linear_in]
    return all(each in linear for each in given if each.spec.differentiable)


def _has_unknown_size(tensor: Symbol) -> bool:
    return tensor.shape is None or None in tensor.shape


def _added(value: object, old: Symbol, dependent: set[Symbol]) -> list[Symbol] | None:
    """Return the terms by which a value exceeds an old one; None if it is no such sum, or a term depends on state."""
    terms: list[Symbol] = []
    while value is not old:
        if not isinstance(value, Symbol) or not isinstance(value.operation.op, Add):
            return None
        one, other = value.operation.inputs
        if (one in dependent) == (other in dependent):
            return None
        value, term = (one, other) if one in dependent else (other, one)
        terms.append(term)
    return terms


__all__ = ["MetricUpdate", "MetricUpdates", "can_be_summed"]
