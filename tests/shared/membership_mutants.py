"""Mistakes in `Membership`, planted one at a time: simulations have to find each."""

from __future__ import annotations

from anabranch.distribute.collectives.membership import Membership


class GivesANumberTwice(Membership):
    """Gives a group that somebody joins the number of the one before."""

    def _look(self) -> None:
        before = self.number
        super()._look()
        if self.number > before and self._new:
            self.number = before
            for _, message in self.sent:
                if "group" in message:
                    message["group"] = before


class TakesTheLostBack(Membership):
    """Lets a worker that was declared lost go on with its old number, as long as there is no later one."""

    def _may_ask(self, rank: int, number: int | None = None) -> bool:
        if number == self.number:
            self.lost.pop(rank, None)
        return super()._may_ask(rank, number)


class CountsWithoutState(Membership):
    """Counts a worker that has joined as one of those that are left, although it has come to no state."""

    def join(self, rank: int, training: int) -> None:
        if rank in self._new:
            self._new.discard(rank)
            self.count(rank, self.number)
        else:
            super().join(rank, training)


class AdmitsAtAnyLoss(Membership):
    """Has workers join whenever members are counted, wherever the leader is."""

    def count(self, rank: int, number: int, admits: bool = False) -> None:
        super().count(rank, number, True)


class LetsTheLowestLead(Membership):
    """Lets the lowest member lead, although it has just joined."""

    def _look(self) -> None:
        super()._look()
        self.members.sort()
        for _, message in self.sent:
            if "group" in message:
                message["members"].sort()


class ForgetsWhoWaits(Membership):
    """Does not offer a new leader those that wait, nor refuse them at the end."""

    def gone(self, rank: int) -> None:
        waiting, self._joining = self._joining, {}
        super().gone(rank)
        self._joining = {each: training for each, training in waiting.items() if each != rank}


MUTANTS = [
    GivesANumberTwice,
    TakesTheLostBack,
    CountsWithoutState,
    AdmitsAtAnyLoss,
    LetsTheLowestLead,
    ForgetsWhoWaits,
]

__all__ = ["MUTANTS"]
