"""Fusion: chains of elementwise operations, reductions and changes of shape become one operation, which one kernel
computes.

Works on a step's own graph (see `specialise`), loop bodies and branches included. `groups` finds what belongs together.
Sizes that are known at run time only are as good as others: `framework.sizes` finds which are equal, `stand_ins` has
numbers for them.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence

from ...common.identity import is_among
from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation, Parameter
from ...graph.kernel_roles import KernelRole
from ...graph.op import Op
from ...graph.provenance import location_of_several
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ...ops.internal.fused import Fused
from ..framework import changes
from ..framework.estimates import size_of
from ..framework.log import is_recording, note_change
from ..framework.order import reorder
from ..framework.prune import Kept, inner_blocks
from ..framework.sizes import KnownSizes
from ..framework.switches import is_on
from .fusible import Form, FusionRule
from .groups import Block, Group
from .iteration_spaces import Layout
from .stand_ins import laid_out_with, stand_in, unknown_sizes

__all__ = ["FusionRule", "fuse"]

_ATTEMPTS = 4


# --- blocks ---------------------------------------------------------------------------------------------------------


def fuse(operations: Sequence[Operation], kept: Kept, rule: FusionRule, sizes: KnownSizes | None = None) -> bool:
    """Fuse operations of a step, and in all regions inside; return whether anything was fused.

    Args:
        operations: those that are needed, in program order.
        kept: tensors whose values are wanted from outside of their block.
        rule: what kernels can compute.
        sizes: those that are known at run time only; without them operations over such are left alone.
    """
    return _Fusion(rule, sizes).fuse(operations, kept)


class _Fusion:
    """Fusion in the blocks of one step; in those of one form the same is fused, which is found once."""

    def __init__(self, rule: FusionRule, sizes: KnownSizes | None) -> None:
        self._rule = rule
        self._sizes = sizes
        self._known: dict[Hashable, list[_Found]] = {}

    def fuse(self, operations: Sequence[Operation], kept: Kept) -> bool:
        """Fuse in a block, and before that in those inside; return whether anything was fused."""
        is_changed = False
        for operation in operations:
            for inside, wanted in inner_blocks(operation, kept):
                is_changed |= self.fuse(inside, wanted)
        form = _form_of_block(operations, kept.own)
        found = None if form is None else self._known.get(form)
        if found is None:
            rewrites = self._found_in(operations, kept.own)
            if form is not None:
                self._known[form] = [_Found.of(rewrite, operations) for rewrite in rewrites]
        else:
            rewrites = [each.in_block(operations) for each in found]
        replaced: dict[Operation, Operation] = {}
        for rewrite in rewrites:
            rewrite.note_groups()
            replaced.update(rewrite.apply())
        if replaced:
            reorder(kept.graph, replaced)
        return is_changed or bool(rewrites)

    def _found_in(self, operations: Sequence[Operation], kept: set[Symbol]) -> list[_Rewrite]:
        """Find what is fused in a block, and has kernels."""
        takes_all = is_on("reductions")
        plain = set[Operation]() if takes_all else set(operations)
        for _ in range(_ATTEMPTS - 1):
            rewrites = self._attempt(operations, kept, plain)
            refused = [rewrite for rewrite in rewrites if not self._rule.has_kernel(rewrite.fused)]
            if not refused:
                return rewrites
            plain = plain.union(*[rewrite.partial or rewrite.members for rewrite in refused])
        return self._attempt(operations, kept, plain)

    def _attempt(self, operations: Sequence[Operation], kept: set[Symbol], plain: set[Operation]) -> list[_Rewrite]:
        block = Block(operations, self._rule, plain, kept, self._sizes)
        groups = [group for group in block.group() if _is_worthwhile(group, block.forms)]
        used = _used_outside(operations, groups) | kept
        found = [_rewrite_of(block, group, used) for group in groups]
        return [rewrite for rewrite in found if rewrite is not None]


def _form_of_block(operations: Sequence[Operation], kept: set[Symbol]) -> Hashable:
    """Return all of a block that decides which of its operations are fused; None if that is not seen from the block.

    Blocks of equal forms hold equal ops over tensors of equal specs in the same places, on the same devices.
    """
    numbers: dict[Symbol, int] = {}
    facts: list[Hashable] = []
    for operation in operations:
        op = operation.op
        if op.regions or operation.effects or operation.control_inputs:
            return None
        if not all(tensor in numbers for tensor in operation.inputs):
            return None  # it is fed
        if isinstance(op, Constant):
            facts.append(op.value.tobytes() if op.value.size == 1 else Constant)
        else:
            facts.append(Parameter if isinstance(op, Parameter) else op)
        facts.append((operation.device, *[numbers[tensor] for tensor in operation.inputs]))
        for tensor in operation.outputs:
            if isinstance(tensor.spec, TensorSpec) and not tensor.spec.is_static:
                return None  # which sizes are equal is known by tensors
            numbers[tensor] = len(numbers)
            facts.append((tensor.spec, tensor in kept))
    form = tuple(facts)
    try:
        hash(form)
    except TypeError:
        return None
    return form


def _is_worthwhile(group: Group, forms: Mapping[Operation, Form]) -> bool:
    """Test whether a group has two operations through memory; or one that NumPy does slowly, or on one core."""
    passes = sum(_passes(member, forms[member]) for member in group.members)
    if passes != 1:
        return passes > 1
    return any(_is_slow(member, forms[member]) for member in group.members) or (
        group.space.size >= machine_profile().single_elements
        and any(_is_elementwise(member) for member in group.members)
    )


def _is_slow(operation: Operation, form: Form) -> bool:
    """Test whether NumPy takes long for an operation of any size: a reduction, or a loop for each of short rows."""
    if form.reduces or _is_copied(operation):
        return True
    shapes = {tensor.shape for tensor in operation.inputs} - {()}
    return len(shapes) > 1 and _is_elementwise(operation)


def _is_elementwise(operation: Operation) -> bool:
    """Test whether an operation is elementwise, and of known sizes: those of other sizes have kernels by themselves."""
    result = operation.outputs[0].spec
    return operation.op.elementwise and isinstance(result, TensorSpec) and result.is_static


def _passes(operation: Operation, form: Form) -> int:
    """Estimate how often NumPy goes through memory for an operation, counted up to 2."""
    op = operation.op
    if form.normalises:
        return 2
    if op.elementwise:
        return 1 if getattr(op, "ufunc", "none") is not None else 2
    return int(form.reduces or not op.view or _is_copied(operation))


def _is_copied(operation: Operation) -> bool:
    """Test whether NumPy copies what an operation reshapes, as it is broadcast."""
    if operation.op.kernel_role is not KernelRole.RESHAPE:
        return False
    source = operation.inputs[0].operation
    return source.op.kernel_role is KernelRole.BROADCAST and size_of(source.outputs[0]) > size_of(source.inputs[0])


def _used_outside(operations: Sequence[Operation], groups: list[Group]) -> set[Symbol]:
    group_of = {member: group for group in groups for member in group.members}
    used: set[Symbol] = set()
    for operation in operations:
        own = group_of.get(operation)
        for tensor in operation.inputs:
            if own is None or group_of.get(tensor.operation) is not own:
                used.add(tensor)
    return used


# --- rewriting ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """A fused operation as it is in each block of a form, by the places of operations in the block.

    Attributes:
        members: those that it computes.
        views: those of them that stay besides.
        inputs, outputs: tensors, as the place of an operation and the number of its output.
        op: what computes them.
    """

    members: tuple[int, ...]
    views: tuple[int, ...]
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]
    op: Fused

    @classmethod
    def of(cls, rewrite: _Rewrite, operations: Sequence[Operation]) -> _Found:
        """Take the places of what a rewrite names that was not applied yet."""
        places = {operation: place for place, operation in enumerate(operations)}
        inputs, outputs = (
            tuple([(places[tensor.operation], tensor.index) for tensor in tensors])
            for tensors in (rewrite.fused.inputs, rewrite.outputs)
        )
        members = tuple([places[member] for member in rewrite.members])
        views = tuple([place for place in members if operations[place] in rewrite.views])
        assert isinstance(rewrite.fused.op, Fused)
        return cls(members, views, inputs, outputs, rewrite.fused.op)

    def in_block(self, operations: Sequence[Operation]) -> _Rewrite:
        """Return the rewrite of another block of the form."""
        inputs, outputs = (
            [operations[place].outputs[number] for place, number in tensors] for tensors in (self.inputs, self.outputs)
        )
        views = {operations[place] for place in self.views}
        return _Rewrite([operations[place] for place in self.members], views, outputs, tuple(inputs), self.op)


class _Rewrite:
    """One fused operation instead of the members of a group. Their tensors live on as its outputs.

    Attributes:
        partial: those members that reduce a value which does not fill the space. Kernels may lack these alone.
    """

    def __init__(
        self,
        members: Sequence[Operation],
        views: set[Operation],
        outputs: list[Symbol],
        inputs: tuple[Symbol, ...],
        op: Fused,
        partial: Sequence[Operation] = (),
    ) -> None:
        self.members = members
        self.partial = partial
        self.views = views
        self.outputs = outputs
        last = members[-1]
        location = location_of_several([member.location for member in members])
        specs = tuple([tensor.spec for tensor in outputs])  # it has tensors of its own until it is applied
        self.fused = Operation(last.graph, op, inputs, specs, last.name, last.device, (), location)
        self.fused.index = last.index

    def note_groups(self) -> None:
        """Note what became one kernel, and what of it are reductions."""
        if not is_recording():
            return
        steps = [step for step, _ in self.fused.op.steps] if isinstance(self.fused.op, Fused) else []
        listed = ", ".join(step.type_name for step in steps)
        several = f"{len(steps)} operations are one kernel: {listed}"
        note_change("fuse", self.fused, several if len(steps) > 1 else "is one kernel, not several passes over memory")
        for member in self.members:
            others = [other.name for other in self.members if other is not member and not other.op.view]
            if others and not member.op.elementwise and not member.op.view:
                home = others[0] if member.name == self.fused.name else self.fused.name
                note_change("reductions", member, f"is taken in one kernel with {home!r}")

    def apply(self) -> dict[Operation, Operation]:
        """Put the fused operation in the members' place; return what it replaces."""
        changes.set_outputs(self.fused, self.outputs)
        return {member: self.fused for member in self.members if member not in self.views}


def _rewrite_of(block: Block, group: Group, used: Container[Symbol]) -> _Rewrite | None:
    """Return the fused operation instead of a group; None if the group is only waited for.

    A change of shape whose result is used outside as well stays besides: as a view it costs nothing.
    """
    views = _kept_views(block, group, used)
    viewed = {tensor for view in views for tensor in view.inputs}
    made = [tensor for member in group.members if member not in views for tensor in member.outputs]
    outputs = [tensor for tensor in made if tensor in used or tensor in viewed]
    if not outputs:
        return None
    partial = [member for member in group.members if block.forms[member].reduces and _is_partial(group, member)]
    return _Rewrite(group.members, views, outputs, *_fused(block, group, outputs), partial)


def _is_partial(group: Group, member: Operation) -> bool:
    """Test whether a member has an operand that is the same along some axis of the group's space."""
    return any(group.space.missing(layout) for layout in group.placed[member].inputs)


def _kept_views(block: Block, group: Group, used: Container[Symbol]) -> set[Operation]:
    kept: set[Operation] = set()
    for member in reversed(group.members):
        is_used = any(t in used or any(is_among(t, view.inputs) for view in kept) for t in member.outputs)
        if is_used and block.forms[member].is_view and not _is_copied(member):
            kept.add(member)
    return kept


def _fused(block: Block, group: Group, outputs: Sequence[Symbol]) -> tuple[tuple[Symbol, ...], Fused]:
    """Return the operation that computes the outputs of a group, as its inputs and its op."""
    members = set(group.members)
    shapes = {block.shape_of(member) for member in members}
    is_plain = all(member.op.elementwise for member in members) and len(shapes) == 1
    read: dict[tuple[Symbol, Layout], int] = {}
    for member in group.members:
        for tensor, layout in zip(block.taken(member), group.placed[member].inputs, strict=True):
            if tensor.operation not in members:
                read.setdefault((tensor, () if is_plain else layout), len(read))
    numbers: dict[Symbol, int] = {}
    steps: list[tuple[Op, tuple[int, ...]]] = []
    layouts = [layout for _, layout in read]
    for member in group.members:
        form, placed = block.forms[member], group.placed[member]
        values = [
            numbers[tensor] if tensor.operation in members else read[tensor, () if is_plain else layout]
            for tensor, layout in zip(block.taken(member), placed.inputs, strict=True)
        ]
        for (op, arguments), layout in zip(form.steps, placed.steps, strict=True):
            values.append(len(read) + len(steps))
            steps.append((op, tuple(values[k] for k in arguments)))
            layouts.append(layout)
        numbers.update((tensor, values[k]) for tensor, k in zip(member.outputs, form.results, strict=True))
    results = tuple(numbers[tensor] for tensor in outputs)
    inputs = tuple(tensor for tensor, _ in read)
    if is_plain:
        return inputs, Fused(len(inputs), tuple(steps), results)
    whole = Fused(len(inputs), tuple(steps), results, tuple(layouts), group.space.parts, group.space.size)
    taken, op = whole.giving(results)
    return tuple([inputs[k] for k in taken]), _numbered(op)


def _numbered(op: Fused) -> Fused:
    """Return an op that is laid out with the first stand-ins, so that those that compute alike are equal."""
    unknown = unknown_sizes(op.layouts)
    return laid_out_with(op, {size: stand_in(k) for k, size in enumerate(unknown)}) if unknown else op
