"""Shared memory between tasks: what is read is what was written, also while others are written; all is given back."""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import threading
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from shared.values import descriptors
from shared.waiting import PATIENCE, until

import anabranch as ab
from anabranch.distribute.transport.connections import Connection, Handshake, Identity
from anabranch.distribute.transport.loop import Loop
from anabranch.distribute.transport.planes import Limits, Plane, asked, ways
from anabranch.distribute.transport.slabs import IS_AVAILABLE, LEAST, Budget, Mapped, Pool, SlabError
from anabranch.distribute.transport.wire import Frame, Kind
from anabranch.engine.common.memory import machine_bytes

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="needs Linux")
KILO = 1024


class Slabs(RuleBasedStateMachine):
    """A pool and the other side of it; arrays come and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(1024 * KILO)
        self.taken: list[int] = []
        self.mapped = Mapped(self.taken.append)
        self.alive: list[tuple[Any, Any]] = []
        self.own: list[Any] = []  # arrays of the side that sends, which are in slabs

    @rule(
        size=st.sampled_from([64, 65, 100, 128, 200, 256, 500, 900]),
        value=st.integers(0, 255),
        columns=st.sampled_from([1, 4]),
    )
    def send(self, size: int, value: int, columns: int) -> None:
        array = np.full((size * KILO // columns, columns), value, "uint8")
        self.sent(array, array)

    @rule(size=st.sampled_from([64, 100, 256]), value=st.integers(0, 255))
    def compute(self, size: int, value: int) -> None:
        array = self.pool.empty((size * KILO // 4,), np.dtype("int32"))
        if array is not None:
            array[...] = value
            self.own.append(array)

    @precondition(lambda self: self.own)
    @rule(data=st.data(), is_part=st.booleans())
    def send_what_was_computed(self, data: st.DataObject, is_part: bool) -> None:
        array = self.own[data.draw(st.integers(0, len(self.own) - 1))]
        made = self.pool.size
        self.sent(array[16:] if is_part else array, array[16:].copy() if is_part else array.copy())
        assert is_part or self.pool.size == made

    @precondition(lambda self: self.own)
    @rule(data=st.data())
    def drop_what_was_computed(self, data: st.DataObject) -> None:
        del self.own[data.draw(st.integers(0, len(self.own) - 1))]

    def sent(self, array: Any, expected: Any) -> None:
        found = self.pool.put(array)
        if found is None:
            return
        for number in found.dropped:
            self.mapped.drop(number)
        if found.is_new:
            self.mapped.add(found.slab.number, found.slab.descriptor)
        self.alive.append((self.mapped.array(found.slab.number, found.offset, array.dtype, array.shape), expected))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        del self.alive[data.draw(st.integers(0, len(self.alive) - 1))]

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def keep_a_part(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.alive) - 1))
        array, expected = self.alive[number]
        self.alive[number] = (array[1:5].T, expected[1:5].T)

    @rule()
    def acknowledge(self) -> None:
        while self.taken:
            self.pool.taken(self.taken.pop())

    @invariant()
    def what_lives_is_whole(self) -> None:
        for array, expected in self.alive:
            np.testing.assert_array_equal(array, expected)
            assert not array.flags.writeable
        assert self.pool.size <= self.pool.limit
        assert sum(slab.uses for slab in self.pool._slabs.values()) == len(self.alive) + len(self.taken)

    def teardown(self) -> None:
        self.alive.clear()
        self.own.clear()
        self.acknowledge()
        assert self.pool.in_use == 0
        self.pool.close()
        self.mapped.close()


Slabs.TestCase.settings = settings(max_examples=30, deadline=None, stateful_step_count=30)
TestSlabs = Slabs.TestCase


class Side:
    """One other task: the pool of what goes to it, and what it has of that."""

    def __init__(self, budget: Budget) -> None:
        self.pool = Pool(budget.share, budget)
        self.taken: list[int] = []
        self.mapped = Mapped(self.taken.append)
        self.alive: list[tuple[Any, Any]] = []
        self.pool.on_dropped = self.drop

    def drop(self) -> None:
        for number in self.pool.take_dropped():
            self.mapped.drop(number)

    def take(self, array: Any) -> None:
        found = self.pool.put(array)
        if found is None:
            return
        for number in found.dropped:
            self.mapped.drop(number)
        if found.is_new:
            self.mapped.add(found.slab.number, found.slab.descriptor)
        there = self.mapped.array(found.slab.number, found.offset, array.dtype, array.shape)
        self.alive.append((there, array.copy()))


class SharedSlabs(RuleBasedStateMachine):
    """The pools of several tasks with one budget: each has its share; arrays that all may read come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(512 * KILO, 2048 * KILO)
        self.sides = [Side(self.budget) for _ in range(3)]
        self.common: list[Any] = []
        self.unheard: list[tuple[Any, Any]] = []  # what tasks have that are not heard of any more

    @rule(place=st.integers(0, 2), size=st.sampled_from([64, 100, 256, 500, 900, 1500]), value=st.integers(0, 255))
    def send(self, place: int, size: int, value: int) -> None:
        self.sides[place].take(np.full(size * KILO, value, "uint8"))

    @rule(size=st.sampled_from([100, 256, 500]), value=st.integers(0, 255))
    def compute(self, size: int, value: int) -> None:
        array = self.budget.common.empty((size * KILO,), np.dtype("uint8"))
        if array is not None:
            array[...] = value
            self.common.append(array)

    @precondition(lambda self: self.common)
    @rule(place=st.integers(0, 2), data=st.data())
    def send_what_all_may_read(self, place: int, data: st.DataObject) -> None:
        side = self.sides[place]
        array = self.common[data.draw(st.integers(0, len(self.common) - 1))]
        made, count = side.pool.size, len(side.alive)
        side.take(array)
        assert (side.pool.size, len(side.alive)) == (made, count + 1), "it was copied, or went by the socket"

    @precondition(lambda self: self.common)
    @rule(data=st.data())
    def drop_what_all_may_read(self, data: st.DataObject) -> None:
        del self.common[data.draw(st.integers(0, len(self.common) - 1))]

    @rule(place=st.integers(0, 2), data=st.data())
    def forget(self, place: int, data: st.DataObject) -> None:
        alive = self.sides[place].alive
        if alive:
            del alive[data.draw(st.integers(0, len(alive) - 1))]

    @rule(place=st.integers(0, 2))
    def acknowledge(self, place: int) -> None:
        side = self.sides[place]
        while side.taken:
            side.pool.taken(side.taken.pop())

    @rule(place=st.integers(0, 2))
    def lose(self, place: int) -> None:
        side = self.sides[place]
        side.pool.close()
        self.unheard += side.alive
        self.sides[place] = Side(self.budget)

    @invariant()
    def what_lives_is_whole(self) -> None:
        for array, expected in [*self.unheard, *[each for side in self.sides for each in side.alive]]:
            np.testing.assert_array_equal(array, expected)

    @invariant()
    def no_more_is_used_than_may_be(self) -> None:
        pools = [side.pool for side in self.sides]
        assert self.budget.size == sum(pool.size for pool in [*pools, self.budget.common])
        assert self.budget.common.size <= 1024 * KILO
        above = [pool for pool in pools if pool.size > 512 * KILO]
        # Who had more than its share had room for that; the others may have come to theirs since.
        assert self.budget.size <= 2048 * KILO + 512 * KILO * (3 - len(above)) + self.budget.common.size
        for side in self.sides:
            lent = sum(each.uses for each in side.pool._lent.values())
            own = sum(slab.uses for slab in side.pool._slabs.values())
            assert lent + own == len(side.alive) + len(side.taken)

    def teardown(self) -> None:
        self.common.clear()
        for place, side in enumerate(self.sides):
            side.alive.clear()
            self.acknowledge(place)
            assert side.pool.in_use == 0
            side.pool.close()
            side.mapped.close()
        assert self.budget.common.in_use == 0
        self.budget.close()
        assert (self.budget.size, self.budget.pools) == (0, [])


SharedSlabs.TestCase.settings = settings(max_examples=30, deadline=None, stateful_step_count=40)
TestSharedSlabs = SharedSlabs.TestCase


def test_a_pool_has_what_others_leave_and_others_have_their_shares():
    budget = Budget(512 * KILO, 2048 * KILO)
    first, second = Side(budget), Side(budget)
    for _ in range(3):
        first.take(np.zeros(500 * KILO, "uint8"))
    assert first.pool.size == 1536 * KILO
    for _ in range(2):
        second.take(np.zeros(500 * KILO, "uint8"))
    assert (second.pool.size, second.pool.full) == (512 * KILO, 1)  # all together have 2 MB
    del first.alive[:2]
    first.pool.taken(first.taken.pop())
    first.pool.taken(first.taken.pop())
    second.take(np.zeros(1000 * KILO, "uint8"))  # what the first one does not use is given up for it
    assert (first.pool.size, second.pool.size) == (512 * KILO, 1536 * KILO)
    assert len(first.mapped) == 1
    for side in (first, second):
        side.pool.close()
        side.mapped.close()


def test_memory_of_values_that_are_gone_is_given_up():
    budget = Budget(65536 * KILO, 65536 * KILO)
    side = Side(budget)
    arrays = [budget.empty((5000 * KILO,), np.dtype("uint8")) for _ in range(4)]
    assert budget.common.size == 32768 * KILO
    del arrays[1:]
    side.take(np.zeros(100 * KILO, "uint8"))
    assert budget.common.size == 24576 * KILO  # one is used, and two are for its next values
    del arrays
    side.take(np.zeros(100 * KILO, "uint8"))
    assert budget.common.size == 0
    side.pool.close()
    budget.close()
    side.mapped.close()


def test_a_closed_pool_lends_nothing():
    budget = Budget(65536 * KILO, 65536 * KILO)
    side = Side(budget)
    array = budget.empty((5000 * KILO,), np.dtype("uint8"))
    side.pool.close()
    assert side.pool.put(array) is None
    assert (budget.common.in_use, side.pool.full) == (1, 1)
    budget.close()
    side.mapped.close()


def test_a_pool_leaves_nothing_open():
    gc.collect()
    before = descriptors()
    pool, mapped = Pool(2048 * KILO), Mapped(lambda number: None)
    kept: list[Any] = []
    for _ in range(8):
        found = pool.put(np.zeros(130 * KILO, "uint8"))
        assert found is not None
        if found.is_new:
            mapped.add(found.slab.number, found.slab.descriptor)
        kept.append(mapped.array(found.slab.number, found.offset, np.dtype("uint8"), (130 * KILO,)))
    assert len(descriptors() - before) <= 2 * 8
    mapped.close()
    assert int(kept[0].sum()) == 0  # stays mapped
    del pool, mapped, kept, found
    gc.collect()
    assert descriptors() <= before


def test_arrays_share_a_slab_until_it_is_full_and_all_of_them_free_it():
    pool = Pool(1024 * KILO)
    laid = [pool.put(np.zeros(64 * KILO, "uint8")) for _ in range(4)]
    assert [(each.slab.number, each.offset, each.is_new) for each in laid if each] == [
        (0, 0, True),
        (0, 64 * KILO, False),
        (1, 0, True),
        (1, 64 * KILO, False),
    ]
    pool.taken(0)
    assert pool.in_use == 2
    pool.taken(0)
    assert pool.in_use == 1
    again = pool.put(np.zeros(64 * KILO, "uint8"))
    assert again is not None
    assert (again.slab.number, again.offset, again.is_new) == (0, 0, False)
    close(*laid)


def close(*laid: Any) -> None:
    for each in laid:
        if each is not None and each.is_new:
            os.close(each.slab.descriptor)


def test_a_full_pool_has_no_slab():
    pool = Pool(512 * KILO)
    assert pool.put(np.zeros(600 * KILO, "uint8")) is None
    first, second = pool.put(np.zeros(256 * KILO, "uint8")), pool.put(np.zeros(200 * KILO, "uint8"))
    assert first is not None
    assert pool.put(np.zeros(64 * KILO, "uint8")) is None
    assert pool.full == 2
    pool.taken(first.slab.number)
    again = pool.put(np.zeros(64 * KILO, "uint8"))  # another size: the free slab is given up for it
    assert again is not None
    assert again.dropped == [first.slab.number]
    close(first, second, again)


def test_what_is_computed_in_a_slab_is_sent_from_there():
    gc.collect()
    before = descriptors()
    pool, mapped = Pool(1024 * KILO), Mapped(lambda number: None)
    arrays = [pool.empty((16 * KILO,), np.dtype("float32")) for _ in range(3)]
    for number, array in enumerate(arrays):
        array[...] = number
    assert (pool.in_use, pool.bytes_shared) == (2, 0)  # two of them share a slab
    laid = [pool.put(array) for array in reversed(arrays)]
    assert [(each.slab.number, each.offset, each.is_new) for each in laid if each] == [
        (1, 0, True),
        (0, 64 * KILO, True),
        (0, 0, False),
    ]
    for each in laid:
        assert each is not None
        if each.is_new:
            mapped.add(each.slab.number, each.slab.descriptor)
    arrays[2][...] = 7.0
    assert mapped.array(1, 0, np.dtype("float32"), (16 * KILO,))[5] == 7.0  # the same memory
    pool.taken(1)
    assert pool.in_use == 2  # this side has the array still
    del arrays[2], array
    assert pool.in_use == 1
    arrays.clear()
    assert pool.in_use == 1  # the other side has it still
    pool.taken(0)
    pool.taken(0)
    assert pool.in_use == 0
    pool.close()
    mapped.close()
    del pool, mapped, laid, each
    gc.collect()
    assert descriptors() <= before


def test_what_is_computed_and_never_sent_gives_its_slab_back():
    gc.collect()
    before = descriptors()
    pool = Pool(1024 * KILO)
    for _ in range(20):
        assert pool.empty((200 * KILO,), np.dtype("uint8")) is not None
    kept = [pool.empty((200 * KILO,), np.dtype("uint8")) for _ in range(4)]
    assert pool.empty((200 * KILO,), np.dtype("uint8")) is None
    assert pool.size == 1024 * KILO
    kept.clear()
    assert pool.in_use == 0
    kept.append(pool.empty((600 * KILO,), np.dtype("uint8")))  # slabs that were never sent are given up for it
    pool.close()
    assert pool.empty((10,), np.dtype("uint8")) is None
    kept[0][...] = 1  # what is there stays usable
    del kept, pool
    gc.collect()
    assert descriptors() <= before


def test_nobody_can_write_to_a_slab_of_another():
    found = Pool(512 * KILO).put(np.zeros(64 * KILO, "uint8"))
    assert found is not None
    slab = found.slab
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(slab.descriptor, b"x")
    assert fcntl.fcntl(slab.descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(slab.descriptor, 1)
    os.close(slab.descriptor)


def test_what_is_no_slab_is_refused():
    gc.collect()
    before = descriptors()
    mapped = Mapped(lambda number: None)
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, LEAST)
    with pytest.raises(SlabError, match="slab 1 can change its size"):
        mapped.add(1, unsealed)
    with pytest.raises(SlabError, match="slab 2 can't be mapped"):
        mapped.add(2, os.open("/dev/null", os.O_RDONLY))
    pool = Pool(512 * KILO)
    found = pool.put(np.zeros(64 * KILO, "uint8"))
    assert found is not None
    mapped.add(3, found.slab.descriptor)
    for offset, size in [(0, 65 * KILO), (64 * KILO, 1), (1, 1)]:
        with pytest.raises(SlabError, match="no array of shape"):
            mapped.array(3, offset, np.dtype("uint8"), (size,))
    with pytest.raises(SlabError, match="slab 9 has no array"):
        mapped.array(9, 0, np.dtype("uint8"), (1,))
    with pytest.raises(SlabError, match="slab 8 was acknowledged, which is not under way"):
        pool.taken(8)
    mapped.close()
    del pool, found
    gc.collect()
    assert descriptors() <= before


# --- connections ----------------------------------------------------------------------------------------------------


class Pair:
    """Two connections of one socket pair in one loop, the first with shared memory for what it sends."""

    def __init__(self, limits: Limits) -> None:
        self.loop = Loop()
        self.frames: list[Frame] = []
        self.reasons: list[str] = []
        self.released: list[tuple[Connection, int]] = []
        outbox: dict[Connection, None] = {}
        one, other = socket.socketpair()
        token = b"a token for tests, which is no secret"
        first, second = Identity("/job:a/task:0", 1), Identity("/job:b/task:0", 2)

        def flush() -> bool:
            while self.released:
                connection, number = self.released.pop()
                connection.acknowledge([number])
            for connection in list(outbox):
                outbox.pop(connection, None)
                connection.flush()
            return False

        def made(sock: Any, handshake: Handshake, plane: Plane) -> Connection:
            return Connection(
                self.loop,
                sock,
                handshake,
                lambda connection, frame: self.frames.append(frame),
                lambda connection: None,
                lambda connection, reason: self.reasons.append(reason),
                outbox,
                lambda connection, number: self.released.append((connection, number)),
                plane,
                limits,
            )

        self.loop.idle = flush
        self.sender = made(one, Handshake(first, token, False, second), Plane.SHARED_MEMORY)
        self.receiver = made(other, Handshake(second, token, True), Plane.UNIX)
        self.turn_until(lambda: self.sender.is_open and self.receiver.is_open)

    def turn_until(self, is_done: Any) -> None:
        for _ in range(10_000):
            if is_done():
                return
            self.loop.soon(lambda: None)
            self.loop.turn()
        raise AssertionError("it did not come to that")

    def close(self) -> None:
        self.frames.clear()
        self.sender.close("over")
        self.receiver.close("over")
        self.loop.close()


def test_values_as_large_as_parameters_fit_into_slabs_by_default() -> None:
    """All tasks together get an eighth of the machine's memory, of which each has its share, and what others leave."""
    config = ab.distribute.ServerConfig()
    for others in (0, 1, 2, 1000):
        expected = max(256 << 20, machine_bytes() // 8 // max(others, 1))
        assert config.limits(others) == Limits(slabs=expected, together=max(expected, machine_bytes() // 8))
    assert ab.distribute.ServerConfig(shared_memory_bytes=5).limits(3) == Limits(slabs=5)


@pytest.fixture
def pair() -> Generator[Pair]:
    gc.collect()
    before = descriptors()
    made = Pair(Limits(slabs=1024 * KILO))
    yield made
    made.close()
    del made
    gc.collect()
    assert descriptors() <= before


def test_values_cross_by_slabs_and_by_the_socket_when_these_are_in_use(pair: Pair):
    arrays = [np.full(256 * KILO, number, "uint8") for number in range(10)]
    small = np.arange(100)
    for number, array in enumerate(arrays):
        pair.sender.put(Kind.VALUE, bytes([number]), [small, array])
    pair.turn_until(lambda: len(pair.frames) == 10)
    for number, frame in enumerate(pair.frames):
        assert frame.head == bytes([number])
        np.testing.assert_array_equal(frame.arrays[0], small)
        np.testing.assert_array_equal(frame.arrays[1], arrays[number])
    assert [frame.arrays[1].flags.writeable for frame in pair.frames] == [False] * 4 + [True] * 6
    assert pair.sender.pool is not None
    assert (pair.sender.pool.in_use, pair.sender.pool.full) == (4, 6)
    assert pair.sender.bytes_sent < 7 * 256 * KILO
    pair.frames.clear()
    pair.turn_until(lambda: pair.sender.pool is not None and not pair.sender.pool.in_use)
    pair.sender.put(Kind.VALUE, b"", [arrays[3]])
    pair.turn_until(lambda: pair.frames)
    assert not pair.frames[0].arrays[0].flags.writeable
    assert len(pair.receiver.mapped) == 4


def test_many_values_of_all_sizes_cross_in_order(pair: Pair):
    chosen = np.random.default_rng(3)
    sent: list[Any] = []
    seen = 0
    for number in range(300):
        sent.append(chosen.integers(0, 255, int(chosen.integers(0, 400)) * KILO, dtype="uint8"))
        pair.sender.put(Kind.VALUE, number.to_bytes(2, "big"), [sent[-1]])
        if chosen.random() < 0.3:
            awaited = len(sent) - seen
            pair.turn_until(lambda awaited=awaited: len(pair.frames) == awaited)
            for frame, expected in zip(pair.frames, sent[seen:], strict=True):
                np.testing.assert_array_equal(frame.arrays[0], expected)
            seen = len(sent)
            frame = None
            pair.frames.clear()
    assert pair.sender.pool is not None
    assert pair.sender.pool.bytes_shared > 10_000 * KILO


def test_what_waits_to_be_sent_is_counted():
    pair = Pair(Limits(in_flight=1024 * KILO, slabs=0))
    for _ in range(3):
        pair.sender.put(Kind.VALUE, b"", [np.zeros(500 * KILO, "uint8")])
    assert pair.sender.is_full
    assert pair.sender.queued > 1500 * KILO
    pair.turn_until(lambda: len(pair.frames) == 3)
    assert (pair.sender.queued, pair.sender.is_full) == (0, False)
    pair.close()


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (Kind.SLAB, {"slab": 1}),
        (Kind.SLAB, {}),
        (Kind.TAKEN, {"slabs": [1]}),
        (Kind.TAKEN, {"slabs": 3}),
        (Kind.DROPPED, {"slabs": "x"}),
    ],
)
def test_nonsense_about_slabs_ends_the_connection(pair: Pair, kind: int, document: dict[str, Any]):
    pair.sender.send(kind, document)
    pair.turn_until(lambda: pair.reasons)
    assert any("slab" in reason for reason in pair.reasons)


@pytest.mark.usefixtures("uncollected")
def test_a_step_that_is_given_up_frees_its_slabs():
    """Check values that have arrived and wait in the step, and in a loop, for one that never comes."""
    both = {"ps": ["localhost:0"], "worker": ["localhost:0"]}
    with ab.Graph().as_default() as graph:
        with ab.device("/job:ps/task:0"):
            large = ab.Variable(np.ones((1000, 1000), "float32"), name="large")
            never = ab.queues.FIFOQueue(1, "float32", shapes=(), name="never filled").dequeue()
        with ab.device("/job:worker/task:0"):
            loop = ab.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, h * large * never), (0, ab.constant(1.0)))[1]
            y = [large * never, loop]
    with (
        ab.distribute.Server(both, "ps", 0) as ps,
        ab.distribute.Server({**both, "ps": [ps.target[7:]]}, "worker", 0) as worker,
        ab.Session(graph, target=worker.target) as session,
    ):

        def shared() -> list[Any]:
            return [each for each in ps.status().connections if each.bytes_shared > 3e6]

        until(lambda: _given_up(lambda: session.run(y, timeout=0.5)) and shared())
        until(lambda: not any(each.slabs for each in shared()), PATIENCE)


def _given_up(step: Callable[[], Any]) -> bool:
    with pytest.raises(ab.errors.DeadlineExceededError):
        step()
    return True


def test_an_array_that_is_freed_by_another_thread_wakes_the_loop():
    loop = Loop()
    woken: list[int] = []
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.call(lambda: woken.append(loop.turns))
    while not woken:
        pass
    before = loop.turns
    loop.nudge()
    while loop.turns == before:
        pass
    for _ in range(100_000):
        loop.nudge()  # never blocks
    loop.stop()
    thread.join()
    loop.close()


# --- the choice -----------------------------------------------------------------------------------------------------


def test_planes_are_chosen_by_task(monkeypatch: pytest.MonkeyPatch):
    assert ways("auto", "/job:ps/task:0") == (Plane.SHARED_MEMORY, Plane.UNIX, Plane.TCP)
    assert ways("auto", "/job:ps/task:0", is_encrypted=True) == (Plane.SHARED_MEMORY, Plane.UNIX, Plane.GRPC)
    by_task = {"/job:ps/task:1": "tcp", "/job:ps": "sockets"}
    assert ways(by_task, "/job:ps/task:1") == (Plane.TCP,)
    assert ways(by_task, "/job:ps/task:0") == (Plane.UNIX, Plane.TCP)
    assert ways(by_task, "/job:worker/task:0")[0] == Plane.SHARED_MEMORY
    monkeypatch.setenv("ANABRANCH_PLANE", "grpc")
    assert asked() == "grpc"
    with pytest.raises(ValueError, match="plane='pigeon': expected one of auto, sockets, shared_"):
        asked({"/job:ps": "pigeon"})
