"""`Communicator`: what NCCL calls the members of a collective, each with a GPU; made by agreement of all members."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .group import ProcessGroup

_FACTS_BYTES = 1024  # of what members exchange at once: the longest are the 128 numbers of an id
_ERROR_LETTERS = 300
_SIGN = 128
_LOOK_SECONDS = 0.01
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
        self._lock = threading.Lock()

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
        """Raise the error with which what runs has failed, if it has."""
        self._made.check_async_error()

    def abort(self) -> None:
        """End what runs, without the other members."""
        with self._lock, self._scope:
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
    device = int(xp.cuda.Device().id)
    _check_gpus(names, _swapped(group, [group.host, str(xp.cuda.Device(device).pci_bus_id)]))
    begun = _swapped(group, _begun(xp) if group.rank == 0 else None)[0]
    if isinstance(begun, str):
        raise NcclUnusableError(f"{names[0]} can't begin with NCCL: {begun}")
    made, error = _made(group, xp, device, tuple([part - _SIGN for part in begun]))
    try:
        for name, found in zip(names, _swapped(group, error), strict=True):
            if found is not None:
                raise NcclUnusableError(f"{name} can't make a communicator of NCCL: {found}")
    except BaseException:
        if made is not None:
            made.abort()
        raise
    assert made is not None
    return made


def _begun(xp: Any) -> list[int] | str:
    """Return what distinguishes a communicator from others, or the error."""
    try:
        return [part + _SIGN for part in xp.cuda.nccl.get_unique_id()]  # its parts are signed
    except xp.cuda.nccl.NcclError as error:
        return _text(error)


def _text(error: Exception) -> str:
    return ascii(str(error))[1:-1][:_ERROR_LETTERS]


def _swapped(group: ProcessGroup, facts: object) -> list[Any]:
    """Exchange a few facts with all members; return those of each, in the order of ranks."""
    text = json.dumps(facts, separators=(",", ":"))
    return [json.loads(each) for each in group.swap(text.encode().ljust(_FACTS_BYTES))]


def _check_gpus(names: Sequence[str], places: Sequence[Any]) -> None:
    """Check that each member has a GPU of its own.

    Raises:
        NcclUnusableError: two have one.
    """
    for number, place in enumerate(places):
        other = places.index(place)
        if other < number:
            raise NcclUnusableError(f"{names[other]} and {names[number]} use the same GPU ({place[1]})")


def _made(
    group: ProcessGroup, xp: Any, device: int, unique_id: tuple[int, ...]
) -> tuple[Communicator | None, str | None]:
    """Make a communicator, or return the error. NCCL waits in this for all members, so a thread does it.

    Raises:
        TaskFailedError: a member is gone.
    """
    found: list[Any] = [None, None]
    done = threading.Event()

    def make() -> None:
        try:
            with xp.cuda.Device(device):
                made = xp.cuda.nccl.NcclCommunicator(group.size, unique_id, group.rank)
            found[0] = Communicator(xp, made, device)
        except Exception as error:
            found[1] = _text(error)
        done.set()

    threading.Thread(target=make, name="anabranch nccl", daemon=True).start()
    while not done.wait(_LOOK_SECONDS):
        group.check_members()
    return found[0], found[1]


def _addresses(*arrays: Any) -> list[int]:
    return [int(array.data.ptr) for array in arrays]


__all__ = ["Communicator", "NcclUnusableError", "joined_communicator"]
