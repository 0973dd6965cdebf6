"""Prints a pruned graph as straight-line Python: a loop is a Python ``while``, a branch an ``if``.

No interpreter per operation and no dictionary per step remain. Values are freed after their last use; histories exist
only where an operation of the step asks for them.
"""

from __future__ import annotations

import builtins
import functools
import keyword
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.dtypes import name_of
from ..common.identity import is_among
from ..control_flow.call import Call, Recorded, Recursion
from ..control_flow.cond import Branch
from ..control_flow.frames import History, Saved, TripCount
from ..control_flow.region_op import RegionOp
from ..control_flow.while_loop import While
from ..graph.graph import Operation, Parameter, Placeholder
from ..graph.op import Op, without_bare_strings
from ..graph.spec import FrameSpec, TensorSpec
from ..graph.state.variable_ops import Assign, ReadVariable
from ..graph.state.writing_rows import write_in_memory
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..ops.containers.array_value import ArrayValue
from ..ops.containers.indexed_slices import AssignRows
from ..ops.containers.tensor_arrays import ArrayRead, ArrayStack
from ..ops.internal.fused import Fused, HorizontallyFused
from ..passes.framework.prune import frame_users
from ..passes.memory.storage import Buffer, is_fresh, laid_out_first, last_uses
from ..passes.memory.updates import Updates
from ..queues.writing import hold_interrupts
from .calls import PrintedBodies, print_call
from .parallel_schedule import print_group
from .printed import Frame, Origin
from .records import Record
from .regions import BranchPrinter, LoopPrinter
from .stepwise import Stepwise, can_run
from .timing import Timing, is_timed, now, operation_callback, varying

if TYPE_CHECKING:
    from ..codegen.regions.region import NativeRegion

_LONG_RUN = 400  # operations, of which machine code is made; no text besides
_NOT_IN_NAMES = re.compile(r"\W+", re.ASCII)


class Printer:
    """Source text under construction, and the objects to which its global names refer.

    Attributes:
        bindings: the globals of the program.
        origins: for each line number, the operation that it computes and the names of its inputs.
        by_run: operations are printed as calls of their `run`, for a device to which these can be translated.

    Args:
        kernels: compiled kernels of fused operations.
        plan: buffers that results are written into.
        guard: called after each operation with it, its inputs and its outputs.
        rows_in_place: writes of rows of variables that need no copy of these.
        last_reads: reads of elements of histories that nothing reads again.
        timing: gets the times of each operation and iteration.
        natives: loops that are compiled as a whole.
        in_rows: what loops record in the rows of one array (see `records`).
        in_slots: results that are computed in the slot of an array, with the operations that write them there.
        groups: operations that run side by side, as they stand in a row.
        updates: updates of arrays that need no copy.
    """

    def __init__(
        self,
        kernels: Mapping[Operation, Any] | None = None,
        plan: Mapping[Symbol, Buffer] | None = None,
        guard: Callable[..., None] | None = None,
        rows_in_place: Collection[Operation] = (),
        last_reads: Collection[Operation] = (),
        timing: Timing | None = None,
        natives: Mapping[Operation, NativeRegion] | None = None,
        in_rows: Collection[Symbol] = (),
        in_slots: Mapping[Symbol, Operation] | None = None,
        groups: Sequence[Sequence[Operation]] = (),
        updates: Updates | None = None,
    ) -> None:
        self.guard = guard
        self.updates = updates or Updates()
        self.natives = natives or {}
        self.in_runs: set[Operation] = set()  # what is printed already, as part of a native run
        self.groups = {group[0]: group for group in groups}
        self.ran: dict[Operation, tuple[str, str]] = {}  # the result of a piece, and the call that runs it again
        self.in_rows = in_rows
        self.in_slots = in_slots or {}
        self.timing = timing
        self.by_run = False
        self.rows_in_place = rows_in_place
        self.shares_variables = False  # whether other steps read variables while this one runs
        self.last_reads = last_reads
        self.kernels = kernels or {}
        self.plan = plan or {}
        self.bindings: dict[str, Any] = {"np": np}
        self.origins: dict[int, Origin] = {}
        self.rare: dict[str, tuple[int, int]] = {}  # functions that hardly ever run, with their lines
        self.bodies = PrintedBodies()
        self.stored: set[Symbol] = set()  # values that variables hold without a copy
        self.received: set[Symbol] = set()  # large values of other tasks that nothing takes but what is printed now
        self.first_write: Operation | None = None  # of several, between which no interrupt is raised
        self.has_begun_to_write = False  # what is printed comes behind it
        self._functions: list[Function] = []
        # Names in use; those that were wanted again, with the number up to which there are others like them.
        self._used: dict[str, int] = dict.fromkeys(("np", "stats", "step", "copied", *dir(builtins)), 1)
        self._bound: dict[int, str] = {}

    # --- names ----------------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """Return a name that is not used yet."""
        name = _as_name(hint.rpartition("/")[2])
        candidate, count = name, self._used.get(name, 0)
        while candidate in self._used:
            count += 1
            candidate = f"{name}_{count}"
        self._used[name] = count
        self._used[candidate] = 1
        return candidate

    def bind(self, hint: str, value: Any) -> str:
        """Return a global name for `value`; the same object keeps its name."""
        name = self._bound.get(id(value))
        if name is None:
            name = self._bound[id(value)] = self.fresh(hint)
            self.bindings[name] = value
        return name

    # --- programs -------------------------------------------------------------------------------------------

    def print_step(
        self, operations: Sequence[Operation], feeds: Sequence[Symbol], fetches: Sequence[Symbol], copied: set[Symbol]
    ) -> str:
        """Print the source of ``step(*feeds)``, which returns the fetches as a tuple."""
        function = Function(self, "step")
        names: dict[Symbol, str] = {}
        for tensor in feeds:
            names[tensor] = self.fresh(tensor.operation.name)
        function.arguments = list(names.values())
        body = Block(function, names, 1)
        body.print_operations(operations, set(fetches))
        copied = copied | self.stored
        given = [names[tensor] for tensor in fetches]
        first = {name: position for position, name in reversed(list(enumerate(given)))}
        results = [
            f"copied({name})" if tensor in copied or first[name] < position else name
            for position, (tensor, name) in enumerate(zip(fetches, given, strict=True))
        ]
        body.line(f"return ({', '.join(results)}{',' if len(results) == 1 else ''})")
        self._functions.append(function)
        return self.assemble()

    def add_function(self, function: Function) -> None:
        self._functions.append(function)

    def reserve(self, names: Iterable[str]) -> None:
        """Keep `names` for what the printed code is given by other means."""
        self._used.update(dict.fromkeys(names, 1))

    def is_native(self, operations: Sequence[Operation]) -> bool:
        """Test whether all of a step is one native region."""
        return any(operation in self.natives and self.natives[operation].plan.is_whole for operation in operations)

    def assemble(self) -> str:
        """Return the source of all functions; `origins` and `rare` are known from then on."""
        lines: list[str] = []
        for function in self._functions:
            first = len(lines)
            lines.append(f"def {function.name}({', '.join(function.arguments)}):")
            for text, origin in function.lines:
                lines.append(text)
                if origin is not None:
                    self.origins[len(lines)] = origin
            if function.is_rare:
                self.rare[function.name] = (first, len(lines))
            lines.append("")
        return "\n".join(lines)


@functools.lru_cache(4096)
def _as_name(hint: str) -> str:
    """Return a name of Python like a hint."""
    name = _NOT_IN_NAMES.sub("_", hint) or "value"
    return f"v_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


class Function:
    """A Python function under construction."""

    def __init__(self, printer: Printer, name: str, is_rare: bool = False) -> None:
        self.printer = printer
        self.name = name
        self.arguments: list[str] = []
        self.lines: list[tuple[str, Origin | None]] = []
        self.is_called = False  # whether the step's own function calls it, maybe more than once
        self.is_rare = is_rare  # whether it hardly ever runs: machine code does the same, or its inputs are dead


class Block:
    """Lines at one indentation, over one graph or region."""

    def __init__(
        self,
        function: Function,
        names: dict[Symbol, str],
        depth: int,
        loops: tuple[tuple[Operation, str], ...] = (),
    ) -> None:
        self.function = function
        self.printer = function.printer
        self.names = names
        self.depth = depth
        self.loops = loops
        self.frames: dict[Symbol, Frame] = {}
        self.slots: dict[Symbol, str] = {}  # where results that are recorded in rows are written
        self._dying: Collection[Symbol] = ()  # what nothing uses after the operation that is printed now

    def line(self, text: str, origin: tuple[Operation, Sequence[str]] | None = None) -> None:
        known = None if origin is None else Origin(*origin, self.loops)
        self.function.lines.append(("    " * self.depth + text, known))

    def print_operations(self, operations: Sequence[Operation], kept: Iterable[Symbol]) -> None:
        """Print `operations` in order, freeing what is not `kept` after its last use."""
        dying, users = last_uses(operations, kept), frame_users(operations)
        for operation in operations:
            if isinstance(operation.op, Parameter) or (operation.outputs and operation.outputs[0] in self.names):
                continue
            native = self.printer.natives.get(operation)
            self._print_hold(operation, native)
            if native is not None and native.plan.run:
                self._print_run(native)
                continue
            if operation in self.printer.in_runs:
                self._free(dying.get(operation, ()))
                continue
            if operation in self.printer.groups:
                print_group(self, self.printer.groups[operation])
            began = self._print_begin(operation)
            self._dying = dying.get(operation, ())
            self.print_operation(operation, users.get(operation.outputs[-1], ()) if operation.outputs else ())
            self._print_end(operation, began)
            if operation in self.printer.ran:
                self.line(f"del {self.printer.ran[operation][0]}")
            if self.printer.guard is not None:
                self._print_guard(operation, self.printer.guard)
            self._free(dying.get(operation, ()))

    def _print_hold(self, operation: Operation, native: NativeRegion | None) -> None:
        """Print, before the first write of the step, what holds interrupts back until all are done."""
        printer = self.printer
        if printer.first_write is None:
            return
        together = [operation, *printer.groups.get(operation, ()), *(native.plan.run if native is not None else ())]
        if printer.first_write in together:
            printer.first_write, printer.has_begun_to_write = None, True
            self.line(f"{printer.bind('hold_interrupts', hold_interrupts)}()")

    def _print_run(self, native: NativeRegion) -> None:
        """Print operations in a row that are compiled as a whole; the function beside it runs only if that can't."""
        printer, plan = self.printer, native.plan
        taken = dict.fromkeys([*plan.inputs, *[tensor for operation in plan.run for tensor in operation.inputs]])
        self._name_constants(taken)
        if len(plan.run) > _LONG_RUN and can_run(plan.run):
            one_by_one = printer.bind("one_by_one", Stepwise(plan.run, plan.inputs, plan.outputs))
            self._print_native(native, f"{one_by_one}({', '.join(self.names[tensor] for tensor in plan.inputs)})")
            return
        known = {tensor: self.names[tensor] for tensor in taken if tensor in self.names}
        arguments = {tensor: name for tensor, name in known.items() if name not in printer.bindings}
        inside = self.function_block(printer.fresh("on_numpy"), arguments)
        inside.function.is_rare = True
        inside.names.update(known)
        natives, printer.natives = printer.natives, {}
        inside.print_operations(plan.run, plan.outputs)
        printer.natives = natives
        inside.line(f"return ({''.join(f'{inside.names[tensor]}, ' for tensor in plan.outputs)})")
        self._print_native(native, f"{inside.function.name}({', '.join(arguments.values())})")

    def _name_constants(self, tensors: Iterable[Symbol]) -> None:
        """Name those constants that stand after the operation for which they are needed now."""
        for tensor in tensors:
            if isinstance(tensor.operation.op, Constant) and tensor not in self.names:
                self.print_operation(tensor.operation)

    def _print_native(self, native: NativeRegion, instead: str) -> None:
        """Print a run's call; `instead` calls a function that does the same without machine code."""
        passed = [self.names[tensor] for tensor in native.plan.inputs]
        self.printer.in_runs.update(o for o in native.plan.run if not isinstance(o.op, Constant))
        names = ", ".join(self.output_name(tensor) for tensor in native.plan.outputs)
        call = f"{self.printer.bind('native', native)}({', '.join(['stats', *passed])})"
        if names:
            self.line(f"{names}, = {call} or {instead}  # native: {native.plan.summary}")
        else:  # an empty tuple means that it ran
            self.line(f"if {call} is None: {instead}  # native: {native.plan.summary}")

    def _free(self, tensors: Iterable[Symbol]) -> None:
        names = [self.names[t] for t in tensors if t in self.names and _worth_freeing(t)]
        if names:
            self.line(f"del {', '.join(names)}")

    def _print_begin(self, operation: Operation) -> str | None:
        if self.printer.timing is None or not is_timed(operation):
            return None
        return self.print_start(self.printer.timing, operation)

    def print_start(self, timing: Timing, operation: Operation, is_iteration: bool = False) -> str:
        """Print a variable that holds when an operation, or an iteration of a loop, began; return its name."""
        began = self.fresh("began")
        timing.start(began, operation, is_iteration)
        self.line(f"{began} = {self.printer.bind('now', now)}()")
        return began

    def _print_end(self, operation: Operation, began: str | None) -> None:
        if began is None:
            return
        words = [began, *[self.names[tensor] for tensor in varying(operation)]]
        self.line(f"{began} = {self.printer.bind('timed', operation_callback(operation))}({', '.join(words)})")

    def _print_guard(self, operation: Operation, guard: Callable[..., None]) -> None:
        if isinstance(operation.op, (Constant, RegionOp, History, Saved, Call, Recorded)):
            return
        if any(isinstance(tensor.spec, FrameSpec) for tensor in (*operation.inputs, *operation.outputs)):
            return
        if any(tensor.spec.differentiable for tensor in operation.outputs):
            inputs = [self.names[tensor] for tensor in operation.inputs if tensor in self.names]
            outputs = [self.names[tensor] for tensor in operation.outputs]
            checked = self.printer.bind("check", functools.partial(guard, operation))
            self.line(f"{checked}([{', '.join(inputs)}], [{', '.join(outputs)}])", (operation, inputs))

    # --- single operations ----------------------------------------------------------------------------------

    def print_operation(self, operation: Operation, users: Sequence[Operation] = ()) -> None:
        """Print one operation; if it is a loop or branch, `users` take values from its frame."""
        op = operation.op
        if isinstance(op, Constant):
            self.names[operation.outputs[0]] = self.printer.bind("c", op.value)
        elif isinstance(op, While):
            LoopPrinter(self, op, operation, users).print()
        elif isinstance(op, Branch):
            BranchPrinter(self, op, operation, users).print()
        elif isinstance(op, (Call, Recorded, Recursion)):
            print_call(self, operation, self.printer.bodies)
        elif operation in self.printer.ran:
            self._print_ran(operation)
        elif operation in self.printer.updates.in_place and self.printer.guard is None and not self.printer.by_run:
            self._print_update(operation)
        elif operation in self.printer.kernels and not self.printer.by_run and not isinstance(op, AssignRows):
            self._print_kernel(operation)
        elif isinstance(op, History):
            frame = self.frames[operation.inputs[0]]
            history = frame.histories[op.inner]
            self._assign(operation, f"{self.printer.bind('array_of', _array_of)}({history})")
            if frame.is_last_taker(op.inner):
                self.line(f"del {history}")
        elif isinstance(op, TripCount):
            self._assign(operation, f"np.int32({self.frames[operation.inputs[0]].trips})")
        elif isinstance(op, Saved):
            self.names[operation.outputs[0]] = self.frames[operation.inputs[0]].saved[op.inner]
        elif isinstance(op, Placeholder):
            self.line(f"raise {self.printer.bind('not_fed', _not_fed(operation))}()", (operation, []))
            self.names[operation.outputs[0]] = "None"
        else:
            self._print_plain(operation)

    def _print_plain(self, operation: Operation) -> None:
        op = operation.op
        if isinstance(op, ReadVariable):
            self._assign(operation, f"{self.printer.bind(op.variable.name, op.variable)}._value")
            return
        if isinstance(op, Assign):
            self._print_assign(op, operation, self.names[operation.inputs[0]])
            return
        if isinstance(op, AssignRows) and operation in self.printer.rows_in_place:
            self._print_write_rows(op, operation)
            return
        arguments = [self.names[tensor] for tensor in operation.inputs]
        if operation in self.printer.last_reads and isinstance(op, (ArrayRead, ArrayStack)):
            self._assign(operation, op.emit_last(arguments), arguments)
            return
        gives_strings = any(tensor.dtype.kind == "T" for tensor in operation.outputs)
        slot = self._slot(operation.outputs[0]) if operation.outputs else None
        expression = None if slot is None else op.emit_out(arguments, slot)
        if expression is None and not gives_strings and not self.printer.by_run:
            expression = op.emit(arguments)
        if expression is None:
            run = functools.partial(_run_on_strings, op) if gives_strings else functools.partial(op.run, np)
            run = self.printer.bind(f"run_{op.type_name}", run)
            expression = f"{run}({', '.join(arguments)})"
        self._assign(operation, expression, arguments)

    def _print_write_rows(self, op: AssignRows, operation: Operation) -> None:
        """Print a write of rows in the memory of variables.

        Where other steps may read these meanwhile, nothing here holds the values that are written over: whoever else
        does is found out when it runs.
        """
        wholes, given = operation.inputs[: len(op.variables)], operation.inputs[len(op.variables) :]
        arguments = [self.names[tensor] for tensor in given]
        write = self.printer.kernels.get(operation, op.write_in_place)
        if self.printer.shares_variables:
            held = [self.names[tensor] for tensor in wholes if tensor in self.names and is_among(tensor, self._dying)]
            if held and self.printer.guard is None:
                self.line(f"{' = '.join(held)} = None")
            write = functools.partial(write_in_memory, op.variables, write)
        self._assign(operation, f"{self.printer.bind('write_rows', write)}({', '.join(arguments)})", arguments)

    def _print_update(self, operation: Operation) -> None:
        """Print an update of an array in the memory of that array."""
        op, arguments = operation.op, [self.names[tensor] for tensor in operation.inputs]
        over = getattr(self.printer.kernels.get(operation), "over", None) or functools.partial(op.run_over, np)
        update = self.printer.bind(f"update_{op.type_name}", functools.partial(_run_over, over))
        self._assign(operation, f"{update}({', '.join(arguments)})", arguments)

    def _print_ran(self, operation: Operation) -> None:
        """Print the results of an operation that ran side by side with others; if it failed, it runs again."""
        arguments = [self.names[tensor] for tensor in operation.inputs]
        names = ", ".join(self.output_name(tensor) for tensor in operation.outputs)
        self.line(f"{names}, = {' or '.join(self.printer.ran[operation])}", (operation, arguments))

    def _print_kernel(self, operation: Operation) -> None:
        """Print a fused operation: buffers for the results, and the call of its kernel on the arrays' addresses."""
        printer, kernel = self.printer, self.printer.kernels[operation]
        arguments = [self.names[tensor] for tensor in operation.inputs]
        if callable(kernel):  # it makes the result
            run = printer.bind(f"run_{operation.op.type_name}", kernel)
            self._assign(operation, f"{run}({', '.join(arguments)})", arguments)
            return
        buffers = [self._buffer(tensor, kernel) for tensor in operation.outputs]
        outputs = [self.output_name(tensor) for tensor in operation.outputs]
        for name, buffer in zip(outputs, buffers, strict=True):
            self.line(f"{name} = {buffer}", (operation, arguments))
        fresh = [t for t, text in zip(operation.outputs, buffers, strict=True) if text.endswith("()")]
        for operand, result in laid_out_first(operation, fresh).items():
            lay_out = printer.bind("lay_out", kernel.lay_out)
            self.line(f"{lay_out}({self.names[result]}, {self.names[operand]})", (operation, arguments))
            arguments = [self.names[result if tensor is operand else tensor] for tensor in operation.inputs]
        call = printer.bind("kernel", self._call_of(operation, kernel))
        if isinstance(operation.op, HorizontallyFused):
            self._print_together(operation, operation.op, call, arguments, outputs)
            return
        taken = arguments[: kernel.input_count]
        words = ", ".join(operation.op.step_names) or operation.op.emit(arguments)
        text = self._call(kernel, call, [*taken, *outputs], (taken, outputs))
        self.line(f"{text}  # {words or operation.type}", (operation, arguments))
        for name in [name for name, tensor in zip(outputs, operation.outputs, strict=True) if tensor.shape == ()]:
            self.line(f"{name} = {name}[()]")

    def _call_of(self, operation: Operation, kernel: Any) -> Any:
        """Return what calls a kernel: it may be ended early, unless that could leave a write half done."""
        planned = [self.printer.plan.get(tensor) for tensor in operation.outputs]
        writes = any(buffer is not None and buffer.variable is not None for buffer in planned)
        may_be_after_writes = self.printer.first_write is not None and self.function.is_called
        if writes or self.printer.has_begun_to_write or may_be_after_writes:
            return kernel.call
        return kernel.endable

    def _print_together(
        self, operation: Operation, op: HorizontallyFused, call: str, arguments: Sequence[str], outputs: Sequence[str]
    ) -> None:
        """Print the call of a kernel that gets what the members share, then the operands of all of them."""
        kernel, origin = self.printer.kernels[operation], (operation, arguments)
        shared, own, made = arguments[: len(op.shared)], arguments[len(op.shared) :], len(op.op.results)
        listed: list[str] = []
        for member in range(op.count):
            listed += own[member * len(op.own) : (member + 1) * len(op.own)]
            listed += outputs[member * made : (member + 1) * made]
        text = self._call(kernel, call, [*shared, *listed], (listed, shared))
        self.line(f"{text}  # {op.count} times: {', '.join(op.op.step_names)}", origin)

    def _call(self, kernel: Any, call: str, given: Sequence[str], parts: tuple[Sequence[str], Sequence[str]]) -> str:
        """Return the call of a kernel, which is made again with `parts` of what is given, laid out, if it refuses."""
        refit = self.printer.bind("refit", kernel.refit)
        return f"if {call}({', '.join(given)}): {refit}({', '.join(map(_tuple, parts))})"

    def _buffer(self, tensor: Symbol, kernel: Any) -> str:
        """Return the expression for the place where a fused operation writes `tensor`."""
        slot = self._slot(tensor)
        if slot is not None:
            return slot
        planned = self.printer.plan.get(tensor)
        if planned is not None and planned.variable is not None:
            return f"{self.printer.bind(planned.variable.name, planned.variable)}._value"
        if planned is not None and planned.operand is not None:
            return self.names[planned.operand]
        name = "_".join(["empty", name_of(tensor.dtype), *map(str, tensor.shape or ())])
        return f"{self.printer.bind(name, kernel.empty(tensor.shape, tensor.dtype))}()"

    def _slot(self, tensor: Symbol) -> str | None:
        """Return the expression for the place where a result is gathered, if it may be written there at once."""
        write = self.printer.in_slots.get(tensor)
        if write is None:
            return self.slots.get(tensor)
        self._name_constants(write.inputs[:2])
        array, index = (self.names[source] for source in write.inputs[:2])
        dtype = self.printer.bind(name_of(tensor.dtype), np.dtype(name_of(tensor.dtype)))
        return f"{array}.slot({index}, {tensor.shape}, {dtype})"

    def _print_assign(self, op: Assign, operation: Operation, value: str) -> None:
        source = operation.inputs[0]
        planned = self.printer.plan.get(source)
        if planned is not None and planned.variable is op.variable and source.operation in self.printer.kernels:
            self.printer.stored.add(source)
            self._assign(operation, value)
            return
        if source in self.printer.received and source not in self.printer.stored:  # of one variable alone
            self.printer.stored.add(source)
            self._assign(operation, f"take_over({self.printer.bind(op.variable.name, op.variable)}, {value})", [value])
            return
        if (
            not is_fresh(source)
            or source in self.printer.stored
            or (planned is not None and planned.variable is not None)
        ):
            value = f"copied({value})"
        self.printer.stored.add(source)
        if isinstance(source.spec, TensorSpec) and source.spec.is_static and source.shape == op.variable.shape:
            name = self.output_name(operation.outputs[0])
            variable = self.printer.bind(op.variable.name, op.variable)
            self.line(f"{name} = {variable}._value = {value}", (operation, [value]))
            return
        run = self.printer.bind("assign", functools.partial(op.run, np))
        self._assign(operation, f"{run}({value})", [value])

    def _assign(self, operation: Operation, expression: str, arguments: list[str] | None = None) -> None:
        names = [self.output_name(tensor) for tensor in operation.outputs]
        target = f"{', '.join(names)} = " if names else ""
        if len(names) == 1 and isinstance(operation.op, Fused):
            target = f"({names[0]},) = "
        self.line(target + expression, (operation, arguments or []))

    def output_name(self, tensor: Symbol) -> str:
        name = self.names[tensor] = self.printer.fresh(tensor.operation.name)
        return name

    def fresh(self, hint: str) -> str:
        return self.printer.fresh(hint)

    def function_block(self, name: str, names: Mapping[Symbol, str]) -> Block:
        """Return the block of a new function called `name`, whose arguments are `names`."""
        function = Function(self.printer, name)
        function.is_called = True
        function.arguments = list(names.values())
        self.printer.add_function(function)
        return Block(function, dict(names), 1, self.loops)

    def detached(self, name: str, arguments: Sequence[str]) -> Block:
        """Return the block of a function that is not added to the program yet, and has no names."""
        function = Function(self.printer, name)
        function.is_called = True
        function.arguments = list(arguments)
        return Block(function, {}, 1, self.loops)

    def inner(self, names: Mapping[Symbol, str]) -> Block:
        """Return a block inside this one, for a region whose parameters have `names`."""
        return Block(self.function, dict(names), self.depth + 1, self.loops)


def _tuple(names: Sequence[str]) -> str:
    """Return the expression of a tuple."""
    return f"({', '.join(names)}{',' if names else ''})"


def _worth_freeing(tensor: Symbol) -> bool:
    return tensor.shape != ()


def _run_over(over: Callable[..., Any], first: Any, *rest: Any) -> Any:
    """Run an update in the memory of its first input, or in a copy where that is laid out in another way."""
    if type(first) is np.ndarray and first.flags.carray:
        return over(first, *rest)
    return over(np.array(first, order="C"), *rest)


def _run_on_strings(op: Op, *values: Any) -> Any:
    return without_bare_strings(op.run(np, *values))


def _array_of(history: list[Any] | Record | ArrayValue) -> ArrayValue:
    if isinstance(history, Record):
        return ArrayValue.from_stacked(history.rows())
    return history if isinstance(history, ArrayValue) else ArrayValue.from_list(history)


def _not_fed(operation: Operation) -> Any:
    def fail() -> Exception:
        return ValueError(f"Placeholder {operation.name!r} must be fed: give its value in feed_dict.")

    return fail
