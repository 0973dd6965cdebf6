"""Check who leads, and take in the rows that the leader reads for all: the part of the state for that worker.

The leader of an *open* epoch, whose length is unknown, supplies one batch after the other until it seals the epoch. So
much is read ahead that no worker has to wait for the leader's own share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import CancelledError, StateLostError
from .replica_shares import ReplicaShares

_AHEAD = 2  # shares that may be read ahead, for each share of a step or each worker


class ReplicaLeader(ReplicaShares):
    """The part of `ReplicaStepsState` for the worker that leads, and has these attributes; see there."""

    leader: int | None
    token: int
    _abandoned: str | None
    _notes: str
    _beginner: tuple[str, int] | None
    _is_running: bool
    _rows: dict[int, Any]
    _supplied: str

    def note(self, text: str) -> None:
        """Keep what the next leader will need, in place of what was noted before."""
        self._notes = text

    def notes(self) -> str:
        """Return the latest note."""
        return self._notes

    @property
    def _is_free(self) -> bool:
        """Test whether nobody leads, nor is to begin again."""
        return self.leader is None and self._beginner is None

    def check_leader(self, token: int) -> None:
        """Check the token of somebody who leads.

        Raises:
            CancelledError: another worker leads, or training has come to its end.
            StateLostError: nobody leads: the state in which the token was given is lost, or it was given up.
        """
        if token and not self.token:
            raise StateLostError(f"the state in which token {token} was given is lost; nobody leads yet")
        if token != self.token and self.leader is None and not self._has_ended:
            raise StateLostError(f"token {token} was given up, as all workers were taken for dead; nobody leads since")
        if token != self.token:
            by = "nobody leads" if self.leader is None else f"worker {self.leader} leads"
            why = f"{by}, with token {self.token}, since the worker before was taken for dead or has left"
            raise CancelledError(f"token {token} does not lead any more: {why}. What it does now changes nothing")

    def check_whole(self) -> None:
        """Check that the state of the generation is not lost.

        Raises:
            StateLostError: it is.
        """
        if self._abandoned is not None:
            raise StateLostError(self._abandoned)

    # --- rows that the leader reads -----------------------------------------------------------------------------------

    def _open(self, batches: int) -> int:
        """Begin an epoch of so many batches, -1 for one whose leader supplies them; return the number now."""
        self._is_open, self._rows, self._supplied = batches < 0, {}, ""
        return max(batches, 0)

    def supply(self, number: int, sizes: Sequence[int], rows: Any, note: str) -> None:
        """Add a batch to an open epoch.

        Args:
            number: of the batch in its epoch. One that is there already is left as it is.
            sizes: the number of bytes of each of its shares.
            rows: the bytes of all shares, one after the other.
            note: what a worker needs that leads, and supplies, from the next batch on.
        """
        if not self._is_open or number != self._total // self._shares:
            return
        self._supplied = note
        first, start = self._total, 0
        for share, size in enumerate(sizes, first):
            self._rows[share] = rows[start : start + size].copy()
            start += size
        self._total = first + len(sizes)
        self._pool.extend(range(first, self._total))
        self._undone.update(range(first, self._total))
        self._settle()

    def supplied(self) -> str:
        """Return the note on what was supplied last in the epoch; an empty text before."""
        return self._supplied

    def seal(self, note: str) -> None:
        """End the supply: the epoch has the batches that it has."""
        self._is_open, self._supplied = False, note
        self._choose_whole()
        self._settle()

    def rows(self, share: int) -> Any:
        """Return the bytes of a share; none if a set has it already."""
        return self._rows.get(share, b"")

    @property
    def _wants_supply(self) -> bool:
        """Test whether the leader is to read on."""
        return self._is_open and len(self._pool) < _AHEAD * max(self._shares, len(self._workers))

    def _choose_whole(self) -> bool:
        """Choose the set of the step, if all its gradients are there; return whether they were."""
        is_whole = bool(self._counted) and len(self._counted) == self._wanted
        if is_whole:
            self._choose()
        return is_whole

    def _choose(self) -> None:
        raise NotImplementedError

    def _settle(self) -> None:
        raise NotImplementedError


__all__ = ["ReplicaLeader"]
