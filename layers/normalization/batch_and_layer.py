"""Normalisation over features, and over batches."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor, as_dtype, result_type
from ...engine.graph.provenance import user_stacklevel
from ...engine.objects import constraints, initializers, regularizers
from ...engine.objects.arguments import check_numbers, refused
from ...engine.objects.identifiers import ConstraintLike, InitializerLike, PolicyLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ...engine.ops.neural.nn import NO_RMS
from ...engine.ops.replicas import is_replicated, sum_over_replicas
from ..core.input_spec import InputSpec, known_shape
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..core.weight import Weight, WeightSpec
from .axes import axes_of, given_axes, sizes_along

if TYPE_CHECKING:
    from ..core.options import LayerOptions


# Keras's epsilon: what a mask without a True is divided by.
_LEAST_WEIGHT = 1e-7


@config_from_signature()
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
        rms_scaling: divide by the root of the variance, and neither take off the mean nor add beta. Keras has this for
            old models only, with a warning; it is not what `RMSNormalization` does, which takes the mean square.

    Weights: ``gamma`` and ``beta``, of the sizes of the normalised axes, in the order of the input's axes.
    """

    gamma: Weight | None
    beta: Weight | None

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: InitializerLike = "zeros",
        gamma_initializer: InitializerLike = "ones",
        beta_regularizer: RegularizerLike = None,
        gamma_regularizer: RegularizerLike = None,
        beta_constraint: ConstraintLike = None,
        gamma_constraint: ConstraintLike = None,
        *,
        rms_scaling: bool = False,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(rms_scaling, bool):
            raise refused("LayerNormalization", "rms_scaling", rms_scaling, "True or False")
        if rms_scaling:
            warnings.warn(f"Layer {self.name!r} (LayerNormalization): {NO_RMS}", stacklevel=user_stacklevel())
        self.rms_scaling = rms_scaling
        self.axis = given_axes(type(self).__name__, axis)
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
        shape = tuple(input_shape[axis] for axis in axes_of(self, self.axis, len(input_shape)))
        return (
            WeightSpec("gamma", shape, present=self.scale or self.rms_scaling),
            WeightSpec("beta", shape, present=self.center and not self.rms_scaling),
        )

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.build_weights(self.weight_specs(input_shape))
        self.input_spec = sizes_along(self.axis, input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        rank = len(known_shape(inputs.shape))
        axes = axes_of(self, self.axis, rank)

        def along_axes(weight: Weight | None) -> Tensor | Weight | None:
            if weight is None or axes == tuple(range(rank - len(axes), rank)):
                return weight
            shape = [1] * rank
            for axis, size in zip(axes, known_shape(weight.shape), strict=True):
                shape[axis] = -1 if size is None else size
            return ops.reshape(weight, shape)

        gamma = along_axes(self.gamma)
        if self.rms_scaling and gamma is not None:
            wide = ops.cast(inputs, result_type(inputs.dtype, as_dtype("float32")))
            scale = ops.rsqrt(ops.var(wide, axis=axes, keepdims=True) + self.epsilon)
            return ops.cast(wide * scale * ops.cast(gamma, wide.dtype), self.compute_dtype)
        outputs = ops.layer_normalization(inputs, gamma, along_axes(self.beta), axis=axes, epsilon=self.epsilon)
        return ops.cast(outputs, self.compute_dtype)


@config_from_signature()
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
        renorm: correct the batch's statistics towards averages of them, so that training and inference agree for small
            batches (Ioffe, 2017).
        renorm_clipping: limits of the correction ``x * r + d``: ``rmin <= r <= rmax`` and ``-dmax <= d <= dmax``.
        renorm_momentum: how much of these averages is kept at each step.
        synchronized: whether the statistics are those of the rows of all replicas, under `distribute.DataParallel`,
            `distribute.ModelParallel` with an axis for rows, and `distribute.ParameterServer` with ``sync=True`` and no
            backup workers. A single replica sees the whole batch, so that both values mean the same.

    In training the batch's own statistics are used (over positions where the mask is True) and the moving ones
    updated; otherwise, and where ``trainable`` is False, the moving ones are used. Weights: ``gamma``, ``beta``,
    ``moving_mean``, ``moving_variance``, all ``(features,)``; with `renorm` also ``moving_stddev``, ``renorm_mean`` and
    ``renorm_stddev``.

    Raises:
        ValueError: `renorm_clipping` has other keys, or limits that cross.
    """

    gamma: Weight | None
    beta: Weight | None
    moving_mean: Weight
    moving_variance: Weight
    moving_stddev: Weight  # as the next two, of renormalisation only
    renorm_mean: Weight
    renorm_stddev: Weight

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: InitializerLike = "zeros",
        gamma_initializer: InitializerLike = "ones",
        moving_mean_initializer: InitializerLike = "zeros",
        moving_variance_initializer: InitializerLike = "ones",
        beta_regularizer: RegularizerLike = None,
        gamma_regularizer: RegularizerLike = None,
        beta_constraint: ConstraintLike = None,
        gamma_constraint: ConstraintLike = None,
        renorm: bool = False,
        renorm_clipping: dict[str, float] | None = None,
        renorm_momentum: float = 0.99,
        synchronized: bool = False,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        owner = type(self).__name__
        check_numbers(owner, momentum=momentum, epsilon=epsilon, renorm_momentum=renorm_momentum)
        check_numbers(owner, axis=axis[0] if isinstance(axis, (list, tuple)) else axis)
        self.axis = int(axis[0]) if isinstance(axis, (list, tuple)) else int(axis)
        self.synchronized = bool(synchronized)
        self.renorm = renorm
        self.renorm_clipping = _checked_clipping(renorm_clipping) if renorm else renorm_clipping
        self.renorm_momentum = renorm_momentum
        self.momentum = float(momentum)
        self.epsilon = float(epsilon)
        self.center = center
        self.scale = scale
        self.beta_initializer = initializers.get(beta_initializer, "beta_initializer")
        self.gamma_initializer = initializers.get(gamma_initializer, "gamma_initializer")
        self.moving_mean_initializer = initializers.get(moving_mean_initializer, "moving_mean_initializer")
        self.moving_variance_initializer = initializers.get(moving_variance_initializer, "moving_variance_initializer")
        self.beta_regularizer = regularizers.get(beta_regularizer, "beta_regularizer")
        self.gamma_regularizer = regularizers.get(gamma_regularizer, "gamma_regularizer")
        self.beta_constraint = constraints.get(beta_constraint, "beta_constraint")
        self.gamma_constraint = constraints.get(gamma_constraint, "gamma_constraint")
        self.supports_masking = True
        self.autocast = False
        for name in ("gamma", "beta", "moving_mean", "moving_variance"):
            setattr(self, name, None)  # as in Keras, until the layer is built

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        (axis,) = axes_of(self, self.axis, len(input_shape))
        shape = (input_shape[axis],)
        mean, renorm = self.moving_mean_initializer, self.renorm
        return (
            WeightSpec("gamma", shape, present=self.scale),
            WeightSpec("beta", shape, present=self.center),
            WeightSpec("moving_mean", shape, trainable=False),
            WeightSpec("moving_variance", shape, trainable=False),
            WeightSpec("moving_stddev", shape, self._first_stddev, trainable=False, present=renorm),
            WeightSpec("renorm_mean", shape, mean, trainable=False, present=renorm),
            WeightSpec("renorm_stddev", shape, self._first_stddev, trainable=False, present=renorm),
        )

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.build_weights(self.weight_specs(input_shape))
        self.input_spec = InputSpec(ndim=len(input_shape), axes={self.axis: input_shape[self.axis]})

    def call(self, inputs: Tensor, training: bool | None = None, mask: TensorLike | None = None) -> Tensor:
        gamma, beta = self.gamma, self.beta
        # In half precision, sums over a batch overflow.
        inputs = ops.cast(inputs, result_type(as_dtype(self.compute_dtype), as_dtype("float32")))
        if training and self.trainable:
            mean, variance, counts = self._moments(inputs, mask)
            if counts is not None:  # of nothing, statistics are NaN, and so would be the gradient of gamma
                mean = ops.where(counts, mean, ops.cast(self.moving_mean, mean.dtype))
                variance = ops.where(counts, variance, ops.cast(self.moving_variance, variance.dtype))
            if self.renorm:
                gamma, beta = self._renormed(mean, variance, counts)
            else:
                self._update(self.moving_mean, mean, counts)
                self._update(self.moving_variance, variance, counts)
        else:
            mean, variance = self.moving_mean, self.moving_variance
        outputs = ops.batch_normalization(
            inputs, mean, variance, self.axis, offset=beta, scale=gamma, epsilon=self.epsilon
        )
        return ops.cast(outputs, self.compute_dtype)

    def _update(
        self, average: Weight, value: Tensor, counts: Tensor | bool | None, momentum: float | None = None
    ) -> Tensor:
        """Assign the moving average, and return it; a batch that does not count leaves it as it is."""
        momentum = self.momentum if momentum is None else momentum
        updated = average * momentum + ops.cast(value, average.dtype) * (1.0 - momentum)
        if counts is not None:
            updated = ops.where(counts, updated, average)
        average.assign(updated)
        return updated

    # --- renormalisation ------------------------------------------------------------------------------------

    def _first_stddev(self, shape: Sequence[int], dtype: PolicyLike = None) -> np.ndarray:
        return np.sqrt(np.asarray(self.moving_variance_initializer(shape, dtype=dtype)))

    def _renormed(self, mean: Tensor, variance: Tensor, counts: Tensor | bool | None) -> tuple[Tensor, Tensor]:
        """Return gamma and beta with the correction in them; update all averages."""
        limits = self.renorm_clipping or {}
        deviation = ops.sqrt(variance + self.epsilon)
        average = ops.maximum(self.renorm_stddev, self.epsilon**0.5)
        factor = ops.clip(deviation / average, limits.get("rmin", 0.0), limits.get("rmax", np.inf))
        most = limits.get("dmax", np.inf)
        shift = ops.clip((mean - self.renorm_mean) / average, -most, most)
        factor, shift = ops.stop_gradient(factor), ops.stop_gradient(shift)
        self._update(self.renorm_mean, mean, counts, self.renorm_momentum)
        self._update(self.renorm_stddev, deviation, counts, self.renorm_momentum)
        self._update(self.moving_mean, mean, counts)
        stddev = self._update(self.moving_stddev, deviation, counts)
        moved = ops.relu(stddev * stddev - self.epsilon)
        self.moving_variance.assign(moved if counts is None else ops.where(counts, moved, self.moving_variance))
        if self.gamma is not None:
            factor, shift = factor * self.gamma, shift * self.gamma
        return factor, shift if self.beta is None else shift + self.beta

    # --- the batch's statistics -----------------------------------------------------------------------------

    def _moments(self, inputs: Tensor, mask: TensorLike | None) -> tuple[Tensor, Tensor, Tensor | bool | None]:
        """Return each feature's mean and variance over positions that count; whether there are any, None for surely."""
        shape = inputs.shape or ()
        rank = len(shape)
        axes = [axis for axis in range(rank) if axis != self.axis % rank]
        counts = None if all(shape[axis] for axis in axes) else ops.size(inputs) > 0
        if self.synchronized and is_replicated():
            return self._moments_of_replicas(inputs, mask, axes)
        if mask is None:
            return *ops.moments(inputs, axes=axes), counts
        kept = self._kept(inputs, mask)
        total = ops.sum(ops.cast(kept, inputs.dtype), axis=axes) + _LEAST_WEIGHT
        along = [1] * rank
        along[self.axis] = -1

        def masked_mean(values: Tensor) -> Tensor:
            return ops.sum(ops.where(kept, values, ops.zeros_like(values)), axis=axes) / total

        mean = masked_mean(inputs)
        return mean, masked_mean(ops.square(inputs - ops.reshape(mean, along))), counts

    def _kept(self, inputs: Tensor, mask: TensorLike) -> Tensor:
        """Return the mask in the shape of the inputs."""
        kept = ops.cast(mask, "bool")
        for _ in range(len(inputs.shape or ()) - len(kept.shape or ())):
            kept = ops.expand_dims(kept, -1)
        # A mask may lack the inputs' inner axes: it counts once for each position that it stands for.
        return ops.broadcast_to(kept, ops.shape(inputs))

    def _moments_of_replicas(
        self, inputs: Tensor, mask: TensorLike | None, axes: list[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same as `_moments`, but over the positions of all replicas."""
        values = ops.cast(inputs, result_type(inputs.dtype, as_dtype("float32")))
        kept = ops.ones_like(values) if mask is None else ops.cast(self._kept(inputs, mask), values.dtype)
        along = [1] * len(inputs.shape or ())
        along[self.axis] = -1
        sums = ops.stack([ops.sum(values * kept, axis=axes), ops.sum(kept, axis=axes)])
        total, count = ops.unstack(sum_over_replicas(sums))
        counts = ops.sum(count) > 0
        count = ops.maximum(count, 1.0) if mask is None else count + _LEAST_WEIGHT
        mean = total / count
        squares = ops.sum(kept * ops.square(values - ops.reshape(mean, along)), axis=axes)
        variance = sum_over_replicas(squares) / count
        return ops.cast(mean, inputs.dtype), ops.cast(variance, inputs.dtype), counts


def _checked_clipping(limits: dict[str, float] | None) -> dict[str, float]:
    limits = dict(limits or {})
    unknown = sorted(set(limits) - {"rmin", "rmax", "dmax"})
    crossed = limits.get("rmin", 0.0) > limits.get("rmax", np.inf) or limits.get("dmax", 0.0) < 0
    if unknown or crossed:
        raise ValueError(
            "BatchNormalization: renorm_clipping must be a dict of 'rmin', 'rmax' and 'dmax', with rmin <= rmax and "
            f"dmax >= 0, got {limits}."
        )
    return limits
