"""Traces of steps over tasks: each task records its part by its own clock; the client puts all into one timeline."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...engine.machine.part import Crossing
from ...engine.tracing.recorder import Counter, End, Event, Flow, Instant, Lane, Recorder, Slice
from ...engine.tracing.timeline import given
from ..transport.wire import DAMAGE, FrameError
from .clocks import Alignment, Reading, same_clock

_SPAN, _KERNEL, _FLOW, _COUNTER, _INSTANT, _SENT, _ARRIVED = range(7)
_NO_LANE = -1
_LEAST = 1e-8  # seconds that a value is under way


# --- on the wire ----------------------------------------------------------------------------------------------------


class _Table:
    """Things that are written once, and numbered."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, item: Hashable) -> int:
        return self._numbers.setdefault(item, len(self._numbers))

    def items(self) -> list[Any]:
        return list(self._numbers)


def encode_trace(events: Sequence[Event], crossings: Sequence[Crossing], arrays: list[Any]) -> dict[str, Any]:
    """Describe what a task has recorded as JSON; times and numbers are appended to `arrays`."""
    lanes, names, details = _Table(), _Table(), _Table()
    rows: list[tuple[int, int, int, int, int]] = []
    times: list[tuple[float, float]] = []

    def add(kind: int, lane: Any, name: str, one: float, two: float, more: Any = None, other: Any = None) -> None:
        target = _NO_LANE if other is None else lanes.number(tuple(other))
        described = details.number(json.dumps(given(more)))
        rows.append((kind, lanes.number(tuple(lane)), names.number(name), described, target))
        times.append((one, two))

    for event in events:
        match event:
            case Slice():
                kind = _KERNEL if event.is_kernel else _SPAN
                add(kind, event.lane, event.name, event.start, event.end, event.details)
            case Flow():
                add(_FLOW, event.source, str(event.key), event.sent, event.received, other=event.target)
            case Counter():
                add(_COUNTER, (event.device, ""), event.name, event.time, event.value)
            case Instant():
                add(_INSTANT, event.lane, event.name, event.time, event.time, event.details)
            case _:  # clocks are read by who asks for traces
                pass
    for key, is_sent, (device, stream, time) in crossings:
        add(_SENT if is_sent else _ARRIVED, (device, stream), key, time, time)
    arrays += [np.array(rows, np.int32).reshape(-1, 5), np.array(times, np.float64).reshape(-1, 2)]
    more = [json.loads(text) for text in details.items()]
    described = {"lanes": lanes.items(), "names": names.items(), "details": more}
    return {**described, "rows": len(arrays) - 2, "times": len(arrays) - 1}


class TaskTrace(NamedTuple):
    """The events of a step that a task has recorded.

    Attributes:
        events: by its own clock.
        crossings: ends of arrows.
    """

    events: list[Event]
    crossings: list[Crossing]


def decode_trace(described: Any, arrays: Sequence[Any]) -> TaskTrace:
    """Read what `encode_trace` wrote.

    Raises:
        FrameError: it is not such a description.
    """
    try:
        lanes = [Lane(str(device), str(stream)) for device, stream in described["lanes"]]
        names = [str(name) for name in described["names"]]
        details = [dict(each) for each in described["details"]]
        rows, times = arrays[int(described["rows"])].tolist(), arrays[int(described["times"])].tolist()
        found = TaskTrace([], [])
        for (kind, lane, name, more, other), (one, two) in zip(rows, times, strict=True):
            if not (math.isfinite(one) and min(lane, name, more) >= 0):
                raise FrameError("an event of a trace has no time, or no name")
            if kind in (_SENT, _ARRIVED):
                found.crossings.append(Crossing(names[name], kind == _SENT, (*lanes[lane], one)))
            else:
                target = lanes[other] if other >= 0 else None
                found.events.append(_event(kind, lanes[lane], names[name], one, two, details[more] or None, target))
        return found
    except FrameError:
        raise
    except DAMAGE as error:
        raise FrameError(f"a trace is damaged: {type(error).__name__}: {error}") from None


def _event(kind: int, lane: Lane, name: str, one: float, two: float, details: Any, target: Lane | None) -> Event:
    if kind in (_SPAN, _KERNEL, _FLOW) and not math.isfinite(two):
        raise FrameError("an event of a trace has no end")
    match kind:
        case 0 | 1:
            return Slice(lane, name, one, two, details, kind == _KERNEL)
        case 2 if target is not None:
            return Flow(name, lane, one, target, two)
        case 3:
            return Counter(lane.device, name, one, two)
        case 4:
            return Instant(lane, name, one, details)
        case _:
            raise FrameError(f"a trace has an event of kind {kind}")


def encode_traces(
    traces: Mapping[str, tuple[Any, Sequence[Any]]],
    before: Mapping[str, Reading],
    after: Mapping[str, Reading],
    arrays: list[Any],
) -> list[Any]:
    """Describe what several tasks have sent of one step; their arrays are appended to `arrays`.

    Args:
        traces: by task, the description and the arrays among which its own are.
        before, after: readings of the clocks of tasks; of the task that has taken them there is none.
    """
    found: list[Any] = []
    for task, (described, own) in traces.items():
        clocks = [readings.get(task) for readings in (before, after)]
        places = {key: len(arrays) + place for place, key in enumerate(("rows", "times"))}
        arrays += [own[int(described[key])] for key in places]
        found.append({"task": task, "clocks": clocks, "trace": {**described, **places}})
    return found


# --- one timeline ---------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """The part of one task."""

    task: str
    clocks: Alignment
    trace: TaskTrace


def read_traces(described: Any, arrays: Sequence[Any], master: str) -> list[Part]:
    """Read what `encode_traces` wrote: the parts of tasks, with their clocks as the master has read them.

    Raises:
        FrameError: it is not such a description.
    """
    try:
        return [_read_part(each, arrays, master) for each in described]
    except FrameError:
        raise
    except DAMAGE as error:
        raise FrameError(f"a trace is damaged: {type(error).__name__}: {error}") from None


def _read_part(described: Any, arrays: Sequence[Any], master: str) -> Part:
    task = str(described["task"])
    before, after = (None if each is None else Reading(*map(float, each)) for each in described["clocks"])
    clocks = same_clock() if task == master else Alignment(before, after)
    return Part(task, clocks, decode_trace(described["trace"], arrays))


def merge(recorder: Recorder, parts: Sequence[Part], master: Alignment, now: float) -> None:
    """Record what tasks have done in a step, by this process's clock, with the arrows between them.

    Within the errors of clocks, what has arrived may seem not to have been sent yet. Then the clocks of tasks are
    moved, by no more than their errors, so that it was.

    Args:
        parts: of tasks, with clocks by that of the master.
        master: the clock of that.
        now: the time.
    """
    pairs = _pairs(parts, master)
    moved = _moved({part.task: part.clocks.error for part in parts}, pairs)
    for part in parts:

        def own(time: float, clocks: Alignment = part.clocks, shift: float = moved[part.task]) -> float:
            return master.own(clocks.own(time)) + shift

        recorder.events.extend([_by_clock(event, own) for event in part.trace.events])
        recorder.clock(part.task, now, part.clocks.ahead + master.ahead, part.clocks.error + master.error)
    for key, source, target in pairs:
        (device, stream, sent), (other, row, received) = source, target
        recorder.flow(key, (device, stream, sent + moved[device]), (other, row, received + moved[other]))


def _pairs(parts: Sequence[Part], master: Alignment) -> list[tuple[str, End, End]]:
    """Return both ends of each value that has crossed, by this process's clock."""
    ends: dict[bool, dict[str, End]] = {True: {}, False: {}}
    for part in parts:
        for key, is_sent, (_, stream, time) in part.trace.crossings:
            ends[is_sent][key] = (part.task, stream, master.own(part.clocks.own(time)))
    return [(key, ends[True][key], end) for key, end in ends[False].items() if key in ends[True]]


def _moved(errors: Mapping[str, float], pairs: Sequence[tuple[str, End, End]]) -> dict[str, float]:
    """Return by how much the clock of each task is moved so that nothing arrives before it was sent.

    Args:
        errors: by how much each may be moved.
        pairs: what was sent and has arrived.
    """
    least: dict[tuple[str, str], float] = {}
    for _, (source, _, sent), (target, _, received) in pairs:
        least[source, target] = min(received - sent, least.get((source, target), math.inf))
    moved = dict.fromkeys(errors, 0.0)
    for _ in range(2 * len(errors)):
        early = {ends: time + moved[ends[1]] - moved[ends[0]] for ends, time in least.items()}
        early = {ends: _LEAST - time for ends, time in early.items() if time < 0}
        if not early:
            break
        (source, target), missing = max(early.items(), key=lambda item: item[1])
        forward = min(missing, errors[target] - moved[target])
        moved[target] += forward
        moved[source] -= min(missing - forward, errors[source] + moved[source])
    return moved


def _by_clock(event: Event, own: Callable[[float], float]) -> Event:
    """Return an event with its times by another clock."""
    match event:
        case Slice():
            return event._replace(start=own(event.start), end=own(event.end))
        case Flow():
            return event._replace(sent=own(event.sent), received=own(event.received))
        case _:
            return event._replace(time=own(event.time))


__all__ = ["Part", "TaskTrace", "decode_trace", "encode_trace", "encode_traces", "merge", "read_traces"]
