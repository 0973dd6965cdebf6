"""Patterns of operations: what a graph computes, found from its operations and not from the layer that built them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine.graph.tensor import Symbol
from ....engine.ops.base import Constant
from .registry import attribute

if TYPE_CHECKING:
    from collections.abc import Sequence

Bindings = dict[str, Any]
_EITHER_WAY = {"add", "multiply"}
ACTIVATIONS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu"}


def match(symbol: Symbol, pattern: Any, found: Bindings) -> Bindings | None:
    """Return what the variables of a pattern stand for, or None if the pattern is another.

    Args:
        symbol: the result of what is looked at.
        pattern: ``"?name"`` is any value, the same wherever the name stands. A number is a constant. ``("op", ...)`` is
            an operation over patterns, ``("part", k, p)`` output k of a split, ``("apply", "?f", p)`` an activation,
            ``("item", items, p)`` a part by these items, ``("columns", "items", p)`` a part by items that are noted.
        found: what is known of the variables already.
    """
    if isinstance(pattern, str):
        known = found.get(pattern)
        if known is not None:
            return found if known is symbol else None
        return {**found, pattern: symbol}
    operation = symbol.operation
    if isinstance(pattern, (int, float)):
        op = operation.op
        return found if isinstance(op, Constant) and np.ndim(op.value) == 0 and op.value == pattern else None
    kind, *rest = pattern
    if kind == "part":
        number, inner = rest
        if operation.type != "split" or symbol.index != number:
            return None
        return match(operation.inputs[0], inner, {**found, "split": operation})
    if kind == "item":
        items, inner = rest
        if operation.type != "get_item" or attribute(operation, "items", tuple) != items:
            return None
        return match(operation.inputs[0], inner, found)
    if kind == "columns":
        name, inner = rest
        if operation.type != "get_item":
            return None
        return match(operation.inputs[0], inner, {**found, name: attribute(operation, "items", tuple)})
    if kind == "apply":
        name, inner = rest
        if operation.type not in ACTIVATIONS or found.get(name, operation.type) != operation.type:
            return None
        return match(operation.inputs[0], inner, {**found, name: operation.type})
    if operation.type != kind or len(operation.inputs) != len(rest):
        return None
    straight = _match_all(operation.inputs, rest, found)
    if straight is None and kind in _EITHER_WAY:
        return _match_all(operation.inputs[::-1], rest, found)
    return straight


def _match_all(symbols: Sequence[Symbol], patterns: Sequence[object], found: Bindings | None) -> Bindings | None:
    for symbol, pattern in zip(symbols, patterns, strict=True):
        if found is None:
            return None
        found = match(symbol, pattern, found)
    return found


def match_any(symbol: Symbol, patterns: Mapping[str, object], found: Bindings) -> tuple[str, Bindings] | None:
    """Return the name of the first pattern that fits, and what its variables stand for."""
    for name, pattern in patterns.items():
        bound = match(symbol, pattern, found)
        if bound is not None:
            return name, bound
    return None
