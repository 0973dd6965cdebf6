"""Fetching from inside loops and branches: a tensor of a body as its history, one of a branch as its value there."""

from __future__ import annotations

import contextlib
from typing import Any

from ..control_flow.call import Recorded, Recursion
from ..control_flow.frames import History, Saved, from_frame
from ..control_flow.outside import holder_of
from ..control_flow.region_op import RegionOp
from ..control_flow.while_loop import While
from ..graph.graph import Graph
from ..graph.region import Region
from ..graph.spec import FrameSpec
from ..graph.tensor import Symbol


def fetched_from(graph: Graph, tensor: Symbol) -> Symbol:
    """Return the tensor of `graph` that holds the value that `tensor`, of a region at any depth, had in a run.

    In a loop body that is its history, in nested loops a history of histories, in a branch its value (None where
    another branch was taken), in a recursive function its value in the first call. The condition of a loop is computed
    once more than its body.

    Raises:
        ValueError: it is in a trace of a body that is not part of the graph, or is the record of a loop or branch.
    """
    if isinstance(tensor.spec, FrameSpec):
        raise ValueError(
            f"{tensor!r} can't be fetched: it is the record of what ran inside {tensor.operation.name!r}, and no "
            "value. Fetch the results, or tensors inside by themselves."
        )
    while isinstance(tensor.graph, Region):
        tensor = _one_level_out(tensor, tensor.graph)
    if tensor.graph is not graph:
        raise ValueError(f"{tensor!r} is of another graph than this session's; only its own values can be fetched.")
    return tensor


def _one_level_out(tensor: Symbol, region: Region) -> Symbol:
    holder = holder_of(region)
    if holder is None:
        raise ValueError(
            f"{tensor!r} is in a trace that is no part of the graph. A body is traced again when the shapes that it "
            "carries turn out to vary, and by `scan`: keep the tensor of the last trace, or fetch it by name."
        )
    frame = holder.outputs[-1]
    if isinstance(holder.op, Recursion):
        return from_frame(frame, Recorded(tensor), tensor)
    if not isinstance(holder.op, While):
        return from_frame(frame, Saved(tensor), tensor)
    return from_frame(frame, History(tensor), tensor)


def find_by_name(graph: Graph, name: str) -> Any:
    """Find the tensor (``operation:output``, or the name of an `Input`) or operation `name`.

    Inside a loop or branch the name is ``loop/region/name``.

    Raises:
        KeyError: there is none.
    """
    found = _find_inside(graph, name)
    if found is not None:
        return found
    if ":" in name:
        return graph.get_tensor_by_name(name)
    operation = graph.get_operation_by_name(name)
    named = [output for output in operation.outputs if output.name == name]
    return named[0] if named else operation


def _find_inside(graph: Graph, name: str) -> Any:
    """Return what `name` names, if it leads into a loop or branch of `graph`."""
    for operation in graph.operations:
        if not isinstance(operation.op, RegionOp) or not name.startswith(operation.name + "/"):
            continue
        rest = name[len(operation.name) + 1 :]
        for region in operation.op.regions:
            if rest.startswith(region.name + "/"):
                with contextlib.suppress(KeyError):
                    return find_by_name(region, rest[len(region.name) + 1 :])
    return None
