"""`Graph` and `Operation`: an append-only list of operations, in program order, that is also a topological order."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from ..common.operator_table import operator_functions
from .captured_values import CapturedValues
from .context import Scopes, ScopesOfThread, graph_context
from .default_graph import LivingOperations, LivingReads, prefixes_of, without_references
from .device import (
    DeviceFunction,
    DeviceName,
    DeviceScope,
    State,
    VariableState,
    colocation_of,
    is_variable,
    settle_operation,
)
from .op import Op
from .operation import Operation, Placeholder
from .operation import Parameter as Parameter
from .provenance import Location, user_location
from .spec import Spec
from .tensor import Symbol, Tensor
from .value import Value


class Graph:
    """A dataflow graph. Operations are appended in program order; inputs always come before their users.

    >>> import anabranch as ab
    >>> graph = ab.Graph()
    >>> with graph.as_default():
    ...     y = ab.constant(2.0) + 1.0
    >>> y.graph is graph
    True
    """

    @property
    def parent(self) -> Graph | None:
        """The graph around this one: none, except for the region of a loop or branch."""
        return None

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.captures: list[tuple[Symbol, Symbol]] = []  # only regions capture
        self._by_name: dict[str, Operation] = {}
        self._name_counts: dict[str, int] = {}
        self._scopes = Scopes()
        self._reads: dict[VariableState, Symbol] = {}
        self.constants: dict[Any, Symbol] = {}  # operations built once: Python scalars, shapes
        self.values = CapturedValues(keeps=True)
        self.queue_runners: list[Any] = []  # those that `start_queue_runners` starts
        self.optimizers: dict[Any, None] = {}  # those that make steps in it, for summaries
        self.compiles_whole = False  # whether its steps are to be machine code as a whole, where that can be
        self.holds_regions = False  # whether any operation ever did
        self.is_trace = False  # whether a function or a model's step is traced into it
        self.traced = ""  # what was traced into it, once that is over; its tensors have no value outside

    # --- building -------------------------------------------------------------------------------------------

    def add(self, op: Op, inputs: Sequence[Tensor], name: str | None = None) -> Operation:
        """Append `op` applied to `inputs`; tensors of enclosing graphs are captured, values become constants.

        Raises:
            ValueError, TypeError: the inputs do not fit the op (from `Op.infer`), or belong to an unrelated graph.
        """
        own = tuple([t if type(t) is Symbol and t.operation.graph is self else self.capture(t) for t in inputs])
        specs = op.infer(*[t.spec for t in own])
        return self._append(op, own, specs if isinstance(specs, tuple) else (specs,), name)

    def _append(
        self,
        op: Op,
        inputs: tuple[Symbol, ...],
        specs: tuple[Spec, ...],
        name: str | None,
        location: Location | None = None,
    ) -> Operation:
        controls: tuple[Operation, ...] = ()
        outer: list[Operation] = []
        if self._scopes.controls:
            waits = dict.fromkeys(c for group in self._scopes.controls for c in group)
            controls = tuple([source for source in waits if source.graph is self])
            outer = [source for source in waits if source.graph is not self]
        name = self.unique_name(name or op.type_name)
        scope = self._scopes.device
        operation = Operation(self, op, inputs, specs, name, scope.plain, controls, location or user_location())
        operation.colocations = scope.colocations
        if scope.parts or scope.colocations or operation.effects:
            settle_operation(operation, scope)
        if outer:
            self.note_outer_waits(operation, outer)
        return self._link(operation)

    def add_shared(self, key: Any, op: Op, inputs: Sequence[Tensor], name: str | None = None) -> Symbol:
        """Return the output of an operation that is built at its first use, and found by `key` from then on.

        It waits for its inputs alone: what holds where it happens to be used first must not hold for later users.
        """
        known = self.constants.get(key)
        if known is None:
            before, scope = self._scopes.controls, self._scopes.device
            self._scopes.controls, self._scopes.device = [], DeviceScope()
            try:
                known = self.constants[key] = self.add(op, inputs, name).outputs[0]
            finally:
                self._scopes.controls, self._scopes.device = before, scope
        return known

    @property
    def in_control_block(self) -> bool:
        """Test whether `control_dependencies` hold for what is built now."""
        return bool(self._scopes.controls)

    def adopt(
        self,
        op: Op,
        inputs: Sequence[Symbol],
        specs: tuple[Spec, ...],
        like: Operation,
        control_inputs: tuple[Operation, ...] = (),
    ) -> Operation:
        """Append a rewritten form of `like`: it keeps the name, device and user's line (for passes)."""
        adopted = Operation(self, op, tuple(inputs), specs, like.name, like.device, control_inputs, like.location)
        adopted.colocations, adopted.iterations = like.colocations, like.iterations
        return self._link(adopted)

    def take(self, operation: Operation) -> None:
        """Append an operation that another graph held so far (for passes)."""
        operation.graph = self
        self._link(operation)

    def restore(
        self,
        op: Op,
        inputs: Sequence[Symbol],
        specs: tuple[Spec, ...],
        name: str,
        device: str,
        control_inputs: tuple[Operation, ...],
        location: Location | None,
    ) -> Operation:
        """Append an operation as it was in another graph, under its very name (for saved graphs)."""
        parts = name.split("/")
        for end in range(1, len(parts) + 1):
            self._name_counts.setdefault("/".join(parts[:end]), 0)
        return self._link(Operation(self, op, tuple(inputs), specs, name, device, control_inputs, location))

    def _link(self, node: Operation) -> Operation:
        node.index = len(self.operations)
        self.operations.append(node)
        self._by_name[node.name] = node
        self.holds_regions = self.holds_regions or bool(node.op.regions)
        for effect in node.effects:
            if effect.writes:
                self._note_write(effect.resource)
        return node

    def capture(self, tensor: Tensor) -> Symbol:
        """Return the symbol of this graph that stands for `tensor`: a value, or a symbol of another graph.

        Raises:
            ValueError: it belongs to a graph that is not around this one.
        """
        if isinstance(tensor, Value):
            return self.capture_value(tensor)
        assert isinstance(tensor, Symbol)
        if tensor.operation.graph is self:
            return tensor
        tensor.operation.graph.refuse_traced(tensor)
        raise ValueError(
            f"{tensor!r} belongs to another graph than the one in which it is used. Both must be built inside the "
            "same `with graph.as_default():` block (values inside a loop or branch leave it only as its results, and "
            "those inside a traced function only as what it returns)."
        )

    def refuse_traced(self, tensor: Any) -> None:
        """Raise an error if `tensor`, of this graph, has left the trace in which it was made.

        Raises:
            ValueError: it has.
        """
        traced = self.root.traced
        if traced and self not in graph_context.stack:
            raise ValueError(
                f"{tensor!r} was made while {traced} was traced, and is used outside of it, where it has no value. "
                "Return it from there, or keep its value in a variable: variable.assign(...) inside."
            )

    def feed_of(self, value: Value) -> Symbol | None:
        """Return the symbol by which a value from around is fed; None where it is a constant."""
        return None

    def capture_value(self, value: Value) -> Symbol:
        """Return the symbol of a value: that by which it is fed, else a constant, one for each value and graph."""
        fed = self.root.feed_of(value)
        if fed is not None:
            return self.capture(fed)
        known = self.values.get(value)
        if known is None:
            known = self.values[value] = cast("Symbol", operator_functions["constant_of"](value, self))
        return known

    def read(self, variable: VariableState) -> Symbol:
        """Return the value of `variable` here; reads with no write between them are one operation.

        Reads under control dependencies are apart: they wait for more than others do.
        """
        if self._scopes.controls:
            return self.add_read(variable)
        known = self._reads.get(variable)
        if known is None:
            known = self._reads[variable] = self.add_read(variable)
        return known

    def add_read(self, variable: VariableState) -> Symbol:
        return self._append(variable.read_op(), (), (variable.spec,), f"{variable.name}/read").outputs[0]

    def _note_write(self, resource: Any) -> None:
        self._reads.pop(resource, None)

    # --- names and scopes -----------------------------------------------------------------------------------

    def unique_name(self, name: str) -> str:
        """Return `name` inside the current name scope, with a number behind it if it is taken."""
        full = self._scopes.name + name
        count = self._name_counts.get(full)
        if count is None:
            self._name_counts[full] = 0
            return full
        while True:
            count += 1
            candidate = f"{full}_{count}"
            if candidate not in self._name_counts:
                self._name_counts[full] = count
                self._name_counts[candidate] = 0
                return candidate

    @contextmanager
    def name_scope(self, name: str) -> Generator[str]:
        """Prefix the names of operations that are built inside of the block with ``name/``."""
        before = self._scopes.name
        self._scopes.name = self.unique_name(name) + "/"
        try:
            yield self._scopes.name
        finally:
            self._scopes.name = before

    @contextmanager
    def device(self, device: str | DeviceFunction | None) -> Generator[None]:
        """Ask for `device` for the operations built inside; None lifts outer requests, colocation included.

        See `anabranch.device`.
        """
        scope = DeviceScope() if device is None else self._scopes.device
        if device:
            scope = scope.inside(DeviceName.parse(device) if isinstance(device, str) else device)
        with self.in_scope(scope):
            yield

    def near(self, operation: Operation, binding: bool = False) -> AbstractContextManager[None]:
        """Ask for the device of `operation` for the operations built inside, in place of what scopes around ask for.

        Args:
            operation: the one with which the others are to be.
            binding: whether they must be on the same device even where none was asked for; otherwise they are
                if they can. (What touches a variable is bound to it in any case.)
        """
        if operation.op.regions and not binding:
            return self.near_state((), operation.device)
        state = [effect.resource for effect in operation.effects if isinstance(effect.resource, State)]
        location = user_location() if binding else None
        held = state[0] if state and binding else colocation_of(operation, location, binding)
        return self.near_state((held,), operation.device)

    def near_state(self, held: tuple[Any, ...], device: str) -> AbstractContextManager[None]:
        """Ask for the place of a variable, or of those that hold the same `Colocation`, on `device` if it says one."""
        scope = DeviceScope().inside(DeviceName.parse(device)) if device else DeviceScope()
        return self.in_scope(DeviceScope(scope.parts, scope.plain, held))

    @contextmanager
    def in_scope(self, scope: DeviceScope) -> Generator[None]:
        """Make `scope` what is asked for the operations built inside."""
        before = self._scopes.device
        self._scopes.device = scope
        try:
            yield
        finally:
            self._scopes.device = before

    @property
    def device_scope(self) -> DeviceScope:
        """Return what the device scopes around this place of the program ask for."""
        return self._scopes.device

    def control_dependencies(self, control_inputs: Sequence[Any] | None) -> AbstractContextManager[None]:
        """Let operations built inside of the block run after those in `control_inputs`; None lifts outer blocks'.

        Values are finished: nothing waits for them.

        Raises:
            TypeError: something is neither operation nor tensor. ValueError: it belongs to an unrelated graph.
        """
        if control_inputs is None:
            return self._in_control_block([])
        given = [item for item in control_inputs if not isinstance(item, Value)]
        operations = [item.operation if isinstance(item, Symbol) else item for item in given]
        for item in operations:
            if not isinstance(item, Operation):
                raise TypeError(f"control_dependencies takes operations and tensors, not {type(item).__name__}.")
            if not self.is_inside(item.graph):
                raise ValueError(f"control_dependencies: {item!r} belongs to an unrelated graph.")
        return self._in_control_block([*self._scopes.controls, tuple(operations)])

    @contextmanager
    def _in_control_block(self, stack: list[tuple[Operation, ...]]) -> Generator[None]:
        before, self._scopes.controls = self._scopes.controls, stack
        try:
            yield
        finally:
            self._scopes.controls = before

    def note_outer_waits(self, operation: Operation, sources: Sequence[Operation]) -> None:
        """Take note that `operation` waits for operations of enclosing graphs."""
        raise NotImplementedError(f"{self!r} has no enclosing graph.")

    # --- the current graph ----------------------------------------------------------------------------------

    @contextmanager
    def as_default(self) -> Generator[Graph]:
        """Make this the graph into which operations are built inside the block."""
        graph_context.stack.append(self)
        try:
            yield self
        finally:
            graph_context.stack.pop()

    def entered(self) -> AbstractContextManager[Graph]:
        """Enter the graph for a call on its symbols, where nobody chose a graph; see `as_default`."""
        return self.as_default()

    # --- saving ---------------------------------------------------------------------------------------------

    def save(self, path: Any) -> None:
        """Write the graph to one file, with its regions, constants and the values of its variables.

        `anabranch.load_graph` reads it. Nothing is evaluated, and nothing is pickled.

        Raises:
            ValueError: an operation holds something that can't be written, such as a Python function.
            FileNotFoundError: the folder does not exist.
        """
        operator_functions["save_graph"](self, path)

    # --- looking things up ----------------------------------------------------------------------------------

    @property
    def variables(self) -> list[VariableState]:
        """The variables that the graph reads or writes, in the order in which it first does."""
        resources = dict.fromkeys(effect.resource for node in self.operations for effect in node.effects)
        return [resource for resource in resources if is_variable(resource)]

    def get_operations(self) -> list[Operation]:
        return list(self.operations)

    def get_operation_by_name(self, name: str) -> Operation:
        """Return the operation called `name`.

        Raises:
            KeyError: there is none.
        """
        try:
            return self._by_name[name]
        except KeyError:
            raise KeyError(f"The graph has no operation named {name!r}.") from None

    def get_tensor_by_name(self, name: str) -> Symbol:
        """Return the tensor called `name`, as ``operation:output``.

        Raises:
            KeyError: there is none.
        """
        operation, _, position = name.partition(":")
        outputs = self.get_operation_by_name(operation).outputs
        if not position.isdigit() or int(position) >= len(outputs):
            raise KeyError(f"No tensor {name!r}: write 'operation:output'; {operation!r} has {len(outputs)} outputs.")
        return outputs[int(position)]

    def dump(self, fetches: Any = None, locations: bool = False, lowered: bool = False) -> str:
        """Return the graph as typed text, regions of loops and branches included, one line an operation.

        Args:
            fetches: print only what these tensors and operations need; by default everything.
            locations: add the line that built each operation.
            lowered: print the step for `fetches` as it runs on the devices that are declared (see `ab.lowered`).

        Raises:
            ValueError: a lowered step is asked for without `fetches`.

        >>> import anabranch as ab
        >>> with ab.Graph().as_default() as graph:
        ...     x = ab.placeholder((None,), "float32", "x")
        ...     y = ab.cond(ab.ops.sum(x) > 0, lambda: x * 2, lambda: x)
        >>> print(graph.dump())
        x: float32[?] = placeholder()
        sum: float32[] = sum[axes=(0,)](x)
        greater: bool[] = greater(sum, 0.0)
        cond/cond: float32[?] = cond(greater)
            true_fn(; x):
                multiply: float32[?] = multiply(x, 2.0)
                return multiply
            false_fn(; x):
                return x
        <BLANKLINE>
        """
        from .dump import dump

        if lowered and fetches is None:
            raise ValueError("dump(lowered=True) prints one step: expected what it computes, as its fetches; got None.")
        if lowered:
            return operator_functions["dump_lowered"](fetches)
        return dump(self, fetches, locations)

    def sees(self, tensor: Tensor) -> bool:
        """Test whether `capture` can bring `tensor` into this graph."""
        return not isinstance(tensor, Symbol) or self.is_inside(tensor.operation.graph)

    @property
    def root(self) -> Graph:
        """The outermost graph around this one."""
        graph = self
        while graph.parent is not None:
            graph = graph.parent
        return graph

    def is_inside(self, other: Graph) -> bool:
        """Test whether this graph is `other` or is inside it."""
        graph: Graph | None = self
        while graph is not None:
            if graph is other:
                return True
            graph = graph.parent
        return False

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {len(list(self.operations))} operations>"  # in the default graph some are gone
        )


class DefaultGraph(Graph):
    """The graph that always exists. What it holds goes with the last reference, as functional models do.

    It keeps what a user builds in it on purpose: plain placeholders, what depends on them, and what is built inside of
    `as_default` or a session's block. Whoever uses the rest (an `Input`, what layers and ops make of it) holds it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = cast("list[Operation]", LivingOperations())
        self._by_name = cast("dict[str, Operation]", weakref.WeakValueDictionary[str, Operation]())
        self._reads = cast("dict[VariableState, Symbol]", LivingReads())
        self.optimizers = cast("dict[Any, None]", weakref.WeakKeyDictionary[Any, None]())
        self.constants = cast("dict[Any, Symbol]", weakref.WeakValueDictionary[Any, Symbol]())
        self.values = CapturedValues(keeps=False)
        self._kept: set[Operation] = set()
        self._scopes = ScopesOfThread()
        self._lock = threading.Lock()

    @contextmanager
    def entered(self) -> Generator[Graph]:
        before = graph_context.enters
        graph_context.enters = before or not graph_context.stack
        try:
            with self.as_default():
                yield self
        finally:
            graph_context.enters = before

    def add_shared(self, key: Any, op: Op, inputs: Sequence[Tensor], name: str | None = None) -> Symbol:
        return super().add_shared(without_references(key), op, inputs, name)

    def _link(self, node: Operation) -> Operation:
        with self._lock:  # models are built in several threads
            super()._link(node)
        chosen = not graph_context.enters and (bool(graph_context.stack) or isinstance(node.op, Placeholder))
        if chosen or any(tensor.operation in self._kept for tensor in node.inputs):
            self._kept.add(node)
        if len(self._name_counts) + len(self.values) > 4 * len(self._by_name) + 1000:
            self._forget_names()
        return node

    def _forget_names(self) -> None:
        """Let go of the names of what is gone, and of what is noted about values that are."""
        self._name_counts = prefixes_of(list(self._by_name))
        self.values.forget_gone()


_default_graph: Graph = DefaultGraph()


def get_default_graph() -> Graph:
    """Return the graph into which operations are built now. One always exists."""
    return graph_context.stack[-1] if graph_context.stack else _default_graph


def reset_default_graph() -> None:
    """Let the default graph go and start a new one; what was built in the old one can't be mixed with the new."""
    global _default_graph
    _default_graph = DefaultGraph()


def current_device_scope() -> DeviceScope:
    """Return what the device scopes around ask for, of the current graph or, where it has none, of those around it.

    A layer makes its variables in a graph of its own: they are to heed the scope in which it is called.
    """
    for graph in (*reversed(graph_context.stack), *reversed(graph_context.around), _default_graph):
        scope = graph.device_scope
        if scope.parts or scope.colocations:
            return scope if graph_context.stack else _with_scopes_inside(scope)
    return DeviceScope()


def _with_scopes_inside(around: DeviceScope) -> DeviceScope:
    """Return what scopes ask for that were entered inside a block that runs at once, inside those around it."""
    own = _default_graph.device_scope
    if not graph_context.around or own is graph_context.scope_before or own is around:
        return around
    if own.colocations:
        return own
    for part in own.parts:
        around = around.inside(part)
    return around


def graph_for(inputs: Sequence[Tensor]) -> Graph:
    """Return the graph in which an operation over `inputs` is built: the current one if it sees them, else theirs."""
    current = get_default_graph()
    for tensor in inputs:
        graph = tensor.operation.graph if isinstance(tensor, Symbol) else current
        if graph is not current and not current.is_inside(graph):
            return _innermost(inputs) if not current.sees(tensor) else current
    return current


def _innermost(inputs: Sequence[Tensor]) -> Graph:
    graphs = [tensor.operation.graph for tensor in inputs if isinstance(tensor, Symbol)]
    for graph in graphs:
        if all(graph.is_inside(other) for other in graphs):
            graph.refuse_traced(next(tensor for tensor in inputs if isinstance(tensor, Symbol)))
            return graph
    return get_default_graph()  # `capture` explains what does not fit


@contextmanager
def eagerly() -> Generator[None]:
    """Run ops at once inside of the block, whatever is around it: no graph is built.

    For what is computed once and not in each step, such as the initial values of weights that a layer makes while it
    is traced.
    """
    stack, around, scope, enters = (
        graph_context.stack,
        graph_context.around,
        graph_context.scope_before,
        graph_context.enters,
    )
    graph_context.stack, graph_context.around, graph_context.scope_before = (
        [],
        [*around, *stack],
        _default_graph.device_scope,
    )
    graph_context.enters = False
    try:
        yield
    finally:
        graph_context.stack, graph_context.around, graph_context.scope_before, graph_context.enters = (
            stack,
            around,
            scope,
            enters,
        )
