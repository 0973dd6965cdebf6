"""The part of a step on a GPU that its host runs: keys of random numbers, and checks of what is fed.

It runs first, so that the GPU is never waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...control_flow.frames import History, Saved, TripCount
from ...control_flow.scheduling import Scheduled
from ...control_flow.while_loop import While
from ...graph.graph import Operation, Parameter, Placeholder
from ...graph.state.variable import Variable
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ...ops.collectives import Collective
from ...ops.internal.checked_classes import CheckedClasses
from ...ops.random.keys import KeyOp
from ...passes.framework.prepare import Step
from ...passes.memory.memory_budget import memory_budget
from ...place.devices import Device, host_of
from ...place.kernels import all_operations, is_split, runs_on_host, why_not
from ...queues.attempts import WaitingOp

_EVERYWHERE = (Constant, Parameter, Placeholder, History, Saved, TripCount)


def gpu_of_step(step: Step, devices: Sequence[Device]) -> Device | None:
    """Return the GPU on which a step stays; None if there is none.

    Its host may compute shapes and counters of loops, draw keys and check what is fed. Loops whose histories may move
    to the host are left to the machine.
    """
    if memory_budget() is not None:
        return None
    operations = list(all_operations(list(step.operations)))
    if any(isinstance(operation.op, While) and operation.op.swap_memory for operation in operations):
        return None
    running = [each for each in operations if not isinstance(each.op, _EVERYWHERE) and not is_split(each.op)]
    gpus = {operation.device for operation in running if operation.device.startswith("gpu")}
    device = next((each for each in devices if each.name in gpus), None)
    if len(gpus) != 1 or device is None:
        return None
    host = host_of(device, devices).name
    apart = set(host_part(step))
    for operation in running:
        is_there = operation.device == device.name
        is_beside = operation.device == host and (operation in apart or runs_on_host(operation) or _draws(operation))
        if not (is_there or is_beside) or isinstance(operation.op, (Scheduled, WaitingOp)):
            return None
        if _draws(operation) or _runs_there_with_others(operation):
            continue
        if any(not _is_variable_here(effect.resource) for effect in operation.effects):
            return None
    return device


def host_part(step: Step) -> list[Operation]:
    """Return what can be computed before all else, on the host: keys, checks of what is fed, and what these take.

    A key stays where it is if an operation before it that stays touches its generator, such as a loop that draws.
    """
    fed = set(step.feeds)
    found: dict[Operation, None] = {}
    ready: set[Symbol] = set(fed)
    staying: set[object] = set()  # what operations that stay have effects on
    for operation in step.operations:
        touched = {effect.resource for effect in operation.effects}
        is_ready = ready.issuperset(operation.inputs) and not operation.op.regions and staying.isdisjoint(touched)
        if is_ready and (not touched or _draws(operation)):
            ready.update(operation.outputs)
            if _draws(operation) or isinstance(operation.op, CheckedClasses):
                found.update(dict.fromkeys(_taken(operation, fed)))
        else:
            staying |= touched
    return [operation for operation in step.operations if operation in found]


def _taken(operation: Operation, fed: set[Symbol]) -> list[Operation]:
    """Return an operation and all that it is computed of, short of what is fed."""
    found: list[Operation] = []
    waiting = [operation]
    while waiting:
        found.append(waiting.pop())
        waiting += [tensor.operation for tensor in found[-1].inputs if tensor not in fed]
    return found


def _draws(operation: Operation) -> bool:
    return isinstance(operation.op, KeyOp)


def _runs_there_with_others(operation: Operation) -> bool:
    """Test for a collective that runs on a GPU. One of small integers, which would be on its host, does, too."""
    return isinstance(operation.op, Collective) and why_not("gpu", operation) is None


def _is_variable_here(resource: object) -> bool:
    return isinstance(resource, Variable) and resource.home is None
