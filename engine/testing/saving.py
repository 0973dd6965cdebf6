"""Checks of saved graphs: an op alone, and inside branches and loops, is the same after it was saved and loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autodiff import gradients
from ..graph import Graph, Symbol
from ..graph.op import Sample
from ..runtime.interpreter import Interpreter
from ..saving import graph_from_dict, graph_to_dict
from .comparing import assert_identical, fail_unless
from .control_flow import add_controls, values_inside
from .derivatives import Probe


def check_saving(sample: Sample, known: str = "static", inside: bool = True) -> int:
    """Check that a graph with the op and its gradient is the same after reloading: same names, and same bits.

    It can be differentiated further: gradients of the gradient, built after loading, equal those of the original.

    Args:
        sample: the case.
        known: how much is known of the shapes of inputs.
        inside: the op stands inside a branch and loops, too.
    """
    probe = Probe(sample, known)
    graph = probe.graph
    with graph.as_default():
        controls = add_controls(graph) if inside else None
        plain = probe.outputs(probe.inputs)
        groups = [plain, *values_inside(probe, plain, controls)] if controls else [plain]
        targets = [tensor for group in groups for tensor in group]
        slope = None
        if probe.wanted:
            first = gradients([probe.loss(group) for group in groups], probe.wanted, unconnected_gradients="zero")
            slope = probe.slope(first)
            targets += [*first, slope]
    again = graph_from_dict(graph_to_dict(graph))
    fail_unless(_names(again) == _names(graph), "the loaded graph has other operations than the saved one")
    feeds = {**probe.feeds, **(controls.fed(taken=True) if controls else {})}
    fed = {again.get_tensor_by_name(tensor.name_in_graph): value for tensor, value in feeds.items()}
    same_slope = None if slope is None else again.get_tensor_by_name(slope.name)
    found = _run(again, _found(again, targets), same_slope, _found(again, probe.wanted), fed)
    for value, wanted in zip(found, _run(graph, targets, slope, probe.wanted, feeds), strict=True):
        assert_identical(value, wanted)
    return len(found)


def _run(graph: Graph, targets: Sequence[Symbol], slope: Symbol | None, sources: Sequence[Symbol], feeds: Any) -> Any:
    """Return the values of `targets` and of the gradients of `slope`, which are built now."""
    second: list[Symbol] = []
    if slope is not None:
        with graph.as_default():
            second = list(gradients(slope, sources, unconnected_gradients="zero"))
    return Interpreter().run(graph, [*targets, *second], feeds)


def _names(graph: Graph) -> list[tuple[str, str]]:
    return [(operation.name, operation.type) for operation in graph.operations]


def _found(graph: Graph, tensors: Sequence[Symbol]) -> list[Any]:
    return [graph.get_tensor_by_name(tensor.name_in_graph) for tensor in tensors]
