"""Unrolling: a short loop becomes copies of its body, so that other passes work across iterations.

A loop whose trip count is a small known number is copied as often as it runs, its variables being plain values. What it
writes into arrays, and what backward loops read of its history, are plain values then, too (`algebra_arrays`), and its
counters are constants. A backward loop makes as many iterations: both are unrolled, or neither is.

Small bodies gain: a loop costs a microsecond or two an iteration, a history several, and a body of a few operations on
small arrays fuses with its neighbours. Large ones would lose what fission and packed weights bring to a loop. Loops of
small arrays inside another one are native with it, where a record more for each copy costs more than the loop does,
unless the outer one runs long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ...common.machine_profile import machine_profile
from ...control_flow.call import Recursion
from ...control_flow.frames import History, Saved, TripCount
from ...control_flow.scan import OfLength
from ...control_flow.while_loop import While
from ...graph.graph import Graph, Operation, Parameter
from ...graph.operation import op_of
from ...graph.region import Region
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ...ops.containers.array_windows import ArrayOf
from ...ops.containers.tensor_arrays import ArrayRead, array_spec
from ...ops.math.elementwise import Subtract
from ..framework.estimates import is_static, size_of
from ..framework.log import note_change, note_kept
from ..framework.patterns import outermost
from ..framework.prune import (
    all_blocks,
    all_operations,
    frame_users,
    holds,
    live_outputs,
    needed_in_region,
)
from ..framework.rewriter import Rewriter
from ..framework.specialise import Specialised
from ..rewrites.algebra_arrays import ARRAYS
from .linear import known_trips

MOST_TRIPS = 4
MOST_OPERATIONS = 200  # of all copies together
MOST_IN_ALL = 400  # of all loops of a step: kernels of what is fused take time to compile
MOST_ELEMENTS = 4096  # of any value inside
_MOST_ROUNDS = 3


# --- which loops ----------------------------------------------------------------------------------------------------


class ShortLoops:
    """The loops of a step that are to be unrolled, with how many iterations each makes.

    Args:
        operations: what runs of the step.
        kept: the tensors for which it runs.
    """

    def __init__(self, operations: Sequence[Operation], kept: Iterable[Symbol]) -> None:
        self.trips: dict[Operation, int] = {}
        waiting = [each for block in all_blocks(operations) for each in block if each.control_inputs]
        self._held = {source for operation in waiting for source in operation.control_inputs}
        self._copies = 0  # operations of all copies
        if not holds(operations, Recursion):
            self._find(operations, set(kept), None)

    def _find(self, operations: Sequence[Operation], kept: set[Symbol], around: Operation | None) -> None:
        """Find them among operations and inside; `around` is the loop around them that does not run long."""
        loops = {operation: known_trips(operation) for operation in operations if isinstance(operation.op, While)}
        for operation in operations:
            inside, trips = around, loops.get(operation, 0)
            if trips is None or trips > MOST_TRIPS:
                runs_long = trips is None or trips >= machine_profile().unrolled_around_trips
                inside = None if runs_long else operation
            for region in operation.op.regions:
                self._find(region.operations, set(region.results), inside)
        short = {loop: trips for loop, trips in loops.items() if trips is not None and trips <= MOST_TRIPS}
        if short:
            users = frame_users(operations)
            found = {loop: trips for loop, trips in short.items() if self._is_copied(loop, trips, users, kept, around)}
            self.trips.update(_with_partners(self._cheapest(found), operations, users))

    def _cheapest(self, loops: Mapping[Operation, int]) -> dict[Operation, int]:
        """Choose as many of these loops as the step has room for, those that make the fewest copies first."""
        work = {loop: trips * self._work(op_of(loop, While).body) for loop, trips in loops.items()}
        found = dict[Operation, int]()
        for loop in sorted(loops, key=work.__getitem__):
            if self._copies + work[loop] > MOST_IN_ALL:
                note_kept("unroll", loop, "stays a loop: enough of the step is copied already")
                continue
            self._copies += work[loop]
            found[loop] = loops[loop]
        return found

    def _is_copied(
        self,
        operation: Operation,
        trips: int,
        users: Mapping[Symbol, list[Operation]],
        kept: set[Symbol],
        around: Operation | None,
    ) -> bool:
        """Test whether the body of a short loop is copied, once for each iteration."""
        held = self._why_not(operation, trips, users.get(operation.outputs[-1], ()), kept)
        if held is None and around is not None and trips > 1:
            held = f"{around.name!r} around it makes few iterations, and native code runs both as fast"
        if held is not None:
            note_kept("unroll", operation, f"stays a loop of {trips} iterations: {held}")
        return held is None

    def _why_not(self, node: Operation, trips: int, takers: Sequence[Operation], kept: set[Symbol]) -> str | None:
        op = node.op
        assert isinstance(op, While)
        if op.keeps_to_budget or op.swap_memory:
            return "it keeps to a memory budget"
        if node in self._held or node.control_inputs:
            return "other operations wait for it, or it for them"
        if any(operation.effects for operation in op.condition.operations):
            return "its condition has effects"
        if node.outputs[-1] in kept or not all(_is_plain(taker, op.body) for taker in takers):
            return "its record is used as a whole"
        if not trips and any(_is_checked(outer) for outer in node.inputs):
            return "what it takes is checked for its length"
        work = trips * self._work(op.body)
        if work > MOST_OPERATIONS:
            return f"all copies of its body would be {work} operations, and {MOST_OPERATIONS} are the most"
        return None if trips < 2 else _large(op.body)

    def _work(self, region: Region) -> int:
        """Return the number of operations of a copy of a region, with loops inside unrolled as far as they are."""
        total = 0
        for operation in region.operations:
            inside = sum([self._work(inner) for inner in operation.op.regions])
            own = 0 if isinstance(operation.op, (Constant, Parameter)) else 1
            total += own + inside * max(1, self.trips.get(operation, 1))
        return total


def _is_checked(tensor: Symbol) -> bool:
    """Test whether a tensor, or one that it is a view of, is checked. A check has to run, though nothing needs it."""
    while tensor.operation.op.view and tensor.operation.inputs and not isinstance(tensor.operation.op, OfLength):
        tensor = tensor.operation.inputs[0]
    return isinstance(tensor.operation.op, OfLength)


def _is_plain(taker: Operation, body: Region) -> bool:
    return isinstance(taker.op, TripCount) or (isinstance(taker.op, History) and taker.op.inner.graph is body)


def _starts_at_the_end(node: Operation) -> bool:
    """Test whether a loop goes back through the iterations of another, by whose numbers errors then name its own."""
    start = node.inputs[0].operation if node.inputs else None
    if start is None or not isinstance(start.op, Subtract):
        return False
    return isinstance(start.inputs[0].operation.op, TripCount)


def _large(body: Region) -> str | None:
    """Return a description of a value in a body that is large, or may be; None if there is none."""
    for operation in all_operations(body.operations):
        for tensor in operation.outputs:
            is_small = is_static(tensor) and size_of(tensor) <= MOST_ELEMENTS
            if isinstance(tensor.spec, TensorSpec) and not is_small:
                return f"{operation.name!r} is {tensor.spec}, and only bodies of small values are copied"
    return None


def _with_partners(
    found: dict[Operation, int], operations: Sequence[Operation], users: Mapping[Symbol, list[Operation]]
) -> dict[Operation, int]:
    """Return those loops that no record ties to one that stays a loop."""
    loops = {o.outputs[-1]: o for o in operations if isinstance(o.op, While)}
    makers = {user.outputs[0]: loops[frame] for frame, takers in users.items() if frame in loops
              for user in takers if isinstance(user.op, History)}  # fmt: skip
    ties = [(makers[t], o) for o in operations if isinstance(o.op, While) for t in o.inputs if t in makers]
    kept = dict(found)
    while True:
        torn = [pair for pair in ties if (pair[0] in kept) != (pair[1] in kept)]
        if not torn:
            return kept
        for loop in dict.fromkeys([loop for pair in torn for loop in pair if loop in kept]):
            note_kept("unroll", loop, "stays a loop: one that shares its record does")
            del kept[loop]


# --- copying them ---------------------------------------------------------------------------------------------------


class Unrolled(Specialised):
    """A step in a graph of its own, in which loops are copies of their bodies.

    Args:
        trips: those loops, with how many iterations each makes.
        share: whether equal pure operations are computed once.
        exact: whether rewrites keep every bit.
    """

    def __init__(self, trips: Mapping[Operation, int], share: bool, exact: bool) -> None:
        super().__init__(share, exact)
        self._algebra = {**self._algebra, **ARRAYS}
        self._trips = trips
        self._records: dict[Symbol, dict[Symbol, list[Symbol]]] = {}  # by frame, and tensor inside

    def _copy_region_op(self, operation: Operation, into: Graph, users: Sequence[Operation], used: set[Symbol]) -> None:
        trips = self._trips.get(operation)
        if trips is None:
            super()._copy_region_op(operation, into, users, used)
            return
        note_change("unroll", operation, f"is {trips} {'copy' if trips == 1 else 'copies'} of its body")
        demanded = [user.op.inner for user in users if isinstance(user.op, History)]
        self._copy_iterations(operation, trips, into, demanded, live_outputs(operation, used, demanded))

    def _copy_iterations(
        self, node: Operation, trips: int, into: Graph, demanded: Sequence[Symbol], live: Sequence[int]
    ) -> None:
        body = op_of(node, While).body
        results = [body.results[k] for k in live]
        needed = needed_in_region(body, demanded, results)
        values = [self._local(node.inputs[k], into) for k in live]
        records = self._records[node.outputs[-1]] = {inner: list[Symbol]() for inner in demanded}
        runs_back = _starts_at_the_end(node)
        for iteration in range(trips):
            self._start(body, needed, dict(zip([body.parameters[k] for k in live], values, strict=True)), into)
            before = len(into.operations)
            self.copy_inside(needed, into, [*results, *demanded])
            for operation in into.operations[before:]:
                number = trips - 1 - iteration if runs_back else iteration
                operation.iterations = (*operation.iterations, (node.name, number))
            values = [self._local(result, into) for result in results]
            for inner, record in records.items():
                record.append(self._local(inner, into))
        for position, value in zip(live, values, strict=True):
            self.tensors.setdefault(node.outputs[position], value)  # it may be fed

    def _start(self, body: Region, needed: Sequence[Operation], values: Mapping[Symbol, Symbol], into: Graph) -> None:
        """Start a copy of the body, of which nothing is copied yet, with these values of its variables."""
        for operation in needed:
            for tensor in operation.outputs:
                self.tensors.pop(tensor, None)
        used = {operation for operation in needed if isinstance(operation.op, Parameter)}
        for outer, parameter in body.captures:
            if parameter.operation in used:
                self.tensors[parameter] = self._local(outer, into)
        self.tensors.update(values)

    # --- records ----------------------------------------------------------------------------------------------------

    def _copy(self, operation: Operation, into: Graph) -> None:
        op = operation.op
        records = self._records.get(operation.inputs[0]) if isinstance(op, (History, TripCount)) else None
        if records is not None:
            self._copy_record(operation, records, into)
            return
        known = self.tensors[op.inner].operation.op if isinstance(op, Saved) else None
        if isinstance(known, Constant):  # a trip count in a branch
            self._note_copy(operation, operation.outputs, self._copy_plain(known, operation, [], into))
            return
        super()._copy(operation, into)
        if isinstance(op, ArrayRead):
            self._look_into(operation, into)

    def _copy_record(self, operation: Operation, records: Mapping[Symbol, list[Symbol]], into: Graph) -> None:
        """Copy the trip count, or the history, of a loop that is unrolled."""
        op = operation.op
        if isinstance(op, History):
            made: ArrayOf | Constant = ArrayOf(op.inner.spec)
            values = records[op.inner]
        else:
            made, values = Constant(np.int32(self._trips[operation.inputs[0].operation])), list[Symbol]()
        new = self._copy_plain(made, operation, values, into)
        self._note_copy(operation, operation.outputs, new)

    def _look_into(self, operation: Operation, into: Graph) -> None:
        """Replace a read, at a known place, of a record of unrolled loops' histories by the record of the value there.

        So what loops and branches record are values, and no arrays of them.
        """
        read = self.tensors[operation.outputs[0]].operation
        index = outermost(read.inputs[1]).operation.op if isinstance(read.op, ArrayRead) else None
        if not isinstance(index, Constant) or index.value.ndim:
            return
        reads, array = list[Operation](), outermost(read.inputs[0])
        while isinstance(array.operation.op, ArrayRead):
            reads.append(array.operation)
            array = outermost(array.operation.inputs[0])
        found = self._recorded_at(array, int(index.value), reads)
        if found is None:
            return
        new, needed = found
        if isinstance(new.operation.op, Constant):
            new = self._copy_plain(new.operation.op, operation, [], into).outputs[0]
        for one in reversed(needed):  # each where the loop around counts
            inputs = [self._captured(new, one.graph), one.inputs[1]]
            new = one.graph.adopt(ArrayRead(), inputs, (array_spec(new).element,), operation).outputs[0]
        self.tensors[operation.outputs[0]] = self._captured(new, into)

    def _captured(self, tensor: Symbol, into: Graph) -> Symbol:
        """Return the tensor that stands in a region for a tensor of it or around it."""
        if tensor.operation.graph is into or not isinstance(into, Region):
            return tensor
        outer = self._captured(tensor, into.parent)
        local = into.capture(outer)
        self.outers[local] = outer
        return local

    def _recorded_at(
        self, record: Symbol, place: int, reads: Sequence[Operation]
    ) -> tuple[Symbol, list[Operation]] | None:
        """Return the record of the element at `place` of the array that `record` records, and which of `reads` to read.

        Args:
            record: a history or a saved value, perhaps of others inside.
            place: the number of the element.
            reads: those that lead to the array, the last one of them at the outermost history.
        """
        op, is_history = record.operation.op, isinstance(record.operation.op, History)
        if isinstance(op, ArrayOf):
            inputs = record.operation.inputs
            return (inputs[place], []) if not reads and 0 <= place < len(inputs) else None
        if not isinstance(op, (History, Saved)) or (is_history and not reads):
            return None
        found = self._recorded_at(op.inner, place, reads[:-1] if is_history else reads)
        if found is None or isinstance(found[0].operation.op, Constant):
            return found
        value, needed = found
        if value in self.outers:
            return self.outers[value], needed
        return _record_like(record, value), [*needed, reads[-1]] if is_history else needed


def _record_like(record: Symbol, inner: Symbol) -> Symbol:
    """Return the record of another tensor by the same loop or branch."""
    frame, graph, kind = record.operation.inputs[0], record.operation.graph, type(record.operation.op)
    for operation in reversed(graph.operations):
        op = operation.op
        if isinstance(op, (History, Saved)) and op.inner is inner and operation.inputs[0] is frame:
            return operation.outputs[0]
    op = History(inner) if kind is History else Saved(inner)
    return graph.adopt(op, [frame], (op.infer(),), record.operation).outputs[0]


# --- steps ----------------------------------------------------------------------------------------------------------


def unroll(step: Rewriter, exact: bool) -> None:
    """Unroll the short loops of a step, and those that are short once loops around them are unrolled.

    Args:
        step: as it was specialised.
        exact: whether rewrites of the copies keep every bit.
    """
    for _ in range(_MOST_ROUNDS):
        loops = ShortLoops(step.operations, step.fetches).trips
        if not loops:
            return
        copy = Unrolled(loops, step.copy.share, exact)
        copy.keeps_differentiated = step.copy.keeps_differentiated
        try:
            step.become(copy, step.operations)
        except (TypeError, ValueError, IndexError):  # an iteration can't work: in the loop it fails when it runs
            return
