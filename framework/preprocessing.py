"""Contents of ``anabranch.preprocessing``: the names of ``keras.preprocessing``, all of them in `utils` too."""

from __future__ import annotations

from . import utils as sequence
from .data import images as image
from .data.datasets import image_dataset_from_directory, text_dataset_from_directory, timeseries_dataset_from_array

__all__ = [
    "image",
    "image_dataset_from_directory",
    "sequence",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
]
