"""`export_model`: trace a model's inference and write it as a version of a servable."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...distribute.inference import RequestError
from ...engine import ops
from ...engine.graph import Graph, Operation, Placeholder, Symbol, TensorSpec, Variable, flatten, pack_as
from ...engine.graph.dtypes import as_dtype, name_of
from ...layers.input_spec import InputSpec
from ..config import floatx
from ..layer_graph import history
from .signature import DEFAULT, OPEN_INFERENCE, Signature, TensorInfo
from .storage import WarmupRequest, write_servable
from .values import as_input

FORMATS = ("anabranch",)
_AUTOMATIC = re.compile(r"(input_layer|keras_tensor|input)(_[0-9]+)?")  # names of inputs to which nobody gave one
_IN_REQUESTS = re.compile(r"[^\s/:]+")


def export_model(
    model: Any,
    filepath: str | os.PathLike[str],
    format: str = "anabranch",
    verbose: bool | None = None,
    input_signature: Any = None,
    version: int | None = None,
    warmup: Any = None,
) -> int:
    """Write a model's inference as a version of a servable; see `Model.export`."""
    if format not in FORMATS:
        raise ValueError(
            f"export(format={format!r}): models are exported as 'anabranch', which `ab.serving.load` and "
            "`python -m anabranch serve` read, or as 'onnx'. Of Keras's other formats none is written."
        )
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        raise ValueError(f"export(version={version!r}): expected an int of at least 0, or None for the next.")
    arguments = call_arguments(model, input_signature)
    graph = Graph()
    with graph.as_default():
        named = named_inputs(arguments)
        symbols = [_feed(graph, name, spec) for name, spec in named]
        outputs = model(*pack_as(arguments, list(symbols)), training=False)
        fetches = [_fetch(each) for each in flatten(outputs)]
    _check_effects(model, graph.operations)
    names, outputs_as = output_names(outputs)
    signature = Signature(
        tuple(_info(model, name, tensor) for (name, _), tensor in zip(named, symbols, strict=True)),
        tuple(_info(model, name, tensor) for name, tensor in zip(names, fetches, strict=True)),
        outputs_as,
    )
    requests = [] if warmup is None else [_warmup(signature, arguments, warmup)]
    written = write_servable(filepath, graph, {DEFAULT: signature}, version, requests)
    if verbose or verbose is None:
        print(_report(os.path.join(filepath, str(written)), signature))
    return written


def call_arguments(model: Any, input_signature: Any) -> list[Any]:
    """Return the positional arguments of the call, structures whose leaves are `InputSpec`s or symbolic inputs."""
    if input_signature is None:
        if model.inputs is None:
            raise ValueError(
                f"Model {model.name!r} has no symbolic inputs, so that export() can't know what it takes. Give "
                'input_signature, such as [ab.InputSpec(shape=(None, 28, 28), dtype="float32", name="x")].'
            )
        return [model.input]
    given = list(input_signature) if isinstance(input_signature, (list, tuple)) else [input_signature]
    if len(given) > 1 and model.inputs is not None and len(model.inputs) == len(given):
        return [given]  # the inputs of a functional model are one argument
    return given


def named_inputs(arguments: Sequence[Any]) -> list[tuple[str, TensorSpec]]:
    """Return name and spec of each input, in the order of `flatten`: dict keys, else the names that were given."""
    leaves = flatten(arguments)
    keys = [None] * len(leaves)
    if len(arguments) == 1 and _is_flat_dict(arguments[0]):
        keys = sorted(arguments[0])
    named: list[tuple[str, TensorSpec]] = []
    for position, (key, leaf) in enumerate(zip(keys, leaves, strict=True)):
        name = str(key) if key is not None else _given_name(leaf) or f"input_{position}"
        named.append((name, _spec(name, leaf)))
    _check_names("input", [name for name, _ in named])
    return named


def _given_name(leaf: Any) -> str | None:
    name = leaf.name if isinstance(leaf, InputSpec) else history(leaf).layer.name if isinstance(leaf, Symbol) else None
    return None if not name or _AUTOMATIC.fullmatch(name) else name


def _spec(name: str, leaf: Any) -> TensorSpec:
    if isinstance(leaf, Symbol):
        return TensorSpec(leaf.shape, leaf.dtype)
    if not isinstance(leaf, InputSpec):
        raise TypeError(f"export(): input {name!r} is given as {type(leaf).__name__}; expected an ab.InputSpec.")
    if leaf.shape is None:
        raise ValueError(f"export(): the InputSpec of {name!r} needs a shape, with None for what is open.")
    return TensorSpec(leaf.shape, as_dtype(floatx() if leaf.dtype is None else leaf.dtype))


def _is_flat_dict(structure: Any) -> bool:
    return isinstance(structure, dict) and not any(isinstance(v, (dict, list, tuple)) for v in structure.values())


def _check_names(what: str, names: Sequence[str]) -> None:
    for name in names:
        if not _IN_REQUESTS.fullmatch(name):
            raise ValueError(f"export(): {name!r} can't name an {what}: no spaces, slashes or colons in names.")
        if names.count(name) > 1:
            raise ValueError(f"export(): two {what}s are called {name!r}. Give each its own name.")


def _feed(graph: Graph, name: str, spec: TensorSpec) -> Symbol:
    return graph.add(Placeholder(spec), (), name).outputs[0]


def _fetch(output: Any) -> Any:
    """An output as a tensor of the graph; an array becomes a constant of it."""
    tensor = ops.convert_to_tensor(output)
    return tensor if isinstance(tensor, Symbol) else ops.identity(tensor)


def output_names(outputs: Any) -> tuple[list[str], str]:
    """Return a name for each output, and in which structure they are: "one", "list" or "dict"."""
    if _is_flat_dict(outputs):
        names = [str(key) for key in sorted(outputs)]
        _check_names("output", names)
        return names, "dict"
    one = not isinstance(outputs, (dict, list, tuple))
    return [f"output_{number}" for number in range(len(flatten(outputs)))], "one" if one else "list"


def _info(model: Any, name: str, tensor: Symbol) -> TensorInfo:
    if tensor.shape is None:
        raise ValueError(f"Model {model.name!r} can't be exported: not even the rank of {name!r} is known.")
    if name_of(tensor.dtype) not in OPEN_INFERENCE:
        raise ValueError(f"Model {model.name!r} can't be exported: {name!r} is {name_of(tensor.dtype)}, not served.")
    return TensorInfo(name, name_of(tensor.dtype), tuple(tensor.shape), tensor.name)


def _check_effects(model: Any, operations: Sequence[Operation]) -> None:
    for operation in operations:
        for effect in operation.effects:
            if effect.writes and isinstance(effect.resource, Variable):
                raise ValueError(
                    f"Model {model.name!r} can't be exported: its inference writes variable {effect.resource.name!r} "
                    f"(operation {operation.name!r}, defined at {operation.location}), and requests would change each "
                    "other's state. Export it with stateful=False, or return the state as an output."
                )


def _warmup(signature: Signature, arguments: Sequence[Any], given: Any) -> WarmupRequest:
    """Example inputs in the structure of the arguments, by the inputs' names."""
    leaves = flatten(given) if isinstance(given, (list, tuple, dict)) and len(flatten(arguments)) > 1 else [given]
    infos = signature.inputs
    if isinstance(given, dict) and len(infos) == 1 and given.keys() == {infos[0].name}:
        leaves = list(given.values())
    if len(leaves) != len(infos):
        raise ValueError(
            f"export(warmup=...): expected an array for each of the inputs {', '.join(info.name for info in infos)}; "
            f"got {len(leaves)}."
        )
    try:
        arrays = [as_input(info, np.asarray(leaf)) for info, leaf in zip(infos, leaves, strict=True)]
    except RequestError as error:
        raise ValueError(f"export(warmup=...): {error}") from None
    return DEFAULT, {info.name: array for info, array in zip(infos, arrays, strict=True)}


def _report(path: str, signature: Signature) -> str:
    lines = [f"Exported {path!r}:"]
    for what, infos in (("input", signature.inputs), ("output", signature.outputs)):
        lines += [f"  {what} {info.name}: {info.dtype} {info.shape}" for info in infos]
    return "\n".join(lines)
