"""A graph from its document and arrays: every operation as it was, with the same names, specs and places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..common.nest import is_mapping, is_sequence
from ..control_flow.call import Body
from ..graph.device import Colocation
from ..graph.graph import Graph, Operation
from ..graph.op import Effect, Op, imported_ops
from ..graph.provenance import Location
from ..graph.region import Region
from ..graph.spec import Spec
from ..graph.state.resource import NamedResource
from ..graph.state.variable import Variable
from ..graph.tensor import Symbol
from ..ops.random.draws import described_draw
from ..ops.random.keys import SeedGenerator
from ..queues.accumulators import ConditionalAccumulator, SparseConditionalAccumulator
from ..queues.queue import FIFOQueue, PaddingFIFOQueue, PriorityQueue, RandomShuffleQueue
from ..queues.replica_gradients import ReplicaGradients
from ..queues.replica_steps import ReplicaSteps
from ..queues.shared_work import SharedWork
from ..summaries.writer import SummaryWriter
from .late import late_op, late_resource
from .values import SavedGraphError, ValueReader, field_names, read_spec, restored
from .writing import FORMAT, VERSION

MakeResource = Callable[[Any, Callable[[int], Any]], Any]  # of its description, and of what gives arrays by number


def rebuild(
    document: Any, array: Callable[[int], Any], source: str, make_resource: MakeResource | None = None
) -> Graph:
    """Return the graph that a document describes.

    Args:
        document: what `describe` made.
        array: gives an array by its number.
        source: what the document comes from, for messages.
        make_resource: makes variables and generators, or finds them; by default they are new ones.

    Raises:
        SavedGraphError: it is not such a document, of a later version, damaged, or holds ops that are not known here.
    """
    if not is_mapping(document) or document.get("format") != FORMAT:
        raise SavedGraphError(f"{source} holds no saved graph. Give what graph.save or graph_to_dict has written.")
    if document["version"] > VERSION:
        raise SavedGraphError(
            f"{source} holds a graph of format version {document['version']}; this version of anabranch reads up to "
            f"{VERSION}. Load it with a newer one."
        )
    return _GraphReader(document, array, source, make_resource).graph


class _GraphReader:
    def __init__(
        self, document: Any, array: Callable[[int], Any], source: str, make_resource: MakeResource | None = None
    ) -> None:
        self._document = document
        self._source = source
        self._load_array = array
        self._known = imported_ops()
        self._graphs: dict[int, Graph] = {}
        self._parents: list[Graph] = []
        self._values = ValueReader(self._tensor, self._region, self._resource, self._array)
        if make_resource is not None:  # what it raises is not the document's fault
            self._resources = [make_resource(resource, self._array) for resource in document["resources"]]
        try:
            if make_resource is None:
                self._resources = [made_resource(resource, self._array) for resource in document["resources"]]
            self._colocations = [
                Colocation(name, None if location is None else Location(*location), binding)
                for name, binding, location in document.get("colocations", ())
            ]
            self.graph = self._graphs[0] = Graph()
            self._fill(self.graph, document["blocks"][0])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            if isinstance(error, SavedGraphError):
                raise
            raise SavedGraphError(f"{source} is damaged: {type(error).__name__}: {error}. Save it again.") from error

    def _fill(self, graph: Graph, block: Any) -> None:
        self._parents.append(graph)
        for description in block["operations"]:
            self._operation(graph, description)
        self._parents.pop()

    def _operation(self, graph: Graph, description: Any) -> None:
        op = self._definition(description)
        inputs = [self._tensor(reference) for reference in description["inputs"]]
        specs = tuple(read_spec(spec) for spec in description["outputs"])
        self._check(op, description, inputs, specs)
        location = description["location"]
        restored_operation = graph.restore(
            op,
            inputs,
            specs,
            description["name"],
            description["device"],
            tuple([graph.operations[int(place)] for place in description["controls"]]),
            None if location is None else Location(*location),
        )
        restored_operation.colocations = tuple([self._held(held) for held in description.get("near", ())])

    def _held(self, held: Any) -> Any:
        return self._colocations[held] if isinstance(held, int) else self._resource(held["resource"])

    def _definition(self, description: Any) -> Op:
        what = f"{self._source}: operation {description['name']!r} is of type {description['type']!r}"
        cls = self._known.get(description["type"]) or late_op(description["type"])
        if cls is None:
            raise SavedGraphError(
                f"{what}, which is not known here. If it is an op of your own, import its module before you load the "
                "graph; otherwise load it with a newer version of anabranch."
            )
        wanted, found = field_names(cls), description["fields"]
        unknown = [name for name in found if name not in wanted]
        if unknown:
            raise SavedGraphError(
                f"{what}, and has the attributes {', '.join(found)}, of which {cls.__qualname__} does not have "
                f"{', '.join(unknown)}. Load it with the version of the op that has them."
            )
        try:
            make: Any = cls
            return make(**{name: self._values.read(value, cls) for name, value in found.items()})
        except (TypeError, SavedGraphError) as error:
            raise SavedGraphError(f"{what}, which can't be made again from its attributes: {error}.") from error

    def _check(self, op: Op, description: Any, inputs: list[Symbol], specs: tuple[Spec, ...]) -> None:
        """Check that what the op infers now goes with what was saved."""
        inferred: Any = op.infer(*[tensor.spec for tensor in inputs])
        now: list[Spec] = list(inferred) if is_sequence(inferred) else [inferred]
        fits = len(now) == len(specs) and all(
            new.accepts(old) or old.accepts(new) for new, old in zip(now, specs, strict=True)
        )
        if not fits:
            raise SavedGraphError(
                f"{self._source}: operation {description['name']!r} ({op.type_name}) gave "
                f"{', '.join(map(str, specs))} when it was saved, and gives {', '.join(map(str, now))} here. The file "
                "is damaged, or the op has changed since."
            )

    # --- what attributes refer to ---------------------------------------------------------------------------

    def _tensor(self, reference: Any) -> Symbol:
        block: int
        place: int
        output: int
        block, place, output = reference
        operation: Operation = self._graphs[block].operations[place]
        found: Symbol = operation.outputs[output]
        return found

    def _region(self, number: int) -> Region:
        known = self._graphs.get(number)
        if isinstance(known, Body):  # a call of the body from inside it
            return known
        block = self._document["blocks"][number]
        calls = block.get("calls")
        region = Region(self._parents[-1], block["name"]) if calls is None else self._body(block["name"], calls)
        self._graphs[number] = region
        self._fill(region, block)
        region.parameters = [self._tensor(reference) for reference in block["parameters"]]
        region.captures = [(self._tensor(outer), self._tensor(inner)) for outer, inner in block["captures"]]
        region.results = [self._tensor(reference) for reference in block["results"]]
        if isinstance(region, Body) and calls is not None:
            region.passed_on = region.outer_tensors()
            region.recorded = dict.fromkeys(map(self._tensor, calls["recorded"]))
        return region

    def _body(self, name: str, calls: Any) -> Body:
        body = Body(self._parents[-1], name)
        body.result_specs = [read_spec(spec) for spec in calls["results"]]
        body.taken_effects = tuple(
            [Effect(on if isinstance(on, str) else self._resource(on), writes) for on, writes in calls["effects"]]
        )
        return body

    def _resource(self, number: int) -> Any:
        return self._resources[number]

    def _array(self, number: int) -> Any:
        array = restored(self._load_array(number), self._document["dtypes"][number])
        array.setflags(write=False)
        return array


_RESOURCES: dict[str, type[NamedResource]] = {
    cls.kind: cls
    for cls in (
        FIFOQueue,
        PaddingFIFOQueue,
        PriorityQueue,
        RandomShuffleQueue,
        ConditionalAccumulator,
        SparseConditionalAccumulator,
        ReplicaSteps,
        SharedWork,
        ReplicaGradients,
        SummaryWriter,
    )
}


def made_resource(description: Any, array: Callable[[int], Any]) -> Any:
    """Return a new variable, generator or named resource, as it was described; the last one is empty."""
    kind = description["kind"]
    cls = None if kind in ("generator", "variable") else _RESOURCES.get(kind) or late_resource(kind)
    if cls is not None:
        resource = cls.from_definition(description["name"], description["definition"])
        resource.device = description.get("device", "")
        return resource
    if kind == "generator":
        generator = SeedGenerator(0, description["name"])
        generator.state = description["state"]
        return generator
    if kind != "variable":
        raise SavedGraphError(
            f"state of the kind {kind!r} is not known here. Load it with a newer version of anabranch"
        )
    value = array(description["value"]) if "first" not in description else described_draw(description["first"])
    return made_variable(description, value)


def made_variable(description: Any, value: Any) -> Variable:
    """Return a new variable, as it was described, with a value."""
    shape = description["shape"]
    variable = Variable(value, shape, value.dtype, trainable=description["trainable"], name=description["name"])
    variable.device = description.get("device", "")
    return variable
