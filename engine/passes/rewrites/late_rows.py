"""Take rows of a table where they are used first: then they are still in the cache.

The table must be kept until then. So this is done where rows are taken from it several times, and their number is known
at run time only: rows of a known number are taken in one pass. It is not a pattern but an analysis: what counts is who
uses the rows first, and what is written before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...graph.graph import Graph, Operation
from ...graph.tensor import Symbol
from ...ops.arrays.gathering import Take
from ...ops.arrays.segments import GatherSegments
from ..framework.order import reorder


def take_rows_late(graph: Graph, operations: Sequence[Operation]) -> bool:
    """Move such operations among `operations`, which are needed of `graph`, in front of the first use of their rows.

    Returns whether any was moved.
    """
    tables = Counter(o.inputs[0] for o in operations if isinstance(o.op, (GatherSegments, Take)))
    first_uses: dict[Symbol, int] = {}
    is_changed = False
    written = operations[-1].index + 1 if operations else 0
    for operation in reversed(operations):
        for tensor in operation.inputs:
            first_uses[tensor] = min(first_uses.get(tensor, operation.index), operation.index)
        written = operation.index if operation.writes else written
        if not isinstance(operation.op, (GatherSegments, Take)) or tables[operation.inputs[0]] < 2:
            continue
        first = first_uses.get(operation.outputs[0], 0)
        if operation.index + 1 < first < written and None in (operation.outputs[0].shape or ()):
            operation.index, is_changed = first, True
    if is_changed:
        reorder(graph, {})
    return is_changed
