"""`Sequential`: layers in a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.common.properties import replaceable_property, reserved_property
from ...engine.graph import Tensor, TensorSpec, as_dtype, flatten
from ...engine.graph.spec import shape_text, shapes_compatible
from ...engine.graph.tracebacks import short_tracebacks, shorten
from ...engine.objects.registry import (
    custom_object_scope,
    deserialize_keras_object,
    register_builtins,
    serialize_keras_object,
)
from ...layers.core.calling import TensorOrTensors, tensors_in
from ...layers.core.input_layer import InputLayer
from ...layers.core.layer import Layer
from .constructors import note_constructor
from .layer_graph import LayerGraph, history
from .model import Model

if TYPE_CHECKING:
    from ..structures import LayerOfSomeClass, Masks


class Sequential(Model):
    """Layers, each called on what the one before it gives.

    Args:
        layers: the layers. With an `Input` first, or an ``input_shape`` for the first layer, the weights are made at
            once; otherwise at the first call, `fit` or `build`.
        trainable, name: as for layers.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(3, activation="relu"), ab.layers.Dense(1)])
    >>> model.count_params()
    19
    """

    untracked = Model.untracked | {"_input_layer", "_symbolic"}

    def __init__(
        self,
        layers: Sequence[Layer | Tensor] | None = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable=trainable, name=name, **kwargs)
        self.autocast = False  # each layer casts its own inputs and weights
        self._stack: list[LayerOfSomeClass] = []
        self._input_layer: InputLayer | None = None
        self._symbolic: list[Tensor] = []  # what each layer gives for the symbolic input
        self._has_own_input = False  # whether the input was declared, rather than seen in data
        self._seen: TensorSpec | None = None
        given: Sequence[Any] | None = layers if layers is None or isinstance(layers, (list, tuple)) else [layers]
        try:
            for layer in given or []:
                self.add(layer)
        except Exception as error:
            shorten(error)
            raise

    @short_tracebacks
    def add(self, layer: Layer | Tensor) -> None:
        """Put a layer at the end. A layer that is there already is used once more, with the same weights.

        Raises:
            TypeError: it is not a layer. ValueError: another layer has its name, or it gives several tensors.
        """
        added = _as_layer(layer)
        if isinstance(added, InputLayer):
            self._start(added)
            return
        if any(other.name == added.name and other is not added for other in self._stack):
            raise ValueError(
                f"Model {self.name!r} has a layer called {added.name!r} already. Give each layer a name of its own."
            )
        if not self._stack and self._input_layer is None:
            first = _input_of(added)
            if first is not None:
                self._start(InputLayer(batch_shape=first.shape, dtype=first.dtype))
        self._stack.append(added)
        self._changed()
        if not self._has_own_input:
            self._forget_input()
            return
        try:
            self._extend(added)
        except BaseException:
            self._stack.pop()
            raise

    def _forget_input(self) -> None:
        """Forget the input after layers were added to a model that saw data: they are built when it sees data again."""
        self.built = False
        self._input_layer = None
        self._symbolic = []
        self._seen = None

    def pop(self) -> LayerOfSomeClass:
        """Take the last layer away.

        Raises:
            ValueError: there is none.
        """
        if not self._stack:
            raise ValueError(f"Model {self.name!r} has no layers.")
        layer = self._stack.pop()
        del self._symbolic[len(self._stack) :]
        self._changed()
        return layer

    def _start(self, layer: InputLayer) -> None:
        if self._stack or self._input_layer is not None:
            raise ValueError(f"Model {self.name!r}: an Input must come first, and there can be only one.")
        self._input_layer = layer
        self._has_own_input = True
        self.built = True
        self._build_shapes = {"input_shape": layer.batch_shape}
        self._changed()

    def _changed(self) -> None:
        self._known_graph = None
        self._forget_programs()

    def _extend(self, layer: Layer) -> None:
        """Call `layer` on the latest symbolic output; that makes its weights."""
        assert self._input_layer is not None
        before = self._symbolic[-1] if self._symbolic else self._input_layer.output
        outputs = flatten(layer(before))
        if len(outputs) != 1:
            raise ValueError(
                f"Layer {layer.name!r} gives {len(outputs)} tensors; in a Sequential model each layer must give one. "
                "Use a functional model: ab.Model(inputs, outputs)."
            )
        self._symbolic.append(outputs[0])

    # --- building and calling -------------------------------------------------------------------------------

    @property
    def _layer_graph(self) -> LayerGraph | None:
        """The symbolic calls, once the shape of the input is known."""
        if self._known_graph is not None:
            return self._known_graph
        if self._input_layer is None and self._seen is not None:
            self._input_layer = InputLayer(batch_shape=self._seen.shape, dtype=self._seen.dtype)
        if self._input_layer is None:
            return None
        start = self._input_layer.output
        for layer in self._stack[len(self._symbolic) :]:
            self._extend(layer)
        self._known_graph = LayerGraph(start, self._symbolic[-1] if self._symbolic else start, self.name)
        return self._known_graph

    def build(self, input_shape: Any = None, **shapes: Any) -> None:
        """Make the weights for inputs of a shape (with the batch); nothing to do if there was an `Input`.

        Raises:
            ValueError: there are no layers, or the `Input` has another shape.
        """
        if input_shape is None:
            return
        if self._input_layer is not None:
            if self._has_own_input:
                self._check_fits_input(tuple(input_shape))
            return
        if not self._stack:
            raise ValueError(f"Model {self.name!r} has no layers, so there is nothing to build. Add layers first.")
        shape = tuple(input_shape)
        self._note_input(TensorSpec(shape, as_dtype(self._stack[0].input_dtype)))
        assert self._layer_graph is not None

    def _check_fits_input(self, shape: tuple[int | None, ...]) -> None:
        assert self._input_layer is not None
        own = self._input_layer.batch_shape
        if not shapes_compatible(shape, own):
            raise ValueError(
                f"Model {self.name!r} has an Input of shape {shape_text(own)}, so it can't be built for "
                f"{shape_text(shape)}. Leave the shape out, or make the model without an Input."
            )

    def _note_input(self, spec: TensorSpec) -> None:
        """Remember what inputs look like; the symbolic form is made when somebody asks for it."""
        self._seen = spec
        self._build_shapes = {"input_shape": spec.shape}
        self.built = True

    def _ensure_built(self, arguments: dict[str, object]) -> None:
        if self.built:
            return
        if type(self).build is not Sequential.build:
            super()._ensure_built(arguments)
            return
        tensors = tensors_in(arguments.get("inputs"))
        if len(tensors) == 1 and tensors[0].shape:
            self._note_input(TensorSpec((None, *tensors[0].shape[1:]), tensors[0].dtype))
        self.built = True  # the call that follows makes the weights

    def call(self, inputs: Any, training: bool | Tensor | None = None, mask: Masks | Tensor = None) -> TensorOrTensors:
        if not self._stack and self._input_layer is None:
            raise ValueError(f"Model {self.name!r} has no layers, so it can't be called. Add layers first.")
        if self._has_own_input:
            return super().call(inputs, training, mask)
        if mask is not None and isinstance(inputs, Tensor):
            inputs.annotations["mask"] = mask
        outputs = inputs
        for layer in self._stack:
            outputs = layer(outputs)
        return outputs

    # --- layers ---------------------------------------------------------------------------------------------

    @reserved_property
    def layers(self) -> list[LayerOfSomeClass]:
        """The layers, without the input."""
        return list(self._stack)

    def _sublayers(self, by_age: bool = False) -> list[Any]:
        held = Layer._sublayers(self, by_age)
        return [*self._stack, *[layer for layer in held if layer not in self._stack]]

    @replaceable_property
    def output_names(self) -> list[str] | None:
        return [self._stack[-1].name] if self._stack else None

    def declared_input(self) -> InputLayer | None:
        """Return the input that came first; None if the model learnt its shape from data."""
        return self._input_layer if self._has_own_input else None

    # --- configs --------------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        config: dict[str, object] = {"name": self.name, "trainable": self.trainable, "dtype": self.dtype}
        graph = self._layer_graph
        inputs = [] if graph is None or self._input_layer is None else [self._input_layer]
        config["layers"] = [serialize_keras_object(layer) for layer in [*inputs, *self._stack]]
        if self._input_layer is not None:
            config["build_input_shape"] = self._input_layer.batch_shape
        return config

    def get_build_config(self) -> dict[str, Any] | None:
        return Layer.get_build_config(self)

    @classmethod
    def from_config(
        cls, config: dict[str, Any] | list[dict[str, Any]], custom_objects: Mapping[str, object] | None = None
    ) -> Model:
        """Make a model from what `get_config` gave; `custom_objects` are classes and functions by name."""
        if custom_objects:
            with custom_object_scope(custom_objects):
                return cls.from_config(config)
        if isinstance(config, list):  # as Keras wrote it long ago
            config = {"layers": config}
        options = {name: config[name] for name in ("name", "trainable") if config.get(name) is not None}
        model = cls(**options)
        made: list[tuple[object, Any]] = []
        for entry in config["layers"]:
            # Names are unique, so that an entry with one that is there twice is of one layer, which is used twice.
            own = entry.get("config") if isinstance(entry, dict) else None
            is_named = isinstance(own, dict) and own.get("name") is not None
            layer = next((layer for other, layer in made if is_named and other == entry), None)
            made.append((entry, deserialize_keras_object(entry) if layer is None else layer))
            model.add(made[-1][1])
        shape = config.get("build_input_shape")
        if shape and not model.built and isinstance(shape, (list, tuple)):
            model.build(tuple(shape))
        return model


def _as_layer(item: object) -> Any:
    """Return the layer that `item` is, or the `Input` that it comes from.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(item, Tensor) and isinstance(getattr(item.annotations.get("history"), "layer", None), InputLayer):
        return history(item).layer
    if isinstance(item, Layer):
        return item
    hint = " Write the class's name with parentheses: Dense(3)." if isinstance(item, type) else ""
    raise TypeError(f"Sequential: expected layers, got {item!r} of type {type(item).__name__}.{hint}")


def _input_of(layer: Layer) -> TensorSpec | None:
    """Return the shape and dtype of the inputs that a first layer takes, if it says so; a model's own, for a model."""
    if layer.batch_input_shape is not None:
        return TensorSpec(layer.batch_input_shape, as_dtype(layer.input_dtype))
    graph = layer._layer_graph if isinstance(layer, Model) else None
    if graph is None or len(graph.inputs) != 1 or graph.inputs_structure is not graph.inputs[0]:
        return None
    return TensorSpec(graph.inputs[0].shape, graph.inputs[0].dtype)


note_constructor(Sequential)
register_builtins("keras", {"Sequential": Sequential})
