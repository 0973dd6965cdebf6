"""A graph as a document of plain values, and the arrays that belong to it. Nothing is evaluated."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..autodiff.custom_gradient import CustomGradient, ResultsOnly
from ..common.dtypes import name_of
from ..control_flow.call import Body
from ..graph.device import Colocation
from ..graph.graph import Graph, Operation
from ..graph.op import Op, imported_ops
from ..graph.region import Region
from ..graph.state.resource import NamedResource
from ..graph.state.variable import Variable
from ..graph.tensor import Symbol
from ..ops.random.draws import Draw
from ..ops.text.escape import NumpyFunction
from .values import SavedGraphError, ValueWriter, field_names, write_spec

FORMAT = "anabranch graph"
VERSION = 1


def describe(graph: Graph, operations: Collection[Operation] | None = None) -> tuple[dict[str, Any], list[Any]]:
    """Return a document of JSON values, and the arrays that it refers to by their numbers.

    Args:
        graph: the graph.
        operations: those of it that are described, with all that they need; None for all.

    Raises:
        SavedGraphError: an operation holds something that can't be written; the message names it and its line.
    """
    if graph.parent is not None:
        raise SavedGraphError("This is the inside of a loop or branch. Save the graph around it: graph.root.save(...).")
    writer = _GraphWriter(graph, operations)
    return writer.document, writer.arrays


def describe_for_tasks(graph: Graph) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """Describe as `describe` does, and return the variables and generators in the document's order, too.

    First values that can be computed elsewhere are described, not computed. Values that a task holds are left out, and
    so are the rules of gradients: the graph has the gradients that its steps use.
    """
    writer = _GraphWriter(graph.root, for_tasks=True)
    return writer.document, writer.arrays, list(writer.resources)


class _GraphWriter:
    """Numbers blocks (the graph, then each region), operations in them, resources and arrays."""

    def __init__(
        self, graph: Graph, operations: Collection[Operation] | None = None, *, for_tasks: bool = False
    ) -> None:
        self._for_tasks = for_tasks
        self.arrays: list[Any] = []
        self._array_numbers: dict[int, int] = {}
        self.resources: dict[Any, int] = {}
        self._colocations: dict[Colocation, int] = {}
        self._block_numbers: dict[Graph, int] = {}
        self._places: dict[Operation, int] = {}
        self._known = imported_ops()
        self._values = ValueWriter(self._tensor, self._region, self._resource, self._array)
        self._blocks: list[Any] = []
        self._block(graph, operations)
        self.document: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "blocks": self._blocks,
            "resources": [self._described(resource) for resource in self.resources],
            "colocations": [
                [held.name, held.binding, None if held.location is None else list(held.location[:2])]
                for held in self._colocations
            ],
        }
        self.document["dtypes"] = [name_of(array.dtype) for array in self.arrays]

    def _block(self, graph: Graph, kept: Collection[Operation] | None = None) -> int:
        number = self._block_numbers[graph] = len(self._blocks)
        block: dict[str, Any] = {}
        self._blocks.append(block)
        operations = [each for each in graph.operations if kept is None or each in kept]
        for place, operation in enumerate(operations):
            self._places[operation] = place
        block["operations"] = [self._operation(operation) for operation in operations]
        return number

    def _region(self, region: Region) -> int:
        known = self._block_numbers.get(region)
        if known is not None and isinstance(region, Body):  # a call of the body from inside it
            return known
        number = self._block(region)
        self._blocks[number].update(
            name=region.name,
            parameters=[self._tensor(parameter) for parameter in region.parameters],
            captures=[[self._tensor(outer), self._tensor(parameter)] for outer, parameter in region.captures],
            results=[self._tensor(result) for result in region.results],
        )
        if isinstance(region, Body):
            self._blocks[number]["calls"] = self._calls(region)
        return number

    def _calls(self, body: Body) -> dict[str, Any]:
        """Return what calls of a recursive body need of it."""
        return {
            "results": [write_spec(spec) for spec in body.result_specs or ()],
            "effects": [[self._effect_on(resource), writes] for resource, writes in body.taken_effects],
            "recorded": [self._tensor(tensor) for tensor in body.recorded],
        }

    def _effect_on(self, resource: Any) -> Any:
        return resource if isinstance(resource, str) else self._resource(resource)

    def _operation(self, operation: Operation) -> dict[str, Any]:
        cls = type(operation.op)
        try:
            if self._known.get(operation.type) is not cls:
                raise SavedGraphError(
                    f"the class {cls.__qualname__} is not the one that is registered as {operation.type!r}, so that it "
                    "would not be found again. Give each class of ops a name of its own, without a leading underscore"
                )
            fields = {name: self._field(operation.op, cls, name) for name in field_names(cls)}
        except (SavedGraphError, AttributeError) as error:
            if isinstance(error, SavedGraphError) and error.is_located:
                raise
            located = SavedGraphError(
                f"Operation {operation.name!r} ({operation.type}), defined at {operation.location}, can't be saved: "
                f"{error}."
            )
            located.is_located = True
            raise located from error
        return {
            "name": operation.name,
            "type": operation.type,
            "fields": fields,
            "inputs": [self._tensor(tensor) for tensor in operation.inputs],
            "outputs": [write_spec(tensor.spec) for tensor in operation.outputs],
            "device": operation.device,
            "near": [self._held(held) for held in operation.colocations],
            "controls": [self._places[control] for control in operation.control_inputs],
            "location": None if operation.location is None else list(operation.location[:2]),
        }

    def _field(self, op: Any, cls: type[Op], name: str) -> Any:
        value = getattr(op, name)
        if self._for_tasks:  # tasks differentiate nothing: the graph has its gradients
            if name == "gradient" and isinstance(op, NumpyFunction):
                value = None
            elif isinstance(op, CustomGradient):
                value = ResultsOnly(op.rule.results)
        return self._values.write(value, cls, name)

    def _tensor(self, tensor: Symbol) -> list[int]:
        operation = tensor.operation
        return [self._block_numbers[operation.graph], self._places[operation], tensor.index]

    def _array(self, value: Any) -> int:
        number = self._array_numbers.get(id(value))
        if number is None:
            number = self._array_numbers[id(value)] = len(self.arrays)
            self.arrays.append(value)
        return number

    def _held(self, held: Any) -> Any:
        """Return what an operation is to be with: a number, or a variable."""
        if isinstance(held, Colocation):
            return self._colocations.setdefault(held, len(self._colocations))
        return {"resource": self._resource(held)}

    def _resource(self, resource: Any) -> int:
        return self.resources.setdefault(resource, len(self.resources))

    def _described(self, resource: Any) -> dict[str, Any]:
        if isinstance(resource, NamedResource):
            described = {"name": resource.name, "device": resource.device, "definition": resource.definition()}
            return {"kind": resource.kind, **described}
        if not isinstance(resource, Variable):
            return {"kind": "generator", "name": resource.name, "state": [int(part) for part in resource.state]}
        shape = resource.shape
        described = {
            "kind": "variable",
            "name": resource.name,
            "device": resource.device,
            "shape": None if shape is None else list(shape),
            "trainable": resource.trainable,
        }
        if self._for_tasks and resource.home is not None:  # the task has the value
            return described
        first = resource.first_value if self._for_tasks else None
        if isinstance(first, Draw):
            return {**described, "first": first.describe()}
        return {**described, "value": self._array(resource.numpy())}
