"""Rules on which operations a kind of device can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..control_flow.cond import Branch
from ..control_flow.frames import History, Saved
from ..control_flow.scheduling import Scheduled
from ..control_flow.while_loop import While
from ..graph.device import DeviceName, State
from ..graph.graph import Operation, Parameter
from ..graph.op import Op
from ..graph.spec import FrameSpec, Spec, StoreSpec, TensorSpec
from ..graph.tensor import Symbol
from ..ops.collectives import Collective
from ..passes.framework.prune import frame_users, needed_in_region

_MOST_ON_HOST = 8  # elements of an integer value that is kept in the host's memory: counters, shapes, keys


def why_not(kind: str, operation: Operation) -> str | None:
    """Return the reason why a kind of device can't run an operation; None if it can.

    A CPU runs everything. Other devices have no strings and run nothing that prints, checks or calls Python, or touches
    another resource than a variable. A GPU runs what is written for any array module (`Op.run`), but not what computes
    with NumPy alone (`Op.host_only`); collectives where `Collective.why_not_on_gpus` has no objection. Of a loop or
    branch only what is inside counts.

    Args:
        kind: "cpu", "gpu" or "sim".
        operation: what is to run.
    """
    op = operation.op
    if kind != "cpu" and isinstance(op, Scheduled):
        return "it is handed out to devices by a host"
    if kind == "cpu" or op.regions or isinstance(op, Parameter):
        return None
    if kind == "gpu" and isinstance(op, Collective) and not op.host_only:
        return op.why_not_on_gpus()
    if operation.type == "numpy_function" or any(_on_host(each.resource) for each in operation.effects):
        return "it calls Python, prints, checks, or holds values in the host's memory, which only a CPU does"
    if any(_holds_strings(tensor) for tensor in (*operation.inputs, *operation.outputs)):
        return "only a CPU has strings"
    if kind == "gpu" and op.host_only:
        return f"{operation.type!r} has no kernel for GPUs"
    return None


def where_possible(device: str) -> Callable[[Any], str | None]:
    """Return a function for `ab.device` that asks for `device` for all that can run on a device of its kind.

    For the operations of a function that is called on a device. Strings, checks and calls of Python stay on a CPU.
    """
    kind = (DeviceName.parse(device).kind or "cpu").lower()

    def choose(made: Any) -> str | None:
        return None if isinstance(made, Operation) and why_not(kind, made) is not None else device

    return choose


def _on_host(resource: Any) -> bool:
    return not isinstance(resource, State) or resource.on_host


def _holds_strings(tensor: Symbol) -> bool:
    keys = tensor.spec.key.dtype.kind if isinstance(tensor.spec, StoreSpec) else ""
    return "T" in (tensor.dtype.kind, keys)


def is_host_value(tensor: Symbol) -> bool:
    """Test whether a value is kept in the host's memory, whatever device uses it: a counter, a predicate, a shape."""
    if tensor.operation.op.kept_on_host:
        return True
    return is_small_integer(tensor.spec) and runs_on_host(tensor.operation)


def is_small_integer(spec: Spec) -> bool:
    """Return integers or truth values of rank 0, or a vector of a few."""
    if not isinstance(spec, TensorSpec) or spec.dtype.kind not in "iub" or spec.shape is None:
        return False
    return spec.shape == () or (len(spec.shape) == 1 and spec.shape[0] is not None and spec.shape[0] <= _MOST_ON_HOST)


def runs_on_host(operation: Operation) -> bool:
    """Test whether an operation runs on the host of its device: it makes small integers of small integers.

    So the counters and conditions of loops run ahead of what devices compute, and shapes are known without asking them.
    """
    if operation.op.regions or not operation.outputs:
        return False
    taken = [tensor.spec for tensor in operation.inputs if not isinstance(tensor.spec, FrameSpec)]
    return all(is_small_integer(spec) for spec in (*taken, *[tensor.spec for tensor in operation.outputs]))


def is_split(op: Op) -> bool:
    """Test whether a loop or branch may be spread over devices. (A recursive function may not.)"""
    return isinstance(op, (While, Branch)) and not isinstance(op, Scheduled)


def inner_operations(operation: Operation, users: dict[Symbol, list[Operation]]) -> list[list[Operation]]:
    """Return the operations inside a loop, branch or recursion, region by region.

    Args:
        operation: the loop, branch or recursion; others have nothing inside.
        users: of the frames among the operations around it (`frame_users`).
    """
    if not operation.op.regions:
        return []
    takers = [user.op for user in users.get(operation.outputs[-1], ())]
    inner = [taker.inner for taker in takers if isinstance(taker, (History, Saved))]
    return [
        needed_in_region(region, [tensor for tensor in inner if tensor.graph is region])
        for region in operation.op.regions
    ]


def all_operations(operations: list[Operation]) -> Iterator[Operation]:
    """Yield the operations of a step and those inside its loops and branches, each before what it holds."""
    users = frame_users(operations)
    for operation in operations:
        yield operation
        for inner in inner_operations(operation, users):
            yield from all_operations(inner)
