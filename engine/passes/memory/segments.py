"""Checkpoints: of a long loop only the state at the start of each segment is saved, and each segment is run again.

What a loop carries from iteration to iteration can't be computed again from the same iteration. Where even that is too
much, the loop becomes a loop over segments of a few iterations, whose body is the loop itself, and so does its backward
loop: going back over the segments, it runs each of them again from the state that was saved at its start, and then its
own iterations on what that run saves. About 2 sqrt(n) states are alive instead of n, for one more run forward.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), section 3; here n may be unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ...common.identity import is_among
from ...control_flow.frames import History, TripCount
from ...control_flow.while_loop import While
from ...graph.graph import Graph, Operation
from ...graph.op import Op
from ...graph.region import Region
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ...ops.containers.tensor_arrays import ArrayRead
from ...ops.math.bitwise import BitwiseAnd
from ...ops.math.comparison import GreaterEqual, Less
from ...ops.math.elementwise import Add, Subtract
from ..framework import changes
from ..framework.estimates import bytes_of
from ..framework.order import reorder
from ..framework.patterns import number_of
from ..framework.prune import live_outputs
from ..framework.specialise import Specialised
from ..loops.linear import known_trips
from .saved_state import ASSUMED_TRIPS, calls_itself, static_bytes, trips_of

_COUNT = np.dtype("int32")


class Pair:
    """A loop and the backward loop that alone reads what it saves.

    Args:
        node: the loop.
        backward: the backward loop, of the same graph.
        inner: what is saved of the loop.

    Attributes:
        live: the positions of the variables that a segment needs to run again.
    """

    def __init__(self, node: Operation, backward: Operation, inner: Sequence[Symbol]) -> None:
        assert isinstance(node.op, While)
        assert isinstance(backward.op, While)
        self.graph: Graph = node.graph
        self.node, self.op = node, node.op
        self.backward, self.back = backward, backward.op
        self.inner = tuple(inner)
        self.live = live_outputs(node, set(), self.inner)

    @property
    def is_plain(self) -> bool:
        """True if a segment starts from plain tensors: to write into an array once more takes a copy of it."""
        return all(type(self.op.body.parameters[k].spec) is TensorSpec for k in self.live)

    def _bytes_a_start(self) -> int:
        return 4 + sum([bytes_of(self.op.body.parameters[k].spec) for k in self.live])

    def bytes_within(self, length: int) -> int:
        """Estimate how many bytes are alive at most with segments of so many iterations."""
        return -(-trips_of(self.node) // length) * self._bytes_a_start() + length * self._bytes_an_iteration()

    def _bytes_an_iteration(self) -> int:
        return sum([bytes_of(tensor.spec) for tensor in self.inner])

    def best_length(self, budget: int) -> int:
        """Return the length of segments that takes least memory; if the loop's is unknown, what there is room for."""
        one = max(self._bytes_an_iteration(), 1)
        trips = trips_of(self.node)
        length = max(2, round(math.sqrt(trips * self._bytes_a_start() / one)))
        return max(length, budget // (2 * one)) if trips == ASSUMED_TRIPS else length


def find_pair(node: Operation, operations: Iterable[Operation], kept: set[Symbol]) -> Pair | None:
    """Return the loop with its backward loop, if both can be cut into segments."""
    op, frame = node.op, node.outputs[-1]
    assert isinstance(op, While)
    if node.effects:
        return None
    users = [operation for operation in operations if is_among(frame, operation.inputs)]
    histories = {user.outputs[0]: user.op.inner for user in users if isinstance(user.op, History)}
    readers = [o for o in operations if not histories.keys().isdisjoint(o.inputs)]
    if (
        len(readers) != 1
        or not kept.isdisjoint(histories)
        or any(tensor.graph is not op.body for tensor in histories.values())
    ):
        return None
    backward = readers[0]
    if not isinstance(backward.op, While) or backward.effects or not _counts_down(backward, node):
        return None
    if calls_itself(node) or calls_itself(backward):
        return None
    if any(is_among(backward.outputs[-1], operation.inputs) for operation in operations):
        return None
    body, index = backward.op.body, backward.op.body.parameters[0]
    if not histories.keys().isdisjoint(backward.op.condition.outer_tensors()):
        return None
    inside = {parameter for outer, parameter in body.captures if outer in histories}
    for operation in body.operations:
        if inside.isdisjoint(operation.inputs):
            continue
        if not isinstance(operation.op, ArrayRead) or operation.inputs[1] is not index:
            return None
    pair = Pair(node, backward, list(histories.values()))
    return pair if inside.isdisjoint(body.results) and pair.is_plain else None


def _counts_down(backward: Operation, node: Operation) -> bool:
    """Test whether a loop's first variable runs from another's last iteration down to 0, and alone ends the loop."""
    op = backward.op
    assert isinstance(op, While)
    test, start, update = op.condition.results[0].operation, backward.inputs[0].operation, op.body.results[0].operation
    if not isinstance(test.op, GreaterEqual) or test.inputs[0] is not op.condition.parameters[0]:
        return False
    if number_of(test.inputs[1]) != 0 or not isinstance(update.op, Subtract) or not _is_last(start, node):
        return False
    return update.inputs[0] is op.body.parameters[0] and number_of(update.inputs[1]) == 1


def _is_last(start: Operation, node: Operation) -> bool:
    """Test whether an operation gives the number of a loop's last iteration."""
    if isinstance(start.op, Constant):
        trips = known_trips(node)
        return trips is not None and number_of(start.outputs[0]) == trips - 1
    if not isinstance(start.op, Subtract) or number_of(start.inputs[1]) != 1:
        return False
    counted = start.inputs[0].operation
    return isinstance(counted.op, TripCount) and counted.inputs[0] is node.outputs[-1]


def cut(pair: Pair, length: int) -> None:
    """Rewrite both loops, so that they go by segments of `length` iterations."""
    _Cutting(pair, length).run()


class _Cutting:
    def __init__(self, pair: Pair, length: int) -> None:
        self.pair = pair
        self.graph = pair.graph
        self.node, self.backward = pair.node, pair.backward
        self.length = length
        self.carried = pair.op.carried

    def run(self) -> None:
        users = [operation for operation in self.graph.operations if is_among(self.node.outputs[-1], operation.inputs)]
        forward = self._forward()
        histories = {user.outputs[0]: user.op.inner for user in users if isinstance(user.op, History)}
        backward = self._backward(forward, histories)
        trips = [user.outputs[0] for user in users if isinstance(user.op, TripCount)]
        _take_over(forward, 0, [*self.node.outputs[:-1], *trips[:1]])
        _take_over(backward, 1, self.backward.outputs[:-1])
        replaced = {self.node: forward, self.backward: backward}
        gone = {*users, *replaced}
        changes.leave_out(self.graph, gone)
        reorder(self.graph, replaced)

    def _forward(self) -> Operation:
        """Return the loop over segments: the variables, and how many iterations were made."""
        op, node = self.pair.op, self.node
        body = Region(self.graph, "body")
        state = [body.add_parameter(p.spec, p.operation.name) for p in op.body.parameters]
        done = body.add_parameter(TensorSpec((), _COUNT), "done")
        segment, _ = self._segment(body, state, range(self.carried), ())
        changes.set_results(body, [*segment.outputs[:-2], self._add(body, Add(), [done, segment.outputs[-2]])])
        condition = _whole(_copier(op.condition), op.condition, self.graph)
        condition.add_parameter(TensorSpec((), _COUNT), "done")
        inits = [*node.inputs[: self.carried], self._number(self.graph, 0)]
        return self._loop(self.graph, condition, body, inits, node, 0)

    def _segment(
        self, into: Region, state: Sequence[Symbol], positions: Sequence[int], inner: Sequence[Symbol]
    ) -> tuple[Operation, dict[Symbol, Symbol]]:
        """Build at most so many iterations from `state` on; return the body's `inner` tensors in this run, too.

        Args:
            positions: those of the variables that `state` describes; the others are left out.
        """
        op = self.pair.op
        copier = _copier(op.condition, op.body)
        tested, taken, made = (
            [tensors[k] for k in positions]
            for tensors in (op.condition.parameters, op.body.parameters, op.body.results)
        )
        condition = copier.copy_region(op.condition, into, tested, op.condition.results)
        body = copier.copy_region(op.body, into, taken, made, inner)
        step = condition.add_parameter(TensorSpec((), _COUNT), "step")
        within = self._add(condition, Less(), [step, self._number(condition, self.length)])
        changes.set_results(condition, [self._add(condition, BitwiseAnd(), [within, condition.results[0]])])
        step = body.add_parameter(TensorSpec((), _COUNT), "step")
        changes.set_results(body, [*body.results, self._add(body, Add(), [step, self._number(body, 1)])])
        loop = self._loop(into, condition, body, [*state, self._number(into, 0)], self.node, 0)
        return loop, {tensor: copier.tensors[tensor] for tensor in inner}

    def _backward(self, forward: Operation, histories: dict[Symbol, Symbol]) -> Operation:
        """Return the backward loop over segments, from the last one to the first."""
        graph, back, frame = self.graph, self.pair.back, forward.outputs[-1]
        assert isinstance(forward.op, While)
        last = self._add(graph, Subtract(), [self._add(graph, TripCount(), [frame]), self._number(graph, 1)])
        body = Region(graph, "body")
        segment = body.add_parameter(TensorSpec((), _COUNT), "segment")
        variables = [body.add_parameter(p.spec, p.operation.name) for p in back.body.parameters]
        *state, start = [
            self._add(body, ArrayRead(), [body.capture(self._add(graph, History(p), [frame])), segment])
            for p in [*[forward.op.body.parameters[k] for k in self.pair.live], forward.op.body.parameters[-1]]
        ]
        again, inner = self._segment(body, state, self.pair.live, list(histories.values()))
        local = {
            history: self._add(body, History(inner[tensor]), [again.outputs[-1]])
            for history, tensor in histories.items()
        }
        loop = self._backward_segment(body, variables, start, local)
        before = self._add(body, Subtract(), [segment, self._number(body, 1)])
        changes.set_results(body, [before, *loop.outputs[:-1]])
        condition = Region(graph, "cond")
        segment = condition.add_parameter(TensorSpec((), _COUNT), "segment")
        for p in back.body.parameters:
            condition.add_parameter(p.spec, p.operation.name)
        is_left = self._add(condition, GreaterEqual(), [segment, self._number(condition, 0)])
        changes.set_results(condition, [is_left])
        inits = [last, *self.backward.inputs[: back.carried]]
        return self._loop(graph, condition, body, inits, self.backward, 0)

    def _backward_segment(
        self, into: Region, variables: Sequence[Symbol], start: Symbol, local: dict[Symbol, Symbol]
    ) -> Operation:
        """Return the backward loop from where it is to the iteration `start`, on the histories of one segment."""
        back = self.pair.back
        copier = _copier(back.body)
        copier.tensors.update(local)
        body = _whole(copier, back.body, into)
        position = self._add(body, Subtract(), [body.parameters[0], body.capture(start)])
        segment = set(local.values())
        inside = {parameter for outer, parameter in body.captures if outer in segment}
        for operation in body.operations:
            if isinstance(operation.op, ArrayRead) and operation.inputs[0] in inside:
                changes.set_inputs(operation, (operation.inputs[0], position))
        position.operation.index = body.capture(start).operation.index = 0
        condition = Region(into, "cond")
        index, *_ = [condition.add_parameter(p.spec, p.operation.name) for p in back.body.parameters]
        is_left = self._add(condition, GreaterEqual(), [index, condition.capture(start)])
        changes.set_results(condition, [is_left])
        recomputed = back.recomputed_bytes + sum([static_bytes(tensor.spec) for tensor in self.pair.inner])
        loop = self._loop(into, condition, body, variables, self.backward, recomputed)
        reorder(body, {})
        return loop

    # --- building -------------------------------------------------------------------------------------------

    def _loop(
        self, into: Graph, condition: Region, body: Region, inits: Sequence[Symbol], like: Operation, recomputed: int
    ) -> Operation:
        assert isinstance(like.op, While)
        op = While(condition, body, like.op.parallel_iterations, like.op.swap_memory)
        op.keeps_to_budget, op.recomputed_bytes = True, recomputed
        inputs = [*inits, *op.captured_inputs()]
        controls = like.control_inputs if into is self.graph else ()
        made = into.adopt(op, inputs, op.infer(*[tensor.spec for tensor in inputs]), like, controls)
        if into is self.graph:
            made.index = like.index
        return made

    def _add(self, graph: Graph, op: Op, inputs: Sequence[Symbol]) -> Symbol:
        spec = op.infer(*[tensor.spec for tensor in inputs])
        assert not isinstance(spec, tuple)
        made = graph.adopt(op, inputs, (spec,), self.node)
        made.name = f"{self.node.name}/{op.type_name}"
        if graph is self.graph:
            made.index = self.node.index
        return made.outputs[0]

    def _number(self, graph: Graph, number: int) -> Symbol:
        return self._add(graph, Constant(np.asarray(number, _COUNT)), [])


def _copier(*regions: Region) -> Specialised:
    """Return copies out of regions, which capture what they captured before."""
    copier = Specialised(share=False)
    for region in regions:
        copier.tensors.update((outer, outer) for outer in region.outer_tensors())
    return copier


def _whole(copier: Specialised, region: Region, into: Graph) -> Region:
    return copier.copy_region(region, into, region.parameters, region.results)


def _take_over(operation: Operation, first: int, outputs: Sequence[Symbol]) -> None:
    """Let the outputs of an operation, from number `first` on, be tensors that others use already."""
    changes.set_outputs(operation, (*operation.outputs[:first], *outputs, *operation.outputs[first + len(outputs) :]))
