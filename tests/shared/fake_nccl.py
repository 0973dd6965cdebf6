"""`cupy.cuda.nccl` without GPUs: collectives between real processes, whose stand-ins for cupy exchange files.

A collective runs on the stream to which it was given: it begins when all before it has ended, and ends when the files
of all members are there, which whoever asks for events sees. Arguments are checked as Cython checks those of cupy
(cupy_backends/cuda/libs/nccl.pyx).
"""

from __future__ import annotations

import ctypes
import operator
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from shared.fake_cupy import FakeCupy, Stream, Waiting

FOLDER = "FAKE_NCCL_FOLDER"  # where files are
DIES = "FAKE_NCCL_DIES"  # "RANK:NUMBER": who is killed at which collective of the first communicator
_ID_BYTES = 128
_DTYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
_OPS: list[Callable[[Any, Any], Any]] = [np.add, np.multiply, np.maximum, np.minimum]


class NcclError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"NCCL_ERROR {status}")


def _int(name: str, value: Any, low: int, high: int) -> int:
    """Convert as Cython does: what has `__index__`, if it is in the range of the type of C."""
    number = operator.index(value)
    if not low <= number < high:
        raise OverflowError(f"{name}: value too large to convert")
    return number


class _Collective(Waiting):
    """A collective on a stream.

    Args:
        communicator: who runs it.
        what: all that members have in common.
        sent: the address and the number of bytes that this member gives.
        found: the address, for the result.
        result: makes it of the bytes of all.
    """

    def __init__(
        self, communicator: NcclCommunicator, what: str, sent: tuple[int, int], found: int, result: Any
    ) -> None:
        self._communicator = communicator
        self._number = communicator.count
        communicator.count += 1
        self._what, self._sent, self._found, self._result = what, sent, found, result
        self._has_begun = False

    def is_ready(self) -> bool:
        if self._communicator.is_aborted:
            return True
        if not self._has_begun:
            self._has_begun = True
            self._communicator.put(self._number, self._what, ctypes.string_at(*self._sent))
        return self._communicator.has_all(self._number)

    def __call__(self) -> None:
        if self._communicator.is_aborted:
            return
        kinds, parts = zip(*self._communicator.taken(self._number), strict=True)
        assert len({*kinds}) == 1, f"NCCL would wait for ever, or give nonsense: {kinds}"
        data = self._result([np.frombuffer(part, "uint8") for part in parts]).tobytes()
        ctypes.memmove(self._found, data, len(data))


class FakeNccl:
    """Stands for the module.

    Args:
        cupy: that to which it belongs.
        folder: where files of members go; by default the one in the environment.

    Attributes:
        calls: the names of the collectives that were called.
        patience: for how many seconds a member waits for others that are to make a communicator. NCCL has no limit.
        failing: the ranks whose communicators can't be made.
        ids: the identifiers with which communicators were to be made.
        made: the communicators.
    """

    available = True
    NcclError = NcclError

    def __init__(self, cupy: FakeCupy, folder: Path | None = None) -> None:
        self.cupy = cupy
        self.folder = folder or Path(os.environ[FOLDER])
        self.calls: list[str] = []
        self.patience = 60.0
        self.has_made_one = False
        self.failing: set[int] = set()
        self.ids: list[tuple[int, ...]] = []
        self.made: list[NcclCommunicator] = []
        for number, name in enumerate(_DTYPES):
            setattr(self, f"NCCL_{name.upper()}", number)
        self.NCCL_SUM, self.NCCL_PROD, self.NCCL_MAX, self.NCCL_MIN = range(4)
        cupy.cuda.nccl = self

    def get_unique_id(self) -> tuple[int, ...]:
        return tuple([random.SystemRandom().randrange(-128, 128) for _ in range(_ID_BYTES)])

    def NcclCommunicator(self, ndev: Any, commId: Any, rank: Any) -> NcclCommunicator:  # noqa: N802 - cupy's
        self.ids.append(commId)
        if rank in self.failing:
            raise NcclError(2)
        made = NcclCommunicator(self, ndev, commId, rank)
        self.made.append(made)
        return made

    def stream_at(self, address: int) -> Stream:
        (found,) = (stream for stream in self.cupy.streams if stream.ptr == address)
        return found


class NcclCommunicator:
    """A member of a collective."""

    def __init__(self, nccl: FakeNccl, ndev: Any, unique_id: Any, rank: Any) -> None:
        self._nccl = nccl
        self._is_first, nccl.has_made_one = not nccl.has_made_one, True
        self.size, self.rank = _int("ndev", ndev, 1, 1 << 31), _int("rank", rank, 0, 1 << 31)
        assert self.rank < self.size
        if type(unique_id) is not tuple:
            raise TypeError("Argument 'commId' has incorrect type (expected tuple)")
        assert len(unique_id) == _ID_BYTES
        name = bytes([_int("commId", part, -128, 128) + 128 for part in unique_id]).hex()[:32]
        self._name = str(nccl.folder / name)
        self.device = nccl.cupy.cuda.Device().id
        self.count = 0
        self.is_aborted = False
        self.put(-1, str(self.size))
        began = time.monotonic()
        while not self.has_all(-1):
            if time.monotonic() > began + nccl.patience:
                raise NcclError(2)
            threading.Event().wait(1e-3)
        assert {what for what, _ in self.taken(-1)} == {str(self.size)}

    # --- files --------------------------------------------------------------------------------------------------------

    def _path(self, number: int, rank: int) -> Path:
        return Path(f"{self._name}.{number}.{rank}")

    def put(self, number: int, what: str, data: bytes = b"") -> None:
        if self._is_first and os.environ.get(DIES) == f"{self.rank}:{number}":
            os.kill(os.getpid(), signal.SIGKILL)
        path = self._path(number, self.rank)
        written = path.with_name(f"{path.name}.part")
        written.write_bytes(what.encode() + b"\n" + data)
        written.rename(path)

    def has_all(self, number: int) -> bool:
        return all(self._path(number, rank).exists() for rank in range(self.size))

    def taken(self, number: int) -> list[tuple[str, bytes]]:
        read = [self._path(number, rank).read_bytes().partition(b"\n") for rank in range(self.size)]
        found = [(what.decode(), data) for what, _, data in read]
        self._path(number - 1, self.rank).unlink(missing_ok=True)  # for all have begun the one behind it
        return found

    # --- cupy's methods -----------------------------------------------------------------------------------------------

    def allReduce(self, sendbuf: Any, recvbuf: Any, count: Any, datatype: Any, op: Any, stream: Any) -> None:  # noqa: N802
        dtype = self._dtype(datatype)
        n, reduce = _int("count", count, 0, 1 << 64), _OPS[_int("op", op, 0, 4)]
        self._add("allReduce", (n, dtype, op), sendbuf, n * dtype.itemsize, recvbuf, _reduced(reduce, dtype), stream)

    def reduceScatter(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, recvcount: Any, datatype: Any, op: Any, stream: Any
    ) -> None:
        dtype = self._dtype(datatype)
        n, reduce = _int("recvcount", recvcount, 0, 1 << 64), _reduced(_OPS[_int("op", op, 0, 4)], dtype)
        rank = self.rank
        self._add(
            "reduceScatter",
            (n, dtype, op),
            sendbuf,
            self.size * n * dtype.itemsize,
            recvbuf,
            lambda parts: reduce(parts)[rank * n : rank * n + n],
            stream,
        )

    def allGather(self, sendbuf: Any, recvbuf: Any, count: Any, datatype: Any, stream: Any) -> None:  # noqa: N802
        dtype, n = self._dtype(datatype), _int("count", count, 0, 1 << 64)
        self._add("allGather", (n, dtype), sendbuf, n * dtype.itemsize, recvbuf, np.concatenate, stream)

    def broadcast(self, sendbuff: Any, recvbuff: Any, count: Any, datatype: Any, root: Any, stream: Any) -> None:
        dtype, n, first = self._dtype(datatype), _int("count", count, 0, 1 << 64), _int("root", root, 0, self.size)
        nbytes = n * dtype.itemsize
        self._add("broadcast", (n, dtype, first), sendbuff, nbytes, recvbuff, lambda parts: parts[first], stream)

    def _dtype(self, datatype: Any) -> Any:
        return np.dtype(_DTYPES[_int("datatype", datatype, 0, len(_DTYPES))])

    def _add(
        self, name: str, what: tuple[Any, ...], sendbuf: Any, nbytes: int, recvbuf: Any, result: Any, stream: Any
    ) -> None:
        sent, found = _int("sendbuf", sendbuf, 1, 1 << 63), _int("recvbuf", recvbuf, 1, 1 << 63)
        assert not self.is_aborted, "the communicator was aborted"
        assert self._nccl.cupy.cuda.Device().id == self.device, "another GPU is the current one"
        self._nccl.calls.append(name)
        given = self._nccl.stream_at(_int("stream", stream, 0, 1 << 63))
        given.do(_Collective(self, f"{name} {what}", (sent, nbytes), found, result))

    def check_async_error(self) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True

    def destroy(self) -> None:
        self.is_aborted = True


def _reduced(reduce: Any, dtype: Any) -> Callable[[list[Any]], Any]:
    def result(parts: list[Any]) -> Any:
        arrays = [part.view(dtype) for part in parts]
        total = arrays[0]
        for array in arrays[1:]:
            total = reduce(total, array)
        return total

    return result


__all__ = ["DIES", "FOLDER", "FakeNccl", "NcclCommunicator", "NcclError"]
