"""An analysis of reads of histories that are the last use, so that a backward loop gives memory back as it goes.

A backward loop counts down, and mostly reads each iteration's value once. If nothing else uses the history, its memory
is that of the iterations that are still to come, as with a loop that was unrolled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..common.identity import is_among, place_among
from ..control_flow.frames import History
from ..control_flow.while_loop import While
from ..graph.graph import Operation
from ..graph.region import Region
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..ops.containers.tensor_arrays import ArrayRead, ArrayStack
from ..ops.math.elementwise import Subtract
from ..passes.memory.storage import inner_blocks


def last_reads(operations: Sequence[Operation], fetches: Iterable[Symbol]) -> set[Operation]:
    """Return the reads of elements, one or all, that nothing reads again.

    Args:
        operations: of a step, in order.
        fetches: what outlives it.
    """
    found: set[Operation] = set()
    _find(operations, set(fetches), found)
    return found


def _find(block: Sequence[Operation], outliving: set[Symbol], found: set[Operation]) -> None:
    histories = [operation for operation in block if isinstance(operation.op, History)]
    uses = Counter([tensor for operation in block for tensor in operation.inputs] if histories else ())
    outliving = outliving | _shared(histories)
    for operation in block:
        if isinstance(operation.op, ArrayStack) and operation.outputs[0].dtype.name in ("float32", "float64"):
            history = operation.inputs[0]
            if isinstance(history.operation.op, History) and uses[history] == 1 and history not in outliving:
                found.add(operation)
        inner = list(inner_blocks(operation))
        if isinstance(operation.op, While):
            inside, kept = inner[1]
            body = operation.op.body
            own = {
                parameter
                for outer, parameter in body.captures
                if isinstance(outer.operation.op, History) and uses.get(outer) == 1 and outer not in outliving
            }
            found |= _only_reads(body, own - kept, inside)
        for operations, kept in inner:
            _find(operations, kept, found)


def _shared(operations: Iterable[Operation]) -> set[Symbol]:
    """Return histories that record the same tensor as another one: these are one list."""
    histories: dict[tuple[Symbol, Symbol], list[Symbol]] = {}
    for operation in operations:
        if isinstance(operation.op, History):
            histories.setdefault((operation.inputs[0], operation.op.inner), []).append(operation.outputs[0])
    return {tensor for tensors in histories.values() if len(tensors) > 1 for tensor in tensors}


def _only_reads(body: Region, arrays: set[Symbol], inside: Sequence[Operation]) -> set[Operation]:
    """Return the only uses of some of `arrays` in a body, where they read another element in each iteration."""
    users: dict[Symbol, set[Operation]] = {}
    for operation in inside if arrays else ():
        for array in arrays.intersection(operation.inputs):
            users.setdefault(array, set()).add(operation)
    alone = {operation for using in users.values() if len(using) == 1 for operation in using}
    return {each for each in alone if isinstance(each.op, ArrayRead) and _counts_down(body, each.inputs[1])}


def _counts_down(body: Region, index: Symbol) -> bool:
    """Test whether `index` is a loop variable that is one less in each iteration."""
    if not is_among(index, body.parameters):
        return False
    update = body.results[place_among(index, body.parameters)].operation
    if not isinstance(update.op, Subtract) or update.inputs[0] is not index:
        return False
    step = update.inputs[1].operation.op
    return isinstance(step, Constant) and index.dtype.kind == "i" and int(step.value) == 1
