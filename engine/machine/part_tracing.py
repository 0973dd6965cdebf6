"""Traced parts of steps: what one task does in a step of several, by its own clock, and what has crossed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ..graph.device import DeviceName, task_of
from ..lower.nodes import Node
from ..tracing import Recorder
from ..tracing.recorder import End, Lane
from .frames import Tag
from .part import Crossing, PartStep
from .report import waiting_report
from .tracing import TracedStep


class TracedPartStep(TracedStep, PartStep):
    """A part of a step that records what it does. Its rows are those of one process, the task."""

    _idle_since: float | None = None
    _held_since: float | None = None
    _held_by: Collection[str] = ()
    _thread = 0

    def now(self) -> float:
        return self.program.clock()

    def _start_roots(self, values: Sequence[Any]) -> None:
        self.recorder = Recorder()
        self._crossings: list[Crossing] = []
        self.recorded = self.recorder.events, self._crossings
        self._thread = threading.get_ident()
        self._idle_since = self._held_since = None
        self._began = self.now()
        self._leaving = {number: node for node, number in self.blueprint.edges.items() if number in self.program.sends}
        if self.program.printed is not None:
            self.recorder.span(self._row("compile"), "compile", *self.program.printed)
            self.program.printed = None
        super()._start_roots(values)
        self._note_idle()

    def end_run(self) -> dict[int, Any]:
        found = super().end_run()
        self._note_step(self._began)
        return found

    def abort(self, error: BaseException | None = None) -> None:
        if self._idle_since is not None:
            details = {"what": waiting_report(self)}
            self.recorder.span(self._row("waits"), "wait for other tasks", self._idle_since, self.now(), details)
            self._idle_since = None
        self.hold(())
        self._close(error)
        self._note_step(self._began)
        super().abort(error)

    # --- what waits -------------------------------------------------------------------------------------------------

    def turn(self, most: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._idle_since = None
        super().turn(most, now)
        self._note_idle()

    def _note_idle(self) -> None:
        """Note that it waits for other tasks from now on, if nothing else is there to do or to wait for."""
        if not (self.outstanding or self.is_held or self.is_over or self.has_work):
            self._idle_since = self.now()

    def receive(self, number: int, tag: Tag, value: Any, is_dead: bool) -> None:
        super().receive(number, tag, value, is_dead)
        if self._idle_since is not None and self.ready:
            node = self._receives[number][0]
            details = {"operation": node.name, "from": task_of(self._send_device(number))}
            self.recorder.span(self._row("waits"), f"wait for {node.name}", self._idle_since, self.now(), details)
            self._idle_since = None

    def hold(self, others: Collection[str]) -> None:
        super().hold(others)
        if others and self._held_since is None:
            self._held_since, self._held_by = self.now(), others
        elif not others and self._held_since is not None:
            names = ", ".join(sorted(self._held_by))
            details = {"what": f"more than bytes_in_flight waited to be sent to {names}"}
            self.recorder.span(self._row("waits"), f"wait to send to {names}", self._held_since, self.now(), details)
            self._held_since = None

    # --- what crosses -----------------------------------------------------------------------------------------------

    def _post(self, number: int, tag: Tag, value: Any) -> None:
        if number in self.unsent:
            return
        began = self.now()
        super()._post(number, tag, value)
        receive = self._leaving[number]
        lane = self._lane(_sender(receive), "send")
        details = {"operation": receive.name, "to": task_of(str(receive.device))}
        self.recorder.kernel(*lane, "send", began, self.now(), details)
        self._crossings.append(Crossing(_key(receive, number, tag), True, (lane.device, lane.stream, began)))

    def _arrow(self, number: int, tag: Tag, source: End | None, target: End) -> None:
        receive = self._receives[number][0]
        if task_of(_sender(receive)) == self.program.task:
            super()._arrow(number, tag, source, target)
        else:
            self._crossings.append(Crossing(_key(receive, number, tag), False, target))

    # --- rows -------------------------------------------------------------------------------------------------------

    def _row(self, stream: str) -> Lane:
        return Lane(self.program.task, stream)

    def _lane(self, device: str, stream: str) -> Lane:
        """Return a lane of the task: of a device, where it has several, and of a thread, if that is not the loop's."""
        name = DeviceName.parse(device)
        more = [f"{name.kind}:{name.number}".lower()] if len(self.blueprint.devices) > 1 else []
        if threading.get_ident() != self._thread:
            more.append(threading.current_thread().name)
        return self._row(f"{stream} ({', '.join(more)})" if more else stream)


def _sender(receive: Node) -> str:
    assert receive.peer is not None, f"{receive!r} has no Send"
    return str(receive.peer.device)


def _key(receive: Node, number: int, tag: Tag) -> str:
    """Return the name of a value that crosses: of the operation, the edge, and the iterations around."""
    return f"{receive.name} [{number}] {'.'.join(map(str, tag))}".rstrip()


__all__ = ["TracedPartStep"]
