"""`trace_sequences`: a model with `stateful=True` layers, whose states become inputs and outputs of its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....engine.common.dtypes import name_of
from ....engine.graph import Graph, TensorSpec, Variable, flatten, pack_as
from ....engine.graph.state.stateless import StatelessScope
from ....engine.ops.math.elementwise import identity as pass_on  # ops.identity is the matrix
from ....engine.passes.loops.independent_rows import why_rows_depend
from ....layers.recurrent.rnn import RNN
from ..signature import Signature, StateInfo
from .endpoint import Endpoint, WritesVariablesError, check_effects, feed, fetch, info_of, named_inputs, output_names

if TYPE_CHECKING:
    from ...structures import InputSpecs
    from ...training.base_model import BaseModel


def trace_sequences(
    who: str, model: BaseModel, arguments: list[InputSpecs], graph: Graph, refusal: WritesVariablesError
) -> Endpoint:
    """Build a model's inference into a graph, from the states of its recurrent layers to their next states.

    The number of rows becomes open, since each row is a sequence.

    Args:
        who: for errors: what is exported.
        model: a model that writes variables when it predicts.
        arguments: the positional arguments of its call.
        graph: the graph.
        refusal: what is raised where it writes others than the states of recurrent layers.

    Raises:
        WritesVariablesError: it writes other variables.
        ValueError: rows depend on each other, or an output can't be served.
    """
    variables = _states_of(model)
    with graph.as_default():
        named = named_inputs(arguments)
        rows = {variable.shape[0] for variable in variables}
        if {spec.shape[0] if spec.shape else None for _, spec in named} != rows:  # such as sequences of (steps, rows)
            raise refusal
        opened = [(name, TensorSpec((None, *(spec.shape or ())[1:]), spec.dtype)) for name, spec in named]
        symbols = [feed(graph, name, spec) for name, spec in opened]
        before = [
            feed(graph, f"state_{number}", TensorSpec((None, *variable.shape[1:]), variable.dtype))
            for number, variable in enumerate(variables)
        ]
        with StatelessScope(zip(variables, before, strict=True)) as scope:
            outputs = model(*pack_as(arguments, list(symbols)), training=False)
            after = [fetch(pass_on(scope.get_current_value(variable))) for variable in variables]
        if len(scope.variables) > len(variables):
            raise refusal
        fetches = [fetch(each) for each in flatten(outputs)]
    check_effects(who, graph.operations)
    why = why_rows_depend(graph, [*symbols, *before], [*fetches, *after])
    if why is not None:
        raise ValueError(f"{who} can't be exported: each row is a sequence of its own, and {why}.")
    names, outputs_as = output_names(outputs)
    signature = Signature(
        tuple(info_of(who, name, tensor) for (name, _), tensor in zip(opened, symbols, strict=True)),
        tuple(info_of(who, name, tensor) for name, tensor in zip(names, fetches, strict=True)),
        outputs_as,
        states=tuple(
            StateInfo(name_of(old.dtype), (None, *variable.shape[1:]), old.name, new.name)
            for variable, old, new in zip(variables, before, after, strict=True)
        ),
    )
    return Endpoint(signature, arguments)


def _states_of(model: BaseModel) -> list[Variable]:
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, RNN) and layer.stateful]
    found: list[Variable] = [variable for layer in layers for variable in flatten(layer.states)]
    return list(dict.fromkeys(found))
