"""The state machine of queues, without threads: what is stored, who waits, and who is served next."""

from __future__ import annotations

import collections
import heapq
import itertools
from typing import Any, NamedTuple, Protocol

import numpy as np

from .attempts import Attempt
from .errors import CancelledError, OutOfRangeError

Element = tuple[Any, ...]  # one array for each component


class QueueStatistics(NamedTuple):
    """The statistics of a queue: what it holds and what it has done.

    Attributes:
        size: how many elements it holds.
        capacity: how many it holds at most; None if there is no bound.
        enqueued: elements taken in so far.
        dequeued: elements given out so far.
        pending_enqueues: enqueues that wait for room.
        pending_dequeues: dequeues that wait for elements.
        cancelled: requests that were refused or withdrawn, or failed at the end of the data.
        is_closed: nothing more can be enqueued.

    >>> import anabranch as ab
    >>> queue = ab.queues.FIFOQueue(10, "float32")
    >>> queue.enqueue(1.0)
    >>> queue.statistics().size
    1
    """

    size: int
    capacity: int | None
    enqueued: int
    dequeued: int
    pending_enqueues: int
    pending_dequeues: int
    cancelled: int
    is_closed: bool


class Store(Protocol):
    """Elements and the order in which they leave."""

    def put(self, element: Element) -> None: ...

    def take(self) -> Element: ...

    def __len__(self) -> int: ...


class FirstInFirstOut:
    """Elements leave in the order in which they came."""

    def __init__(self) -> None:
        self._elements: collections.deque[Element] = collections.deque()

    def put(self, element: Element) -> None:
        self._elements.append(element)

    def take(self) -> Element:
        return self._elements.popleft()

    def __len__(self) -> int:
        return len(self._elements)


class Shuffled:
    """Each element is as likely as any other to leave next."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._elements: list[Element] = []
        self._generator = generator

    def put(self, element: Element) -> None:
        self._elements.append(element)

    def take(self) -> Element:
        position = int(self._generator.integers(len(self._elements)))
        elements = self._elements
        elements[position], elements[-1] = elements[-1], elements[position]
        return elements.pop()

    def __len__(self) -> int:
        return len(self._elements)


class LowestFirst:
    """The element with the lowest first component leaves first; of equal ones the oldest."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Element]] = []
        self._serials = itertools.count()

    def put(self, element: Element) -> None:
        heapq.heappush(self._heap, (int(element[0]), next(self._serials), element))

    def take(self) -> Element:
        return heapq.heappop(self._heap)[-1]

    def __len__(self) -> int:
        return len(self._heap)


class QueueState:
    """A bounded queue whose requests are attempts.

    Both sides are served in the order of their requests. A dequeue takes all that it asks for at once, when it is
    there. While it waits for more than the capacity, the queue takes in as many as it asks for. An enqueue of many
    elements hands them in as room appears.

    Args:
        store: holds the elements.
        capacity: how many it holds at most; None for no bound.
        min_after_dequeue: how many elements a dequeue has to leave behind, unless no more can come.
        name: for messages.
    """

    def __init__(
        self, store: Store, capacity: int | None = None, min_after_dequeue: int = 0, name: str = "queue"
    ) -> None:
        self._store = store
        self._capacity = capacity
        self._min_after_dequeue = min_after_dequeue
        self._name = name
        self._enqueues: collections.deque[Attempt] = collections.deque()
        self._dequeues: collections.deque[Attempt] = collections.deque()
        self._enqueued = self._dequeued = self._cancelled = 0
        self.is_closed = False

    @property
    def size(self) -> int:
        """The number of elements that the queue holds."""
        return len(self._store)

    def statistics(self) -> QueueStatistics:
        """Return what the queue holds and what it has done."""
        return QueueStatistics(
            len(self._store),
            self._capacity,
            self._enqueued,
            self._dequeued,
            len(self._enqueues),
            len(self._dequeues),
            self._cancelled,
            self.is_closed,
        )

    def enqueue(self, elements: list[Element]) -> Attempt:
        """Offer elements, which go in in their order, as room appears."""
        attempt = Attempt(len(elements), elements)
        if self.is_closed:
            self._refuse(attempt, CancelledError(f"Queue {self._name!r} is closed: nothing more can be enqueued."))
            return attempt
        self._enqueues.append(attempt)
        self._settle()
        return attempt

    def dequeue(self, count: int, up_to: bool = False) -> Attempt:
        """Ask for `count` elements; with `up_to` for those that are left, if the queue is closed and has fewer."""
        attempt = Attempt(count, up_to=up_to)
        if count == 0:
            attempt.finish([])
            return attempt
        self._dequeues.append(attempt)
        self._settle()
        return attempt

    def close(self, cancel_pending_enqueues: bool = False) -> None:
        """Take no further enqueues. Those that wait are cancelled, or still served as room appears."""
        self.is_closed = True
        while cancel_pending_enqueues and self._enqueues:
            attempt = self._enqueues.popleft()
            message = (
                f"Queue {self._name!r} was closed with cancel_pending_enqueues=True while an enqueue waited: "
                f"{len(attempt.elements)} of its {attempt.count} elements were not taken."
            )
            self._refuse(attempt, CancelledError(message))
        self._settle()

    def withdraw(self, attempt: Attempt) -> None:
        """Forget a pending attempt. Elements of it that were taken in stay."""
        (self._enqueues if attempt in self._enqueues else self._dequeues).remove(attempt)
        self._cancelled += 1
        self._settle()

    def _refuse(self, attempt: Attempt, error: Exception) -> None:
        self._cancelled += 1
        attempt.fail(error)

    def _settle(self) -> None:
        """Serve whoever can be served."""
        while self._serve_enqueue() or self._serve_dequeue():
            pass

    def _serve_enqueue(self) -> bool:
        """Take in what there is room for, from the oldest enqueue; whether that finished it."""
        if not self._enqueues:
            return False
        attempt = self._enqueues[0]
        offered = len(attempt.elements)
        accepted = offered if self._capacity is None else min(offered, self._room(self._capacity))
        for _ in range(accepted):
            self._store.put(attempt.elements.popleft())
        self._enqueued += accepted
        if attempt.elements:
            return False
        self._enqueues.popleft().finish()
        return True

    def _room(self, capacity: int) -> int:
        if self._dequeues:
            capacity = max(capacity, self._dequeues[0].count + self._min_after_dequeue)
        return max(capacity - len(self._store), 0)

    def _serve_dequeue(self) -> bool:
        """Give the oldest dequeue what it asks for, or the error that it never will; return whether it is done."""
        if not self._dequeues:
            return False
        attempt, size = self._dequeues[0], len(self._store)
        # An enqueue that still waits, after closing too, has filled the queue beyond what this dequeue needs.
        if attempt.count <= size - (0 if self.is_closed else self._min_after_dequeue):
            return self._give(attempt, attempt.count)
        if not self.is_closed:
            return False
        if attempt.up_to and size:
            return self._give(attempt, size)
        self._refuse(self._dequeues.popleft(), self._end(attempt, size))
        return True

    def _give(self, attempt: Attempt, count: int) -> bool:
        self._dequeues.popleft()
        self._dequeued += count
        attempt.finish([self._store.take() for _ in range(count)])
        return True

    def _end(self, attempt: Attempt, size: int) -> OutOfRangeError:
        remedy = " dequeue_up_to takes what is left." if size else ""
        return OutOfRangeError(
            f"Queue {self._name!r} is closed and has too few elements: {attempt.count} asked for, {size} left.{remedy}"
        )
