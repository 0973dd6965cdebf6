"""Copies what a step needs into a graph of its own, for passes to rewrite, with all that is known about it.

Three things happen on the way: shapes are inferred again from the shapes that are fed (so most become static), equal
pure operations become one (common subexpressions), and what the step does not need is left behind, inside regions too.
Where anything asks for a device, only operations that ask for the same become one: a request is kept, not passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...common.cached import cached_property
from ...common.identity import is_among
from ...control_flow.call import Body, Call, Recorded, Recursion
from ...control_flow.cond import Branch
from ...control_flow.frames import History, Saved, TripCount
from ...control_flow.region_op import RegionOp
from ...control_flow.while_loop import While
from ...graph.device import Colocation
from ...graph.graph import Graph, Operation, Parameter, Placeholder
from ...graph.op import Cost, Op
from ...graph.region import Region
from ...graph.spec import ArraySpec, Spec, TensorSpec
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ...ops.containers.tensor_arrays import ArrayEmpty, ArrayNew
from ...ops.math.comparison import Where
from .exclusive import share_places
from .fold import folded
from .limits import count_rewrite, may_rewrite
from .log import is_recording, note_change
from .prune import (
    all_blocks,
    frame_users,
    is_kind_among,
    kinds_of,
    live_outputs,
    needed_in_region,
    recorded_tensors,
)
from .rules import NO_RULES, Rewrite, RulesOf, first_rewrite, shape_of
from .simplify import ALGEBRA, EXACT_ALGEBRA, simplify
from .switches import is_on

_LARGEST_SHARED_CONSTANT = 64  # elements; larger constants are one only if they are the same object
_WRITTEN = (ArrayEmpty, ArrayNew)  # each has memory of its own in native loops, which write into it

Inferred = dict[Operation, tuple[object, ...]]
"""The op, the graph and the specs, of inputs and outputs, with which an operation was found right."""


class Specialised:
    """A step in a graph of its own.

    Attributes:
        graph: the new graph.
        tensors: from tensors of the original graph (and its regions) to the new ones.
        operations: from original operations to their copies; those that are fed or simplified away have none.
        outers: from parameters of copied regions to the tensors around that they stand for.
        keeps_differentiated: whether a loop over masked rows keeps variables that nothing needs, but for whose
            cotangents its gradient is: `ragged_batches` builds that gradient again.
        kept: whether there were any.
        inferred: notes which copies have the specs that their op has just inferred, if it is given.
        shares_saved: whether values that the branches of a choice, inside of others, save for their gradients get
            places in common.
    """

    keeps_differentiated = False
    inferred: Inferred | None = None
    shares_saved = False
    kept = False

    def __init__(self, share: bool = True, exact: bool = True) -> None:
        self.graph = Graph()
        self.tensors: dict[Symbol, Symbol] = {}
        self.share = share
        self.operations: dict[Operation, Operation] = {}
        self._known: dict[Graph, dict[Any, Operation]] = {}
        self._bodies: dict[Body, Body] = {}
        self._recorded: dict[Body, list[Symbol]] = {}
        self._asks = False  # whether anything asks for a device
        self.outers: dict[Symbol, Symbol] = {}
        rules = EXACT_ALGEBRA if exact else ALGEBRA
        self._algebra: Mapping[type[Op], RulesOf] = rules if is_on("simplify") else {}
        self._folds = is_on("fold")
        self._block = _Block((), ())  # what is copied now
        self._loops: set[Graph] = set()  # the regions of loops
        self._roles: set[Symbol] = set()  # parameters of bodies of loops whose cotangents other loops have

    # --- steps ----------------------------------------------------------------------------------------------

    def copy_step(
        self, operations: Sequence[Operation], feeds: Mapping[Symbol, Spec], fetches: Iterable[Symbol]
    ) -> None:
        """Copy pruned `operations`, with `feeds` as placeholders of the given specs."""
        kinds = kinds_of(operations)
        self._recorded = recorded_tensors(operations) if is_kind_among(kinds, Recorded, Recursion) else {}
        self._asks = any(_asks(o) for block in all_blocks(operations) for o in block if o.device or o.colocations)
        if self.keeps_differentiated:
            inside = all_blocks(operations) if is_kind_among(kinds, While) else ()
            holders = [operation.op for block in inside for operation in block if operation.op.regions]
            self._roles = {r for op in holders if isinstance(op, While) for r in op.cotangents.values()}
        for tensor, spec in feeds.items():
            op = Placeholder(spec if isinstance(spec, TensorSpec) else TensorSpec(None, tensor.dtype))
            self.tensors[tensor] = self.graph.adopt(op, (), (spec,), tensor.operation).outputs[0]
        self.copy_inside(operations, self.graph, fetches)

    def copy_region(
        self,
        region: Region,
        into: Graph,
        parameters: Sequence[Symbol],
        results: Sequence[Symbol],
        demanded: Sequence[Symbol] = (),
    ) -> Region:
        """Copy for another loop what `results` and `demanded` need of a region; what it captured is among `tensors`."""
        specs = {parameter: parameter.spec for parameter in parameters}
        return self._copy_region(region, into, specs, results, demanded)

    def copy_inside(self, operations: Sequence[Operation], into: Graph, wanted: Iterable[Symbol]) -> None:
        """Copy `operations` into a graph; what they take from elsewhere is among `tensors`, and can be captured."""
        wanted = tuple(wanted)
        around, self._block = self._block, _Block(operations, wanted)
        users: dict[Symbol, list[Operation]] | None = None
        used: set[Symbol] = set()
        for operation in operations:
            outputs = operation.outputs
            if isinstance(operation.op, Parameter):
                continue
            if outputs and outputs[0] in self.tensors and all(tensor in self.tensors for tensor in outputs):
                continue
            if isinstance(operation.op, RegionOp):
                if users is None:
                    users = frame_users(operations)
                    used = {tensor for each in operations for tensor in each.inputs}.union(wanted)
                self._copy_region_op(operation, into, users.get(outputs[-1], ()), used)
            else:
                self._copy(operation, into)
        self._block = around

    def _copy(self, operation: Operation, into: Graph) -> None:
        op = operation.op
        inputs = [self._local(tensor, into) for tensor in operation.inputs]
        rewritten = simplify(op, inputs)
        if rewritten is None:
            rewritten = self._rewritten(op, operation, inputs, into)
        if isinstance(rewritten, Symbol):
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

    def _note_copy(self, operation: Operation, outputs: Sequence[Symbol], new: Operation) -> None:
        """Note that `new` gives `outputs` of `operation`, but for those that are fed."""
        self.operations[operation] = new
        if len(outputs) == 1:
            self.tensors.setdefault(outputs[0], new.outputs[0])
            return
        for old, fresh in zip(outputs, new.outputs, strict=True):
            self.tensors.setdefault(old, fresh)

    def _rewritten(self, op: Op, operation: Operation, inputs: Sequence[Symbol], into: Graph) -> Rewrite:
        """Return the result of the algebra or of folding for an operation.

        Operations that wait, or ask for a device, stay as they are.
        """
        own = self._algebra.get(type(op), NO_RULES)
        applies, folds = own.may_apply(inputs), self._folds and bool(inputs) and not self._asks
        for tensor in inputs if folds else ():
            kind = type(tensor.operation.op)
            folds = folds and (kind is Constant or kind is Parameter)
        if (not applies and not folds) or not may_rewrite():
            return None
        if operation.control_inputs or operation.effects or (self._asks and _asks(operation)):
            return None
        site = _Place(self, operation, into)
        found, name = first_rewrite(own.rules, site.holding(op, inputs), site) if applies else (None, "")
        if found is not None:
            count_rewrite()
            note_change("simplify", operation, name)
            return found
        constant = folded(op, inputs, site) if folds and len(operation.outputs) == 1 else None
        if constant is not None:
            count_rewrite()
            note_change("fold", operation, "is computed once, when the step is prepared")
        return constant

    def is_used_once(self, original: Symbol) -> bool:
        """Test whether one operation of the block that is copied now takes a tensor, and nothing else."""
        return self._block.uses[original] == 1

    def make(self, op: Op, operation: Operation, inputs: Sequence[Symbol], into: Graph) -> Symbol:
        """Return an operation that stands in the place of `operation`, or leads to what does; rewritten itself.

        Raises:
            ValueError, TypeError, IndexError: it does not fit the inputs.
        """
        op.infer(*[tensor.spec for tensor in inputs])
        found = simplify(op, inputs)
        if found is None:
            own, site = self._algebra.get(type(op), NO_RULES), _Place(self, operation, into)
            found, _ = first_rewrite(own.rules, site.holding(op, inputs), site) if own.may_apply(inputs) else (None, "")
        if isinstance(found, tuple):
            return found[0]
        if isinstance(found, Symbol):
            return found
        own = [] if isinstance(found, Constant) else list(inputs)
        return self._copy_plain(found or op, operation, own, into).outputs[0]

    def _local(self, tensor: Symbol, into: Graph) -> Symbol:
        new = self.tensors[tensor]
        if new.operation.graph is into:
            return new
        local = into.capture(new)
        if isinstance(into, Region) and new.operation.graph is into.parent:
            self.outers[local] = new
        return local

    def _renewed(self, op: Op) -> Op:
        """Return an op that refers to the copies of inner tensors, if it refers to them."""
        if not isinstance(op, (History, Saved, Recorded, Call)):
            return op  # as most are
        if isinstance(op, History):
            return History(self.tensors[op.inner])
        if isinstance(op, Saved):
            return Saved(self.tensors[op.inner], op.is_for_gradient)
        if isinstance(op, Recorded):
            return Recorded(self.tensors[op.inner])
        return Call(self._bodies[op.body])

    def _copy_plain(self, op: Op, operation: Operation, inputs: list[Symbol], into: Graph) -> Operation:
        key = _sharing_key(op, inputs, operation) if self.share else None
        if self._asks and key is not None:
            key = (key, *_request(operation))
        known = self._known.setdefault(into, {})
        same = None if key is None else known.get(key)
        if same is not None and may_rewrite():
            count_rewrite()
            if is_recording():
                note_change("cse", operation, f"is what {same.name} computes")
            return same
        is_inside = key is not None and into in self._loops and may_rewrite()
        around = self._known_around(op, operation, inputs, into) if is_inside else None
        if around is not None:
            count_rewrite()
            if is_recording():
                note_change("cse", operation, f"is what {around.name} computes outside the loop")
            return around
        specs = self._inferred(op, operation, inputs, into)
        new = into.adopt(op, inputs, specs, operation, self._waits(operation))
        if self.inferred is not None:
            note_inferred(self.inferred, new)
        if key is not None:
            known[key] = new
        return new

    def _known_around(self, op: Op, operation: Operation, inputs: list[Symbol], into: Graph) -> Operation | None:
        """Return, in a loop, the parameter for what is computed before it from the same values.

        That is then needed even if the loop makes no iteration, so that it must not be able to fail.
        """
        if not inputs or not all(tensor in self.outers for tensor in inputs):
            return None
        is_product = op.cost is Cost.PRODUCT and op.never_fails
        if not (op.elementwise or is_product) or any(shape_of(tensor) is None for tensor in inputs):
            return None
        assert isinstance(into, Region), f"{into!r} is the region of a loop"
        key: Any = _sharing_key(op, [self.outers[tensor] for tensor in inputs], operation)
        if self._asks:
            key = (key, *_request(operation))
        found = self._known.get(into.parent, {}).get(key)
        if found is None:
            return None
        local = into.capture(found.outputs[0])
        self.outers[local] = found.outputs[0]
        return local.operation

    def _inferred(self, op: Op, operation: Operation, inputs: list[Symbol], into: Graph) -> tuple[Spec, ...]:
        """Infer specs from what is fed. Inside a loop or branch, what can't work for these may never run: there it
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

    def _copy_region_op(self, operation: Operation, into: Graph, users: Sequence[Operation], used: set[Symbol]) -> None:
        """Copy a loop or branch, from whose frame `users` take values, without the results that nothing needs."""
        op = operation.op
        if isinstance(op, Recursion):
            self._note_copy(operation, operation.outputs, self._copy_recursion(op, operation, into))
            return
        demanded = [user.op.inner for user in users if isinstance(user.op, (History, Saved))]
        differentiated = self._differentiated(operation)
        live = live_outputs(operation, used | differentiated if differentiated else used, demanded)
        if isinstance(op, While):
            new = self._copy_while(op, operation, into, live, demanded)
        else:
            assert isinstance(op, Branch)
            new = self._copy_branch(op, operation, into, live, demanded, users)
        self.operations[operation] = new
        for position, k in enumerate(live):
            self.tensors.setdefault(operation.outputs[k], new.outputs[position])
        self.tensors[operation.outputs[-1]] = new.outputs[-1]

    def _differentiated(self, operation: Operation) -> set[Symbol]:
        """Return the final values of a loop over masked rows that stay for the sake of its gradient."""
        op = operation.op
        if not self.keeps_differentiated or not isinstance(op, While) or not keeps_by_masks(op.body):
            return set()
        found = {operation.outputs[k] for k, parameter in enumerate(op.body.parameters) if parameter in self._roles}
        self.kept = self.kept or bool(found)
        return found

    def _copy_while(
        self, op: While, operation: Operation, into: Graph, live: Sequence[int], demanded: Sequence[Symbol]
    ) -> Operation:
        inits = [self._local(operation.inputs[k], into) for k in live]
        specs: list[Spec] = [tensor.spec for tensor in inits]
        wanted = [op.body.results[k] for k in live]
        while True:
            inner = _chosen(op.body.parameters, live, specs)
            body = self._copy_region(op.body, into, inner, wanted, demanded, in_loop=True)
            results = [result.spec for result in body.results]
            if all(spec.accepts(result) for spec, result in zip(specs, results, strict=True)):
                break
            specs = [spec.join(result) for spec, result in zip(specs, results, strict=True)]
        inits = [_with_elements(tensor, spec, into) for tensor, spec in zip(inits, specs, strict=True)]
        parameters = _chosen(op.condition.parameters, live, specs)
        condition = self._copy_region(op.condition, into, parameters, op.condition.results, demanded, in_loop=True)
        new = While(condition, body, op.parallel_iterations, op.swap_memory)
        if op.cotangents:
            pairs = [(own, other) for own, other in op.cotangents.items() if own in inner and other in self.tensors]
            new.cotangents = {self.tensors[own]: self.tensors[other] for own, other in pairs}
        return self._adopt_region_op(new, inits, operation, into)

    def _copy_branch(
        self,
        op: Branch,
        operation: Operation,
        into: Graph,
        live: Sequence[int],
        demanded: Sequence[Symbol],
        users: Sequence[Operation],
    ) -> Operation:
        regions: list[Region] = []
        for region in op.regions:
            recorded = [tensor for tensor in demanded if tensor.graph is region]
            regions.append(self._copy_region(region, into, {}, [region.results[k] for k in live], recorded))
        is_shared = self.shares_saved and into is not self.graph and may_rewrite()
        places = share_places(op.regions, users, self.tensors) if is_shared else ()
        for place in places:
            for region, (value, _) in zip(regions, place, strict=True):
                region.results.append(value)
        choice = self._local(operation.inputs[0], into)
        new = self._adopt_region_op(op.with_regions(regions), [choice], operation, into)
        if places:
            self._take_from_places(operation, new, new.outputs[len(live) : -1], places)
        return new

    def _take_from_places(
        self, operation: Operation, new: Operation, results: Sequence[Symbol], places: Sequence[Any]
    ) -> None:
        """Let what branches saved be taken from the results of the new branches in which it has its places."""
        count_rewrite()
        if is_recording():
            note_change("memory", operation, f"its branches save values in {len(places)} places that they share")
        for result, place in zip(results, places, strict=True):
            for taker in [taker for _, takers in place for taker in takers]:
                self.tensors[taker.outputs[0]] = result
                self.operations[taker] = new

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

    def _adopt_region_op(self, op: Any, own: Sequence[Symbol], operation: Operation, into: Graph) -> Operation:
        inputs = [*own, *op.captured_inputs()]
        specs = op.infer(*[tensor.spec for tensor in inputs])
        return into.adopt(op, inputs, specs, operation, self._waits(operation))

    def _waits(self, operation: Operation) -> tuple[Operation, ...]:
        """Return the copies of the operations for which one waits."""
        if not operation.control_inputs:
            return ()
        return tuple([self.operations[source] for source in operation.control_inputs if source in self.operations])

    def _copy_region(
        self,
        region: Region,
        into: Graph,
        parameters: Mapping[Symbol, Spec],
        results: Sequence[Symbol],
        demanded: Sequence[Symbol] = (),
        in_loop: bool = False,
    ) -> Region:
        """Copy what `results` and `demanded` need of a region, with the `parameters` that they take."""
        new = Region(into, region.name)
        new.is_copy = True
        if in_loop:
            self._loops.add(new)
        return self._copy_into(new, region, parameters, results, demanded)

    def _copy_into(
        self,
        new: Region,
        region: Region,
        parameters: Mapping[Symbol, Spec],
        results: Sequence[Symbol],
        demanded: Sequence[Symbol],
    ) -> Region:
        for parameter, spec in parameters.items():
            source = parameter.operation
            self.tensors[parameter] = new.add_parameter(spec, source.name, source.location)
        outers = {parameter: outer for outer, parameter in region.captures if parameter not in parameters}
        needed = needed_in_region(region, demanded, results)
        for operation in needed:
            for tensor in operation.outputs:
                if tensor in outers:
                    outer = self.tensors[outers[tensor]]
                    local = self.tensors[tensor] = new.capture(outer)
                    if outer.operation.graph is new.parent:
                        self.outers[local] = outer
                elif not isinstance(operation.op, Parameter):
                    self.tensors.pop(tensor, None)  # of an earlier try with narrower shapes
        recorded = [tensor for tensor in demanded if tensor.graph is region]
        self.copy_inside(needed, new, [*results, *recorded])
        new.results = [self.tensors[result] for result in results]
        return new


class _Block:
    """Operations of a graph or region that are copied, and what is wanted of them."""

    def __init__(self, operations: Sequence[Operation], wanted: Sequence[Symbol]) -> None:
        self._operations = operations
        self._wanted = wanted

    @cached_property
    def uses(self) -> Counter[Symbol]:
        """The number of uses of each tensor."""
        return Counter([*self._wanted, *[tensor for operation in self._operations for tensor in operation.inputs]])


class _Place:
    """The place where an operation is rewritten, for rules."""

    def __init__(self, step: Specialised, operation: Operation, into: Graph) -> None:
        self._step = step
        self._operation = operation
        self._into = into

    def holding(self, op: Op, inputs: Sequence[Symbol]) -> Operation:
        """Return what would stand there, for patterns: an operation that no graph lists."""
        return Operation(self._into, op, tuple(inputs), (), "", "", (), None)

    def outer(self, tensor: Symbol) -> Symbol | None:
        return self._step.outers.get(tensor)

    def is_only_use(self, tensor: Symbol) -> bool:
        originals = [original for original in self._operation.inputs if self._step.tensors.get(original) is tensor]
        return len(originals) == 1 and self._step.is_used_once(originals[0])

    def make(self, op: Op, *inputs: Symbol) -> Symbol:
        return self._step.make(op, self._operation, inputs, self._into)


def _chosen(parameters: Sequence[Symbol], live: Sequence[int], specs: Sequence[Spec]) -> dict[Symbol, Spec]:
    return {parameters[position]: spec for position, spec in zip(live, specs, strict=True)}


def _with_elements(initial: Symbol, spec: Spec, into: Graph) -> Symbol:
    """Return the first value of a loop variable; a new array gets the element spec that the loop determines."""
    source, op = initial.operation, initial.operation.op
    if not isinstance(op, ArrayNew) or not isinstance(spec, ArraySpec) or spec.empty or source.graph is not into:
        return initial
    if not op.open_shape or not isinstance(spec.element, TensorSpec):
        return initial
    closed = ArrayNew(spec.element, op.size, open_shape=False)
    return into.adopt(closed, source.inputs, (closed.infer(),), source).outputs[0]


def keeps_by_masks(body: Region) -> bool:
    """Test whether a loop keeps variables as they are by a `where`."""
    pairs = zip(body.parameters, body.results, strict=True)
    return any(
        isinstance(result.operation.op, Where) and is_among(old, result.operation.inputs[1:]) for old, result in pairs
    )


def _asks(operation: Operation) -> bool:
    held = operation.colocations
    return bool(operation.device) or any(isinstance(item, Colocation) and item.binding for item in held)


def _request(operation: Operation) -> tuple[Any, ...]:
    """Return the requests of an operation to its device; a preference for another one's device is not a request."""
    held = operation.colocations
    return (operation.device, *[item for item in held if not isinstance(item, Colocation) or item.binding])


def _sharing_key(op: Op, inputs: list[Symbol], operation: Operation) -> Any:
    """Return a key: operations with equal keys compute the same; None for what must not be shared."""
    if operation.effects or operation.control_inputs or isinstance(op, _WRITTEN):
        return None
    if isinstance(op, Constant):
        value = op.value
        if np.size(value) > _LARGEST_SHARED_CONSTANT or value.dtype.kind not in "biufc":
            return (Constant, id(value))
        return (Constant, value.dtype, value.shape, value.tobytes())
    if isinstance(op, History):
        return (History, op.inner, *inputs)
    if isinstance(op, Saved):
        return (Saved, op.inner, op.is_for_gradient, *inputs)
    if isinstance(op, TripCount):
        return (TripCount, *inputs)
    try:
        hash(op)
    except TypeError:
        return None
    return (type(op), op, *inputs)


def facts_of(operation: Operation) -> tuple[object, ...]:
    """Return what the specs of an operation follow from, and the specs."""
    specs = [tensor.spec for tensor in operation.inputs] + [tensor.spec for tensor in operation.outputs]
    return (operation.op, operation.graph, *specs)


def note_inferred(inferred: Inferred, operation: Operation, facts: tuple[object, ...] | None = None) -> None:
    """Note that an operation has the specs that its op infers; of some they follow from tensors of regions, too."""
    op = operation.op
    if not op.regions and op.called is None and not isinstance(op, (History, Recorded, Saved)):
        inferred[operation] = facts_of(operation) if facts is None else facts
