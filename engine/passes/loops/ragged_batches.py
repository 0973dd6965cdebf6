"""Loops over sequences of various lengths compute the rows that are live.

A loop whose states are ``where(live, new, old)`` computes all rows in all steps, though rows end one by one. Where each
row is computed for itself (`loops/row_wise.py`), rows are sorted by where they end, and the loop becomes several, one
after the other, of fewer and fewer rows: as soon as half of them (or so) have ended, the other half goes on alone. In a
loop that goes backward rows begin one by one, and the loops have more and more rows. The masks stay in the loops, so
that any mask is right: what is left out has no step that counts.

The shapes of each loop are static. So all later passes and kernels do with it what they do with any loop, which a loop
with another number of rows in each step would ask new code of. The price is that up to a third of what is computed is
still for nothing.

The gradient of such a loop (`While.cotangents` says which loop that is, and of what) is replaced by the gradient of
those that take its place, built in its place: beside the loop, or in the gradient of a loop around it. Of steps in
which a row is not live nothing is read but the mask: what padding holds takes no part in results or gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, NamedTuple

from ...autodiff.backpropagate import backpropagate
from ...common import dtypes
from ...common.identity import is_among, place_among
from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ...control_flow.frames import TripCount
from ...control_flow.region_op import zeros_cotangent
from ...control_flow.while_loop import While, build_while
from ...graph.graph import Operation, Parameter, get_default_graph
from ...graph.op import Op
from ...graph.slices import IndexedSlices
from ...graph.spec import ArraySpec, Spec, TensorSpec
from ...graph.tensor import Symbol, Tensor, symbol_of
from ...ops.arrays.creation import arange
from ...ops.arrays.gathering import take
from ...ops.arrays.indexing import Place as KeyPlace
from ...ops.arrays.indexing import PutItem, SliceItem
from ...ops.arrays.joining import Concatenate
from ...ops.arrays.shaping import dim, expand_dims, reshape
from ...ops.base import Constant, build, build_multi, convert_to_tensor, make_constant
from ...ops.containers.tensor_arrays import ArrayEmpty, ArrayNew, ArrayRead, ArrayStack, ArrayUnstack, ArrayWrite
from ...ops.internal.ragged_batches import JoinSegments, RowPlan, SpansOfMask, SplitSegments
from ...ops.math.comparison import equal, logical_and, logical_or, where
from ...ops.math.elementwise import Identity
from ...ops.run_time_shapes import ZerosOfShape, runtime_shape, zeros_of
from ..framework.estimates import flops_of
from ..framework.log import is_recording, note_change, note_kept
from ..framework.order import reorder
from ..framework.prune import all_blocks, needed_operations
from ..framework.rewriter import Rewriter
from ..framework.specialise import Specialised, keeps_by_masks
from ..framework.switches import is_on
from .backward import Backward, Place, backward_loops
from .batches import is_heavy
from .masks import (
    NotRowWiseError,
    in_all_steps,
    kept_by_arithmetic,
    live_in_all_steps,
    why_not_arithmetic,
)
from .row_wise import RowWise, resized, row_wise
from .view import LoopView

_SHRINKS = 0.6  # a loop has at most so much of the rows of the one before
_ALIGNED = 8  # rows: kernels compute so many at a time
_ALL_ROWS = "computes all rows in each step"


def compute_ragged_batches(step: Rewriter) -> None:
    """Rewrite the loops of a step that compute rows which have ended, those inside of loops and branches too."""
    graph = step.graph

    def live() -> list[Operation]:
        return needed_operations(graph, step.kept, step.fed)

    outermost = Place(graph, live, frozenset(step.kept))
    places = [*outermost.places(), outermost] if is_recording() or _has_masks(live()) else []
    changed = [_rewrite_all(place) for place in places]
    if any(changed) or step.copy.kept:
        step.become(Specialised(is_on("cse"), exact=False), live())


def _has_masks(operations: Sequence[Operation]) -> bool:
    """Test whether any loop keeps states by masks, so that its rows may end; steps of many blocks mostly have none."""
    holders = [o.op for block in all_blocks(operations) for o in block if o.op.regions]
    return any(isinstance(op, While) and keeps_by_masks(op.body) for op in holders)


def _rewrite_all(place: Place) -> bool:
    """Rewrite the loops of a graph, or of a region inside."""
    loops = [o for o in place.live() if isinstance(o.op, While)]
    kept = [o for o in loops if isinstance(o.op, While) and keeps_by_masks(o.op.body)]
    changed = [_rewrite(place, loop) for loop in kept if loop in place.live() and not loop.control_inputs]
    if is_recording():
        for loop in loops:
            if loop not in kept:
                _note_arithmetic(loop)
    return any(changed)


def _note_arithmetic(node: Operation) -> None:
    """Log why all rows are computed of a loop that keeps states by numbers, and by no choice."""
    assert isinstance(node.op, While)
    body = node.op.body
    for position, parameter in enumerate(body.parameters):
        bools = kept_by_arithmetic(body, position)
        if bools is not None and not node.op.cotangents and any(is_heavy(operation) for operation in body.operations):
            why = why_not_arithmetic(parameter.operation.name, bools)
            note_kept("ragged_batches", node, f"{_ALL_ROWS}: {why}")
            return


def _rewrite(place: Place, node: Operation) -> bool:
    loop = place.loop(node)
    try:
        found = row_wise(loop)
        if found is None:
            return False
        _check_work(loop, found)
        gradients = backward_loops(loop, place)
        with loop.outside(node):
            segments = _Segments(loop, found)
            segments.build()
            finals = segments.finals()
        built = segments.built()
        wanted = [_wanted(segments, gradient) for gradient in gradients]
        for gradient, outputs in zip(gradients, wanted, strict=True):
            with gradient.outside():
                _backward(segments, finals, built, gradient, outputs)
    except NotRowWiseError as why:
        note_kept("ragged_batches", node, f"{_ALL_ROWS}: {why}")
        return False
    for position, final in finals.items():
        loop.become(node.outputs[position], Identity(), [final])
    for counted in [o for o in loop.takers(node.outputs[-1]) if isinstance(o.op, TripCount)]:
        loop.become(counted.outputs[0], Identity(), [segments.steps])
    reorder(place.graph, {})
    sizes = ", ".join(map(str, segments.sizes))
    note_change("ragged_batches", node, f"is {len(segments.sizes)} loops over the rows that are live: {sizes} of them")
    return True


def _check_work(loop: LoopView, found: RowWise) -> None:
    profile = machine_profile()
    if found.rows < profile.ragged_rows:
        raise NotRowWiseError(f"there are {found.rows} rows, and {profile.ragged_rows} are the fewest that pay")
    if loop.known_trips is not None and loop.known_trips < profile.ragged_steps:
        raise NotRowWiseError(f"there are {loop.known_trips} steps, and {profile.ragged_steps} are the fewest that pay")
    work = sum([flops_of(operation) for operation in loop.needed if is_heavy(operation)])
    if work < profile.ragged_work:
        least = profile.ragged_work
        raise NotRowWiseError(f"products of a step take {work:.0f} operations, and {least} are the fewest that pay")


class _Wanted(NamedTuple):
    """An output of a backward loop: the parameter of the body whose cotangent it is, and what that stands for."""

    output: Symbol
    role: Symbol
    source: Symbol


# --- the gradient that is there -------------------------------------------------------------------------------------


def _wanted(segments: _Segments, gradient: Backward) -> list[_Wanted]:
    """Return the outputs of a backward loop that anything takes, and whose cotangents they are.

    Raises:
        NotRowWiseError: the segments have no such cotangents.
    """
    node, used = gradient.node, gradient.place.used()
    assert isinstance(node.op, While)
    found: list[_Wanted] = []
    for position, (parameter, output) in enumerate(zip(node.op.body.parameters, node.outputs[:-1], strict=True)):
        role = node.op.cotangents.get(parameter)
        if role is None and (position or output in used):  # the first counts
            raise NotRowWiseError("its gradient takes a cotangent of what nothing else needs")
        if role is not None and output in used:
            found.append(_Wanted(output, role, segments.source(role)))
    sources = {wanted.role: wanted.source for wanted in found}
    if len(set(sources.values())) < len(sources):
        raise NotRowWiseError("two of its values are the same tensor")
    return found


def _backward(
    segments: _Segments,
    finals: dict[int, Symbol],
    built: Sequence[Operation],
    gradient: Backward,
    wanted: Sequence[_Wanted],
) -> None:
    """Let the outputs of a backward loop come from the segments, and all that was `built` for them."""
    node, loop = gradient.node, segments.loop
    assert isinstance(node.op, While)
    seeds: dict[Symbol, Symbol] = {}
    for parameter, cotangent in zip(node.op.body.parameters, node.inputs, strict=False):
        role = node.op.cotangents.get(parameter)
        if is_among(role, loop.body.parameters):
            _add_seed(seeds, finals[place_among(role, loop.body.parameters)], cotangent)
    tables = [source for output, role, source in wanted if _is_of_table(output, role)]
    sources = dict.fromkeys([source for *_, source in wanted])
    found = backpropagate(loop.graph, seeds, sources, sparse=tables, among=built)
    results = [_as_output(found.get(source), segments, role, output) for output, role, source in wanted]
    for (output, *_), result in zip(wanted, results, strict=True):
        loop.become(output, Identity(), [result])


def _is_of_table(output: Symbol, role: Symbol) -> bool:
    """Test whether an output gathers rows of the cotangent of a table, or their positions."""
    return isinstance(output.spec, ArraySpec) and isinstance(role.spec, TensorSpec)


def _add_seed(seeds: dict[Symbol, Symbol], final: Symbol, cotangent: Symbol) -> None:
    if isinstance(cotangent.operation.op, (ArrayEmpty, ZerosOfShape)):
        return
    if isinstance(final.operation.op, ArrayUnstack):  # what is sought is the cotangent of the values in it
        assert isinstance(final.spec, ArraySpec)
        assert isinstance(final.spec.element, TensorSpec)
        final, cotangent = final.operation.inputs[0], build(ArrayStack(final.spec.element), cotangent)
    seeds[final] = cotangent


def _as_output(found: Any, segments: _Segments, role: Symbol, output: Symbol) -> Symbol:
    """Return the output of a backward loop for a cotangent; arrays of rows have one element, with all of them."""
    if found is None:
        return symbol_of(zeros_cotangent(output))
    if not isinstance(output.spec, ArraySpec):
        return _filled_up(found, segments, role)
    if not _is_of_table(output, role):
        return build(ArrayUnstack(), found)
    is_sparse = isinstance(found, IndexedSlices)
    if output.spec.element.dtype.kind != "i":
        return build(ArrayUnstack(), expand_dims(found.values if is_sparse else found, 0))
    places = found.indices if is_sparse else arange(convert_to_tensor(dim(found, 0), "int32"))
    return build(ArrayUnstack(), expand_dims(convert_to_tensor(places, output.spec.element.dtype), 0))


def _filled_up(found: Any, segments: _Segments, role: Symbol) -> Symbol:
    """Return the cotangent of a tensor of which the steps read so many elements: zeros are that of the others."""
    if not segments.reads_elements(role) or (found.shape == role.shape and None not in (role.shape or (None,))):
        return found
    op = PutItem((SliceItem(0, KeyPlace.INPUT),), role.shape, False)
    return build(op, found, runtime_shape(segments.given(role)), convert_to_tensor(dim(found, 0), "int32"))


# --- the loops that take its place ----------------------------------------------------------------------------------


def sizes_of(rows: int, begins: bool) -> tuple[int, ...]:
    """Return the number of rows of each loop.

    >>> sizes_of(64, begins=False)
    (64, 32, 16, 8)
    """
    sizes = [rows]
    while sizes[-1] > _ALIGNED:
        sizes.append(max(int(sizes[-1] * _SHRINKS) // _ALIGNED * _ALIGNED, _ALIGNED))
    return tuple(reversed(sizes) if begins else sizes)


@dataclass
class _Segments:
    """Loops over stretches of steps, each over so many rows, in place of one."""

    loop: LoopView
    found: RowWise
    plan: tuple[Symbol, ...] = ()
    spans: tuple[Symbol, ...] = ()
    nodes: list[Operation] = field(default_factory=list[Operation])
    arrays: dict[Symbol, tuple[Symbol, ...]] = field(default_factory=dict[Symbol, "tuple[Symbol, ...]"])
    _windows: dict[Symbol, Symbol] = field(default_factory=dict[Symbol, Symbol])
    _unstacked: dict[Symbol, Symbol] = field(default_factory=dict[Symbol, Symbol])
    _sorted: dict[Symbol, Symbol] = field(default_factory=dict[Symbol, Symbol])
    _first: int = 0

    def __post_init__(self) -> None:
        self.begins = self.found.begins
        self.sizes = sizes_of(self.found.rows, self.begins)
        self.steps = symbol_of(convert_to_tensor(self.loop.trips_tensor(), "int32"))
        self._lines = {operation.location: operation.location for operation in self.loop.body.operations}
        self.places = {position: k for k, position in enumerate(self.found.carried)}

    @property
    def order(self) -> Symbol:
        return self.plan[0]

    @property
    def inverse(self) -> Symbol:
        return self.plan[1]

    def start(self, number: int) -> Symbol:
        """Return the first step of a segment."""
        return self.plan[3 + number]

    def length(self, number: int) -> Symbol:
        """Return the number of steps of a segment."""
        return self.plan[3 + len(self.sizes) + number]

    def built(self) -> list[Operation]:
        """Return the operations that were built for the segments, in order."""
        return self.loop.graph.operations[self._first :]

    # --- building ---------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Build the loops."""
        loop, found = self.loop, self.found
        masks = in_all_steps(loop, found.masks)
        self.spans = build_multi(SpansOfMask(self.begins), live_in_all_steps(found.masks, masks))
        self.plan = build_multi(RowPlan(self.sizes), *self.spans, self.steps)
        windows = {read: self._elements(read) for read in found.read}
        self._first = len(loop.graph.operations)
        for bools, values in masks.items():
            self.arrays[bools] = self._split(values, False)
        for read, window in windows.items():
            form = loop.form(read.inputs[1])
            assert form is not None
            self.arrays[read.outputs[0]] = self._split(window, form.steps < 0)
        for parameter in found.captured:
            self._sort(parameter)
        for position in found.states + found.lasts:
            self._sort(loop.body.parameters[position])
        for number in range(len(self.sizes)):
            self.nodes.append(self._build(number))

    def _elements(self, read: Operation) -> Symbol:
        """Return the elements that a loop reads of an array, in the array's order; one tensor for each array."""
        loop, element = self.loop, read.outputs[0]
        array, form = self._array_of(read), loop.form(read.inputs[1])
        assert form is not None
        assert isinstance(element.spec, TensorSpec)
        window = loop.window(array, form, element.spec, read)
        if window is None:
            raise NotRowWiseError(f"{read.name!r} reads elements in no order that is known")
        if array not in self._windows:
            self._windows[array] = build(Identity(), window)
        elif self._windows[array].operation.inputs[0] is not window:
            raise NotRowWiseError(f"{read.name!r} reads other elements of an array that is read already")
        return self._windows[array]

    def _array_of(self, read: Operation) -> Symbol:
        """Return the array outside that an operation reads; what it takes of a tensor is an element of one, too."""
        outer = self.loop.outer(read.inputs[0])
        assert outer is not None
        if isinstance(outer.spec, ArraySpec):
            return outer
        if outer not in self._unstacked:
            self._unstacked[outer] = build(ArrayUnstack(), outer)
        return self._unstacked[outer]

    def _split(self, window: Symbol, flips: bool) -> tuple[Symbol, ...]:
        """Split a window of all steps into arrays, one for each segment, of what its steps read."""
        op = SplitSegments(self.sizes, flips, "own" if window.dtype == dtypes.bool_ else "first")
        parts = build_multi(op, window, self.order, self.plan[2], *self.spans)
        return tuple([build(ArrayUnstack(), part) for part in parts])

    def _sort(self, parameter: Symbol) -> None:
        self._sorted[parameter] = symbol_of(take(self.given(parameter), self.order, axis=0))

    def given(self, parameter: Symbol) -> Symbol:
        """Return the value that is passed in for a parameter of the body."""
        outer = self.loop.outer(parameter)
        return self.loop.node.inputs[place_among(parameter, self.loop.body.parameters)] if outer is None else outer

    def _build(self, number: int) -> Operation:
        loop, found, size = self.loop, self.found, self.sizes[number]
        zero = convert_to_tensor(0, "int32")
        inits = [zero, *[self._counted(position, number) for position in found.counters]]
        inits += [self._state(loop.body.parameters[k], k, number) for k in found.states + found.lasts]
        for position in found.outputs:
            element = loop.body.results[position].operation.inputs[2].spec
            assert isinstance(element, TensorSpec)
            new = ArrayNew(TensorSpec((size, *(element.shape or ())[1:]), element.dtype), None, False)
            inits.append(build(new, self.length(number)))
        captured = {parameter: self._rows(self._sorted[parameter], 0, size) for parameter in found.captured}
        length = self.length(number)

        def step(values: Sequence[Symbol]) -> list[Tensor]:
            return _Copy(self, number, captured).step(values)

        def goes_on(values: Sequence[Symbol]) -> Tensor:
            return values[0] < length

        names = [loop.body.parameters[k].operation.name for k in (*found.carried, *found.outputs)]
        with loop.graph.name_scope(loop.node.name.rpartition("/")[2]):
            node = build_while(
                goes_on, step, inits, None, ["step", *names], loop.op.parallel_iterations, loop.op.swap_memory
            )
        for operation in [operation for region in node.op.regions for operation in region.operations]:
            operation.location = self._lines.get(operation.location, loop.node.location)
        return node

    def _counted(self, position: int, number: int) -> Symbol:
        """Return the value of a counter in the first step of a segment."""
        form, initial = self.loop.form(self.loop.body.parameters[position]), self.loop.node.inputs[position]
        assert form is not None
        moved = convert_to_tensor(self.start(number) * form.steps, initial.dtype)
        return symbol_of(initial + moved) if form.steps else initial

    def _state(self, parameter: Symbol, position: int, number: int) -> Symbol:
        """Return the rows of a state with which a segment begins."""
        first, size = self._sorted[parameter], self.sizes[number]
        if not number:
            return self._rows(first, 0, size)
        before = self._final(number - 1, position)
        if not self.begins:
            return self._rows(before, 0, size)
        return build(Concatenate(0), before, self._rows(first, self.sizes[number - 1], size))

    def _final(self, number: int, position: int) -> Symbol:
        return self.nodes[number].outputs[1 + self.places[position]]

    def _rows(self, x: Symbol, start: int, stop: int) -> Symbol:
        return x if start == 0 and stop == (x.shape or (None,))[0] else symbol_of(x[start:stop])

    # --- results ----------------------------------------------------------------------------------------------

    def finals(self) -> dict[int, Symbol]:
        """Return the final values of the loop's variables, of all rows in their own order."""
        states = {position: self._whole_state(position) for position in self.found.states}
        counters = {position: self._last_count(position) for position in self.found.counters}
        outputs = {position: self._whole_output(k, position, states) for k, position in enumerate(self.found.outputs)}
        lasts = {position: self._whole_last(position, states) for position in self.found.lasts}
        return states | counters | outputs | lasts

    def _whole_state(self, position: int) -> Symbol:
        last = len(self.sizes) - 1
        parts = [self._final(last, position)]
        if not self.begins:
            for number in reversed(range(last)):
                parts.append(self._rows(self._final(number, position), self.sizes[number + 1], self.sizes[number]))
        return symbol_of(take(build(Concatenate(0), *parts) if len(parts) > 1 else parts[0], self.inverse, axis=0))

    def _whole_last(self, position: int, states: dict[int, Symbol]) -> Symbol:
        """Return the results of the last step; rows for which it did not count get the values that stand for them."""
        made, state, (starts, ends) = self._whole_state(position), self.found.rests[position], self.spans
        counts = logical_or(equal(self.steps, 0), logical_and(equal(ends, self.steps), starts < ends))
        counts = reshape(counts, (-1, *[1] * (len(made.shape or ()) - 1)))
        return symbol_of(where(counts, made, zeros_of(made) if state is None else states[state]))

    def _last_count(self, position: int) -> Symbol:
        form, initial = self.loop.form(self.loop.body.parameters[position]), self.loop.node.inputs[position]
        assert form is not None
        if not form.steps:
            return build(Identity(), initial)
        return symbol_of(initial + convert_to_tensor(self.steps * form.steps, initial.dtype))

    def _whole_output(self, number: int, position: int, states: dict[int, Symbol]) -> Symbol:
        found, parts = self.found, list[Symbol]()
        for node in self.nodes:
            array = node.outputs[1 + len(self.places) + number]
            assert isinstance(array.spec, ArraySpec)
            assert isinstance(array.spec.element, TensorSpec)
            parts.append(build(ArrayStack(array.spec.element), array))
        state = found.rests[position]
        rest: list[Symbol] = []
        if state is not None:
            rest = [self.given(self.loop.body.parameters[state]) if self.begins else states[state]]
        known = self.loop.known_trips
        op = JoinSegments(self.sizes, False, bool(rest), known)
        return build(ArrayUnstack(), build(op, self.order, self.plan[2], *self.spans, self.steps, *parts, *rest))

    def reads_elements(self, role: Symbol) -> bool:
        """Test whether a parameter of the body stands for a tensor of which the steps read elements."""
        return isinstance(role.spec, TensorSpec) and any(role is read.inputs[0] for read in self.found.read)

    def source(self, role: Symbol) -> Symbol:
        """Return the tensor outside of which the cotangent is that of a parameter of the body."""
        outer, loop = self.given(role), self.loop
        reads = [read for read in self.found.read if loop.outer(read.inputs[0]) is outer]
        if not isinstance(outer.spec, ArraySpec) and not reads:
            return outer
        forms = [form for read in reads if (form := loop.form(read.inputs[1])) is not None]
        if not forms or any(loop.first_place(form) != 0 for form in forms):  # missing behind stand for zeros
            raise NotRowWiseError(
                f"{outer.operation.name!r}, whose gradient is asked for, is not read by rows from its first element on"
            )
        return self._windows[self._array_of(reads[0])]


@dataclass
class _Copy:
    """The body of the loop over again, for the rows of one segment."""

    segments: _Segments
    number: int
    captured: dict[Symbol, Symbol]

    def step(self, values: Sequence[Symbol]) -> list[Tensor]:
        """Return the variables after one step: the number of the step, counters, states, outputs."""
        loop, found = self.segments.loop, self.segments.found
        body = loop.body
        carried = found.carried
        known = dict(zip([body.parameters[position] for position in carried], values[1:], strict=False))
        known |= self.captured
        known |= {parameter: outer for outer, parameter in body.captures if parameter not in known}
        known |= {mask.bools: self._read(mask.bools, values[0]) for mask in found.masks}
        for operation in found.needed:
            self._copy(operation, values[0], known)
        arrays = values[1 + len(carried) :]
        written = [
            build(ArrayWrite(), array, values[0], known[body.results[position].operation.inputs[2]])
            for array, position in zip(arrays, found.outputs, strict=True)
        ]
        return [values[0] + 1, *[known[body.results[position]] for position in carried], *written]

    def _copy(self, operation: Operation, index: Symbol, known: dict[Symbol, Symbol]) -> None:
        found, region = self.segments.found, get_default_graph()
        if isinstance(operation.op, Parameter) or operation in self._writes():
            return
        result = operation.outputs[0]
        if result in found.uniform:
            known[result] = symbol_of(make_constant(found.uniform[result]))
            return
        op: Op
        op, taken = resized(found, operation, self.segments.sizes[self.number])
        if operation in found.read:
            op, inputs = ArrayRead(), [self._array(result), index]
        else:
            inputs = [region.capture(known[tensor]) for tensor in taken]
        made = region.adopt(op, inputs, _inferred(operation, op, inputs), operation)
        for old, new in zip(operation.outputs, made.outputs, strict=True):
            self._check(old, new)
            known[old] = new

    def _array(self, element: Symbol) -> Symbol:
        """Return the array, captured, that holds what a tensor of the body is in the steps of the segment."""
        arrays = self.segments.arrays[element]
        return get_default_graph().capture(arrays[self.number])

    def _read(self, bools: Symbol, index: Symbol) -> Symbol:
        return build(ArrayRead(), self._array(bools), index)

    def _writes(self) -> list[Operation]:
        results = self.segments.loop.body.results
        return [results[position].operation for position in self.segments.found.outputs]

    def _check(self, old: Symbol, new: Symbol) -> None:
        found = self.segments.found
        expected = old.spec
        if old in found.in_rows and isinstance(expected, TensorSpec):
            expected = TensorSpec((self.segments.sizes[self.number], *(expected.shape or ())[1:]), expected.dtype)
        if new.spec != expected:
            raise NotRowWiseError(f"{old.operation.name!r} gives {new.spec} for rows of {expected}")


def _inferred(operation: Operation, op: Op, inputs: Sequence[Symbol]) -> tuple[Spec, ...]:
    if isinstance(op, Constant):
        return (operation.outputs[0].spec,)
    try:
        specs = op.infer(*[tensor.spec for tensor in inputs])
    except (IndexError, TypeError, ValueError) as error:
        raise NotRowWiseError(f"{operation.name!r} does not work for fewer rows ({error})") from error
    return specs if isinstance(specs, tuple) else (specs,)


__all__ = ["compute_ragged_batches", "sizes_of"]
