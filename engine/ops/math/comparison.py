"""Elementwise ops that compare and choose: comparisons, logic, `where`, `maximum` and `minimum`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, overload

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from .. import row_rules
from ..arrays.positions import nonzero
from ..base import (
    ErrorSample,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    apply_promoted,
    cast,
    check_numbers,
    convert_to_tensor,
    promote,
    unchanged,
)
from ..run_time_shapes import sum_like
from .bitwise import LogicalNot, bitwise_and, bitwise_or, bitwise_xor
from .elementwise import (
    ElementwiseFunction,
    ElementwiseOp,
    check_dtype,
    divide,
    is_real,
    promote_numbers,
)
from .elementwise_samples import binary_samples, unary_samples

# --- comparisons ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Comparison(ElementwiseOp):
    """Base: bools from two values. Strings are in the order of their characters' code points."""

    takes_strings: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.broadcast(*inputs), dtypes.bool_)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None


@dataclass(frozen=True)
class _Order(_Comparison):
    """Base: comparisons that need an order, which complex numbers do not have."""

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], is_real, "real numbers", "Complex numbers have no order.")
        return super().infer(*inputs)


@dataclass(frozen=True)
class Equal(_Comparison):
    source = "{0} == {1}"
    ufunc = "equal"

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return e.equal(x, y)  # by name: on symbolic values == asks for identity

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.equal, differentiable=())
        yield from _special_comparisons(cls(), np.equal)


@dataclass(frozen=True)
class NotEqual(_Comparison):
    source = "{0} != {1}"
    ufunc = "not_equal"

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return e.not_equal(x, y)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.not_equal, differentiable=())
        yield from _special_comparisons(cls(), np.not_equal)


@dataclass(frozen=True)
class Less(_Order):
    grows_with: ClassVar[tuple[int, ...]] = (-1, 1)

    source = "{0} < {1}"
    ufunc = "less"

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x < y

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.less, differentiable=())
        yield from _special_comparisons(cls(), np.less)


@dataclass(frozen=True)
class LessEqual(_Order):
    grows_with: ClassVar[tuple[int, ...]] = (-1, 1)

    source = "{0} <= {1}"
    ufunc = "less_equal"

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x <= y

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.less_equal, differentiable=())
        yield from _special_comparisons(cls(), np.less_equal)


@dataclass(frozen=True)
class Greater(_Order):
    grows_with: ClassVar[tuple[int, ...]] = (1, -1)

    source = "{0} > {1}"
    ufunc = "greater"

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x > y

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.greater, differentiable=())
        yield from _special_comparisons(cls(), np.greater)


@dataclass(frozen=True)
class GreaterEqual(_Order):
    grows_with: ClassVar[tuple[int, ...]] = (1, -1)

    source = "{0} >= {1}"
    ufunc = "greater_equal"

    def expression(self, e: Any, *inputs: Any) -> Any:
        x, y = inputs
        return x >= y

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.greater_equal, differentiable=())
        yield from _special_comparisons(cls(), np.greater_equal)


def _special_comparisons(op: _Comparison, reference: Any) -> Iterable[Sample]:
    x = np.array([0.0, np.nan, np.inf, np.inf, 1.0], "float32")
    y = np.array([-0.0, np.nan, np.inf, -np.inf, np.nan], "float32")
    yield Sample(op, [x, y], reference(x, y), differentiable=(), label="special")
    yield from binary_samples(op, reference, differentiable=(), low=-3, high=3, dtype="int32")


# --- what kind of number --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Classification(ElementwiseFunction):
    """Base: bools from one value."""

    def infer(self, *inputs: Any) -> TensorSpec:
        check_numbers(self, *inputs)
        return TensorSpec(inputs[0].shape, dtypes.bool_)

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> None:
        return None


_SPECIAL_VALUES = np.array([np.nan, np.inf, -np.inf, 0.0, 1.0], "float32")


@dataclass(frozen=True)
class Isnan(_Classification):
    function = "isnan"

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.isnan, differentiable=())
        yield Sample(cls(), [_SPECIAL_VALUES], np.array([1, 0, 0, 0, 0], "bool"), differentiable=(), label="special")


@dataclass(frozen=True)
class Isinf(_Classification):
    function = "isinf"

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.isinf, differentiable=())
        yield Sample(cls(), [_SPECIAL_VALUES], np.array([0, 1, 1, 0, 0], "bool"), differentiable=(), label="special")


@dataclass(frozen=True)
class Isfinite(_Classification):
    function = "isfinite"

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.isfinite, differentiable=())
        yield Sample(cls(), [_SPECIAL_VALUES], np.array([0, 0, 0, 1, 1], "bool"), differentiable=(), label="special")


# --- choosing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Where(ElementwiseOp):
    """The second input where the first (bools) is true, elsewhere the third.

    The cotangent is chosen, not multiplied by a mask: a NaN or infinity of the side not taken stays there.
    """

    source = "np.where({0}, {1}, {2})[()]"
    takes_strings = True

    def infer(self, *inputs: Any) -> TensorSpec:
        condition, x, y = inputs
        check_dtype(self, condition, lambda dtype: dtype == dtypes.bool_, "a bool condition", "Cast it to 'bool'.")
        shape = self.broadcast(x, y)
        return TensorSpec(self.broadcast(condition, TensorSpec(shape, dtypes.bool_)), x.dtype)

    def expression(self, e: Any, *inputs: Any) -> Any:
        condition, x, y = inputs
        return e.where(condition, x, y)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        condition, x, y = node.inputs
        assert dy is not None
        dx = sum_like(where(condition, dy, 0), x) if node.needs(1) else None
        return None, dx, sum_like(where(condition, 0, dy), y) if node.needs(2) else None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        rng = np.random.default_rng(0)
        x, y = rng.uniform(-2, 2, (2, 2, 3)).astype("float32")
        cases = {
            "equal": (x > 0, x, y),
            "column": (x[:, :1] > 0, x, y[0]),
            "scalars": (x > 0, np.float32(1), np.float32(2)),
            "0-d": (np.bool_(False), np.float32(1), np.float32(2)),
            "empty": (x[:0] > 0, x[:0], y[0]),
            "integers": (x > 0, np.int32(1), np.arange(3, dtype="int32")),
        }
        for label, inputs in cases.items():
            differentiable = () if label == "integers" else (1, 2)
            yield Sample(cls(), list(inputs), np.where(*inputs), differentiable=differentiable, label=label)

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: where([True, False], [1, 2, 3], 0), ValueError, r"where: Shapes \[2\] and \[3\]")
        alone: Any = where  # by its types, x1 needs x2
        yield ErrorSample(lambda: alone([True], 1), ValueError, "both x1 and x2")


@dataclass(frozen=True)
class _Extremum(ElementwiseOp):
    """Base: the greater or smaller of two values; NaN where either is NaN.

    The cotangent goes to the value chosen; where both are equal each gets half of it, as in JAX.
    """

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], is_real, "real numbers", "Complex numbers have no order.")
        return super().infer(*inputs)

    def wins(self, x: Tensor, y: Tensor) -> Tensor:
        """Test, elementwise, whether `x` alone is chosen."""
        raise NotImplementedError(f"{type(self).__name__} must define wins().")

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs
        assert dy is not None
        tie = where(equal(x, y), dy * 0.5, 0)
        dx = sum_like(where(self.wins(x, y), dy, tie), x) if node.needs(0) else None
        return dx, sum_like(where(self.wins(y, x), dy, tie), y) if node.needs(1) else None


@dataclass(frozen=True)
class Maximum(_Extremum):
    source = "np.maximum({0}, {1})"
    ufunc = "maximum"
    row_state = row_rules.at_least

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.maximum(*inputs)

    def wins(self, x: Tensor, y: Tensor) -> Tensor:
        return greater(x, y)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.maximum)
        x, y = np.array([np.nan, 1, np.inf], "float32"), np.array([1, np.nan, -np.inf], "float32")
        yield Sample(cls(), [x, y], np.array([np.nan, np.nan, np.inf]), differentiable=(), label="special")


@dataclass(frozen=True)
class Minimum(_Extremum):
    source = "np.minimum({0}, {1})"
    ufunc = "minimum"

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.minimum(*inputs)

    def wins(self, x: Tensor, y: Tensor) -> Tensor:
        return less(x, y)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.minimum)
        x, y = np.array([np.nan, 1, np.inf], "float32"), np.array([1, np.nan, -np.inf], "float32")
        yield Sample(cls(), [x, y], np.array([np.nan, np.nan, -np.inf]), differentiable=(), label="special")


# --- functions ------------------------------------------------------------------------------------------------------


def equal(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compare ``x1 == x2`` elementwise, as bools. (The operator ``==`` of tensors tests if they are one object.)

    >>> import anabranch as ab
    >>> ab.ops.equal([1, 2], 2)
    Tensor([False,  True], dtype=bool)
    """
    return apply_promoted(Equal(), x1, x2)


def not_equal(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 != x2``, elementwise, as bools."""
    return apply_promoted(NotEqual(), x1, x2)


def less(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 < x2``, elementwise, as bools."""
    return apply_promoted(Less(), x1, x2)


def less_equal(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 <= x2``, elementwise, as bools."""
    return apply_promoted(LessEqual(), x1, x2)


def greater(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 > x2``, elementwise, as bools."""
    return apply_promoted(Greater(), x1, x2)


def greater_equal(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 >= x2``, elementwise, as bools."""
    return apply_promoted(GreaterEqual(), x1, x2)


def isnan(x: TensorLike) -> Tensor:
    """Test whether each element is NaN."""
    return apply(Isnan(), convert_to_tensor(x))


def isinf(x: TensorLike) -> Tensor:
    """Test whether each element is infinite, with either sign."""
    return apply(Isinf(), convert_to_tensor(x))


def isfinite(x: TensorLike) -> Tensor:
    """Test whether each element is neither infinite nor NaN."""
    return apply(Isfinite(), convert_to_tensor(x))


def logical_and(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Test whether both are true (numbers: not 0), elementwise."""
    return bitwise_and(cast(x1, dtypes.bool_), cast(x2, dtypes.bool_))


def logical_or(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Test whether either is true (numbers: not 0), elementwise."""
    return bitwise_or(cast(x1, dtypes.bool_), cast(x2, dtypes.bool_))


def logical_xor(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Test whether just one is true (numbers: not 0), elementwise."""
    return bitwise_xor(cast(x1, dtypes.bool_), cast(x2, dtypes.bool_))


def logical_not(x: TensorLike) -> Tensor:
    """Test whether it is false (numbers: 0), elementwise."""
    return apply(LogicalNot(), cast(x, dtypes.bool_))


@overload
def where(condition: TensorLike, x1: None = None, x2: None = None) -> tuple[Tensor, ...]: ...


@overload
def where(condition: TensorLike, x1: TensorLike, x2: TensorLike) -> Tensor: ...


def where(condition: TensorLike, x1: TensorLike | None = None, x2: TensorLike | None = None) -> Any:
    """Return `x1` where `condition` is true, elsewhere `x2`; all broadcast. Without them, indices of true elements.

    No gradient flows to the side that is not taken, so a NaN there does no harm.

    Args:
        condition: bools, or numbers of which 0 is false.
        x1: values; promoted with `x2`, where Python numbers are weak.
        x2: values.

    Raises:
        ValueError: one of `x1` and `x2` is given without the other.

    >>> import anabranch as ab
    >>> ab.ops.where([True, False], [1, 2], 0.5)
    Tensor([1. , 0.5], dtype=float32)
    """
    if x1 is None and x2 is None:
        return nonzero(condition)
    if x1 is None or x2 is None:
        raise ValueError("where takes both x1 and x2, or none of them for the indices of true elements.")
    return apply(Where(), cast(condition, dtypes.bool_), *promote(x1, x2))


def select(condlist: Sequence[TensorLike], choicelist: Sequence[TensorLike], default: TensorLike = 0) -> Tensor:
    """Return, for each element, the choice that belongs to the first true condition.

    Args:
        condlist: bools; all broadcast.
        choicelist: as many values.
        default: the value where no condition is true.

    Raises:
        ValueError: the lists are empty or differ in length.

    >>> import anabranch as ab
    >>> x = ab.constant([1, 2, 3])
    >>> ab.ops.select([x < 2, x < 3], [x, 10 * x], -1)
    Tensor([ 1, 20, -1], dtype=int32)
    """
    if not condlist or len(condlist) != len(choicelist):
        raise ValueError(
            "select takes as many choices as conditions, and at least one; "
            f"got {len(condlist)} conditions and {len(choicelist)} choices."
        )
    *choices, result = promote(*choicelist, default)
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        result = where(condition, choice, result)
    return result


def maximum(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Return the greater of two values, elementwise; NaN where either is NaN.

    Where both are equal each gets half of the gradient.
    """
    return apply_promoted(Maximum(), x1, x2)


def minimum(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Return the smaller of two values, elementwise; NaN where either is NaN.

    Where both are equal each gets half of the gradient.
    """
    return apply_promoted(Minimum(), x1, x2)


def clip(x: TensorLike, x_min: TensorLike | None, x_max: TensorLike | None) -> Tensor:
    """Compute ``minimum(maximum(x, x_min), x_max)``; a bound that is None does not bound.

    >>> import anabranch as ab
    >>> ab.ops.clip([-1.0, 0.5, 2.0], 0, 1)
    Tensor([0. , 0.5, 1. ], dtype=float32)
    """
    bounds = [bound for bound in (x_min, x_max) if bound is not None]
    tensor, *limits = promote_numbers(x, *bounds)
    if not limits:
        return unchanged(tensor)
    if x_min is not None:
        tensor = maximum(tensor, limits.pop(0))
    return minimum(tensor, limits[0]) if x_max is not None else tensor


def heaviside(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Return the step function: 0 where `x1` is negative, 1 where positive, `x2` where 0, NaN where NaN."""
    x, at_zero = promote(x1, x2, floating=True)
    return where(equal(x, 0), at_zero, where(less(x, 0), 0, where(greater(x, 0), 1, x)))


def divide_no_nan(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 / x2``, or 0 where `x2` is 0, where all gradients are 0 as well."""
    x, y = promote(x1, x2, floating=True)
    zero = equal(y, 0)
    return where(zero, 0, divide(x, where(zero, 1, y)))


__all__ = [
    "clip",
    "divide_no_nan",
    "equal",
    "greater",
    "greater_equal",
    "heaviside",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "not_equal",
    "select",
    "where",
]
