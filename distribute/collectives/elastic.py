"""`Elastic`: operations that the members of a group make together, and that those make again who are left after a loss.

All members make the same operations in the same order. Each begins only when all have ended the one before. So after a
loss the members that are left are at two operations at most, of which one follows the other: those that are behind get
the result of theirs from one that has it. Then all make the next one as a smaller group. If the first member is lost,
which leads, each of the others gets a `LeaderLostError` from its next operation, which is the same one for all.

Workers that were started again join between two operations of the first member, which is at a place then that it can
describe. It leaves the group, as if it were lost, and has all counted; so the others come to the operation behind that
place. When all are together once more, it gives those who have joined all state, and they make that operation, too.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable

from ...engine.ops import collectives
from ...engine.queues.errors import CancelledError, TaskFailedError
from .group import ProcessGroup
from .joiner import Joiner
from .membership_service import OverError, Seat
from .public import CONNECT_SECONDS, regrouped, taken_in

_NOTHING = -1  # how many operations a worker has ended that joins
_NUMBER = struct.Struct("<q")
_logger = logging.getLogger(__name__)


class LeaderLostError(Exception):
    """The first member of the group was lost; all others get this error in place of the same operation."""


class Elastic:
    """The operations that the members of a group make.

    Args:
        group: theirs; a `Joiner` is in none before `join`.
        use: called with each other group.
        state: returns all that operations change, as bytes.
        set_state: takes what `state` has returned in another member.

    Attributes:
        group: that of the members that are left.
        is_on: whether members go on after a loss. Otherwise its error is raised.
    """

    def __init__(
        self,
        group: ProcessGroup | Joiner,
        use: Callable[[ProcessGroup | Joiner], None],
        state: Callable[[], bytes],
        set_state: Callable[[bytes], None],
    ) -> None:
        self._joiner = group if isinstance(group, Joiner) else None
        if isinstance(group, ProcessGroup):
            self.group = group
            self._leader = group.left[0]
        self.is_on = False
        self._use = use
        self._state = state
        self._set_state = set_state
        self._whole: Callable[[], bytes] | None = None  # in the first member, while workers may join
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
            seat.begin(self.group.trainings)
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

    # --- workers that join ------------------------------------------------------------------------------------------

    @property
    def has_joiners(self) -> bool:
        """Test whether workers wait to join, which the first member may `admit`."""
        return self.is_on and self._seat is not None and self._seat.has_joiners.is_set()

    def admit(self, whole: Callable[[], bytes]) -> None:
        """Take in, in the first member, those who wait to join.

        Args:
            whole: returns all that they need to go on from here, as bytes.

        Raises:
            CancelledError: this member was declared lost, and the others go on without it.
        """
        seat = self._seat
        assert seat is not None
        self._whole, seat.admits = whole, True
        try:
            self._recovered()
        finally:
            self._whole, seat.admits = None, False

    def join(self, take: Callable[[bytes], None]) -> None:
        """Wait, in a worker that was started again, until the others take it in, and go on with them.

        Args:
            take: takes what `whole` has returned in the first member. It may be called again, if that one is lost.

        Raises:
            OverError: the training is over; it says what the others have left.
            CancelledError: no worker has the state, or the launcher is gone, or a worker has ended the training.
        """
        joiner = self._joiner
        assert joiner is not None
        while True:
            self.group = taken_in(joiner)
            self._use(self.group)
            self._leader = self.group.left[0]
            try:
                self._caught_up(_NOTHING)
                take(self._take_state(self.group.scatter_bytes(None, 0)))
                if joiner.takes_part():
                    self._joiner, self.is_on = None, True
                    return
            except TaskFailedError:  # who gives the state is lost, or another one
                pass
            except BaseException:
                self._give_up_group(joiner)
                joiner.close()
                raise
            self._give_up_group(joiner)

    @property
    def is_joining(self) -> bool:
        """Test whether this worker was started again, and the others have not taken it in."""
        return self._joiner is not None

    def _give_up_group(self, joiner: Joiner) -> None:
        """Leave a group that goes on without this worker, which keeps its place in the membership service."""
        self.group.watches = None
        self.group.close()
        collectives.set_group(joiner)
        self._use(joiner)

    # --- operations -------------------------------------------------------------------------------------------------

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

    def end(self, note: str = "") -> None:
        """Go on after no further loss. Whoever comes here has all results; it waits for those who have not.

        Without a membership service a member that is lost while the others wait here has them wait until those who had
        gone on before end.

        Args:
            note: what workers get that would join later.

        Raises:
            LeaderLostError: the first member was lost; `end` is called again.
        """
        if self.is_on:
            with contextlib.suppress(TaskFailedError, OverError):
                self.run(lambda: self.group.gather_bytes(b"")[0])
            if self._seat is not None:
                self._seat.end(note)
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
                ended, found = self._caught_up(self._ended)
                if _NOTHING in ended:
                    self._give_state(ended)
            except TaskFailedError:  # one more is lost
                continue
            return None if self._ended == max(ended) else found

    def _caught_up(self, own: int) -> tuple[list[int], bytes]:
        """Exchange how many operations have ended; return this, and the result of the latest for those behind.

        Raises:
            TaskFailedError: one more member is lost.
        """
        ended = [_NUMBER.unpack(each)[0] for each in self.group.gather_bytes(_NUMBER.pack(own))]
        most = max(ended)
        if {*ended} <= {most, _NOTHING}:
            return ended, b""
        data = b""
        if ended.index(most) == self.group.rank:
            data = self._state() if self._latest is None else self._latest
        return ended, self.group.gather_bytes(data)[ended.index(most)]

    def _give_state(self, ended: list[int]) -> None:
        """Have those who join get all state from the first member; all members call it."""
        parts: list[bytes] | None = None
        if self.group.rank == 0:
            assert self._whole is not None, "This is a bug in anabranch: workers join where no state can be described."
            latest = b"" if self._latest is None else self._latest
            size = _NOTHING if self._latest is None else len(latest)
            state = _NUMBER.pack(max(ended)) + _NUMBER.pack(size) + latest + self._whole()
            parts = [state if each == _NOTHING else b"" for each in ended]
        self.group.scatter_bytes(parts, 0)
        names = [name for name, each in zip(self.group.links.names, ended, strict=True) if each == _NOTHING]
        verb = "join" if names[1:] else "joins"
        _logger.warning("%s %s; training goes on with %d workers.", ", ".join(names), verb, len(ended))

    def _take_state(self, data: bytes) -> bytes:
        """Take the number of operations, and the result of the latest; return the state behind them."""
        count, size = (_NUMBER.unpack(data[at : at + _NUMBER.size])[0] for at in (0, _NUMBER.size))
        rest = data[2 * _NUMBER.size :]
        self._ended, self._latest = count, None if size == _NOTHING else rest[:size]
        return rest[max(size, 0) :]


__all__ = ["Elastic", "LeaderLostError"]
