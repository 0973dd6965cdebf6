"""Images taken apart into blocks and put together again.

Windows that may overlap are taken with indices along one axis after the other, and adding them up again is the adjoint
of that; blocks that do not overlap only change their shape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...common.claims import claim
from ...common.nest import is_integer, is_sequence
from ...graph.spec import shape_text
from ..base import Tensor, TensorLike, apply, convert_to_tensor
from ..data_format import check_data_format
from ..math.elementwise import floor_divide
from ..signal.image_formats import larger, rank_of
from .axes import transpose
from .creation import arange
from .gathering import PutRows, take
from .indexing import getitem
from .padding import pad
from .shaping import DimLike, dim, expand_dims, reshape, squeeze

IntOrSequence = int | Sequence[int]

# --- windows along an axis ------------------------------------------------------------------------------------------


def _window_count(what: str, length: DimLike, size: int, stride: int, dilation: int) -> DimLike:
    """Return the number of windows that are inside.

    Raises:
        ValueError: none does.
    """
    reach = (size - 1) * dilation + 1
    if not isinstance(length, int):
        return larger(floor_divide(length - reach, stride) + 1, 0)
    if 0 < length < reach:
        raise ValueError(
            f"{what}: a window that reaches over {reach} elements does not fit into {length}, with padding."
        )
    return max((length - reach) // stride + 1, 0)


def _window_positions(count: DimLike, size: int, stride: int, dilation: int) -> Tensor:
    """Return the positions of the elements of all windows, [size, count]."""
    claim((size, count if isinstance(count, int) else 1), 8, "The places of patches")
    within = np.arange(size, dtype="int32")[:, None] * dilation
    if isinstance(count, int):
        return convert_to_tensor(within + np.arange(count, dtype="int32") * stride)
    return convert_to_tensor(within) + arange(count) * stride


def _settings(what: str, name: str, value: Any, axes: int, least: int) -> tuple[int, ...]:
    """Return an argument that is one integer for all axes or one for each."""
    values = tuple(value) if is_sequence(value) else (value,) * axes
    if len(values) != axes or not all(is_integer(entry) for entry in values):
        raise ValueError(f"{what}: {name} must be an integer or {axes} integers; got {value!r}.")
    if any(entry < least for entry in values):
        raise ValueError(f"{what}: {name} must be at least {least}; got {value!r}.")
    return tuple(int(entry) for entry in values)


# --- unfold and fold ------------------------------------------------------------------------------------------------


def unfold(
    x: TensorLike,
    kernel_size: IntOrSequence,
    dilation: IntOrSequence = 1,
    padding: IntOrSequence = 0,
    stride: IntOrSequence = 1,
) -> Tensor:
    """Return all windows of images, each as one column (im2col).

    Args:
        x: images with channels first, [batch, channels, height, width].
        kernel_size: the height and width of the windows, or both at once, as for all that follow.
        dilation: the distance between neighbouring elements of a window.
        padding: how many zeros to put around the images.
        stride: the distance between neighbouring windows.

    Returns:
        [batch, channels * kernel height * kernel width, windows].

    Raises:
        ValueError: the images have another number of axes, or no window fits.

    >>> import anabranch as ab
    >>> ab.ops.unfold(ab.ops.ones((1, 2, 4, 4)), 2, stride=2).shape
    (1, 8, 4)
    """
    tensor = convert_to_tensor(x)
    if tensor.shape is None or len(tensor.shape) != 4:
        raise ValueError(f"unfold: expected [batch, channels, height, width]; got shape {shape_text(tensor.shape)}.")
    sizes, steps, strides, borders = _fold_settings("unfold", kernel_size, dilation, stride, padding)
    if any(borders):
        tensor = pad(tensor, ((0, 0), (0, 0), (borders[0],) * 2, (borders[1],) * 2))
    windows, counts = _windows("unfold", tensor, 2, sizes, strides, steps)
    parts = transpose(windows, (0, 1, 2, 4, 3, 5))
    channels = dim(tensor, 1) * sizes[0] * sizes[1]
    return reshape(parts, (dim(tensor, 0), channels, counts[0] * counts[1]))


def _fold_settings(what: str, kernel_size: Any, dilation: Any, stride: Any, padding: Any) -> list[tuple[int, ...]]:
    given = (("kernel_size", kernel_size, 1), ("dilation", dilation, 1), ("stride", stride, 1), ("padding", padding, 0))
    return [_settings(what, name, value, 2, least) for name, value, least in given]


def _windows(
    what: str, x: Tensor, first: int, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[Tensor, list[DimLike]]:
    """Split each axis of `x` from the first one on into two, [size, windows]; return also the numbers of windows."""
    counts: list[DimLike] = []
    for place, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        axis = first + 2 * place
        counts.append(_window_count(what, dim(x, axis), size, stride, dilation))
        x = take(x, _window_positions(counts[-1], size, stride, dilation), axis)
    return x, counts


def fold(
    x: TensorLike,
    output_size: IntOrSequence,
    kernel_size: IntOrSequence,
    dilation: IntOrSequence = 1,
    padding: IntOrSequence = 0,
    stride: IntOrSequence = 1,
) -> Tensor:
    """Put images together from all their windows, and add up overlaps (col2im); the adjoint of `unfold`.

    Args:
        x: what `unfold` gives, [batch, channels * kernel height * kernel width, windows].
        output_size: the height and width of the images.
        kernel_size, dilation, padding, stride: as for `unfold`.

    Returns:
        [batch, channels, height, width].

    Raises:
        ValueError: the shapes do not fit.

    >>> import anabranch as ab
    >>> image = ab.ops.fold(ab.ops.ones((1, 4, 3)), (2, 4), 2)
    >>> ab.Session().run(image)[0, 0]
    array([[1., 2., 2., 1.],
           [1., 2., 2., 1.]], dtype=float32)
    """
    tensor = convert_to_tensor(x)
    if tensor.shape is None or len(tensor.shape) != 3:
        raise ValueError(
            f"fold: expected [batch, channels * kernel area, windows]; got shape {shape_text(tensor.shape)}."
        )
    sizes, steps, strides, borders = _fold_settings("fold", kernel_size, dilation, stride, padding)
    target = _settings("fold", "output_size", output_size, 2, 1)
    padded = [length + 2 * border for length, border in zip(target, borders, strict=True)]
    rows, columns = (_window_count("fold", *settings) for settings in zip(padded, sizes, strides, steps, strict=True))
    channels = _folded_channels(tensor, sizes, int(rows) * int(columns))
    batch = dim(tensor, 0)
    parts = reshape(tensor, (batch, channels, *sizes, rows, columns))
    parts = transpose(parts, (0, 1, 2, 4, 3, 5))
    wide = _added(parts, 4, padded[1], _window_positions(columns, sizes[1], strides[1], steps[1]))
    image = _added(wide, 2, padded[0], _window_positions(rows, sizes[0], strides[0], steps[0]))
    inner = tuple(slice(border, border + length) for border, length in zip(borders, target, strict=True))
    return getitem(image, (slice(None), slice(None), *inner)) if any(borders) else image


def _folded_channels(tensor: Tensor, sizes: Sequence[int], windows: int) -> DimLike:
    area = sizes[0] * sizes[1]
    values, count = dim(tensor, 1), dim(tensor, 2)
    if isinstance(values, int) and values % area:
        raise ValueError(
            f"fold: axis 1 must hold channels * {area} values, for a kernel of {sizes[0]} x {sizes[1]}; got {values}."
        )
    if isinstance(count, int) and count != windows:
        raise ValueError(f"fold: these settings make {windows} windows; got {count} on axis 2.")
    return values // area


def _added(x: Tensor, axis: int, length: int, positions: Tensor) -> Tensor:
    """Merge the two axes [size, windows] from `axis` on, and add up the values at their positions."""
    sizes: list[Any] = [dim(x, place) for place in range(rank_of(x))]
    sizes[axis : axis + 2] = [length]
    shape = tuple(size if isinstance(size, int) else None for size in sizes)
    return apply(PutRows(axis, False, shape), x, positions, convert_to_tensor(sizes, "int32"))


# --- extract_patches ------------------------------------------------------------------------------------------------


def extract_patches(
    images: TensorLike,
    size: IntOrSequence,
    strides: IntOrSequence | None = None,
    dilation_rate: IntOrSequence = 1,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """Return the patches of images or volumes.

    Args:
        images: one image or a batch; volumes (see `extract_patches_3d`) where `size` has three entries.
        size: the height and width of the patches, or both at once.
        strides: the distances between neighbouring patches; `size` by default.
        dilation_rate: the distance between neighbouring pixels of a patch.
        padding: ``"valid"``, or ``"same"`` for zeros around the images, so that there is a patch at every stride.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Returns:
        [batch, rows, columns, height * width * channels], or with channels first [batch, values, rows, columns].
        In both the values of a patch are ordered by row, column and channel.

    Raises:
        TypeError: `size` is neither an integer nor a tuple.
        ValueError: an argument is not one of those above, or no patch fits.

    >>> import anabranch as ab
    >>> ab.ops.image.extract_patches(ab.ops.ones((2, 20, 20, 3)), (5, 5)).shape
    (2, 4, 4, 75)
    """
    if not is_sequence(size) and not is_integer(size):
        raise TypeError(f"extract_patches: size must be an integer or a tuple; got {size!r}.")
    axes = len(size) if is_sequence(size) else 2
    if axes not in (2, 3):
        raise ValueError(f"extract_patches: size must have two entries, or three for volumes; got {size!r}.")
    return _patches("extract_patches", images, axes, size, strides, dilation_rate, padding, data_format)


def extract_patches_3d(
    volumes: TensorLike,
    size: IntOrSequence,
    strides: IntOrSequence | None = None,
    dilation_rate: IntOrSequence = 1,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """Return the patches of volumes, [batch, depth, height, width, channels], or of one volume.

    The arguments are those of `extract_patches`, with three entries each: depth, height, width.

    >>> import anabranch as ab
    >>> ab.ops.image.extract_patches_3d(ab.ops.ones((10, 10, 10, 3)), 5).shape
    (2, 2, 2, 375)
    """
    return _patches("extract_patches_3d", volumes, 3, size, strides, dilation_rate, padding, data_format)


def _patches(
    what: str,
    images: TensorLike,
    axes: int,
    size: Any,
    strides: Any,
    dilation_rate: Any,
    padding: str,
    data_format: str | None,
) -> Tensor:
    layout = check_data_format(what, data_format)
    sizes = _settings(what, "size", size, axes, 1)
    steps = _settings(what, "strides", sizes if strides is None else strides, axes, 1)
    dilations = _settings(what, "dilation_rate", dilation_rate, axes, 1)
    batch, single = _as_batch(what, images, axes, padding, layout)
    if padding == "same":
        batch = _padded_to_strides(batch, sizes, steps, dilations)
    windows, counts = _windows(what, batch, 1, sizes, steps, dilations)
    within, between = range(1, 2 * axes + 1, 2), range(2, 2 * axes + 1, 2)
    values = dim(batch, -1)
    for length in sizes:
        values = values * length
    order = (0, *between, *within, 2 * axes + 1)
    patches = reshape(transpose(windows, order), (dim(batch, 0), *counts, values))
    return _as_given(patches, axes, layout, single)


def _as_batch(what: str, given: TensorLike, axes: int, padding: str, layout: str) -> tuple[Tensor, bool]:
    """Return a batch with channels last of what was given, and whether that was a single one.

    Raises:
        ValueError: `padding` is unknown, or the number of axes does not fit.
    """
    if padding not in ("valid", "same"):
        raise ValueError(f"{what}: padding={padding!r} must be 'valid' or 'same'.")
    tensor = convert_to_tensor(given)
    if tensor.shape is None or len(tensor.shape) not in (axes + 1, axes + 2):
        raise ValueError(
            f"{what}: expected {axes + 1} axes, or {axes + 2} for a batch, with patches of {axes} axes; "
            f"got shape {shape_text(tensor.shape)}."
        )
    single = len(tensor.shape) == axes + 1
    batch = expand_dims(tensor, 0) if single else tensor
    if layout == "channels_first":
        batch = transpose(batch, (0, *range(2, axes + 2), 1))
    return batch, single


def _as_given(batch: Tensor, axes: int, layout: str, single: bool) -> Tensor:
    """Return a batch with channels last in the layout that was given, without its first axis if it is a single one."""
    if layout == "channels_first":
        batch = transpose(batch, (0, axes + 1, *range(1, axes + 1)))
    return squeeze(batch, 0) if single else batch


def _padded_to_strides(x: Tensor, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Tensor:
    """Return images with as many zeros around them as make a patch at every stride; the odd one comes last."""
    widths: list[tuple[DimLike, DimLike]] = [(0, 0)] * rank_of(x)
    for axis, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True), start=1):
        length = dim(x, axis)
        reach = (size - 1) * dilation + 1
        needed = larger(((length + stride - 1) // stride - 1) * stride + reach - length, 0)
        widths[axis] = (needed // 2, needed - needed // 2)
    return pad(x, widths)


def reconstruct_patches(
    patches: TensorLike,
    size: IntOrSequence,
    output_size: Sequence[int],
    strides: IntOrSequence | None = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """Put images or volumes together from patches that do not overlap; the inverse of `extract_patches`.

    Args:
        patches: of one image or a batch, as `extract_patches` gives them for the same `size`, `padding` and
            `data_format`.
        size: the height and width of the patches, or both at once; three entries for volumes.
        output_size: the height and width of the images, before those of volumes their depth. With `padding` "same" what
            is beyond them, on both sides, is left out.
        strides: `size` (the default), for patches that overlap have no inverse.
        padding: ``"valid"`` or ``"same"``.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Returns:
        [batch, height, width, channels], or with channels first [batch, channels, height, width]; of volumes and of one
        image, accordingly.

    Raises:
        TypeError: `size` is neither an integer nor a tuple, or `output_size` is no tuple.
        NotImplementedError: `strides` are not `size`.
        ValueError: an argument is not one of those above, or the sizes do not fit the patches.

    >>> import anabranch as ab
    >>> patches = ab.ops.image.extract_patches(ab.ops.ones((2, 20, 20, 3)), (5, 5))
    >>> ab.ops.image.reconstruct_patches(patches, (5, 5), (20, 20)).shape
    (2, 20, 20, 3)
    """
    what = "reconstruct_patches"
    if not is_sequence(size) and not is_integer(size):
        raise TypeError(f"{what}: size must be an integer or a tuple; got {size!r}.")
    if not is_sequence(output_size):
        raise TypeError(f"{what}: output_size must be a tuple, (height, width) for images; got {output_size!r}.")
    layout = check_data_format(what, data_format)
    axes = len(size) if is_sequence(size) else 2
    if axes not in (2, 3):
        raise ValueError(f"{what}: size must have two entries, or three for volumes; got {size!r}.")
    sizes = _settings(what, "size", size, axes, 1)
    target = _settings(what, "output_size", output_size, axes, 0)
    if strides is not None and _settings(what, "strides", strides, axes, 1) != sizes:
        raise NotImplementedError(
            f"{what}: strides must be those of size, {sizes}, for patches that overlap have no inverse; "
            f"got {strides!r}. "
            "Use ops.fold to add up overlaps."
        )
    batch, single = _as_batch(what, patches, axes, padding, layout)
    images = _joined(batch, sizes, target, padding)
    return _as_given(images, axes, layout, single)


def _joined(patches: Tensor, sizes: Sequence[int], target: Sequence[int], padding: str) -> Tensor:
    """Return images with channels last from a batch of their patches."""
    volume = math.prod(sizes)
    _check_divisible("reconstruct_patches", "the number of values in a patch", dim(patches, -1), volume)
    key: list[Any] = [slice(None)]
    for axis, (size, length) in enumerate(zip(sizes, target, strict=True), start=1):
        covered = dim(patches, axis) * size
        if isinstance(covered, int) and not (
            covered - size < length <= covered if padding == "same" else covered == length
        ):
            wanted = f"{max(covered - size + 1, 0)} to {covered}" if padding == "same" else str(covered)
            raise ValueError(
                f"reconstruct_patches: {covered // size} patches of {size} make {wanted} pixels with "
                f"padding={padding!r}; got {length} in output_size, on axis {axis - 1} of {tuple(target)}."
            )
        start = (covered - length) // 2
        key.append(slice(start, start + length))
    names = "ijk"[: len(sizes)], "uvw"[: len(sizes)]
    after = " ".join(f"({between} {within})" for between, within in zip(*names, strict=True))
    pattern = f"b {' '.join(names[0])} ({' '.join(names[1])} c) -> b {after} c"
    images = rearrange(patches, pattern, **dict(zip(names[1], sizes, strict=True)))
    return getitem(images, tuple(key))


# --- blocks ---------------------------------------------------------------------------------------------------------


def depth_to_space(x: TensorLike, block_size: int, data_format: str | None = "channels_last") -> Tensor:
    """Spread the channels of each pixel over a block of pixels (pixel shuffle); the inverse of `space_to_depth`.

    Args:
        x: images, [batch, height, width, channels], or with channels first [batch, channels, height, width].
        block_size: the height and width of a block, 2 at least.
        data_format: ``"channels_last"`` (the default) or ``"channels_first"``; None for `config.image_data_format()`.

    Returns:
        Images `block_size` times as high and wide with ``channels / block_size ** 2`` channels.

    Raises:
        ValueError: the images have another number of axes, or their channels make no blocks.

    >>> import anabranch as ab
    >>> ab.ops.depth_to_space(ab.ops.ones((1, 2, 2, 12)), 2).shape
    (1, 4, 4, 3)
    """
    tensor, layout = _block_input("depth_to_space", x, block_size, data_format)
    r = block_size
    channels = dim(tensor, 3 if layout == "channels_last" else 1)
    _check_divisible("depth_to_space", "the number of channels", channels, r * r)
    if layout == "channels_last":
        return rearrange(tensor, "b h w (i j c) -> b (h i) (w j) c", i=r, j=r)
    return rearrange(tensor, "b (c i j) h w -> b c (h i) (w j)", i=r, j=r)


def space_to_depth(x: TensorLike, block_size: int, data_format: str | None = "channels_last") -> Tensor:
    """Move each block of pixels into the channels of one pixel; the inverse of `depth_to_space`.

    Args:
        x: images, [batch, height, width, channels], or with channels first [batch, channels, height, width].
        block_size: the height and width of a block, 2 at least.
        data_format: ``"channels_last"`` (the default) or ``"channels_first"``; None for `config.image_data_format()`.

    Returns:
        Images of ``1 / block_size`` of the height and width, with ``channels * block_size ** 2`` channels.

    Raises:
        ValueError: the images have another number of axes, or their sizes are not multiples of `block_size`.

    >>> import anabranch as ab
    >>> ab.ops.space_to_depth(ab.ops.ones((1, 4, 4, 3)), 2).shape
    (1, 2, 2, 12)
    """
    tensor, layout = _block_input("space_to_depth", x, block_size, data_format)
    r = block_size
    first = 1 if layout == "channels_last" else 2
    _check_divisible("space_to_depth", "the height", dim(tensor, first), r)
    _check_divisible("space_to_depth", "the width", dim(tensor, first + 1), r)
    if layout == "channels_last":
        return rearrange(tensor, "b (h i) (w j) c -> b h w (i j c)", i=r, j=r)
    return rearrange(tensor, "b c (h i) (w j) -> b (c i j) h w", i=r, j=r)


def _block_input(what: str, x: TensorLike, block_size: int, data_format: str | None) -> tuple[Tensor, str]:
    layout, tensor = check_data_format(what, data_format), convert_to_tensor(x)
    if block_size < 2:
        raise ValueError(f"{what}: block_size must be at least 2; got {block_size}.")
    if tensor.shape is None or len(tensor.shape) != 4:
        raise ValueError(f"{what}: expected a batch of images (4 axes); got shape {shape_text(tensor.shape)}.")
    return tensor, layout


def _check_divisible(what: str, name: str, length: DimLike, divisor: int) -> None:
    if isinstance(length, int) and length % divisor:
        raise ValueError(f"{what}: {name}, {length}, must be a multiple of {divisor}.")


# --- rearrange ------------------------------------------------------------------------------------------------------

_Axes = list[list[str]]  # the names on each axis: several in a group


def rearrange(tensor: TensorLike, pattern: str, **axes_lengths: int) -> Tensor:
    """Split the axes of a tensor, put them in another order, and merge them.

    Args:
        tensor: a tensor with as many axes as the left side of the pattern.
        pattern: names of the axes before and after, as in ``"b (h p) w -> b p (w h)"``; a group in parentheses is one
            axis, whose last name counts fastest.
        axes_lengths: the sizes of names in groups; of each group one may be left out.

    Raises:
        ValueError: the pattern is malformed, or does not fit the tensor.

    >>> import anabranch as ab
    >>> images = ab.ops.ones((32, 30, 40, 3))
    >>> ab.ops.rearrange(images, "b (h h1) (w w1) c -> b h w (c h1 w1)", h1=2, w1=2).shape
    (32, 15, 20, 12)
    """
    before, after = _parse_pattern(pattern)
    names = [name for group in before for name in group]
    unknown = sorted(set(axes_lengths) - set(names))
    if unknown:
        raise ValueError(f"rearrange: {', '.join(unknown)} is no axis on the left of {pattern!r}.")
    if any(size < 1 for size in axes_lengths.values()):
        raise ValueError(f"rearrange: the sizes of axes must be positive; got {axes_lengths}.")
    x = convert_to_tensor(tensor)
    if x.shape is None or len(x.shape) != len(before):
        raise ValueError(
            f"rearrange: the left of {pattern!r} has {len(before)} axes; got a tensor of shape {shape_text(x.shape)}."
        )
    sizes: dict[str, DimLike] = {}
    for axis, group in enumerate(before):
        sizes |= _group_sizes(pattern, group, dim(x, axis), axes_lengths)
    apart = reshape(x, [sizes[name] for name in names])
    ordered = transpose(apart, [names.index(name) for group in after for name in group])
    return reshape(ordered, [math.prod(sizes[name] for name in group) for group in after])


def _parse_pattern(pattern: str) -> tuple[_Axes, _Axes]:
    sides = pattern.split("->")
    if len(sides) != 2:
        raise ValueError(f"rearrange: {pattern!r} must have one '->' between the axes before and after.")
    before, after = (_parse_side(pattern, side) for side in sides)
    left, right = (sorted(name for group in side for name in group) for side in (before, after))
    if left != right:
        raise ValueError(f"rearrange: both sides of {pattern!r} must name the same axes; got {left} and {right}.")
    if len(set(left)) != len(left):
        raise ValueError(f"rearrange: {pattern!r} names an axis twice.")
    return before, after


def _parse_side(pattern: str, side: str) -> _Axes:
    tokens = re.findall(r"\([\w\s]*\)|\w+|\S", side)
    for token in tokens:
        if not re.fullmatch(r"\([\w\s]*\)|\w+", token):
            raise ValueError(f"rearrange: {token!r} in {pattern!r} is neither a name nor a group of names.")
    return [re.findall(r"\w+", token) for token in tokens]


def _group_sizes(pattern: str, group: list[str], size: DimLike, given: dict[str, int]) -> dict[str, DimLike]:
    """Return the sizes of the names that make up one axis."""
    open_names = [name for name in group if name not in given]
    known = math.prod(given[name] for name in group if name in given)
    if len(open_names) > 1:
        raise ValueError(f"rearrange: {pattern!r} needs the sizes of all but one of {', '.join(open_names)}.")
    if isinstance(size, int) and (size % known if open_names else size != known):
        raise ValueError(f"rearrange: an axis of size {size} can't be ({' '.join(group)}) of {pattern!r} with {given}.")
    sizes: dict[str, DimLike] = {name: given[name] for name in group if name in given}
    for name in open_names:
        sizes[name] = size // known
    return sizes


__all__ = ["depth_to_space", "fold", "rearrange", "space_to_depth", "unfold"]
