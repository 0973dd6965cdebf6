"""`explain`: the compiled program as text, or what each pass did on the way to it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.nest import flatten
from ..graph.provenance import Location
from ..graph.tensor import Symbol
from ..passes.framework.log import Note, PassLog, recording
from ..passes.framework.pipeline import PIPELINE
from ..passes.framework.switches import PASSES, Switch, is_on
from ..runtime.program import Program
from .inside import fetched_from
from .session import Session, graph_of, placeholders_of

_MOST_PLACES = 4  # that are named of those where a pass did the same


def explain(
    fetches: Any, feeds: Sequence[Any] | Mapping[Any, Any] = (), lines: bool = True, passes: bool = False
) -> str:
    """The compiled program for `fetches`, as readable Python; of a step that spans devices, device by device.

    Args:
        fetches: tensors and operations, in any structure.
        feeds: the arguments of the program; by default the placeholders that are needed. With values, as a dict, it is
            the program for the shapes of these.
        lines: name behind each line which operation it computes, and which line of yours built that.
        passes: instead of the program, what each pass of the compiler changed, how often and in what time, what it left
            where it was and why (for instance which value keeps a computation inside a loop), and why a pass did not
            run. See docs/explain.md.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default():
    ...     x = ab.placeholder((), "float32", "x")
    ...     print(ab.explain(x + 1, [x], lines=False))
    def step(x):
        add = x + c
        return (add,)
    <BLANKLINE>
    """
    with recording() as log:
        program = compiled(fetches, feeds)
    if passes:
        return format_pass_log(log)
    if isinstance(program, Program):
        return program.listing() if lines else program.source
    return program.listing(lines)


def compiled(fetches: Any, feeds: Sequence[Any] | Mapping[Any, Any] = ()) -> Any:
    """Make the program for `fetches` again: for the shapes of values that are fed, or for all that the graph allows."""
    graph = graph_of(fetches)
    session = Session(graph)
    leaves = [getattr(leaf, "flow", leaf) for leaf in flatten(fetches)]
    inside = [fetched_from(graph, leaf) if isinstance(leaf, Symbol) else leaf for leaf in leaves]
    given = list(feeds) or placeholders_of(graph, inside)
    if not isinstance(feeds, Mapping) or not feeds:
        return session.program(fetches, given)
    return session.program_for(fetches, feeds)


def format_pass_log(log: PassLog) -> str:
    """Return the text of a log, pass by pass."""
    return "\n".join(line for known in PASSES.values() for line in _of_pass(known, log)) + "\n"


def _of_pass(known: Switch, log: PassLog) -> list[str]:
    changes, kept = log.of(known.name)
    title = f"{known.name}: {known.description}"
    if not is_on(known.name):
        return [title, "    turned off"]
    why = _why_left_out(known.name, log)
    if why:
        return [title, f"    left out: {why}"]
    seconds = sum(log.seconds.get(name, 0.0) for name in _passes_of(known.name))
    took = f"{seconds * 1e3:.1f} ms" if seconds else ""
    if not changes and not kept:
        return [title, f"    no changes, {took}" if took else "    no changes"]
    counted = f"{len(changes)} {'change' if len(changes) == 1 else 'changes'}"
    told = [title, f"    {counted}, {took}" if took else f"    {counted}"]
    told += [f"    {line}" for line in _grouped(changes)]
    if kept:
        told += ["  not moved:", *[f"    {line}" for line in _grouped(kept)]]
    return told


def _passes_of(switch: str) -> list[str]:
    """Return the names of the passes that a switch turns off, or that run whatever it says."""
    return [switch, *[each.name for each in PIPELINE if each.switch == switch and each.name != switch]]


def _why_left_out(switch: str, log: PassLog) -> str:
    """Return why none of the passes of a switch ran; "" if one did."""
    names = _passes_of(switch)
    reasons = [log.left_out[name] for name in names if name in log.left_out]
    return reasons[0] if len(reasons) == len(names) else ""


def _grouped(notes: Sequence[Note]) -> list[str]:
    """Return a line for each thing that was done, with the operations to which it was, and how often if more often."""
    places: dict[str, dict[str, None]] = {}
    counts = Counter(note.text for note in notes)
    for note in notes:
        places.setdefault(note.text, {})[_place(note)] = None
    return [_line(text, list(found), counts[text]) for text, found in places.items()]


def _place(note: Note) -> str:
    if note.location is None:
        return note.operation
    forward = note.location.forward
    of = "" if forward is None else f", gradient of {_line_of(forward)}"
    return f"{note.operation} ({_line_of(note.location)}{of})"


def _line_of(location: Location) -> str:
    return f"{os.path.basename(location.filename)}:{location.line}"


def _line(text: str, places: Sequence[str], count: int) -> str:
    named = ", ".join(place for place in places[:_MOST_PLACES] if place)
    more = f", and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
    times = f" ({count} times)" if count > len(places) else ""
    return f"{named}{more}: {text}{times}" if named else f"{text}{times}"
