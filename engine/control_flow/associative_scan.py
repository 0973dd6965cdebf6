"""`associative_scan`: all prefixes of a sequence under an associative operation, in a logarithmic number of steps."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

from ..common.nest import flatten, flatten_with_path, map_structure, pack_as
from ..common.quick_dataclass import dataclass
from ..graph.spec import TensorSpec, shape_text, shapes_compatible
from ..graph.tensor import Tensor
from ..ops.arrays.axes import flip, moveaxis
from ..ops.arrays.indexing import getitem
from ..ops.arrays.joining import concatenate, stack
from ..ops.arrays.shaping import dim, reshape, shape
from ..ops.base import convert_to_tensor, normalize_axis
from ..ops.entrance import guard_entrances
from .scan import of_length
from .while_loop import while_loop


def associative_scan(f: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """Compute ``[e0, f(e0, e1), f(f(e0, e1), e2), ...]`` along an axis (``keras.ops.associative_scan``).

    Args:
        f: an associative function ``f(a, b)``: of slices of `elems` along `axis`, of any number of elements, it
            returns what results from each pair of elements, in the same structure, shapes and dtypes. It need not
            commute.
        elems: a tensor or a structure of tensors, with one common length along `axis`.
        reverse: begin with the last element: ``[..., f(f(en, en-1), en-2), f(en, en-1), en]``.
        axis: the axis that is scanned; negative ones count from the end.

    Returns:
        The structure and shapes of `elems`.

    Raises:
        ValueError: the lengths differ, or `f` returns another structure or other shapes.
        TypeError: `f` returns other dtypes.

    With a length that is known, `f` is called on 2 log2(n) slices of n elements altogether, a tree (Ladner and Fischer,
    "Parallel Prefix Computation", JACM 1980). Otherwise a loop doubles the distance: log2(n) calls on up to n elements
    (Hillis and Steele, "Data Parallel Algorithms", CACM 1986).

    >>> import anabranch as ab
    >>> ab.associative_scan(lambda a, b: a * b, ab.constant([1.0, 2.0, 3.0, 4.0]))
    Tensor([ 1.,  2.,  6., 24.], dtype=float32)
    """
    leaves = [convert_to_tensor(leaf) for leaf in flatten(elems)]
    if not leaves:
        raise ValueError("associative_scan: elems holds no tensors.")
    axes = _axes(leaves, elems, axis)
    length = _length(leaves, axes, elems)
    if len(leaves) > 1:
        leaves = [_checked_length(leaf, a, length) for leaf, a in zip(leaves, axes, strict=True)]
    along = _Along(f, pack_as(elems, leaves), axes)
    if reverse:
        leaves = [flip(leaf, a) for leaf, a in zip(leaves, axes, strict=True)]
    found = along.tree(leaves, length) if isinstance(length, int) else along.doubling(leaves, length)
    if reverse:
        found = [flip(leaf, a) for leaf, a in zip(found, axes, strict=True)]
    return pack_as(elems, found)


def _axes(leaves: Sequence[Tensor], elems: Any, axis: int) -> list[int]:
    axes: list[int] = []
    for leaf, (path, _) in zip(leaves, flatten_with_path(elems), strict=True):
        if leaf.shape is None or not leaf.shape:
            raise ValueError(
                f"associative_scan: elems{path} must have at least one axis, of a known number of them; got {leaf!r}."
            )
        axes.append(normalize_axis(axis, len(leaf.shape)))
    return axes


def _length(leaves: Sequence[Tensor], axes: Sequence[int], elems: Any) -> Any:
    """Return the common length: an int where the shape of any leaf gives it, else a scalar tensor."""
    sizes = [dim(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)]
    known = [size for size in sizes if isinstance(size, int)]
    if len(set(known)) > 1:
        listed = ", ".join(
            f"elems{path}: {shape_text(leaf.shape)}"
            for leaf, (path, _) in zip(leaves, flatten_with_path(elems), strict=True)
        )
        raise ValueError(f"associative_scan: the elems differ in length along the axis ({listed}).")
    return known[0] if known else sizes[0]


def _checked_length(leaf: Tensor, axis: int, length: Any) -> Tensor:
    """Return `leaf`, whose length is compared by the run if it is not known before."""
    if dim(leaf, axis) is length or isinstance(dim(leaf, axis), int):
        return leaf
    return moveaxis(of_length(moveaxis(leaf, axis, 0), length), 0, axis)


@dataclass(frozen=True)
class _Along:
    """The operation over flat lists of leaves, each with its own axis."""

    f: Callable[[Any, Any], Any]
    structure: Any
    axes: list[int]

    def tree(self, leaves: list[Tensor], length: int) -> list[Tensor]:
        """Combine pairs, scan these, and put the elements between them in."""
        if length < 2:
            return leaves
        pairs = self.combined(self.part(leaves, 0, length - 1, 2), self.part(leaves, 1, None, 2))
        odd = self.tree(pairs, length // 2)
        rest = self.part(leaves, 2, None, 2)
        count = (length - 1) // 2
        even = self.joined(self.part(leaves, 0, 1), self.combined(self.part(odd, 0, count), rest) if count else rest)
        return [self._interleaved(a, b, axis, length) for a, b, axis in zip(even, odd, self.axes, strict=True)]

    def doubling(self, leaves: list[Tensor], length: Tensor) -> list[Tensor]:
        """Combine element i with element i - 1, the results with those 2 before, then 4, and so on."""

        def step(distance: Any, leaves: list[Tensor]) -> Any:
            before = self.part(leaves, 0, length - distance)
            combined = self.combined(before, self.part(leaves, distance, None))
            joined = self.joined(self.part(leaves, 0, distance), combined)
            return distance * 2, joined

        def more(distance: Any, _: Any) -> Any:
            return distance < length

        return while_loop(more, step, (1, leaves))[1]

    def part(self, leaves: list[Tensor], start: Any, stop: Any, step: int = 1) -> list[Tensor]:
        window = builtins.slice(start, stop, step)
        return [
            getitem(leaf, (*[builtins.slice(None)] * axis, window))
            for leaf, axis in zip(leaves, self.axes, strict=True)
        ]

    def joined(self, first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
        return [concatenate([a, b], axis) for a, b, axis in zip(first, second, self.axes, strict=True)]

    def combined(self, first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
        """Return what `f` makes of two slices, checked."""
        result = self.f(pack_as(self.structure, first), pack_as(self.structure, second))
        want = [path for path, _ in flatten_with_path(self.structure)]
        have = [path for path, _ in flatten_with_path(result)]
        if want != have:
            raise ValueError(
                "associative_scan: f must return the structure of elems, with leaves "
                f"{', '.join(path or 'itself' for path in want)}; it returned {', '.join(p or 'itself' for p in have)}."
            )
        tensors = flatten(map_structure(convert_to_tensor, result))
        for path, tensor, like in zip(want, tensors, second, strict=True):
            _check_like(path, tensor, like)
        return tensors

    def _interleaved(self, even: Tensor, odd: Tensor, axis: int, length: int) -> Tensor:
        """Return elements of the two in turn; `even` has the first, and the last one if `length` is odd."""
        half = length // 2
        whole = builtins.slice(None)
        pairs = stack([getitem(even, (*[whole] * axis, builtins.slice(0, half))), odd], axis + 1)
        sizes = shape(pairs)
        mixed = reshape(pairs, (*sizes[:axis], 2 * half, *sizes[axis + 2 :]))
        if length % 2 == 0:
            return mixed
        return concatenate([mixed, getitem(even, (*[whole] * axis, builtins.slice(half, None)))], axis)


def _check_like(path: str, tensor: Tensor, like: Tensor) -> None:
    what = f"associative_scan: f must return values like its arguments, but elems{path}"
    if tensor.dtype != like.dtype:
        raise TypeError(
            f"{what} went in as {like.dtype} and came out as {tensor.dtype}; cast it back with "
            f"ops.cast(..., '{like.dtype}')."
        )
    if isinstance(tensor.spec, TensorSpec) and not shapes_compatible(tensor.shape, like.shape):
        raise ValueError(
            f"{what} went in with shape {shape_text(like.shape)} and came out with {shape_text(tensor.shape)}. "
            "Both arguments hold any number of elements along the axis; f works on all of them at once."
        )


guard_entrances(globals(), __name__)
__all__ = ["associative_scan"]
