"""`LoopView`: one loop under rewriting, what is known of it, and the few ways in which it is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from typing import Any

from ...common.identity import is_among
from ...control_flow.frames import History, TripCount
from ...control_flow.while_loop import While
from ...graph.device import DeviceScope
from ...graph.graph import Graph, Operation, Parameter
from ...graph.op import Op
from ...graph.provenance import building_at
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol, symbol_of
from ...ops.base import Constant, build, cast, convert_to_tensor
from ...ops.containers.array_windows import ArrayWindow
from ...ops.containers.tensor_arrays import ArrayNew, ArrayRead, ArrayStack, ArrayUnstack, ArrayWrite
from ...ops.math.comparison import maximum
from ..framework import changes
from ..framework.estimates import is_static, size_of
from ..framework.order import reorder
from ..framework.prune import needed_in_region
from ..framework.rewriter import narrow
from .linear import Linear, array_size, counted, inside, trip_count
from .users import Users

_NO_SCOPE = DeviceScope()

Sides = dict[tuple[Symbol, ...], Symbol]  # matrices, and what they make side by side


class LoopView:
    """One loop, with what is known of its body.

    Args:
        users: who takes what in the graph around it; they are notified of changes.
        node: the loop.
        sides: matrices that were put side by side, for other loops to use them too.

    Attributes:
        needed: the operations of the body that run, in order.
        kinds: the ops of these.
        demanded: the tensors inside whose histories are recorded.
        uses: how many operations of the body take a tensor or wait for it, results and histories included.
        histories: for tensors of the body the operation outside that gives its history.
        shared: what was built outside from values of all iterations, for several rewrites to take.
        parts: what is known of matrices that are put together in the body.
        is_stale: whether a loop variable was taken out since `refresh`.
        is_finished: whether `finish` was called, and nothing was changed since by a rewrite that calls it itself.
    """

    def __init__(self, users: Users, node: Operation, sides: Sides) -> None:
        assert isinstance(node.op, While)
        self.users = users
        self.graph = users.graph
        self.node = node
        self.op = node.op
        self.body = node.op.body
        self.sides = sides
        self._written: dict[tuple[Symbol, int], Symbol] = {}
        self._stacks: dict[Any, Symbol] = {}
        self._trips: Symbol | None = None
        self.shared: dict[Any, Symbol] = {}
        self.parts: dict[Any, bool] = {}
        self.is_finished = False
        self._counted: Linear | None = None
        self.refresh()

    def refresh(self) -> None:
        """Look at the loop again, after it was changed."""
        frame = self.node.outputs[-1]
        self._has_counted = self.is_stale = False
        takers = self.takers(frame)
        self.histories = {user.op.inner: user for user in takers if isinstance(user.op, History)}
        self.demanded = list(self.histories)
        self.needed = needed_in_region(self.body, self.demanded)
        self.kinds = frozenset([type(operation.op) for operation in self.needed])
        taken = [tensor for operation in self.needed for tensor in operation.inputs]
        awaited = [tensor for each in self.needed for source in each.control_inputs for tensor in source.outputs]
        self.uses: dict[Symbol, int] = Counter([*taken, *awaited, *self.body.results, *self.demanded])
        self._tested: set[Symbol] | None = None
        self._forms: dict[Symbol, Linear | None] = {}

    # --- what is known --------------------------------------------------------------------------------------

    @property
    def tested(self) -> set[Symbol]:
        """The tensors of the condition, loop variables among them, on which the end of the loop depends."""
        if self._tested is None:
            tested = needed_in_region(self.op.condition, self.demanded)
            self._tested = {tensor for operation in tested for tensor in operation.inputs}
            self._tested.update([*self.op.condition.results, *self.demanded])
        return self._tested

    @property
    def trips(self) -> Linear | None:
        """The trip count, if it is known before the loop starts; below zero stands for none."""
        if not self._has_counted:
            self._counted, self._has_counted = trip_count(self.node), True
        return self._counted

    @property
    def known_trips(self) -> int | None:
        """The trip count, if it is a known number."""
        known = None if self.trips is None else self.trips.known
        return None if known is None else max(0, known)

    def outer(self, tensor: Symbol) -> Symbol | None:
        """Return the tensor outside for which `tensor` stands, if it is captured."""
        return self.body.outer_of(tensor)

    def is_steady(self, tensor: Symbol) -> bool:
        """Test whether a tensor of the body is a constant, or stands for one outside."""
        return isinstance(tensor.operation.op, Constant) or self.outer(tensor) is not None

    def is_only_use(self, tensor: Symbol) -> bool:
        """Test whether a tensor of the body is used once."""
        return self.uses.get(tensor) == 1

    def form(self, tensor: Symbol) -> Linear | None:
        """Return the form of an integer of the body."""
        if tensor not in self._forms:
            self._forms[tensor] = inside(self.node, tensor)
        return self._forms[tensor]

    def first_place(self, index: Linear) -> int | None:
        """Return the smallest number that `index` is in any iteration, if it steps by one and that is known."""
        if abs(index.steps) != 1:
            return None
        if index.steps == 1:
            return self._resolved(index.start).known
        return None if self.trips is None else self._resolved(index.start.minus(self.trips).moved(1)).known

    def _resolved(self, form: Linear) -> Linear:
        """Return a form in terms of what another loop counts to, if this one runs as often, and runs at all."""
        for term, factor in form.terms:
            other = trip_count(term.operation) if not isinstance(term.spec, TensorSpec) else None
            if other is not None and self.trips == counted(term):
                return form.plus(Linear(0, 0, frozenset({(term, 1)})), -factor).plus(other, factor)
        return form

    def covers(self, index: Linear, size: Linear | None) -> bool:
        """Test whether `index` is each of 0, 1... `size` - 1 once, over the whole loop."""
        if size is None or self.trips is None or self.first_place(index) != 0:
            return False
        return size in (self.trips, self._clamped(), counted(self.node.outputs[-1]))

    def _clamped(self) -> Linear | None:
        known = self.known_trips
        return self.trips if known is None else Linear(0, known)

    def is_tested(self, position: int) -> bool:
        """Test whether the loop's condition reads loop variable `position`."""
        return self.op.condition.parameters[position] in self.tested

    def is_used(self, tensor: Symbol) -> bool:
        """Test whether anything outside takes a tensor of the graph around the loop."""
        return tensor in self.users.kept or bool(self.takers(tensor))

    def takers(self, tensor: Symbol) -> list[Operation]:
        """Return the operations outside that take a tensor of the graph around the loop."""
        self.users.touch(self.node)
        return self.users.takers(tensor)

    def drop(self, old: Symbol, new: Symbol) -> None:
        """Let operations and results of the graph around that take tensor `old` of it take `new`, another one."""
        for operation in self.graph.operations:
            if is_among(old, operation.inputs):
                self.users.touch(operation)
        changes.replace_in(self.graph, {old: new})

    # --- building -------------------------------------------------------------------------------------------

    def outside(self, like: Operation) -> AbstractContextManager[None]:
        """Build operations around the loop, on the device of `like`, of whose user's line they are."""
        return building(self.graph, like)

    @contextmanager
    def inside(self, like: Operation) -> Generator[None]:
        """Build operations in the body; what they take from outside is captured."""
        self.body.is_built = False
        try:
            with building(self.body, like):
                yield
        finally:
            self.body.is_built = True

    def trips_tensor(self) -> int | Symbol:
        """Return the trip count outside, for what runs before the loop; call it inside `outside`."""
        known = self.known_trips
        if known is not None:
            return known
        if self._trips is None:
            self._trips = self._count_trips()
        return self._trips

    def _count_trips(self) -> Symbol:
        trips = self.trips
        assert trips is not None
        value = self._value(trips)
        only = next(iter(trips.terms))
        if trips == Linear(0, 0, frozenset({only})) and not isinstance(only[0].spec, TensorSpec):
            return value  # a trip count is never below zero
        return symbol_of(maximum(value, 0))

    def _value(self, form: Linear) -> Symbol:
        total: Any = form.constant
        for tensor, factor in sorted(form.terms, key=lambda term: term[0].operation.index):
            number = self.number(tensor)
            scaled = number if factor == 1 else number * factor
            total = total + scaled if isinstance(total, Symbol) or total else scaled
        return symbol_of(convert_to_tensor(total, "int32"))

    def number(self, term: Symbol) -> Symbol:
        """Return a term of a `Linear`, int32."""
        return symbol_of(cast(term, "int32")) if isinstance(term.spec, TensorSpec) else build(TripCount(), term)

    def counter(self, direction: int, like: Operation) -> Symbol:
        """Add a loop variable that counts 0, 1... up or down to 0; return it as it is in the body."""
        with self.outside(like):
            start = convert_to_tensor(0, "int32") if direction == 1 else convert_to_tensor(self.trips_tensor()) - 1
        self.add_variable(symbol_of(start), lambda number: symbol_of(number + direction), like)
        return self.body.parameters[-1]

    def capture(self, outer: Symbol) -> Symbol:
        """Return the parameter that stands in the body for a tensor outside."""
        return changes.capture(self.body, outer)

    def constant_outside(self, tensor: Symbol) -> Symbol | None:
        """Return a tensor outside with the value of the body's tensor in each iteration, if that needs no computing."""
        if isinstance(tensor.operation.op, Constant) and tensor.operation.graph is self.body:
            return self.graph.adopt(tensor.operation.op, (), (tensor.spec,), tensor.operation).outputs[0]
        return self.outer(tensor)

    # --- what all iterations make ---------------------------------------------------------------------------

    def history(self, tensor: Symbol) -> Symbol:
        """Return the values of a tensor of the body, one for each iteration in order."""
        known = self.histories.get(tensor)
        if known is None:
            spec = History(tensor).infer()
            known = self.graph.adopt(History(tensor), [self.node.outputs[-1]], (spec,), tensor.operation)
            self.histories[tensor] = known
        return known.outputs[0]

    def written(self, tensor: Symbol, place: Symbol) -> Symbol:
        """Return the values of a tensor of the body, each at the number that `place` is: 0, 1... in some order."""
        form = self.form(place)
        assert form is not None
        assert self.first_place(form) == 0
        key = (tensor, form.steps)
        if key not in self._written:
            self._written[key] = self._write(tensor, place, form.steps)
        return self._written[key]

    def written_at_all(self, tensor: Symbol) -> Symbol | None:
        """Return the result of `written` for a tensor, in whatever order; None if it was not called for that."""
        return next((array for (known, _), array in self._written.items() if known is tensor), None)

    def _write(self, tensor: Symbol, place: Symbol, direction: int) -> Symbol:
        assert isinstance(tensor.spec, TensorSpec)
        if direction == 1:
            return self.history(tensor)
        size = self.known_trips
        with self.outside(tensor.operation):
            count = convert_to_tensor(self.trips_tensor(), "int32")
            empty = build(ArrayNew(tensor.spec, size, False), count)
        return self.add_variable(empty, lambda array: build(ArrayWrite(), array, place, tensor), tensor.operation)

    def stack(self, array: Symbol, element: TensorSpec, like: Operation) -> Symbol:
        """Return all elements of an array outside along a new first axis."""
        key = (array, None)
        if key not in self._stacks:
            source = array.operation
            if isinstance(source.op, ArrayUnstack):
                return source.inputs[0]
            size = array_size(array)
            count = None if size is None else size.known
            shape = None if element.shape is None else (count, *element.shape)
            stacked = self.graph.adopt(ArrayStack(element), [array], (TensorSpec(shape, element.dtype),), like)
            self._stacks[key] = stacked.outputs[0]
        return self._stacks[key]

    def window(self, array: Symbol, index: Linear, element: TensorSpec, like: Operation) -> Symbol | None:
        """Return the elements of an array outside that an index inside goes through, in their order in the array."""
        first = self.first_place(index)
        if first is None or first < 0 or self.trips is None or may_lack_elements(array):
            return None
        if self.covers(index, array_size(array)):
            return self.stack(array, element, like)
        key = (array, first)
        if key not in self._stacks:
            with self.outside(like):
                count = convert_to_tensor(self.trips_tensor(), "int32")
                start = convert_to_tensor(first, "int32")
                self._stacks[key] = build(ArrayWindow(element, self.known_trips), array, start, count)
        return self._stacks[key]

    # --- changing -------------------------------------------------------------------------------------------

    def become(self, tensor: Symbol, op: Op, inputs: Sequence[Symbol], like: Operation | None = None) -> Operation:
        """Make a tensor, with all its users, the result of another operation, of the graph of `inputs`."""
        old = tensor.operation
        graph = inputs[0].operation.graph
        operation = graph.adopt(op, inputs, (tensor.spec,), like or old)
        changes.release_output(tensor)
        changes.set_outputs(operation, [tensor])
        self.users.touch(old)
        if graph is self.graph:
            self._narrow(operation)
        return operation

    def _narrow(self, operation: Operation) -> None:
        """Give an operation around the loop, and what is computed of it there, the specs that follow from inputs."""
        pending = [operation]
        while pending:
            pending += [taker for output in narrow(pending.pop()) for taker in self.takers(output)]

    def replace(self, old: Symbol, new: Symbol) -> None:
        """Let all that takes tensor `old` of the body take `new` instead; so do histories."""
        changes.replace_in(self.body, {old: new})
        taker = self.histories.pop(old, None)
        if taker is not None:
            changes.set_op(taker, History(new))
            self.histories.setdefault(new, taker)

    def read(self, tensor: Symbol, array: Symbol, index: Symbol) -> None:
        """Make a tensor of the body the element at `index` of an array outside."""
        device = tensor.operation.device
        self.become(tensor, ArrayRead(), [self.capture(array), index]).device = device

    def add_variable(self, init: Symbol, update: Callable[[Symbol], Symbol], like: Operation) -> Symbol:
        """Add a loop variable that starts at `init`; return its final value."""
        for region in self.op.regions:
            parameter = region.add_parameter(init.spec, like.name, like.location)
            parameter.operation.device = like.device
        with self.inside(like):
            result = update(self.body.parameters[-1])
        return changes.insert_variable(self.node, init, result)

    def remove_variable(self, position: int) -> None:
        """Take out a loop variable; its final value must have become something else, or be of no use."""
        changes.remove_variable(self.node, position)

    def finish(self) -> None:
        """Leave out what is of no use any more, bring inputs into line, and put operations in order."""
        initial = self.node.inputs[: self.op.carried]
        changes.set_own_inputs(self.node, initial)
        self.refresh()
        for region in self.op.regions:
            kept = set(self.needed if region is self.body else needed_in_region(region, self.demanded))
            used = {tensor for operation in kept for tensor in operation.inputs} | {*region.results, *self.demanded}
            region.drop_captures(used)
            region.keep_only(kept)
            reorder(region, {})
        changes.set_own_inputs(self.node, initial)
        self.users.is_out_of_order = True
        self.users.touch(self.node)
        self.needed.sort(key=attrgetter("index"))
        self.is_finished = True


@contextmanager
def building(graph: Graph, like: Operation) -> Generator[None]:
    """Build operations into a graph that is being rewritten: they get the device and the line of `like`."""
    shared, graph.constants = graph.constants, {}  # those may be on another device, or behind what needs them
    count, captured = len(graph.operations), len(graph.captures)
    try:
        with graph.as_default(), graph.in_scope(_NO_SCOPE), building_at(like.location):
            yield
    finally:
        graph.constants = shared
        for operation in graph.operations[count:]:
            if not isinstance(operation.op, Parameter):
                operation.device, operation.location = like.device, like.location
        for outer, parameter in graph.captures[captured:]:
            parameter.operation.device = outer.operation.device  # as `changes.capture` does


def may_lack_elements(array: Symbol) -> bool:
    """Test whether elements of an array may be missing: then the read in the loop names the missing one."""
    return isinstance(array.operation.op, (ArrayNew, ArrayWrite))


__all__ = ["LoopView", "Sides", "building", "is_static", "size_of"]
