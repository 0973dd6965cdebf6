"""`Node`: one call of a layer on symbolic tensors, of which functional models are made."""

from __future__ import annotations

import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...engine.graph import Graph, Symbol, Tensor, flatten

if TYPE_CHECKING:
    from .layer import Layer

# Graphs in which an `Input` was made. Calls of layers in other graphs (a training step, a traced function) leave no
# nodes, or every trace would be kept alive by its layers.
_construction_graphs: weakref.WeakSet[Graph] = weakref.WeakSet()
# Other graphs in which layers are called only to see shapes and dtypes.
_graphs_for_shapes: weakref.WeakSet[Graph] = weakref.WeakSet()


Arguments: TypeAlias = tuple[tuple[object, ...], dict[str, object]]
"""The arguments of a call: those by position, and those by name."""


class History(NamedTuple):
    """The origin of a tensor: output `tensor_index` of the layer's call number `node_index`."""

    layer: Layer
    node_index: int
    tensor_index: int


class Node:
    """A recorded call. Making one appends it to the layer's nodes and notes the history of its outputs.

    Args:
        layer: the layer that was called.
        arguments: ``(args, kwargs)`` of the call, with the tensors in them.
        outputs: what the call returned; every tensor gets ``annotations["history"]``.
    """

    def __init__(self, layer: Layer, arguments: Arguments, outputs: object) -> None:
        self.layer = layer
        self.arguments = arguments
        self.outputs: Any = outputs
        self.index = len(layer.inbound_nodes)
        layer.inbound_nodes.append(self)
        for position, tensor in enumerate(self.output_tensors):
            tensor.annotations["history"] = History(layer, self.index, position)
            _construction_graphs.add(tensor.graph)

    @property
    def input_tensors(self) -> list[Symbol]:
        """The tensors among the arguments, in order."""
        return [leaf for leaf in flatten(self.arguments) if isinstance(leaf, Symbol)]

    @property
    def output_tensors(self) -> list[Symbol]:
        return [leaf for leaf in flatten(self.outputs) if isinstance(leaf, Symbol)]

    @property
    def is_input(self) -> bool:
        """Test whether nothing comes in: the node of an `Input`."""
        return not self.input_tensors

    @property
    def parents(self) -> list[Node]:
        """The nodes whose outputs come in, each once; tensors made by raw ops have none."""
        histories = [tensor.annotations.get("history") for tensor in self.input_tensors]
        return list(dict.fromkeys(h.layer.inbound_nodes[h.node_index] for h in histories if h is not None))

    def __repr__(self) -> str:
        return f"<Node {self.index} of {self.layer.name}>"


def history_of(tensor: Tensor) -> History | None:
    """Return the layer call that made `tensor`; None if it was not a layer, or not in functional construction."""
    return tensor.annotations.get("history")


def is_construction_graph(graph: Graph) -> bool:
    """Test whether layer calls in `graph` are recorded: an `Input` was made in it."""
    return graph in _construction_graphs


@contextmanager
def graph_for_shapes() -> Generator[Graph]:
    """Build a graph of its own inside of the block, in which layers are called to see shapes and dtypes."""
    graph = Graph()
    _graphs_for_shapes.add(graph)
    with graph.as_default():
        yield graph


def is_for_shapes(graph: Graph) -> bool:
    """Test whether layers are called in `graph` to see shapes and dtypes: models call them again to compute."""
    return graph in _construction_graphs or graph in _graphs_for_shapes
