"""`ReplicaSteps`: what replicas of a model need to make steps together, as state and ops.

It is in one task and hands out tickets, counts gradients and chooses the sets of steps. Each task that holds parameters
has a `ReplicaGradients`.

Replicas may train more than once, by the same programs. Each *training* has a number and a state of its own, so that
one which is over is there for workers that come later. Operations ask for the training that `in_training` says while
they are built.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..common import dtypes
from ..common.quick_dataclass import dataclass
from ..graph.graph import get_default_graph
from ..graph.op import Effect
from ..graph.spec import TensorSpec
from ..graph.state.resource import NamedResource
from ..ops.base import convert_to_tensor
from .attempts import Attempt, Course, Gate, Request, WaitingOp
from .errors import check_held
from .replica_requests import METHODS, WAITING, WORDS, ReplicaOp, ReplicaStepsSum, fits, read, training_now
from .replica_state import ReplicaStepsState

if TYPE_CHECKING:
    from ..graph.graph import Operation
    from ..graph.tensor import Tensor

_logger = logging.getLogger(__name__)


# --- tickets and sets -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _ReplicaStepsOp(ReplicaOp):
    """Base: a request of `ReplicaSteps`, whose first input is the number of the training.

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
        if len(inputs) != len(wanted) + 1 or not all(map(fits, f"i{wanted}", inputs)):
            what = ", ".join(WORDS[letter] for letter in wanted)
            raise TypeError(f"ReplicaSteps.{self.method} takes ({what}); got {list(map(str, inputs[1:]))}.")
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
        self._states: dict[int, ReplicaStepsState] = {}  # by the number of the training
        self._said: dict[int, str] = {}
        self._gate = Gate()

    def definition(self) -> dict[str, Any]:
        return dict(self._options)

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Self:
        return cls(**definition, name=name)

    def report(self) -> dict[str, Any] | None:
        with self._gate.lock:
            return self.state_of(max(self._states, default=0)).statistics()

    def state_of(self, training: int) -> ReplicaStepsState:
        """Return the state of the training of a number, which begins when somebody asks for it."""
        found = self._states.get(training)
        if found is None:
            found = self._states[training] = ReplicaStepsState(*self._options.values())
        return found

    def task_lost(self, task: str, incarnation: int) -> None:
        with self._gate.lock:
            for training, state in self._states.items():
                if state.lost(task, incarnation):
                    self._say_shortage(training)

    def _say_shortage(self, training: int) -> None:
        """Say once that steps wait because too few workers take part, and for whom; if all are gone, nobody waits."""
        state = self._states[training]
        text, before = state.shortage(_worker) if state.members else "", self._said.get(training, "")
        self._said[training] = text
        if text and text != before:
            _logger.warning("%s: %s.", self.name, text)

    # --- what operations do -----------------------------------------------------------------------------------------

    def answer(self, method: str, task: str, inputs: Sequence[Any]) -> Any:
        """Answer a request at once."""
        check_held(self)
        training = int(inputs[0])
        with self._gate.lock:
            state = self.state_of(training)
            given = _checked(state, method, inputs[1:])
            if method in ("join", "lead"):
                given.insert(1, task)
            if method == "lead":  # tokens grow from training to training, too: so that ps tasks refuse earlier leaders
                given[3] = max(given[3], *[each.token + 1 for each in self._states.values()])
            found: Any = state.generation if method == "current" else getattr(state, method)(*given)
            if method in ("leave", "retire", "hand_over"):
                self._say_shortage(training)
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

    def asking(self, method: str, task: str, inputs: Sequence[Any]) -> Request:
        """Return the request for a ticket, a set, an announcement or to take part."""
        check_held(self)
        with self._gate.lock:
            state = self.state_of(int(inputs[0]))

        def ask() -> Attempt:
            given = _checked(state, method, inputs[1:])
            return getattr(state, method)(*given[:1], task, *given[1:]) if task else getattr(state, method)(*given)

        def describe(attempt: Attempt) -> str:
            return f"{WAITING[method].format(state.describe(_worker))}, of {self.name!r}."

        return Request(self._gate, ask, state.withdraw, describe)

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
        tensors = [convert_to_tensor(value) for value in (training_now(), ticket, x)]
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
        tensors = [convert_to_tensor(value) for value in (training_now(), *inputs)]
        return get_default_graph().add(kind(self, method, task), tensors, f"{self.name}/{method}")


def _worker(number: int) -> str:
    return f"worker {number}"


def _checked(state: ReplicaStepsState, method: str, inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs of a request but for the token, which is checked.

    Raises:
        CancelledError: another worker leads.
        StateLostError: state is lost, and the request needs it.
    """
    known = METHODS[method]
    letters = "i" * known.is_leaders + known.inputs
    given = [read(letter, value) for letter, value in zip(letters, inputs, strict=True)]
    if known.is_leaders:
        state.check_leader(given.pop(0))
        if method != "close":
            state.check_whole()
    return given


__all__ = ["ReplicaSteps", "ReplicaStepsCall", "ReplicaStepsWait"]
