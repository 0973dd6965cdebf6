"""`profile`: what each line of a compiled program, and each line of the user's, takes."""

from __future__ import annotations

import functools
import math
import os
import re
import statistics
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..codegen.host.refits import refits
from ..common.dtypes import as_dtype
from ..common.html import FLAME_STYLE, escape, flame_graph, page, shortened, table, view
from ..common.nest import flatten, is_integer
from ..common.quick_dataclass import dataclass
from ..graph.graph import Operation
from ..graph.provenance import Part
from ..runtime.program import Program
from ..runtime.timing import now, operation_callback, operation_of, varying
from ..tracing import Slice, trace
from .session import Session, graph_of
from .speedscope import Stack, write_speedscope

_VALUE = re.compile(r"(\w+)\[([\d,]*)\]")
_WIDTH = 48  # of a line of the program in the table
_STEP = "step"  # the span around a run
_CLOCKS = 200  # that are measured together to find what one takes
_ROUNDS = 5  # of them
_SECONDS = 2.0  # that all runs of a profile take about, where the number of runs is not given
_MOST_RUNS = 200
_QUIET = 4  # one of so many runs counts: the quickest, which others at work have disturbed least
_TOGETHER = 5  # runs of a kind, one after the other, and the least that there are by default
_MOST_ROWS = 30  # of a table in HTML


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
        kernel: the kind of kernel that it runs: "matmul", "fused (add, tanh)".
    """

    number: int
    text: str
    operation: str
    location: str
    calls: int
    seconds: float
    bytes: int
    parts: tuple[Part, ...] = ()
    kernel: str = ""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time and bytes of all calls of one kind of kernel in a run.

    Attributes:
        kernel: "matmul", "fused (add, tanh)", "while" for the time between the operations of loops.
        calls: how often such kernels ran.
        seconds: what they took.
        bytes: of the values that they took and gave.
    """

    kernel: str
    calls: int
    seconds: float
    bytes: int


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

    The step is run with clocks around its operations and without, by turns; of both the quickest quarter of the runs
    counts, which others at work on the machine have disturbed least. The times with clocks say how a run is divided,
    those without how long it is: the times of all lines, and `between`, add up to `seconds`.

    Attributes:
        seconds: what a run takes without clocks around its operations; the median of the quickest quarter.
        lines: what each operation takes of that, in the order of the printed program.
        source: the printed program.
        runs: how often it was run, without clocks and with them.
        between: what is between the operations.
        clocks: what the clocks themselves take in a run with clocks, about, by what one takes; part of no line.
        refits: how often in a run a kernel's operands were laid out again, because it does not take their layout.
        clocked: what a run with clocks takes without `clocks`, before it is scaled to `seconds`.
        saved_bytes: of state of loops and branches that a run keeps for its backward pass.
        peak_bytes: the most that a run holds at once beside its variables and arguments.
    """

    seconds: float
    lines: tuple[ProfiledLine, ...]
    source: str
    runs: int
    between: float = 0.0
    clocks: float = 0.0
    refits: float = 0.0
    clocked: float = 0.0
    saved_bytes: int = 0
    peak_bytes: int = 0

    @property
    def warning(self) -> str:
        """A note that clocks more than double a run, so that its division is an estimate; "" where they do not."""
        ratio = (self.clocked + self.clocks) / (self.seconds or 1.0)
        if ratio <= 2 or not self.seconds:
            return ""
        return (
            f"Warning: with clocks a run takes {ratio:.1f} times as long. What is compiled as a whole runs operation "
            "by operation while there are clocks: how the time is divided is an estimate."
        )

    def by_user_line(self) -> list[UserLine]:
        """Return the profile by the lines that built the operations, what took longest first.

        What several of your lines built in common, such as a fused kernel, counts for the last one of them.
        """
        return [UserLine(*summed) for summed in _summed(self.lines, lambda line: line.location)]

    def by_kernel(self) -> list[KernelTime]:
        """Return the profile by kind of kernel, what took longest first."""
        return [KernelTime(*summed) for summed in _summed(self.lines, lambda line: line.kernel or line.operation)]

    def stacks(self) -> list[Stack]:
        """Return the profile as parts of a flame graph: your line, and the operation in it."""
        found = [Stack((line.location or "elsewhere", line.operation), line.seconds, line.bytes) for line in self.lines]
        return [*found, Stack(("between operations",), self.between, 0)]

    def to_speedscope(self, path: str | os.PathLike[str]) -> None:
        """Write flame graphs of time and bytes that https://www.speedscope.app shows.

        Args:
            path: of the file; the name usually ends with ``.speedscope.json``.
        """
        write_speedscope(path, "step", self.stacks())

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a page with the flame graph and the tables, and write it where a path is given."""
        text = page("One step", self._headline(), *self.html_tables(self.stacks()), style=FLAME_STYLE)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def html_tables(self, stacks: Sequence[Stack]) -> list[str]:
        """Return the flame graph and the tables by line, kernel and operation as parts of a page."""
        lines = [
            (_time(o.seconds), f"{o.calls:,}", _size(o.bytes), o.location or "elsewhere") for o in self.by_user_line()
        ]
        kernels = [
            (_time(o.seconds), f"{o.calls:,}", _size(o.bytes), shortened(o.kernel, 2 * _WIDTH))
            for o in self.by_kernel()
        ]
        longest = sorted(self.lines, key=lambda line: -line.seconds)
        operations = [
            (_time(o.seconds), f"{o.calls:,}", _size(o.bytes), o.operation, shortened(o.text, 2 * _WIDTH))
            for o in longest
        ]
        titles = ("time", "calls", "bytes")
        return [
            "<h2>Flame graph</h2>",
            flame_graph([(stack.frames, stack.seconds) for stack in stacks]),
            "<h2>By your line</h2>",
            table([*titles, "line"], lines[:_MOST_ROWS]),
            "<h2>By kernel</h2>",
            table([*titles, "kernel"], kernels[:_MOST_ROWS]),
            "<h2>By operation</h2>",
            table([*titles, "operation", "line of the program"], operations[:_MOST_ROWS]),
        ]

    def _headline(self) -> str:
        warning = f'<p class="warn">{escape(self.warning)}</p>' if self.warning else ""
        return f"<p>{escape(self._describe_run())}<br>{escape(self.describe_memory())}</p>{warning}"

    def _describe_run(self) -> str:
        clocks = f" and {_time(self.clocks)} of the clocks themselves, about" if self.clocks else ""
        return f"{_time(self.seconds)} a run (median of {self.runs}); with clocks {_time(self.clocked)}{clocks}"

    def describe_memory(self) -> str:
        """Return a line on what a run holds."""
        kept = f", {_size(self.saved_bytes)} kept by loops for the backward pass" if self.saved_bytes else ""
        return f"memory: at most {_size(self.peak_bytes)} at once{kept}"

    def _repr_html_(self) -> str:
        rows = [(_time(o.seconds), f"{o.seconds / (self.seconds or 1):.1%}", o.location) for o in self.by_user_line()]
        return view(self._headline(), table(["time", "share", "your line"], rows[:_MOST_ROWS]))

    def __str__(self) -> str:
        total = self.seconds or 1.0
        report = [f"{self._describe_run()}:"]
        report += [self.warning] if self.warning else []
        report.append(f"{'time':>10} {'share':>6} {'calls':>7} {'bytes':>9}  line")
        for line in sorted(self.lines, key=lambda line: -line.seconds):
            where = f"  # {line.operation}" + (f", {os.path.basename(line.location)}" if line.location else "")
            text = f"{line.number}: {line.text}" if line.number else "-"
            report.append(_row(line, total) + f"  {shortened(text, _WIDTH):<{_WIDTH}}{where}")
        report.append(f"{_time(self.between):>10} {self.between / total:>6.1%} {'':>17}  -: between operations")
        if self.refits:
            report.append(f"operands of kernels were copied to another layout {self.refits:g} times a run")
        report.append("by your lines:")
        report += [_row(line, total) + f"  {line.location or 'elsewhere'}" for line in self.by_user_line()]
        report.append("by kernel:")
        report += [_row(line, total) + f"  {shortened(line.kernel, 2 * _WIDTH)}" for line in self.by_kernel()]
        report.append(self.describe_memory())
        return "\n".join(report) + "\n"


def _summed(lines: Iterable[ProfiledLine], key: Callable[[ProfiledLine], str]) -> list[tuple[str, int, float, int]]:
    """Return name, calls, seconds and bytes of the lines of each name, what took longest first."""
    found: dict[str, list[ProfiledLine]] = {}
    for line in lines:
        found.setdefault(key(line), []).append(line)
    summed = [
        (name, sum(o.calls for o in own), sum(o.seconds for o in own), sum(o.bytes for o in own))
        for name, own in found.items()
    ]
    return sorted(summed, key=lambda entry: -entry[2])


def profile(fetches: Any, feeds: Mapping[Any, Any] | None = None, runs: int | None = None) -> Profile:
    """Measure each operation of a step: time and bytes, by line of the printed program and by your line.

    Args:
        fetches: tensors and operations, in any structure.
        feeds: values for the placeholders, as for `Session.run`.
        runs: how often the step is run, without clocks and with them; times are medians. By default as often as two
            seconds allow, from 5 to 200 times. What the step writes (variables, files) is written as often.

    Raises:
        ValueError: there are no fetches, `runs` is less than 1, or a placeholder was not fed.
        TypeError: `runs` is not an integer.

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


def profile_program(program: Any, run: Callable[[], Any], runs: int | None = None) -> Profile:
    """Profile a program that is there already; see `profile`.

    Args:
        program: the program.
        run: runs it once.
        runs: as for `profile`.
    """
    _check_runs(runs)
    # After many runs short loops are compiled: what is measured is the step as it is then.
    with program.settled() if isinstance(program, Program) else nullcontext(program) as settled:
        return _profiled(settled, run, runs)


def _profiled(program: Any, run: Callable[[], Any], runs: int | None) -> Profile:
    run()  # what is loaded and allocated once counts for no run
    _recorded(run)  # the first one compiles
    clock = _clock_seconds(program)
    before, began = refits.count, now()
    plain: list[float] = []
    traced: list[tuple[_Run, float, float]] = []
    while len(plain) < (runs or _MOST_RUNS):  # by turns: what disturbs one kind of run disturbs the other as much
        some = min(_TOGETHER, runs - len(plain)) if runs else _TOGETHER
        run()  # threads that fell asleep meanwhile count for no run
        plain += [_seconds_of(run) for _ in range(some)]
        traced += [_summed_up(recorded, clock) for recorded in [_recorded(run) for _ in range(some)]]
        if runs is None and now() - began > _SECONDS:
            break
    _formatted.cache_clear()  # it holds operations
    rounds = len(plain)
    laid_out = (refits.count - before) / (2 * rounds + -(-rounds // _TOGETHER))
    quiet = sorted(traced, key=lambda found: _total(found[0]) + found[1])[: -(-rounds // _QUIET)]
    seconds = statistics.median(sorted(plain)[: -(-rounds // _QUIET)])
    between = statistics.median(between for _, between, _ in quiet)
    clocks = statistics.median(clocks for _, _, clocks in quiet)
    lines = _lines(program, [spent for spent, _, _ in quiet])
    clocked = sum(line.seconds for line in lines) + between
    scale = seconds / clocked if clocked else 1.0
    peak, saved = _memory_of(run), int(program.statistics.saved_bytes)
    scaled = tuple([replace(line, seconds=line.seconds * scale) for line in lines])
    return Profile(seconds, scaled, program.source, rounds, between * scale, clocks, laid_out, clocked, saved, peak)


def _memory_of(run: Callable[[], Any]) -> int:
    """Return the most bytes that a run holds at once, beside what was there before."""
    is_tracing = tracemalloc.is_tracing()
    if not is_tracing:
        tracemalloc.start(1)
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        run()
        return max(0, tracemalloc.get_traced_memory()[1] - before)
    finally:
        if not is_tracing:
            tracemalloc.stop()


def _total(spent: _Run) -> float:
    return sum(own.seconds for own in spent.values())


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


def _check_runs(runs: int | None) -> None:
    if runs is None:
        return
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
    kernel: str = ""


def _recorded(run: Callable[[], Any]) -> list[Slice]:
    """Return the slices of a run with clocks."""
    with trace() as recorded:
        run()
    return [event for event in recorded.events if isinstance(event, Slice) and event.lane.stream != "compile"]


def _summed_up(slices: Sequence[Slice], clock: float) -> tuple[_Run, float, float]:
    """Return the time of operations, of what is between them, and of clocks, each of which takes `clock` seconds."""
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
    details = _details_of(event)
    if "loop" in details:  # an iteration: the time between the operations of a loop
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
    own.kernel = event.name if event.is_kernel else str(details.get("type", ""))
    own.location = "" if details.get("line") in (None, "None") else str(details["line"])
    if event.is_kernel:
        own.bytes += _bytes_of(f"{details.get('inputs', '')} {details.get('outputs', '')}")


def _details_of(event: Slice) -> Mapping[str, Any]:
    """Return the facts of a slice; those of the same operation on the same shapes are formatted once."""
    details = event.details
    if isinstance(details, functools.partial):
        return _formatted(details.func, details.args)
    return details() if callable(details) else details or {}


@functools.lru_cache(maxsize=4096)
def _formatted(describe: Callable[..., Mapping[str, Any]], arguments: tuple[Any, ...]) -> Mapping[str, Any]:
    return describe(*arguments)


def _own_times(slices: Iterable[Slice], clock: float = 0.0) -> list[tuple[Slice, float]]:
    """Return each slice with its time less that of those inside and of their clocks, on its lane; outer ones first.

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


@functools.lru_cache(maxsize=4096)
def _bytes_of(report: str) -> int:
    """Return the bytes of values that are described as ``float32[2,3]``."""
    total = 0
    for name, dims in _VALUE.findall(report):
        size = math.prod(int(dim) for dim in dims.split(",") if dim)
        total += 0 if name == "string" else size * as_dtype(name).itemsize
    return total


def _lines(program: Any, traced: Sequence[_Run]) -> list[ProfiledLine]:
    """Return each operation with the line that computes it, in the order of lines."""
    texts, numbers = program.source.splitlines(), _numbers(program)
    named = {origin.operation.name: origin.operation for origin in program.origins.values()}
    found: list[ProfiledLine] = []
    for key in dict.fromkeys(key for run in traced for key in run):
        runs = [run[key] for run in traced if key in run]
        number, last = numbers.get(key, 0), runs[-1]
        seconds = statistics.median([own.seconds for own in runs])
        text = texts[number - 1].strip() if number else ""
        parts = _parts(last.operations, named)
        report = (number, text, last.name, last.location, last.calls, seconds, last.bytes, parts, last.kernel)
        found.append(ProfiledLine(*report))
    return sorted(found, key=lambda line: line.number or len(texts) + 1)


def _parts(operations: Sequence[Operation | str], named: Mapping[str, Operation]) -> tuple[Part, ...]:
    """Return the parts of a model to which operations belong; of some only the names are known."""
    known = [named.get(each) if isinstance(each, str) else each for each in operations]
    locations = [None if operation is None else operation.location for operation in known]
    return tuple([part for location in locations if location is not None for part in location.parts])


def _numbers(program: Any) -> dict[Any, int]:
    """Return the line of each operation: of the same operations in the program with clocks, and by name and type."""
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
    """Map each operation to the line where a loop or branch begins, or where another one's value is there."""
    found: dict[Operation, int] = {}
    for number, origin in sorted(program.origins.items()):
        if origin.operation not in found or not origin.operation.op.regions:
            found[origin.operation] = number
    return found


def _row(line: ProfiledLine | UserLine | KernelTime, total: float) -> str:
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
