"""Indexing as in NumPy: ``x[...]``, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from types import EllipsisType, NoneType
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.nest import is_integer
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Op, Sample, as_scalar_or_array
from ...graph.spec import Shape, TensorSpec, broadcast_shapes, shape_text
from ...graph.state.variable import Variable
from ...graph.tensor import Tensor
from .. import row_rules
from ..base import TensorLike, apply, convert_to_tensor, make_constant, unchanged
from ..containers.contributions import Contribution, rows_of
from ..run_time_shapes import runtime_shape
from .adding import add_at
from .shaping import constant_value

# --- keys: what stands between the brackets --------------------------------------------------------------------------


# Untyped, so that a check leaves the static type of what is checked as it is.
_INTEGERS: Any = (int, np.integer)
_SLICE: Any = slice
_TUPLE: Any = tuple


class Place(Enum):
    """A place in a key that the next of the op's further inputs fills."""

    INPUT = "input"


Bound = int | Place | None


@dataclass(frozen=True)
class SliceItem:
    """A slice whose bounds are known, absent, or inputs."""

    start: Bound = None
    stop: Bound = None
    step: Bound = None

    def resolve(self, inputs: Iterator[Any]) -> Any:
        bounds = [next(inputs) if b is Place.INPUT else b for b in (self.start, self.stop, self.step)]
        return slice(*[None if b is None else int(b) for b in bounds])

    def text(self, names: Iterator[str]) -> str:
        start, stop, step = (
            "" if b is None else next(names) if b is Place.INPUT else str(b) for b in (self.start, self.stop, self.step)
        )
        return f"{start}:{stop}" + (f":{step}" if step else "")

    def length(self, size: int | None) -> int | None:
        """Return the number of elements of an axis of `size` that the slice takes, if that is known."""
        if self == _WHOLE:
            return size
        if size is None or Place.INPUT in (self.start, self.stop, self.step):
            return None
        return len(range(*self.resolve(iter(())).indices(size)))


_WHOLE = SliceItem()
Item = int | Place | SliceItem | EllipsisType | None
Items = tuple[Item, ...]


def _resolve(items: Items, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return the key at run time."""
    remaining = iter(inputs)
    return tuple(
        next(remaining) if item is Place.INPUT else item.resolve(remaining) if isinstance(item, SliceItem) else item
        for item in items
    )


def _key_text(items: Items, names: Sequence[str]) -> str:
    remaining = iter(names)
    parts: list[str] = []
    for item in items:
        if item is Place.INPUT:
            parts.append(next(remaining))
        elif isinstance(item, SliceItem):
            parts.append(item.text(remaining))
        else:
            parts.append("..." if item is Ellipsis else repr(item))
    return ", ".join(parts)


def _parse_key(key: Any, spec: TensorSpec) -> tuple[list[Item], list[Tensor]]:
    """Return a key of what `spec` says as items and the tensors that fill their places.

    Raises:
        TypeError, IndexError: an entry is not an index.
    """
    items: list[Item] = []
    inputs: list[Tensor] = []
    masks: list[tuple[int, TensorSpec]] = []  # those that are known, and where among the items what they pick begins
    for entry in key if isinstance(key, _TUPLE) else (key,):
        known = _known_mask(entry)
        if known is None:
            _parse_entry(entry, items, inputs)
            continue
        masks.append((len(items), TensorSpec(known.shape, known.dtype)))
        for positions in np.nonzero(known):  # what a known mask picks is known too, and so is its shape
            items.append(Place.INPUT)
            inputs.append(make_constant(positions.astype("int32")))
    if items.count(Ellipsis) > 1:
        raise IndexError("an index can hold only one ellipsis ('...').")
    if spec.shape is not None:
        for place, mask in masks:
            _check_pick(spec, _axis_of(place, items, _specs(inputs), spec), Place.INPUT, mask)
    return items, inputs


def _known_mask(entry: Any) -> Any:
    """Return the mask of at least one axis that an entry of a key is, if its value is known."""
    if isinstance(entry, list) or (isinstance(entry, (np.ndarray, Tensor, Variable)) and entry.dtype == dtypes.bool_):
        tensor = convert_to_tensor(entry)
        return constant_value(tensor) if tensor.shape and tensor.dtype == dtypes.bool_ else None
    return None


def _axis_of(place: int, items: Sequence[Item], specs: Sequence[TensorSpec], spec: TensorSpec) -> int:
    """Return the axis of a value of known rank at which the item at a place begins."""
    ranks, before = _mask_ranks(specs), items[:place]
    skipped = len(spec.shape or ()) - _used_axes(items, ranks) if Ellipsis in before else 0
    return _used_axes(before, ranks) + skipped


def _parse_entry(entry: Any, items: list[Item], inputs: list[Tensor]) -> None:
    if entry is None or entry is Ellipsis:
        items.append(entry)
    elif isinstance(entry, (bool, np.bool_)):
        raise TypeError(f"{entry} is no index: a boolean mask needs at least one axis. For a new axis write None.")
    elif isinstance(entry, _INTEGERS):
        items.append(int(entry))
    elif isinstance(entry, _SLICE):
        bounds: list[Any] = [entry.start, entry.stop, entry.step]
        items.append(SliceItem(*[_parse_bound(bound, inputs) for bound in bounds]))
    else:
        _parse_array(entry, items, inputs)


def _parse_bound(bound: Any, inputs: list[Tensor]) -> Bound:
    if bound is None:
        return None
    if isinstance(bound, _INTEGERS):
        return int(bound)
    if not isinstance(bound, (Tensor, Variable)):
        raise TypeError(f"{bound!r} is no slice bound: expected an integer, an integer scalar tensor or None.")
    tensor = convert_to_tensor(bound)
    if not dtypes.is_integer(tensor.dtype) or tensor.shape not in (None, ()):
        raise TypeError(f"{tensor!r} is no slice bound: expected an integer scalar. Cast it with ops.cast.")
    known = constant_value(tensor)
    if known is not None:
        return int(known)
    inputs.append(tensor)
    return Place.INPUT


def _parse_array(entry: Any, items: list[Item], inputs: list[Tensor]) -> None:
    tensor = convert_to_tensor(entry, "int32" if isinstance(entry, list) and not entry else None)
    known = constant_value(tensor)
    mask = tensor.dtype == dtypes.bool_
    if not mask and not dtypes.is_integer(tensor.dtype):
        raise TypeError(
            f"Index {tensor!r} is of dtype {tensor.dtype}; expected integers or bools. Cast it with ops.cast."
        )
    if mask and not tensor.shape:
        raise TypeError(f"Index {tensor!r}: a boolean mask needs a known number of axes, at least one.")
    if known is not None and tensor.shape == ():
        items.append(int(known))
        return
    items.append(Place.INPUT)
    inputs.append(tensor)


def _used_axes(items: Iterable[Item], ranks: Iterable[int | None]) -> int:
    """Count the axes of the indexed value that the items use up. `ranks`: for each input its mask's rank, else None."""
    remaining = iter(ranks)
    used = 0
    for item in items:
        if isinstance(item, SliceItem):
            for bound in (item.start, item.stop, item.step):
                if bound is Place.INPUT:
                    next(remaining)
            used += 1
        elif item is Place.INPUT:
            rank = next(remaining)
            used += 1 if rank is None else rank
        elif isinstance(item, int):
            used += 1
    return used


def _mask_ranks(specs: Iterable[TensorSpec]) -> list[int | None]:
    return [spec.rank if spec.dtype == dtypes.bool_ else None for spec in specs]


def _expand(items: Sequence[Item], specs: Sequence[TensorSpec], spec: TensorSpec) -> list[Item]:
    """Return the items with the ellipsis written out, for a value of known rank.

    Raises:
        IndexError: there are more indices than axes.
    """
    rank = len(spec.shape or ())
    used = _used_axes(items, _mask_ranks(specs))
    if used > rank:
        raise IndexError(f"Too many indices for {spec}: it has {rank} axes, but {used} were indexed.")
    whole: list[Item] = [_WHOLE] * (rank - used)
    if Ellipsis not in items:
        return [*items, *whole]
    place = items.index(Ellipsis)
    return [*items[:place], *whole, *items[place + 1 :]]


def _tidy(items: list[Item], specs: Sequence[TensorSpec], spec: TensorSpec) -> Items:
    """Return the shortest items that mean the same: no ellipsis where the rank is known, no whole slices at the end."""
    if spec.shape is not None:
        items = _expand(items, specs, spec)
    while items and (items[-1] == _WHOLE or items[-1] is Ellipsis):
        items = items[:-1]
    return tuple(items)


def _indexed_shape(spec: TensorSpec, items: Items, specs: Sequence[TensorSpec]) -> Shape:
    """Return the shape of ``x[...]`` by NumPy's rules, as far as it is known.

    Raises:
        IndexError: too many indices, or one that is out of range.
    """
    picks = _picks(items, specs)
    if spec.shape is None or any(pick.shape is None for pick in picks):
        return None
    arrays = any(pick.shape for pick in picks)  # if so, integers take part in their broadcasting
    result: list[int | None] = []
    picked: list[tuple[int, Shape]] = []  # (axis of the result, shape) of advanced indices
    remaining, axis, separated = iter(picks), 0, False
    for item in _expand(items, specs, spec):
        if item is None:
            result.append(1)
        elif isinstance(item, SliceItem):
            result.append(item.length(spec.shape[axis]))
            axis += 1
        else:
            pick = next(remaining) if item is Place.INPUT else None
            _check_pick(spec, axis, item, pick)
            separated = separated or bool(picked and picked[-1][0] != len(result))
            shape: Shape = () if pick is None else (None,) if pick.dtype == dtypes.bool_ else pick.shape
            picked.append((len(result), shape))
            axis += len(pick.shape or ()) if pick is not None and pick.dtype == dtypes.bool_ else 1
    if not arrays:
        return tuple(result)
    joined = broadcast_shapes(*[shape for _, shape in picked]) or ()
    place = 0 if separated else picked[0][0]
    return (*result[:place], *joined, *result[place:])


def _picks(items: Items, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return those of the inputs' specs that are indices and not bounds of slices."""
    remaining = iter(specs)
    picks: list[TensorSpec] = []
    for item in items:
        if item is Place.INPUT:
            picks.append(next(remaining))
        elif isinstance(item, SliceItem):
            for bound in (item.start, item.stop, item.step):
                if bound is Place.INPUT:
                    next(remaining)
    return picks


def _check_pick(spec: TensorSpec, axis: int, item: Item, pick: TensorSpec | None) -> None:
    sizes = spec.shape or ()
    if isinstance(item, int):
        size = sizes[axis]
        if size is not None and not -size <= item < size:
            raise IndexError(f"Index {item} is out of bounds for axis {axis} of {spec}, whose size is {size}.")
    if pick is None or pick.dtype != dtypes.bool_ or pick.shape is None:
        return
    for offset, wanted in enumerate(pick.shape):
        size = sizes[axis + offset]
        if size is not None and wanted is not None and wanted not in (size, 0):  # none fits any, as in NumPy
            raise IndexError(
                f"A boolean mask of shape {shape_text(pick.shape)} does not fit {spec}: "
                f"axis {axis + offset} has size {size}, the mask {wanted}."
            )


# --- x[...] and its gradient ----------------------------------------------------------------------------------------


def is_in_range(op: Op, x: Tensor, indices: Sequence[Tensor]) -> bool:
    """Test whether all indices are constants, where `op` finds something in an array of the shape of `x`."""
    known = [constant_value(tensor) for tensor in indices]
    shape: Any = x.shape
    if any(value is None for value in known) or shape is None or None in shape:
        return False
    try:
        op.run(np, np.broadcast_to(np.zeros((), "bool"), shape), *known)
    except IndexError:
        return False
    return True


@dataclass(frozen=True)
class _Indexing(Op):
    """Base: the first input, indexed by what `items` say and further inputs."""

    items: Items

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(_indexed_shape(inputs[0], self.items, inputs[1:]), inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return as_scalar_or_array(inputs[0][_resolve(self.items, inputs[1:])])

    def text(self, names: Sequence[str]) -> str:
        """Return the operation as it is written, by the names of its inputs: ``x[i, :]``."""
        return f"{names[0]}[{_key_text(self.items, names[1:])}]"

    def cannot_fail(self, *inputs: Tensor) -> bool:
        return is_in_range(self, inputs[0], inputs[1:])

    def emit(self, arguments: Sequence[str]) -> str | None:
        text = self.text(arguments)
        return text + "[()]" if Ellipsis in self.items else text

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        x, *indices = node.inputs
        rows = self._rows(indices) if self.takes_rows(indices) else None
        if rows is not None and x.shape is not None:
            return rows_of(x, rows, dy), *[None] * len(indices)
        return ItemContribution(x, self.items, tuple(indices), dy), *[None] * len(indices)

    def takes_rows(self, indices: Sequence[Tensor]) -> bool:
        """Test whether the key is nothing but integers for the first axis."""
        (item, *more) = self.items or (None,)
        if more or item is not Place.INPUT:
            return not more and is_integer(item)
        return dtypes.is_integer(indices[0].dtype)

    def _rows(self, indices: Sequence[Tensor]) -> Tensor:
        only: Any = self.items[0]
        return indices[0] if indices else convert_to_tensor(only, "int32")


@dataclass(frozen=True)
class GetItem(_Indexing):
    """The first input indexed by integers, slices and new axes; further inputs fill the places in `items`."""

    view: ClassVar[bool] = True
    gives_part: ClassVar[bool] = True
    row_state = row_rules.item

    def axis_map(self, *inputs: Any) -> AxisMap:
        found: list[tuple[Follows, ...]] = []
        axis = 0
        for item in _expand(self.items, inputs[1:], inputs[0]):
            if item is None or isinstance(item, SliceItem):
                found.append((Follows(0, axis),) if item == _WHOLE else ())
            axis += item is not None
        return tuple(found)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(24, dtype="float32").reshape(2, 3, 4)
        place = Place.INPUT
        one, two = np.int32(1), np.int32(-2)
        yield Sample(cls((1,)), [x], x[1], label="integer")
        yield Sample(cls((place,)), [x, one], x[1], differentiable=(0,), label="scalar")
        yield Sample(cls((place, place, 0)), [x, one, two], x[1, -2, 0], differentiable=(0,), label="element")
        yield Sample(cls((place,)), [x[0, 0], two], x[0, 0, -2], differentiable=(0,), label="of a vector")
        yield Sample(cls((SliceItem(0, place),)), [x, one], x[:1], differentiable=(0,), label="to a scalar")
        steps = SliceItem(place, None, place)
        yield Sample(cls((_WHOLE, steps)), [x, one, np.int32(-1)], x[:, 1::-1], differentiable=(0,), label="steps")
        yield Sample(cls((None, SliceItem(None, None, -1), 2)), [x], x[None, ::-1, 2], label="mixed")
        yield Sample(cls((Ellipsis, 1)), [x], x[..., 1], label="ellipsis")
        yield Sample(cls((Ellipsis, 1)), [x[0, 0]], x[0, 0, 1], label="ellipsis to scalar")
        yield Sample(cls((None, None)), [np.float32(3)], np.full((1, 1), 3, "float32"), label="0-d")
        yield Sample(cls((SliceItem(0, 0),)), [x], x[:0], label="to empty")
        yield Sample(cls((_WHOLE, 1)), [x[:0]], x[:0, 1], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec = TensorSpec((2, 3), dtypes.float32)
        yield ErrorSample(lambda: cls((2,)).infer(spec), IndexError, "axis 0 .* size is 2", "range")
        yield ErrorSample(lambda: cls((0, 0, 0)).infer(spec), IndexError, "3 were indexed", "too many")
        yield ErrorSample(
            lambda: cls((Place.INPUT,)).run(np, np.zeros(2, "float32"), np.int32(5)), IndexError, "5 .* size 2", "run"
        )


@dataclass(frozen=True)
class GetItems(_Indexing):
    """The first input indexed by arrays of integers or masks, among others, by NumPy's rules; never a view."""

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(24, dtype="float32").reshape(2, 3, 4)
        place = Place.INPUT
        rows, columns = np.array([0, 1, 0], "int32"), np.array([[2], [-1]], "int32")
        yield Sample(cls((place,)), [x, rows], x[rows], differentiable=(0,), label="rows")
        yield Sample(cls((place, place)), [x, rows, columns], x[rows, columns], differentiable=(0,), label="pairs")
        yield Sample(cls((0, _WHOLE, place)), [x, rows], x[0, :, rows], differentiable=(0,), label="apart")
        yield Sample(cls((_WHOLE, 1, place)), [x, rows], x[:, 1, rows], differentiable=(0,), label="together")
        yield Sample(cls((None, place)), [x, rows], x[None, rows], differentiable=(0,), label="new axis")
        mask = x[..., 0] > 4
        yield Sample(cls((place,)), [x, mask], x[mask], differentiable=(0,), label="mask")
        yield Sample(cls((place, 1)), [x, mask], x[mask, 1], differentiable=(0,), label="mask and integer")
        yield Sample(cls((place,)), [x, rows[:0]], x[:0], differentiable=(0,), label="nothing")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec, mask = TensorSpec((2, 3), dtypes.float32), TensorSpec((3,), dtypes.bool_)
        yield ErrorSample(lambda: cls((Place.INPUT,)).infer(spec, mask), IndexError, "the mask 3", "mask")
        yield ErrorSample(
            lambda: cls((Place.INPUT,)).run(np, np.zeros(2, "float32"), np.array([5], "int32")),
            IndexError,
            "5 .* size 2",
        )


def _get(x: Tensor, items: Items, indices: Sequence[Tensor]) -> Tensor:
    arrays = any(pick.shape for pick in _picks(items, _specs(indices)))
    return apply(GetItems(items) if arrays else GetItem(items), x, *indices)


def _specs(tensors: Iterable[Tensor]) -> list[TensorSpec]:
    return [_tensor_spec(tensor) for tensor in tensors]


def _repeats(items: Items, indices: Sequence[Tensor]) -> bool:
    """Test whether the key may name a position more than once."""
    return any(pick.shape != () and pick.dtype != dtypes.bool_ for pick in _picks(items, _specs(indices)))


@dataclass(frozen=True)
class ItemContribution(Contribution):
    """The cotangent of the part of `x` that was indexed. It is added in place, not through zeros of the whole."""

    x: Tensor
    items: Items
    indices: tuple[Tensor, ...]
    value: Tensor

    def add_to(self, current: Tensor | None) -> Tensor:
        repeats = _repeats(self.items, self.indices)
        if current is None:
            shape = runtime_shape(self.x)
            return apply(PutItem(self.items, self.x.shape, repeats), self.value, shape, *self.indices)
        return apply(AddItem(self.items, repeats), current, self.value, *self.indices)


@dataclass(frozen=True)
class PutItem(Op):
    """Zeros with values at a key. Inputs: values, the shape as an int32 vector, what fills the key's places."""

    items: Items
    shape: Shape
    repeats: bool

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        values, shape, *indices = inputs
        out = xp.zeros(tuple(int(size) for size in shape), values.dtype)
        if self.repeats:
            add_at(xp, out, _resolve(self.items, indices), values)
        else:
            out[_resolve(self.items, indices)] = values
        return as_scalar_or_array(out)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        indices = node.inputs[2:]
        return _get(dy, self.items, indices), *[None] * (1 + len(indices))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        v = np.arange(1, 4, dtype="float32")
        shape = np.array([2, 3], "int32")
        one, rows = np.int32(1), np.array([0, 0, 1], "int32")
        op = cls((Place.INPUT,), (2, 3), False)
        yield Sample(op, [v, shape, one], np.stack([v * 0, v]), differentiable=(0,), label="row")
        op = cls((1, Place.INPUT), (None, 3), True)
        yield Sample(
            op, [v, shape, rows], np.array([[0, 0, 0], [3, 3, 0]], "float32"), differentiable=(0,), label="sum"
        )
        op = cls((None,), (), False)
        yield Sample(op, [v[:1], shape[:0]], np.float32(1), differentiable=(0,), label="0-d")
        op = cls((SliceItem(0, 0),), (2,), False)
        yield Sample(op, [v[:0], shape[:1]], np.zeros(2, "float32"), differentiable=(0,), label="empty")


@dataclass(frozen=True)
class AddItem(Op):
    """The first input with the second added at a key, repeated positions as often as they are named."""

    items: Items
    repeats: bool

    def infer(self, *inputs: Any) -> TensorSpec:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        base, *rest = inputs
        return as_scalar_or_array(self.run_over(xp, xp.array(base, order="C"), *rest))

    def run_over(self, xp: Any, *inputs: Any) -> Any:
        out, values, *indices = inputs
        key = _resolve(self.items, indices)
        if self.repeats:
            add_at(xp, out, key, values)
        else:
            out[key] += values
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        indices = node.inputs[2:]
        return dy, _get(dy, self.items, indices), *[None] * len(indices)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        v = np.arange(1, 4, dtype="float32")
        base = np.ones((2, 3), "float32")
        rows = np.array([0, 0, 1], "int32")
        op = cls((Place.INPUT,), False)
        yield Sample(op, [base, v, np.int32(-1)], np.stack([v * 0, v]) + 1, differentiable=(0, 1), label="row")
        op, expected = cls((1, Place.INPUT), True), np.array([[1, 1, 1], [4, 4, 1]], "float32")
        yield Sample(op, [base, v, rows], expected, differentiable=(0, 1), label="sum")
        yield Sample(cls((None,), False), [v[0], v[:1]], np.float32(2), differentiable=(0, 1), label="0-d")
        yield Sample(cls((SliceItem(0, 0),), False), [v, v[:0]], v, differentiable=(0, 1), label="empty")


def getitem(x: TensorLike, key: Any) -> Tensor:
    """Return ``x[key]`` as in NumPy: the operator over tensors.

    Args:
        x: a tensor.
        key: integers, slices, ``...``, None (a new axis), integer or bool tensors and arrays, or a tuple of these.
            Bounds of slices and integers may be scalar tensors. Bool masks give a result of unknown size.
            A list that holds a slice, ``...`` or None is read as a tuple, as TensorFlow does.

    Raises:
        IndexError: too many indices, or one that is known to be out of range. What is not known is checked by the run.
        TypeError: an entry is not an index.

    >>> import anabranch as ab
    >>> x = ab.constant([[1, 2, 3], [4, 5, 6]])
    >>> x[1, ::-1]
    Tensor([6, 5, 4], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    if isinstance(key, list):
        entries: list[object] = key
        if any(isinstance(entry, (slice, NoneType, EllipsisType)) for entry in entries):
            key = tuple(entries)
    parsed, indices = _parse_key(key, _tensor_spec(tensor))
    items = _tidy(parsed, _specs(indices), _tensor_spec(tensor))
    return _get(tensor, items, indices) if items else unchanged(tensor)


def _tensor_spec(tensor: Tensor) -> TensorSpec:
    if not isinstance(tensor.spec, TensorSpec):
        raise TypeError(f"{tensor!r} can't be indexed; read elements of a TensorArray with its `read`.")
    return tensor.spec


__all__ = ["getitem"]
