"""Layers whose weights can be quantised, and adapted by products of low rank (LoRA)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ...engine.graph import Variable, eagerly
from ...engine.objects import initializers
from ..layer import Layer
from ..layer_state import assign_values
from ..weight import Weight

Array = np.ndarray[Any, Any]


class QuantizableLayer(Layer):
    """Base of layers that `quantize` and `enable_lora` change.

    A class says how with `_quantized_values`, `_build_quantized`, `_saved_names` and `_lora_shapes`.

    Args:
        quantization_config: of a layer that is built quantised, as its dtype policy says.
        lora_rank: enable adapters of that rank when the layer is built.
        lora_alpha: their weight, divided by the rank; by default the rank.
        **kwargs: see `Layer`.
    """

    modes: ClassVar[tuple[str, ...]] = ("int8", "int4")
    main_weight: ClassVar[str] = "kernel"  # kept in the attribute of that name with an underscore

    def __init__(
        self,
        *,
        quantization_config: Any = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.quantization_config = quantization_config
        self.lora_rank = lora_rank
        self.lora_alpha = lora_rank if lora_alpha is None else lora_alpha
        self.lora_enabled = False
        self.inputs_quantizer: Any = None
        self.inputs_scale: float | None = None  # fixed by calibration
        self._int4_block_size: int | None = None

    # --- what classes define --------------------------------------------------------------------------------

    def _build_quantized(self, mode: str) -> None:
        """Make the weights that `_saved_names` lists."""
        raise NotImplementedError

    def _quantized_values(self, mode: str, config: Any) -> dict[str, Array]:
        """The values of these weights, from those that there are now."""
        raise NotImplementedError

    def _saved_names(self, mode: str | None) -> list[str]:
        """The attributes whose values files hold, in Keras's order; those that are None or missing are not there."""
        raise NotImplementedError

    def _lora_shapes(self, rank: int) -> tuple[Sequence[int], Sequence[int]]:
        """The shapes of the two factors, whose product has the shape of the weight."""
        raise NotImplementedError

    def _float_weight(self) -> Array:
        """The main weight as floating-point numbers, without adapters."""
        raise NotImplementedError

    # --- quantising -----------------------------------------------------------------------------------------

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        """Replace the weights by quantised ones, for inference.

        Args:
            mode: ``"int8"`` or ``"int4"``; by default that of `config`.
            type_check: refuse layers of derived classes, which may compute something else.
            config: a `QuantizationConfig`; by default that of `mode`.

        Raises:
            ValueError: the layer is not built, or quantised already, or mode and config do not fit.
            NotImplementedError: the layer has no such mode, or is of a derived class.
        """
        from .configs import resolved_config

        self._check_quantizable(mode, config)
        if type_check and not self._is_own_class():
            raise NotImplementedError(
                f"Layer {self.name!r} of class {type(self).__name__} is not quantised: it may compute something else "
                f"than the layer that it derives from. If it does not, pass type_check=False."
            )
        found = resolved_config(mode, config)
        if found.mode not in self.modes:
            raise NotImplementedError(
                f"Invalid quantization mode. {type(self).__name__} has the modes {self.modes}. Received: "
                f"quantization_mode={found.mode!r}"
            )
        self._int4_block_size = getattr(found, "block_size", None) if found.mode == "int4" else None
        self.replace_weights(found.mode, self._quantized_values(found.mode, found), found)

    def replace_weights(self, mode: str, values: dict[str, Array], config: Any = None) -> None:
        """Put quantised weights in the place of those that there are.

        Args:
            mode: how they are quantised.
            values: of each attribute.
            config: what is written into files.
        """
        from ...engine.objects import policies

        label = self._policy_label(mode, config)
        self.become(policies.get(f"{label}_from_{self.dtype_policy.name}"), config)
        assign_values(self.name, [getattr(self, name) for name in values], list(values.values()))

    def become(self, policy: Any, config: Any = None) -> None:
        """Make the weights that a policy of quantisation asks for, in the place of those that there are.

        Args:
            policy: the dtype policy from now on.
            config: the `QuantizationConfig`; None for that of the policy's mode.
        """
        for name in self._replaced_names():
            self._drop(name)
        self.quantization_config, self._dtype_policy = config, policy
        self._int4_block_size = self._block_size() if policy.quantization_mode == "int4" else None
        with eagerly():
            self._build_quantized(policy.quantization_mode)
        self._weights_changed()

    def _check_quantizable(self, mode: str | None, config: Any) -> None:
        """Refuse as Keras does: in its order, by its kind of error."""
        from ...engine.objects.quantized_policies import QUANTIZATION_MODES

        if not self.built:
            raise ValueError(
                f"Cannot quantize a layer that isn't yet built. Layer '{self.name}' (of type "
                f"'{type(self).__name__}') is not built yet. Call it once, or build(input_shape), first."
            )
        if self.quantization_mode is not None:
            raise ValueError(
                f"Layer '{self.name}' is already quantized with dtype_policy='{self.dtype_policy.name}'. Received: "
                f"mode={mode}"
            )
        wanted = getattr(config, "mode", None) if mode is None else mode
        if wanted is not None and wanted not in QUANTIZATION_MODES:
            raise ValueError(
                f"Invalid quantization mode. Expected one of {QUANTIZATION_MODES}. Received: mode={mode!r}"
            )
        if wanted == "int8" and self.compute_dtype == "float16":
            raise ValueError(
                "Quantization mode='int8' doesn't work well with compute_dtype='float16'. Consider loading "
                "model/layer with another dtype policy such as 'mixed_bfloat16' before calling `quantize()`."
            )

    def _is_own_class(self) -> bool:
        """Whether the layer's class is one of anabranch, not derived from one by a user."""
        return type(self).__module__.startswith(__name__.partition(".layers")[0] + ".")

    def _policy_label(self, mode: str, config: Any) -> str:
        if mode == "int4":
            return f"int4/{self._int4_block_size or -1}"
        return config.dtype_policy_string() if hasattr(config, "dtype_policy_string") else mode

    def _block_size(self) -> int | None:
        """The terms that share a scale, of a layer of int4; None where all do."""
        found = getattr(self.quantization_config, "block_size", None)
        found = getattr(self.dtype_policy, "block_size", found) if found is None else found
        return None if found in (None, -1) else found

    def _activation_quantizer(self, default: Any) -> Any:
        config = self.quantization_config
        return default if config is None else config.activation_quantizer

    def _replaced_names(self) -> list[str]:
        return [f"_{self.main_weight}"]

    def _drop(self, name: str) -> None:
        dropped = getattr(self, name)
        self._weights = [weight for weight in self._weights if weight is not dropped]
        setattr(self, name, None)

    def _frozen_weight(
        self, name: str, shape: Sequence[int], dtype: str | None = None, initializer: str = "zeros"
    ) -> Weight:
        """Make a weight that is neither trained nor read in another dtype."""
        return self.add_weight(
            shape=tuple(shape), initializer=initializer, dtype=dtype, trainable=False, autocast=False, name=name
        )

    # --- adapters of low rank -------------------------------------------------------------------------------

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer: Any = "he_uniform",
        b_initializer: Any = "zeros",
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
        if self.quantization_mode == "gptq":
            raise NotImplementedError("lora is not currently supported with GPTQ quantization.")
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
                    dtype="float32",
                    regularizer=regularizer,
                    name=name,
                )
                setattr(self, name, factor)
        main = getattr(self, f"_{self.main_weight}", None)
        if isinstance(main, Variable):
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
        """What the adapters add to the weight."""
        a, b = [factor.numpy() for factor in self._lora_factors()]
        return np.matmul(a, b) * np.float32(self._lora_scale)

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
        """The values of the saved weights that adapters change, with these added, and rounded anew."""
        merged = self._float_weight() + self._lora_delta()
        mode = self.quantization_mode
        if mode is None:
            return {f"_{self.main_weight}": merged}
        return self._round(mode, merged)

    def _round(self, mode: str, weight: Array) -> dict[str, Array]:
        """A float weight as the layer's quantised ones."""
        raise NotImplementedError

    # --- files ----------------------------------------------------------------------------------------------

    def stored_variables(self) -> list[Variable]:
        if self.quantization_mode is None and not self.lora_enabled:
            return super().stored_variables()
        named = [getattr(self, name, None) for name in self._saved_names(self.quantization_mode)]
        found = [variable for variable in named if isinstance(variable, Variable)]
        factors = [] if not self.lora_enabled else list(self._lora_factors())
        known = {id(variable) for variable in (*found, *factors)}
        return [*found, *[variable for variable in self.own_variables() if id(variable) not in known]]

    def stored_values(self) -> list[Any]:
        if not self.lora_enabled:
            return super().stored_values()
        merged = {id(getattr(self, name)): value for name, value in self._merged_values().items()}
        return [merged.get(id(variable), variable.numpy()) for variable in self.stored_variables()]

    def _after_loading(self) -> None:
        """Files hold the sum: adapters start anew."""
        if self.lora_enabled:
            factors = self._lora_factors()
            assign_values(self.name, factors, [np.zeros(factor.shape, "float32") for factor in factors])

    def _own_config(self) -> dict[str, Any]:
        """What is written of quantisation and adapters, where there are any."""
        from ...engine.objects.registry import serialize_keras_object

        found: dict[str, Any] = {}
        if self.quantization_config is not None:
            found["quantization_config"] = serialize_keras_object(self.quantization_config)
        if self.lora_rank:
            found.update(lora_rank=self.lora_rank, lora_alpha=self.lora_alpha)
        return found
