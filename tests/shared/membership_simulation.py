"""`MembershipSimulation`: workers that make operations together while some are killed, stopped and started again.

A seed draws what happens. Operations are those of a training. What they leave is the state, which a worker that was
started again gets from the first member of the group.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from anabranch.distribute.collectives.membership import Membership, Message

OPERATIONS = 8
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

    def __init__(self, rank: int, simulation: MembershipSimulation, joins: bool = False) -> None:
        self.rank = rank
        self.simulation = simulation
        self.number = 0 if joins else 1
        self.numbers = [self.number]
        self.members = [] if joins else [*range(simulation.count)]
        self.results: list[tuple[int, str]] = []  # rows, and what the first member has said
        self.heard: deque[Message] = deque()  # from the service
        self.cut: set[int] = set()
        self.has_joiners = self.is_refused = False
        self.has_state = not joins
        self.is_over = False  # it came too late
        self.to_service: deque[Message | None] = deque()  # None: its connection has ended
        self.from_service: deque[Message] = deque()
        self.state = "runs"  # or "stopped", "killed", "refused", "ended"
        self.activity = self._join_and_run() if joins else self._run()
        if joins:  # it is the first that it says
            simulation.say(self, {"join": 1})

    def step(self) -> None:
        try:
            next(self.activity)
        except StopIteration:
            self.state = "ended"
            self.simulation.say(self, None)
        except RefusedError:
            self.state = "refused"
            self.simulation.close(self)
            self.simulation.say(self, None)

    def _run(self) -> Generator[None]:
        while len(self.results) < OPERATIONS:
            self._hear()
            if self.members[0] == self.rank and self.has_joiners:
                yield from self._admit()
            number = len(self.results)
            self.results.append((yield from self._made(lambda number=number: self._operation(number))))
        try:
            yield from self._made(lambda: self._exchanged("end"))
        except OverError:
            return
        self.simulation.say(self, {"end": self.number})

    # --- workers that join --------------------------------------------------------------------------------------------

    def _admit(self) -> Generator[None]:
        yield from self._recovered(admits=True)

    def _join_and_run(self) -> Generator[None]:
        while True:
            try:
                yield from self._answered()
                yield from self._caught_up(None)
                given = (yield from self._exchanged(None))[0]
                self.results = [*given]
                if (yield from self._takes_part()):
                    break
            except OverError:
                self.is_over = True
                return
            except LostError:
                pass
            self.simulation.close(self)
            self.simulation.say(self, {"join": 1})
        self.has_state = True
        yield from self._run()

    def _takes_part(self) -> Wait:
        self.simulation.say(self, {"takes part": self.number})
        answer = yield from self._answer()
        return "takes part" in answer

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

    def _recovered(self, admits: bool = False) -> Wait:
        while True:
            yield from self._count(admits)
            try:
                ended, found = yield from self._caught_up(len(self.results))
                if None in ended:
                    is_first = self.members[0] == self.rank
                    assert not is_first or admits, "who gives the state is at a place that it can describe"
                    yield from self._exchanged([*self.results] if is_first else None)
            except LostError:
                continue
            return None if len(self.results) == max(each for each in ended if each is not None) else found

    def _caught_up(self, own: int | None) -> Wait:
        """Return how many operations each member has ended, and the result of the latest for those that are behind."""
        ended = yield from self._exchanged(own)
        known = [each for each in ended if each is not None]
        assert known, "a worker without the state is in a group of those that have it"
        if min(known) == max(known):
            return ended, None
        assert max(known) == min(known) + 1, "members are at two operations at most"
        first = ended.index(max(known))
        result = self.results[-1] if self.members[first] == self.rank else None
        return ended, (yield from self._exchanged(result))[first]

    def _count(self, admits: bool) -> Wait:
        self.simulation.close(self)
        self.simulation.say(self, {"count": self.number, "admits": admits})
        yield from self._answered()

    def _answered(self) -> Wait:
        """Take the next group.

        Raises:
            OverError: the training is over.
        """
        answer = yield from self._answer()
        if "over" in answer:
            raise OverError
        self.number, self.members = answer["group"], answer["members"]
        self.numbers.append(self.number)

    def _answer(self) -> Wait:
        while True:
            yield
            self._hear()
            if self.heard:
                return self.heard.popleft()

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
        if self.is_refused:
            raise RefusedError

    def hear(self, message: Message) -> None:
        """Take what the service says."""
        if "lost" in message:
            self.cut.add(message["lost"])
        elif "joins" in message:
            self.has_joiners = True
        elif "refused" in message:
            self.is_refused = True
        else:
            if "group" in message:
                self.has_joiners = False
                self.cut -= {*message["members"]}
            self.heard.append(message)


class MembershipSimulation:
    """Workers, their connections, and the service.

    Args:
        seed: of all that happens.
        kind: of the service.
    """

    def __init__(self, seed: int, kind: type[Membership] = Membership) -> None:
        self.rng = random.Random(seed)
        self.count = self.rng.randint(2, 5)
        self.service = kind(SILENT_TICKS)
        self.workers = [Worker(rank, self) for rank in range(self.count)]  # the latest start of each
        self.earlier: list[Worker] = []
        self._values: dict[tuple[int, int, int], deque[Any]] = {}  # by group, sender and receiver
        self._closed: set[tuple[int, int]] = set()  # groups that a worker has left
        self.groups: dict[int, list[int]] = {1: [*range(self.count)]}
        self._starts = {(1, worker.rank): worker for worker in self.workers}  # by group and rank
        self._lost: set[Worker] = set()  # of which the service has said so, or whose end it has heard of
        self.faults = self.rng.randint(0, 6)
        self.restarts = self.rng.randint(0, 5)
        self.rate = self.rng.choice([0.005, 0.01, 0.02])  # of faults
        self.is_slow = self.rng.random() < 0.3  # so that workers that run are taken for stopped
        self.served = 0.2 if self.is_slow else self.rng.choice([0.05, 0.2])  # up to which draws the service hears
        self.joined = 0
        self.service.most_doubled = seed % 4  # with 0 workers that run are taken for stopped again and again
        for rank in range(self.count):
            self.service.begin(rank)
        self.service.sent.clear()

    # --- what workers do ----------------------------------------------------------------------------------------------

    def say(self, worker: Worker, message: Message | None) -> None:
        worker.to_service.append(message)

    def send(self, worker: Worker, other: int, value: object) -> None:
        self._values.setdefault((worker.number, worker.rank, other), deque()).append(value)

    def sent(self, worker: Worker, other: int) -> deque[Any]:
        return self._values.setdefault((worker.number, other, worker.rank), deque())

    def close(self, worker: Worker) -> None:
        self._closed.add((worker.number, worker.rank))

    def has_ended(self, rank: int, number: int) -> bool:
        state = self._starts[number, rank].state
        return state in ("killed", "refused", "ended") or (number, rank) in self._closed

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
        if drawn < self.rate and self.faults:
            self.faults -= 1
            self._fault(self.rng.choice(running))
        elif drawn < 0.04:
            self._tick(running)
        elif drawn < self.served:
            self._serve()
        elif drawn < 0.4:
            waiting = [worker for worker in self.workers if worker.from_service]
            if waiting:
                worker = self.rng.choice(waiting)
                worker.hear(worker.from_service.popleft())
        elif drawn < 0.5:
            self._start_again()
        else:
            self.rng.choice(running).step()

    def _fault(self, worker: Worker) -> None:
        if self.rng.random() < 0.5:
            worker.state = "stopped"
            return
        worker.state = "killed"
        self.say(worker, None)
        for (number, sender, _), values in self._values.items():
            if sender == worker.rank and number == worker.number:
                for _ in range(self.rng.randint(0, len(values))):
                    values.pop()  # it has not left the process

    def _start_again(self) -> None:
        """Start a worker again, as the launcher does, once the service has heard of its end."""
        ended = [each for each in self.workers if each.state in ("killed", "refused") and not each.to_service]
        if not ended or not self.restarts:
            return
        worker = self.rng.choice(ended)
        if self.service.goes_on_without([worker.rank]):
            self.restarts -= 1
            self.earlier.append(worker)
            self.workers[worker.rank] = Worker(worker.rank, self, joins=True)

    def _tick(self, running: list[Worker]) -> None:
        for worker in running:
            if not self.is_slow or self.rng.random() < 0.6:
                self.say(worker, {})
                while worker.to_service and not self.is_slow:
                    self._serve(worker)
        self.service.tick()
        self._answer()

    def _serve(self, worker: Worker | None = None) -> None:
        if worker is None:
            waiting = [each for each in self.workers if each.to_service]
            if not waiting:
                return
            worker = self.rng.choice(waiting)
        rank, message = worker.rank, worker.to_service.popleft()
        if message is None:
            self._lost.add(worker)
            self.service.gone(rank)
        elif "join" in message:
            self.service.join(rank, message["join"])
        else:
            self.service.heard(rank)
            if "count" in message:
                self.service.count(rank, message["count"], message["admits"])
            elif "end" in message:
                self.service.end(rank, message["end"])
            elif "takes part" in message:
                self.service.take_part(rank, message["takes part"])
        self._answer()

    def _answer(self) -> None:
        for rank, message in self.service.sent:
            if "group" in message:
                number, members = message["group"], message["members"]
                known = self.groups.setdefault(number, members)
                assert known == members, "one number, one group"
                assert not self._lost & {self.workers[each] for each in members}, "nobody comes back who was lost"
                assert self.workers[members[0]].has_state, "who leads has the state"
                assert members == [members[0], *sorted(members[1:])]
                self._starts.setdefault((number, rank), self.workers[rank])
            elif "lost" in message:
                self._lost.add(self.workers[message["lost"]])
            self.workers[rank].from_service.append(message)
        self.service.sent.clear()

    # --- what has to hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        everyone = [*self.earlier, *self.workers]
        ended = [worker for worker in self.workers if worker.state == "ended" and not worker.is_over]
        left = {worker.state for worker in everyone} - {"ended", "killed", "refused"}
        assert not left, "workers that are not lost come to the end"
        assert ended or all(worker.state == "killed" or worker.is_refused for worker in everyone)
        for worker in ended:
            assert worker.results == ended[0].results, "all have the same results"
            assert [rows for rows, _ in worker.results] == [(1 << ROWS) - 1] * OPERATIONS, "each row counts once"
        for worker in everyone:
            assert not ended or not worker.is_refused or worker in self._lost, "nobody else is refused"
            assert worker.numbers == sorted({*worker.numbers}), "numbers grow"
            if ended:  # of the others only the latest operation may have been made again
                known = worker.results[: max(len(worker.results) - 1, 0)]
                assert known == ended[0].results[: len(known)]
        self.joined = sum(worker.has_state and worker.numbers[0] == 0 for worker in everyone)


__all__ = ["MembershipSimulation"]
