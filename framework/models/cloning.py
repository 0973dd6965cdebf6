"""`clone_model`: a model once more, with new layers and new weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...engine.common.dtypes import name_of
from ...engine.graph import Symbol, Tensor, flatten
from ...engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ...engine.objects.trust import own_objects_scope
from ...layers.core.calling import map_leaves
from ...layers.core.input_layer import Input, InputLayer
from ...layers.core.layer import Layer
from ..metrics.base import Metric
from ..tree import assert_same_structure
from .constructors import has_own_constructor
from .layer_graph import LayerGraph, history
from .model import Functional, Model
from .raw_ops import RawOp
from .sequential import Sequential

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...optim import Optimizer
    from ..structures import Tensors
    from .fit_callbacks import ModelOfSomeClass

Clone = Callable[[Layer], Layer]
Call = Callable[..., Any]


def clone_model(
    model: Model,
    input_tensors: Tensors | None = None,
    clone_function: Clone | None = None,
    call_function: Call | None = None,
    recursive: bool = False,
) -> ModelOfSomeClass:
    """Return a model that computes what `model` does, with new layers and newly drawn weights.

    Args:
        model: the model. A subclass with a constructor of its own is cloned by its `get_config`.
        input_tensors: symbolic tensors to build on, in the structure of the model's inputs; new ones by default.
        clone_function: makes the new layer from an old one; by default ``from_config(get_config())``. It may give
            another layer, or the old one itself to share its weights. Inputs are not handed to it.
        call_function: ``call_function(layer, *args, **kwargs)`` calls a new layer; functional models only.
        recursive: clone models inside with these functions, too, instead of handing them to `clone_function`.

    A compiled model's clone is compiled alike, with an optimizer and metrics of its own.

    Raises:
        ValueError: an argument does not go with the kind of model, or a sequential model has no input to give.
        TypeError: `clone_function` gave no layer.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(3)])
    >>> clone = ab.models.clone_model(model)
    >>> [weight.shape for weight in clone.get_weights()]
    [(2, 3), (3,)]
    """
    with own_objects_scope():
        made = _Cloning(clone_function, call_function, recursive).clone(model, input_tensors)
        if model.compiled:
            _compile_alike(made, model)
    return made


def _compile_alike(clone: Model, model: Model) -> None:
    given = model._compile_arguments
    if given is None or type(model).compile is not Model.compile:
        clone.compile_from_config(model.get_compile_config() or {})
        return
    own = {
        name: map_leaves(lambda leaf: _anew(leaf) if isinstance(leaf, Metric) else leaf, given[name])
        for name in ("metrics", "weighted_metrics")
    }
    arguments = dict(given)
    arguments.update(own, optimizer=model.optimizer and _anew(model.optimizer))
    clone.compile(**arguments)


def _anew(item: Metric | Optimizer) -> Metric | Optimizer:
    return type(item).from_config(item.get_config())


class _Cloning:
    """Clones layers, each of them once."""

    def __init__(self, clone_function: Clone | None, call_function: Call | None, recursive: bool) -> None:
        self.clone_function = clone_function
        self.call_function = call_function
        self.recursive = recursive
        self._made: dict[int, Layer] = {}

    def clone(self, model: Model, input_tensors: Tensors | None = None) -> Any:
        if isinstance(model, Sequential):
            if self.call_function is not None and not self.recursive:
                raise ValueError(
                    f"clone_model: model {model.name!r} is sequential, to which call_function does not apply. Give "
                    "clone_function, or make the model a functional one."
                )
            return self._sequential(model, input_tensors)
        if model._layer_graph is not None:
            return self._functional(model, input_tensors)
        if input_tensors is not None or self.clone_function is not None or self.call_function is not None:
            raise ValueError(
                f"clone_model: {type(model).__name__} is a subclass whose layers are called by its own code, so that "
                "input_tensors, clone_function and call_function don't apply. Call clone_model(model) alone."
            )
        config = serialize_keras_object(model)
        return deserialize_keras_object(config, custom_objects={type(model).__name__: type(model)})

    def _layer(self, layer: Layer) -> Layer:
        made = self._made.get(id(layer))
        if made is None:
            made = self._made[id(layer)] = self._new(layer)
        return made

    def _new(self, layer: Layer) -> Layer:
        if self.recursive and isinstance(layer, Model) and (isinstance(layer, Sequential) or layer._layer_graph):
            return self.clone(layer)
        if self.clone_function is None:
            config = layer.get_config()
            with type(layer).around_parts(config):
                made = type(layer).from_config(config)
            if any(inner._rounded_weights or inner.quantization_mode for inner in layer._flatten_layers()):
                made.build_from_config(layer.get_build_config() or {})
            return made
        made = self.clone_function(layer)
        if not isinstance(made, Layer):
            raise TypeError(
                f"clone_model: clone_function must return a layer; for layer {layer.name!r} it gave {made!r} of type "
                f"{type(made).__name__}."
            )
        return made

    def _sequential(self, model: Sequential, input_tensors: Tensors | None) -> Sequential:
        given = _symbolic(input_tensors)
        if len(given) > 1:
            raise ValueError(f"clone_model: a sequential model has one input; input_tensors has {len(given)}.")
        declared = model.declared_input()
        start = given or ([] if declared is None else [InputLayer.from_config(declared.get_config())])
        made = [*start, *[self._layer(layer) for layer in model.layers]]
        if has_own_constructor(type(model)):
            return Sequential(made, model.trainable, model.name)
        return type(model)(made, trainable=model.trainable, name=model.name)

    def _functional(self, model: Model, input_tensors: Tensors | None) -> Model:
        graph = model._layer_graph
        assert graph is not None
        if input_tensors is None:
            inputs = map_leaves(_like, graph.inputs_structure)
        else:
            _check_inputs(input_tensors, model.name, graph)
            inputs = input_tensors
        values: dict[Tensor, Tensor] = dict(zip(graph.inputs, flatten(inputs), strict=True))
        for node in graph.nodes:
            if any(tensor in values for tensor in node.output_tensors):
                continue
            args, kwargs = map_leaves(
                lambda leaf: values.get(leaf, leaf) if isinstance(leaf, Tensor) else leaf, node.arguments
            )
            outputs = self._call(node.layer, args, kwargs)
            values.update(zip(node.output_tensors, flatten(outputs), strict=True))
        outputs = map_leaves(values.__getitem__, graph.outputs_structure)
        cls = Functional if has_own_constructor(type(model)) else type(model)
        return cls(inputs=inputs, outputs=outputs, name=model.name)

    def _call(self, operation: Layer | RawOp, args: Sequence[Any], kwargs: dict[str, Any]) -> object:
        if isinstance(operation, RawOp):
            return operation(*args, **kwargs)
        layer = self._layer(operation)
        return layer(*args, **kwargs) if self.call_function is None else self.call_function(layer, *args, **kwargs)


def _symbolic(tensors: object) -> list[Symbol]:
    """Return the tensors of a structure, which must be symbolic."""
    found = flatten(tensors)
    for tensor in found:
        if not isinstance(tensor, Symbol):
            raise TypeError(
                "clone_model: input_tensors must be symbolic, from ab.Input or layers called on it; one is of type "
                f"{type(tensor).__name__}."
            )
    return found


def _check_inputs(input_tensors: object, model_name: str, graph: LayerGraph) -> None:
    """Check that tensors to build on have the structure of a model's inputs."""
    count = len(_symbolic(input_tensors))
    if count != len(graph.inputs):
        raise ValueError(
            f"clone_model: model {model_name!r} has {len(graph.inputs)} inputs ({', '.join(graph.input_names)}), "
            f"but input_tensors has {count}."
        )
    try:
        assert_same_structure(input_tensors, graph.inputs_structure)
    except ValueError as error:
        raise ValueError(
            f"clone_model: input_tensors must have the structure of the inputs of model {model_name!r}, as model.input "
            f"has it. {error}"
        ) from error


def _like(tensor: Tensor) -> Tensor:
    """Return a new symbolic input like that of a model."""
    return Input(batch_shape=tensor.shape, dtype=name_of(tensor.dtype), name=history(tensor).layer.name)
