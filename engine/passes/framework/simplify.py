"""Rewrites of single operations by what is known of their inputs: tables from op class to rules.

`simplify` is what a step is always simplified by, `ALGEBRA` what the pass "simplify" adds (`algebra`,
`algebra_normalised`, `algebra_products`, `algebra_shapes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...autodiff.custom_gradient import CustomGradient
from ...graph.op import Op
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.creation import PutDiagonal
from ...ops.arrays.gathering import PutAlongAxis, PutRows
from ...ops.arrays.indexing import PutItem
from ...ops.base import Cast, Constant
from ...ops.math.reduced import BroadcastReduced
from ...ops.neural.convolution import ConvFilterGrad, ConvInputGrad
from ...ops.neural.pooling import AveragePoolGrad, MaxPoolGrad
from ...ops.neural.softmax import PlaceClass
from ...ops.run_time_shapes import BroadcastToShape, ReshapeToShape, ShapeOf, SumToShape, ZerosOfShape
from ...ops.signal.fourier import InverseRealTransformBack, RealTransformBack
from ..rewrites import algebra, algebra_arrays, algebra_normalised, algebra_products, algebra_shapes
from .rules import Rewrite, table_of


def _constant_shape(tensor: Symbol) -> tuple[int, ...] | None:
    """Return the shape that a shape vector holds, if it is a constant."""
    op = tensor.operation.op
    return tuple(int(dim) for dim in op.value) if isinstance(op, Constant) else None


def _shape_of(op: ShapeOf, inputs: Sequence[Symbol]) -> Rewrite:
    spec = inputs[0].spec
    if isinstance(spec, TensorSpec) and spec.is_static:
        return Constant(np.array(spec.shape, dtype="int32"))
    return None


def _to_shape(op: Any, inputs: Sequence[Symbol]) -> Rewrite:
    """Drop summing, broadcasting or reshaping to the shape that a value has already."""
    x, wanted = inputs[0], _constant_shape(inputs[1])
    if wanted is None:
        return None
    if x.shape == wanted:
        return x
    return type(op)(wanted) if op.shape != wanted else None


def _shaped_by(place: int) -> Callable[[Any, Sequence[Symbol]], Rewrite]:
    """Return the rule that notes the sizes of a result, where the input at `place` that holds them is a constant.

    The gradients of a step with open sizes hold them as vectors, which are constants once shapes have been fed.
    """

    def note(op: Any, inputs: Sequence[Symbol]) -> Rewrite:
        known, wanted = op.shape, _constant_shape(inputs[place])
        if wanted is None or known == wanted or min(wanted, default=0) < 0:
            return None
        fits = known is None or len(known) == len(wanted)
        sizes: Sequence[int | None] = known or ()
        for declared, size in zip(sizes, wanted, strict=False):
            fits = fits and declared in (None, size)
        return replace(op, shape=wanted) if fits else None

    return note


def _zeros(op: ZerosOfShape, inputs: Sequence[Symbol]) -> Rewrite:
    wanted = _constant_shape(inputs[0])
    return ZerosOfShape(wanted, op.dtype) if wanted is not None and wanted != op.shape else None


def _cast(op: Cast, inputs: Sequence[Symbol]) -> Rewrite:
    return inputs[0] if inputs[0].dtype == op.dtype else None


def _custom_gradient(op: CustomGradient, inputs: Sequence[Symbol]) -> Rewrite:
    """Drop a custom gradient once gradients are built: only the values are left; other inputs need no computing."""
    return tuple(inputs[: op.rule.results])


RULES: dict[type[Op], Callable[[Any, Sequence[Symbol]], Rewrite]] = {
    AveragePoolGrad: _shaped_by(1),
    BroadcastReduced: _shaped_by(1),
    BroadcastToShape: _to_shape,
    Cast: _cast,
    ConvFilterGrad: _shaped_by(2),
    ConvInputGrad: _shaped_by(2),
    CustomGradient: _custom_gradient,
    InverseRealTransformBack: _shaped_by(1),
    MaxPoolGrad: _shaped_by(2),
    PlaceClass: _shaped_by(2),
    PutAlongAxis: _shaped_by(2),
    PutDiagonal: _shaped_by(1),
    PutItem: _shaped_by(1),
    PutRows: _shaped_by(2),
    RealTransformBack: _shaped_by(1),
    ReshapeToShape: _to_shape,
    ShapeOf: _shape_of,
    SumToShape: _to_shape,
    ZerosOfShape: _zeros,
}


def simplify(op: Op, inputs: Sequence[Symbol]) -> Rewrite:
    """Return the rewrite of `op` over `inputs` by its rule, if it has one that applies."""
    rule = RULES.get(type(op))
    return None if rule is None else rule(op, inputs)


_RULES = (
    *algebra_shapes.RULES,
    *algebra_products.RULES,
    *algebra_normalised.RULES,
    *algebra_arrays.RECORDS,
    *algebra.RULES,
)
ALGEBRA = table_of(*_RULES)
EXACT_ALGEBRA = table_of(*[rule for rule in _RULES if rule.is_exact])
