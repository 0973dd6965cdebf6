"""`custom_gradient`: functions whose derivative the user writes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from ..common.nest import flatten, flatten_with_path, is_mapping, is_sequence, pack_as
from ..common.quick_dataclass import dataclass
from ..graph.context import graph_context
from ..graph.graph import Graph, Operation, Parameter, graph_for
from ..graph.op import Op
from ..graph.region import Region
from ..graph.slices import IndexedSlices
from ..graph.spec import Spec, TensorSpec, shape_text, shapes_compatible
from ..graph.state.variable import Variable
from ..graph.state.variable_ops import ReadVariable
from ..graph.tensor import Symbol, Tensor
from ..ops.base import apply, apply_multi, convert_to_tensor, runs_now
from ..ops.math.complex_numbers import conjugated
from ..ops.math.elementwise import Identity, StopGradient
from ..ops.run_time_shapes import zeros_of
from .tape import Tape


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the values of `f` and the gradient that `f` returns (``keras.ops.custom_gradient``).

    Args:
        f: a function of tensors (or structures of them) that returns ``(outputs, grad_fn)``.
            ``grad_fn(*upstream)`` gets the cotangent of each tensor of the outputs, of its shape (None for those of
            integers and bools), and returns the cotangents of the arguments: one for each of their tensors, of that
            tensor's shape and dtype. None means that nothing flows.
            Where the outputs depend on trainable variables, it is called as ``grad_fn(*upstream, variables=[...])``
            and returns ``(cotangents of the arguments, cotangents of these variables)``.

    Returns:
        The function, with the outputs of `f` as its result. Keyword arguments are passed on as constants. Tensors
        that `f` uses from around it count as constants too: hand them over as arguments to differentiate by them.

    Raises:
        TypeError: `f` returns no such pair, or reads variables without a `variables` argument of `grad_fn`.
        ValueError: the cotangents do not fit the arguments in number or shape (when a gradient is taken).

    The second derivative is the derivative of what `grad_fn` builds: it flows through its operations, and on through
    the values of `f` that it uses. May be used as a decorator, inside loops, branches, functions and layers. As
    ``tf.custom_gradient``, whose example follows: the plain derivative of log(1 + exp(x)) is NaN at 100.

    >>> import anabranch as ab
    >>> @ab.custom_gradient
    ... def log1pexp(x):
    ...     e = ab.ops.exp(x)
    ...     return ab.ops.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))
    >>> x = ab.Variable(100.0)
    >>> with ab.GradientTape() as tape:
    ...     y = log1pexp(x)
    >>> float(tape.gradient(y, x))
    1.0
    """

    @functools.wraps(f)
    def with_custom_gradient(*args: Any, **kwargs: Any) -> Any:
        return _call(f, args, kwargs)

    return with_custom_gradient


class GradientRule(Protocol):
    """A rule by which cotangents of results become those of arguments and variables."""

    @property
    def results(self) -> int:
        """The number of results."""
        ...

    def cotangents(self, upstream: list[Any], targets: Sequence[Tensor]) -> list[Any]:
        """Return the cotangents (or None) of `targets`, from those of the results (None for integers and bools)."""
        ...


@dataclass(frozen=True)
class ResultsOnly:
    """The rule in a task, which computes results, and has no rule of the client's by which to differentiate them."""

    results: int

    def cotangents(self, upstream: list[Any], targets: Sequence[Tensor]) -> list[Any]:
        """Raise an error."""
        raise TypeError(
            "custom_gradient: a task differentiates nothing, and does not have the client's gradient function; got a "
            "request for a gradient. Build gradients in the process that runs the session."
        )


class CustomGradient(Op):
    """Inputs: results, arguments, variables' values. Outputs: the results, whose cotangents go to the others."""

    no_samples: ClassVar[str] = "holds a user's function: test_custom_gradient"
    view: ClassVar[bool] = True

    def __init__(self, rule: GradientRule) -> None:
        self.rule = rule

    def infer(self, *inputs: Any) -> Spec | tuple[Spec, ...]:
        return inputs[: self.rule.results]

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0] if self.rule.results == 1 else inputs[: self.rule.results]

    def attributes(self) -> dict[str, Any]:
        return {}  # the operation is named after the function, of which there is nothing more to print

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        count = self.rule.results
        # The user's function sees complex gradients as `gradients` gives them, of which cotangents are the conjugates.
        upstream = [
            zeros_of(result) if dy is None and result.spec.differentiable else _conjugated(dy)
            for result, dy in zip(node.outputs, cotangents, strict=True)
        ]
        return *[None] * count, *map(_conjugated, self.rule.cotangents(upstream, node.inputs[count:]))


def _conjugated(cotangent: Any) -> Any:
    return conjugated(cotangent) if isinstance(cotangent, Tensor) else cotangent


@dataclass(frozen=True, eq=False)
class _Rule:
    """The user's gradient function and what it is checked against.

    Attributes:
        results: the number of output tensors.
        arguments: the arguments as the user gave them; `names` of their leaves.
        is_tensor: for each leaf whether it became a tensor, and has a cotangent.
    """

    name: str
    grad_fn: Callable[..., Any]
    results: int
    arguments: tuple[Any, ...]
    names: tuple[str, ...]
    is_tensor: tuple[bool, ...]
    variables: tuple[Variable, ...]

    def cotangents(self, upstream: list[Any], targets: Sequence[Tensor]) -> list[Any]:
        """Return what `grad_fn` returns for the arguments and variables whose values are `targets`."""
        names = [name for name, kept in zip(self.names, self.is_tensor, strict=True) if kept]
        if not self.variables:
            return self._checked(self._aligned(self.grad_fn(*upstream)), names, targets)
        both = self.grad_fn(*upstream, variables=list(self.variables))
        if not is_sequence(both) or len(both) != 2:
            raise ValueError(
                f"custom_gradient: {self.name} reads variables, so its grad_fn must return a pair (cotangents of the "
                f"arguments, cotangents of the variables); got {_described(both)}."
            )
        found = self._aligned(both[0])
        of_variables = _leaves(both[1]) if is_sequence(both[1]) else [both[1]]
        if len(of_variables) != len(self.variables):
            raise ValueError(
                f"custom_gradient: the grad_fn of {self.name} must return one cotangent for each of the "
                f"{len(self.variables)} variables that it reads ({', '.join(v.name for v in self.variables)}); "
                f"got {len(of_variables)}."
            )
        names = [*names, *[variable.name for variable in self.variables]]
        return self._checked([*found, *of_variables], names, targets)

    def _aligned(self, returned: Any) -> list[Any]:
        """Return one cotangent for each tensor among the arguments, out of what `grad_fn` returned for them."""
        one = isinstance(returned, IndexedSlices) or not is_sequence(returned)
        entries: list[Any] = [returned] if one else list(returned)
        if len(entries) == len(self.arguments):
            found = [
                leaf
                for argument, entry in zip(self.arguments, entries, strict=True)
                for leaf in _under(argument, entry)
            ]
        else:
            found = _leaves(entries)
        if len(found) == len(self.is_tensor):
            return [cotangent for cotangent, kept in zip(found, self.is_tensor, strict=True) if kept]
        if len(found) == sum(self.is_tensor):
            return found
        raise ValueError(
            f"custom_gradient: the grad_fn of {self.name} must return one cotangent for each of the "
            f"{sum(self.is_tensor)} arguments ({', '.join(self.names)}); got {len(found)}. "
            "Return None for an argument to which nothing flows."
        )

    def _checked(self, found: list[Any], names: list[str], targets: Sequence[Tensor]) -> list[Any]:
        return [
            self._checked_one(cotangent, name, target)
            for cotangent, name, target in zip(found, names, targets, strict=True)
        ]

    def _checked_one(self, cotangent: Any, name: str, target: Tensor) -> Any:
        if cotangent is None or not target.spec.differentiable:
            return None
        dense = cotangent.to_dense() if isinstance(cotangent, IndexedSlices) else cotangent
        tensor = convert_to_tensor(dense, target.dtype)
        if isinstance(target.spec, TensorSpec) and not shapes_compatible(tensor.shape, target.shape):
            raise ValueError(
                f"custom_gradient: the grad_fn of {self.name} returned a cotangent of shape "
                f"{shape_text(tensor.shape)} for {name}, whose shape is {shape_text(target.shape)}. "
                "It must have the same shape: sum over what was broadcast."
            )
        return tensor


def _call(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(f, "__name__", type(f).__name__)
    leaves = flatten(args)
    is_tensor = [_becomes_tensor(leaf) for leaf in leaves]
    given = [convert_to_tensor(leaf) for leaf, kept in zip(leaves, is_tensor, strict=True) if kept]
    apart: _Apart = _AtOnce() if runs_now(given) else _InGraph()
    values, returned = apart.call(f, args, kwargs, is_tensor, given)
    if not is_sequence(returned) or len(returned) != 2 or not callable(returned[1]):
        raise TypeError(
            f"custom_gradient: {name} must return a pair (outputs, grad_fn), where grad_fn is a function; "
            f"got {_described(returned)}."
        )
    outputs, grad_fn = returned
    results = [convert_to_tensor(leaf) for leaf in flatten(outputs)]
    if not results:
        raise TypeError(f"custom_gradient: {name} returned no output tensors.")
    results, reads = apart.reads(results)
    if reads:
        _check_takes_variables(grad_fn, name, reads)
    names = _leaf_names(f, args)
    rule = _Rule(name, grad_fn, len(results), args, tuple(names), tuple(is_tensor), tuple(reads))
    made = apply_multi(CustomGradient(rule), *results, *values, *reads.values(), name=name)
    return pack_as(outputs, list(made))


class _Apart(Protocol):
    """A way to call the user's function, apart from what is differentiated."""

    def call(
        self, f: Callable[..., Any], args: Any, kwargs: dict[str, Any], is_tensor: list[bool], given: list[Tensor]
    ) -> tuple[list[Tensor], Any]:
        """Return the values of the arguments that are tensors, and what `f` returned."""
        ...

    def reads(self, results: list[Tensor]) -> tuple[list[Tensor], dict[Variable, Tensor]]:
        """Return the results, and the trainable variables that `f` has read for them, with their values."""
        ...


class _InGraph:
    """The function is traced into the graph that is being built, or into that of the symbols among the arguments."""

    def call(
        self, f: Callable[..., Any], args: Any, kwargs: dict[str, Any], is_tensor: list[bool], given: list[Tensor]
    ) -> tuple[list[Tensor], Any]:
        self._graph = graph_for(given)
        self._start = len(self._graph.operations)
        with self._graph.entered():
            # Copies under names of their own: a variable that comes as an argument is not one that `f` reads by itself.
            values: list[Tensor] = [self._graph.capture(value) for value in given]
            self._copies = [apply(Identity(), value) for value in values]
            return values, f(*_with_tensors(args, is_tensor, self._copies), **kwargs)

    def reads(self, results: list[Tensor]) -> tuple[list[Tensor], dict[Variable, Tensor]]:
        captured: list[Any] = [self._graph.capture(result) for result in results]
        arguments: set[Any] = set(self._copies)
        return captured, _variable_reads(self._graph, captured, arguments, self._start)


class _AtOnce:
    """The function runs, seen by one more tape.

    The tapes around see it too, for the second derivative flows through the values of the function that its `grad_fn`
    uses. The first does not: `CustomGradient` hands no cotangent to the results of the function.
    """

    def call(
        self, f: Callable[..., Any], args: Any, kwargs: dict[str, Any], is_tensor: list[bool], given: list[Tensor]
    ) -> tuple[list[Tensor], Any]:
        self._noted, before = Tape(), graph_context.tapes
        graph_context.tapes = (self._noted, *before)
        try:
            return given, f(*_with_tensors(args, is_tensor, [apply(Identity(), value) for value in given]), **kwargs)
        finally:
            graph_context.tapes = before

    def reads(self, results: list[Tensor]) -> tuple[list[Tensor], dict[Variable, Tensor]]:
        found = {variable: variable.value for variable in self._noted.read_for(results)}
        return results, found


def _with_tensors(args: Any, is_tensor: list[bool], tensors: Sequence[Tensor]) -> Any:
    """Return the arguments with `tensors` in the places of those that are such."""
    remaining = iter(tensors)
    leaves = flatten(args)
    return pack_as(args, [next(remaining) if kept else leaf for leaf, kept in zip(leaves, is_tensor, strict=True)])


def _becomes_tensor(leaf: Any) -> bool:
    """Test whether a leaf becomes a tensor: numbers and arrays do; flags, texts, functions and others stay."""
    if isinstance(leaf, (Tensor, Variable, np.ndarray, np.generic)):
        return True
    return isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool)


def _variable_reads(
    graph: Graph, results: Iterable[Symbol], arguments: set[Symbol], start: int
) -> dict[Variable, Tensor]:
    """Return the trainable variables on which `results` depend, not only through `arguments`, and their values.

    Args:
        start: the number of operations that `graph` had before; older values are constants, unless they are reads.
    """
    found: dict[Symbol, Variable] = {}
    seen: set[Symbol] = set()
    pending = list(results)
    while pending:
        tensor = pending.pop()
        if tensor in seen or tensor in arguments:
            continue
        seen.add(tensor)
        variable = variable_read_by(tensor)
        if variable is not None and variable.trainable and tensor.spec.differentiable:
            found[tensor] = variable
        elif tensor.operation.index >= start and not isinstance(tensor.operation.op, StopGradient):
            pending.extend(tensor.operation.inputs)
    reads: dict[Variable, Tensor] = {}
    for tensor in sorted(found, key=lambda tensor: tensor.operation.index):
        reads.setdefault(found[tensor], tensor)
    return reads


def variable_read_by(tensor: Symbol) -> Variable | None:
    """Return the variable whose value `tensor` is, read here or in a graph around this one."""
    while isinstance(tensor.operation.op, Parameter):
        graph = tensor.graph
        outer = next((o for o, p in graph.captures if p is tensor), None) if isinstance(graph, Region) else None
        if outer is None:
            return None
        tensor = outer
    op = tensor.operation.op
    return op.variable if isinstance(op, ReadVariable) else None


def _check_takes_variables(grad_fn: Callable[..., Any], name: str, variables: Iterable[Variable]) -> None:
    try:
        parameters = inspect.signature(grad_fn).parameters.values()
    except (TypeError, ValueError):
        return
    if any(p.name == "variables" or p.kind is p.VAR_KEYWORD for p in parameters):
        return
    listed = ", ".join(variable.name for variable in variables)
    raise TypeError(
        f"custom_gradient: {name} reads the variables {listed}, so its grad_fn must take them: "
        "def grad_fn(*upstream, variables): ... return cotangents of the arguments, cotangents of the variables. "
        "Read them under ops.stop_gradient if they count as constants."
    )


def _leaf_names(f: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    """Return a name for each leaf of the arguments, in the user's own words."""
    parameters: list[inspect.Parameter]
    try:
        parameters = [p for p in inspect.signature(f).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][: len(args)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "argument")
    names.extend(f"{rest}[{position}]" for position in range(len(args) - len(names)))
    return [name + path for name, value in zip(names, args, strict=True) for path, _ in flatten_with_path(value)]


def _leaves(structure: Any) -> list[Any]:
    """Return the leaves of a structure, None among them."""
    if isinstance(structure, IndexedSlices):
        return [structure]
    if is_mapping(structure):
        return [leaf for key in sorted(structure) for leaf in _leaves(structure[key])]
    if is_sequence(structure):
        return [leaf for item in structure for leaf in _leaves(item)]
    return [structure]


def _under(argument: Any, entry: Any) -> list[Any]:
    """Return the cotangents of one argument's leaves; one None stands for all of them."""
    return [None] * len(flatten(argument)) if entry is None else _leaves(entry)


def _described(value: Any) -> str:
    return f"{len(value)} values" if is_sequence(value) else f"one {type(value).__name__}"


__all__ = ["CustomGradient", "GradientRule", "ResultsOnly", "custom_gradient", "variable_read_by"]
