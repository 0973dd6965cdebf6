"""`function`: a Python function traced into a graph once for each kind of arguments."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, cast, overload

import numpy as np

from ..common.logs import INFO, changes_of, is_logged, log
from ..common.nest import flatten, flatten_with_path, is_mapping, is_sequence, pack_as
from ..common.outputs import Outputs
from ..control_flow.region_op import component
from ..graph.context import devices_at_once, graph_context
from ..graph.graph import Operation, Placeholder, get_default_graph
from ..graph.op import as_scalar_or_array
from ..graph.spec import TensorSpec
from ..graph.tensor import Symbol
from ..graph.tracebacks import short_tracebacks, shorten
from ..graph.value import FlowValue, Value
from ..ops.base import as_array, convert_to_tensor, is_numpy
from ..ops.containers.array_value import ArrayValue
from ..ops.containers.store_value import StoreValue
from ..ops.data_format import image_data_format
from ..ops.immediate import asked_device
from ..place.kernels import where_possible
from ..runtime.program import as_fetched
from .programs import make_variants
from .recursion import call_on_tensors, meets_itself, mentions, static_key
from .staged import Recording, TraceGraph

_MOST_KNOWN = 64


class Function(Generic[Outputs]):
    """A traced function. Called on values and arrays it runs compiled and returns values. Called on symbols, or while a
    graph is being built, it adds to the graph: in another function, or in a loop or branch, it runs with that.

    Args:
        python_function: builds the computation out of anabranch ops.
        relax_shapes: after this many traces for different shapes, trace once for any size of each axis.
        jit_compile: make machine code of all of a trace, where every operation in it has a native form: worth the time
            that it takes to compile where small arrays are computed again and again. (See "Native regions" in the
            design notes for what is compiled so by itself.)
    """

    takes_device: ClassVar[bool] = True  # whether it runs where the scopes around a call ask, outside of graphs

    def __init__(
        self, python_function: Callable[..., Outputs], relax_shapes: int = 8, jit_compile: bool | None = None
    ) -> None:
        functools.update_wrapper(self, python_function)
        self.jit_compile = bool(jit_compile)
        self.python_function = python_function
        self.relax_shapes = relax_shapes
        self._name = str(getattr(python_function, "__name__", "function"))
        self._traces: dict[Any, _Trace] = {}
        self._known: dict[Any, _Trace] = {}  # by the types, dtypes and shapes of arguments that all are arrays
        self._may_recurse: bool | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        try:
            return self._called(args, kwargs)
        except Exception as error:
            shorten(error)
            raise

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outputs:
        kinds = None if kwargs or graph_context.stack or devices_at_once.open else _kinds(args)
        known = None if kinds is None else self._known.get(kinds)
        if known is not None and not meets_itself(self, args, kwargs):
            return known.run(args)
        leaves = flatten((args, kwargs))
        kinds_of_leaves: set[type[Any]] = {type(component(leaf)) for leaf in leaves}
        if FlowValue in kinds_of_leaves and not graph_context.stack:
            return self.python_function(*args, **kwargs)
        if graph_context.stack and any(map(is_numpy, leaves)):
            args, kwargs = pack_as((args, kwargs), [convert_to_tensor(x) if is_numpy(x) else x for x in leaves])
        if Symbol in kinds_of_leaves or graph_context.stack or meets_itself(self, args, kwargs):
            return call_on_tensors(self, args, kwargs)
        arrays = {position: as_array(leaf) for position, leaf in enumerate(leaves) if _is_array(leaf)}
        specs = {position: TensorSpec(tuple(a.shape), a.dtype) for position, a in arrays.items()}
        device = asked_device(f"Function {self._name!r}") if self.takes_device else ""
        trace = self._trace((args, kwargs), leaves, specs, device)
        if kinds is not None and len(self._known) < _MOST_KNOWN and all(map(_is_fed_as_it_is, args, arrays.values())):
            self._known[kinds] = trace
        return trace.run([leaves[p] if type(leaves[p]) is Value else array for p, array in arrays.items()])

    def may_recurse(self) -> bool:
        """Test whether a look at the function's names says that it may call itself, directly or by way of others."""
        if self._may_recurse is None:
            self._may_recurse = mentions(self.python_function, self, Function)
        return self._may_recurse

    def trace_count(self) -> int:
        """Return the number of graphs that were traced so far."""
        return len(self._traces)

    def latest_trace(self) -> tuple[list[Any], list[Symbol]] | None:
        """Return the fetches and the feeds of the graph that was traced last; None before the first call."""
        latest = next(reversed(self._traces.values()), None)
        return None if latest is None else latest.fetches_and_feeds()

    def _trace(self, arguments: Any, leaves: list[Any], specs: dict[int, TensorSpec], device: str) -> _Trace:
        statics = tuple(static_key(leaf) for position, leaf in enumerate(leaves) if position not in specs)
        paths = tuple(path for path, _ in flatten_with_path(arguments))
        settings = (device, image_data_format())
        key = (paths, statics, tuple(specs.items()), settings)
        trace = self._traces.get(key)
        if trace is None:
            self._log_trace(key)
        if trace is None and self._count_alike(key) >= self.relax_shapes:
            text = "function %r was traced for %d shapes: it is traced for any size of each axis, and runs slower"
            log("fallback", INFO, text, self._name, self.relax_shapes)
            relaxed = {p: TensorSpec((None,) * len(s.shape or ()), s.dtype) for p, s in specs.items()}
            key = (paths, statics, tuple(relaxed.items()), settings)
            trace, specs = self._traces.get(key), relaxed
        if trace is None:
            trace = self._traces[key] = _Trace(self, arguments, leaves, specs, device)
        return trace

    def _log_trace(self, key: Any) -> None:
        """Note that the function is traced again, and what differs from the trace that is most like this one."""
        if not self._traces or not is_logged("trace", INFO):
            return
        forms = [_describe_key(self.python_function, other) for other in self._traces]
        now = _describe_key(self.python_function, key)
        # The latest one of those that have most arguments in common.
        before = max(reversed(forms), key=lambda form: len(form.items() & now.items()))
        changes = changes_of(before, now)
        log("trace", INFO, "function %r is traced again (trace %d): %s", self._name, len(forms) + 1, changes)

    def _count_alike(self, key: Any) -> int:
        """Return the number of traces that differ from `key` in their array arguments alone."""
        return sum(other[:2] == key[:2] and other[3] == key[3] for other in self._traces)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


class HostFunction(Function[Outputs]):
    """A function that prepares data: it computes on the CPU whatever device scopes are around its calls."""

    takes_device = False


class _Trace:
    """One traced graph, compiled. Effects inside always run, whether or not the result depends on them."""

    def __init__(
        self, function: Function, arguments: Any, leaves: list[Any], specs: dict[int, TensorSpec], device: str
    ) -> None:
        # Kept, because the cache holds the id of some of them.
        self._statics = [leaf for position, leaf in enumerate(leaves) if position not in specs]
        self._function, self._arguments = function, arguments
        self._graph = graph = TraceGraph()
        graph.compiles_whole = function.jit_compile
        with graph.as_default(), graph.device(where_possible(device) if device else None):
            feeds = {p: graph.add(Placeholder(spec), (), f"argument_{p}").outputs[0] for p, spec in specs.items()}
            symbols = [feeds.get(position, leaf) for position, leaf in enumerate(leaves)]
            args, kwargs = pack_as(arguments, symbols)
            self.result = call_on_tensors(function, args, kwargs)
            fetches = [_as_fetch(leaf) for leaf in flatten(self.result)]
        graph.traced = f"function {getattr(function.python_function, '__name__', 'function')!r}"
        self._effects: list[Operation] = [operation for operation in graph.operations if operation.writes]
        self._fetches, self._feeds = fetches, list(feeds.values())
        self._targets = [fetch for fetch in fetches if fetch is not None]
        self._gives_one = isinstance(self.result, Symbol)
        self._recording: Recording | None = None
        self._programs = make_variants(graph, *self.fetches_and_feeds())

    def fetches_and_feeds(self) -> tuple[list[Any], list[Symbol]]:
        """Return what the trace computes, effects included, and the arguments of its program."""
        return [*self._targets, *self._effects], [*self._feeds, *[symbol for _, symbol in self._graph.fed]]

    def run(self, given: Sequence[Any]) -> Any:
        """Return the function's result, of values or arrays in the places that are fed."""
        if graph_context.tapes:
            return self._run_recorded(given)
        arrays = [value.array if isinstance(value, Value) else value for value in given]
        found = self._programs.general()(*arrays, *[value.array for value, _ in self._graph.fed])
        if self._gives_one:
            return as_values(found[0])
        results = iter(found)
        return pack_as(self.result, [None if fetch is None else as_values(next(results)) for fetch in self._fetches])

    def _run_recorded(self, given: Sequence[Any]) -> Any:
        if self._recording is None:
            targets: list[Any] = self._targets
            self._recording = Recording(self._graph, self._feeds, targets, self._effects)
        values = [value if isinstance(value, Value) else Value(value) for value in given]
        if not self._recording.is_possible:  # effects in loops and branches happen once: the function itself is run
            remaining = iter(values)
            leaves = [next(remaining) if _is_array(leaf) else leaf for leaf in flatten(self._arguments)]
            args, kwargs = pack_as(self._arguments, leaves)
            return self._function.python_function(*args, **kwargs)
        results = iter(self._recording.on_values(values))
        return pack_as(self.result, [None if fetch is None else as_values(next(results)) for fetch in self._fetches])


def as_values(found: Any) -> Any:
    """Return what a program gave, as values; TensorArrays as lists and TensorStores as dicts of them."""
    if type(found) is np.ndarray and found.ndim:
        return Value(found)
    if isinstance(found, Value):
        return found if type(found) is Value else as_values(found.array)
    if isinstance(found, (ArrayValue, StoreValue)):
        found = as_fetched(found)
    if is_mapping(found):
        return {key: as_values(item) for key, item in found.items()}
    if is_sequence(found):
        return [as_values(item) for item in found]
    return None if found is None else Value(as_scalar_or_array(found))


@overload
def function(
    python_function: Callable[..., Outputs], *, relax_shapes: int = 8, jit_compile: bool | None = None
) -> Function[Outputs]: ...


@overload
def function(
    *, relax_shapes: int = 8, jit_compile: bool | None = None
) -> Callable[[Callable[..., Outputs]], Function[Outputs]]: ...


@short_tracebacks
def function(
    python_function: Callable[..., Any] | None = None, *, relax_shapes: int = 8, jit_compile: bool | None = None
) -> Any:
    """Turn a Python function over tensors into one over arrays: traced by input specs, compiled, cached.

    Python numbers and NumPy arrays among the arguments are fed; other arguments (strings, bools, objects) are part
    of the trace. May be used as a decorator, with or without arguments.

    Args:
        python_function: builds the computation out of anabranch ops.
        relax_shapes, jit_compile: see `Function`.

    >>> import anabranch as ab
    >>> @ab.function
    ... def hypotenuse(a, b):
    ...     return ab.ops.sqrt(a * a + b * b)
    >>> float(hypotenuse(3.0, 4.0))
    5.0

    A function may call itself, directly or by way of others, down to 100,000 calls deep; gradients of any order go
    through the calls. A branch of `cond` has to return without a call, and dtypes of the arguments stay the same from
    call to call. Python numbers that are given to tensors' parameters in calls inside become tensors.

    >>> @ab.function
    ... def power(x, n):
    ...     return ab.cond(n <= 0, lambda: ab.ops.ones_like(x), lambda: power(x, n - 1) * x)
    >>> float(power(3.0, 4))
    81.0
    """
    if python_function is None:
        return functools.partial(Function, relax_shapes=relax_shapes, jit_compile=jit_compile)
    return Function(python_function, relax_shapes, jit_compile)


def _kinds(arguments: Sequence[Any]) -> Any:
    """Return the key of a trace of such arguments now: NumPy's arrays and scalars; None if there are others."""
    kinds: list[Any] = [image_data_format()]
    for value in arguments:
        kind = cast("Any", type(value))
        if issubclass(kind, np.ndarray):
            kinds += (kind, value.dtype, value.shape)
        elif issubclass(kind, np.generic):
            kinds.append(kind)
        elif kind is Value:
            kinds += (kind, value.array.dtype, value.array.shape)
        else:
            return None
    return tuple(kinds)


def _argument_name(function: Callable[..., Any], path: str) -> str:
    """Return the name of an argument in the function's own words, from its place in ``(args, kwargs)``."""
    place = re.match(r"\[0\]\[(\d+)\]", path)
    if place is None:
        return path.removeprefix("[1]").strip("[]'")
    names = list(inspect.signature(function).parameters)
    number = int(place[1])
    return (names[number] if number < len(names) else f"argument {number}") + path[place.end() :]


def _describe_key(function: Callable[..., Any], key: Any) -> dict[str, str]:
    """Return the spec or the fixed value of each argument of a trace, by its name."""
    paths, statics, specs, (_, data_format) = key
    fixed, fed = iter(statics), dict(specs)
    forms = [str(fed[place]) if place in fed else repr(next(fixed, "")) for place in range(len(paths))]
    described = dict(zip((_argument_name(function, path) for path in paths), forms, strict=True))
    return {**described, "the default data_format": data_format}


def _is_fed_as_it_is(given: Any, fed: Any) -> bool:
    """Test whether nothing was made of an argument: that depends on its type, dtype and shape alone."""
    return fed is given or type(given) is Value or (issubclass(type(given), np.generic) and type(fed) is type(given))


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, (bool, str, bytes)) or leaf is None or callable(leaf):
        return False
    return isinstance(leaf, (int, float, complex)) or (
        (hasattr(leaf, "dtype") and hasattr(leaf, "__array__")) and not (hasattr(leaf, "assign"))
    )


def _as_fetch(leaf: Any) -> Symbol | None:
    if isinstance(leaf, Operation):
        return None
    return get_default_graph().capture(convert_to_tensor(getattr(leaf, "flow", leaf)))
