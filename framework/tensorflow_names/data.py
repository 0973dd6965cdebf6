"""`tf.data`: datasets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from ...engine.common.names_elsewhere import DATA_MODULE
from ...engine.objects.on_demand import on_demand
from ..data.csv_files import make_csv_dataset
from ..data.element_dataset import ElementDataset as Dataset
from ..data.element_dataset import text_lines as TextLineDataset  # noqa: N812 - TensorFlow's name

AUTOTUNE = -1
experimental = SimpleNamespace(AUTOTUNE=AUTOTUNE, make_csv_dataset=make_csv_dataset)
__all__ = ["AUTOTUNE", "Dataset", "TextLineDataset", "experimental"]

if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__, _ = on_demand(globals(), {}, elsewhere=DATA_MODULE)
