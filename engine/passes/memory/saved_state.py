"""Values that a loop saves for its backward loop, and those better computed again: a cheapest cut of its body.

To have a value in the backward loop, it is either saved or computed again; the latter takes that its operation is run
again, and that all its inputs are to be had. So the choice is a cut of the body between what can't be computed again
and what the backward loop needs: it pays for moving each saved value out and back, and for each operation that is run
again. Raising the price of what is saved gives the choices between time and memory that no other one beats in both.

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization" (MLSys 2020), treat the general
problem; within one iteration, where all of it is at hand, the cut is its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...common.cached import cached_property
from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ...control_flow.call import Call, Recorded, Recursion
from ...control_flow.cond import Branch
from ...control_flow.frames import History, Saved, TripCount
from ...control_flow.while_loop import While
from ...graph.graph import Operation, Parameter, Placeholder
from ...graph.region import Region
from ...graph.search import reached
from ...graph.spec import ArraySpec, FrameSpec, Spec, TensorSpec
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ...ops.containers.tensor_arrays import ArrayEmpty, ArrayNew
from ..framework.estimates import bytes_of, flops_of, traffic_of
from ..framework.minimum_cut import Network
from ..framework.prune import all_operations
from ..loops.batches import is_heavy
from ..loops.linear import most_trips

ASSUMED_TRIPS = 1024  # of loops whose number of iterations is found only in a run: rather too many than too few
_UNIT = 1e-12  # seconds; prices are whole numbers
_NEVER_AGAIN = (Call, Parameter, Placeholder, Recorded, Recursion)


@dataclass(frozen=True)
class Choice:
    """The values that are saved of each iteration, and the operations that are run again, in program order."""

    saved: tuple[Symbol, ...]
    again: tuple[Operation, ...]


class SavedState:
    """The state that one loop saves.

    Args:
        node: the loop.
        wanted: the tensors of its body that backward loops read from it.
        kept: those that something else takes as well, so that they are saved in any case.
        readers: these backward loops.
    """

    def __init__(
        self, node: Operation, wanted: Iterable[Symbol], kept: Iterable[Symbol], readers: Iterable[Operation]
    ) -> None:
        assert isinstance(node.op, While)
        self.node = node
        self.body = node.op.body
        self.wanted = tuple(wanted)
        self.kept = frozenset(kept)
        self.readers = tuple(readers)
        self.trips = trips_of(node)
        self._captured = {parameter for _, parameter in self.body.captures}

    @cached_property
    def _operations(self) -> list[Operation]:
        """The operations of the body on which what is wanted depends, as far as they can be run again."""

        def repeatable(tensors: Iterable[Symbol]) -> list[Operation]:
            return [tensor.operation for tensor in tensors if can_run_again(tensor.operation)]

        found = reached(repeatable(self.wanted), lambda operation: repeatable(operation.inputs))
        return sorted(found, key=lambda operation: operation.index)

    def is_captured(self, tensor: Symbol) -> bool:
        """Test whether a tensor of the body stands for one outside."""
        return tensor in self._captured

    def keep_to_budget(self) -> None:
        """Note that the loop, and those that read its state, have to do with little memory."""
        for node in (self.node, *self.readers):
            assert isinstance(node.op, While)
            node.op.keeps_to_budget = True

    def all_saved(self) -> Choice:
        """Return the choice that computes nothing again."""
        return Choice(self.wanted, ())

    def bytes_of(self, choice: Choice) -> int:
        """Estimate how many bytes are saved in all iterations together."""
        return self.trips * sum([bytes_of(tensor.spec) for tensor in self.kept.union(choice.saved)])

    def choose(self, price: float) -> Choice:
        """Return the cheapest choice, if memory costs `price` times what moving it away and back would take."""
        network = Network()
        repeated = {operation: network.place() for operation in self._operations}
        known: dict[Symbol, tuple[int, int]] = {}

        def places_of(tensor: Symbol) -> tuple[int, int]:
            """Return the two places of a tensor, between which is the price of saving it."""
            if tensor not in known:
                made, there = known[tensor] = network.place(), network.place()
                if not isinstance(tensor.spec, FrameSpec):
                    network.connect(made, there, 0 if tensor in self.kept else _price_of(tensor, price))
                else:
                    network.connect(made, there)
                if tensor.operation in repeated:
                    network.connect(repeated[tensor.operation], made)
                else:
                    network.connect(network.source, made)
            return known[tensor]

        for operation, place in repeated.items():
            network.connect(network.source, place, int(seconds_of(operation) / _UNIT))
            for tensor in operation.inputs:
                if tensor not in self._captured:
                    network.connect(places_of(tensor)[1], place)
        for tensor in self.wanted:
            network.connect(places_of(tensor)[1], network.sink)
        behind = network.cut()
        saved = [tensor for tensor, (made, there) in known.items() if there in behind and made not in behind]
        again = [operation for operation, place in repeated.items() if place in behind]
        return Choice(tuple(sorted(saved, key=_position)), tuple(again))


def _price_of(tensor: Symbol, price: float) -> int:
    return max(1, int(price * bytes_of(tensor.spec) * machine_profile().swap_byte_seconds / _UNIT))


def _position(tensor: Symbol) -> tuple[int, int]:
    return tensor.operation.index, tensor.index


def can_run_again(operation: Operation) -> bool:
    """Test whether a second run gives the same values and changes nothing."""
    if isinstance(operation.op, _NEVER_AGAIN) or operation.effects:
        return False
    if any(type(tensor.spec) not in (ArraySpec, FrameSpec, TensorSpec) for tensor in operation.outputs):
        return False
    if not operation.op.regions:
        return isinstance(operation.op, History) or not _hands_on_arrays(operation, operation.inputs)
    if _hands_on_arrays(operation, operation.own_inputs if isinstance(operation.op, While) else operation.inputs):
        return False
    return not calls_itself(operation)


def calls_itself(operation: Operation) -> bool:
    """Test whether recursive functions are called inside.

    The records of their calls depend on each other in the whole step.
    """
    return any(isinstance(inner.op, (Call, Recorded, Recursion)) for inner in all_operations([operation]))


def _hands_on_arrays(operation: Operation, inputs: Sequence[Symbol]) -> bool:
    """Test whether it may write into an array that was there before: a second write to the same place takes a copy."""
    if not any(isinstance(tensor.spec, ArraySpec) for tensor in operation.outputs):
        return False
    arrays = [tensor.operation.op for tensor in inputs if isinstance(tensor.spec, ArraySpec)]
    return any(not isinstance(op, (ArrayEmpty, ArrayNew)) for op in arrays)


def seconds_of(operation: Operation) -> float:
    """Estimate how long a run takes."""
    op = operation.op
    if isinstance(op, While):
        return trips_of(operation) * sum(_seconds_of_region(region) for region in op.regions)
    if isinstance(op, Branch):
        return max(_seconds_of_region(region) for region in op.regions)
    if op.view or isinstance(op, (Constant, History, Parameter, Saved, TripCount)):
        return 0.0
    profile = machine_profile()
    computing, moving = flops_of(operation) * profile.flop_seconds, traffic_of(operation) * profile.byte_seconds
    return profile.call_seconds + max(computing, moving)


def _seconds_of_region(region: Region) -> float:
    return sum([seconds_of(operation) for operation in region.operations])


def trips_of(node: Operation) -> int:
    """Return the most iterations that a loop makes, by the counters in its condition; a guess if it has none."""
    known = most_trips(node)
    return ASSUMED_TRIPS if known is None else known


def bytes_gathered(node: Operation) -> int:
    """Estimate how many more bytes loop fission would take: it gathers the operands and results of products."""
    assert isinstance(node.op, While)
    products = [operation for operation in node.op.body.operations if is_heavy(operation)]
    captured = {parameter for _, parameter in node.op.body.captures}
    tensors = {t for product in products for t in (*product.inputs, *product.outputs) if t not in captured}
    return trips_of(node) * sum([bytes_of(tensor.spec) for tensor in tensors])


def static_bytes(spec: Spec) -> int:
    """Return the bytes of a value whose shape is known, else 0."""
    return bytes_of(spec) if isinstance(spec, TensorSpec) and spec.is_static else 0
