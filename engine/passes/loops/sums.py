"""Sums that a loop gathers over its iterations are taken after it, over all rows at once.

``w += a.T @ g`` becomes one product of stacked operands; so do contractions, sums over rows, and the elements of an
array that are added up. An operand that an array has anyway is not gathered again: what the loop makes is written at
the same place, and both are in the array's order. A part of a matrix that is put together in the body is gathered as
part of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...common.identity import is_among, place_among
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol, symbol_of
from ...ops.arrays.joining import Concatenate
from ...ops.base import Constant, build, make_constant
from ...ops.containers.tensor_arrays import ArrayRead
from ...ops.linear_algebra.einsum import Contraction
from ...ops.linear_algebra.products import FlattenRows, MatMul
from ...ops.math.elementwise import Add, Multiply
from ...ops.run_time_shapes import SumToShape, ZerosOfShape
from ..framework import changes
from ..framework.assign import on_one_device
from ..framework.log import is_recording, note_change, note_kept
from ..framework.order import reorder
from .view import LoopView, is_static, may_lack_elements, size_of

_COMPOSING = (Add, Concatenate)
_MOST_PIECES = 64
_SMALL = 4096  # elements of an operand that is gathered though nothing else asks for it


def sum_after(loop: LoopView) -> bool:
    """Take sums after the loop."""
    changed = False
    for is_next in (_is_product, _is_sum_of_products, _is_sum):  # sums of values use what products gather
        moved = [_Sum(loop, position).move(is_next) for position in reversed(range(loop.op.carried))]
        if any(moved):
            loop.finish()
            changed = True
    return changed


def gather_terms(loop: LoopView) -> bool:
    """Add up first what one sum takes of several terms: ``(sum + a) + b`` becomes ``sum + (a + b)``."""
    changed = False
    for parameter, result in zip(loop.body.parameters, loop.body.results, strict=False):
        chain = _chain(loop, parameter, result)
        terms = [term for _, term in chain]
        if len(chain) < 2 or not all(_is_sum(term.operation) for term in terms):
            continue
        below = terms.pop()
        for operation, _ in reversed(chain[1:]):
            changes.set_inputs(operation, (below, terms.pop()))
            below = operation.outputs[0]
        changes.set_inputs(chain[0][0], (parameter, below))
        changed = True
    if changed:
        reorder(loop.body, {})
        loop.refresh()
    return changed


def _chain(loop: LoopView, parameter: Symbol, result: Symbol) -> list[tuple[Operation, Symbol]]:
    """Return the additions, last first, by which `result` comes of `parameter`, each with the term that it adds."""
    operation = result.operation
    is_own = isinstance(operation.op, Add) and operation.graph is loop.body and not operation.control_inputs
    if not is_own or loop.uses.get(result) != 1 or {t.spec for t in (result, *operation.inputs)} != {parameter.spec}:
        return []
    for before, term in (operation.inputs, operation.inputs[::-1]):
        if before is parameter:
            return [(operation, term)] if loop.uses.get(parameter) == 1 else []
        chain = _chain(loop, parameter, before)
        if chain and on_one_device([operation, chain[0][0]]):
            return [(operation, term), *chain]
    return []


def summed_products(loop: LoopView) -> set[Operation]:
    """Return the products of which only the sum over all iterations is wanted: they become one product after it."""
    terms = [_term(loop, position) for position in range(loop.op.carried)]
    pieces = [list(_pieces(term.operation)) for term in terms if term is not None and _is_alone(loop, term)]
    return {piece for each in pieces for piece in each if is_summed_as_whole(piece)}


def _is_alone(loop: LoopView, term: Symbol) -> bool:
    """Test whether one sum alone takes a term, or the pieces of which it is made."""
    made = [piece.outputs[0] for piece in _pieces(term.operation)]
    return len(made) < _MOST_PIECES and all(loop.uses.get(t) == 1 and t.graph is loop.body for t in made)


def _term(loop: LoopView, position: int) -> Symbol | None:
    """Return the term that loop variable `position` adds up; None if it adds up none."""
    update = accumulation(loop, position, Add)
    return None if update is None else _added_to(loop.body.parameters[position], update)


def _added_to(parameter: Symbol, update: Operation) -> Symbol:
    """Return the tensor that an addition adds to a loop variable."""
    return update.inputs[1] if update.inputs[0] is parameter else update.inputs[0]


def accumulation(loop: LoopView, position: int, kind: type[Op]) -> Operation | None:
    """Return the operation of `kind` by which loop variable `position` is updated, if it is used for nothing else."""
    parameter, result = loop.body.parameters[position], loop.body.results[position]
    update = result.operation
    if not isinstance(update.op, kind) or not is_among(parameter, update.inputs) or update.control_inputs:
        return None
    once = loop.uses.get(parameter) == 1 and loop.uses.get(result) == 1
    return update if once and not loop.is_tested(position) else None


@dataclass(frozen=True)
class _Gathered:
    """A tensor of the body in all iterations.

    Attributes:
        tensor: the tensor, or what it is a part of.
        array: the values of that along a new first axis.
        start, width: which columns are meant, if it is a part.
    """

    tensor: Symbol
    array: Symbol
    start: int | None = None
    width: int = 0

    @property
    def whole(self) -> _Gathered:
        return _Gathered(self.tensor, self.array)

    def part(self) -> Symbol:
        """Return the columns that are meant; call it where operations are built."""
        return self.array if self.start is None else _columns(self.array, self.start, self.width)


class _Sum:
    """The sum that loop variable `position` gathers."""

    def __init__(self, loop: LoopView, position: int) -> None:
        self.loop = loop
        self.position = position

    def move(self, is_next: Callable[[Operation], bool]) -> bool:
        """Take the sum after the loop, if what is added up is the result of an operation that `is_next` likes."""
        loop, parameter = self.loop, self.loop.body.parameters[self.position]
        added = loop.body.results[self.position].operation
        if not isinstance(added.op, Add) or not is_next(_added_to(parameter, added).operation):
            return False  # as most do, seen at once
        if loop.is_stale:
            loop.refresh()
        update = accumulation(loop, self.position, Add)
        if update is None or update.outputs[0].dtype.kind == "T":  # strings are joined, not summed
            return False
        term = _added_to(parameter, update)
        is_one = loop.uses.get(term) == 1 and term.operation.graph is loop.body and term.spec == parameter.spec
        if not is_one or not self._are_on_one_device(update, term):
            return False
        total = self._total(term)
        if total is None:
            return False
        note_change("fission", term.operation, "is summed over all iterations after the loop, at once")
        initial, final = loop.node.inputs[self.position], loop.node.outputs[self.position]
        loop.remove_variable(self.position)
        source = total.operation
        if is_zero(initial) and len(source.outputs) == 1:
            loop.become(final, source.op, source.inputs, source)
        else:
            loop.become(final, Add(), [initial, total]).device = update.device
        loop.is_stale = True
        return True

    def _are_on_one_device(self, update: Operation, term: Symbol) -> bool:
        # A shape may come from anywhere.
        summed: list[Symbol] = []
        for operation in _pieces(term.operation):
            op, inputs = operation.op, operation.inputs
            summed += [*operation.outputs, *(inputs[:1] if isinstance(op, (SumToShape, ArrayRead)) else inputs[:2])]
        parameter = self.loop.body.parameters[self.position]
        return on_one_device([t.operation for t in (parameter, update.outputs[0], term, *summed)])

    def _total(self, term: Symbol) -> Symbol | None:
        """Return the sum of `term` over all iterations, computed after the loop; None if that needs the loop."""
        op, inputs = term.operation.op, term.operation.inputs
        if isinstance(op, _COMPOSING):
            return self._composed(term)
        if not is_static(term) or not is_static(*inputs[: 0 if isinstance(op, ArrayRead) else 1]):
            return None
        if isinstance(op, MatMul) and op.transpose_a and not op.transpose_b and is_static(inputs[1]):
            return self._product(term)
        if isinstance(op, Contraction) and is_static(inputs[1]):
            return self._contraction(term, op)
        if isinstance(op, SumToShape):
            return self._sum(term)
        return self._elements(term) if isinstance(op, ArrayRead) else None

    def _composed(self, term: Symbol) -> Symbol | None:
        """Return a sum of what is put together of products: what is put together of their sums."""
        if not _is_alone(self.loop, term):
            return None
        leaves = [piece for piece in _pieces(term.operation) if not isinstance(piece.op, _COMPOSING)]
        if not all(is_summed_as_whole(leaf) or self._may_be_summed(leaf) for leaf in leaves):
            return None
        totals = [self._total(tensor) for tensor in term.operation.inputs]
        known = [total for total in totals if total is not None]
        if len(known) < len(totals):
            return None
        with self.loop.outside(term.operation):
            return build(term.operation.op, *known)

    def _may_be_summed(self, operation: Operation) -> bool:
        """Test whether the input of a sum over rows, or of elements, is there for all iterations."""
        if isinstance(operation.op, SumToShape):
            return self._is_ready(operation.inputs[0])
        return isinstance(operation.op, ArrayRead) and self._place(operation.outputs[0]) is not None

    # --- products -------------------------------------------------------------------------------------------

    def _product(self, term: Symbol) -> Symbol:
        left, right = term.operation.inputs[:2]
        a, b = self._together([left, right])
        with self.loop.outside(term.operation):
            if b.start is not None and self._takes_all_parts(left, b.tensor):
                whole = self._shared(("product", a.array, b.array), lambda: self._multiplied(term, a, b.whole))
                return _columns(whole, b.start, b.width)
            return self._multiplied(term, a, b)

    def _multiplied(self, term: Symbol, a: _Gathered, b: _Gathered) -> Symbol:
        product = build(term.operation.op, self._rows(a), self._rows(b))
        product.operation.name = term.operation.name  # what moves keeps its name
        return product

    def _takes_all_parts(self, left: Symbol, whole: Symbol) -> bool:
        """Test whether there is a sum of products by `left` for each part of a matrix, so that all are one product."""
        key = ("parts", left, whole)
        known = self.loop.parts.get(key)
        if known is None:
            terms = [_term(self.loop, position) for position in range(self.loop.op.carried)]
            taken = {term.operation.inputs[1] for term in terms if term is not None and _multiplies(term, left)}
            current = self.loop.body.results[self.position].operation.inputs
            taken.update(t.operation.inputs[1] for t in current if _multiplies(t, left))
            known = self.loop.parts[key] = taken.issuperset(whole.operation.inputs)
        return known

    def _contraction(self, term: Symbol, op: Contraction) -> Symbol | None:
        used = {*op.a, *op.b, *op.out}
        label = next(chr(code) for code in range(65, 1000) if chr(code).isalpha() and chr(code) not in used)
        a, b = self._together(term.operation.inputs[:2])
        with self.loop.outside(term.operation):
            return build(Contraction(label + op.a, label + op.b, op.out), a.part(), b.part())

    def _rows(self, operand: _Gathered) -> Symbol:
        """Return the rows of a matrix of the body over all iterations, as one matrix."""
        rows = self._shared(("rows", operand.array), lambda: build(FlattenRows(), operand.array))
        if operand.start is None:
            return rows
        start, width = operand.start, operand.width
        return self._shared(("rows", operand.array, start, width), lambda: _columns(rows, start, width))

    def _shared(self, key: Any, make: Callable[[], Symbol]) -> Symbol:
        if key not in self.loop.shared:
            self.loop.shared[key] = make()
        return self.loop.shared[key]

    # --- operands over all iterations -----------------------------------------------------------------------

    def _together(self, operands: Sequence[Symbol]) -> list[_Gathered]:
        """Return the operands in all iterations, in one order."""
        for operand in operands:
            place = self._place(operand)
            if place is not None and all(self._follows(other, place) for other in operands):
                return [self._in_order(other, place) for other in operands]
        return [self._gathered(operand, len(operands) == 1) for operand in operands]

    def _place(self, operand: Symbol) -> Symbol | None:
        """Return the index at which the body reads an operand from an array outside, if all its elements can be had."""
        loop, read = self.loop, operand.operation
        if not isinstance(read.op, ArrayRead) or read.graph is not loop.body or loop.trips is None:
            return None
        index, array = loop.form(read.inputs[1]), loop.outer(read.inputs[0])
        if index is None or array is None or loop.first_place(index) != 0 or may_lack_elements(array):
            return None
        return read.inputs[1] if on_one_device([read, array.operation, read.inputs[0].operation]) else None

    def _follows(self, operand: Symbol, place: Symbol) -> bool:
        own = self._place(operand)
        return own is None or self.loop.form(own) == self.loop.form(place)

    def _in_order(self, operand: Symbol, place: Symbol) -> _Gathered:
        loop, read = self.loop, operand.operation
        assert isinstance(operand.spec, TensorSpec)
        if self._place(operand) is not None:
            array, index = loop.outer(read.inputs[0]), loop.form(read.inputs[1])
            assert array is not None
            assert index is not None
            rows = loop.window(array, index, operand.spec, read)
            assert rows is not None, "its first place is known"
            return _Gathered(operand, rows)
        whole, start = self._whole(operand)
        assert isinstance(whole.spec, TensorSpec)
        array = loop.stack(loop.written(whole, place), whole.spec, whole.operation)
        return _Gathered(whole, array, start, (operand.shape or (0,))[-1] or 0)

    def _gathered(self, operand: Symbol, in_any_order: bool) -> _Gathered:
        loop = self.loop
        whole, start = self._whole(operand)
        assert isinstance(whole.spec, TensorSpec)
        written = loop.written_at_all(whole) if in_any_order else None
        array = loop.stack(loop.history(whole) if written is None else written, whole.spec, whole.operation)
        return _Gathered(whole, array, start, (operand.shape or (0,))[-1] or 0)

    def _whole(self, operand: Symbol) -> tuple[Symbol, int | None]:
        """Return the matrix of the body of which an operand is a part, and where its columns begin there."""
        loop = self.loop
        for operation in loop.needed if Concatenate in loop.kinds else ():
            op = operation.op
            if (
                not isinstance(op, Concatenate)
                or operation.graph is not loop.body
                or not is_among(operand, operation.inputs)
            ):
                continue
            rank = len(operand.shape or ())
            if rank and op.axis % rank == rank - 1 and is_static(*operation.inputs):
                before = operation.inputs[: place_among(operand, operation.inputs)]
                return operation.outputs[0], sum((tensor.shape or (0,))[-1] or 0 for tensor in before)
        return operand, None

    # --- sums -----------------------------------------------------------------------------------------------

    def _sum(self, term: Symbol) -> Symbol | None:
        summed = term.operation.inputs[0]
        source = summed.operation
        is_product = isinstance(source.op, Multiply) and source.graph is self.loop.body and self.loop.uses[summed] == 1
        if is_product and source.inputs[0].shape == source.inputs[1].shape == summed.shape:
            ready = [self._is_ready(operand) for operand in source.inputs]
            if all(ready) and on_one_device([source, *[operand.operation for operand in source.inputs]]):
                a, b = self._together(source.inputs)
                with self.loop.outside(source):
                    return self._to_shape(build(Multiply(), a.part(), b.part()), term, term.shape or ())
        if not self._is_ready(summed):
            if is_recording():
                note_kept(
                    "fission", term.operation, f"is summed in the loop: nothing else needs all of {summed.name!r}"
                )
            return None
        (gathered,) = self._together([summed])
        shape = term.shape or ()
        with self.loop.outside(term.operation):
            if gathered.start is None or not shape or shape[-1] != gathered.width:
                return self._to_shape(gathered.part(), term, shape)
            # The parts of a matrix are summed as one.
            wide = (*shape[:-1], gathered.array.shape[-1] if gathered.array.shape else 0)
            key = ("sum", gathered.array, wide)
            total = self._shared(key, lambda: self._to_shape(gathered.array, term, wide))
            return _columns(total, gathered.start, gathered.width)

    def _is_ready(self, tensor: Symbol) -> bool:
        """Test whether a tensor's values are gathered anyway, or may be at little cost."""
        loop = self.loop
        whole = self._whole(tensor)[0]
        if whole in loop.histories or loop.written_at_all(whole) is not None or self._place(tensor) is not None:
            return True
        return size_of(tensor) <= _SMALL

    def _elements(self, term: Symbol) -> Symbol | None:
        if self._place(term) is None:
            return None
        (gathered,) = self._together([term])
        with self.loop.outside(term.operation):
            return self._to_shape(gathered.part(), term, term.shape or ())

    def _to_shape(self, stacked: Symbol, term: Symbol, shape: Sequence[int | None]) -> Symbol:
        wanted = make_constant(np.array(shape, "int32"))
        return build(SumToShape(tuple(dim or 0 for dim in shape)), stacked, wanted)


def _is_product(operation: Operation) -> bool:
    pieces = list(_pieces(operation))
    return len(pieces) < _MOST_PIECES and all(
        isinstance(piece.op, (MatMul, Contraction, *_COMPOSING)) for piece in pieces
    )


def _pieces(operation: Operation) -> Iterator[Operation]:
    """Yield an operation, and what it is put together of."""
    yield operation
    if isinstance(operation.op, _COMPOSING):
        for tensor in operation.inputs:
            yield from _pieces(tensor.operation)


def is_summed_as_whole(operation: Operation) -> bool:
    """Test whether the products of all iterations, and their sum, are one product."""
    op = operation.op
    is_fit = isinstance(op, Contraction) or (isinstance(op, MatMul) and op.transpose_a and not op.transpose_b)
    return is_fit and is_static(*operation.inputs[:2], *operation.outputs)


def _is_sum_of_products(operation: Operation) -> bool:
    return isinstance(operation.op, SumToShape) and isinstance(operation.inputs[0].operation.op, Multiply)


def _is_sum(operation: Operation) -> bool:
    pieces = [piece.op for piece in _pieces(operation)]
    kinds = (SumToShape, ArrayRead, MatMul, Contraction, *_COMPOSING)
    return len(pieces) < _MOST_PIECES and all(isinstance(op, kinds) for op in pieces)


def _multiplies(term: Symbol, left: Symbol) -> bool:
    op = term.operation.op
    is_sum = isinstance(op, MatMul) and op.transpose_a and not op.transpose_b
    return is_sum and term.operation.inputs[0] is left


def _columns(x: Symbol, start: int, width: int) -> Symbol:
    """Return some of the last axis."""
    rank = len(x.shape or ())
    return symbol_of(x[(*[slice(None)] * (rank - 1), slice(start, start + width))])


def is_zero(tensor: Symbol) -> bool:
    """Test whether a tensor is known to be zeros."""
    op = tensor.operation.op
    return isinstance(op, ZerosOfShape) or (isinstance(op, Constant) and not np.any(op.value))
