"""Cheapest cuts of networks: what has to be paid for so that nothing gets from the source to the sink."""

from __future__ import annotations

from collections import deque

ENDLESS = 1 << 80  # the price of what can't be cut


class Network:
    """Places and one-way connections, each with the price of cutting it.

    Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation" (1970).

    >>> network = Network()
    >>> middle = network.place()
    >>> network.connect(network.source, middle, 3)
    >>> network.connect(middle, network.sink, 2)
    >>> network.cut() == {network.sink}
    True
    """

    def __init__(self) -> None:
        self._leaving: list[list[int]] = []  # for each place the numbers of the connections that leave it
        self._goal: list[int] = []  # number k is the way back of number k ^ 1
        self._room: list[int] = []
        self.source = self.place()
        self.sink = self.place()

    def place(self) -> int:
        """Return a new place."""
        self._leaving.append([])
        return len(self._leaving) - 1

    def connect(self, start: int, goal: int, price: int = ENDLESS) -> None:
        """Connect `start` to `goal`."""
        self._leaving[start].append(len(self._goal))
        self._goal.append(goal)
        self._room.append(price)
        self._leaving[goal].append(len(self._goal))
        self._goal.append(start)
        self._room.append(0)

    def cut(self) -> set[int]:
        """Return the places behind the cheapest cut, on the side of the sink; of several cuts the one nearest to it."""
        while True:
            levels = self._levels()
            if levels[self.sink] < 0:
                return self._before_sink()
            self._fill(levels)

    def _levels(self) -> list[int]:
        """Return the distance of each place from the source, where there is room; -1 for places out of reach."""
        levels = [-1] * len(self._leaving)
        levels[self.source] = 0
        pending = deque([self.source])
        while pending:
            place = pending.popleft()
            for number in self._leaving[place]:
                goal = self._goal[number]
                if self._room[number] and levels[goal] < 0:
                    levels[goal] = levels[place] + 1
                    pending.append(goal)
        return levels

    def _fill(self, levels: list[int]) -> None:
        """Fill all shortest ways from the source to the sink."""
        tried = [0] * len(self._leaving)
        way: list[int] = []
        place = self.source
        while True:
            if place == self.sink:
                narrowest = min([self._room[number] for number in way])
                for number in way:
                    self._room[number] -= narrowest
                    self._room[number ^ 1] += narrowest
                way, place = [], self.source
                continue
            number = self._next(place, levels, tried)
            if number is not None:
                way.append(number)
                place = self._goal[number]
            elif way:
                place = self._goal[way.pop() ^ 1]
                tried[place] += 1
            else:
                return

    def _next(self, place: int, levels: list[int], tried: list[int]) -> int | None:
        """Return a connection with room from `place` to one that is farther from the source."""
        leaving = self._leaving[place]
        while tried[place] < len(leaving):
            number = leaving[tried[place]]
            if self._room[number] and levels[self._goal[number]] == levels[place] + 1:
                return number
            tried[place] += 1
        return None

    def _before_sink(self) -> set[int]:
        """Return the places from which there is still room on a way to the sink."""
        found = {self.sink}
        pending = [self.sink]
        while pending:
            for number in self._leaving[pending.pop()]:
                before = self._goal[number]
                if self._room[number ^ 1] and before not in found:
                    found.add(before)
                    pending.append(before)
        return found
