"""The requests of `ReplicaSteps`: what each takes, and what it gives."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ..common import dtypes
from ..common.quick_dataclass import dataclass
from ..graph.op import Effect, Op
from ..graph.spec import TensorSpec
from .attempts import Course, WaitingOp

if TYPE_CHECKING:
    from ..graph.graph import Operation
    from ..graph.tensor import Tensor
    from .replica_steps import ReplicaSteps

_NUMBER, _NUMBERS = TensorSpec((), dtypes.int64), TensorSpec((None,), dtypes.int64)
_TEXT, _BYTES = TensorSpec((), dtypes.string), TensorSpec((None,), dtypes.as_dtype("uint8"))


class Method(NamedTuple):
    """The inputs and outputs of a request of `ReplicaSteps`.

    Attributes:
        inputs: a letter for each: "i" an integer, "v" a vector of integers, "s" a text, "b" bytes, "a" an array.
        outputs: their specs.
        is_leaders: whether only the leader may ask; its token comes before the other inputs.
    """

    inputs: str
    outputs: tuple[TensorSpec, ...] = ()
    is_leaders: bool = False


_training: ContextVar[Any] = ContextVar("training", default=0)


@contextmanager
def in_training(number: Any) -> Generator[None]:
    """Make a block: operations that are built inside ask for the training of a number, which may be a tensor."""
    token = _training.set(number)
    try:
        yield
    finally:
        _training.reset(token)


def training_now() -> Any:
    """Return the number of the training that operations ask for which are built now."""
    return _training.get()


METHODS = {
    "join": Method("ii"),
    "leave": Method("ii"),
    "retire": Method("ii"),
    "hand_over": Method("ii", (_NUMBER,)),
    "lead": Method("iiii", (_NUMBER,)),
    "enrol": Method("iiiii", (_NUMBER,)),
    "current": Method("", (_NUMBER,)),
    "accept": Method("ii", (_NUMBER, _NUMBER)),
    "note": Method("s", is_leaders=True),
    "notes": Method("", (_TEXT,)),
    "abandon": Method("s", is_leaders=True),
    "begin_epoch": Method("iiv", (_NUMBER,), is_leaders=True),
    "supply": Method("ivbs", is_leaders=True),
    "seal": Method("s", is_leaders=True),
    "supplied": Method("", (_TEXT,), is_leaders=True),
    "rows": Method("i", (_BYTES,)),
    "check_whole": Method("", is_leaders=True),
    "end_epoch": Method("", is_leaders=True),
    "account": Method("", (_NUMBERS,), is_leaders=True),
    "close": Method("s", is_leaders=True),
    "commit": Method("iiii", (_NUMBER,)),
    "applied": Method("i", is_leaders=True),
    "end_choosing": Method("", is_leaders=True),
    "announce": Method("s", is_leaders=True),
    "hear": Method("iii", (_TEXT,)),
    "assemble": Method("i", (_NUMBER,), is_leaders=True),
    "statistics": Method("", (_TEXT,)),
    "take": Method("iii", (_NUMBER, _NUMBER, _NUMBER, _NUMBER)),
    "sum": Method("iia"),  # the outputs are those of the inputs: see `ReplicaStepsSum`
    "watch": Method("iii"),
    "choose": Method("", (_NUMBER, _NUMBERS, _NUMBERS, _NUMBER), is_leaders=True),
}
WORDS = {"i": "an integer", "v": "a vector of integers", "s": "a text", "b": "bytes"}
WAITING = {  # requests that may have to wait: for what, where "{}" stands for what the step lacks
    "take": "a ticket for {}",
    "watch": "the gradients of its own step, or the set that does without",
    "choose": "the set of {}",
    "sum": "the addends of the other workers, in {}",
    "hear": "what the chief announces next",
    "assemble": "all workers to come to the next step",
    "enrol": "training to begin, or to start again from a backup",
}


def fits(letter: str, given: Any) -> bool:
    """Test whether the spec of an input fits a letter of `Method.inputs`."""
    rank = 1 if letter in "vb" else 0
    kinds = {"s": "T", "b": "u"}.get(letter, "iu")
    return given.dtype.kind in kinds and (given.shape is None or len(given.shape) == rank)


def read(letter: str, value: Any) -> Any:
    """Return the Python value of an input."""
    if letter == "b":
        return np.asarray(value)
    if letter == "a":
        return np.array(value)
    if letter == "v":
        return np.asarray(value).tolist()
    return str(value) if letter == "s" else int(value)


class ReplicaOp(Op, abstract=True):
    """Base: ops on the state of replicas. They always run, in order, and nothing flows back through them."""

    no_samples: ClassVar[str] = "holds the state of replicas: test_replica_steps"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)


@dataclass(frozen=True, eq=False)
class ReplicaStepsSum(WaitingOp):
    """The sum of a tensor over all workers that compute a step together. Inputs: training, ticket, tensor.

    Attributes:
        steps: those that exchange it.
        number: that of the sum in the step.
    """

    steps: ReplicaSteps
    number: int

    host_only: ClassVar[bool] = True
    no_samples: ClassVar[str] = "holds the state of replicas: test_replica_exchanges"

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.steps, writes=True),)

    def infer(self, *inputs: Any) -> TensorSpec:
        return inputs[2]

    def course(self, *inputs: Any) -> Course:
        training, ticket, value = inputs
        (total,) = yield self.steps.asking("sum", "", (training, ticket, self.number, value))
        return np.array(total)  # others have the same one, and whoever owns a result may write to it

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        training, ticket, _ = node.inputs
        with in_training(training):
            return None, None, None if dy is None else self.steps.sum(ticket, dy)


__all__ = [
    "METHODS",
    "WAITING",
    "WORDS",
    "Method",
    "ReplicaOp",
    "ReplicaStepsSum",
    "fits",
    "in_training",
    "read",
    "training_now",
]
