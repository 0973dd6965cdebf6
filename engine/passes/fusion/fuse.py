"""Fusion: chains of elementwise operations, reductions and changes of shape become one operation, which one kernel
computes.

Works on a step's own graph (see `specialise`), loop bodies and branches included. An operation joins the group of an
operation whose result it takes, if it has a place in the space through which the group's kernel runs (see `fusible`)
and no path between them leads through operations outside the group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...common.identity import is_among
from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ...graph.graph import Graph, Operation
from ...graph.kernel_roles import KernelRole
from ...graph.op import Op
from ...graph.provenance import location_of_several
from ...graph.tensor import Symbol
from ...ops.internal.fused import Fused
from ..framework.acyclic import Dependent, in_order
from ..framework.log import is_recording, note_change
from ..framework.order import earlier_effects, reorder
from ..framework.prune import Kept, inner_blocks, kept_of
from ..framework.switches import is_on
from .fusible import Form, FusionRule, Placed, form_of, founding_space, parts_of_joined, place
from .iteration_spaces import Embedding, Interval, Layout, Space, shifted

__all__ = ["FusionRule", "fuse"]

_MOST_OPERANDS = 28
_MOST_MEMBERS = 100  # and operands
_MOST_BEHIND = 16
_ATTEMPTS = 3

_Behind = dict[Operation, frozenset[Dependent]]  # the groups on which an operation's results depend directly


class _Group(Dependent):
    """Operations that may become one; it depends on groups whose results it needs.

    Attributes:
        space: through which its kernel runs.
        device: of its operations.
        shape: of all results, if it takes elementwise operations only.
        members: in program order.
        placed: the layout of each member's values in the space.
    """

    def __init__(self, order: int, space: Space, device: str, shape: tuple[int | None, ...] | None) -> None:
        super().__init__(order)
        self.space = space
        self.device = device
        self.shape = shape
        self.members: list[Operation] = []
        self.placed: dict[Operation, Placed] = {}

    def shift_by(self, space: Space, shift: Callable[[Layout], Layout]) -> None:
        """Place the values of the members in another space."""
        self.space = space
        self.placed = {member: placed.shifted_by(shift) for member, placed in self.placed.items()}


@dataclass(frozen=True)
class _Rebase:
    """A new axis in a group's space."""

    space: Space
    parts: Interval | None = None

    def shift(self, layout: Layout) -> Layout:
        moved = layout if self.parts is None else shifted(layout, self.parts[0], self.parts[1] // self.parts[0])
        if moved is None:
            raise ValueError("An axis would be cut in two.")
        return moved


class _Operands:
    """The operands of an operation, counted by the group that computes them.

    An operation may take thousands, of as many groups. So that not each of these is tried with all operands, those are
    left out that can't hold enough of them.

    Attributes:
        groups: those that compute any, the one that computes the last operand first.
    """

    def __init__(self, taken: Sequence[Symbol], group_of: Mapping[Operation, _Group]) -> None:
        self._count = len(set(taken))
        self._made: dict[_Group, int] = {}
        for tensor in dict.fromkeys(reversed(taken)):
            group = group_of.get(tensor.operation)
            if group is not None:
                self._made[group] = self._made.get(group, 0) + 1
        self.groups = list(self._made)

    def fit_with(self, *groups: _Group) -> bool:
        """Test whether one kernel could take those operands that none of these groups computes."""
        return self._count - sum([self._made.get(group, 0) for group in groups]) <= _MOST_OPERANDS

    def absorb(self, group: _Group, other: _Group) -> None:
        """Note that what `other` computes is computed by `group` from now on."""
        self._made[group] = self._made.get(group, 0) + self._made.pop(other, 0)


class _Block:
    """The operations of one graph or region, and the groups of them.

    Args:
        operations: in program order.
        rule: what may be fused.
        plain: operations that join only what is elementwise like themselves.
    """

    def __init__(self, operations: Sequence[Operation], rule: FusionRule, plain: set[Operation]) -> None:
        self.operations = operations
        self.rule = rule
        self.plain = plain
        self.groups: list[_Group] = []
        self.group_of: dict[Operation, _Group] = {}
        self.behind: _Behind = {}
        self.forms: dict[Operation, Form] = {}
        self.absorbed: dict[Dependent, Dependent] = {}  # groups that have become part of others
        self._order = itertools.count()

    def group(self) -> list[_Group]:
        """Find the groups."""
        earlier = earlier_effects(self.operations)
        for operation in self.operations:
            sources = [tensor.operation for tensor in operation.inputs]
            sources += [*operation.control_inputs, *earlier.get(operation, ())]
            group = self._take(operation)
            if group is None:
                self._pass_by(operation, sources)
                continue
            group.members.append(operation)
            for source in sources:
                if self.group_of.get(source) is not group:  # what stands for a part of the group is no need of it
                    for other in in_order(self._below(source)):
                        group.add_need(other)
            self.group_of[operation] = group
            self.behind[operation] = frozenset([group])
            self._merge_sources(operation, group)
        return [group for group in self.groups if group.members]

    def _below(self, operation: Operation) -> frozenset[Dependent]:
        """The groups on which an operation's results depend directly."""
        return frozenset(self._stands_for(group) for group in self.behind.get(operation, ()))

    def _stands_for(self, group: Dependent) -> Dependent:
        """The group of which another has become a part, or itself."""
        while group in self.absorbed:
            group = self.absorbed[group]
        return group

    def _pass_by(self, operation: Operation, sources: Iterable[Operation]) -> None:
        nothing: frozenset[Dependent] = frozenset()
        below = nothing.union(*[self._below(source) for source in sources])
        self.behind[operation] = below if len(below) <= _MOST_BEHIND else frozenset([self._all_of(below)])

    def _all_of(self, parts: Iterable[Dependent]) -> Dependent:
        """Something that depends on all `parts`, to stand for them."""
        whole = Dependent(next(self._order))
        for part in in_order(parts):
            whole.add_need(part)
        return whole

    # --- joining --------------------------------------------------------------------------------------------

    def _take(self, operation: Operation) -> _Group | None:
        """The group that `operation` joins, or begins; None if it can't be fused."""
        is_plain = operation in self.plain
        form = form_of(operation, self.rule, is_plain)
        if form is None:
            return None
        self.forms[operation] = form
        shape = operation.outputs[0].shape if is_plain else None
        operands = _Operands(self.taken(operation), self.group_of)
        for group in operands.groups:
            if not operands.fit_with(group) or (group.device, group.shape) != (operation.device, shape):
                continue
            if self._joins(operation, form, group):
                return group
        space = founding_space(operation, form)
        placed = None if space is None else place(operation, form, space, [None] * len(form.inputs))
        if placed is None:
            return None
        group = _Group(next(self._order), placed.space, operation.device, shape)
        group.placed[operation] = placed
        self.groups.append(group)
        return group

    def _joins(self, operation: Operation, form: Form, group: _Group) -> bool:
        """Let `operation` join the group of a source, if that is not also reached around some other way."""
        if not self._fits([*group.members, operation]):
            return False
        sources = dict.fromkeys(tensor.operation for tensor in operation.inputs)
        others = [g for s in sources if self.group_of.get(s) is not group for g in self._below(s)]
        if any(other.may_depend_on(group) for other in others):
            return False
        for rebase in _rebases(operation, group):
            try:
                known = [self._known(operation.inputs[position], group, rebase) for position in form.inputs]
                placed = place(operation, form, rebase.space, known)
                if placed is None:
                    continue
                group.shift_by(placed.space, rebase.shift)
            except ValueError:
                continue
            group.placed[operation] = placed
            return True
        return False

    def _known(self, tensor: Symbol, group: _Group, rebase: _Rebase) -> Layout | None:
        """The layout of a tensor that the group computes; None for others."""
        if self.group_of.get(tensor.operation) is not group:
            return None
        return rebase.shift(self._layout(tensor, group))

    def _layout(self, tensor: Symbol, group: _Group) -> Layout:
        """Return the layout of a tensor that the group computes, in the group's space."""
        form, placed = self.forms[tensor.operation], group.placed[tensor.operation]
        return (*placed.inputs, *placed.steps)[form.results[tensor.index]]

    def _fits(self, members: Iterable[Operation]) -> bool:
        inside = dict.fromkeys(members)
        inputs = {t for member in inside for t in self.taken(member) if t.operation not in inside}
        return len(inputs) <= _MOST_OPERANDS and len(inputs) + len(inside) <= _MOST_MEMBERS

    def taken(self, operation: Operation) -> list[Symbol]:
        """The inputs of an operation that its kernel needs."""
        return [operation.inputs[position] for position in self.forms[operation].inputs]

    # --- merging --------------------------------------------------------------------------------------------

    def _merge_sources(self, operation: Operation, group: _Group) -> None:
        """Join the groups of the other sources of `operation` to its own, where no other operation is between them."""
        taken = self.taken(operation)
        operands = _Operands(taken, self.group_of)
        for tensor in taken:
            other = self.group_of.get(tensor.operation)
            if other is None or other is group or (other.device, other.shape) != (group.device, group.shape):
                continue
            if not operands.fit_with(group, other):
                continue
            if self._may_merge(group, other) and self._place_together(group, other):
                group.members = sorted({*group.members, *other.members}, key=lambda member: member.index)
                for member in other.members:
                    self.group_of[member] = group
                other.members = []
                self.absorbed[other] = group
                group.take_over(other)
                operands.absorb(group, other)

    def _may_merge(self, group: _Group, other: _Group) -> bool:
        """Test whether one operation could compute both groups."""
        members = {*group.members, *other.members}
        if not self._fits(members):
            return False
        between = [need for need in group.needs if need is not other and need.may_depend_on(other)]
        outside = [g for m in group.members for t in m.inputs if t.operation not in members
                   for g in self._below(t.operation)]  # fmt: skip
        return not (between or any(g.may_depend_on(other) for g in outside) or other.may_depend_on(group))

    def _place_together(self, group: _Group, other: _Group) -> bool:
        """Lay both groups in one space, if each finds the other's values where it takes them."""
        small, large = (group, other) if group.space.size < other.space.size else (other, group)
        embedding = self._embedding(group, other, small)
        if embedding is None or not embedding.is_whole(small.space.size):
            return False
        space = large.space.embedded(small.space, embedding)
        try:
            placed = large.placed | {m: p.shifted_by(embedding.layout) for m, p in small.placed.items()}
        except ValueError:
            return False
        space = None if space is None else self._agreed(group, other, placed, space)
        if space is None:
            return False
        group.space, group.placed = space, placed
        return True

    def _embedding(self, group: _Group, other: _Group, small: _Group) -> Embedding | None:
        """Return the place of the smaller group in the other's space, by a value of `other` that `group` takes."""
        for member in reversed(group.members):
            for tensor, layout in zip(self.taken(member), group.placed[member].inputs, strict=True):
                if self.group_of.get(tensor.operation) is other:
                    made = self._layout(tensor, other)
                    found = Embedding(layout, made) if small is group else Embedding(made, layout)
                    if found.is_whole(small.space.size):
                        return found
        return None

    def _agreed(self, group: _Group, other: _Group, placed: dict[Operation, Placed], space: Space) -> Space | None:
        """The space of both groups; None if one takes a value elsewhere than where the other computes it."""
        current: Space | None = space
        for member in group.members:
            for tensor, layout in zip(self.taken(member), placed[member].inputs, strict=True):
                if current is None or self.group_of.get(tensor.operation) is not other:
                    continue
                form, source = self.forms[tensor.operation], placed[tensor.operation]
                if (*source.inputs, *source.steps)[form.results[tensor.index]] != layout:
                    return None
                current = current.using(layout)
        return current


def _rebases(operation: Operation, group: _Group) -> Iterable[_Rebase]:
    """The spaces in which an operation may join a group: its own, or, for parts that are put together, a larger one."""
    if operation.op.kernel_role is not KernelRole.JOIN:
        return [_Rebase(group.space)]
    parts = parts_of_joined(operation)
    larger = group.space.rebased(parts)
    return [_Rebase(group.space), *([] if larger is None else [_Rebase(larger, parts)])]


# --- blocks ---------------------------------------------------------------------------------------------------------


def fuse(graph: Graph, operations: Sequence[Operation], kept: Iterable[Symbol], rule: FusionRule) -> None:
    """Fuse in `graph`, of which `operations` are needed, and in all regions inside.

    Args:
        kept: tensors whose values are wanted from outside: fetches.
    """
    _fuse_block(graph, operations, kept_of(graph, operations, kept), rule)


def _fuse_block(graph: Graph, operations: Sequence[Operation], kept: Kept, rule: FusionRule) -> None:
    for operation in operations:
        for region, inside, wanted in inner_blocks(operation, kept):
            _fuse_block(region, inside, wanted, rule)
    takes_all = is_on("reductions")
    plain = set[Operation]() if takes_all else set(operations)
    replaced: dict[Operation, Operation] = {}
    for attempt in range(_ATTEMPTS):
        block = _Block(operations, rule, plain)
        groups = [group for group in block.group() if _is_worthwhile(group, block.forms)]
        used = _used_outside(operations, groups) | kept.own
        rewrites = [_Rewrite(graph, block, group, used) for group in groups]
        refused = [rewrite for rewrite in rewrites if attempt < _ATTEMPTS - 1 and not rule.has_kernel(rewrite.fused)]
        if not refused:
            for rewrite in rewrites:
                rewrite.tell()
                replaced.update(rewrite.apply())
            break
        plain = plain.union(*[rewrite.group.members for rewrite in refused])
    if replaced:
        reorder(graph, replaced)


def _is_worthwhile(group: _Group, forms: Mapping[Operation, Form]) -> bool:
    """Two operations or more that go through memory; or one that NumPy computes in several passes, or on one core."""
    passes = sum(_passes(member.op, forms[member]) for member in group.members)
    return passes > 1 or (
        passes == 1
        and group.space.size >= machine_profile().reduction_elements
        and any(forms[member].reduces for member in group.members)
    )


def _passes(op: Op, form: Form) -> int:
    """About how often NumPy goes through memory for an op, counted up to 2."""
    if form.normalises:
        return 2
    if op.elementwise:
        return 1 if getattr(op, "ufunc", "none") is not None else 2
    return 0 if op.view and not form.reduces else 1


def _used_outside(operations: Sequence[Operation], groups: list[_Group]) -> set[Symbol]:
    group_of = {member: group for group in groups for member in group.members}
    used: set[Symbol] = set()
    for operation in operations:
        own = group_of.get(operation)
        for tensor in operation.inputs:
            if own is None or group_of.get(tensor.operation) is not own:
                used.add(tensor)
    return used


# --- rewriting ------------------------------------------------------------------------------------------------------


class _Rewrite:
    """One fused operation instead of the members of a group. Their tensors live on as its outputs.

    A change of shape whose result is used outside as well stays besides: as a view it costs nothing.
    """

    def __init__(self, graph: Graph, block: _Block, group: _Group, used: set[Symbol]) -> None:
        self.group = group
        self._block = block
        self._views = self._kept_views(used)
        wanted = used | {tensor for view in self._views for tensor in view.inputs}
        made = [tensor for member in group.members if member not in self._views for tensor in member.outputs]
        self.outputs = [tensor for tensor in made if tensor in wanted]
        inputs, op = self._fused()
        last = group.members[-1]
        location = location_of_several([member.location for member in group.members])
        self.fused = Operation(graph, op, inputs, (), last.name, last.device, (), location)
        self.fused.outputs = tuple(self.outputs)
        self.fused.index = last.index

    def _kept_views(self, used: set[Symbol]) -> set[Operation]:
        kept: set[Operation] = set()
        for member in reversed(self.group.members):
            is_used = any(t in used or any(is_among(t, view.inputs) for view in kept) for t in member.outputs)
            if is_used and self._block.forms[member].is_view:
                kept.add(member)
        return kept

    def _fused(self) -> tuple[tuple[Symbol, ...], Fused]:
        group, forms = self.group, self._block.forms
        members = set(group.members)
        is_plain = all(m.op.elementwise for m in group.members) and len({m.outputs[0].shape for m in members}) == 1
        read: dict[tuple[Symbol, Layout], int] = {}
        for member in group.members:
            for tensor, layout in zip(self._block.taken(member), group.placed[member].inputs, strict=True):
                if tensor.operation not in members:
                    read.setdefault((tensor, () if is_plain else layout), len(read))
        numbers: dict[Symbol, int] = {}
        steps: list[tuple[Op, tuple[int, ...]]] = []
        layouts = [layout for _, layout in read]
        for member in group.members:
            form, placed = forms[member], group.placed[member]
            values = [
                numbers[tensor] if tensor.operation in members else read[tensor, () if is_plain else layout]
                for tensor, layout in zip(self._block.taken(member), placed.inputs, strict=True)
            ]
            for (op, arguments), layout in zip(form.steps, placed.steps, strict=True):
                values.append(len(read) + len(steps))
                steps.append((op, tuple(values[k] for k in arguments)))
                layouts.append(layout)
            numbers.update((tensor, values[k]) for tensor, k in zip(member.outputs, form.results, strict=True))
        results = tuple(numbers[tensor] for tensor in self.outputs)
        inputs = tuple(tensor for tensor, _ in read)
        if is_plain:
            return inputs, Fused(len(inputs), tuple(steps), results)
        needed = sorted(_needed(len(inputs), steps, results))
        place_of = {value: position for position, value in enumerate(needed)}
        count = sum(value < len(inputs) for value in needed)
        taken = [steps[value - len(inputs)] for value in needed[count:]]
        op = Fused(
            count,
            tuple((step, tuple(place_of[k] for k in arguments)) for step, arguments in taken),
            tuple(place_of[k] for k in results),
            tuple(layouts[value] for value in needed),
            group.space.parts,
            group.space.size,
        )
        return tuple(inputs[value] for value in needed[:count]), op

    def tell(self) -> None:
        """Note what became one kernel, and what of it are reductions."""
        if not is_recording():
            return
        steps = [step for step, _ in self.fused.op.steps] if isinstance(self.fused.op, Fused) else []
        listed = ", ".join(step.type_name for step in steps)
        several = f"{len(steps)} operations are one kernel: {listed}"
        note_change("fuse", self.fused, several if len(steps) > 1 else "is one kernel, not several passes over memory")
        for member in self.group.members:
            others = [other.name for other in self.group.members if other is not member and not other.op.view]
            if others and not member.op.elementwise and not member.op.view:
                home = others[0] if member.name == self.fused.name else self.fused.name
                note_change("reductions", member, f"is taken in one kernel with {home!r}")

    def apply(self) -> dict[Operation, Operation]:
        """Put the fused operation in the members' place; returns what it replaces."""
        for position, tensor in enumerate(self.outputs):
            tensor.operation, tensor.index = self.fused, position
        return {member: self.fused for member in self.group.members if member not in self._views}


def _needed(count: int, steps: Sequence[tuple[Op, tuple[int, ...]]], results: Iterable[int]) -> set[int]:
    """The values that the results need."""
    found: set[int] = set()
    pending = list(results)
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending.extend(steps[value - count][1] if value >= count else ())
    return found
