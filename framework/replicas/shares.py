"""`Shares`: the parts of global batches that workers compute, cut out of data that every worker has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Tensor
from ...engine.ops.random.keys import global_generator
from ..data.adapters import ArrayData, Batch, Data, Layout
from ..data.row_counts import check_rows
from ..training.epochs import Epochs

if TYPE_CHECKING:
    from ..structures import Array
    from .cluster_fit import Logs
    from .handed_out import HandedOut, SuppliedRows


Totals: TypeAlias = list[NDArray[np.float64] | None]  # what losses are divided by; see `ReplicaPlan.totals_of`


def are_handed_out(passes: Epochs, may_repeat: bool) -> bool:
    """Test whether the chief has to read data for all.

    It has where they can be read once only, where each process would draw another order, or an epoch is not a
    whole pass.

    Args:
        passes: the data.
        may_repeat: whether rows may be handed out again, so that they have to be found by number.
    """
    data = passes.data
    has_order = data.restartable and not data.draws_order and data.batches is not None
    is_by_number = isinstance(data, ArrayData) or not may_repeat
    return not has_order or not is_by_number or passes.steps_per_epoch is not None


class Shares:
    """One epoch's global batches, cut into shares of equal size as far as that goes.

    Args:
        data: the data.
        parts: how many shares a global batch has.
        seed: the state of the global generator with which the chief begins the pass, so that all draw one order.

    Attributes:
        parts: as given.
    """

    def __init__(self, data: Data, parts: int, seed: list[int]) -> None:
        self._data = data
        self.parts = parts
        generator = global_generator()
        generator.state = np.array(seed, "int64")
        self._order = data.order() if isinstance(data, ArrayData) else None
        self._running: Iterator[Batch] = iter(()) if isinstance(data, ArrayData) else data.look()
        self._position = -1
        self._latest: Batch | None = None

    def has(self, number: int) -> bool:
        """Test whether the epoch has a global batch of this number."""
        return number < (self._data.batches or 0)

    def batch(self, share: int, count: int = 1) -> Batch:
        """Return the rows of a share, or of so many from that on, which are of one batch.

        Raises:
            ValueError: data that are read in order would have to be read again.
        """
        number, part = divmod(share, self.parts)
        if isinstance(self._data, ArrayData):
            chosen = self._data.rows_of(self._order, number)
            first, last = bounds(len(chosen), part, self.parts, count)
            return self._data.gather(chosen[first:last])
        return part_of(self._whole(number), part, self.parts, count)

    def totals(self, share: int, find: Callable[[Batch], Totals]) -> Totals:
        """Return what `find` finds in all rows of the global batch of a share that has been requested before."""
        number = share // self.parts
        if isinstance(self._data, ArrayData):
            return find(self._data.gather(self._data.rows_of(self._order, number)))
        return find(self._whole(number))

    def window(self, share: int, count: int = 1) -> tuple[int, int, int]:
        """Return the number of a share's first row in its global batch, how many it has, and how many the batch has.

        Args:
            share: its number.
            count: of how many shares, from that on.
        """
        number, part = divmod(share, self.parts)
        total = self.size_of(number)
        first, last = bounds(total, part, self.parts, count)
        return first, last - first, total

    def part(self, share: int, batch: Batch) -> float:
        """Return the part of the rows of its global batch that a share is; the share has been requested before."""
        return batch.size / max(self.size_of(share // self.parts), 1)

    def size_of(self, number: int) -> int:
        """Return the number of rows of a global batch of which a share has been asked for."""
        if isinstance(self._data, ArrayData):
            return len(self._data.rows_of(self._order, number))
        return self._whole(number).size

    def _whole(self, number: int) -> Batch:
        while self._position < number:
            self._latest = next(self._running, None)
            self._position += 1
        if self._latest is None or self._position != number:
            raise ValueError(
                f"Global batch {number} is asked for, but the data are at batch {self._position}: rows of a worker "
                "that is gone were handed out again, which takes data whose rows can be found by number. Give arrays."
            )
        return self._latest


def bounds(rows: int, part: int, parts: int, count: int = 1) -> tuple[int, int]:
    """Return the first row of a part, or of so many from that on, and the one behind the last.

    >>> [bounds(7, part, 3) for part in range(3)]
    [(0, 3), (3, 5), (5, 7)]
    """
    size, more = divmod(rows, parts)
    end = part + count
    return part * size + min(part, more), end * size + min(end, more)


def check_cut(layout: Layout, leaves: Sequence[Tensor | Array], part: str = "worker's part") -> None:
    """Check that a batch can be cut into parts by its rows.

    Args:
        layout: of the batch.
        leaves: its arrays or tensors; those whose number of rows is not known yet are passed over.
        part: how errors call a part.

    Raises:
        ValueError: they have different numbers of rows, so that nothing says which of them belong together.
    """
    where = f" where a {part} has some of the rows"
    check_rows(layout.pack(list(leaves)), lambda leaf: (leaf.shape or (None,))[0], "All arrays of a batch", where)


def part_of(whole: Batch, part: int, parts: int, count: int = 1) -> Batch:
    """Return the rows of one of so many parts of a batch, or of so many from that on."""
    check_cut(whole.layout, whole.leaves)
    first, last = bounds(whole.size, part, parts, count)
    return Batch(whole.layout, [leaf[first:last] for leaf in whole.leaves], last - first)


@dataclass
class Current:
    """An epoch that is under way.

    Attributes:
        epoch: counted from 0.
        number: by which tickets of it are taken.
        shares: its rows.
        first: how many steps of it were done before this generation.
        applied: how many steps of this generation were applied before it.
        seed: of the order of its rows.
        shown: how many of its steps this worker's callbacks have seen while it followed a chief.
        seen: how many the chief's callbacks have seen where this worker took over, and one more than there are if they
            have seen its end; None if no chief was lost.
    """

    epoch: int
    number: int
    shares: Shares | SuppliedRows
    first: int
    applied: int
    seed: list[int] = field(default_factory=list)
    shown: int = 0
    seen: int | None = None


class Stage(Enum):
    """The stages of an epoch under `DataParallel`; each ends when all workers have the chief's message on it."""

    BEGINS = auto()
    STEPS = auto()
    VALIDATES = auto()
    ENDS = auto()
    TRAINED = auto()  # behind the last epoch


@dataclass
class Place:
    """The place of a `fit` under `DataParallel`: workers that are at the same operation have the same one.

    Attributes:
        epoch: counted from 0.
        done: how many of its steps are made.
        first: how many of them were made before an interruption.
        stage: of the epoch.
        shares: its rows, once their order is drawn.
        has_states: whether generators of this worker have the states with which the epoch begins.
        ended: how many steps the chief's callbacks have seen, and all workers have what these have changed.
        logs: of the epoch, so far.
        seen: the latest moment of which this worker's callbacks were notified.
    """

    epoch: int
    done: int = 0
    first: int = 0
    stage: Stage = Stage.BEGINS
    shares: Shares | HandedOut | None = None
    has_states: bool = False
    ended: int = 0
    logs: Logs = field(default_factory=dict)
    seen: tuple[str, int] = ("", 0)
