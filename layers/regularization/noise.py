"""Noise that keeps the mean, and a penalty on what passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import regularizers
from ...engine.ops.random import samplers as random
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from .dropout import Rate, acts, checked_noise_shape

if TYPE_CHECKING:
    from ..core.options import CommonOptions, LayerOptions


# Of the scaled exponential linear unit: where it saturates below.
_SELU_FLOOR = -1.6732632423543772 * 1.0507009873554805


@config_from_signature()
class GaussianDropout(Layer):
    """In training, multiplies by normal noise of mean 1 and the variance that `Dropout` has (Srivastava et al., 2014).

    Args:
        rate: from 0 up to below 1, a number or a scalar tensor; the noise's standard deviation is
            ``sqrt(rate / (1 - rate))``.
        seed: an integer, so that a new process draws the same noise.

    Raises:
        ValueError: `rate` is not within [0, 1).

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.GaussianDropout(0.5)(np.ones((1, 3), "float32"))
    Tensor([[1., 1., 1.]], dtype=float32)
    """

    def __init__(self, rate: Rate, seed: int | None = None, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.rate = random.checked_rate("GaussianDropout", rate, below_one=True)
        self.seed = seed
        self.supports_masking = True
        self.seed_generator = random.SeedGenerator(seed)
        self._build_at_init()

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        if not training or not acts(self.rate):
            return inputs
        variance = self.rate / (1.0 - self.rate)
        stddev = math.sqrt(variance) if isinstance(variance, (int, float)) else ops.sqrt(variance)
        return inputs * random.normal(ops.shape(inputs), 1.0, stddev, self.compute_dtype, self.seed_generator)


@config_from_signature()
class AlphaDropout(Layer):
    """In training, sets a random part to the floor of `selu`, and keeps mean and variance (Klambauer et al., 2017).

    Args:
        rate: the part, from 0 to below 1: a number, or a scalar tensor.
        noise_shape: the shape of the random mask, which broadcasts to that of the inputs; None in it for their size.
        seed: an integer, so that a new process draws the same masks.

    Raises:
        ValueError: `rate` is not within [0, 1).

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.AlphaDropout(0.5)(np.ones((1, 3), "float32"))
    Tensor([[1., 1., 1.]], dtype=float32)
    """

    def __init__(
        self,
        rate: Rate,
        noise_shape: Sequence[int | None] | None = None,
        seed: int | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.rate = random.checked_rate("AlphaDropout", rate, below_one=True)
        self.seed = seed
        self.noise_shape = checked_noise_shape(type(self).__name__, noise_shape)
        self.supports_masking = True
        self.seed_generator = random.SeedGenerator(seed)
        self._build_at_init()

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        if not training or not acts(self.rate):
            return inputs
        sizes = ops.shape(inputs)
        wanted = self.noise_shape or [None] * len(sizes)
        shape = [size if chosen is None else chosen for size, chosen in zip(sizes, wanted, strict=True)]
        kept = random.uniform(shape, seed=self.seed_generator) >= self.rate
        rate = self.rate if isinstance(self.rate, (int, float)) else ops.cast(self.rate, inputs.dtype)
        # The values that mean 0 and variance 1 turn into, brought back to these.
        scale = ((1 - rate) * (1 + rate * _SELU_FLOOR**2)) ** -0.5
        dropped = ops.where(kept, inputs, ops.cast(_SELU_FLOOR, inputs.dtype))
        return dropped * scale - scale * _SELU_FLOOR * rate


@config_from_signature(activity_regularizer="")
class ActivityRegularization(Layer):
    """Returns its inputs, and adds their size to the loss: ``l1 * sum(|x|) + l2 * sum(x^2)``.

    Args:
        l1: the factor of the absolute values.
        l2: the factor of the squares.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.ActivityRegularization(l1=0.5)
    >>> outputs = layer(np.ones((1, 4), "float32"))
    >>> [float(loss) for loss in layer.losses]
    [2.0]
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0, **kwargs: Unpack[CommonOptions]) -> None:
        super().__init__(activity_regularizer=regularizers.L1L2(l1=l1, l2=l2), **kwargs)
        self.supports_masking = True
        self.l1 = l1
        self.l2 = l2
        self._build_at_init()

    def call(self, inputs: Tensor) -> Tensor:
        return inputs
