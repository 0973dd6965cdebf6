"""`LayerGraph`: the layers between symbolic inputs and outputs, in an order in which they can be run again.

Layer calls on symbolic tensors are recorded as nodes (see `layers.core.node`). Going back from the outputs along the
nodes finds what a functional model consists of. Ops that were applied to such tensors directly (``x + 1.0``) become
nodes too, of a `RawOp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...engine import ops
from ...engine.common.identity import is_among
from ...engine.graph import Placeholder, Symbol, Tensor, TensorSpec, flatten
from ...engine.session import placeholder
from ...layers.core.calling import map_leaves, symbols_in
from ...layers.core.input_layer import InputLayer
from ...layers.core.layer import Layer
from ...layers.core.node import History, Node, is_construction_graph
from ...layers.core.stated_outputs import check_outputs, is_stated
from .raw_ops import RawOp, as_nodes, is_literal

if TYPE_CHECKING:
    from ...engine.ops.base import TensorLike
    from ..structures import Masks, Tensors

AnyLayer = Layer | RawOp


class LayerGraph:
    """The layers and ops between inputs and outputs.

    Args:
        inputs: a symbolic tensor, or a structure of them.
        outputs: a tensor or structure of tensors that were computed from the inputs by layers and ops.
        model_name: for messages.

    Attributes:
        nodes: the calls, inputs first.
        operations: the layers and raw ops, in Keras's order: by their distance from the outputs, then in the order in
            which a walk from the outputs finds them. Saved files rely on it.

    Raises:
        ValueError: an input is not a symbolic tensor of a layer, is given twice, or an output needs another input.
    """

    def __init__(self, inputs: Tensors, outputs: Tensors, model_name: str) -> None:
        self.inputs_structure = inputs
        self.outputs_structure = outputs
        self.model_name = model_name
        self.inputs: list[Symbol] = _checked(inputs, "inputs", model_name)
        self.outputs: list[Symbol] = _checked(outputs, "outputs", model_name)
        self._check_inputs()
        as_nodes(self.outputs, self.inputs)
        walk = _Walk(self.inputs)
        for output in self.outputs:
            walk.visit(output)
        self.nodes = walk.nodes
        self._stated = {node for node in walk.nodes if any(map(is_stated, node.output_tensors))}
        self.operations: list[AnyLayer] = self._order(walk)
        self._check_connected()
        self._check_names()

    def placeholders(self) -> Tensors:
        """Make placeholders like the inputs, in the graph that is being built."""
        return map_leaves(lambda symbol: placeholder(symbol.shape, symbol.dtype), self.inputs_structure)

    @property
    def layers(self) -> list[Layer]:
        """The layers, without raw ops."""
        return [operation for operation in self.operations if isinstance(operation, Layer)]

    @property
    def input_names(self) -> list[str]:
        return [history(tensor).layer.name for tensor in self.inputs]

    @property
    def output_names(self) -> list[str]:
        return [history(tensor).layer.name for tensor in self.outputs]

    # --- checks ---------------------------------------------------------------------------------------------

    def _check_inputs(self) -> None:
        for position, tensor in enumerate(self.inputs):
            if not is_literal(tensor) and not isinstance(tensor.operation.op, Placeholder):
                as_nodes([tensor], [])  # what ops made of a layer's output
            if "history" not in tensor.annotations:
                raise ValueError(
                    f"Model {self.model_name!r}: input {position}, {tensor!r}, was not made by ab.Input or a layer. "
                    "Start the model from ab.Input(shape=...)."
                )
        if len(set(self.inputs)) != len(self.inputs):
            raise ValueError(f"Model {self.model_name!r}: each input may be given once, but inputs={self.inputs}.")

    def _check_connected(self) -> None:
        given = set(self.inputs)
        for node in self.nodes:
            # Everything else is computed; only an Input that is none of the model's leaves something open.
            missing = node.output_tensors if isinstance(node.layer, InputLayer) else []
            if not given.issuperset(missing):
                names = [history(tensor).layer.name for tensor in missing]
                raise ValueError(
                    f"Model {self.model_name!r}: the outputs depend on {names}, which is not among the inputs "
                    f"{self.input_names}. Add it to the model's inputs."
                )

    def _check_names(self) -> None:
        by_name: dict[str, AnyLayer] = {}
        for operation in self.operations:
            other = by_name.setdefault(operation.name, operation)
            if other is not operation:
                raise ValueError(
                    f"Model {self.model_name!r}: two layers are called {operation.name!r} ({other!r} and "
                    f"{operation!r}). Give each layer a name of its own."
                )

    # --- order ----------------------------------------------------------------------------------------------

    def _order(self, walk: _Walk) -> list[AnyLayer]:
        depths: dict[Node, int] = {}
        operation_depths: dict[AnyLayer, int] = {}
        for node in reversed(walk.nodes):
            depth = max(depths.setdefault(node, 0), operation_depths.get(node.layer, 0))
            depths[node] = operation_depths[node.layer] = depth
            for parent in walk.parents(node):
                depths[parent] = max(depth + 1, depths.get(parent, 0))
        first_seen = dict(walk.first_seen)
        for tensor in self.inputs:
            layer = history(tensor).layer
            if layer not in operation_depths:  # an input that no output needs
                operation_depths[layer] = 0
                first_seen[layer] = -1
        return sorted(operation_depths, key=lambda operation: (-operation_depths[operation], first_seen[operation]))

    # --- running --------------------------------------------------------------------------------------------

    def run(self, inputs: object, masks: Masks = None, training: bool | Tensor | None = None) -> Any:
        """Return the outputs for other inputs: every call once more, on what the calls before it give.

        Args:
            inputs: tensors in the structure of the inputs; dicts may be keyed by the names of the inputs.
            masks: a mask (or None) for each input, in flat order.
            training: handed to the calls that were recorded without a value of their own.

        As in Keras a list of one output is that output, except where a model is made of this one.
        """
        values = dict(zip(self.inputs, self._standardized(inputs, masks), strict=True))
        for node in self.nodes:
            if any(tensor in values for tensor in node.output_tensors):
                continue  # an input, or a layer whose outputs are the model's inputs
            args, kwargs = map_leaves(lambda leaf: values.get(leaf, leaf) if _is_symbol(leaf) else leaf, node.arguments)
            outputs = _tensors(node.layer(*args, **kwargs))
            known = node.output_tensors
            if node in self._stated or len(outputs) < len(known):
                check_outputs(node.layer, known, outputs)
            values.update(zip(known, outputs, strict=False))  # further ones are left out, as in Keras
        outputs = map_leaves(values.__getitem__, self.outputs_structure)
        is_single = isinstance(outputs, (list, tuple)) and len(outputs) == 1
        return outputs[0] if is_single and not _is_of_models(inputs) else outputs

    def _standardized(self, inputs: object, masks: Masks) -> list[Tensor | None]:
        """Return flat inputs, of the ranks and dtypes that the model was built for."""
        given = self._flat(inputs)
        flat = [_as_input(value, symbol, self.model_name) for value, symbol in zip(given, self.inputs, strict=True)]
        for tensor, mask in zip(flat, masks or [], strict=False):
            if mask is not None and tensor is not None:
                tensor.annotations["mask"] = mask
        return flat

    def _flat(self, inputs: object) -> list[Any]:
        """Return the inputs in flat order.

        Raises:
            ValueError: their number or names are not those of the model's inputs.
        """
        if any(isinstance(item, (dict, list, tuple)) for item in _children(self.inputs_structure)):
            return self._flat_like(self.inputs_structure, inputs, "inputs")
        if isinstance(inputs, dict):
            return self._flat_dict(inputs)
        # A None at the top is an optional input that is left out; `flatten` would leave it out of the list.
        flat = (
            list(inputs) if isinstance(inputs, (list, tuple)) and None in map(_none_or_0, inputs) else flatten(inputs)
        )
        if isinstance(self.inputs_structure, dict) and len(flat) == len(self.inputs):
            # A list goes by the order in which the dict was written.
            order = sorted(self.inputs_structure)
            by_name = dict(zip(self.inputs_structure, flat, strict=True))
            return [by_name[name] for name in order]
        if len(flat) != len(self.inputs):
            raise ValueError(
                f"Model {self.model_name!r} has {len(self.inputs)} inputs ({', '.join(self.input_names)}), but was "
                f"called on {len(flat)}."
            )
        return flat

    def _flat_like(self, structure: object, given: Any, path: str) -> list[object]:
        """Return the leaves of `given`, which is a structure of structures like that of the inputs."""
        if isinstance(structure, dict):
            keys = sorted(structure)
            fits = isinstance(given, dict) and all(key in given or is_optional(structure[key]) for key in keys)
            expected = f"a dict with the keys {', '.join(map(str, keys))}"
        elif isinstance(structure, (list, tuple)):
            keys = list(range(len(structure)))
            fits = isinstance(given, (list, tuple)) and len(given) == len(structure)
            expected = f"a list of {len(structure)}"
        else:
            return [given]
        if not fits:
            got = f"one with {', '.join(map(str, given))}" if isinstance(given, dict) else "one tensor"
            got = f"{len(given)} of them" if isinstance(given, (list, tuple)) else got
            raise ValueError(f"Model {self.model_name!r} was called on {path}: expected {expected}, got {got}.")
        items = [(key, given.get(key) if isinstance(given, dict) else given[key]) for key in keys]
        return [leaf for key, value in items for leaf in self._flat_like(structure[key], value, f"{path}[{key!r}]")]

    def _flat_dict(self, inputs: dict[str, object]) -> list[object]:
        keys = sorted(self.inputs_structure) if isinstance(self.inputs_structure, dict) else self.input_names
        pairs = list(zip(keys, self.input_names, strict=True)) if len(keys) == len(self.inputs) else []
        missing = [
            key
            for (key, name), symbol in zip(pairs, self.inputs, strict=False)
            if key not in inputs and name not in inputs and not is_optional(symbol)
        ]
        if missing or not pairs:
            raise ValueError(
                f"Model {self.model_name!r} has the inputs {', '.join(self.input_names)}, but was called on a dict "
                f"with the keys {', '.join(map(str, inputs))}; missing: {missing}."
            )
        return [inputs[key] if key in inputs else inputs.get(name) for key, name in pairs]


def is_optional(symbol: object) -> bool:
    """Test whether a symbol is an `Input` for which None may be given."""
    return isinstance(symbol, Tensor) and getattr(history(symbol).layer, "optional", False)


def _none_or_0(value: object) -> int | None:
    return None if value is None else 0


def layer_graph_between(inputs: Tensors, outputs: Tensors, model_name: str) -> LayerGraph:
    """Return the layer graph of a model whose inputs are inputs of its own.

    Where an input is what some layer gives, an `Input` takes its place, and the calls behind it are made once more, on
    that: the layers before it are not part of the model.

    Args:
        inputs, outputs, model_name: as for `LayerGraph`.
    """
    graph = LayerGraph(inputs, outputs, model_name)
    own = {tensor: _input_like(tensor, graph) for tensor in graph.inputs if _is_inner(tensor)}
    if not own:
        return graph
    inputs = map_leaves(lambda tensor: own.get(tensor, tensor), inputs)
    with graph.inputs[0].graph.entered():
        return LayerGraph(inputs, graph.run(inputs), model_name)


def _is_inner(tensor: Tensor) -> bool:
    return not isinstance(history(tensor).layer, InputLayer) and isinstance(tensor.spec, TensorSpec)


def _input_like(tensor: Symbol, graph: LayerGraph) -> Tensor:
    """Return the tensor of a new `Input`, in the same graph, that has the shape and dtype of what a layer gives."""
    layer = history(tensor).layer
    if tensor.shape is None:
        raise ValueError(
            f"Model {graph.model_name!r}: {tensor!r}, which layer {layer.name!r} gives, has no known rank, so "
            "no input can take its place. Start the model from ab.Input(shape=...)."
        )
    shared = [other for other in graph.inputs if history(other).layer is layer]
    number = next(number for number, other in enumerate(shared) if other is tensor)
    name = f"{layer.name}_output" if len(shared) == 1 else f"{layer.name}_output_{number}"
    with tensor.graph.entered():
        return InputLayer(batch_shape=tensor.shape, dtype=tensor.dtype, name=name).output


def history(tensor: Tensor) -> History:
    """Return the call that made `tensor`."""
    return tensor.annotations["history"]


def get_source_inputs(tensor: Tensor) -> list[Tensor]:
    """Return the inputs that a symbolic tensor is computed from, in the order in which its layers take them.

    Args:
        tensor: from `ab.Input`, or what layers and ops made of such tensors.

    Raises:
        ValueError: it is not one of these.

    >>> import anabranch as ab
    >>> x, y = ab.Input((2,), name="x"), ab.Input((3,), name="y")
    >>> found = get_source_inputs(ab.layers.Dense(1)(ab.layers.Concatenate()([x, y])))
    >>> found[0] is x, found[1] is y, len(found)
    (True, True, 2)
    """
    if not isinstance(tensor, Symbol):
        raise ValueError(
            "get_source_inputs takes a symbolic tensor, from ab.Input and layers called on it; got "
            f"{tensor!r} of type {type(tensor).__name__}."
        )
    as_nodes([tensor], [])
    walk = _Walk([])
    walk.visit(tensor)
    return [made for node in walk.nodes if not node.input_tensors for made in node.output_tensors]


def _is_of_models(inputs: object) -> bool:
    return any(is_construction_graph(symbol.graph) for symbol in symbols_in(inputs))


def _children(structure: object) -> list[object]:
    if isinstance(structure, dict):
        return list(structure.values())
    return list(structure) if isinstance(structure, (list, tuple)) else []


def _is_symbol(leaf: object) -> bool:
    return isinstance(leaf, Symbol)


def _tensors(outputs: object) -> list[Tensor]:
    return [leaf for leaf in flatten(outputs) if isinstance(leaf, Tensor)]


def _checked(structure: object, what: str, model_name: str) -> list[Symbol]:
    flat = flatten(structure)
    for item in flat:
        if not isinstance(item, Symbol):
            raise ValueError(
                f"Model {model_name!r}: {what} must be symbolic tensors (from ab.Input and layers called on them), "
                f"got {item!r} of type {type(item).__name__}."
            )
    if not flat:
        raise ValueError(f"Model {model_name!r}: {what} is empty.")
    return flat


def _as_input(value: TensorLike | None, symbol: Tensor, model_name: str) -> Tensor | None:
    """Return `value` with the dtype of the model's input, and with its rank if only an axis of size 1 differs."""
    if value is None:
        if is_optional(symbol):
            return None
        name = history(symbol).layer.name
        raise ValueError(
            f"Model {model_name!r}: input {name!r} is None. Give its data, or make it with Input(..., optional=True)."
        )
    tensor = ops.convert_to_tensor(value)
    if not isinstance(symbol.spec, TensorSpec):
        return tensor
    wanted, shape = symbol.shape, tensor.shape
    if wanted is not None and shape is not None:
        if len(shape) == len(wanted) + 1 and shape[-1] == 1:
            tensor = _with_mask_of(tensor, ops.squeeze(tensor, -1))
        elif len(shape) == len(wanted) - 1 and wanted[-1] == 1:
            tensor = _with_mask_of(tensor, ops.expand_dims(tensor, -1))
        _check_shape(tensor, symbol, model_name)
    return tensor if tensor.dtype == symbol.dtype else _with_mask_of(tensor, ops.cast(tensor, symbol.dtype))


def _with_mask_of(before: Tensor, after: Tensor) -> Tensor:
    if "mask" in before.annotations:
        after.annotations["mask"] = before.annotations["mask"]
    return after


def _check_shape(tensor: Tensor, symbol: Tensor, model_name: str) -> None:
    """Compare everything but the batch: a model that was built for one batch size runs on any."""
    wanted, got = symbol.shape or (), tensor.shape or ()
    fits = len(wanted) == len(got) and all(
        want is None or have is None or want == have for want, have in zip(wanted[1:], got[1:], strict=True)
    )
    if not fits:
        name = history(symbol).layer.name
        raise ValueError(
            f"Model {model_name!r}: input {name!r} has shape {wanted}, but was given an array of shape {got}. "
            "Sizes must agree in every axis but the first, the batch."
        )


class _Walk:
    """A walk from the outputs to the inputs, depth first."""

    def __init__(self, inputs: list[Symbol]) -> None:
        self.inputs = set(inputs)
        self.nodes: list[Node] = []
        self.first_seen: dict[AnyLayer, int] = {}
        self._finished: set[Node] = set()

    def visit(self, output: Tensor) -> None:
        """Append the nodes that `output` needs to `nodes`, each after those that it depends on itself."""
        pending: list[tuple[Node, list[Symbol]]] = []
        self._enter(output, pending)
        while pending:
            node, remaining = pending[-1]
            if remaining:
                self._enter(remaining.pop(0), pending)
                continue
            pending.pop()
            if node not in self._finished:
                self._finished.add(node)
                self.nodes.append(node)

    def parents(self, node: Node) -> list[Node]:
        """Return the nodes, among those of this walk, whose outputs `node` takes."""
        if self._is_start(node):
            return []
        return list(dict.fromkeys(_node_of(tensor) for tensor in node.input_tensors))

    def _enter(self, tensor: Tensor, pending: list[tuple[Node, list[Symbol]]]) -> None:
        node = _node_of(tensor)
        if node in self._finished or any(node is entered for entered, _ in pending):
            return
        self.first_seen.setdefault(node.layer, len(self.first_seen))
        pending.append((node, [] if self._is_start(node) else node.input_tensors))

    def _is_start(self, node: Node) -> bool:
        return not node.input_tensors or any(is_among(tensor, self.inputs) for tensor in node.output_tensors)


def _node_of(tensor: Tensor) -> Node:
    found = history(tensor)
    return found.layer.inbound_nodes[found.node_index]
