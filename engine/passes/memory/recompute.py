"""Recomputation: loop state that would take too much memory is computed again in the backward loops.

A loop saves what its gradient reads by `History`. Here a step gets a budget for that, in bytes. As long as the estimate
exceeds it, loops save less: their backward loops run operations of the forward body again, on what is saved, on
captured values and on constants. So the same operations run on the same values, and results keep every bit.

The pass is the first of those that rewrite. All reads of histories are then still at the top of backward bodies; what
is run again can sink into the one branch that needs it, and so can what the forward loop no longer records; operations
that are run again are placed and fused like others. Fission gathers the operands of whole loops to be faster, which is
what there is no room for: it leaves loops alone that keep to a budget.

Where even what has to be saved of each iteration is too much, loops are cut into segments (`segments`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...control_flow.call import Recursion
from ...control_flow.frames import History
from ...control_flow.while_loop import While
from ...graph.graph import Graph, Operation, Parameter
from ...graph.region import Region
from ...graph.search import reached
from ...graph.spec import ArraySpec
from ...graph.tensor import Symbol
from ...ops.containers.tensor_arrays import ArrayRead
from ...ops.math.elementwise import Identity
from ..framework import changes
from ..framework.log import is_recording, note_change
from ..framework.order import reorder
from ..framework.prune import Kept, all_operations, holds, inner_tensors
from ..framework.specialise import Specialised
from .cheap import without_cheap
from .saved_state import Choice, SavedState, bytes_gathered, static_bytes
from .segments import Pair, cut, find_pair

_HIGHEST_PRICE = 26  # as a power of two: then nothing is saved that can be computed again

Reads = dict[Symbol, list[Operation]]  # for a tensor of a forward body, where backward loops read it


def recompute(
    graph: Graph,
    operations: Sequence[Operation],
    kept: Iterable[Symbol | Operation],
    budget: int | None,
    can_swap: bool = False,
    cheap: bool = False,
) -> bool:
    """Let the loops of a step save less, and compute the rest again; return whether any may do so now.

    Args:
        graph: the step's own graph.
        operations: those of it that run.
        kept: tensors and operations that are wanted from outside.
        budget: about how many bytes all loops together may save; None for no limit. Loops with `swap_memory` then
            still compute again what would take longer to be moved away and back.
        can_swap: what does not fit into the budget may be moved away: then only what is cheaper than that is computed
            again.
        cheap: without a budget, loops still do not save what takes less time to compute again (see `cheap`).
    """
    if budget is None and not cheap and not any(_may_swap(operation) for operation in all_operations(operations)):
        return False
    wanted = Kept(graph, [item for item in kept if isinstance(item, Symbol)])
    return _recompute_in(graph, operations, wanted, budget, can_swap, cheap)


def _may_swap(operation: Operation) -> bool:
    return isinstance(operation.op, While) and operation.op.swap_memory


def _recompute_in(
    graph: Graph, operations: Sequence[Operation], kept: Kept, budget: int | None, can_swap: bool, cheap: bool
) -> bool:
    """Do so for the loops of one graph, then for those in regions inside, whose state lives at the same time."""
    loops = _stateful_loops(operations, kept)
    is_changed = budget is not None
    if loops:
        states = [state for state, _ in loops]
        choices = _chosen(states, budget, can_swap)
        if cheap and budget is None:
            choices = [c if c.again else without_cheap(s) for s, c in zip(states, choices, strict=True)]
        long: list[Operation] = []
        if budget is not None and not can_swap and _total(states, choices) > budget:
            choices, long = _in_segments(states, choices, budget, operations, kept.own)
        for (state, reads), choice in zip(loops, choices, strict=True):
            if choice.again:
                _Rewriting(graph, state, reads, choice).run()
        is_changed = is_changed or any(choice.again for choice in choices)
        if is_changed:
            _bring_inputs_into_line(graph, kept.including(inner_tensors(graph.operations)))
            _drop_unused_histories(graph, kept.own)
            _bring_inputs_into_line(graph, kept.including(inner_tensors(graph.operations)))
        for node in long:
            pair = find_pair(node, graph.operations, kept.own)
            if pair is not None:
                cut(pair, pair.best_length(budget or 0))
        if budget is not None:
            budget = max(0, budget - _total(states, choices))
    if loops or not isinstance(graph, Region):  # what is recorded inside was noted further out otherwise
        kept.add(inner_tensors(graph.operations))
    for operation in list(graph.operations):
        for region in operation.op.regions:
            if region.holds_regions and holds(region.operations, While):
                inside = kept.needed_in(region)
                is_changed |= _recompute_in(region, inside, kept.inside(region), budget, can_swap, cheap)
    return is_changed


# --- what is saved, and what of it may be computed again ------------------------------------------------------------


def _stateful_loops(operations: Sequence[Operation], kept: Kept) -> list[tuple[SavedState, Reads]]:
    """Return the loops among `operations` whose state backward loops read, and where; not those seen to already."""
    loops = {o.outputs[-1]: o for o in operations if isinstance(o.op, While) and not o.op.keeps_to_budget}
    histories = [o for o in operations if isinstance(o.op, History) and o.inputs[0] in loops]
    if not histories:
        return []
    uses = _Uses(operations, kept)
    found: dict[Operation, tuple[Reads, set[Symbol]]] = {}
    for history in histories:
        assert isinstance(history.op, History)
        node, inner = loops[history.inputs[0]], history.op.inner
        assert isinstance(node.op, While)
        reads, fixed = found.setdefault(node, ({}, set()))
        places = uses.reads_of(history.outputs[0]) if inner.graph is node.op.body else None
        if places is None:
            fixed.add(inner)
        else:
            reads[inner] = places
    bodies = _bodies(operations)
    return [
        (SavedState(node, reads, fixed, _readers(bodies, reads)), reads)
        for node, (reads, fixed) in found.items()
        if reads
    ]


def _bodies(operations: Iterable[Operation]) -> dict[Graph, tuple[int, Operation]]:
    """Map the regions of the loops among `operations`, and inside, to the loop and its number."""
    loops = [operation for operation in all_operations(operations) if isinstance(operation.op, While)]
    return {region: (number, loop) for number, loop in enumerate(loops) for region in loop.op.regions}


def _readers(bodies: Mapping[Graph, tuple[int, Operation]], reads: Reads) -> list[Operation]:
    """Return the loops whose regions, the `bodies`, hold any of `reads`, in order."""
    graphs = {read.graph for places in reads.values() for read in places}
    found = dict(bodies[graph] for graph in graphs if graph in bodies)
    return [found[number] for number in sorted(found)]


class _Uses:
    """The uses of the arrays of a step, those in regions included."""

    def __init__(self, operations: Sequence[Operation], kept: Kept) -> None:
        self._outside = kept
        self._kept = inner_tensors(operations)
        self._users: dict[Symbol, list[tuple[Operation, int]]] = {}
        for operation in all_operations(operations):
            for position, tensor in enumerate(operation.inputs):
                if isinstance(tensor.spec, ArraySpec):  # as histories are
                    self._users.setdefault(tensor, []).append((operation, position))
            for region in operation.op.regions:
                self._kept.update(region.results)

    def reads_of(self, history: Symbol) -> list[Operation] | None:
        """Return the operations that read elements of a history; None if it is used in any other way."""
        found: list[Operation] = []
        pending = [history]
        while pending:
            tensor = pending.pop()
            if tensor in self._kept or tensor in self._outside:
                return None
            for user, position in self._users.get(tensor, ()):
                inside = user.captured_at(position)
                if isinstance(user.op, ArrayRead) and position == 0:
                    found.append(user)
                elif inside is not None and not isinstance(user.op, Recursion):
                    pending.append(inside[1])
                else:
                    return None
        return found


def _chosen(states: Sequence[SavedState], budget: int | None, can_swap: bool) -> list[Choice]:
    """Return the saved values of each loop: all if they fit, else the cheapest at the lowest price at which all fit.

    If the rest can be moved away, the price is that of moving.
    """
    choices = [state.all_saved() for state in states]
    if budget is None:
        return [state.choose(1.0) if _may_swap(state.node) else c for state, c in zip(states, choices, strict=True)]
    gathered = sum([bytes_gathered(state.node) for state in states])
    if _total(states, choices) + gathered <= budget:
        return choices
    if can_swap:
        return [state.choose(1.0) for state in states]
    for state in states:
        state.keep_to_budget()
    if _total(states, choices) <= budget:
        return choices
    before, low, high = choices, -1, _HIGHEST_PRICE
    choices = [state.choose(2.0**high) for state in states]
    while high - low > 1:
        middle = (low + high) // 2
        tried = [state.choose(2.0**middle) for state in states]
        if _total(states, tried) <= budget:
            choices, high = tried, middle
        else:
            before, low = tried, middle
    return _with_back(states, before, choices, budget)


def _with_back(
    states: Sequence[SavedState], before: Sequence[Choice], choices: Sequence[Choice], budget: int
) -> list[Choice]:
    """Return `choices`, but for loops that could keep what they saved before at a lower price."""
    found = list(choices)
    for position, choice in enumerate(before):
        tried = [*found[:position], choice, *found[position + 1 :]]
        if _total(states, tried) <= budget:
            found = tried
    return found


def _in_segments(
    states: Sequence[SavedState],
    choices: Sequence[Choice],
    budget: int,
    operations: Sequence[Operation],
    kept: set[Symbol],
) -> tuple[list[Choice], list[Operation]]:
    """Return the saved values of each loop, where they are too many anyway, and the loops to be cut into segments.

    Within a segment, as much is saved as there is room for.
    """
    found, long = list(choices), list[Operation]()
    sizes = [state.bytes_of(choice) for state, choice in zip(states, choices, strict=True)]
    for position in sorted(range(len(states)), key=lambda position: -sizes[position]):
        state, room = states[position], max(0, budget - sum(sizes) + sizes[position])
        pair = find_pair(state.node, operations, kept)
        if pair is None or sum(sizes) <= budget:
            continue
        for choice in (state.all_saved(), state.choose(1.0), found[position]):
            tried = Pair(pair.node, pair.backward, choice.saved)
            size = tried.bytes_within(tried.best_length(room))
            if size <= room or choice is found[position]:
                break
        if size < sizes[position]:
            found[position], sizes[position] = choice, size
            long.append(state.node)
    return found, long


def _total(states: Sequence[SavedState], choices: Sequence[Choice]) -> int:
    return sum([state.bytes_of(choice) for state, choice in zip(states, choices, strict=True)])


# --- rewriting ------------------------------------------------------------------------------------------------------


class _Rewriting:
    """One loop whose backward loops compute some of its state again."""

    def __init__(self, graph: Graph, state: SavedState, reads: Reads, choice: Choice) -> None:
        self.graph = graph
        self.node = state.node
        self.body = state.body
        self.again = choice.again
        self.repeated = set(choice.again)
        self.saved = set(choice.saved)
        self.reads = reads
        self.outers = {parameter: outer for outer, parameter in self.body.captures}
        self.histories = {
            operation.op.inner: operation.outputs[0]
            for operation in graph.operations
            if isinstance(operation.op, History) and operation.inputs[0] is self.node.outputs[-1]
        }

    def run(self) -> None:
        places: dict[tuple[Region, Symbol], dict[Symbol, list[Operation]]] = {}
        for tensor, operations in self.reads.items():
            for read in operations:
                assert isinstance(read.graph, Region)
                places.setdefault((read.graph, read.inputs[1]), {}).setdefault(tensor, []).append(read)
        for (region, index), reads in places.items():
            self._compute_again(region, index, reads)

    def _compute_again(self, region: Region, index: Symbol, reads: dict[Symbol, list[Operation]]) -> None:
        """Compute again what `reads` read at iteration `index`, as far as it is not saved."""
        wanted = [t for t in reads if t.operation in self.repeated and t not in self.saved]
        if not wanted:
            return
        operations = self._needed(wanted)
        earliest = min([read.index for found in reads.values() for read in found])
        before = len(region.operations)
        built = _opened(region)
        copied = Specialised(share=False)
        for tensor in dict.fromkeys([tensor for operation in operations for tensor in operation.inputs]):
            if tensor in self.saved or tensor.operation not in self.repeated:
                known = reads.get(tensor)
                copied.tensors[tensor] = known[0].outputs[0] if known else self._there(tensor, region, index)
        copied.copy_inside(operations, region, wanted)
        new = region.operations[before:]
        for operation in new:
            operation.index = earliest
        for operation in operations:
            copy = copied.operations.get(operation)
            if copy is not None:
                copy.name = _name_again(copy.name)
        if is_recording():
            self._note(wanted, operations)
        self._take_places({tensor: copied.tensors[tensor] for tensor in wanted}, reads, region, set(new))
        for around in built:
            _close(around)
        _note_recomputed(region, wanted)

    def _note(self, wanted: Sequence[Symbol], operations: Sequence[Operation]) -> None:
        size, count = sum([static_bytes(tensor.spec) for tensor in wanted]), len(operations)
        by = f"by {count} {'operation' if count == 1 else 'operations'}"
        for tensor in wanted:
            kept = static_bytes(tensor.spec)
            words = f"{kept:,} bytes an iteration" if kept else "its bytes depend on what is fed"
            note_change("recompute", tensor.operation, f"is computed again in the backward loop, not kept: {words}")
        if len(wanted) > 1:
            words = f"{len(wanted)} values are computed again {by}, so that {size:,} bytes an iteration are not kept"
            note_change("recompute", self.node, words)

    def _needed(self, wanted: Iterable[Symbol]) -> list[Operation]:
        """Return the operations that must run again for `wanted`, in program order."""

        def repeated(tensors: Iterable[Symbol]) -> list[Operation]:
            made = [tensor.operation for tensor in tensors if tensor not in self.saved]
            return [operation for operation in made if operation in self.repeated]

        found = reached(repeated(wanted), lambda operation: repeated(operation.inputs))
        return [operation for operation in self.again if operation in found]

    def _there(self, tensor: Symbol, region: Region, index: Symbol) -> Symbol:
        """Return the value of `tensor` at iteration `index`: the outer tensor that was captured, or what was saved."""
        if tensor in self.outers:
            return self.outers[tensor]
        history = self.histories.get(tensor)
        if history is None:
            specs = (ArraySpec(tensor.spec),)
            made = self.graph.adopt(History(tensor), [self.node.outputs[-1]], specs, tensor.operation)
            made.name = f"{self.node.name}/history"
            history = self.histories[tensor] = made.outputs[0]
        history.operation.index = self.node.index  # right behind the loop: what was built later may be needed earlier
        read = region.adopt(ArrayRead(), [region.capture(history), index], (tensor.spec,), tensor.operation)
        read.name = f"{tensor.operation.name}/saved"
        return read.outputs[0]

    def _take_places(
        self, values: dict[Symbol, Symbol], reads: dict[Symbol, list[Operation]], region: Region, new: set[Operation]
    ) -> None:
        """Let the values that were computed again be the tensors that were read so far."""
        renamed: dict[Symbol, Symbol] = {}
        gone: set[Operation] = set()
        for tensor, value in values.items():
            first, *others = reads[tensor]
            maker = value.operation
            if maker in new and not isinstance(maker.op, Parameter) and value not in renamed:
                old = first.outputs[0]
                changes.set_output(maker, value.index, old)
                renamed[value] = old
                gone.add(first)
            else:
                others.append(first)
            for read in others:
                changes.set_op(read, Identity(), [renamed.get(value, value)])
        for operation in new:
            changes.replace_inputs(operation, renamed)
        changes.leave_out(region, gone)


def _name_again(name: str) -> str:
    scope, slash, last = name.rpartition("/")
    return f"{scope}{slash}recomputed_{last}"


def _opened(region: Region) -> list[Region]:
    """Return `region` and those around it, made ready to capture more."""
    found: list[Region] = []
    around: Graph | None = region
    while isinstance(around, Region):
        if around.is_built:
            found.append(around)
            around.is_built = False
        around = around.parent
    return found


def _close(region: Region) -> None:
    region.is_built = True
    for operation in region.operations:
        if isinstance(operation.op, Parameter):
            operation.index = -1  # what it captured just now comes first, too
    reorder(region, {})


def _note_recomputed(region: Region, tensors: Iterable[Symbol]) -> None:
    """Count what is computed again in an iteration of the loop around `region`."""
    size = sum([static_bytes(tensor.spec) for tensor in tensors])
    while True:
        holder = next(o for o in region.parent.operations if region in o.op.regions)
        if isinstance(holder.op, While):
            holder.op.recomputed_bytes += size
            return
        if not isinstance(region.parent, Region):
            return
        region = region.parent


def _drop_unused_histories(graph: Graph, kept: set[Symbol]) -> None:
    used = {tensor for operation in graph.operations for tensor in operation.inputs} | kept
    changes.leave_out(graph, {o for o in graph.operations if isinstance(o.op, History) and o.outputs[0] not in used})
    reorder(graph, {})


def _bring_inputs_into_line(graph: Graph, kept: Kept) -> None:
    """Leave out what loops and branches no longer take from outside, and give them what they take now."""
    for operation in graph.operations:
        op = operation.op
        if isinstance(op, Recursion) or not op.regions:
            continue
        own = operation.inputs[: op.carried if isinstance(op, While) else 1]
        for region in op.regions:
            _bring_inputs_into_line(region, kept)
            recorded = kept.recorded_in(region)
            used = {tensor for inner in kept.needed_in(region) for tensor in inner.inputs}
            region.drop_captures(used.union(region.results, recorded))
        changes.set_own_inputs(operation, own)
