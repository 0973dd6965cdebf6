"""`Functional`: a model made of symbolic inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...engine.objects.registry import register_builtins
from .model import Model

if TYPE_CHECKING:
    from ..structures import Tensors


class Functional(Model):
    """The model that ``Model(inputs, outputs)`` makes: the layers between symbolic tensors.

    Args:
        inputs: a tensor from `Input`, or a list or dict of them.
        outputs: what layers and ops made out of them: a tensor, or a list or dict.
        name: a name.

    Inputs are cast to the dtypes of the symbolic inputs; rows of single numbers get an axis of size 1 where these have
    one. A functional model is a layer: it can be called in another model, and layers can be shared among models.

    >>> import anabranch as ab
    >>> left, right = ab.Input((2,), name="left"), ab.Input((2,), name="right")
    >>> shared = ab.layers.Dense(4)
    >>> model = ab.Model([left, right], shared(left) + shared(right))
    >>> model.output_shape, len(model.weights)
    ((None, 4), 2)
    """

    def __init__(self, inputs: Tensors, outputs: Tensors, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)


# Keras 3 writes the first of these modules, and Keras up to 2.15 the second.
register_builtins("keras.src.models.functional", {"Functional": Functional})
register_builtins("keras.src.engine.functional", {"Functional": Functional})
