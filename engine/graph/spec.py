"""Facts about a value before it exists: dtype, and a shape whose dimensions or rank may be unknown."""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import numpy as np

from ..common import dtypes
from ..common.dtypes import DType
from ..common.quick_dataclass import dataclass

Dim = int | None
Shape = tuple[Dim, ...] | None  # None: the rank itself is unknown


def shape_text(shape: Shape) -> str:
    """Return `shape` as a person writes it: ``[2,?,3]``, or ``[...]`` for an unknown rank."""
    if shape is None:
        return "[...]"
    return "[" + ",".join("?" if dim is None else str(dim) for dim in shape) + "]"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """dtype and shape of a tensor; ``shape=None`` means an unknown rank, a ``None`` in it an unknown dimension."""

    shape: Shape
    dtype: DType

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """Test whether every dimension is known."""
        return self.shape is not None and None not in self.shape

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape where every dimension is known."""
        known = [dim for dim in self.shape or () if dim is not None]
        return tuple(known) if self.shape is not None and len(known) == len(self.shape) else None

    @property
    def differentiable(self) -> bool:
        return dtypes.is_differentiable(self.dtype)

    def accepts(self, other: Spec) -> bool:
        """Test whether every value that `other` describes is also described by this spec."""
        return isinstance(other, TensorSpec) and self.dtype == other.dtype and shape_accepts(self.shape, other.shape)

    def join(self, other: Spec) -> Spec:
        """Return the narrowest spec that accepts both; dtypes must be equal."""
        return TensorSpec(join_shapes(self.shape, other.shape), self.dtype) if isinstance(other, TensorSpec) else self

    def __str__(self) -> str:
        return f"{dtypes.name_of(self.dtype)}{shape_text(self.shape)}"


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """A TensorArray (or a loop's history): elements that all match `element`; `size` if it is known.

    `empty` marks an array into which nothing has been written yet and whose element shape was left open: it joins
    with any other array of its dtype, so that a loop can find out what it carries.
    """

    element: Spec
    size: Dim = None
    empty: bool = False

    @property
    def dtype(self) -> DType:
        return self.element.dtype

    @property
    def shape(self) -> Shape:
        return None

    @property
    def element_shape(self) -> Shape:
        return self.element.shape

    @property
    def differentiable(self) -> bool:
        return self.element.differentiable

    def with_elements(self, element: Spec) -> ArraySpec:
        """Return an array of this kind, with such elements, of which nothing else is known."""
        return ArraySpec(element)

    def accepts(self, other: Spec) -> bool:
        if not isinstance(other, ArraySpec) or self.size not in (None, other.size):
            return False
        if self.empty:
            return other.empty and self.dtype == other.dtype
        return (other.empty and self.dtype == other.dtype) or self.element.accepts(other.element)

    def join(self, other: Spec) -> Spec:
        if not isinstance(other, ArraySpec):
            return self
        size = self.size if self.size == other.size else None
        if self.empty or other.empty:
            full = other if self.empty else self
            return ArraySpec(full.element, size, self.empty and other.empty)
        return ArraySpec(self.element.join(other.element), size)

    def __str__(self) -> str:
        size = "?" if self.size is None else self.size
        return f"array<{size} x {self.element}>"


_INTEGER = TensorSpec((), dtypes.int64)


@dataclass(frozen=True, slots=True)
class StoreSpec(ArraySpec):
    """A TensorStore: an array whose elements are found by keys, each of which matches `key`."""

    key: TensorSpec = _INTEGER

    def with_elements(self, element: Spec) -> ArraySpec:
        return StoreSpec(element, key=self.key)

    def accepts(self, other: Spec) -> bool:
        return isinstance(other, StoreSpec) and self.key == other.key and ArraySpec.accepts(self, other)

    def join(self, other: Spec) -> Spec:
        joined = ArraySpec.join(self, other)
        assert isinstance(joined, ArraySpec)
        return StoreSpec(joined.element, None, joined.empty, self.key)

    def __str__(self) -> str:
        return f"store<{self.key} -> {self.element}>"


@dataclass(frozen=True, slots=True)
class FrameSpec:
    """The record of one run of a loop or branch, from which histories and saved values are taken."""

    dtype: DType = np.dtype(object)
    differentiable: bool = True  # cotangents of saved inner values reach the loop through its frame

    @property
    def shape(self) -> Shape:
        return None

    def accepts(self, other: Spec) -> bool:
        return isinstance(other, FrameSpec)

    def join(self, other: Spec) -> Spec:
        return self

    def __str__(self) -> str:
        return "frame"


Spec = TensorSpec | ArraySpec | FrameSpec


def kind_of(spec: Spec) -> Hashable:
    """Return what specs share whose values may stand for each other: tensor, array, or store of such keys."""
    return spec.key if isinstance(spec, StoreSpec) else isinstance(spec, ArraySpec)


def shape_accepts(pattern: Shape, shape: Shape) -> bool:
    """Test whether each shape that `shape` describes matches `pattern`."""
    if pattern is None:
        return True
    if shape is None or len(pattern) != len(shape):
        return False
    return all(want is None or want == got for want, got in zip(pattern, shape, strict=True))


def shapes_compatible(a: Shape, b: Shape) -> bool:
    """Test whether some concrete shape matches both."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(x is None or y is None or x == y for x, y in zip(a, b, strict=True))


def join_shapes(a: Shape, b: Shape) -> Shape:
    """Return the narrowest shape that describes both `a` and `b`: what differs becomes unknown."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def meet_shapes(a: Shape, b: Shape) -> Shape:
    """Return the shape that holds the sizes known of either, `a` or `b`.

    Raises:
        ValueError: they contradict each other.
    """
    if a is None:
        return b
    if b is None:
        return a
    if not shapes_compatible(a, b):
        raise ValueError(f"Shapes {shape_text(a)} and {shape_text(b)} are incompatible.")
    return tuple(y if x is None else x for x, y in zip(a, b, strict=True))


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Broadcast shapes with unknown parts as NumPy does.

    Raises:
        ValueError: two known dimensions differ and neither is 1.

    >>> broadcast_shapes((None, 3), (1,)), broadcast_shapes((2, 1), (None,))
    ((None, 3), (2, None))
    """
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    longest = max(known, key=len)
    rank = len(longest)
    for shape in known:
        if longest[rank - len(shape) :] != shape:
            break
    else:  # the common case: one shape, its rows, scalars
        return longest
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(_broadcast_dims(dims, known) for dims in zip(*padded, strict=True))


def _broadcast_dims(dims: tuple[Dim, ...], shapes: list[tuple[Dim, ...]]) -> Dim:
    big = {dim for dim in dims if dim is not None and dim != 1}
    if len(big) > 1:
        listed = " and ".join(shape_text(shape) for shape in shapes)
        raise ValueError(
            f"Shapes {listed} do not broadcast: aligned from the right, dimensions {sorted(big)} differ "
            "and none of them is 1."
        )
    if big:
        return big.pop()
    return None if None in dims else 1


def spec_of(value: Any) -> TensorSpec:
    """Return the spec of a concrete array or NumPy scalar."""
    return TensorSpec(tuple(value.shape), value.dtype)


def as_shape(shape: Any) -> Shape:
    """Return `shape` as a tuple of ints and Nones; an int means one dimension, None an unknown rank.

    Raises:
        TypeError, ValueError: an entry is neither an integer nor None, or is negative.
    """
    if shape is None:
        return None
    if isinstance(shape, (str, bytes, np.dtype, type)):  # as of placeholder(dtype, shape) in TensorFlow 1
        raise TypeError(
            f"Expected a shape, a tuple of sizes such as (None, 3), got {shape!r}. "
            f"If this is a dtype, give it by name: dtype={shape!r}."
        )
    if isinstance(shape, (int, np.integer)):
        shape = (shape,)
    try:
        dims = tuple(None if dim is None or dim == -1 else operator.index(dim) for dim in shape)
    except TypeError:
        raise TypeError(f"Shape {shape!r} has an entry that is neither an integer nor None.") from None
    if any(dim is not None and dim < 0 for dim in dims):
        raise ValueError(f"Shape {tuple(shape)} has a negative dimension; use None for one that is not known.")
    return dims
