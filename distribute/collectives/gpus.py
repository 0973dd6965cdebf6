"""`GpuGroup`: collectives of values on the GPUs of a group's members, which NCCL moves between them.

Members agree on each collective by the headers of `ProcessGroup` before one of them gives it to its GPU, so that
members that disagree get an error, and none waits for ever. Where a member has its value in the memory of its host, all
go by the host's memory. While GPUs are at work each member looks at whether the others are still there, because NCCL
itself would wait for a member that is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.common.dtypes import name_of
from ...engine.common.quick_dataclass import dataclass
from ...engine.devices.cuda import GpuUnavailableError, is_reached, load_cupy
from ...engine.ops.collectives import Group
from ...engine.queues.errors import TaskFailedError
from .communicator import Communicator, NcclUnusableError, joined_communicator, swapped
from .headers import NAMES, Header

if TYPE_CHECKING:
    from .group import ProcessGroup

_EAGER_SECONDS = 2e-4  # for how long a wait looks again at once
_PAUSE_SECONDS = 5e-5  # and from then on after such a pause
_PATIENCE_SECONDS = 5.0  # after an error of NCCL: for how long to look for a member that is gone
_LOOK_SECONDS = 0.01
_SENT_AS = {"int16": "int32", "uint16": "uint32", "float16": "float32", "bfloat16": "float32"}
_PARTS = {"complex64": "float32", "complex128": "float64"}  # sums of these are sums of twice as many numbers
_REDUCED = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float32", "float64")


@dataclass
class _Request:
    """A collective of an array on a GPU.

    Attributes:
        kind, option, array: as the header describes it.
        enqueue: gives it to NCCL, on the stream of this address, once the members' headers are known by rank.
        finish: gives the result, when it is there.
    """

    kind: str
    option: int
    array: Any
    enqueue: Callable[[Communicator, Mapping[int, Header], int], None]
    finish: Callable[[], Any]


class GpuGroup(Group):
    """The members of a group, for arrays on the GPU of each.

    Args:
        group: these members, for arrays in the memory of their hosts.

    Attributes:
        collectives: how many NCCL has run.
        by_host: how many of arrays on GPUs went by the memory of the hosts.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.rank, self.size, self.ranks = group.rank, group.size, group.ranks
        self.collectives = self.by_host = 0
        self._group = group
        self._here: str | None = None  # why this process can't use NCCL
        self._reason: str | None = None  # why the members together can't
        self._communicator: Communicator | None = None
        self._has_shared_reasons = False
        self._xp: Any = None
        self._sides: dict[int, Any] = {}  # by GPU, the stream of what is begun and ended separately
        self._begun: dict[int, _Request | None] = {}

    def why_not_on_gpus(self) -> str | None:
        if self._here is None and self._communicator is None:
            self._here = _why_not_here()
        return self._here

    def why_by_host(self) -> str | None:
        return self._reason or self.why_not_on_gpus()

    def share_reasons(self) -> None:
        """Find out once whether a member can't use NCCL, and why; all call this where not all have arrays on GPUs.

        Then all take the memory of the hosts at once, and give the same reason.
        """
        if self._has_shared_reasons:
            return
        self._has_shared_reasons = True
        for rank, why in zip(self.ranks, swapped(self._group, _why_not_here()), strict=True):
            if why is not None:
                self._reason = f"{self._group.links.names[rank]}: {why}"
                return

    def bound(self, xp: Any) -> GpuGroup:
        """Return this group, for arrays of a module like cupy.

        Args:
            xp: the module.
        """
        self._xp = xp
        return self

    # --- collectives ------------------------------------------------------------------------------------------------

    def all_reduce(self, array: Any, reduce_op: str) -> Any:
        return self._run(self._all_reduce(array, reduce_op), self._group.all_reduce, array, reduce_op)

    def begin_all_reduce(self, array: Any, reduce_op: str) -> int:
        xp, request = self._xp, self._all_reduce(array, reduce_op)
        if request is None:
            number = self._group.begin_all_reduce(array.get(), reduce_op)
            self.by_host += 1
        else:
            device = self._device()
            if device not in self._sides:
                self._sides[device] = xp.cuda.Stream(non_blocking=True)
            self._sides[device].wait_event(xp.cuda.get_current_stream().record(xp.cuda.Event()))
            work = partial(self._run_begun, request, reduce_op, device)
            number = self._group.begun.begin(work)
        self._begun[number] = request
        return number

    def _run_begun(self, request: _Request, reduce_op: str, device: int) -> Any:
        """Run what was begun, in the thread that does so; return the result if it went by the host's memory."""
        with self._xp.cuda.Device(device):
            if self._is_moved_in_turn(request, self._sides[device]):
                return None
            array = request.array.get(stream=self._sides[device])
        self.by_host += 1
        return self._group.all_reduce_in_turn(array, reduce_op)

    def end_all_reduce(self, number: int, array: Any) -> Any:
        request = self._begun.pop(number, None)
        found = self._group.begun.end(number)
        return self._xp.asarray(found) if request is None or found is not None else request.finish()

    def reduce_scatter(self, array: Any, reduce_op: str) -> Any:
        return self._run(self._reduce_scatter(array, reduce_op), self._group.reduce_scatter, array, reduce_op)

    def all_gather(self, array: Any, axis: int) -> Any:
        request = _Gathered(self._xp, array, axis, self.ranks).request()
        return self._run(request, self._group.all_gather, array, axis)

    def broadcast(self, array: Any, root: int) -> Any:
        xp = self._xp
        sent, found = _bytes(xp, array), xp.empty((array.nbytes,), "uint8")

        def enqueue(communicator: Communicator, headers: Mapping[int, Header], stream: int) -> None:
            communicator.broadcast(sent, found, self.ranks.index(root), stream)

        request = _Request("broadcast", root, array, enqueue, lambda: found.view(array.dtype).reshape(array.shape))
        return self._run(request, self._group.broadcast, array, root)

    def barrier(self) -> None:
        self._group.barrier()

    def _run(self, request: _Request | None, collective: Callable[[Any, Any], Any], array: Any, option: Any) -> Any:
        """Run a collective by NCCL, or else on a copy of the array in the memory of the host; return the result.

        Args:
            request: for NCCL; None where it has none that gives what the host gives.
            collective: the same of the host, which takes the array and `option`.
            array: on the GPU, as the result is.
        """
        if request is not None and self._is_moved(request):
            return request.finish()
        self.by_host += 1
        return self._xp.asarray(collective(array.get(), option))

    def statistics(self) -> dict[str, Any]:
        """Count what was done.

        Returns:
            ``nccl``: how many collectives of arrays on GPUs NCCL has run; ``by_host``: how many went by the memory of
            the hosts; ``why_by_host``: the reason why all go there, or None.
        """
        return {"nccl": self.collectives, "by_host": self.by_host, "why_by_host": self.why_by_host()}

    # --- reductions -------------------------------------------------------------------------------------------------

    def _all_reduce(self, array: Any, reduce_op: str) -> _Request | None:
        """Return the request for a reduction; None where NCCL has none that gives what the host gives."""
        sent = self._sent(array, reduce_op)
        if sent is None:
            return None
        found = self._xp.empty(sent.shape, sent.dtype)

        def enqueue(communicator: Communicator, headers: Mapping[int, Header], stream: int) -> None:
            communicator.all_reduce(sent, found, reduce_op, stream)

        finish = partial(self._reduced, array, found, reduce_op, array.shape)
        return _Request("all_reduce", NAMES.index(reduce_op), array, enqueue, finish)

    def _reduce_scatter(self, array: Any, reduce_op: str) -> _Request | None:
        sent = self._sent(array, reduce_op)
        if sent is None:
            return None
        found = self._xp.empty((len(sent) // self.size,), sent.dtype)

        def enqueue(communicator: Communicator, headers: Mapping[int, Header], stream: int) -> None:
            communicator.reduce_scatter(sent, found, reduce_op, stream)

        shape = (array.shape[0] // self.size, *array.shape[1:])
        finish = partial(self._reduced, array, found, reduce_op, shape)
        return _Request("reduce_scatter", NAMES.index(reduce_op), array, enqueue, finish)

    def _sent(self, array: Any, reduce_op: str) -> Any:
        """Return the numbers of an array in a row, in a dtype that NCCL reduces; None if there is none.

        Numbers of half precision are added as float32. NCCL does not say what the maximum of a NaN is.
        """
        name = name_of(array.dtype)
        if reduce_op in ("max", "min") and array.dtype.kind not in "iu":
            return None
        flat = self._xp.ascontiguousarray(array).reshape(-1)
        if name in _PARTS:
            return flat.view(_PARTS[name])
        if name in _SENT_AS:
            return flat.astype(_SENT_AS[name])
        return flat if name in _REDUCED else None

    def _reduced(self, array: Any, found: Any, reduce_op: str, shape: tuple[int, ...]) -> Any:
        """Return what NCCL has reduced, in the dtype of the array that was given."""
        dtype = array.dtype
        total = found.view(dtype) if name_of(dtype) in _PARTS else found.astype(dtype, copy=False)
        if reduce_op == "mean":
            count = self._xp.asarray(np.asarray(self.size, dtype))
            if name_of(dtype) in _SENT_AS:  # rounded as the host rounds: the sum, then the quotient
                total = (total.astype("float32") / count.astype("float32")).astype(dtype)
            else:
                total = total / count
        return total.reshape(shape)

    # --- running ----------------------------------------------------------------------------------------------------

    def _is_moved(self, request: _Request) -> bool:
        """Run a collective behind all that was begun; return whether NCCL has."""
        self._group.begun.drain()
        return self._is_moved_in_turn(request, self._xp.cuda.get_current_stream())

    def _is_moved_in_turn(self, request: _Request, stream: Any) -> bool:
        """Run a collective; return whether NCCL has. If not, all members are to run it by the host's memory.

        Raises:
            ValueError: members disagree.
            TaskFailedError: a member is gone.
        """
        with self._group.lock:
            if self.why_by_host() is not None:
                return False
            if self._communicator is not None and self._communicator.device != self._device():
                return False  # a process of several GPUs has begun with another one
            headers = self._group.agreed_on_gpus(request.kind, request.option, request.array)
            if headers is None:
                return False
            communicator = self._joined()
            if communicator is None:
                return False
            if any(header.count for header in headers.values()):
                self._complete(communicator, request, headers, stream)
            self.collectives += 1
            return True

    def _device(self) -> int:
        """Return the number of the current GPU."""
        return int(self._xp.cuda.Device().id)

    def _joined(self) -> Communicator | None:
        """Return the communicator, which all members make at the same time; None if one of them can't."""
        if self._communicator is None and self._reason is None:
            try:
                self._communicator = joined_communicator(self._group, self._xp)
            except NcclUnusableError as error:
                self._reason = str(error)
            except TaskFailedError:
                raise  # the others see themselves who is lost
            except BaseException:
                self._group.close_links()  # for others wait for this member
                raise
        return self._communicator

    def _complete(
        self, communicator: Communicator, request: _Request, headers: Mapping[int, Header], stream: Any
    ) -> None:
        """Give a collective to the GPU, and wait until it has ended on those of all members."""
        try:
            request.enqueue(communicator, headers, stream.ptr)
            self._wait(communicator, stream.record(self._xp.cuda.Event()))
        except communicator.errors:
            self._look_for_loss()  # which may be the reason
            self._group.close_links()
            raise
        except TaskFailedError:
            self.close()  # the others see themselves who is lost
            raise
        except BaseException:
            self._group.close_links()  # for others wait for this member
            raise
        self._group.swap(b"\x01")  # nobody leaves before all are done, so that who leaves before is lost

    def _look_for_loss(self) -> None:
        """Look for a while whether a member is gone, as NCCL may notice before its connections are seen to end.

        Raises:
            TaskFailedError: one is.
        """
        until = time.monotonic() + _PATIENCE_SECONDS
        try:
            while time.monotonic() < until:
                self._group.check_members()
                time.sleep(_LOOK_SECONDS)
        finally:
            self.close()

    def _wait(self, communicator: Communicator, event: Any) -> None:
        """Wait until the GPU has come to an event.

        Raises:
            TaskFailedError: a member is gone.
        """
        eager_until = time.monotonic() + _EAGER_SECONDS
        while not is_reached(self._xp, event):
            if time.monotonic() < eager_until:
                time.sleep(0)
                continue
            self._group.check_members()
            communicator.check()
            time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """End what NCCL runs, and give the communicator up."""
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            self._reason = "the group of processes is closed"
            communicator.abort()


class _Gathered:
    """The arrays of all members, joined along an axis; they may be of different lengths there.

    Args:
        xp: the module of the array.
        array: that of this member.
        axis: along which they are joined.
        ranks: those of the members.
    """

    def __init__(self, xp: Any, array: Any, axis: int, ranks: tuple[int, ...]) -> None:
        self._xp = xp
        self._array = array
        self._axis = axis
        self._ranks = ranks
        self._shapes: list[tuple[int, ...]] = []
        self._rows: Any = None  # of bytes, one for each member
        self._sent: Any = None

    def request(self) -> _Request:
        return _Request("all_gather", self._axis, self._array, self._enqueue, self._joined)

    def _enqueue(self, communicator: Communicator, headers: Mapping[int, Header], stream: int) -> None:
        xp = self._xp
        self._shapes = [headers[rank].shape for rank in self._ranks]
        most = max(header.nbytes for header in headers.values())
        self._sent = _bytes(xp, self._array)
        if len(self._sent) < most:
            padded = xp.empty((most,), "uint8")
            padded[: len(self._sent)] = self._sent
            self._sent = padded
        self._rows = xp.empty((len(self._ranks), most), "uint8")
        communicator.all_gather(self._sent, self._rows, stream)

    def _joined(self) -> Any:
        if self._rows is None:  # nobody has an element
            return self._array
        dtype = self._array.dtype
        parts: list[Any] = []
        for row, shape in zip(self._rows, self._shapes, strict=True):
            nbytes = dtype.itemsize * int(np.prod(shape, dtype="int64"))
            parts.append(row[:nbytes].view(dtype).reshape(shape))
        return self._xp.concatenate(parts, self._axis)


def _bytes(xp: Any, array: Any) -> Any:
    """Return the memory of an array, in a row."""
    return xp.ascontiguousarray(array).reshape(-1).view("uint8")


def _why_not_here() -> str | None:
    """Return the reason why this process can't use NCCL; None if it can."""
    try:
        cupy = load_cupy()
    except GpuUnavailableError:
        return "cupy can't be imported"
    if not cupy.cuda.nccl.available:
        return "cupy has no NCCL (cupy.cuda.nccl.available is False)"
    return None


__all__ = ["GpuGroup"]
