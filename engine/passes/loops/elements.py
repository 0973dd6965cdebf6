"""Parts of a tensor that a loop goes through by a counter, such as ``x[t]``, are elements of an array.

All spellings become one: the tensor is unstacked before the loop, and the body reads an array. So whatever is done
with elements of arrays (batches before the loop, reads in place of records, sums after it) is done with these, too. The
gradient, which adds ``dy`` to ``dx`` at a place, gathers elements of an array as well, to be stacked after the loop.

A place outside the tensor is an error, that of the iteration that asks for it. So this is done only where each place is
known to be inside, or can be compared with the size before the loop starts: nothing is read that the loop would not
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...common.identity import count_among
from ...graph.graph import Operation
from ...graph.region import Region
from ...graph.spec import ArraySpec, TensorSpec
from ...graph.tensor import Symbol, symbol_of
from ...ops.arrays.axes import Transpose
from ...ops.arrays.gathering import AddRows, PutRows, Take
from ...ops.arrays.indexing import AddItem, GetItem, Items, Place, PutItem, SliceItem
from ...ops.arrays.joining import Concatenate
from ...ops.arrays.shaping import DimOf, ExpandDims
from ...ops.base import Cast, Constant, build, convert_to_tensor, make_constant
from ...ops.containers.array_rows import ArrayConcat
from ...ops.containers.array_windows import CheckedRows
from ...ops.containers.tensor_arrays import (
    ArrayAddAt,
    ArrayEmpty,
    ArrayNew,
    ArrayRead,
    ArrayStackLike,
    ArrayUnstack,
    ArrayWrite,
)
from ...ops.math.elementwise import Add
from ..framework.assign import on_one_device
from ..framework.log import note_change
from .batches import is_heavy
from .linear import Linear
from .sums import accumulation, is_zero
from .view import LoopView, is_static

_WHOLE = SliceItem()


class Part(NamedTuple):
    """The part that an operation takes of a tensor, or adds to one.

    Attributes:
        place: the index along `axis`.
        axis: which axis that is.
        rest: the key of what is meant of the element there; empty for all of it.
        wraps: whether places below zero count from the end.
    """

    place: Symbol
    axis: int
    rest: Items
    wraps: bool


class _Places(NamedTuple):
    """Places that a loop goes through one by one, counted from the front.

    Attributes:
        offset: what is to be added to the index.
        first: the smallest of them.
        falls: whether the last one comes first.
        are_inside: whether they are known to be inside the tensor.
    """

    offset: int
    first: int
    falls: bool
    are_inside: bool


def _part(items: Items, index: Symbol) -> Part | None:
    """Return the part that a key of one computed integer selects; None if it is another kind of key."""
    bounds = [bound for item in items if isinstance(item, SliceItem) for bound in (item.start, item.stop, item.step)]
    if Ellipsis in items or Place.INPUT in bounds or items.count(Place.INPUT) != 1:
        return None
    at = items.index(Place.INPUT)
    rest = [*items[:at], *items[at + 1 :]]
    while rest and rest[-1] == _WHOLE:
        rest.pop()
    return Part(index, sum(item is not None for item in items[:at]), tuple(rest), wraps=True)


def _places(
    loop: LoopView, index: Symbol, size: int | None, wraps: bool, whole: Symbol | None = None
) -> _Places | None:
    """Return the places that an index of the body goes through along an axis; None if one may be outside.

    Args:
        loop: the loop.
        index: the index.
        size: the size of the axis, if that is known.
        wraps: whether places below zero count from the end.
        whole: the tensor outside, where its own size may be what the loop counts to.
    """
    form, trips = loop.form(index), loop.known_trips
    first = None if form is None else loop.first_place(form)
    if form is None or first is None:
        return None
    offset = 0
    if first < 0:
        if not wraps or size is None or trips is None or first + trips > 0:
            return None
        offset = size
    lowest, falls = first + offset, form.steps == -1
    if lowest < 0:
        return None
    if size is None:
        return _Places(offset, lowest, falls, True) if _counts_to_size(loop, whole, lowest) else None
    if trips is None:
        return _Places(offset, lowest, falls, False)
    return _Places(offset, lowest, falls, True) if lowest + trips <= size else None


def _counts_to_size(loop: LoopView, whole: Symbol | None, first: int) -> bool:
    """Test whether a loop that starts at `first` ends where the first axis of a tensor does."""
    trips = loop.trips
    if trips is None or len(trips.terms) != 1 or first + trips.constant > 0:
        return False
    ((term, factor),) = trips.terms
    return factor == 1 and term.operation.op == DimOf(0) and term.operation.inputs[0] is whole


def _is_left_alone(loop: LoopView) -> bool:
    """Test whether a loop is left as it is, as there is nothing to gain.

    Native code of loops inside others handles rows, but can't unstack them.
    """
    if loop.trips is None or loop.known_trips == 0:
        return True
    return isinstance(loop.graph, Region) and not any(is_heavy(operation) for operation in loop.needed)


def _checked(loop: LoopView, x: Symbol, axis: int, places: _Places, like: Operation) -> Symbol:
    """Return a tensor outside, compared with the places that are asked for; call it inside `outside`."""
    assert isinstance(x.spec, TensorSpec)
    if places.are_inside:
        return x
    size = (x.spec.shape or ())[axis] or 0
    count = convert_to_tensor(loop.trips_tensor(), "int32")
    checked = build(CheckedRows(axis, places.first, places.falls), x, count)
    failing = 0 if places.falls else max(0, size - places.first)
    checked.operation.name = like.name
    checked.operation.iterations = (*like.iterations, (loop.node.name, failing))
    return checked


def _moved(x: Symbol, axis: int, to: int) -> Symbol:
    """Return a tensor with one axis elsewhere; call it inside `outside`."""
    axes = [each for each in range(len(x.shape or ())) if each != axis]
    return x if axis == to else build(Transpose((*axes[:to], axis, *axes[to:])), x)


# --- x[t] -----------------------------------------------------------------------------------------------------------


def read_elements(loop: LoopView) -> bool:
    """Read parts of tensors that the loop goes through as elements of arrays."""
    if _is_left_alone(loop):
        return False
    arrays: dict[tuple[Symbol, int, _Places | None], Symbol] = {}
    changed = False
    for operation in loop.needed:
        if operation.graph is loop.body and not operation.control_inputs:
            changed |= _read(loop, operation, arrays)
    return changed


def part_taken(operation: Operation) -> Part | None:
    """Return the part of its first input that an operation takes."""
    op, inputs = operation.op, operation.inputs
    if isinstance(op, Take) and inputs[1].shape == () and inputs[0].shape:
        return Part(inputs[1], op.axis % len(inputs[0].shape), (), op.wrap)
    return _part(op.items, inputs[1]) if isinstance(op, GetItem) and len(inputs) == 2 else None


def _read(loop: LoopView, operation: Operation, arrays: dict[tuple[Symbol, int, _Places | None], Symbol]) -> bool:
    part = part_taken(operation)
    if part is None:
        return False
    inner, spec = operation.inputs[0], operation.inputs[0].spec
    outer = inner if isinstance(inner.operation.op, Constant) else loop.outer(inner)
    if outer is None or not isinstance(spec, TensorSpec):
        return False
    shape = spec.shape or ()
    element = (*shape[: part.axis], *shape[part.axis + 1 :])
    if not element or None in element:
        return False
    places = _places(loop, part.place, shape[part.axis], part.wraps, None if part.axis else outer)
    if places is None:
        return False
    key = (outer, part.axis, None if places.are_inside else places)
    if key not in arrays:
        arrays[key] = _unstacked(loop, inner, part.axis, places, operation)
    _read_element(loop, operation, arrays[key], part, places)
    note_change("fission", operation, "is read as an element of an array")
    return True


def _unstacked(loop: LoopView, inner: Symbol, axis: int, places: _Places, like: Operation) -> Symbol:
    outer = loop.constant_outside(inner)
    assert outer is not None
    with loop.outside(like):
        return build(ArrayUnstack(), _moved(_checked(loop, outer, axis, places, like), axis, 0))


def _read_element(loop: LoopView, operation: Operation, array: Symbol, part: Part, places: _Places) -> None:
    (result,) = operation.outputs
    with loop.inside(operation):
        place = build(Add(), part.place, _number(part.place, places.offset)) if places.offset else part.place
    if not part.rest:
        loop.read(result, array, place)
        return
    parameter = loop.capture(array)
    with loop.inside(operation):
        element = build(ArrayRead(), parameter, place)
    loop.become(result, GetItem(part.rest), [element]).device = operation.device


def _number(like: Symbol, number: int) -> Symbol:
    return symbol_of(make_constant(np.asarray(number, like.dtype)))


# --- dx[t] += dy ----------------------------------------------------------------------------------------------------


class _Term(NamedTuple):
    """The value that an iteration adds to a part of a sum."""

    value: Symbol
    part: Part


def gather_elements(loop: LoopView) -> bool:
    """Gather what is added to parts of a tensor as elements of an array, and stack these after the loop."""
    changed = False
    if _is_left_alone(loop):
        return False
    for position in reversed(range(loop.op.carried)):
        if _gather_sum(loop, position) or _gather_rows(loop, position):
            loop.finish()
            changed = True
    return changed


def _gather_sum(loop: LoopView, position: int) -> bool:
    """Gather what is added to a loop variable, one part of it after the other."""
    parameter = loop.body.parameters[position]
    terms = _added_terms(loop, position)
    if not terms or not is_static(parameter):
        return False
    gathered = _Gathered(loop, parameter.spec, terms)
    if not gathered.is_possible():
        return False
    initial, final = loop.node.inputs[position], loop.node.outputs[position]
    loop.remove_variable(position)
    total = gathered.total()
    _become_sum(loop, final, None if is_zero(initial) else initial, total, gathered.like)
    return True


def _added_terms(loop: LoopView, position: int) -> list[_Term]:
    """Return the terms that are added to parts of a loop variable; none if it has other uses."""
    parameter, tensor = loop.body.parameters[position], loop.body.results[position]
    terms: list[_Term] = []
    while tensor is not parameter:
        operation = tensor.operation
        if operation.graph is not loop.body or operation.control_inputs or loop.uses.get(tensor) != 1:
            return []
        tensor, found = _added(loop, operation)
        if not found or not on_one_device([parameter.operation, operation, *[term.value.operation for term in found]]):
            return []
        terms += found[::-1]
    return [] if loop.uses.get(parameter) != 1 or loop.is_tested(position) else terms[::-1]


def _added(loop: LoopView, operation: Operation) -> tuple[Symbol, list[_Term]]:
    """Return what an operation adds parts to, and these; none if it does more."""
    op, inputs = operation.op, operation.inputs
    if isinstance(op, Add):
        base, other = inputs if _is_put(loop, inputs[1]) else inputs[::-1]
        put = other.operation
        return base, _put(put, 0, put.inputs[2:]) if _is_put(loop, other) and other.spec == base.spec else []
    if isinstance(op, (AddItem, AddRows)):
        return inputs[0], _put(operation, 1, inputs[2:])
    return operation.outputs[0], []


def _is_put(loop: LoopView, tensor: Symbol) -> bool:
    """Test whether a tensor of the body is zeros but for some parts, and is used once."""
    source = tensor.operation
    alone = source.graph is loop.body and loop.uses.get(tensor) == 1 and not source.control_inputs
    return alone and isinstance(source.op, PutItem)


def _put(operation: Operation, value: int, indices: Sequence[Symbol]) -> list[_Term]:
    """Return the parts that an operation adds: its input number `value`, at `indices`."""
    op, whole, added = operation.op, operation.outputs[0], operation.inputs[value]
    if isinstance(op, (AddItem, PutItem)) and len(indices) == 1 and not op.repeats:
        part = _part(op.items, indices[0])
        return [] if part is None else [_Term(added, part)]
    if not isinstance(op, AddRows) or not whole.shape:
        return []
    axis = op.axis % len(whole.shape)
    if indices[0].shape == ():
        return [_Term(added, Part(indices[0], axis, (), op.wrap))]
    return _rows_as_terms(added, indices[0], op.wrap) if not axis else []


def _rows_as_terms(rows: Symbol, places: Symbol, wraps: bool) -> list[_Term]:
    """Return rows with their places as one term each; nothing if they are not given one by one."""
    values, indices = ([_row(piece) for piece in _pieces(tensor)] for tensor in (rows, places))
    if len(values) != len(indices):
        return []
    pairs = [(v, i) for v, i in zip(values, indices, strict=True) if v is not None and i is not None and not i.shape]
    return [_Term(value, Part(index, 0, (), wraps)) for value, index in pairs] if len(pairs) == len(values) else []


def _become_sum(loop: LoopView, final: Symbol, base: Symbol | None, total: Symbol, like: Operation) -> None:
    if base is None:
        loop.become(final, total.operation.op, total.operation.inputs, total.operation)
    else:
        loop.become(final, Add(), [base, total], like)
    note_change("fission", like, "is gathered as an element of an array, which is stacked after the loop")


class _Gathered:
    """The sum of terms, each of which is added to a part of a tensor."""

    def __init__(self, loop: LoopView, spec: Any, terms: Sequence[_Term]) -> None:
        self.loop = loop
        self.spec: TensorSpec = spec
        self.like = terms[0].value.operation
        self.axis = terms[0].part.axis
        shape = [dim or 0 for dim in spec.shape or ()]
        self.size = shape[self.axis]
        self.element = TensorSpec((*shape[: self.axis], *shape[self.axis + 1 :]), spec.dtype)
        self.groups: dict[tuple[Linear | None, bool], list[_Term]] = {}  # by where they are added
        for term in terms:
            self.groups.setdefault((loop.form(term.part.place), term.part.wraps), []).append(term)
        self.places = {
            key: _places(loop, group[0].part.place, self.size, group[0].part.wraps)
            for key, group in self.groups.items()
        }

    def is_possible(self) -> bool:
        """Test whether all places are known to be inside, and all terms are parts along one axis."""
        alike = all(term.part.axis == self.axis for group in self.groups.values() for term in group)
        return alike and bool(self.element.shape) and None not in self.places.values()

    def total(self) -> Symbol:
        """Return the sum, outside."""
        arrays = [(self._gather(group, places), places) for group, places in self._placed()]
        total: Symbol | None = None
        with self.loop.outside(self.like):
            for array, places in arrays:
                rows = _moved(self._stacked(array, places), 0, self.axis)
                total = rows if total is None else build(Add(), total, rows)
        assert total is not None
        return total

    def _placed(self) -> list[tuple[list[_Term], _Places]]:
        return [(group, places) for key, group in self.groups.items() if (places := self.places[key]) is not None]

    def _starts_at(self, places: _Places) -> int:
        """Return the place that is the first element of what is gathered."""
        return 0 if self.loop.known_trips is None else places.first

    def _gather(self, group: Sequence[_Term], places: _Places) -> Symbol:
        """Return a new loop variable: the array of what is added in each iteration; its final value."""
        loop, index = self.loop, group[0].part.place
        offset = places.offset - self._starts_at(places)

        def update(array: Symbol) -> Symbol:
            place = build(Add(), index, _number(index, offset)) if offset else index
            return build(ArrayAddAt(), array, place, self._element(group))

        with loop.outside(self.like):
            empty = build(ArrayEmpty(ArraySpec(self.element, loop.known_trips)))
        return loop.add_variable(empty, update, self.like)

    def _element(self, group: Sequence[_Term]) -> Symbol:
        """Return the total that is added to one element; call it inside the body."""
        total: Symbol | None = None
        shape = _vector(self.element)
        for value, part in group:
            if total is None:
                total = build(PutItem(part.rest, self.element.shape, False), value, shape) if part.rest else value
            else:
                total = build(AddItem(part.rest, False), total, value) if part.rest else build(Add(), total, value)
        assert total is not None
        return total

    def _stacked(self, array: Symbol, places: _Places) -> Symbol:
        """Return the sum as a tensor with `axis` in front; call it outside."""
        loop, dtype = self.loop, self.spec.dtype
        start, trips = self._starts_at(places), loop.known_trips
        whole = TensorSpec((self.size, *(self.element.shape or ())), dtype)
        if not start or trips is None:
            rows = build(ArrayStackLike(whole.shape, dtype), array, _vector(whole))
            return _checked(loop, rows, 0, places, self.like)
        part = TensorSpec((trips, *(self.element.shape or ())), dtype)
        rows = build(ArrayStackLike(part.shape, dtype), array, _vector(part))
        return build(PutItem((SliceItem(start, start + trips),), whole.shape, False), rows, _vector(whole))


def _vector(spec: TensorSpec) -> Symbol:
    return symbol_of(make_constant(np.array(spec.shape, "int32")))


# --- rows and their places, which are gathered to be added to a table's gradient -------------------------------------


class _Table(NamedTuple):
    """The place where rows that a loop gathers are added to zeros, or to a tensor.

    Attributes:
        put: the operation that does so.
        at: the number of the loop's rows among those that are added, if there are more.
    """

    put: Operation
    at: int | None


def _gather_rows(loop: LoopView, position: int) -> bool:
    """Gather rows of which the places count as elements of an array: then no places are gathered."""
    terms = _row_terms(loop, position)
    table = _table(loop, position) if terms else None
    if table is None:
        return False
    out = table.put.outputs[0]
    gathered = _Gathered(loop, out.spec, terms) if is_static(out) and out.shape else None
    if gathered is None or not gathered.is_possible():
        return False
    if not on_one_device([table.put, *[term.value.operation for term in terms], loop.node]):
        return False
    for variable in (position + 1, position):
        loop.remove_variable(variable)
    total = gathered.total()
    with loop.outside(table.put):
        base = _without(table)
    _become_sum(loop, out, base, total, gathered.like)
    return True


def _row_terms(loop: LoopView, position: int) -> list[_Term]:
    """Return the rows that each iteration writes to one array, with their places, which it writes to the next one."""
    if position + 1 >= loop.op.carried:
        return []
    updates = [accumulation(loop, variable, ArrayWrite) for variable in (position, position + 1)]
    writes = [update for update in updates if update is not None]
    new = all(isinstance(loop.node.inputs[each].operation.op, ArrayNew) for each in (position, position + 1))
    if len(writes) < 2 or not new or writes[0].inputs[1] is not writes[1].inputs[1]:
        return []
    if any(write.inputs[0] is not loop.body.parameters[position + k] for k, write in enumerate(writes)):
        return []
    return _rows_as_terms(writes[0].inputs[2], writes[1].inputs[2], wraps=True)


def _pieces(tensor: Symbol) -> Sequence[Symbol]:
    """Return the pieces that are concatenated along the first axis."""
    source = _uncast(tensor).operation
    return source.inputs if source.op == Concatenate(0) else [tensor]


def _row(tensor: Symbol) -> Symbol | None:
    """Return the row of which a tensor consists; None if it was not made of one row."""
    source = _uncast(tensor).operation
    return source.inputs[0] if source.op == ExpandDims((0,)) else None


def _uncast(tensor: Symbol) -> Symbol:
    """Return the number that a position is, whatever its dtype; other tensors as they are."""
    source = tensor.operation
    return _uncast(source.inputs[0]) if isinstance(source.op, Cast) and tensor.dtype.kind in "iu" else tensor


def _table(loop: LoopView, position: int) -> _Table | None:
    """Return where the rows that loop variable `position` gathers are added, at the places of the next variable."""
    rows, places = (_concatenated(loop, loop.node.outputs[each]) for each in (position, position + 1))
    if rows is None or places is None:
        return None
    put, other = _only_taker(loop, rows), _only_taker(loop, places)
    at = None
    if put is not None and other is not None and put.op == other.op == Concatenate(0):
        at = _position(put, rows)
        if at != _position(other, places) or len(put.inputs) != len(other.inputs):
            return None
        rows, places = put.outputs[0], other.outputs[0]
        put, other = _only_taker(loop, rows), _only_taker(loop, places)
    if put is None or put is not other or not isinstance(put.op, (AddRows, PutRows)) or put.op.axis:
        return None
    first = _first_row(put)
    is_fit = put.op.wrap and put.inputs[first] is rows and put.inputs[first + 1] is places
    return _Table(put, at) if is_fit and not put.control_inputs else None


def _first_row(put: Operation) -> int:
    """Return the position of the first of the inputs that give what is added, and where."""
    return 1 if isinstance(put.op, AddRows) else 0


def _position(operation: Operation, tensor: Symbol) -> int:
    return next(k for k, each in enumerate(operation.inputs) if each is tensor)


def _concatenated(loop: LoopView, array: Symbol) -> Symbol | None:
    """Return the elements of an array end to end, as what takes them does, if nothing else takes the array."""
    taker = _only_taker(loop, array)
    if taker is None or not isinstance(taker.op, ArrayConcat):
        return None
    joined = taker.outputs[0]
    cast = _only_taker(loop, joined)
    is_position = cast is not None and isinstance(cast.op, Cast) and joined.dtype.kind in "iu"
    return cast.outputs[0] if cast is not None and is_position else joined


def _only_taker(loop: LoopView, tensor: Symbol) -> Operation | None:
    takers = loop.takers(tensor)
    taken = sum(count_among(tensor, operation.inputs) for operation in takers)
    return takers[0] if taken == 1 and tensor not in loop.users.kept else None


def _without(table: _Table) -> Symbol | None:
    """Return the tensor to which rows are added, with the rows of others added; None for zeros. Call it outside."""
    put, first = table.put, _first_row(table.put)
    before = put.inputs[0] if first else None
    if table.at is None:
        return before
    others = [_left(put.inputs[first + k].operation, table.at) for k in range(2)]
    return build(put.op, *put.inputs[:first], *others, *put.inputs[first + 2 :])


def _left(joined: Operation, at: int) -> Symbol:
    """Return the concatenation without input number `at`."""
    others = [*joined.inputs[:at], *joined.inputs[at + 1 :]]
    return others[0] if len(others) == 1 else build(Concatenate(0), *others)


__all__ = ["Part", "gather_elements", "part_taken", "read_elements"]
