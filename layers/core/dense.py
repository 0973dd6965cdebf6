"""`Dense`: a matrix product."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, SupportsIndex, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects import activations, constraints, initializers, regularizers
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ..quantizers.kernels import QuantizableKernel
from .input_spec import InputSpec
from .layer import Layer
from .layer_config import config_from_signature
from .weight import Weight, WeightSpec

if TYPE_CHECKING:
    from ...engine.graph import Variable
    from ..quantizers.base_config import QuantizationConfig
    from .options import CommonOptions


@config_from_signature(activity_regularizer=None)
class Dense(QuantizableKernel):
    """``activation(inputs @ kernel + bias)``, over the last axis.

    Args:
        units: the size of the output's last axis, positive.
        activation: a name or function; None for none.
        use_bias: whether there is a bias.
        kernel_initializer, bias_initializer: first values.
        kernel_regularizer, bias_regularizer, activity_regularizer: penalties.
        kernel_constraint, bias_constraint: projections after each update.
        lora_rank, lora_alpha, quantization_config: see `enable_lora` and `quantize`.

    Shapes: ``(batch, ..., features)`` to ``(batch, ..., units)``. Weights: ``kernel (features, units)``,
    ``bias (units,)``.

    Raises:
        ValueError: `units` is not positive, or at the first call the number of features is not known.

    >>> import anabranch as ab
    >>> ab.layers.Dense(2, kernel_initializer="ones")([[1.0, 2.0, 3.0]])
    Tensor([[6., 6.]], dtype=float32)
    """

    bias: Weight | None

    def __init__(
        self,
        units: int,
        activation: ActivationLike = None,
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        activity_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        quantization_config: QuantizationConfig | None = None,
        **kwargs: Unpack[CommonOptions],
    ) -> None:
        super().__init__(
            quantization_config=quantization_config,
            lora_rank=lora_rank,
            lora_alpha=lora_alpha,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )
        self.units = positive_int("Dense", "units", units)
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = initializers.get(kernel_initializer, "kernel_initializer")
        self.bias_initializer = initializers.get(bias_initializer, "bias_initializer")
        self.kernel_regularizer = regularizers.get(kernel_regularizer, "kernel_regularizer")
        self.bias_regularizer = regularizers.get(bias_regularizer, "bias_regularizer")
        self.kernel_constraint = constraints.get(kernel_constraint, "kernel_constraint")
        self.bias_constraint = constraints.get(bias_constraint, "bias_constraint")
        self.input_spec = InputSpec(min_ndim=2)
        self.supports_masking = True

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        return (
            WeightSpec("kernel", (known_features(self, input_shape), self.units)),
            WeightSpec("bias", (self.units,), present=self.use_bias),
        )

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.build_weights(self.weight_specs(input_shape))
        self.input_spec = InputSpec(min_ndim=2, axes={-1: known_features(self, input_shape)})
        self._enable_given_lora()

    def _reduced_axes(self) -> tuple[int, ...]:
        return (0,)

    def _scale_shape(self) -> tuple[int, ...]:
        return (self.units,)

    def _scales_along_kernel(self, scale: Tensor | Variable) -> Tensor | Variable:
        return scale

    def _product(self, inputs: Tensor, kernel: TensorLike) -> Tensor:
        return ops.matmul(inputs, kernel)

    def _kernel_axes(self, rank: int) -> list[tuple[int | None, int | None]]:
        return [(-1, None), (None, -1)]

    def _int8_product(self, inputs: Tensor) -> Tensor:
        from ..quantizers.products import int8_product

        return int8_product(self, inputs, self._kernel, self.kernel_scale)

    def call(self, inputs: Tensor) -> Tensor:
        outputs = self._biased(inputs)
        return outputs if self.activation is None else self.activation(outputs)


def positive_int(layer: str, name: str, value: SupportsIndex) -> int:
    """Return `value` as a positive int.

    Raises:
        ValueError: it is none.
    """
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number <= 0:
        raise ValueError(f"{layer}: {name} must be a positive integer, got {name}={value!r}.")
    return number


def known_features(layer: Layer, input_shape: Sequence[int | None]) -> int:
    """Return the size of the last axis.

    Raises:
        ValueError: it is not known.
        TypeError: there are several inputs.
    """
    features = input_shape[-1] if input_shape else None
    if isinstance(features, (list, tuple)):
        raise TypeError(
            f"Layer {layer.name!r} ({type(layer).__name__}) takes one input, got {len(input_shape)} of shapes "
            f"{input_shape}. Join them, as by layers.Concatenate()."
        )
    if features is None:
        raise ValueError(
            f"Layer {layer.name!r} ({type(layer).__name__}) needs a known size of its input's last axis to make "
            f"its weights, got input shape {input_shape}. Give that axis a size in ab.Input."
        )
    return int(features)
