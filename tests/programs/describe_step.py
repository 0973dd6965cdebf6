"""A prepared step as text in which every fact that a program is printed from has its place: equal texts, equal steps.

`Graph.dump` is for readers and leaves out names, dead operations and large constants. This text leaves out nothing, and
names no object by its address, so that it is the same in every process.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

_ADDRESS = re.compile(r" at 0x[0-9a-f]+|0x[0-9a-f]{6,}")


class _Writer:
    """Writes operations, and refers to their tensors by the place of the operation in its graph."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._paths: dict[int, str] = {}  # of graphs, by identity
        self._kept: list[Any] = []  # what an identity stands for has to live as long as it does

    def path(self, graph: Any) -> str:
        found = self._paths.get(id(graph))
        if found is None:
            self._kept.append(graph)
            found = self._paths[id(graph)] = f"g{len(self._paths)}"
        return found

    def tensor(self, tensor: Any) -> str:
        operation = tensor.operation
        return f"{self.path(operation.graph)}.{operation.index}:{tensor.index}"

    def write(self, operations: Iterable[Any], depth: int) -> None:
        for operation in operations:
            self._operation(operation, depth)

    def _operation(self, operation: Any, depth: int) -> None:
        own = f"{self.path(operation.graph)}.{operation.index}"
        outputs = ", ".join(f"{tensor.spec}" for tensor in operation.outputs)
        inputs = ", ".join(map(self.tensor, operation.inputs))
        facts = [f"{own} {operation.name} = {operation.type}{self._attributes(operation.op)}({inputs}) -> {outputs}"]
        facts += [f"after {self.path(o.graph)}.{o.index}" for o in operation.control_inputs]
        facts += [f"on {operation.device}"] if operation.device else []
        facts += [f"iterations {operation.iterations}"] if operation.iterations else []
        facts += [f"effect {self.value(effect.resource)} {effect.writes}" for effect in operation.effects]
        facts += [f"near {self.value(item)}" for item in operation.colocations]
        facts += [f"from {self.location(operation.location)}"]
        self.lines.append("  " * depth + "; ".join(facts))
        for region in operation.op.regions:
            captures = ", ".join(f"{self.tensor(outer)} as {self.tensor(inner)}" for outer, inner in region.captures)
            parameters = ", ".join(map(self.tensor, region.parameters))
            self.lines.append("  " * (depth + 1) + f"{self.path(region)} {region.name}({parameters}; {captures}):")
            self.write(region.operations, depth + 2)
            self.lines.append("  " * (depth + 2) + f"return {', '.join(map(self.tensor, region.results))}")

    def _attributes(self, op: Any) -> str:
        names = [field.name for field in fields(op)] if is_dataclass(op) else sorted(vars(op))
        names = [name for name in names if name not in ("regions", "known_trips")]  # what was found out is no part
        return f"[{', '.join(f'{name}={self.value(getattr(op, name, None))}' for name in names)}]" if names else ""

    def location(self, location: Any) -> str:
        if location is None:
            return "-"
        forward = getattr(location, "forward", None)
        of = f" of {self.location(forward)}" if forward is not None else ""
        parts = f" in {_ADDRESS.sub('', repr(location.parts))}" if location.parts else ""
        return f"{os.path.basename(location.filename)}:{location.line}{parts}{of}"

    def value(self, value: Any) -> str:
        """An attribute, whatever it is."""
        if hasattr(value, "operation") and hasattr(value, "spec"):
            return self.tensor(value)
        if hasattr(value, "control_inputs"):
            return f"{self.path(value.graph)}.{value.index}"
        if hasattr(value, "operations") and hasattr(value, "captures"):
            return self.path(value)
        if isinstance(value, np.ndarray | np.generic):
            return _array(np.asarray(value))
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{self.value(k)}: {self.value(v)}" for k, v in value.items()) + "}"
        if isinstance(value, set | frozenset):
            return "{" + ", ".join(sorted(map(self.value, value))) + "}"
        if isinstance(value, tuple | list):
            return f"({', '.join(map(self.value, value))})"
        if hasattr(value, "filename") and hasattr(value, "line"):
            return self.location(value)
        if is_dataclass(value) and not isinstance(value, type):
            return type(value).__name__ + self._attributes(value)
        return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, functools.partial):
        return f"partial({_plain(value.func)})"
    if isinstance(value, str | bytes | int | float | complex | bool | type(None)):
        return repr(value)
    name = getattr(value, "__qualname__", None)
    if name is not None:
        return f"{getattr(value, '__module__', '')}.{name}"
    return _ADDRESS.sub("", f"{type(value).__name__}:{getattr(value, 'name', None) or value!r}")


def _array(value: np.ndarray[Any, Any]) -> str:
    content = value.tobytes() if value.dtype.kind != "O" else repr(value.tolist()).encode()
    return f"{value.dtype}{value.shape}:{digest(content)}"


def digest(content: bytes | str) -> str:
    """The first characters of a SHA-256: enough to distinguish programs."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def described(step: Any) -> str:
    """A prepared step (`passes.prepare.Step`) as text."""
    writer = _Writer()
    writer.write([tensor.operation for tensor in step.feeds], 0)
    writer.write(step.operations, 0)
    writer.lines.append(f"fetch {', '.join(map(writer.tensor, step.fetches))}; placed {step.is_placed}")
    return "\n".join(writer.lines) + "\n"


def differing(one: str, other: str) -> Iterator[tuple[str, str]]:
    """The lines of two texts that differ, side by side; of texts of different lengths the rest."""
    from itertools import zip_longest

    for left, right in zip_longest(one.splitlines(), other.splitlines(), fillvalue=""):
        if left != right:
            yield left, right


__all__ = ["described", "differing", "digest"]
