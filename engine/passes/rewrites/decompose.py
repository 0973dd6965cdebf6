"""Write operations that have no kernel as elementwise operations and reductions, which have.

The cross-entropy of class numbers takes an element of each row at a place that is known at run time only, which no
kernel does: so it takes a pass over the scores for each of its steps. By comparing class numbers with the numbers of
all classes it is part of a kernel, often of one with its gradient, and reads the scores once. That class numbers are in
range is tested before. The gradient of a maximum or minimum compares each element with that, and counts. A product of
matrices over one term, such as the gradient of what goes into a layer of one unit, multiplies a column by a row.
`any` and `all` of many elements count those that decide, where NumPy would go from row to row.
"""

from __future__ import annotations

import numpy as np

from ...common import dtypes
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.tensor import Symbol
from ...ops.arrays.shaping import BroadcastTo, ExpandDims, Reshape, Squeeze
from ...ops.base import Cast, Constant, normalize_axes
from ...ops.internal.checked_classes import CheckedClasses
from ...ops.linear_algebra.products import MatMul
from ...ops.math.comparison import Equal, Maximum, NotEqual, Where
from ...ops.math.elementwise import Add, Divide, Multiply, Subtract
from ...ops.math.mathematics import Exp, Log
from ...ops.math.reduced import BroadcastReduced, Sum
from ...ops.math.reduction import AllTrue, AnyTrue, Max, TieShare
from ...ops.neural.softmax import PlaceClass, SelectClass, SparseCrossEntropy, SparseCrossEntropyGrad
from ..framework.driver import Change, Rule
from ..framework.estimates import reduced_row, size_of
from ..framework.log import note_kept
from ..framework.patterns import Match, constant_of, op
from ..framework.rewriter import Rewriter

_MOST_CLASSES = 2**31 - 1  # of which each number is an int32
_LEAST_COUNTED = 1 << 13  # elements of which NumPy's loop over rows takes longer than a kernel
_LONG_ROW = 128  # elements of a mask, along which NumPy is as fast
_COMPARES = "compares class numbers with those of all classes"


class _Writer:
    """Writes operations in the place of one.

    Attributes:
        place: the operation.
        dtype: the type in which it is computed: float32 for half precision.
    """

    def __init__(self, step: Rewriter, place: Operation, dtype: dtypes.DType) -> None:
        self.step = step
        self.place = place
        self.dtype = dtypes.accumulator_of(dtype) or dtype

    def put(self, definition: Op, *inputs: Symbol) -> Symbol:
        """Insert an operation of one result."""
        return self.step.insert(self.place.graph, definition, inputs, self.place).outputs[0]

    def constant(self, value: object, dtype: dtypes.DType) -> Symbol:
        """Insert a constant."""
        return self.put(Constant(np.asarray(value, dtype)[()]))

    def cast(self, value: Symbol, dtype: dtypes.DType) -> Symbol:
        """Insert a cast, where one is needed."""
        return value if value.dtype == dtype else self.put(Cast(dtype), value)

    def wide(self, value: Symbol) -> Symbol:
        """Return a value in the type in which it is computed."""
        return self.cast(value, self.dtype)

    def finish(self, *results: Symbol) -> None:
        """Let all that uses the outputs of the operation use these results, and erase it."""
        for old, new in zip(self.place.outputs, results, strict=True):
            self.step.replace_uses(old, new)
        self.step.erase(self.place)


class _ClassWriter(_Writer):
    """Writes operations in the place of one whose last axis is one of classes."""

    def __init__(self, step: Rewriter, place: Operation, scores: Symbol) -> None:
        super().__init__(step, place, scores.dtype)
        assert scores.shape is not None, f"the pattern asks for a known number of classes, not {scores!r}"
        self.classes: int = scores.shape[-1] or 0
        self.axes = (len(scores.shape) - 1,)

    def column(self, rows: Symbol) -> Symbol:
        """Return what each row has, to go with all classes; one number, if it is known to be the same for all rows."""
        source = rows.operation
        if isinstance(source.op, (BroadcastReduced, BroadcastTo)) and source.inputs[0].shape == ():
            return source.inputs[0]
        value = constant_of(rows, self.step)
        if value is not None and value.size and (value == value.flat[0]).all():
            return self.constant(value.flat[0], rows.dtype)
        return self.put(ExpandDims((-1,)), rows)

    def hits(self, labels: Symbol) -> Symbol:
        """Return for each row and class whether it is the row's, after the test that class numbers are in range.

        The gradient of an operation finds what was written for that.
        """
        column = self._once(ExpandDims((-1,)), self._once(CheckedClasses(self.classes), labels))
        return self._once(Equal(), column, np.arange(self.classes))

    def _once(self, definition: Op, value: Symbol, other: object = None) -> Symbol:
        """Return what an operation before computes of a value by this definition; insert one where there is none."""
        for user in self.step.users(value):
            if user.op == definition and user.index <= self.place.index:
                return user.outputs[0]
        return self.put(definition, value, *([] if other is None else [self.constant(other, value.dtype)]))

    def chosen(self, hits: Symbol, values: Symbol) -> Symbol:
        """Return the value of each row's class, and a last axis of size 1."""
        zero = self.constant(0, values.dtype)
        return self.put(Sum(self.axes, True), self.put(Where(), hits, values, zero))


def _has_classes(operation: Operation) -> bool:
    """Test that the number of classes is known."""
    shape = operation.inputs[0].shape
    return bool(shape) and shape[-1] is not None and 0 < shape[-1] <= _MOST_CLASSES


def _cross_entropy(match: Match, step: Rewriter) -> Change:
    place: Operation = match["place"]
    scores, labels = place.inputs
    to = _ClassWriter(step, place, scores)
    wide = to.wide(scores)
    centred = to.put(Subtract(), wide, to.put(Max(to.axes, True), wide))
    weights = to.put(Exp(), centred)
    total = to.put(Sum(to.axes, True), weights)
    chosen = to.chosen(to.hits(labels), centred)
    loss = to.put(Squeeze(to.axes), to.put(Subtract(), to.put(Log(), total), chosen))
    softmax = to.put(Multiply(), weights, to.put(Divide(), to.constant(1, to.dtype), total))
    to.finish(to.cast(loss, scores.dtype), to.cast(softmax, scores.dtype))
    return Change(place, _COMPARES)


def _cross_entropy_grad(match: Match, step: Rewriter) -> Change:
    place: Operation = match["place"]
    softmax, labels, dloss = place.inputs
    to = _ClassWriter(step, place, softmax)
    one, zero = to.constant(1, to.dtype), to.constant(0, to.dtype)
    excess = to.put(Subtract(), to.wide(softmax), to.put(Where(), to.hits(labels), one, zero))
    dscores = to.put(Multiply(), excess, to.wide(to.column(dloss)))
    to.finish(to.cast(dscores, softmax.dtype))
    return Change(place, _COMPARES)


def _select_class(match: Match, step: Rewriter) -> Change | None:
    place: Operation = match["place"]
    scores, labels = place.inputs
    if step.is_only_use(scores):
        return None  # it reads one element of each row
    to = _ClassWriter(step, place, scores)
    to.finish(to.put(Squeeze(to.axes), to.chosen(to.hits(labels), scores)))
    return Change(place, _COMPARES)


def _place_class(match: Match, step: Rewriter) -> Change | None:
    place: Operation = match["place"]
    (result,), (values, labels, _) = place.outputs, place.inputs
    if not result.shape or not result.shape[-1] or not labels.shape == values.shape == result.shape[:-1]:
        return None  # what is written would have another shape, as far as that is known before the run
    to = _ClassWriter(step, place, result)
    to.finish(to.put(Where(), to.hits(labels), to.column(values), to.constant(0, values.dtype)))
    return Change(place, _COMPARES)


def _tie_share(match: Match, step: Rewriter) -> Change | None:
    place: Operation = match["place"]
    (x, y), own = place.inputs, place.op
    assert isinstance(own, TieShare)
    if x.shape is None or not dtypes.is_floating(x.dtype):
        return None
    axes = normalize_axes(own.axes, len(x.shape))
    if not axes:
        return None
    to = _Writer(step, place, x.dtype)
    full = y if own.keepdims else to.put(ExpandDims(tuple(sorted(axes))), y)
    one, zero = to.constant(1, to.dtype), to.constant(0, to.dtype)
    hits = to.put(Where(), to.put(Equal(), x, full), one, zero)
    count = to.put(Sum(axes, True), hits)
    if own.initial is not None:
        is_initial = to.put(Equal(), full, to.constant(own.initial, x.dtype))
        count = to.put(Add(), count, to.put(Where(), is_initial, one, zero))
    share = to.put(Divide(), hits, to.put(Maximum(), count, one))
    to.finish(to.cast(share, x.dtype))
    return Change(place, "compares elements with the extremum, and counts")


def _product_of_one_term(match: Match, step: Rewriter) -> Change | None:
    place: Operation = match["place"]
    (a, b), own = place.inputs, place.op
    (result,) = place.outputs
    assert isinstance(own, MatMul)
    if (a.shape or ())[0 if own.transpose_a else 1 :][:1] != (1,) or not dtypes.is_floating(result.dtype):
        return None
    rows, columns = result.shape or (None, None)
    if (own.transpose_a and rows is None) or (own.transpose_b and columns is None):
        return None
    to = _Writer(step, place, result.dtype)
    column = to.put(Reshape((rows, 1)), a) if own.transpose_a else a
    row = to.put(Reshape((1, columns)), b) if own.transpose_b else b
    to.finish(to.put(Multiply(), column, row))
    return Change(place, "multiplies a column by a row")


def _logical(match: Match, step: Rewriter) -> Change | None:
    place: Operation = match["place"]
    (x,), own = place.inputs, place.op
    assert isinstance(own, (AllTrue, AnyTrue))
    if x.shape is None or None in x.shape or x.dtype != dtypes.bool_ or size_of(x) < _LEAST_COUNTED:
        return None
    axes = normalize_axes(own.axes, len(x.shape))
    is_made_there = x.operation.op.elementwise and step.is_only_use(x)
    if not axes or (reduced_row(x.shape, axes) > _LONG_ROW and not is_made_there):
        note_kept("decompose", place, "NumPy stops at the first element of a row that decides")
        return None
    to = _Writer(step, place, dtypes.int32)
    counted = (1, 0) if isinstance(own, AnyTrue) else (0, 1)
    count = to.put(Sum(axes, own.keepdims), to.put(Where(), x, *[to.constant(each, dtypes.int32) for each in counted]))
    to.finish(to.put(NotEqual() if isinstance(own, AnyTrue) else Equal(), count, to.constant(0, dtypes.int32)))
    return Change(place, "counts the elements that decide")


RULES = (
    Rule("cross-entropy", op(SparseCrossEntropy, name="place", where=_has_classes), _cross_entropy),
    Rule("its gradient", op(SparseCrossEntropyGrad, name="place", where=_has_classes), _cross_entropy_grad),
    Rule("select the score of a class", op(SelectClass, name="place", where=_has_classes), _select_class),
    Rule("place a score at its class", op(PlaceClass, name="place"), _place_class),
    Rule("gradient of an extremum", op(TieShare, name="place"), _tie_share),
    Rule("some or all of many elements", op(AllTrue, AnyTrue, name="place"), _logical),
    Rule("product of one term", op(MatMul, name="place"), _product_of_one_term),
)

__all__ = ["RULES"]
