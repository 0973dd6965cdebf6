"""`Membership`: decides in one place, without sockets and clocks, which workers form a group, and which of them leads.

Each group has a number, which is larger than those of all groups before it: the fencing token of its members. After a
loss every worker that is left asks to be counted. When all have asked they are the next group. Its leader is that of
the group before, or else its lowest worker. A worker that was declared lost is refused from then on, whatever it asks.
So nobody votes, and of two workers that both take themselves for the leader one is refused.

Each worker that was declared lost by its silence, and speaks again, doubles the silence that is allowed. So a machine
that is busy for longer does not lose one worker after the other.

A worker that was started again asks to join. The leader hears of it, and when it can give all state away it has all
workers counted once more: then the next group has the new worker, too. Until that one says that it has the state it
does not count: if anyone is lost before, the others go on without it, and it asks again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

TICK_SECONDS = 0.5  # between two calls of `tick`
SILENT_TICKS = 20  # after so many ticks without a message a worker is declared lost
Message = dict[str, Any]


class Membership:
    """Decides who is in the group.

    Args:
        silent_ticks: after how many ticks without a message a worker is declared lost, as long as that was no mistake.

    Attributes:
        number: of the latest group.
        members: the ranks of its workers: the leader, then the others in ascending order.
        lost: workers that are gone or were declared lost, and why.
        training: the number of the latest training that has begun, from 1.
        expected: those that were started again, and have not joined so far.
        sent: the messages to be sent, for each the worker's rank and the message.
        most_doubled: how many times the silence that is allowed is doubled.
    """

    most_doubled = 3

    def __init__(self, silent_ticks: int = SILENT_TICKS) -> None:
        self.number = 1
        self.members: list[int] = []
        self.lost: dict[int, str] = {}
        self.training = 0
        self.expected: set[int] = set()
        self.sent: list[tuple[int, Message]] = []
        self._silent_ticks = silent_ticks
        self._silent: dict[int, int] = {}  # ticks since the latest message
        self._waiting: set[int] = set()  # to be counted
        self._joining: dict[int, int] = {}  # workers that wait to join, and in which training
        self._new: set[int] = set()  # members that don't have the state so far
        self._outside: set[int] = set()  # workers that are in no group, and have asked to join
        self._silenced: set[int] = set()  # who was declared lost by its silence, and whose connection has not ended
        self._back: set[int] = set()  # those of them that have spoken since: they were alive
        self._mistakes = 0  # how many there were of these
        self._admits: set[int] = set()  # who gives its state to those who join, if it leads the group that is counted
        self._notes: dict[int, str] = {}  # by training that is over: what it has left to those who come later
        self._failed = ""  # why the latest training has ended for all
        self._is_over = True  # while no training is under way nobody is lost by silence

    # --- what workers say -------------------------------------------------------------------------------------------

    def begin(self, rank: int, training: int = 1) -> None:
        """Take note that a worker begins a training; the first time it enters the group.

        Args:
            rank: its number.
            training: the number of the training, which all members have in common.
        """
        if rank not in self.members and rank not in self.lost:
            if self.number > 1:
                self._refuse(rank, "the group has gone on after a loss: who was started again joins it")
                return
            self.members = sorted([*self.members, rank])
        if self._may_ask(rank):
            self.training, self._is_over, self._failed = training, False, ""
            self.sent.append((rank, {"begun": self.number}))
            self._offer()

    def heard(self, rank: int) -> None:
        """Take note that a worker is there."""
        if rank not in self._outside and self._may_ask(rank):
            self._silent[rank] = 0

    def count(self, rank: int, number: int, admits: bool = False) -> None:
        """Take note that a worker has noticed a loss in a group, and waits to be counted.

        Args:
            rank: its number.
            number: of the group.
            admits: whether it leads, and can give all state to those who wait to join.
        """
        if not self._may_ask(rank, number):
            return
        if rank in self._new:
            self._refuse(rank, "it does not have the state of the training")
        elif self._is_over:
            self._answer_over([rank])
        else:
            self._waiting.add(rank)
            if admits:
                self._admits.add(rank)
            self._look()

    def end(self, rank: int, number: int, note: str = "") -> None:
        """Take note that a worker has ended a training: all others have its results, or can do without a group.

        Args:
            rank: its number.
            number: of the group.
            note: what workers get that come to this training later.
        """
        if self._may_ask(rank, number):
            self._is_over = True
            self._notes[self.training] = note
            self._answer_over(sorted(self._waiting))
            self._waiting.clear()
            for each in [*self._joining]:
                self.join(each, self._joining.pop(each))

    def fail(self, rank: int, number: int, why: str) -> None:
        """Take note that a worker ends the training of all, by an error.

        Args:
            rank: its number.
            number: of the group.
            why: what the others get as the reason.
        """
        if self._is_over or rank in self._new or not self._may_ask(rank, number):
            return
        self._is_over, self._failed = True, why
        for each in sorted({*self._waiting, *self._joining} - {rank}):
            self.sent.append((each, {"failed": why}))
        self._waiting.clear()
        self._joining.clear()

    def check(self, rank: int, number: int) -> None:
        """Answer a worker that asks whether it leads the latest group."""
        if not self._may_ask(rank, number):
            return
        if self._live and rank == self._live[0]:
            self.sent.append((rank, {"leads": self.number}))
        else:
            self._refuse(rank, f"worker {self._live[0]} leads" if self._live else "no worker has the state")

    def gone(self, rank: int) -> None:
        """Take note that the connection to a worker has ended."""
        self._joining.pop(rank, None)
        self._outside.discard(rank)
        self._silenced.discard(rank)
        if rank in self.members and rank not in self.lost:
            self._lose(rank, "its connection was closed")
            self._look()

    # --- what those say who join ------------------------------------------------------------------------------------

    def join(self, rank: int, training: int) -> None:
        """Take note that a worker that was started again waits to join, or has come to no state in a group.

        Args:
            rank: its number.
            training: in which it takes part next.
        """
        if rank in self._silenced:
            self._refuse(rank, self.lost[rank])
            return
        self._outside.add(rank)
        if rank in self._new:
            self._new.discard(rank)
            self.members.remove(rank)
        elif rank in self.members and rank not in self.lost:
            self._lose(rank, "it was started again")
        if training < self.training or (training == self.training and self._is_over and not self._failed):
            self.sent.append((rank, {"over": self.number, "note": self._notes.get(training, "")}))
        elif training == self.training and self._is_over:
            self.sent.append((rank, {"failed": self._failed}))
        else:
            self._joining[rank] = training
            self._offer()
        self._look()

    def take_part(self, rank: int, number: int) -> None:
        """Take note that a new member has all state: from now on it counts.

        Args:
            rank: its number.
            number: of the group in which it has got the state.
        """
        if rank in self._new and number == self.number:
            self._new.discard(rank)
            self.expected.discard(rank)
            self.sent.append((rank, {"takes part": number}))
        else:
            self.sent.append((rank, {"asks again": self.number}))

    # --- what follows -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Take note that `TICK_SECONDS` are over, in which this process ran: a worker that is silent may be stopped."""
        live = [rank for rank in self.members if rank not in self.lost]
        for rank in live:
            self._silent[rank] = 0 if self._is_over else self._silent.get(rank, 0) + 1
        most = self._silent_ticks * 2 ** min(self._mistakes, self.most_doubled)
        silent = [rank for rank in live if self._silent[rank] >= most]
        if not silent or {*silent} >= {*self._live}:  # if all are, nobody is there to go on
            return
        reason = f"nothing was heard of it for {most * TICK_SECONDS:g} s"
        for rank in silent:
            self._lose(rank, reason)
            self._silenced.add(rank)
            self._back.discard(rank)
            self._refuse(rank, reason)
            self.sent += [(each, {"lost": rank, "why": reason}) for each in live if each not in silent]
        self._look()

    def goes_on_without(self, ranks: Collection[int]) -> bool:
        """Test whether a training is under way that others can go on with when workers have ended."""
        return not self._is_over and any(rank not in ranks for rank in self._live)

    @property
    def _live(self) -> list[int]:
        """The members that have all state; the first one leads."""
        return [rank for rank in self.members if rank not in self.lost and rank not in self._new]

    def _may_ask(self, rank: int, number: int | None = None) -> bool:
        """Test whether a worker is in the latest group; it is refused if not."""
        if rank in self.lost:
            self._note_mistake(rank)
            self._refuse(rank, self.lost[rank])
        elif rank not in self.members:
            self._refuse(rank, "it is in no group")
        elif number is not None and number != self.number:
            self._refuse(rank, f"{number} is not the number of the latest group, which is {self.number}")
        else:
            return True
        return False

    def _note_mistake(self, rank: int) -> None:
        """Note that a worker speaks which was declared lost by its silence."""
        if rank in self._silenced - self._back:
            self._back.add(rank)
            self._mistakes += 1

    def _refuse(self, rank: int, why: str) -> None:
        self.sent.append((rank, {"refused": why, "latest": self.number}))

    def _answer_over(self, ranks: list[int]) -> None:
        self.sent += [(rank, {"over": self.number}) for rank in ranks]

    def _lose(self, rank: int, why: str) -> None:
        self.lost[rank] = why
        self._waiting.discard(rank)
        self._new.discard(rank)

    def _offer(self) -> None:
        """Notify the leader that workers wait to join what is under way."""
        if not self._is_over and self._live and self.training in self._joining.values():
            self.sent.append((self._live[0], {"joins": True}))

    def _look(self) -> None:
        """Make the next group if all workers that are left wait for it."""
        live = self._live
        if not live:  # who waits to join would wait for ever
            for rank in [*self._joining, *sorted(self._new)]:
                self._refuse(rank, "no worker is left that has the state of the training")
            self._joining.clear()
            return
        if not self._waiting.issuperset(live):
            return
        first = self.members[0] if self.members[0] in live else live[0]
        joined = [
            rank for rank, training in self._joining.items() if first in self._admits and training == self.training
        ]
        for rank in joined:
            del self._joining[rank]
            self.lost.pop(rank, None)
            self._silent[rank] = 0
        self.number += 1
        self.members = [first, *sorted({*live, *joined} - {first})]
        self._outside = (self._outside | self._new).difference(joined)
        self._new = {*joined}
        self._admits.clear()
        self._waiting.clear()
        self.sent += [(rank, {"group": self.number, "members": [*self.members]}) for rank in self.members]
        self._offer()


__all__ = ["SILENT_TICKS", "TICK_SECONDS", "Membership", "Message"]
