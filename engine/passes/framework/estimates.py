"""Estimates of the cost of operations, from their types and static shapes: floating-point operations and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...control_flow.region_op import RegionOp
from ...graph.graph import Operation, Placeholder
from ...graph.op import PRODUCTS, Cost
from ...graph.spec import ArraySpec, Shape, Spec, TensorSpec
from ...graph.state.variable import Variable
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ...ops.text.escape import NumpyFunction

LEAST_FOR_THREADS = 2 * 64**3  # floating-point operations of a product from which OpenBLAS divides it
UNKNOWN_DIMENSION = 32  # what an unknown dimension is taken for
_SMALL_RECORD = 64  # bytes of a value that is no array
_STRING = 16  # bytes of a string


def elements(shape: Shape) -> int:
    """Return the number of elements of a value of that shape; of unknown rank, that of a vector."""
    if shape is None:
        return UNKNOWN_DIMENSION
    return math.prod([UNKNOWN_DIMENSION if dim is None else dim for dim in shape])


def is_static(*tensors: Symbol) -> bool:
    """Test whether all are tensors of known shapes."""
    for tensor in tensors:
        spec = tensor.spec
        if not isinstance(spec, TensorSpec) or not spec.is_static:
            return False
    return True


def size_of(tensor: Symbol) -> int:
    """Return the number of elements of a tensor of known shape."""
    return math.prod([dim or 0 for dim in tensor.shape or ()])


def reduced_row(shape: Sequence[int | None], axes: Sequence[int]) -> int:
    """Return how many elements NumPy reduces in one loop: those of the axes at the end, all reduced or none of them.

    Args:
        shape: of what is reduced.
        axes: over which, none of them negative.
    """
    row = 1
    for axis in reversed(range(len(shape))):
        if (axis in axes) != (len(shape) - 1 in axes):
            break
        row *= shape[axis] or 1
    return row


def bytes_of(spec: Spec) -> int:
    """Return the number of bytes that a value takes.

    >>> import anabranch as ab
    >>> bytes_of(ab.placeholder((3, 4), "float32").spec)
    48
    """
    if isinstance(spec, ArraySpec):
        return (UNKNOWN_DIMENSION if spec.size is None else spec.size) * bytes_of(spec.element)
    if not isinstance(spec, TensorSpec):
        return _SMALL_RECORD
    return elements(spec.shape) * (_STRING if spec.dtype.kind == "T" else spec.dtype.itemsize)


def flops_of(operation: Operation) -> float:
    """Return the floating-point operations of a run; of most kinds of ops, one for each element read or made."""
    op = operation.op
    if op.cost is Cost.NOTHING or op.regions:
        return 0.0
    rule = _RULES.get(op.cost)
    if rule is not None:
        return float(rule(operation.inputs, operation.outputs))
    if op.writes_rows:
        return float(_most_elements(operation.inputs[len(operation.effects) :]))
    return float(max(_most_elements(_parts_of(operation)), _most_elements(operation.outputs)))


def may_use_blas_threads(operation: Operation) -> bool:
    """Test whether NumPy's BLAS, if it runs the operation, may divide it among threads."""
    if operation.op.cost not in PRODUCTS:
        return False
    tensors = (*operation.inputs, *operation.outputs)
    return not is_static(*tensors) or flops_of(operation) >= LEAST_FOR_THREADS


def has_bounded_time(operations: Sequence[Operation]) -> bool:
    """Test whether the shapes of what is fed bound the time of a step, so that no value makes it much longer.

    Loops, branches and recursions don't show that, nor do ops whose results have sizes that values give, ops on
    strings, ops that wait for or change anything, and calls of Python.

    Args:
        operations: those of a prepared step, in which shapes that follow from what is fed are known.
    """
    return all(map(_has_bounded_time, operations))


def _has_bounded_time(operation: Operation) -> bool:
    if isinstance(operation.op, RegionOp | NumpyFunction) or operation.writes:
        return False
    if not all(isinstance(effect.resource, Variable) for effect in operation.effects):
        return False
    tensors = (*operation.inputs, *operation.outputs)
    return is_static(*tensors) and all(tensor.dtype.kind != "T" for tensor in tensors)


def traffic_of(operation: Operation) -> float:
    """Return the number of bytes that a run reads and writes."""
    if operation.op.cost is Cost.NOTHING or operation.op.regions or operation.op.view:
        return 0.0
    read = _parts_of(operation)
    return float(sum([bytes_of(tensor.spec) for tensor in (*read, *operation.outputs)]))


def _parts_of(operation: Operation) -> tuple[Symbol, ...]:
    """Return the tensors of whose size an operation's reads are: where it takes rows, they are read, not the table."""
    return (*operation.inputs[1:], *operation.outputs) if operation.op.reads_rows else operation.inputs


def made_bytes(operation: Operation) -> int:
    """Return the number of bytes of memory that its results take while they are needed."""
    op = operation.op
    if op.regions or op.view or (op.cost is Cost.NOTHING and not isinstance(op, Placeholder | Constant)):
        return 0
    return sum([bytes_of(tensor.spec) for tensor in operation.outputs])


def _most_elements(tensors: tuple[Symbol, ...]) -> int:
    return max([elements(tensor.spec.shape) for tensor in tensors], default=0)


Rule = Callable[[tuple[Symbol, ...], tuple[Symbol, ...]], float]


def _matmul(inputs: tuple[Symbol, ...], outputs: tuple[Symbol, ...]) -> float:
    """Estimate a product: twice the three sizes' product, each of which is in two of the operands and the result."""
    sizes = [elements(tensor.spec.shape) for tensor in (*inputs[:2], outputs[0])]
    return 2.0 * math.sqrt(math.prod(sizes))


def _convolution(inputs: tuple[Symbol, ...], outputs: tuple[Symbol, ...]) -> float:
    """Estimate a convolution: each image element times a channel's filters. (Images are the larger operands.)"""
    values = [elements(tensor.spec.shape) for tensor in (*inputs[:2], outputs[0])]
    filters = min(values)
    shape = min((*inputs[:2], outputs[0]), key=lambda tensor: elements(tensor.spec.shape)).spec.shape
    channels = 1 if shape is None or len(shape) < 2 else (shape[-2] or UNKNOWN_DIMENSION)
    return 2.0 * sorted(values)[1] * filters / max(channels, 1)


def _cubic(inputs: tuple[Symbol, ...], outputs: tuple[Symbol, ...]) -> float:
    return 4.0 * _most_elements(inputs) ** 1.5


def _dear(inputs: tuple[Symbol, ...], outputs: tuple[Symbol, ...]) -> float:
    """Estimate functions of elements that take some 20 operations each."""
    return 20.0 * max(_most_elements(inputs), _most_elements(outputs))


_RULES: dict[Cost, Rule] = {
    Cost.PRODUCT: _matmul,
    Cost.CONVOLUTION: _convolution,
    Cost.FACTORISATION: _cubic,
    Cost.DEAR_ELEMENTS: _dear,
}
