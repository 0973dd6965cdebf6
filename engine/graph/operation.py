"""`Operation`: a node of a graph; and the ops of values that come from outside of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .op import Cost, Effect, Op
from .provenance import Location
from .spec import Spec
from .tensor import Symbol

if TYPE_CHECKING:
    from .graph import Graph

OpKind = TypeVar("OpKind", bound=Op)


class Operation:
    """A node: an op definition applied to input tensors, with a name, a device and the line that built it.

    >>> import anabranch as ab
    >>> x = ab.placeholder((3,), "float32")
    >>> operation = ab.ops.exp(x).operation
    >>> operation.type, operation.inputs == (x,)
    ('exp', True)
    """

    __slots__ = (
        "__weakref__",
        "colocations",
        "control_inputs",
        "device",
        "effects",
        "graph",
        "index",
        "inputs",
        "iterations",
        "location",
        "name",
        "op",
        "outputs",
    )

    def __init__(
        self,
        graph: Graph,
        op: Op,
        inputs: tuple[Symbol, ...],
        specs: tuple[Spec, ...],
        name: str,
        device: str,
        control_inputs: tuple[Operation, ...],
        location: Location | None,
    ) -> None:
        self.graph = graph
        self.op = op
        self.inputs = inputs
        self.name = name
        self.device = device
        self.colocations: tuple[Any, ...] = ()
        self.iterations: tuple[tuple[str, int], ...] = ()  # of unrolled loops, innermost first
        self.control_inputs = control_inputs
        effects = op.effects()
        self.effects: tuple[Effect, ...] = tuple(effects) if effects else ()
        self.index = -1
        self.location = location
        if len(specs) == 1:
            self.outputs: tuple[Symbol, ...] = (Symbol(self, 0, specs[0]),)
        else:
            self.outputs = tuple([Symbol(self, position, spec) for position, spec in enumerate(specs)])

    @property
    def type(self) -> str:
        return self.op.type_name

    def needs(self, position: int) -> bool:
        """Test whether `Op.grad` has to give the cotangent of an input: always, as what nobody uses is not run."""
        return True

    @property
    def writes(self) -> bool:
        """Test whether a run changes something outside the graph."""
        return bool(self.effects) and any(effect.writes for effect in self.effects)

    @property
    def own_inputs(self) -> tuple[Symbol, ...]:
        """The inputs that no region captured: they come first."""
        return self.inputs[: len(self.inputs) - sum(len(region.captures) for region in self.op.regions)]

    def captured_at(self, position: int) -> tuple[int, Symbol] | None:
        """Return the number of the region that captured input `position`, and its parameter; None for the others."""
        start = len(self.own_inputs)
        for number, region in enumerate(self.op.regions):
            if start <= position < start + len(region.captures):
                return number, region.captures[position - start][1]
            start += len(region.captures)
        return None

    def __repr__(self) -> str:
        return f"<Operation {self.name} ({self.type}) defined at {self.location}>"


def op_of(operation: Operation, kind: type[OpKind] | tuple[type[OpKind], ...]) -> OpKind:
    """Return the op of an operation of which it is known to be of a class, or of one of several."""
    op = operation.op
    assert isinstance(op, kind)
    return op


class Parameter(Op):
    """An input of a region: a loop variable or a captured value."""

    no_samples: ClassVar[str] = "is given its value: test_session"
    cost: ClassVar[Cost] = Cost.NOTHING

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def infer(self, *inputs: Any) -> Spec:
        return self.spec


class Placeholder(Op):
    """A value that the caller feeds."""

    no_samples: ClassVar[str] = "is given its value: test_session"
    cost: ClassVar[Cost] = Cost.NOTHING

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def infer(self, *inputs: Any) -> Spec:
        return self.spec
