"""Normalisation of each sample by itself: in groups of features, by the root of the mean square, to length 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from ...engine import ops
from ...engine.graph import Tensor, Variable, as_dtype, result_type
from ...engine.objects import constraints, initializers, regularizers
from ...engine.objects.arguments import check_axis, check_numbers
from ...engine.objects.identifiers import ConstraintLike, InitializerLike, RegularizerLike
from ..core.input_spec import InputSpec, known_shape
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..core.weight import Weight, WeightSpec
from .axes import axes_of, given_axes, sizes_along

if TYPE_CHECKING:
    from ..core.options import LayerOptions


@config_from_signature()
class GroupNormalization(Layer):
    """Each group of features of a sample with mean 0 and variance 1, times gamma, plus beta (Wu and He, 2018).

    Args:
        groups: the number of groups, of which the number of features is a multiple; -1 for a group for each feature
            (instance normalisation). With 1 group it is a layer normalisation over all axes but the batch.
        axis: the axis of the features.
        epsilon: added to the variance.
        center: whether there is a beta.
        scale: whether there is a gamma.
        beta_initializer, gamma_initializer: first values.
        beta_regularizer, gamma_regularizer: penalties.
        beta_constraint, gamma_constraint: projections after each update.

    Weights: ``gamma`` and ``beta``, ``(features,)``.

    Raises:
        ValueError: `groups` is not positive, or at the first call it does not divide the number of features.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> x = np.array([[1.0, 3.0, 10.0, 30.0]], "float32")
    >>> ab.layers.GroupNormalization(groups=2)(x).round(2)
    Tensor([[-1.,  1., -1.,  1.]], dtype=float32)
    """

    gamma: Weight | None
    beta: Weight | None

    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: InitializerLike = "zeros",
        gamma_initializer: InitializerLike = "ones",
        beta_regularizer: RegularizerLike = None,
        gamma_regularizer: RegularizerLike = None,
        beta_constraint: ConstraintLike = None,
        gamma_constraint: ConstraintLike = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(groups, int) or (groups <= 0 and groups != -1):
            raise ValueError(f"GroupNormalization: groups must be a positive integer, or -1, got groups={groups!r}.")
        self.groups = groups
        check_axis(type(self).__name__, axis)
        self.axis = axis
        check_numbers(type(self).__name__, epsilon=epsilon)
        self.epsilon = epsilon
        self.center = center
        self.scale = scale
        self.beta_initializer = initializers.get(beta_initializer, "beta_initializer")
        self.gamma_initializer = initializers.get(gamma_initializer, "gamma_initializer")
        self.beta_regularizer = regularizers.get(beta_regularizer, "beta_regularizer")
        self.gamma_regularizer = regularizers.get(gamma_regularizer, "gamma_regularizer")
        self.beta_constraint = constraints.get(beta_constraint, "beta_constraint")
        self.gamma_constraint = constraints.get(gamma_constraint, "gamma_constraint")
        self.supports_masking = True
        self.autocast = False

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        (axis,) = axes_of(self, self.axis, len(input_shape))
        features = input_shape[axis]
        if features is None or features % self._count(features):
            raise ValueError(
                f"Layer {self.name!r} (GroupNormalization): the size of axis {self.axis} must be known, and a multiple "
                f"of groups={self.groups}, got input shape {input_shape}."
            )
        shape = (int(features),)
        return (
            WeightSpec("gamma", shape, present=self.scale, autocast=False),
            WeightSpec("beta", shape, present=self.center, autocast=False),
        )

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.build_weights(self.weight_specs(input_shape))
        self._features = int(input_shape[self.axis] or 0)  # `weight_specs` has seen that it is known
        self.input_spec = InputSpec(ndim=len(input_shape), axes={self.axis: self._features})

    def _count(self, features: int) -> int:
        return features if self.groups == -1 else self.groups

    def call(self, inputs: Tensor) -> Tensor:
        # In half precision, sums over many places overflow.
        wide = ops.cast(inputs, result_type(inputs.dtype, as_dtype("float32")))
        sizes, rank = list(ops.shape(wide)), len(known_shape(inputs.shape))
        axis = self.axis % rank
        groups = self._count(self._features)
        grouped = ops.reshape(wide, [*sizes[:axis], groups, self._features // groups, *sizes[axis + 1 :]])
        reduced = [other for other in range(1, rank + 1) if other != axis]
        mean, variance = ops.moments(grouped, axes=reduced, keepdims=True)
        normal = ops.reshape((grouped - mean) * ops.rsqrt(variance + self.epsilon), sizes)
        if self.gamma is not None:
            normal = normal * self._along_axis(self.gamma, axis, rank)
        if self.beta is not None:
            normal = normal + self._along_axis(self.beta, axis, rank)
        return ops.cast(normal, self.compute_dtype)

    def _along_axis(self, weight: Variable, axis: int, rank: int) -> Tensor:
        shape = [1] * rank
        shape[axis] = -1
        return ops.reshape(weight, shape)


@config_from_signature()
class RMSNormalization(Layer):
    """Each sample divided by the root of its mean square along `axis`, times a learned scale (Zhang, Sennrich, 2019).

    Args:
        axis: the axis, or several.
        epsilon: added to the mean square.

    Weights: ``scale``, of the sizes of the axes, in their order.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.RMSNormalization()(np.array([[3.0, -3.0]], "float32")).round(3)
    Tensor([[ 1., -1.]], dtype=float32)
    """

    scale: Weight

    def __init__(self, axis: int | Sequence[int] = -1, epsilon: float = 1e-6, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.axis = given_axes(type(self).__name__, axis)
        check_numbers(type(self).__name__, epsilon=epsilon)
        self.epsilon = epsilon
        self.supports_masking = True

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        shape = tuple(input_shape[axis] for axis in axes_of(self, self.axis, len(input_shape)))
        return (WeightSpec("scale", shape, "ones"),)

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.build_weights(self.weight_specs(input_shape))
        self.input_spec = sizes_along(self.axis, input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        sizes = known_shape(inputs.shape)
        axes = axes_of(self, self.axis, len(sizes))
        scale = ops.reshape(self.scale, [(size or -1) if axis in axes else 1 for axis, size in enumerate(sizes)])
        return ops.rms_normalization(inputs, scale, axis=axes, epsilon=self.epsilon)


@config_from_signature()
class UnitNormalization(Layer):
    """Each sample with length 1: divided by the root of its sum of squares along `axis`.

    Args:
        axis: the axis, or several.

    Raises:
        TypeError: `axis` is neither an int nor a list of ints.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.UnitNormalization()(np.array([[3.0, 4.0]], "float32"))
    Tensor([[0.6, 0.8]], dtype=float32)
    """

    def __init__(self, axis: int | Sequence[int] = -1, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.axis = given_axes("UnitNormalization", axis)
        self.supports_masking = True
        self._build_at_init()

    def call(self, inputs: Tensor) -> Tensor:
        axis = self.axis if isinstance(self.axis, int) else tuple(self.axis)
        # In half precision, the least length's square would be 0.
        wide = ops.cast(inputs, result_type(inputs.dtype, as_dtype("float32")))
        return ops.cast(ops.l2_normalize(wide, axis=axis, epsilon=1e-24), self.compute_dtype)
