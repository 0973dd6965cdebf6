"""Notes for `logging.getLogger("anabranch")`: what is compiled, traced again, placed, and run on a slower road.

Each topic is a logger below it: ``anabranch.compile``, ``anabranch.cache``, ``anabranch.trace``,
``anabranch.placement``, ``anabranch.fallback``. The module `logging` is not imported here: where nobody has, nobody can
have asked for notes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

DEBUG, INFO = 10, 20  # as in `logging`
DUMP = "ANABRANCH_DUMP"  # the variable that has steps and kernels printed while they are compiled


def names_dumped() -> frozenset[str]:
    """Return the names in ANABRANCH_DUMP: of passes, "all" for every pass, "llvm" for the modules of kernels."""
    text = os.environ.get(DUMP, "")
    return frozenset(name.strip() for name in text.split(",")) if text else frozenset()


def is_logged(topic: str, level: int = DEBUG) -> bool:
    """Test whether anybody listens: guards work that is costly.

    Args:
        topic: "compile", "cache", "trace", "placement" or "fallback".
        level: of the note.
    """
    logging: Any = sys.modules.get("logging")
    return logging is not None and logging.getLogger(f"anabranch.{topic}").isEnabledFor(level)


def log(topic: str, level: int, text: str, *values: object) -> None:
    """Write a note, if anybody listens.

    Args:
        topic, level: as for `is_logged`.
        text: with a place (``%s``) for each of `values`.
    """
    if is_logged(topic, level):
        sys.modules["logging"].getLogger(f"anabranch.{topic}").log(level, text, *values)


def changes_of(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Return what differs between the arguments of two calls.

    Args:
        before, now: what is known of each argument, by name: specs, or values that are part of a trace.

    >>> changes_of({"x": "float32[2,3]", "y": "'a'"}, {"x": "float32[4,3]", "y": "'a'"})
    'x: float32[2,3] before, float32[4,3] now'
    >>> changes_of({}, {"x": "float32[4,3]"})
    'x: not given before, float32[4,3] now'
    """
    absent = "not given"
    pairs = [(name, before.get(name, absent), now.get(name, absent)) for name in {**now, **before}]
    changes = [f"{name}: {old} before, {new} now" for name, old, new in pairs if old != new]
    return "; ".join(changes) or "the device, or the order of the arguments"
