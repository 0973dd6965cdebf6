"""The reference interpreter: it *is* the meaning of a graph. Slow, plain, sequential.

Every other way to run a graph is tested against it. With ``float64=True`` it computes in double precision whatever
the graph says, for comparison with finite differences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..common import dtypes
from ..common.nest import is_sequence
from ..control_flow.call import Body, Call, Recorded, Recursion
from ..control_flow.cond import Branch
from ..control_flow.frames import History, Saved, TripCount
from ..control_flow.while_loop import While
from ..graph.graph import Graph, Operation, Placeholder
from ..graph.op import Op, as_scalar_or_array, is_array, without_bare_strings
from ..graph.region import Region
from ..graph.state.variable_ops import Assign, ReadVariable
from ..graph.tensor import Symbol
from ..ops.base import is_numpy
from ..ops.containers.array_value import ArrayValue
from ..passes.framework.prune import frame_users, needed_in_region, needed_operations, recorded_tensors
from .deep_calls import FRAMES_OF_INTERPRETER, deep_calls, too_deep
from .errors import annotate

Environment = dict[Symbol, Any]
_FrameUsers = Mapping[Symbol, Sequence[Operation]]


class Interpreter:
    """Runs graphs one operation at a time, straight from their definition.

    Args:
        float64: compute all floating-point values in double precision.
    """

    def __init__(self, float64: bool = False) -> None:
        self.float64 = float64
        self._loops: list[tuple[Operation, int]] = []  # those that run, each with the number of its iteration
        self._recorded: dict[Body, list[Symbol]] = {}  # what the frames of calls record
        self._calls: dict[str, int] = {}  # how many calls of each recursive function run

    def run(
        self, graph: Graph, targets: Sequence[Symbol | Operation], feeds: Mapping[Symbol, Any] | None = None
    ) -> list[Any]:
        """Return the values of `targets` (None for operations).

        Raises:
            ValueError: a placeholder that is needed was not fed.
        """
        self._loops.clear()
        environment: Environment = {t: self._widen(as_scalar_or_array(np.asarray(v))) for t, v in (feeds or {}).items()}
        needed = needed_operations(graph, targets, environment)
        self._recorded = recorded_tensors(needed)
        self._calls.clear()
        with np.errstate(all="ignore"), deep_calls(FRAMES_OF_INTERPRETER):
            self.run_operations(needed, environment)
        return [environment[t] if isinstance(t, Symbol) else None for t in targets]

    def run_operations(self, operations: Sequence[Operation], environment: Environment) -> None:
        """Run `operations` in order, and add their values to `environment`, which holds those that they take."""
        users = frame_users(operations)
        for operation in operations:
            if operation.outputs and all(tensor in environment for tensor in operation.outputs):
                continue  # fed, or a parameter of the region
            values = [environment[tensor] for tensor in operation.inputs]
            try:
                results = self._run_operation(operation, values, users)
            except Exception as error:
                annotate(error, operation, values, self._iterations(), list(self._calls.items()))
                raise
            for tensor, result in zip(operation.outputs, results, strict=True):
                environment.setdefault(tensor, result)  # one of several outputs may have been fed

    def _run_operation(self, operation: Operation, values: list[Any], users: _FrameUsers) -> Sequence[Any]:
        op = operation.op
        if isinstance(op, While):
            return self._run_while(op, operation, values, users.get(operation.outputs[-1], ()))
        if isinstance(op, Branch):
            return self._run_branch(op, operation, values, users.get(operation.outputs[-1], ()))
        if isinstance(op, (Recursion, Call)):
            return self._run_call(op.body, operation, values)
        if isinstance(op, History):
            return [ArrayValue.from_list(values[0].histories[op.inner])]
        if isinstance(op, TripCount):
            return [np.int32(values[0].trips)]
        if isinstance(op, (Saved, Recorded)):
            return [values[0].saved.get(op.inner)]
        if isinstance(op, Placeholder):
            raise ValueError(f"Placeholder {operation.name!r} must be fed: pass feed_dict={{{operation.name}: value}}.")
        if isinstance(op, Assign):
            return [self._widen(op.run(np, self._narrow(_copied(values[0]), op.variable.dtype)))]
        result = (_in_double(op) if self.float64 else op).run(np, *values)
        if isinstance(op, ReadVariable):
            result = _copied(result)
        results: Sequence[Any] = as_outputs(without_bare_strings(result))
        return [self._widen(value) for value in results]

    def _iterations(self) -> list[tuple[Operation, int]]:
        """Return the running loops, innermost first; one that further calls of a function run too, as the last does."""
        latest: dict[Operation, int] = {}
        for loop, count in reversed(self._loops):
            latest.setdefault(loop, count)
        return list(latest.items())

    def _run_while(
        self, op: While, operation: Operation, values: list[Any], users: Sequence[Operation]
    ) -> Sequence[Any]:
        frame = _Frame({user.op.inner: [] for user in users if isinstance(user.op, History)})
        carried = values[: op.carried]
        in_condition = values[op.carried : op.carried + len(op.condition.captures)]
        in_body = values[op.carried + len(op.condition.captures) :]
        self._loops.append((operation, 0))
        while True:
            (more,), inside = self._run_region(op.condition, carried, in_condition, frame.histories)
            frame.record(op.condition, inside)
            if not more:
                break
            carried, inside = self._run_region(op.body, carried, in_body, frame.histories)
            frame.record(op.body, inside)
            frame.trips += 1
            self._loops[-1] = (operation, frame.trips)
        self._loops.pop()
        return [*carried, frame]

    def _run_branch(
        self, op: Branch, operation: Operation, values: list[Any], users: Sequence[Operation]
    ) -> Sequence[Any]:
        choice, captured = values[0], values[1:]
        position = branch_position(choice, len(op.regions))
        start = sum(len(region.captures) for region in op.regions[:position])
        region = op.regions[position]
        demanded = [u.op.inner for u in users if isinstance(u.op, Saved) and u.op.inner.graph is region]
        inputs = captured[start : start + len(region.captures)]
        results, inside = self._run_region(region, [], inputs, demanded)
        frame = _Frame({})
        frame.saved = {tensor: inside[tensor] for tensor in demanded}
        return [*results, frame]

    def _run_call(self, body: Body, operation: Operation, values: list[Any]) -> Sequence[Any]:
        arguments, captured = values[: len(body.parameters)], values[len(body.parameters) :]
        demanded = self._recorded.get(body, [])
        depth = self._calls.get(body.name, 0) + 1
        self._calls[body.name] = depth
        try:
            results, inside = self._run_region(body, arguments, captured, demanded)
        except RecursionError as error:
            raise too_deep(error, body.name, self._calls[body.name]) from None
        self._calls[body.name] = depth - 1
        frame = _Frame({})
        frame.saved = {tensor: inside[tensor] for tensor in demanded}
        return [*results, frame]

    def _run_region(
        self, region: Region, arguments: Sequence[Any], captured: Sequence[Any], demanded: Iterable[Symbol] = ()
    ) -> tuple[list[Any], Environment]:
        environment: Environment = dict(zip(region.parameters, arguments, strict=True))
        for (_, parameter), value in zip(region.captures, captured, strict=True):
            environment[parameter] = value
        self.run_operations(needed_in_region(region, demanded), environment)
        return [environment[result] for result in region.results], environment

    def _widen(self, value: Any) -> Any:
        if self.float64 and is_numpy(value) and dtypes.is_floating(value.dtype):
            return value.astype("float64")
        return value

    def _narrow(self, value: Any, dtype: Any) -> Any:
        return value.astype(dtype) if self.float64 and value.dtype != dtype else value


class _Frame:
    """The record of one run of a loop or branch."""

    def __init__(self, histories: dict[Symbol, list[Any]]) -> None:
        self.histories = histories
        self.trips = 0
        self.saved: Environment = {}

    def record(self, region: Region, values: Environment) -> None:
        """Add an iteration's values of the tensors of `region` that have a history."""
        for tensor, history in self.histories.items():
            if tensor.graph is region:
                history.append(values[tensor])


def branch_position(choice: Any, count: int) -> int:
    """Return the number of the region that a choice takes: true is the first of two; integers are clamped."""
    if choice.dtype.kind == "b":
        return 0 if choice else 1
    return min(max(int(choice), 0), count - 1)


def _in_double(op: Op) -> Op:
    """Return the op with floating dtypes among its attributes replaced by float64."""
    if not dataclasses.is_dataclass(op):
        return op
    fields = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
    wide = {
        name: np.dtype("float64")
        for name, value in fields.items()
        if dtypes.is_dtype(value) and dtypes.is_floating(value)
    }
    return dataclasses.replace(cast(Any, op), **wide) if wide else op


def as_outputs(result: Any) -> Sequence[Any]:
    """Return the result of an op's `run` as one value for each output."""
    return result if is_sequence(result) else (result,)


def _copied(value: Any) -> Any:
    return value.copy() if is_array(value) else value
