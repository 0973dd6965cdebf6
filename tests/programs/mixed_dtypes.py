"""Random operations on arrays of mixed dtypes, whose results are the same bits in whichever order sums are added up.

Floats are multiples of a quarter between -8 and 8: what grows or has other fractions is cut back to that. So the
interpreter, compiled steps and kernels agree on every bit, with casts, comparisons and roundings among the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import anabranch as ab
from anabranch.engine.common.dtypes import as_dtype, is_floating
from anabranch.engine.graph.tensor import symbol_of

ops = ab.ops
SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
HALVES, FLOATS = ("float16", "bfloat16"), ("float32", "float64")
DTYPES = (*SIGNED, *UNSIGNED, *HALVES, *FLOATS, "bool")
SIZES = (0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33)
_LARGEST = 3000  # elements
_OperationOn = Callable[..., Any]


@dataclass(frozen=True)
class Choice:
    """An operation on earlier values.

    Attributes:
        name: what a failure prints.
        apply: makes its value.
        arguments: the numbers of the values that it takes.
    """

    name: str
    apply: _OperationOn
    arguments: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


def draw(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Return an array; a third of the integers are those at the ends of their dtype."""
    kind = as_dtype(dtype)
    if kind == np.bool_:
        return np.asarray(random.random(shape) < 0.5)
    if kind.kind not in "iu":
        return np.asarray(random.integers(-12, 13, shape) / 4).astype(kind)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    ends = np.array([low, high, low + 1, high - 1, 0, 1], kind)[random.integers(6, size=shape)]
    small = np.asarray(random.integers(-9 * (kind.kind == "i"), 10, shape)).astype(kind)
    return np.where(random.random(shape) < 0.3, ends, small).astype(kind)


def settled(x: Any) -> Any:
    """Return a value whose floats are multiples of a quarter between -8 and 8."""
    tensor = ops.convert_to_tensor(x)
    return ops.round(ops.clip(tensor, -8, 8) * 4) / 4 if is_floating(tensor.dtype) else tensor


def fitted(x: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a value in another shape, of its sum where it can't be broadcast there, and of another dtype."""
    if not _broadcasts(tuple(x.shape), shape):
        x = ops.any(x) if x.dtype == np.bool_ else ops.sum(x)
    return settled(_cast(ops.broadcast_to(settled(x), shape), dtype))


def _cast(x: Any, dtype: Any) -> Any:
    """Cast, but for floats that the dtype can't hold: these may become anything."""
    kind = as_dtype(dtype)
    bounded = is_floating(x.dtype) and kind.kind in "iu"
    return ops.cast(ops.clip(x, 0, 100) if bounded else x, kind)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


# --- operations -------------------------------------------------------------------------------------------------------


def _functions(names: str) -> dict[str, _OperationOn]:
    return {name: getattr(ops, name) for name in names.split()}


_UNARY: dict[str, dict[str, _OperationOn]] = {
    "float": {
        **_functions("abs ceil floor isfinite isnan negative relu relu6 round sign signbit square trunc"),
        "half": lambda x: x * 0.5,
        "is positive": lambda x: x > 0,
        "plus 1": lambda x: 1 + x,
    },
    "integer": {
        **_functions("abs bitwise_invert logical_not negative sign square"),
        "times 3": lambda x: x * 3,
        "by 3": lambda x: x // 3,
        "modulo 3": lambda x: x % 3,
        "shifted left": lambda x: x << 3,
        "shifted right": lambda x: x >> 2,
        "is odd": lambda x: ops.cast(x & 1, "bool"),
    },
    "bool": _functions("logical_not bitwise_invert"),
}
_COMPARED = _functions(
    "equal greater less less_equal logical_and logical_or logical_xor maximum minimum not_equal add multiply subtract"
)
_BINARY: dict[str, dict[str, _OperationOn]] = {
    "integer": {
        **_COMPARED,
        **_functions("bitwise_and bitwise_or bitwise_xor floor_divide fmod gcd left_shift mod right_shift"),
        "power": lambda x, y: x ** (ops.abs(y) % 4),
    },
    "other": {**_COMPARED, **_functions("squared_difference")},
}
_REDUCTIONS = {
    "float": _functions("max min sum any all count_nonzero"),
    "integer": _functions("max min sum prod any all count_nonzero"),
    "bool": _functions("any all sum count_nonzero"),
}
_ALONG = {
    "float": _functions("argmax argmin cumsum sort"),
    "integer": _functions("argmax argmin argsort cumprod cumsum sort"),
    "bool": _functions("argmax"),
}


def _kind(x: Any) -> str:
    return "bool" if x.dtype == np.bool_ else "float" if is_floating(x.dtype) else "integer"


def _among(random: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[int(random.integers(len(choices)))]


def choose(random: np.random.Generator, values: Sequence[Any]) -> Choice | None:
    """Return an operation on some of `values`, which may not be possible; None for none."""
    place = int(random.integers(len(values))) if random.random() < 0.6 else len(values) - 1
    x, share = values[place], random.random()
    if share < 0.2:
        name, apply = _among(random, [*_UNARY[_kind(x)].items()])
        return Choice(name, apply, (place,))
    if share < 0.45:
        return _pair(random, values, place)
    if share < 0.52:
        conditions = [k for k, value in enumerate(values) if value.dtype == np.bool_]
        other = int(random.integers(len(values)))
        return Choice("where", ops.where, (_among(random, conditions), place, other)) if conditions else None
    if share < 0.6:
        dtype = _among(random, DTYPES)
        return Choice(f"cast[{dtype}]", lambda x: _cast(x, dtype), (place,))
    if not x.shape:
        return None
    return _reduction(random, x, place) if share < 0.75 else _view(random, values, place)


def _pair(random: np.random.Generator, values: Sequence[Any], place: int) -> Choice:
    """Return an operation on two values, mostly of one dtype."""
    x = values[place]
    alike = [k for k, value in enumerate(values) if value.dtype == x.dtype or random.random() < 0.3]
    other = _among(random, alike)
    is_integer = _kind(x) == "integer" and values[other].dtype == x.dtype
    name, apply = _among(random, [*_BINARY["integer" if is_integer else "other"].items()])
    return Choice(name, apply, (place, other))


def _reduction(random: np.random.Generator, x: Any, place: int) -> Choice:
    rank = len(x.shape)
    if random.random() < 0.4:
        name, along = _among(random, [*_ALONG[_kind(x)].items()])
        axis = int(random.integers(rank))
        return Choice(f"{name}[{axis}]", lambda x: along(x, axis=axis), (place,))
    axes = tuple(sorted(map(int, random.choice(rank, int(random.integers(1, rank + 1)), replace=False))))
    name, reduce = _among(random, [*_REDUCTIONS[_kind(x)].items()])
    return Choice(f"{name}[{axes}]", lambda x: reduce(x, axis=axes), (place,))


def _view(random: np.random.Generator, values: Sequence[Any], place: int) -> Choice | None:
    """Return an operation that moves elements, along one axis or all."""
    x = values[place]
    rank, axis = len(x.shape), int(random.integers(len(x.shape)))
    size, before = x.shape[axis], (slice(None),) * axis
    steps = [int(step) for step in random.integers(-5, 6, 3)]
    start, stop = [step if random.random() < 0.7 else None for step in steps[:2]]
    part = slice(start, stop, steps[2] or None)
    order = tuple(map(int, random.permutation(rank)))
    widths = tuple((int(low), int(high)) for low, high in random.integers(0, 3, (rank, 2)))
    spread = tuple(int(random.choice([1, 2, 7])) if dim == 1 else int(dim) for dim in x.shape)
    taken = [int(index) for index in random.integers(0, max(size, 1), int(random.integers(1, 5)))]
    views: dict[str, _OperationOn] = {
        f"transpose[{order}]": lambda x: ops.transpose(x, order),
        f"flip[{axis}]": lambda x: ops.flip(x, axis=axis),
        f"roll[{steps[0]}, {axis}]": lambda x: ops.roll(x, steps[0], axis=axis),
        f"part[{axis}, {part}]": lambda x: x[(*before, part)],
        f"pad[{widths}]": lambda x: ops.pad(x, widths),
        f"broadcast_to[{spread}]": lambda x: ops.broadcast_to(x, spread),
        "reshape": lambda x: ops.reshape(x, (-1,)),
        f"expand_dims[{axis}]": lambda x: ops.expand_dims(x, axis),
        f"repeat[{axis}]": lambda x: ops.repeat(x, 2, axis=axis),
    }
    if size:
        views[f"take[{taken}, {axis}]"] = lambda x: ops.take(x, taken, axis=axis)
        views[f"element[{axis}, {taken[0]}]"] = lambda x: x[(*before, taken[0])]
    name, apply = _among(random, [*views.items()])
    if random.random() < 0.85:
        return Choice(name, apply, (place,))
    alike = [k for k, value in enumerate(values) if value.dtype == x.dtype and len(value.shape) == rank]
    return Choice(
        f"concatenate[{axis}]", lambda x, y: ops.concatenate([x, y], axis=axis), (place, _among(random, alike))
    )


def grow(random: np.random.Generator, values: list[Any], count: int) -> Iterator[Choice]:
    """Add up to `count` results of random operations to `values`, symbols of the current graph, and yield them."""
    for _ in range(8 * count):
        choice = choose(random, values) if count else None
        if choice is None:
            continue
        try:
            result = settled(choice.apply(*[values[k] for k in choice.arguments]))
        except (TypeError, ValueError, IndexError):  # shapes or dtypes that do not go together
            continue
        if np.prod(result.shape, dtype=int) <= _LARGEST:
            values.append(result)
            count -= 1
            yield choice


def repeat(choices: Sequence[Choice], values: list[Any]) -> None:
    """Add the results of the same operations to other values."""
    for choice in choices:
        values.append(settled(choice.apply(*[values[k] for k in choice.arguments])))


def placeholders(random: np.random.Generator, count: int, is_open: bool = False) -> dict[Any, Any]:
    """Return placeholders of a few sizes and dtypes, some of them of unknown sizes, with their values."""
    sizes = [int(size) for size in random.choice(SIZES, 3)]
    kinds, feeds = [str(dtype) for dtype in random.choice(DTYPES, 3)], {}
    for number in range(count):
        axes = sorted(random.choice(3, int(random.integers(0, 4)), replace=False))
        shape = tuple(sizes[axis] if random.random() < 0.8 else 1 for axis in axes)
        shape = shape if np.prod(shape) <= _LARGEST else shape[:1]
        value = draw(random, shape, _among(random, kinds))
        known = [None if is_open and random.random() < 0.3 else size for size in shape]
        feeds[symbol_of(ab.placeholder(tuple(known), value.dtype, f"x{number}"))] = value
    return feeds


__all__ = ["Choice", "choose", "draw", "fitted", "grow", "placeholders", "repeat", "settled"]
