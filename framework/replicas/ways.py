"""`GroupWay` and `TaskWay`: by which workers compute parts of a pass together, and each gets the results of all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from ...distribute.collectives.group import ProcessGroup
from ...distribute.strategies.strategy import ParameterServer
from ...distribute.transport.values import decode_value, encode_value
from ...engine.common.dtypes import as_dtype, name_of
from ...engine.graph import Graph, Placeholder, TensorSpec
from ...engine.graph.scopes import device
from ...engine.queues.errors import CancelledError
from ...engine.queues.shared_work import ALONE, DONE, HAND_IN, NONE, SharedWork
from .cluster_fit import reason_of

if TYPE_CHECKING:
    from ...distribute.tasks.client import RemoteProgram
    from ...engine.ops.base import TensorLike
    from ..structures import Array

Compute = Callable[[int], list[Any]]  # of a part: its arrays
PARTS_OF_A_WORKER = 4  # so that workers that are quicker do more


class Way(Protocol):
    """A way in which workers share parts.

    Attributes:
        most: into how many parts a pass is cut at most.
    """

    most: int

    def results(self, parts: int, compute: Compute) -> list[list[Array]]:
        """Compute parts together; return the arrays of each, in order.

        Args:
            parts: how many there are.
            compute: gives the arrays of a part.
        """
        ...


class Operations(Protocol):
    """Operations that all members of a group make together; see `Elastic`."""

    group: ProcessGroup

    def run(self, work: Callable[[], bytes]) -> bytes: ...


class OfOneGroup:
    """Operations of a group that fail when a member is lost.

    Args:
        group: the group.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    def run(self, work: Callable[[], bytes]) -> bytes:
        """Make an operation."""
        return work()


class GroupWay:
    """Each member of a group computes the part of its rank, and more where there are more parts than members.

    Args:
        operations: by which members gather what they have computed.
        most: into how many parts a pass is cut at most, such as the number of members.
    """

    def __init__(self, operations: Operations, most: int) -> None:
        self._operations = operations
        self.most = most

    def results(self, parts: int, compute: Compute) -> list[list[Array]]:
        known: dict[int, bytes] = {}

        def gathered() -> bytes:
            return joined_bytes(self._gathered(parts, compute, known))

        return [unpacked(each) for each in parted_bytes(self._operations.run(gathered))]

    def _gathered(self, parts: int, compute: Compute, known: dict[int, bytes]) -> list[bytes]:
        """Compute the parts of this member that are not known yet; return all parts in order."""
        group = self._operations.group
        error: Exception | None = None
        try:
            for part in range(group.rank, parts, group.size):
                known[part] = known.get(part) or packed(compute(part))
            data = b"+" + joined_bytes([known[part] for part in range(group.rank, parts, group.size)])
        except Exception as found:  # the others wait for this member's part
            error, data = found, b"-" + reason_of(found).encode()
        gathered = group.gather_bytes(data)
        if error is not None:
            raise error
        for rank, each in enumerate(gathered):
            if each[:1] != b"+":
                raise CancelledError(f"{group.links.names[rank]} could not compute its part: {each[1:].decode()}")
        by_rank = [parted_bytes(each[1:]) for each in gathered]
        return [by_rank[part % group.size][part // group.size] for part in range(parts)]


class TaskWay:
    """Workers take parts of a pass that ps task 0 hands out.

    Args:
        work: asks that task.
        number: of the pass.
    """

    def __init__(self, work: WorkPrograms, number: int) -> None:
        self.most = work.most
        self._work = work
        self._number = number

    @classmethod
    def joined(cls, strategy: ParameterServer, key: str, parts: int, may_begin: bool = True) -> Self | None:
        """Take part in the pass of a key; None if there is none, and this worker may not begin it.

        Raises:
            TaskFailedError: ps task 0 can't be reached.
        """
        if strategy.work is None:
            strategy.work = WorkPrograms(strategy)
        work = strategy.work
        try:
            (number,) = work.ask("join", np.array(key, as_dtype("string")), parts, may_begin)
        except Exception:
            work.close()
            strategy.work = None  # the task may come back
            raise
        return None if number == NONE else cls(work, int(number))

    def results(self, parts: int, compute: Compute) -> list[list[Array]]:
        try:
            return self._results(parts, compute)
        finally:
            with contextlib.suppress(Exception):  # it may be gone
                self._work.ask("leave", self._number)

    def _results(self, parts: int, compute: Compute) -> list[list[Array]]:
        own: dict[int, list[Array]] = {}
        kept: dict[int, bytes] = {}  # what nobody else has wanted so far
        while True:
            part, count = (int(each) for each in self._work.ask("take", self._number))
            if count > 1 or part == DONE:
                for number in [*kept]:
                    (is_first,) = self._work.ask("put", self._number, number, np.frombuffer(kept.pop(number), "uint8"))
                    if not is_first:
                        del own[number]
            if part in (DONE, ALONE):
                break
            if part != HAND_IN:
                own[part] = compute(part)
                kept[part] = packed(own[part])
        return [own[number] if number in own else self._fetched(number) for number in range(parts)]

    def _fetched(self, part: int) -> list[Array]:
        (data,) = self._work.ask("fetch", self._number, part)
        return unpacked(data.tobytes())


class WorkPrograms:
    """Requests of the `SharedWork` of ps task 0.

    Args:
        strategy: with a cluster.

    Attributes:
        most: into how many parts passes are cut at most.
    """

    def __init__(self, strategy: ParameterServer) -> None:
        self.most = PARTS_OF_A_WORKER * strategy.num_workers
        self._strategy = strategy
        self._client = strategy.connect()
        self._client.places = lambda resource: {"container": "passes of workers"}
        self._programs: dict[str, RemoteProgram] = {}
        with device(strategy.ps[0]):
            self._work = SharedWork("passes")

    def close(self) -> None:
        """Give up the connections."""
        self._client.close()

    def ask(self, method: str, *inputs: TensorLike) -> tuple[Array, ...]:
        """Make a request; see `SharedWorkState`."""
        given = [np.asarray(each, None if isinstance(each, np.ndarray) else "int64") for each in inputs]
        program = self._programs.get(method)
        if program is None:
            specs = [TensorSpec((None,) * each.ndim, each.dtype) for each in given]
            task = self._strategy.workers[self._strategy.task_index]
            with Graph().as_default() as graph, device(self._strategy.ps[0]):
                feeds = [graph.add(Placeholder(spec), (), f"given_{n}").outputs[0] for n, spec in enumerate(specs)]
                made = self._work.ask(method, task, self._strategy.incarnation, *feeds)
            targets: list[Any] = [*made] if isinstance(made, Sequence) else [made]
            program = self._programs[method] = self._client.program(graph, targets, feeds, specs, None)
        return program(*given)


# --- arrays as bytes ------------------------------------------------------------------------------------------------


def packed(values: Sequence[object]) -> bytes:
    """Write arrays as bytes.

    >>> unpacked(packed([np.array([[1, 2]]), np.float32(3.0)]))
    [array([[1, 2]]), array(3., dtype=float32)]
    """
    arrays: list[Array] = []
    described = [encode_value(value, arrays) for value in values]
    kinds = [[name_of(array.dtype), list(array.shape)] for array in arrays]
    head = json.dumps([described, kinds]).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *[array.tobytes() for array in arrays]])


def unpacked(data: bytes) -> list[Array]:
    """Read what `packed` has written."""
    start = 8 + int.from_bytes(data[:8], "little")
    described, kinds = json.loads(data[8:start])
    arrays: list[Array] = []
    for name, shape in kinds:
        dtype = as_dtype(name)
        count = int(np.prod(shape, dtype="int64"))
        arrays.append(np.frombuffer(data, dtype, count, start).reshape(shape).copy())
        start += count * dtype.itemsize
    return [decode_value(each, arrays) for each in described]


def joined_bytes(parts: Sequence[bytes]) -> bytes:
    """Write several bytes as one."""
    return b"".join([len(part).to_bytes(8, "little") + part for part in parts])


def parted_bytes(data: bytes) -> list[bytes]:
    """Read what `joined_bytes` has written.

    >>> parted_bytes(joined_bytes([b"ab", b"", b"c"]))
    [b'ab', b'', b'c']
    """
    found: list[bytes] = []
    while data:
        size = 8 + int.from_bytes(data[:8], "little")
        found.append(data[8:size])
        data = data[size:]
    return found


__all__ = [
    "PARTS_OF_A_WORKER",
    "Compute",
    "GroupWay",
    "OfOneGroup",
    "Operations",
    "TaskWay",
    "Way",
    "WorkPrograms",
    "joined_bytes",
    "packed",
    "parted_bytes",
    "unpacked",
]
