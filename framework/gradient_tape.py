"""`GradientTape`: gradients in the words of TensorFlow, over the graph that is being built."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ..engine.autodiff import gradients
from ..engine.control_flow.jacobian import batch_jacobian, jacobian
from ..engine.graph import Graph, IndexedSlices, Operation, Tensor, Variable, flatten, get_default_graph, pack_as


class GradientTape:
    """A span of the program whose results can be differentiated, as ``tf.GradientTape``.

    Args:
        persistent: let `gradient` and `jacobian` be called more than once.
        watch_accessed_variables: accepted as in TensorFlow; variables need not be watched.

    Nothing is recorded: the graph has it all, and `gradient` builds `ab.gradients`. Only the beginning counts: what was
    computed before the block is a constant for it, so that a target made outside is not differentiated. Tapes may be
    nested, for derivatives of higher order. Use it in `Model.train_step`, in a function under `ab.function`, or in a
    graph; what ran at once (a layer called on arrays) has left no graph to differentiate.

    >>> import anabranch as ab
    >>> @ab.function
    ... def slope_and_curvature(x):
    ...     with ab.GradientTape() as outer:
    ...         outer.watch(x)
    ...         with ab.GradientTape() as inner:
    ...             inner.watch(x)
    ...             y = x * x * x
    ...         slope = inner.gradient(y, x)
    ...     return slope, outer.gradient(slope, x)
    >>> [float(value) for value in slope_and_curvature(2.0)]
    [12.0, 12.0]
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self.persistent = persistent
        self.watch_accessed_variables = watch_accessed_variables
        self._graph: Graph | None = None
        self._start = 0
        self._pauses: list[tuple[int, int]] = []
        self._watched: list[Any] = []
        self._is_used = False

    def __enter__(self) -> GradientTape:
        self._graph = get_default_graph()
        self._start = len(self._graph.operations)
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def watch(self, tensor: Any) -> None:
        """Say that gradients with respect to a tensor (or a structure of them) will be asked for.

        Raises:
            TypeError: it is no tensor or variable.
        """
        for item in flatten(tensor):
            _check_symbolic(item, "watch")
        self._watched += flatten(tensor)

    def watched_variables(self) -> list[Variable]:
        """The variables that were given to `watch`."""
        return [item for item in self._watched if isinstance(item, Variable)]

    def reset(self) -> None:
        """Begin again here: what was computed so far is constant."""
        self.__enter__()
        self._pauses.clear()
        self._watched.clear()

    @contextmanager
    def stop_recording(self) -> Generator[None]:
        """A span within the block whose results are constants."""
        first = len(self._operations())
        yield
        self._pauses.append((first, len(self._operations())))

    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, unconnected_gradients: Any = "none"
    ) -> Any:
        """The derivatives of the sum of `target` with respect to each of `sources`.

        Args:
            target: a tensor, or a structure of them.
            sources: a tensor or variable, or a structure of them.
            output_gradients: cotangents of `target`, of its shapes; ones by default.
            unconnected_gradients: for a source on which the target does not depend, "none" gives None, "zero" zeros.

        Returns:
            For each source its gradient, in the structure of `sources`.

        Raises:
            TypeError: target or sources are arrays that were computed at once, not tensors.
            RuntimeError: the tape is not persistent and was used before.
        """
        self._use("gradient")
        items = flatten(sources)
        for role, given in (("target", flatten(target)), ("source", items)):
            for item in given:
                _check_symbolic(item, role)
        found = gradients(
            target,
            items,
            grad_ys=output_gradients,
            stop_gradients=self._constants(flatten(target)),
            unconnected_gradients=_choice(unconnected_gradients),
        )
        return _packed(sources, found)

    def jacobian(
        self,
        target: Any,
        sources: Any,
        unconnected_gradients: Any = "none",
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """The derivative of each element of `target` by each element of `sources`; see `ab.jacobian`."""
        self._use("jacobian")
        return jacobian(target, sources, _choice(unconnected_gradients), parallel=experimental_use_pfor)

    def batch_jacobian(
        self,
        target: Any,
        source: Any,
        unconnected_gradients: Any = "none",
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """The derivatives of each row of `target` by the same row of `source`; see `ab.batch_jacobian`."""
        self._use("batch_jacobian")
        return batch_jacobian(target, source, _choice(unconnected_gradients), parallel=experimental_use_pfor)

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

    def _constants(self, targets: list[Any]) -> list[Tensor]:
        """The tensors on the way to `targets` that were computed before the tape began, or while it paused."""
        found: dict[Tensor, None] = {}
        seen: set[Operation] = set()
        pending = [target for target in targets if isinstance(target, Tensor) and target.graph is self._graph]
        while pending:
            tensor = pending.pop()
            operation = tensor.operation
            if not self._is_recorded(operation):
                if operation.inputs and tensor.spec.differentiable:  # reads of variables and feeds are beginnings
                    found[tensor] = None
                continue
            if operation not in seen:
                seen.add(operation)
                pending += operation.inputs
        return list(found)

    def _is_recorded(self, operation: Operation) -> bool:
        index = operation.index
        return index >= self._start and not any(first <= index < last for first, last in self._pauses)


def _packed(sources: Any, found: list[Any]) -> Any:
    return found[0] if isinstance(sources, (Tensor, Variable)) else pack_as(sources, found)


def _choice(unconnected_gradients: Any) -> str:
    """The word, from a word or an enum like ``tf.UnconnectedGradients``."""
    return str(getattr(unconnected_gradients, "value", unconnected_gradients)).lower()


def _check_symbolic(item: Any, role: str) -> None:
    if isinstance(getattr(item, "flow", item), (Tensor, Variable, IndexedSlices)):
        return
    raise TypeError(
        f"GradientTape: {role} must be a tensor or a variable, got {type(item).__name__}. Layers called on arrays run "
        "at once and leave nothing to differentiate: put the computation into train_step(), or into a function under "
        "@ab.function."
    )
