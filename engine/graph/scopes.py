"""Scopes of the graph that is being built: devices, neighbours, and what runs before."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from .context import devices_at_once, graph_context, in_explicit_graph
from .device import DeviceFunction, DeviceName, State
from .graph import Graph, Operation, get_default_graph
from .state.variable import Variable
from .tensor import Symbol
from .value import Value


def device(name: str | DeviceFunction | None) -> AbstractContextManager[None]:
    """Ask for a device for operations and variables that are made inside: ``with ab.device("gpu:0"):``.

    Args:
        name: a device's name, whole ("/job:worker/task:1/device:GPU:0") or in part: "gpu:1", "gpu" (any of them),
            "/task:3" (any device of that task). Or a function that is called with each operation, and each variable,
            that is made inside and returns such a name, or None for no request. None lifts what outer scopes ask for.

    In nested scopes inner parts win, and parts that they leave open are taken over from outer ones. An operation that
    touches a variable runs where the variable is, whatever scopes are around. Outside of graphs operations compute on
    the CPU at once, where a declared device is asked for; only variables and called functions keep the request.

    Raises:
        ValueError: the name can't be read.
        PlacementError: an operation, a function, or a step of a model is to run inside, outside of graphs, and no
            declared device of this process has that name.
        GpuUnavailableError: the same, where the GPU of that name is declared but can't be used.
        TypeError: it is neither a name, nor a function, nor None.

    >>> import anabranch as ab
    >>> with ab.device("/job:worker/task:1"), ab.device("gpu:0"):
    ...     x = ab.placeholder((), "float32")
    >>> x.device
    '/job:worker/task:1/device:GPU:0'
    >>> with ab.device(lambda made: "cpu:0" if isinstance(made, ab.Variable) else "gpu:0"):
    ...     w = ab.Variable(2.0)
    ...     y = x + 1.0
    >>> w.device, y.device
    ('/device:CPU:0', '/device:GPU:0')
    """
    if isinstance(name, str):
        DeviceName.parse(name)
    elif name is not None and not callable(name):
        raise TypeError(f'device(): expected a name such as "gpu:0", a function or None; got {name!r}.')
    graph = get_default_graph()
    return graph.device(name) if in_explicit_graph() else _device_at_once(graph, name)


@contextmanager
def _device_at_once(graph: Graph, name: str | DeviceFunction | None) -> Generator[None]:
    """Set the device as `Graph.device` does, for what runs at once, too."""
    before = graph_context.device
    with graph.device(name):
        with devices_at_once.lock:
            devices_at_once.open += 1
        graph_context.device = graph.device_scope.plain
        try:
            yield
        finally:
            graph_context.device = before
            with devices_at_once.lock:
                devices_at_once.open -= 1


def colocate_with(item: Any) -> AbstractContextManager[None]:
    """Place operations built inside on the device of an operation, tensor or variable: ``with ab.colocate_with(x):``.

    Args:
        item: what they are to be with. That holds wherever it is placed, whether a device was asked for or not.

    Scopes around are lifted; a device that is asked for inside must be the same (or preparing a step is an error).
    Counters and shapes stay in a host's memory, which is near all of its devices.

    Raises:
        TypeError: it is not one of these. ValueError: it is an operation of another graph.

    Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems" (2015), section 4.3.

    >>> import anabranch as ab
    >>> table = ab.Variable([[1.0], [2.0]])
    >>> with ab.colocate_with(table):
    ...     rows = ab.ops.take(table, [1], axis=0)
    """
    graph = get_default_graph()
    if isinstance(item, State):
        return graph.near_state((item,), item.device)
    if isinstance(item, Value):
        return graph.in_scope(graph.device_scope)  # a value is wherever it is needed
    operation = item.operation if isinstance(item, Symbol) else item
    if not isinstance(operation, Operation):
        raise TypeError(f"colocate_with takes an operation, a tensor or a variable, not {type(item).__name__}.")
    if operation.graph.root is not graph.root:
        raise ValueError(f"colocate_with: {operation!r} belongs to another graph than the one that is built now.")
    return graph.near(operation, binding=True)


def control_dependencies(control_inputs: Sequence[Any] | None) -> Any:
    """Run operations built inside after those named: ``with ab.control_dependencies([op]):``.

    Args:
        control_inputs: operations or tensors; None lifts the dependencies of outer blocks. Where no graph is being
            built, effects have run when they are given here: assertions, `print` and `no_op` are None, and writes the
            variable.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default():
    ...     count = ab.Variable(1.0)
    ...     with ab.control_dependencies([count.assign_add(1.0)]):
    ...         after = count * 10.0
    ...     ab.Session().run(after)
    np.float32(20.0)
    """
    if control_inputs is not None and not in_explicit_graph():
        control_inputs = [item for item in control_inputs if item is not None and not isinstance(item, Variable)]
    return get_default_graph().control_dependencies(control_inputs)
