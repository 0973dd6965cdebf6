"""The base of `LSTM`, `GRU` and `SimpleRNN`: an `RNN` that makes its own cell."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...engine.common.keywords import unexpected_keywords
from ...engine.objects import regularizers
from ...engine.objects.names import to_snake_case
from ..core.input_spec import InputSpec
from ..core.layer import Layer
from ..core.layer_config import SHAPE_ARGUMENTS
from .cell import RecurrentCell
from .rnn import RNN

if TYPE_CHECKING:
    from ...engine.graph import Tensor

# An argument of Keras's constructors that chooses between kernels; there are none here.
_IGNORED = ("use_cudnn",)


def _names(function: Callable[..., object]) -> set[str]:
    return set(inspect.signature(function).parameters)


_LAYER_ARGUMENTS = ((_names(RNN.__init__) | _names(Layer.__init__)) - {"self", "cell", "kwargs"}) | set(SHAPE_ARGUMENTS)


class RecurrentLayer(RNN):
    """The base of the recurrent layers that are named after their cell."""

    cell_class: ClassVar[type[RecurrentCell]]

    def __init__(self, units: int, **kwargs: Any) -> None:
        known = _LAYER_ARGUMENTS | _names(self.cell_class.__init__) | _names(RecurrentCell.__init__) | {*_IGNORED}
        unknown = sorted(set(kwargs) - (known - {"self", "kwargs", "cell"}))
        if unknown:
            raise unexpected_keywords(type(self).__name__, unknown, sorted(known - {"self", "kwargs", "cell"}))
        outer = {name: value for name, value in kwargs.items() if name in _LAYER_ARGUMENTS}
        inner = {name: value for name, value in kwargs.items() if name not in outer and name not in _IGNORED}
        cell_name = to_snake_case(self.cell_class.__name__)
        shared = {name: outer[name] for name in ("dtype", "trainable") if name in outer}
        super().__init__(self.cell_class(units, name=cell_name, **inner, **shared), **outer)
        self.input_spec = InputSpec(ndim=3)

    def build(self, sequences_shape: Sequence[int | None], initial_state_shape: object = None) -> None:
        super().build(sequences_shape, initial_state_shape)
        self.input_spec = InputSpec(ndim=3, axes={-1: sequences_shape[-1]})

    @property
    def units(self) -> int:
        return self.cell.units

    @property
    def activation(self) -> Callable[[Tensor], Tensor]:
        return self.cell.activation

    @property
    def use_bias(self) -> bool:
        return self.cell.use_bias

    @property
    def dropout(self) -> float:
        return self.cell.dropout

    @property
    def recurrent_dropout(self) -> float:
        return self.cell.recurrent_dropout

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        inner = dict(config.pop("cell")["config"])
        for name in ("name", "trainable", "dtype"):
            inner.pop(name)
        return {**config, **inner, "activity_regularizer": regularizers.serialize(self.activity_regularizer)}
