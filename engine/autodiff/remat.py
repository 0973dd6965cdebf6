"""`remat`: functions whose inner values the backward pass computes again and does not keep (Chen et al. 2016)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ..common.nest import flatten, pack_as
from ..common.quick_dataclass import dataclass
from ..graph.graph import Graph, Operation, Parameter, get_default_graph, graph_for
from ..graph.op import Op
from ..graph.spec import Spec
from ..graph.state.variable_ops import ReadVariable
from ..graph.tensor import Symbol, Tensor
from ..ops.base import Constant, apply, apply_multi, convert_to_tensor, runs_now
from .custom_gradient import CustomGradient
from .gradients import gradients


def remat(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the values and the gradient of `f`, whose inner values are not kept for the backward pass.

    They are computed again there, from the arguments and what `f` uses from around it (``keras.remat``; gradient
    checkpointing). That takes the time of one more run of `f` and the memory of its arguments alone. Random numbers
    are those of the first run; loops, branches and what has effects are not run again, so their values are kept.

    Args:
        f: a function of tensors, or structures of them; a layer, for instance.

    Returns:
        The function. Where no graph is being built it is `f` itself: a `GradientTape` keeps all values. Steps of models
        and functions under `ab.function` are graphs.

    >>> import anabranch as ab
    >>> wide = ab.remat(lambda x: ab.ops.tanh(ab.ops.tanh(x) * 3.0))
    >>> @ab.function
    ... def slope(x):
    ...     return ab.gradients(wide(x), [x])[0]
    >>> abs(float(slope(0.5)) - 0.5224) < 1e-3
    True

    As ``jax.checkpoint`` and ``tf.recompute_grad``.
    """

    @functools.wraps(f)
    def rematerialised(*args: Any, **kwargs: Any) -> Any:
        return run_again(lambda: f(*args, **kwargs), [leaf for leaf in flatten((args, kwargs)) if _is_tensor(leaf)])

    return rematerialised


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def run_again(
    f: Callable[[], Any],
    tensors: Sequence[Tensor],
    where: Callable[[list[Symbol]], bool] = bool,
    only: Callable[[Op], bool] | None = None,
) -> Any:
    """Return what `f` gives, whose inner values the backward pass computes again.

    Args:
        f: builds a computation.
        tensors: what it is built from, by which its graph is known.
        where: says of the results whether that is to be so.
        only: says of an op whether it may run again; by default all that are pure.
    """
    if runs_now(tensors):
        return f()
    graph = graph_for(tensors)
    with graph.entered():
        start = len(graph.operations)
        outputs = f()
        results = [graph.capture(leaf) for leaf in flatten(outputs) if isinstance(leaf, Symbol)]
        return _wrapped(graph, start, outputs, only) if results and where(results) else outputs


def _wrapped(graph: Graph, start: int, outputs: Any, only: Callable[[Op], bool] | None) -> Any:
    """Return the outputs of operations from number `start` on, with a gradient that computes these again."""
    leaves = flatten(outputs)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Symbol)]
    results = [graph.capture(leaves[place]) for place in places]
    again, sources = _to_run_again(graph, start, results, only)
    if not again:
        return outputs
    rule = _Again(tuple(again), tuple(sources), tuple(results))
    made = apply_multi(CustomGradient(rule), *results, *sources, name="remat")
    for place, tensor in zip(places, made, strict=True):
        leaves[place] = tensor
    return pack_as(outputs, leaves)


def _to_run_again(
    graph: Graph, start: int, results: Iterable[Symbol], only: Callable[[Op], bool] | None
) -> tuple[list[Operation], list[Symbol]]:
    """Return the operations on the way to `results` that may run again, in order, and the values they start from."""
    again: dict[Operation, None] = {}
    sources: dict[Symbol, None] = {}
    pending = list(results)
    while pending:
        tensor = pending.pop()
        operation = tensor.operation
        if operation in again or tensor in sources:
            continue
        is_new = operation.graph is graph and operation.index >= start
        if is_new and _may_run_again(operation) and (only is None or only(operation.op)):
            again[operation] = None
            pending.extend(operation.inputs)
        elif not isinstance(operation.op, Constant):
            sources[tensor] = None
    return sorted(again, key=lambda operation: operation.index), list(sources)


def _may_run_again(operation: Operation) -> bool:
    """Test whether an operation is pure, and cheaper to run again than to look into."""
    op = operation.op
    kept = isinstance(op, (Constant, Parameter, ReadVariable, CustomGradient))
    return not (kept or operation.effects or op.regions or op.called)


@dataclass(frozen=True, eq=False)
class _Again:
    """The gradient of operations, by way of copies of them.

    Attributes:
        operations: those that run again, in order.
        sources: what they start from.
        outputs: their results.
    """

    operations: tuple[Operation, ...]
    sources: tuple[Symbol, ...]
    outputs: tuple[Symbol, ...]

    @property
    def results(self) -> int:
        """The number of results."""
        return len(self.outputs)

    def cotangents(self, upstream: list[Any], targets: Sequence[Tensor]) -> list[Any]:
        """Return the cotangents (or None) of the sources, whose values here are `targets`."""
        known = [dy for dy in upstream if dy is not None]
        if not known:
            return [None] * len(targets)
        graph = get_default_graph()
        starts = [apply(After(), target, convert_to_tensor(known[0])) for target in targets]
        copies: dict[Symbol, Tensor] = dict(zip(self.sources, starts, strict=True))
        for operation in self.operations:
            copies.update(zip(operation.outputs, _copied(operation, copies, graph), strict=True))
        pairs = [
            (copies[y], dy) for y, dy in zip(self.outputs, upstream, strict=True) if y in copies and dy is not None
        ]
        pairs = [(y, dy) for y, dy in pairs if y.spec.differentiable]
        wanted = [x for x in starts if x.spec.differentiable]
        if not pairs or not wanted:
            return [None] * len(targets)
        found = iter(gradients([y for y, _ in pairs], wanted, [dy for _, dy in pairs]))
        return [next(found) if x.spec.differentiable else None for x in starts]


def _copied(operation: Operation, copies: Mapping[Symbol, Tensor], graph: Graph) -> tuple[Symbol, ...]:
    inputs = [graph.capture(copies.get(tensor, tensor)) for tensor in operation.inputs]
    return graph.add(operation.op, inputs, f"{operation.name.rpartition('/')[2]}_again").outputs


@dataclass(frozen=True)
class After(Op):
    """The first input, once the second one is there. Nothing is known to be equal to it before."""

    view: ClassVar[bool] = True
    no_samples: ClassVar[str] = "an order of operations, which has no formula: test_remat"

    def infer(self, *inputs: Spec) -> Spec:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return cotangents[0], None
