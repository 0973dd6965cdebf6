"""Lazy branches: what only one branch of a `cond` needs runs only when that branch is taken, wherever it was written.

Works on a step's own graph, loop bodies and branches included. An operation sinks if it is pure and everything that
uses it is in one branch, or in the same branch of several constructs with the same choice: a `cond` and its gradient.
Then it runs in the first of them, and the others take the value that was saved there. Effects, and reads of variables,
stay where they were written; nothing enters a loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...common.identity import is_among
from ...control_flow.cond import Branch
from ...control_flow.frames import History, Saved, TripCount
from ...control_flow.region_op import RegionOp
from ...graph.graph import Graph, Operation, Parameter, Placeholder
from ...graph.region import Region
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ..framework import changes
from ..framework.log import note_change
from ..framework.order import reorder
from ..framework.prune import Kept, all_operations, inner_blocks

_Place = tuple[Symbol, int]  # the choice, and the number of the branch


def sink_into_branches(operations: Sequence[Operation], kept: Kept, asked: set[Operation]) -> None:
    """Sink needed `operations` of a step, and in all regions inside.

    Args:
        kept: tensors whose values are wanted from outside of their block.
        asked: operations that run for their effects.
    """
    if not any(isinstance(operation.op, RegionOp) for operation in operations):
        return
    places = _places(operations, kept.own, asked)
    if places:
        sinking = _Sinking(kept.graph, operations, places)
        sinking.run()
        for branch in sinking.emptied:
            kept.regroup(branch)
        kept.add(sinking.recorded)
    for operation in list(kept.graph.operations):
        for inside, wanted in inner_blocks(operation, kept):
            sink_into_branches(inside, wanted, asked)


def _places(operations: Sequence[Operation], kept: set[Symbol], asked: set[Operation]) -> dict[Operation, _Place]:
    """Map each operation that can sink to the branch into which it does; not those that are `kept` or `asked` for."""
    found: dict[Operation, _Place] = {}
    uses: dict[Operation, set[_Place | None]] = {}  # None: needed outside of branches
    for operation in reversed(operations):
        among = uses.get(operation, set())
        if len(among) == 1 and None not in among and operation not in asked and _can_move(operation, kept):
            (place,) = among
            assert place is not None
            found[operation] = place
        for tensor, place in zip(operation.inputs, _entered(operation, found.get(operation)), strict=True):
            uses.setdefault(tensor.operation, set()).add(place)
        for source in operation.control_inputs:
            uses.setdefault(source, set()).add(found.get(operation))
    return {o: place for o, place in found.items() if not _takes_frame(o) or o.inputs[0].operation in found}


def _takes_frame(operation: Operation) -> bool:
    """Test whether an operation is bound to the loop or branch from whose frame it takes something."""
    return isinstance(operation.op, (History, Saved, TripCount))


def _can_move(operation: Operation, kept: set[Symbol]) -> bool:
    if isinstance(operation.op, (Constant, Parameter, Placeholder)) or operation.effects or not operation.outputs:
        return False
    return kept.isdisjoint(operation.outputs)


def _entered(operation: Operation, place: _Place | None) -> Sequence[_Place | None]:
    """Return, for each input of an operation, the branch that takes it: where the operation sinks, or its own."""
    if place is not None or not operation.op.is_choice:
        return [place] * len(operation.inputs)
    inside = [(operation.inputs[0], k) for k, region in enumerate(operation.op.regions) for _ in region.captures]
    return [*[None] * (len(operation.inputs) - len(inside)), *inside]


class _Sinking:
    """One block under rewriting."""

    def __init__(self, graph: Graph, operations: Sequence[Operation], places: dict[Operation, _Place]) -> None:
        self.graph = graph
        self.operations = operations
        self.places = places
        self.homes = self._homes()
        self.moved: dict[Symbol, Symbol] = {}  # from tensors of the graph to those inside their home
        self.inlined: dict[Symbol, Symbol] = {}  # from tensors of branches that are decided to those that they are now
        self.saved: dict[Symbol, Symbol] = {}  # the same values, in the graph, after the home has run
        self.recorded: set[Symbol] = set()  # what is saved of them inside: it has to stay there
        self.emptied: list[Region] = []  # branches whose operations are now in another region

    def run(self) -> None:
        for operation in self.operations:
            if operation in self.homes:
                self._move(operation)
                home = self.homes[operation].name
                note_change("sink", operation, f"runs only in the branch of {home!r} that needs it")
        branches = [operation for operation in self.operations if isinstance(operation.op, Branch)]
        inside: dict[Symbol, Symbol] = {}
        for node in branches:
            inside.update(self._settle(node))
        self._look_into(inside)
        changes.leave_out(self.graph, self.homes)
        reorder(self.graph, {})

    def _homes(self) -> dict[Operation, Operation]:
        """Map each operation that sinks to the branching operation into which it does: the first that needs it."""
        homes: dict[Operation, Operation] = {}

        def note(source: Operation, home: Operation) -> None:
            known = homes.get(source)
            if source in self.places and (known is None or home.index < known.index):
                homes[source] = home

        for operation in reversed(self.operations):
            home = homes.get(operation)
            if home is None and isinstance(operation.op, Branch):
                home = operation
            if home is not None:
                for source in [*(tensor.operation for tensor in operation.inputs), *operation.control_inputs]:
                    note(source, home)
        for operation in homes:
            if _takes_frame(operation):
                homes[operation] = homes[operation.inputs[0].operation]
        return homes

    def _region(self, operation: Operation) -> Region:
        op = self.homes[operation].op
        assert isinstance(op, Branch)
        return op.regions[self.places[operation][1]]

    def _move(self, operation: Operation) -> None:
        region, home = self._region(operation), self.homes[operation]
        waits = [source for source in operation.control_inputs if source not in self.homes]
        changes.wait_also(home, waits)
        if isinstance(operation.op, Saved) and operation.op.inner in self.inlined:
            self.moved[operation.outputs[0]] = self.inlined[operation.op.inner]
            return
        if isinstance(operation.op, Branch) and self._is_decided(operation):
            self._inline(operation.op.regions[self.places[operation][1]], operation, home, region)
            return
        specs = tuple(tensor.spec for tensor in operation.outputs)
        inputs = [self._local(tensor, home, region) for tensor in operation.inputs]
        new = region.adopt(operation.op, inputs, specs, operation)
        if isinstance(operation.op, RegionOp):
            for inner in operation.op.regions:
                inner.move_into(region)
            changes.set_inputs(new, inputs)
        self.moved.update(zip(operation.outputs, new.outputs, strict=True))

    def _is_decided(self, operation: Operation) -> bool:
        """Test whether a branching operation is where its choice is known, and nothing reads its other branches."""
        choice, taken = self.places[operation]
        if operation.inputs[0] is not choice:
            return False
        region = operation.op.regions[taken]
        frame = operation.outputs[-1]
        looked_at = [user.op for user in self.operations if is_among(frame, user.inputs)]
        return all(isinstance(op, Saved) and op.inner.graph is region for op in looked_at)

    def _inline(self, branch: Region, operation: Operation, home: Operation, region: Region) -> None:
        """Take the operations of `branch`, the one of `operation` that is taken wherever `region` is, into `region`."""
        inside = {parameter: self._local(outer, home, region) for outer, parameter in branch.captures}
        _replace(branch, inside)
        self.emptied.append(branch)
        self.inlined.update(inside)
        for inner in branch.operations:
            region.take(inner)
            if isinstance(inner.op, RegionOp):
                for innermost in inner.op.regions:
                    innermost.move_into(region)
            self.inlined.update((tensor, tensor) for tensor in inner.outputs)
        self.moved.update(zip(operation.outputs, branch.results, strict=False))

    def _local(self, tensor: Symbol, home: Operation, region: Region) -> Symbol:
        """Return the tensor that stands for `tensor` inside a region of `home`."""
        if self.homes.get(tensor.operation) is home:
            return self.moved[tensor]
        return changes.capture(region, self._outside(tensor))

    def _outside(self, tensor: Symbol) -> Symbol:
        """Return `tensor` itself, or the value that was saved where it is computed now."""
        if tensor.operation not in self.homes:
            return tensor
        known = self.saved.get(tensor)
        if known is None:
            frame = self.homes[tensor.operation].outputs[-1]
            inner = self.moved[tensor]
            self.recorded.add(inner)
            known = self.graph.adopt(Saved(inner), [frame], (tensor.spec,), tensor.operation).outputs[0]
            known.operation.device = inner.operation.device
            self.saved[tensor] = known
        return known

    def _settle(self, node: Operation) -> dict[Symbol, Symbol]:
        """Let a branching operation use what sank, instead of capturing it, and bring its inputs into line.

        Returns:
            The parameters that are gone, with what is computed in their places.
        """
        op = node.op
        assert isinstance(op, Branch)
        gone: dict[Symbol, Symbol] = {}
        for region in op.regions:
            inside = {p: self.moved[outer] for outer, p in region.captures if self.homes.get(outer.operation) is node}
            region.drop_captures({parameter for _, parameter in region.captures} - inside.keys())
            if inside:
                _replace(region, inside)
                reorder(region, {})
                gone |= inside
        changes.set_own_inputs(node, node.inputs[:1])
        changes.replace_inputs(node, {tensor: self._outside(tensor) for tensor in node.inputs})
        return gone

    def _look_into(self, inside: dict[Symbol, Symbol]) -> None:
        """Let what takes the value of a parameter from the frame take what is computed in its place."""
        for operation in all_operations(self.graph.operations) if inside else ():
            if isinstance(operation.op, Saved) and operation.op.inner in inside:
                changes.set_op(operation, Saved(inside[operation.op.inner]))
                self.recorded.add(operation.op.inner)


def _replace(region: Region, replaced: dict[Symbol, Symbol]) -> None:
    """Let everything in `region` use other tensors, and leave out the parameters that these take the place of."""
    gone = {tensor.operation for tensor in replaced}
    changes.leave_out(region, gone)
    changes.replace_in(region, replaced)
