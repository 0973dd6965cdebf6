"""The operations of queues. What they touch, they touch in program order; other threads may come in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..common import dtypes
from ..common.quick_dataclass import dataclass
from ..graph.op import Effect, Op
from ..graph.spec import TensorSpec
from .attempts import Course, WaitingOp

if TYPE_CHECKING:
    from ..graph.graph import Operation
    from ..graph.tensor import Tensor
    from .queue import Queue


@dataclass(frozen=True, eq=False)
class _QueueOp(Op):
    """Base: ops on a queue. They always run, in order, and nothing flows back through them."""

    no_samples: ClassVar[str] = "holds a queue: test_queues"
    queue: Queue

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.queue, writes=True),)  # reads too: between two of them another thread may write


@dataclass(frozen=True, eq=False)
class QueueEnqueue(_QueueOp, WaitingOp):
    """Put in one element, or with `many` one for each row of the inputs. Waits for room."""

    many: bool

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        self.queue.components.check_specs(inputs, self.many)
        return ()

    def course(self, *inputs: Any) -> Course:
        yield self.queue.putting(inputs, self.many)
        return ()


@dataclass(frozen=True, eq=False)
class QueueDequeue(_QueueOp, WaitingOp):
    """Take out one element. Waits until there is one."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return self.queue.components.specs()

    def course(self, *inputs: Any) -> Course:
        (element,) = yield self.queue.taking(1)
        return element[0] if len(element) == 1 else element


@dataclass(frozen=True, eq=False)
class QueueDequeueMany(_QueueOp, WaitingOp):
    """Take out several elements, stacked along a new first axis. Waits until they are there.

    Attributes:
        count: how many; None if the input says so.
        up_to: fewer will do if the queue is closed.
    """

    count: int | None
    up_to: bool

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        for spec in inputs:
            if spec.dtype.kind not in "iu" or spec.shape not in ((), None):
                raise TypeError(f"dequeue_many takes the number of elements as an integer scalar; got {spec}.")
        return self.queue.components.specs(None if self.up_to else self.count)

    def course(self, *inputs: Any) -> Course:
        count = int(inputs[0]) if self.count is None else self.count
        columns = self.queue.as_columns((yield self.queue.taking(count, self.up_to)))
        return columns[0] if len(columns) == 1 else tuple(columns)


@dataclass(frozen=True, eq=False)
class QueueClose(_QueueOp):
    """Close the queue; what waits to get in is served or cancelled."""

    cancel_pending_enqueues: bool

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        self.queue.shut(self.cancel_pending_enqueues)
        return ()


@dataclass(frozen=True, eq=False)
class QueueSize(_QueueOp):
    """The number of elements that the queue holds, as int32."""

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((), dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return dtypes.int32.type(self.queue.statistics().size)


@dataclass(frozen=True, eq=False)
class QueueIsClosed(_QueueOp):
    """A test whether the queue is closed."""

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((), dtypes.bool_)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return dtypes.bool_.type(self.queue.statistics().is_closed)
