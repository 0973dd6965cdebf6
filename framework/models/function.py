"""`Function`: the computation between symbolic tensors, without a model around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .model import Functional

if TYPE_CHECKING:
    from ...engine.common.nest import Nest
    from ..structures import Arrays, ShapeLike, Tensors
    from .layer_graph import AnyLayer


class Function:
    """A callable that computes symbolic outputs from symbolic inputs (``keras.Function``).

    It has no weights, losses or training of its own: those are of the layers in it. `Model` has all of that.

    Args:
        inputs: a tensor from `Input` or a layer, or a list or dict of them.
        outputs: what layers and ops made out of them: a tensor, or a list or dict.
        name: a name.

    Raises:
        ValueError: the outputs need something else than the inputs.

    >>> import anabranch as ab
    >>> x = ab.Input((2,))
    >>> features = ab.layers.Dense(3, kernel_initializer="ones")(x)
    >>> middle = ab.Function(features, ab.ops.relu(features) * 2)
    >>> middle(ab.ops.ones((1, 3)))
    Tensor([[2., 2., 2.]], dtype=float32)
    """

    def __init__(self, inputs: Tensors, outputs: Tensors, name: str | None = None) -> None:
        self._model = Functional(inputs, outputs, name=name)
        self.inputs = self._model.inputs
        self.outputs = self._model.outputs
        self.name = self._model.name

    @property
    def operations(self) -> list[AnyLayer]:
        """The layers and ops, in the order in which they run."""
        graph = self._model._layer_graph
        return [] if graph is None else list(graph.operations)

    def __call__(self, inputs: Arrays) -> Any:
        """Return the outputs for values or tensors in the structure of the inputs."""
        return self._model(inputs)

    def compute_output_shape(self, input_shape: Nest[ShapeLike]) -> Any:
        """Return the shapes of the outputs, in their structure, for those of the inputs."""
        return self._model.compute_output_shape(input_shape)

    def compute_output_spec(self, inputs: Tensors) -> Any:
        """Return symbolic outputs for symbolic inputs."""
        return self._model(inputs)

    def __repr__(self) -> str:
        return f"<Function {self.name}: {len(self.operations)} operations>"
