"""Queues, accumulators and coordination: state that several threads, each running steps, share."""

from typing import TYPE_CHECKING

from ..objects.on_demand import modules_by_name, on_demand

_NAMES = modules_by_name(
    __name__,
    {
        "accumulator_state": "AccumulatorStatistics",
        "accumulators": "ConditionalAccumulator SparseConditionalAccumulator",
        "bucketing": "bucket_by_sequence_length",
        "coordinator": "Coordinator",
        "errors": "CancelledError DeadlineExceededError OutOfRangeError",
        "queue": "FIFOQueue PaddingFIFOQueue PriorityQueue Queue RandomShuffleQueue",
        "runner": "QueueRunner add_queue_runner start_queue_runners",
        "state": "QueueStatistics",
    },
)

if TYPE_CHECKING:
    from .accumulator_state import AccumulatorStatistics
    from .accumulators import ConditionalAccumulator, SparseConditionalAccumulator
    from .bucketing import bucket_by_sequence_length
    from .coordinator import Coordinator
    from .errors import CancelledError, DeadlineExceededError, OutOfRangeError
    from .queue import FIFOQueue, PaddingFIFOQueue, PriorityQueue, Queue, RandomShuffleQueue
    from .runner import QueueRunner, add_queue_runner, start_queue_runners
    from .state import QueueStatistics
else:
    __getattr__, __dir__ = on_demand(globals(), _NAMES)

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
