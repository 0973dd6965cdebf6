"""`ReplicaGradients`: what the workers of replicas put in a task that holds parameters, as state and ops.

It keeps the workers' gradients until a set names those that count, and reduces them in the order of the set or as they
arrive. It also keeps the values that the parameters had when a training ended, once another one is to change them: see
`ReplicaSteps`, which numbers trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..common import dtypes
from ..common.dtypes import as_dtype
from ..common.quick_dataclass import dataclass
from ..graph.graph import get_default_graph
from ..graph.op import Effect
from ..graph.spec import Shape, TensorSpec
from ..graph.state.resource import NamedResource
from ..ops.base import convert_to_tensor
from .attempts import Gate
from .errors import CancelledError, check_held
from .replica_requests import ReplicaOp, training_now
from .replica_tickets import TICKET_BITS, Receipt

if TYPE_CHECKING:
    from ..graph.graph import Operation
    from ..graph.tensor import Tensor

_NUMBER = TensorSpec((), dtypes.int64)
FORGET = -2  # the mark by which gradients that wait are forgotten: no set will name them


# --- values and their sums ------------------------------------------------------------------------------------------


@plain_dataclass(frozen=True)
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


class ArrivingSum:
    """The sum of what is added to it, in the order in which that comes.

    Values that are not sums (the first worker's, rows of tables) are kept apart until the sum is taken.

    Args:
        parts: what each worker puts.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)
        self._sums: list[Any] = [None] * len(self._parts)
        self._kept: dict[int, tuple[int, list[Any]]] = {}

    def __contains__(self, ticket: int) -> bool:
        """Test whether the values of a ticket are in it."""
        return ticket in self._kept

    def add(self, ticket: int, rows: int, values: Sequence[Any]) -> None:
        """Add what a worker has put under a ticket, of so many rows."""
        kept: list[Any] = []
        position = 0
        for number, part in enumerate(self._parts):
            column = list(values[position : position + len(part.specs)])
            position += len(column)
            if part.has_rows or part.reduction == "first":
                kept.append(column)
                continue
            value = scaled(column[0], 1.0 if part.reduction == "sum" else float(rows))
            total = self._sums[number]
            if total is None:
                self._sums[number] = np.array(value)
            else:
                np.add(total, value, out=total)
        self._kept[ticket] = rows, kept

    def take(self, tickets: Sequence[int]) -> list[Any]:
        """Return the reduced values, and forget them.

        Args:
            tickets: those that were added, in the order of their shares.

        Raises:
            ValueError: others were added, too, which can't be taken out again.
        """
        if {*tickets} != {*self._kept}:
            raise ValueError(f"The sum is of tickets {sorted(self._kept)}, and asked for those of {sorted(tickets)}.")
        given = [self._kept[ticket] for ticket in tickets]
        weights = [rows for rows, _ in given]
        columns = [iter(kept) for _, kept in given]
        found: list[Any] = []
        for part, total in zip(self._parts, self._sums, strict=True):
            if total is None:
                found += reduced(part, [next(each) for each in columns], weights)
            else:
                whole = total if part.reduction == "sum" else scaled(total, 1.0 / sum(weights))
                found.append(np.asarray(whole).astype(as_dtype(part.dtype), copy=False))
        self.clear()
        return found

    def clear(self) -> None:
        """Forget all that was added."""
        self._sums = [None] * len(self._parts)
        self._kept.clear()


def reduced(part: Part, columns: Sequence[Sequence[Any]], weights: Sequence[int]) -> list[Any]:
    """Return one part's values, reduced over workers: for rows of a table the indices, then the values."""
    dtype = as_dtype(part.dtype)
    shares = [1.0] * len(weights) if part.reduction == "sum" else [weight / sum(weights) for weight in weights]
    if part.reduction == "first":
        columns, shares = columns[:1], [1.0]
    values = (scaled(column[-1], share) for column, share in zip(columns, shares, strict=True))
    if part.has_rows:
        indices = np.concatenate([column[0] for column in columns])
        return [indices, np.concatenate(list(values)).astype(dtype, copy=False)]
    total = np.array(next(values))  # the worker's own array stays as it is
    for value in values:
        np.add(total, value, out=total)
    return [total.astype(dtype, copy=False)]


def scaled(value: Any, share: float) -> Any:
    """Multiply a value by a number; short floats become float32."""
    wide = value.astype("float32") if value.dtype.itemsize == 2 and value.dtype.kind not in "iub" else value
    return wide if share == 1.0 else wide * wide.dtype.type(share)


# --- state and operations -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _ReplicaGradientsOp(ReplicaOp):
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


@dataclass(frozen=True, eq=False)
class ReplicaGradientsBegin(_ReplicaGradientsOp):
    """Begin a training, as a leader. Inputs: its number, token, the values of the parameters of this task."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        self.gradients.begin_now(int(inputs[0]), int(inputs[1]), inputs[2:])
        return ()


@dataclass(frozen=True, eq=False)
class ReplicaGradientsFinal(_ReplicaGradientsOp):
    """Give the values at the end of a training, or by now. Inputs: its number, the values of the parameters by now.

    The first output is 0 if they are not known.
    """

    def infer(self, *inputs: Any) -> tuple[Any, ...]:
        return _NUMBER, *inputs[1:]

    def run(self, xp: Any, *inputs: Any) -> Any:
        found = self.gradients.final_now(int(inputs[0]))
        is_known = found is not None or int(inputs[0]) == self.gradients.training
        return np.int64(is_known), *(inputs[1:] if found is None else found)


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
        training: the number of the training that has begun last; 0 before the first.
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
        self.training = 0
        self._final: dict[int, list[Any]] = {}  # by training that is over: the values of the parameters of this task
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
            self._check_token(token)
            self.begun = mark if mark >= 0 else self.begun
            if mark == FORGET:
                self._held.clear()
                self._sum.clear()

    def _check_token(self, token: int) -> None:
        if token < self._token:
            raise CancelledError(
                f"token {token} does not lead any more, since {self._token} does. What it does now changes nothing"
            )
        self._token = token

    def begin_now(self, training: int, token: int, values: Sequence[Any]) -> None:
        """Begin a training, or begin it again.

        The first time the values of now are kept as the final ones of the training before, and gradients of that which
        are on their way do not count.

        Raises:
            CancelledError: the token is smaller than one that came before.
        """
        check_held(self)
        with self._gate.lock:
            self._check_token(token)
            if training == self.training:
                return
            if self.training:
                self._final[self.training] = [np.array(value) for value in values]
            self._final.pop(training, None)  # it is made again, by workers that were all started again
            self.training, self.begun, self.written = training, -1, -1
            self._horizon = token << TICKET_BITS
            self._held.clear()
            self._sum.clear()

    def final_now(self, training: int) -> list[Any] | None:
        """Return the final values of a training, if another one has begun since; else None."""
        check_held(self)
        with self._gate.lock:
            return self._final.get(training)

    def begin(self, token: Any, values: Sequence[Any]) -> Operation:
        """Begin a training; `values` are those of the parameters of this task."""
        tensors = [convert_to_tensor(value) for value in (training_now(), token, *values)]
        return get_default_graph().add(ReplicaGradientsBegin(self), tensors, f"{self.name}/begin")

    def final(self, values: Sequence[Any]) -> Sequence[Tensor]:
        """Return the values at the end of a training, behind a number that is 0 if they are not known."""
        tensors = [convert_to_tensor(value) for value in (training_now(), *values)]
        return get_default_graph().add(ReplicaGradientsFinal(self), tensors, f"{self.name}/final").outputs

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


__all__ = ["FORGET", "ArrivingSum", "Part", "ReplicaGradients", "reduced", "scaled"]
