"""The machine form of a step: nodes of dynamic dataflow, in frames, on devices.

Nodes are operations of the prepared step (alone or in clusters) and the primitives by which values move: Switch,
Merge, Enter, Exit, NextIteration, Send, Recv. Unlike graphs above, this one has cycles: a Merge at the head of a loop
takes what a NextIteration hands back.

Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, sections 4.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..graph.graph import Operation
from ..graph.spec import Spec
from ..graph.tensor import Symbol

CONTROL = -1  # the port of what says no more than that a node has run


class Frame:
    """A loop's frame, as it stands in the program: at run time each run of the loop makes one.

    Attributes:
        name: that of the loop; "" for the step itself.
        parent: the frame around it.
        parallel_iterations: how many iterations may be alive at once.
        operation: the loop.
    """

    def __init__(
        self, name: str, parent: Frame | None, parallel_iterations: int = 1, operation: Operation | None = None
    ) -> None:
        self.name = name
        self.parent = parent
        self.parallel_iterations = parallel_iterations
        self.operation = operation

    @property
    def depth(self) -> int:
        """The number of loops around the frame's contents."""
        return 0 if self.parent is None else self.parent.depth + 1

    def around(self) -> Iterator[Frame]:
        """Yield this frame and those around it, the innermost first."""
        frame: Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.parent

    def __repr__(self) -> str:
        return f"<Frame {self.name or 'step'}>"


class Value(NamedTuple):
    """One output of a node; with port `CONTROL`, that the node has run."""

    node: Node
    port: int = 0


class Node:
    """One node.

    Attributes:
        kind: "op" (operations, see `operations`), "const", "identity", "no_op", "feed", "fetch"; the primitives
            "switch" (ports: false, true), "switch_n" (a port a branch), "merge", "enter", "exit", "next_iteration",
            "loop_cond"; "send", "recv"; "to_host" (a copy out of a device's own memory), "to_device" (one into
            it, once a kernel has ended); "record" (into the history of a value), "collect" (a loop's history, once it
            is done), "trips" (the number of its iterations); those of TensorStores (see `narrowing`) and of scheduled
            functions (see `scheduling`).
        name: a name that says where it comes from.
        device: where it runs; None for constants, of which every device has its own.
        frame: the frame in which it runs. (The inputs of an Enter, and the outputs of an Exit, "collect" or "trips",
            are in the frame around that.)
        inputs: what it takes.
        controls: what must have run before.
        specs: of its outputs.
        operations: of an "op": what is run, in order; of others the operation for which it stands, if there is one.
        taken: of an "op": the tensors of `operations` that come from outside, in the order of `inputs`.
        given: of an "op": the tensors that are its outputs.
        is_constant: of an Enter: its value is the same in all iterations.
        history: of a "record" or "collect": the number of the history in its frame.
        peer: of a Recv: its Send, and the other way around.
        lossy: of a Send: whether floats travel as bfloat16.
        stays: of a Recv: whether its value stays on the host until a "to_device" takes it.
        seconds: of an "op": how long it is expected to run.
        site: of what a scheduled function became: what is known of it (see `lower.scheduling`).
        target: of a "replica": the device that it is for.
    """

    __slots__ = (
        "controls",
        "device",
        "frame",
        "given",
        "history",
        "inputs",
        "is_constant",
        "kind",
        "lossy",
        "name",
        "operations",
        "peer",
        "seconds",
        "site",
        "specs",
        "stays",
        "taken",
        "target",
    )

    def __init__(
        self,
        kind: str,
        name: str,
        device: str | None,
        frame: Frame,
        inputs: Iterable[Value] = (),
        specs: Sequence[Spec | None] = (None,),
        operations: Sequence[Operation] = (),
    ) -> None:
        self.kind = kind
        self.name = name
        self.device = device
        self.frame = frame
        self.inputs = list(inputs)
        self.controls: list[Value] = []
        self.specs = tuple(specs)
        self.operations = list(operations)
        self.taken: list[Symbol] = []
        self.given: list[Symbol] = []
        self.is_constant = False
        self.history = -1
        self.peer: Node | None = None
        self.lossy = False
        self.stays = False
        self.seconds = 0.0
        self.site: Any = None
        self.target = ""

    @property
    def outputs(self) -> list[Value]:
        return [Value(self, port) for port in range(len(self.specs))]

    @property
    def output(self) -> Value:
        """Its only output."""
        return Value(self, 0)

    @property
    def done(self) -> Value:
        """The control value by which others wait until it has run."""
        return Value(self, CONTROL)

    @property
    def sources(self) -> list[Value]:
        """Everything that it waits for."""
        return [*self.inputs, *self.controls]

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name} on {self.device}>"


def frame_of(value: Value) -> Frame:
    """Return the frame in which a value is."""
    node = value.node
    if node.kind in ("exit", "collect", "trips"):
        assert node.frame.parent is not None, f"{node!r} leaves the step's own frame"
        return node.frame.parent
    return node.frame


def spec_of(value: Value) -> Spec | None:
    """Return the spec of a value; None for what is none, such as a control."""
    return None if value.port == CONTROL else value.node.specs[value.port]


class Machine:
    """A step in its machine form.

    Attributes:
        nodes: all of them; of nodes without a cycle between them each stands behind its sources.
        root: the frame of the step itself.
        feeds: the nodes of what is fed, in order.
        fetches: the nodes of what is fetched, in order.
        row_writes: the writes of rows of variables that begin with what these hold when they run.
        row_updates: the nodes that read rows, change them and write them back: of other steps nothing may come between.
    """

    def __init__(self) -> None:
        self.root = Frame("", None)
        self.nodes: list[Node] = []
        self.feeds: list[Node] = []
        self.fetches: list[Node] = []
        self.row_writes: set[Operation] = set()
        self.row_updates: list[Node] = []

    def add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    @property
    def devices(self) -> list[str]:
        """The devices that take part, by name."""
        return sorted({node.device for node in self.nodes if node.device is not None}, key=_by_number)

    @property
    def frames(self) -> list[Frame]:
        """All frames, each behind the one around it."""
        found = dict.fromkeys(frame for node in self.nodes for frame in node.frame.around())
        return sorted(found, key=lambda frame: frame.depth)

    def consumers(self) -> dict[Value, list[Node]]:
        """Map each value to the nodes that take it, once for each time."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for source in node.sources:
                found.setdefault(source, []).append(node)
        return found


def _by_number(device: str) -> tuple[str, int]:
    kind, _, number = device.rpartition(":")
    return kind, int(number) if number.isdigit() else 0
