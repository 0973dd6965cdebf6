"""Write outer products, matrix products that add up one term, as elementwise products, which are fused as such.

The gradient of a layer with one unit is such a product, and so is the gradient of weights for a single row: BLAS would
write it down, and what follows would read it again. -0.0 is 0.0 in a matrix product, and stays -0.0 here; sums of what
follows may be taken in another order, as in all that is fused.
"""

from __future__ import annotations

from ...graph.graph import Operation
from ...graph.region import Region
from ...graph.tensor import Symbol
from ...ops.arrays.shaping import Reshape
from ...ops.linear_algebra.linalg import MatMul
from ...ops.math.elementwise import Multiply
from ..framework.driver import Change, Rule
from ..framework.patterns import Match, op
from ..framework.rewriter import Rewriter


def _is_outer(product: Operation) -> bool:
    """Test for a product of a column by a row, of floats, outside of loops: passes for these look for products."""
    own, (a, b) = product.op, product.inputs
    if type(own) is not MatMul or isinstance(product.graph, Region) or a.dtype.kind != "f":
        return False
    return _has_one(a, 1, own.transpose_a) and _has_one(b, 0, own.transpose_b)


def _has_one(x: Symbol, axis: int, is_transposed: bool) -> bool:
    """Test for size 1 on an axis, counted after the transpose, which takes a known shape."""
    if x.shape is None or (is_transposed and None in x.shape):
        return False
    return x.shape[1 - axis if is_transposed else axis] == 1


def _multiply(match: Match, step: Rewriter) -> Change:
    product = match["product"]
    (a, b), own = product.inputs, product.op
    step.update(
        product, Multiply(), [_turned(a, own.transpose_a, step, product), _turned(b, own.transpose_b, step, product)]
    )
    return Change(product, "adds up one term, so that it is an elementwise product")


def _turned(x: Symbol, is_transposed: bool, step: Rewriter, product: Operation) -> Symbol:
    if not is_transposed:
        return x
    shape = tuple([size or 0 for size in reversed(x.shape or ())])
    return step.insert(product.graph, Reshape(shape), [x], product).outputs[0]


RULES = (Rule("outer products", op(MatMul, name="product", where=_is_outer, may_wait=True), _multiply),)

__all__ = ["RULES"]
