"""`DepthwiseConv1D`, `DepthwiseConv2D`, `SeparableConv1D`, `SeparableConv2D`: each channel convolved by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Self, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import activations, constraints, initializers, regularizers
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ..core.dense import positive_int
from ..core.layer_config import config_from_signature
from ..core.weight import Weight, WeightSpec
from .base import Convolution

if TYPE_CHECKING:
    from ..core.options import CommonOptions


@config_from_signature()
class _DepthwiseConv(Convolution):
    """The base of the depthwise convolutions; see `DepthwiseConv2D`."""

    rounded_kernels = MappingProxyType({"kernel": (-2, -1)})

    kernel: Weight

    def __init__(
        self,
        kernel_size: int | tuple[int, ...],
        strides: int | tuple[int, ...] = 1,
        padding: str = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: int | tuple[int, ...] = 1,
        activation: ActivationLike = None,
        use_bias: bool = True,
        depthwise_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        depthwise_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        depthwise_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        **kwargs: Unpack[CommonOptions],
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self._set_windows(kernel_size, strides, padding, data_format, dilation_rate)
        self._set_bias(use_bias, bias_initializer, bias_regularizer, bias_constraint)
        self.activation = activations.get(activation)
        self.depth_multiplier = positive_int(type(self).__name__, "depth_multiplier", depth_multiplier)
        self.depthwise_initializer = initializers.get(depthwise_initializer, "depthwise_initializer")
        self.depthwise_regularizer = regularizers.get(depthwise_regularizer, "depthwise_regularizer")
        self.depthwise_constraint = constraints.get(depthwise_constraint, "depthwise_constraint")

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        channels = self._input_channels(input_shape)
        return (
            WeightSpec("kernel", (*self.kernel_size, channels, self.depth_multiplier), options="depthwise"),
            WeightSpec("bias", (channels * self.depth_multiplier,), present=self.use_bias),
        )

    def call(self, inputs: TensorLike) -> Tensor:
        return self._finished(ops.depthwise_conv(inputs, self.kernel, **self._windows))


class DepthwiseConv1D(_DepthwiseConv):
    """Each channel convolved by itself along one axis.

    Args:
        kernel_size, strides, padding, depth_multiplier, data_format, dilation_rate, ...: see `DepthwiseConv2D`.

    Shapes: ``(batch, steps, channels)`` to ``(batch, new_steps, channels * depth_multiplier)``.

    Raises:
        ValueError: see `DepthwiseConv2D`.

    >>> import anabranch as ab
    >>> ab.layers.DepthwiseConv1D(2, depthwise_initializer="ones")([[[1.0, 2.0], [3.0, 4.0]]])
    Tensor([[[4., 6.]]], dtype=float32)
    """

    rank = 1


class DepthwiseConv2D(_DepthwiseConv):
    """Each channel convolved by itself along two axes.

    Args:
        kernel_size: the size of the windows: an int, or one for each spatial axis.
        strides: cells from one window to the next: likewise.
        padding: ``"valid"`` or ``"same"``.
        depth_multiplier: how many channels of the output each channel of the input gives.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        dilation_rate: from one cell of a window to the next; an int, or one for each spatial axis.
        activation: a name or function; None for none.
        use_bias: whether there is a bias.
        depthwise_initializer, bias_initializer: first values.
        depthwise_regularizer, bias_regularizer, activity_regularizer: penalties.
        depthwise_constraint, bias_constraint: projections after each update.
        **kwargs: see `Layer`.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, new_height, new_width, channels * depth_multiplier)``, or
    both with the channels in front of the sizes. Weights: ``kernel (*kernel_size, channels, depth_multiplier)``,
    ``bias (channels * depth_multiplier,)``.

    Raises:
        ValueError: an argument is not one of those above; at the first call the number of channels is not known; or a
            window is larger than the input.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.DepthwiseConv2D(3, depth_multiplier=2)(np.ones((2, 8, 8, 3), "float32")).shape
    (2, 6, 6, 6)
    """

    rank = 2


@config_from_signature()
class _SeparableConv(Convolution):
    """The base of the separable convolutions; see `SeparableConv2D`."""

    rounded_kernels = MappingProxyType({"depthwise_kernel": (-2, -1), "pointwise_kernel": (-1,)})

    depthwise_kernel: Weight
    pointwise_kernel: Weight

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, ...],
        strides: int | tuple[int, ...] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | tuple[int, ...] = 1,
        depth_multiplier: int = 1,
        activation: ActivationLike = None,
        use_bias: bool = True,
        depthwise_initializer: InitializerLike = "glorot_uniform",
        pointwise_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        depthwise_regularizer: RegularizerLike = None,
        pointwise_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        depthwise_constraint: ConstraintLike = None,
        pointwise_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        **kwargs: Unpack[CommonOptions],
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self._set_windows(kernel_size, strides, padding, data_format, dilation_rate)
        self._set_bias(use_bias, bias_initializer, bias_regularizer, bias_constraint)
        self.activation = activations.get(activation)
        layer = type(self).__name__
        self.filters = positive_int(layer, "filters", filters)
        self.depth_multiplier = positive_int(layer, "depth_multiplier", depth_multiplier)
        self.depthwise_initializer = initializers.get(depthwise_initializer, "depthwise_initializer")
        self.pointwise_initializer = initializers.get(pointwise_initializer, "pointwise_initializer")
        self.depthwise_regularizer = regularizers.get(depthwise_regularizer, "depthwise_regularizer")
        self.pointwise_regularizer = regularizers.get(pointwise_regularizer, "pointwise_regularizer")
        self.depthwise_constraint = constraints.get(depthwise_constraint, "depthwise_constraint")
        self.pointwise_constraint = constraints.get(pointwise_constraint, "pointwise_constraint")

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        channels = self._input_channels(input_shape)
        depthwise = (*self.kernel_size, channels, self.depth_multiplier)
        pointwise = (*[1] * self.rank, channels * self.depth_multiplier, self.filters)
        return (
            WeightSpec("depthwise_kernel", depthwise, options="depthwise"),
            WeightSpec("pointwise_kernel", pointwise, options="pointwise"),
            WeightSpec("bias", (self.filters,), present=self.use_bias),
        )

    def call(self, inputs: TensorLike) -> Tensor:
        outputs = ops.separable_conv(inputs, self.depthwise_kernel, self.pointwise_kernel, **self._windows)
        return self._finished(outputs)

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """Return a layer from its config. Keras 2 writes options of a kernel, too, which there is none of."""
        unused = ("kernel_initializer", "kernel_regularizer", "kernel_constraint")
        return super().from_config({name: value for name, value in config.items() if name not in unused})


class SeparableConv1D(_SeparableConv):
    """Each channel convolved by itself along one axis, then all mixed step by step.

    Args:
        filters, kernel_size, strides, padding, data_format, dilation_rate, ...: see `SeparableConv2D`.

    Shapes: ``(batch, steps, channels)`` to ``(batch, new_steps, filters)``.

    Raises:
        ValueError: see `SeparableConv2D`.

    >>> import anabranch as ab
    >>> ones = {"depthwise_initializer": "ones", "pointwise_initializer": "ones"}
    >>> ab.layers.SeparableConv1D(1, 2, **ones)([[[1.0, 2.0], [3.0, 4.0]]])
    Tensor([[[10.]]], dtype=float32)
    """

    rank = 1


class SeparableConv2D(_SeparableConv):
    """Each channel convolved by itself along two axes, then all mixed cell by cell (Chollet, 2017).

    Args:
        filters: the number of channels of the output, positive.
        kernel_size: the size of the windows: an int, or one for each spatial axis.
        strides: cells from one window to the next: likewise.
        padding: ``"valid"`` or ``"same"``.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        dilation_rate: from one cell of a window to the next; an int, or one for each spatial axis.
        depth_multiplier: how many channels each channel of the input gives before they are mixed.
        activation: a name or function; None for none.
        use_bias: whether there is a bias.
        depthwise_initializer, pointwise_initializer, bias_initializer: first values.
        depthwise_regularizer, pointwise_regularizer, bias_regularizer, activity_regularizer: penalties.
        depthwise_constraint, pointwise_constraint, bias_constraint: projections after each update.
        **kwargs: see `Layer`.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, new_height, new_width, filters)``, or both with the
    channels in front of the sizes. Weights: ``depthwise_kernel (*kernel_size, channels, depth_multiplier)``,
    ``pointwise_kernel (1, 1, channels * depth_multiplier, filters)``, ``bias (filters,)``.

    Raises:
        ValueError: an argument is not one of those above; at the first call the number of channels is not known; or a
            window is larger than the input.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.SeparableConv2D(5, 3, strides=2, padding="same")(np.ones((2, 8, 8, 3), "float32")).shape
    (2, 4, 4, 5)
    """

    rank = 2


SeparableConvolution1D = SeparableConv1D
SeparableConvolution2D = SeparableConv2D
