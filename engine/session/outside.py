"""What a tensor is worth where no graph is being built: `float(ops.mean(x))` at the top level, as in Keras.

A tensor is computed when somebody looks at it, and what was found stays: looked at again, and in whatever is computed
from it, it has that value. The same holds for random numbers: they are drawn once, by however many tensors they are
looked at. Variables that nobody has looked at are read at the first look.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..graph.graph import Operation, Placeholder, in_explicit_graph
from ..graph.spec import TensorSpec
from ..graph.tensor import Tensor
from ..ops.base import Constant
from ..passes.prune import needed_operations
from ..place.devices import has_one_device
from ..runtime.interpreter import Interpreter
from .session import Session

_MOST_PASSED = 1 << 25  # bytes


class _Passed(WeakKeyDictionary[Tensor, Any]):
    """Values on the way to those that were looked at, as long as there is room; see `_lasting`."""

    size = 0  # since they were dropped last

    def keep(self, values: Mapping[Tensor, Any]) -> None:
        self.size += sum(np.asarray(value).nbytes for value in values.values())
        self.update(values)
        if self.size > _MOST_PASSED:
            self.clear()
            self.size = 0


_found: WeakKeyDictionary[Tensor, Any] = WeakKeyDictionary()
_passed = _Passed()
_looking = RLock()  # what is drawn or assigned by what several threads look at happens once


def value_outside(tensor: Tensor, refusal: str) -> Any:
    """The value of a tensor, where no graph is being built around this point of the program.

    Args:
        tensor: of a graph that is no region, and which needs no placeholder.
        refusal: what to say where it has no value; the reason is added if there is more to tell.

    Raises:
        TypeError: a graph is being built, or the value depends on what has to be fed.

    >>> import anabranch as ab
    >>> float(ab.ops.mean([1.0, 2.0, 6.0]))
    3.0
    """
    if in_explicit_graph() or tensor.graph.parent is not None or not isinstance(tensor.spec, TensorSpec):
        raise TypeError(refusal)
    with _looking:
        if tensor not in _found and tensor in _passed:
            _found[tensor] = _passed[tensor]
        if tensor not in _found:
            _compute(tensor, refusal)
    return _found[tensor]


def _compute(tensor: Tensor, refusal: str) -> None:
    """Find the value, and those of the random keys and updates that it takes along."""
    graph, known = tensor.graph, _known_behind(tensor)
    needed = needed_operations(graph, [tensor], known)
    _check_is_fed(needed, refusal)
    drawn = [output for operation in needed if operation.writes for output in operation.outputs]
    found = list(dict.fromkeys([*[output for output in drawn if isinstance(output.spec, TensorSpec)], tensor]))
    if not has_one_device() or any(operation.op.regions for operation in needed):
        _found.update(zip(found, Session(graph).run(found, known), strict=True))
        return
    # Few operations one by one, which is over before a program is compiled.
    passed = _lasting(needed, known)
    values = Interpreter().run(graph, [*found, *passed], known)
    _found.update(zip(found, values, strict=False))
    _passed.keep(dict(zip(passed, values[len(found) :], strict=True)))


def _check_is_fed(needed: Sequence[Operation], refusal: str) -> None:
    for operation in needed:
        if isinstance(operation.op, Placeholder):
            raise TypeError(
                f"{refusal} It depends on the placeholder {operation.name!r}, which has a value only when it is fed."
            )


def _known_behind(tensor: Tensor) -> dict[Tensor, Any]:
    """The values found before at which the way back from a tensor ends."""
    known: dict[Tensor, Any] = {}
    seen: set[Operation] = set()
    pending = [tensor.operation]
    while pending:
        operation = pending.pop()
        if operation in seen:
            continue
        seen.add(operation)
        before = [*operation.inputs, *[output for control in operation.control_inputs for output in control.outputs]]
        for source in before:
            values = _found if source in _found else _passed
            if source in values:
                known[source] = values[source]
            else:
                pending.append(source.operation)
    return known


def _lasting(needed: Sequence[Operation], known: Collection[Tensor]) -> list[Tensor]:
    """What depends on constants and known values alone: it is the same whenever it is computed.

    So it may be kept, as long as there is room: a long computation that is looked at step by step is not repeated.
    """
    lasting, found = set(known), list[Tensor]()
    for operation in needed:
        if operation.effects or operation.control_inputs or not lasting.issuperset(operation.inputs):
            continue
        lasting.update(operation.outputs)
        found += [] if isinstance(operation.op, Constant) else operation.outputs
    return [tensor for tensor in found if isinstance(tensor.spec, TensorSpec) and tensor not in known]
