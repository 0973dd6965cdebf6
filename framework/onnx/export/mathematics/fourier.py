"""Fourier transforms, and sequences of a signal. Complex numbers are pairs of tensors in the file.

ONNX has no operators for complex numbers, but `DFT` takes and gives their parts along an axis of two. Operations on
complex numbers without a rule here are refused by the walk over the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .....engine.common.quick_dataclass import dataclass
from .....engine.graph.graph import Operation
from .....engine.ops.math.complex_numbers import complex_type, part_type
from .....engine.ops.signal.fourier import (
    FourierTransform,
    InverseRealTransform,
    InverseRealTransformBack,
    RealTransform,
    RealTransformBack,
)
from .....engine.ops.signal.short_time import ExtractSequences, OverlapAdd
from ....structures import Array
from ..registry import Rule, exports, op_of
from ..shapes import positions, rank_of, reversed_along, shape_input
from ..writer import LONG, Writer

_END = 2**63 - 1


@dataclass(frozen=True)
class Complex:
    """Complex numbers: the names of their real and imaginary parts, of one shape."""

    real: str
    imaginary: str


# By op the rule for complex numbers: those that transforms, their parts and gradients are made of.
COMPLEX_RULES: dict[str, Rule] = {}


def _takes_complex(*type_names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of ops where an input is complex."""

    def register(write: Rule) -> Rule:
        COMPLEX_RULES.update(dict.fromkeys(type_names, write))
        return write

    return register


def _as_complex(w: Writer, x: Complex | str) -> Complex:
    if isinstance(x, Complex):
        return x
    return Complex(x, w.zeros(w.shape(x), w.dtypes[x]))


def constant_parts(w: Writer, value: Array) -> Complex:
    """Return constant complex numbers."""
    return Complex(*[w.constant(np.ascontiguousarray(part)) for part in (np.real(value), np.imag(value))])


@_takes_complex("cast")
def cast_parts(w: Writer, node: Operation, x: Complex | str) -> Complex | str:
    """Write a cast from or to complex numbers."""
    dtype = node.outputs[0].dtype
    if dtype.kind != "c":
        return w.cast(_as_complex(w, x).real, dtype)
    part = part_type(dtype)
    if isinstance(x, str):
        return _as_complex(w, w.cast(x, part))
    return Complex(w.cast(x.real, part), w.cast(x.imaginary, part))


@_takes_complex("add", "subtract")
def _added(w: Writer, node: Operation, x: Complex | str, y: Complex | str) -> Complex:
    a, b = _as_complex(w, x), _as_complex(w, y)
    op_type = "Add" if node.type == "add" else "Sub"
    return Complex(w.add(op_type, a.real, b.real), w.add(op_type, a.imaginary, b.imaginary))


@_takes_complex("negative")
def _negative(w: Writer, node: Operation, z: Complex) -> Complex:
    return Complex(w.add("Neg", z.real), w.add("Neg", z.imaginary))


@_takes_complex("multiply")
def _multiplied(w: Writer, node: Operation, x: Complex | str, y: Complex | str) -> Complex:
    a, b = _as_complex(w, x), _as_complex(w, y)
    real = w.add("Sub", w.add("Mul", a.real, b.real), w.add("Mul", a.imaginary, b.imaginary))
    return Complex(real, w.add("Add", w.add("Mul", a.real, b.imaginary), w.add("Mul", a.imaginary, b.real)))


@exports("from_parts")
def _from_parts(w: Writer, node: Operation, real: str, imaginary: str) -> Complex:
    dtype = np.dtype("float64" if complex_type(node.inputs[0].dtype) == np.complex128 else "float32")
    parts = [w.cast(each, dtype) for each in (real, imaginary)]
    if node.inputs[0].shape != node.inputs[1].shape or None in (node.inputs[0].shape or (None,)):
        parts = [w.expand(parts[0], w.shape(parts[1])), w.expand(parts[1], w.shape(parts[0]))]
    return Complex(*parts)


@exports("real_part")
@_takes_complex("real_part")
def _real_part(w: Writer, node: Operation, z: Complex) -> str:
    return z.real


@exports("imaginary_part")
@_takes_complex("imaginary_part")
def _imaginary_part(w: Writer, node: Operation, z: Complex) -> str:
    return z.imaginary


@exports("conjugate")
@_takes_complex("conjugate")
def _conjugate(w: Writer, node: Operation, z: Complex) -> Complex:
    return Complex(z.real, w.add("Neg", z.imaginary))


# --- transforms -----------------------------------------------------------------------------------------------------


def _transformed(
    w: Writer, parts: Sequence[str], length: str = "", inverse: bool = False, half: bool = False
) -> Complex:
    """Return the transform along the last axis.

    Args:
        w: what appends the nodes.
        parts: the real part, or both.
        length: to which the axis is cut or padded first, an int64 scalar; by default its own.
        inverse: as of ONNX's `DFT`.
        half: of real numbers, give the first half of the values only.
    """
    shape = w.shape(parts[0])
    lead = w.slice(shape, 0, -1, 0)
    rows = w.add("ReduceProd", lead, w.ints(0), keepdims=1)  # DFT has one axis for batches
    matrix = w.concat([rows, w.slice(shape, -1, _END, 0), w.ints(1)], 0)
    x = w.concat([w.reshape(each, matrix) for each in parts], -1) if len(parts) > 1 else w.reshape(parts[0], matrix)
    axis = w.constant(np.array(1, LONG)) if w.opset >= 20 else ""  # an input from there on, else an attribute
    given = [x, length, axis] if axis else [x, length]
    found = w.add("DFT", *given, axis=None if axis else 1, inverse=int(inverse), onesided=int(half))
    whole = w.concat([lead, w.dim(found, 1)], 0)
    place = [w.add("Gather", found, w.constant(np.array(part, LONG)), axis=2) for part in (0, 1)]
    return Complex(*[w.reshape(each, whole) for each in place])


def _fitted(w: Writer, x: str, size: str) -> str:
    """Return a tensor with its last axis cut, or padded with zeros, to a size, an int64 vector of one element."""
    lead = w.slice(w.shape(x), 0, -1, 0)
    zeros = w.zeros(w.concat([lead, size], 0), w.dtypes[x])
    return w.slice(w.concat([x, zeros], -1), 0, size, -1)


def _half_of(w: Writer, size: str) -> str:
    """Return ``size // 2 + 1``."""
    return w.add("Add", w.add("Div", size, w.ints(2)), w.ints(1))


@exports("fourier_transform")
@_takes_complex("fourier_transform")
def _fourier_transform(w: Writer, node: Operation, z: Complex) -> Complex:
    op, rank = op_of(node, FourierTransform), rank_of(node)
    for axis in range(rank - op.rank, rank):
        order = [*[k for k in range(rank) if k != axis], axis]
        parts = [w.transpose(each, order) for each in (z.real, z.imaginary)]
        found = _transformed(w, parts, inverse=op.inverse)
        z = Complex(*[w.transpose(each, list(np.argsort(order))) for each in (found.real, found.imaginary)])
    return z


@exports("real_transform")
def _real_transform(w: Writer, node: Operation, x: str) -> Complex:
    op = op_of(node, RealTransform)
    if op.length is not None and node.inputs[0].shape is not None and node.inputs[0].shape[-1] != op.length:
        x = _fitted(w, x, w.ints(op.length))
    return _transformed(w, [x], half=True)


@exports("inverse_real_transform")
@_takes_complex("inverse_real_transform")
def _inverse_real_transform(w: Writer, node: Operation, z: Complex) -> str:
    """Transform the values with those that are left out: the conjugates of the others, from the last one on."""
    op = op_of(node, InverseRealTransform)
    count = w.dim(z.real, -1)
    size = w.add("Mul", w.add("Sub", count, w.ints(1)), w.ints(2)) if op.length is None else w.ints(op.length)
    if op.length is not None and (node.inputs[0].shape or (None,))[-1] != op.length // 2 + 1:
        z = Complex(*[_fitted(w, each, _half_of(w, size)) for each in (z.real, z.imaginary)])
    behind = w.add("Add", w.add("Div", w.add("Sub", size, w.ints(1)), w.ints(2)), w.ints(1))
    mirrored = [reversed_along(w, w.slice(each, 1, behind, -1), [-1]) for each in (z.real, z.imaginary)]
    whole = [w.concat([z.real, mirrored[0]], -1), w.concat([z.imaginary, w.add("Neg", mirrored[1])], -1)]
    return _transformed(w, whole, inverse=True).real


# --- transposes, which gradients take -------------------------------------------------------------------------------


@exports("real_transform_back")
@_takes_complex("real_transform_back")
def _real_transform_back(w: Writer, node: Operation, dy: Complex, shape: str) -> str:
    """Transform the cotangent, with zeros for the values that are left out."""
    op = op_of(node, RealTransformBack)
    size = w.slice(shape_input(w, shape), -1, _END, 0)
    length = size if op.length is None else w.ints(op.length)
    padded = [_fitted(w, each, length) for each in (dy.real, dy.imaginary)]
    found = _transformed(w, padded).real
    return found if op.length is None else _fitted(w, found, size)


@exports("inverse_real_transform_back")
def _inverse_real_transform_back(w: Writer, node: Operation, dy: str, shape: str) -> Complex:
    """Transform the cotangent; values that stand for their conjugates, too, count twice."""
    op, size = op_of(node, InverseRealTransformBack), w.dim(dy, -1)
    found = _transformed(w, [dy], half=True)
    places = positions(w, w.dim(found.real, -1))
    twice = w.add("Mul", places, w.ints(2))
    once = w.add("Or", w.compare("Equal", places, w.ints(0)), w.compare("Equal", twice, size))
    shares = w.add("Div", w.where(once, w.like(1, dy), w.like(2, dy)), w.cast(size, w.dtypes[dy]))
    parts = [w.add("Mul", found.real, shares), w.add("Mul", w.add("Neg", found.imaginary), shares)]
    wanted = w.slice(shape_input(w, shape), -1, _END, 0)
    same = op.shape is not None and op.shape[-1] is not None and node.inputs[0].shape is not None
    if same and op.shape is not None and node.inputs[0].shape == (*op.shape[:-1], 2 * ((op.shape[-1] or 1) - 1)):
        return Complex(*parts)
    return Complex(*[_fitted(w, each, wanted) for each in parts])


# --- sequences of a signal ------------------------------------------------------------------------------------------


@exports("extract_sequences")
def _extract_sequences(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, ExtractSequences)
    reach = w.add("Sub", w.dim(x, -1), w.ints(op.length - op.stride))
    count = w.add("Max", w.add("Div", reach, w.ints(op.stride)), w.ints(0))  # what is divided may be negative
    starts = w.add("Mul", positions(w, count), w.ints(op.stride))
    places = w.add("Add", w.unsqueeze(starts, 1), w.constant(np.arange(op.length, dtype=LONG)))
    return w.add("Gather", x, places, axis=-1)


@exports("overlap_add")
def _overlap_add(w: Writer, node: Operation, x: str, *shape: str) -> str:
    """Add sequences up as whole strides, each of which is a row."""
    op, rank = op_of(node, OverlapAdd), rank_of(node)
    parts = -(-op.length // op.stride)
    none = w.like(0, x)
    padded = w.add("Pad", x, w.ints(*[0] * (2 * rank - 1), parts * op.stride - op.length), none)
    lead, count = w.slice(w.shape(x), 0, -2, 0), w.dim(x, -2)
    pieces = w.reshape(padded, w.concat([lead, count, w.ints(parts, op.stride)], 0))
    total = ""
    for part in range(parts):
        piece = w.squeeze(w.slice(pieces, part, part + 1, rank - 1), rank - 1)
        widths = [0] * (2 * rank)
        widths[rank - 2], widths[2 * rank - 2] = part, parts - 1 - part
        moved = w.add("Pad", piece, w.ints(*widths), none)
        total = w.add("Add", total, moved) if total else moved
    rows = w.add("Add", count, w.ints(parts - 1))
    joined = w.reshape(total, w.concat([lead, w.add("Mul", rows, w.ints(op.stride))], 0))
    if shape:
        return _fitted(w, joined, w.slice(shape_input(w, shape[0]), -1, _END, 0))
    reach = w.add("Add", w.add("Mul", count, w.ints(op.stride)), w.ints(op.length - op.stride))
    some = w.cast(w.compare("Greater", count, w.ints(0)), LONG)
    return w.slice(joined, 0, w.add("Mul", reach, some), rank - 2)
