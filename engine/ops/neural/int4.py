"""Matrices of four-bit integers, with a scale and a zero point for each group of terms, as floating-point numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DTypeLike
from ...common.quick_dataclass import dataclass
from ...graph.spec import shape_text
from ..base import ErrorSample, Op, Operation, Sample, Tensor, TensorLike, TensorSpec, apply, convert_to_tensor

_PAIRS: dict[int, str] = {2: "uint32", 4: "uint64", 8: "complex128"}  # as large as two numbers of so many bytes
_TILE_BYTES = 1 << 18


@cache
def _table(dtype: DTypeLike) -> Any:
    """Return the two numbers in each byte, (256, 2)."""
    packed = np.arange(256, dtype=np.uint8).view(np.int8)
    return np.stack([(packed << 4) >> 4, packed >> 4], axis=1).astype(dtype)  # shifts that keep the sign


@dataclass(frozen=True)
class DequantizeInt4(Op):
    """``(integers - zero[group]) * scale[group]``.

    Inputs: `packed` (terms, bytes), int8, with column 2j in the low half of byte j and column 2j + 1 in the high one;
    `scale` (groups, columns), floating; `zero` (groups, columns), int8; `group` (terms,), the group of each term, whole
    numbers of any dtype.

    Attributes:
        columns: of the result; an odd one leaves the last half byte unused.
    """

    never_fails: ClassVar[bool] = False
    columns: int

    def infer(self, *inputs: Any) -> TensorSpec:
        packed, scale, zero, _ = inputs
        if dtypes.name_of(packed.dtype) != "int8" or dtypes.name_of(zero.dtype) != "int8":
            raise TypeError(
                f"dequantize_int4: bytes and zero points are of int8; got {packed.dtype.name} and {zero.dtype.name}."
            )
        if not dtypes.is_floating(scale.dtype):
            raise TypeError(f"dequantize_int4: scales are floating-point numbers; got {scale.dtype.name}.")
        terms, size = packed.shape or (None, None)
        if size is not None and size != (self.columns + 1) // 2:
            raise ValueError(
                f"dequantize_int4: {self.columns} columns take {(self.columns + 1) // 2} bytes a row; got shape "
                f"{shape_text(packed.shape)}."
            )
        return TensorSpec((terms, self.columns), scale.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        packed, scale, zero, group = inputs
        groups, zeros = group.astype(xp.int64), zero.astype(scale.dtype)
        width = 2 * packed.shape[1]
        pairs = _PAIRS[scale.dtype.itemsize]
        table = _table(scale.dtype).view(pairs)[:, 0]
        found = xp.empty((len(packed), width), scale.dtype)
        if width > self.columns:
            zeros, scale = (xp.pad(each, ((0, 0), (0, 1))) for each in (zeros, scale))
        if xp is not np:
            found.view(pairs)[...] = xp.asarray(table)[packed.view(xp.uint8)]
            found = (found - zeros[groups]) * scale[groups]
            return found if width == self.columns else xp.ascontiguousarray(found[:, : self.columns])
        # Some rows at a time, which stay in the cache from the table to the scale.
        step = max(1, _TILE_BYTES // max(1, found.strides[0]))
        for start in range(0, len(packed), step):
            tile, own = found[start : start + step], groups[start : start + step]
            xp.take(table, packed[start : start + step].view(xp.uint8), out=tile.view(pairs), mode="clip")
            places = own[:1] if (own == own[0]).all() else own
            tile -= zeros[places]
            tile *= scale[places]
        return found if width == self.columns else xp.ascontiguousarray(found[:, : self.columns])

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        """Return None: weights are frozen."""
        return (None,) * 4

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        rng = np.random.default_rng(0)
        integers, zero = rng.integers(-8, 8, (6, 5), "int8"), rng.integers(-8, 8, (2, 5), "int8")
        scale, group = rng.uniform(0.1, 1, (2, 5)).astype("float32"), np.array([0, 1, 0, 1, 1, 0], "float32")
        halves = np.concatenate([integers, np.zeros((6, 1), "int8")], axis=1).view("uint8") & 15
        packed = (halves[:, ::2] | halves[:, 1::2] << 4).view("int8")
        rows = group.astype(int)
        expected = (integers.astype("float32") - zero[rows]) * scale[rows]
        yield Sample(cls(5), [packed, scale, zero, group], expected, (), label="groups")
        even = [packed[:, :2], scale[:, :4], zero[:, :4], group.astype("int32")]
        yield Sample(cls(4), even, expected[:, :4], (), label="even")
        yield Sample(cls(5), [packed[:0], scale, zero, group[:0]], expected[:0], (), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        packed, scale, zero, group = (
            np.ones((3, 2), "int8"),
            np.ones((1, 4), "float32"),
            np.ones((1, 4), "int8"),
            [0] * 3,
        )
        yield ErrorSample(lambda: dequantize_int4(packed, scale, zero, group, 5), ValueError, "3 bytes a row", "bytes")
        yield ErrorSample(lambda: dequantize_int4(packed, scale, scale, group, 4), TypeError, "int8", "zero")


def dequantize_int4(packed: TensorLike, scale: TensorLike, zero: TensorLike, group: TensorLike, columns: int) -> Tensor:
    """Return a matrix of four-bit integers as floating-point numbers.

    Args:
        packed: int8 (terms, bytes): column 2j in the low half of byte j, column 2j + 1 in the high one.
        scale: (groups, columns).
        zero: int8, (groups, columns): the integers that stand for 0.
        group: (terms,): the group of each term.
        columns: of the result.

    Returns:
        ``(integers - zero[group]) * scale[group]``, (terms, columns), in the dtype of `scale`.

    >>> dequantize_int4(np.array([[0x21]], "int8"), [[0.5, 2.0]], np.array([[0, 1]], "int8"), [0], 2).numpy()
    array([[0.5, 2. ]], dtype=float32)
    """
    return apply(DequantizeInt4(columns), *[convert_to_tensor(value) for value in (packed, scale, zero, group)])
