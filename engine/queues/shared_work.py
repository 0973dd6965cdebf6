"""`SharedWork`: parts of a computation whose results all workers get, and which any worker may compute.

Whoever asks gets a part that nobody has begun, or else one that another worker has begun and not yet handed in: so a
worker that is slow, or lost, is waited for by nobody, and no request ever waits. A worker that nobody joins computes
all parts, and keeps what it has found.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ..common import dtypes
from ..common.quick_dataclass import dataclass
from ..common.quick_dataclass import dataclass as quick_dataclass
from ..graph.graph import get_default_graph
from ..graph.op import Effect, Op
from ..graph.spec import TensorSpec
from ..graph.state.resource import NamedResource
from ..ops.base import convert_to_tensor
from .errors import StateLostError, check_held

if TYPE_CHECKING:
    from ..graph.graph import Operation
    from ..graph.tensor import Tensor

DONE = -1  # in place of a part: results of all parts are here
ALONE = -2  # in place of a part: all others are here or with this worker, whom nobody will join
HAND_IN = -3  # in place of a part: what is left is with this worker, and others want it
NONE = -1  # in place of a number: there is no such work
Worker = tuple[str, int]  # its task, and the incarnation of that


@dataclass
class _Work:
    """Work that is under way.

    Attributes:
        key: distinguishes it from other work; the same key is the same work.
        parts: how many it has.
        joined: who has ever taken part.
        members: who takes part now.
        out: for each part the workers that have begun it.
        results: of parts that were handed in.
        is_closed: nobody may join any more.
    """

    key: str
    parts: int
    joined: set[Worker] = field(default_factory=set[Worker])
    members: set[Worker] = field(default_factory=set[Worker])
    out: dict[int, list[Worker]] = field(default_factory=dict[int, list[Worker]])
    results: dict[int, Any] = field(default_factory=dict[int, Any])
    is_closed: bool = False


class SharedWorkState:
    """Work of which workers compute parts, without threads."""

    def __init__(self) -> None:
        self._works: dict[int, _Work] = {}
        self._begun = 0

    def __len__(self) -> int:
        """Return how many works are under way."""
        return len(self._works)

    def join(self, worker: Worker, key: str, parts: int, may_begin: bool) -> int:
        """Take part in work that has this key, in which the worker has not taken part yet.

        Args:
            worker: who.
            key: of the work.
            parts: how many it has.
            may_begin: whether to begin it where nobody else has.

        Returns:
            The number of the work; NONE if nobody has begun it, and the worker may not.
        """
        number = self._open_to(worker, key, parts)
        if number == NONE:
            if not may_begin:
                return NONE
            number, self._begun = self._begun, self._begun + 1
            self._works[number] = _Work(key, parts)
        work = self._works[number]
        work.joined.add(worker)
        work.members.add(worker)
        return number

    def _open_to(self, worker: Worker, key: str, parts: int) -> int:
        for number, work in self._works.items():
            if (work.key, work.parts) == (key, parts) and worker not in work.joined and not work.is_closed:
                return number
        return NONE

    def take(self, number: int, worker: Worker) -> tuple[int, int]:
        """Take a part to compute.

        Returns:
            The part, or DONE, ALONE or HAND_IN; and how many take part. As long as that is one the worker may keep its
            results, until others have come.
        """
        work = self._work(number, worker)
        count = len(work.members)
        left = [part for part in range(work.parts) if part not in work.results]
        if not left:
            return DONE, count
        others = [part for part in left if worker not in work.out.get(part, ())]
        if others:
            part = min(others, key=lambda each: len(work.out.get(each, ())))
            work.out.setdefault(part, []).append(worker)
            return part, count
        if count > 1:
            return HAND_IN, count
        work.is_closed = True
        return ALONE, count

    def put(self, number: int, worker: Worker, part: int, result: Any) -> bool:
        """Hand in the result of a part; return whether it is the first one, which counts."""
        work = self._work(number, worker)
        is_first = part not in work.results
        if is_first:
            work.results[part] = result
        return is_first

    def fetch(self, number: int, worker: Worker, part: int) -> Any:
        """Return the result of a part that is done.

        Raises:
            StateLostError: it is not.
        """
        found = self._work(number, worker).results.get(part)
        if found is None:
            raise StateLostError(f"part {part} of the shared work is not there")
        return found

    def leave(self, number: int, worker: Worker) -> None:
        """Take part no more; with the last one results are forgotten."""
        work = self._works.get(number)
        if work is None:
            return
        work.members.discard(worker)
        work.out = {part: [each for each in begun if each != worker] for part, begun in work.out.items()}
        if not work.members:
            del self._works[number]

    def lost(self, worker: Worker) -> None:
        """Take note that a worker is gone."""
        for number in [*self._works]:
            self.leave(number, worker)

    def _work(self, number: int, worker: Worker) -> _Work:
        work = self._works.get(number)
        if work is None or worker not in work.members:
            raise StateLostError(f"{worker[0]} does not take part in the shared work {number}")
        return work


# --- as a resource --------------------------------------------------------------------------------------------------

_NUMBER, _TEXT, _BYTES = (
    TensorSpec((), dtypes.int64),
    TensorSpec((), dtypes.string),
    TensorSpec((None,), dtypes.as_dtype("uint8")),
)
_METHODS: dict[str, tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]] = {
    "join": ((_NUMBER, _TEXT, _NUMBER, _NUMBER), (_NUMBER,)),
    "take": ((_NUMBER, _NUMBER), (_NUMBER, _NUMBER)),
    "put": ((_NUMBER, _NUMBER, _NUMBER, _BYTES), (_NUMBER,)),
    "fetch": ((_NUMBER, _NUMBER, _NUMBER), (_BYTES,)),
    "leave": ((_NUMBER, _NUMBER), ()),
}


@quick_dataclass(frozen=True, eq=False)
class SharedWorkCall(Op):
    """A request of `SharedWork`.

    Attributes:
        work: whom to ask.
        method: what.
        task: the task that asks.
    """

    work: SharedWork
    method: str
    task: str

    no_samples: ClassVar[str] = "holds the state of workers: test_shared_work"

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.work, writes=True),)

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        wanted, given = _METHODS[self.method]
        if len(inputs) != len(wanted) or not all(w.accepts(i) for w, i in zip(wanted, inputs, strict=True)):
            raise TypeError(f"SharedWork.{self.method} takes {list(map(str, wanted))}; got {list(map(str, inputs))}.")
        return given

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self.work.answer(self.method, self.task, inputs)


class SharedWork(NamedResource):
    """Work of which workers compute parts, in one task. Its methods build operations in the current graph.

    Args:
        name: its name in tasks.
    """

    kind = "shared_work"

    def __init__(self, name: str = "shared_work") -> None:
        self.name = self.path = name
        self.place_here()
        self._state = SharedWorkState()
        self._lock = threading.Lock()

    def definition(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Self:
        return cls(name)

    def task_lost(self, task: str, incarnation: int) -> None:
        with self._lock:
            self._state.lost((task, incarnation))

    def answer(self, method: str, task: str, inputs: Sequence[Any]) -> Any:
        """Answer a request."""
        check_held(self)
        state, worker = self._state, (task, int(inputs[0]))
        with self._lock:
            if method == "join":
                _, key, parts, may_begin = inputs
                return np.int64(state.join(worker, str(key), int(parts), bool(may_begin)))
            number = int(inputs[1])
            if method == "take":
                part, count = state.take(number, worker)
                return np.int64(part), np.int64(count)
            if method == "put":
                return np.int64(state.put(number, worker, int(inputs[2]), np.array(inputs[3])))
            if method == "fetch":
                return state.fetch(number, worker, int(inputs[2]))
            state.leave(number, worker)
        return ()

    def ask(self, method: str, task: str, *inputs: Any) -> Sequence[Tensor] | Operation:
        """Build a request in the current graph; return its outputs, or the operation where it has none.

        Args:
            method: "join", "take", "put", "fetch" or "leave".
            task: which asks.
            inputs: the incarnation of the task, and what `SharedWorkState` takes.
        """
        wanted, _ = _METHODS[method]
        tensors = [convert_to_tensor(value, spec.dtype) for value, spec in zip(inputs, wanted, strict=False)]
        made = get_default_graph().add(SharedWorkCall(self, method, task), tensors, f"{self.name}/{method}")
        return made.outputs or made


__all__ = ["ALONE", "DONE", "HAND_IN", "NONE", "SharedWork", "SharedWorkState"]
