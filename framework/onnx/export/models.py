"""`Model.export` with ``format="onnx"``: the names are those of serving."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ....engine.graph import Graph, Symbol, Variable, flatten, pack_as
from ....engine.graph.graph import Operation, Placeholder
from ....engine.graph.state.variable_ops import Assign
from ....engine.passes.loops.independent_rows import why_rows_depend
from ...serving.exporting.endpoint import arguments_of, named_inputs, output_names
from .control_flow import refusal
from .model import BATCH, BuiltModel, as_output, build_model, checked_opset, open_dimensions, report, write_model

if TYPE_CHECKING:
    from ...structures import InputSpecs
    from ...training.base_model import BaseModel


def export_model(
    model: BaseModel,
    filepath: str | os.PathLike[str],
    verbose: int | None = None,
    input_signature: InputSpecs | None = None,
    opset_version: int | None = None,
    others: Mapping[str, object] | None = None,
) -> None:
    """Write a model's inference as an ONNX file; see `Model.export`. `others`: options that are for servables."""
    for name, given in (others or {}).items():
        if given is not None:
            raise ValueError(f"export({name}=...) is for format='anabranch': an ONNX file has no {name}.")
    opset = checked_opset(opset_version)
    built = built_model(model, input_signature, opset)
    write_model(filepath, built, external_data=False)
    if verbose or verbose is None:
        print(report(os.fspath(filepath), built.proto))


def built_model(model: BaseModel, input_signature: InputSpecs | None, opset: int) -> BuiltModel:
    """Return a model's inference as a model of ONNX.

    Variables that the inference writes, such as the states of ``stateful=True`` layers, become inputs and, under their
    names with ``_next`` behind, outputs.
    """
    traced = _traced(model, input_signature)
    inputs, results = traced.inputs, traced.results
    dims = {name: open_dimensions(name, symbol.spec, BATCH) for name, symbol in inputs.items()}
    held = [(variable, name) for name, variable in traced.states.items()]
    given, graph = list(inputs.values()), traced.graph
    with_rows = [name for name, symbol in results.items() if why_rows_depend(graph, given, [symbol]) is None]
    return build_model(inputs, results, dims, opset, model.name, held, with_rows)


def states_of(model: BaseModel) -> dict[str, Variable]:
    """Return what an exported model's inputs that are states stand for, by their names."""
    return _traced(model, None).states


class _Traced(NamedTuple):
    """A model's inference in a graph."""

    graph: Graph
    inputs: dict[str, Symbol]
    results: dict[str, Symbol]  # with the last values of the states behind the outputs
    states: dict[str, Variable]


def _traced(model: BaseModel, input_signature: InputSpecs | None) -> _Traced:
    arguments = arguments_of(model, input_signature)
    graph = Graph()
    with graph.as_default():
        named = named_inputs(arguments)
        symbols = [graph.add(Placeholder(spec), (), name).outputs[0] for name, spec in named]
        outputs = model(*pack_as(arguments, list(symbols)), training=False)
        fetches = [as_output(each) for each in flatten(outputs)]
    names, _ = output_names(outputs)
    inputs = {name: symbol for (name, _), symbol in zip(named, symbols, strict=True)}
    results = dict(zip(names, fetches, strict=True))
    written = _needed(_states(graph), fetches)
    states = _named_apart(written, {*inputs, *results})
    results |= {f"{name}_next": written[variable] for name, variable in states.items()}
    return _Traced(graph, inputs, results, states)


def _states(graph: Graph) -> dict[Variable, Symbol]:
    """Map each variable that is written to its last value.

    Raises:
        OnnxError: something inside of a loop or branch writes it, or it is read again afterwards.
    """
    found: dict[Variable, Symbol] = {}
    for operation in graph.operations:
        for effect in operation.effects:
            if isinstance(effect.resource, Variable):
                _note(found, operation, effect.resource, effect.writes)
    return found


def _needed(states: dict[Variable, Symbol], fetches: list[Symbol]) -> dict[Variable, Symbol]:
    """Return the states on which outputs depend; others, such as those of metrics, are not part of the inference."""
    pending, seen, read = [fetch.operation for fetch in fetches], set[Operation](), set[Variable]()
    while pending:
        operation = pending.pop()
        if operation in seen:
            continue
        seen.add(operation)
        read.update(effect.resource for effect in operation.effects)
        pending += [symbol.operation for symbol in operation.inputs]
    return {variable: state for variable, state in states.items() if variable in read}


def _named_apart(variables: Iterable[Variable], taken: set[str]) -> dict[str, Variable]:
    """Return variables by their paths, with numbers behind those that others have, as both states of an LSTM do.

    Args:
        variables: those that are states.
        taken: the names of the model's inputs and outputs.
    """
    found: dict[str, Variable] = {}
    for variable in variables:
        name = path = variable.path.replace("/", "_")
        count = 0
        while taken & {name, f"{name}_next"}:
            count += 1
            name = f"{path}_{count}"
        taken = taken | {name, f"{name}_next"}
        found[name] = variable
    return found


def _note(found: dict[Variable, Symbol], operation: Operation, variable: Variable, writes: bool) -> None:
    if not writes:
        if variable in found:
            raise refusal(operation, f"it reads variable {variable.name!r} again after it was written")
        return
    if not isinstance(operation.op, Assign):
        raise refusal(operation, f"it writes variable {variable.name!r} in a loop or branch, or parts of it")
    found[variable] = operation.inputs[0]
