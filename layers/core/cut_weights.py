"""Weights that are cut: layers compute with each part of a weight on a device of its own, and join the results.

A weight that was made where layouts hold (`layers/core/layer_state`) is a variable for each part, on the part's device,
and nothing else holds it. Another one stays whole: a step reads it, splits it, and computes with each part on its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from ...engine import ops
from ...engine.autodiff.custom_gradient import CustomGradient
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import ShardedVariable, Tensor, Variable
from ...engine.graph.scopes import device
from ...engine.graph.slices import IndexedSlices
from ...engine.graph.state.sharded import layout_of_grid
from ...engine.ops.base import TensorLike, apply
from ...engine.ops.containers.contributions import rows_of
from .input_spec import known_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

Index = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Cut:
    """The axes along which a weight is cut into parts, and the devices on which these are used.

    Attributes:
        axes: the axes of the weight that are cut.
        devices: names of devices, an array with one axis for each of these.
    """

    axes: tuple[int, ...]
    devices: NDArray[np.str_]

    def parts(self, tensor: Tensor, axes: Sequence[int | None]) -> dict[Index, Tensor]:
        """Split a tensor along the axes given, one for each that the weight is cut along; None leaves it whole."""
        found: dict[Index, Tensor] = {(): tensor}
        for axis, count in zip(axes, self.devices.shape, strict=True):
            found = {
                (*index, number): part
                for index, piece in found.items()
                for number, part in enumerate([piece] * count if axis is None else ops.split(piece, count, axis=axis))
            }
        return found

    def parts_of_weight(self, weight: TensorLike) -> dict[Index, Tensor]:
        """Return the parts of the weight: its shards, if it is in parts already."""
        if not isinstance(weight, ShardedVariable):
            return self.parts(ops.convert_to_tensor(weight), self.axes)
        return {index: ops.convert_to_tensor(shard) for index, shard in self.shards(weight).items()}

    def shards(self, weight: ShardedVariable) -> dict[Index, Variable]:
        """Return the shard of each part.

        Raises:
            ValueError: the weight was cut in another way.
        """
        counts = [1] * len(weight.shape)
        for axis, count in zip(self.axes, self.devices.shape, strict=True):
            counts[axis] = count
        if layout_of_grid(counts) != weight.layout or len(weight.shards) != self.devices.size:
            raise ValueError(
                f"Weight {weight.path!r} is in {len(weight.shards)} parts ({weight.layout}), but the layouts that hold "
                f"now make {' x '.join(map(str, counts))}. Make the model under this strategy, and load the weights."
            )
        numbered = np.arange(len(weight.shards)).reshape(counts)
        order = np.transpose(numbered, [*self.axes, *[n for n in range(len(counts)) if n not in self.axes]])
        numbers = order.reshape(self.devices.shape)
        return {index: weight.shards[int(numbers[index])] for index in np.ndindex(*self.devices.shape)}

    def joined(
        self,
        compute: Callable[[Index], Tensor],
        output_axes: Sequence[int | None],
        finish: Callable[[Index, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Compute with each part on its device, and join the results.

        Args:
            compute: builds the work on one part.
            output_axes: for each axis that is cut, the axis along which results are concatenated. None: they are
                summed, in the order of the parts, on the device of the first.
            finish: is called with each sum, on the same device.
        """
        shape = self.devices.shape
        kept = [number for number, axis in enumerate(output_axes) if axis is not None]
        summed = [number for number, axis in enumerate(output_axes) if axis is None]

        def along(rest: list[int], chosen: dict[int, int]) -> Tensor:
            if rest:
                first, others = rest[0], rest[1:]
                axis = output_axes[first]
                return ops.concatenate(
                    [along(others, {**chosen, first: number}) for number in range(shape[first])], axis=axis
                )
            terms: list[Tensor] = []
            indices: list[Index] = []
            for numbers in np.ndindex(*[shape[number] for number in summed]):
                at = {**chosen, **dict(zip(summed, numbers, strict=True))}
                indices.append(tuple([at[number] for number in range(len(shape))]))
                with device(str(self.devices[indices[-1]])):
                    terms.append(compute(indices[-1]))
            with device(str(self.devices[indices[0]])):
                total = reduce(add, terms)
                return total if finish is None else finish(indices[0], total)

        return along(kept, {})


# --- which weights are cut ------------------------------------------------------------------------------------------


class _Active(threading.local):
    def __init__(self) -> None:
        self.find: Callable[[Variable | ShardedVariable], Cut | None] | None = None


_active = _Active()


@contextmanager
def cut_weights(find: Callable[[Variable | ShardedVariable], Cut | None]) -> Generator[None]:
    """Let layers that are called inside compute in parts.

    Args:
        find: gives how a weight is cut; None for one that is whole.
    """
    before, _active.find = _active.find, find
    try:
        yield
    finally:
        _active.find = before


def cut_of(weight: Variable | ShardedVariable) -> Cut | None:
    """Return the cut of a weight where a layer is called now; None for whole weights."""
    is_weight = isinstance(weight, (Variable, ShardedVariable))
    return _active.find(weight) if _active.find is not None and is_weight else None


# --- products and rows ----------------------------------------------------------------------------------------------


def product_in_parts(
    cut: Cut,
    inputs: Tensor,
    kernel: TensorLike,
    bias: Tensor | Variable | None,
    product: Callable[[Tensor, Tensor], Tensor],
    axes: Sequence[tuple[int | None, int | None]],
) -> Tensor:
    """Return the product of inputs and a kernel that is cut, plus the bias.

    Where the outputs have an axis of the kernel that is cut, each part gives some of them, with its part of the bias.
    Else the products of the parts are summed.

    Args:
        cut: of the kernel.
        inputs: of the layer.
        kernel, bias: the weights; None for no bias.
        product: of inputs and kernel, or of their parts.
        axes: for each axis of the kernel the same one of inputs and of outputs, None where they lack it; of outputs
            counted from the last, -1.
    """
    input_axes = [axes[axis][0] for axis in cut.axes]
    output_axes = [axes[axis][1] for axis in cut.axes]
    kernels, given = cut.parts_of_weight(kernel), cut.parts(inputs, input_axes)
    if bias is None:
        return cut.joined(lambda index: product(given[index], kernels[index]), output_axes)
    biases = cut.parts(ops.convert_to_tensor(bias), bias_axes(known_shape(bias.shape), output_axes))
    return cut.joined(
        lambda index: product(given[index], kernels[index]), output_axes, lambda index, total: total + biases[index]
    )


def bias_axes(shape: Sequence[int | None], output_axes: Sequence[int | None]) -> list[int | None]:
    """Return the axes of a bias that are those of the outputs, from the last; None where it has none, or one number.

    >>> bias_axes((1, 8), [-1, -2, -3, None])
    [-1, None, None, None]
    """
    return [axis if axis is not None and -axis <= len(shape) and shape[axis] != 1 else None for axis in output_axes]


def rows_in_parts(cut: Cut, table: Variable | ShardedVariable, places: Tensor) -> Tensor:
    """Return rows of a table that is cut along rows, columns or both.

    The gradient of the table is `IndexedSlices`, as that of a whole table: rows that were not taken are not touched.
    Of a table that is in parts already each part gives the rows that it has, and its gradient is some of these.

    Args:
        cut: of the table ``(rows, columns)``.
        table: the weight.
        places: numbers of rows.
    """
    if isinstance(table, ShardedVariable):
        cut.shards(table)  # which are those of the layout
        return ops.take(table, places, axis=0)
    whole = ops.convert_to_tensor(table)
    parts = cut.parts(whole, cut.axes)
    count = table.shape[0]
    size = count // cut.devices.shape[cut.axes.index(0)] if 0 in cut.axes else count
    number = cut.axes.index(0) if 0 in cut.axes else None
    if number is not None:
        if places.dtype.itemsize < 4 or places.dtype.kind == "u":  # or differences might not fit
            places = ops.cast(places, "int64")
        places = ops.where(ops.less(places, 0), places + count, places)  # as in a whole table: from the end

    def rows(index: Index) -> Tensor:
        part = parts[index]
        if number is None:
            return ops.take(part, places, axis=0)
        first = index[number] * size
        local = places - first
        is_here = ops.logical_and(ops.greater_equal(local, 0), ops.less(local, size))
        if index[number] == 0:  # it takes the numbers that no part has, too, which is an error
            is_here = ops.logical_or(ops.less(places, size), ops.greater_equal(places, count))
            local = ops.where(ops.less(places, 0), places - count, places)
        found = ops.take(part, ops.where(is_here, local, 0), axis=0)
        return ops.where(ops.expand_dims(is_here, -1), found, ops.zeros_like(found))

    found = cut.joined(rows, [None if axis == 0 else -1 for axis in cut.axes])
    return apply(CustomGradient(_RowsRule()), found, whole, places)


class _RowsRule:
    """The gradient of rows of a table: that of the whole table, of which nothing is computed but where they belong."""

    results = 1

    def cotangents(self, upstream: list[TensorLike], targets: Sequence[Tensor]) -> list[IndexedSlices | None]:
        """Return the cotangents of table and places."""
        table, places = targets
        return [rows_of(table, places, ops.convert_to_tensor(upstream[0])), None]


__all__ = ["Cut", "bias_axes", "cut_of", "cut_weights", "product_in_parts", "rows_in_parts"]
