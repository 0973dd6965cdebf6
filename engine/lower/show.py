"""A lowered step as text that a person reads, and as a drawing for Graphviz."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count

from ..graph.dump import OperationWriter, is_literal, reference_text, value_text
from ..graph.graph import Operation
from .nodes import CONTROL, Frame, Machine, Node, Value, spec_of

_SIDES = ("false", "true")  # the ports of a Switch
_MOVING = frozenset({"fetch", "identity", "recv", "send", "to_device", "to_host"})  # named after what they move


# --- what both, and graph_def, say of nodes --------------------------------------------------------------------------


def node_names(machine: Machine) -> dict[Node, str]:
    """Give each node a name that no other one has: its own, with its kind or a number behind it if needed."""
    sharing: dict[str, list[Node]] = {}
    for node in machine.nodes:
        sharing.setdefault(node.name, []).append(node)
    names: dict[Node, str] = {}
    for name, nodes in sharing.items():
        makers = [node for node in nodes if node.kind not in _MOVING]
        if len(nodes) == 1 or len(makers) == 1:
            names[(makers or nodes)[0]] = name
    taken = set(names.values())
    for node in machine.nodes:
        if node not in names:
            names[node] = _free(f"{node.name}/{node.kind}", taken)
            taken.add(names[node])
    return names


def _free(name: str, taken: Collection[str]) -> str:
    numbered = (f"{name}_{number}" for number in count(1))
    return name if name not in taken else next(candidate for candidate in numbered if candidate not in taken)


def in_order(machine: Machine) -> list[Node]:
    """Sort nodes, each behind what it takes (a Recv behind its Send); those of loops behind others if possible."""
    records = records_of(machine)
    waits = {node: {*_before(node), *records.get(node, ())} for node in machine.nodes}
    followers: dict[Node, list[Node]] = {}
    for node, sources in waits.items():
        for source in sources:
            followers.setdefault(source, []).append(node)
    position = {node: (node.frame.depth, number) for number, node in enumerate(machine.nodes)}
    ready = [position[node] for node, sources in waits.items() if not sources]
    heapq.heapify(ready)
    ordered: list[Node] = []
    while ready:
        node = machine.nodes[heapq.heappop(ready)[1]]
        ordered.append(node)
        for follower in followers.get(node, ()):
            waits[follower].discard(node)
            if not waits[follower]:
                heapq.heappush(ready, position[follower])
    return [*ordered, *(node for node, sources in waits.items() if sources)]


def records_of(machine: Machine) -> dict[Node, list[Node]]:
    """Map each node that collects a history to those that record it."""
    records: dict[tuple[Frame, int], list[Node]] = {}
    for node in machine.nodes:
        if node.kind == "record":
            records.setdefault((node.frame, node.history), []).append(node)
    collecting = [node for node in machine.nodes if node.kind == "collect"]
    return {node: records.get((node.frame, node.history), []) for node in collecting}


def _before(node: Node) -> Iterator[Node]:
    yield from (value.node for value in node.sources if not is_back_edge(node, value))
    if node.kind == "recv" and node.peer is not None:
        yield node.peer


def is_back_edge(node: Node, value: Value) -> bool:
    """Test whether a value comes to a Merge from the iteration before."""
    return node.kind == "merge" and value.node.kind == "next_iteration"


def _literal(value: Value) -> str | None:
    """Return a number in the user's code, as it is written."""
    operations = value.node.operations
    if value.node.kind != "const" or not operations or not is_literal(operations[0]):
        return None
    return reference_text(operations[0].outputs[0])


def _kind(node: Node) -> str:
    if node.kind == "op":
        return node.operations[0].type if len(node.operations) == 1 else "cluster"
    return node.kind


def _port(node: Node, port: int) -> str:
    if node.kind == "switch":
        return _SIDES[port]
    return "index" if node.kind == "merge" else str(port)


# --- text -----------------------------------------------------------------------------------------------------------


def dump_machine(machine: Machine) -> str:
    """Return the nodes of a machine as typed text, those of a loop's frame indented below its name.

    A line is ``name: spec = kind[attributes](inputs) @ device after controls``. What a Merge takes from the iteration
    before is marked with "back", and numbers stand where they are used. The operations of a cluster, and what is inside
    loops and branches that were not lowered, stand below it.
    """
    return "\n".join(_Text(machine).lines) + "\n"


class _Text:
    def __init__(self, machine: Machine) -> None:
        self.names = node_names(machine)
        self.lines: list[str] = []
        self._inside: dict[Frame, list[Node]] = {}
        self._children: dict[Frame, list[Frame]] = {}
        nodes = in_order(machine)
        for node in nodes:
            self._inside.setdefault(node.frame, []).append(node)
        for frame in machine.frames:
            if frame.parent is not None:
                self._children.setdefault(frame.parent, []).append(frame)
        self._position = {node: number for number, node in enumerate(nodes)}
        self._first = {frame: self._position[inside[0]] for frame, inside in self._inside.items()}
        self._taken = machine.consumers()
        self._line(0, f"step on {', '.join(machine.devices) or 'no device'}:")
        self._write(machine.root, 1)

    def _write(self, frame: Frame, depth: int) -> None:
        """Write the nodes of a frame, and the frames inside where they begin."""
        items: list[tuple[int, Node | Frame]] = [(self._position[n], n) for n in self._inside.get(frame, ())]
        items += [(self._start(child), child) for child in self._children.get(frame, ())]
        for _, item in sorted(items, key=lambda pair: pair[0]):
            if isinstance(item, Node):
                self._write_node(item, depth)
                continue
            self._line(depth, f"frame {item.name}[parallel_iterations={item.parallel_iterations}]:")
            self._write(item, depth + 1)

    def _start(self, frame: Frame) -> int:
        inside = [self._start(child) for child in self._children.get(frame, ())]
        return min([*inside, self._first[frame]] if frame in self._first else inside)

    def _write_node(self, node: Node, depth: int) -> None:
        if node.specs and _literal(node.output) is not None:
            return
        inputs = ", ".join(self._input(node, value) for value in node.inputs)
        call = f"{_kind(node)}{self._attributes(node)}({inputs})"
        outputs = [value for value in node.outputs if node.kind != "merge" or not value.port or value in self._taken]
        given = ", ".join(f"{self._name(value)}: {node.specs[value.port] or 'signal'}" for value in outputs)
        text = f"{given} = {call}" if given else f"{self.names[node]}: {call}"
        self._line(depth, text + self._remarks(node))
        if node.kind == "op" and (len(node.operations) > 1 or node.operations[0].op.regions):
            _Operations(self.lines).write(node.operations, depth + 1)

    def _input(self, node: Node, value: Value) -> str:
        back = "back " if is_back_edge(node, value) else ""
        return back + self._name(value)

    def _name(self, value: Value) -> str:
        literal = _literal(value)
        if literal is not None:
            return literal
        name = self.names[value.node]
        if value.port == CONTROL or len(value.node.specs) == 1 or (value.node.kind == "merge" and not value.port):
            return name
        return f"{name}:{_port(value.node, value.port)}"

    def _attributes(self, node: Node) -> str:
        found: list[str] = []
        if node.kind in ("const", "op") and len(node.operations) == 1:
            attributes = node.operations[0].op.attributes()
            found += [f"{name}={value_text(value)}" for name, value in attributes.items()]
        found += ["constant"] if node.is_constant else []
        found += [f"history={node.history}"] if node.history >= 0 else []
        found += ["lossy"] if node.lossy else []
        return f"[{', '.join(found)}]" if found else ""

    def _remarks(self, node: Node) -> str:
        text = f" @ {node.device}" if node.device else ""
        if node.peer is not None:
            way = "to" if node.kind == "send" else "from"
            text += f" {way} {self.names[node.peer]} @ {node.peer.device}"
        waits = ", ".join(self._name(value) for value in node.controls)
        return text + (f" after {waits}" if waits else "")

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)


class _Operations(OperationWriter):
    """Writes the operations of a node: where they run is said there."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(lines, locations=False)

    def _remarks(self, operation: Operation) -> str:
        return ""


# --- a drawing ------------------------------------------------------------------------------------------------------

_COLOURS = (
    "#cfe2f3",
    "#fce5cd",
    "#d9ead3",
    "#ead1dc",
    "#fff2cc",
    "#d9d2e9",
    "#d0e0e3",
    "#f4cccc",
    "#e2efda",
    "#ffe0f0",
)
_SHAPES = {
    "switch": "diamond",
    "switch_n": "diamond",
    "merge": "invtrapezium",
    "send": "rarrow",
    "recv": "larrow",
    "const": "plaintext",
    "feed": "cds",
    "fetch": "cds",
    "no_op": "circle",
}


def to_dot(machine: Machine) -> str:
    """Return a machine as Graphviz DOT: frames as boxes, devices as colours, controls dashed, crossings bold.

    ``dot -Tsvg`` draws it. Names leave out that of the box that they are in. What goes back to the head of a loop is
    drawn against the direction of everything else, and what records a history is joined to what collects it by dots.
    """
    return "\n".join(_Drawing(machine).lines) + "\n"


class _Drawing:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.names = node_names(machine)
        self.colours = {d: _COLOURS[number % len(_COLOURS)] for number, d in enumerate(machine.devices)}
        self.keys = {node: f"n{number}" for number, node in enumerate(machine.nodes)}
        self.lines = [
            "digraph step {",
            "    graph [rankdir=TB, fontname=Helvetica, fontsize=11, newrank=true, nodesep=0.25, ranksep=0.35];",
            '    node [shape=box, style="rounded,filled", fillcolor=white, fontname=Helvetica, fontsize=10];',
            "    edge [arrowsize=0.6, fontname=Helvetica, fontsize=8];",
        ]
        self._legend()
        self._box(machine.root, 1)
        for node in machine.nodes:
            self._edges(node)
        for node, records in records_of(machine).items():
            for record in records:
                self._line(record, node, {"style": "dotted"})
        self.lines.append("}")

    def _legend(self) -> None:
        self.lines.append('    subgraph cluster_legend {\n        label="devices"; style=dotted;')
        for number, (device, colour) in enumerate(self.colours.items()):
            self.lines.append(f'        device{number} [label={_quoted(device)}, fillcolor="{colour}"];')
        self.lines.append("    }")

    def _box(self, frame: Frame, depth: int) -> None:
        """Write the nodes of a frame, and the boxes inside it."""
        for node in self.machine.nodes:
            if node.frame is frame:
                self.lines.append("    " * depth + self._node(node))
        frames = self.machine.frames
        for number, inner in enumerate(frames):
            if inner.parent is not frame:
                continue
            label = _quoted(f"{inner.name}\nparallel_iterations={inner.parallel_iterations}")
            self.lines.append("    " * depth + f"subgraph cluster_{number} {{")
            self.lines.append("    " * (depth + 1) + f'label={label}; labeljust=l; style=rounded; color="#666666";')
            self._box(inner, depth + 1)
            self.lines.append("    " * depth + "}")

    def _node(self, node: Node) -> str:
        attributes = {"label": _quoted(self._label(node)), "tooltip": _quoted(self._tooltip(node))}
        if node.kind in _SHAPES:
            attributes["shape"] = _SHAPES[node.kind]
            attributes["style"] = "filled" if node.device else '""'
        if node.device is not None:
            attributes["fillcolor"] = f'"{self.colours[node.device]}"'
        if node.kind == "op" and len(node.operations) > 1:
            attributes["penwidth"] = "1.6"
        listed = ", ".join(f"{name}={value}" for name, value in attributes.items())
        return f"{self.keys[node]} [{listed}];"

    def _label(self, node: Node) -> str:
        if node.kind == "const":
            literal = _literal(node.output)
            return node.name if literal is None else literal
        if node.kind == "op" and len(node.operations) > 1:
            return "\n".join(_shortened([operation.type for operation in node.operations]))
        if node.kind in ("switch", "switch_n", "no_op"):
            return node.kind
        name, kind = self.names[node].removeprefix(f"{node.frame.name}/"), _kind(node)
        return name if name.rpartition("/")[2].startswith(kind) else f"{name}\n{kind}"

    def _tooltip(self, node: Node) -> str:
        specs = ", ".join(str(spec or "signal") for spec in node.specs)
        return f"{self.names[node]}: {specs}" if specs else self.names[node]

    def _edges(self, node: Node) -> None:
        for value in node.inputs:
            self._edge(value, node, is_control=False)
        for value in node.controls:
            self._edge(value, node, is_control=True)
        if node.kind == "send" and node.peer is not None:
            self._line(node, node.peer, {"style": "bold", "penwidth": "2.5", "color": '"#cc0000"'})

    def _edge(self, value: Value, node: Node, is_control: bool) -> None:
        attributes: dict[str, str] = {}
        if value.port != CONTROL and len(value.node.specs) > 1 and (value.node.kind != "merge" or value.port):
            port = _port(value.node, value.port)
            attributes["taillabel"] = _quoted(port[0].upper() if port in _SIDES else port)
        spec = spec_of(value)
        if spec is not None:
            attributes["tooltip"] = _quoted(str(spec))
        if is_control or spec is None:
            attributes["style"] = "dashed"
        if is_back_edge(node, value):
            attributes |= {"constraint": "false", "color": '"#3366cc"'}
        self._line(value.node, node, attributes)

    def _line(self, source: Node, target: Node, attributes: Mapping[str, str]) -> None:
        listed = ", ".join(f"{name}={value}" for name, value in attributes.items())
        tail = f" [{listed}]" if listed else ""
        self.lines.append(f"    {self.keys[source]} -> {self.keys[target]}{tail};")


def _shortened(names: Sequence[str], most: int = 8) -> list[str]:
    return list(names) if len(names) <= most else [*names[: most - 1], f"... {len(names) - most + 1} more"]


def _quoted(text: str) -> str:
    """Return `text` as a DOT string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
