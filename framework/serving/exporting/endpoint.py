"""`trace_endpoint`: a function as a part of a servable's graph, with the names of its inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....distribute.inference import RequestError
from ....engine import ops
from ....engine.common.dtypes import as_dtype, name_of
from ....engine.graph import Graph, Operation, Placeholder, Symbol, Tensor, TensorSpec, Variable, flatten, pack_as
from ....engine.ops.math.elementwise import identity as pass_on  # ops.identity is the matrix
from ....engine.saving.writing import describe
from ....layers.core.input_spec import InputSpec
from ...config import floatx
from ...models.layer_graph import history
from ...models.seen_inputs import seen_signature
from ..image_inputs import is_encoded
from ..signature import OPEN_INFERENCE, Padding, Signature, TensorInfo, check_given
from ..storage import WarmupRequest
from ..values import as_input

if TYPE_CHECKING:
    from ....engine.ops.base import TensorLike
    from ...structures import Arrays, InputSpecs
    from ...training.base_model import BaseModel


_AUTOMATIC = re.compile(r"(input_layer|keras_tensor|input)(_[0-9]+)?")  # names of inputs to which nobody gave one
_IN_REQUESTS = re.compile(r"[^\s/:]+")


class Endpoint(NamedTuple):
    """A function that has been traced.

    Attributes:
        signature: what it takes and gives.
        arguments: its positional arguments, structures whose leaves describe inputs.
    """

    signature: Signature
    arguments: Sequence[InputSpecs]


class WritesVariablesError(ValueError):
    """The exported function writes variables, so that requests would change each other's state."""


def trace_endpoint(
    who: str,
    function: Callable[..., object],
    arguments: Sequence[InputSpecs],
    graph: Graph,
    row_wise: bool | None = None,
) -> Endpoint:
    """Build what a function computes into a graph.

    Args:
        who: for errors: what is exported.
        function: called with tensors in the places of the specs.
        arguments: its positional arguments, structures whose leaves are `InputSpec`s or symbolic inputs.
        graph: the graph.
        row_wise: whether each row is computed for itself; None leaves that to the graph.

    Raises:
        TypeError, ValueError: an input can't be described or named, an output can't be served, or the function writes
            variables.
    """
    before = set(graph.operations)
    with graph.as_default():
        named = named_inputs(arguments)
        symbols = [feed(graph, name, spec) for name, spec in named]
        outputs = function(*pack_as(arguments, list(symbols)))
        fetches = [fetch(each) for each in flatten(outputs)]
    check_effects(who, [operation for operation in graph.operations if operation not in before])
    if not fetches:
        raise ValueError(f"{who} can't be exported: it gives no output. Return the tensors that it computes.")
    names, outputs_as = output_names(outputs)
    signature = Signature(
        tuple(info_of(who, name, tensor) for (name, _), tensor in zip(named, symbols, strict=True)),
        tuple(info_of(who, name, tensor) for name, tensor in zip(names, fetches, strict=True)),
        outputs_as,
        row_wise,
    )
    check_row_wise(who, signature)
    return Endpoint(signature, arguments)


def arguments_of(model: BaseModel, input_signature: InputSpecs | None) -> list[InputSpecs]:
    """Return the positional arguments of a model's call, structures whose leaves are `InputSpec`s or symbolic inputs.

    Raises:
        ValueError: nothing is given, and the model has no symbolic inputs and was never called.
    """
    graph = model._layer_graph
    if input_signature is None:
        known = seen_signature(model) if graph is None else [model.input]
        if known is None:
            raise ValueError(
                f"Model {model.name!r} has no symbolic inputs and was not called on data, so that export() has no "
                "signature of it. Call it first, or give input_signature, such as "
                '[ab.InputSpec(shape=(None, 28, 28), dtype="float32", name="x")].'
            )
        return known
    given = list(input_signature) if isinstance(input_signature, (list, tuple)) else [input_signature]
    if len(given) > 1 and graph is not None and len(graph.inputs) == len(given):
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
    check_names("input", [name for name, _ in named])
    return named


def _given_name(leaf: object) -> str | None:
    name = leaf.name if isinstance(leaf, InputSpec) else history(leaf).layer.name if isinstance(leaf, Symbol) else None
    return None if not name or _AUTOMATIC.fullmatch(name) else name


def _spec(name: str, leaf: object) -> TensorSpec:
    if isinstance(leaf, (Symbol, TensorSpec)):
        return TensorSpec(leaf.shape, leaf.dtype)
    if isinstance(leaf, Tensor):  # an example: a batch of any size
        return TensorSpec((None, *leaf.shape[1:]) if leaf.shape else (), leaf.dtype)
    if not isinstance(leaf, InputSpec):
        raise TypeError(
            f"export(): input {name!r} is given as {type(leaf).__name__}; expected an ab.InputSpec, a tf.TensorSpec, a "
            "symbolic input or a tensor."
        )
    if leaf.shape is None:
        raise ValueError(f"export(): the InputSpec of {name!r} needs a shape, with None for what is open.")
    return TensorSpec(leaf.shape, as_dtype(floatx() if leaf.dtype is None else leaf.dtype))


def _is_flat_dict(structure: object) -> bool:
    return isinstance(structure, dict) and not any(isinstance(v, (dict, list, tuple)) for v in structure.values())


def check_names(what: str, names: Sequence[str]) -> None:
    """Raise a `ValueError` where names can't be used in requests, or are not each other's only ones."""
    for name in names:
        if not _IN_REQUESTS.fullmatch(name):
            raise ValueError(f"export(): {name!r} can't name an {what}: no spaces, slashes or colons in names.")
        if names.count(name) > 1:
            raise ValueError(f"export(): two {what}s are called {name!r}. Give each its own name.")


def feed(graph: Graph, name: str, spec: TensorSpec) -> Symbol:
    """Add an input to a graph."""
    return graph.add(Placeholder(spec), (), name).outputs[0]


def fetch(output: TensorLike) -> Any:
    """Return an output as a tensor of the graph; an array becomes a constant of it."""
    tensor = ops.convert_to_tensor(output)
    return tensor if isinstance(tensor, Symbol) else pass_on(tensor)


def output_names(outputs: Any) -> tuple[list[str], str]:
    """Return a name for each output, and in which structure they are: "one", "list" or "dict"."""
    if _is_flat_dict(outputs):
        names = [str(key) for key in sorted(outputs)]
        check_names("output", names)
        return names, "dict"
    one = not isinstance(outputs, (dict, list, tuple))
    return [f"output_{number}" for number in range(len(flatten(outputs)))], "one" if one else "list"


def info_of(who: str, name: str, tensor: Symbol) -> TensorInfo:
    """Describe an input or output.

    Raises:
        SavedGraphError: its rank is not known, and an operation holds a Python function; the message names its line.
        ValueError: it can't be served.
    """
    if tensor.shape is None:
        describe(tensor.graph)  # what can't be written, such as a Python function, is the likely reason: it has a line
        raise ValueError(f"{who} can't be exported: not even the rank of {name!r} is known.")
    if name_of(tensor.dtype) not in OPEN_INFERENCE:
        raise ValueError(f"{who} can't be exported: {name!r} is {name_of(tensor.dtype)}, not served.")
    return TensorInfo(name, name_of(tensor.dtype), tuple(tensor.shape), tensor.name_in_graph)


def check_effects(who: str, operations: Sequence[Operation]) -> None:
    """Raise a `ValueError` where operations write variables."""
    for operation in operations:
        for effect in operation.effects:
            if effect.writes and isinstance(effect.resource, Variable):
                raise WritesVariablesError(
                    f"{who} can't be exported: its inference writes variable {effect.resource.name!r} "
                    f"(operation {operation.name!r}, defined at {operation.location}), and requests would change each "
                    "other's state. Export it with stateful=False, or return the state as an output. States of "
                    "recurrent layers are kept for each sequence, in a model whose inputs have a batch_size."
                )


def check_row_wise(who: str, signature: Signature) -> None:
    """Raise a `ValueError` where rows are to be joined, and an input or output has no open axis for them."""
    for kind, infos in (("input", signature.inputs), ("output", signature.outputs)):
        for info in infos:
            if signature.row_wise and (not info.shape or info.shape[0] is not None):
                raise ValueError(
                    f"{who} can't be exported with row_wise=True: {kind} {info.name!r} has the shape {info.shape}; "
                    "expected axis 0 to be open (None), for the rows. Leave row_wise out."
                )


def warmup_of(name: str, endpoint: Endpoint, given: Arrays) -> WarmupRequest:
    """Return example inputs by the inputs' names, read from the structure of an endpoint's arguments.

    Raises:
        ValueError: they do not fit.
    """
    infos = endpoint.signature.inputs
    try:
        leaves = _examples(given, endpoint)
    except RequestError as error:
        raise ValueError(f"export(warmup=...): {error}") from None
    if len(leaves) != len(infos):
        raise ValueError(
            f"export(warmup=...): expected an array for each of the inputs {', '.join(info.name for info in infos)}; "
            f"got {len(leaves)}."
        )
    try:
        values = [leaf if is_encoded(leaf) else np.asarray(leaf) for leaf in leaves]
        arrays = [as_input(info, leaf) for info, leaf in zip(infos, values, strict=True)]
    except RequestError as error:
        raise ValueError(f"export(warmup=...): {error}") from None
    return name, {info.name: array for info, array in zip(infos, arrays, strict=True)}


def _examples(given: Arrays, endpoint: Endpoint) -> list[object]:
    """Return an example for each input: by names, or in the structure of the arguments.

    Raises:
        RequestError: names are missing or unknown.
    """
    (signature, arguments), names = endpoint, [info.name for info in endpoint.signature.inputs]
    is_nested = len(arguments) == 1 and isinstance(arguments[0], dict) and not _is_flat_dict(arguments[0])
    if isinstance(given, dict) and not is_nested:
        check_given(names, given)
        return [given[name] for name in names]
    if not isinstance(given, (list, tuple, dict)):
        return [given]
    if len(names) > 1 or isinstance(given, dict):
        return flatten(given)
    only = given[0] if len(given) == 1 else None
    is_all = isinstance(only, np.ndarray) and only.ndim == len(signature.inputs[0].shape)
    return [only if is_all else given]  # others are rows, as lists


def report(path: str, signatures: Mapping[str, Signature]) -> str:
    """Return lines that say what was exported."""
    lines = [f"Exported {path!r}:"]
    for name, signature in signatures.items():
        lines += [f"  signature {name}"] if len(signatures) > 1 else []
        lines += _described(signature)
    return "\n".join(lines)


def _described(signature: Signature) -> list[str]:
    lines: list[str] = []
    for what, infos in (("input", signature.inputs), ("output", signature.outputs)):
        for info in infos:
            also = "" if info.image is None else ", or PNG or JPEG bytes"
            lines.append(f"  {what} {info.name}: {info.dtype} {info.shape}{also}")
    lines += [f"  {padding_in_words(each)}" for each in signature.paddings]
    return lines


def padding_in_words(padding: Padding) -> str:
    """Return a sentence on the inputs that may be filled up."""
    inputs = " and ".join(f"{name} with {value!r}" for name, value in padding.inputs)
    return f"sequences are filled up for batches: {inputs}"
