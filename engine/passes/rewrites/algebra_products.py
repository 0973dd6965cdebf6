"""Rules of products of arrays: transposes become part of them, and those of two matrices are products of matrices."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from ...graph.graph import Operation
from ...graph.tensor import Symbol
from ...ops.arrays.axes import Transpose
from ...ops.arrays.shaping import Reshape
from ...ops.linear_algebra.einsum import Contraction
from ...ops.linear_algebra.products import BatchMatMul, MatMul
from ..framework.patterns import ANY, Match, only_use, op, tensor
from ..framework.rules import Rewrite, Rule, Site, shape_of

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _contraction_of(op: Any, inputs: Sequence[Symbol]) -> Contraction | None:
    """Return a product of stacks of matrices as a contraction by labels."""
    if isinstance(op, Contraction):
        return op
    shapes = [tensor.shape for tensor in inputs]
    if any(shape is None for shape in shapes):
        return None
    ranks = [len(shape or ()) - 2 for shape in shapes]
    if max(ranks) > len(_LETTERS) - 3:
        return None
    batch, row, term, column = _LETTERS[: max(ranks)], *_LETTERS[-3:]
    a = batch[max(ranks) - ranks[0] :] + (term + row if op.transpose_a else row + term)
    b = batch[max(ranks) - ranks[1] :] + (column + term if op.transpose_b else term + column)
    return Contraction(a, b, batch + row + column)


def _is_shared(op: Contraction, label: str) -> bool:
    """Test whether an axis counts products of matrices."""
    return label in op.a and label in op.b and label in op.out


def _permuted_operands(match: Match, site: Site) -> Rewrite:
    """Read operands in the order in which they are stored, except where matrices would be scattered."""
    product: Operation = match["product"]
    if any(shape_of(operand) is None for operand in product.inputs):
        return None
    found = _contraction_of(product.op, product.inputs)
    if found is None:
        return None
    operands, labels = list(product.inputs), [found.a, found.b]
    for place, operand in enumerate(product.inputs):
        turned, source = operand.operation.op, operand.operation.inputs[:1]
        if isinstance(turned, Transpose) and shape_of(source[0]) is not None:
            order = turned.order(len(labels[place]))
            lying = "".join([labels[place][order.index(axis)] for axis in range(len(order))])
            if not _is_shared(found, lying[-1]):
                operands[place], labels[place] = source[0], lying
    is_as_before = all(map(operator.is_, operands, product.inputs))
    return None if is_as_before else site.make(Contraction(labels[0], labels[1], found.out), *operands)


def _permuted_result(match: Match, site: Site) -> Rewrite:
    """Write a result in the order in which alone it is wanted, except where matrices would be scattered."""
    product: Operation = match["product"]
    found = None if shape_of(product.outputs[0]) is None else _contraction_of(product.op, product.inputs)
    if found is None:
        return None
    out = "".join([found.out[axis] for axis in match["turned"].op.order(len(found.out))])
    return None if _is_shared(found, out[-1]) else site.make(Contraction(found.a, found.b, out), *product.inputs)


def _product_of_matrices(match: Match, site: Site) -> Rewrite:
    """Make one product of a contraction without shared axes, whose rows, columns and terms are each contiguous."""
    a, b = match["a"], match["b"]
    op: Contraction = match["contraction"].op
    shapes = [shape_of(a), shape_of(b)]
    if shapes[0] is None or shapes[1] is None or any(_is_shared(op, label) for label in op.out):
        return None
    rows = "".join([label for label in op.out if label in op.a])
    columns = "".join([label for label in op.out if label in op.b])
    terms = "".join([label for label in op.a if label in op.b])
    if not rows or not columns or not terms:
        return None
    if op.out == columns + rows and columns != rows:
        rows, columns, a, b, labels = columns, rows, b, a, (op.b, op.a)
        shapes.reverse()
    elif op.out == rows + columns:
        labels = (op.a, op.b)
    else:
        return None
    if labels[0] not in (rows + terms, terms + rows) or labels[1] not in (terms + columns, columns + terms):
        return None
    sizes = dict(zip(labels[0] + labels[1], [*(shapes[0] or ()), *(shapes[1] or ())], strict=True))
    height, width, depth = (math.prod([sizes[label] for label in own]) for own in (rows, columns, terms))
    turned = MatMul(labels[0] != rows + terms, labels[1] != terms + columns)
    if turned == MatMul(True, False) and len(op.out) > 2:
        return None  # a gradient that loops may add up is seen as such while it is no reshaped product
    left = _reshaped(a, (depth, height) if turned.transpose_a else (height, depth), site)
    right = _reshaped(b, (width, depth) if turned.transpose_b else (depth, width), site)
    product = site.make(turned, left, right)
    return _reshaped(product, tuple([sizes[label] for label in op.out]), site)


def _reshaped(x: Symbol, shape: tuple[int, ...], site: Site) -> Symbol:
    return x if x.shape == shape else site.make(Reshape(shape), x)


_of_turned = op(BatchMatMul, Contraction, of=[ANY, op(Transpose)], name="product", any_order=True)
_turned = op(Transpose, of=[only_use(op(BatchMatMul, Contraction, name="product"))], name="turned")
_pair = op(Contraction, of=[tensor("a"), tensor("b")], name="contraction")
RULES = (
    Rule("transposes into contractions", _of_turned, _permuted_operands, is_exact=False),
    Rule("contractions as transposed", _turned, _permuted_result, is_exact=False),
    Rule("contractions of matrices as products", _pair, _product_of_matrices, is_exact=False),
)
