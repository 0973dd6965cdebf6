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
from typing import Any

import numpy as np

from ..control_flow.call import Call, Recorded, Recursion
from ..control_flow.cond import Branch
from ..control_flow.frames import History, Saved, TripCount
from ..control_flow.region_op import RegionOp
from ..control_flow.while_loop import While
from ..graph.dtypes import name_of
from ..graph.graph import Operation, Parameter, Placeholder, ReadVariable
from ..graph.op import Op, without_bare_strings
from ..graph.region import Region
from ..graph.spec import FrameSpec, TensorSpec
from ..graph.tensor import Tensor
from ..graph.variable import Assign
from ..ops.array_value import ArrayValue
from ..ops.base import Constant
from ..ops.elementwise import Add, Subtract
from ..ops.fused import Fused
from ..ops.indexed_slices import AssignRows
from ..ops.tensor_arrays import ArrayRead, ArrayStack
from ..passes.prune import frame_users, needed_in_region
from .calls import PrintedBodies, print_call
from .printed import Frame, Origin
from .storage import Buffer, is_fresh, last_uses
from .timing import Timing, is_timed, iteration_callback, now, operation_callback, varying

_DEEPEST_BLOCK = 12  # more than 20 nested blocks are a SyntaxError in Python
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
    """

    def __init__(
        self,
        kernels: Mapping[Operation, Any] | None = None,
        plan: Mapping[Tensor, Buffer] | None = None,
        guard: Callable[..., None] | None = None,
        rows_in_place: Collection[Operation] = (),
        last_reads: Collection[Operation] = (),
        timing: Timing | None = None,
    ) -> None:
        self.guard = guard
        self.timing = timing
        self.by_run = False
        self.rows_in_place = rows_in_place
        self.last_reads = last_reads
        self.kernels = kernels or {}
        self.plan = plan or {}
        self.bindings: dict[str, Any] = {"np": np}
        self.origins: dict[int, Origin] = {}
        self.bodies = PrintedBodies()
        self.stored: set[Tensor] = set()  # values that variables hold without a copy
        self._functions: list[Function] = []
        # Names in use; those that were wanted again, with the number up to which there are others like them.
        self._used: dict[str, int] = dict.fromkeys(("np", "stats", "step", "copied", *dir(builtins)), 1)
        self._bound: dict[int, str] = {}

    # --- names ----------------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """A name that is not used yet."""
        name = _NOT_IN_NAMES.sub("_", hint.rpartition("/")[2]) or "value"
        if name[0].isdigit() or keyword.iskeyword(name):
            name = f"v_{name}"
        candidate, count = name, self._used.get(name, 0)
        while candidate in self._used:
            count += 1
            candidate = f"{name}_{count}"
        self._used[name] = count
        self._used[candidate] = 1
        return candidate

    def bind(self, hint: str, value: Any) -> str:
        """A global name for `value`; the same object keeps its name."""
        name = self._bound.get(id(value))
        if name is None:
            name = self._bound[id(value)] = self.fresh(hint)
            self.bindings[name] = value
        return name

    # --- programs -------------------------------------------------------------------------------------------

    def print_step(
        self, operations: Sequence[Operation], feeds: Sequence[Tensor], fetches: Sequence[Tensor], copied: set[Tensor]
    ) -> str:
        """The source of ``step(*feeds)``, which returns the fetches as a tuple."""
        function = Function(self, "step")
        names: dict[Tensor, str] = {}
        for tensor in feeds:
            names[tensor] = self.fresh(tensor.operation.name)
        function.arguments = list(names.values())
        self.bodies.start(operations)
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

    def assemble(self) -> str:
        """The source of all functions; `origins` is known from then on."""
        lines: list[str] = []
        for function in self._functions:
            lines.append(f"def {function.name}({', '.join(function.arguments)}):")
            for text, origin in function.lines:
                lines.append(text)
                if origin is not None:
                    self.origins[len(lines)] = origin
            lines.append("")
        return "\n".join(lines)


class Function:
    """A Python function under construction."""

    def __init__(self, printer: Printer, name: str) -> None:
        self.printer = printer
        self.name = name
        self.arguments: list[str] = []
        self.lines: list[tuple[str, Origin | None]] = []


class Block:
    """Lines at one indentation, over one graph or region."""

    def __init__(
        self,
        function: Function,
        names: dict[Tensor, str],
        depth: int,
        loops: tuple[tuple[Operation, str], ...] = (),
    ) -> None:
        self.function = function
        self.printer = function.printer
        self.names = names
        self.depth = depth
        self.loops = loops
        self.frames: dict[Tensor, Frame] = {}

    def line(self, text: str, origin: tuple[Operation, Sequence[str]] | None = None) -> None:
        known = None if origin is None else Origin(*origin, self.loops)
        self.function.lines.append(("    " * self.depth + text, known))

    def print_operations(self, operations: Sequence[Operation], kept: Iterable[Tensor]) -> None:
        """Print `operations` in order, freeing what is not `kept` after its last use."""
        dying, users = last_uses(operations, kept), frame_users(operations)
        for operation in operations:
            if isinstance(operation.op, Parameter) or (operation.outputs and operation.outputs[0] in self.names):
                continue
            began = self._print_begin(operation)
            self.print_operation(operation, users.get(operation.outputs[-1], ()) if operation.outputs else ())
            self._print_end(operation, began)
            if self.printer.guard is not None:
                self._print_guard(operation, self.printer.guard)
            self._free(dying.get(operation, ()))

    def _free(self, tensors: Iterable[Tensor]) -> None:
        names = [self.names[t] for t in tensors if t in self.names and _worth_freeing(t)]
        if names:
            self.line(f"del {', '.join(names)}")

    def _print_begin(self, operation: Operation) -> str | None:
        if self.printer.timing is None or not is_timed(operation):
            return None
        return self.print_start(self.printer.timing, operation)

    def print_start(self, timing: Timing, operation: Operation, is_iteration: bool = False) -> str:
        """The name of a variable that holds when an operation, or an iteration of a loop, began."""
        began = self.fresh("began")
        timing.start(began, operation, is_iteration)
        self.line(f"{began} = {self.printer.bind('now', now)}()")
        return began

    def _print_end(self, operation: Operation, began: str | None) -> None:
        if began is None:
            return
        told = [began, *[self.names[tensor] for tensor in varying(operation)]]
        self.line(f"{began} = {self.printer.bind('timed', operation_callback(operation))}({', '.join(told)})")

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
            _LoopPrinter(self, op, operation, users).print()
        elif isinstance(op, Branch):
            _BranchPrinter(self, op, operation, users).print()
        elif isinstance(op, (Call, Recorded, Recursion)):
            print_call(self, operation, self.printer.bodies)
        elif operation in self.printer.kernels and not self.printer.by_run:
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
        arguments = [self.names[tensor] for tensor in operation.inputs]
        if isinstance(op, ReadVariable):
            self._assign(operation, f"{self.printer.bind(op.variable.name, op.variable)}._value")
            return
        if isinstance(op, Assign):
            self._print_assign(op, operation, arguments[0])
            return
        if isinstance(op, AssignRows) and operation in self.printer.rows_in_place:
            run = self.printer.bind("write_rows", op.write_in_place)
            self._assign(operation, f"{run}({', '.join(arguments[1:])})", arguments)
            return
        if operation in self.printer.last_reads and isinstance(op, (ArrayRead, ArrayStack)):
            self._assign(operation, op.emit_last(arguments), arguments)
            return
        gives_strings = any(tensor.dtype.kind == "T" for tensor in operation.outputs)
        expression = None if gives_strings or self.printer.by_run else op.emit(arguments)
        if expression is None:
            run = functools.partial(_run_on_strings, op) if gives_strings else functools.partial(op.run, np)
            run = self.printer.bind(f"run_{op.type_name}", run)
            expression = f"{run}({', '.join(arguments)})"
        self._assign(operation, expression, arguments)

    def _print_kernel(self, operation: Operation) -> None:
        """A fused operation: buffers for the results, and the call of its kernel on the addresses of the arrays."""
        printer, kernel = self.printer, self.printer.kernels[operation]
        arguments = [self.names[tensor] for tensor in operation.inputs]
        buffers = [self._buffer(tensor) for tensor in operation.outputs]
        outputs = [self.output_name(tensor) for tensor in operation.outputs]
        for name, buffer in zip(outputs, buffers, strict=True):
            self.line(f"{name} = {buffer}", (operation, arguments))
        entry = printer.bind("kernel", kernel.entry)
        table = printer.bind("sizes", kernel.table)
        ids = ", ".join(f"id({name})" for name in [*arguments, *outputs])
        refit = printer.bind("refit", kernel.refit)
        passed = f"({', '.join(arguments)}{',' if arguments else ''}), ({', '.join(outputs)},)"
        steps = ", ".join(step.type_name for step, _ in operation.op.steps) if isinstance(operation.op, Fused) else ""
        self.line(f"if {entry}({table}, {ids}): {refit}({passed})  # {steps}", (operation, arguments))

    def _buffer(self, tensor: Tensor) -> str:
        """Where a fused operation writes `tensor`."""
        planned = self.printer.plan.get(tensor)
        if planned is not None and planned.variable is not None:
            return f"{self.printer.bind(planned.variable.name, planned.variable)}._value"
        if planned is not None and planned.operand is not None:
            return self.names[planned.operand]
        dtype = name_of(tensor.dtype)
        return f"np.empty({tensor.shape}, {self.printer.bind(dtype, np.dtype(dtype))})"

    def _print_assign(self, op: Assign, operation: Operation, value: str) -> None:
        source = operation.inputs[0]
        planned = self.printer.plan.get(source)
        if planned is not None and planned.variable is op.variable and source.operation in self.printer.kernels:
            self.printer.stored.add(source)
            self._assign(operation, value)
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

    def output_name(self, tensor: Tensor) -> str:
        name = self.names[tensor] = self.printer.fresh(tensor.operation.name)
        return name

    def fresh(self, hint: str) -> str:
        return self.printer.fresh(hint)

    def function_block(self, name: str, names: Mapping[Tensor, str]) -> Block:
        """The block of a new function called `name`, whose arguments are `names`."""
        function = Function(self.printer, name)
        function.arguments = list(names.values())
        self.printer.add_function(function)
        return Block(function, dict(names), 1, self.loops)

    def inner(self, names: Mapping[Tensor, str]) -> Block:
        """A block inside this one, for a region whose parameters have `names`."""
        return Block(self.function, dict(names), self.depth + 1, self.loops)


class _RegionPrinter:
    """What printing loops and branches has in common: captures, and a function of its own where nesting is deep."""

    def __init__(self, block: Block, op: RegionOp, operation: Operation, users: Sequence[Operation]) -> None:
        self.outer = block
        self.block = block
        self.op = op
        self.operation = operation
        self.users = users
        self.frame = Frame()
        block.frames[operation.outputs[-1]] = self.frame
        self.arguments = [block.names[tensor] for tensor in operation.inputs]

    def print(self) -> None:
        self._name_frame()
        if self.outer.depth < _DEEPEST_BLOCK:
            results = self._print_here()
            for tensor, name in zip(self.operation.outputs[:-1], results, strict=True):
                self.outer.names[tensor] = name
            return
        self._print_as_function()

    def _print_as_function(self) -> None:
        """A function over the inputs, which returns the results and what the frame records."""
        printer = self.outer.printer
        function = Function(printer, printer.fresh(self.op.type_name))
        passed = [name for name in dict.fromkeys(self.arguments) if name not in printer.bindings and name != "None"]
        function.arguments = passed
        self.block = Block(function, {}, 1, self.outer.loops)
        results = self._print_here()
        extra = [*self.frame.histories.values(), *self.frame.saved.values()]
        extra += [self.frame.trips] if self.frame.trips else []
        returned = [*results, *extra]
        self.block.line(f"return ({', '.join(returned)}{',' if len(returned) == 1 else ''})")
        printer.add_function(function)
        targets = [self.outer.output_name(tensor) for tensor in self.operation.outputs[:-1]] + extra
        call = f"{function.name}({', '.join(passed)})"
        self.outer.line(f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {call}" if targets else call)

    def _name_frame(self) -> None:
        raise NotImplementedError

    def _print_here(self) -> list[str]:
        raise NotImplementedError

    def capture_names(self, region: Region, start: int) -> dict[Tensor, str]:
        names = self.arguments[start : start + len(region.captures)]
        return {parameter: name for (_, parameter), name in zip(region.captures, names, strict=True)}

    def note_saved(self, names: Sequence[str]) -> None:
        if names:
            self.block.line(f"stats.note_saved({', '.join(names)})")


class _LoopPrinter(_RegionPrinter):
    op: While

    def _name_frame(self) -> None:
        for user in self.users:
            if isinstance(user.op, History):
                self.frame.add_history(user.op.inner, self.outer.printer.fresh(f"saved_{_short(user.op.inner)}"))
            else:
                self.frame.trips = self.frame.trips or self.outer.printer.fresh("trips")
        if self.op.recomputed_bytes and self.frame.trips is None:
            self.frame.trips = self.outer.printer.fresh("trips")

    def _print_here(self) -> list[str]:
        op, block, printer = self.op, self.block, self.outer.printer
        variables = [printer.fresh(parameter.operation.name) for parameter in op.body.parameters]
        counter = self._counter(variables)
        if variables:
            initial = self.arguments[: op.carried]
            block.line(f"{', '.join(variables)} = {', '.join(initial)}", (self.operation, initial))
        for history in self.frame.histories.values():
            block.line(f"{history} = []")
        if self.frame.trips:
            block.line(f"{self.frame.trips} = 0")
        body_start = op.carried + len(op.condition.captures)
        condition_names = dict(zip(op.condition.parameters, variables, strict=True))
        condition_names |= self.capture_names(op.condition, op.carried)
        body_names = dict(zip(op.body.parameters, variables, strict=True)) | self.capture_names(op.body, body_start)
        counted = ((self.operation, counter), *block.loops) if counter else block.loops
        self._print_condition(condition_names, counted)
        self._print_body(body_names, variables, counted)
        self.note_saved(list(self.frame.histories.values()))
        if self.op.recomputed_bytes:
            self.block.line(f"stats.note_recomputed({self.frame.trips} * {self.op.recomputed_bytes})")
        return variables

    def _counter(self, variables: Sequence[str]) -> str | None:
        """An expression for the number of the iteration, for errors; None where nothing can fail."""
        if self.frame.trips is None:
            known = next(filter(None, map(self._counted_by, range(self.op.carried), variables)), None)
            if known is not None or (self.outer.printer.timing is None and not self._can_fail()):
                return known
            self.frame.trips = self.outer.printer.fresh("trips")
        return self.frame.trips

    def _counted_by(self, position: int, variable: str) -> str | None:
        """How loop variable `position` counts iterations, if it does: upward from a constant, or down from the last."""
        parameter, update = self.op.body.parameters[position], self.op.body.results[position].operation
        if not isinstance(update.op, (Add, Subtract)) or update.inputs[0] is not parameter:
            return None
        step, start = update.inputs[1].operation.op, self.operation.inputs[position].operation
        if parameter.dtype.kind != "i" or not isinstance(step, Constant) or step.value != 1:
            return None
        if isinstance(update.op, Subtract):
            from_end = isinstance(start.op, Subtract) and isinstance(start.inputs[0].operation.op, TripCount)
            return variable if from_end else None
        return f"{variable} - {start.op.value}" if isinstance(start.op, Constant) else None

    def _can_fail(self) -> bool:
        inside = [o for region in self.op.regions for o in needed_in_region(region, self.frame.histories)]
        return any(not o.op.elementwise for o in inside if not isinstance(o.op, (Parameter, Constant)))

    def _print_condition(self, names: dict[Tensor, str], loops: tuple[tuple[Operation, str], ...]) -> None:
        """``while test:`` if the test is one expression, otherwise computed inside and left by ``break``."""
        recorded = [tensor for tensor in self.frame.histories if tensor.graph is self.op.condition]
        operations = needed_in_region(self.op.condition, recorded)
        result = self.op.condition.results[0]
        working = [o for o in operations if not isinstance(o.op, (Parameter, Constant))]
        inside = self.block.inner(names)
        inside.loops = loops
        is_short = len(working) == 1 and working[0].outputs == (result,) and not recorded
        if is_short and self.outer.printer.timing is None:
            for operation in operations:
                if isinstance(operation.op, Constant):
                    inside.print_operation(operation)
            arguments = [inside.names[tensor] for tensor in working[0].inputs]
            expression = working[0].op.emit(arguments)
            if expression is not None:
                self.block.line(f"while {expression}:", (working[0], arguments))
                return
        self.block.line("while True:")
        inside.print_operations(operations, [result, *recorded])
        self._print_recording(inside, recorded)
        inside.line(f"if not {inside.names[result]}: break")

    def _print_body(
        self, names: dict[Tensor, str], variables: list[str], loops: tuple[tuple[Operation, str], ...]
    ) -> None:
        body = self.op.body
        demanded = [tensor for tensor in self.frame.histories if tensor.graph is body]
        inside = self.block.inner(names)
        inside.loops = loops
        timing = self.outer.printer.timing
        began = None if timing is None else inside.print_start(timing, self.operation, is_iteration=True)
        inside.print_operations(needed_in_region(body, demanded), [*body.results, *demanded])
        self._print_recording(inside, demanded)
        if began is not None:
            timed = inside.printer.bind("timed", iteration_callback(self.operation))
            inside.line(f"{began} = {timed}({began}, {loops[0][1]})")
        pairs = [(v, inside.names[r]) for v, r in zip(variables, body.results, strict=True)]
        changed = [(variable, value) for variable, value in pairs if variable != value]
        if changed:
            inside.line(f"{', '.join(v for v, _ in changed)} = {', '.join(value for _, value in changed)}")
        if self.frame.trips:
            inside.line(f"{self.frame.trips} += 1")
        if not changed and not self.frame.trips and not demanded:
            inside.line("pass")

    def _print_recording(self, inside: Block, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            inside.line(f"{self.frame.histories[tensor]}.append({inside.names[tensor]})")


class _BranchPrinter(_RegionPrinter):
    op: Branch

    def _name_frame(self) -> None:
        for user in self.users:
            if isinstance(user.op, Saved):
                self.frame.saved[user.op.inner] = self.outer.printer.fresh(f"saved_{_short(user.op.inner)}")

    def _print_here(self) -> list[str]:
        block, printer = self.block, self.outer.printer
        results = [printer.fresh(tensor.operation.name) for tensor in self.operation.outputs[:-1]]
        for saved in self.frame.saved.values():
            block.line(f"{saved} = None")
        start = 1
        for position, region in enumerate(self.op.regions):
            block.line(self._test(position), (self.operation, self.arguments[:1]))
            self._print_region(region, self.capture_names(region, start), results)
            start += len(region.captures)
        self.note_saved(list(self.frame.saved.values()))
        return results

    def _test(self, position: int) -> str:
        choice, count = self.arguments[0], len(self.op.regions)
        if position == count - 1:
            return "else:" if count > 1 else "if True:"
        if self.operation.inputs[0].dtype.kind == "b":
            return f"if {choice}:"
        comparison = "<= 0" if position == 0 else f"== {position}"
        return f"{'if' if position == 0 else 'elif'} {choice} {comparison}:"

    def _print_region(self, region: Region, names: dict[Tensor, str], results: list[str]) -> None:
        demanded = [tensor for tensor in self.frame.saved if tensor.graph is region]
        inside = self.block.inner(names)
        inside.print_operations(needed_in_region(region, demanded), [*region.results, *demanded])
        values = [inside.names[result] for result in region.results]
        targets = [*results, *[self.frame.saved[tensor] for tensor in demanded]]
        values += [inside.names[tensor] for tensor in demanded]
        inside.line(f"{', '.join(targets)} = {', '.join(values)}" if targets else "pass")


def _worth_freeing(tensor: Tensor) -> bool:
    return tensor.shape != ()


def _run_on_strings(op: Op, *values: Any) -> Any:
    return without_bare_strings(op.run(np, *values))


def _array_of(history: list[Any]) -> ArrayValue:
    return ArrayValue.from_list(history)


def _short(tensor: Tensor) -> str:
    return tensor.operation.name.rpartition("/")[2]


def _not_fed(operation: Operation) -> Any:
    def fail() -> Exception:
        return ValueError(f"Placeholder {operation.name!r} must be fed: give its value in feed_dict.")

    return fail
