"""Shared by the layers that convolve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypedDict

from ...engine import ops
from ...engine.graph import Tensor, Variable
from ...engine.objects import constraints, initializers, regularizers
from ...engine.objects.identifiers import ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.data_format import check_data_format
from ..core.input_spec import InputSpec
from ..core.layer import Layer
from ..core.weight import Weight
from .spatial import axis_sizes, channels_axis, known_channels, one_of


class Windows(TypedDict):
    """The arguments that all ops of convolution take."""

    strides: tuple[int, ...]
    padding: str
    data_format: str
    dilation_rate: tuple[int, ...]


class Convolution(Layer):
    """The base of the layers that convolve: windows, bias and activation, whose arguments `Conv2D` describes."""

    rank: ClassVar[int]
    paddings: ClassVar[tuple[str, ...]] = ("valid", "same")

    activation: Callable[[Tensor], Tensor] | None
    bias: Weight | None = None

    def _set_windows(
        self,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int],
        padding: str,
        data_format: str | None,
        dilation_rate: int | Sequence[int],
    ) -> None:
        layer = type(self).__name__
        self.kernel_size = axis_sizes(layer, "kernel_size", kernel_size, self.rank)
        self.strides = axis_sizes(layer, "strides", strides, self.rank)
        self.padding = one_of(layer, "padding", padding, self.paddings)
        self.data_format = check_data_format(layer, data_format)
        self.dilation_rate = axis_sizes(layer, "dilation_rate", dilation_rate, self.rank)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    def _set_bias(
        self,
        use_bias: bool,
        initializer: InitializerLike,
        regularizer: RegularizerLike,
        constraint: ConstraintLike,
    ) -> None:
        self.use_bias = use_bias
        self.bias_initializer = initializers.get(initializer, "bias_initializer")
        self.bias_regularizer = regularizers.get(regularizer, "bias_regularizer")
        self.bias_constraint = constraints.get(constraint, "bias_constraint")

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.build_weights(self.weight_specs(input_shape))
        channels = self._input_channels(input_shape)
        self.input_spec = InputSpec(ndim=self.rank + 2, axes={channels_axis(self.data_format): channels})

    def _input_channels(self, input_shape: Sequence[int | None]) -> int:
        """Return the number of channels of an input, which all later ones must have, too."""
        return known_channels(self, input_shape, self.rank, self.data_format)

    @property
    def _windows(self) -> Windows:
        """The arguments that all ops of convolution take."""
        return {
            "strides": self.strides,
            "padding": self.padding,
            "data_format": self.data_format,
            "dilation_rate": self.dilation_rate,
        }

    def _finished(self, outputs: Tensor) -> Tensor:
        """Return a convolution's result with bias and activation."""
        if self.bias is not None:
            outputs = outputs + per_channel(self.bias, self.rank, self.data_format)
        return outputs if self.activation is None else self.activation(outputs)


def per_channel(vector: Tensor | Variable, rank: int, data_format: str) -> Tensor | Variable:
    """Return a number for each channel, in a shape that broadcasts to a batch."""
    return vector if data_format == "channels_last" else ops.reshape(vector, (-1, *[1] * rank))


def check_dilation(layer: str, strides: tuple[int, ...], dilation_rate: tuple[int, ...]) -> None:
    """Refuse what Keras refuses, so that a saved layer is one there, too.

    Raises:
        ValueError: strides and dilation rate both exceed 1.
    """
    if max(strides) > 1 and max(dilation_rate) > 1:
        raise ValueError(
            f"{layer}: strides > 1 can't be combined with dilation_rate > 1, got strides={strides} and "
            f"dilation_rate={dilation_rate}. Set one of them to 1."
        )
