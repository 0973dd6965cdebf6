"""`group` and `no_op`: operations that compute nothing, and stand for others that are to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..common.nest import flatten
from ..common.quick_dataclass import dataclass
from ..graph.context import in_explicit_graph
from ..graph.graph import Graph, Operation, get_default_graph
from ..graph.op import OUTSIDE_WORLD, Effect, Op
from ..graph.region import Region
from ..graph.tensor import Symbol, Tensor, symbol_of
from ..graph.value import Value
from ..ops.base import convert_to_tensor
from .region_op import component


@dataclass(frozen=True)
class NoOp(Op):
    """Nothing, after what it waits for.

    Attributes:
        is_result: whether a branch returned what it waits for, so that it runs though nothing takes a value of it.
    """

    no_samples: ClassVar[str] = "gives no result: test_graph_mode"
    is_result: bool = False

    def infer(self, *inputs: Any) -> Any:
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        return ()

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return []

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(OUTSIDE_WORLD, writes=True),) if self.is_result else ()


def group(*inputs: Any, name: str | None = None) -> Operation | None:
    """Make one operation of several: when it has run, all of `inputs` have.

    Args:
        *inputs: operations, tensors, variables, TensorArrays, and nested structures of these.
        name: a name for the operation.

    Returns:
        The operation, to be fetched, named in `control_dependencies`, or returned by a branch. None outside of graphs,
        where what was given has run already.

    Raises:
        TypeError: something is neither an operation nor a value.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default():
    ...     v, w = ab.Variable(1.0), ab.Variable(2.0)
    ...     both = ab.group(v.assign_add(1.0), w.assign(v * 10))
    ...     ab.Session().run(both)
    >>> float(v), float(w)
    (2.0, 20.0)
    """
    waits = [leaf if isinstance(leaf, Operation) else component(leaf) for leaf in flatten(inputs)]
    if not in_explicit_graph() and not any(isinstance(leaf, (Operation, Symbol)) for leaf in waits):
        return None
    made = [leaf if isinstance(leaf, Operation) else convert_to_tensor(leaf) for leaf in waits]
    operations: list[Operation] = []
    for leaf in made:
        if not isinstance(leaf, Value):
            operations.append(leaf if isinstance(leaf, Operation) else symbol_of(leaf).operation)
    graph = get_default_graph()
    if operations and not graph.is_inside(operations[0].graph):
        graph = operations[0].graph
    with graph.control_dependencies(operations):
        return graph.add(NoOp(), [], name or "group")


def no_op(name: str | None = None) -> Operation | None:
    """Make an operation that does nothing: for a branch that is to have no effect, or to hold control dependencies.

    Args:
        name: a name for the operation.

    Returns:
        The operation; None outside of graphs.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default():
    ...     count, x = ab.Variable(0.0), ab.placeholder((), "float32")
    ...     counted = ab.cond(x > 0, lambda: ab.group(count.assign_add(1.0)), ab.no_op)
    ...     session = ab.Session()
    ...     for value in (1.0, -1.0, 2.0):
    ...         session.run(counted, {x: value})
    ...     session.run(count)
    np.float32(2.0)
    """
    return get_default_graph().add(NoOp(), [], name) if in_explicit_graph() else None


def keep_running(result: Operation) -> None:
    """Let an operation that the branch which is being built returned run with the branch, though it gives no value."""
    graph = get_default_graph()
    if result.graph is graph and (result.writes or _is_idle(result, graph)):
        return
    with graph.control_dependencies([result]):
        graph.add(NoOp(is_result=True), [])


def _is_idle(operation: Operation, graph: Graph) -> bool:
    """Test whether it does nothing and waits for nothing."""
    if not isinstance(operation.op, NoOp) or operation.control_inputs:
        return False
    return not isinstance(graph, Region) or operation not in graph.outer_waits


__all__ = ["NoOp", "group", "keep_running", "no_op"]
