"""Timelines of what steps did and when: recorded while they run, written for Perfetto, summed up as text."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .traces import Trace, active, current, here, trace

# Names that only traces need, and their modules; loaded on first use.
_MODULES = {"Recorder": ".recorder", "Slice": ".recorder", "write_timeline": ".timeline"}

if TYPE_CHECKING:
    from .recorder import Recorder, Slice
    from .timeline import write_timeline


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
    return value


__all__ = ["Recorder", "Slice", "Trace", "active", "current", "here", "trace", "write_timeline"]
