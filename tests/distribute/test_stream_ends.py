"""The ends of gRPC streams: they act as sockets do, and hold a limited number of bytes."""

from __future__ import annotations

import random
import selectors
import socket
import sys
import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from shared.values import descriptors

from anabranch.distribute.transport import stream_ends
from anabranch.distribute.transport.stream_ends import PIECE, StreamEnd

MOST = 4 * PIECE


@pytest.fixture
def end() -> Generator[StreamEnd]:
    made = StreamEnd()
    yield made
    made.close()


def ready(end: StreamEnd) -> str:
    """The events that a selector reports at this moment."""
    with selectors.DefaultSelector() as selector:
        selector.register(end, selectors.EVENT_READ | selectors.EVENT_WRITE)
        found = dict.fromkeys(events for _, events in selector.select(0))
    events = next(iter(found), 0)
    return ("r" if events & selectors.EVENT_READ else "") + ("w" if events & selectors.EVENT_WRITE else "")


def received(end: StreamEnd, most: int) -> bytes:
    buffer = bytearray(most)
    return bytes(buffer[: end.recv_into(memoryview(buffer))])


def test_bytes_arrive_as_they_were_sent():
    """In any division into buffers and pieces; there are more bytes than may wait."""
    one, other = StreamEnd(), StreamEnd()

    def carry(source: StreamEnd, target: StreamEnd) -> None:
        for piece in source.pieces():
            assert 0 < len(piece) <= PIECE
            target.put(piece)
        target.end()

    chosen = random.Random(1)
    data = np.random.default_rng(1).integers(0, 256, 12 * PIECE + 77, "uint8")
    target = np.zeros_like(data)

    def send() -> None:
        left = data.data
        while left:
            some = [left[:1], left[1:200], left[200 : 200 + chosen.choice([0, 5, PIECE - 1, 3 * PIECE])]]
            left = left[one.sendmsg(some) :]
        one.shutdown(socket.SHUT_RDWR)

    threads = [threading.Thread(target=carry, args=(one, other)), threading.Thread(target=send)]
    for thread in threads:
        thread.start()
    left = target.data
    while count := other.recv_into(left[: chosen.choice([1, 1000, PIECE, 20 * PIECE])] or bytearray(1)):
        left = left[count:]
    for thread in threads:
        thread.join()
    assert not len(left)
    np.testing.assert_array_equal(target, data)
    one.close()
    other.close()


def test_small_buffers_leave_in_one_piece(end: StreamEnd):
    end.sendmsg([b"ab", memoryview(b"cd")])
    end.send(b"ef")
    end.shutdown(socket.SHUT_RDWR)
    assert list(end.pieces()) == [b"abcdef"]


def test_what_was_sent_does_not_change_with_its_buffer(end: StreamEnd):
    buffer = bytearray(b"before")
    end.send(memoryview(buffer))
    buffer[:] = b"behind"
    assert next(end.pieces()) == b"before"


def test_what_was_copied_leaves_while_more_is_copied(end: StreamEnd, monkeypatch: pytest.MonkeyPatch):
    taken: list[int] = []

    def copied(part: memoryview) -> Any:
        assert end._lock.acquire(blocking=False), "the thread of gRPC would wait"
        end._lock.release()
        if len(part) < PIECE:  # the last one
            taken.append(len(next(pieces)))
        return original(part)

    original = stream_ends._copied
    monkeypatch.setattr(stream_ends, "_copied", copied)
    pieces = end.pieces()
    assert end.sendmsg([np.zeros(2 * PIECE + 1, "uint8").data]) == 2 * PIECE + 1
    assert taken == [PIECE]
    end.end()
    assert [len(piece) for piece in pieces] == [PIECE, 1]


def test_a_stream_that_ends_while_something_is_copied(end: StreamEnd, monkeypatch: pytest.MonkeyPatch):
    def copied(part: memoryview) -> bytes:
        end.end()
        return bytes(part)

    monkeypatch.setattr(stream_ends, "_copied", copied)
    with pytest.raises(BrokenPipeError, match="the stream is over"):
        end.send(b"x")
    assert list(end.pieces()) == []


def test_without_waiting_a_buffer_is_held_until_it_has_left(end: StreamEnd):
    """No copy of it waits, and nothing holds it behind the piece that it has left in."""
    end.setblocking(False)
    array = np.arange(PIECE + 5, dtype="uint8")
    before = sys.getrefcount(array)
    assert end.sendmsg([b"", array.data[:0], b"head", array.data]) == PIECE + 9
    pieces = end.pieces()
    assert next(pieces) == b"head"
    assert next(pieces) == array[:PIECE].tobytes()
    assert sys.getrefcount(array) > before
    assert next(pieces) == array[PIECE:].tobytes()
    assert sys.getrefcount(array) == before
    end.end()
    assert list(pieces) == []


def test_more_comes_while_what_has_come_is_copied(end: StreamEnd, monkeypatch: pytest.MonkeyPatch):
    def copy(target: memoryview, source: memoryview) -> None:
        assert end._lock.acquire(blocking=False), "the thread of gRPC would wait"
        end._lock.release()
        assert end.put(b"more")
        original(target, source)

    original = stream_ends._copy
    end.put(b"before")
    monkeypatch.setattr(stream_ends, "_copy", copy)
    assert received(end, 9) == b"before"
    monkeypatch.undo()
    assert ready(end) == "rw"
    assert received(end, 9) == b"more"
    assert ready(end) == "w"


@pytest.mark.parametrize("most", [1000, 1 << 17, PIECE])
def test_bytes_are_received_into_the_middle_of_memory(end: StreamEnd, most: int):
    data = np.random.default_rng(3).integers(0, 256, PIECE + 70_000, "uint8")
    for begin in range(0, len(data), PIECE):
        end.put(data[begin : begin + PIECE].tobytes())
    target = np.zeros(len(data) + 20, "uint8")
    left = target.data[10:-10]
    while len(left):
        left = left[end.recv_into(left[:most]) :]
    np.testing.assert_array_equal(target[10:-10], data)
    assert not target[:10].any()
    assert not target[-10:].any()


def test_the_descriptor_can_be_waited_for(end: StreamEnd):
    end.setblocking(False)
    assert ready(end) == "w"
    end.put(b"abc")
    end.put(b"d")
    assert ready(end) == "rw"
    assert received(end, 2) == b"ab"
    assert ready(end) == "rw"
    assert received(end, 9) == b"cd"
    assert ready(end) == "w"
    sent = end.send(np.zeros(2 * MOST, "uint8").data)
    assert (sent, ready(end)) == (MOST, "")
    pieces = end.pieces()
    next(pieces)
    assert ready(end) == ""  # who sends is woken when half of what waited has gone, not for each piece
    next(pieces)
    assert ready(end) == "w"
    assert end.send(bytes(9)) == 9
    end.end()
    assert ready(end) == "rw"
    assert received(end, 9) == b""
    assert ready(end) == "rw"


def test_calls_that_do_not_wait_and_calls_that_wait_for_a_time(end: StreamEnd):
    assert end.send(bytes(MOST)) == MOST
    for seconds, error in ((0.0, BlockingIOError), (0.001, TimeoutError)):
        end.settimeout(seconds)
        with pytest.raises(error):
            received(end, 1)
        with pytest.raises(error):
            end.send(b"x")


def test_who_puts_waits_for_room(end: StreamEnd):
    """As much waits as is allowed, and one piece more: the stream behind it is not read on."""
    taken: list[int] = []

    def put() -> None:
        for number in range(20):
            if end.put(bytes(PIECE)):
                taken.append(number)

    putting = threading.Thread(target=put)
    putting.start()
    buffer = memoryview(bytearray(PIECE))
    for number in range(20):
        left = buffer
        while left:
            left = left[end.recv_into(left) :]
        assert len(taken) <= number + 7
    putting.join()
    assert taken == list(range(20))


@pytest.mark.parametrize("ending", ["end", "close"])
def test_the_end_of_a_stream_ends_all_that_wait(ending: str):
    end = StreamEnd()
    end.send(b"last words")
    end.put(b"come before")
    for _ in range(4):
        end.put(bytes(PIECE))
    ended: list[Any] = []
    waiting = threading.Thread(target=lambda: ended.append(end.put(b"more")))
    waiting.start()
    getattr(end, ending)()
    waiting.join()
    assert ended == [False]
    assert list(end.pieces()) == [b"last words"]
    with pytest.raises(BrokenPipeError, match="the stream is over"):
        end.send(b"x")
    if ending == "end":
        assert received(end, 11) == b"come before"
    end.close()
    assert end.fileno() == -1


def test_nothing_is_left_open():
    before = descriptors()
    for _ in range(10):
        end = StreamEnd()
        end.send(b"x")
        end.put(b"y")
        end.close()
        end.end()
    assert descriptors() <= before
