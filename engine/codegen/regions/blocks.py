"""Prints loops, branches and straight runs of operations into a native function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...control_flow.cond import Branch
from ...control_flow.frames import History, Saved, TripCount
from ...control_flow.while_loop import While
from ...graph.graph import Operation, Parameter
from ...graph.region import Region
from ...graph.spec import FrameSpec
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ...ops.containers.indexed_slices import AssignRows
from ...passes.framework.prune import frame_users, needed_in_region
from ..expression.expression import UnsupportedError
from .forms import Context, count_inputs, print_form
from .function import Array, Complex, Elements, Ragged, Scalar, Slots, State, Value, buffers_of
from .pieces import runs_of
from .recording import print_recordings, recorded_value, start_records
from .variables import check_in_use


def taken_inputs(operation: Operation) -> Sequence[Symbol]:
    """Return the inputs whose values native code needs: shapes are known."""
    return operation.inputs[: count_inputs(operation.op)]


_LastUses = Mapping[Operation, Sequence[Symbol]]
_FrameUsers = Mapping[Symbol, Sequence[Operation]]


class Block:
    """The operations of a graph or region, and the values known so far."""

    def __init__(self, context: Context, values: dict[Symbol, Value]) -> None:
        self.context = context
        self.function = context.function
        self.values = values
        self.trips: dict[Symbol, str] = {}  # for the frame of a loop, how many iterations it made
        self.saved: dict[tuple[Symbol, Symbol], Value] = {}  # of branches, by frame and tensor
        self.histories: dict[tuple[Symbol, Symbol], Value] = {}  # of loops
        self.targets: dict[Symbol, Array] = {}  # where results are wanted
        self._held: dict[Symbol, Value] = {}
        self._used: set[Symbol] = set()  # as more than the value of which rows are written

    def print_operations(self, operations: Sequence[Operation], kept: Iterable[Symbol]) -> None:
        """Print in order; what is not `kept` gives its memory back after its last use."""
        last = _last_uses(operations)
        outliving, users = set(kept), frame_users(operations)
        self._used = outliving.union(*[o.inputs[1:] if type(o.op) is AssignRows else o.inputs for o in operations])
        for is_piece, run in runs_of(operations, self.values):
            if is_piece:
                self._print_piece(run, outliving, last, users)
                continue
            for operation in run:
                self._print_one(operation, outliving, last, users)

    def _print_piece(
        self, run: Sequence[Operation], outliving: set[Symbol], last: _LastUses, users: _FrameUsers
    ) -> None:
        """Print operations on scalars as a function of their own."""
        pieces = self.context.pieces
        with pieces.piece():
            for operation in run:
                self._print_one(operation, outliving, last, users, is_in_piece=True)
            used_up = {tensor for operation in run for tensor in last.get(operation, ())} - outliving
            made = [tensor for operation in run for tensor in operation.outputs if tensor not in used_up]
            pieces.give([self.values[tensor] for tensor in made if tensor in self.values])

    def _print_one(
        self,
        operation: Operation,
        outliving: set[Symbol],
        last: _LastUses,
        users: _FrameUsers,
        is_in_piece: bool = False,
    ) -> None:
        if isinstance(operation.op, Parameter) or (operation.outputs and operation.outputs[0] in self.values):
            return
        self.context.count(operation, is_in_piece)
        for tensor, value in self._printed(operation, users).items():
            self.values[tensor] = self._held[tensor] = value
            self.function.hold(value)
            if is_in_piece:
                self.context.pieces.note(value)
        for tensor in last.get(operation, ()):
            if tensor not in outliving and tensor in self._held:
                self.function.release(self._held.pop(tensor))

    def close(self) -> None:
        """Give back the memory of everything made here."""
        for value in self._held.values():
            self.function.release(value)
        self._held.clear()

    def value_of(self, tensor: Symbol) -> Value:
        value = self.values.get(tensor)
        if isinstance(value, Elements) and not value.is_there:
            raise UnsupportedError("the elements of a TensorArray are used after a write")
        check_in_use(value)
        if value is not None:
            return self.context.pieces.reach(value)
        if isinstance(tensor.operation.op, Constant) and (tensor.shape == () or tensor in self.context.constants):
            return print_form(self.context, tensor.operation, ())[0]
        raise UnsupportedError(f"the value of {tensor.operation.name!r}")

    def _printed(self, operation: Operation, users: Mapping[Symbol, Sequence[Operation]]) -> Mapping[Symbol, Value]:
        try:
            return self._print(operation, users)
        except UnsupportedError as error:
            error.operation = error.operation or operation
            raise

    def _print(self, operation: Operation, users: Mapping[Symbol, Sequence[Operation]]) -> Mapping[Symbol, Value]:
        op = operation.op
        if isinstance(op, While):
            return print_loop(self, op, operation, users.get(operation.outputs[-1], ()))
        if isinstance(op, Branch):
            return _print_branch(self, op, operation, users.get(operation.outputs[-1], ()))
        if isinstance(op, TripCount):
            count = self.trips.get(operation.inputs[0])
            if count is None:
                raise UnsupportedError("a trip count from outside")
            return {operation.outputs[0]: Scalar(self.function.let(f"trunc i64 {count} to i32"), "i32")}
        if isinstance(op, Saved):
            return {operation.outputs[0]: self.saved[operation.inputs[0], op.inner]}
        if isinstance(op, History):
            return {operation.outputs[0]: self.histories[operation.inputs[0], op.inner]}
        if isinstance(op, Constant) and op.value.shape != ():
            return {}
        inputs = [self.value_of(tensor) for tensor in taken_inputs(operation)]
        if operation.effects:
            printed = self.context.variables.printed(operation, inputs, operation.outputs[0] in self._used)
            return dict(zip(operation.outputs, printed, strict=True))
        self.context.targets = self.targets
        return dict(zip(operation.outputs, print_form(self.context, operation, inputs), strict=True))


def _last_uses(operations: Sequence[Operation]) -> dict[Operation, list[Symbol]]:
    """Map each operation to the tensors made among `operations` that it is the last to take (or makes for nothing)."""
    owned = {tensor for operation in operations for tensor in operation.outputs}
    found: dict[Operation, list[Symbol]] = {}
    seen: set[Symbol] = set()
    for operation in reversed(operations):
        for tensor in (*operation.inputs, *operation.outputs):
            if tensor in owned and tensor not in seen:
                seen.add(tensor)
                found.setdefault(operation, []).append(tensor)
    return found


# --- variables ------------------------------------------------------------------------------------------------------


class _Variable:
    """A loop variable: a register, or a pointer to one of two places that take turns."""

    def __init__(self, block: Block, initial: Value, parameter: Symbol) -> None:
        function = block.function
        self.function = function
        self.initial = initial
        self.places: tuple[Array, Array] | None = None
        if isinstance(initial, (Complex, Elements, Ragged)):
            raise UnsupportedError("a TensorArray, or complex numbers, among loop variables")
        self.state = initial.state if isinstance(initial, Slots) else None
        if isinstance(initial, Slots):
            return
        if isinstance(initial, Scalar):
            self.kind, self.slot = initial.kind, function.slot(initial.kind, initial.name)
            return
        self.kind, self.slot = "ptr", function.slot("ptr", initial.pointer)
        self.shape, self.element = initial.shape, initial.kind
        self.places = (function.allocate(initial.kind, initial.shape), function.allocate(initial.kind, initial.shape))
        self.buffers = set(initial.buffers)
        for place in self.places:
            function.hold(place)
            self.buffers |= place.buffers

    def load(self) -> Value:
        """Return the current value."""
        if self.state is not None:
            return Slots(self.state, self.state.version)
        register = self.function.let(f"load {self.kind}, ptr {self.slot}")
        if self.places is None:
            return Scalar(register, self.kind)
        return Array(register, self.element, self.shape, frozenset(self.buffers))

    def target(self, current: Value) -> Array | None:
        """Return the place that does not hold the current value."""
        if self.places is None:
            return None
        assert isinstance(current, Array)
        first, second = (place.pointer for place in self.places)
        is_first = self.function.let(f"icmp eq ptr {current.pointer}, {first}")
        pointer = self.function.let(f"select i1 {is_first}, ptr {second}, ptr {first}")
        return Array(pointer, self.element, self.shape, self.places[0].buffers | self.places[1].buffers)

    def settled(self, value: Value, current: Value, target: Array | None) -> str:
        """Return the value to store in the slot for the next iteration.

        An array is stored as its address, after a copy unless the address is a variable's own.
        """
        if self.state is not None:
            if value != Slots(self.state, self.state.version):
                raise UnsupportedError("a TensorArray whose values are no chain")
            return ""
        if target is None:
            if not isinstance(value, Scalar) or value.kind != self.kind:
                raise UnsupportedError("a loop variable that changes its kind")
            return value.name
        if not isinstance(value, Array) or value.shape != self.shape or value.kind != self.element:
            raise UnsupportedError("a loop variable that changes its shape")
        assert isinstance(current, Array)
        if value.pointer in (current.pointer, target.pointer):
            return value.pointer
        if not value.buffers and value.pointer in self.function.outside:
            return value.pointer
        self.function.copy_bytes(target.pointer, value.pointer, value.bytes)
        return target.pointer

    def store(self, register: str) -> None:
        if self.state is not None:
            return
        self.function.line(f"store {self.kind} {register}, ptr {self.slot}")

    def close(self, result: Value) -> None:
        """Close the loop: from now on only `result` needs the places."""
        self.function.hold(result)
        for place in self.places or ():
            self.function.release(place)


def print_loop(block: Block, op: While, operation: Operation, users: Sequence[Operation]) -> dict[Symbol, Value]:
    """Print a loop, which records what `users` take from its frame; return the values of its results."""
    context, function = block.context, block.function
    if op.recomputed_bytes:
        raise UnsupportedError("what is computed again is counted as Python runs")
    recorded = list(dict.fromkeys(user.op.inner for user in users if isinstance(user.op, History)))
    starts = start_records(context, recorded)
    inputs = [None if isinstance(t.spec, FrameSpec) else block.value_of(t) for t in operation.inputs]
    captured_states = _states(inputs)
    initial = zip(inputs[: op.carried], op.body.parameters, strict=True)
    variables = [_Variable(block, _known(value), parameter) for value, parameter in initial]
    trips = context.loop_trips[operation] = function.slot("i64", "0")
    before_loop, first_line = context.work, len(function.lines)
    head, done = function.fresh("test"), function.fresh("leave")
    context.variables.loops += 1
    function.jump(head)
    function.begin(head)
    _print_iteration(block, op, inputs, variables, recorded, done)
    context.variables.loops -= 1
    for value in inputs:
        check_in_use(value)  # the next iteration does
    changing = [variable.state for variable in variables if variable.state is not None]
    if any(state.version != version for state, version in captured_states.items() if state not in changing):
        raise UnsupportedError("a TensorArray from outside is written in each iteration of a loop")
    function.combine("i64", trips, 1, "add")
    context.tick(context.work - before_loop)
    if context.exits and context.exits[-1] >= first_line:
        context.exits.append(len(function.lines))  # an exit may follow all of an earlier iteration
    function.jump(head)
    function.begin(done)
    frame = operation.outputs[-1]
    block.trips[frame] = function.let(f"load i64, ptr {trips}")
    for tensor, start in starts.items():
        block.histories[frame, tensor] = recorded_value(context, tensor, start)
    results = dict(zip(operation.outputs[:-1], (variable.load() for variable in variables), strict=True))
    for variable, value in zip(variables, results.values(), strict=True):
        variable.close(value)
    for value in results.values():
        function.disown(value)
    return results


def _print_iteration(
    block: Block,
    op: While,
    inputs: Sequence[Value | None],
    variables: Sequence[_Variable],
    recorded: Sequence[Symbol],
    done: str,
) -> None:
    """Print the condition, the branch out of the loop to `done`, and the body with the new values of the variables."""
    context, function = block.context, block.function
    current = [variable.load() for variable in variables]
    split = op.carried + len(op.condition.captures)
    test = Block(context, _bound(op.condition, current, inputs[op.carried : split]))
    test.trips, test.saved = block.trips, block.saved
    in_test = [tensor for tensor in recorded if tensor.graph is op.condition]
    test.print_operations(needed_in_region(op.condition, in_test), [*op.condition.results, *in_test])
    result = test.value_of(op.condition.results[0])
    assert isinstance(result, Scalar)
    print_recordings(context, in_test, test.value_of)
    body = function.fresh("round")
    function.branch(result.name, body, done)
    function.begin(body)
    inside = Block(context, _bound(op.body, current, inputs[split:]))
    targets = [variable.target(value) for variable, value in zip(variables, current, strict=True)]
    for tensor, target in zip(op.body.results, targets, strict=True):
        if target is not None:
            inside.targets.setdefault(tensor, target)
    in_body = [tensor for tensor in recorded if tensor.graph is op.body]
    inside.print_operations(needed_in_region(op.body, in_body), [*op.body.results, *in_body])
    print_recordings(context, in_body, inside.value_of)
    following = [
        variable.settled(inside.value_of(result), value, target)
        for variable, result, value, target in zip(variables, op.body.results, current, targets, strict=True)
    ]
    inside.close()
    test.close()
    for variable, register in zip(variables, following, strict=True):
        variable.store(register)


def _states(values: Sequence[Value | None]) -> dict[State, int]:
    """Return the states of TensorArrays among a loop's inputs, with their versions.

    Raises:
        UnsupportedError: one comes in two ways, so that it would change under the other's hands.
    """
    found: dict[State, int] = {}
    for value in values:
        if not isinstance(value, Slots):
            continue
        if value.state in found or value.version != value.state.version:
            raise UnsupportedError("a TensorArray that a loop takes twice")
        found[value.state] = value.version
    return found


def _known(value: Value | None) -> Value:
    if value is None:
        raise UnsupportedError("a frame among loop variables")
    return value


def _bound(region: Region, parameters: Sequence[Value], captured: Sequence[Value | None]) -> dict[Symbol, Value]:
    """Return the values of a region's parameters and captures."""
    values = dict(zip(region.parameters, parameters, strict=True))
    for (_, parameter), value in zip(region.captures, captured, strict=True):
        if value is None:
            raise UnsupportedError("a frame that is captured")
        values[parameter] = value
    return values


def _print_branch(block: Block, op: Branch, operation: Operation, users: Sequence[Operation]) -> dict[Symbol, Value]:
    """Print a branch: each region's results go to common slots."""
    function = block.function
    wanted = list(dict.fromkeys(user.op.inner for user in users if isinstance(user.op, Saved)))
    choice = block.value_of(operation.inputs[0])
    if not isinstance(choice, Scalar):
        raise UnsupportedError("a choice that is no scalar")
    inputs = [block.value_of(tensor) for tensor in operation.inputs[1:]]
    labels = [function.fresh("case") for _ in op.regions]
    done = function.fresh("joined")
    _print_choice(block, choice, labels)
    joined = _Joined(block, inputs)
    start = 0
    for region, label in zip(op.regions, labels, strict=True):
        function.begin(label)
        captured = inputs[start : start + len(region.captures)]
        start += len(region.captures)
        joined.print_region(region, captured, [tensor for tensor in wanted if tensor.graph is region])
        function.jump(done)
    function.begin(done)
    return joined.finish(operation)


class _Joined:
    """The regions of a branch, whose results are joined: by slots for values, by versions for what they write.

    Args:
        block: around the branch.
        inputs: the values that its regions take.
    """

    def __init__(self, block: Block, inputs: Sequence[Value]) -> None:
        self._block, self._context, self._function = block, block.context, block.function
        self._insides: list[Block] = []
        self._states = {value.state: value.state.version for value in inputs if isinstance(value, Slots)}
        self._latest = dict(self._states)
        self._versions = self._context.variables.versions()
        self._last_versions = dict(self._versions)
        self._slots: list[str] = []
        self._like: list[Value] = []  # the results of the first region
        self._buffers: list[set[object]] = []  # of the results of all regions
        self._saved: dict[Symbol, tuple[str, Value]] = {}

    def print_region(self, region: Region, captured: Sequence[Value], demanded: Sequence[Symbol]) -> None:
        """Print a region, which begins with the versions from before the branch, and write its results to the slots.

        Args:
            region: which.
            captured: the values of its captures.
            demanded: tensors of it that are saved for a gradient.
        """
        function = self._function
        for state, version in (*self._states.items(), *self._versions.items()):
            state.version = version
        inside = Block(self._context, _bound(region, (), captured))
        self._insides.append(inside)
        inside.print_operations(needed_in_region(region, demanded), [*region.results, *demanded])
        results = [inside.value_of(result) for result in region.results]
        if not self._slots:
            self._slots = [function.slot(_slot_kind(value)) for value in results]
            self._like = list(results)
            self._buffers = [set(buffers_of(value)) for value in results]
        for state in self._states:
            self._latest[state] = max(self._latest[state], state.version)
        for held in self._versions:
            self._last_versions[held] = max(self._last_versions[held], held.version)
        for slot, value, first, places in zip(self._slots, results, self._like, self._buffers, strict=True):
            _check_alike(value, first)
            if isinstance(value, Slots):
                _check_latest(value)
                continue
            places |= set(buffers_of(value))
            function.line(f"store {_slot_kind(value)} {_register(value)}, ptr {slot}")
        for tensor in demanded:
            value = inside.value_of(tensor)
            if isinstance(value, Slots):
                raise UnsupportedError("a TensorArray that is saved")
            slot = function.slot(_slot_kind(value))
            function.line(f"store {_slot_kind(value)} {_register(value)}, ptr {slot}")
            self._saved[tensor] = (slot, value)

    def finish(self, operation: Operation) -> dict[Symbol, Value]:
        """Read the slots behind all regions; return the values of the branch's outputs."""
        block, function = self._block, self._function
        for tensor, (slot, value) in self._saved.items():
            self._context.initialise(slot, value)
            saved = _from_slot(block, slot, value, set(buffers_of(value)))
            block.saved[operation.outputs[-1], tensor] = saved
            function.hold(saved)
        for state, version in self._latest.items():
            state.version = version if version == self._states[state] else version + 1
        for held, version in self._last_versions.items():
            held.version = version if version == self._versions[held] else version + 1
        joined = zip(operation.outputs[:-1], self._slots, self._like, self._buffers, strict=True)
        found = {tensor: _from_slot(block, slot, value, places) for tensor, slot, value, places in joined}
        for value in found.values():
            function.hold(value)
        for inside in self._insides:
            inside.close()
        for value in found.values():
            function.disown(value)
        return found


def _print_choice(block: Block, choice: Scalar, labels: Sequence[str]) -> None:
    """Jump to the region that is chosen; integers are clamped."""
    function = block.function
    if choice.kind == "i1":
        function.branch(choice.name, labels[0], labels[-1])
        return
    if choice.kind not in ("i32", "i64"):
        raise UnsupportedError("a choice of another kind")
    low = function.let(f"icmp slt {choice.kind} {choice.name}, 0")
    clamped = function.let(f"select i1 {low}, {choice.kind} 0, {choice.kind} {choice.name}")
    cases = " ".join(f"{choice.kind} {k}, label %{label}" for k, label in enumerate(labels[:-1]))
    function.line(f"switch {choice.kind} {clamped}, label %{labels[-1]} [{cases}]")


def _check_latest(value: Slots) -> None:
    if value.version != value.state.version:
        raise UnsupportedError("a branch gives an earlier value of a TensorArray")


def _slot_kind(value: Value) -> str:
    if isinstance(value, (Complex, Elements, Ragged)):
        raise UnsupportedError("a TensorArray, or complex numbers, among a branch's results")
    if isinstance(value, Slots):
        return "i8"  # unused: the state is where it was
    return value.kind if isinstance(value, Scalar) else "ptr"


def _register(value: Value) -> str:
    assert isinstance(value, (Scalar, Array))
    return value.name if isinstance(value, Scalar) else value.pointer


def _check_alike(value: Value, other: Value) -> None:
    same = type(value) is type(other) and value.kind == other.kind
    if isinstance(value, Slots) and isinstance(other, Slots):
        same = value.state is other.state
    if not same or (isinstance(value, Array) and isinstance(other, Array) and value.shape != other.shape):
        raise UnsupportedError("branches with different results")


def _from_slot(block: Block, slot: str, like: Value, places: set[Any]) -> Value:
    if isinstance(like, Slots):
        return Slots(like.state, like.state.version)
    if isinstance(like, Scalar):
        return Scalar(block.function.let(f"load {like.kind}, ptr {slot}"), like.kind)
    assert isinstance(like, Array)
    pointer = block.function.let(f"load ptr, ptr {slot}")
    return Array(pointer, like.kind, like.shape, frozenset(places))
