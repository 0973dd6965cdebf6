"""Blocks of convolutions: the residual block and the Inception block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import activations, initializers
from ...engine.objects.identifiers import ActivationLike, InitializerLike
from ..core.dense import positive_int
from ..core.input_spec import InputSpec
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..normalization.batch_and_layer import BatchNormalization
from .convolution import Conv2D
from .pooling import MaxPooling2D

if TYPE_CHECKING:
    from ..core.options import LayerOptions


@config_from_signature()
class ResidualBlock(Layer):
    """Two convolutions whose output is added to their input (He et al., 2016).

    ``activation(x + norm(conv(activation(norm(conv(x))))))``, the first of the paper's blocks. Where sizes differ, the
    input goes through a convolution of size 1 and a normalisation of its own.

    Args:
        filters: the number of channels of the output.
        kernel_size: the size of the windows, an int or two.
        strides: of the first convolution, and of that of the input: 2 halves height and width.
        activation: a name or function.
        momentum, epsilon: of the normalisations, see `BatchNormalization`.
        kernel_initializer: first values of the convolutions, which have no biases.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, height / strides, width / strides, filters)``.

    Raises:
        ValueError: `filters` is not positive, or the number of channels is not known.

    He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", 2016, arXiv:1512.03385.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.ResidualBlock(6, strides=2)(np.ones((2, 8, 8, 3), "float32")).shape
    (2, 4, 4, 6)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int] = 3,
        strides: int | Sequence[int] = 1,
        activation: ActivationLike = "relu",
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        kernel_initializer: InitializerLike = "he_normal",
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.filters = positive_int("ResidualBlock", "filters", filters)
        self.kernel_size = kernel_size
        self.strides = strides
        self.activation = activations.get(activation)
        self.momentum = momentum
        self.epsilon = epsilon
        self.kernel_initializer = initializers.get(kernel_initializer, "kernel_initializer")
        self.input_spec = InputSpec(ndim=4)
        self.first_conv = self._conv("first_conv", kernel_size, strides)
        self.first_norm = self._norm("first_norm")
        self.second_conv = self._conv("second_conv", kernel_size)
        self.second_norm = self._norm("second_norm")
        self.shortcut_conv: Conv2D | None = None
        self.shortcut_norm: BatchNormalization | None = None

    def _conv(self, name: str, size: int | Sequence[int], strides: int | Sequence[int] = 1) -> Conv2D:
        first = initializers.serialize(self.kernel_initializer)
        return Conv2D(
            self.filters,
            size,
            strides,
            padding="same",
            data_format="channels_last",
            use_bias=False,
            kernel_initializer=first,
            name=name,
            dtype=self.dtype_policy,
        )

    def _norm(self, name: str) -> BatchNormalization:
        return BatchNormalization(momentum=self.momentum, epsilon=self.epsilon, name=name, dtype=self.dtype_policy)

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.first_conv.build(input_shape)
        inner = self.first_conv.compute_output_shape(input_shape)
        self.second_conv.build(inner)
        parts = [self.first_norm, self.second_norm]
        if input_shape[-1] != self.filters or self.strides not in (1, (1, 1), [1, 1]):
            self.shortcut_conv, self.shortcut_norm = self._conv("shortcut_conv", 1, self.strides), self._norm("norm")
            self.shortcut_conv.build(input_shape)
            parts.append(self.shortcut_norm)
        for norm in parts:
            norm.build(inner)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        x = self.activation(self.first_norm(self.first_conv(inputs), training=training))
        x = self.second_norm(self.second_conv(x), training=training)
        shortcut = inputs
        if self.shortcut_conv is not None and self.shortcut_norm is not None:
            shortcut = self.shortcut_norm(self.shortcut_conv(inputs), training=training)
        return self.activation(x + shortcut)


@config_from_signature()
class InceptionBlock(Layer):
    """Convolutions of several sizes side by side, and their channels behind each other (Szegedy et al., 2015).

    Four branches: a convolution of size 1; one of size 1 and then one of size 3; one of size 1 and then one of size 5;
    the largest of each window of size 3 and then a convolution of size 1. Each is followed by the activation.

    Args:
        filters: the numbers of channels, ``(one, (reduce, three), (reduce, five), pooled)``. GoogLeNet's block 3a is
            ``(64, (96, 128), (16, 32), 32)``.
        activation: a name or function.
        kernel_initializer: first values of the convolutions.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, height, width, one + three + five + pooled)``.

    Raises:
        ValueError: `filters` has another form, or a number in it is not positive.

    Szegedy et al., "Going Deeper with Convolutions", 2015, arXiv:1409.4842.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.InceptionBlock((2, (3, 4), (1, 2), 2))(np.ones((2, 8, 8, 3), "float32")).shape
    (2, 8, 8, 10)
    """

    def __init__(
        self,
        filters: Sequence[int | Sequence[int]],
        activation: ActivationLike = "relu",
        kernel_initializer: InitializerLike = "glorot_uniform",
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.filters = _branches(filters)
        self.activation = activations.get(activation)
        self.kernel_initializer = initializers.get(kernel_initializer, "kernel_initializer")
        self.input_spec = InputSpec(ndim=4)
        one, (reduce_three, three), (reduce_five, five), pooled = self.filters
        self.one = [self._conv(one, 1, "one")]
        self.three = [self._conv(reduce_three, 1, "reduce_three"), self._conv(three, 3, "three")]
        self.five = [self._conv(reduce_five, 1, "reduce_five"), self._conv(five, 5, "five")]
        options = {"data_format": "channels_last", "name": "pool", "dtype": self.dtype_policy}
        pool = MaxPooling2D(3, strides=1, padding="same", **options)
        self.pooled = [pool, self._conv(pooled, 1, "pooled")]

    def _conv(self, filters: int, size: int, name: str) -> Conv2D:
        return Conv2D(
            filters,
            size,
            padding="same",
            data_format="channels_last",
            activation=self.activation,
            kernel_initializer=initializers.serialize(self.kernel_initializer),
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Sequence[int | None]) -> None:
        for branch in (self.one, self.three, self.five, self.pooled):
            shape = input_shape
            for layer in branch:
                layer.build(shape)
                shape = layer.compute_output_shape(shape)

    def call(self, inputs: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for branch in (self.one, self.three, self.five, self.pooled):
            x = inputs
            for layer in branch:
                x = layer(x)
            outputs.append(x)
        return ops.concatenate(outputs, axis=-1)


def _branches(filters: Sequence[int | Sequence[int]]) -> list[Any]:
    """Return `filters` as lists of ints.

    Raises:
        ValueError: the form is not ``(one, (reduce, three), (reduce, five), pooled)``.
    """
    parts = list(filters) if isinstance(filters, (list, tuple)) else []
    forms = [isinstance(part, (list, tuple)) and len(part) == 2 for part in parts]
    if forms != [False, True, True, False]:
        raise ValueError(
            "InceptionBlock: filters must be of the form (one, (reduce, three), (reduce, five), pooled), got "
            f"filters={filters!r}."
        )
    return [
        [positive_int("InceptionBlock", "filters", item) for item in part]
        if isinstance(part, Sequence)
        else positive_int("InceptionBlock", "filters", part)
        for part in parts
    ]
