"""Data that `fit`, `evaluate` and `predict` are given, in the form in which they use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...engine.common.dtypes import name_of
from ..config import floatx
from ..data.adapters import X_ONLY, ArrayData, Batch, Data, as_data, batch_of, is_array_like, unpack_x_y_sample_weight

if TYPE_CHECKING:
    from ..model_types import ModelData
    from ..structures import Rows


def batch_of_x(x: Rows) -> Batch:
    """Return a batch of inputs only."""
    if type(x) is np.ndarray and x.ndim and x.dtype.kind not in "OSU":
        is_other = x.dtype.kind == "f" and name_of(x.dtype) != floatx()  # `dtype.name` is computed each time
        return Batch(X_ONLY, [x.astype(floatx()) if is_other else x], len(x))
    return batch_of(x)


def without_targets(batch: Batch) -> Batch:
    """Return the batch with its inputs only."""
    if batch.layout.y is None and batch.layout.sample_weight is None:
        return batch
    x, _, _ = batch.layout.pack(batch.leaves)
    return batch_of(x)


def batch_size_of(data: Data, given: int | None) -> int | None:
    """Return the batch size of arrays; of other data what `fit` got."""
    return data.batch_size if isinstance(data, ArrayData) else given


def validation_data_of(given: ModelData | None, batch_size: int | None) -> Data | None:
    """Return the data to validate on, from what `fit` got; None if it got nothing."""
    if given is None:
        return None
    if isinstance(given, (tuple, list)) and not is_batches(given):
        x, y, sample_weight = unpack_x_y_sample_weight(given)
        return as_data(x, y, sample_weight, batch_size=batch_size if is_array_like(x, y) else None)
    return as_data(given, batch_size=batch_size if is_array_like(given) else None)


def is_batches(given: object) -> bool:
    """Test whether a list is one of batches ``[(x, y), ...]``, not ``[x, y]``."""
    return isinstance(given, list) and bool(given) and all(isinstance(item, tuple) for item in given)
