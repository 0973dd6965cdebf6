"""The words in which `ReplicaStepsState` and workers speak: tickets, receipts and the sets of steps."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ..common.quick_dataclass import dataclass
from .attempts import Attempt
from .errors import CancelledError

NO_TICKET = -1  # in place of a ticket's number: the epoch is over
LEAD = -2  # in place of a ticket's number: the worker is to lead from now on
LEAVE = -3  # in place of a ticket's number: the worker has nothing out, and may leave as it was to
SUPPLY = -4  # in place of a ticket's number: the leader is to supply a batch, or to seal the epoch
TICKET_BITS = 31  # tickets of a generation are numbered from its number times two to the power of this
LEAVE_TEXT = "leave"  # the same in place of an announcement, which is JSON


class Receipt(IntEnum):
    """The outcome of handing in a gradient."""

    TAKEN = 0
    LATE = 1  # its step had its set already, or it was staler than is allowed
    DUPLICATE = 2  # another worker was quicker with the same share
    REFUSED = 3  # the worker is not known any more, or the epoch is over


class Ticket(NamedTuple):
    """The work that a worker is to do.

    Attributes:
        number: its own, by which gradients are put; NO_TICKET at the end of an epoch.
        step: the step whose parameters are read, counted from 0 over all epochs: so many have been applied.
        share: the number of the share in its epoch; share ``g * shares + p`` is part p of global batch g.
        length: how many shares it is for, from that on; more than one only where workers exchange sums.
    """

    number: int
    step: int
    share: int
    length: int = 1


class Chosen(NamedTuple):
    """The set of a step.

    Attributes:
        step: which.
        tickets: their numbers, in the order of shares.
        rows: of each.
        horizon: no ticket with a lower number is in use, but those of the set.
    """

    step: int
    tickets: list[int]
    rows: list[int]
    horizon: int


@dataclass
class Member:
    """A worker that takes part.

    Attributes:
        task, incarnation: of its process.
    """

    task: str
    incarnation: int


@dataclass
class Out:
    """A ticket that is out.

    Attributes:
        worker: who has it.
        step, share: what it is for.
        since: the time at which it was taken.
        watch: the worker's request to hear when it may give up the share; None before there is one.
        length: how many shares it is for, from that on.
    """

    worker: int
    step: int
    share: int
    since: float
    watch: Attempt | None = None
    length: int = 1

    def give_up(self) -> None:
        """Have the worker stop, if it watches: what it is at would not count."""
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.fail(CancelledError(f"the gradients of share {self.share} come too late for step {self.step}"))

    def end_watch(self) -> None:
        """Answer the worker that its gradients have come."""
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.finish(())
