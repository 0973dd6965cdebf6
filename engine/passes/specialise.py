"""Copies what a step needs into a graph of its own, for passes to rewrite, with all that is known about it.

Three things happen on the way: shapes are inferred anew from the shapes that are fed (so most become static), equal
pure operations become one (common subexpressions), and what the step does not need is left behind, inside regions too.
Where anything asks for a device, only operations that ask for the same become one: a request is kept, not passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..control_flow.call import Body, Call, Recorded, Recursion
from ..control_flow.cond import Branch
from ..control_flow.frames import History, Saved, TripCount
from ..control_flow.region_op import RegionOp
from ..control_flow.while_loop import While
from ..graph.device import Colocation
from ..graph.graph import Graph, Operation, Parameter, Placeholder
from ..graph.op import Op
from ..graph.region import Region
from ..graph.spec import Spec, TensorSpec
from ..graph.tensor import Tensor
from ..ops.base import Constant
from .prune import all_operations, frame_users, live_outputs, needed_in_region, recorded_tensors
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
        self._bodies: dict[Body, Body] = {}
        self._recorded: dict[Body, list[Tensor]] = {}
        self._asks = False  # whether anything asks for a device

    # --- steps ----------------------------------------------------------------------------------------------

    def copy_step(
        self, operations: Sequence[Operation], feeds: Mapping[Tensor, Spec], fetches: Iterable[Tensor]
    ) -> None:
        """Copy pruned `operations`, with `feeds` as placeholders of the given specs."""
        self._recorded = recorded_tensors(operations)
        self._asks = any(_asks(operation) for operation in all_operations(operations))
        for tensor, spec in feeds.items():
            op = Placeholder(spec if isinstance(spec, TensorSpec) else TensorSpec(None, tensor.dtype))
            self.tensors[tensor] = self.graph.adopt(op, (), (spec,), tensor.operation).outputs[0]
        self._copy_all(operations, self.graph, fetches)

    def copy_inside(self, operations: Sequence[Operation], into: Region, wanted: Iterable[Tensor]) -> None:
        """Copy `operations` into a region; what they take from elsewhere is among `tensors`, and can be captured."""
        self._copy_all(operations, into, wanted)

    def copy_region(
        self,
        region: Region,
        into: Graph,
        parameters: Sequence[Tensor],
        results: Sequence[Tensor],
        demanded: Sequence[Tensor] = (),
    ) -> Region:
        """Copy for another loop what `results` and `demanded` need of a region; what it captured is among `tensors`."""
        specs = {parameter: parameter.spec for parameter in parameters}
        return self._copy_region(region, into, specs, results, demanded)

    def _copy_all(self, operations: Sequence[Operation], into: Graph, wanted: Iterable[Tensor]) -> None:
        used = {tensor for operation in operations for tensor in operation.inputs}.union(wanted)
        users = frame_users(operations)
        for operation in operations:
            if isinstance(operation.op, Parameter):
                continue
            if operation.outputs and all(tensor in self.tensors for tensor in operation.outputs):
                continue
            if isinstance(operation.op, RegionOp):
                self._copy_region_op(operation, into, users.get(operation.outputs[-1], ()), used)
            else:
                self._copy(operation, into)

    def _copy(self, operation: Operation, into: Graph) -> None:
        op = operation.op
        inputs = [self._local(tensor, into) for tensor in operation.inputs]
        rewritten = simplify(op, inputs)
        if isinstance(rewritten, Tensor):
            self.tensors[operation.outputs[0]] = rewritten
            return
        if isinstance(rewritten, tuple):
            for old, fresh in zip(operation.outputs, rewritten, strict=True):
                self.tensors.setdefault(old, fresh)  # one of several outputs may have been fed
            return
        if isinstance(rewritten, Constant):
            inputs = []
        renewed = rewritten or self._renewed(op)
        if isinstance(renewed, Call):
            renewed.body.note_arguments(inputs)
        new = self._copy_plain(renewed, operation, inputs, into)
        self._note_copy(operation, operation.outputs, new)

    def _note_copy(self, operation: Operation, outputs: Sequence[Tensor], new: Operation) -> None:
        """`new` gives `outputs` of `operation`, but for those that are fed."""
        self.operations[operation] = new
        fed = [tensor for tensor in outputs if tensor in self.tensors]
        for old, fresh in zip(outputs, new.outputs, strict=True):
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
        if isinstance(op, Recorded):
            return Recorded(self.tensors[op.inner])
        if isinstance(op, Call):
            return Call(self._bodies[op.body])
        return op

    def _copy_plain(self, op: Op, operation: Operation, inputs: list[Tensor], into: Graph) -> Operation:
        key = _sharing_key(op, inputs, operation) if self.share else None
        if self._asks and key is not None:
            key = (key, *_request(operation))
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

    def _copy_region_op(self, operation: Operation, into: Graph, users: Sequence[Operation], used: set[Tensor]) -> None:
        """Copy a loop or branch, from whose frame `users` take values, without the results that nothing needs."""
        op = operation.op
        if isinstance(op, Recursion):
            self._note_copy(operation, operation.outputs, self._copy_recursion(op, operation, into))
            return
        demanded = [user.op.inner for user in users if isinstance(user.op, (History, Saved))]
        live = live_outputs(operation, used, demanded)
        if isinstance(op, While):
            new = self._copy_while(op, operation, into, live, demanded)
        else:
            assert isinstance(op, Branch)
            new = self._copy_branch(op, operation, into, live, demanded)
        self._note_copy(operation, [*[operation.outputs[k] for k in live], operation.outputs[-1]], new)

    def _copy_while(
        self, op: While, operation: Operation, into: Graph, live: Sequence[int], demanded: Sequence[Tensor]
    ) -> Operation:
        inits = [self._local(operation.inputs[k], into) for k in live]
        specs: list[Spec] = [tensor.spec for tensor in inits]
        wanted = [op.body.results[k] for k in live]
        while True:
            body = self._copy_region(op.body, into, _chosen(op.body.parameters, live, specs), wanted, demanded)
            results = [result.spec for result in body.results]
            if all(spec.accepts(result) for spec, result in zip(specs, results, strict=True)):
                break
            specs = [spec.join(result) for spec, result in zip(specs, results, strict=True)]
        parameters = _chosen(op.condition.parameters, live, specs)
        condition = self._copy_region(op.condition, into, parameters, op.condition.results, demanded)
        new = While(condition, body, op.parallel_iterations, op.swap_memory)
        return self._adopt_region_op(new, inits, operation, into)

    def _copy_branch(
        self, op: Branch, operation: Operation, into: Graph, live: Sequence[int], demanded: Sequence[Tensor]
    ) -> Operation:
        regions: list[Region] = []
        for region in op.regions:
            recorded = [tensor for tensor in demanded if tensor.graph is region]
            regions.append(self._copy_region(region, into, {}, [region.results[k] for k in live], recorded))
        choice = self._local(operation.inputs[0], into)
        return self._adopt_region_op(op.with_regions(regions), [choice], operation, into)

    def _copy_recursion(self, op: Recursion, operation: Operation, into: Graph) -> Operation:
        """Copy a recursion, with all that the body takes from outside as parameters.

        So calls inside, which pass that on, are in line with the first one whatever passes do.
        """
        inputs = [self._local(tensor, into) for tensor in operation.inputs]
        specs: list[Spec] = [tensor.spec for tensor in inputs]
        old, inside = op.body, op.body.inner_inputs()
        while True:
            body = self._bodies[old] = Body(into, old.name)
            body.result_specs, body.taken_effects, body.argument_specs = old.result_specs, old.taken_effects, specs
            parameters = dict(zip(inside, specs, strict=True))
            self._copy_into(body, old, parameters, old.results, self._recorded.get(old, ()))
            if body.argument_specs == specs:
                break
            specs = body.argument_specs
        return self._adopt_region_op(Recursion(body), inputs, operation, into)

    def _adopt_region_op(self, op: Any, own: Sequence[Tensor], operation: Operation, into: Graph) -> Operation:
        inputs = [*own, *op.captured_inputs()]
        specs = op.infer(*[tensor.spec for tensor in inputs])
        controls = tuple(self.operations[c] for c in operation.control_inputs if c in self.operations)
        return into.adopt(op, inputs, specs, operation, controls)

    def _copy_region(
        self,
        region: Region,
        into: Graph,
        parameters: Mapping[Tensor, Spec],
        results: Sequence[Tensor],
        demanded: Sequence[Tensor] = (),
    ) -> Region:
        """Copy what `results` and `demanded` need of a region, with the `parameters` that they take."""
        return self._copy_into(Region(into, region.name), region, parameters, results, demanded)

    def _copy_into(
        self,
        new: Region,
        region: Region,
        parameters: Mapping[Tensor, Spec],
        results: Sequence[Tensor],
        demanded: Sequence[Tensor],
    ) -> Region:
        for parameter, spec in parameters.items():
            self.tensors[parameter] = new.add_parameter(spec, parameter.operation.name)
        outers = {parameter: outer for outer, parameter in region.captures if parameter not in parameters}
        needed = needed_in_region(region, demanded, results)
        for operation in needed:
            for tensor in operation.outputs:
                if tensor in outers:
                    self.tensors[tensor] = new.capture(self.tensors[outers[tensor]])
                elif not isinstance(operation.op, Parameter):
                    self.tensors.pop(tensor, None)  # of an earlier try with narrower shapes
        self._copy_all(needed, new, [*results, *(tensor for tensor in demanded if tensor.graph is region)])
        new.results = [self.tensors[result] for result in results]
        return new


def _chosen(parameters: Sequence[Tensor], live: Sequence[int], specs: Sequence[Spec]) -> dict[Tensor, Spec]:
    return {parameters[position]: spec for position, spec in zip(live, specs, strict=True)}


def _asks(operation: Operation) -> bool:
    held = operation.colocations
    return bool(operation.device) or any(isinstance(item, Colocation) and item.binding for item in held)


def _request(operation: Operation) -> tuple[Any, ...]:
    """What an operation asks of its device; near what it had rather be is no request."""
    held = operation.colocations
    return (operation.device, *[item for item in held if not isinstance(item, Colocation) or item.binding])


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
