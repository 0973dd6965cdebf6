"""`ContrastLimitedAdaptiveHistogramEqualization`: images with as much contrast in each part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects.arguments import check_numbers
from ..core.layer_config import config_from_signature
from .image_layer import ImageLayer, Transformation, rescaled, value_pair

if TYPE_CHECKING:
    from ..core.options import ImageOptions


_LEVELS = 256


@config_from_signature()
class ContrastLimitedAdaptiveHistogramEqualization(ImageLayer):
    """Spreads the values of each tile of each channel of each image (CLAHE), in training and otherwise.

    Args:
        value_range: the range of the pixels.
        clip_limit: how many times as often as on average a value counts at most, so that noise does not grow in tiles
            that are nearly even; 0 for no limit.
        tile_grid_size: ``(rows, columns)``, into how many tiles an image is divided.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    A pixel takes what the four tiles around it make of its value, weighted by how near they are.

    Raises:
        ValueError: the range or the grid is not a pair; the size of the images is unknown.

    Source: Zuiderveld, "Contrast Limited Adaptive Histogram Equalization", in Graphics Gems IV, 1994.

    >>> import numpy as np
    >>> layer = ContrastLimitedAdaptiveHistogramEqualization(clip_limit=0.0, tile_grid_size=(1, 1))
    >>> layer(np.array([[[10.0], [11.0], [12.0], [13.0]]]))[..., 0].tolist()
    [[63.75, 127.5, 191.25, 255.0]]
    """

    moves_pixels: ClassVar[bool] = False

    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        clip_limit: float = 4.0,
        tile_grid_size: Sequence[int] = (8, 8),
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(data_format, **kwargs)
        grid = tile_grid_size
        if not isinstance(grid, (tuple, list)) or len(grid) != 2 or not all(isinstance(n, int) and n > 0 for n in grid):
            raise ValueError(
                f"Layer {self.name!r}: tile_grid_size must be a pair of positive integers, got {tile_grid_size!r}."
            )
        self.value_range = value_pair(self, value_range)
        check_numbers(f"Layer {self.name!r}", clip_limit=clip_limit)
        self.clip_limit = clip_limit
        self.tile_grid_size = (grid[0], grid[1])

    def is_active(self, training: bool | None) -> bool:
        return True

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        height, width = self._known_size(images)
        first = self.data_format == "channels_first"
        planes = images if first else ops.transpose(images, (0, 3, 1, 2))
        pixels = rescaled(ops.cast(planes, "float32"), self.value_range, (0, 255))
        spread = rescaled(self._equalized(pixels, height, width), (0, 255), self.value_range)
        return ops.cast(spread if first else ops.transpose(spread, (0, 2, 3, 1)), images.dtype)

    def _equalized(self, pixels: Tensor, height: int, width: int) -> Tensor:
        """Return planes ``(batch, channels, height, width)`` of values from 0 to 255, equalized."""
        rows, columns = self.tile_grid_size
        high, wide = -(-height // rows), -(-width // columns)  # the size of a tile
        fill = [[0, 0], [0, 0], [0, rows * high - height], [0, columns * wide - width]]
        levels = ops.cast(ops.clip(ops.pad(pixels, fill, "symmetric"), 0, 255), "int32")
        tables = self._tables(levels, high, wide)
        batch, channels = ops.shape(levels)[:2]
        count = batch * channels
        planes = ops.reshape(ops.expand_dims(ops.arange(count), (1, 2)), (batch, channels, 1, 1))
        top, bottom, down = _neighbours(rows, high)
        left, right, across = _neighbours(columns, wide)

        def looked_up(row: np.ndarray, column: np.ndarray) -> Tensor:
            tile = (planes * rows + ops.reshape(row, (-1, 1))) * columns + column
            return ops.take(ops.reshape(tables, (-1,)), tile * _LEVELS + levels)

        upper = looked_up(top, left) * (1.0 - across) + looked_up(top, right) * across
        lower = looked_up(bottom, left) * (1.0 - across) + looked_up(bottom, right) * across
        down = ops.reshape(down, (-1, 1))
        return (upper * (1.0 - down) + lower * down)[..., :height, :width]

    def _tables(self, levels: Tensor, high: int, wide: int) -> Tensor:
        """Return the new value of each value in each tile: ``(batch * channels * rows * columns, 256)``."""
        rows, columns = self.tile_grid_size
        batch, channels = ops.shape(levels)[:2]
        tiles = batch * channels * rows * columns
        parted = ops.reshape(levels, (batch, channels, rows, high, columns, wide))
        flat = ops.reshape(ops.transpose(parted, (0, 1, 2, 4, 3, 5)), (tiles, high * wide))
        places = flat + _LEVELS * ops.expand_dims(ops.arange(tiles), 1)
        ones = ops.ones_like(places, dtype="float32")
        sums = ops.segment_sum(ops.reshape(ones, (-1,)), ops.reshape(places, (-1,)), num_segments=tiles * _LEVELS)
        counts = ops.reshape(sums, (tiles, _LEVELS))
        if self.clip_limit > 0:
            clipped = ops.minimum(counts, self.clip_limit * (high * wide) / _LEVELS)
            counts = clipped + ops.sum(counts - clipped, axis=-1, keepdims=True) / _LEVELS
        below = ops.cumsum(counts, axis=-1)
        least = ops.min(below, axis=-1, keepdims=True)
        rest = high * wide - least
        return ops.clip((below - least) * 255.0 / ops.where(ops.equal(rest, 0.0), 1.0, rest), 0.0, 255.0)


def _neighbours(tiles: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each position on an axis, the tiles before and behind it by their middles, and the latter's share."""
    places = (np.arange(tiles * size, dtype="float32") - size / 2.0) / size
    before = np.floor(places)
    first = np.clip(before, 0, tiles - 1).astype("int32")
    second = np.clip(before + 1, 0, tiles - 1).astype("int32")
    return first, second, (places - before).astype("float32")
