"""Graphs saved and loaded again: as one file, or as values for JSON. No pickle; nothing is evaluated."""

from .files import graph_from_dict, graph_to_dict, load_graph, save_graph
from .reading import made_resource, rebuild
from .values import SavedGraphError
from .writing import describe_for_tasks

__all__ = [
    "SavedGraphError",
    "describe_for_tasks",
    "graph_from_dict",
    "graph_to_dict",
    "load_graph",
    "made_resource",
    "rebuild",
    "save_graph",
]
