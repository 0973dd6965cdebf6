"""`profile`: what each line of a compiled program, and each line of the user's, takes."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..codegen.host.refits import refits
from ..common.dtypes import as_dtype
from ..common.nest import flatten, is_integer
from ..graph.graph import Operation
from ..graph.provenance import Part
from ..runtime.timing import now, operation_callback, operation_of, varying
from ..tracing import Slice, trace
from .session import Session, graph_of

_VALUE = re.compile(r"(\w+)\[([\d,]*)\]")
_WIDTH = 48  # of a line of the program in the table
_STEP = "step"  # the span around a run
_CLOCKS = 200  # that are measured together to find what one takes
_ROUNDS = 5  # of them


@dataclass(frozen=True, slots=True)
class ProfiledLine:
    """The time and bytes of one operation of a program in a run.

    Attributes:
        number: the line of the printed program that computes it, from 1; 0 if none does by itself.
        text: that line.
        operation: the operation's name; several that came of one have the same.
        location: the user's line that built it, ``file.py:12``; "" if it is not known.
        calls: how often it ran.
        seconds: what it took, all calls together, less what operations inside took; the median of the runs.
        bytes: of the values that it took and gave, all calls together; 0 for loops and branches themselves.
        parts: of a model, to which it belongs; of a fused kernel those of each operation in it.
    """

    number: int
    text: str
    operation: str
    location: str
    calls: int
    seconds: float
    bytes: int
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class UserLine:
    """The time and bytes, in a run, of the operations that one line of the user's code built.

    Attributes:
        location: ``/path/file.py:12``.
        calls: how many operations ran.
        seconds: what they took.
        bytes: of the values that they took and gave.
    """

    location: str
    calls: int
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Time and bytes of a step: `str` of it is a table, what took longest first.

    Attributes:
        seconds: what a run takes without clocks around its operations; the median.
        lines: what each operation took, in the order of the printed program. They add up to somewhat more than
            `seconds`, for what is compiled as a whole runs operation by operation while there are clocks.
        source: the printed program.
        runs: how often it was run.
        between: what a run with clocks takes between the operations.
        clocks: what the clocks themselves take in a run, about, by what one takes: in no line, nor in `between`.
        refits: how often in a run a kernel's operands were laid out again, because it does not take their layout.
    """

    seconds: float
    lines: tuple[ProfiledLine, ...]
    source: str
    runs: int
    between: float = 0.0
    clocks: float = 0.0
    refits: float = 0.0

    def by_user_line(self) -> list[UserLine]:
        """The same by the lines that built the operations, what took longest first.

        What several of your lines built in common, such as a fused kernel, counts for the last one of them.
        """
        found: dict[str, list[ProfiledLine]] = {}
        for line in self.lines:
            found.setdefault(line.location, []).append(line)
        summed = [
            UserLine(where, sum(o.calls for o in own), sum(o.seconds for o in own), sum(o.bytes for o in own))
            for where, own in found.items()
        ]
        return sorted(summed, key=lambda line: -line.seconds)

    def __str__(self) -> str:
        total = sum(line.seconds for line in self.lines) + self.clocks or 1.0
        told = [f"{_time(self.seconds)} a run (median of {self.runs}); with clocks {_time(total)}, of which:"]
        told.append(f"{'time':>10} {'share':>6} {'calls':>7} {'bytes':>9}  line")
        for line in sorted(self.lines, key=lambda line: -line.seconds):
            where = f"  # {line.operation}" + (f", {os.path.basename(line.location)}" if line.location else "")
            text = f"{line.number}: {line.text}" if line.number else "-"
            told.append(_row(line, total) + f"  {text[:_WIDTH]:<{_WIDTH}}{where}")
        if self.clocks:
            share = f"{self.clocks / total:.1%}"
            told.append(f"{_time(self.clocks):>10} {share:>6} {'':>17}  -: the clocks themselves, about")
        if self.refits:
            told.append(f"operands of kernels were laid out anew {self.refits:g} times a run")
        told.append("by your lines:")
        told += [_row(line, total) + f"  {line.location or 'elsewhere'}" for line in self.by_user_line()]
        return "\n".join(told) + "\n"


def profile(fetches: Any, feeds: Mapping[Any, Any] | None = None, runs: int = 10) -> Profile:
    """Measure each operation of a step: time and bytes, by line of the printed program and by your line.

    Args:
        fetches: tensors and operations, in any structure.
        feeds: values for the placeholders, as for `Session.run`.
        runs: how often the step is run, without clocks and with them; times are medians. What the step writes
            (variables, files) is written as often.

    Raises:
        ValueError: there are no fetches, `runs` is less than 1, or a placeholder was not fed.
        TypeError: `runs` is no integer.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default():
    ...     x = ab.placeholder((2, 2), "float32", "x")
    ...     found = ab.profile(x @ x, {x: [[1.0, 0.0], [0.0, 1.0]]}, runs=2)
    >>> [(line.text.strip(), line.calls, line.bytes) for line in found.lines]
    [('matmul = x @ x', 1, 48)]
    """
    _check_runs(runs)
    if not flatten(fetches):
        raise ValueError(f"profile: fetches={fetches!r} holds nothing to run; expected tensors or operations.")
    session = Session(graph_of(fetches))
    fed = dict(feeds or {})
    return profile_program(session.program_for(fetches, fed), lambda: session.run(fetches, fed), runs)


def profile_program(program: Any, run: Callable[[], Any], runs: int = 10) -> Profile:
    """`profile` of a program that is there already.

    Args:
        program: the program.
        run: runs it once.
        runs: as for `profile`.
    """
    _check_runs(runs)
    run()  # what is loaded and allocated once counts for no run
    before = refits.count
    seconds = statistics.median(_seconds_of(run) for _ in range(runs))
    laid_out = (refits.count - before) / runs
    clock = _clock_seconds(program)
    traced = [_traced(run, clock) for _ in range(runs + 1)][1:]  # the first one compiles
    between = statistics.median(between for _, between, _ in traced)
    clocks = statistics.median(clocks for _, _, clocks in traced)
    lines = tuple(_lines(program, [spent for spent, _, _ in traced]))
    return Profile(seconds, lines, program.source, runs, between, clocks, laid_out)


def _clock_seconds(program: Any) -> float:
    """Return the time of a clock itself, beside what it measures: that is counted outside of the operation."""
    operation = next((o.operation for o in program.origins.values() if not varying(o.operation)), None)
    if operation is None:
        return 0.0
    note = operation_callback(operation)
    return min(_seconds_of_clocks(note) for _ in range(_ROUNDS))  # others at work make clocks slower, none faster


def _seconds_of_clocks(note: Callable[[float], Any]) -> float:
    with trace() as recorded:
        began = now()
        for _ in range(_CLOCKS):
            note(now())
        ended = now()
    inside = sum(event.end - event.start for event in recorded.events if isinstance(event, Slice))
    return max(0.0, ended - began - inside) / _CLOCKS


def _check_runs(runs: int) -> None:
    if not is_integer(runs):
        raise TypeError(f"profile: runs={runs!r} ({type(runs).__name__}); expected how often the step is run, an int.")
    if runs < 1:
        raise ValueError(f"profile: runs={runs}; expected at least 1.")


def _seconds_of(run: Callable[[], Any]) -> float:
    began = now()
    run()
    return now() - began


# By operation of the program with clocks; where only that is known, by name and type.
_Run = dict[Any, "_Spent"]


@dataclass
class _Spent:
    """The time and bytes of one operation in one run."""

    name: str
    seconds: float = 0.0
    calls: int = 0
    bytes: int = 0
    location: str = ""
    operations: tuple[Operation | str, ...] = ()


def _traced(run: Callable[[], Any], clock: float) -> tuple[_Run, float, float]:
    """Return the times of operations in a run, of what is between them, and of clocks, each of them `clock` seconds."""
    with trace() as recorded:
        run()
    slices = [event for event in recorded.events if isinstance(event, Slice) and event.lane.stream != "compile"]
    spent: _Run = {}
    between = 0.0
    own = _own_times(slices, clock)
    clocks = sum(seconds for _, seconds in _own_times(slices)) - sum(seconds for _, seconds in own)
    for event, seconds in own:
        _add(spent, event, seconds)
        is_step = event.name == _STEP and event.lane.stream == "compute"  # not of one that spans devices
        between += seconds if is_step else 0.0
    return spent, between, clocks


def _add(spent: _Run, event: Slice, seconds: float) -> None:
    details = event.details() if callable(event.details) else event.details or {}
    if "loop" in details:  # an iteration: what is between the operations of a loop
        loops = [own for own in spent.values() if own.name == details["loop"]]
        if loops:
            loops[-1].seconds += seconds  # the one that began last
        return
    if "operation" not in details:
        return
    name = str(details["operation"])
    operation = operation_of(event)
    own = spent.setdefault(operation or (name, str(details.get("type", ""))), _Spent(name))
    own.operations = (operation,) if operation else tuple(str(details.get("operations", name)).split(", "))
    own.seconds += seconds
    own.calls += 1
    own.location = "" if details.get("line") in (None, "None") else str(details["line"])
    if event.is_kernel:
        own.bytes += _bytes_of(f"{details.get('inputs', '')} {details.get('outputs', '')}")


def _own_times(slices: Iterable[Slice], clock: float = 0.0) -> list[tuple[Slice, float]]:
    """Each slice with its time less that of those inside and of their clocks, on its lane; what is around comes first.

    Args:
        slices: what was recorded.
        clock: the seconds that a clock takes.
    """
    own: dict[int, float] = {}
    ordered = sorted(slices, key=lambda event: (event.lane, event.start, -event.end))
    around: list[tuple[int, Slice]] = []
    for place, event in enumerate(ordered):
        while around and (around[-1][1].lane != event.lane or around[-1][1].end <= event.start):
            around.pop()
        own[place] = event.end - event.start
        if around:
            own[around[-1][0]] -= event.end - event.start + clock
        around.append((place, event))
    return [(event, max(0.0, own[place])) for place, event in enumerate(ordered)]


def _bytes_of(told: str) -> int:
    """Return the bytes of values that are described as ``float32[2,3]``."""
    total = 0
    for name, dims in _VALUE.findall(told):
        size = math.prod(int(dim) for dim in dims.split(",") if dim)
        total += 0 if name == "string" else size * as_dtype(name).itemsize
    return total


def _lines(program: Any, traced: Sequence[_Run]) -> list[ProfiledLine]:
    """Each operation with the line that computes it, in the order of lines."""
    texts, numbers = program.source.splitlines(), _numbers(program)
    named = {origin.operation.name: origin.operation for origin in program.origins.values()}
    found: list[ProfiledLine] = []
    for key in dict.fromkeys(key for run in traced for key in run):
        runs = [run[key] for run in traced if key in run]
        number, last = numbers.get(key, 0), runs[-1]
        seconds = statistics.median([own.seconds for own in runs])
        text = texts[number - 1].strip() if number else ""
        parts = _parts(last.operations, named)
        found.append(ProfiledLine(number, text, last.name, last.location, last.calls, seconds, last.bytes, parts))
    return sorted(found, key=lambda line: line.number or len(texts) + 1)


def _parts(operations: Sequence[Operation | str], named: Mapping[str, Operation]) -> tuple[Part, ...]:
    """The parts of a model to which operations belong; of some only the names are known."""
    known = [named.get(each) if isinstance(each, str) else each for each in operations]
    locations = [None if operation is None else operation.location for operation in known]
    return tuple([part for location in locations if location is not None for part in location.parts])


def _numbers(program: Any) -> dict[Any, int]:
    """The line of each operation: of the same operations in the program with clocks, and by name and type."""
    lines: dict[Any, list[int]] = {}
    for operation, number in _lines_of(program).items():
        lines.setdefault((operation.name, operation.type), []).append(number)
    found: dict[Any, int] = {key: numbers[0] for key, numbers in lines.items()}
    for operation in _lines_of(program.with_clocks()):
        like = lines.get((operation.name, operation.type))
        if like:
            found[operation] = like.pop(0) if len(like) > 1 else like[0]
    return found


def _lines_of(program: Any) -> dict[Operation, int]:
    """For each operation the line where a loop or branch begins, or where the value of another one is there."""
    found: dict[Operation, int] = {}
    for number, origin in sorted(program.origins.items()):
        if origin.operation not in found or not origin.operation.op.regions:
            found[origin.operation] = number
    return found


def _row(line: ProfiledLine | UserLine, total: float) -> str:
    return f"{_time(line.seconds):>10} {line.seconds / total:>6.1%} {line.calls:>7,} {_size(line.bytes):>9}"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
