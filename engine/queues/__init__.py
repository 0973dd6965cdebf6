"""Queues, accumulators and coordination: state that several threads, each running steps, share."""

from .accumulator_state import AccumulatorStatistics
from .accumulators import ConditionalAccumulator, SparseConditionalAccumulator
from .bucketing import bucket_by_sequence_length
from .coordinator import Coordinator
from .errors import CancelledError, DeadlineExceededError, OutOfRangeError
from .queue import FIFOQueue, PaddingFIFOQueue, PriorityQueue, Queue, RandomShuffleQueue
from .runner import QueueRunner, add_queue_runner, start_queue_runners
from .state import QueueStatistics

__all__ = [
    "AccumulatorStatistics",
    "CancelledError",
    "ConditionalAccumulator",
    "Coordinator",
    "DeadlineExceededError",
    "FIFOQueue",
    "OutOfRangeError",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "Queue",
    "QueueRunner",
    "QueueStatistics",
    "RandomShuffleQueue",
    "SparseConditionalAccumulator",
    "add_queue_runner",
    "bucket_by_sequence_length",
    "start_queue_runners",
]
