"""Windows that slide over the spatial axes of a tensor: where they are, how many there are, and their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ...common.dtypes import DType
from ...common.nest import is_sequence
from ...graph.spec import Dim, Shape, shape_text
from ...graph.tensor import Tensor
from ..arrays.axes import transpose

Pads = tuple[tuple[int, int], ...]
Padding = str | Pads  # "valid", "same", "causal", or the cells before and behind each axis; negative ones are cut off


class Window(NamedTuple):
    """The windows along one axis.

    Attributes:
        size: cells of the input.
        kernel: cells of a window.
        stride: from one window to the next.
        dilation: from one cell of a window to the next.
        before: where the first cell of the input is, seen from the first cell of the first window.
        out: how many windows there are.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    out: int

    @property
    def extent(self) -> int:
        """Cells from the first of the first window to the last of the last one."""
        return (self.out - 1) * self.stride + reach(self.kernel, self.dilation) if self.out and self.kernel else 0

    @property
    def inside(self) -> bool:
        """Test whether all windows are inside the input."""
        return self.before <= 0 and self.extent - self.before <= self.size

    def overlap(self, cell: int) -> tuple[slice[Any, Any, Any], slice[Any, Any, Any]]:
        """Return the windows whose cell number `cell` is inside the input, and those cells of the input."""
        offset = cell * self.dilation - self.before
        first = max(0, -(offset // self.stride))
        last = min(self.out, (self.size - 1 - offset) // self.stride + 1)
        if last <= first:
            return slice(0, 0), slice(0, 0)
        begin = first * self.stride + offset
        return slice(first, last), slice(begin, begin + (last - first - 1) * self.stride + 1, self.stride)

    def phases(self) -> list[tuple[int, slice[Any, Any, Any], Window]]:
        """Return the transposed windows: which windows a cell of the input is in.

        They are alike for all cells at one place between strides. For each such place: that place, the cells of the
        kernel that count there, and the windows over the axis of the windows (with these cells in reverse order).
        """
        found: list[tuple[int, slice[Any, Any, Any], Window]] = []
        for place in range(min(self.stride, self.size)):
            count = -(-(self.size - place) // self.stride)
            cells = [
                cell for cell in range(self.kernel) if (place + self.before - cell * self.dilation) % self.stride == 0
            ]
            if not cells:
                found.append((place, slice(0, 0), Window(self.out, 0, 1, 1, 0, count)))
                continue
            step = cells[1] - cells[0] if len(cells) > 1 else 1
            nearest = (place + self.before - cells[-1] * self.dilation) // self.stride
            across = Window(self.out, len(cells), 1, max(1, step * self.dilation // self.stride), -nearest, count)
            found.append((place, slice(cells[0], cells[-1] + 1, step), across))
        return found


def reach(kernel: int, dilation: int) -> int:
    """Return cells from the first to the last of a window."""
    return (kernel - 1) * dilation + 1


def cells(windows: Sequence[Window]) -> product[tuple[int, ...]]:
    """Return the positions inside a window, in row-major order."""
    return product(*[range(window.kernel) for window in windows])


def overlaps(windows: Sequence[Window], cell: Sequence[int]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return `Window.overlap` on all axes, as keys into results and inputs, whose first axis is the batch."""
    pairs = [window.overlap(position) for window, position in zip(windows, cell, strict=True)]
    return (slice(None), *[pair[0] for pair in pairs]), (slice(None), *[pair[1] for pair in pairs])


def count_windows(size: Dim, kernel: Dim, stride: int, dilation: int, padding: str | tuple[int, int]) -> Dim:
    """Return the number of windows along an axis; None if that is not known.

    Raises:
        ValueError: not even one fits into the axis.
    """
    if size is None:
        return None
    if padding in ("same", "causal"):
        return -(-size // stride)
    if kernel is None:
        return None
    if isinstance(padding, tuple):
        return max(0, (size + sum(padding) - reach(kernel, dilation)) // stride + 1)
    if reach(kernel, dilation) > max(size, 1):  # windows of a single cell fit into an axis without cells: none of them
        cells = f"{kernel} cells" if dilation == 1 else f"{kernel} cells, {dilation} apart,"
        raise ValueError(
            f"A window of {cells} does not fit into an axis of size {size}, so the result would be empty. Use a "
            "smaller window, a larger input, or padding='same'."
        )
    return (size - reach(kernel, dilation)) // stride + 1


def place_window(size: int, kernel: int, stride: int, dilation: int, padding: str | tuple[int, int]) -> Window:
    """Return the windows along an axis whose size is known.

    "same" puts as many cells before as behind the input, or one less (as TensorFlow does), "causal" all before it.
    """
    count = count_windows(size, kernel, stride, dilation, padding) or 0
    if isinstance(padding, tuple):
        before = padding[0]
    elif padding == "same":
        before = max(0, (count - 1) * stride + reach(kernel, dilation) - size) // 2
    else:
        before = reach(kernel, dilation) - 1 if padding == "causal" else 0
    return Window(size, kernel, stride, dilation, before, count)


def at_axis(padding: Padding, axis: int) -> str | tuple[int, int]:
    """Return `padding` along the spatial axis number `axis`."""
    return padding if isinstance(padding, str) else padding[axis]


# --- arguments ------------------------------------------------------------------------------------------------------


def check_padding(what: str, padding: Any, allowed: Sequence[str] = ("valid", "same")) -> str:
    """Return `padding` in lower case.

    Raises:
        ValueError: it is not one of `allowed`.
    """
    known = padding.lower() if isinstance(padding, str) else padding
    if known not in allowed:
        raise ValueError(f"{what}: padding must be one of {', '.join(map(repr, allowed))}, got {padding!r}.")
    return known


def spatial_rank(what: str, *tensors: Tensor) -> int:
    """Return the number of spatial axes of the tensors, which beside them have a batch or two kernel axes.

    Raises:
        ValueError: there are not 1 to 3, the tensors differ in it, or it is not known of any of them.
    """
    ranks = [len(tensor.shape) for tensor in tensors if tensor.shape is not None]
    shapes = " and ".join(shape_text(tensor.shape) for tensor in tensors)
    if not ranks:
        raise ValueError(f"{what}: the number of axes must be known; got shape {shapes}. Give the input a shape.")
    if len(set(ranks)) > 1 or not 3 <= ranks[0] <= 5:
        raise ValueError(
            f"{what}: expected rank 3, 4 or 5 (1, 2 or 3 spatial axes, a batch axis and a channels axis"
            f"{', and kernels of the same rank' if len(tensors) > 1 else ''}); got shape{'s' * (len(tensors) > 1)} "
            f"{shapes}."
        )
    return ranks[0] - 2


def pooled_rank(what: str, x: Tensor, sizes: Any) -> int:
    """Return the number of spatial axes: of the input, or if that is unknown, as many as `sizes` has."""
    if x.shape is None and is_sequence(sizes) and 1 <= len(sizes) <= 3:
        return len(sizes)
    return spatial_rank(what, x)


def per_axis(what: str, value: Any, rank: int, least: int = 1) -> tuple[int, ...]:
    """Return an int, or one int for each spatial axis, as a tuple.

    Raises:
        ValueError: it is something else, or one of them is less than `least`.
    """
    entries: list[Any] = list(value) if is_sequence(value) else [value]
    entries = entries * rank if len(entries) == 1 else entries
    valid = all(isinstance(entry, (int, np.integer)) and not isinstance(entry, bool) for entry in entries)
    if not valid or len(entries) != rank or any(entry < least for entry in entries):
        kind = "positive" if least == 1 else "non-negative"
        raise ValueError(f"{what} must be a {kind} int, or {rank} of them (one a spatial axis); got {value!r}.")
    return tuple(int(entry) for entry in entries)


def to_channels_last(x: Tensor, rank: int, data_format: str) -> Tensor:
    """Return `x`, with its channels moved last if they come first."""
    if data_format == "channels_last":
        return x
    return transpose(x, (0, *range(2, rank + 2), 1))


def from_channels_last(x: Tensor, rank: int, data_format: str) -> Tensor:
    """Return `x`, with its channels moved to where `data_format` wants them."""
    if data_format == "channels_last":
        return x
    return transpose(x, (0, rank + 1, *range(1, rank + 1)))


def widened(x: Any) -> Any:
    """Return `x` in the precision that sums of products are computed in: half precision becomes single."""
    return x.astype("float32") if is_half(x.dtype) else x


def is_half(dtype: DType) -> bool:
    """Test whether `dtype` is of half precision."""
    return dtype.name in ("float16", "bfloat16")


def spatial(shape: Shape, rank: int) -> tuple[Dim, ...]:
    """Return the spatial dimensions of a channels-last shape.

    Raises:
        ValueError: it has another rank.
    """
    if shape is None:
        return (None,) * rank
    if len(shape) != rank + 2:
        raise ValueError(f"expected rank {rank + 2} for {rank} spatial axes; got shape {shape_text(shape)}.")
    return shape[1:-1]
