"""Ops and state whose modules are imported when a graph that has them is read: few programs need them."""

from __future__ import annotations

import importlib

from ..graph.op import Op, imported_ops, registered_ops
from ..graph.state.resource import NamedResource

_MODULES = (
    "..autodiff.remat",
    "..checkpoint.ops",
    "..control_flow.scan",
    "..control_flow.scheduling",
    "..ops.begun_collectives",
    "..ops.collectives",
    "..ops.replicas",
    "..ops.text.hashing",
    "..ops.neural.int4",
    "..ops.neural.quantized",
    "..queues.bucketing",
    "..readers",
    "..summaries.ops",
)


def late_op(name: str) -> type[Op] | None:
    """Return the class of an op of this package that was not imported so far; None if there is none."""
    found = registered_ops().get(name)
    if found is not None:
        return found
    for module in _MODULES:
        importlib.import_module(module, __package__)
    return imported_ops().get(name)


def late_resource(kind: str) -> type[NamedResource] | None:
    """Return the class of a reader, or of what makes names for readers; None if there is none of that kind."""
    return importlib.import_module("..readers", __package__).KINDS.get(kind)
