"""`Conv1DTranspose`, `Conv2DTranspose`, `Conv3DTranspose`: the transposes of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import activations, constraints, initializers, regularizers
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ..core.dense import positive_int
from ..core.layer_config import config_from_signature
from ..core.weight import Weight, WeightSpec
from .base import Convolution, check_dilation
from .spatial import axis_sizes

if TYPE_CHECKING:
    from ..core.options import CommonOptions


@config_from_signature()
class _ConvTranspose(Convolution):
    """The base of the transposed convolutions; see `Conv2DTranspose`."""

    rounded_kernels = MappingProxyType({"kernel": (-2,)})

    kernel: Weight

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, ...],
        strides: int | tuple[int, ...] = 1,
        padding: str = "valid",
        output_padding: int | tuple[int, ...] | None = None,
        data_format: str | None = None,
        dilation_rate: int | tuple[int, ...] = 1,
        activation: ActivationLike = None,
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        **kwargs: Unpack[CommonOptions],
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self._set_windows(kernel_size, strides, padding, data_format, dilation_rate)
        self._set_bias(use_bias, bias_initializer, bias_regularizer, bias_constraint)
        self.activation = activations.get(activation)
        self.filters = positive_int(type(self).__name__, "filters", filters)
        self.output_padding = self._checked_output_padding(output_padding)
        check_dilation(type(self).__name__, self.strides, self.dilation_rate)
        self.kernel_initializer = initializers.get(kernel_initializer, "kernel_initializer")
        self.kernel_regularizer = regularizers.get(kernel_regularizer, "kernel_regularizer")
        self.kernel_constraint = constraints.get(kernel_constraint, "kernel_constraint")

    def _checked_output_padding(self, output_padding: int | Sequence[int] | None) -> tuple[int, ...] | None:
        if output_padding is None:
            return None
        layer = type(self).__name__
        sizes = axis_sizes(layer, "output_padding", output_padding, self.rank, 0)
        if any(size >= stride for size, stride in zip(sizes, self.strides, strict=True)):
            raise ValueError(
                f"{layer}: output_padding must be less than strides along each axis, got output_padding={sizes} and "
                f"strides={self.strides}."
            )
        return sizes

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        channels = self._input_channels(input_shape)
        return (
            WeightSpec("kernel", (*self.kernel_size, self.filters, channels)),
            WeightSpec("bias", (self.filters,), present=self.use_bias),
        )

    def call(self, inputs: TensorLike) -> Tensor:
        outputs = ops.conv_transpose(inputs, self.kernel, output_padding=self.output_padding, **self._windows)
        return self._finished(outputs)


class Conv1DTranspose(_ConvTranspose):
    """The transpose of a convolution along one axis, which makes more steps of few.

    Args:
        filters, kernel_size, strides, padding, output_padding, data_format, ...: see `Conv2DTranspose`.

    Shapes: ``(batch, steps, channels)`` to ``(batch, new_steps, filters)``. Weights: ``kernel (kernel_size, filters,
    channels)``, ``bias (filters,)``.

    Raises:
        ValueError: see `Conv2DTranspose`.

    >>> import anabranch as ab
    >>> ab.layers.Conv1DTranspose(1, 2, strides=2, kernel_initializer="ones")([[[1.0], [2.0]]])[0, :, 0]
    Tensor([1., 1., 2., 2.], dtype=float32)
    """

    rank = 1


class Conv2DTranspose(_ConvTranspose):
    """The transpose of a convolution along two axes, which makes large images of small ones (Zeiler et al., 2010).

    Each cell of the input puts the kernel, times its value, onto the output. With r the reach of the kernel,
    ``(kernel_size - 1) * dilation_rate + 1``, an axis of size n becomes one of size ``n * strides`` with the padding
    "same", and ``n * strides + max(r - strides, 0)`` with "valid".

    Args:
        filters: the number of channels of the output, positive.
        kernel_size: the size of the kernel: an int, or one for each spatial axis.
        strides: cells of the output from one cell of the input to the next: likewise.
        padding: ``"valid"`` or ``"same"``.
        output_padding: instead of those sizes, ``(n - 1) * strides + r + output_padding`` with "valid", and ``(n - 1)
            * strides + r % 2 + output_padding`` with "same"; None, an int, or one for each spatial axis, less than
            `strides`.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        dilation_rate: from one cell of the kernel to the next; an int, or one for each spatial axis.
        activation: a name or function; None for none.
        use_bias: whether there is a bias.
        kernel_initializer, bias_initializer: first values.
        kernel_regularizer, bias_regularizer, activity_regularizer: penalties.
        kernel_constraint, bias_constraint: projections after each update.
        **kwargs: see `Layer`.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, new_height, new_width, filters)``, or both with the
    channels in front of the sizes. Weights: ``kernel (*kernel_size, filters, channels)``, ``bias (filters,)``.

    Raises:
        ValueError: an argument is not one of those above; strides and dilation rate both exceed 1; or at the first call
            the number of channels is not known.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.Conv2DTranspose(4, 3, strides=2, padding="same")(np.ones((2, 8, 8, 3), "float32")).shape
    (2, 16, 16, 4)
    """

    rank = 2


class Conv3DTranspose(_ConvTranspose):
    """The transpose of a convolution along three axes.

    Args:
        filters, kernel_size, strides, padding, data_format, output_padding, ...: see `Conv2DTranspose`; Keras has the
            latter two in this order here.

    Shapes: ``(batch, size_1, size_2, size_3, channels)`` to ``(batch, *new_sizes, filters)``.

    Raises:
        ValueError: see `Conv2DTranspose`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.Conv3DTranspose(4, 2, strides=2)(np.ones((1, 2, 3, 4, 3), "float32")).shape
    (1, 4, 6, 8, 4)
    """

    rank = 3

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, ...],
        strides: int | tuple[int, ...] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        output_padding: int | tuple[int, ...] | None = None,
        dilation_rate: int | tuple[int, ...] = 1,
        activation: ActivationLike = None,
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        **kwargs: Unpack[CommonOptions],
    ) -> None:
        super().__init__(
            filters,
            kernel_size,
            strides,
            padding,
            output_padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            activity_regularizer,
            kernel_constraint,
            bias_constraint,
            **kwargs,
        )


Convolution1DTranspose = Conv1DTranspose
Convolution2DTranspose = Conv2DTranspose
Convolution3DTranspose = Conv3DTranspose
