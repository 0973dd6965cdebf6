"""Code that models of public architectures share: settings from a config, and inputs with or without a mask."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...engine import ops
from ...engine.common.claims import claim
from ...engine.objects import initializers
from ..models.model import Model
from .names import Name

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ...engine.objects.identifiers import InitializerLike
    from ..structures import Array, Tensors

Config = dict[str, Any]

_SIZES = (
    *("vocab_size", "n_positions", "n_embd", "n_head", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "type_vocab_size", "embedding_size"),
)
_COUNTS = ("n_layer", "num_hidden_layers", "depths")
_MOST_BLOCKS = 10_000  # folders are not trusted: one block after the other would be made


class PretrainedModel(Model):
    """Base: a model that a config of Hugging Face's describes.

    Args:
        config: what ``config.json`` holds.
        zeros: make weights of zeros, which are about to be loaded, rather than random ones.

    Attributes:
        config: as above.
    """

    ignored: ClassVar[tuple[str, ...]] = ()  # patterns of names that files may have beside the weights
    _exports_what_was_seen: ClassVar[bool] = False  # `example` builds the model, and it takes lengths of any size
    prefix: ClassVar[str] = ""  # of names, which files of the model without its head lack

    def __init__(self, config: Config, zeros: bool = False, **kwargs: Any) -> None:
        check_sizes(config)
        super().__init__(**kwargs)
        self.config = config
        self._zeros = zeros

    @classmethod
    def config_for(cls, config: Config, names: Collection[str]) -> Config:
        """Return a config for files with arrays of these names, which may lack a part of the model."""
        return config

    def names(self) -> list[Name]:
        """Return the table of names."""
        raise NotImplementedError

    def example(self) -> Array:
        """Return an input of the smallest size, by which the model is built."""
        raise NotImplementedError

    def initializer(self) -> InitializerLike:
        """Return the initialiser of the weights."""
        if self._zeros:
            return "zeros"
        return initializers.TruncatedNormal(stddev=float(self.config.get("initializer_range", 0.02)))

    def get_config(self) -> dict[str, Any]:
        base = {"name": self.name, "trainable": self.trainable, "dtype": self._dtype_config()}
        return {**base, "config": self.config}


def example_image(config: Config, size: int) -> Array:
    """Return an image of zeros, of the channels that a config says.

    Raises:
        OverBudgetError: it takes more memory than files account for.
    """
    shape = (1, size, size, config.get("num_channels", 3))
    claim(shape, 4, "an image")
    return np.zeros(shape, "float32")


def tokens_and_mask(inputs: Tensors) -> tuple[Any, Any]:
    """Return the tokens, and the mask that may come with them."""
    if not isinstance(inputs, dict):
        return inputs, None
    unknown = sorted(set(inputs) - {"tokens", "mask"})
    if unknown or "tokens" not in inputs:
        raise ValueError(
            f"Expected tokens, or a dict of 'tokens' and 'mask'; got a dict of {', '.join(map(repr, sorted(inputs)))}."
        )
    return inputs["tokens"], inputs.get("mask")


def check_length(tokens: Tensor, most: int, setting: str) -> None:
    """Raise a `ValueError` where sequences are known to be longer than a model's table of positions.

    Args:
        tokens: ints (batch, length).
        most: how many positions there are.
        setting: the name of that in the config.
    """
    shape = ops.convert_to_tensor(tokens).shape
    length = None if shape is None else shape[1]
    if length is not None and length > most:
        raise ValueError(
            f"The model got sequences of {length} tokens; it has positions for at most {most} ({setting}). Cut them."
        )


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: ops.gelu(x, approximate=False),
    "gelu_new": lambda x: ops.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: ops.gelu(x, approximate=True),
    "gelu_fast": lambda x: ops.gelu(x, approximate=True),
    "relu": ops.relu,
    "silu": ops.silu,
    "swish": ops.silu,
    "tanh": ops.tanh,
}


def activation(config: Config, key: str, default: str) -> Callable[[Tensor], Tensor]:
    """Return the activation that a config names.

    Raises:
        ValueError: there is none of that name.
    """
    name = config.get(key, default)
    if name not in _ACTIVATIONS:
        raise ValueError(f"config: {key}={name!r} is not available. Expected one of {', '.join(sorted(_ACTIVATIONS))}.")
    return _ACTIVATIONS[name]


def required(config: Config, keys: Iterable[str]) -> list[Any]:
    """Return the values of keys.

    Raises:
        ValueError: some are missing.
    """
    missing = [key for key in keys if key not in config]
    if missing:
        raise ValueError(f"config: {', '.join(missing)} missing. Take the config.json that belongs to the weights.")
    return [config[key] for key in keys]


def check_sizes(config: Config) -> None:
    """Refuse sizes of which no model can be made.

    Raises:
        ValueError: one is not a positive integer, there are too many blocks, or heads do not share the features evenly.
    """
    for key in _SIZES:
        value = config.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value <= 0):
            raise ValueError(f"config: {key}={value!r} must be a positive integer.")
    for key in _COUNTS:
        value = config.get(key, 0)
        counts = value if isinstance(value, list) else [value]
        if not all(isinstance(count, int) and 0 <= count <= _MOST_BLOCKS for count in counts):
            raise ValueError(f"config: {key}={value!r} must be a number of blocks, 0 to {_MOST_BLOCKS:,}.")
    shared = [("n_embd", "n_head"), ("num_attention_heads", "num_key_value_heads")]
    if config.get("head_dim") is None:
        shared.append(("hidden_size", "num_attention_heads"))
    for key, by in shared:
        if (config.get(key) or 0) % (config.get(by) or 1):
            raise ValueError(f"config: {key}={config[key]!r} is no multiple of {by}={config[by]!r}.")


def refuse(config: Config, key: str, *allowed: object) -> None:
    """Refuse a setting that this package does not compute.

    Raises:
        ValueError: the config has it.
    """
    if key in config and config[key] not in allowed:
        raise ValueError(f"config: {key}={config[key]!r} is not available; expected {' or '.join(map(repr, allowed))}.")
