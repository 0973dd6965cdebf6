"""Attributes of recurrent layers that are named after their cell. The cell holds them, as in Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from ...engine.objects import regularizers
from .rnn import RNN

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ..core.weight import Constraint, Regularizer

T = TypeVar("T")


class OfCell(Generic[T]):
    """An attribute of a recurrent layer that is the one of this name of its cell; it is read only."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, layer: None, owner: type) -> OfCell[T]: ...

    @overload
    def __get__(self, layer: RNN, owner: type) -> T: ...

    def __get__(self, layer: RNN | None, owner: type) -> OfCell[T] | T:
        return self if layer is None else getattr(layer.cell, self._name)

    def __set__(self, layer: RNN, value: object) -> NoReturn:
        raise AttributeError(
            f"{self._name} of layer {layer.name!r} can't be set: it is its cell's, and says what the layer was made "
            f"with. Give {self._name}= to a new {type(layer).__name__}."
        )


class NamedAfterCell(RNN):
    """The base of the recurrent layers that make their own cell, a `RecurrentCell`, and have its arguments."""

    activation: OfCell[Callable[[Tensor], Tensor]] = OfCell()
    use_bias: OfCell[bool] = OfCell()
    kernel_initializer: OfCell[Callable[..., Any]] = OfCell()
    recurrent_initializer: OfCell[Callable[..., Any]] = OfCell()
    bias_initializer: OfCell[Callable[..., Any]] = OfCell()
    kernel_regularizer: OfCell[Regularizer | None] = OfCell()
    recurrent_regularizer: OfCell[Regularizer | None] = OfCell()
    bias_regularizer: OfCell[Regularizer | None] = OfCell()
    kernel_constraint: OfCell[Constraint | None] = OfCell()
    recurrent_constraint: OfCell[Constraint | None] = OfCell()
    bias_constraint: OfCell[Constraint | None] = OfCell()
    dropout: OfCell[float] = OfCell()
    recurrent_dropout: OfCell[float] = OfCell()

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        inner = dict(config.pop("cell")["config"])
        for name in ("name", "trainable", "dtype"):
            inner.pop(name)
        return {**config, **inner, "activity_regularizer": regularizers.serialize(self.activity_regularizer)}
