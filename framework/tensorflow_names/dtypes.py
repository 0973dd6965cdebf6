"""`tf.dtypes`: the dtypes by name, and casts."""

from __future__ import annotations

from ...engine.common.dtypes import as_dtype
from ...engine.ops import complex, saturate_cast
from .arrays import cast
from .dtype_names import DType as DType

float16, bfloat16, float32, float64 = DType("float16"), DType("bfloat16"), DType("float32"), DType("float64")
int8, int16, int32, int64 = DType("int8"), DType("int16"), DType("int32"), DType("int64")
uint8, uint16, uint32, uint64 = DType("uint8"), DType("uint16"), DType("uint32"), DType("uint64")
bool, string, complex64, complex128 = DType("bool"), DType("string"), DType("complex64"), DType("complex128")

__all__ = [
    "DType",
    "as_dtype",
    "bfloat16",
    "bool",
    "cast",
    "complex",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "saturate_cast",
    "string",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
