"""Layers that act at random in training and not at all otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor, Variable
from ...engine.objects.arguments import check_numbers
from ...engine.ops.random import samplers as random
from ..core.input_spec import InputSpec
from ..core.layer import Layer
from ..core.layer_config import config_from_signature

if TYPE_CHECKING:
    from ...engine.objects.identifiers import PolicyLike
    from ..core.options import LayerOptions, OtherOptions


Rate = float | Tensor | Variable


def acts(rate: object) -> bool:
    """Test whether dropout by a rate does anything; a rate that is a tensor is tested when the graph runs."""
    return isinstance(rate, (Tensor, Variable)) or rate != 0


def checked_noise_shape(layer: str, noise_shape: object) -> tuple[int | None, ...] | None:
    """Return the shape of a random mask, None for that of the inputs.

    Raises:
        ValueError: it is not a list of positive ints and Nones.
    """
    if noise_shape is None:
        return None
    sizes = tuple(noise_shape) if isinstance(noise_shape, Iterable) else ()
    if not sizes or not all(size is None or (isinstance(size, (int, np.integer)) and size > 0) for size in sizes):
        raise ValueError(
            f"{layer}: noise_shape must be a tuple of positive integers, with None for a size of the inputs, got "
            f"noise_shape={noise_shape!r}."
        )
    return sizes


@config_from_signature()
class Dropout(Layer):
    """In training, sets a random part of the elements to 0 and scales the others up (Srivastava et al., 2014).

    Args:
        rate: the part, from 0 to 1: a number, or a scalar tensor or variable that gives it in each step.
        noise_shape: the shape of the random mask, which broadcasts to that of the inputs; None in it for their size.
        seed: an integer, so that a new process draws the same masks.

    Raises:
        ValueError: `rate` is not within [0, 1], or `noise_shape` is not a tuple of positive integers and Nones.
    """

    def __init__(
        self,
        rate: Rate,
        noise_shape: Sequence[int | None] | None = None,
        seed: int | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.rate = random.checked_rate(type(self).__name__, rate)
        self.seed = seed
        self.noise_shape = checked_noise_shape(type(self).__name__, noise_shape)
        self.supports_masking = True
        self.seed_generator = random.SeedGenerator(seed)
        self._build_at_init()

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        if not training or not acts(self.rate):
            return inputs
        return random.dropout(inputs, self.rate, noise_shape=self._noise_shape(inputs), seed=self.seed_generator)

    def _noise_shape(self, inputs: Tensor) -> Sequence[int | None] | None:
        return self.noise_shape


class SpatialDropout1D(Dropout):
    """In training, drops whole features: the same ones at each step of ``(batch, steps, features)``."""

    def __init__(
        self,
        rate: Rate,
        seed: int | None = None,
        name: str | None = None,
        dtype: PolicyLike = None,
        **kwargs: Unpack[OtherOptions],
    ) -> None:
        super().__init__(rate, seed=seed, name=name, dtype=dtype, **kwargs)
        self.input_spec = InputSpec(ndim=3)

    def _noise_shape(self, inputs: Tensor) -> Sequence[int | None] | None:
        return (None, 1, None)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("noise_shape")
        config.pop("trainable")  # Keras's constructor does not take it
        return config


@config_from_signature()
class GaussianNoise(Layer):
    """In training, adds normally distributed noise.

    Args:
        stddev: its standard deviation.
        seed: an integer, so that a new process draws the same noise.
    """

    def __init__(self, stddev: float, seed: int | None = None, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        check_numbers("GaussianNoise", stddev=stddev)
        if not isinstance(stddev, (Tensor, Variable)) and stddev < 0:
            raise ValueError(f"GaussianNoise: stddev must not be negative, got stddev={stddev}.")
        self.stddev = stddev
        self.seed = seed
        self.supports_masking = True
        self.seed_generator = random.SeedGenerator(seed)
        self._build_at_init()

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        if not training or not acts(self.stddev):
            return inputs
        noise = random.normal(ops.shape(inputs), 0.0, self.stddev, self.compute_dtype, self.seed_generator)
        return inputs + noise
