"""Batching of loops, branches and what refers to their runs.

Where the examples agree on the way (a condition that is the same for all), a loop stays a loop and a branch a branch,
over batched values. Where they differ, only the examples concerned are run: a loop's iteration works on those that go
on, a branch on those that take it, gathered before and put back after. So what an example does not do is never done
for it: no index out of range, no NaN in a gradient from a way not taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autodiff.custom_gradient import CustomGradient
from ..common.identity import is_among
from ..graph.graph import Operation, get_default_graph
from ..graph.region import Region
from ..graph.spec import ArraySpec, Spec, shapes_compatible
from ..graph.tensor import Symbol, Tensor, symbol_of
from ..ops.arrays.creation import zeros
from ..ops.arrays.gathering import take
from ..ops.arrays.joining import concatenate
from ..ops.arrays.positions import nonzero
from ..ops.arrays.scattering import ScatterUpdate
from ..ops.arrays.shaping import dim, expand_dims, reshape
from ..ops.arrays.sorting import argsort
from ..ops.base import apply, cast
from ..ops.math.comparison import clip, equal, logical_not
from ..ops.math.reduction import any as any_true
from .batching import Batch, CannotBatchError, Record, Rule, Value
from .batching_gradients import custom_gradient
from .cond import Branch, build_branch
from .frames import History, Saved, TripCount
from .while_loop import While, build_while

# --- loops ----------------------------------------------------------------------------------------------------------


def loop(batch: Batch, node: Operation, _: list[Value]) -> Sequence[Value]:
    op = node.op
    assert isinstance(op, While)
    inits = [batch.get(tensor) for tensor in node.inputs[: op.carried]]
    if any(init.fresh for init in inits):
        raise CannotBatchError(node, "it carries a random key.")
    for init in inits:
        batch.check_whole(init)
    flags, condition_differs = _settled_flags(batch, op, [init.batched for init in inits])
    if condition_differs:
        return _loop_of_rows(batch, node, op, inits)
    return _loop_together(batch, node, op, inits, flags)


def _settled_flags(batch: Batch, op: While, flags: list[bool]) -> tuple[list[bool], bool]:
    """Find which variables differ between examples at some iteration, and whether the condition does."""
    while True:
        with Region(get_default_graph(), "batching").as_default() as scratch:
            assert isinstance(scratch, Region)
            parameters = [scratch.add_parameter(spec, "variable") for spec in _carried_specs(batch, op, flags)]
            results = _with_parameters(batch, op.body, parameters, flags).run(op.body)
            (condition,) = _with_parameters(batch, op.condition, parameters, flags).run(op.condition)
        found = [flag or result.batched for flag, result in zip(flags, results, strict=True)]
        if found == flags:
            return flags, condition.batched
        flags = found


def _carried_specs(batch: Batch, op: While, flags: Sequence[bool]) -> list[Spec]:
    specs = [parameter.spec for parameter in op.body.parameters]
    return [batch.spec(spec) if flag else spec for spec, flag in zip(specs, flags, strict=True)]


def _with_parameters(batch: Batch, region: Region, parameters: Sequence[Tensor], flags: Sequence[bool]) -> Batch:
    inside = batch.inside()
    for parameter, tensor, flag in zip(region.parameters, parameters, flags, strict=True):
        inside.values[parameter] = Value(tensor, flag)
    return inside


def _as_flagged(batch: Batch, value: Value, flag: bool) -> Tensor:
    return batch.batched(value) if flag else value.tensor


def _loop_together(batch: Batch, node: Operation, op: While, inits: list[Value], flags: list[bool]) -> Sequence[Value]:
    """Loop for all examples together: they make the same number of iterations."""
    demanded = [tensor for tensor in _demanded(node) if tensor.graph is op.body]
    runs: list[Batch] = []

    def condition(values: Sequence[Tensor]) -> Any:
        return _with_parameters(batch, op.condition, values, flags).run(op.condition)[0].tensor

    def step(values: Sequence[Tensor]) -> list[Tensor]:
        inside = _with_parameters(batch, op.body, values, flags)
        runs[:] = [inside]  # of the last trace, which is the one that is kept
        results = inside.run(op.body, demanded)
        return [_as_flagged(inside, result, flag) for result, flag in zip(results, flags, strict=True)]

    starts = [_as_flagged(batch, init, flag) for init, flag in zip(inits, flags, strict=True)]
    specs = [spec.join(t.spec) for spec, t in zip(_carried_specs(batch, op, flags), starts, strict=True)]
    built = build_while(condition, step, starts, specs, (), op.parallel_iterations, op.swap_memory)
    batch.records[node.outputs[-1]] = Record(built.outputs[-1], runs)
    return [Value(tensor, flag) for tensor, flag in zip(built.outputs, flags, strict=False)]


def _loop_of_rows(batch: Batch, node: Operation, op: While, inits: list[Value]) -> Sequence[Value]:
    """Loop until each example stops by its own condition: an iteration is made for those that go on."""
    if any(isinstance(init.tensor.spec, ArraySpec) for init in inits):
        raise CannotBatchError(node, "it carries a TensorArray, and its condition differs between examples.")
    if any(not _keeps_shape(*pair) for pair in zip(node.inputs, op.body.parameters, strict=False)):
        raise CannotBatchError(node, "it carries a value that changes its shape, for each example at its own pace.")
    flags = [True] * op.carried
    demanded = [tensor for tensor in _demanded(node) if tensor.graph is op.body]
    starts = [batch.batched(init) for init in inits]
    (going,) = _with_parameters(batch, op.condition, starts, flags).run(op.condition)
    runs: list[Batch] = []

    def step(values: Sequence[Tensor]) -> list[Tensor]:
        going, trips, *carried = values
        rows = _positions(going)
        some = _some(batch, rows)
        for parameter, value in zip(op.body.parameters, carried, strict=True):
            some.values[parameter] = Value(take(value, rows, axis=0), batched=True)
        results = [some.batched(result) for result in some.run(op.body, demanded)]
        (on,) = _with_parameters(some, op.condition, results, flags).run(op.condition)
        runs[:] = [_recorded(batch, node, op, some, carried, demanded)]
        parts = [some.batched(on), *results]
        going_on, *after = [_put(whole, rows, part) for whole, part in zip([going, *carried], parts, strict=True)]
        return [going_on, trips + cast(going, "int32"), *after]

    specs = [spec.join(t.spec) for spec, t in zip(_carried_specs(batch, op, flags), starts, strict=True)]
    first, none = batch.batched(going), zeros((batch.size,), "int32")
    built = build_while(
        _any_goes_on,
        step,
        [first, none, *starts],
        [first.spec, none.spec, *specs],
        (),
        op.parallel_iterations,
        op.swap_memory,
    )
    batch.records[node.outputs[-1]] = Record(built.outputs[-1], runs, trips=Value(built.outputs[1], batched=True))
    return [Value(tensor, batched=True) for tensor in built.outputs[2:-1]]


def _keeps_shape(init: Tensor, parameter: Tensor) -> bool:
    """Test whether no size of a loop variable that is known at first is unknown later on."""
    if init.shape is None or parameter.shape is None:
        return init.shape == parameter.shape
    return all(later is not None or first is None for first, later in zip(init.shape, parameter.shape, strict=True))


def _any_goes_on(values: Sequence[Tensor]) -> Tensor:
    return any_true(values[0])


def _recorded(
    batch: Batch, node: Operation, op: While, some: Batch, carried: Sequence[Tensor], demanded: Sequence[Symbol]
) -> Batch:
    """Return recorded values of an iteration, with a row for each example, also those that have stopped.

    All examples start together, so iteration i of one is iteration i of all that make it.
    """
    recorded = batch.inside()
    whole: dict[Symbol, Tensor] = dict(zip(op.body.parameters, carried, strict=True))
    assert some.rows is not None
    for tensor in demanded:
        value = some.get(tensor)
        if tensor in whole:
            recorded.values[tensor] = Value(whole[tensor], batched=True)
        elif not value.batched:
            recorded.values[tensor] = value
        elif value.optional or value.part is not None or value.tensor.shape is None:
            raise CannotBatchError(node, "its gradient is taken inside, and needs what can't be kept of some examples.")
        else:
            sizes = [dim(value.tensor, axis) for axis in range(1, len(value.tensor.shape))]
            nothing = zeros((batch.size, *sizes), value.tensor.dtype)
            recorded.values[tensor] = Value(_put(nothing, some.rows, value.tensor), batched=True)
    return recorded


# --- branches -------------------------------------------------------------------------------------------------------


def branch(batch: Batch, node: Operation, _: list[Value]) -> Sequence[Value]:
    op = node.op
    assert isinstance(op, Branch)
    choice = batch.get(node.inputs[0])
    if choice.batched:
        return _branches_of_rows(batch, node, op, choice)
    demanded = _demanded(node)
    graph = get_default_graph()
    regions = [Region(graph, region.name) for region in op.regions]
    runs = [batch.inside() for _ in regions]
    found: list[list[Value]] = []
    for region, run, original in zip(regions, runs, op.regions, strict=True):
        with region.as_default():
            found.append(run.run(original, [tensor for tensor in demanded if tensor.graph is original]))
    flags = [any(value.batched for value in column) for column in zip(*found, strict=True)]
    for region, run, values in zip(regions, runs, found, strict=True):
        with region.as_default():
            region.results = [
                region.capture(_as_flagged(run, value, flag)) for value, flag in zip(values, flags, strict=True)
            ]
    built = build_branch(regions, choice.tensor)
    batch.records[node.outputs[-1]] = Record(built.outputs[-1], runs)
    return [Value(tensor, flag) for tensor, flag in zip(built.outputs, flags, strict=False)]


def _branches_of_rows(batch: Batch, node: Operation, op: Branch, choice: Value) -> Sequence[Value]:
    """Run each branch for the examples that take it."""
    batch.check_whole(choice)
    for column in zip(*[region.results for region in op.regions], strict=True):
        if any(not shapes_compatible(column[0].shape, result.shape) for result in column[1:]):
            raise CannotBatchError(node, "its branches give different shapes, and the examples do not all take one.")
    demanded = _demanded(node)
    parts: list[list[Tensor]] = []
    order: list[Tensor] = []
    runs: list[Batch] = []
    for k, rows in enumerate(_rows_of_branches(choice.tensor, len(op.regions))):
        region = op.regions[k]
        some = _some(batch, rows, (choice.identity, k))
        results = some.run(region, [tensor for tensor in demanded if tensor.graph is region])
        if any(isinstance(result.tensor.spec, ArraySpec) for result in results):
            raise CannotBatchError(node, "it returns a TensorArray, and its predicate differs between examples.")
        parts.append([some.batched(result) for result in results])
        order.append(rows)
        runs.append(some)
    batch.records[node.outputs[-1]] = Record(None, runs, choice=choice)
    back = argsort(concatenate(order))
    merged = [take(concatenate(column), back, axis=0) for column in zip(*parts, strict=True)]
    return [Value(_of_size(batch, tensor), batched=True) for tensor in merged]


def _of_size(batch: Batch, tensor: Tensor) -> Tensor:
    """Return `tensor`, whose first axis has the size of the batch, as far as that is known."""
    if tensor.shape is None or batch.static_size is None:
        return tensor
    return reshape(tensor, (batch.static_size, *[dim(tensor, axis) for axis in range(1, len(tensor.shape))]))


def _rows_of_branches(choice: Tensor, count: int) -> list[Tensor]:
    if choice.dtype.kind == "b":
        return [_positions(choice), _positions(logical_not(choice))]
    clamped = clip(choice, 0, count - 1)
    return [_positions(equal(clamped, position)) for position in range(count)]


# --- rows -----------------------------------------------------------------------------------------------------------


def _positions(mask: Tensor) -> Tensor:
    return nonzero(mask)[0]


def _some(batch: Batch, rows: Tensor, part: tuple[Any, int] | None = None) -> Batch:
    return batch.inside(dim(rows, 0), rows, part)


def _put(whole: Tensor, rows: Tensor, part: Tensor) -> Tensor:
    """Return `whole` with `rows` of it replaced."""
    return apply(ScatterUpdate(), whole, expand_dims(rows, 1), part)


# --- records of runs ------------------------------------------------------------------------------------------------


def _demanded(node: Operation) -> list[Symbol]:
    """Return the values inside a loop or branch that anything around it reads from its record."""
    return [user.op.inner for user in _record_users(node) if isinstance(user.op, (History, Saved))]


def _record_users(node: Operation) -> list[Operation]:
    frame = node.outputs[-1]
    return [operation for operation in node.graph.operations if is_among(frame, operation.inputs)]


def recorded(batch: Batch, node: Operation, _: list[Value]) -> Sequence[Value]:
    """Batch a `History`, `Saved` or `TripCount`: the same of the loop or branch over batched values."""
    op = node.op
    record = batch.record(node.inputs[0])
    assert record is not None, f"This is a bug in anabranch: {node.inputs[0]!r} was not run. Please report it."
    if isinstance(op, TripCount):
        if record.trips is not None:
            return [record.trips]
        assert record.frame is not None
        return [Value(apply(op, record.frame), batched=False)]
    assert isinstance(op, (History, Saved))
    inner, position = _inside(op.inner, record.runs)
    if record.frame is None:
        return [_saved_in_place(node, record, inner, position)]
    tensor = apply(type(op)(symbol_of(inner.tensor)), record.frame)
    return [
        inner.followed(tensor, "history") if isinstance(op, History) else Value(tensor, inner.batched, optional=True)
    ]


def _saved_in_place(node: Operation, record: Record, inner: Value, position: int) -> Value:
    """Return the value itself, which only the examples have that took the branch."""
    if not inner.batched:
        return inner
    if inner.part is not None or inner.rows is not None or record.choice is None:
        raise CannotBatchError(node, "it was saved in branches within each other that not all examples take.")
    return Value(inner.tensor, batched=True, part=(record.choice.identity, position))


def _inside(tensor: Symbol, runs: Sequence[Batch]) -> tuple[Value, int]:
    """Return the value that stands for a tensor of a region, and the position of the region."""
    for position, run in enumerate(runs):
        if tensor in run.values:
            return run.values[tensor], position
    raise AssertionError(f"This is a bug in anabranch: {tensor!r} was not run. Please report it.")


STRUCTURAL: dict[type[Any], Rule] = {
    While: loop,
    Branch: branch,
    CustomGradient: custom_gradient,
    History: recorded,
    Saved: recorded,
    TripCount: recorded,
}

__all__ = ["STRUCTURAL"]
