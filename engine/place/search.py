"""Choice of a device for each colocation group: greedy simulation (white paper), then moves that shorten the step.

Source: Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems" (2015), section
3.2.1: the graph is run in simulation from its sources on, and each node goes where it would finish soonest.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Sequence

from .simulate import Durations, Simulated, Transfers, simulate
from .tasks import Layout

_Rank = tuple[int, float]  # see Simulated.rank
_Placed = tuple[list[int], _Rank]  # for each group the number of its device
_UNDECIDED = -1
_RESTARTS = 20
_LEAST_EFFORT, _MOST_EFFORT = 2_000, 100_000  # tasks that are simulated
_LITTLE_WORK, _EFFORT_OF_LITTLE = 0.1, 20_000  # of a step that has a choice of devices
_LESS = 1 - 1e-9  # shorter by less is no better
_EFFORT_A_SECOND = 1e8  # of a step: simulating a task takes about 3 us, so the search as long as some hundred steps


def search(layout: Layout, effort: int | None = None) -> tuple[list[int], Simulated]:
    """Find a device for each group of `layout`, and the run that it makes. The same layout gives the same answer.

    Starts are the greedy simulation (with variables alone, and with all values counted as memory), everything on one
    device, and the program cut into pieces of equal work, in its order. They are improved by moving groups as long as
    that helps, the best one first; then the best, shaken, is a start again, as long as the effort lasts.

    Where what has a choice of devices takes little time, such as where a program names a device for nearly each
    operation, the best start is improved once: nothing is won but by values that go where they are taken.

    Args:
        layout: the tasks.
        effort: how many tasks may be simulated for improvements; by default more where a step takes longer, since the
            search is paid for once, and what it saves is saved in each step.
    """
    return _Search(layout, effort).run()


class _Search:
    def __init__(self, layout: Layout, effort: int | None) -> None:
        self.layout = layout
        self.transfers = Transfers(layout)
        self.effort = _MOST_EFFORT if effort is None else effort
        self.is_effort_given = effort is not None
        self.work = [0.0] * len(layout.choices)
        for task in layout.tasks:
            self.work[task.group] += min(task.seconds)
        self.spent = 0
        self.has_limits = any(device.memory_limit is not None for device in layout.devices)
        self._known: dict[tuple[int, ...], _Rank] = {}
        self._durations = Durations(layout, self.transfers)
        self._least: dict[tuple[int, ...], float] = {}  # seconds that runs take at least
        self.moves = self._all_moves()
        self.neighbours = self._neighbours()

    def run(self) -> tuple[list[int], Simulated]:
        is_free = self.moves or self.has_limits
        places = self._best() if is_free else next(self._candidates())
        return places, simulate(self.layout, places, self.transfers)

    def _best(self) -> list[int]:
        starts = sorted([self._ranked(places) for places in self._candidates()], key=_rank)
        over, seconds = starts[0][1]
        if not self.is_effort_given and not over:  # else memory has to be found, whatever it takes
            self.effort = min(max(int(seconds * _EFFORT_A_SECOND), _LEAST_EFFORT), _MOST_EFFORT)
            if self._free_work() < _LITTLE_WORK * seconds:
                self.effort = min(self.effort, _EFFORT_OF_LITTLE)
                return self._improve(*starts[0])[0]
        best = self._improve(*starts[0])
        for places, rank in starts[1:]:
            best = min(best, self._improve(places, rank), key=_rank)
        generator = random.Random(0)  # steps are placed alike every time
        for _ in range(_RESTARTS):
            if self.spent >= self.effort:
                break
            best = min(best, self._improve(*self._shaken(best[0], generator)), key=_rank)
        return best[0]

    def _free_work(self) -> float:
        """Return the seconds of what has a choice of devices."""
        return sum([work for work, choices in zip(self.work, self.layout.choices, strict=True) if len(choices) > 1])

    def _shaken(self, places: list[int], generator: random.Random) -> _Placed:
        """Return a third of the groups on other devices: a new start, from which an improvement may lead elsewhere."""
        trial = [
            generator.choice(choices) if generator.random() < 1 / 3 else place
            for choices, place in zip(self.layout.choices, places, strict=True)
        ]
        return self._ranked(trial)

    def _ranked(self, places: list[int]) -> _Placed:
        """Return `places` with the rank of their run; several ways lead to the same, most of all for bound groups."""
        key = tuple(places)
        if key not in self._known:
            self._known[key] = self._rank_of(places)
        return places, self._known[key]

    def _rank_of(self, places: list[int]) -> _Rank:
        if self.has_limits:
            return simulate(self.layout, places, self.transfers).rank
        seconds = self._durations.of(places, math.inf)
        assert seconds is not None
        return 0, seconds

    def _candidates(self) -> Iterator[list[int]]:
        count = len(self.layout.devices)
        yield Greedy(self.layout, self.transfers, self.layout.resident).places()
        if self.has_limits:
            sizes = list(self.layout.resident)
            for task in self.layout.tasks:
                sizes[task.group] += task.made
            yield Greedy(self.layout, self.transfers, sizes).places()
        for device in range(count):
            yield on_one_device(self.layout, device)
        for pieces in range(2, count + 1):
            yield self._in_pieces(pieces)

    def _in_pieces(self, pieces: int) -> list[int]:
        """Cut the groups in program order into pieces of equal work, one for each of the quickest devices."""
        totals = [sum([task.seconds[device] for task in self.layout.tasks]) for device in range(self._count)]
        chosen = sorted(sorted(range(self._count), key=lambda device: (totals[device], device))[:pieces])
        first: dict[int, None] = dict.fromkeys(task.group for task in self.layout.tasks)
        places = on_one_device(self.layout, chosen[0])
        total, done = sum(self.work) or 1.0, 0.0
        for group in first:
            wanted = chosen[min(pieces - 1, int((done + self.work[group] / 2) / total * pieces))]
            done += self.work[group]
            places[group] = _nearest(self.layout.choices[group], wanted)
        return places

    @property
    def _count(self) -> int:
        return len(self.layout.devices)

    def _improve(self, places: list[int], rank: _Rank) -> _Placed:
        """Move one group, or one with those that it hands values to, while the run gets better."""
        improved = True
        while improved:
            improved = False
            for move, device in self.moves:
                if self.spent >= self.effort:
                    return places, rank
                trial = self._moved(places, move, device)
                if trial is None:
                    continue
                better = self._better(trial, rank)
                if better is not None:
                    places, rank, improved = trial, better, True
        return places, rank

    def _better(self, places: list[int], rank: _Rank) -> _Rank | None:
        """Return the rank of `places` if it is better than `rank`; most are not, which is seen before their ends."""
        key = tuple(places)
        if key not in self._known and not self.has_limits:
            limit = rank[1] * _LESS
            if key not in self._least:
                self.spent += len(self.layout.tasks)
            elif self._least[key] >= limit:
                return None
            seconds = self._durations.of(places, limit)
            self._least[key] = limit if seconds is None else seconds
            if seconds is None or seconds >= limit:
                return None
            self._known[key] = (0, seconds)
        elif key not in self._known:
            self.spent += len(self.layout.tasks)
        _, found = self._ranked(places)
        return found if _is_better(found, rank) else None

    def _all_moves(self) -> list[tuple[tuple[int, ...], int]]:
        """Return moves of single groups, most work first; then of pairs where one gives the other a value.

        Each with each device on which some of it may be, where some of it may be elsewhere.
        """
        tasks = self.layout.tasks
        singles = sorted({task.group for task in tasks}, key=lambda group: (-self.work[group], group))
        pairs = {(task.group, tasks[user].group) for task in tasks for user, _ in task.users}
        choices = self.layout.choices
        found = [*[(group,) for group in singles], *sorted(pair for pair in pairs if pair[0] != pair[1])]
        return [
            (move, device)
            for move in found
            for device in sorted({device for group in move if len(choices[group]) > 1 for device in choices[group]})
        ]

    def _moved(self, places: list[int], move: tuple[int, ...], device: int) -> list[int] | None:
        """Return `places` with the groups of a move on a device, if they may be there; None if that can't help."""
        moved = [group for group in move if places[group] != device and device in self.layout.choices[group]]
        if not moved or not (self.has_limits or any(self._may_gain(places, group, device) for group in moved)):
            return None
        trial = list(places)
        for group in moved:
            trial[group] = device
        return trial

    def _may_gain(self, places: list[int], group: int, device: int) -> bool:
        """Test whether a group may do better on a device: one that takes no time may only where its neighbours are."""
        return bool(self.work[group]) or any(places[other] == device for other in self.neighbours[group])

    def _neighbours(self) -> dict[int, set[int]]:
        """Map each group to those that hand it values or take them."""
        tasks = self.layout.tasks
        found: dict[int, set[int]] = {task.group: set() for task in tasks}
        for task in tasks:
            for user, _ in task.users:
                found[task.group].add(tasks[user].group)
                found[tasks[user].group].add(task.group)
        return found


def _rank(placed: _Placed) -> _Rank:
    return placed[1]


def _is_better(rank: _Rank, other: _Rank) -> bool:
    return rank[0] < other[0] or (rank[0] == other[0] and rank[1] < other[1] * _LESS)


def on_one_device(layout: Layout, device: int) -> list[int]:
    """Put everything that may be there on one device; what may not, on the first that it may be on."""
    return [_nearest(choices, device) for choices in layout.choices]


def _nearest(choices: Sequence[int], wanted: int) -> int:
    return wanted if wanted in choices else choices[0]


class Greedy:
    """The simulation that places as it goes.

    What takes no time, such as the read of a variable, is left open where there is a choice: it goes with the first
    task that takes it.

    Args:
        layout: the tasks.
        transfers: between its devices.
        sizes: bytes of each group, which devices' memory limits must hold.
    """

    def __init__(self, layout: Layout, transfers: Transfers, sizes: Sequence[int]) -> None:
        self.layout = layout
        self.tasks = layout.tasks
        self.transfers = transfers
        self.sizes = sizes
        self.place = [_UNDECIDED] * len(layout.choices)
        self.room = [device.memory_limit for device in layout.devices]
        self.free = [0.0] * len(layout.devices)
        self.finished = [0.0] * len(layout.tasks)
        for group, choices in enumerate(layout.choices):
            if len(choices) == 1:
                self._decide(group, choices[0])

    def places(self) -> list[int]:
        """Return the device of each group."""
        missing = [len(task.inputs) for task in self.tasks]
        ready = [(0.0, number) for number, count in enumerate(missing) if not count]
        while ready:
            _, number = heapq.heappop(ready)
            self._place(number)
            for user, _ in self.tasks[number].users:
                missing[user] -= 1
                if not missing[user]:
                    since = max([self.finished[producer] for producer, _ in self.tasks[user].inputs])
                    heapq.heappush(ready, (since, user))
        rest = on_one_device(self.layout, 0)
        return [other if place == _UNDECIDED else place for place, other in zip(self.place, rest, strict=True)]

    def _place(self, number: int) -> None:
        task = self.tasks[number]
        if self.place[task.group] == _UNDECIDED and any(task.seconds):
            self._choose(number)
        device = self.place[task.group]
        if device == _UNDECIDED:
            self.finished[number] = max([self.finished[producer] for producer, _ in task.inputs], default=0.0)
            return
        self.finished[number] = self._finish_on(number, device)
        if task.seconds[device]:
            self.free[device] = self.finished[number]

    def _choose(self, number: int) -> None:
        """Choose the device on which it ends soonest; of devices that have room for it, if any has."""
        group = self.tasks[number].group
        choices = self.layout.choices[group]
        having_room = [device for device in choices if self._has_room(device, self._size_with_inputs(number))]
        candidates = having_room or sorted(choices, key=self._missing_room)[:1]
        device = min(candidates, key=lambda device: (self._finish_on(number, device), device))
        self._decide(group, device)
        self._settle_inputs(number, device)

    def _decide(self, group: int, device: int) -> None:
        self.place[group] = device
        room = self.room[device]
        if room is not None:
            self.room[device] = room - self.sizes[group]

    def _settle_inputs(self, number: int, device: int) -> None:
        """Place inputs that were left open with the task that takes them."""
        for producer, _ in self.tasks[number].inputs:
            group = self.tasks[producer].group
            if self.place[group] != _UNDECIDED:
                continue
            if device in self.layout.choices[group] and self._has_room(device, self.sizes[group]):
                self._decide(group, device)
            else:
                self._decide(group, self.layout.choices[group][0])
            self._settle_inputs(producer, device)

    def _size_with_inputs(self, number: int) -> int:
        groups = {self.tasks[number].group, *[self.tasks[producer].group for producer, _ in self.tasks[number].inputs]}
        return sum([self.sizes[group] for group in groups if self.place[group] == _UNDECIDED])

    def _has_room(self, device: int, size: int) -> bool:
        room = self.room[device]
        return room is None or room >= size

    def _missing_room(self, device: int) -> tuple[int, int]:
        room = self.room[device]
        return (0 if room is None else -room, device)

    def _finish_on(self, number: int, device: int) -> float:
        task = self.tasks[number]
        arrival = max([self._arrival(p, device, size, task.weight) for p, size in task.inputs], default=0.0)
        seconds = task.seconds[device]
        return (max(arrival, self.free[device]) if seconds else arrival) + seconds

    def _arrival(self, number: int, device: int, size: int, weight: float) -> float:
        """Return when a value is on a device; one that was left open is made of what comes there."""
        task = self.tasks[number]
        place = self.place[task.group]
        if place != _UNDECIDED:
            moving = self.transfers.seconds(place, device, size) * min(weight, task.weight)
            return self.finished[number] + moving
        return max([self._arrival(p, device, s, task.weight) for p, s in task.inputs], default=0.0)
