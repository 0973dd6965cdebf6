"""Layers whose weight can be adapted by a product of low rank (LoRA)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from ...engine.graph import ShardedVariable, Variable, eagerly
from ...engine.graph.state.sharded import expanded, grouped
from ...engine.objects import initializers
from ...engine.objects.arguments import check_optional_numbers
from ...engine.objects.identifiers import InitializerLike
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..core.layer_state import assign_values
from ..core.weight import Weight

if TYPE_CHECKING:
    from ..core.options import LayerOptions


Array = np.ndarray


@config_from_signature(lora_rank="", lora_alpha="")
class AdaptableLayer(Layer):
    """Base of layers that `enable_lora` changes.

    A class has its weight in the attribute that `main_weight` names, with an underscore, and defines `_lora_shapes`.

    Args:
        lora_rank: enable adapters of that rank when the layer is built.
        lora_alpha: their weight, divided by the rank; by default the rank.
        **kwargs: see `Layer`.
    """

    main_weight: ClassVar[str] = "kernel"

    def __init__(
        self, *, lora_rank: int | None = None, lora_alpha: float | None = None, **kwargs: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**kwargs)
        check_optional_numbers(type(self).__name__, lora_rank=lora_rank, lora_alpha=lora_alpha)
        self.lora_rank = lora_rank
        self.lora_alpha = lora_rank if lora_alpha is None else lora_alpha
        self.lora_enabled = False

    # --- what classes define --------------------------------------------------------------------------------

    def _lora_shapes(self, rank: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the shapes of the two factors, whose product has the shape of the weight."""
        raise NotImplementedError

    def _saved_names(self, mode: str | None) -> list[str]:
        """Return the attributes whose values files hold, in Keras's order, without those that are None or missing."""
        return [f"_{self.main_weight}", "bias"]

    def _float_weight(self) -> Array:
        """Return the main weight as floating-point numbers, without adapters."""
        return getattr(self, f"_{self.main_weight}").numpy()

    def _check_adaptable(self) -> None:
        """Raise an error if the layer can't have adapters as it is."""
        if self._rounded_weights:
            raise NotImplementedError(
                f"Layer {self.name!r}: lora is not supported on weights that quantize(include='all') has rounded. "
                "Enable adapters, train and merge_lora() before."
            )

    def _enable_given_lora(self) -> None:
        """Enable the adapters that the constructor was asked for, once all weights are made."""
        if self.lora_rank and not self.lora_enabled:
            rank, alpha = self.lora_rank, self.lora_alpha
            self.built = True
            self.enable_lora(rank, alpha)

    def _drop(self, name: str) -> None:
        dropped = {id(part) for part in expanded([getattr(self, name)])}
        self._weights = [weight for weight in self._weights if id(weight) not in dropped]
        setattr(self, name, None)

    # --- adapters of low rank -------------------------------------------------------------------------------

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer: InitializerLike = "he_uniform",
        b_initializer: InitializerLike = "zeros",
    ) -> None:
        """Freeze the weight, and train two factors whose product is added to it.

        Args:
            rank: of the product.
            lora_alpha: the product is multiplied by ``lora_alpha / rank``; by default by 1.
            a_initializer, b_initializer: first values of the factors; zeros for one, so that nothing changes at first.

        Raises:
            ValueError: the layer is not built, has adapters already, or a constraint of its weight.
            NotImplementedError: it was quantised by GPTQ.

        Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
        """
        if getattr(self, f"{self.main_weight}_constraint", None):
            raise ValueError(
                f"Lora is incompatible with {self.main_weight} constraints. In order to enable lora on this layer, "
                f"remove the `{self.main_weight}_constraint` argument."
            )
        if not self.built:
            raise ValueError("Cannot enable lora on a layer that isn't yet built.")
        if self.lora_enabled:
            raise ValueError("lora is already enabled. This can only be done once per layer.")
        self._check_adaptable()
        if isinstance(rank, bool) or not isinstance(rank, int) or rank <= 0:
            raise ValueError(f"Layer {self.name!r}: rank must be a positive integer, got rank={rank!r}.")
        regularizer = getattr(self, f"{self.main_weight}_regularizer", None)
        names = [f"lora_{self.main_weight}_{factor}" for factor in "ab"]
        shapes = self._lora_shapes(rank)
        with eagerly():
            for name, shape, initializer in zip(names, shapes, (a_initializer, b_initializer), strict=True):
                factor = self.add_weight(
                    shape=tuple(shape),
                    initializer=initializers.get(initializer),
                    dtype="float64" if self.variable_dtype == "float64" else "float32",
                    regularizer=regularizer,
                    name=name,
                )
                setattr(self, name, factor)
        main = getattr(self, f"_{self.main_weight}", None)
        if isinstance(main, Variable | ShardedVariable):
            main.trainable = False
        self.lora_enabled = True
        self.lora_rank = rank
        self.lora_alpha = rank if lora_alpha is None else lora_alpha
        self._weights_changed()

    @property
    def _lora_scale(self) -> float:
        return float(self.lora_alpha or 0) / float(self.lora_rank or 1)

    def _lora_factors(self) -> tuple[Weight, Weight]:
        return getattr(self, f"lora_{self.main_weight}_a"), getattr(self, f"lora_{self.main_weight}_b")

    def _lora_delta(self) -> Array:
        """Return the sum that the adapters add to the weight."""
        a, b = [factor.numpy() for factor in self._lora_factors()]
        return np.matmul(a, b) * np.asarray(self._lora_scale, a.dtype)

    def merge_lora(self) -> None:
        """Add the adapters' product to the weight, and take them away. The weight is trained again.

        Raises:
            ValueError: the layer has no adapters.
        """
        if not self.lora_enabled:
            raise ValueError(f"Layer {self.name!r} has no adapters of low rank to merge: lora is not enabled.")
        values = self._merged_values()
        assign_values(self.name, [getattr(self, name) for name in values], list(values.values()))
        for factor in "ab":
            self._drop(f"lora_{self.main_weight}_{factor}")
        if self.quantization_mode is None:
            getattr(self, f"_{self.main_weight}").trainable = True
        self.lora_enabled, self.lora_rank, self.lora_alpha = False, None, None
        self._weights_changed()

    def _merged_values(self) -> dict[str, Array]:
        """Return the values of the saved weights that adapters change, with these added."""
        return {f"_{self.main_weight}": self._float_weight() + self._lora_delta()}

    # --- files ----------------------------------------------------------------------------------------------

    def _frozen_names(self) -> list[str]:
        """Return the names of frozen weights, without the one adapters freeze: not all saved layers have adapters."""
        main = getattr(self, f"_{self.main_weight}", None) if self.lora_enabled else None
        return [name for name in super()._frozen_names() if main is None or name != main.name]

    def _stored_variables(self) -> list[Variable]:
        if (self.quantization_mode is None or self._rounded_weights) and not self.lora_enabled:
            return super()._stored_variables()
        named = [getattr(self, name, None) for name in self._saved_names(self.quantization_mode)]
        found = expanded([variable for variable in named if isinstance(variable, Variable | ShardedVariable)])
        factors = [] if not self.lora_enabled else list(self._lora_factors())
        known = {id(variable) for variable in (*found, *factors)}
        return [*found, *[variable for variable in self._own_variables() if id(variable) not in known]]

    def _stored_values(self) -> list[Any]:
        if not self.lora_enabled:
            return super()._stored_values()
        merged = {id(getattr(self, name)): value for name, value in self._merged_values().items()}
        return [merged.get(id(variable), variable.numpy()) for variable in grouped(self._stored_variables())]

    def _after_loading(self) -> None:
        """Reset adapters, of which files hold the sum with the weights."""
        if self.lora_enabled:
            factors = self._lora_factors()
            assign_values(self.name, factors, [np.zeros(factor.shape, "float32") for factor in factors])

    def get_config(self) -> dict[str, Any]:
        adapters = {"lora_rank": self.lora_rank, "lora_alpha": self.lora_alpha} if self.lora_rank else {}
        return {**super().get_config(), **adapters}
