"""The types for which onnxruntime has kernels (CPU, measured with 1.32), and what others are cast to.

ONNX allows more types than the runtime computes with: a model that keeps to these lists runs everywhere.
"""

from __future__ import annotations

import numpy as np

from ....engine.common.dtypes import DType, as_dtype, is_string, name_of

_TWO = "float16 float32"
_THREE = "float16 float32 float64"
_INTS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
_NUMBERS = f"{_INTS} {_THREE}"
_WIDE = f"int32 int64 {_THREE}"
_EXTREMA = f"int8 int32 int64 uint8 uint32 uint64 {_THREE}"
_REDUCED_EXTREMA = f"int8 int32 int64 uint8 {_THREE}"  # bools by sums

_TYPES: dict[str, str] = {
    **dict.fromkeys(["Add", "Sub", "Mul", "Div", "Mod", "Abs", "Sign"], _NUMBERS),
    **dict.fromkeys(["Less", "LessOrEqual", "Greater", "GreaterOrEqual"], _NUMBERS),
    "Neg": f"int8 int16 int32 int64 {_THREE}",
    **dict.fromkeys(["Sigmoid", "Sqrt", "Reciprocal", "Exp", "Log", "Floor", "Ceil", "Round", "Sin", "Cos"], _THREE),
    **dict.fromkeys(["Tanh", "Softmax", "LogSoftmax", "IsNaN", "IsInf", "LayerNormalization"], _THREE),
    **dict.fromkeys(["Softplus", "Erf", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh"], _TWO),
    **dict.fromkeys(["Atanh", "Det", "Elu", "Selu", "Gelu", "LeakyRelu", "HardSigmoid", "Softsign"], _TWO),
    **dict.fromkeys(["Conv", "ConvTranspose", "AveragePool"], _TWO),
    "MaxPool": f"int8 uint8 {_THREE}",
    "Relu": f"int8 int32 {_THREE}",
    "NonZero": f"bool int32 int64 uint8 {_TWO}",
    "Size": f"bool {_NUMBERS} string",
    **dict.fromkeys(["ArgMax", "ArgMin", "ReduceMax", "ReduceMin"], _REDUCED_EXTREMA),
    **dict.fromkeys(["ReduceSum", "ReduceMean", "ReduceProd", "ReduceLogSumExp", "CumSum", "Pow"], _WIDE),
    **dict.fromkeys(["Einsum"], _WIDE),
    "MatMul": f"int32 int64 uint32 uint64 {_THREE}",
    "Unique": f"int8 int64 {_THREE} string",
    "Trilu": f"bool int32 int64 {_THREE}",
    "Equal": f"bool {_NUMBERS} string",
    **dict.fromkeys(["Max", "Min"], _EXTREMA),
    **dict.fromkeys(["Expand", "Tile", "ReverseSequence"], f"bool {_NUMBERS} string"),
    "TopK": f"int8 int16 int32 int64 uint8 {_THREE}",
    "Pad": f"bool int8 int32 int64 uint8 uint32 uint64 bfloat16 {_THREE}",
    "Where": f"int8 int32 int64 uint8 uint32 {_THREE} string",
    "Range": "int16 int32 int64 float32 float64",
    "Resize": f"int8 int32 uint8 {_TWO}",
    "ScatterND": f"bool {_INTS} float32 float64 string",  # what it adds or multiplies by may be no float16
    **dict.fromkeys(["LSTM", "GRU", "RNN"], "float32"),
    **dict.fromkeys(["BitShift"], "uint8 uint16 uint32 uint64"),
}
_POSITIONS: dict[str, tuple[int, ...]] = {  # of the inputs that have the type; by default all have it
    **dict.fromkeys(["ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceProd", "ReduceLogSumExp"], (0,)),
    **dict.fromkeys(["CumSum", "Expand", "Tile", "ReverseSequence", "TopK", "Trilu", "Resize"], (0,)),
    "Pad": (0, 2),
    "Where": (1, 2),
    "ScatterND": (0, 2),
    **dict.fromkeys(["LSTM", "GRU", "RNN"], (0, 1, 2, 3, 5, 6)),
}
_ORDER = {  # what stands in for a type, the best first
    "b": ["uint8", "int32", "int64"],
    "i": ["int32", "int64", "float64", "float32"],
    "u": ["int32", "int64", "float64", "float32"],
    "f": ["float32"],
    "V": ["float32"],
}
_ACCEPTED = {op_type: frozenset(listed.split()) for op_type, listed in _TYPES.items()}


def wider_type(op_type: str, dtype: DType, position: int) -> DType | None:
    """Return the dtype to which an input is cast for an operator, or None if it is taken as it is."""
    accepted = _ACCEPTED.get(op_type)
    if accepted is None or position not in _POSITIONS.get(op_type, (position,)):
        return None
    name = "string" if is_string(dtype) else name_of(dtype)
    if name in accepted or is_string(dtype):
        return None
    order = ["int64"] if name in ("uint32", "uint64") and "int64" in accepted else _ORDER.get(dtype.kind, [])
    found = next((each for each in order if each in accepted), None)
    return None if found is None else np.dtype(as_dtype(found))
