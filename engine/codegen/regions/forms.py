"""Native forms of single operations: a table from op class to the function that prints it.

A form gets the function under construction, the operation and the values of its inputs, and returns the values of its
outputs. What it can't print raises `UnsupportedError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...common.machine_profile import machine_profile
from ...common.nest import is_integer
from ...graph.graph import Operation
from ...graph.kernel_roles import KernelRole
from ...graph.op import Op
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.axes import Transpose
from ...ops.arrays.creation import Fill
from ...ops.arrays.indexing import GetItem, Place, PutItem, SliceItem
from ...ops.arrays.joining import Split
from ...ops.base import Constant
from ...ops.internal.fused import Fused
from ...ops.internal.packed import PackedMatMul
from ...ops.linear_algebra.einsum import Contraction
from ...ops.linear_algebra.products import BatchMatMul, FlattenRows, MatMul
from ...ops.math.reduced import BroadcastReduced, Sum, reduced_shape
from ...ops.math.reduction import AllTrue, AnyTrue, Max, Mean, Min, Prod
from ...ops.run_time_shapes import ZerosOfShape
from ..convolution.forms import FORMS as WINDOW_FORMS
from ..expression.expression import UnsupportedError
from ..factorisation.forms import FORMS as MATRIX_FORMS
from ..fourier.forms import COMPLEX_FORMS
from ..fourier.forms import FORMS as FOURIER_FORMS
from ..gather.sorting_forms import FORMS as SORTING_FORMS
from ..matmul.gemm_strides import labels_of_matmul
from ..random.forms import FORMS as RANDOM_FORMS
from .along_axis import FORMS as FORMS_ALONG_AXES
from .arrays import FORMS as ARRAY_FORMS
from .arrays import as_array, as_index
from .elementwise import print_elementwise, print_reduction, print_scalars, print_strided_copy, print_sum_of_rows
from .function import (
    Array,
    Elements,
    Form,
    FormContext,
    Function,
    Record,
    Scalar,
    State,
    TooLargeError,
    Value,
    reshaped,
    shape_of,
    strides_of,
)
from .fused import print_fused
from .gather_forms import FORMS as GATHER_FORMS
from .gather_forms import print_position
from .moves import FORMS as MOVING_FORMS
from .normalised import FORMS as NORMALISED_FORMS
from .packed import FORMS as PACKED_FORMS
from .pieces import Pieces
from .products import print_matmul, print_products, print_sum_of_products
from .scalars import literal, type_of
from .scans import FORMS as SCANNING_FORMS
from .scatter_forms import FORMS as SCATTER_FORMS
from .variables import Variables

MOST_OPERATIONS = 1500  # of one function
MOST_IN_PIECES = 20_000  # of all functions of a region
TICKS = 1 << 23  # so many elementary steps are made between looks at signals


class Context(FormContext):
    """The state of printing a region: what forms use, and what the blocks of the region do.

    Attributes:
        variables: what is read and assigned.
        pieces: long runs of operations, cut into functions of their own.
        in_pieces: how many operations those hold.
    """

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.make_state: Callable[[Symbol], State]
        self.make_record: Callable[[Symbol], Record]
        self.records: dict[Symbol, Record] = {}  # by the tensor inside of a loop
        self.kept: set[Symbol] = set()  # those of which all is wanted, not only what one run of the loop records
        self.operations = 0
        self.largest = 0  # elements of what elementwise operations take, and of results
        self.uses_cores = False  # by products
        self.divisible = 0  # elements that kernels would compute on several cores, all steps together
        self.loop_trips: dict[Operation, str] = {}  # where loops count their iterations
        self.budget = self.function.slot("i64")
        self.variables = Variables(self)
        self.pieces = Pieces(self)
        self.in_pieces = 0

    def print_form(self, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
        return print_form(self, operation, inputs)

    def new_state(self, tensor: Symbol) -> State:
        return self.make_state(tensor)

    def record_of(self, tensor: Symbol) -> Record:
        """Return the record in which a loop puts the values of a tensor."""
        known = self.records.get(tensor)
        if known is None:
            known = self.records[tensor] = self.make_record(tensor)
        return known

    def count(self, operation: Operation, is_in_piece: bool = False) -> None:
        """Note that an operation is printed.

        Raises:
            TooLargeError: there are too many.
        """
        self.operations += 1
        self.in_pieces += is_in_piece
        if operation.op.elementwise and operation.outputs[0].shape == ():
            self.work += 1  # of scalars, as in chains of thousands
        else:
            self._count_elements(operation)
        self.uses_cores = self.uses_cores or isinstance(operation.op, PackedMatMul)
        if self.uses_cores and self.largest > machine_profile().region_elements:
            raise TooLargeError("what follows its products is worth several cores")
        if self.operations - self.in_pieces > MOST_OPERATIONS or self.operations > MOST_IN_PIECES:
            raise TooLargeError("it holds many operations")

    def _count_elements(self, operation: Operation) -> None:
        sizes = [math.prod(shape_of(t)) for t in operation.outputs if _is_static(t)]
        self.work += 1 + sum(sizes) // 8
        taken = operation.inputs if operation.op.elementwise or isinstance(operation.op, Fused) else ()
        largest = max([0, *sizes, *[math.prod(shape_of(t)) for t in taken if _is_static(t)]])
        self.largest = max(self.largest, largest)
        if taken and largest > machine_profile().parallel_elements:
            self.divisible += largest * (len(operation.op.steps) if isinstance(operation.op, Fused) else 1)

    def check_worth(self) -> None:
        """See that operations take no longer here, on one core, than with a call of Python for each kernel.

        Raises:
            TooLargeError: they do.
        """
        if self.divisible > self.operations * machine_profile().saved_elements:
            raise TooLargeError("its large arrays are worth several cores")

    def tick(self, cost: int) -> None:
        """Print what each round of a loop does: after a while, look for signals, and for requests to end the step."""
        function = self.function
        look, on, again = (function.fresh(hint) for hint in ("look", "on", "again"))
        self.exits.append(len(function.lines))
        left = function.let(f"load i64, ptr {self.budget}")
        less = function.let(f"sub i64 {left}, {cost + 1}")
        function.line(f"store i64 {less}, ptr {self.budget}")
        is_over = function.let(f"icmp slt i64 {less}, 0")
        function.line(f"br i1 {is_over}, label %{look}, label %{on}, !prof !100")
        function.begin(look)
        signal = function.let("call i32 @anabranch_look(ptr %needed)")
        is_signal = function.let(f"icmp ne i32 {signal}, 0")
        function.branch(is_signal, "interrupted", again)
        function.begin(again)
        function.line(f"store i64 {TICKS}, ptr {self.budget}")
        function.jump(on)
        function.begin(on)

    def initialise(self, slot: str, value: Value) -> None:
        """Print a zero, or the place of zeros, into a slot for such values before anything else."""
        kind = "ptr" if isinstance(value, Array) else value.kind
        zero = self.function.zeros(value) if isinstance(value, Array) else literal(0, kind)
        self.function.prologue.append(f"  store {kind} {zero}, ptr {slot}")


def _is_static(tensor: Symbol) -> bool:
    return isinstance(tensor.spec, TensorSpec) and tensor.spec.is_static


def print_form(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print one operation that holds no regions.

    Raises:
        UnsupportedError: it has no native form.
    """
    form = _form_of(operation)
    if form is None:
        raise UnsupportedError(operation.op.type_name)
    return form(context, operation, inputs)


def _plain(inputs: Sequence[Value]) -> list[Scalar | Array]:
    plain = [value for value in inputs if isinstance(value, (Scalar, Array))]
    if len(plain) < len(inputs):
        raise UnsupportedError("a TensorArray")
    return plain


def _elementwise(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    (output,) = operation.outputs
    scalars = [value for value in inputs if isinstance(value, Scalar)]
    if output.shape == () and len(scalars) == len(inputs):
        return [print_scalars(context.function, operation.op, scalars, type_of(output.dtype))]
    steps = [(operation.op, tuple(range(len(inputs))))]
    shapes, kinds, targets = [shape_of(output)], [type_of(output.dtype)], [context.targets.get(output)]
    return print_elementwise(context.function, steps, [len(inputs)], _plain(inputs), shapes, kinds, targets)


def _reshape(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    return [reshaped(context.function, inputs[0], shape_of(operation.outputs[0]))]


def _flatten_rows(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    (value,) = inputs
    if not isinstance(value, Elements):
        return _reshape(context, operation, inputs)
    if not value.shape:
        raise UnsupportedError("a vector of unknown length as a matrix")
    *rows, width = value.shape
    count = context.function.let(f"mul nsw i64 {value.count}, {math.prod(rows)}")
    return [Elements(value.pointer, value.kind, (width,), count, value.of, value.buffers)]


def _broadcast(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    (value,) = _plain(inputs[:1])
    return [_repeated(context.function, value, value.shape if isinstance(value, Array) else (), operation)]


def _broadcast_reduced(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = op_of(operation, BroadcastReduced)
    (value,) = _plain(inputs[:1])
    shape = shape_of(operation.outputs[0])
    kept = reduced_shape(shape, op.axes, keepdims=True)
    return [_repeated(context.function, value, tuple(int(dim or 0) for dim in kept or ()), operation)]


def _repeated(function: Function, value: Scalar | Array, aligned: tuple[int, ...], operation: Operation) -> Value:
    shape = shape_of(operation.outputs[0])
    if isinstance(value, Scalar) and not shape:
        return value
    if isinstance(value, Array) and not shape:
        return Scalar(function.load(value.kind, value.pointer), value.kind)
    target = function.allocate(value.kind, shape)
    print_strided_copy(function, value, target, strides_of(aligned, shape))
    return target


def _zeros(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    tensor = operation.outputs[0]
    kind, shape = type_of(tensor.dtype), shape_of(tensor)
    zero = Scalar(literal(0, kind), kind)
    if not shape:
        return [zero]
    target = context.function.allocate_zeros(kind, shape)
    return [target]


def _reduction(kind: str) -> Form:
    def form(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
        (value,) = _plain(inputs)
        op: Any = operation.op
        rank = len(value.shape) if isinstance(value, Array) else 0
        if getattr(op, "accumulator", None) is not None or getattr(op, "initial", None) is not None:
            raise UnsupportedError("a reduction with an accumulator or initial value")
        axes = range(rank) if op.axes is None else [axis % max(rank, 1) for axis in op.axes]
        shape = shape_of(operation.outputs[0])
        return [print_reduction(context.function, kind, value, list(axes), shape)]

    return form


def _sum_to_shape(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    shape = shape_of(operation.outputs[0])
    if isinstance(inputs[0], Elements):
        return [print_sum_of_rows(context.function, inputs[0], shape)]
    (value,) = _plain(inputs[:1])
    if isinstance(value, Scalar) or value.shape == shape:
        return [reshaped(context.function, value, shape)]
    aligned = (1,) * (len(value.shape) - len(shape)) + shape
    axes = [axis for axis, (dim, wanted) in enumerate(zip(value.shape, aligned, strict=True)) if dim != wanted]
    return [print_reduction(context.function, "sum", value, axes, shape)]


def _matmul(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = op_of(operation, MatMul)
    first, second = inputs
    if isinstance(first, Elements) and isinstance(second, Elements):
        if not op.transpose_a or op.transpose_b:
            raise UnsupportedError("a product whose size is not known")
        context.fail_unless(context.function.let(f"icmp eq i64 {first.count}, {second.count}"))
        return [print_sum_of_products(context.function, first, second, context.host)]
    a, b = (as_array(value) for value in inputs)
    if 0 in (*a.shape, *b.shape):
        raise UnsupportedError("an empty product")
    target = context.targets.get(operation.outputs[0])
    return [print_matmul(context.function, a, b, op.transpose_a, op.transpose_b, context.host, target)]


def _products(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = operation.op
    a, b = (as_array(value) for value in inputs)
    shape = shape_of(operation.outputs[0])
    if 0 in (*a.shape, *b.shape, *shape):
        raise UnsupportedError("an empty product")
    if isinstance(op, Contraction):
        labels = (op.a, op.b, op.out)
    else:
        assert isinstance(op, BatchMatMul)
        labels = labels_of_matmul(len(a.shape), len(b.shape), op.transpose_a, op.transpose_b)
    if not shape:
        raise UnsupportedError("a product that is a scalar")
    target = context.targets.get(operation.outputs[0])
    return [print_products(context.function, labels, a, b, shape, context.host, target)]


def _transpose(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = op_of(operation, Transpose)
    if isinstance(inputs[0], Scalar):
        return [inputs[0]]
    value = as_array(inputs[0])
    axes = op.axes or tuple(reversed(range(len(value.shape))))
    strides = strides_of(value.shape, value.shape)
    target = context.function.allocate(value.kind, shape_of(operation.outputs[0]))
    print_strided_copy(context.function, value, target, [strides[axis] for axis in axes])
    return [target]


def _joined(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print a concatenation, or a stack: which is one of parts that have an axis of 1."""
    op: Any = operation.op
    shape = shape_of(operation.outputs[0])
    axis: int = op.axis % len(shape)
    parts = _plain(inputs)
    target = context.function.allocate(parts[0].kind, shape)
    strides = strides_of(shape, shape)
    start = 0
    for part in parts:
        own = part.shape if isinstance(part, Array) else ()
        if len(own) < len(shape):
            own = (*own[:axis], 1, *own[axis:])
        if 0 in own:
            continue
        place = context.function.element(target.kind, target.pointer, str(start * _step(shape, axis)))
        window = Array(place, target.kind, own)
        # Steps over axes of 1 must be those of the target, for the part is a window of it.
        print_strided_copy(context.function, part, window, strides_of(own, own), 0, strides)
        start += own[axis]
    return [target]


def _split(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = op_of(operation, Split)
    if len(inputs) > 1:
        raise UnsupportedError("parts of computed sizes")
    source = as_array(inputs[0])
    axis = op.axis % len(source.shape)
    strides = strides_of(source.shape, source.shape)
    shapes = [shape_of(tensor) for tensor in operation.outputs]
    if sum(shape[axis] for shape in shapes) != source.shape[axis]:
        raise UnsupportedError("parts that do not add up")
    parts: list[Value] = []
    start = 0
    for shape in shapes:
        part = context.function.allocate(source.kind, shape)
        if part.size:
            steps = [0 if dim == 1 else stride for dim, stride in zip(shape, strides, strict=True)]
            print_strided_copy(context.function, source, part, steps, start * _step(source.shape, axis))
        parts.append(part)
        start += shape[axis]
    return parts


def _step(shape: Sequence[int], axis: int) -> int:
    return math.prod(shape[axis + 1 :])


def _get_item(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print integers, slices and new axes, where only integers may be computed."""
    op = op_of(operation, GetItem)
    source, *picks = _plain(inputs)
    source = as_array(source)
    function = context.function
    steps = [math.prod(source.shape[axis + 1 :]) for axis in range(len(source.shape))]
    offset, strides, axis = "0", list[int](), 0
    remaining = iter(picks)
    if Ellipsis in op.items:
        raise UnsupportedError("an ellipsis")
    for item in op.items:
        if item is None:
            strides.append(0)
            continue
        dim, step = source.shape[axis], steps[axis]
        axis += 1
        if isinstance(item, SliceItem):
            first, stride = _slice(item, dim)
            strides.append(stride * step)
            term = str(first * step)
        elif item is Place.INPUT:
            term = _picked(context, next(remaining), dim, step)
        elif is_integer(item):
            term = str(int(item) % dim * step)
        else:
            raise UnsupportedError("an index of another kind")
        offset = function.let(f"add nsw i64 {offset}, {term}")
    strides += steps[axis:]
    shape = shape_of(operation.outputs[0])
    pointer = function.element(source.kind, source.pointer, offset)
    if not shape:
        return [Scalar(function.load(source.kind, pointer), source.kind)]
    if strides == [step if dim != 1 else 0 for dim, step in zip(shape, strides_of(shape, shape), strict=True)] or (
        strides == strides_of(shape, shape)
    ):
        return [Array(pointer, source.kind, shape, source.buffers)]
    target = function.allocate(source.kind, shape)
    print_strided_copy(function, Array(pointer, source.kind, shape), target, strides)
    return [target]


def _slice(item: SliceItem, dim: int) -> tuple[int, int]:
    """Return the first position and the step of a slice whose bounds are known."""
    bounds = (item.start, item.stop, item.step)
    if any(bound is not None and not is_integer(bound) for bound in bounds):
        raise UnsupportedError("a slice with computed bounds")
    first, _, step = slice(*bounds).indices(dim)
    return first, step


def _picked(context: FormContext, index: Scalar | Array, dim: int, step: int) -> str:
    """Return the offset of a computed index, which may count from the end."""
    if isinstance(index, Array) or index.kind == "i1":
        raise UnsupportedError("an index that is an array")
    position = print_position(context, as_index(context.function, index), dim)
    return context.function.let(f"mul nsw i64 {position}, {step}")


def _constant(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = op_of(operation, Constant)
    kind = type_of(op.value.dtype)
    if op.value.shape != ():
        return [context.constants[operation.outputs[0]]]
    return [Scalar(literal(op.value, kind), kind)]


FORMS: dict[type[Op], Form] = {
    **FORMS_ALONG_AXES,
    **ARRAY_FORMS,
    **FOURIER_FORMS,
    **MATRIX_FORMS,
    **MOVING_FORMS,
    **NORMALISED_FORMS,
    **PACKED_FORMS,
    **RANDOM_FORMS,
    **GATHER_FORMS,
    **SCANNING_FORMS,
    **SCATTER_FORMS,
    **SORTING_FORMS,
    **WINDOW_FORMS,
    AllTrue: _reduction("all"),
    AnyTrue: _reduction("any"),
    BatchMatMul: _products,
    BroadcastReduced: _broadcast_reduced,
    Constant: _constant,
    Contraction: _products,
    Fill: _broadcast,
    FlattenRows: _flatten_rows,
    Fused: print_fused,
    GetItem: _get_item,
    MatMul: _matmul,
    Max: _reduction("max"),
    Mean: _reduction("mean"),
    Min: _reduction("min"),
    Prod: _reduction("prod"),
    Sum: _reduction("sum"),
    Split: _split,
    Transpose: _transpose,
    ZerosOfShape: _zeros,
}
_BY_ROLE: dict[KernelRole, Form] = {
    KernelRole.BROADCAST: _broadcast,
    KernelRole.JOIN: _joined,
    KernelRole.RESHAPE: _reshape,
    KernelRole.SUM_TO: _sum_to_shape,
}


def _form_of(operation: Operation) -> Form | None:
    """Return the form of an op, by its class or its role; that of its steps where it says of which it is made."""
    op = operation.op
    known = FORMS.get(type(op))
    if known is not None:
        return known
    if op.elementwise:
        return COMPLEX_FORMS.get(type(op)) if operation.outputs[0].dtype.kind == "c" else _elementwise
    if op.kernel_role is not None:
        return _BY_ROLE.get(op.kernel_role)
    specs = [tensor.spec for tensor in (*operation.inputs, *operation.outputs)]
    if len(operation.outputs) != 1 or not all(isinstance(spec, TensorSpec) and spec.is_static for spec in specs):
        return None
    steps = tuple(op.kernel_steps(specs[:-1], specs[-1]))
    if not steps:
        return None
    count = len(operation.inputs)
    fused = Fused(count, steps, (count + len(steps) - 1,))
    return lambda context, operation, inputs: print_fused(context, operation, inputs, fused)


def count_inputs(op: Op) -> int | None:
    """Return how many inputs native code reads, where shapes are known; None: all."""
    if op.shape_input is not None:
        return op.shape_input
    return 1 if isinstance(op, (Fill, PutItem)) or op.kernel_role in _READING_ONE else None


_READING_ONE = (KernelRole.BROADCAST, KernelRole.RESHAPE)
