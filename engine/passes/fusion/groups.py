"""Groups of operations that one kernel may compute, which fusion makes of the operations of a block.

An operation joins the group of an operation whose result it takes, if it has a place in the space through which the
group's kernel runs (see `fusible`) and no path between them leads through operations outside the group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from ...common.cached import cached_property
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.kernel_roles import KernelRole
from ...graph.spec import Spec, TensorSpec
from ...graph.tensor import Symbol
from ..framework.acyclic import Dependent, in_order
from ..framework.order import earlier_effects
from ..framework.prune import users_of
from ..framework.sizes import KnownSizes
from .epilogues import PRODUCTS
from .fusible import Form, FusionRule, Placed, form_of, founding_space, parts_of_joined, place, specs_of
from .iteration_spaces import Embedding, Interval, Layout, Space, layout_with_sizes, shifted
from .stand_ins import is_unknown

__all__ = ["Block", "Group"]

_MOST_OPERANDS = 28
_MOST_MEMBERS = 100  # and operands
_MOST_BEHIND = 16
_MOST_READERS = 8  # of one array, among which a group looks for one to join

_NOTHING: frozenset[Dependent] = frozenset()
_Behind = dict[Operation, frozenset[Dependent]]  # the groups on which an operation's results depend directly


class Group(Dependent):
    """Operations that may become one; it depends on groups whose results it needs.

    Attributes:
        space: through which its kernel runs.
        device: of its operations.
        shape: of all results, if it takes elementwise operations only.
        members: in program order.
        placed: the layout of each member's values in the space.
        operands: the tensors that members need and none of them computes.
    """

    def __init__(self, order: int, space: Space, device: str, shape: tuple[int | None, ...] | None) -> None:
        super().__init__(order)
        self.space = space
        self.device = device
        self.shape = shape
        self.members: list[Operation] = []
        self.placed: dict[Operation, Placed] = {}
        self.operands: set[Symbol] = set()

    def operands_with(self, taken: Iterable[Symbol], count: int, made: Container[Operation] = ()) -> set[Symbol] | None:
        """Return the operands with `count` more members, which take `taken` and are `made`; None if too many."""
        operands = {t for t in self.operands if t.operation not in made} if made else set(self.operands)
        operands.update([tensor for tensor in taken if tensor.operation not in self.placed])
        is_small = len(operands) <= _MOST_OPERANDS and len(operands) + len(self.placed) + count <= _MOST_MEMBERS
        return operands if is_small else None

    def shift_by(self, space: Space, shift: Callable[[Layout], Layout]) -> None:
        """Place the values of the members in another space.

        Raises:
            ValueError: `shift` can't place one; the group stays as it is.
        """
        self.placed = {member: placed.shifted_by(shift) for member, placed in self.placed.items()}
        self.space = space


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

    def __init__(self, taken: Sequence[Symbol], group_of: Mapping[Operation, Group]) -> None:
        self._count = len(set(taken))
        self._made: dict[Group, int] = {}
        for tensor in dict.fromkeys(reversed(taken)):
            group = group_of.get(tensor.operation)
            if group is not None:
                self._made[group] = self._made.get(group, 0) + 1
        self.groups = list(self._made)

    def fit_with(self, *groups: Group) -> bool:
        """Test whether one kernel could take those operands that none of these groups computes."""
        return self._count - sum([self._made.get(group, 0) for group in groups]) <= _MOST_OPERANDS

    def absorb(self, group: Group, other: Group) -> None:
        """Note that what `other` computes is computed by `group` from now on."""
        self._made[group] = self._made.get(group, 0) + self._made.pop(other, 0)


class Block:
    """The operations of one graph or region, and the groups of them.

    Args:
        operations: in program order.
        rule: what may be fused.
        plain: operations that join only what is elementwise like themselves.
        kept: tensors whose values are wanted from outside.
        sizes: those that are not known; without them operations over such are left alone.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        rule: FusionRule,
        plain: set[Operation],
        kept: set[Symbol],
        sizes: KnownSizes | None,
    ) -> None:
        self.operations = operations
        self.rule = rule
        self.plain = plain
        self.kept = kept
        self.sizes = sizes
        self.specs: dict[Operation, Sequence[Spec]] = {}
        self.groups: list[Group] = []
        self.group_of: dict[Operation, Group] = {}
        self.behind: _Behind = {}
        self.forms: dict[Operation, Form] = {}
        self._taken: dict[Operation, list[Symbol]] = {}
        self.absorbed: dict[Dependent, Dependent] = {}  # groups that have become part of others
        self._order = itertools.count()

    def group(self) -> list[Group]:
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
        self._merge_readers()
        return [group for group in self.groups if group.members]

    def _below(self, operation: Operation) -> frozenset[Dependent]:
        """Return the groups on which an operation's results depend directly."""
        below = self.behind.get(operation, _NOTHING)
        if self.absorbed.keys().isdisjoint(below):  # of two sets the smaller one is walked; of a dict, all of it
            return below
        return frozenset(self._stands_for(group) for group in below)

    def _stands_for(self, group: Dependent) -> Dependent:
        """Return the group of which another has become a part, or itself."""
        while group in self.absorbed:
            group = self.absorbed[group]
        return group

    def _pass_by(self, operation: Operation, sources: Iterable[Operation]) -> None:
        below = _NOTHING.union(*[self._below(source) for source in sources])
        self.behind[operation] = below if len(below) <= _MOST_BEHIND else frozenset([self._all_of(below)])

    def _all_of(self, parts: Iterable[Dependent]) -> Dependent:
        """Return something that depends on all `parts`, to stand for them."""
        whole = Dependent(next(self._order))
        for part in in_order(parts):
            whole.add_need(part)
        return whole

    # --- joining --------------------------------------------------------------------------------------------

    def _take(self, operation: Operation) -> Group | None:
        """Return the group that `operation` joins, or begins; None if it can't be fused."""
        is_plain = operation in self.plain
        specs = specs_of(operation, self.sizes)
        form = form_of(operation, specs, self.rule, is_plain)
        if form is None:
            return None
        self.forms[operation], self.specs[operation] = form, specs
        shape = self.shape_of(operation) if is_plain else None
        operands = _Operands(self.taken(operation), self.group_of)
        for group in operands.groups:
            if not operands.fit_with(group) or (group.device, group.shape) != (operation.device, shape):
                continue
            if self._joins(operation, form, group):
                return group
        space = founding_space(operation, form, specs)
        placed = None if space is None else place(form, specs, space, [None] * len(form.inputs))
        if placed is None:
            return None
        group = Group(next(self._order), placed.space, operation.device, shape)
        group.placed[operation] = placed
        group.operands.update(self.taken(operation))
        self.groups.append(group)
        return group

    def _joins(self, operation: Operation, form: Form, group: Group) -> bool:
        """Let `operation` join the group of a source, if that is not also reached around some other way."""
        operands = group.operands_with(self.taken(operation), 1)
        if operands is None:
            return False
        sources = dict.fromkeys(tensor.operation for tensor in operation.inputs)
        others = [g for s in sources if self.group_of.get(s) is not group for g in self._below(s)]
        if any(other.may_depend_on(group) for other in others):
            return False
        if not self._with_sizes_of(operation, group, lambda: self._finds_place(operation, form, group)):
            return False
        group.operands = operands
        return True

    def _finds_place(self, operation: Operation, form: Form, group: Group) -> bool:
        for rebase in _rebases(operation, group):
            try:
                known = [self._known(operation.inputs[position], group, rebase) for position in form.inputs]
                placed = place(form, self.specs[operation], rebase.space, known)
                if placed is None:
                    continue
                if rebase.parts is not None:
                    group.shift_by(placed.space, rebase.shift)
            except ValueError:
                continue
            group.space = placed.space
            group.placed[operation] = placed
            return True
        return False

    def shape_of(self, operation: Operation) -> tuple[int | None, ...] | None:
        """Return the shape of the first result of an operation that has a form."""
        result = self.specs[operation][len(operation.inputs)]
        return result.shape if isinstance(result, TensorSpec) else None

    def _known(self, tensor: Symbol, group: Group, rebase: _Rebase) -> Layout | None:
        """Return the layout of a tensor that the group computes; None for others."""
        if self.group_of.get(tensor.operation) is not group:
            return None
        return rebase.shift(self._layout(tensor, group))

    def _layout(self, tensor: Symbol, group: Group) -> Layout:
        """Return the layout of a tensor that the group computes, in the group's space."""
        form, placed = self.forms[tensor.operation], group.placed[tensor.operation]
        return (*placed.inputs, *placed.steps)[form.results[tensor.index]]

    def taken(self, operation: Operation) -> list[Symbol]:
        """Return the inputs of an operation that its kernel needs."""
        known = self._taken.get(operation)
        if known is None:
            inputs = operation.inputs
            known = self._taken[operation] = [inputs[position] for position in self.forms[operation].inputs]
        return known

    # --- sizes that are not known ---------------------------------------------------------------------------

    def _with_sizes_of(self, operation: Operation, group: Group, try_it: Callable[[], bool]) -> bool:
        """Try something with a group that computes for the sizes for which `operation` takes its values.

        An operand that may turn out to be broadcast is broadcast before the group computes, if nothing else uses what
        the group makes of it; otherwise the operation can't be of the group.
        """
        pairs = self._other_sizes(operation, group) if is_unknown(group.space.size) else set[tuple[int, int]]()
        if not pairs:
            return try_it()
        sizes = dict(pairs)
        if len(sizes) < len(pairs):
            return False  # one size would be two
        inside = {*group.members, operation}
        made = [tensor for member in group.members for tensor in member.outputs]
        if not all(member.op.elementwise for member in inside):
            return False
        if any(tensor in self.kept or not inside.issuperset(self._users[tensor]) for tensor in made):
            return False
        space, placed, specs = group.space, group.placed, {member: self.specs[member] for member in group.members}
        group.shift_by(space.with_sizes(sizes), lambda layout: layout_with_sizes(layout, sizes))
        self.specs.update((member, [_with_sizes(spec, sizes) for spec in own]) for member, own in specs.items())
        if try_it():
            return True
        group.space, group.placed = space, placed
        self.specs.update(specs)
        return False

    def _other_sizes(self, operation: Operation, group: Group) -> set[tuple[int, int]]:
        """Return the sizes of what an operation takes from a group that differ from those for which it takes them."""
        found: set[tuple[int, int]] = set()
        for tensor, taken in zip(operation.inputs, self.specs[operation], strict=False):
            source = tensor.operation
            if self.group_of.get(source) is group:
                own = self.specs[source][len(source.inputs) + tensor.index]
                found.update(zip(_shape(own), _shape(taken), strict=True))
        return {(own, other) for own, other in found if own != other}

    @cached_property
    def _users(self) -> dict[Symbol, list[Operation]]:
        return users_of(self.operations)

    # --- merging --------------------------------------------------------------------------------------------

    def _merge_sources(self, operation: Operation, group: Group) -> None:
        """Join the groups of the other sources of `operation` to its own, where no other operation is between them."""
        taken = self.taken(operation)
        if all(self.group_of.get(tensor.operation, group) is group for tensor in taken):
            return
        operands = _Operands(taken, self.group_of)
        for tensor in taken:
            other = self.group_of.get(tensor.operation)
            if other is None or other is group or (other.device, other.shape) != (group.device, group.shape):
                continue
            if not operands.fit_with(group, other):
                continue
            if self._may_merge(group, other) and self._place_taken(operation, group, other):
                self._absorb(group, other)
                operands.absorb(group, other)

    def _place_taken(self, operation: Operation, group: Group, other: Group) -> bool:
        """Lay both groups in one space; an operation of the first takes values of the other."""
        return self._with_sizes_of(
            operation, other, lambda: self._place_together(group, other, self._embedding(group, other))
        )

    def _absorb(self, group: Group, other: Group) -> None:
        """Make the members of another group those of a group in whose space they have been placed."""
        group.members = sorted({*group.members, *other.members}, key=lambda member: member.index)
        for member in other.members:
            self.group_of[member] = group
        other.members = []
        group.operands = {t for t in group.operands | other.operands if t.operation not in group.placed}
        self.absorbed[other] = group
        group.take_over(other)

    def _merge_readers(self) -> None:
        """Join groups that run through the same array of unknown size: it is read once then.

        Nothing is known of such an array but that it may be large.
        """
        readers: dict[tuple[Symbol, Layout], list[Group]] = {}
        for group in self.groups:
            for tensor, layout in self._read_whole(group) if group.members and is_unknown(group.space.size) else ():
                known = readers.setdefault((tensor, layout), [])
                for other in known[-_MOST_READERS:]:
                    if other.members and group is not other and self._may_join_reader(group, other, layout):
                        self._absorb(group, other)
                known.append(group)

    def _may_join_reader(self, group: Group, other: Group, layout: Layout) -> bool:
        """Place both groups in one space, if they may be one; a value of this layout fills that of each."""
        if (other.device, other.shape) != (group.device, group.shape) or not self._may_merge(group, other):
            return False
        return self._place_together(group, other, Embedding(layout, layout))

    def _read_whole(self, group: Group) -> list[tuple[Symbol, Layout]]:
        """Return the tensors that a group reads and that are as large as its space, with their layouts."""
        found = [
            (tensor, layout)
            for member in group.members
            for tensor, layout in zip(self.taken(member), group.placed[member].inputs, strict=True)
            if self.group_of.get(tensor.operation) is not group and not group.space.missing(layout)
            if not isinstance(tensor.operation.op, PRODUCTS)  # which may compute what takes their results first
        ]
        return list(dict.fromkeys(found))

    def _may_merge(self, group: Group, other: Group) -> bool:
        """Test whether one operation could compute both groups."""
        if group.operands_with(other.operands, len(other.placed), other.placed) is None:
            return False
        members = {*group.members, *other.members}
        between = [need for need in group.needs if need is not other and need.may_depend_on(other)]
        outside = [g for m in group.members for t in m.inputs if t.operation not in members
                   for g in self._below(t.operation)]  # fmt: skip
        return not (between or any(g.may_depend_on(other) for g in outside) or other.may_depend_on(group))

    def _place_together(self, group: Group, other: Group, embedding: Embedding | None) -> bool:
        """Lay both groups in one space, if each finds the other's values where it takes them.

        Args:
            group, other: the groups; the space will be the first one's.
            embedding: the place of the smaller one's space in the other's.
        """
        small, large = _by_size(group, other)
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

    def _embedding(self, group: Group, other: Group) -> Embedding | None:
        """Return the place of the smaller group in the other's space, by a value of `other` that `group` takes.

        Values that are the same part of two arrays fill neither space, but these have the same axes.
        """
        small, _ = _by_size(group, other)
        for member in reversed(group.members):
            for tensor, layout in zip(self.taken(member), group.placed[member].inputs, strict=True):
                if self.group_of.get(tensor.operation) is other:
                    made = self._layout(tensor, other)
                    found = Embedding(layout, made) if small is group else Embedding(made, layout)
                    if found.is_whole(small.space.size):
                        return found
        space = group.space
        if space.parts is None or (space.size, space.parts) != (other.space.size, other.space.parts):
            return None
        return Embedding(((1, space.size),), ((1, space.size),))

    def _agreed(self, group: Group, other: Group, placed: dict[Operation, Placed], space: Space) -> Space | None:
        """Return the space of both groups; None if one takes a value elsewhere than where the other computes it."""
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


def _shape(spec: Spec) -> list[int]:
    return [size or 0 for size in (spec.shape if isinstance(spec, TensorSpec) else None) or ()]


def _with_sizes(spec: Spec, sizes: Mapping[int, int]) -> Spec:
    """Return the spec of what is computed for other sizes."""
    if not isinstance(spec, TensorSpec):
        return spec
    return TensorSpec(tuple([sizes.get(size, size) for size in _shape(spec)]), spec.dtype)


def _by_size(group: Group, other: Group) -> tuple[Group, Group]:
    """Return the group of the smaller space, and the one of the larger space."""
    return (group, other) if group.space.size < other.space.size else (other, group)


def _rebases(operation: Operation, group: Group) -> Iterable[_Rebase]:
    """Return the spaces in which an operation may join a group: its own, or a larger one for parts put together."""
    if operation.op.kernel_role is not KernelRole.JOIN:
        return [_Rebase(group.space)]
    parts = parts_of_joined(operation)
    larger = group.space.rebased(parts)
    return [_Rebase(group.space), *([] if larger is None else [_Rebase(larger, parts)])]
