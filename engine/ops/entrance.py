"""Entry into the graph of a symbol: a public function with one among its arguments is built there as a whole.

So ``ops.take(variable, placeholder)`` outside of a graph reads the variable in the graph, each time that it runs, and
helpers inside of a composite function build where the symbol is. Inside of a graph there is nothing to decide.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from ..common.nest import flatten, is_mapping, is_sequence
from ..graph.context import graph_context
from ..graph.graph import Graph
from ..graph.state.variable import Variable
from ..graph.tensor import Symbol
from ..graph.tracebacks import shorten
from ..graph.value import Value
from .base import Constant, shared_scalars
from .data_format import image_data_format

_PLAIN = frozenset({Value, Variable, int, float, bool, str, type(None), np.ndarray, complex, bytes})


def symbol_in(value: Any) -> Symbol | None:
    """Return a symbol among the leaves of `value`; None if there is none."""
    if isinstance(value, Symbol):
        return value
    items: Iterable[object]
    if is_mapping(value):
        items = value.values()
    elif is_sequence(value):
        items = value
    else:
        return getattr(value, "flow", None) if isinstance(getattr(value, "flow", None), Symbol) else None
    if _PLAIN.issuperset(map(type, items)):  # quick where there are many
        return None
    for item in items:
        found = symbol_in(item)
        if found is not None:
            return found
    return None


class PublicCall(NamedTuple):
    """A call of a public function on symbols outside of any graph that is being built, as in functional models.

    Attributes:
        function: the function, without what enters graphs.
        args, kwargs: of the call.
        outputs: the symbols that it made and returned, in flat order.
        data_format: the default order of an image's axes at the call.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Symbol]
    data_format: str


CALL = "public call"  # the annotation of a call's outputs: the call, and which output it is


def recorded_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], graph: Graph) -> Any:
    """Return the result of `function`, whose symbols are annotated with the call if they were made by it."""
    function = inspect.unwrap(function)
    first = len(graph.operations)
    result = function(*args, **kwargs)
    outputs = [leaf for leaf in flatten(result) if isinstance(leaf, Symbol)]
    if outputs and all(output.operation.index >= first and CALL not in output.annotations for output in outputs):
        call = PublicCall(function, args, kwargs, outputs, image_data_format())
        for position, output in enumerate(outputs):
            output.annotations[CALL] = (call, position)
    return result


def entering_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` to be called in the graph of a symbol among its arguments, if no graph is being built."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if not graph_context.stack:
                symbol = None
                for argument in args:  # here, and not in a function: each op that is run at once comes through
                    if type(argument) not in _PLAIN:
                        symbol = symbol_in(argument)
                        if symbol is not None:
                            break
                if symbol is None and kwargs:
                    symbol = symbol_in(kwargs)
                if symbol is not None:
                    symbol.operation.graph.refuse_traced(symbol)
                    with symbol.operation.graph.entered() as graph:
                        return recorded_call(function, args, kwargs, graph)
            result = function(*args, **kwargs)
            return _own(result) if type(result) is Value or type(result) is Symbol else result
        except Exception as error:
            shorten(error, function)
            raise

    return call


def _own(tensor: Value | Symbol) -> Value | Symbol:
    """Return a constant of its own in the place of a scalar that stands for all equal numbers of Python.

    With what ``ops.reshape(2.0, ())`` returned, the factor in ``x * 2.0`` would be part of the gradient by it.
    """
    if isinstance(tensor, Value):
        return Value(tensor.array) if id(tensor) in shared_scalars else tensor
    op = tensor.operation.op
    if type(op) is not Constant or op.value.ndim or not tensor.spec.differentiable:
        return tensor
    graph = tensor.operation.graph
    is_shared = graph.constants.get((tensor.dtype, op.value.tobytes())) is tensor
    return graph.add(Constant(op.value), (), "constant").outputs[0] if is_shared else tensor


def guard_entrances(namespace: dict[str, Any], package: str, but: Iterable[str] = ()) -> None:
    """Replace the public functions of `package` in a namespace by such that enter the graphs of symbols.

    Args:
        namespace: of a module.
        package: the beginning of the names of the modules in which the functions are defined.
        but: names of functions that stay as they are.
    """
    for name, function in list(namespace.items()):
        if name.startswith("_") or name in but or not isinstance(function, FunctionType):
            continue
        if function.__module__.startswith(package) and not hasattr(function, "__wrapped__"):
            namespace[name] = entering_graphs(function)


__all__ = ["CALL", "PublicCall", "entering_graphs", "guard_entrances", "recorded_call", "symbol_in"]
