"""Check who leads, pass on what the leader announces, and take in the rows that it reads for all.

The leader of an *open* epoch, whose length is unknown, supplies one batch after the other until it seals the epoch. So
much is read ahead that no worker has to wait for the leader's own share.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from .attempts import Attempt
from .errors import CancelledError, StateLostError
from .replica_shares import ReplicaExchanges
from .replica_tickets import LEAVE_TEXT

_AHEAD = 2  # shares that may be read ahead, for each share of a step or each worker


class ReplicaLeader(ReplicaExchanges):
    """The part of `ReplicaStepsState` for the worker that leads, and has these attributes; see there."""

    leader: int | None
    token: int
    _abandoned: str | None
    _notes: str
    _beginner: tuple[str, int] | None
    _is_running: bool
    _rows: dict[int, Any]
    _supplied: str
    _closed: str | None
    _is_appointed: bool
    _announcements: list[str]
    _hears: list[tuple[Attempt, int, int]]
    _assemblies: list[tuple[Attempt, int]]
    _chooses: collections.deque[Attempt]

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

    # --- announcements ----------------------------------------------------------------------------------------------

    def announce(self, text: str) -> None:
        """Add an announcement for all workers. It is kept for those that come later."""
        self._announcements.append(text)
        self._serve_all()

    def hear(self, worker: int, incarnation: int, number: int) -> Attempt:
        """Ask for the announcement of a number, counted from 0; it waits until there is one."""
        attempt = Attempt(1)
        refusal = self._refusal(worker, incarnation)
        if refusal is not None and not (self._closed is not None and number < len(self._announcements)):
            attempt.fail(refusal)
        else:
            self._serve(attempt, number, worker)
        return attempt

    def _serve_all(self) -> None:
        hears, self._hears = self._hears, []
        for hear in hears:
            self._serve(*hear)

    def _serve(self, attempt: Attempt, number: int, worker: int) -> None:
        if number < len(self._announcements):
            attempt.finish((self._announcements[number],))
        elif worker in self._retiring:
            attempt.finish((LEAVE_TEXT,))
        elif worker == self.leader and self._is_appointed:
            attempt.finish(("",))
        else:
            self._hears.append((attempt, number, worker))
            self._serve_assemblies()

    def assemble(self, least: int) -> Attempt:
        """Ask to hear when all other workers wait for the next announcement, and at least so many have taken part.

        Then nobody is at work on what was announced before. The outcome is the number of workers.
        """
        attempt = Attempt(1)
        if self._closed is not None:
            attempt.fail(CancelledError(self._closed))
        else:
            self._assemblies.append((attempt, least))
            self._serve_assemblies()
        return attempt

    def _serve_assemblies(self) -> None:
        if not self._assemblies or self.absent():
            return
        found, seen = self._assemblies, len(self._seen)
        self._assemblies = [each for each in found if each[1] > seen]
        for attempt, least in found:
            if least <= seen:
                attempt.finish((len(self._workers),))

    def absent(self) -> list[int]:
        """Return the workers but for the leader that do not wait for the next announcement."""
        return sorted(self._workers.keys() - {hear[2] for hear in self._hears} - {self.leader})

    def _fail_leader(self, error: Exception) -> None:
        """Have the leader's requests that wait fail."""
        waiting = [*self._chooses, *[each[0] for each in self._assemblies]]
        self._chooses.clear()
        self._assemblies.clear()
        for attempt in waiting:
            attempt.fail(error)

    def _fail_all(self, others: Sequence[Attempt], error: Exception) -> None:
        """Have all requests for sets and announcements fail that wait, and some others."""
        waiting = [*others, *[hear[0] for hear in self._hears]]
        self._hears.clear()
        for attempt in waiting:
            attempt.fail(error)
        self._fail_leader(error)

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
        is_whole = False
        while self._counted and self._useful >= self._wanted:  # shares without rows may be left for the next step
            self._choose()
            is_whole = True
        return is_whole

    def _choose(self) -> None:
        raise NotImplementedError

    def _refusal(self, worker: int, incarnation: int) -> Exception | None:
        raise NotImplementedError

    def _settle(self) -> None:
        raise NotImplementedError


__all__ = ["ReplicaLeader"]
