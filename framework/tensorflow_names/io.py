"""`tf.io`: files in functions of datasets. What a file holds is a vector of uint8, not a string."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from . import gfile as gfile
from .image import decode_image, decode_jpeg, decode_png

if TYPE_CHECKING:
    from ..structures import Array


def read_file(filename: TensorLike, name: str | None = None) -> Tensor:
    """Read a file: its bytes as a vector of uint8, which `decode_image` and its like take.

    Raises:
        FileNotFoundError: there is no such file.
    """
    return ops.numpy_function(_bytes_of, filename, "uint8", shape=(None,), name=name)


def _bytes_of(path: object) -> Array:
    return np.frombuffer(Path(str(path)).read_bytes(), np.uint8)


__all__ = ["decode_image", "decode_jpeg", "decode_png", "gfile", "read_file"]
