"""Traced steps: while a trace is recorded, a program runs as a second one, printed with clocks around its kernels.

All is recorded in seconds of one clock: that of the host, and where devices run in virtual time, which stands still
while the host works, the sum of both. So a device's kernels are placed where the host has seen them begin, and what
follows from something is behind it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from ..common.descriptions import describe_value
from ..devices import VirtualClock
from ..graph.graph import Operation
from ..graph.spec import TensorSpec
from ..lower.nodes import Node
from ..ops.containers.array_value import ArrayValue
from ..queues.attempts import note_wait
from ..runtime.timing import kernel_name
from ..tracing import Recorder, Slice, active, here
from ..tracing.recorder import End, Lane
from .engines import Done, FromThread
from .frames import FramePlan, FrameRun, Frames, Iteration, Tag
from .step import Step, Way
from .stream_engine import StreamEngine

_STREAMS = {"compute": "compute", "host-to-device": "h2d", "device-to-host": "d2h"}  # as rows are called
_MOST_NAMED = 4  # operations of a cluster that its name lists
Key = tuple[int, Tag]  # a transfer: the number of the edge, and the tag


_virtual_time: WeakKeyDictionary[Recorder, float] = WeakKeyDictionary()  # that has passed in steps that are over


class TracedFrames(Frames):
    """Records when iterations and runs of loops begin and end."""

    step: TracedStep

    def open(self, run: FrameRun, tag: Tag, hold: int = 0, is_oldest: bool = False) -> Iteration:
        if run.parent is not None:
            began = self.step.now()
            if run.newest < 0:
                self.step.begun[run.plan, tag[:-1]] = (began, run.plan.name)
            self.step.begun[run.plan, tag] = (began, f"iteration {tag[-1]}")
        return super().open(run, tag, hold, is_oldest)

    def finished(self, iteration: Iteration) -> None:
        run = iteration.run
        if run.parent is not None:
            began, name = self.step.begun.pop((run.plan, iteration.tag))
            if not run.is_dead:
                self.step.note_iteration(run.plan, name, began)
        super().finished(iteration)

    def _end(self, run: FrameRun) -> None:
        if run.parent is not None:
            began, _ = self.step.begun.pop((run.plan, run.parent.tag))
            if not run.is_dead:
                self.step.note_loop(run.plan, began)
        super()._end(run)


class TracedStep(Step):
    """A step that reports to a recorder what it does.

    Attributes:
        begun: when each iteration (by the plan of its frame and its tag) and each run of a loop (by the tag around it)
            began, and its name.
        transfer: what is being copied from one device to another.
    """

    frames_type: ClassVar[type[Frames]] = TracedFrames

    def __init__(self, *arguments: Any, nodes: Mapping[str, Node]) -> None:
        self.begun: dict[tuple[FramePlan, Tag], tuple[float, str]] = {}
        self.transfer: Key | None = None
        self.recorder = Recorder()
        self._nodes = nodes
        self._kernels: dict[Node, _Kernel] = {}
        self._sent: dict[Key, End] = {}
        self._landed: dict[Key, End] = {}
        self._waiting: dict[int, tuple[float, str, Node]] = {}
        self._virtual: VirtualClock | None = None
        self._offset = 0.0
        super().__init__(*arguments)
        assert isinstance(self.frames, TracedFrames)
        self.frames.step = self
        for engine in self.engines.values():
            if isinstance(engine, TracedStreamEngine):
                engine.step = self
                self._virtual = engine.clock if isinstance(engine.clock, VirtualClock) else None

    def _namespace(self, bindings: Mapping[str, Any]) -> dict[str, Any]:
        hooks: dict[str, Any] = {
            "now": self.now,
            "ran": self.ran,
            "sending": self.sending,
            "sent": self.sent,
            "received": self.received,
        }
        return {**super()._namespace(bindings), **hooks}

    # --- time -------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time of the host."""
        if self._virtual is None:
            return time.perf_counter()
        return time.perf_counter() + self._offset + self._virtual.now()

    def at(self, moment: float) -> float:
        """Return the time of a moment of the devices' clock."""
        return moment if self._virtual is None else time.perf_counter() + self._offset + moment

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self, values: Sequence[Any]) -> list[Any]:
        self.recorder = active.recorder or Recorder()
        if self._virtual is not None:
            self._offset = _virtual_time.get(self.recorder, 0.0) - self._virtual.now()
        began = self.now()
        try:
            return super().run(values)
        except BaseException as error:
            self._close(error)
            raise
        finally:
            if self._virtual is not None:
                passed = self._offset + self._virtual.now()
                _virtual_time[self.recorder] = max(_virtual_time.get(self.recorder, 0.0), passed)
            self._note_step(began)

    def _note_step(self, began: float) -> None:
        """Record a run, which is over."""
        shown = {"devices": ", ".join(self.machine.devices)}
        self.recorder.span(self._row("scheduler"), "step", began, self.now(), shown)
        for held in (self.begun, self._sent, self._landed, self._waiting):
            held.clear()

    def _close(self, error: BaseException | None) -> None:
        """Record what was under way when `error`, or the failure of another part, ended the step."""
        ended = self.now()
        how = "failed" if error is not None else "aborted"
        for (plan, _), (began, name) in reversed(self.begun.items()):
            self.recorder.span(self._lane(plan.device, "iterations"), f"{name} ({how})", began, ended)
        for began, waits_for, node in self._waiting.values():
            note_wait(self._lane(str(node.device), "waits"), waits_for, began, ended, self.recorder)
        if error is None:
            self.recorder.instant(self._row("scheduler"), how, ended)
            return
        for name, began in _under_way(error):
            node = self._nodes.get(name)
            if node is not None:
                kernel = self._kernel(node)
                lane = self._lane(str(node.device), "compute")
                self.recorder.span(lane, f"{kernel.name} (failed)", began, ended, kernel.details)
        shown = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        self.recorder.instant(self._row("scheduler"), how, ended, {"error": shown})

    # --- kernels ----------------------------------------------------------------------------------------------------

    def ran(self, node: Node, began: float, *seen: Any) -> None:
        """Note that a node's operations have run, in this thread.

        Args:
            node: the node.
            began: when they began.
            seen: those of the outputs whose specs do not give their shapes.
        """
        ended = self.now()
        kernel = self._kernel(node)
        details = functools.partial(kernel.details, *[_form(value) for value in seen]) if seen else kernel.details
        lane = self._lane(str(node.device), "compute")
        self.recorder.events.append(Slice(lane, kernel.name, began, ended, details, True))

    def _kernel(self, node: Node) -> _Kernel:
        kernel = self._kernels.get(node)
        if kernel is None:
            kernel = self._kernels[node] = _Kernel(node)
        return kernel

    def ran_on_device(self, engine: TracedStreamEngine, stream: str, label: str, start: float, end: float) -> None:
        """Record that a kernel or copy runs on a device of streams. `engine.latest` says when it has begun."""
        row = _STREAMS[stream]
        began = self.at(start)
        engine.latest[row] = began
        node = engine.launched.get(label) if row == "compute" else None
        if node is not None:
            name, details = self._kernel(node).name, self._kernel(node).details
        else:
            name, details = {"h2d": "copy from host", "d2h": "copy to host"}.get(row, label), {"operation": label}
        self.recorder.kernel(engine.device.device.name, row, name, began, began + (end - start), details)
        engine.note_memory(began)

    # --- what waits -------------------------------------------------------------------------------------------------

    def _go_on(self, number: int) -> None:
        wait = self.waits.get(number)
        if wait is None:
            return
        began, waited = self.now(), self._waiting.pop(number, None)
        if waited is not None:
            note_wait(self._lane(str(wait.node.device), "waits"), waited[1], waited[0], began, self.recorder)
        super()._go_on(number)
        if wait.is_over:
            self.ran(wait.node, began)
        else:
            self._waiting[number] = (self.now(), wait.describe(), wait.node)

    # --- loops ------------------------------------------------------------------------------------------------------

    def note_iteration(self, plan: FramePlan, name: str, began: float) -> None:
        """Note the end of an iteration."""
        self.recorder.span(self._lane(plan.device, "iterations"), name, began, self.now(), {"loop": plan.name})

    def note_loop(self, plan: FramePlan, began: float) -> None:
        """Note the end of all iterations of a loop."""
        details = {"line": str(plan.operation.location)} if isinstance(plan.operation, Operation) else None
        self.recorder.span(self._lane(plan.device, "iterations"), plan.name, began, self.now(), details)

    # --- transfers --------------------------------------------------------------------------------------------------

    def sending(self, number: int, tag: Tag) -> float:
        """Note that a value is about to be handed over to another device."""
        began = self.now()
        lane = self._lane(self._send_device(number), "send")
        self._sent[number, tag] = (lane.device, lane.stream, began)
        return began

    def sent(self, number: int, began: float) -> None:
        """Note that a value has been handed over."""
        receive, _ = self._receives[number]
        lane = self._lane(self._send_device(number), "send")
        self.recorder.kernel(*lane, "send", began, self.now(), {"operation": receive.name, "to": receive.device})

    def received(self, number: int, tag: Tag, began: float) -> None:
        """Note that a value has been delivered to an iteration."""
        receive, _ = self._receives[number]
        key = (number, tag)
        source, target = self._sent.pop(key, None), self._landed.pop(key, None)
        if target is None:
            lane = self._lane(str(receive.device), "recv")
            target = (lane.device, lane.stream, began)
            shown = {"operation": receive.name, "from": self._send_device(number)}
            self.recorder.kernel(*lane, "recv", began, self.now(), shown)
        self._arrow(number, tag, source, target)

    def _arrow(self, number: int, tag: Tag, source: End | None, target: End) -> None:
        """Record the arrow of a value that has arrived."""
        if source is not None:
            name = self._receives[number][0].name
            self.recorder.flow(f"{name} {'.'.join(map(str, tag))}".rstrip(), source, target)

    def carry(self, number: int, tag: Tag, value: Any) -> None:
        source = self._send_device(number)
        began = self.sending(number, tag)
        with self.copying((number, tag)):
            super().carry(number, tag, value)
        if not isinstance(self.engines[source], TracedStreamEngine):
            self.sent(number, began)  # from others it is a copy

    def _deliver(self, way: Way, tag: Tag, value: Any) -> None:
        with self.copying(None):
            super()._deliver(way, tag, value)

    @contextmanager
    def copying(self, transfer: Key | None) -> Generator[None]:
        """Assign to `transfer` the copies that engines are asked for inside of the block."""
        before, self.transfer = self.transfer, transfer
        try:
            yield
        finally:
            self.transfer = before

    def left(self, transfer: Key, device: str, began: float) -> None:
        """Note that a value has been copied to the host."""
        self._sent[transfer] = (device, "d2h", began)

    def landed(self, transfer: Key, device: str, began: float) -> None:
        """Note that a value has been copied from the host."""
        self._landed[transfer] = (device, "h2d", began)

    def _send_device(self, number: int) -> str:
        send = self._receives[number][0].peer
        assert send is not None, "every Recv has a Send"
        return str(send.device)

    def _row(self, stream: str) -> Lane:
        """Return a row of the step itself."""
        return here(stream)

    def _lane(self, device: str, stream: str) -> Lane:
        """Return a row of a device, and of this thread."""
        return Lane(device, here(stream).stream)


class TracedStreamEngine(StreamEngine):
    """Reports to its step what runs on its streams.

    Attributes:
        launched: the nodes of kernels, by label.
        latest: when the latest kernel or copy of each stream began.
    """

    step: TracedStep
    is_quick = False  # each copy is reported

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.launched: dict[str, Node] = {}
        self.latest: dict[str, float] = {}
        self._noted: dict[str, int] = {}
        self.device.observer = self

    def submit(
        self, node: Any, kernel: Callable[..., Any], values: tuple[Any, ...], done: Done, from_thread: FromThread
    ) -> None:
        self.launched[node.name] = node
        super().submit(node, kernel, values, done, from_thread)

    def to_host(self, value: Any, done: Done) -> None:
        transfer = self.step.transfer
        if transfer is None:
            super().to_host(value, done)
            return
        is_copied = False

        def copied(given: Any) -> None:
            if is_copied and "d2h" in self.latest:
                self.step.left(transfer, self.device.device.name, self.latest["d2h"])
            with self.step.copying(transfer):
                done(given)

        super().to_host(value, copied)
        is_copied = True

    def to_device(self, value: Any, done: Done) -> None:
        transfer = self.step.transfer
        if transfer is None:
            super().to_device(value, done)
            return
        is_copied = False

        def arrived(given: Any) -> None:
            if is_copied and "h2d" in self.latest:
                self.step.landed(transfer, self.device.device.name, self.latest["h2d"])
            done(given)

        super().to_device(value, arrived)
        is_copied = True

    # --- what the device reports ------------------------------------------------------------------------------------

    def ran(self, stream: str, label: str, start: float, end: float) -> None:
        self.step.ran_on_device(self, stream, label, start, end)

    def ended(self, time: float) -> None:
        self.note_memory(self.step.at(time))

    def note_memory(self, time: float) -> None:
        """Note counters of what is held, and of what has moved to the host, if they have changed."""
        self._note("bytes in use", time, self.device.memory.in_use)
        if self.policy.threshold is not None:
            swaps = self.policy.statistics()
            self._note("bytes swapped out", time, swaps.bytes_out)
            self._note("bytes swapped in", time, swaps.bytes_in)

    def _note(self, name: str, time: float, value: int) -> None:
        if self._noted.get(name) != value:
            self._noted[name] = value
            self.step.recorder.counter(self.device.device.name, name, time, value)


class _Kernel:
    """The name and details of a node's operations in a trace."""

    def __init__(self, node: Node) -> None:
        self._node = node
        types = [kernel_name(operation) for operation in node.operations]
        more = [f"{len(types) - _MOST_NAMED} more"] if len(types) > _MOST_NAMED else []
        self.name = types[0] if len(types) == 1 else f"cluster ({', '.join([*types[:_MOST_NAMED], *more])})"

    def details(self, *seen: str) -> dict[str, Any]:
        """Return the details, given the forms of the outputs that their specs leave open."""
        node, first = self._node, self._node.operations[0]
        forms = iter(seen)
        shown = {"operation": node.name, "type": first.type, "line": str(first.location), "device": node.device}
        if len(node.operations) > 1:
            shown["operations"] = ", ".join([operation.name for operation in node.operations])
        shown["inputs"] = ", ".join([_spec_text(tensor.spec) for tensor in node.taken])
        shown["outputs"] = ", ".join(
            [_spec_text(spec) if _is_static(spec) else next(forms, _spec_text(spec)) for spec in node.specs]
        )
        return shown


def _is_static(spec: Any) -> bool:
    return isinstance(spec, TensorSpec) and spec.is_static


def _spec_text(spec: Any) -> str:
    return describe_value(spec) if _is_static(spec) else str(spec)


def _form(value: Any) -> str:
    return type(value).__name__ if isinstance(value, ArrayValue) else describe_value(value)


def _under_way(error: BaseException) -> list[tuple[str, float]]:
    """Return the functions of the program that were taking the time of something when `error` was raised."""
    found: list[tuple[str, float]] = []
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        began = frame.f_locals.get("began")
        if frame.f_code.co_filename.startswith("<anabranch machine") and isinstance(began, float):
            found.append((frame.f_code.co_name, began))
        traceback = traceback.tb_next
    return found
