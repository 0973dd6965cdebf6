"""Products of rounded rows and matrices of int8, and matrices of four-bit integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ....engine.common import dtypes
from ....engine.graph.graph import Operation
from ....engine.ops.neural.int4 import DequantizeInt4
from ....engine.ops.neural.quantized import QuantizedMatMul
from ....layers.quantizers.packing import unpacked_array
from .products import extremum_or, reduced
from .registry import exports, op_of
from .writer import BOOL, FLOAT, INT, LONG, Writer

if TYPE_CHECKING:
    from ...structures import Array

_MIDDLE = 128  # what a number of int8 is larger by as an unsigned one
_INT4_OPSET = 21  # the first with four-bit integers, and with groups that share a scale


@exports("quantized_matmul")
def _quantized_matmul(w: Writer, node: Operation, x: str, kernel: str, scale: str, inputs_scale: str = "") -> str:
    """Round each row by a scale of its own, which ``DynamicQuantizeLinear``, with one for a tensor, does not do."""
    op = op_of(node, QuantizedMatMul)
    if op.transpose:
        kernel = w.transpose(kernel, [1, 0])
    work = np.dtype("float64") if w.dtypes[x] == np.dtype("float64") else FLOAT
    rows = w.cast(x, work)
    known = w.known(inputs_scale) if op.is_fixed else None
    if known is not None:
        return w.cast(_between_quantizers(w, op, rows, kernel, scale, float(known)), w.dtypes[x])
    if op.is_fixed:
        inputs_scale = w.cast(inputs_scale, work)
    else:
        largest = extremum_or(w, "ReduceMax", w.add("Abs", rows), (1,), True, 0)
        # onnxruntime's maximum leaves NaNs out; such a row, and one with an infinity, is NaN.
        largest = w.add("Add", largest, reduced(w, "ReduceSum", w.add("Mul", rows, w.like(0, rows)), (1,), True))
        inputs_scale = w.add("Div", w.like(op.high, rows), w.add("Add", largest, w.like(op.epsilon, rows)))
    rounded = w.add(
        "Clip", w.add("Round", w.add("Mul", rows, inputs_scale)), w.like(op.low, rows), w.like(op.high, rows)
    )
    rounded = w.where(w.add("IsNaN", rounded, dtype=BOOL), w.like(0, rows), rounded)
    sums = _integer_product(w, rounded, kernel, (node.inputs[1].shape or (None,) * 2)[int(op.transpose)])
    scales = w.add("Mul", inputs_scale, w.cast(scale, work))
    return w.cast(w.add("Div", w.cast(sums, work), scales), w.dtypes[x])


def _integer_product(w: Writer, rows: str, kernel: str, terms: int | None) -> str:
    """Return the product, int32, of whole numbers within int8's range and a matrix of int8.

    Both become unsigned, 128 larger: of signed rows onnxruntime multiplies one number at a time on x86, and of unsigned
    rows and signed matrices its sums of 16 bits may saturate on AVX2. A product of no terms is not 0 there, so that a
    term of zeros is added to none.
    """
    if not terms:
        columns = w.zeros(w.concat([w.dim(rows, 0), w.ints(1)], 0), w.dtypes[rows])
        rows = w.concat([rows, columns], 1)
        kernel = w.concat([kernel, w.zeros(w.concat([w.ints(1), w.dim(kernel, 1)], 0), "int8")], 0)
    zero = w.constant(np.array(_MIDDLE, "uint8"))
    left = w.cast(w.add("Add", rows, w.like(_MIDDLE, rows)), "uint8")
    right = w.once(("unsigned", kernel), lambda: _unsigned(w, kernel))
    return w.add("MatMulInteger", left, right, zero, zero, dtype=INT)


def _unsigned(w: Writer, kernel: str) -> str:
    """Return a matrix of int8 as uint8, 128 larger."""
    known = w.known(kernel)
    if known is None:
        whole = w.cast(kernel, INT)
        return w.cast(w.add("Add", whole, w.like(_MIDDLE, whole)), "uint8")
    made = w.constant(known.view("uint8") ^ np.uint8(_MIDDLE), name=f"{kernel}/unsigned")
    w.weights.add(made)
    return made


def _between_quantizers(w: Writer, op: QuantizedMatMul, rows: str, kernel: str, scale: str, inputs_scale: float) -> str:
    """Return a product with fixed scales of both sides as ``QuantizeLinear`` and ``DequantizeLinear`` around a product.

    Runtimes compute it by integers, which are unsigned for the reason of `_integer_product`. What the scale takes out
    of range is cut off before, at the op's limits.
    """
    step = w.constant(np.array(1 / inputs_scale, FLOAT))
    zero = w.constant(np.array(_MIDDLE, "uint8"))
    rows = w.cast(rows, FLOAT)
    limits = [w.constant(np.array(limit / inputs_scale, FLOAT)) for limit in (op.low, op.high)]
    inside = w.where(w.add("IsNaN", rows, dtype=BOOL), rows, w.add("Clip", rows, *limits))
    rounded = w.add("QuantizeLinear", inside, step, zero, dtype=np.dtype("uint8"))
    left = w.add("DequantizeLinear", rounded, step, zero, dtype=FLOAT)
    scale = w.cast(scale, FLOAT)
    known = w.known(scale)
    if known is None:
        steps = w.add("Reciprocal", scale)
        zeros = w.add("Add", w.zeros(w.dim(scale, 0), "uint8"), zero)
    else:
        steps = w.constant(1 / known, name=f"{scale}/step")
        zeros = w.constant(np.full(known.shape, _MIDDLE, "uint8"))
    unsigned = w.once(("unsigned", kernel), lambda: _unsigned(w, kernel))
    right = w.add("DequantizeLinear", unsigned, steps, zeros, dtype=FLOAT, axis=1)
    return w.add("MatMul", left, right)


@exports("dequantize_int4")
def _dequantize_int4(w: Writer, node: Operation, packed: str, scale: str, zero: str, group: str) -> str:
    op = op_of(node, DequantizeInt4)
    arrays = [w.known(name) for name in (packed, scale, zero, group)]
    block = None if any(array is None for array in arrays) else _block_of(arrays[3], len(arrays[1]))
    fits = block is not None and w.opset >= _INT4_OPSET and np.all(np.abs(arrays[2] + np.int16(0) + 0.5) < 8)
    if fits and dtypes.name_of(w.dtypes[scale]) in ("float32", "float16"):
        int4, _ = dtypes.four_bit_dtypes()
        integers = w.constant(unpacked_array(arrays[0], op.columns).astype(int4), name=f"{packed}/int4")
        zeros = w.constant(arrays[2].astype(int4), name=f"{zero}/int4")
        w.weights.update((integers, zeros))
        return w.add("DequantizeLinear", integers, scale, zeros, dtype=w.dtypes[scale], axis=0, block_size=block)
    groups = w.cast(group, LONG)
    numbers = w.cast(_unpacking(w, packed, op.columns), w.dtypes[scale])
    zeros = w.cast(w.add("Gather", zero, groups), w.dtypes[scale])
    return w.add("Mul", w.add("Sub", numbers, zeros), w.add("Gather", scale, groups))


def _block_of(group: Array, groups: int) -> int | None:
    """Return the number of terms in a group if groups follow each other, all alike but the last; None otherwise."""
    terms = len(group)
    if not terms or not groups:
        return None
    block = int(np.count_nonzero(group == 0))
    alike = block > 0 and -(-terms // block) == groups and np.array_equal(group, np.arange(terms) // block)
    return block if alike else None


def _unpacking(w: Writer, packed: str, columns: int) -> str:
    """Return the integers, int32, of a matrix of bytes that is computed."""
    known = w.known(packed)
    if known is not None:
        integers = w.constant(unpacked_array(known, columns), name=f"{packed}/unpacked")
        w.weights.add(integers)
        return w.cast(integers, INT)
    byte = w.cast(packed, INT)
    bits = w.add("BitwiseAnd", byte, w.like(15, byte))
    low = w.add("Sub", w.add("BitwiseXor", bits, w.like(8, byte)), w.like(8, byte))
    high = w.add("Div", w.add("Sub", byte, bits), w.like(16, byte))
    pairs = w.concat([w.unsqueeze(low, 2), w.unsqueeze(high, 2)], 2)
    rows = w.concat([w.dim(packed, 0), w.add("Mul", w.dim(packed, 1), w.ints(2))], 0)
    return w.slice(w.reshape(pairs, rows), 0, columns, 1)
