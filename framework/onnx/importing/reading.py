"""Models from files, bytes and ModelProtos. No file is trusted: sizes, paths and orders of nodes are checked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ....engine.common.dtypes import DType
from ....engine.common.paths import local_path
from ..errors import OnnxError
from ..protos import load_onnx
from .values import INT4, UINT4, FourBits, dtype_of

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto

    from ...structures import Array

_LOWEST_OPSET = 7
_MOST_DEPTH = 64  # of graphs in graphs
_MOST_BYTES = 2**31  # of a message; protobuf reads no more


OnnxSource: TypeAlias = "str | os.PathLike[str] | bytes | ModelProto"
"""A path, the bytes of a file, or a message of ONNX."""


def read_model(source: Any, given: Iterable[str] = ()) -> tuple[ModelProto, dict[str, Array]]:
    """Return a ModelProto and what is beside it, arrays by the names of initialisers.

    Args:
        source: a path, the bytes of a file, or a ModelProto.
        given: names of values that come from elsewhere, as the weights of a layer do.

    Raises:
        OnnxError: the file is damaged, or names files outside of its folder.
        FileNotFoundError: there is no such file.
        TypeError: the source is of another type.
    """
    onnx = load_onnx()
    if isinstance(source, onnx.ModelProto):
        model, folder = source, None
    elif isinstance(source, (bytes, bytearray, memoryview)):
        model, folder = _parsed(bytes(source), "The bytes"), None
    elif isinstance(source, (str, os.PathLike)):
        path = local_path(source, "onnx.load")
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {str(path)!r}.")
        if path.stat().st_size > _MOST_BYTES:
            raise OnnxError(f"{str(path)!r} has {path.stat().st_size:,} bytes; ONNX files have at most 2 GB.")
        model, folder = _parsed(path.read_bytes(), repr(str(path))), path.parent
    else:
        raise TypeError(f"An ONNX model is a path, bytes or a ModelProto; got {type(source).__name__}.")
    if not model.HasField("graph") or not model.opset_import:
        raise OnnxError("It is no ONNX model: it has no graph or says no opset.")
    if not model.graph.output:
        raise OnnxError("The model has no outputs, so that there is nothing to compute.")
    _check_opset(model)
    beside = {each.name: _beside(each, folder) for each in model.graph.initializer if each.data_location}
    check_order(model.graph, set(given))
    return model, beside


def _check_opset(model: ModelProto) -> None:
    onnx = load_onnx()
    newest = onnx.defs.onnx_opset_version()
    for each in model.opset_import:
        own = each.domain in ("", "ai.onnx")
        if not (_LOWEST_OPSET if own else 1) <= each.version <= (newest if own else 2**31 - 1):
            raise OnnxError(
                f"The model is of opset {each.version} of {each.domain or 'ONNX'}; models of {_LOWEST_OPSET} to "
                f"{newest} are read. onnx.version_converter may bring it there."
            )


def _parsed(content: bytes, what: str) -> ModelProto:
    onnx = load_onnx()
    try:
        return onnx.ModelProto.FromString(content)
    except Exception as error:  # protobuf's DecodeError, whose class belongs to its implementation
        raise OnnxError(f"{what}: this is no ONNX model, or it is damaged ({error}).") from error


def initializer_array(proto: TensorProto) -> Any:
    """Return a TensorProto as an array; texts as strings, integers of four bits as `FourBits`.

    Raises:
        OnnxError: its bytes do not fit its shape and type, or are in another file.
        NotImplementedError: its type is not computed with here.
    """
    onnx = load_onnx()
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        raise OnnxError(f"Tensor {proto.name!r} is in another file, and only weights of the outermost graph may.")
    dtype = dtype_of(proto.data_type, four_bits=True)
    shape = _checked_shape(proto)
    if dtype.kind == "T":
        texts = [text.decode("utf-8", "replace") for text in proto.string_data]
        return _of_shape(np.array(texts, dtype), shape, proto)
    _check_size(proto, shape, dtype)
    try:
        array = onnx.numpy_helper.to_array(proto)
    except Exception as error:  # whatever a damaged message leads to
        raise OnnxError(f"Tensor {proto.name!r} is damaged: {error}.") from error
    return FourBits.of_array(array) if dtype in (INT4, UINT4) else array


def _checked_shape(proto: TensorProto) -> tuple[int, ...]:
    shape = tuple(int(dim) for dim in proto.dims)
    if any(dim < 0 for dim in shape):
        raise OnnxError(f"Tensor {proto.name!r} has shape {shape}: sizes are not negative.")
    return shape


def _check_size(proto: TensorProto, shape: tuple[int, ...], dtype: DType) -> None:
    count = 1
    for dim in shape:
        count *= dim
    is_packed = dtype in (INT4, UINT4)  # two in a byte
    if proto.HasField("raw_data"):
        size = (count + 1) // 2 if is_packed else count * dtype.itemsize
        if len(proto.raw_data) != size:
            raise OnnxError(
                f"Tensor {proto.name!r} of shape {shape} needs {size:,} bytes; it has {len(proto.raw_data):,}."
            )
        return
    fields = (proto.float_data, proto.int32_data, proto.int64_data, proto.double_data, proto.uint64_data)
    held = max(len(field) for field in fields)
    wanted = (count + 1) // 2 if is_packed else count * (2 if dtype.kind == "c" else 1)
    if held != wanted:
        raise OnnxError(f"Tensor {proto.name!r} of shape {shape} needs {wanted:,} numbers; it has {held:,}.")


def _of_shape(array: Array, shape: tuple[int, ...], proto: TensorProto) -> Array:
    try:
        return array.reshape(shape)
    except ValueError:
        raise OnnxError(f"Tensor {proto.name!r} of shape {shape} holds {array.size:,} texts.") from None


def _beside(proto: TensorProto, folder: Path | None) -> Array:
    """Return a weight in a file beside the model, mapped and not read."""
    if folder is None:
        raise OnnxError(f"Tensor {proto.name!r} is in a file beside the model: give the model's path, not its bytes.")
    entries: Mapping[str, str] = {each.key: each.value for each in proto.external_data}
    location = entries.get("location", "")
    base = folder.resolve()
    path = (base / location).resolve()
    if not location or Path(location).is_absolute() or not path.is_relative_to(base):
        raise OnnxError(f"Tensor {proto.name!r} names the file {location!r}, which is outside of the model's folder.")
    dtype, shape = dtype_of(proto.data_type), _checked_shape(proto)
    if dtype.kind == "T":
        raise OnnxError(f"Tensor {proto.name!r}: texts may not be in another file.")
    if not path.is_file():
        raise OnnxError(f"Tensor {proto.name!r} is in {location!r}, and there is no such file beside the model.")
    try:
        offset = int(entries.get("offset", 0))
        count = 1
        for dim in shape:
            count *= dim
        length = int(entries.get("length", count * dtype.itemsize))
    except ValueError as error:
        raise OnnxError(f"Tensor {proto.name!r}: its place in {location!r} is damaged ({error}).") from error
    wanted = count * dtype.itemsize
    if length != wanted or offset < 0 or offset + wanted > path.stat().st_size:
        raise OnnxError(
            f"Tensor {proto.name!r} of shape {shape} needs {wanted:,} bytes at {offset:,} of {location!r}, which has "
            f"{path.stat().st_size:,}; it says {length:,}."
        )
    if not count:
        return np.zeros(shape, dtype)
    raw = np.memmap(path, np.uint8, mode="r", offset=offset, shape=(wanted,))
    return raw.view(dtype).reshape(shape)


def check_order(graph: GraphProto, around: set[str], depth: int = 0) -> None:
    """Refuse a graph whose nodes use values that nothing before them gives.

    Raises:
        OnnxError: there is such a node, as in a cycle, or a value is given twice.
    """
    _check_texts(graph)
    seen = {each.name for each in graph.input} | {each.name for each in graph.initializer}
    seen |= {each.values.name for each in graph.sparse_initializer}
    made = set(seen)
    for node in graph.node:
        name = node.name or next(iter(node.output), "")
        for each in node.input:
            if each and each not in seen and each not in around:
                raise OnnxError(
                    f"Node {name!r} ({node.op_type}) uses {each!r}, which no node before it gives: the graph has a "
                    "cycle, or its nodes are not in order."
                )
        for attribute in node.attribute:
            if attribute.HasField("g"):
                if depth >= _MOST_DEPTH:
                    raise OnnxError(f"Node {name!r} ({node.op_type}): graphs are nested too deep.")
                check_order(attribute.g, around | seen, depth + 1)
        for each in node.output:
            if each and each in made:
                raise OnnxError(f"Node {name!r} ({node.op_type}) gives {each!r}, which is given before already.")
            made.add(each)
            seen.add(each)
    for each in graph.output:
        if each.name not in seen and each.name not in around:
            raise OnnxError(f"Output {each.name!r} of graph {graph.name!r} is given by no node.")


def _check_texts(graph: GraphProto) -> None:
    """Refuse names that are not UTF-8, which protobuf hands over as bytes."""
    texts = [graph.name, *[each.name for each in (*graph.input, *graph.output, *graph.initializer)]]
    for node in graph.node:
        texts += [node.name, node.op_type, node.domain, *node.input, *node.output]
        texts += [each.name for each in node.attribute]
    if not all(isinstance(text, str) for text in texts):
        raise OnnxError(f"Graph {graph.name!r} is damaged: a name in it is no UTF-8.")
