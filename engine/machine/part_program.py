"""The program of a part of a step that spans several tasks."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from ..graph.device import task_of
from ..graph.graph import Graph, Operation
from ..graph.op import OUTSIDE_WORLD
from ..graph.spec import ArraySpec, FrameSpec, Spec, TensorSpec
from ..graph.tensor import Symbol
from ..lower.nodes import Node
from ..lower.show import dump_machine
from ..lower.updates import updates_a_variable
from ..passes.framework.prepare import Step as PreparedStep
from ..place.constraints import PlacementError
from ..place.devices import Device, devices_of_cluster
from ..runtime.deep_calls import FRAMES_OF_PROGRAM, CallsTooDeepError, calls_under_way, deep_calls, too_deep_of
from ..runtime.program import memory_of
from .kept import KeptStates
from .part import Empty, Keep, PartStep, Send, new_array
from .program import Assign, MachineProgram
from .step import Step


class PartProgram(MachineProgram):
    """The part that one task runs of a step that spans several tasks.

    Args:
        graph, targets, feeds, specs, exact, assign, prepared: see `MachineProgram`.
        task: the task: "/job:ps/task:0".
        devices: of all tasks that may take part, the same in each of them; what is fed arrives at the first CPU.
        lossy: pairs of devices between which 32-bit floats travel as bfloat16.
        clock: gives the seconds in which traces are recorded.

    Attributes:
        elsewhere: the devices of other tasks.
        digest: of the lowered step: tasks that have the same one run the same step.
        tasks: those that take part.
        sends: the number of each value that leaves this task, and the task that takes it.
        lossy_sends: those of them whose lower halves are zeros, and need not travel.
        sources: the tasks whose values this one takes.
        straight_feeds: by the position of each feed that one other task alone takes, that task and the edges by which
            it does: the value may go there in another way than by the task where feeds arrive.
        kept_states: what other tasks keep for its steps, if functions were scheduled there.
        fetched_on: by position, the task on which what is fetched is made.
        memory: makes the context in which a thread keeps the memory of large arrays for those of later steps.
        printed: of a program with clocks when that was begun and done, until a run has recorded it.

    Raises:
        PlacementError: what was asked for can't be kept, or something would cross that does not leave its task.
    """

    step_type: ClassVar[type[Step]] = PartStep
    is_shared: ClassVar[bool] = True
    printed: tuple[float, float] | None = None

    def __init__(
        self,
        graph: Graph,
        targets: Sequence[Symbol | Operation],
        feeds: Sequence[Symbol],
        specs: Sequence[Spec] | None = None,
        *,
        task: str,
        devices: Sequence[Device],
        exact: bool = False,
        assign: Assign | None = None,
        prepared: PreparedStep | None = None,
        lossy: Sequence[tuple[str, str]] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.task = task
        self.clock = clock
        self.kept_states = KeptStates()
        self._slow: dict[Node, Any] = {}  # operations that have taken long once, and what was then run
        self.elsewhere = frozenset([device.name for device in devices if task_of(device.name) != task])
        with devices_of_cluster(devices):
            super().__init__(graph, targets, feeds, specs, exact=exact, assign=assign, lossy=lossy, prepared=prepared)
        self.tasks = list(dict.fromkeys(map(task_of, self.machine.devices)))
        edges = self.printing.blueprint.edges
        self.sends = {
            number: task_of(str(receive.device)) for receive, number in edges.items() if self._leaves(receive)
        }
        self.lossy_sends = frozenset(
            number for receive, number in edges.items() if receive.peer is not None and receive.peer.lossy
        )
        peers = [receive.peer for receive in edges if task_of(str(receive.device)) == task]
        others = {task_of(str(peer.device)) for peer in peers if peer is not None}
        self.sources = sorted(others - {task})
        self.straight_feeds = self._taken_by_another_task()
        self.memory = memory_of(self._prepared.operations) or contextlib.nullcontext
        self.fetched_on = [task_of(str(node.device)) for node in self.machine.fetches]
        self.digest = hashlib.sha256(self.text().encode()).hexdigest()

    def keep_memory(self) -> None:
        """Have this thread keep the memory of large arrays from now on, if the step has any: that of a task's loop."""
        self.memory().__enter__()

    def text(self) -> str:
        """Print the lowered step, which is the same in all tasks."""
        return dump_machine(self.machine)

    def _leaves(self, receive: Node) -> bool:
        assert receive.peer is not None, f"{receive!r} has no Send"
        return task_of(str(receive.peer.device)) == self.task != task_of(str(receive.device))

    def _taken_by_another_task(self) -> dict[int, tuple[str, tuple[int, ...]]]:
        consumers, edges = self.machine.consumers(), self.printing.blueprint.edges
        found: dict[int, tuple[str, tuple[int, ...]]] = {}
        for position, node in enumerate(self.machine.feeds):
            users = consumers.get(node.output, [])
            receives = [user.peer for user in users if user.kind == "send" and not user.lossy and user.peer is not None]
            tasks = {task_of(str(receive.device)) for receive in receives}
            is_array = isinstance(node.specs[0], TensorSpec)
            if is_array and len(receives) == len(users) and len(tasks - {task_of(str(node.device))}) == len(tasks) == 1:
                found[position] = (tasks.pop(), tuple([edges[receive] for receive in receives]))
        return found

    def _devices_here(self) -> Collection[str]:
        _check_crossings(self.machine.nodes)
        return [device for device in self.machine.devices if task_of(device) == self.task]

    def begin(
        self,
        values: Sequence[Any],
        send: Send,
        wake: Callable[[], None],
        unsent: Collection[int] = (),
        empty: Empty = new_array,
        keep: Keep = np.copy,
        shared: Empty = new_array,
    ) -> PartStep:
        """Begin a run; for arguments see `PartStep.begin_run`. It is given back by `end`, or by nobody if it fails."""
        with self._lock:
            step = self._idle.pop() if self._idle else None
        step = step or self._make_step()
        assert isinstance(step, PartStep)
        step.program, step.nodes = self, self.printing.nodes
        step.scheduler.kept = self.kept_states
        self.statistics.start()
        self.statistics.latest = step
        step.begin_run(values, send, wake, unsent, empty, keep, shared)
        return step

    def end(self, step: PartStep) -> dict[int, Any]:
        """End a run that is over; return what was fetched here, by position."""
        found = step.end_run()
        self.statistics.note_ended(step)
        with self._lock:
            if step.blueprint is self.printing.blueprint:
                self._idle.append(step)
        return found

    def may_leave(self, node: Node) -> bool:
        """Test whether a node may run on a thread; where there is one device that lets other steps have their turn.

        Nothing else of the task comes between what reads a variable and what then writes it.
        """
        if len(self.machine.devices) > 1:
            return not updates_a_variable(node)
        effects = [effect for operation in node.operations for effect in operation.effects]
        return all(effect.resource is OUTSIDE_WORLD for effect in effects)

    def note_long(self, step: PartStep) -> bool:
        """Note that the operation that a step is in takes long; return whether `print_again` has it run apart.

        That is so the second time: the first time all of the process may have stood still.
        """
        item = step.current
        node = None if item is None else step.node_of(item)
        if node is None or node in self._long or not self.may_leave(node):
            return False
        if self._slow.setdefault(node, item) is item:
            return False
        self._long.add(node)
        return True

    def failed(self, step: PartStep, error: Exception) -> None:
        """Drop a run that has failed, and note on its error where."""
        if not isinstance(error, CallsTooDeepError):  # that names the function: where it ended says nothing
            self._annotate(error, step)
        step.abort(error)

    def with_clocks(self) -> Self:
        is_new, began = self._traced is None, self.clock()
        found = super().with_clocks()
        if is_new:
            found.printed = (began, self.clock())
        return found

    def _make_traced_step(self, made: Sequence[Any], nodes: Mapping[str, Node]) -> Step:
        from .part_tracing import TracedPartStep

        return TracedPartStep(*made, nodes=nodes)

    @property
    def has_recursion(self) -> bool:
        """Test whether functions of the step call themselves, so that it is turned within `room`."""
        return bool(self._recursions)

    @contextlib.contextmanager
    def room(self) -> Generator[None]:
        """Give recursive functions room while a step is turned; an error where it is too little names the function."""
        with deep_calls(FRAMES_OF_PROGRAM):
            try:
                yield
            except RecursionError as error:
                failure = too_deep_of(error, calls_under_way(error, self.filename, self._recursions))
            else:
                return
        raise failure from None


def _check_crossings(nodes: Sequence[Node]) -> None:
    for send in nodes:
        receive = send.peer if send.kind == "send" else None
        if receive is None or task_of(str(send.device)) == task_of(str(receive.device)):
            continue
        (spec,) = receive.specs
        if not _can_cross(spec):
            raise PlacementError(
                f"{send.name!r} ({spec}) is made on {send.device} and taken on {receive.device}, but values of this "
                "kind do not leave their task: only numbers, strings, TensorArrays and TensorStores do. Put what makes "
                "it and what takes it on devices of one task."
            )


def _can_cross(spec: Spec | None) -> bool:
    """Test whether values of a spec, or controls, have a form in which they travel."""
    if isinstance(spec, ArraySpec):
        return _can_cross(spec.element)
    return not isinstance(spec, FrameSpec)
