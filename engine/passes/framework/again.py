"""One loop or branch once more, on other inputs: in another graph, or at once on values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...control_flow.cond import Branch
from ...control_flow.region_op import RegionOp
from ...control_flow.while_loop import While
from ...graph.graph import Graph, Operation, Parameter
from ...graph.region import Region
from ...graph.state.variable_ops import ReadVariable
from ...graph.tensor import Symbol, Tensor
from ...ops.base import apply_multi
from .prune import needed_in_region
from .specialise import Specialised


class _Copy(Specialised):
    """A copy of some operations as they are, with the shapes that follow from those of other inputs."""

    def __init__(self) -> None:
        super().__init__(share=False)
        self._algebra, self._folds = {}, False


def copied(operation: Operation, inputs: Sequence[Symbol], into: Graph) -> Operation:
    """Return a copy of an operation and its regions, with shapes inferred again.

    Args:
        operation: what is copied: of any graph, which may be gone but for this.
        inputs: what stands for its inputs, captured values included.
        into: the graph that gets the copy. It sees the inputs.
    """
    copy = _Copy()
    copy.tensors.update(zip(operation.inputs, inputs, strict=True))
    copy.copy_inside([operation], into, operation.outputs)
    new = copy.operations[operation]
    new.name = into.unique_name(operation.op.type_name)
    return new


def computed(operation: Operation, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the results of a loop or branch on values, operation by operation, seen by the tapes that record.

    Args:
        operation: the loop or branch, without gradients or recursions inside.
        inputs: the values of its inputs, captured ones included.
    """
    op, values = operation.op, list(inputs)
    own = len(operation.own_inputs)
    taken = [values[own : own + len(op.regions[0].captures)]]
    for region in op.regions[1:]:
        start = own + sum(map(len, taken))
        taken.append(values[start : start + len(region.captures)])
    if isinstance(op, While):
        carried = values[:own]
        while _results(op.condition, carried, taken[op.regions.index(op.condition)])[0]:
            carried = _results(op.body, carried, taken[op.regions.index(op.body)])
        return carried
    assert isinstance(op, Branch)
    choice = values[0]
    number = int(not choice) if choice.dtype.kind == "b" else min(max(int(choice), 0), len(op.regions) - 1)
    return _results(op.regions[number], [], taken[number])


def _results(region: Region, parameters: Sequence[Tensor], captured: Sequence[Tensor]) -> list[Tensor]:
    known: dict[Symbol, Tensor] = dict(zip(region.parameters, parameters, strict=True))
    known.update(zip([parameter for _, parameter in region.captures], captured, strict=True))
    for operation in needed_in_region(region, ()):
        if not isinstance(operation.op, Parameter):
            known.update(zip(operation.outputs, _outputs(operation, known), strict=False))  # frames have no values
    return [known[result] for result in region.results]


def _outputs(operation: Operation, known: Mapping[Symbol, Tensor]) -> Sequence[Tensor]:
    if isinstance(operation.op, ReadVariable):
        return [operation.op.variable.value]
    inputs = [known[tensor] for tensor in operation.inputs]
    return computed(operation, inputs) if isinstance(operation.op, RegionOp) else apply_multi(operation.op, *inputs)
