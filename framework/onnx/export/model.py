"""`export_graph` and the export of models: graphs of the engine as checked ONNX files."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine import ops
from ....engine.common.atomic import atomic_write
from ....engine.common.dtypes import four_bit_dtypes, is_string, name_of
from ....engine.common.paths import local_path
from ....engine.common.quick_dataclass import dataclass
from ....engine.graph import Graph, Operation, Symbol
from ....engine.graph.graph import Placeholder
from ....engine.graph.spec import TensorSpec
from ..errors import OnnxError
from ..protos import element_type, load_onnx, tensor_proto
from . import (  # noqa: F401 - they register rules
    arrays,
    convolutions,
    cotangents,
    elementwise,
    gathering,
    gradients,
    products,
    quantized,
    shapes,
    strings,
)
from .control_flow import GraphExporter, refusal
from .dimensions import name_dimensions
from .mathematics import fourier, gamma, integers  # noqa: F401 - they register rules
from .mathematics.fourier import Complex
from .registry import LOWEST

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from onnx import ModelProto, NodeProto, ValueInfoProto

    from ....engine.graph import Spec, Variable
    from ....engine.ops.base import TensorLike
    from ...structures import Array, Tensors

HIGHEST, DEFAULT = 25, 21
_LARGEST_PROTO = 2**31 - 2**16  # bytes; protobuf writes no more than 2 GiB
BATCH = "batch"  # the name of the first axis of a model's inputs, and of outputs with rows
_LARGEST_CONSTANT = 2**20  # bytes; others are initialisers, as weights are, and may be stored beside the file
_EXTERNAL_BYTES = 1024  # arrays from this size on are stored beside the file, if weights are
_PAGE = 4096  # bytes


@dataclass(frozen=True)
class BuiltModel:
    """A model that is not written yet: initialisers without their values, and these by name."""

    proto: ModelProto
    weights: dict[str, Array]


def checked_opset(opset_version: object) -> int:
    """Return the opset that was asked for, by default 21.

    Raises:
        ValueError: it is not an int between 18 and 25.
    """
    if opset_version is None:
        return DEFAULT
    if isinstance(opset_version, bool) or not isinstance(opset_version, int):
        raise ValueError(f"opset_version must be an int from {LOWEST} to {HIGHEST}, got {opset_version!r}.")
    if not LOWEST <= opset_version <= HIGHEST:
        raise ValueError(
            f"opset_version={opset_version}: models are written for opsets {LOWEST} to {HIGHEST}. Leave it out for "
            f"{DEFAULT}, which runtimes since 2024 read."
        )
    return opset_version


def export_graph(
    filepath: str | os.PathLike[str],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    *,
    opset_version: int | None = None,
    external_data: bool = False,
) -> None:
    """Write tensors of a graph, and what they are computed from, as an ONNX file.

    Args:
        filepath: the file to write.
        inputs: placeholders by the names that the model's inputs get.
        outputs: tensors of the same graph by the names that the model's outputs get.
        opset_version: the version of ONNX's operators, 18 to 25; by default 21.
        external_data: write large weights to ``<filepath>.data``. Models above 2 GB are written so in any case.

    Raises:
        OnnxError: an operation has no counterpart in ONNX; the message names it and its line.
        TypeError: inputs are not placeholders, or outputs are not tensors.
        ValueError: there is no output, or the opset is not supported.

    >>> import anabranch as ab, os, tempfile
    >>> x = ab.placeholder((None, 2), "float32")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ab.onnx.export_graph(os.path.join(folder, "square.onnx"), {"x": x}, {"y": x * x})
    ...     os.listdir(folder)
    ['square.onnx']

    Source: https://onnx.ai/onnx/repo-docs/IR.html
    """
    opset = checked_opset(opset_version)
    for title, tensors in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(tensors, Mapping):
            raise TypeError(f"export_graph: {title} must be a dict {{name: tensor}}, got {type(tensors).__name__}.")
    for name, tensor in inputs.items():
        if not isinstance(tensor, Symbol) or not isinstance(tensor.operation.op, Placeholder):
            raise TypeError(f"export_graph: input {name!r} is {tensor!r}; expected an ab.placeholder.")
    if not outputs:
        raise ValueError("export_graph: there are no outputs. Give {name: tensor}.")
    found: dict[str, Symbol] = {}
    for name, tensor in outputs.items():
        if not isinstance(tensor, Symbol):
            raise TypeError(f"export_graph: output {name!r} is {tensor!r}; expected a tensor of a graph.")
        found[name] = tensor
    named = {f"{name}": tensor for name, tensor in inputs.items()}
    dims = {name: open_dimensions(name, tensor.spec) for name, tensor in named.items()}
    write_model(filepath, build_model(named, found, dims, opset, "graph"), external_data)


def open_dimensions(name: str, spec: Spec, batch: str | None = None) -> list[int | str] | None:
    """Return a shape in which each open size has a name: ``batch`` for the first, else of the input and the axis."""
    if spec.shape is None:
        return None
    return [
        dim if dim is not None else batch if batch and axis == 0 else f"{name}_{axis}"
        for axis, dim in enumerate(spec.shape)
    ]


def build_model(
    inputs: Mapping[str, Symbol],
    outputs: Mapping[str, Symbol],
    dims: Mapping[str, Sequence[int | str | None] | None],
    opset: int,
    name: str,
    states: Sequence[tuple[Variable, str]] = (),
    with_rows: Collection[str] = (),
) -> BuiltModel:
    """Return a model of the outputs.

    Args:
        inputs: placeholders by name.
        outputs: tensors by name, of the same graph.
        dims: the shape of each input, with a name for each open size.
        opset: of the operators.
        name: of the graph.
        states: variables that are inputs of the model, with the names of these.
        with_rows: outputs that have a row for each row of a batch.

    Raises:
        OnnxError: an operation can't be written.
    """
    clash = set(inputs) & set(outputs)
    if clash:
        raise ValueError(f"{sorted(clash)[0]!r} names an input and an output. ONNX gives each value its own name.")
    exporter = GraphExporter(opset)
    infos: list[ValueInfoProto] = []
    for each in (*inputs, *outputs, *[each for _, each in states]):
        exporter.new_name(each)
    for each, symbol in inputs.items():
        _check_input(each, symbol)
        exporter.values[symbol] = each
        exporter.dtypes[each] = symbol.dtype
        infos.append(exporter.info(each, dims[each]))
    for variable, each in states:
        exporter.reads[variable] = each
        exporter.dtypes[each] = variable.dtype
        infos.append(exporter.info(each, variable.shape))
    graph = next(iter(outputs.values())).graph
    _check_fed(graph, exporter, outputs.values())
    exporter.run(graph, outputs.values())
    sizes = {
        each: open_dimensions(each, symbol.spec, BATCH if each in with_rows else None)
        for each, symbol in outputs.items()
    }
    return _model_proto(exporter, infos, outputs, sizes, name)


def _check_input(name: str, symbol: Symbol) -> None:
    if symbol.shape is None:
        raise OnnxError(f"Not even the rank of input {name!r} is known. Give its placeholder a shape.")
    try:
        element_type(symbol.dtype)
    except ValueError as error:
        raise OnnxError(f"Input {name!r} can't be exported to ONNX: {error}.") from error


def _check_fed(graph: Graph, exporter: GraphExporter, wanted: Iterable[Symbol]) -> None:
    pending, seen = [symbol.operation for symbol in wanted], set[Operation]()
    while pending:
        operation = pending.pop()
        if operation in seen:
            continue
        seen.add(operation)
        if isinstance(operation.op, Placeholder) and operation.outputs[0] not in exporter.values:
            raise OnnxError(
                f"The outputs depend on placeholder {operation.name!r}, defined at {operation.location}, which is not "
                "among the inputs. Add it to them."
            )
        pending += [symbol.operation for symbol in operation.inputs]


def _model_proto(
    exporter: GraphExporter,
    infos: list[ValueInfoProto],
    outputs: Mapping[str, Symbol],
    sizes: Mapping[str, Sequence[int | str | None] | None],
    name: str,
) -> BuiltModel:
    onnx = load_onnx()
    helper = onnx.helper
    results: list[ValueInfoProto] = []
    for each, symbol in outputs.items():
        value = exporter.values[symbol]
        if isinstance(value, Complex):
            raise OnnxError(f"Output {each!r} is complex: ONNX has no such tensors. Give ops.real and ops.imag of it.")
        if not isinstance(value, str):
            raise OnnxError(f"Output {each!r} is a TensorArray. Stack it: array.stack().")
        exporter.nodes.append(helper.make_node("Identity", [value], [each], name=each))
        exporter.dtypes[each] = exporter.dtypes[value]
        spec = symbol.spec
        if not isinstance(spec, TensorSpec):
            raise refusal(symbol.operation, "it gives no tensor")
        if spec.shape is None:
            raise OnnxError(f"Not even the rank of output {each!r} is known. Give it a shape with ops.reshape.")
        results.append(exporter.info(each, sizes[each]))
    nodes = _needed_nodes(exporter.nodes, outputs)
    used = _used_names(nodes)
    weights: dict[str, Array] = {}
    constants: list[NodeProto] = []
    for key, array in exporter.initializers.items():
        if key not in used:
            continue
        if key in exporter.weights or array.nbytes > _LARGEST_CONSTANT:
            weights[key] = array
        else:
            constants.append(helper.make_node("Constant", [], [key], name=key, value=tensor_proto(array, key)))
    empty = [
        onnx.TensorProto(name=key, data_type=element_type(array.dtype), dims=array.shape)
        for key, array in weights.items()
    ]
    graph = helper.make_graph([*constants, *nodes], name, infos, results, empty)
    opsets = [helper.make_opsetid("", exporter.opset), *[helper.make_opsetid(each, 3) for each in exporter.domains]]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="anabranch")
    model.ir_version = helper.find_min_ir_version_for(opsets[:1])
    name_dimensions(model)
    return BuiltModel(model, weights)


def _needed_nodes(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    """Return the nodes on which `outputs` depend: what an operator replaces may have been written before it."""
    used = set(outputs)
    needed: list[NodeProto] = []
    for node in reversed(nodes):
        if not used.isdisjoint(node.output):
            needed.append(node)
            used |= _used_names([node])
    return needed[::-1]


def _used_names(nodes: Sequence[NodeProto]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        found.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= _used_names(attribute.g.node) | {output.name for output in attribute.g.output}
    return found


# --- files ----------------------------------------------------------------------------------------------------------


def write_model(filepath: str | os.PathLike[str], built: BuiltModel, external_data: bool) -> None:
    """Check a model and write it; a file that was there before stays until the new one is whole.

    Raises:
        OnnxError: ONNX's own checker refuses the model, which is a bug of the export.
    """
    path, model = local_path(filepath, "export"), built.proto
    onnx = load_onnx()
    large = sum(array.nbytes for array in built.weights.values())
    if external_data or large >= _LARGEST_PROTO:
        _write_beside(path, built)
        return
    for proto in model.graph.initializer:
        proto.CopyFrom(tensor_proto(built.weights[proto.name], proto.name))
    _check(lambda: onnx.checker.check_model(model, full_check=True))
    with atomic_write(path) as stream:
        stream.write(model.SerializeToString())


def _check(check: Callable[[], object]) -> None:
    onnx = load_onnx()
    try:
        check()
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise OnnxError(
            f"This is a bug in anabranch: the model that was written does not pass onnx.checker ({error}). Please "
            "report it."
        ) from error


def _write_beside(path: Path, built: BuiltModel) -> None:
    """Write the weights to ``<name>.data`` and the model to `path`, both aside first, checked, and then renamed."""
    onnx = load_onnx()
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"Can't write {str(path)!r}: there is no folder {str(target.parent)!r}. Make it first.")
    aside = target.parent / f".{target.name}.{secrets.token_hex(4)}.anabranch.tmp"
    data = f"{target.name}.data"
    aside.mkdir()
    try:
        _write_data(aside / data, built)
        (aside / target.name).write_bytes(built.proto.SerializeToString())
        _check(lambda: onnx.checker.check_model(str(aside / target.name), full_check=True))
        if (aside / data).exists():
            os.replace(aside / data, target.parent / data)
        os.replace(aside / target.name, target)
    finally:
        for name in (data, target.name):
            with contextlib.suppress(FileNotFoundError):
                (aside / name).unlink()
        with contextlib.suppress(FileNotFoundError):
            aside.rmdir()


def _write_data(path: Path, built: BuiltModel) -> None:
    """Write weights to a file, one by one, none of them copied, and where each is to their protos; small ones to these.

    Those of several pages begin with one, so that runtimes can map them.
    """
    onnx = load_onnx()
    with path.open("wb") as stream:
        for proto in built.proto.graph.initializer:
            array = built.weights[proto.name]
            if is_string(array.dtype) or array.nbytes < _EXTERNAL_BYTES:
                proto.CopyFrom(tensor_proto(array, proto.name))
                continue
            start = stream.tell()
            if array.nbytes >= _PAGE:
                start = stream.seek(-(-start // _PAGE) * _PAGE)
            stream.write(_bytes_of(array))
            proto.data_location = onnx.TensorProto.EXTERNAL
            places = {"location": path.name, "offset": start, "length": stream.tell() - start}
            for key, value in places.items():
                proto.external_data.add(key=key, value=str(value))
    if not path.stat().st_size:
        path.unlink()


def _bytes_of(array: Array) -> memoryview | bytes:
    """Return an array as ONNX stores it: the bytes of its elements, of integers of four bits two in a byte."""
    if array.dtype in four_bit_dtypes():
        return tensor_proto(array, "").raw_data
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


# --- models ---------------------------------------------------------------------------------------------------------


def trace_model(
    model: object, named: Sequence[tuple[str, TensorSpec]], call: Callable[[list[Symbol]], Tensors]
) -> tuple[dict[str, Symbol], Tensors]:
    """Return placeholders by name, and what the model gives for them in inference."""
    graph = Graph()
    with graph.as_default():
        inputs = {name: graph.add(Placeholder(spec), (), name).outputs[0] for name, spec in named}
        return inputs, call(list(inputs.values()))


def as_output(value: TensorLike) -> Symbol:
    """Return an output of a model as a tensor of the graph that is being built."""
    tensor = ops.convert_to_tensor(value)
    result = tensor if isinstance(tensor, Symbol) else ops.identity(tensor)
    assert isinstance(result, Symbol)
    return result


def report(path: str, model: ModelProto) -> str:
    """Return a text on what was written: inputs, outputs and their types."""
    onnx = load_onnx()
    lines = [f"Exported {path!r}, opset {model.opset_import[0].version}:"]
    for what, infos in (("input", model.graph.input), ("output", model.graph.output)):
        for info in infos:
            kind = info.type.tensor_type
            sizes = [dim.dim_param or dim.dim_value for dim in kind.shape.dim]
            dtype = name_of(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)) if kind.elem_type != 8 else "string"
            lines.append(f"  {what} {info.name}: {dtype} ({', '.join(map(str, sizes))})")
    return "\n".join(lines)
