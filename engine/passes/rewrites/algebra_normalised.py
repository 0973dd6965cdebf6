"""Rules of softmax, its logarithm, and the logarithm of a sum of exponentials, over axes that are not the last ones.

Kernels have these in one piece along rows. Across rows they are what they are made of: a maximum and a sum, each with
the elementwise work around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...common.machine_profile import machine_profile
from ...graph.op import Op
from ...graph.tensor import Symbol
from ...ops.arrays.shaping import Reshape
from ...ops.base import Constant
from ...ops.math.comparison import Isfinite, Where
from ...ops.math.elementwise import Add, Divide, Subtract
from ...ops.math.mathematics import Exp, Log
from ...ops.math.reduced import Sum, reduced_shape
from ...ops.math.reduction import LogSumExp, Max
from ...ops.neural.softmax import LogSoftmax, Softmax
from ..framework.patterns import Match, Pattern, op, tensor
from ..framework.rules import Rewrite, Rule, Site, shape_of


def _across_rows(rewrite: Callable[[Any, Symbol, Site], Symbol]) -> Callable[[Match, Site], Rewrite]:
    def rule(match: Match, site: Site) -> Rewrite:
        x, op = match["x"], match["normalised"].op
        shape = shape_of(x)
        if shape is None or x.dtype.name not in ("float32", "float64"):
            return None
        if math.prod(shape) < machine_profile().normalised_elements:  # of fewer, one call is less than several
            return None
        return rewrite(op, x, site) if _is_across(shape, op.axes) else None

    return rule


def _is_across(shape: Sequence[int], axes: Sequence[int] | None) -> bool:
    """Test whether another axis of several elements comes after one of `axes`."""
    reduced = range(len(shape)) if axes is None else {axis % len(shape) for axis in axes}
    several = [axis in reduced for axis, size in enumerate(shape) if size > 1]
    return sorted(several) != several


def _log_sum_exp(op: LogSumExp, x: Symbol, site: Site) -> Symbol:
    peak = site.make(Max(op.axes, True), x)
    zero = site.make(Constant(np.zeros((), x.dtype)))
    peak = site.make(Where(), site.make(Isfinite(), peak), peak, zero)
    total = site.make(Sum(op.axes, True), site.make(Exp(), site.make(Subtract(), x, peak)))
    total = site.make(Add(), site.make(Log(), total), peak)
    shape = reduced_shape(shape_of(x), op.axes, op.keepdims)
    return total if total.shape == shape else site.make(Reshape(tuple(int(dim or 0) for dim in shape or ())), total)


def _softmax(op: Softmax, x: Symbol, site: Site) -> Symbol:
    weights = site.make(Exp(), _centred(op, x, site))
    return site.make(Divide(), weights, site.make(Sum(op.axes, True), weights))


def _log_softmax(op: LogSoftmax, x: Symbol, site: Site) -> Symbol:
    centred = _centred(op, x, site)
    return site.make(Subtract(), centred, site.make(Log(), site.make(Sum(op.axes, True), site.make(Exp(), centred))))


def _centred(op: Softmax | LogSoftmax, x: Symbol, site: Site) -> Symbol:
    return site.make(Subtract(), x, site.make(Max(op.axes, True), x))


def _of(kind: type[Op]) -> Pattern:
    return op(kind, of=[tensor("x")], name="normalised")


RULES = (
    Rule("softmax across rows as maximum, exponentials and sum", _of(Softmax), _across_rows(_softmax)),
    Rule("log_softmax across rows as maximum, exponentials and sum", _of(LogSoftmax), _across_rows(_log_softmax)),
    Rule("log_sum_exp across rows as maximum, exponentials and sum", _of(LogSumExp), _across_rows(_log_sum_exp)),
)

__all__ = ["RULES"]
