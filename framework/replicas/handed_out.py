"""`HandedOut`: batches that the chief reads, of which each worker gets its rows."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

import numpy as np

from ...distribute.collectives.group import ProcessGroup
from ..data.adapters import Batch, Data, layout_of
from .shares import bounds
from .ways import packed, unpacked


def are_handed_out(data: Data, steps_per_epoch: int | None) -> bool:
    """Test whether the chief has to read data for all.

    It has where they can be read once only, where each process would draw another order, or an epoch is not a
    whole pass.
    """
    return not data.restartable or data.draws_order or data.batches is None or steps_per_epoch is not None


class HandedOut:
    """One epoch of batches.

    Args:
        group: the workers.
        running: the batches, in the chief; None in other workers.
    """

    def __init__(self, group: ProcessGroup, running: Iterator[Batch] | None) -> None:
        self._group = group
        self._running = running
        self._batch: Batch | None = None
        self._window = (0, 0, 0)

    def has(self, number: int) -> bool:
        """Hand out the next batch, if there is one. All workers call it, for one number after the other."""
        return self.give(None if self._running is None else next(self._running, None))

    def give(self, whole: Batch | None, is_first_part: bool = False) -> bool:
        """Hand out a batch of the chief's; return whether it is one.

        Args:
            whole: the batch; None for none, or in another worker.
            is_first_part: whether all workers get the rows of the first one.
        """
        parts: list[bytes] | None = None
        if self._group.rank == 0:
            ranks = [0] * self._group.size if is_first_part else range(self._group.size)
            parts = [_written(whole, rank, self._group.size) for rank in ranks]
        data = self._group.scatter_bytes(parts, 0)
        if not data:
            return False
        length = int.from_bytes(data[:8], "little")
        head = json.loads(data[8 : 8 + length])
        layout = layout_of(*ast.literal_eval(head["layout"]))
        first, count, total = head["window"]
        self._window = first, count, total
        self._batch = Batch(layout, unpacked(data[8 + length :]), count)
        return True

    def batch(self, share: int) -> Batch:
        """Return the rows of this worker."""
        assert self._batch is not None
        return self._batch

    def window(self, share: int) -> tuple[int, int, int]:
        """Return the number of this worker's first row in its batch, how many it has, and how many the batch has."""
        return self._window

    def part(self, share: int, batch: Batch) -> float:
        """Return the part of the batch's rows that this worker has."""
        return batch.size / max(self._window[2], 1)

    def size_of(self, number: int) -> int:
        """Return the number of rows of the batch."""
        return self._window[2]


def _written(whole: Batch | None, rank: int, parts: int) -> bytes:
    """Write the rows of a worker; nothing if there is no batch.

    Raises:
        TypeError: the structure of the batch can't be written.
    """
    if whole is None:
        return b""
    first, last = bounds(whole.size, rank, parts)
    try:
        ast.literal_eval(whole.layout.key)
    except (ValueError, SyntaxError):
        raise TypeError(
            f"fit() on a cluster hands out batches of arrays, or of dicts, lists and tuples of arrays; these have the "
            f"structure {whole.layout.key}."
        ) from None
    head = json.dumps({"layout": whole.layout.key, "window": [first, last - first, whole.size]}).encode()
    rows = packed([np.asarray(leaf[first:last]) for leaf in whole.leaves])
    return b"".join([len(head).to_bytes(8, "little"), head, rows])


__all__ = ["HandedOut", "are_handed_out"]
