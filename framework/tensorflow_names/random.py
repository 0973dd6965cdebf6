"""`tf.random`: draws with TensorFlow's arguments, from this package's generators."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine import ops
from ...engine.common.dtypes import DTypeLike, as_dtype, is_integer
from ...engine.graph import Tensor
from ...engine.ops.arrays.shape_arguments import ShapeLike
from ...engine.ops.base import TensorLike
from ...engine.ops.random import samplers
from ...engine.ops.random.keys import set_global_seed
from ...layers.nn import fixed_unigram_candidate_sampler as fixed_unigram_candidate_sampler
from ...layers.nn import log_uniform_candidate_sampler as log_uniform_candidate_sampler
from ...layers.nn import uniform_candidate_sampler as uniform_candidate_sampler


def set_seed(seed: int) -> None:
    """Seed the global generator, so that what follows draws the same in each run."""
    set_global_seed(seed)


def uniform(
    shape: ShapeLike,
    minval: float = 0,
    maxval: float | None = None,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw numbers of equal probability between `minval` and `maxval` (1), which is left out.

    Raises:
        ValueError: `dtype` is one of whole numbers and there is no `maxval`.
    """
    if is_integer(as_dtype(dtype or "float32")):
        if maxval is None:
            raise ValueError(f"tf.random.uniform: maxval must be given for whole numbers ({dtype}).")
        return samplers.randint(shape, int(minval), int(maxval), dtype=dtype, seed=seed)
    return samplers.uniform(shape, minval, 1.0 if maxval is None else maxval, dtype=dtype, seed=seed)


def normal(
    shape: ShapeLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw from normal distributions."""
    return samplers.normal(shape, mean, stddev, dtype=dtype, seed=seed)


def truncated_normal(
    shape: ShapeLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw from normal distributions that end at two standard deviations from the mean."""
    return samplers.truncated_normal(shape, mean, stddev, dtype=dtype, seed=seed)


def shuffle(value: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """Bring the rows of a tensor into an order that is drawn."""
    return samplers.shuffle(value, seed=seed)


def categorical(
    logits: TensorLike,
    num_samples: int,
    dtype: DTypeLike = "int64",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw `num_samples` classes from each row of logits."""
    return samplers.categorical(logits, num_samples, "int64" if dtype is None else dtype, seed)


def gamma(
    shape: int | Sequence[int],
    alpha: TensorLike,
    beta: TensorLike | None = None,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Draw from gamma distributions: `shape` values for each element of `alpha` and of the rate `beta` (1)."""
    parameters = ops.broadcast_to(alpha, ops.shape(ops.add(alpha, beta))) if beta is not None else alpha
    parameters = ops.cast(parameters, dtype)
    wanted = [shape] if isinstance(shape, int) else list(shape)
    drawn = samplers.gamma((*wanted, *ops.shape(parameters)), parameters, dtype=dtype, seed=seed)
    return drawn if beta is None else ops.divide(drawn, ops.cast(beta, dtype))


__all__ = [
    "categorical",
    "fixed_unigram_candidate_sampler",
    "gamma",
    "log_uniform_candidate_sampler",
    "normal",
    "set_seed",
    "shuffle",
    "truncated_normal",
    "uniform",
    "uniform_candidate_sampler",
]
