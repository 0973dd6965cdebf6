"""`Communicator`: what NCCL calls the members of a collective, each with a GPU; made by agreement of all members."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .group import ProcessGroup

_FACTS_BYTES = 1024  # of what members exchange at once: the longest are the 128 numbers of an id
_ERROR_LETTERS = 300
_SIGN = 128
_LOOK_SECONDS = 0.01
_GRACE_SECONDS = 5.0  # by how much later than others a member may have its communicator
_GIVEN_UP = ""  # the error of a member that waited for one whose error is another
_OPS = {"sum": "NCCL_SUM", "mean": "NCCL_SUM", "max": "NCCL_MAX", "min": "NCCL_MIN"}


class NcclUnusableError(RuntimeError):
    """The members of a group can't use NCCL together: the message is the same in all of them."""


class Communicator:
    """A communicator of NCCL, over arrays of cupy.

    Args:
        xp: cupy.
        made: its `NcclCommunicator`.
        device: the number of this member's GPU.

    Attributes:
        device: as given.
    """

    def __init__(self, xp: Any, made: Any, device: int) -> None:
        self._nccl = xp.cuda.nccl
        self._made = made
        self.device = device
        self._scope = xp.cuda.Device(device)
        self._lock = threading.Lock()  # not held around collectives, so that `abort` can end these
        self._is_aborted = False

    def all_reduce(self, sent: Any, found: Any, reduce_op: str, stream: int) -> None:
        """Reduce arrays of one size and dtype into another one."""
        self._made.allReduce(*_addresses(sent, found), sent.size, self._kind(sent), self._op(reduce_op), stream)

    def reduce_scatter(self, sent: Any, found: Any, reduce_op: str, stream: int) -> None:
        """Reduce arrays; each member gets its part."""
        self._made.reduceScatter(*_addresses(sent, found), found.size, self._kind(sent), self._op(reduce_op), stream)

    def all_gather(self, sent: Any, found: Any, stream: int) -> None:
        """Gather arrays of one size, each in a row of another one."""
        self._made.allGather(*_addresses(sent, found), sent.size, self._kind(sent), stream)

    def broadcast(self, sent: Any, found: Any, root: int, stream: int) -> None:
        """Copy the array of one member into one of each."""
        self._made.broadcast(*_addresses(sent, found), sent.size, self._kind(sent), root, stream)

    def _kind(self, array: Any) -> int:
        return getattr(self._nccl, f"NCCL_{array.dtype.name.upper()}")

    def _op(self, reduce_op: str) -> int:
        return getattr(self._nccl, _OPS[reduce_op])

    @property
    def errors(self) -> type[Exception]:
        """The class of the errors that NCCL raises."""
        return self._nccl.NcclError

    def check(self) -> None:
        """Raise the error with which what runs has failed, if it has, and was not aborted."""
        with self._lock:
            if not self._is_aborted:
                self._made.check_async_error()

    def abort(self) -> None:
        """End what runs, without the other members. NCCL frees the communicator, which is not called any more."""
        with self._lock, self._scope:
            if not self._is_aborted:
                self._is_aborted = True
                self._made.abort()


def joined_communicator(group: ProcessGroup, xp: Any) -> Communicator:
    """Make the communicator of a group, for the current GPU; all members call this at the same time.

    Args:
        group: the members.
        xp: cupy.

    Raises:
        NcclUnusableError: a member can't, or two have one GPU.
        TaskFailedError: a member is gone.
    """
    names = [group.links.names[rank] for rank in group.ranks]
    device, place = _place(group, xp)
    _check_gpus(names, swapped(group, place))
    begun = swapped(group, _begun(xp) if group.rank == 0 else None)[0]
    if isinstance(begun, str):
        raise NcclUnusableError(f"{names[0]} can't begin with NCCL: {begun}")
    making = _Making(group, xp, device, tuple([part - _SIGN for part in begun]))
    try:
        making.wait()
        errors = [pair for pair in zip(names, swapped(group, making.error), strict=True) if pair[1] is not None]
        if errors:
            name, error = next((pair for pair in errors if pair[1] != _GIVEN_UP), errors[0])
            raise NcclUnusableError(f"{name} can't make a communicator of NCCL: {error or 'it took too long'}")
    except BaseException:
        making.abandon()
        raise
    assert making.made is not None
    return making.made


def _place(group: ProcessGroup, xp: Any) -> tuple[int, list[str] | str]:
    """Return the number of the current GPU, and its host and bus, or the error."""
    try:
        device = int(xp.cuda.Device().id)
        return device, [group.host, str(xp.cuda.Device(device).pci_bus_id)]
    except Exception as error:  # the others wait: they are to learn of it
        return -1, _text(error)


def _begun(xp: Any) -> list[int] | str:
    """Return what distinguishes a communicator from others, or the error."""
    try:
        return [part + _SIGN for part in xp.cuda.nccl.get_unique_id()]  # its parts are signed
    except Exception as error:  # the others wait: they are to learn of it
        return _text(error)


def _text(error: Exception) -> str:
    return ascii(str(error))[1:-1][:_ERROR_LETTERS]


def swapped(group: ProcessGroup, facts: object) -> list[Any]:
    """Exchange a few facts with all members; return those of each, in the order of ranks."""
    text = json.dumps(facts, separators=(",", ":"))
    return [json.loads(each) for each in group.swap(text.encode().ljust(_FACTS_BYTES))]


def _check_gpus(names: Sequence[str], places: Sequence[Any]) -> None:
    """Check that each member has a GPU of its own.

    Raises:
        NcclUnusableError: two have one, or the GPU of one can't be asked.
    """
    for name, place in zip(names, places, strict=True):
        if isinstance(place, str):
            raise NcclUnusableError(f"{name} can't find out which GPU it has: {place}")
    for number, place in enumerate(places):
        other = places.index(place)
        if other < number:
            raise NcclUnusableError(f"{names[other]} and {names[number]} use the same GPU ({place[1]})")


class _Making:
    """A communicator that is being made. NCCL waits in this for all members, for any time, so a thread does it.

    Args:
        group: the members.
        xp: cupy.
        device: the number of this member's GPU.
        unique_id: distinguishes the communicator from others.

    Attributes:
        made: the communicator, once `wait` has returned; None if there is none.
        error: then the reason.
    """

    def __init__(self, group: ProcessGroup, xp: Any, device: int, unique_id: tuple[int, ...]) -> None:
        self.made: Communicator | None = None
        self.error: str | None = None
        self._group, self._xp, self._device, self._id = group, xp, device, unique_id
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._is_abandoned = False
        threading.Thread(target=self._make, name="anabranch nccl", daemon=True).start()

    def _make(self) -> None:
        xp, error = self._xp, None
        made: Communicator | None = None
        try:
            with xp.cuda.Device(self._device):
                parts = xp.cuda.nccl.NcclCommunicator(self._group.size, self._id, self._group.rank)
            made = Communicator(xp, parts, self._device)
        except Exception as raised:
            error = _text(raised) or type(raised).__name__
        with self._lock:
            is_late = self._is_abandoned
            if not is_late:
                self.made, self.error = made, error
        if is_late and made is not None:
            with contextlib.suppress(Exception):
                made.abort()
        self._done.set()

    def wait(self) -> None:
        """Wait until it is made, or can't be.

        A member sends what came of it once NCCL has returned. It returns without error only where all have come: so
        where another member sends while NCCL goes on here, that member has failed, and NCCL would wait for ever.

        Raises:
            TaskFailedError: a member is gone.
        """
        until: float | None = None
        while not self._done.wait(_LOOK_SECONDS):
            self._group.check_members()
            if until is None and self._group.has_sent():
                until = time.monotonic() + _GRACE_SECONDS
            if until is not None and time.monotonic() >= until:
                self.abandon()
                self.error = _GIVEN_UP
                return

    def abandon(self) -> None:
        """Give it up: abort what is made, at once or when the thread has made it."""
        with self._lock:
            self._is_abandoned = True
            made, self.made = self.made, None
        if made is not None:
            made.abort()


def _addresses(*arrays: Any) -> list[int]:
    return [int(array.data.ptr) for array in arrays]


__all__ = ["Communicator", "NcclUnusableError", "joined_communicator", "swapped"]
