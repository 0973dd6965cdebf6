"""`HandedOut` and `SuppliedRows`: batches that the chief reads, of which each worker gets its rows."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...distribute.collectives.group import ProcessGroup
from ..data.adapters import X_ONLY, Batch, layout_of
from ..training.epochs import Epochs
from .cluster_fit import Logs
from .programs import ReplicaPrograms
from .shares import Totals, bounds, check_cut
from .ways import Operations, joined_bytes, packed, parted_bytes, unpacked


class HandedOut:
    """One epoch of batches, under `DataParallel`.

    Args:
        operations: by which the chief hands out, to the workers that are left.
        passes: the data, in the chief; None in other workers.
        first: how many batches of the epoch were made before an interruption.
        position: of the data when the epoch begins; see `place_of`.

    Attributes:
        position: of the data behind the batches that were handed out.
        has_ended: whether there is no further batch.
        is_exhausted: whether there is none for later epochs, either.
    """

    def __init__(
        self, operations: Operations, passes: Epochs | None, first: int = 0, position: Logs | None = None
    ) -> None:
        self.position = position or {}
        self.has_ended = self.is_exhausted = False
        self._before = self.position  # and behind all of these but the latest
        self._operations = operations
        self._passes = passes
        self._running: Iterator[Batch] | None = None if passes is None else passes.epoch()
        self._given = first
        self._whole: Batch | None = None  # in the chief
        self._group: ProcessGroup | None = None  # among which the rows were shared
        self._batch: Batch | None = None
        self._window = (0, 0, 0)
        self._size = 0

    def has(self, number: int) -> bool:
        """Hand out the next batch, if there is one. All workers call it, for one number after the other."""
        if self._given > number:  # by a chief that was lost
            self.position, self._given = self._before, number
        return self.give(None if self._running is None else next(self._running, None))

    def read_from(self, passes: Epochs, number: int) -> None:
        """Have this worker read the data on, in place of a chief that was lost.

        Args:
            passes: the data.
            number: of the batch to be handed out next, which may have been before.
        """
        self._passes = passes
        passes.go_to(number, self._before if self._given > number else self.position)
        self._running = passes.epoch()

    def give(self, whole: Batch | None, is_first_part: bool = False) -> bool:
        """Hand out a batch of the chief's; return whether it is one.

        Args:
            whole: the batch; None for none, or in another worker.
            is_first_part: whether all workers get the rows of the first one.
        """
        self._whole, self._group = whole, None
        found = json.loads(self._operations.run(lambda: self._share(is_first_part)))
        self._before, self.position = self.position, found["position"]
        self._size, self.has_ended, self.is_exhausted = found["size"], not found["is_batch"], found["is_exhausted"]
        self._given += not self.has_ended
        return not self.has_ended

    def _share(self, is_first_part: bool = False) -> bytes:
        """Give each worker of the group its rows of the chief's batch; return a note on it for all workers."""
        group, whole = self._operations.group, self._whole
        parts: list[bytes] | None = None
        if group.rank == 0:
            about: Logs = {"is_batch": whole is not None, "size": 0 if whole is None else whole.size}
            about["position"] = {} if self._passes is None else place_of(self._passes)
            about["is_exhausted"] = self._passes is not None and self._passes.exhausted
            note = json.dumps(about).encode()
            ranks = [0] * group.size if is_first_part else range(group.size)
            parts = [joined_bytes([note, b"" if whole is None else _written(whole, r, group.size)]) for r in ranks]
        note, data = parted_bytes(group.scatter_bytes(parts, 0))
        if data:
            self._batch, self._window, _ = _read(data)
        self._group = group
        return note

    def batch(self, share: int) -> Batch:
        """Return the rows of this worker. All workers call it at the same step: their rows are others after a loss."""
        if self._group is not self._operations.group:
            self._share()
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
        return self._size


class SuppliedRows:
    """One epoch of batches, under `ParameterServer`, whose ps task 0 keeps shares until they are in the parameters.

    A share that a lost worker had, or whose gradient was dropped, is still there for whoever computes it next.

    Args:
        parts: how many shares a batch has.
        programs: gives those of this worker, which are others after a connection was lost.

    Attributes:
        parts: as given.
        batches: how many the chief has read.
    """

    def __init__(self, parts: int, programs: Callable[[], ReplicaPrograms]) -> None:
        self.parts = parts
        self._programs = programs
        self._window = (0, 0, 0)
        self._totals: Totals = []
        self._passes: Epochs | None = None
        self._running: Iterator[Batch] = iter(())
        self.batches = 0

    # --- in each worker ---------------------------------------------------------------------------------------------

    def batch(self, share: int, count: int = 1) -> Batch:
        """Return the rows of a share, or of so many from that on; none if the gradient of another worker counts."""
        found = [self._programs().rows(each) for each in range(share, share + count)]
        if not all(found):
            self._window, self._totals = (0, 0, 0), []
            return Batch(X_ONLY, [], 0)
        parts, windows, totals = zip(*map(_read, found), strict=True)
        batch, (first, _, size), self._totals = parts[0], windows[0], totals[0]
        self._window = first, sum(part.size for part in parts), size
        if count == 1:
            return batch
        leaves = [np.concatenate(leaves) for leaves in zip(*(part.leaves for part in parts), strict=True)]
        return Batch(batch.layout, leaves, self._window[1])

    def window(self, share: int, count: int = 1) -> tuple[int, int, int]:
        """Return the number of the first row of `batch` in its batch, how many it has, and how many that has."""
        return self._window

    def part(self, share: int, batch: Batch) -> float:
        """Return the part of the rows of its batch that the share is."""
        return batch.size / max(self._window[2], 1)

    def totals(self, share: int, find: object) -> Totals:
        """Return what losses are divided by in the global batch of a share, as the chief has found it."""
        return self._totals

    # --- in the chief -----------------------------------------------------------------------------------------------

    def read_from(self, passes: Epochs, note: str = "") -> None:
        """Have this worker read the data.

        Args:
            passes: the data.
            note: of a chief that was lost, in whose place this worker reads on.
        """
        self._passes = passes
        known: dict[str, Any] = json.loads(note) if note else {"batches": 0}
        self.batches = known["batches"]
        if note:
            passes.go_to(0 if known["is_over"] else self.batches, known["position"])
            passes.exhausted = known["is_exhausted"]
        if not note or not known["is_over"]:
            self._running = passes.epoch()

    def supply(self) -> None:
        """Read a batch for all workers, or note that there is no further one."""
        assert self._passes is not None, "This is a bug in anabranch: a worker that does not lead is to supply rows."
        whole = next(self._running, None)
        if whole is None:
            self._programs().seal(self._note(is_over=True))
            return
        self.batches += 1
        programs = self._programs()
        totals = programs.plan.totals_of(whole)
        shares = [_written(whole, part, self.parts, totals) for part in range(self.parts)]
        programs.supply(self.batches - 1, shares, self._note(is_over=False))

    def _note(self, is_over: bool) -> str:
        assert self._passes is not None
        found = {"batches": self.batches, "is_over": is_over, "is_exhausted": self._passes.exhausted}
        return json.dumps({**found, "position": place_of(self._passes)})


def place_of(passes: Epochs) -> dict[str, object]:
    """Return the place in the data up to which batches were read, as JSON has it; see `Epochs.position`."""
    return {**passes.position, "random": None}


def _written(whole: Batch, rank: int, parts: int, totals: Totals | None = None) -> bytes:
    """Write the rows of a worker.

    Args:
        whole: the batch of all workers.
        rank, parts: the number of the worker's part, and how many there are.
        totals: what losses are divided by; see `ReplicaPlan.totals_of`.

    Raises:
        TypeError: the structure of the batch can't be written.
    """
    check_cut(whole.layout, whole.leaves)
    first, last = bounds(whole.size, rank, parts)
    try:
        ast.literal_eval(whole.layout.key)
    except (ValueError, SyntaxError):
        raise TypeError(
            f"fit() on a cluster hands out batches of arrays, or of dicts, lists and tuples of arrays; these have the "
            f"structure {whole.layout.key}."
        ) from None
    found = [None if total is None else total.tolist() for total in totals or []]
    window = [first, last - first, whole.size]
    head = json.dumps({"layout": whole.layout.key, "window": window, "totals": found}).encode()
    rows = packed([np.asarray(leaf[first:last]) for leaf in whole.leaves])
    return b"".join([len(head).to_bytes(8, "little"), head, rows])


def _read(data: bytes) -> tuple[Batch, tuple[int, int, int], Totals]:
    """Read what `_written` has written.

    Returns:
        The rows; the number of the first one, how many there are, and of how many; and what losses are divided by.
    """
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    first, count, total = head["window"]
    layout = layout_of(*ast.literal_eval(head["layout"]))
    totals = [None if each is None else np.asarray(each, "float64") for each in head["totals"]]
    return Batch(layout, unpacked(data[8 + length :]), count), (first, count, total), totals


__all__ = ["HandedOut", "SuppliedRows", "place_of"]
