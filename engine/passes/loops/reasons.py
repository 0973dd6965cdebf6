"""Reasons why a product that needs no iteration before its own stays in a loop: the value that holds it, and how."""

from __future__ import annotations

from ...control_flow.region_op import RegionOp
from ...graph.graph import Operation, Parameter
from ...graph.search import reached
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.gathering import Take
from ...ops.arrays.indexing import GetItem
from ...ops.base import Constant
from ...ops.containers.tensor_arrays import ArrayRead, ArrayReadOrZeros
from ..framework.assign import on_one_device
from .batches import can_batch
from .view import LoopView, is_static


def hindrance(loop: LoopView, operation: Operation) -> str:
    """Return the reason that keeps an operation of the body from being computed for all iterations at once."""
    if loop.trips is None:
        return "the number of iterations is not known before the loop starts"
    directions: dict[int, str] = {}
    for source in _sources(loop, operation):
        found = _of_value(loop, source, directions)
        if found is not None:
            return found
    if len(directions) > 1:
        return f"it takes {directions[1]}, read forward, and {directions[-1]}, read backward"
    if not on_one_device(_sources(loop, operation)):
        return "its inputs are on several devices"
    names = " and ".join([repr(tensor.operation.name) for tensor in operation.inputs])
    return f"{names} are there for one iteration at a time"


def _sources(loop: LoopView, operation: Operation) -> list[Operation]:
    """Return an operation and those of the body of which it is computed, what comes first in front."""

    def computed_of(source: Operation) -> list[Operation]:
        inputs = [tensor.operation for tensor in source.inputs if tensor.operation.graph is loop.body]
        return [each for each in inputs if not isinstance(each.op, (Constant, Parameter))]

    found = reached([operation], computed_of)
    return [source for source in loop.body.operations if source in found]


def _of_value(loop: LoopView, source: Operation, directions: dict[int, str]) -> str | None:
    """Return how an input holds the product in the loop, if it does; note in which direction elements are read."""
    op, name = source.op, repr(source.name)
    if isinstance(op, RegionOp):
        return f"it takes {name}, what a {source.type} gives, which is not batched"
    unknown = [tensor for tensor in source.outputs if not is_static(tensor)]
    if unknown:
        return f"it takes {name}, of which the shape is known as {_spec(unknown[0])} only"
    if isinstance(op, (ArrayRead, ArrayReadOrZeros)) or (isinstance(op, (GetItem, Take)) and len(source.inputs) > 1):
        return _of_read(loop, source, directions)
    if not can_batch(source):
        return f"it takes {name}, and there is no {source.type} of all iterations at once"
    return None


def _of_read(loop: LoopView, read: Operation, directions: dict[int, str]) -> str | None:
    form, name = loop.form(read.inputs[1]), repr(read.name)
    array, place = read.inputs[0], repr(read.inputs[1].operation.name)
    if loop.outer(array) is None and not isinstance(array.operation.op, Constant):
        return f"it takes {name}, an element of {array.operation.name!r}, which iterations change"
    if form is None or abs(form.steps) != 1:
        return f"it takes {name}, read at {place}, which does not go up or down by one"
    first = loop.first_place(form)
    if not isinstance(read.op, (ArrayRead, ArrayReadOrZeros)) or first is None or first < 0:
        return f"it takes {name}, read at {place}, which may be outside"
    directions.setdefault(form.steps, name)
    return None


def _spec(tensor: Symbol) -> str:
    return str(tensor.spec.shape) if isinstance(tensor.spec, TensorSpec) else str(tensor.spec)


__all__ = ["hindrance"]
