"""Prints recursions: a body becomes one Python function of the program, and a call of it a call of that function.

The frame of a call is a tuple of what it records, or None where nothing is asked of any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ..common.identity import place_among
from ..control_flow.call import Body, Call, Recorded, Recursion
from ..control_flow.frames import History, Saved
from ..graph.graph import Operation
from ..graph.spec import ArraySpec, FrameSpec
from ..graph.tensor import Symbol
from ..passes.framework.prune import needed_in_region


class PrintedBodies:
    """The bodies of a program.

    Attributes:
        names: the Python function for each body that is printed.
        labels: for the name of each of these Python functions, the name of the user's.
    """

    def __init__(self) -> None:
        self.names: dict[Body, str] = {}
        self.labels: dict[str, str] = {}


class BlockPrinter(Protocol):
    """The parts of a block of the printer that are used here."""

    names: dict[Symbol, str]

    def line(self, text: str, origin: tuple[Operation, Sequence[str]] | None = None) -> None: ...
    def output_name(self, tensor: Symbol) -> str: ...
    def fresh(self, hint: str) -> str: ...
    def print_operations(self, operations: Sequence[Operation], kept: Iterable[Symbol]) -> None: ...
    def function_block(self, name: str, names: Mapping[Symbol, str]) -> BlockPrinter: ...


def print_call(block: BlockPrinter, operation: Operation, bodies: PrintedBodies) -> None:
    """Print the first or a further call of a body, or what is taken from its frame."""
    op = operation.op
    arguments = [block.names[tensor] for tensor in operation.inputs]
    if isinstance(op, Recorded):
        body = op.inner.graph
        assert isinstance(body, Body)
        place = place_among(op.inner, body.demanded)
        block.line(f"{block.output_name(operation.outputs[0])} = {arguments[0]}[{place}]", (operation, arguments))
        return
    assert isinstance(op, (Call, Recursion))
    if isinstance(op, Recursion):
        _print_body(block, op.body, bodies)
    targets = [block.output_name(tensor) for tensor in operation.outputs]
    call = f"{bodies.names[op.body]}({', '.join(arguments)})"
    block.line(f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {call}", (operation, arguments))


def _print_body(block: BlockPrinter, body: Body, bodies: PrintedBodies) -> None:
    name = bodies.names[body] = block.fresh(body.name)
    bodies.labels[name] = body.name
    names = {tensor: block.fresh(tensor.operation.name) for tensor in body.inner_inputs()}
    inside = block.function_block(name, names)
    inside.print_operations(needed_in_region(body, body.demanded), [*body.results, *body.demanded])
    counted = [inside.names[tensor] for tensor in body.demanded if _is_counted(tensor)]
    if counted:
        inside.line(f"stats.note_saved({', '.join(counted)})")
    frame = f"({', '.join(inside.names[tensor] for tensor in body.demanded)},)" if body.demanded else "None"
    inside.line(f"return ({', '.join([*[inside.names[result] for result in body.results], frame])},)")


def _is_counted(tensor: Symbol) -> bool:
    """Test whether a tensor is an array that was not counted where it was saved first."""
    spec = tensor.spec.element if isinstance(tensor.spec, ArraySpec) else tensor.spec
    return not isinstance(spec, FrameSpec) and not isinstance(tensor.operation.op, (History, Recorded, Saved))
