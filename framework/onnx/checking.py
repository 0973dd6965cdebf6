"""`check`: an exported file beside the model from which it was made."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.common.dtypes import is_string, name_of
from ...engine.graph import as_dtype, flatten
from .errors import OnnxError
from .export.models import states_of
from .protos import load_onnx
from .reference import reference_evaluator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..models.model import Model
    from ..structures import Array, Arrays


def check(
    model: Model, filepath: str | os.PathLike[str], inputs: Arrays, *, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    """Compute an exported file's outputs and compare them with the model's.

    The file is run by onnxruntime where that is installed, else by the reference implementation of the package onnx.

    Args:
        model: the model that was exported.
        filepath: the file that `Model.export` wrote.
        inputs: what the model is called with: an array, a list, or a dict of arrays with the names of the inputs.
        rtol, atol: how much outputs may differ, relative to the model's and absolutely.

    Raises:
        OnnxError: an output differs in shape, dtype or values; the message says which and by how much.

    >>> import anabranch as ab, numpy as np, os, tempfile
    >>> model = ab.Sequential([ab.Input((3,), name="x"), ab.layers.Dense(2)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "dense.onnx")
    ...     model.export(path, "onnx", verbose=False)
    ...     ab.onnx.check(model, path, np.ones((4, 3), "float32"))
    """
    names, outputs, run = _runner(os.fspath(filepath))
    feeds = _feeds(model, names, outputs, inputs)
    found = run(feeds)
    wanted = [np.asarray(each) for each in flatten(model(inputs, training=False))]
    for number, (name, array) in enumerate(found.items()):
        if number < len(wanted):  # behind them come new states
            _compare(name, np.asarray(array), wanted[number], rtol, atol)
    if len(found) < len(wanted):
        raise OnnxError(f"{os.fspath(filepath)!r} has {len(found)} outputs; the model gives {len(wanted)}.")


def _runner(path: str) -> tuple[list[str], list[str], Callable[[dict[str, Array]], Mapping[str, object]]]:
    """Return the names of a file's inputs and outputs, and a function from arrays by name to outputs by name."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        session = reference_evaluator(path)
        names = [str(name) for name in session.output_names]
        inputs = [str(name) for name in session.input_names]
        return inputs, names, lambda feeds: dict(zip(names, session.run(None, feeds), strict=True))
    options = onnxruntime.SessionOptions()
    # By default it rounds the rows that a matrix of int4 is multiplied by to int8; 1 leaves them float32.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given, outputs = session.get_inputs(), session.get_outputs()
    inputs, names = [each.name for each in given], [each.name for each in outputs]
    if not any("bfloat16" in each.type for each in (*given, *outputs)):
        return inputs, names, lambda feeds: dict(zip(names, session.run(None, feeds), strict=True))

    def run(feeds: dict[str, Array]) -> dict[str, Array]:
        values = {name: _ort_value(array) for name, array in feeds.items()}
        return dict(zip(names, map(_array_of, session.run_with_ort_values(names, values)), strict=True))

    return inputs, names, run


def _ort_value(array: Array) -> object:
    """Return an array as onnxruntime takes it; it reads bfloat16 as the bits of uint16."""
    import onnxruntime

    if name_of(array.dtype) != "bfloat16":
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    bits = np.ascontiguousarray(array).view("uint16")
    kind = load_onnx().TensorProto.BFLOAT16
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind)


def _array_of(value: Any) -> Array:
    """Return an OrtValue as an array; of bfloat16 onnxruntime gives the address alone."""
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    shape = value.shape()
    if 0 in shape:
        return np.zeros(shape, as_dtype("bfloat16"))
    bits = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return np.array(bits, "uint16").view(as_dtype("bfloat16")).reshape(shape)


def _feeds(model: Model, names: list[str], outputs: list[str], inputs: object) -> dict[str, Array]:
    has_states = any(f"{name}_next" in outputs for name in names)
    states = states_of(model) if has_states else {}
    wanted = [name for name in names if name not in states]
    if isinstance(inputs, Mapping):
        given = {str(key): value for key, value in inputs.items()}
    else:
        leaves = flatten(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        given = dict(zip(wanted, leaves, strict=False))
    missing = [name for name in wanted if name not in given]
    if missing:
        raise OnnxError(f"The file takes {', '.join(wanted)}; {', '.join(missing)} is not among what was given.")
    feeds = {name: np.asarray(given[name]) for name in wanted}
    feeds |= {name: states[name].numpy() for name in names if name in states}
    return {name: each.astype(object) if is_string(each.dtype) else each for name, each in feeds.items()}


def _compare(name: str, found: Array, wanted: Array, rtol: float, atol: float) -> None:
    if found.shape != wanted.shape:
        raise OnnxError(f"Output {name!r} has shape {found.shape}; the model's has {wanted.shape}.")
    if found.dtype.kind in "OUT" or is_string(wanted.dtype):
        if found.astype(object).tolist() != wanted.astype(object).tolist():
            raise OnnxError(f"Output {name!r} holds other texts than the model's.")
        return
    if found.dtype != wanted.dtype:
        raise OnnxError(f"Output {name!r} is {found.dtype}; the model's is {wanted.dtype}.")
    a, b = found.astype("float64"), wanted.astype("float64")
    close = np.isclose(a, b, rtol, atol, equal_nan=True)
    if not close.all():
        gap = np.where(close, 0, np.abs(a - b))
        place = tuple(int(k) for k in np.unravel_index(np.nanargmax(gap), gap.shape))
        raise OnnxError(
            f"Output {name!r} differs from the model's in {np.count_nonzero(~close)} of {close.size} elements, most "
            f"at {place}: {found[place]} instead of {wanted[place]} (rtol={rtol}, atol={atol})."
        )
