"""A step of which other processes run a part: the partitions of one task, stepped by a loop that serves others, too.

What is sent to another task's device is handed to a function, and what comes from there is received; otherwise a
partition runs as it does beside the others in one process.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ..graph.device import DeviceName
from ..graph.graph import Graph, Operation
from ..graph.op import OUTSIDE_WORLD
from ..graph.spec import ArraySpec, FrameSpec, Spec, TensorSpec
from ..graph.state.variable import Variable
from ..graph.state.writing_rows import take_over
from ..graph.tensor import Symbol
from ..lower.nodes import Node
from ..lower.show import dump_machine
from ..lower.updates import updates_a_variable
from ..passes.framework.prepare import Step as PreparedStep
from ..place.constraints import PlacementError
from ..place.devices import Device, devices_of_cluster
from ..queues.stops import Stop, ending_by
from ..runtime.deep_calls import FRAMES_OF_PROGRAM, CallsTooDeepError, calls_under_way, deep_calls, too_deep_of
from ..runtime.program import memory_of
from ..tracing.recorder import End
from ..tracing.recorder import Event as Recorded
from .frames import Deliver, Iteration, Tag
from .kept import KeptStates
from .program import Assign, MachineProgram
from .step import Event, Step

Send = Callable[[int, Tag, Any, bool], None]  # of the number of an edge, a tag, a value, and whether it is dead
Empty = Callable[[int, tuple[int, ...], Any], Any]  # of the number of an edge, a shape and a dtype: an array to fill
Keep = Callable[[Any], Any]  # of an array that was received: one that a variable may have


def new_array(number: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array for the value of an edge, in memory of this process."""
    return np.empty(shape, dtype)


class Crossing(NamedTuple):
    """One end of the arrow of a value between tasks.

    Attributes:
        key: the value's name, the same in both tasks.
        is_sent: whether this is where it was sent; else where it has arrived.
        end: the row and the time.
    """

    key: str
    is_sent: bool
    end: End


class _Events(queue.SimpleQueue[Event]):
    """Events of a step; whoever puts one in wakes the loop."""

    wake: Callable[[], None]

    def put(self, item: Event, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self.wake()


_TURN = 5e-4  # seconds of a turn behind which what it has sent is to leave


class PartStep(Step):
    """Runs of the partitions of one task, one after the other; each is begun, turned until it is over, and ended.

    Attributes:
        is_held: set by whoever sends: the step is not to go on until what it has sent has gone.
        unsent: the numbers of values that are not sent in this run.
        program: that it runs.
        recorded: of a traced run the events, by the program's clock, and the ends of arrows whose other ends are in
            other tasks; None of others.
        nodes: by the name of a printed function, the node that it is for.
    """

    is_held = False
    _has_sent = False  # in this turn
    unsent: Collection[int] = ()
    program: PartProgram
    recorded: tuple[Sequence[Recorded], Sequence[Crossing]] | None = None
    nodes: Mapping[str, Node] = MappingProxyType({})

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._entrances: dict[int, tuple[Deliver, Deliver, dict[Tag, Iteration]]] = {}
        self.stop = Stop()
        super().__init__(*arguments, **options)

    def is_elsewhere(self, device: str) -> bool:
        return device in self.program.elsewhere

    def _namespace(self, bindings: Mapping[str, Any]) -> dict[str, Any]:
        given = {"post": self._post, "post_dead": self._post_dead, "empty": self._new_array}
        return {**super()._namespace(bindings), **given, "take_over": self._take_over}

    def _new_array(self, number: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._empty(number, shape, dtype)

    def _take_over(self, variable: Variable, array: Any) -> Any:
        return take_over(variable, self._keep(array))

    def _post(self, number: int, tag: Tag, value: Any) -> None:
        if number not in self.unsent:
            self._has_sent = True
            self._send(number, tag, value, False)

    def _post_dead(self, number: int, tag: Tag) -> None:
        self._has_sent = True
        self._send(number, tag, None, True)

    def begin_run(
        self,
        values: Sequence[Any],
        send: Send,
        wake: Callable[[], None],
        unsent: Collection[int] = (),
        empty: Empty = new_array,
        keep: Keep = np.copy,
    ) -> None:
        """Begin a run.

        Args:
            values: what is fed, in order; what arrives at another task is not looked at.
            send: takes what goes to other tasks.
            wake: called by other threads when they have something to report.
            unsent: the numbers of values that get to the other task in another way.
            empty: gives, in any thread, the array that a large value is computed in before it is sent.
            keep: gives, in any thread, the array that becomes the value of a variable: the large one that was received
                for that alone, or a copy.
        """
        self._send, self._wake, self.is_held, self.unsent = send, wake, False, unsent
        self._empty, self._keep = empty, keep
        self.events = self._new_events()
        self._begin()
        for engine in self.engines.values():
            engine.start()
        for root in self._start(values):
            self.frames.release(root)

    def _new_events(self) -> _Events:
        events = _Events()
        events.wake = self._wake
        return events

    def hold(self, others: Collection[str]) -> None:
        """Have the step not go on while too much waits to be sent to these tasks; it goes on if there are none."""
        self.is_held = bool(others)

    @property
    def has_work(self) -> bool:
        """True if a turn would do something."""
        return bool(self.ready) or not self.events.empty()

    @property
    def is_over(self) -> bool:
        """True if everything here has run."""
        return not (self.ready or self.outstanding or self._running)

    def turn(self, most: int, now: Callable[[], float] = time.perf_counter) -> None:
        """Run what is ready, at most so many nodes.

        Messages leave behind the turn, all at once. A turn that has sent something and takes long ends early, for
        another task may wait: kernels take milliseconds where messages take microseconds.

        Args:
            most: how many nodes.
            now: gives the time in seconds.

        Raises:
            Exception: what an operation raised; `current` says where.
        """
        ready = self.ready
        take, self._has_sent, until = ready.popleft, False, now() + _TURN
        for _ in range(most):
            if not ready or self.is_held or (self._has_sent and now() > until):
                break
            self.current = item = take()  # noted before it runs: others ask what a long step is in
            item[0](item[1])
        while not ready and not self.is_held and not self.events.empty():
            function, arguments = self.events.get_nowait()  # nobody else takes any
            function(*arguments)

    def submit(
        self, node: Any, kernel: Callable[..., Any], values: tuple[Any, ...], finish: Callable[..., None], it: Iteration
    ) -> None:
        stop, memory = self.stop, self.program.memory

        def run(*values: Any) -> Any:
            with ending_by(stop), memory():  # a loop that is compiled to machine code ends with the step
                return kernel(*values)

        super().submit(node, run, values, finish, it)

    def under_way(self) -> list[tuple[str, float]]:
        """Return the operations that run apart from the loop now, and for how many seconds; any thread may call it."""
        now = time.perf_counter()
        with contextlib.suppress(RuntimeError):  # the loop has begun or ended one meanwhile
            apart = [known for number, known in self.outstanding.items() if number not in self.waits]
            return [(f"operation {node.name!r}", now - since) for node, _, since in apart]
        return []

    def node_of(self, item: tuple[Any, Any]) -> Node | None:
        """Return the node of something that was ready, if it is one; for any thread."""
        return self.nodes.get(getattr(item[0], "__name__", ""))

    def named(self, item: tuple[Any, Any]) -> str:
        """Return the operation of something that was ready; for any thread."""
        node = self.node_of(item)
        return "the step's own work" if node is None else f"operation {node.name!r}"

    def _entrance(self, number: int) -> tuple[Deliver, Deliver, dict[Tag, Iteration]]:
        """Return by what an edge leads on, alive and dead, and the iterations to which it leads."""
        found = self._entrances[number] = (*self._deliveries[number], self._receives[number][1].live)
        return found

    def receive(self, number: int, tag: Tag, value: Any, is_dead: bool) -> None:
        """Take what another task has sent.

        Raises:
            KeyError: nothing with that number is received here.
        """
        deliver, kill, live = self._entrances.get(number) or self._entrance(number)
        iteration = live.get(tag)
        if iteration is None:
            self.mail[number, tag] = (value, is_dead)
        elif is_dead:
            kill(iteration)
        else:
            deliver(iteration, value)

    def end_run(self) -> dict[int, Any]:
        """End a run that is over; return what was fetched here, by position."""
        for engine in self.engines.values():
            engine.end()
        self.scheduler.end()
        self.stores.reset()
        found, self.fetched = self.fetched, []
        self.roots, self.current = {}, None
        fetches = self.machine.fetches
        return {number: found[number] for number, node in enumerate(fetches) if self.blueprint.is_here(node)}

    def abort(self, error: BaseException | None = None) -> None:
        """Drop all that is under way.

        Args:
            error: what has failed here; None if the step has failed elsewhere.
        """
        super().abort()
        self.stop.ask()
        self.stop = Stop()
        self.events = self._new_events()


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
        step.begin_run(values, send, wake, unsent, empty, keep)
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


def task_of(device: str) -> str:
    """Return the task of a device, by their names.

    >>> task_of("/job:ps/task:1/device:CPU:0")
    '/job:ps/task:1'
    """
    return str(DeviceName.parse(device).of_task())


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
