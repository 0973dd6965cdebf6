"""Random numbers from counter-based keys, with the names of ``keras.random``.

A *key* is a pair of int64 (seed, counter). Each draw is a pure function of its key and its shape, so it can be repeated
(in a recomputation, on another device); new keys come from a `SeedGenerator`, in program order.

From key to bits: Philox4x64-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011)
with the key's two words as its 128-bit key (word 0 the seed) and its 256-bit counter running 1, 2, 3, ...; each block
gives four 64-bit words. From bits to numbers, element by element in row-major order:

- float64 in [0, 1): the upper 53 bits of a word, times 2**-53.
- float32 in [0, 1): the upper 24 bits of a half word, times 2**-24; the lower half of each word comes first. Narrower
  floats round such a float32 downward.
- integers below n: a word modulo n (the bias is below n / 2**64).
- normal: Box and Muller's (1958) transformation of pairs of uniforms. For n numbers, h = (n + 1) // 2 uniforms u come
  first and h uniforms v next; the first h numbers are r cos(2 pi v), the others r sin(2 pi v), r = sqrt(-2 log(1 - u)).
- normal, truncated at 2 standard deviations: sqrt(2) erfinv(erf(sqrt(2)) (2 u - 1)) of float64 uniforms u.
- gamma, beta, binomial: see `distributions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType, DTypeLike, as_dtype
from ...common.names_elsewhere import RANDOM_MODULE, module_error
from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ...graph.spec import shape_text
from ...graph.state.variable import Variable
from ..arrays.gathering import take
from ..arrays.shape_arguments import ShapeLike
from ..arrays.shaping import dim, resolve_shape, shape
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    as_floating,
    as_scalar_or_array,
    cast,
    convert_to_tensor,
)
from ..entrance import guard_entrances
from ..math.bits import (
    RandomOp,
    computing_type,
    element_count,
    floating_dtype,
    half_threshold,
    half_words,
    numbers_of,
    raw_words,
    unit_numbers,
)
from ..math.comparison import where
from ..math.reduced import largest
from ..math.special import erfinv_values
from .distributions import beta, binomial, draw_beta, draw_binomial, draw_gamma, gamma
from .keys import SeedGenerator, global_generator, set_global_seed, take_key
from .rows import draw, drawn_by_row, own_key
from .shape_order import shape_before

# --- drawing, on concrete values ------------------------------------------------------------------------------------


def _narrowed(values: Any, dtype: DType, low: float, high: float) -> Any:
    """Return `values` in `dtype`; those rounded up to `high` are put just below it (but not below `low`)."""
    result = values.astype(dtype, copy=False)
    least, limit = (np.asarray(bound).astype(dtype) for bound in (low, high))
    reached = result >= limit
    if reached.any():
        result[reached] = np.maximum(np.nextafter(limit, dtype.type(-np.inf)), least)
    return result


def draw_uniform(
    key: Any,
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    low: float = 0.0,
    high: float = 1.0,
    part: tuple[int, int] | None = None,
) -> Any:
    """Draw uniform numbers in [low, high), as an array: for initializers and other uses outside of a graph.

    Args:
        key: two integers, as from `SeedGenerator.next`.
        shape, dtype: of the array.
        low, high: the bounds.
        part: for some numbers of a longer draw, the number of the first one, and how many there are in all.
    """
    wanted = as_dtype(dtype)
    units = unit_numbers(key, element_count(shape), wanted, 0 if part is None else part[0])
    return _uniform_of(units, shape, wanted, low, high)


def _uniform_of(values: Any, shape: Sequence[int], wanted: DType, low: float, high: float) -> Any:
    """Return numbers in [low, high) made of those in [0, 1)."""
    if (low, high) != (0.0, 1.0):
        values = values * values.dtype.type(high - low) + values.dtype.type(low)
    if high > low and (wanted != values.dtype or (low, high) != (0.0, 1.0)):
        values = _narrowed(values, wanted, low, high)
    return as_scalar_or_array(values.astype(wanted, copy=False).reshape(tuple(shape)))


def _standard_normal(unit: Any, count: int) -> Any:
    """Return `count` numbers: those of the first half are cosines, those of the second sines, of the same angles."""
    half = (count + 1) // 2
    radius = np.sqrt(-2 * np.log1p(-unit[:half]))
    angle = unit[half:] * unit.dtype.type(2 * math.pi)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def _some_standard_normal(key: Any, count: int, dtype: DType, start: int, total: int) -> Any:
    half = (total + 1) // 2
    found: list[Any] = []
    for wave, low, high in ((np.cos, 0, half), (np.sin, half, total)):
        first, last = max(start, low) - low, min(start + count, high) - low
        if first < last:
            radius = np.sqrt(-2 * np.log1p(-unit_numbers(key, last - first, dtype, first)))
            unit = unit_numbers(key, last - first, dtype, half + first)
            found.append(radius * wave(unit * unit.dtype.type(2 * math.pi)))
    return np.concatenate(found) if found else unit_numbers(key, 0, dtype)


def draw_normal(
    key: Any,
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    mean: float = 0.0,
    stddev: float = 1.0,
    part: tuple[int, int] | None = None,
) -> Any:
    """Draw normally distributed numbers, as an array. See `draw_uniform`."""
    wanted, count = as_dtype(dtype), element_count(shape)
    if part is not None and part != (0, count):
        values = _some_standard_normal(key, count, wanted, *part)
    else:
        values = _standard_normal(unit_numbers(key, count + count % 2, wanted), count)
    return _normal_of(values, shape, wanted, mean, stddev)


def _normal_of(values: Any, shape: Sequence[int], wanted: DType, mean: float, stddev: float) -> Any:
    """Scale numbers of mean 0 and standard deviation 1 to others."""
    values = values * values.dtype.type(stddev) + values.dtype.type(mean)
    return as_scalar_or_array(values.astype(wanted, copy=False).reshape(tuple(shape)))


CENTRAL = math.erf(math.sqrt(2))  # the probability within 2 standard deviations


def draw_truncated_normal(
    key: Any,
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    mean: float = 0.0,
    stddev: float = 1.0,
    part: tuple[int, int] | None = None,
) -> Any:
    """Draw normally distributed numbers within 2 standard deviations of the mean, as an array. See `draw_uniform`."""
    unit = unit_numbers(key, element_count(shape), dtypes.float64, 0 if part is None else part[0])
    values = erfinv_values(np, (2 * unit - 1) * CENTRAL) * math.sqrt(2)
    values = np.clip(values, -2, 2) * stddev + mean
    return as_scalar_or_array(values.astype(as_dtype(dtype)).reshape(tuple(shape)))


def draw_integers(
    key: Any, shape: Sequence[int], low: int, high: int, dtype: DTypeLike = "int32", part: tuple[int, int] | None = None
) -> Any:
    """Draw uniform integers in [low, high), as an array. See `draw_uniform`."""
    wanted, words = as_dtype(dtype), raw_words(key, element_count(shape), 0 if part is None else part[0])
    if high - low < 2**64:
        words %= np.uint64(high - low)
    words += np.uint64(low % 2**64)  # wraps around to negative numbers
    values = words.view("int64") if wanted.kind == "i" else words
    return as_scalar_or_array(values.astype(wanted).reshape(tuple(shape)))


# --- ops ------------------------------------------------------------------------------------------------------------


@drawn_by_row
@dataclass(frozen=True)
class RandomUniform(RandomOp):
    """Uniform numbers in [low, high)."""

    low: float = 0.0
    high: float = 1.0

    def draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        return draw_uniform(key, shape, self.dtype, self.low, self.high)

    def unit_count(self, count: int) -> int:
        """Return of how many numbers in [0, 1) so many are made."""
        return count

    def of_units(self, units: Any, shape: tuple[int, ...]) -> Any:
        """Return what is drawn, made of its numbers in [0, 1)."""
        return _uniform_of(units, shape, self.dtype, self.low, self.high)

    def draw_part(self, key: Any, shape: tuple[int, ...], part: tuple[int, int]) -> Any:
        return draw_uniform(key, shape, self.dtype, self.low, self.high, part)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from cls._samples(dtypes.float32, -1.0, 2.0)
        words = np.random.Philox(key=0).random_raw(2)
        expected = (words >> 11).astype("float64") * 2.0**-53
        yield Sample(cls((2,), dtypes.float64), [np.zeros(2, "int64")], expected, (), label="float64")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: uniform((2,), dtype="int32"), ValueError, "floating-point", "dtype")
        yield ErrorSample(lambda: uniform((2,), seed="x"), TypeError, "seed must be None, an int", "seed")


@drawn_by_row
@dataclass(frozen=True)
class RandomNormal(RandomOp):
    """Normally distributed numbers."""

    mean: float = 0.0
    stddev: float = 1.0
    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    def draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        return draw_normal(key, shape, self.dtype, self.mean, self.stddev)

    def unit_count(self, count: int) -> int:
        """Return of how many numbers in [0, 1) so many are made."""
        return count + count % 2

    def of_units(self, units: Any, shape: tuple[int, ...]) -> Any:
        """Return what is drawn, made of its numbers in [0, 1)."""
        values = _standard_normal(units, element_count(shape))
        return _normal_of(values, shape, self.dtype, self.mean, self.stddev)

    def draw_part(self, key: Any, shape: tuple[int, ...], part: tuple[int, int]) -> Any:
        return draw_normal(key, shape, self.dtype, self.mean, self.stddev, part)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from cls._samples(dtypes.float32, 1.0, 2.0)


@drawn_by_row
@dataclass(frozen=True)
class RandomTruncatedNormal(RandomOp):
    """Normally distributed numbers within 2 standard deviations of the mean."""

    mean: float = 0.0
    stddev: float = 1.0

    def draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        return draw_truncated_normal(key, shape, self.dtype, self.mean, self.stddev)

    def draw_part(self, key: Any, shape: tuple[int, ...], part: tuple[int, int]) -> Any:
        return draw_truncated_normal(key, shape, self.dtype, self.mean, self.stddev, part)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from cls._samples(dtypes.float32, 1.0, 2.0)


@drawn_by_row
@dataclass(frozen=True)
class RandomIntegers(RandomOp):
    """Uniform integers in [low, high)."""

    low: int = 0
    high: int = 2

    def draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        return draw_integers(key, shape, self.low, self.high, self.dtype)

    def draw_part(self, key: Any, shape: tuple[int, ...], part: tuple[int, int]) -> Any:
        return draw_integers(key, shape, self.low, self.high, self.dtype, part)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from cls._samples(dtypes.int32, -5, 5)

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: randint((2,), 3, 3), ValueError, "above minval", "empty interval")
        yield ErrorSample(lambda: randint((2,), 0, 300, "uint8"), ValueError, "range of uint8", "range")
        yield ErrorSample(lambda: randint((2,), 0, 3, "float32"), ValueError, "draws integers", "dtype")


@drawn_by_row
@dataclass(frozen=True)
class RandomKeep(RandomOp):
    """For dropout: 0 with probability `rate`, otherwise ``1 / (1 - rate)``."""

    rate: float = 0.5

    @property
    def scale(self) -> Any:
        """The value of elements that are kept: of the dtype, or of float32 for half types."""
        return computing_type(self.dtype).type(1.0 / (1.0 - self.rate))

    def draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        return self.draw_part(key, shape, (0, 0))

    def draw_part(self, key: Any, shape: tuple[int, ...], part: tuple[int, int]) -> Any:
        kept = half_words(key, element_count(shape), part[0]) >= np.uint32(half_threshold(self.rate))
        return as_scalar_or_array((kept * self.scale).astype(self.dtype, copy=False).reshape(shape))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from cls._samples(dtypes.float32, 0.25)


@dataclass(frozen=True)
class RandomPermutation(Op):
    """The numbers below n in random order, as int32. Inputs: a key, and n."""

    size: int | None

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((self.size,), dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        key, size = inputs
        return xp.asarray(np.argsort(raw_words(key, int(size)), kind="stable").astype(np.int32))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        key = np.array([1, 2], "int64")
        yield Sample(cls(5), [key, np.int32(5)], None, (), label="static")
        yield Sample(cls(None), [key, np.int32(1)], np.zeros(1, "int32"), (), label="dynamic")
        yield Sample(cls(0), [key, np.int32(0)], np.zeros(0, "int32"), (), label="empty")


@dataclass(frozen=True)
class RandomCategories(Op):
    """Class numbers drawn by their unnormalised log-probabilities. Inputs: a key, logits [batch, classes], and n."""

    samples_per_row: int | None
    dtype: DType

    def infer(self, *inputs: Any) -> TensorSpec:
        logits = inputs[1]
        if logits.dtype.kind == "c":
            raise TypeError(f"categorical: logits must be real numbers; got {logits}.")
        if logits.rank not in (None, 2):
            raise ValueError(f"categorical: logits must have shape [batch, classes]; got {shape_text(logits.shape)}.")
        return TensorSpec((None if logits.shape is None else logits.shape[0], self.samples_per_row), self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        key, logits, count = inputs
        if logits.shape[1] == 0:
            raise ValueError("categorical: there are no classes to draw from.")
        scores = xp.asarray(logits).astype("float64")
        weights = xp.exp(scores - largest(xp, scores, (1,)))
        edges = xp.cumsum(weights, axis=1)
        unit = xp.asarray(unit_numbers(key, len(edges) * int(count), dtypes.float64)).reshape(len(edges), int(count))
        places = unit * edges[:, -1:]
        chosen = xp.empty(places.shape, dtype=self.dtype)
        last = logits.shape[1] - 1 - xp.argmax(weights[:, ::-1] > 0, axis=1)  # rounding may reach the very end
        for row in range(len(edges)):
            chosen[row] = xp.minimum(xp.searchsorted(edges[row], places[row], side="right"), last[row])
        return chosen

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        key = np.array([1, 2], "int64")
        sure = np.array([[0, -np.inf, -np.inf], [-np.inf, -np.inf, 5]], "float32")
        expected = np.array([[0, 0, 0], [2, 2, 2]], "int32")
        yield Sample(cls(3, dtypes.int32), [key, sure, np.int32(3)], expected, (), label="certain")
        yield Sample(cls(None, dtypes.int64), [key, sure, np.int32(0)], np.zeros((2, 0), "int64"), (), label="none")
        yield Sample(cls(3, dtypes.int32), [key, sure[:0], np.int32(3)], np.zeros((0, 3), "int32"), (), label="empty")


# --- functions ------------------------------------------------------------------------------------------------------


def uniform(
    shape: ShapeLike, minval: TensorLike = 0.0, maxval: TensorLike = 1.0, dtype: DTypeLike = None, seed: Any = None
) -> Tensor:
    """Draw uniform numbers in [minval, maxval).

    Args:
        shape: ints, int32 scalar tensors or both.
        minval, maxval: numbers, or tensors through which gradients flow.
        dtype: a floating dtype, `config.floatx()` by default (`randint` draws integers).
        seed: see `take_key`.

    Raises:
        ValueError: `dtype` is not floating.

    >>> import anabranch as ab
    >>> ab.random.uniform((2, 3), seed=1).shape
    (2, 3)
    """
    wanted = floating_dtype("uniform", dtype)
    static, dynamic = shape_before("uniform", shape, minval, maxval)
    known = numbers_of(minval, maxval)
    if known is not None:
        return draw(RandomUniform(static, wanted, *known), take_key(seed), *dynamic)
    unit = draw(RandomUniform(static, wanted), take_key(seed), *dynamic)
    low = convert_to_tensor(minval, wanted)
    return unit * (convert_to_tensor(maxval, wanted) - low) + low


def normal(
    shape: ShapeLike, mean: TensorLike = 0.0, stddev: TensorLike = 1.0, dtype: DTypeLike = None, seed: Any = None
) -> Tensor:
    """Draw normally distributed numbers.

    Args:
        shape: ints, int32 scalar tensors or both.
        mean, stddev: numbers, or tensors through which gradients flow.
        dtype: a floating dtype, `config.floatx()` by default.
        seed: see `take_key`.

    Raises:
        ValueError: `dtype` is not floating.
        TypeError: the shape comes behind another argument, as in JAX and NumPy.
    """
    wanted = floating_dtype("normal", dtype)
    static, dynamic = shape_before("normal", shape, mean, stddev)
    known = numbers_of(mean, stddev)
    if known is not None:
        return draw(RandomNormal(static, wanted, *known), take_key(seed), *dynamic)
    standard = draw(RandomNormal(static, wanted), take_key(seed), *dynamic)
    return standard * convert_to_tensor(stddev, wanted) + convert_to_tensor(mean, wanted)


def truncated_normal(
    shape: ShapeLike, mean: TensorLike = 0.0, stddev: TensorLike = 1.0, dtype: DTypeLike = None, seed: Any = None
) -> Tensor:
    """Draw normally distributed numbers within 2 standard deviations of the mean; arguments as for `normal`."""
    wanted = floating_dtype("truncated_normal", dtype)
    static, dynamic = shape_before("truncated_normal", shape, mean, stddev)
    known = numbers_of(mean, stddev)
    if known is not None:
        return draw(RandomTruncatedNormal(static, wanted, *known), take_key(seed), *dynamic)
    standard = draw(RandomTruncatedNormal(static, wanted), take_key(seed), *dynamic)
    return standard * convert_to_tensor(stddev, wanted) + convert_to_tensor(mean, wanted)


def randint(shape: ShapeLike, minval: int, maxval: int, dtype: DTypeLike = "int32", seed: Any = None) -> Tensor:
    """Draw uniform integers in [minval, maxval).

    Raises:
        ValueError: `dtype` holds no integers, or there is no number in the interval, or one that `dtype` can't hold.
    """
    static, dynamic = shape_before("randint", shape, minval, maxval)
    wanted = as_dtype(dtype or "int32")
    if not dtypes.is_integer(wanted):
        raise ValueError(f"random.randint draws integers; got dtype={wanted.name}.")
    low, high, limits = int(minval), int(maxval), np.iinfo(wanted)
    if low >= high:
        raise ValueError(f"random.randint: maxval must be above minval; got minval={minval} and maxval={maxval}.")
    if low < limits.min or high - 1 > limits.max:
        raise ValueError(f"random.randint: [{low}, {high}) goes beyond the range of {wanted.name}.")
    return draw(RandomIntegers(static, wanted, low, high), take_key(seed), *dynamic)


def bernoulli(shape: ShapeLike, p: TensorLike = 0.5, dtype: DTypeLike = None, seed: Any = None) -> Tensor:
    """Draw 1 with probability `p` and 0 otherwise, in `dtype` (`config.floatx()`)."""
    unit = uniform(shape, dtype="float32", seed=seed)
    return convert_to_tensor(unit < convert_to_tensor(p, "float32"), as_dtype(dtype))


def categorical(logits: TensorLike, num_samples: int, dtype: DTypeLike = "int32", seed: Any = None) -> Tensor:
    """Draw class numbers for each row by unnormalised log-probabilities.

    Args:
        logits: [batch, classes].
        num_samples: draws a row.

    Returns:
        [batch, num_samples], of `dtype`.

    Raises:
        ValueError: `logits` is not a matrix.
    """
    (static,), dynamic = resolve_shape((num_samples,))
    count = dynamic[0] if dynamic else convert_to_tensor(static or 0, dtypes.int32)
    op = RandomCategories(static, as_dtype(dtype or "int32"))
    return apply(op, own_key(take_key(seed)), as_floating(logits), count)


def shuffle(x: TensorLike, axis: int = 0, seed: Any = None) -> Tensor:
    """Return `x` with its parts along `axis` in random order. Gradients flow back to where they came from."""
    tensor = convert_to_tensor(x)
    size = dim(tensor, axis)
    op = RandomPermutation(size if isinstance(size, int) else None)
    return take(tensor, apply(op, own_key(take_key(seed)), convert_to_tensor(size, dtypes.int32)), axis=axis)


def _is_number(value: object) -> bool:
    return isinstance(value, (Real, np.ndarray))


def checked_rate(caller: str, rate: Any, below_one: bool = False) -> Any:
    """Check a rate of dropout, which may be a scalar tensor or a variable: then its value is known when the graph runs.

    Args:
        caller: for messages.
        rate: a number or a scalar.
        below_one: whether it has to be less than 1.

    Raises:
        ValueError: it is a number outside of [0, 1], or a tensor that is not a floating-point scalar.
    """
    if isinstance(rate, (Tensor, Variable)):
        if rate.shape not in ((), None) or not dtypes.is_floating(rate.dtype):
            raise ValueError(f"{caller}: rate must be a number or a floating-point scalar, got {rate!r}.")
    elif not _is_number(rate):
        raise ValueError(f"{caller}: rate must be a number or a floating-point scalar, got {rate!r}.")
    elif not 0 <= rate <= 1 or (below_one and rate == 1):
        raise ValueError(f"{caller}: rate must be within [0, 1{')' if below_one else ']'}, got rate={rate}.")
    return rate


def dropout(inputs: TensorLike, rate: Any, noise_shape: ShapeLike | None = None, seed: Any = None) -> Tensor:
    """Set a random part of the elements, `rate`, to 0, and scale the others by ``1 / (1 - rate)``.

    Args:
        rate: from 0 to 1 (where everything is dropped); a number, or a scalar tensor or variable.
        noise_shape: the shape of the mask, which broadcasts to that of `inputs`; None in it means the input's size.

    Raises:
        ValueError: `rate` is not within [0, 1].
    """
    rate, tensor = checked_rate("random.dropout", rate), as_floating(inputs)
    if isinstance(rate, (Tensor, Variable)):
        part = cast(rate, computing_type(tensor.dtype))
        scale = where(part < 1, 1 / where(part < 1, 1 - part, 1.0), 0.0)
        kept = uniform(_noise_shape(tensor, noise_shape), seed=seed) >= part
        return tensor * cast(where(kept, scale, 0.0), tensor.dtype)
    if rate == 0:
        return tensor
    if rate == 1:
        return where(False, tensor, 0)
    static, dynamic = resolve_shape(_noise_shape(tensor, noise_shape))
    return tensor * draw(RandomKeep(static, tensor.dtype, float(rate)), take_key(seed), *dynamic)


def _noise_shape(x: Tensor, noise_shape: Any) -> Any:
    if noise_shape is None:
        if x.ndim is None:
            raise ValueError("random.dropout needs an input of known rank. Give the placeholder a shape.")
        return shape(x)
    return tuple(dim(x, axis) if size is None else size for axis, size in enumerate(noise_shape))


guard_entrances(globals(), __package__ or "")


def _refuse(name: str) -> Any:
    raise module_error(__name__, name, RANDOM_MODULE)


if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__ = _refuse

__all__ = [
    "SeedGenerator",
    "bernoulli",
    "beta",
    "binomial",
    "categorical",
    "draw_beta",
    "draw_binomial",
    "draw_gamma",
    "draw_integers",
    "draw_normal",
    "draw_truncated_normal",
    "draw_uniform",
    "dropout",
    "gamma",
    "global_generator",
    "normal",
    "randint",
    "set_global_seed",
    "shuffle",
    "take_key",
    "truncated_normal",
    "uniform",
]
