"""Queues: bounded state between threads, read and written by operations of graphs or at once from plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

import numpy as np

from ..common.dtypes import name_of
from ..common.forks import fork_safe_lock
from ..common.nest import is_integer
from ..graph.context import in_explicit_graph
from ..graph.graph import get_default_graph, graph_for
from ..graph.op import as_scalar_or_array
from ..graph.state.resource import NamedResource
from ..graph.state.variable import Variable
from ..graph.value import Value
from ..ops.base import convert_to_tensor
from ..ops.entrance import entering_graphs
from ..ops.random.keys import SeedGenerator, key_words
from .attempts import Attempt, Gate, Request
from .components import Components, stacked
from .errors import check_held
from .ops import QueueClose, QueueDequeue, QueueDequeueMany, QueueEnqueue, QueueIsClosed, QueueSize
from .state import Element, FirstInFirstOut, LowestFirst, QueueState, QueueStatistics, Shuffled, Store


class _Shared:
    """The common part of queues of one `shared_name`: the state and its lock."""

    def __init__(self, kind: tuple[Any, ...], state: QueueState) -> None:
        self.kind = kind
        self.state = state
        self.gate = Gate()


_shared: WeakValueDictionary[str, _Shared] = WeakValueDictionary()
_shared_lock = fork_safe_lock()


class Queue(NamedResource):
    """Base of the queues; use one of them.

    An element has one or several components. `enqueue` takes the value of the only component, a list or tuple of
    values, or (with `names`) a dict; `dequeue` gives the value, a list or a dict.

    Where a graph is being built (inside ``with graph.as_default():``, a `Session`'s block, a function, a loop or a
    branch, or with a tensor as value) the methods build operations. These run in program order, queue by queue, and
    block only the thread that runs the step. From plain Python they act at once and take and give arrays. A queue that
    is on a task of a cluster belongs to the cluster whose session first runs it: from then on they act there.

    Attributes:
        name: for messages, and the names of the operations.
        components: what an element is made of.

    >>> import anabranch as ab
    >>> isinstance(ab.queues.FIFOQueue(10, "float32"), ab.queues.Queue)
    True
    """

    _pads: ClassVar[bool] = False

    def __init__(
        self,
        store: Store,
        capacity: int,
        components: Components,
        name: str,
        shared_name: str | None,
        min_after_dequeue: int = 0,
    ) -> None:
        if not is_integer(capacity) or (capacity < 1 and capacity != -1):
            raise ValueError(
                f"{components.owner}: capacity must be at least 1, or -1 for a queue without bound; got {capacity!r}."
            )
        self.name = name
        self.path = shared_name or name
        self.place_here()
        self.components = components
        self._capacity = capacity
        state = QueueState(store, None if capacity == -1 else int(capacity), min_after_dequeue, name)
        kind = (type(self), capacity, min_after_dequeue, components.specs(), components.names)
        self._shared = _Shared(kind, state)
        if shared_name is not None:
            with _shared_lock:
                self._shared = _shared.setdefault(shared_name, self._shared)
            self._check_same(kind, shared_name)
        self._state, self._gate = self._shared.state, self._shared.gate

    def definition(self) -> dict[str, Any]:
        specs = self.components.specs()
        shapes = None if self.components.shapes is None else [list(spec.shape or ()) for spec in specs]
        names = self.components.names
        return {
            "capacity": self._capacity,
            "dtypes": [name_of(spec.dtype) for spec in specs],
            "shapes": shapes,
            "names": None if names is None else list(names),
        }

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Self:
        return cls(**definition, name=name)

    def _check_same(self, kind: tuple[Any, ...], shared_name: str) -> None:
        if self._shared.kind != kind:
            raise ValueError(
                f"{self.components.owner}: there is a queue with shared_name={shared_name!r} of another type, capacity "
                "or other components. Queues of one name must be made alike."
            )

    @property
    def dtypes(self) -> list[Any]:
        """The dtype of each component."""
        return list(self.components.dtypes)

    @property
    def shapes(self) -> list[Any]:
        """The shape of each component; None where nothing is known."""
        return [spec.shape for spec in self.components.specs()]

    @property
    def names(self) -> list[str] | None:
        """The names of the components, if they have any."""
        return None if self.components.names is None else list(self.components.names)

    # --- at once, and what the operations do ----------------------------------------------------------------

    def putting(self, values: Sequence[Any], many: bool) -> Request:
        """Return the request to put in arrays, one a component."""
        check_held(self)
        elements = self.components.elements(values) if many else [self.components.element(values)]
        state = self._state
        return Request(self._gate, lambda: state.enqueue(elements), state.withdraw, self._describe_enqueue)

    def taking(self, count: int, up_to: bool = False) -> Request:
        """Return the request for elements."""
        check_held(self)
        if count < 0:
            raise ValueError(f"Queue {self.name!r}: the number of elements must not be negative; got {count}.")
        state = self._state
        return Request(self._gate, lambda: state.dequeue(count, up_to), state.withdraw, self._describe_dequeue)

    def put(self, values: Sequence[Any], many: bool) -> None:
        """Put in arrays, one a component; wait for room. (`enqueue` is the public form.)"""
        self.putting(values, many).wait()

    def take(self, count: int, up_to: bool = False) -> list[Element]:
        """Take out elements; wait until they are there. (`dequeue` is the public form.)"""
        return self.taking(count, up_to).wait()

    def as_columns(self, elements: Sequence[Element]) -> list[Any]:
        """Return elements stacked, one array a component."""
        return stacked(elements, self.components.specs(), self._pads)

    def shut(self, cancel_pending_enqueues: bool) -> None:
        """Close the queue now. (`close` is the public form.)"""
        check_held(self)
        with self._gate.lock:
            self._state.close(cancel_pending_enqueues)

    def give_up(self, reason: str) -> None:
        if not self.lost:
            self.shut(True)
        super().give_up(reason)

    def statistics(self) -> QueueStatistics:
        """Return what the queue holds now and what it has done."""
        check_held(self)
        with self._gate.lock:
            return self._state.statistics()

    def _describe_enqueue(self, attempt: Attempt) -> str:
        left = f"{len(attempt.elements)} of {attempt.count} elements found no room" if attempt.count > 1 else "no room"
        return f"enqueue to {self._description()}; {left}. Dequeue elsewhere, or give a longer timeout."

    def _describe_dequeue(self, attempt: Attempt) -> str:
        wanted = f"{attempt.count} element{'s' * (attempt.count > 1)}"
        return (
            f"dequeue of {wanted} from {self._description()}. Enqueue elsewhere, close the queue, or give a longer "
            "timeout."
        )

    def _description(self) -> str:
        found = self._state.statistics()
        bound = "no bound" if found.capacity is None else f"capacity {found.capacity}"
        state = "closed" if found.is_closed else "open"
        return f"queue {self.name!r}, which is {state} and holds {found.size} ({bound})"

    # --- public -----------------------------------------------------------------------------------------------

    def enqueue(self, vals: Any, name: str | None = None) -> Any:
        """Put in one element; wait while the queue is full.

        Args:
            vals: the element (see the class).
            name: of the operation.

        Returns:
            The operation; None from plain Python.

        Raises:
            ValueError, TypeError: the element does not fit the queue's components.
            CancelledError: the queue is closed.
        """
        return self._enqueue(vals, False, name)

    def enqueue_many(self, vals: Any, name: str | None = None) -> Any:
        """Put in one element for each row of the values, in their order; as `enqueue`.

        There may be more rows than the queue has room for: they go in as room appears.
        """
        return self._enqueue(vals, True, name)

    @entering_graphs
    def _enqueue(self, vals: Any, many: bool, name: str | None) -> Any:
        suffix = "enqueue_many" if many else "enqueue"
        if not in_explicit_graph():
            arrays = self.components.arrays(vals)
            if self.home is None:
                self.put(arrays, many)
            else:
                build = self.adding(QueueEnqueue(self, many))
                self.home.run(suffix, build, arrays, is_repeatable=False)
            return None
        tensors = self.components.tensors(vals)
        return graph_for(tensors).add(QueueEnqueue(self, many), tensors, name or f"{self.name}/{suffix}")

    def dequeue(self, name: str | None = None) -> Any:
        """Take out one element; wait while there is none.

        Raises:
            OutOfRangeError: the queue is closed and empty (at run time).

        >>> import anabranch as ab
        >>> queue = ab.queues.FIFOQueue(10, ["float32", "string"], shapes=[(2,), ()])
        >>> queue.enqueue(([1.0, 2.0], "first"))
        >>> queue.dequeue()
        [Tensor([1., 2.], dtype=float32), Tensor('first', dtype=string)]
        """
        if not in_explicit_graph():
            if self.home is not None:
                build = self.adding(QueueDequeue(self))
                return self._as_given(_values(self.home.run("dequeue", build, is_repeatable=False)))
            return self._as_given(_values(self.take(1)[0]))
        return self._as_given(get_default_graph().add(QueueDequeue(self), (), name or f"{self.name}/dequeue").outputs)

    def dequeue_many(self, n: Any, name: str | None = None) -> Any:
        """Take out `n` elements, stacked along a new first axis; wait until they are there, and take none before.

        Args:
            n: how many: an integer, or a scalar tensor.
            name: of the operation.

        Raises:
            ValueError: the queue's components have no shapes.
            OutOfRangeError: the queue is closed and holds fewer (at run time).

        >>> import anabranch as ab
        >>> queue = ab.queues.FIFOQueue(10, "int32", shapes=())
        >>> with ab.Graph().as_default():
        ...     fill = queue.enqueue_many([[1, 2, 3]])
        ...     first, second = queue.dequeue_many(2), queue.dequeue()
        ...     ab.Session().run([fill, first, second])
        [None, array([1, 2], dtype=int32), np.int32(3)]
        """
        return self._dequeue_many(n, False, name or f"{self.name}/dequeue_many")

    def dequeue_up_to(self, n: Any, name: str | None = None) -> Any:
        """Dequeue as `dequeue_many`; but a closed queue with fewer elements (and at least one) gives what is left."""
        return self._dequeue_many(n, True, name or f"{self.name}/dequeue_up_to")

    @entering_graphs
    def _dequeue_many(self, n: Any, up_to: bool, name: str) -> Any:
        if self.components.shapes is None:
            raise ValueError(
                f"{self.components.owner}: elements of unknown shapes can't be stacked. Give shapes=[...] when the "
                "queue is made."
            )
        if isinstance(n, (Value, Variable)) and not in_explicit_graph():
            n = int(n)
        count = int(n) if is_integer(n) else None
        if count is not None and count < 0:
            raise ValueError(f"{self.components.owner}: n must not be negative; got {n}.")
        if not in_explicit_graph():
            if self.home is not None:
                action, count = f"dequeue_many, {up_to}", np.asarray(int(n))
                build = self.adding(QueueDequeueMany(self, None, up_to))
                return self._as_given(_values(self.home.run(action, build, [count], is_repeatable=False)))
            return self._as_given(_values(self.as_columns(self.take(int(n), up_to))))
        inputs = [] if count is not None else [convert_to_tensor(n)]
        graph = graph_for(inputs) if inputs else get_default_graph()
        return self._as_given(graph.add(QueueDequeueMany(self, count, up_to), inputs, name).outputs)

    def _as_given(self, values: Sequence[Any]) -> Any:
        return self.components.packed(values)

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Any:
        """Take no further enqueues. Dequeues go on until the elements are used up, and then fail.

        Closing a closed queue does nothing (but cancel what waits, if that is asked for now).

        Args:
            cancel_pending_enqueues: enqueues that wait for room fail; otherwise they are still served.
            name: of the operation.
        """
        if in_explicit_graph():
            operation = QueueClose(self, cancel_pending_enqueues)
            return get_default_graph().add(operation, (), name or f"{self.name}/close")
        if self.home is None:
            self.shut(cancel_pending_enqueues)
        else:
            build = self.adding(QueueClose(self, cancel_pending_enqueues))
            self.home.run(f"close, {cancel_pending_enqueues}", build)
        return None

    def size(self, name: str | None = None) -> Any:
        """Return how many elements the queue holds."""
        if in_explicit_graph():
            return get_default_graph().add(QueueSize(self), (), name or f"{self.name}/size").outputs[0]
        if self.home is not None:
            return int(self.home.run("size", self.adding(QueueSize(self)))[0])
        return self.statistics().size

    def is_closed(self, name: str | None = None) -> Any:
        """Test whether `close` was called."""
        if in_explicit_graph():
            return get_default_graph().add(QueueIsClosed(self), (), name or f"{self.name}/is_closed").outputs[0]
        if self.home is not None:
            return bool(self.home.run("is_closed", self.adding(QueueIsClosed(self)))[0])
        return self.statistics().is_closed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def _values(parts: Sequence[Any]) -> list[Value]:
    """Return what was taken as tensors, as everything outside of graphs gives them."""
    return [Value(as_scalar_or_array(part)) for part in parts]


class FIFOQueue(Queue):
    """First in, first out.

    Args:
        capacity: how many elements it holds at most; -1 for no bound.
        dtypes: one dtype, or a list with one a component.
        shapes: the components' shapes, fully known (for one dtype the shape itself will do); without them the
            elements may differ in shape, and `dequeue_many` does not work.
        names: names of the components: elements are dicts then.
        shared_name: queues made with one shared name are one queue.
        name: for messages, and the names of the operations.
    """

    kind = "fifo_queue"

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        components = Components(f"FIFOQueue {name!r}", dtypes, shapes, names)
        super().__init__(FirstInFirstOut(), capacity, components, name, shared_name)


class PaddingFIFOQueue(Queue):
    """First in, first out; `dequeue_many` pads elements with zeros to the size of the largest.

    Args:
        capacity, dtypes, names, shared_name, name: as for `FIFOQueue`.
        shapes: the components' shapes. Dimensions that are None may differ between elements and are padded.

    >>> import anabranch as ab
    >>> queue = ab.queues.PaddingFIFOQueue(10, "int32", shapes=[(None,)])
    >>> for row in ([1, 2, 3], [4]):
    ...     queue.enqueue([row])
    >>> queue.dequeue_many(2)
    Tensor([[1, 2, 3],
            [4, 0, 0]], dtype=int32)
    """

    kind = "padding_fifo_queue"
    _pads: ClassVar[bool] = True

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
    ) -> None:
        components = Components(f"PaddingFIFOQueue {name!r}", dtypes, shapes, names, flexible=True)
        if components.shapes is None:
            raise ValueError(f"{components.owner}: shapes are needed; a dimension that is to be padded is None.")
        super().__init__(FirstInFirstOut(), capacity, components, name, shared_name)


class RandomShuffleQueue(Queue):
    """Elements leave in random order.

    Args:
        capacity, dtypes, shapes, names, shared_name, name: as for `FIFOQueue`.
        min_after_dequeue: how many elements a dequeue has to leave behind (it waits otherwise), so that there is
            something to choose from. When the queue is closed, the rest is given out.
        seed: an integer; by default one is drawn from the global generator.
    """

    kind = "random_shuffle_queue"

    def __init__(
        self,
        capacity: int,
        min_after_dequeue: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        seed: int | None = None,
        shared_name: str | None = None,
        name: str = "random_shuffle_queue",
    ) -> None:
        components = Components(f"RandomShuffleQueue {name!r}", dtypes, shapes, names)
        if min_after_dequeue < 0 or (capacity != -1 and min_after_dequeue >= capacity):
            raise ValueError(
                f"{components.owner}: min_after_dequeue must be between 0 and capacity - 1, so that an element can "
                f"leave; got min_after_dequeue={min_after_dequeue}, capacity={capacity}."
            )
        generator = np.random.Generator(np.random.Philox(key=key_words(SeedGenerator(seed).next())))
        super().__init__(Shuffled(generator), capacity, components, name, shared_name, min_after_dequeue)
        self._min_after_dequeue = min_after_dequeue

    def definition(self) -> dict[str, Any]:
        return {**super().definition(), "min_after_dequeue": self._min_after_dequeue}


class PriorityQueue(Queue):
    """The element with the lowest priority leaves first; among equal ones the oldest.

    Args:
        capacity, shared_name, name: as for `FIFOQueue`.
        types: the dtypes of the components behind the priority, which is the first component, an int64 scalar.
        shapes: the shapes of these components.
        names: names of all components, the priority's first.

    >>> import anabranch as ab
    >>> queue = ab.queues.PriorityQueue(10, ["string"], [()])
    >>> queue.enqueue_many(([3, 1, 2], ["c", "a", "b"]))
    >>> queue.dequeue_many(2)
    [Tensor([1, 2], dtype=int64), Tensor(['a', 'b'], dtype=string)]
    """

    kind = "priority_queue"

    def __init__(
        self,
        capacity: int,
        types: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "priority_queue",
    ) -> None:
        owner = f"PriorityQueue {name!r}"
        rest = Components(owner, types, shapes)
        known = None if rest.shapes is None else [(), *rest.shapes]
        components = Components(owner, ["int64", *rest.dtypes], known, names)
        super().__init__(LowestFirst(), capacity, components, name, shared_name)

    def definition(self) -> dict[str, Any]:
        found = super().definition()
        dtypes, shapes = found.pop("dtypes"), found.pop("shapes")
        return {**found, "types": dtypes[1:], "shapes": None if shapes is None else shapes[1:]}

    def putting(self, values: Sequence[Any], many: bool) -> Request:
        """Return the request to put in arrays, one a component."""
        if values[0].ndim != int(many):
            raise ValueError(
                f"{self.components.owner}: priorities are int64 scalars; got shape {list(values[0].shape[many:])}."
            )
        return super().putting(values, many)
