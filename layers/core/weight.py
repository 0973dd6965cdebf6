"""`Weight`: a variable that belongs to a layer; `WeightSpec`: one as a row of data, from which `build` makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ...engine import ops
from ...engine.common.dtypes import is_floating
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import DType, Tensor, Variable, as_dtype
from ...engine.objects.identifiers import InitializerLike
from .calling import autocast_dtype, without_autocast

if TYPE_CHECKING:
    from ...engine.common.dtypes import DTypeLike
    from ...engine.graph import IndexedSlices
    from ...engine.ops.base import TensorLike

Regularizer: TypeAlias = "Callable[[Variable], TensorLike]"
"""A function of a weight that gives a penalty."""

Constraint: TypeAlias = "Callable[[TensorLike], TensorLike]"
"""A function of a weight's new value that gives the nearest allowed one."""


class Weight(Variable):
    """A variable with the settings that layers and optimizers need.

    Args:
        value: the initial value, an array.
        name: its name in its layer, such as ``kernel``.
        path: its name among all, such as ``sequential/dense/kernel``.
        dtype: its dtype; by default that of `value`.
        trainable: whether optimizers update it.
        regularizer: a function of the weight that gives a penalty for the loss.
        constraint: a function that projects a new value after an update.
        aggregation: how replicas agree on its value; None for the default.
        autocast: whether a layer that computes in another dtype than that of its weights reads it in that one.
    """

    def __init__(
        self,
        value: object,
        name: str,
        path: str,
        dtype: DTypeLike = None,
        trainable: bool = True,
        regularizer: Regularizer | None = None,
        constraint: Constraint | None = None,
        aggregation: str | None = None,
        autocast: bool = True,
    ) -> None:
        super().__init__(value, dtype=dtype, trainable=trainable, name=name, aggregation=aggregation)
        self.path = path
        self.regularizer = regularizer
        self.constraint = constraint
        self._autocast = autocast and is_floating(self.spec.dtype)

    def _read_dtype(self) -> str | None:
        """Return the dtype in which the layer that is being called reads the weight; None for its own."""
        return autocast_dtype() if self._autocast else None

    @property
    def dtype(self) -> DType:
        """The dtype in which it is read here: inside a layer that mixes dtypes, that of the computation."""
        dtype = self._read_dtype()
        return self.spec.dtype if dtype is None else as_dtype(dtype)

    @property
    def value(self) -> Tensor:
        """The value at this place of the program, as a tensor of the current graph, in `dtype`."""
        dtype, value = self._read_dtype(), super().value
        return value if dtype is None else ops.cast(value, dtype)

    def assign(self, value: object) -> Any:
        """Set the value, in the weight's own dtype; see `Variable`."""
        with without_autocast():
            return super().assign(value)

    def _update(self, operator: str, delta: TensorLike) -> Tensor:
        with without_autocast():
            return super()._update(operator, delta)

    def scatter_update(self, sparse_delta: IndexedSlices, name: str | None = None) -> Tensor:
        """Set rows; see `Variable`."""
        with without_autocast():
            return super().scatter_update(sparse_delta, name)

    def scatter_add(self, sparse_delta: IndexedSlices, name: str | None = None) -> Tensor:
        """Add to rows; see `Variable`."""
        with without_autocast():
            return super().scatter_add(sparse_delta, name)

    def scatter_sub(self, sparse_delta: IndexedSlices, name: str | None = None) -> Tensor:
        """Subtract from rows; see `Variable`."""
        with without_autocast():
            return super().scatter_sub(sparse_delta, name)

    def __repr__(self) -> str:
        return f"<Weight {self.path} {self.spec}>"


@dataclass(frozen=True)
class WeightSpec:
    """Describe one weight of a layer; see `Layer.weight_specs`.

    Args:
        name: the name of the weight.
        shape: its shape, all dimensions known.
        initializer: gives the first value; by default the layer's attribute ``<options>_initializer``.
        options: the prefix of the layer's attributes ``<options>_initializer``, ``<options>_regularizer`` and
            ``<options>_constraint``, of which each may be missing; by default `name`.
        attribute: the name of the attribute that holds it; by default `name`.
        present: whether there is this weight; where it is False, the attribute is None.
        trainable, dtype, autocast: see `Layer.add_weight`.
    """

    name: str
    shape: tuple[int | None, ...]
    initializer: InitializerLike = None
    options: str | None = None
    attribute: str | None = None
    present: bool = True
    trainable: bool = True
    dtype: DTypeLike = None
    autocast: bool = True

    def settings(self, layer: object) -> dict[str, Any]:
        """Return the arguments of `layer.add_weight`."""
        prefix = self.options or self.name
        initializer = getattr(layer, f"{prefix}_initializer", None) if self.initializer is None else self.initializer
        return {
            "shape": self.shape,
            "initializer": initializer,
            "regularizer": getattr(layer, f"{prefix}_regularizer", None),
            "constraint": getattr(layer, f"{prefix}_constraint", None),
            "trainable": self.trainable,
            "dtype": self.dtype,
            "autocast": self.autocast,
            "name": self.name,
        }
