"""Activations as layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from ...engine import ops
from ...engine.graph import Shape, Tensor
from ...engine.objects import activations, constraints, initializers, regularizers
from ...engine.objects.arguments import check_numbers, check_optional_numbers, listed
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.base import TensorLike
from .input_spec import InputSpec
from .layer import Layer
from .layer_config import config_from_signature
from .weight import Weight, WeightSpec

if TYPE_CHECKING:
    from .options import LayerOptions


@config_from_signature()
class Activation(Layer):
    """An activation function applied to each element.

    Args:
        activation: a name such as ``"relu"``, or a function.
    """

    def __init__(self, activation: ActivationLike, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self._build_at_init()
        self.supports_masking = True
        self.activation = activations.get(activation)

    def call(self, inputs: TensorLike) -> Tensor:
        return self.activation(inputs)


@config_from_signature()
class ReLU(Layer):
    """``max(x, 0)``, or a line with a kink.

    Args:
        max_value: values above are cut off; None for no limit.
        negative_slope: the slope below `threshold`.
        threshold: where the slope changes.

    Raises:
        ValueError: an argument is negative or None.
    """

    def __init__(
        self,
        max_value: float | None = None,
        negative_slope: float = 0.0,
        threshold: float = 0.0,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self._build_at_init()
        check_optional_numbers("ReLU", max_value=max_value)
        check_numbers("ReLU", negative_slope=negative_slope, threshold=threshold)
        if max_value is not None and max_value < 0:
            raise ValueError(f"ReLU: max_value must not be negative, got {max_value}.")
        for name, value in (("negative_slope", negative_slope), ("threshold", threshold)):
            if value < 0:
                raise ValueError(f"ReLU: {name} must be a number from 0 up, got {value}.")
        self.supports_masking = True
        self.max_value = max_value
        self.negative_slope = negative_slope
        self.threshold = threshold

    def call(self, inputs: TensorLike) -> Tensor:
        return activations.relu(inputs, self.negative_slope, self.max_value, self.threshold)


@config_from_signature()
class LeakyReLU(Layer):
    """``x`` where it is positive, ``negative_slope * x`` elsewhere."""

    def __init__(self, negative_slope: float = 0.3, **kwargs: Unpack[LayerOptions]) -> None:
        if "alpha" in kwargs:  # its name in Keras 2, and in its files
            negative_slope = kwargs.pop("alpha")  # pyrefly: ignore[no-matching-overload] - not among today's options
        super().__init__(**kwargs)
        self._build_at_init()
        check_numbers("LeakyReLU", negative_slope=negative_slope)
        if negative_slope < 0:
            raise ValueError(f"LeakyReLU: negative_slope must be a number from 0 up, got {negative_slope}.")
        self.supports_masking = True
        self.negative_slope = negative_slope

    def call(self, inputs: TensorLike) -> Tensor:
        return ops.leaky_relu(inputs, negative_slope=self.negative_slope)


@config_from_signature()
class ELU(Layer):
    """``x`` where it is positive, ``alpha * (exp(x) - 1)`` elsewhere (Clevert et al., 2015)."""

    def __init__(self, alpha: float = 1.0, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self._build_at_init()
        self.supports_masking = True
        check_numbers("ELU", alpha=alpha)
        self.alpha = alpha

    def call(self, inputs: TensorLike) -> Tensor:
        return ops.elu(inputs, alpha=self.alpha)


@config_from_signature()
class PReLU(Layer):
    """``x`` where it is positive, ``alpha * x`` elsewhere, with a learned alpha for each position (He et al., 2015).

    Args:
        alpha_initializer, alpha_regularizer, alpha_constraint: of the slopes.
        shared_axes: axes along which the slopes are shared, counted from 1; axis 0 is the batch. As in Keras -1 is the
            axis before the last one, and 0 the last one.
    """

    alpha: Weight

    def __init__(
        self,
        alpha_initializer: InitializerLike = "Zeros",
        alpha_regularizer: RegularizerLike = None,
        alpha_constraint: ConstraintLike = None,
        shared_axes: int | Sequence[int] | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.alpha_initializer = initializers.get(alpha_initializer, "alpha_initializer")
        self.alpha_regularizer = regularizers.get(alpha_regularizer, "alpha_regularizer")
        self.alpha_constraint = constraints.get(alpha_constraint, "alpha_constraint")
        axes = [shared_axes] if isinstance(shared_axes, int) else shared_axes or []
        self.shared_axes = listed("PReLU", "shared_axes", axes, "an int or several") or None

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        shape = list(input_shape[1:])
        for axis in self.shared_axes or ():
            if not -len(shape) < axis <= len(shape):
                raise ValueError(
                    f"Layer {self.name!r} (PReLU): shared_axes={self.shared_axes} are outside of inputs of shape "
                    f"{tuple(input_shape)}, whose last axis is {len(shape)}. Axes count from 1; axis 0 is the batch."
                )
            shape[axis - 1] = 1
        return (WeightSpec("alpha", tuple(shape)),)

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.build_weights(self.weight_specs(input_shape))
        shared = self.shared_axes or ()
        axes = {axis: size for axis, size in enumerate(input_shape) if axis > 0 and axis not in shared}
        self.input_spec = InputSpec(ndim=len(input_shape), axes=axes)

    def call(self, inputs: Tensor) -> Tensor:
        return ops.relu(inputs) - self.alpha * ops.relu(-inputs)


@config_from_signature()
class Softmax(Layer):
    """Exponentials that sum to one along `axis`.

    Args:
        axis: the axis, or several.

    The call takes a `mask` that broadcasts to the inputs: where it is False, the result is 0.
    """

    def __init__(self, axis: int | Sequence[int] = -1, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self._build_at_init()
        self.supports_masking = True
        self.axis = axis if isinstance(axis, int) else listed("Softmax", "axis", axis, "an int or several")

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        axis = self.axis if isinstance(self.axis, int) else tuple(self.axis)
        if mask is None:
            return activations.softmax(inputs, axis=axis)
        self._check_mask(inputs.shape, mask.shape)
        mask = mask if mask.dtype == np.dtype("bool") else mask > 0.5
        lowest = -3e4 if inputs.dtype == np.dtype("float16") else -1e9
        outputs = ops.softmax(ops.where(mask, inputs, np.asarray(lowest, inputs.dtype)), axis=axis)
        return ops.where(mask, outputs, ops.zeros_like(outputs))

    def _check_mask(self, shape: Shape, mask_shape: Shape) -> None:
        if shape is None or mask_shape is None:
            return
        pairs = zip(reversed(mask_shape), reversed(shape), strict=False)
        if len(mask_shape) > len(shape) or any(m not in (1, None, size) and size is not None for m, size in pairs):
            raise ValueError(
                f"Layer {self.name!r} (Softmax): mask must broadcast to the inputs, whose shape is {shape}, got a mask "
                f"of shape {mask_shape}."
            )
