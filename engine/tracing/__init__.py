"""Timelines of what steps did and when: recorded while they run, written for Perfetto, summed up as text."""

from .recorder import Recorder, Slice
from .timeline import write_timeline
from .traces import Trace, active, current, here, trace

__all__ = ["Recorder", "Slice", "Trace", "active", "current", "here", "trace", "write_timeline"]
