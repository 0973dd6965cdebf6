"""Graphs saved and loaded again: as one file, or as values for JSON. No pickle; nothing is evaluated."""

from .files import graph_from_dict, graph_to_dict, load_graph, save_graph
from .values import SavedGraphError

__all__ = ["SavedGraphError", "graph_from_dict", "graph_to_dict", "load_graph", "save_graph"]
