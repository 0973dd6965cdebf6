"""Functional models as configs: layers, and for each of their calls the tensors that came in."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from ..engine.graph import Symbol, Tensor, Variable, flatten, graph_for
from ..engine.graph.dtypes import name_of
from ..engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ..layers.calling import map_leaves
from ..layers.layer import Layer
from ..layers.node import Node
from .layer_graph import LayerGraph, history
from .raw_ops import RawOp, SavedOp, is_serialized_op

Key = tuple[str, int]  # a layer's name and the number of its call


# --- writing --------------------------------------------------------------------------------------------------------


def graph_config(graph: LayerGraph) -> dict[str, Any]:
    """The layers, their calls, inputs and outputs, as Keras writes them.

    Raises:
        TypeError, ValueError: a layer or an argument can't be written.
    """
    numbers = _node_numbers(graph)
    needed = _needed_ops(graph)
    kept = [operation for operation in graph.operations if not isinstance(operation, RawOp) or operation in needed]
    layers = [_layer_config(operation, graph, numbers) for operation in kept]
    return {
        "layers": layers,
        "input_layers": _structure_config(graph.inputs_structure, numbers),
        "output_layers": _structure_config(graph.outputs_structure, numbers),
    }


def _needed_ops(graph: LayerGraph) -> set[RawOp]:
    """The ops of a model that others take something from, as they are written; shapes at run time often are not."""
    found: set[RawOp] = set()
    nodes = [history(tensor).layer.inbound_nodes[history(tensor).node_index] for tensor in graph.outputs]
    nodes += [node for node in graph.nodes if not isinstance(node.layer, RawOp)]
    seen: set[Node] = set()
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node.layer, RawOp):
            found.add(node.layer)
            written = flatten(node.layer.written_arguments(node.arguments[0]))
            sources = [argument for argument in written if isinstance(argument, Symbol)]
        else:
            sources = node.input_tensors
        nodes += [history(source).layer.inbound_nodes[history(source).node_index] for source in sources]
    return found


def _node_numbers(graph: LayerGraph) -> dict[Node, int]:
    """The number of each call within this model; a layer may have been called in other models, too."""
    inside = set(graph.nodes) | {history(t).layer.inbound_nodes[history(t).node_index] for t in graph.inputs}
    numbers: dict[Node, int] = {}
    for operation in graph.operations:
        calls = [node for node in operation.inbound_nodes if node in inside]
        numbers.update({node: number for number, node in enumerate(calls)})
    return numbers


def _layer_config(operation: Layer | RawOp, graph: LayerGraph, numbers: dict[Node, int]) -> dict[str, Any]:
    config = operation.serialize() if isinstance(operation, RawOp) else serialize_keras_object(operation)
    calls = [_node_config(node, numbers) for node in operation.inbound_nodes if node in numbers and node.input_tensors]
    return {**config, "name": operation.name, "inbound_nodes": calls}


def _node_config(node: Node, numbers: dict[Node, int]) -> dict[str, Any]:
    def write(leaf: Any) -> Any:
        if isinstance(leaf, Symbol):
            return _tensor_config(leaf, numbers)
        if isinstance(leaf, Variable):
            raise ValueError(
                f"Variable {leaf.name!r} is used directly in a functional model, where it can't be saved. Make it a "
                "weight of a Layer of your own, and use it in the layer's call()."
            )
        return serialize_keras_object(leaf)

    args, kwargs = node.arguments
    if isinstance(node.layer, RawOp):
        args = node.layer.written_arguments(args)
    return {"args": [map_leaves(write, arg) for arg in args], "kwargs": map_leaves(write, kwargs)}


def _tensor_config(tensor: Tensor, numbers: dict[Node, int]) -> dict[str, Any]:
    shape = None if tensor.shape is None else list(tensor.shape)
    config = {"shape": shape, "dtype": name_of(tensor.dtype), "keras_history": _address(tensor, numbers)}
    return {"class_name": "__keras_tensor__", "config": config}


def _address(tensor: Tensor, numbers: dict[Node, int]) -> list[Any]:
    found = history(tensor)
    return [found.layer.name, numbers[found.layer.inbound_nodes[found.node_index]], found.tensor_index]


def _structure_config(structure: Any, numbers: dict[Node, int]) -> Any:
    if isinstance(structure, Tensor):
        return _address(structure, numbers)
    if isinstance(structure, dict):
        return {name: _structure_config(value, numbers) for name, value in structure.items()}
    return [_structure_config(value, numbers) for value in structure]


# --- reading --------------------------------------------------------------------------------------------------------


def model_from_config(cls: Any, config: dict[str, Any]) -> Any:
    """A functional model of class `cls` from the config that `graph_config` (or Keras) wrote.

    Raises:
        ValueError: the config is not consistent.
    """
    rebuild = _Rebuild(config["layers"])
    inputs = rebuild.structure(config["input_layers"])
    outputs = rebuild.structure(config["output_layers"])
    options = {name: config[name] for name in ("name", "trainable") if config.get(name) is not None}
    return cls(inputs=inputs, outputs=outputs, **options)


class _Rebuild:
    """Makes the layers of a config, and calls them on one another."""

    def __init__(self, layers: Iterable[dict[str, Any]]) -> None:
        self.outputs: dict[Key, list[Tensor]] = {}
        self.is_old = False  # Keras up to 2.15: a single input or output stands in a list
        pending: list[tuple[Key, Any, Any]] = []
        for entry in layers:
            name = entry.get("name") or entry["config"]["name"]
            layer = SavedOp(entry) if is_serialized_op(entry) else deserialize_keras_object(_without_calls(entry))
            calls = entry.get("inbound_nodes") or []
            if not calls and not isinstance(layer, SavedOp):
                self.outputs[name, 0] = [layer.output]  # an Input
            self.is_old = self.is_old or any(not isinstance(call, dict) for call in calls)
            pending += [((name, number), layer, call) for number, call in enumerate(calls)]
        self._graph = graph_for([tensor for made in self.outputs.values() for tensor in made])
        self._call_all(pending)

    def _call_all(self, pending: list[tuple[Key, Any, Any]]) -> None:
        """Run the calls as soon as what they need is there; a file may hold them in any order."""
        while pending:
            ready = [item for item in pending if self._is_ready(item)]
            if not ready:
                names = sorted({key[0] for key, _, _ in pending})
                raise ValueError(f"The layers {names} of the saved model wait for inputs that nothing in it produces.")
            for item in ready:
                if self._is_ready(item):
                    self._call(*item)
                    pending.remove(item)

    def _is_ready(self, item: tuple[Key, Any, Any]) -> bool:
        key, _, call = item
        if key[1] > 0 and (key[0], key[1] - 1) not in self.outputs:
            return False  # calls of a layer are numbered in order
        return all((address[0], address[1]) in self.outputs for address in _addresses(call))

    def _call(self, key: Key, layer: Any, call: Any) -> None:
        args, kwargs = self._arguments(call)
        # What an op makes of numbers alone is part of the graph, too, where `fold` asks for its memory first.
        with self._graph.as_default() if isinstance(layer, SavedOp) else nullcontext():
            result = layer(*args, **kwargs)
        self.outputs[key] = [leaf for leaf in flatten(result) if isinstance(leaf, Tensor)]

    def _arguments(self, call: Any) -> tuple[list[Any], dict[str, Any]]:
        if isinstance(call, dict):
            kwargs = {name: self._fill(value) for name, value in call["kwargs"].items()}
            return [self._fill(value) for value in call["args"]], _as_given(kwargs)
        # Keras up to 2.15: a list of [layer, node, tensor, keyword arguments].
        tensors = [self._tensor(entry[:3]) for entry in call]
        kwargs = call[0][3] if len(call[0]) > 3 else {}
        return [tensors[0] if len(tensors) == 1 else tensors], _as_given(deserialize_keras_object(kwargs))

    def _fill(self, value: Any) -> Any:
        """An argument with tensors in their places."""
        if isinstance(value, list):
            return [self._fill(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.get("class_name") == "__keras_tensor__":
            return self._tensor(value["config"]["keras_history"])
        if "class_name" in value:
            return deserialize_keras_object(value)
        return {name: self._fill(item) for name, item in value.items()}

    def structure(self, value: Any) -> Any:
        """`input_layers` or `output_layers`: an address, or lists or dicts of them."""
        if isinstance(value, dict):
            return {name: self.structure(item) for name, item in value.items()}
        if len(value) == 3 and isinstance(value[0], str) and all(isinstance(part, int) for part in value[1:]):
            return self._tensor(value)
        found = [self.structure(item) for item in value]
        return found[0] if self.is_old and len(found) == 1 else found

    def _tensor(self, address: Any) -> Tensor:
        name, node, index = address
        try:
            return self.outputs[name, node][index]
        except (KeyError, IndexError):
            raise ValueError(
                f"The saved model refers to output {index} of call {node} of layer {name!r}, which it does not have."
            ) from None


def _without_calls(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "inbound_nodes"}


def _as_given(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments that say something: Keras also writes down the defaults of `training` and masks."""
    return {
        name: value
        for name, value in kwargs.items()
        if not (value is None and (name == "mask" or name.endswith("_mask"))) and not (name == "training" and not value)
    }


def _addresses(call: Any) -> list[Any]:
    """The addresses of all tensors in a call's arguments."""
    if not isinstance(call, dict):
        return [entry[:3] for entry in call]
    found: list[Any] = []
    pending: list[Any] = [call["args"], call["kwargs"]]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
            found.append(value["config"]["keras_history"])
        elif isinstance(value, dict):
            pending.extend(value.values())
    return found
