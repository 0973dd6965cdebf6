"""Copies what a step needs into a graph of its own, for passes to rewrite, with all that is known about it.

Three things happen on the way: shapes are inferred anew from the shapes that are fed (so most become static), equal
pure operations become one (common subexpressions), and what the step does not need is left behind, inside regions too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..control_flow.cond import Branch
from ..control_flow.frames import History, Saved, TripCount
from ..control_flow.while_loop import While
from ..graph.graph import Graph, Operation, Parameter, Placeholder
from ..graph.op import Op
from ..graph.region import Region
from ..graph.spec import Spec, TensorSpec
from ..graph.tensor import Tensor
from ..ops.base import Constant
from .prune import frame_users, needed_in_region
from .simplify import simplify

_LARGEST_SHARED_CONSTANT = 64  # elements; larger constants are one only if they are the same object


class Specialised:
    """A step in a graph of its own.

    Attributes:
        graph: the new graph.
        tensors: from tensors of the original graph (and its regions) to the new ones.
        operations: from original operations to their copies; those that are fed or simplified away have none.
    """

    def __init__(self, share: bool = True) -> None:
        self.graph = Graph()
        self.tensors: dict[Tensor, Tensor] = {}
        self.share = share
        self.operations: dict[Operation, Operation] = {}
        self._known: dict[Graph, dict[Any, Operation]] = {}

    # --- steps ----------------------------------------------------------------------------------------------

    def copy_step(self, operations: Sequence[Operation], feeds: Mapping[Tensor, Spec]) -> None:
        """Copy pruned `operations`, with `feeds` as placeholders of the given specs."""
        for tensor, spec in feeds.items():
            op = Placeholder(spec if isinstance(spec, TensorSpec) else TensorSpec(None, tensor.dtype))
            self.tensors[tensor] = self.graph.adopt(op, (), (spec,), tensor.operation).outputs[0]
        self._copy_all(operations, self.graph)

    def _copy_all(self, operations: Sequence[Operation], into: Graph) -> None:
        for operation in operations:
            if isinstance(operation.op, Parameter):
                continue
            if operation.outputs and all(tensor in self.tensors for tensor in operation.outputs):
                continue
            self._copy(operation, into, operations)

    def _copy(self, operation: Operation, into: Graph, needed: Sequence[Operation]) -> None:
        op = operation.op
        inputs = [self._local(tensor, into) for tensor in operation.inputs]
        if isinstance(op, While):
            new = self._copy_while(op, operation, inputs, into, needed)
        elif isinstance(op, Branch):
            new = self._copy_branch(op, operation, inputs, into, needed)
        else:
            rewritten = simplify(op, inputs)
            if isinstance(rewritten, Tensor):
                self.tensors[operation.outputs[0]] = rewritten
                return
            if isinstance(rewritten, Constant):
                inputs = []
            new = self._copy_plain(rewritten or self._renewed(op), operation, inputs, into)
        self.operations[operation] = new
        fed = [tensor for tensor in operation.outputs if tensor in self.tensors]
        for old, fresh in zip(operation.outputs, new.outputs, strict=True):
            if old not in fed:
                self.tensors[old] = fresh

    def _local(self, tensor: Tensor, into: Graph) -> Tensor:
        return into.capture(self.tensors[tensor])

    def _renewed(self, op: Op) -> Op:
        """Ops that refer to inner tensors refer to their copies."""
        if isinstance(op, History):
            return History(self.tensors[op.inner])
        if isinstance(op, Saved):
            return Saved(self.tensors[op.inner])
        return op

    def _copy_plain(self, op: Op, operation: Operation, inputs: list[Tensor], into: Graph) -> Operation:
        key = _sharing_key(op, inputs, operation) if self.share else None
        known = self._known.setdefault(into, {})
        if key is not None and key in known:
            return known[key]
        specs = self._inferred(op, operation, inputs, into)
        controls = tuple(self.operations[c] for c in operation.control_inputs if c in self.operations)
        new = into.adopt(op, inputs, specs, operation, controls)
        if key is not None:
            known[key] = new
        return new

    def _inferred(self, op: Op, operation: Operation, inputs: list[Tensor], into: Graph) -> tuple[Spec, ...]:
        """Specs from what is fed. Inside a loop or branch, what can't work for these shapes may never run: there it
        fails only when it does."""
        try:
            specs = op.infer(*[tensor.spec for tensor in inputs])
        except (TypeError, ValueError, IndexError) as error:
            if into is not self.graph:
                return tuple(tensor.spec for tensor in operation.outputs)
            shapes = ", ".join(str(tensor.spec) for tensor in inputs)
            error.add_note(
                f"In operation {operation.name!r} ({operation.type}); inputs: {shapes}; defined at {operation.location}"
            )
            raise
        return specs if isinstance(specs, tuple) else (specs,)

    # --- regions --------------------------------------------------------------------------------------------

    def _copy_while(
        self, op: While, operation: Operation, inputs: list[Tensor], into: Graph, needed: Sequence[Operation]
    ) -> Operation:
        demanded = [user.op.inner for user in frame_users(operation, needed) if isinstance(user.op, History)]
        specs: list[Spec] = [tensor.spec for tensor in inputs[: op.carried]]
        while True:
            body = self._copy_region(op.body, into, specs, demanded)
            results = [result.spec for result in body.results]
            if all(spec.accepts(result) for spec, result in zip(specs, results, strict=True)):
                break
            specs = [spec.join(result) for spec, result in zip(specs, results, strict=True)]
        condition = self._copy_region(op.condition, into, specs, ())
        new = While(condition, body, op.parallel_iterations, op.swap_memory)
        return self._adopt_region_op(new, inputs[: op.carried], operation, into)

    def _copy_branch(
        self, op: Branch, operation: Operation, inputs: list[Tensor], into: Graph, needed: Sequence[Operation]
    ) -> Operation:
        demanded = [user.op.inner for user in frame_users(operation, needed) if isinstance(user.op, Saved)]
        regions = [
            self._copy_region(region, into, (), [t for t in demanded if t.graph is region]) for region in op.regions
        ]
        return self._adopt_region_op(Branch(regions), inputs[:1], operation, into)

    def _adopt_region_op(self, op: Any, own: Sequence[Tensor], operation: Operation, into: Graph) -> Operation:
        inputs = [*own, *op.captured_inputs()]
        specs = op.infer(*[tensor.spec for tensor in inputs])
        controls = tuple(self.operations[c] for c in operation.control_inputs if c in self.operations)
        return into.adopt(op, inputs, specs, operation, controls)

    def _copy_region(self, region: Region, into: Graph, specs: Sequence[Spec], demanded: Iterable[Tensor]) -> Region:
        new = Region(into, region.name)
        for parameter, spec in zip(region.parameters, specs, strict=True):
            self.tensors[parameter] = new.add_parameter(spec, parameter.operation.name)
        outers = {parameter: outer for outer, parameter in region.captures}
        needed = needed_in_region(region, demanded)
        for operation in needed:
            for tensor in operation.outputs:
                if tensor in outers:
                    self.tensors[tensor] = new.capture(self.tensors[outers[tensor]])
                elif not isinstance(operation.op, Parameter):
                    self.tensors.pop(tensor, None)  # of an earlier try with narrower shapes
        self._copy_all(needed, new)
        new.results = [self.tensors[result] for result in region.results]
        return new


def _sharing_key(op: Op, inputs: list[Tensor], operation: Operation) -> Any:
    """Operations with equal keys compute the same; None for what must not be shared."""
    if operation.effects or operation.control_inputs:
        return None
    if isinstance(op, Constant):
        value = op.value
        if np.size(value) > _LARGEST_SHARED_CONSTANT or value.dtype.kind not in "biufc":
            return (Constant, id(value))
        return (Constant, value.dtype, value.shape, value.tobytes())
    if isinstance(op, (History, Saved)):
        return (type(op), op.inner, *inputs)
    if isinstance(op, TripCount):
        return (TripCount, *inputs)
    try:
        hash(op)
    except TypeError:
        return None
    return (type(op), op, *inputs)
