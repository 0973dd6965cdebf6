"""`Session`: prune, compile, feed, fetch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.deadlines import deadline
from ..common.dtypes import is_integer, name_of, with_own_dtype
from ..common.nest import flatten, is_sequence, pack_as
from ..common.nest import is_integer as is_whole_number
from ..graph.device import DeviceName
from ..graph.graph import Graph, Operation, get_default_graph
from ..graph.spec import TensorSpec, shape_accepts, shape_text
from ..graph.state.container import clear_containers
from ..graph.state.variable import Variable
from ..graph.tensor import Symbol, Tensor
from ..graph.value import Value
from ..ops.base import as_array, is_numpy
from ..passes.framework.prune import needed_operations
from ..passes.memory.memory_budget import within_memory_budget
from ..place.placement import Placement
from ..queues.stops import Stop
from ..runtime.program import Program, Statistics, as_fetched, copied_value
from ..runtime.variants import Variants
from ..tracing import trace as traced
from .inside import fetched_from, find_by_name
from .partial import PartialRun
from .programs import AS_IT_COMES, Schedule, make_variants
from .targets import connect

if TYPE_CHECKING:
    from ..machine.gpu.program import GpuProgram
    from ..machine.program import MachineProgram


class Session:
    """Runs parts of a graph.

    Args:
        graph: the graph to run; by default the current one.
        placement: where operations run, from `ab.placement` (and `Placement.moved`); those that it does not name are
            placed as they would be without. See docs/devices.md.
        schedule_seed: steps that span devices run what is ready in an order that is drawn by this seed, the same in
            each run; by default in the order in which it gets ready.
        target: the address of a task, such as "grpc://localhost:2203", which runs the steps with the tasks of its
            cluster; by default this process does. See docs/distribute.md.
        lossy: with a target, pairs of tasks or devices, from and to, between which 32-bit floats travel as bfloat16,
            cut off rather than rounded: ``[("/job:ps", "/job:worker")]``. In this process `set_devices` declares them.

    Each set of fetches and feeds is pruned and compiled once. As a context manager, a session makes its graph the
    current one; at the end of the block a session with a target is closed.

    >>> import anabranch as ab
    >>> x = ab.placeholder((None,), "float32", "x")
    >>> with ab.Session() as session:
    ...     session.run([x + 1, ab.ops.sum(x)], feed_dict={x: [1, 2]})
    [array([2., 3.], dtype=float32), np.float32(3.0)]
    """

    def __init__(
        self,
        graph: Graph | None = None,
        placement: Placement | None = None,
        schedule_seed: int | None = None,
        target: str | None = None,
        lossy: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.graph = graph or get_default_graph()
        self._schedule = _schedule(placement, schedule_seed, target, lossy)
        self._programs: dict[Any, Variants] = {}
        self._pieces: dict[Any, dict[Any, Any]] = {}
        self._latest: Program | MachineProgram | GpuProgram | None = None
        self._contexts: list[Any] = []
        self._stop = Stop()
        self._before_next: list[Callable[[], None]] = []

    def run(
        self,
        fetches: Any,
        feed_dict: dict[Any, Any] | None = None,
        timeout: float | None = None,
        trace: str | os.PathLike[str] | None = None,
        memory_budget: int | None = None,
    ) -> Any:
        """Return the values of `fetches`, in their structure.

        Args:
            fetches: tensors, operations (whose value is None), variables, names, TensorArrays, or nested
                structures of these. A tensor inside a loop body gives a list with its value in each iteration (in
                nested loops a list of lists), one inside a branch its value, or None where another was taken. By
                name it is ``loop/body/name:0``, as `Graph.dump` prints it. Mappings keep their kind and order.
            feed_dict: values for placeholders, or for any other tensor, which then is not computed.
            timeout: how many seconds the step may take. What waits (a dequeue, say) ends then, and so do loops; another
                operation that has begun, such as a product, is finished first.
            trace: a file for a timeline of this run, as `ab.trace` writes it.
            memory_budget: how many bytes of loop state this run may keep for its backward pass, about, in place of
                what `ab.config.set_memory_budget` says; what does not fit is computed again (docs/memory.md).

        Raises:
            ValueError: a placeholder that is needed was not fed, or a value has the wrong shape.
            TypeError: something can't be fetched or fed, or a value has the wrong dtype.
            DeadlineExceededError: the timeout was over while an operation waited, or a loop ran.
            CancelledError: another thread has closed the session meanwhile.
        """
        if memory_budget is not None:
            with within_memory_budget(memory_budget):
                return self.run(fetches, feed_dict, timeout, trace)
        if trace is not None:
            with traced(trace):
                return self.run(fetches, feed_dict, timeout)
        feeds = self._resolve_feeds(feed_dict or ())
        values = [checked_feed(tensor, value) for tensor, value in zip(feeds, (feed_dict or {}).values(), strict=True)]
        leaves = self._resolve_fetches(fetches)
        programs = self._variants(tuple(leaves), feeds)
        if timeout is None:
            return self._run(programs, fetches, leaves, values)
        with deadline(timeout):
            return self._run(programs, fetches, leaves, values)

    def make_callable(self, fetches: Any, feed_list: Sequence[Any] = ()) -> Callable[..., Any]:
        """Make a function of the values of `feed_list` that returns the fetches; it is faster than `run` in a loop."""
        feeds = self._resolve_feeds(feed_list)
        leaves = tuple(self._resolve_fetches(fetches))
        programs = self._variants(leaves, feeds)

        def call(*values: Any) -> Any:
            if len(values) != len(feeds):
                raise TypeError(f"This callable takes {len(feeds)} values, got {len(values)}.")
            return self._run(programs, fetches, leaves, [*map(checked_feed, feeds, values)])

        return call

    def partial_run_setup(self, fetches: Any, feeds: Sequence[Any] = ()) -> PartialRun:
        """Announce a step that will be run in several calls of `partial_run`.

        Args:
            fetches: everything that will be fetched.
            feeds: everything that will be fed.

        Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems" (2015),
        section 4.2 (partial execution).

        >>> import anabranch as ab
        >>> a, b = ab.placeholder((), "float32", "a"), ab.placeholder((), "float32", "b")
        >>> first, second = a * 2, a * 2 + b
        >>> session = ab.Session()
        >>> step = session.partial_run_setup([first, second], [a, b])
        >>> y = session.partial_run(step, first, {a: 3.0})
        >>> float(y), float(session.partial_run(step, second, {b: y + 1}))
        (6.0, 13.0)
        """
        leaves, given = tuple(self._resolve_fetches(fetches)), self._resolve_feeds(feeds)
        pieces = self._pieces.setdefault((leaves, given), {})
        return PartialRun(self.graph, leaves, given, pieces, self._schedule)

    def partial_run(self, handle: PartialRun, fetches: Any, feed_dict: dict[Any, Any] | None = None) -> Any:
        """Go on with a step, and return the values of `fetches`, which need what is fed now and what was fed before.

        Operations run at most once in a step, when something first needs them; effects on one resource keep their
        order.

        Raises:
            ValueError: something was not announced to `partial_run_setup`, was fed or fetched before in this step, or
                needs what is not fed yet.
        """
        feeds = self._resolve_feeds(feed_dict or ())
        given = {t: checked_feed(t, value) for t, value in zip(feeds, (feed_dict or {}).values(), strict=True)}
        with self._stop:
            found = handle.run(self._resolve_fetches(fetches), given)
        return _pack_fetches(fetches, [as_fetched(value) for value in found])

    def program(self, fetches: Any, feeds: Sequence[Any] = ()) -> Program | MachineProgram | GpuProgram:
        """Return the compiled program for `fetches` given `feeds`, for values of any shape that the graph allows."""
        leaves = tuple(self._resolve_fetches(fetches))
        return self._variants(leaves, self._resolve_feeds(feeds)).general()

    def program_for(self, fetches: Any, feed_dict: Mapping[Any, Any]) -> Program | MachineProgram | GpuProgram:
        """Return the compiled program that `run` takes for these values."""
        leaves, feeds = tuple(self._resolve_fetches(fetches)), self._resolve_feeds(feed_dict)
        values = [checked_feed(tensor, value) for tensor, value in zip(feeds, feed_dict.values(), strict=True)]
        return self._variants(leaves, feeds).get(values)

    def before_next_step(self, call: Callable[[], None]) -> None:
        """Have the next step of any thread begin with a call, which may raise an error in place of the step."""
        self._before_next.append(call)

    def place_state(self, resources: Sequence[Any]) -> None:
        """Have the cluster of the target choose the places of state that has none, as the first step does."""
        if self._schedule.remote is not None:
            self._schedule.remote.place(resources)

    def statistics(self) -> Statistics:
        """Return figures of the latest step: bytes saved for a backward pass, number of runs.

        For steps that span devices, `devices` has what each did (`DeviceRunStatistics`, docs/devices.md).
        """
        return self._latest.statistics if self._latest is not None else Statistics()

    def close(self) -> None:
        """End the steps that run in other threads, with CancelledError, and forget the compiled programs.

        Whatever a step waits for, or however long it loops: it ends soon. Later runs are compiled again. A connection
        to a target is given up.

        >>> import anabranch as ab
        >>> with ab.Graph().as_default() as graph:
        ...     x = ab.placeholder((), "float32")
        ...     y = ab.ops.square(x)
        >>> session = ab.Session(graph)
        >>> float(session.run(y, {x: 3.0}))
        9.0
        >>> session.close()
        """
        stop, self._stop = self._stop, Stop()
        stop.ask()
        if self._schedule.remote is not None:
            self._schedule.remote.close()
        self._programs.clear()
        self._pieces.clear()
        self._latest = None

    @staticmethod
    def reset(target: str | None = None, containers: Sequence[str] | None = None) -> None:
        """Give up the state that containers hold, in all tasks of a cluster.

        Variables there lose their values until they are assigned or restored, queues what they hold; steps that run
        end. Clients that come later begin with first values. State made in no container is in the one named "".

        Args:
            target: the address of a task, as for a session; None for the containers of this process.
            containers: their names; None for all.

        Raises:
            TaskFailedError: a task does not answer; the others have done it.

        Source: TensorFlow's ``tf.compat.v1.Session.reset``.

        >>> import anabranch as ab
        >>> with ab.container("of an example"):
        ...     w = ab.Variable([1.0, 2.0], name="w")
        >>> ab.Session.reset(containers=["of an example"])
        >>> list(ab.container("of an example"))
        []
        """
        if isinstance(containers, str):
            raise TypeError(f"Session.reset: containers={containers!r} is a string; give a list of names.")
        names: Any = containers or ()
        if not all(isinstance(name, str) for name in names):
            raise TypeError(
                f"Session.reset: containers={containers!r}: expected the names of containers, which are strings."
            )
        if target is None:
            clear_containers(containers)
            return
        remote = connect(target)
        try:
            remote.reset(containers)
        finally:
            remote.close()

    def _run(
        self, programs: Variants, fetches: Any, leaves: Sequence[Symbol | Operation], values: Sequence[Any]
    ) -> Any:
        """Run the program for `values`; the fetched leaves in the structure of `fetches`."""
        if self._before_next:
            self._make_calls()
        stop = self._stop
        began = stop.begin()
        try:
            program = self._latest = programs.get(values)
            results = program(*values)
        finally:
            stop.end(began)
        if isinstance(fetches, Symbol):
            return as_fetched(results[0])
        left = iter(results)
        found = [as_fetched(next(left)) if isinstance(leaf, Symbol) else _known(leaf) for leaf in leaves]
        return _pack_fetches(fetches, found)

    def _make_calls(self) -> None:
        """Make the calls with which the next step begins, each in one thread."""
        while self._before_next:
            try:
                call = self._before_next.pop()
            except IndexError:  # a step in another thread has taken it meanwhile
                return
            call()

    def _variants(self, given: tuple[Symbol | Operation, ...], feeds: tuple[Symbol, ...]) -> Variants:
        leaves = tuple([leaf for leaf in given if not isinstance(leaf, Value)])
        variants = self._programs.get((leaves, feeds))
        if variants is None:
            variants = self._programs[leaves, feeds] = make_variants(self.graph, leaves, feeds, self._schedule)
        return variants

    def _resolve_feeds(self, items: Iterable[Any]) -> tuple[Symbol, ...]:
        """Return the tensors that `items` name.

        Raises:
            TypeError: one of them is an operation. ValueError: a tensor is fed twice.
        """
        feeds = tuple([self._resolve(item) for item in items])
        for feed in feeds:
            if not isinstance(feed, Symbol):
                raise TypeError(f"{feed!r} can't be fed: feed one of its outputs, such as '{feed.name}:0'.")
            if feed.graph is not self.graph:
                raise ValueError(
                    f"{feed!r} is inside a loop or branch and can't be fed: feed a placeholder outside and use it "
                    "there."
                )
        if len(set(feeds)) < len(feeds):
            twice = next(feed for place, feed in enumerate(feeds) if feed in set(feeds[:place]))
            raise ValueError(f"{twice!r} is fed twice, by itself and by its name or variable.")
        return feeds

    def _resolve(self, item: Any) -> Any:
        """Return the tensor or operation of this session's graph that `item` names."""
        if isinstance(item, str):
            item = find_by_name(self.graph, item)
        item = getattr(item, "flow", item)
        if isinstance(item, Variable):
            return self.graph.read(item)
        if isinstance(item, Value):
            raise TypeError(
                f"{item!r} can't be fed: it is a value, which was computed outside of the graph. Feed a placeholder, "
                "and use that in the graph."
            )
        if not isinstance(item, (Symbol, Operation)):
            raise TypeError(
                f"{item!r} of type {type(item).__name__} can be neither fetched nor fed: give tensors, operations, "
                "variables or names. (Variable.assign outside a graph acts at once and leaves nothing to run.)"
            )
        if item.graph.root is not self.graph:
            item.graph.refuse_traced(item)
            raise ValueError(f"{item!r} is of another graph than this session's; only its own values can be used.")
        return item

    def _resolve_fetches(self, fetches: Any) -> list[Any]:
        """Return what is fetched, as tensors and operations of the graph itself; values as they are."""
        given = [getattr(leaf, "flow", leaf) for leaf in flatten(fetches)]
        leaves = [leaf if isinstance(leaf, Value) else self._resolve(leaf) for leaf in given]
        for leaf in leaves:
            if isinstance(leaf, Operation) and leaf.graph is not self.graph:
                raise ValueError(
                    f"{leaf!r} is inside a loop or branch and runs with it: fetch one of its outputs, such as "
                    f"'{leaf.name}:0', or the loop."
                )
        return [fetched_from(self.graph, leaf) if isinstance(leaf, Symbol) else leaf for leaf in leaves]

    def __enter__(self) -> Session:
        context = self.graph.as_default()
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._contexts.pop().__exit__(kind, error, traceback)
        if self._schedule.remote is not None and not self._contexts:
            self.close()


def _known(leaf: Any) -> Any:
    """Return a fetched leaf that no program computes: the array of a value, None for an operation."""
    return copied_value(as_fetched(leaf.array)) if isinstance(leaf, Value) else None


def _schedule(placement: Any, seed: Any, target: Any, lossy: Any) -> Schedule:
    """Check the schedule's arguments. Raises TypeError for a wrong type, ValueError if they do not go together."""
    pairs = _lossy_pairs(lossy)
    if pairs and target is None:
        raise ValueError(
            f"lossy={lossy!r} without a target: for the devices of this process declare it, with "
            "ab.config.set_devices(..., lossy=...)."
        )
    if placement is None and seed is None and target is None:
        return AS_IT_COMES
    if placement is not None and not isinstance(placement, Placement):
        raise TypeError(
            f"placement={placement!r} ({type(placement).__name__}): expected what ab.placement(fetches) gives, or "
            "its .moved(item, device)."
        )
    if seed is not None and not is_whole_number(seed):
        raise TypeError(f"schedule_seed={seed!r} ({type(seed).__name__}): expected an int, or None.")
    if target is not None and seed is not None:
        raise ValueError(
            f"schedule_seed={seed} and target={target!r}: tasks run what is ready as it comes. Leave out one of them."
        )
    return Schedule(placement, seed, None if target is None else connect(target), pairs)


def _lossy_pairs(lossy: Any) -> tuple[tuple[str, str], ...]:
    """Check pairs of names. Raises TypeError for anything else, ValueError for a name that can't be read."""
    given: Any = lossy
    if isinstance(lossy, str) or not isinstance(lossy, Iterable):
        raise TypeError(f"lossy={lossy!r}: expected pairs of names, such as [('/job:ps', '/job:worker')].")
    pairs = list(given)
    for pair in pairs:
        names = list(pair) if is_sequence(pair) else []
        if len(names) != 2 or not all(isinstance(name, str) for name in names):
            raise TypeError(f"lossy={lossy!r}: {pair!r} is no pair of names, such as ('/job:ps', '/job:worker').")
        for name in names:
            DeviceName.parse(name)
    return tuple([(one, other) for one, other in pairs])


_SCALARS: frozenset[Any] = frozenset(np.sctypeDict.values())  # classes of NumPy's scalars


def checked_feed(tensor: Symbol, value: Any) -> Any:
    """Return `value` as an array that fits `tensor`.

    Raises:
        ValueError: its shape does not fit, or integers are outside the tensor's dtype.
        TypeError: its dtype can't be cast safely.
    """
    spec = tensor.spec
    is_ready = value.ndim if type(value) is np.ndarray else type(value) in _SCALARS
    if is_ready and value.dtype == spec.dtype:
        array = value if value.dtype is spec.dtype else with_own_dtype(value)
    else:
        array = _cast_feed(tensor, value)
    shape = spec.shape
    if shape is not None and array.shape != shape and not shape_accepts(shape, array.shape):
        raise ValueError(
            f"A value of shape {shape_text(array.shape)} was fed to {tensor.name!r}, "
            f"which has shape {shape_text(shape)}."
        )
    return array


def _cast_feed(tensor: Symbol, value: Any) -> Any:
    if not isinstance(tensor.spec, TensorSpec):
        raise TypeError(f"{tensor!r} can't be fed.")
    if is_numpy(value) and value.dtype == object:
        value = _from_objects(value, tensor)
    try:
        array = as_array(value)
    except TypeError as error:
        raise TypeError(f"{error} It was fed to {tensor.name!r}.") from None
    if array.dtype == tensor.dtype:
        return array
    if array.size == 0:
        return as_array(array, tensor.dtype)
    wanted = name_of(tensor.dtype)
    if "T" in (array.dtype.kind, tensor.dtype.kind):
        raise TypeError(
            f"A value of dtype {name_of(array.dtype)} was fed to {tensor.name!r}, which is {wanted}. "
            "Strings and numbers are not converted into each other; feed values of the placeholder's kind."
        )
    if is_integer(array.dtype) and is_integer(tensor.dtype):
        _check_range(tensor, array)
    elif not np.can_cast(array.dtype, tensor.dtype, "same_kind"):
        raise TypeError(
            f"A value of dtype {array.dtype} was fed to {tensor.name!r}, which is {wanted}. "
            f"Convert it first, for instance with value.astype('{wanted}')."
        )
    return as_array(value, tensor.dtype)  # not by way of float32, where Python's own numbers are fed


def _from_objects(value: Any, tensor: Symbol) -> Any:
    """Return an array of Python objects as what these are; one without elements says nothing of what they would be."""
    return value.tolist() if value.size else np.empty(value.shape, tensor.dtype)


def _check_range(tensor: Symbol, array: Any) -> None:
    """Check that integers fit: they go into any integer dtype that holds their values."""
    limits = np.iinfo(tensor.dtype)
    if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
        wrong = next(value for value in (int(array.max()), int(array.min())) if not limits.min <= value <= limits.max)
        raise ValueError(f"The value {wrong} was fed to {tensor.name!r}, which is {tensor.dtype} and can't hold it.")


def _pack_fetches(fetches: Any, found: list[Any]) -> Any:
    if isinstance(fetches, (Tensor, Operation, Variable)):
        return found[0]
    return pack_as(fetches, found)


def graph_of(fetches: Any) -> Graph:
    """Return the graph of what is fetched."""
    leaves = [getattr(leaf, "flow", leaf) for leaf in flatten(fetches)]
    return next((leaf.graph for leaf in leaves if isinstance(leaf, (Symbol, Operation))), get_default_graph()).root


def placeholders_of(graph: Graph, leaves: Iterable[Any]) -> list[Symbol]:
    """Return the placeholders that `leaves` need, in program order."""
    targets = [leaf for leaf in leaves if isinstance(leaf, (Symbol, Operation))]
    return [o.outputs[0] for o in needed_operations(graph, targets) if o.type == "placeholder"]
