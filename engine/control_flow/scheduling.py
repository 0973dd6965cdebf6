"""`dynamic_schedule`: a function that may run on any of several devices, chosen when its inputs are there.

In the graph it is one op with one region, a branch without an alternative: so whatever runs or rewrites branches runs
and rewrites it, and it simply runs once. On the dataflow machine it becomes a Schedule, a Demultiplex, a replica of the
function on each device, and what joins the parts (`lower.scheduling`).

Its inputs are cut by rows if it may be split. Which captured values are cut, and which results are rows to be joined or
sums to be added up, is marked by `ScheduledPart` ops inside the region, so that it survives what passes do to captures.

The gradient is such an op again, over the rows of inputs and cotangents. It computes the function's values again, for
what a replica made on one device is of no use where its gradient is scheduled on another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from ..autodiff.backpropagate import Sweep, backpropagate, reachable_operations
from ..common.nest import flatten_with_path, is_sequence
from ..common.quick_dataclass import dataclass
from ..graph.device import DeviceName
from ..graph.graph import Operation, Parameter, get_default_graph, graph_for
from ..graph.op import Op
from ..graph.region import Region
from ..graph.spec import Spec, TensorSpec
from ..graph.tensor import Symbol, Tensor, symbol_of
from ..ops.base import apply, convert_to_tensor, runs_now
from ..ops.containers.cotangent import accumulate, resolved
from .cond import Branch, BranchGradient
from .region_op import rebuild

ROWS, JOINED, SUMMED = "rows", "joined", "summed"


@dataclass(frozen=True)
class ScheduledPart(Op):
    """Marks a value of a scheduled function; gives it as it is.

    Attributes:
        role: "rows" for an input of which a replica gets some rows, "joined" for a result that is made of the rows of
            all replicas, "summed" for one that is their sum.
    """

    role: str

    no_samples: ClassVar[str] = "marks values of scheduled functions: test_scheduling"
    view = True

    def infer(self, *inputs: Any) -> Spec:
        """Infer specs with an unknown number of rows inside: a replica gets some of them."""
        (spec,) = inputs
        return _with_rows(spec, None) if self.role == ROWS else spec

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0]

    def emit(self, arguments: Sequence[str]) -> str | None:
        return arguments[0]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return cotangents


class Scheduled(Branch):
    """Runs its only region; on which device is decided when its inputs are there.

    Inputs: a choice that is none, then the captures. Outputs: the results, and the frame.

    Args:
        regions: one.
        devices: on which it may run; empty for all of the fastest kind.
        split: whether it may run on some of the rows here and on others there.
        least_rows: of a part.
    """

    type_name = "scheduled"
    is_choice = False  # nothing is drawn into it: it would no longer be cut by rows

    def __init__(
        self, regions: Sequence[Region], devices: Sequence[str] = (), split: bool = True, least_rows: int = 1
    ) -> None:
        super().__init__(regions)
        self.devices = tuple(devices)
        self.split = split
        self.least_rows = least_rows

    @property
    def region(self) -> Region:
        return self.regions[0]

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        specs: list[Any] = list(super().infer(*inputs))
        cut = _cut_parameters(self.region)
        given = zip(self.region.captures, inputs[1:], strict=True)
        known = [spec.shape[0] for (_, parameter), spec in given if parameter in cut and spec.shape]
        rows = next((dim for dim in known if dim is not None), None)
        for position, result in enumerate(self.region.results):
            if role_of(result) == JOINED:
                specs[position] = _with_rows(specs[position], rows)
        return tuple(specs)

    def with_regions(self, regions: Sequence[Region]) -> Scheduled:
        return Scheduled(regions, self.devices, self.split, self.least_rows)

    def backward_within(self, node: Operation, cotangents: list[Any], needed: list[bool], sweep: Sweep) -> list[Any]:
        if cotangents[-1] is not None or any(inner.op.regions for inner in self.region.operations):
            return BranchGradient(self, node, cotangents, sweep).build()  # over what was saved; runs in one place
        return _build_gradient(self, node, cotangents[:-1], sweep)


class _Again:
    """Values of a scheduled function for its gradient: computed again from what it captured."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._outer = {parameter: outer for outer, parameter in region.captures}
        self._known: dict[Symbol, Symbol] = {}

    def resolve(self, into: Region, tensor: Symbol) -> Symbol:
        for operation in reachable_operations(self.region, [tensor]):
            if any(output not in self._known for output in operation.outputs):
                self._known.update(zip(operation.outputs, self._again(into, operation), strict=True))
        return self._known[tensor]

    def _again(self, into: Region, operation: Operation) -> tuple[Symbol, ...]:
        if isinstance(operation.op, Parameter):
            return (_parameter_for(into, self._outer[operation.outputs[0]]),)
        return into.add(operation.op, [self._known[tensor] for tensor in operation.inputs], operation.name).outputs


def _parameter_for(region: Region, tensor: Tensor) -> Symbol:
    """Return a parameter of its own for a captured tensor: what is cut by rows may be used as a whole besides."""
    return region.add_capture(region.parent.capture(tensor))


def _build_gradient(op: Scheduled, node: Operation, cotangents: Sequence[Any], sweep: Sweep) -> list[Any]:
    """Append the op that gives the cotangents of what `node` captured; they are added to the sweep's."""
    region = op.region
    captured = {parameter: outer for outer, parameter in region.captures if sweep.flows_to(outer)}
    graph = get_default_graph()
    backward = Region(graph, f"{region.name}_grad", _Again(region))
    with backward.as_default(), backward.device(None):
        seeds: dict[Symbol, Any] = {}
        for result, cotangent in zip(region.results, cotangents, strict=True):
            if cotangent is not None:
                seeds[result] = accumulate(seeds.get(result), _seed(backward, result, cotangent))
        totals = backpropagate(region, seeds, list(captured))
        cut = _cut_parameters(region)
        for parameter, total in totals.items():
            total = backward.capture(resolved(total))
            role = JOINED if parameter in cut else SUMMED
            backward.results.append(symbol_of(apply(ScheduledPart(role), total)) if op.split else total)
    found = _append(op.with_regions([backward]), f"{node.name}_grad")
    for parameter, output in zip(totals, found.outputs, strict=False):
        sweep.add(captured[parameter], output)
    return [None] * len(node.inputs)


def _seed(backward: Region, result: Symbol, cotangent: Tensor) -> Tensor:
    local = _parameter_for(backward, cotangent)
    return apply(ScheduledPart(ROWS), local) if role_of(result) == JOINED else local


def _with_rows(spec: Any, rows: int | None) -> Any:
    return TensorSpec((rows, *spec.shape[1:]), spec.dtype) if spec.shape else spec


def role_of(tensor: Symbol) -> str:
    """Return how a value of a scheduled function is marked; "" if it is not."""
    op = tensor.operation.op
    return op.role if isinstance(op, ScheduledPart) else ""


def _cut_parameters(region: Region) -> set[Symbol]:
    """Return the parameters of which rows are taken."""
    return {
        operation.inputs[0]
        for operation in region.operations
        if isinstance(operation.op, ScheduledPart) and operation.op.role == ROWS
    }


def _append(op: Scheduled, name: str) -> Operation:
    graph = get_default_graph()
    controls = op.region.settled_waits()
    with graph.control_dependencies(controls), graph.device(None):
        return graph.add(op, [convert_to_tensor(0), *op.captured_inputs()], name)


def dynamic_schedule(
    function: Callable[..., Any],
    inputs: Any,
    *,
    devices: Sequence[str] = (),
    split: bool = True,
    least_rows: int = 1,
    name: str | None = None,
) -> Any:
    """Call ``function(*inputs)`` on devices that are chosen once the inputs are there, by load and by its cost.

    Args:
        function: takes tensors and gives a tensor or a structure of them. It may use variables and any tensor from
            outside; these go, as its state, to each device on which it is run. It changes nothing (`assign`, random
            numbers), as its gradient computes its values again.
        inputs: a tensor or several, each [rows, ...] with the same number of rows if it may be split.
        devices: where it may run, such as ``["sim:0", "sim:1"]``; by default all accelerators, or all CPUs if there are
            none.
        split: whether the rows may be spread over several devices. Then each row of a result is made of the same row
            of the inputs, and of none besides: [rows, ...] as well.
        least_rows: the least number of rows that are worth a part of their own.
        name: a name for the operation.

    Returns:
        What `function` returns.

    Raises:
        TypeError: an input or a result is not a tensor (a TensorArray, say).
        ValueError: there are no rows to be split, their numbers differ, or the function changes something.

    Wherever a step is not spread over devices, the function is simply run. On the dataflow machine, inputs that are
    there together are scheduled together; an input without rows runs nothing, and its state goes nowhere. Gradients of
    any order are scheduled in the same way.

    Wei et al., "Dynamic Scheduling For Dynamic Control Flow in Deep Learning Systems" (2018), section 3.

    >>> import anabranch as ab
    >>> w = ab.Variable([[1.0], [2.0]], name="w")
    >>> x = ab.placeholder((None, 2), "float32", name="x")
    >>> y = ab.dynamic_schedule(lambda rows: rows @ w, [x])
    >>> ab.Session().run([y, *ab.gradients(y, [w])], {x: [[1, 0], [0, 1], [2, 2]]})
    [array([[1.],
           [2.],
           [6.]], dtype=float32), array([[3.],
           [3.]], dtype=float32)]
    """
    given = [convert_to_tensor(value) for value in (inputs if is_sequence(inputs) else [inputs])]
    name = name or "scheduled"
    _check_inputs(given, split)
    for device in devices:
        DeviceName.parse(device)
    if runs_now(given):
        return function(*given)
    graph = graph_for(given)
    region = Region(graph, name)
    with region.as_default(), region.device(None):
        parameters = [_parameter_for(region, tensor) for tensor in given]
        if split:
            parameters = [apply(ScheduledPart(ROWS), parameter) for parameter in parameters]
        structure = function(*parameters)
        results = [_result(leaf, path, region) for path, leaf in flatten_with_path(structure)]
        if split:
            _check_results(results, given)
        region.results = [symbol_of(apply(ScheduledPart(JOINED), result)) if split else result for result in results]
    _check_effects(region)
    node = _append(Scheduled([region], devices, split, least_rows), name)
    return rebuild(structure, node.outputs[:-1])


def _result(leaf: Any, path: str, region: Region) -> Symbol:
    flow = getattr(leaf, "flow", None)
    tensor = None if flow is not None else convert_to_tensor(leaf)
    if tensor is None or not isinstance(tensor.spec, TensorSpec):
        raise TypeError(
            f"dynamic_schedule: the function returns {leaf!r}{f' at {path}' if path else ''}; expected tensors. "
            "Stack a TensorArray, or read from a TensorStore, inside the function."
        )
    return region.capture(tensor)


def _check_inputs(given: Sequence[Tensor], split: bool) -> None:
    for position, tensor in enumerate(given):
        if not isinstance(tensor.spec, TensorSpec):
            raise TypeError(
                f"dynamic_schedule: input {position} is {tensor!r}; expected a tensor. Let the function use it from "
                "outside instead."
            )
        if split and tensor.shape == ():
            raise ValueError(
                f"dynamic_schedule: input {position} is a scalar, which has no rows; expected [rows, ...]. Let the "
                "function use it from outside, or pass split=False."
            )
    if split and not given:
        raise ValueError("dynamic_schedule: there are no inputs to split by rows. Pass some, or split=False.")
    if split:
        _check_rows("the inputs", [tensor.shape[0] for tensor in given if tensor.shape])


def _check_results(results: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    for position, tensor in enumerate(results):
        if tensor.shape == ():
            raise ValueError(
                f"dynamic_schedule: result {position} is a scalar; expected [rows, ...], a row for each of the inputs. "
                "Reduce it outside of the function, or pass split=False."
            )
    dims = [tensor.shape[0] for tensor in (*given, *results) if tensor.shape]
    _check_rows("the inputs and results", dims)


def _check_rows(what: str, dims: Iterable[int | None]) -> None:
    known = sorted({dim for dim in dims if dim is not None})
    if len(known) > 1:
        raise ValueError(
            f"dynamic_schedule: {what} have {' and '.join(map(str, known))} rows; expected the same number. Pass "
            "split=False if rows do not stand for themselves."
        )


def _check_effects(region: Region) -> None:
    for operation in region.operations:
        if operation.writes:
            raise ValueError(
                f"dynamic_schedule: {operation!r} inside the function changes something, or takes random numbers; "
                "expected none that does, as parts and gradients run it again. Do that outside, and pass what it gives."
            )


__all__ = ["JOINED", "ROWS", "SUMMED", "Scheduled", "ScheduledPart", "dynamic_schedule", "role_of"]
