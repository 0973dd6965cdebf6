"""`Sequential`: layers in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..engine.graph import Tensor, flatten
from ..engine.objects.registry import deserialize_keras_object, register_builtins, serialize_keras_object
from ..layers.calling import shapes_of
from ..layers.input_layer import InputLayer
from ..layers.layer import Layer
from ..layers.tracking import held_by_attributes
from .layer_graph import LayerGraph, history
from .model import Model


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
        self, layers: Sequence[Any] | None = None, trainable: bool = True, name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(trainable=trainable, name=name, **kwargs)
        self._stack: list[Layer] = []
        self._input_layer: InputLayer | None = None
        self._symbolic: list[Tensor] = []  # what each layer gives for the symbolic input
        self._has_own_input = False  # whether the input was declared, rather than seen in data
        if layers is not None and not isinstance(layers, (list, tuple)):
            layers = [layers]
        for layer in layers or []:
            self.add(layer)

    def add(self, layer: Any) -> None:
        """Put a layer at the end.

        Raises:
            TypeError: it is no layer. ValueError: its name is taken, or it gives several tensors.
        """
        layer = _as_layer(layer)
        if isinstance(layer, InputLayer):
            self._start(layer)
            return
        if any(other.name == layer.name for other in self._stack):
            raise ValueError(
                f"Model {self.name!r} has a layer called {layer.name!r} already. Give each layer a name of its own."
            )
        if not self._stack and self._input_layer is None and layer.batch_input_shape is not None:
            self._start(InputLayer(batch_shape=layer.batch_input_shape, dtype=layer.input_dtype))
        self._stack.append(layer)
        self._changed()
        if self._has_own_input:
            try:
                self._extend(layer)
            except BaseException:
                self._stack.pop()
                raise
        else:
            self.built = False
            self._input_layer = None

    def pop(self) -> Layer:
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
        self._layer_graph = None
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

    @property
    def graph(self) -> LayerGraph | None:
        """The symbolic calls, once the shape of the input is known."""
        if self._layer_graph is None and self._input_layer is not None:
            for layer in self._stack[len(self._symbolic) :]:
                self._extend(layer)
            output = self._symbolic[-1] if self._symbolic else self._input_layer.output
            self._layer_graph = LayerGraph(self._input_layer.output, output, self.name)
        return self._layer_graph

    def build(self, input_shape: Any = None, **shapes: Any) -> None:
        """Make the weights for inputs of a shape (with the batch); nothing to do if there was an `Input`."""
        if self.built or input_shape is None:
            return
        if not self._stack:
            raise ValueError(f"Model {self.name!r} has no layers, so there is nothing to build. Add layers first.")
        self._note_input(tuple(input_shape), None)
        assert self.graph is not None

    def _note_input(self, batch_shape: tuple[int | None, ...], dtype: Any) -> None:
        self._input_layer = InputLayer(batch_shape=batch_shape, dtype=dtype or self._stack[0].input_dtype)
        self._symbolic = []
        self._layer_graph = None
        self._build_shapes = {"input_shape": batch_shape}
        self.built = True

    def _ensure_built(self, arguments: dict[str, Any]) -> None:
        if self.built or type(self).build is not Sequential.build:
            super()._ensure_built(arguments)
            return
        # The call itself makes the weights; the symbolic form is made when somebody asks for it.
        shapes = flatten_shapes(arguments)
        if len(shapes) == 1 and shapes[0][0] is not None:
            shape, dtype = shapes[0]
            self._build_shapes = {"input_shape": (None, *shape[1:])}
            self._deferred_dtype = dtype
        self.built = True

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if not self._stack and self._input_layer is None:
            raise ValueError(f"Model {self.name!r} has no layers, so it can't be called. Add layers first.")
        if self._has_own_input:
            return super().call(inputs, training, mask)
        outputs = inputs
        if mask is not None and isinstance(inputs, Tensor):
            inputs.annotations["mask"] = mask
        for layer in self._stack:
            outputs = layer(outputs)
        return outputs
