"""The rules by which operations are written: one for each op of the engine, by its `type_name`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ....engine.graph.graph import Operation
from ....engine.graph.tensor import Symbol

T = TypeVar("T")
Rule = Callable[..., Any]  # (writer, operation, *values of its inputs) -> the value of its output, or a list of them


class ExportRule(NamedTuple):
    """The rule by which an op is written.

    Attributes:
        lowest: the lowest opset in which it can be.
        write: the function that appends the nodes.
    """

    lowest: int
    write: Rule


RULES: dict[str, ExportRule] = {}
LOWEST = 18


def exports(*type_names: str, opset: int = LOWEST) -> Callable[[Rule], Rule]:
    """Register a function as the rule of these ops."""

    def register(write: Rule) -> Rule:
        for type_name in type_names:
            RULES[type_name] = ExportRule(opset, write)
        return write

    return register


def attribute(node: Operation, name: str, kind: type[T]) -> T:
    """Return an attribute of the op of an operation.

    Args:
        node: the operation.
        name: the attribute's name.
        kind: its type.
    """
    return getattr(node.op, name)


def op_of(node: Operation, kind: type[T] | tuple[type[T], ...]) -> T:
    """Return the op of an operation, which is of the class, or of one of the classes, that a rule is for."""
    assert isinstance(node.op, kind)
    return node.op


def spec_of(tensor: Symbol, kind: type[T]) -> T:
    """Return what is known of a tensor, or of an array, for which a rule is."""
    spec = tensor.spec
    assert isinstance(spec, kind)
    return spec


def axes_of(node: Operation) -> tuple[int, ...] | None:
    """Return the axes that are an attribute of the op of an operation; None stands for the op's default."""
    return getattr(node.op, "axes")  # noqa: B009 - ops of several classes have it
