"""A simulated run of a placed step: when each task starts, what each device does and holds, what crosses."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from ..common.quick_dataclass import dataclass
from .tasks import Layout

_DONE, _READY = 0, 1


@dataclass(frozen=True)
class Simulated:
    """The expected times and bytes of a run of a step.

    Attributes:
        seconds: from its start to its end.
        busy: seconds in which each device computes.
        peak: the most bytes that each device holds: variables, constants, and values that are still needed.
        over: by how many bytes devices' memory limits are exceeded, in sum.
        crossings: values that cross: (task that makes it, device it comes to, bytes).
    """

    seconds: float
    busy: list[float]
    peak: list[int]
    over: int
    crossings: list[tuple[int, int, int]]

    @property
    def rank(self) -> tuple[int, float]:
        """By which runs are compared: what fits the devices' memory is better than what does not."""
        return (self.over, self.seconds)


class Transfers:
    """Seconds of transfers between a layout's devices, by their numbers."""

    def __init__(self, layout: Layout) -> None:
        self._costs = layout.costs
        self._devices = layout.devices
        tasks = [device.spec.of_task() for device in layout.devices]
        self._same_host = [[one == other for other in tasks] for one in tasks]
        self._known: dict[tuple[int, int, int], float] = {}

    def seconds(self, source: int, destination: int, size: int) -> float:
        """Return the time for `size` bytes; -1 for a value in the host's memory, which all of its devices reach."""
        if source == destination or (size < 0 and self._same_host[source][destination]):
            return 0.0
        key = (source, destination, size)
        found = self._known.get(key)
        if found is None:
            ends = self._devices[source], self._devices[destination]
            found = self._known[key] = self._costs.transfer(max(size, 8), *ends)
        return found


class Durations:
    """The times of runs of a layout, without what devices hold: for many placements, of which most are no better.

    Args:
        layout: the tasks.
        transfers: those of the layout.
    """

    def __init__(self, layout: Layout, transfers: Transfers) -> None:
        tasks = layout.tasks
        self._transfers = transfers
        self._groups = [task.group for task in tasks]
        self._seconds = [task.seconds for task in tasks]
        weights = [task.weight for task in tasks]
        self._users = [
            [(user, size, min(task.weight, weights[user])) for user, size in task.users] for task in tasks
        ]  # of each task: who takes a value, its bytes, how often
        self._missing = [len(task.inputs) for task in tasks]
        self._first = [(0.0, _READY, number) for number, count in enumerate(self._missing) if not count]
        self._count = len(layout.devices)
        self._rest = [0.0] * len(tasks)  # the least time from a task's start to the end of the step
        for number in reversed(range(len(tasks))):
            choices, seconds = layout.choices[self._groups[number]], self._seconds[number]
            behind = max([self._rest[user] for user, _, _ in self._users[number]], default=0.0)
            self._rest[number] = min([seconds[device] for device in choices]) + behind

    def of(self, places: Sequence[int], limit: float) -> float | None:
        """Return the seconds that `simulate` gives; None once they are certain to be `limit` or more.

        Args:
            places: for each group the number of its device.
            limit: in seconds.
        """
        bound = limit * (1 + 1e-9)  # sums in another order differ by less
        place = [places[group] for group in self._groups]
        busy = [0.0] * self._count
        for seconds, device in zip(self._seconds, place, strict=True):
            busy[device] += seconds[device]
        return None if max(busy) > bound else self._run(place, bound)

    def _run(self, place: list[int], bound: float) -> float | None:
        """Take the events that `_Run` takes, in the same order."""
        all_seconds, all_users, rest, transfer = self._seconds, self._users, self._rest, self._transfers.seconds
        missing, arrived = self._missing.copy(), [0.0] * len(place)
        idle = [True] * self._count
        queues: list[list[int]] = [[] for _ in idle]
        events = self._first.copy()  # sorted: a heap
        end = 0.0
        while events:
            now, what, number = heappop(events)
            device = place[number]
            queue = queues[device]
            if what == _READY and all_seconds[number][device]:
                heappush(queue, number)
            else:
                if what == _DONE:
                    idle[device] = True
                end = now  # no event is before the last one
                crossed: dict[int, float] | None = None  # when a value has come to each device
                for user, size, weight in all_users[number]:
                    there, arrival = place[user], now
                    if there != device:
                        arrival += transfer(device, there, size) * weight
                        crossed = {} if crossed is None else crossed
                        if arrival < crossed.get(there, 0.0):
                            arrival = crossed[there]
                        crossed[there] = arrival
                    if arrival > arrived[user]:
                        arrived[user] = arrival
                    missing[user] -= 1
                    if not missing[user]:
                        arrival = arrived[user]
                        if arrival + rest[user] > bound:
                            return None
                        heappush(events, (arrival, _READY, user))
            if queue and idle[device]:
                started = heappop(queue)
                if now + rest[started] > bound:
                    return None
                idle[device] = False
                heappush(events, (now + all_seconds[started][device], _DONE, started))
        return end


def simulate(layout: Layout, places: Sequence[int], transfers: Transfers | None = None) -> Simulated:
    """Run the tasks of `layout` in simulated time, each on the device of its group.

    A device runs one task at a time: of those whose inputs are there, the first in program order. A value crosses once
    to each device that needs it. Transfers do not hold each other up.

    Args:
        layout: the tasks.
        places: for each group the number of its device.
        transfers: those of the layout, to be used for several runs.
    """
    return _Run(layout, places, transfers or Transfers(layout)).run()


class _Run:
    def __init__(self, layout: Layout, places: Sequence[int], transfers: Transfers) -> None:
        self.tasks = layout.tasks
        self.transfers = transfers
        self.devices = layout.devices
        self.place = [places[task.group] for task in self.tasks]
        count = len(layout.devices)
        self.busy, self.held, self.is_idle = [0.0] * count, [0] * count, [True] * count
        for group, size in enumerate(layout.resident):
            self.held[places[group]] += size
        self.peak = list(self.held)
        self.queues: list[list[int]] = [[] for _ in range(count)]
        self.missing = [len(task.inputs) for task in self.tasks]
        self.arrived = [0.0] * len(self.tasks)
        self.copies: dict[tuple[int, int], tuple[int, int]] = {}  # (task, device): users still to come, bytes
        self.crossings: list[tuple[int, int, int]] = []
        self.end = 0.0

    def run(self) -> Simulated:
        events = [(0.0, _READY, number) for number, missing in enumerate(self.missing) if not missing]
        heapify(events)
        while events:
            now, what, number = heappop(events)
            device = self.place[number]
            if what == _DONE:
                self._finish(number, now, events)
                if self.tasks[number].seconds[device]:
                    self.is_idle[device] = True
            elif not self.tasks[number].seconds[device]:
                self._hold(device, self.tasks[number].made)
                self._finish(number, now, events)
            else:
                heappush(self.queues[device], number)
            if self.is_idle[device] and self.queues[device]:
                self._start(heappop(self.queues[device]), device, now, events)
        limits = [device.memory_limit for device in self.devices]
        over = [0 if limit is None else max(0, peak - limit) for limit, peak in zip(limits, self.peak, strict=True)]
        return Simulated(self.end, self.busy, self.peak, sum(over), self.crossings)

    def _start(self, number: int, device: int, now: float, events: list[tuple[float, int, int]]) -> None:
        task = self.tasks[number]
        self.is_idle[device] = False
        self.busy[device] += task.seconds[device]
        self._hold(device, task.made)
        heappush(events, (now + task.seconds[device], _DONE, number))

    def _finish(self, number: int, now: float, events: list[tuple[float, int, int]]) -> None:
        """Hand on what a task made, and let go of what it was the last to need."""
        task, device = self.tasks[number], self.place[number]
        self.end = max(self.end, now)
        for producer, _ in task.inputs:
            self._release(producer, device)
        arrivals: dict[int, float] = {}
        taken: dict[int, tuple[int, int]] = {}  # by each device: how many users there, and the bytes
        for user, size in task.users:
            there = self.place[user]
            count, most = taken.get(there, (0, -1))
            taken[there] = (count + 1, max(most, size))
            arrival = now
            if there != device:
                weight = min(task.weight, self.tasks[user].weight)
                arrival += self.transfers.seconds(device, there, size) * weight
                arrivals[there] = arrival = max(arrival, arrivals.get(there, 0.0))
            self.arrived[user] = max(self.arrived[user], arrival)
            self.missing[user] -= 1
            if not self.missing[user]:
                heappush(events, (self.arrived[user], _READY, user))
        self._hand_over(number, device, taken)

    def _hand_over(self, number: int, device: int, taken: dict[int, tuple[int, int]]) -> None:
        made = self.tasks[number].made
        for there, (count, size) in taken.items():
            self.copies[number, there] = (count, made if there == device else max(size, 0))
            if there != device and size >= 0:
                self._hold(there, size)
                self.crossings.append((number, there, size))
        if taken and device not in taken:
            self.held[device] -= made  # everything was sent away

    def _hold(self, device: int, size: int) -> None:
        self.held[device] += size
        self.peak[device] = max(self.peak[device], self.held[device])

    def _release(self, number: int, device: int) -> None:
        count, size = self.copies[number, device]
        if count > 1:
            self.copies[number, device] = (count - 1, size)
            return
        del self.copies[number, device]
        self.held[device] -= size
