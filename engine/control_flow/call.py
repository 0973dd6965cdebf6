"""Recursion: a body that is called from outside once, and again from inside itself; its gradient is a recursion again.

`Recursion` holds the body and makes the first call; `Call` is inside the body, at any depth of loops, branches and
further recursions, and runs the body again. What the body captures is the same for all invocations; calls inside pass
it on, as further inputs, so that cotangents of it flow back through them.

Each call has one more output, its *frame*: the record of that invocation, in which `Recorded(inner)` finds the value
of an inner tensor. The frames of calls inside are inner tensors like others. So the gradient is a recursion over the
frame and the cotangents of the results, and where the body calls itself, it calls itself with the frame found in its
own. Nothing is recorded unless a `Recorded` operation is part of the step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from ..autodiff.backpropagate import DifferentiatesItself, backpropagate
from ..common.quick_dataclass import dataclass
from ..graph.device import VariableState
from ..graph.graph import Graph, Operation, get_default_graph
from ..graph.op import Effect, Op
from ..graph.region import Mirror, Region
from ..graph.slices import IndexedSlices
from ..graph.spec import ArraySpec, Spec, TensorSpec, kind_of
from ..graph.state.lifting import Creations
from ..graph.tensor import Symbol, Tensor
from ..ops.containers.cotangent import accumulate
from ..ops.containers.record_value import RecordSpec
from ..ops.containers.records import read_record, record_of
from ..ops.run_time_shapes import runtime_shape
from .frames import MirrorBase, from_frame
from .region_op import RegionOp, settle_variables, zeros_cotangent
from .sparse_captures import Uses, is_table, rows_of

_MOST_RETRACES = 16


class NotKnownYet(BaseException):
    """A call inside a body whose results are not known yet: they follow from what a branch without such a call gives.

    No error: it ends the tracing of a path, and passes by what handles errors.
    """

    def __init__(self, bodies: Iterable[Body]) -> None:
        super().__init__()
        self.bodies = frozenset(bodies)


class EndlessRecursionError(RecursionError):
    """A function calls itself in such a way that tracing it shows that it never returns."""


class Body(Region):
    """The body of a recursion, in one trace.

    Attributes:
        result_specs: what calls inside take for granted of the results; None while nothing is known.
        passed_on: the outer tensors that calls inside pass on; all that the body captures, once that has settled.
        taken_effects: the effects that calls inside are taken to have.
        argument_specs: what is known of the arguments of all calls.
        is_called: whether there is a call inside.
        recorded: inner tensors of whose values a gradient of higher order has made cotangents.
    """

    def __init__(self, parent: Graph, name: str, mirror: Mirror | None = None) -> None:
        super().__init__(parent, name, mirror)
        self.result_specs: list[Spec] | None = None
        self.passed_on: list[Symbol] = []
        self.taken_effects: tuple[Effect, ...] = ()
        self.argument_specs: list[Spec] = []
        self.is_called = False
        self.recorded: dict[Symbol, None] = {}
        self.outer_reads: dict[VariableState, Symbol] = {}

    def read(self, variable: VariableState) -> Symbol:
        """Read as any region does; but each trace of the body finds the same read outside, and calls pass it on."""
        known = self._reads.get(variable)
        if known is not None or variable in self.written:
            return super().read(variable)
        if variable not in self.outer_reads:
            self.outer_reads[variable] = self.parent.read(variable)
        local = self._hoisted[variable] = self._reads[variable] = self.capture(self.outer_reads[variable])
        return local

    def add_capture(self, outer: Symbol) -> Symbol:
        """Add one parameter for each outer tensor, if it is used by its own name or by that of a tensor around."""
        known = next((parameter for source, parameter in self.captures if source is outer), None)
        return super().add_capture(outer) if known is None else known

    def note_arguments(self, arguments: Sequence[Tensor]) -> None:
        """Take note of a call inside with these arguments."""
        specs = [argument.spec for argument in arguments]
        joined = [known.join(spec) for known, spec in zip(self.argument_specs, specs, strict=True)]
        self.argument_specs, self.is_called = joined, True

    def captured_in_order(self) -> None:
        """Bring the captures into the order in which calls pass them on."""
        inside = dict(self.captures)
        self.captures = [(outer, inside[outer]) for outer in self.passed_on]


class Recursion(RegionOp):
    """The first call of a recursive body. Inputs: arguments, captures. Outputs: results, and the frame."""

    no_samples: ClassVar[str] = "holds a region: test_recursion"

    def __init__(self, body: Body) -> None:
        super().__init__((body,))
        self.body = body

    def attributes(self) -> dict[str, Any]:
        return {}

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        return (*(self.body.result_specs or ()), RecordSpec())

    def backward(self, node: Operation, cotangents: list[Any], needed: list[bool]) -> list[Any]:
        return _RecursionGradient(node, self.body, cotangents, needed).build()


@dataclass(frozen=True)
class Call(DifferentiatesItself, Op):
    """A further call of the body around it. Inputs: arguments, what it captures. Outputs: results, and the frame."""

    body: Body
    no_samples: ClassVar[str] = "calls a region: test_recursion"
    view: ClassVar[bool] = True

    @property
    def called(self) -> Body:
        """The body."""
        return self.body

    def attributes(self) -> dict[str, Any]:
        return {"function": self.body.name}

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        return (*(self.body.result_specs or ()), RecordSpec())

    def effects(self) -> tuple[Effect, ...]:
        return self.body.taken_effects

    def backward(self, node: Operation, cotangents: list[Any], needed: list[bool]) -> list[Any]:
        for gradient in reversed(_differentiated.stack):
            if gradient.body is self.body:
                return gradient.call(node, cotangents, needed)
        raise LookupError(
            f"A gradient is taken inside function {self.body.name!r} through its call of itself, {node!r}, of which "
            "the body is not known yet. Take the gradient of the function's result outside of it."
        )


@dataclass(frozen=True)
class Recorded(Op):
    """The value that tensor `inner` of a recursive body had in one invocation. Input: the frame of that call."""

    inner: Symbol
    no_samples: ClassVar[str] = "takes a frame: test_recursion"
    view: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        return self.inner.spec

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        body = self.inner.graph
        assert isinstance(body, Body)
        body.recorded[self.inner] = None
        return (record_of(self.inner, dy),)


class CallMirror(MirrorBase):
    """Values of one invocation of a recursive body, whose frame is a parameter of the backward body."""

    def look_up(self, into: Region, tensor: Symbol) -> Symbol:
        return from_frame(self.frame, Recorded(tensor), tensor)


# --- building -------------------------------------------------------------------------------------------------------


class _Known:
    """The facts about a recursion so far; every trace of its body makes them wider, until they have settled."""

    def __init__(self, argument_specs: list[Spec], result_specs: list[Spec] | None) -> None:
        self.argument_specs = argument_specs
        self.result_specs = result_specs
        self.before = result_specs
        self.captured: list[Symbol] = []
        self.effects: tuple[Effect, ...] = ()
        self.outer_reads: dict[VariableState, Symbol] = {}

    def body(self, parent: Graph, name: str, mirror: Mirror | None) -> Body:
        body = Body(parent, name, mirror)
        body.result_specs, body.passed_on, body.taken_effects = self.result_specs, self.captured, self.effects
        body.argument_specs = list(self.argument_specs)
        body.outer_reads = self.outer_reads
        return body

    def settled(self, body: Body) -> bool:
        """Take in what a trace has found; return whether it was known before."""
        found = [result.spec for result in body.results]
        captured = list(dict.fromkeys(outer for outer, _ in body.captures))
        effects = tuple(body.collect_effects())
        before = (self.argument_specs, self.result_specs, set(self.captured), set(self.effects))
        self.before = self.result_specs
        if self.result_specs is None:
            self.result_specs = found
        else:
            self.result_specs = [_widened(spec, new) for spec, new in zip(self.result_specs, found, strict=True)]
        self.argument_specs, self.captured, self.effects = body.argument_specs, captured, effects
        after = (self.argument_specs, self.result_specs, set(self.captured), set(self.effects))
        if not body.is_called:
            body.passed_on, body.result_specs = captured, self.result_specs
            return True
        return before == after


def _widened(spec: Spec, found: Spec) -> Spec:
    """Return a spec that allows for `found`, too. (Numbers take the dtype of the other operand, once that is known.)"""
    if spec.dtype != found.dtype or kind_of(spec) != kind_of(found):
        return found
    return spec if spec.accepts(found) else spec.join(found)


def build_recursion(
    name: str,
    trace: Callable[[Body], Sequence[Tensor]],
    arguments: Sequence[Tensor],
    labels: Sequence[str],
    result_specs: list[Spec] | None = None,
    mirror: Mirror | None = None,
) -> Operation | None:
    """Trace a body until all that calls inside take for granted has settled, and append its first call to the graph.

    Args:
        name: the name of the function.
        trace: builds the results from the parameters of the body, in it. `call_again` makes calls inside.
        arguments: of the first call.
        labels: names of the arguments.
        result_specs: of the results, if they are known beforehand.
        mirror: where the body finds the values of another one.

    Returns:
        The operation; None if the body does not call itself and `result_specs` were not known.

    Raises:
        EndlessRecursionError: every path through the function calls it again.
    """
    graph = get_default_graph()
    known = _Known([argument.spec for argument in arguments], result_specs)
    if result_specs is None and not _find_results(known, graph, name, trace, labels):
        return None
    creations = Creations()
    for _ in range(_MOST_RETRACES):
        body = known.body(graph, name, mirror)
        with creations.replay():
            _trace(body, trace, known.argument_specs, labels)
        if known.settled(body):
            return _first_call(body, arguments)
    raise TypeError(
        f"Function {name!r} calls itself, but what it returns does not settle: the last two times it was "
        f"{_listed(known.before)} and {_listed(known.result_specs)}. Make every path return the same dtypes, with "
        "ops.cast."
    )


def _first_call(body: Body, arguments: Sequence[Tensor]) -> Operation:
    graph = get_default_graph()
    body.captured_in_order()
    op = Recursion(body)
    with graph.control_dependencies(body.settled_waits()):
        return graph.add(op, [*arguments, *op.captured_inputs()], body.name)


def _find_results(
    known: _Known, graph: Graph, name: str, trace: Callable[[Body], Sequence[Tensor]], labels: Sequence[str]
) -> bool:
    """Trace the paths that do not call the function again; return whether there are others."""
    body = known.body(graph, name, None)
    try:
        with Creations().replay():  # paths break off, so that later traces create in another order
            _trace(body, trace, known.argument_specs, labels)
    except NotKnownYet as missing:
        others = missing.bodies - {body}
        if others:
            raise NotKnownYet(others) from None
        raise EndlessRecursionError(
            f"Function {name!r} never returns: every path through it calls {name!r} again. "
            "Choose with ab.cond(...), and return a value without a call in one of its branches."
        ) from None
    known.result_specs = [result.spec for result in body.results]
    return body.is_called


def _trace(body: Body, trace: Callable[[Body], Sequence[Tensor]], specs: Sequence[Spec], labels: Sequence[str]) -> None:
    with body.as_default():
        for spec, label in zip(specs, labels, strict=True):
            body.add_parameter(spec, label)
        body.results = [body.capture(result) for result in trace(body)]
    settle_variables((body,), repeats=True)


def call_again(body: Body, arguments: Sequence[Tensor]) -> Operation:
    """Return a call of `body` from inside it.

    Raises:
        NotKnownYet: the body is traced for the first time, and its results are not known.
    """
    body.note_arguments(arguments)
    if body.result_specs is None:
        raise NotKnownYet([body])
    return get_default_graph().add(Call(body), [*arguments, *body.passed_on], body.name)


def _listed(specs: Sequence[Spec] | None) -> str:
    return ", ".join(str(spec) for spec in specs or ()) or "nothing"


# --- the gradient ---------------------------------------------------------------------------------------------------


class _Differentiated(threading.local):
    """The recursions whose backward bodies are traced now."""

    def __init__(self) -> None:
        self.stack: list[_RecursionGradient] = []


_differentiated = _Differentiated()


class _RecursionGradient:
    """Builds the backward recursion of one `Recursion`.

    Its parameters are the frame of the call that it differentiates, the cotangents of results, and that of the frame
    where it has one; its results are the cotangents of inputs. Of tables, of which the body uses nothing but rows, it
    gives rows and their positions. Which of them matter is found by tracing: calls inside may need more.
    """

    def __init__(self, node: Operation, body: Body, cotangents: list[Any], needed: list[bool]) -> None:
        self.node = node
        self.body = body
        self.cotangents = cotangents
        self.seeded = {k for k, cotangent in enumerate(cotangents) if cotangent is not None}
        self.wanted = {k for k, want in enumerate(needed) if want}
        self.inner = body.inner_inputs()
        uses, first = Uses(), len(body.parameters)
        self.tables = [k for k, tensor in enumerate(self.inner) if k >= first and is_table(tensor, uses)]
        self.backward: Body | None = None
        self._order: tuple[list[int], list[int]] = ([], [])

    def build(self) -> list[Any]:
        while True:
            seeded, wanted = self._order = sorted(self.seeded), sorted(self.wanted)
            built = self._build()
            if self._order == (sorted(self.seeded), sorted(self.wanted)):
                return self._as_cotangents(built, self.node)
            assert len(self.seeded) > len(seeded) or len(self.wanted) > len(wanted)

    def _build(self) -> Operation:
        seeded, wanted = self._order
        mirror = CallMirror(self.body, self.node.outputs[-1])
        arguments = [self.node.outputs[-1], *[self._seed(self.node, self.cotangents, k) for k in seeded]]
        labels = ["frame", *[f"cotangent_{k}" for k in seeded]]
        specs = [spec for k in wanted for spec in self._result_specs(k)]

        def trace(backward: Body) -> list[Tensor]:
            self.backward = backward
            mirror.frame = backward.parameters[0]
            return self._sweep(dict(zip(seeded, backward.parameters[1:], strict=True)))

        _differentiated.stack.append(self)
        try:
            built = build_recursion(f"{self.body.name}_grad", trace, arguments, labels, specs, mirror)
        finally:
            _differentiated.stack.pop()
        assert built is not None
        return built

    def _sweep(self, incoming: dict[int, Symbol]) -> list[Tensor]:
        """Return one invocation backward: the cotangents of its inputs."""
        body, wanted = self.body, self._order[1]
        seeds: dict[Symbol, Any] = {}
        for position, cotangent in incoming.items():
            if position < len(body.results):
                result = body.results[position]
                seeds[result] = accumulate(seeds.get(result), cotangent)
                continue
            for tensor in body.recorded:
                seeds[tensor] = accumulate(seeds.get(tensor), read_record(cotangent, tensor, tensor))
        tables = [self.inner[k] for k in self.tables]
        found = backpropagate(body, seeds, [self.inner[k] for k in wanted], sparse=tables)
        results: list[Tensor] = []
        for k in wanted:
            tensor = self.inner[k]
            if k in self.tables:
                results += rows_of(found.get(tensor), tensor)
            else:
                results.append(found[tensor] if tensor in found else zeros_cotangent(tensor))
        return results

    def call(self, node: Operation, cotangents: list[Any], needed: list[bool]) -> list[Any]:
        """Differentiate a call inside, by a call of the backward body."""
        self.seeded |= {k for k, cotangent in enumerate(cotangents) if cotangent is not None}
        self.wanted |= {k for k, want in enumerate(needed) if want}
        assert self.backward is not None
        seeds = [self._seed(node, cotangents, k) for k in self._order[0]]
        called = call_again(self.backward, [get_default_graph().capture(node.outputs[-1]), *seeds])
        return self._as_cotangents(called, node)

    def _seed(self, node: Operation, cotangents: list[Any], position: int) -> Symbol:
        cotangent = cotangents[position]
        if cotangent is None:
            cotangent = zeros_cotangent(node.outputs[position])
        return get_default_graph().capture(cotangent)

    def _result_specs(self, position: int) -> list[Spec]:
        spec = self.inner[position].spec
        if position not in self.tables:
            return [spec.with_elements(spec.element) if isinstance(spec, ArraySpec) else spec]
        rows, indices = rows_of(None, self.inner[position])
        return [TensorSpec((None, *(rows.shape or ())[1:]), rows.dtype), TensorSpec((None,), indices.dtype)]

    def _as_cotangents(self, call: Operation, node: Operation) -> list[Any]:
        """Return the results of a backward call, for the inputs of the call that it differentiates."""
        outputs = iter(call.outputs[:-1])
        cotangents: list[Any] = [None] * len(node.inputs)
        for k in self._order[1]:
            cotangents[k] = next(outputs)
            if k in self.tables:
                shape = runtime_shape(node.inputs[k])
                cotangents[k] = IndexedSlices(cotangents[k], next(outputs), shape)
        return cotangents


__all__ = [
    "Body",
    "Call",
    "CallMirror",
    "EndlessRecursionError",
    "NotKnownYet",
    "Recorded",
    "Recursion",
    "build_recursion",
    "call_again",
]
