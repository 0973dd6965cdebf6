"""`Conv1D`, `Conv2D`, `Conv3D`: convolutions along one to three axes."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import activations, constraints, initializers, regularizers
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ..core.dense import positive_int
from ..core.layer_config import config_from_signature
from ..core.weight import Weight, WeightSpec
from ..quantizers.adapters import AdaptableLayer
from .base import Convolution, check_dilation

if TYPE_CHECKING:
    from ..core.options import CommonOptions


@config_from_signature()
class _Conv(Convolution, AdaptableLayer):
    """The base of `Conv1D`, `Conv2D` and `Conv3D`; see `Conv2D`."""

    untracked = AdaptableLayer.untracked | {"kernel"}  # what it comes to is no part of the layer
    rounded_kernels = MappingProxyType({"_kernel": (-1,)})
    _kernel: Any = None

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        groups: int = 1,
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
        layer = type(self).__name__
        self.filters = positive_int(layer, "filters", filters)
        self.groups = positive_int(layer, "groups", groups)
        if self.filters % self.groups:
            raise ValueError(f"{layer}: filters must be a multiple of groups, got filters={filters}, groups={groups}.")
        check_dilation(layer, self.strides, self.dilation_rate)
        self.kernel_initializer = initializers.get(kernel_initializer, "kernel_initializer")
        self.kernel_regularizer = regularizers.get(kernel_regularizer, "kernel_regularizer")
        self.kernel_constraint = constraints.get(kernel_constraint, "kernel_constraint")

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        channels = self._input_channels(input_shape)
        if channels % self.groups:
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}): the number of input channels must be a multiple of "
                f"groups={self.groups}, got {channels} channels in input shape {input_shape}."
            )
        return (
            WeightSpec("kernel", (*self.kernel_size, channels // self.groups, self.filters)),
            WeightSpec("bias", (self.filters,), present=self.use_bias),
        )

    def build(self, input_shape: Sequence[int | None]) -> None:
        super().build(input_shape)
        self._enable_given_lora()

    @property
    def kernel(self) -> Weight:
        """The kernel: a weight; with adapters the tensor that they come to."""
        kernel: Any = self._kernel
        if self.lora_enabled:
            a, b = self._lora_factors()
            kernel = ops.cast(kernel + ops.matmul(a, b) * self._lora_scale, self.compute_dtype)
        return kernel

    @kernel.setter
    def kernel(self, value: object) -> None:
        self._kernel = value

    def _lora_shapes(self, rank: int) -> tuple[Sequence[int], Sequence[int]]:
        *sizes, filters = self._kernel.shape
        return (*sizes, rank), (rank, filters)

    def convolution_op(self, inputs: TensorLike, kernel: TensorLike) -> Tensor:
        """Return the convolution alone, without bias and activation; what subclasses may override.

        Args:
            inputs: ``(batch, ..., channels)``.
            kernel: ``(*kernel_size, channels // groups, filters)``, such as ``self.kernel`` made into another one.
        """
        return ops.conv(inputs, kernel, **self._windows)

    def call(self, inputs: TensorLike) -> Tensor:
        return self._finished(self.convolution_op(inputs, self.kernel))


class Conv1D(_Conv):
    """``activation(conv(inputs, kernel) + bias)`` along one axis, such as that of time.

    Args:
        filters: the number of channels of the output, positive.
        kernel_size: the number of steps that an output depends on.
        strides: steps from one window to the next.
        padding: ``"valid"`` (none), ``"same"`` (zeros on both sides, so that at stride 1 the number of steps stays), or
            ``"causal"`` (zeros in front, so that no output depends on later steps; van den Oord et al., 2016).
        data_format, dilation_rate, groups, activation, use_bias, ...: see `Conv2D`.

    Shapes: ``(batch, steps, channels)`` to ``(batch, new_steps, filters)``. Weights: ``kernel (kernel_size,
    channels // groups, filters)``, ``bias (filters,)``.

    Raises:
        ValueError: see `Conv2D`.

    >>> import anabranch as ab
    >>> ab.layers.Conv1D(1, 2, padding="causal", kernel_initializer="ones")([[[1.0], [2.0], [4.0]]])[0, :, 0]
    Tensor([1., 3., 6.], dtype=float32)
    """

    rank = 1
    paddings = ("valid", "same", "causal")


class Conv2D(_Conv):
    """``activation(conv(inputs, kernel) + bias)`` along two axes, as for images (LeCun et al., 1989).

    The kernel is not flipped, so that this is a cross-correlation.

    Args:
        filters: the number of channels of the output, positive.
        kernel_size: the size of the windows: an int, or one for each spatial axis.
        strides: cells from one window to the next: likewise.
        padding: ``"valid"`` (none) or ``"same"`` (zeros on both sides, so that at stride 1 the sizes stay).
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        dilation_rate: from one cell of a window to the next; an int, or one for each spatial axis.
        groups: input channels and filters are divided into this many groups, each convolved by itself.
        activation: a name or function; None for none.
        use_bias: whether there is a bias.
        kernel_initializer, bias_initializer: first values.
        kernel_regularizer, bias_regularizer, activity_regularizer: penalties.
        kernel_constraint, bias_constraint: projections after each update.
        **kwargs: see `Layer`; and ``lora_rank``, ``lora_alpha``, see `enable_lora`.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, new_height, new_width, filters)``, or both with the
    channels in front of the sizes. Weights: ``kernel (*kernel_size, channels // groups, filters)``, ``bias
    (filters,)``.

    Raises:
        ValueError: an argument is not one of those above; strides and dilation rate both exceed 1; at the first call
            the number of channels is not known, or is not a multiple of `groups`; or a window is larger than the input.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.Conv2D(4, 3, activation="relu")(np.ones((2, 8, 8, 3), "float32")).shape
    (2, 6, 6, 4)
    """

    rank = 2


class Conv3D(_Conv):
    """``activation(conv(inputs, kernel) + bias)`` along three axes, as for volumes or films.

    Args:
        filters, kernel_size, strides, padding, data_format, dilation_rate, groups, activation, ...: see `Conv2D`.

    Shapes: ``(batch, size_1, size_2, size_3, channels)`` to ``(batch, *new_sizes, filters)``.

    Raises:
        ValueError: see `Conv2D`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.Conv3D(4, (1, 3, 3), padding="same")(np.ones((2, 5, 8, 8, 3), "float32")).shape
    (2, 5, 8, 8, 4)
    """

    rank = 3


Convolution1D = Conv1D
Convolution2D = Conv2D
Convolution3D = Conv3D
