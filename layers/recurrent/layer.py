"""The base of `LSTM`, `GRU` and `SimpleRNN`: an `RNN` that makes its own cell."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ...engine.common.keywords import unexpected_keywords
from ...engine.objects.names import to_snake_case
from ..core.input_spec import InputSpec
from ..core.layer import Layer
from ..core.layer_config import SHAPE_ARGUMENTS
from .cell import RecurrentCell
from .of_cell import NamedAfterCell, OfCell
from .rnn import RNN

# An argument of Keras's constructors that chooses between kernels; there are none here.
_IGNORED = ("use_cudnn",)


def _names(function: Callable[..., object]) -> set[str]:
    return set(inspect.signature(function).parameters)


_LAYER_ARGUMENTS = ((_names(RNN.__init__) | _names(Layer.__init__)) - {"self", "cell", "kwargs"}) | set(SHAPE_ARGUMENTS)


class RecurrentLayer(NamedAfterCell):
    """The base of the recurrent layers that are named after their cell."""

    cell_class: ClassVar[type[RecurrentCell]]

    units = OfCell[int]()

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
