"""`WeightSpec`: a weight of a layer as a row of data, from which `build` makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...engine.objects.identifiers import InitializerLike


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
    dtype: Any = None
    autocast: bool = True

    def settings(self, layer: Any) -> dict[str, Any]:
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
