"""Native forms of what divides by a sum of exponentials: softmax, its logarithm, and the logarithm of the sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.graph import Operation
from ...graph.op import Op
from ...ops.math.comparison import Isfinite, Where
from ...ops.math.elementwise import Add, Divide, Subtract
from ...ops.math.mathematics import Exp, Log
from ...ops.math.reduction import LogSumExp
from ...ops.neural.softmax import LogSoftmax, Softmax
from ..expression.expression import UnsupportedError
from .elementwise import print_elementwise, print_reduction
from .function import Array, Form, FormContext, Function, Scalar, Value, reshaped, shape_of
from .scalars import FLOATS, literal

_Plain = Scalar | Array
_CENTRED = ((Subtract(), (0, 1)),)
_WEIGHTS = ((Subtract(), (0, 1)), (Exp(), (2,)))


class _Normalised:
    """One operation over `axes` of an array.

    Args:
        function: the function under construction.
        value: the array.
        axes: those over which it is normalised.
    """

    def __init__(self, function: Function, value: Array, axes: Sequence[int]) -> None:
        self.function = function
        self.value = value
        self.axes = [axis % len(value.shape) for axis in axes]
        self.shape = value.shape
        self.reduced = tuple([1 if axis in self.axes else dim for axis, dim in enumerate(value.shape)])
        self._made: list[Value] = []

    def reduce(self, kind: str, value: _Plain) -> _Plain:
        return self._keep(print_reduction(self.function, kind, value, self.axes, self.reduced))

    def compute(self, steps: Sequence[tuple[Op, tuple[int, ...]]], inputs: Sequence[_Plain], shape: Any) -> _Plain:
        """Return the last of elementwise steps."""
        last = len(inputs) + len(steps) - 1
        kind = self.value.kind
        (found,) = print_elementwise(self.function, list(steps), [last], inputs, [shape], [kind], [None])
        return self._keep(found)

    def done(self, result: _Plain) -> list[Value]:
        """Return the result, when all else has given back its memory."""
        for value in self._made:
            if value is not result:
                self.function.release(value)
        self.function.disown(result)
        return [result]

    def _keep(self, value: Value) -> _Plain:
        assert isinstance(value, (Scalar, Array))
        self._made.append(value)
        self.function.hold(value)
        return value


def _softmax(n: _Normalised) -> _Plain:
    weights = n.compute(_WEIGHTS, [n.value, n.reduce("max", n.value)], n.shape)
    return n.compute([(Divide(), (0, 1))], [weights, n.reduce("sum", weights)], n.shape)


def _log_softmax(n: _Normalised) -> _Plain:
    centred = n.compute(_CENTRED, [n.value, n.reduce("max", n.value)], n.shape)
    total = n.reduce("sum", n.compute([(Exp(), (0,))], [centred], n.shape))
    return n.compute([(Log(), (1,)), (Subtract(), (0, 2))], [centred, total], n.shape)


def _log_sum_exp(n: _Normalised) -> _Plain:
    zero = Scalar(literal(0, n.value.kind), n.value.kind)
    finite = [(Isfinite(), (0,)), (Where(), (2, 0, 1))]
    peak = n.compute(finite, [n.reduce("max", n.value), zero], n.reduced)
    total = n.reduce("sum", n.compute(_WEIGHTS, [n.value, peak], n.shape))
    return n.compute([(Log(), (0,)), (Add(), (2, 1))], [total, peak], n.reduced)


def _form(make: Any) -> Form:
    def form(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
        (value,) = inputs
        op: Any = operation.op
        if not isinstance(value, Array) or value.kind not in FLOATS or not value.size:
            raise UnsupportedError(op.type_name)
        axes = range(len(value.shape)) if op.axes is None else op.axes
        normalised = _Normalised(context.function, value, list(axes))
        (result,) = normalised.done(make(normalised))
        shape = shape_of(operation.outputs[0])
        return [
            result if isinstance(result, Array) and result.shape == shape else reshaped(context.function, result, shape)
        ]

    return form


FORMS: dict[type[Any], Form] = {
    LogSoftmax: _form(_log_softmax),
    LogSumExp: _form(_log_sum_exp),
    Softmax: _form(_softmax),
}
