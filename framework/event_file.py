"""`EventWriter`: event files of TensorBoard with graphs of operations."""

from __future__ import annotations

import itertools
import re

from ..engine.graph import Graph, Operation
from ..engine.lower.graph_def import _OPS, _bytes, _camel_case, _shapes_attribute, _type_attribute
from ..engine.summaries.event_file import EventFile, encode_png


class EventWriter(EventFile):
    """Writes what TensorBoard shows to a new file in a folder. Use it in a ``with`` block, or call `close`.

    Args:
        log_dir: the folder, which is made if need be; each writer has a file of its own in it.
        filename_suffix: what the file's name ends in.

    Raises:
        OSError: the file can't be made.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, EventWriter(folder) as writer:
    ...     for step in range(3):
    ...         writer.scalar("loss", 1 / (step + 1), step)
    ...     writer.histogram("weights", np.arange(10.0), step=2)
    ...     writer.image("gradient", np.linspace(0, 1, 12).reshape(3, 4, 1), step=2)
    ...     writer.text("note", "the **first** run", step=0)
    """

    def graph(self, graph: Graph) -> None:
        """Write the operations of a graph, grouped by the parts of their names."""
        self._write(_bytes(4, graph_def(graph)), 0)


# --- graphs ---------------------------------------------------------------------------------------------------------


def graph_def(graph: Graph) -> bytes:
    """Return a graph as a serialised GraphDef: its operations by name, and what they take."""
    names: dict[Operation, str] = {}
    taken: set[str] = set()
    for operation in graph.operations:
        names[operation] = _unused_name(operation.name, taken)
        taken.add(names[operation].lower())
    return b"".join(_bytes(1, _node(operation, names)) for operation in graph.operations)


def _unused_name(wanted: str, taken: set[str]) -> str:
    """Return an unused name that TensorFlow would take: upper and lower case are not distinguished."""
    plain = re.sub(r"[^A-Za-z0-9_./]", "_", wanted).strip("/_") or "node"
    found = plain
    for number in itertools.count(1):
        if found.lower() not in taken:
            break
        found = f"{plain}_{number}"
    return found


def _node(operation: Operation, names: dict[Operation, str]) -> bytes:
    """Return a NodeDef: name, op, inputs and the shapes of the results."""
    kind = "Placeholder" if operation.type == "placeholder" else _OPS.get(operation.type)
    fields = [_bytes(1, names[operation]), _bytes(2, kind or _camel_case(operation.type))]
    for tensor in operation.inputs:
        name = names[tensor.operation]
        fields.append(_bytes(3, f"{name}:{tensor.index}" if tensor.index else name))
    specs = [tensor.spec for tensor in operation.outputs]
    if specs:
        attributes = {"T": _type_attribute(specs[0]), "_output_shapes": _shapes_attribute(specs)}
        fields += [_bytes(5, _bytes(1, name) + _bytes(2, value)) for name, value in attributes.items()]
    return b"".join(fields)


__all__ = ["EventWriter", "encode_png", "graph_def"]
