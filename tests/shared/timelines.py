"""Reads a timeline as Perfetto's importer does, and checks the rules of the format on the way."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEYS = {
    "X": {"name", "dur", "cat", "args"},
    "M": {"name", "args"},
    "s": {"id", "name", "cat"},
    "f": {"id", "name", "cat", "bp"},
    "C": {"name", "args"},
    "i": {"name", "s"},
}


@dataclass
class ReadSlice:
    """A slice; times in nanoseconds."""

    name: str
    device: str
    stream: str
    start: int
    end: int
    is_kernel: bool
    args: dict[str, Any]
    parent: ReadSlice | None


@dataclass
class Timeline:
    """A timeline, as a viewer shows it."""

    slices: list[ReadSlice] = field(default_factory=list)
    arrows: list[tuple[ReadSlice, ReadSlice]] = field(default_factory=list)
    counters: list[tuple[str, str, float]] = field(default_factory=list)
    instants: list[dict[str, Any]] = field(default_factory=list)
    streams: list[tuple[str, str]] = field(default_factory=list)
    arrows_left_out: int = 0
    clocks: dict[str, dict[str, float | None]] = field(default_factory=dict)

    def named(self, name: str) -> list[ReadSlice]:
        return [each for each in self.slices if each.name == name]

    def kernels(self) -> list[str]:
        return [each.name for each in self.slices if each.is_kernel]


def read_timeline(path: str | Path) -> Timeline:
    """The timeline in a file, every rule of the format checked."""
    data = Path(path).read_bytes()
    return read_text((gzip.decompress(data) if Path(path).suffix == ".gz" else data).decode())


def read_text(text: str) -> Timeline:
    """The timeline in a JSON document, every rule of the format checked."""
    document = json.loads(text)
    events: list[dict[str, Any]] = document["traceEvents"]
    for event in events:
        assert {"ph", "ts", "pid", "tid"} <= event.keys(), event
        assert event["ph"] in KEYS, event
        assert KEYS[event["ph"]] <= event.keys(), event
        assert event["pid"] > 0, "process 0 is the system's"
    other = document["otherData"]
    found = Timeline(arrows_left_out=other["arrows left out"], clocks=other.get("clocks", {}))
    names = _names(events, found)
    times = [_nanoseconds(event["ts"]) for event in events]
    assert times == sorted(times), "flows are bound by the order of the file where times are equal"
    reader = _Reader(found, names)
    for time, event in zip(times, events, strict=True):
        reader.read(time, event)
    assert not reader.flows, f"flows without an end: {reader.flows}"
    return found


def _nanoseconds(microseconds: float) -> int:
    return int(microseconds * 1000.0)  # cut off, as the importer does


def _names(events: list[dict[str, Any]], found: Timeline) -> dict[tuple[str, int], str]:
    names: dict[tuple[str, int], str] = {}
    order: list[tuple[int, int, int]] = []
    processes: dict[int, int] = {}
    for event in events:
        if event["ph"] == "M":
            kind, _, what = event["name"].partition("_")
            key = (kind, event["pid" if kind == "process" else "tid"])
            if what == "name":
                assert key not in names, "numbers of threads are unique, not within a process only"
                names[key] = event["args"]["name"]
            elif kind == "thread":
                order.append((processes[event["pid"]], event["args"]["sort_index"], event["tid"]))
            else:
                processes[event["pid"]] = event["args"]["sort_index"]
    owner = {event["tid"]: event["pid"] for event in events}
    found.streams = [(names["process", owner[tid]], names["thread", tid]) for *_, tid in sorted(order)]
    return names


class _Reader:
    def __init__(self, found: Timeline, names: dict[tuple[str, int], str]) -> None:
        self.found = found
        self.names = names
        self.flows: dict[Any, tuple[int, ReadSlice]] = {}
        self.open: dict[int, list[ReadSlice]] = {}  # the stack of each thread: slices are closed when others begin

    def read(self, time: int, event: dict[str, Any]) -> None:
        kinds = {
            "M": self._read_metadata,
            "X": self._read_slice,
            "s": self._read_flow_start,
            "f": self._read_flow_end,
            "C": self._read_counter,
            "i": self._read_instant,
        }
        kinds[event["ph"]](time, event)

    def _read_metadata(self, time: int, event: dict[str, Any]) -> None:
        assert event["name"] in {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}

    def _read_slice(self, time: int, event: dict[str, Any]) -> None:
        stack = self.open.setdefault(event["tid"], [])
        end = time + _nanoseconds(event["dur"])
        assert end >= time
        while stack and stack[-1].end <= time:
            stack.pop()
        assert not stack or end <= stack[-1].end, f"{event} crosses {stack[-1]}"
        device, stream = self.names["process", event["pid"]], self.names["thread", event["tid"]]
        parent = stack[-1] if stack else None
        is_kernel = event["cat"] == "kernel"
        read = ReadSlice(event["name"], device, stream, time, end, is_kernel, event["args"], parent)
        stack.append(read)
        self.found.slices.append(read)

    def _top(self, time: int, event: dict[str, Any]) -> ReadSlice:
        top = self.open[event["tid"]][-1]
        assert top.start <= time <= top.end, f"{event} is outside {top}"
        return top

    def _read_flow_start(self, time: int, event: dict[str, Any]) -> None:
        assert event["id"] not in self.flows
        self.flows[event["id"]] = time, self._top(time, event)

    def _read_flow_end(self, time: int, event: dict[str, Any]) -> None:
        assert event["bp"] == "e"
        sent, source = self.flows.pop(event["id"])
        assert sent <= time
        self.found.arrows.append((source, self._top(time, event)))

    def _read_counter(self, time: int, event: dict[str, Any]) -> None:
        for value in event["args"].values():
            self.found.counters.append((self.names["process", event["pid"]], event["name"], value))

    def _read_instant(self, time: int, event: dict[str, Any]) -> None:
        assert event["s"] == "t"
        device, stream = self.names["process", event["pid"]], self.names["thread", event["tid"]]
        told = {"name": event["name"], "time": time, "device": device, "stream": stream}
        self.found.instants.append({**told, **event["args"]})
