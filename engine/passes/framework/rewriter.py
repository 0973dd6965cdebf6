"""`Rewriter`: the step under rewrite, with use lists. Passes that are written as rules change a step through it alone.

What it offers is what xDSL's and MLIR's pattern rewriters offer: operations are updated in place, merged, inserted and
erased, and uses are replaced. Name, device and user's line of what is rewritten are carried on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from ...common.identity import is_among
from ...control_flow.call import Recorded, Recursion
from ...control_flow.frames import History, Saved
from ...control_flow.while_loop import While
from ...graph.graph import Graph, Operation
from ...graph.op import Op
from ...graph.region import Region
from ...graph.spec import Spec
from ...graph.tensor import Symbol
from . import changes
from .order import reorder
from .patterns import captured
from .prune import Kept, Pruning, holds, is_kind_among, kinds_of, needed_operations, recorded_tensors
from .sizes import KnownSizes
from .specialise import Specialised


class _Uses:
    """The use lists of the live operations of a step, those inside of regions included.

    A tensor is used by the operations that take it, and in ways that no operation shows: as a fetch, as the result of a
    region, and by a frame that records it (`History`, `Saved`, `Recorded`). `While.cotangents` names tensors too, which
    need not be there for that. An operation is used by those that wait for it.

    Attributes:
        users: for each tensor the operations that take it, with how often each does.
        hidden: for each tensor the number of its other uses.
        named: the tensors that `While.cotangents` names.
        awaited: the operations for which others wait.
        writes: for each graph where its operations write, in order.
        order: all live operations, those of regions before the operation that holds them.
    """

    def __init__(self, operations: Sequence[Operation], kept: Kept) -> None:
        self.users: dict[Symbol, dict[Operation, int]] = {}
        self.hidden: dict[Symbol, int] = {}
        self.named: set[Symbol] = set()
        self.awaited: set[Operation] = set()
        self.writes: dict[Graph, list[int]] = {}
        self.order: list[Operation] = []
        for tensor in kept.own:
            self._count_hidden(tensor)
        self._add_all(operations, kept)

    def _add_all(self, operations: Iterable[Operation], kept: Kept) -> None:
        for operation in operations:
            self.add(operation)
            self.awaited.update(operation.control_inputs)
            if operation.effects and operation.writes:
                self.writes.setdefault(operation.graph, []).append(operation.index)
            if isinstance(operation.op, While):
                self.named.update(*operation.op.cotangents.items())
            for region in operation.op.regions:
                for tensor in (*region.results, *kept.recorded_in(region)):
                    self._count_hidden(tensor)
                self._add_all(kept.needed_in(region), kept.inside(region))
            self.order.append(operation)

    def _count_hidden(self, tensor: Symbol) -> None:
        self.hidden[tensor] = self.hidden.get(tensor, 0) + 1

    def add(self, operation: Operation) -> None:
        """Count what an operation takes."""
        for tensor in operation.inputs:
            own = self.users.setdefault(tensor, {})
            own[operation] = own.get(operation, 0) + 1

    def remove(self, operation: Operation) -> None:
        """Count no longer what an operation takes."""
        for tensor in operation.inputs:
            own = self.users[tensor]
            own[operation] -= 1
            if not own[operation]:
                del own[operation]


class Rewriter:
    """A step under rewrite.

    Attributes:
        copy: the specialised copy, which holds the step's graph.
        operations: the live operations of that graph, in program order.
        fed: the placeholders of what is fed.
        fetches: the tensors that are returned.
        wanted: the operations that run for their effects.
        sizes: those of tensors that are known at run time only, by names.
        erased: the operations that changes since the latest `settle` took out.
    """

    def __init__(
        self,
        copy: Specialised,
        operations: list[Operation],
        fed: list[Symbol],
        fetches: list[Symbol],
        wanted: list[Operation],
    ) -> None:
        self.copy = copy
        self.operations = operations
        self.fed = fed
        self.fetches = fetches
        self.wanted = wanted
        self.sizes = KnownSizes()
        self.erased: set[Operation] = set()
        self._taken_out: set[Operation] = set()  # those of them whose place nothing takes
        self.pruning = Pruning({})
        self._known_kept: Kept | None = None
        self._known_uses: _Uses | None = None
        self._disordered: dict[Graph, dict[Operation, Operation]] = {}  # with what took whose place
        self._known_kinds: set[type[Op]] | None = None
        self._is_changed = True  # since the latest `settle`

    @property
    def graph(self) -> Graph:
        """The step's own graph."""
        return self.copy.graph

    @property
    def kept(self) -> list[Symbol | Operation]:
        """The tensors and operations for which the step runs."""
        return [*self.fetches, *self.wanted]

    @property
    def kept_tensors(self) -> Kept:
        """The tensors whose values are wanted from outside of their block: fetches, and what frames record."""
        if self._known_kept is None:
            self._known_kept = Kept(self.graph, {*self.fetches, *chain.from_iterable(self.pruning.recorded.values())})
        return self._known_kept

    @property
    def kinds(self) -> set[type[Op]]:
        """The ops of the step and of all regions inside; what changes took out still counts until `settle`."""
        if self._known_kinds is None:
            self._known_kinds = kinds_of(self.operations)
        return self._known_kinds

    def holds(self, *kinds: type[Op]) -> bool:
        """Test whether the step has an op of one of some classes, or traits."""
        return is_kind_among(self.kinds, *kinds)

    # --- uses -----------------------------------------------------------------------------------------------

    @property
    def _uses(self) -> _Uses:
        if self._known_uses is None:
            self._known_uses = _Uses(self.operations, self.kept_tensors)
        return self._known_uses

    def users(self, tensor: Symbol) -> list[Operation]:
        """Return the live operations that take a tensor, each once, in program order where they are of one graph."""
        return sorted(self._uses.users.get(tensor, ()), key=attrgetter("index"))

    def count_uses(self, tensor: Symbol) -> int:
        """Return how often a tensor is used, hidden uses included."""
        return sum(self._uses.users.get(tensor, {}).values()) + self._uses.hidden.get(tensor, 0)

    def is_only_use(self, tensor: Symbol) -> bool:
        """Test whether a tensor is used once."""
        return self.count_uses(tensor) == 1

    def outer(self, tensor: Symbol) -> Symbol | None:
        """Return the tensor around the region that a parameter stands for; None for any other tensor."""
        return captured(tensor)

    def has_hidden_use(self, tensor: Symbol) -> bool:
        """Test whether a tensor is a fetch or a region's result, or is recorded by a frame."""
        return tensor in self._uses.hidden

    def is_awaited(self, operation: Operation) -> bool:
        """Test whether another operation waits for this one without taking a value of it."""
        return operation in self._uses.awaited

    def writes_in(self, graph: Graph) -> Sequence[int]:
        """Return the places in `graph` of operations that write, in order."""
        return self._uses.writes.get(graph, ())

    def walk(self) -> Iterator[Operation]:
        """Iterate over the live operations, those of regions before the operation that holds them.

        Operations that are erased on the way are left out, and so are those that are inserted.
        """
        return (operation for operation in self._uses.order if operation not in self.erased)

    # --- changes --------------------------------------------------------------------------------------------

    def _note_change(self, op: Op) -> None:
        self._is_changed = True
        self.kinds.add(type(op))

    def update(self, operation: Operation, op: Op, inputs: Sequence[Symbol] | None = None) -> None:
        """Let an operation compute something else: its outputs, name, device and line stay.

        Args:
            operation: a live operation; its outputs keep their specs, which must be those of the new op. See `narrow`.
            op: the new definition.
            inputs: the new inputs, of the same graph; by default they stay.
        """
        self._note_change(op)
        changes.set_op(operation, op)
        if inputs is not None:
            self.set_inputs(operation, inputs)

    def set_inputs(self, operation: Operation, inputs: Sequence[Symbol]) -> None:
        """Let an operation take other inputs, as many; what its regions capture changes with them."""
        uses, self._is_changed = self._uses, True
        uses.remove(operation)
        changes.set_inputs(operation, inputs)
        uses.add(operation)
        if any(tensor.operation.index > operation.index for tensor in inputs):
            self._disordered.setdefault(operation.graph, {})

    def replace_uses(self, old: Symbol, new: Symbol) -> None:
        """Let everything that uses tensor `old` use `new`, another one of the same graph: hidden uses, too.

        Around regions, what is computed of it gets the specs that follow from its own.
        """
        uses, users = self._uses, self.users(old)
        for user in users:
            self.set_inputs(user, [new if tensor is old else tensor for tensor in user.inputs])
        if new.spec != old.spec and not isinstance(old.operation.graph, Region):
            self.narrow(users)
        hidden, self._is_changed = uses.hidden.pop(old, 0), True
        if not hidden and old not in uses.named:
            return
        uses.hidden[new] = uses.hidden.get(new, 0) + hidden
        self.fetches = [new if tensor is old else tensor for tensor in self.fetches]
        graph = old.operation.graph
        if isinstance(graph, Region) and is_among(old, graph.results):
            changes.set_results(graph, [new if tensor is old else tensor for tensor in graph.results])
        for operation in list(self.walk()):
            op = operation.op
            if isinstance(op, (History, Recorded, Saved)) and op.inner is old:
                changes.set_op(operation, type(op)(new))
            elif isinstance(op, While) and (old in op.cotangents or is_among(old, op.cotangents.values())):
                op.cotangents = {
                    new if own is old else own: new if other is old else other for own, other in op.cotangents.items()
                }

    def narrow(self, operations: Sequence[Operation]) -> None:
        """Give outputs around regions the narrower specs that follow from their operations; so on to what uses them."""
        pending = [*operations]
        while pending:
            operation = pending.pop()
            if operation.op.regions:
                continue  # their parameters have the specs that it was made for
            try:
                narrower = narrow(operation)
            except (TypeError, ValueError, IndexError):
                continue  # the run says which shapes do not fit
            pending += [user for output in narrower for user in self.users(output)]

    def insert(
        self,
        graph: Graph,
        op: Op,
        inputs: Sequence[Symbol],
        like: Operation,
        specs: tuple[Spec, ...] | None = None,
        before: Operation | None = None,
    ) -> Operation:
        """Insert an operation in front of `before`, with the name, device and line of `like`.

        Args:
            graph: the graph of `like`.
            op: the definition.
            inputs: tensors of the graph.
            like: the operation for whose sake it is inserted.
            specs: those of the outputs; by default they are inferred.
            before: an operation of the graph; by default `like`.
        """
        if specs is None:
            found = op.infer(*[tensor.spec for tensor in inputs])
            specs = found if isinstance(found, tuple) else (found,)
        new = graph.adopt(op, inputs, specs, like)
        new.index = (before or like).index
        self._note_change(op)
        self._uses.add(new)
        self._disordered.setdefault(graph, {})
        return new

    def merge(self, merged: Operation, parts: Sequence[Operation], outputs: Sequence[Symbol]) -> None:
        """Let one operation compute what several did, which are erased.

        Args:
            merged: a new operation of their graph, with its inputs, that is listed nowhere yet.
            parts: the operations; `merged` stands at the place of the first.
            outputs: tensors of theirs that stay, with all that takes them, as the outputs of `merged` in order.
        """
        self._note_change(merged.op)
        for part in parts:
            self._uses.remove(part)
            changes.take_nothing(part)
        changes.set_outputs(merged, outputs)
        self._uses.add(merged)
        replaced = dict.fromkeys(parts, merged)
        self._disordered.setdefault(merged.graph, {}).update(replaced)
        if any(part.writes for part in parts):
            self.wanted = list(dict.fromkeys([replaced.get(operation, operation) for operation in self.wanted]))
        self.erased.update(parts)

    def erase(self, operation: Operation, instead: Operation | None = None) -> None:
        """Take an operation out of which nothing is used.

        Args:
            operation: a live operation.
            instead: another one of its graph, for which those wait from now on that waited for it.

        Raises:
            ValueError: something still uses it.
        """
        used = next((tensor for tensor in operation.outputs if self.count_uses(tensor)), None)
        if used is not None or (instead is None and self.is_awaited(operation)):
            by = [user.name for user in self.users(used)] if used is not None else ["an operation that waits for it"]
            raise ValueError(f"{operation!r} can't be erased: it is used by {', '.join(by) or 'a fetch or a region'}.")
        self._is_changed = True
        self._uses.remove(operation)
        changes.take_nothing(operation)
        replaced = self._disordered.setdefault(operation.graph, {})
        if instead is not None and self.is_awaited(operation):
            replaced[operation] = instead
            self._uses.awaited.add(instead)
        self._taken_out.add(operation)
        self.erased.add(operation)

    def become(
        self, copy: Specialised, operations: Sequence[Operation], specs: Mapping[Symbol, Spec] | None = None
    ) -> None:
        """Go on with a copy of the step.

        Args:
            copy: it copies now.
            operations: those of the step that are copied.
            specs: those of what is fed; by default they stay.

        Raises:
            TypeError, ValueError, IndexError: an operation does not take its inputs; the step stays as it is.
        """
        fed = {tensor: tensor.spec for tensor in self.fed} if specs is None else specs
        copy.copy_step(operations, fed, self.fetches)
        self.fed, self.fetches = ([copy.tensors[each] for each in tensors] for tensors in (self.fed, self.fetches))
        self.wanted = [copy.operations[operation] for operation in self.wanted if operation in copy.operations]
        # What was needed for a value is not needed for its shape alone, but its effects were asked for.
        self.wanted += [operation for operation in copy.graph.operations if operation.writes]
        self.copy, self.sizes = copy, KnownSizes()
        self.operations = needed_operations(copy.graph, self.kept, self.fed)
        self._known_kept, self._known_uses, self._is_changed = None, None, True

    def touch(self) -> None:
        """Note that the step is changed in other ways than by the methods above: by analyses, which are not rules."""
        self._is_changed = True

    # --- between passes -------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Put the operations of changed graphs in order, and leave out what nothing needs any more.

        Returns whether the step may have changed since the latest `settle`.
        """
        if not self._is_changed:
            return False
        for graph, replaced in self._disordered.items():
            changes.leave_out(graph, self._taken_out)
            reorder(graph, replaced)
        self._disordered, self.erased, self._taken_out = {}, set(), set()
        self._known_kept, self._known_uses, self._known_kinds, self._is_changed = None, None, None, False
        remaining = set(self.graph.operations) if self.wanted else set[Operation]()
        self.wanted = [operation for operation in self.wanted if operation in remaining]
        self._prune()
        return True

    def _prune(self) -> None:
        """Find the operations that are needed, and leave out of regions what nothing needs."""
        has_recursions = holds(self.graph.operations, Recursion)
        needed = needed_operations(self.graph, self.kept, self.fed) if has_recursions else ()
        self.pruning = Pruning(recorded_tensors(needed))
        live = {item.operation if isinstance(item, Symbol) else item for item in self.kept}
        self.pruning.prune(self.graph.operations, live)
        live.difference_update([tensor.operation for tensor in self.fed])
        self.operations = [operation for operation in self.graph.operations if operation in live]


def narrow(operation: Operation) -> list[Symbol]:
    """Infer the outputs of an operation again; return those whose specs became narrower.

    Raises:
        TypeError, ValueError, IndexError: the op does not take its inputs.
    """
    found = operation.op.infer(*[tensor.spec for tensor in operation.inputs])
    narrower: list[Symbol] = []
    for output, spec in zip(operation.outputs, found if isinstance(found, tuple) else (found,), strict=True):
        if output.spec != spec and output.spec.accepts(spec):
            changes.set_spec(output, spec)
            narrower.append(output)
    return narrower


__all__ = ["Rewriter", "narrow"]
