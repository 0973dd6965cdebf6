"""`Elastic`: operations that the members of a group make together, and that those make again who are left after a loss.

All members make the same operations in the same order. Each begins only when all have ended the one before. So after a
loss the members that are left are at two operations at most, of which one follows the other: those that are behind get
the result of theirs from one that has it. Then all make the next one as a smaller group. If the first member is lost,
which leads, each of the others gets a `LeaderLostError` from its next operation, which is the same one for all.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable

from ...engine.queues.errors import CancelledError, TaskFailedError
from .group import ProcessGroup
from .membership_service import OverError, Seat
from .public import CONNECT_SECONDS, regrouped

_NUMBER = struct.Struct("<q")
_logger = logging.getLogger(__name__)


class LeaderLostError(Exception):
    """The first member of the group was lost; all others get this error in place of the same operation."""


class Elastic:
    """The operations that the members of a group make.

    Args:
        group: theirs.
        use: called with each smaller group.
        state: returns all that operations change, as bytes.
        set_state: takes what `state` has returned in another member.

    Attributes:
        group: that of the members that are left.
        is_on: whether members go on after a loss. Otherwise its error is raised.
    """

    def __init__(
        self,
        group: ProcessGroup,
        use: Callable[[ProcessGroup], None],
        state: Callable[[], bytes],
        set_state: Callable[[bytes], None],
    ) -> None:
        self.group = group
        self.is_on = False
        self._use = use
        self._state = state
        self._set_state = set_state
        self._leader = group.left[0]
        self._ended = 0  # how many operations
        self._latest: bytes | None = b""  # the result of the latest one; None for the state

    def begin(self) -> None:
        """Go on after a loss, from now on. All members call it."""
        self.group.watch(CONNECT_SECONDS)
        self.is_on = self._seat is None or self._has_begun(self._seat)

    def _has_begun(self, seat: Seat) -> bool:
        """Have the membership service count the members; return whether it is there for all of them."""
        said = b"1"
        try:
            seat.begin()
        except CancelledError as error:  # the launcher is gone
            _logger.warning("%s", error)
            said = b""
        return all(self.group.gather_bytes(said))

    @property
    def _seat(self) -> Seat | None:
        watches = self.group.watches
        return watches if isinstance(watches, Seat) else None

    @property
    def has_successor(self) -> bool:
        """Test whether the others go on when the first member is lost."""
        return self.is_on and self._seat is not None and self.group.size > 1

    @property
    def is_refused(self) -> bool:
        """Test whether the others have gone on without this member, or nobody can say who goes on."""
        return self._seat is not None and self._seat.is_refused

    def lacks_successor(self, task: str) -> bool:
        """Test whether a task is the first member, without which the others could go on, had they a service."""
        return self.is_on and self._seat is None and task == self.group.links.names[0]

    def accept_leader(self) -> None:
        """Go on under the first member of the group, after a `LeaderLostError`."""
        self._leader = self.group.left[0]

    def check_leads(self) -> None:
        """Check that no other member has taken over from this one, for instance while it was stopped.

        Raises:
            CancelledError: one has.
        """
        if self.is_on and self._seat is not None:
            self._seat.check()

    def run(self, work: Callable[[], bytes]) -> bytes:
        """Make an operation whose result all members get.

        Args:
            work: makes it by collectives of `group`, or fails and has changed nothing but its result.

        Raises:
            TaskFailedError: a member is lost, and the others can't go on: `is_on` is not set, or it was the first, and
                there is no membership service.
            LeaderLostError: the first member was lost, in this operation or before.
            CancelledError: this member was declared lost, and the others go on without it.
        """
        result = self._made(work)
        self._ended, self._latest = self._ended + 1, result
        return result

    def change(self, work: Callable[[], None]) -> None:
        """Make an operation that changes the state, in the same way in all members.

        Args:
            work: makes it, or fails and has changed nothing.

        Raises:
            TaskFailedError, LeaderLostError, CancelledError: as `run` does.
        """

        def made() -> bytes:
            work()
            return b""

        self._made(made, changes=True)
        self._ended, self._latest = self._ended + 1, None

    def end(self) -> None:
        """Go on after no further loss. Whoever comes here has all results; it waits for those who have not.

        Without a membership service a member that is lost while the others wait here has them wait until those who had
        gone on before end.

        Raises:
            LeaderLostError: the first member was lost; `end` is called again.
        """
        if self.is_on:
            with contextlib.suppress(TaskFailedError, OverError):
                self.run(lambda: self.group.gather_bytes(b"")[0])
            if self._seat is not None:
                self._seat.end()
        self.is_on = False

    def _made(self, work: Callable[[], bytes], changes: bool = False) -> bytes:
        while True:
            if self.group.left[0] != self._leader:
                raise LeaderLostError
            try:
                return work()
            except TaskFailedError:
                if not self.is_on:
                    raise
                found = self._recovered()
            if found is None:
                continue
            if changes:
                self._set_state(found)
            return found

    def _recovered(self) -> bytes | None:
        """Go on as a smaller group; return the result, or the state after it, of an operation that others have ended.

        None if nobody has: then it is made again.
        """
        while True:
            before = self.group
            self.group = regrouped(before)
            assert before.watches is not None
            lost = [before.watches.names[rank] for rank in before.left if rank not in self.group.left]
            if lost:
                _logger.warning("%s %s gone; the others go on.", ", ".join(lost), "are" if lost[1:] else "is")
            self._use(self.group)
            try:
                ended = [_NUMBER.unpack(each)[0] for each in self.group.gather_bytes(_NUMBER.pack(self._ended))]
                most = max(ended)
                if min(ended) == most:
                    return None
                data = b""
                if ended.index(most) == self.group.rank:
                    data = self._state() if self._latest is None else self._latest
                found = self.group.gather_bytes(data)[ended.index(most)]
            except TaskFailedError:  # one more is lost
                continue
            return None if self._ended == most else found


__all__ = ["Elastic", "LeaderLostError"]
