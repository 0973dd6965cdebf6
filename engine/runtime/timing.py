"""Timing of compiled steps: while a trace is recorded, a step runs as a second program that has a clock around each
operation. It is printed from the same operations with the same kernels, so what is timed is what runs otherwise.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..common.descriptions import describe_value
from ..control_flow.call import Call, Recorded
from ..control_flow.frames import Saved, TripCount
from ..control_flow.region_op import RegionOp
from ..graph.graph import Operation, Placeholder
from ..graph.spec import FrameSpec, Spec, TensorSpec
from ..graph.state.variable_ops import ReadVariable
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..tracing import active, here

if TYPE_CHECKING:
    from ..tracing import Slice

now = time.perf_counter
_COMPUTE = "compute"
_FREE = (Constant, Placeholder, ReadVariable, Recorded, Saved, TripCount)  # these run nothing, or name a value


class Statistics(Protocol):
    """The parts of a program's statistics that are used here."""

    saved_bytes: int

    def note_saved(self, *values: Any) -> None: ...
    def note_recomputed(self, size: int) -> None: ...


class Started(NamedTuple):
    """The start that a variable of a timed program holds: of an operation, or of an iteration of a loop."""

    operation: Operation
    is_iteration: bool


class Timing:
    """The clocks of one program.

    The program notes when something begins in a variable of its own, which a callback sets to None when it has ended.
    So after a failure it can be seen what was under way, and nothing has to be undone when all goes well.
    """

    def __init__(self) -> None:
        self._starts: dict[str, Started] = {}

    def start(self, name: str, operation: Operation, is_iteration: bool = False) -> None:
        """Note that variable `name` will hold when `operation` (or an iteration of it) has begun."""
        self._starts[name] = Started(operation, is_iteration)

    def close(self, scopes: Sequence[Mapping[str, Any]], error: Exception) -> None:
        """Record what is under way in functions with the variables `scopes`, when `error` ends it."""
        recorder, ended = active.recorder, now()
        if recorder is None:
            return
        found = [
            (scope[name], started)
            for scope in scopes
            for name, started in self._starts.items()
            if scope.get(name) is not None
        ]
        for began, started in sorted(found, key=lambda pair: -pair[0]):
            name = f"{started.operation.name}: iteration" if started.is_iteration else started.operation.name
            recorder.span(here(_COMPUTE), f"{name} (failed)", began, ended, _static(started.operation))
        recorder.instant(here(_COMPUTE), "failed", ended, {"error": _format_error(error)})


def is_timed(operation: Operation) -> bool:
    """Test whether the operation runs anything."""
    return not isinstance(operation.op, _FREE)


def has_parts(operation: Operation) -> bool:
    """Test whether the operation is a span around others."""
    return isinstance(operation.op, (RegionOp, Call))


def operation_of(event: Slice) -> Operation | None:
    """Return the operation of a slice that a compiled program has recorded; None for iterations and all else."""
    details = event.details
    if isinstance(details, functools.partial) and details.func in (_details, _static):
        return details.args[0]
    return None


def varying(operation: Operation) -> list[Symbol]:
    """Return the inputs and outputs of a kernel whose shapes are found by looking at them. Frames are not values."""
    if has_parts(operation):
        return []
    return [tensor for tensor in (*operation.inputs, *operation.outputs) if not _is_known(tensor.spec)]


def operation_callback(operation: Operation) -> Callable[..., None]:
    """Return the function to call after an operation, with its start and its `varying` values; it gives None."""
    if has_parts(operation):
        return functools.partial(_note_span, operation.name, functools.partial(_static, operation))
    details = functools.partial(_details, operation)
    note = _note_varying if varying(operation) else _note_kernel
    return functools.partial(note, kernel_name(operation), details)


def iteration_callback(loop: Operation) -> Callable[[float, Any], None]:
    """Return the function to call after an iteration of a loop, with its start and its number; it gives None."""
    return functools.partial(_note_iteration, loop)


def _note_kernel(name: str, details: Callable[..., Mapping[str, Any]], began: float) -> None:
    ended = now()
    recorder = active.recorder
    if recorder is not None:
        recorder.kernel_on(here(_COMPUTE), name, began, ended, details)


def _note_varying(name: str, details: Callable[..., Mapping[str, Any]], began: float, *values: Any) -> None:
    ended = now()
    recorder = active.recorder
    if recorder is not None:
        described = functools.partial(details, *[_form(value) for value in values])
        recorder.kernel_on(here(_COMPUTE), name, began, ended, described)


def _note_span(name: str, details: Callable[[], Mapping[str, Any]], began: float) -> None:
    ended = now()
    recorder = active.recorder
    if recorder is not None:
        recorder.span(here(_COMPUTE), name, began, ended, details)


def _note_iteration(loop: Operation, began: float, number: Any) -> None:
    ended = now()
    recorder = active.recorder
    if recorder is not None:
        recorder.span(here(_COMPUTE), f"iteration {int(number)}", began, ended, {"loop": loop.name})


class SavedBytes:
    """A program's statistics, as a timed one sees them: what is saved shows as a counter."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def note_saved(self, *values: Any) -> None:
        """Count state that was saved."""
        self._statistics.note_saved(*values)
        note_saved_bytes(self._statistics.saved_bytes)

    def note_recomputed(self, size: int) -> None:
        """Count state that was computed again."""
        self._statistics.note_recomputed(size)


def note_saved_bytes(count: int) -> None:
    """Note that a step holds, from now on, so many bytes for its backward pass."""
    if active.recorder is not None:
        active.recorder.counter(here("")[0], "saved bytes", now(), count)


@contextmanager
def step_span(describe: Callable[[], Mapping[str, Any]]) -> Generator[None]:
    """Record a span around a run of a step, whether it fails or not."""
    began = now()
    try:
        yield
    finally:
        _note_span("step", describe, began)


def note_compiled(began: float, describe: Callable[[], Mapping[str, Any]]) -> None:
    """Note that a program was compiled, as a span on a lane of its own."""
    if active.recorder is not None:
        active.recorder.span(here("compile"), "compile", began, now(), describe)


class _Form(NamedTuple):
    dtype: Any
    shape: tuple[int, ...]


def _form(value: Any) -> _Form | str:
    """Return dtype and shape of a value, or its class: what can be reported without keeping it."""
    dtype = getattr(value, "dtype", None)
    return type(value).__name__ if dtype is None else _Form(dtype, value.shape)


def _is_known(spec: Spec) -> bool:
    """Test whether the spec of a value gives all that can be said of it."""
    return isinstance(spec, FrameSpec) or (isinstance(spec, TensorSpec) and spec.is_static)


def _formatted(tensors: Sequence[Symbol], seen: Iterator[_Form | str]) -> str:
    """Format dtypes and shapes: the static ones from the specs, the others in turn from what was seen."""
    values = [tensor.spec for tensor in tensors if not isinstance(tensor.spec, FrameSpec)]
    forms = [spec if _is_known(spec) else next(seen) for spec in values]
    return ", ".join(form if isinstance(form, str) else describe_value(form) for form in forms)


def kernel_name(operation: Operation) -> str:
    """Return what an operation is called where times are shown."""
    names = operation.op.step_names
    return f"fused ({', '.join(names)})" if names else operation.type


def _static(operation: Operation) -> dict[str, Any]:
    """Return the known facts of an operation before it runs."""
    known = {"operation": operation.name, "type": operation.type, "line": str(operation.location)}
    return known | ({"device": operation.device} if operation.device else {})


def _details(operation: Operation, *seen: _Form | str) -> dict[str, Any]:
    """Return the facts of a kernel, given the forms of the values that are `varying`."""
    forms = iter(seen)
    inputs = _formatted(operation.inputs, forms)
    return {**_static(operation), "inputs": inputs, "outputs": _formatted(operation.outputs, forms)}


def _format_error(error: BaseException) -> str:
    """Return the error and its notes."""
    notes: Sequence[str] = getattr(error, "__notes__", ())
    return "\n".join([f"{type(error).__name__}: {error}", *notes])
