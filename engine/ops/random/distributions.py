"""Random numbers of the gamma, beta and binomial distributions, by rejection from counter-based bits.

Each element has blocks of bits of its own, so that what becomes of one element does not depend on the others, and a
device may draw them in any order. Of n elements, element i takes in round r = 0, 1, 2, ... the Philox block of counter
1 + r n + i (see `random`): four words, each of which is a float64 uniform (u0, u1, u2, u3) by its upper 53 bits. It
goes on to the next round until its proposal is accepted. All is computed in float64, and rounded at the end.

- gamma (Marsaglia and Tsang, "A simple method for generating gamma variables", 2000), for alpha >= 1: x is the normal
  number sqrt(-2 log(1 - u0)) cos(2 pi u1), d = alpha - 1/3, v = (1 + x / sqrt(9 d))**3; d v is accepted if v > 0 and
  log(1 - u2) < x**2 / 2 + d - d v + d log(v). For alpha < 1, the number for alpha + 1 times (1 - u3)**(1 / alpha).
- beta: x / (x + y) of two gamma numbers, computed by their logarithms; y takes its blocks from counters whose second
  word is 1 instead of 0.
- binomial, of the less probable outcome with probability p (and n - k if that is failure). Where n p < 10: the
  smallest k whose cumulative probability, summed up from 0, exceeds u0. Elsewhere BTRS (Hoermann, "The generation of
  binomial random variates", 1993) with u = u0 - 0.5 and v = 1 - u1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.dtypes import DTypeLike, as_dtype
from ...common.quick_dataclass import dataclass
from ..arrays.shape_arguments import ShapeLike, fill_shape
from ..arrays.shaping import constant_value, resolve_shape
from ..base import (
    ErrorSample,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    as_scalar_or_array,
    convert_to_tensor,
    is_numpy,
)
from ..math.bits import (
    RandomOp,
    floating_dtype,
    unit_of_words,
)
from ..math.elementwise import check_dtype, is_real
from .keys import key_words, take_key
from .rows import own_key

# --- drawing, on concrete values ------------------------------------------------------------------------------------

Proposal = Callable[[Any, Any], tuple[Any, Any]]  # of uniforms [k, 4] and positions [k]: values, whether accepted


def _rejection(key: Any, count: int, propose: Proposal, stream: int = 0) -> Any:
    """Return `count` values, each from the first of its rounds whose proposal is accepted."""
    generator = np.random.Philox(key=key_words(key), counter=[0, stream, 0, 0])
    result: Any = np.empty(count)
    pending: Any = np.arange(count)
    while pending.size:
        words = generator.random_raw(4 * count).reshape(count, 4)
        values, accepted = propose(unit_of_words(words[pending]), pending)
        result[pending[accepted]] = values[accepted]
        pending = pending[~accepted]
    return result


def _parameter(value: Any, shape: Sequence[int], name: str) -> Any:
    """Return a parameter of a distribution for each element, as a flat float64 array.

    Raises:
        ValueError: it does not broadcast to `shape`.
    """
    array = np.asarray(value, "float64")
    try:
        return np.broadcast_to(array, tuple(shape)).reshape(-1)
    except ValueError as error:
        raise ValueError(f"{name} of shape {array.shape} does not broadcast to the shape {tuple(shape)}.") from error


_where: Any = np.where  # untyped, as all values here are


def _log_gamma_numbers(key: Any, alpha: Any, stream: int = 0) -> Any:
    """Return logarithms of gamma numbers; NaN where alpha is not positive."""
    valid: Any = (alpha > 0) & np.isfinite(alpha)
    raised: Any = _where(valid, alpha + (alpha < 1), 1)
    small: Any = _where(valid, np.minimum(alpha, 1), 1)

    def propose(unit: Any, places: Any) -> tuple[Any, Any]:
        d = raised[places] - 1 / 3
        x = np.sqrt(-2 * np.log1p(-unit[:, 0])) * np.cos(2 * math.pi * unit[:, 1])
        root = 1 + x / np.sqrt(9 * d)
        v = _where(root > 0, root, 1) ** 3
        accepted = (root > 0) & (np.log1p(-unit[:, 2]) < x * x / 2 + d - d * v + d * np.log(v))
        boost: Any = _where(small[places] < 1, np.log1p(-unit[:, 3]) / small[places], 0)
        return np.log(d) + np.log(v) + boost, accepted

    return _where(valid, _rejection(key, len(alpha), propose, stream), np.nan)


def draw_gamma(key: Any, shape: Sequence[int], alpha: Any, dtype: DTypeLike = "float32") -> Any:
    """Draw Gamma distributed numbers of shape parameter `alpha` and scale 1, as an array; NaN if alpha isn't positive.

    Args:
        key: two integers, as from `SeedGenerator.next`.
        alpha: a number or an array that broadcasts to `shape`.

    >>> import anabranch as ab
    >>> ab.random.draw_gamma((1, 2), (3,), [1.0, 2.0, 3.0])
    array([0.31799963, 1.4494678 , 0.96437865], dtype=float32)
    """
    with np.errstate(all="ignore"):
        values = np.exp(_log_gamma_numbers(key, _parameter(alpha, shape, "gamma: alpha")))
        return as_scalar_or_array(values.astype(as_dtype(dtype)).reshape(tuple(shape)))


def draw_beta(key: Any, shape: Sequence[int], alpha: Any, beta: Any, dtype: DTypeLike = "float32") -> Any:
    """Draw Beta distributed numbers, as an array. NaN where a parameter is not positive. See `draw_gamma`.

    >>> import anabranch as ab
    >>> ab.random.draw_beta((1, 2), (3,), 2.0, 3.0)
    array([0.20516582, 0.42610243, 0.12371835], dtype=float32)
    """
    with np.errstate(all="ignore"):
        x = _log_gamma_numbers(key, _parameter(alpha, shape, "beta: alpha"))
        y = _log_gamma_numbers(key, _parameter(beta, shape, "beta: beta"), stream=1)
        values = 1 / (1 + np.exp(y - x))
        return as_scalar_or_array(values.astype(as_dtype(dtype)).reshape(tuple(shape)))


def _exact_tail(k: int) -> float:
    """Compute log(k!) less Stirling's approximation of it."""
    return math.lgamma(k + 1) - ((k + 0.5) * math.log(k + 1) - (k + 1) + math.log(2 * math.pi) / 2)


_TAILS = np.array([_exact_tail(k) for k in range(10)])


def _stirling_tail(k: Any) -> Any:
    inverse = 1 / (k + 1)
    series = (1 / 12 - (1 / 360 - inverse * inverse / 1260) * inverse * inverse) * inverse
    return _where(k < 10, _TAILS[np.minimum(k, 9).astype("int64")], series)


_LONGEST_SEARCH = 110  # of a binomial number of mean below 10: what is beyond has a probability below 1e-70


def _binomial_by_search(unit: Any, n: Any, p: Any) -> Any:
    """Return the smallest k whose cumulative probability exceeds `unit`."""
    probability = np.exp(n * np.log1p(-p))
    left, k = unit - probability, np.zeros_like(unit)
    for step in range(1, _LONGEST_SEARCH):
        further = (left >= 0) & (k < n)
        if not further.any():
            break
        probability = probability * ((n - step + 1) / step * (p / (1 - p)))
        k += further
        left -= probability
    return k


def _binomial_by_rejection(u: Any, v: Any, n: Any, p: Any) -> tuple[Any, Any]:
    """Return proposals of BTRS, and which are accepted."""
    spread = np.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    us = 0.5 - np.abs(u)
    k = np.floor((2 * a / us + b) * u + n * p + 0.5)
    at_once = (us >= 0.07) & (v <= 0.92 - 4.2 / b)
    inside = (k >= 0) & (k <= n)
    k = _where(inside, k, 0)
    height = np.log(v * (2.83 + 5.1 / b) * spread / (a / (us * us) + b))
    m, odds = np.floor((n + 1) * p), p / (1 - p)
    bound = (
        (m + 0.5) * np.log((m + 1) / (odds * (n - m + 1)))
        + (n + 1) * np.log((n - m + 1) / (n - k + 1))
        + (k + 0.5) * np.log(odds * (n - k + 1) / (k + 1))
        + (_stirling_tail(m) + _stirling_tail(n - m) - _stirling_tail(k) - _stirling_tail(n - k))
    )
    return k, inside & (at_once | (height <= bound))


def _binomial_numbers(key: Any, n: Any, p: Any) -> Any:
    """Draw how many of n trials succeed, for probabilities p up to a half."""

    def propose(unit: Any, places: Any) -> tuple[Any, Any]:
        trials, rare = n[places], p[places]
        few: Any = trials * rare < 10
        searched = _binomial_by_search(unit[:, 0], _where(few, trials, 0), rare)
        # Where there are few, a case of its range is computed beside it, and not used.
        large, likely = _where(few, 100, trials), _where(few, 0.5, rare)
        proposed, accepted = _binomial_by_rejection(unit[:, 0] - 0.5, 1 - unit[:, 1], large, likely)
        values: Any = _where(few, searched, proposed)
        return values, few | accepted

    return _rejection(key, len(n), propose)


def draw_binomial(key: Any, shape: Sequence[int], counts: Any, probabilities: Any, dtype: DTypeLike = "float32") -> Any:
    """Draw how many of `counts` trials succeed, as an array. NaN for no count or no probability. See `draw_gamma`.

    >>> import anabranch as ab
    >>> ab.random.draw_binomial((1, 2), (3,), 10, 0.5)
    array([4., 2., 6.], dtype=float32)
    """
    trials: Any = np.floor(_parameter(counts, shape, "binomial: counts"))
    chances = _parameter(probabilities, shape, "binomial: probabilities")
    valid = (trials >= 0) & np.isfinite(trials) & (chances >= 0) & (chances <= 1)
    n: Any = _where(valid, trials, 0)
    chance: Any = _where(valid, chances, 0)
    with np.errstate(all="ignore"):
        k = _binomial_numbers(key, n, np.minimum(chance, 1 - chance))
    successes: Any = _where(chance > 0.5, n - k, k)
    values: Any = _where(valid, successes, np.nan)
    return as_scalar_or_array(values.astype(as_dtype(dtype)).reshape(tuple(shape)))


# --- ops ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Distribution(RandomOp):
    """Base: inputs are a key, parameters in float64 which broadcast to the shape, and what fills its Nones."""

    def run(self, xp: Any, *inputs: Any) -> Any:
        key, *others = inputs
        count = len(others) - self.shape.count(None)
        parameters = [self.on_host(parameter) for parameter in others[:count]]
        return xp.asarray(self.draw_with(key, fill_shape(self.shape, others[count:]), *parameters))[()]

    def infer(self, *inputs: Any) -> TensorSpec:
        for spec in inputs[1:]:
            check_dtype(self, spec, is_real, "real parameters", "Take the parts of a complex number apart first.")
        return super().infer(*inputs)

    def on_host(self, parameter: Any) -> Any:
        """Return `parameter` as NumPy's."""
        return parameter if is_numpy(parameter) else parameter.get()

    def draw_with(self, key: Any, shape: tuple[int, ...], *parameters: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define draw_with().")

    @classmethod
    def _parameter_samples(cls, *parameters: Any) -> Iterable[Sample]:
        key = np.array([1, 2], "int64")
        f = dtypes.float32
        scalars = [np.float64(parameter[0]) for parameter in parameters]
        vectors = [np.array(parameter, "float64") for parameter in parameters]
        yield Sample(cls((2, 3), f), [key, *vectors], None, (), label="matrix")
        yield Sample(cls((), f), [key, *scalars], None, (), label="0-d")
        yield Sample(cls((0, 3), f), [key, *vectors], None, (), label="empty")
        yield Sample(cls((None, 3), f), [key, *scalars, np.int32(2)], None, (), label="dynamic")


@dataclass(frozen=True)
class RandomGamma(_Distribution):
    """Gamma distributed numbers."""

    def draw_with(self, key: Any, shape: tuple[int, ...], *parameters: Any) -> Any:
        return draw_gamma(key, shape, *parameters, dtype=self.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from cls._parameter_samples([0.3, 1.0, 20.0])

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: gamma((2,), 1.0, dtype="int32"), ValueError, "floating-point", "dtype")
        yield ErrorSample(lambda: gamma((2,), 0.0), ValueError, "alpha must be positive; got 0.0", "alpha")
        yield ErrorSample(lambda: draw_gamma([0, 0], (2,), [1, 2, 3]), ValueError, "does not broadcast", "shape")


@dataclass(frozen=True)
class RandomBeta(_Distribution):
    """Beta distributed numbers."""

    def draw_with(self, key: Any, shape: tuple[int, ...], *parameters: Any) -> Any:
        return draw_beta(key, shape, *parameters, dtype=self.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from cls._parameter_samples([0.3, 1.0, 20.0], [2.0, 0.1, 5.0])

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: beta((2,), 1.0, -1.0), ValueError, "beta must be positive; got -1.0", "beta")


@dataclass(frozen=True)
class RandomBinomial(_Distribution):
    """Numbers of successes."""

    def draw_with(self, key: Any, shape: tuple[int, ...], *parameters: Any) -> Any:
        return draw_binomial(key, shape, *parameters, dtype=self.dtype)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from cls._parameter_samples([5, 100, 1000], [0.3, 0.9, 0.5])

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: binomial((2,), 5, 1.5), ValueError, "probabilities must be within", "probability")
        yield ErrorSample(lambda: binomial((2,), -5, 0.5), ValueError, "counts must not be negative", "count")


# --- functions ------------------------------------------------------------------------------------------------------


def _number(value: TensorLike, requirement: str, holds: Callable[[Any], Any]) -> Tensor:
    """Return a parameter as a float64 tensor.

    Raises:
        ValueError: it is known, and does not satisfy the requirement.
    """
    tensor = convert_to_tensor(value, dtypes.float64)
    known = constant_value(tensor)
    if known is not None and not np.all(holds(known)):
        raise ValueError(f"random.{requirement}; got {known.tolist()}.")
    return tensor


def _is_positive(value: Any) -> Any:
    return value > 0


def gamma(shape: ShapeLike, alpha: TensorLike, dtype: DTypeLike = None, seed: Any = None) -> Tensor:
    """Draw Gamma distributed numbers of shape parameter `alpha` and scale 1. No gradient flows to `alpha`.

    Args:
        shape: ints, int32 scalar tensors or both.
        alpha: a positive number, or a tensor that broadcasts to `shape`; NaN comes of what is not positive at run time.
        dtype: a floating dtype, `config.floatx()` by default.
        seed: see `take_key`.

    Raises:
        ValueError: `dtype` is not floating, or `alpha` is known and not positive.

    >>> import anabranch as ab
    >>> ab.random.gamma((2, 3), alpha=0.5, seed=1).shape
    (2, 3)
    """
    wanted = floating_dtype("gamma", dtype)
    static, dynamic = resolve_shape(shape)
    concentration = _number(alpha, "gamma: alpha must be positive", _is_positive)
    return apply(RandomGamma(static, wanted), own_key(take_key(seed)), concentration, *dynamic)


def beta(shape: ShapeLike, alpha: TensorLike, beta: TensorLike, dtype: DTypeLike = None, seed: Any = None) -> Tensor:
    """Draw Beta distributed numbers: from 0 to 1, of mean ``alpha / (alpha + beta)``. See `gamma`.

    Args:
        shape: ints, int32 scalar tensors or both.
        alpha, beta: positive numbers, or tensors that broadcast to `shape`.
        dtype: a floating dtype, `config.floatx()` by default.
        seed: see `take_key`.

    Raises:
        ValueError: `dtype` is not floating, or a parameter is known and not positive.
    """
    wanted = floating_dtype("beta", dtype)
    static, dynamic = resolve_shape(shape)
    first = _number(alpha, "beta: alpha must be positive", _is_positive)
    second = _number(beta, "beta: beta must be positive", _is_positive)
    return apply(RandomBeta(static, wanted), own_key(take_key(seed)), first, second, *dynamic)


def binomial(
    shape: ShapeLike, counts: TensorLike, probabilities: TensorLike, dtype: DTypeLike = None, seed: Any = None
) -> Tensor:
    """Draw how many of `counts` independent trials succeed, as floats. No gradient flows through them.

    Args:
        shape: ints, int32 scalar tensors or both.
        counts: numbers of trials, rounded down; a number or a tensor that broadcasts to `shape`.
        probabilities: of the success of one trial; a number or a tensor that broadcasts to `shape`.
        dtype: a floating dtype, `config.floatx()` by default.
        seed: see `take_key`.

    Raises:
        ValueError: `dtype` is not floating, or a parameter is known and is not a count or not a probability.

    >>> import anabranch as ab
    >>> ab.random.binomial((2,), counts=7, probabilities=1.0, seed=1)
    Tensor([7., 7.], dtype=float32)
    """
    wanted = floating_dtype("binomial", dtype)
    static, dynamic = resolve_shape(shape)
    trials = _number(counts, "binomial: counts must not be negative", lambda value: value >= 0)
    chance = _number(
        probabilities, "binomial: probabilities must be within [0, 1]", lambda value: (value >= 0) & (value <= 1)
    )
    return apply(RandomBinomial(static, wanted), own_key(take_key(seed)), trials, chance, *dynamic)


__all__ = ["beta", "binomial", "draw_beta", "draw_binomial", "draw_gamma", "gamma"]
