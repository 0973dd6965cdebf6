"""Whether a call of a loss or metric builds graph or acts at once, and how it then acts: through a `Function`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..engine.graph import Tensor, Variable, flatten, in_explicit_graph, in_stateless_scope
from ..engine.ops.base import as_array
from ..engine.session import Function


def is_symbolic(*values: Any) -> bool:
    """Whether a call with these arguments adds to a graph: one is being built, or there is a tensor among them."""
    return in_explicit_graph() or in_stateless_scope() or any(isinstance(leaf, Tensor) for leaf in flatten(values))


def as_argument(value: Any) -> Any:
    """`value` as one argument of a `Function`: numbers and (nested) lists of them as an array, the rest unchanged."""
    if value is None or isinstance(value, (str, bool, Variable)):
        return value
    if isinstance(value, dict):
        return {key: as_argument(item) for key, item in value.items()}
    return as_array(value)


def mask_of(value: Any) -> Any:
    """The mask that came with a tensor: which of its entries count; None if all do."""
    return value.annotations.get("mask") if isinstance(value, Tensor) else None


def computed_at_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``function(y_true, y_pred, **options)``, written over tensors, take arrays as well and return arrays then.

    It is traced once for each combination of options and input specs.
    """
    names = list(inspect.signature(function).parameters)[2:]

    @functools.lru_cache(maxsize=256)
    def compiled(options: tuple[tuple[str, Any], ...]) -> Function:
        return Function(functools.partial(function, **dict(options)))

    @functools.wraps(function)
    def call(y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        if is_symbolic(y_true, y_pred):
            return function(y_true, y_pred, *args, **kwargs)
        if len(args) > len(names):
            raise TypeError(f"{function.__name__}() takes {len(names) + 2} arguments, got {len(args) + 2}.")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        return compiled(tuple(sorted(options.items())))(as_argument(y_true), as_argument(y_pred))

    return call
