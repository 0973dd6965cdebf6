"""`MembershipSimulation`: workers that make operations together while some are killed or stopped, as a seed draws."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from anabranch.distribute.collectives.membership import Membership, Message

OPERATIONS = 6
ROWS = 7  # of each operation
SILENT_TICKS = 3
_MOST_STEPS = 20000


class LostError(Exception):
    """A connection has ended."""


class RefusedError(Exception):
    """The worker is in no group any more."""


class OverError(Exception):
    """The training is over."""


Wait = Generator[None, None, Any]


class Worker:
    """A worker as `Elastic` makes it: it makes one operation after the other with the members of its group."""

    def __init__(self, rank: int, simulation: MembershipSimulation) -> None:
        self.rank = rank
        self.simulation = simulation
        self.number = 1
        self.numbers = [1]
        self.members = [*range(simulation.count)]
        self.results: list[tuple[int, str]] = []  # rows, and what the first member has said
        self.heard: deque[Message] = deque()  # from the service
        self.cut: set[int] = set()
        self.state = "runs"  # or "stopped", "killed", "refused", "ended"
        self.activity = self._run()

    def step(self) -> None:
        try:
            next(self.activity)
        except StopIteration:
            self.state = "ended"
            self.simulation.say(self.rank, None)
        except RefusedError:
            self.state = "refused"
            self.simulation.close(self)
            self.simulation.say(self.rank, None)

    def _run(self) -> Generator[None]:
        for number in range(OPERATIONS):
            self.results.append((yield from self._made(lambda number=number: self._operation(number))))
        try:
            yield from self._made(lambda: self._exchanged("end"))
        except OverError:
            return
        self.simulation.say(self.rank, {"end": self.number})

    def _made(self, work: Callable[[], Wait]) -> Wait:
        while True:
            try:
                return (yield from work())
            except LostError:
                found = yield from self._recovered()
            if found is not None:
                return found

    def _operation(self, number: int) -> Wait:
        place, size = self.members.index(self.rank), len(self.members)
        rows = sum(1 << row for row in range(ROWS) if row % size == place)
        found = yield from self._exchanged((rows, f"{number}: {self.rank}" if not place else ""))
        return sum(each[0] for each in found), found[0][1]

    def _recovered(self) -> Wait:
        while True:
            yield from self._count()
            try:
                ended = yield from self._exchanged(len(self.results))
                if min(ended) == max(ended):
                    return None
                first = ended.index(max(ended))
                assert max(ended) == min(ended) + 1, "members are at two operations at most"
                own = self.results[-1] if self.members[first] == self.rank else None
                found = (yield from self._exchanged(own))[first]
            except LostError:
                continue
            return None if len(self.results) == max(ended) else found

    def _count(self) -> Wait:
        self.simulation.close(self)
        self.simulation.say(self.rank, {"count": self.number})
        while True:
            yield
            self._hear()
            if self.heard:
                break
        answer = self.heard.popleft()
        if "over" in answer:
            raise OverError
        self.number, self.members = answer["group"], answer["members"]
        self.numbers.append(self.number)

    def _exchanged(self, own: object) -> Wait:
        """Give each member of the group the own value; return those of all."""
        simulation = self.simulation
        for other in self.members:
            simulation.send(self, other, own)
            if simulation.rng.random() < 0.3:
                yield
        found = []
        for other in self.members:
            while not (waiting := simulation.sent(self, other)):
                self._hear()
                if other in self.cut or simulation.has_ended(other, self.number):
                    raise LostError
                yield
            found.append(waiting.popleft())
        return found

    def _hear(self) -> None:
        """Take what the service says of losses.

        Raises:
            RefusedError: this worker is lost.
        """
        for message in [*self.heard]:
            if "lost" in message:
                self.cut.add(message["lost"])
                self.heard.remove(message)
            elif "refused" in message:
                raise RefusedError


class MembershipSimulation:
    """Workers, their connections, and the service."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = self.rng.randint(2, 5)
        self.service = Membership(SILENT_TICKS)
        self.workers = [Worker(rank, self) for rank in range(self.count)]
        self._to_service: dict[int, deque[Message | None]] = {rank: deque() for rank in range(self.count)}
        self._from_service: dict[int, deque[Message]] = {rank: deque() for rank in range(self.count)}
        self._values: dict[tuple[int, int, int], deque[Any]] = {}  # by group, sender and receiver
        self._closed: set[tuple[int, int]] = set()  # groups that a worker has left
        self.groups: dict[int, list[int]] = {1: [*range(self.count)]}
        self.faults = self.rng.randint(0, 4)
        self.is_slow = self.rng.random() < 0.3  # so that workers that run are taken for stopped
        for rank in range(self.count):
            self.service.begin(rank)
        self.service.sent.clear()

    # --- what workers do ----------------------------------------------------------------------------------------------

    def say(self, rank: int, message: Message | None) -> None:
        self._to_service[rank].append(message)

    def send(self, worker: Worker, other: int, value: object) -> None:
        self._values.setdefault((worker.number, worker.rank, other), deque()).append(value)

    def sent(self, worker: Worker, other: int) -> deque[Any]:
        return self._values.setdefault((worker.number, other, worker.rank), deque())

    def close(self, worker: Worker) -> None:
        self._closed.add((worker.number, worker.rank))

    def has_ended(self, rank: int, number: int) -> bool:
        worker = self.workers[rank]
        return worker.state in ("killed", "refused", "ended") or (number, rank) in self._closed

    # --- what happens -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Let things happen until all workers that run have ended."""
        for _ in range(_MOST_STEPS):
            running = [worker for worker in self.workers if worker.state == "runs"]
            stopped = [worker for worker in self.workers if worker.state == "stopped"]
            if not running and not stopped:
                break
            if not running or (stopped and self.rng.random() < 0.003):
                self.rng.choice(stopped).state = "runs"
                continue
            self._one_thing(running)
        self.check()

    def _one_thing(self, running: list[Worker]) -> None:
        drawn = self.rng.random()
        if drawn < 0.01 and self.faults:
            self.faults -= 1
            self._fault(self.rng.choice(running))
        elif drawn < 0.03:
            self._tick(running)
        elif drawn < 0.2:
            self._serve()
        elif drawn < 0.4:
            waiting = [rank for rank, messages in self._from_service.items() if messages]
            if waiting:
                rank = self.rng.choice(waiting)
                self.workers[rank].heard.append(self._from_service[rank].popleft())
        else:
            self.rng.choice(running).step()

    def _fault(self, worker: Worker) -> None:
        if self.rng.random() < 0.5:
            worker.state = "stopped"
            return
        worker.state = "killed"
        self.say(worker.rank, None)
        for (_, sender, _), values in self._values.items():
            if sender == worker.rank:
                for _ in range(self.rng.randint(0, len(values))):
                    values.pop()  # it has not left the process

    def _tick(self, running: list[Worker]) -> None:
        for worker in running:
            if not self.is_slow or self.rng.random() < 0.6:
                self.say(worker.rank, {})
                while self._to_service[worker.rank] and not self.is_slow:
                    self._serve(worker.rank)
        self.service.tick()
        self._answer()

    def _serve(self, rank: int | None = None) -> None:
        if rank is None:
            waiting = [each for each, messages in self._to_service.items() if messages]
            if not waiting:
                return
            rank = self.rng.choice(waiting)
        message = self._to_service[rank].popleft()
        if message is None:
            self.service.gone(rank)
        else:
            self.service.heard(rank)
            if "count" in message:
                self.service.count(rank, message["count"])
            elif "end" in message:
                self.service.end(rank, message["end"])
        self._answer()

    def _answer(self) -> None:
        for rank, message in self.service.sent:
            if "group" in message:
                known = self.groups.setdefault(message["group"], message["members"])
                assert known == message["members"], "one number, one group"
                assert not {*known} & self.service.lost.keys(), "nobody comes back who was lost"
            self._from_service[rank].append(message)
        self.service.sent.clear()

    # --- what has to hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        ended = [worker for worker in self.workers if worker.state == "ended"]
        left = {worker.state for worker in self.workers} - {"ended", "killed", "refused"}
        assert not left, "workers that are not lost come to the end"
        assert ended or all(worker.state == "killed" or worker.rank in self.service.lost for worker in self.workers)
        for worker in ended:
            assert worker.results == ended[0].results, "all have the same results"
            assert [rows for rows, _ in worker.results] == [(1 << ROWS) - 1] * OPERATIONS, "each row counts once"
        for worker in self.workers:
            assert worker.numbers == sorted({*worker.numbers}), "numbers grow"
            if ended:  # of the others only the latest operation may have been made again
                known = worker.results[: max(len(worker.results) - 1, 0)]
                assert known == ended[0].results[: len(known)]


__all__ = ["MembershipSimulation"]
