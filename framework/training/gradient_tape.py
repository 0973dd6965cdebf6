"""`GradientTape`: gradients in the words of TensorFlow, of what runs at once and in the graph that is being built."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from ...engine import ops
from ...engine.autodiff import gradients
from ...engine.autodiff.custom_gradient import variable_read_by
from ...engine.autodiff.gradients import check_unconnected, cotangents_for
from ...engine.autodiff.tape import Tape
from ...engine.control_flow.jacobian import batch_jacobian, jacobian
from ...engine.graph import (
    Graph,
    IndexedSlices,
    Operation,
    ShardedVariable,
    Symbol,
    Tensor,
    Variable,
    flatten,
    get_default_graph,
    pack_as,
)
from ...engine.graph.state.sharded import expanded, regrouped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from enum import Enum

    from ...engine.common.nest import Nest
    from ...engine.ops.base import TensorLike
    from ..structures import Arrays


Sources: TypeAlias = "Nest[TensorLike | ShardedVariable | None]"


class GradientTape:
    """A record of what is computed inside its block, and the derivatives of it, as ``tf.GradientTape``.

    Args:
        persistent: let `gradient` and `jacobian` be called more than once.
        watch_accessed_variables: whether trainable variables are watched when they are read. In a graph that is being
            built all variables are.

    Outside of graphs the tape records the ops that depend on something watched: on trainable variables that are read
    inside the block, and on values given to `watch`. What was computed before the block is a constant. Derivatives
    are computed at once, and tapes around this one record that, so that nested tapes give higher derivatives.

    Where a graph is being built (in `Model.train_step`, in a function under `ab.function`) nothing is recorded: the
    graph has it all, and `gradient` builds `ab.gradients`. Again only what was built inside the block counts.

    >>> import anabranch as ab
    >>> w = ab.Variable(3.0)
    >>> with ab.GradientTape() as outer:
    ...     with ab.GradientTape() as inner:
    ...         y = w * w * w
    ...     slope = inner.gradient(y, w)
    >>> float(slope), float(outer.gradient(slope, w))
    (27.0, 18.0)
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self.persistent = persistent
        self.watch_accessed_variables = watch_accessed_variables
        self._tape = Tape(watch_accessed_variables)
        self._graph: Graph | None = None
        self._spans: list[range] = []  # the operations of the graph that were recorded, by their indices
        self._begun: int | None = None  # where the open span began
        self._watched: list[Tensor | Variable] = []
        self._is_used = self._is_open = False

    def __enter__(self) -> GradientTape:
        if self._is_open:
            raise ValueError("GradientTape: `with tape:` is inside of another block of this tape. Make a second one.")
        self._is_open = True
        graph = get_default_graph()
        if graph is not self._graph:
            self._graph = graph
            self._spans.clear()
        self._begun = len(graph.operations)
        self._tape.enter()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_open = False
        self._spans, self._begun = self._recorded_spans(), None
        self._tape.leave()

    def _recorded_spans(self) -> list[range]:
        """Return what was recorded of the graph so far."""
        return self._spans if self._begun is None else [*self._spans, range(self._begun, len(self._operations()))]

    def watch(self, tensor: Sources) -> None:
        """Record from now on what is computed from a tensor or variable (or a structure of them).

        Raises:
            TypeError: it is not a tensor or variable.
        """
        for item in flatten(tensor):
            _check_tensor(item, "watch")
            self._tape.watch(_flow_of(item))
        self._watched += flatten(tensor)

    def watched_variables(self) -> tuple[Variable, ...]:
        """Return the variables that were given to `watch`, and those that were read inside the block."""
        given = [item for item in self._watched if isinstance(item, Variable)]
        return tuple(dict.fromkeys([*given, *self._tape.variables(), *self._read_in_graph()]))

    def _read_in_graph(self) -> list[Variable]:
        """Return the trainable variables that recorded operations read, themselves or by an operation before them."""
        if not self.watch_accessed_variables:
            return []
        operations = self._operations()
        found: list[Variable] = []
        for operation in [operations[index] for span in self._recorded_spans() for index in span]:
            reads = [variable_read_by(tensor) for tensor in operation.inputs]
            inside = [effect.resource for effect in operation.effects if isinstance(effect.resource, Variable)]
            found += [variable for variable in (*reads, *inside) if variable is not None and variable.trainable]
        return found

    def reset(self) -> None:
        """Begin again here: what was computed so far is constant."""
        self._tape.reset()
        now = len(self._operations())
        self._spans, self._begun = [range(now, now)], now if self._is_open else None
        self._watched.clear()

    @contextmanager
    def stop_recording(self) -> Generator[None]:
        """Stop recording inside of the block: its results are constants."""
        self._spans, is_begun, self._begun = self._recorded_spans(), self._begun is not None, None
        with self._tape.paused():
            yield
        self._begun = len(self._operations()) if is_begun else None

    def gradient(
        self,
        target: Sources,
        sources: Sources,
        output_gradients: Arrays | None = None,
        unconnected_gradients: str | Enum = "none",
    ) -> Any:
        """Return the derivatives of the sum of `target` with respect to each of `sources`.

        Args:
            target: a tensor, or a structure of them.
            sources: a tensor or variable, or a structure of them.
            output_gradients: cotangents of `target`, in its structure, or in a list; ones by default, and for None.
            unconnected_gradients: for a source on which the target does not depend, "none" gives None, "zero" zeros.

        Returns:
            For each source its gradient, in the structure of `sources`: values, or symbols where the target is one. For
            a `ShardedVariable` it is a list of its shards' gradients.

        Raises:
            TypeError: target or sources are neither tensors nor variables.
            RuntimeError: the tape is not persistent and was used before.
        """
        self._use("gradient")
        absent = unconnected_choice(unconnected_gradients)
        wholes = flatten(sources)
        targets, items = [_flow_of(item) for item in flatten(target)], expanded(wholes)
        for role, given in (("target", targets), ("source", items)):
            for item in given:
                _check_tensor(item, role)
        seeds = cotangents_for(target, output_gradients)
        if len(seeds) != len(targets):
            raise ValueError(f"GradientTape.gradient(): {len(targets)} targets, but {len(seeds)} output_gradients.")
        if not any(isinstance(item, Symbol) for item in targets):
            read = [self._read(item) for item in targets]
            found = self._tape.gradient(read, [_flow_of(item) for item in items], seeds)
        else:
            found = gradients(targets, items, seeds, self._constants(targets), absent)
            found = [dx if self._watches(x) else None for x, dx in zip(items, found, strict=True)]
        if absent == "zero":
            found = [ops.zeros_like(x) if dx is None else dx for x, dx in zip(items, found, strict=True)]
        self._release()
        return _packed(sources, regrouped(wholes, found))

    def _read(self, target: TensorLike) -> Tensor:
        """Return the tensor that is differentiated: of a variable its value, read as inside of the tape."""
        with self._tape.recording():
            return ops.convert_to_tensor(target)

    def _release(self) -> None:
        """Let go of what was recorded, if it can't be used again."""
        if not self.persistent:
            self._tape.release()

    def jacobian(
        self,
        target: TensorLike,
        sources: Sources,
        unconnected_gradients: str | Enum = "none",
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """Return the derivative of each element of `target` by each element of `sources`; see `ab.jacobian`."""
        self._use("jacobian")
        with self._recorded(target):
            found = jacobian(
                self._read(target), sources, unconnected_choice(unconnected_gradients), parallel=experimental_use_pfor
            )
        self._release()
        return found

    def batch_jacobian(
        self,
        target: TensorLike,
        source: TensorLike,
        unconnected_gradients: str | Enum = "none",
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """Return the derivatives of each row of `target` by the same row of `source`; see `ab.batch_jacobian`."""
        self._use("batch_jacobian")
        with self._recorded(target):
            absent = unconnected_choice(unconnected_gradients)
            found = batch_jacobian(self._read(target), source, absent, parallel=experimental_use_pfor)
        self._release()
        return found

    def _recorded(self, target: object) -> AbstractContextManager[object]:
        """Return the block in which gradients of values are read from this tape."""
        return nullcontext() if any(isinstance(item, Symbol) for item in flatten(target)) else self._tape.asked()

    def _watches(self, source: object) -> bool:
        """Test whether a source counts: a variable that is trainable, or was given to `watch`, as outside of graphs."""
        if not isinstance(source, Variable) or (self.watch_accessed_variables and source.trainable):
            return True
        return any(source is item for item in expanded(self._watched))

    # --- what is constant -----------------------------------------------------------------------------------

    def _operations(self) -> list[Operation]:
        return get_default_graph().operations if self._graph is None else self._graph.operations

    def _use(self, what: str) -> None:
        if self._graph is None:
            raise RuntimeError(f"GradientTape.{what}(): the tape was not entered. Compute inside `with tape:`.")
        if self._is_used and not self.persistent:
            raise RuntimeError(
                f"GradientTape.{what}() was called on a tape that was used before. Make it with "
                "GradientTape(persistent=True) to use it more than once."
            )
        self._is_used = True

    def _constants(self, targets: Sequence[object]) -> list[Symbol]:
        """Return the tensors on the way to `targets` that were computed before the tape began, or while it paused."""
        found: dict[Symbol, None] = {}
        seen: set[Operation] = set()
        spans = self._recorded_spans()
        pending = [target for target in targets if isinstance(target, Symbol) and target.graph is self._graph]
        while pending:
            tensor = pending.pop()
            operation = tensor.operation
            # What is built behind the block counts, too: a mean of a loss, say.
            if operation.index < spans[-1].stop and not any(operation.index in span for span in spans):
                if operation.inputs and tensor.spec.differentiable:  # reads of variables and feeds are beginnings
                    found[tensor] = None
                continue
            if operation not in seen:
                seen.add(operation)
                pending += operation.inputs
        return list(found)


def _packed(sources: Sources, found: list[object]) -> Any:
    return found[0] if isinstance(sources, (Tensor, Variable, ShardedVariable)) else pack_as(sources, found)


def unconnected_choice(unconnected_gradients: str | Enum) -> str:
    """Return the word, from a word or an enum like ``tf.UnconnectedGradients``.

    Raises:
        ValueError: it is another word.
    """
    word = str(getattr(unconnected_gradients, "value", unconnected_gradients)).lower()
    check_unconnected(word, unconnected_gradients)
    return word


def _flow_of(item: object) -> Any:
    """Return a tensor or variable itself; of a TensorArray the tensor that stands for it."""
    return item if isinstance(item, (Tensor, Variable)) else getattr(item, "flow", item)


def _check_tensor(item: object, role: str) -> None:
    if isinstance(_flow_of(item), (Tensor, Variable, IndexedSlices)):
        return
    raise TypeError(
        f"GradientTape: {role} must be a tensor or a variable, got {type(item).__name__}. NumPy's arrays and functions "
        "leave nothing to differentiate: make tensors of arrays by ops.convert_to_tensor, and compute with ab.ops."
    )
