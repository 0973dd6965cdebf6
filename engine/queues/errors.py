"""Errors of queues, accumulators and readers; `anabranch.errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..objects.on_demand import on_demand

# What compiles kernels beside the imports of everything else needs these errors: so nothing of the ops is imported.
if TYPE_CHECKING:
    from ..graph.state.resource import NamedResource
    from ..ops.checks import InvalidArgumentError
else:
    __getattr__, __dir__ = on_demand(
        globals(), {"InvalidArgumentError": f"{__package__.rpartition('.')[0]}.ops.checks"}
    )


class OutOfRangeError(EOFError):
    """The input is at its end: a queue is closed and holds too few elements for a dequeue.

    This is how the end of the data reaches whoever consumes it. Loops over a queue end with it, and a `Coordinator`
    takes it for a clean stop.

    >>> import anabranch as ab
    >>> queue = ab.queues.FIFOQueue(10, "float32")
    >>> queue.enqueue(1.0)
    >>> queue.close()
    >>> try:
    ...     while True:
    ...         print(queue.dequeue())
    ... except ab.errors.OutOfRangeError:
    ...     print("the end")
    1.0
    the end
    """


class CancelledError(RuntimeError):
    """A request to a queue will not be done: the queue is closed, or was closed while an enqueue waited.

    >>> import anabranch as ab
    >>> queue = ab.queues.FIFOQueue(10, "float32")
    >>> queue.close()
    >>> try:
    ...     queue.enqueue(1.0)
    ... except ab.errors.CancelledError as error:
    ...     print(error)
    Queue 'fifo_queue' is closed: nothing more can be enqueued.
    """


class DeadlineExceededError(TimeoutError):
    """A step waited longer than ``Session.run(..., timeout=seconds)`` allows.

    The message names what waited, the queue and its size, and for how long; the note names the operation. What waited
    has been withdrawn: a dequeue took nothing.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default():
    ...     waits = ab.queues.FIFOQueue(10, "float32", shapes=(), name="numbers").dequeue()
    >>> try:
    ...     ab.Session(waits.graph).run(waits, timeout=0.01)
    ... except ab.errors.DeadlineExceededError as error:
    ...     print(error)
    The timeout was over after waiting ... s: dequeue of 1 element from queue 'numbers', which is open and holds 0
    (capacity 10). Enqueue elsewhere, close the queue, or give a longer timeout.
    """


class DataLossError(ValueError):
    """A file is damaged or cut short: a checksum does not fit, or a record ends before its length.

    The message names the file and the place in it.

    >>> import anabranch as ab
    >>> with open("cut.tfrecord", "wb") as file:
    ...     _ = file.write(b"no record")
    >>> try:
    ...     list(ab.io.tf_record_iterator("cut.tfrecord"))
    ... except ab.errors.DataLossError as error:
    ...     print(error)
    'cut.tfrecord' is damaged at the record that begins at byte 0: the file ends within it, after 9 of 12 bytes.
    """


class TaskFailedError(ConnectionError):
    """A task of the cluster is gone, or can't be reached, and a step that needs it has ended.

    The session stays usable: steps that do not need the task run, and the task is used again once it is back.

    Attributes:
        task: its name, "/job:ps/task:1".
        reason: what happened.
        step: the number of the step that ended, of its master; None where none had begun.
        waiting: by the name of each other task of the step that reported it, what the step waited for there. Notes of
            the error say the same.

    >>> import anabranch as ab
    >>> with ab.distribute.Server({"ps": ["localhost:0"]}, token="an example's token, not a secret") as server:
    ...     target = server.target
    >>> try:
    ...     ab.distribute.status(target, timeout=0.1)  # the task has ended
    ... except ab.errors.TaskFailedError as error:
    ...     print(error.task == target, error.step)
    True None
    """

    def __init__(self, message: str, task: str = "", reason: str = "", step: int | None = None) -> None:
        super().__init__(message)
        self.task = task
        self.reason = reason
        self.step = step
        self.waiting: dict[str, str] = {}


class StateLostError(RuntimeError):
    """A variable or a queue has lost what it held, because its task was started again.

    Assign it a value, or restore one; variables of other tasks have kept theirs.
    For a queue, an accumulator or a reader open a new session: it begins with a new one, or finds that of others.

    >>> import anabranch as ab
    >>> def run_or_restore(session, fetches, saver, path):
    ...     try:
    ...         return session.run(fetches)
    ...     except ab.errors.StateLostError:
    ...         saver.restore(session, path)
    ...         return session.run(fetches)
    >>> float(run_or_restore(ab.Session(), ab.ops.constant(1.0) + 1, None, ""))
    2.0
    """


def check_held(resource: NamedResource) -> None:
    """Check that a resource has not lost what it held.

    Raises:
        StateLostError: it has.
    """
    if resource.lost:
        raise StateLostError(resource.lost)


__all__ = [
    "CancelledError",
    "DataLossError",
    "DeadlineExceededError",
    "InvalidArgumentError",
    "OutOfRangeError",
    "StateLostError",
    "TaskFailedError",
]
