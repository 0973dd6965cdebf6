"""`Loop`: one thread that waits on all sockets of a task and runs what is ready, a slice at a time."""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import math
import select
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_LONGEST_WAIT = 86400.0  # seconds: epoll takes less than 2**31 milliseconds
_MOST_EVENTS = 64  # that are taken at once: room for a thousand is asked for in each wait otherwise


class HasFileno(Protocol):
    """Something with a descriptor that can be waited for."""

    def fileno(self) -> int: ...


class _Selector:
    """Waits for sockets, on any system."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, sock: HasFileno, events: int, ready: Callable[[int], None]) -> None:
        if sock in self._selector.get_map():
            self._selector.modify(sock, events, ready)
        else:
            self._selector.register(sock, events, ready)

    def forget(self, sock: HasFileno) -> None:
        if sock in self._selector.get_map():
            self._selector.unregister(sock)

    def wait(self, seconds: float | None) -> list[tuple[Callable[[int], None], int]]:
        """Return what is to be called, with which events, once there is something, or a time has passed."""
        return [(key.data, events) for key, events in self._selector.select(seconds)]

    def close(self) -> None:
        self._selector.close()


class _Epoll:
    """The same on Linux, in a fifth of the time: a loop over two tasks waits twice in each iteration."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[Callable[[int], None], int]] = {}  # by descriptor, with the events

    def watch(self, sock: HasFileno, events: int, ready: Callable[[int], None]) -> None:
        number = sock.fileno()
        mask = (select.EPOLLIN if events & _READ else 0) | (select.EPOLLOUT if events & _WRITE else 0)
        change = self._epoll.modify if number in self._watched else self._epoll.register
        change(number, mask)
        self._watched[number] = (ready, events)

    def forget(self, sock: HasFileno) -> None:
        if self._watched.pop(sock.fileno(), None) is not None:
            with contextlib.suppress(OSError):  # it was closed before
                self._epoll.unregister(sock.fileno())

    def wait(self, seconds: float | None) -> list[tuple[Callable[[int], None], int]]:
        found: list[tuple[Callable[[int], None], int]] = []
        watched = self._watched
        for number, mask in self._epoll.poll(seconds, _MOST_EVENTS):
            known = watched.get(number)
            if known is None:
                continue
            if mask == select.EPOLLIN:
                found.append((known[0], _READ))
            else:  # what is over can be read and written: whoever tries finds out
                events = (_READ if mask & ~select.EPOLLOUT else 0) | (_WRITE if mask & ~select.EPOLLIN else 0)
                found.append((known[0], events & known[1]))
        return found

    def close(self) -> None:
        self._epoll.close()


class Loop:
    """Calls functions when sockets are ready, when their time has come, and when other threads ask for it.

    Attributes:
        turns: how often it has turned.
        is_waiting: whether it waits for something to happen.
        idle: called once in each turn, before it waits; gives whether there is more to do at once.
    """

    def __init__(self) -> None:
        self.turns = 0
        self.is_waiting = False
        self.idle: Callable[[], bool] = lambda: False
        self._selector = _Epoll() if hasattr(select, "epoll") else _Selector()
        self._calls: collections.deque[Callable[[], Any]] = collections.deque()
        self._numbers = itertools.count()
        # A heap; the last one is never due, so that there always is a first one.
        self._timers: list[tuple[float, int, Callable[[], Any]]] = [(math.inf, next(self._numbers), lambda: None)]
        self._is_over = False
        self._thread = 0
        self._is_awake = False  # whether a byte that wakes the loop is under way
        self._lock = threading.Lock()
        self._inner, self._outer = socket.socketpair()
        for end in (self._inner, self._outer):
            end.setblocking(False)
        self._selector.watch(self._inner, _READ, self._woken)

    # --- for any thread ---------------------------------------------------------------------------------------------

    def call(self, function: Callable[[], Any]) -> None:
        """Have a function called in the loop's thread."""
        self._calls.append(function)
        self.wake()

    def wake(self) -> None:
        """End the wait that is under way, or the next one."""
        with self._lock:
            if self._is_awake or self._is_over:
                return
            self._is_awake = True
            with contextlib.suppress(BlockingIOError):  # nudges have filled it: the loop will wake
                self._outer.send(b"\0")

    def nudge(self) -> None:
        """End the wait that is under way, if another thread asks; takes no lock, so that it may be called anywhere."""
        if threading.get_ident() != self._thread:
            with contextlib.suppress(OSError):  # it is awake, or over
                self._outer.send(b"\0")

    def stop(self) -> None:
        """End `run`."""

        def end() -> None:
            self._is_over = True

        self.call(end)

    # --- for the loop's own thread ----------------------------------------------------------------------------------

    now = staticmethod(time.monotonic)  # in seconds; it goes forward only

    def soon(self, function: Callable[[], Any]) -> None:
        """Have a function called in the next turn."""
        self._calls.append(function)

    def after(self, seconds: float, function: Callable[[], Any]) -> None:
        """Have a function called when a time has passed."""
        heapq.heappush(self._timers, (self.now() + seconds, next(self._numbers), function))

    def watch(self, sock: HasFileno, ready: Callable[[int], None], writes: bool = False) -> None:
        """Have a function called with the events of a socket: when it can be read or, if asked, written."""
        self._selector.watch(sock, _READ | _WRITE if writes else _READ, ready)

    def forget(self, sock: HasFileno) -> None:
        """Watch a socket, or what else has a descriptor, no longer."""
        if sock.fileno() >= 0:
            self._selector.forget(sock)

    def run(self) -> None:
        """Turn until `stop` is called."""
        self._thread = threading.get_ident()
        while not self._is_over:
            self.turn()

    def turn(self) -> None:
        """Do what is there to do; wait for it, if there is nothing."""
        self.turns += 1
        timers = self._timers
        seconds = 0.0 if self.idle() or self._calls else timers[0][0] - self.now()
        if seconds > 0.0:
            self.is_waiting = True
            found = self._selector.wait(seconds if seconds < _LONGEST_WAIT else _LONGEST_WAIT)
            self.is_waiting = False
        else:
            found = self._selector.wait(0.0)
        for ready, events in found:
            try:  # as `_do`, which would be one more call in each iteration of a loop over tasks
                ready(events)
            except Exception:
                traceback.print_exc()
        while timers[0][0] <= self.now():  # before steps go on: who has set a deadline reports it
            self._do(heapq.heappop(timers)[-1])
        if self._calls:
            for _ in range(len(self._calls)):
                self._do(self._calls.popleft())

    @staticmethod
    def _do(function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function; an error of ours is printed, and does not end the loop, which serves others."""
        try:
            function(*arguments)
        except Exception:
            traceback.print_exc()

    def _woken(self, events: int) -> None:
        with self._lock:
            self._is_awake = False
            self._inner.recv(4096)

    def close(self) -> None:
        """Give up what the loop itself holds; it must not run."""
        with self._lock:
            self._is_over = True
            self._selector.close()
            self._inner.close()
            self._outer.close()
