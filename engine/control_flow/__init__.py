"""Structured control flow: one operation each, holding regions; differentiable to any order."""

from .call import Call, Recorded, Recursion
from .cond import Branch, case, cond, switch
from .frames import History, Saved, TripCount
from .grouping import NoOp, group, no_op
from .region_op import RegionOp
from .tensor_array import TensorArray
from .tensor_store import TensorStore
from .while_loop import While, while_loop

__all__ = [
    "Branch",
    "Call",
    "History",
    "NoOp",
    "Recorded",
    "Recursion",
    "RegionOp",
    "Saved",
    "TensorArray",
    "TensorStore",
    "TripCount",
    "While",
    "case",
    "cond",
    "group",
    "no_op",
    "switch",
    "while_loop",
]
