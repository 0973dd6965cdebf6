"""`Membership`: decides in one place, without sockets and clocks, which workers form a group, and which of them leads.

Each group has a number, which is larger than those of all groups before it: the fencing token of its members. After a
loss every worker that is left asks to be counted. When all have asked they are the next group, and its lowest worker
leads. A worker that was declared lost is refused from then on, whatever it asks. So nobody votes, and of two workers
that both take themselves for the leader one is refused.
"""

from __future__ import annotations

from typing import Any

TICK_SECONDS = 0.5  # between two calls of `tick`
SILENT_TICKS = 20  # after so many ticks without a message a worker is declared lost
Message = dict[str, Any]


class Membership:
    """Decides who is in the group.

    Args:
        silent_ticks: after how many ticks without a message a worker is declared lost.

    Attributes:
        number: of the latest group.
        members: the ranks of its workers, in ascending order.
        lost: workers that are gone or were declared lost, and why.
        sent: the messages to be sent, for each the worker's rank and the message.
    """

    def __init__(self, silent_ticks: int = SILENT_TICKS) -> None:
        self.number = 1
        self.members: list[int] = []
        self.lost: dict[int, str] = {}
        self.sent: list[tuple[int, Message]] = []
        self._silent_ticks = silent_ticks
        self._silent: dict[int, int] = {}  # ticks since the latest message
        self._waiting: set[int] = set()  # to be counted
        self._is_over = True  # while no training is under way nobody is lost by silence

    # --- what workers say -------------------------------------------------------------------------------------------

    def begin(self, rank: int) -> None:
        """Take note that a worker begins a training; the first time it enters the group.

        Args:
            rank: its number.
        """
        if rank not in self.members and rank not in self.lost:
            if self.number > 1:
                self._refuse(rank, "the group has gone on after a loss, and nobody can join it")
                return
            self.members = sorted([*self.members, rank])
        if self._admits(rank):
            self._is_over = False
            self.sent.append((rank, {"begun": self.number}))

    def heard(self, rank: int) -> None:
        """Take note that a worker is there."""
        if self._admits(rank):
            self._silent[rank] = 0

    def count(self, rank: int, number: int) -> None:
        """Take note that a worker has noticed a loss in a group, and waits to be counted.

        Args:
            rank: its number.
            number: of the group.
        """
        if not self._admits(rank, number):
            return
        if self._is_over:
            self.sent.append((rank, {"over": self.number}))
            return
        self._waiting.add(rank)
        self._look()

    def end(self, rank: int, number: int) -> None:
        """Take note that a worker has ended a training: all others have its results, or can do without a group."""
        if self._admits(rank, number):
            self._is_over = True
            self.sent += [(each, {"over": self.number}) for each in sorted(self._waiting)]
            self._waiting.clear()

    def check(self, rank: int, number: int) -> None:
        """Answer a worker that asks whether it leads the latest group."""
        if not self._admits(rank, number):
            return
        if rank == self._live[0]:
            self.sent.append((rank, {"leads": self.number}))
        else:
            self._refuse(rank, f"worker {self._live[0]} leads")

    def gone(self, rank: int) -> None:
        """Take note that the connection to a worker has ended."""
        if rank in self.members and rank not in self.lost:
            self._lose(rank, "its connection was closed")
            self._look()

    # --- what follows -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Take note that `TICK_SECONDS` are over, in which this process ran: a worker that is silent may be stopped."""
        live = self._live
        for rank in live:
            self._silent[rank] = 0 if self._is_over else self._silent.get(rank, 0) + 1
        silent = [rank for rank in live if self._silent[rank] >= self._silent_ticks]
        if not silent or silent == live:  # if all are, nobody is there to go on
            return
        reason = f"nothing was heard of it for {self._silent_ticks * TICK_SECONDS:g} s"
        for rank in silent:
            self._lose(rank, reason)
            self._refuse(rank, reason)
            self.sent += [(each, {"lost": rank, "why": reason}) for each in live if each not in silent]
        self._look()

    @property
    def _live(self) -> list[int]:
        return [rank for rank in self.members if rank not in self.lost]

    def _admits(self, rank: int, number: int | None = None) -> bool:
        """Test whether a worker is in the latest group; it is refused if not."""
        if rank in self.lost:
            self._refuse(rank, self.lost[rank])
        elif rank not in self.members:
            self._refuse(rank, "it is in no group")
        elif number is not None and number != self.number:
            self._refuse(rank, f"{number} is not the number of the latest group, which is {self.number}")
        else:
            return True
        return False

    def _refuse(self, rank: int, why: str) -> None:
        self.sent.append((rank, {"refused": why, "latest": self.number}))

    def _lose(self, rank: int, why: str) -> None:
        self.lost[rank] = why
        self._waiting.discard(rank)

    def _look(self) -> None:
        """Make the next group if all workers that are left wait for it."""
        live = self._live
        if self._waiting and self._waiting.issuperset(live):
            self.number += 1
            self.members = live
            self._waiting.clear()
            self.sent += [(rank, {"group": self.number, "members": live}) for rank in live]


__all__ = ["SILENT_TICKS", "TICK_SECONDS", "Membership", "Message"]
