"""`lowered`: the machine form of a step, to be read, drawn, or opened in TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..graph.tensor import Symbol
from ..lower.graph_def import to_graph_def
from ..lower.nodes import Machine
from ..lower.show import dump_machine, to_dot
from ..machine.program import lowered as lower
from ..machine.program import place_by_cost, prepared_step
from ..place.devices import list_devices
from ..place.placement import Placement
from .session import Session, graph_of, placeholders_of


class Lowered:
    """A step as it runs on several devices: loops and branches are primitives, and what crosses is sent and received.

    Made by `ab.lowered`; as text it is `dump()`.

    Attributes:
        machine: its nodes.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @property
    def devices(self) -> list[str]:
        """The devices that take part, by name."""
        return self.machine.devices

    def dump(self) -> str:
        """Return typed text, one line a node, those of a loop's frame indented."""
        return dump_machine(self.machine)

    def dot(self) -> str:
        """Return a drawing for Graphviz: frames are boxes, devices are colours."""
        return to_dot(self.machine)

    def graph_def(self) -> bytes:
        """Return a serialised TensorFlow GraphDef, for TensorBoard's page of graphs and for Netron."""
        return to_graph_def(self.machine)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as the name of the file says: ``.pb`` for a GraphDef, ``.dot`` for Graphviz, ``.txt`` for text.

        Raises:
            ValueError: the name ends in something else.
        """
        file = Path(path)
        if file.suffix == ".pb":
            file.write_bytes(self.graph_def())
        elif file.suffix in (".dot", ".txt"):
            file.write_text(self.dot() if file.suffix == ".dot" else self.dump())
        else:
            raise ValueError(f"{file.name!r} should end in .pb (a GraphDef), .dot (a drawing) or .txt (text).")

    def __str__(self) -> str:
        return self.dump()


def lowered(fetches: Any, feeds: Sequence[Any] = (), placement: Placement | None = None) -> Lowered:
    """Return the machine form of a step, placed on the devices that are declared, cut and joined as it would be run.

    Args:
        fetches: tensors and operations, in any structure.
        feeds: what is fed; by default the placeholders that are needed.
        placement: where operations run, from `ab.placement`.

    Raises:
        PlacementError: what was asked for can't be kept.

    A step that stays on one CPU runs as one compiled program (`ab.explain`) instead; its machine form is printed all
    the same.

    Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 4.

    >>> import anabranch as ab
    >>> ab.config.set_devices(cpu=2)
    >>> with ab.Graph().as_default():
    ...     x = ab.placeholder((3,), "float32", "x")
    ...     with ab.device("cpu:1"):
    ...         y = ab.ops.exp(x)
    ...     print(ab.lowered(y))
    step on cpu:0, cpu:1:
    ...
    >>> ab.config.set_devices()
    """
    graph = graph_of(fetches)
    session = Session(graph)
    leaves = tuple(session._resolve_fetches(fetches))  # pyrefly: ignore[protected-access]
    given = session._resolve_feeds(list(feeds) or placeholders_of(graph, leaves))  # pyrefly: ignore[protected-access]

    def assign(operations: Any, fed: Sequence[Symbol]) -> Any:
        return place_by_cost(operations, fed, placement)

    step = prepared_step(graph, leaves, given, assign=assign)
    return Lowered(lower(step, {device.name: device for device in list_devices()}))


def dump_lowered(fetches: Any) -> str:
    """Return what `Graph.dump` prints of a lowered step."""
    return lowered(fetches).dump()


__all__ = ["Lowered", "lowered"]
