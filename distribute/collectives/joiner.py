"""`Joiner`: a worker that was started again, until those that went on without it take it in."""

from __future__ import annotations

import contextlib
from typing import Any, NoReturn

from ...engine.ops.collectives import Group
from ...engine.queues.errors import CancelledError, TaskFailedError
from ..transport.connections import Identity
from ..transport.wire import FrameError
from .group import ProcessGroup
from .membership_service import Seat, address_of_service


class Joiner(Group):
    """Stands for a group that this process is not in so far: no collective can run.

    Args:
        names: those of all workers, by rank.
        addresses: where they listen, by rank.
        rank: of this one.
        incarnation: drawn when this process started.
        token: that of the job.
        shares_memory: whether to use memory that processes of a host share, where they can.

    Attributes:
        trainings: how many trainings this process has come to.
    """

    def __init__(
        self, names: list[str], addresses: list[str], rank: int, incarnation: int, token: bytes, shares_memory: bool
    ) -> None:
        self.names = names
        self.addresses = addresses
        self.rank = rank
        self.size = len(names)
        self.ranks = tuple(range(len(names)))
        self.identity = Identity(names[rank], incarnation)
        self.token = token
        self.trainings = 0
        self._shares_memory = shares_memory
        self._seat: Seat | None = None

    def joined(self, timeout: float) -> ProcessGroup:
        """Wait until the others take this worker in, in its latest training; return the group.

        If that one is lost before this worker has all state, it is called again.

        Args:
            timeout: for how many seconds members wait for each other once they are counted.

        Raises:
            OverError: the training is over.
            CancelledError: no worker has the state, or the launcher is gone, or a worker has ended the training.
        """
        question = {"join": self.trainings}
        while True:
            try:
                if self._seat is None:
                    self._seat, question = self._seated(question), None
                ranks = self._seat.joined(question)
                question = {"join": self.trainings}
                with contextlib.suppress(TaskFailedError, OSError):
                    found = ProcessGroup.of_counted(self._seat, ranks, timeout, self._shares_memory)
                    found.trainings, found.started = self.trainings, self.size
                    return found
            except BaseException:
                self.close()  # for the next training it connects again
                raise

    def _seated(self, question: dict[str, Any]) -> Seat:
        try:
            return Seat(address_of_service(), self, question)
        except (OSError, FrameError) as error:
            raise CancelledError(
                f"{self.names[self.rank]} was started again, and can't ask the launcher to join the others ({error}). "
                "Start all workers again: with BackupAndRestore training goes on from the last backup."
            ) from None

    def takes_part(self) -> bool:
        """Have this worker count from now on, since it has all state; return whether the others are still there."""
        assert self._seat is not None
        return self._seat.takes_part()

    def close(self) -> None:
        """Give up the connection to the launcher."""
        if self._seat is not None:
            self._seat.close()
            self._seat = None

    # --- collectives ------------------------------------------------------------------------------------------------

    def _refuse(self) -> NoReturn:
        raise CancelledError(
            f"{self.names[self.rank]} was started again, and joins the others in a fit() that is under way, or begins "
            "later. Before that it runs no collectives, and no train_on_batch(). For scripts that need them start all "
            "workers again: with BackupAndRestore training goes on from the last backup."
        )

    def subgroup(self, ranks: tuple[int, ...]) -> Group:
        self._refuse()

    def all_reduce(self, array: Any, reduce_op: str) -> Any:
        self._refuse()

    def begin_all_reduce(self, array: Any, reduce_op: str) -> int:
        self._refuse()

    def reduce_scatter(self, array: Any, reduce_op: str) -> Any:
        self._refuse()

    def all_gather(self, array: Any, axis: int) -> Any:
        self._refuse()

    def broadcast(self, array: Any, root: int) -> Any:
        self._refuse()

    def barrier(self) -> None:
        self._refuse()


__all__ = ["Joiner"]
