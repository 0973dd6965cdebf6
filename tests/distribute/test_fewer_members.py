"""Groups that go on with fewer members: each operation is made once, whoever is lost, and whenever."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any

import numpy as np
import pytest
from shared.members import TOKEN, all_at_once, made
from shared.tasks import PATIENCE

from anabranch import Sequential, layers
from anabranch.distribute.collectives import elastic, membership_service
from anabranch.distribute.collectives.elastic import Elastic, LeaderLostError
from anabranch.distribute.collectives.group import ProcessGroup
from anabranch.distribute.collectives.membership_service import MembershipServer, Seat
from anabranch.distribute.environment import MEMBERSHIP
from anabranch.distribute.strategies.data_parallel import DataParallel
from anabranch.engine.graph import Graph, Operation
from anabranch.engine.graph.graph import get_default_graph
from anabranch.engine.ops import collectives
from anabranch.engine.ops.begun_collectives import EndAllReduce
from anabranch.engine.queues.errors import CancelledError, TaskFailedError
from anabranch.framework.replicas.traced import StepTracer
from anabranch.framework.replicas.ways import GroupWay, packed

OPERATIONS = 12


@contextlib.contextmanager
def made_for_a_while(count: int, shares_memory: bool = True) -> Generator[list[ProcessGroup]]:
    groups = made(count, shares_memory)
    try:
        yield groups
    finally:
        for group in groups:
            group.close()


beat = Seat._beat


class LostError(Exception):
    """A member of a test has ended."""


@pytest.fixture(autouse=True)
def _quietly(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each member of a test has a thread, and this process keeps no group."""
    monkeypatch.setattr(elastic, "regrouped", lambda group: group.without_lost(30.0))
    caplog.set_level(logging.ERROR)


def lose(group: ProcessGroup, reached: set[int]) -> None:
    """Have a member end in its next exchange, of which some others get what it sends."""

    def exchange(sends: Any, receives: Any, arrived: Any = None) -> None:
        sent = {rank: buffers for rank, buffers in sends.items() if rank in reached}
        with contextlib.suppress(TaskFailedError):  # one of them may have ended
            type(group.links).exchange(group.links, sent, {})
        group.close()
        raise LostError

    group.links.exchange = exchange  # type: ignore[method-assign]


class Member:
    """A member that makes operations, some of which change its number."""

    def __init__(self, group: ProcessGroup, lost_at: int, reached: set[int]) -> None:
        self.number = 1
        self.results: list[str] = []
        self.leaders: list[int] = []  # those that have taken over
        self._lost_at = lost_at
        self._reached = reached
        self.elastic = Elastic(group, lambda group: None, self._state, self._set_state)

    def _state(self) -> bytes:
        return str(self.number).encode()

    def _set_state(self, data: bytes) -> None:
        self.number = int(data)

    def run(self, goes_on: bool = True) -> None:
        if goes_on:
            self.elastic.begin()
        for operation in range(OPERATIONS):
            if operation == self._lost_at:
                lose(self.elastic.group, self._reached)
            self._until_led(lambda given=operation: self._make(given))
        self._until_led(self.elastic.end)

    def _until_led(self, work: Callable[[], None]) -> None:
        while True:
            try:
                work()
                return
            except LeaderLostError:
                self.leaders.append(self.elastic.group.left[0])
                self.elastic.accept_leader()

    def _make(self, operation: int) -> None:
        if operation % 3:
            self.elastic.change(lambda: self._change(operation))
        else:
            self.results.append(self.elastic.run(lambda: self._said(operation)).decode())

    def _change(self, operation: int) -> None:
        found = self.elastic.group.all_reduce(np.array([operation, self.number]), "max")
        self.number = (3 * int(found[1]) + int(found[0])) % 1000003

    def _said(self, operation: int) -> bytes:
        own = f"{operation}: {self.number}" if self.elastic.group.rank == 0 else ""
        return self.elastic.group.gather_bytes(own.encode())[0]


def expected() -> tuple[int, list[str]]:
    number, said = 1, []
    for operation in range(OPERATIONS):
        if operation % 3:
            number = (3 * number + operation) % 1000003
        else:
            said.append(f"{operation}: {number}")
    return number, said


def outcome_of(call: Callable[[], None]) -> Exception | None:
    try:
        call()
    except (LostError, TaskFailedError) as error:
        return error
    return None


def run_with_losses(groups: Sequence[ProcessGroup], lost: Collection[int], rng: random.Random) -> list[Member]:
    """Have members make all operations, of which some are lost at one of these."""
    members = [
        Member(
            group,
            rng.randrange(OPERATIONS) if rank in lost else -1,
            {other for other in range(len(groups)) if rng.random() < 0.5 and other != rank},
        )
        for rank, group in enumerate(groups)
    ]
    all_at_once(*[lambda member=member: outcome_of(member.run) for member in members])
    return members


@pytest.mark.parametrize("seed", [*range(20), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 400)]])
def test_each_operation_is_made_once(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice([2, 3, 4])
    lost = rng.sample(range(1, count), rng.randint(1, count - 1))
    with made_for_a_while(count, shares_memory=seed % 2 == 0) as groups:
        members = run_with_losses(groups, lost, rng)
        for rank, member in enumerate(members):
            if rank not in lost:
                assert (member.number, member.results) == expected()
                assert member.elastic.group.left == [each for each in range(count) if each not in lost]
                member.elastic.group.close()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Generator[MembershipServer]:
    found = MembershipServer(TOKEN, "127.0.0.1")
    monkeypatch.setenv(MEMBERSHIP, found.address)
    yield found
    found.close()


@pytest.mark.parametrize("seed", [*range(10), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 200)]])
def test_each_operation_is_made_once_whoever_is_lost(seed: int, service: MembershipServer) -> None:
    """With a membership service the first member may be lost, too, and the lowest one leads."""
    rng = random.Random(seed)
    count = rng.choice([2, 3, 4])
    lost = {0, *rng.sample(range(count), rng.randint(0, count - 2))} if seed % 4 else {*rng.sample(range(1, count), 1)}
    with made_for_a_while(count, shares_memory=seed % 2 == 0) as groups:
        members = run_with_losses(groups, lost, rng)
        left = [rank for rank in range(count) if rank not in lost]
        for rank in left:
            assert (members[rank].number, members[rank].results) == expected()
            assert members[rank].elastic.group.left == left
            assert members[rank].leaders[-1:] == left[:1] * (0 in lost)
            members[rank].elastic.group.close()


def test_a_member_that_is_silent_is_refused_when_it_goes_on(
    service: MembershipServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others do not wait for it any longer."""
    service.silent_ticks = 4
    monkeypatch.setattr(membership_service, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(Seat, "_beat", lambda self: None if self.rank == 0 else beat(self))
    over = threading.Event()
    with made_for_a_while(3) as groups:
        members = [Member(group, -1, set()) for group in groups]

        def stopped() -> None:
            members[0].elastic.begin()
            over.wait(PATIENCE)
            assert members[0].elastic.is_refused
            members[0].elastic.check_leads()

        def goes_on(member: Member) -> None:
            member.run()
            over.set()

        found, *others = all_at_once(stopped, *[lambda member=member: goes_on(member) for member in members[1:]])
        assert isinstance(found, CancelledError)
        assert "The other workers of group 1 go on without it" in str(found)
        assert others == [None, None]
        assert service.silent() == {0}
        for member in members:
            member.elastic.group.close()
    assert members[1].leaders == [1]


def test_one_more_member_is_lost_while_a_group_is_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for it for a moment, and then count again who is left."""
    monkeypatch.setattr(elastic, "regrouped", lambda group: group.without_lost(2.0))
    with made_for_a_while(4) as groups:
        members = [Member(group, 4 if rank == 1 else -1, {2}) for rank, group in enumerate(groups)]

        def counted_and_lost() -> None:
            members[2].elastic.begin()
            watches = members[2].elastic.group.watches
            assert watches is not None

            def again(*given: Any) -> Any:
                members[2].elastic.group.close()
                raise LostError

            watches.again = again  # type: ignore[method-assign]
            members[2].run()

        calls: list[Callable[[], None]] = [member.run for member in members]
        calls[2] = counted_and_lost
        all_at_once(*[lambda call=call: outcome_of(call) for call in calls])
        for rank in (0, 3):
            assert (members[rank].number, members[rank].results) == expected()
            assert members[rank].elastic.group.left == [0, 3]
            members[rank].elastic.group.close()


def test_who_asks_to_be_counted_while_the_first_member_forms_a_group_asks_again() -> None:
    with made_for_a_while(2) as groups:
        all_at_once(*[lambda group=group: group.watch(10) for group in groups])
        first, other = [group.watches for group in groups]
        assert first is not None
        assert other is not None

        def counts_late() -> list[int]:
            with pytest.raises(TimeoutError, match="no member that connects here"):
                first.again(first.names, 0, 0.3)
            return first.survivors([0, 1])

        assert all_at_once(counts_late, lambda: other.survivors([0, 1])) == [[0, 1], [0, 1]]


def test_the_loss_of_the_first_member_is_raised() -> None:
    with made_for_a_while(3) as groups:
        members = [Member(group, 4 if not rank else -1, {2}) for rank, group in enumerate(groups)]
        _, *found = all_at_once(*[lambda member=member: outcome_of(member.run) for member in members])
        for error in found:
            assert isinstance(error, TaskFailedError)
            assert "0" in str(error)


def test_a_loss_is_raised_where_members_do_not_go_on() -> None:
    with made_for_a_while(2) as groups:
        members = [Member(group, 5 if rank else -1, set()) for rank, group in enumerate(groups)]
        found, _ = all_at_once(*[lambda member=member: outcome_of(lambda: member.run(False)) for member in members])
        assert isinstance(found, TaskFailedError)


def test_parts_of_a_pass_are_computed_by_who_is_left() -> None:
    """Three parts, of which the second is lost with its member; the others' are not computed again."""
    computed: list[list[int]] = [[], [], []]
    lock = threading.Lock()

    def results(member: Member, rank: int) -> Any:
        def compute(part: int) -> list[Any]:
            with lock:
                computed[rank].append(part)
            return [np.float64(part)]

        member.elastic.begin()
        if rank == 1:
            lose(member.elastic.group, {0})
        try:
            found = GroupWay(member.elastic, 3).results(3, compute)
        except LostError:
            return None
        member.elastic.end()
        return found

    with made_for_a_while(3) as groups:
        members = [Member(group, -1, set()) for group in groups]
        found = all_at_once(*[lambda rank=rank: results(members[rank], rank) for rank in range(3)])
        for member in members:
            member.elastic.group.close()
    assert [float(each[0]) for each in found[0]] == [0.0, 1.0, 2.0]
    assert packed([each[0] for each in found[2]]) == packed([each[0] for each in found[0]])
    assert found[1] is None
    assert sorted(computed[0] + computed[2]) in ([0, 1, 2], [0, 2])


def test_a_step_changes_nothing_before_all_its_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """So members have the values of before the step if another one is lost between two sums, and make it again."""
    built: list[tuple[Graph, int]] = []
    build = StepTracer.build_updates

    def noting(self: StepTracer, *given: Any) -> None:
        built.append((get_default_graph(), len(get_default_graph().operations)))
        build(self, *given)

    monkeypatch.setattr(StepTracer, "build_updates", noting)
    x = np.random.default_rng(0).normal(size=(8, 4))
    with made_for_a_while(1) as (group,):
        strategy = DataParallel(bucket_bytes=50)
        strategy.use_group(group)
        try:
            collectives.set_group(group)
            with strategy.scope():
                model = Sequential([layers.Dense(4), layers.Dense(3), layers.Dense(1)])
                model.compile("adam", "mse", metrics=["mae"])
            model.fit(x, x[:, :1], verbose=0)
        finally:
            collectives.set_group(None)
    assert built
    for graph, first in built:
        sums = {operation for operation in graph.operations if isinstance(operation.op, EndAllReduce)}
        writes = [operation for operation in graph.operations[first:] if operation.writes]
        assert len(sums) > 2
        assert len(writes) > 6
        for operation in writes:
            assert sums <= before(operation), operation


def before(operation: Operation) -> set[Operation]:
    """Return all operations that end before an operation begins."""
    found: set[Operation] = set()
    left = [operation]
    while left:
        each = left.pop()
        for other in [*[tensor.operation for tensor in each.inputs], *each.control_inputs]:
            if other not in found:
                found.add(other)
                left.append(other)
    return found
