"""Values that flow between nodes: tensors, known arrays, shapes of which parts are known, sequences, optionals.

A sequence is a Python list, or a `GrowingSequence` in a loop whose trips are known at run time only. What is known when
a model is called (constants, sizes) stays a NumPy array, so that shapes are computed at once and not in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ....engine import ops
from ....engine.common.dtypes import DType, DTypeLike, as_dtype, four_bit_dtypes, is_string
from ....engine.common.quick_dataclass import dataclass
from ....engine.graph import Readable, Shape, Tensor
from ....engine.graph.value import Value
from ....engine.ops.base import TensorLike, known_array
from ..errors import OnnxError

if TYPE_CHECKING:
    from ....engine.control_flow import TensorArray
    from ...structures import Array

NodeValue: TypeAlias = "TensorLike | Dims | FourBits | GrowingSequence | Optional | Sequence[NodeValue] | None"
"""A value that a node takes or gives; None where an optional input is left out."""

LONG = np.dtype("int64")
INT4, UINT4 = four_bit_dtypes()


@dataclass(frozen=True)
class Optional:
    """A value of an optional type: something, or nothing."""

    value: NodeValue


@dataclass(frozen=True)
class GrowingSequence:
    """A sequence to which a loop of the graph appends.

    Attributes:
        array: its tensors, which may differ in their sizes.
        length: how many there are, an int32 scalar.
        hole: the position of a tensor that was taken out, if there was one, to put another in its place; else None.
    """

    array: TensorArray
    length: Tensor
    hole: TensorLike | None = None

    def with_last(self, value: TensorLike) -> GrowingSequence:
        """Return the sequence with a tensor behind the others."""
        return GrowingSequence(self.array.write(self.length, value), ops.add(self.length, 1))

    def with_hole_filled(self, value: TensorLike) -> GrowingSequence:
        """Return the sequence with a tensor in place of the one that was taken out, or behind the others."""
        assert self.hole is not None
        place = ops.reshape(ops.cast(tensor(self.hole), "int32"), ())
        return GrowingSequence(self.array.write(place, value), ops.maximum(self.length, ops.add(place, 1)))


class Dims:
    """Sizes of which some are known: an int64 vector, or with `scalar` a single one.

    Attributes:
        entries: ints, and int64 or int32 scalars that are known at run time.
        scalar: whether it has no axis.
    """

    def __init__(self, entries: Sequence[int | Tensor], scalar: bool = False) -> None:
        self.entries = list(entries)
        self.scalar = scalar

    def tensor(self) -> Tensor | Array:
        """Return them as a tensor, or as an array if all are known."""
        if all(isinstance(entry, int) for entry in self.entries):
            array = np.array(self.entries, LONG)
            return array.reshape(()) if self.scalar else array
        stacked = ops.stack([ops.cast(entry, "int64") for entry in self.entries])
        return stacked[0] if self.scalar else stacked


class FourBits:
    """Integers of four bits, which are computed with as integers of eight.

    Attributes:
        held: a tensor or an array of int8 or uint8.
        dtype: of four bits.
    """

    def __init__(self, held: TensorLike, dtype: DTypeLike) -> None:
        self.held = held
        self.dtype = np.dtype(dtype)

    @classmethod
    def of_array(cls, array: Array) -> FourBits:
        """Hold the elements of an array of four-bit integers."""
        return cls(array.astype("int8" if array.dtype == INT4 else "uint8"), array.dtype)

    @classmethod
    def of_numbers(cls, numbers: TensorLike, dtype: DTypeLike) -> FourBits:
        """Hold numbers, of which fractions are cut off and the four lowest bits are kept."""
        least = 8 if dtype == INT4 else 0
        wide = ops.cast(numbers, "int32")
        low = ops.subtract(ops.bitwise_and(ops.add(wide, least), 15), least)
        return cls(ops.cast(low, "int8" if dtype == INT4 else "uint8"), dtype)

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest integer."""
        return (-8, 7) if self.dtype == INT4 else (0, 15)

    def array(self) -> Array:
        """Return them as an array of four-bit integers."""
        return as_array(self.held).astype(self.dtype)


class TransposedWeight(Readable):
    """The transpose of a matrix that is not a variable, such as a rounded weight."""

    def __init__(self, weight: Readable) -> None:
        self._weight = weight

    @property
    def shape(self) -> Shape:
        shape = self._weight.shape
        return None if shape is None else shape[::-1]

    @property
    def dtype(self) -> DType:
        return self._weight.dtype

    @property
    def value(self) -> Tensor:
        return ops.transpose(self._weight)

    def product_of(self, x: TensorLike, transposed: bool = False) -> Tensor | None:
        return self._weight.product_of(x, not transposed)

    def numpy(self) -> Array:
        return self._weight.numpy().T


def transposed(value: TensorLike) -> TensorLike:
    """Return the transpose of a matrix, with a product of its own where the matrix has one."""
    return TransposedWeight(value) if isinstance(value, Readable) else ops.transpose(value)


def known(value: object) -> Any:
    """Return a value as an array if it is known already, else None."""
    if isinstance(value, Dims):
        value = value.tensor()
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    array = known_array(value)
    return None if array is None else np.asarray(array)


def plain(value: object) -> Any:
    """Return a value as a tensor or array; sequences and optionals as they are.

    Raises:
        NotImplementedError: it is of four bits, which few operators take.
    """
    if isinstance(value, FourBits):
        raise NotImplementedError(f"type {value.dtype.name.upper()} as the input of another operator than casts")
    return value.tensor() if isinstance(value, Dims) else value


def dims_of(value: Any) -> list[int | Tensor]:
    """Return what a vector or scalar of integers holds: ints where they are known, else scalar tensors."""
    if isinstance(value, Dims):
        return value.entries
    array = known(value)
    if array is not None:
        return [int(entry) for entry in array.reshape(-1)]
    if value.shape == ():
        return [value]
    if value.shape is None or value.shape[0] is None:
        raise ValueError("the number of axes is not known")
    return [value[place] for place in range(value.shape[0])]


def shape_of(value: Any) -> tuple[Any, ...]:
    """Return the sizes of a value: ints, and None where they are not known.

    Raises:
        ValueError: not even the rank is known.
    """
    if value.shape is None:
        raise ValueError("the rank of an input is not known")
    return tuple(value.shape)


def sizes_of(value: TensorLike) -> list[Any]:
    """Return the sizes of a value: ints, and scalar tensors where they are not known."""
    shape = shape_of(value)
    run_time = ops.shape(value) if None in shape else shape
    return [size if size is not None else run_time[axis] for axis, size in enumerate(shape)]


def rank_of(value: TensorLike) -> int:
    """Return the number of axes of a value."""
    return len(shape_of(value))


def tensor(value: TensorLike) -> Tensor:
    """Return a value as a tensor."""
    return ops.convert_to_tensor(value)


def as_array(value: object) -> Any:
    """Return what was computed as a NumPy array, texts as objects; sequences as lists, nothing as None."""
    if isinstance(value, Optional):
        return None if value.value is None else as_array(value.value)
    if isinstance(value, FourBits):
        return value.array()
    if isinstance(value, list):
        return [as_array(each) for each in value]
    value = plain(value)
    array = np.asarray(value.array if isinstance(value, Value) else value)
    return array.astype(object) if is_string(array.dtype) else array


def dtype_of(element_type: int, four_bits: bool = False) -> DType:
    """Return the dtype of ONNX's number of a type.

    Args:
        element_type: the number.
        four_bits: take the types of four-bit integers, too.

    Raises:
        OnnxError: there is no such type.
        NotImplementedError: it is a type that is not computed with here, such as float8 and 4-bit integers.
    """
    from ..protos import load_onnx

    onnx = load_onnx()
    if element_type == onnx.TensorProto.STRING:
        return as_dtype("string")
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    except KeyError:
        raise OnnxError(f"ONNX has no type of number {element_type}.") from None
    if four_bits and dtype in (INT4, UINT4):
        return dtype
    check_computed(dtype)
    return dtype


def check_computed(dtype: DType) -> None:
    """Refuse the types with few bits, which operators are not computed with here.

    Raises:
        NotImplementedError: the dtype is one of them; the message has ONNX's name of it.
    """
    from ..protos import load_onnx

    if dtype.name.startswith(("float8", "float4", "int4", "uint4", "int2", "uint2")):
        onnx = load_onnx()
        name = onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(dtype))
        raise NotImplementedError(f"type {name}")
