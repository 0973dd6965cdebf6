"""`GraphExporter`: walks over a graph of the engine; loops and branches become graphs inside of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ....engine.common.identity import is_among
from ....engine.control_flow.while_loop import While
from ....engine.graph import Graph, Region
from ....engine.graph.graph import Operation
from ....engine.graph.op import OUTSIDE_WORLD
from ....engine.graph.spec import ArraySpec, FrameSpec, Spec, StoreSpec, TensorSpec
from ....engine.graph.state.variable_ops import ReadVariable
from ....engine.graph.tensor import Symbol
from ....engine.ops.base import Constant
from ....engine.passes.loops.loop_sizes import LoopSizes, dims_of
from ..errors import OnnxError
from ..protos import element_type
from .arrays import Dense, Fresh, as_dense, as_sequence, is_static
from .arrays import Sequence as SequenceArray
from .composites import Composite, find_composites
from .mathematics.fourier import COMPLEX_RULES, Complex, constant_parts
from .records import LoopRecord, Record, asked_of
from .recurrent import as_operator
from .refused import reason_for
from .registry import RULES, exports, op_of
from .writer import BOOL, LONG, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnx import GraphProto, NodeProto, ValueInfoProto

    from ....engine.graph import Variable
    from .arrays import Array


Held: TypeAlias = "str | Array | Record"  # what stands for a value: the name of a tensor, an array, or a record


_NO_COMPLEX = "it takes complex numbers, of which ONNX has none. Give it ops.real and ops.imag"


class GraphExporter(Writer):
    """Writes what outputs need, operation by operation, in program order.

    Attributes:
        values: by symbol the name of its value, or the `Array` that a TensorArray is.
        reads: by variable what stands for its value, where it is not the initialiser.
        needed: the operations of the graph that is being written on which what is wanted of it depends.
        sizes: which sizes that are not known are the same in all iterations of a loop.
    """

    def __init__(self, opset: int) -> None:
        super().__init__(opset)
        self.values: dict[Symbol, Any] = {}
        self.reads: dict[Variable, str] = {}
        self.needed: set[Operation] = set()
        self.sizes = LoopSizes()
        self._initial: dict[Variable, str] = {}
        self._composites: dict[Operation, Composite] = {}

    def run(self, graph: Graph, wanted: Iterable[Symbol]) -> None:
        """Append the operations of a graph, or of the inside of a loop or branch, that give the values of `wanted`."""
        wanted = list(wanted)
        self._composites |= find_composites(graph.operations, wanted, self.opset)
        roots = [symbol.operation for symbol in wanted]
        if isinstance(graph, Region):
            roots += [operation for operation in graph.operations if _acts(operation)]
        needed: set[Operation] = set()
        while roots:
            operation = roots.pop()
            if operation not in needed and operation.graph is graph:
                needed.add(operation)
                roots += [symbol.operation for symbol in self._inputs(operation)]
        before, self.needed = self.needed, needed
        for operation in graph.operations:
            known = bool(operation.outputs) and all(symbol in self.values for symbol in operation.outputs)
            if operation in needed and not known:
                self._write(operation)
        self.needed = before

    def _inputs(self, operation: Operation) -> Sequence[Symbol]:
        """Return the tensors from which an operation is written: its inputs, or those of the composite that it ends."""
        composite = self._composites.get(operation)
        return operation.inputs if composite is None else composite.inputs

    def _write(self, operation: Operation) -> None:
        before, self.label = self.label, operation.name
        try:
            results = self._written(operation)
        except OnnxError:
            raise
        except (ValueError, KeyError, AttributeError, NotImplementedError) as error:
            raise refusal(operation, str(error)) from error
        finally:
            self.label = before
        given = list(results) if isinstance(results, (list, tuple)) else [results]
        for symbol, value in zip(operation.outputs, given, strict=False):
            self.values[symbol] = value

    def _written(self, operation: Operation) -> object:
        op = operation.op
        if isinstance(op, Constant):
            return constant_parts(self, op.value) if op.value.dtype.kind == "c" else self.constant(op.value)
        if isinstance(op, ReadVariable):
            return self.variable(op.variable, operation.name)
        composite, rule = self._composites.get(operation), RULES.get(operation.type)
        if composite is None and (rule is None or rule.lowest > self.opset):
            raise refusal(operation, reason_for(type(op)) if rule is None else f"it needs opset {rule.lowest}")
        inputs = [self.values[symbol] for symbol in self._inputs(operation)]
        if any(isinstance(each, Complex) for each in inputs):
            write = COMPLEX_RULES.get(operation.type)
            if write is None:
                raise refusal(operation, _NO_COMPLEX)
            return write(self, operation, *inputs)
        if composite is not None:
            return composite.write(self, *inputs)
        assert rule is not None
        return rule.write(self, operation, *inputs)

    def variable(self, variable: Variable, name: str) -> str:
        """Return what stands for a variable: an input of the model, or an initialiser with its value."""
        if variable in self.reads:
            return self.reads[variable]
        known = self._initial.get(variable)
        if known is None:
            value = np.asarray(variable.numpy())
            made = self.new_name(name.removesuffix("/read"))
            element_type(value.dtype)
            self.initializers[made], self.dtypes[made] = value, value.dtype
            self.weights.add(made)
            known = self._initial[variable] = made
        return known

    # --- graphs inside of nodes -----------------------------------------------------------------------------

    def inline(self, region: Region, arguments: Sequence[Held]) -> list[Any]:
        """Append the inside of a loop or branch to the graph that is being written; return its results."""
        self.bind(region, arguments)
        self.run(region, region.results)
        return [self.values[result] for result in region.results]

    def bind(self, region: Region, arguments: Sequence[Held]) -> None:
        """Give the parameters of a region their values, and forget what it computed where it was written before."""
        for symbol in [symbol for operation in region.operations for symbol in operation.outputs]:
            self.values.pop(symbol, None)
        for parameter, value in zip(region.parameters, arguments, strict=True):
            self.values[parameter] = value
        for outer, parameter in region.captures:
            self.values[parameter] = self.values[outer]


def refusal(operation: Operation, reason: str) -> OnnxError:
    """Return the error for an operation that can't be written."""
    return OnnxError(
        f"Operation {operation.name!r} ({operation.type}), defined at {operation.location}, can't be exported to "
        f"ONNX: {reason}."
    )


def _acts(operation: Operation) -> bool:
    """Test whether an operation inside a loop or branch runs though nothing takes its result; checks are left out."""
    return any(effect.writes and effect.resource is not OUTSIDE_WORLD for effect in operation.effects) or (
        operation.type == "numpy_function"
    )


def _info_of(w: Writer, name: str, spec: Spec, leading: Sequence[int | None] = ()) -> ValueInfoProto:
    """Return a ValueInfoProto; of an array's elements in `leading` axes more."""
    shape = None if spec.shape is None else [*leading, *spec.shape]
    return w.info(name, shape)


# --- branches -------------------------------------------------------------------------------------------------------


@exports("cond")
def _cond(w: GraphExporter, node: Operation, choice: str, *captures: Held) -> list[Held]:
    for region in node.op.regions:
        for outer, parameter in region.captures:
            w.values[parameter] = w.values[outer]
    inner, _ = asked_of(w, node)
    sides = [partial(_inside, w, region, inner) for region in node.op.regions]
    results = [symbol.spec for symbol in node.outputs if not isinstance(symbol.spec, FrameSpec)]
    specs = [*results, *[symbol.spec for symbol in inner]]
    if w.dtypes[choice] == BOOL:
        found = _branches(w, specs, choice, sides)
    else:
        found = _switch(w, specs, choice, sides, 0)
    return [*found[: len(results)], Record(dict(zip(inner, found[len(results) :], strict=True)))]


Side: TypeAlias = "Callable[[], list[Held | None]]"  # appends the nodes of a branch; None is what another branch has


def _inside(w: GraphExporter, region: Region, inner: Sequence[Symbol]) -> list[Held | None]:
    """Append the inside of a branch; return its results and, of the tensors of a record, those that are its own."""
    own = {symbol for symbol in inner if symbol.operation.graph is region}
    w.bind(region, [])
    w.run(region, [*region.results, *own])
    recorded = [w.values[symbol] if symbol in own else None for symbol in inner]
    return [*[w.values[result] for result in region.results], *recorded]


def _switch(w: GraphExporter, specs: Sequence[Spec], choice: str, sides: list[Side], number: int) -> list[Any]:
    """Write a choice of one of several branches: nodes inside of nodes."""
    if len(sides) == 1:
        return sides[0]()
    first = w.compare("LessOrEqual", choice, w.like(number, choice))
    rest = sides[1] if len(sides) == 2 else lambda: _switch(w, specs, choice, sides[1:], number + 1)
    return _branches(w, specs, first, [sides[0], rest])


def _branches(w: GraphExporter, specs: Sequence[Spec], choice: str, sides: Sequence[Side]) -> list[Held]:
    bodies: list[list[NodeProto]] = []
    found: list[list[Held | None]] = []
    for side in sides:
        with w.subgraph() as nodes:
            found.append(side())
        bodies.append(nodes)
    kinds = [_common_kind(column, spec) for column, spec in zip(zip(*found, strict=True), specs, strict=True)]
    graphs: list[GraphProto] = []
    names: list[str] = []
    for nodes, results in zip(bodies, found, strict=True):
        before, w.nodes = w.nodes, nodes
        with _scope(w):
            names = [_as_kind(w, value, kind, spec) for value, kind, spec in zip(results, kinds, specs, strict=True)]
            taken: set[str] = set()
            names = [w.own(nodes, name, taken) for name in names]
        w.nodes = before
        infos = [_kind_info(w, name, kind, spec) for name, kind, spec in zip(names, kinds, specs, strict=True)]
        graphs.append(w.graph_proto(nodes, "branch", [], infos))
    if not names:
        return []
    dtypes = [w.dtypes[name] for name in names]
    outputs = w.add_many("If", choice, dtypes=dtypes, then_branch=graphs[0], else_branch=graphs[1])
    return [_of_kind(name, kind) for name, kind in zip(outputs, kinds, strict=True)]


class _scope:  # noqa: N801
    """Memos of what is appended inside of the block end with it."""

    def __init__(self, w: Writer) -> None:
        self.w = w

    def __enter__(self) -> None:
        self.w._memos.append({})

    def __exit__(self, *exc: object) -> None:
        self.w._memos.pop()


def _common_kind(values: Sequence[Held | None], spec: object) -> type | None:
    """Return how a value goes through a branch or loop: as a tensor (None), or as an array of one of two kinds."""
    if isinstance(spec, StoreSpec) or not isinstance(spec, (TensorSpec, ArraySpec)):
        raise ValueError("TensorStores and records have no counterpart in ONNX")
    if any(isinstance(value, Complex) for value in values):
        raise ValueError("loops and branches give no complex numbers in ONNX. Let them give ops.real and ops.imag")
    if not isinstance(spec, ArraySpec):
        return None
    if any(isinstance(value, SequenceArray) for value in values):
        return SequenceArray
    fresh = [value for value in values if isinstance(value, Fresh)]
    return SequenceArray if fresh and not is_static(spec.element) else Dense


def _as_kind(w: Writer, value: Any, kind: type | None, spec: Any) -> str:
    if value is None:
        return _missing(w, kind, spec)
    if kind is None:
        return value
    return as_dense(w, value, spec.element) if kind is Dense else as_sequence(w, value)


def _missing(w: Writer, kind: type | None, spec: Any) -> str:
    """Return zeros for a value that only another branch has; sizes that are not known are 0."""
    if kind is SequenceArray:
        return w.empty_sequence(spec.dtype)
    shape = (0,) if spec.shape is None else spec.shape
    if kind is Dense:
        shape = (0, *(spec.element.shape or ()))
    return w.zeros(w.ints(*[dim or 0 for dim in shape]), spec.dtype)


def _kind_info(w: Writer, name: str, kind: type | None, spec: Any) -> ValueInfoProto:
    if kind is None:
        return _info_of(w, name, spec)
    return _info_of(w, name, spec.element, (None,)) if kind is Dense else w.sequence_info(name)


def _of_kind(name: str, kind: type | None) -> Held:
    return name if kind is None else kind(name)


# --- loops ----------------------------------------------------------------------------------------------------------


@exports("while")
def _while(w: GraphExporter, node: Operation, *inputs: Held) -> list[Held]:
    loop = LoopExport(w, node, list(inputs))
    found = as_operator(loop) if not loop.record.inner else None
    return loop.write() if found is None else found


# What takes all elements of an array at once, and fails where their shapes differ.
_STACKING = {"array_stack", "array_size", "array_gather", "array_window"}


class LoopExport:
    """Writes one loop.

    A variable is carried, or is the same in all iterations, or is the count, which follows from the number of the
    iteration, or is an array written in order, which becomes a scan output, or a sequence that grows if its elements
    may differ in shape.
    """

    def __init__(self, w: GraphExporter, node: Operation, inputs: list[Any]) -> None:
        op = op_of(node, While)
        self.w, self.node, self.op = w, node, op
        self.body, self.condition = op.body, op.condition
        self.inits = inputs[: op.carried]
        for region in (self.condition, self.body):
            for outer, parameter in region.captures:
                w.values[parameter] = w.values[outer]
        w.sizes.look_at(node)
        self.uses = self._uses()
        self.counter, self.limit = self._counted()
        self.same = [k for k, (p, r) in enumerate(zip(self.body.parameters, self.body.results, strict=True)) if p is r]
        self.record = LoopRecord(w, self)
        in_order = [k for k in range(op.carried) if k not in self.same and self._is_in_order(k)]
        self.scanned = [k for k in in_order if self._is_even(k)]
        self.appended = [k for k in in_order if k not in self.scanned]
        rest = {*self.same, *self.scanned} | ({self.counter} if self.limit is not None else set())
        self.carried = [k for k in range(op.carried) if k not in rest]

    def _uses(self) -> dict[Symbol, list[Operation]]:
        found: dict[Symbol, list[Operation]] = {}
        for operation in [*self.body.operations, *self.condition.operations]:
            for symbol in operation.inputs:
                found.setdefault(symbol, []).append(operation)
        return found

    def _counted(self) -> tuple[int | None, Symbol | None]:
        """Return the number of the variable that counts from 0 in ones, and what it is to stay below if that is all."""
        counter = next((k for k in range(self.op.carried) if self._counts(k)), None)
        test = self.condition.results[0].operation
        if counter is None or test.type != "less" or test.inputs[0] is not self.condition.parameters[counter]:
            return counter, None
        limit = test.inputs[1]
        outer = {parameter: symbol for symbol, parameter in self.condition.captures}
        if limit in outer:
            return counter, outer[limit]
        return counter, limit if isinstance(limit.operation.op, Constant) else None

    def _counts(self, k: int) -> bool:
        parameter, step = self.body.parameters[k], self.body.results[k].operation
        if step.type != "add" or not is_among(parameter, step.inputs):
            return False
        other = step.inputs[1] if step.inputs[0] is parameter else step.inputs[0]
        start = self.w.known(self.inits[k]) if isinstance(self.inits[k], str) else None
        one = other.operation.op
        return (
            start is not None
            and start.shape == ()
            and start.dtype.kind == "i"
            and int(start) == 0
            and isinstance(one, Constant)
            and int(one.value) == 1
        )

    def _is_even(self, k: int) -> bool:
        """Test whether all elements of an array have one shape: it can be seen, or they are stacked afterwards."""
        write = self.body.results[k].operation
        if self.w.sizes.is_even(write.inputs[2], self.body):
            return True
        final = self.node.outputs[k]
        users = [each for each in self.node.graph.operations if is_among(final, each.inputs)]
        return bool(users) and all(user.type in _STACKING for user in users)

    def _is_in_order(self, k: int) -> bool:
        """Test whether a variable is a new array, of which each iteration writes its own element and reads none."""
        parameter, result = self.body.parameters[k], self.body.results[k]
        write = result.operation
        return (
            isinstance(self.inits[k], Fresh)
            and self.counter is not None
            and write.type == "array_write"
            and write.inputs[0] is parameter
            and write.inputs[1] is self.body.parameters[self.counter]
            and self.uses.get(parameter) == [write]
            and self.condition.parameters[k] not in self.uses
            and result not in self.uses
            and not {parameter, result} & {*self.record.inner}
            and sum(each is result for each in self.body.results) == 1
        )

    def write(self) -> list[Held]:
        w, specs = self.w, [parameter.spec for parameter in self.body.parameters]
        self.kinds = {k: self.kinds_of(k) for k in self.carried}
        first = [*[self._first(k, specs[k]) for k in self.carried], *self.record.first()]
        trips, starts = self._start()
        with w.subgraph() as nodes:
            iteration, goes_on = w.new_name("iteration"), w.new_name("goes_on")
            w.dtypes[iteration], w.dtypes[goes_on] = np.dtype("int64"), BOOL
            names = [w.new_name(self.body.parameters[k].operation.name) for k in self.carried]
            names += [w.new_name("record") for _ in first[len(names) :]]
            for name, init in zip(names, first, strict=True):
                w.dtypes[name] = w.dtypes[init]
            results, again = self._iteration(names, iteration, goes_on)
            own = len(self.carried)
            carried_on, recorded = self.record.following(names[own:], iteration)
            outputs, scans = self._outputs(nodes, results, again, carried_on, recorded)
        infos = [w.info(iteration, ()), w.info(goes_on, ())]
        infos += [_kind_info(w, n, self.kinds[k], specs[k]) for n, k in zip(names, self.carried, strict=False)]
        infos += self.record.infos(names[own:])
        body = w.graph_proto(nodes, "body", infos, outputs)
        dtypes = [*[w.dtypes[each] for each in first], *[w.dtypes[each] for each in scans]]
        final = w.add_many("Loop", trips, starts, *first, dtypes=dtypes, body=body) if dtypes else []
        return self._finals(final)

    def _first(self, k: int, spec: Any) -> str:
        if k in self.appended:
            return self.w.empty_sequence(spec.element.dtype)
        return _as_kind(self.w, self.inits[k], self.kinds[k], spec)

    def kinds_of(self, k: int) -> type | None:
        """Return how a carried variable goes through the loop: as a tensor, None, or as an array of one of two kinds.

        An array that is written out of order and whose elements may differ in shape becomes a sequence.
        """
        spec, init = self.body.parameters[k].spec, self.inits[k]
        if k in self.appended:
            return SequenceArray
        if isinstance(init, Fresh) and isinstance(spec, ArraySpec) and not isinstance(spec.element, ArraySpec):
            sizes = self.w.sizes.array(self.node.outputs[k])
            if sizes is not None and None not in sizes[1:] and self.w.known(init.size) == 0:
                return Dense
        given = self.node.inputs[k].spec
        if isinstance(init, Dense) and isinstance(spec, ArraySpec) and isinstance(given, ArraySpec):
            is_uniform_before = is_static(given.element) and not is_static(spec.element)
            return SequenceArray if is_uniform_before else Dense
        return _common_kind([init], spec)

    def limit_value(self) -> str:
        """Return the bound of a loop that counts."""
        assert self.limit is not None
        if self.limit not in self.w.values:
            self.w.run(self.condition, [self.limit])
        return self.w.values[self.limit]

    def _start(self) -> tuple[str, str]:
        """Return the number of trips and the first condition, either of which may be left out."""
        if self.limit is not None:
            return self.w.cast(self.limit_value(), LONG), ""
        return "", self.w.inline(self.condition, self.inits)[0]

    def _arguments(self, names: list[str], iteration: str) -> list[Any]:
        values: list[object] = list(self.inits)
        for name, k in zip(names, self.carried, strict=False):
            values[k] = _of_kind(name, self.kinds[k])
        if self.limit is not None and self.counter is not None:
            values[self.counter] = self.w.cast(iteration, self.body.parameters[self.counter].dtype)
        return values

    def _iteration(self, names: list[str], iteration: str, goes_on: str) -> tuple[list[Held], str]:
        """Return the results of the body, of scanned arrays the element that is written; and the next condition."""
        w = self.w
        arguments = self._arguments(names, iteration)
        region = self.body
        w.bind(region, arguments)
        in_order = [*self.scanned, *self.appended]
        sources = [result.operation.inputs[2] if k in in_order else result for k, result in enumerate(region.results)]
        wanted = [source for k, source in enumerate(sources) if k != self.counter or self.limit is None]
        w.run(region, [*wanted, *self.record.inner])
        results: list[Any] = [w.values.get(source) for source in sources]
        for k in self.appended:
            results[k] = SequenceArray(w.add("SequenceInsert", arguments[k].name, results[k]))
        if self.limit is not None:
            return results, goes_on
        fixed = {*self.scanned, *self.same}
        following = [arguments[k] if k in fixed else result for k, result in enumerate(results)]
        return results, w.inline(self.condition, following)[0]

    def _outputs(
        self, nodes: list[NodeProto], results: list[Any], again: str, carried_on: list[str], recorded: list[str]
    ) -> tuple[list[ValueInfoProto], list[str]]:
        """Return what the graph of the body gives, that of the record included, and the names of the scans."""
        w, taken = self.w, set[str]()
        specs = [result.spec for result in self.body.parameters]
        infos = [w.info(w.own(nodes, again, taken), ())]
        for k in self.carried:
            name = w.own(nodes, _as_kind(w, results[k], self.kinds[k], specs[k]), taken)
            infos.append(_kind_info(w, name, self.kinds[k], specs[k]))
        infos += self.record.infos([w.own(nodes, name, taken) for name in carried_on])
        scans: list[str] = []
        for k in self.scanned:
            name = w.own(nodes, results[k], taken)
            infos.append(_info_of(w, name, self.body.results[k].operation.inputs[2].spec))
            scans.append(name)
        for symbol, value in zip(self.record.scanned, recorded, strict=True):
            scans.append(w.own(nodes, value, taken))
            dims = dims_of(symbol.spec)
            infos.append(w.info(scans[-1], [None] * len(dims or ()) if isinstance(symbol.spec, ArraySpec) else dims))
        return infos, scans

    def _finals(self, final: list[str]) -> list[Held]:
        found: list[Any] = list(self.inits)
        for name, k in zip(final, self.carried, strict=False):
            found[k] = _of_kind(name, self.kinds[k])
        scans = final[len(final) - len(self.record.scanned) - len(self.scanned) :]
        for name, k in zip(scans, self.scanned, strict=False):
            found[k] = Dense(name)
        if self.limit is not None and self.counter is not None:
            # The count ends at the limit; no more is written than is used, as runtimes leave out what is not.
            found[self.counter] = self.w.add("Max", self.limit_value(), self.inits[self.counter])
        carried = final[len(self.carried) : len(final) - len(scans)]
        return [*found, self.record.result(carried, scans[len(self.scanned) :])]
