"""`QueueRunner`: threads that fill a queue, each running an enqueue operation until the data or the work ends."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..graph.graph import Graph, Operation
from .coordinator import Coordinator
from .errors import CancelledError, OutOfRangeError
from .queue import Queue


class Runs(Protocol):
    """An object that runs operations: a `Session`."""

    graph: Graph

    def run(self, fetches: Any) -> Any: ...


class QueueRunner:
    """Fills a queue by operations that are run again and again, each in a thread of its own.

    A thread ends when its operation raises the end of the data, when the coordinator asks to stop, or with an error,
    which it hands to the coordinator (without one it raises it and keeps it in `exceptions_raised`). When the last one
    has ended the queue is closed; when the coordinator asks to stop, it is closed at once, and waiting enqueues are
    cancelled.

    Args:
        queue: the queue to fill.
        enqueue_ops: operations, one a thread; the same one may be named several times.
        close_op: closes the queue at the end of the data; by default `queue` is closed.
        cancel_op: closes the queue and cancels what waits; by default on `queue`.
        queue_closed_exception_types: errors that mean the end of the data.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default():
    ...     queue = ab.queues.FIFOQueue(2, "float32", shapes=())
    ...     count = ab.Variable(0.0)
    ...     runner = ab.queues.QueueRunner(queue, [queue.enqueue(count.assign_add(1.0))])
    ...     first = queue.dequeue_many(3)
    ...     session, coordinator = ab.Session(), ab.queues.Coordinator()
    ...     threads = runner.create_threads(session, coordinator, start=True)
    ...     session.run(first)
    ...     coordinator.request_stop()
    ...     coordinator.join(threads)
    array([1., 2., 3.], dtype=float32)
    """

    def __init__(
        self,
        queue: Queue,
        enqueue_ops: Sequence[Any],
        close_op: Any = None,
        cancel_op: Any = None,
        queue_closed_exception_types: Iterable[type[BaseException]] | None = None,
    ) -> None:
        if not enqueue_ops:
            raise ValueError(f"QueueRunner of queue {queue.name!r}: enqueue_ops is empty; give an operation a thread.")
        for operation in enqueue_ops:
            if not isinstance(operation, Operation):
                raise TypeError(
                    f"QueueRunner of queue {queue.name!r} takes operations; got {operation!r}. Build them with "
                    "queue.enqueue(...) inside `with graph.as_default():`; outside of it, enqueue acts at once."
                )
        types = (OutOfRangeError,) if queue_closed_exception_types is None else queue_closed_exception_types
        self.queue = queue
        self.enqueue_ops = list(enqueue_ops)
        self.close_op = close_op
        self.cancel_op = cancel_op
        self.queue_closed_exception_types = tuple(types)
        self._lock = threading.Lock()
        self._running: dict[Runs, int] = {}
        self._raised: list[Exception] = []

    @property
    def name(self) -> str:
        """The queue's."""
        return self.queue.name

    @property
    def exceptions_raised(self) -> list[Exception]:
        """The errors of threads that ran without a coordinator."""
        with self._lock:
            return list(self._raised)

    def create_threads(
        self, sess: Runs, coord: Coordinator | None = None, daemon: bool = False, start: bool = False
    ) -> list[threading.Thread]:
        """Create threads that run the enqueue operations; none if some for this session are still running.

        Args:
            sess: runs the operations.
            coord: gets the threads (`Coordinator.register_thread`) and their errors, and can stop them.
            daemon: do not keep the process alive.
            start: start them now.
        """
        with self._lock:
            if self._running.get(sess):
                return []
            self._running[sess] = len(self.enqueue_ops)
            self._raised = []
        name = f"QueueRunner of {self.name}"
        threads = [
            threading.Thread(target=self._fill, args=(sess, operation, coord), name=f"{name} ({number})", daemon=daemon)
            for number, operation in enumerate(self.enqueue_ops)
        ]
        if coord is not None:
            closer = threading.Thread(target=self._cancel_on_stop, args=(sess, coord), name=f"{name} (stop)")
            closer.daemon = daemon
            threads.append(closer)
            for thread in threads:
                coord.register_thread(thread)
        if start:
            for thread in threads:
                thread.start()
        return threads

    def _fill(self, sess: Runs, operation: Operation, coord: Coordinator | None) -> None:
        try:
            while coord is None or not coord.should_stop():
                sess.run(operation)
        except self.queue_closed_exception_types:
            pass
        except CancelledError as error:
            if coord is None or not coord.should_stop():  # else that is how a stop reaches what waits
                self._report(error, coord)
        except Exception as error:
            self._report(error, coord)
        finally:
            if self._ended(sess):
                self._close(sess, coord)

    def _report(self, error: Exception, coord: Coordinator | None) -> None:
        if coord is not None:
            coord.request_stop(error)
            return
        with self._lock:
            self._raised.append(error)
        raise error  # the thread's end shows it

    def _ended(self, sess: Runs) -> bool:
        """Count the end of a thread, and return whether it was the session's last."""
        with self._lock:
            self._running[sess] -= 1
            is_last = not self._running[sess]
            if is_last:
                del self._running[sess]
            return is_last

    def _close(self, sess: Runs, coord: Coordinator | None) -> None:
        try:
            if self.close_op is None:
                self.queue.shut(False)
            else:
                sess.run(self.close_op)
        except Exception as error:
            self._report(error, coord)

    def _cancel_on_stop(self, sess: Runs, coord: Coordinator) -> None:
        coord.wait_for_stop()
        try:
            if self.cancel_op is None:
                self.queue.shut(True)
            else:
                sess.run(self.cancel_op)
        except Exception as error:
            self._report(error, coord)


def add_queue_runner(qr: QueueRunner) -> None:
    """Let `start_queue_runners` start `qr` with the graph of its operations.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default() as graph:
    ...     queue = ab.queues.FIFOQueue(2, "float32", shapes=())
    ...     ab.queues.add_queue_runner(ab.queues.QueueRunner(queue, [queue.enqueue(1.0)]))
    >>> len(graph.queue_runners)
    1
    """
    qr.enqueue_ops[0].graph.root.queue_runners.append(qr)


def start_queue_runners(
    sess: Runs, coord: Coordinator | None = None, daemon: bool = True, start: bool = True
) -> list[threading.Thread]:
    """Start the threads of all queue runners that were added to the session's graph.

    Args:
        sess: the session whose graph it is.
        coord: gets the threads and their errors.
        daemon: do not keep the process alive.
        start: start them now.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default():
    ...     queue = ab.queues.FIFOQueue(2, "float32", shapes=())
    ...     ab.queues.add_queue_runner(ab.queues.QueueRunner(queue, [queue.enqueue(1.0)]))
    ...     first = queue.dequeue()
    ...     with ab.Session() as session:
    ...         coordinator = ab.queues.Coordinator()
    ...         threads = ab.queues.start_queue_runners(session, coordinator)
    ...         session.run(first)
    ...         coordinator.request_stop()
    ...         coordinator.join(threads)
    np.float32(1.0)
    """
    runners = list(sess.graph.queue_runners)
    return [thread for runner in runners for thread in runner.create_threads(sess, coord, daemon, start)]
