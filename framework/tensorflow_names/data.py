"""`tf.data`: datasets."""

from __future__ import annotations

from types import SimpleNamespace

from ..data.csv_files import make_csv_dataset
from ..data.element_dataset import ElementDataset as Dataset
from ..data.element_dataset import text_lines as TextLineDataset  # noqa: N812 - TensorFlow's name

AUTOTUNE = -1
experimental = SimpleNamespace(AUTOTUNE=AUTOTUNE, make_csv_dataset=make_csv_dataset)
__all__ = ["AUTOTUNE", "Dataset", "TextLineDataset", "experimental"]
