"""`cond` and `switch`, the structured branches, and their gradient, which is a branch again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..autodiff.backpropagate import Sweep, backpropagate, frame_cotangents
from ..common.identity import is_among
from ..common.nest import flatten, flatten_with_path, pack_as
from ..graph.graph import Graph, Operation, get_default_graph, graph_for
from ..graph.region import Region
from ..graph.scopes import control_dependencies
from ..graph.slices import IndexedSlices
from ..graph.spec import FrameSpec, Spec, TensorSpec, kind_of
from ..graph.tensor import Symbol, Tensor
from ..ops.arrays.joining import stack
from ..ops.base import cast, convert_to_tensor, runs_now
from ..ops.checks import assert_less_equal, assert_true
from ..ops.containers.cotangent import accumulate, resolved
from ..ops.entrance import guard_entrances
from ..ops.math.comparison import logical_not
from ..ops.math.elementwise import identity
from ..ops.math.reduction import sum as sum_of
from ..ops.run_time_shapes import runtime_shape
from .call import Body, NotKnownYet
from .frames import BranchMirror
from .grouping import keep_running
from .region_op import RegionOp, as_component, component, rebuild, zeros_cotangent
from .sparse_captures import Uses, is_table, rows_of, takes_rows_only, uses_among


class Branch(RegionOp):
    """One of several regions is run, chosen by the first input: a bool (two branches: true, false) or an integer.

    Inputs: the choice, then the captures of each branch. Outputs: the results, and the frame. An integer outside the
    range is clamped.
    """

    type_name = "cond"
    is_choice = True

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        columns = zip(*[[result.spec for result in region.results] for region in self.regions], strict=True)
        return (*[_joined(column) for column in columns], FrameSpec())

    def backward_within(self, node: Operation, cotangents: list[Any], needed: list[bool], sweep: Sweep) -> list[Any]:
        return BranchGradient(self, node, cotangents, sweep).build()

    def with_regions(self, regions: Sequence[Region]) -> Branch:
        """Return the same choice between other regions."""
        return Branch(regions)


class BranchGradient:
    """Builds the backward branches of one `Branch`: the same choice between regions that sweep over its own.

    Each yields the cotangents of what any branch captured. What nothing but one branch needs (`Sweep.owned_by`) is
    swept over in that one's region, so that it costs nothing where another branch was taken.
    """

    def __init__(self, op: Branch, node: Operation, cotangents: list[Any], sweep: Sweep) -> None:
        self.op = op
        self.node = node
        self.outputs = cotangents[:-1]
        self.inner = frame_cotangents(cotangents[-1])
        self.sweep = sweep
        self.owned = [sweep.owned_by(node, number) for number in range(len(op.regions))]
        inside = {operation for operations in self.owned for operation in operations}
        captured = [outer for region in op.regions for outer in region.outer_tensors()]
        beyond = [tensor for operations in self.owned for operation in operations for tensor in operation.inputs]
        self.wanted = [
            tensor
            for tensor in dict.fromkeys([*captured, *beyond])
            if tensor.operation not in inside and sweep.flows_to(tensor)
        ]
        tables = set(self._tables(inside))
        self.tables = [tensor for tensor in self.wanted if tensor in tables]
        self.dense = [tensor for tensor in self.wanted if tensor not in tables]

    def _tables(self, inside: Iterable[Operation]) -> list[Symbol]:
        """Return the tensors of which no branch uses more than rows."""
        uses, around = Uses(), uses_among(inside)
        inner: dict[Symbol, list[Symbol]] = {}
        for region in self.op.regions:
            for outer, parameter in region.captures:
                inner.setdefault(outer, []).append(parameter)
        return [
            tensor
            for tensor in self.wanted
            if all(is_table(parameter, uses) for parameter in inner.get(tensor, ()))
            and takes_rows_only(tensor, around.get(tensor, ()), uses)
        ]

    def build(self) -> list[Any]:
        """Return the cotangents of the inputs; those of other tensors are added to the sweep's."""
        node, count = self.node, len(self.dense)
        regions = [self._backward_region(number, region) for number, region in enumerate(self.op.regions)]
        with get_default_graph().name_scope("cond_grad"):
            backward = build_branch(regions, node.inputs[0])
        found: dict[Symbol, Any] = dict(zip(self.dense, backward.outputs, strict=False))
        rows = backward.outputs[count:-1]
        for tensor, values, indices in zip(self.tables, rows[::2], rows[1::2], strict=True):
            found[tensor] = IndexedSlices(values, indices, runtime_shape(tensor))
        for tensor, cotangent in found.items():
            self.sweep.add(tensor, cotangent)
        return [None] * len(node.inputs)

    def _backward_region(self, number: int, region: Region) -> Region:
        mirror = BranchMirror(region, self.node.outputs[-1])
        backward = Region(get_default_graph(), f"{region.name}_grad", mirror)
        with backward.as_default():
            totals = self._swept(region, self._seeds(region, backward))
            owned = self.owned[number]
            if owned:
                outputs = {tensor for operation in owned for tensor in operation.outputs}
                seeds = {tensor: totals.pop(tensor) for tensor in list(totals) if tensor in outputs}
                graph, stopped = self.node.graph, self.sweep.stopped
                more = backpropagate(graph, seeds, self.wanted, None, stopped, self.tables, among=owned)
                for tensor, cotangent in more.items():
                    totals[tensor] = accumulate(totals.get(tensor), cotangent)
            results = [resolved(totals[t]) if t in totals else zeros_cotangent(t) for t in self.dense]
            for outer in self.tables:
                results += rows_of(totals.get(outer), outer)
            backward.results = [backward.capture(result) for result in results]
        return backward

    def _seeds(self, region: Region, backward: Region) -> dict[Symbol, Any]:
        seeds: dict[Symbol, Any] = {}
        for result, cotangent in zip(region.results, self.outputs, strict=True):
            if cotangent is not None:
                seeds[result] = accumulate(seeds.get(result), backward.capture(cotangent))
        for tensor, cotangent in self.inner.items():
            if tensor.graph is region:
                seeds[tensor] = accumulate(seeds.get(tensor), backward.capture(cotangent))
        return seeds

    def _swept(self, region: Region, seeds: dict[Symbol, Any]) -> dict[Symbol, Any]:
        """Return the cotangents of what the region captured."""
        captures = {parameter: outer for outer, parameter in region.captures if self.sweep.flows_to(outer)}
        rows = [parameter for parameter, outer in captures.items() if is_among(outer, self.tables)]
        totals: dict[Symbol, Any] = {}
        for parameter, cotangent in backpropagate(region, seeds, list(captures), sparse=rows).items():
            outer = captures[parameter]
            totals[outer] = accumulate(totals.get(outer), cotangent)
        return totals


def _joined(specs: tuple[Spec, ...]) -> Spec:
    joined = specs[0]
    for spec in specs[1:]:
        joined = joined.join(spec)
    return joined


def build_branch(regions: Sequence[Region], choice: Tensor) -> Operation:
    """Append the branch op over traced regions."""
    op = Branch(regions)
    controls = [operation for region in regions for operation in region.settled_waits()]
    graph = get_default_graph()
    with graph.control_dependencies(controls):
        return graph.add(op, [choice, *op.captured_inputs()], "cond")


def _is_text(name: object) -> bool:
    return isinstance(name, str)


def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any], name: str | None = None) -> Any:
    """Run ``true_fn()`` if `pred` holds, else ``false_fn()``; only the branch taken is run.

    Args:
        pred: a scalar bool tensor. A Python bool, or a value outside of graphs, chooses now: the branch is called.
        true_fn, false_fn: functions without arguments; they may use any tensor from outside. Their results must
            have one structure and one dtype a leaf; shapes may differ.
        name: a name for the operation.

    Returns:
        The result, in the structure that the branches return. Branches that are run for their effects return None, or
        an operation such as `group` and `no_op` give: then the result is the operation that runs the branch taken, to
        be fetched, grouped or named in `control_dependencies`.

    Raises:
        TypeError: `pred` is not a scalar bool, `name` is not text, or the branches differ; every difference is listed.

    >>> import anabranch as ab
    >>> x = ab.placeholder((), "float32")
    >>> y = ab.cond(x > 0, lambda: x * 2, lambda: -x)
    >>> [float(v) for v in (ab.Session().run(y, {x: 3.0}), ab.Session().run(y, {x: -3.0}))]
    [6.0, 3.0]
    """
    if name is not None and not _is_text(name):
        raise TypeError(
            f"cond: name must be a str, got {type(name).__name__}. Branches take no arguments: use what they need "
            "inside, as in cond(pred, lambda: true_fn(x), lambda: false_fn(x))."
        )
    if isinstance(pred, (bool, np.bool_)):
        return true_fn() if pred else false_fn()
    choice = convert_to_tensor(pred)
    if choice.dtype.kind != "b" or choice.shape not in ((), None):
        raise TypeError(
            f"cond: pred must be a scalar bool, got {choice.spec}. Use ops.any or ops.all, or a comparison."
        )
    if runs_now([choice]):
        return true_fn() if choice else false_fn()
    return _branches(choice, [("true_fn", true_fn), ("false_fn", false_fn)], name or "cond")


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """Run ``branches[index](*operands)``; only that branch is run. An index outside the range is clamped.

    Args:
        index: a scalar integer tensor.
        branches: functions whose results have one structure and one dtype a leaf.
        *operands: passed to the branch.

    Raises:
        TypeError: `index` is not a scalar integer, or the branches differ.
    """
    if not branches:
        raise ValueError("switch needs at least one branch.")
    choice = convert_to_tensor(index)
    if choice.dtype.kind not in "iu" or choice.shape not in ((), None):
        raise TypeError(f"switch: index must be a scalar integer, got {choice.spec}.")
    if runs_now([choice]):
        return branches[min(max(int(choice), 0), len(branches) - 1)](*operands)
    named = [(f"branches[{k}]", _bind(branch, operands)) for k, branch in enumerate(branches)]
    return _branches(choice, named, "switch")


def case(
    pred_fn_pairs: Sequence[tuple[Any, Callable[[], Any]]],
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
) -> Any:
    """Return the result of the first function whose predicate holds, else of `default`.

    Args:
        pred_fn_pairs: pairs of a scalar bool and a function.
        default: called if no predicate holds. Without it that is an error.
        exclusive: fail if more than one predicate holds, too.

    Raises:
        ValueError: there is no pair.
        InvalidArgumentError: at run time, if no predicate holds and there is no default, or by `exclusive`.
    """
    pairs = list(pred_fn_pairs)
    if not pairs:
        raise ValueError("case needs at least one (predicate, function) pair.")
    return _chosen_case(_only_one(pairs) if exclusive and len(pairs) > 1 else pairs, default, len(pairs))


def _only_one(pairs: list[tuple[Any, Callable[[], Any]]]) -> list[tuple[Any, Callable[[], Any]]]:
    """Return `pairs` with predicates that fail where more than one holds."""
    preds = [convert_to_tensor(pred, "bool") for pred, _ in pairs]
    held = sum_of(cast(stack(preds), "int32"))
    check = assert_less_equal(held, 1, "case: exclusive=True, and more than one predicate holds.")
    with control_dependencies([check]):
        return [(identity(pred), function) for pred, (_, function) in zip(preds, pairs, strict=True)]


def _chosen_case(pairs: list[tuple[Any, Callable[[], Any]]], default: Callable[[], Any] | None, count: int) -> Any:
    (pred, function), rest = pairs[0], pairs[1:]
    if rest:
        return cond(pred, function, lambda: _chosen_case(rest, default, count))
    return _only_if(pred, function, count) if default is None else cond(pred, function, default)


def _only_if(pred: Any, function: Callable[[], Any], count: int) -> Any:
    """Return the result of `function`, which fails unless `pred` holds.

    In a graph it is the one branch of a choice whose number waits for the check. So do all results then, numbers,
    arrays and variables too, and all that their gradients compute.
    """
    none = f"case: none of its {count} predicates holds, and it has no default. Give it default=, a function."
    holds = convert_to_tensor(pred)
    if runs_now([holds]):
        assert_true(holds, message=none)
        return function()
    graph = graph_for([holds])
    with graph.entered():
        check = assert_true(holds, message=none)
        with get_default_graph().control_dependencies([check]):
            choice = cast(identity(logical_not(holds)), "int32")
        return _built_branches(graph, choice, [("function", function)], "case")


def _bind(branch: Callable[..., Any], operands: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: branch(*operands)


def _branches(choice: Tensor, functions: list[tuple[str, Callable[[], Any]]], name: str) -> Any:
    graph = graph_for([choice])
    with graph.entered():
        return _built_branches(graph, choice, functions, name)


def _built_branches(graph: Graph, choice: Tensor, functions: list[tuple[str, Callable[[], Any]]], name: str) -> Any:
    regions: list[Region] = []
    returned: list[Any] = []
    structures: list[Any] = []
    unknown: frozenset[Body] = frozenset()
    for label, function in functions:
        region = Region(graph, label)
        try:
            with region.as_default():
                returned.append(function())
                structures.append(_without_operations(returned[-1]))
        except NotKnownYet as missing:  # a function that is being traced calls itself: other branches say what it gives
            unknown |= missing.bodies
            continue
        regions.append(region)
    if not regions:
        raise NotKnownYet(unknown)
    labels = [region.name for region in regions]
    _check_structures(structures, labels)
    _settle_results(regions, structures, labels)
    with graph.name_scope(name):
        node = build_branch(regions, choice)
    values = iter(flatten(rebuild(structures[0], node.outputs[:-1])))
    if returned[0] is None:
        return node
    return pack_as(
        returned[0], [node if isinstance(leaf, Operation) else next(values) for leaf in flatten(returned[0])]
    )


def _without_operations(returned: Any) -> Any:
    """Return what a branch returned, with None for operations, which are not values. They run with the branch."""
    leaves = flatten(returned)
    found = [leaf for leaf in leaves if isinstance(leaf, Operation)]
    for operation in found:
        keep_running(operation)
    return pack_as(returned, [None if isinstance(leaf, Operation) else leaf for leaf in leaves]) if found else returned


def _check_structures(structures: list[Any], labels: list[str]) -> None:
    want = [path for path, _ in flatten_with_path(structures[0])]
    for structure, label in zip(structures[1:], labels[1:], strict=True):
        have = [path for path, _ in flatten_with_path(structure)]
        if want == have:
            continue
        missing = [f"  {labels[0]} returns {path or 'a value'}, {label} does not." for path in want if path not in have]
        extra = [f"  {label} returns {path or 'a value'}, {labels[0]} does not." for path in have if path not in want]
        raise TypeError("\n".join(["cond: the branches must return the same structure.", *missing, *extra]))


def _settle_results(regions: list[Region], structures: list[Any], labels: list[str]) -> None:
    """Make the leaves tensors of one dtype; Python numbers take the dtype of the other branches.

    Raises:
        TypeError: dtypes differ; every difference is listed.
    """
    paths = [path for path, _ in flatten_with_path(structures[0])]
    columns = list(zip(*[flatten(structure) for structure in structures], strict=True))
    differences: list[str] = []
    for path, leaves in zip(paths, columns, strict=True):
        strong = [component(leaf) for leaf in leaves if not isinstance(leaf, (bool, int, float))]
        wanted = strong[0].dtype if strong and hasattr(strong[0], "dtype") else None
        tensors = [_in_region(region, leaf, wanted) for region, leaf in zip(regions, leaves, strict=True)]
        kinds = {(tensor.dtype, kind_of(tensor.spec)) for tensor in tensors}
        if len(kinds) > 1:
            listed = ", ".join(f"{label} {tensor.spec}" for label, tensor in zip(labels, tensors, strict=True))
            differences.append(f"  result{path}: {listed}; cast one with ops.cast.")
        for region, tensor in zip(regions, tensors, strict=True):
            region.results.append(tensor)
    if differences:
        raise TypeError("\n".join(["cond: the branches must return the same dtypes.", *differences]))


def _in_region(region: Region, leaf: Any, wanted: Any) -> Symbol:
    with region.as_default():
        return region.capture(as_component(leaf, None if wanted is None else TensorSpec(None, wanted)))


guard_entrances(globals(), __name__, but=("build_branch", "case", "cond"))
