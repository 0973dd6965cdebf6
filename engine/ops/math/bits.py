"""From keys to bits and uniform numbers, and the base of ops that draw. How is said in `random`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType, DTypeLike, as_dtype
from ...common.quick_dataclass import dataclass
from ..arrays.shape_arguments import fill_shape
from ..base import Op, Operation, Sample, Tensor, TensorSpec
from ..random.keys import key_words

_WORDS_OF_BLOCK = 4  # that the generator makes of one value of its counter


def raw_words(key: Any, count: int, start: int = 0) -> Any:
    """Return `count` 64-bit words, those from number `start` on."""
    bits = np.random.Philox(key=key_words(key))
    if not start:
        return bits.random_raw(count)
    blocks, before = divmod(start, _WORDS_OF_BLOCK)
    return bits.advance(blocks).random_raw(before + count)[before:]


def half_words(key: Any, count: int, start: int = 0) -> Any:
    """Return `count` 32-bit words: the halves of 64-bit words, the lower one first."""
    first, before = divmod(start, 2)
    words = raw_words(key, (before + count + 1) // 2, first)
    return words.astype("<u8", copy=False).view("<u4")[before : before + count]


def half_threshold(rate: float) -> int:
    """Return the least half word that is not among the first `rate` of them."""
    return min(round(rate * 2**32), 2**32 - 1)


def computing_type(dtype: DType) -> DType:
    """Return the dtype in which random numbers of a dtype are computed: float64 for itself, else float32."""
    return dtypes.float64 if dtype == dtypes.float64 else dtypes.float32


def unit_numbers(key: Any, count: int, dtype: DType, start: int = 0) -> Any:
    """Return `count` uniforms in [0, 1), in float64 or (for narrower types, too) in float32, from number `start` on."""
    if dtype == dtypes.float64:
        return unit_of_words(raw_words(key, count, start))
    halves = half_words(key, count, start)
    halves >>= 8
    return halves.astype("float32") * np.float32(2.0**-24)


def unit_of_words(words: Any) -> Any:
    """Return fresh 64-bit words, which are written over, as float64 uniforms in [0, 1)."""
    words >>= 11
    return words.astype("float64") * 2.0**-53


def element_count(shape: Sequence[int]) -> int:
    """Return the number of elements that `shape` holds."""
    return math.prod(shape)


def floating_dtype(name: str, dtype: DTypeLike) -> DType:
    """Return the dtype of what ``random.<name>`` draws: `config.floatx()` by default.

    Raises:
        ValueError: it is not floating.
    """
    wanted = as_dtype(dtype)
    if not dtypes.is_floating(wanted):
        raise ValueError(f"random.{name} draws floating-point numbers; got dtype={wanted.name}.")
    return wanted


def is_number(*values: Any) -> bool:
    """Test whether the values are numbers that are known now."""
    return all(isinstance(value, (int, float, np.number)) for value in values)


def numbers_of(*values: object) -> list[float] | None:
    """Return the values as floats where they are numbers that are known now; None where one is a tensor."""
    given: Any = values
    return [float(value) for value in given] if is_number(*values) else None


@dataclass(frozen=True)
class RandomOp(Op, abstract=True):
    """Base: numbers of `dtype` from a key (first input); further inputs fill the Nones of `shape`."""

    shape: tuple[int | None, ...]
    dtype: DType

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        key, *dynamic = inputs
        return xp.asarray(self.draw(key, fill_shape(self.shape, dynamic)))[()]

    def draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define draw().")

    def draw_part(self, key: Any, shape: tuple[int, ...], part: tuple[int, int]) -> Any:
        """Draw some numbers of a longer draw, as an array of a shape.

        Args:
            key: the random key.
            shape: of the array.
            part: the number of the first one, and how many the longer draw has.
        """
        first = part[0]
        return self.draw(key, (part[1],))[first : first + element_count(shape)].reshape(shape)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,) * len(node.inputs)  # random numbers are constants

    @classmethod
    def _samples(cls, *attributes: Any) -> Iterable[Sample]:
        key = np.array([1, 2], "int64")
        yield Sample(cls((2, 3), *attributes), [key], None, (), label="matrix")
        yield Sample(cls((), *attributes), [key], None, (), label="0-d")
        yield Sample(cls((0, 3), *attributes), [key], None, (), label="empty")
        yield Sample(cls((None, 3), *attributes), [key, np.int32(2)], None, (), label="dynamic")
