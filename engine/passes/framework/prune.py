"""The operations that a step needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from ...control_flow.call import Body, Recorded, Recursion
from ...control_flow.frames import History, Saved
from ...control_flow.region_op import RegionOp
from ...control_flow.while_loop import While
from ...graph.graph import Graph, Operation
from ...graph.op import Op
from ...graph.region import Region
from ...graph.spec import FrameSpec
from ...graph.tensor import Symbol
from . import changes

_FRAME_TAKERS = (History, Recorded, Saved)
_index_of: Callable[[Operation], int] = attrgetter("index")
_op_of: Callable[[Operation], Op] = attrgetter("op")
_regions_of: Callable[[Operation], Sequence[Region]] = attrgetter("op.regions")


def needed_operations(
    graph: Graph, targets: Iterable[Symbol | Operation], fed: Iterable[Symbol] = ()
) -> list[Operation]:
    """Return the operations of `graph` that must run to produce `targets`, in program order.

    Order alone never drags an operation in: only data and explicit control dependencies do. Operations whose
    outputs are all fed do not run. What a loop or branch waits for because an operation inside does, it waits for only
    if that operation is needed.
    """
    given = set(fed)
    stopped = {tensor.operation for tensor in given if given.issuperset(tensor.operation.outputs)}
    seen = set(stopped)
    holders: list[Operation] = []
    is_cut = any(tensor.operation not in stopped for tensor in given)  # of an operation some outputs are fed, not all
    pending = _unseen([_producer(each) for each in targets if not (isinstance(each, Symbol) and each in given)], seen)
    while pending:
        operation = pending.pop()
        for tensor in operation.inputs:
            source = tensor.operation
            if source not in seen and not (is_cut and tensor in given):
                seen.add(source)
                pending.append(source)
        if operation.control_inputs:
            pending += _unseen(_waited_for(operation, operation.control_inputs), seen)
            holders += [operation] if operation.op.regions else []
        if holders and not pending:  # frames may record what is not needed otherwise
            recorded = inner_tensors(seen - stopped)
            for holder in holders:
                pending += _unseen(_waited_for(holder, holder.control_inputs, recorded), seen)
    return sorted(seen - stopped if stopped else seen, key=_index_of)


def _unseen(operations: Iterable[Operation], seen: set[Operation]) -> list[Operation]:
    """Return those of some operations that were not seen yet, which they are now."""
    found = [operation for operation in dict.fromkeys(operations) if operation not in seen]
    seen.update(found)
    return found


def needed_in_region(
    region: Region, demanded: Iterable[Symbol] = (), results: Iterable[Symbol] | None = None
) -> list[Operation]:
    """Return the operations of a region that a run of it needs: for its results, effects and the `demanded` tensors.

    Args:
        region: the body of a loop, a condition or a branch.
        demanded: tensors that frames record; those of other regions do not count.
        results: those of the region's results that anything needs; by default all.
    """
    if region.needed is not None and results is None:
        return region.needed
    # As `needed_operations`, for what is asked of each of thousands of regions by each pass: where nothing is fed.
    wanted = region.results if results is None else results
    targets = [tensor.operation for tensor in wanted]
    targets += [operation for operation in region.operations if operation.effects and operation.writes]
    targets += [tensor.operation for tensor in demanded if tensor.graph is region]
    seen = set(targets)
    pending = list(seen)
    for operation in pending:  # which grows
        if operation.control_inputs:
            return needed_operations(region, targets)
        for tensor in operation.inputs:
            source = tensor.operation
            if source not in seen:
                seen.add(source)
                pending.append(source)
    return sorted(seen, key=_index_of)


class Pruning:
    """One walk over a copied step, in which its regions lose what no run of them needs: operations and captures.

    Users come behind what they use, and what frames record behind the region: a walk from the end of each block sees
    all users of an operation before itself, so that what only dead operations had taken is left out with them.

    Attributes:
        recorded: for each region the tensors of which frames record the values, for what is needed.
        needed: for each region the operations that a run of it needs.

    Args:
        recorded: what the calls of recursions record of their bodies (`recorded_tensors`).
    """

    def __init__(self, recorded: Mapping[Body, list[Symbol]]) -> None:
        self.recorded: dict[Graph, list[Symbol]] = {**recorded}
        self.needed: dict[Region, set[Operation]] = {}

    def prune(self, block: Sequence[Operation], live: set[Operation]) -> None:
        """Add to the wanted operations of a block what they need, and prune the regions of all of them."""
        for operation in reversed(block):
            if operation not in live:
                continue
            op = operation.op
            if op.regions:
                self._prune_inside(operation, op.regions)
            elif isinstance(op, (History, Saved)):
                self.recorded.setdefault(op.inner.graph, []).append(op.inner)
            for tensor in operation.inputs:
                live.add(tensor.operation)
            if operation.control_inputs:
                live.update(operation.control_inputs)

    def _prune_inside(self, holder: Operation, regions: Sequence[Region]) -> None:
        """Prune the regions of a needed operation, which takes no longer what they had captured in vain."""
        own: tuple[Symbol, ...] | None = None
        for region in reversed(regions):
            live = {tensor.operation for tensor in region.results}
            live.update([operation for operation in region.operations if operation.effects and operation.writes])
            if region in self.recorded:
                live.update([tensor.operation for tensor in self.recorded[region]])
            self.prune(region.operations, live)
            self.needed[region] = live
            unread = sum([parameter.operation not in live for parameter in region.parameters])
            if len(live) + unread < len(region.operations):
                own = holder.own_inputs if own is None else own
                region.drop_captures({tensor for operation in live for tensor in operation.outputs})
                region.keep_only(live)
        if own is not None:
            changes.set_own_inputs(holder, own)
            changes.refresh_effects(holder)

    def settle(self) -> None:
        """Note in each region what a run of it needs, and what frames record: nothing is rewritten any more."""
        for region, live in self.needed.items():
            region.needed = [operation for operation in region.operations if operation in live]
            region.demanded = self.recorded.get(region, [])


def _waited_for(
    operation: Operation, sources: Sequence[Operation], recorded: Iterable[Symbol] = ()
) -> Sequence[Operation]:
    """Return those of `sources` for which an operation has to wait.

    Args:
        operation: any.
        sources: what it waits for by control dependencies, its own and those of operations inside.
        recorded: tensors inside that frames record.
    """
    regions = [region for region in operation.op.regions if region.outer_waits]
    if not regions:
        return sources
    inside = {source for region in regions for waits in region.outer_waits.values() for source in waits}
    found: set[Operation] = set()
    for region in regions:
        for inner in needed_in_region(region, recorded):
            found.update(_waited_for(inner, region.outer_waits.get(inner, ()), recorded))
    return [source for source in sources if source not in inside or source in found]


class Kept:
    """The tensors of a step whose values are wanted from outside of their block, as one of its blocks sees them.

    They are grouped by graph once for all blocks: a step may have thousands of blocks, and ten times as many of them.

    Attributes:
        graph: the block: the step's own graph, or a region inside.
        own: those of this block, the results of a region included.
    """

    __slots__ = ("_recorded", "graph", "own")

    def __init__(self, graph: Graph, tensors: Iterable[Symbol]) -> None:
        self.graph = graph
        self._recorded: dict[Graph, set[Symbol]] = {}
        self.own: set[Symbol] = set()
        self.add(tensors)

    def __contains__(self, tensor: Symbol) -> bool:
        """Test whether a tensor is one of them, in whatever block."""
        return tensor in self.own or tensor in self._recorded.get(tensor.graph, ())

    def add(self, tensors: Iterable[Symbol]) -> None:
        """Note more of them, of this block or of any inside."""
        for tensor in tensors:
            self._recorded.setdefault(tensor.graph, set()).add(tensor)
        self.own |= self.recorded_in(self.graph)

    def regroup(self, graph: Graph) -> None:
        """Look up again to which graphs the tensors belong that were in `graph`."""
        self.add(self._recorded.pop(graph, ()))

    def recorded_in(self, graph: Graph) -> set[Symbol]:
        """Return those of a graph, but for the results of a region."""
        return self._recorded.get(graph, set())

    def inside(self, region: Region) -> Kept:
        """Return these tensors as a region inside sees them."""
        seen = Kept(region, ())
        seen._recorded = self._recorded
        seen.own = self.recorded_in(region).union(region.results)
        return seen

    def including(self, tensors: Iterable[Symbol]) -> Kept:
        """Return these, and more, which blocks inside do not see otherwise."""
        seen = Kept(self.graph, ())
        seen._recorded = {graph: set(known) for graph, known in self._recorded.items()}
        seen.own = set(self.own)
        seen.add(tensors)
        return seen

    def needed_in(self, region: Region) -> list[Operation]:
        """Return the operations of a region that a run of it needs."""
        return needed_in_region(region, self.recorded_in(region))


def inner_blocks(operation: Operation, kept: Kept) -> Iterator[tuple[list[Operation], Kept]]:
    """Yield for each region of a loop or branch the operations that a run needs, and what is wanted of them.

    Args:
        operation: any; others have no such regions.
        kept: tensors whose values are wanted from outside of their block.
    """
    for region in operation.op.regions if isinstance(operation.op, RegionOp) else ():
        yield kept.needed_in(region), kept.inside(region)


def all_operations(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Return `operations` and all that are in regions inside, each in front of what it holds."""
    pending = [iter(operations)]
    while pending:
        for operation in pending[-1]:
            yield operation
            if operation.op.regions:
                pending += [iter(region.operations) for region in reversed(operation.op.regions)]
                break
        else:
            pending.pop()


def kinds_of(operations: Iterable[Operation]) -> set[type[Op]]:
    """Return the ops of `operations` and of all in regions inside, needed or not: a step without a pass's is left."""
    found: set[type[Op]] = set()
    for block in all_blocks(operations):
        found.update(map(type, map(_op_of, block)))
    return found


def holds(operations: Iterable[Operation], *kinds: type[Op]) -> bool:
    """Test whether an operation of one of `kinds` is among `operations`, or in a region inside."""
    return is_kind_among(kinds_of(operations), *kinds)


def is_kind_among(found: Iterable[type[Op]], *kinds: type[Op]) -> bool:
    """Test whether one of `kinds`, or a class derived from one, is among those that were `found`."""
    return any(issubclass(kind, kinds) for kind in found)


def all_blocks(operations: Iterable[Operation]) -> Iterator[Sequence[Operation]]:
    """Yield `operations`, and those of each region inside, in any order."""
    block = list(operations)
    yield block
    pending = _regions_in(block)
    while pending:
        region = pending.pop()
        yield region.operations
        if region.holds_regions:
            pending += _regions_in(region.operations)


def _regions_in(block: Iterable[Operation]) -> list[Region]:
    """Return the regions that operations of a block hold."""
    return [region for regions in filter(None, map(_regions_of, block)) for region in regions]


def inner_tensors(operations: Iterable[Operation]) -> set[Symbol]:
    """Return the tensors inside loops, branches and recursions whose values frames record for any of `operations`."""
    found: set[Symbol] = set()
    for block in all_blocks(operations):
        found.update([operation.op.inner for operation in block if isinstance(operation.op, _FRAME_TAKERS)])
    return found


def recorded_tensors(operations: Sequence[Operation]) -> dict[Body, list[Symbol]]:
    """Map the bodies of recursions among `operations` of a step, and inside, to what the frames of their calls record.

    A body records the union of what is asked of any of its calls. What one body records may need what another one
    does, so that it takes a fixpoint.
    """
    if not holds(operations, Recorded, Recursion):
        return {}  # as in most steps; what is needed in each region need not be found for that
    recorded: dict[Body, dict[Symbol, None]] = {}
    while True:
        found: dict[Body, dict[Symbol, None]] = {}
        _gather_recorded(operations, recorded, found)
        if all(tensors.keys() == recorded.get(body, {}).keys() for body, tensors in found.items()):
            return {body: list(tensors) for body, tensors in found.items()}
        recorded = found


def _gather_recorded(
    operations: Sequence[Operation], recorded: dict[Body, dict[Symbol, None]], found: dict[Body, dict[Symbol, None]]
) -> None:
    users = frame_users(operations)
    for operation in operations:
        op = operation.op
        if isinstance(op, Recorded):
            body = op.inner.graph
            assert isinstance(body, Body), f"{op.inner!r} is recorded, but is in no body"
            found.setdefault(body, {})[op.inner] = None
        if isinstance(op, Recursion):
            _gather_recorded(needed_in_region(op.body, recorded.get(op.body, ())), recorded, found)
            continue
        takers = [user.op for user in users.get(operation.outputs[-1], ())] if op.regions else []
        inner = [taker.inner for taker in takers if isinstance(taker, (History, Saved))]
        for region in op.regions:
            demanded = [tensor for tensor in inner if tensor.graph is region]
            _gather_recorded(needed_in_region(region, demanded), recorded, found)


def live_outputs(operation: Operation, used: set[Symbol], demanded: Sequence[Symbol]) -> list[int]:
    """Return the positions of the results of a loop or branch that anything needs.

    Args:
        operation: the loop or branch.
        used: what is used outside of it.
        demanded: tensors inside that its frame records.

    A variable of a loop is needed if its final value is used, or if its condition, an effect, what the frame records
    or the next value of a needed variable takes it.
    """
    live = {position for position, output in enumerate(operation.outputs[:-1]) if output in used}
    if not isinstance(operation.op, While):
        return sorted(live)
    condition, body = operation.op.condition, operation.op.body
    live |= _parameters_among(condition, needed_in_region(condition, demanded))
    while True:
        needed = needed_in_region(body, demanded, [body.results[position] for position in live])
        taken = _parameters_among(body, needed)
        if taken <= live:
            return sorted(live)
        live |= taken


def _parameters_among(region: Region, operations: Sequence[Operation]) -> set[int]:
    needed = set(operations)
    return {position for position, tensor in enumerate(region.parameters) if tensor.operation in needed}


def _producer(target: Symbol | Operation) -> Operation:
    return target.operation if isinstance(target, Symbol) else target


def users_of(operations: Sequence[Operation]) -> dict[Symbol, list[Operation]]:
    """Map each tensor to the operations that take it."""
    found: dict[Symbol, list[Operation]] = {}
    for operation in operations:
        for tensor in dict.fromkeys(operation.inputs):
            found.setdefault(tensor, []).append(operation)
    return found


def frame_users(needed: Sequence[Operation]) -> dict[Symbol, list[Operation]]:
    """Map the frame of a loop or branch among `needed` operations to those of them that take values from it."""
    if not any(map(_regions_of, needed)):
        return {}  # as in most blocks: none makes a frame
    users: dict[Symbol, list[Operation]] = {}
    taken = [(tensor, user) for user in needed for tensor in user.inputs if type(tensor.spec) is FrameSpec]
    for tensor, user in taken:
        users.setdefault(tensor, []).append(user)
    return users
