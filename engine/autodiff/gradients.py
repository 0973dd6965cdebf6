"""`gradients`: symbolic derivatives of sums of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..common.nest import flatten, is_mapping, is_nested, is_sequence, sorted_keys
from ..graph.graph import Graph, get_default_graph
from ..graph.region import Region
from ..graph.slices import IndexedSlices
from ..graph.spec import TensorSpec, shapes_compatible
from ..graph.state.sharded import ShardedVariable, expanded, regrouped
from ..graph.state.stateless import substitute
from ..graph.state.variable import Variable
from ..graph.state.variable_ops import ReadVariable
from ..graph.tensor import Symbol, Tensor
from ..ops.base import convert_to_tensor, runs_now
from ..ops.containers.cotangent import accumulate, resolved
from ..ops.containers.indexed_slices import dense
from ..ops.math.complex_numbers import conjugated
from ..ops.run_time_shapes import broadcast_like, zeros_of
from .backpropagate import backpropagate, dependent_tensors, reachable_operations, variable_reads
from .tape import gradients_of_values


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    stop_gradients: Any = None,
    unconnected_gradients: str = "none",
    name: str = "gradients",
) -> list[Any]:
    """Return the derivatives of the sum of `ys` with respect to each of `xs`, as new tensors of the graph.

    Args:
        ys: a tensor, or a structure of them, all of one graph, of floating or complex dtypes.
        xs: tensors or variables. The gradient with respect to a variable sums over all its reads. Inside a loop or
            branch, xs may also be outside it.
        grad_ys: cotangents of `ys`, in their structure, or in a list; ones by default, and for None.
        stop_gradients: tensors that count as constants here.
        unconnected_gradients: what is returned for an x on which no y depends: "none" gives None, "zero" zeros.
        name: the name scope of the new operations.

    Returns:
        A list with one entry for each x, of its shape and dtype. For a variable of which only rows are used (by `take`,
        `gather`, ``table[ids]``) it is an `IndexedSlices`; for a `ShardedVariable` a list of its shards' gradients.
        Loops that run no iteration, branches that are not taken and unused outputs contribute exact zeros; None means
        that no path exists in the graph at all.

    Raises:
        TypeError: a y or an x is not of a differentiable dtype, or is not a tensor.
        LookupError: an op on the way defines no gradient.
        ValueError: the number or shapes of `grad_ys` do not fit.

    The gradient of a real y with respect to a complex x is dy/d(real x) + i dy/d(imag x), as in TensorFlow; see
    `engine.ops.math.complex_numbers`. Inside, ops pass on its conjugate, so that none but this function conjugates.

    Gradients may be taken of gradients, through loops and branches, to any order (Yu et al., "Dynamic Control Flow
    in Large-Scale Machine Learning", EuroSys 2018, section 5).

    >>> import anabranch as ab
    >>> x = ab.placeholder((), "float32", "x")
    >>> dx, = ab.gradients(x * x * x, [x])
    >>> ddx, = ab.gradients(dx, [x])
    >>> [float(v) for v in ab.Session().run([dx, ddx], {x: 2.0})]
    [12.0, 12.0]
    """
    if any(isinstance(x, ShardedVariable) for x in flatten(xs)):
        items, stops = flatten(xs), expanded(flatten(stop_gradients))
        return regrouped(items, gradients(ys, expanded(items), grad_ys, stops, unconnected_gradients, name))
    check_unconnected(unconnected_gradients, unconnected_gradients)
    ys = dense(ys)
    targets = [_as_target(y) for y in flatten(ys)]
    if not targets:
        raise ValueError("gradients() needs at least one y.")
    zero = unconnected_gradients == "zero"
    if runs_now(targets):
        given = cotangents_for(ys, grad_ys)
        _check_count(given, targets)
        sources, stops = ([_as_source(x) for x in flatten(each)] for each in (xs, stop_gradients))
        return gradients_of_values(targets, sources, given, stops, zero)
    graph = _graph_of(targets)
    symbols = [graph.capture(target) for target in targets]
    with graph.entered(), graph.name_scope(name):
        given = cotangents_for(ys, grad_ys)
        seeds: dict[Symbol, Any] = {y: conjugated(seed) for y, seed in _seeds(symbols, given).items()}
        sources, stops = ([_source_in(graph, _as_source(x)) for x in flatten(each)] for each in (xs, stop_gradients))
        # Inside a `StatelessScope` a variable also reads as what was assigned to it there.
        kept = [(number, substitute(x)) for number, x in enumerate(sources) if isinstance(x, Variable)]
        more = [(number, value) for number, value in kept if isinstance(value, Symbol)]
        found = _found_outward(graph, seeds, [*sources, *[value for _, value in more]], stops)
        for (number, _), parts in zip(more, found[len(sources) :], strict=True):
            found[number] += parts
        del found[len(sources) :]
        return [_total(parts, x, zero) for parts, x in zip(found, flatten(xs), strict=True)]


def check_unconnected(word: str, given: object) -> None:
    """Check the word for what gradients by unconnected sources are, of an argument that is shown as it was given.

    Raises:
        ValueError: it is another word.
    """
    if word not in ("none", "zero"):
        raise ValueError(f"unconnected_gradients must be 'none' or 'zero', got {given!r}.")


def _graph_of(targets: list[Tensor]) -> Graph:
    """Return the graph of the symbols among `targets`; that which is being built, if there are none.

    Raises:
        ValueError: there are several.
    """
    symbols = [target for target in targets if isinstance(target, Symbol)]
    for symbol in symbols:
        if symbol.graph is not symbols[0].graph:
            raise ValueError(f"All ys must belong to one graph; {symbol!r} and {symbols[0]!r} do not.")
    return symbols[0].graph if symbols else get_default_graph()


def cotangents_for(ys: Any, given: Any) -> list[Any]:
    """Return a cotangent for each leaf of `ys`: None, which stands for ones, where `given` has None.

    Args:
        ys: a tensor, or a structure of them.
        given: cotangents in the structure of `ys`, or in a list; lists of numbers count as arrays there.
    """
    if is_nested(ys):
        aligned = _aligned(ys, given)
        if aligned is not None:
            return aligned
    elif given is None:
        return [None]
    return list(given) if is_sequence(given) and not isinstance(given, IndexedSlices) else [given]


def _aligned(ys: Any, given: Any) -> list[Any] | None:
    """Return what `given` has in the places of the leaves of `ys`; None if it has another structure."""
    if ys is None or given is None:
        return [None] * len(flatten(ys))
    if not is_nested(ys):
        return [given]
    if is_mapping(ys) and is_mapping(given) and ys.keys() == given.keys():
        pairs = [(ys[key], given[key]) for key in sorted_keys(ys)]
    elif is_sequence(ys) and is_sequence(given) and len(ys) == len(given):
        pairs = list(zip(ys, given, strict=True))
    else:
        return None
    parts = [_aligned(y, cotangent) for y, cotangent in pairs]
    return None if None in parts else [leaf for part in parts for leaf in part or ()]


def _check_count(given: Sequence[Any], targets: Sequence[Tensor]) -> None:
    if len(given) != len(targets):
        raise ValueError(f"gradients: {len(targets)} ys but {len(given)} grad_ys.")


def _found_outward(graph: Graph, seeds: dict[Symbol, Any], xs: list[Any], stops: list[Any]) -> list[list[Any]]:
    """Return the cotangents of each x, from its own graph: `graph` or, through captures, one around it."""
    found: list[list[Any]] = [[] for _ in xs]
    dependent = _dependent_outside(graph, xs)
    while seeds:
        operations = reachable_operations(graph, seeds)
        reads = variable_reads(operations, [x for x in (*xs, *stops) if isinstance(x, Variable)])
        blocked = {tensor for stop in stops for tensor in _sources(graph, reads, stop)}
        sources = [_sources(graph, reads, x) for x in xs]
        captures = graph.captures if isinstance(graph, Region) else []
        leaving = {parameter: outer for outer, parameter in captures if outer in dependent}
        wanted = dict.fromkeys([*[t for group in sources for t in group], *leaving])
        rows = {t for group, x in zip(sources, xs, strict=True) if isinstance(x, Variable) for t in group}
        cotangents = backpropagate(graph, seeds, wanted, blocked=blocked, sparse=rows | leaving.keys())
        for parts, group in zip(found, sources, strict=True):
            parts.extend(cotangents[tensor] for tensor in group if tensor in cotangents)
        seeds = {}
        for parameter, outer in leaving.items():
            if parameter in cotangents and parameter not in blocked:
                seeds[outer] = accumulate(seeds.get(outer), cotangents[parameter])
        if isinstance(graph, Region):
            graph = graph.parent
    return found


def _dependent_outside(graph: Graph, xs: list[Any]) -> set[Symbol]:
    """Return the tensors of the graphs around a region that depend on any of `xs`."""
    around: list[Graph] = []
    while isinstance(graph, Region):
        graph = graph.parent
        around.append(graph)
    dependent: set[Symbol] = set()
    variables = {x for x in xs if isinstance(x, Variable)}
    for outer in reversed(around):
        sources = {x for x in xs if isinstance(x, Symbol) and x.graph is outer}
        sources |= {
            parameter for t, parameter in (outer.captures if isinstance(outer, Region) else ()) if t in dependent
        }
        for operation in outer.operations:
            if isinstance(operation.op, ReadVariable) and operation.op.variable in variables:
                sources.add(operation.outputs[0])
        dependent |= dependent_tensors(outer.operations, sources)
    return dependent


def _as_target(y: Any) -> Tensor:
    flow = getattr(y, "flow", y)
    tensor = convert_to_tensor(flow)
    if not tensor.spec.differentiable:
        raise TypeError(
            f"gradients: {tensor!r} is of dtype {tensor.dtype}, which has no derivative. Cast it to float32."
        )
    return tensor


def _seeds(targets: list[Symbol], given: list[Any]) -> dict[Symbol, Any]:
    _check_count(given, targets)
    seeds: dict[Symbol, Any] = {}
    for target, cotangent in zip(targets, given, strict=True):
        if cotangent is None:
            seed = broadcast_like(convert_to_tensor(1.0, target.dtype), target)
        else:
            seed = convert_to_tensor(getattr(cotangent, "flow", cotangent), target.dtype)
            if isinstance(target.spec, TensorSpec) and not shapes_compatible(seed.shape, target.shape):
                raise ValueError(f"gradients: a grad_y of shape {seed.shape} was given for {target!r}.")
        seeds[target] = seeds[target] + seed if target in seeds else seed
    return seeds


def _as_source(x: Any) -> Tensor | Variable:
    x = getattr(x, "flow", x)
    if isinstance(x, Variable):
        return x
    if not isinstance(x, Tensor):
        raise TypeError(f"gradients: xs must be tensors or variables, got {type(x).__name__}.")
    if not x.spec.differentiable:
        raise TypeError(f"gradients: {x!r} is of dtype {x.dtype}, so nothing has a derivative with respect to it.")
    return x


def _source_in(graph: Graph, x: Tensor | Variable) -> Symbol | Variable:
    """Return `x`, where values are the constants that stand for them in the outermost graph."""
    return x if isinstance(x, (Symbol, Variable)) else graph.root.capture(x)


def _sources(graph: Graph, reads: dict[Variable, list[Symbol]], x: Tensor | Variable) -> list[Symbol]:
    """Return the tensors of `graph` itself that stand for `x`: `x`, or the reads of a variable."""
    if isinstance(x, Variable):
        return reads[x]
    return [x] if isinstance(x, Symbol) and x.graph is graph else []


def _total(parts: list[Any], x: Any, zero: bool) -> Any:
    if parts:
        total = None
        for part in parts:
            total = accumulate(total, part)
        total = resolved(total, sparse=isinstance(x, Variable))
        if isinstance(total, IndexedSlices):
            return total.map_values(conjugated)
        return conjugated(total) if isinstance(total, Tensor) else total
    return zeros_of(convert_to_tensor(x)) if zero else None
