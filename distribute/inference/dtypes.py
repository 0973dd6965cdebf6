"""The names that protocols have for dtypes. Other dtypes are not served."""

from __future__ import annotations

_INTEGERS = [f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)]
OPEN_INFERENCE = {
    "bool": "BOOL",
    **{name: name.upper() for name in _INTEGERS},
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    "string": "BYTES",
}
TENSORFLOW = {
    "bool": "DT_BOOL",
    **{name: f"DT_{name.upper()}" for name in _INTEGERS},
    "float16": "DT_HALF",
    "bfloat16": "DT_BFLOAT16",
    "float32": "DT_FLOAT",
    "float64": "DT_DOUBLE",
    "string": "DT_STRING",
}
