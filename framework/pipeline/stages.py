"""`Stages`: which layers of a model are on which device."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...distribute.strategies.pipeline import Pipeline
from ...engine.graph import Graph, Operation, Placeholder, Variable, eagerly, flatten
from ...engine.graph.device import DeviceName
from ...engine.graph.scopes import device
from ...engine.place.costs import ASSUMED_ITERATIONS, CostModel
from ...engine.place.devices import list_devices, typical_device
from ...layers.core.calling import map_leaves
from ...layers.core.input_layer import InputLayer
from ...layers.core.layer import Layer
from ...layers.core.placed import placed_layers, placed_variables
from ..models.layer_graph import LayerGraph
from ..models.raw_ops import RawOp

if TYPE_CHECKING:
    from ..training.base_model import BaseModel


class Stages:
    """The stages of one model, on the devices that are declared now.

    Args:
        model: a model that has been built.
        strategy: says how many stages there are, or which.

    Raises:
        ValueError: the model can't be cut so; the message says why.

    Attributes:
        layers: the layers, and the ops between layers, of each stage.
        places: the device of each stage; empty if all are on one CPU.
    """

    def __init__(self, model: BaseModel, strategy: Pipeline) -> None:
        self._model = model
        self._tasks = strategy.tasks
        graph = model._layer_graph
        if isinstance(strategy.stages, int):
            self.layers = _cut(model, strategy.stages)
        else:
            given = [list(stage) for stage in strategy.stages]
            _check_all(model, given)
            if graph is not None:
                _add_ops(graph, given)
            self.layers = given
        self.places = _places(strategy)
        strategy.names = [[each.name for each in stage if isinstance(each, Layer)] for stage in self.layers]
        strategy.places = list(self.places)
        self._by_layer = {
            id(each): place for stage, place in zip(self.layers, self.places, strict=False) for each in stage
        }
        self._by_variable: dict[int, str] = {}
        self._variables: list[Variable] = []
        for stage, place in zip(self.layers, self.places, strict=False):
            for variable in [v for layer in stage if isinstance(layer, Layer) for v in layer.variables]:
                if id(variable) in self._by_variable:
                    continue
                if not variable.device:
                    self._by_variable[id(variable)] = place
                    self._variables.append(variable)
                elif self._tasks is not None:  # which holds it
                    self._by_variable[id(variable)] = variable.device

    @property
    def last(self) -> str | None:
        """The device of the last stage, on which losses and metrics are computed."""
        return self.places[-1] if self.places else None

    def place_of(self, variable: Variable | None) -> str | None:
        """Return the device of the stage to which a variable belongs, the last one's for others."""
        return self.last if variable is None else self._by_variable.get(id(variable), self.last)

    def _places_of_slots(self) -> list[tuple[Variable, str]]:
        """Return the optimizer's slots of variables, with the devices of these."""
        slots = [] if self._model.optimizer is None else self._model.optimizer.variables
        found: list[tuple[Variable, str]] = []
        for slot in slots:
            near = [self._by_variable[id(each)] for each in slot.colocations if id(each) in self._by_variable]
            found += [(slot, place) for place in near[:1]]
        return found

    @contextmanager
    def placed(self) -> Generator[None]:
        """Build what is called inside on the devices of its stages; what belongs to no layer on the last one."""
        if not self.places:
            yield
            return
        places = [(variable, self._by_variable[id(variable)]) for variable in self._variables]
        if self._tasks is not None:
            self._tasks.settle([*places, *self._places_of_slots()])
        with placed_variables(places), placed_layers(self._by_layer), device(self.last):
            yield


def _places(strategy: Pipeline) -> list[str]:
    """Return the device of each stage."""
    if strategy.devices is not None:
        return strategy.devices
    found = [each for each in list_devices() if each.kind != "cpu"] or list_devices("cpu")
    if len(found) == 1 and found[0].kind == "cpu":
        return []
    count, most = strategy.num_stages, min(strategy.num_stages, len(found))
    return [str(DeviceName.parse(found[stage * most // count].name)) for stage in range(count)]


# --- stages that are given ------------------------------------------------------------------------------------------


def _check_all(model: BaseModel, stages: Sequence[Sequence[Layer]]) -> None:
    """Check that each layer with weights is in a stage, itself or by a layer around it.

    Raises:
        TypeError: something in a stage is not a layer.
        ValueError: a layer of a stage is not one of the model's, or one of the model's is in no stage.
    """
    given = [layer for stage in stages for layer in stage]
    for layer in given:
        if not isinstance(layer, Layer):
            raise TypeError(f"Pipeline: a stage is a list of layers; got {layer!r} of type {type(layer).__name__}.")
    within = {id(layer) for layer in model._flatten_layers()}
    strange = [layer.name for layer in given if id(layer) not in within]
    if strange:
        raise ValueError(f"Pipeline: the layers {strange} of its stages are not in model {model.name!r}.")
    placed = {id(inner) for layer in given for inner in layer._flatten_layers()}
    around = {id(layer) for layer in model._flatten_layers() if _holds(layer, given)}
    left = [
        layer.name
        for layer in model._flatten_layers()
        if id(layer) not in placed | around and not isinstance(layer, InputLayer)
    ]
    if left:
        raise ValueError(
            f"Pipeline: the layers {left} of model {model.name!r} are in no stage. Put each of them, or a layer around "
            "it, into one of the lists."
        )


def _holds(layer: Layer, given: Sequence[object]) -> bool:
    """Test whether some of the given layers are inside a layer."""
    wanted = {id(each) for each in given}
    return any(id(inner) in wanted for inner in layer._flatten_layers())


def _add_ops(graph: LayerGraph, stages: list[list[Layer]]) -> None:
    """Put the ops between layers into the stage of what they take last."""
    stage_of = {
        id(inner): number for number, stage in enumerate(stages) for layer in stage for inner in layer._flatten_layers()
    }
    made: dict[object, int] = {}
    for node in graph.nodes:
        taken = [made.get(tensor, 0) for tensor in flatten(node.arguments) if tensor in made] if made else []
        number = stage_of.get(id(node.layer), max(taken, default=0))
        if isinstance(node.layer, RawOp) and id(node.layer) not in stage_of:
            stage_of[id(node.layer)] = number
            stages[number].append(node.layer)
        for tensor in node.output_tensors:
            made[tensor] = number


# --- cutting by cost ------------------------------------------------------------------------------------------------


def _cut(model: BaseModel, count: int) -> list[list[object]]:
    """Return the layers in the order of their calls, in stages of about equal cost."""
    graph = model._layer_graph
    if graph is None:
        raise ValueError(
            f"Pipeline(stages={count}): model {model.name!r} is of a class of its own, whose layers have no order that "
            "is known. Give the stages as lists of layers."
        )
    units = list(_units(graph, f"{model.name}/"))
    number = sum(isinstance(unit, Layer) for unit, _ in units)
    if number < count:
        raise ValueError(
            f"Pipeline(stages={count}): model {model.name!r} has {number} layers, and each stage needs one. Ask for "
            "fewer stages."
        )
    costs = _costs(model, graph, [path for _, path in units])
    bounds = _bounds(costs, [isinstance(unit, Layer) for unit, _ in units], count)
    return [[unit for unit, _ in units[first:last]] for first, last in bounds]


def _units(graph: LayerGraph, around: str) -> Iterator[tuple[object, str]]:
    """Yield layers and ops in the order of their first calls, with their paths; of models inside, their layers."""
    seen: set[int] = set()
    for node in graph.nodes:
        if isinstance(node.layer, InputLayer) or id(node.layer) in seen:
            continue
        seen.add(id(node.layer))
        inner = getattr(node.layer, "_layer_graph", None)
        path = around + node.layer.name
        found = [(node.layer, path)] if inner is None else _units(inner, f"{path}/")
        for unit, of_unit in found:
            if unit is node.layer or id(unit) not in seen:
                seen.add(id(unit))
                yield unit, of_unit


def _costs(model: BaseModel, graph: LayerGraph, paths: Sequence[str]) -> list[float]:
    """Return the seconds that layers are expected to take on a CPU in a forward pass; for comparisons alone.

    Args:
        model: the model.
        graph: of its layers.
        paths: of its layers, as operations note them while they are built.
    """
    with eagerly(), Graph().as_default() as scratch:
        made = [scratch.add(Placeholder(symbol.spec), ()).outputs[0] for symbol in graph.inputs]
        places = dict(zip(graph.inputs, made, strict=True))
        model(map_leaves(lambda leaf: places.get(leaf, leaf), graph.inputs_structure), training=True)
        by_path: dict[str, float] = {}
        _add_seconds(scratch.operations, 1.0, by_path)
    return [
        sum(seconds for found, seconds in by_path.items() if found == path or found.startswith(f"{path}/"))
        for path in paths
    ]


def _add_seconds(operations: Sequence[Operation], runs: float, by_path: dict[str, float]) -> None:
    costs, cpu = CostModel(), typical_device("cpu")
    for operation in operations:
        parts = operation.location.parts if operation.location is not None else ()
        if parts:
            seconds = runs * costs.estimate(operation, cpu)
            by_path[parts[0].path] = by_path.get(parts[0].path, 0.0) + seconds
        for region in operation.op.regions:
            _add_seconds(region.operations, runs * ASSUMED_ITERATIONS, by_path)


def _bounds(costs: Sequence[float], may_begin: Sequence[bool], count: int) -> list[tuple[int, int]]:
    """Cut a row into parts, each with something that may begin one, so that the dearest part costs least.

    >>> _bounds([1.0, 1.0, 4.0, 1.0, 1.0], [True] * 5, 3)
    [(0, 2), (2, 3), (3, 5)]
    >>> _bounds([1.0, 1.0, 1.0, 1.0], [False, True, True, False], 2)
    [(0, 2), (2, 4)]
    """
    size = len(costs)
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    # best[k][n]: the dearest of k parts of the first n, with where the last of them begins
    best: list[list[tuple[float, float, int]]] = [[(0.0, 0.0, 0)] + [(float("inf"), 0.0, 0)] * size]
    for _ in range(count):
        row: list[tuple[float, float, int]] = [(float("inf"), 0.0, 0)]
        for end in range(1, size + 1):
            row.append(
                min(
                    (
                        (max(best[-1][begin][0], part), best[-1][begin][1] + part * part, begin)
                        for begin in range(end)
                        if any(may_begin[begin:end])
                        for part in (sums[end] - sums[begin],)
                    ),
                    default=row[0],
                )
            )
        best.append(row)
    found: list[tuple[int, int]] = []
    end = size
    for row in reversed(best[1:]):
        begin = row[end][2]
        found.append((begin, end))
        end = begin
    return found[::-1]


__all__ = ["Stages"]
