"""`ReplicaSteps` and `ReplicaGradients`: what replicas of a model need to make steps together, as state and ops.

`ReplicaSteps` lies in one task and hands out tickets, counts gradients and chooses the sets of steps. Each task that
holds parameters has a `ReplicaGradients`, which keeps the workers' gradients until a set names those that count.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from ..graph import dtypes
from ..graph.dtypes import as_dtype
from ..graph.graph import get_default_graph
from ..graph.op import Effect, Op
from ..graph.resource import NamedResource
from ..graph.spec import Shape, TensorSpec
from ..ops.base import convert_to_tensor
from .attempts import Attempt, Course, Gate, Request, WaitingOp
from .errors import check_held
from .replica_state import ReplicaStepsState

if TYPE_CHECKING:
    from ..graph.graph import Operation
    from ..graph.tensor import Tensor

_NUMBER, _NUMBERS = TensorSpec((), dtypes.int64), TensorSpec((None,), dtypes.int64)
_TEXT = TensorSpec((), dtypes.string)


@dataclass(frozen=True, eq=False)
class _ReplicaOp(Op):
    """Base: ops on the state of replicas. They always run, in order, and nothing flows back through them."""

    no_samples: ClassVar[str] = "holds the state of replicas: test_replica_steps"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)


# --- tickets and sets -----------------------------------------------------------------------------------------------


class _Method(NamedTuple):
    """The inputs and outputs of a request of `ReplicaSteps`: integers, but for the text that some take or give."""

    inputs: int
    outputs: tuple[TensorSpec, ...] = ()
    takes_text: bool = False


_METHODS = {
    "join": _Method(2),
    "leave": _Method(2),
    "begin_epoch": _Method(1, (_NUMBER,)),
    "end_epoch": _Method(0),
    "close": _Method(1, takes_text=True),
    "commit": _Method(4, (_NUMBER,)),
    "applied": _Method(1),
    "end_choosing": _Method(0),
    "announce": _Method(1, takes_text=True),
    "hear": _Method(1, (_TEXT,)),
    "statistics": _Method(0, (_TEXT,)),
    "take": _Method(3, (_NUMBER, _NUMBER, _NUMBER)),
    "choose": _Method(0, (_NUMBER, _NUMBERS, _NUMBERS, _NUMBER)),
}


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
        method = _METHODS[self.method]
        kinds = "T" if method.takes_text else "iu"
        if len(inputs) != method.inputs or any(x.dtype.kind not in kinds or x.shape not in ((), None) for x in inputs):
            what = "text" if method.takes_text else "integers"
            raise TypeError(f"ReplicaSteps.{self.method} takes {method.inputs} scalars, {what}; got {inputs}.")
        return method.outputs


@dataclass(frozen=True, eq=False)
class ReplicaStepsCall(_ReplicaStepsOp):
    """A request that is answered at once."""

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self.steps.answer(self.method, self.task, inputs)


@dataclass(frozen=True, eq=False)
class ReplicaStepsWait(_ReplicaStepsOp, WaitingOp):
    """A request that may have to wait: for a ticket, the set of a step, or an announcement."""

    def course(self, *inputs: Any) -> Course:
        parts = yield self.steps.asking(self.method, inputs)
        specs = _METHODS[self.method].outputs
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
        name: by which tasks know it.
    """

    kind = "replica_steps"

    def __init__(
        self,
        shares: int,
        synchronous: bool = True,
        requeue: bool = True,
        max_staleness: int | None = None,
        name: str = "replica_steps",
    ) -> None:
        self.name = self.path = name
        self.place_here()
        self._options = (shares, synchronous, requeue, max_staleness)
        self._state = ReplicaStepsState(shares, synchronous, requeue, max_staleness)
        self._gate = Gate()

    def definition(self) -> dict[str, Any]:
        return {"options": list(self._options)}

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Self:
        return cls(*definition["options"], name=name)

    def report(self) -> dict[str, Any] | None:
        with self._gate.lock:
            return self._state.statistics()

    def task_lost(self, task: str, incarnation: int) -> None:
        with self._gate.lock:
            if 0 in self._state.lost(task, incarnation):
                self._state.close(f"{task}, which leads the training, is gone")

    # --- what operations do -----------------------------------------------------------------------------------------

    def answer(self, method: str, task: str, inputs: Sequence[Any]) -> Any:
        """Answer a request at once."""
        check_held(self)
        given: list[Any] = [str(value) if _METHODS[method].takes_text else int(value) for value in inputs]
        with self._gate.lock:
            if method == "join":
                self._state.join(given[0], task, given[1])
                return ()
            found = getattr(self._state, method)(*given)
        if method == "statistics":
            return np.asarray(json.dumps(found), dtypes.string)
        return () if found is None else np.int64(found)

    def asking(self, method: str, inputs: Sequence[Any]) -> Request:
        """The request for a ticket, a set or an announcement."""
        check_held(self)
        state, given = self._state, [int(value) for value in inputs]
        if method == "take":
            return Request(self._gate, lambda: state.take(*given), state.withdraw_take, self._describe_take)
        if method == "hear":
            return Request(self._gate, lambda: state.hear(*given), state.withdraw_hear, self._describe_hear)
        return Request(self._gate, state.choose, state.withdraw_choose, self._describe_choose)

    def _describe_take(self, attempt: Attempt) -> str:
        return f"a ticket of {self.name!r} for {self._state.describe(_worker)}."

    def _describe_hear(self, attempt: Attempt) -> str:
        return f"what the chief announces next, of {self.name!r}."

    def _describe_choose(self, attempt: Attempt) -> str:
        return f"the set of {self._state.describe(_worker)}, of {self.name!r}."

    # --- building operations ----------------------------------------------------------------------------------------

    def join(self, worker: Any, incarnation: Any, task: str) -> Operation:
        """Take part, as the worker of this number, which runs in `task`."""
        return self._add("join", [worker, incarnation], task)

    def leave(self, worker: Any, incarnation: Any) -> Operation:
        """Take part no more."""
        return self._add("leave", [worker, incarnation])

    def begin_epoch(self, batches: Any) -> Tensor:
        """Begin an epoch of so many global batches; gives its number, counted from 1."""
        return self._add("begin_epoch", [batches]).outputs[0]

    def end_epoch(self) -> Operation:
        """End the epoch now."""
        return self._add("end_epoch", [])

    def close(self, reason: Any) -> Operation:
        """Have all that wait, and all that ask later, fail with `CancelledError` and this reason."""
        return self._add("close", [reason])

    def take(self, worker: Any, incarnation: Any, epoch: Any) -> Sequence[Tensor]:
        """Take a ticket: its number (-1: the epoch is over), step and share. Waits for the step before."""
        return self._add("take", [worker, incarnation, epoch]).outputs

    def commit(self, worker: Any, incarnation: Any, ticket: Any, rows: Any) -> Tensor:
        """Count what was put under a ticket; gives a `Receipt`."""
        return self._add("commit", [worker, incarnation, ticket, rows]).outputs[0]

    def choose(self) -> Sequence[Tensor]:
        """The next set: step, tickets, rows of each, and the horizon. Waits for it."""
        return self._add("choose", []).outputs

    def applied(self, step: Any) -> Operation:
        """Note that the set of a step has been applied."""
        return self._add("applied", [step])

    def end_choosing(self) -> Operation:
        """Have whoever waits for a set fail with `CancelledError`."""
        return self._add("end_choosing", [])

    def announce(self, text: Any) -> Operation:
        """Tell all workers something, those that come later, too."""
        return self._add("announce", [text])

    def hear(self, number: Any) -> Tensor:
        """The announcement of a number, counted from 0. Waits until there is one."""
        return self._add("hear", [number]).outputs[0]

    def statistics(self) -> Tensor:
        """Return what was done, as JSON."""
        return self._add("statistics", []).outputs[0]

    def _add(self, method: str, inputs: Sequence[Any], task: str = "") -> Operation:
        kind = ReplicaStepsWait if method in ("take", "choose", "hear") else ReplicaStepsCall
        tensors = [convert_to_tensor(value) for value in inputs]
        return get_default_graph().add(kind(self, method, task), tensors, f"{self.name}/{method}")


def _worker(number: int) -> str:
    return f"worker {number}"


# --- gradients ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One of the values that each worker puts in a step.

    Attributes:
        dtype: of the value, by name.
        shape: of the value, or for rows of the whole table.
        reduction: "mean" weights workers by their rows, "sum" adds up, "first" takes the first worker's.
        has_rows: whether the value is some rows of a table: indices and values.
    """

    dtype: str
    shape: Shape
    reduction: str = "mean"
    has_rows: bool = False

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of what is put and what is taken."""
        if not self.has_rows:
            return (TensorSpec(self.shape, as_dtype(self.dtype)),)
        rows: Shape = None if self.shape is None else (None, *self.shape[1:])
        return TensorSpec((None,), dtypes.int64), TensorSpec(rows, as_dtype(self.dtype))


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
class ReplicaGradientsTake(_ReplicaGradientsOp):
    """Take the values of a set, reduced over its workers. Inputs: tickets, rows, horizon."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return self.gradients.specs

    def run(self, xp: Any, *inputs: Any) -> Any:
        found = self.gradients.take_now(inputs[0].tolist(), inputs[1].tolist(), int(inputs[2]))
        return found[0] if len(found) == 1 else tuple(found)


class ReplicaGradients(NamedResource):
    """Keeps what workers put until a set names those that count, and reduces these in the order of the set.

    So the same set gives the same bits, whoever came first.

    Args:
        parts: what each worker puts.
        name: by which tasks know it.
    """

    kind = "replica_gradients"

    def __init__(self, parts: Sequence[Part], name: str = "replica_gradients") -> None:
        self.name = self.path = name
        self.place_here()
        self.parts = list(parts)
        self.specs = tuple([spec for part in self.parts for spec in part.specs])
        self._held: dict[int, list[Any]] = {}
        self._horizon = 0
        self._gate = Gate()

    def definition(self) -> dict[str, Any]:
        listed = [
            [part.dtype, None if part.shape is None else list(part.shape), part.reduction, part.has_rows]
            for part in self.parts
        ]
        return {"parts": listed}

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Self:
        parts = [
            Part(dtype, None if shape is None else tuple(shape), reduction, has_rows)
            for dtype, shape, reduction, has_rows in definition["parts"]
        ]
        return cls(parts, name)

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

    def take_now(self, tickets: Sequence[int], rows: Sequence[int], horizon: int) -> list[Any]:
        """Reduce the values of a set, and forget all that is older than the horizon.

        Raises:
            ValueError: values of a ticket are missing, or none has rows.
        """
        check_held(self)
        counted = [(ticket, count) for ticket, count in zip(tickets, rows, strict=True) if count]
        with self._gate.lock:
            missing = [ticket for ticket, _ in counted if ticket not in self._held]
            if missing or not counted:
                raise ValueError(f"{self.name!r} has no values of tickets {missing or list(tickets)}.")
            values = [self._held.pop(ticket) for ticket, _ in counted]
            self._horizon = max(self._horizon, horizon)
            for ticket in [ticket for ticket in self._held if ticket < self._horizon]:
                del self._held[ticket]
        weights = [count for _, count in counted]
        found: list[Any] = []
        position = 0
        for part in self.parts:
            width = len(part.specs)
            columns = [each[position : position + width] for each in values]
            found += _reduced(part, columns, weights)
            position += width
        return found

    def put(self, ticket: Any, values: Sequence[Any]) -> Operation:
        """Put the values of all parts, rows as indices and values, under a ticket's number."""
        tensors = [convert_to_tensor(value) for value in (ticket, *values)]
        return get_default_graph().add(ReplicaGradientsPut(self), tensors, f"{self.name}/put")

    def take(self, tickets: Any, rows: Any, horizon: Any) -> Sequence[Tensor]:
        """Take the reduced values of all parts."""
        tensors = [convert_to_tensor(value) for value in (tickets, rows, horizon)]
        return get_default_graph().add(ReplicaGradientsTake(self), tensors, f"{self.name}/take").outputs


def _reduced(part: Part, columns: Sequence[Sequence[Any]], weights: Sequence[int]) -> list[Any]:
    """One part's values, reduced over workers: for rows of a table the indices, then the values."""
    dtype = as_dtype(part.dtype)
    shares = [1.0] * len(weights) if part.reduction == "sum" else [weight / sum(weights) for weight in weights]
    if part.reduction == "first":
        columns, shares = columns[:1], [1.0]
    scaled = [_scaled(column[-1], share) for column, share in zip(columns, shares, strict=True)]
    if part.has_rows:
        return [np.concatenate([column[0] for column in columns]), np.concatenate(scaled).astype(dtype, copy=False)]
    total = scaled[0]
    for value in scaled[1:]:
        total = total + value
    return [np.asarray(total).astype(dtype, copy=False)]


def _scaled(value: Any, share: float) -> Any:
    wide = value.astype("float32") if value.dtype.itemsize == 2 and value.dtype.kind not in "iub" else value
    return wide if share == 1.0 else wide * wide.dtype.type(share)
