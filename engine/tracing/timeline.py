"""Writes events as a timeline in Chrome's JSON trace event format, in the way in which Perfetto reads it.

Devices are processes and streams are threads. What has to be minded, from the sources of Perfetto's importer:

- Slices of a thread have to contain each other or be disjoint. Here those that are neither go to a row of their own.
- A flow is bound to the slice that began last, so its two events stand directly behind that slice.
- A time is a number of microseconds; as a float it is multiplied by 1000 and cut off, which may lose a nanosecond.
- Threads are found by their number alone, so numbers are given once and not once a process.

Formats: "Trace Event Format" (the Chromium authors); https://perfetto.dev/docs/getting-started/other-formats.
"""

from __future__ import annotations

import bisect
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..common.atomic import atomic_write
from .recorder import Clock, Counter, Details, Event, Flow, Instant, Lane, Slice

_STREAMS = ("scheduler", "compute", "h2d", "d2h", "send", "recv")  # in this order; others follow by name
_FIRST_THREAD = 1000  # a thread with the number of its process would be taken for the main thread
_METADATA, _COUNTER, _SLICE, _FLOW_START, _FLOW_END, _INSTANT = range(6)  # the order of what has one time


def check_path(path: Path) -> Path:
    """Return `path`, if a file can be written there.

    Raises:
        FileNotFoundError: its folder does not exist. IsADirectoryError: it is a folder.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"Can't write the trace {str(path)!r}: there is no folder {str(path.parent)!r}. Make it first."
        )
    if path.is_dir():
        raise IsADirectoryError(f"Can't write the trace {str(path)!r}: it is a folder. Give the name of a file.")
    return path


def write_timeline(events: Sequence[Event], path: str | os.PathLike[str]) -> None:
    """Write `events` to a file, whole or not at all; compressed if the name ends with ".gz".

    Raises:
        FileNotFoundError: the folder of the file does not exist. OSError: it can't be written.
    """
    target = check_path(Path(os.path.realpath(path)))
    data = timeline(events).encode()
    if target.suffix == ".gz":
        import gzip  # few traces are as long

        data = gzip.compress(data, compresslevel=5, mtime=0)
    with atomic_write(target) as stream:
        stream.write(data)


def timeline(events: Sequence[Event]) -> str:
    """Return `events` as a JSON document."""
    return _Timeline(events).text()


class _Row:
    """A thread of the timeline: slices of one lane that contain each other or are disjoint.

    Args:
        number: its place among the rows of the lane.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.thread = 0
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._around: list[int] = []  # for each slice the one around it, or -1
        self._latest = -1  # the innermost slice that may go on, while slices are added by start

    def takes(self, start: int, end: int) -> bool:
        """Add a slice, if it does not cross another one. Slices come by start, outer ones first."""
        while self._latest >= 0 and self._ends[self._latest] <= start:
            self._latest = self._around[self._latest]
        if self._latest >= 0 and self._ends[self._latest] < end:
            return False
        self._around.append(self._latest)
        self._latest = len(self._starts)
        self._starts.append(start)
        self._ends.append(end)
        return True

    def start_of_slice(self, time: int) -> int | None:
        """Return where the innermost slice around `time` begins: one that begins there, rather than one that ends."""
        place = bisect.bisect_right(self._starts, time) - 1
        while place >= 0 and self._ends[place] < time:
            place = self._around[place]
        return self._starts[place] if place >= 0 else None


class _Timeline:
    """The JSON events of a timeline under construction, each with what it is sorted by."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.origin = min((_first_time(event) for event in events if not isinstance(event, Clock)), default=0.0)
        self.rows: dict[Lane, list[_Row]] = {}
        self.lines: list[tuple[int, int, int, dict[str, Any]]] = []
        self.arrows_left_out = 0
        self.clocks = _clocks([event for event in events if isinstance(event, Clock)])
        slices = [event for event in events if isinstance(event, Slice)]
        instants = [event for event in events if isinstance(event, Instant)]
        placed = self._place(slices)
        for instant in instants:
            self.rows.setdefault(instant.lane, [_Row(0)])
        counters = [event for event in events if isinstance(event, Counter)]
        self.devices = _numbered([*[lane.device for lane in self.rows], *[event.device for event in counters]])
        self._name_rows()
        for event, row in placed:
            self._add_slice(event, row)
        for event in instants:
            self._add_instant(event)
        for event in counters:
            self._add_counter(event)
        for number, event in enumerate([event for event in events if isinstance(event, Flow)], 1):
            self._add_flow(number, event)

    def text(self) -> str:
        """Return the document; one event a line, by time, as the importer wants those with flows."""
        self.lines.sort(key=lambda line: line[:3])
        described = ",\n".join(_as_json(time, event) for time, _, _, event in self.lines)
        other = json.dumps(
            {"arrows left out": self.arrows_left_out, **({"clocks": self.clocks} if self.clocks else {})}
        )
        return f'{{"displayTimeUnit": "ns", "otherData": {other}, "traceEvents": [\n{described}\n]}}\n'

    def _nanoseconds(self, time: float) -> int:
        return round((time - self.origin) * 1e9)

    def _extent(self, event: Slice) -> tuple[int, int]:
        start = self._nanoseconds(event.start)
        return start, max(start, self._nanoseconds(event.end))

    def _place(self, slices: Iterable[Slice]) -> list[tuple[Slice, _Row]]:
        """Return each slice with the first row of its lane in which it crosses none."""
        placed: list[tuple[Slice, _Row]] = []
        extents = [(self._extent(event), event) for event in slices]
        # What ended later was recorded later, and encloses what began and ended with it.
        extents.reverse()
        for (start, end), event in sorted(extents, key=lambda pair: (pair[0][0], -pair[0][1])):
            rows = self.rows.setdefault(event.lane, [])
            row = next((row for row in rows if row.takes(start, end)), None)
            if row is None:
                row = _Row(len(rows))
                row.takes(start, end)
                rows.append(row)
            placed.append((event, row))
        return placed

    def _name_rows(self) -> None:
        """Say what processes and threads are called, and in which order they are shown."""
        for device, process in self.devices.items():
            self._describe(process, process, "process", device, process)
        thread = _FIRST_THREAD
        for lane in sorted(self.rows, key=_lane_order):
            for row in self.rows[lane]:
                row.thread = thread
                name = f"{lane.stream} [{row.number + 1}]" if row.number else lane.stream
                self._describe(self.devices[lane.device], thread, "thread", name, thread)
                thread += 1

    def _describe(self, process: int, thread: int, kind: str, name: str, order: int) -> None:
        common = {"ph": "M", "pid": process, "tid": thread}
        for what, value in ((f"{kind}_name", {"name": name}), (f"{kind}_sort_index", {"sort_index": order})):
            self.lines.append((0, _METADATA, 0, {**common, "name": what, "args": value}))

    def _add(self, time: int, order: int, event: dict[str, Any], second: int = 0) -> None:
        self.lines.append((time, order, second, event))

    def _add_slice(self, event: Slice, row: _Row) -> None:
        start, end = self._extent(event)
        described = {
            "ph": "X",
            "dur": end - start,
            "pid": self.devices[event.lane.device],
            "tid": row.thread,
            "name": event.name,
            "cat": "kernel" if event.is_kernel else "span",
            "args": given(event.details),
        }
        self._add(start, _SLICE, described, start - end)

    def _add_instant(self, event: Instant) -> None:
        row = self.rows[event.lane][0]
        described = {"ph": "i", "s": "t", "pid": self.devices[event.lane.device], "tid": row.thread, "name": event.name}
        self._add(self._nanoseconds(event.time), _INSTANT, {**described, "args": given(event.details)})

    def _add_counter(self, event: Counter) -> None:
        if not math.isfinite(event.value):
            return
        process = self.devices[event.device]
        described = {"ph": "C", "pid": process, "tid": process, "name": event.name, "args": {"value": event.value}}
        self._add(self._nanoseconds(event.time), _COUNTER, described)

    def _add_flow(self, number: int, event: Flow) -> None:
        source = self._bound(event.source, self._nanoseconds(event.sent))
        target = self._bound(event.target, self._nanoseconds(event.received))
        if source is None or target is None or event.sent > event.received:
            self.arrows_left_out += 1
            return
        (sent, source_row), (received, target_row) = source, target
        if sent > received:  # the receiver's slice began before: the arrow ends when it was said to
            received = self._nanoseconds(event.received)
        common = {"id": number, "name": "transfer", "cat": "flow", "args": {"key": str(event.key)}}
        start = {"ph": "s", "pid": self.devices[event.source.device], "tid": source_row.thread, **common}
        end = {"ph": "f", "bp": "e", "pid": self.devices[event.target.device], "tid": target_row.thread, **common}
        self._add(sent, _FLOW_START, start)
        self._add(received, _FLOW_END, end)

    def _bound(self, lane: Lane, time: int) -> tuple[int, _Row] | None:
        """Return where the innermost slice around `time` begins, and its row."""
        starts = [(row.start_of_slice(time), row) for row in self.rows.get(lane, ())]
        around = [(start, row) for start, row in starts if start is not None]
        return max(around, key=lambda pair: pair[0]) if around else None


def _first_time(event: Slice | Flow | Counter | Instant) -> float:
    if isinstance(event, Slice):
        return event.start
    return event.sent if isinstance(event, Flow) else event.time


def _clocks(clocks: Iterable[Clock]) -> dict[str, dict[str, float | None]]:
    """Return, by device, the largest error of its clock, and how far it was ahead then, in microseconds."""
    worst: dict[str, Clock] = {}
    for clock in clocks:
        if clock.device not in worst or clock.error > worst[clock.device].error:
            worst[clock.device] = clock
    return {
        device: {
            "error": round(clock.error * 1e6, 3) if math.isfinite(clock.error) else None,
            "ahead": round(clock.ahead * 1e6, 3),
        }
        for device, clock in sorted(worst.items())
    }


def _numbered(names: Iterable[str]) -> dict[str, int]:
    """Return numbers from 1, for names in order; Perfetto takes process 0 for the system's."""
    return {name: number for number, name in enumerate(sorted(set(names), key=_natural), 1)}


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts "cpu:2" before "cpu:10"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _lane_order(lane: Lane) -> tuple[Any, ...]:
    known = lane.stream.partition(" ")[0]
    place = _STREAMS.index(known) if known in _STREAMS else len(_STREAMS)
    return _natural(lane.device), place, _natural(lane.stream)


def given(details: Details) -> dict[str, Any]:
    """Return details as they are written: texts, and finite numbers."""
    found = details() if callable(details) else details
    return {name: _plain(value) for name, value in (found or {}).items()}


def _plain(value: Any) -> Any:
    """Return `value` if JSON has it, otherwise its text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float)) else str(value)


def _as_json(time: int, event: dict[str, Any]) -> str:
    """Print an event at a time in ns. JSON's own way to write floats could be 1e-05, which is read inexactly."""
    times = f'"ts": {_microseconds(time)}'
    if "dur" in event:
        times += f', "dur": {_microseconds(event.pop("dur"))}'
    rest = json.dumps(event)
    return f"{rest[:-1]}, {times}}}"


def _microseconds(nanoseconds: int) -> str:
    """Return a decimal number that gives `nanoseconds` also to a reader who multiplies by 1000 and cuts off."""
    text = f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
    return text if int(float(text) * 1000.0) == nanoseconds else text + "1"
