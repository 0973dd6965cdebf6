"""Normalisation over features, and over batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..engine import ops
from ..engine.graph import Tensor
from ..engine.objects import constraints, initializers, regularizers
from .input_spec import InputSpec
from .layer import Layer


class LayerNormalization(Layer):
    """Each sample with mean 0 and variance 1 over `axis`, times gamma, plus beta (Ba, Kiros and Hinton, 2016).

    Args:
        axis: the axis, or several, to normalise over.
        epsilon: added to the variance.
        center: whether there is a beta.
        scale: whether there is a gamma.
        beta_initializer, gamma_initializer: first values.
        beta_regularizer, gamma_regularizer: penalties.
        beta_constraint, gamma_constraint: projections after each update.

    Weights: ``gamma`` and ``beta``, of the sizes of the normalised axes.
    """

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.axis = axis if isinstance(axis, int) else list(axis)
        self.epsilon = epsilon
        self.center = center
        self.scale = scale
        self.beta_initializer = initializers.get(beta_initializer)
        self.gamma_initializer = initializers.get(gamma_initializer)
        self.beta_regularizer = regularizers.get(beta_regularizer)
        self.gamma_regularizer = regularizers.get(gamma_regularizer)
        self.beta_constraint = constraints.get(beta_constraint)
        self.gamma_constraint = constraints.get(gamma_constraint)
        self.supports_masking = True
        self.autocast = False

    def build(self, input_shape: Any) -> None:
        axes = [self.axis] if isinstance(self.axis, int) else self.axis
        shape = tuple(input_shape[axis] for axis in axes)
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight(
                shape=shape,
                initializer=self.gamma_initializer,
                regularizer=self.gamma_regularizer,
                constraint=self.gamma_constraint,
                name="gamma",
            )
        if self.center:
            self.beta = self.add_weight(
                shape=shape,
                initializer=self.beta_initializer,
                regularizer=self.beta_regularizer,
                constraint=self.beta_constraint,
                name="beta",
            )
        self._axes = tuple(axis % len(input_shape) for axis in axes)
        self.input_spec = InputSpec(ndim=len(input_shape), axes=dict(zip(axes, shape, strict=True)))

    def call(self, inputs: Any) -> Tensor:
        rank = len(inputs.shape)

        def along_axes(weight: Any) -> Any:
            if weight is None or self._axes == tuple(range(rank - len(self._axes), rank)):
                return weight
            order = sorted(range(len(self._axes)), key=lambda position: self._axes[position])
            shape = [1] * rank
            for axis, size in zip(self._axes, weight.shape, strict=True):
                shape[axis] = size
            return ops.reshape(ops.transpose(weight, order), shape)

        outputs = ops.layer_normalization(
            inputs, along_axes(self.gamma), along_axes(self.beta), axis=self._axes, epsilon=self.epsilon
        )
        return ops.cast(outputs, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "axis": self.axis,
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            "beta_initializer": initializers.serialize(self.beta_initializer),
            "gamma_initializer": initializers.serialize(self.gamma_initializer),
            "beta_regularizer": regularizers.serialize(self.beta_regularizer),
            "gamma_regularizer": regularizers.serialize(self.gamma_regularizer),
            "beta_constraint": constraints.serialize(self.beta_constraint),
            "gamma_constraint": constraints.serialize(self.gamma_constraint),
        }


class BatchNormalization(Layer):
    """Each feature with mean 0 and variance 1 over the batch, times gamma, plus beta (Ioffe and Szegedy, 2015).

    Args:
        axis: the axis of the features.
        momentum: how much of the moving averages is kept at each step.
        epsilon: added to the variance.
        center: whether there is a beta.
        scale: whether there is a gamma.
        beta_initializer, gamma_initializer, moving_mean_initializer, moving_variance_initializer: first values.
        beta_regularizer, gamma_regularizer: penalties.
        beta_constraint, gamma_constraint: projections after each update.

    In training the batch's own statistics are used (over positions where the mask is True) and the moving ones
    updated; otherwise, and where ``trainable`` is False, the moving ones are used. Weights: ``gamma``, ``beta``,
    ``moving_mean``, ``moving_variance``, all ``(features,)``.
    """

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        moving_mean_initializer: Any = "zeros",
        moving_variance_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        synchronized: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if synchronized:
            raise ValueError("BatchNormalization(synchronized=True) is not available: statistics are of one replica.")
        self.axis = int(axis[0]) if isinstance(axis, (list, tuple)) else int(axis)
        self.momentum = float(momentum)
        self.epsilon = float(epsilon)
        self.center = center
        self.scale = scale
        self.beta_initializer = initializers.get(beta_initializer)
        self.gamma_initializer = initializers.get(gamma_initializer)
        self.moving_mean_initializer = initializers.get(moving_mean_initializer)
        self.moving_variance_initializer = initializers.get(moving_variance_initializer)
        self.beta_regularizer = regularizers.get(beta_regularizer)
        self.gamma_regularizer = regularizers.get(gamma_regularizer)
        self.beta_constraint = constraints.get(beta_constraint)
        self.gamma_constraint = constraints.get(gamma_constraint)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        shape = (input_shape[self.axis],)
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight(
                shape=shape,
                initializer=self.gamma_initializer,
                regularizer=self.gamma_regularizer,
                constraint=self.gamma_constraint,
                name="gamma",
            )
        if self.center:
            self.beta = self.add_weight(
                shape=shape,
                initializer=self.beta_initializer,
                regularizer=self.beta_regularizer,
                constraint=self.beta_constraint,
                name="beta",
            )
        self.moving_mean = self.add_weight(
            shape=shape, initializer=self.moving_mean_initializer, trainable=False, name="moving_mean"
        )
        self.moving_variance = self.add_weight(
            shape=shape, initializer=self.moving_variance_initializer, trainable=False, name="moving_variance"
        )
        self.input_spec = InputSpec(ndim=len(input_shape), axes={self.axis: shape[0]})

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Tensor:
        if training and self.trainable:
            mean, variance = self._moments(inputs, mask)
            self._update(self.moving_mean, mean)
            self._update(self.moving_variance, variance)
        else:
            mean, variance = self.moving_mean, self.moving_variance
        return ops.batch_normalization(
            inputs, mean, variance, self.axis, offset=self.beta, scale=self.gamma, epsilon=self.epsilon
        )

    def _update(self, average: Any, value: Tensor) -> None:
        average.assign(average * self.momentum + ops.cast(value, average.dtype) * (1.0 - self.momentum))

    def _moments(self, inputs: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance of each feature, over the positions that count."""
        rank = len(inputs.shape or ())
        axes = [axis for axis in range(rank) if axis != self.axis % rank]
        if mask is None:
            return ops.moments(inputs, axes=axes)
        weights = ops.cast(mask, inputs.dtype)
        for _ in range(rank - len(weights.shape or ())):
            weights = ops.expand_dims(weights, -1)
        # A mask may lack the inputs' inner axes: it counts once for each position that it stands for.
        weights = ops.broadcast_to(weights, ops.shape(inputs))
        total = ops.sum(weights, axis=axes)
        shape = [1] * rank
        shape[self.axis] = -1
        mean = ops.sum(inputs * weights, axis=axes) / total
        deviation = inputs - ops.reshape(mean, shape)
        return mean, ops.sum(weights * deviation * deviation, axis=axes) / total

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "axis": self.axis,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            "beta_initializer": initializers.serialize(self.beta_initializer),
            "gamma_initializer": initializers.serialize(self.gamma_initializer),
            "moving_mean_initializer": initializers.serialize(self.moving_mean_initializer),
            "moving_variance_initializer": initializers.serialize(self.moving_variance_initializer),
            "beta_regularizer": regularizers.serialize(self.beta_regularizer),
            "gamma_regularizer": regularizers.serialize(self.gamma_regularizer),
            "beta_constraint": constraints.serialize(self.beta_constraint),
            "gamma_constraint": constraints.serialize(self.gamma_constraint),
            "synchronized": False,
        }
