"""Functional models as configs: layers, and for each of their calls the tensors that came in."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.common.dtypes import name_of
from ...engine.graph import Symbol, Tensor, Variable, flatten, graph_for
from ...engine.objects.names import to_snake_case
from ...engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ...engine.ops.entrance import CALL, PublicCall
from ...layers.core.calling import map_leaves
from ...layers.core.layer import Layer
from ...layers.core.node import Node
from ..models.layer_graph import LayerGraph, history
from ..models.raw_ops import RawOp, SavedOp, as_nodes, is_literal, is_serialized_op, literal_of, op_entry
from .keras_calls import KerasCall, keras_call
from .keras_expansions import expand_call, expand_operation

if TYPE_CHECKING:
    from typing import TypedDict

    from ...engine.common.nest import Nest

    class Call(TypedDict):
        """A call of a layer as JSON has it."""

        args: list[object]
        kwargs: dict[str, object]

    OldCall = list[list[Any]]  # as Keras up to 2.15 wrote it: for each tensor [layer, node, tensor, keyword arguments]

Key = tuple[str, int]  # a layer's name and the number of its call


# --- writing --------------------------------------------------------------------------------------------------------


def graph_config(graph: LayerGraph) -> dict[str, object]:
    """Return the layers, their calls, inputs and outputs, as Keras writes them.

    Raises:
        TypeError, ValueError: a layer or an argument can't be written.
    """
    written = _Written(graph)
    return {
        "layers": written.layers(),
        "input_layers": written.structure(graph.inputs_structure),
        "output_layers": written.structure(graph.outputs_structure),
    }


class _Written:
    """The parts of a model that are written: its layers, and for its ops the calls of public functions that Keras has,
    or the ops.

    Attributes:
        calls: the calls that are written whole, with the name of each.
        aliases: tensors that Keras has no operation for, and what is written for them.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self.numbers = _node_numbers(graph)
        self.calls: dict[int, tuple[KerasCall, str]] = {}
        self.aliases: dict[Symbol, Symbol] = {}
        self._candidates: dict[int, KerasCall | None] = {}
        self._kept: set[Layer | RawOp] = {op for op in graph.operations if not isinstance(op, RawOp)}
        self._first: dict[RawOp, list[int]] = {}  # before which op a call is written
        self._names: dict[RawOp, str] = {}  # of those that are written
        self._ops: list[Layer | RawOp] = list(graph.operations)
        self._walk()
        self._name_calls()

    def _walk(self) -> None:
        """Find what is needed, from the outputs and from what layers take."""
        sources: list[Symbol] = list(self.graph.outputs)
        for node in self.graph.nodes:
            if not isinstance(node.layer, RawOp):
                sources += node.input_tensors
        seen: set[Symbol] = set()
        while sources:
            tensor = sources.pop()
            if tensor in seen:
                continue
            seen.add(tensor)
            node = _node(tensor)
            if isinstance(node.layer, RawOp):
                arguments = self._written_op(tensor, node, node.layer)
                sources += [leaf for leaf in flatten(arguments) if isinstance(leaf, Symbol) and not is_literal(leaf)]

    def _written_op(self, tensor: Symbol, node: Node, op: RawOp) -> object:
        """See to it that a tensor is written, as a call, an op or what is composed for it; what that takes."""
        call = self._call(tensor)
        if call is not None:
            self._note(tensor, call, op)
            return call.arguments
        public = tensor.annotations.get(CALL)
        outputs: Sequence[Symbol] = [] if public is None else public[0].outputs
        composed = None if public is None else expand_call(public[0])
        if composed is None and not op.is_of_keras:
            outputs, composed = tensor.operation.outputs, expand_operation(tensor.operation)
        if composed is None:
            self._kept.add(op)
            return op.written_arguments(node.arguments[0])
        self._add(composed)
        self.aliases.update(zip(outputs, composed, strict=True))
        return composed

    def _add(self, tensors: list[Symbol]) -> None:
        """Count the ops that were composed among those of the model."""
        as_nodes(tensors, self.graph.inputs)
        pending = list(tensors)
        while pending:
            node = _node(pending.pop())
            if node in self.numbers or not isinstance(node.layer, RawOp):
                continue
            self.numbers[node] = 0
            self._ops.append(node.layer)
            pending += node.input_tensors

    def _alias(self, tensor: Symbol) -> Symbol:
        while tensor in self.aliases:
            tensor = self.aliases[tensor]
        return tensor

    def _call(self, tensor: Symbol) -> KerasCall | None:
        """Return the call of a public function that gave a tensor, if it can be written whole."""
        found = tensor.annotations.get(CALL)
        if found is None or not isinstance(_node(tensor).layer, RawOp):
            return None
        call = found[0]
        if id(call) not in self._candidates:
            self._candidates[id(call)] = self._checked(call)
        return self._candidates[id(call)]

    def _checked(self, call: PublicCall) -> KerasCall | None:
        made = keras_call(call)
        if made is None:
            return None
        for leaf in flatten(made.arguments):
            if isinstance(leaf, Symbol) and not is_literal(leaf) and not self._is_inside(leaf):
                return None  # it takes nothing but the shape of this
        return made

    def _is_inside(self, tensor: Symbol) -> bool:
        return "history" in tensor.annotations and _node(tensor) in self.numbers

    def _note(self, tensor: Symbol, call: KerasCall, op: RawOp) -> None:
        key = id(tensor.annotations[CALL][0])
        if key not in self.calls:
            self.calls[key] = (call, "")
            self._first.setdefault(op, []).append(key)

    def _name_calls(self) -> None:
        """Give calls and ops names that nothing else has which is written, whatever was made before in the process."""
        taken = {operation.name for operation in self._kept if not isinstance(operation, RawOp)}
        for op in self._ops:
            if not isinstance(op, RawOp):
                continue
            for key in self._first.get(op, []):
                call, _ = self.calls[key]
                self.calls[key] = (call, _free_name(to_snake_case(call.name.partition(".")[2]), taken))
            if op in self._kept:
                self._names[op] = _free_name(to_snake_case(type(op.op).__name__), taken)

    def _name(self, operation: Layer | RawOp) -> str:
        return self._names[operation] if isinstance(operation, RawOp) else operation.name

    # --- configs --------------------------------------------------------------------------------------------

    def layers(self) -> list[dict[str, object]]:
        """Return the configs of all layers, ops and calls, in the order of the model."""
        found: list[dict[str, object]] = []
        for operation in self._kept:
            if isinstance(operation, RawOp) and operation.made is not None:
                operation.serialize()  # raises; what else a loop consists of would do so less clearly
        for operation in self._ops:
            if isinstance(operation, RawOp):
                found += [self._call_config(key) for key in self._first.get(operation, [])]
            if operation in self._kept:
                found.append(self._layer_config(operation))
        return found

    def _call_config(self, key: int) -> dict[str, object]:
        call, name = self.calls[key]
        node = {"args": [map_leaves(self._leaf, arg) for arg in call.arguments], "kwargs": {}}
        return {**op_entry(call.name, name, call.config), "name": name, "inbound_nodes": [node]}

    def _layer_config(self, operation: Layer | RawOp) -> dict[str, object]:
        name = self._name(operation)
        config = operation.serialize(name) if isinstance(operation, RawOp) else serialize_keras_object(operation)
        nodes = [node for node in operation.inbound_nodes if node in self.numbers and node.input_tensors]
        return {**config, "name": name, "inbound_nodes": [self._node_config(node) for node in nodes]}

    def _node_config(self, node: Node) -> dict[str, object]:
        args, kwargs = node.arguments
        if isinstance(node.layer, RawOp):
            args = node.layer.written_arguments(args)
        return {"args": [map_leaves(self._leaf, arg) for arg in args], "kwargs": map_leaves(self._leaf, kwargs)}

    def _leaf(self, leaf: object) -> object:
        leaf = _real_where_it_is(literal_of(self._alias(leaf)) if isinstance(leaf, Symbol) else leaf)
        if isinstance(leaf, Symbol):
            shape = None if leaf.shape is None else list(leaf.shape)
            config = {"shape": shape, "dtype": name_of(leaf.dtype), "keras_history": self._address(leaf)}
            return {"class_name": "__keras_tensor__", "config": config}
        if isinstance(leaf, Variable):
            raise ValueError(
                f"Variable {leaf.name!r} is used directly in a functional model, where it can't be saved. Make it a "
                "weight of a Layer of your own, and use it in the layer's call()."
            )
        return serialize_keras_object(leaf)

    def _address(self, tensor: Symbol) -> list[str | int]:
        tensor = self._alias(tensor)
        if self._call(tensor) is not None:
            call, position = tensor.annotations[CALL]
            return [self.calls[id(call)][1], 0, position]
        found = history(tensor)
        return [self._name(found.layer), self.numbers[_node(tensor)], found.tensor_index]

    def structure(self, structure: Any) -> object:
        """Return addresses in the structure of the tensors."""
        if isinstance(structure, Symbol):
            return self._address(structure)
        if isinstance(structure, dict):
            return {name: self.structure(value) for name, value in structure.items()}
        found = [self.structure(value) for value in structure]
        return tuple(found) if isinstance(structure, tuple) else found


def _real_where_it_is(value: object) -> object:
    """Return complex numbers whose imaginary part is zero as real ones, which Keras can write; ops take either."""
    if isinstance(value, (complex, np.complexfloating)) and value.imag == 0:
        return value.real
    if isinstance(value, np.ndarray) and value.dtype.kind == "c" and not value.imag.any():
        return value.real
    return value


def _node(tensor: Symbol) -> Node:
    found = history(tensor)
    return found.layer.inbound_nodes[found.node_index]


def _node_numbers(graph: LayerGraph) -> dict[Node, int]:
    """Return the number of each call within this model; a layer may have been called in other models, too."""
    inside = set(graph.nodes) | {_node(tensor) for tensor in graph.inputs}
    numbers: dict[Node, int] = {}
    for operation in graph.operations:
        calls = [node for node in operation.inbound_nodes if node in inside]
        numbers.update({node: number for number, node in enumerate(calls)})
    return numbers


# --- reading --------------------------------------------------------------------------------------------------------


def model_from_config(cls: Any, config: dict[str, Any]) -> Any:
    """Return a functional model of class `cls` from the config that `graph_config` (or Keras) wrote.

    Raises:
        ValueError: the config is not consistent.
    """
    rebuild = _Rebuild(config["layers"])
    inputs = rebuild.structure(config["input_layers"])
    outputs = rebuild.structure(config["output_layers"])
    options = {name: config[name] for name in ("name", "trainable") if config.get(name) is not None}
    return cls(inputs=inputs, outputs=outputs, **options)


def _free_name(prefix: str, taken: set[str]) -> str:
    """Return the first name of "x", "x_1", ... that is not taken, and take it."""
    name = prefix
    for number in itertools.count(1):
        if name not in taken:
            break
        name = f"{prefix}_{number}"
    taken.add(name)
    return name


class _Rebuild:
    """Makes the layers of a config, and calls them on one another."""

    def __init__(self, layers: Iterable[dict[str, Any]]) -> None:
        self.outputs: dict[Key, list[Tensor]] = {}
        self.is_old = False  # Keras up to 2.15: a single input or output stands in a list
        pending: list[tuple[Key, Layer | SavedOp, Call | OldCall]] = []
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

    def _call_all(self, pending: list[tuple[Key, Layer | SavedOp, Call | OldCall]]) -> None:
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

    def _is_ready(self, item: tuple[Key, Layer | SavedOp, Call | OldCall]) -> bool:
        key, _, call = item
        if key[1] > 0 and (key[0], key[1] - 1) not in self.outputs:
            return False  # calls of a layer are numbered in order
        return all((address[0], address[1]) in self.outputs for address in _addresses(call))

    def _call(self, key: Key, layer: Layer | SavedOp, call: Call | OldCall) -> None:
        args, kwargs = self._arguments(call)
        # What an op makes of numbers alone is part of the graph, too, where `fold` asks for its memory first.
        with self._graph.entered() if isinstance(layer, SavedOp) else nullcontext():
            result = layer(*args, **kwargs)
        self.outputs[key] = [leaf for leaf in flatten(result) if isinstance(leaf, Tensor)]

    def _arguments(self, call: Call | OldCall) -> tuple[list[object], dict[str, object]]:
        if isinstance(call, dict):
            kwargs = {name: self._fill(value) for name, value in call["kwargs"].items()}
            return [self._fill(value) for value in call["args"]], _as_given(kwargs)
        # Keras up to 2.15: a list of [layer, node, tensor, keyword arguments].
        tensors = [self._tensor(entry[:3]) for entry in call]
        kwargs = call[0][3] if len(call[0]) > 3 else {}
        return [tensors[0] if len(tensors) == 1 else tensors], _as_given(deserialize_keras_object(kwargs))

    def _fill(self, value: object) -> object:
        """Return an argument with tensors in their places."""
        if isinstance(value, list):
            return [self._fill(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.get("class_name") == "__keras_tensor__":
            return self._tensor(value["config"]["keras_history"])
        if "class_name" in value:
            return deserialize_keras_object(value)
        return {name: self._fill(item) for name, item in value.items()}

    def structure(self, value: dict[str, Any] | list[Any] | tuple[Any, ...]) -> Nest[Tensor]:
        """Read `input_layers` or `output_layers`: an address, or lists, tuples or dicts of them."""
        if isinstance(value, dict):
            return {name: self.structure(item) for name, item in value.items()}
        if len(value) == 3 and isinstance(value[0], str) and all(isinstance(part, int) for part in value[1:]):
            return self._tensor(value)
        found = [self.structure(item) for item in value]
        if isinstance(value, tuple):
            return tuple(found)
        return found[0] if self.is_old and len(found) == 1 else found

    def _tensor(self, address: Sequence[Any]) -> Tensor:
        name, node, index = address
        try:
            return self.outputs[name, node][index]
        except (KeyError, IndexError):
            raise ValueError(
                f"The saved model refers to output {index} of call {node} of layer {name!r}, which it does not have."
            ) from None


def _without_calls(entry: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in entry.items() if name != "inbound_nodes"}


def _as_given(kwargs: dict[str, object]) -> dict[str, object]:
    """Return the keyword arguments that say something: Keras also writes down the defaults of `training` and masks."""
    return {
        name: value
        for name, value in kwargs.items()
        if not (value is None and (name == "mask" or name.endswith("_mask"))) and not (name == "training" and not value)
    }


def _addresses(call: Call | OldCall) -> list[Sequence[object]]:
    """Return the addresses of all tensors in a call's arguments."""
    if not isinstance(call, dict):
        return [entry[:3] for entry in call]
    found: list[Sequence[object]] = []
    pending: list[object] = [call["args"], call["kwargs"]]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
            found.append(value["config"]["keras_history"])
        elif isinstance(value, dict):
            pending.extend(value.values())
    return found
