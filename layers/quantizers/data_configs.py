"""Configs of the modes that look at data: GPTQ and AWQ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from .base_config import QuantizationConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.layer import Layer

_SETTINGS = tuple[str, ...]
_OF_THE_SEARCH = ("calibration_batch_size", "apply_clip")  # what is found is in the weights


class _DataConfig(QuantizationConfig):
    """Base: data, and how much of it is looked at."""

    settings: _SETTINGS = ()

    def __init__(
        self,
        dataset: object,
        tokenizer: object,
        num_samples: int,
        sequence_length: int,
        weight_bits: int,
        group_size: int,
        quantization_layer_structure: Mapping[str, Sequence[Layer]] | None,
    ) -> None:
        super().__init__()
        for name, value in (("num_samples", num_samples), ("sequence_length", sequence_length)):
            if value <= 0:
                raise ValueError(f"{name} must be a positive integer. Received: {name}={value}")
        if group_size < -1 or group_size == 0:
            raise ValueError(
                f"Invalid group_size. Supported values are -1 (per-channel) or positive, but got {group_size}."
            )
        self.dataset = dataset
        self.tokenizer = tokenizer
        self.num_samples = num_samples
        self.sequence_length = sequence_length
        self.weight_bits = weight_bits
        self.group_size = group_size
        self.quantization_layer_structure = quantization_layer_structure

    def dtype_policy_string(self) -> str:
        """Return the mode as dtype policies name it, such as ``"gptq/4/128"``."""
        return f"{self.mode}/{self.weight_bits}/{self.group_size}"

    def get_config(self) -> dict[str, Any]:
        """Return the settings; data and the structure, which holds layers, are needed once only, and not kept."""
        needed_once = ("dataset", "tokenizer", "quantization_layer_structure")
        return {**{name: getattr(self, name) for name in self.settings}, **dict.fromkeys(needed_once)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make a config from what `get_config` gave, here or in Keras 3.16, which has more settings."""
        return cls(**{name: value for name, value in config.items() if name not in _OF_THE_SEARCH})


class GPTQConfig(_DataConfig):
    """Weights of few bits, each rounded so that it makes up for the errors of those before it.

    Args:
        dataset: texts, or arrays of tokens: what the model is to be good at.
        tokenizer: a function from a text to tokens; None where `dataset` holds tokens.
        weight_bits: 2, 3, 4 or 8.
        num_samples: how many sequences of the data are looked at.
        calibration_batch_size: of no effect here, where all sequences go through a block at once.
        per_channel: a scale for each output, rather than one for all.
        sequence_length: the number of tokens in each of them.
        hessian_damping: is added to the diagonal of the inputs' products, as part of its mean.
        group_size: terms that share a scale and a zero point; -1: all of an output.
        symmetric: without zero points.
        activation_order: round the terms of the largest inputs first.
        quantization_layer_structure: ``{"pre_block_layers": [...], "sequential_blocks": [...]}``: layers before the
            first block, and the blocks, one after the other; by default the model's
            ``get_quantization_layer_structure("gptq")``.

    Raises:
        ValueError: a number is out of its range.

    Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2023.

    >>> import anabranch as ab
    >>> embedding = ab.layers.Embedding(9, 8, name="embedding")
    >>> model = ab.Sequential([ab.Input((4,), dtype="int32"), embedding, ab.layers.Dense(9, name="head")])
    >>> blocks = {"pre_block_layers": [model.layers[0]], "sequential_blocks": [model.layers[1]]}
    >>> config = ab.quantizers.GPTQConfig(
    ...     [[1, 2, 3, 4]], None, num_samples=1, sequence_length=4, group_size=8, quantization_layer_structure=blocks)
    >>> model.quantize(config=config)
    {'embedding': 'Embedding has no quantised form', 'head': 'gptq'}
    >>> model.layers[1].quantization_mode
    'gptq'
    """

    settings = (
        "weight_bits",
        "num_samples",
        "per_channel",
        "sequence_length",
        "hessian_damping",
        "group_size",
        "symmetric",
        "activation_order",
    )

    def __init__(
        self,
        dataset: object,
        tokenizer: object,
        *,
        weight_bits: int = 4,
        num_samples: int = 128,
        calibration_batch_size: int = 8,
        per_channel: bool = True,
        sequence_length: int = 512,
        hessian_damping: float = 0.01,
        group_size: int = 128,
        symmetric: bool = False,
        activation_order: bool = False,
        quantization_layer_structure: Mapping[str, Sequence[Layer]] | None = None,
    ) -> None:
        if weight_bits not in (2, 3, 4, 8):
            raise ValueError(f"Unsupported weight_bits {weight_bits}. Supported values are 2, 3, 4, and 8.")
        if not 0 <= hessian_damping <= 1:
            raise ValueError("hessian_damping must be between 0 and 1.")
        if calibration_batch_size <= 0:
            raise ValueError("calibration_batch_size must be a positive integer.")
        super().__init__(
            dataset, tokenizer, num_samples, sequence_length, weight_bits, group_size, quantization_layer_structure
        )
        self.per_channel = per_channel
        self.hessian_damping = hessian_damping
        self.symmetric = symmetric
        self.activation_order = activation_order

    @property
    def mode(self) -> str:
        """The mode, ``"gptq"``."""
        return "gptq"


class AWQConfig(_DataConfig):
    """Weights of four bits, of which those for large inputs are scaled up before they are rounded.

    Args:
        dataset, tokenizer, num_samples, sequence_length, group_size, quantization_layer_structure: see `GPTQConfig`.
        weight_bits: 4.
        num_grid_points: how many strengths of the scaling are tried.
        apply_clip: not here: False. Keras 3.16 by default then looks for limits of the weights of each group, too.

    Raises:
        ValueError: a number is out of its range.

    Source: Lin et al., "AWQ: Activation-aware Weight Quantization", 2024.

    >>> import anabranch as ab
    >>> embedding = ab.layers.Embedding(9, 8, name="embedding")
    >>> model = ab.Sequential([ab.Input((4,), dtype="int32"), embedding, ab.layers.Dense(9, name="head")])
    >>> blocks = {"pre_block_layers": [model.layers[0]], "sequential_blocks": [model.layers[1]]}
    >>> config = ab.quantizers.AWQConfig(
    ...     [[1, 2, 3, 4]], None, num_samples=1, sequence_length=4, group_size=8, quantization_layer_structure=blocks)
    >>> model.quantize(config=config)
    {'embedding': 'Embedding has no quantised form', 'head': 'awq'}
    >>> model.layers[1].quantization_mode
    'awq'
    """

    settings = ("weight_bits", "num_samples", "sequence_length", "group_size", "num_grid_points")

    def __init__(
        self,
        dataset: object,
        tokenizer: object,
        *,
        weight_bits: int = 4,
        num_samples: int = 128,
        sequence_length: int = 512,
        group_size: int = 128,
        num_grid_points: int = 20,
        apply_clip: bool = False,
        quantization_layer_structure: Mapping[str, Sequence[Layer]] | None = None,
    ) -> None:
        if weight_bits != 4:
            raise ValueError(f"AWQ only supports 4-bit quantization. Received weight_bits={weight_bits}.")
        if num_grid_points <= 0:
            raise ValueError("num_grid_points must be a positive integer.")
        if apply_clip:
            raise ValueError(
                "AWQConfig: apply_clip=True, the search for limits of weights, is not there; leave it out. Files "
                "that Keras made with it are read."
            )
        super().__init__(
            dataset, tokenizer, num_samples, sequence_length, weight_bits, group_size, quantization_layer_structure
        )
        self.num_grid_points = num_grid_points

    @property
    def mode(self) -> str:
        """The mode, ``"awq"``."""
        return "awq"
