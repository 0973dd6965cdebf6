"""Decides at run time on which devices scheduled functions run, and runs them there.

Inputs that are there when it is looked at are a batch. Of a batch the largest come first; each goes where it is done
first, given what the devices have to do already and whether the function's state is there. One that would run for
longer than the batch would take if all were spread evenly is cut by rows, and the parts fill up several devices.

State that was brought to a device stays there until its variable has changed, the memory is needed for something else,
or a whole step has made no use of it.

Source: Wei et al., "Dynamic Scheduling For Dynamic Control Flow in Deep Learning Systems" (2018), section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.quick_dataclass import dataclass
from ..control_flow.scheduling import JOINED, SUMMED
from ..graph.op import is_array
from ..lower.nodes import Node
from ..lower.scheduling import Site
from .kept import Held, KeptStates, same_bits
from .shares import Job, Share, spread

if TYPE_CHECKING:
    from .frames import Iteration
    from .step import Step

Finish = Callable[["Iteration", Any], None]


class Request:
    """An input of a scheduled function, in one iteration.

    Attributes:
        values: what the function takes.
        rows: how many rows there are; 1 if it is not split.
        shares: where it runs, once that is decided.
        carried: by device of another task, what its part says of values that are kept there, and their versions.
    """

    __slots__ = ("carried", "finish", "it", "kernel", "node", "rows", "shares", "site", "values")

    def __init__(self, node: Node, kernel: Any, values: tuple[Any, ...], finish: Finish, it: Iteration) -> None:
        self.node = node
        self.site: Site = node.site
        self.kernel = kernel
        self.values = values
        self.finish = finish
        self.it = it
        self.rows = _rows_of(self.site, values)
        self.shares: list[Share] = []
        self.carried: dict[str, list[tuple[Held, int]]] = {}


@dataclass
class SchedulingStatistics:
    """Counts of the scheduled work since the program was made.

    Attributes:
        batches, requests: how often it was decided, and over how many inputs.
        parts: how many kernels were run.
        split: how many inputs were spread over several devices.
        empty: how many inputs had no rows.
        rows: by device.
        state_bytes: of state that was brought to devices.
        data_bytes: of rows that were brought to devices, and results brought back.
    """

    batches: int = 0
    requests: int = 0
    parts: int = 0
    split: int = 0
    empty: int = 0
    rows: dict[str, int] = field(default_factory=dict[str, int])
    state_bytes: int = 0
    data_bytes: int = 0


class _State:
    """A value on a device, or on its way there."""

    __slots__ = ("buffer", "copy", "run", "source", "waiting")

    def __init__(self, source: Any, run: int) -> None:
        self.source = source
        self.copy = source.copy()  # a variable's value may be changed in place between steps
        self.run = run
        self.buffer: Any = None
        self.waiting: list[Callable[[Any], None]] = []


class Scheduler:
    """Schedules the functions of one step.

    Attributes:
        kept: what other tasks keep for all steps of a program.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.kept = KeptStates()
        self.statistics = SchedulingStatistics()
        self._pending: list[Request] = []
        self._busy_until: dict[str, float] = {}
        self._under_way: dict[str, int] = {}
        self._measured: dict[tuple[Site, str], tuple[float, float]] = {}  # seconds and rows on CPUs
        self._states: dict[tuple[str, Any], _State] = {}
        self._listening: set[str] = set()
        self._sent: set[tuple[Site, str]] = set()  # devices of other tasks that have what is not cut, in this run
        self._run = 0
        self._this_run = object()

    def end(self) -> None:
        """End a run: what it made no use of leaves its device, and what is not a variable's."""
        self.kept.end(self._this_run)
        for key, state in list(self._states.items()):
            if state.run != self._run or not isinstance(key[1], _StateKey):
                del self._states[key]

    def reset(self) -> None:
        """Begin a run."""
        self._run += 1
        self._this_run = object()
        self._sent.clear()
        self._pending.clear()
        self._busy_until.clear()
        self._under_way.clear()

    def abort(self) -> None:
        """Forget everything on the devices, which is gone."""
        self._states.clear()
        self._pending.clear()

    # --- what printed code calls ------------------------------------------------------------------------------------

    def schedule(self, node: Node, kernel: Any, values: tuple[Any, ...], finish: Finish, it: Iteration) -> None:
        """Schedule an input with others that are there; that is decided once what is ready now has run."""
        request = Request(node, kernel, values, finish, it)
        self._pending.append(request)
        if len(self._pending) == 1:
            self.step.ready.append((self._decide, it))

    def _decide(self, it: Iteration) -> None:
        batch, self._pending = self._pending, []
        statistics = self.statistics
        statistics.batches += 1
        statistics.requests += len(batch)
        jobs = [Job(request, request.rows, request.site.split, request.site.least_rows) for request in batch]
        spread([job for job in jobs if job.rows], self._loads(batch), self._seconds, self._seconds_before)
        for job in jobs:
            request = job.request
            request.shares = job.shares
            statistics.split += len(job.shares) > 1
            statistics.empty += not job.shares
            for share in job.shares:
                self._note_load(request, share)
            request.finish(request.it, request)

    def demultiplex(self, request: Request) -> list[Any]:
        """Return for each device the part that runs there, or None; of another task's device the values it takes."""
        shares = {share.device: share for share in request.shares}
        return [self._part(request, shares[name]) if name in shares else None for name in request.site.targets]

    def _part(self, request: Request, share: Share) -> tuple[Any, ...]:
        if not self.step.is_elsewhere(share.device):
            return request, share
        self._note_part(share)
        statistics = self.statistics
        is_new = (request.site, share.device) not in self._sent
        self._sent.add((request.site, share.device))
        values = _values_of(request, share)
        task = request.site.tasks[share.device]
        carried = request.carried[share.device] = []
        for position, (value, is_cut, key) in enumerate(zip(values, *_keys_of(request), strict=True)):
            if is_cut:
                statistics.data_bytes += value.nbytes
            elif _is_kept(key, value):
                values[position], held = self.kept.sent(task, key.state, value, self._this_run)
                carried.append((held, values[position].version))
                statistics.state_bytes += 0 if values[position].value is None else value.nbytes
            elif is_new and _is_large(value):
                statistics.state_bytes += value.nbytes
        return tuple(values)

    def _note_part(self, share: Share) -> None:
        rows = self.statistics.rows
        self.statistics.parts += 1
        rows[share.device] = rows.get(share.device, 0) + share.rows

    def replicate(self, node: Node, part: tuple[Request, Share], finish: Finish, it: Iteration) -> None:
        """Run a part on the device of a replica; `finish(it, results)` follows."""
        request, share = part
        self._note_part(share)
        _Running(self, node, request, share, finish, it).begin()

    def replicate_part(self, node: Node, kernel: Any, values: tuple[Any, ...], finish: Finish, it: Iteration) -> None:
        """Run a part that another task has scheduled; `finish(it, results)` follows, with the seconds it took last."""

        @wraps(finish)  # by its name an error finds the operation
        def done(it: Iteration, results: tuple[Any, ...]) -> None:
            finish(it, (*results, running.seconds or 0.0))

        request = Request(node, kernel, values, finish, it)
        share = Share(node.target, 0, request.rows)
        self._note_part(share)
        running = _Running(self, node, request, share, done, it)
        running.begin()

    def join(self, node: Node, request: Request, parts: Sequence[Any]) -> tuple[Any, ...]:
        """Return the results, of those of the replicas; of none without rows."""
        site = request.site
        alive = {name: part for name, part in zip(site.targets, parts, strict=True) if part is not None}
        for share in request.shares:
            if self.step.is_elsewhere(share.device):
                *alive[share.device], seconds = alive[share.device]
                for held, version in request.carried[share.device]:
                    self.kept.arrived(held, version)
                self.note_done(request, share, float(seconds) or None)
        found = [(share, alive[share.device]) for share in request.shares]
        if not found:
            return _of_no_rows(request)
        columns = zip(*[results for _, results in found], strict=True)
        return tuple(
            _joined(site, role, list(column), [share.rows for share, _ in found])
            for role, column in zip(site.roles, columns, strict=True)
        )

    # --- what devices have to do ------------------------------------------------------------------------------------

    def _loads(self, batch: Sequence[Request]) -> dict[str, float]:
        """Return for how long each device is busy."""
        loads: dict[str, float] = {}
        for name in dict.fromkeys(name for request in batch for name in request.site.targets):
            now = self.step.engines[name].now()
            loads[name] = max(0.0, self._busy_until.get(name, now) - now)
        return loads

    def _note_load(self, request: Request, share: Share) -> None:
        name = share.device
        now = self.step.engines[name].now()
        takes = self._seconds_before(request, name) + share.rows * self._seconds(request, name)
        self._busy_until[name] = max(self._busy_until.get(name, now), now) + takes
        self._under_way[name] = self._under_way.get(name, 0) + 1

    def note_done(self, request: Request, share: Share, seconds: float | None) -> None:
        """Note that a part is done; on a CPU it took so long."""
        name = share.device
        self._under_way[name] = left = self._under_way.get(name, 1) - 1
        if not left:
            self._busy_until[name] = self.step.engines[name].now()
        if seconds is not None:
            known, rows = self._measured.get((request.site, name), (0.0, 0.0))
            self._measured[request.site, name] = (known / 2 + seconds, rows / 2 + share.rows)

    def _seconds(self, request: Request, name: str) -> float:
        """Return the seconds that a row takes on a device, as measured or else estimated."""
        seconds, rows = self._measured.get((request.site, name), (0.0, 0.0))
        a_row = seconds / rows if rows else request.site.seconds[name]
        if self.step.is_elsewhere(name):
            cut = sum([value.nbytes for value, is_cut, _ in _taken(request) if is_cut])
            a_row += cut / max(request.rows, 1) / request.site.devices[name].bandwidth
        return a_row

    def _seconds_before(self, request: Request, name: str) -> float:
        """Return the seconds that a part of any size takes on a device: to start a kernel, and to bring state there."""
        device = request.site.devices[name]
        seconds = device.kernel_latency
        if self.step.is_elsewhere(name):  # a part and its results cross, and what is not cut once in a step
            whole = [(value, key) for value, is_cut, key in _taken(request) if not is_cut]
            missing = sum([value.nbytes for value, key in whole if self._crosses(request, name, key, value)])
            return seconds + 2 * device.latency + missing / device.bandwidth
        if not self.step.engines[name].has_own_memory:
            return seconds
        for value, is_cut, key in _taken(request):
            if not is_cut and _is_large(value) and not self._is_there(name, key, value):
                seconds += device.latency + value.nbytes / device.bandwidth
        return seconds

    # --- state ------------------------------------------------------------------------------------------------------

    def _crosses(self, request: Request, name: str, key: Any, value: Any) -> bool:
        """Test whether a value that is not cut has to be sent to the task of a device."""
        if not _is_large(value):
            return False
        if _is_kept(key, value):
            return not self.kept.is_there(request.site.tasks[name], key.state, value, self._this_run)
        return (request.site, name) not in self._sent

    def _is_there(self, name: str, key: Any, value: Any) -> bool:
        state = self._states.get((name, key))
        return state is not None and self._is_current(state, value)

    def _is_current(self, state: _State, value: Any) -> bool:
        """Test whether a copy is that of `value`.

        It is compared once in a run: within one, values do not change.
        """
        if state.source is value and state.run == self._run:
            return True
        if state.source is not value and state.run == self._run:
            return False
        if not same_bits(state.copy, value):
            return False
        state.source, state.run = value, self._run
        return True

    def bring_state(self, name: str, key: Any, value: Any, have: Callable[[Any], None]) -> None:
        """Give `have` the value in the memory of a device; it is brought there unless it is there."""
        state = self._states.get((name, key))
        if state is not None and self._is_current(state, value):
            if state.buffer is not None:
                have(state.buffer)
            else:
                state.waiting.append(have)
            return
        if name not in self._listening:
            self._listening.add(name)
            self.step.engines[name].on_pressure(partial(self._release, name))
        state = self._states[name, key] = _State(value, self._run)
        state.waiting.append(have)
        self.statistics.state_bytes += value.nbytes

        def arrived(buffer: Any) -> None:
            state.buffer = buffer
            waiting, state.waiting = state.waiting, []
            for each in waiting:
                each(buffer)

        self.step.engines[name].to_device(state.copy, arrived)

    def _release(self, name: str) -> None:
        """Release what is there on a device where memory runs short. What kernels wait for is theirs."""
        held = [key for key, state in self._states.items() if key[0] == name and state.buffer is not None]
        for key in held:
            del self._states[key]


class _Running:
    """A part on its way: what it takes is brought to its device, it runs, what it gives is brought back."""

    def __init__(
        self, owner: Scheduler, node: Node, request: Request, share: Share, finish: Finish, it: Iteration
    ) -> None:
        self.owner = owner
        self.step = owner.step
        self.node = node
        self.request = request
        self.share = share
        self.finish = finish
        self.it = it
        self.engine = self.step.engines[share.device]
        self.number = self.step.begin(node, it)
        self.values: list[Any] = []
        self.missing = 0
        self.seconds: float | None = None

    def begin(self) -> None:
        owner, share = self.owner, self.share
        self.values = _values_of(self.request, share)
        if self.engine.has_own_memory:
            moving = [position for position, value in enumerate(self.values) if _is_large(value)]
            self.missing = len(moving)
            keys = [(is_cut, key) for _, is_cut, key in _taken(self.request)]
            for position in moving:
                is_cut, key = keys[position]
                value, have = self.values[position], self._have(position)
                if is_cut:
                    owner.statistics.data_bytes += value.nbytes
                    self.engine.to_device(value, have)
                else:
                    owner.bring_state(share.device, key, value, have)
            if moving:
                return
        self._launch()

    def _have(self, position: int) -> Callable[[Any], None]:
        def have(value: Any) -> None:
            self.values[position] = value
            self.missing -= 1
            if not self.missing:
                self._launch()

        return have

    def _launch(self) -> None:
        site = self.request.site
        events = self.step.events

        def from_thread(function: Callable[..., None], *arguments: Any) -> None:
            events.put((function, arguments))

        device = site.devices[self.share.device]
        self.node.seconds = device.kernel_latency + self.share.rows * site.seconds[self.share.device]
        kernel = self._run if self.engine.has_own_memory else self._timed
        values, self.values = tuple(self.values), []
        self.engine.submit(self.node, kernel, values, self._computed, from_thread)

    def _run(self, *values: Any) -> Any:
        try:
            return self.request.kernel(*values)
        except Exception:
            self.step.current = (self.finish, self.it)  # it may run long after it was launched
            raise

    def _timed(self, *values: Any) -> Any:
        began = self.engine.now()
        results = self._run(*values)
        self.seconds = self.engine.now() - began
        return results

    def _computed(self, results: Any, error: BaseException | None = None) -> None:
        if error is not None:
            self.step.current = (self.finish, self.it)
            raise error
        found: list[Any] = list(results)
        self.missing = len(found)
        if not found:
            self._end(found)
        for position, value in enumerate(found):
            self.engine.to_host(value, self._take(found, position))

    def _take(self, found: list[Any], position: int) -> Callable[[Any], None]:
        def take(value: Any) -> None:
            if self.engine.has_own_memory and is_array(value):
                self.owner.statistics.data_bytes += value.nbytes
            found[position] = value
            self.missing -= 1
            if not self.missing:
                self._end(found)

        return take

    def _end(self, found: list[Any]) -> None:
        if self.step.end(self.number):
            self.owner.note_done(self.request, self.share, self.seconds)
            self.finish(self.it, tuple(found))


class _StateKey:
    """Names the state of a variable; its value is stored under it on each device."""

    __slots__ = ("state",)

    def __init__(self, state: Any) -> None:
        self.state = state

    def __hash__(self) -> int:
        return id(self.state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StateKey) and other.state is self.state


def _taken(request: Request) -> list[tuple[Any, bool, Any]]:
    """Return the inputs of a function: the value, whether it is cut by rows, and its key on a device."""
    return list(zip(request.values, *_keys_of(request), strict=True))


def _keys_of(request: Request) -> tuple[Sequence[bool], list[Any]]:
    site = request.site
    keys = [
        id(value) if state is None else _StateKey(state)
        for value, state in zip(request.values, site.states, strict=True)
    ]
    return site.is_cut, keys


def _values_of(request: Request, share: Share) -> list[Any]:
    """Return what a part takes: of what is cut by rows its own rows."""
    begin, end = share.start, share.start + share.rows
    return [value[begin:end] if is_cut else value for value, is_cut, _ in _taken(request)]


def _is_large(value: Any) -> bool:
    """Test whether a value has to be brought into a device's memory; numbers travel with the kernel."""
    return is_array(value) and bool(value.ndim)


def _is_kept(key: Any, value: Any) -> bool:
    """Test whether another task keeps a value from step to step: arrays of numbers that variables have."""
    return isinstance(key, _StateKey) and _is_large(value) and value.dtype.kind in "biufcV"


def _rows_of(site: Site, values: Sequence[Any]) -> int:
    """Return the number of rows.

    Raises:
        ValueError: the inputs differ.
    """
    if not site.split:
        return 1
    counts = {len(value) for value, is_cut in zip(values, site.is_cut, strict=True) if is_cut}
    if len(counts) != 1:
        raise ValueError(
            f"dynamic_schedule {site.name!r}: the inputs have {' and '.join(map(str, sorted(counts)))} rows; expected "
            "the same number of each."
        )
    return counts.pop()


def _joined(site: Site, role: str, parts: list[Any], rows: Sequence[int]) -> Any:
    if role == JOINED:
        for part, count in zip(parts, rows, strict=True):
            if part.shape[:1] != (count,):
                raise ValueError(
                    f"dynamic_schedule {site.name!r}: the function gave {part.shape[0]} rows for {count}; expected a "
                    "row for each. Pass split=False if rows do not stand for themselves."
                )
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    total = parts[0]
    if role == SUMMED:
        for part in parts[1:]:
            total = total + part
    return total


def _of_no_rows(request: Request) -> tuple[Any, ...]:
    """Return the results of no rows: known from their shapes, or else computed where we are."""
    site = request.site
    shapes = [_shape_of_none(spec, role) for spec, role in zip(site.specs, site.roles, strict=True)]
    if any(shape is None for shape in shapes):
        results = request.kernel(*request.values)
        return (results,) if len(site.given) == 1 else results
    return tuple([np.zeros(shape or (), spec.dtype)[()] for shape, spec in zip(shapes, site.specs, strict=True)])


def _shape_of_none(spec: Any, role: str) -> tuple[int, ...] | None:
    shape: Any = (0, *spec.shape[1:]) if spec.shape and role == JOINED else spec.shape
    return None if shape is None or None in shape else shape


__all__ = ["Request", "Scheduler", "SchedulingStatistics"]
