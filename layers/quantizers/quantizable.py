"""Layers whose weights can be quantised, and adapted by products of low rank (LoRA)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ...engine.common.partitioners import GridPartitioner
from ...engine.graph import ShardedVariable, eagerly
from ...engine.objects import policies
from ...engine.objects.registry import serialize_keras_object
from ..core.layer_config import config_from_signature
from ..core.layer_state import assign_values
from ..core.weight import Weight
from .adapters import AdaptableLayer, Array

if TYPE_CHECKING:
    from ...engine.objects.policies import DTypePolicy
    from ..core.layer import Layer
    from ..core.options import AdapterOptions
    from .base_config import QuantizationConfig
    from .quantizer import Quantizer


@config_from_signature(quantization_config="")
class QuantizableLayer(AdaptableLayer):
    """Base of layers that `quantize` and `enable_lora` change.

    A class says how with `_quantized_values`, `_build_quantized`, `_round`, `_saved_names`, `_float_weight` and
    `_lora_shapes`.

    Args:
        quantization_config: of a layer that is built quantised, as its dtype policy says.
        **kwargs: see `AdaptableLayer` and `Layer`.
    """

    quantization_modes = ("int8", "int4")

    def __init__(
        self, *, quantization_config: QuantizationConfig | None = None, **kwargs: Unpack[AdapterOptions]
    ) -> None:
        super().__init__(**kwargs)
        self.quantization_config = quantization_config
        self.inputs_quantizer: Any = None
        self.inputs_scale: float | None = None  # fixed by calibration
        self._int4_block_size: int | None = None

    @property
    def takes_inputs_scale(self) -> bool:
        """Test whether the layer, of int8, can round all rows of its inputs by one fixed scale."""
        return False

    # --- what classes define --------------------------------------------------------------------------------

    def _build_quantized(self, mode: str) -> None:
        """Make the weights that `_saved_names` lists."""
        raise NotImplementedError

    def _quantized_values(self, mode: str, config: QuantizationConfig) -> dict[str, Array]:
        """Return the values of these weights, from those that there are now."""
        raise NotImplementedError

    def _round(self, mode: str, weight: Array) -> dict[str, Array]:
        """Return a float weight as the layer's quantised ones."""
        raise NotImplementedError

    # --- quantising -----------------------------------------------------------------------------------------

    def quantize(
        self, mode: str | None = None, type_check: bool = True, config: QuantizationConfig | str | None = None
    ) -> None:
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
        if found.mode not in self.quantization_modes:
            raise NotImplementedError(
                f"Invalid quantization mode. {type(self).__name__} has the modes {self.quantization_modes}. Received: "
                f"quantization_mode={found.mode!r}"
            )
        self._int4_block_size = _terms_of(getattr(found, "block_size", None)) if found.mode == "int4" else None
        self.replace_weights(found.mode, self._quantized_values(found.mode, found), found)

    def _set_policy(self, policy: DTypePolicy) -> None:
        """Take a dtype policy; one of quantisation quantises weights that there are."""
        from ...engine.objects import policies
        from .configs import Int4QuantizationConfig

        before, mode = self._dtype_policy, policy.quantization_mode
        if mode is None or not self.built or self.quantization_mode is not None:
            super()._set_policy(policy)
            return
        config = Int4QuantizationConfig(block_size=getattr(policy, "block_size", None)) if mode == "int4" else None
        super()._set_policy(policies.get(policy.name.partition("_from_")[2]))
        try:
            self.quantize(mode, config=config)
        except Exception:
            self._dtype_policy = before
            raise

    def replace_weights(self, mode: str, values: dict[str, Array], config: QuantizationConfig | None = None) -> None:
        """Put quantised weights in the place of those that there are.

        Args:
            mode: how they are quantised.
            values: of each attribute.
            config: what is written into files.
        """
        from ...engine.objects import policies

        label = self._policy_label(mode, config)
        self.become(policies.get(f"{label}_from_{self._own_policy.name}"), config)
        assign_values(self.name, [getattr(self, name) for name in values], list(values.values()))

    def become(self, policy: DTypePolicy, config: QuantizationConfig | None = None) -> None:
        """Make the weights that a policy of quantisation asks for, in the place of those that there are.

        Args:
            policy: the dtype policy from now on.
            config: the `QuantizationConfig`; None for that of the policy's mode.
        """
        for name in self._replaced_names():
            self._drop(name)
        self.quantization_config, self._dtype_policy = config, policy
        mode = policy.quantization_mode
        assert mode is not None  # it is a policy of quantisation
        self._int4_block_size = self._block_size() if mode == "int4" else None
        with eagerly():
            self._build_quantized(mode)
        self._weights_changed()

    def _after_loading(self) -> None:
        """Refuse numbers of groups that there are not: values would be taken from elsewhere.

        Raises:
            ValueError: the file has such numbers.
        """
        super()._after_loading()
        numbers = getattr(self, "g_idx", None)
        if numbers is None:
            return
        from ...engine.objects.quantized_policies import GPTQDTypePolicy

        policy = self._own_policy  # that of AWQ is one of GPTQ, too
        size = policy.group_size if isinstance(policy, GPTQDTypePolicy) else self._int4_block_size
        found = numbers.numpy()
        groups = 1 if size is None or size == -1 else -(-len(found) // size)
        if not ((found >= 0) & (found < groups)).all():
            raise ValueError(
                f"Layer {self.name!r}: the file has groups of quantised values (g_idx) from {found.min()} to "
                f"{found.max()}; expected 0 to {groups - 1}. It is damaged: save the model again."
            )

    def _check_quantizable(self, mode: str | None, config: QuantizationConfig | str | None) -> None:
        """Refuse as Keras does: in its order, by its kind of error."""
        from ...engine.objects.quantized_policies import QUANTIZATION_MODES

        if not self.built:
            raise ValueError(
                f"Cannot quantize a layer that isn't yet built. Layer '{self.name}' (of type "
                f"'{type(self).__name__}') is not built yet. Call it once, or build(input_shape), first."
            )
        check_not_quantized(self, mode)
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
        check_whole([self])

    def is_in_mesh(self) -> bool:
        """Test whether the layer's weight is in parts that a layout asks for."""
        is_cut = isinstance(getattr(self, f"_{self.main_weight}", None), ShardedVariable)
        return is_cut and isinstance(self._partitioner, GridPartitioner)

    def _is_own_class(self) -> bool:
        """Test whether the layer's class is one of anabranch, not derived from one by a user."""
        return type(self).__module__.startswith(__name__.partition(".layers")[0] + ".")

    def _policy_label(self, mode: str, config: Any) -> str:
        if mode == "int4":
            return f"int4/{self._int4_block_size or -1}"
        return config.dtype_policy_string() if hasattr(config, "dtype_policy_string") else mode

    def _block_size(self) -> int | None:
        """Return the terms that share a scale, of a layer of int4; None where all do."""
        found = getattr(self.quantization_config, "block_size", None)
        found = getattr(self._own_policy, "block_size", found) if found is None else found
        return _terms_of(found)

    def _activation_quantizer(self, default: Quantizer | None) -> Quantizer | None:
        config = self.quantization_config
        return default if config is None else config.activation_quantizer

    def _replaced_names(self) -> list[str]:
        return [f"_{self.main_weight}"]

    def _frozen_weight(
        self, name: str, shape: Sequence[int], dtype: str | None = None, initializer: str = "zeros"
    ) -> Weight:
        """Make a weight that is neither trained nor read in another dtype, and that no layout cuts."""
        before = self._partitioner
        if isinstance(before, GridPartitioner):
            self._partitioner = None
        try:
            return self.add_weight(
                shape=tuple(shape), initializer=initializer, dtype=dtype, trainable=False, autocast=False, name=name
            )
        finally:
            self._partitioner = before

    # --- adapters and files ---------------------------------------------------------------------------------

    def _check_adaptable(self) -> None:
        if self.quantization_mode == "gptq":
            raise NotImplementedError("lora is not currently supported with GPTQ quantization.")

    def _merged_values(self) -> dict[str, Array]:
        """Return the values of the saved weights that adapters change, with these added, and rounded again."""
        mode = self.quantization_mode
        return (
            super()._merged_values() if mode is None else self._round(mode, self._float_weight() + self._lora_delta())
        )

    def get_config(self) -> dict[str, Any]:
        if self.quantization_config is None:
            return super().get_config()
        return {**super().get_config(), "quantization_config": serialize_keras_object(self.quantization_config)}

    def get_build_config(self) -> dict[str, Any] | None:
        """Return the shapes that the layer was built for, and the fixed scale of its inputs (Keras has none)."""
        config = super().get_build_config()
        return config if config is None or self.inputs_scale is None else {**config, "inputs_scale": self.inputs_scale}

    def build_from_config(self, config: dict[str, Any]) -> None:
        super().build_from_config(config)
        self.inputs_scale = config.get("inputs_scale")


def check_not_quantized(layer: Layer, mode: str | None) -> None:
    """Refuse to quantise a layer twice.

    Raises:
        ValueError: the layer is quantised, or weights of it are rounded.
    """
    if layer.quantization_mode is None:
        return
    policy = layer._own_policy
    form = f"with dtype_policy='{policy.name}'" if policy.quantization_mode else "to int8 by include='all'"
    raise ValueError(f"Layer '{layer.name}' is already quantized {form}. Received: mode={mode}")


def check_whole(layers: Iterable[Layer]) -> None:
    """Refuse to quantise layers whose weights are in parts that layouts of a mesh ask for.

    Raises:
        ValueError: some are.
    """
    cut = [layer.name for layer in layers if isinstance(layer, QuantizableLayer) and layer.is_in_mesh()]
    if cut:
        raise ValueError(
            f"quantize: the weights of layers {cut} are in parts on the devices of a mesh (ModelParallel), and weights "
            "of few bits can't be cut. Save the model, load the file outside of the strategy's scope, and quantise "
            "that model; or quantise other layers alone: quantize(mode, filters=...)."
        )


def _terms_of(block_size: int | None) -> int | None:
    """Return the terms that share a scale; None where all do, for which a config may have -1."""
    return None if block_size == -1 else block_size


def become_like_file(layer: QuantizableLayer, stored: Mapping[str, Any]) -> None:
    """Quantise a layer of floats whose file holds integers.

    Keras writes nothing of the quantised layers inside of a `MultiHeadAttention`, so that it can't load them itself.

    Args:
        layer: just made, as the file says.
        stored: the shapes and dtypes of its arrays in the file, by their numbers.
    """
    main = stored.get("0")
    if layer.quantization_mode is not None or not layer.built or main is None or main.dtype != "int8":
        return
    own = getattr(layer, f"_{layer.main_weight}").shape
    mode = "int8" if tuple(main.shape) == tuple(own) else "int4"
    if mode == "int4":
        scales = stored.get("1" if getattr(layer, "bias", None) is None else "2")
        mode = f"int4/{_group_size(layer, scales.shape) if scales is not None and len(scales.shape) == 2 else -1}"
    layer.become(policies.get(f"{mode}_from_{layer._own_policy.name}"))


def _group_size(layer: Any, scales: tuple[int, ...]) -> int:
    """Return a number of terms in a group that makes so many groups; which they are, the file says for each term."""
    if layer.main_weight == "kernel":
        terms, groups = layer._matrix_sizes()[0], scales[0]
    else:
        terms, groups = layer.output_dim, scales[1]
    return 128 if -(-terms // 128) == groups else -(-terms // groups)
