"""`tf.dtypes`: the dtypes by name, and casts."""

from __future__ import annotations

from ...engine.common.dtypes import as_dtype
from ...engine.ops import complex, saturate_cast
from .arrays import cast

float16, bfloat16, float32, float64 = "float16", "bfloat16", "float32", "float64"
int8, int16, int32, int64 = "int8", "int16", "int32", "int64"
uint8, uint16, uint32, uint64 = "uint8", "uint16", "uint32", "uint64"
bool, string, complex64, complex128 = "bool", "string", "complex64", "complex128"

__all__ = [
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
