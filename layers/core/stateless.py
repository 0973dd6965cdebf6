"""Layers as pure functions: the weights go in as values, and what would have been assigned to them comes out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ...engine.common.names_elsewhere import LAYERS, ExplainsNames
from ...engine.graph import StatelessScope, Symbol, Tensor, Variable
from ...engine.graph.graph import graph_for
from ...engine.objects.identifiers import ConstraintLike, InitializerLike, RegularizerLike
from ...engine.objects.tracking import TrackedMetric, held_by_attributes
from .calling import is_array, map_leaves, numbers_to_arrays, symbols_in
from .layer_config import LayerConfig
from .node import graph_for_shapes
from .weight import Weight

if TYPE_CHECKING:
    from ...engine.common.dtypes import DTypeLike
    from ...engine.ops.base import TensorLike
    from .options import ShapeLike
    from .shape_programs import ArrayFunction


class StatelessCalls(LayerConfig, ExplainsNames, elsewhere=LAYERS):
    """The half of `Layer` that calls it without changing it; see there."""

    _functions: dict[Hashable, ArrayFunction]
    _call_on_tensors: Callable[[tuple[object, ...], dict[str, object]], object]

    def stateless_call(
        self,
        trainable_variables: Sequence[TensorLike],
        non_trainable_variables: Sequence[TensorLike],
        *args: object,
        return_losses: bool = False,
        **kwargs: object,
    ) -> Any:
        """Call the layer with other values for its weights, and change nothing.

        Args:
            trainable_variables: a value for each of `trainable_variables`: tensors, arrays or variables.
            non_trainable_variables: the same for `non_trainable_variables`.
            *args, **kwargs: as for a call of the layer.
            return_losses: whether to return the layer's losses, too.

        Returns:
            ``(outputs, non_trainable_variables)``: the latter as the call would have left them; with `return_losses`
            also the list of losses. Symbols where symbols are given or a graph is being built, else values.

        Raises:
            ValueError: the layer is not built; the numbers or shapes of the values differ from those of the weights.

        >>> import anabranch as ab
        >>> layer = ab.layers.BatchNormalization(momentum=0.5, center=False, scale=False)
        >>> layer.build((None, 1))
        >>> outputs, (mean, _) = layer.stateless_call([], layer.non_trainable_variables, [[1.0], [3.0]], training=True)
        >>> mean, layer.moving_mean.numpy()
        (Tensor([1.], dtype=float32), array([0.], dtype=float32))
        """
        self._check_values(trainable_variables, self.trainable_variables, "trainable")
        self._check_values(non_trainable_variables, self.non_trainable_variables, "non-trainable")
        values = [*trainable_variables, *non_trainable_variables]
        return self._call_with(values, (*map(numbers_to_arrays, args[:1]), *args[1:]), kwargs, return_losses)

    def _call_with(
        self, values: list[TensorLike], args: tuple[object, ...], kwargs: dict[str, object], return_losses: bool
    ) -> tuple[object, ...]:
        variables = [*self.trainable_variables, *self.non_trainable_variables]
        symbols = symbols_in((values, args, kwargs))
        with _graph_of(symbols), StatelessScope(zip(variables, values, strict=True)) as scope:
            outputs = self._call_on_tensors(args, kwargs)
            after = [scope.get_current_value(variable) for variable in self.non_trainable_variables]
            return (outputs, after, list(self.losses)) if return_losses else (outputs, after)

    def _check_values(self, values: Sequence[TensorLike], variables: list[Variable], which: str) -> None:
        if not self.built:
            raise ValueError(
                f"Layer {self.name!r} is not built, so that it has no weights to give values for. Call it once, or "
                "build(input_shape), before stateless_call()."
            )
        if len(values) != len(variables):
            raise ValueError(
                f"Layer {self.name!r}: stateless_call() was given {len(values)} {which} variables, expected "
                f"{len(variables)}: {', '.join(variable.name for variable in variables) or 'none'}."
            )

    def symbolic_call(self, *args: object, **kwargs: object) -> Any:
        """Return the outputs of a call as symbols: their shapes and dtypes, without anything being computed.

        Args:
            *args, **kwargs: as for a call; of arrays and tensors nothing but shape and dtype is used.

        Returns:
            Tensors of a graph of their own, in the structure of the outputs.

        >>> import anabranch as ab
        >>> ab.layers.Dense(3).symbolic_call(ab.Input((2,))).shape
        (None, 3)
        """
        from ...engine.ops import convert_to_tensor
        from ...engine.session import placeholder

        def symbol(leaf: object) -> object:
            if isinstance(leaf, Variable) or is_array(leaf):
                leaf = convert_to_tensor(leaf)
            return placeholder(leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf

        with graph_for_shapes(), self._losses_kept():
            first = tuple(map_leaves(symbol, arg) for arg in map(numbers_to_arrays, args[:1]))
            rest = tuple(map_leaves(symbol, arg) for arg in args[1:])
            return self._call_on_tensors((*first, *rest), {name: map_leaves(symbol, v) for name, v in kwargs.items()})

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of a call as symbols, as `symbolic_call` gives them."""
        return self.symbolic_call(*args, **kwargs)

    def add_variable(
        self,
        shape: ShapeLike,
        initializer: InitializerLike,
        dtype: DTypeLike = None,
        trainable: bool = True,
        autocast: bool = True,
        regularizer: RegularizerLike = None,
        constraint: ConstraintLike = None,
        name: str | None = None,
    ) -> Weight:
        """Make a weight of this layer: another name of `add_weight`."""
        return self.add_weight(
            shape=shape,
            initializer=initializer,
            dtype=dtype,
            trainable=trainable,
            autocast=autocast,
            regularizer=regularizer,
            constraint=constraint,
            name=name,
        )

    @property
    def _trainable_variables(self) -> list[Variable]:
        """The variables of this layer itself that were made trainable, by Keras's name for subclasses."""
        return [variable for variable in self._own_variables() if variable.was_made_trainable]

    @property
    def _non_trainable_variables(self) -> list[Variable]:
        """The other variables of this layer itself."""
        return [variable for variable in self._own_variables() if not variable.was_made_trainable]

    @property
    def metrics(self) -> list[Any]:
        """The metrics that are attributes of this layer or of layers inside it."""
        found: dict[int, TrackedMetric] = {}
        for layer in self._flatten_layers():
            found.update(
                {id(metric): metric for metric in held_by_attributes(layer, TrackedMetric, type(self).untracked)}
            )
        return list(found.values())

    @property
    def metrics_variables(self) -> list[Variable]:
        """The variables of all `metrics`, which are not weights."""
        return [variable for metric in self.metrics for variable in metric.variables]


def _graph_of(symbols: list[Symbol]) -> AbstractContextManager[object]:
    """Return the block in which symbols can be used; none is needed for values."""
    return graph_for(symbols).entered() if symbols else nullcontext()
