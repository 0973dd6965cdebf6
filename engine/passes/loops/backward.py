"""The place of a loop's gradient, and ways to build more of it there.

The backward loop of a loop inside another one is in the body of that one's own backward loop. There, values of the
forward body are looked up in records that the loop around keeps of its iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from ...common.identity import is_among
from ...common.quick_dataclass import dataclass
from ...control_flow.call import Body
from ...control_flow.frames import History, LoopMirror, Saved
from ...control_flow.while_loop import While
from ...graph.graph import Graph, Operation
from ...graph.operation import op_of
from ...graph.region import Region
from ...graph.tensor import Symbol
from ..framework.order import reorder
from ..framework.prune import all_operations, frame_users, needed_in_region, needed_operations
from .masks import NotRowWiseError
from .users import Users
from .view import LoopView, building


@dataclass
class Place:
    """A graph of a step, its own or that of a region inside.

    Attributes:
        graph: the graph.
        live: gives the operations of it that run.
        wanted: what the step is run for, if it is the step's own graph.
        holder: the loop or branch of which it is a region.
        around: where that is.
    """

    graph: Graph
    live: Callable[[], list[Operation]]
    wanted: frozenset[Symbol | Operation] = frozenset()
    holder: Operation | None = None
    around: Place | None = None

    def kept(self) -> set[Symbol]:
        """Return the tensors for which its operations run."""
        if isinstance(self.graph, Region):
            return {*self.graph.results, *self.demanded()}
        return {each for each in self.wanted if isinstance(each, Symbol)}

    def loop(self, node: Operation) -> LoopView:
        """Return one of its loops, under rewriting."""
        return LoopView(Users(self.graph, self.live(), self.wanted | self.kept()), node, {})

    def demanded(self) -> list[Symbol]:
        """Return the tensors of which the loop or branch around keeps records."""
        if self.holder is None or self.around is None:
            return []
        takers = [user.op for user in frame_users(self.around.live()).get(self.holder.outputs[-1], ())]
        inner = [taker.inner for taker in takers if isinstance(taker, (History, Saved))]
        return [tensor for tensor in inner if tensor.operation.graph is self.graph]

    def used(self) -> set[Symbol]:
        """Return the tensors that anything takes."""
        return {tensor for operation in self.live() for tensor in operation.inputs} | self.kept()

    def inside(self, holder: Operation, region: Region) -> Place:
        """Return the place that a region of one of its operations is."""
        place = Place(region, list, holder=holder, around=self)
        place.live = lambda: needed_in_region(region, place.demanded())
        return place

    def places(self) -> list[Place]:
        """Return all places inside, innermost first, without those in recursions, whose calls may take anything."""
        found: list[Place] = []
        for operation in self.live():
            for region in operation.op.regions:
                if any(inner.op.regions for inner in region.operations) and not isinstance(region, Body):
                    place = self.inside(operation, region)
                    found += [*place.places(), place]
        return found


@dataclass
class Backward:
    """A backward loop.

    Attributes:
        node: the loop.
        place: where it is.
        forward: the place of the loop whose gradient it is.
    """

    node: Operation
    place: Place
    forward: Place

    @contextmanager
    def outside(self) -> Generator[None]:
        """Build operations around it, out of values around the forward loop."""
        region = self.place.graph
        if self.place is self.forward:
            with building(region, self.node):
                yield
            return
        around, holder = self.place.around, self.place.holder
        assert around is not None
        assert holder is not None
        view = around.loop(holder)
        assert isinstance(region, Region)
        assert self.forward.holder is not None
        mirror = LoopMirror(op_of(self.forward.holder, While).body, self.forward.holder.outputs[-1])
        mirror.index = region.parameters[0]
        region.mirror, region.is_built = mirror, False
        try:
            with building(region, self.node):
                yield
        finally:
            region.mirror, region.is_built = None, True
            view.finish()
            reorder(view.graph, {})


def backward_loops(loop: LoopView, place: Place) -> list[Backward]:
    """Return the backward loops of a loop.

    Raises:
        NotRowWiseError: something else takes values of its iterations, or of theirs.
    """
    found = [Backward(node, place, place) for node in _gradients_of(loop, place.live())]
    for other in _backward_bodies(place):
        found += [Backward(node, other, place) for node in _gradients_of(loop, other.live())]
    _check_elsewhere(loop, place, [backward.node for backward in found])
    for backward in found:
        _check_frame(backward)
    _check_histories(loop, place, found)
    return found


def _roles(body: Region) -> set[Symbol]:
    return {*body.parameters, *[parameter for _, parameter in body.captures]}


def _gradients_of(loop: LoopView, operations: list[Operation]) -> list[Operation]:
    roles = _roles(loop.body)
    return [o for o in operations if isinstance(o.op, While) and roles.intersection(o.op.cotangents.values())]


def _backward_bodies(place: Place) -> list[Place]:
    """Return the bodies of the gradients of the loop whose body `place` is."""
    holder, around = place.holder, place.around
    if holder is None or around is None or not isinstance(holder.op, While) or place.graph is not holder.op.body:
        return []
    roles = _roles(holder.op.body)
    loops = [o for o in around.live() if isinstance(o.op, While) and roles.intersection(o.op.cotangents.values())]
    return [around.inside(node, op_of(node, While).body) for node in loops]


def _check_elsewhere(loop: LoopView, place: Place, known: list[Operation]) -> None:
    """Check that no loop that is not known is its gradient."""
    outermost = place
    while outermost.around is not None:
        outermost = outermost.around
    if not set(known).issuperset(_gradients_of(loop, list(all_operations(outermost.live())))):
        raise NotRowWiseError("its gradient is in a loop or branch of its own")


def _check_frame(backward: Backward) -> None:
    frame = backward.node.outputs[-1]
    if frame in backward.place.used():
        raise NotRowWiseError("something takes values of the iterations of its gradient")


def _check_histories(loop: LoopView, place: Place, found: list[Backward]) -> None:
    """Check that nothing but these backward loops takes values of the iterations of `loop`."""
    frame = loop.node.outputs[-1]
    near = [backward.node for backward in found if backward.place is place]
    for operation in place.live():
        taken = [
            t for t in operation.inputs if is_among(frame, t.operation.inputs) and isinstance(t.operation.op, History)
        ]
        if taken and operation not in near:
            raise NotRowWiseError(f"{operation.name!r} takes all values of {taken[0].operation.name!r}")
    recorded = [t for t in place.kept() if isinstance(t.operation.op, History) and is_among(frame, t.operation.inputs)]
    if not recorded:
        return
    nested = [backward for backward in found if backward.place is not place]
    if place.around is None or not _takes_all(set(recorded), place.around, nested):
        raise NotRowWiseError("values of its iterations are fetched, or taken in another loop")


def _takes_all(recorded: set[Symbol], around: Place, nested: list[Backward]) -> bool:
    """Test whether backward loops alone need the records that the loop around the forward one keeps of it."""
    records = {o.outputs[0] for o in around.live() if isinstance(o.op, (History, Saved)) and o.op.inner in recorded}
    holders = [backward.place.holder for backward in nested]
    if not records.isdisjoint(around.kept()):
        return False
    if any(o not in holders and not records.isdisjoint(o.inputs) for o in around.live()):
        return False
    return all(records.isdisjoint(_taken_besides(backward.place, nested)) for backward in nested)


def _taken_besides(place: Place, nested: list[Backward]) -> set[Symbol]:
    """Return the tensors that a loop's body takes from outside for other uses than the backward loops in it."""
    assert isinstance(place.graph, Region)
    results = [output for backward in nested if backward.place.graph is place.graph for output in backward.node.outputs]
    needed = set(needed_operations(place.graph, place.kept(), results))
    return {outer for outer, parameter in place.graph.captures if parameter.operation in needed}


__all__ = ["Backward", "Place", "backward_loops"]
