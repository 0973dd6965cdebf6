"""Prints the nodes of scheduled functions (see `scheduling`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.tensor import Symbol
from ..lower.nodes import Node, Value
from ..runtime.printer import Block

if TYPE_CHECKING:
    from .printing import FunctionWriter, MachinePrinter

SCHEDULE_NAMES = ("schedule", "demultiplex", "replicate", "replicate_part", "join")


def print_schedule_node(owner: MachinePrinter, writer: FunctionWriter, node: Node) -> None:
    """Print the functions of a node by its kind."""
    if node.kind == "demultiplex":
        _print_demultiplex(writer, node)
    elif node.kind == "join":
        _print_join(writer, node)
    else:
        _print_apart(owner, writer, node)


def _taken(writer: FunctionWriter, node: Node) -> list[str]:
    """Return a local name for each input; the same value keeps its name."""
    known: dict[Value, str] = {}
    for value in node.inputs:
        if value not in known:
            known[value] = writer.take(value, node)
    return [known[value] for value in node.inputs]


def _print_apart(owner: MachinePrinter, writer: FunctionWriter, node: Node) -> None:
    """Print the start of a Schedule or a replica, and the function that takes its results."""
    label = writer.printer.bind("node", node)
    finish = owner.name_of(("deliver", node), f"done_{node.kind}")
    taken = _taken(writer, node)
    if node.kind == "schedule":
        kernel = _print_kernel(owner, node)
        writer.line(f"schedule({label}, {kernel}, ({', '.join(taken)}{',' if taken else ''}), {finish}, it)")
    elif node.inputs[0].node.kind == "recv":  # the function was scheduled by another task
        writer.line(f"replicate_part({label}, {_print_kernel(owner, node)}, {taken[0]}, {finish}, it)")
    else:
        writer.line(f"replicate({label}, {taken[0]}, {finish}, it)")
    end = owner.add_function(("deliver", node), ["it", "x"])
    end.hand_on([(node.output, "x"), (node.done, "None")], True)
    end.leave()


def _print_kernel(owner: MachinePrinter, node: Node) -> str:
    """Print the function that is scheduled, over the values that it takes."""
    site = node.site
    kernel = owner.add_function(("kernel", node), [], "kernel")
    names: dict[Symbol, str] = {tensor: owner.printer.fresh("taken") for tensor in site.taken}
    kernel.function.arguments = list(names.values())
    owner.printer.stored.update(tensor for operation in site.operations for tensor in operation.outputs)
    block = Block(kernel.function, names, kernel.depth)
    block.print_operations(site.operations, site.given)
    results = [block.names[tensor] for tensor in site.given]
    kernel.line(f"return {results[0]}" if len(results) == 1 else f"return ({', '.join(results)})")
    return kernel.function.name


def _print_demultiplex(writer: FunctionWriter, node: Node) -> None:
    (request,) = _taken(writer, node)
    parts = [writer.printer.fresh("part") for _ in node.outputs]
    writer.line(f"{', '.join(parts)}{',' if len(parts) == 1 else ''} = demultiplex({request})")
    for output, part in zip(node.outputs, parts, strict=True):
        for test, is_alive in ((f"if {part} is not None:", True), ("else:", False)):
            writer.line(test)
            writer.depth += 1
            writer.hand_on([(output, part)], is_alive)
            writer.line("pass")
            writer.depth -= 1
    writer.hand_on([(node.done, "None")], True)
    writer.leave()


def _print_join(writer: FunctionWriter, node: Node) -> None:
    request, *parts = _taken(writer, node)
    results = [writer.printer.fresh("result") for _ in node.outputs]
    target = f"{', '.join(results)}{',' if len(results) == 1 else ''} = " if results else ""
    writer.line(f"{target}join({writer.printer.bind('node', node)}, {request}, ({', '.join(parts)},))")
    writer.hand_on([*zip(node.outputs, results, strict=True), (node.done, "None")], True)
    writer.leave()
