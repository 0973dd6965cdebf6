"""The forms of operations in kernels: their steps, and the layouts of their results in the space of a group."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...common.dtypes import accumulator_of
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.kernel_roles import REDUCING, KernelRole
from ...graph.op import Op
from ...graph.spec import Spec, TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.shaping import BroadcastTo, Reshape
from ...ops.internal.fused import Fused, Part
from ...ops.internal.laid_out_int4 import Int4Panels
from ...ops.internal.laid_out_matmul import Panels
from ...ops.internal.packed import Layout as PackedLayout
from ...ops.math.reduced import Sum
from ..framework.sizes import KnownSizes
from .iteration_spaces import (
    MOST_JOINED,
    Layout,
    Shape,
    Space,
    broadcast_layout,
    canonical,
    joined_layout,
    operand_layout,
    part_layout,
    reduced_layout,
    reshaped_layout,
    space_of,
)
from .stand_ins import is_unknown, stand_in

Step = tuple[Op, tuple[int, ...]]


class FusionRule:
    """The rule for fusion, by which the runtime describes its kernels."""

    def can_fuse(self, op: Op, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        """Test whether kernels compute an elementwise op."""
        raise NotImplementedError

    def can_reduce(self, op: Op, input: TensorSpec) -> bool:
        """Test whether kernels compute a reduction, softmax or the like."""
        return False

    def can_move(self, spec: TensorSpec) -> bool:
        """Test whether kernels read and write such values."""
        return False

    def has_kernel(self, operation: Operation) -> bool:
        """Test whether there is a kernel for a fused operation, all in all."""
        return True

    def can_run_together(self, operation: Operation) -> bool:
        """Test whether kernels compute an elementwise fused operation over several sets of operands in one call."""
        return False

    def can_follow(self, operation: Operation) -> bool:
        """Test whether a `ProductThen` or `Int4MatMul` is one kernel, and faster than what it is made of."""
        return False

    def winograd_tile(self, operation: Operation) -> int:
        """Return the tile by which a convolution, or a gradient of one, is transformed; 0 if that does not pay."""
        return 0

    def layout(self, rows: int | None, weight: TensorSpec, transpose: bool) -> PackedLayout | None:
        """Return the layout of a packed weight, or of its transpose; None if packing does not pay.

        It is for products of `rows` rows in a loop.
        """
        return None

    def panels(self, product: Operation) -> Panels | Int4Panels | None:
        """Return the layout in which the kernel of a product reads its matrix of integers; None if it has none."""
        return None


@dataclass(frozen=True)
class Form:
    """An operation as steps over some of its inputs.

    Attributes:
        inputs: positions of the inputs that the steps take; those become the values 0, 1, ...
        steps: each an op and the numbers of the values that it takes.
        results: the number of the value that each output is.
        founds: whether a group may begin with it.
        is_view: it moves no memory by itself.
    """

    inputs: tuple[int, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    founds: bool = True
    is_view: bool = False

    @property
    def reduces(self) -> bool:
        """Test whether a step makes fewer elements of many."""
        return any(step.kernel_role is KernelRole.REDUCTION for step, _ in self.steps)

    @property
    def normalises(self) -> bool:
        """Test whether a step reads its operand again when it has sums of it."""
        return any(step.kernel_role is KernelRole.NORMALISATION for step, _ in self.steps)


def steps_of(operation: Operation) -> Sequence[Step]:
    """Return the steps that an operation computes over its inputs."""
    if isinstance(operation.op, Fused):
        return operation.op.steps
    return ((operation.op, tuple(range(len(operation.inputs)))),)


def append_steps(steps: list[Step], numbers: dict[Symbol, int], count: int, operation: Operation) -> None:
    """Append what an operation computes to the steps over `count` inputs; note the numbers of its outputs, too."""
    values = [numbers[tensor] for tensor in operation.inputs]
    for op, arguments in steps_of(operation):
        values.append(count + len(steps))
        steps.append((op, tuple([values[k] for k in arguments])))
    results = operation.op.results if isinstance(operation.op, Fused) else (len(values) - 1,)
    numbers.update((tensor, values[k]) for tensor, k in zip(operation.outputs, results, strict=True))


def specs_of(operation: Operation, sizes: KnownSizes | None) -> list[Spec]:
    """Return the specs of an operation's inputs and outputs, with numbers that stand for sizes that are not known.

    An elementwise operation takes operands of other unknown sizes than its result's for operands of these: they are
    broadcast if they turn out to be 1.

    Args:
        operation: any.
        sizes: those of tensors; without them specs stay as they are.
    """
    tensors = (*operation.inputs, *operation.outputs)
    specs = [tensor.spec for tensor in tensors]
    is_static = True
    for spec in specs:
        if not isinstance(spec, TensorSpec):
            return specs  # of no kernel
        is_static = is_static and spec.is_static
    if sizes is None or is_static:
        return specs
    if operation.op.elementwise and isinstance(specs[-1], TensorSpec) and specs[-1].is_static:
        return specs  # an operand of another size than the result's, in a kernel for static shapes
    found = [_numbered(tensor, sizes) for tensor in tensors]
    result = found[-1]
    if operation.op.elementwise and isinstance(result, TensorSpec) and result.shape:
        found[:-1] = [_broadcast_to(spec, result.shape) for spec in found[:-1]]
    return found


def _numbered(tensor: Symbol, sizes: KnownSizes) -> Spec:
    names = sizes.of(tensor)
    if names is None or not isinstance(tensor.spec, TensorSpec):
        return tensor.spec
    shape = [size if isinstance(size, int) else stand_in(sizes.number_of(size)) for size in names]
    return TensorSpec(tuple(shape), tensor.spec.dtype)


def _broadcast_to(spec: Spec, shape: Sequence[int | None]) -> Spec:
    if not isinstance(spec, TensorSpec) or spec.shape is None:
        return spec
    pairs = zip(spec.shape, shape[len(shape) - len(spec.shape) :], strict=True)
    return TensorSpec(tuple([size if is_unknown(own or 0) else own for own, size in pairs]), spec.dtype)


def form_of(
    operation: Operation, specs: Sequence[Spec], rule: FusionRule, only_elementwise: bool = False
) -> Form | None:
    """Return the form of an operation; None if kernels can't compute it, or not for such shapes.

    Args:
        operation: any.
        specs: its inputs' and outputs', see `specs_of`.
        rule: what kernels compute.
        only_elementwise: leave out all that is not elementwise.
    """
    if operation.effects or operation.control_inputs or not operation.outputs:
        return None
    static = [spec for spec in specs if isinstance(spec, TensorSpec) and spec.is_static]
    if len(static) != len(specs) or 0 in (static[-1].shape or ()):
        return None
    inputs, outputs = static[: len(operation.inputs)], static[len(operation.inputs) :]
    op = operation.op
    is_open = operation.outputs[0].spec is not specs[len(inputs)]
    if is_open and not op.elementwise and op.kernel_role is not KernelRole.REDUCTION:
        return None  # what moves elements has their number in its steps
    if op.elementwise:
        if len(outputs) != 1 or not rule.can_fuse(op, inputs, outputs[0]):
            return None
        positions = tuple(range(len(inputs)))
        return Form(positions, ((op, positions),), (len(positions),), _size(outputs[0]) > 1)
    if only_elementwise:
        return None
    if op.kernel_role is None:
        steps = op.kernel_steps(inputs, outputs[0])
        return _in_steps(steps, inputs, outputs[0], rule) if steps else None
    return _BY_ROLE[op.kernel_role](op, inputs, outputs, rule)


def _shape(spec: TensorSpec) -> Shape:
    assert spec.shape is not None
    shape: Any = spec.shape
    return tuple([dim or 0 for dim in shape]) if None in shape else shape


def _size(spec: TensorSpec) -> int:
    return math.prod(_shape(spec))


def _in_steps(steps: Sequence[Step], inputs: Sequence[TensorSpec], output: TensorSpec, rule: FusionRule) -> Form | None:
    """Return the form of an op that says itself of which steps it is made."""
    specs: list[Any] = list(inputs)
    for step, taken in steps:
        given = [specs[k] for k in taken]
        try:
            specs.append(step.infer(*given))
        except (TypeError, ValueError):  # in a branch that may never run; if it does, the operation says so
            return None
        if not _can_compute(step, given, specs[-1], rule):
            return None
    if not isinstance(specs[-1], TensorSpec) or specs[-1].shape != output.shape:
        return None
    used = sorted({k for _, taken in steps for k in taken if k < len(inputs)})
    numbers = {k: number for number, k in enumerate([*used, *range(len(inputs), len(specs))])}
    numbered = tuple((step, tuple(numbers[k] for k in taken)) for step, taken in steps)
    is_view = all(step.kernel_role in _MOVING for step, _ in steps)
    return Form(tuple(used), numbered, (len(numbers) - 1,), not is_view or _size(output) > 1, is_view)


_MOVING = (KernelRole.RESHAPE, KernelRole.BROADCAST)


def _can_compute(step: Op, inputs: Sequence[TensorSpec], output: TensorSpec, rule: FusionRule) -> bool:
    if step.elementwise:
        return rule.can_fuse(step, inputs, output)
    if step.kernel_role in REDUCING:
        return rule.can_reduce(step, inputs[0])
    return step.kernel_role in _MOVING and rule.can_move(output)


# --- forms by role --------------------------------------------------------------------------------------------------


def _chain(ops: Sequence[Op], founds: bool = True, is_view: bool = False) -> Form | None:
    """Return the form of ops that run one behind the other."""
    steps = tuple((op, (position,)) for position, op in enumerate(ops))
    return Form((0,), steps, (len(ops),), founds, is_view) if ops else None


def _reshape(op: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], rule: FusionRule) -> Form | None:
    if not rule.can_move(outputs[0]):
        return None
    return _chain([Reshape(_shape(outputs[0]))], founds=False, is_view=True)


def _broadcast(op: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], rule: FusionRule) -> Form | None:
    shape = _shape(outputs[0])
    if not rule.can_move(outputs[0]) or not shape:
        return None
    return _chain([BroadcastTo(shape)], founds=math.prod(shape) > 1, is_view=True)


def _sum_to(op: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], rule: FusionRule) -> Form | None:
    source, target = _shape(inputs[0]), _shape(outputs[0])
    aligned = (1,) * (len(source) - len(target)) + target
    axes = tuple(axis for axis, (dim, wanted) in enumerate(zip(source, aligned, strict=True)) if dim != wanted)
    total = Sum(axes, True, accumulator_of(inputs[0].dtype))
    if not rule.can_reduce(total, inputs[0]) or not axes:
        return None
    return _chain([total] if aligned == target else [total, Reshape(target)])


def _reduction(op: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], rule: FusionRule) -> Form | None:
    if not _accumulates_as_kernels(op, inputs[0]) or getattr(op, "initial", None) is not None:
        return None
    if _size(inputs[0]) == _size(outputs[0]) or not rule.can_reduce(op, inputs[0]):
        return None
    return _chain([op])


def _accumulates_as_kernels(op: Any, spec: TensorSpec) -> bool:
    """Test whether a reduction accumulates in the type in which kernels compute: float32 for half types."""
    accumulator = getattr(op, "accumulator", None)
    return accumulator is None or (accumulator.name == "float32" and spec.dtype.name in ("float16", "bfloat16"))


def _normalisation(
    op: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], rule: FusionRule
) -> Form | None:
    if _shape(outputs[0]) != _shape(inputs[0]):  # one number for each row
        return _reduction(op, inputs, outputs, rule)
    return _chain([op]) if _size(inputs[0]) > 1 and op.axes and rule.can_reduce(op, inputs[0]) else None


def _parts(op: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], rule: FusionRule) -> Form | None:
    count, source, part = len(outputs), _shape(inputs[0]), _shape(outputs[0])
    if count < 2 or any(_shape(spec) != part for spec in outputs) or not rule.can_move(inputs[0]):
        return None
    axis, keeps_axis = op.axis % len(source), len(part) == len(source)
    steps = tuple((Part(axis, index, count, keeps_axis), (0,)) for index in range(count))
    return Form((0,), steps, tuple(range(1, count + 1)))


def _joined(op: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], rule: FusionRule) -> Form | None:
    alike = len({spec.shape for spec in inputs}) == 1 and len(inputs) > 1 and _shape(inputs[0]) != ()
    if not alike or not rule.can_move(outputs[0]):
        return None
    positions = tuple(range(len(inputs)))
    return Form(positions, ((op, positions),), (len(inputs),))


_Finder = Callable[[Any, Sequence[TensorSpec], Sequence[TensorSpec], FusionRule], Form | None]
_BY_ROLE: dict[KernelRole, _Finder] = {
    KernelRole.RESHAPE: _reshape,
    KernelRole.BROADCAST: _broadcast,
    KernelRole.SUM_TO: _sum_to,
    KernelRole.REDUCTION: _reduction,
    KernelRole.NORMALISATION: _normalisation,
    KernelRole.PARTS: _parts,
    KernelRole.JOIN: _joined,
}


# --- placing in a space ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """A form in a space.

    Attributes:
        space: with what the form settles about it.
        inputs: the layouts of the form's inputs.
        steps: the layouts of the steps' results.
    """

    space: Space
    inputs: tuple[Layout, ...]
    steps: tuple[Layout, ...]

    def shifted_by(self, shift: Callable[[Layout], Layout]) -> Placed:
        """Return the same values, with other layouts."""
        return Placed(self.space, tuple(map(shift, self.inputs)), tuple(map(shift, self.steps)))


def founding_space(operation: Operation, form: Form, known: Sequence[Spec]) -> Space | None:
    """Return the space of a group that begins with an operation, with these specs: that of its largest value."""
    if not form.founds:
        return None
    specs: list[Any] = [known[position] for position in form.inputs]
    if len(form.steps) == 1 or isinstance(form.steps[0][0], Part):
        specs = [*specs[:1], known[len(operation.inputs)]]
    else:
        for step, taken in form.steps:
            specs.append(step.infer(*[specs[k] for k in taken]))
    return space_of(_shape(max(reversed(specs), key=_size)))


def place(form: Form, taken: Sequence[Spec], space: Space, known: Sequence[Layout | None]) -> Placed | None:
    """Return the layouts of an operation's values in a space.

    Args:
        form: the operation's.
        taken: the specs of the operation's inputs, then of its outputs.
        space: where.
        known: the layouts of the form's inputs that a kernel over that space computes; None for what it reads.

    Returns:
        None if it has no place there.
    """
    specs: list[Any] = [taken[position] for position in form.inputs]
    shapes = [_shape(spec) for spec in specs]
    layouts: list[Layout | None] = list(known)
    current = space
    unplaced: list[tuple[int, int]] = []
    for op, arguments in form.steps:
        try:
            spec: Any = _known_result(op, form, shapes, taken) or op.infer(*[specs[k] for k in arguments])
        except (TypeError, ValueError):  # in a branch or loop that may never run; if it does, the operation says so
            return None
        specs.append(spec)
        shapes.append(_shape(spec))
        if op.kernel_role is KernelRole.RESHAPE and layouts[arguments[0]] is None:  # of what is read: its user says
            unplaced.append((arguments[0], len(layouts)))
            layouts.append(None)
            continue
        found = _place_step(op, current, [(shapes[k], layouts[k]) for k in arguments], shapes[-1])
        if found is None:
            return None
        current, inputs, result = found
        for k, layout in zip(arguments, inputs, strict=True):
            layouts[k] = layout if layouts[k] is None else layouts[k]
        layouts.append(result)
    for source, result in unplaced:
        shaped = layouts[result]
        layouts[source] = None if shaped is None else reshaped_layout(shaped, shapes[source])
    complete = [layout for layout in layouts if layout is not None]
    if len(complete) != len(layouts):
        return None
    count = len(form.inputs)
    for layout in dict.fromkeys(complete):
        current = None if current is None else current.with_layout(layout)
    return None if current is None else Placed(current, tuple(complete[:count]), tuple(complete[count:]))


def _known_result(op: Op, form: Form, shapes: Sequence[Shape], taken: Sequence[Spec]) -> TensorSpec | None:
    """Return the result of an operation that is one elementwise step, where its operands' shapes surely give that."""
    result = taken[-1]
    if len(form.steps) > 1 or not op.elementwise or not isinstance(result, TensorSpec):
        return None
    return result if result.shape in shapes and all(own == result.shape or not own for own in shapes) else None


_Operands = Sequence[tuple[Shape, "Layout | None"]]
_Found = tuple[Space, Sequence[Layout], Layout]


def _place_step(op: Op, space: Space, operands: _Operands, shape: Shape) -> _Found | None:
    if op.kernel_role is KernelRole.RESHAPE:
        ((_, own),) = operands
        reshaped = None if own is None else reshaped_layout(own, shape)
        return None if own is None or reshaped is None else (space, [own], reshaped)
    used: Space | None = space
    for _, layout in operands:
        used = used if used is None or layout is None else used.using(layout)
    if used is None:
        return None
    if op.elementwise or op.kernel_role is KernelRole.BROADCAST:
        result = broadcast_layout(shape, operands, used.size)
        if result is None:
            return None
        return used, [operand_layout(own, result) if at is None else at for own, at in operands], result
    if isinstance(op, Part):
        return _place_part(op, used, operands[0])
    if op.kernel_role is KernelRole.JOIN:
        return _place_joined(op, used, operands, shape)
    return _place_reduction(op, used, operands[0], shape)


def _filling(operand: tuple[Shape, Layout | None], space: Space) -> Layout | None:
    """Return the layout of an operand; of one that is read, if it fills the space."""
    shape, layout = operand
    if layout is None and math.prod(shape) == space.size:
        return canonical(shape)
    return layout


def _place_part(op: Part, space: Space, operand: tuple[Shape, Layout | None]) -> _Found | None:
    layout = _filling(operand, space)
    found = None if layout is None else part_layout(layout, op.axis, op.count, op.keeps_axis)
    if layout is None or found is None:
        return None
    settled = space.with_parts(found[1])
    return None if settled is None else (settled, [layout], found[0])


def parts_of_joined(operation: Operation) -> tuple[int, int]:
    """Return the axis of the parts of a stack or concatenation, as an interval in the space that the result fills."""
    op: Any = operation.op
    spec, result = operation.inputs[0].spec, operation.outputs[0].spec
    assert isinstance(spec, TensorSpec)
    assert isinstance(result, TensorSpec)
    shape, is_new = _shape(spec), len(_shape(result)) > len(_shape(spec))
    axis = op.axis % (len(shape) + is_new)
    low = math.prod(shape[axis:])
    return low, low * len(operation.inputs)


def _place_joined(op: Any, space: Space, operands: _Operands, shape: Shape) -> _Found | None:
    if math.prod(shape) != space.size:
        return None
    is_new = len(shape) > len(operands[0][0])
    axis: int = op.axis % len(shape)
    low = math.prod(shape[axis + 1 :]) * (1 if is_new else shape[axis] // len(operands))
    parts = (low, low * len(operands))
    settled = space.with_parts(parts, MOST_JOINED)
    whole = canonical(shape)
    own = part_layout(whole, axis, len(operands), keeps_axis=not is_new)
    if settled is None or own is None or own[1] != parts:
        return None
    if any(layout not in (None, own[0]) for _, layout in operands):
        return None
    assert joined_layout(own[0], axis, parts, is_new) == whole
    return settled, [own[0]] * len(operands), whole


def _place_reduction(op: Any, space: Space, operand: tuple[Shape, Layout | None], shape: Shape) -> _Found | None:
    layout = _filling(operand, space)
    if layout is None:
        return None
    own = operand[0]
    rank = len(own)
    axes = range(rank) if op.axes is None else sorted(axis % rank for axis in op.axes)
    settled = space.reducing(reduced_layout(layout, axes, keepdims=True))
    if op.kernel_role is KernelRole.NORMALISATION:  # which uses its own sums
        settled = settled.with_layout(layout)
        settled = None if settled is None else settled.using(reduced_layout(layout, axes, keepdims=True))
        if settled is None:
            return None
        if shape == own:
            return settled, [layout], layout
    return settled, [layout], reduced_layout(layout, axes, keepdims=len(shape) == rank)
