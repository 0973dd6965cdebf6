"""Messages of run-time errors: they name the operation, its inputs, and where it was built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, cast

import numpy as np

from ..common.descriptions import describe_value
from ..graph.graph import Operation
from ..graph.op import is_array
from ..graph.spec import TensorSpec
from .printed import Origin

_MOST_SHOWN = 8  # integers of an index


def _explain_in_users_words(error: BaseException, operation: Operation, values: Sequence[Any]) -> None:
    """Give NumPy's errors the text of the same misfit while a graph is built, and the names of what is indexed."""
    op = operation.op
    names = [tensor.operation.name for tensor in operation.inputs]
    text = op.text(names) if isinstance(error, IndexError) else None
    if text is not None:
        known = [f"{name} is {_short(value)}" for name, value in zip(names, values, strict=False)]
        error.args = (f"{error}, in {text}, where {', '.join(known)}.",)
    is_known = len(values) == len(operation.inputs)  # writes of rows take no value of the variable
    is_known = is_known and all(is_array(value) or isinstance(value, np.generic) for value in values)
    if isinstance(error, ValueError) and is_known:
        try:
            op.infer(*[TensorSpec(value.shape, value.dtype) for value in values])
        except ValueError as found:
            error.args = found.args
        except Exception:  # the op has no better message
            return


def _short(value: Any) -> str:
    """Return a value in an error: itself where it is a few integers, otherwise its dtype and shape."""
    is_few = getattr(value, "size", _MOST_SHOWN + 1) <= _MOST_SHOWN and value.dtype.kind in "iu"
    return str(value.tolist()) if is_few else describe_value(value)


def annotate(
    error: BaseException,
    operation: Operation,
    values: Sequence[Any],
    iterations: Sequence[tuple[Operation, int]] = (),
    calls: Sequence[tuple[str, int]] = (),
    device: str | None = None,
) -> None:
    """Note on `error`, once, which operation raised it.

    Args:
        error: the error, which keeps its type.
        operation: the operation that was run.
        values: its inputs.
        iterations: the loops around it, innermost first, with the number of the iteration, from 0.
        calls: the recursive functions around it, each with how many calls of it are under way.
        device: where it ran, if there are several.
    """
    if getattr(error, "_anabranch_operation", None) is not None:
        return
    _explain_in_users_words(error, operation, values)
    whole = operation.name, operation.type, operation.location, len(values)
    name, kind, location, taken = operation.op.failed_part(values) or whole
    values = values[:taken]
    inputs = ", ".join(describe_value(value) for value in values) or "none"
    around = list(operation.iterations)
    for loop, count in iterations:
        around += [(loop.name, count), *loop.iterations]
    loops = "".join(f", iteration {count} of {name!r}" for name, count in around)
    loops += "".join(f", {depth} {'call' if depth == 1 else 'calls'} deep in {name!r}" for name, depth in calls)
    where = "" if device is None else f" on {device}"
    error.add_note(f"In operation {name!r} ({kind}){where}{loops}; inputs: {inputs}; defined at {location}")
    cast(Any, error)._anabranch_operation = name


def annotate_from(
    error: BaseException,
    filename: str,
    origins: Mapping[int, Origin],
    device: str | None = None,
    calls: Sequence[tuple[str, int]] = (),
) -> list[FrameType]:
    """Note on `error` the operation whose printed line raised it.

    Args:
        error: the error, which keeps its type.
        filename: of the printed code.
        origins: by line, the operation that is computed there.
        device: where it ran, if there are several.
        calls: the recursive functions under way, each with how many calls of it there are.

    Returns:
        The frames of the printed code, the outermost first.
    """
    frames: list[FrameType] = []
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == filename:
            frames.append(traceback.tb_frame)
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    origin = origins.get(line)
    if origin is not None:
        scope: dict[str, Any] = {}  # names are unique in the whole program
        for frame in frames:
            scope |= {**frame.f_globals, **frame.f_locals}
        values = [scope[name] for name in origin.arguments if name in scope]
        iterations = [(loop, evaluated(count, scope)) for loop, count in origin.loops]
        annotate(error, origin.operation, values, iterations, calls, device)
    return frames


def clear(frames: Iterable[FrameType]) -> None:
    """Let go of what the printed code of a step that failed had saved."""
    for frame in frames:
        frame.clear()


def evaluated(count: str, scope: Mapping[str, Any]) -> int:
    """Return the value of a loop's counting expression: a name, or a name less a number."""
    name, _, start = count.partition(" - ")
    return int(scope[name]) - int(start or 0)
