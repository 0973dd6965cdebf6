"""`Staged`: a traced computation that runs on values as one op, with a derivative of any order.

A function, a recurrent layer, a `vectorized_map` over values is traced into a graph of its own and run there. For tapes
that record it is one op: its inputs are what was fed, the variables' values, and what was drawn or read in the course
of the run. Its gradient is built in that graph by `gradients`, and is again such an op.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ..autodiff.gradients import gradients
from ..common.nest import flatten, pack_as
from ..graph.context import graph_context, in_explicit_graph
from ..graph.graph import Graph, Operation, Placeholder
from ..graph.op import Op
from ..graph.slices import IndexedSlices
from ..graph.spec import TensorSpec
from ..graph.state.variable import Variable
from ..graph.state.variable_ops import ReadVariable
from ..graph.tensor import Symbol, Tensor
from ..graph.value import Value
from ..ops.base import convert_to_tensor
from ..ops.entrance import symbol_in
from ..ops.immediate import asked_device, value_of
from ..runtime.interpreter import Interpreter
from .programs import make_variants

Runner = Callable[..., Sequence[Any]]  # of arrays


def is_recording() -> bool:
    """Test whether a tape records what this thread computes."""
    return bool(graph_context.tapes)


class TraceGraph(Graph):
    """A graph into which a computation is traced.

    A value that is captured is a constant, unless a tape has recorded how it was computed: then it is fed.

    Attributes:
        fed: the captured values that are fed, with the placeholders that stand for them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_trace = True
        self.fed: list[tuple[Value, Symbol]] = []

    def feed_of(self, value: Value) -> Symbol | None:
        known = next((symbol for captured, symbol in self.fed if captured is value), None)
        if known is None and any(tape.has(value) for tape in graph_context.tapes):
            with self.control_dependencies(None), self.device(None):
                known = self.add(Placeholder(value.spec), (), "captured").outputs[0]
            self.fed.append((value, known))
        return known


class Staged(Op):
    """A computation of a graph as one op: from `inputs`, which are fed, to `outputs`.

    Args:
        graph: the graph that holds it.
        inputs: what it may be differentiated by: symbols of the graph, and variables that are read once.
        feeds: the symbols that are fed with them.
        outputs: symbols of the graph.
        at_once: whether it is run by the interpreter, operation by operation; else it is compiled.
    """

    no_samples: ClassVar[str] = "holds a graph: test_staged"

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Symbol | Variable],
        feeds: Sequence[Symbol],
        outputs: Sequence[Symbol],
        at_once: bool = False,
    ) -> None:
        self.graph = graph
        self.symbols = list(inputs)
        self.feeds = list(feeds)
        self.outputs = list(outputs)
        self.at_once = at_once
        self._runner: Runner | None = None
        self._derived: dict[Any, tuple[Staged, list[Any]]] = {}

    def infer(self, *inputs: Any) -> Any:
        return tuple([output.spec for output in self.outputs])

    def run(self, xp: Any, *inputs: Any) -> Any:
        if self._runner is None:
            self._runner = runner(self.graph, self.outputs, self.feeds, self.at_once)
        return tuple(self._runner(*inputs))

    def on_values(self, inputs: Sequence[Value]) -> list[Value]:
        """Return the outputs for values, noted by the tapes that record."""
        found = self.run(None, *[value.array for value in inputs])
        outputs = [value_of(item, symbol.spec) for item, symbol in zip(found, self.outputs, strict=True)]
        self.note(inputs, outputs)
        return outputs

    def note(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Notify the tapes that record of a run."""
        for tape in graph_context.tapes:
            tape.record(self, inputs, outputs)

    def grad(self, node: Any, *cotangents: Tensor | None) -> Sequence[Any]:
        needed = getattr(node, "needed", None) or [tensor.spec.differentiable for tensor in node.inputs]
        is_given = tuple([cotangent is not None for cotangent in cotangents])
        key = (is_given, tuple(needed))
        known = self._derived.get(key)
        if known is None:
            known = self._derived[key] = self._derive(is_given, needed)
        derived, results = known
        given: list[Any] = [cotangent for cotangent in cotangents if cotangent is not None]
        values = iter(derived.on_values([*node.inputs, *given]))
        return [_filled(result, values) for result in results]

    def _derive(self, is_given: Sequence[bool], needed: Sequence[bool]) -> tuple[Staged, list[Any]]:
        """Derive the derivative as an op, and for each input its cotangent, from the derivative's outputs; or None."""
        ys = [output for output, given in zip(self.outputs, is_given, strict=True) if given]
        with self.graph.as_default():
            seeds = [self.graph.add(Placeholder(y.spec), (), "cotangent").outputs[0] for y in ys]
            xs = [x for x, wanted in zip(self.symbols, needed, strict=True) if wanted]
            moving = [y for y in ys if y.spec.differentiable]
            found = iter(gradients(moving, xs, [s for y, s in zip(ys, seeds, strict=True) if y.spec.differentiable]))
        results = [next(found) if wanted else None for wanted in needed]
        leaves: list[Any] = [leaf for result in results for leaf in flatten(result)]
        captured: list[Symbol] = [self.graph.capture(convert_to_tensor(leaf)) for leaf in leaves]
        inputs, feeds = [*self.symbols, *seeds], [*self.feeds, *seeds]
        return Staged(self.graph, inputs, feeds, captured, self.at_once), results


def _filled(result: Any, values: Any) -> Any:
    """Return a cotangent with values in the places of the symbols."""
    if result is None:
        return None
    if isinstance(result, IndexedSlices):
        return IndexedSlices(next(values), next(values), next(values))
    return next(values)


def runner(graph: Graph, outputs: Sequence[Any], feeds: Sequence[Symbol], at_once: bool) -> Runner:
    """Return a function that computes `outputs` of arrays: compiled for their shapes, or operation by operation."""
    if at_once:
        return lambda *arrays: Interpreter().run(graph, outputs, dict(zip(feeds, arrays, strict=True)))
    variants = make_variants(graph, outputs, feeds)
    return lambda *arrays: variants.get(arrays)(*arrays)


class Recording:
    """A traced computation as tapes see it: what has to be known to compute its gradient later.

    Args:
        graph: the trace.
        feeds: its placeholders.
        results: what it returns, without what is not a tensor.
        effects: the operations that run for their effects.
        at_once: see `Staged`.

    Attributes:
        is_possible: whether its gradient can be computed later. It can't where loops or branches have effects, which
            the gradient would repeat.
    """

    def __init__(
        self, graph: TraceGraph, feeds: Sequence[Symbol], results: Sequence[Symbol], effects: Sequence[Operation],
        at_once: bool = False,
    ) -> None:  # fmt: skip
        self._feeds, self._results = list(feeds), list(results)
        self._reads: dict[Variable, list[Symbol]] = {}  # of values from before the run
        self._noted: dict[Symbol, Variable | None] = {}  # what is found in the run; of which variable, if it is read
        self.is_possible = True
        self._captured = [symbol for _, symbol in graph.fed]
        self._values = [value for value, _ in graph.fed]
        written: set[Any] = set()
        for operation in list(graph.operations):
            self._look_at(operation, written)
            written.update([effect.resource for effect in operation.effects if effect.writes])
        # By a variable that is read once the gradient may be one by rows.
        whole = [
            variable if len(symbols) == 1 and variable not in written else symbol
            for variable, symbols in self._reads.items()
            for symbol in symbols
        ]
        read = [symbol for symbols in self._reads.values() for symbol in symbols]
        fed = [*self._feeds, *self._captured]
        self._op = Staged(graph, [*fed, *whole, *self._noted], [*fed, *read, *self._noted], self._results, at_once)
        self._run = runner(graph, [*self._results, *self._noted, *effects], fed, at_once)

    def _look_at(self, operation: Operation, written: set[Any]) -> None:
        op = operation.op
        if isinstance(op, ReadVariable) and op.variable in written:
            self._noted[operation.outputs[0]] = op.variable
        elif isinstance(op, ReadVariable):
            self._reads.setdefault(op.variable, []).append(operation.outputs[0])
        elif op.regions or op.called is not None:
            self.is_possible &= not operation.writes
        elif operation.effects:
            self._noted |= {output: None for output in operation.outputs if isinstance(output.spec, TensorSpec)}

    def on_values(self, values: Sequence[Value]) -> list[Value]:
        """Return the results for values, noted by the tapes that record.

        Raises:
            RuntimeError: a tape records, and the gradient can't be computed later.
        """
        if not self.is_possible and graph_context.tapes:
            raise RuntimeError(
                f"A tape can't record {self._op.graph.traced}: it has effects in loops or branches, which the gradient "
                "would repeat. Compute it in an ab.function with the tape, or outside of the tape; or use ops.map, "
                "each of whose steps a tape records."
            )
        before: list[Tensor] = [variable.value for variable, symbols in self._reads.items() for _ in symbols]
        fed = [*values, *self._values]
        found = self._run(*[value.array for value in fed])
        made = [value_of(item, s.spec) for item, s in zip(found, [*self._results, *self._noted], strict=False)]
        results, noted = made[: len(self._results)], made[len(self._results) :]
        for variable, value in zip(self._noted.values(), noted, strict=True):
            for tape in graph_context.tapes if variable is not None else ():
                tape.record_read(variable, value)
        self._op.note([*fed, *before, *noted], results)
        return results


def staged(function: Callable[..., Any], *args: Any, compiled: bool = False) -> Any:
    """Compute ``function(*args)`` on values, traced into a graph and computed there.

    For functions of the engine that work on graphs. Every value among `args`, and those that `function` uses from
    around it, may be differentiated by.

    Args:
        function: of tensors, in the structure of `args`.
        *args: values and structures of them, and other arguments.
        compiled: compile the graph, which pays where it has long loops; else compute it operation by operation.
    """
    asked_device(f"Function {getattr(function, '__name__', 'function')!r}")
    graph = TraceGraph()
    leaves = flatten(args)
    with graph.as_default():
        feeds = [graph.add(Placeholder(leaf.spec), (), "value").outputs[0] for leaf in leaves if type(leaf) is Value]
        remaining = iter(feeds)
        result = function(*pack_as(args, [next(remaining) if type(leaf) is Value else leaf for leaf in leaves]))
        fetches = [graph.capture(convert_to_tensor(getattr(leaf, "flow", leaf))) for leaf in flatten(result)]
    graph.traced = f"function {getattr(function, '__name__', 'function')!r}"
    effects = [operation for operation in graph.operations if operation.writes]
    values = [leaf for leaf in leaves if type(leaf) is Value]
    found = Recording(graph, feeds, fetches, effects, at_once=not compiled).on_values(values)
    return pack_as(result, found)


def compiled_on_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, which is traced and compiled where it is called on values, for it has loops."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if in_explicit_graph() or symbol_in([args, kwargs]) is not None:
            return function(*args, **kwargs)
        names = list(kwargs)
        return staged(
            lambda *given: function(*given[: len(args)], **dict(zip(names, given[len(args) :], strict=True))),
            *args,
            *kwargs.values(),
            compiled=True,
        )

    return call


__all__ = ["Recording", "Staged", "TraceGraph", "compiled_on_values", "is_recording", "runner", "staged"]
