"""`ReplicaSteps` and `ReplicaGradients`: what replicas of a model need to make steps together, as state and ops.

`ReplicaSteps` is in one task and hands out tickets, counts gradients and chooses the sets of steps. Each task that
holds parameters has a `ReplicaGradients`, which keeps the workers' gradients until a set names those that count.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ..common import dtypes
from ..common.quick_dataclass import dataclass
from ..graph.graph import get_default_graph
from ..graph.op import Effect, Op
from ..graph.spec import TensorSpec
from ..graph.state.resource import NamedResource
from ..ops.base import convert_to_tensor
from .attempts import Attempt, Course, Gate, Request, WaitingOp
from .errors import CancelledError, check_held
from .replica_requests import METHODS, WAITING, WORDS, ReplicaStepsSum, fits, read
from .replica_state import ReplicaStepsState
from .replica_sums import ArrivingSum, Part, reduced
from .replica_tickets import Receipt

if TYPE_CHECKING:
    from ..graph.graph import Operation
    from ..graph.tensor import Tensor

_NUMBER = TensorSpec((), dtypes.int64)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _ReplicaOp(Op):
    """Base: ops on the state of replicas. They always run, in order, and nothing flows back through them."""

    no_samples: ClassVar[str] = "holds the state of replicas: test_replica_steps"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)


# --- tickets and sets -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _ReplicaStepsOp(_ReplicaOp):
    """Base: a request of `ReplicaSteps`.

    Attributes:
        steps: whom to ask.
        method: what.
        task: the task that joins; "" for other requests.
    """

    steps: ReplicaSteps
    method: str
    task: str

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.steps, writes=True),)

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        method = METHODS[self.method]
        wanted = "i" * method.is_leaders + method.inputs
        if len(inputs) != len(wanted) or not all(map(fits, wanted, inputs)):
            what = ", ".join(WORDS[letter] for letter in wanted)
            raise TypeError(f"ReplicaSteps.{self.method} takes ({what}); got {list(map(str, inputs))}.")
        return method.outputs


@dataclass(frozen=True, eq=False)
class ReplicaStepsCall(_ReplicaStepsOp):
    """A request that is answered at once."""

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self.steps.answer(self.method, self.task, inputs)


@dataclass(frozen=True, eq=False)
class ReplicaStepsWait(_ReplicaStepsOp, WaitingOp):
    """A request that may have to wait: for a ticket, the set of a step, or an announcement."""

    def effects(self) -> tuple[Effect, ...]:
        """Return the effects: a watch has none, since the commit that it waits for is an operation of the same step."""
        return () if self.method == "watch" else super().effects()

    def course(self, *inputs: Any) -> Course:
        parts = yield self.steps.asking(self.method, self.task, inputs)
        specs = METHODS[self.method].outputs
        found = [np.asarray(part, spec.dtype) for part, spec in zip(parts, specs, strict=True)]
        return found[0] if len(found) == 1 else tuple(found)


class ReplicaSteps(NamedResource):
    """The steps that replicas of a model make together: tickets for workers, and the sets that are applied.

    Its methods build operations in the graph that is being built.

    Args:
        shares: how many shares of a global batch make a step.
        synchronous: whether workers wait for each step to be applied.
        requeue: whether the rows of dropped gradients are handed out again.
        max_staleness: how many steps the parameters of an asynchronous gradient may be behind; None for any number.
        min_workers: with fewer workers no step is made.
        backups: how many shares more than a step needs workers may compute at a time.
        workers: how many workers there are; 0 where that is not known.
        together: whether workers exchange sums while they compute a step.
        name: its name in tasks.
    """

    kind = "replica_steps"

    def __init__(
        self,
        shares: int,
        synchronous: bool = True,
        requeue: bool = True,
        max_staleness: int | None = None,
        min_workers: int = 1,
        backups: int = 0,
        workers: int = 0,
        together: bool = False,
        *,
        name: str = "replica_steps",
    ) -> None:
        self.name = self.path = name
        self.place_here()
        self._options: dict[str, Any] = {
            "shares": shares,
            "synchronous": synchronous,
            "requeue": requeue,
            "max_staleness": max_staleness,
            "min_workers": min_workers,
            "backups": backups,
            "workers": workers,
            "together": together,
        }
        self._state = ReplicaStepsState(*self._options.values())
        self._said = ""
        self._gate = Gate()

    def definition(self) -> dict[str, Any]:
        return dict(self._options)

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Self:
        return cls(**definition, name=name)

    def report(self) -> dict[str, Any] | None:
        with self._gate.lock:
            return self._state.statistics()

    def task_lost(self, task: str, incarnation: int) -> None:
        with self._gate.lock:
            if self._state.lost(task, incarnation):
                self._say_shortage()

    def _say_shortage(self) -> None:
        """Say once that steps wait because too few workers take part, and for whom; if all are gone, nobody waits."""
        text, before = self._state.shortage(_worker) if self._state.members else "", self._said
        self._said = text
        if text and text != before:
            _logger.warning("%s: %s.", self.name, text)

    # --- what operations do -----------------------------------------------------------------------------------------

    def answer(self, method: str, task: str, inputs: Sequence[Any]) -> Any:
        """Answer a request at once."""
        check_held(self)
        with self._gate.lock:
            given = self._checked(method, inputs)
            if method in ("join", "lead"):
                given.insert(1, task)
            found: Any = self._state.generation if method == "current" else getattr(self._state, method)(*given)
            if method in ("leave", "retire", "hand_over"):
                self._say_shortage()
        if method == "statistics":
            found = json.dumps(found)
        if isinstance(found, str):
            return np.asarray(found, dtypes.string)
        if method == "accept":
            token, mark = found
            return np.int64(token), np.int64(mark)
        if method == "rows":
            return np.frombuffer(found, "uint8")
        return () if found is None else np.asarray(found, np.int64)

    def _checked(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs of a request but for the token, which is checked.

        Raises:
            CancelledError: another worker leads.
            StateLostError: state is lost, and the request needs it.
        """
        known = METHODS[method]
        letters = "i" * known.is_leaders + known.inputs
        given = [read(letter, value) for letter, value in zip(letters, inputs, strict=True)]
        if known.is_leaders:
            self._state.check_leader(given.pop(0))
            if method != "close":
                self._state.check_whole()
        return given

    def asking(self, method: str, task: str, inputs: Sequence[Any]) -> Request:
        """Return the request for a ticket, a set, an announcement or to take part."""
        check_held(self)
        state = self._state

        def ask() -> Attempt:
            given = self._checked(method, inputs)
            return getattr(state, method)(*given[:1], task, *given[1:]) if task else getattr(state, method)(*given)

        return Request(self._gate, ask, state.withdraw, partial(self._describe, method))

    def _describe(self, method: str, attempt: Attempt) -> str:
        return f"{WAITING[method].format(self._state.describe(_worker))}, of {self.name!r}."

    # --- building operations ----------------------------------------------------------------------------------------

    def join(self, worker: Any, incarnation: Any, task: str) -> Operation:
        """Take part, as the worker of this number, which runs in `task`."""
        return self._add("join", [worker, incarnation], task)

    def leave(self, worker: Any, incarnation: Any) -> Operation:
        """Take part no more."""
        return self._add("leave", [worker, incarnation])

    def retire(self, worker: Any, incarnation: Any) -> Operation:
        """Have a worker leave between steps."""
        return self._add("retire", [worker, incarnation])

    def hand_over(self, worker: Any, incarnation: Any) -> Tensor:
        """Lead no more, and take part no more; return 1 if there is another worker, who leads then, and else 0."""
        return self._add("hand_over", [worker, incarnation]).outputs[0]

    def lead(self, worker: Any, incarnation: Any, least: Any, known: Any, task: str) -> Tensor:
        """Begin training, or start it again, as the worker of this number; return the leader's token."""
        return self._add("lead", [worker, incarnation, least, known], task).outputs[0]

    def enrol(self, worker: Any, incarnation: Any, after: Any, is_late: Any, task: str, is_whole: Any = 0) -> Tensor:
        """Take part in a generation but `after`, or with `is_whole` in that; return its number. Waits for it."""
        return self._add("enrol", [worker, incarnation, after, is_late, is_whole], task).outputs[0]

    def current(self) -> Tensor:
        """Return the number of the generation; 0 before training has begun."""
        return self._add("current", []).outputs[0]

    def accept(self, worker: Any, incarnation: Any) -> Sequence[Tensor]:
        """Take over as the leader; return its token, and the mark of a set that may be applied in part, or -1."""
        return self._add("accept", [worker, incarnation]).outputs

    def note(self, token: Any, text: Any) -> Operation:
        """Keep what the next leader will need."""
        return self._add("note", [token, text])

    def notes(self) -> Tensor:
        """Return what was noted last."""
        return self._add("notes", []).outputs[0]

    def abandon(self, token: Any, reason: Any) -> Operation:
        """Note that state is lost: all who ask or wait get a `StateLostError`, until training begins again."""
        return self._add("abandon", [token, reason])

    def begin_epoch(self, token: Any, batches: Any, shares: Any, done: Any) -> Tensor:
        """Begin an epoch of so many global batches in shares, of which some are done; return its number."""
        return self._add("begin_epoch", [token, batches, shares, done]).outputs[0]

    def supply(self, token: Any, number: Any, sizes: Any, rows: Any, note: Any) -> Operation:
        """Add a batch to an epoch that was begun with -1 batches: the sizes and bytes of its shares, and a note."""
        return self._add("supply", [token, number, sizes, rows, note])

    def seal(self, token: Any, note: Any) -> Operation:
        """Note that the epoch has no further batch."""
        return self._add("seal", [token, note])

    def supplied(self, token: Any) -> Tensor:
        """Return the note that came with the latest batch, or with the end of the epoch."""
        return self._add("supplied", [token]).outputs[0]

    def rows(self, share: Any) -> Tensor:
        """Return the bytes of a share that was supplied; none if it is done."""
        return self._add("rows", [share]).outputs[0]

    def check_whole(self, token: Any) -> Operation:
        """Check that the token leads, and that no state is lost."""
        return self._add("check_whole", [token])

    def end_epoch(self, token: Any) -> Operation:
        """End the epoch now."""
        return self._add("end_epoch", [token])

    def account(self, token: Any) -> Tensor:
        """Return the shares of the epoch that are done."""
        return self._add("account", [token]).outputs[0]

    def close(self, token: Any, reason: Any) -> Operation:
        """Have all that wait, and all that ask later, fail with `CancelledError` and this reason."""
        return self._add("close", [token, reason])

    def take(self, worker: Any, incarnation: Any, epoch: Any) -> Sequence[Tensor]:
        """Take a ticket: number (-1: the epoch is over), step, share and how many. Waits for the step before."""
        return self._add("take", [worker, incarnation, epoch]).outputs

    def watch(self, worker: Any, incarnation: Any, ticket: Any) -> Operation:
        """Wait until a ticket is committed; fails with `CancelledError` when its step has a set without it."""
        return self._add("watch", [worker, incarnation, ticket])

    def commit(self, worker: Any, incarnation: Any, ticket: Any, rows: Any) -> Tensor:
        """Count what was put under a ticket; return a `Receipt`."""
        return self._add("commit", [worker, incarnation, ticket, rows]).outputs[0]

    def sum(self, ticket: Any, x: Any) -> Tensor:
        """Return the sum of a tensor over all who compute the step of a ticket, the same in each of them."""
        graph = get_default_graph()
        number = len([each for each in graph.operations if isinstance(each.op, ReplicaStepsSum)])
        tensors = [convert_to_tensor(value) for value in (ticket, x)]
        return graph.add(ReplicaStepsSum(self, number), tensors, f"{self.name}/sum").outputs[0]

    def choose(self, token: Any) -> Sequence[Tensor]:
        """Return the next set: step, tickets, rows of each, and the horizon. Waits for it."""
        return self._add("choose", [token]).outputs

    def applied(self, token: Any, step: Any) -> Operation:
        """Note that the set of a step has been applied."""
        return self._add("applied", [token, step])

    def end_choosing(self, token: Any) -> Operation:
        """Have whoever waits for a set fail with `CancelledError`."""
        return self._add("end_choosing", [token])

    def announce(self, token: Any, text: Any) -> Operation:
        """Announce something to all workers, also to those that come later."""
        return self._add("announce", [token, text])

    def hear(self, worker: Any, incarnation: Any, number: Any) -> Tensor:
        """Return the announcement of a number, counted from 0. Waits until there is one."""
        return self._add("hear", [worker, incarnation, number]).outputs[0]

    def assemble(self, token: Any, least: Any) -> Tensor:
        """Return the number of workers once so many have come, and all others wait for the next announcement."""
        return self._add("assemble", [token, least]).outputs[0]

    def statistics(self) -> Tensor:
        """Return what was done, as JSON."""
        return self._add("statistics", []).outputs[0]

    def _add(self, method: str, inputs: Sequence[Any], task: str = "") -> Operation:
        kind = ReplicaStepsWait if method in WAITING else ReplicaStepsCall
        tensors = [convert_to_tensor(value) for value in inputs]
        return get_default_graph().add(kind(self, method, task), tensors, f"{self.name}/{method}")


def _worker(number: int) -> str:
    return f"worker {number}"


FORGET = -2  # the mark by which gradients that wait are forgotten: no set will name them

# --- gradients ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _ReplicaGradientsOp(_ReplicaOp):
    gradients: ReplicaGradients

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.gradients, writes=True),)


@dataclass(frozen=True, eq=False)
class ReplicaGradientsPut(_ReplicaGradientsOp):
    """Put the values of a step under the number of a ticket, which is the first input."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        wanted = (_NUMBER, *self.gradients.specs)
        if len(inputs) != len(wanted) or not all(w.accepts(g) for w, g in zip(wanted, inputs, strict=True)):
            raise TypeError(f"{self.gradients.name!r} takes {list(map(str, wanted))}; got {list(map(str, inputs))}.")
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        self.gradients.put_now(int(inputs[0]), inputs[1:])
        return ()


@dataclass(frozen=True, eq=False)
class ReplicaGradientsAdd(_ReplicaGradientsOp):
    """Add what was put under a ticket to the step's sum, if it was taken. Inputs: ticket, receipt, rows."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        self.gradients.add_now(*map(int, inputs))
        return ()


@dataclass(frozen=True, eq=False)
class ReplicaGradientsFence(_ReplicaGradientsOp):
    """Refuse what a leader does whose token is smaller than one that came before. Inputs: token, mark of a set or -1.

    If there is a mark, writing begins by it; or all that is held is forgotten, where it is `FORGET`.
    """

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        self.gradients.fence_now(int(inputs[0]), int(inputs[1]))
        return ()


@dataclass(frozen=True, eq=False)
class ReplicaGradientsWritten(_ReplicaGradientsOp):
    """Note that all is written that the set with a mark, the input, changes here."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        self.gradients.written = int(inputs[0])
        return ()


@dataclass(frozen=True, eq=False)
class ReplicaGradientsMarks(_ReplicaGradientsOp):
    """Give the marks of the sets whose writing has begun, and has ended, last."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return _NUMBER, _NUMBER

    def run(self, xp: Any, *inputs: Any) -> Any:
        check_held(self.gradients)
        return np.int64(self.gradients.begun), np.int64(self.gradients.written)


@dataclass(frozen=True, eq=False)
class ReplicaGradientsTake(_ReplicaGradientsOp):
    """Take the values of a set, reduced over its workers. Inputs: tickets, rows, horizon."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return self.gradients.specs

    def run(self, xp: Any, *inputs: Any) -> Any:
        found = self.gradients.take_now(inputs[0].tolist(), inputs[1].tolist(), int(inputs[2]))
        return found[0] if len(found) == 1 else tuple(found)


class ReplicaGradients(NamedResource):
    """Keeps what workers put until a set names those that count, and reduces these in the order of the set.

    So the same set gives the same bits, whoever came first. Or values are added up as they come, once they are known
    to count (their ticket is committed): then one sum is held, and not the values of all workers.

    Args:
        parts: what each worker puts.
        name: its name in tasks.
        deterministic: whether the order is that of the set.

    Attributes:
        begun, written: the marks (first tickets) of the sets of which this task has begun, and ended, to write what
            they change; -1 before there is one. If they differ, a leader was lost in between.
    """

    kind = "replica_gradients"

    def __init__(self, parts: Sequence[Part], name: str = "replica_gradients", deterministic: bool = True) -> None:
        self.name = self.path = name
        self.deterministic = deterministic
        self.place_here()
        self.parts = list(parts)
        self.specs = tuple([spec for part in self.parts for spec in part.specs])
        self._held: dict[int, list[Any]] = {}
        self._sum = ArrivingSum(self.parts)
        self._horizon = 0
        self._token = 0
        self.begun = self.written = -1
        self._gate = Gate()

    def definition(self) -> dict[str, Any]:
        listed = [
            [part.dtype, None if part.shape is None else list(part.shape), part.reduction, part.has_rows]
            for part in self.parts
        ]
        return {"parts": listed, "deterministic": self.deterministic}

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Self:
        parts = [
            Part(dtype, None if shape is None else tuple(shape), reduction, has_rows)
            for dtype, shape, reduction, has_rows in definition["parts"]
        ]
        return cls(parts, name, definition["deterministic"])

    def __len__(self) -> int:
        """Return the number of tickets whose values are held."""
        return len(self._held)

    def put_now(self, ticket: int, values: Sequence[Any]) -> None:
        """Keep values under a ticket, unless it is too old to count."""
        check_held(self)
        copies = [np.array(value) for value in values]
        with self._gate.lock:
            if ticket >= self._horizon:
                self._held[ticket] = copies

    def add_now(self, ticket: int, receipt: int, rows: int) -> None:
        """Add what was put under a ticket to the sum, if it counts; otherwise drop it."""
        check_held(self)
        with self._gate.lock:
            values = self._held.pop(ticket, None)  # None where the set was taken before
            if values is not None and receipt == Receipt.TAKEN:
                self._sum.add(ticket, rows, values)

    def take_now(self, tickets: Sequence[int], rows: Sequence[int], horizon: int) -> list[Any]:
        """Reduce the values of a set, and forget all that is older than the horizon.

        Raises:
            ValueError: values of a ticket are missing, or none has rows.
        """
        check_held(self)
        counted = [(ticket, count) for ticket, count in zip(tickets, rows, strict=True) if count]
        with self._gate.lock:
            missing = [ticket for ticket, _ in counted if ticket not in self._held and ticket not in self._sum]
            if missing or not counted:
                raise ValueError(f"{self.name!r} has no values of tickets {missing or list(tickets)}.")
            found: list[Any] = []
            values: list[Any] = []
            if self.deterministic:
                values = [self._held.pop(ticket) for ticket, _ in counted]
            else:
                for ticket, count in counted:
                    if ticket not in self._sum:  # its worker is about to ask for that
                        self._sum.add(ticket, count, self._held.pop(ticket))
                found = self._sum.take([ticket for ticket, _ in counted])
            self._horizon = max(self._horizon, horizon)
            for ticket in [ticket for ticket in self._held if ticket < self._horizon]:
                del self._held[ticket]
        weights = [count for _, count in counted]
        position = 0
        for part in self.parts if values else ():
            width = len(part.specs)
            columns = [each[position : position + width] for each in values]
            found += reduced(part, columns, weights)
            position += width
        return found

    def fence_now(self, token: int, mark: int) -> None:
        """Refuse a token that is smaller than one that came before; otherwise take note of a mark, if it is not -1.

        Raises:
            CancelledError: it is.
        """
        check_held(self)
        with self._gate.lock:
            if token < self._token:
                raise CancelledError(
                    f"token {token} does not lead any more, since {self._token} does. What it does now changes nothing"
                )
            self._token = token
            self.begun = mark if mark >= 0 else self.begun
            if mark == FORGET:
                self._held.clear()
                self._sum.clear()

    def fence(self, token: Any, mark: Any = -1) -> Operation:
        """Refuse a leader whose token is smaller than one that came before; with a mark, its set is written now."""
        tensors = [convert_to_tensor(value) for value in (token, mark)]
        return get_default_graph().add(ReplicaGradientsFence(self), tensors, f"{self.name}/fence")

    def end_writing(self, mark: Any) -> Operation:
        """Note that all is written here that the set with this mark changes."""
        return get_default_graph().add(ReplicaGradientsWritten(self), [convert_to_tensor(mark)], f"{self.name}/written")

    def marks(self) -> Sequence[Tensor]:
        """Return the marks of the sets whose writing has begun, and has ended, last."""
        return get_default_graph().add(ReplicaGradientsMarks(self), [], f"{self.name}/marks").outputs

    def put(self, ticket: Any, values: Sequence[Any]) -> Operation:
        """Put the values of all parts, rows as indices and values, under a ticket's number."""
        tensors = [convert_to_tensor(value) for value in (ticket, *values)]
        return get_default_graph().add(ReplicaGradientsPut(self), tensors, f"{self.name}/put")

    def add(self, ticket: Any, receipt: Any, rows: Any) -> Operation:
        """Add what was put under a ticket to the step's sum, if its receipt says that it counts."""
        tensors = [convert_to_tensor(value) for value in (ticket, receipt, rows)]
        return get_default_graph().add(ReplicaGradientsAdd(self), tensors, f"{self.name}/add")

    def take(self, tickets: Any, rows: Any, horizon: Any) -> Sequence[Tensor]:
        """Take the reduced values of all parts."""
        tensors = [convert_to_tensor(value) for value in (tickets, rows, horizon)]
        return get_default_graph().add(ReplicaGradientsTake(self), tensors, f"{self.name}/take").outputs
