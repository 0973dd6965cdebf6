"""Patterns of operations: what a graph computes, found from its operations and not from the layer that built them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine.graph.graph import Operation
from ....engine.graph.tensor import Symbol
from ....engine.ops.arrays.indexing import Place, SliceItem
from ....engine.ops.base import Constant
from ....engine.passes.loops.loop_sizes import outermost
from .registry import attribute, axes_of

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
        operation = outermost(symbol).operation  # rows of what a loop captures are taken before it
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


# --- values that rise or fall along an axis -------------------------------------------------------------------------

_SAFE = 2**24  # sums of a constant below it and of a count along an axis stay within all integers of 32 bits
_OPPOSITE = {"up": "down", "down": "up", "same": "same"}
_COMPARED = {"less": 1, "less_equal": 1, "greater": -1, "greater_equal": -1}


def is_prefix(mask: Symbol, axis: int) -> bool:
    """Test whether a mask is, for all values, True up to some place of an axis and False behind it.

    Such a mask comes from lengths: ``arange(time) < lengths[:, None]`` or what computes the same.

    Args:
        mask: bools.
        axis: counted from the last, below 0.
    """
    return mask.dtype.kind == "b" and _trend(mask, axis) in ("down", "same")


def _trend(x: Symbol, axis: int) -> str | None:
    """Return whether values never fall along an axis, "up", never rise, "down", or are the "same"; else None."""
    x = outermost(x)
    if x.shape is None:
        return None
    if -axis > len(x.shape) or x.shape[axis] in (0, 1):
        return "same"  # as where it is broadcast
    operation = x.operation
    if isinstance(operation.op, Constant):
        return _trend_of(np.asarray(operation.op.value), axis)
    rule = _TRENDS.get(operation.type)
    return None if rule is None else rule(operation, axis)


def _trend_of(array: Any, axis: int) -> str | None:
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and np.isnan(array).any()):
        return None
    array = np.moveaxis(array, axis, 0)
    if (array[1:] == array[:-1]).all():
        return "same"
    if (array[1:] >= array[:-1]).all():
        return "up"
    return "down" if (array[1:] <= array[:-1]).all() else None


def _of_range(operation: Operation, axis: int) -> str | None:
    step = operation.inputs[2].operation.op
    return "up" if isinstance(step, Constant) and step.value > 0 else None


def _of_cast(operation: Operation, axis: int) -> str | None:
    """Return the trend of a cast, where that keeps the order of all values."""
    (x,) = operation.inputs
    before, after = x.dtype, operation.outputs[0].dtype
    if before.kind not in "biuf":
        return None
    if after.kind == "b":  # numbers are true on both sides of 0, unless they were bools
        while x.operation.type == "cast":
            (x,) = x.operation.inputs
        return _trend(x, axis) if x.dtype.kind == "b" else None
    is_kept = np.can_cast(before, after) or (before.kind in "iu" and after.kind == "f" and after.itemsize > 2)
    return _trend(x, axis) if is_kept else None


def _of_sum(operation: Operation, axis: int) -> str | None:
    """Return the trend of a sum with a constant."""
    for constant, x in (operation.inputs, operation.inputs[::-1]):
        value = constant.operation.op
        if isinstance(value, Constant) and np.ndim(value.value) == 0 and abs(value.value) < _SAFE:
            return _trend(x, axis) if x.dtype.itemsize >= 4 else None
    return None


def _of_comparison(operation: Operation, axis: int) -> str | None:
    """Return the trend of ``x < y``, which falls where x rises and y does not."""
    x, y = (_trend(each, axis) for each in operation.inputs)
    if _COMPARED[operation.type] < 0:
        x, y = y, x
    return None if x is None or y is None else _joined([_OPPOSITE[x], y])


def _of_both(operation: Operation, axis: int) -> str | None:
    if any(each.dtype.kind != "b" for each in operation.inputs):
        return None
    return _joined([_trend(each, axis) for each in operation.inputs])


def _joined(trends: Sequence[str | None]) -> str | None:
    """Return the trend of what rises and falls with each of some values."""
    ways = {*trends} - {"same"}
    return "same" if not ways else ways.pop() if len(ways) == 1 else None


def _of_inverse(operation: Operation, axis: int) -> str | None:
    found = _of_both(operation, axis)
    return None if found is None else _OPPOSITE[found]


def _of_flip(operation: Operation, axis: int) -> str | None:
    x, axes = operation.inputs[0], axes_of(operation)
    rank = len(x.shape or ())
    turned = axes is None or axis in [each if each < 0 else each - rank for each in axes]
    found = _trend(x, axis)
    return found if found is None or not turned else _OPPOSITE[found]


def _of_transpose(operation: Operation, axis: int) -> str | None:
    x, axes = operation.inputs[0], axes_of(operation)
    rank = len(x.shape or ())
    places = list(range(rank))[::-1] if axes is None else [each % rank for each in axes]
    return _trend(x, places[axis] - rank)


def _of_new_axes(operation: Operation, axis: int) -> str | None:
    x, rank = operation.inputs[0], len(operation.outputs[0].shape or ())
    new = {each % rank for each in attribute(operation, "axes", tuple)}
    own = [place for place in range(rank) if place not in new]
    return _trend(x, own.index(axis % rank) - len(own))


def _of_fewer_axes(operation: Operation, axis: int) -> str | None:
    x = operation.inputs[0]
    rank = len(x.shape or ())
    axes = attribute(operation, "axes", tuple)
    if axes is None:
        return None
    gone = {each % rank for each in axes}
    kept = [place for place in range(rank) if place not in gone]
    return _trend(x, kept[axis] - rank)


def _of_part(operation: Operation, axis: int) -> str | None:
    """Return the trend of a part of a value: by slices, integers, Nones and an ellipsis, but not by arrays."""
    x = operation.inputs[0]
    rank, items = len(x.shape or ()), list(attribute(operation, "items", tuple))
    if any(item is Place.INPUT for item in items):
        return None
    rest = [SliceItem()] * (rank - sum(isinstance(item, (SliceItem, int)) for item in items))
    place = items.index(Ellipsis) if Ellipsis in items else len(items)
    items[place : place + 1] = rest
    kept: list[tuple[SliceItem | None, int]] = []  # the slice of each axis of the part, and its place in the value
    source = 0
    for item in items:
        if not isinstance(item, int):
            kept.append((item, source))
        source += item is not None
    taken, source = kept[axis]
    if taken is None:
        return "same"
    if taken.step is Place.INPUT:
        return None
    found = _trend(x, source - rank)
    return found if found is None or taken.step is None or taken.step > 0 else _OPPOSITE[found]


def _of_choice(operation: Operation, axis: int) -> str | None:
    """Return the trend of one constant where a mask is True, else of another."""
    mask, one, other = operation.inputs
    values = [each.operation.op for each in (one, other)]
    if not all(isinstance(each, Constant) and np.ndim(each.value) == 0 for each in values):
        return None
    raised, lowered = (float(each.value) for each in values if isinstance(each, Constant))
    if raised == lowered or np.isnan([raised, lowered]).any():
        return "same" if raised == lowered else None
    found = _trend(mask, axis)
    return found if found is None or raised > lowered else _OPPOSITE[found]


def _of_equality(operation: Operation, axis: int) -> str | None:
    """Return the trend of ``mask == 1``, ``mask != 0`` and the like, of a mask that was cast to numbers."""
    for constant, x in (operation.inputs, operation.inputs[::-1]):
        value = constant.operation.op
        while x.operation.type == "cast":
            (x,) = x.operation.inputs
        if isinstance(value, Constant) and np.ndim(value.value) == 0 and value.value in (0, 1) and x.dtype.kind == "b":
            found = _trend(x, axis)
            is_mask = bool(value.value) == (operation.type == "equal")
            return found if found is None or is_mask else _OPPOSITE[found]
    return None


def _of_extremum(operation: Operation, axis: int) -> str | None:
    return _joined([_trend(each, axis) for each in operation.inputs])


def _of_same(operation: Operation, axis: int) -> str | None:
    return _trend(operation.inputs[0], axis)


_TRENDS: Mapping[str, Callable[[Operation, int], str | None]] = {
    "range": _of_range,
    "cast": _of_cast,
    "add": _of_sum,
    **dict.fromkeys(_COMPARED, _of_comparison),
    "equal": _of_equality,
    "not_equal": _of_equality,
    "minimum": _of_extremum,
    "maximum": _of_extremum,
    "bitwise_and": _of_both,
    "bitwise_or": _of_both,
    "logical_not": _of_inverse,
    "flip": _of_flip,
    "transpose": _of_transpose,
    "expand_dims": _of_new_axes,
    "squeeze": _of_fewer_axes,
    "get_item": _of_part,
    "where": _of_choice,
    "broadcast_to": _of_same,
    "identity": _of_same,
}
