"""The log of passes as text: what they changed and what they left, by pass and in short."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from ..graph.provenance import Location
from ..passes.framework.log import Note, PassLog
from ..passes.framework.pipeline import PIPELINE
from ..passes.framework.switches import PASSES, Switch, is_on
from ..runtime.analyses import ANALYSES

_MOST_PLACES = 4  # that are named of those where a pass did the same


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
    lines = [title, f"    {counted}, {took}" if took else f"    {counted}"]
    lines += [f"    {line}" for line in grouped(changes)]
    if kept:
        lines += ["  not moved:", *[f"    {line}" for line in grouped(kept)]]
    return lines


def _passes_of(switch: str) -> list[str]:
    """Return the names of the passes and analyses that a switch turns off, or that run whatever it says."""
    rows = (*PIPELINE, *ANALYSES)
    return [switch, *[each.name for each in rows if each.switch == switch and each.name != switch]]


def _why_left_out(switch: str, log: PassLog) -> str:
    """Return why none of the passes of a switch ran; "" if one did."""
    names = _passes_of(switch)
    reasons = [log.left_out[name] for name in names if name in log.left_out]
    return reasons[0] if len(reasons) == len(names) else ""


def grouped(notes: Sequence[Note]) -> list[str]:
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
    of = "" if forward is None else f", gradient of {line_of(forward)}"
    return f"{note.operation} ({line_of(note.location)}{of})"


def line_of(location: Location) -> str:
    """Return a line as ``file.py:3``, without the folder."""
    return f"{os.path.basename(location.filename)}:{location.line}"


def _line(text: str, places: Sequence[str], count: int) -> str:
    named = ", ".join(place for place in places[:_MOST_PLACES] if place)
    more = f", and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
    times = f" ({count} times)" if count > len(places) else ""
    return f"{named}{more}: {text}{times}" if named else f"{text}{times}"
