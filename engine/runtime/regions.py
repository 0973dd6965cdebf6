"""Prints loops and branches of a step as Python: a loop is a ``while``, a branch an ``if``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..common.deadlines import requests
from ..common.dtypes import name_of
from ..common.identity import is_same
from ..control_flow.cond import Branch
from ..control_flow.frames import History, Saved, TripCount
from ..control_flow.region_op import RegionOp
from ..control_flow.while_loop import While
from ..graph.graph import Operation, Parameter
from ..graph.region import Region
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..ops.math.elementwise import Add, Subtract
from ..passes.framework.prune import needed_in_region
from ..queues.stops import check_stop
from .printed import Frame
from .records import Record, RecordBeside, recorded_beside
from .timing import iteration_callback

if TYPE_CHECKING:
    from ..codegen.regions.region import NativeRegion
    from .printer import Block

_DEEPEST_BLOCK = 12  # more than 20 nested blocks are a SyntaxError in Python


class _RegionPrinter:
    """The common part of printing loops and branches: captures, and a function of its own where nesting is deep."""

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
        native = self.outer.printer.natives.get(self.operation)
        if self.outer.depth < _DEEPEST_BLOCK and native is None:
            results = self._print_here()
            for tensor, name in zip(self.operation.outputs[:-1], results, strict=True):
                self.outer.names[tensor] = name
            return
        self._print_as_function(native)

    def _print_as_function(self, native: NativeRegion | None) -> None:
        """Print a function over the inputs, which returns the results and what the frame records.

        Where there is a native region, that runs, and the function only if it can't.
        """
        printer = self.outer.printer
        name = printer.fresh(self.op.type_name)
        passed = [name for name in dict.fromkeys(self.arguments) if name not in printer.bindings and name != "None"]
        self.block = self.outer.detached(name, passed)
        results = self._print_here()
        extra = [*self.frame.histories.values(), *self.frame.saved.values()]
        extra += [self.frame.trips] if self.frame.trips else []
        returned = [*results, *extra]
        self.block.line(f"return ({', '.join(returned)}{',' if len(returned) == 1 else ''})")
        self.block.function.is_rare = native is not None
        printer.add_function(self.block.function)
        targets = [self.outer.output_name(tensor) for tensor in self.operation.outputs[:-1]] + extra
        call = f"{name}({', '.join(passed)})"
        if native is not None and not targets:  # an empty tuple means that it ran
            called = printer.bind("native", native)
            passed = ["stats", *[self.outer.names[tensor] for tensor in native.plan.inputs]]
            self.outer.line(f"if {called}({', '.join(passed)}) is None: {call}  # native: {native.plan.summary}")
            return
        if native is not None:
            call = self._native_call(native, call)
        self.outer.line(f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {call}" if targets else call)

    def _native_call(self, native: NativeRegion, otherwise: str) -> str:
        native.gives_trips = self.frame.trips is not None
        names = [self.outer.names[tensor] for tensor in native.plan.inputs]
        ran = self.outer.printer.ran.get(self.operation)
        if ran is not None:
            return f"{ran[0]} or {otherwise}  # native: {native.plan.summary}"
        called = self.outer.printer.bind("native", native)
        names = ["stats", *names]
        return f"{called}({', '.join(names)}) or {otherwise}  # native: {native.plan.summary}"

    def _name_frame(self) -> None:
        raise NotImplementedError

    def _print_here(self) -> list[str]:
        raise NotImplementedError

    def capture_names(self, region: Region, start: int) -> dict[Symbol, str]:
        names = self.arguments[start : start + len(region.captures)]
        return {parameter: name for (_, parameter), name in zip(region.captures, names, strict=True)}

    def note_saved(self, names: Sequence[str]) -> None:
        if names:
            self.block.line(f"stats.note_saved({', '.join(names)})")


class LoopPrinter(_RegionPrinter):
    """Prints a loop, and what it records."""

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
            changed = printer.updates.variables
            pairs = zip(op.body.parameters, self.arguments, strict=False)
            initial = [f"np.array({name})" if parameter in changed else name for parameter, name in pairs]
            block.line(f"{', '.join(variables)} = {', '.join(initial)}", (self.operation, self.arguments[: op.carried]))
        for tensor, history in self.frame.histories.items():
            block.line(f"{history} = {self._new_history(tensor, variables)}")
        if self.frame.trips:
            block.line(f"{self.frame.trips} = 0")
        body_start = op.carried + len(op.condition.captures)
        condition_names = dict(zip(op.condition.parameters, variables, strict=True))
        condition_names |= self.capture_names(op.condition, op.carried)
        body_names = dict(zip(op.body.parameters, variables, strict=True)) | self.capture_names(op.body, body_start)
        counted = ((self.operation, counter), *block.loops) if counter else block.loops
        self._print_condition(condition_names, counted)
        self._print_body(body_names, variables, counted)
        histories = self.frame.histories.items()  # those of loops inside are counted there
        self.note_saved([name for tensor, name in histories if not isinstance(tensor.operation.op, History)])
        if self.op.recomputed_bytes:
            self.block.line(f"stats.note_recomputed({self.frame.trips} * {self.op.recomputed_bytes})")
        return variables

    def _new_history(self, tensor: Symbol, variables: Sequence[str]) -> str:
        """Return the expression of a history of `tensor`: a list, or the rows of an array.

        `variables` hold the first values.
        """
        printer = self.outer.printer
        if tensor not in printer.in_rows:
            return "[]"
        expected = next(filter(None, map(self._expected_trips, range(self.op.carried))), None)
        made = [str(tensor.shape), printer.bind(name_of(tensor.dtype), np.dtype(name_of(tensor.dtype)))]
        beside = recorded_beside(self.operation, tensor, printer.in_slots)
        kind = Record if beside is None else RecordBeside
        made += [] if beside is None else [variables[beside]]
        return f"{printer.bind(kind.__name__, kind)}({', '.join([*made, *([expected] if expected else [])])})"

    def _expected_trips(self, position: int) -> str | None:
        """Return how often the loop runs, if variable `position` counts up to a limit known at entry, or down to 0."""
        test, counter = self.op.condition.results[0].operation, self.op.condition.parameters[position]
        if len(test.inputs) != 2 or test.inputs[0] is not counter or self._counted_by(position, "counter") is None:
            return None
        initial = self.arguments[position]
        if isinstance(self.op.body.results[position].operation.op, Subtract):
            return f"{initial} + 1"
        limit, captures = test.inputs[1], self.op.condition.captures
        if isinstance(limit.operation.op, Constant):
            return f"{limit.operation.op.value} - {initial}"
        captured = [k for k, (_, parameter) in enumerate(captures) if parameter is limit]
        return f"{self.arguments[self.op.carried + captured[0]]} - {initial}" if captured else None

    def _counter(self, variables: Sequence[str]) -> str | None:
        """Return an expression for the number of the iteration, for errors; None where nothing can fail."""
        if self.frame.trips is None:
            known = next(filter(None, map(self._counted_by, range(self.op.carried), variables)), None)
            if known is not None or (self.outer.printer.timing is None and not self._can_fail()):
                return known
            self.frame.trips = self.outer.printer.fresh("trips")
        return self.frame.trips

    def _counted_by(self, position: int, variable: str) -> str | None:
        """Return how variable `position` counts iterations, if it does: up from a constant, or down from the last."""
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

    def _print_condition(self, names: dict[Symbol, str], loops: tuple[tuple[Operation, str], ...]) -> None:
        """Print ``while test:`` if the test is one expression, otherwise computed inside and left by ``break``."""
        recorded = [tensor for tensor in self.frame.histories if tensor.graph is self.op.condition]
        operations = needed_in_region(self.op.condition, recorded)
        result = self.op.condition.results[0]
        working = [o for o in operations if not isinstance(o.op, (Parameter, Constant))]
        inside = self.block.inner(names)
        inside.loops = loops
        is_short = len(working) == 1 and is_same(working[0].outputs, (result,)) and not recorded
        if is_short and self.outer.printer.timing is None:
            for operation in operations:
                if isinstance(operation.op, Constant):
                    inside.print_operation(operation)
            arguments = [inside.names[tensor] for tensor in working[0].inputs]
            expression = None if self.outer.printer.by_run else working[0].op.emit(arguments)
            if expression is not None:
                self.block.line(f"while {expression}:", (working[0], arguments))
                self._print_look(inside)
                return
        self.block.line("while True:")
        self._print_look(inside)
        inside.print_operations(operations, [result, *recorded])
        self._print_recording(inside, recorded)
        inside.line(f"if not {inside.names[result]}: break")

    def _print_look(self, inside: Block) -> None:
        """Print a look, in each iteration, whether the step has to end."""
        printer = self.outer.printer
        look, check = printer.bind("requests", requests), printer.bind("check_stop", check_stop)
        inside.line(f"if {look}: {check}()")

    def _print_body(
        self, names: dict[Symbol, str], variables: list[str], loops: tuple[tuple[Operation, str], ...]
    ) -> None:
        body = self.op.body
        demanded = [tensor for tensor in self.frame.histories if tensor.graph is body]
        inside = self.block.inner(names)
        inside.loops = loops
        inside.slots = {t: f"{self.frame.histories[t]}.slot()" for t in demanded if t in self.outer.printer.in_rows}
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

    def _print_recording(self, inside: Block, tensors: Sequence[Symbol]) -> None:
        for tensor in tensors:
            inside.line(f"{self.frame.histories[tensor]}.append({inside.names[tensor]})")


class BranchPrinter(_RegionPrinter):
    """Prints a branch, and what it saves."""

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

    def _print_region(self, region: Region, names: dict[Symbol, str], results: list[str]) -> None:
        demanded = [tensor for tensor in self.frame.saved if tensor.graph is region]
        inside = self.block.inner(names)
        inside.print_operations(needed_in_region(region, demanded), [*region.results, *demanded])
        values = [inside.names[result] for result in region.results]
        targets = [*results, *[self.frame.saved[tensor] for tensor in demanded]]
        values += [inside.names[tensor] for tensor in demanded]
        inside.line(f"{', '.join(targets)} = {', '.join(values)}" if targets else "pass")


def _short(tensor: Symbol) -> str:
    return tensor.operation.name.rpartition("/")[2]


__all__ = ["BranchPrinter", "LoopPrinter"]
