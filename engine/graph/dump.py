"""Graphs as typed text that a person reads: one line an operation, regions indented below what holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.dtypes import is_dtype
from ..common.nest import flatten, is_mapping, is_sequence
from .device import is_variable
from .op import is_array
from .search import reached
from .spec import FrameSpec
from .tensor import Symbol

if TYPE_CHECKING:
    from .graph import Graph, Operation
    from .region import Region

_MOST_ELEMENTS = 6  # of a constant; of more, shape and range are printed


def dump(graph: Graph, fetches: Any = None, locations: bool = False) -> str:
    """Return `graph`, or what `fetches` need of it, as text. See `Graph.dump`.

    Raises:
        ValueError: a fetch belongs to another graph.
    """
    operations = graph.operations if fetches is None else _needed(graph, flatten(fetches))
    lines: list[str] = []
    OperationWriter(lines, locations).write(operations, 0)
    return "\n".join(lines) + "\n" if lines else ""


def dump_operations(operations: Sequence[Operation]) -> str:
    """Return some operations of a graph as text, in their order, as `dump` writes them."""
    lines: list[str] = []
    OperationWriter(lines, locations=False).write(operations, 0)
    return "".join(f"{line}\n" for line in lines)


def _needed(graph: Graph, fetches: Iterable[Any]) -> list[Operation]:
    starts: list[Operation] = []
    for fetch in fetches:
        fetch = getattr(fetch, "flow", fetch)
        operation = graph.read(fetch).operation if is_variable(fetch) else getattr(fetch, "operation", fetch)
        if getattr(operation, "graph", None) is not graph:
            raise ValueError(f"dump: {fetch!r} is no tensor or operation of this graph.")
        starts.append(operation)
    found = reached(starts, lambda each: [*(tensor.operation for tensor in each.inputs), *each.control_inputs])
    return sorted(found, key=lambda operation: operation.index)


class OperationWriter:
    """Writes operations, their regions and results as lines of text."""

    def __init__(self, lines: list[str], locations: bool) -> None:
        self.lines = lines
        self.locations = locations
        self.literals: dict[Symbol, str] = {}  # captured numbers

    def write(self, operations: Sequence[Operation], depth: int) -> None:
        used = {tensor for operation in operations for tensor in operation.inputs}
        for operation in operations:
            if not is_literal(operation):
                self._write_operation(operation, depth, used)

    def _write_operation(self, operation: Operation, depth: int, used: set[Symbol]) -> None:
        outputs = [t for t in operation.outputs if t in used or not isinstance(t.spec, FrameSpec)]
        results = ", ".join(f"{reference_text(tensor)}: {tensor.spec}" for tensor in outputs)
        own = ", ".join(map(self._reference, operation.own_inputs))
        call = f"{operation.type}{_attributes(operation.op.attributes())}({own})"
        text = f"{results} = {call}" if results else f"{operation.name}: {call}"
        self._line(depth, text + self._remarks(operation))
        for region in operation.op.regions:
            self._write_region(region, depth + 1)

    def _remarks(self, operation: Operation) -> str:
        device = f" @ {operation.device}" if operation.device else ""
        waits = ", ".join(source.name for source in operation.control_inputs)
        after = f" after {waits}" if waits else ""
        return device + after + (f"  # {operation.location}" if self.locations else "")

    def _write_region(self, region: Region, depth: int) -> None:
        parameters = ", ".join(f"{reference_text(tensor)}: {tensor.spec}" for tensor in region.parameters)
        self.literals |= {inner: self._reference(outer) for outer, inner in region.captures if self._is_literal(outer)}
        captures = ", ".join(self._capture(*pair) for pair in region.captures if pair[1] not in self.literals)
        self._line(depth, f"{region.name}({parameters}{'; ' if captures else ''}{captures}):")
        given = {tensor.operation for tensor in (*region.parameters, *(inner for _, inner in region.captures))}
        self.write([operation for operation in region.operations if operation not in given], depth + 1)
        self._line(depth + 1, f"return {', '.join(map(self._reference, region.results))}".rstrip())

    def _is_literal(self, tensor: Symbol) -> bool:
        return tensor in self.literals or is_literal(tensor.operation)

    def _reference(self, tensor: Symbol) -> str:
        return self.literals.get(tensor) or reference_text(tensor)

    def _capture(self, outer: Symbol, inner: Symbol) -> str:
        name, source = reference_text(inner), self._reference(outer)
        return name if name == source else f"{name} = {source}"

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)


def is_literal(operation: Operation) -> bool:
    """Test whether it is a Python number in the user's code: those are printed where they are used."""
    if operation.type != "constant" or operation.control_inputs:
        return False
    spec = operation.outputs[0].spec
    return spec.shape == () and spec.dtype.name in ("bool", "int32", "float32")


def reference_text(tensor: Symbol) -> str:
    """Return how a tensor is called: by its operation, with the number of the output where there are several."""
    operation = tensor.operation
    if is_literal(operation):
        return str(operation.op.attributes()["value"])
    several = sum(not isinstance(output.spec, FrameSpec) for output in operation.outputs) > 1
    frame = isinstance(tensor.spec, FrameSpec) and len(operation.outputs) > 1
    return f"{operation.name}:{'frame' if frame else tensor.index}" if several or frame else operation.name


def _attributes(attributes: Mapping[str, Any]) -> str:
    if not attributes:
        return ""
    return f"[{', '.join(f'{name}={value_text(value)}' for name, value in attributes.items())}]"


def value_text(value: Any) -> str:
    """Return an attribute of an op as the dump shows it."""
    if is_dtype(value):
        return value.name
    if isinstance(value, Symbol):
        return reference_text(value)
    if is_variable(value):
        return value.name
    if is_array(value):
        return _array_text(value)
    if is_sequence(value):
        items = ", ".join(value_text(item) for item in value)
        return f"({items},)" if len(value) == 1 else f"({items})"
    if is_mapping(value):
        return "{" + ", ".join(f"{key}: {value_text(item)}" for key, item in value.items()) + "}"
    return getattr(value, "__qualname__", None) or str(value)


def _array_text(value: np.ndarray[Any, Any]) -> str:
    if value.size <= _MOST_ELEMENTS:
        return str(value.tolist())
    if value.dtype.kind not in "biuf":
        return f"{value.size} elements"
    return f"{value.size} elements from {value.min()} to {value.max()}"
