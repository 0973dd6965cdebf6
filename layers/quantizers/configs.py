"""Configs of quantisation of a layer: mode and quantizers, as an object that files hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from ...engine.objects.quantized_policies import QUANTIZATION_MODES
from ...engine.objects.registry import (
    deserialize_keras_object,
    find_by_name,
    is_serialized,
    serialize_keras_object,
)
from .base_config import QuantizationConfig
from .float8 import REASON
from .quantizer import AbsMaxQuantizer, Quantizer

Default = Literal["default"]


class Int8QuantizationConfig(QuantizationConfig):
    """Weights as int8, a scale for each output; activations as int8, a scale for each row as it comes.

    Args:
        weight_quantizer: gives int8; by default `AbsMaxQuantizer` over the terms of a sum.
        activation_quantizer: "default" for `AbsMaxQuantizer()`, None for weights only.

    Raises:
        ValueError: the quantizer of weights gives another dtype.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(3, name="head")])
    >>> model.quantize(config=ab.quantizers.Int8QuantizationConfig(activation_quantizer=None))
    {'head': 'int8'}
    >>> model.layers[0].kernel.dtype
    dtype('int8')
    """

    def __init__(
        self, weight_quantizer: Quantizer | None = None, activation_quantizer: Quantizer | Default | None = "default"
    ) -> None:
        if activation_quantizer == "default":
            activation_quantizer = AbsMaxQuantizer()
        super().__init__(weight_quantizer, activation_quantizer)
        _check_int8("Int8QuantizationConfig", weight_quantizer)

    @property
    def mode(self) -> str:
        """The mode, ``"int8"``."""
        return "int8"


class Int4QuantizationConfig(QuantizationConfig):
    """Weights as int4, two in a byte; activations as they are.

    Args:
        weight_quantizer: gives int8 in -8 to 7, where `block_size` is None or -1.
        activation_quantizer: "default" and None for none; others only where `block_size` is None or -1.
        block_size: terms of a sum that share a scale and a zero point; None or -1: all share a scale, with none.

    Raises:
        ValueError: these do not go together.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(3, name="head")])
    >>> model.quantize(config=ab.quantizers.Int4QuantizationConfig(block_size=2))
    {'head': 'int4'}
    >>> model.layers[0].quantization_mode
    'int4'
    """

    def __init__(
        self,
        weight_quantizer: AbsMaxQuantizer | None = None,
        activation_quantizer: Quantizer | Default | None = "default",
        block_size: int | None = 128,
    ) -> None:
        if activation_quantizer == "default":
            activation_quantizer = None
        super().__init__(weight_quantizer, activation_quantizer)
        if block_size is not None and block_size != -1 and block_size <= 0:
            raise ValueError(f"block_size must be None, -1, or a positive integer. Received: block_size={block_size}")
        self.block_size = block_size
        if self.has_groups and (weight_quantizer is not None or activation_quantizer is not None):
            raise ValueError(
                "Int4 sub-channel quantization (block_size > 0) does not support custom quantizers. Either set "
                "block_size to None or -1 for per-channel quantization, or remove the custom quantizer arguments. "
                f"Received: block_size={block_size}"
            )
        if weight_quantizer is not None and tuple(weight_quantizer.value_range) != (-8, 7):
            raise ValueError(
                "Int4QuantizationConfig requires a weight_quantizer with value_range=(-8, 7). Received: "
                f"value_range={weight_quantizer.value_range}"
            )
        _check_int8("Int4QuantizationConfig", weight_quantizer)

    @property
    def mode(self) -> str:
        """The mode, ``"int4"``."""
        return "int4"

    @property
    def has_groups(self) -> bool:
        """Test whether some of a sum's terms share a scale and a zero point, rather than all a scale."""
        return self.block_size is not None and self.block_size > 0

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "block_size": self.block_size}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make a config from what `get_config` gave; files of older versions of Keras have no block size."""
        return super().from_config({"block_size": None, **config})


class Float8QuantizationConfig(QuantizationConfig):
    """Refused: float8 is not computed here.

    Raises:
        NotImplementedError: always.

    >>> import anabranch as ab
    >>> ab.quantizers.Float8QuantizationConfig()
    Traceback (most recent call last):
        ...
    NotImplementedError: Float8QuantizationConfig: float8 is not available: it serves to train on GPUs that compute in
    it. Use quantize('int8') or quantize('int4') for inference, or the dtype policy 'mixed_bfloat16' for training.
    """

    def __init__(self) -> None:
        raise NotImplementedError(f"Float8QuantizationConfig: {REASON}")

    @property
    def mode(self) -> str:
        """The mode, ``"float8"``."""
        return "float8"


def _check_int8(config: str, quantizer: Quantizer | None) -> None:
    if quantizer is not None and quantizer.output_dtype != "int8":
        raise ValueError(
            f"{config} requires a weight_quantizer with output_dtype='int8'. Received: "
            f"output_dtype={quantizer.output_dtype}"
        )


def resolved_config(mode: str | None, config: QuantizationConfig | str | None) -> QuantizationConfig:
    """Return the config of a call of `quantize`, which may name the mode, the config, or both.

    Raises:
        ValueError: neither is given, they contradict each other, or there is no such mode.
        NotImplementedError: the mode is float8.
    """
    if isinstance(config, str):
        mode, config = config, None
    if mode is not None and mode not in QUANTIZATION_MODES:
        raise ValueError(f"Invalid quantization mode. Expected one of {QUANTIZATION_MODES}. Received: mode={mode!r}")
    if mode == "float8":
        raise NotImplementedError(f"quantize('float8'): {REASON}")
    if config is None:
        config = _default_config(mode)
    if not isinstance(config, QuantizationConfig):
        raise ValueError(
            f"Argument `config` must be an instance of `QuantizationConfig`. Received: config={config!r} (of type "
            f"{type(config).__name__})"
        )
    if mode is not None and config.mode != mode:
        raise ValueError(f"Contradictory arguments: mode='{mode}' but config.mode='{config.mode}'")
    if config.mode not in QUANTIZATION_MODES:
        raise ValueError(
            f"Invalid quantization mode. Expected one of {QUANTIZATION_MODES}. Received: mode={config.mode!r}"
        )
    return config


def _default_config(mode: str | None) -> QuantizationConfig:
    if mode == "int8":
        return Int8QuantizationConfig()
    if mode == "int4":
        return Int4QuantizationConfig()
    if mode is None:
        raise ValueError("You must provide either `mode` or `config` to `quantize`.")
    name = {"gptq": "GPTQConfig", "awq": "AWQConfig"}[mode]
    raise ValueError(f"For {mode.upper()}, you must pass a `{name}` object in the `config` argument.")


def _objects() -> dict[str, type]:
    from ...engine.objects.names import to_snake_case
    from .data_configs import AWQConfig, GPTQConfig

    classes = (
        AWQConfig,
        AbsMaxQuantizer,
        Float8QuantizationConfig,
        GPTQConfig,
        Int4QuantizationConfig,
        Int8QuantizationConfig,
        QuantizationConfig,
        Quantizer,
    )
    return {name: cls for cls in classes for name in (cls.__name__, to_snake_case(cls.__name__))}


def serialize(initializer: object) -> Any:
    """Return the config of a quantizer. (The argument's name is Keras's.)

    >>> import anabranch as ab
    >>> ab.quantizers.serialize(ab.quantizers.AbsMaxQuantizer(axis=-1))["class_name"]
    'AbsMaxQuantizer'
    """
    return serialize_keras_object(initializer)


def deserialize(config: object, custom_objects: Mapping[str, object] | None = None) -> Any:
    """Return the quantizer that a config describes.

    >>> import anabranch as ab
    >>> config = ab.quantizers.serialize(ab.quantizers.AbsMaxQuantizer(axis=-1))
    >>> ab.quantizers.deserialize(config).axis
    (-1,)
    """
    return deserialize_keras_object(config, custom_objects)


def get(identifier: object, **kwargs: object) -> Any:
    """Return the quantizer that a name, a class or a config stands for; None and quantizers stand for themselves.

    Args:
        identifier: a name such as "abs_max_quantizer", a class, a config, or a callable.
        **kwargs: the constructor's arguments, for a name or a class.

    Raises:
        ValueError: it stands for none.

    >>> get("abs_max_quantizer", axis=-1).axis
    (-1,)
    """
    if identifier is None:
        return None
    found = identifier
    if is_serialized(identifier):
        found = deserialize(identifier)
    elif isinstance(identifier, str):
        found = find_by_name("quantizer", identifier, _objects())
    if not callable(found) and not isinstance(found, QuantizationConfig):
        raise ValueError(f"Could not interpret quantizer identifier: {identifier!r}")
    return found(**kwargs) if isinstance(found, type) else found
