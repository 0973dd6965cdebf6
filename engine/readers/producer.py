"""`string_input_producer`: a queue of file names, filled by a queue runner for so many epochs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from ..common import dtypes
from ..common.quick_dataclass import dataclass
from ..graph.graph import Operation, get_default_graph
from ..graph.op import Effect, Op
from ..graph.spec import TensorSpec
from ..graph.state.resource import NamedResource
from ..graph.tensor import Tensor
from ..ops.base import as_array
from ..ops.random.keys import SeedGenerator, key_words
from ..queues.errors import OutOfRangeError, check_held
from ..queues.queue import FIFOQueue, Queue
from ..queues.runner import QueueRunner, add_queue_runner


class Epochs(NamedResource):
    """Strings, once an epoch, in their order or in a new random one each time.

    Args:
        strings: the strings.
        count: how many epochs there are; None for no end.
        shuffle: whether each epoch has another order.
        seed: of the orders; by default one is drawn, by the task where this is.
        name: for messages and tasks.
    """

    kind: ClassVar[str] = "epochs"

    def __init__(
        self, strings: Any, count: int | None, shuffle: bool = False, seed: int | None = None, name: str = "epochs"
    ) -> None:
        self.name = name
        self.place_here()
        self._strings = as_array(strings, dtypes.string)
        self._count = count
        self._seed = seed
        self._generator = SeedGenerator(seed) if shuffle else None
        self._lock = threading.Lock()
        self._done = 0

    def definition(self) -> dict[str, Any]:
        shuffle = self._generator is not None
        return {"strings": self._strings.tolist(), "count": self._count, "shuffle": shuffle, "seed": self._seed}

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Self:
        return cls(**definition, name=name)

    def next(self) -> Any:
        """Return the strings of the next epoch.

        Raises:
            OutOfRangeError: there was the last.
            StateLostError: the task that counted them was started again.
        """
        check_held(self)
        with self._lock:
            if self._done == self._count:
                raise OutOfRangeError(f"string_input_producer: all {self._count} epochs were produced.")
            self._done += 1
            if self._generator is None:
                return self._strings.copy()
            order = np.random.Generator(np.random.Philox(key=key_words(self._generator.next())))
            return self._strings[order.permutation(len(self._strings))]


@dataclass(frozen=True, eq=False)
class ProduceStrings(Op):
    """The strings of the next epoch. Fails at the end."""

    no_samples: ClassVar[str] = "counts epochs: test_readers"
    epochs: Epochs

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((None,), dtypes.string)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self.epochs.next()

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.epochs, writes=True),)


def string_input_producer(
    string_tensor: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    name: str = "input_producer",
) -> Queue:
    """Return a queue of strings, such as the names of files, for a reader (``tf.train.string_input_producer``).

    A queue runner of the current graph fills it, which `queues.start_queue_runners` starts.

    Args:
        string_tensor: a list or vector of strings.
        num_epochs: how often each of them comes; None for no end.
        shuffle: a new order for each epoch.
        seed: of the orders.
        capacity: of the queue.
        name: of the queue and the operations.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default() as graph:
    ...     names = ab.io.string_input_producer(["a", "b"], num_epochs=1, shuffle=False)
    ...     both = names.dequeue_many(2)
    >>> session, coordinator = ab.Session(graph), ab.queues.Coordinator()
    >>> threads = ab.queues.start_queue_runners(session, coordinator)
    >>> session.run(both)
    array(['a', 'b'], dtype=StringDType())
    >>> coordinator.request_stop()
    >>> coordinator.join(threads)
    """
    strings = as_array(string_tensor)
    if strings.dtype != dtypes.string or strings.ndim != 1 or not strings.size:
        raise ValueError(f"string_input_producer takes a list of strings, at least one; got {string_tensor!r}.")
    if num_epochs is not None and num_epochs < 1:
        raise ValueError(f"string_input_producer: num_epochs must be at least 1, or None; got {num_epochs}.")
    queue = FIFOQueue(capacity, "string", (), name=name)
    epochs = Epochs(strings, num_epochs, shuffle, seed, f"{name}/epochs")
    graph = get_default_graph()
    with graph.as_default():
        produced = graph.add(ProduceStrings(epochs), (), f"{name}/epoch").outputs[0]
        add_queue_runner(QueueRunner(queue, [queue.enqueue_many([produced])]))
    return queue
