"""Narrows the dependencies on TensorStores in loops: from the whole store to the keys that are read.

A write becomes two nodes: one that passes the store on at once, and one that puts the value under its key when both are
there. A read waits for its key alone. So iterations that write and read different keys run in parallel, whatever order
their writes come in. What needs a store as a whole waits for all writes before it (`store_settle`).

Source: Wei et al., "Dynamic Scheduling For Dynamic Control Flow in Deep Learning Systems" (2018), section 3 (dynamic
graph refinement).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..graph.device import task_of
from ..graph.graph import Operation
from ..graph.search import reached
from ..graph.spec import Spec, StoreSpec, TensorSpec
from ..graph.state.variable_ops import ReadVariable
from ..ops.containers.tensor_stores import StoreNew, StoreOp, StoreRead, StoreWrite
from ..passes.framework.estimates import bytes_of
from ..passes.framework.prune import all_operations
from .nodes import Machine, Node, Value, frame_of, spec_of

STORE_KINDS = frozenset(
    {
        "store_new",
        "store_pass",
        "store_put",
        "store_read",
        "store_contains",
        "store_size",
        "store_gather",
        "store_settle",
    }
)
_MOVING = frozenset({"identity", "switch", "switch_n", "merge", "enter", "exit", "next_iteration"})


def holds_store_access(operation: Operation) -> bool:
    """Test whether a loop or branch writes TensorStores, or reads keys of them."""
    return any(isinstance(inner.op, (StoreRead, StoreWrite)) for inner in all_operations([operation]))


def narrow(machine: Machine, has_own_memory: Callable[[str], bool] = lambda device: False) -> None:
    """Narrow what depends on the stores that loops of `machine` write, in place; before it is cut.

    Args:
        has_own_memory: whether a device, by name, keeps values where the host can't read them.
    """
    stores = _Stores(machine, has_own_memory)
    writes = [node for node in machine.nodes if _is(node, StoreWrite) and stores.is_narrowed(node)]
    if writes:
        _Narrowing(machine, stores, writes, has_own_memory).run()


def read_at_home(machine: Machine, has_own_memory: Callable[[str], bool] = lambda device: False) -> None:
    """Have reads of a part of a variable or store of another task run there: indices go there, the part comes back.

    The part is a key of a TensorStore, or rows and slices of a variable; a variable of which something on the reading
    task takes the whole crosses anyway. What is the same in all iterations of a loop stays what crosses once.

    Args:
        has_own_memory: whether a device, by name, keeps values where the host can't read them.
    """
    consumers = machine.consumers()
    for node in machine.nodes:
        whole = _read_of(node)
        if whole is None or whole.node.is_constant:
            continue
        home, here = whole.node.device, node.device
        if home is None or here is None or has_own_memory(home) or has_own_memory(here):
            continue
        if task_of(home) == task_of(here):
            continue
        others = [other for other in consumers.get(whole, ()) if other.device == here and _read_of(other) != whole]
        if not others or _is_store(whole):
            node.device = home


def _read_of(node: Node) -> Value | None:
    """Return the store or variable of which a node takes a part; None if it does something else."""
    if node.kind != "op" or len(node.operations) != 1:
        return None
    operation = node.operations[0]
    if _kind_of_look(operation):
        return next(value for value in node.inputs if _is_store(value))
    if not operation.op.gives_part:
        return None
    given = dict(zip(node.taken, node.inputs, strict=True)).get(operation.inputs[0])
    is_variable = given is not None and _is(given.node, ReadVariable)
    return given if is_variable and _is_smaller(operation.outputs[0].spec, operation.inputs[0].spec) else None


def _kind_of_look(operation: Operation) -> str:
    """Return the kind of node that looks at keys of a store alone; "" for operations that do something else."""
    return operation.op.look_kind if isinstance(operation.op, StoreOp) else ""


def _is_smaller(part: Spec, whole: Spec) -> bool:
    """Test whether a part takes fewer bytes, or how many is not known: it is rows by numbers that are fed."""
    if not isinstance(part, TensorSpec) or not isinstance(whole, TensorSpec):
        return False
    return not (part.is_static and whole.is_static) or bytes_of(part) < bytes_of(whole)


def _is(node: Node, kind: type) -> bool:
    return node.kind == "op" and len(node.operations) == 1 and isinstance(node.operations[0].op, kind)


def _is_store(value: Value) -> bool:
    return isinstance(spec_of(value), StoreSpec)


class _Stores:
    """Groups of stores between which values flow; each is narrowed as a whole, or not at all."""

    def __init__(self, machine: Machine, has_own_memory: Callable[[str], bool]) -> None:
        self._parents: dict[Node, Node] = {}
        written: set[Node] = set()  # groups that loops write
        made: set[Node] = set()  # that begin with what some operation made
        apart: set[Node] = set()  # that come where only kernels can look into what was made
        tasks: dict[Node, set[str]] = {}  # where they come, of a cluster; what crosses between tasks is whole
        for node in machine.nodes:
            taken = [value.node for value in node.inputs if _is_store(value)]
            if node.kind in _MOVING or _is(node, StoreWrite):
                for other in taken:
                    self._unite(node, other)
        for node in machine.nodes:
            if _is(node, StoreWrite) and _can_be_narrowed(node):
                written.update([self._root(node)] if node.frame.parent is not None else [])
            elif _makes_store(node):
                made.add(self._root(node))
            groups = [self._root(value.node) for value in (*node.inputs, *node.outputs) if _is_store(value)]
            if node.device is not None and has_own_memory(node.device):
                apart.update(groups)
            for group in groups if node.device is not None else ():
                tasks.setdefault(group, set()).add(task_of(str(node.device)))
        spread = {group for group, found in tasks.items() if len(found) > 1}
        self._narrowed = written - (made & apart) - spread

    def is_narrowed(self, node: Node) -> bool:
        """Test whether the store that a node takes or makes belongs to a group that is narrowed."""
        return self._root(node) in self._narrowed and (not _is(node, StoreWrite) or _can_be_narrowed(node))

    def _root(self, node: Node) -> Node:
        while (parent := self._parents.get(node, node)) is not node:
            self._parents[node] = self._parents.get(parent, parent)
            node = parent
        return node

    def _unite(self, one: Node, other: Node) -> None:
        self._parents[self._root(one)] = self._root(other)


def _can_be_narrowed(node: Node) -> bool:
    """Test whether a write can be narrowed: not to a store that is the same in all iterations."""
    return not node.inputs[0].node.is_constant and node.inputs[0].node.kind != "const"


def _makes_store(node: Node) -> bool:
    if node.kind in _MOVING or _is(node, StoreNew) or not any(_is_store(value) for value in node.outputs):
        return False
    return not _is(node, StoreWrite) or not _can_be_narrowed(node)


class _Narrowing:
    def __init__(
        self, machine: Machine, stores: _Stores, writes: Iterable[Node], has_own_memory: Callable[[str], bool]
    ) -> None:
        self.machine = machine
        self.stores = stores
        self.has_own_memory = has_own_memory
        self.settled: dict[Value, Value] = {}
        self.passed = {node: self._passing(node) for node in writes}

    def run(self) -> None:
        self._take_passed()
        deferred = self._deferred()
        for node in list(self.machine.nodes):
            taken = [value for value in node.inputs if value in deferred]
            if _is(node, StoreNew) and self.stores.is_narrowed(node):
                node.kind = "store_new"
            elif taken and node.kind not in _MOVING and node.kind not in STORE_KINDS:
                self._narrow_use(node, deferred)
        self._sort()

    def _passing(self, write: Node) -> Node:
        """Make a write what puts a value under a key, behind a node that passes the store on."""
        node = Node("store_pass", f"{write.name}/pass", write.device, write.frame, write.inputs[:1], write.specs)
        node.operations = list(write.operations)
        write.kind, write.specs = "store_put", ()
        write.inputs = [node.output, *write.inputs[1:]]
        return node

    def _take_passed(self) -> None:
        """Take the store of a write from what passes it on."""
        for node in self.machine.nodes:
            node.inputs = [self._moved(value) for value in node.inputs]
        for node in self.passed.values():
            node.inputs = [self._moved(value) for value in node.inputs]
            self.machine.nodes.append(node)

    def _moved(self, value: Value) -> Value:
        node = self.passed.get(value.node)
        return value if node is None or value.port < 0 else node.output

    def _deferred(self) -> set[Value]:
        """Return the values that may be stores whose writes have not come yet."""
        consumers = self.machine.consumers()

        def moved(value: Value) -> list[Value]:
            nodes = [node for node in consumers.get(value, ()) if node.kind in _MOVING and value in node.inputs]
            return [output for node in nodes for output in node.outputs if _is_store(output)]

        return reached([node.output for node in self.passed.values()], moved)

    def _narrow_use(self, node: Node, deferred: set[Value]) -> None:
        kind = _kind_of_look(node.operations[0]) if node.kind == "op" and len(node.operations) == 1 else ""
        if kind == "store_gather" and self.has_own_memory(str(node.device)):
            kind = ""  # its kernel has to stack the elements
        if kind:
            values = dict(zip(node.taken, node.inputs, strict=True))
            node.inputs = [values[tensor] for tensor in node.operations[0].inputs]
            node.kind = kind
            return
        node.inputs = [self._settled(value) if value in deferred else value for value in node.inputs]

    def _settled(self, value: Value) -> Value:
        known = self.settled.get(value)
        if known is None:
            name = f"{value.node.name}/settle"
            node = Node("store_settle", name, value.node.device, frame_of(value), [value], [spec_of(value)])
            known = self.settled[value] = self.machine.add(node).output
        return known

    def _sort(self) -> None:
        """Put each new node before those that take what it makes."""
        new = dict.fromkeys([*self.passed.values(), *(value.node for value in self.settled.values())])
        kept: dict[Node, None] = {}
        for node in self.machine.nodes:
            if node in new:
                continue
            for value in node.inputs:
                if value.node in new:
                    kept[value.node] = None
            kept[node] = None
        for node in new:
            kept[node] = None
        self.machine.nodes = list(kept)


__all__ = ["STORE_KINDS", "holds_store_access", "narrow", "read_at_home"]
