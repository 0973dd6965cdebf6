"""Prints a machine as Python: a function for each scheduled node, alive and dead, and one for each way a value arrives.

A node's function takes its values out of the slots of an iteration, computes, puts its results into the slots of those
that wait for them and counts these down. Numbers of slots and nodes are literals: no dictionary is asked for a token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ..common.dtypes import name_of
from ..graph.device import DeviceName
from ..graph.spec import TensorSpec
from ..graph.tensor import Symbol
from ..lower.narrowing import STORE_KINDS
from ..lower.nodes import CONTROL, Machine, Node, Value
from ..lower.scheduling import SCHEDULE_KINDS
from ..ops.base import Constant
from ..passes.framework.prune import all_operations
from ..runtime.printer import Block, Function, Printer
from ..runtime.writes import assigned_values
from .blueprint import Blueprint, is_loop_merge, is_scheduled
from .frames import DEAD, MASK
from .schedule_printing import SCHEDULE_NAMES, print_schedule_node
from .shared_values import is_large, shared_values
from .store_printing import STORE_NAMES, print_store_node

_LOCAL = ("it", "x", "v", "p", "t", "r", "n", "s")
_GIVEN = ("push", "mail", "enter", "advance", "finished", "constant", "constant_dead")
_OF_STEP = (
    "carry",
    "post",
    "post_dead",
    "fetch",
    "fetch_dead",
    "submit",
    "wait",
    "to_host",
    "to_device",
    "moment",
    "as_bfloat16",
    "empty",
    "shared",
    "take_over",
)
_RESERVED = (*_LOCAL, *_GIVEN, *_OF_STEP, *STORE_NAMES, *SCHEDULE_NAMES)
_OF_TRACE = ("began", "now", "ran", "sending", "sent", "received")
_COPYING = frozenset({"to_host", "to_device"})
Pairs = Sequence[tuple[Value, str]]  # values, and the expressions for them


class MachinePrinter:
    """The source of a machine.

    Args:
        machine: what is printed; cut by device.
        printer: prints the operations.
        ways: how the operations of a node are run: "here", "apart" (see `Step.submit`), or as one that may "wait" for
            others (see `Step.wait`).
        by_run: whether the kernel of a node calls `Op.run` for each operation (see `Printer.by_run`).
        channels: for a Recv whether its value is carried by a channel (see `Step.carry`) instead of being handed over.
        clocks: for a node whether the time of its operations is taken by what is printed; None if nothing is traced.
        devices: those of which the partitions are printed; by default all of them.

    Attributes:
        names: the function for each purpose: ("run", node), ("dead", node), ("deliver", node), ("kill", node) for what
            arrives from another frame or device, and ("inline", node) for what a constant does in passing.
        nodes: by the name of a function, the node that it is for.
        shared_values: what variables are assigned that other tasks read (see `shared_values`).
    """

    def __init__(
        self,
        machine: Machine,
        printer: Printer,
        ways: Callable[[Node], str] = lambda node: "here",
        channels: Callable[[Node], bool] = lambda node: False,
        clocks: Callable[[Node], bool] | None = None,
        by_run: Callable[[Node], bool] = lambda node: False,
        devices: Collection[str] | None = None,
    ) -> None:
        self.machine = machine
        self.printer = printer
        self.blueprint = Blueprint(machine, devices)
        self.shared_values = shared_values(machine.nodes, self.blueprint)
        printer.reserve(_RESERVED if clocks is None else (*_RESERVED, *_OF_TRACE))
        printer.reserve(self.live_names())
        self.ways = ways
        self.channels = channels
        self.by_run = by_run
        self.clocks = clocks
        self.names: dict[Any, str] = {}
        self.nodes: dict[str, Node] = {}
        self._pending: list[Callable[[], None]] = []

    def live_names(self) -> list[str]:
        """Return, for each place, the name of its iterations that are alive."""
        return [f"live_{place.number}" for place in self.blueprint.places.values()]

    def print(self) -> str:
        """Print the source."""
        for node in self.machine.nodes:
            if not self.blueprint.is_here(node):
                continue
            if is_scheduled(node):
                self._print_node(node)
            elif node.kind in ("recv", "collect", "trips", "feed"):
                self._print_arrival(node)
            elif node.kind == "exit" or (node.kind == "enter" and node.is_constant):
                self.delivery("deliver", node)
                self.delivery("kill", node)
                if node.kind == "enter" and self._has_inline(node):
                    self.delivery("inline", node)
                    self.delivery("inline dead", node)
        while self._pending:
            self._pending.pop()()
        return self.printer.assemble()

    # --- functions --------------------------------------------------------------------------------------------------

    def _function(self, key: Any, hint: str, arguments: Iterable[str]) -> FunctionWriter:
        name = self.names.get(key)
        if name is None:
            name = self.names[key] = self.printer.fresh(hint)
        self.nodes[name] = key[1]
        function = Function(self.printer, name, is_rare=key[0] in ("dead", "kill", "inline dead"))
        function.arguments = list(arguments)
        self.printer.add_function(function)
        return FunctionWriter(self, function)

    def add_function(self, key: Any, arguments: Iterable[str], hint: str = "") -> FunctionWriter:
        """Return a further function of a node, to be written."""
        return self._function(key, hint, arguments)

    def name_of(self, key: Any, hint: str) -> str:
        """Return the name of a function that is, or will be, printed."""
        name = self.names.get(key)
        if name is None:
            name = self.names[key] = self.printer.fresh(hint)
        return name

    def delivery(self, purpose: str, node: Node) -> str:
        """Return the function that lays what `node` hands on into an iteration; printed when all else has been."""
        key = (purpose, node)
        if key in self.names:
            return self.names[key]
        name = self.name_of(key, f"{purpose.replace(' ', '_')}_{_short(node)}")
        self._pending.append(functools.partial(self._print_delivery, purpose, node))
        return name

    def _print_delivery(self, purpose: str, node: Node) -> None:
        is_alive = purpose in ("deliver", "inline")
        writer = self._function((purpose, node), "", ["it", "x"] if is_alive else ["it"])
        only = None if purpose in ("deliver", "kill") else "inline"
        writer.hand_on([(output, "x") for output in node.outputs], is_alive, only)
        writer.line("return")

    def _has_inline(self, node: Node) -> bool:
        return any(not is_scheduled(consumer) for consumer in self.blueprint.consumers.get(node.output, ()))

    def _print_arrival(self, node: Node) -> None:
        """Print the function that takes a value from outside the iteration, alive and dead."""
        for purpose, arguments in (("deliver", ["it", "x"]), ("kill", ["it"])):
            writer = self._function((purpose, node), f"{purpose}_{_short(node)}", arguments)
            is_traced = node.kind == "recv" and purpose == "deliver" and self.clocks is not None
            if is_traced:
                writer.line("began = now()")
            writer.hand_on([(node.output, "x")], purpose == "deliver")
            if is_traced:
                writer.line(f"received({self.blueprint.edges[node]}, it.tag, began)")
            if node.kind == "recv":
                writer.leave()
            writer.line("return")

    def _print_node(self, node: Node) -> None:
        way = self.ways(node) if node.kind == "op" else "here"
        if way == "apart":
            self._print_apart(node)
        elif way == "wait":
            self._print_wait(node)
        else:
            writer = self._function(("run", node), _short(node), ["it"])
            if node.kind == "op":
                results = writer.compute(node)
                writer.hand_on([*zip(node.outputs, results, strict=True), (node.done, "None")], True)
            elif node.kind in ("switch", "switch_n"):
                writer.switch(node)
            elif node.kind in STORE_KINDS:
                print_store_node(writer, node)
            elif node.kind in SCHEDULE_KINDS:
                print_schedule_node(self, writer, node)
            elif node.kind in _COPYING:
                writer.copy(node, self.name_of(("deliver", node), f"copied_{_short(node)}"))
            else:
                value = writer.take(node.inputs[0], node) if node.inputs else "None"
                writer.hand_on([*[(output, value) for output in node.outputs], (node.done, "None")], True)
            if node.kind not in _COPYING and node.kind not in STORE_KINDS and node.kind not in SCHEDULE_KINDS:
                writer.leave()
        if node.kind in _COPYING:
            writer = self._function(("deliver", node), "", ["it", "x"])
            writer.hand_on([(node.output, "x"), (node.done, "None")], True)
            writer.leave()
        dead = self._function(("dead", node), f"dead_{_short(node)}", ["it"])
        dead.hand_on([*[(output, "None") for output in node.outputs], (node.done, "None")], False)
        dead.leave()

    def _print_apart(self, node: Node) -> None:
        """Print an operation that runs elsewhere: its kernel, what begins it, and what takes its results."""
        for operation in all_operations(node.operations):  # variables get copies of what others have
            self.printer.stored.update(
                operation.inputs if _is_on_host(node) else [*operation.inputs, *operation.outputs]
            )
        kernel = self._function(("kernel", node), f"kernel_{_short(node)}", [])
        self.printer.by_run = self.by_run(node)
        taken = kernel.print_kernel(node)
        self.printer.by_run = False
        begin = self._function(("run", node), _short(node), ["it"])
        values = [begin.take(value, node) for value in taken]
        finish = self.name_of(("deliver", node), f"done_{_short(node)}")
        label = self.printer.bind("node", node)
        begin.line(
            f"submit({label}, {kernel.function.name}, ({', '.join(values)}{',' if values else ''}), {finish}, it)"
        )
        self._print_finish(node)

    def _print_wait(self, node: Node) -> None:
        """Print an operation that may wait for others: what begins it, and what takes its results."""
        begin = self._function(("run", node), _short(node), ["it"])
        names = {tensor: begin.take(value, node) for tensor, value in zip(node.taken, node.inputs, strict=True)}
        values = [names[tensor] for tensor in node.operations[0].inputs]
        finish = self.name_of(("deliver", node), f"done_{_short(node)}")
        label = self.printer.bind("node", node)
        begin.line(f"wait({label}, ({', '.join(values)}{',' if values else ''}), {finish}, it)")
        self._print_finish(node)

    def _print_finish(self, node: Node) -> None:
        """Print the function that takes the results of an operation that runs elsewhere."""
        end = self._function(("deliver", node), "", ["it", "x"])
        results = [self.printer.fresh("result") for _ in node.outputs]
        if results:
            end.line(f"{', '.join(results)}{',' if len(results) == 1 else ''} = x")
        end.hand_on([*zip(node.outputs, results, strict=True), (node.done, "None")], True)
        end.leave()


class FunctionWriter:
    """Writes the body of one function over an iteration called `it`."""

    def __init__(self, owner: MachinePrinter, function: Function) -> None:
        self.owner = owner
        self.function = function
        self.printer = owner.printer
        self.blueprint = owner.blueprint
        self.depth = 1
        self._has_values = False
        self._has_counts = False

    def line(self, text: str) -> None:
        self.function.lines.append(("    " * self.depth + text, None))

    # --- taking -----------------------------------------------------------------------------------------------------

    def take(self, value: Value, node: Node, keep: bool = False) -> str:
        """Return a local name for a value that a node takes; its slot is cleared."""
        if value.node.kind == "const":
            return self.literal(value.node)
        if value.port == CONTROL:
            return "None"
        name = self.printer.fresh(_short(value.node))
        slot = self.blueprint.place_of(node).slots[node, value]
        self._need_values()
        self.line(f"{name} = v[{slot}]")
        if not keep and not _is_scalar(value):
            self.line(f"v[{slot}] = None")
        return name

    def literal(self, node: Node) -> str:
        op = node.operations[0].op
        assert isinstance(op, Constant)
        return self.printer.bind("c", op.value)

    def _need_values(self) -> None:
        if not self._has_values:
            self.line("v = it.v")
            self._has_values = True

    # --- computing --------------------------------------------------------------------------------------------------

    def compute(self, node: Node) -> list[str]:
        """Print the operations of a node; the names of its outputs."""
        names: dict[Symbol, str] = {}
        known: dict[Value, str] = {}
        for tensor, value in zip(node.taken, node.inputs, strict=True):
            if value not in known:
                names[tensor] = known[value] = self.take(value, node)
                continue
            names[tensor] = self.printer.fresh("same")
            self.line(f"{names[tensor]} = {known[value]}")
        return self._print_operations(node, names)

    def _print_operations(self, node: Node, names: dict[Symbol, str]) -> list[str]:
        is_clocked = self.owner.clocks is not None and self.owner.clocks(node)
        if is_clocked:
            self.line("began = now()")
        block = Block(self.function, names, self.depth)
        assigned = assigned_values(node.operations).intersection(self.owner.shared_values)
        block.slots = self._arrays_to_send(node)
        self.printer.received = self._received(node).union(filter(self._fills_array, assigned))
        block.print_operations(node.operations, node.given)
        results = [block.names[tensor] for tensor in node.given]
        if is_clocked:
            seen = [name for name, spec in zip(results, node.specs, strict=True) if not _is_static(spec)]
            self.line(f"ran({', '.join([self.printer.bind('node', node), 'began', *seen])})")
        return results

    def _arrays_to_send(self, node: Node) -> dict[Symbol, str]:
        """Print, for large results that nothing takes but one other task, the arrays that they are computed in."""
        found: dict[Symbol, str] = {}
        taken = {tensor for operation in all_operations(node.operations) for tensor in operation.inputs}
        for tensor, value in zip(node.given, node.outputs, strict=True):
            takers = () if tensor in taken else self.blueprint.consumers.get(value, ())
            send = takers[0] if len(takers) == 1 and takers[0].kind == "send" and not takers[0].lossy else None
            receive = None if send is None else send.peer
            if receive is None or self.blueprint.is_here(receive) or not self._fills_array(tensor):
                continue
            found[tensor] = self._array("empty", self.blueprint.edges[receive], tensor)
        made = {tensor for operation in node.operations for tensor in operation.outputs}
        for tensor, edge in self.owner.shared_values.items():
            if tensor in made and self._fills_array(tensor):
                found[tensor] = self._array("shared", edge, tensor)
        return found

    def _array(self, function: str, edge: int, tensor: Symbol) -> str:
        """Print the making of an array for a value that is sent by an edge; return its name."""
        name, dtype = self.printer.fresh("sent"), name_of(tensor.dtype)
        self.line(f"{name} = {function}({edge}, {tensor.shape}, {self.printer.bind(dtype, np.dtype(dtype))})")
        return name

    def _received(self, node: Node) -> set[Symbol]:
        """Return the large values of other tasks that nothing takes but this node; of others variables keep copies."""
        found: set[Symbol] = set()
        for tensor, value in zip(node.taken, node.inputs, strict=True):
            send = value.node.peer if value.node.kind == "recv" else None
            if send is not None and not self.blueprint.is_here(send):
                if self.blueprint.consumers[value] != [node]:
                    self.printer.stored.add(tensor)
                elif is_large(tensor):
                    found.add(tensor)
        return found

    def _fills_array(self, tensor: Symbol) -> bool:
        """Test whether a result is large, and its operation can write it into an array that is there."""
        operation = tensor.operation
        if not is_large(tensor):
            return False
        kernel = self.printer.kernels.get(operation)
        if kernel is not None:
            return not callable(kernel)
        return operation.op.emit_out(["x"] * len(operation.inputs), "y") is not None

    def print_kernel(self, node: Node) -> list[Value]:
        """Print the operations of a node as a function of values; return these, in order."""
        names: dict[Symbol, str] = {}
        known: dict[Value, str] = {}
        aliases: list[tuple[str, str]] = []
        for tensor, value in zip(node.taken, node.inputs, strict=True):
            if value.node.kind == "const":
                names[tensor] = self.literal(value.node)
            elif value in known:
                names[tensor] = self.printer.fresh("same")
                aliases.append((names[tensor], known[value]))
            else:
                names[tensor] = known[value] = self.printer.fresh(_short(value.node))
        self.function.arguments = list(known.values())
        for alias, name in aliases:
            self.line(f"{alias} = {name}")
        results = self._print_operations(node, names)
        self.line(f"return {results[0]}" if len(results) == 1 else f"return ({', '.join(results)})")
        return list(known)

    def switch(self, node: Node) -> None:
        data, choice = node.inputs
        value = self.take(data, node)
        test = self.take(choice, node)
        ports = len(node.specs)
        if node.kind == "switch":
            order = [(f"if {test}:", 1), ("else:", 0)]
        else:
            order = [(f"{'el' if k else ''}if {test} {'<= 0' if not k else f'== {k}'}:", k) for k in range(ports - 1)]
            order.append(("else:" if ports > 1 else "if True:", ports - 1))
        self._need_values()
        self._need_counts()
        for head, chosen in order:
            self.line(head)
            self.depth += 1
            for port in (chosen, *[port for port in range(ports) if port != chosen]):
                self.hand_on([(Value(node, port), value)], port == chosen)
            self.line("pass")
            self.depth -= 1

    def copy(self, node: Node, then: str) -> None:
        """Begin a copy out of a device's own memory, or into it."""
        values = ", ".join([self.take(value, node) for value in node.inputs])
        self.line(f"{node.kind}({self.printer.bind('node', node)}, {values}, {then}, it)")

    # --- handing on -------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Print that one node less has not fired."""
        self.line("it.left -= 1")
        self.line("if not it.left: finished(it)")

    def _need_counts(self) -> None:
        if not self._has_counts:
            self.line("p = it.p")
            self._has_counts = True

    def hand_on(self, pairs: Pairs, is_alive: bool, only: str | None = None) -> None:
        """Give values to all that wait for them in this iteration, and do what is done in passing."""
        counted: dict[Node, int] = {}
        for value, expression in pairs:
            for consumer in self.blueprint.consumers.get(value, ()):
                if not is_scheduled(consumer):
                    self._pass(consumer, value, expression, is_alive)
                elif only is None:
                    self._lay(consumer, value, expression, is_alive)
                    counted[consumer] = counted.get(consumer, 0) + 1
        for consumer, count in counted.items():
            self._count_down(consumer, count, is_alive)

    def _lay(self, consumer: Node, value: Value, expression: str, is_alive: bool) -> None:
        slot = self.blueprint.place_of(consumer).slots.get((consumer, value))
        if consumer.kind == "to_device" and value == consumer.inputs[1]:
            expression = f"moment({expression})"  # it must not keep the value
        if is_alive and slot is not None and expression != "None":
            if not self._has_values and self.depth > 1:
                self.line(f"it.v[{slot}] = {expression}")
                return
            self._need_values()
            self.line(f"v[{slot}] = {expression}")

    def _count_down(self, consumer: Node, count: int, is_alive: bool) -> None:
        number = self.blueprint.numbers[consumer]
        place = self.blueprint.place_of(consumer)
        run, dead = self._functions_of(consumer)
        if place.pending[number] == count:
            self.line(f"push(({run if is_alive else dead}, it))")
            return
        self._need_counts_here()
        if consumer.kind == "join":  # of replicas those that were not chosen are dead
            self.line(f"p[{number}] = n = p[{number}] + {count * (DEAD * (not is_alive) - 1)}")
            self.line(f"if not n & {MASK}: push(({run} if n < {place.pending[number] * DEAD} else {dead}, it))")
        elif is_alive:
            self.line(f"p[{number}] = n = p[{number}] - {count}")
            self.line(f"if not n: push(({run}, it))")
            self.line(f"elif not n & {MASK}: push(({dead}, it))")
        else:
            self.line(f"p[{number}] = n = p[{number}] + {count * (DEAD - 1)}")
            self.line(f"if not n & {MASK}: push(({dead}, it))")

    def _need_counts_here(self) -> None:
        if self.depth > 1 and not self._has_counts:
            self.line("p = it.p")
        else:
            self._need_counts()

    def _functions_of(self, node: Node) -> tuple[str, str]:
        return (
            self.owner.name_of(("run", node), _short(node)),
            self.owner.name_of(("dead", node), f"dead_{_short(node)}"),
        )

    def _pass(self, node: Node, value: Value, x: str, is_alive: bool) -> None:
        """Do in passing what a primitive does with a value."""
        getattr(self, f"_pass_{node.kind}")(node, value, x, is_alive)

    def _pass_loop_cond(self, node: Node, value: Value, x: str, is_alive: bool) -> None:
        self.hand_on([(node.output, x)], is_alive)

    def _pass_merge(self, node: Node, value: Value, x: str, is_alive: bool) -> None:
        """Print the passing of a value by a Merge.

        The Merge of a branch hands its first live value on, or a dead one when there is no other.
        """
        if is_loop_merge(node):
            self.hand_on([(node.output, x)], is_alive)
            return
        number = self.blueprint.numbers[node]
        self._need_counts_here()
        pairs = [(node.output, x), (node.done, "None")]
        if len(node.specs) > 1:  # a Merge built by hand says which input it was
            index = self.printer.bind("index", np.int32(node.inputs.index(value)))
            pairs.append((Value(node, 1), index))
        if is_alive:
            self.line(f"if p[{number}] > 0:")
            self.depth += 1
            self.line(f"p[{number}] = -{DEAD}")
        else:
            self.line(f"p[{number}] -= 1")
            self.line(f"if not p[{number}]:")
            self.depth += 1
        had, self._has_counts = self._has_counts, True
        self.hand_on(pairs, is_alive)
        self.line("pass")
        self._has_counts = had
        self.depth -= 1

    def _pass_next_iteration(self, node: Node, value: Value, x: str, is_alive: bool) -> None:
        if not is_alive:
            return
        deliver = self.owner.delivery("deliver", node)
        if node.frame.parallel_iterations == 1:  # the next one begins when this one is over
            self.line(f"it.run.waiting.append(({deliver}, {x}))")
            return
        self.line("t = it.next or advance(it)")
        self.line(f"if t is None: it.run.waiting.append(({deliver}, {x}))")
        self.line(f"else: {deliver}(t, {x})")

    def _pass_enter(self, node: Node, value: Value, x: str, is_alive: bool) -> None:
        place = self.blueprint.place_of(node)
        child = self.blueprint.child_number(place)
        self.line(f"r = it.children[{child}] or enter(it, {child})")
        if node.is_constant:
            number = place.constants.index(node)
            self.line(f"constant(r, {number}, {x})" if is_alive else f"constant_dead(r, {number})")
            return
        deliver = self.owner.delivery("deliver" if is_alive else "kill", node)
        if is_alive:
            self.line(f"{deliver}(r.first, {x})")
            return
        self.line("r.is_dead = True")
        self.line(f"{deliver}(r.first)")

    def _pass_exit(self, node: Node, value: Value, x: str, is_alive: bool) -> None:
        if not is_alive:
            return
        number = self.blueprint.place_of(node).exits.index(node)
        deliver = self.owner.delivery("deliver", node)
        self.line(f"it.run.exited[{number}] = True")
        self.line(f"{deliver}(it.run.parent, {x})")

    def _pass_send(self, node: Node, value: Value, x: str, is_alive: bool) -> None:
        receive = node.peer
        assert receive is not None, f"{node!r} has no Recv"
        number = self.blueprint.edges[receive]
        if not self.blueprint.is_here(receive):
            x = f"as_bfloat16({x})" if is_alive and node.lossy else x
            self.line(f"post({number}, it.tag, {x})" if is_alive else f"post_dead({number}, it.tag)")
            return
        deliver = self.owner.name_of(("deliver", receive), f"deliver_{_short(receive)}")
        kill = self.owner.name_of(("kill", receive), f"kill_{_short(receive)}")
        if is_alive and self.owner.channels(receive):
            self.line(f"carry({number}, it.tag, {x})")
            return
        if is_alive and node.lossy:
            x = f"as_bfloat16({x})"
        live = f"live_{self.blueprint.place_of(receive).number}"
        self.line(f"t = {live}.get(it.tag)")
        given = f"({x}, False)" if is_alive else "(None, True)"
        is_clocked = is_alive and self.owner.clocks is not None
        if is_clocked:
            self.line(f"s = sending({number}, it.tag)")
        self.line(f"if t is None: mail[{number}, it.tag] = {given}")
        self.line(f"else: {deliver}(t, {x})" if is_alive else f"else: {kill}(t)")
        if is_clocked:
            self.line(f"sent({number}, s)")

    def _pass_record(self, node: Node, value: Value, x: str, is_alive: bool) -> None:
        if is_alive:
            self.line(f"it.run.records[{node.history}][it.number] = {x}")

    def _pass_fetch(self, node: Node, value: Value, x: str, is_alive: bool) -> None:
        number = self.owner.machine.fetches.index(node)
        if is_alive:
            self.line(f"fetch({number}, {x})")
        else:
            self.line(f"fetch_dead({number})")


def _is_on_host(node: Node) -> bool:
    """Test whether an operation runs on a processor of this host."""
    return DeviceName.parse(str(node.device)).kind in (None, "CPU")


def _is_static(spec: Any) -> bool:
    return isinstance(spec, TensorSpec) and spec.is_static


def _is_scalar(value: Value) -> bool:
    spec = value.node.specs[value.port]
    return isinstance(spec, TensorSpec) and spec.shape == ()


def _short(node: Node) -> str:
    name = node.name.rpartition("/")[2]
    return name if node.kind == "op" else f"{node.kind}_{name}"
