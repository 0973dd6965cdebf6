"""Access from outside to values inside a loop or branch: histories, trip counts and saved branch values.

Every loop and branch has one more output, its *frame*: the record of that run. `History(inner)` of a frame is the
per-iteration history of an inner tensor, `Saved(inner)` the value of a tensor in the branch taken. Nothing is recorded
unless such an op is part of the step: what the backward pass needs decides what the forward pass saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..common import dtypes
from ..graph.graph import Operation, Parameter
from ..graph.op import Cost, Op
from ..graph.region import Region
from ..graph.spec import ArraySpec, Spec, TensorSpec
from ..graph.tensor import Symbol, Tensor
from ..ops.base import Constant
from ..ops.containers.cotangent import FrameCotangent
from ..ops.containers.tensor_arrays import ArrayRead


class History(Op):
    """The values that tensor `inner` of a loop body had, one element for each iteration. Input: the loop's frame."""

    no_samples: ClassVar[str] = "takes a frame: test_control_flow_pitfalls"
    cost: ClassVar[Cost] = Cost.NOTHING

    def __init__(self, inner: Symbol) -> None:
        self.inner = inner

    def infer(self, *inputs: Any) -> Spec:
        return ArraySpec(self.inner.spec)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (FrameCotangent({self.inner: cotangents[0]}),)


class TripCount(Op):
    """The number of iterations that a loop made, int32. Input: the loop's frame."""

    no_samples: ClassVar[str] = "takes a frame: test_control_flow_pitfalls"
    cost: ClassVar[Cost] = Cost.NOTHING
    kept_on_host: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        return TensorSpec((), dtypes.int32)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)


class Saved(Op):
    """The value of tensor `inner` of a branch; there is none if another branch was taken. Input: the frame.

    Attributes:
        inner: the tensor.
        is_for_gradient: only the gradient of that very branch takes it: if another one was taken, it may be anything.
    """

    no_samples: ClassVar[str] = "takes a frame: test_control_flow_pitfalls"
    cost: ClassVar[Cost] = Cost.NOTHING
    view = True

    def __init__(self, inner: Symbol, is_for_gradient: bool = False) -> None:
        self.inner = inner
        self.is_for_gradient = is_for_gradient

    def infer(self, *inputs: Any) -> Spec:
        return self.inner.spec

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (FrameCotangent({self.inner: cotangents[0]}),)


def from_frame(frame: Symbol, op: Op, key: Any) -> Symbol:
    """Return `op` applied to `frame` in the graph where the frame lives, once for each key."""
    name = f"{frame.operation.name}/{op.type_name}"
    return frame.operation.graph.add_shared((type(op), frame, key), op, [frame], name)


class MirrorBase:
    """Forward values for a backward region: captures and constants are taken over, the rest is looked up."""

    def __init__(self, region: Region, frame: Symbol) -> None:
        self.region = region
        self.frame = frame
        self._outer = {parameter: outer for outer, parameter in region.captures}

    def resolve(self, into: Region, tensor: Symbol) -> Symbol:
        outer = self._outer.get(tensor)
        if outer is not None and isinstance(tensor.operation.op, Parameter):
            return into.capture(outer)
        if isinstance(tensor.operation.op, Constant):
            return into.add(tensor.operation.op, (), "constant").outputs[0]
        return self.look_up(into, tensor)

    def look_up(self, into: Region, tensor: Symbol) -> Symbol:
        raise NotImplementedError


class LoopMirror(MirrorBase):
    """Values of a loop body at the iteration whose number is parameter `index` of the backward body."""

    index: Symbol | None = None

    def look_up(self, into: Region, tensor: Symbol) -> Symbol:
        history = into.capture(from_frame(self.frame, History(tensor), tensor))
        assert self.index is not None, "the backward body has no iteration number yet"
        return into.add(ArrayRead(), [history, self.index], f"{tensor.operation.name}/saved").outputs[0]


class BranchMirror(MirrorBase):
    """Values of the branch that was taken."""

    def look_up(self, into: Region, tensor: Symbol) -> Symbol:
        return into.capture(from_frame(self.frame, Saved(tensor, is_for_gradient=True), (tensor, "gradient")))


def trip_count(frame: Symbol) -> Symbol:
    """Return the number of iterations of the loop to which `frame` belongs."""
    return from_frame(frame, TripCount(), None)


__all__ = ["BranchMirror", "History", "LoopMirror", "MirrorBase", "Saved", "TripCount", "from_frame", "trip_count"]
