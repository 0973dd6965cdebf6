"""Prints the nodes of narrowed TensorStores (see `stores`): they may run again, until what they wait for has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lower.nodes import Node
from ..runtime.printed import Origin

if TYPE_CHECKING:
    from .printing import FunctionWriter

STORE_NAMES = (
    *("store_new", "store_pass", "store_put", "store_read", "store_contains", "store_size", "store_gather"),
    *("store_settle", "WAITING"),
)


def print_store_node(writer: FunctionWriter, node: Node) -> None:
    """Print the function of a store node: it leaves its inputs where they are if it has to wait."""
    arguments = [writer.take(value, node, keep=True) for value in node.inputs]
    slots = [writer.blueprint.place_of(node).slots.get((node, value), -1) for value in node.inputs]
    result = writer.printer.fresh("result")
    operation = node.operations[0] if node.operations else None
    origin = None if operation is None else Origin(operation, arguments, ())
    if node.kind in ("store_new", "store_pass"):
        call = f"{result} = {node.kind}({', '.join(arguments)})"
    else:
        passed = [writer.printer.bind("node", node), *arguments, f"({writer.function.name}, it)"]
        if len(arguments) > 1:
            passed.append(str(slots[1]))  # of the key, which may have to be brought to the host
        call = f"{result} = {node.kind}({', '.join(passed)})"
    writer.function.lines.append(("    " * writer.depth + call, origin))
    if node.kind not in ("store_new", "store_pass", "store_size"):
        writer.line(f"if {result} is WAITING: return")
    for slot in slots:
        if slot >= 0:
            writer.line(f"v[{slot}] = None")
    writer.hand_on([*[(output, result) for output in node.outputs], (node.done, "None")], True)
    writer.leave()
