"""The `onnx` package, imported when it is first needed, and what both directions use of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...engine.common.dtypes import DType, is_string, name_of

if TYPE_CHECKING:
    from types import ModuleType

    from onnx import TensorProto

    from ..structures import Array


def load_onnx() -> ModuleType:
    """Return the `onnx` package.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "ONNX files need the package onnx, which is not installed: pip install 'anabranch[onnx]'.", name="onnx"
        ) from error
    return onnx


def element_type(dtype: DType) -> int:
    """Return ONNX's number of a dtype.

    Raises:
        ValueError: ONNX has no such type, or computes nothing with it.
    """
    onnx = load_onnx()
    if is_string(dtype):
        return onnx.TensorProto.STRING
    if dtype.kind == "c":
        raise ValueError(f"{name_of(dtype)} is no type that ONNX's operators compute with")
    return onnx.helper.np_dtype_to_tensor_dtype(dtype)


def tensor_proto(array: Array, name: str) -> TensorProto:
    """Return an array as a TensorProto."""
    onnx = load_onnx()
    array = np.asarray(array)
    if is_string(array.dtype):
        texts = [str(text).encode() for text in array.ravel()]
        return onnx.helper.make_tensor(name, onnx.TensorProto.STRING, array.shape, texts)
    return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
