"""`PyDataset`: data that Python makes batch by batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any


class PyDataset:
    """Base class for data that are made batch by batch (``keras.utils.PyDataset``).

    Subclasses define `__getitem__(index)`, which returns x, (x, y) or (x, y, sample_weight) for a whole batch, and
    `__len__` (or the property `num_batches`, where None means that there is no end). `fit` draws a new order of the
    batches for each epoch unless ``shuffle=False``.

    Args:
        workers: how many threads of the training process make batches ahead, while a step runs. They come in order;
            with more than one, `__getitem__` is called by several threads at once. 0: `fit`'s own thread makes each
            batch when it is needed, for data that depend on what training does.
        use_multiprocessing: accepted as in Keras; batches are always made in threads.
        max_queue_size: how many batches are made ahead.

    >>> import numpy as np
    >>> class Squares(PyDataset):
    ...     def __len__(self):
    ...         return 2
    ...     def __getitem__(self, index):
    ...         x = np.full((4, 1), index, "float32")
    ...         return x, x**2
    >>> Squares().num_batches
    2
    """

    workers = 1  # also for subclasses that do not call this class's __init__
    max_queue_size = 10
    use_multiprocessing = False

    def __init__(self, workers: int = 1, use_multiprocessing: bool = False, max_queue_size: int = 10) -> None:
        self.workers = workers
        self.use_multiprocessing = use_multiprocessing
        self.max_queue_size = max_queue_size

    def __repr__(self) -> str:
        count = self.num_batches
        return f"<{type(self).__name__.lstrip('_')}: {'endless' if count is None else f'{count} batches'}>"

    def _repr_html_(self) -> str:
        from ...engine.common.html import array_view  # notebooks alone need it

        return array_view(repr(self)[1:-1])

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__(index), which returns a batch.")

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of a pass in order; without end where the number of batches is None, or not defined."""
        has_number = hasattr(self, "__len__") or type(self).num_batches is not PyDataset.num_batches
        count = self.num_batches if has_number else None
        return (self[index] for index in (itertools.count() if count is None else range(count)))

    @property
    def num_batches(self) -> int | None:
        """Batches in an epoch; None for endless data."""
        length = getattr(self, "__len__", None)
        if length is None:
            raise NotImplementedError(f"{type(self).__name__} must define __len__ or the property num_batches.")
        return length()

    def on_epoch_begin(self) -> None:
        """Act before each pass; where there is no end of a pass, before each epoch."""

    def on_epoch_end(self) -> None:
        """Act after each pass, also one that is not read to its end; where there is none, after each epoch."""
