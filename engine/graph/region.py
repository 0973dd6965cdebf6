"""`Region`: the sub-graph of a loop body, a branch or a function. It captures what it uses from outside."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from .context import graph_context
from .device import VariableState, is_variable, settle_operation
from .graph import Graph, Operation, Parameter
from .op import Effect
from .provenance import Location
from .spec import Spec
from .tensor import Symbol, Tensor
from .value import Value


class Mirror(Protocol):
    """The way in which a backward region gets at the values of the forward region that it differentiates."""

    region: Region

    def resolve(self, into: Region, tensor: Symbol) -> Symbol:
        """Return a tensor of `into` with the value that `tensor`, of `region`, had at the same iteration."""
        ...


class Region(Graph):
    """A graph with parameters and results, held by one operation of `parent`.

    Attributes:
        parameters: the explicit inputs (loop variables), in order.
        captures: pairs (tensor of the parent, parameter here) of values used from outside.
        results: the outputs, in order.
        outer_waits: for operations here those of enclosing graphs that control dependencies make them wait for.
        needed: the operations that a run needs, in order, of a region that passes have settled; else None.
        demanded: the tensors whose values frames record, of a region that passes have settled.
        is_copy: whether it is a pass that builds it: then no line of the user's is looked for on the stack.
        is_built: whether an operation holds the region, or it was rewritten; from then on it captures nothing more.

    Reads of variables are taken out of the region optimistically: a read becomes a captured read of the parent, and
    turns back into a read of its own, in place, if the region writes that variable later on. So a loop reads a weight
    once, and its gradient needs no saved copies.
    """

    def __init__(self, parent: Graph, name: str, mirror: Mirror | None = None) -> None:
        super().__init__()
        self._parent = parent
        self.name = name
        self.mirror = mirror
        self.parameters: list[Symbol] = []
        self.results: list[Symbol] = []
        self.outer_waits: dict[Operation, tuple[Operation, ...]] = {}
        self.written: set[object] = set()
        self._local: dict[Symbol, Symbol] = {}
        self._hoisted: dict[VariableState, Symbol] = {}
        self._scopes.device = parent.device_scope
        self.is_built = False
        self.is_copy = False
        self.needed: list[Operation] | None = None
        self.demanded: list[Symbol] = []

    @property
    def parent(self) -> Graph:
        return self._parent

    def add_parameter(self, spec: Spec, name: str, location: Location | None = None) -> Symbol:
        """Append an explicit input, of a line that is looked for on the stack unless it is given."""
        parameter = self._append(Parameter(spec), (), (spec,), name, location).outputs[0]
        self.parameters.append(parameter)
        return parameter

    def capture(self, tensor: Tensor) -> Symbol:
        if isinstance(tensor, Value):
            if self.is_built or not tensor.spec.differentiable or self.root.feed_of(tensor) is not None:
                return self.capture_value(tensor)
            return self.capture(self.parent.capture(tensor))  # one constant outside, by which gradients are taken
        assert isinstance(tensor, Symbol)
        if tensor.operation.graph is self:
            return tensor
        known = self._local.get(tensor)
        if known is not None:
            return known
        if self.mirror is not None and tensor.operation.graph is self.mirror.region:
            local = self.mirror.resolve(self, tensor)
        else:
            local = self.add_capture(self.parent.capture(tensor))
        self._local[tensor] = local
        return local

    def _link(self, node: Operation) -> Operation:
        self.needed = None
        return super()._link(node)

    def add_capture(self, outer: Symbol) -> Symbol:
        """Return a new parameter that stands for `outer`, a tensor of the parent.

        Raises:
            ValueError: the loop or branch is built already, so that it can take in nothing more.
        """
        if self.is_built:
            raise ValueError(
                f"A value from inside a loop or branch is used outside it, together with {outer!r}. "
                "Values inside a loop or branch leave it only as its results."
            )
        with_controls, self._scopes.controls = self._scopes.controls, []
        source = outer.operation
        location = source.location if self.is_copy else None
        parameter = self._append(Parameter(outer.spec), (), (outer.spec,), source.name, location).outputs[0]
        self._scopes.controls = with_controls
        self.captures.append((outer, parameter))
        return parameter

    def move_into(self, parent: Graph) -> None:
        """Move into another graph (for passes, which see to the captures)."""
        self._parent = parent

    def take_out(self, operations: Sequence[Operation]) -> None:
        """Compute operations with one result, over captured values alone, around the region and capture the results."""
        sources = dict.fromkeys(tensor for operation in operations for tensor in operation.inputs)
        for operation in operations:
            (result,) = operation.outputs
            outers = tuple([outer for tensor in operation.inputs if (outer := self.outer_of(tensor)) is not None])
            outside = self._parent._append(operation.op, outers, (result.spec,), operation.name, operation.location)
            operation.op, operation.inputs = Parameter(result.spec), ()
            self.captures.append((outside.outputs[0], result))
        used = {tensor for operation in self.operations for tensor in operation.inputs}.union(self.results)
        unused = {tensor.operation for tensor in sources if tensor not in used}
        self.drop_captures({parameter for _, parameter in self.captures if parameter.operation not in unused})
        self.keep_only([operation for operation in self.operations if operation not in unused])

    def drop_captures(self, used: Collection[Symbol]) -> None:
        """Capture no longer what has no parameter among `used` (for passes, which see to the holder's inputs)."""
        self.captures = [pair for pair in self.captures if pair[1] in used]
        kept = {parameter for _, parameter in self.captures}
        self._local = {outer: local for outer, local in self._local.items() if local in kept}

    def keep_only(self, needed: Iterable[Operation]) -> None:
        """Leave out all operations but the needed ones and the parameters (for passes)."""
        kept = {*needed, *[tensor.operation for tensor in self.inner_inputs()]}
        self.operations = [operation for operation in self.operations if operation in kept]
        for index, operation in enumerate(self.operations):
            operation.index = index

    def sees(self, tensor: Tensor) -> bool:
        if not isinstance(tensor, Symbol):
            return True
        graph = tensor.operation.graph
        if graph is self or (self.mirror is not None and graph is self.mirror.region):
            return True
        return self.parent.sees(tensor)

    def read(self, variable: VariableState) -> Symbol:
        known = self._reads.get(variable)
        if known is not None:
            return known
        if variable in self.written:
            local = self.add_read(variable)
        else:
            local = self._hoisted[variable] = self.add_capture(self.parent.read(variable))
        self._reads[variable] = local
        return local

    def refuse_traced(self, tensor: Symbol) -> None:
        super().refuse_traced(tensor)
        if self not in graph_context.stack:
            raise ValueError(
                f"{tensor!r} was made inside of {self.name!r}, a branch or the body of a loop, and is used outside of "
                "it. Values leave branches and loops only as their results: return it from there."
            )

    def keep_reads_inside(self, resource: object) -> None:
        """Turn a hoisted read of `resource` back into a read at its place: the region is run after writes to it."""
        self.written.add(resource)
        parameter = self._hoisted.pop(resource, None) if is_variable(resource) else None
        if parameter is None:
            return
        self.captures = [pair for pair in self.captures if pair[1] is not parameter]
        operation = parameter.operation
        assert is_variable(resource)
        operation.op = resource.read_op()
        operation.effects = tuple(operation.op.effects())
        settle_operation(operation, self.device_scope)  # it runs where the variable is, as any other read

    def _note_write(self, resource: object) -> None:
        super()._note_write(resource)
        self.keep_reads_inside(resource)

    def note_outer_waits(self, operation: Operation, sources: Sequence[Operation]) -> None:
        self.outer_waits[operation] = tuple(sources)

    def settled_waits(self) -> list[Operation]:
        """Return what the operation that holds the region waits for on behalf of operations inside.

        What a control block around the region names is left out of `outer_waits`: it counts, whatever runs inside.
        """
        around = {source for group in self._parent._scopes.controls for source in group}
        for operation, sources in self.outer_waits.items():
            self.outer_waits[operation] = tuple([source for source in sources if source not in around])
        return list(dict.fromkeys(source for sources in self.outer_waits.values() for source in sources))

    def outer_of(self, parameter: Symbol) -> Symbol | None:
        """Return the tensor around the region that a parameter stands for; None for any other tensor."""
        if isinstance(parameter.operation.op, Parameter):
            for outer, known in self.captures:
                if known is parameter:
                    return outer
        return None

    def inner_inputs(self) -> list[Symbol]:
        """Return what stands inside for what is given to it from outside: arguments, then captured values."""
        return [*self.parameters, *[parameter for _, parameter in self.captures]]

    def outer_tensors(self) -> list[Symbol]:
        """Return the captured tensors, of the graph around this one."""
        return [outer for outer, _ in self.captures]

    def collect_effects(self) -> list[Effect]:
        """Return the effects of everything inside, each resource once, as a write if anything writes it."""
        return merged_effects(effect for operation in self.operations for effect in operation.effects)


def merged_effects(effects: Iterable[Effect]) -> list[Effect]:
    """Return each resource once, as a write if anything writes it."""
    writes: dict[object, bool] = {}
    for effect in effects:
        writes[effect.resource] = writes.get(effect.resource, False) or effect.writes
    return [Effect(resource, written) for resource, written in writes.items()]
