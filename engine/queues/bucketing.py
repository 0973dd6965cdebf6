"""Bucketing: sequences of like length go into one batch, so that little is padded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..common import dtypes
from ..common.nest import flatten, pack_as
from ..common.quick_dataclass import dataclass
from ..graph.graph import Operation, get_default_graph, graph_for
from ..graph.op import Effect
from ..graph.spec import Shape, TensorSpec
from ..graph.tensor import Tensor
from ..ops.base import convert_to_tensor
from .attempts import Course, WaitingOp
from .errors import CancelledError, OutOfRangeError
from .queue import FIFOQueue, PaddingFIFOQueue, Queue
from .runner import QueueRunner, add_queue_runner

_ENDS = (OutOfRangeError, CancelledError)


@dataclass(frozen=True, eq=False)
class BucketEnqueue(WaitingOp):
    """Put an element into the queue for its length. Inputs: whether to keep it, its length, its components.

    Attributes:
        queues: one for the lengths below each boundary, and one for the rest.
        boundaries: ascending; a length that equals one belongs to the queue behind it.
    """

    no_samples: ClassVar[str] = "holds queues: test_queues_bucketing"
    queues: tuple[Queue, ...]
    boundaries: tuple[int, ...]

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        keep, length, *components = inputs
        if keep.dtype != dtypes.bool_ or keep.shape not in ((), None):
            raise TypeError(f"bucket_by_sequence_length: keep_input must be a bool scalar; got {keep}.")
        if length.dtype.kind not in "iu" or length.shape not in ((), None):
            raise TypeError(f"bucket_by_sequence_length: input_length must be an integer scalar; got {length}.")
        self.queues[0].components.check_specs([length, *components], many=False)
        return ()

    def course(self, *inputs: Any) -> Course:
        keep, length, *components = inputs
        if keep:
            bucket = int(np.searchsorted(self.boundaries, int(length), side="right"))
            yield self.queues[bucket].putting([length, *components], many=False)
        return ()

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)

    def effects(self) -> tuple[Effect, ...]:
        return tuple([Effect(queue, writes=True) for queue in self.queues])


def bucket_by_sequence_length(
    input_length: Any,
    tensors: Any,
    batch_size: int | Sequence[int],
    bucket_boundaries: Sequence[int],
    num_threads: int = 1,
    capacity: int = 32,
    bucket_capacities: Sequence[int] | None = None,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    keep_input: Any = True,
    name: str = "bucket_by_sequence_length",
) -> tuple[Any, Any]:
    """Return batches of elements of like length (``tf.contrib.training.bucket_by_sequence_length``).

    Builds a queue a bucket, a queue of batches, and queue runners, which `start_queue_runners` starts: they compute
    `tensors` again and again until their source ends.

    Args:
        input_length: the length of the element, an integer scalar; the element goes into bucket k if
            ``bucket_boundaries[k - 1] <= input_length < bucket_boundaries[k]``.
        tensors: the element: a tensor or a structure of tensors.
        batch_size: elements in a batch; or a list with the number for each bucket.
        bucket_boundaries: ascending lengths; there is one bucket more.
        num_threads: how many threads compute `tensors`. With more than one the order is open.
        capacity: how many batches are kept ready, and how many elements wait in a bucket.
        bucket_capacities: the latter for each bucket.
        shapes: of the leaves of `tensors`, if they are better known than from these.
        dynamic_pad: pad dimensions that are not known with zeros to the size of the largest in the batch. Otherwise
            all shapes must be known.
        allow_smaller_final_batch: at the end of the data give what is left in each bucket; otherwise it is dropped.
        keep_input: a bool scalar: elements for which it is false are left out.
        name: of the queues.

    Returns:
        The lengths ``(batch,)`` and the batch, in the structure of `tensors`.

    Raises:
        ValueError: the arguments contradict each other.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default() as graph:
    ...     source = ab.queues.FIFOQueue(10, "int32", shapes=())
    ...     length = source.dequeue()
    ...     lengths, batch = ab.queues.bucket_by_sequence_length(
    ...         length, ab.ops.arange(length), 2, [3], dynamic_pad=True)
    >>> source.enqueue_many([[1, 5, 2]])
    >>> source.close()
    >>> session, coordinator = ab.Session(graph), ab.queues.Coordinator()
    >>> threads = ab.queues.start_queue_runners(session, coordinator)
    >>> session.run([lengths, batch])
    [array([1, 2], dtype=int32), array([[0, 0],
           [0, 1]], dtype=int32)]
    >>> coordinator.request_stop()
    >>> coordinator.join(threads)
    """
    boundaries = _checked_boundaries(bucket_boundaries)
    count = len(boundaries) + 1
    sizes = _one_a_bucket("batch_size", batch_size, count)
    bounds = _one_a_bucket("bucket_capacities", capacity if bucket_capacities is None else bucket_capacities, count)
    length = convert_to_tensor(input_length)
    leaves = [convert_to_tensor(leaf) for leaf in flatten(tensors)]
    with graph_for([length, *leaves]).entered():
        types = [leaf.dtype for leaf in (length, *leaves)]
        known: list[Any] = [(), *(shapes if shapes is not None else [leaf.shape for leaf in leaves])]
        make = PaddingFIFOQueue if dynamic_pad else FIFOQueue
        buckets = [
            make(max(bound, size), types, known, name=f"{name}/bucket_{number}")
            for number, (bound, size) in enumerate(zip(bounds, sizes, strict=True))
        ]
        op, inputs = BucketEnqueue(tuple(buckets), boundaries), [convert_to_tensor(keep_input), length, *leaves]
        fill = get_default_graph().add(op, inputs, f"{name}/enqueue")
        close = [bucket.close() for bucket in buckets]
        cancel = [bucket.close(cancel_pending_enqueues=True) for bucket in buckets]
        add_queue_runner(QueueRunner(buckets[0], [fill] * num_threads, close, cancel, _ENDS))
        batches = _batches(buckets, sizes, allow_smaller_final_batch, capacity, name)
        lengths, *values = batches.dequeue()
    return lengths, values[0] if isinstance(tensors, Tensor) else pack_as(tensors, values)


def _checked_boundaries(boundaries: Sequence[int]) -> tuple[int, ...]:
    found = tuple([int(boundary) for boundary in boundaries])
    if not found or any(low >= high for low, high in itertools.pairwise(found)):
        raise ValueError(
            "bucket_by_sequence_length: bucket_boundaries must hold ascending lengths, at least one; got "
            f"{list(boundaries)!r}."
        )
    return found


def _one_a_bucket(what: str, given: int | Sequence[int], count: int) -> list[int]:
    found = [int(value) for value in given] if isinstance(given, Sequence) else [int(given)] * count
    if len(found) != count or min(found) < 1:
        raise ValueError(
            f"bucket_by_sequence_length: {what} must be positive, one number for all or one for each of the {count} "
            f"buckets; got {given!r}."
        )
    return found


def _batches(buckets: Sequence[Queue], sizes: Sequence[int], smaller: bool, capacity: int, name: str) -> Queue:
    """Return the queue of batches, with the runner that fills it from the buckets."""
    rows = sizes[0] if len(set(sizes)) == 1 and not smaller else None
    shapes: list[Shape] = [spec.shape for spec in buckets[0].components.specs(rows)]
    batches = PaddingFIFOQueue(capacity, buckets[0].dtypes, shapes, name=f"{name}/batches")
    pairs = zip(buckets, sizes, strict=True)
    taken = [bucket.dequeue_up_to(size) if smaller else bucket.dequeue_many(size) for bucket, size in pairs]
    add_queue_runner(QueueRunner(batches, [batches.enqueue(batch) for batch in taken], None, None, _ENDS))
    return batches
