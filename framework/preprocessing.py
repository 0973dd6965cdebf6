"""Contents of ``anabranch.preprocessing``: the names of ``keras.preprocessing``, all of them in `utils` too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.common.names_elsewhere import PREPROCESSING_MODULE
from ..engine.objects.on_demand import on_demand
from . import utils as sequence
from .data import images as image
from .data.datasets import image_dataset_from_directory, text_dataset_from_directory, timeseries_dataset_from_array

if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__, _ = on_demand(globals(), {}, elsewhere=PREPROCESSING_MODULE)

__all__ = [
    "image",
    "image_dataset_from_directory",
    "sequence",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
]
