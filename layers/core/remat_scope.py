"""`RematScope`: layers whose inner values the backward pass computes again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from ...engine.autodiff.remat import run_again
from ...engine.graph import Symbol, Tensor
from ...engine.graph.op import Op

_MODES = ("full", "activations", "larger_than", "list_of_layers", None)


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.stack: list[RematScope] = []


_scopes = _Scopes()


class RematScope:
    """Layers that are made inside the block keep no inner values for the backward pass (``keras.RematScope``).

    The backward pass computes them again (see `anabranch.remat`), in steps of models and other graphs.

    Args:
        mode: which layers: "full" for all; "activations" for those with an activation, of which elementwise operations
            alone run again; "larger_than" for those with an output of more elements than `output_size_threshold`, the
            batch left out; "list_of_layers" for those of the names `layer_names`; None for none.
        output_size_threshold: a number of elements.
        layer_names: names of layers.

    Raises:
        ValueError: the mode is unknown.

    >>> import anabranch as ab
    >>> with ab.RematScope("list_of_layers", layer_names=["wide"]):
    ...     wide = ab.layers.Dense(512, "gelu", name="wide")
    >>> wide(ab.ops.zeros((2, 4))).shape
    (2, 512)
    """

    def __init__(
        self, mode: str | None = "full", output_size_threshold: int = 1024, layer_names: Sequence[str] | None = None
    ) -> None:
        if mode not in _MODES:
            raise ValueError(f"RematScope: mode must be one of {', '.join(map(repr, _MODES))}; got {mode!r}.")
        self.mode = mode
        self.output_size_threshold = output_size_threshold
        self.layer_names = list(layer_names or ())

    def __enter__(self) -> RematScope:
        _scopes.stack.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _scopes.stack.remove(self)

    def call(self, name: str, has_activation: bool, call: Callable[[], object], tensors: Sequence[Tensor]) -> object:
        """Return what the call of a layer gives, with inner values that are computed again where the scope says so."""
        if self.mode == "larger_than":
            return run_again(call, tensors, self._is_large)
        if self.mode == "full" or (self.mode == "list_of_layers" and name in self.layer_names):
            return run_again(call, tensors)
        if self.mode == "activations" and has_activation:
            return run_again(call, tensors, only=_is_elementwise)
        return call()

    def _is_large(self, results: list[Symbol]) -> bool:
        return any(
            math.prod(size or 1 for size in (result.shape or ())[1:]) > self.output_size_threshold for result in results
        )


def current_remat_scope() -> RematScope | None:
    """Return the innermost scope around, or None."""
    return _scopes.stack[-1] if _scopes.stack else None


def _is_elementwise(op: Op) -> bool:
    return op.elementwise
