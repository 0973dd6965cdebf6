"""Compute before a loop, at once, all that depends on elements of arrays, counters and captured values alone.

``x[t] @ w`` for each t is one product of all rows, whatever the cell. The batch is of live iterations only: it is as
long as the trip count, which has to be known when the loop starts (a number, or something like ``max(lengths)``).
Arrays may be read forward, backward or shifted; a batch goes through them in the order of the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...common.cached import cached_property
from ...common.machine_profile import machine_profile
from ...control_flow.batching import Batch, Value
from ...control_flow.region_op import RegionOp
from ...graph.graph import Operation, Parameter
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.axes import Transpose
from ...ops.arrays.creation import arange
from ...ops.arrays.indexing import GetItem
from ...ops.arrays.joining import Split
from ...ops.arrays.shaping import ExpandDims, Reshape, Squeeze
from ...ops.base import Cast, Constant, build, convert_to_tensor
from ...ops.containers.tensor_arrays import ArrayRead, ArrayReadOrZeros, ArrayStackLike, ArrayUnstack
from ...ops.linear_algebra.products import FlattenRows, MatMul
from ...ops.math.elementwise import Add
from ..framework.assign import on_one_device
from ..framework.log import is_recording, note_change, note_kept
from ..framework.switches import is_on
from .batches import can_batch, is_heavy, new_batch, value_in
from .linear import Linear
from .sums import summed_products
from .view import LoopView, is_static, size_of

_MOST = 1 << 22  # elements that small results may take for all iterations together
_LARGE = 1 << 26  # bytes: products of all iterations that take more stay where each is used and let go at once


def compute_before(loop: LoopView) -> bool:
    """Batch, before the loop, what needs no recurrence."""
    if loop.trips is None:
        _note_reason(loop, "the number of iterations is not known before the loop starts")
        return False
    if loop.known_trips in (0, 1):
        return False
    rising = _Group(loop, 1)
    is_moved = rising.move()
    return (not rising.is_all and _Group(loop, -1).move()) or is_moved


def _note_reason(loop: LoopView, why: str) -> None:
    if not is_recording():
        return
    for operation in loop.needed:
        if is_heavy(operation):
            note_kept("fission", operation, f"stays in the loop: {why}")


class _Group:
    """The operations of a body that take elements which are read in one direction.

    Attributes:
        is_all: whether nothing was found to batch, nor elements that are read in the other direction.
    """

    def __init__(self, loop: LoopView, direction: int) -> None:
        self.loop = loop
        self.direction = direction
        self.free: dict[Symbol, None] = {}  # elements, counters, and what is computed of these
        self.elements: dict[Symbol, Linear] = {}
        self.is_all = False
        self._has_others = False

    def move(self) -> bool:
        """Batch what pays; return whether anything did."""
        self._find()
        wanted = self._wanted()
        if not wanted:
            self.is_all = not self._has_others
            return False
        device = wanted[0].operation.device
        wanted = [tensor for tensor in wanted if tensor.operation.device == device]
        with self.loop.outside(wanted[0].operation):
            moved = self._batched(wanted)
        if not moved:
            return False
        index = self._place(wanted[0].operation)
        for tensor, array in moved:
            note_change("fission", tensor.operation, "is computed for all iterations before the loop")
            self.loop.read(tensor, array, index)
        return True

    @cached_property
    def summed(self) -> set[Operation]:
        """The products that become one product after the loop."""
        return summed_products(self.loop)

    # --- what may move --------------------------------------------------------------------------------------

    def _find(self) -> None:
        for operation in self.loop.needed:
            if operation.graph is not self.loop.body or isinstance(operation.op, (Parameter, Constant, RegionOp)):
                continue
            if isinstance(operation.op, (ArrayRead, ArrayReadOrZeros)):
                self._find_element(operation)
            elif self._is_free(operation):
                self.free.update(dict.fromkeys(operation.outputs))

    def _find_element(self, read: Operation) -> None:
        loop, index = self.loop, self.loop.form(read.inputs[1])
        array = loop.outer(read.inputs[0])
        if index is None or abs(index.steps) != 1 or array is None:
            return
        if not on_one_device([array.operation, read.inputs[0].operation, read]):
            return
        first = loop.first_place(index)
        if first is None or first < 0 or not is_static(*read.outputs):
            return
        if isinstance(read.op, ArrayReadOrZeros) and first:
            return
        if index.steps != self.direction:
            self._has_others = True
            return
        self.elements[read.outputs[0]] = index
        self.free[read.outputs[0]] = None

    def _is_free(self, operation: Operation) -> bool:
        sources: list[Symbol] = []
        for tensor in operation.inputs:
            if tensor in self.free or self._counts(tensor):
                sources.append(tensor)
            elif not self.loop.is_steady(tensor):
                return False  # as of most operations, before the dearer tests
        if not sources or not can_batch(operation):
            return False
        return on_one_device([operation, *[tensor.operation for tensor in sources]])  # weights may be anywhere

    def _counts(self, tensor: Symbol) -> bool:
        form = self.loop.form(tensor)
        return form is not None and form.steps != 0

    # --- what shall move ------------------------------------------------------------------------------------

    def _wanted(self) -> list[Symbol]:
        """Return the tensors that the body reads from then on, each from an array of its own."""
        moving: set[Operation] = set()
        if not self.free:
            return []
        for operation in reversed(self.loop.needed):
            computed = [tensor for tensor in operation.outputs if tensor in self.free and tensor not in self.elements]
            if not computed or all(tensor.shape == () for tensor in computed):
                continue
            if operation in moving or self._pays(operation, computed):
                moving.add(operation)
                moving.update(tensor.operation for tensor in operation.inputs if tensor in self.free)
        return self._taken(moving) if moving else []

    def _pays(self, operation: Operation, computed: Sequence[Symbol]) -> bool:
        if is_heavy(operation):
            return operation not in self.summed and not self._is_for_nothing(operation)
        if any(tensor in self.loop.histories for tensor in computed):
            return True
        if isinstance(operation.op, (GetItem, Split, Reshape, ExpandDims, Squeeze, FlattenRows, Transpose)):
            return False  # views cost nothing where they are
        if operation.op.elementwise and not self._only_counts(operation):
            return self._finishes_product(operation)  # others are part of a kernel in the loop
        small = machine_profile().batched_elements
        trips = self.loop.known_trips or small
        return all(size_of(tensor) <= small and size_of(tensor) * trips <= _MOST for tensor in computed)

    def _is_for_nothing(self, operation: Operation) -> bool:
        """Test whether a product is as fast in the loop.

        There it takes the memory of one iteration and not that of all.
        """
        product, loop = operation.outputs[0], self.loop
        if not is_on("memory") or not isinstance(operation.op, MatMul) or not is_static(product):
            return False
        rows, trips = size_of(product) // max(1, (product.shape or (1,))[-1] or 1), loop.known_trips
        if trips is None or rows < machine_profile().full_speed_rows or product in loop.histories:
            return False
        if size_of(product) * trips * int(product.dtype.itemsize) <= _LARGE:
            return False
        if is_recording():
            note_kept("fission", operation, "stays in the loop: it is as fast there, and takes less memory")
        return True

    def _finishes_product(self, operation: Operation) -> bool:
        """Test whether an operation adds what is the same in each iteration to a product that moves, and is used once.

        So ``x[t] @ w + b`` leaves the loop whole: the sum takes the place of the product, and no time of its own.
        """
        free = [tensor for tensor in operation.inputs if tensor in self.free]
        if not isinstance(operation.op, Add) or len(free) != 1 or self.loop.uses[free[0]] != 1:
            return False
        (product,), (total,) = free, operation.outputs
        return is_heavy(product.operation) and product.spec == total.spec and self._pays(product.operation, free)

    def _only_counts(self, operation: Operation) -> bool:
        """Test whether an operation takes counters and values that are the same in each iteration, and no elements."""
        return not any(tensor in self.free and not self._counts(tensor) for tensor in operation.inputs)

    def _taken(self, moving: set[Operation]) -> list[Symbol]:
        """Return the results of `moving` that anything else takes."""
        loop = self.loop
        outer = {*loop.body.results, *loop.demanded}
        for operation in loop.needed:
            if operation not in moving:
                outer.update(operation.inputs)
        moved = [tensor for operation in loop.needed if operation in moving for tensor in operation.outputs]
        return [tensor for tensor in moved if tensor in outer and tensor not in self.elements]

    # --- moving ---------------------------------------------------------------------------------------------

    def _batched(self, wanted: Sequence[Symbol]) -> list[tuple[Symbol, Symbol]]:
        """Return arrays of the `wanted` tensors' values in each iteration, in the order of the arrays that are read."""
        batch = new_batch(self.loop.trips_tensor())
        found: list[tuple[Symbol, Symbol]] = []
        for tensor in wanted:
            value = value_in(batch, tensor, self._source)
            if value is not None and value.batched:
                found.append((tensor, build(ArrayUnstack(), value.tensor)))
        return found

    def _source(self, batch: Batch, tensor: Symbol) -> Value | None:
        loop = self.loop
        if tensor in self.elements:
            rows = self._rows(tensor)
            return None if rows is None else Value(rows, batched=True)
        if self.loop.is_steady(tensor):
            outer = loop.constant_outside(tensor)
            return None if outer is None else Value(outer, batched=False)
        form = loop.form(tensor) if tensor not in self.free or tensor.shape == () else None
        return None if form is None or not form.steps else Value(self._counted(batch, tensor, form), batched=True)

    def _rows(self, element: Symbol) -> Symbol | None:
        loop, read = self.loop, element.operation
        array, spec = loop.outer(read.inputs[0]), element.spec
        assert array is not None
        assert isinstance(spec, TensorSpec)
        if isinstance(read.op, ArrayRead):
            return loop.window(array, self.elements[element], spec, read)
        vector = convert_to_tensor([loop.trips_tensor(), *[dim or 0 for dim in spec.shape or ()]], "int32")
        return build(ArrayStackLike((loop.known_trips, *(spec.shape or ())), spec.dtype), array, vector)

    def _counted(self, batch: Batch, tensor: Symbol, form: Linear) -> Symbol:
        """Return the values of a counter in all iterations, in the order of the batch."""
        numbers = arange(batch.size, dtype="int32")
        last = convert_to_tensor(batch.size, "int32") - 1
        iteration = numbers if self.direction == 1 else last - numbers
        total: Any = iteration if form.steps == 1 else iteration * form.steps
        total = total + form.constant if form.constant else total
        for term, factor in form.terms:
            total = total + self.loop.number(term) * factor
        assert isinstance(tensor.spec, TensorSpec)
        return build(Cast(tensor.spec.dtype), total) if total.dtype != tensor.spec.dtype else total

    def _place(self, like: Operation) -> Symbol:
        """Return the number, in the body, of this iteration's place in the batch."""
        loop = self.loop
        for tensor in [*loop.body.parameters, *[t for o in loop.needed for t in o.outputs]]:
            form = loop.form(tensor) if tensor.operation.graph is loop.body else None
            if form is not None and form.steps == self.direction and loop.first_place(form) == 0:
                return tensor
        return loop.counter(self.direction, like)
