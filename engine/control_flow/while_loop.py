"""`while_loop`, the structured loop, and its gradient, which is a loop again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..autodiff.backpropagate import backpropagate, frame_cotangents
from ..common.nest import is_sequence
from ..graph.captured_values import warn_of_lost_gradient
from ..graph.context import graph_context, in_explicit_graph
from ..graph.graph import Graph, Operation, get_default_graph
from ..graph.region import Mirror, Region
from ..graph.slices import IndexedSlices
from ..graph.spec import FrameSpec, Spec
from ..graph.state.lifting import Creations
from ..graph.tensor import Symbol, Tensor
from ..graph.value import Value
from ..ops.base import convert_to_tensor
from ..ops.containers.cotangent import accumulate
from ..ops.containers.tensor_arrays import read_or_zeros
from ..ops.entrance import symbol_in
from ..ops.math.comparison import logical_and
from ..ops.run_time_shapes import runtime_shape
from .call import NotKnownYet
from .frames import LoopMirror, trip_count
from .loop_variables import LoopVariables, as_arguments
from .region_op import (
    RegionOp,
    check_takes,
    rebuild,
    settle_variables,
    zeros_cotangent,
)
from .sparse_captures import Uses, is_table, rows_of, take_out_rows
from .tensor_array import TensorArray

_MOST_RETRACES = 8


class While(RegionOp):
    """A loop: `condition` and `body` are regions over the loop variables.

    Inputs: initial values, captures of the condition, captures of the body. Outputs: final values, and the frame.

    Attributes:
        keeps_to_budget: whether there is too little memory for what would be gathered over all iterations.
        recomputed_bytes: of what each iteration computes again, because it was not saved.
        cotangents: in a loop that is a gradient, for parameters of its body those of the forward body of whose values
            they are the cotangents; of a table, for the two arrays of its rows and of the positions of these. Empty
            where it is more than that, as in a gradient of values inside.
        known_trips: the number of iterations, once it was found to be a known one (`passes.loops.linear`); below zero
            for none.
    """

    keeps_to_budget: bool = False
    recomputed_bytes: int = 0
    cotangents: Mapping[Symbol, Symbol] = MappingProxyType({})
    known_trips: int | None = None

    def __init__(
        self, condition: Region, body: Region, parallel_iterations: int = 32, swap_memory: bool = False
    ) -> None:
        super().__init__((condition, body))
        self.parallel_iterations = parallel_iterations
        self.swap_memory = swap_memory

    @property
    def condition(self) -> Region:
        return self.regions[0]

    @property
    def body(self) -> Region:
        return self.regions[1]

    @property
    def carried(self) -> int:
        """The number of loop variables."""
        return len(self.body.parameters)

    def attributes(self) -> dict[str, Any]:
        defaults = {"parallel_iterations": 32, "swap_memory": False}
        return {name: getattr(self, name) for name, default in defaults.items() if getattr(self, name) != default}

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        return (*[parameter.spec for parameter in self.body.parameters], FrameSpec())

    def backward(self, node: Operation, cotangents: list[Any], needed: list[bool]) -> list[Any]:
        return _LoopGradient(self, node, cotangents, needed).build()


_ONE_EACH = (
    "Functions take one argument for each loop variable. (JAX's take all of them as one: here that is a loop variable "
    "which is a tuple, loop_vars=((i, x),).)"
)


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    maximum_iterations: Any = None,
    *,
    shape_invariants: Any = None,
    parallel_iterations: int = 32,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """Repeat `body` while `cond` holds.

    Args:
        cond: a function of the loop variables that returns a scalar bool.
        body: a function of the loop variables that returns their next values, in the same structure.
        loop_vars: the initial values: a tuple or list (or one value) of tensors, arrays, numbers, Variables,
            TensorArrays, and nested structures of these.
        maximum_iterations: stop after this many iterations at the latest.
        shape_invariants: shapes, in the structure of `loop_vars`, that hold at every iteration; None is any shape.
            Never needed: a shape that changes from iteration to iteration is inferred as unknown. What is declared is
            checked.
        parallel_iterations: how many iterations may be alive at once where the loop spans devices.
        swap_memory: state that is saved for the gradient may move to host memory, or be computed again where that
            takes less time (docs/memory.md).
        name: a name for the loop.

    Returns:
        The final values, in the structure of `loop_vars`. A loop whose condition is false at once returns the
        initial values.

    Raises:
        TypeError: the body's result differs from the loop variables in structure or dtype or from declared shapes, or
            the condition is not a scalar bool; every difference is listed, with the body's own parameter names.

    Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 2.

    >>> import anabranch as ab
    >>> i, total = ab.while_loop(lambda i, total: i < 4, lambda i, total: (i + 1, total + i), (0, 0))
    >>> int(ab.Session().run(total))
    6
    """
    if parallel_iterations < 1:
        raise ValueError(f"parallel_iterations must be at least 1, got {parallel_iterations}.")
    single = not is_sequence(loop_vars)
    structure: Any = (loop_vars,) if single else loop_vars
    for argument, function in (("cond", cond), ("body", body)):
        check_takes(f"while_loop: {argument}", function, len(structure), _ONE_EACH)
    symbol = None if in_explicit_graph() else symbol_in([loop_vars, maximum_iterations])
    variables = LoopVariables(body, structure, shape_invariants, single)
    if symbol is None and not in_explicit_graph():
        found = run_at_once(lambda: _run_in_python(cond, body, structure, variables, maximum_iterations), "while_loop")
        if not isinstance(found, Symbol):
            return found[0] if single else found
        symbol = found
    if symbol is not None:
        with symbol.graph.entered():
            return while_loop(
                cond, body, loop_vars, maximum_iterations, shape_invariants=shape_invariants,
                parallel_iterations=parallel_iterations, swap_memory=swap_memory, name=name,
            )  # fmt: skip

    def condition(values: Sequence[Tensor]) -> Any:
        return cond(*rebuild(structure, values))

    def step(values: Sequence[Tensor]) -> list[Tensor]:
        return variables.checked(body(*rebuild(structure, values)), [value.spec for value in values])

    inits, specs = variables.inits, variables.specs
    if maximum_iterations is not None:
        condition, step, inits, specs = _bounded(condition, step, inits, specs, maximum_iterations)
    with get_default_graph().name_scope(name or "while"):
        node = build_while(condition, step, inits, specs, variables.names, parallel_iterations, swap_memory)
    outputs = node.outputs[1:-1] if maximum_iterations is not None else node.outputs[:-1]
    final = rebuild(structure, outputs)
    return final[0] if single else final


class FoundSymbolError(Exception):
    """A function that was called on values gives a symbol: what calls it is to be built into the symbol's graph."""

    def __init__(self, symbol: Symbol) -> None:
        super().__init__(repr(symbol))
        self.symbol = symbol


def run_at_once(loop: Callable[[], Any], name: str) -> Any:
    """Return what a loop over values gives; a symbol, if its first iteration gave one and has changed nothing.

    Raises:
        TypeError: there is a symbol, but variables have been changed by then.
    """
    before, around = graph_context.effects, graph_context.lost_gradients
    captured: list[tuple[Value, Graph]] = []
    graph_context.lost_gradients = captured
    try:
        result = loop()
    except FoundSymbolError as found:
        if graph_context.effects == before:
            for value, graph in captured:  # built again in the graph, the loop warns of those that it captures there
                graph.values.forget(value)
            return found.symbol
        raise TypeError(
            f"{name}: the loop runs over values, and has changed variables, but one of its functions gives the "
            f"symbolic tensor {found.symbol!r}. Build the loop inside of `with graph.as_default():`, or hand the "
            "symbol over as a loop variable."
        ) from None
    finally:
        graph_context.lost_gradients = around
    for value, graph in captured:
        warn_of_lost_gradient(value, graph)
    return result


def check_value(given: Any) -> None:
    """Check that a loop's function over values gave no symbol. Raises FoundSymbolError."""
    symbol = symbol_in(given)
    if symbol is not None:
        raise FoundSymbolError(symbol)


def _run_in_python(
    cond: Callable[..., Any], body: Callable[..., Any], structure: Any, variables: LoopVariables, most: Any
) -> Any:
    """Return the loop over values, iteration by iteration: its final values."""
    values, count = rebuild(structure, as_arguments(variables.inits)), 0
    limit = None if most is None else int(convert_to_tensor(most))
    while limit is None or count < limit:
        goes_on = _as_condition(cond(*values))
        check_value(goes_on)
        if not goes_on:
            break
        results = body(*values)
        if not count:
            check_value(results)
        values = rebuild(structure, as_arguments(variables.checked(results, variables.specs)))
        count += 1
    return values


def build_while(
    condition: Callable[[Sequence[Symbol]], Any],
    step: Callable[[Sequence[Symbol]], list[Tensor]],
    inits: Sequence[Tensor],
    specs: Sequence[Spec] | None = None,
    names: Sequence[str] = (),
    parallel_iterations: int = 32,
    swap_memory: bool = False,
    mirror: Mirror | None = None,
) -> Operation:
    """Trace the loop over flat lists of tensors, widening what changes its shape, and append it to the graph."""
    graph = get_default_graph()
    current = list(specs or [init.spec for init in inits])
    creations = Creations()
    for _ in range(_MOST_RETRACES):
        try:
            with creations.replay():
                body = _trace(graph, "body", current, names, mirror, step)
        except NotKnownYet:  # a function that is being traced calls itself: as far as is known, the loop ends at once
            body = _trace(graph, "body", current, names, mirror, list[Tensor])
        found = [result.spec for result in body.results]
        if all(spec.accepts(result) for spec, result in zip(current, found, strict=True)):
            break
        current = [spec.join(result) for spec, result in zip(current, found, strict=True)]
    else:
        raise RuntimeError("This is a bug in anabranch: the shapes of a loop did not settle. Please report it.")
    test = _trace(graph, "cond", current, names, None, lambda values: [_as_condition(condition(values))])
    settle_variables((test, body), repeats=True)
    take_out_rows(body)
    op = While(test, body, parallel_iterations, swap_memory)
    with graph.control_dependencies([*test.settled_waits(), *body.settled_waits()]):
        return graph.add(op, [*inits, *op.captured_inputs()], "while")


def _trace(
    graph: Graph,
    role: str,
    specs: Sequence[Spec],
    names: Sequence[str],
    mirror: Mirror | None,
    function: Callable[[Sequence[Symbol]], list[Tensor]],
) -> Region:
    region = Region(graph, role, mirror)
    labels = names if len(names) == len(specs) else [f"variable_{position}" for position in range(len(specs))]
    with region.as_default():
        parameters = [region.add_parameter(spec, label) for spec, label in zip(specs, labels, strict=True)]
        results = function(parameters)
        region.results = [region.capture(result) for result in results]
    return region


def _as_condition(value: Any) -> Tensor:
    tensor = convert_to_tensor(value)
    if tensor.dtype.kind != "b" or tensor.shape not in ((), None):
        raise TypeError(
            f"while_loop: cond must return a scalar bool, got {tensor.spec}. "
            "Reduce it with ops.all or ops.any, or compare it with something."
        )
    return tensor


def _bounded(
    condition: Callable[[Sequence[Symbol]], Any],
    step: Callable[[Sequence[Symbol]], list[Tensor]],
    inits: list[Tensor],
    specs: list[Spec],
    maximum: Any,
) -> tuple[Any, Any, list[Tensor], list[Spec]]:
    """Return the loop with an iteration counter as its first variable."""
    counter = convert_to_tensor(0)
    limit = convert_to_tensor(maximum, "int32")

    def bounded_condition(values: Sequence[Symbol]) -> Any:
        return logical_and(values[0] < limit, _as_condition(condition(values[1:])))

    def bounded_step(values: Sequence[Symbol]) -> list[Tensor]:
        return [values[0] + 1, *step(values[1:])]

    return bounded_condition, bounded_step, [counter, *inits], [counter.spec, *specs]


# --- the gradient ---------------------------------------------------------------------------------------------------


def _row_arrays(table: Tensor, size: Tensor) -> tuple[TensorArray, TensorArray]:
    """Return arrays for the rows of a table's cotangent, and for the positions of these, of each iteration."""
    row = (table.shape or ())[1:]
    return TensorArray(table.dtype, size, element_shape=(None, *row)), TensorArray("int64", size, element_shape=(None,))


class _LoopGradient:
    """Builds the backward loop of one `While`.

    It counts down from the last iteration. Its variables are the iteration number, the cotangents of the loop
    variables, and running sums for the cotangents of captured values; of tables, of which iterations use nothing but
    rows, TensorArrays gather the rows instead. Values of the forward body are looked up in histories (`LoopMirror`),
    which only then exist.
    """

    def __init__(self, op: While, node: Operation, cotangents: list[Any], needed: list[bool]) -> None:
        self.op = op
        self.body = op.body
        self.node = node
        self.outputs = cotangents[:-1]
        self.inner: dict[Symbol, Any] = frame_cotangents(cotangents[-1])
        self.needed_inits = needed[: op.carried]
        first_capture = op.carried + len(op.condition.captures)
        self.first_capture = first_capture
        self.captures = [
            parameter
            for (_, parameter), wanted in zip(self.body.captures, needed[first_capture:], strict=True)
            if wanted
        ]
        uses = Uses()
        self.tables = [parameter for parameter in self.captures if is_table(parameter, uses)]
        self.sums = [parameter for parameter in self.captures if parameter not in dict.fromkeys(self.tables)]
        self.carried = self._carried_positions()

    def build(self) -> list[Any]:
        body, node = self.body, self.node
        frame = node.outputs[-1]
        mirror = LoopMirror(body, frame)
        carried = self.carried
        outers = {p: outer for outer, p in body.captures}
        inits = [
            trip_count(frame) - 1,
            *[zeros_cotangent(node.outputs[k]) if self.outputs[k] is None else self.outputs[k] for k in carried],
            *[zeros_cotangent(outers[parameter]) for parameter in self.sums],
            *[array.flow for parameter in self.tables for array in _row_arrays(parameter, trip_count(frame))],
        ]
        first_table = 1 + len(carried) + len(self.sums)

        def condition(values: Sequence[Symbol]) -> Any:
            return values[0] >= 0

        def step(values: Sequence[Symbol]) -> list[Tensor]:
            index = values[0]
            mirror.index = index
            incoming = dict(zip(carried, values[1:], strict=False))
            sums = dict(zip(self.sums, values[1 + len(carried) :], strict=False))
            found = self._sweep(index, incoming, sums)
            next_carried = [
                found[body.parameters[k]] if body.parameters[k] in found else zeros_cotangent(body.parameters[k])
                for k in carried
            ]
            next_rows = self._written(values[first_table:], index, found)
            return [index - 1, *next_carried, *[found.get(p, sums[p]) for p in self.sums], *next_rows]

        with get_default_graph().name_scope("while_grad"):
            specs = [init.spec for init in inits]
            roles = [*[body.parameters[k] for k in carried], *self.sums, *[t for t in self.tables for _ in range(2)]]
            names = ["iteration", *[f"gradient_of_{role.operation.name}" for role in roles]]
            backward = build_while(
                condition, step, inits, specs, names, self.op.parallel_iterations, self.op.swap_memory, mirror
            )
        if not self.inner:
            assert isinstance(backward.op, While)
            backward.op.cotangents = dict(zip(backward.op.body.parameters[1:], roles, strict=True))
        results: list[Any] = list(backward.outputs[1:first_table])
        arrays = backward.outputs[first_table:-1]
        for parameter, values, indices in zip(self.tables, arrays[::2], arrays[1::2], strict=True):
            rows, places = (TensorArray.from_flow(flow).concat() for flow in (values, indices))
            results.append(IndexedSlices(rows, places, runtime_shape(outers[parameter])))
        return self._as_input_cotangents(results)

    def _written(self, arrays: Sequence[Symbol], index: Symbol, found: dict[Symbol, Any]) -> list[Tensor]:
        """Return the arrays with this iteration's rows of tables."""
        flows: list[Tensor] = []
        for position, parameter in enumerate(self.tables):
            pair = arrays[2 * position : 2 * position + 2]
            for flow, rows in zip(pair, rows_of(found.get(parameter), parameter), strict=True):
                flows.append(TensorArray.from_flow(flow).write(index, rows).flow)
        return flows

    def _sweep(self, index: Symbol, incoming: dict[int, Symbol], sums: dict[Symbol, Symbol]) -> dict[Symbol, Any]:
        """Return one iteration backward: cotangents of the body's parameters, and the sums increased."""
        seeds: dict[Symbol, Any] = {}
        for position, cotangent in incoming.items():
            result = self.body.results[position]
            seeds[result] = accumulate(seeds.get(result), cotangent)
        for tensor, history in self.inner.items():
            seeds[tensor] = accumulate(seeds.get(tensor), read_or_zeros(history, index, tensor))
        sources = [*[self.body.parameters[k] for k in self.carried], *self.captures]
        return backpropagate(self.body, seeds, sources, start=sums, sparse=self.tables)

    def _carried_positions(self) -> list[int]:
        """Return the loop variables whose cotangents matter: something flows in, and something needed comes out."""
        pairs = zip(self.body.parameters, self.body.results, strict=True)
        variables = {k: pair for k, pair in enumerate(pairs) if pair[1].spec.differentiable}
        active, useful = self._active(variables), self._useful(variables)
        return [
            k
            for k, (parameter, _) in variables.items()
            if parameter in useful and (self.outputs[k] is not None or parameter in active)
        ]

    def _active(self, variables: Mapping[int, tuple[Symbol, Symbol]]) -> set[Symbol]:
        """Return the tensors of the body that a cotangent reaches, in any iteration."""
        result_of = dict(variables.values())
        reached: set[Symbol] = set()
        pending = [result for k, (_, result) in variables.items() if self.outputs[k] is not None] + list(self.inner)
        while pending:
            tensor = pending.pop()
            if tensor in reached or not tensor.spec.differentiable:
                continue
            reached.add(tensor)
            pending.extend(tensor.operation.inputs)
            if tensor in result_of:
                pending.append(result_of[tensor])
        return reached

    def _useful(self, variables: Mapping[int, tuple[Symbol, Symbol]]) -> set[Symbol]:
        """Return the tensors of the body whose cotangents reach what needs one, in any iteration."""
        goes_to: dict[Symbol, list[Symbol]] = {}
        for parameter, result in variables.values():
            goes_to.setdefault(result, []).append(parameter)
        for operation in self.body.operations:
            for tensor in operation.inputs:
                goes_to.setdefault(tensor, []).extend(operation.outputs)
        reached: set[Symbol] = set()
        pending = [parameter for k, (parameter, _) in variables.items() if self.needed_inits[k]] + self.captures
        while pending:
            tensor = pending.pop()
            if tensor in reached or not tensor.spec.differentiable:
                continue
            reached.add(tensor)
            pending.extend(goes_to.get(tensor, ()))
        return reached

    def _as_input_cotangents(self, results: Sequence[Any]) -> list[Any]:
        found: list[Any] = [None] * len(self.node.inputs)
        for k, cotangent in zip(self.carried, results, strict=False):
            found[k] = cotangent
        positions = {parameter: i for i, (_, parameter) in enumerate(self.body.captures)}
        for parameter, cotangent in zip([*self.sums, *self.tables], results[len(self.carried) :], strict=True):
            found[self.first_capture + positions[parameter]] = cotangent
        return found
