"""Running a traced function for many examples at once: its operations, one by one, over values with a batch axis.

A value is either *batched* (an example of it for each element of the map, along a new first axis; an array of tensors
has it in each element) or the same for all. What depends on no batched value is built once. Everything else goes by a
table of rules (`batching_rules`), or by the axis map of its op; an operation that neither serves is looped over alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..common import dtypes
from ..common.quick_dataclass import dataclass
from ..graph.graph import Graph, Operation, Parameter, get_default_graph
from ..graph.region import Region
from ..graph.search import reached
from ..graph.spec import ArraySpec, Spec, StoreSpec, TensorSpec
from ..graph.tensor import Symbol, Tensor, symbol_of
from ..ops.arrays.gathering import take
from ..ops.arrays.joining import concatenate
from ..ops.arrays.shaping import DimLike, DimOf, SizeOf, broadcast_to, constant_value, dim, expand_dims, reshape
from ..ops.base import apply, convert_to_tensor, make_constant
from ..ops.containers.tensor_arrays import ArrayEmpty, ArrayNew, ArrayRead, ArraySize, ArrayStack, ArrayUnstack
from ..ops.containers.tensor_stores import StoreNew
from ..ops.random.keys import SeedGenerator, TakeKey
from ..ops.run_time_shapes import BroadcastToShape, ShapeOf, runtime_shape
from .region_op import RegionOp
from .scan import map_fn, map_rows


class CannotBatchError(Exception):
    """This is about one operation, for which the whole function has to be looped over."""

    def __init__(self, operation: Operation, why: str) -> None:
        super().__init__(f"{operation.name!r} ({operation.type}, defined at {operation.location}): {why}")


class SizesVaryError(CannotBatchError):
    """An operation gives results whose sizes follow from values, which each example has of its own."""


@dataclass(frozen=True)
class Value:
    """The value that stands for a tensor of the function.

    Attributes:
        batched: whether it has a batch axis.
        fresh: it is a random key taken inside, so what is drawn with it differs from example to example.
        rows: of an array, which rows of each element are meant, an int32 vector; by default all.
        part: it was saved in a branch, for the examples that took it: (identity of the branch's choice, its position).
        optional: it was saved in a branch, and there is none where another branch was taken.
        origin: an identity that values share which are read at the same place of the record of a loop.
    """

    tensor: Tensor
    batched: bool
    fresh: bool = False
    rows: Tensor | None = None
    part: tuple[Any, int] | None = None
    optional: bool = False
    origin: Any = None

    @property
    def identity(self) -> Any:
        """The key by which two values of the function are the same or not."""
        return self.tensor if self.origin is None else self.origin

    def followed(self, tensor: Tensor, *step: Any) -> Value:
        """Return the value that is read from this one, or recorded of it, by `step`."""
        part = None if self.part is None else ((*step, self.part[0]), self.part[1])
        return Value(tensor, self.batched, part=part, optional=self.optional, origin=(*step, self.identity))


@dataclass(frozen=True)
class Record:
    """The record that stands for the frame of a loop or branch.

    Attributes:
        frame: the frame of the loop or branch that was built; None where branches were run in place.
        runs: the batches in which its regions were run.
        trips: how many iterations each example made, where that differs.
        choice: the choice of a branch that was run in place.
    """

    frame: Tensor | None
    runs: list[Batch]
    trips: Value | None = None
    choice: Value | None = None


# Ops that may be applied to parts of values, too: those that ask for the shape alone, and reads.
_TAKE_PARTS = (ShapeOf, DimOf, SizeOf, ArrayRead, ArraySize)
Rule = Callable[["Batch", Operation, list[Value]], Sequence[Value] | None]


class Batch:
    """The values of a traced function (or of a loop body or branch in it) for all examples.

    Args:
        size: how many examples there are, an int or an int32 scalar.
        rules: what is done for each operation.
        around: the batch of the enclosing region.
        rows: which examples of `around` these are, an int32 vector; by default all.
        part: the branch that just these take, as in `Value`.
    """

    def __init__(
        self,
        size: DimLike,
        rules: Rules,
        around: Batch | None = None,
        rows: Tensor | None = None,
        part: tuple[Any, int] | None = None,
    ) -> None:
        self.size = size
        self.rules = rules
        self.around = around
        self.rows = rows
        self.part = part
        self.region: Region | None = None
        self._graph = get_default_graph()
        self.values: dict[Symbol, Value] = {}
        self.records: dict[Symbol, Record] = {}

    def inside(
        self, size: DimLike | None = None, rows: Tensor | None = None, part: tuple[Any, int] | None = None
    ) -> Batch:
        """Return a batch for a region in this one, of all examples or of some `rows`."""
        return Batch(self.size if size is None else size, self.rules, self, rows, part)

    # --- values ---------------------------------------------------------------------------------------------

    def get(self, tensor: Symbol) -> Value:
        """Return the value that stands for `tensor`."""
        found = self.values.get(tensor)
        if found is None:
            found = self.values[tensor] = self.looked_up(tensor)
        return found

    def looked_up(self, tensor: Symbol) -> Value:
        """Find the value that stands for a tensor not among the values: a captured one, or one from around."""
        graph = tensor.graph
        # Not what is captured around the function: it may become a read of a variable that a loop there writes.
        is_inside = not self._graph.is_inside(graph)
        if is_inside and isinstance(tensor.operation.op, Parameter) and isinstance(graph, Region):
            for outer, parameter in graph.captures:
                if parameter is tensor:
                    return self.get(outer)
        if self.around is None:
            return Value(tensor, batched=False)  # from outside of the function
        found = self.around.get(tensor)
        if self.rows is None or not found.batched:
            return found
        if found.part is not None and found.part == self.part:
            return Value(found.tensor, batched=True)
        if found.part is not None:
            raise CannotBatchError(tensor.operation, "what was saved in a branch is used in another one.")
        with self._graph.as_default():  # a region inside may be the first to ask
            if isinstance(found.tensor.spec, ArraySpec):
                rows = self.rows if found.rows is None else take(found.rows, self.rows, axis=0)
                return dataclasses.replace(found, rows=rows)
            if found.optional:
                raise CannotBatchError(tensor.operation, "it is of a branch, and is used where only some examples run.")
            return Value(take(found.tensor, self.rows, axis=0), batched=True)

    def record(self, tensor: Symbol) -> Record | None:
        """Return the record that stands for a frame, if its loop or branch was run in a way that keeps one."""
        if tensor in self.records:
            return self.records[tensor]
        if isinstance(tensor.operation.op, Parameter) and isinstance(tensor.graph, Region):
            for outer, parameter in tensor.graph.captures:
                if parameter is tensor:
                    return self.record(outer)
        return None if self.around is None else self.around.record(tensor)

    def batched(self, value: Value) -> Tensor:
        """Return `value` with a batch axis, repeated if it is the same for all."""
        self.check_whole(value)
        if value.batched:
            return value.tensor
        if isinstance(value.tensor.spec, ArraySpec):
            return self._batched_array(symbol_of(value.tensor))
        # By the shape as a whole: what was saved in a branch that was not taken has not even the axes it should have.
        vector = self.shape_vector(runtime_shape(value.tensor))
        return apply(BroadcastToShape(self.shape(value.tensor.shape)), value.tensor, vector)

    def check_whole(self, value: Value) -> None:
        """Refuse what only a branch, or a read, can make use of.

        Raises:
            CannotBatchError: `value` is a part of a value.
        """
        if value.part is not None:
            raise CannotBatchError(
                symbol_of(value.tensor).operation, "what was saved in a branch is used outside of it."
            )
        if value.rows is not None:
            raise CannotBatchError(
                symbol_of(value.tensor).operation, "a TensorArray is used where only some examples run."
            )

    def _batched_array(self, array: Symbol) -> Tensor:
        op = array.operation.op
        if isinstance(op, ArrayEmpty):
            return apply(ArrayEmpty(self.spec(op.spec)))
        if isinstance(op, ArrayNew):
            return apply(ArrayNew(self.spec(op.element), op.size, op.open_shape), *array.operation.inputs)
        if isinstance(op, StoreNew):
            return apply(StoreNew(self.spec(op.element), op.key, op.open_shape))
        spec = array.spec
        assert isinstance(spec, ArraySpec)
        if isinstance(spec, StoreSpec) or not isinstance(spec.element, TensorSpec) or spec.element.shape is None:
            raise CannotBatchError(
                array.operation, "a TensorArray that is the same for all gets elements that are not."
            )
        rows = expand_dims(apply(ArrayStack(spec.element), array), 1)
        sizes = [dim(rows, axis) for axis in range(2, len(rows.shape or ()))]
        return apply(ArrayUnstack(), broadcast_to(rows, (dim(rows, 0), self.size, *sizes)))

    def aligned(self, value: Value, rank: int, wanted: int) -> Tensor:
        """Return a value of `rank` axes an example, such that it broadcasts against batched ones of `wanted` axes."""
        if not value.batched or rank == wanted:
            return value.tensor
        return expand_dims(value.tensor, tuple(range(1, 1 + wanted - rank)))

    # --- shapes ---------------------------------------------------------------------------------------------

    @property
    def static_size(self) -> int | None:
        return self.size if isinstance(self.size, int) else None

    def dims(self) -> list[Tensor]:
        """Return the batch size as what fills the first None of a shape attribute; nothing if it is known."""
        return [self.size] if isinstance(self.size, Tensor) else []

    def shape(self, shape: Any) -> Any:
        """Return a static shape with the batch in front."""
        return None if shape is None else (self.static_size, *shape)

    def spec(self, spec: Spec) -> Any:
        """Return the spec of the batched form of a value."""
        if isinstance(spec, ArraySpec):
            return dataclasses.replace(spec, element=self.spec(spec.element))
        assert isinstance(spec, TensorSpec)
        return TensorSpec(self.shape(spec.shape), spec.dtype)

    def shape_vector(self, shape: Tensor) -> Tensor:
        """Return a shape, as an int32 vector, with the batch in front."""
        known = constant_value(shape)
        if known is not None and isinstance(self.size, int):
            return make_constant(np.array([self.size, *known], "int32"))
        return concatenate([reshape(convert_to_tensor(self.size, "int32"), (1,)), shape])

    # --- operations -----------------------------------------------------------------------------------------

    def run(self, region: Region, demanded: Iterable[Symbol] = ()) -> list[Value]:
        """Run a region for the examples; the values of its results. `demanded` are values inside, needed too."""
        self.region, wanted = region, list(demanded)
        for operation in needed_operations(region, [*region.results, *wanted]):
            if not isinstance(operation.op, Parameter):
                self.run_operation(operation)
        return [self.get(result) for result in region.results]

    def run_operation(self, operation: Operation) -> None:
        """Build `operation` for the examples and note the values of its outputs."""
        graph = get_default_graph()
        with graph.device(operation.device):
            outputs = self._outputs(operation)
        for tensor, value in zip(operation.outputs, outputs, strict=False):
            self.values[tensor] = value

    def _outputs(self, operation: Operation) -> Sequence[Value]:
        rule = self.rules.find(operation)
        if isinstance(operation.op, RegionOp) or self.rules.is_structural(operation):
            if rule is None:
                raise CannotBatchError(operation, "a recursion ends earlier for some examples than for others.")
            found = rule(self, operation, [])
            assert found is not None
            return found
        values = [self.get(tensor) for tensor in operation.inputs]
        if any(value.fresh for value in values):
            return self._drawn(operation, values, rule)
        if not any(value.batched for value in values):
            fresh = isinstance(operation.op, TakeKey)
            return [Value(tensor, False, fresh) for tensor in self._built_once(operation, values)]
        if not isinstance(operation.op, _TAKE_PARTS):
            for value in values:
                self.check_whole(value)
        found = None if rule is None else rule(self, operation, values)
        return self._looped(operation, values) if found is None else found

    def _drawn(self, operation: Operation, values: list[Value], rule: Rule | None) -> Sequence[Value]:
        found = None if rule is None else rule(self, operation, values)
        if found is None:
            raise CannotBatchError(operation, "it takes a random key, and would give all examples the same.")
        return found

    def _built_once(self, operation: Operation, values: list[Value]) -> Sequence[Tensor]:
        tensors = [value.tensor for value in values]
        return get_default_graph().add(operation.op, tensors, operation.name).outputs

    def _looped(self, operation: Operation, values: list[Value]) -> Sequence[Value]:
        """Run one operation alone, example by example."""
        specs: list[Spec] = [tensor.spec for tensor in (*operation.inputs, *operation.outputs)]
        if not all(isinstance(spec, TensorSpec) for spec in specs):
            raise CannotBatchError(operation, "it works on a TensorArray whose elements differ between examples.")
        if _varies(operation):
            raise SizesVaryError(operation, "the sizes of its results may differ between examples.")
        self.rules.note_fallback(operation)

        def one(rows: list[Tensor]) -> list[Tensor]:
            remaining = iter(rows)
            tensors = [next(remaining) if value.batched else value.tensor for value in values]
            return list(get_default_graph().add(operation.op, tensors, operation.name).outputs)

        # Of no examples, results have sizes that zeros give. As positions and shapes, zeros are no such data.
        is_data = any(x.ndim is None for x in operation.inputs) and not any(
            dtypes.is_integer(x.dtype) for x in operation.inputs
        )
        mapped = map_fn if operation.op.elementwise or is_data else map_rows
        rows = mapped(one, [value.tensor for value in values if value.batched])
        return [Value(row, batched=True) for row in rows]


def _varies(operation: Operation) -> bool:
    """Test whether sizes of an operation's results follow from values of its inputs.

    Sizes that are not known are those of all examples: what `infer` finds for other sizes in their place says more.
    """
    if operation.op.shape_from_values:
        return True
    if any(tensor.spec.shape is None for tensor in operation.inputs):
        return False  # nothing follows from unknown ranks
    try:
        found = operation.op.infer(*[_with_sizes(tensor.spec) for tensor in operation.inputs])
    except ValueError:  # others do not fit
        return False
    specs = found if isinstance(found, tuple) else (found,)
    return not all(isinstance(spec, TensorSpec) and spec.is_static for spec in specs)


def _with_sizes(spec: Spec) -> Spec:
    """Return a spec with some size in the place of each that is not known."""
    if not isinstance(spec, TensorSpec) or spec.shape is None:
        return spec
    shape = tuple(3 if size is None else size for size in spec.shape)
    return TensorSpec(shape, spec.dtype)


class Rules:
    """A table from op class to rule, a default, and what had none."""

    def __init__(self, table: dict[type[Any], Rule], structural: dict[type[Any], Rule], default: Rule) -> None:
        self._table = table
        self._structural = structural
        self._default = default
        self.fallbacks: dict[str, Operation] = {}

    def find(self, operation: Operation) -> Rule | None:
        kind = type(operation.op)
        for table in (self._structural, self._table):
            for base in kind.__mro__:
                if base in table:
                    return table[base]
        return None if isinstance(operation.op, RegionOp) or self.is_structural(operation) else self._default

    def is_structural(self, operation: Operation) -> bool:
        """Test whether an operation deals with regions and frames, and looks its inputs up by itself."""
        return type(operation.op) in self._structural

    def note_fallback(self, operation: Operation) -> None:
        self.fallbacks.setdefault(operation.type, operation)


def needed_operations(region: Region, wanted: Iterable[Symbol]) -> list[Operation]:
    """Return the operations of a region on which `wanted` depend, and those with effects, in program order."""
    starts = [tensor.operation for tensor in wanted if tensor.graph is region]
    starts += [operation for operation in region.operations if operation.writes]
    found = reached(starts, lambda operation: [tensor.operation for tensor in operation.inputs])
    return sorted(found, key=lambda operation: operation.index)


def check_effects(graph: Graph) -> None:
    """Refuse writes, which would happen once instead of once for each example.

    Raises:
        CannotBatchError: something other than a random generator is written.
    """
    for operation in graph.operations:
        for effect in operation.effects:
            if effect.writes and not isinstance(effect.resource, SeedGenerator):
                raise CannotBatchError(operation, f"it writes {effect.resource!r}, once for each example.")


def changed(op: Any, **fields: Any) -> Any:
    """Return `op` with some of its attributes replaced."""
    return dataclasses.replace(op, **fields) if fields else op


__all__ = [
    "Batch",
    "CannotBatchError",
    "Rule",
    "Rules",
    "SizesVaryError",
    "Value",
    "changed",
    "check_effects",
    "needed_operations",
]
